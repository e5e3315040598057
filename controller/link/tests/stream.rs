//! Both ends over a real connection: what goes in comes out, and who may not speak is told so.
#![allow(clippy::unwrap_used)]

use controller_link::{
    AgentConnection, AgentToken, ConnectError, EndCause, LinkError, ProgressSince, connect, progress, serve,
};
use events_schema::orders::{AgentMessage, ControllerMessage, Orders, Telemetry};
use events_schema::{Generation, JobId, Offset, ServerId, Step, Term};
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

struct Served {
    url: String,
    token: AgentToken,
    accepted: mpsc::Receiver<AgentConnection>,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<()>,
    /// How far one job is.
    step: Arc<Mutex<u64>>,
}

async fn served() -> Served {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let token = AgentToken::generate().unwrap();
    let (sender, accepted) = mpsc::channel(4);
    let shutdown = CancellationToken::new();
    let (serve_token, serve_shutdown) = (token.clone(), shutdown.clone());
    let step = Arc::new(Mutex::new(1));
    let known = step.clone();
    let progress: ProgressSince = Arc::new(move |mark| {
        let step = *known.lock().unwrap();
        (step, (step > mark).then(|| telemetry(step)).into_iter().collect())
    });
    let task =
        tokio::spawn(async move { serve(listener, 16, serve_token, sender, progress, serve_shutdown).await.unwrap() });
    Served { url, token, accepted, shutdown, task, step }
}

fn telemetry(step: u64) -> Telemetry {
    Telemetry {
        job: JobId::parse("job-a").unwrap(),
        generation: Generation(1),
        step: Step(step),
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
async fn a_gateway_is_told_how_far_jobs_are_and_what_changes() {
    let served = served().await;
    let wrong = AgentToken::generate().unwrap();
    let refused = progress(&served.url, &wrong).await.unwrap_err();
    assert!(matches!(refused, ConnectError::Refused { .. }), "{refused:?}");
    let mut told = progress(&served.url, &served.token).await.unwrap();
    assert_eq!(told.next().await.unwrap(), telemetry(1));
    *served.step.lock().unwrap() = 2;
    assert_eq!(told.next().await.unwrap(), telemetry(2));
    served.shutdown.cancel();
    assert!(matches!(told.next().await, Err(LinkError::Ended(_))));
}

fn server() -> ServerId {
    ServerId::parse("node-1").unwrap()
}

#[tokio::test]
async fn messages_cross_in_both_directions() {
    let mut served = served().await;
    let mut agent = connect(&served.url, &served.token, &server()).await.unwrap();
    let (mut from_agent, to_agent) = {
        let connection = served.accepted.recv().await.unwrap();
        assert_eq!(connection.server, server());
        connection.split()
    };
    let hello = AgentMessage::Hello { server: server(), incarnation: 7, far_end: None };
    agent.send(hello.clone()).await.unwrap();
    assert_eq!(from_agent.receive().await.unwrap(), Some(hello));
    let orders = ControllerMessage::Orders(Orders { term: Term(3), position: Offset(9), executors: vec![] });
    to_agent.send(orders.clone()).await.unwrap();
    assert_eq!(agent.receive().await.unwrap(), orders);

    drop(agent);
    assert!(!matches!(from_agent.receive().await, Ok(Some(_))));
    served.shutdown.cancel();
    served.task.await.unwrap();
}

#[tokio::test]
async fn a_wrong_token_is_refused_before_any_message() {
    let served = served().await;
    let wrong = AgentToken::generate().unwrap();
    let refused = connect(&served.url, &wrong, &server()).await.unwrap_err();
    assert!(matches!(refused, ConnectError::Refused { .. }), "{refused:?}");
}

#[tokio::test]
async fn nobody_listening_is_worth_a_retry_and_a_bad_url_is_not() {
    let token = AgentToken::generate().unwrap();
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let unreachable = connect(&format!("http://{gone}"), &token, &server()).await.unwrap_err();
    assert!(matches!(unreachable, ConnectError::Unreachable { .. }), "{unreachable:?}");
    let config = connect("not a url", &token, &server()).await.unwrap_err();
    assert!(matches!(config, ConnectError::Config { .. }), "{config:?}");
}

#[tokio::test]
async fn an_agent_that_was_given_up_is_told_to_join_again() {
    let mut served = served().await;
    let mut agent = connect(&served.url, &served.token, &server()).await.unwrap();
    let (_from_agent, to_agent) = served.accepted.recv().await.unwrap().split();
    to_agent.end(EndCause::Rejoin).await.unwrap();
    assert!(matches!(agent.receive().await, Err(LinkError::Rejoin)));
}
