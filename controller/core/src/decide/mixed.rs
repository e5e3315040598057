//! Jobs that may be on slots of several types at once: what a view says of them, and how a share of several classes becomes slots. One class at a time is
//! `plan.rs`, which asks this for such jobs alone; which types go together is [`SlotKind::mixes_with`].

use super::Draft;
use super::idle::Idle;
use super::plan::{Problem, adopt_slots, cause_of_fewer, waits, worth};
use super::types::unit_us;
use crate::policy::{FASTEST_MILLI, Mixture, Part, Plan, View};
use crate::state::{Job, SlotKind, State};
use events_schema::SlotId;
use events_schema::fact::{PlanCause, PlanReason};
use events_schema::job::Types;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// What a job's plan has of each class, by its place among the kinds that are known.
fn held(state: &State, job: &Job, kinds: &[SlotKind]) -> Vec<u16> {
    let mut held = vec![0; kinds.len()];
    for kind in state.kinds(job.slots()) {
        if let Some(class) = kinds.iter().position(|known| *known == kind) {
            held[class] += 1;
        }
    }
    held
}

/// Whether a class is mostly of fleets that need some of their slots themselves. All slots of a fleet count as of the class of its first one.
fn note_wanted_back(problem: &mut Problem<'_>) {
    let mut wanted_back = vec![0u32; problem.kinds.len()];
    for (_, fleet) in problem.state.fleets().filter(|(_, fleet)| fleet.needs() > 0) {
        let first = fleet.slots.first().and_then(|slot| problem.state.kind(slot));
        if let Some(class) = first.and_then(|kind| problem.kinds.binary_search(&kind).ok()) {
            wanted_back[class] += fleet.slots.len() as u32;
        }
    }
    for (class, wanted_back) in problem.view.classes.iter_mut().zip(wanted_back) {
        class.wanted_back = wanted_back > class.declared / 2;
    }
}

/// Adds to a view what jobs that may be on several types have of each. A policy that does not mix is told of a job on several that all of it is of the class of
/// most, and there is as much more of that class, and less of the others: what it then lets go is of the others first.
pub(super) fn tell(problem: &mut Problem<'_>, mixes_types: bool) {
    for (index, (_, job)) in problem.jobs.iter().enumerate() {
        if job.spec.types == Types::One {
            continue;
        }
        let held = held(problem.state, job, &problem.kinds);
        let most = (0..held.len()).filter(|&class| held[class] > 0).max_by_key(|&class| (held[class], Reverse(class)));
        let view = &mut problem.view;
        view.jobs[index].class = most.or(view.jobs[index].class);
        if mixes_types {
            view.jobs[index].mixes = Some(view.mixtures.len());
            view.mixtures.push(mixture(problem.state, job, held, &problem.kinds));
        } else if let Some(most) = most {
            for (class, slots) in held.into_iter().enumerate().filter(|(class, _)| *class != most) {
                view.classes[most].capacity += u32::from(slots);
                view.classes[class].capacity = view.classes[class].capacity.saturating_sub(slots.into());
            }
        }
    }
    if !problem.view.mixtures.is_empty() {
        note_wanted_back(problem);
    }
}

fn mixture(state: &State, job: &Job, held: Vec<u16>, kinds: &[SlotKind]) -> Mixture {
    let units: Vec<u64> = kinds.iter().map(|kind| unit_us(state, job, kind.slot_type)).collect();
    let fastest = units.iter().copied().min().unwrap_or(1);
    let milli = |unit: &u64| (fastest.saturating_mul(u64::from(FASTEST_MILLI)) / unit).max(1) as u32;
    Mixture { held, speed_milli: units.iter().map(milli).collect() }
}

/// What a plan gives a job of each class.
fn wanted(plan: &Plan, index: usize) -> BTreeMap<usize, usize> {
    plan.by_class(index).iter().map(|part| (part.class, usize::from(part.slots))).collect()
}

/// Whether a plan gives a job more of any class.
pub(super) fn grows(view: &View, index: usize, plan: &Plan) -> bool {
    (0..view.classes.len()).any(|class| plan.given_of(index, class) > view.held_of(index, class))
}

/// A job's slots by class.
fn by_class(draft: &Draft<'_>, problem: &Problem<'_>, job: &Job) -> BTreeMap<Option<usize>, Vec<SlotId>> {
    let mut slots: BTreeMap<Option<usize>, Vec<SlotId>> = BTreeMap::new();
    for (slot, server) in draft.state.hosts(job.slots()) {
        let class = server.and_then(|server| problem.kinds.binary_search(&server.kind(slot.index)).ok());
        slots.entry(class).or_default().push(slot.clone());
    }
    slots
}

/// Whether a job has of no class more than it is given.
fn keeps_all(problem: &Problem<'_>, index: usize, plan: &Plan) -> bool {
    let view = &problem.view;
    let classes = || 0..view.classes.len();
    let known: usize = classes().map(|class| usize::from(view.held_of(index, class))).sum();
    let is_given = |class: usize| plan.given_of(index, class) >= view.held_of(index, class);
    known == problem.jobs[index].1.slots().len() && classes().all(is_given)
}

