//! Asks the policy and translates: jobs and slots to small numbers at the door, shares back to slots and facts.
//!
//! A slot is planned for a job only when it is free, so two jobs never have the same one: who shrinks does so first, who
//! grows takes what is free by now and the rest with a later plan. Next on the path: `policy/mod.rs`.

use super::Draft;
use super::guests;
use super::idle::Idle;
use super::loans::Loans;
use super::{ahead, bandwidth, mixed, profile, throughput};
use crate::explain::{class_apart, waits_placed};
use crate::limits::SIZE_SETTLE_MS;
use crate::policy::effort::Effort;
use crate::policy::gain;
use crate::policy::{
    ClassView, JobView, Packing, Policy, QueueMove, ServiceView, Share, TenantView, View, Wait, WorkLeft, service_order,
};
use crate::state::{Active, Job, JobPhase, Pace, Slot, SlotKind, SlotState, State};
use events_schema::fact::{Fact, PlanCause, PlanReason, WaitCause};
use events_schema::fold::FoldVersion;
use events_schema::job::{Length, Types};
use events_schema::{Digest, JobId, ServerId, SlotId, TenantId, TimeMs};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// What a job loses by being stopped and started again: a cold start of 6.4 s, and a replica of 200 MB saved and read again, of
/// docs/measurements.md. The same for all jobs, because starts are not measured job by job.
const RESTART_MS: u32 = 7_300;
/// How sure a job's work is that follows from its spec and one reported step: steps differ by a factor of two between the sizes of a job.
const STEP_SIGMA_MILLI: u32 = 500;

/// Plans of one moment at most. What a plan gives a job elsewhere it has more than its fewest by, so a forecast may take what it could not before; each time that is one
/// slot at the least, and what is left then is for the next plan.
const ROUNDS_MAX: usize = 8;

/// Adopts the policy's plan as far as it differs from what is. Gives the time at which the policy wants to be asked again, though nothing
/// has changed by then.
pub(super) fn replan(draft: &mut Draft<'_>, policy: &dyn Policy, effort: &Effort) -> Option<TimeMs> {
    let forecasts = policy.forecast_day_ms().or(draft.state.planning.forecast_day_ms).is_some();
    if draft.state.live.is_empty() && !forecasts {
        return None;
    }
    choose_policy(draft, policy);
    guests::let_go(draft, policy);
    for _ in 0..ROUNDS_MAX {
        let more_wanted_at = ahead::give_back(draft);
        let given_back = draft.facts.len();
        let until = plan_once(draft, policy, &effort.of_another());
        effort.ask();
        // Most plans change nothing, and so nothing that could go.
        if draft.facts.len() == given_back || !ahead::takes_more(draft) {
            return until.into_iter().chain(more_wanted_at).min();
        }
    }
    Some(draft.at.plus_ms(1))
}

