//! Events by cursor: from memory while they are recent, from the log when they are older.
//!
//! Which batches count can only be said by a [`Counter`] that has read the log from the right place. The follower leaves such
//! counters as *marks* every few hundred records, so that a subscriber who comes back after a week reads at most that many
//! records before its own place. Nothing here is per subscriber; who reads slowly only holds its own cursor.

use crate::problem::{ApiError, Kind};
use crate::read_model::ReadModel;
use controller_fold::Contradiction;
use events_log::{EventLog, ReadError, Record, Stream};
use events_public::FactPosition;
use events_rule::count::{Counter, UnreadableEvent, Verdict, read_event};
use events_schema::batch::Batch;
use events_schema::fact::Fact;
use events_schema::{Cell, Offset, TimeMs};
use std::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Facts kept in memory: some minutes of a busy cell, a few MiB.
const RECENT_FACTS_MAX: usize = 8_192;
/// Records between two marks: what a returning subscriber reads for nothing, at most, while there are few marks.
const MARK_EVERY_RECORDS: u64 = 256;
/// Marks kept; beyond, every second one goes and the distance doubles.
const MARKS_MAX: usize = 2_048;
/// Bytes of the log held at once by one reader.
pub const READ_BYTES_MAX: usize = 1 << 20;

/// A batch that counts.
#[derive(Debug, Clone, PartialEq)]
pub struct CountedBatch {
    /// Offset of its (last) record.
    pub offset: Offset,
    /// The controller's time for it.
    pub at: TimeMs,
    /// What was decided.
    pub facts: Vec<Fact>,
}

impl CountedBatch {
    /// Its facts after a cursor, with their places.
    pub fn after(&self, cursor: FactPosition) -> impl Iterator<Item = (FactPosition, &Fact)> {
        let first = match self.offset.cmp(&cursor.offset) {
            Ordering::Less => self.facts.len(),
            Ordering::Equal => (cursor.index as usize).saturating_add(1).min(self.facts.len()),
            Ordering::Greater => 0,
        };
        let places = (first as u32..).map(|index| FactPosition { offset: self.offset, index });
        places.zip(&self.facts[first..])
    }
}

/// The cursor behind everything up to and including a record.
#[must_use]
pub fn end_of_record(offset: Offset) -> FactPosition {
    FactPosition { offset, index: u32::MAX }
}

/// The cursor before everything. No fact stands there: the first record that counts is a claim.
pub const BEGINNING: FactPosition = FactPosition { offset: Offset(0), index: 0 };

/// What the follower remembers of the `events` stream.
#[derive(Debug)]
pub struct Feed {
    recent: VecDeque<Arc<CountedBatch>>,
    recent_facts: usize,
    /// Every counted batch after this cursor is in `recent`.
    recent_after: FactPosition,
    marks: Marks,
}

impl Feed {
    /// Of a follower that begins at offset 0.
    #[must_use]
    pub fn new() -> Self {
        Self { recent: VecDeque::new(), recent_facts: 0, recent_after: BEGINNING, marks: Marks::new(MARKS_MAX) }
    }

    /// Takes in the next counted batch.
    pub fn push(&mut self, batch: Arc<CountedBatch>) {
        self.recent_facts += batch.facts.len();
        self.recent.push_back(batch);
        while self.recent_facts > RECENT_FACTS_MAX && self.recent.len() > 1 {
            if let Some(oldest) = self.recent.pop_front() {
                self.recent_facts -= oldest.facts.len();
                self.recent_after = end_of_record(oldest.offset);
            }
        }
    }

    /// Offers a counter as it stands before the record `next`. Kept only with no part of a batch outstanding, so that a reader
    /// that begins here sees every later batch whole.
    pub fn mark(&mut self, next: Offset, counter: &Counter) {
        if !counter.incomplete() {
            self.marks.offer(next, counter);
        }
    }

    /// The batches after a cursor, or `None` if some of them are no longer in memory.
    fn recent_after(&self, cursor: FactPosition) -> Option<Vec<Arc<CountedBatch>>> {
        if cursor < self.recent_after {
            return None;
        }
        let first = self.recent.partition_point(|batch| end_of_record(batch.offset) <= cursor);
        Some(self.recent.range(first..).cloned().collect())
    }
}

