//! A job of a run as it really is, which the controller is told of.

use crate::members::Training;
use crate::outcome::JobOutcome;
use crate::setup::Job;
use crate::world::{BEGIN, name};
use events_schema::{JobId, TimeMs};

/// A job, as it really is.
pub(crate) struct SimJob {
    pub id: JobId,
    /// Steps in all.
    pub total: f64,
    /// Members that have a replica, from their first generation on.
    pub training: Option<Training>,
    /// Steps done until `since`.
    pub steps: f64,
    pub since: TimeMs,
    /// What was put into the queue under another stamp has become pointless.
    pub stamp: u64,
    /// Steps in the last checkpoint that the controller knows.
    pub saved: f64,
    /// Slot·ms of steps since it was restarted, after so many steps: a line between two is a stretch of one membership.
    pub spent: Vec<(f64, u64)>,
    /// Since when it waits without any slot, if it does.
    pub queued_since: Option<TimeMs>,
    /// Job·ms and lent slot·ms of the run when it came.
    pub came_amid: (u64, u64),
    /// What is told of it in the end.
    pub outcome: JobOutcome,
}

impl SimJob {
    /// One that has not come yet.
    pub fn new(job: &Job, number: usize) -> Self {
        Self {
            // Names of eight characters are compared without a look at their text, and jobs are looked up all the time.
            id: name(JobId::parse, &format!("j{number:07}")),
            total: job.total(),
            training: None,
            steps: 0.0,
            since: BEGIN,
            stamp: 0,
            saved: 0.0,
            spent: vec![(0.0, 0)],
            queued_since: None,
            came_amid: (0, 0),
            outcome: JobOutcome { submitted_ms: job.submitted_ms, ..JobOutcome::default() },
        }
    }

    /// How much of it is done at a time that is not before it was last looked at.
    pub fn done_at(&self, at: TimeMs) -> f64 {
        match self.training.as_ref() {
            Some(training) => training.done_after(self.steps, at.since_ms(self.since)).min(self.total),
            None => self.steps,
        }
    }

    /// Notes that its members came together for the first time.
    pub fn began(&mut self, at: TimeMs) {
        self.outcome.began_ms.get_or_insert(at.since_ms(BEGIN));
    }
}
