//! `ebb up`: gateway, controller and node agent in one process, each a library with a handle; executors are processes of the
//! agent. Wires and watches them; decides nothing of what they do.
//!
//! Next on a job's path: `gateway/src/routes.rs`.

use crate::args::UpArgs;
use crate::client::Client;
use crate::descriptors;
use crate::failure::{Failure, exit_code};
use crate::first_start;
use crate::home::Home;
use crate::output::{Output, mention};
use crate::signals::{Signals, input_ended};
use controller_server::{AGENT_LEASE, CellSecret, Controller, ControllerConfig, ControllerEnd, TICK};
use events_log::{EventLog, FleetTopics, LogUrl, TopicPrefix};
use events_schema::{Cell, JobId, Offset, ServerId, TenantId};
use gateway::{Gateway, GatewayConfig, GatewayError, Limits};
use object_store::ObjectStore;
use serde_json::json;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use storage::dataset::{DatasetRoot, DatasetRoots};
use storage::store::without_secrets;
use tokio::net::TcpListener;
use workers_agent::{Agent, AgentConfig, AgentEnd, AgentToken, LEASE};

/// Name of the one server of `ebb up`.
pub const LOCAL_SERVER: &str = "local";
/// Embedded Ebb has one tenant.
pub const LOCAL_TENANT: &str = "local";
/// The one cell.
const CELL: Cell = Cell(0);
/// Slots when nobody says and the system does not tell its cores.
const SLOTS_FALLBACK: u16 = 2;

/// `ebb up`: runs until a signal or a fatal error.
pub async fn up(args: &UpArgs, output: Output) -> Result<(), Failure> {
    ensure_meant(args)?;
    if !args.data.exists() {
        ensure_free(args).await?;
    }
    let home = Home::open(&args.data)?;
    let service = Running::start(args, &home).await?;
    if let Err(failure) = service.announce(output).await {
        service.stop().await?;
        return Err(failure);
    }
    let mut signals = Signals::listen()?;
    let (failed, signalled) = tokio::select! {
        biased;
        what = service.failed() => (Some(what), false),
        () = signals.next() => (None, true),
        ended = input_ended(), if args.until_input_ends => (ended.err().map(|failure| failure.to_string()), false),
    };
    // Owned by this function: it ends with the process, which is what it is for.
    let second = tokio::spawn(async move {
        // Whoever closed our input may also have sent the signal that asks for a clean end.
        if !signalled {
            signals.next().await;
        }
        signals.next().await;
        std::process::exit(exit_code::INTERRUPTED.into());
    });
    if output == Output::Table {
        mention("stopping; jobs go on from their last checkpoint at the next start");
    }
    let stopped = service.stop().await;
    second.abort();
    failed.map_or(stopped, |what| Err(Failure::plain(what)))
}

/// Refuses to serve other machines unless that is said: whoever reaches the API may do everything.
fn ensure_meant(args: &UpArgs) -> Result<(), Failure> {
    if args.listen.ip().is_loopback() || args.allow_anyone {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "--listen {0} would let anybody who reaches {0} submit jobs, take slots and read models, because Ebb has no users yet; listen on 127.0.0.1:{1} and come in by a tunnel (ssh -L {1}:127.0.0.1:{1} HOST), or say with --allow-anyone that this is meant",
        args.listen,
        args.listen.port()
    )))
}

/// Refuses a taken address before a data directory is made that nobody asked for. Who has one is told first who else uses it.
async fn ensure_free(args: &UpArgs) -> Result<(), Failure> {
    for (name, address) in [("--listen", args.listen), ("--listen-agents", args.listen_agents)] {
        TcpListener::bind(address).await.map_err(|e| {
            Failure::local(format!("`ebb up` cannot listen on {address}"), e)
                .advise(format!("choose another address with {name}"))
        })?;
    }
    Ok(())
}

/// Where datasets may be registered from: as the operator says, or the folder in which the service was started. As a service of
/// the system it is started in `/`, which nobody chose.
fn dataset_roots(places: &[String]) -> Result<DatasetRoots, Failure> {
    let cannot = |e| Failure::local("--dataset-root names a place that cannot be used", e);
    if !places.is_empty() {
        let roots: Result<Vec<_>, _> = places.iter().map(|place| DatasetRoot::parse(place)).collect();
        return roots.map(DatasetRoots::new).map_err(cannot);
    }
    let here = DatasetRoot::folder(Path::new(".")).ok().filter(|here| !here.is_everything());
    Ok(DatasetRoots::new(here.into_iter().collect()))
}