/// Counters as they stood at some offsets.
#[derive(Debug)]
struct Marks {
    marks: BTreeMap<Offset, Counter>,
    every_records: u64,
    max: usize,
}

impl Marks {
    fn new(max: usize) -> Self {
        Self { marks: BTreeMap::from([(Offset(0), Counter::new())]), every_records: MARK_EVERY_RECORDS, max }
    }

    fn offer(&mut self, next: Offset, counter: &Counter) {
        let newest = self.marks.last_key_value().map_or(0, |(offset, _)| offset.0);
        if next.0 < newest.saturating_add(self.every_records) {
            return;
        }
        self.marks.insert(next, counter.clone());
        if self.marks.len() > self.max {
            let mut keep = false;
            self.marks.retain(|_, _| {
                keep = !keep;
                keep
            });
            self.every_records = self.every_records.saturating_mul(2);
        }
    }

    /// Where to begin so that every batch whose last record is at or after `offset` is seen whole, and the counter to begin with.
    fn before(&self, offset: Offset) -> (Offset, Counter) {
        match self.marks.range(..=offset).next_back() {
            Some((start, counter)) => (*start, counter.clone()),
            None => (Offset(0), Counter::new()),
        }
    }
}

/// Why events could not be read on.
#[derive(Debug, thiserror::Error)]
pub enum FeedError {
    /// Some before the cursor were removed from the log. Refuse; the subscriber begins anew.
    #[error("events from this cursor on are no longer kept")]
    Expired,
    /// The log cannot be read now. Retry.
    #[error("the log cannot be read")]
    Log(#[source] ReadError),
    /// A record is none. Stop; the log was written by a newer build or is damaged.
    #[error(transparent)]
    Record(#[from] UnreadableEvent),
    /// An operator had one passed over that was read. Stop; another build went on without it.
    #[error(transparent)]
    Contradicted(#[from] Contradiction),
}

impl From<ReadError> for FeedError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Trimmed { .. } => Self::Expired,
            other => Self::Log(other),
        }
    }
}

impl From<FeedError> for ApiError {
    fn from(error: FeedError) -> Self {
        match error {
            FeedError::Expired => ApiError::new(
                Kind::CursorExpired,
                "begin anew without a cursor, after reading the present state of what you follow",
            ),
            FeedError::Log(error) => error.into(),
            FeedError::Record(_) | FeedError::Contradicted(_) => ApiError::incident(&error.to_string()),
        }
    }
}

/// Passes one record through the rule. Parts of a batch count with their last record.
pub fn count(counter: &mut Counter, record: &Record) -> Result<Verdict, FeedError> {
    Ok(counter.offer(record.offset, read_event(record)?))
}

/// The batch as it is handed on.
#[must_use]
pub fn counted(offset: Offset, batch: Batch) -> CountedBatch {
    CountedBatch { offset, at: batch.at, facts: batch.facts }
}

/// Reads batches in order from a cursor on, from memory or from the log.
pub struct FeedReader {
    model: Arc<ReadModel>,
    log: Arc<dyn EventLog>,
    cell: Cell,
    /// The last event handed out, or the place to begin after.
    cursor: FactPosition,
    /// Where it stands in the log while it is behind what is in memory.
    behind: Option<(Offset, Counter)>,
}

impl FeedReader {
    /// Begins after `cursor`.
    #[must_use]
    pub fn new(model: Arc<ReadModel>, log: Arc<dyn EventLog>, cell: Cell, cursor: FactPosition) -> Self {
        Self { model, log, cell, cursor, behind: None }
    }

    /// Everything up to here was handed out, or counts nothing.
    #[must_use]
    pub fn cursor(&self) -> FactPosition {
        self.cursor
    }

    /// Which log this is.
    #[must_use]
    pub fn installation(&self) -> u64 {
        self.model.read().installation()
    }

    /// The next batches, the first of which may begin before the cursor; empty when there are none yet.
    ///
    /// Moves the cursor behind them. Gives an empty list also after a piece of the log in which nothing counted:
    /// [`Self::caught_up`] tells the two apart.
    pub async fn next(&mut self) -> Result<Vec<Arc<CountedBatch>>, FeedError> {
        let recent = self.model.read().feed.recent_after(self.cursor);
        if let Some(batches) = recent {
            self.behind = None;
            if let Some(last) = batches.last() {
                self.cursor = end_of_record(last.offset);
            }
            return Ok(batches);
        }
        self.read_behind().await
    }

