//! Jobs on slots of several types: who may be, which slots they get, how ranks are placed, and what becomes of it under a policy that mixes none.

use crate::stories::{calm, reason, spec_with};
use crate::world::{World, dataset};
use controller_core::policy_by_name;
use events_schema::command::Command;
use events_schema::fact::{Fact, WaitCause};
use events_schema::report::Report;
use events_schema::slot_type::TypeTime;
use events_schema::{JobId, ServerId};
use serde_json::json;
use std::collections::BTreeMap;

/// A server of a slow type, one of a fast one, and one of a class apart.
fn world(policy: &str) -> World {
    let mut world = World::new(policy_by_name(policy).unwrap());
    world.start_agent_of_type("a", 2, "slow");
    world.start_agent_of_type("b", 2, "fast");
    world.start_agent_of("c", 4, b"another");
    for (server, slots) in [("a", 2), ("b", 2), ("c", 4)] {
        world.put_fleet(server, server, slots, 2_000);
        world.deliver_all();
    }
    world.demand("a", 0);
    world.demand("b", 0);
    world.register(dataset("digits"));
    world
}

fn submit(world: &mut World, (min, max): (u16, u16), types: &str) -> JobId {
    let id = world.submit(spec_with(|document| {
        document["workers"] = json!({"min": min, "max": max});
        document["types"] = json!(types);
    }));
    world.run();
    calm(world);
    id
}

/// Ranks of a job's members, by their servers.
fn ranks(world: &World, id: &JobId) -> BTreeMap<String, Vec<usize>> {
    let mut ranks: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    let active = world.state.job(id).unwrap().active().unwrap();
    for member in &active.proposal.members {
        let server = world.state.executor(&member.executor).unwrap().slot.server.to_string();
        ranks.entry(server).or_default().push(member.ranks.len());
    }
    ranks
}

/// The watch says what types take a job; how many generations followed.
fn measured(world: &mut World, id: &JobId, times: &[(&str, u64)]) -> usize {
    let times =
        times.iter().map(|(name, unit_us)| TypeTime { slot_type: Some(name.parse().unwrap()), unit_us: *unit_us });
    let (server, mark) = (ServerId::parse("a").unwrap(), world.log.len());
    let incarnation = world.state.server(&server).unwrap().incarnation;
    world.foreign_report(server, incarnation, Report::TypesMeasured { job: id.clone(), times: times.collect() });
    world.run();
    calm(world);
    world.log[mark..]
        .iter()
        .flat_map(|(_, facts)| facts)
        .filter(|fact| matches!(fact, Fact::GenerationProposed { .. }))
        .count()
}

#[test]
fn a_job_that_may_is_on_several_types_and_faster_ones_host_more_once_they_were_measured() {
    let mut world = world("easyscale");
    let id = submit(&mut world, (1, 4), "any");
    assert_eq!(ranks(&world, &id), [("a".to_owned(), vec![1, 1]), ("b".to_owned(), vec![1, 1])].into());
    // With one rank each there is nothing to share out otherwise, and nobody is of no use.
    assert_eq!(measured(&mut world, &id, &[("fast", 40_000), ("slow", 60_000)]), 0);
    // Three times as fast: two of the fast ones do all of it as soon, and the slow ones go.
    measured(&mut world, &id, &[("fast", 20_000), ("slow", 60_000)]);
    world.pass(1_000);
    world.run();
    assert_eq!(ranks(&world, &id), [("b".to_owned(), vec![2, 2])].into());
}

#[test]
fn ranks_are_placed_by_speed_from_the_first_generation_on_that_is_mixed_where_types_are_known() {
    let mut world = world("easyscale");
    let id = submit(&mut world, (3, 8), "any");
    assert_eq!(ranks(&world, &id), [("a".to_owned(), vec![2, 2]), ("b".to_owned(), vec![2, 2])].into());
    assert_eq!(measured(&mut world, &id, &[("fast", 30_000), ("slow", 90_000)]), 1);
    assert_eq!(ranks(&world, &id), [("a".to_owned(), vec![1, 1]), ("b".to_owned(), vec![3, 3])].into());
    // Its types are its own: it begins anew with what is known of them.
    world.demand("a", 2);
    world.demand("b", 2);
    world.run();
    assert!(world.state.job(&id).unwrap().active().is_none());
    world.demand("a", 0);
    world.demand("b", 0);
    world.pass(60_000);
    world.run();
    assert_eq!(ranks(&world, &id), [("a".to_owned(), vec![1, 1]), ("b".to_owned(), vec![3, 3])].into());
}

/// EasyScale §3.4.2: a job that has not run is as fast on each type as jobs before it were.
#[test]
fn until_a_job_is_measured_types_are_to_it_what_they_were_to_others() {
    let mut world = world("easyscale");
    let first = submit(&mut world, (3, 8), "any");
    measured(&mut world, &first, &[("fast", 30_000), ("slow", 90_000)]);
    world.command(Command::CancelJob { job: first });
    world.run();
    let second = submit(&mut world, (3, 8), "any");
    assert_eq!(ranks(&world, &second), [("a".to_owned(), vec![1, 1]), ("b".to_owned(), vec![3, 3])].into());
    // What itself takes counts as soon as it is known.
    assert_eq!(measured(&mut world, &second, &[("fast", 60_000), ("slow", 60_000)]), 1);
    assert_eq!(ranks(&world, &second), [("a".to_owned(), vec![2, 2]), ("b".to_owned(), vec![2, 2])].into());
}

