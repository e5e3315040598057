//! Random streams of commands, demand, faults, reports in any order and passing time: every invariant after every event,
//! replay equals live, the same choices give the same bytes, planning twice changes nothing, and in the end every job ends.
#![allow(clippy::unwrap_used)]

use controller_core::policy::POLICY_NAMES;
use controller_core::world::{World, dataset, slot};
use controller_core::{Input, State, decide, policy_by_name};
use events_schema::command::Command;
use events_schema::fact::{AbandonCause, Entry, Fact, LeaveCause};
use events_schema::job::JobSpec;
use events_schema::public::kind_and_subject;
use events_schema::report::ExitCause;
use events_schema::{Cell, FleetId, JobId, ServerId, batch};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::json;
use std::collections::BTreeMap;

const SERVERS: [&str; 2] = ["a", "b"];
const SLOTS: u16 = 4;

/// What happens next; the numbers pick among what there is.
#[derive(Debug, Clone, Copy)]
enum Choice {
    Submit { min: u16, more: u16, priority: i8, steps: u16, keep: u8 },
    Demand { fleet: usize, needed: u32 },
    Command { which: u8, job: usize },
    Slots { offer: bool, index: u16, fleet: usize },
    Redeclare { fleet: usize, slots: u16 },
    TakeBack { server: usize, index: u16, late: bool },
    Kill { process: usize, exit: u8 },
    CutOff { process: usize, again: bool },
    LoseAgent { server: usize },
    RestartAgent { server: usize },
    Pass { ms: u64 },
    Orders { server: usize },
    Report { server: usize, twice: bool },
    Ready { process: usize },
    Activate { job: usize },
    LoseNewcomer,
    Train { job: usize },
    Run,
}

fn any_choice() -> impl Strategy<Value = Choice> {
    prop_oneof![
        2 => (1u16..4, 0u16..5, -1i8..2, 1u16..200, 1u8..4)
            .prop_map(|(min, more, priority, steps, keep)| Choice::Submit { min, more, priority, steps, keep }),
        4 => (0usize..2, 0u32..6).prop_map(|(fleet, needed)| Choice::Demand { fleet, needed }),
        2 => (0u8..3, any::<usize>()).prop_map(|(which, job)| Choice::Command { which, job }),
        2 => (any::<bool>(), 0..SLOTS, 0usize..2).prop_map(|(offer, index, fleet)| Choice::Slots { offer, index, fleet }),
        1 => (0usize..2, 0u16..=SLOTS).prop_map(|(fleet, slots)| Choice::Redeclare { fleet, slots }),
        2 => (0usize..2, 0..SLOTS, any::<bool>()).prop_map(|(server, index, late)| Choice::TakeBack { server, index, late }),
        2 => (any::<usize>(), 0u8..5).prop_map(|(process, exit)| Choice::Kill { process, exit }),
        1 => (any::<usize>(), any::<bool>()).prop_map(|(process, again)| Choice::CutOff { process, again }),
        1 => (0usize..2).prop_map(|server| Choice::LoseAgent { server }),
        1 => (0usize..2).prop_map(|server| Choice::RestartAgent { server }),
        6 => (0u64..4_000).prop_map(|ms| Choice::Pass { ms }),
        1 => (0u64..70_000).prop_map(|ms| Choice::Pass { ms }),
        8 => (0usize..2).prop_map(|server| Choice::Orders { server }),
        12 => (0usize..2, any::<bool>()).prop_map(|(server, twice)| Choice::Report { server, twice }),
        6 => any::<usize>().prop_map(|process| Choice::Ready { process }),
        8 => any::<usize>().prop_map(|job| Choice::Activate { job }),
        1 => Just(Choice::LoseNewcomer),
        14 => any::<usize>().prop_map(|job| Choice::Train { job }),
        5 => Just(Choice::Run),
    ]
}

fn pick<T: Clone>(from: &[T], number: usize) -> Option<T> {
    (!from.is_empty()).then(|| from[number % from.len()].clone())
}

fn placed(world: &World) -> Vec<JobId> {
    world.state.live_jobs().filter(|(_, job)| job.placement().is_some()).map(|(id, _)| id.clone()).collect()
}

fn spec(min: u16, max: u16, priority: i8, steps: u16, keep: u8) -> JobSpec {
    JobSpec::parse(&json!({
        "name": "digits", "model": {"kind": "cnn"}, "dataset": "digits", "workers": {"min": min, "max": max}, "batch_size": 8,
        "steps": steps, "priority": priority, "checkpoint": {"every_steps": 20, "keep": keep}, "max_restarts": 1000,
    }))
    .unwrap()
}

fn new_world(policy: &str) -> World {
    let mut world = World::new(policy_by_name(policy).unwrap());
    for server in SERVERS {
        world.start_agent(server, SLOTS);
        world.put_fleet(server, server, SLOTS, 2_000);
    }
    world.deliver_all();
    world.register(dataset("digits"));
    SERVERS.iter().for_each(|fleet| drop(world.demand(fleet, 0)));
    world
}

