//! Metrics: instruments by name, and what they come to as Prometheus reads it. Labels are of bounded sets, always: no id of a job, an executor
//! or a command is one.

use opentelemetry::global;
use opentelemetry::metrics::Meter;
pub use opentelemetry::metrics::{Counter, Gauge, Histogram, ObservableGauge};
use prometheus::{Registry, TextEncoder};
use std::sync::OnceLock;

/// What a scraper is told of the text.
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Bounds of times from a decision to a slot's return, in seconds: a boundary takes milliseconds, a deadline seconds.
pub const SECONDS: [f64; 16] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

static REGISTRY: OnceLock<Registry> = OnceLock::new();

pub(crate) fn keep(registry: Registry) {
    // A second set-up in one process is a test's: the first one's registry stays.
    let _ = REGISTRY.set(registry);
}

/// What this process counts with. Without a set-up it counts nothing.
#[must_use]
pub fn meter() -> Meter {
    global::meter(crate::hop::SCOPE)
}

/// A counter: `ebb.jobs.ended` is `ebb_jobs_ended_total` to Prometheus.
#[must_use]
pub fn counter(name: &'static str, what: &'static str) -> Counter<u64> {
    meter().u64_counter(name).with_description(what).build()
}

/// A histogram of times in seconds: `ebb.append` is `ebb_append_seconds`.
#[must_use]
pub fn seconds(name: &'static str, what: &'static str) -> Histogram<f64> {
    meter().f64_histogram(name).with_unit("s").with_description(what).with_boundaries(SECONDS.to_vec()).build()
}

/// What `GET /metrics` answers wherever it is asked: headers and text, of which there is none if this process keeps no metrics.
pub async fn answer() -> ([(&'static str, &'static str); 1], String) {
    let text = REGISTRY.get().and_then(|registry| TextEncoder::new().encode_to_string(&registry.gather()).ok());
    ([("content-type", CONTENT_TYPE)], text.unwrap_or_default())
}
