//! Jobs that are whole programs: all of their slots or none, one membership after the other, each with executors of its own.

use crate::stories::*;
use crate::world::{World, slot};
use controller_core::limits::BACKOFF_MS_MAX;
use controller_core::orders;
use controller_core::state::SlotState;
use controller_core::watch::Watch;
use events_schema::command::Command;
use events_schema::control::{Phase, Progress, STOPPED_STATUS, WaitsFor};
use events_schema::fact::{Entry, Fact, RestartCause, StallCause, StallRemedy};
use events_schema::job::JobSpec;
use events_schema::report::{ExitCause, Report};
use events_schema::{Digest, ExecutorId, FleetId, Generation, JobId, Rank, ServerId, Step, WriterToken};
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
        let said = |said: &str| ExitCause::Failed { status: 1, said: said.to_owned(), code_ended: None };
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
    let why = |fact: Fact| if let Fact::JobRestarted { cause, .. } = fact { cause } else { None };
    let causes: Vec<RestartCause> = since(&world, 0).into_iter().filter_map(why).collect();
    assert_eq!(causes, [RestartCause::Left, RestartCause::Left], "nobody was lost, and nobody says so");
    assert!(world.run_to_end(10));
    calm(&world);
}

/// An elastic gang of two that is to be four, and has not stopped for that yet.
fn growing() -> (World, JobId) {
    let mut world = local(4);
    world.demand("local", 2);
    let id = world.submit(program(json!({"min": 1, "max": 4}), "restart"));
    world.run();
    world.demand("local", 0);
    assert!(world.state.is_parking(&id));
    (world, id)
}

/// Its program has ended, and its plan is the old one again: nothing else would start the members, who stand still.
#[test]
fn a_gang_that_stopped_for_a_change_that_is_undone_starts_again() {
    let (mut world, id) = growing();
    world.deliver_orders(&ServerId::parse("local").unwrap());
    assert!(world.train(&id), "its program is ended and saved; nobody has heard of it");
    let kept = job(&world, &id).active().unwrap().members.clone();
    let kept: Vec<_> = kept.iter().map(|member| world.state.executor(member).unwrap().slot.clone()).collect();
    let added = job(&world, &id).slots().iter().filter(|slot| !kept.contains(slot)).cloned().collect();
    world.command(Command::ReclaimSlots { fleet: FleetId::parse("local").unwrap(), slots: added });
    assert!(!world.state.is_parking(&id), "its plan is the old one");
    world.run();
    assert_eq!((phase(&world, &id), entries(&world)), ("running", vec!["fresh", "checkpoint"]));
    assert_eq!((members(&world, &id).len(), job(&world, &id).faults.restarts), (2, 0));
    calm(&world);
}

/// A save that was under way when the gang was to stop is not the one of its end: the program has still to write what it has.
#[test]
fn what_a_gang_saved_while_it_ran_does_not_end_it() {
    let (mut world, id) = growing();
    let local = ServerId::parse("local").unwrap();
    let incarnation = world.state.server(&local).unwrap().incarnation;
    let generation = job(&world, &id).active().unwrap().proposal.generation;
    let saved = Report::CheckpointSaved {
        job: id.clone(),
        generation,
        step: Step(1),
        written_in: generation,
        writer: WriterToken([9; 16]),
        replica_digest: Digest::of(b"meanwhile"),
        bytes: 1,
        stands_still: Some(false),
    };
    let facts = world.foreign_report(local, incarnation, saved);
    assert!(facts.iter().any(|fact| matches!(fact, Fact::CheckpointAccepted { .. })), "{facts:?}");
    assert!(!facts.iter().any(|fact| matches!(fact, Fact::ExecutorLeaving { .. })), "{facts:?}");
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

/// What a watch comes to if both members of a gang say this twice a second for so long, and what is decided about it.
fn said(world: &mut World, id: &JobId, said: [(Phase, WaitsFor); 2], seconds: u64) -> Vec<Report> {
    let (mut watch, mut reports) = (Watch::default(), Vec::new());
    for half in 0..2 * seconds {
        let now_ms = 1_000 + 500 * half;
        for (number, (phase, waits_for)) in (0..).zip(&said) {
            let progress = Progress {
                generation: Generation(1),
                revision: 0,
                step: Step(0),
                phase: *phase,
                units_done: 0,
                bytes_done: 0,
                waits_for: waits_for.clone(),
                processor_ms: 0,
                gradients: None,
                busy_percent: None,
            };
            watch.heard(now_ms, &member(id, number), progress);
        }
        for report in watch.look(now_ms, &world.state) {
            let server = ServerId::parse("local").unwrap();
            let incarnation = world.state.server(&server).unwrap().incarnation;
            world.foreign_report(server, incarnation, report.clone());
            reports.push(report);
        }
    }
    reports
}

/// A gang waited for a store that refuses for ever, and nobody said so.
#[test]
fn a_gang_whose_store_does_not_answer_says_so_and_is_suspended_when_its_patience_is_over() {
    let (mut world, id) = running(2);
    let waits = [(Phase::Loading, WaitsFor::Store), (Phase::Still, WaitsFor::Controller)];
    let reports = said(&mut world, &id, waits, 31 * 60);
    assert_eq!(reports.len(), 2, "{reports:?}");
    assert!(reports.iter().all(|r| matches!(r, Report::JobStalled { cause: StallCause::Store, .. })), "{reports:?}");
    world.run();
    assert_eq!((phase(&world, &id), job(&world, &id).restarts), ("suspended", 0));
    assert_eq!(job(&world, &id).stall.clone().unwrap().tried, [StallRemedy::Wait, StallRemedy::Suspend]);
    calm(&world);
}

/// How long a program of the user's takes, nobody but its user knows; that everybody waits for the controller is nobody's.
#[test]
fn what_a_gangs_program_does_is_never_a_stall_and_that_all_stand_still_is_one() {
    let (mut world, id) = running(2);
    let computes = || (Phase::Computing(Rank(0)), WaitsFor::Nothing);
    let still = || (Phase::Still, WaitsFor::Controller);
    assert_eq!(said(&mut world, &id, [computes(), computes()], 7_200), []);
    assert_eq!(said(&mut world, &id, [computes(), still()], 7_200), []);
    let reports = said(&mut world, &id, [still(), still()], 25);
    assert!(matches!(&reports[..], [Report::JobStalled { cause: StallCause::Peers, .. }]), "{reports:?}");
    world.run();
    assert_eq!(
        (phase(&world, &id), job(&world, &id).restarts, entries(&world)),
        ("running", 1, vec!["fresh", "fresh"])
    );
    calm(&world);
}
