//! The node agent, one per server: starts, watches and ends executors as its controller orders, and gives slots back to their
//! fleets at once, also with no controller at all.
//!
//! What it does is decided in `workers/agent-core`, which also says what it promises; here are sockets, processes, files and clocks. A slot
//! is called free only when nothing of its executor's process group lives. It never touches the log, knows nothing of training, and
//! puts nothing into the object store but what executors say.
//!
//! Reading order: `host.rs` (the one task that owns the decisions), `process.rs`, `group.rs`, `record.rs`, `log_file.rs`, `ship.rs` (executors),
//! `warm.rs` (processes that their Python is forked from), `direct.rs`, `holder.rs` and `access.rs` (the fleet's way), `uplink.rs` (the controller's way), `far_end.rs` (what links to other servers carry), `traces.rs` and `meters.rs` (what others may see).
//!
//! Next on a job's path: `workers/executor/src/lib.rs`.

mod access;
mod devices;
mod direct;
mod environment;
mod far_end;
#[cfg(test)]
#[path = "../../agent-core/src/fixtures.rs"]
mod fixtures;
mod group;
mod guest_memory;
mod holder;
mod host;
mod log_file;
mod meters;
mod private;
mod process;
mod record;
mod ship;
mod traces;
mod uplink;
mod warm;

pub use access::{Access, AccessError};
pub use controller_link::{AgentToken, SecretError};
pub use devices::Devices;
pub use direct::{CONNECTIONS_MAX, MetricsReaders};
pub use holder::{FleetToken, TakeBackToken};
pub use workers_agent_core::EXIT_STATUS_PROTOCOL;

use direct::Direct;
use events_schema::control::FileAccess;
use events_schema::slot_type::SlotType;
use events_schema::{Digest, ServerId};
use far_end::Listening;
use host::{Host, HostEvent};
use record::TakenBack;
use shell::{Chain, Running, Stage, TaskFailure, run_stages};
use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use warm::WarmServers;
use workers_agent_core::{FLUSH_TIMEOUT_MS, STOP_GRACE_MS};

/// How long slots stay borrowed without a word from any controller: an outage of the control plane shorter than this costs
/// no training, a longer one strands no fleet.
pub const LEASE: Duration = Duration::from_secs(600);

/// Events waiting for the host; executors that report faster than it takes wait.
const HOST_QUEUE_LEN: usize = 256;

/// Longest wait for a task that has been told to end, beyond the time that executors and last reports get.
const TASK_TIMEOUT: Duration = Duration::from_secs(10);

/// What they get.
const END_TIME: Duration = Duration::from_millis(STOP_GRACE_MS + FLUSH_TIMEOUT_MS);

/// What an agent is started with.
#[derive(Debug, Clone)]
pub struct AgentConfig {
    /// Its server, the first half of its slots' names.
    pub server: ServerId,
    /// Slots it holds, numbered from 0.
    pub slots: u16,
    /// Whether each of them has a guest slot.
    pub guests: bool,
    /// Where its controller accepts agents (`http://HOST:PORT`).
    pub controller_url: String,
    /// What it shows to the controller.
    pub token: AgentToken,
    /// For records, logs, and the token that fleets show; one agent at a time.
    pub data_dir: PathBuf,
    /// Where fleets take slots back directly; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Who reads metrics there.
    pub metrics_readers: MetricsReaders,
    /// Program and arguments of an executor.
    pub executor_command: Vec<OsString>,
    /// Host name or address at which executors listen to their peers.
    pub executor_host: String,
    /// Ebb's object store, passed to executors.
    pub store_url: String,
    /// For models in PyTorch.
    pub python: PythonConfig,
    /// Devices that its first slots are; none where executors see what the agent sees.
    pub devices: Option<Devices>,
    /// The type of those, or of all slots where there are none; of devices without it their model's.
    pub slot_type: Option<SlotType>,
    /// Numeric class of this server's executors.
    pub class: Digest,
    /// Time without a word from any controller after which all slots go back; [`LEASE`] outside tests.
    pub lease: Duration,
}

