//! Asks the policy and translates: jobs and slots to small numbers at the door, shares back to slots and facts.
//!
//! A slot is planned for a job only when it is free, so two jobs never have the same one: who shrinks does so first, who
//! grows takes what is free by now and the rest with a later plan. Next on the path: `policy/mod.rs`.

use super::Draft;
use crate::explain::waits_placed;
use crate::limits::EXCHANGE_SETTLE_MS;
use crate::policy::{ClassView, JobView, Packing, Policy, QueueMove, ServiceView, Share, View, Wait, service_order};
use crate::state::{Job, JobPhase, Server, Slot, SlotKind, SlotState, State};
use events_schema::fact::{Fact, PlanCause, PlanReason, WaitCause};
use events_schema::{Digest, JobId, ServerId, SlotId, TimeMs};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Adopts the policy's plan as far as it differs from what is. Gives the time at which the policy wants to be asked again, though nothing
/// has changed by then.
pub(super) fn replan(draft: &mut Draft<'_>, policy: &dyn Policy) -> Option<TimeMs> {
    if draft.state.live.is_empty() {
        return None;
    }
    if draft.state.planning.policy.as_deref() != Some(draft.policy) {
        draft.emit(Fact::PolicyChosen { policy: draft.policy.to_owned() });
    }
    // The problem is stated once; what is decided meanwhile does not change it.
    let state = draft.state.clone();
    let problem = Problem::of(&state, draft.at);
    let plan = policy.plan(&problem.view);
    for moved in &plan.moves {
        enter_queue(draft, &problem, *moved);
    }
    let order = service_order(&problem.view);
    for &index in &order {
        if plan.shares[index].slots < problem.view.jobs[index].held {
            shrink(draft, &problem, index, plan.shares[index]);
        }
    }
    // Looked up only if anybody grows: most plans change nothing.
    let mut idle = None;
    for &index in &order {
        let (share, held) = (plan.shares[index], problem.view.jobs[index].held);
        if share.slots > held {
            let idle = idle.get_or_insert_with(|| Idle::of(&draft.state));
            grow(draft, &problem, index, share, idle, policy.packing());
        }
    }
    plan.wake_in_ms.map(|wait_ms| draft.at.plus_ms(wait_ms))
}

fn enter_queue(draft: &mut Draft<'_>, problem: &Problem<'_>, moved: QueueMove) {
    let (id, job) = problem.jobs[moved.job];
    let promoted_slot_ms = if moved.promoted { job.attained_slot_ms(draft.at) } else { job.service.promoted_slot_ms };
    draft.emit(Fact::QueueEntered { job: id.clone(), queue: moved.queue, promoted_slot_ms });
}

/// The scheduling problem, and what its numbers stand for.
pub(crate) struct Problem<'a> {
    pub view: View,
    /// The view's jobs, as they were when it was taken, in the order of their arrival.
    pub jobs: Vec<(&'a JobId, &'a Job)>,
    kinds: Vec<SlotKind>,
    /// Of jobs that need a device, and of others.
    lent: Lent,
}

impl<'a> Problem<'a> {
    pub fn of(state: &'a State, at: TimeMs) -> Self {
        // A job of a class that no server has any more is bound to it all the same.
        let of_jobs = state.live.iter().filter_map(|(_, job)| job.class);
        let of_jobs = of_jobs.map(|class| SlotKind { class, device: false });
        let mut kinds: BTreeMap<SlotKind, usize> = of_jobs.map(|kind| (kind, 0)).collect();
        // Slots of one server are mostly of one kind, so the one before says what a search would.
        let mut last = None;
        for_each_slot(state, |id, _, server, _| {
            let alike = (std::ptr::from_ref(server), server.device(id.index).is_some());
            if last != Some(alike) {
                kinds.insert(server.kind(id.index), 0);
                last = Some(alike);
            }
        });
        kinds.values_mut().zip(0..).for_each(|(index, at)| *index = at);
        let numbers: BTreeSet<Digest> = kinds.keys().map(|kind| kind.class).collect();
        let numbers: BTreeMap<Digest, usize> = numbers.into_iter().zip(0..).collect();
        let class =
            |kind: &SlotKind| ClassView { numeric: numbers[&kind.class], device: kind.device, ..ClassView::default() };
        let mut view = View { classes: kinds.keys().map(class).collect(), jobs: Vec::new() };
        // What is there will not go; seldom any, so it is not looked for slot by slot.
        let stuck: BTreeSet<&SlotId> =
            state.executors().filter(|(_, executor)| executor.stuck).map(|(_, executor)| &executor.slot).collect();
        let mut last = None;
        for_each_slot(state, |id, slot, server, present| {
            let alike = (std::ptr::from_ref(server), server.device(id.index).is_some());
            let index = match last {
                Some((known, index)) if known == alike => index,
                _ => kinds[&server.kind(id.index)],
            };
            last = Some((alike, index));
            let class = &mut view.classes[index];
            class.declared += u32::from(slot.fleet.is_some());
            let usable = present && slot.is_lent() && !slot.is_quarantined() && !stuck.contains(id);
            class.capacity += u32::from(usable);
        });
        let lent = Lent::of(&view.classes);
        let mut jobs = Vec::new();
        for (id, job) in state.live_jobs() {
            let class_of = |slot: &SlotId| state.kind(slot).and_then(|kind| kinds.get(&kind).copied());
            // Slots of a server that is forgotten are of the class that the job is bound to.
            let of_job = || job.class.and_then(|class| kinds.get(&SlotKind { class, device: false }).copied());
            let class = job.slots().first().and_then(|slot| class_of(slot).or_else(of_job));
            let held = job.slots().len() as u16;
            if is_planned(state, id, job) {
                let numeric = job.class.map(|class| numbers[&class]);
                view.jobs.push(job_view(job, at, held, class, numeric));
                jobs.push((id, job));
            } else if let Some(class) = class {
                // Slots of a job that is leaving them are its own until it has.
                let class = &mut view.classes[class];
                class.capacity = class.capacity.saturating_sub(u32::from(held));
            }
        }
        Self { view, jobs, kinds: kinds.into_keys().collect(), lent }
    }
}

