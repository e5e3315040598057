//! The log on Kafka: a topic per stream, a partition per cell, one record per append.
//!
//! Appends go through one idempotent producer with `acks=all` and no linger; the delivery report carries the offset. A retried
//! record that the broker already had can be acknowledged without one, so every record has a number in a header by which it is
//! found again. Reads at the end are served by one follower per partition (`follow.rs`), older ones by consumers of their own.
//! No consumer group decides anything: positions are facts in the log itself. Offsets grow, but may have gaps.
//!
//! An acknowledgement means: in the memory of `min.insync.replicas` brokers. It survives any process, and any broker but the
//! last in-sync one; not a power cut of all of them at once. Topics are created and checked in `topics.rs`, how long a client
//! waits for what stands in `settings.rs`.

mod fleet_topics;
mod follow;
mod mark;
mod public;
mod settings;
mod topics;

use crate::tail::Look;
use crate::url::KafkaUrl;
use crate::{
    AppendError, BoxFuture, Cause, EventLog, FleetTopics, Missing, OpenError, PublicTopic, RECORD_LEN_MAX, ReadError,
    Record, Stream,
};
use events_schema::{Cell, Offset};
use follow::{Follower, Place, Readers};
use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

/// `max.message.bytes` of our topics; a little more than [`RECORD_LEN_MAX`], for the record's frame and header.
const MESSAGE_BYTES_MAX: u32 = 8 << 20;
/// Time an append waits for a place in the producer's queue.
const QUEUE_WAIT: Duration = Duration::from_secs(10);
/// Time for one question to a broker: watermarks, metadata, admin calls.
const ANSWER_WAIT: Duration = Duration::from_secs(15);
/// Time for a follower to have what a broker says is there.
const FOLLOW_WAIT: Duration = Duration::from_secs(1);
/// Name of the header that numbers an append.
const APPEND_HEADER: &str = "ebb-append";

/// The log on a cluster.
pub struct KafkaLog {
    shared: Arc<Shared>,
}

struct Shared {
    url: KafkaUrl,
    config: ClientConfig,
    /// Replaced after a fatal error; an idempotent producer does not come back from one.
    producer: RwLock<Producing>,
    /// Random, so that the numbers of two processes differ.
    process: u64,
    appends: AtomicU64,
    followers: Mutex<BTreeMap<(Stream, Cell), Arc<Follower>>>,
    readers: Readers,
}

type Producing = FutureProducer<Context>;

/// Carries the client's own log and errors into `tracing`.
#[derive(Debug, Clone, Copy)]
struct Context;

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        match level {
            RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical | RDKafkaLogLevel::Error => {
                tracing::warn!(facility, message, "kafka client")
            }
            _ => tracing::debug!(facility, message, "kafka client"),
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::warn!(%error, reason, "kafka client");
    }
}

impl ConsumerContext for Context {}

impl KafkaLog {
    /// Connects, creates missing topics and checks the settings of those that are there. Takes user and password, if the URL
    /// asks for them, from `EBB_KAFKA_USERNAME` and `EBB_KAFKA_PASSWORD`.
    pub async fn connect(url: &KafkaUrl) -> Result<Self, OpenError> {
        Self::connect_or(url, Missing::Made).await
    }

    /// The same, with what becomes of missing topics.
    pub async fn connect_or(url: &KafkaUrl, missing: Missing) -> Result<Self, OpenError> {
        if url.plaintext_refused() {
            return Err(OpenError::Plaintext { brokers: url.bootstrap() });
        }
        let config = settings::client(url)?;
        topics::set_up(url, &config, missing).await?;
        let client_error =
            |source: KafkaError| OpenError::Client { brokers: url.bootstrap(), source: Arc::new(source) };
        let producer = new_producer(&config).map_err(client_error)?;
        let process = getrandom::u64().map_err(|source| OpenError::Thread { source: Arc::new(source) })?;
        let shared = Arc::new(Shared {
            url: url.clone(),
            readers: Readers::new(config.clone()),
            config,
            producer: RwLock::new(producer),
            process,
            appends: AtomicU64::new(0),
            followers: Mutex::default(),
        });
        // A client that knows a topic sends at once; otherwise its first append waits half a second.
        let warming = Arc::clone(&shared);
        let warmed = tokio::task::spawn_blocking(move || {
            let producer = warming.producer();
            Stream::ALL.iter().try_for_each(|stream| {
                producer.client().fetch_metadata(Some(&warming.url.topic(*stream)), ANSWER_WAIT).map(drop)
            })
        });
        warmed.await.map_err(|source| OpenError::Thread { source: Arc::new(source) })?.map_err(client_error)?;
        Ok(Self { shared })
    }

