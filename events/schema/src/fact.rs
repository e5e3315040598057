//! What was decided: the facts in the `events` stream. Only facts change state, and replaying them needs no policy.
//!
//! Numbered and append-only. The time of a fact is its batch's. Next on the path: `batch.rs`, then `controller/core/src/apply/mod.rs`.

use crate::command::{Foreseen, OfferMode, Recall};
use crate::dataset::DatasetInfo;
use crate::device::SlotDevice;
use crate::fold::FoldVersion;
use crate::job::JobSpec;
use crate::report::{ExitCause, Metrics, Outcome};
use crate::slot_type::{SlotType, TypeTime};
use crate::spread::Spread;
use crate::stride::Stride;
use crate::{
    CommandId, DatasetName, Digest, ExecutorId, FleetId, Generation, JobId, Offset, Rank, ServerId, SlotId, Step,
    TenantId, TimeMs,
};
use minicbor::{Decode, Encode};
use serde::Serialize;

/// One fact.
#[derive(Debug, Clone, PartialEq, Encode, Decode, Serialize)]
#[serde(tag = "fact", rename_all = "snake_case")]
#[allow(missing_docs, reason = "a field without a comment is what its name and type say")]
pub enum Fact {
    /// A job exists and is queued (or suspended, if its spec says so).
    #[n(0)]
    JobAccepted {
        #[n(0)]
        job: JobId,
        #[n(1)]
        tenant: TenantId,
        /// The command that asked for it.
        #[n(2)]
        command: CommandId,
        /// What to train.
        #[n(3)]
        spec: Box<JobSpec>,
        /// Digest of the submitted body.
        #[n(4)]
        body_digest: Digest,
    },
    /// A command had no effect.
    #[n(1)]
    CommandRefused {
        #[n(0)]
        command: CommandId,
        /// The job, fleet or dataset it was about, as text.
        #[n(1)]
        subject: String,
        #[n(2)]
        refusal: Refusal,
    },
    /// A command had its effect (facts that carry it follow or stand before it in the same batch).
    #[n(2)]
    CommandTaken {
        #[n(0)]
        command: CommandId,
    },
    /// A suspend was asked for: checkpoint, then give back all slots.
    #[n(3)]
    JobSuspending {
        #[n(0)]
        job: JobId,
    },
    /// It holds no slot any more.
    #[n(4)]
    JobSuspended {
        #[n(0)]
        job: JobId,
        /// Slot·ms that it has held in all; none in records of before facts said so.
        #[n(1)]
        attained_slot_ms: Option<u64>,
    },
    /// It is queued again.
    #[n(5)]
    JobResumed {
        #[n(0)]
        job: JobId,
    },
    /// Ended by its user; its checkpoints stay.
    #[n(6)]
    JobCancelled {
        #[n(0)]
        job: JobId,
    },
    /// Ended without a model.
    #[n(7)]
    JobFailed {
        #[n(0)]
        job: JobId,
        /// For its user: what, where, and what to do.
        #[n(1)]
        reason: String,
    },
    /// Ended with a model.
    #[n(8)]
    JobFinished {
        #[n(0)]
        job: JobId,
        #[n(1)]
        outcome: Outcome,
    },
    /// The slots a job is to run on from now on, and why.
    #[n(9)]
    PlanAdopted {
        #[n(0)]
        job: JobId,
        /// All of them, sorted.
        #[n(1)]
        slots: Vec<SlotId>,
        /// Why so many.
        #[n(2)]
        reason: PlanReason,
        /// How many it had before.
        #[n(3)]
        from: Option<u32>,
        /// Slot·ms that it has held in all until now; none if it has as many slots as before, and in records of before facts said so.
        #[n(4)]
        attained_slot_ms: Option<u64>,
    },
    /// A policy with queues moved a job to another one of them.
    #[n(90)]
    QueueEntered {
        #[n(0)]
        job: JobId,
        /// Which one; those of lower numbers go first, and a job begins in 0.
        #[n(1)]
        queue: u8,
        /// What it had attained when it was last promoted, in slot·ms: only what it attains beyond that counts for its queue.
        #[n(2)]
        promoted_slot_ms: u64,
    },
    /// Why a job has what it has changed, though what it has did not. Only in old logs: it is worked out when somebody asks.
    #[n(10)]
    JobExplained {
        #[n(0)]
        job: JobId,
        /// The reason in force.
        #[n(1)]
        reason: PlanReason,
    },
    /// An executor is to be started on a slot of the plan.
    #[n(11)]
    ExecutorAssigned {
        #[n(0)]
        executor: ExecutorId,
        #[n(1)]
        slot: SlotId,
    },
    /// It is built and can join a generation.
    #[n(12)]
    ExecutorReady {
        #[n(0)]
        executor: ExecutorId,
        /// Where peers reach it; not for subscribers.
        #[n(1)]
        address: String,
        /// What the bits of its job's own code depend on there; none of a model of Ebb's, nor of earlier builds.
        #[n(2)]
        class: Option<Digest>,
        /// Bytes of its job's replica; none of a whole program, nor of earlier builds.
        #[n(3)]
        replica_bytes: Option<u64>,
        /// Bytes of a gradient of it; none of a whole program, nor of earlier builds.
        #[n(4)]
        gradient_bytes: Option<u64>,
    },
    /// It is to leave at the next boundary, at the latest at the deadline, when its agent kills it.
    #[n(13)]
    ExecutorLeaving {
        #[n(0)]
        executor: ExecutorId,
        /// When it is killed.
        #[n(1)]
        deadline: TimeMs,
        #[n(2)]
        cause: LeaveCause,
        /// What it was judged to be; none in records of before facts said so.
        #[n(3)]
        verdict: Option<Verdict>,
    },
    /// Its process is reaped; the slot is free.
    #[n(14)]
    ExecutorGone {
        #[n(0)]
        executor: ExecutorId,
        /// Where it was.
        #[n(1)]
        slot: SlotId,
        /// How it ended.
        #[n(2)]
        exit: ExitCause,
        /// What it was judged to be; none in records of before facts said so.
        #[n(3)]
        verdict: Option<Verdict>,
        /// Set when it left a generation by itself: its leader's word about that is awaited until then.
        #[n(4)]
        awaited_until: Option<TimeMs>,
    },
    /// A membership for a job; in force when its leader has a ready from every member.
    #[n(15)]
    GenerationProposed {
        #[n(0)]
        job: JobId,
        /// Who, how and until when.
        #[n(1)]
        proposal: Proposal,
    },
    /// It is in force: its members compute its first step, or are being sent what they lack for it.
    #[n(16)]
    GenerationActive {
        #[n(0)]
        job: JobId,
        #[n(1)]
        generation: Generation,
        /// First step it computes.
        #[n(2)]
        step: Step,
        /// From the boundary, or a loss, until it was in force, in microseconds. What it cost the training is in `GenerationStepped`.
        #[n(3)]
        pause_us: u64,
    },
    /// It will not be; the next number is used.
    #[n(17)]
    GenerationAbandoned {
        #[n(0)]
        job: JobId,
        #[n(1)]
        generation: Generation,
        #[n(2)]
        cause: AbandonCause,
        /// What it was judged to be; none in records of before facts said so.
        #[n(3)]
        verdict: Option<Verdict>,
    },
    /// A member left by itself (direct take-back); the generation goes on without it.
    #[n(18)]
    MemberDeparted {
        #[n(0)]
        job: JobId,
        /// Which generation.
        #[n(1)]
        generation: Generation,
        #[n(2)]
        executor: ExecutorId,
        /// Who leads from here on.
        #[n(3)]
        leader: ExecutorId,
        /// First step without it.
        #[n(4)]
        step: Step,
    },
    /// A checkpoint counts.
    #[n(19)]
    CheckpointAccepted {
        #[n(0)]
        job: JobId,
        #[n(1)]
        checkpoint: CheckpointInfo,
    },
    /// A checkpoint no longer counts and may be deleted.
    #[n(20)]
    CheckpointRetired {
        #[n(0)]
        job: JobId,
        /// Key of its manifest.
        #[n(1)]
        manifest_key: String,
    },
    /// Every replica was lost; the job goes back to its last checkpoint, or to its beginning.
    #[n(21)]
    JobRestarted {
        #[n(0)]
        job: JobId,
        /// The step it goes on from.
        #[n(1)]
        from: Step,
        /// Why; none in records of before facts said so.
        #[n(2)]
        cause: Option<RestartCause>,
    },
    /// An evaluation's result.
    #[n(22)]
    Evaluated {
        #[n(0)]
        job: JobId,
        /// The replica's step.
        #[n(1)]
        step: Step,
        /// What came out.
        #[n(2)]
        metrics: Metrics,
    },
    /// A dataset can be trained on.
    #[n(23)]
    DatasetRegistered {
        /// Name, shape and metadata.
        #[n(0)]
        dataset: DatasetInfo,
    },
    /// It can not any more.
    #[n(24)]
    DatasetRemoved {
        #[n(0)]
        dataset: DatasetName,
    },
    /// A fleet owns these slots.
    #[n(25)]
    FleetDeclared {
        #[n(0)]
        fleet: FleetId,
        /// All of them, sorted.
        #[n(1)]
        slots: Vec<SlotId>,
        /// How they are offered.
        #[n(2)]
        offers: OfferMode,
        /// Time from a reclaim to the kill.
        #[n(3)]
        reclaim_deadline_ms: u64,
    },
    /// A fleet's need for its own slots.
    #[n(26)]
    DemandAccepted {
        #[n(0)]
        fleet: FleetId,
        /// The signal's number.
        #[n(1)]
        sequence: u64,
        /// How many.
        #[n(2)]
        needed: u32,
        /// How many later, as it knows itself.
        #[n(3)]
        forecast: Option<Vec<Foreseen>>,
    },
    /// So many of a fleet's slots stay with it until it is released, whatever its demand signals say.
    #[n(80)]
    FleetRecalled {
        #[n(0)]
        fleet: FleetId,
        /// How many.
        #[n(1)]
        slots: Recall,
    },
    /// The recall of a fleet is over.
    #[n(81)]
    FleetReleased {
        #[n(0)]
        fleet: FleetId,
    },
    /// These slots are drained and may be borrowed.
    #[n(27)]
    SlotsOffered {
        /// By whom.
        #[n(0)]
        fleet: FleetId,
        #[n(1)]
        slots: Vec<SlotId>,
    },
    /// An offered slot is in our hands.
    #[n(28)]
    SlotBorrowed {
        #[n(0)]
        slot: SlotId,
        /// Whose it is.
        #[n(1)]
        fleet: Option<FleetId>,
        /// Who is to use it.
        #[n(2)]
        job: Option<JobId>,
    },
    /// A borrowed or offered slot has to be free by the deadline.
    #[n(29)]
    SlotReclaimed {
        #[n(0)]
        slot: SlotId,
        /// When an executor on it is killed.
        #[n(1)]
        deadline: TimeMs,
        #[n(2)]
        cause: ReclaimCause,
        /// Whose it is.
        #[n(3)]
        fleet: Option<FleetId>,
        /// Whose plan had it.
        #[n(4)]
        job: Option<JobId>,
        /// When its fleet asked for it directly at the agent, which says so afterwards; none if it was asked for here and now.
        #[n(5)]
        asked_at: Option<TimeMs>,
    },
    /// A reclaimed slot is free and its fleet's again.
    #[n(30)]
    SlotReturned {
        #[n(0)]
        slot: SlotId,
        /// Whose it is; none if no fleet declares it any more.
        #[n(1)]
        fleet: Option<FleetId>,
        /// Time since it was reclaimed.
        #[n(2)]
        took_ms: Option<u64>,
    },
    /// An agent's process is there.
    #[n(31)]
    AgentJoined {
        /// Its server.
        #[n(0)]
        server: ServerId,
        /// The process.
        #[n(1)]
        incarnation: u64,
        /// Slots it holds.
        #[n(2)]
        slots: u16,
        /// Numeric class of its executors.
        #[n(3)]
        class: Digest,
        /// Where fleets reach it directly; not for subscribers.
        #[n(4)]
        address: String,
        /// The devices that its first slots are; the other slots have none.
        #[n(5)]
        #[cbor(skip_if = "Vec::is_empty")]
        devices: Vec<SlotDevice>,
        /// Whether each of its slots has a guest slot.
        #[cbor(n(6), default, skip_if = "is_not")]
        guests: bool,
        /// The type of its devices, or of all its slots where it has none.
        #[n(7)]
        #[serde(skip_serializing_if = "Option::is_none")]
        slot_type: Option<SlotType>,
    },
    /// It did not come back within its lease.
    #[n(32)]
    AgentGone {
        /// Its server.
        #[n(0)]
        server: ServerId,
    },
    /// Reports up to this number have had their effect.
    #[n(33)]
    ReportsTaken {
        /// From this server.
        #[n(0)]
        server: ServerId,
        /// From this process.
        #[n(1)]
        incarnation: u64,
        /// The highest number.
        #[n(2)]
        through: u64,
    },
    /// An input could not be read or would break the state; it had no effect. Operators are paged.
    #[n(34)]
    InputRefused {
        /// `commands`, `demand` or `reports`.
        #[n(0)]
        stream: String,
        /// Where it stands.
        #[n(1)]
        offset: Offset,
        #[n(2)]
        reason: String,
    },
    /// A member cannot reach others that live: the members of its generation link up anew, or go on without some of them.
    #[n(35)]
    PeersMissing {
        #[n(0)]
        job: JobId,
        /// The generation in which they are missed.
        #[n(1)]
        generation: Generation,
        /// Who misses them.
        #[n(2)]
        by: ExecutorId,
        /// Who is missed.
        #[n(3)]
        peers: Vec<ExecutorId>,
        /// Whether the generation was in force; otherwise its members were still linking up.
        #[n(4)]
        begun: bool,
    },
    /// A newcomer has been sent the whole replica.
    #[n(36)]
    ReplicaHeld {
        #[n(0)]
        executor: ExecutorId,
        /// The replica's step.
        #[n(1)]
        step: Step,
    },
    /// A generation has completed its first step.
    #[n(37)]
    GenerationStepped {
        #[n(0)]
        job: JobId,
        #[n(1)]
        generation: Generation,
        /// The replica's step now.
        #[n(2)]
        step: Step,
        /// From the boundary, or a loss, to the end of its first update, in microseconds.
        #[n(3)]
        first_step_us: u64,
        /// What as many steps took before the change, in microseconds.
        #[n(4)]
        usual_step_us: Option<u64>,
        /// How many members did those usual steps, or the first ones where there are no usual ones and nothing is known of others; else none, as in records of
        /// before it was said.
        #[n(5)]
        members: Option<u16>,
        /// Steps that the first update took: as many as both times are of.
        #[cbor(n(6), default, skip_if = "Stride::is_one")]
        #[serde(skip_serializing_if = "Stride::is_one")]
        stride: Stride,
    },
    /// A job makes no progress.
    #[n(38)]
    JobStalled {
        #[n(0)]
        job: JobId,
        /// The step that does not end.
        #[n(1)]
        step: Step,
        /// What its members wait for.
        #[n(2)]
        cause: StallCause,
        /// Executors that hold up the others; never the ones that wait.
        #[n(3)]
        blamed: Vec<Blamed>,
        /// What is done about it.
        #[n(4)]
        remedy: StallRemedy,
        /// Whether what was tried before does not count, because the job got further than ever since; in records of before facts said so it does at the
        /// same step alone.
        #[n(5)]
        anew: Option<bool>,
    },
    /// A job does not use a slot for a while, because of what happened on it.
    #[n(39)]
    SlotAvoided {
        /// Which job.
        #[n(0)]
        job: JobId,
        /// Which slot.
        #[n(1)]
        slot: SlotId,
        /// Until then.
        #[n(2)]
        until: TimeMs,
        /// What happened.
        #[n(3)]
        cause: AvoidCause,
    },
    /// A job does not grow for a while: newcomers did not come in.
    #[n(40)]
    GrowthPaused {
        /// Which job.
        #[n(0)]
        job: JobId,
        /// Until then.
        #[n(1)]
        until: TimeMs,
        /// The newcomer that was given up.
        #[n(2)]
        executor: ExecutorId,
        #[n(3)]
        cause: GrowthFailure,
    },
    /// The policy gave no plan; what it was asked after stands. It is asked again after a pause. Operators are paged.
    #[n(41)]
    PlanFailed {
        /// Its name.
        #[n(0)]
        policy: String,
        /// What it died of.
        #[n(1)]
        reason: String,
    },
    /// Plans are this policy's from now on.
    #[n(42)]
    PolicyChosen {
        /// Its name.
        #[n(0)]
        policy: String,
        /// That it plans by assumed speeds and none are measured; otherwise it is told what is measured.
        #[n(1)]
        assumed_speeds: Option<bool>,
        /// That what fleets are going to need is forecast from now on, and after how long their needs come again; otherwise all lending is reactive.
        #[n(2)]
        forecast_day_ms: Option<u64>,
        /// By which rules a state follows from what comes behind this; earlier builds did not say, and go by the first ones.
        #[n(3)]
        fold_version: Option<FoldVersion>,
    },
    /// It has been gone for long, and no fleet declares a slot of it any more. It may join again.
    #[n(43)]
    ServerForgotten {
        #[n(0)]
        server: ServerId,
    },
    /// A job trains at its new size: it has done a step on as many slots as its plan has.
    #[n(70)]
    JobScaled {
        #[n(0)]
        job: JobId,
        /// Slots before the plan.
        #[n(1)]
        from: u32,
        /// Slots that it trains on.
        #[n(2)]
        to: u32,
        /// Why the plan changed.
        #[n(3)]
        cause: PlanCause,
        /// Time since that plan.
        #[n(4)]
        took_ms: u64,
        /// What the first step took longer than one before; none if a member left by itself and the others went on.
        #[n(5)]
        pause_us: Option<u64>,
    },
    /// A member of the generation in force was lost, or is given up: nobody asked it to leave.
    #[n(44)]
    MemberLost {
        #[n(0)]
        executor: ExecutorId,
        /// Where it was.
        #[n(1)]
        slot: SlotId,
        /// How that was noticed.
        #[n(2)]
        noticed: LossNotice,
    },
    /// A member takes far longer for a gradient than the others, which wait for it, or its link does. It hosts fewer ranks then, as far as it can and that helps.
    #[n(45)]
    MemberStraggles {
        #[n(0)]
        executor: ExecutorId,
        /// Where it is.
        #[n(1)]
        slot: SlotId,
        /// How long one rank's gradient takes it, in microseconds; because of its link: how long a step takes everybody.
        #[n(2)]
        unit_us: u64,
        /// How long it takes the others: their median; because of a link: how long a step took before.
        #[n(3)]
        peers_unit_us: u64,
        /// What takes it longer; not known of members of earlier builds.
        #[n(4)]
        cause: Option<StragglerCause>,
    },
    /// A member that straggled keeps up with the others again.
    #[n(46)]
    MemberKeepsUp {
        #[n(0)]
        executor: ExecutorId,
    },
    /// An executor was to be gone long ago, and its agent, which is there, has not said that it is: the kernel does not end its process.
    /// Nothing waits for it any more, and its slot is of no use until it is gone.
    #[n(50)]
    ExecutorStuck {
        #[n(0)]
        executor: ExecutorId,
        /// Where it is.
        #[n(1)]
        slot: SlotId,
    },
    /// Nothing runs on a slot any more, but its device does not give the memory back, or is gone: the slot is of no use to anybody.
    #[n(82)]
    SlotQuarantined {
        #[n(0)]
        slot: SlotId,
        /// Whose it is; none if no fleet declares it any more.
        #[n(1)]
        fleet: Option<FleetId>,
        /// What is wrong with its device.
        #[n(2)]
        reason: String,
    },
    /// The device of such a slot is as it was: it is of use again, unless it is kept out because it computed something else than others.
    #[n(83)]
    SlotRecovered {
        #[n(0)]
        slot: SlotId,
        /// Whose it is; none if no fleet declares it any more.
        #[n(1)]
        fleet: Option<FleetId>,
    },
    /// A checkpoint cannot be restored from: an object of it is gone or not what was written. It no longer counts.
    #[n(60)]
    CheckpointDamaged {
        #[n(0)]
        job: JobId,
        /// The generation that wrote it.
        #[n(1)]
        generation: Generation,
        /// The replica's step.
        #[n(2)]
        step: Step,
        /// Key of the object that is damaged.
        #[n(3)]
        object: String,
        /// What is wrong with it.
        #[n(4)]
        reason: String,
        /// The step of the checkpoint that is used instead; 0 is the job's beginning.
        #[n(5)]
        instead: Step,
    },
    /// Objects that nothing counts were deleted from the store.
    #[n(61)]
    ObjectsSwept {
        /// How many.
        #[n(0)]
        objects: u64,
        /// Their size.
        #[n(1)]
        bytes: u64,
    },
    /// The checkpoint that a job was to go on from needs another build. The job is suspended; resumed under that build it goes on.
    #[n(62)]
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
    /// Members had different replicas at one step. All of them end, and the job goes back to its last checkpoint, at which all were equal: what
    /// was computed since may be spoiled in every replica. The slots of the minority are in quarantine until their fleet has had them back or
    /// their agent is another process.
    #[n(63)]
    ReplicasDiffered {
        #[n(0)]
        job: JobId,
        /// The step.
        #[n(1)]
        step: Step,
        /// Those that differed from more than half of the members; none if no majority had the same.
        #[n(2)]
        minority: Vec<ExecutorId>,
        /// Where they were: in the same order.
        #[n(3)]
        slots: Vec<SlotId>,
        /// Why those slots are in quarantine.
        #[n(4)]
        reason: String,
        /// What it was judged to be.
        #[n(5)]
        verdict: Verdict,
    },
    /// Signals in a fleet's own topic could not be used, and changed nothing.
    #[n(77)]
    SignalsRefused {
        /// Whose topic.
        #[n(0)]
        fleet: FleetId,
        /// Where the newest of them stands in it.
        #[n(1)]
        offset: Offset,
        /// How many, since it was last said.
        #[n(2)]
        count: u64,
        /// What is wrong with the newest, and what would be right.
        #[n(3)]
        reason: String,
    },
    /// How long a step usually takes a job on so many members, if that was not known, is another time now, or is known far more surely: for whoever
    /// shares slots out.
    #[n(84)]
    ThroughputMeasured {
        #[n(0)]
        job: JobId,
        /// So many.
        #[n(1)]
        members: u16,
        /// In microseconds: one update, of `stride` steps.
        #[n(2)]
        step_us: u64,
        /// Steps that one update took.
        #[cbor(n(3), default, skip_if = "Stride::is_one")]
        #[serde(skip_serializing_if = "Stride::is_one")]
        stride: Stride,
        /// How far the updates were spread that it is the median of; none in records of before leaders said so.
        #[n(4)]
        #[serde(skip_serializing_if = "Option::is_none")]
        spread: Option<Spread>,
    },
    /// How long one rank's gradient takes a job on slots of each type that it was measured on, if that was not known or is another time now: whoever is on a faster
    /// one hosts more ranks.
    #[n(99)]
    TypesMeasured {
        #[n(0)]
        job: JobId,
        /// By type, in the order of types: all that are known of it from now on.
        #[n(1)]
        times: Vec<TypeTime>,
    },
    /// How much of its slot an executor uses, where another job could be its guest, if that was not known or is another part now.
    #[n(100)]
    LoadMeasured {
        #[n(0)]
        executor: ExecutorId,
        /// In hundredths, over ten seconds; a guest's use does not count.
        #[n(1)]
        busy_percent: u8,
    },
    /// How fast a server's link to others is, where it is so slow that as a member an executor there would slow its job, or was.
    #[n(97)]
    LinkMeasured {
        /// Which server.
        #[n(0)]
        server: ServerId,
        /// The servers that it was sent something from, together: of two or more it is its own link that is slow, of one it may be either's.
        #[n(1)]
        from: Vec<ServerId>,
        /// Bytes per second.
        #[n(2)]
        bytes_per_s: u64,
        /// It is counted on until then: after that a job may find out whether the link is mended.
        #[n(3)]
        until: TimeMs,
        /// How often in a row it was found to be no faster.
        #[n(4)]
        found: u32,
    },
    /// A tenant has so many slots guaranteed from now on, under a policy that knows of quotas.
    #[n(91)]
    QuotaSet {
        #[n(0)]
        tenant: TenantId,
        /// So many; none if it has no quota any more.
        #[n(1)]
        quota_slots: Option<u32>,
    },
}

