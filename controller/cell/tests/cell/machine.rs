//! The machine on a simulated log and virtual time: what it survives, whom it gives up, when it refuses.

use crate::support::{Fault, LEASE_MS, World, has_dataset, joined, server, slot};
use controller_cell::{CellEnd, CellFailure, In, LinkEnd, LinkId, Note};
use controller_core::orders::{Touched, orders, touched};
use events_rule::Stream;
use events_schema::batch::to_bytes;
use events_schema::command::Command;
use events_schema::control::{Gradients, Phase, Progress, WaitsFor};
use events_schema::fact::{Fact, StallCause, StallRemedy};
use events_schema::orders::{AgentMessage, ControllerMessage, FarEnd};
use events_schema::report::{Report, ReportRecord};
use events_schema::{ExecutorId, Generation, JobId, Offset, Rank, Step, TimeMs};
use proptest::prelude::*;

#[test]
fn a_command_becomes_facts_and_the_replay_is_the_live_state() {
    let mut world = World::led();
    world.log.register("d1");
    world.pass(50);
    assert!(has_dataset(world.first().state(), "d1"));
    let folded = world.log.fold();
    assert_eq!(folded.state.digest(), world.first().state().digest());
    assert_eq!(folded.known, world.first().committed.as_ref().unwrap().position);
}

#[test]
fn the_same_inputs_at_the_same_times_give_the_same_outputs() {
    let run = || {
        let mut world = World::led();
        let link = world.agent(0, "s1", 7, 2);
        world.log.put_fleet(&["s1"], 2);
        world.log.register("digits");
        world.log.submit("job-a");
        world.pass(100);
        world.log.demand(1, 0);
        world.pass(3_000);
        let heard = world.first().heard(link);
        format!("{heard:?} {:?} {:?}", world.controllers[0].notes, world.controllers[0].machine)
    };
    assert_eq!(run(), run());
}

#[test]
fn two_controllers_and_the_first_stands_down_by_name() {
    let mut world = World::led();
    world.start("b");
    world.pass(1_000);
    world.log.register("d1");
    world.pass(3_000);
    let end = world.first().end.clone();
    assert!(matches!(&end, Some(CellEnd::Superseded { by, .. }) if by == "b"), "{end:?}");
    assert!(has_dataset(world.controllers[1].state(), "d1"));
    let installation = |number: usize| world.controllers[number].committed.as_ref().unwrap().installation;
    assert!(installation(0).is_some() && installation(0) == installation(1), "both lead the same log");
    assert_eq!(installation(1), world.log.fold().installation);
}

/// Found by a random schedule: a controller whose append had no known outcome claimed the cell back from the one that had replaced it.
#[test]
fn a_replaced_controller_that_lost_an_acknowledgement_stands_down() {
    let mut world = World::led();
    world.start("b");
    world.log.faults.push_back((Stream::Events, Fault::AcknowledgementLost));
    world.log.register("d1");
    world.pass(1_000);
    let end = world.first().end.clone();
    assert!(matches!(&end, Some(CellEnd::Superseded { by, .. }) if by == "b"), "{end:?}");
    world.pass(5_000);
    assert_eq!(world.controllers[1].end, None);
}

#[test]
fn an_idle_controller_learns_by_itself_that_it_was_replaced() {
    let mut world = World::led();
    world.start("b");
    world.pass(5_000);
    assert!(world.first().end.is_some());
}

/// Found by a random schedule: agents stayed with a controller whose append the log kept waiting, and its successor gave them up.
#[test]
fn a_controller_whose_append_is_not_answered_learns_that_it_was_replaced() {
    let mut world = World::led();
    world.log.faults.push_back((Stream::Events, Fault::Unanswered));
    world.log.register("d1");
    world.pass(5_000);
    assert_eq!(world.first().end, None, "nobody else has claimed the cell");
    world.start("b");
    world.pass(3_000);
    let end = world.first().end.clone();
    assert!(matches!(&end, Some(CellEnd::Superseded { by, .. }) if by == "b"), "{end:?}");
    assert_eq!(world.controllers[1].end, None);
}