fn act(world: &mut World, choice: Choice) {
    let server = |index: usize| ServerId::parse(SERVERS[index]).unwrap();
    let fleet = |index: usize| FleetId::parse(SERVERS[index]).unwrap();
    match choice {
        Choice::Submit { min, more, priority, steps, keep } => {
            world.submit(spec(min, min + more, priority, steps, keep));
        }
        Choice::Demand { fleet, needed } => drop(world.demand(SERVERS[fleet], needed)),
        Choice::Command { which, job } => {
            if let Some(job) = pick(&world.job_ids(), job) {
                world.command(match which {
                    0 => Command::SuspendJob { job },
                    1 => Command::ResumeJob { job },
                    _ => Command::CancelJob { job },
                });
            }
        }
        Choice::Slots { offer, index, fleet: name } => {
            let (fleet, slots) = (fleet(name), vec![slot(SERVERS[name], index)]);
            world.command(if offer {
                Command::OfferSlots { fleet, slots }
            } else {
                Command::ReclaimSlots { fleet, slots }
            });
        }
        Choice::Redeclare { fleet, slots } => drop(world.put_fleet(SERVERS[fleet], SERVERS[fleet], slots, 2_000)),
        Choice::TakeBack { server, index, late } => world.take_back(&slot(SERVERS[server], index), late),
        Choice::Kill { process, exit } => {
            if let Some(process) = pick(&world.processes(), process) {
                let causes =
                    [ExitCause::Signal(9), ExitCause::Status(1), ExitCause::Left, ExitCause::Killed, ExitCause::Silent];
                let exit = causes[usize::from(exit)].clone();
                world.end_process(&process, exit);
            }
        }
        Choice::CutOff { process, again } => {
            if let Some(process) = pick(&world.processes(), process) {
                world.unlink(&process, !again);
            }
        }
        Choice::LoseAgent { server: index } => world.lose_agent(&server(index)),
        Choice::RestartAgent { server: index } => world.restart_agent(&server(index)),
        Choice::Pass { ms } => {
            // An agent that heard or said nothing for long would be declared gone: here orders and reports arrive in time.
            let mut left = ms;
            while left > 3_000 {
                world.deliver_all();
                SERVERS.iter().for_each(|name| _ = world.deliver_orders(&ServerId::parse(name).unwrap()));
                world.pass(3_000);
                left -= 3_000;
            }
            world.pass(left);
            let again = world.input(&Input::Tick);
            assert!(again.is_empty(), "planning twice decides something: {again:?}");
        }
        Choice::Orders { server: index } => _ = world.deliver_orders(&server(index)),
        Choice::Report { server: index, twice } => _ = world.deliver_report(&server(index), twice),
        Choice::Ready { process } => {
            if let Some(process) = pick(&world.processes(), process) {
                world.get_ready(&process);
            }
        }
        Choice::Activate { job } => {
            if let Some(job) = pick(&placed(world), job) {
                world.activate(&job);
            }
        }
        Choice::LoseNewcomer => world.lose_next_newcomer = true,
        Choice::Train { job } => {
            if let Some(job) = pick(&placed(world), job) {
                world.train(&job);
            }
        }
        Choice::Run => world.run(),
    }
}

/// Ends all faults, gives back everything, lets everybody go on.
fn make_peace(world: &mut World, restart_all: bool) {
    for server in SERVERS {
        if restart_all || !world.is_up(server) {
            world.start_agent(server, SLOTS);
        }
    }
    world.lose_next_newcomer = false;
    world.processes().iter().for_each(|process| world.unlink(process, false));
    world.deliver_all();
    world.run();
    for fleet in SERVERS {
        world.put_fleet(fleet, fleet, SLOTS, 2_000);
        world.demand(fleet, u32::from(SLOTS));
        world.run();
        world.demand(fleet, 0);
    }
    world.run();
    for job in world.job_ids() {
        world.command(Command::ResumeJob { job });
    }
}

fn play(policy: &str, choices: &[Choice]) -> World {
    let mut world = new_world(policy);
    for (index, choice) in choices.iter().enumerate() {
        act(&mut world, *choice);
        assert!(world.violations.is_empty(), "{policy}, after choice {index} {choice:?}: {:#?}", world.violations);
    }
    world
}

