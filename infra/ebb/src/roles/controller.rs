//! The role that decides. `ebb controller` runs it alone: one at a time has a cell, and one that takes it over makes the one before stand
//! down.

use crate::args::{CellArgs, ControllerArgs, SpeedsName, lending_as};
use crate::failure::Failure;
use crate::home::Home;
use crate::output::{Output, mention};
use crate::roles::ending::{goodbye, run_until_stopped};
use crate::roles::signals::Signals;
use crate::roles::{CELL, descriptors, metrics, open};
use controller_core::policy::WithAssumedSpeeds;
use controller_server::{AGENT_LEASE, CellSecret, Controller, ControllerConfig, ControllerEnd, TICK};
use events_log::EventLog;
use object_store::ObjectStore;
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;
use workers_agent::AgentToken;

/// Where Linux tells the name of this machine.
const HOST_NAME_FILE: &str = "/proc/sys/kernel/hostname";
/// File names of the cell's secrets. Every controller of a cell needs the same two.
const AGENT_TOKEN: &str = "agent.token";
const CELL_SECRET: &str = "cell.secret";

/// What a controller is started with, beside what its user chose.
pub struct ControllerParts {
    /// The log.
    pub log: Arc<dyn EventLog>,
    /// Where checkpoints lie.
    pub store: Arc<dyn ObjectStore>,
    /// Its name in claims, for people.
    pub name: String,
    /// Connections of agents that it may hold.
    pub connections_max: usize,
}

/// The file of the token that agents, and gateways elsewhere, have to show.
#[must_use]
pub fn agent_token_file(home: &Home) -> PathBuf {
    home.secret(AGENT_TOKEN)
}

/// The token itself, made at the first start.
pub fn agent_token(home: &Home) -> Result<AgentToken, Failure> {
    AgentToken::read_or_create(&agent_token_file(home))
        .map_err(|e| Failure::local("the agents' token cannot be had", e))
}

/// Starts a controller; it has taken its cell over when this returns.
pub async fn start(args: &CellArgs, home: &Home, parts: ControllerParts) -> Result<Controller, Failure> {
    let policy_name = args.policy.name();
    let policy = controller_core::policy_by_name(&policy_name)
        .ok_or_else(|| Failure::Usage(format!("there is no policy `{policy_name}`")))?;
    let policy = match args.speeds {
        SpeedsName::Measured => policy,
        SpeedsName::Assumed => Box::new(WithAssumedSpeeds(policy)),
    };
    let policy = lending_as(args.lending, policy);
    let ControllerParts { log, store, name, connections_max } = parts;
    let config = ControllerConfig {
        log,
        store,
        cell: CELL,
        name,
        policy,
        listen: args.listen_agents,
        token: agent_token(home)?,
        secret: CellSecret::read_or_create(&home.secret(CELL_SECRET))
            .map_err(|e| Failure::local("the cell's secret cannot be had", e))?,
        tick: TICK,
        agent_lease: AGENT_LEASE,
        connections_max,
    };
    controller_server::start(config).await.map_err(|e| Failure::local("the controller did not start", e))
}

/// `ebb controller`: runs until a signal or a fatal error.
pub async fn run(args: &ControllerArgs, output: Output) -> Result<(), Failure> {
    if let Some(listen) = args.listen_metrics {
        metrics::ensure_meant(listen, &args.metrics)?;
    }
    let log_url = open::shared_log(&args.log)?;
    let connections_max = descriptors::for_agents_alone(descriptors::raise())?;
    let home = Home::open(&args.data)?;
    let log = open::log(&log_url).await?;
    let store = open::store(&args.store).await?;
    let name = args.name.clone().unwrap_or_else(host_name);
    let controller = start(&args.cell, &home, ControllerParts { log, store, name, connections_max }).await?;
    let _scraped = match args.listen_metrics {
        Some(listen) => Some(metrics::serve(listen, args.metrics.allow_host.clone()).await?),
        None => None,
    };
    let (url, token_file) = (controller.agent_url(), agent_token_file(&home));
    let signals = Signals::listen()?;
    match output {
        Output::Json => mention(json!({"controller": url, "agent_token_file": token_file}).to_string()),
        _ => mention(format!(
            "Ebb's controller has its cell; agents and gateways reach it at {url} with the token in {}\n\nCtrl-C stops it; jobs go on training meanwhile.",
            token_file.display()
        )),
    }
    let failed = async |controller: &Controller| {
        let end = controller.stopped().await;
        ended(&end).unwrap_or_else(|| "the controller ended".to_owned())
    };
    let stop = async |controller: Controller| {
        let end = controller.shutdown().await;
        ended(&end).map_or(Ok(()), |what| Err(Failure::plain(what)))
    };
    let goodbye = goodbye(output, "stopping; executors train on, and the next controller finds them");
    run_until_stopped(controller, failed, stop, args.run.until_input_ends, goodbye, signals).await
}

/// What to say of a controller's end; nothing of one that was asked for.
#[must_use]
pub fn ended(end: &ControllerEnd) -> Option<String> {
    match end {
        ControllerEnd::Failed(reason) => Some(format!("the controller ended: {reason}")),
        ControllerEnd::Superseded { by, term } => {
            Some(format!("the controller stood down: `{by}` took over with term {term}"))
        }
        ControllerEnd::Shutdown => None,
    }
}

/// The machine's name, so that people see in a claim who it was.
fn host_name() -> String {
    let name = std::fs::read_to_string(HOST_NAME_FILE).unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "controller".to_owned() } else { name.to_owned() }
}
