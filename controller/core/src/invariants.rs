//! What always holds, as named functions: checked after every event in tests and in the simulator, counted in production.
//!
//! [`check`] looks at one state, [`check_step`] at two in a row. They hold between inputs, not between the facts of one input.

use crate::limits::RECLAIM_GRACE_MS;
use crate::state::{Job, JobPhase, Slot, SlotState, State};
use events_schema::fact::Proposal;
use events_schema::{Digest, JobId, Rank, SlotId};
use std::collections::{BTreeMap, BTreeSet};

/// A broken invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Its name, as in [`INVARIANTS`] or [`STEP_INVARIANTS`].
    pub invariant: &'static str,
    /// Who broke it, and how.
    pub detail: String,
}

type Check = fn(&State, &mut Vec<String>);
type StepCheck = fn(&State, &State, &mut Vec<String>);

/// Every invariant of a state.
pub const INVARIANTS: [(&str, Check); 11] = [
    ("a slot has at most one owner", slot_has_one_owner),
    ("no slot is used outside a loan", used_only_on_loan),
    ("no plan exceeds capacity", no_plan_beyond_capacity),
    ("a job below its guarantee is queued or gives everything back", guarantee_is_kept),
    ("a fleet lends no more than it can spare", lends_what_it_can_spare),
    ("a reclaimed slot is free by its deadline", reclaimed_in_time),
    ("every accepted job is in exactly one phase", one_phase),
    ("the ranks of a generation cover 0..W once", ranks_are_covered),
    ("generations are numbered upwards", generations_ascend),
    ("checkpoints ascend and are bounded", checkpoints_are_bounded),
    ("a job runs on one numeric class", one_class),
];

/// Every invariant of a step from one state to the next.
pub const STEP_INVARIANTS: [(&str, StepCheck); 3] = [
    ("a terminal job never changes", terminal_never_changes),
    ("a generation never goes back", generation_never_goes_back),
    ("an executor's number is never used again", numbers_are_not_reused),
];

/// All invariants of a state; empty when they hold.
#[must_use]
pub fn check(state: &State) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (invariant, check) in INVARIANTS {
        let mut details = Vec::new();
        check(state, &mut details);
        violations.extend(details.into_iter().map(|detail| Violation { invariant, detail }));
    }
    violations
}

/// All invariants of a step; empty when they hold.
#[must_use]
pub fn check_step(before: &State, after: &State) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (invariant, check) in STEP_INVARIANTS {
        let mut details = Vec::new();
        check(before, after, &mut details);
        violations.extend(details.into_iter().map(|detail| Violation { invariant, detail }));
    }
    violations
}

fn slot_has_one_owner(state: &State, broken: &mut Vec<String>) {
    let mut planned: BTreeMap<&SlotId, &JobId> = BTreeMap::new();
    for (id, job) in state.jobs() {
        for slot in job.slots() {
            if let Some(other) = planned.insert(slot, id) {
                broken.push(format!("{slot} is planned for {other} and {id}"));
            }
        }
    }
    for (id, slot) in state.slots() {
        if planned.get(id).copied() != slot.job.as_ref() {
            broken.push(format!("{id} says {:?}, plans say {:?}", slot.job, planned.get(id)));
        }
        if let Some(number) = &slot.executor
            && state.executor(number).is_none_or(|executor| executor.slot != *id)
        {
            broken.push(format!("{id} has {number}, which is not there"));
        }
        let (job, executor) = (slot.job.as_ref(), slot.executor.as_ref().map(|number| &number.job));
        if let (Some(job), Some(executor)) = (job, executor)
            && job != executor
        {
            broken.push(format!("{id} is planned for {job} with {executor} still on it"));
        }
    }
    for (number, executor) in state.executors() {
        if state.slot(&executor.slot).and_then(|slot| slot.executor.as_ref()) != Some(number) {
            broken.push(format!("{number} is on {}, which does not have it", executor.slot));
        }
    }
}

