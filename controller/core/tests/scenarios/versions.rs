//! Changes that expect something: of two that were made of the same reading, the first comes through.

use crate::stories::*;
use crate::world::World;
use controller_core::version::found;
use events_schema::FleetId;
use events_schema::command::{Command, Expected, OfferMode, Recall};
use events_schema::fact::{Fact, Refusal};

fn recall(slots: u32) -> Command {
    Command::RecallFleet { fleet: FleetId::parse("local").unwrap(), slots: Recall::Slots(slots) }
}

/// Gives a command as somebody does who read the state when it was as `expected` says; whether it came through.
fn passes(world: &mut World, expected: Expected, command: Command) -> bool {
    let facts = world.command_if(Some(expected), command);
    let refused = |fact: &Fact| matches!(fact, Fact::CommandRefused { refusal: Refusal::Changed, .. });
    assert!(!has(&facts, refused) || facts.len() == 1, "what is refused changes nothing: {facts:?}");
    !has(&facts, refused)
}

#[test]
fn of_two_changes_that_expect_the_same_fleet_one_comes_through() {
    let (mut world, _) = training();
    let read = found(&world.state, &recall(1));
    assert!(passes(&mut world, read, recall(1)));
    assert!(!passes(&mut world, read, recall(2)), "the fleet is recalled by now");
    let read = found(&world.state, &recall(2));
    assert!(passes(&mut world, read, recall(2)), "whoever looked again");
    let before = found(&world.state, &recall(3));
    world.run();
    assert!(!passes(&mut world, before, recall(3)), "its slots went back meanwhile");
    calm(&world);
}

#[test]
fn of_two_changes_that_expect_the_same_job_one_comes_through() {
    let (mut world, id) = training();
    let other = world.submit(spec());
    let suspend = Command::SuspendJob { job: id.clone() };
    let read = found(&world.state, &suspend);
    world.command(Command::CancelJob { job: other });
    assert!(passes(&mut world, read, suspend), "another job is another thing");
    assert!(!passes(&mut world, read, Command::CancelJob { job: id.clone() }));
    assert_ne!(phase(&world, &id), "cancelled");
    assert!(!world.command(Command::CancelJob { job: id.clone() }).is_empty());
    assert_eq!(phase(&world, &id), "cancelled", "whoever expects nothing is served whatever is there");
    calm(&world);
}

#[test]
fn of_two_who_make_what_is_not_there_one_comes_through() {
    let mut world = local(2);
    let put = |reclaim_deadline_ms| Command::PutFleet {
        fleet: FleetId::parse("chat").unwrap(),
        slots: Vec::new(),
        offers: OfferMode::Explicit,
        reclaim_deadline_ms,
    };
    assert_eq!(found(&world.state, &put(1)), Expected::Absent);
    let facts = world.command_if(Some(Expected::Absent), put(1_000));
    if facts.iter().any(|fact| matches!(fact, Fact::CommandRefused { .. })) {
        panic!("{facts:?}");
    }
    assert!(!passes(&mut world, Expected::Absent, put(2_000)));
    calm(&world);
}
