//! What no policy sees: a job whose spec asks for it (`profile`) is measured at several sizes before it settles.
//!
//! After each plan, whichever policy made it, a job that trains has another size than the plan says, if that costs nobody a slot: fewer slots than its own, or more
//! where the plan leaves slots idle. It keeps the size until that was measured (`throughput.rs`), for as long as its spec says at most; then comes the next one,
//! and no size is tried twice, so a profile ends. What it has beyond its plan goes as soon as any plan gives it to somebody, and is the first that a fleet takes
//! back (`victims.rs`).
//!
//! Policies take such a job to have what it had before, so that the slots that it lacks are still its own, and the others are idle. What was measured they read as
//! of any job, as a curve by size.

use super::Draft;
use super::idle::Idle;
use super::plan::{Problem, adopt_slots};
use crate::policy::{Plan, Policy, View};
use crate::state::{Job, JobPhase, State};
use events_schema::TimeMs;
use events_schema::fact::{PlanCause, PlanReason};
use std::cell::LazyCell;
use std::collections::BTreeMap;

/// Jobs that are to be measured at some size, by their place in the problem.
#[derive(Debug, Default)]
pub(super) struct Profiles {
    sizes: BTreeMap<usize, u16>,
    /// When the first of them has had its size for long enough.
    pub until: Option<TimeMs>,
}

/// What becomes of a job that is profiled.
#[derive(Debug, PartialEq, Eq)]
enum Stage {
    /// It keeps the size that it has until this time: its policy's, or the one that it is measured at.
    Keeps(TimeMs),
    /// It is to be measured at this size.
    Next(u16),
}

fn stage(state: &State, job: &Job, at: TimeMs) -> Option<Stage> {
    // Who trains a stretch once more has one size only.
    let profile = job.spec.profile.as_ref().filter(|_| job.spec.retrains.is_none() && state.measures_speeds())?;
    let JobPhase::Running(placement, active) = &job.phase else { return None };
    let held = placement.slots.len() as u16;
    let is_known = |size: u16| placement.step_us_by_size.contains_key(&size);
    let next = profile
        .sizes
        .iter()
        .copied()
        .find(|&size| size != held && !is_known(size) && !job.profiled.tried.contains_key(&size));
    let since = job.profiled_since();
    let until = since.unwrap_or(active.at).plus_ms(u64::from(profile.seconds) * 1_000);
    if !is_known(held) && at < until && (since.is_some() || next.is_some()) {
        return Some(Stage::Keeps(until));
    }
    let settled = placement.proposed.is_none() && active.members.len() == placement.slots.len();
    // One size after the other: a change that is under way comes first, unless its time is over.
    let may_change = settled || since.is_some();
    next.filter(|&size| may_change && (size < held || at >= job.growth.until)).map(Stage::Next)
}

/// The plan of a policy but for jobs that are measured, which have the sizes that they are measured at.
pub(super) fn plan(problem: &Problem<'_>, at: TimeMs, policy: &dyn Policy) -> (Plan, Profiles) {
    let wanted = Profiles::of(problem, at);
    let told = Profiles::told(problem);
    let mut plan = policy.plan(told.as_ref().unwrap_or(&problem.view));
    // Looked up only if anybody is to be measured.
    let idle = LazyCell::new(|| Idle::of(problem.state, policy.packing()));
    let free = |index: usize, class: usize| idle.count(&problem.kinds[class], &problem.passed_over(at, index));
    let profiles = Profiles { sizes: wanted.beside(&problem.view, &plan, free), until: wanted.until };
    for (&index, &size) in &profiles.sizes {
        plan.shares[index].slots = size;
    }
    (plan, profiles)
}

impl Profiles {
    /// Whether a job is measured, or given the size that it is to be measured at.
    pub fn has(&self, index: usize) -> bool {
        self.sizes.contains_key(&index)
    }

