//! Models that their users wrote in PyTorch. An executor stays what it is for every other model: protocol, network, reduction, checkpoints
//! and the order of data are its own. Only gradients and updates are computed by a child process that runs the user's Python.
//!
//! Their code comes as one object (`storage/src/code.rs`). `package.rs`: the Python package `ebb`,
//! which is part of this program. [`TorchJob`]: the child as the executor uses it. `child.rs`: how it comes and goes; [`warm`]: forked from a process that has imported
//! torch, where the agent has one. [`frame`]: what is said to either, over a socket pair. `variables.rs`: what it finds in its environment, `secrets.rs` what of that is its operator's.
//! `environment.rs`: what a job's requirements are built to. `cache.rs`: what executors of a server share on its disk. `output.rs`, `memory.rs` and
//! `ending.rs`: what the process says and takes, and why it ended.
//!
//! Bulk data (replica, gradient, samples) lies in memory that the child made and gave a descriptor of (`memfd`). The child maps it; this side
//! reads and writes it as files, so nothing here is `unsafe`, and a copy is made at each crossing. Only one side works at a time: every
//! request is answered before the next.
//!
//! Next on a job's path: `job.rs`, then the Python side, `python/ebb/worker.py`.

mod cache;
mod child;
mod ending;
mod environment;
pub mod frame;
mod job;
mod layout;
mod memory;
mod output;
mod package;
mod secrets;
mod variables;
pub mod warm;

pub use cache::{Cache, Held};

pub use job::{Initial, TorchError, TorchEvaluation, TorchJob, TorchStart};
pub use layout::{Lengths, OwnRows, StartTimes};
pub use secrets::SecretError;