/// Opens the object store and asks it for something: an error now instead of in the middle of a job.
pub async fn usable_store(store_url: &str) -> Result<Arc<dyn ObjectStore>, Failure> {
    let store = storage::open_store(store_url).map_err(|e| Failure::local("the object store cannot be opened", e))?;
    storage::store::probe(store.as_ref())
        .await
        .map_err(|e| Failure::local(format!("the object store {} does not answer", without_secrets(store_url)), e))?;
    Ok(store)
}

/// Where fleets publish their demand themselves. Only a log on Kafka has such topics.
fn fleet_topics(log: &dyn EventLog, prefix: &TopicPrefix) -> Result<Arc<dyn FleetTopics>, Failure> {
    log.fleet_topics(prefix.as_str(), CELL).ok_or_else(|| {
        Failure::Usage(format!(
            "--demand-topics {0} asks for the topics {0}.FLEET, but this log is not on Kafka and has no topics; give --log kafka+ssl://HOST:PORT, or let fleets say their demand over HTTP (`ebb demand`)",
            prefix.as_str()
        ))
    })
}

/// The parts, running.
struct Running {
    gateway: Gateway,
    controller: Controller,
    agent: Agent,
    agent_token_file: PathBuf,
    store_url: String,
    slots: u16,
    server: ServerId,
}

impl Running {
    async fn start(args: &UpArgs, home: &Home) -> Result<Self, Failure> {
        let slots = args.slots.unwrap_or_else(cores);
        let shares = descriptors::share(descriptors::raise(), slots)?;
        let log_url = match &args.log {
            Some(text) => LogUrl::parse(text).map_err(|e| Failure::Usage(e.to_string()))?,
            None => LogUrl::file(home.log_file()),
        };
        let log = events_log::open(&log_url).await.map_err(|e| Failure::local("the log cannot be opened", e))?;
        let log = events_log::passing_over(log, args.pass_over_event.iter().copied().map(Offset).collect());
        let fleet_topics = args.demand_topics.as_ref().map(|prefix| fleet_topics(log.as_ref(), prefix)).transpose()?;
        let store_url = args.store.clone().map_or_else(|| home.store_url(), Ok)?;
        let store = usable_store(&store_url).await?;
        let agent_token_file = home.secret("agent.token");
        let token = AgentToken::read_or_create(&agent_token_file)
            .map_err(|e| Failure::local("the agents' token cannot be had", e))?;
        let policy = controller_core::policy_by_name(args.policy.as_str())
            .ok_or_else(|| Failure::Usage(format!("there is no policy `{}`", args.policy.as_str())))?;

        let controller = controller_server::start(ControllerConfig {
            log: log.clone(),
            store: store.clone(),
            cell: CELL,
            name: LOCAL_SERVER.to_owned(),
            policy,
            listen: args.listen_agents,
            token: token.clone(),
            secret: CellSecret::read_or_create(&home.secret("cell.secret"))
                .map_err(|e| Failure::local("the cell's secret cannot be had", e))?,
            tick: TICK,
            agent_lease: AGENT_LEASE,
            connections_max: shares.agents,
        })
        .await
        .map_err(|e| Failure::local("the controller did not start", e))?;
        let telemetry = controller.telemetry();
        let config = GatewayConfig {
            log,
            store,
            store_url: store_url.clone(),
            cell: CELL,
            listen: args.listen,
            host_names: args.allow_host.clone(),
            dataset_roots: dataset_roots(&args.dataset_root)?,
            telemetry: Arc::new(move |job: &JobId| telemetry.get(job)),
            tenant: name(TenantId::parse(LOCAL_TENANT))?,
            fleet_topics,
        };
        let gateway = gateway::start_with(config, Limits::STANDARD.within(shares.api)).await.map_err(|e| {
            Failure::local(format!("the gateway did not start on {}", args.listen), e)
                .advise("choose another address with --listen")
        })?;
        let server = name(ServerId::parse(LOCAL_SERVER))?;
        let agent = start_agent(AgentParts {
            server: server.clone(),
            slots,
            controller_url: controller.agent_url(),
            token,
            data_dir: home.agent_folder(),
            listen: loopback(),
            host: Ipv4Addr::LOCALHOST.to_string(),
            store_url: store_url.clone(),
        })
        .await?;
        Ok(Self { gateway, controller, agent, agent_token_file, store_url, slots, server })
    }