/// Why a command had no effect.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
#[allow(missing_docs, reason = "a field without a comment is what its name and type say")]
pub enum Refusal {
    /// No job, fleet, slot or dataset of this name.
    #[n(0)]
    Unknown {
        /// `job`, `fleet`, `slot`, `dataset` or `tenant`.
        #[n(0)]
        kind: String,
        /// Its name.
        #[n(1)]
        name: String,
        /// The nearest known name, if any is close.
        #[n(2)]
        nearest: Option<String>,
    },
    /// Not possible in the phase the job is in.
    #[n(1)]
    WrongPhase {
        /// The phase.
        #[n(0)]
        phase: String,
        /// What would be possible.
        #[n(1)]
        expected: String,
    },
    /// The name is taken by something else.
    #[n(2)]
    Exists {
        /// `dataset`, `slot` and so on.
        #[n(0)]
        kind: String,
        /// The name.
        #[n(1)]
        name: String,
        /// What holds it.
        #[n(2)]
        holder: String,
    },
    /// In use by something that is not finished.
    #[n(3)]
    InUse {
        /// What uses it.
        #[n(0)]
        by: String,
    },
    /// A demand signal older than one already taken.
    #[n(4)]
    Old {
        /// The number already taken.
        #[n(0)]
        taken: u64,
    },
    /// A bound of the service is reached.
    #[n(5)]
    Limit {
        #[n(0)]
        what: String,
        /// How much is allowed.
        #[n(1)]
        limit: u64,
    },
    /// A value does not fit what it refers to.
    #[n(6)]
    Unfit {
        /// The field.
        #[n(0)]
        field: String,
        /// The value.
        #[n(1)]
        value: String,
        /// What would be right.
        #[n(2)]
        expected: String,
    },
    /// It is not (any more) what the command expects.
    #[n(7)]
    Changed,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::Unknown { kind, name, nearest: Some(near) } => {
                write!(f, "there is no {kind} `{name}`; did you mean `{near}`?")
            }
            Refusal::Unknown { kind, name, nearest: None } => write!(f, "there is no {kind} `{name}`"),
            Refusal::WrongPhase { phase, expected } => write!(f, "the job is {phase}; expected {expected}"),
            Refusal::Exists { kind, name, holder } => write!(f, "the {kind} name `{name}` is held by {holder}"),
            Refusal::InUse { by } => write!(f, "it is used by {by}"),
            Refusal::Old { taken } => write!(f, "number {taken} or a later one is already taken"),
            Refusal::Limit { what, limit } => write!(f, "there are at most {limit} {what}, and that many are there"),
            Refusal::Unfit { field, value, expected } => write!(f, "`{field}` is `{value}`; expected {expected}"),
            Refusal::Changed => f.write_str("it changed before this was decided; look at it again, then decide again"),
        }
    }
}

