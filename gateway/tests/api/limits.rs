//! What bounds the gateway: bodies, heads, requests at once, time, a log that is away.

use crate::support::{Answer, Rig, Script, datasets, quick};
use events_log::{AppendError, BoxFuture, EventLog, MemoryLog, ReadError, Record, Stream};
use events_schema::batch::{EventRecord, to_bytes};
use events_schema::fact::Fact;
use events_schema::{Cell, Offset, TenantId};
use gateway::{GatewayConfig, GatewayError, Limits, Waits};
use object_store::memory::InMemory;
use reqwest::{Method, StatusCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use storage::dataset::{DatasetRoot, DatasetRoots};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[tokio::test]
async fn a_body_over_the_limit_is_413_and_one_at_the_limit_is_read() {
    let rig = Rig::without_controller(Arc::new(MemoryLog::new()), quick()).await;
    let send = |len: usize| {
        let body = format!("{{\"name\":\"{}\"}}", "x".repeat(len - 11));
        rig.send(Method::POST, "/v1/jobs", &[("content-type", "application/json")], Some(body))
    };
    let large = send(gateway::BODY_LEN_MAX + 1).await;
    assert_eq!((large.status, large.slug()), (StatusCode::PAYLOAD_TOO_LARGE, "body-too-large"));
    assert_eq!(send(gateway::BODY_LEN_MAX).await.slug(), "invalid-fields");
}

#[tokio::test]
async fn a_connection_that_sends_no_head_is_closed() {
    // Of the rig's own connections, too.
    let limits = Limits { head_time: Duration::from_secs(2), ..quick() };
    let rig = Rig::without_controller(Arc::new(MemoryLog::new()), limits).await;
    let mut slow = TcpStream::connect(rig.gateway.address()).await.unwrap();
    slow.write_all(b"GET /v1/jobs HTTP/1.1\r\nhost: localhost\r\nx-slow: ").await.unwrap();
    let mut answer = Vec::new();
    tokio::time::timeout(Duration::from_secs(60), slow.read_to_end(&mut answer))
        .await
        .expect("closed by the service")
        .ok();
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&answer));
}

/// Links to a dataset's files take its whole metadata into memory, so whoever asks for them needs a place: else as many could ask at once as
/// there are places for requests.
#[tokio::test]
async fn links_to_a_dataset_take_a_place_among_those_who_read_datasets() {
    let log = Arc::new(MemoryLog::new());
    let [dataset, _] = datasets();
    Script::new(&log).await.batch(vec![Fact::DatasetRegistered { dataset }]).await;
    let links = |rig: Rig| async move { rig.get("/v1/datasets/digits/links").await };
    let full = links(Rig::without_controller(log.clone(), Limits { dataset_reads_max: 0, ..quick() }).await).await;
    assert_eq!((full.status.as_u16(), full.slug()), (503, "overloaded"), "{}", full.text);
    let missing = links(Rig::without_controller(log, quick()).await).await;
    assert_eq!(missing.slug(), "dataset-unreadable", "no such metadata: {}", missing.text);
}

#[tokio::test]
async fn a_body_that_never_ends_is_a_timeout() {
    let limits = Limits { request_time: Duration::from_millis(100), ..quick() };
    let rig = Rig::without_controller(Arc::new(MemoryLog::new()), limits).await;
    let mut slow = TcpStream::connect(rig.gateway.address()).await.unwrap();
    slow.write_all(
        b"POST /v1/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{",
    )
    .await
    .unwrap();
    let mut answer = vec![0; 4_096];
    let len = tokio::time::timeout(Duration::from_secs(60), slow.read(&mut answer)).await.expect("an answer").unwrap();
    let text = String::from_utf8_lossy(&answer[..len]).into_owned();
    assert!(text.starts_with("HTTP/1.1 503") && text.to_lowercase().contains("retry-after"), "{text}");
}

#[tokio::test]
async fn more_requests_than_places_are_told_to_come_back() {
    // Without a controller every command waits for its decision.
    let limits = Limits { requests_max: 1, call: Waits { decision_ms: 10_000, ..Waits::STANDARD }, ..quick() };
    let rig = Rig::without_controller(Arc::new(MemoryLog::new()), limits).await;
    let waiting = rig.client.delete(rig.url("/v1/jobs/job-a")).send();
    let waiting = tokio::spawn(waiting);
    rig.log.wait(Stream::Commands, crate::support::CELL, Offset(0)).await.unwrap();
    let refused = rig.get("/v1/jobs").await;
    assert_eq!(
        (refused.status.as_u16(), refused.slug(), refused.headers["retry-after"].as_str()),
        (503, "overloaded", "1")
    );
    waiting.abort();
}

/// A memory log that can be taken away.
#[derive(Default)]
struct Removable {
    log: MemoryLog,
    away: AtomicBool,
    over: AtomicBool,
    /// It was emptied: its end is at its beginning again.
    emptied: AtomicBool,
}