/// Lets go what a plan does not give a job of each class. What it gives instead is not there yet, so a job that goes on keeps its fewest meanwhile.
pub(super) fn shrink(draft: &mut Draft<'_>, problem: &Problem<'_>, index: usize, plan: &Plan) {
    let (id, job) = problem.jobs[index];
    // As most jobs in most plans; to look up each slot is most of what a plan takes where all jobs may be mixed.
    if keeps_all(problem, index, plan) {
        return;
    }
    let (wanted, share) = (wanted(plan, index), plan.shares[index]);
    let (mut kept, mut others) = (BTreeSet::new(), Vec::new());
    for (class, mut slots) in by_class(draft, problem, job) {
        slots.sort_by_key(|slot| Reverse(worth(&draft.state, job, slot)));
        let of_class = class.and_then(|class| wanted.get(&class)).copied().unwrap_or(0);
        let (stay, go) = slots.split_at(of_class.min(slots.len()));
        kept.extend(stay.iter().cloned());
        others.extend(go.iter().cloned());
    }
    if share.slots > 0 {
        let missing = usize::from(job.spec.executors().min).saturating_sub(kept.len());
        others.sort_by_key(|slot| Reverse(worth(&draft.state, job, slot)));
        kept.extend(others.into_iter().take(missing));
    }
    if kept.len() == job.slots().len() {
        return;
    }
    let (given, held) = (plan.by_class(index), problem.view.held_by_class(index));
    let is_as_fast =
        share.slots > 0 && problem.view.slowest_with(index, &given) <= problem.view.slowest_with(index, &held);
    let cause = if is_as_fast { PlanCause::Speed } else { cause_of_fewer(&problem.view, index, share) };
    let waits = waits(draft.at, problem, index, share, kept.len());
    let reason = PlanReason { policy: draft.policy.to_owned(), cause, waits };
    adopt_slots(draft, id, kept, reason);
}

/// Leaves of what was found for a job what makes it no faster, up to so many slots. What is passed over does not come free: without it a size may be no faster than a
/// smaller one, to which the next plan would go back.
fn let_waste_go(
    view: &View,
    index: usize,
    had: &BTreeMap<usize, usize>,
    found: &mut BTreeMap<usize, usize>,
    mut spare: usize,
) {
    let slowest_with = |found: &BTreeMap<usize, usize>| {
        let classes: BTreeSet<usize> = had.keys().chain(found.keys()).copied().collect();
        let of = |class: &usize| had.get(class).unwrap_or(&0) + found.get(class).unwrap_or(&0);
        let part = |class: &usize| Part { job: index, class: *class, slots: of(class) as u16 };
        view.slowest_with(index, &classes.iter().map(part).collect::<Vec<_>>())
    };
    for class in found.keys().rev().copied().collect::<Vec<_>>() {
        while spare > 0 && found[&class] > 0 {
            let fewer = BTreeMap::from_iter(found.iter().map(|(of, count)| (*of, count - usize::from(*of == class))));
            if slowest_with(&fewer) > slowest_with(found) {
                break;
            }
            *found = fewer;
            spare -= 1;
        }
    }
}

/// Gives a job more slots of each class of its share, as far as they are free by now.
pub(super) fn grow(draft: &mut Draft<'_>, problem: &Problem<'_>, index: usize, plan: &Plan, idle: &mut Idle) {
    let (id, _) = problem.jobs[index];
    let Some(job) = draft.state.job(id) else { return };
    // What the plan does not give it is let go when the others are there, so until then it may have more than its share.
    let (min, most) = (usize::from(job.spec.executors().min), usize::from(problem.view.jobs[index].max));
    let (had, mut slots) = (by_class(draft, problem, job), job.slots().clone());
    let had: BTreeMap<usize, usize> = had.into_iter().filter_map(|(class, of)| Some((class?, of.len()))).collect();
    let had_of = |class: usize| had.get(&class).copied().unwrap_or(0);
    let mut passed_over = problem.passed_over(draft.at, index);
    let free = |passed_over: &BTreeSet<_>| {
        let mut room = most.saturating_sub(slots.len());
        let of_class = |(class, wanted): (usize, usize)| {
            let missing = wanted.saturating_sub(had_of(class));
            let free = idle.count(&problem.kinds[class], passed_over).min(missing).min(room);
            room -= free;
            (class, free)
        };
        wanted(plan, index).into_iter().map(of_class).collect::<BTreeMap<usize, usize>>()
    };
    let count = |of: &BTreeMap<usize, usize>| slots.len() + of.values().sum::<usize>();
    let mut found = free(&passed_over);
    if count(&found) < min {
        // Rather slowly than not at all.
        passed_over = Rc::default();
        found = free(&passed_over);
    }
    if !passed_over.is_empty() && count(&found) < count(&free(&BTreeSet::new())) {
        let spare = count(&found).saturating_sub(min);
        let_waste_go(&problem.view, index, &had, &mut found, spare);
    }
    if count(&found) == slots.len() || count(&found) < min {
        return;
    }
    for (class, count) in found {
        let base = min.saturating_sub(slots.len());
        let taken = idle.take(&problem.kinds[class], count, &slots, base, &passed_over);
        slots.extend(taken);
    }
    if slots.len() == draft.state.job(id).map_or(0, |job| job.slots().len()) {
        return;
    }
    let cause = if slots.len() > min { PlanCause::Gain } else { PlanCause::Guarantee };
    let waits = waits(draft.at, problem, index, plan.shares[index], slots.len());
    let reason = PlanReason { policy: draft.policy.to_owned(), cause, waits };
    adopt_slots(draft, id, slots, reason);
}
