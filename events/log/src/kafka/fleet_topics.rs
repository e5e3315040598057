//! Fleets' own topics on Kafka: `PREFIX.FLEET`, with one partition for each cell. They are made by whoever runs the cluster, and one that
//! is not there is looked for again. Places are committed as those of the group `PREFIX`, which has no members: partitions are
//! assigned by hand, so several gateways read the same, and nothing waits for a group to come together.
//!
//! One thread polls, hands over through a bounded channel, commits, and looks for topics. A topic that may be seen and not read, or that
//! has not as many partitions as there are cells, is complained about once and left out. One that may not even be seen is as if it were
//! not there, so nothing is said of it.

use super::settings::{self, Reading};
use super::{ANSWER_WAIT, Context};
use crate::fleet_topics::{FLEET_RECORD_LEN_MAX, FleetReader, FleetReading, FleetTopic, FleetTopics};
use crate::{BoxFuture, Cause};
use bytes::Bytes;
use events_schema::{Cell, FleetId, Offset, TimeMs};
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Message};
use rdkafka::topic_partition_list::TopicPartitionList;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};

/// Records read ahead of whoever takes them, beside what the client holds.
const HANDOVER_MAX: usize = 1_024;
/// What the client holds. All fleets share it, so a signal waits behind so much of a flood at most: tens of thousands of records, which
/// are looked at in a fraction of a second.
const READ_AHEAD_KBYTES: u32 = 1_024;
/// The thread looks this often whether there is anything to do but reading.
const POLL: Duration = Duration::from_millis(50);
/// How often topics that are not there yet are looked for: a new one is read within this.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Topics under one prefix.
pub(super) struct KafkaFleetTopics {
    pub config: ClientConfig,
    pub prefix: String,
    pub cell: Cell,
    pub cells: u32,
}

impl FleetTopics for KafkaFleetTopics {
    fn read(&self) -> Result<FleetReader, Cause> {
        let cause = |error: KafkaError| Arc::new(error) as Cause;
        let mut config = settings::consumer(&self.config, Reading::Following);
        // A place that is no longer there, because the topic was made anew or its retention went over it, is its beginning.
        config.set("group.id", &self.prefix).set("auto.offset.reset", "earliest");
        config.set("queued.max.messages.kbytes", READ_AHEAD_KBYTES.to_string());
        let consumer: BaseConsumer<Context> = config.create_with_context(Context).map_err(cause)?;
        let (handing, records) = mpsc::channel(HANDOVER_MAX);
        let asked = Arc::new(Asked::default());
        let (failing, failed) = watch::channel(None);
        let partition = i32::try_from(self.cell.0).unwrap_or(i32::MAX);
        let reader = Reader {
            consumer,
            handing,
            asked: Arc::clone(&asked),
            prefix: self.prefix.clone(),
            partition,
            cells: self.cells as usize,
            open: BTreeMap::new(),
            complained: BTreeSet::new(),
            is_denied: false,
        };
        let run = move || {
            let cause = reader.run().err().unwrap_or_else(|| Arc::new(Stopped) as Cause);
            failing.send_replace(Some(cause));
        };
        // Its end, by a panic too, is seen in `failed`.
        let spawned = std::thread::Builder::new().name("fleet-topics".to_owned()).spawn(run);
        spawned.map_err(|error| Arc::new(error) as Cause)?;
        Ok(FleetReader { records, reading: Box::new(Thread { asked, failed }) })
    }
}

/// The reading was ended by who began it.
#[derive(Debug, thiserror::Error)]
#[error("fleets' topics are not read any more")]
struct Stopped;

/// What the thread is asked for.
#[derive(Debug, Default)]
struct Asked {
    stop: AtomicBool,
    fleets: Mutex<BTreeSet<FleetId>>,
    /// The newest place of each fleet that is not committed yet; at most one entry a fleet.
    places: Mutex<BTreeMap<FleetId, (Offset, String)>>,
}

struct Thread {
    asked: Arc<Asked>,
    failed: watch::Receiver<Option<Cause>>,
}

impl FleetReading for Thread {
    fn watch(&self, fleets: BTreeSet<FleetId>) {
        *self.asked.fleets.lock().unwrap_or_else(PoisonError::into_inner) = fleets;
    }

    fn keep(&self, fleet: &FleetId, next: Offset, note: String) {
        self.asked.places.lock().unwrap_or_else(PoisonError::into_inner).insert(fleet.clone(), (next, note));
    }

    fn ended(&self) -> BoxFuture<'_, Cause> {
        let mut failed = self.failed.clone();
        Box::pin(async move {
            let cause = failed.wait_for(Option::is_some).await.ok().and_then(|cause| cause.clone());
            cause.unwrap_or_else(|| Arc::new(Stopped))
        })
    }
}

impl Drop for Thread {
    /// Does not wait for the thread: it may just ask a broker that is away, and whatever it still does changes nothing.
    fn drop(&mut self) {
        self.asked.stop.store(true, Ordering::Release);
    }
}

