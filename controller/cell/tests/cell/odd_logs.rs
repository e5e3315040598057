//! Logs that end in offsets of no record, and recoveries that last minutes: odd, legal, and no reason to stand still.

use crate::support::{Fault, LEASE_MS, WALL, World, has_dataset};
use controller_cell::{Attempt, CellEnd, CellFailure};
use controller_fold::Contradiction;
use events_rule::{RECORD_LEN_MAX, Stream};
use events_schema::batch::{Batch, EventRecord, PassOver, to_bytes};
use events_schema::{Offset, Sequence, Term};

/// After a recovery that lasts minutes all agents seem silent at once, also those that are waiting to be heard.
#[test]
fn a_take_over_that_lasts_minutes_gives_nobody_up_who_is_there() {
    let mut world = World::led();
    for name in ["s1", "s2", "s3"] {
        world.agent(0, name, 7, 1);
    }
    world.alive.clear();
    world.log.stalled = true;
    world.start("b");
    let waiting = world.hello(1, "s1", 7);
    world.pass(180_000);
    assert!(world.controllers[1].committed.is_none());
    world.log.stalled = false;
    world.pass(1_000);
    world.hello(1, "s2", 7);
    assert!(["s1", "s2", "s3"].iter().all(|name| world.controllers[1].is_connected(name)), "each has time to come");
    world.pass(3 * LEASE_MS);
    let there = ["s1", "s2", "s3"].map(|name| world.controllers[1].is_connected(name));
    assert_eq!(there, [true, true, false], "who did not come is given up");
    assert!(!world.controllers[1].ended.iter().any(|(ended, _)| *ended == waiting));
}

/// A transaction's marker is the last offset of an input, and no record ever stands there: who waits for one waits for ever.
#[test]
fn a_marker_at_the_end_of_an_input_holds_nothing_up() {
    let mut world = World::led();
    world.agent(0, "s1", 7, 1);
    world.alive.clear();
    world.log.demand(1, 1);
    [Stream::Demand, Stream::Reports, Stream::Commands].into_iter().for_each(|stream| world.log.append_marker(stream));
    world.start("b");
    world.pass(20_000);
    assert!(!world.controllers[1].is_connected("s1"), "time decides: it is gone");
    world.log.register("digits");
    world.pass(500);
    assert!(has_dataset(world.controllers[1].state(), "digits"), "what comes behind it is taken");
    assert!(world.controllers[1].machine.is_log_well());
}

/// The same on `events`: at every look it was read again, and nothing was decided meanwhile.
#[test]
fn a_marker_at_the_end_of_the_events_is_looked_at_once() {
    let mut world = World::led();
    world.log.append_marker(Stream::Events);
    world.pass(5_000);
    let looked = world.log.reads[&Stream::Events];
    world.pass(20_000);
    assert_eq!(world.log.reads[&Stream::Events], looked);
    world.log.register("digits");
    world.pass(500);
    assert!(has_dataset(world.first().state(), "digits") && world.first().end.is_none());
}

/// One stray record ended a cell for good.
#[test]
fn a_record_that_no_ebb_wrote_is_passed_over_once_an_operator_said_so() {
    let mut world = World::led();
    world.log.register("d1");
    world.pass(500);
    world.log.append(Stream::Events, b"hello".to_vec());
    let stray = Offset(world.log.end(Stream::Events).0 - 1);
    world.log.register("d2");
    world.pass(500);
    world.start("b");
    world.pass(500);
    assert!(world.controllers[1].end.is_some(), "nobody said so yet");
    let (by, reason) = ("ada".to_owned(), "a stray producer".to_owned());
    let word = EventRecord::PassOver(PassOver { offset: stray, by, at: WALL, reason });
    world.log.append(Stream::Events, to_bytes(&word));
    world.start("c");
    world.pass(2_000);
    let state = world.controllers[2].state();
    assert!(world.controllers[2].end.is_none() && has_dataset(state, "d1") && has_dataset(state, "d2"));
}

/// Whoever leads meets such a record like any reader, and may end on it only while nobody has had it passed over.
#[test]
fn who_leads_passes_over_what_an_operator_had_passed_over() {
    let mut world = World::led();
    world.log.register("d1");
    world.pass(500);
    world.log.append(Stream::Events, b"hello".to_vec());
    let offset = Offset(world.log.end(Stream::Events).0 - 1);
    let (by, reason) = ("ada".to_owned(), "a stray producer".to_owned());
    let word = EventRecord::PassOver(PassOver { offset, by, at: WALL, reason });
    world.log.append(Stream::Events, to_bytes(&word));
    world.pass(2_000);
    world.log.register("d2");
    world.pass(2_000);
    assert_eq!(world.first().end, None);
    assert!(has_dataset(world.first().state(), "d1") && has_dataset(world.first().state(), "d2"));

    world.log.append(Stream::Events, b"hello".to_vec());
    world.pass(2_000);
    assert!(matches!(world.first().end, Some(CellEnd::Failed(CellFailure::Unreadable(_)))), "nobody spoke of this one");
}

