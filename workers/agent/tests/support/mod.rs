//! A controller played by the test, and executors that are this test binary started again with a behaviour to follow.
#![allow(clippy::unwrap_used, dead_code)]

use controller_link::{AgentConnection, AgentReceiver, AgentSender, AgentToken, serve};
use events_schema::batch::from_bytes;
use events_schema::control::{ALIVE_INTERVAL_MS, CONTROL_FRAMES, FromExecutor, ToExecutor};
use events_schema::orders::{AgentMessage, ControllerMessage, ExecutorOrder, Orders};
use events_schema::report::{Metrics, Report};
use events_schema::{Digest, Generation, Offset, ServerId, Step, Term};
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use workers_agent::{Agent, AgentConfig, LEASE, MetricsReaders, PythonConfig};

#[path = "../../../agent-core/src/fixtures.rs"]
mod fixtures;
pub(crate) use fixtures::order;

/// Longest wait for anything; reached only by a failure.
pub const WAIT_MAX: Duration = Duration::from_secs(30);

const BEHAVIOUR: &str = "EBB_TEST_EXECUTOR";

/// How to start this test binary again as an executor. Its standard output belongs to the test harness, so frames go to
/// descriptor 3, which is the pipe to the agent.
pub fn executor_command(behaviour: &str) -> Vec<OsString> {
    let script =
        format!("exec 3>&1 1>/dev/null; {BEHAVIOUR}={behaviour} exec \"$0\" --exact executor_process --nocapture");
    vec!["sh".into(), "-c".into(), script.into(), std::env::current_exe().unwrap().into()]
}

/// One frame to the agent; one write, because two threads speak.
fn say(frame: &FromExecutor) {
    // An agent that is gone is noticed elsewhere.
    let _ = File::create("/dev/fd/3").unwrap().write_all(&CONTROL_FRAMES.cut(frame).unwrap());
}

/// The body of the executor process; returns at once in an ordinary test run.
pub fn executor_main() {
    let Ok(behaviour) = std::env::var(BEHAVIOUR) else { return };
    if behaviour != "mute" {
        std::thread::spawn(|| {
            loop {
                say(&FromExecutor::Alive);
                std::thread::sleep(Duration::from_millis(ALIVE_INTERVAL_MS));
            }
        });
    }
    let mut executor = None;
    while let Some(frame) = read_frame() {
        match frame {
            ToExecutor::Start(start) => {
                eprintln!("started {}", start.executor);
                let names: Vec<String> = std::env::vars().map(|(name, _)| name).collect();
                eprintln!("with {}", names.join(" "));
                match behaviour.as_str() {
                    "garbage" => {
                        std::io::Write::write_all(&mut File::create("/dev/fd/3").unwrap(), &[0xff; 64]).unwrap()
                    }
                    "crash" => std::process::exit(3),
                    "stubborn" => {
                        // Left to the agent, which has to find it by its group.
                        #[allow(clippy::zombie_processes)]
                        std::process::Command::new("sleep").arg("600").spawn().unwrap();
                    }
                    _ => {}
                }
                executor = Some(start.executor.clone());
                say(&FromExecutor::Report(Report::ExecutorReady {
                    executor: start.executor,
                    address: "127.0.0.1:1".to_owned(),
                    class: None,
                    replica_bytes: None,
                    gradient_bytes: None,
                }));
            }
            // Says what it was told, in the one report that has a free number.
            ToExecutor::Order(order) => say(&FromExecutor::Report(Report::Evaluated {
                job: executor.as_ref().unwrap().job.clone(),
                generation: Generation(0),
                step: Step(u64::from(order.park)),
                metrics: Metrics { loss_micro: 0, correct: 0, count: 0, named: None },
            })),
            ToExecutor::Trace(_) | ToExecutor::Deadline { .. } | ToExecutor::Share { .. } => {}
            ToExecutor::Leave { .. } | ToExecutor::Stop if behaviour == "stubborn" => {}
            ToExecutor::Leave { .. } | ToExecutor::Stop => std::process::exit(0),
        }
    }
    // A stubborn one outlives even its agent.
    if behaviour == "stubborn" {
        loop {
            std::thread::park();
        }
    }
    std::process::exit(0);
}

fn read_frame() -> Option<ToExecutor> {
    let mut length = [0; 4];
    std::io::stdin().read_exact(&mut length).ok()?;
    let mut record = vec![0; CONTROL_FRAMES.length(length).unwrap()];
    std::io::stdin().read_exact(&mut record).ok()?;
    Some(from_bytes(&record).unwrap())
}

pub fn server() -> ServerId {
    ServerId::parse("local").unwrap()
}

pub fn config(data_dir: &Path, controller: &Controller, behaviour: &str) -> AgentConfig {
    AgentConfig {
        server: server(),
        guests: false,
        slots: 2,
        controller_url: controller.url.clone(),
        token: controller.token.clone(),
        data_dir: data_dir.to_owned(),
        listen: "127.0.0.1:0".parse().unwrap(),
        metrics_readers: MetricsReaders::default(),
        executor_command: executor_command(behaviour),
        executor_host: "127.0.0.1".to_owned(),
        store_url: "memory:///".to_owned(),
        python: PythonConfig { program: "python3".to_owned(), secrets: None, cache_mib: 1_024, files: None },
        devices: None,
        slot_type: None,
        class: Digest::of(b"class"),
        lease: LEASE,
    }
}

/// A controller that does what the test says.
pub struct Controller {
    pub url: String,
    pub token: AgentToken,
    accepted: mpsc::Receiver<AgentConnection>,
    shutdown: CancellationToken,
}

