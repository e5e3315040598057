//! Guest slots as plans see them: which are open, how many that makes, and who has to leave one because the policy shares no slots.
//!
//! Open is a guest slot beside a job whose slots the policy shares: a slot that nobody is on is somebody's own sooner than anybody's guest slot. Who is on one
//! stays when its host's job goes: it has the device for itself then.

use super::{Draft, plan};
use crate::policy::Policy;
use crate::state::{Slot, SlotKind, State};
use events_schema::fact::{PlanCause, PlanReason};
use events_schema::{JobId, SlotId};
use std::collections::{BTreeMap, BTreeSet};

/// Guest slots that somebody could begin on, and their kinds.
pub(super) fn open<'a>(
    state: &'a State,
    policy: &'a dyn Policy,
) -> impl Iterator<Item = (&'a SlotId, SlotKind)> + use<'a> {
    of_policy(state, policy)
        .filter(|(id, slot)| slot.is_idle() && is_shared(state, policy, id))
        .filter_map(|(id, _)| Some((id, state.kind(id)?)))
}

/// How many there are of each kind, with those that guests have. Also those on which somebody does not end, whom the plan takes off again.
pub(super) fn totals(state: &State, policy: &dyn Policy) -> BTreeMap<SlotKind, u32> {
    let is_stuck = |slot: &Slot| {
        let executor = slot.executor.as_ref().and_then(|executor| state.executor(executor));
        executor.is_some_and(|executor| executor.stuck)
    };
    let mut totals = BTreeMap::new();
    for (id, slot) in of_policy(state, policy) {
        let is_somebodys = slot.job.is_some() || is_stuck(slot) || is_shared(state, policy, id);
        let counts = slot.is_lent() && !slot.is_quarantined() && is_somebodys;
        if let Some(kind) = state.kind(id).filter(|_| counts) {
            *totals.entry(kind).or_default() += 1;
        }
    }
    totals
}

fn of_policy<'a>(state: &'a State, policy: &'a dyn Policy) -> impl Iterator<Item = (&'a SlotId, &'a Slot)> + use<'a> {
    let shares = policy.shared_queue().is_some();
    state.guests().filter(move |_| shares).filter(|(id, _)| state.is_present(id))
}

/// Whether the job of a guest slot's host may be shared with.
fn is_shared(state: &State, policy: &dyn Policy, guest: &SlotId) -> bool {
    let host = state.slot(&guest.host()).and_then(|host| host.job.as_ref());
    host.and_then(|job| state.job(job)).is_some_and(|job| policy.shared_queue() == Some(job.service.queue))
}

/// Takes guest slots out of all plans where the policy knows of none, as after an operator chose another one.
pub(super) fn let_go(draft: &mut Draft<'_>, policy: &dyn Policy) {
    if draft.state.guests.is_empty() || policy.shared_queue().is_some() {
        return;
    }
    let guests: BTreeSet<JobId> = draft.state.guests().filter_map(|(_, slot)| slot.job.clone()).collect();
    for job in &guests {
        let reason = PlanReason { policy: draft.policy.to_owned(), cause: PlanCause::GaveWay, waits: None };
        plan::adopt_slots(draft, job, BTreeSet::new(), reason);
    }
}