/// Heartbeats are read whatever becomes of the appends of reports: else a stalled log makes live agents look silent.
#[test]
fn an_agent_that_speaks_outlives_any_stall_of_the_log() {
    let mut world = World::led();
    let link = world.agent(0, "s1", 7, 1);
    world.log.stalled = true;
    world.report(0, link, 2, Report::SlotTakenBack { slot: slot("s1", 0), asked_ms: None, within_ms: None });
    world.pass(10 * LEASE_MS);
    world.log.stalled = false;
    world.pass(10 * LEASE_MS);
    assert!(world.first().is_connected("s1"));
    assert!(!world.first().notes.iter().any(|note| matches!(note, Note::AgentSilent { .. })));
    assert!(world.first().heard(link).contains(&ControllerMessage::ReportsTaken { through: 2 }));
}

/// Whoever could not be heard in the trouble either has a whole lease after it.
#[test]
fn nobody_is_given_up_while_the_log_is_unwell_and_everybody_has_a_lease_after_it() {
    let mut world = World::led();
    let link = world.agent(0, "s1", 7, 1);
    world.log.stalled = true;
    world.silence(link);
    world.take(0, In::LinkClosed { link });
    world.pass(3 * LEASE_MS);
    world.log.stalled = false;
    world.pass(LEASE_MS - 500);
    assert!(world.first().is_connected("s1"), "the lease begins with the log's return");
    let link = world.hello(0, "s1", 7);
    world.pass(3 * LEASE_MS);
    assert!(world.first().is_connected("s1"));
    world.silence(link);
    world.pass(LEASE_MS + 500);
    assert!(!world.first().is_connected("s1"), "with a log that is well, silence counts");
}

#[test]
fn a_log_that_is_slow_now_and_then_does_not_keep_the_dead_for_ever() {
    let mut world = World::led();
    let link = world.agent(0, "s1", 7, 1);
    world.silence(link);
    world.take(0, In::LinkClosed { link });
    for number in 0..10 {
        world.log.stalled = true;
        world.log.register(&format!("d{number}"));
        world.pass(1_600);
        world.log.stalled = false;
        world.pass(500);
    }
    let unwell = world.first().notes.iter().filter(|note| matches!(note, Note::Log { well: false })).count();
    assert_eq!(unwell, 10);
    assert!(!world.first().is_connected("s1"));
}

#[test]
fn loans_are_not_renewed_while_no_fleet_can_be_heard_and_decisions_resume_at_once() {
    let mut world = World::led();
    let link = world.agent(0, "s1", 7, 1);
    world.log.put_fleet(&["s1"], 1);
    world.pass(100);
    world.first().heard(link);
    world.log.stalled = true;
    world.log.demand(1, 0);
    world.pass(4_000);
    let renewals = world.first().heard(link);
    world.pass(4_000);
    let late = world.first().heard(link);
    assert!(renewals.iter().any(|message| matches!(message, ControllerMessage::Heartbeat { .. })), "at first");
    assert!(late.iter().all(|message| *message == ControllerMessage::Alive) && late.len() > 4, "{late:?}");
    world.log.stalled = false;
    world.pass(10);
    assert_eq!(world.first().state().loans().count(), 1, "what waited is decided at once");
    assert!(world.first().heard(link).iter().any(|message| matches!(message, ControllerMessage::Heartbeat { .. })));
}

/// The inputs are looked at as `events` is: one that does not answer leaves what is asked there undecided.
#[test]
fn an_input_stream_that_cannot_be_looked_at_is_an_unwell_log() {
    for stream in [Stream::Demand, Stream::Reports, Stream::Commands, Stream::Events] {
        let mut world = World::led();
        assert!(world.first().machine.is_log_well());
        world.log.unknown_end = Some(stream);
        world.pass(4_000);
        assert!(!world.first().machine.is_log_well(), "{stream}");
        world.log.unknown_end = None;
        world.pass(10);
        assert!(world.first().machine.is_log_well(), "{stream}");
    }
}

#[test]
fn an_agent_that_falls_silent_is_given_up_and_has_to_join_again() {
    let mut world = World::led();
    let link = world.agent(0, "s1", 7, 1);
    world.silence(link);
    world.pass(LEASE_MS + 300);
    assert!(!world.first().is_connected("s1"));
    let link = world.hello(0, "s1", 7);
    assert!(world.first().ended.contains(&(link, Some(LinkEnd::Rejoin))));
    world.agent(0, "s1", 8, 1);
    assert!(world.first().is_connected("s1"));
}

