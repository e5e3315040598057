//! Jobs that stop making progress: copies, newcomers and links that are lost, stalls, and what is done about them.

use crate::stories::*;
use crate::world::World;
use controller_core::limits::{ATTEMPTS_MAX, READY_DEADLINE_MS};
use events_schema::command::Command;
use events_schema::control::STORE_STATUS;
use events_schema::fact::{
    AbandonCause, AvoidCause, Blamed, Entry, Fact, GrowthFailure, LeaveCause, RestartCause, StallCause, StallRemedy,
};
use events_schema::report::{ExitCause, Report};
use events_schema::{ExecutorId, JobId, Rank, ServerId, Step};
use serde_json::json;

/// Found on a slow link (106 MB over 40 Mbit/s): the copy outlasted the deadline of the switch, which was given up although all members
/// were past it; nobody ever stepped again.
#[test]
fn a_copy_that_takes_longer_than_any_deadline_ends_and_the_job_goes_on() {
    let (mut world, id) = training();
    world.demand("local", 3);
    world.run();
    world.demand("local", 0);
    grow_without_the_copy(&mut world, &id);
    let (generation, mark) = (job(&world, &id).generation, world.log.len());
    for _ in 0..300 {
        world.pass(1_000);
        world.train(&id);
    }
    assert!(!has(&since(&world, mark), |f| matches!(f, Fact::GenerationAbandoned { .. })));
    assert_eq!((members(&world, &id).len(), job(&world, &id).generation), (4, generation));
    let step = world.real_step(&id);
    world.run();
    assert!(world.train(&id) && world.real_step(&id) > step);
    assert!(world.state.executors().all(|(_, executor)| executor.replica));
    calm(&world);
}

/// Whoever is past the boundary has to be taken back by a generation when the newcomer is gone, or stays behind for ever.
#[test]
fn a_newcomer_that_dies_while_it_is_sent_the_replica_costs_no_step() {
    let (mut world, id) = training();
    world.demand("local", 3);
    world.run();
    let step = world.real_step(&id);
    world.demand("local", 2);
    grow_without_the_copy(&mut world, &id);
    let newcomer = world.processes().into_iter().find(|process| process.number == 4).unwrap();
    let mark = world.log.len();
    world.end_process(&newcomer, ExitCause::Signal(9));
    world.run();
    assert_eq!(proposed(&since(&world, mark)), [&Entry::Recover], "and no growth while it pauses");
    assert!(has(&since(&world, mark), |f| matches!(f, Fact::GrowthPaused { cause: GrowthFailure::Lost, .. })));
    assert_eq!((members(&world, &id), world.real_step(&id)), (vec![0], step), "only who holds a replica goes on");
    world.train(&id);
    world.pass(30_000);
    world.run();
    world.pass(1_000);
    world.run();
    assert_eq!((members(&world, &id), job(&world, &id).restarts), (vec![0, 5], 0));
    assert_eq!(job(&world, &id).growth.failures, 0, "newcomers that came in end the pause");
    calm(&world);
}

/// Found by the simulation of everything: who held the replica had to leave before the newcomer held it, and the core proposed and gave up
/// the newcomer's generation for ever.
#[test]
fn nobody_is_let_go_before_somebody_who_stays_holds_the_replica() {
    let (mut world, id) = training();
    world.demand("local", 3);
    world.run();
    world.demand("local", 2);
    grow_without_the_copy(&mut world, &id);
    let mark = world.log.len();
    world.take_back(&crate::world::slot("local", 0), true);
    world.deliver_all();
    world.pass(100);
    assert!(proposed(&since(&world, mark)).is_empty());
    world.run();
    assert_eq!((phase(&world, &id), job(&world, &id).restarts), ("running", 0));
    calm(&world);
}

/// Found by the simulation of everything (seed 702836): a newcomer held the replica of a generation that had gone on without it, was not taken for
/// one, and the same switch was proposed and given up for ever.
#[test]
fn a_newcomer_that_stalls_a_switch_goes_also_if_it_holds_an_old_replica() {
    let (mut world, id) = training();
    world.demand("local", 1);
    world.run();
    world.demand("local", 0);
    world.deliver_orders(&ServerId::parse("local").unwrap());
    world.processes().iter().for_each(|process| _ = world.get_ready(process));
    world.deliver_all();
    let newcomer = ExecutorId { job: id.clone(), number: 4 };
    world.state.apply(world.at, &Fact::ReplicaHeld { executor: newcomer.clone(), step: Step(1) });
    let mark = world.log.len();
    world.pass(30_000);
    let facts = since(&world, mark);
    assert!(has(&facts, |f| matches!(f, Fact::GenerationAbandoned { cause: AbandonCause::Deadline, .. })), "{facts:?}");
    let paused = |f: &Fact| matches!(f, Fact::GrowthPaused { cause: GrowthFailure::Late, executor, .. } if *executor == newcomer);
    assert!(has(&facts, paused), "{facts:?}");
    assert!(proposed(&facts).is_empty(), "{facts:?}");
    world.run();
    for _ in 0..2 {
        world.pass(30_000);
        world.run();
    }
    assert_eq!(members(&world, &id), [0, 1, 2, 5]);
    calm(&world);
}

