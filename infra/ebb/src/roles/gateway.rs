//! The role that answers over HTTP. `ebb gateway` runs it alone, beside any number of others of its cell: it shares nothing with them but
//! log and object store, and asks the controller how far jobs are if it is told where that is.

use crate::args::{ApiArgs, GatewayArgs};
use crate::failure::Failure;
use crate::output::{Output, mention};
use crate::roles::agent::{controller_token, ensure_controller_address};
use crate::roles::ending::{goodbye, run_until_stopped};
use crate::roles::signals::Signals;
use crate::roles::{CELL, LOCAL_TENANT, descriptors, open};
use controller_link::{AgentToken, ConnectError, progress};
use controller_server::TelemetryBoard;
use events_log::{EventLog, FleetTopics, TopicPrefix};
use events_schema::{JobId, TenantId};
use gateway::{Gateway, GatewayConfig, GatewayError, Limits};
use object_store::ObjectStore;
use serde_json::json;
use shell::{Chain, Pauses};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use storage::Links;
use storage::dataset::{DatasetRoot, DatasetRoots};
use storage::store::without_secrets;

/// Between two tries to reach the controller: progress is news of seconds, and a controller that is gone comes back elsewhere in tens.
const CONTROLLER_PAUSE_MIN: Duration = Duration::from_millis(200);
const CONTROLLER_PAUSE_MAX: Duration = Duration::from_secs(5);

/// What a gateway is started with, beside what its user chose.
pub struct GatewayParts {
    /// Commands and demand are appended here, events read.
    pub log: Arc<dyn EventLog>,
    /// Datasets and models.
    pub store: Arc<dyn ObjectStore>,
    /// Address of the store.
    pub store_url: String,
    /// How far jobs are.
    pub progress: TelemetryBoard,
    /// Connections that it may hold.
    pub connections_max: usize,
    /// Whether nobody declares anything in it first.
    pub set_up: bool,
}

/// Starts a gateway.
pub async fn start(api: &ApiArgs, parts: GatewayParts) -> Result<Gateway, Failure> {
    let GatewayParts { log, store, store_url, progress, connections_max, set_up } = parts;
    let fleet_topics = api.demand_topics.as_ref().map(|prefix| fleet_topics(log.as_ref(), prefix)).transpose()?;
    let config = GatewayConfig {
        log,
        store,
        links: Links::open(&store_url).map_err(|e| Failure::local("the object store cannot be opened", e))?,
        store_url,
        cell: CELL,
        listen: api.listen,
        host_names: api.allow_host.clone(),
        dataset_roots: dataset_roots(&api.dataset_root)?,
        telemetry: Arc::new(move |job: &JobId| progress.get(job)),
        tenant: TenantId::parse(LOCAL_TENANT).map_err(|e| Failure::plain(e.to_string()))?,
        fleet_topics,
        set_up,
    };
    gateway::start_with(config, Limits::STANDARD.within(connections_max)).await.map_err(|e| {
        Failure::local(format!("the gateway did not start on {}", api.listen), e)
            .advise("choose another address with --listen")
    })
}

/// `ebb gateway`: runs until a signal or a fatal error.
pub async fn run(args: &GatewayArgs, output: Output) -> Result<(), Failure> {
    ensure_meant(&args.api)?;
    let log_url = open::shared_log(&args.log)?;
    let connections_max = descriptors::for_api_alone(descriptors::raise())?;
    let controller = match (&args.controller, &args.token_file) {
        (Some(url), Some(file)) => {
            ensure_controller_address(url)?;
            Some((url.clone(), controller_token(file)?))
        }
        _ => None,
    };
    let log = open::log(&log_url).await?;
    let store = open::store(&args.store).await?;
    let progress = TelemetryBoard::default();
    let (store_url, progress_told) = (args.store.clone(), progress.clone());
    let parts = GatewayParts { log, store, store_url, progress: progress_told, connections_max, set_up: true };
    let gateway = start(&args.api, parts).await?;
    let url = gateway.url();
    let signals = Signals::listen()?;
    match output {
        Output::Json => mention(json!({"url": url, "store_url": without_secrets(&args.store)}).to_string()),
        _ => mention(format!(
            "Ebb's gateway listens on {url}{}\n\nCtrl-C stops it.",
            if controller.is_some() {
                ""
            } else {
                "; it does not know how far jobs are: say where the controller is with --controller"
            }
        )),
    }
    let failed = async |gateway: &Gateway| {
        tokio::select! {
            end = gateway.stopped() => ended(&end),
            reason = follow_progress(controller, &progress) => reason,
        }
    };
    let stop = async |gateway: Gateway| gateway.shutdown().await.map_err(|end| Failure::plain(ended(&end)));
    let goodbye = goodbye(output, "stopping; what was acknowledged is in the log");
    run_until_stopped(gateway, failed, stop, args.run.until_input_ends, goodbye, signals).await
}

/// A gateway's end, as a sentence.
#[must_use]
pub fn ended(end: &GatewayError) -> String {
    format!("the gateway ended: {}", Chain(end))
}

/// Refuses to serve other machines unless that is said: whoever reaches the API may do everything.
pub fn ensure_meant(api: &ApiArgs) -> Result<(), Failure> {
    if api.listen.ip().is_loopback() || api.allow_anyone {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "--listen {0} would let anybody who reaches {0} submit jobs, take slots and read models, because Ebb has no users yet; listen on 127.0.0.1:{1} and come in by a tunnel (ssh -L {1}:127.0.0.1:{1} HOST), or say with --allow-anyone that this is meant",
        api.listen,
        api.listen.port()
    )))
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

/// Where fleets publish their demand themselves. Only a log on Kafka has such topics.
fn fleet_topics(log: &dyn EventLog, prefix: &TopicPrefix) -> Result<Arc<dyn FleetTopics>, Failure> {
    log.fleet_topics(prefix.as_str(), CELL).ok_or_else(|| {
        Failure::Usage(format!(
            "--demand-topics {0} asks for the topics {0}.FLEET, but this log is not on Kafka and has no topics; give --log kafka+ssl://HOST:PORT, or let fleets say their demand over HTTP (`ebb demand`)",
            prefix.as_str()
        ))
    })
}

/// Keeps what the controller knows of how far jobs are, for ever; returns only with what a person has to mend. While the controller is
/// away, what it said last stands.
async fn follow_progress(controller: Option<(String, AgentToken)>, board: &TelemetryBoard) -> String {
    let Some((url, token)) = controller else { return std::future::pending().await };
    let mut pauses = Pauses::between(CONTROLLER_PAUSE_MIN, CONTROLLER_PAUSE_MAX);
    loop {
        match progress(&url, &token).await {
            Ok(mut told) => {
                while let Ok(telemetry) = told.next().await {
                    pauses.succeeded();
                    board.put(telemetry);
                }
            }
            Err(error @ ConnectError::Config { .. }) => return Chain(&error).to_string(),
            Err(error @ ConnectError::Refused { .. }) => {
                tracing::error!(error = %Chain(&error), "the controller does not tell this gateway how far jobs are");
            }
            Err(error @ ConnectError::Unreachable { .. }) => {
                tracing::debug!(error = %Chain(&error), "no controller tells how far jobs are");
            }
        }
        tokio::time::sleep(pauses.after_failure()).await;
    }
}
