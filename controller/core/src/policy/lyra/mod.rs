//! `lyra`: a job is its base demand, which waits, and its flexible demand, which makes it faster (Li et al., EuroSys 2023).
//!
//! 1. *Base demand* (`base.rs`), a job's fewest slots, is all or nothing. Whoever has it keeps it; those that wait get it by shortest job first, and one that does
//!    not fit is passed over. Flexible demand is no obstacle to it: that is scaled in.
//! 2. *Flexible demand* (`flexible.rs`) gets what is left: for each type of slots a multiple-choice knapsack (`knapsack.rs`, solved exactly) of which every job is
//!    a group, every larger size an item that weighs the slots beyond its fewest and is worth the running time that they save.
//! 3. *Placement* is best fit decreasing, base demand on what fleets do not need themselves and flexible demand on what they may want back
//!    (`Packing::BestFitApart`).
//! 4. *Reclaiming* scales in first, then empties the servers whose jobs are spread over most others (`Victims::Servers`).
//!
//! *Heterogeneous jobs*, those that may be on several types at once, have their base demand on types of their own rather than on lent ones, on several types only
//! where no type has room for all of it, and all of their flexible demand on one type: a job is a group in one knapsack, so none becomes a problem of two
//! resources. How fast a job is on two types follows from its ranks, which are shared out by speed (the slides' *LBBSP*: 1 V100 and 3 T4 do what 2 V100 do).
//!
//! *Workers of several slots* need nothing of their own here. An executor has one slot, so no job of Ebb has such workers, and no view says any. Of a job that had them
//! each slot that completes no worker would save no time, and an item that saves no more than a lighter one is never chosen; its fewest slots would be whole workers.
//! So sizes that are no whole workers are never planned, and weights are in slots, as the slides' third table has them.
//!
//! What the slides leave open. *How long a job is* follows from its work left on its fewest slots; of one of which nobody knows anything it is taken to be
//! [`UNKNOWN_MS`] on the slots that it asked for. *Speeds* are those of the view instead of straight lines; where they are straight it is the same. *Priority* goes
//! before length and before what is saved. A job *resized a moment ago* keeps its size while there is room, because lengths change with every
//! step, and each change of size is a pause.

mod base;
mod flexible;
pub(crate) mod knapsack;
#[cfg(test)]
mod mixed_tests;

use super::{Packing, Part, Plan, Policy, Share, Victims, View, WorkLeft};
use base::Base;
use flexible::{Extra, flexible_demand};
use std::cmp::Reverse;

/// How long a job takes of which nobody knows it: an hour, between the minutes of most jobs and the days of those that fill a cluster.
pub const UNKNOWN_MS: u64 = 3_600_000;
/// What is left of a job that took longer than was guessed, as a part of the guess.
const OVERDUE_PART: u64 = 10;

/// See the module.
pub struct Lyra;

impl Policy for Lyra {
    fn name(&self) -> &'static str {
        "lyra"
    }

    fn mixes_types(&self) -> bool {
        true
    }

    fn plan(&self, view: &View) -> Plan {
        let base = Base::of(view);
        let extra = flexible_demand(view, &base);
        together(base, &extra)
    }

    fn guarantees(&self, view: &View) -> Vec<Share> {
        together(Base::of(view), &[]).shares
    }

    fn packing(&self) -> Packing {
        Packing::BestFitApart
    }

    fn victims(&self) -> Victims {
        Victims::Servers
    }
}

/// What jobs have of both demands.
fn together(base: Base, extra: &[Extra]) -> Plan {
    let mut of = base.parts;
    for more in extra.iter().filter(|more| more.slots > 0) {
        match of[more.job].iter_mut().find(|part| part.class == more.class) {
            Some(part) => part.slots += more.slots,
            None => of[more.job].push(Part { job: more.job, class: more.class, slots: more.slots }),
        }
    }
    let mut plan = Plan::default();
    for (parts, waits) in of.into_iter().zip(base.waits) {
        let slots = parts.iter().map(|part| part.slots).sum();
        let most = parts.iter().max_by_key(|part| (part.slots, Reverse(part.class))).map_or(0, |part| part.class);
        plan.shares.push(Share { class: most, slots, waits });
        if parts.len() > 1 {
            plan.parts.extend(parts);
        }
    }
    plan
}

/// The classes among some that one job would rather have its base demand on, those first that fleets may want back last: fast ones before slow ones.
fn own_first(view: &View, job: usize, among: impl Iterator<Item = usize>) -> Vec<usize> {
    let speed = |class: usize| view.mixture(job).map_or(0, |of| of.speed_milli[class]);
    let mut classes: Vec<usize> = among.collect();
    // Devices are left to who needs them.
    let last = |class: usize| (view.classes[class].device, view.classes[class].wanted_back);
    classes.sort_by_key(|&class| (last(class), Reverse(speed(class)), class));
    classes
}

