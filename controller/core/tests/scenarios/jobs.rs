//! Jobs: training, tides, losses, suspension, the end.

use crate::stories::*;
use crate::world::{World, slot};
use controller_core::limits::{GROWTH_PAUSE_MS_MIN, READY_DEADLINE_MS};
use controller_core::state::{JobPhase, SlotState};
use controller_core::{orders, retired_objects};
use events_schema::command::Command;
use events_schema::fact::{
    AbandonCause, Entry, Fact, LeaveCause, LossNotice, PlanCause, ReclaimCause, Refusal, RestartCause, WaitCause,
};
use events_schema::report::{ExitCause, Report};
use events_schema::{ExecutorId, JobId, Rank, ServerId, Step};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

#[test]
fn a_submitted_job_starts_fresh_trains_and_finishes() {
    let (mut world, id) = training();
    assert!(has(
        &since(&world, 0),
        |f| matches!(f, Fact::GenerationProposed { proposal, .. } if proposal.entry == Entry::Fresh)
    ));
    let reason = reason(&world, &id);
    assert_eq!((reason.policy.as_str(), reason.cause, reason.waits), ("ebb", PlanCause::Gain, None));
    assert!(world.run_to_end(200));
    assert_eq!(phase(&world, &id), "finished");
    assert_eq!(job(&world, &id).restarts, 0);
    assert!(world.state.executors().next().is_none(), "its executors are gone");
    assert!(world.state.slots().all(|(_, slot)| slot.is_idle()));
    assert_eq!(job(&world, &id).checkpoints.len(), 2, "the two newest are kept");
    let retired: Vec<_> = retired_objects(&world.state, 0).collect();
    assert!(!retired.is_empty() && retired.iter().all(|object| object.job == &id));
    assert_eq!(retired_objects(&world.state, retired.len() as u64).count(), 0);
    calm(&world);
}

#[test]
fn a_tide_of_four_one_four_loses_no_step() {
    let (mut world, id) = training();
    let mark = world.log.len();
    let facts = world.demand("local", 3);
    // Scale-in waits for nothing: reclaim, plan, leave and switch are one decision.
    assert_eq!(
        facts.iter().filter(|f| matches!(f, Fact::SlotReclaimed { cause: ReclaimCause::Demand, .. })).count(),
        3
    );
    assert_eq!(
        facts.iter().filter(|f| matches!(f, Fact::ExecutorLeaving { cause: LeaveCause::Reclaim, .. })).count(),
        3
    );
    assert!(matches!(proposed(&facts)[..], [Entry::Switch { .. }]));
    world.run();
    assert_eq!(members(&world, &id), [0]);
    assert_eq!(world.state.slots().filter(|(_, slot)| slot.state == SlotState::Unoffered).count(), 3);
    assert_eq!(
        job(&world, &id).scaling.as_ref().map(|s| (s.from, s.to, s.cause.clone())),
        Some((4, 1, PlanCause::Reclaimed))
    );
    let step = world.real_step(&id);

    world.demand("local", 0);
    world.run();
    assert_eq!(members(&world, &id), [0, 4, 5, 6], "newcomers join together, under new numbers");
    assert_eq!(world.real_step(&id), step);
    assert!(!has(&since(&world, mark), |f| matches!(f, Fact::JobRestarted { .. } | Fact::GenerationAbandoned { .. })));
    assert_eq!(world.state.executors().count(), 4);
    assert!(world.run_to_end(200));
    calm(&world);
}

#[test]
fn a_removal_does_not_wait_for_an_addition() {
    let mut world = local(4);
    world.demand("local", 2);
    let id = world.submit(spec());
    world.run();
    assert_eq!(members(&world, &id), [0, 1]);
    world.demand("local", 0);
    world.deliver_orders(&ServerId::parse("local").unwrap());
    let facts = world.demand("local", 3);
    assert!(
        has(&facts, |f| matches!(f, Fact::ExecutorLeaving { cause: LeaveCause::Useless, .. })),
        "newcomers go at once"
    );
    let stayers: Vec<_> = facts
        .iter()
        .filter_map(
            |f| if let Fact::GenerationProposed { proposal, .. } = f { Some(proposal.members.len()) } else { None },
        )
        .collect();
    assert_eq!(stayers, [1]);
    world.run();
    assert_eq!(members(&world, &id).len(), 1);
    calm(&world);
}

