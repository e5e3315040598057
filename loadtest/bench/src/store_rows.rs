//! Reading partitions against plain code that reads the same bytes from a bare file and converts them, writing checkpoints against writing a bare file, and reading them against what the
//! store gives to who checks nothing.
//! Everything is read warm: the page cache serves both sides.

use crate::Effort;
use crate::goal;
use crate::growth_rows;
use crate::row::{Row, Times};
use crate::subject::spec;
use events_schema::dataset::Samples;
use events_schema::job::JobSpec;
use events_schema::stride::Stride;
use events_schema::{DatasetName, Digest, Generation, JobId, Rank, Step};
use loadtest_harness::HarnessError;
use object_store::{ObjectStore, ObjectStoreExt};
use serde_json::json;
use std::io::{Cursor, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use storage::checkpoint::{
    Manifest, ShardElements, cut_shards, read_replica, replica_digest, write_manifest, write_shard,
};
use storage::dataset::{IdxOptions, import_idx};
use storage::keys::CheckpointName;
use storage::{Loader, LoaderLimits};

/// Side of a bench image; one is a KiB.
const SIDE: u32 = 32;
/// Samples of a step: one read of the loader.
const STEP_ROWS: u64 = 256;

/// Names of the row of partitions, and of those of checkpoints of some size.
pub const PARTITION_ROWS: [&str; 1] = ["partition read"];
/// Of a small replica, and of those that `growth_rows.rs` has first.
pub const CHECKPOINT_ROWS: [[&str; 2]; 3] = [
    ["checkpoint write", "checkpoint read"],
    ["checkpoint write, replica of 106 MB", "checkpoint read, replica of 106 MB"],
    ["checkpoint write, replica of 655 MB", "checkpoint read, replica of 655 MB"],
];

type Store = Arc<dyn ObjectStore>;

/// All of them that are wanted.
pub async fn rows(folder: &Path, effort: Effort, wanted: impl Fn(&str) -> bool) -> Result<Vec<Row>, HarnessError> {
    let address = format!("file://{}", folder.join("store").display());
    let store =
        storage::open_store(&address).map_err(|e| HarnessError::local("the bench's store cannot be opened", e))?;
    let mut rows = Vec::new();
    if wanted(PARTITION_ROWS[0]) {
        rows.push(partition_read(&store, folder, effort).await?);
    }
    let large = growth_rows::models(None).map(|model| model.elements().1).take_while(|_| effort.large);
    let sizes = std::iter::once(effort.pick(4_000_000, 16_000_000)).chain(large);
    for (names, elements) in CHECKPOINT_ROWS.into_iter().zip(sizes).filter(|(names, _)| names.iter().any(|n| wanted(n)))
    {
        let (written, last) = checkpoint_write(&store, folder, names[0], elements, effort).await?;
        rows.extend([written, checkpoint_read(&store, names[1], last, effort).await?]);
    }
    Ok(rows)
}

async fn partition_read(store: &Store, folder: &Path, effort: Effort) -> Result<Row, HarnessError> {
    let images = effort.pick(16_384u32, 65_536);
    let bytes = u64::from(images) * u64::from(SIDE * SIDE);
    let name = DatasetName::parse("bench").map_err(|e| HarnessError::plain(e.to_string()))?;
    let pixels: Vec<u8> = (0..bytes).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let raw = folder.join("raw-partition");
    std::fs::write(&raw, &pixels).map_err(|e| HarnessError::local("the bare file cannot be written", e))?;
    let labels: Vec<u8> = (0..images).map(|i| (i % 10) as u8).collect();
    let files = (idx(&[images, SIDE, SIDE], &pixels), idx(&[images], &labels));
    let imported = import_idx(store, &name, Cursor::new(files.0), Cursor::new(files.1), &IdxOptions::default())
        .await
        .map_err(|e| HarnessError::local("the bench's dataset cannot be written", e))?;
    let spec = spec(
        &json!({"name": "bench", "model": {"kind": "mlp"}, "dataset": "bench", "workers": {"max": 1}, "batch_size": STEP_ROWS, "epochs": 1, "shuffle": "none"}),
    )?;
    let mut raw_times = Vec::new();
    let mut times = Vec::new();
    for _ in 0..effort.pick(5, 9) {
        let begun = Instant::now();
        read_plainly(&raw).map_err(|e| HarnessError::local("the bare file cannot be read", e))?;
        raw_times.push(begun.elapsed());
        let begun = Instant::now();
        read_all(store, &spec, &imported.dataset).await?;
        times.push(begun.elapsed());
    }
    let rate = |times: &[Duration]| bytes as f64 / 1e3 / Times::of(times.iter().copied()).median();
    Ok(Row {
        name: PARTITION_ROWS[0],
        value: rate(&times),
        unit: "MB/s",
        baseline_name: "MB/s plain code: a bare file, read and converted",
        baseline: rate(&raw_times),
        goal: Some(goal::READ_RATE.of_ratios(&of_turns(&raw_times, &times))),
        note: format!("{} MB of bytes in Parquet, decoded to f32 samples", bytes / 1_000_000),
    })
}

/// Samples of 32-bit floats of a bare file, a step's after the other.
fn read_plainly(file: &Path) -> std::io::Result<()> {
    let bytes = std::fs::read(file)?;
    for step in bytes.chunks((STEP_ROWS * u64::from(SIDE * SIDE)) as usize) {
        let samples: Vec<f32> = step.iter().map(|byte| f32::from(*byte) * (1.0 / 255.0)).collect();
        drop(std::hint::black_box(samples));
    }
    Ok(())
}

async fn read_all(
    store: &Store,
    spec: &JobSpec,
    info: &events_schema::dataset::DatasetInfo,
) -> Result<(), HarnessError> {
    let failed = |e: storage::DataError| HarnessError::local("the bench's dataset cannot be read", e);
    let loader = Loader::open(store.clone(), spec, info, LoaderLimits::default()).await.map_err(failed)?;
    let mut rows = 0;
    for step in 0..loader.steps_total() {
        loader.prefetch(&[Rank(0)], (Step(step), Stride::ONE), 8);
        let samples = loader.samples(Rank(0), Step(step)).await.map_err(failed)?;
        rows += Samples::len(&samples) as u64;
    }
    if rows == info.rows { Ok(()) } else { Err(HarnessError::plain(format!("{rows} rows were read of {}", info.rows))) }
}

/// How long each took of another in the same turn.
fn of_turns(times: &[Duration], others: &[Duration]) -> Times {
    Times::of_ms(times.iter().zip(others).map(|(time, other)| time.as_secs_f64() / other.as_secs_f64()).collect())
}

/// A file in MNIST's format: magic, sizes, bytes.
fn idx(sizes: &[u32], bytes: &[u8]) -> Vec<u8> {
    let mut file = vec![0, 0, 0x08, sizes.len() as u8];
    sizes.iter().for_each(|n| file.extend(n.to_be_bytes()));
    file.extend(bytes);
    file
}

/// A checkpoint in the store.
type Written = (CheckpointName, Manifest);

async fn checkpoint_write(
    store: &Store,
    folder: &Path,
    name: &'static str,
    elements: u64,
    effort: Effort,
) -> Result<(Row, Written), HarnessError> {
    let replica: Arc<Vec<f32>> = Arc::new((0..elements).map(|i| i as f32 * 1e-3).collect());
    let bytes: Vec<u8> = replica.iter().flat_map(|x| x.to_le_bytes()).collect();
    let spec =
        spec(&json!({"name": "bench", "model": {"kind": "mlp"}, "dataset": "bench", "batch_size": 1, "epochs": 1}))?;
    let job = JobId::parse("job-bench").map_err(|e| HarnessError::plain(e.to_string()))?;
    let (mut times, mut raw_times, mut last) = (Vec::new(), Vec::new(), None);
    for round in 0..effort.pick(3u64, 7) {
        let (begun, raw) = (Instant::now(), folder.join("raw-checkpoint"));
        raw_write(&raw, &bytes).map_err(|e| HarnessError::local("the bare file cannot be written", e))?;
        raw_times.push(begun.elapsed());
        std::fs::remove_file(&raw).map_err(|e| HarnessError::local("the bare file cannot be removed", e))?;
        let begun = Instant::now();
        let written = write_one(store, &job, &spec, Step(round), &replica).await;
        last = Some(written.map_err(|e| HarnessError::local("the bench's checkpoint cannot be written", e))?);
        times.push(begun.elapsed());
    }
    let (time, raw) = (Times::of(times), Times::of(raw_times));
    let row = Row {
        name,
        value: time.median(),
        unit: "ms",
        baseline_name: "ms a bare file with fsync",
        baseline: raw.median(),
        goal: None,
        note: format!("{} MB, digests and manifest included", bytes.len() / 1_000_000),
    };
    Ok((row, last.ok_or_else(|| HarnessError::plain("no checkpoint was written"))?))
}

async fn checkpoint_read(
    store: &Store,
    row: &'static str,
    (name, manifest): Written,
    effort: Effort,
) -> Result<Row, HarnessError> {
    let (mut times, mut raw_times) = (Vec::new(), Vec::new());
    for _ in 0..effort.pick(5, 9) {
        let begun = Instant::now();
        for shard in &manifest.shards {
            let got = async { store.get(&shard.key.as_str().into()).await?.bytes().await }.await;
            got.map_err(|e| HarnessError::local("the bench's shards cannot be read", e))?;
        }
        raw_times.push(begun.elapsed());
        let begun = Instant::now();
        let read = read_replica(store, &name, &manifest).await;
        read.map_err(|e| HarnessError::local("the bench's checkpoint cannot be read", e))?;
        times.push(begun.elapsed());
    }
    let ratios = of_turns(&times, &raw_times);
    Ok(Row {
        name: row,
        value: Times::of(times).median(),
        unit: "ms",
        baseline_name: "ms the same objects, unchecked",
        baseline: Times::of(raw_times).median(),
        goal: Some(goal::READ_TIME.of_ratios(&ratios)),
        note: format!("{} MB, checked shard by shard and as a whole", manifest.shard_bytes() / 1_000_000),
    })
}

async fn write_one(
    store: &Store,
    job: &JobId,
    spec: &JobSpec,
    step: Step,
    replica: &Arc<Vec<f32>>,
) -> Result<Written, storage::checkpoint::CheckpointWriteError> {
    let generation = Generation(1);
    let name = CheckpointName { job: job.clone(), generation, step, writer: None };
    let mut shards = Vec::new();
    for range in cut_shards(replica.len() as u64, 1) {
        let elements = ShardElements::of(range, Arc::clone(replica));
        shards.push(write_shard(store, &name, range, &elements).await?);
    }
    let manifest = Manifest {
        format_version: storage::checkpoint::FORMAT_VERSION,
        job: job.clone(),
        spec_digest: spec.digest(),
        numeric_class: Digest::of(b"bench"),
        generation,
        step,
        replica_len: replica.len() as u64,
        replica_digest: replica_digest(replica),
        shards,
        written_by: None,
    };
    write_manifest(store, &name, &manifest).await?;
    Ok((name, manifest))
}

fn raw_write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = std::fs::File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}
