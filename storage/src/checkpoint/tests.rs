//! Tests of checkpoints: any cut restores, nothing damaged does, and the manifest is won once.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::faults::{Fault, FaultyStore};
use crate::keys::CheckpointName;
use crate::stored::{delete_object, objects_of_job};
use events_schema::{Digest, Generation, JobId, Step, WriterToken};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use proptest::prelude::*;
use std::sync::Arc;

const GENERATION: Generation = Generation(3);
const STEP: Step = Step(700);

fn job() -> JobId {
    JobId::parse("job-a").unwrap()
}

fn name() -> CheckpointName {
    CheckpointName { job: job(), generation: GENERATION, step: STEP, writer: Some(WriterToken([7; 16])) }
}

fn replica(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i as f32).sin()).collect()
}

fn manifest(replica: &[f32], shards: Vec<ShardRecord>) -> Manifest {
    Manifest {
        format_version: 1,
        job: job(),
        spec_digest: Digest([1; 32]),
        numeric_class: Digest([2; 32]),
        generation: GENERATION,
        step: STEP,
        replica_len: replica.len() as u64,
        replica_digest: replica_digest(replica),
        shards,
        written_by: Some(THIS_BUILD.to_owned()),
    }
}

async fn write_all(store: &Arc<dyn ObjectStore>, replica: &[f32], members: u32) -> Manifest {
    let (mut shards, whole) = (Vec::new(), Arc::new(replica.to_vec()));
    for range in cut_shards(replica.len() as u64, members) {
        let elements = ShardElements::of(range, Arc::clone(&whole));
        shards.push(write_shard(store, &name(), range, &elements).await.unwrap());
    }
    manifest(replica, shards)
}

#[tokio::test]
async fn any_number_of_writers_restores_to_the_same_replica() {
    for (len, members) in [(0, 1), (1, 3), (1_000, 1), (1_000, 7), (5_000_000, 2)] {
        let store: Arc<dyn ObjectStore> = FaultyStore::new();
        let replica = replica(len);
        let manifest = write_all(&store, &replica, members).await;
        let key = write_manifest(&store, &name(), &manifest).await.unwrap();
        assert_eq!(key, name().manifest());
        let read = read_manifest(&store, &name()).await.unwrap();
        assert_eq!(read, manifest);
        let restored = read_replica(&store, &name(), &read).await.unwrap();
        assert!(restored.iter().map(|v| v.to_bits()).eq(replica.iter().map(|v| v.to_bits())));
    }
}

#[tokio::test]
async fn a_manifest_is_written_once() {
    let faulty = FaultyStore::new();
    let store: Arc<dyn ObjectStore> = faulty.clone();
    let replica = replica(100);
    let manifest = write_all(&store, &replica, 2).await;
    // An answer that is lost: the manifest is there, and the retry sees that it is ours.
    faulty.fail(Fault::LostAnswer, "manifest", 1);
    write_manifest(&store, &name(), &manifest).await.unwrap();
    assert_eq!(faulty.pending(), 0);
    write_manifest(&store, &name(), &manifest).await.unwrap();
    let other = Manifest { numeric_class: Digest([9; 32]), ..manifest };
    assert!(matches!(write_manifest(&store, &name(), &other).await, Err(CheckpointWriteError::Taken { .. })));
}

#[tokio::test]
async fn failed_writes_are_repeated() {
    let faulty = FaultyStore::new();
    let store: Arc<dyn ObjectStore> = faulty.clone();
    let replica = replica(3_000_000);
    for fault in [Fault::Write, Fault::LostAnswer] {
        faulty.fail(fault, "shard-0", 1);
        let manifest = write_all(&store, &replica, 2).await;
        assert!(read_replica(&store, &name(), &manifest).await.unwrap() == replica);
    }
}

#[tokio::test]
async fn damage_is_named_and_never_returned() {
    let faulty = FaultyStore::new();
    let store: Arc<dyn ObjectStore> = faulty.clone();
    let replica = replica(1_000);
    let manifest = write_all(&store, &replica, 3).await;
    let key = write_manifest(&store, &name(), &manifest).await.unwrap();
    let second = &manifest.shards[1].key;

    faulty.fail(Fault::Corrupt, "shard-1", 1);
    let error = read_replica(&store, &name(), &manifest).await.unwrap_err();
    assert!(matches!(&error, RestoreError::Corrupt { key, .. } if key == second) && error.is_damage(), "{error}");

    faulty.fail(Fault::Truncate, "shard-1", 1);
    assert!(read_replica(&store, &name(), &manifest).await.unwrap() == replica, "a short read is tried again");

    let lie = Manifest { replica_digest: Digest([7; 32]), ..manifest.clone() };
    assert!(matches!(read_replica(&store, &name(), &lie).await, Err(RestoreError::Corrupt { key: k, .. }) if k == key));

    faulty.fail(Fault::Corrupt, "manifest", 1);
    assert!(read_manifest(&store, &name()).await.unwrap_err().is_damage());

    store.delete(&Path::from(second.as_str())).await.unwrap();
    let error = read_replica(&store, &name(), &manifest).await.unwrap_err();
    assert!(matches!(&error, RestoreError::Missing { key } if key == second), "{error}");
    let none = CheckpointName { step: Step(1), ..name() };
    assert!(matches!(read_manifest(&store, &none).await, Err(RestoreError::Missing { key }) if key == none.manifest()));
}