#[test]
fn a_controller_that_stood_still_gives_nobody_up_for_it() {
    let mut world = World::led();
    world.agent(0, "s1", 7, 1);
    world.now_ms += 60_000;
    world.pass(2_000);
    assert!(world.first().is_connected("s1"));
    assert!(world.first().notes.iter().any(|note| matches!(note, Note::StoodStill { ms } if *ms >= 60_000)));
}

/// Inputs carry no term: what a replaced controller saw must not give up an agent that has found the new one.
#[test]
fn what_a_replaced_controller_saw_of_an_agent_has_no_effect() {
    let mut world = World::led();
    world.agent(0, "s1", 7, 1);
    world.start("b");
    world.pass(1_000);
    let link = world.hello(1, "s1", 7);
    let (server, report) = (server("s1"), Report::AgentGone);
    let late = ReportRecord { server, incarnation: 7, number: 0, at: TimeMs(1), report, trace: None, after: None };
    world.log.append(Stream::Reports, to_bytes(&late));
    world.pass(10_000);
    assert!(world.controllers[1].is_connected("s1"));
    assert!(!world.controllers[1].ended.iter().any(|(ended, _)| *ended == link));
}

/// A batch takes a share of each input: were all demand taken first, whoever floods it would stop everything else.
#[test]
fn a_flood_of_demand_starves_neither_reports_nor_commands() {
    let mut world = World::led();
    world.agent(0, "s1", 7, 1);
    world.log.put_fleet(&["s1"], 1);
    world.pass(100);
    world.log.stalled = true;
    for sequence in 0..20_000 {
        world.log.demand(sequence, 0);
    }
    world.pass(10);
    world.log.register("d1");
    let (server, report) =
        (server("s1"), Report::SlotTakenBack { slot: slot("s1", 0), asked_ms: None, within_ms: None });
    let record = ReportRecord { server, incarnation: 7, number: 2, at: TimeMs(1), report, trace: None, after: None };
    world.log.append(Stream::Reports, to_bytes(&record));
    world.pass(10);
    let before = world.log.batches().len();
    world.log.stalled = false;
    world.pass(10);
    let streams: Vec<usize> = world.log.batches()[before..].iter().map(|batch| batch.taken.len()).collect();
    assert_eq!(streams[..3], [1, 3, 1], "the batch on its way, then one with a share of each");
    assert!(streams.len() > 70);
}

/// The refusal used to hit whatever input came next, and a stream that never runs dry kept it from ever being found.
#[test]
fn an_input_whose_facts_do_not_fit_is_refused_alone_and_in_time() {
    let mut world = World::led();
    world.agent(0, "s1", 7, 1);
    world.log.put_fleet(&["s1"], 1);
    world.pass(100);
    world.log.events_len_max = Some(2_000);
    world.log.register_at("large", &format!("datasets/large/{}", "k".repeat(4_000)));
    world.log.register("after");
    for sequence in 0..300 {
        world.log.demand(sequence, 0);
    }
    world.pass(10);
    assert!(has_dataset(world.first().state(), "after") && !has_dataset(world.first().state(), "large"));
    let facts: Vec<Fact> = world.log.batches().into_iter().flat_map(|batch| batch.facts).collect();
    let refused: Vec<&Fact> = facts.iter().filter(|fact| matches!(fact, Fact::InputRefused { .. })).collect();
    assert!(matches!(refused[..], [Fact::InputRefused { stream, .. }] if stream == "commands"), "{refused:?}");
    let demands = facts.iter().filter(|fact| matches!(fact, Fact::DemandAccepted { .. })).count();
    assert!(demands > 250, "{demands}");
}

/// Found by a random schedule: the word of a dead agent came behind that of the one that had replaced it, whose executors were taken for gone
/// and whose reports nobody took from then on.
#[test]
fn the_late_word_of_a_dead_agent_replaces_nobody() {
    let mut world = World::led();
    world.agent(0, "s1", 8, 1);
    let late = ReportRecord {
        server: server("s1"),
        incarnation: 7,
        number: 1,
        at: TimeMs(1),
        report: joined(),
        trace: None,
        after: None,
    };
    world.log.append(Stream::Reports, to_bytes(&late));
    world.pass(1_000);
    assert_eq!(world.first().state().server(&server("s1")).unwrap().incarnation, 8);
}

