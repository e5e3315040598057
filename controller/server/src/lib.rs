//! The controller's hands: one loop per cell that gives the pure machine (`controller/cell`) what happens, and does what it says:
//! append to the log and read it, talk to agents, delete objects. It decides nothing.
//!
//! What it promises beyond the machine's promises: it never waits inside the loop, so an agent is heard whatever the log does; and
//! a controller works whole or not at all.
//!
//! Reading order: `run.rs` (the loop), `inputs.rs` (what waits for it), `hands.rs` (log and store), `appends.rs` (how long the log takes), `agents.rs` (streams), `projector.rs`, `sweep.rs`, `telemetry.rs`, `meters.rs`, `traces.rs`, `failure.rs`.

mod agents;
mod appends;
mod failure;
mod hands;
mod inputs;
mod meters;
mod projector;
mod returns;
mod run;
mod sweep;
mod telemetry;
mod traces;

pub use agents::CellSecret;
pub use controller_link::{AGENT_LEASE, AgentToken};
pub use failure::ControllerEnd;
pub use telemetry::TelemetryBoard;

use agents::ACCEPTED_QUEUE_LEN;
use controller_cell::{CellConfig, CellMachine, Committed};
use controller_core::{Policy, State};
use controller_link::{HEARTBEAT_INTERVAL, ProgressSince};
use events_log::EventLog;
use events_schema::{Cell, Offset, Term};
use object_store::ObjectStore;
use projector::Projector;
use run::Parts;
use shell::{Chain, Running, Stage, TaskFailure, run_stages};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use sweep::Sweep;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

/// Time between two looks at the clock. How often a plan is made the core decides; this bounds how late a deadline is noticed.
pub const TICK: Duration = Duration::from_millis(200);

/// Longest wait for the tasks of a controller that was told to end; all of them look at it within a send's time-out.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// What a controller is started with.
pub struct ControllerConfig {
    /// The log.
    pub log: Arc<dyn EventLog>,
    /// Where checkpoints lie; only for deleting them.
    pub store: Arc<dyn ObjectStore>,
    /// Which cell it takes over.
    pub cell: Cell,
    /// Its name in claims, for people.
    pub name: String,
    /// Who gets how many slots.
    pub policy: Box<dyn Policy>,
    /// Where agents reach it; port 0 takes a free one. In clear text: loopback or a trusted network.
    pub listen: SocketAddr,
    /// What agents have to show.
    pub token: AgentToken,
    /// Root of the jobs' keys; the same for every controller of the cell.
    pub secret: CellSecret,
    /// [`TICK`] outside tests.
    pub tick: Duration,
    /// [`AGENT_LEASE`] outside tests.
    pub agent_lease: Duration,
    /// Connections of agents at once, a file descriptor each.
    pub connections_max: usize,
}

/// Why a controller could not start.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "a field without a comment is what its name and type say")]
pub enum StartError {
    /// The listener for agents. Stop and tell the operator.
    #[error("cannot listen for agents on {address}")]
    Listen {
        address: SocketAddr,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// No random bytes. Stop and tell the operator.
    #[error("no random bytes from the operating system: {0}")]
    Random(String),
    /// It ended before the cell was taken over. The text says whether trying again helps.
    #[error("the controller ended before it had taken its cell over: {0}")]
    Ended(ControllerEnd),
}

/// A running controller. Dropped, it ends in the background.
#[derive(Debug)]
pub struct Controller {
    address: SocketAddr,
    telemetry: TelemetryBoard,
    committed: watch::Receiver<Option<Committed>>,
    running: Running<ControllerEnd>,
}

impl Controller {
    /// Where agents reach it (`http://HOST:PORT`).
    #[must_use]
    pub fn agent_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Progress of jobs, shared.
    #[must_use]
    pub fn telemetry(&self) -> TelemetryBoard {
        self.telemetry.clone()
    }

    /// What counts now: the state, the term it stands on, and the first offset of `events` that is not in it.
    #[must_use]
    pub fn committed(&self) -> Option<(State, Term, Offset)> {
        self.committed.borrow().as_ref().map(|committed| (committed.state.clone(), committed.term, committed.position))
    }

    /// Resolves when what counts satisfies a condition; `false` if the controller ended first. For tests and for waiting on
    /// what was just appended.
    pub async fn wait_for(&self, mut condition: impl FnMut(&State) -> bool) -> bool {
        let mut committed = self.committed.clone();
        committed
            .wait_for(|committed| committed.as_ref().is_some_and(|committed| condition(&committed.state)))
            .await
            .is_ok()
    }

