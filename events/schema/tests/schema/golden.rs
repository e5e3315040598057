//! The bytes of every kind of record, fixed for ever: what an earlier Ebb wrote, this one reads, and writes the same.
//!
//! `golden.txt` holds a line `NAME HEX` for each. After adding a kind, run once with `EBB_GOLDEN=write`: it appends what is
//! missing and changes nothing that is there. A test that fails on a line that is there has found a broken format.

use crate::samples;
use events_schema::batch::{FORMAT_VERSION, from_bytes, to_bytes};
use events_schema::fact::{Fact, Refusal};
use events_schema::report::{Metrics, Outcome};
use events_schema::{Digest, Offset, Step};
use minicbor::{Decode, Encode};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

fn golden_path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden.txt")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    text.as_bytes().chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn golden() -> BTreeMap<String, Vec<u8>> {
    let text = std::fs::read_to_string(golden_path()).unwrap_or_default();
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.map(|line| line.rsplit_once(' ').map(|(name, bytes)| (name.to_owned(), unhex(bytes))).unwrap()).collect()
}

#[test]
fn every_kind_has_the_bytes_it_always_had() {
    let mut golden = golden();
    if std::env::var("EBB_GOLDEN").is_ok_and(|mode| mode == "write") {
        let mut text = std::fs::read_to_string(golden_path())
            .unwrap_or_else(|_| "# NAME HEX: see golden.rs. Lines are added, never changed.\n".to_owned());
        for sample in samples::all().iter().filter(|sample| !golden.contains_key(&sample.name)) {
            text.push_str(&format!("{} {}\n", sample.name, hex(&sample.bytes)));
        }
        std::fs::write(golden_path(), text).unwrap();
        golden = self::golden();
    }
    let mut wrong = Vec::new();
    for sample in samples::all() {
        match golden.get(&sample.name) {
            None => wrong.push(format!("{} has no golden line: run with EBB_GOLDEN=write", sample.name)),
            Some(bytes) if *bytes != sample.bytes => {
                wrong.push(format!("{} is now {}, was {}", sample.name, hex(&sample.bytes), hex(bytes)))
            }
            Some(bytes) => match (sample.reads)(bytes) {
                Ok(again) if again == *bytes => {}
                other => wrong.push(format!("{} is not read back: {other:?}", sample.name)),
            },
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_kind_has_a_sample_and_every_line_a_kind() {
    let sampled: BTreeSet<String> = samples::all().into_iter().map(|sample| sample.name).collect();
    let wanted: BTreeSet<String> = samples::names_wanted().into_iter().collect();
    assert_eq!(wanted.difference(&sampled).collect::<Vec<_>>(), Vec::<&String>::new(), "kinds without a sample");
    let lines: BTreeSet<String> = golden().into_keys().collect();
    assert_eq!(lines.difference(&sampled).collect::<Vec<_>>(), Vec::<&String>::new(), "golden lines without a kind");
}

/// The number of an enum's variant as written: the first item of the array after the format version.
fn variant_number(bytes: &[u8]) -> u32 {
    let mut decoder = minicbor::Decoder::new(&bytes[1..]);
    decoder.array().unwrap();
    decoder.u32().unwrap()
}

#[test]
fn no_number_of_a_variant_is_used_twice() {
    let samples: BTreeMap<String, Vec<u8>> =
        samples::all().into_iter().map(|sample| (sample.name, sample.bytes)).collect();
    let mut numbers: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for (name, bytes) in samples.iter() {
        if let Some((kind, _)) = name.split_once("::") {
            numbers.entry(kind).or_default().push(variant_number(bytes));
        }
    }
    for (kind, mut found) in numbers {
        found.sort_unstable();
        assert!(found.is_sorted_by(|a, b| a < b), "{kind}: {found:?}");
    }
}

/// `Metrics` as a later version might have it.
#[derive(Encode, Decode)]
struct LaterMetrics {
    #[n(0)]
    loss_micro: i64,
    #[n(1)]
    correct: u64,
    #[n(2)]
    count: u64,
    #[n(4)]
    perplexity_milli: Option<u64>,
    #[n(5)]
    notes: Vec<String>,
}

/// A fact as a later version might have it: one field more, and one of a kind this build does not know.
#[derive(Encode)]
enum LaterFact {
    #[n(2)]
    CommandTaken {
        #[n(0)]
        command: String,
        #[n(1)]
        by: String,
        #[n(2)]
        after: Vec<(u8, String)>,
    },
    #[n(9_999)]
    SlotPainted {
        #[n(0)]
        colour: String,
    },
}

#[test]
fn fields_added_later_are_passed_over() {
    let later =
        LaterMetrics { loss_micro: -5, correct: 1, count: 2, perplexity_milli: Some(3), notes: vec!["n".to_owned()] };
    assert_eq!(
        from_bytes::<Metrics>(&to_bytes(&later)).unwrap(),
        Metrics { loss_micro: -5, correct: 1, count: 2, named: None }
    );
    let later =
        LaterFact::CommandTaken { command: "cmd-1".to_owned(), by: "x".to_owned(), after: vec![(1, "y".to_owned())] };
    assert!(
        matches!(from_bytes::<Fact>(&to_bytes(&later)).unwrap(), Fact::CommandTaken { command } if command.as_str() == "cmd-1")
    );
}

/// `Outcome` before it had metrics.
#[derive(Encode)]
struct EarlierOutcome {
    #[n(0)]
    step: Step,
    #[n(1)]
    model_key: String,
    #[n(2)]
    model_digest: Digest,
    #[n(3)]
    train_loss_micro: i64,
}

#[test]
fn an_optional_field_that_was_not_there_yet_is_none() {
    let earlier =
        EarlierOutcome { step: Step(1), model_key: "k".to_owned(), model_digest: Digest([1; 32]), train_loss_micro: 2 };
    let read = from_bytes::<Outcome>(&to_bytes(&earlier)).unwrap();
    assert_eq!((read.metrics.clone(), read.train_loss_micro), (None, Some(2)));
    // A loss was always there in earlier builds, and one that is has the same bytes.
    assert_eq!(to_bytes(&read), to_bytes(&earlier));
    let unmeasured = Outcome { train_loss_micro: None, ..read };
    assert_eq!(from_bytes::<Outcome>(&to_bytes(&unmeasured)).unwrap(), unmeasured);
    // One that is not optional is missed: an array of two zeros is no `Metrics`.
    assert!(from_bytes::<Metrics>(&[FORMAT_VERSION, 0x82, 0, 0]).is_err());
}

#[test]
fn what_this_build_does_not_know_is_an_error_not_a_guess() {
    assert!(from_bytes::<Fact>(&to_bytes(&LaterFact::SlotPainted { colour: "red".to_owned() })).is_err());
    let good = to_bytes(&samples::facts()[2]);
    let shown = |bytes: &[u8]| from_bytes::<Fact>(bytes).unwrap_err().to_string();
    assert!(shown(&[]).contains("empty"));
    assert!(shown(&[2, good[1]]).contains("format version 2, this build reads 1"));
    assert!(shown(&[&good[..], &[0]].concat()).contains("left over"));
    assert!(!shown(&good[..good.len() - 1]).is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn damaged_bytes_never_panic(pick in any::<prop::sample::Index>(), changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4), cut in any::<Option<prop::sample::Index>>()) {
        let samples = samples::all();
        let sample = &samples[pick.index(samples.len())];
        let mut bytes = sample.bytes.clone();
        for (place, value) in changes {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        // Either refused, or something that is written and read back as itself.
        if let Ok(again) = (sample.reads)(&bytes) {
            prop_assert_eq!((sample.reads)(&again).unwrap(), again);
        }
    }

    #[test]
    fn texts_and_numbers_survive(offset in any::<u64>(), stream in ".{0,40}", reason in "\\PC{0,200}", command in "[a-z0-9][a-z0-9._-]{0,62}", nearest in proptest::option::of(".{0,20}")) {
        let refused = Fact::InputRefused { stream: stream.clone(), offset: Offset(offset), reason };
        prop_assert_eq!(&from_bytes::<Fact>(&to_bytes(&refused)).unwrap(), &refused);
        let refusal = Refusal::Unknown { kind: stream, name: command.clone(), nearest };
        let refused = Fact::CommandRefused { command: command.parse().unwrap(), subject: command, refusal };
        prop_assert_eq!(&from_bytes::<Fact>(&to_bytes(&refused)).unwrap(), &refused);
    }
}