#[test]
fn an_agent_that_was_not_there_when_its_word_was_taken_says_it_again() {
    let mut world = World::led();
    let link = world.hello(0, "s1", 7);
    world.log.stalled = true;
    world.report(0, link, 1, joined());
    world.take(0, In::LinkClosed { link });
    world.log.stalled = false;
    world.pass(500);
    assert!(world.first().state().server(&server("s1")).is_none());
    world.agent(0, "s1", 7, 1);
    assert!(world.first().is_connected("s1"));
}

#[test]
fn inputs_without_any_fact_are_refused_every_time() {
    let mut world = World::new();
    world.log.register("d1");
    for turn in 0..2 {
        world.start("a");
        world.pass(1_000);
        let expected = CellFailure::EventsMissing { stream: Stream::Commands, end: Offset(1) };
        assert_eq!(world.controllers[turn].end, Some(CellEnd::Failed(expected)));
    }
    assert_eq!(world.log.end(Stream::Events), Offset(0), "and nothing is claimed");
}

/// Were the orders of every agent computed at every batch, a decision would cost the more the larger the cell is.
#[test]
fn only_agents_whose_orders_change_are_told() {
    let mut world = World::led();
    let names: Vec<String> = (0..20).map(|number| format!("s{number}")).collect();
    let links: Vec<LinkId> = names.iter().map(|name| world.agent(0, name, 7, 1)).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    world.log.put_fleet(&names, 1);
    world.log.register("digits");
    world.pass(100);
    world.log.demand(1, 0);
    world.pass(1_000);
    links.iter().for_each(|link| drop(world.first().heard(*link)));
    world.log.submit("job-a");
    world.pass(50);
    let told: Vec<LinkId> = links
        .iter()
        .copied()
        .filter(|link| world.first().heard(*link).iter().any(|message| matches!(message, ControllerMessage::Orders(_))))
        .collect();
    assert_eq!(told.len(), 1, "one slot, one server: {told:?}");
    // The job's executor comes, and the job ends: who is not looked at would have been told nothing.
    world.log.command("cancel", Command::CancelJob { job: JobId::parse("job-a").unwrap() });
    world.pass(1_000);
    let states = &world.first().states;
    for (before, after) in states.iter().zip(&states[1..]) {
        let Touched::Servers(touched) = touched(before, after) else { continue };
        for (server, _) in after.servers().filter(|(server, _)| !touched.contains(server)) {
            assert_eq!(orders(before, server), orders(after, server));
            assert_eq!(before.server(server), after.server(server));
        }
    }
    let by_batch: Vec<usize> = states
        .iter()
        .zip(&states[1..])
        .filter_map(|(before, after)| match touched(before, after) {
            Touched::Servers(touched) if after.jobs().count() > 0 => Some(touched.len()),
            _ => None,
        })
        .collect();
    assert_eq!(by_batch, [1, 1], "the job comes, the job goes");
}

#[test]
fn reports_that_find_no_room_are_said_again_and_taken_in_order() {
    let mut world = World::led();
    let mut link = world.agent(0, "s1", 7, 1);
    world.log.stalled = true;
    let all = 2..=1_000;
    let report = || Report::SlotTakenBack { slot: slot("s1", 0), asked_ms: None, within_ms: None };
    all.clone().for_each(|number| world.report(0, link, number, report()));
    world.pass(1_000);
    world.log.stalled = false;
    for _ in 0..10 {
        world.pass(1_000);
        let ended = std::mem::take(&mut world.first().ended);
        if ended.contains(&(link, Some(LinkEnd::Leaving))) {
            // As an agent does: a new stream, and everything that was not taken from the beginning.
            world.silence(link);
            link = world.hello(0, "s1", 7);
            let through = world.first().state().server(&server("s1")).unwrap().reports_through;
            all.clone().filter(|number| *number > through).for_each(|number| world.report(0, link, number, report()));
        }
    }
    assert_eq!(world.first().state().server(&server("s1")).unwrap().reports_through, 1_000);
    let written = world.log.end(Stream::Reports).0;
    assert!(written < 2 * 1_000, "each about once: {written}");
}