/// Why a job has the slots it has, and what it waits for.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct PlanReason {
    /// The policy that said so.
    #[n(0)]
    pub policy: String,
    /// Why it has what it has.
    #[n(1)]
    pub cause: PlanCause,
    /// Why it has no more.
    #[n(2)]
    pub waits: Option<WaitCause>,
}

/// Why a plan gives a job what it gives.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PlanCause {
    /// Its guaranteed minimum.
    #[n(0)]
    Guarantee,
    /// More than the minimum, because capacity was there and the policy gave it to this job.
    #[n(1)]
    Gain,
    /// Fewer, because a fleet takes slots back.
    #[n(2)]
    Reclaimed,
    /// Fewer, because another job's minimum or gain goes first.
    #[n(3)]
    GaveWay,
    /// An executor or server was lost.
    #[n(4)]
    Lost,
    /// Nothing: it waits, is suspended or has ended.
    #[n(5)]
    Nothing,
    /// Fewer, because on fewer it is as fast, or faster, as far as its speeds were measured.
    #[n(6)]
    Speed,
    /// Fewer, because the link of a server is too slow for its gradients.
    #[n(7)]
    Link,
    /// More or fewer for a while, to be measured at that size: its spec asks for it, and the slots were nobody else's.
    #[n(8)]
    Profile,
}

