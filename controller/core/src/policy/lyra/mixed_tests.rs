//! Jobs that may be on several types at once: by hand, and what holds of all of them.
#![allow(clippy::unwrap_used)]

use super::super::{ClassView, JobView, Mixture, Policy, View, Wait, WorkLeft};
use super::base::Base;
use super::flexible::{Extra, Flexible, flexible_demand};
use super::knapsack::Group;
use super::knapsack::tests::{brute, worth};
use super::{Lyra, times_ms};
use proptest::prelude::*;

/// Classes of one numeric class with so many slots, and whether fleets may want them back.
fn view(classes: &[(u32, bool)]) -> View {
    let class = |&(capacity, wanted_back): &(u32, bool)| ClassView {
        capacity,
        declared: capacity,
        wanted_back,
        ..ClassView::default()
    };
    View { classes: classes.iter().map(class).collect(), ..View::default() }
}

/// Adds a job that takes so many seconds on its most slots, has such slots, and finds classes so fast.
fn add(view: &mut View, (min, max): (u16, u16), held: &[u16], speed_milli: &[u32], seconds: u64) {
    let slots = held.iter().sum();
    let class = (0..held.len()).rev().max_by_key(|&class| held[class]).filter(|_| slots > 0);
    let (mixes, arrival) = (Some(view.mixtures.len()), view.jobs.len() as u64);
    view.mixtures.push(Mixture { held: held.to_vec(), speed_milli: speed_milli.to_vec() });
    let (left, numeric) = (WorkLeft::Known { ms: seconds * 1_000 }, class.map(|_| 0));
    let job =
        JobView { min, max, held: slots, class, numeric, left, settled: true, mixes, arrival, ..JobView::default() };
    view.jobs.push(job);
}

/// What each job gets of each class.
fn given(view: &View) -> Vec<Vec<u16>> {
    let plan = Lyra.plan(view);
    let of = |job: usize| {
        let mut nums = vec![0; view.classes.len()];
        plan.by_class(job).iter().for_each(|part| nums[part.class] += part.slots);
        nums
    };
    (0..view.jobs.len()).map(of).collect()
}

const ALIKE: [u32; 2] = [1_000, 1_000];
const OWN: bool = false;
const LENT: bool = true;

#[test]
fn base_demand_is_on_a_types_own_slots_and_flexible_demand_on_lent_ones() {
    for (lent_first, classes) in [(false, [(8, OWN), (8, LENT)]), (true, [(8, LENT), (8, OWN)])] {
        let mut of = view(&classes);
        add(&mut of, (2, 8), &[0, 0], &ALIKE, 100);
        assert_eq!(given(&of), [if lent_first { [6, 2] } else { [2, 6] }]);
    }
    // Which is the one that most of it is on does not matter: its base demand stays what it was.
    let mut of = view(&[(8, OWN), (8, LENT)]);
    add(&mut of, (2, 8), &[2, 6], &ALIKE, 100);
    assert_eq!((of.jobs[0].class, given(&of)), (Some(1), vec![vec![2, 6]]));
}

#[test]
fn where_nothing_is_lent_it_is_as_on_one_type() {
    let mut of = view(&[(8, OWN), (0, LENT)]);
    add(&mut of, (2, 8), &[0, 0], &ALIKE, 100);
    assert_eq!(given(&of), [[8, 0]]);
    let mut of = view(&[(0, OWN), (8, LENT)]);
    add(&mut of, (2, 8), &[0, 0], &ALIKE, 100);
    assert_eq!(given(&of), [[0, 8]]);
}

