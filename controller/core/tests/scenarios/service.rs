//! What jobs have had of slots, and policies that go by it.

use crate::stories::*;
use crate::world::World;
use controller_core::{State, policy_by_name};
use events_schema::command::Command;
use events_schema::fact::Fact;
use events_schema::{JobId, TimeMs};
use serde_json::json;

fn attained(world: &World, id: &JobId) -> u64 {
    job(world, id).attained_slot_ms(world.at)
}

/// The state, and what the log says to who reads it from its beginning, are one.
fn same_as_its_log(world: &World) {
    let mut state = State::new(world.state.cell());
    for (at, facts) in &world.log {
        facts.iter().for_each(|fact| state.apply(*at, fact));
    }
    assert_eq!(state.digest(), world.state.digest());
}

#[test]
fn slots_are_counted_from_plan_to_plan_and_facts_say_so() {
    let (mut world, id) = training();
    let planned_at = job(&world, &id).scaling.as_ref().unwrap().at;
    world.pass(10_000);
    let held_ms = world.at.since_ms(planned_at);
    assert_eq!(attained(&world, &id), 4 * held_ms);
    let facts = world.demand("local", 3);
    let said = |f: &Fact| matches!(f, Fact::PlanAdopted { attained_slot_ms: Some(ms), .. } if *ms == 4 * held_ms);
    assert!(has(&facts, said), "{facts:#?}");
    world.run();
    world.pass(5_000);
    assert_eq!(attained(&world, &id), 4 * held_ms + 5_000);

    world.command(Command::SuspendJob { job: id.clone() });
    world.run();
    let until_now = attained(&world, &id);
    world.pass(60_000);
    assert_eq!((phase(&world, &id), attained(&world, &id)), ("suspended", until_now));
    assert_eq!(job(&world, &id).service.waits_since, None);
    world.command(Command::ResumeJob { job: id.clone() });
    world.run();
    world.pass(1_000);
    assert_eq!(attained(&world, &id), until_now + 1_000);
    same_as_its_log(&world);
    calm(&world);
}

#[test]
fn facts_of_before_say_nothing_of_service_and_nothing_is_made_of_that() {
    let (world, id) = training();
    let mut state = State::new(world.state.cell());
    for (at, facts) in &world.log {
        for fact in facts {
            let mut fact = fact.clone();
            if let Fact::PlanAdopted { attained_slot_ms, .. } = &mut fact {
                *attained_slot_ms = None;
            }
            state.apply(*at, &fact);
        }
    }
    assert_eq!(state.job(&id).unwrap().service, Default::default());
}

/// Amoeba §6.2, live: a job that has consumed its quantum makes room for one that has had less, without losing a step.
#[test]
fn tiresias_takes_slots_from_whoever_had_most() {
    let mut world = World::local(policy_by_name("tiresias").unwrap(), 4);
    let whole = |name: &str| spec_with(|d| (d["name"], d["workers"]) = (json!(name), json!({"min": 4, "max": 4})));
    let old = world.submit(whole("old"));
    world.run();
    world.train(&old);
    assert_eq!(members(&world, &old), [0, 1, 2, 3]);
    let begun = job(&world, &old).scaling.as_ref().unwrap().at;
    assert!(!has(&world.pass(2_499_000 - world.at.since_ms(begun)), |f| matches!(f, Fact::QueueEntered { .. })));
    let facts = world.pass(1_000);
    assert!(has(&facts, |f| matches!(f, Fact::QueueEntered { queue: 1, promoted_slot_ms: 0, .. })), "{facts:#?}");
    assert!(world.pass(1_000).is_empty(), "it is said once");

    let step = world.real_step(&old);
    let new = world.submit(whole("new"));
    world.run();
    assert_eq!((phase(&world, &old), phase(&world, &new)), ("queued", "running"));
    assert_eq!(job(&world, &old).service.queued_at, Some(TimeMs(begun.0 + 2_500_000)));
    let cancelled = world.command(Command::CancelJob { job: new });
    assert!(has(&cancelled, |f| matches!(f, Fact::JobCancelled { .. })));
    world.run();
    assert_eq!((phase(&world, &old), world.real_step(&old)), ("running", step));
    same_as_its_log(&world);
    calm(&world);
}
