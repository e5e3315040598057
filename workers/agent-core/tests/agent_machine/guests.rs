//! What an agent says of hosts beside which there could be a guest, and what it knows of a guest that it starts.

use crate::support::{Play, order};
use events_schema::control::{FromExecutor, Phase, Progress, WaitsFor};
use events_schema::device::SlotDevice;
use events_schema::orders::{AgentMessage, ExecutorOrder};
use events_schema::report::Report;
use events_schema::{Generation, Rank, Step};
use workers_agent_core::{ExecutorWord, LOAD_WINDOW_MS, Out};

/// Who computes, and how much processor time it has had.
fn progress(processor_ms: u64) -> Progress {
    Progress {
        generation: Generation(1),
        revision: 0,
        step: Step(1),
        phase: Phase::Computing(Rank(0)),
        units_done: 0,
        bytes_done: 0,
        waits_for: WaitsFor::Nothing,
        processor_ms,
        gradients: None,
        busy_percent: None,
    }
}

/// How busy an executor is said to be.
fn said(play: &mut Play, of: &ExecutorOrder, processor_ms: u64) -> Option<u8> {
    let outs = play.executor(of, ExecutorWord::Said(FromExecutor::Progress(progress(processor_ms))));
    let progress = |out: &Out| match out {
        Out::Send { message, .. } => match message.as_ref() {
            AgentMessage::Progress { progress, .. } => Some(progress.clone()),
            _ => None,
        },
        _ => None,
    };
    outs.iter().find_map(progress).unwrap().busy_percent
}

#[test]
fn how_busy_a_host_is_goes_up_with_its_word_and_a_guests_use_is_not_its() {
    let mut play = Play::shared(1, Vec::new());
    let (host, guest) = (order("job-host/e0", "local/0"), order("job-guest/e0", "local/0-guest"));
    play.orders(&[host.clone(), guest.clone()]);
    assert_eq!(said(&mut play, &host, 100), None);
    play.passes(LOAD_WINDOW_MS);
    // The slot has one processor, of which the guest has all that the host leaves.
    assert_eq!(said(&mut play, &guest, 1_000_000), None);
    assert_eq!(said(&mut play, &host, 100 + LOAD_WINDOW_MS / 4), Some(25));
    let mut alone = Play::joined(1);
    alone.orders(std::slice::from_ref(&host));
    said(&mut alone, &host, 0);
    alone.passes(LOAD_WINDOW_MS);
    assert_eq!(said(&mut alone, &host, 0), None, "where nobody could be a guest nobody measures");
}

#[test]
fn what_is_read_of_a_device_counts_while_no_guest_is_on_it() {
    let device =
        |n: u8| SlotDevice { uuid: format!("GPU-{n}"), name: "Fake".into(), memory_bytes: 1, driver: "1".into() };
    // The first two slots are one device.
    let mut play = Play::shared(3, vec![device(1), device(1), device(2)]);
    let [first, second, third] = [0, 1, 2].map(|n| order(&format!("job-host/e{n}"), &format!("local/{n}")));
    let guest = order("job-guest/e0", "local/0-guest");
    let hosts = [first, second, third];
    play.orders(&hosts);
    let after = |play: &mut Play, percent: u8| {
        for _ in 0..10 {
            hosts.iter().for_each(|host| drop(play.executor(host, ExecutorWord::DeviceBusy(percent))));
        }
        play.passes(LOAD_WINDOW_MS);
        hosts.clone().map(|host| said(play, &host, 0))
    };
    after(&mut play, 50);
    assert_eq!(after(&mut play, 60), [Some(60); 3]);
    let [first, second, third] = hosts.clone();
    play.orders(&[first, second, third, guest]);
    assert_eq!(after(&mut play, 90), [Some(60), Some(60), Some(90)], "it may be the guest's");
}

#[test]
fn what_a_guest_needs_is_known_from_the_last_of_its_job_that_was_ready_here() {
    let mut play = Play::shared(1, Vec::new());
    let first = order("job-a/e0", "local/0");
    play.orders(std::slice::from_ref(&first));
    let (executor, address) = (first.executor.clone(), "x".to_owned());
    let (class, replica_bytes, gradient_bytes) = (None, Some(1_000), Some(300));
    let ready = Report::ExecutorReady { executor, address, class, replica_bytes, gradient_bytes };
    play.executor(&first, ExecutorWord::Said(FromExecutor::Report(ready)));
    let needs = |out: &Out| if let Out::Start { needs_bytes, .. } = out { Some(*needs_bytes) } else { None };
    let outs = play.orders(&[first.clone(), order("job-a/e1", "local/0-guest")]);
    assert_eq!(outs.iter().find_map(needs), Some(1_900), "its replica and three gradients");
    let mut play = Play::shared(1, Vec::new());
    let outs = play.orders(&[first, order("job-b/e0", "local/0-guest")]);
    assert!(outs.iter().filter_map(needs).all(|needs| needs == 0), "of another nothing is known");
}
