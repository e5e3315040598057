//! Guest slots: opportunistic jobs share slots of guaranteed ones under `antman`, and leave with them, before them, or when nobody shares any more.

use crate::stories::*;
use crate::world::{World, dataset, slot};
use controller_core::limits::STUCK_MS;
use controller_core::{State, policy_by_name};
use events_schema::command::Command;
use events_schema::fact::Fact;
use events_schema::report::ExitCause;
use events_schema::{FleetId, JobId, ServerId, TenantId};
use serde_json::json;

/// A server whose slots have guest slots, of a fleet that needs none; `research` has all of them guaranteed, and nobody else has anything.
fn shared(policy: &str, slots: u16) -> World {
    let mut world = World::new(policy_by_name(policy).unwrap());
    world.start_agent_with_guests("local", slots);
    world.deliver_all();
    world.register(dataset("digits"));
    world.put_fleet("local", "local", slots, 2_000);
    world.demand("local", 0);
    let tenant = TenantId::parse("research").unwrap();
    world.command(Command::SetQuota { tenant, quota_slots: Some(slots.into()) });
    world
}

fn submit(world: &mut World, tenant: &str, min: u16, max: u16) -> JobId {
    let job = world.submit(spec_with(|d| {
        (d["tenant"], d["workers"]) = (json!(tenant), json!({"min": min, "max": max}));
    }));
    world.run();
    job
}

/// Of one slot, and no agent has a word.
fn submit_unheard(world: &mut World, tenant: &str) -> JobId {
    world.submit(spec_with(|d| (d["tenant"], d["workers"]) = (json!(tenant), json!({"min": 1, "max": 1}))))
}

fn on(world: &World, id: &JobId) -> Vec<String> {
    job(world, id).slots().iter().map(ToString::to_string).collect()
}

fn well(world: &World) {
    let mut state = State::new(world.state.cell());
    for (at, facts) in &world.log {
        facts.iter().for_each(|fact| state.apply(*at, fact));
    }
    assert_eq!(state.digest(), world.state.digest(), "who reads the log knows the same");
    calm(world);
}

/// A guaranteed job on all of two slots, and one beside it that has no quota.
fn guest_beside_host() -> (World, JobId, JobId) {
    let mut world = shared("antman", 2);
    let host = submit(&mut world, "research", 2, 2);
    world.train(&host);
    let guest = submit(&mut world, "labs", 1, 2);
    world.train(&guest);
    world.run();
    assert_eq!(
        (on(&world, &host), on(&world, &guest)),
        (vec!["local/0".into(), "local/1".into()], vec!["local/0-guest".to_owned(), "local/1-guest".into()])
    );
    assert_eq!(phase(&world, &guest), "running");
    (world, host, guest)
}

#[test]
fn who_has_no_quota_shares_the_slots_of_who_has_and_they_count_once() {
    let (mut world, ..) = guest_beside_host();
    let fleet = world.state.fleet(&FleetId::parse("local").unwrap()).unwrap();
    assert_eq!((fleet.lent, world.state.loans().count(), world.state.slots().count()), (2, 2, 2));
    let third = submit(&mut world, "research", 1, 1);
    assert_eq!(on(&world, &third), Vec::<String>::new(), "a guaranteed job shares nobody's");
    assert!(world.run_to_end(200));
    well(&world);
}

#[test]
fn only_a_policy_that_shares_slots_is_shown_any() {
    for policy in ["ebb", "fifo", "tiresias"] {
        let mut world = shared(policy, 2);
        let host = submit(&mut world, "research", 2, 2);
        let other = submit(&mut world, "labs", 1, 2);
        assert_eq!((on(&world, &host).len(), on(&world, &other).len()), (2, 0), "{policy}");
        well(&world);
    }
}

#[test]
fn a_slot_is_its_fleets_only_when_its_guest_has_left_it_too() {
    let (mut world, host, guest) = guest_beside_host();
    let facts = world.demand("local", 2);
    assert!(!has(&facts, |fact| matches!(fact, Fact::SlotReturned { .. })), "both are still there");
    let deadlines: Vec<_> = world.state.executors().map(|(_, executor)| executor.leaving.unwrap().deadline).collect();
    assert!(deadlines.windows(2).all(|pair| pair[0] == pair[1]), "{deadlines:?}");
    world.run();
    let of_host: Vec<_> = world.processes().into_iter().filter(|id| id.job == host).collect();
    for id in of_host {
        world.end_process(&id, ExitCause::Left);
    }
    world.deliver_all();
    let lent = |world: &World| world.state.loans().count();
    if world.state.executors().any(|(id, _)| id.job == guest) {
        assert_eq!(lent(&world), 2, "the guest is still there");
    }
    world.train(&host);
    world.train(&guest);
    world.run();
    world.pass(3_000);
    world.run();
    assert_eq!((lent(&world), world.state.executors().count()), (0, 0));
    assert_eq!((phase(&world, &host), phase(&world, &guest)), ("queued", "queued"));
    world.demand("local", 0);
    assert!(world.run_to_end(200));
    well(&world);
}

