//! Both ends over a real connection: what goes in comes out, and who may not speak is told so.
#![allow(clippy::unwrap_used)]

use controller_link::{AgentConnection, AgentToken, ConnectError, EndCause, LinkError, connect, serve};
use events_schema::orders::{AgentMessage, ControllerMessage, Orders};
use events_schema::{Epoch, Offset, ServerId};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

struct Served {
    url: String,
    token: AgentToken,
    accepted: mpsc::Receiver<AgentConnection>,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

async fn served() -> Served {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let token = AgentToken::generate().unwrap();
    let (sender, accepted) = mpsc::channel(4);
    let shutdown = CancellationToken::new();
    let (serve_token, serve_shutdown) = (token.clone(), shutdown.clone());
    let task = tokio::spawn(async move { serve(listener, 16, serve_token, sender, serve_shutdown).await.unwrap() });
    Served { url, token, accepted, shutdown, task }
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
    let hello = AgentMessage::Hello { server: server(), incarnation: 7 };
    agent.send(hello.clone()).await.unwrap();
    assert_eq!(from_agent.receive().await.unwrap(), Some(hello));
    let orders = ControllerMessage::Orders(Orders { epoch: Epoch(3), position: Offset(9), executors: vec![] });
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