fn used_only_on_loan(state: &State, broken: &mut Vec<String>) {
    for (id, slot) in state.slots() {
        let legal = match slot.state {
            SlotState::Unoffered | SlotState::Offered => slot.job.is_none() && slot.executor.is_none(),
            SlotState::Borrowed => slot.fleet.is_some(),
            // A reclaimed slot is in no plan; without an executor it would have been returned, if its agent were there to know.
            SlotState::Reclaimed { .. } => slot.job.is_none() && (slot.executor.is_some() || is_away(state, id)),
        };
        if !legal {
            broken.push(format!("{id}: {slot:?}"));
        }
        let declared = |fleet| state.fleet(fleet).is_some_and(|fleet| fleet.slots.binary_search(id).is_ok());
        if slot.fleet.as_ref().is_some_and(|fleet| !declared(fleet)) {
            broken.push(format!("{id} is not declared by {:?}", slot.fleet));
        }
    }
}

fn no_plan_beyond_capacity(state: &State, broken: &mut Vec<String>) {
    let lent = state.slots().filter(|(id, slot)| slot.is_lent() && state.is_present(id)).count();
    let planned: usize = state.live.iter().map(|(_, job)| job.slots().len()).sum();
    if planned > lent {
        broken.push(format!("{planned} slots planned, {lent} lent"));
    }
    for (id, job) in state.live.iter() {
        if job.slots().len() > usize::from(job.spec.workers.max) {
            broken.push(format!("{id} has {} slots for {} workers", job.slots().len(), job.spec.workers.max));
        }
        if let Some(absent) = job.slots().iter().find(|slot| !state.is_present(slot)) {
            broken.push(format!("{id} is planned on {absent}, whose server is away"));
        }
    }
}

fn guarantee_is_kept(state: &State, broken: &mut Vec<String>) {
    for (id, job) in state.live.iter() {
        let planned = job.slots().len();
        let runs = matches!(job.phase, JobPhase::Starting(_) | JobPhase::Running(..));
        if runs && planned > 0 && planned < usize::from(job.spec.workers.min) {
            broken.push(format!("{id} has {planned} slots, its minimum is {}", job.spec.workers.min));
        }
        if runs && planned == 0 && state.executors_of(id).next().is_none() {
            broken.push(format!("{id} has nothing and is not queued"));
        }
    }
}

fn lends_what_it_can_spare(state: &State, broken: &mut Vec<String>) {
    for (id, fleet) in state.fleets() {
        let lent = fleet.slots.iter().filter(|id| state.slot(id).is_some_and(Slot::is_lent)).count();
        if lent != fleet.lent {
            broken.push(format!("{id} lends {lent}, counted are {}", fleet.lent));
        }
        if fleet.sequence.is_some() && lent > fleet.lendable() {
            broken.push(format!("{id} lends {lent}, needs {} of {}", fleet.needed, fleet.slots.len()));
        }
    }
}

/// Whether the slot's agent was given up: only an agent can say that a slot is free.
fn is_away(state: &State, slot: &SlotId) -> bool {
    state.server(&slot.server).is_some_and(|server| !server.connected)
}

fn reclaimed_in_time(state: &State, broken: &mut Vec<String>) {
    for (id, slot) in state.slots() {
        if let SlotState::Reclaimed { deadline, .. } = slot.state
            && state.at() > deadline.plus_ms(RECLAIM_GRACE_MS)
            && !is_away(state, id)
        {
            broken.push(format!("{id} was to be free by {deadline}, it is {}", state.at()));
        }
    }
}

fn one_phase(state: &State, broken: &mut Vec<String>) {
    for (id, job) in state.jobs() {
        let (terminal, placed) = (job.phase.is_terminal(), state.placed.contains(id));
        let filed = (state.live.contains(id), state.ended.contains(id));
        if filed != (!terminal, terminal) || placed != job.placement().is_some() {
            broken.push(format!("{id} is {}, filed as live and ended {filed:?}, placed {placed}", job.phase.name()));
        }
    }
    if state.ends.len() != state.ended.len() {
        broken.push(format!("{} ended jobs, {} ends", state.ended.len(), state.ends.len()));
    }
}

