//! Jobs that are measured at several sizes before they settle.

use crate::stories::*;
use crate::throughput::measured;
use crate::world::World;
use controller_core::policy::POLICY_NAMES;
use controller_core::{policy_by_name, state::JobPhase};
use events_schema::JobId;
use events_schema::fact::{Fact, PlanCause};
use events_schema::job::JobSpec;
use serde_json::json;

const SECONDS: u64 = 20;

fn profiled() -> JobSpec {
    spec_with(|document| document["profile"] = json!({"sizes": [1, 2, 4], "seconds": SECONDS}))
}

fn slots(world: &World, id: &JobId) -> usize {
    job(world, id).slots().len()
}

fn cause(world: &World, id: &JobId) -> PlanCause {
    job(world, id).reason.clone().unwrap().cause
}

/// A step of a job that gains by every slot but the fourth.
fn step_us(members: usize) -> u64 {
    [0, 40_000, 21_000, 16_000, 15_900][members]
}

/// Brings a job on, and has each of its memberships measured, until its plan is its policy's; the sizes that it was measured at.
fn measure(world: &mut World, id: &JobId) -> Vec<usize> {
    let mut sizes = Vec::new();
    loop {
        world.run();
        let now = members(world, id).len();
        assert_eq!(now, slots(world, id));
        measured(world, id, now as u16, step_us(now));
        sizes.push(now);
        world.run();
        if members(world, id).len() == now {
            return sizes;
        }
    }
}

#[test]
fn a_job_is_measured_at_the_sizes_of_its_spec_and_settles() {
    for policy in POLICY_NAMES {
        let mut world = World::local(policy_by_name(policy).unwrap(), 6);
        let id = world.submit(profiled());
        world.run();
        if job(&world, &id).active().is_none() {
            // It is decided every ten minutes.
            world.pass(600_000);
            world.run();
        }
        let began = slots(&world, &id);
        let sizes = measure(&mut world, &id);
        for size in [1, 2, 4] {
            assert!(sizes.contains(&size), "{policy}: {sizes:?}");
        }
        assert!(sizes.len() <= 6, "{policy}: {sizes:?}");
        assert_ne!(cause(&world, &id), PlanCause::Profile, "{policy}: it is its policy's again");
        let JobPhase::Running(placement, _) = &job(&world, &id).phase else { panic!("{policy}") };
        assert!([1, 2, 4].iter().all(|size| placement.step_us_by_size.contains_key(size)), "{policy}");
        // It was told, and nothing is tried twice.
        world.pass(120_000);
        world.run();
        assert_ne!(cause(&world, &id), PlanCause::Profile, "{policy}");
        let settled = slots(&world, &id);
        assert!(settled >= 1 && settled <= began.max(4), "{policy}: {settled}");
    }
}

#[test]
fn a_size_that_is_not_measured_in_its_time_is_given_up() {
    let mut world = local(4);
    let id = world.submit(profiled());
    world.run();
    assert_eq!(slots(&world, &id), 4);
    // Nothing is measured at any size: each has its time, the first one that of its policy's size.
    for expected in [1, 2] {
        world.pass(SECONDS * 1_000 - 1_000);
        assert_ne!(slots(&world, &id), expected);
        world.pass(2_000);
        world.run();
        assert_eq!((slots(&world, &id), cause(&world, &id)), (expected, PlanCause::Profile));
    }
    world.pass(SECONDS * 1_000 + 1_000);
    world.run();
    assert_eq!(slots(&world, &id), 4);
    world.pass(10 * SECONDS * 1_000);
    world.run();
    assert_eq!(slots(&world, &id), 4);
    assert_ne!(cause(&world, &id), PlanCause::Profile);
}

/// A policy that keeps to two slots each, so that what is measured beyond that is on idle ones.
fn beyond_its_plan() -> (World, JobId) {
    let mut world = World::local(Box::new(TwoEach), 5);
    let id = world.submit(profiled());
    world.run();
    assert_eq!(slots(&world, &id), 2);
    for (size, next) in [(2, 1), (1, 4)] {
        measured(&mut world, &id, size, step_us(usize::from(size)));
        world.run();
        assert_eq!((members(&world, &id).len(), cause(&world, &id)), (next, PlanCause::Profile));
    }
    (world, id)
}

struct TwoEach;

impl controller_core::policy::Policy for TwoEach {
    fn name(&self) -> &'static str {
        "ebb"
    }
    fn plan(&self, view: &controller_core::policy::View) -> controller_core::policy::Plan {
        let mut left = view.classes.first().map_or(0, |class| class.capacity);
        let share = |_: &_| {
            let slots = left.min(2) as u16;
            left -= u32::from(slots);
            controller_core::policy::Share { slots, ..Default::default() }
        };
        let shares = view.jobs.iter().map(share).collect();
        controller_core::policy::Plan { shares, ..Default::default() }
    }
}

#[test]
fn idle_slots_go_to_whoever_comes_at_once() {
    let (mut world, id) = beyond_its_plan();
    let other = world.submit(spec());
    world.run();
    assert_eq!([slots(&world, &id), slots(&world, &other)], [2, 2]);
    assert_eq!(cause(&world, &id), PlanCause::GaveWay);
}

#[test]
fn a_fleet_takes_what_is_measured_on_before_anybodys_own() {
    let mut world = World::local(Box::new(TwoEach), 6);
    let other = world.submit(spec());
    world.run();
    let id = world.submit(profiled());
    world.run();
    for size in [2, 1] {
        measured(&mut world, &id, size, step_us(usize::from(size)));
        world.run();
    }
    assert_eq!([slots(&world, &other), slots(&world, &id)], [2, 4]);
    world.demand("local", 2);
    world.run();
    assert_eq!([slots(&world, &other), slots(&world, &id)], [2, 2]);
}

#[test]
fn where_speeds_are_assumed_nothing_is_measured() {
    let policy = controller_core::policy::WithAssumedSpeeds(policy_by_name("ebb").unwrap());
    let mut world = World::local(Box::new(policy), 4);
    let id = world.submit(profiled());
    world.run();
    world.pass(5 * SECONDS * 1_000);
    world.run();
    let profiles = |fact: &Fact| matches!(fact, Fact::PlanAdopted { reason, .. } if reason.cause == PlanCause::Profile);
    assert!(!since(&world, 0).iter().any(profiles));
    assert_eq!(slots(&world, &id), 4);
}
