//! Public events: what subscribers read of the log, as CloudEvents 1.0. Pure.
//!
//! They are a contract of their own. Facts, which the controller writes for itself, may gain kinds and fields as the controller needs them; what is
//! published changes only by the promise in `docs/events.md`, which `tests/documents.rs` keeps. Not here: specs, environment, secrets, addresses, keys of
//! objects; what others said in free text passes `redact.rs`, which leaves them out.
//!
//! Next: `types.rs` (the types), `data.rs` and `of_service.rs` (what each holds), `of_fact.rs` (which fact says what), `documents.rs` (the schemas).

mod data;
mod documents;
mod envelope;
mod of_fact;
mod of_service;
mod progress;
mod redact;
mod types;
mod words;

pub use data::*;
pub use documents::schemas;
pub use envelope::{CloudEvent, FactPosition, NotAPosition, TRACE_HEADERS, rfc3339};
pub use of_service::*;
pub use progress::JobProgress;
pub use types::{JOB_PROGRESS, PublicEvent, may_be_of_fleet, may_be_of_job};
pub use words::*;

/// Every type of event there is.
pub fn kinds() -> impl Iterator<Item = &'static str> {
    types::KINDS.iter().copied()
}
