//! What the agent does about one thing after the other.

use crate::support::{LEASE_MS, Play, killed, leaving, order, reports, started, told};
use events_schema::Term;
use events_schema::control::{FromExecutor, ToExecutor};
use events_schema::job::JobSpec;
use events_schema::orders::{AgentMessage, ControllerMessage, FarEnd};
use events_schema::report::{ExitCause, Report};
use std::collections::BTreeSet;
use workers_agent_core::{
    Answer, ExecutorWord, In, KEEP_AGAIN_AFTER_MS, KillCause, LOOK_INTERVAL_MS, LinkEnd, LinkWord, Note, Out,
    ProcessEnd, REAP_TIMEOUT_MS, SILENT_LOOKS_MAX, STOP_GRACE_MS, SlotState,
};

fn gone(outs: &[Out]) -> Vec<ExitCause> {
    let exit =
        |(_, report): (u64, Report)| if let Report::ExecutorGone { exit, .. } = report { Some(exit) } else { None };
    reports(outs).into_iter().filter_map(exit).collect()
}

fn answers(outs: &[Out]) -> Vec<(u64, Answer)> {
    let answer = |out: &Out| match out {
        Out::Reply { request, answer } => Some((*request, answer.clone())),
        _ => None,
    };
    outs.iter().filter_map(answer).collect()
}

fn is_freed(outs: &[Out], request: u64) -> bool {
    matches!(answers(outs).as_slice(), [(answered, Answer::Freed(_))] if *answered == request)
}

#[test]
fn wanted_executors_are_started_told_and_stopped_once() {
    let mut play = Play::joined(2);
    let mut wanted = order("job-a/e0", "local/0");
    assert_eq!(started(&play.orders(std::slice::from_ref(&wanted))), ["job-a/e0"]);
    assert_eq!(play.orders(std::slice::from_ref(&wanted)), [], "the same again needs nothing");
    wanted.job.park = true;
    assert_eq!(told(&play.orders(std::slice::from_ref(&wanted))), [ToExecutor::Order(Box::new(wanted.job.clone()))]);
    assert_eq!(told(&play.orders(&[])), [ToExecutor::Stop]);
    assert_eq!(told(&play.orders(&[])), []);
    assert_eq!(play.states()[0], SlotState::Leaving);
    assert_eq!(killed(&play.passes(STOP_GRACE_MS)), [0]);
    assert_eq!(gone(&play.executor(&wanted, ExecutorWord::Ended(ProcessEnd::Signalled(9)))), [ExitCause::Killed]);
}

#[test]
fn a_program_is_told_how_long_it_has_and_its_last_words_go_with_its_end() {
    let mut play = Play::joined(1);
    let mut wanted = order("job-a/e0", "local/0");
    let document = serde_json::json!({"name": "n", "model": {"kind": "command", "command": ["python", "train.py"]}});
    *wanted.job.spec = JobSpec::parse(&document).unwrap();
    play.orders(std::slice::from_ref(&wanted));
    wanted.job.park = true;
    let leaver = leaving(wanted.clone(), 9_000, 4_000);
    let parked = ToExecutor::Order(Box::new(wanted.job.clone()));
    assert_eq!(told(&play.orders(std::slice::from_ref(&leaver))), [parked, ToExecutor::Leave { within_ms: 4_000 }]);
    assert_eq!(told(&play.orders(std::slice::from_ref(&leaver))), [], "once for each deadline");
    play.executor(
        &wanted,
        ExecutorWord::Said(FromExecutor::LastWords { said: "no such file".to_owned(), code_ended: None }),
    );
    let failed = ExitCause::Failed { status: 1, said: "no such file".to_owned(), code_ended: None };
    assert_eq!(gone(&play.executor(&wanted, ExecutorWord::Ended(ProcessEnd::Exited(1)))), [failed]);
}

