//! The task that keeps the read model up to date: reads `events` and hands the model every record.
//!
//! One task per gateway, owned by `lib.rs`. A log that is away for a moment is waited for; a record that cannot be decoded
//! stops the gateway, because a model that skipped a fact would lie, unless an operator had it passed over.

use crate::feed::{FeedError, READ_BYTES_MAX};
use crate::read_model::{Progress, ReadModel};
use controller_fold::FoldError;
use events_log::{Advice, EventLog, ReadError, Stream, passed_over};
use events_rule::count::Words;
use events_schema::{Cell, Offset};
use shell::Pauses;
use std::sync::Arc;
use std::time::Duration;

/// Pauses between attempts to read a log that is away: short at first, then so that its return is noticed within seconds.
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(50);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(2);

/// Follows until the log says that it is over; cancel by dropping.
pub async fn follow(log: Arc<dyn EventLog>, cell: Cell, model: Arc<ReadModel>) -> FeedError {
    let words = Words::default();
    let error = Follower { log, cell, model: model.clone(), words, next: Offset(0), goal: None }.run().await;
    model.set_progress(Progress::Stopped);
    error
}

struct Follower {
    log: Arc<dyn EventLog>,
    cell: Cell,
    model: Arc<ReadModel>,
    words: Words,
    /// First record not read yet.
    next: Offset,
    /// The end as it was at the start; below it the model is of the past.
    goal: Option<Offset>,
}

impl Follower {
    async fn run(mut self) -> FeedError {
        let mut pauses = Pauses::between(RETRY_PAUSE_MIN, RETRY_PAUSE_MAX);
        loop {
            match self.round().await {
                Ok(()) => pauses.succeeded(),
                Err(FeedError::Log(error)) if error.advice() == Advice::Retry => {
                    let pause = pauses.after_failure();
                    tracing::warn!(%error, ?pause, "events cannot be read; trying again");
                    if self.goal.is_some_and(|goal| self.next >= goal) {
                        self.model.set_progress(Progress::Disturbed(self.next));
                    }
                    tokio::time::sleep(pause).await;
                }
                Err(error) => return error,
            }
        }
    }

    /// Takes in what is there, or waits for more.
    async fn round(&mut self) -> Result<(), FeedError> {
        let goal = match self.goal {
            Some(goal) => goal,
            None => *self.goal.insert(self.log.end(Stream::Events, self.cell).await?),
        };
        let records = self.log.read(Stream::Events, self.cell, self.next, READ_BYTES_MAX).await?;
        let nothing_new = records.is_empty();
        for record in records {
            match self.model.take(&record) {
                Ok(()) => {}
                Err(FoldError::Unreadable(unreadable)) => {
                    if passed_over(self.log.as_ref(), self.cell, &mut self.words, &unreadable).await?.is_none() {
                        return Err(unreadable.into());
                    }
                    self.model.pass_over(record.offset);
                }
                Err(FoldError::Contradicted(contradiction)) => return Err(contradiction.into()),
            }
            self.next = record.offset.next();
        }
        // Offsets may have gaps at the end, so an empty read is also an end reached.
        if nothing_new || self.next >= goal {
            self.goal = Some(goal.min(self.next));
            self.model.set_progress(Progress::Following(self.next));
        }
        if nothing_new { self.wait().await } else { Ok(()) }
    }

    async fn wait(&self) -> Result<(), FeedError> {
        let waited: Result<(), ReadError> = self.log.wait(Stream::Events, self.cell, self.next).await;
        Ok(waited?)
    }
}
