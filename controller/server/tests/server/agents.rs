//! Agents' streams against a real loop: what goes down, what comes up once, and who has to join again.

use crate::support::{self, Agent, Folded, Secrets, config, demand, job, lend_and_submit, server};
use controller_link::LinkError;
use controller_server::{ControllerConfig, start};
use events_log::{EventLog, MemoryLog};
use events_schema::fact::Fact;
use events_schema::orders::{AgentMessage, Telemetry};
use events_schema::report::{ExitCause, Report};
use events_schema::{Generation, ServerId, SlotId, Step};
use std::sync::Arc;
use std::time::Duration;

fn memory() -> Arc<dyn EventLog> {
    Arc::new(MemoryLog::new())
}

fn telemetry() -> Telemetry {
    Telemetry {
        job: job(),
        generation: Generation(1),
        step: Step(5),
        steps_total: 100,
        epoch: 0,
        loss: 1.0,
        samples_per_second: 1.0,
        step_us: 1,
        members: 1,
        data_wait_us: None,
        checkpoint_every_ms: None,
    }
}

#[tokio::test]
async fn a_job_becomes_an_order_and_reports_have_one_effect() {
    let (log, secrets) = (memory(), Secrets::new());
    let controller = start(config(&log, "a", &secrets)).await.unwrap();
    let mut agent = Agent::connect(&controller, &secrets, 7).await;
    agent.join(1).await;
    agent.join(1).await;
    agent.taken(1).await;
    lend_and_submit(&controller, &log, 1).await;
    demand(&log, 1, 0).await;
    let orders = agent.orders(|orders| orders.executors.len() == 1).await;
    let order = &orders.executors[0];
    assert_eq!((&order.executor.job, order.slot.index), (&job(), 0));
    assert_eq!(order.job.key, [0; 32], "nothing is derived from a key of the job any more");

    let gone =
        Report::ExecutorGone { executor: order.executor.clone(), slot: order.slot.clone(), exit: ExitCause::Status(3) };
    agent.report(2, gone.clone()).await;
    agent.report(2, gone).await;
    agent.taken(2).await;
    agent.report(3, Report::SlotTakenBack { slot: order.slot.clone(), asked_ms: None, within_ms: None }).await;
    agent.taken(3).await;
    controller.shutdown().await;
    let folded = Folded::read(&log).await;
    let count = |matches: fn(&Fact) -> bool| folded.facts().filter(|fact| matches(fact)).count();
    assert_eq!(count(|fact| matches!(fact, Fact::AgentJoined { .. })), 1);
    assert_eq!(count(|fact| matches!(fact, Fact::ExecutorGone { .. })), 1);
}

#[tokio::test]
async fn telemetry_is_believed_only_of_jobs_that_run_there() {
    let (log, secrets) = (memory(), Secrets::new());
    let controller = start(config(&log, "a", &secrets)).await.unwrap();
    let mut agent = Agent::connect(&controller, &secrets, 7).await;
    agent.send(AgentMessage::Telemetry(telemetry())).await;
    agent.join(1).await;
    agent.taken(1).await;
    assert_eq!(controller.telemetry().get(&job()), None, "no such job runs there");
    lend_and_submit(&controller, &log, 1).await;
    demand(&log, 1, 0).await;
    let orders = agent.orders(|orders| orders.executors.len() == 1).await;
    let ready = Report::ExecutorReady {
        executor: orders.executors[0].executor.clone(),
        address: "127.0.0.1:1".to_owned(),
        class: None,
        replica_bytes: None,
        gradient_bytes: None,
    };
    agent.send(AgentMessage::Telemetry(telemetry())).await;
    agent.report(2, ready).await;
    agent.taken(2).await;
    assert_eq!(controller.telemetry().get(&job()), Some(telemetry()));
    controller.shutdown().await;
}

