//! The node agent, one per server: starts, watches and ends executors as its controller orders, and gives slots back to their
//! fleets at once, also with no controller at all.
//!
//! What it promises. A slot is called free only when its executor is reaped and nothing of its process group lives. No
//! executor outlives its deadline, nor a controller's silence beyond the lease. Orders of a replaced controller, orders older
//! than ones already followed, and orders from before the controller knew of this process or of a direct take-back have no
//! effect. It never touches the log or the object store, and knows nothing of training.
//!
//! Reading order: `slot.rs` (what is known of a slot), `reconcile.rs` (from wanted to done, pure), `host.rs` (the one task that
//! owns the slots), `take_back.rs` and `direct.rs` (the fleet's way), `outbox.rs` and `uplink.rs` (the controller's way),
//! `process.rs`, `group.rs`, `record.rs`, `log_file.rs` (processes). Next on a job's path: `workers/executor/src/lib.rs`.

mod access;
mod direct;
#[cfg(test)]
mod fixtures;
mod group;
mod host;
mod log_file;
mod outbox;
mod process;
mod reconcile;
mod record;
mod slot;
mod take_back;
mod uplink;

pub use access::{Access, AccessError};
pub use controller_link::AgentToken;
pub use direct::{CONNECTIONS_MAX, TAKE_BACK_DEADLINE_MS, TAKE_BACK_DEADLINE_MS_MAX};
pub use host::STOP_GRACE;
pub use slot::EXIT_STATUS_PROTOCOL;

use direct::Direct;
use events_schema::{Digest, ServerId, TimeMs};
use host::{Host, HostChannels, HostEvent};
use outbox::Outbox;
use record::TakenBack;
use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use uplink::{Chain, Uplink};

/// How long slots stay borrowed without a word from any controller: an outage of the control plane shorter than this costs
/// no training, a longer one strands no fleet.
pub const LEASE: Duration = Duration::from_secs(600);

/// Events waiting for the host; executors that report faster than it takes wait.
const HOST_QUEUE_LEN: usize = 256;

/// Telemetry waiting for the stream; more is dropped, it is stale by then.
const TELEMETRY_QUEUE_LEN: usize = 64;

/// At the end the last reports (executors ended) get this long to reach a controller; its lease finds out without them.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Longest wait for a task that has been told to end, beyond the executors' own grace.
const TASK_TIMEOUT: Duration = Duration::from_secs(10);

/// What an agent is started with.
#[derive(Debug, Clone)]
pub struct AgentConfig {
    /// Its server, the first half of its slots' names.
    pub server: ServerId,
    /// Slots it holds, numbered from 0.
    pub slots: u16,
    /// Where its controller accepts agents (`http://HOST:PORT`).
    pub controller_url: String,
    /// What it shows to the controller.
    pub token: AgentToken,
    /// For records, logs, and the token that fleets show; one agent at a time.
    pub data_dir: PathBuf,
    /// Where fleets take slots back directly; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Program and arguments of an executor.
    pub executor_command: Vec<OsString>,
    /// Host name or address at which executors listen to their peers.
    pub executor_host: String,
    /// Ebb's object store, passed to executors.
    pub store_url: String,
    /// Numeric class of this server's executors.
    pub class: Digest,
    /// Time without a word from any controller after which all slots go back; [`LEASE`] outside tests.
    pub lease: Duration,
}

/// Why an agent could not start. All of them: stop and tell the operator.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Something about its data directory.
    #[error("the agent's data directory {path}: {what}")]
    Data {
        /// Which.
        path: PathBuf,
        /// What was being done.
        what: &'static str,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Another agent uses the data directory.
    #[error("another agent runs on the data directory {0}")]
    Locked(PathBuf),
    /// The direct listener.
    #[error("cannot listen on {address}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The way to take slots back.
    #[error("cannot prepare the way to take slots back")]
    Access(#[from] AccessError),
    /// No random bytes.
    #[error("no random bytes from the operating system: {0}")]
    Random(String),
}

/// How an agent ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentEnd {
    /// As asked.
    Shutdown,
    /// It could not go on; the text says why, with causes.
    Failed(String),
}