#[test]
fn a_second_agent_of_one_name_is_turned_away_while_the_first_is_heard() {
    let mut world = World::led();
    let first = world.agent(0, "s1", 7, 1);
    let second = world.hello(0, "s1", 8);
    assert!(world.first().ended.contains(&(second, Some(LinkEnd::Taken))));
    world.silence(first);
    world.take(0, In::LinkClosed { link: first });
    let third = world.hello(0, "s1", 8);
    assert!(!world.first().ended.iter().any(|(ended, _)| *ended == third));
}

/// What the executors of a job on one server say of themselves twice a second, for so long.
fn executors_say(world: &mut World, link: LinkId, seconds: u64, mut says: impl FnMut(u32, u64) -> Progress) {
    for half in 0..2 * seconds {
        for number in 0..2 {
            let executor = ExecutorId { job: JobId::parse("job-a").unwrap(), number };
            world.say(0, link, AgentMessage::Progress { executor, progress: says(number, half) });
        }
        world.pass(500);
    }
}

#[test]
fn what_the_watch_sees_is_decided_once() {
    let mut world = World::led();
    let link = world.agent(0, "s1", 7, 2);
    world.log.put_fleet(&["s1"], 2);
    world.log.register("digits");
    world.pass(100);
    world.log.demand(1, 0);
    world.pass(1_000);
    world.log.submit_on("job-a", 2);
    world.pass(1_000);
    let job = JobId::parse("job-a").unwrap();
    for number in 0..2 {
        let executor = ExecutorId { job: job.clone(), number };
        let address = format!("127.0.0.1:{number}");
        let ready = Report::ExecutorReady { executor, address, class: None, replica_bytes: None, gradient_bytes: None };
        world.report(0, link, 2 + u64::from(number), ready);
    }
    world.pass(1_000);
    let active = Report::GenerationActive { job, generation: Generation(1), step: Step(0), pause_us: 0 };
    world.report(0, link, 4, active);
    world.pass(1_000);
    let progress = |step: u64, phase, waits_for, gradients| Progress {
        generation: Generation(1),
        revision: 0,
        step: Step(step),
        phase,
        units_done: step,
        bytes_done: step,
        waits_for,
        processor_ms: step,
        gradients,
        busy_percent: None,
    };
    // Two gradients a second, of which each takes the second member half a second and the first one a tenth.
    executors_say(&mut world, link, 300, |number, half| {
        let took_us = half * if number == 1 { 500_000 } else { 100_000 };
        let gradients = Some(Gradients { count: half, took_us, data_us: None });
        progress(half, Phase::Computing(Rank(0)), WaitsFor::Nothing, gradients)
    });
    let told = |world: &World| -> Vec<Fact> {
        let facts = world.log.batches().into_iter().flat_map(|batch| batch.facts);
        facts.filter(|f| matches!(f, Fact::MemberStraggles { .. } | Fact::JobStalled { .. })).collect()
    };
    let straggles = told(&world);
    assert!(
        matches!(&straggles[..], [Fact::MemberStraggles { executor, unit_us: 500_000, peers_unit_us: 100_000, .. }] if executor.number == 1),
        "{straggles:?}"
    );
    // Then both wait for each other.
    executors_say(&mut world, link, 7, |number, _| {
        progress(600, Phase::Reducing, WaitsFor::Peers(vec![1 - number]), None)
    });
    let stalled = told(&world);
    assert!(
        matches!(&stalled[1..], [Fact::JobStalled { cause: StallCause::Peers, remedy: StallRemedy::Round, .. }]),
        "{stalled:?}"
    );
}

/// Two servers whose agents measure links: one is asked, what it says that is slow becomes a fact, and nothing becomes of what is fast.
#[test]
fn a_slow_link_between_two_servers_is_measured_and_becomes_a_fact() {
    let facts = |rate: Option<u64>| {
        let mut world = World::led();
        let links = ["s1", "s2"].map(|name| {
            let link = world.hello_with(0, name, 7, Some(FarEnd { address: name.to_owned(), key: [7; 16] }));
            world.report(0, link, 1, joined());
            (link, name)
        });
        for _ in 0..8 {
            world.pass(1_000);
            let asked = std::mem::take(&mut world.first().told).into_iter().find_map(|(link, message)| match message {
                ControllerMessage::MeasureLink { number, far_end } => Some((link, number, far_end)),
                _ => None,
            });
            let Some((link, number, far_end)) = asked else { continue };
            let (_, name) = links.iter().find(|(of, _)| *of == link).unwrap();
            assert_ne!(far_end.address, *name, "over the other one");
            world.say(0, link, AgentMessage::LinkMeasured { number, bytes_per_s: rate });
        }
        let measured = |fact: &&Fact| matches!(fact, Fact::LinkMeasured { .. });
        world.log.batches().iter().flat_map(|batch| &batch.facts).filter(measured).count()
    };
    assert_eq!([Some(5_000_000), Some(500_000_000), None].map(facts), [2, 0, 0]);
}

