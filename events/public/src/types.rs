//! The types of public events and what they are about. What each holds is in `data.rs`, the words that its fields say in `words.rs`.
//!
//! Within a version nothing is taken away, renamed or given another type, and nothing that was always there becomes optional
//! (`tests/documents.rs`). What may be added: types, fields and words. Next: `of_fact.rs`.

use crate::data::*;
use crate::of_service::*;
use crate::progress::JobProgress;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::Value;

/// The schema of what is written: a field that may be null and is there always is one that is required.
fn schema<T: JsonSchema>() -> Value {
    SchemaSettings::draft2020_12().for_serialize().into_generator().into_root_schema_for::<T>().to_value()
}

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

            /// The job, fleet, dataset, slot, tenant or server it is about.
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
                $(($kind, concat!($($doc),*).trim_ascii(), schema::<$name>()),)*
                (JOB_PROGRESS, "How far a job is: only on its stream over HTTP.", schema::<JobProgress>()),
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
    /// A job goes back to its last checkpoint, or to its beginning: every replica was lost, or it is a gang whose slots change.
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
    /// How long a step usually takes on so many members was measured.
    ThroughputMeasured = "dev.ebb.generation.throughput_measured.v1" about event => &event.job;
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
    /// Members had different replicas at one step; the job goes back to its last checkpoint.
    ReplicasDiffered = "dev.ebb.generation.replicas_differed.v1" about event => &event.job;
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
    /// A fleet takes slots back and keeps them until it is released, whatever demand it signals.
    FleetRecalled = "dev.ebb.fleet.recalled.v1" about event => &event.fleet;
    /// A recall is over: a fleet's demand decides again what it lends.
    FleetReleased = "dev.ebb.fleet.released.v1" about event => &event.fleet;
    /// Signals in a fleet's own topic could not be used, and changed nothing.
    SignalsRefused = "dev.ebb.fleet.signals_refused.v1" about event => &event.fleet;
    /// A fleet lends slots.
    SlotsOffered = "dev.ebb.slot.offered.v1" about event => &event.fleet;
    /// A lent slot is used from now on.
    SlotBorrowed = "dev.ebb.slot.borrowed.v1" about event => &event.slot;
    /// A fleet wants a slot back.
    SlotReclaimed = "dev.ebb.slot.reclaimed.v1" about event => &event.slot;
    /// A slot is free and its fleet's again.
    SlotReturned = "dev.ebb.slot.returned.v1" about event => &event.slot;
    /// A slot is of no use to anybody: its device does not give memory back, or is gone.
    SlotQuarantined = "dev.ebb.slot.quarantined.v1" about event => &event.slot;
    /// The device of such a slot is as it should be.
    SlotRecovered = "dev.ebb.slot.recovered.v1" about event => &event.slot;
    /// A tenant has so many slots guaranteed, under a policy that knows of quotas.
    QuotaSet = "dev.ebb.tenant.quota_set.v1" about event => &event.tenant;
    /// A server's agent is there.
    AgentJoined = "dev.ebb.agent.joined.v1" about event => &event.server;
    /// A server's agent was not heard for its lease.
    AgentGone = "dev.ebb.agent.gone.v1" about event => &event.server;
    /// A server has been gone for long, and no fleet declares a slot of it.
    ServerForgotten = "dev.ebb.server.forgotten.v1" about event => &event.server;
    /// The link of a server was found to be slow, or faster than it was known to be.
    LinkMeasured = "dev.ebb.server.link_measured.v1" about event => &event.server;
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
            Self::FleetRecalled(event) => Some(&event.fleet),
            Self::FleetReleased(event) => Some(&event.fleet),
            Self::SignalsRefused(event) => Some(&event.fleet),
            Self::SlotsOffered(event) => Some(&event.fleet),
            Self::SlotBorrowed(event) => event.fleet.as_deref(),
            Self::SlotReclaimed(event) => event.fleet.as_deref(),
            Self::SlotReturned(event) => event.fleet.as_deref(),
            Self::SlotQuarantined(event) => event.fleet.as_deref(),
            Self::SlotRecovered(event) => event.fleet.as_deref(),
            _ => None,
        }
    }
}

/// Whether events of a type may be about a job: those are on its own stream.
#[must_use]
pub fn may_be_of_job(kind: &str) -> bool {
    let of_jobs = ["job.", "executor.", "generation.", "checkpoint.", "command."];
    of_jobs.iter().any(|noun| kind.trim_start_matches(PREFIX).starts_with(noun))
}

/// Whether events of a type may be about a fleet or its slots: those are on its own stream.
#[must_use]
pub fn may_be_of_fleet(kind: &str) -> bool {
    ["fleet.", "slot."].iter().any(|noun| kind.trim_start_matches(PREFIX).starts_with(noun))
}

/// What every type begins with.
const PREFIX: &str = "dev.ebb.";

/// The type of [`JobProgress`].
pub const JOB_PROGRESS: &str = "dev.ebb.job.progress.v1";
