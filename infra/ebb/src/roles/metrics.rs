//! `GET /metrics` of a role that answers no HTTP otherwise, and `GET /healthz` beside it. Gateway and agent have both on their own listeners.

use crate::failure::Failure;
use axum::Router;
use axum::routing::get;
use ebb_telemetry::metrics;
use http_listener::Bounds;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

/// A few scrapers and probes ask a few times a minute; what is silent or slow makes room soon.
const BOUNDS: Bounds = Bounds {
    connections_max: 16,
    head_time: Duration::from_secs(5),
    write_stall: Duration::from_secs(10),
    shutdown_grace: Duration::from_secs(1),
};

/// Answers until it is dropped.
#[must_use = "dropped, it ends"]
pub struct Scraped {
    /// Where `/metrics` is answered.
    pub address: SocketAddr,
    _guard: DropGuard,
}

/// Listens for scrapers.
pub async fn serve(listen: SocketAddr) -> Result<Scraped, Failure> {
    let cannot = |e| {
        Failure::local(format!("metrics cannot be listened for on {listen}"), e)
            .advise("choose another address with --listen-metrics")
    };
    let listener = TcpListener::bind(listen).await.map_err(cannot)?;
    let address = listener.local_addr().map_err(cannot)?;
    let router = Router::new().route("/metrics", get(metrics::answer)).route("/healthz", get(|| async { "ok\n" }));
    let stop = CancellationToken::new();
    // It never fails by itself, and ends with its guard.
    tokio::spawn(http_listener::serve(listener, router, BOUNDS, stop.clone()));
    Ok(Scraped { address, _guard: stop.drop_guard() })
}
