//! Which batches count: one pure rule over the `events` stream, applied alike by every reader and by the writer itself.
//!
//! A claim opens a term, which is the claim's own offset. A batch counts only if its term is the latest claim before it and
//! its sequence is the next one. Parts of a batch count only together: all of them, in order, of one term and sequence, with
//! no claim between them. Everything else is passed over and counted by cause: a zombie's batch, a repeated record, parts whose
//! end never came. So who owns a cell needs no lock beside the log: a newer claim silences every older writer from its offset on.
//!
//! **For a writer.** Keep a [`Counter`] that has seen every record below `known`. After an append of batch `s` was acknowledged
//! at `offset`: if `offset == known` nobody came between, so offer your own record; if not, read `known ..= offset`
//! (`read_range` of `events/log`) and offer all of it. Then [`Counter::counted`] says whether it counted. If the term is no longer yours, drop the state
//! and stand down. If an append's outcome is unknown, drop the state, claim again and recover by reading: a batch appended
//! twice under one claim would be told apart, but one whose predecessor was lost would not count.
//!
//! No I/O, no clock. Next on the path: `controller/fold/src/lib.rs`, which folds what counts.

use crate::Record;
use events_schema::batch::{Batch, DecodeError, EventRecord, Part, PassOver, Taken, from_bytes, to_bytes};
use events_schema::fact::Fact;
use events_schema::{Offset, Sequence, Term};
use minicbor::Encode;
use std::collections::BTreeMap;

/// Most parts of a batch: 1,024 records of 8 MiB are far beyond any batch; a larger number is damage.
pub const PARTS_MAX: u32 = 1_024;

/// What a record of the `events` stream means where it stands.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// A claim: from here on only batches of this term count.
    Claimed {
        /// The claim's offset.
        term: Term,
    },
    /// These facts happened. Parts are merged: `part` is `None`.
    Counts(Batch),
    /// A part of a batch that counts if its other parts follow.
    Incomplete,
    /// It has no effect.
    Skipped(SkipCause),
    /// An operator had a record before it passed over. It touches nothing else, not even a batch whose parts stand on both sides of it.
    PassesOver(PassOver),
}

/// Why a record has no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SkipCause {
    /// Its term was never claimed before it.
    Unclaimed,
    /// A newer claim stands before it: its writer is a zombie.
    Superseded,
    /// Its sequence (or part) was there before.
    Repeated,
    /// A sequence (or part) before it is missing.
    Gap,
    /// A part whose batch never came to its end. Found out later, so no verdict carries it.
    CutOff,
    /// Part numbers that no writer writes.
    Malformed,
}

impl SkipCause {
    /// All of them.
    pub const ALL: [SkipCause; 6] = [
        SkipCause::Unclaimed,
        SkipCause::Superseded,
        SkipCause::Repeated,
        SkipCause::Gap,
        SkipCause::CutOff,
        SkipCause::Malformed,
    ];

    /// Its name as a metric's label.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            SkipCause::Unclaimed => "unclaimed",
            SkipCause::Superseded => "superseded",
            SkipCause::Repeated => "repeated",
            SkipCause::Gap => "gap",
            SkipCause::CutOff => "cut_off",
            SkipCause::Malformed => "malformed",
        }
    }
}

/// How many records had no effect, by cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Skipped([u64; SkipCause::ALL.len()]);

impl Skipped {
    /// Records passed over for this cause.
    #[must_use]
    pub fn of(&self, cause: SkipCause) -> u64 {
        self.0[cause as usize]
    }

    /// Records passed over.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    fn add(&mut self, cause: SkipCause, records: u64) {
        self.0[cause as usize] += records;
    }
}

/// A record of `events` that this build cannot read. Stop: a state that left out a fact would be wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the record at offset {offset} of `events` cannot be read. If a newer ebb wrote it, start that one; if no ebb did, \
     `ebb log skip {offset} --reason TEXT` has every reader go on without it"
)]
pub struct UnreadableEvent {
    /// Where it stands.
    pub offset: Offset,
    /// What the decoder met.
    #[source]
    pub source: DecodeError,
}

