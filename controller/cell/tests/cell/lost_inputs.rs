//! Inputs that a topic loses: the controller ends by a name for what is missing, rather than pass over what is asked next.

use crate::support::{World, slot};
use controller_cell::{CellEnd, CellFailure};
use events_rule::Stream;
use events_schema::Offset;
use events_schema::report::Report;

/// What was removed is missing for every controller that takes over: without an end that names it, one take-over would follow the other for ever.
#[test]
fn an_input_that_was_removed_before_it_was_taken_is_named() {
    let mut world = World::led();
    world.log.register("d1");
    world.pass(100);
    world.log.stalled = true;
    world.log.register("d2");
    world.pass(100);
    world.log.register("d3");
    world.log.register("d4");
    world.log.trim(Stream::Commands, 3);
    world.log.stalled = false;
    world.pass(1_000);
    let end = world.first().end.clone();
    let expected = CellFailure::InputTrimmed { stream: Stream::Commands, from: Offset(2), first: Offset(3) };
    assert_eq!(end, Some(CellEnd::Failed(expected.clone())));
    assert!(expected.to_string().contains("records 2 to 2 of `commands`"), "{expected}");
}

/// The next inputs stand where everything was taken already: they would never be taken, and the gateway would answer that all is well.
#[test]
fn inputs_that_end_before_what_was_taken_of_them_are_refused() {
    let mut world = World::led();
    for name in ["d1", "d2", "d3"] {
        world.log.register(name);
    }
    world.pass(100);
    world.log.truncate(Stream::Commands, 1);
    world.start("b");
    world.pass(20_000);
    let (end, taken) = (Offset(1), Offset(3));
    let expected = CellFailure::InputShortened { stream: Stream::Commands, end, taken };
    assert_eq!(world.controllers[1].end, Some(CellEnd::Failed(expected.clone())));
    assert!(expected.to_string().contains("the next 2 inputs"), "{expected}");
}

#[test]
fn inputs_that_are_emptied_while_a_controller_leads_are_noticed() {
    let mut world = World::led();
    world.log.register("d1");
    world.pass(100);
    world.log.truncate(Stream::Commands, 0);
    world.pass(30_000);
    let end = world.first().end.clone();
    assert!(matches!(end, Some(CellEnd::Failed(CellFailure::InputShortened { .. }))), "{end:?}");
}

/// Before the next look it was as long again as it had been: what had been put where it was short would have been passed over in silence.
#[test]
fn an_input_that_is_shortened_and_grows_again_at_once_is_noticed_by_where_reports_come_to_stand() {
    let mut world = World::led();
    let link = world.agent(0, "s1", 7, 1);
    world.pass(1_000);
    let reports = world.log.end(Stream::Reports);
    assert!(reports > Offset(0) && world.first().end.is_none());
    world.log.truncate(Stream::Reports, 0);
    world.report(0, link, 2, Report::SlotTakenBack { slot: slot("s1", 0), asked_ms: None, within_ms: None });
    let end = world.first().end.clone();
    let expected = CellFailure::InputShortened { stream: Stream::Reports, end: Offset(0), taken: reports };
    assert_eq!(end, Some(CellEnd::Failed(expected)));
}
