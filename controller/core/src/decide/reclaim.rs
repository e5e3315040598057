//! Slots go back: at once, whatever the cadence of plans. The path that must be fast.
//!
//! Which ones, when the fleet names none, is for `victims.rs` to say.
//! A job that cannot keep its minimum gives back everything: it writes a checkpoint within the deadline if it can, and waits.

use super::idle::Idle;
use super::{Draft, fleets::hand_back_of_present, plan, victims};
use crate::limits::RECLAIM_DEADLINE_MS_MAX;
use crate::policy::{Packing, policy_by_name};
use crate::state::{JobPhase, Slot, SlotKind, SlotState};
use events_schema::fact::{Fact, PlanCause, PlanReason, ReclaimCause, WaitCause};
use events_schema::job::Types;
use events_schema::{FleetId, JobId, ServerId, SlotId, TimeMs};
use std::collections::{BTreeMap, BTreeSet};

/// Reclaims what a fleet lends beyond what its need allows, or what is held of it while it is recalled.
pub(super) fn surplus(draft: &mut Draft<'_>, id: &FleetId) {
    let Some(fleet) = draft.state.fleet(id) else { return };
    let cause = if fleet.held() > fleet.needs() { ReclaimCause::Recall } else { ReclaimCause::Demand };
    let count = fleet.lent.saturating_sub(fleet.lendable_by_name());
    if count > 0 {
        let who = policy_by_name(draft.policy).map(|policy| policy.victims()).unwrap_or_default();
        let slots = victims::choose(&draft.state, &fleet.slots, count, who);
        take_back(draft, id, &slots, cause);
    }
}

/// Whether a slot goes back for itself, and not for a number of slots that its fleet needs or is likely to.
fn is_by_name(cause: ReclaimCause) -> bool {
    match cause {
        ReclaimCause::Named | ReclaimCause::Direct | ReclaimCause::Undeclared => true,
        ReclaimCause::Demand | ReclaimCause::Recall | ReclaimCause::Forecast => false,
    }
}

/// Whether a slot that goes back is lent again if its fleet needs fewer by the time it is free. One that goes early is not: it would come and go for ever,
/// with nobody saying anything.
pub(super) fn is_lent_again(cause: ReclaimCause) -> bool {
    match cause {
        ReclaimCause::Demand | ReclaimCause::Recall => true,
        ReclaimCause::Named | ReclaimCause::Direct | ReclaimCause::Undeclared | ReclaimCause::Forecast => false,
    }
}

/// Reclaims these slots of a fleet, as far as they are lent: plans go on without them, and idle ones are returned at once.
pub(super) fn take_back(draft: &mut Draft<'_>, id: &FleetId, slots: &[SlotId], cause: ReclaimCause) {
    let deadline_ms = draft.state.fleet(id).map_or(0, |fleet| fleet.reclaim_deadline_ms);
    let asked = Asked { deadline: draft.at.plus_ms(deadline_ms), cause, at: None, seen_at: draft.at };
    have_back(draft, slots, asked);
}

/// The same for a slot whose fleet asked its agent for it, which has told since when and within what time, unless it is of an earlier build, and
/// saw it done at `seen_at`.
pub(super) fn taken_back(
    draft: &mut Draft<'_>,
    id: &FleetId,
    slot: &SlotId,
    asked_at: Option<TimeMs>,
    within_ms: Option<u64>,
    seen_at: TimeMs,
) {
    let usual_ms = draft.state.fleet(id).map_or(0, |fleet| fleet.reclaim_deadline_ms);
    let within_ms = within_ms.map_or(usual_ms, |within_ms| within_ms.min(RECLAIM_DEADLINE_MS_MAX));
    let deadline = asked_at.unwrap_or(draft.at).plus_ms(within_ms);
    let asked = Asked { deadline, cause: ReclaimCause::Direct, at: asked_at, seen_at };
    // Its job's leader said before that it was taken back, and knew no more.
    let known = draft.state.slot(slot);
    let since = known.filter(|known| matches!(known.state, SlotState::Reclaimed { cause: ReclaimCause::Direct, .. }));
    let since = since.and_then(|known| known.reclaimed_at);
    if since.zip(asked_at).is_some_and(|(since, asked_at)| asked_at < since) {
        say_again(draft, slot, asked);
        return;
    }
    have_back(draft, std::slice::from_ref(slot), asked);
}

/// What is asked of slots.
#[derive(Clone, Copy)]
struct Asked {
    deadline: TimeMs,
    cause: ReclaimCause,
    /// Since when, if that was before now.
    at: Option<TimeMs>,
    /// Since when those are free that nobody is on.
    seen_at: TimeMs,
}