#[test]
fn an_executor_waits_for_its_slot_and_is_never_started_twice() {
    let mut play = Play::joined(2);
    let (first, next) = (order("job-a/e0", "local/0"), order("job-b/e0", "local/0"));
    play.orders(std::slice::from_ref(&first));
    let wanted = [next.clone(), order("job-b/e1", "local/1"), order("job-c/e0", "local/1")];
    assert_eq!(started(&play.orders(&wanted)), ["job-b/e1"], "slot 0 is taken, and of two for slot 1 the first wins");
    assert_eq!(started(&play.exits(&first)), ["job-b/e0"]);
    assert_eq!(started(&play.exits(&next)), [""; 0]);
    assert_eq!(started(&play.orders(&wanted)), [""; 0], "these come from a state that has not heard of its end");
}

#[test]
fn what_has_to_leave_is_never_started_however_far_its_deadline_is() {
    let mut play = Play::joined(1);
    let wanted = [leaving(order("job-a/e0", "local/0"), u64::MAX, u64::MAX)];
    let outs = play.orders(&wanted);
    assert_eq!((started(&outs), gone(&outs)), (vec![], vec![ExitCause::Killed]));
    assert_eq!(gone(&play.orders(&wanted)), [], "said once");
}

#[test]
fn what_cannot_run_here_is_said_once() {
    let mut play = Play::joined(1);
    let wanted = [order("job-a/e0", "local/7"), order("job-a/e1", "elsewhere/0")];
    let exits = gone(&play.orders(&wanted));
    assert!(matches!(exits.as_slice(), [ExitCause::NotStarted(_), ExitCause::NotStarted(_)]), "{exits:?}");
    assert_eq!(gone(&play.orders(&wanted)), []);
}

#[test]
fn a_resent_order_shortens_a_deadline_and_extends_none() {
    let mut play = Play::joined(1);
    let wanted = order("job-a/e0", "local/0");
    play.orders(std::slice::from_ref(&wanted));
    let by = 5; // of a clock that is decades behind: its name only
    play.orders(&[leaving(wanted.clone(), by, 5_000)]);
    play.now += 1_000;
    play.orders(&[leaving(wanted.clone(), by, 3_000)]);
    play.orders(&[leaving(wanted.clone(), by, 8_000)]);
    assert_eq!(killed(&play.passes(2_999)), [0; 0]);
    assert_eq!(killed(&play.passes(1)), [0]);
}

#[test]
fn a_deadline_that_is_withdrawn_kills_nobody() {
    let mut play = Play::joined(1);
    let wanted = order("job-a/e0", "local/0");
    play.orders(std::slice::from_ref(&wanted));
    play.orders(&[leaving(wanted.clone(), 9, 1_000)]);
    play.orders(std::slice::from_ref(&wanted));
    assert_eq!(killed(&play.passes(2_000)), [0; 0]);
}

#[test]
fn who_is_to_go_at_once_did_not_miss_a_deadline() {
    let cause = |in_ms| {
        let mut play = Play::joined(1);
        let wanted = order("job-a/e0", "local/0");
        play.orders(std::slice::from_ref(&wanted));
        let mut outs = play.orders(&[leaving(wanted.clone(), 9, in_ms)]);
        outs.extend(play.passes(in_ms));
        outs.into_iter().find_map(|out| if let Out::Kill { cause, .. } = out { Some(cause) } else { None })
    };
    assert_eq!(cause(0), Some(KillCause::Dismissed));
    assert_eq!(cause(1_000), Some(KillCause::Deadline));
}

#[test]
fn orders_of_a_replaced_controller_and_older_ones_do_nothing() {
    let mut play = Play::joined(2);
    play.term = 9;
    play.orders(&[order("job-a/e0", "local/0")]);
    play.term = 8;
    let outs = play.orders(&[]);
    assert_eq!(outs, [Out::Note(Note::Replaced { term: Term(8), newest: Term(9) })]);
    (play.term, play.position) = (9, play.position - 3);
    assert_eq!(play.orders(&[]), []);
    assert_eq!(play.states(), [SlotState::Running, SlotState::Free]);
}