/// Whatever its digest says: the manifest may be as wrong as the object.
#[tokio::test]
async fn an_object_that_is_no_shard_is_named() {
    let store: Arc<dyn ObjectStore> = FaultyStore::new();
    let manifest = write_all(&store, &replica(10), 1).await;
    let path = Path::from(manifest.shards[0].key.as_str());
    let file = store.get(&path).await.unwrap().bytes().await.unwrap().to_vec();
    let with = |from: &[u8], to: &[u8]| {
        let at = file.windows(from.len()).position(|window| window == from).unwrap();
        [&file[..at], to, &file[at + from.len()..]].concat()
    };
    let length = file[0];
    for (wrong, said) in [
        (file[1..].to_vec(), "bytes instead of"),
        ([&file[..], &[0]].concat(), "bytes instead of"),
        (with(b"F32", b"I32"), "I32 of shape [10] instead of 10 32-bit floats"),
        (with(b"[0,40]", b"[4,40]"), "instead of 10 32-bit floats"),
        (with(b"replica", b"another"), "no tensor `replica`"),
        (with(&[length, 0], &[length - 1, 0]), "its header has"),
        (with(b"{", b"["), "expected"),
    ] {
        store.put(&path, wrong.clone().into()).await.unwrap();
        let shard = ShardRecord { blake3: Digest::of(&wrong), ..manifest.shards[0].clone() };
        let manifest = Manifest { shards: vec![shard], ..manifest.clone() };
        let error = read_replica(&store, &name(), &manifest).await.unwrap_err();
        assert!(error.is_damage() && error.to_string().contains(said), "{said}: {error}");
    }
}

#[tokio::test]
async fn another_format_is_not_damage_and_names_the_build_that_reads_it() {
    let store: Arc<dyn ObjectStore> = FaultyStore::new();
    let later = r#"{"format_version":9,"written_by":"ebb 9.1.0","replicas":{}}"#;
    store.put(&Path::from(name().manifest()), later.into()).await.unwrap();
    let error = read_manifest(&store, &name()).await.unwrap_err();
    assert!(matches!(&error, RestoreError::Format { .. }) && !error.is_damage(), "{error}");
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("has format 9") && source.contains("reads format 1"), "{source}");
    assert!(source.ends_with("run the build that wrote it, ebb 9.1.0") && source.contains(THIS_BUILD), "{source}");
}

