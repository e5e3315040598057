//! Jobs that are whole programs: all of their slots or none, one membership after the other, each with executors of its own.

use crate::stories::*;
use crate::world::{World, slot};
use controller_core::limits::BACKOFF_MS_MAX;
use controller_core::orders;
use controller_core::state::SlotState;
use events_schema::command::Command;
use events_schema::control::STOPPED_STATUS;
use events_schema::fact::{Entry, Fact};
use events_schema::job::JobSpec;
use events_schema::report::ExitCause;
use events_schema::{ExecutorId, FleetId, JobId, ServerId};
use serde_json::json;

fn program(workers: serde_json::Value, elastic: &str) -> JobSpec {
    let model = json!({"kind": "command", "command": ["python", "train.py"], "elastic": elastic});
    JobSpec::parse(&json!({"name": "gang", "model": model, "workers": workers})).unwrap()
}

fn member(id: &JobId, number: u32) -> ExecutorId {
    ExecutorId { job: id.clone(), number }
}

/// A gang of so many on a server of four slots.
fn running(members: u16) -> (World, JobId) {
    let mut world = local(4);
    let id = world.submit(program(json!({"max": members}), "fixed"));
    world.run();
    assert_eq!(phase(&world, &id), "running");
    (world, id)
}

/// How every generation of a log began.
fn entries(world: &World) -> Vec<&'static str> {
    let name = |entry: &Entry| match entry {
        Entry::Fresh => "fresh",
        Entry::Checkpoint { .. } => "checkpoint",
        Entry::Switch { .. } => "switch",
        Entry::Recover => "recover",
    };
    proposed(&since(world, 0)).into_iter().map(name).collect()
}

#[test]
fn a_gang_has_all_its_slots_or_none() {
    let mut world = local(4);
    world.demand("local", 2);
    let id = world.submit(program(json!({"max": 3}), "fixed"));
    world.run();
    assert_eq!((phase(&world, &id), job(&world, &id).slots().len()), ("queued", 0));
    world.demand("local", 1);
    world.run();
    assert_eq!(members(&world, &id), [0, 1, 2]);
    assert!(world.run_to_end(10));
    assert_eq!((phase(&world, &id), entries(&world)), ("finished", vec!["fresh"]));
    calm(&world);
}

#[test]
fn a_spike_stands_it_still_and_it_goes_on_from_what_was_saved() {
    let (mut world, id) = running(3);
    world.demand("local", 2);
    world.run();
    assert_eq!((phase(&world, &id), world.state.executors().count()), ("queued", 0));
    assert_eq!(job(&world, &id).checkpoints.len(), 1, "what it left is saved");
    world.demand("local", 0);
    world.run();
    assert_eq!((members(&world, &id), entries(&world)), (vec![3, 4, 5], vec!["fresh", "checkpoint"]));
    assert_eq!(job(&world, &id).faults.restarts, 0, "nothing failed");
    calm(&world);
}

#[test]
fn where_another_slot_is_free_it_moves_there_as_a_whole() {
    for late in [true, false] {
        let (mut world, id) = running(3);
        let (fleet, taken) = (FleetId::parse("local").unwrap(), slot("local", 2));
        if late {
            world.command(Command::ReclaimSlots { fleet, slots: vec![taken.clone()] });
        } else {
            world.take_back(&taken, false);
        }
        world.run();
        assert_eq!(members(&world, &id), [3, 4, 5]);
        assert_eq!(entries(&world), ["fresh", "checkpoint"]);
        assert!(!job(&world, &id).slots().contains(&taken));
        assert_eq!(world.state.slot(&taken).unwrap().state, SlotState::Unoffered);
        assert_eq!(job(&world, &id).faults.restarts, 0);
        calm(&world);
    }
}

