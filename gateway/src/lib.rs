//! The HTTP edge: takes requests in, makes commands durable, and tells what became of them. It decides nothing itself.
//!
//! It appends to `commands` and `demand` and follows `events`; nothing else is shared with a controller, so any number of
//! gateways serve one cell, and one without a controller still answers from what it knows.
//!
//! Reading order: `door.rs` (which requests come in), `routes.rs` (every path), `handlers/` (what they do), `body.rs` and `parse.rs` (what comes in),
//! `submit.rs` with the crate `gateway-call` (durable, then decided), `rehearsal.rs` (dry runs), `copying.rs` (demand from fleets' own topics), `read_model.rs` and `follow.rs` (what is known), `usage.rs` (what jobs have had),
//! `feed.rs` (events by cursor), `listing.rs`, `conditions.rs` and `ranges.rs` (pages, tags and parts),
//! `convert.rs` (what goes out, in the types of `gateway-api`), `problem.rs` (every refusal), `request_id.rs` (a name for each request), `observe.rs` (spans and durations). Connections are `infra/listener`'s.
//! On a job's path the first file is `routes.rs`.

mod app;
mod body;
mod conditions;
mod convert;
mod copying;
mod door;
mod feed;
mod follow;
mod handlers;
mod identity;
mod job_index;
mod limits;
mod listing;
mod observe;
mod parse;
mod problem;
mod query;
mod ranges;
mod read_model;
mod rehearsal;
mod request_id;
mod routes;
mod selection;
mod submit;
mod usage;

pub use app::TelemetrySource;
pub use body::BODY_LEN_MAX;
pub use feed::FeedError;
pub use gateway_call::Waits;
pub use limits::Limits;

use app::App;
use events_log::{EventLog, FleetTopics};
use events_schema::{Cell, TenantId};
use http_listener::door::{Door, HostName};
use object_store::ObjectStore;
use read_model::ReadModel;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use storage::Links;
use storage::dataset::DatasetRoots;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

/// What a gateway is started with.
#[derive(Clone)]
pub struct GatewayConfig {
    /// Commands and demand are appended here, events read.
    pub log: Arc<dyn EventLog>,
    /// Datasets and models.
    pub store: Arc<dyn ObjectStore>,
    /// Links into the same store, for clients that fetch large files from it.
    pub links: Links,
    /// Address of the store, told to clients that import datasets; a password in it is left out.
    pub store_url: String,
    /// The cell that is served.
    pub cell: Cell,
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Names by which it is asked for, beside loopback and where it listens.
    pub host_names: Vec<HostName>,
    /// Places from which files may be registered as datasets.
    pub dataset_roots: DatasetRoots,
    /// Progress of jobs, as the controller's agents report it.
    pub telemetry: TelemetrySource,
    /// Whose commands these are.
    pub tenant: TenantId,
    /// Topics in which fleets publish their demand themselves; none are read without.
    pub fleet_topics: Option<Arc<dyn FleetTopics>>,
    /// Whether it is ready as soon as it can work, or not before [`Gateway::is_set_up`], because somebody puts into it what its clients
    /// look for.
    pub set_up: bool,
}

/// Why a gateway does not start. All of them need a person.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "a field without a comment is what its name and type say")]
pub enum StartError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: choose another address, or stop what holds it")]
    Listen {
        /// As configured.
        address: SocketAddr,
        #[source]
        source: std::io::Error,
    },
}