    /// Declares what a first start needs, over the API like any client, and says where everything is, if anybody reads it.
    async fn announce(&self, output: Output) -> Result<(), Failure> {
        let url = self.gateway.url();
        let client = Client::new(&url)?;
        first_start::prepare(&client, &self.store_url, &self.server, self.slots).await?;
        let agent = format!("http://{}", self.agent.address());
        match output {
            Output::Json => mention(json!({"url": url, "controller": self.controller.agent_url(), "agent": agent, "agent_token_file": self.agent_token_file, "store_url": without_secrets(&self.store_url)}).to_string()),
            Output::Table => mention(format!(
                "Ebb listens on {url} with {} slots (agents: {}, take-back: {agent})\n\nnext, in another terminal:\n  ebb submit docs/examples/digits.yaml\n  ebb watch\n  ebb demand local --needed 1\n\nCtrl-C stops it.",
                self.slots,
                self.controller.agent_url()
            )),
        }
        Ok(())
    }

    /// Waits until a part ends by itself; what it said.
    async fn failed(&self) -> String {
        tokio::select! {
            end = self.gateway.stopped() => gateway_ended(&end),
            end = self.controller.stopped() => controller_ended(&end).unwrap_or_else(|| "the controller ended".to_owned()),
            end = self.agent.stopped() => match end {
                AgentEnd::Failed(reason) => format!("the agent ended: {reason}"),
                AgentEnd::Shutdown => "the agent ended".to_owned(),
            },
        }
    }

    /// No new requests, then no executors (their last reports still reach the log), then no controller. An error if a part
    /// failed while nobody looked, as a log does whose file meets an error just when it is asked to stop.
    async fn stop(self) -> Result<(), Failure> {
        let gateway = self.gateway.shutdown().await.err().map(|end| gateway_ended(&end));
        let agent = match self.agent.shutdown().await {
            AgentEnd::Failed(reason) => Some(format!("the agent did not stop cleanly: {reason}")),
            AgentEnd::Shutdown => None,
        };
        let controller = controller_ended(&self.controller.shutdown().await);
        // The controller's says most: it is what holds the log.
        controller.or(gateway).or(agent).map_or(Ok(()), |what| Err(Failure::plain(what)))
    }
}

fn gateway_ended(end: &GatewayError) -> String {
    format!("the gateway ended: {}", chain(end))
}

/// What to say of a controller's end; nothing of one that was asked for.
fn controller_ended(end: &ControllerEnd) -> Option<String> {
    match end {
        ControllerEnd::Failed(reason) => Some(format!("the controller ended: {reason}")),
        ControllerEnd::Superseded { by, epoch } => {
            Some(format!("the controller stood down: `{by}` took over at epoch {epoch}"))
        }
        ControllerEnd::Shutdown => None,
    }
}

/// What differs between the agent of `ebb up` and one alone.
pub struct AgentParts {
    /// Name of its server.
    pub server: ServerId,
    /// Slots it holds.
    pub slots: u16,
    /// Its controller.
    pub controller_url: String,
    /// What it shows to the controller.
    pub token: AgentToken,
    /// Its folder.
    pub data_dir: PathBuf,
    /// Its own listener.
    pub listen: SocketAddr,
    /// Where executors listen to their peers.
    pub host: String,
    /// The object store.
    pub store_url: String,
}

/// Starts an agent whose executors are this program.
pub async fn start_agent(parts: AgentParts) -> Result<Agent, Failure> {
    let program = std::env::current_exe().map_err(|e| Failure::local("this program's own path is unknown", e))?;
    // The test runs for up to 200 ms on its thread.
    let class = tokio::task::spawn_blocking(workers_engine::known_answer)
        .await
        .map_err(|e| Failure::local("the known-answer test of the engine failed", e))?;
    let config = AgentConfig {
        server: parts.server,
        slots: parts.slots,
        controller_url: parts.controller_url,
        token: parts.token,
        data_dir: parts.data_dir,
        listen: parts.listen,
        executor_command: vec![program.into_os_string(), OsString::from("executor")],
        executor_host: parts.host,
        store_url: parts.store_url,
        class,
        lease: LEASE,
    };
    workers_agent::start(config).await.map_err(|e| Failure::local("the agent did not start", e))
}

fn name<T>(parsed: Result<T, events_schema::IdError>) -> Result<T, Failure> {
    parsed.map_err(|e| Failure::plain(e.to_string()))
}

/// An error and its causes, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        text.push_str(&format!(": {source}"));
        cause = source.source();
    }
    text
}

fn loopback() -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0)
}

fn cores() -> u16 {
    std::thread::available_parallelism().ok().and_then(|n| u16::try_from(n.get()).ok()).unwrap_or(SLOTS_FALLBACK)
}