#[test]
fn orders_from_before_the_controller_knew_of_this_process_do_nothing() {
    let mut play = Play::new(1);
    play.connect();
    assert_eq!(started(&play.orders(&[order("job-old/e0", "local/0")])), [""; 0]);
    play.taken(1);
    assert_eq!(started(&play.orders(&[order("job-new/e0", "local/0")])), ["job-new/e0"]);
}

#[test]
fn a_slot_taken_back_is_used_again_only_by_orders_that_know_of_it() {
    let mut play = Play::joined(1);
    let outs = play.take_back(1, &[0], 1_000);
    assert!(is_freed(&outs, 1), "{outs:?}");
    let (number, report) = reports(&outs).remove(0);
    assert!(matches!(report, Report::SlotTakenBack { .. }));
    let wanted = [order("job-a/e0", "local/0")];
    assert_eq!(started(&play.orders(&wanted)), [""; 0], "from a state that does not know");
    assert_eq!(started(&play.taken(number)), [""; 0]);
    assert_eq!(started(&play.orders(&wanted)), ["job-a/e0"]);
}

#[test]
fn a_slot_taken_back_again_is_not_used_by_orders_that_know_only_of_the_first_time() {
    let mut play = Play::joined(1);
    let (first, _) = reports(&play.take_back(1, &[0], 1_000)).remove(0);
    // The controller has heard of it, and the fleet has offered the slot anew; no word of that is here yet.
    let outs = play.take_back(2, &[0], 1_000);
    assert!(is_freed(&outs, 2), "{outs:?}");
    let (second, _) = reports(&outs).remove(0);
    play.taken(first);
    let wanted = [order("job-a/e0", "local/0")];
    assert_eq!(started(&play.orders(&wanted)), [""; 0]);
    play.taken(second);
    assert_eq!(started(&play.orders(&wanted)), ["job-a/e0"]);
}

#[test]
fn asking_again_and_again_without_a_controller_piles_up_no_reports() {
    let mut play = Play::new(1);
    for request in 1..100 {
        assert!(is_freed(&play.take_back(request, &[0], 1_000), request));
    }
    assert_eq!(reports(&play.connect()).len(), 2, "that it joined, and that the slot was taken back");
}

#[test]
fn a_take_back_tells_kills_and_answers_when_the_slot_is_free() {
    let mut play = Play::joined(2);
    let wanted = order("job-a/e0", "local/0");
    play.orders(std::slice::from_ref(&wanted));
    let outs = play.take_back(4, &[0, 1], 500);
    assert_eq!((told(&outs), answers(&outs)), (vec![ToExecutor::Leave { within_ms: 500 }], vec![]));
    assert_eq!(killed(&play.passes(499)), [0; 0]);
    assert_eq!(killed(&play.passes(1)), [0]);
    play.now += 7;
    let outs = play.executor(&wanted, ExecutorWord::Ended(ProcessEnd::Signalled(9)));
    let Some((4, Answer::Freed(freed))) = answers(&outs).first().cloned() else { panic!("{outs:?}") };
    let told: Vec<(u16, u64, bool)> =
        freed.iter().map(|slot| (slot.slot.index, slot.elapsed_ms, slot.killed)).collect();
    assert_eq!(told, [(0, 507, true), (1, 0, false)]);
    let kinds: Vec<bool> =
        reports(&outs).iter().map(|(_, report)| matches!(report, Report::SlotTakenBack { .. })).collect();
    assert_eq!(kinds, [true, false], "first whose the slot is, then that it is free");
    let said = &reports(&outs)[0].1;
    assert!(matches!(said, Report::SlotTakenBack { asked_ms: Some(507), within_ms: Some(500), .. }), "{said:?}");
}