/// Why a running gateway stopped by itself. Start it again once the cause is gone.
#[derive(Debug, Clone, thiserror::Error)]
pub enum GatewayError {
    /// Events cannot be followed any further.
    #[error("the gateway cannot follow the events of its cell")]
    Follow(#[source] Arc<FeedError>),
    /// A task of ours panicked.
    #[error("a task of the gateway failed: {0}")]
    Task(String),
}

/// A running gateway. Dropping it stops it without grace.
pub struct Gateway {
    address: SocketAddr,
    leaving: CancellationToken,
    leave_time: Duration,
    stop: CancellationToken,
    /// Ends when all tasks have; dropping what it runs ends them.
    tasks: JoinHandle<()>,
    failure: watch::Receiver<Option<GatewayError>>,
    set_up: Arc<AtomicBool>,
}

/// Starts a gateway with [`Limits::STANDARD`]: it listens when this returns, and answers `/v1` once it has read the log.
pub async fn start(config: GatewayConfig) -> Result<Gateway, StartError> {
    start_with(config, Limits::STANDARD).await
}

/// Starts a gateway with limits of one's own.
pub async fn start_with(config: GatewayConfig, limits: Limits) -> Result<Gateway, StartError> {
    let unusable = |source| StartError::Listen { address: config.listen, source };
    let listener = TcpListener::bind(config.listen).await.map_err(unusable)?;
    let address = listener.local_addr().map_err(unusable)?;
    let (leaving, stop) = (CancellationToken::new(), CancellationToken::new());
    let model = Arc::new(ReadModel::new(config.cell));
    let set_up = Arc::new(AtomicBool::new(config.set_up));
    let app = Arc::new(App {
        log: config.log.clone(),
        store: config.store,
        links: config.links,
        store_url: storage::store::without_secrets(&config.store_url),
        dataset_roots: config.dataset_roots,
        cell: config.cell,
        tenant: config.tenant,
        telemetry: config.telemetry,
        model: model.clone(),
        limits,
        set_up: set_up.clone(),
        leaving: leaving.clone(),
        stop: stop.clone(),
        requests: Arc::new(Semaphore::new(limits.requests_max)),
        streams: Arc::new(Semaphore::new(limits.streams_max)),
        dataset_reads: Arc::new(Semaphore::new(limits.dataset_reads_max)),
        code_uploads: Arc::new(Semaphore::new(limits.code_uploads_max)),
        model_uploads: Arc::new(Semaphore::new(limits.model_uploads_max)),
        minted: Mutex::new(BTreeMap::new()),
    });
    let (failed, failure) = watch::channel(None);
    let following = {
        let (log, cell, stop) = (config.log, config.cell, stop.clone());
        async move {
            tokio::select! {
                () = stop.cancelled() => Ok(()),
                error = follow::follow(log, cell, model) => Err(GatewayError::Follow(Arc::new(error))),
            }
        }
    };
    let copying = {
        let (app, stop, topics) = (app.clone(), stop.clone(), config.fleet_topics);
        async move {
            if let Some(topics) = topics {
                stop.run_until_cancelled(copying::copy(app, topics)).await;
            }
            Ok(())
        }
    };
    let serving = http_listener::serve(
        listener,
        routes::router(app, Door::new(address.ip(), config.host_names)),
        limits.bounds(),
        stop.clone(),
    );
    let serving = async move {
        serving.await;
        Ok(())
    };
    let mut tasks = JoinSet::new();
    tasks.spawn(following);
    tasks.spawn(copying);
    tasks.spawn(serving);
    let tasks = tokio::spawn(see_to_the_end(tasks, failed));
    tracing::info!(%address, "gateway listens");
    // Balancers stand on other machines.
    let leave_time = if address.ip().is_loopback() { limits.leave_time_loopback } else { limits.leave_time };
    Ok(Gateway { address, leaving, leave_time, stop, tasks, failure, set_up })
}

/// Sees all tasks to their end; the failure of one, a panic included, becomes known at once.
async fn see_to_the_end(mut tasks: JoinSet<Result<(), GatewayError>>, failed: watch::Sender<Option<GatewayError>>) {
    while let Some(ended) = tasks.join_next().await {
        let outcome = ended.unwrap_or_else(|panic| Err(GatewayError::Task(panic.to_string())));
        if let Err(error) = outcome {
            tracing::error!(%error, "the gateway stops");
            failed.send_replace(Some(error));
        }
    }
}

impl Gateway {
    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its base URL, without a slash at the end.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What its clients look for is there: from now on `/readyz` may say that it is ready.
    pub fn is_set_up(&self) {
        self.set_up.store(true, Ordering::Relaxed);
    }

    /// Resolves when it has failed; never if it goes on or is shut down.
    pub fn stopped(&self) -> impl Future<Output = GatewayError> + Send + 'static {
        let mut failure = self.failure.clone();
        async move {
            let failed = failure.wait_for(Option::is_some).await.ok().and_then(|error| error.clone());
            match failed {
                Some(error) => error,
                None => std::future::pending().await,
            }
        }
    }

    /// Stops it: `/readyz` says so while everything is still answered, then there are no new connections, open requests end
    /// within the grace, event streams at once. An error if a part of it had failed, before or meanwhile.
    pub async fn shutdown(mut self) -> Result<(), GatewayError> {
        self.leaving.cancel();
        tokio::time::sleep(self.leave_time).await;
        self.stop.cancel();
        if let Err(error) = (&mut self.tasks).await {
            tracing::error!(%error, "the gateway's tasks were not seen to their end");
        }
        self.failure.borrow().clone().map_or(Ok(()), Err)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.stop.cancel();
        self.tasks.abort();
    }
}