/// Reads a record of `events`, before it is offered to a [`Counter`].
pub fn read_event(record: &Record) -> Result<EventRecord, UnreadableEvent> {
    let offset = record.offset;
    from_bytes(&record.bytes).map_err(|source| UnreadableEvent { offset, source })
}

/// What operators say, in the log, of records that cannot be read: that they are passed over. A reader that meets such a record looks behind it
/// for such a word, and stops if nobody says so. Words about others that it meets on the way are kept, so that any number of such records cost one search.
#[derive(Debug, Clone, Default)]
pub struct Words {
    met: BTreeMap<Offset, PassOver>,
    until: Offset,
}

impl Words {
    /// What was met about this record.
    #[must_use]
    pub fn about(&self, unreadable: &UnreadableEvent) -> Option<&PassOver> {
        self.met.get(&unreadable.offset)
    }

    /// Where the search for a word about this record goes on.
    #[must_use]
    pub fn next(&self, unreadable: &UnreadableEvent) -> Offset {
        self.until.max(unreadable.offset.next())
    }

    /// Takes in the next record of the search.
    pub fn meet(&mut self, record: &Record) {
        self.until = record.offset.next();
        if let Ok(EventRecord::PassOver(word)) = from_bytes(&record.bytes)
            && word.offset < record.offset
        {
            self.met.entry(word.offset).or_insert(word);
        }
    }
}

/// Applies the rule to the records of one cell's `events` stream, in order.
#[derive(Debug, Clone, PartialEq)]
pub struct Counter {
    term: Option<Term>,
    next: Sequence,
    parts: Option<Parts>,
    skipped: Skipped,
}

/// The first parts of a batch.
#[derive(Debug, Clone, PartialEq)]
struct Parts {
    seen: u32,
    count: u32,
    merged: Batch,
}

impl Counter {
    /// Begins at the stream's beginning.
    #[must_use]
    pub fn new() -> Self {
        Self { term: None, next: Sequence(0), parts: None, skipped: Skipped::default() }
    }

    /// Begins behind a record that counted (or a claim), as a snapshot remembers it: the term in force there and the sequence after it.
    #[must_use]
    pub fn resume(term: Term, next: Sequence) -> Self {
        Self { term: Some(term), next, parts: None, skipped: Skipped::default() }
    }

    /// Takes the next record.
    pub fn offer(&mut self, offset: Offset, record: EventRecord) -> Verdict {
        match record {
            EventRecord::Claim { .. } => {
                self.cut_off();
                let term = Term::of_claim(offset);
                self.term = Some(term);
                self.next = Sequence(0);
                Verdict::Claimed { term }
            }
            EventRecord::PassOver(word) => Verdict::PassesOver(word),
            EventRecord::Batch(batch) => match self.check(&batch) {
                Ok(()) => self.take(batch),
                Err(cause) => {
                    self.skipped.add(cause, 1);
                    Verdict::Skipped(cause)
                }
            },
        }
    }

    /// The term in force: the latest claim so far.
    #[must_use]
    pub fn term(&self) -> Option<Term> {
        self.term
    }

    /// The sequence of the next batch that counts.
    #[must_use]
    pub fn next_sequence(&self) -> Sequence {
        self.next
    }

    /// Whether a batch of this term and sequence has counted and its term is still in force.
    #[must_use]
    pub fn counted(&self, term: Term, sequence: Sequence) -> bool {
        self.term == Some(term) && sequence < self.next
    }

    /// Whether the first parts of a batch wait for the others; a snapshot is taken where this is false.
    #[must_use]
    pub fn incomplete(&self) -> bool {
        self.parts.is_some()
    }

    /// What was passed over.
    #[must_use]
    pub fn skipped(&self) -> Skipped {
        self.skipped
    }

