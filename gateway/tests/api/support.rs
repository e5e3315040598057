//! What the tests share: a gateway on a memory log, a small controller made of the real core, and a writer of scripted logs.

use controller_core::{Input, Policy, State, decide, policy_by_name};
use events_log::{EventLog, MemoryLog, Stream};
use events_rule::count::{Counter, Verdict};
use events_schema::batch::{Batch, EventRecord, InputStream, Taken, from_bytes, to_bytes};
use events_schema::command::{Command, CommandRecord};
use events_schema::dataset::{DatasetInfo, SampleShape};
use events_schema::fact::Fact;
use events_schema::report::{Report, ReportRecord};
use events_schema::*;
use gateway::{Gateway, GatewayConfig, Limits, TelemetrySource, Waits};
use object_store::ObjectStore;
use object_store::memory::InMemory;
use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use storage::dataset::{DatasetRoot, DatasetRoots};

pub const CELL: Cell = Cell(0);

/// A gateway, its log, its store and perhaps a controller.
pub struct Rig {
    pub log: Arc<MemoryLog>,
    pub store: Arc<dyn ObjectStore>,
    pub gateway: Gateway,
    pub client: reqwest::Client,
    controller: Option<TestController>,
    limits: Limits,
    telemetry: TelemetrySource,
}

/// Limits with which tests of absent controllers take no seconds.
pub fn quick() -> Limits {
    let call = Waits { decision_ms: 200, ..Waits::STANDARD };
    let catch_up = Duration::from_millis(200);
    Limits { call, catch_up, heartbeat: Duration::from_millis(100), ..Limits::STANDARD }
}

/// Links into a bucket that nobody asks: they are signed without it.
fn signing_links() -> storage::Links {
    let settings =
        [("AWS_ACCESS_KEY_ID", "key"), ("AWS_SECRET_ACCESS_KEY", "secret"), ("AWS_ENDPOINT", "https://s3.example")];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
    storage::Links::open_with("s3://bucket/prefix", settings).unwrap()
}

async fn gateway_on(
    log: Arc<dyn EventLog>,
    store: &Arc<dyn ObjectStore>,
    limits: Limits,
    telemetry: &TelemetrySource,
) -> Gateway {
    let config = GatewayConfig {
        log,
        store: store.clone(),
        links: signing_links(),
        store_url: "s3://key:secret@bucket/prefix".to_owned(),
        cell: CELL,
        listen: "127.0.0.1:0".parse().unwrap(),
        dataset_roots: DatasetRoots::new(vec![DatasetRoot::folder(&std::env::temp_dir()).unwrap()]),
        host_names: vec!["ebb.example.org".parse().unwrap()],
        telemetry: telemetry.clone(),
        tenant: TenantId::parse("local").unwrap(),
        fleet_topics: None,
        set_up: true,
    };
    let gateway = gateway::start_with(config, limits).await.unwrap();
    let ready = async {
        while reqwest::get(format!("{}/readyz", gateway.url())).await.unwrap().status() != StatusCode::OK {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), ready).await.expect("the gateway becomes ready");
    gateway
}

impl Rig {
    /// With a controller.
    pub async fn new() -> Self {
        let mut rig = Self::without_controller(Arc::new(MemoryLog::new()), Limits::STANDARD).await;
        rig.controller = Some(TestController::start(rig.log.clone()));
        rig
    }

    /// The controller ends; what is asked from now on waits for the next one.
    pub fn controller_ends(&mut self) {
        self.controller = None;
    }

    /// How many commands were ever asked for.
    pub async fn asked(&self) -> u64 {
        self.log.end(Stream::Commands, CELL).await.unwrap().0
    }

    /// Waits until so many commands were asked for; then a controller decides about them, in the order of the log.
    pub async fn decide_when_asked(&self, count: u64) -> TestController {
        self.log.wait(Stream::Commands, CELL, Offset(count - 1)).await.unwrap();
        TestController::start(self.log.clone())
    }