/// One round, after what fleets are going to need went back.
fn plan_once(draft: &mut Draft<'_>, policy: &dyn Policy, effort: &Effort) -> Option<TimeMs> {
    if draft.state.live.is_empty() {
        return None;
    }
    // The problem is stated once; what is decided meanwhile does not change it.
    let state = draft.state.clone();
    effort.ask();
    let problem = Problem::of(&state, draft.at, policy, effort.clone());
    effort.ask();
    let (plan, profiles) = profile::plan(&problem, draft.at, policy);
    for moved in &plan.moves {
        enter_queue(draft, &problem, *moved);
    }
    for &index in &plan.rejections {
        reject(draft, &problem, index, policy.name());
    }
    let order = service_order(&problem.view);
    for &index in problem.view.effort.each(order.iter()) {
        let (share, known) = (plan.shares[index], &problem.view.jobs[index]);
        if problem.mixes(index) {
            mixed::shrink(draft, &problem, index, &plan);
        } else if is_elsewhere(known, share) {
            // Between a slot and a guest slot a job goes over its checkpoint: what it is to have, it gets when it stands still.
            shrink(draft, &problem, index, Share { slots: 0, ..share }, profiles.has(index));
        } else if share.slots < known.held {
            shrink(draft, &problem, index, share, profiles.has(index));
        } else if !profiles.has(index) {
            profile::settle(draft, &problem, index, plan.shares[index].slots);
        }
    }
    let held = |index: usize| problem.view.jobs[index].held;
    let grows = |&index: &usize| match problem.mixes(index) {
        true => mixed::grows(&problem.view, index, &plan),
        false => plan.shares[index].slots > held(index) && !is_elsewhere(&problem.view.jobs[index], plan.shares[index]),
    };
    let mut growing: Vec<usize> = order.into_iter().filter(grows).collect();
    if policy.packing() == Packing::BestFitApart {
        let demand = |index: usize| plan.shares[index].slots.saturating_sub(held(index));
        growing.sort_by_key(|&index| (Reverse(problem.view.jobs[index].priority), Reverse(demand(index))));
    }
    // What somebody still leaves is not free yet: who is only measured takes nothing that another could begin on meanwhile.
    growing.sort_by_key(|&index| profiles.has(index));
    // Looked up only if anybody grows: most plans change nothing.
    if !growing.is_empty() {
        let state = draft.state.clone();
        let mut idle = Idle::of(&state, policy.packing()).with_guests(guests::open(&state, policy));
        for index in growing {
            if problem.mixes(index) {
                mixed::grow(draft, &problem, index, &plan, &mut idle);
                continue;
            }
            grow(draft, &problem, index, plan.shares[index], &mut idle, profiles.has(index));
        }
    }
    let wakes = plan.wake_in_ms.map(|wait_ms| draft.at.plus_ms(wait_ms));
    let others = [bandwidth::tried_again_at(&draft.state, draft.at), profiles.until];
    wakes.into_iter().chain(others.into_iter().flatten()).min()
}

/// Whether a share is of another class than the slots that a job has.
fn is_elsewhere(job: &JobView, share: Share) -> bool {
    job.held > 0 && share.slots > 0 && job.class.is_some_and(|class| class != share.class)
}

/// Says by what is planned from now on, if it is something else than before.
fn choose_policy(draft: &mut Draft<'_>, policy: &dyn Policy) {
    let assumed_speeds = (!policy.is_told_measured_speeds()).then_some(true);
    let forecast_day_ms = policy.forecast_day_ms();
    let fold_version = Some(FoldVersion::NEWEST);
    let known = &draft.state.planning;
    let same = known.policy.as_deref() == Some(draft.policy)
        && (known.assumed_speeds, known.forecast_day_ms) == (assumed_speeds, forecast_day_ms)
        && known.fold_version == fold_version;
    if !same {
        draft.emit(Fact::PolicyChosen {
            policy: draft.policy.to_owned(),
            assumed_speeds,
            forecast_day_ms,
            fold_version,
        });
    }
}

/// Ends a job that waits, because a policy keeps no queue for it.
fn reject(draft: &mut Draft<'_>, problem: &Problem<'_>, index: usize, policy: &str) {
    let (id, job) = problem.jobs[index];
    if matches!(job.phase, JobPhase::Queued) {
        let fewest = job.spec.executors().min;
        let reason = format!(
            "there is no room for its fewest slots ({fewest}) beside the jobs that run, and the policy {policy} keeps no queue; submit it again later, or with fewer `workers.min`"
        );
        draft.emit(Fact::JobFailed { job: id.clone(), reason });
    }
}

fn enter_queue(draft: &mut Draft<'_>, problem: &Problem<'_>, moved: QueueMove) {
    let (id, job) = problem.jobs[moved.job];
    let promoted_slot_ms = if moved.promoted { job.attained_slot_ms(draft.at) } else { job.service.promoted_slot_ms };
    draft.emit(Fact::QueueEntered { job: id.clone(), queue: moved.queue, promoted_slot_ms });
}