impl Controller {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let token = AgentToken::generate().unwrap();
        let (sender, accepted) = mpsc::channel(4);
        let shutdown = CancellationToken::new();
        tokio::spawn(serve(listener, 16, token.clone(), sender, Arc::new(|mark| (mark, Vec::new())), shutdown.clone()));
        Self { url, token, accepted, shutdown }
    }

    /// The next stream, its Hello read.
    pub async fn session(&mut self) -> Session {
        let connection = tokio::time::timeout(WAIT_MAX, self.accepted.recv()).await.unwrap().unwrap();
        let (receiver, sender) = connection.split();
        let mut session = Session { receiver, sender, incarnation: 0, term: Term(1), position: Offset(1), taken: 0 };
        let Some(AgentMessage::Hello { server: named, incarnation, .. }) = session.receive().await else {
            panic!("no hello")
        };
        assert_eq!(named, server());
        session.incarnation = incarnation;
        session
    }

    /// A stream whose agent has joined and may be given orders.
    pub async fn joined(&mut self) -> Session {
        let mut session = self.session().await;
        let (number, joined) = session.report().await;
        assert_eq!(number, 1);
        assert!(matches!(joined, Report::AgentJoined { slots: 2, .. }), "{joined:?}");
        session.take(1).await;
        session
    }

    pub fn stop(self) {
        self.shutdown.cancel();
    }
}

/// One stream, from the controller's end.
pub struct Session {
    receiver: AgentReceiver,
    pub sender: AgentSender,
    pub incarnation: u64,
    pub term: Term,
    pub position: Offset,
    taken: u64,
}

impl Session {
    pub async fn receive(&mut self) -> Option<AgentMessage> {
        tokio::time::timeout(WAIT_MAX, self.receiver.receive()).await.unwrap().ok().flatten()
    }

    /// The next report, not acknowledged; heartbeats are passed over.
    pub async fn report(&mut self) -> (u64, Report) {
        loop {
            match self.receive().await {
                Some(AgentMessage::Report { number, report, .. }) => return (number, report),
                Some(AgentMessage::Heartbeat | AgentMessage::Telemetry(_)) => {
                    let heartbeat = ControllerMessage::Heartbeat { term: self.term };
                    self.sender.send(heartbeat).await.unwrap();
                }
                other => panic!("a report was expected: {other:?}"),
            }
        }
    }

    /// The next report, acknowledged.
    pub async fn take_report(&mut self) -> Report {
        let (number, report) = self.report().await;
        assert_eq!(number, self.taken + 1);
        self.take(number).await;
        report
    }

    pub async fn take(&mut self, through: u64) {
        self.taken = through;
        self.sender.send(ControllerMessage::ReportsTaken { through }).await.unwrap();
    }

    pub async fn order(&mut self, executors: &[ExecutorOrder]) {
        self.position = self.position.next();
        let orders = Orders { term: self.term, position: self.position, executors: executors.to_vec() };
        self.sender.send(ControllerMessage::Orders(orders)).await.unwrap();
    }

    pub async fn ready(&mut self, executor: &str) {
        let report = self.take_report().await;
        assert!(
            matches!(&report, Report::ExecutorReady { executor: ready, .. } if ready.to_string() == executor),
            "{report:?}"
        );
    }

    /// As [`Session::ready`], but leaves the acknowledgement to the test.
    pub async fn ready_unnumbered(&mut self, executor: &str) {
        let (_, report) = self.report().await;
        assert!(
            matches!(&report, Report::ExecutorReady { executor: ready, .. } if ready.to_string() == executor),
            "{report:?}"
        );
    }
}

/// A request to the agent's own listener, by hand: (status, body).
pub async fn http(
    agent: &Agent,
    data_dir: &Path,
    method: &str,
    path: &str,
    body: Option<serde_json::Value>,
    token: bool,
) -> (u16, serde_json::Value) {
    let access = workers_agent::Access::read(data_dir).unwrap();
    assert_eq!(access.url, format!("http://{}", agent.address()));
    let secret = if token { std::fs::read_to_string(&access.token_file).unwrap() } else { String::new() };
    http_as(agent, secret.trim(), method, path, body).await
}

/// The same with a token of the test's; none if it is empty.
pub async fn http_as(
    agent: &Agent,
    token: &str,
    method: &str,
    path: &str,
    body: Option<serde_json::Value>,
) -> (u16, serde_json::Value) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let authorization = if token.is_empty() { String::new() } else { format!("authorization: Bearer {token}\r\n") };
    let body = body.map(|body| body.to_string()).unwrap_or_default();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-type: application/json\r\n{authorization}content-length: {}\r\n\r\n{body}",
        agent.address(),
        body.len()
    );
    let mut stream = tokio::net::TcpStream::connect(agent.address()).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    tokio::time::timeout(WAIT_MAX, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    (status, serde_json::from_str(body).unwrap_or(serde_json::Value::Null))
}

pub async fn take_back(agent: &Agent, data_dir: &Path, slot: &str, deadline_ms: u64) -> serde_json::Value {
    let body = serde_json::json!({ "slots": [slot], "deadline_ms": deadline_ms });
    let (status, answer) = http(agent, data_dir, "POST", "/v1/take-back", Some(body), true).await;
    assert_eq!(status, 200, "{answer}");
    answer["slots"][0].clone()
}

/// Process numbers of living members of a process group.
pub fn members(group: i64) -> Vec<i32> {
    let stat = |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok();
    let pids = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|pid| {
        let Some(text) = stat(*pid) else { return false };
        let fields: Vec<&str> = text[text.rfind(')').unwrap() + 1..].split_ascii_whitespace().collect();
        fields[2].parse() == Ok(group) && !matches!(fields[0], "Z" | "X")
    })
    .collect()
}
