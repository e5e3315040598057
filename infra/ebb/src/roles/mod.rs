//! The roles of the service: gateway, controller and agent, each a library with a handle, started by one file here. `ebb up` composes
//! all three in one process ([`crate::up`]); `ebb gateway`, `ebb controller` and `ebb agent` run one each. Nothing here decides what
//! they do.
//!
//! Reading order: `open.rs` (log and store), `gateway.rs`, `controller.rs`, `agent.rs`, `ending.rs` (until when they run),
//! `metrics.rs`, `descriptors.rs`, `signals.rs`. Next on a job's path: `gateway/src/routes.rs`.

pub mod agent;
pub mod controller;
pub mod descriptors;
pub mod ending;
pub mod gateway;
pub mod metrics;
pub mod open;
pub mod signals;

use events_schema::Cell;

/// The one cell.
pub const CELL: Cell = Cell(0);
/// The one tenant: whoever reaches the API may do everything.
pub const LOCAL_TENANT: &str = "local";
