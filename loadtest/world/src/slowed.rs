//! No job is slowed to a link: where one server's link carries no more than a tenth more than the gradients of a job's steps, and the job has its fewest slots
//! elsewhere, no executor there becomes a member, or not for long. Nor does one stay a member for long whose server's link becomes like that: it is said to
//! straggle, and nobody else is.
//!
//! Judged by what the link and the steps truly are; the controller has to have found it out.

use crate::numbers::PARAMETERS;
use crate::time::At;
use crate::world::World;
use controller_core::state::{Executor, Job};
use events_schema::fact::StragglerCause;
use events_schema::{JobId, ServerId};
use std::collections::BTreeMap;

/// A member that came in before it was measured is let go within so long: a second of its copy, a decision and a step.
const LET_GO_MS: u64 = 5_000;
/// Of one whose link became slow it is said within so long: what is left of 20 seconds, two times as many whose steps are long, and bursts over two other servers
/// for each that the job is on.
const NAMED_MS: u64 = 120_000;
/// It is let go within so long: that, and the time to leave that a plan gives.
const FOUND_OUT_MS: u64 = NAMED_MS + 70_000;
/// The least bandwidth, over the gradients, in thousandths.
const BETA_MILLI: u64 = 1_100;

/// Jobs with a member whose link slows them, and since when.
#[derive(Debug, Default)]
pub struct Slowed {
    since: BTreeMap<JobId, At>,
    /// How long it took until one was first said to straggle whose link became slow.
    pub named_after_ms: Option<u64>,
}

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
        let known = std::mem::take(&mut self.checks.slowed.since);
        let slowed: BTreeMap<JobId, At> =
            slowed.map(|id| (id.clone(), known.get(&id).copied().unwrap_or(now))).collect();
        if let Some((job, at)) = slowed.iter().find(|(_, at)| now > at.plus_ms(within_ms)) {
            let detail = format!("{job} by {server} from {} ms on", at.since_ms(At(0)));
            self.found("no job is slowed to a link", detail);
        }
        self.checks.slowed.since = slowed;
        if became.is_some() {
            self.check_named(&server);
        }
    }

    /// Who has the link that became slow is said to straggle for it, soon, and nobody else. Of two servers nobody can say whose it is.
    fn check_named(&mut self, server: &ServerId) {
        let (now, truth) = (self.now(), &self.log.truth);
        let stragglers = truth.jobs().flat_map(|(id, job)| job.stragglers.values().map(move |known| (id, known)));
        let of_link = stragglers.filter(|(_, known)| known.cause == Some(StragglerCause::Network));
        let named: Vec<(JobId, ServerId)> =
            of_link.map(|(id, known)| (id.clone(), known.slot.server.clone())).collect();
        let slowed = &mut self.checks.slowed;
        if let Some((job, _)) = named.first()
            && let Some(since) = slowed.since.get(job)
        {
            slowed.named_after_ms.get_or_insert(now.since_ms(*since));
        }
        let is_named = |job: &JobId| named.iter().any(|(of, _)| of == job);
        let unnamed = slowed.since.iter().find(|(id, at)| now > at.plus_ms(NAMED_MS) && !is_named(id));
        let unnamed = unnamed.map(|(id, at)| format!("{id} by {server} from {} ms on", at.since_ms(At(0))));
        if let Some(detail) = unnamed {
            self.found("who has a slow link is said to straggle for it in time", detail);
        }
        let other = named.into_iter().find(|(_, named)| named != server && self.schedule.setup.servers > 2);
        if let Some((job, named)) = other {
            self.found("nobody straggles for another's link", format!("{named} of {job} for that of {server}"));
        }
    }
}
