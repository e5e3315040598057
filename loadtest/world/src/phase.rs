//! What a job is at: some faults wait for it, and all are counted by what every job is at then.

use crate::executor::Executor;
use crate::world::{Body, World};
use controller_core::state::{Job, JobPhase};
use events_schema::Step;
use events_schema::fact::Entry;
use serde::{Deserialize, Serialize};

/// A phase of a job, as far as faults may tell them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// No controller leads, or the one that does is stopped: nobody decides.
    NoController,
    /// It was not accepted yet.
    NoJob,
    Queued,
    /// Its executors are being built.
    Starting,
    /// Its first generation, or the first after a restart, comes together.
    Beginning,
    Running,
    /// A newcomer is sent the replica.
    Copying,
    /// A boundary is proposed at which its members change.
    Switching,
    /// Its members come together anew after a loss.
    Recovering,
    /// The last step is done; it is saved and its model written.
    Finishing,
    /// It writes a checkpoint and gives everything back.
    Suspending,
    Suspended,
    Ended,
}

impl Phase {
    /// All of them.
    pub const ALL: [Phase; 13] = [
        Phase::NoController,
        Phase::NoJob,
        Phase::Queued,
        Phase::Starting,
        Phase::Beginning,
        Phase::Running,
        Phase::Copying,
        Phase::Switching,
        Phase::Recovering,
        Phase::Finishing,
        Phase::Suspending,
        Phase::Suspended,
        Phase::Ended,
    ];

    /// Its name in counters.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Phase::NoController => "no controller",
            Phase::NoJob => "no job",
            Phase::Queued => "queued",
            Phase::Starting => "starting",
            Phase::Beginning => "beginning",
            Phase::Running => "running",
            Phase::Copying => "copying",
            Phase::Switching => "switching",
            Phase::Recovering => "recovering",
            Phase::Finishing => "finishing",
            Phase::Suspending => "suspending",
            Phase::Suspended => "suspended",
            Phase::Ended => "ended",
        }
    }
}

impl World {
    /// What every job is at, in their order.
    #[must_use]
    pub fn phases(&self) -> Vec<Phase> {
        (0..self.people.jobs.len()).map(|index| self.phase(index)).collect()
    }

    fn phase(&self, index: usize) -> Phase {
        let controller = self.controller.and_then(|pid| self.processes.get(&pid));
        let leads = |process: &crate::world::Process| {
            matches!(&process.body, Body::Cell(cell) if cell.machine.is_leading()) && !process.stopped
        };
        if !controller.is_some_and(leads) {
            return Phase::NoController;
        }
        let id = &self.people.jobs[index];
        let Some(job) = self.log.truth.job(id) else { return Phase::NoJob };
        match &job.phase {
            JobPhase::Queued => Phase::Queued,
            JobPhase::Suspended => Phase::Suspended,
            JobPhase::Suspending(..) => Phase::Suspending,
            JobPhase::Finished { .. } | JobPhase::Failed { .. } | JobPhase::Cancelled { .. } => Phase::Ended,
            JobPhase::Starting(_) | JobPhase::Running(..) => self.phase_at_work(index, job),
        }
    }

    fn phase_at_work(&self, index: usize, job: &Job) -> Phase {
        let proposed = job.placement().and_then(|placement| placement.proposed.as_ref()).map(|p| &p.entry);
        match (&job.phase, proposed) {
            (_, Some(Entry::Recover)) => Phase::Recovering,
            // Newcomers follow while a proposal waits for them.
            (_, Some(Entry::Switch { .. })) if self.is_copied(index) => Phase::Copying,
            (_, Some(Entry::Switch { .. })) => Phase::Switching,
            (_, Some(_)) => Phase::Beginning,
            (JobPhase::Running(..), None) => self.phase_of_members(index),
            _ => Phase::Starting,
        }
    }

    fn phase_of_members(&self, index: usize) -> Phase {
        let last = Step(self.schedule.setup.jobs[index].steps);
        if self.executors_of(index).any(|executor| executor.step == Some(last)) {
            Phase::Finishing
        } else if self.is_copied(index) {
            Phase::Copying
        } else {
            Phase::Running
        }
    }

    /// Whether an executor is sent the replica, or what it lacks of it.
    fn is_copied(&self, index: usize) -> bool {
        self.executors_of(index).any(Executor::is_copying)
    }

    fn executors_of(&self, index: usize) -> impl Iterator<Item = &Executor> {
        let id = &self.people.jobs[index];
        let bodies = self.processes.values().map(|process| &process.body);
        let all = bodies.filter_map(|body| if let Body::Executor(executor) = body { Some(&**executor) } else { None });
        all.filter(move |executor| executor.id.job == *id)
    }
}