/// How long a job still takes on so many slots of one type; none where its speed there is not known.
fn time_ms(view: &View, job: usize, slots: u16) -> Option<u64> {
    times_ms(view, job)(slots, 1.0)
}

/// The same on any number of slots, and on slots that make it so many times as fast as as many of its fastest type.
fn times_ms(view: &View, job: usize) -> impl Fn(u16, f64) -> Option<u64> {
    let known = &view.jobs[job];
    let left = match known.left {
        WorkLeft::Unknown => UNKNOWN_MS,
        WorkLeft::Known { ms } => ms,
        WorkLeft::Estimated { total_ms, done_ms, .. } => total_ms.saturating_sub(done_ms).max(total_ms / OVERDUE_PART),
    };
    let asked = view.speeds(job).speed(known.asked());
    let work = left as f64 * asked;
    move |slots, factor| {
        let speed = view.speeds(job).speed(slots) * factor;
        // Times beyond these are of no job, and their sums have to stay small.
        (speed > 0.0 && asked > 0.0).then(|| (work / speed).min(1e15).round() as u64)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::speeds::SpeedCurve;
    use super::super::{ClassView, JobView, Wait};
    use super::flexible::sizes;
    use super::knapsack::{Group, Item, choose};
    use super::*;

    /// A job of the slides: "training throughput scales linearly within [w_min, w_max]", so many seconds on its most workers.
    fn job(min: u16, max: u16, held: u16, fastest_s: u64) -> JobView {
        let left = WorkLeft::Known { ms: fastest_s * 1_000 };
        let class = (held > 0).then_some(0);
        let curve = Some(0);
        JobView { min, max, held, left, class, numeric: class, curve, settled: true, ..JobView::default() }
    }

    fn view(capacity: u32, jobs: &[JobView]) -> View {
        let linear = SpeedCurve::new(vec![(1, 1_000_000), (64, 64_000_000)]).unwrap();
        let classes = vec![ClassView { capacity, declared: capacity, ..ClassView::default() }];
        View { classes, jobs: jobs.to_vec(), curves: vec![linear], ..View::default() }
    }

    fn slots(view: &View) -> Vec<u16> {
        Lyra.plan(view).shares.iter().map(|share| share.slots).collect()
    }

    /// When both jobs are done, in ms, if they begin with so many workers on eight GPUs and the policy shares them out when one has ended.
    fn completions(max: [u16; 2], fastest_s: [u64; 2], initial: [u16; 2]) -> [u64; 2] {
        let work_ms = |job: usize| u64::from(max[job]) * fastest_s[job] * 1_000;
        let alone = |job: usize| work_ms(job) / u64::from(initial[job]);
        let (first, last) = if alone(0) <= alone(1) { (0, 1) } else { (1, 0) };
        let done = alone(first) * u64::from(initial[last]);
        let left_ms = work_ms(last) - done;
        let left = WorkLeft::Known { ms: left_ms / u64::from(max[last]) };
        let alone_view = view(8, &[JobView { left, ..job(2, max[last], initial[last], 0) }]);
        let grown = u64::from(slots(&alone_view)[0]);
        let mut ends = [0; 2];
        (ends[first], ends[last]) = (alone(first), alone(first) + (left_ms as f64 / grown as f64).round() as u64);
        ends
    }

    /// The first table: eight GPUs, both jobs from 2 to 6 workers, 50 and 20 s at their fastest.
    #[test]
    fn of_two_alike_jobs_the_short_one_is_better_served_first() {
        let both = |initial| completions([6, 6], [50, 20], initial);
        assert_eq!(both([6, 2]), [50_000, 53_333]);
        assert_eq!(both([2, 6]), [63_333, 20_000]);
        assert_eq!(both([4, 4]), [60_000, 30_000]);
    }

    /// The second table: A has 3 workers at most, and 100 s at its fastest. "Shortest-job-first does not always work for elastic training jobs."
    #[test]
    fn where_the_long_job_cannot_use_much_it_is_better_served_first_and_the_policy_does_so() {
        let both = |initial| completions([3, 6], [100, 20], initial);
        assert_eq!(both([3, 5]), [100_000, 24_000]);
        assert_eq!(both([2, 6]), [106_667, 20_000]);
        assert_eq!(slots(&view(8, &[job(2, 3, 0, 100), job(2, 6, 0, 20)])), [3, 5]);
    }

    /// The third table: workers of A have two GPUs each, those of B one.
    #[test]
    fn flexible_demand_is_worth_the_running_time_that_it_saves() {
        let jobs = view(8, &[job(2, 3, 0, 100), job(2, 6, 0, 20)]);
        let items = |job: usize, slots| {
            let known = &jobs.jobs[job];
            sizes(known.min..=known.max, slots, |workers| time_ms(&jobs, job, workers))
        };
        let found = |items: &[Item]| items.iter().map(|item| (item.weight, item.value)).collect::<Vec<_>>();
        let (a, b) = (items(0, 2), items(1, 1));
        assert_eq!((time_ms(&jobs, 0, 2), time_ms(&jobs, 0, 3)), (Some(150_000), Some(100_000)));
        assert_eq!(found(&a), [(2, 50_000)]);
        assert_eq!(found(&b), [(1, 20_000), (2, 30_000), (3, 36_000), (4, 40_000)]);
        // Two GPUs are left on eight, when both have their base demand.
        let groups = [Group { items: &a, present: 0 }, Group { items: &b, present: 0 }];
        assert_eq!((choose(&groups, 2), choose(&groups, 1), choose(&groups, 4)), (vec![2, 0], vec![0, 1], vec![2, 2]));
    }

    #[test]
    fn base_demand_goes_to_the_shortest_job_first_and_who_does_not_fit_is_passed_over() {
        let waiting = [job(4, 4, 0, 50), job(4, 4, 0, 20), job(2, 2, 0, 30), job(1, 1, 0, 10)];
        assert_eq!(slots(&view(6, &waiting)), [0, 4, 0, 1]);
        let plan = Lyra.plan(&view(6, &waiting));
        assert_eq!(plan.shares[0].waits, Some(Wait::Slots(3)));
        let urgent = JobView { priority: 1, ..waiting[0] };
        assert_eq!(slots(&view(6, &[urgent, waiting[1], waiting[2]])), [4, 0, 2]);
    }

    #[test]
    fn flexible_demand_gives_way_to_base_demand_and_base_demand_to_nobody() {
        let long = job(2, 6, 6, 500);
        assert_eq!(slots(&view(6, &[long, job(4, 4, 0, 20)])), [2, 4]);
        assert_eq!(
            slots(&view(6, &[long, job(5, 5, 0, 20)])),
            [6, 0],
            "its base demand stays, and what nobody else can use"
        );
        let urgent = JobView { priority: 1, ..job(5, 5, 0, 20) };
        assert_eq!(slots(&view(6, &[long, urgent])), [6, 0]);
    }

    #[test]
    fn who_was_resized_a_moment_ago_keeps_its_size_while_there_is_room() {
        let fresh = JobView { settled: false, ..job(2, 6, 6, 20) };
        assert_eq!(slots(&view(8, &[fresh, job(2, 6, 2, 500)])), [6, 2]);
        let both = [JobView { settled: true, ..fresh }, job(2, 6, 2, 500)];
        assert_eq!(slots(&view(8, &both)), [2, 6]);
        assert_eq!(slots(&view(8, &[fresh, job(2, 6, 2, 500), job(2, 2, 0, 9)])), [2, 4, 2], "there is none");
    }

    /// A job whose workers have two slots each, or that can use 2, 4 and 8 for another reason: what is between saves it no time. Whatever there is, and whoever is
    /// beside it, it has one of these sizes or none.
    #[test]
    fn a_job_that_can_use_some_sizes_only_has_no_others() {
        let whole = SpeedCurve::new(vec![(2, 2), (3, 2), (4, 4), (7, 4), (8, 8)]).unwrap();
        let mut met = std::collections::BTreeSet::new();
        for capacity in 0..24 {
            for held in [0, 2, 4, 8].into_iter().filter(|held| u32::from(*held) <= capacity) {
                for others in [vec![], vec![job(1, 6, 0, 50)], vec![job(3, 9, 0, 500), job(1, 2, 0, 5)]] {
                    let mut of = view(capacity, &[vec![job(2, 8, held, 100)], others].concat());
                    of.curves.push(whole.clone());
                    of.jobs[0].curve = Some(1);
                    let has = slots(&of)[0];
                    assert!([0, 2, 4, 8].contains(&has), "{has} of {capacity}");
                    met.insert(has);
                }
            }
        }
        assert_eq!(met.len(), 4, "{met:?}");
    }

    #[test]
    fn a_job_that_nobody_knows_is_as_long_as_an_hour() {
        let unknown = JobView { left: WorkLeft::Unknown, ..job(4, 4, 0, 0) };
        assert_eq!(slots(&view(4, &[unknown, job(4, 4, 0, 3_601)])), [4, 0]);
        assert_eq!(slots(&view(4, &[unknown, job(4, 4, 0, 3_599)])), [0, 4]);
        let overdue = WorkLeft::Estimated { total_ms: 50_000_000, done_ms: 60_000_000, sigma_milli: 500 };
        let overdue = JobView { left: overdue, ..unknown };
        assert_eq!(slots(&view(4, &[overdue, unknown])), [0, 4], "five thousand seconds of it are left");
    }
}
