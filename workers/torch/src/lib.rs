//! Models that their users wrote in PyTorch. An executor stays what it is for every other model: protocol, network, reduction, checkpoints
//! and the order of data are its own. Only gradients and updates are computed by a child process that runs the user's Python.
//!
//! Their code comes as one object (`storage/src/code.rs`). `package.rs`: the Python package `ebb`,
//! which is part of this program. [`TorchJob`]: the child as the executor uses it. `child.rs`: how it comes and goes; [`warm`]: forked from a process that has imported
//! torch, where the agent has one. [`frame`]: what is said to either, over a socket pair. `variables.rs`: what it finds in its environment.
//!
//! Bulk data (replica, gradient, samples) lies in memory that the child made and gave a descriptor of (`memfd`). The child maps it; this side
//! reads and writes it as files, so nothing here is `unsafe`, and a copy is made at each crossing. Only one side works at a time: every
//! request is answered before the next.
//!
//! Next on a job's path: `job.rs`, then the Python side, `python/ebb/worker.py`.

mod child;
pub mod frame;
mod job;
mod layout;
mod package;
mod variables;
pub mod warm;

pub use job::{TorchError, TorchJob, TorchStart};
pub use layout::{Lengths, StartTimes};