#[test]
fn a_slot_that_is_taken_back_at_its_agent_takes_its_guest_along() {
    let (mut world, _, guest) = guest_beside_host();
    world.take_back(&slot("local", 0), false);
    world.run();
    world.train(&guest);
    world.run();
    assert!(!on(&world, &guest).contains(&"local/0-guest".to_owned()));
    world.pass(3_000);
    world.run();
    assert!(world.state.guests().all(|(id, of)| id.index & 1 == 1 || of.executor.is_none()));
    well(&world);
}

#[test]
fn a_guest_stays_when_its_host_goes_and_has_slots_of_its_own_when_it_has_settled() {
    let (mut world, host, guest) = guest_beside_host();
    world.command(Command::CancelJob { job: host });
    world.run();
    assert_eq!(on(&world, &guest), ["local/0-guest", "local/1-guest"], "not at once");
    for _ in 0..40 {
        world.pass(1_000);
        world.train(&guest);
        world.run();
    }
    assert_eq!(on(&world, &guest), ["local/0", "local/1"]);
    assert!(world.run_to_end(200));
    well(&world);
}

#[test]
fn who_has_to_make_way_goes_on_beside_who_came() {
    let mut world = shared("antman", 2);
    let guest = submit(&mut world, "labs", 1, 2);
    world.train(&guest);
    assert_eq!(on(&world, &guest), ["local/0", "local/1"]);
    let host = submit(&mut world, "research", 2, 2);
    for _ in 0..10 {
        world.train(&guest);
        world.train(&host);
        world.pass(1_000);
        world.run();
    }
    assert_eq!(on(&world, &host), ["local/0", "local/1"]);
    assert_eq!(on(&world, &guest), ["local/0-guest", "local/1-guest"]);
    assert!(world.run_to_end(200));
    well(&world);
}

/// Two guaranteed jobs of one slot each, and how much of it each uses.
fn hosts(busy: [Option<u8>; 2]) -> World {
    let mut world = shared("antman", 2);
    for (index, busy) in (0..).zip(busy) {
        world.busy.insert(slot("local", index), busy);
    }
    for _ in 0..2 {
        let host = submit(&mut world, "research", 1, 1);
        world.train(&host);
        world.run();
    }
    world
}

/// AntMan, §3.3: "Only GPUs with a utilization of less than M (set as 80% for now) in the past 10 seconds can be selected as candidates".
#[test]
fn a_guest_begins_beside_a_host_that_leaves_enough_of_its_slot_and_nowhere_else() {
    for (busy, expected) in [
        ([Some(80), Some(79)], vec!["local/1-guest"]),
        ([Some(95), Some(100)], vec![]),
        ([None, Some(3)], vec!["local/1-guest"]),
        ([None, None], vec![]),
    ] {
        let mut world = hosts(busy);
        let guest = submit(&mut world, "labs", 1, 2);
        assert_eq!(on(&world, &guest), expected, "{busy:?}");
        assert!(world.run_to_end(200));
        well(&world);
    }
}

#[test]
fn the_freest_comes_first_and_what_differs_by_little_is_the_same() {
    for (busy, expected) in [([70, 20], "local/1-guest"), ([20, 70], "local/0-guest"), ([29, 20], "local/0-guest")] {
        let mut world = hosts(busy.map(Some));
        let guest = submit(&mut world, "labs", 1, 1);
        assert_eq!(on(&world, &guest), [expected], "{busy:?}");
        well(&world);
    }
}

#[test]
fn a_guest_stays_where_it_is_when_its_host_becomes_busy_and_another_comes_only_to_who_is_not() {
    let mut world = hosts([Some(10), Some(10)]);
    let guest = submit(&mut world, "labs", 1, 1);
    world.train(&guest);
    assert_eq!(on(&world, &guest), ["local/0-guest"]);
    world.busy.extend([(slot("local", 0), Some(99)), (slot("local", 1), Some(99))]);
    for _ in 0..5 {
        world.pass(1_000);
        world.run();
    }
    assert_eq!(on(&world, &guest), ["local/0-guest"]);
    let second = submit(&mut world, "labs", 1, 1);
    assert_eq!(on(&world, &second), Vec::<String>::new());
    world.busy.insert(slot("local", 1), Some(40));
    world.run();
    world.pass(1_000);
    world.run();
    assert_eq!(on(&world, &second), ["local/1-guest"]);
    assert!(world.run_to_end(200));
    well(&world);
}

