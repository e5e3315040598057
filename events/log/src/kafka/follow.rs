//! Reading partitions: one follower each for the newest records, and a few consumers for older ones.
//!
//! All of them assign their partition themselves, and nothing is committed. A follower's thread ends with its follower; a failure that does not pass by itself ends it too, is handed to whoever waits,
//! and the next caller starts a new one.

use super::settings::{self, Reading};
use super::{ANSWER_WAIT, Context};
use crate::tail::Tail;
use crate::{Cause, ReadError, Record};
use bytes::Bytes;
use events_schema::Offset;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::topic_partition_list::TopicPartitionList;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// Newest bytes of each partition that a follower keeps; one longest record and then some.
const TAIL_BYTES_MAX: usize = 16 << 20;
/// A follower looks this often whether it is still wanted.
const POLL: Duration = Duration::from_millis(50);
/// Records a follower hands over at once.
const HANDOVER_MAX: usize = 512;
/// Consumers for older records; each may hold a few MiB read ahead.
const READERS_MAX: usize = 4;
/// Time for the first record of an older read to come.
const READ_WAIT: Duration = Duration::from_secs(30);
/// Time for more to come once a broker has said that nothing more is there: one that has just begun to lead may not know it all yet.
const MORE_WAIT: Duration = Duration::from_millis(300);

/// A place in a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub topic: String,
    pub partition: i32,
    pub offset: Offset,
}

impl Place {
    pub fn list(&self) -> Result<TopicPartitionList, KafkaError> {
        let mut list = TopicPartitionList::with_capacity(1);
        let offset = i64::try_from(self.offset.0).unwrap_or(i64::MAX);
        list.add_partition_offset(&self.topic, self.partition, rdkafka::Offset::Offset(offset))?;
        Ok(list)
    }
}

/// A consumer that reads one partition from a place on.
fn consumer(client: &ClientConfig, place: &Place, reading: Reading) -> Result<BaseConsumer<Context>, KafkaError> {
    let consumer: BaseConsumer<Context> = settings::consumer(client, reading).create_with_context(Context)?;
    consumer.assign(&place.list()?)?;
    Ok(consumer)
}

fn record(message: &BorrowedMessage<'_>) -> Record {
    let offset = Offset(u64::try_from(message.offset()).unwrap_or(0));
    Record { offset, bytes: message.payload().map_or_else(Bytes::new, Bytes::copy_from_slice) }
}

/// Whether reading can go on by itself after this error.
fn passes(error: &KafkaError) -> bool {
    !matches!(
        error,
        KafkaError::MessageConsumptionFatal(_)
            | KafkaError::MessageConsumption(
                RDKafkaErrorCode::OffsetOutOfRange
                    | RDKafkaErrorCode::AutoOffsetReset
                    | RDKafkaErrorCode::UnknownTopicOrPartition
                    | RDKafkaErrorCode::UnknownPartition
                    | RDKafkaErrorCode::UnknownTopic
                    | RDKafkaErrorCode::TopicAuthorizationFailed
            )
    )
}