#[test]
fn a_full_disk_answers_that_it_was_not_written_and_is_tried_again() {
    let mut play = Play::joined(1);
    let wanted = order("job-a/e0", "local/0");
    play.orders(std::slice::from_ref(&wanted));
    let outs = play.alone(In::TakeBack { request: 1, slots: BTreeSet::from([0]), within_ms: 50 });
    let write =
        outs.iter().find_map(|out| if let Out::Keep { write, .. } = out { Some(*write) } else { None }).unwrap();
    play.now += 50;
    assert_eq!(killed(&play.alone(In::Wake)), [0], "the kill does not wait for the disk");
    assert_eq!(answers(&play.exits(&wanted)), [], "nor is the slot called free before it is written");
    let outs = play.alone(In::Kept { write, durable: false });
    assert_eq!(answers(&outs), [(1, Answer::NotKept)]);
    let outs = play.passes(KEEP_AGAIN_AFTER_MS);
    assert!(outs.iter().any(|out| matches!(out, Out::Keep { slots, .. } if *slots == BTreeSet::from([0]))), "{outs:?}");
    assert!(is_freed(&play.take_back(2, &[0], 50), 2), "asked again, on a disk that works");
}

#[test]
fn what_was_written_down_is_reported_again_by_the_next_process() {
    let mut play = Play::restarted(2, &BTreeSet::from([1]));
    let sent = reports(&play.connect());
    assert!(matches!(&sent[0], (1, Report::AgentJoined { .. })));
    assert!(matches!(&sent[1], (2, Report::SlotTakenBack { slot, .. }) if slot.index == 1));
    assert_eq!(play.states(), [SlotState::Free, SlotState::TakenBack]);
}

#[test]
fn an_executor_that_never_ends_leaves_its_caller_with_an_answer() {
    let mut play = Play::joined(1);
    play.orders(&[order("job-a/e0", "local/0")]);
    play.take_back(1, &[0], 50);
    play.passes(50);
    assert_eq!(answers(&play.passes(REAP_TIMEOUT_MS)), [(1, Answer::Stuck)]);
    assert_eq!(play.states(), [SlotState::Leaving]);
}

#[test]
fn a_slot_is_not_used_again_while_its_fleet_waits_for_another() {
    let mut play = Play::joined(2);
    let slow = order("job-a/e0", "local/0");
    play.orders(std::slice::from_ref(&slow));
    let outs = play.take_back(1, &[0, 1], 5_000);
    let (number, _) = reports(&outs).remove(0);
    play.taken(number);
    let wanted = [slow.clone(), order("job-b/e0", "local/1")];
    assert_eq!(started(&play.orders(&wanted)), [""; 0], "or the answer would call a used slot free");
    assert!(is_freed(&play.exits(&slow), 1));
    assert_eq!(started(&play.orders(&wanted[1..])), ["job-b/e0"]);
}

#[test]
fn silence_is_counted_in_looks_and_kills_once() {
    let mut play = Play::joined(2);
    let (mute, late) = (order("job-a/e0", "local/0"), order("job-a/e1", "local/1"));
    play.orders(&[mute.clone(), late]);
    play.executor(&mute, ExecutorWord::Heard);
    play.passes(0);
    play.passes(60_000);
    assert_eq!(play.states()[0], SlotState::Running, "an agent that was held up has not listened");
    let mut kills = Vec::new();
    for _ in 0..2 * SILENT_LOOKS_MAX {
        kills.extend(play.passes(LOOK_INTERVAL_MS).into_iter().filter(|out| matches!(out, Out::Kill { .. })));
    }
    let expected = Out::Kill { slot: 0, executor: mute.executor.clone(), cause: KillCause::Silent };
    assert_eq!(kills, [expected], "one that never spoke is only late");
    assert_eq!(gone(&play.executor(&mute, ExecutorWord::Ended(ProcessEnd::Signalled(9)))), [ExitCause::Silent]);
}

