//! Asks the policy and translates: jobs and slots to small numbers at the door, shares back to slots and facts.
//!
//! A slot is planned for a job only when it is free, so two jobs never have the same one: who shrinks does so first, who
//! grows takes what is free by now and the rest with a later plan. Next on the path: `policy/mod.rs`.

use super::Draft;
use crate::explain::waits_placed;
use crate::limits::EXCHANGE_SETTLE_MS;
use crate::policy::{ClassView, JobView, Policy, Share, View, Wait, service_order};
use crate::state::{Job, JobPhase, Server, Slot, SlotState, State};
use events_schema::fact::{Fact, PlanCause, PlanReason, WaitCause};
use events_schema::{Digest, JobId, ServerId, SlotId, TimeMs};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Adopts the policy's plan as far as it differs from what is.
pub(super) fn replan(draft: &mut Draft<'_>, policy: &dyn Policy) {
    if draft.state.live.is_empty() {
        return;
    }
    if draft.state.planning.policy.as_deref() != Some(draft.policy) {
        draft.emit(Fact::PolicyChosen { policy: draft.policy.to_owned() });
    }
    // The problem is stated once; what is decided meanwhile does not change it.
    let state = draft.state.clone();
    let problem = Problem::of(&state, draft.at);
    let plan = policy.plan(&problem.view);
    let order = service_order(&problem.view);
    for &index in &order {
        if plan.shares[index].slots < problem.view.jobs[index].held {
            shrink(draft, &problem, index, plan.shares[index]);
        }
    }
    let mut idle = Idle::of(&draft.state);
    for &index in &order {
        let (share, held) = (plan.shares[index], problem.view.jobs[index].held);
        if share.slots > held {
            grow(draft, &problem, index, share, &mut idle);
        }
    }
}

/// The scheduling problem, and what its numbers stand for.
pub(crate) struct Problem<'a> {
    pub view: View,
    /// The view's jobs, as they were when it was taken, in the order of their arrival.
    pub jobs: Vec<(&'a JobId, &'a Job)>,
    classes: Vec<Digest>,
    nothing_lent: bool,
}

impl<'a> Problem<'a> {
    pub fn of(state: &'a State, at: TimeMs) -> Self {
        let classes: BTreeSet<Digest> = state
            .servers()
            .map(|(_, server)| server.class)
            .chain(state.live.iter().filter_map(|(_, job)| job.class))
            .collect();
        let classes: BTreeMap<Digest, usize> = classes.into_iter().zip(0..).collect();
        let mut view = View { classes: vec![ClassView::default(); classes.len()], jobs: Vec::new() };
        for_each_slot(state, |_, slot, server, present| {
            let class = &mut view.classes[classes[&server.class]];
            class.declared += u32::from(slot.fleet.is_some());
            class.capacity += u32::from(present && slot.is_lent() && !is_stuck(state, slot));
        });
        let nothing_lent = view.classes.iter().all(|class| class.capacity == 0);
        let mut jobs = Vec::new();
        for (id, job) in state.live_jobs() {
            let class_of = |slot: &SlotId| state.server(&slot.server).map(|server| classes[&server.class]);
            let class = job.class.map(|class| classes[&class]).or_else(|| job.slots().first().and_then(class_of));
            let held = job.slots().len() as u16;
            if is_planned(state, id, job) {
                view.jobs.push(job_view(job, at, held, class));
                jobs.push((id, job));
            } else if let Some(class) = class {
                // Slots of a job that is leaving them are its own until it has.
                let class = &mut view.classes[class];
                class.capacity = class.capacity.saturating_sub(u32::from(held));
            }
        }
        Self { view, jobs, classes: classes.into_keys().collect(), nothing_lent }
    }
}

/// Whether what is on the slot will not go.
fn is_stuck(state: &State, slot: &Slot) -> bool {
    slot.executor.as_ref().and_then(|number| state.executor(number)).is_some_and(|executor| executor.stuck)
}

fn job_view(job: &Job, at: TimeMs, held: u16, class: Option<usize>) -> JobView {
    let workers = job.spec.workers;
    let settled = job.scaling.as_ref().is_none_or(|scaling| at.since_ms(scaling.at) >= EXCHANGE_SETTLE_MS);
    let waits_for_generation = job.placement().is_some_and(|placement| placement.proposed.is_some());
    let settled = settled && !waits_for_generation;
    JobView { min: workers.min, max: workers.max, held, priority: job.spec.priority, class, settled }
}

/// Whether the policy has a say in a job: it waits, or runs and is not on its way out.
fn is_planned(state: &State, id: &JobId, job: &Job) -> bool {
    match &job.phase {
        JobPhase::Queued => true,
        JobPhase::Starting(placement) => !placement.slots.is_empty(),
        JobPhase::Running(placement, _) => !placement.slots.is_empty() && !state.is_parking(id),
        _ => false,
    }
}

/// All slots with their server, as far as it is known, and whether something can be started there.
fn for_each_slot<'a>(state: &'a State, mut visit: impl FnMut(&'a SlotId, &'a Slot, &'a Server, bool)) {
    let mut last: Option<(&ServerId, Option<&Server>)> = None;
    for (id, slot) in state.slots() {
        let server = match last {
            Some((known, server)) if *known == id.server => server,
            _ => state.server(&id.server),
        };
        last = Some((&id.server, server));
        if let Some(server) = server {
            visit(id, slot, server, server.connected && id.index < server.slots);
        }
    }
}

/// Slots that may be used and that nobody uses, by class and server.
pub(super) struct Idle {
    classes: BTreeMap<Digest, IdleClass>,
}

