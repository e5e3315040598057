//! The agent with real processes under it and a controller played by the test.
#![allow(clippy::unwrap_used)]

mod support;

use controller_link::EndCause;
use events_schema::orders::ControllerMessage;
use events_schema::report::{ExitCause, Report};
use events_schema::{ExecutorId, FleetId, Term, TimeMs};
use serde_json::json;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use support::{Controller, WAIT_MAX, config, http, http_as, members, order, take_back};
use workers_agent::{Access, AgentEnd, AgentToken, EXIT_STATUS_PROTOCOL, FleetToken, StartError, start};

/// Not a test: the process that agents under test start.
#[test]
fn executor_process() {
    support::executor_main();
}

fn gone(report: &Report) -> (&ExecutorId, &ExitCause) {
    match report {
        Report::ExecutorGone { executor, exit, .. } => (executor, exit),
        other => panic!("an end was expected: {other:?}"),
    }
}

#[tokio::test]
async fn an_executor_is_started_told_and_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let mut controller = Controller::start().await;
    let agent = start(config(folder.path(), &controller, "good")).await.unwrap();
    let mut session = controller.joined().await;

    let mut wanted = order("job-a/e0", "local/0");
    session.order(std::slice::from_ref(&wanted)).await;
    session.ready("job-a/e0").await;
    let (status, slots) = http(&agent, folder.path(), "GET", "/v1/slots", None, true).await;
    assert_eq!(
        (status, &slots["slots"][0]["state"], &slots["slots"][1]["state"]),
        (200, &json!("running"), &json!("free"))
    );
    assert_eq!(slots["slots"][0]["executor"], "job-a/e0");

    wanted.job.park = true;
    session.order(std::slice::from_ref(&wanted)).await;
    assert!(
        matches!(session.take_report().await, Report::Evaluated { step, .. } if step.0 == 1),
        "it was told to park"
    );

    session.order(&[]).await;
    let report = session.take_report().await;
    assert_eq!(gone(&report), (&wanted.executor, &ExitCause::Left));
    assert!(!folder.path().join("executors/0.json").exists());
    let log = std::fs::read_to_string(folder.path().join("logs/job-a/0.log")).unwrap();
    assert!(log.contains("started job-a/e0"), "{log}");
    assert_eq!(agent.shutdown().await, AgentEnd::Shutdown);
}

#[tokio::test]
async fn an_executor_gets_what_it_needs_by_name_and_nobody_else_reads_what_it_says() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let mut controller = Controller::start().await;
    let agent = start(config(&data, &controller, "good")).await.unwrap();
    let mut session = controller.joined().await;
    session.order(&[order("job-a/e0", "local/0")]).await;
    session.ready("job-a/e0").await;
    take_back(&agent, &data, "local/0", 20_000).await;

    let log = std::fs::read_to_string(data.join("logs/job-a/0.log")).unwrap();
    assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some(), "the test itself has more than executors get");
    assert!(log.contains("EBB_EXECUTOR_NONCE") && log.contains("PATH") && !log.contains("CARGO_"), "{log}");

    let mut open = vec![data];
    while let Some(path) = open.pop() {
        let metadata = std::fs::metadata(&path).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o077, 0, "{}", path.display());
        if metadata.is_dir() {
            open.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    agent.shutdown().await;
}

#[tokio::test]
async fn reports_are_repeated_on_a_new_stream_until_taken() {
    let folder = tempfile::tempdir().unwrap();
    let mut controller = Controller::start().await;
    let agent = start(config(folder.path(), &controller, "good")).await.unwrap();
    let mut session = controller.session().await;
    let (first, joined) = session.report().await;
    let incarnation = session.incarnation;
    drop(session);
    let mut session = controller.session().await;
    assert_eq!(session.incarnation, incarnation);
    assert_eq!(session.report().await, (first, joined));
    agent.shutdown().await;
}

#[tokio::test]
async fn orders_from_before_the_agent_joined_have_no_effect() {
    let folder = tempfile::tempdir().unwrap();
    let mut controller = Controller::start().await;
    let agent = start(config(folder.path(), &controller, "good")).await.unwrap();
    let mut session = controller.session().await;
    session.order(&[order("job-old/e0", "local/0")]).await;
    session.report().await;
    session.take(1).await;
    session.order(&[order("job-new/e0", "local/0")]).await;
    session.ready("job-new/e0").await;
    agent.shutdown().await;
}

