//! What every policy keeps, whatever it is asked, as properties. Not what it is good for: that is beside each.
#![allow(clippy::unwrap_used)]

use super::antman::OPPORTUNISTIC;
use super::elastic_tiresias::ElasticTiresias;
use super::example::LongestWait;
use super::ibm_dp::{IbmDp, Unfit};
use super::speeds::{Point, SpeedCurve};
use super::tiresias::Tiresias;
use super::{
    ClassView, JobView, Mixture, POLICY_NAMES, Plan, Policy, ServiceView, TenantView, View, WorkLeft, policy_by_name,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Later than everything in a view.
const LATER_MS: u64 = 1_000_000;

fn any_service() -> impl Strategy<Value = ServiceView> {
    let slot_ms = || (0u64..300).prop_map(|thousands| thousands * 1_000_000);
    (slot_ms(), slot_ms(), 0u8..4, 0..LATER_MS, 0u64..2_000_000_000).prop_map(
        |(attained, promoted, queue, queued_at_ms, waited_ms)| {
            let promoted_slot_ms = promoted.min(attained);
            ServiceView { attained_slot_ms: attained, promoted_slot_ms, queue, queued_at_ms, waited_ms }
        },
    )
}

fn any_left() -> impl Strategy<Value = WorkLeft> {
    let ms = || 0u64..100_000_000;
    prop_oneof![
        Just(WorkLeft::Unknown),
        ms().prop_map(|ms| WorkLeft::Known { ms }),
        (ms(), ms(), 0u32..1_500)
            .prop_map(|(total_ms, done_ms, sigma_milli)| { WorkLeft::Estimated { total_ms, done_ms, sigma_milli } }),
    ]
}

/// Speeds on one slot and more; some fall, some stay as they are, and of some it is said how sure they are.
fn any_curve() -> impl Strategy<Value = SpeedCurve> {
    let errors = proptest::collection::vec(proptest::option::of(0u32..300_000), 17);
    (proptest::collection::vec(0u64..2_000_000, 17), errors).prop_map(|(steps, errors)| {
        let fast =
            |slots: usize| 1_000_000 + steps.iter().take(slots).sum::<u64>() - (slots as u64 * 500_000).min(900_000);
        let point = |slots: usize| Point { slots: slots as u16, micro: fast(slots), error_micro: errors[slots - 1] };
        SpeedCurve::of((1..=17).map(point).collect()).unwrap()
    })
}

/// How many curves a view has.
const CURVES: usize = 3;

fn any_job() -> impl Strategy<Value = JobView> {
    let sizes = (1u16..5, 0u16..12, 0u16..9, 0usize..3);
    let known = (any_left(), proptest::option::of(0..CURVES), proptest::option::of(1u16..20), 0u32..200_000);
    (sizes, -1i32..2, proptest::option::of(0usize..2), any::<bool>(), any_service(), known).prop_map(
        |((min, more, held, tenant), priority, class, settled, service, (left, curve, requested, restart_ms))| {
            let max = min + more;
            let held = if held < min { 0 } else { held.min(max) };
            let class = if held > 0 { Some(class.unwrap_or(0)) } else { class };
            let service = ServiceView { waited_ms: if held > 0 { 0 } else { service.waited_ms }, ..service };
            let known = JobView { requested, left, curve, restart_ms, tenant, ..JobView::default() };
            JobView { min, max, held, priority, class, numeric: class, settled, service, ..known }
        },
    )
}

fn any_view() -> impl Strategy<Value = View> {
    let jobs = proptest::collection::vec(any_job(), 0..12);
    let curves = proptest::collection::vec(any_curve(), CURVES);
    let slots = proptest::collection::vec((0u32..12, 0u32..12), 2);
    let quotas = proptest::collection::vec(proptest::option::of(0u32..20), 0..3);
    (jobs, slots, curves, quotas, 0..LATER_MS).prop_map(|(mut jobs, more, curves, quotas, now_ms)| {
        jobs.iter_mut().zip(0..).for_each(|(job, arrival)| job.arrival = arrival);
        let held = |class| {
            jobs.iter().filter(|j| j.held > 0 && j.class == Some(class)).map(|j| u32::from(j.held)).sum::<u32>()
        };
        let classes = more
            .iter()
            .enumerate()
            .map(|(numeric, &(free, away))| {
                let capacity = held(numeric) + free;
                ClassView { capacity, declared: capacity + away, numeric, ..ClassView::default() }
            })
            .collect();
        // What nobody goes by is left out of what a failure prints.
        let curves = if jobs.iter().any(|job| job.curve.is_some()) { curves } else { Vec::new() };
        let tenants = quotas.into_iter().map(|quota| TenantView { quota }).collect();
        View { classes, jobs, curves, tenants, now_ms, ..View::default() }
    })
}

/// A view in which every class has guest slots beside it, some opportunistic jobs that run are on those, and some jobs have slots on which they did not begin yet.
fn any_shared_view() -> impl Strategy<Value = View> {
    let of_jobs = proptest::collection::vec((any::<bool>(), any::<bool>(), any::<bool>()), 12);
    (any_view(), of_jobs, proptest::collection::vec((0u32..8, 0u8..100), 2)).prop_map(|(mut view, of_jobs, open)| {
        let own = view.classes.len();
        for (numeric, (open, busy_percent)) in open.into_iter().enumerate() {
            view.classes.push(ClassView {
                capacity: open,
                declared: open,
                numeric,
                guest: true,
                busy_percent,
                ..ClassView::default()
            });
        }
        for (job, (is_opportunistic, is_guest, has_begun)) in view.jobs.iter_mut().zip(of_jobs) {
            job.service.queue = u8::from(is_opportunistic);
            job.numeric = job.numeric.filter(|_| has_begun || is_guest);
            let Some(class) = job.class.filter(|_| is_opportunistic && is_guest && job.held > 0) else { continue };
            (job.class, job.numeric) = (Some(class + own), Some(class));
            view.classes[class].capacity -= u32::from(job.held);
            view.classes[class + own].capacity += u32::from(job.held);
            view.classes[class + own].declared += u32::from(job.held);
        }
        view
    })
}

/// The policies by name, the one that `docs/policies.md` shows, one that presses jobs at once, which few of these views do otherwise, and those that
/// decide at once, with a queue and without.
fn policies() -> Vec<Box<dyn Policy>> {
    let named = POLICY_NAMES.map(|name| {
        policy_by_name(name)
            .unwrap_or_else(|| panic!("`{name}` is in `POLICY_NAMES`, and `policy_by_name` does not know it"))
    });
    let example: Box<dyn Policy> = Box::new(LongestWait);
    let pressing: Box<dyn Policy> = Box::new(ElasticTiresias::new(Tiresias::default(), 1));
    let at_once = [Unfit::Wait, Unfit::AreDropped].map(|unfit| -> Box<dyn Policy> { Box::new(IbmDp::new(0, unfit)) });
    named.into_iter().chain([example, pressing]).chain(at_once).collect()
}

/// The same of three classes of which two are of one numeric class, and the first and every second job may be on both.
fn any_mixed_view() -> impl Strategy<Value = View> {
    let speeds = proptest::collection::vec((1u32..=1_000, 1u32..=1_000), 12);
    let splits = proptest::collection::vec(0u16..=12, 12);
    let third = (0u32..12, 0u32..12, [any::<bool>(); 3]);
    (any_view(), speeds, splits, third).prop_map(|(mut view, speeds, splits, (free, away, wanted_back))| {
        // The third is of the numeric class of the first.
        view.classes.push(ClassView { capacity: free, declared: free + away, numeric: 0, ..ClassView::default() });
        for (place, job) in view.jobs.iter_mut().enumerate().step_by(2) {
            let mut held = vec![0; 3];
            let (speed, split) = (speeds[place], if job.class == Some(0) { splits[place].min(job.held) } else { 0 });
            if let Some(class) = job.class {
                held[class] = job.held - split;
                held[2] += split;
            }
            view.classes[0].capacity -= u32::from(split);
            view.classes[0].declared -= u32::from(split);
            view.classes[2].capacity += u32::from(split);
            view.classes[2].declared += u32::from(split);
            if held[2] > held[0] && job.held > 0 && job.class == Some(0) {
                job.class = Some(2);
            }
            job.mixes = Some(view.mixtures.len());
            view.mixtures.push(Mixture { held, speed_milli: vec![speed.0, speed.0, speed.1] });
        }
        view.classes.iter_mut().zip(wanted_back).for_each(|(class, is)| class.wanted_back = is);
        view
    })
}

/// The view after a plan, as far as it could be done at once.
fn after(view: &View, plan: &Plan) -> View {
    let mut again = view.clone();
    for (job, share) in again.jobs.iter_mut().zip(&plan.shares) {
        if job.held > 0 || share.slots > 0 {
            job.service.waited_ms = 0;
        }
        job.held = share.slots;
        if share.slots > 0 {
            // Of who gets none both stay: it is bound if it has run.
            (job.class, job.numeric) = (Some(share.class), Some(view.classes[share.class].numeric));
        }
    }
    for (place, job) in again.jobs.iter().enumerate() {
        let Some(mixes) = job.mixes else { continue };
        let held = &mut again.mixtures[mixes].held;
        held.fill(0);
        plan.by_class(place).iter().for_each(|part| held[part.class] += part.slots);
    }
    for moved in &plan.moves {
        let service = &mut again.jobs[moved.job].service;
        (service.queue, service.queued_at_ms) = (moved.queue, LATER_MS);
        service.promoted_slot_ms = if moved.promoted { service.attained_slot_ms } else { service.promoted_slot_ms };
    }
    again
}

#[test]
fn a_policy_has_the_name_that_it_is_found_by() {
    for (name, policy) in POLICY_NAMES.iter().zip(policies()) {
        assert_eq!(*name, policy.name(), "the name in `POLICY_NAMES`, and what `Policy::name` says");
    }
}

fn sizes(plan: &Plan) -> Vec<u16> {
    plan.shares.iter().map(|share| share.slots).collect()
}

/// Whether the plan that was made of a plan's outcome is that plan; else what differs, and what that usually comes from.
fn is_stable(name: &str, view: &View, plan: &Plan, next: &Plan) -> Result<(), TestCaseError> {
    let held: Vec<u16> = view.jobs.iter().map(|job| job.held).collect();
    let (first, then) = (sizes(plan), sizes(next));
    prop_assert!(
        first == then,
        "{name} is not stable: of jobs that hold {held:?} it makes {first:?}, and once they hold that, {then:?}. Slots would go to and fro for ever. \
         It decides by something that its own plan changes: `held`, `class`, `service.waited_ms` (0 as soon as a job has slots)"
    );
    Ok(())
}

/// Whether a plan keeps to what the view says.
fn is_legal(view: &View, policy: &dyn Policy) -> Result<(), TestCaseError> {
    let (name, plan) = (policy.name(), policy.plan(view));
    prop_assert_eq!(plan.shares.len(), view.jobs.len(), "{} has not one share for each job, in the view's order", name);
    prop_assert!(plan.parts.is_sorted_by_key(|part| part.job), "{name} has parts in another order than the jobs'");
    let mut used = vec![0u32; view.classes.len()];
    for (place, (job, share)) in view.jobs.iter().zip(&plan.shares).enumerate() {
        prop_assert!(
            share.slots == 0 || (job.min..=job.max).contains(&share.slots),
            "{name} gives neither none nor min..=max: {share:?} for {job:?}"
        );
        prop_assert!(
            (share.slots == 0) == share.waits.is_some(),
            "{name} is to say why a job waits that gets no slots, and of no other: {share:?} for {job:?}"
        );
        prop_assert!(share.class < used.len(), "{name} names a class that is not in the view: {share:?}");
        let parts = plan.by_class(place);
        prop_assert!(job.mixes.is_some() || parts.len() < 2, "{name} mixes types for a job that takes one: {parts:?}");
        for part in &parts {
            let of = view.classes[part.class];
            prop_assert!(
                job.numeric.is_none_or(|bound| bound == of.numeric),
                "{name} gives slots of a class that does not suit (`View::suits`): {part:?} for {job:?}"
            );
            prop_assert!(of.mixes_with(&view.classes[share.class]), "{name} mixes numeric classes: {parts:?}");
            used[part.class] += u32::from(part.slots);
        }
    }
    for (class, used) in view.classes.iter().zip(used) {
        prop_assert!(used <= class.capacity, "{name} gives {used} of {}", class.capacity);
    }
    prop_assert!(plan.wake_in_ms.is_none_or(|ms| ms > 0), "{name} wakes at once, for ever");
    Ok(())
}

/// What is asked of policies that mix types is asked of plans that do.
#[test]
fn policies_that_mix_types_do_so_in_many_of_the_views() {
    let mut runner = TestRunner::deterministic();
    let views: Vec<View> = (0..256).map(|_| any_mixed_view().new_tree(&mut runner).unwrap().current()).collect();
    for policy in policies().into_iter().filter(|policy| policy.mixes_types()) {
        let is_mixed = |view: &&View| {
            let plan = policy.plan(view);
            (0..view.jobs.len()).any(|job| plan.by_class(job).len() > 1)
        };
        let mixed = views.iter().filter(is_mixed).count();
        println!("{} mixes types in {mixed} of {} views", policy.name(), views.len());
        assert!(mixed > views.len() / 4, "{} in {mixed}", policy.name());
    }
}

/// As many as it takes to get to a view of a few jobs.
const SHRINK_STEPS_MAX: u32 = 20_000;

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: SHRINK_STEPS_MAX, ..ProptestConfig::default() })]

    #[test]
    fn shares_are_legal(view in any_view()) {
        for policy in policies() {
            is_legal(&view, policy.as_ref())?;
        }
    }

    #[test]
    fn shares_of_several_types_are_legal(view in any_mixed_view()) {
        for policy in policies().into_iter().filter(|policy| policy.mixes_types()) {
            is_legal(&view, policy.as_ref())?;
        }
    }

    #[test]
    fn planning_twice_changes_nothing(view in any_view()) {
        for policy in policies() {
            let plan = policy.plan(&view);
            let mut again = after(&view, &plan);
            let next = policy.plan(&again);
            is_stable(policy.name(), &view, &plan, &next)?;
            prop_assert!(next.moves.is_empty(), "{} moves {:?} again", policy.name(), next.moves);
            again.jobs.iter_mut().for_each(|job| job.settled = false);
            is_stable(policy.name(), &view, &plan, &policy.plan(&again))?;
        }
    }

    #[test]
    fn planning_several_types_twice_changes_nothing(view in any_mixed_view()) {
        for policy in policies().into_iter().filter(|policy| policy.mixes_types()) {
            let plan = policy.plan(&view);
            let mut again = after(&view, &plan);
            for _ in 0..2 {
                let next = policy.plan(&again);
                is_stable(policy.name(), &view, &plan, &next)?;
                for job in 0..view.jobs.len() {
                    prop_assert_eq!(plan.by_class(job), next.by_class(job), "{} is not stable in types", policy.name());
                }
                again.jobs.iter_mut().for_each(|job| job.settled = false);
            }
        }
    }

    /// Where slots are shared: guaranteed jobs have slots of their own alone, and what they would have if nobody shared any.
    #[test]
    fn guests_take_nothing_from_guaranteed_jobs_and_plans_stay(view in any_shared_view()) {
        let policy = policy_by_name("antman").unwrap();
        let plan = policy.plan(&view);
        let mut used = vec![0u32; view.classes.len()];
        for (job, share) in view.jobs.iter().zip(&plan.shares) {
            prop_assert!(share.slots == 0 || (job.min..=job.max).contains(&share.slots), "{share:?} for {job:?}");
            let numeric = view.classes[share.class].numeric;
            prop_assert!(share.slots == 0 || job.numeric.is_none_or(|class| class == numeric), "{share:?} for {job:?}");
            used[share.class] += u32::from(share.slots);
        }
        for (class, used) in view.classes.iter().zip(&used) {
            prop_assert!(*used <= class.capacity, "{used} of {class:?}");
        }
        let mut again = after(&view, &plan);
        let is_guest = |job: &JobView| job.held > 0 && job.class.is_some_and(|class| view.classes[class].guest);
        let guaranteed = |job: &JobView| job.service.queue != OPPORTUNISTIC;
        prop_assert!(again.jobs.iter().all(|job| !(is_guest(job) && guaranteed(job))), "a guaranteed job shares");
        let next = policy.plan(&again);
        is_stable("antman", &view, &plan, &next)?;
        prop_assert!(next.moves.is_empty(), "moves {:?} again", next.moves);
        prop_assert!(next.shares.iter().zip(&plan.shares).all(|(next, first)| next.slots == 0 || next.class == first.class), "goes to and fro between its own slots and others'");
        again.jobs.iter_mut().for_each(|job| job.settled = false);
        is_stable("antman", &view, &plan, &policy.plan(&again))?;
        if view.jobs.iter().all(|job| !is_guest(job)) {
            let mut alone = view.clone();
            alone.classes.truncate(2);
            let without = policy.plan(&alone);
            let of_guaranteed = |job: &JobView| if guaranteed(job) { job.held } else { 0 };
            let had = |view: &View| view.jobs.iter().map(of_guaranteed).collect::<Vec<u16>>();
            let (with, without) = (had(&again), had(&after(&alone, &without)));
            prop_assert_eq!(with, without, "what guaranteed jobs have with guests, and without");
        }
    }

    #[test]
    fn who_packs_jobs_moves_none_of_them(view in any_shared_view()) {
        let policy = policy_by_name("gandiva-like").unwrap();
        is_legal(&view, policy.as_ref())?;
        let plan = policy.plan(&view);
        is_stable("gandiva-like", &view, &plan, &policy.plan(&after(&view, &plan)))?;
        for (job, share) in view.jobs.iter().zip(&plan.shares).filter(|(job, share)| job.held > 0 && share.slots > 0) {
            prop_assert_eq!(Some(share.class), job.class);
        }
    }

    /// Also where quotas were set, or lowered, while jobs ran: what counts against a quota is what guaranteed jobs asked for.
    #[test]
    fn no_tenants_guaranteed_jobs_are_beyond_its_quota(view in any_view()) {
        let after = after(&view, &policy_by_name("antman").unwrap().plan(&view));
        let guaranteed = |job: &&JobView| job.held > 0 && job.service.queue != OPPORTUNISTIC;
        for (place, tenant) in view.tenants.iter().enumerate() {
            let theirs = after.jobs.iter().filter(|job| job.tenant == place).filter(guaranteed);
            let used: u32 = theirs.map(|job| u32::from(job.asked())).sum();
            prop_assert!(tenant.quota.is_none_or(|quota| used <= quota), "{used} of {:?}", tenant.quota);
        }
    }

    /// The first of those that wait within their quotas: those behind it may wait for what is reserved for it.
    #[test]
    fn no_guaranteed_job_waits_while_opportunistic_ones_hold_slots_it_could_have(view in any_view()) {
        let plan = policy_by_name("antman").unwrap().plan(&view);
        let after = after(&view, &plan);
        let is_guaranteed = |job: &JobView| job.service.queue != OPPORTUNISTIC;
        let asked = |job: &JobView| u32::from(job.asked());
        let used = |tenant: usize| {
            let theirs = after.jobs.iter().filter(|job| job.tenant == tenant && job.held > 0 && is_guaranteed(job));
            theirs.map(asked).sum::<u32>()
        };
        let has_quota = |job: &JobView| {
            let quota = view.tenants.get(job.tenant).and_then(|tenant| tenant.quota);
            quota.is_none_or(|quota| used(job.tenant) + asked(job) <= quota)
        };
        // Also who held slots and lost them: it waits in its tenant's order, and others behind it.
        let waits = |at: &usize| plan.shares[*at].slots == 0 && view.jobs[*at].priority >= 0;
        let mut order: Vec<usize> = (0..view.jobs.len()).filter(waits).collect();
        order.sort_by_key(|at| (Reverse(view.jobs[*at].priority), *at));
        let mut seen = BTreeSet::new();
        order.retain(|at| seen.insert(view.jobs[*at].tenant));
        let Some(first) = order.into_iter().find(|at| has_quota(&view.jobs[*at])) else { return Ok(()) };
        let job = &view.jobs[first];
        for class in view.suiting(first) {
            let guaranteed = after.jobs.iter().filter(|other| other.held > 0 && other.class == Some(class) && is_guaranteed(other));
            let kept: u32 = guaranteed.map(|other| u32::from(other.held)).sum();
            prop_assert!(view.classes[class].capacity - kept < asked(job), "job {first} waits for {} of {}", asked(job), view.classes[class].capacity - kept);
        }
    }

    /// Where all slots are alike. (Of several kinds the roomiest is chosen, and one more slot may make that another one.) By the default policy: who lets nobody
    /// overtake a job that could ever run keeps slots idle for one that fits since there is one more, and who gives by pairs or fairness may stop before a
    /// step that then has no room.
    #[test]
    fn one_more_slot_leaves_none_of_the_others_idle_by_the_default(view in any_view()) {
        let mut view = view;
        view.classes.truncate(1);
        view.jobs.retain(|job| job.numeric.is_none_or(|class| class == 0));
        // By assumed speeds: who was measured to be slower on slots that it holds may let all of them go.
        view.jobs.iter_mut().for_each(|job| job.curve = None);
        let mut more = view.clone();
        more.classes[0].capacity += 1;
        more.classes[0].declared += 1;
        for policy in policies().into_iter().filter(|policy| policy.name() == POLICY_NAMES[0]) {
            let used = |view: &View| policy.plan(view).shares.iter().map(|share| u32::from(share.slots)).sum::<u32>();
            let (before, after) = (used(&view), used(&more));
            prop_assert!(after >= before, "{} uses {before} of {} slots and {after} of one more", policy.name(), view.classes[0].capacity);
        }
    }
}