#[derive(Default)]
struct IdleClass {
    count: usize,
    servers: BTreeMap<ServerId, BTreeSet<SlotId>>,
}

impl Idle {
    pub fn of(state: &State) -> Self {
        let mut classes: BTreeMap<Digest, IdleClass> = BTreeMap::new();
        for_each_slot(state, |id, slot, server, present| {
            if present && slot.is_idle() {
                let class = classes.entry(server.class).or_default();
                class.count += 1;
                class.servers.entry(id.server.clone()).or_default().insert(id.clone());
            }
        });
        Self { classes }
    }

    pub fn count(&self, class: &Digest) -> usize {
        self.classes.get(class).map_or(0, |class| class.count)
    }

    /// Takes up to `count` slots: first on servers the job is on, then on the first that has them all, then in order.
    pub fn take(&mut self, class: &Digest, count: usize, beside: &BTreeSet<SlotId>) -> Vec<SlotId> {
        let mut taken = Vec::new();
        let Some(class) = self.classes.get_mut(class) else { return taken };
        let near: BTreeSet<&ServerId> = beside.iter().map(|slot| &slot.server).collect();
        for server in near {
            class.take_from(server, count, &mut taken);
        }
        let missing = count - taken.len();
        let roomy = class.servers.iter().find(|(_, slots)| slots.len() >= missing).map(|(server, _)| server.clone());
        if let Some(server) = roomy {
            class.take_from(&server, count, &mut taken);
        }
        while taken.len() < count {
            let Some(server) = class.servers.keys().next().cloned() else { break };
            class.take_from(&server, count, &mut taken);
        }
        taken
    }
}

impl IdleClass {
    fn take_from(&mut self, server: &ServerId, count: usize, taken: &mut Vec<SlotId>) {
        let Some(slots) = self.servers.get_mut(server) else { return };
        while taken.len() < count {
            let Some(slot) = slots.pop_first() else { break };
            taken.push(slot);
            self.count -= 1;
        }
        if slots.is_empty() {
            self.servers.remove(server);
        }
    }
}

/// How much a job would miss one of its slots: 0 nothing runs there yet, 1 a newcomer, 2 a member, 3 the leader.
pub(super) fn worth(state: &State, job: &Job, slot: &SlotId) -> u8 {
    let Some(number) = state.slot(slot).and_then(|slot| slot.executor.as_ref()) else { return 0 };
    match job.active() {
        Some(active) if active.leader == *number => 3,
        Some(active) if active.members.contains(number) => 2,
        _ => 1,
    }
}

fn shrink(draft: &mut Draft<'_>, problem: &Problem<'_>, index: usize, share: Share) {
    let (id, job) = problem.jobs[index];
    let mut slots: Vec<SlotId> = job.slots().iter().cloned().collect();
    slots.sort_by_key(|slot| (Reverse(worth(&draft.state, job, slot)), slot.clone()));
    slots.truncate(usize::from(share.slots));
    let waits = waits(draft.at, problem, index, share, slots.len());
    let reason = PlanReason { policy: draft.policy.to_owned(), cause: PlanCause::GaveWay, waits };
    adopt_slots(draft, id, slots.into_iter().collect(), reason);
}

/// Gives a job more slots, as far as they are free by now.
fn grow(draft: &mut Draft<'_>, problem: &Problem<'_>, index: usize, share: Share, idle: &mut Idle) {
    let (id, job) = problem.jobs[index];
    let class = &problem.classes[share.class];
    let min = usize::from(job.spec.workers.min);
    let before = job.slots().len();
    let wanted = usize::from(share.slots) - before;
    let free = idle.count(class).min(wanted);
    if free == 0 || before + free < min {
        return;
    }
    let mut slots = job.slots().clone();
    slots.extend(idle.take(class, wanted, job.slots()));
    let cause = if slots.len() > min { PlanCause::Gain } else { PlanCause::Guarantee };
    let waits = waits(draft.at, problem, index, share, slots.len());
    let reason = PlanReason { policy: draft.policy.to_owned(), cause, waits };
    adopt_slots(draft, id, slots, reason);
}

/// Why a job with so many slots has no more.
pub(crate) fn waits(at: TimeMs, problem: &Problem<'_>, index: usize, share: Share, slots: usize) -> Option<WaitCause> {
    if slots > 0 {
        return waits_placed(at, problem.jobs[index].1, slots);
    }
    match share.waits {
        _ if problem.nothing_lent => Some(WaitCause::Offers),
        Some(Wait::Behind(ahead)) => Some(WaitCause::Job(problem.jobs[ahead].0.clone())),
        Some(Wait::Slots(missing)) => Some(WaitCause::Slots { missing }),
        // Its share is there but not free yet.
        None => Some(WaitCause::Slots { missing: u32::from(share.slots) }),
    }
}

/// Plans a job on exactly these slots; those that were only offered are borrowed from now on.
pub(super) fn adopt_slots(draft: &mut Draft<'_>, id: &JobId, slots: BTreeSet<SlotId>, reason: PlanReason) {
    for slot in &slots {
        if draft.state.slot(slot).is_some_and(|slot| slot.state == SlotState::Offered) {
            let fleet = draft.state.slot(slot).and_then(|slot| slot.fleet.clone());
            draft.emit(Fact::SlotBorrowed { slot: slot.clone(), fleet, job: Some(id.clone()) });
        }
    }
    let from = draft.state.job(id).map(|job| job.slots().len() as u32);
    draft.emit(Fact::PlanAdopted { job: id.clone(), slots: slots.into_iter().collect(), reason, from });
}
