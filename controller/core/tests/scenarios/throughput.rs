//! Speeds that were measured: what is news of them, and what plans make of it. How long a step takes says what is left of a job, too.

use crate::stories::*;
use crate::world::World;
use controller_core::policy::ibm_dp::DELTA_MS;
use controller_core::policy::{WithAssumedSpeeds, WorkLeft};
use controller_core::policy_by_name;
use controller_core::state::Active;
use events_schema::fact::{Fact, PlanCause, WaitCause};
use events_schema::fold::FoldVersion;
use events_schema::job::JobSpec;
use events_schema::report::Report;
use events_schema::spread::Spread;
use events_schema::{JobId, ServerId};
use serde_json::json;

/// The generation in force, of so many members, was measured; whether that was news.
pub fn measured(world: &mut World, id: &JobId, members: u16, update_us: u64) -> bool {
    measured_of(world, id, members, (update_us, None))
}

/// The same of nine updates with a standard deviation of so many microseconds.
fn measured_with(world: &mut World, id: &JobId, members: u16, (update_us, deviation_us): (u64, u64)) -> bool {
    measured_of(world, id, members, (update_us, Some(Spread { updates: 9, deviation_us })))
}

fn measured_of(world: &mut World, id: &JobId, members: u16, (update_us, spread): (u64, Option<Spread>)) -> bool {
    let server = ServerId::parse("local").unwrap();
    let incarnation = world.state.server(&server).unwrap().incarnation;
    let Active { proposal, members: now, .. } = job(world, id).active().unwrap().clone();
    assert_eq!(now.len(), usize::from(members));
    let (job, generation, stride) = (id.clone(), proposal.generation, proposal.stride);
    let facts = world.foreign_report(
        server,
        incarnation,
        Report::ThroughputMeasured { job, generation, members, step_us: update_us, stride, spread },
    );
    has(&facts, |fact| matches!(fact, Fact::ThroughputMeasured { .. }))
}

/// A job on one slot, with another one to come.
fn on_one(world: World) -> (World, JobId) {
    on_one_of(world, spec())
}

fn on_one_of(mut world: World, spec: JobSpec) -> (World, JobId) {
    world.demand("local", 1);
    let id = world.submit(spec);
    world.run();
    assert_eq!(members(&world, &id).len(), 1);
    (world, id)
}

#[test]
fn no_job_is_given_two_slots_where_it_is_faster_on_one() {
    let (mut world, id) = on_one(local(2));
    assert!(measured(&mut world, &id, 1, 10_000));
    world.demand("local", 0);
    world.run();
    assert_eq!(members(&world, &id).len(), 2, "it is tried");
    assert!(measured(&mut world, &id, 2, 11_000));
    world.run();
    assert_eq!(members(&world, &id).len(), 1);
    assert_eq!((reason(&world, &id).cause, reason(&world, &id).waits), (PlanCause::Speed, Some(WaitCause::Speed)));
    assert!(!measured(&mut world, &id, 1, 12_400), "steps scatter");
    world.pass(60_000);
    world.run();
    assert_eq!(members(&world, &id).len(), 1);
    // Who has been without slots may have others than those that were measured.
    world.demand("local", 2);
    world.run();
    world.demand("local", 0);
    world.run();
    assert_eq!(members(&world, &id).len(), 2);
    assert!(measured(&mut world, &id, 2, 6_000));
    world.run();
    assert_eq!((members(&world, &id).len(), reason(&world, &id).waits), (2, Some(WaitCause::Slots { missing: 2 })));
}

#[test]
fn who_gives_way_to_another_job_says_so_whatever_was_measured() {
    let (mut world, id) = on_one(local(2));
    assert!(measured(&mut world, &id, 1, 10_000));
    world.demand("local", 0);
    world.run();
    assert!(measured(&mut world, &id, 2, 6_000));
    world.run();
    assert_eq!(members(&world, &id).len(), 2);
    let other = world.submit(spec());
    world.run();
    assert_eq!([members(&world, &id).len(), members(&world, &other).len()], [1, 1]);
    assert_eq!(reason(&world, &id).cause, PlanCause::GaveWay);
}

