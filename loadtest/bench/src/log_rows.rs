//! Appends to the log: the embedded one against the bare `fdatasync` it cannot beat, Kafka against a bare acknowledged produce.

use crate::Effort;
use crate::row::{Row, Times};
use events_log::{EventLog, LogUrl, Stream};
use events_schema::Cell;
use futures::StreamExt;
use loadtest_harness::HarnessError;
use rdkafka::ClientConfig;
use rdkafka::producer::{FutureProducer, FutureRecord, Producer};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A batch of a few facts.
const RECORD_LEN: usize = 300;
/// As many as a busy cell has in flight.
const MANY: usize = 256;
/// A produce that is not acknowledged by then has failed.
const PRODUCE_TIMEOUT: Duration = Duration::from_secs(30);

/// The embedded log in `folder`.
pub async fn embedded(folder: &Path, effort: Effort) -> Result<Vec<Row>, HarnessError> {
    let (single, many) = (effort.pick(100, 500), effort.pick(5_000, 25_000));
    let sync = fdatasync(&folder.join("raw"), single)?;
    let log = open(&LogUrl::file(folder.join("bench.redb"))).await?;
    let one = one_by_one(&log, single).await?;
    let each = all_at_once(&log, many).await?;
    let baseline_name = "ms a bare fdatasync";
    Ok(vec![
        Row {
            name: "log append, 1 in flight",
            value: one.median(),
            unit: "ms",
            baseline_name,
            baseline: sync.median(),
            goal: None,
            note: one.spread(),
        },
        Row {
            name: "log append, 256 in flight",
            value: each,
            unit: "ms",
            baseline_name,
            baseline: sync.median(),
            goal: None,
            note: format!("mean of {many}: {:.0} a second", 1e3 / each),
        },
    ])
}

/// A log on Kafka, with topics of its own.
pub async fn kafka(url: &str, effort: Effort) -> Result<Vec<Row>, HarnessError> {
    let url = with_own_topics(url)?;
    let parsed = LogUrl::parse(&url).map_err(|e| HarnessError::Options(e.to_string()))?;
    let LogUrl::Kafka(brokers) = &parsed else { return Ok(Vec::new()) };
    let (single, many) = (effort.pick(200, 1_000), effort.pick(5_000, 25_000));
    let log = open(&parsed).await?;
    // The log has made its topics; the bare producer writes to one of them that nobody reads.
    let topic = brokers.topic(Stream::Reports);
    let producer: FutureProducer = ClientConfig::new()
        .set("bootstrap.servers", brokers.bootstrap())
        .set("acks", "all")
        .set("enable.idempotence", "true")
        .set("linger.ms", "0")
        .create()
        .map_err(|e| HarnessError::local("the bare Kafka producer cannot be set up", e))?;
    let bare_one = bare_one_by_one(&producer, &topic, single).await?;
    let bare_each = bare_all_at_once(&producer, &topic, many).await?;
    producer.flush(PRODUCE_TIMEOUT).map_err(|e| HarnessError::local("the bare Kafka producer cannot be flushed", e))?;
    let one = one_by_one(&log, single).await?;
    let each = all_at_once(&log, many).await?;
    let baseline_name = "ms a bare acknowledged produce";
    Ok(vec![
        Row {
            name: "kafka append, 1 in flight",
            value: one.median(),
            unit: "ms",
            baseline_name,
            baseline: bare_one.median(),
            goal: None,
            note: one.spread(),
        },
        Row {
            name: "kafka append, 256 in flight",
            value: each,
            unit: "ms",
            baseline_name,
            baseline: bare_each,
            goal: None,
            note: format!("mean of {many}: {:.0} a second", 1e3 / each),
        },
    ])
}

fn with_own_topics(url: &str) -> Result<String, HarnessError> {
    if url.contains("prefix=") {
        return Ok(url.to_owned());
    }
    let random = getrandom::u64().map_err(|e| HarnessError::local("the system gives no random numbers", e))?;
    Ok(format!("{url}{}prefix=ebb-bench-{random:016x}", if url.contains('?') { '&' } else { '?' }))
}

async fn open(url: &LogUrl) -> Result<Arc<dyn EventLog>, HarnessError> {
    events_log::open(url).await.map_err(|e| HarnessError::local("the log cannot be opened", e))
}

async fn append(log: &dyn EventLog) -> Result<(), HarnessError> {
    log.append(Stream::Events, Cell(0), vec![b'x'; RECORD_LEN])
        .await
        .map(|_| ())
        .map_err(|e| HarnessError::local("an append to the log failed", e))
}

async fn one_by_one(log: &Arc<dyn EventLog>, count: usize) -> Result<Times, HarnessError> {
    append(log.as_ref()).await?;
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let begun = Instant::now();
        append(log.as_ref()).await?;
        times.push(begun.elapsed());
    }
    Ok(Times::of(times))
}

/// Mean time per record, in milliseconds.
async fn all_at_once(log: &Arc<dyn EventLog>, count: usize) -> Result<f64, HarnessError> {
    let begun = Instant::now();
    let mut appends = futures::stream::iter(0..count).map(|_| append(log.as_ref())).buffer_unordered(MANY);
    while let Some(appended) = appends.next().await {
        appended?;
    }
    Ok(begun.elapsed().as_secs_f64() * 1e3 / count as f64)
}

/// Appends as many bytes to a bare file and syncs its data each time.
fn fdatasync(path: &Path, count: usize) -> Result<Times, HarnessError> {
    let cannot = |e| HarnessError::local("the bare file cannot be written", e);
    let mut file = File::create(path).map_err(cannot)?;
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let begun = Instant::now();
        file.write_all(&[b'x'; RECORD_LEN]).and_then(|()| file.sync_data()).map_err(cannot)?;
        times.push(begun.elapsed());
    }
    Ok(Times::of(times))
}

async fn produce(producer: &FutureProducer, topic: &str) -> Result<(), HarnessError> {
    let payload = [b'x'; RECORD_LEN];
    let record = FutureRecord::<(), [u8]>::to(topic).payload(payload.as_slice()).partition(0);
    producer
        .send(record, PRODUCE_TIMEOUT)
        .await
        .map(|_| ())
        .map_err(|(e, _)| HarnessError::local("a bare produce failed", e))
}

async fn bare_one_by_one(producer: &FutureProducer, topic: &str, count: usize) -> Result<Times, HarnessError> {
    // The first one waits for metadata.
    produce(producer, topic).await?;
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let begun = Instant::now();
        produce(producer, topic).await?;
        times.push(begun.elapsed());
    }
    Ok(Times::of(times))
}

async fn bare_all_at_once(producer: &FutureProducer, topic: &str, count: usize) -> Result<f64, HarnessError> {
    let begun = Instant::now();
    let mut produces = futures::stream::iter(0..count).map(|_| produce(producer, topic)).buffer_unordered(MANY);
    while let Some(produced) = produces.next().await {
        produced?;
    }
    Ok(begun.elapsed().as_secs_f64() * 1e3 / count as f64)
}