#[tokio::test]
async fn a_manifest_that_names_objects_of_others_is_not_followed() {
    let store: Arc<dyn ObjectStore> = FaultyStore::new();
    let replica = replica(10);
    let manifest = write_all(&store, &replica, 2).await;
    let other = CheckpointName { job: JobId::parse("job-b").unwrap(), ..name() };
    let mut foreign = manifest.clone();
    foreign.shards[1].key = other.shard(1);
    for (place, manifest) in [(&name(), &foreign), (&other, &manifest)] {
        assert!(matches!(write_manifest(&store, place, manifest).await, Err(CheckpointWriteError::NotWhole(_))));
        store.put(&Path::from(place.manifest()), manifest.to_bytes().into()).await.unwrap();
        let error = read_manifest(&store, place).await.unwrap_err();
        assert!(
            matches!(&error, RestoreError::Manifest { source: ManifestError::Elsewhere { .. }, .. })
                && error.is_damage(),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_deleted_checkpoint_is_gone_and_nothing_else_is() {
    let store: Arc<dyn ObjectStore> = FaultyStore::new();
    let replica = replica(10);
    let manifest = write_all(&store, &replica, 2).await;
    let key = write_manifest(&store, &name(), &manifest).await.unwrap();
    write_model(&store, &job(), vec![1, 2, 3]).await.unwrap();
    let all = objects_of_job(&store, &job(), |_| true, 10).await.unwrap();
    assert_eq!(all.len(), 4);
    assert!(all.iter().any(|object| object.key == key && object.bytes == manifest.to_bytes().len() as u64));
    assert_eq!(objects_of_job(&store, &job(), |object| object.key.contains("shard"), 1).await.unwrap().len(), 1);
    for of_others in [CheckpointName { step: Step(1), ..name() }, CheckpointName { writer: None, ..name() }] {
        delete(&store, &of_others).await.unwrap();
        assert_eq!(objects_of_job(&store, &job(), |_| true, 10).await.unwrap().len(), 4);
    }
    for _ in 0..2 {
        delete(&store, &name()).await.unwrap();
    }
    let left = objects_of_job(&store, &job(), |_| true, 10).await.unwrap();
    assert_eq!(read_model(&store, &job()).await.unwrap().as_ref(), [1, 2, 3]);
    assert_eq!(left.iter().map(|object| object.key.as_str()).collect::<Vec<_>>(), [crate::keys::model(&job())]);
    for _ in 0..2 {
        delete_object(&store, &left[0]).await.unwrap();
    }
    assert!(objects_of_job(&store, &job(), |_| true, 10).await.unwrap().is_empty());
}

/// Written once, read for ever.
#[tokio::test]
async fn golden_shard() {
    let store: Arc<dyn ObjectStore> = FaultyStore::new();
    let range = ShardRange { index: 0, first_element: 4, elements: 2 };
    let shard = write_shard(&store, &name(), range, &ShardElements::all(Arc::new(vec![1.0, -2.5]))).await.unwrap();
    let file = store.get(&Path::from(shard.key.as_str())).await.unwrap().bytes().await.unwrap();
    let header = concat!(
        r#"{"__metadata__":{"first_element":"4","format":"ebb-shard-1","generation":"3","job":"job-a","step":"700"},"#,
        r#""replica":{"data_offsets":[0,8],"dtype":"F32","shape":[2]}}"#
    );
    let padded = format!("{header:<width$}", width = header.len().next_multiple_of(8));
    let expected =
        [&(padded.len() as u64).to_le_bytes()[..], padded.as_bytes(), &1.0f32.to_le_bytes(), &(-2.5f32).to_le_bytes()]
            .concat();
    assert_eq!(file, expected);
    assert_eq!((shard.bytes, shard.blake3), (expected.len() as u64, Digest::of(&expected)));
}

#[test]
fn manifests_are_checked() {
    let shard = |first_element, elements| ShardRecord {
        key: "k".into(),
        first_element,
        elements,
        bytes: 64,
        blake3: Digest([0; 32]),
    };
    let parse = |shards| Manifest::parse(&manifest(&replica(10), shards).to_bytes());
    assert!(parse(vec![shard(0, 4), shard(4, 6)]).is_ok());
    for wrong in [vec![], vec![shard(0, 4)], vec![shard(0, 4), shard(5, 5)], vec![shard(4, 6), shard(0, 4)]] {
        assert!(matches!(parse(wrong), Err(ManifestError::Gap { .. })));
    }
    for wrong in [17, u64::MAX / 4 + 1, u64::MAX] {
        assert!(
            matches!(parse(vec![shard(0, wrong)]), Err(ManifestError::Short { elements, .. }) if elements == wrong)
        );
    }
    let of_9 = Manifest::parse(br#"{"format_version":9}"#).unwrap_err();
    assert!(matches!(&of_9, ManifestError::Version { version: 9, written_by: None }), "{of_9}");
    let first = r#"{"format_version":1,"job":"job-a","spec_digest":"D","numeric_class":"D","generation":1,"step":2,"replica_len":0,"replica_digest":"D","shards":[]}"#;
    let first = Manifest::parse(first.replace('D', &Digest([1; 32]).to_string()).as_bytes()).unwrap();
    assert_eq!(first.written_by, None, "the first build did not say");
    assert!(matches!(Manifest::parse(b"\xff"), Err(ManifestError::Malformed(_))));
}

proptest! {
    #[test]
    fn shards_cut_a_replica(len in 0u64..10_000, members in 0u32..300) {
        let shards = cut_shards(len, members);
        prop_assert_eq!(shards.len() as u32, members.max(1));
        let mut next = 0;
        for (index, shard) in shards.iter().enumerate() {
            prop_assert_eq!((shard.index as usize, shard.first_element), (index, next));
            next += shard.elements;
        }
        prop_assert_eq!(next, len);
        let of = |shard: &ShardRange| shard.elements;
        prop_assert!(shards.iter().map(of).max().unwrap() - shards.iter().map(of).min().unwrap() <= PART_ELEMENTS);
    }

    #[test]
    fn what_members_hash_of_their_own_parts_makes_the_digest_of_the_whole(len in 0usize..20_000, members in 1u32..12) {
        let (replica, len) = (replica(len), len as u64);
        let shards = cut_shards(len, members);
        let digests: Vec<Vec<Digest>> =
            shards.iter().map(|shard| part_digests(shard.of(&replica).unwrap(), shard.first_element, len)).collect();
        let whole = |digests: &[Vec<Digest>]| {
            whole_digest(len, shards.iter().copied().zip(digests.iter().map(Vec::as_slice)))
        };
        prop_assert_eq!(whole(&digests), Some(replica_digest(&replica)));
        let with_one_more = digests.iter().map(|part| [part.as_slice(), &[Digest([0; 32])]].concat());
        let several = shards.iter().filter(|shard| shard.elements > 0).count() > 1;
        prop_assert!(!several || whole(&with_one_more.collect::<Vec<_>>()).is_none());
        prop_assert!(!several || whole(&vec![Vec::new(); digests.len()]).is_none());
    }
}

#[test]
fn a_checksum_is_the_same_little_by_little() {
    let replica = replica(70_001);
    let mut checksum = Checksum::default();
    replica.chunks(999).for_each(|some| checksum.add(some));
    assert_eq!(checksum.finish(), Checksum::of(&replica));
    let mut flipped = replica.clone();
    flipped[50_000] = f32::from_bits(flipped[50_000].to_bits() ^ 1);
    assert_ne!(Checksum::of(&flipped), Checksum::of(&replica));
}
