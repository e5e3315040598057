//! What a process of Ebb lets others see of it: log lines, traces, metrics. One place sets them up and ends them, for every role.
//!
//! The usual `OTEL_*` variables decide whether anything is exported (over OTLP); without them nothing is: no task, no thread, and a span
//! costs the look at one flag. Metrics are kept in any case, for `GET /metrics`: a few atomic additions per batch and request, and nobody reads
//! them until somebody asks. Nothing here decides anything for anybody, and no id of a job is ever a label.
//!
//! Reading order: `settings.rs` (what the variables ask for), `pipeline.rs` (set up, end), `client.rs` (how it gets out), `lines.rs` (log
//! lines), `hop.rs` (spans), `metrics.rs`. Dashboards and alert rules lie beside this crate in `infra/telemetry`; what they mean is in
//! `docs/operations.md`.

mod client;
mod hop;
mod lines;
pub mod metrics;
mod pipeline;
mod settings;

pub use hop::{Hop, HopKind, NewHop, current, follow, is_on, within};
pub use lines::LogFormat;
pub use opentelemetry::KeyValue;
pub use pipeline::{Options, Telemetry, log_format, start};
pub use settings::TelemetryError;