    /// For tests: appends a record as if it had been acknowledged without its offset.
    #[cfg(feature = "testing")]
    pub async fn append_acknowledged_without_offset(
        &self,
        stream: Stream,
        cell: Cell,
        record: Vec<u8>,
    ) -> Result<Offset, AppendError> {
        let from = self
            .shared
            .place(stream, cell, Offset(0))
            .map_err(|_| AppendError::NoSuchCell { cell, cells: self.shared.url.cells })?;
        let number = self.shared.number();
        self.shared.produce(&from, &number, &record).await?;
        self.shared.find(from, number).await
    }
}

fn new_producer(client: &ClientConfig) -> Result<Producing, KafkaError> {
    settings::producer(client).create_with_context(Context)
}

impl Shared {
    fn producer(&self) -> Producing {
        self.producer.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts a new producer in the place of one that met a fatal error.
    fn replace_producer(&self) {
        let mut producer = self.producer.write().unwrap_or_else(PoisonError::into_inner);
        let Some((code, reason)) = producer.client().fatal_error() else { return };
        tracing::error!(%code, reason, "the Kafka producer met a fatal error and is replaced");
        match new_producer(&self.config) {
            Ok(new) => *producer = new,
            Err(error) => tracing::error!(%error, "the Kafka producer cannot be replaced"),
        }
    }

    fn number(&self) -> [u8; 16] {
        let append = self.appends.fetch_add(1, Ordering::Relaxed);
        ((u128::from(self.process) << 64) | u128::from(append)).to_be_bytes()
    }

    fn place(&self, stream: Stream, cell: Cell, offset: Offset) -> Result<Place, ReadError> {
        let partition = i32::try_from(cell.0).ok().filter(|_| cell.0 < self.url.cells);
        let partition = partition.ok_or(ReadError::NoSuchCell { cell, cells: self.url.cells })?;
        Ok(Place { topic: self.url.topic(stream), partition, offset })
    }

    /// Sends one record; the offset is missing if the broker had it already.
    async fn produce(&self, place: &Place, number: &[u8; 16], record: &[u8]) -> Result<Option<Offset>, AppendError> {
        let headers = OwnedHeaders::new_with_capacity(1).insert(Header { key: APPEND_HEADER, value: Some(number) });
        let message =
            FutureRecord::<(), [u8]>::to(&place.topic).partition(place.partition).payload(record).headers(headers);
        match self.producer().send(message, QUEUE_WAIT).await {
            Ok(delivery) => Ok(u64::try_from(delivery.offset).ok().map(Offset)),
            Err((error, _)) => {
                self.replace_producer();
                Err(append_error(error, record.len()))
            }
        }
    }

    /// Finds a record that was acknowledged without its offset, from a place that is certainly not behind it.
    async fn find(self: &Arc<Self>, from: Place, number: [u8; 16]) -> Result<Offset, AppendError> {
        let unknown = |cause: Cause| AppendError::Unknown(cause);
        let shared = Arc::clone(self);
        let found = tokio::task::spawn_blocking(move || {
            let (low, high) = shared.watermarks(&from)?;
            shared.readers.find(&Place { offset: from.offset.max(low), ..from }, high, APPEND_HEADER, &number)
        });
        match found.await {
            Ok(Ok(Some(offset))) => Ok(offset),
            Ok(Ok(None)) => Err(unknown(Arc::new(NotFound))),
            Ok(Err(error)) => Err(unknown(Arc::new(error))),
            Err(panic) => Err(unknown(Arc::new(panic))),
        }
    }

    /// First offset left, first offset not yet written. Blocks.
    fn watermarks(&self, place: &Place) -> Result<(Offset, Offset), KafkaError> {
        let (low, high) = self.producer().client().fetch_watermarks(&place.topic, place.partition, ANSWER_WAIT)?;
        Ok((Offset(u64::try_from(low).unwrap_or(0)), Offset(u64::try_from(high).unwrap_or(0))))
    }

    async fn watermarks_async(self: &Arc<Self>, place: Place) -> Result<(Offset, Offset), ReadError> {
        let shared = Arc::clone(self);
        let asked = tokio::task::spawn_blocking(move || shared.watermarks(&place)).await;
        asked
            .map_err(|panic| ReadError::Unavailable(Arc::new(panic)))?
            .map_err(|error| ReadError::Unavailable(Arc::new(error)))
    }

    fn followers(&self) -> MutexGuard<'_, BTreeMap<(Stream, Cell), Arc<Follower>>> {
        self.followers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The follower of a partition; a new one begins at the end.
    async fn follower(self: &Arc<Self>, stream: Stream, cell: Cell) -> Result<Arc<Follower>, ReadError> {
        let known = self.followers().get(&(stream, cell)).cloned();
        if let Some(follower) = known.filter(|follower| follower.failure().is_none()) {
            return Ok(follower);
        }
        let place = self.place(stream, cell, Offset(0))?;
        let (_, end) = self.watermarks_async(place.clone()).await?;
        let mut followers = self.followers();
        // Two callers may have asked at once; the second finds the first one's.
        if let Some(follower) = followers.get(&(stream, cell)).filter(|follower| follower.failure().is_none()) {
            return Ok(Arc::clone(follower));
        }
        let follower = Follower::start(&self.config, Place { offset: end, ..place }).map_err(ReadError::Unavailable)?;
        let follower = Arc::new(follower);
        followers.insert((stream, cell), Arc::clone(&follower));
        Ok(follower)
    }

    async fn append(self: &Arc<Self>, stream: Stream, cell: Cell, record: Vec<u8>) -> Result<Offset, AppendError> {
        if record.len() > RECORD_LEN_MAX {
            return Err(AppendError::TooLarge { bytes: record.len(), bytes_max: RECORD_LEN_MAX });
        }
        let acknowledged = self.followers().get(&(stream, cell)).map_or(Offset(0), |follower| follower.acknowledged());
        let place = self
            .place(stream, cell, acknowledged)
            .map_err(|_| AppendError::NoSuchCell { cell, cells: self.url.cells })?;
        let number = self.number();
        let offset = match self.produce(&place, &number, &record).await? {
            Some(offset) => offset,
            None => self.find(place, number).await?,
        };
        if let Some(follower) = self.followers().get(&(stream, cell)) {
            follower.acknowledge(offset.next());
        }
        Ok(offset)
    }

    async fn read(
        self: &Arc<Self>,
        stream: Stream,
        cell: Cell,
        from: Offset,
        bytes_max: usize,
    ) -> Result<Vec<Record>, ReadError> {
        let follower = self.follower(stream, cell).await?;
        match follower.tail.look(from, bytes_max) {
            Look::Older => self.read_older(stream, cell, from, bytes_max).await,
            Look::Here(records) if !records.is_empty() => Ok(records),
            Look::Here(_) => {
                // Perhaps the follower is only behind: what was acknowledged has to be there.
                let place = self.place(stream, cell, from)?;
                if follower.acknowledged() <= from && self.watermarks_async(place).await?.1 <= from {
                    return Ok(Vec::new());
                }
                let own = follower.acknowledged() > from;
                let wait = tokio::time::timeout(if own { ANSWER_WAIT } else { FOLLOW_WAIT }, follower.wait(from)).await;
                match wait {
                    Ok(found) => found?,
                    Err(late) if own => return Err(ReadError::Unavailable(Arc::new(late))),
                    // Nobody has acknowledged a record there: the offsets may belong to none.
                    Err(_) => return self.read_older(stream, cell, from, bytes_max).await,
                }
                match follower.tail.look(from, bytes_max) {
                    Look::Here(records) => Ok(records),
                    Look::Older => self.read_older(stream, cell, from, bytes_max).await,
                }
            }
        }
    }

    /// Records that the follower never had or has no longer.
    async fn read_older(
        self: &Arc<Self>,
        stream: Stream,
        cell: Cell,
        from: Offset,
        bytes_max: usize,
    ) -> Result<Vec<Record>, ReadError> {
        let place = self.place(stream, cell, from)?;
        let shared = Arc::clone(self);
        let permit = self.readers.permit().await;
        let read = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let (first, end) = shared.watermarks(&place).map_err(|error| ReadError::Unavailable(Arc::new(error)))?;
            if from < first {
                return Err(ReadError::Trimmed { from, first });
            }
            shared.readers.read(&place, end, bytes_max).map_err(|error| ReadError::Unavailable(Arc::new(error)))
        });
        read.await.map_err(|panic| ReadError::Unavailable(Arc::new(panic)))?
    }
}

