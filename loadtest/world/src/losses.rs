//! A loss that a member reports is answered: whatever generation the controller takes for the one in force, all come together anew. A lost
//! link stops a step for good, so a word about it that is passed over is a job that stands still until something else happens to it.
//!
//! Looked at before the healing too: what stands between the member's agent and the log is known, so a word is late only where nothing did.

use crate::checks::TAKE_OVER_MS;
use crate::time::At;
use crate::world::{CONTROL, Pid, World};
use controller_core::state::{Executor, JobPhase};
use events_schema::control::FromExecutor;
use events_schema::report::Report;
use events_schema::{Generation, JobId};
use std::collections::BTreeMap;

/// From a member's word to the decision, where nothing stands between: its agent's queue, one append, one batch.
const ANSWER_MS: u64 = 2_000;

/// Words about losses that are not answered, and since when.
#[derive(Debug, Default)]
pub struct Losses(BTreeMap<(JobId, Generation, Pid), At>);

impl World {
    /// An executor reports something.
    pub fn note_report(&mut self, child: Pid, frame: &FromExecutor) {
        if let FromExecutor::Report(Report::PeersMissing { job, generation, begun: true, .. }) = frame {
            let now = self.now();
            self.checks.losses.0.entry((job.clone(), *generation, child)).or_insert(now);
        }
    }

    /// Looks whether somebody waits for an answer.
    pub fn check_losses(&mut self) {
        let mut losses = std::mem::take(&mut self.checks.losses);
        losses.0.retain(|(job, generation, by), _| self.is_unanswered(job, *generation, *by));
        let now = self.now();
        let late = losses.0.iter().find(|((_, _, by), at)| {
            let able_at = self.way_is_free_since(*by).map(|since| since.plus_ms(TAKE_OVER_MS));
            able_at.is_some_and(|able_at| now > able_at.max(**at).plus_ms(ANSWER_MS))
        });
        if let Some(((job, generation, by), at)) = late {
            let detail = format!("{by} of {job}, in generation {generation}, at {} ms", at.since_ms(At(0)));
            self.found("a loss that a member reports is answered", detail);
        }
        self.checks.losses = losses;
    }

    /// Whether a member still stands where it lost somebody, and only the controller can help. A generation that is not known to be in force
    /// yet is waited for, and a job that nobody can go on with begins anew.
    fn is_unanswered(&self, id: &JobId, generation: Generation, by: Pid) -> bool {
        let Some(executor) = self.executor(by) else { return false };
        let truth = &self.log.truth;
        let stands = executor.member.session().membership().is_some_and(|m| m.tag.generation == generation);
        let runs =
            truth.job(id).is_some_and(|job| matches!(job.phase, JobPhase::Running(..)) && job.round <= generation);
        let counts = truth.executor(&executor.id).is_some_and(|known| known.leaving.is_none());
        stands && runs && counts && truth.executors_of(id).any(|(_, executor)| Executor::can_recover(executor))
    }

    /// Since when nothing stands between an executor's agent and a controller that decides; none while something does.
    fn way_is_free_since(&self, child: Pid) -> Option<At> {
        let agent = self.executor(child)?.agent;
        let place = self.processes.get(&agent)?.place;
        let whole = self.net.is_whole(place, CONTROL) && self.net.is_whole(CONTROL, place);
        let leads = self.controller.is_some_and(|pid| self.runs(pid) && self.leads(pid));
        let ends = [self.hosts[usize::from(place)].heard_from, self.hosts[usize::from(CONTROL)].heard_from];
        (whole && leads && self.runs(agent)).then(|| ends.into_iter().fold(self.log.well_since(), At::max))
    }
}