impl Removable {
    fn gone(&self) -> Option<ReadError> {
        if self.over.load(Ordering::SeqCst) {
            return Some(ReadError::Closed);
        }
        self.away.load(Ordering::SeqCst).then(|| ReadError::Unavailable(Arc::new(std::io::Error::other("away"))))
    }
}

impl EventLog for Removable {
    fn append(&self, stream: Stream, cell: Cell, record: Vec<u8>) -> BoxFuture<'_, Result<Offset, AppendError>> {
        if self.gone().is_some() {
            return Box::pin(async { Err(AppendError::Unavailable(Arc::new(std::io::Error::other("away")))) });
        }
        self.log.append(stream, cell, record)
    }
    fn read(
        &self,
        stream: Stream,
        cell: Cell,
        from: Offset,
        bytes_max: usize,
    ) -> BoxFuture<'_, Result<Vec<Record>, ReadError>> {
        match self.gone() {
            Some(error) => Box::pin(async { Err(error) }),
            None => self.log.read(stream, cell, from, bytes_max),
        }
    }
    fn end(&self, stream: Stream, cell: Cell) -> BoxFuture<'_, Result<Offset, ReadError>> {
        match self.gone() {
            Some(error) => Box::pin(async { Err(error) }),
            None if self.emptied.load(Ordering::SeqCst) => Box::pin(async { Ok(Offset(0)) }),
            None => self.log.end(stream, cell),
        }
    }
    fn wait(&self, _: Stream, _: Cell, _: Offset) -> BoxFuture<'_, Result<(), ReadError>> {
        // Looks again and again, so that the follower meets the outage.
        Box::pin(async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            Ok(())
        })
    }
    fn trim(&self, stream: Stream, cell: Cell, below: Offset) -> BoxFuture<'_, Result<(), AppendError>> {
        self.log.trim(stream, cell, below)
    }
}

fn config(log: Arc<Removable>) -> GatewayConfig {
    GatewayConfig {
        log,
        store: Arc::new(InMemory::new()),
        links: storage::Links::none(),
        store_url: "memory:///".into(),
        cell: Cell(0),
        listen: "127.0.0.1:0".parse().unwrap(),
        dataset_roots: DatasetRoots::new(vec![DatasetRoot::folder(&std::env::temp_dir()).unwrap()]),
        host_names: vec!["ebb.example.org".parse().unwrap()],
        telemetry: Arc::new(|_| None),
        tenant: TenantId::parse("local").unwrap(),
        fleet_topics: None,
        set_up: true,
    }
}