/// The scheduling problem, and what its numbers stand for.
pub(crate) struct Problem<'a> {
    pub state: &'a State,
    pub view: View,
    /// The view's jobs, as they were when it was taken, in the order of their arrival.
    pub jobs: Vec<(&'a JobId, &'a Job)>,
    pub kinds: Vec<SlotKind>,
    /// Of jobs that need a device, and of others.
    lent: Lent,
    loans: Loans<'a>,
}

impl<'a> Problem<'a> {
    pub fn of(state: &'a State, at: TimeMs, policy: &dyn Policy, effort: Effort) -> Self {
        let mut problem = Self::of_slots_and_jobs(state, at, policy, effort);
        mixed::tell(&mut problem, policy.mixes_types());
        if policy.knows_quotas() && state.quotas().next().is_some() {
            problem.name_tenants();
        }
        problem
    }

    /// Whether a job may be on slots of several classes at once.
    pub fn mixes(&self, index: usize) -> bool {
        self.view.jobs[index].mixes.is_some()
    }

    /// Servers that a job does not grow onto now, because of their links or of how long they are going to lend.
    pub fn passed_over(&self, at: TimeMs, index: usize) -> Rc<BTreeSet<ServerId>> {
        let (id, job) = self.jobs[index];
        let (slow, too_short) = (bandwidth::passed_over(self.state, at, id, job), self.loans.too_short(id, job));
        if slow.is_empty() { too_short } else { Rc::new(&slow | &too_short) }
    }

    /// Says whose jobs are, and what those have guaranteed: who has no quota where others have one has nothing.
    fn name_tenants(&mut self) {
        let names: BTreeSet<&TenantId> = self.jobs.iter().map(|(_, job)| job.tenant()).collect();
        let places: BTreeMap<&TenantId, usize> = names.into_iter().zip(0..).collect();
        let quota = |name: &TenantId| Some(self.state.quota(name).unwrap_or(0));
        self.view.tenants = places.keys().map(|name| TenantView { quota: quota(name) }).collect();
        for (view, (_, job)) in self.view.jobs.iter_mut().zip(&self.jobs) {
            view.tenant = places[job.tenant()];
        }
    }

