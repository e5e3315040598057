//! The membership protocol of one job's executors, without I/O: who steps together, when that changes, what is done about the dead.
//!
//! Pure: no clock, no chance, no sockets, no hash order, no logging. The executor's shell turns what arrives into [`Input`]s,
//! gives them to [`Session::handle`] and performs the [`Output`]s in order. Gradients and replicas never pass through here; only
//! what is known about them does.
//!
//! Reading order: [`message`] (what members say), [`event`] (inputs and outputs), [`state`] (the machine), `start_round.rs` (how a
//! generation begins: fresh, from a checkpoint, after a loss), `recover.rs` (whose replica counts), `switch.rs` (how a running
//! generation changes at a boundary), `follow.rs` (how a newcomer comes to hold the replica before that), `leave.rs` (who goes in the middle of a step), `save.rs` (what a checkpoint and an evaluation need from everybody), `compare.rs` (whose replica is not like
//! the others'), [`stride`] (where an update ends that takes several steps at once).
//! Next on a step's path: `workers/executor/src/trainer.rs`.
//!
//! Three rules carry the whole safety argument:
//! 1. Only a proposal of the controller, or the announcement on the leader's own contribution to a step, changes membership.
//! 2. No step completes without a contribution from every member of the membership it was begun in.
//! 3. Hence two members are never more than one step apart, and the one ahead holds the gradient that the other lacks.
//!
//! Next on a job's path: `storage/src/loader.rs`.

pub mod event;
pub mod message;
pub mod shard;
pub mod state;
pub mod stride;

mod compare;
mod follow;
mod leave;
mod recover;
mod save;
mod start_round;
mod switch;

pub use event::{Config, Input, Output};
pub use message::{
    Announcement, CheckpointId, Contribution, Due, Envelope, Follower, Holding, Lagging, Membership, Message, Need,
    NodeSums, Peer, RankMetrics, Seat, Tag,
};
pub use shard::{PartDigests, ReplicaChecksum, ShardWritten};
pub use state::Session;
pub use stride::{Stops, stride_between};