#[test]
fn one_that_speaks_of_what_is_not_its_own_is_killed() {
    use events_schema::control::FromExecutor;
    let mut play = Play::joined(1);
    let wanted = order("job-a/e0", "local/0");
    play.orders(std::slice::from_ref(&wanted));
    let foreign = Report::ExecutorReady {
        executor: "job-a/e1".parse().unwrap(),
        address: "x".to_owned(),
        class: None,
        replica_bytes: None,
        gradient_bytes: None,
    };
    let outs = play.executor(&wanted, ExecutorWord::Said(FromExecutor::Report(foreign)));
    assert_eq!((killed(&outs), reports(&outs)), (vec![0], vec![]));
}

#[test]
fn one_that_was_given_up_ends_all_and_joins_as_another() {
    let mut play = Play::joined(1);
    let wanted = order("job-a/e0", "local/0");
    play.orders(std::slice::from_ref(&wanted));
    let old = play.agent.incarnation();
    assert_eq!(told(&play.link(LinkWord::Down(LinkEnd::GivenUp))), [ToExecutor::Stop]);
    play.exits(&wanted);
    assert_ne!(play.agent.incarnation(), old);
    play.now += 5_000;
    let sent = reports(&play.connect());
    assert!(matches!(sent.as_slice(), [(1, Report::AgentJoined { .. })]), "{sent:?}");
}

#[test]
fn without_any_controller_slots_go_back_at_the_end_of_the_lease() {
    let mut play = Play::joined(1);
    let wanted = order("job-a/e0", "local/0");
    play.orders(std::slice::from_ref(&wanted));
    play.now += LEASE_MS - 1;
    play.link(LinkWord::Said(ControllerMessage::Heartbeat { term: Term(1) }));
    assert_eq!(told(&play.passes(LEASE_MS - 1)), []);
    assert!(matches!(told(&play.passes(1)).as_slice(), [ToExecutor::Leave { .. }]));
    play.exits(&wanted);
    assert_eq!(play.states(), [SlotState::TakenBack]);
}

#[test]
fn reports_are_repeated_on_a_new_link_until_taken() {
    let mut play = Play::new(1);
    let first = reports(&play.connect());
    play.link(LinkWord::Down(LinkEnd::Broken));
    play.now += 2_000;
    assert_eq!(reports(&play.connect()), first);
    play.taken(1);
    play.link(LinkWord::Down(LinkEnd::Broken));
    play.now += 2_000;
    assert_eq!(reports(&play.connect()), []);
}

#[test]
fn the_last_reports_go_up_before_the_end() {
    let mut play = Play::joined(1);
    let wanted = order("job-a/e0", "local/0");
    play.orders(std::slice::from_ref(&wanted));
    assert_eq!(told(&play.happens(In::Shutdown)), [ToExecutor::Stop]);
    let outs = play.exits(&wanted);
    let (number, _) = reports(&outs).remove(0);
    assert!(!outs.contains(&Out::Ended));
    assert!(play.taken(number).contains(&Out::Ended));
    assert_eq!(play.orders(&[wanted]), []);
}

/// Its processes are gone, but the memory that they took of the slot's device does not come back.
fn holding(end: ProcessEnd, lost: bool) -> ExecutorWord {
    ExecutorWord::EndedHolding { end, reason: "device GPU-1: 9 MiB of it are still taken".to_owned(), lost }
}

