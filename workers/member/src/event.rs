//! What goes into the machine and what comes out of it. Only names: of peers, links, buffers, units.
//!
//! `P` is the payload of a bulk message: elements that a peer sent. The machine moves it and never looks inside.

use crate::reduce::Action;
use events_schema::fact::{Entry, Proposal};
use events_schema::job::{CheckpointInterval, Determinism};
use events_schema::orders::Telemetry;
use events_schema::report::Report;
use events_schema::stride::Stride;
use events_schema::tree::Node;
use events_schema::{Digest, Generation, JobId, Rank, Step, WriterToken};
use std::fmt;
use std::ops::Range;
use std::time::Duration;
pub use workers_session::Need;
use workers_session::{CheckpointId, Envelope, Peer, RankMetrics, ReplicaChecksum, ShardWritten, Stops, Tag};

/// What never changes while an executor lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The job.
    pub job: JobId,
    /// This executor.
    pub me: Peer,
    /// Logical workers W of the job.
    pub workers: u16,
    /// What its replicas may depend on: whether a gradient is of one worker, or of all that a member hosts.
    pub determinism: Determinism,
    /// Steps of the whole job.
    pub steps_total: u64,
    /// Steps of one pass over the dataset; at least 1.
    pub steps_per_epoch: u64,
    /// Rows of the training dataset.
    pub rows: u64,
    /// Samples of one rank in a full step.
    pub batch_size: u32,
    /// How often a checkpoint is written.
    pub checkpoint: CheckpointInterval,
    /// Steps between two comparisons of replicas; none: as often as costs little.
    pub compare_every: Option<u64>,
    /// How often every replica of the job was lost when this executor began.
    pub restarts: u32,
    /// How long the job stands still for its store, as its spec says.
    pub store_patience: Duration,
    /// Steps between two evaluations and parts of one rank's; none when the job is not evaluated.
    pub evaluation: Option<Evaluation>,
    /// Elements of a gradient, with what else travels in its sum.
    pub gradient_len: usize,
    /// Elements at the beginning of the replica that computing needs; the rest only an update does.
    pub compute_len: usize,
    /// Elements of the replica.
    pub replica_len: usize,
    /// Updates that a newcomer may be behind while it follows, as [`crate::behind_max`] says; none where it does not follow.
    pub behind_max: Option<u64>,
    /// Elements of one bulk message at most. Every member's is the same, because pieces are summed as they are sent.
    pub piece_elements: usize,
}

/// How a job is evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Evaluation {
    /// Steps between two.
    pub every_steps: u64,
    /// Parts into which one rank's share of the held-out set is cut; each is a unit.
    pub parts: u64,
}

impl Config {
    /// Whether the replica of this step is evaluated before it is trained on.
    #[must_use]
    pub fn evaluates_at(&self, step: Step) -> bool {
        let due = |every: u64| step.0 > 0 && (step.0.is_multiple_of(every.max(1)) || step.0 == self.steps_total);
        self.evaluation.is_some_and(|e| due(e.every_steps))
    }

    /// Samples that all ranks together read in an update.
    #[must_use]
    pub fn samples_of(&self, step: Step, stride: Stride) -> u64 {
        let of_step = u64::from(self.workers) * u64::from(self.batch_size);
        let (full, in_epoch) = (of_step * stride.steps(), step.0 % self.steps_per_epoch.max(1));
        let last = in_epoch + stride.steps() >= self.steps_per_epoch.max(1);
        if last { self.rows.saturating_sub(in_epoch * of_step).min(full) } else { full }
    }

    /// Where updates end that would take more steps.
    #[must_use]
    pub fn stops(&self) -> Stops {
        Stops {
            epoch: Some(self.steps_per_epoch),
            evaluation: self.evaluation.map(|evaluation| evaluation.every_steps),
            comparison: self.compare_every,
            checkpoint: self.checkpoint.steps(),
            total: self.steps_total,
        }
    }
}