/// Guards the properties against becoming vacuous: the streams bring about every fact and every way into a generation.
#[test]
fn the_streams_reach_everything() {
    let mut runner = TestRunner::deterministic();
    let streams = proptest::collection::vec(any_choice(), 250);
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    for _ in 0..60 {
        let choices = streams.new_tree(&mut runner).unwrap().current();
        for fact in play("ebb", &choices).log.into_iter().flat_map(|(_, facts)| facts) {
            let detail = match &fact {
                Fact::GenerationProposed { proposal, .. } => match proposal.entry {
                    Entry::Fresh => " fresh",
                    Entry::Checkpoint { .. } => " checkpoint",
                    Entry::Switch { .. } => " switch",
                    Entry::Recover => " recover",
                },
                Fact::GenerationAbandoned { cause: AbandonCause::Deadline, .. } => " deadline",
                Fact::GenerationAbandoned { cause: AbandonCause::MemberLost, .. } => " lost",
                Fact::GenerationAbandoned { cause: AbandonCause::Superseded, .. } => " superseded",
                Fact::GenerationAbandoned { cause: AbandonCause::Unlinked, .. } => " unlinked",
                Fact::ExecutorLeaving { cause: LeaveCause::Reclaim, .. } => " reclaim",
                Fact::ExecutorLeaving { cause: LeaveCause::Plan, .. } => " plan",
                Fact::ExecutorLeaving { cause: LeaveCause::JobEnd, .. } => " end",
                Fact::ExecutorLeaving { cause: LeaveCause::Useless, .. } => " useless",
                Fact::PlanAdopted { slots, .. } if slots.is_empty() => " nothing",
                _ => "",
            };
            *seen
                .entry(format!("{}{detail}", kind_and_subject(&fact).0.trim_start_matches("dev.ebb.")))
                .or_default() += 1;
        }
    }
    println!("{seen:#?}");
    let expected = [
        "agent.gone.v1",
        "agent.joined.v1",
        "agent.reports_taken.v1",
        "checkpoint.accepted.v1",
        "checkpoint.retired.v1",
        "command.refused.v1",
        "command.taken.v1",
        "dataset.registered.v1",
        "executor.assigned.v1",
        "executor.gone.v1",
        "executor.leaving.v1 end",
        "executor.leaving.v1 plan",
        "executor.leaving.v1 reclaim",
        "executor.leaving.v1 useless",
        "executor.ready.v1",
        "fleet.declared.v1",
        "fleet.demand.v1",
        "generation.abandoned.v1 deadline",
        "generation.abandoned.v1 lost",
        "executor.replica_held.v1",
        "generation.abandoned.v1 superseded",
        "generation.abandoned.v1 unlinked",
        "generation.peers_missing.v1",
        "job.growth_paused.v1",
        "job.slot_avoided.v1",
        "generation.active.v1",
        "generation.departed.v1",
        "generation.proposed.v1 checkpoint",
        "generation.proposed.v1 fresh",
        "generation.proposed.v1 recover",
        "generation.proposed.v1 switch",
        "job.accepted.v1",
        "job.cancelled.v1",
        "job.finished.v1",
        "job.restarted.v1",
        "job.resumed.v1",
        "job.scaled.v1",
        "job.scaled.v1 nothing",
        "job.suspended.v1",
        "job.suspending.v1",
        "policy.chosen.v1",
        "slot.borrowed.v1",
        "slot.offered.v1",
        "slot.reclaimed.v1",
        "slot.returned.v1",
    ];
    let missing: Vec<_> = expected.iter().filter(|kind| !seen.contains_key(**kind)).collect();
    assert!(missing.is_empty(), "never seen: {missing:?}");
}

/// Enough to find what was found so far; `PROPTEST_CASES` asks for more.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(128)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn invariants_hold_replay_equals_live_and_every_job_ends(
        choices in proptest::collection::vec(any_choice(), 0..250), restart_all in any::<bool>()
    ) {
        for policy in POLICY_NAMES {
            let mut world = play(policy, &choices);
            make_peace(&mut world, restart_all);
            let ended = world.run_to_end(20_000);
            prop_assert!(world.violations.is_empty(), "{}: {:#?}", policy, world.violations);
            let stuck: Vec<_> = world.state.live_jobs().collect();
            prop_assert!(ended, "{policy}: {stuck:#?} on {:#?}", world.state.slots().collect::<Vec<_>>());
            let mut replayed = State::new(Cell(0));
            for (at, facts) in &world.log {
                facts.iter().for_each(|fact| replayed.apply(*at, fact));
            }
            prop_assert_eq!(replayed.digest(), world.state.digest());
            prop_assert_eq!(&replayed, &world.state);
        }
    }

    #[test]
    fn the_same_choices_give_the_same_bytes(choices in proptest::collection::vec(any_choice(), 0..120)) {
        let bytes = || play("ebb", &choices).log.iter().flat_map(|(_, facts)| facts.iter().flat_map(batch::to_bytes)).collect::<Vec<u8>>();
        prop_assert_eq!(bytes(), bytes());
    }

    #[test]
    fn a_state_survives_its_bytes(choices in proptest::collection::vec(any_choice(), 0..120)) {
        let world = play("ebb", &choices);
        let bytes = batch::to_bytes(&world.state);
        let read: State = batch::from_bytes(&bytes).unwrap();
        prop_assert_eq!(&read, &world.state);
        let policy = policy_by_name("ebb").unwrap();
        let later = world.at.plus_ms(100_000);
        prop_assert_eq!(decide(&read, later, &Input::Tick, policy.as_ref()), decide(&world.state, later, &Input::Tick, policy.as_ref()));
    }
}