/// The members of a job know that they are to grow and are past the boundary; the newcomers are not whole yet.
fn grow_without_the_copy(world: &mut World, id: &JobId) {
    let server = ServerId::parse("local").unwrap();
    world.deliver_orders(&server);
    world.processes().iter().for_each(|process| _ = world.get_ready(process));
    world.deliver_all();
    world.deliver_orders(&server);
    assert!(world.activate(id));
    world.deliver_all();
    assert!(
        world.state.executors().any(|(_, executor)| !executor.replica),
        "in force at the boundary, before the copy"
    );
}

/// Found by the simulation of everything (seed 1600311): a switch for further newcomers was proposed while those before them still copied. No
/// boundary comes before a copy ends, so it was given up at its deadline, and all whose copies were under way were sent away with it.
#[test]
fn a_job_that_grows_again_waits_for_the_copies_under_way() {
    let (mut world, id) = training();
    world.demand("local", 3);
    world.run();
    world.demand("local", 2);
    grow_without_the_copy(&mut world, &id);
    world.demand("local", 0);
    world.deliver_orders(&ServerId::parse("local").unwrap());
    world.processes().iter().for_each(|process| _ = world.get_ready(process));
    let mark = world.log.len();
    world.deliver_all();
    world.pass(30_000);
    let facts = since(&world, mark);
    assert!(has(&facts, |f| matches!(f, Fact::ExecutorReady { .. })), "{facts:?}");
    assert!(proposed(&facts).is_empty(), "{facts:?}");
    assert!(!has(&facts, |f| matches!(f, Fact::ExecutorLeaving { .. })), "{facts:?}");
    assert!(world.supply(&id));
    world.run();
    assert_eq!(members(&world, &id), [0, 4, 5, 6]);
    calm(&world);
}

/// A stayer that has no link to a leaver lacks its sums for good. What it says has to count, although the leaver is no member any more.
#[test]
fn a_member_left_behind_at_a_boundary_is_heard() {
    let (mut world, id) = training();
    let before = job(&world, &id).generation;
    world.demand("local", 1);
    world.run();
    assert_eq!(members(&world, &id), [0, 1, 2]);
    let mark = world.log.len();
    let say = |world: &mut World| {
        let (server, executor) = (ServerId::parse("local").unwrap(), |number| ExecutorId { job: id.clone(), number });
        let incarnation = world.state.server(&server).unwrap().incarnation;
        let (by, peers, step) = (executor(1), vec![executor(3)], Step(10));
        let report =
            Report::PeersMissing { job: id.clone(), generation: before, revision: 0, step, by, peers, begun: true };
        world.foreign_report(server, incarnation, report);
    };
    say(&mut world);
    assert_eq!(proposed(&since(&world, mark)), [&Entry::Recover]);
    world.run();
    say(&mut world);
    assert_eq!(proposed(&since(&world, mark)).len(), 1, "what a later round has made good is not said again");
    assert_eq!((members(&world, &id), job(&world, &id).restarts), (vec![0, 1, 2], 0));
    calm(&world);
}

/// Today's rule was: try the same members again and again for eight minutes, then give up every replica.
#[test]
fn a_member_that_cannot_be_linked_is_left_out_within_seconds() {
    let (mut world, id) = training();
    let step = world.real_step(&id);
    world.unlink(&ExecutorId { job: id.clone(), number: 2 }, true);
    let mark = world.log.len();
    for _ in 0..6 {
        world.pass(1_000);
        world.run();
    }
    let facts = since(&world, mark);
    assert_eq!(proposed(&facts), [&Entry::Recover, &Entry::Recover], "with everybody, then without the one");
    assert!(has(&facts, |f| matches!(f, Fact::GenerationAbandoned { cause: AbandonCause::Unlinked, .. })));
    assert!(has(
        &facts,
        |f| matches!(f, Fact::SlotAvoided { cause: AvoidCause::Unreachable, slot, .. } if slot.index == 2)
    ));
    assert_eq!((members(&world, &id), world.real_step(&id)), (vec![0, 1, 3], step));
    assert!(world.train(&id));
    // Its slot is tried again, but not at once.
    world.pass(30_000);
    world.run();
    assert_eq!(members(&world, &id), [0, 1, 3]);
    world.pass(30_000);
    world.run();
    assert_eq!((members(&world, &id), job(&world, &id).restarts), (vec![0, 1, 3, 4], 0));
    calm(&world);
}

