//! What no policy sees: a job does not use some of the slots that it was given, because of what happened there (`Job::avoids`). It gets others instead.
//!
//! A plan says how many slots a job gets; that a hung job of one slot begins again on that very slot would follow from it. So with every plan, whatever
//! policy makes it, a slot that its job avoids and has left is exchanged for one of the same kind: for an idle one, before anybody grows; and if the job
//! cannot keep its fewest slots otherwise, for one on which another job has begun nothing yet and that does not avoid it. Where all are trained on, a job that
//! has more than its fewest, and is no more important, lets one go for it and has the avoided one instead ([`ask`]). Nobody loses what it was promised.
//!
//! The same for a member that straggles: where there is an idle slot it is replaced. If its link is why, and there is none, the job may go on without it.
//!
//! Each exchange takes one avoided slot out of the plans and puts none in, so exchanges end, and a second plan finds nothing to exchange.

use super::{Draft, bandwidth, generations, plan, proposals, slow_members};
use crate::limits::{EXCHANGE_WAIT_MS_MIN, EXCHANGED_AT_ONCE_MAX, SLOW_AVOID_MS_MIN};
use crate::state::{Active, Job, Slot, SlotKind, State};
use events_schema::fact::{AvoidCause, PlanCause, PlanReason};
use events_schema::{ExecutorId, JobId, ServerId, SlotId, TimeMs};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Exchanges slots that their jobs avoid, as far as there are others.
pub(super) fn exchange(draft: &mut Draft<'_>) {
    replace_stragglers(draft);
    let avoids = |(id, job): &(&JobId, &Job)| left(&draft.state, id, job, draft.at).is_some();
    let due: Vec<JobId> = draft.state.placed_jobs().filter(avoids).map(|(id, _)| id.clone()).collect();
    if due.is_empty() {
        return;
    }
    let mut idle = idle(&draft.state);
    let (mut done, mut known) = (0, None);
    // What one leaves another may take.
    while known != Some(done) {
        known = Some(done);
        for id in &due {
            while done < EXCHANGED_AT_ONCE_MAX && (for_idle(draft, id, &mut idle) || for_anothers(draft, id)) {
                done += 1;
            }
        }
    }
}

/// A slot that its job avoids and that it has nothing on any more, but for what is to stop there at once. None of a job whose slots are not to change now.
fn left(state: &State, id: &JobId, job: &Job, at: TimeMs) -> Option<SlotId> {
    if job.avoided.is_empty() || !may_change(state, id, job) {
        return None;
    }
    let gone = |slot: &&SlotId| {
        let executor = state.slot(slot).and_then(|known| known.executor.as_ref());
        let executor = executor.and_then(|number| state.executor(number));
        executor.is_none_or(|executor| executor.leaving.is_some_and(|leaving| leaving.at_once()))
    };
    job.slots().iter().filter(|slot| job.avoids(slot, at) && is_fit(state, slot)).find(gone).cloned()
}

/// Whether a job begins or goes on where its plan says. The program of a gang that runs is on all of its slots.
fn may_change(state: &State, id: &JobId, job: &Job) -> bool {
    plan::is_planned(state, id, job) && !job.slots().is_empty() && (job.spec.gang().is_none() || job.active().is_none())
}

/// Whether something can be started on a slot.
fn is_fit(state: &State, slot: &SlotId) -> bool {
    state.is_present(slot) && state.slot(slot).is_some_and(|known| known.is_lent() && known.unfit().is_none())
}

/// All idle slots by their kind.
fn idle(state: &State) -> BTreeMap<SlotKind, BTreeSet<SlotId>> {
    let mut idle: BTreeMap<SlotKind, BTreeSet<SlotId>> = BTreeMap::new();
    for (server, of) in state.noted_slots().servers() {
        for (kind, places) in of.idle_by_kind() {
            let slots = places.iter().map(|index| SlotId { server: server.clone(), index });
            idle.entry(kind).or_default().extend(slots);
        }
    }
    idle
}

/// What a job gets rather than others: a slot of a server on which it avoids none, then of one on which it has others.
fn fitness(job: &Job, at: TimeMs, slot: &SlotId) -> (bool, bool, SlotId) {
    let is_of = |server: &ServerId, other: &SlotId| other.server == *server;
    let suspect = job.avoided.keys().any(|other| is_of(&slot.server, other) && job.avoids(other, at));
    let near = job.slots().iter().any(|other| is_of(&slot.server, other));
    (suspect, !near, slot.clone())
}