/// What this server has for models in PyTorch.
#[derive(Debug, Clone)]
pub struct PythonConfig {
    /// The Python of jobs that name none, with PyTorch; need not be there if there are no such jobs.
    pub program: String,
    /// Folder of the secrets that jobs may name, if there are any.
    pub secrets: Option<PathBuf>,
    /// Most MiB of code and environments that are kept when no job uses them.
    pub cache_mib: u64,
    /// Which files programs of jobs may reach; none: all that the agent's user may.
    pub files: Option<FileAccess>,
}

/// Why an agent could not start. All of them: stop and tell the operator.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "a field without a comment is what its name and type say")]
pub enum StartError {
    /// Something about its data directory.
    #[error("the agent's data directory {path}: {what}")]
    Data {
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
    running: Running<AgentEnd>,
}

impl Agent {
    /// Where fleets take slots back directly.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Resolves when the agent has ended, asked or not; its slots are free then.
    pub async fn stopped(&self) -> AgentEnd {
        self.running.stopped().await.unwrap_or_else(|| AgentEnd::Failed("its task panicked".to_owned()))
    }

    /// Ends all executors (a stop, then a kill), then the agent.
    pub async fn shutdown(self) -> AgentEnd {
        self.running.end();
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
    let seed = getrandom::u64().map_err(|e| StartError::Random(e.to_string()))?;

    let events = mpsc::channel::<HostEvent>(HOST_QUEUE_LEN);
    let metrics_for = config.metrics_readers.clone().at(address.ip());
    let direct = Direct::new(config.server.clone(), config.slots, fleet_token, events.0.clone(), metrics_for);
    let nonce = format!("{:016x}", getrandom::u64().map_err(|e| StartError::Random(e.to_string()))?);
    let warm = WarmServers::listen(nonce, config.data_dir.join("logs").join("python"), events.0.clone());
    let far_end = Listening::open(&config.executor_host).await;
    let reached = (url, far_end.as_ref().map(|listening| listening.far_end.clone()));
    let host = Host::new(config, reached, &fleets, taken_back, seed, warm.name(), events);

    let stages = stages(host, direct, listener, warm, far_end);
    let running = Running::start(async move |asked| {
        let end = end_of(run_stages(stages, asked).await);
        drop(lock);
        end
    });
    Ok(Agent { address, running })
}

/// Makes the folders and takes the lock that keeps a second agent from killing this one's executors.
fn prepare(data_dir: &Path) -> Result<File, StartError> {
    let data_error = |what| move |source| StartError::Data { path: data_dir.to_owned(), what, source };
    for folder in [data_dir.to_owned(), host::executors_folder(data_dir), data_dir.join("logs")] {
        private::make_folder(&folder).map_err(data_error("making its folders"))?;
    }
    let lock = private::open(&data_dir.join("agent.lock"), false).map_err(data_error("making its lock file"))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(StartError::Locked(data_dir.to_owned())),
        Err(TryLockError::Error(source)) => Err(data_error("taking its lock")(source)),
    }
}

/// The agent's tasks. The executors and the last reports end first, then the listener and what executors' Python is forked from.
fn stages(
    host: Host,
    direct: Direct,
    listener: TcpListener,
    warm: WarmServers,
    far_end: Option<Listening>,
) -> Vec<Stage<String>> {
    let (mut executors, mut listening) = (Stage::new(END_TIME + TASK_TIMEOUT), Stage::new(TASK_TIMEOUT));
    let (host_end, direct_end, warm_end) = (executors.asked(), listening.asked(), listening.asked());
    executors.spawn("executors", async move { host.run(host_end).await.map_err(|e| Chain(&e).to_string()) });
    listening.spawn("direct listener", async move {
        direct.serve(listener, direct_end).await.map_err(|e| Chain(&e).to_string())
    });
    listening.spawn("warm Python", async move { warm.run(warm_end).await.map_err(|e| Chain(&e).to_string()) });
    if let Some(far_end) = far_end {
        let asked = listening.asked();
        listening.spawn("far end of links", async move {
            far_end.serve(asked).await;
            Ok(())
        });
    }
    vec![executors, listening]
}

/// How the stages of an agent ended, as its owner is told.
fn end_of(ended: Result<(), TaskFailure<String>>) -> AgentEnd {
    match ended {
        Ok(()) => AgentEnd::Shutdown,
        Err(failure) => {
            let reason = failure.to_string();
            tracing::error!(reason, "the agent failed");
            AgentEnd::Failed(reason)
        }
    }
}
