//! Where each job was accepted: the order of the job list, and the place where a job's events begin. Pure.

use events_public::FactPosition;
use events_schema::JobId;
use events_schema::fact::Fact;
use std::collections::BTreeMap;
use std::ops::Bound;

/// New jobs between two sweeps for jobs that the state has forgotten: many, so that a sweep costs little per job.
const SWEEP_EVERY_JOBS: usize = 4_096;

/// Jobs by id and by acceptance.
#[derive(Debug, Default)]
pub struct JobIndex {
    accepted_since_sweep: usize,
    by_id: BTreeMap<JobId, FactPosition>,
    by_acceptance: BTreeMap<FactPosition, JobId>,
}

impl JobIndex {
    /// Where a job was accepted.
    #[must_use]
    pub fn accepted(&self, job: &JobId) -> Option<FactPosition> {
        self.by_id.get(job).copied()
    }

    /// Jobs accepted before a place, newest first; all of them without one.
    pub fn newest_before(&self, place: Option<FactPosition>) -> impl Iterator<Item = (FactPosition, &JobId)> {
        let below = place.map_or(Bound::Unbounded, Bound::Excluded);
        self.by_acceptance.range((Bound::Unbounded, below)).rev().map(|(place, job)| (*place, job))
    }

    /// Takes in a fact.
    pub fn apply(&mut self, place: FactPosition, fact: &Fact) {
        let Fact::JobAccepted { job, .. } = fact else { return };
        if let Some(earlier) = self.by_id.insert(job.clone(), place) {
            // Forgotten by the state and submitted again.
            self.by_acceptance.remove(&earlier);
        }
        self.by_acceptance.insert(place, job.clone());
        self.accepted_since_sweep += 1;
    }

    /// Drops jobs that the state has forgotten, now and then; whether it did.
    pub fn sweep(&mut self, is_remembered: impl Fn(&JobId) -> bool) -> bool {
        let due = self.accepted_since_sweep >= SWEEP_EVERY_JOBS;
        if due {
            self.accepted_since_sweep = 0;
            self.by_id.retain(|job, _| is_remembered(job));
            self.by_acceptance.retain(|_, job| is_remembered(job));
        }
        due
    }
}
