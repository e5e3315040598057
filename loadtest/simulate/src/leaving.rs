//! When a member that has to go does not wait for the boundary any more, as `workers/member/src/leave.rs` has it, and when the leader says what happens at one.
//!
//! Nothing here decides who has to go, or what becomes of the others: those begin the step anew, by the core's word.

use crate::queue::Event;
use crate::world::{World, number};
use events_schema::control::STOPPED_STATUS;
use events_schema::fact::Proposal;
use events_schema::report::ExitCause;
use events_schema::{ExecutorId, TimeMs};

/// A boundary is waited for within half of the time that a member was given, and for no longer than this; it asks the others after a fifth of that at the earliest.
const BOUNDARY_WAIT_MS_MAX: u64 = 1_000;
const SETTLED_PART: u64 = 5;

impl World<'_> {
    /// A member that trains was told to leave by a deadline: it looks twice whether it waits for the boundary.
    pub fn told_to_leave(&mut self, executor: &ExecutorId, deadline: TimeMs) {
        let is_member = |member: &ExecutorId| {
            self.jobs[number(&member.job)].training.as_ref().is_some_and(|training| training.members.contains(member))
        };
        if !is_member(executor) {
            return;
        }
        let wait_ms = (deadline.since_ms(self.at) / 2).min(BOUNDARY_WAIT_MS_MAX);
        let until = self.at.plus_ms(wait_ms);
        for at in [self.at.plus_ms(wait_ms / SETTLED_PART), until] {
            self.queue.put(at, Event::Late { executor: executor.clone(), until });
        }
    }

    /// It goes in the middle of the step if its own ranks take longer than it waits, or the time has come; and if somebody stays who holds the replica.
    pub fn leave_early(&mut self, executor: &ExecutorId, until: TimeMs) {
        let job = number(&executor.job);
        let leaves = |id: &ExecutorId| self.state.executor(id).is_none_or(|executor| executor.leaving.is_some());
        let Some(training) = self.jobs[job].training.as_ref().filter(|training| training.steps_in_units()) else {
            return;
        };
        let stays = |id: &&ExecutorId| !leaves(id) && self.processes.get(*id).is_some_and(|process| process.replica);
        let is_let_go = training.members.contains(executor) && training.members.iter().any(|id| stays(&id));
        if !is_let_go || !leaves(executor) || self.state.is_parking(&executor.job) {
            return;
        }
        if self.at < until && self.own_units_end(job, executor) < until {
            return;
        }
        self.queue.put(self.at.plus_ms(self.setup.costs.exit_ms), Event::LeftEarly(executor.clone()));
    }

    /// Its process has ended so.
    pub fn left_early(&mut self, executor: &ExecutorId) {
        self.end_process(executor, ExitCause::Status(STOPPED_STATUS));
    }
}

/// How much of an update each member computes, as a part of what the one does that takes longest: by its ranks, and by how fast its slot is.
pub(crate) fn parts(proposal: &Proposal, speed: impl Fn(&ExecutorId) -> f64) -> Vec<f64> {
    let takes = proposal.members.iter().map(|member| member.ranks.len() as f64 / speed(&member.executor));
    let takes: Vec<f64> = takes.collect();
    let longest = takes.iter().copied().fold(0.0, f64::max);
    takes.iter().map(|takes| if longest > 0.0 { takes / longest } else { 1.0 }).collect()
}