    /// With a controller and the dataset `digits` (1 × 8 × 8 in 10 classes) and `text` (65 tokens of 100).
    pub async fn with_datasets() -> Self {
        Self::with_datasets_over(Arc::new(InMemory::new())).await
    }

    /// The same over a store of the test's own.
    pub async fn with_datasets_over(store: Arc<dyn ObjectStore>) -> Self {
        let log = Arc::new(MemoryLog::new());
        let mut rig = Self::over(store, log.clone(), log, Limits::STANDARD, Arc::new(|_| None)).await;
        rig.controller = Some(TestController::start(rig.log.clone()));
        for dataset in datasets() {
            rig.command(Command::RegisterDataset { dataset }).await;
        }
        rig.until("/v1/datasets", |answer| answer["datasets"].as_array().unwrap().len() == 2).await;
        rig
    }

    pub async fn without_controller(log: Arc<MemoryLog>, limits: Limits) -> Self {
        Self::with_telemetry(log, limits, Arc::new(|_| None)).await
    }

    pub async fn with_telemetry(log: Arc<MemoryLog>, limits: Limits, telemetry: TelemetrySource) -> Self {
        Self::reading(log.clone(), log, limits, telemetry).await
    }

    /// Reads `log` by way of `seen`.
    pub async fn on(seen: Arc<dyn EventLog>, log: Arc<MemoryLog>, limits: Limits) -> Self {
        Self::reading(seen, log, limits, Arc::new(|_| None)).await
    }

    async fn reading(seen: Arc<dyn EventLog>, log: Arc<MemoryLog>, limits: Limits, telemetry: TelemetrySource) -> Self {
        Self::over(Arc::new(InMemory::new()), seen, log, limits, telemetry).await
    }

    async fn over(
        store: Arc<dyn ObjectStore>,
        seen: Arc<dyn EventLog>,
        log: Arc<MemoryLog>,
        limits: Limits,
        telemetry: TelemetrySource,
    ) -> Self {
        let gateway = gateway_on(seen, &store, limits, &telemetry).await;
        Self { log, store, gateway, client: reqwest::Client::new(), controller: None, limits, telemetry }
    }

    /// A new gateway on the same log and store; the old one is gone.
    pub async fn restart_gateway(&mut self) {
        let gateway = gateway_on(self.log.clone(), &self.store, self.limits, &self.telemetry).await;
        std::mem::replace(&mut self.gateway, gateway).shutdown().await.unwrap();
        self.client = reqwest::Client::new();
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.gateway.url())
    }

    pub async fn send(&self, method: Method, path: &str, headers: &[(&str, &str)], body: Option<String>) -> Answer {
        let mut request = self.client.request(method, self.url(path));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(body) = body {
            request = request.body(body);
        }
        Answer::of(request.send().await.unwrap()).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, &[("accept", "application/json")], None).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(Method::POST, path, &[("content-type", "application/json")], Some(body.to_string())).await
    }

    pub async fn put(&self, path: &str, body: &Value) -> Answer {
        self.send(Method::PUT, path, &[("content-type", "application/json")], Some(body.to_string())).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.send(Method::DELETE, path, &[], None).await
    }

    pub async fn submit(&self, body: &Value) -> String {
        let answer = self.post("/v1/jobs", body).await;
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.text);
        answer.json["id"].as_str().unwrap().to_owned()
    }

    /// Asks again until the answer is as wanted.
    pub async fn until(&self, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let asking = async {
            loop {
                let answer = self.get(path).await.json;
                if wanted(&answer) {
                    return answer;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), asking)
            .await
            .unwrap_or_else(|_| panic!("{path} never became as wanted"))
    }

    /// Appends a command past the gateway.
    pub async fn command(&self, command: Command) {
        let end = self.log.end(Stream::Commands, CELL).await.unwrap();
        let id = CommandId::parse(&format!("test-{end}")).unwrap();
        let record = CommandRecord {
            id,
            tenant: TenantId::parse("local").unwrap(),
            at: TimeMs(1),
            command,
            trace: None,
            expected: None,
        };
        self.log.append(Stream::Commands, CELL, to_bytes(&record)).await.unwrap();
    }

    /// Appends a report of the agent of server `local`.
    pub async fn report(&self, report: Report) {
        let number = self.log.end(Stream::Reports, CELL).await.unwrap().0 + 1;
        let record = ReportRecord {
            server: ServerId::parse("local").unwrap(),
            incarnation: 7,
            number,
            at: TimeMs(1),
            report,
            trace: None,
            after: None,
        };
        self.log.append(Stream::Reports, CELL, to_bytes(&record)).await.unwrap();
    }
}

