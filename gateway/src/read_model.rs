//! What the gateway knows: the controller's state folded from the same facts, and what only the API asks for besides.
//!
//! Written by `follow.rs` alone, one counted batch at a time, so a reader sees whole batches or nothing of them. Readers hold
//! the lock for one look and never across an await.

use crate::feed::{BEGINNING, CountedBatch, Feed, end_of_record};
use crate::job_index::JobIndex;
use controller_core::State;
use events_rule::count::Counter;
use events_schema::batch::Batch;
use events_schema::public::FactPosition;
use events_schema::{Cell, Offset};
use gateway_call::Answers;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::sync::watch;

/// Everything folded from `events` so far.
#[derive(Debug)]
pub struct Model {
    /// The controller's state.
    pub state: State,
    /// Where jobs were accepted.
    pub job_index: JobIndex,
    /// What became of commands and signals.
    pub answers: Answers,
    /// Recent events, and where to find older ones.
    pub feed: Feed,
    /// Offset of the last batch that counted.
    pub last_batch: Option<Offset>,
    /// Tells this log from all others: the random number in its first claim, before which nothing counts.
    pub installation: u64,
}

impl Model {
    /// The cursor behind every event so far.
    #[must_use]
    pub fn cursor(&self) -> FactPosition {
        self.last_batch.map_or(BEGINNING, end_of_record)
    }

    /// Takes in the next batch that counts, whose last record stands at `offset`.
    fn apply(&mut self, offset: Offset, batch: Batch) {
        for (index, fact) in (0u32..).zip(&batch.facts) {
            self.state.apply(batch.at, fact);
            self.job_index.apply(FactPosition { offset, index }, fact);
            self.answers.apply(fact);
        }
        self.answers.apply_taken(&batch.taken);
        let state = &self.state;
        self.job_index.sweep(|job| state.job(job).is_some());
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
            state: State::new(cell),
            job_index: JobIndex::default(),
            answers: Answers::default(),
            feed: Feed::new(),
            last_batch: None,
            installation: 0,
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

    /// Takes in a batch. Only the follower calls this.
    pub fn apply(&self, offset: Offset, batch: Batch) {
        self.write().apply(offset, batch);
    }

    /// Says which log this is. Only the follower calls this, before it takes in any batch.
    pub fn set_installation(&self, installation: u64) {
        self.write().installation = installation;
    }

    /// Leaves a mark for later readers. Only the follower calls this.
    pub fn mark(&self, next: Offset, counter: &Counter) {
        self.write().feed.mark(next, counter);
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
