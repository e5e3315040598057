//! Jobs on types of different speed, by hand.
#![allow(clippy::unwrap_used)]

use super::super::super::{ClassView, JobView, Mixture, Policy, View, Wait};
use super::super::EasyScale;

/// Classes of one numeric class with so many slots.
fn view(capacity: &[u32]) -> View {
    let class = |capacity: &u32| ClassView { capacity: *capacity, declared: *capacity, ..ClassView::default() };
    View { classes: capacity.iter().map(class).collect(), ..View::default() }
}

/// Adds a job that has such slots, and finds classes so fast.
fn add(view: &mut View, (min, max): (u16, u16), held: &[u16], speed_milli: &[u32]) {
    let slots = held.iter().sum();
    let class = (0..held.len()).rev().max_by_key(|&class| held[class]).filter(|_| slots > 0);
    let (mixes, arrival) = (Some(view.mixtures.len()), view.jobs.len() as u64);
    view.mixtures.push(Mixture { held: held.to_vec(), speed_milli: speed_milli.to_vec() });
    view.jobs.push(JobView { min, max, held: slots, class, mixes, arrival, ..JobView::default() });
}

/// What each job gets of each class.
fn given(view: &View) -> Vec<Vec<u16>> {
    let plan = EasyScale.plan(view);
    let of = |job: usize| {
        let mut nums = vec![0; view.classes.len()];
        plan.by_class(job).iter().for_each(|part| nums[part.class] += part.slots);
        nums
    };
    (0..view.jobs.len()).map(of).collect()
}

const V100_T4: [u32; 2] = [1_000, 408];

#[test]
fn a_job_takes_what_makes_it_faster_of_every_type() {
    let mut of = view(&[1, 2]);
    add(&mut of, (1, 8), &[0, 0], &V100_T4);
    // Five workers on the fast one and two on each of the others at most.
    assert_eq!(given(&of), [[1, 2]]);
    // With one worker on each of eight fast ones no slow one helps.
    let mut of = view(&[8, 8]);
    add(&mut of, (1, 8), &[0, 0], &V100_T4);
    assert_eq!(given(&of), [[8, 0]]);
}

#[test]
fn what_turns_out_to_be_of_no_use_goes_back() {
    let mut of = view(&[2, 2]);
    add(&mut of, (1, 4), &[2, 2], &[1_000, 1_000]);
    assert_eq!(given(&of), [[2, 2]], "as long as nobody knows better");
    let mut of = view(&[2, 2]);
    add(&mut of, (1, 4), &[2, 2], &[1_000, 400]);
    assert_eq!(given(&of), [[2, 0]], "two workers each take 2, and one on a slow one 2.5");
    let mut of = view(&[2, 2]);
    add(&mut of, (3, 4), &[2, 2], &[1_000, 400]);
    assert_eq!(given(&of), [[2, 1]], "its fewest it keeps");
}

#[test]
fn an_arrival_gets_its_fewest_from_who_loses_least_and_of_several_types_if_need_be() {
    let mut of = view(&[2, 2]);
    add(&mut of, (1, 4), &[2, 2], &[1_000, 1_000]);
    add(&mut of, (2, 2), &[0, 0], &[1_000, 1_000]);
    let of_each = |given: &[Vec<u16>]| given.iter().map(|nums| nums.iter().sum::<u16>()).collect::<Vec<_>>();
    assert_eq!(of_each(&given(&of)), [2, 2]);
    let mut of = view(&[2, 2]);
    add(&mut of, (3, 4), &[0, 0], &V100_T4);
    assert_eq!(given(&of)[0], [2, 1], "three of neither type alone");
    let mut of = view(&[2, 2]);
    of.classes[1].numeric = 1;
    add(&mut of, (3, 4), &[0, 0], &V100_T4);
    assert_eq!(EasyScale.plan(&of).shares[0].waits, Some(Wait::Slots(1)), "of two numeric classes");
}

#[test]
fn who_is_on_one_type_beside_others_is_as_without_them() {
    let mut of = view(&[4, 4]);
    add(&mut of, (1, 8), &[0, 0], &V100_T4);
    of.jobs.push(JobView { min: 1, max: 4, arrival: 1, ..JobView::default() });
    let given = given(&of);
    assert!(given[1].contains(&0) && given[1].iter().sum::<u16>() >= 1, "{given:?}");
}
