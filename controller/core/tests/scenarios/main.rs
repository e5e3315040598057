//! Short named stories about the core alone: what it decides when a job meets tides, losses and its user. What executors and agents do is
//! scripted (`world/`); that the real ones do it, among faults, is for `loadtest/world`.
//! Reading order: `stories.rs` (what all share), `jobs.rs`, `stalls.rs`, `code_ends.rs`, `classes.rs`, `stuck.rs`, `elsewhere.rs`, `members.rs`, `bandwidth.rs`, `slow_members.rs`, `divergence.rs`, `checkpoints.rs`, `fleets.rs`, `gangs.rs`, `uploads.rs`, `retrains.rs`, `versions.rs`, `service.rs`, `tenants.rs`, `guests.rs`, `ahead.rs`, `devices.rs`, `throughput.rs`, `profile.rs`, `many.rs`, `invariants.rs`.
#![allow(clippy::unwrap_used)]

mod ahead;
mod bandwidth;
mod checkpoints;
mod classes;
mod code_ends;
mod devices;
mod divergence;
mod elsewhere;
mod fleets;
mod gangs;
mod guests;
mod invariants;
mod jobs;
mod many;
mod members;
mod profile;
mod retrains;
mod service;
mod slow_members;
mod stalls;
mod stories;
mod stuck;
mod tenants;
mod throughput;
mod types;
mod uploads;
mod versions;
mod world;