/// "2 V100 => 1 V100 + 3 T4": of a job whose ranks are shared out by speed.
#[test]
fn one_fast_slot_and_three_slow_ones_do_what_two_fast_ones_do() {
    let mut of = view(&[(1, OWN), (3, LENT)]);
    add(&mut of, (1, 12), &[0, 0], &[1_000, 333], 100);
    let slowest = |parts: [u16; 2]| {
        let parts: Vec<_> = (0..).zip(parts).map(|(class, slots)| super::Part { job: 0, class, slots }).collect();
        of.slowest_with(0, &parts)
    };
    assert_eq!((slowest([2, 0]), slowest([1, 3]) / 10, slowest([1, 0])), (6_000, 600, 12_000));
    assert_eq!(given(&of), [[1, 3]]);
    let time_ms = times_ms(&of, 0);
    assert!(time_ms(4, of.mixed_factor(0, &Lyra.plan(&of).by_class(0))) < time_ms(1, 1.0));
    // With two ranks at most on a fast one, a slow one with its one rank would be the last.
    let mut of = view(&[(4, OWN), (3, LENT)]);
    add(&mut of, (4, 8), &[0, 0], &[1_000, 333], 100);
    assert_eq!(given(&of), [[4, 0]]);
}

/// A gang that no type has room for.
#[test]
fn base_demand_is_of_several_types_only_where_none_has_room_for_all_of_it() {
    let waiting = |classes: &[(u32, bool)]| {
        let mut of = view(classes);
        add(&mut of, (4, 4), &vec![0; classes.len()], &vec![1_000; classes.len()], 100);
        of
    };
    assert_eq!(given(&waiting(&[(3, OWN), (4, LENT)])), [[0, 4]]);
    assert_eq!(given(&waiting(&[(3, OWN), (2, LENT)])), [[3, 1]]);
    assert_eq!(Lyra.plan(&waiting(&[(1, OWN), (2, LENT)])).shares[0].waits, Some(Wait::Slots(1)));
    let mut apart = waiting(&[(3, OWN), (3, OWN)]);
    apart.classes[1].numeric = 1;
    assert_eq!(Lyra.plan(&apart).shares[0].waits, Some(Wait::Slots(1)), "of two numeric classes");
    // And who is on two keeps to both.
    let mut of = view(&[(4, OWN), (4, LENT)]);
    add(&mut of, (4, 4), &[3, 1], &ALIKE, 100);
    assert_eq!(given(&of), [[3, 1]]);
}

#[test]
fn flexible_demand_is_scaled_in_on_its_own_type_alone() {
    let mut of = view(&[(4, OWN), (6, LENT)]);
    add(&mut of, (2, 8), &[2, 6], &ALIKE, 500);
    // A gang that fits beside what the first has for sure; it is the lent slots that it does not have for sure.
    add(&mut of, (4, 4), &[0, 0], &ALIKE, 100);
    assert_eq!(given(&of), [[2, 2], [0, 4]]);
    let mut of = view(&[(4, OWN), (6, LENT)]);
    add(&mut of, (2, 8), &[2, 6], &ALIKE, 500);
    add(&mut of, (2, 2), &[0, 0], &ALIKE, 100);
    assert_eq!(given(&of), [[2, 6], [2, 0]]);
}

#[test]
fn what_is_beyond_its_fewest_on_another_type_than_most_of_it_is_let_go() {
    let mut of = view(&[(6, OWN), (6, LENT)]);
    add(&mut of, (2, 8), &[3, 5], &ALIKE, 100);
    assert_eq!(given(&of), [[2, 6]]);
}

#[test]
fn who_lost_some_of_its_fewest_gets_others_of_any_type_before_who_waits() {
    let mut of = view(&[(3, OWN), (1, LENT)]);
    add(&mut of, (4, 4), &[3, 0], &ALIKE, 500);
    add(&mut of, (1, 1), &[0, 0], &ALIKE, 100);
    assert_eq!(given(&of), [[3, 1], [0, 0]]);
}

/// It keeps its few slots of one type as long as little else is there.
#[test]
fn who_has_little_on_one_type_moves_to_what_is_idle_of_another() {
    let given_of = |own: u32| {
        let mut of = view(&[(own, OWN), (1, LENT)]);
        add(&mut of, (2, 8), &[2, 1], &ALIKE, 500);
        given(&of)
    };
    assert_eq!((given_of(3), given_of(8)), (vec![vec![2, 1]], vec![vec![8, 0]]));
}

