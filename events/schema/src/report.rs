//! What was seen: changes that agents and executors report. Heartbeats and step telemetry are not here; they never reach the log.
//!
//! An agent numbers its reports within its incarnation and repeats them until acknowledged; a number seen before has no effect.

use crate::device::SlotDevice;
pub use crate::exit::{CodeEndedAt, ExitCause};
use crate::fact::{Blamed, StallCause, StragglerCause};
pub use crate::outcome::{MEASURE_NAME_BYTES_MAX, MEASURES_MAX, Mean, Metrics, Outcome, PREDICTIONS_MAX};
use crate::slot_type::{SlotType, TypeTime};
use crate::spread::Spread;
use crate::stride::Stride;
use crate::{Digest, ExecutorId, Generation, JobId, ServerId, SlotId, Step, TimeMs, TraceContext, WriterToken};
use minicbor::{Decode, Encode};
use std::collections::BTreeMap;

/// One record of the `reports` stream.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct ReportRecord {
    /// Who saw it; taken from the agent's authenticated stream, never from a body.
    #[n(0)]
    pub server: ServerId,
    /// The agent process, a random number of its start.
    #[n(1)]
    pub incarnation: u64,
    /// The report's place within the incarnation, from 1. The controller's own observations (`AgentGone`) carry 0.
    #[n(2)]
    pub number: u64,
    /// When the agent saw it.
    #[n(3)]
    pub at: TimeMs,
    /// What was seen.
    #[n(4)]
    pub report: Report,
    /// What led to it; decides nothing.
    #[n(5)]
    pub trace: Option<TraceContext>,
    /// The number of the one that the agent said before it on its stream; 0, it is the first there, and what has lower numbers was taken, or left
    /// out by the agent. Where that one is not taken yet it was lost on its way, and this one has to wait until both are said again. Filled in by
    /// the controller that writes it down; earlier builds did not.
    #[n(6)]
    pub after: Option<u64>,
}