#[tokio::test]
async fn a_replaced_controller_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut controller = Controller::start().await;
    let agent = start(config(folder.path(), &controller, "good")).await.unwrap();
    let mut session = controller.joined().await;
    session.term = Term(9);
    session.sender.send(ControllerMessage::Heartbeat { term: Term(9) }).await.unwrap();
    session.term = Term(8);
    session.order(&[order("job-zombie/e0", "local/0")]).await;
    session.term = Term(9);
    session.order(&[order("job-a/e0", "local/0")]).await;
    session.ready("job-a/e0").await;
    // The zombie again, also with a later position: the executor stays.
    session.term = Term(8);
    session.order(&[]).await;
    let older = session.position;
    session.term = Term(9);
    session.order(&[order("job-a/e0", "local/0"), order("job-a/e1", "local/1")]).await;
    session.ready("job-a/e1").await;
    // And an older position of the right term.
    session.position = events_schema::Offset(older.0 - 2);
    session.order(&[]).await;
    let (_, slots) = http(&agent, folder.path(), "GET", "/v1/slots", None, true).await;
    assert_eq!((&slots["slots"][0]["state"], &slots["slots"][1]["state"]), (&json!("running"), &json!("running")));
    agent.shutdown().await;
}

#[tokio::test]
async fn a_slot_comes_back_with_the_controller_dead() {
    let folder = tempfile::tempdir().unwrap();
    let mut controller = Controller::start().await;
    let agent = start(config(folder.path(), &controller, "good")).await.unwrap();
    let mut session = controller.joined().await;
    session.order(&[order("job-a/e0", "local/0")]).await;
    session.ready("job-a/e0").await;
    drop(session);
    controller.stop();

    let freed = take_back(&agent, folder.path(), "local/0", 20_000).await;
    assert_eq!((&freed["free"], &freed["killed"]), (&json!(true), &json!(false)));
    let freed = take_back(&agent, folder.path(), "1", 20_000).await;
    assert_eq!((&freed["slot"], &freed["free"]), (&json!("local/1"), &json!(true)));
    agent.shutdown().await;
}

#[tokio::test]
async fn a_deadline_kills_the_whole_group() {
    let folder = tempfile::tempdir().unwrap();
    let mut controller = Controller::start().await;
    let agent = start(config(folder.path(), &controller, "stubborn")).await.unwrap();
    let mut session = controller.joined().await;
    let mut second = order("job-a/e1", "local/1");
    session.order(&[order("job-a/e0", "local/0"), second.clone()]).await;
    session.take_report().await;
    session.take_report().await;
    let (_, slots) = http(&agent, folder.path(), "GET", "/v1/slots", None, true).await;
    let group = |slot: usize| slots["slots"][slot]["pid"].as_i64().unwrap();
    assert_eq!((members(group(0)).len(), members(group(1)).len()), (2, 2), "each with what it started");

    let freed = take_back(&agent, folder.path(), "local/0", 50).await;
    assert_eq!((&freed["free"], &freed["killed"]), (&json!(true), &json!(true)));
    assert_eq!(members(group(0)), [0; 0]);
    assert!(
        matches!(session.take_report().await, Report::SlotTakenBack { slot, .. } if slot.index == 0),
        "first whose it is"
    );
    assert_eq!(gone(&session.take_report().await).1, &ExitCause::Killed);

    (second.leave_by, second.leave_in_ms) = (Some(TimeMs(u64::MAX)), Some(50));
    session.order(&[order("job-a/e0", "local/0"), second.clone()]).await;
    let report = session.take_report().await;
    assert_eq!(gone(&report), (&second.executor, &ExitCause::Killed));
    assert_eq!(members(group(1)), [0; 0]);
    agent.shutdown().await;
}

#[tokio::test]
async fn a_slow_or_broken_disk_delays_no_kill_and_calls_no_slot_free() {
    let folder = tempfile::tempdir().unwrap();
    let mut controller = Controller::start().await;
    let agent = start(config(folder.path(), &controller, "stubborn")).await.unwrap();
    let mut session = controller.joined().await;
    session.order(&[order("job-a/e0", "local/0")]).await;
    session.ready("job-a/e0").await;
    let (_, slots) = http(&agent, folder.path(), "GET", "/v1/slots", None, true).await;
    let group = slots["slots"][0]["pid"].as_i64().unwrap();

    // The file that is to be written stands still until somebody reads it, and then cannot be synced.
    let (draft, aside) = (folder.path().join("taken-back.draft"), folder.path().join("aside"));
    assert!(std::process::Command::new("mkfifo").arg(&draft).status().unwrap().success());
    // Long enough that the file is opened before the kill.
    let body = json!({ "slots": [0], "deadline_ms": 2_000 });
    let answer = http(&agent, folder.path(), "POST", "/v1/take-back", Some(body), true);
    let disk = async {
        let dead = async {
            while !members(group).is_empty() {
                tokio::task::yield_now().await;
            }
        };
        let dead = tokio::time::timeout(WAIT_MAX / 2, dead).await;
        std::fs::rename(&draft, &aside).unwrap();
        let reader = tokio::task::spawn_blocking(move || std::fs::read(aside));
        reader.await.unwrap().unwrap();
        assert!(dead.is_ok(), "the kill waits for the disk");
    };
    let ((status, answer), ()) = tokio::join!(answer, disk);
    assert_eq!(status, 507, "{answer}");
    let freed = take_back(&agent, folder.path(), "0", 1_000).await;
    assert_eq!(freed["free"], true, "asked again, on a disk that works");
    agent.shutdown().await;
}