/// Keeps the newest records of one partition in memory.
#[derive(Debug)]
pub(super) struct Follower {
    pub tail: Arc<Tail>,
    /// The end as this process's own acknowledgements show it; the tail may be a little behind.
    acknowledged: AtomicU64,
    failed: watch::Receiver<Option<Cause>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Follower {
    /// Starts at a place.
    pub fn start(config: &ClientConfig, place: Place) -> Result<Self, Cause> {
        let consumer = consumer(config, &place, Reading::Following).map_err(|error| Arc::new(error) as Cause)?;
        let tail = Arc::new(Tail::new(place.offset, TAIL_BYTES_MAX));
        let stop = Arc::new(AtomicBool::new(false));
        let (failing, failed) = watch::channel(None);
        let (filled, stopped) = (Arc::clone(&tail), Arc::clone(&stop));
        let name = format!("log-{}-{}", place.topic, place.partition);
        let run = move || {
            if let Err(error) = follow(&consumer, &filled, &stopped) {
                tracing::warn!(topic = place.topic, partition = place.partition, %error, "following a partition failed");
                failing.send_replace(Some(Arc::new(error) as Cause));
            }
        };
        let thread = std::thread::Builder::new().name(name).spawn(run).map_err(|error| Arc::new(error) as Cause)?;
        Ok(Self { tail, acknowledged: AtomicU64::new(0), failed, stop, thread: Some(thread) })
    }

    pub fn acknowledge(&self, end: Offset) {
        self.acknowledged.fetch_max(end.0, Ordering::AcqRel);
    }

    pub fn acknowledged(&self) -> Offset {
        Offset(self.acknowledged.load(Ordering::Acquire))
    }

    pub fn failure(&self) -> Option<Cause> {
        self.failed.borrow().clone()
    }

    /// Waits until the end is beyond `from`, or until following failed.
    pub async fn wait(&self, from: Offset) -> Result<(), ReadError> {
        let mut failed = self.failed.clone();
        tokio::select! {
            found = self.tail.wait(from) => found,
            failure = failed.wait_for(Option::is_some) => match failure {
                Ok(cause) => Err(ReadError::Unavailable(cause.clone().unwrap_or_else(|| Arc::new(FollowerGone)))),
                Err(_) => Err(ReadError::Unavailable(Arc::new(FollowerGone))),
            },
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("a follower's thread panicked");
        }
    }
}

/// The follower's thread ended without saying why, which only a panic does.
#[derive(Debug, thiserror::Error)]
#[error("the thread that follows the partition is gone")]
struct FollowerGone;

fn follow(consumer: &BaseConsumer<Context>, tail: &Tail, stop: &AtomicBool) -> Result<(), KafkaError> {
    let mut handover = Vec::new();
    while !stop.load(Ordering::Acquire) {
        let mut wait = POLL;
        while handover.len() < HANDOVER_MAX {
            match consumer.poll(wait) {
                Some(Ok(message)) => handover.push(record(&message)),
                Some(Err(error)) if passes(&error) => tracing::debug!(%error, "following goes on"),
                Some(Err(error)) => return Err(error),
                None => break,
            }
            // Then what is already here, without waiting.
            wait = Duration::ZERO;
        }
        tail.push(handover.drain(..));
    }
    Ok(())
}

/// Consumers for records older than any tail; one that goes on where it stopped does not ask again for what it has.
pub(super) struct Readers {
    config: ClientConfig,
    idle: Mutex<Vec<Reader>>,
    permits: Arc<Semaphore>,
}

struct Reader {
    consumer: BaseConsumer<Context>,
    /// What the consumer gives next.
    next: Place,
    /// Taken from the consumer, but too long for the read it came in.
    held: Option<Record>,
}

impl Readers {
    pub fn new(config: ClientConfig) -> Self {
        Self { config, idle: Mutex::default(), permits: Arc::new(Semaphore::new(READERS_MAX)) }
    }

    /// A place among the readers at work; hold it while reading.
    pub async fn permit(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed.
        Arc::clone(&self.permits).acquire_owned().await.ok()
    }

    /// Records from a place on, below `end`, within `bytes_max` but at least one; none if no record stands there, only offsets that
    /// belong to none (a transaction's marker). Blocks.
    pub fn read(&self, place: &Place, end: Offset, bytes_max: usize) -> Result<Vec<Record>, KafkaError> {
        let mut reader = self.take(place)?;
        let mut records = Vec::new();
        let mut bytes = 0;
        let mut keep = |record: Record| {
            bytes += record.bytes.len();
            if !records.is_empty() && bytes > bytes_max {
                return Some(record);
            }
            records.push(record);
            None
        };
        if let Some(held) = reader.held.take() {
            reader.next.offset = held.offset.next();
            keep(held); // The first one always fits.
        }
        let mut over = None;
        let is_all = reader.each(end, |message| match keep(record(message)) {
            Some(record) => {
                over = Some(record);
                ControlFlow::Break(())
            }
            None => ControlFlow::Continue(()),
        })?;
        if let Some(record) = over {
            reader.next.offset = record.offset;
            reader.held = Some(record);
        }
        // One that was told that it has everything is not told again.
        if reader.next.offset < end && !is_all {
            self.give_back(reader);
        }
        Ok(records)
    }

