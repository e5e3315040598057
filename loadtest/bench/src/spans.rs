//! Where the time of a reclaim goes, by the spans of a service that exports them to this process: a receiver of OTLP on loopback, which keeps of each
//! trace when its spans began and ended. What they mean is in `docs/operations.md`.

use crate::row::{Row, Times};
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use loadtest_harness::HarnessError;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use prost::Message;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Longest wait for the spans of the last reclaim: the service sends what it has several times a second.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// How often it is looked whether they are there.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Traces kept; a bench makes fewer.
const TRACES_MAX: usize = 4_096;

/// What a span's name is, and when it began and ended, in nanoseconds of the wall clock.
type Span = (String, u64, u64);
type Traces = Arc<Mutex<BTreeMap<Vec<u8>, Vec<Span>>>>;

/// The receiver, running.
pub struct Receiver {
    url: String,
    traces: Traces,
    task: JoinHandle<std::io::Result<()>>,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Receiver {
    /// Listens on a free port of loopback.
    pub async fn start() -> Result<Self, HarnessError> {
        let cannot = |e| HarnessError::local("the bench cannot listen for spans", e);
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(cannot)?;
        let url = format!("http://{}/v1/traces", listener.local_addr().map_err(cannot)?);
        let traces = Traces::default();
        let router = Router::new().route("/v1/traces", post(receive)).with_state(Arc::clone(&traces));
        // Owned by the receiver, which ends it; what it fails of shows as spans that are missing.
        let task = tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(Self { url, traces, task })
    }

    /// What makes a service export its spans here, soon.
    pub fn environment(&self) -> Vec<(OsString, OsString)> {
        [("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", self.url.as_str()), ("OTEL_BSP_SCHEDULE_DELAY", "200")]
            .map(|(name, value)| (name.into(), value.into()))
            .into()
    }

    /// The parts of reclaims, once so many are there.
    pub async fn budget(&self, reclaims: usize) -> Budget {
        let begun = Instant::now();
        loop {
            let parts: Vec<Parts> = {
                let traces = self.traces.lock().unwrap_or_else(PoisonError::into_inner);
                traces.values().filter_map(|spans| parts(spans)).collect()
            };
            if parts.len() >= reclaims || begun.elapsed() > WAIT_MAX {
                return Budget(parts);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

async fn receive(State(traces): State<Traces>, body: Bytes) -> StatusCode {
    let Ok(request) = ExportTraceServiceRequest::decode(body) else { return StatusCode::BAD_REQUEST };
    let mut traces = traces.lock().unwrap_or_else(PoisonError::into_inner);
    let scopes = request.resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
    for span in scopes.flat_map(|scope| scope.spans) {
        if traces.len() < TRACES_MAX || traces.contains_key(&span.trace_id) {
            let times = (span.name, span.start_time_unix_nano, span.end_time_unix_nano);
            traces.entry(span.trace_id).or_default().push(times);
        }
    }
    StatusCode::OK
}

/// The hops of a reclaim, in order: each ends where the next begins, and all of them are the time from the request's head to the last slot that is free.
pub const HOPS: [&str; 8] = [
    "reclaim by spans: request",
    "reclaim by spans: signal to the log",
    "reclaim by spans: log to controller",
    "reclaim by spans: decision",
    "reclaim by spans: facts to the log",
    "reclaim by spans: agent's stream",
    "reclaim by spans: boundary",
    "reclaim by spans: exit, reaped",
];

/// How long each hop took, in milliseconds.
type Parts = [f64; HOPS.len()];

/// The hops of one trace; nothing of one without a whole reclaim.
fn parts(spans: &[Span]) -> Option<Parts> {
    let named = |name: &'static str| spans.iter().filter(move |(known, ..)| known == name);
    let first = |name| named(name).map(|(_, from, to)| (*from, *to)).min();
    let last_end = |name| named(name).map(|(_, _, to)| *to).max();
    let asked = spans.iter().map(|(_, from, _)| *from).min()?;
    let (signal_from, signal_to) = first("append demand")?;
    // What is decided of the executor's end comes later.
    let (decided_from, _) = first("decide")?;
    let (facts_from, facts_to) = first("append events")?;
    let (told, _) = first("follow order")?;
    let (boundary, exited) = (last_end("reach boundary")?, last_end("exit")?);
    let marks = [asked, signal_from, signal_to, decided_from, facts_from, facts_to, told, boundary, exited];
    Some(std::array::from_fn(|hop| marks[hop + 1].saturating_sub(marks[hop]) as f64 / 1e6))
}

/// The hops of some reclaims.
pub struct Budget(Vec<Parts>);

impl Budget {
    /// A row for each hop, beside the whole; nothing without spans.
    pub fn rows(&self) -> Vec<Row> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let whole = Times::of_ms(self.0.iter().map(|parts| parts.iter().sum()).collect());
        let row = |(hop, &name): (usize, &&'static str)| {
            let times = Times::of_ms(self.0.iter().map(|parts| parts[hop]).collect());
            Row {
                name,
                value: times.median(),
                unit: "ms p50",
                baseline_name: "ms the whole reclaim",
                baseline: whole.median(),
                goal: None,
                note: format!("{}; the whole {}", times.spread(), whole.spread()),
            }
        };
        HOPS.iter().enumerate().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hops_of_a_reclaim_add_up_to_it() {
        let span = |name: &str, from: u64, to: u64| (name.to_owned(), from * 1_000_000, to * 1_000_000);
        let mut spans = vec![
            span("POST /v1/fleets/{fleet}/demand", 0, 9),
            span("append demand", 1, 3),
            span("decide", 4, 8),
            span("append events", 5, 8),
            span("decide", 50, 51),
            span("append events", 50, 51),
            span("follow order", 10, 45),
            span("reach boundary", 11, 30),
            span("reach boundary", 12, 40),
        ];
        assert_eq!(parts(&spans), None, "nothing went back");
        assert!(Budget(Vec::new()).rows().is_empty());
        spans.push(span("exit", 40, 46));
        let hops = parts(&spans).unwrap_or_default();
        assert_eq!(hops, [1.0, 2.0, 1.0, 1.0, 3.0, 2.0, 30.0, 6.0]);
        let rows = Budget(vec![hops]).rows();
        assert_eq!((rows[6].value, rows[6].baseline), (30.0, 46.0));
    }
}