/// A member that the others wait for, though it hosts as few ranks as it can, goes for an idle slot, if there is one for it on a server of which nothing speaks
/// against: what makes a slot slow makes its neighbours slow. Its own is avoided for a while.
fn replace_stragglers(draft: &mut Draft<'_>) {
    let waits = |(_, job): &(&JobId, &Job)| !job.stragglers.is_empty();
    let due: Vec<JobId> = draft.state.placed_jobs().filter(waits).map(|(id, _)| id.clone()).collect();
    if due.is_empty() {
        return;
    }
    let (mut idle, mut done) = (idle(&draft.state), 0);
    for id in due {
        if done == EXCHANGED_AT_ONCE_MAX {
            return;
        }
        if replace_straggler(draft, &id, &mut idle) {
            done += 1;
        } else {
            slow_members::let_go(draft, &id);
        }
    }
}

fn replace_straggler(draft: &mut Draft<'_>, id: &JobId, idle: &mut BTreeMap<SlotKind, BTreeSet<SlotId>>) -> bool {
    let Some(job) = draft.state.job(id) else { return false };
    let Some(slot) = straggles(&draft.state, id, job) else { return false };
    let Some(of_kind) = draft.state.kind(&slot).and_then(|kind| idle.get_mut(&kind)) else { return false };
    let slow = bandwidth::passed_over(&draft.state, draft.at, id, job);
    let elsewhere = of_kind.iter().filter(|other| other.server != slot.server && !slow.contains(&other.server));
    let fit = elsewhere.map(|other| fitness(job, draft.at, other)).filter(|(suspect, ..)| !suspect);
    let Some((.., other)) = fit.min() else { return false };
    of_kind.remove(&other);
    generations::avoid_slot(draft, id, slot.clone(), AvoidCause::Slow, SLOW_AVOID_MS_MIN);
    put(draft, id, &slot, other, None);
    true
}

/// The slot of a member that straggles, where the job's members are in force together and nothing else about them is changing.
fn straggles(state: &State, id: &JobId, job: &Job) -> Option<SlotId> {
    let active = job.active().filter(|_| is_settled(state, id, job) && !proposals::is_unbalanced(state, id))?;
    let slot_of = |number: &ExecutorId| state.executor(number).filter(|executor| executor.leaving.is_none());
    let known = job.stragglers.keys().filter(|number| active.members.contains(*number));
    known.filter_map(slot_of).map(|executor| executor.slot.clone()).find(|slot| job.slots().contains(slot))
}

/// Whether several members are in force together, on all of the job's slots, and nothing else about them is changing.
pub(super) fn is_settled(state: &State, id: &JobId, job: &Job) -> bool {
    let all = |active: &Active| active.members.len() == job.slots().len() && active.members.len() > 1;
    let no_other = job.placement().is_some_and(|placement| placement.proposed.is_none());
    job.active().is_some_and(all) && no_other && may_change(state, id, job)
}

fn for_idle(draft: &mut Draft<'_>, id: &JobId, idle: &mut BTreeMap<SlotKind, BTreeSet<SlotId>>) -> bool {
    let Some(job) = draft.state.job(id) else { return false };
    let Some(slot) = left(&draft.state, id, job, draft.at) else { return false };
    let Some(of_kind) = draft.state.kind(&slot).and_then(|kind| idle.get_mut(&kind)) else { return false };
    let slow = bandwidth::passed_over(&draft.state, draft.at, id, job);
    let usable = of_kind.iter().filter(|other| !job.avoids(other, draft.at) && !slow.contains(&other.server));
    let Some(other) = usable.min_by_key(|other| fitness(job, draft.at, other)).cloned() else { return false };
    of_kind.remove(&other);
    put(draft, id, &slot, other, Some(PlanCause::Lost));
    if draft.state.slot(&slot).is_some_and(Slot::is_idle) {
        of_kind.insert(slot);
    }
    true
}

/// One that another job was just planned on and that it has begun nothing on.
fn for_anothers(draft: &mut Draft<'_>, id: &JobId) -> bool {
    let Some((slot, kind)) = needs(draft, id) else { return false };
    let Some(job) = draft.state.job(id) else { return false };
    let (state, at) = (&draft.state, draft.at);
    let is_empty = |other: &&SlotId| state.slot(other).is_some_and(|known| known.executor.is_none());
    // What is to stop there at once is still there, and the other job gets the slot now.
    if !is_empty(&&slot) {
        return false;
    }
    let is_for_both =
        |other: &SlotId| state.kind(other) == Some(kind) && is_fit(state, other) && !job.avoids(other, at);
    let found = others(draft, id).filter(|(_, owner)| !owner.avoids(&slot, at)).flat_map(|(owner_id, owner)| {
        let slots = owner.slots().iter().filter(is_empty).filter(|other| is_for_both(other));
        slots.map(move |other| ((owner.spec.priority, Reverse(owner.arrival)), fitness(job, at, other), owner_id))
    });
    let Some((_, (.., other), owner)) = found.min() else { return false };
    let owner = owner.clone();
    put(draft, id, &slot, other.clone(), Some(PlanCause::Lost));
    put(draft, &owner, &other, slot, None);
    true
}

