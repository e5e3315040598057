//! Short named stories, told through the simulated world: what the brain decides when a job meets tides, losses and its user.
//! Reading order: `stories.rs` (what all share), `jobs.rs`, `stalls.rs`, `stuck.rs`, `members.rs`, `checkpoints.rs`, `fleets.rs`.
#![allow(clippy::unwrap_used)]

mod checkpoints;
mod fleets;
mod jobs;
mod members;
mod stalls;
mod stories;
mod stuck;