#[test]
fn a_slot_whose_device_does_not_come_back_is_nobodys_until_it_does() {
    let mut play = Play::joined(1);
    let (first, next) = (order("job-a/e0", "local/0"), order("job-b/e0", "local/0"));
    play.orders(std::slice::from_ref(&first));
    play.take_back(1, &[0], 1_000);
    let outs = play.executor(&first, holding(ProcessEnd::Exited(0), false));
    let said: Vec<String> =
        outs.iter().filter_map(|out| if let Out::Note(note) = out { Some(note.to_string()) } else { None }).collect();
    assert!(said.len() == 1 && said[0].contains("local/0") && said[0].contains("GPU-1"), "{outs:?}");
    assert_eq!(play.states(), [SlotState::Quarantined]);
    assert_eq!(gone(&outs), [ExitCause::Left], "its job waits for nothing");
    assert_eq!(answers(&play.passes(1_000 + REAP_TIMEOUT_MS)), [(1, Answer::Stuck)], "its fleet cannot have it");
    play.take_back(2, &[0], 1_000);
    assert_eq!(started(&play.orders(std::slice::from_ref(&next))), [""; 0]);
    let outs = play.executor(&first, ExecutorWord::DeviceBack);
    assert!(reports(&outs).iter().any(|(_, report)| matches!(report, Report::SlotRecovered { .. })), "{outs:?}");
    assert_eq!(play.states(), [SlotState::TakenBack]);
}

/// A slot that a fleet declares anew is planned again, and its job would wait for an executor that is never started.
#[test]
fn who_is_ordered_to_a_slot_in_quarantine_is_said_not_to_be_there() {
    let mut play = Play::joined(1);
    let (first, next) = (order("job-a/e0", "local/0"), order("job-b/e0", "local/0"));
    play.orders(std::slice::from_ref(&first));
    play.executor(&first, holding(ProcessEnd::Exited(0), false));
    let outs = play.orders(std::slice::from_ref(&next));
    assert_eq!(started(&outs), [""; 0]);
    assert!(matches!(gone(&outs).as_slice(), [ExitCause::DeviceLost(why)] if why.contains("GPU-1")), "{outs:?}");
    assert!(reports(&outs).iter().any(|(_, report)| matches!(report, Report::SlotQuarantined { .. })), "{outs:?}");
    assert_eq!(gone(&play.orders(std::slice::from_ref(&next))), [], "it is said once");
}

/// Found in a whole system: who was gone already was told of orders, read none, and was killed for that.
#[test]
fn nobody_is_told_or_killed_while_only_the_device_is_waited_for() {
    let mut play = Play::joined(1);
    let first = order("job-a/e0", "local/0");
    play.orders(std::slice::from_ref(&first));
    play.executor(&first, ExecutorWord::Heard);
    play.orders(&[leaving(first.clone(), 9, 1_000)]);
    play.executor(&first, ExecutorWord::Reaped);
    let mut changed = leaving(first.clone(), 10, 500);
    changed.job.park = true;
    assert_eq!(told(&play.orders(std::slice::from_ref(&changed))), []);
    play.take_back(1, &[0], 1_000);
    for _ in 0..SILENT_LOOKS_MAX + 1 {
        let outs = play.passes(LOOK_INTERVAL_MS);
        assert_eq!((killed(&outs), told(&outs)), (Vec::new(), Vec::new()));
    }
    let outs = play.executor(&first, ExecutorWord::Ended(ProcessEnd::Signalled(9)));
    assert_eq!(gone(&outs), [ExitCause::Signal(9)], "as it ended");
    assert!(is_freed(&outs, 1));
}

#[test]
fn a_device_that_falls_off_ends_its_executor_and_is_why() {
    let mut play = Play::joined(2);
    let both = [order("job-a/e0", "local/0"), order("job-a/e1", "local/1")];
    play.orders(&both);
    assert_eq!(killed(&play.executor(&both[0], ExecutorWord::DeviceGone("it is gone".to_owned()))), [0]);
    let outs = play.executor(&both[0], holding(ProcessEnd::Signalled(9), true));
    assert_eq!(gone(&outs), [ExitCause::DeviceLost("it is gone".to_owned())]);
    // One that failed of it first failed of it too.
    let outs = play.executor(&both[1], holding(ProcessEnd::Exited(1), true));
    assert!(matches!(gone(&outs).as_slice(), [ExitCause::DeviceLost(why)] if why.contains("GPU-1")), "{outs:?}");
    assert_eq!(play.states(), [SlotState::Quarantined; 2]);
}

