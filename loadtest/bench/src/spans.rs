//! Where the time of a reclaim goes, by the spans of a service that exports them to this process: a receiver of OTLP on loopback, which keeps of each
//! trace when its spans began and ended. What they mean is in `docs/operations.md`.

use crate::row::{Times, number};
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
            let parts: Vec<[f64; PARTS.len()]> = {
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

/// The parts of a reclaim, in order.
const PARTS: [&str; 5] = ["to the log", "decided", "told", "boundary", "exit"];

/// How long each part took, in milliseconds; nothing of a trace without a whole reclaim.
fn parts(spans: &[Span]) -> Option<[f64; PARTS.len()]> {
    let named = |name: &'static str| spans.iter().filter(move |(known, ..)| known == name);
    let asked = spans.iter().map(|(_, from, _)| *from).min()?;
    let (decided_from, decided_to) = named("decide").map(|(_, from, to)| (*from, *to)).min()?;
    let told = named("follow order").map(|(_, from, _)| *from).min()?;
    let boundary = named("reach boundary").map(|(_, _, to)| *to).max()?;
    let exited = named("exit").map(|(_, _, to)| *to).max()?;
    let marks = [asked, decided_from, decided_to, told, boundary, exited];
    Some(std::array::from_fn(|part| marks[part + 1].saturating_sub(marks[part]) as f64 / 1e6))
}

/// The parts of some reclaims.
pub struct Budget(Vec<[f64; PARTS.len()]>);

impl Budget {
    /// The middle of each part, in a few words; nothing without spans.
    pub fn note(&self) -> String {
        if self.0.is_empty() {
            return String::new();
        }
        let middle = |part: usize| Times::of_ms(self.0.iter().map(|parts| parts[part]).collect()).median();
        let parts: Vec<String> =
            PARTS.iter().enumerate().map(|(part, name)| format!("{name} {}", number(middle(part)))).collect();
        format!("; by spans, p50 ms of {}: {}", self.0.len(), parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_reclaim_add_up_to_it() {
        let span = |name: &str, from: u64, to: u64| (name.to_owned(), from * 1_000_000, to * 1_000_000);
        let mut spans = vec![
            span("/v1/fleets/{fleet}/demand", 0, 9),
            span("decide", 2, 3),
            span("decide", 50, 51),
            span("follow order", 4, 45),
            span("reach boundary", 5, 40),
        ];
        assert_eq!(parts(&spans), None, "nothing went back");
        spans.push(span("exit", 40, 45));
        assert_eq!(parts(&spans), Some([2.0, 1.0, 1.0, 36.0, 5.0]));
    }
}