/// It keeps its fewest slots until the others are there, so for a moment it has more than its share.
#[test]
fn a_job_with_its_fewest_slots_takes_a_faster_one_for_a_slow_one() {
    let mut world = world("easyscale");
    world.demand("b", 2);
    let id = submit(&mut world, (2, 4), "any");
    assert_eq!(ranks(&world, &id), [("a".to_owned(), vec![2, 2])].into());
    measured(&mut world, &id, &[("fast", 20_000), ("slow", 60_000)]);
    world.demand("b", 0);
    for _ in 0..5 {
        world.pass(1_000);
        world.run();
    }
    calm(&world);
    // A second fast one beside them would have nothing to do: three ranks of the first take as long as the one of the slow one.
    assert_eq!(ranks(&world, &id), [("a".to_owned(), vec![1]), ("b".to_owned(), vec![3])].into());
}

#[test]
fn a_job_that_says_nothing_is_on_one_type_and_numeric_classes_are_never_mixed() {
    let mut world = world("easyscale");
    let one = submit(&mut world, (1, 4), "one");
    assert_eq!(world.state.job(&one).unwrap().slots().len(), 2, "two of the four slots");
    assert_eq!(reason(&world, &one).waits, Some(WaitCause::Type), "the other two are of another type");
    world.demand("c", 0);
    let any = submit(&mut world, (1, 8), "any");
    let job = world.state.job(&any).unwrap();
    let classes = job.slots().iter().map(|slot| world.state.server(&slot.server).unwrap().class);
    assert_eq!(classes.collect::<std::collections::BTreeSet<_>>().len(), 1);
    assert_eq!(job.slots().len(), 4, "the other class has most room");
}

#[test]
fn under_a_policy_that_mixes_none_a_job_comes_to_be_on_one_type() {
    let mut world = world("easyscale");
    let id = submit(&mut world, (1, 4), "any");
    assert_eq!(world.state.job(&id).unwrap().slots().len(), 4);
    world.policy = policy_by_name("ebb").unwrap();
    // Another job needs slots, so what the first has beyond its fewest is looked at.
    let second = submit(&mut world, (2, 2), "one");
    world.pass(60_000);
    world.run();
    let servers = |id: &JobId| {
        world.state.job(id).unwrap().slots().iter().map(|slot| slot.server.to_string()).collect::<Vec<_>>()
    };
    assert_eq!((servers(&id), servers(&second)), (vec!["b".to_owned(); 2], vec!["a".to_owned(); 2]));
}

#[test]
fn a_job_that_loses_slots_of_a_type_goes_on_with_others() {
    let mut world = world("easyscale");
    let id = submit(&mut world, (2, 4), "any");
    world.demand("b", 2);
    world.run();
    calm(&world);
    assert_eq!(ranks(&world, &id), [("a".to_owned(), vec![2, 2])].into());
    world.lose_agent(&ServerId::parse("a").unwrap());
    world.run();
    assert!(world.state.job(&id).unwrap().slots().is_empty());
}

/// A fleet that lends three of its four slots beside one that needs none, and a job that may be on both, at its most.
fn lent_and_own() -> (World, JobId) {
    let mut world = World::new(policy_by_name("lyra").unwrap());
    world.start_agent_of_type("a", 4, "slow");
    world.start_agent_of_type("b", 2, "fast");
    for (server, slots) in [("a", 4), ("b", 2)] {
        world.put_fleet(server, server, slots, 2_000);
        world.deliver_all();
    }
    world.demand("a", 1);
    world.demand("b", 0);
    world.register(dataset("digits"));
    let id = submit(&mut world, (2, 4), "any");
    (world, id)
}

/// How many slots of each server a job has.
fn on(world: &World, id: &JobId) -> BTreeMap<String, usize> {
    let mut on = BTreeMap::new();
    for slot in world.state.job(id).unwrap().slots() {
        *on.entry(slot.server.to_string()).or_default() += 1;
    }
    on
}

#[test]
fn under_lyra_a_jobs_fewest_are_on_its_own_type_and_the_rest_on_what_is_lent() {
    let (mut world, id) = lent_and_own();
    assert_eq!(on(&world, &id), [("a".to_owned(), 2), ("b".to_owned(), 2)].into());
    assert_eq!(ranks(&world, &id), [("a".to_owned(), vec![1, 1]), ("b".to_owned(), vec![1, 1])].into());
    // Nothing of it is lent any more: it goes on with its fewest, and nobody stood still.
    world.demand("a", 4);
    world.run();
    calm(&world);
    assert_eq!(ranks(&world, &id), [("b".to_owned(), vec![2, 2])].into());
}

#[test]
fn under_lyra_a_fleet_gets_back_what_jobs_have_beyond_their_fewest_whatever_type_those_are_of() {
    let (mut world, id) = lent_and_own();
    let other = submit(&mut world, (1, 1), "one");
    assert_eq!(on(&world, &other), [("a".to_owned(), 1)].into());
    for (needed, left) in [(2, 1), (3, 0)] {
        world.demand("a", needed);
        world.run();
        calm(&world);
        assert_eq!(on(&world, &id).get("a").copied().unwrap_or(0), left);
        assert_eq!(on(&world, &other), [("a".to_owned(), 1)].into(), "it has its fewest there");
    }
    assert_eq!(on(&world, &id), [("b".to_owned(), 2)].into());
}
