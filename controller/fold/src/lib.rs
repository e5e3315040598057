//! The cell as the log tells it: state, rule of what counts, and places in all streams, folded record by record. Recovery, the running loop, the gateway's
//! read model and the tools use this same fold, so a replay cannot differ from the live state.
//!
//! It reads nothing itself and decides nothing. Next on a job's path: `controller/cell/src/take_over.rs`.

use controller_core::State;
use events_rule::Record;
use events_rule::count::{Counter, SkipCause, UnreadableEvent, Verdict, read_event};
use events_schema::batch::{Batch, EventRecord, InputStream, PassOver};
use events_schema::{Cell, Offset, Term, TimeMs};
use std::collections::BTreeSet;

/// First offset of each input stream that has not counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Positions {
    demand: Offset,
    reports: Offset,
    commands: Offset,
}

impl Positions {
    /// Of one stream.
    #[must_use]
    pub fn of(&self, stream: InputStream) -> Offset {
        match stream {
            InputStream::Demand => self.demand,
            InputStream::Reports => self.reports,
            InputStream::Commands => self.commands,
        }
    }

    /// Moves one stream's.
    pub fn set(&mut self, stream: InputStream, position: Offset) {
        match stream {
            InputStream::Demand => self.demand = position,
            InputStream::Reports => self.reports = position,
            InputStream::Commands => self.commands = position,
        }
    }

    /// Whether every stream has got at least as far as there.
    pub fn reached(&self, there: &Positions) -> bool {
        InputStream::ALL.iter().all(|stream| self.of(*stream) >= there.of(*stream))
    }
}

/// Who claimed the cell last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimant {
    /// Its name.
    pub controller: String,
    /// Its process.
    pub incarnation: u64,
}

/// The fold of all records of `events` below [`Fold::known`].
#[derive(Debug, Clone)]
pub struct Fold {
    /// What the facts that count come to.
    pub state: State,
    /// The rule, behind the last record taken.
    pub counter: Counter,
    /// First offset of `events` not yet folded.
    pub known: Offset,
    /// Up to where inputs were taken.
    pub positions: Positions,
    /// Time of the last batch that counted; batches of one cell never go back in time.
    pub at: TimeMs,
    /// Who claimed last.
    pub claimant: Option<Claimant>,
    /// Records that could not be read and that an operator had passed over.
    pub passed_over: BTreeSet<Offset>,
    /// Tells this log from all others: the random number in its first claim, before which nothing counts.
    pub installation: Option<u64>,
}

/// What a record came to.
#[derive(Debug, Clone, PartialEq)]
pub enum Folded {
    /// With it a batch counts; its facts are in the state.
    Counts(Batch),
    /// It has no effect.
    Skipped(SkipCause),
    /// A controller claimed the cell.
    Claimed,
    /// A part of a batch whose last part is still to come.
    Incomplete,
    /// An operator had a record before it passed over.
    PassesOver(PassOver),
}

/// Why a record of `events` cannot be folded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FoldError {
    /// It cannot be read. Stop, unless a word behind it has it passed over: then go on with [`Fold::pass_over`].
    #[error(transparent)]
    Unreadable(#[from] UnreadableEvent),
    /// Another one of which it speaks is in this state. Stop.
    #[error(transparent)]
    Contradicted(#[from] Contradiction),
}

/// An operator had a record passed over whose facts are in this state. Whoever could not read it went on without them, so no state with them
/// is right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the record at offset {word} of `events` has the one at offset {offset} passed over, which was read here. If that one was damaged after it \
     was read, start this process again; if the same is said then, this build can read what another could not: start that other build"
)]
pub struct Contradiction {
    /// Where the word stands.
    pub word: Offset,
    /// What it is about.
    pub offset: Offset,
}

impl Fold {
    /// Of an empty log.
    #[must_use]
    pub fn new(cell: Cell) -> Self {
        Self {
            state: State::new(cell),
            counter: Counter::new(),
            known: Offset(0),
            positions: Positions::default(),
            at: TimeMs(0),
            claimant: None,
            passed_over: BTreeSet::new(),
            installation: None,
        }
    }

    /// The term in force.
    #[must_use]
    pub fn term(&self) -> Option<Term> {
        self.counter.term()
    }

    /// Takes the next record of `events`.
    pub fn take(&mut self, record: &Record) -> Result<Folded, FoldError> {
        let (offset, event) = (record.offset, read_event(record)?);
        if let EventRecord::Claim { controller, incarnation } = &event {
            self.installation.get_or_insert(*incarnation);
            self.claimant = Some(Claimant { controller: controller.clone(), incarnation: *incarnation });
        }
        if let EventRecord::PassOver(word) = &event
            && word.offset < offset
            && !self.passed_over.contains(&word.offset)
        {
            return Err(Contradiction { word: offset, offset: word.offset }.into());
        }
        self.known = offset.next();
        Ok(match self.counter.offer(offset, event) {
            Verdict::Counts(batch) => {
                self.apply(&batch);
                Folded::Counts(batch)
            }
            Verdict::Skipped(cause) => Folded::Skipped(cause),
            Verdict::Claimed { .. } => Folded::Claimed,
            Verdict::Incomplete => Folded::Incomplete,
            Verdict::PassesOver(word) => Folded::PassesOver(word),
        })
    }

    /// Goes on behind a record that cannot be read, because an operator had it passed over further down.
    pub fn pass_over(&mut self, unreadable: Offset) {
        self.known = unreadable.next();
        self.passed_over.insert(unreadable);
    }

    fn apply(&mut self, batch: &Batch) {
        self.state.apply_all(batch.at, &batch.facts);
        for taken in &batch.taken {
            self.positions.set(taken.stream, taken.to);
        }
        self.at = self.at.max(batch.at);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use events_schema::batch::to_bytes;

    fn record(offset: u64, event: &EventRecord) -> Record {
        Record { offset: Offset(offset), bytes: to_bytes(event).into() }
    }

    #[test]
    fn a_build_that_can_read_what_another_passed_over_does_not_go_on_with_other_facts() {
        let claim = EventRecord::Claim { controller: "a".to_owned(), incarnation: 7 };
        let (by, reason) = ("ada".to_owned(), "rolled back".to_owned());
        let word = EventRecord::PassOver(PassOver { offset: Offset(1), by, at: TimeMs(1), reason });
        let (mut older, mut newer) = (Fold::new(Cell(0)), Fold::new(Cell(0)));
        older.take(&record(0, &claim)).unwrap();
        older.pass_over(Offset(1));
        assert!(matches!(older.take(&record(2, &word)), Ok(Folded::PassesOver(_))));
        newer.take(&record(0, &claim)).unwrap();
        newer.take(&record(1, &claim)).unwrap();
        let error = newer.take(&record(2, &word)).unwrap_err();
        assert_eq!(error, Contradiction { word: Offset(2), offset: Offset(1) }.into());
    }
}
