//! Tenants with quotas: how they are set, and what `antman` makes of them while jobs run.

use crate::stories::*;
use crate::world::World;
use controller_core::{State, policy_by_name};
use events_schema::command::{Command, Expected};
use events_schema::fact::{Fact, Refusal, WaitCause};
use events_schema::{JobId, TenantId};
use serde_json::json;

fn tenant(name: &str) -> TenantId {
    TenantId::parse(name).unwrap()
}

fn set(world: &mut World, name: &str, quota_slots: Option<u32>) -> Vec<Fact> {
    world.command(Command::SetQuota { tenant: tenant(name), quota_slots })
}

fn antman(slots: u16) -> World {
    World::local(policy_by_name("antman").unwrap(), slots)
}

/// A job of a tenant that runs on so many slots.
fn submit(world: &mut World, tenant: &str, min: u16, max: u16) -> JobId {
    let job = world.submit(spec_with(|d| {
        (d["tenant"], d["workers"]) = (json!(tenant), json!({"min": min, "max": max}));
    }));
    world.run();
    job
}

fn slots(world: &World, id: &JobId) -> usize {
    job(world, id).slots().len()
}

/// Who reads the log from its beginning knows the same.
fn same_as_its_log(world: &World) {
    let mut state = State::new(world.state.cell());
    for (at, facts) in &world.log {
        facts.iter().for_each(|fact| state.apply(*at, fact));
    }
    assert_eq!(state.digest(), world.state.digest());
}

#[test]
fn a_quota_is_set_changed_and_taken_away_and_said_once() {
    let mut world = local(4);
    let said = |facts: &[Fact]| has(facts, |fact| matches!(fact, Fact::QuotaSet { .. }));
    let without = world.state.digest();
    assert!(said(&set(&mut world, "research", Some(3))));
    assert!(!said(&set(&mut world, "research", Some(3))), "it is so already");
    assert!(said(&set(&mut world, "research", Some(0))));
    assert_eq!(world.state.quotas().collect::<Vec<_>>(), [(&tenant("research"), 0)]);
    let near = refusal(&set(&mut world, "reserch", None));
    assert!(
        matches!(near, Refusal::Unknown { kind, nearest: Some(near), .. } if kind == "tenant" && near == "research")
    );
    let changed = Command::SetQuota { tenant: tenant("research"), quota_slots: Some(1) };
    assert_eq!(refusal(&world.command_if(Some(Expected::Absent), changed)), Refusal::Changed);
    same_as_its_log(&world);
    assert!(said(&set(&mut world, "research", None)));
    assert_eq!((world.state.quota(&tenant("research")), world.state.quotas().count()), (None, 0));
    assert_ne!(world.state.digest(), without, "commands are remembered");
    calm(&world);
}

#[test]
fn there_may_be_so_many_tenants_with_a_quota_and_a_change_of_one_is_none_more() {
    let mut world = local(1);
    for number in 0..1_000 {
        set(&mut world, &format!("t{number}"), Some(1));
    }
    let limit = Refusal::Limit { what: "tenants with a quota".to_owned(), limit: 1_000 };
    assert_eq!(refusal(&set(&mut world, "one-more", Some(1))), limit);
    set(&mut world, "t7", Some(2));
    set(&mut world, "t8", None);
    set(&mut world, "one-more", Some(1));
    assert_eq!((world.state.quota(&tenant("t7")), world.state.quotas().count()), (Some(2), 1_000));
}

#[test]
fn a_tenants_job_takes_its_quota_from_opportunistic_ones_at_once_and_they_have_it_back() {
    let mut world = antman(4);
    set(&mut world, "research", Some(3));
    let idle = submit(&mut world, "labs", 1, 4);
    world.train(&idle);
    assert_eq!((slots(&world, &idle), job(&world, &idle).service.queue), (4, 1));
    let theirs = submit(&mut world, "research", 3, 3);
    world.train(&idle);
    world.run();
    assert_eq!((slots(&world, &theirs), slots(&world, &idle)), (3, 1));
    let more = submit(&mut world, "research", 1, 1);
    assert_eq!((slots(&world, &more), slots(&world, &idle)), (0, 1), "the quota is used up");
    assert_eq!(reason(&world, &more).waits, Some(WaitCause::Quota { missing: 1 }));
    world.command(Command::CancelJob { job: theirs });
    world.run();
    assert_eq!((slots(&world, &more), slots(&world, &idle)), (1, 3));
    world.command(Command::CancelJob { job: more });
    world.run();
    assert_eq!((slots(&world, &idle), job(&world, &idle).restarts), (4, 0));
    same_as_its_log(&world);
    calm(&world);
}

#[test]
fn quotas_that_are_set_while_jobs_run_count_at_once() {
    let mut world = antman(4);
    let first = submit(&mut world, "labs", 1, 2);
    let second = submit(&mut world, "labs", 1, 2);
    let waits = submit(&mut world, "research", 4, 4);
    assert_eq!([&first, &second, &waits].map(|id| slots(&world, id)), [2, 2, 0], "all are guaranteed, by arrival");
    set(&mut world, "research", Some(4));
    world.run();
    assert_eq!(
        [&first, &second, &waits].map(|id| slots(&world, id)),
        [0, 0, 4],
        "what others use is not theirs any more"
    );
    set(&mut world, "research", Some(2));
    set(&mut world, "labs", Some(2));
    world.run();
    assert_eq!(
        [&first, &second, &waits].map(|id| slots(&world, id)),
        [2, 2, 0],
        "a gang is as large as it is, or is not"
    );
    let queue = |id: &JobId| job(&world, id).service.queue;
    assert_eq!([queue(&first), queue(&second)], [0, 1], "the latest one is beyond the quota");
    same_as_its_log(&world);
    calm(&world);
}

#[test]
fn whose_a_job_is_has_nothing_to_do_with_who_may_change_it() {
    let mut world = local(4);
    let theirs = submit(&mut world, "research", 1, 4);
    assert_eq!(
        (job(&world, &theirs).tenant(), &job(&world, &theirs).submitter),
        (&tenant("research"), &tenant("local"))
    );
    let unsaid = world.submit(spec());
    assert_eq!(job(&world, &unsaid).tenant(), &tenant("local"));
    world.command(Command::CancelJob { job: theirs.clone() });
    assert_eq!(phase(&world, &theirs), "cancelled");
}