/// Both sizes are as fast, as far as was measured: which of them is faster is chance.
#[test]
fn no_job_changes_its_size_for_a_gain_that_its_measurements_leave_open() {
    // Of 10 and 10.2 ms with a standard deviation of 0.6 ms each the medians are 2.5 % off; of 0.03 ms, an eighth of that.
    for (deviation_us, then) in [(600, 2), (30, 1)] {
        let (mut world, id) = on_one(local(2));
        assert!(measured_with(&mut world, &id, 1, (10_000, deviation_us)));
        world.demand("local", 0);
        world.run();
        assert_eq!(members(&world, &id).len(), 2, "what was not measured is tried, however sure the other one is");
        assert!(measured_with(&mut world, &id, 2, (10_200, deviation_us)));
        world.run();
        assert_eq!(members(&world, &id).len(), then, "{deviation_us} µs");
    }
}

#[test]
fn no_job_grows_again_for_a_gain_that_its_measurements_leave_open() {
    for (deviation_us, then) in [(600, (1, Some(WaitCause::Speed))), (30, (2, None))] {
        let (mut world, id) =
            on_one_of(local(2), spec_with(|document| document["workers"] = json!({"min": 1, "max": 2})));
        assert!(measured_with(&mut world, &id, 1, (10_000, deviation_us)));
        world.demand("local", 0);
        world.run();
        assert!(measured_with(&mut world, &id, 2, (9_800, deviation_us)));
        world.run();
        assert_eq!(members(&world, &id).len(), 2);
        world.demand("local", 1);
        world.run();
        world.demand("local", 0);
        world.run();
        assert_eq!((members(&world, &id).len(), reason(&world, &id).waits), then, "{deviation_us} µs");
    }
}

#[test]
fn that_a_speed_is_surer_is_news_only_where_it_is_far_surer() {
    let (mut world, id) = on_one(local(2));
    let errors = |world: &World| {
        let view = view(world);
        [1, 2].map(|slots| view.speeds(0).error(slots).map(|error| (error * 1e3).round()))
    };
    assert!(measured(&mut world, &id, 1, 10_000));
    assert_eq!(errors(&world), [None; 2], "an earlier build does not say");
    assert!(measured_with(&mut world, &id, 1, (10_000, 2_400)), "it was not known before");
    assert_eq!(errors(&world), [Some(100.0), None], "in thousandths: 1.2533 · 2.4 / 10 / √9");
    assert!(!measured_with(&mut world, &id, 1, (10_300, 1_500)), "not half of it");
    assert!(!measured(&mut world, &id, 1, 10_300));
    assert!(measured_with(&mut world, &id, 1, (10_300, 1_200)));
    assert_eq!(errors(&world), [Some(49.0), None], "and of another median");
    assert!(!measured_with(&mut world, &id, 1, (10_000, 4_000)), "less sure is no news");
    assert!(measured_with(&mut world, &id, 1, (14_000, 4_000)), "unless it is another time");
    assert_eq!(errors(&world), [Some(119.0), None]);
    // However often it is measured, and each time a little more surely.
    let news = (0..4_000).rev().filter(|deviation_us| measured_with(&mut world, &id, 1, (14_000, *deviation_us)));
    assert_eq!(news.count(), 4, "six hundredths, three, one and a half and less than one");
}