/// One link, of all that there ever were between this executor and a peer. Numbers rise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkId {
    /// Who is at the other end.
    pub peer: Peer,
    /// Higher for a link made later.
    pub number: u64,
}

/// What a bulk message is a stretch of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// One tree node's gradient sum, for the owner of its chunk.
    Partial(Node),
    /// The whole sum, from its owner.
    Reduced,
    /// The replica, for a newcomer or laggard.
    Replica,
    /// The last mean gradient, for a laggard.
    Gradient,
}

/// What a bulk message says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bulk {
    /// Of what.
    pub kind: Kind,
    /// The membership it is sent in.
    pub tag: Tag,
    /// The step it belongs to.
    pub step: Step,
    /// First element of the stretch.
    pub offset: u64,
    /// Elements in it.
    pub elements: usize,
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "a field without a comment is what its name and type say")]
pub enum In<P> {
    /// The controller proposes a membership.
    Proposal(Box<Proposal>),
    /// Whether the controller wants a checkpoint and then no more steps. Taken back, it makes the next round step again: who stands still
    /// does so until there is one.
    Park(bool),
    /// This executor has to leave, by consent, and is killed after so long.
    Leave(Duration),
    /// This executor is let go by a proposal that it was told, or is about to be, and is killed after so long.
    Deadline(Duration),
    /// An authenticated link is up. Until [`Out::Use`] nothing is said on it.
    Linked(LinkId),
    /// A dial was given up.
    Refused(Peer),
    /// A link ended, or nothing came on it for too long.
    Lost(LinkId),
    /// A peer said something.
    Message {
        /// On which link.
        link: LinkId,
        envelope: Envelope,
        /// Size of it on the wire.
        bytes: usize,
    },
    /// A stretch of bulk data.
    Bulk {
        /// On which link.
        link: LinkId,
        /// What it is.
        bulk: Bulk,
        /// The elements.
        payload: P,
    },
    /// [`Out::Load`] is done: a replica of this step is at hand.
    Loaded(Generation, Step),
    /// [`Out::Warm`] is done.
    Warmed(Generation),
    /// [`Out::MakeRoom`] is done, or there is no more memory.
    RoomMade,
    /// [`Out::Checksum`] is done.
    Checksum {
        /// Of the replica at this boundary.
        at: CheckpointId,
        checksum: ReplicaChecksum,
        /// How long computing it took.
        took: Duration,
    },
    /// [`Out::Compute`] is done.
    Done(Done),
    /// [`Out::Write`] is done.
    Written(Written),
    /// [`Out::Write`] failed, the store's own retries included.
    NotWritten {
        /// The checkpoint; none for the final model.
        checkpoint: Option<CheckpointId>,
        /// Whether the store may take it later; otherwise it never will.
        later: bool,
    },
    /// Nobody can compute this job, for this reason. Also in the place of [`In::Done`] or [`In::Loaded`].
    Broken(String),
    /// The time of [`Out::WakeAt`] has come.
    Wake,
    /// Nothing else waits, so a unit may be computed.
    Free,
}

/// A computed unit.
#[derive(Debug, Clone, PartialEq)]
pub enum Done {
    /// [`Unit::Evaluate`]: what this part adds.
    Evaluated(RankMetrics),
    /// [`Unit::Gradient`]: the sum of this rank's leaf is at hand; these are its scalars.
    Gradient {
        /// Summed weight of the samples.
        weight: f64,
        /// Summed loss of the samples.
        loss: f64,
        /// For how long its samples were waited for.
        data_wait: Duration,
        /// How long it took whoever computed it beside another one, if it lay ready; else it took since it was asked for.
        took: Option<Duration>,
    },
    /// [`Unit::Update`]: the replica is at the next step.
    Updated,
}

/// What stands in the store now.
#[derive(Debug, Clone, PartialEq)]
pub enum Written {
    /// This member's shard.
    Shard(ShardWritten),
    /// A checkpoint's manifest.
    Manifest(CheckpointId, Saved),
    /// The final model; the digest of its parameters.
    Model(Digest),
}