/// What there is at all.
struct Lent {
    anything: bool,
    a_device: bool,
    /// Whether any fleet declares one, lent or not.
    device_declared: bool,
}

impl Lent {
    fn of(classes: &[ClassView]) -> Self {
        let devices = || classes.iter().filter(|class| class.device);
        Self {
            anything: classes.iter().any(|class| class.capacity > 0),
            a_device: devices().any(|class| class.capacity > 0),
            device_declared: devices().any(|class| class.declared > 0),
        }
    }
}

fn job_view(job: &Job, at: TimeMs, held: u16, class: Option<usize>, numeric: Option<usize>) -> JobView {
    let workers = job.spec.workers;
    let settled = job.scaling.as_ref().is_none_or(|scaling| at.since_ms(scaling.at) >= EXCHANGE_SETTLE_MS);
    let waits_for_generation = job.placement().is_some_and(|placement| placement.proposed.is_some());
    let settled = settled && !waits_for_generation;
    let (priority, device) = (job.spec.priority, job.spec.needs_device());
    let service = service_view(job, at, held);
    JobView { min: workers.min, max: workers.max, held, priority, class, numeric, device, settled, service }
}

fn service_view(job: &Job, at: TimeMs, held: u16) -> ServiceView {
    let waits_since = job.service.waits_since.unwrap_or(job.accepted_at);
    ServiceView {
        attained_slot_ms: job.attained_slot_ms(at),
        promoted_slot_ms: job.service.promoted_slot_ms,
        queue: job.service.queue,
        queued_at_ms: job.service.queued_at.unwrap_or(job.accepted_at).0,
        waited_ms: if held == 0 { at.since_ms(waits_since) } else { 0 },
    }
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

/// Slots that may be used and that nobody uses, by kind and server.
pub(super) struct Idle {
    classes: BTreeMap<SlotKind, IdleClass>,
}

#[derive(Default)]
struct IdleClass {
    count: usize,
    servers: BTreeMap<ServerId, BTreeSet<SlotId>>,
}

impl Idle {
    pub fn of(state: &State) -> Self {
        let mut classes: BTreeMap<SlotKind, IdleClass> = BTreeMap::new();
        for_each_slot(state, |id, slot, server, present| {
            if present && slot.is_idle() {
                let class = classes.entry(server.kind(id.index)).or_default();
                class.count += 1;
                class.servers.entry(id.server.clone()).or_default().insert(id.clone());
            }
        });
        Self { classes }
    }

    pub fn count(&self, class: &SlotKind) -> usize {
        self.classes.get(class).map_or(0, |class| class.count)
    }

    /// Takes up to `count` slots: first on servers the job is on, then as the packing says.
    pub fn take(&mut self, class: &SlotKind, count: usize, beside: &BTreeSet<SlotId>, packing: Packing) -> Vec<SlotId> {
        let mut taken = Vec::new();
        let Some(class) = self.classes.get_mut(class) else { return taken };
        let near: BTreeSet<&ServerId> = beside.iter().map(|slot| &slot.server).collect();
        for server in near {
            class.take_from(server, count, &mut taken);
        }
        while taken.len() < count {
            let Some(server) = class.next_server(count - taken.len(), packing).cloned() else { break };
            class.take_from(&server, count, &mut taken);
        }
        taken
    }
}

impl IdleClass {
    /// Where so many slots are looked for.
    fn next_server(&self, missing: usize, packing: Packing) -> Option<&ServerId> {
        let chosen = match packing {
            Packing::FirstFit => {
                let mut servers = self.servers.iter();
                servers.find(|(_, slots)| slots.len() >= missing).or_else(|| self.servers.first_key_value())
            }
            // The last of equals in reverse is the first.
            Packing::WorstFit => self.servers.iter().rev().max_by_key(|(_, slots)| slots.len()),
        };
        chosen.map(|(server, _)| server)
    }

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
fn grow(draft: &mut Draft<'_>, problem: &Problem<'_>, index: usize, share: Share, idle: &mut Idle, packing: Packing) {
    let (id, job) = problem.jobs[index];
    let class = &problem.kinds[share.class];
    let min = usize::from(job.spec.workers.min);
    let before = job.slots().len();
    let wanted = usize::from(share.slots) - before;
    let free = idle.count(class).min(wanted);
    if free == 0 || before + free < min {
        return;
    }
    let mut slots = job.slots().clone();
    slots.extend(idle.take(class, wanted, job.slots(), packing));
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
    let (lent, device) = (&problem.lent, problem.view.jobs[index].device);
    match share.waits {
        _ if device && !lent.device_declared => Some(WaitCause::Device),
        _ if !lent.anything || device && !lent.a_device => Some(WaitCause::Offers),
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
    let job = draft.state.job(id);
    let from = job.map(|job| job.slots().len() as u32);
    let resized = job.filter(|job| job.slots().len() != slots.len());
    let attained_slot_ms = resized.map(|job| job.attained_slot_ms(draft.at));
    draft.emit(Fact::PlanAdopted {
        job: id.clone(),
        slots: slots.into_iter().collect(),
        reason,
        from,
        attained_slot_ms,
    });
}