#[test]
fn whoever_is_lost_the_others_stop_and_all_begin_anew() {
    for (lost, saved) in [(2, true), (0, false)] {
        let (mut world, id) = running(3);
        world.end_process(&member(&id, lost), ExitCause::Killed);
        world.run();
        let entry = if saved { "checkpoint" } else { "fresh" };
        assert_eq!((members(&world, &id), entries(&world)), (vec![3, 4, 5], vec!["fresh", entry]), "e{lost} was lost");
        calm(&world);
    }
    let (mut world, id) = running(3);
    world.lose_agent(&ServerId::parse("local").unwrap());
    world.run();
    assert_eq!(phase(&world, &id), "queued");
    calm(&world);
}

#[test]
fn who_ended_well_is_not_lost_and_its_leader_hears_of_it() {
    let (mut world, id) = running(3);
    let local = ServerId::parse("local").unwrap();
    world.end_process(&member(&id, 1), ExitCause::Left);
    world.end_process(&member(&id, 2), ExitCause::Left);
    world.run();
    world.pass(60_000);
    world.run();
    let orders = orders(&world.state, &local);
    let [leader] = &orders[..] else { panic!("{orders:?}") };
    assert_eq!((leader.job.park, leader.job.ended_well.as_slice()), (false, [1, 2].as_slice()));
    assert!(world.run_to_end(10));
    assert_eq!((phase(&world, &id), entries(&world)), ("finished", vec!["fresh"]));
    calm(&world);

    let (mut world, id) = running(3);
    world.end_process(&member(&id, 1), ExitCause::Left);
    world.end_process(&member(&id, 2), ExitCause::Status(STOPPED_STATUS));
    world.run();
    assert_eq!(members(&world, &id), [3, 4, 5], "who was stopped did not end well");
    assert_eq!(job(&world, &id).faults.restarts, 0, "and did not fail");
    calm(&world);
}

#[test]
fn a_program_that_fails_again_and_again_fails_the_job_with_its_first_words() {
    let (mut world, id) = running(2);
    for _ in 0..=3 {
        let numbers = members(&world, &id);
        let said = |said: &str| ExitCause::Failed { status: 1, said: said.to_owned() };
        world.end_process(&member(&id, numbers[1]), said("KeyError: 'no such thing'"));
        world.end_process(&member(&id, numbers[0]), said("connection closed by peer"));
        for _ in 0..3 {
            world.run();
            world.pass(BACKOFF_MS_MAX);
        }
    }
    assert_eq!((phase(&world, &id), entries(&world).len()), ("failed", 4));
    let facts = since(&world, 0);
    let reason = facts.iter().find_map(|f| if let Fact::JobFailed { reason, .. } = f { Some(reason) } else { None });
    let reason = reason.unwrap();
    assert!(reason.contains("max_restarts: 3") && reason.contains("KeyError: 'no such thing'"), "{reason}");
    calm(&world);
}

#[test]
fn an_elastic_gang_is_restarted_at_any_size_within_its_bounds() {
    let mut world = local(4);
    world.demand("local", 2);
    let id = world.submit(program(json!({"min": 1, "max": 4}), "restart"));
    world.run();
    assert_eq!(members(&world, &id), [0, 1]);
    world.demand("local", 0);
    world.run();
    assert_eq!(members(&world, &id), [2, 3, 4, 5]);
    world.demand("local", 3);
    world.run();
    assert_eq!(members(&world, &id), [6]);
    assert_eq!(entries(&world), ["fresh", "checkpoint", "checkpoint"]);
    assert!(world.run_to_end(10));
    calm(&world);
}

#[test]
fn a_user_suspends_resumes_and_cancels_it() {
    let (mut world, id) = running(2);
    world.command(Command::SuspendJob { job: id.clone() });
    world.run();
    assert_eq!((phase(&world, &id), world.state.executors().count()), ("suspended", 0));
    world.command(Command::ResumeJob { job: id.clone() });
    world.run();
    assert_eq!((phase(&world, &id), entries(&world)), ("running", vec!["fresh", "checkpoint"]));
    world.command(Command::CancelJob { job: id.clone() });
    world.run();
    assert_eq!((phase(&world, &id), world.state.executors().count()), ("cancelled", 0));
    calm(&world);
}