    /// Whether everything the follower has counted was handed out.
    #[must_use]
    pub fn caught_up(&self) -> bool {
        self.model.read().last_batch.is_none_or(|last| end_of_record(last) <= self.cursor)
    }

    async fn read_behind(&mut self) -> Result<Vec<Arc<CountedBatch>>, FeedError> {
        let (from, mut counter) = match self.behind.take() {
            Some(place) => place,
            None => self.model.read().feed.marks.before(self.cursor.offset),
        };
        let records = self.log.read(Stream::Events, self.cell, from, READ_BYTES_MAX).await?;
        let (mut next, mut batches) = (from, Vec::new());
        for record in records {
            let verdict = match count(&mut counter, &record) {
                // The follower looked for an operator's word about it, and goes on or ends.
                Err(error @ FeedError::Record(_)) => match self.model.read().is_passed_over(record.offset) {
                    Some(true) => None,
                    Some(false) => return Err(error),
                    None => break,
                },
                verdict => Some(verdict?),
            };
            next = record.offset.next();
            if let Some(Verdict::Counts(batch)) = verdict {
                let batch = counted(record.offset, batch);
                if end_of_record(batch.offset) > self.cursor {
                    batches.push(Arc::new(batch));
                }
            }
        }
        if let Some(last) = next.0.checked_sub(1) {
            self.cursor = self.cursor.max(end_of_record(Offset(last)));
        }
        self.behind = Some((next, counter));
        Ok(batches)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use events_log::MemoryLog;
    use events_schema::batch::{EventRecord, to_bytes};
    use events_schema::command::OfferMode;
    use events_schema::{FleetId, Sequence, Term};

    const CELL: Cell = Cell(0);

    fn batch(sequence: u64, facts: Vec<Fact>) -> Vec<u8> {
        let (term, sequence) = (Term::of_claim(Offset(0)), Sequence(sequence));
        let batch = Batch { term, sequence, part: None, taken: vec![], at: TimeMs(1), facts, causes: vec![] };
        to_bytes(&EventRecord::Batch(batch))
    }

    /// Whether a record is passed over the follower has found out. Each subscriber that came by read the log for it up to an operator's word.
    #[tokio::test]
    async fn what_the_follower_passed_over_every_reader_passes_over_without_looking_for_the_word() {
        let fleet = FleetId::parse("chat").unwrap();
        let demand = |sequence| Fact::DemandAccepted { fleet: fleet.clone(), sequence, needed: 1, forecast: None };
        let declared = Fact::FleetDeclared {
            fleet: fleet.clone(),
            slots: vec![],
            offers: OfferMode::ByDemand,
            reclaim_deadline_ms: 1_000,
        };
        let (log, model) = (Arc::new(MemoryLog::new()), Arc::new(ReadModel::new(CELL)));
        let many = std::iter::once(declared).chain((1..=RECENT_FACTS_MAX as u64).map(demand)).collect();
        let claim = to_bytes(&EventRecord::Claim { controller: "test".into(), incarnation: 1 });
        for record in [claim, batch(0, many), vec![9; 9], batch(1, vec![demand(9_000)]), vec![9; 9]] {
            log.append(Stream::Events, CELL, record).await.unwrap();
        }
        for record in log.read(Stream::Events, CELL, Offset(0), usize::MAX).await.unwrap() {
            match record.offset {
                Offset(2) => model.pass_over(record.offset),
                // Nobody has come to the second one.
                Offset(4) => {}
                _ => model.take(&record).unwrap(),
            }
        }
        let mut reader = FeedReader::new(model.clone(), log, CELL, BEGINNING);
        let mut read = Vec::new();
        while !reader.caught_up() {
            read.extend(reader.next().await.unwrap().iter().map(|batch| batch.offset));
        }
        assert_eq!(read, [Offset(1), Offset(3)]);
        assert_eq!(reader.next().await.unwrap(), [], "what comes after it is not known yet");
    }
}