    /// Where the record stands whose header has this value, from a place on, below `end`. Blocks.
    pub fn find(&self, place: &Place, end: Offset, header: &str, value: &[u8]) -> Result<Option<Offset>, KafkaError> {
        let mut reader = self.begin(place)?;
        let mut found = None;
        reader.each(end, |message| {
            let carries = message
                .headers()
                .is_some_and(|headers| headers.iter().any(|h| h.key == header && h.value == Some(value)));
            if !carries {
                return ControlFlow::Continue(());
            }
            found = Some(record(message).offset);
            ControlFlow::Break(())
        })?;
        Ok(found)
    }

    /// The value of a header in the newest record that has it, from a place on, below `end`. Blocks.
    pub fn newest(&self, place: &Place, end: Offset, header: &str) -> Result<Option<Vec<u8>>, KafkaError> {
        let mut newest = None;
        self.begin(place)?.each(end, |message| {
            let value = message.headers().and_then(|headers| headers.iter().find(|h| h.key == header)?.value);
            newest = value.map(<[u8]>::to_vec).or(newest.take());
            ControlFlow::Continue(())
        })?;
        Ok(newest)
    }

    fn take(&self, place: &Place) -> Result<Reader, KafkaError> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = idle.iter().position(|reader| reader.next == *place) {
            return Ok(idle.swap_remove(found));
        }
        drop(idle);
        self.begin(place)
    }

    fn begin(&self, place: &Place) -> Result<Reader, KafkaError> {
        Ok(Reader { consumer: consumer(&self.config, place, Reading::Again)?, next: place.clone(), held: None })
    }

    /// Keeps a reader that stopped in the middle; a reader at the end would only keep its broker busy.
    fn give_back(&self, reader: Reader) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = (idle.len() >= READERS_MAX).then(|| idle.remove(0));
        idle.push(reader);
        drop(idle);
        // Closing a consumer takes a moment; nobody waits for the lock meanwhile.
        drop(oldest);
    }
}

impl Reader {
    /// Hands over messages below `end` until `take` breaks; whether a broker said before that nothing more is there. An error that passes is
    /// waited out, up to a bound.
    fn each(
        &mut self,
        end: Offset,
        mut take: impl FnMut(&BorrowedMessage<'_>) -> ControlFlow<()>,
    ) -> Result<bool, KafkaError> {
        let mut waits_until = Instant::now() + READ_WAIT;
        let mut is_all = false;
        while self.next.offset < end {
            match self.consumer.poll(ANSWER_WAIT.min(waits_until.saturating_duration_since(Instant::now()))) {
                Some(Ok(message)) => {
                    self.next.offset = Offset(u64::try_from(message.offset()).unwrap_or(0)).next();
                    (waits_until, is_all) = (Instant::now() + READ_WAIT, false);
                    if take(&message).is_break() {
                        return Ok(false);
                    }
                }
                Some(Err(KafkaError::PartitionEOF(_))) => {
                    (waits_until, is_all) = (waits_until.min(Instant::now() + MORE_WAIT), true);
                }
                Some(Err(error)) if passes(&error) && Instant::now() < waits_until => {}
                Some(Err(error)) => return Err(error),
                None if Instant::now() < waits_until => {}
                None if is_all => return Ok(true),
                None => return Err(KafkaError::MessageConsumption(RDKafkaErrorCode::OperationTimedOut)),
            }
        }
        Ok(false)
    }
}