    /// Jobs that have slots, by their place in the problem: of all that wait none is measured, and a plan does not look at each of them for that.
    fn placed<'a>(problem: &'a Problem<'_>) -> impl Iterator<Item = (usize, &'a Job)> {
        let placed = problem.view.jobs.iter().zip(&problem.jobs).enumerate().filter(|(_, (view, _))| view.held > 0);
        placed.map(|(index, (_, (_, job)))| (index, *job))
    }

    fn of(problem: &Problem<'_>, at: TimeMs) -> Self {
        let mut profiles = Self::default();
        for (index, job) in Self::placed(problem).filter(|(_, job)| job.spec.profile.is_some()) {
            match stage(problem.state, job, at) {
                Some(Stage::Keeps(until)) => {
                    profiles.until = Some(profiles.until.map_or(until, |known| known.min(until)));
                    if job.profiled_since().is_some() {
                        profiles.sizes.insert(index, problem.view.jobs[index].held);
                    }
                }
                Some(Stage::Next(size)) => {
                    profiles.sizes.insert(index, size);
                }
                None => {}
            }
        }
        profiles
    }

    /// The view as policies are told it, if it is another one: jobs that are measured have what they had before, as far as that is still there.
    fn told(problem: &Problem<'_>) -> Option<View> {
        let profiled = |(index, job): (usize, &Job)| job.profiled_since().map(|_| (index, job.profiled.base));
        let profiled: Vec<(usize, u16)> = Self::placed(problem).filter_map(profiled).collect();
        if profiled.is_empty() {
            return None;
        }
        let mut view = problem.view.clone();
        let mut free: Vec<u32> = view.classes.iter().map(|class| class.capacity).collect();
        for job in &view.jobs {
            take(&mut free, job.class, job.held);
        }
        for (index, base) in profiled {
            let job = &mut view.jobs[index];
            job.held = as_before(&mut free, job.class, job.held, base);
        }
        Some(view)
    }

    /// Of the sizes those that cost nobody a slot of the plan, and for which there are slots that are `free` by now, so many for a job of each class.
    fn beside(&self, view: &View, plan: &Plan, free: impl Fn(usize, usize) -> usize) -> BTreeMap<usize, u16> {
        if self.sizes.is_empty() {
            return BTreeMap::new();
        }
        let mut idle: Vec<u32> = view.classes.iter().map(|class| class.capacity).collect();
        for part in (0..plan.shares.len()).flat_map(|job| plan.by_class(job)) {
            take(&mut idle, Some(part.class), part.slots);
        }
        let fits = |(&index, &size): (&usize, &u16)| {
            let share = &plan.shares[index];
            // Whom its policy stops, or moves, is not measured.
            let goes_on = share.slots > 0 && view.jobs[index].class == Some(share.class);
            let (extra, more) = (size.saturating_sub(share.slots), size.saturating_sub(view.jobs[index].held));
            // What its policy gives it anyhow is its own.
            let is_own = size == share.slots && size != view.jobs[index].held;
            if !goes_on
                || is_own
                || idle[share.class] < u32::from(extra)
                || more > 0 && free(index, share.class) < usize::from(more)
            {
                return None;
            }
            take(&mut idle, Some(share.class), extra);
            Some((index, size))
        };
        self.sizes.iter().filter_map(fits).collect()
    }
}

/// What a job is taken to have that had `base` slots before it was given `held`: those that it lacks are among the free ones.
fn as_before(free: &mut [u32], class: Option<usize>, held: u16, base: u16) -> u16 {
    let there = class.and_then(|class| free.get(class)).copied().unwrap_or(0);
    let lacks = base.saturating_sub(held).min(u16::try_from(there).unwrap_or(u16::MAX));
    take(free, class, lacks);
    base.min(held) + lacks
}

/// Takes slots of a class, as far as there are any.
fn take(free: &mut [u32], class: Option<usize>, slots: u16) {
    if let Some(free) = class.and_then(|class| free.get_mut(class)) {
        *free = free.saturating_sub(u32::from(slots));
    }
}

/// Says that what a job has is its plan's again, where it was measured on just as many.
pub(super) fn settle(draft: &mut Draft<'_>, problem: &Problem<'_>, index: usize, slots: u16) {
    let (id, job) = problem.jobs[index];
    // What it has is still what it had when the plan was made: it is none of those that lose slots.
    if slots == 0 || problem.view.jobs[index].held != slots || job.profiled_since().is_none() {
        return;
    }
    let cause = if slots > job.spec.executors().min { PlanCause::Gain } else { PlanCause::Guarantee };
    let waits = job.reason.as_ref().and_then(|reason| reason.waits.clone());
    let reason = PlanReason { policy: draft.policy.to_owned(), cause, waits };
    adopt_slots(draft, id, job.slots().clone(), reason);
}

#[cfg(test)]
mod tests;