#[test]
fn a_policy_of_assumed_speeds_has_none_measured() {
    let policy = WithAssumedSpeeds(policy_by_name("ebb").unwrap());
    let (mut world, id) = on_one(World::local(Box::new(policy), 2));
    assert!(!measured(&mut world, &id, 1, 10_000));
    world.demand("local", 0);
    world.run();
    assert!(!measured(&mut world, &id, 2, 11_000));
    world.run();
    assert_eq!((members(&world, &id).len(), reason(&world, &id).waits), (2, Some(WaitCause::Slots { missing: 2 })));
    let chosen = since(&world, 0).into_iter().filter(|fact| matches!(fact, Fact::PolicyChosen { .. }));
    let expected = Fact::PolicyChosen {
        policy: "ebb".to_owned(),
        assumed_speeds: Some(true),
        forecast_day_ms: None,
        fold_version: Some(FoldVersion::NEWEST),
    };
    assert_eq!(chosen.collect::<Vec<_>>(), [expected], "once");
}

#[test]
fn the_work_that_is_left_is_guessed_by_who_did_the_step() {
    let (mut world, id) = training();
    stepped(&mut world, &id, 1_000_000);
    let [WorkLeft::Estimated { total_ms, .. }] = left(&world)[..] else { panic!("its step is known") };
    assert_eq!(total_ms, 1_000_000, "a thousand steps of four members");
    world.demand("local", 3);
    world.run();
    assert_eq!(members(&world, &id).len(), 1);
    // One that is alone now tells of steps that four did.
    stepped_after(&mut world, &id, 1_000_000, 4);
    let [WorkLeft::Estimated { total_ms: alone_ms, .. }] = left(&world)[..] else { panic!("its step is known") };
    assert_eq!(alone_ms, total_ms);
}

/// A job whose batch may be sixteen times as large, with its range in the spec.
fn with_a_range() -> JobSpec {
    spec_with(|document| {
        document["determinism"] = json!("none");
        document["batch_range"] = json!({"max": 128, "learning_rate_rule": "sqrt"});
        document["checkpoint"] = json!({"every_seconds": 60});
    })
}

fn stride(world: &World, id: &JobId) -> u64 {
    job(world, id).active().unwrap().proposal.stride.steps()
}

/// `ibm-dp` decides, every ten minutes, while the fleet wants so many slots.
fn decides(world: &mut World, wanted: u32) {
    world.pass(DELTA_MS - world.at.0 % DELTA_MS);
    world.demand("local", wanted);
    world.run();
}

/// It was chosen when the generation was proposed, of which nothing had been measured, and nobody looked again.
#[test]
fn what_is_measured_of_a_size_moves_the_batch_of_those_that_train() {
    let mut world = World::local(policy_by_name("ibm-dp").unwrap(), 4);
    let id = world.submit(with_a_range());
    decides(&mut world, 3);
    assert_eq!((members(&world, &id).len(), stride(&world, &id)), (1, 1));
    assert!(measured(&mut world, &id, 1, 80_000));
    decides(&mut world, 0);
    assert_eq!((members(&world, &id).len(), stride(&world, &id)), (4, 1), "exchanges of four were not measured");
    assert!(measured(&mut world, &id, 4, 40_000));
    world.run();
    assert_eq!((members(&world, &id).len(), stride(&world, &id)), (4, 16), "they cost 20 ms each");
    let generation = job(&world, &id).active().unwrap().proposal.generation;
    assert!(measured(&mut world, &id, 4, 340_000), "as was expected");
    decides(&mut world, 0);
    assert_eq!(job(&world, &id).active().unwrap().proposal.generation, generation, "it comes to rest");
}

/// An update of four steps was taken for one step: the job seemed to be four times as long.
#[test]
fn the_work_that_is_left_is_of_steps_where_updates_take_several() {
    let policy = WithAssumedSpeeds(policy_by_name("ebb").unwrap());
    let mut world = World::local(Box::new(policy), 4);
    let id = world.submit(with_a_range());
    world.run();
    assert_eq!((members(&world, &id).len(), stride(&world, &id)), (4, 4));
    stepped(&mut world, &id, 4_000_000);
    let [WorkLeft::Estimated { total_ms, .. }] = left(&world)[..] else { panic!("its update is known") };
    assert_eq!(total_ms, 1_000_000, "a thousand steps of four members");
    assert_eq!(job(&world, &id).step_us, Some(1_000_000));
}
