//! What each public event holds: plain data, of which the JSON Schemas are made. Numbers carry their unit in the name, times are RFC 3339 in UTC.
//!
//! Within a version nothing is taken away, renamed or given another type, and nothing that was always there becomes optional
//! (`tests/compatibility.rs`). What may be added: types, fields, and words to what is not closed. Next: `of_fact.rs`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

macro_rules! public_events {
    ($($(#[doc = $doc:literal])* $name:ident = $kind:literal about $event:ident => $subject:expr;)*) => {
        /// What happened, as subscribers read it: one variant a type of event.
        #[derive(Debug, Clone, PartialEq)]
        pub enum PublicEvent {
            $($(#[doc = $doc])* $name($name),)*
        }

        impl PublicEvent {
            /// Its type, for example `dev.ebb.job.accepted.v1`.
            #[must_use]
            pub fn kind(&self) -> &'static str {
                match self { $(Self::$name(_) => $kind,)* }
            }

            /// The job, fleet, dataset, slot or server it is about.
            #[must_use]
            pub fn subject(&self) -> &str {
                match self { $(Self::$name($event) => $subject,)* }
            }

            /// Its data as JSON.
            #[must_use]
            pub fn data(&self) -> Value {
                match self { $(Self::$name(event) => serde_json::to_value(event).unwrap_or(Value::Null),)* }
            }
        }

        /// Every type there is.
        pub(crate) const KINDS: &[&str] = &[$($kind,)* JOB_PROGRESS];

        /// Type, what it is for, and the schema of its data.
        pub(crate) fn catalogue() -> Vec<(&'static str, &'static str, Value)> {
            vec![
                $(($kind, concat!($($doc),*).trim_ascii(), schemars::schema_for!($name).to_value()),)*
                (JOB_PROGRESS, "How far a job is: only on its stream over HTTP.", schemars::schema_for!(JobProgress).to_value()),
            ]
        }
    };
}

public_events! {
    /// A job exists, and waits for slots unless its spec suspends it.
    JobAccepted = "dev.ebb.job.accepted.v1" about event => &event.job;
    /// A suspend was asked for: the job writes a checkpoint and gives back all slots.
    JobSuspending = "dev.ebb.job.suspending.v1" about event => &event.job;
    /// A job holds no slot until it is resumed.
    JobSuspended = "dev.ebb.job.suspended.v1" about event => &event.job;
    /// A suspended job waits for slots again.
    JobResumed = "dev.ebb.job.resumed.v1" about event => &event.job;
    /// A job was ended by its user; its checkpoints stay.
    JobCancelled = "dev.ebb.job.cancelled.v1" about event => &event.job;
    /// A job ended without a model.
    JobFailed = "dev.ebb.job.failed.v1" about event => &event.job;
    /// A job ended with a model.
    JobFinished = "dev.ebb.job.finished.v1" about event => &event.job;
    /// A job is to run on these slots from now on.
    JobPlanned = "dev.ebb.job.planned.v1" about event => &event.job;
    /// A job trains at its new size.
    JobScaled = "dev.ebb.job.scaled.v1" about event => &event.job;
    /// Every replica was lost: a job goes back to its last checkpoint, or to its beginning.
    JobRestarted = "dev.ebb.job.restarted.v1" about event => &event.job;
    /// A job was evaluated.
    JobEvaluated = "dev.ebb.job.evaluated.v1" about event => &event.job;
    /// A job makes no progress, and something is done about it.
    JobStalled = "dev.ebb.job.stalled.v1" about event => &event.job;
    /// A job does not use a slot for a while, because of what happened there.
    JobSlotAvoided = "dev.ebb.job.slot_avoided.v1" about event => &event.job;
    /// A job does not grow for a while, because a newcomer did not come in.
    JobGrowthPaused = "dev.ebb.job.growth_paused.v1" about event => &event.job;
    /// A process of a job is to be started on a slot.
    ExecutorAssigned = "dev.ebb.executor.assigned.v1" about event => &event.job;
    /// A process of a job is built and can join.
    ExecutorReady = "dev.ebb.executor.ready.v1" about event => &event.job;
    /// A process that joined holds the whole replica.
    ExecutorReplicaHeld = "dev.ebb.executor.replica_held.v1" about event => &event.job;
    /// A process of a job is to leave at the next step, at the latest at its deadline.
    ExecutorLeaving = "dev.ebb.executor.leaving.v1" about event => &event.job;
    /// A process of a job that was to be gone long ago does not end; nobody waits for it any more.
    ExecutorStuck = "dev.ebb.executor.stuck.v1" about event => &event.job;
    /// A process of a job has ended and is reaped.
    ExecutorGone = "dev.ebb.executor.gone.v1" about event => &event.job;
    /// The members of a job are to come together anew.
    GenerationProposed = "dev.ebb.generation.proposed.v1" about event => &event.job;
    /// A membership is in force.
    GenerationActive = "dev.ebb.generation.active.v1" about event => &event.job;
    /// The first step of a membership is complete.
    GenerationStepped = "dev.ebb.generation.stepped.v1" about event => &event.job;
    /// A proposed membership is given up.
    GenerationAbandoned = "dev.ebb.generation.abandoned.v1" about event => &event.job;
    /// A member left at a step by itself; the others go on.
    MemberDeparted = "dev.ebb.generation.departed.v1" about event => &event.job;
    /// A member was lost: nobody asked it to leave.
    MemberLost = "dev.ebb.generation.member_lost.v1" about event => &event.job;
    /// A member takes far longer than the others, which wait for it.
    MemberStraggles = "dev.ebb.generation.member_straggles.v1" about event => &event.job;
    /// A member that straggled keeps up again.
    MemberKeepsUp = "dev.ebb.generation.member_keeps_up.v1" about event => &event.job;
    /// A member cannot reach others that live.
    PeersMissing = "dev.ebb.generation.peers_missing.v1" about event => &event.job;
    /// A checkpoint counts.
    CheckpointAccepted = "dev.ebb.checkpoint.accepted.v1" about event => &event.job;
    /// A checkpoint cannot be restored from, and no longer counts.
    CheckpointDamaged = "dev.ebb.checkpoint.damaged.v1" about event => &event.job;
    /// A checkpoint needs another build; the job is suspended.
    CheckpointUnreadable = "dev.ebb.checkpoint.unreadable.v1" about event => &event.job;
    /// A dataset can be trained on.
    DatasetRegistered = "dev.ebb.dataset.registered.v1" about event => &event.dataset;
    /// A dataset can not be trained on any more.
    DatasetRemoved = "dev.ebb.dataset.removed.v1" about event => &event.dataset;
    /// A fleet owns these slots.
    FleetDeclared = "dev.ebb.fleet.declared.v1" about event => &event.fleet;
    /// A fleet said how many of its slots it needs.
    FleetDemand = "dev.ebb.fleet.demand.v1" about event => &event.fleet;
    /// A fleet lends slots.
    SlotsOffered = "dev.ebb.slot.offered.v1" about event => &event.fleet;
    /// A lent slot is used from now on.
    SlotBorrowed = "dev.ebb.slot.borrowed.v1" about event => &event.slot;
    /// A fleet wants a slot back.
    SlotReclaimed = "dev.ebb.slot.reclaimed.v1" about event => &event.slot;
    /// A slot is free and its fleet's again.
    SlotReturned = "dev.ebb.slot.returned.v1" about event => &event.slot;
    /// A server's agent is there.
    AgentJoined = "dev.ebb.agent.joined.v1" about event => &event.server;
    /// A server's agent was not heard for its lease.
    AgentGone = "dev.ebb.agent.gone.v1" about event => &event.server;
    /// A server has been gone for long, and no fleet declares a slot of it.
    ServerForgotten = "dev.ebb.server.forgotten.v1" about event => &event.server;
    /// A command had no effect.
    CommandRefused = "dev.ebb.command.refused.v1" about event => &event.subject;
    /// An input could not be read, and had no effect.
    InputRefused = "dev.ebb.input.refused.v1" about event => &event.stream;
    /// The policy gave no plan; what it was asked after stands.
    PlanFailed = "dev.ebb.plan.failed.v1" about event => &event.policy;
    /// Plans are made by this policy from now on.
    PolicyChosen = "dev.ebb.policy.chosen.v1" about event => &event.policy;
    /// Objects that nothing counts were deleted from the store.
    StoreSwept = "dev.ebb.store.swept.v1" about _event => "store";
}

impl PublicEvent {
    /// The fleet whose slots it is about.
    #[must_use]
    pub fn fleet(&self) -> Option<&str> {
        match self {
            Self::FleetDeclared(event) => Some(&event.fleet),
            Self::FleetDemand(event) => Some(&event.fleet),
            Self::SlotsOffered(event) => Some(&event.fleet),
            Self::SlotBorrowed(event) => event.fleet.as_deref(),
            Self::SlotReclaimed(event) => event.fleet.as_deref(),
            Self::SlotReturned(event) => event.fleet.as_deref(),
            _ => None,
        }
    }
}

macro_rules! data {
    ($($(#[doc = $doc:literal])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $kind:ty,)* })*) => {$(
        $(#[doc = $doc])*
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $kind,)*
        }
    )*};
}

data! {
    /// A job exists.
    JobAccepted {
        /// The job's id.
        job: String,
        /// Whose it is.
        tenant: String,
        /// The name that its user gave it; nothing says that it is unique.
        name: String,
    }
    /// A job is to give back all slots.
    JobSuspending {
        /// The job's id.
        job: String,
    }
    /// A job holds no slot.
    JobSuspended {
        /// The job's id.
        job: String,
    }
    /// A job waits for slots again.
    JobResumed {
        /// The job's id.
        job: String,
    }
    /// A job was cancelled.
    JobCancelled {
        /// The job's id.
        job: String,
    }
    /// A job ended without a model.
    JobFailed {
        /// The job's id.
        job: String,
        /// For its user: what, where, and what to do.
        reason: String,
    }
    /// A job ended with a model.
    JobFinished {
        /// The job's id.
        job: String,
        /// Steps that were trained.
        step: u64,
        /// BLAKE3 of the final parameters, in hexadecimal: equal for equal jobs, whatever happened to the fleet.
        model_digest: String,
        /// Mean training loss of the last step.
        train_loss: f64,
        /// The last evaluation, if the job asks for any.
        #[serde(skip_serializing_if = "Option::is_none")]
        evaluation: Option<Evaluation>,
    }
    /// What an evaluation found.
    Evaluation {
        /// Mean loss.
        loss: f64,
        /// Right predictions (samples, or tokens of text).
        correct: u64,
        /// Predictions.
        count: u64,
    }
    /// A job is to run on these slots.
    JobPlanned {
        /// The job's id.
        job: String,
        /// How many slots it had before; absent in events of builds that did not say so.
        #[serde(skip_serializing_if = "Option::is_none")]
        from: Option<u32>,
        /// How many it is to have.
        to: u32,
        /// Which, sorted: `SERVER/INDEX`.
        slots: Vec<String>,
        /// Why so many.
        cause: PlanCause,
        /// What it waits for, if it could use more.
        #[serde(skip_serializing_if = "Option::is_none")]
        waits: Option<Waits>,
        /// The policy that decided.
        policy: String,
    }
    /// A job trains at its new size: the first step with it is complete, or those that stay have gone on without who left.
    JobScaled {
        /// The job's id.
        job: String,
        /// How many slots it had before.
        from: u32,
        /// On how many it trains.
        to: u32,
        /// Why.
        cause: PlanCause,
        /// From the decision to the first step at the new size, in milliseconds.
        took_ms: u64,
        /// What that step took longer than one before the change, in microseconds; absent if no step was measured.
        #[serde(skip_serializing_if = "Option::is_none")]
        pause_us: Option<u64>,
    }
    /// A job goes back.
    JobRestarted {
        /// The job's id.
        job: String,
        /// The step it goes on from.
        from_step: u64,
    }
    /// A job was evaluated.
    JobEvaluated {
        /// The job's id.
        job: String,
        /// Steps trained by then.
        step: u64,
        /// What came out.
        evaluation: Evaluation,
    }
    /// A job makes no progress.
    JobStalled {
        /// The job's id.
        job: String,
        /// The step that does not end.
        step: u64,
        /// What its members wait for.
        cause: StallCause,
        /// Processes that hold up the others.
        blamed: Vec<String>,
        /// What is done about it.
        remedy: StallRemedy,
    }
    /// A job does not use a slot for a while.
    JobSlotAvoided {
        /// The job's id.
        job: String,
        /// The slot: `SERVER/INDEX`.
        slot: String,
        /// Until then.
        until: String,
        /// What happened there.
        cause: AvoidCause,
    }
    /// A job does not grow for a while.
    JobGrowthPaused {
        /// The job's id.
        job: String,
        /// Until then.
        until: String,
        /// The newcomer that was given up.
        executor: String,
        /// Why.
        cause: GrowthFailure,
    }
    /// A process is to be started.
    ExecutorAssigned {
        /// The job's id.
        job: String,
        /// The process: `JOB/eNUMBER`.
        executor: String,
        /// Where: `SERVER/INDEX`.
        slot: String,
    }
    /// A process can join.
    ExecutorReady {
        /// The job's id.
        job: String,
        /// The process.
        executor: String,
    }
    /// A process that joined holds the replica.
    ExecutorReplicaHeld {
        /// The job's id.
        job: String,
        /// The process.
        executor: String,
        /// The replica's step.
        step: u64,
    }
    /// A process is to leave.
    ExecutorLeaving {
        /// The job's id.
        job: String,
        /// The process.
        executor: String,
        /// When it is killed.
        deadline: String,
        /// Why.
        cause: LeaveCause,
    }
    /// A process has ended.
    ExecutorGone {
        /// The job's id.
        job: String,
        /// The process.
        executor: String,
        /// Where it was.
        slot: String,
        /// How it ended.
        exit: Exit,
        /// Its exit status, if it exited with one.
        #[serde(skip_serializing_if = "Option::is_none")]
        status: Option<i32>,
        /// The signal that ended it, if nobody here sent it.
        #[serde(skip_serializing_if = "Option::is_none")]
        signal: Option<i32>,
        /// Why it could not be started.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    }
    /// Members are to come together.
    GenerationProposed {
        /// The job's id.
        job: String,
        /// The number of the membership; within a job it only grows.
        generation: u64,
        /// How its members come to one state.
        entry: Entry,
        /// Its members, sorted.
        members: Vec<Member>,
        /// Which of them paces the steps.
        leader: String,
        /// When it is given up.
        deadline: String,
    }
    /// A member of a generation.
    Member {
        /// The process.
        executor: String,
        /// The logical workers that it hosts, sorted.
        ranks: Vec<u16>,
    }
    /// A membership is in force.
    GenerationActive {
        /// The job's id.
        job: String,
        /// Its number.
        generation: u64,
        /// First step it computes.
        step: u64,
        /// From the boundary between two steps, or a loss, until it was in force, in microseconds.
        pause_us: u64,
    }
    /// A first step is complete.
    GenerationStepped {
        /// The job's id.
        job: String,
        /// The number of the membership.
        generation: u64,
        /// Steps trained by then.
        step: u64,
        /// From the boundary, or a loss, to the end of that step, in microseconds.
        first_step_us: u64,
        /// A step before the change, in microseconds.
        #[serde(skip_serializing_if = "Option::is_none")]
        usual_step_us: Option<u64>,
    }
    /// A membership is given up.
    GenerationAbandoned {
        /// The job's id.
        job: String,
        /// Its number.
        generation: u64,
        /// Why.
        cause: AbandonCause,
    }
    /// A member left.
    MemberDeparted {
        /// The job's id.
        job: String,
        /// The number of the membership.
        generation: u64,
        /// Who left.
        executor: String,
        /// Who paces the steps from here on.
        leader: String,
        /// First step without it.
        step: u64,
    }
    /// A process does not end.
    ExecutorStuck {
        /// The job's id.
        job: String,
        /// The process.
        executor: String,
        /// Where it is: of no use until it is gone.
        slot: String,
    }
    /// A member was lost.
    MemberLost {
        /// The job's id.
        job: String,
        /// The process.
        executor: String,
        /// Where it was.
        slot: String,
        /// How that was noticed.
        noticed: LossNotice,
        /// How its process ended, if that is how it was noticed.
        #[serde(skip_serializing_if = "Option::is_none")]
        exit: Option<Exit>,
        /// What its job stood still for, if that is how it was noticed.
        #[serde(skip_serializing_if = "Option::is_none")]
        stall: Option<StallCause>,
    }
    /// A member is slow.
    MemberStraggles {
        /// The job's id.
        job: String,
        /// The process.
        executor: String,
        /// Where it is.
        slot: String,
        /// How long the gradient of one logical worker takes it, in microseconds.
        unit_us: u64,
        /// How long it takes the others: their median, in microseconds.
        peers_unit_us: u64,
    }
    /// A member keeps up again.
    MemberKeepsUp {
        /// The job's id.
        job: String,
        /// The process.
        executor: String,
    }
    /// A member cannot reach others.
    PeersMissing {
        /// The job's id.
        job: String,
        /// The number of the membership.
        generation: u64,
        /// Who cannot reach them.
        by: String,
        /// Whom.
        peers: Vec<String>,
        /// Whether the membership was in force; otherwise its members were still linking up.
        begun: bool,
    }
    /// A checkpoint counts.
    CheckpointAccepted {
        /// The job's id.
        job: String,
        /// Steps trained by then.
        step: u64,
        /// Its size.
        bytes: u64,
        /// BLAKE3 of the whole replica, in hexadecimal.
        replica_digest: String,
    }
    /// A checkpoint is damaged.
    CheckpointDamaged {
        /// The job's id.
        job: String,
        /// Its step.
        step: u64,
        /// What is wrong with it.
        reason: String,
        /// The step of the checkpoint that is used instead; 0 is the job's beginning.
        instead_step: u64,
    }
    /// A checkpoint needs another build.
    CheckpointUnreadable {
        /// The job's id.
        job: String,
        /// Its step.
        step: u64,
        /// Which build can read it, and what to do.
        reason: String,
    }
    /// A dataset can be trained on.
    DatasetRegistered {
        /// The dataset's name.
        dataset: String,
        /// How many rows it has.
        rows: u64,
    }
    /// A dataset is gone.
    DatasetRemoved {
        /// The dataset's name.
        dataset: String,
    }
    /// A fleet owns slots.
    FleetDeclared {
        /// The fleet's name.
        fleet: String,
        /// Its slots, sorted: `SERVER/INDEX`.
        slots: Vec<String>,
        /// Whether a lower need lends slots by itself.
        offers: Offers,
        /// Time from a reclaim to the kill, in milliseconds.
        reclaim_deadline_ms: u64,
    }
    /// A fleet said what it needs.
    FleetDemand {
        /// The fleet's name.
        fleet: String,
        /// The signal's number; a fleet's numbers grow.
        sequence: u64,
        /// How many of its slots it needs.
        needed: u32,
    }
    /// A fleet lends slots.
    SlotsOffered {
        /// The fleet's name.
        fleet: String,
        /// Which: `SERVER/INDEX`.
        slots: Vec<String>,
    }
    /// A slot is used.
    SlotBorrowed {
        /// The slot: `SERVER/INDEX`.
        slot: String,
        /// Whose it is; absent in events of builds that did not say so.
        #[serde(skip_serializing_if = "Option::is_none")]
        fleet: Option<String>,
        /// Who uses it; absent in events of builds that did not say so.
        #[serde(skip_serializing_if = "Option::is_none")]
        job: Option<String>,
    }
    /// A slot is wanted back.
    SlotReclaimed {
        /// The slot: `SERVER/INDEX`.
        slot: String,
        /// Whose it is; absent in events of builds that did not say so.
        #[serde(skip_serializing_if = "Option::is_none")]
        fleet: Option<String>,
        /// Who is on it, if anybody.
        #[serde(skip_serializing_if = "Option::is_none")]
        job: Option<String>,
        /// When a process on it is killed.
        deadline: String,
        /// Why.
        cause: ReclaimCause,
    }
    /// A slot is free.
    SlotReturned {
        /// The slot: `SERVER/INDEX`.
        slot: String,
        /// Whose it is; absent if no fleet declares it any more.
        #[serde(skip_serializing_if = "Option::is_none")]
        fleet: Option<String>,
        /// From the reclaim until it was free, in milliseconds; absent in events of builds that did not say so.
        #[serde(skip_serializing_if = "Option::is_none")]
        took_ms: Option<u64>,
    }
    /// An agent is there.
    AgentJoined {
        /// The server's name.
        server: String,
        /// Slots it holds, numbered from 0.
        slots: u16,
    }
    /// An agent was not heard.
    AgentGone {
        /// The server's name.
        server: String,
    }
    /// A server is forgotten.
    ServerForgotten {
        /// The server's name.
        server: String,
    }
    /// A command had no effect.
    CommandRefused {
        /// The command's id.
        command: String,
        /// The job, fleet or dataset it was about.
        subject: String,
        /// Why.
        refusal: Refusal,
        /// Why, for people.
        reason: String,
    }
    /// An input had no effect.
    InputRefused {
        /// The stream it came in.
        stream: String,
        /// Where it stands there.
        offset: u64,
        /// Why, for people.
        reason: String,
    }
    /// The policy gave no plan.
    PlanFailed {
        /// The policy's name.
        policy: String,
        /// What it died of.
        reason: String,
    }
    /// A policy plans.
    PolicyChosen {
        /// The policy's name.
        policy: String,
    }
    /// Objects were deleted.
    StoreSwept {
        /// How many.
        objects: u64,
        /// Their size.
        bytes: u64,
    }
}

data! {
    /// How far a job is, as its leader last said. Told at most once a second on a job's stream while it trains; it is in no log, has no cursor, and is never
    /// repeated.
    JobProgress {
        /// The job's id.
        job: String,
        /// Steps trained.
        step: u64,
        /// Steps in all.
        steps_total: u64,
        /// Passes over the dataset that are complete.
        epoch: u64,
        /// Mean training loss of the last step.
        loss: f64,
        /// Over the last second or two.
        samples_per_second: f64,
        /// Duration of the last step, in microseconds.
        step_us: u64,
        /// Processes that train it.
        members: u16,
    }
}

/// The type of [`JobProgress`].
pub const JOB_PROGRESS: &str = "dev.ebb.job.progress.v1";

macro_rules! words {
    ($($(#[doc = $doc:literal])* $name:ident { $($(#[$word_doc:meta])* $word:ident,)* })*) => {$(
        $(#[doc = $doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum $name {
            $($(#[$word_doc])* $word,)*
        }
    )*};
}

words! {
    /// Why a job has what it has.
    PlanCause {
        /// Its guaranteed minimum.
        Guarantee,
        /// More than the minimum, because slots were there and it gained most.
        Gain,
        /// Fewer, because a fleet takes slots back.
        Reclaimed,
        /// Fewer, because another job goes first.
        GaveWay,
        /// A process or a server was lost.
        Lost,
        /// It waits, is suspended or has ended.
        Nothing,
    }
    /// What a job waits for.
    WaitKind {
        /// Slots that others have.
        Slots,
        /// An earlier or more important job.
        Job,
        /// Its user.
        Resume,
        /// Any slot to be lent.
        Offers,
        /// A pause after repeated failures.
        Backoff,
    }
    /// What the members of a job that makes no progress wait for.
    StallCause {
        /// Each other.
        Peers,
        /// One that does not end a unit of computing.
        Unit,
        /// Bytes that do not arrive, or far too slowly.
        Bytes,
        /// The object store.
        Store,
    }
    /// What is done about a job that makes no progress.
    StallRemedy {
        /// Its members come together anew.
        Round,
        /// The blamed are replaced.
        WithoutBlamed,
        /// It goes back to its last checkpoint, on other slots.
        Restart,
        /// It is suspended until its user resumes it.
        Suspend,
        /// It fails: the same computation hung on two slots.
        Fail,
        /// Nothing: it goes on by itself when the store answers.
        Wait,
    }
    /// Why a job does not use a slot.
    AvoidCause {
        /// The process there could not be linked with the others.
        Unreachable,
        /// The process there hung, or moved no bytes.
        Hung,
    }
    /// Why a newcomer did not come in.
    GrowthFailure {
        /// It was lost, or its slot went back, before it held the replica.
        Lost,
        /// It was not ready in time.
        Late,
        /// Its copy of the replica stood still, or was far slower than the link allows.
        Slow,
    }
    /// Why a process has to leave.
    LeaveCause {
        /// Its slot goes back to its fleet.
        Reclaim,
        /// The plan gives the slot to another job, or to none.
        Plan,
        /// Its job ended or is suspended.
        JobEnd,
        /// It was never part of a membership that goes on.
        Useless,
    }
    /// How a process ended.
    Exit {
        /// As asked.
        Left,
        /// With an exit status of its own.
        Status,
        /// By a signal that nobody here sent.
        Signal,
        /// Killed at a deadline or on an order.
        Killed,
        /// It could not be started.
        NotStarted,
        /// It said nothing for seconds, and was killed.
        Silent,
    }
    /// How it was noticed that a member is lost.
    LossNotice {
        /// Its process ended.
        Exit,
        /// It said nothing for seconds, and its agent killed it.
        Silence,
        /// Its agent was not heard for its lease.
        Lease,
        /// Another agent is on its server, which has reaped what the one before had started.
        Agent,
        /// It cannot be linked with the other members.
        Link,
        /// It held up the others.
        Stall,
    }
    /// How the members of a generation come to one state.
    Entry {
        /// All begin with the initial replica.
        Fresh,
        /// All load a checkpoint.
        Checkpoint,
        /// Those who are there go on, and send newcomers the replica.
        Switch,
        /// Members were lost: the newest replica among the survivors counts.
        Recover,
    }
    /// Why a proposed membership is given up.
    AbandonCause {
        /// It was not in force by its deadline.
        Deadline,
        /// A member was lost or has to leave.
        MemberLost,
        /// The plan changed first.
        Superseded,
        /// Some of its members cannot be linked.
        Unlinked,
    }
    /// How a fleet lends.
    Offers {
        /// By naming slots.
        Explicit,
        /// By needing fewer.
        ByDemand,
    }
    /// Why a slot goes back.
    ReclaimCause {
        /// The fleet's need rose.
        Demand,
        /// The fleet named it.
        Named,
        /// It was taken at its agent.
        Direct,
        /// The fleet no longer declares it.
        Undeclared,
    }
    /// Why a command had no effect.
    Refusal {
        /// It names something that is not there.
        Unknown,
        /// The job is in another phase.
        WrongPhase,
        /// The name is taken.
        Exists,
        /// Something that is not finished uses it.
        InUse,
        /// A newer signal was taken.
        Old,
        /// A bound of the service is reached.
        Limit,
        /// A value does not fit what it refers to.
        Unfit,
    }
}

data! {
    /// What a job waits for.
    Waits {
        /// What kind of thing.
        what: WaitKind,
        /// Slots that are missing.
        #[serde(skip_serializing_if = "Option::is_none")]
        missing: Option<u32>,
        /// The job that goes first.
        #[serde(skip_serializing_if = "Option::is_none")]
        job: Option<String>,
        /// When the pause ends.
        #[serde(skip_serializing_if = "Option::is_none")]
        until: Option<String>,
    }
}