/// A complete checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    /// What its objects are named by, beside the checkpoint's generation and step.
    pub writer: WriterToken,
    /// Digest of the whole replica.
    pub replica_digest: Digest,
    /// Bytes of all shards.
    pub bytes: u64,
}

/// Something to compute: short, and done before anything else is handled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Unit {
    /// One part of one rank's share of the held-out set, at the replica of this step.
    Evaluate {
        /// The replica's step.
        step: Step,
        /// The rank.
        rank: Rank,
        /// Which part, from 0.
        part: u64,
    },
    /// One rank's gradient, into the buffer of its leaf: of the samples of [`crate::Member::workers_of`].
    Gradient {
        /// The step.
        step: Step,
        /// So many steps' samples.
        stride: Stride,
        /// The rank.
        rank: Rank,
    },
    /// The update of this step. The gradient is kept as the last one.
    Update {
        /// The step.
        step: Step,
        /// The replica is so many steps further afterwards.
        stride: Stride,
        /// What to apply.
        from: GradientFrom,
    },
}

/// Where the gradient of an update is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum GradientFrom {
    /// The whole sum, of which [`Out::MakeMean`] was just before.
    Sum,
    /// What a peer supplied; it is a mean already.
    Supply,
}

/// A stretch of the replica, or of the last mean gradient, for a peer. It goes out in pieces of at most
/// [`Config::piece_elements`]; without a link it is lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateTransfer {
    /// Who gets it.
    pub to: Peer,
    /// Of what.
    pub of: Need,
    /// The membership it is sent in.
    pub tag: Tag,
    /// The step it belongs to.
    pub step: Step,
    /// Which elements; the same numbers there.
    pub range: Range<usize>,
}

/// Memory that a growth will need, and that is better touched before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// For a replica that peers send, and for the gradients that follow it.
    Replica,
    /// For a copy of so many elements of the replica, which newcomers are sent, and for gradients that are sent while the next one is computed.
    Aside {
        /// Of all stretches together.
        elements: usize,
    },
}

/// What is to be written to the store.
#[derive(Debug, Clone, PartialEq)]
pub enum Task {
    /// A part of the replica as it is now.
    Shard {
        /// Of which checkpoint.
        checkpoint: CheckpointId,
        /// Which part.
        index: u16,
        /// Of how many.
        count: u16,
    },
    /// What makes shards a checkpoint.
    Manifest(CheckpointId, Vec<ShardWritten>),
    /// The final model.
    Model,
}

impl Task {
    /// Of which checkpoint; none for the final model.
    #[must_use]
    pub fn checkpoint(&self) -> Option<CheckpointId> {
        match self {
            Self::Shard { checkpoint, .. } | Self::Manifest(checkpoint, _) => Some(*checkpoint),
            Self::Model => None,
        }
    }
}

/// What to do with a stretch of a gradient that is final while the rest is still computed, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Part<P> {
    /// The same as [`Out::Join`], which comes later for what is left: these elements of a node's sum are those of its two halves, left plus right. Of the
    /// gradient that is computed only elements that were said to be final are asked for.
    Join(Node, Range<usize>),
    /// The same as [`Out::Reduce`]; of sums that are not whole yet only stretches are asked for that are.
    Reduce(Tag, Step, Action<P>),
}

