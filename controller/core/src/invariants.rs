//! What always holds, as named functions of one job, slot, executor or fleet, and of a step from one state to the next.
//!
//! [`check`] and [`check_step`] look at everything, after every input of tests; [`check_batch`] after every batch of the simulator.
//! [`check_changes`] looks only at what differs between two states and at what that is tied to: cheap enough to follow every batch in production. All hold between
//! inputs, not between the facts of one input.
//!
//! None of them knows how long a report may take. That a reclaimed slot really becomes free in time is for whoever watches clocks:
//! [`overdue`] lists those that did not.

use crate::state::{Executor, Fleet, Job, JobPhase, Server, Slot, SlotKind, SlotState, State};
use events_schema::fact::Proposal;
use events_schema::job::Types;
use events_schema::{ExecutorId, FleetId, JobId, Rank, SlotId, TimeMs};
use std::collections::BTreeSet;
use std::ops::Bound;

/// A broken invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Its name, as in [`names`].
    pub invariant: &'static str,
    /// Who broke it, and how.
    pub detail: String,
}

type Of<Id, T> = (&'static str, fn(&State, &Id, &T, &mut Vec<String>));
type Step<Id> = (&'static str, fn(&State, &State, &Id, &mut Vec<String>));
type Whole = (&'static str, fn(&State, &mut Vec<String>));

const OF_JOB: [Of<JobId, Job>; 6] = [
    ("a job below its guarantee is queued or gives everything back", guarantee_is_kept),
    ("every accepted job is in exactly one phase", one_phase),
    ("the ranks of a generation cover 0..W once", ranks_are_covered),
    ("a generation's batch is within its job's range", batch_is_in_range),
    ("generations are numbered upwards", generations_ascend),
    ("checkpoints ascend and are bounded", checkpoints_are_bounded),
];

/// Of a job and all its slots.
const OF_PLAN: [Of<JobId, Job>; 3] = [
    ("a slot has at most one owner", job_owns_its_slots),
    ("no plan exceeds capacity", no_plan_beyond_capacity),
    ("a job runs on one numeric class", one_class),
];

const OF_SLOT: [Of<SlotId, Slot>; 4] = [
    ("a slot has at most one owner", slot_has_one_owner),
    ("no slot is used outside a loan", used_only_on_loan),
    ("who is on a reclaimed slot has to leave by its deadline", reclaimed_is_being_left),
    ("a guest slot goes with its host", guest_goes_with_its_host),
];

const OF_EXECUTOR: [Of<ExecutorId, Executor>; 1] = [("a slot has at most one owner", executor_is_on_its_slot)];

const OF_FLEET: [Of<FleetId, Fleet>; 1] = [("a fleet lends no more than it can spare", lends_what_it_can_spare)];

/// What only a look at everything tells.
const OF_ALL: [Whole; 2] =
    [("a fleet's lent slots are counted", lent_slots_are_counted), ("ended jobs are filed once", ended_are_filed_once)];

const STEP_OF_JOB: [Step<JobId>; 2] = [
    ("a terminal job never changes", terminal_never_changes),
    ("a generation never goes back", generation_never_goes_back),
];

const STEP_OF_SLOT: [Step<SlotId>; 1] = [("a slot is free only when its agent says so", freed_by_its_agent)];

/// Where several inputs may lie between the two states.
const BATCH_OF_SLOT: [Step<SlotId>; 1] = [(STEP_OF_SLOT[0].0, freed_while_its_agent_was_away)];

const STEP_OF_EXECUTOR: [Step<ExecutorId>; 1] = [("an executor's number is never used again", numbers_are_not_reused)];

/// The names of all invariants, once each.
pub fn names() -> impl Iterator<Item = &'static str> {
    let of_state = OF_JOB.map(|i| i.0).into_iter().chain(OF_PLAN.map(|i| i.0)).chain(OF_SLOT.map(|i| i.0));
    let of_state = of_state.chain(OF_EXECUTOR.map(|i| i.0)).chain(OF_FLEET.map(|i| i.0)).chain(OF_ALL.map(|i| i.0));
    let of_step = STEP_OF_JOB.map(|i| i.0).into_iter().chain(STEP_OF_SLOT.map(|i| i.0));
    let all: BTreeSet<&str> = of_state.chain(of_step).chain(STEP_OF_EXECUTOR.map(|i| i.0)).collect();
    all.into_iter()
}

/// All invariants of a state; empty when they hold.
#[must_use]
pub fn check(state: &State) -> Vec<Violation> {
    let mut found = Found::default();
    state.jobs().for_each(|(id, job)| found.of(&OF_JOB, state, id, job));
    state.jobs().for_each(|(id, job)| found.of(&OF_PLAN, state, id, job));
    state.slots().chain(state.guests()).for_each(|(id, slot)| found.of(&OF_SLOT, state, id, slot));
    state.executors().for_each(|(id, executor)| found.of(&OF_EXECUTOR, state, id, executor));
    state.fleets().for_each(|(id, fleet)| found.of(&OF_FLEET, state, id, fleet));
    for (invariant, check) in OF_ALL {
        found.add(invariant, |broken| check(state, broken));
    }
    found.violations
}

/// All invariants of a step, which one input made; empty when they hold.
#[must_use]
pub fn check_step(before: &State, after: &State) -> Vec<Violation> {
    steps(before, after, &STEP_OF_SLOT)
}

/// All invariants of a batch, in which several inputs may have been taken; empty when they hold.
#[must_use]
pub fn check_batch(before: &State, after: &State) -> Vec<Violation> {
    steps(before, after, &BATCH_OF_SLOT)
}

fn steps(before: &State, after: &State, of_slot: &[Step<SlotId>]) -> Vec<Violation> {
    let mut found = Found::default();
    before.jobs().for_each(|(id, _)| found.step(&STEP_OF_JOB, before, after, id));
    before.slots().chain(before.guests()).for_each(|(id, _)| found.step(of_slot, before, after, id));
    after.executors().for_each(|(id, _)| found.step(&STEP_OF_EXECUTOR, before, after, id));
    found.violations
}

/// The invariants of what differs between a state and the one it grew from; empty when they hold. Costs what differs, not what the
/// cell has.
#[must_use]
pub fn check_changes(before: &State, after: &State) -> Vec<Violation> {
    let touched = Touched::between(before, after);
    let mut found = Found::default();
    for id in &touched.jobs {
        found.step(&STEP_OF_JOB, before, after, id);
        after.job(id).into_iter().for_each(|job| found.of(&OF_JOB, after, id, job));
    }
    for id in &touched.plans {
        after.job(id).into_iter().for_each(|job| found.of(&OF_PLAN, after, id, job));
    }
    for id in &touched.slots {
        found.step(&BATCH_OF_SLOT, before, after, id);
        after.slot(id).into_iter().for_each(|slot| found.of(&OF_SLOT, after, id, slot));
    }
    for id in &touched.executors {
        found.step(&STEP_OF_EXECUTOR, before, after, id);
        after.executor(id).into_iter().for_each(|executor| found.of(&OF_EXECUTOR, after, id, executor));
    }
    for id in &touched.fleets {
        after.fleet(id).into_iter().for_each(|fleet| found.of(&OF_FLEET, after, id, fleet));
    }
    found.violations
}

/// Reclaimed slots on servers that can be reached and that were to be free so long ago. A slot of a server that cannot be reached is
/// not among them: nobody knows about it.
pub fn overdue(state: &State, at: TimeMs, grace_ms: u64) -> impl Iterator<Item = &SlotId> {
    state.slots().filter_map(move |(id, slot)| match slot.state {
        SlotState::Reclaimed { deadline, .. } if at > deadline.plus_ms(grace_ms) && !is_away(state, id) => Some(id),
        _ => None,
    })
}

#[derive(Default)]
struct Found {
    violations: Vec<Violation>,
}

impl Found {
    fn add(&mut self, invariant: &'static str, check: impl FnOnce(&mut Vec<String>)) {
        let mut details = Vec::new();
        check(&mut details);
        self.violations.extend(details.into_iter().map(|detail| Violation { invariant, detail }));
    }

    fn of<Id, T>(&mut self, checks: &[Of<Id, T>], state: &State, id: &Id, it: &T) {
        checks.iter().for_each(|(invariant, check)| self.add(invariant, |broken| check(state, id, it, broken)));
    }

    fn step<Id>(&mut self, checks: &[Step<Id>], before: &State, after: &State, id: &Id) {
        checks.iter().for_each(|(invariant, check)| self.add(invariant, |broken| check(before, after, id, broken)));
    }
}

/// What differs between two states, and whatever an invariant looks at it for: that of a job at whether its executors are there, that of a plan at
/// the job's slots and their servers, that of a slot at its server, at the executor on it and at whether its job's plan has it, that of an executor at its slot.
#[derive(Default)]
struct Touched<'a> {
    jobs: Vec<&'a JobId>,
    plans: Vec<&'a JobId>,
    slots: Vec<&'a SlotId>,
    executors: Vec<&'a ExecutorId>,
    fleets: Vec<&'a FleetId>,
}

impl<'a> Touched<'a> {
    fn between(before: &'a State, after: &'a State) -> Self {
        let mut touched = Self::default();
        touched.fleets.extend(after.fleets.changed(&before.fleets).into_iter().map(|(fleet, _)| fleet));
        for (server, [was, is]) in after.servers.changed(&before.servers) {
            if is_other(was, is) {
                for (id, _) in after.places_of(server) {
                    touched.slot(id, [before, after].map(|state| state.slot(id)), true);
                }
            }
        }
        for (id, values) in after.slots.changed(&before.slots) {
            touched.slot(id, values, false);
        }
        for (id, values) in after.guests.changed(&before.guests) {
            touched.slot(id, values, false);
            // Whether its host is free follows from it, too.
            let host = after.slots.range_from(Bound::Included(&id.host())).map(|(host, _)| host).next();
            touched.slots.extend(host);
        }
        for (id, [was, is]) in after.executors.changed(&before.executors) {
            let of = |executor: &'a Executor| (&executor.slot, executor.leaving, executor.stuck);
            if was.map(of) != is.map(of) {
                touched.executors.push(id);
                touched.jobs.push(&id.job);
                touched.slots.extend(was.into_iter().chain(is).map(|executor| &executor.slot));
            }
        }
        let jobs = after.live.changed(&before.live).into_iter().chain(after.ended.changed(&before.ended));
        for (id, _) in jobs {
            touched.job(id, [before, after].map(|state| state.job(id)));
        }
        touched.in_order()
    }

    /// A slot may be another one, or its server is.
    fn slot(&mut self, id: &'a SlotId, [was, is]: [Option<&'a Slot>; 2], is_elsewhere: bool) {
        let both = || was.into_iter().chain(is);
        self.slots.push(id);
        self.executors.extend(both().filter_map(|slot| slot.executor.as_ref()));
        // Who is on a slot is nothing to a plan that has it: the processes of a job come and go one by one, and it has up to hundreds of slots.
        let of = |slot: &'a Slot| (&slot.job, slot.is_lent(), slot.is_quarantined());
        if is_elsewhere || was.map(of) != is.map(of) {
            self.plans.extend(both().filter_map(|slot| slot.job.as_ref()));
        }
    }

    fn job(&mut self, id: &'a JobId, [was, is]: [Option<&'a Job>; 2]) {
        self.jobs.push(id);
        let plan = |job: &'a Job| (job.slots(), job.class);
        if was.map(plan) != is.map(plan) {
            self.plans.push(id);
            match (was, is) {
                (Some(was), Some(is)) => self.slots.extend(was.slots().symmetric_difference(is.slots())),
                (was, is) => self.slots.extend(was.or(is).into_iter().flat_map(Job::slots)),
            }
        }
    }

    /// Each of them once, in order.
    fn in_order(mut self) -> Self {
        fn once<T: Ord>(of: &mut Vec<T>) {
            of.sort_unstable();
            of.dedup();
        }
        once(&mut self.jobs);
        once(&mut self.plans);
        once(&mut self.slots);
        once(&mut self.executors);
        self
    }
}