#[tokio::test]
async fn an_agent_that_falls_silent_is_given_up_and_has_to_join_again() {
    let (log, secrets) = (memory(), Secrets::new());
    let agent_lease = Duration::from_millis(300);
    let controller = start(ControllerConfig { agent_lease, ..config(&log, "a", &secrets) }).await.unwrap();
    let mut agent = Agent::connect(&controller, &secrets, 7).await;
    agent.join(1).await;
    agent.taken(1).await;
    let connected = |state: &controller_core::State| state.server(&server()).is_some_and(|server| server.connected);
    drop(agent);
    assert!(tokio::time::timeout(support::WAIT_MAX, controller.wait_for(|state| !connected(state))).await.unwrap());

    let mut agent = Agent::connect(&controller, &secrets, 7).await;
    let end = loop {
        if let Err(end) = agent.receive().await {
            break end;
        }
    };
    assert!(matches!(end, LinkError::Rejoin), "{end:?}");
    let mut agent = Agent::connect(&controller, &secrets, 8).await;
    agent.join(1).await;
    agent.taken(1).await;
    assert!(connected(&controller.committed().unwrap().0));
    controller.shutdown().await;
}

/// Else two agents of one name throw each other out several times a second, and with every turn the executors end.
#[tokio::test]
async fn a_second_agent_of_one_name_is_turned_away_while_the_first_is_heard() {
    let (log, secrets) = (memory(), Secrets::new());
    let controller = start(config(&log, "a", &secrets)).await.unwrap();
    let mut first = Agent::connect(&controller, &secrets, 7).await;
    first.join(1).await;
    first.taken(1).await;
    let mut second = Agent::connect(&controller, &secrets, 8).await;
    let end = loop {
        if let Err(end) = second.receive().await {
            break end;
        }
    };
    let said = format!("{end:?}");
    assert!(said.contains("another agent is connected"), "{said}");
    first
        .report(
            2,
            Report::SlotTakenBack { slot: SlotId { server: server(), index: 0 }, asked_ms: None, within_ms: None },
        )
        .await;
    first.taken(2).await;
    drop(first);
    // With the first one's stream its claim ends.
    let connected = async {
        loop {
            let mut second = Agent::connect(&controller, &secrets, 8).await;
            second.join(1).await;
            if second.receive().await.is_ok() {
                break;
            }
        }
    };
    tokio::time::timeout(support::WAIT_MAX, connected).await.unwrap();
    controller.shutdown().await;
}

#[tokio::test]
async fn a_stream_may_speak_only_for_the_server_it_named_and_never_for_the_controller() {
    let (log, secrets) = (memory(), Secrets::new());
    let controller = start(config(&log, "a", &secrets)).await.unwrap();
    let mut agent = Agent::connect(&controller, &secrets, 7).await;
    agent.report(1, Report::AgentGone).await;
    while agent.receive().await.is_ok() {}

    let connection = controller_link::connect(&controller.agent_url(), &secrets.token, &server()).await.unwrap();
    let other = ServerId::parse("other").unwrap();
    connection.send(AgentMessage::Hello { server: other.clone(), incarnation: 1, far_end: None }).await.unwrap();
    let mut connection = connection;
    while connection.receive().await.is_ok() {}
    assert!(controller.committed().unwrap().0.server(&other).is_none());
    controller.shutdown().await;
}

#[tokio::test]
async fn a_new_controller_orders_the_same_under_a_higher_term() {
    let (log, secrets) = (memory(), Secrets::new());
    let first = start(config(&log, "first", &secrets)).await.unwrap();
    let mut agent = Agent::connect(&first, &secrets, 7).await;
    agent.join(1).await;
    agent.taken(1).await;
    lend_and_submit(&first, &log, 1).await;
    demand(&log, 1, 0).await;
    let before = agent.orders(|orders| orders.executors.len() == 1).await;
    // The first one is not ended: it learns of the second by the log.
    let second = start(config(&log, "second", &secrets)).await.unwrap();
    let mut agent = Agent::connect(&second, &secrets, 7).await;
    let after = agent.orders(|_| true).await;
    assert!(after.term > before.term && after.position > before.position);
    assert_eq!(after.executors, before.executors, "job keys included");
    second.shutdown().await;
    first.shutdown().await;
}