/// What to do, in order.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "a field without a comment is what its name and type say")]
pub enum Out<P> {
    /// Dial a peer; [`In::Linked`] or [`In::Refused`] follows.
    Dial(Peer, String),
    /// From now on this link is the one to its peer.
    Use(LinkId),
    /// End this link and forget it; nothing more is taken from it.
    Cut(LinkId, Cause),
    /// Say something to a peer; without a link it is lost.
    Say(Peer, Envelope),
    /// Send a stretch of the replica or of the last gradient.
    Send(StateTransfer),
    /// Send a copy of these stretches of the replica, as they are now, in [`Kind::Replica`] messages. They are copied beside the training, which changes the replica
    /// meanwhile; without a link they are lost.
    SendAside {
        /// Who gets them.
        to: Vec<Peer>,
        /// The tag that they are sent under.
        tag: Tag,
        /// The replica's step.
        step: Step,
        ranges: [Range<usize>; 2],
    },
    /// Part of the reduction of this step in this membership.
    Reduce(Tag, Step, Action<P>),
    /// A step begins: have room for the whole sum. Alone, the root's own sum will be it.
    Begin {
        /// Whether there are no other members.
        alone: bool,
    },
    /// The sum of a node is the sum of its two halves, left plus right; those are no longer needed.
    Join(Node),
    /// The sum of this node is no longer needed.
    Release(Node),
    /// The whole sum, divided by this weight of all samples of the step, is the last gradient from here on: peers are sent it, and the update that
    /// follows applies it.
    MakeMean {
        /// Of all samples of the step.
        weight: f64,
    },
    /// Compute a unit now; [`In::Done`] is the next input.
    Compute(Unit),
    /// Make a replica (from a checkpoint, or the job's first), then [`In::Loaded`].
    Load(Generation, Entry),
    /// What was loaded is the replica now.
    Adopt(Step),
    /// Have room for what peers supply. A replica that is awaited takes the place of the one that is here.
    Expect(Need),
    /// These elements are part of what is supplied.
    Fill {
        /// First element.
        offset: usize,
        /// The elements.
        payload: P,
    },
    /// The supplied replica is whole: it is the replica now.
    Supplied(Step),
    /// What is supplied is not awaited any more.
    Unexpect,
    /// Make room beside whatever else is done, then [`In::RoomMade`].
    MakeRoom(Room),
    /// Have the data of these ranks ready around this step, for updates of so many at the most, then [`In::Warmed`].
    Warm(Generation, Vec<Rank>, (Step, Stride)),
    /// These ranks are read next, from this step on, so many steps for an update at the most.
    Prefetch(Vec<Rank>, (Step, Stride)),
    /// Write something beside the training, then [`In::Written`] or [`In::NotWritten`].
    Write {
        task: Task,
        /// Whether it may not be left out when the store is slow.
        needed: bool,
    },
    /// Take the checksum of the replica as it is now, beside the training, then [`In::Checksum`]. May be left out when a part of it is being copied.
    Checksum(CheckpointId),
    /// Tell the controller.
    Report(Report),
    /// Tell whoever looks.
    Telemetry(Telemetry),
    /// Give [`In::Wake`] at this time. The newest such output stands for all before it.
    WakeAt(Duration),
    /// The process ends.
    Exit(Exit),
}

/// Why the machine cuts a link; for the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// There is a newer one to the same peer.
    #[error("a newer link to the same executor took its place")]
    Replaced,
    /// More links than a job has executors.
    #[error("more executors are linked than a job can have")]
    TooMany,
    /// Said or sent what no correct peer can.
    #[error("it said what no correct executor can say at this point")]
    Breach,
    /// Bulk data for a future that is too far away, or more of it than fits.
    #[error("it sent more, ahead of time, than a correct executor can")]
    TooFarAhead,
}

/// How the process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// As asked: status 0.
    Left,
    /// As asked, in the middle of a step, because the others go on without what it was at.
    LeftEarly,
    /// No member has a replica: the job goes back to a checkpoint.
    NoReplica,
    /// The store refused for longer than the machine waits for it.
    NotSaved,
    /// Replicas differ: nobody may go on from what is here.
    Diverged,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Left => "as asked",
            Self::LeftEarly => "as asked, in the middle of a step that would last too long",
            Self::NoReplica => "no member has a replica, and the job goes back to a checkpoint",
            Self::NotSaved => "the store refused for longer than it is waited for",
            Self::Diverged => "replicas differ, and the job goes back to a checkpoint",
        })
    }
}
