//! A job whose own code computes other bits on some servers: it trains on those that it began on, and does not try the others over and over.

use crate::stories::*;
use crate::world::{World, slot};
use controller_core::limits::CLASS_AVOID_MS;
use events_schema::command::Command;
use events_schema::fact::{AvoidCause, Fact, LeaveCause, WaitCause};
use events_schema::{Digest, ExecutorId, JobId, SlotId};
use serde_json::json;

/// Two servers of two slots, whose processors are not the same.
fn unlike() -> World {
    let mut world = local(2);
    world.start_agent("other", 2);
    world.deliver_all();
    world.put_fleet("other", "other", 2, 2_000);
    world.demand("other", 0);
    world.computes("local", b"one");
    world.computes("other", b"another");
    world
}

fn pytorch(world: &mut World, device: &str) -> JobId {
    world.submit(spec_with(|document| {
        document["model"] = json!({"kind": "torch", "entry": "train:Job", "code": "33".repeat(32), "device": device});
    }))
}

fn avoided(facts: &[Fact]) -> Vec<SlotId> {
    let of_class = |fact: &Fact| match fact {
        Fact::SlotAvoided { slot, cause: AvoidCause::Class, .. } => Some(slot.clone()),
        _ => None,
    };
    facts.iter().filter_map(of_class).collect()
}

fn assigned(facts: &[Fact]) -> usize {
    facts.iter().filter(|fact| matches!(fact, Fact::ExecutorAssigned { .. })).count()
}

/// Where members of a job are.
fn servers(world: &World, id: &JobId) -> Vec<String> {
    let members = job(world, id).active().unwrap().members.iter();
    members.map(|member| world.state.executor(member).unwrap().slot.server.to_string()).collect()
}

#[test]
fn a_job_trains_on_the_servers_that_compute_alike_and_avoids_the_others_for_long() {
    let mut world = unlike();
    let id = pytorch(&mut world, "cpu");
    world.run();
    let facts = since(&world, 0);
    assert_eq!(servers(&world, &id), ["local", "local"]);
    assert_eq!(avoided(&facts), [slot("other", 0), slot("other", 1)], "one was enough to know of both");
    assert!(has(&facts, |f| matches!(f, Fact::ExecutorLeaving { cause: LeaveCause::Useless, .. })));
    assert!(!has(&facts, |f| matches!(f, Fact::PeersMissing { .. } | Fact::JobRestarted { .. })), "{facts:#?}");
    let class = Digest::of(b"one");
    assert_eq!(
        reason(&world, &id).waits,
        Some(WaitCause::Class(class)),
        "what is lent beside its slots computes other bits"
    );
    // Where something is lent of which that is not known it waits for slots again; and of what is not lent nothing is said.
    world.demand("other", 2);
    world.run();
    assert_eq!(reason(&world, &id).waits, Some(WaitCause::Slots { missing: 2 }), "nothing else is lent");
    world.demand("other", 0);
    world.run();
    assert_eq!(reason(&world, &id).waits, Some(WaitCause::Class(class)));
    // Nothing is tried there while it is avoided, and then it is once.
    let mark = world.log.len();
    world.pass(CLASS_AVOID_MS / 2);
    world.run();
    assert_eq!(assigned(&since(&world, mark)), 0);
    world.pass(CLASS_AVOID_MS / 2);
    world.run();
    let facts = since(&world, mark);
    assert!(assigned(&facts) <= 2 && avoided(&facts).len() == 2, "{facts:#?}");
    assert_eq!(servers(&world, &id), ["local", "local"]);
    calm(&world);
}

#[test]
fn a_job_keeps_the_class_it_began_in_whoever_is_ready_first_later() {
    let mut world = unlike();
    world.demand("other", 2);
    let id = pytorch(&mut world, "cpu");
    world.run();
    world.train(&id);
    world.command(Command::SuspendJob { job: id.clone() });
    world.run();
    world.demand("local", 2);
    world.demand("other", 0);
    world.run();
    let mark = world.log.len();
    world.command(Command::ResumeJob { job: id.clone() });
    world.run();
    assert_eq!(avoided(&since(&world, mark)).len(), 2);
    assert_eq!(phase(&world, &id), "starting");
    let class = Digest::of(b"one");
    assert_eq!(reason(&world, &id).waits, Some(WaitCause::Class(class)), "none of its plan's will do");
    world.demand("local", 0);
    world.run();
    assert_eq!(servers(&world, &id), ["local", "local"]);
    calm(&world);
}

#[test]
fn a_job_says_that_it_waits_for_its_numeric_class_where_only_others_are_lent() {
    let (mut world, class) = (local(2), Digest::of(b"class"));
    world.start_agent_of("other", 2, b"another class");
    world.deliver_all();
    world.put_fleet("other", "other", 2, 2_000);
    world.demand("other", 2);
    let id = world.submit(spec());
    world.run();
    assert_eq!(reason(&world, &id).waits, Some(WaitCause::Slots { missing: 2 }), "nothing else is lent");
    world.demand("other", 0);
    world.run();
    assert_eq!(reason(&world, &id).waits, Some(WaitCause::Class(class)), "what is lent beside its slots does not fit");
    world.train(&id);
    world.command(Command::SuspendJob { job: id.clone() });
    world.run();
    world.demand("local", 2);
    world.command(Command::ResumeJob { job: id.clone() });
    world.run();
    assert_eq!((phase(&world, &id), reason(&world, &id).waits), ("queued", Some(WaitCause::Class(class))));
    world.demand("local", 0);
    world.run();
    assert_eq!(servers(&world, &id), ["local", "local"]);
    calm(&world);
}

#[test]
fn a_job_that_has_not_begun_is_bound_to_no_server_that_is_gone() {
    let mut world = unlike();
    let id = pytorch(&mut world, "cpu");
    world.servers().iter().for_each(|server| _ = world.deliver_orders(server));
    let first = ExecutorId { job: id.clone(), number: 0 };
    assert!(world.get_ready(&first));
    world.deliver_all();
    let server = world.state.executor(&first).unwrap().slot.server.clone();
    world.lose_agent(&server);
    world.run();
    let left = if server.to_string() == "local" { "other" } else { "local" };
    assert_eq!(servers(&world, &id), [left, left]);
    assert_eq!(avoided(&since(&world, 0)), []);
    calm(&world);
}

#[test]
fn models_of_ebbs_are_of_no_such_class() {
    let mut world = local(4);
    let id = world.submit(spec());
    world.run();
    assert_eq!((members(&world, &id).len(), avoided(&since(&world, 0))), (4, vec![]));
}
