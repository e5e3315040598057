//! Calls while the log stalls: they end in time, and say no more than is known.

use crate::support::{Answer, CELL, TestController, job_with, quick};
use events_log::{AppendError, BoxFuture, EventLog, MemoryLog, ReadError, Record, Stream};
use events_schema::{Cell, Offset, TenantId};
use gateway::{Gateway, GatewayConfig, Limits, Waits};
use object_store::memory::InMemory;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A log whose acknowledgements never come while it is mute; what is appended may be lost or kept all the same.
struct Mute {
    log: Arc<MemoryLog>,
    mute: AtomicBool,
    keeps: bool,
}

impl EventLog for Mute {
    fn append(&self, stream: Stream, cell: Cell, record: Vec<u8>) -> BoxFuture<'_, Result<Offset, AppendError>> {
        Box::pin(async move {
            if !self.mute.load(Ordering::SeqCst) {
                return self.log.append(stream, cell, record).await;
            }
            if self.keeps {
                self.log.append(stream, cell, record).await?;
            }
            std::future::pending().await
        })
    }
    fn read(
        &self,
        stream: Stream,
        cell: Cell,
        from: Offset,
        bytes_max: usize,
    ) -> BoxFuture<'_, Result<Vec<Record>, ReadError>> {
        self.log.read(stream, cell, from, bytes_max)
    }
    fn end(&self, stream: Stream, cell: Cell) -> BoxFuture<'_, Result<Offset, ReadError>> {
        if self.mute.load(Ordering::SeqCst) && !self.keeps {
            return Box::pin(std::future::pending());
        }
        self.log.end(stream, cell)
    }
    fn wait(&self, stream: Stream, cell: Cell, from: Offset) -> BoxFuture<'_, Result<(), ReadError>> {
        self.log.wait(stream, cell, from)
    }
    fn trim(&self, stream: Stream, cell: Cell, below: Offset) -> BoxFuture<'_, Result<(), AppendError>> {
        self.log.trim(stream, cell, below)
    }
}

/// A gateway on such a log, with a controller on the log below it, and a fleet.
struct Rig {
    log: Arc<Mute>,
    gateway: Gateway,
    client: reqwest::Client,
    _controller: TestController,
}

impl Rig {
    async fn start(keeps: bool) -> Self {
        let below = Arc::new(MemoryLog::new());
        let log = Arc::new(Mute { log: Arc::clone(&below), mute: AtomicBool::new(false), keeps });
        let config = GatewayConfig {
            log: log.clone(),
            store: Arc::new(InMemory::new()),
            links: storage::Links::none(),
            store_url: "memory:///".into(),
            cell: CELL,
            listen: "127.0.0.1:0".parse().unwrap(),
            dataset_roots: storage::dataset::DatasetRoots::new(Vec::new()),
            host_names: Vec::new(),
            telemetry: Arc::new(|_| None),
            tenant: TenantId::parse("local").unwrap(),
            fleet_topics: None,
            set_up: true,
        };
        // A log that keeps what it does not acknowledge is waited for until the decision shows.
        let append_ms = if keeps { 60_000 } else { 200 };
        let call = Waits { append_ms, ..Waits::STANDARD };
        let limits = Limits { call, request_time: Duration::from_secs(120), ..quick() };
        let gateway = gateway::start_with(config, limits).await.unwrap();
        let rig = Self { log, gateway, client: reqwest::Client::new(), _controller: TestController::start(below) };
        let declare = async {
            let fleet = json!({"servers": [{"server": "local", "slots": 2}]});
            while !rig.send(Method::PUT, "/v1/fleets/chat", None, &fleet).await.status.is_success() {}
        };
        tokio::time::timeout(Duration::from_secs(60), declare).await.expect("the gateway becomes ready");
        rig
    }

    async fn send(&self, method: Method, path: &str, key: Option<&str>, body: &Value) -> Answer {
        let mut request = self.client.request(method, format!("{}{path}", self.gateway.url()));
        request = request.header("content-type", "application/json").body(body.to_string());
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        Answer::of(request.send().await.unwrap()).await
    }
}

#[tokio::test]
async fn a_call_ends_while_the_log_stalls_and_says_how_to_repeat_it() {
    let rig = Rig::start(false).await;
    rig.log.mute.store(true, Ordering::SeqCst);
    let job = job_with(json!({}));
    let cases = [
        (rig.send(Method::POST, "/v1/jobs", Some("k"), &job).await, "the same `Idempotency-Key`"),
        (rig.send(Method::POST, "/v1/jobs", None, &job).await, "look with GET"),
        (rig.send(Method::POST, "/v1/fleets/chat/demand", None, &json!({"needed": 1})).await, "send the need again"),
    ];
    for (answer, advice) in cases {
        assert_eq!((answer.status.as_u16(), answer.slug()), (503, "outcome-unknown"), "{}", answer.text);
        assert!(answer.text.contains(advice), "{}", answer.text);
    }
    // Whether there is such a job cannot be said either.
    let unknown = rig.send(Method::GET, "/v1/jobs/job-a", None, &Value::Null).await;
    assert_eq!((unknown.status.as_u16(), unknown.slug()), (503, "not-ready"), "{}", unknown.text);
}

#[tokio::test]
async fn a_decision_answers_a_call_whose_acknowledgement_is_lost() {
    let rig = Rig::start(true).await;
    rig.log.mute.store(true, Ordering::SeqCst);
    let fleet = json!({"servers": [{"server": "local", "slots": 3}]});
    let put = rig.send(Method::PUT, "/v1/fleets/chat", None, &fleet).await;
    assert_eq!(put.status, StatusCode::OK, "{}", put.text);
    let demand = rig.send(Method::POST, "/v1/fleets/chat/demand", None, &json!({"needed": 1})).await;
    assert_eq!(demand.status, StatusCode::OK, "{}", demand.text);
}