/// A running agent. Dropped, it ends its executors and itself in the background.
#[derive(Debug)]
pub struct Agent {
    address: SocketAddr,
    shutdown: CancellationToken,
    ended: watch::Receiver<Option<AgentEnd>>,
    _guard: DropGuard,
}

impl Agent {
    /// Where fleets take slots back directly.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Resolves when the agent has ended, asked or not; its slots are free then.
    pub async fn stopped(&self) -> AgentEnd {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await {
            Ok(end) => end.clone().unwrap_or(AgentEnd::Shutdown),
            Err(_) => AgentEnd::Failed("its task panicked".to_owned()),
        }
    }

    /// Ends all executors (a stop, then a kill), then the agent.
    pub async fn shutdown(self) -> AgentEnd {
        self.shutdown.cancel();
        self.stopped().await
    }
}

/// Kills what an earlier process left behind, then starts the agent. The controller need not be there yet.
pub async fn start(config: AgentConfig) -> Result<Agent, StartError> {
    let lock = prepare(&config.data_dir)?;
    let data_error = |what| {
        let path = config.data_dir.clone();
        move |source| StartError::Data { path, what, source }
    };
    let killed = record::kill_leftovers(&host::executors_folder(&config.data_dir))
        .await
        .map_err(data_error("killing executors of an earlier process"))?;
    if !killed.is_empty() {
        tracing::warn!(count = killed.len(), "killed executors of an earlier agent process");
    }
    let taken_back = TakenBack::new(config.data_dir.join("taken-back.json"));
    let fleets = taken_back.read().map_err(data_error("reading which slots were taken back"))?;
    let listener = TcpListener::bind(config.listen)
        .await
        .map_err(|source| StartError::Listen { address: config.listen, source })?;
    let address = listener.local_addr().map_err(|source| StartError::Listen { address: config.listen, source })?;
    let url = format!("http://{address}");
    let fleet_token = Access::publish(&config.data_dir, config.server.clone(), url.clone())?;
    let incarnation = getrandom::u64().map_err(|e| StartError::Random(e.to_string()))?;

    let (events_sender, events) = mpsc::channel::<HostEvent>(HOST_QUEUE_LEN);
    let (telemetry_sender, telemetry) = mpsc::channel(TELEMETRY_QUEUE_LEN);
    let (outbox, outbox_seen) = watch::channel(Outbox::new(incarnation));
    let uplink = Uplink {
        server: config.server.clone(),
        url: config.controller_url.clone(),
        token: config.token.clone(),
        outbox: outbox_seen.clone(),
        telemetry,
        host: events_sender.clone(),
    };
    let direct = Direct::new(config.server.clone(), config.slots, fleet_token, events_sender.clone());
    let channels = HostChannels { outbox, telemetry: telemetry_sender, events_sender, events };
    let host = Host::new(config, url, &fleets, taken_back, channels);

    let shutdown = CancellationToken::new();
    let tasks = Tasks::spawn(host, uplink, direct, listener, outbox_seen);
    let (ended_sender, ended) = watch::channel(None);
    let asked = shutdown.clone();
    // Owned by the handle: it sees the result through `ended`, and a panic as a closed channel.
    tokio::spawn(async move {
        let end = tasks.run(asked).await;
        drop(lock);
        ended_sender.send_replace(Some(end));
    });
    Ok(Agent { address, shutdown: shutdown.clone(), ended, _guard: shutdown.drop_guard() })
}

/// Makes the folders and takes the lock that keeps a second agent from killing this one's executors.
fn prepare(data_dir: &Path) -> Result<File, StartError> {
    let data_error = |what| move |source| StartError::Data { path: data_dir.to_owned(), what, source };
    fs::create_dir_all(host::executors_folder(data_dir)).map_err(data_error("making its folders"))?;
    let lock = File::create(data_dir.join("agent.lock")).map_err(data_error("making its lock file"))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(StartError::Locked(data_dir.to_owned())),
        Err(TryLockError::Error(source)) => Err(data_error("taking its lock")(source)),
    }
}