#[tokio::test]
async fn a_slot_taken_back_is_used_again_only_by_orders_that_know_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut controller = Controller::start().await;
    let agent = start(config(folder.path(), &controller, "good")).await.unwrap();
    let mut session = controller.joined().await;
    take_back(&agent, folder.path(), "local/0", 1_000).await;
    let (number, report) = session.report().await;
    assert!(matches!(report, Report::SlotTakenBack { .. }), "{report:?}");
    // Before the acknowledgement these derive from a state that does not know.
    session.order(&[order("job-a/e0", "local/0"), order("job-a/e1", "local/1")]).await;
    session.ready_unnumbered("job-a/e1").await;
    session.take(number + 1).await;
    // It alone brings nothing back; the next orders do.
    session.order(&[order("job-a/e1", "local/1"), order("job-a/e2", "local/0")]).await;
    session.ready("job-a/e2").await;
    agent.shutdown().await;
}

#[tokio::test]
async fn a_new_agent_process_kills_what_the_old_one_left() {
    let folder = tempfile::tempdir().unwrap();
    let mut controller = Controller::start().await;
    let agent = start(config(folder.path(), &controller, "stubborn")).await.unwrap();
    let mut session = controller.joined().await;
    session.order(&[order("job-a/e0", "local/0")]).await;
    session.ready("job-a/e0").await;
    let refused = start(config(folder.path(), &controller, "stubborn")).await.unwrap_err();
    assert!(matches!(refused, StartError::Locked(_)), "{refused:?}");

    // A process dies with its tasks: what it recorded is all that the next one has.
    let (_, slots) = http(&agent, folder.path(), "GET", "/v1/slots", None, true).await;
    let group = slots["slots"][0]["pid"].as_i64().unwrap();
    let next = tempfile::tempdir().unwrap();
    std::fs::create_dir(next.path().join("executors")).unwrap();
    std::fs::copy(folder.path().join("executors/0.json"), next.path().join("executors/0.json")).unwrap();
    assert_eq!(members(group).len(), 2);
    let successor = start(config(next.path(), &controller, "good")).await.unwrap();
    assert_eq!(members(group), [0; 0]);

    let report = session.take_report().await;
    assert!(matches!(gone(&report).1, ExitCause::Signal(9)), "the old one sees a kill that was not its own");
    agent.shutdown().await;
    successor.shutdown().await;
}

#[tokio::test]
async fn slots_taken_back_stay_so_over_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let mut controller = Controller::start().await;
    let agent = start(config(folder.path(), &controller, "good")).await.unwrap();
    let session = controller.joined().await;
    take_back(&agent, folder.path(), "local/1", 1_000).await;
    agent.shutdown().await;
    drop(session);
    // A child that another test was just forking holds the lock until it becomes its program.
    let begun = Instant::now();
    let agent = loop {
        match start(config(folder.path(), &controller, "good")).await {
            Err(StartError::Locked(_)) if begun.elapsed() < WAIT_MAX => tokio::task::yield_now().await,
            started => break started.unwrap(),
        }
    };
    let mut session = controller.joined().await;
    assert!(matches!(session.take_report().await, Report::SlotTakenBack { slot, .. } if slot.index == 1));
    agent.shutdown().await;
}

#[tokio::test]
async fn what_cannot_run_is_reported_and_not_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut controller = Controller::start().await;
    let mut missing = config(folder.path(), &controller, "good");
    missing.executor_command = vec!["/no/such/program".into()];
    let agent = start(missing).await.unwrap();
    let mut session = controller.joined().await;
    let wanted = [order("job-a/e0", "local/0"), order("job-a/e1", "local/5")];
    session.order(&wanted).await;
    let report = session.take_report().await;
    assert!(matches!(gone(&report).1, ExitCause::NotStarted(reason) if reason.contains("no such slot")), "{report:?}");
    let report = session.take_report().await;
    assert!(
        matches!(gone(&report).1, ExitCause::NotStarted(reason) if reason.contains("/no/such/program")),
        "{report:?}"
    );
    session.order(&wanted).await;
    let mut leaving = order("job-a/e2", "local/0");
    (leaving.leave_by, leaving.leave_in_ms) = (Some(TimeMs(u64::MAX)), Some(u64::MAX));
    session.order(&[leaving]).await;
    assert_eq!(gone(&session.take_report().await).1, &ExitCause::Killed, "the two before are not reported twice");
    agent.shutdown().await;
}

