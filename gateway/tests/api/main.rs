//! The API over real sockets, with a real controller behind it where one is needed. One program, so that the service is linked
//! once. Reading order: `support.rs`, then any.
#![allow(clippy::unwrap_used)]

mod support;

mod calls;
mod contract;
mod doors;
mod events;
mod fleets;
mod jobs;
mod limits;
mod races;
mod refusals;
mod stale;
mod tenants;
mod uploads;