/// What an agent or executor saw.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
#[allow(missing_docs, reason = "a field without a comment is what its name and type say")]
pub enum Report {
    /// A new agent process; executors of an earlier one are gone (it reaped or killed them before saying so).
    #[n(0)]
    AgentJoined {
        /// Slots it holds, numbered from 0.
        #[n(0)]
        slots: u16,
        /// Digest of the known-answer test: the numeric class of its executors.
        #[n(1)]
        class: Digest,
        /// Where fleets reach it directly (`http://HOST:PORT`).
        #[n(2)]
        address: String,
        /// The devices that its first slots are, in the order of the slots; the other slots have none. Earlier builds did not say any.
        #[n(3)]
        #[cbor(skip_if = "Vec::is_empty")]
        devices: Vec<SlotDevice>,
        /// Its slots whose devices are not as they should be, and what is wrong with them: they are not free.
        #[n(4)]
        #[cbor(skip_if = "BTreeMap::is_empty")]
        quarantined: BTreeMap<u16, String>,
        /// Whether each of its slots has a guest slot ([`SlotId::guest`]). Earlier builds had none.
        #[cbor(n(5), default, skip_if = "crate::fact::is_not")]
        guests: bool,
        /// The type of its devices, or of all its slots where it has none.
        #[n(6)]
        slot_type: Option<SlotType>,
    },
    /// The stream to an agent ended and it did not come back within its lease. Seen by the controller's server.
    #[n(1)]
    AgentGone,
    /// An executor is built, listens to its peers and can join a generation.
    #[n(2)]
    ExecutorReady {
        #[n(0)]
        executor: ExecutorId,
        /// Where peers reach it (`HOST:PORT`).
        #[n(1)]
        address: String,
        /// What the bits of its job's own code depend on here; none of a model of Ebb's, for which its server's says all. Not said by earlier builds.
        #[n(2)]
        class: Option<Digest>,
        /// Bytes of its job's replica; none of a whole program. Not said by earlier builds.
        #[n(3)]
        replica_bytes: Option<u64>,
        /// Bytes of a gradient of it; none of a whole program. Not said by earlier builds.
        #[n(4)]
        gradient_bytes: Option<u64>,
    },
    /// An executor's process is reaped and its slot free.
    #[n(3)]
    ExecutorGone {
        #[n(0)]
        executor: ExecutorId,
        /// The slot it was on.
        #[n(1)]
        slot: SlotId,
        /// How it ended.
        #[n(2)]
        exit: ExitCause,
    },
    /// A generation is in force from this step on; members that came without a replica are being sent it. From its leader.
    #[n(4)]
    GenerationActive {
        #[n(0)]
        job: JobId,
        #[n(1)]
        generation: Generation,
        /// First step it computes.
        #[n(2)]
        step: Step,
        /// From the boundary (or the loss of a member) until it was in force, in microseconds.
        #[n(3)]
        pause_us: u64,
    },
    /// A member left its generation by itself at a boundary (direct take-back); the others went on. From the leader.
    #[n(5)]
    MemberDeparted {
        #[n(0)]
        job: JobId,
        /// The generation it left.
        #[n(1)]
        generation: Generation,
        /// Who left.
        #[n(2)]
        executor: ExecutorId,
        /// Who leads from here on.
        #[n(3)]
        leader: ExecutorId,
        /// First step without it.
        #[n(4)]
        step: Step,
    },
    /// What earlier builds said of a checkpoint: it names an object instead of who wrote it, so it has no effect any more.
    #[n(6)]
    CheckpointWritten {
        #[n(0)]
        job: JobId,
        /// The generation in force when it was complete; that of another one does not count.
        #[n(1)]
        generation: Generation,
        /// The replica's step.
        #[n(2)]
        step: Step,
        /// Key of the manifest.
        #[n(3)]
        manifest_key: String,
        /// Digest of the whole replica.
        #[n(4)]
        replica_digest: Digest,
        /// Size of all shards.
        #[n(5)]
        bytes: u64,
    },
    /// The last step is done and the final model in the store. From the leader.
    #[n(7)]
    JobCompleted {
        #[n(0)]
        job: JobId,
        /// The generation that finished.
        #[n(1)]
        generation: Generation,
        /// How it ended.
        #[n(2)]
        outcome: Outcome,
    },
    /// The job cannot go on whatever is done: missing object, wrong checksum, model does not fit the dataset.
    #[n(8)]
    JobBroken {
        #[n(0)]
        job: JobId,
        /// Where it broke.
        #[n(1)]
        generation: Generation,
        /// For its user: what, where, and what to do.
        #[n(2)]
        reason: String,
    },
    /// A fleet took a slot back directly at the agent; from now on it is not offered.
    #[n(9)]
    SlotTakenBack {
        #[n(0)]
        slot: SlotId,
        /// How long before this the fleet asked for it, or the lease of the agent's controller ended, by the agent's clock; none if the agent does not know (any more).
        #[n(1)]
        asked_ms: Option<u64>,
        /// Within what time from then it was to be free.
        #[n(2)]
        within_ms: Option<u64>,
    },
    /// Evaluation at a boundary. From the leader.
    #[n(10)]
    Evaluated {
        #[n(0)]
        job: JobId,
        /// Which generation.
        #[n(1)]
        generation: Generation,
        /// The replica's step.
        #[n(2)]
        step: Step,
        /// What came out.
        #[n(3)]
        metrics: Metrics,
    },
    /// What [`Report::PeersMissing`] was in earlier builds. Nobody says it any more, but logs hold it: a controller that takes over a log
    /// of such a build decides about reports that stand there undecided, so it is still taken.
    #[n(11)]
    PeerLost {
        #[n(0)]
        job: JobId,
        /// The generation both are in.
        #[n(1)]
        generation: Generation,
        /// The other one.
        #[n(2)]
        executor: ExecutorId,
    },
    /// A member has had no link to others for a while, though nobody said that they are gone. From any member of any generation, also
    /// one that the controller has not heard to be in force or has given up: who says so stands still in it.
    #[n(12)]
    PeersMissing {
        #[n(0)]
        job: JobId,
        /// The generation in which they are missed.
        #[n(1)]
        generation: Generation,
        /// Departures by consent since it began.
        #[n(2)]
        revision: u32,
        /// The step in flight.
        #[n(3)]
        step: Step,
        /// Who misses them.
        #[n(4)]
        by: ExecutorId,
        /// Who is missed.
        #[n(5)]
        peers: Vec<ExecutorId>,
        /// Whether the generation was in force; otherwise its members are still linking up.
        #[n(6)]
        begun: bool,
    },
    /// A member that came into its generation without a replica holds it now. From itself.
    #[n(13)]
    ReplicaHeld {
        #[n(0)]
        executor: ExecutorId,
        /// The generation it came into.
        #[n(1)]
        generation: Generation,
        /// The replica's step.
        #[n(2)]
        step: Step,
    },
    /// The first step of a generation is complete: its members train. From its leader.
    #[n(14)]
    GenerationStepped {
        #[n(0)]
        job: JobId,
        #[n(1)]
        generation: Generation,
        /// The replica's step now.
        #[n(2)]
        step: Step,
        /// From the boundary (or the loss of a member) to the end of its first update, in microseconds.
        #[n(3)]
        first_step_us: u64,
        /// As many steps of the generation before, in microseconds, by the median of its last few updates. None before there are any.
        #[n(4)]
        usual_step_us: Option<u64>,
        /// How many members did those usual steps; an earlier build does not say.
        #[n(5)]
        usual_members: Option<u16>,
        /// Steps that the first update took.
        #[cbor(n(6), default, skip_if = "Stride::is_one")]
        stride: Stride,
    },
    /// A job makes no progress. Seen by the controller's watch, from what all its executors say of themselves.
    #[n(15)]
    JobStalled {
        #[n(0)]
        job: JobId,
        /// The step that does not end.
        #[n(1)]
        step: Step,
        /// What its members wait for.
        #[n(2)]
        cause: StallCause,
        /// Who holds up the others.
        #[n(3)]
        blamed: Vec<Blamed>,
    },
    /// An object of a checkpoint that was to be loaded is gone or not what was written. From the member that read it, twice.
    #[n(16)]
    CheckpointDamaged {
        #[n(0)]
        job: JobId,
        /// The generation that wrote it.
        #[n(1)]
        generation: Generation,
        /// The replica's step.
        #[n(2)]
        step: Step,
        /// Key of the object that is damaged, for people.
        #[n(3)]
        object: String,
        /// What is wrong with it.
        #[n(4)]
        reason: String,
    },
    /// All shards and the manifest of a checkpoint are in the store. From the leader.
    #[n(17)]
    CheckpointSaved {
        #[n(0)]
        job: JobId,
        /// The generation in force when it was complete; that of another one does not count.
        #[n(1)]
        generation: Generation,
        /// The replica's step.
        #[n(2)]
        step: Step,
        /// The generation that its objects are named by: the one that began it.
        #[n(3)]
        written_in: Generation,
        /// The token of that generation: together with job, generation and step it names every object.
        #[n(4)]
        writer: WriterToken,
        /// Digest of the whole replica.
        #[n(5)]
        replica_digest: Digest,
        /// Size of all shards.
        #[n(6)]
        bytes: u64,
        /// Of a gang: whether its program has ended because it was asked to, and this is what it left. Absent: no gang, or of an earlier build.
        #[n(7)]
        stands_still: Option<bool>,
    },
    /// The checkpoint that was to be loaded is whole, but of a format that this build cannot read. From the member that tried.
    #[n(18)]
    CheckpointUnreadable {
        #[n(0)]
        job: JobId,
        /// The generation that wrote it.
        #[n(1)]
        generation: Generation,
        /// The replica's step.
        #[n(2)]
        step: Step,
        /// Which build can read it, and what to do.
        #[n(3)]
        reason: String,
    },
    /// Objects that nothing counts were deleted from the store. Seen by the controller's server; agents may not say it.
    #[n(19)]
    ObjectsSwept {
        /// How many.
        #[n(0)]
        objects: u64,
        /// Their size.
        #[n(1)]
        bytes: u64,
    },
    /// A member takes far longer for a gradient than the others. Seen by the controller's watch.
    #[n(20)]
    MemberStraggles {
        #[n(0)]
        executor: ExecutorId,
        /// How long one rank's gradient takes it, in microseconds.
        #[n(1)]
        unit_us: u64,
        /// How long it takes the others: their median.
        #[n(2)]
        peers_unit_us: u64,
        /// What takes it longer, if all said what they wait for.
        #[n(3)]
        cause: Option<StragglerCause>,
    },
    /// A member that straggled keeps up again. Seen by the controller's watch.
    #[n(21)]
    MemberKeepsUp {
        #[n(0)]
        executor: ExecutorId,
    },
    /// The processes of a slot are gone, but its device does not give their memory back, or is gone itself: the slot is not free. Said before
    /// the end of the executor is.
    #[n(22)]
    SlotQuarantined {
        #[n(0)]
        slot: SlotId,
        /// What is wrong with its device.
        #[n(1)]
        reason: String,
    },
    /// The device of a slot in quarantine is as it should be: the slot is free.
    #[n(23)]
    SlotRecovered {
        #[n(0)]
        slot: SlotId,
    },
    /// Members that were at the same step had different replicas: at least one computes wrongly, and nobody knows what it has spoiled since
    /// they were last compared. From the leader, which ends itself.
    #[n(30)]
    ReplicasDiffer {
        /// Who compared them.
        #[n(0)]
        by: ExecutorId,
        /// The step.
        #[n(1)]
        step: Step,
        /// Those that differ from what more than half of all have; none if nothing is held by so many.
        #[n(2)]
        minority: Vec<ExecutorId>,
    },
    /// A newcomer is sent the steps' gradients more slowly than steps make them: as a member it would slow every step to its link. From the leader of the
    /// generation in force.
    #[n(31)]
    NewcomerFallsBehind {
        /// Who leads.
        #[n(0)]
        by: ExecutorId,
        /// The generation in force.
        #[n(1)]
        generation: Generation,
        /// The newcomer.
        #[n(2)]
        executor: ExecutorId,
        /// Steps that it was behind, of which an update may take several.
        #[n(3)]
        behind_steps: u64,
    },
    /// How fast a newcomer is sent the replica while it follows. From the newcomer: at once, and when that was long enough to be relied on.
    #[n(37)]
    LinkMeasured {
        /// The newcomer.
        #[n(0)]
        executor: ExecutorId,
        /// Bytes per second, from all members together: the most of any stretch of a quarter of a second.
        #[n(1)]
        bytes_per_s: u64,
        /// Whether that was measured for long enough to be relied on, or until the replica was whole.
        #[n(2)]
        settled: bool,
    },
    /// How fast the link between two servers is, where it is slow, or faster than it was known to be. Seen by the controller's survey, which asks one of them
    /// (`server` of the record) to measure it.
    #[n(38)]
    LinkSurveyed {
        /// The other server.
        #[n(0)]
        peer: ServerId,
        /// Bytes per second in the slower direction, the best of several measurements.
        #[n(1)]
        bytes_per_s: u64,
    },
    /// How long one rank's gradient takes members on slots of several types. Seen by the controller's watch.
    #[n(40)]
    TypesMeasured {
        #[n(0)]
        job: JobId,
        /// By type: the median of its members there.
        #[n(1)]
        times: Vec<TypeTime>,
    },
    /// How much of its slot an executor uses, beside which there could be a guest. Seen by the controller's watch.
    #[n(41)]
    LoadMeasured {
        #[n(0)]
        executor: ExecutorId,
        /// In hundredths, over ten seconds.
        #[n(1)]
        busy_percent: u8,
    },
    /// How long a step usually takes in this generation; once a generation that lasts. From its leader.
    #[n(32)]
    ThroughputMeasured {
        /// Which job.
        #[n(0)]
        job: JobId,
        /// The generation.
        #[n(1)]
        generation: Generation,
        /// Its members.
        #[n(2)]
        members: u16,
        /// The median of the last few updates, in microseconds.
        #[n(3)]
        step_us: u64,
        /// Steps that one update took.
        #[cbor(n(4), default, skip_if = "Stride::is_one")]
        stride: Stride,
        /// How far those updates are spread; none from executors of earlier builds.
        #[n(5)]
        spread: Option<Spread>,
    },
}