#[test]
fn a_slot_taken_back_at_the_agent_is_an_ordinary_departure() {
    for (index, late) in [(3, false), (3, true), (0, false), (0, true)] {
        let (mut world, id) = training();
        let (generation, mark) = (job(&world, &id).generation, world.log.len());
        world.take_back(&slot("local", index), late);
        world.run();
        let facts = since(&world, mark);
        assert!(has(&facts, |f| matches!(f, Fact::MemberDeparted { .. })) || !late);
        assert!(!has(&facts, |f| matches!(f, Fact::JobRestarted { .. })), "{facts:#?}");
        assert_eq!(members(&world, &id).len(), 3, "slot {index}, late {late}");
        assert_eq!(world.state.slot(&slot("local", index)).unwrap().state, SlotState::Unoffered);
        if late {
            assert_eq!(job(&world, &id).generation, generation, "the generation goes on without it: {facts:#?}");
        }
        // The same need again is no offer; a lower one is.
        world.demand("local", 0);
        assert_eq!(world.state.slot(&slot("local", index)).unwrap().state, SlotState::Unoffered);
        world.demand("local", 2);
        world.run();
        world.demand("local", 0);
        world.run();
        assert_eq!(members(&world, &id).len(), 4);
        calm(&world);
    }
}

#[test]
fn survivors_recover_from_the_loss_of_any_member_even_the_leader() {
    for victim in [0, 2] {
        let (mut world, id) = training();
        let mark = world.log.len();
        let number = world.processes().into_iter().find(|process| process.number == victim).unwrap();
        world.end_process(&number, ExitCause::Signal(9));
        let step = world.real_step(&id);
        world.deliver_all();
        let facts = since(&world, mark);
        assert_eq!(proposed(&facts), [&Entry::Recover]);
        let Some(Fact::GenerationProposed { proposal, .. }) =
            facts.iter().find(|f| matches!(f, Fact::GenerationProposed { .. }))
        else {
            unreachable!()
        };
        assert_eq!(proposal.members.len(), 3);
        assert!(proposal.leader != number);
        world.run();
        assert_eq!(world.real_step(&id), step, "no step is lost");
        assert_eq!(job(&world, &id).restarts, 0);
        assert_eq!(members(&world, &id).len(), 3);
        // Its slot is still the job's: another executor joins there, after a pause.
        world.pass(1_000);
        world.run();
        assert_eq!(members(&world, &id).len(), 4);
        calm(&world);
    }
}

/// Ranks that members host have their samples at hand there.
#[test]
fn only_the_ranks_of_who_is_gone_move() {
    let mut world = local(4);
    let id = world.submit(spec_with(|d| d["workers"] = json!({"min": 1, "max": 8})));
    world.run();
    world.train(&id);
    let hosts = |world: &World| -> BTreeMap<u32, BTreeSet<Rank>> {
        let members = job(world, &id).active().unwrap().proposal.members.iter();
        members.map(|member| (member.executor.number, member.ranks.iter().copied().collect())).collect()
    };
    let before = hosts(&world);
    assert!(before.len() == 4 && before.values().all(|ranks| ranks.len() == 2));
    let stay = |world: &World| hosts(world).iter().all(|(number, ranks)| ranks.is_superset(&before[number]));
    // One leaves by consent, without a new generation; the next is lost.
    world.take_back(&slot("local", 0), true);
    world.run();
    world.end_process(&ExecutorId { job: id.clone(), number: 1 }, ExitCause::Signal(9));
    world.run();
    assert_eq!(members(&world, &id), [2, 3]);
    assert!(stay(&world), "{before:?} {:?}", hosts(&world));
    world.demand("local", 3);
    world.run();
    assert!(members(&world, &id).len() == 1 && stay(&world));
    calm(&world);
}

/// Nobody is gone, so nothing but their word has them linked again; without it the step never ends.
#[test]
fn members_that_lost_each_other_come_together_in_a_new_round() {
    let (mut world, id) = training();
    let mark = world.log.len();
    let generation = job(&world, &id).generation;
    let lost = |world: &mut World| {
        let server = ServerId::parse("local").unwrap();
        let incarnation = world.state.server(&server).unwrap().incarnation;
        let executor = ExecutorId { job: id.clone(), number: 2 };
        let report = Report::PeerLost { job: id.clone(), generation, executor };
        world.foreign_report(server, incarnation, report);
    };
    lost(&mut world);
    lost(&mut world);
    assert_eq!(proposed(&since(&world, mark)), [&Entry::Recover], "one round for both who say so");
    world.run();
    assert_eq!((members(&world, &id).len(), job(&world, &id).restarts), (4, 0));
    lost(&mut world);
    assert_eq!(proposed(&since(&world, mark)).len(), 1, "an old generation has nothing to say");
    calm(&world);
}

