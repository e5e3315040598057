//! What was accepted once is accepted by every later build, and means the same: `accepted.txt` holds values with all their bounds, each with the digest of the bytes
//! that it comes to in a record. What may come is that more is accepted. Rules that came later are asked at doors alone (`values.rs`), and limits that may
//! be configured too.
//!
//! The other way round, no record makes a name or a spec that no door would let in.
//!
//! A new field gets lines with its bounds and `-` for the digest, which `EBB_GOLDEN=write` fills in; a line that is there is never changed.

use crate::samples;
use events_schema::batch::{from_bytes, to_bytes};
use events_schema::dataset::parse_sample_shape;
use events_schema::job::{JobFields, JobSpec, Length, ModelSpec, Shuffle, Workers};
use events_schema::{
    CommandId, DatasetName, Digest, ExecutorId, FleetId, JobId, ServerId, SlotId, TenantId, TraceContext,
};
use minicbor::{Decode, Encode};
use serde_json::Value;
use std::fmt::Debug;
use std::path::PathBuf;

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/accepted.txt")
}

/// The digest of a value's bytes, which are read back as the same value.
fn digest<T: Encode<()> + for<'b> Decode<'b, ()> + PartialEq + Debug>(value: &T) -> String {
    let bytes = to_bytes(value);
    assert_eq!(&from_bytes::<T>(&bytes).unwrap(), value);
    Digest::of(&bytes).to_string()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

/// What a value of a kind comes to, or why it is refused.
fn read(kind: &str, value: &Value) -> Result<String, String> {
    let refused = |error: &dyn std::fmt::Display| error.to_string();
    match kind {
        "job" => JobSpec::parse(value).map(|spec| digest(&spec)).map_err(|e| refused(&e)),
        "sample" => parse_sample_shape("sample", value).map(|shape| digest(&shape)).map_err(|e| refused(&e)),
        "slot" => text(value).parse().map(|slot: SlotId| digest(&slot)).map_err(|e| refused(&e)),
        "executor" => text(value).parse().map(|executor: ExecutorId| digest(&executor)).map_err(|e| refused(&e)),
        "digest" => text(value).parse().map(|of: Digest| digest(&of)).map_err(|e| refused(&e)),
        "trace" => text(value).parse().map(|trace: TraceContext| digest(&trace)).map_err(|e| refused(&e)),
        "name" => {
            let names = [
                JobId::parse(text(value)).map(|name| digest(&name)),
                TenantId::parse(text(value)).map(|name| digest(&name)),
                FleetId::parse(text(value)).map(|name| digest(&name)),
                ServerId::parse(text(value)).map(|name| digest(&name)),
                DatasetName::parse(text(value)).map(|name| digest(&name)),
                CommandId::parse(text(value)).map(|name| digest(&name)),
            ];
            let all: Vec<String> = names.into_iter().collect::<Result<_, _>>().map_err(|e| refused(&e))?;
            assert!(all.iter().all(|one| *one == all[0]), "names of all kinds have the same bytes");
            Ok(all[0].clone())
        }
        _ => panic!("{kind} is no kind of value"),
    }
}

#[test]
fn what_was_accepted_is_accepted_and_means_the_same() {
    let writes = std::env::var("EBB_GOLDEN").is_ok_and(|what| what == "write");
    let (mut wrong, mut written) = (Vec::new(), String::new());
    for line in std::fs::read_to_string(path()).unwrap().lines() {
        let mut parts = line.splitn(3, ' ');
        let (kind, digest, value) = (parts.next().unwrap(), parts.next().unwrap(), parts.next().unwrap());
        if kind == "#" {
            written += &format!("{line}\n");
            continue;
        }
        let now = read(kind, &serde_json::from_str(value).unwrap());
        match &now {
            Ok(now) if now == digest => written += &format!("{line}\n"),
            Ok(now) if digest == "-" && writes => written += &format!("{kind} {now} {value}\n"),
            _ => {
                written += &format!("{line}\n");
                wrong.push(format!("{kind} {value} was accepted as {digest}, and now is {now:?}"));
            }
        }
    }
    if writes {
        std::fs::write(path(), written).unwrap();
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Every kind of record and message that holds a name, with one that nobody could have given.
#[test]
fn no_record_makes_a_name_that_no_door_lets_in() {
    let names: [(&[u8], &[u8]); 4] = [
        (b"job-4g7q2mz0x8k1v5n3b6c9d2f0ha", b"JOB-4g7q2mz0x8k1v5n3b6c9d2f0ha"),
        (b"host-1.rack", b"host-1/rack"),
        (b"chat-eu", b"chat\neu"),
        (b"cmd-01", b"-md-01"),
    ];
    let mut changed = 0;
    for sample in samples::all() {
        for (legal, illegal) in names {
            let places = sample.bytes.windows(legal.len()).enumerate().filter(|(_, window)| *window == legal);
            for (at, _) in places {
                let mut bytes = sample.bytes.clone();
                bytes[at..at + legal.len()].copy_from_slice(illegal);
                let told = (sample.reads)(&bytes);
                assert!(told.is_err(), "{} is read with {:?}", sample.name, String::from_utf8_lossy(illegal));
                changed += 1;
            }
        }
    }
    assert!(changed > 100, "only {changed} names were found in the samples");
}

#[test]
fn no_record_makes_a_spec_that_no_door_lets_in() {
    let good: JobFields = (*samples::spec()).clone();
    assert_eq!(from_bytes::<JobSpec>(&to_bytes(&good)).unwrap(), samples::spec());
    type Change = fn(&mut JobFields);
    let wrong: [(&str, Change); 9] = [
        ("name", |fields| fields.name = "n".repeat(64)),
        ("name", |fields| fields.name = "a\u{7}b".to_owned()),
        ("workers", |fields| fields.workers = Workers { min: 3, max: 2 }),
        ("workers", |fields| fields.workers = Workers { min: 1, max: 257 }),
        ("batch_size", |fields| fields.batch_size = 0),
        ("epochs", |fields| fields.length = Length::Epochs(0)),
        ("shuffle", |fields| fields.shuffle = Shuffle::Blocks { open: 257 }),
        ("gradient_clip_norm", |fields| fields.gradient_clip_norm = Some(f64::NAN)),
        ("model", |fields| fields.model = ModelSpec::Mlp { hidden: vec![0], dropout: 0.0 }),
    ];
    for (field, change) in wrong {
        let mut fields = good.clone();
        change(&mut fields);
        let refused = from_bytes::<JobSpec>(&to_bytes(&fields));
        assert!(refused.is_err(), "a record makes a job with another {field} than any door lets in");
    }
}