/// What a job waits for.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "a field without a comment is what its name and type say")]
pub enum WaitCause {
    /// Slots: so many are missing to its minimum, or to its maximum if it runs.
    #[n(0)]
    Slots {
        #[n(0)]
        missing: u32,
    },
    /// An earlier or more important job.
    #[n(1)]
    Job(#[n(0)] JobId),
    /// Its user's resume.
    #[n(2)]
    Resume,
    /// No slots are offered at all; or, of a job that trains, none for long enough to begin there.
    #[n(3)]
    Offers,
    /// A pause after repeated failures of its executors.
    #[n(4)]
    Backoff {
        /// Until then.
        #[n(0)]
        until: TimeMs,
    },
    /// A slot with a device: no fleet has one at all.
    #[n(5)]
    Device,
    /// A slot of this numeric class, in which it began: all others that are lent are of another one.
    #[n(6)]
    Class(#[n(0)] Digest),
    /// Nothing: on more slots it was measured to be no faster.
    #[n(7)]
    Speed,
    /// Its tenant's quota: so many slots of it are missing to those that it asked for.
    #[n(8)]
    Quota {
        #[n(0)]
        missing: u32,
    },
    /// A server with a faster link: whatever else is lent is on servers whose links would slow each of its steps.
    #[n(9)]
    Link(#[n(0)] SlowLink),
    /// A slot of the type that it is on: all others that are lent are of another one, and its spec does not let it be on several.
    #[n(10)]
    Type,
}

pub(crate) fn is_not(said: &bool) -> bool {
    !*said
}

/// A link that is too slow for a job, and what the job needs.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct SlowLink {
    /// The server whose link it is; the fastest of them, if there are several.
    #[n(0)]
    pub server: ServerId,
    /// Bytes per second that it was measured to carry.
    #[n(1)]
    pub bytes_per_s: u64,
    /// Bytes of gradients that the job's steps make in a second.
    #[n(2)]
    pub gradient_bytes_per_s: u64,
    /// The first over the second, in thousandths.
    #[n(3)]
    pub beta_milli: u64,
}

/// Why an executor has to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaveCause {
    /// Its slot goes back to its fleet.
    #[n(0)]
    Reclaim,
    /// The plan gives the slot to another job, or to none.
    #[n(1)]
    Plan,
    /// Its job ended or is suspended.
    #[n(2)]
    JobEnd,
    /// It was never part of an active generation that goes on.
    #[n(3)]
    Useless,
}

/// Why a slot goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReclaimCause {
    /// The fleet's demand rose.
    #[n(0)]
    Demand,
    /// The fleet named it.
    #[n(1)]
    Named,
    /// It was taken at the agent.
    #[n(2)]
    Direct,
    /// The fleet no longer declares it.
    #[n(3)]
    Undeclared,
    /// The fleet was recalled.
    #[n(4)]
    Recall,
    /// The fleet is likely to need it soon.
    #[n(5)]
    Forecast,
}

