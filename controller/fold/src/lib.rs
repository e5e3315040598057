//! The cell as the log tells it: state, rule of what counts, and places in all streams, folded record by record. Recovery, the running loop, the gateway's
//! read model and the tools use this same fold, so a replay cannot differ from the live state.
//!
//! It reads nothing itself and decides nothing. Next on a job's path: `controller/cell/src/take_over.rs`.

use controller_core::State;
use events_rule::Record;
use events_rule::count::{Counter, SkipCause, UnreadableEvent, Verdict, read_event};
use events_schema::batch::{Batch, EventRecord, InputStream, PassOver};
use events_schema::{Cell, Epoch, Offset, TimeMs};

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
            installation: None,
        }
    }

    /// The epoch in force.
    #[must_use]
    pub fn epoch(&self) -> Option<Epoch> {
        self.counter.epoch()
    }

    /// Takes the next record of `events`.
    pub fn take(&mut self, record: &Record) -> Result<Folded, UnreadableEvent> {
        let (offset, event) = (record.offset, read_event(record)?);
        if let EventRecord::Claim { controller, incarnation } = &event {
            self.installation.get_or_insert(*incarnation);
            self.claimant = Some(Claimant { controller: controller.clone(), incarnation: *incarnation });
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
    }

    fn apply(&mut self, batch: &Batch) {
        for fact in &batch.facts {
            self.state.apply(batch.at, fact);
        }
        for taken in &batch.taken {
            self.positions.set(taken.stream, taken.to);
        }
        self.at = self.at.max(batch.at);
    }
}
