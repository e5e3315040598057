//! What a job's user is told of its members: who was lost and how that was noticed, and which growth was given up and why.

use crate::stories::*;
use crate::world::{World, dataset};
use controller_core::policy_by_name;
use events_schema::control::STOPPED_STATUS;
use events_schema::fact::{AvoidCause, Blamed, Entry, Fact, GrowthFailure, LossNotice, StallCause};
use events_schema::report::{ExitCause, Report};
use events_schema::{ExecutorId, JobId, Rank, ServerId, Step};

fn losses(facts: &[Fact]) -> Vec<(u32, LossNotice)> {
    let lost = |fact: &Fact| match fact {
        Fact::MemberLost { executor, noticed, .. } => Some((executor.number, noticed.clone())),
        _ => None,
    };
    facts.iter().filter_map(lost).collect()
}

/// How a job's members were lost, in the facts and on its record.
fn told(happens: impl FnOnce(&mut World, &JobId)) -> Vec<(u32, LossNotice)> {
    let (mut world, id) = training();
    let mark = world.log.len();
    happens(&mut world, &id);
    world.run();
    let losses = losses(&since(&world, mark));
    let last = job(&world, &id).lost.as_ref().map(|loss| (loss.executor.number, loss.noticed.clone()));
    assert_eq!(last, losses.last().cloned(), "it stands on the job");
    calm(&world);
    losses
}

fn member(id: &JobId, number: u32) -> ExecutorId {
    ExecutorId { job: id.clone(), number }
}

fn stalled(world: &mut World, id: &JobId, cause: StallCause, rank: Option<Rank>) {
    let server = ServerId::parse("local").unwrap();
    let incarnation = world.state.server(&server).unwrap().incarnation;
    let blamed = vec![Blamed { executor: member(id, 2), rank }];
    let report = Report::JobStalled { job: id.clone(), step: Step(10), cause, blamed };
    world.foreign_report(server, incarnation, report);
}

#[test]
fn how_a_loss_was_noticed_is_said() {
    let ended = |exit: ExitCause| told(|world, id| _ = world.end_process(&member(id, 2), exit));
    assert_eq!(ended(ExitCause::Signal(9)), [(2, LossNotice::Exit(ExitCause::Signal(9)))]);
    assert_eq!(ended(ExitCause::Silent), [(2, LossNotice::Silence)]);
    let server = ServerId::parse("local").unwrap();
    let all = |noticed: LossNotice| (0..4).map(|number| (number, noticed.clone())).collect::<Vec<_>>();
    assert_eq!(told(|world, _| world.lose_agent(&server)), all(LossNotice::Lease));
    assert_eq!(told(|world, _| world.restart_agent(&server)), all(LossNotice::Agent));
    let unlinked = told(|world, id| {
        world.unlink(&member(id, 2), true);
        (0..6).for_each(|_| {
            world.pass(1_000);
            world.run();
        });
    });
    assert_eq!(unlinked, [(2, LossNotice::Link)]);
    assert_eq!(
        told(|world, id| stalled(world, id, StallCause::Unit, Some(Rank(2)))),
        [(2, LossNotice::Stall(StallCause::Unit))]
    );
}

#[test]
fn who_was_told_to_leave_or_left_by_itself_is_not_lost() {
    assert_eq!(told(|world, _| _ = world.demand("local", 2)), []);
    let slot = crate::world::slot("local", 2);
    assert_eq!(told(|world, _| world.take_back(&slot, false)), []);
    assert_eq!(told(|world, _| world.take_back(&slot, true)), [], "also when it is killed at its deadline");
}

/// The others wait less for it, and nobody comes or goes; once it keeps up again shares are even.
#[test]
fn who_straggles_hosts_fewer_ranks_until_it_keeps_up_again() {
    let (mut world, id) = training();
    world.demand("local", 2);
    world.run();
    let [fast, slow] = members(&world, &id)[..] else { panic!("two train") };
    let shares = |world: &World| {
        let active = job(world, &id).active().unwrap();
        let ranks = |number| active.proposal.members.iter().find(|m| m.executor.number == number).unwrap().ranks.len();
        [ranks(fast), ranks(slow)]
    };
    assert_eq!(shares(&world), [2, 2]);
    let server = ServerId::parse("local").unwrap();
    let incarnation = world.state.server(&server).unwrap().incarnation;
    let executor = member(&id, slow);
    let says = |world: &mut World, report: Report| {
        let mark = world.log.len();
        world.foreign_report(server.clone(), incarnation, report);
        world.run();
        calm(world);
        proposed(&since(world, mark)).len()
    };
    let straggles =
        Report::MemberStraggles { executor: executor.clone(), unit_us: 90_000, peers_unit_us: 30_000, cause: None };
    assert_eq!((says(&mut world, straggles.clone()), shares(&world)), (1, [3, 1]));
    assert_eq!((says(&mut world, straggles), shares(&world)), (0, [3, 1]), "said twice, once done");
    assert_eq!(members(&world, &id), [fast, slow]);
    assert_eq!((says(&mut world, Report::MemberKeepsUp { executor }), shares(&world)), (1, [2, 2]));
}

