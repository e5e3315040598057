//! No job is slowed to a link: where one server's link carries no more than a tenth more than the gradients of a job's steps, and the job has its fewest slots
//! elsewhere, no executor there becomes a member, or not for long. Nor does one stay a member for long whose server's link becomes like that.
//!
//! Judged by what the link and the steps truly are; the controller has to have found it out.

use crate::numbers::PARAMETERS;
use crate::time::At;
use crate::world::World;
use controller_core::state::{Executor, Job};
use events_schema::JobId;
use std::collections::BTreeMap;

/// A member that came in before it was measured is let go within so long: a second of its copy, a decision and a step.
const LET_GO_MS: u64 = 5_000;
/// One whose link became slow is let go within so long: what is left of half a minute, two of them whose steps are long, bursts over two other servers for
/// each that the job is on, and the time to leave that a plan gives.
const FOUND_OUT_MS: u64 = 200_000;
/// The least bandwidth, over the gradients, in thousandths.
const BETA_MILLI: u64 = 1_100;

/// Jobs with a member whose link slows them, and since when.
#[derive(Debug, Default)]
pub struct Slowed(BTreeMap<JobId, At>);

impl World {
    /// Looks whether a job is slowed to a link.
    pub fn check_slowed(&mut self) {
        let always = self.schedule.setup.slow_link.map(|slow| (slow, LET_GO_MS));
        let became = self.net.slow_link.map(|slow| (slow, FOUND_OUT_MS));
        let Some((slow, within_ms)) = always.or(became) else { return };
        let (now, truth) = (self.now(), &self.log.truth);
        let server = Self::server_at(slow.server + 1);
        let setup = &self.schedule.setup;
        let gradient_bytes = PARAMETERS as u64 * setup.element_bytes;
        let is_slowed = |job: &Job| {
            let Some(active) = job.active() else { return false };
            let is_there = |executor: &Executor| executor.slot.server == server;
            let there = active.members.iter().filter(|number| truth.executor(number).is_some_and(is_there));
            let there = there.count() as u64;
            let others = active.members.len() as u64 - there;
            if there == 0 || others < u64::from(job.spec.executors().min) {
                return false;
            }
            let step_ms = u64::from(job.spec.workers.max).div_ceil(others) * setup.unit_ms;
            slow.bytes_per_s * step_ms <= gradient_bytes * BETA_MILLI
        };
        let slowed = truth.jobs().filter(|(_, job)| is_slowed(job)).map(|(id, _)| id.clone());
        let known = std::mem::take(&mut self.checks.slowed.0);
        let slowed: BTreeMap<JobId, At> =
            slowed.map(|id| (id.clone(), known.get(&id).copied().unwrap_or(now))).collect();
        if let Some((job, at)) = slowed.iter().find(|(_, at)| now > at.plus_ms(within_ms)) {
            let detail = format!("{job} by {server} from {} ms on", at.since_ms(At(0)));
            self.found("no job is slowed to a link", detail);
        }
        self.checks.slowed = Slowed(slowed);
    }
}