/// Whether something that happened to a job's executors is a failure, and what follows: judged once, when it was decided, so that every
/// later build folds it to the same state, whatever it would judge itself.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// No failure.
    #[n(0)]
    Well,
    /// A failure.
    #[n(1)]
    Failure(#[n(0)] Failure),
}

/// A failure of a job's executors.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct Failure {
    /// Who is answerable for it.
    #[n(0)]
    pub fault: Fault,
    /// What happened, for the user.
    #[n(1)]
    pub what: String,
    /// The wave of failures that it begins; none if it is one more of the last wave.
    #[n(2)]
    pub wave: Option<Wave>,
}

/// Who is answerable for a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The job's own program, which ended by itself. Too many of these fail the job.
    #[n(0)]
    Program,
    /// A machine, a link or a bound of ours. It is tried again.
    #[n(1)]
    Infrastructure,
}

/// Failures at about the same time, which count as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct Wave {
    /// Waves in a row, with this one.
    #[n(0)]
    pub in_a_row: u32,
    /// No new executor is started before then.
    #[n(1)]
    pub pause_until: TimeMs,
}

/// Why a proposed generation is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AbandonCause {
    /// Not active by its deadline.
    #[n(0)]
    Deadline,
    /// One of its members was lost or has to leave.
    #[n(1)]
    MemberLost,
    /// The plan changed first.
    #[n(2)]
    Superseded,
    /// Some of its members cannot be linked.
    #[n(3)]
    Unlinked,
}

