//! Tests of the loader: exactly once, from few bytes, whatever the store does.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::dataset::{ColumnNames, CsvOptions, DatasetRoot, DatasetRoots, Registration, import_csv, register};
use crate::faults::{Fault, FaultyStore};
use events_schema::DatasetName;
use events_schema::job::JobSpec;
use events_schema::stride::Stride;
use std::io::Cursor;
use std::time::Duration;

const QUICK: RetryPolicy = RetryPolicy {
    first_wait: Duration::from_millis(1),
    wait_max: Duration::from_millis(2),
    deadline: Duration::from_millis(30),
    attempt_max: Duration::from_secs(5),
};

fn limits() -> LoaderLimits {
    LoaderLimits { retry: QUICK, ..LoaderLimits::default() }
}

fn spec(workers: u32, batch_size: u32, shuffle: &str) -> JobSpec {
    let text = format!(
        r#"{{"name":"t","model":{{"kind":"mlp"}},"dataset":"d","workers":{{"max":{workers}}},"batch_size":{batch_size},"epochs":3,"shuffle":{shuffle}}}"#
    );
    JobSpec::parse(&serde_json::from_str(&text).unwrap()).unwrap()
}

/// A dataset whose first feature is the row's number.
async fn numbered(store: &Arc<dyn ObjectStore>, rows: usize) -> DatasetInfo {
    let text: String = (0..rows).map(|i| format!("{i},0.5,{}\n", i % 3)).collect();
    import_csv(store, &DatasetName::parse("d").unwrap(), Cursor::new(text), &CsvOptions::default())
        .await
        .unwrap()
        .dataset
}

fn numbers(samples: &Samples) -> Vec<usize> {
    let Samples::Classified { features, labels } = samples else { panic!() };
    let numbers: Vec<usize> = features.chunks(2).map(|row| row[0] as usize).collect();
    assert!(numbers.iter().zip(labels).all(|(n, &l)| n % 3 == l as usize), "a label belongs to another row");
    numbers
}

#[tokio::test]
async fn every_sample_arrives_once_per_epoch() {
    let store: Arc<dyn ObjectStore> = FaultyStore::new();
    let info = numbered(&store, 1_003).await;
    for shuffle in [r#""blocks""#, r#""full""#, r#""none""#, r#"{"window":100}"#] {
        let loader = Loader::open(Arc::clone(&store), &spec(3, 16, shuffle), &info, limits()).await.unwrap();
        assert_eq!(loader.steps_total(), 3 * loader.steps_per_epoch());
        for epoch in 0..2 {
            let mut seen = Vec::new();
            for step in 0..loader.steps_per_epoch() {
                for rank in 0..3 {
                    let step = Step(epoch * loader.steps_per_epoch() + step);
                    loader.prefetch(&[Rank(rank)], (step, Stride::ONE), 2);
                    seen.extend(numbers(&loader.samples(Rank(rank), step).await.unwrap()));
                }
            }
            seen.sort_unstable();
            assert!(seen.iter().copied().eq(0..1_003), "{shuffle}");
        }
        assert_eq!(loader.metrics().samples_delivered, 2_006);
    }
}

