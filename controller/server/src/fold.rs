//! The cell as the log tells it: state, rule of what counts, and places in all streams, folded record by record. Recovery and
//! the running loop use this same fold, so a replay cannot differ from the live state.
//!
//! It reads nothing itself and decides nothing. Next file: `recover.rs`.

use controller_core::State;
use events_log::Record;
use events_log::count::{Counter, Verdict};
use events_schema::batch::{Batch, DecodeError, EventRecord, InputStream, from_bytes};
use events_schema::{Cell, Epoch, Offset, TimeMs};

/// A record of `events` that this build cannot read. Stop: a state that left out a fact would be wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the record at offset {offset} of `events` cannot be read: a newer ebb may have written it")]
pub struct UnreadableEvent {
    /// Where it stands.
    pub offset: Offset,
    /// Why.
    #[source]
    pub source: DecodeError,
}

/// First offset of each input stream that has not counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Positions {
    demand: Offset,
    reports: Offset,
    commands: Offset,
}

impl Positions {
    pub fn of(&self, stream: InputStream) -> Offset {
        match stream {
            InputStream::Demand => self.demand,
            InputStream::Reports => self.reports,
            InputStream::Commands => self.commands,
        }
    }

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
pub(crate) struct Claimant {
    pub controller: String,
    pub incarnation: u64,
}

/// The fold of all records of `events` below [`Fold::known`].
#[derive(Debug, Clone)]
pub(crate) struct Fold {
    pub state: State,
    pub counter: Counter,
    /// First offset of `events` not yet folded.
    pub known: Offset,
    pub positions: Positions,
    /// Time of the last batch that counted; batches of one cell never go back in time.
    pub at: TimeMs,
    pub claimant: Option<Claimant>,
}

impl Fold {
    pub fn new(cell: Cell) -> Self {
        Self {
            state: State::new(cell),
            counter: Counter::new(),
            known: Offset(0),
            positions: Positions::default(),
            at: TimeMs(0),
            claimant: None,
        }
    }

    /// The epoch in force.
    pub fn epoch(&self) -> Option<Epoch> {
        self.counter.epoch()
    }

    /// Takes the next record of `events`.
    pub fn take(&mut self, record: &Record) -> Result<(), UnreadableEvent> {
        let offset = record.offset;
        let event = from_bytes::<EventRecord>(&record.bytes).map_err(|source| UnreadableEvent { offset, source })?;
        if let EventRecord::Claim { controller, incarnation } = &event {
            self.claimant = Some(Claimant { controller: controller.clone(), incarnation: *incarnation });
        }
        match self.counter.offer(offset, event) {
            Verdict::Counts(batch) => self.apply(&batch),
            Verdict::Skipped(cause) => tracing::info!(%offset, cause = cause.name(), "a record without effect"),
            Verdict::Claimed { .. } | Verdict::Incomplete => {}
        }
        self.known = offset.next();
        Ok(())
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