/// Whether a server differs in more than how many of its reports were taken, which is no matter of its slots.
fn is_other(was: Option<&Server>, is: Option<&Server>) -> bool {
    let (Some(before), Some(after)) = (was, is) else { return true };
    let of = |server: &Server| (server.incarnation, server.connected, server.slots, server.class);
    of(before) != of(after) || before.devices != after.devices
}

/// The slots of a job's plan, as they are.
fn slots_of<'a>(state: &'a State, job: &'a Job) -> impl Iterator<Item = (&'a SlotId, Option<&'a Slot>)> {
    let known = job.slots().iter().zip(state.slots.each(job.slots().iter()));
    known.map(move |(id, slot)| (id, slot.or_else(|| state.slot(id))))
}

fn job_owns_its_slots(state: &State, id: &JobId, job: &Job, broken: &mut Vec<String>) {
    for (slot, known) in slots_of(state, job) {
        let owner = known.and_then(|slot| slot.job.as_ref());
        if owner != Some(id) {
            broken.push(format!("{slot} is planned for {id}, it belongs to {owner:?}"));
        }
    }
}

fn slot_has_one_owner(state: &State, id: &SlotId, slot: &Slot, broken: &mut Vec<String>) {
    if let Some(job) = &slot.job
        && !state.job(job).is_some_and(|job| job.slots().contains(id))
    {
        broken.push(format!("{id} belongs to {job}, whose plan does not have it"));
    }
    let Some(number) = &slot.executor else { return };
    if state.executor(number).is_none_or(|executor| executor.slot != *id) {
        broken.push(format!("{id} has {number}, which is not there"));
    }
    if let Some(job) = slot.job.as_ref().filter(|job| **job != number.job) {
        broken.push(format!("{id} is planned for {job} with {number} still on it"));
    }
}