#[tokio::test]
async fn an_executor_that_speaks_garbage_or_crashes_is_reported_as_it_ended() {
    for (behaviour, status) in [("garbage", EXIT_STATUS_PROTOCOL), ("crash", 3)] {
        let folder = tempfile::tempdir().unwrap();
        let mut controller = Controller::start().await;
        let agent = start(config(folder.path(), &controller, behaviour)).await.unwrap();
        let mut session = controller.joined().await;
        session.order(&[order("job-a/e0", "local/0")]).await;
        let report = session.take_report().await;
        assert_eq!(gone(&report).1, &ExitCause::Status(status), "{behaviour}");
        agent.shutdown().await;
    }
}

/// One that never spoke is only late, and the controller has a deadline for that. ("mute" speaks when it is ready, and never again.)
#[tokio::test]
async fn an_executor_that_says_nothing_any_more_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let mut controller = Controller::start().await;
    let agent = start(config(folder.path(), &controller, "mute")).await.unwrap();
    let mut session = controller.joined().await;
    session.order(&[order("job-a/e0", "local/0")]).await;
    session.ready("job-a/e0").await;
    let report = session.take_report().await;
    assert_eq!(gone(&report), (&order("job-a/e0", "local/0").executor, &ExitCause::Silent));
    agent.shutdown().await;
}

#[tokio::test]
async fn an_agent_that_was_given_up_ends_its_executors_and_joins_as_a_new_process() {
    let folder = tempfile::tempdir().unwrap();
    let mut controller = Controller::start().await;
    let agent = start(config(folder.path(), &controller, "good")).await.unwrap();
    let mut session = controller.joined().await;
    session.order(&[order("job-a/e0", "local/0")]).await;
    session.ready("job-a/e0").await;
    session.sender.end(EndCause::Rejoin).await.unwrap();
    let old = session.incarnation;
    drop(session);
    let session = controller.joined().await;
    assert_ne!(session.incarnation, old);
    let (_, slots) = http(&agent, folder.path(), "GET", "/v1/slots", None, true).await;
    assert_eq!(slots["slots"][0]["state"], "free");
    agent.shutdown().await;
}

#[tokio::test]
async fn without_any_controller_slots_go_back_at_the_end_of_the_lease() {
    let folder = tempfile::tempdir().unwrap();
    let mut controller = Controller::start().await;
    let mut short = config(folder.path(), &controller, "good");
    short.lease = Duration::from_millis(1_500);
    let agent = start(short).await.unwrap();
    let mut session = controller.joined().await;
    session.order(&[order("job-a/e0", "local/0")]).await;
    session.ready("job-a/e0").await;
    // From here on nothing is said: no heartbeat renews the lease. The stream stays open.
    let first = loop {
        match session.receive().await.unwrap() {
            events_schema::orders::AgentMessage::Report { report, .. } => break report,
            _ => continue,
        }
    };
    assert!(matches!(first, Report::SlotTakenBack { slot, .. } if slot.index == 0));
    agent.shutdown().await;
}

#[tokio::test]
async fn the_direct_way_asks_for_a_token_and_refuses_what_it_cannot_do() {
    let folder = tempfile::tempdir().unwrap();
    let controller = Controller::start().await;
    let agent = start(config(folder.path(), &controller, "good")).await.unwrap();
    let take = |slots: serde_json::Value| json!({ "slots": slots });
    let cases = [
        (take(json!(["local/0"])), false, 401),
        (take(json!(["local/9"])), true, 404),
        (take(json!(["other/0"])), true, 404),
        (take(json!([])), true, 400),
        (json!({ "slots": [0], "deadline_ms": 9_000_000 }), true, 400),
        (json!({ "slot": "local/0" }), true, 400),
    ];
    for (body, token, expected) in cases {
        let (status, answer) = http(&agent, folder.path(), "POST", "/v1/take-back", Some(body.clone()), token).await;
        assert_eq!(status, expected, "{body}: {answer}");
        assert!(answer["detail"].is_string(), "{answer}");
    }
    assert_eq!(http(&agent, folder.path(), "GET", "/v1/slots", None, false).await.0, 401);
    let access = Access::read(folder.path()).unwrap();
    let operator = AgentToken::read(&access.token_file).unwrap();
    let fleet = FleetToken::derive(&operator, &access.server, FleetId::parse("chat").unwrap(), BTreeSet::from([1]));
    for (slots, expected) in [(json!([1]), 200), (json!([0, 1]), 403)] {
        let (status, answer) =
            http_as(&agent, &fleet.expose(), "POST", "/v1/take-back", Some(take(slots.clone()))).await;
        assert_eq!(status, expected, "{slots}: {answer}");
    }
    assert_eq!(http(&agent, folder.path(), "GET", "/healthz", None, false).await.0, 200);
    agent.shutdown().await;
}