/// With one rank each there is nothing to share out otherwise.
#[test]
fn who_straggles_with_a_single_rank_is_replaced_where_a_slot_of_another_server_is_idle() {
    let mut world = World::new(policy_by_name("ebb").unwrap());
    for (server, slots) in [("a", 2), ("b", 1)] {
        world.start_agent(server, slots);
        world.put_fleet(server, server, slots, 2_000);
        world.deliver_all();
        world.demand(server, 0);
    }
    world.register(dataset("digits"));
    let id = world.submit(spec_with(|document| document["workers"]["max"] = 2.into()));
    world.run();
    assert_eq!(members(&world, &id), [0, 1]);
    let straggles = |world: &mut World, number| {
        let (server, mark) = (ServerId::parse("a").unwrap(), world.log.len());
        let incarnation = world.state.server(&server).unwrap().incarnation;
        let report = Report::MemberStraggles {
            executor: member(&id, number),
            unit_us: 90_000,
            peers_unit_us: 30_000,
            cause: None,
        };
        world.foreign_report(server, incarnation, report);
        world.run();
        calm(world);
        let facts = since(world, mark);
        assert_eq!((losses(&facts), job(world, &id).restarts), (vec![], 0));
        let slow = |f: &Fact| match f {
            Fact::SlotAvoided { cause: AvoidCause::Slow, slot, .. } => Some(slot.to_string()),
            _ => None,
        };
        (facts.iter().filter_map(slow).collect::<Vec<_>>(), members(world, &id))
    };
    assert_eq!(straggles(&mut world, 1), (vec!["a/1".to_owned()], vec![0, 2]));
    // What is idle now is the slot that is avoided, and one beside it would be no better.
    assert_eq!(straggles(&mut world, 2), (vec![], vec![0, 2]));
}

/// It went in the middle of a step, as it was told to: the others begin the step anew at once, and nobody has failed.
#[test]
fn who_leaves_early_is_made_up_for_at_once_and_no_fault() {
    let (mut world, id) = training();
    world.demand("local", 1);
    let leaver =
        world.state.executors_of(&id).find(|(_, executor)| executor.leaving.is_some()).map(|(leaver, _)| leaver);
    let leaver = leaver.unwrap().clone();
    let (mark, at) = (world.log.len(), world.at);
    world.end_process(&leaver, ExitCause::Status(STOPPED_STATUS));
    while world.deliver_report(&ServerId::parse("local").unwrap()) {}
    let facts = since(&world, mark);
    assert!(matches!(proposed(&facts)[..], [Entry::Recover]) && world.at == at, "{facts:?}");
    assert_eq!(losses(&facts), []);
    world.run();
    assert_eq!((members(&world, &id).len(), job(&world, &id).faults.restarts), (3, 0));
    calm(&world);
}

/// A job that trains on three slots, and is about to have a fourth member: it is proposed.
fn with_a_newcomer() -> (World, JobId, ServerId) {
    let (mut world, id) = training();
    world.demand("local", 1);
    world.run();
    world.demand("local", 0);
    let server = ServerId::parse("local").unwrap();
    world.deliver_orders(&server);
    world.processes().iter().for_each(|process| _ = world.get_ready(process));
    world.deliver_all();
    (world, id, server)
}

/// Its link carries less than steps make: it does not come in, nobody waits until the proposal's deadline, and the others go on as they were.
#[test]
fn a_newcomer_that_falls_behind_the_steps_is_given_up_at_once() {
    let (mut world, id, server) = with_a_newcomer();
    let (newcomer, leader) = (ExecutorId { job: id.clone(), number: 4 }, ExecutorId { job: id.clone(), number: 0 });
    let generation = job(&world, &id).active().unwrap().proposal.generation;
    let incarnation = world.state.server(&server).unwrap().incarnation;
    let behind = |generation, executor: &ExecutorId| Report::NewcomerFallsBehind {
        by: leader.clone(),
        generation,
        executor: executor.clone(),
        behind_steps: 7,
    };
    let (at, log) = (world.at, world.log.len());
    assert_eq!(world.foreign_report(server.clone(), incarnation, behind(generation.next(), &newcomer)), []);
    assert_eq!(
        world.foreign_report(server.clone(), incarnation, behind(generation, &leader)),
        [],
        "a member does not follow"
    );
    world.foreign_report(server, incarnation, behind(generation, &newcomer));
    let facts = since(&world, log);
    let paused = |f: &Fact| matches!(f, Fact::GrowthPaused { cause: GrowthFailure::Slow, executor, .. } if *executor == newcomer);
    assert!(facts.iter().any(paused) && world.at == at, "{facts:?}");
    world.run();
    assert_eq!((members(&world, &id), job(&world, &id).faults.restarts), (vec![0, 1, 2], 0));
    assert_eq!(losses(&since(&world, log)), []);
}

/// The copy of a newcomer is given up for being slow: the job keeps why until newcomers come in.
#[test]
fn a_copy_that_was_given_up_stands_on_the_job_until_the_job_grows() {
    let (mut world, id, server) = with_a_newcomer();
    world.deliver_orders(&server);
    assert!(world.activate(&id));
    world.deliver_all();
    let newcomer = ExecutorId { job: id.clone(), number: 4 };
    assert!(!world.state.executor(&newcomer).unwrap().replica);
    let incarnation = world.state.server(&server).unwrap().incarnation;
    let blamed = vec![Blamed { executor: newcomer.clone(), rank: None }];
    let report = Report::JobStalled { job: id.clone(), step: Step(10), cause: StallCause::Bytes, blamed };
    let mark = world.log.len();
    world.foreign_report(server, incarnation, report);
    let given_up = job(&world, &id).given_up.clone().unwrap();
    assert_eq!((given_up.executor, given_up.cause), (newcomer, GrowthFailure::Slow));
    world.run();
    assert_eq!(losses(&since(&world, mark)), [(4, LossNotice::Stall(StallCause::Bytes))]);
    assert_eq!(members(&world, &id), [0, 1, 2]);
    for _ in 0..4 {
        world.pass(30_000);
        world.run();
    }
    assert_eq!((members(&world, &id), job(&world, &id).given_up.clone()), (vec![0, 1, 2, 5], None));
    calm(&world);
}