/// An executor that holds up its job.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct Blamed {
    /// The executor it is about.
    #[n(0)]
    pub executor: ExecutorId,
    /// The rank that it does not get done with, if it is in a unit of computing.
    #[n(1)]
    pub rank: Option<Rank>,
}

/// What the members of a job that makes no progress wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StallCause {
    /// Each other: all wait for peers, and nothing moves.
    #[n(0)]
    Peers,
    /// One that does not end a unit of computing.
    #[n(1)]
    Unit,
    /// Bytes that do not arrive, or far too slowly.
    #[n(2)]
    Bytes,
    /// The object store.
    #[n(3)]
    Store,
}

/// What is done about a job that makes no progress. Each rung of the ladder is tried once per step; a new highest step begins anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StallRemedy {
    /// Its members come together in a new generation.
    #[n(0)]
    Round,
    /// The blamed are replaced, and the others go on without them.
    #[n(1)]
    WithoutBlamed,
    /// It goes back to its last checkpoint, on other slots.
    #[n(2)]
    Restart,
    /// It is suspended until its user resumes it.
    #[n(3)]
    Suspend,
    /// It fails: the same computation hung on two slots.
    #[n(4)]
    Fail,
    /// Nothing yet: the store is waited for, and it goes on by itself when that answers. Suspended when its patience is over.
    #[n(5)]
    Wait,
}