fn executor_is_on_its_slot(state: &State, id: &ExecutorId, executor: &Executor, broken: &mut Vec<String>) {
    if state.slot(&executor.slot).and_then(|slot| slot.executor.as_ref()) != Some(id) {
        broken.push(format!("{id} is on {}, which does not have it", executor.slot));
    }
}

fn used_only_on_loan(state: &State, id: &SlotId, slot: &Slot, broken: &mut Vec<String>) {
    let legal = match slot.state {
        SlotState::Unoffered | SlotState::Offered => slot.job.is_none() && slot.executor.is_none(),
        SlotState::Borrowed => slot.fleet.is_some(),
        // A reclaimed slot is in no plan; without an executor it would have been returned, if its agent were there to know, and its device well.
        SlotState::Reclaimed { .. } => {
            let is_left = slot.executor.is_none() && slot.quarantined.is_none() && !state.has_guest(id);
            // A guest slot is on its way back for as long as its host is.
            slot.job.is_none() && (!is_left || id.is_guest() || is_away(state, id))
        }
    };
    if !legal {
        broken.push(format!("{id}: {slot:?}"));
    }
    let host = id.host();
    let declared = |fleet| state.fleet(fleet).is_some_and(|fleet| fleet.slots.binary_search(&host).is_ok());
    if slot.fleet.as_ref().is_some_and(|fleet| !declared(fleet)) {
        broken.push(format!("{id} is not declared by {:?}", slot.fleet));
    }
}

