//! Models that their users wrote in PyTorch. An executor stays what it is for every other model: protocol, network, reduction, checkpoints
//! and the order of data are its own. Only gradients and updates are computed by a child process that runs the user's Python.
//!
//! Their code comes as one object (`storage/src/code.rs`). `package.rs`: the Python package `ebb`,
//! which is part of this program. [`TorchJob`]: the child as the executor uses it. `child.rs`: how it comes and goes, `computing.rs`: what processor time it uses; [`warm`]: forked from a process that has imported
//! torch, where the agent has one. [`frame`]: what is said to either, over a socket pair. `variables.rs`: what it finds in its environment, `secrets.rs` what of that is its operator's.
//! `batches.rs`: where rows of Ebb's datasets are put for it; `replica.rs`: where its replica is read and written. `prepare.rs`: what is there before, `provision.rs`: for a whole program; `environment.rs`: what a job's requirements are built to, and `build_site.rs`: with what rights. `cache.rs`: what executors of a server share on its disk; `checked.rs`: which programs it has checked. `output.rs`, `memory.rs` and
//! `ending.rs`: what the process says and takes, and why it ended. [`isolation`]: which files it can reach; `own_folder.rs`: where it may write.
//!
//! Gradients lie in segments that this side makes and both map (`workers/memory`): the child computes them there, and updates by a mean that
//! was summed there. Replica and samples lie in memory that the child made and gave a descriptor of (`memfd`); this side reads and writes it as a
//! file, which is a copy, and none of a step: samples are written before it begins. Only one side works at a time, but for four cases: the next
//! samples are written beside those that the child reads; a checkpoint is read beside a gradient, which leaves the replica alone; the child applies an update while this side goes on, and leaves the mean alone until the next answer; and it tells of stretches of a gradient that are final while it
//! computes others, which this side then reads through the segment's file.
//!
//! Next on a job's path: `job.rs`, then the Python side, `python/ebb/worker.py`.

mod answers;
mod batches;
mod build_site;
mod cache;
mod checked;
mod child;
mod computing;
mod ending;
mod environment;
pub mod frame;
pub mod isolation;
mod job;
mod layout;
mod memory;
mod memory_group;
mod output;
mod own_folder;
mod package;
mod prepare;
mod provision;
mod replica;
mod secrets;
mod spawn;
mod variables;
pub mod warm;

pub use batches::{AHEAD_PLACES, Addend, Batch, BatchMemory, DIRECT_PLACE, Following};
pub use cache::{CACHE_MIB_DEFAULT, Cache, Held};
pub use computing::ComputingProcess;
pub use ending::by_signal;
pub use isolation::{Isolation, IsolationError, Reach};
pub use job::{Initial, OnPart, RateFactors, TorchError, TorchEvaluation, TorchJob, TorchStart};
pub use layout::{Lengths, OwnRows, StartTimes};
pub use memory::{Exceeded, MemoryBound, kernel_kills};
pub use output::Output;
pub use own_folder::OwnFolder;
pub use provision::Provision;
pub use replica::ReplicaReader;
pub use secrets::SecretError;
pub use spawn::{never_starts, spawn};
pub use variables::{NONCE as NONCE_VARIABLE, VISIBLE_DEVICES as VISIBLE_DEVICES_VARIABLE, given as given_variables};