fn have_back(draft: &mut Draft<'_>, slots: &[SlotId], asked: Asked) {
    claim_those_on_their_way(draft, slots, asked);
    let known = slots.iter().zip(draft.state.slots.each(slots.iter()));
    // One that its fleet has early and now asks for by name is its own until it needs less, as any other.
    let goes_back = |known: &(&SlotId, Option<&Slot>)| {
        known.1.is_some_and(|slot| slot.is_lent() || slot.has_ahead() && is_by_name(asked.cause))
    };
    let lent: Vec<&SlotId> = known.filter(goes_back).map(|(slot, _)| slot).collect();
    // Those that nobody is on are back at once, which is a second fact of each.
    draft.facts.reserve(2 * lent.len());
    draft.emit_of_each(&lent, |slot, known| reclaimed(slot, known, asked));
    withdraw(draft, lent.iter().copied(), PlanCause::Reclaimed);
    let guests: Vec<SlotId> = match draft.state.guests.is_empty() {
        true => Vec::new(),
        false => lent.iter().map(|slot| slot.guest()).filter(|guest| draft.state.guests.contains(guest)).collect(),
    };
    withdraw(draft, guests.iter(), PlanCause::Reclaimed);
    let (mut left, mut there) = (Vec::new(), Vec::with_capacity(lent.len()));
    // Slots of a server stand side by side.
    let mut last: Option<(&ServerId, bool)> = None;
    for (slot, known) in lent.iter().copied().zip(draft.state.slots.each(lent.iter().copied())) {
        let executor = known.and_then(|known| known.executor.as_ref());
        left.extend(executor.map(|executor| executor.job.clone()));
        let server = last.filter(|(server, _)| **server == slot.server);
        let (_, away) = *last.insert(server.unwrap_or_else(|| (&slot.server, draft.state.is_away(&slot.server))));
        if !away {
            there.push(slot);
        }
    }
    let on_guests = guests.iter().filter_map(|guest| draft.state.slot(guest)?.executor.as_ref());
    left.extend(on_guests.map(|executor| executor.job.clone()));
    // An executor that the plan let go already has to be faster now.
    left.iter().for_each(|job| draft.touch(job));
    hand_back_of_present(draft, &there, asked.seen_at);
}

fn reclaim(draft: &mut Draft<'_>, slot: &SlotId, asked: Asked) {
    draft.emit_of_each(&[slot], |slot, known| reclaimed(slot, known, asked));
}

fn reclaimed(slot: &SlotId, known: &Slot, asked: Asked) -> Fact {
    let Asked { deadline, cause, at: asked_at, .. } = asked;
    let (fleet, job) = (known.fleet.clone(), known.job.clone());
    Fact::SlotReclaimed { slot: slot.clone(), deadline, cause, fleet, job, asked_at }
}

/// Slots that are going back because of a need would be offered again if it fell meanwhile; not those that their fleet also
/// asked for by name.
fn claim_those_on_their_way(draft: &mut Draft<'_>, slots: &[SlotId], asked: Asked) {
    if !is_by_name(asked.cause) {
        return;
    }
    for slot in slots {
        let Some(known) = draft.state.slot(slot) else { continue };
        let SlotState::Reclaimed { deadline: earlier, cause: before } = known.state else { continue };
        if is_by_name(before) {
            continue;
        }
        say_again(draft, slot, Asked { deadline: earlier.min(asked.deadline), ..asked });
    }
}

/// Of a slot that is on its way: whoever is on it may have to be faster.
fn say_again(draft: &mut Draft<'_>, slot: &SlotId, asked: Asked) {
    let on = |place: &SlotId| Some(draft.state.slot(place)?.executor.as_ref()?.job.clone());
    let jobs = [on(slot), on(&slot.guest())];
    reclaim(draft, slot, asked);
    jobs.iter().flatten().for_each(|job| draft.touch(job));
}

/// Takes slots out of the plans that have them. A job that would fall below its minimum gets idle slots instead, or gives
/// everything back.
pub(super) fn withdraw<'s>(draft: &mut Draft<'_>, slots: impl Iterator<Item = &'s SlotId> + Clone, cause: PlanCause) {
    let mut by_job: BTreeMap<JobId, BTreeSet<SlotId>> = BTreeMap::new();
    for (slot, known) in slots.clone().zip(draft.state.slots.each(slots)) {
        let known = known.or_else(|| draft.state.guests.get(slot));
        if let Some(job) = known.and_then(|known| known.job.clone()) {
            by_job.entry(job).or_default().insert(slot.clone());
        }
    }
    // For the fewest slots of a job any will do, whatever their links.
    let (mut idle, none) = (None, BTreeSet::new());
    for (id, lost) in by_job {
        let Some(job) = draft.state.job(&id) else { continue };
        let bounds = job.spec.executors();
        let (min, max) = (usize::from(bounds.min), usize::from(bounds.max));
        let suspending = matches!(job.phase, JobPhase::Suspending(..));
        let mut next: BTreeSet<SlotId> = job.slots().difference(&lost).cloned().collect();
        if next.len() < min && !suspending {
            let missing = min - next.len();
            let kind = next.iter().chain(&lost).find_map(|slot| draft.state.kind(slot));
            let bound = job.class.map(|class| SlotKind {
                class,
                device: job.spec.needs_device(),
                guest: false,
                slot_type: None,
            });
            // A slot that is lost because it is no device any more says nothing of what the job needs.
            let of = |kind: SlotKind| SlotKind {
                class: job.class.unwrap_or(kind.class),
                device: kind.device || job.spec.needs_device(),
                ..kind
            };
            let class = kind.map(of).or(bound);
            let idle = idle.get_or_insert_with(|| Idle::of(&draft.state, Packing::default()));
            // Rather of another type than not at all, if the job may.
            let others = idle
                .kinds()
                .into_iter()
                .filter(|kind| job.spec.types == Types::Any && class.is_some_and(|of| of.mixes_with(kind)));
            let kinds: Vec<SlotKind> = class.into_iter().chain(others.filter(|kind| Some(*kind) != class)).collect();
            let found = kinds.iter().map(|kind| idle.count(kind, &none)).sum::<usize>();
            if found < missing {
                next.clear();
            } else {
                for kind in kinds {
                    let missing = min.saturating_sub(next.len());
                    let taken = idle.take(&kind, missing, &next, missing, &none);
                    next.extend(taken);
                }
            }
        }
        let missing = (if next.is_empty() { min } else { max }).saturating_sub(next.len()) as u32;
        let waits = (missing > 0).then_some(WaitCause::Slots { missing });
        let reason = PlanReason { policy: draft.policy.to_owned(), cause: cause.clone(), waits };
        plan::adopt_slots(draft, &id, next, reason);
    }
}