/// A search goes through all that stands behind a record, so one for each would take too long with many of them.
#[test]
fn many_records_that_are_passed_over_cost_one_search() {
    let mut world = World::led();
    let many = 50;
    let first = world.log.end(Stream::Events).0;
    for _ in 0..many {
        world.log.append(Stream::Events, b"hello".to_vec());
    }
    for offset in (first..first + many).map(Offset) {
        let (by, reason) = ("ada".to_owned(), "a stray producer".to_owned());
        let word = EventRecord::PassOver(PassOver { offset, by, at: WALL, reason });
        world.log.append(Stream::Events, to_bytes(&word));
    }
    let before = world.log.reads[&Stream::Events];
    world.start("b");
    world.pass(5_000);
    assert_eq!(world.controllers[1].end, None);
    assert_eq!(world.controllers[1].committed.as_ref().map(|committed| committed.term), Some(Term(first + 2 * many)));
    let reads = world.log.reads[&Stream::Events] - before;
    assert!(u64::from(reads) < many, "{reads}");
}

/// The word itself can be read. Taken for a record that cannot, it would have a word about the word looked for.
#[test]
fn a_word_about_what_was_read_ends_a_controller_and_says_so() {
    let mut world = World::led();
    world.log.register("d1");
    world.pass(500);
    let offset = Offset(world.log.end(Stream::Events).0 - 1);
    let (by, reason) = ("ada".to_owned(), "another build could not".to_owned());
    let word = EventRecord::PassOver(PassOver { offset, by, at: WALL, reason });
    world.log.append(Stream::Events, to_bytes(&word));
    world.pass(2_000);
    world.start("b");
    world.pass(2_000);
    let expected = CellFailure::Contradicted(Contradiction { word: offset.next(), offset });
    for controller in &world.controllers {
        assert_eq!(controller.end, Some(CellEnd::Failed(expected.clone())));
    }
}

/// After a jump of the wall clock forth and back, controller time must not stand still until the clock has caught up.
#[test]
fn time_goes_on_from_a_log_that_is_ahead() {
    let mut world = World::new();
    let ahead = WALL.plus_ms(3_600_000);
    world.log.append(Stream::Events, to_bytes(&EventRecord::Claim { controller: "fast".to_owned(), incarnation: 1 }));
    let batch = Batch {
        term: Term(0),
        sequence: Sequence(0),
        part: None,
        taken: vec![],
        at: ahead,
        facts: vec![],
        causes: Vec::new(),
    };
    world.log.append(Stream::Events, to_bytes(&EventRecord::Batch(batch)));
    world.start("a");
    world.pass(1_000);
    world.log.register("d1");
    world.pass(10);
    let first = world.first().state().at();
    world.pass(1_000);
    world.log.register("d2");
    world.pass(10);
    let second = world.first().state().at();
    assert!(first >= ahead && first < ahead.plus_ms(2_000), "{first}");
    assert_eq!(second.since_ms(first), 1_010);
}

/// What was appended to a stream since this was asked last.
fn attempts(world: &mut World, stream: Stream) -> Vec<Attempt> {
    let appends = std::mem::take(&mut world.first().appends);
    appends.into_iter().filter(|(_, of, _)| *of == stream).map(|(.., attempt)| attempt).collect()
}

/// Whoever measures took every append for a decision of its own.
#[test]
fn an_append_says_whether_it_is_new() {
    let mut world = World::led();
    assert_eq!(attempts(&mut world, Stream::Events), [Attempt::First], "the claim");
    world.log.faults.extend([(Stream::Events, Fault::Unavailable); 2]);
    world.log.register("d1");
    world.pass(1_000);
    let tickets: Vec<_> = world.first().appends.iter().map(|(ticket, ..)| *ticket).collect();
    let again = [Attempt::Decided, Attempt::Again(tickets[0]), Attempt::Again(tickets[1])];
    assert_eq!(attempts(&mut world, Stream::Events), again);
    world.log.faults.push_back((Stream::Events, Fault::Lost));
    world.log.register("d2");
    world.pass(1_000);
    let anew = [Attempt::Decided, Attempt::First, Attempt::Decided];
    assert_eq!(
        attempts(&mut world, Stream::Events),
        anew,
        "what became of it is unknown: claimed, and decided once more"
    );
    world.log.faults.extend([(Stream::Events, Fault::Lost); 2]);
    world.log.register("d3");
    world.pass(2_000);
    let claims = attempts(&mut world, Stream::Events);
    assert!(
        matches!(claims[..], [Attempt::Decided, Attempt::First, Attempt::Again(_), Attempt::Decided]),
        "{claims:?}"
    );
    world.log.faults.push_back((Stream::Reports, Fault::Unavailable));
    world.agent(0, "s1", 7, 1);
    assert!(matches!(attempts(&mut world, Stream::Reports)[..], [Attempt::First, Attempt::Again(_)]));
}

#[test]
fn of_a_batch_in_parts_the_first_alone_was_decided_just_now() {
    let mut world = World::led();
    // What comes while an append is on its way is decided about together, and does not fit one record.
    world.log.stalled = true;
    world.log.register("first");
    world.pass(100);
    let key = format!("datasets/d/{}", "k".repeat(RECORD_LEN_MAX / 16));
    (0..32).for_each(|number| world.log.register_at(&format!("d{number}"), &key));
    world.pass(100);
    world.log.stalled = false;
    world.pass(10);
    let attempts = attempts(&mut world, Stream::Events);
    assert_eq!(attempts[..4], [Attempt::First, Attempt::Decided, Attempt::Decided, Attempt::First], "{attempts:?}");
}