/// What a gateway had read of a log that was emptied under it was called ready.
#[tokio::test]
async fn a_gateway_whose_log_was_emptied_is_not_ready() {
    let log = Arc::new(Removable::default());
    let claim = EventRecord::Claim { controller: "a".to_owned(), incarnation: 7 };
    log.append(Stream::Events, Cell(0), to_bytes(&claim)).await.unwrap();
    let gateway = gateway::start_with(config(log.clone()), quick()).await.unwrap();
    let ready = async || Answer::of(reqwest::get(format!("{}/readyz", gateway.url())).await.unwrap()).await;
    let until_ready = async {
        while ready().await.status != StatusCode::OK {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), until_ready).await.expect("it has read the claim");
    log.emptied.store(true, Ordering::SeqCst);
    let answer = ready().await;
    assert!(answer.slug() == "not-ready" && answer.text.contains("emptied"), "{}", answer.text);
    log.emptied.store(false, Ordering::SeqCst);
    assert_eq!(ready().await.status, StatusCode::OK, "its copy was behind");
    gateway.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_log_that_is_away_is_waited_for_and_one_that_is_closed_stops_the_gateway() {
    let log = Arc::new(Removable { away: AtomicBool::new(true), ..Removable::default() });
    let gateway = gateway::start_with(config(log.clone()), quick()).await.unwrap();
    let get = async |path: &str| Answer::of(reqwest::get(format!("{}{path}", gateway.url())).await.unwrap()).await;
    let until = async |path: &str, status: u16| {
        let asking = async {
            while get(path).await.status.as_u16() != status {
                tokio::time::sleep(Duration::from_millis(5)).await
            }
        };
        tokio::time::timeout(Duration::from_secs(60), asking)
            .await
            .unwrap_or_else(|_| panic!("{path} never said {status}"));
    };
    assert_eq!(
        (get("/readyz").await.slug(), get("/v1/jobs").await.slug(), get("/healthz").await.status),
        ("not-ready", "not-ready", StatusCode::OK)
    );
    log.away.store(false, Ordering::SeqCst);
    until("/readyz", 200).await;
    log.away.store(true, Ordering::SeqCst);
    until("/readyz", 503).await;
    // What is known stays readable; what has to be durable is refused.
    assert_eq!(get("/v1/jobs").await.status, StatusCode::OK);
    let refused = reqwest::Client::new().delete(format!("{}/v1/jobs/job-a", gateway.url())).send().await.unwrap();
    assert_eq!(Answer::of(refused).await.slug(), "log-unavailable");
    log.away.store(false, Ordering::SeqCst);
    until("/readyz", 200).await;
    log.over.store(true, Ordering::SeqCst);
    let stopped = tokio::time::timeout(Duration::from_secs(60), gateway.stopped()).await.expect("it says so");
    assert!(matches!(stopped, GatewayError::Follow(_)), "{stopped}");
    // Whoever stops it then, without having looked, is told as well.
    assert!(matches!(gateway.shutdown().await, Err(GatewayError::Follow(_))));
}

/// Whoever waited for it looked for the fleet and the datasets of a first start, and did not always find them.
#[tokio::test]
async fn a_gateway_in_which_something_is_declared_first_is_not_ready_before() {
    let log = Arc::new(Removable::default());
    let gateway = gateway::start_with(GatewayConfig { set_up: false, ..config(log) }, quick()).await.unwrap();
    let get = async |path: &str| Answer::of(reqwest::get(format!("{}{path}", gateway.url())).await.unwrap()).await;
    let has_read = async {
        while get("/v1/fleets").await.status != StatusCode::OK {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), has_read).await.expect("whoever declares it is served");
    let early = get("/readyz").await;
    assert!(early.slug() == "not-ready" && early.text.contains("first start"), "{}", early.text);
    gateway.is_set_up();
    assert_eq!(get("/readyz").await.status, StatusCode::OK);
    gateway.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_gateway_that_stops_says_so_before_it_closes() {
    let limits = Limits { leave_time_loopback: Duration::from_secs(600), ..quick() };
    let rig = Rig::without_controller(Arc::new(MemoryLog::new()), limits).await;
    assert_eq!(rig.get("/readyz").await.status, StatusCode::OK);
    let url = rig.gateway.url();
    let Rig { gateway, .. } = rig;
    let stopping = tokio::spawn(gateway.shutdown());
    let answered = async |path: &str| reqwest::get(format!("{url}{path}")).await.unwrap().status();
    let leaving = async {
        while answered("/readyz").await != StatusCode::SERVICE_UNAVAILABLE {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), leaving).await.expect("it says so");
    // New connections are still taken, and what they ask is answered.
    assert_eq!((answered("/healthz").await, answered("/v1/jobs").await), (StatusCode::OK, StatusCode::OK));
    stopping.abort();
}

#[tokio::test]
async fn a_record_that_cannot_be_decoded_stops_the_gateway() {
    let log = Arc::new(MemoryLog::new());
    Script::new(&log).await;
    let rig = Rig::without_controller(log.clone(), quick()).await;
    log.append(Stream::Events, crate::support::CELL, vec![99, 1, 2]).await.unwrap();
    let stopped = tokio::time::timeout(Duration::from_secs(60), rig.gateway.stopped()).await.expect("it says so");
    assert!(matches!(stopped, GatewayError::Follow(_)), "{stopped}");
    assert_eq!(rig.get("/readyz").await.slug(), "not-ready");
}

#[tokio::test]
async fn an_input_that_was_set_aside_is_told() {
    let log = Arc::new(MemoryLog::new());
    let mut script = Script::new(&log).await;
    let call = Waits { decision_ms: 60_000, ..Waits::STANDARD };
    let rig = Rig::without_controller(log, Limits { call, ..quick() }).await;
    let asking = tokio::spawn(rig.client.delete(rig.url("/v1/jobs/job-a")).send());
    rig.log.wait(Stream::Commands, crate::support::CELL, Offset(0)).await.unwrap();
    let reason = "decide panicked: secret".to_owned();
    script
        .batch(vec![events_schema::fact::Fact::InputRefused { stream: "commands".into(), offset: Offset(0), reason }])
        .await;
    let answer = Answer::of(asking.await.unwrap().unwrap()).await;
    assert_eq!((answer.status.as_u16(), answer.slug()), (422, "input-set-aside"));
    assert!(!answer.text.contains("secret"), "{}", answer.text);
}

#[tokio::test]
async fn a_panic_is_an_incident_that_tells_nothing_and_ends_nothing() {
    let log = Arc::new(MemoryLog::new());
    crate::support::script_one_job(&log).await;
    let rig = Rig::with_telemetry(log, quick(), Arc::new(|_| panic!("secret"))).await;
    for path in ["/v1/jobs/job-a", "/v1/jobs", "/v1/jobs/job-a"] {
        let answer = rig.get(path).await;
        assert_eq!((answer.status.as_u16(), answer.slug()), (500, "incident"));
        assert!(
            !answer.text.contains("secret") && answer.text.contains("report it with incident `"),
            "{}",
            answer.text
        );
    }
    assert_eq!(rig.get("/v1/fleets").await.status, StatusCode::OK);
}
