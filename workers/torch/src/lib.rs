//! Models that their users wrote in PyTorch. An executor stays what it is for every other model: protocol, network, reduction, checkpoints
//! and the order of data are its own. Only gradients and updates are computed by a child process that runs the user's Python.
//!
//! Their code comes as one object (`storage/src/code.rs`). `cache.rs`: what executors of a server share on its disk. `environment.rs`: what a
//! job's requirements are built to. `package.rs`: the Python package `ebb`, which is part of this program. `child.rs`, with `output.rs` and
//! `memory.rs`: the process, and why it ended. `secrets.rs`: what it gets of its operator. `frame.rs`: what is said to it, over a socket pair.
//! [`TorchJob`]: the child as the executor uses it.
//!
//! Bulk data (replica, gradient, samples) lies in memory that the child made and gave a descriptor of (`memfd`). The child maps it; this side
//! reads and writes it as files, so nothing here is `unsafe`, and a copy is made at each crossing. Only one side works at a time: every
//! request is answered before the next.
//!
//! Next on a job's path: `job.rs`, then the Python side, `python/ebb/worker.py`.

mod cache;
mod child;
mod environment;
mod frame;
mod job;
mod layout;
mod memory;
mod output;
mod package;
mod secrets;

pub use cache::{Cache, Held};
pub use secrets::SecretError;
pub use job::{TorchError, TorchJob, TorchStart};
pub use layout::Lengths;