#[test]
fn a_device_that_does_not_come_back_keeps_no_agent_from_ending_and_is_said_anew() {
    let mut play = Play::joined(1);
    let first = order("job-a/e0", "local/0");
    play.orders(std::slice::from_ref(&first));
    play.executor(&first, holding(ProcessEnd::Exited(0), false));
    let outs = play.link(LinkWord::Down(LinkEnd::GivenUp));
    assert!(!outs.contains(&Out::Ended));
    assert_eq!(play.states(), [SlotState::Quarantined]);
    play.now += 2_000;
    let said = reports(&play.connect());
    assert!(
        matches!(said.as_slice(), [(1, Report::AgentJoined { quarantined, .. })] if quarantined[&0].contains("GPU-1")),
        "it joins as a new process, and says it anew: {said:?}"
    );
    play.happens(In::Shutdown);
    assert!(play.taken(1).contains(&Out::Ended));
}

#[test]
fn a_clock_that_goes_back_moves_nothing() {
    let mut play = Play::joined(1);
    let wanted = order("job-a/e0", "local/0");
    play.orders(std::slice::from_ref(&wanted));
    play.orders(&[leaving(wanted, 9, 1_000)]);
    play.now -= 500;
    assert_eq!(killed(&play.passes(1_499)), [0; 0]);
    assert_eq!(killed(&play.passes(1)), [0]);
}

#[test]
fn a_link_is_measured_one_at_a_time_and_said_to_who_asked() {
    let mut play = Play::joined(1);
    let far_end = FarEnd { address: "10.0.0.7:40123".to_owned(), key: [3; 16] };
    let ask = |number| LinkWord::Said(ControllerMessage::MeasureLink { number, far_end: far_end.clone() });
    let said = |outs: &[Out]| {
        let of = |out: &Out| match out {
            Out::Send { message, .. } => match message.as_ref() {
                AgentMessage::LinkMeasured { number, bytes_per_s } => Some((*number, *bytes_per_s)),
                _ => None,
            },
            _ => None,
        };
        outs.iter().filter_map(of).collect::<Vec<_>>()
    };
    let begun = |outs: &[Out]| outs.iter().filter(|out| matches!(out, Out::MeasureLink { .. })).count();
    assert_eq!(begun(&play.link(ask(1))), 1);
    assert_eq!(begun(&play.link(ask(2))), 0, "one is under way");
    assert_eq!(begun(&play.link(ask(3))), 0, "one is under way");
    let outs = play.happens(In::LinkMeasured { number: 1, bytes_per_s: Some(5) });
    assert_eq!((said(&outs), begun(&outs)), (vec![(1, Some(5))], 1), "then the newest");
    assert_eq!(said(&play.happens(In::LinkMeasured { number: 3, bytes_per_s: Some(6) })), [(3, Some(6))]);
    // Another controller numbers its own.
    assert_eq!(begun(&play.link(ask(3))), 1);
    play.link(LinkWord::Down(LinkEnd::Broken));
    assert_eq!(said(&play.happens(In::LinkMeasured { number: 3, bytes_per_s: None })), []);
    play.now += 2_000;
    assert_eq!(said(&play.connect()), []);
    assert_eq!(begun(&play.link(ask(1))), 1);
    // Nor is one that ends when there is another link already.
    play.link(LinkWord::Down(LinkEnd::Broken));
    play.now += 2_000;
    play.connect();
    assert_eq!(begun(&play.link(ask(2))), 0, "one is under way");
    let outs = play.happens(In::LinkMeasured { number: 1, bytes_per_s: Some(5) });
    assert_eq!((said(&outs), begun(&outs)), (vec![], 1), "and what is asked for on the new one is begun after it");
    assert_eq!(said(&play.happens(In::LinkMeasured { number: 2, bytes_per_s: Some(5) })), [(2, Some(5))]);
}