/// Found by stopping an executor with a signal: its round was given up, and nobody thought of another.
#[test]
fn a_recovery_that_one_member_does_not_answer_is_tried_again_and_goes_on_without_it_once_it_is_killed() {
    let (mut world, id) = training();
    let step = world.real_step(&id);
    let hung = ExecutorId { job: id.clone(), number: 2 };
    world.cut_off(&hung, true);
    let mark = world.log.len();
    for _ in 0..200 {
        world.pass(1_000);
        world.run();
        world.train(&id);
    }
    let facts = since(&world, mark);
    assert!(has(&facts, |f| matches!(f, Fact::GenerationAbandoned { cause: AbandonCause::Deadline, .. })));
    assert_eq!(
        proposed(&facts),
        [&Entry::Recover, &Entry::Recover, &Entry::Recover],
        "at once, and every 75 s: by then the watch has said who hangs, if it hears of it"
    );
    world.end_process(&hung, ExitCause::Silent);
    world.run();
    assert_eq!((members(&world, &id), world.real_step(&id)), (vec![0, 1, 3], step));
    assert_eq!((phase(&world, &id), job(&world, &id).restarts), ("running", 0));
    assert!(job(&world, &id).faults.last.contains("hung"));
    calm(&world);
}

/// A deadline that a recovery misses is no start that failed: were each counted as one, the job would fail instead of starting anew.
#[test]
fn a_recovery_that_never_comes_about_ends_in_a_restart_on_new_executors() {
    let mut world = local(4);
    let id = world.submit(spec_with(|d| (d["max_restarts"], d["steps"]) = (json!(2), json!(1_000_000))));
    world.run();
    world.train(&id);
    world.cut_off(&ExecutorId { job: id.clone(), number: 2 }, true);
    for _ in 0..600 {
        world.pass(1_000);
        world.run();
        world.train(&id);
    }
    assert_eq!((phase(&world, &id), job(&world, &id).restarts), ("running", 1));
    assert_eq!(members(&world, &id), [4, 5, 6, 7]);
    calm(&world);
}

#[test]
fn a_recovery_that_loses_a_member_is_followed_by_another() {
    let (mut world, id) = training();
    let victims: Vec<_> = world.processes();
    world.end_process(&victims[0], ExitCause::Signal(9));
    world.deliver_all();
    world.end_process(&victims[1], ExitCause::Signal(9));
    let mark = world.log.len();
    world.deliver_all();
    let facts = since(&world, mark);
    assert!(has(&facts, |f| matches!(f, Fact::GenerationAbandoned { cause: AbandonCause::MemberLost, .. })));
    assert_eq!(proposed(&facts), [&Entry::Recover]);
    world.run();
    assert_eq!(job(&world, &id).restarts, 0);
    calm(&world);
}

#[test]
fn when_every_replica_is_lost_the_job_goes_on_from_its_checkpoint() {
    let (mut world, id) = training();
    for _ in 0..6 {
        world.train(&id);
    }
    world.deliver_all();
    let checkpoint = job(&world, &id).last_checkpoint().unwrap().clone();
    for process in world.processes() {
        world.end_process(&process, ExitCause::Signal(9));
    }
    let mark = world.log.len();
    world.deliver_all();
    assert!(has(
        &since(&world, mark),
        |f| matches!(f, Fact::JobRestarted { from, cause: Some(RestartCause::Lost { noticed: LossNotice::Exit(ExitCause::Signal(9)), .. }), .. } if *from == checkpoint.step)
    ));
    assert_eq!(job(&world, &id).restart.as_ref().map(|restart| restart.from), Some(checkpoint.step));
    assert_eq!(phase(&world, &id), "starting");
    world.run();
    assert_eq!(phase(&world, &id), "starting", "a pause first");
    world.pass(1_000);
    world.run();
    assert_eq!(phase(&world, &id), "running");
    assert_eq!(world.real_step(&id), Some(checkpoint.step.0));
    assert_eq!((job(&world, &id).restarts, job(&world, &id).faults.restarts), (1, 1));
    calm(&world);
}

