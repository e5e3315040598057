//! What goes into a session and what comes out of it. Only names: what is in gradients and replicas is its driver's.

use crate::message::{CheckpointId, Due, Envelope, Membership, Need, NodeSums, Peer, RankMetrics, Tag};
use crate::shard::{ReplicaChecksum, ShardWritten};
use crate::stride::Stops;
use events_schema::fact::{Entry, Proposal};
use events_schema::job::Determinism;
use events_schema::report::Metrics;
use events_schema::stride::Stride;
use events_schema::{Generation, Rank, Step};

/// What never changes during a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// This executor.
    pub me: Peer,
    /// Logical workers W of the job.
    pub workers: u16,
    /// Where updates end: at the last step of the job, and where something is due. Checkpoints that go by time are none of it: whoever leads says
    /// by [`Input::Due`] when.
    pub stops: Stops,
    /// Newcomers follow, so many updates behind at the most; none where the replica is so small that it is sent when they come in.
    pub behind_max: Option<u64>,
    /// What the replica of a step may depend on.
    pub determinism: Determinism,
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// The controller proposes a membership.
    Proposal(Proposal),
    /// Whether the controller wants a checkpoint and then no more steps. Taken back, it makes the next round step again: who stands still
    /// does so until there is one.
    Park(bool),
    /// This executor has to leave.
    Leave,
    /// It has to leave, and the boundary is too far away: it goes in the middle of the step, if somebody stays; and in the middle
    /// of [`Output::Load`] in any case.
    LeaveEarly,
    /// An authenticated link to a peer is up.
    Linked(Peer),
    /// The link to a peer is gone.
    Lost(Peer),
    /// A peer said something.
    Message(Peer, Envelope),
    /// [`Output::Load`] is done for this generation; the replica is at this step.
    Loaded(Generation, Step),
    /// [`Output::Warm`] is done for this generation.
    Warmed(Generation),
    /// [`Output::Await`] is over: the replica is whole and at this step.
    Supplied(Step),
    /// A newcomer that follows holds the replica of this step; whether nothing that has arrived brings it further.
    Followed(Step, bool),
    /// This member's ranks are evaluated at this step's replica.
    Evaluated(Step, Vec<RankMetrics>),
    /// What is due at the next boundary that this member announces, if it leads. Holds until the next [`Input::Computed`].
    Due(Due),
    /// [`Output::Checksum`] is done: the checksum of the replica at that boundary.
    Checksum(CheckpointId, ReplicaChecksum),
    /// This member's sums of the step are computed; their data may already be on its way.
    Computed(Step, Vec<NodeSums>),
    /// The step's mean gradient is here, and the update not yet applied.
    Summed(Step),
    /// The step's gradient was whole and the update is applied: the replica is at the step after it, as [`Stops`] says.
    Completed(Step),
    /// This member's shard is in the store.
    ShardWritten(ShardWritten),
    /// The manifest of this checkpoint is in the store.
    Saved(CheckpointId),
}

/// What to do, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// Link up with a peer. (Of two, the one with the higher number does.)
    Connect(Peer, String),
    /// Say something to a peer; without a link it is lost.
    Send(Peer, Envelope),
    /// Make the replica, then [`Input::Loaded`].
    Load(Generation, Entry),
    /// A newcomer: have the data of these ranks ready around this step, for updates of so many, then [`Input::Warmed`].
    Warm(Generation, Vec<Rank>, (Step, Stride)),
    /// A member: these ranks will probably be its own soon, in updates of so many steps.
    Prefetch(Vec<Rank>, Stride),
    /// The step in flight is void. Sums already computed for it stay right.
    Abandon,
    /// This membership is in force from this step on.
    Enter(Membership, Step),
    /// What is missing to be at the entered step arrives from peers: do not compute before, then [`Input::Supplied`].
    Await(Need),
    /// Send part `index` of `count` of the replica (of the entered step) to each of these.
    SendReplica {
        /// Who gets it.
        to: Vec<Peer>,
        /// Which part.
        index: usize,
        /// How many parts.
        count: usize,
    },
    /// Send the last gradient (that led to the entered step) to each of these.
    SendGradient(Vec<Peer>),
    /// A newcomer: the replica of this step arrives under this tag, then the gradient of each later update, of this stride. [`Input::Followed`] for each that is whole.
    Follow(Tag, Step, Stride),
    /// A newcomer that follows is in: what is under way brings it to the entered step, then [`Input::Supplied`].
    CatchUp,
    /// Send part `index` of `count` of the replica as it is now, at `step`, to each of these, beside the steps that change it.
    SendReplicaAside {
        /// Who gets it.
        to: Vec<Peer>,
        /// Under which tag.
        tag: Tag,
        /// The replica's step.
        step: Step,
        /// Which part.
        index: usize,
        /// How many parts.
        count: usize,
    },
    /// Send part `index` of `count` of the gradient that leads to `step` to each of these, beside the update.
    SendMean {
        /// Who gets it.
        to: Vec<Peer>,
        /// Under which tag.
        tag: Tag,
        /// The step it leads to.
        step: Step,
        /// Which part.
        index: usize,
        /// How many parts.
        count: usize,
    },
    /// Compute this member's part of a step (and evaluate before it, where due), then [`Input::Computed`].
    Compute(Step),
    /// Every member's scalars of the step in flight. With the reduced gradient they complete it: [`Input::Completed`].
    Contributed(Step, Vec<NodeSums>),
    /// Write part `index` of `count` of the replica as it is now, then [`Input::ShardWritten`].
    WriteShard {
        /// Of which.
        checkpoint: CheckpointId,
        /// Which part.
        index: u16,
        /// How many parts.
        count: u16,
    },
    /// The leader: all shards are there and agree; write the manifest, then [`Input::Saved`].
    WriteManifest(CheckpointId, Vec<ShardWritten>),
    /// Take the checksum of the replica as it is now, beside the training, then [`Input::Checksum`]. One that is left out is missed by nobody.
    Checksum(CheckpointId),
    /// The leader: replicas differ, so at least one member computes wrongly. Nobody knows what its gradients have spoiled since all were equal.
    Diverged {
        /// At which boundary, of which membership.
        at: CheckpointId,
        /// Members that differ from more than half of all; none if there is no such majority.
        minority: Vec<Peer>,
    },
    /// No more steps: parked, or the job's last one is done (evaluate it, where due).
    StandStill(Step),
    /// The leader: the generation is in force from this step on. Members that came without a replica are being sent it.
    Active(Generation, Step),
    /// This member came into the generation without a replica, and holds it now, of this step.
    Held(Generation, Step),
    /// The leader: a newcomer is so many steps behind, and falls further: it does not follow any more.
    FallsBehind(Peer, u64),
    /// The leader: a member left by consent; first step without it.
    Departed(Peer, Generation, Step),
    /// The leader: the whole evaluation of this step.
    Evaluation(Step, Metrics),
    /// Exit with status 0.
    Exit,
    /// Exit in the middle of the step in flight, or before the first: who stays computes it without this member.
    ExitEarly,
    /// No member has a replica left: exit, so that the job goes back to a checkpoint.
    ExitWithoutReplica,
    /// A peer breaks the protocol: cut the link.
    Disconnect(Peer),
}