#[tokio::test]
async fn two_loaders_agree_and_small_caches_only_cost_reads() {
    let store: Arc<dyn ObjectStore> = FaultyStore::new();
    let info = numbered(&store, 500).await;
    let spec = spec(2, 32, r#""full""#);
    let roomy = Loader::open(Arc::clone(&store), &spec, &info, limits()).await.unwrap();
    let tight =
        Loader::open(Arc::clone(&store), &spec, &info, LoaderLimits { cache_bytes: 1, cache_bytes_max: 1, ..limits() })
            .await
            .unwrap();
    for step in 0..roomy.steps_per_epoch() {
        assert_eq!(
            roomy.samples(Rank(1), Step(step)).await.unwrap(),
            tight.samples(Rank(1), Step(step)).await.unwrap()
        );
    }
    assert_eq!(roomy.metrics().blocks_read, 16);
    assert!(tight.metrics().blocks_read > 16);
}

/// Seen by reading: with a cache of one size for any number of ranks, an executor that hosted many read their blocks again at each step.
#[tokio::test]
async fn many_ranks_on_one_executor_read_their_blocks_once_an_epoch() {
    let store: Arc<dyn ObjectStore> = FaultyStore::new();
    let info = numbered(&store, 16_000).await;
    let ranks: Vec<Rank> = (0..16).map(Rank).collect();
    let blocks = load_metadata(&store, &info).await.unwrap().block_rows().len() as u64;
    // Room for the open blocks of four ranks of sixteen.
    let bytes = 16_000 * 2 * size_of::<f32>() as u64;
    let read = async |cache_bytes_max| {
        let limits = LoaderLimits { cache_bytes: bytes * 3 / 8, cache_bytes_max, ..limits() };
        let loader = Loader::open(Arc::clone(&store), &spec(16, 100, r#""blocks""#), &info, limits).await.unwrap();
        for step in 0..loader.steps_per_epoch() {
            loader.prefetch(&ranks, (Step(step), Stride::ONE), 2);
            for &rank in &ranks {
                loader.samples(rank, Step(step)).await.unwrap();
            }
        }
        loader.metrics().blocks_read
    };
    assert_eq!(read(u64::MAX).await, blocks);
    assert!(read(0).await > blocks, "a cache of one size for any number of ranks is enough, so this shows nothing");
}

#[tokio::test]
async fn a_rank_reads_only_its_share() {
    let store: Arc<dyn ObjectStore> = FaultyStore::new();
    let info = numbered(&store, 16_000).await;
    let loader = Loader::open(Arc::clone(&store), &spec(8, 100, r#""blocks""#), &info, limits()).await.unwrap();
    for step in 0..loader.steps_per_epoch() {
        loader.samples(Rank(5), Step(step)).await.unwrap();
    }
    let metrics = loader.metrics();
    let file: u64 = loader.metadata().partitions.iter().map(|p| p.bytes).sum();
    assert!(metrics.blocks_read == 2 && metrics.bytes_read < file / 4, "{metrics:?} of {file}");
}

#[tokio::test]
async fn announced_steps_are_read_ahead() {
    let faulty = FaultyStore::new();
    let store: Arc<dyn ObjectStore> = faulty.clone();
    let info = numbered(&store, 500).await;
    let loader = Loader::open(Arc::clone(&store), &spec(2, 10, r#""blocks""#), &info, limits()).await.unwrap();
    loader.warm(&[Rank(0), Rank(1)], (Step(0), Stride::ONE), 64).await.unwrap();
    let reads = faulty.reads.load(Ordering::Relaxed);
    loader.samples(Rank(0), Step(3)).await.unwrap();
    loader.samples(Rank(1), Step(24)).await.unwrap();
    assert_eq!(faulty.reads.load(Ordering::Relaxed), reads, "everything was in memory");
}

/// An update of several steps reads them all at once: with a number of steps ahead, nothing would be ready for the next one.
#[tokio::test]
async fn what_is_read_and_made_ahead_is_counted_in_updates() {
    let store: Arc<dyn ObjectStore> = FaultyStore::new();
    let info = numbered(&store, 500).await;
    let loader = Loader::open(Arc::clone(&store), &spec(1, 1, r#""none""#), &info, limits()).await.unwrap();
    assert!(loader.steps_total() >= 500);
    let ahead = |stride| {
        let Wanted { from, ready, to, .. } = loader.shared.wanted(&[Rank(0)], (Step(3), Stride::of(stride)), 4);
        (from, ready - from, to - from)
    };
    assert_eq!([1, 8, 20].map(ahead), [(3, 2, 4), (3, 16, 32), (3, 40, 80)]);
}

#[tokio::test]
async fn announced_batches_are_made_ahead_and_are_what_they_would_be() {
    let store: Arc<dyn ObjectStore> = FaultyStore::new();
    let info = numbered(&store, 500).await;
    let spec = spec(2, 10, r#""full""#);
    let open = || Loader::open(Arc::clone(&store), &spec, &info, limits());
    let (ahead, plain) = (open().await.unwrap(), open().await.unwrap());
    for step in 0..ahead.steps_total() {
        ahead.prefetch(&[Rank(0), Rank(1)], (Step(step), Stride::ONE), 4);
        // The maker and the one who asks run in turns on one thread, so now it is ready, then half made, then not begun.
        for _ in 0..step % 7 {
            tokio::task::yield_now().await;
        }
        for rank in [Rank(1), Rank(0)] {
            let samples = ahead.samples(rank, Step(step)).await.unwrap();
            assert_eq!(samples, plain.samples(rank, Step(step)).await.unwrap());
        }
    }
    assert_eq!(ahead.metrics().samples_delivered, plain.metrics().samples_delivered);
}

#[tokio::test]
async fn a_fault_while_batches_are_made_ahead_is_met_by_the_step_that_needs_it_and_no_other() {
    let faulty = FaultyStore::new();
    let store: Arc<dyn ObjectStore> = faulty.clone();
    let info = numbered(&store, 100).await;
    let loader = Loader::open(Arc::clone(&store), &spec(1, 10, r#""none""#), &info, limits()).await.unwrap();
    faulty.fail(Fault::Read, "part-", u64::MAX);
    loader.prefetch(&[Rank(0)], (Step(0), Stride::ONE), 8);
    let error = loader.samples(Rank(0), Step(0)).await.unwrap_err();
    assert!(matches!(error, DataError::Store(crate::retry::StoreFault::Unreachable { .. })), "{error}");
    faulty.fail(Fault::Read, "part-", 0);
    for step in 0..10 {
        loader.prefetch(&[Rank(0)], (Step(step), Stride::ONE), 8);
        assert_eq!(numbers(&loader.samples(Rank(0), Step(step)).await.unwrap()).len(), 10);
    }
}

#[tokio::test]
async fn faults_are_retried_and_damage_is_named() {
    let faulty = FaultyStore::new();
    let store: Arc<dyn ObjectStore> = faulty.clone();
    let info = numbered(&store, 100).await;
    let spec = spec(1, 100, r#""none""#);
    let open = || Loader::open(Arc::clone(&store), &spec, &info, limits());
    for fault in [Fault::Read, Fault::Truncate] {
        let loader = open().await.unwrap();
        faulty.fail(fault, "part-", 3);
        assert_eq!(numbers(&loader.samples(Rank(0), Step(0)).await.unwrap()).len(), 100);
        assert_eq!(faulty.pending(), 0);
    }
    let part = |e: &DataError| e.key().is_some_and(|k| k.contains("part-"));
    let loader = open().await.unwrap();
    faulty.fail(Fault::Read, "part-", u64::MAX);
    let error = loader.samples(Rank(0), Step(0)).await.unwrap_err();
    assert!(matches!(error, DataError::Store(crate::retry::StoreFault::Unreachable { .. })) && part(&error), "{error}");
    faulty.fail(Fault::Read, "part-", 0);
    assert_eq!(
        numbers(&loader.samples(Rank(0), Step(0)).await.unwrap()).len(),
        100,
        "nothing was skipped or remembered"
    );

    let loader = open().await.unwrap();
    faulty.fail(Fault::Corrupt, "part-", 1);
    let error = loader.samples(Rank(0), Step(0)).await.unwrap_err();
    assert!(matches!(error, DataError::Corrupt { .. }) && part(&error), "{error}");

    faulty.fail(Fault::Corrupt, "metadata-", 1);
    assert!(matches!(open().await.err(), Some(DataError::Metadata(_))));
    let loader = open().await.unwrap();
    object_store::ObjectStoreExt::delete(
        &store,
        &object_store::path::Path::from(loader.metadata().partitions[0].location.as_str()),
    )
    .await
    .unwrap();
    let error = loader.samples(Rank(0), Step(0)).await.unwrap_err();
    assert!(matches!(error, DataError::Store(crate::retry::StoreFault::Missing { .. })) && part(&error), "{error}");
}

#[tokio::test]
async fn a_registered_file_that_changes_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let local = crate::open_store(&format!("file://{}", folder.path().display())).unwrap();
    let imported = numbered(&local, 50).await;
    let metadata = load_metadata(&local, &imported).await.unwrap();
    let path = folder.path().join(metadata.partitions[0].location.as_str());
    let registration = Registration {
        name: DatasetName::parse("r").unwrap(),
        uris: vec![path.display().to_string()],
        sample: None,
        columns: ColumnNames::default(),
        element: None,
        scale: None,
    };
    let roots = DatasetRoots::new(vec![DatasetRoot::folder(folder.path()).unwrap()]);
    let info = register(&local, &registration, &roots).await.unwrap();
    let spec = spec(1, 50, r#""none""#);
    let read = || async {
        Loader::open(Arc::clone(&local), &spec, &info, limits()).await.unwrap().samples(Rank(0), Step(0)).await
    };
    assert_eq!(numbers(&read().await.unwrap()).len(), 50);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.push(0);
    std::fs::write(&path, bytes).unwrap();
    let error = read().await.unwrap_err();
    assert!(matches!(error, DataError::Store(crate::retry::StoreFault::Changed { .. })), "{error}");
}

#[tokio::test]
async fn steps_beyond_the_job_and_empty_shares_are_empty() {
    let store: Arc<dyn ObjectStore> = FaultyStore::new();
    let info = numbered(&store, 3).await;
    let loader = Loader::open(Arc::clone(&store), &spec(5, 4, r#""blocks""#), &info, limits()).await.unwrap();
    assert_eq!(loader.samples(Rank(4), Step(0)).await.unwrap().len(), 0);
    assert_eq!(loader.samples(Rank(0), Step(0)).await.unwrap().len(), 1);
    let evaluation =
        Loader::open_for_evaluation(Arc::clone(&store), &spec(2, 1, r#""full""#), &info, limits()).await.unwrap();
    assert_eq!((evaluation.steps_total(), numbers(&evaluation.samples(Rank(0), Step(1)).await.unwrap())), (2, vec![1]));
}