    fn of_slots_and_jobs(state: &'a State, at: TimeMs, policy: &dyn Policy, effort: Effort) -> Self {
        // A job of a class that no server has any more is bound to it all the same.
        let of_jobs = state.live.iter().filter_map(|(_, job)| job.class);
        let slots = state.noted_slots();
        let mut kinds: BTreeMap<SlotKind, usize> = slots.totals().map(|(kind, _)| (*kind, 0)).collect();
        let any_type = kinds.keys().any(|kind| kind.slot_type.is_some());
        let mut last = None;
        for class in of_jobs {
            if last != Some(class) {
                let known = any_type && kinds.keys().any(|kind| kind.class == class && !kind.device);
                if !known {
                    kinds.insert(SlotKind { class, device: false, guest: false, slot_type: None }, 0);
                }
                last = Some(class);
            }
        }
        let guests = guests::totals(state, policy);
        kinds.extend(guests.keys().map(|kind| (*kind, 0)));
        kinds.values_mut().zip(0..).for_each(|(index, at)| *index = at);
        let numbers: BTreeSet<Digest> = kinds.keys().map(|kind| kind.class).collect();
        let numbers: BTreeMap<Digest, usize> = numbers.into_iter().zip(0..).collect();
        let class = |kind: &SlotKind| ClassView {
            numeric: numbers[&kind.class],
            device: kind.device,
            guest: kind.guest,
            ..ClassView::default()
        };
        let mut view = View { classes: kinds.keys().map(class).collect(), now_ms: at.0, effort, ..View::default() };
        for (kind, totals) in slots.totals() {
            let class = &mut view.classes[kinds[kind]];
            (class.declared, class.capacity) = (totals.declared, totals.usable);
        }
        for (kind, count) in &guests {
            let class = &mut view.classes[kinds[kind]];
            (class.declared, class.capacity) = (*count, *count);
        }
        if !guests.is_empty() {
            for (kind, percent) in guests::busy(state, policy) {
                view.classes[kinds[&kind]].busy_percent = percent;
            }
        }
        // What is there will not go.
        let stuck = state.executors.leaving().filter(|(_, executor)| executor.stuck);
        let stuck: BTreeSet<&SlotId> = stuck.map(|(_, executor)| &executor.slot).collect();
        for id in stuck {
            let usable = |slot: &Slot| slot.is_lent() && !slot.is_quarantined();
            if state.is_present(id) && state.slot(id).is_some_and(usable) {
                let class = state.kind(id).and_then(|kind| kinds.get(&kind));
                class.into_iter().for_each(|index| view.classes[*index].capacity -= 1);
            }
        }
        let (lent, loans) = (Lent::of(&view.classes), Loans::of(state, at));
        // Where there are no devices, no guest slots and no types, the class that a job is bound to is its kind.
        let is_class = !any_type && !kinds.keys().any(|kind| kind.device || kind.guest);
        view.jobs.reserve(state.live.len());
        let mut jobs = Vec::with_capacity(state.live.len());
        // The class of the last job that is bound to one, its kind without a device and its number: mostly that of the next one.
        let mut last: Option<(Digest, Option<usize>, usize)> = None;
        let mut bound = |class: Digest| match last {
            Some((known, kind, numeric)) if known == class => (kind, numeric),
            _ => {
                let (kind, numeric) = (
                    kinds.get(&SlotKind { class, device: false, guest: false, slot_type: None }).copied(),
                    numbers[&class],
                );
                last = Some((class, kind, numeric));
                (kind, numeric)
            }
        };
        for (id, job) in state.live_jobs() {
            view.effort.spend(1);
            let (of_job, numeric) = job.class.map(&mut bound).map_or((None, None), |(kind, of)| (kind, Some(of)));
            let of_slot = || job.slots().first().and_then(|slot| state.kind(slot)).and_then(|kind| kinds.get(&kind));
            let class = match job.class {
                _ if job.slots().is_empty() => None,
                Some(_) if is_class => of_job,
                // Slots of a server that is forgotten are of the class that the job is bound to.
                _ => of_slot().copied().or(of_job),
            };
            let held = job.slots().len() as u16;
            if is_planned(state, id, job) {
                let measured = state.measures_speeds().then(|| throughput::curve(job)).flatten();
                let curve = measured.map(|curve| {
                    view.curves.push(curve);
                    view.curves.len() - 1
                });
                let mut of_job = JobView { curve, ..job_view(job, at, held, class, numeric) };
                if loans.stands_still(id, job) {
                    of_job.max = of_job.max.min(of_job.min.max(held));
                }
                let apart = bandwidth::slots_passed_over(state, at, id, job);
                if let Some(class) = class.filter(|_| apart > 0) {
                    let of_class = view.classes[class];
                    // Of the others it is not known here which it will have.
                    let alike =
                        view.classes.iter().filter(|other| job.spec.types == Types::Any && other.mixes_with(&of_class));
                    let there = alike.map(|other| other.capacity).sum::<u32>().max(of_class.capacity);
                    let most = there.saturating_sub(apart);
                    of_job.max = of_job.max.min(u16::try_from(most).unwrap_or(u16::MAX)).max(of_job.min).max(held);
                }
                view.jobs.push(of_job);
                jobs.push((id, job));
            } else if let Some(class) = class {
                // Slots of a job that is leaving them are its own until it has.
                let mut leaves = |class: usize, slots: u16| {
                    let class = &mut view.classes[class];
                    class.capacity = class.capacity.saturating_sub(u32::from(slots));
                };
                match job.spec.types {
                    Types::One => leaves(class, held),
                    Types::Any => {
                        let classes = state.kinds(job.slots()).filter_map(|kind| kinds.get(&kind));
                        classes.for_each(|class| leaves(*class, 1));
                    }
                }
            }
        }
        Self { state, view, jobs, kinds: kinds.into_keys().collect(), lent, loans }
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
    let workers = job.spec.executors();
    let settled = job.scaling.as_ref().is_none_or(|scaling| at.since_ms(scaling.at) >= SIZE_SETTLE_MS);
    let waits_for_generation = job.placement().is_some_and(|placement| placement.proposed.is_some());
    let settled = settled && !waits_for_generation;
    let (priority, device) = (job.spec.priority, job.spec.needs_device());
    let service = service_view(job, at, held);
    JobView {
        min: workers.min,
        max: workers.max,
        requested: None,
        held,
        priority,
        class,
        numeric,
        device,
        settled,
        service,
        arrival: job.arrival,
        left: work_left(job, at),
        curve: None,
        restart_ms: RESTART_MS,
        tenant: 0,
        mixes: None,
        only: None,
    }
}

/// What its spec and the steps that were told of say of the work that a job has left: nothing before it has stepped, and nothing of one that counts
/// epochs, whose steps depend on the data.
///
/// Other sizes are taken to be as much faster as is assumed of W, whatever they were measured to be, so this is a guess ([`STEP_SIGMA_MILLI`]).
fn work_left(job: &Job, at: TimeMs) -> WorkLeft {
    let (Length::Steps(steps), Some(step_us)) = (job.spec.length, job.step_us) else { return WorkLeft::Unknown };
    // Of one that trains a stretch once more only that counts.
    let (first, end) = job.spec.retrains.as_ref().map_or((0, steps), |again| (again.from_step.0, again.end(steps)));
    let (workers, most) = (job.spec.workers.max, job.spec.executors().max);
    let in_force = |active: &Active| (active.members.len() as u16).max(1);
    // Always of the fewest members that told of one, whatever is in force or planned now: a guess that a plan changes would make another plan. Earlier builds
    // did not tell of how many: then of those in force, or of all, which makes it too long rather than too short.
    let unsaid = || Pace { members: job.active().map_or(most, in_force), step_us };
    let Pace { members, step_us } = job.pace.unwrap_or_else(unsaid);
    // In ms of all its slots: the measure of everything that is left.
    let step_ms = |slots: u16| step_us.max(1) as f64 / 1e3 * gain::ratio(workers, slots, members.max(1));
    let of_steps = |steps: u64| steps.saturating_sub(first) as f64 * step_ms(most);
    // Not in whole steps: two jobs that are nearly as long would pass each other with each one's next step.
    let since = |active: &Active| {
        of_steps(active.step.0) + at.since_ms(active.at) as f64 * step_ms(most) / step_ms(in_force(active))
    };
    let done_ms = job.active().map_or(0.0, since).max(of_steps(job.highest.0)).min(of_steps(end));
    WorkLeft::Estimated { total_ms: of_steps(end) as u64, done_ms: done_ms as u64, sigma_milli: STEP_SIGMA_MILLI }
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
pub(super) fn is_planned(state: &State, id: &JobId, job: &Job) -> bool {
    match &job.phase {
        JobPhase::Queued => true,
        JobPhase::Starting(placement) => !placement.slots.is_empty(),
        JobPhase::Running(placement, _) => !placement.slots.is_empty() && !state.is_parking_job(id, job),
        _ => false,
    }
}

/// How much a job misses the slot of its leader.
pub(super) const WORTH_OF_LEADER: u8 = 3;

/// How much a job would miss one of its slots: 0 nothing runs there yet, 1 a newcomer, 2 a member, 3 the leader.
pub(super) fn worth(state: &State, job: &Job, slot: &SlotId) -> u8 {
    let Some(number) = state.slot(slot).and_then(|slot| slot.executor.as_ref()) else { return 0 };
    match job.active() {
        Some(active) if active.leader == *number => WORTH_OF_LEADER,
        Some(active) if active.members.contains(number) => 2,
        _ => 1,
    }
}

fn shrink(draft: &mut Draft<'_>, problem: &Problem<'_>, index: usize, share: Share, measured: bool) {
    let (id, job) = problem.jobs[index];
    let mut slots: Vec<SlotId> = job.slots().iter().cloned().collect();
    // What it has of other types, under a policy that mixes none, is let go first.
    let kind = problem.view.jobs[index].class.map(|class| problem.kinds[class]);
    let is_other = |slot: &SlotId| job.spec.types == Types::Any && draft.state.kind(slot) != kind;
    slots.sort_by_key(|slot| (is_other(slot), Reverse(worth(&draft.state, job, slot)), slot.clone()));
    slots.truncate(usize::from(share.slots));
    let (cause, waits) = match measured {
        true => (PlanCause::Profile, None),
        false => (cause_of_fewer(&problem.view, index, share), waits(draft.at, problem, index, share, slots.len())),
    };
    let reason = PlanReason { policy: draft.policy.to_owned(), cause, waits };
    adopt_slots(draft, id, slots.into_iter().collect(), reason);
}

/// Why a plan leaves a job fewer slots: it loses nothing by that where it was measured to be as fast on fewer, whoever has the others then.
pub(super) fn cause_of_fewer(view: &View, index: usize, share: Share) -> PlanCause {
    let (job, speeds) = (&view.jobs[index], view.speeds(index));
    let as_fast = || speeds.speed(share.slots) >= speeds.speed(job.held);
    if job.curve.is_some() && share.slots > 0 && as_fast() { PlanCause::Speed } else { PlanCause::GaveWay }
}

/// Gives a job more slots, as far as they are free by now; to be measured on them all of them or none, or it would be measured at another size.
fn grow(draft: &mut Draft<'_>, problem: &Problem<'_>, index: usize, share: Share, idle: &mut Idle, measured: bool) {
    let (id, job) = problem.jobs[index];
    let class = &problem.kinds[share.class];
    let min = usize::from(job.spec.executors().min);
    let before = job.slots().len();
    let wanted = usize::from(share.slots) - before;
    let mut passed_over = problem.passed_over(draft.at, index);
    let mut free = idle.count(class, &passed_over).min(wanted);
    if before + free < min {
        // Rather slowly than not at all.
        passed_over = Rc::default();
        free = idle.count(class, &passed_over).min(wanted);
    }
    if !passed_over.is_empty() && free < idle.count(class, &BTreeSet::new()).min(wanted) {
        // What is passed over does not come free. Without it a size may be no faster than a smaller one, to which the next plan would go back.
        let useful = problem.view.speeds(index).without_waste(min as u16, (before + free) as u16);
        free = usize::from(useful).saturating_sub(before);
    }
    if free == 0 || before + free < min || measured && free < wanted {
        return;
    }
    let mut slots = job.slots().clone();
    slots.extend(idle.take(class, free, job.slots(), min.saturating_sub(before), &passed_over));
    let (cause, waits) = match measured {
        true => (PlanCause::Profile, None),
        false => {
            let cause = if slots.len() > min { PlanCause::Gain } else { PlanCause::Guarantee };
            (cause, waits(draft.at, problem, index, share, slots.len()))
        }
    };
    let reason = PlanReason { policy: draft.policy.to_owned(), cause, waits };
    adopt_slots(draft, id, slots, reason);
}

/// Why a job with so many slots has no more.
pub(crate) fn waits(at: TimeMs, problem: &Problem<'_>, index: usize, share: Share, slots: usize) -> Option<WaitCause> {
    if slots > 0 {
        return waits_placed(problem.state, at, problem.jobs[index], slots, &problem.loans);
    }
    let (lent, device) = (&problem.lent, problem.view.jobs[index].device);
    let apart = || class_apart(problem.state, at, problem.jobs[index], 0);
    match share.waits {
        _ if device && !lent.device_declared => Some(WaitCause::Device),
        _ if !lent.anything || device && !lent.a_device => Some(WaitCause::Offers),
        Some(_) if apart().is_some() => apart().map(WaitCause::Class),
        Some(Wait::Behind(ahead)) => Some(WaitCause::Job(problem.jobs[ahead].0.clone())),
        Some(Wait::Slots(missing)) => Some(WaitCause::Slots { missing }),
        Some(Wait::Quota(missing)) => Some(WaitCause::Quota { missing }),
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