fn stall(world: &mut World, id: &JobId, step: u64, cause: StallCause, blamed: &[(u32, u16)]) -> Vec<Fact> {
    let server = ServerId::parse("local").unwrap();
    let incarnation = world.state.server(&server).unwrap().incarnation;
    let blame = |&(number, rank): &(u32, u16)| Blamed {
        executor: ExecutorId { job: id.clone(), number },
        rank: (cause == StallCause::Unit).then_some(Rank(rank)),
    };
    let blamed = blamed.iter().map(blame).collect();
    let report = Report::JobStalled { job: id.clone(), step: Step(step), cause, blamed };
    world.foreign_report(server, incarnation, report)
}

fn remedy(facts: &[Fact]) -> Option<StallRemedy> {
    facts.iter().find_map(|f| if let Fact::JobStalled { remedy, .. } = f { Some(*remedy) } else { None })
}

#[test]
fn a_job_that_stalls_climbs_the_ladder_and_a_new_step_begins_it_anew() {
    let (mut world, id) = training();
    assert_eq!(remedy(&stall(&mut world, &id, 10, StallCause::Peers, &[])), Some(StallRemedy::Round));
    world.run();
    assert_eq!(remedy(&stall(&mut world, &id, 10, StallCause::Peers, &[])), Some(StallRemedy::Restart));
    world.run();
    assert_eq!((phase(&world, &id), job(&world, &id).restarts), ("running", 1));
    let why = job(&world, &id).restart.clone().map(|restart| restart.cause);
    assert_eq!(why, Some(RestartCause::Stalled { cause: StallCause::Peers, blamed: Vec::new() }));
    assert_eq!(remedy(&stall(&mut world, &id, 11, StallCause::Peers, &[])), Some(StallRemedy::Round), "another step");
    world.run();
    for _ in 0..2 {
        stall(&mut world, &id, 11, StallCause::Peers, &[]);
        world.run();
    }
    assert_eq!(phase(&world, &id), "suspended");
    let stall = job(&world, &id).stall.clone().unwrap();
    assert_eq!(
        (stall.step, stall.cause, stall.tried.last()),
        (Step(11), StallCause::Peers, Some(&StallRemedy::Suspend))
    );
    assert_eq!(job(&world, &id).faults.restarts, 0, "the program did nothing wrong");
    calm(&world);
}

/// A job that goes back and stands still a little earlier each time climbed the first rungs for ever.
#[test]
fn steps_that_are_done_again_do_not_begin_the_ladder_anew() {
    let (mut world, id) = training();
    let stalls = |world: &mut World, step| {
        let facts = stall(world, &id, step, StallCause::Peers, &[]);
        world.run();
        remedy(&facts)
    };
    assert_eq!(stalls(&mut world, 20), Some(StallRemedy::Round));
    assert_eq!(stalls(&mut world, 12), Some(StallRemedy::Restart), "it went back, and is not where it was");
    let known = job(&world, &id).stall.clone().unwrap();
    assert_eq!((known.step, known.furthest(), known.tried.len()), (Step(12), Step(20), 2));
    assert_eq!(stalls(&mut world, 20), Some(StallRemedy::Suspend), "where it was before");
    let (mut world, id) = training();
    for step in [20, 12, 21] {
        let facts = stall(&mut world, &id, step, StallCause::Peers, &[]);
        world.run();
        let anew = has(&facts, |f| matches!(f, Fact::JobStalled { anew: Some(true), .. }));
        assert_eq!((remedy(&facts) == Some(StallRemedy::Round), anew), (step != 12, step != 12), "{step}");
    }
    calm(&world);
}