/// It is lent as long as that is, goes back with it, is as fit, and has another job.
fn guest_goes_with_its_host(state: &State, id: &SlotId, slot: &Slot, broken: &mut Vec<String>) {
    if !id.is_guest() {
        return;
    }
    let Some(host) = state.slot(&id.host()) else {
        broken.push(format!("{id} has no host"));
        return;
    };
    let same_state = slot.is_lent() && host.is_lent() || slot.state == host.state;
    if !same_state || (&slot.fleet, slot.unfit()) != (&host.fleet, host.unfit()) {
        broken.push(format!("{id}: {slot:?}, its host: {host:?}"));
    }
    if slot.job.is_some() && slot.job == host.job {
        broken.push(format!("{id} and its host are both planned for {:?}", slot.job));
    }
}

/// What makes a slot free in time: its agent is told to kill what is on it by then.
fn reclaimed_is_being_left(state: &State, id: &SlotId, slot: &Slot, broken: &mut Vec<String>) {
    let (SlotState::Reclaimed { deadline, .. }, Some(number)) = (slot.state, &slot.executor) else { return };
    let leaving = state.executor(number).and_then(|executor| executor.leaving);
    if !leaving.is_some_and(|leaving| leaving.at_once() || leaving.deadline <= deadline) {
        broken.push(format!("{id} has to be free by {deadline}, {number} on it is told {leaving:?}"));
    }
}