#[test]
fn a_job_that_keeps_failing_fails_with_a_reason() {
    let mut world = local(2);
    let id = world.submit(spec_with(|d| d["max_restarts"] = json!(2)));
    for _ in 0..400 {
        world.run();
        for process in world.processes() {
            world.end_process(&process, ExitCause::Status(101));
        }
        world.deliver_all();
        world.pass(1_000);
    }
    let JobPhase::Failed { reason, .. } = &job(&world, &id).phase else { panic!("{:?}", job(&world, &id).phase) };
    assert!(reason.contains("max_restarts: 2") && reason.contains("status 101"), "{reason}");
    calm(&world);
}

/// A program that is not there yet, a server without memory: nothing that the job's user did.
#[test]
fn executors_that_cannot_be_started_are_tried_again_after_growing_pauses() {
    let mut world = local(2);
    let id = world.submit(spec_with(|d| d["max_restarts"] = json!(3)));
    let mut starts = 0;
    for _ in 0..60 {
        world.deliver_orders(&ServerId::parse("local").unwrap());
        for process in world.processes() {
            starts += 1;
            world.end_process(&process, ExitCause::NotStarted("no such file".to_owned()));
        }
        world.deliver_all();
        world.pass(1_000);
    }
    assert!(job(&world, &id).faults.last.contains("no such file"));
    assert_eq!((phase(&world, &id), starts), ("starting", 12), "both slots, after 0, 1, 3, 7, 15 and 31 s");
    world.pass(60_000);
    world.run();
    assert_eq!((phase(&world, &id), job(&world, &id).restarts), ("running", 0));
    calm(&world);
}

#[test]
fn a_newcomer_that_dies_or_stalls_disturbs_nobody() {
    let mut world = local(4);
    world.demand("local", 2);
    let id = world.submit(spec());
    world.run();
    world.demand("local", 0);
    world.deliver_orders(&ServerId::parse("local").unwrap());
    let newcomers: Vec<_> = world.processes().into_iter().filter(|process| process.number >= 2).collect();
    world.end_process(&newcomers[0], ExitCause::Status(1));
    world.deliver_all();
    let mark = world.log.len();
    world.pass(READY_DEADLINE_MS + 1_000);
    let facts = since(&world, mark);
    assert!(has(
        &facts,
        |f| matches!(f, Fact::ExecutorLeaving { executor, cause: LeaveCause::Useless, .. } if *executor == newcomers[1])
    ));
    assert!(proposed(&facts).is_empty());
    assert_eq!(members(&world, &id), [0, 1]);
    for _ in 0..5 {
        world.run();
        world.pass(1_000);
    }
    assert_eq!(members(&world, &id).len(), 4, "others came in their place");
    calm(&world);
}

/// A job that trains on two slots, and is told of the switch by which it has two more members.
fn about_to_grow() -> (World, JobId) {
    let mut world = local(4);
    world.demand("local", 2);
    let id = world.submit(spec());
    world.run();
    world.demand("local", 0);
    let server = ServerId::parse("local").unwrap();
    world.deliver_orders(&server);
    world.processes().iter().for_each(|process| _ = world.get_ready(process));
    world.deliver_all();
    world.deliver_orders(&server);
    (world, id)
}

#[test]
fn a_member_that_still_waits_for_the_replica_leaves_by_consent() {
    let (mut world, id) = about_to_grow();
    assert!(world.activate(&id));
    world.deliver_all();
    let waits: Vec<u32> = world.state.executors_of(&id).filter(|(_, e)| !e.replica).map(|(id, _)| id.number).collect();
    assert_eq!((members(&world, &id), waits), (vec![0, 1, 2, 3], vec![2, 3]));
    let mark = world.log.len();
    world.demand("local", 2);
    let facts = since(&world, mark);
    let later = |f: &Fact| matches!(f, Fact::ExecutorLeaving { cause: LeaveCause::Reclaim, deadline, .. } if *deadline > world.at);
    let at_once = |f: &Fact| matches!(f, Fact::ExecutorLeaving { cause: LeaveCause::Useless, .. });
    assert_eq!((facts.iter().filter(|f| later(f)).count(), has(&facts, at_once)), (2, false), "{facts:?}");
    world.run();
    let recovers = proposed(&since(&world, mark)).into_iter().any(|entry| *entry == Entry::Recover);
    assert_eq!((recovers, members(&world, &id)), (false, vec![0, 2]), "nobody has to come together anew");
    calm(&world);
}

