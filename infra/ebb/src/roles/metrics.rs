//! `GET /metrics` of a role that answers no HTTP otherwise, and `GET /healthz` beside it. Gateway and agent have both on their own listeners.

use crate::args::MetricsArgs;
use crate::failure::Failure;
use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::get;
use ebb_telemetry::metrics;
use http_listener::Bounds;
use http_listener::door::{self, Door, HostName};
use std::net::SocketAddr;
use std::sync::Arc;
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

/// Refuses to answer other machines unless that is said: there is no token.
pub fn ensure_meant(listen: SocketAddr, args: &MetricsArgs) -> Result<(), Failure> {
    if listen.ip().is_loopback() || args.metrics_to_anyone {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "--listen-metrics {listen} would let anybody who reaches it read the metrics of this controller; listen on 127.0.0.1:{0} and come in by a tunnel (ssh -L {0}:127.0.0.1:{0} HOST), or say with --metrics-to-anyone that this is meant",
        listen.port()
    )))
}

/// Listens for scrapers, which ask by an address or one of these names.
pub async fn serve(listen: SocketAddr, host_names: Vec<HostName>) -> Result<Scraped, Failure> {
    let cannot = |e| {
        Failure::local(format!("metrics cannot be listened for on {listen}"), e)
            .advise("choose another address with --listen-metrics")
    };
    let listener = TcpListener::bind(listen).await.map_err(cannot)?;
    let address = listener.local_addr().map_err(cannot)?;
    let door = Arc::new(Door::new(address.ip(), host_names));
    let router = Router::new()
        .route("/metrics", get(metrics::answer))
        .route("/healthz", get(|| async { "ok\n" }))
        .layer(from_fn_with_state(door, door::guard));
    let stop = CancellationToken::new();
    // It never fails by itself, and ends with its guard.
    tokio::spawn(http_listener::serve(listener, router, BOUNDS, stop.clone()));
    Ok(Scraped { address, _guard: stop.drop_guard() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn a_host_name_that_was_pointed_here_reads_nothing() {
        let scraped = serve("127.0.0.1:0".parse().unwrap(), vec!["ebb.example".parse().unwrap()]).await.unwrap();
        for (host, status) in [("localhost", 200), ("ebb.example", 200), ("rebound.example", 421)] {
            for path in ["metrics", "healthz"] {
                let asked = reqwest::Client::new().get(format!("http://{}/{path}", scraped.address));
                let answer = asked.header("host", host).send().await.unwrap();
                assert_eq!(answer.status().as_u16(), status, "{path} of {host}");
            }
        }
    }

    #[test]
    fn other_machines_are_answered_only_if_that_is_said() {
        let [closed, open] =
            [false, true].map(|metrics_to_anyone| MetricsArgs { metrics_to_anyone, allow_host: Vec::new() });
        let [here, everywhere] = ["127.0.0.1:9102", "0.0.0.0:9102"].map(|address| address.parse().unwrap());
        assert!(ensure_meant(here, &closed).is_ok() && ensure_meant(everywhere, &open).is_ok());
        assert!(ensure_meant(everywhere, &closed).unwrap_err().to_string().contains("--metrics-to-anyone"));
    }
}