fn no_plan_beyond_capacity(state: &State, id: &JobId, job: &Job, broken: &mut Vec<String>) {
    let max = job.spec.executors().max;
    if job.slots().len() > usize::from(max) {
        broken.push(format!("{id} has {} slots for {max} workers", job.slots().len()));
    }
    for ((slot, known), (_, server)) in slots_of(state, job).zip(state.hosts(job.slots())) {
        if !server.is_some_and(|server| server.has(slot.index)) {
            broken.push(format!("{id} is planned on {slot}, whose server is away"));
        }
        if !known.is_some_and(Slot::is_lent) {
            broken.push(format!("{id} is planned on {slot}, which is not lent"));
        }
    }
}

fn guarantee_is_kept(state: &State, id: &JobId, job: &Job, broken: &mut Vec<String>) {
    let planned = job.slots().len();
    let runs = matches!(job.phase, JobPhase::Starting(_) | JobPhase::Running(..));
    let min = job.spec.executors().min;
    if runs && planned > 0 && planned < usize::from(min) {
        broken.push(format!("{id} has {planned} slots, its minimum is {min}"));
    }
    if runs && planned == 0 && !state.has_awaited(id) {
        broken.push(format!("{id} has nothing and is not queued"));
    }
}

fn lends_what_it_can_spare(_: &State, id: &FleetId, fleet: &Fleet, broken: &mut Vec<String>) {
    if fleet.lent > fleet.lendable_by_name() {
        let (needed, held, all) = (fleet.needed, fleet.held(), fleet.slots.len());
        broken.push(format!("{id} lends {}, needs {needed} and holds {held} of {all}", fleet.lent));
    }
}

fn lent_slots_are_counted(state: &State, broken: &mut Vec<String>) {
    for (id, fleet) in state.fleets() {
        let lent = fleet.slots.iter().filter(|id| state.slot(id).is_some_and(Slot::is_lent)).count();
        let withheld = fleet.slots.iter().filter(|id| state.slot(id).is_some_and(Slot::is_withheld)).count();
        if (lent, withheld) != (fleet.lent, fleet.withheld) {
            let counted = (fleet.lent, fleet.withheld);
            broken.push(format!("{id} lends and misses {:?}, counted are {counted:?}", (lent, withheld)));
        }
    }
}

/// Whether the slot's agent was given up: only an agent can say that a slot is free.
fn is_away(state: &State, slot: &SlotId) -> bool {
    state.is_away(&slot.server)
}

fn one_phase(state: &State, id: &JobId, job: &Job, broken: &mut Vec<String>) {
    let (terminal, placed) = (job.phase.is_terminal(), state.placed.contains(id));
    let filed = (state.live.contains(id), state.ended.contains(id));
    if filed != (!terminal, terminal) || placed != job.placement().is_some() {
        broken.push(format!("{id} is {}, filed as live and ended {filed:?}, placed {placed}", job.phase.name()));
    }
}

fn ended_are_filed_once(state: &State, broken: &mut Vec<String>) {
    if state.ends.len() != state.ended.len() {
        broken.push(format!("{} ended jobs, {} ends", state.ended.len(), state.ends.len()));
    }
}

/// The memberships a job has: the one in force, the one proposed, those given up.
fn proposals(job: &Job) -> impl Iterator<Item = &Proposal> {
    let placement = job.placement().into_iter().flat_map(|p| p.proposed.iter().chain(&p.abandoned));
    job.active().map(|active| &active.proposal).into_iter().chain(placement)
}

fn batch_is_in_range(_: &State, id: &JobId, job: &Job, broken: &mut Vec<String>) {
    let most = job.spec.stride_max();
    for proposal in proposals(job) {
        if proposal.stride > most {
            broken.push(format!("{id}: {} takes {} steps at once", proposal.generation, proposal.stride.steps()));
        }
    }
}

fn ranks_are_covered(_: &State, id: &JobId, job: &Job, broken: &mut Vec<String>) {
    for proposal in proposals(job) {
        let mut ranks: Vec<Rank> = proposal.members.iter().flat_map(|member| member.ranks.iter().copied()).collect();
        ranks.sort_unstable();
        let sorted = proposal.members.is_sorted_by(|a, b| a.executor < b.executor);
        let led = proposal.members.iter().any(|member| member.executor == proposal.leader);
        if !ranks.into_iter().eq((0..job.spec.workers.max).map(Rank)) || !sorted || !led {
            broken.push(format!("{id}: {proposal:?}"));
        }
    }
}