/// How it was noticed that a member is lost.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LossNotice {
    /// Its process ended, and its agent saw that.
    #[n(0)]
    Exit(#[n(0)] ExitCause),
    /// It said nothing for seconds, and its agent killed it.
    #[n(1)]
    Silence,
    /// Its agent was not heard for its lease: nobody knows of anything on that server.
    #[n(2)]
    Lease,
    /// Another agent process is on its server, which has reaped what the one before had started.
    #[n(3)]
    Agent,
    /// It cannot be linked with the other members.
    #[n(4)]
    Link,
    /// It held up the others, and they go on without it.
    #[n(5)]
    Stall(#[n(0)] StallCause),
}

/// Why a job goes back to its last checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "a field without a comment is what its name and type say")]
pub enum RestartCause {
    /// A member that was to stay was lost, and nobody is left to go on from.
    #[n(0)]
    Lost {
        #[n(0)]
        executor: ExecutorId,
        /// Where it was.
        #[n(1)]
        slot: SlotId,
        /// How that was noticed.
        #[n(2)]
        noticed: LossNotice,
    },
    /// Whoever had the replica was told to leave: the job's slots changed, all of them or those of a gang.
    #[n(1)]
    Left,
    /// It did not get past a step, and nothing gentler helped.
    #[n(2)]
    Stalled {
        #[n(0)]
        cause: StallCause,
        /// Who held up the others; nobody if that is not known.
        #[n(1)]
        blamed: Vec<ExecutorId>,
    },
    /// Replicas of its members differed.
    #[n(3)]
    Differed {
        /// Whose replica was not like that of most; nobody if no replica was held by most.
        #[n(0)]
        minority: Vec<ExecutorId>,
    },
}

/// Why a job does not use a slot for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AvoidCause {
    /// The executor there could not be linked with the others.
    #[n(0)]
    Unreachable,
    /// The executor there hung, or moved no bytes.
    #[n(1)]
    Hung,
    /// The job's own code computes other bits there.
    #[n(2)]
    Class,
    /// The executor there straggles, and another slot is idle.
    #[n(3)]
    Slow,
}