#[test]
fn a_stream_that_breaks_the_protocol_is_ended() {
    let gone = AgentMessage::Report { number: 1, at: TimeMs(1), report: Report::AgentGone, trace: None };
    let executor = ExecutorId { job: JobId::parse("job-a").unwrap(), number: 0 };
    let report = Report::MemberStraggles { executor, unit_us: 2, peers_unit_us: 1, cause: None };
    let seen = AgentMessage::Report { number: 1, at: TimeMs(1), report, trace: None };
    let other = AgentMessage::Hello { server: server("other"), incarnation: 7, far_end: None };
    for (hello, message) in [(true, gone.clone()), (true, other.clone()), (true, seen), (false, gone), (false, other)] {
        let mut world = World::led();
        let link = if hello { world.hello(0, "s1", 7) } else { LinkId(9) };
        if !hello {
            world.take(0, In::LinkOpened { link, server: server("s1") });
        }
        world.say(0, link, message);
        assert_eq!(world.first().ended, [(link, Some(LinkEnd::Refused))]);
    }
    let mut world = World::led();
    world.take(0, In::LinkOpened { link: LinkId(9), server: server("s1") });
    world.pass(6_000);
    assert_eq!(world.first().ended, [(LinkId(9), Some(LinkEnd::Refused))], "a stream without hello");
}

fn fault() -> impl Strategy<Value = (Stream, Fault)> {
    let streams = prop_oneof![Just(Stream::Events), Just(Stream::Reports)];
    let faults = prop_oneof![
        Just(Fault::AcknowledgementLost),
        Just(Fault::Lost),
        Just(Fault::Doubled),
        Just(Fault::Unavailable)
    ];
    (streams, faults)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever becomes of appends, and however many controllers come: each command has one effect, in order, nobody healthy is
    /// given up, and the replay is the live state.
    #[test]
    fn each_command_has_one_effect(steps in proptest::collection::vec((0u8..8, fault(), 10u64..3_000), 1..40)) {
        let mut world = World::led();
        world.agent(0, "s1", 7, 2);
        let mut commands = 0u64;
        for (action, fault, ms) in steps {
            match action {
                0..=2 => {
                    world.log.register(&format!("d{commands}"));
                    commands += 1;
                }
                3 | 4 => world.log.faults.push_back(fault),
                5 => world.log.stalled = !world.log.stalled,
                6 if world.controllers.len() < 4 => {
                    world.start("next");
                    // The agent speaks to whoever might lead.
                    world.hello(world.controllers.len() - 1, "s1", 7);
                }
                _ => {}
            }
            world.pass(ms);
        }
        world.log.stalled = false;
        world.log.faults.clear();
        world.pass(15_000);
        // Of several that came at once any may be the last to claim; the others stand down.
        let left: Vec<usize> = (0..world.controllers.len()).filter(|c| world.controllers[*c].end.is_none()).collect();
        prop_assert_eq!(left.len(), 1);
        let leads = &world.controllers[left[0]];
        prop_assert!(leads.is_connected("s1"));
        for number in 0..commands {
            prop_assert!(has_dataset(leads.state(), &format!("d{number}")), "d{}", number);
        }
        let folded = world.log.fold();
        prop_assert_eq!(folded.state.digest(), leads.state().digest());
        let batches = world.log.batches();
        let taken = batches.iter().flat_map(|b| &b.facts).filter(|fact| matches!(fact, Fact::CommandTaken { .. })).count();
        prop_assert_eq!(taken as u64, commands);
        let reports = folded.state.server(&server("s1")).unwrap().reports_through;
        prop_assert_eq!(reports, 1);
    }
}
