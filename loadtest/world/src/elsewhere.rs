//! A job that avoids a slot is not left on it beside an idle one: whatever policy plans, and of how many slots the job is, it goes on elsewhere.
//!
//! A slot across a link that was found to be slow is none that it could have, whichever of the two servers the link belongs to.
//!
//! Looked at before the healing too: a plan is made every second, so a job waits for longer only where nobody could plan.

use crate::checks::TAKE_OVER_MS;
use crate::time::At;
use crate::world::{CONTROL, World};
use controller_core::limits::PLAN_PAUSE_MS;
use controller_core::state::{Job, JobPhase, Slot, State};
use events_schema::{JobId, ServerId, SlotId};
use std::collections::{BTreeMap, BTreeSet};

/// From the word that somebody hung until its slot is exchanged: a tick, one append, and what a fleet or another job takes meanwhile.
const EXCHANGE_MS: u64 = 5_000;

/// Jobs on a slot that they avoid, beside an idle one that they do not, and since when.
#[derive(Debug, Default)]
pub struct Elsewhere(BTreeMap<(JobId, SlotId), At>);

/// A slot of a job's plan that it avoids and has left, and the idle one that it could have.
fn left_on(truth: &State, id: &JobId, job: &Job) -> Option<SlotId> {
    let goes_on = matches!(job.phase, JobPhase::Starting(_) | JobPhase::Running(..)) && !truth.is_parking(id);
    let fit = |slot: &SlotId, known: &Slot| truth.is_present(slot) && known.is_lent() && known.unfit().is_none();
    let empty = |known: &Slot| {
        let executor = known.executor.as_ref().and_then(|number| truth.executor(number));
        executor.is_none_or(|executor| executor.leaving.is_some_and(|leaving| leaving.at_once()))
    };
    let avoided = |slot: &&SlotId| job.avoids(slot, truth.at());
    let left = |slot: &&SlotId| truth.slot(slot).is_some_and(|known| fit(slot, known) && empty(known));
    let slot = job.slots().iter().filter(|_| goes_on).filter(avoided).find(left)?;
    let members = job.active().into_iter().flat_map(|active| &active.members);
    let homes = members.filter_map(|number| Some(&truth.executor(number)?.slot.server));
    let homes: BTreeSet<&ServerId> = homes.collect();
    let behind = homes.iter().any(|home| truth.is_link_slow(home));
    let across = |server: &ServerId| !homes.contains(server) && (behind || truth.is_link_slow(server));
    let instead = |(other, known): &(&SlotId, &Slot)| {
        known.is_idle()
            && truth.is_present(other)
            && truth.kind(other) == truth.kind(slot)
            && !job.avoids(other, truth.at())
            && !across(&other.server)
    };
    truth.slots().find(instead).map(|_| slot.clone())
}

impl World {
    /// Looks whether a job waits for a slot that it avoids.
    pub fn check_elsewhere(&mut self) {
        let (now, truth) = (self.now(), &self.log.truth);
        let jobs = truth.jobs().filter(|(_, job)| !job.avoided.is_empty());
        let left: Vec<(JobId, SlotId)> =
            jobs.filter_map(|(id, job)| Some((id.clone(), left_on(truth, id, job)?))).collect();
        let known = std::mem::take(&mut self.checks.elsewhere.0);
        let since = |key: &(JobId, SlotId)| known.get(key).copied().unwrap_or(now);
        let waits: BTreeMap<(JobId, SlotId), At> = left.into_iter().map(|key| (key.clone(), since(&key))).collect();
        let leads = self.controller.is_some_and(|pid| self.runs(pid) && self.leads(pid));
        let quiet = [
            self.log.well_since(),
            self.hosts[usize::from(CONTROL)].disturbed_at,
            self.hosts[usize::from(CONTROL)].heard_from,
            self.policy_panics_until.plus_ms(PLAN_PAUSE_MS),
        ];
        let able_at = quiet.into_iter().fold(At(0), At::max).plus_ms(TAKE_OVER_MS);
        let late = waits.iter().find(|(_, at)| leads && now > able_at.max(**at).plus_ms(EXCHANGE_MS));
        if let Some(((job, slot), at)) = late {
            let detail = format!("{job} on {slot} at {} ms", at.since_ms(At(0)));
            self.found("a job does not wait for a slot that it avoids beside an idle one", detail);
        }
        self.checks.elsewhere = Elsewhere(waits);
    }
}