impl Report {
    /// Whether only the controller itself can see it: from an agent it counts for nothing.
    #[must_use]
    pub fn is_the_controllers(&self) -> bool {
        match self {
            Report::AgentGone
            | Report::JobStalled { .. }
            | Report::ObjectsSwept { .. }
            | Report::MemberStraggles { .. }
            | Report::MemberKeepsUp { .. }
            | Report::TypesMeasured { .. }
            | Report::LoadMeasured { .. }
            | Report::LinkSurveyed { .. } => true,
            Report::AgentJoined { .. }
            | Report::ExecutorReady { .. }
            | Report::ExecutorGone { .. }
            | Report::GenerationActive { .. }
            | Report::MemberDeparted { .. }
            | Report::CheckpointWritten { .. }
            | Report::JobCompleted { .. }
            | Report::JobBroken { .. }
            | Report::SlotTakenBack { .. }
            | Report::SlotQuarantined { .. }
            | Report::SlotRecovered { .. }
            | Report::Evaluated { .. }
            | Report::PeerLost { .. }
            | Report::PeersMissing { .. }
            | Report::ReplicaHeld { .. }
            | Report::GenerationStepped { .. }
            | Report::CheckpointDamaged { .. }
            | Report::CheckpointSaved { .. }
            | Report::CheckpointUnreadable { .. }
            | Report::ReplicasDiffer { .. }
            | Report::NewcomerFallsBehind { .. }
            | Report::ThroughputMeasured { .. }
            | Report::LinkMeasured { .. } => false,
        }
    }
}