/// The agent's three tasks. They end in this order: executors, last reports, listener and stream.
struct Tasks {
    host: JoinHandle<Result<(), String>>,
    uplink: JoinHandle<Result<(), String>>,
    direct: JoinHandle<Result<(), String>>,
    end_executors: CancellationToken,
    end_rest: CancellationToken,
    outbox: watch::Receiver<Outbox>,
}

impl Tasks {
    fn spawn(
        host: Host,
        uplink: Uplink,
        direct: Direct,
        listener: TcpListener,
        outbox: watch::Receiver<Outbox>,
    ) -> Self {
        let (end_executors, end_rest) = (CancellationToken::new(), CancellationToken::new());
        let (host_end, uplink_end, direct_end) = (end_executors.clone(), end_rest.clone(), end_rest.clone());
        Self {
            host: tokio::spawn(async move { host.run(host_end).await.map_err(|e| Chain(&e).to_string()) }),
            uplink: tokio::spawn(async move { uplink.run(uplink_end).await.map_err(|e| Chain(&e).to_string()) }),
            direct: tokio::spawn(
                async move { direct.serve(listener, direct_end).await.map_err(|e| Chain(&e).to_string()) },
            ),
            end_executors,
            end_rest,
            outbox,
        }
    }

    async fn run(mut self, asked: CancellationToken) -> AgentEnd {
        let (mut host_open, mut uplink_open, mut direct_open) = (true, true, true);
        let first = tokio::select! {
            () = asked.cancelled() => Ok(()),
            ended = &mut self.host => { host_open = false; early("executors", ended) }
            ended = &mut self.uplink => { uplink_open = false; early("stream to the controller", ended) }
            ended = &mut self.direct => { direct_open = false; early("direct listener", ended) }
        };
        self.end_executors.cancel();
        let mut results = vec![first];
        if host_open {
            results.push(joined("executors", self.host, host::STOP_GRACE + TASK_TIMEOUT).await);
        }
        if uplink_open {
            // Nobody need be there to take them.
            let _ = tokio::time::timeout(FLUSH_TIMEOUT, self.outbox.wait_for(Outbox::is_empty)).await;
        }
        self.end_rest.cancel();
        if uplink_open {
            results.push(joined("stream to the controller", self.uplink, TASK_TIMEOUT).await);
        }
        if direct_open {
            results.push(joined("direct listener", self.direct, TASK_TIMEOUT).await);
        }
        match results.into_iter().find_map(Result::err) {
            None => AgentEnd::Shutdown,
            Some(reason) => {
                tracing::error!(reason, "the agent failed");
                AgentEnd::Failed(reason)
            }
        }
    }
}

type Ended = Result<Result<(), String>, tokio::task::JoinError>;

/// A task that ended unasked has failed, whatever it says.
fn early(name: &str, ended: Ended) -> Result<(), String> {
    flat(name, ended).and_then(|()| Err(format!("{name}: ended by itself")))
}

fn flat(name: &str, ended: Ended) -> Result<(), String> {
    match ended {
        Ok(result) => result.map_err(|error| format!("{name}: {error}")),
        Err(panic) => Err(format!("{name}: {panic}")),
    }
}

async fn joined(name: &str, task: JoinHandle<Result<(), String>>, within: Duration) -> Result<(), String> {
    let abort = task.abort_handle();
    match tokio::time::timeout(within, task).await {
        Ok(ended) => flat(name, ended),
        Err(_) => {
            abort.abort();
            Err(format!("{name}: did not end within {} s", within.as_secs()))
        }
    }
}

/// The wall clock, for reports and for deadlines that a controller names.
pub(crate) fn wall_clock() -> TimeMs {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    TimeMs(u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX))
}