/// What a failed delivery means. Only what the client says before sending is certain not to be written.
fn append_error(error: KafkaError, bytes: usize) -> AppendError {
    match error {
        KafkaError::MessageProduction(RDKafkaErrorCode::MessageSizeTooLarge) => {
            AppendError::TooLarge { bytes, bytes_max: RECORD_LEN_MAX }
        }
        KafkaError::MessageProduction(
            RDKafkaErrorCode::QueueFull
            | RDKafkaErrorCode::UnknownTopic
            | RDKafkaErrorCode::UnknownPartition
            | RDKafkaErrorCode::UnknownTopicOrPartition
            | RDKafkaErrorCode::TopicAuthorizationFailed
            | RDKafkaErrorCode::ClusterAuthorizationFailed,
        ) => AppendError::Unavailable(Arc::new(error)),
        error => AppendError::Unknown(Arc::new(error)),
    }
}

/// A record was acknowledged without an offset and is not among the newest.
#[derive(Debug, thiserror::Error)]
#[error("a record was acknowledged without an offset and is not found again")]
struct NotFound;

impl std::fmt::Debug for KafkaLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KafkaLog").field("url", &self.shared.url).finish_non_exhaustive()
    }
}

impl EventLog for KafkaLog {
    fn append(&self, stream: Stream, cell: Cell, record: Vec<u8>) -> BoxFuture<'_, Result<Offset, AppendError>> {
        Box::pin(self.shared.append(stream, cell, record))
    }

    fn read(
        &self,
        stream: Stream,
        cell: Cell,
        from: Offset,
        bytes_max: usize,
    ) -> BoxFuture<'_, Result<Vec<Record>, ReadError>> {
        Box::pin(self.shared.read(stream, cell, from, bytes_max))
    }

    fn end(&self, stream: Stream, cell: Cell) -> BoxFuture<'_, Result<Offset, ReadError>> {
        Box::pin(async move { Ok(self.shared.watermarks_async(self.shared.place(stream, cell, Offset(0))?).await?.1) })
    }

    fn wait(&self, stream: Stream, cell: Cell, from: Offset) -> BoxFuture<'_, Result<(), ReadError>> {
        Box::pin(async move { self.shared.follower(stream, cell).await?.wait(from).await })
    }

    fn public(&self) -> Option<Arc<dyn PublicTopic>> {
        Some(Arc::new(public::KafkaPublic(Arc::clone(&self.shared))))
    }

    fn fleet_topics(&self, prefix: &str, cell: Cell) -> Option<Arc<dyn FleetTopics>> {
        let (config, cells) = (self.shared.config.clone(), self.shared.url.cells);
        Some(Arc::new(fleet_topics::KafkaFleetTopics { config, prefix: prefix.to_owned(), cell, cells }))
    }

    fn trim(&self, stream: Stream, cell: Cell, below: Offset) -> BoxFuture<'_, Result<(), AppendError>> {
        Box::pin(async move {
            let unavailable = |error: ReadError| AppendError::Unavailable(Arc::new(error));
            let place = self
                .shared
                .place(stream, cell, below)
                .map_err(|_| AppendError::NoSuchCell { cell, cells: self.shared.url.cells })?;
            let (first, end) = self.shared.watermarks_async(place.clone()).await.map_err(unavailable)?;
            let below = below.min(end);
            if below > first {
                topics::delete_records(&self.shared.config, &Place { offset: below, ..place })
                    .await
                    .map_err(AppendError::Unavailable)?;
            }
            if let Some(follower) = self.shared.followers().get(&(stream, cell)) {
                follower.tail.trim(below);
            }
            Ok(())
        })
    }
}
