//! Members whose replicas differ: all go back to the last checkpoint, and a slot that a majority was against is not used any more until its fleet
//! has had it.

use crate::stories::*;
use crate::world::{World, slot};
use events_schema::command::Command;
use events_schema::fact::{Fact, Failure, Fault, RestartCause, Verdict};
use events_schema::report::Report;
use events_schema::{ExecutorId, JobId, ServerId, Step};

/// A job of four with checkpoints, the last of step 200.
fn trained() -> (World, JobId) {
    let (mut world, id) = training();
    (0..20).for_each(|_| _ = world.train(&id));
    world.deliver_all();
    (world, id)
}

/// A member says that the replicas of all differ, and whose are not like those of most.
fn differ(world: &mut World, id: &JobId, by: u32, minority: &[u32]) -> Vec<Fact> {
    let server = ServerId::parse("local").unwrap();
    let incarnation = world.state.server(&server).unwrap().incarnation;
    let executor = |number: u32| ExecutorId { job: id.clone(), number };
    let minority = minority.iter().map(|number| executor(*number)).collect();
    world.foreign_report(server, incarnation, Report::ReplicasDiffer { by: executor(by), step: Step(205), minority })
}

fn differed(facts: &[Fact]) -> Option<(Vec<u32>, Vec<u16>, Verdict)> {
    facts.iter().find_map(|fact| match fact {
        Fact::ReplicasDiffered { minority, slots, verdict, step: Step(205), .. } => Some((
            minority.iter().map(|executor| executor.number).collect(),
            slots.iter().map(|slot| slot.index).collect(),
            verdict.clone(),
        )),
        _ => None,
    })
}

fn restarts(facts: &[Fact]) -> Vec<u64> {
    let from = |fact: &Fact| match fact {
        Fact::JobRestarted { from, cause: Some(RestartCause::Differed { .. }), .. } => Some(from.0),
        _ => None,
    };
    facts.iter().filter_map(from).collect()
}

#[test]
fn a_minority_s_slot_is_in_quarantine_and_the_others_go_on_from_the_last_checkpoint() {
    let (mut world, id) = trained();
    let facts = differ(&mut world, &id, 0, &[2]);
    assert_eq!((differed(&facts), restarts(&facts)), (Some((vec![2], vec![2], Verdict::Well)), vec![200]));
    assert_eq!(differ(&mut world, &id, 1, &[2]), [], "the others are told to stop already");
    world.run();
    assert_eq!(members(&world, &id), [4, 5, 6], "all anew, on the other slots");
    assert_eq!(world.real_step(&id), Some(200));
    let suspect = slot("local", 2);
    assert_eq!(world.state.slot_shown(&suspect), "quarantined");
    let other = world.submit(spec());
    world.run();
    let used = |world: &World| [&id, &other].map(|id| job(world, id).slots().len()).iter().sum::<usize>();
    assert!(!job(&world, &other).slots().contains(&suspect), "nobody else has it either");
    assert_eq!(used(&world), 3);
    calm(&world);
    // Its fleet is given it like any other that is idle, and lends it anew.
    world.demand("local", 1);
    assert_eq!(world.state.slot_shown(&suspect), "unoffered");
    assert_eq!(used(&world), 3);
    world.demand("local", 0);
    world.run();
    assert_eq!(used(&world), 4);
    assert_eq!(world.state.slot_shown(&suspect), "borrowed");
    calm(&world);
}

/// A killed executor's GPU gives its memory back late, which its agent says, and says when it is over: that is no word about what was computed there.
#[test]
fn what_its_device_is_like_does_not_end_the_quarantine_of_a_slot_that_computed_wrong() {
    let (mut world, id) = trained();
    let suspect = slot("local", 2);
    differ(&mut world, &id, 0, &[2]);
    let (server, incarnation) = (suspect.server.clone(), world.state.server(&suspect.server).unwrap().incarnation);
    let reason = "9 MiB are still taken".to_owned();
    world.foreign_report(server.clone(), incarnation, Report::SlotQuarantined { slot: suspect.clone(), reason });
    world.run();
    assert!(!world.state.slot(&suspect).unwrap().comes_free());
    world.foreign_report(server, incarnation, Report::SlotRecovered { slot: suspect.clone() });
    world.run();
    assert_eq!(world.state.slot_shown(&suspect), "quarantined");
    assert!(world.state.slot(&suspect).unwrap().comes_free(), "its fleet can have it");
    assert_eq!(job(&world, &id).slots().len(), 3);
    world.demand("local", 1);
    world.demand("local", 0);
    world.run();
    assert_eq!(job(&world, &id).slots().len(), 4);
    calm(&world);
}

#[test]
fn a_fleet_gets_the_slot_that_computed_wrong_before_a_good_one() {
    let mut world = local(4);
    let id = world.submit(spec_with(|document| document["workers"] = serde_json::json!({"min": 1, "max": 2})));
    world.run();
    world.train(&id);
    differ(&mut world, &id, 0, &[1]);
    world.command(Command::CancelJob { job: id.clone() });
    world.run();
    let shown = |world: &World| (0..4).map(|index| world.state.slot_shown(&slot("local", index))).collect::<Vec<_>>();
    assert_eq!(shown(&world), ["borrowed", "quarantined", "borrowed", "offered"]);
    world.demand("local", 1);
    assert_eq!(shown(&world), ["borrowed", "unoffered", "borrowed", "offered"]);
    calm(&world);
}

#[test]
fn an_agent_that_was_started_anew_lends_the_slot_again() {
    let (mut world, id) = trained();
    differ(&mut world, &id, 0, &[2]);
    world.run();
    world.restart_agent(&ServerId::parse("local").unwrap());
    world.run();
    world.pass(1_000);
    world.run();
    assert_eq!(members(&world, &id).len(), 4);
    calm(&world);
}

#[test]
fn without_a_majority_all_go_back_on_their_slots_and_too_often_is_a_failure() {
    let mut world = local(2);
    let id = world.submit(spec_with(|document| document["max_restarts"] = 2.into()));
    world.run();
    for restart in 0..3 {
        world.train(&id);
        let leader = job(&world, &id).active().unwrap().leader.number;
        let facts = differ(&mut world, &id, leader, &[]);
        let Some((minority, slots, Verdict::Failure(Failure { fault: Fault::Program, .. }))) = differed(&facts) else {
            panic!("no failure: {facts:#?}")
        };
        assert_eq!((minority, slots), (vec![], vec![]));
        if restart < 2 {
            assert_eq!(restarts(&facts), [0], "there is no checkpoint yet");
            world.run();
            world.pass(60_000);
            world.run();
            assert_eq!(members(&world, &id).len(), 2);
        }
    }
    let Fact::JobFailed { reason, .. } =
        since(&world, 0).into_iter().find(|f| matches!(f, Fact::JobFailed { .. })).unwrap()
    else {
        unreachable!()
    };
    assert!(reason.contains("replicas differed at step 205"), "{reason}");
    calm(&world);
}

#[test]
fn who_is_of_a_run_that_is_over_is_not_heard() {
    let (mut world, id) = trained();
    differ(&mut world, &id, 0, &[]);
    world.run();
    world.pass(60_000);
    world.run();
    assert_eq!(members(&world, &id).len(), 4);
    let facts = differ(&mut world, &id, 0, &[4]);
    assert_eq!(facts, [], "an executor that is gone");
    calm(&world);
}