pub fn datasets() -> [DatasetInfo; 2] {
    let info = |name: &str, sample| DatasetInfo {
        name: DatasetName::parse(name).unwrap(),
        sample,
        rows: 100,
        metadata_key: format!("datasets/{name}/metadata.json"),
        metadata_digest: Digest::of(name.as_bytes()),
    };
    [
        info("digits", SampleShape::Classified { shape: vec![1, 8, 8], classes: 10 }),
        info("text", SampleShape::Tokens { length: 65, vocabulary: 100 }),
    ]
}

/// A log with one queued job, `job-a`.
pub async fn script_one_job(log: &Arc<MemoryLog>) {
    let accepted = Fact::JobAccepted {
        job: JobId::parse("job-a").unwrap(),
        tenant: TenantId::parse("local").unwrap(),
        command: CommandId::parse("c").unwrap(),
        spec: Box::new(events_schema::job::JobSpec::parse(&job_with(json!({}))).unwrap()),
        body_digest: Digest::of(b""),
    };
    Script::new(log).await.batch(vec![accepted]).await;
}

/// A legal job, with some fields set otherwise (`null` removes one).
pub fn job_with(changes: Value) -> Value {
    let mut job = json!({
        "name": "digits", "model": {"kind": "mlp", "hidden": [16]}, "dataset": "digits",
        "workers": {"min": 1, "max": 2}, "batch_size": 8, "epochs": 1,
    });
    for (name, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => job.as_object_mut().unwrap().remove(name),
            value => job.as_object_mut().unwrap().insert(name.clone(), value.clone()),
        };
    }
    job
}

/// An answer, read to its end.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: BTreeMap<String, String>,
    pub bytes: Vec<u8>,
    pub text: String,
    pub json: Value,
}

impl Answer {
    pub async fn of(response: Response) -> Self {
        let status = response.status();
        let header = |(name, value): (&reqwest::header::HeaderName, &reqwest::header::HeaderValue)| {
            (name.to_string(), value.to_str().unwrap_or_default().to_owned())
        };
        let headers = response.headers().iter().map(header).collect();
        let bytes = response.bytes().await.unwrap().to_vec();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let json = serde_json::from_str(&text).unwrap_or(Value::Null);
        Self { status, headers, bytes, text, json }
    }

    /// The last part of the problem's type.
    pub fn slug(&self) -> &str {
        let kind = self.json["type"].as_str().unwrap_or_default();
        kind.strip_prefix("https://ebb.dev/problems/").unwrap_or_default()
    }
}

/// The real core in the smallest loop: read inputs, decide, apply, append.
pub struct TestController(tokio::task::JoinHandle<()>);