/// The knapsack of one type is full of what saves more, so who got nothing there asks on the other one.
#[test]
fn who_gets_nothing_on_one_type_gets_some_of_another() {
    let mut of = view(&[(6, OWN), (4, LENT)]);
    add(&mut of, (2, 6), &[2, 0], &ALIKE, 500);
    add(&mut of, (2, 4), &[2, 0], &ALIKE, 50);
    assert_eq!(given(&of), [[2, 4], [4, 0]]);
}

/// Jobs that may be on any of three types, beside some that are on one.
fn any_view() -> impl Strategy<Value = View> {
    let sizes = (1u16..4, 0u16..6, proptest::collection::vec(0u16..4, 3), 0usize..4);
    let known =
        (0u64..4, any::<bool>(), 0i32..2, proptest::collection::vec(prop_oneof![Just(1_000u32), 200u32..=1_000], 3));
    let classes = proptest::collection::vec((0u32..5, any::<bool>()), 3);
    (proptest::collection::vec((sizes, known), 0..6), classes).prop_map(|(jobs, classes)| {
        let mut of = view(&classes);
        for ((min, more, mut held, one), (hours, settled, priority, speed)) in jobs {
            let max = min + more;
            // Of every fourth job all slots are of one class.
            if one == 0 {
                held[1..].fill(0);
            }
            let too_many = |held: &[u16]| held.iter().sum::<u16>() > max;
            while too_many(&held) {
                held.iter_mut().for_each(|slots| *slots = slots.saturating_sub(1));
            }
            if held.iter().sum::<u16>() < min {
                held.fill(0);
            }
            held.iter().zip(&mut of.classes).for_each(|(slots, class)| class.capacity += u32::from(*slots));
            add(&mut of, (min, max), &held, &speed, hours * 3_600);
            let (settled, job) = (settled, of.jobs.len() - 1);
            (of.jobs[job].settled, of.jobs[job].priority) = (settled, priority);
            if one == 0 {
                of.jobs[job].mixes = None;
                of.mixtures.pop();
            }
        }
        of.classes.iter_mut().for_each(|class| class.declared = class.capacity);
        of
    })
}

/// The view once the plan is done, and nobody was resized a moment ago.
fn after(of: &View) -> View {
    let (plan, mut again) = (Lyra.plan(of), of.clone());
    for (at, job) in again.jobs.iter_mut().enumerate() {
        job.held = plan.shares[at].slots;
        job.class = if job.held > 0 { Some(plan.shares[at].class) } else { job.class };
        job.numeric = job.class.map(|_| 0);
        let Some(mixes) = job.mixes else { continue };
        again.mixtures[mixes].held.fill(0);
        plan.by_class(at).iter().for_each(|part| again.mixtures[mixes].held[part.class] += part.slots);
    }
    again
}