/// Whatever its user mended meanwhile: a job was suspended again at its first stall, whatever that was.
#[test]
fn a_job_that_its_user_resumes_has_the_whole_ladder_again() {
    let (mut world, id) = training();
    let stalls = |world: &mut World| {
        let facts = stall(world, &id, 10, StallCause::Peers, &[]);
        world.run();
        remedy(&facts)
    };
    let ladder = [StallRemedy::Round, StallRemedy::Restart, StallRemedy::Suspend].map(Some);
    for _ in 0..3 {
        assert_eq!([stalls(&mut world), stalls(&mut world), stalls(&mut world)], ladder);
        assert_eq!(phase(&world, &id), "suspended");
        assert_eq!(job(&world, &id).stall.as_ref().map(|stall| stall.tried.len()), Some(3), "it stays for its user");
        world.command(Command::ResumeJob { job: id.clone() });
        world.run();
        assert_eq!(phase(&world, &id), "running");
    }
    calm(&world);
}

/// Nobody but the ladder ends what never begins.
#[test]
fn a_job_that_hangs_before_it_begins_is_suspended_at_last() {
    let mut world = local(2);
    let id = world.submit(spec_with(|spec| spec["workers"] = json!({"min": 1, "max": 1})));
    let mut remedies = Vec::new();
    while phase(&world, &id) != "suspended" && remedies.len() < 10 {
        world.deliver_orders(&ServerId::parse("local").unwrap());
        world.processes().iter().for_each(|process| _ = world.get_ready(process));
        let executor = world.state.executors_of(&id).last().unwrap().0.clone();
        // It builds its model, or waits for what it is to begin with: of no rank.
        let (blamed, server) = (vec![Blamed { executor, rank: None }], ServerId::parse("local").unwrap());
        let report = Report::JobStalled { job: id.clone(), step: Step(0), cause: StallCause::Unit, blamed };
        let incarnation = world.state.server(&server).unwrap().incarnation;
        remedies.extend(remedy(&world.foreign_report(server, incarnation, report)));
        world.deliver_orders(&ServerId::parse("local").unwrap());
        world.deliver_all();
        world.pass(600_000);
    }
    let tries = ATTEMPTS_MAX as usize;
    assert_eq!(remedies[..tries], vec![StallRemedy::WithoutBlamed; tries]);
    assert_eq!(remedies[tries..], [StallRemedy::Suspend]);
}

#[test]
fn who_hangs_in_a_unit_is_replaced_elsewhere_and_a_rank_that_hangs_twice_fails_the_job_by_name() {
    let (mut world, id) = training();
    world.demand("local", 1);
    world.run();
    let step = world.real_step(&id);
    let facts = stall(&mut world, &id, 10, StallCause::Unit, &[(2, 3)]);
    assert_eq!(remedy(&facts), Some(StallRemedy::WithoutBlamed));
    assert!(has(&facts, |f| matches!(f, Fact::SlotAvoided { cause: AvoidCause::Hung, slot, .. } if slot.index == 2)));
    world.run();
    assert_eq!((members(&world, &id), world.real_step(&id)), (vec![0, 1], step));
    assert_eq!(stall(&mut world, &id, 10, StallCause::Unit, &[(2, 3)]), [], "it is gone already");
    // The rank moved, and hangs where it is now.
    let facts = stall(&mut world, &id, 10, StallCause::Unit, &[(1, 3)]);
    assert_eq!(remedy(&facts), Some(StallRemedy::Fail));
    assert!(
        has(
            &facts,
            |f| matches!(f, Fact::JobFailed { reason, .. } if reason.contains("rank 3") && reason.contains("local/2") && reason.contains("local/1"))
        ),
        "{facts:#?}"
    );
    world.run();
    calm(&world);
}

#[test]
fn a_store_that_refuses_suspends_the_job_and_restarts_nothing() {
    let (mut world, id) = training();
    let facts = stall(&mut world, &id, 10, StallCause::Store, &[]);
    assert_eq!(
        (remedy(&facts), facts.len()),
        (Some(StallRemedy::Wait), 1),
        "an event first, and nothing is done: {facts:#?}"
    );
    assert_eq!(remedy(&stall(&mut world, &id, 10, StallCause::Store, &[])), Some(StallRemedy::Suspend));
    world.run();
    assert_eq!((phase(&world, &id), job(&world, &id).restarts), ("suspended", 0));
    calm(&world);
}

/// Whether a new executor of a job whose server is idle beside it is given up once it is late.
fn gives_up_late(world: &mut World, id: &JobId) -> bool {
    world.demand("local", 0);
    let server = ServerId::parse("local").unwrap();
    world.deliver_orders(&server);
    assert_eq!(world.state.executors_of(id).filter(|(_, executor)| executor.is_starting()).count(), 3);
    let mark = world.log.len();
    world.pass(READY_DEADLINE_MS);
    has(&since(world, mark), |f| matches!(f, Fact::ExecutorLeaving { cause: LeaveCause::Useless, .. }))
}