/// The memberships a job has: the one in force, the one proposed, those given up.
fn proposals(job: &Job) -> impl Iterator<Item = &Proposal> {
    let placement = job.placement().into_iter().flat_map(|p| p.proposed.iter().chain(&p.abandoned));
    job.active().map(|active| &active.proposal).into_iter().chain(placement)
}

fn ranks_are_covered(state: &State, broken: &mut Vec<String>) {
    for (id, job) in state.live.iter() {
        for proposal in proposals(job) {
            let mut ranks: Vec<Rank> =
                proposal.members.iter().flat_map(|member| member.ranks.iter().copied()).collect();
            ranks.sort_unstable();
            let sorted = proposal.members.is_sorted_by(|a, b| a.executor < b.executor);
            let led = proposal.members.iter().any(|member| member.executor == proposal.leader);
            if !ranks.into_iter().eq((0..job.spec.workers.max).map(Rank)) || !sorted || !led {
                broken.push(format!("{id}: {proposal:?}"));
            }
        }
    }
}

fn generations_ascend(state: &State, broken: &mut Vec<String>) {
    for (id, job) in state.live.iter() {
        let active = job.active().map(|active| active.proposal.generation);
        let newer =
            job.placement().into_iter().flat_map(|p| p.abandoned.iter().chain(&p.proposed)).map(|p| p.generation);
        let all: Vec<_> = active.into_iter().chain(newer).collect();
        if !all.is_sorted_by(|a, b| a < b) || all.last().is_some_and(|last| *last > job.generation) {
            broken.push(format!("{id}: {all:?}, highest {}", job.generation));
        }
    }
}

fn checkpoints_are_bounded(state: &State, broken: &mut Vec<String>) {
    for (id, job) in state.live.iter() {
        let ascend = job.checkpoints.is_sorted_by(|a, b| a.step <= b.step);
        if !ascend || job.checkpoints.len() > job.spec.checkpoint.keep.max(1) as usize {
            broken.push(format!("{id} keeps {}: {:?}", job.spec.checkpoint.keep, job.checkpoints));
        }
    }
}

fn one_class(state: &State, broken: &mut Vec<String>) {
    for (id, job) in state.live.iter() {
        let of_slots = job.slots().iter().filter_map(|slot| state.server(&slot.server)).map(|server| server.class);
        let classes: BTreeSet<Digest> = of_slots.chain(job.class.filter(|_| !job.slots().is_empty())).collect();
        if classes.len() > 1 {
            broken.push(format!("{id} is planned on {classes:?}"));
        }
    }
}

fn terminal_never_changes(before: &State, after: &State, broken: &mut Vec<String>) {
    for (id, job) in before.jobs().filter(|(_, job)| job.phase.is_terminal()) {
        if after.job(id).is_some_and(|now| now.phase != job.phase || now.generation != job.generation) {
            broken.push(format!("{id} was {}", job.phase.name()));
        }
    }
}

fn generation_never_goes_back(before: &State, after: &State, broken: &mut Vec<String>) {
    for (id, job) in before.jobs() {
        let Some(now) = after.job(id) else { continue };
        let active = |job: &Job| job.active().map(|active| active.proposal.generation);
        let back = matches!((active(job), active(now)), (Some(was), Some(is)) if is < was);
        if now.generation < job.generation || back {
            broken.push(format!("{id}: {} to {}", job.generation, now.generation));
        }
    }
}

fn numbers_are_not_reused(before: &State, after: &State, broken: &mut Vec<String>) {
    for (number, _) in after.executors().filter(|(number, _)| before.executor(number).is_none()) {
        if before.job(&number.job).is_some_and(|job| number.number < job.executors_numbered) {
            broken.push(format!("{number} was used before"));
        }
    }
}