    fn check(&self, batch: &Batch) -> Result<(), SkipCause> {
        match self.term {
            Some(term) if batch.term < term => return Err(SkipCause::Superseded),
            Some(term) if batch.term == term => {}
            _ => return Err(SkipCause::Unclaimed),
        }
        if batch.sequence < self.next {
            return Err(SkipCause::Repeated);
        }
        if batch.sequence > self.next {
            return Err(SkipCause::Gap);
        }
        let Some(part) = batch.part else { return Ok(()) };
        if part.index >= part.count || part.count > PARTS_MAX {
            return Err(SkipCause::Malformed);
        }
        let expected = match &self.parts {
            // Another cut of the same batch begins only with its first part.
            Some(parts) if parts.count != part.count => 0,
            Some(parts) if part.index < parts.seen => return Err(SkipCause::Repeated),
            Some(parts) => parts.seen,
            None => 0,
        };
        if part.index == expected { Ok(()) } else { Err(SkipCause::Gap) }
    }

    /// Takes a batch or part that stands where it should.
    fn take(&mut self, mut batch: Batch) -> Verdict {
        let Some(part) = batch.part.take() else {
            self.cut_off();
            self.next = self.next.next();
            return Verdict::Counts(batch);
        };
        if part.index == 0 {
            self.cut_off();
            self.parts = Some(Parts { seen: 1, count: part.count, merged: batch });
        } else if let Some(parts) = &mut self.parts {
            parts.seen += 1;
            parts.merged.taken.append(&mut batch.taken);
            parts.merged.facts.append(&mut batch.facts);
        }
        match self.parts.take_if(|parts| parts.seen == parts.count) {
            Some(complete) => {
                self.next = self.next.next();
                Verdict::Counts(complete.merged)
            }
            None => Verdict::Incomplete,
        }
    }

    fn cut_off(&mut self) {
        if let Some(parts) = self.parts.take() {
            self.skipped.add(SkipCause::CutOff, u64::from(parts.seen));
        }
    }
}

impl Default for Counter {
    fn default() -> Self {
        Self::new()
    }
}

/// What a part has besides its inputs and facts: format version, enum and array heads, term, sequence, part numbers, time.
const PART_FRAME_LEN_MAX: usize = 96;

/// The records of a batch, ready to be appended one after the other: one, or numbered parts when it is longer than `bytes_max`.
///
/// No record is longer than `bytes_max` unless a single fact is; the log refuses such a record and nothing of the batch counts.
#[must_use]
pub fn split(batch: Batch, bytes_max: usize) -> Vec<Vec<u8>> {
    let whole = EventRecord::Batch(batch);
    let bytes = to_bytes(&whole);
    let EventRecord::Batch(batch) = whole else { return vec![bytes] };
    if bytes.len() <= bytes_max {
        return vec![bytes];
    }
    let room = bytes_max.saturating_sub(PART_FRAME_LEN_MAX);
    let taken = cut(batch.taken, room);
    let facts = cut(batch.facts, room);
    let taken = taken.into_iter().map(|taken| (taken, Vec::new()));
    let pieces: Vec<(Vec<Taken>, Vec<Fact>)> =
        taken.chain(facts.into_iter().map(|facts| (Vec::new(), facts))).collect();
    let count = u32::try_from(pieces.len()).unwrap_or(u32::MAX);
    let part = |(index, (taken, facts)): (usize, (Vec<Taken>, Vec<Fact>))| {
        let part = Part { index: u32::try_from(index).unwrap_or(u32::MAX), count };
        to_bytes(&EventRecord::Batch(Batch {
            term: batch.term,
            sequence: batch.sequence,
            part: Some(part),
            taken,
            at: batch.at,
            facts,
            // What is larger than a record goes without: facts have to come through, traces need not.
            causes: Vec::new(),
        }))
    };
    pieces.into_iter().enumerate().map(part).collect()
}

/// Cuts a list into consecutive pieces of at most `room` encoded bytes, or one item where that is longer.
fn cut<T: Encode<()>>(items: Vec<T>, room: usize) -> Vec<Vec<T>> {
    let mut pieces = Vec::new();
    let mut piece = Vec::new();
    let mut len = 0;
    for item in items {
        let item_len = to_bytes(&item).len();
        if !piece.is_empty() && len + item_len > room {
            pieces.push(std::mem::take(&mut piece));
            len = 0;
        }
        len += item_len;
        piece.push(item);
    }
    if !piece.is_empty() {
        pieces.push(piece);
    }
    pieces
}

#[cfg(test)]
#[path = "count_tests.rs"]
mod tests;
