//! What the gateway knows: the controller's state folded from the same facts, and what only the API asks for besides.
//!
//! Written by `follow.rs` alone, one counted batch at a time, so a reader sees whole batches or nothing of them. Readers hold
//! the lock for one look and never across an await.

use crate::feed::{BEGINNING, CountedBatch, Feed, end_of_record};
use crate::job_index::JobIndex;
use crate::usage::Usages;
use controller_core::State;
use controller_fold::{Fold, FoldError, Folded};
use events_public::FactPosition;
use events_rule::Record;
use events_schema::batch::Batch;
use events_schema::{Cell, Offset};
use gateway_call::Answers;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::sync::watch;

/// Everything folded from `events` so far.
#[derive(Debug)]
pub struct Model {
    /// The controller's state, and the rule of what counts.
    fold: Fold,
    /// Where jobs were accepted.
    pub job_index: JobIndex,
    /// What jobs have had.
    pub usages: Usages,
    /// What became of commands and signals.
    pub answers: Answers,
    /// Recent events, and where to find older ones.
    pub feed: Feed,
    /// Offset of the last batch that counted.
    pub last_batch: Option<Offset>,
}

impl Model {
    /// The controller's state.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.fold.state
    }

    /// Which log this is; 0 before its first claim, before which nothing counts.
    #[must_use]
    pub fn installation(&self) -> u64 {
        self.fold.installation.unwrap_or(0)
    }

    /// The cursor behind every event so far.
    #[must_use]
    pub fn cursor(&self) -> FactPosition {
        self.last_batch.map_or(BEGINNING, end_of_record)
    }

    /// Whether an operator had a record passed over; nothing as long as it was not come to.
    #[must_use]
    pub fn is_passed_over(&self, record: Offset) -> Option<bool> {
        (record < self.fold.known).then(|| self.fold.passed_over.contains(&record))
    }

    /// Takes in the next record.
    fn take(&mut self, record: &Record) -> Result<(), FoldError> {
        if let Folded::Counts(batch) = self.fold.take(record)? {
            self.counts(record.offset, batch);
        }
        self.feed.mark(record.offset.next(), &self.fold.counter);
        Ok(())
    }

    /// Goes on behind a record that cannot be read.
    fn pass_over(&mut self, unreadable: Offset) {
        self.fold.pass_over(unreadable);
        self.feed.mark(unreadable.next(), &self.fold.counter);
    }

    /// Notes what else is asked for of a batch that counts, whose last record stands at `offset`.
    fn counts(&mut self, offset: Offset, batch: Batch) {
        for (index, fact) in (0u32..).zip(&batch.facts) {
            self.job_index.apply(FactPosition { offset, index }, fact);
            self.usages.apply(batch.at, fact);
            self.answers.apply(fact);
        }
        self.answers.apply_taken(&batch.taken);
        let state = &self.fold.state;
        if self.job_index.sweep(|job| state.job(job).is_some()) {
            self.usages.retain(|job| state.job(job).is_some());
        }
        self.last_batch = Some(offset);
        self.feed.push(Arc::new(CountedBatch { offset, at: batch.at, facts: batch.facts }));
    }
}

/// How far the follower is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// It reads what stood in the log when it began; answers would be of the past.
    CatchingUp,
    /// Everything below this offset is in the model.
    Following(Offset),
    /// The log cannot be read at the moment; what is known stays readable.
    Disturbed(Offset),
    /// It will not go on.
    Stopped,
}

/// The model, its lock and its bell.
#[derive(Debug)]
pub struct ReadModel {
    model: RwLock<Model>,
    progress: watch::Sender<Progress>,
}

impl ReadModel {
    /// Knows nothing yet.
    #[must_use]
    pub fn new(cell: Cell) -> Self {
        let model = Model {
            fold: Fold::new(cell),
            job_index: JobIndex::default(),
            usages: Usages::default(),
            answers: Answers::default(),
            feed: Feed::new(),
            last_batch: None,
        };
        Self { model: RwLock::new(model), progress: watch::Sender::new(Progress::CatchingUp) }
    }

    /// Looks at it. Never hold the guard across an await.
    pub fn read(&self) -> RwLockReadGuard<'_, Model> {
        // A writer that panicked takes the follower down, and with it the gateway; until then the last whole look is as good.
        self.model.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Model> {
        self.model.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in the next record. Only the follower calls this.
    pub fn take(&self, record: &Record) -> Result<(), FoldError> {
        self.write().take(record)
    }

    /// Goes on behind a record that an operator had passed over. Only the follower calls this.
    pub fn pass_over(&self, unreadable: Offset) {
        self.write().pass_over(unreadable);
    }

    /// Says how far it is and wakes everybody who waits. Only the follower calls this.
    pub fn set_progress(&self, progress: Progress) {
        self.progress.send_replace(progress);
    }

    /// How far it is.
    #[must_use]
    pub fn progress(&self) -> Progress {
        *self.progress.borrow()
    }

    /// Rings at every change of [`Self::progress`].
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }
}
