//! Guest slots as plans see them: which are open, how many that makes, and who has to leave one because the policy shares no slots.
//!
//! Open is a guest slot beside a job whose slots the policy shares, and beside an executor that leaves enough of its slot, where the policy asks for that: a slot that
//! nobody is on is somebody's own sooner than anybody's guest slot. Who is on one stays when its host becomes busier, or when its host's job goes: it has the
//! device for itself then.

use super::{Draft, plan};
use crate::policy::Policy;
use crate::state::{Slot, SlotKind, State};
use events_schema::fact::{Fact, PlanCause, PlanReason};
use events_schema::{ExecutorId, JobId, SlotId};
use std::collections::{BTreeMap, BTreeSet};

/// Hosts that differ by less than so many hundredths of their slots are equally busy.
const LEVEL_PERCENT: u8 = 10;

/// Of whom it is not known how much of its slot it uses.
const ALL_PERCENT: u8 = 100;

/// A guest slot that somebody could begin on.
pub(super) struct Open<'a> {
    pub slot: &'a SlotId,
    pub kind: SlotKind,
    /// How much of its slot the host uses; all of it, as long as that is not known.
    busy_percent: u8,
}

impl Open<'_> {
    /// The less, the freer: what hosts use, so coarsely that what differs by chance is the same.
    pub fn level(&self) -> u8 {
        self.busy_percent / LEVEL_PERCENT
    }
}

/// Guest slots that somebody could begin on.
pub(super) fn open<'a>(state: &'a State, policy: &'a dyn Policy) -> impl Iterator<Item = Open<'a>> + use<'a> {
    of_policy(state, policy).filter(|(_, slot)| slot.is_idle()).filter_map(move |(slot, _)| {
        let busy_percent = candidate(state, policy, slot)?;
        Some(Open { slot, kind: state.kind(slot)?, busy_percent })
    })
}

/// How busy the hosts of those are, by kind and in the mean.
pub(super) fn busy(state: &State, policy: &dyn Policy) -> BTreeMap<SlotKind, u8> {
    let mut sums: BTreeMap<SlotKind, (u64, u64)> = BTreeMap::new();
    for open in open(state, policy) {
        let (sum, count) = sums.entry(open.kind).or_default();
        (*sum, *count) = (*sum + u64::from(open.busy_percent), *count + 1);
    }
    let mean = |(sum, count): (u64, u64)| u8::try_from(sum / count.max(1)).unwrap_or(u8::MAX);
    sums.into_iter().map(|(kind, of)| (kind, mean(of))).collect()
}

/// How many there are of each kind, with those that guests have. Also those on which somebody does not end, whom the plan takes off again.
pub(super) fn totals(state: &State, policy: &dyn Policy) -> BTreeMap<SlotKind, u32> {
    let is_stuck = |slot: &Slot| {
        let executor = slot.executor.as_ref().and_then(|executor| state.executor(executor));
        executor.is_some_and(|executor| executor.stuck)
    };
    let mut totals = BTreeMap::new();
    for (id, slot) in of_policy(state, policy) {
        let is_somebodys = slot.job.is_some() || is_stuck(slot) || candidate(state, policy, id).is_some();
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
pub(crate) fn is_shared(state: &State, policy: &dyn Policy, guest: &SlotId) -> bool {
    let host = state.slot(&guest.host()).and_then(|host| host.job.as_ref());
    host.and_then(|job| state.job(job)).is_some_and(|job| policy.shared_queue() == Some(job.service.queue))
}

/// How much of its slot the host of a guest slot uses, if somebody could begin beside it.
fn candidate(state: &State, policy: &dyn Policy, guest: &SlotId) -> Option<u8> {
    if !is_shared(state, policy, guest) {
        return None;
    }
    let host = state.slot(&guest.host())?.executor.as_ref().and_then(|host| state.executor(host));
    let known = host.and_then(|host| host.busy_percent);
    match policy.host_busy_percent_max() {
        Some(max) => known.filter(|percent| *percent < max),
        None => Some(known.unwrap_or(ALL_PERCENT)),
    }
}

/// How much of its slot an executor uses is known from now on.
pub(super) fn measured(draft: &mut Draft<'_>, executor: &ExecutorId, busy_percent: u8) {
    let known = draft.state.executor(executor).filter(|known| known.leaving.is_none());
    if known.is_some_and(|known| known.busy_percent != Some(busy_percent)) {
        draft.emit(Fact::LoadMeasured { executor: executor.clone(), busy_percent });
    }
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