struct Reader {
    consumer: BaseConsumer<Context>,
    handing: mpsc::Sender<(FleetId, FleetTopic)>,
    asked: Arc<Asked>,
    prefix: String,
    partition: i32,
    cells: usize,
    /// What is read, and the next offset of each.
    open: BTreeMap<FleetId, Offset>,
    /// Topics that were complained about and were not read since.
    complained: BTreeSet<FleetId>,
    /// It was complained that some topic of those that are open may not be read.
    is_denied: bool,
}

/// When topics are looked for: at once if others are wanted than before, and again and again.
struct Looks {
    next_at: Instant,
    wanted: BTreeSet<FleetId>,
}

impl Looks {
    /// Whether to look now. However that goes, the next look at the same is [`LOOK_EVERY`] later.
    fn is_due(&mut self, wanted: &BTreeSet<FleetId>, now: Instant) -> bool {
        if *wanted == self.wanted && now < self.next_at {
            return false;
        }
        wanted.clone_into(&mut self.wanted);
        self.next_at = now + LOOK_EVERY;
        true
    }
}

impl Reader {
    fn run(mut self) -> Result<(), Cause> {
        let mut looks = Looks { next_at: Instant::now(), wanted: BTreeSet::new() };
        while !self.asked.stop.load(Ordering::Acquire) {
            let wanted = self.asked.fleets.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if looks.is_due(&wanted, Instant::now())
                && let Err(error) = self.look(&wanted)
            {
                tracing::warn!(%error, "fleets' topics cannot be looked for; trying again");
            }
            self.commit();
            self.poll()?;
        }
        self.commit();
        Ok(())
    }

    /// Hands over what comes within [`POLL`], and what is there already.
    fn poll(&mut self) -> Result<(), Cause> {
        let mut wait = POLL;
        for _ in 0..HANDOVER_MAX {
            let read = match self.consumer.poll(wait) {
                None => return Ok(()),
                Some(Ok(message)) => record(&message),
                Some(Err(KafkaError::MessageConsumptionFatal(code))) => {
                    return Err(Arc::new(KafkaError::MessageConsumptionFatal(code)));
                }
                Some(Err(KafkaError::MessageConsumption(RDKafkaErrorCode::TopicAuthorizationFailed))) => {
                    self.complain_of_denial();
                    continue;
                }
                Some(Err(error)) => {
                    // Of one topic, or of the connection: the client tries again, and `look` finds what is gone.
                    tracing::debug!(%error, "reading fleets' topics goes on");
                    continue;
                }
            };
            wait = Duration::ZERO;
            let (topic, read) = read;
            let Some(fleet) = self.fleet_of(&topic) else { continue };
            if let (Some(next), FleetTopic::Record { offset, .. }) = (self.open.get_mut(&fleet), &read) {
                *next = offset.next();
                self.hand(fleet, read);
            }
        }
        Ok(())
    }

    /// The client tells neither of which topic it is, nor more than once of each.
    fn complain_of_denial(&mut self) {
        if !std::mem::replace(&mut self.is_denied, true) {
            let topics: Vec<String> = self.open.keys().map(|fleet| self.topic(fleet)).collect();
            tracing::error!(
                topics = topics.join(" "),
                "one or more of these topics of fleets may be seen but not read: grant the right to read each of them"
            );
        }
    }

    fn fleet_of(&self, topic: &str) -> Option<FleetId> {
        let name = topic.strip_prefix(self.prefix.as_str())?.strip_prefix('.')?;
        FleetId::parse(name).ok()
    }

    fn topic(&self, fleet: &FleetId) -> String {
        format!("{}.{fleet}", self.prefix)
    }

    /// Waits until there is room; an error means that nobody takes anything any more, which the stop says too.
    fn hand(&self, fleet: FleetId, what: FleetTopic) {
        let _ = self.handing.blocking_send((fleet, what));
    }

    /// Opens what is wanted and there, closes the rest.
    fn look(&mut self, wanted: &BTreeSet<FleetId>) -> Result<(), KafkaError> {
        let there = if wanted.is_empty() { BTreeSet::new() } else { self.there(wanted)? };
        let closed: Vec<FleetId> = self.open.keys().filter(|fleet| !there.contains(*fleet)).cloned().collect();
        let new: Vec<FleetId> = there.into_iter().filter(|fleet| !self.open.contains_key(fleet)).collect();
        if closed.is_empty() && new.is_empty() {
            return Ok(());
        }
        let opened = self.places(&new)?;
        for fleet in closed {
            self.open.remove(&fleet);
            self.hand(fleet, FleetTopic::Closed);
        }
        for (fleet, next, note, end) in opened {
            tracing::info!(topic = self.topic(&fleet), %next, "a fleet's own topic is read");
            self.complained.remove(&fleet);
            self.is_denied = false;
            self.open.insert(fleet.clone(), next);
            self.hand(fleet, FleetTopic::Opened { next, note, end });
        }
        let mut list = TopicPartitionList::with_capacity(self.open.len());
        for (fleet, next) in &self.open {
            list.add_partition_offset(&self.topic(fleet), self.partition, position(*next))?;
        }
        self.consumer.assign(&list)
    }