impl Drop for TestController {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl TestController {
    pub fn start(log: Arc<MemoryLog>) -> Self {
        Self(tokio::spawn(async move {
            let mut brain = Brain::recover(log).await;
            while brain.round().await {}
        }))
    }
}

struct Brain {
    log: Arc<MemoryLog>,
    state: State,
    positions: BTreeMap<InputStream, Offset>,
    policy: Box<dyn Policy>,
    term: Term,
    sequence: Sequence,
}

impl Brain {
    async fn recover(log: Arc<MemoryLog>) -> Self {
        let claim = to_bytes(&EventRecord::Claim { controller: "test".into(), incarnation: 1 });
        let claimed = log.append(Stream::Events, CELL, claim).await.unwrap();
        let (mut state, mut counter, mut positions) = (State::new(CELL), Counter::new(), BTreeMap::new());
        for record in log.read(Stream::Events, CELL, Offset(0), usize::MAX).await.unwrap() {
            if let Verdict::Counts(batch) = counter.offer(record.offset, from_bytes(&record.bytes).unwrap()) {
                batch.facts.iter().for_each(|fact| state.apply(batch.at, fact));
                positions.extend(batch.taken.iter().map(|run| (run.stream, run.to)));
            }
        }
        let policy = policy_by_name("ebb").unwrap();
        Self { log, state, positions, policy, term: Term::of_claim(claimed), sequence: Sequence(0) }
    }

    async fn round(&mut self) -> bool {
        let at = TimeMs(self.state.at().0 + 1);
        let (mut facts, mut taken) = (Vec::new(), Vec::new());
        for stream in InputStream::ALL {
            let from = self.positions.get(&stream).copied().unwrap_or_default();
            let records = self.log.read(stream.into(), CELL, from, 1 << 20).await.unwrap();
            let Some(last) = records.last() else { continue };
            let to = last.offset.next();
            taken.push(Taken { stream, from, to });
            self.positions.insert(stream, to);
            for record in records {
                let input = match stream {
                    InputStream::Commands => from_bytes(&record.bytes).map(Input::Command),
                    InputStream::Demand => from_bytes(&record.bytes).map(Input::Demand),
                    InputStream::Reports => from_bytes(&record.bytes).map(Input::Report),
                };
                let decided = match input {
                    Ok(input) => decide(&self.state, at, &input, self.policy.as_ref()),
                    Err(error) => vec![Fact::InputRefused {
                        stream: stream.name().to_owned(),
                        offset: record.offset,
                        reason: error.to_string(),
                    }],
                };
                decided.iter().for_each(|fact| self.state.apply(at, fact));
                facts.extend(decided);
            }
        }
        if taken.is_empty() {
            let wait = |stream: InputStream| {
                let from = self.positions.get(&stream).copied().unwrap_or_default();
                self.log.wait(stream.into(), CELL, from)
            };
            let [a, b, c] = InputStream::ALL.map(wait);
            return tokio::select! { ended = a => ended, ended = b => ended, ended = c => ended }.is_ok();
        }
        let batch =
            Batch { term: self.term, sequence: self.sequence, part: None, taken, at, facts, causes: Vec::new() };
        self.sequence = self.sequence.next();
        self.log.append(Stream::Events, CELL, to_bytes(&EventRecord::Batch(batch))).await.is_ok()
    }
}

/// Writes a log by hand: claims, batches, and batches that do not count.
pub struct Script {
    pub log: Arc<MemoryLog>,
    term: Term,
    sequence: Sequence,
    at: TimeMs,
}

impl Script {
    pub async fn new(log: &Arc<MemoryLog>) -> Self {
        let mut script = Self { log: log.clone(), term: Term(0), sequence: Sequence(0), at: TimeMs(1_000) };
        script.claim().await;
        script
    }

    async fn append(&self, record: EventRecord) -> Offset {
        self.log.append(Stream::Events, CELL, to_bytes(&record)).await.unwrap()
    }

    pub async fn claim(&mut self) {
        let offset = self.append(EventRecord::Claim { controller: "script".into(), incarnation: 1 }).await;
        (self.term, self.sequence) = (Term::of_claim(offset), Sequence(0));
    }

    fn record(
        &self,
        term: Term,
        sequence: Sequence,
        part: Option<events_schema::batch::Part>,
        facts: Vec<Fact>,
    ) -> EventRecord {
        EventRecord::Batch(Batch { term, sequence, part, taken: Vec::new(), at: self.at, facts, causes: Vec::new() })
    }