fn generations_ascend(_: &State, id: &JobId, job: &Job, broken: &mut Vec<String>) {
    let active = job.active().map(|active| active.proposal.generation);
    let newer = job.placement().into_iter().flat_map(|p| p.abandoned.iter().chain(&p.proposed)).map(|p| p.generation);
    let all: Vec<_> = active.into_iter().chain(newer).collect();
    if !all.is_sorted_by(|a, b| a < b) || all.last().is_some_and(|last| *last > job.generation) {
        broken.push(format!("{id}: {all:?}, highest {}", job.generation));
    }
}

fn checkpoints_are_bounded(_: &State, id: &JobId, job: &Job, broken: &mut Vec<String>) {
    let ascend = job.checkpoints.is_sorted_by(|a, b| a.step <= b.step);
    if !ascend || job.checkpoints.len() > job.spec.checkpoint.keep.max(1) as usize {
        broken.push(format!("{id} keeps {}: {:?}", job.spec.checkpoint.keep, job.checkpoints));
    }
}

fn one_class(state: &State, id: &JobId, job: &Job, broken: &mut Vec<String>) {
    let mut kinds: BTreeSet<SlotKind> = BTreeSet::new();
    kinds.extend(state.kinds(job.slots()));
    let bound = job.class.filter(|class| kinds.iter().any(|kind| kind.class != *class));
    let types = kinds.iter().map(|kind| kind.slot_type).collect::<BTreeSet<_>>().len();
    let are_mixed = kinds.iter().zip(kinds.iter().skip(1)).all(|(one, next)| one.mixes_with(next));
    if !are_mixed || types > 1 && job.spec.types == Types::One || bound.is_some() {
        broken.push(format!("{id} of {bound:?} is planned on {kinds:?}"));
    }
    if job.spec.needs_device() && kinds.iter().any(|kind| !kind.device) {
        broken.push(format!("{id} needs devices and is planned on {kinds:?}"));
    }
    let quarantined = |(_, slot): &(&SlotId, Option<&Slot>)| slot.is_some_and(Slot::is_quarantined);
    if let Some((slot, _)) = slots_of(state, job).find(quarantined) {
        broken.push(format!("{id} is planned on {slot}, which is in quarantine"));
    }
}

fn terminal_never_changes(before: &State, after: &State, id: &JobId, broken: &mut Vec<String>) {
    let (Some(was), Some(is)) = (before.job(id).filter(|job| job.phase.is_terminal()), after.job(id)) else { return };
    if is.phase != was.phase || is.generation != was.generation {
        broken.push(format!("{id} was {}", was.phase.name()));
    }
}

fn generation_never_goes_back(before: &State, after: &State, id: &JobId, broken: &mut Vec<String>) {
    let (Some(was), Some(is)) = (before.job(id), after.job(id)) else { return };
    let active = |job: &Job| job.active().map(|active| active.proposal.generation);
    let back = matches!((active(was), active(is)), (Some(was), Some(is)) if is < was);
    if is.generation < was.generation || back {
        broken.push(format!("{id}: {} to {}", was.generation, is.generation));
    }
}

fn freed_by_its_agent(before: &State, after: &State, id: &SlotId, broken: &mut Vec<String>) {
    let free = |state: &State| state.slot(id).is_none_or(|slot| slot.state == SlotState::Unoffered);
    if !free(before) && free(after) && is_away(after, id) {
        broken.push(format!("{id} was {:?}; its server is away", before.slot(id)));
    }
}

/// A slot that was handed back, and then its agent was given up, breaks nothing.
fn freed_while_its_agent_was_away(before: &State, after: &State, id: &SlotId, broken: &mut Vec<String>) {
    if is_away(before, id) {
        freed_by_its_agent(before, after, id, broken);
    }
}

fn numbers_are_not_reused(before: &State, after: &State, id: &ExecutorId, broken: &mut Vec<String>) {
    let new = before.executor(id).is_none() && after.executor(id).is_some();
    if new && before.job(&id.job).is_some_and(|job| id.number < job.executors_numbered) {
        broken.push(format!("{id} was used before"));
    }
}