/// Has a job that trains on more than its fewest slots let one go for a job that cannot begin otherwise, if none is on its way to be free already. It is
/// exchanged when it is free, before anybody grows, and the policy gives the other job the one that is avoided.
pub(super) fn ask(draft: &mut Draft<'_>) {
    let in_need = |(id, job): &(&JobId, &Job)| !job.avoided.is_empty() && needs(draft, id).is_some();
    let due: Vec<JobId> = draft.state.placed_jobs().filter(in_need).map(|(id, _)| id.clone()).collect();
    let mut awaited: BTreeSet<SlotId> = BTreeSet::new();
    for id in due.iter().take(EXCHANGED_AT_ONCE_MAX) {
        let Some((slot, kind)) = needs(draft, id) else { continue };
        let Some(job) = draft.state.job(id) else { continue };
        let (state, at) = (&draft.state, draft.at);
        if job.avoided.get(&slot).is_none_or(|pause| pause.until.since_ms(at) < EXCHANGE_WAIT_MS_MIN) {
            continue;
        }
        let usable = |other: &SlotId| state.kind(other) == Some(kind) && is_fit(state, other) && !job.avoids(other, at);
        let leaves = |(other, known): &(&SlotId, &Slot)| {
            known.job.is_none() && known.executor.is_some() && usable(other) && !awaited.contains(*other)
        };
        if let Some((other, _)) = state.slots().find(leaves) {
            awaited.insert(other.clone());
            continue;
        }
        let spares = |(_, owner): &(&JobId, &Job)| {
            let trains_on = owner.slots().iter().filter(|slot| stays(state, slot)).count();
            trains_on > usize::from(owner.spec.executors().min) && owner.spec.priority <= job.spec.priority
        };
        let found = others(draft, id).filter(spares).flat_map(|(owner_id, owner)| {
            let slots = owner.slots().iter().filter(|other| usable(other) && stays(state, other));
            let worth = move |other| plan::worth(state, owner, other);
            let slots = slots.filter(move |other| worth(other) < plan::WORTH_OF_LEADER);
            let order = (owner.spec.priority, Reverse(owner.arrival));
            slots.map(move |other| (order, worth(other), fitness(job, at, other), owner_id))
        });
        let Some((_, _, (.., other), owner)) = found.min() else { continue };
        let owner = owner.clone();
        let mut slots = draft.state.job(&owner).map(|owner| owner.slots().clone()).unwrap_or_default();
        slots.remove(&other);
        let reason = PlanReason { cause: PlanCause::GaveWay, ..reason(draft, &owner) };
        plan::adopt_slots(draft, &owner, slots, reason);
        awaited.insert(other);
    }
}

/// The slot that a job avoids and that it cannot do without, and its kind.
fn needs(draft: &Draft<'_>, id: &JobId) -> Option<(SlotId, SlotKind)> {
    let (state, at) = (&draft.state, draft.at);
    let job = state.job(id)?;
    let slot = left(state, id, job, at)?;
    let usable = job.slots().iter().filter(|slot| !job.avoids(slot, at) && is_fit(state, slot)).count();
    let kind = state.kind(&slot)?;
    (usable < usize::from(job.spec.executors().min)).then_some((slot, kind))
}

/// Other jobs whose slots may change.
fn others<'a>(draft: &'a Draft<'_>, id: &'a JobId) -> impl Iterator<Item = (&'a JobId, &'a Job)> {
    let state = &draft.state;
    let others = state.placed.keys().filter(move |other| *other != id);
    others.filter_map(|other| Some((other, state.job(other)?))).filter(|(other, job)| may_change(state, other, job))
}

fn stays(state: &State, slot: &SlotId) -> bool {
    let executor = state.slot(slot).and_then(|known| known.executor.as_ref());
    executor.and_then(|number| state.executor(number)).is_some_and(|executor| executor.leaving.is_none())
}

/// Why a job has what it has.
fn reason(draft: &Draft<'_>, id: &JobId) -> PlanReason {
    let known = draft.state.job(id).and_then(|job| job.reason.clone());
    let (policy, cause) = (draft.policy.to_owned(), PlanCause::Guarantee);
    known.unwrap_or(PlanReason { policy, cause, waits: None })
}

/// Plans a job on a slot instead of another. Without a cause, why it has its slots is what it was.
fn put(draft: &mut Draft<'_>, id: &JobId, instead_of: &SlotId, slot: SlotId, cause: Option<PlanCause>) {
    let Some(job) = draft.state.job(id) else { return };
    let known = reason(draft, id);
    let reason = PlanReason { cause: cause.unwrap_or(known.cause), ..known };
    let mut slots = job.slots().clone();
    slots.remove(instead_of);
    slots.insert(slot);
    plan::adopt_slots(draft, id, slots, reason);
}

#[cfg(test)]
mod tests;