    /// A batch that counts; the offset of its record.
    pub async fn batch(&mut self, facts: Vec<Fact>) -> Offset {
        self.at = self.at.plus_ms(1);
        let offset = self.append(self.record(self.term, self.sequence, None, facts)).await;
        self.sequence = self.sequence.next();
        offset
    }

    /// A batch that counts in parts, with something foreign between them; the offset of its last record.
    pub async fn parts(&mut self, parts: Vec<Vec<Fact>>, foreign: &[Fact]) -> Offset {
        let count = parts.len() as u32;
        let mut last = Offset(0);
        for (index, facts) in (0u32..).zip(parts) {
            self.zombie(foreign.to_vec()).await;
            let part = events_schema::batch::Part { index, count };
            last = self.append(self.record(self.term, self.sequence, Some(part), facts)).await;
        }
        self.sequence = self.sequence.next();
        last
    }

    /// A batch of somebody whose term is over.
    pub async fn zombie(&self, facts: Vec<Fact>) {
        self.append(self.record(Term(self.term.0.wrapping_sub(1)), Sequence(0), None, facts)).await;
    }

    /// A batch that was there already.
    pub async fn repeat(&self, facts: Vec<Fact>) {
        self.append(self.record(self.term, Sequence(self.sequence.0.saturating_sub(1)), None, facts)).await;
    }
}

/// A parsed server-sent event.
#[derive(Debug, Clone, PartialEq)]
pub struct Sent {
    pub id: String,
    pub kind: String,
    pub data: Value,
}

/// An open event stream, parsed as the standard says.
pub struct Listening {
    response: Response,
    buffer: String,
    /// The last `id` seen, also of events without data.
    pub last_id: String,
    pub comments: Vec<String>,
}

impl Listening {
    pub async fn open(rig: &Rig, path: &str, last_id: Option<&str>) -> Self {
        let mut request = rig.client.get(rig.url(path)).header("accept", "text/event-stream");
        if let Some(last_id) = last_id {
            request = request.header("last-event-id", last_id);
        }
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { response, buffer: String::new(), last_id: String::new(), comments: Vec::new() }
    }

    /// The next event, or `None` at the end of the stream.
    pub async fn next(&mut self) -> Option<Sent> {
        loop {
            while let Some(end) = self.buffer.find("\n\n") {
                let block: String = self.buffer.drain(..end + 2).collect();
                if let Some(event) = self.block(&block) {
                    return Some(event);
                }
            }
            self.receive().await?;
        }
    }

    /// Waits for a comment; events must not come before it.
    pub async fn until_comment(&mut self, wanted: &str) {
        while !self.comments.iter().any(|comment| comment == wanted) {
            while let Some(end) = self.buffer.find("\n\n") {
                let block: String = self.buffer.drain(..end + 2).collect();
                assert_eq!(self.block(&block), None);
            }
            self.receive().await.expect("the stream goes on");
        }
    }

    async fn receive(&mut self) -> Option<()> {
        let bytes = tokio::time::timeout(Duration::from_secs(60), self.response.chunk()).await.expect("bytes in time");
        self.buffer.push_str(std::str::from_utf8(&bytes.ok()??).unwrap());
        Some(())
    }

    fn block(&mut self, block: &str) -> Option<Sent> {
        let (mut kind, mut data) = (String::new(), String::new());
        for line in block.lines() {
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value).to_owned();
            match field {
                "" if !value.is_empty() => self.comments.push(value),
                "id" => self.last_id = value,
                "event" => kind = value,
                "data" => data = value,
                _ => {}
            }
        }
        (!data.is_empty()).then(|| Sent { id: self.last_id.clone(), kind, data: serde_json::from_str(&data).unwrap() })
    }

    /// The next `count` events.
    pub async fn take(&mut self, count: usize) -> Vec<Sent> {
        let mut events = Vec::new();
        while events.len() < count {
            events.push(self.next().await.expect("the stream goes on"));
        }
        events
    }
}
