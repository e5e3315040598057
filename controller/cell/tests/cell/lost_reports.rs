//! Reports that the log loses before they are taken: an agent is asked to say them again, and nothing behind them is taken before.

use crate::support::{World, server, slot};
use controller_cell::{In, LinkEnd, LinkId, Note};
use events_rule::Stream;
use events_schema::fact::Fact;
use events_schema::report::Report;
use events_schema::{ExecutorId, JobId};

/// Longer than from one look at the streams' ends to the second next, which asks after the loss.
const TWO_LOOKS_MS: u64 = 4_500;

fn taken_back() -> Report {
    Report::SlotTakenBack { slot: slot("s1", 0), asked_ms: None, within_ms: None }
}

fn through(world: &mut World) -> u64 {
    world.first().state().server(&server("s1")).unwrap().reports_through
}

/// The newest record of the topic is lost before anybody has read it.
fn lose_newest(world: &mut World) {
    let end = world.log.end(Stream::Reports).0 as usize;
    world.log.truncate(Stream::Reports, end - 1);
}

/// Whether the agent is told to open another stream, as it was told then, and that people can read which report was lost.
fn is_asked_again(world: &mut World, link: LinkId, number: u64) -> bool {
    let lost = Note::ReportLost { server: server("s1"), number };
    world.first().ended.contains(&(link, Some(LinkEnd::Leaving))) && world.first().notes.contains(&lost)
}

/// Found by a random schedule: the word that an executor is gone was lost, the one behind it was taken, and so the agent was told that both
/// were. The slot stayed in use for nobody.
#[test]
fn a_report_behind_one_that_was_lost_waits_until_both_are_said_again() {
    let mut world = World::led();
    let link = world.agent(0, "s1", 7, 1);
    world.report(0, link, 2, taken_back());
    lose_newest(&mut world);
    world.report(0, link, 3, taken_back());
    world.pass(TWO_LOOKS_MS);
    assert_eq!(through(&mut world), 1);
    assert!(is_asked_again(&mut world, link, 3));
    let link = world.hello(0, "s1", 7);
    [2, 3].into_iter().for_each(|number| world.report(0, link, number, taken_back()));
    world.pass(TWO_LOOKS_MS);
    assert_eq!(through(&mut world), 3);
    assert!(!world.first().ended.iter().any(|(ended, _)| *ended == link), "once is enough");
}

#[test]
fn a_last_word_that_was_lost_is_missed() {
    let mut world = World::led();
    let link = world.agent(0, "s1", 7, 1);
    world.report(0, link, 2, taken_back());
    lose_newest(&mut world);
    world.pass(TWO_LOOKS_MS);
    assert!(is_asked_again(&mut world, link, 2));
}

/// An agent whose outbox is full leaves out what a later report replaces.
#[test]
fn what_an_agent_leaves_out_is_not_waited_for() {
    let mut world = World::led();
    let link = world.agent(0, "s1", 7, 1);
    [2, 4].into_iter().for_each(|number| world.report(0, link, number, taken_back()));
    world.pass(100);
    assert_eq!(through(&mut world), 4);
    world.take(0, In::LinkClosed { link });
    let link = world.hello(0, "s1", 7);
    world.report(0, link, 7, taken_back());
    world.pass(TWO_LOOKS_MS);
    assert_eq!(through(&mut world), 7, "what it says first has nothing before it that is not taken");
    assert!(!world.first().ended.iter().any(|(ended, _)| *ended == link));
}

/// One that nothing can follow from is on record, and would be refused as often as it were said.
#[test]
fn a_report_that_is_refused_is_not_asked_for_again() {
    let mut world = World::led();
    let link = world.agent(0, "s1", 7, 1);
    world.log.put_fleet(&["s1"], 1);
    world.log.register("digits");
    world.log.submit("job-a");
    world.log.demand(1, 0);
    world.pass(500);
    world.log.events_len_max = Some(2_000);
    let executor = ExecutorId { job: JobId::parse("job-a").unwrap(), number: 0 };
    world.report(
        0,
        link,
        2,
        Report::ExecutorReady {
            executor,
            address: "a".repeat(4_000),
            class: None,
            replica_bytes: None,
            gradient_bytes: None,
        },
    );
    world.report(0, link, 3, taken_back());
    world.pass(TWO_LOOKS_MS);
    let facts: Vec<Fact> = world.log.batches().into_iter().flat_map(|batch| batch.facts).collect();
    let refused = |fact: &&Fact| matches!(fact, Fact::InputRefused { stream, .. } if stream == "reports");
    assert_eq!(facts.iter().filter(refused).count(), 1);
    assert_eq!(through(&mut world), 3);
    assert!(!world.first().ended.iter().any(|(ended, _)| *ended == link));
}
