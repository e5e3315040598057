//! Traces are data that goes through: facts are known by what led to them, and everything decided is the same with and without.

use crate::support::{self, World, slot};
use events_rule::Stream;
use events_schema::batch::{Batch, to_bytes};
use events_schema::command::{Command, CommandRecord};
use events_schema::fact::Fact;
use events_schema::trace::cause_of;
use events_schema::{CommandId, TenantId, TimeMs, TraceContext};

fn trace(span: u8) -> Option<TraceContext> {
    Some(TraceContext::new([7; 16], [span; 8], 1).unwrap())
}

/// The same commands at the same times: two in one batch, and something that has no trace at all.
fn story(traces: [Option<TraceContext>; 2]) -> World {
    let mut world = World::led();
    world.agent(0, "s1", 7, 1);
    world.log.register("digits");
    world.pass(500);
    let fleet = Command::OfferSlots { fleet: support::fleet(), slots: vec![slot("s1", 0)] };
    let dataset = Command::RemoveDataset { dataset: "digits".parse().unwrap() };
    for ((id, command), trace) in [("offer", fleet), ("remove", dataset)].into_iter().zip(traces) {
        let (id, tenant) = (CommandId::parse(id).unwrap(), TenantId::parse("local").unwrap());
        world.log.append(
            Stream::Commands,
            to_bytes(&CommandRecord { id, tenant, at: TimeMs(1), command, trace, expected: None }),
        );
    }
    world.pass(500);
    world
}

#[test]
fn a_fact_is_known_by_the_input_it_follows_from() {
    let world = story([trace(1), trace(2)]);
    let cause = |wanted: &dyn Fn(&Fact) -> bool| {
        let batches: Vec<Batch> = world.log.batches();
        let found = |batch: &Batch| {
            let place = batch.facts.iter().position(wanted)?;
            Some(cause_of(&batch.causes, place))
        };
        batches.iter().find_map(found).unwrap()
    };
    assert_eq!(cause(&|fact| matches!(fact, Fact::DatasetRemoved { .. })), trace(2));
    assert_eq!(cause(&|fact| matches!(fact, Fact::DatasetRegistered { .. })), None, "it carried none");
    assert_eq!(cause(&|fact| matches!(fact, Fact::AgentJoined { .. })), None);
}

#[test]
fn nothing_is_decided_from_a_trace() {
    let (with, without) = (story([trace(1), trace(2)]), story([None, None]));
    let facts =
        |world: &World| -> Vec<Fact> { world.log.batches().into_iter().flat_map(|batch| batch.facts).collect() };
    assert_eq!(facts(&with), facts(&without));
    assert_eq!(with.log.fold().state.digest(), without.log.fold().state.digest());
    assert!(without.log.batches().iter().all(|batch| batch.causes.is_empty()), "what carries none leaves none");
}
