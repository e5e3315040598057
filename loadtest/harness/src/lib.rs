//! What the demo, the benchmarks and the whole-system tests stand on: a real service as a child process, its agent, a job that is looked at, and
//! brokers that may be lost. Starts and stops processes; judges nothing and prints nothing.
//!
//! Reading order: [`service`], [`far_server`], [`watched_job`], [`release`], [`brokers`], [`scratch`].

pub mod brokers;
mod error;
pub mod far_server;
pub mod release;
pub mod scratch;
pub mod service;
pub mod watched_job;

pub use error::HarnessError;

/// The fleet that an `ebb up` declares for its own slots.
pub const LOCAL_FLEET: &str = "local";