/// What takes a straggler longer than the others: the larger part of the difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StragglerCause {
    /// It computes more slowly.
    #[n(0)]
    Compute,
    /// It waits for rows.
    #[n(1)]
    Data,
    /// Its link became slow: nobody's gradient takes longer, and everybody's step does.
    #[n(2)]
    Network,
}

/// Why a newcomer did not come in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GrowthFailure {
    /// It was lost, or its slot went back, before it held the replica.
    #[n(0)]
    Lost,
    /// It was not ready in time.
    #[n(1)]
    Late,
    /// Its copy of the replica stood still, or was far slower than the link allows.
    #[n(2)]
    Slow,
}

/// A checkpoint that counts.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct CheckpointInfo {
    /// The replica's step.
    #[n(0)]
    pub step: Step,
    /// Who wrote it.
    #[n(1)]
    pub generation: Generation,
    /// Key of the manifest, as the controller computed it.
    #[n(2)]
    pub manifest_key: String,
    /// Digest of the whole replica.
    #[n(3)]
    pub replica_digest: Digest,
    /// Size of all shards.
    #[n(4)]
    pub bytes: u64,
}

/// Checkpoints that a proposal names: so many damaged ones in a row are passed over in one start. A job that has fewer than this
/// begins anew when all of them are damaged.
pub const RESTORE_CHECKPOINTS_MAX: usize = 16;

/// A numbered membership.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct Proposal {
    /// Its number.
    #[n(0)]
    pub generation: Generation,
    /// How its members come to one state.
    #[n(1)]
    pub entry: Entry,
    /// Sorted by executor; together they host every rank once.
    #[n(2)]
    pub members: Vec<Member>,
    /// Who paces the steps; one of `members`.
    #[n(3)]
    pub leader: ExecutorId,
    /// When the controller gives it up.
    #[n(4)]
    pub deadline: TimeMs,
    /// Steps that one of its updates takes.
    #[cbor(n(5), default, skip_if = "Stride::is_one")]
    #[serde(skip_serializing_if = "Stride::is_one")]
    pub stride: Stride,
}

/// How the members of a generation come to one state.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// All build the initial replica from the spec; step 0.
    #[n(0)]
    Fresh,
    /// All load this checkpoint.
    #[n(1)]
    Checkpoint {
        /// Key of its manifest.
        #[n(0)]
        manifest_key: String,
        /// Keys of the manifests to try after it, if it is damaged, newest first: with it at most [`RESTORE_CHECKPOINTS_MAX`].
        #[n(1)]
        #[cbor(skip_if = "Vec::is_empty")]
        #[serde(skip_serializing_if = "Vec::is_empty")]
        earlier: Vec<String>,
    },
    /// `from` is intact: its leader announces the switch on a reduce message, and copies the replica to newcomers at the boundary.
    #[n(2)]
    Switch {
        /// The generation in force.
        #[n(0)]
        from: Generation,
    },
    /// Members were lost: collect (step, has G) from all survivors, the newest step wins.
    #[n(3)]
    Recover,
}

/// One member of a generation.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct Member {
    /// The executor it is about.
    #[n(0)]
    pub executor: ExecutorId,
    /// Where peers reach it (`HOST:PORT`); not for subscribers.
    #[n(1)]
    pub address: String,
    /// The ranks it hosts, sorted.
    #[n(2)]
    pub ranks: Vec<Rank>,
}

/// The host that an executor is on, of its address (`HOST:PORT`): two that listen at one are beside each other.
#[must_use]
pub fn host_of(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

/// A number for each host that addresses are at, by the first of them that is.
pub fn hosts<'a>(addresses: impl Iterator<Item = &'a str>) -> Vec<u16> {
    let mut numbers = std::collections::BTreeMap::new();
    let number = |(at, address): (u16, &'a str)| *numbers.entry(host_of(address)).or_insert(at);
    (0..).zip(addresses).map(number).collect()
}