/// The groups of the jobs that ask for slots of a class, and what they got.
fn of_class<'a>(flexible: &'a Flexible<'_>, extra: &[Extra], class: usize) -> (Vec<Group<'a>>, Vec<u32>) {
    let of_class = extra.iter().enumerate().filter(|(_, extra)| extra.class == class);
    of_class.map(|(at, extra)| (flexible.group(at, extra), u32::from(extra.slots))).unzip()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Of jobs that were resized long ago and are as important, the knapsack of each type is the best that there is.
    #[test]
    fn no_knapsack_of_a_type_could_be_worth_more(mut of in any_view()) {
        of.jobs.iter_mut().for_each(|job| (job.settled, job.priority) = (true, 0));
        let base = Base::of(&of);
        let (flexible, extra) = (Flexible::of(&of, &base), flexible_demand(&of, &base));
        for class in 0..of.classes.len() {
            let (groups, weights) = of_class(&flexible, &extra, class);
            prop_assert!(weights.iter().sum::<u32>() <= base.pool[class]);
            prop_assert_eq!(worth(&groups, &weights), Some(brute(&groups, base.pool[class]).0));
        }
    }

    /// Nor is there a type with slots to spare that would make one faster that has nothing beyond its fewest.
    #[test]
    fn nobody_goes_without_what_nobody_else_has(mut of in any_view()) {
        of.jobs.iter_mut().for_each(|job| job.settled = true);
        let base = Base::of(&of);
        let (flexible, extra) = (Flexible::of(&of, &base), flexible_demand(&of, &base));
        let mut left = base.pool.clone();
        extra.iter().for_each(|extra| left[extra.class] -= u32::from(extra.slots));
        for (at, extra) in extra.iter().enumerate().filter(|(_, extra)| extra.slots == 0) {
            for class in super::flexible::flexible_classes(&of, extra.job, &base.parts[extra.job]) {
                let group = flexible.group(at, &Extra { class, ..*extra });
                prop_assert!(group.items.iter().all(|item| item.weight > left[class]), "{extra:?} of {left:?}: {group:?}");
            }
        }
    }

    /// Whoever was resized a moment ago, and once nobody was.
    #[test]
    fn planning_on_the_outcome_changes_nothing(of in any_view()) {
        let (first, mut again) = (given(&of), after(&of));
        prop_assert_eq!(&given(&again), &first);
        again.jobs.iter_mut().for_each(|job| job.settled = false);
        prop_assert_eq!(&given(&again), &first);
    }

    /// Whoever has its fewest keeps them, of the types that they are of.
    #[test]
    fn who_has_its_fewest_keeps_them_where_they_are(of in any_view()) {
        let given = given(&of);
        for (job, given) in of.jobs.iter().zip(&given).filter(|(job, _)| job.held > 0) {
            let had = job.mixes.map(|mixes| &of.mixtures[mixes].held);
            let kept = had.map_or(given.iter().sum::<u16>(), |had| had.iter().zip(given).map(|(had, has)| *had.min(has)).sum());
            prop_assert!(kept >= job.min, "{job:?} {had:?} {given:?}");
        }
    }
}

/// How near one flexible class for each job comes to the best over all choices of classes and sizes, in every case of a grid: mostly it is that.
#[test]
fn one_class_for_each_job_is_mostly_as_good_as_the_best_of_all() {
    let (mut best_of, mut all, mut least) = (0, 0, f64::INFINITY);
    for (own, lent) in (0..5).flat_map(|own| (0..5).map(move |lent| (own, lent))) {
        for seconds in [[100, 100, 100], [20, 300, 60], [500, 80, 90], [40, 50, 400]] {
            for max in [[4, 4, 4], [2, 6, 8], [8, 3, 5]] {
                let mut of = view(&[(own + 3, OWN), (lent, LENT)]);
                (0..3).for_each(|job| add(&mut of, (1, max[job]), &[1, 0], &ALIKE, seconds[job]));
                let base = Base::of(&of);
                let (flexible, extra) = (Flexible::of(&of, &base), flexible_demand(&of, &base));
                let total = |extra: &[Extra]| -> u64 {
                    let best = |class: usize| brute(&of_class(&flexible, extra, class).0, base.pool[class]).0;
                    best(0) + best(1)
                };
                let choices = (0..8).map(|choice: usize| {
                    let asks: Vec<Extra> = extra
                        .iter()
                        .enumerate()
                        .map(|(at, extra)| Extra { class: (choice >> at) & 1, ..*extra })
                        .collect();
                    total(&asks)
                });
                let (ours, best) = (total(&extra), choices.max().unwrap());
                (best_of, all) = (best_of + usize::from(ours == best), all + 1);
                least = least.min(if best > 0 { ours as f64 / best as f64 } else { 1.0 });
            }
        }
    }
    println!("the best in {best_of} of {all}, at least {least:.3} of it");
    assert!(best_of * 10 >= all * 8 && least > 0.7, "{best_of} of {all}, {least}");
}