#[test]
fn who_packs_jobs_asks_nobody_how_busy_it_is() {
    let mut world = shared("gandiva-like", 2);
    let first = submit(&mut world, "research", 2, 2);
    world.train(&first);
    world.busy.extend([(slot("local", 0), Some(100)), (slot("local", 1), None)]);
    let second = submit(&mut world, "labs", 2, 2);
    assert_eq!(on(&world, &second), ["local/0-guest", "local/1-guest"]);
    assert!(world.run_to_end(200));
    well(&world);
}

#[test]
fn an_agent_that_comes_back_without_guest_slots_has_no_guests() {
    let (mut world, host, guest) = guest_beside_host();
    let server = ServerId::parse("local").unwrap();
    world.lose_agent(&server);
    assert!(on(&world, &guest).is_empty() && on(&world, &host).is_empty());
    world.start_agent("local", 2);
    world.run();
    assert_eq!((on(&world, &guest).len(), world.state.guests().count()), (0, 0));
    world.start_agent_with_guests("local", 2);
    world.run();
    world.pass(1_000);
    world.run();
    assert_eq!(world.state.guests().count(), 2);
    assert!(world.run_to_end(200));
    well(&world);
}

#[test]
fn whoever_is_a_guest_goes_when_another_policy_shares_nothing() {
    let (mut world, host, guest) = guest_beside_host();
    world.policy = policy_by_name("fifo").unwrap();
    world.pass(1_000);
    world.run();
    world.train(&guest);
    world.run();
    assert_eq!((on(&world, &host).len(), on(&world, &guest).len()), (2, 0));
    assert!(world.run_to_end(200));
    well(&world);
}

/// Two guests whose hosts have gone, so that nobody could share those slots: they were taken off the guest slots of others, of which there was one.
#[test]
fn guests_that_do_not_end_are_taken_off_nobody_elses_guest_slots() {
    let mut world = shared("antman", 3);
    let host = submit(&mut world, "research", 2, 2);
    let other = submit(&mut world, "research", 1, 1);
    let guest = submit(&mut world, "labs", 2, 2);
    for job in [&host, &other, &guest] {
        world.train(job);
        world.run();
    }
    assert_eq!(
        (on(&world, &other), on(&world, &guest)),
        (vec!["local/2".into()], vec!["local/0-guest".to_owned(), "local/1-guest".into()])
    );
    world.command(Command::CancelJob { job: host });
    world.command(Command::CancelJob { job: guest });
    // Nobody hears of their ends.
    let facts = world.pass(STUCK_MS);
    let stuck = facts.iter().filter(|fact| matches!(fact, Fact::ExecutorStuck { .. })).count();
    assert_eq!(stuck, 4, "{facts:?}");
    let waits = submit_unheard(&mut world, "labs");
    assert_eq!(on(&world, &waits), ["local/2-guest"], "that one is there");
}

#[test]
fn a_fleet_declares_no_guest_slot() {
    let mut world = shared("antman", 1);
    let slots = vec![slot("local", 0).guest()];
    let (fleet, offers) = (FleetId::parse("other").unwrap(), events_schema::command::OfferMode::ByDemand);
    let facts = world.command(Command::PutFleet { fleet, slots, offers, reclaim_deadline_ms: 1 });
    assert!(has(&facts, |fact| matches!(fact, Fact::CommandRefused { .. })));
    well(&world);
}

/// The kernel ends guests first when a server's memory runs out, whoever took it.
#[test]
fn a_guest_that_the_kernel_ends_or_that_finds_no_room_is_not_its_jobs_fault() {
    let (mut world, host, guest) = guest_beside_host();
    for round in 0..10 {
        let exit = match round % 2 {
            0 => ExitCause::Signal(9),
            _ => ExitCause::NotStarted("this server has 3 MiB of memory left".to_owned()),
        };
        let its: Vec<_> = world.processes().into_iter().filter(|id| id.job == guest).collect();
        its.iter().for_each(|id| assert!(world.end_process(id, exit.clone())));
        for _ in 0..70 {
            world.pass(1_000);
            world.run();
            world.train(&host);
        }
    }
    assert_ne!(phase(&world, &guest), "failed", "however often");
    assert!(world.run_to_end(400));
    assert_eq!((phase(&world, &host), phase(&world, &guest)), ("finished", "finished"));
    well(&world);
}