#[test]
fn a_model_that_takes_long_to_build_has_as_long_as_its_first_unit_may_take() {
    for (unit_timeout_ms, given_up) in [(READY_DEADLINE_MS, true), (2 * READY_DEADLINE_MS, false)] {
        let mut world = local(1);
        world.submit(spec_with(|d| d["unit_timeout_ms"] = json!(unit_timeout_ms)));
        world.deliver_orders(&ServerId::parse("local").unwrap());
        let mark = world.log.len();
        world.pass(READY_DEADLINE_MS + 1_000);
        let leaves = |fact: &Fact| matches!(fact, Fact::ExecutorLeaving { cause: LeaveCause::Useless, .. });
        assert_eq!(has(&since(&world, mark), leaves), given_up, "{unit_timeout_ms}");
        calm(&world);
    }
}

#[test]
fn a_switch_that_misses_its_deadline_is_given_up_but_may_still_report_itself() {
    let (mut world, id) = about_to_grow();
    let generation = job(&world, &id).generation;
    assert!(world.activate(&id), "the members were in time, their word is not");
    world.pass(16_000);
    assert!(job(&world, &id).placement().unwrap().proposed.as_ref().is_none_or(|p| p.generation > generation));
    world.run();
    world.pass(1_000);
    world.run();
    assert_eq!(job(&world, &id).restarts, 0);
    assert!(members(&world, &id).len() >= 2);
    world.pass(GROWTH_PAUSE_MS_MIN);
    world.run();
    assert_eq!(members(&world, &id).len(), 4);
    calm(&world);
}

/// Found by the simulation of everything (seed 20012990): the word came when its members had let their replicas go for the generation after. They were
/// taken for holders, told to come together anew, and each ended for having nothing.
#[test]
fn a_first_generation_that_was_given_up_for_a_smaller_one_is_in_force_no_more_whenever_its_leader_said_so() {
    let mut world = local(4);
    let id = world.submit(spec());
    let server = ServerId::parse("local").unwrap();
    world.deliver_orders(&server);
    world.processes().iter().for_each(|process| _ = world.get_ready(process));
    world.deliver_all();
    world.deliver_orders(&server);
    assert!(world.activate(&id), "its members were in time, their word is not");
    let mark = world.log.len();
    let facts = world.demand("local", 2);
    assert!(has(&facts, |f| matches!(f, Fact::GenerationAbandoned { cause: AbandonCause::Superseded, .. })));
    assert_eq!(proposed(&facts), [&Entry::Fresh], "those that stay begin without who leaves");
    world.deliver_orders(&server);
    world.deliver_all();
    assert_eq!(phase(&world, &id), "starting", "the late word counts for nothing");
    world.run();
    let facts = since(&world, mark);
    assert_eq!((members(&world, &id), proposed(&facts)), (vec![0, 1], vec![&Entry::Fresh]));
    assert!(!has(&facts, |f| matches!(f, Fact::JobRestarted { .. })));
    calm(&world);
}

#[test]
fn suspend_writes_a_checkpoint_and_resume_goes_on_from_it() {
    let (mut world, id) = training();
    let facts = world.command(Command::SuspendJob { job: id.clone() });
    assert!(has(&facts, |f| matches!(f, Fact::JobSuspending { .. })));
    let server = ServerId::parse("local").unwrap();
    assert!(orders(&world.state, &server).iter().all(|order| order.job.park && order.leave_by.is_none()));
    let step = world.real_step(&id).unwrap();
    world.run();
    assert_eq!(phase(&world, &id), "suspended");
    assert_eq!(job(&world, &id).last_checkpoint().unwrap().step, Step(step));
    assert_eq!(reason(&world, &id).waits, Some(WaitCause::Resume));
    assert!(world.state.executors().next().is_none() && world.state.slots().all(|(_, slot)| slot.is_idle()));
    world.command(Command::ResumeJob { job: id.clone() });
    world.run();
    assert_eq!((phase(&world, &id), world.real_step(&id)), ("running", Some(step)));
    assert_eq!(job(&world, &id).restarts, 0);
    assert!(world.run_to_end(200));
    calm(&world);
}