    /// Which of the wanted fleets have a topic that can be read.
    fn there(&mut self, wanted: &BTreeSet<FleetId>) -> Result<BTreeSet<FleetId>, KafkaError> {
        let metadata = self.consumer.fetch_metadata(None, ANSWER_WAIT)?;
        let mut there = BTreeSet::new();
        for topic in metadata.topics() {
            let Some(fleet) = self.fleet_of(topic.name()).filter(|fleet| wanted.contains(fleet)) else { continue };
            if topic.error().is_none() && topic.partitions().len() == self.cells {
                there.insert(fleet);
            } else if self.complained.insert(fleet) {
                let (found, expected) = (topic.partitions().len(), self.cells);
                let error = topic.error().map(RDKafkaErrorCode::from).map(tracing::field::display);
                tracing::error!(
                    topic = topic.name(),
                    found,
                    expected,
                    error,
                    "a fleet's own topic is not read: it needs one partition for each cell, and the right to read it"
                );
            }
        }
        Ok(there)
    }

    /// Where to read new topics from, what was noted there, and where they end. One that nobody may read is left out.
    fn places(&mut self, new: &[FleetId]) -> Result<Vec<(FleetId, Offset, String, Offset)>, KafkaError> {
        if new.is_empty() {
            return Ok(Vec::new());
        }
        let mut list = TopicPartitionList::with_capacity(new.len());
        for fleet in new {
            list.add_partition(&self.topic(fleet), self.partition);
        }
        let committed = self.consumer.committed_offsets(list, ANSWER_WAIT)?;
        let mut places = Vec::with_capacity(new.len());
        for element in committed.elements() {
            let Some(fleet) = self.fleet_of(element.topic()) else { continue };
            let (first, end) = match self.consumer.fetch_watermarks(element.topic(), self.partition, ANSWER_WAIT) {
                Ok(marks) => marks,
                Err(error) => {
                    if self.complained.insert(fleet) {
                        tracing::error!(topic = element.topic(), %error, "a fleet's own topic cannot be read");
                    }
                    continue;
                }
            };
            let kept = match element.offset() {
                rdkafka::Offset::Offset(kept) => Some(kept),
                _ => None,
            };
            // Behind the end, it is of a topic of this name that is gone.
            let next = kept.filter(|kept| (first..=end).contains(kept)).unwrap_or(first);
            let offset = |at: i64| Offset(u64::try_from(at).unwrap_or(0));
            let note = kept.map(|_| element.metadata().to_owned()).unwrap_or_default();
            places.push((fleet, offset(next), note, offset(end)));
        }
        Ok(places)
    }

    /// Commits places that were asked for. One that is lost is asked for again with the next.
    fn commit(&self) {
        let places = std::mem::take(&mut *self.asked.places.lock().unwrap_or_else(PoisonError::into_inner));
        if places.is_empty() {
            return;
        }
        let mut list = TopicPartitionList::with_capacity(places.len());
        for (fleet, (next, note)) in places {
            let topic = self.topic(&fleet);
            let added = list.add_partition_offset(&topic, self.partition, position(next));
            if added.is_ok()
                && let Some(mut element) = list.find_partition(&topic, self.partition)
            {
                element.set_metadata(note);
            }
        }
        if let Err(error) = self.consumer.commit(&list, CommitMode::Async) {
            tracing::warn!(%error, "places in fleets' topics cannot be kept now");
        }
    }
}

fn position(offset: Offset) -> rdkafka::Offset {
    rdkafka::Offset::Offset(i64::try_from(offset.0).unwrap_or(i64::MAX))
}

fn record(message: &BorrowedMessage<'_>) -> (String, FleetTopic) {
    let payload = message.payload().unwrap_or_default();
    let value =
        if payload.len() > FLEET_RECORD_LEN_MAX { Err(payload.len()) } else { Ok(Bytes::copy_from_slice(payload)) };
    let at = message.timestamp().to_millis().and_then(|at| u64::try_from(at).ok()).map(TimeMs);
    let offset = Offset(u64::try_from(message.offset()).unwrap_or(0));
    (message.topic().to_owned(), FleetTopic::Record { offset, at, value })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A cluster that refuses at once was asked twenty times a second.
    #[test]
    fn a_look_at_the_same_topics_is_repeated_after_a_pause_and_not_before() {
        let now = Instant::now();
        let mut looks = Looks { next_at: now, wanted: BTreeSet::new() };
        let fleets = BTreeSet::from([FleetId::parse("local").unwrap()]);
        assert!(looks.is_due(&fleets, now), "others are wanted");
        assert!(!looks.is_due(&fleets, now + POLL));
        assert!(looks.is_due(&fleets, now + LOOK_EVERY));
        assert!(looks.is_due(&BTreeSet::new(), now + LOOK_EVERY + POLL), "others are wanted");
    }
}