    /// Resolves when the controller has ended, asked or not.
    pub async fn stopped(&self) -> ControllerEnd {
        self.running.stopped().await.unwrap_or_else(|| ControllerEnd::Failed("its task panicked".to_owned()))
    }

    /// Ends it: the batch in flight is finished or left to the log, and agents are told to look elsewhere.
    pub async fn shutdown(self) -> ControllerEnd {
        self.running.end();
        self.stopped().await
    }
}

/// Takes the cell over and starts the loop and the agents' streams. Returns when the state is recovered.
pub async fn start(config: ControllerConfig) -> Result<Controller, StartError> {
    let listen_error = |source| StartError::Listen { address: config.listen, source };
    let listener = TcpListener::bind(config.listen).await.map_err(listen_error)?;
    let address = listener.local_addr().map_err(listen_error)?;
    let incarnation = getrandom::u64().map_err(|e| StartError::Random(e.to_string()))?;
    let (committed_sender, committed) = watch::channel(None);
    let telemetry = TelemetryBoard::default();
    let stage = spawn(config, listener, incarnation, committed_sender, telemetry.clone());
    let running = Running::start(async move |asked| end_of(run_stages(vec![stage], asked).await));
    let controller = Controller { address, telemetry, committed, running };
    let taken_over = tokio::select! {
        end = controller.stopped() => Err(StartError::Ended(end)),
        // False when it ended before: then the other branch says how.
        true = controller.wait_for(|_| true) => Ok(()),
    };
    taken_over.map(|()| controller)
}

fn spawn(
    config: ControllerConfig,
    listener: TcpListener,
    incarnation: u64,
    committed: watch::Sender<Option<Committed>>,
    telemetry: TelemetryBoard,
) -> Stage<ControllerEnd> {
    let ControllerConfig { log, store, cell, name, policy, token, secret, tick, agent_lease, connections_max, .. } =
        config;
    let (accepted_sender, accepted) = mpsc::channel(ACCEPTED_QUEUE_LEN);
    // All end together: whatever follows the loop ends when the loop does.
    let mut stage = Stage::new(END_TIMEOUT);
    let ending = stage.asked();
    let machine = CellConfig {
        cell,
        name,
        incarnation,
        tick_ms: millis(tick),
        agent_lease_ms: millis(agent_lease),
        heartbeat_interval_ms: millis(HEARTBEAT_INTERVAL),
    };
    let machine = CellMachine::new(machine, policy.into());
    let sweep = Sweep { store: Arc::clone(&store), log: Arc::clone(&log), cell, committed: committed.subscribe() };
    let sweep = sweep.run(ending.clone());
    let committed_too = committed.subscribe();
    let project =
        |topic| Projector { topic, log: Arc::clone(&log), cell, committed: committed_too }.run(ending.clone());
    let projector = log.public().map(project);
    let board = telemetry.clone();
    let progress: ProgressSince = Arc::new(move |mark| board.since(mark));
    let parts = Parts { machine, log, store, cell, secret, accepted, committed, telemetry };

    stage.spawn("the sweep", async move {
        sweep.await;
        Ok(())
    });
    if let Some(projector) = projector {
        stage.spawn("the projector", async move {
            projector.await;
            Ok(())
        });
    }
    let serve = controller_link::serve(listener, connections_max, token, accepted_sender, progress, ending.clone());
    stage.spawn("the listener for agents", async move {
        serve.await.map_err(|error| ControllerEnd::Failed(format!("listener for agents: {}", Chain(&error))))
    });
    stage.spawn("the loop", async move {
        match run::run(parts, ending).await {
            ControllerEnd::Shutdown => Ok(()),
            end => Err(end),
        }
    });
    stage
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// How the stages of a controller ended, as its owner is told.
fn end_of(ended: Result<(), TaskFailure<ControllerEnd>>) -> ControllerEnd {
    let end = match ended {
        Ok(()) => ControllerEnd::Shutdown,
        Err(TaskFailure::Own { error, .. }) => error,
        Err(late @ TaskFailure::Late { .. }) => {
            tracing::error!(reason = %late, "a task of this controller did not end in time");
            ControllerEnd::Shutdown
        }
        Err(failure) => ControllerEnd::Failed(failure.to_string()),
    };
    match &end {
        ControllerEnd::Shutdown => {}
        ControllerEnd::Superseded { by, term } => {
            tracing::error!(by, %term, "another controller took the cell over; this one stands down")
        }
        ControllerEnd::Failed(reason) => tracing::error!(reason, "the controller failed"),
    }
    end
}