#[test]
fn a_job_whose_slots_all_go_back_is_written_down_and_waits() {
    let (mut world, id) = training();
    let step = world.real_step(&id).unwrap();
    let facts = world.demand("local", 4);
    assert!(has(&facts, |f| matches!(f, Fact::PlanAdopted { slots, .. } if slots.is_empty())));
    assert!(
        orders(&world.state, &ServerId::parse("local").unwrap())
            .iter()
            .all(|order| order.job.park && order.leave_by.is_some())
    );
    world.run();
    assert_eq!(phase(&world, &id), "queued");
    assert_eq!(job(&world, &id).last_checkpoint().unwrap().step, Step(step));
    assert_eq!(world.state.loans().count(), 0);
    assert_eq!(reason(&world, &id).waits, Some(WaitCause::Offers));
    world.demand("local", 0);
    world.run();
    assert_eq!((phase(&world, &id), world.real_step(&id)), ("running", Some(step)));
    calm(&world);
}

#[test]
fn a_job_that_could_not_park_in_time_goes_back_to_its_last_checkpoint() {
    let (mut world, id) = training();
    world.demand("local", 4);
    world.deliver_orders(&ServerId::parse("local").unwrap());
    world.pass(2_500);
    world.deliver_all();
    assert_eq!(phase(&world, &id), "queued");
    assert_eq!(job(&world, &id).last_checkpoint(), None);
    world.demand("local", 0);
    world.run();
    assert_eq!((phase(&world, &id), world.real_step(&id)), ("running", Some(0)));
    calm(&world);
}

#[test]
fn a_minimum_is_kept_or_everything_given_back() {
    let mut world = local(4);
    let rigid = world.submit(spec_with(|d| d["workers"] = json!({"min": 2, "max": 2})));
    let elastic = world.submit(spec_with(|d| d["workers"] = json!({"min": 1, "max": 2})));
    world.run();
    assert_eq!((job(&world, &rigid).slots().len(), job(&world, &elastic).slots().len()), (2, 2));
    world.demand("local", 1);
    world.run();
    assert_eq!(
        (job(&world, &rigid).slots().len(), job(&world, &elastic).slots().len()),
        (2, 1),
        "from above the minimum first"
    );
    world.demand("local", 2);
    world.run();
    assert_eq!((phase(&world, &rigid), phase(&world, &elastic)), ("running", "queued"), "the later job waits");
    world.demand("local", 3);
    world.run();
    assert_eq!(
        (phase(&world, &rigid), phase(&world, &elastic)),
        ("queued", "running"),
        "one slot is enough for one of them"
    );
    calm(&world);
}

#[test]
fn cancel_in_every_phase_frees_everything() {
    let cancel = |world: &mut World, id: &JobId| {
        let facts = world.command(Command::CancelJob { job: id.clone() });
        assert!(
            has(&facts, |f| matches!(f, Fact::JobCancelled { .. }))
                && has(&facts, |f| matches!(f, Fact::CommandTaken { .. }))
        );
        world.run();
        assert_eq!(phase(world, id), "cancelled");
        assert!(world.state.executors_of(id).next().is_none());
        let again = world.command(Command::CancelJob { job: id.clone() });
        assert_eq!(
            refusal(&again),
            Refusal::WrongPhase { phase: "cancelled".to_owned(), expected: "a job that has not ended".to_owned() }
        );
        calm(world);
    };
    let mut world = local(0);
    let queued = world.submit(spec());
    cancel(&mut world, &queued);
    let suspended = world.submit(spec_with(|d| d["suspend"] = json!(true)));
    assert_eq!(phase(&world, &suspended), "suspended");
    cancel(&mut world, &suspended);

    let mut world = local(4);
    let starting = world.submit(spec());
    assert_eq!(phase(&world, &starting), "starting");
    // The agent may not know these executors yet: they are listed as overdue until it says that they are not there.
    world.command(Command::CancelJob { job: starting.clone() });
    let server = ServerId::parse("local").unwrap();
    assert!(orders(&world.state, &server).iter().all(|order| order.leave_by.is_some_and(|by| by <= world.at)));
    world.run();
    assert!(world.state.executors().next().is_none());

    let (mut world, running) = training();
    cancel(&mut world, &running);
    let (mut world, suspending) = training();
    world.command(Command::SuspendJob { job: suspending.clone() });
    cancel(&mut world, &suspending);
    let (mut world, finished) = training();
    assert!(world.run_to_end(200));
    let facts = world.command(Command::CancelJob { job: finished });
    assert!(matches!(refusal(&facts), Refusal::WrongPhase { .. }));
}