#[test]
fn a_store_that_has_answered_switches_no_deadline_off() {
    let waiting = || {
        let mut world = local(4);
        world.demand("local", 3);
        let id = world.submit(spec());
        world.run();
        stall(&mut world, &id, 0, StallCause::Store, &[]);
        assert!(job(&world, &id).waits_for_store(world.at));
        (world, id)
    };
    let (mut world, id) = waiting();
    assert!(!gives_up_late(&mut world, &id), "who comes next would wait as well");
    // A step, then a checkpoint.
    for by_step in [true, false] {
        let (mut world, id) = waiting();
        if by_step {
            stepped(&mut world, &id, 1_000);
        } else {
            (0..6).for_each(|_| _ = world.train(&id));
            world.deliver_all();
        }
        assert!(!job(&world, &id).waits_for_store(world.at), "{by_step}");
        assert!(job(&world, &id).stall.is_some(), "its user can still read of it");
        assert!(gives_up_late(&mut world, &id), "{by_step}");
    }
}

#[test]
fn a_store_that_answered_after_another_stall_of_the_step_is_waited_for_anew() {
    let (mut world, id) = training();
    let waits = |world: &mut World| remedy(&stall(world, &id, 10, StallCause::Store, &[]));
    assert_eq!(waits(&mut world), Some(StallRemedy::Wait));
    stall(&mut world, &id, 10, StallCause::Peers, &[]);
    stepped(&mut world, &id, 1_000);
    assert_eq!(waits(&mut world), Some(StallRemedy::Wait), "it answered between the two");
}

#[test]
fn a_job_that_is_resumed_waits_for_the_store_anew() {
    let (mut world, id) = training();
    let waits = |world: &mut World| remedy(&stall(world, &id, 10, StallCause::Store, &[]));
    assert_eq!([waits(&mut world), waits(&mut world)], [Some(StallRemedy::Wait), Some(StallRemedy::Suspend)]);
    world.run();
    assert_eq!(phase(&world, &id), "suspended");
    world.command(Command::ResumeJob { job: id.clone() });
    assert!(!job(&world, &id).waits_for_store(world.at));
    world.run();
    assert_eq!([waits(&mut world), waits(&mut world)], [Some(StallRemedy::Wait), Some(StallRemedy::Suspend)]);
    calm(&world);
}

#[test]
fn an_executor_that_ends_for_the_stores_sake_does_not_use_up_the_restarts_of_a_program() {
    let mut world = local(4);
    let id = world.submit(spec_with(|d| d["max_restarts"] = json!(1)));
    for _ in 0..4 {
        world.run();
        let said = "the store failed on object `data/0`".to_owned();
        let exit = ExitCause::Failed { status: STORE_STATUS, said, code_ended: None };
        world.processes().iter().for_each(|process| _ = world.end_process(process, exit.clone()));
        world.deliver_all();
        world.pass(70_000);
    }
    world.run();
    assert_eq!((phase(&world, &id), job(&world, &id).restarts), ("running", 4));
    calm(&world);
}

#[test]
fn what_machines_do_does_not_use_up_the_restarts_of_a_program() {
    let mut world = local(4);
    let id = world.submit(spec_with(|d| d["max_restarts"] = json!(1)));
    for _ in 0..4 {
        world.run();
        world.processes().iter().for_each(|process| _ = world.end_process(process, ExitCause::Silent));
        world.deliver_all();
        world.pass(70_000);
    }
    world.run();
    assert_eq!((phase(&world, &id), job(&world, &id).restarts), ("running", 4));
    // A program that gets further than ever each time may fail each time.
    for _ in 0..4 {
        for _ in 0..6 {
            world.train(&id);
        }
        world.deliver_all();
        world.processes().iter().for_each(|process| _ = world.end_process(process, ExitCause::Status(1)));
        world.deliver_all();
        world.pass(70_000);
        world.run();
    }
    assert_eq!(phase(&world, &id), "running");
    for _ in 0..2 {
        world.processes().iter().for_each(|process| _ = world.end_process(process, ExitCause::Status(1)));
        world.deliver_all();
        world.pass(70_000);
        world.run();
    }
    assert_eq!(phase(&world, &id), "failed", "one that does not fails");
    calm(&world);
}
