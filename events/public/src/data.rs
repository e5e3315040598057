//! What each public event holds: plain data, of which the JSON Schemas are made. Numbers carry their unit in the name, times are RFC 3339 in UTC.
//! Those about servers and the service itself are in `of_service.rs`.

use crate::of_service::SlowLink;
use crate::words::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

macro_rules! data {
    ($($(#[doc = $doc:literal])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $kind:ty,)* })*) => {$(
        $(#[doc = $doc])*
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $kind,)*
        }
    )*};
}

pub(crate) use data;

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
        /// For its user: what, where, and what to do; keys of objects, addresses and tokens are left out, the job's record has the whole text.
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
        /// Mean training loss of the last step; 0 of a whole program, into which nobody looks (`train_loss_measured`).
        train_loss: f64,
        /// Whether anybody measured that loss: not of a whole program.
        train_loss_measured: bool,
        /// The last evaluation, if the job asks for any.
        #[serde(skip_serializing_if = "Option::is_none")]
        evaluation: Option<Evaluation>,
    }
    /// What an evaluation found.
    Evaluation {
        /// Mean loss; 0 if there are `means` and none is called so.
        loss: f64,
        /// Right predictions (samples, or tokens of text); 0 if there are `means` and none is called so.
        correct: u64,
        /// All predictions that were made.
        count: u64,
        /// All that the code of a job in PyTorch measured, by its names: means over the predictions; null for what is no finite number.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        means: BTreeMap<String, Option<f64>>,
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
        /// What made the policy plan it.
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
        /// Why; absent in events of builds that did not say so.
        #[serde(skip_serializing_if = "Option::is_none")]
        cause: Option<RestartCause>,
        /// The processes it is about: the member that was lost, those that held up the others, or those whose replica differed; absent if none is known.
        #[serde(skip_serializing_if = "Option::is_none")]
        executors: Option<Vec<String>>,
        /// How it was noticed that the member is lost, if one was.
        #[serde(skip_serializing_if = "Option::is_none")]
        noticed: Option<LossNotice>,
        /// How the process of that member ended, if that is how it was noticed.
        #[serde(skip_serializing_if = "Option::is_none")]
        exit: Option<Exit>,
        /// What its members waited for, if it made no progress.
        #[serde(skip_serializing_if = "Option::is_none")]
        stall: Option<StallCause>,
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
        /// What kept the newcomer from becoming a member.
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
        /// What asked for its slot.
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
        /// Of a job with a `batch_range`: how many steps one of its updates takes, if that is more than one.
        #[serde(skip_serializing_if = "Option::is_none")]
        stride: Option<u16>,
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
        /// From the boundary, or a loss, to the end of that step, in microseconds; of an update that takes several, to its end.
        first_step_us: u64,
        /// What as many steps took before the change, in microseconds.
        #[serde(skip_serializing_if = "Option::is_none")]
        usual_step_us: Option<u64>,
        /// How many steps the first update took, if that is more than one.
        #[serde(skip_serializing_if = "Option::is_none")]
        stride: Option<u16>,
    }
    /// A size was measured.
    ThroughputMeasured {
        /// The job's id.
        job: String,
        /// Members that train together.
        members: u16,
        /// A step of so many usually takes so long, in microseconds; all of an update that takes several.
        step_us: u64,
        /// How many steps an update takes, if that is more than one.
        #[serde(skip_serializing_if = "Option::is_none")]
        stride: Option<u16>,
        /// The standard error of that duration as a part of it, in millionths.
        #[serde(skip_serializing_if = "Option::is_none")]
        error_micro: Option<u32>,
        /// Of how many updates it is the median.
        #[serde(skip_serializing_if = "Option::is_none")]
        updates: Option<u16>,
    }
    /// A membership is given up.
    GenerationAbandoned {
        /// The job's id.
        job: String,
        /// Its number.
        generation: u64,
        /// What ended it.
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
        /// How long the gradient of one logical worker takes it, in microseconds; with the cause `network`, how long a step takes all of them.
        unit_us: u64,
        /// How long it takes the others: their median, in microseconds; with the cause `network`, how long a step took before.
        peers_unit_us: u64,
        /// What takes it longer; absent if its build did not say.
        #[serde(skip_serializing_if = "Option::is_none")]
        cause: Option<StragglerCause>,
    }
    /// Members had different replicas.
    ReplicasDiffered {
        /// The job's id.
        job: String,
        /// The step.
        step: u64,
        /// The processes whose replica differed from what more than half of the members had; none if nothing was held by so many.
        executors: Vec<String>,
        /// Where they were, in the same order. Nothing is trained there until the slot's fleet has had it back, or its agent was started anew.
        slots: Vec<String>,
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
        /// The members that it cannot reach.
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
        /// What of it is damaged, in one of a few fixed sentences.
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
    /// A fleet was recalled.
    FleetRecalled {
        /// The fleet's name.
        fleet: String,
        /// How many of its slots stay with it; absent if all.
        #[serde(skip_serializing_if = "Option::is_none")]
        slots: Option<u32>,
    }
    /// A fleet was released.
    FleetReleased {
        /// The fleet's name.
        fleet: String,
    }
    /// A tenant has another quota.
    QuotaSet {
        /// The tenant's name.
        tenant: String,
        /// Slots that it has guaranteed from now on; absent if it has no quota any more.
        #[serde(skip_serializing_if = "Option::is_none")]
        quota_slots: Option<u32>,
    }
    /// Signals could not be used.
    SignalsRefused {
        /// The fleet's name.
        fleet: String,
        /// Where the newest of them stands in the fleet's topic.
        offset: u64,
        /// How many, since it was last said.
        count: u64,
        /// What is wrong with the newest, and what would be right.
        reason: String,
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
        /// What asked for the slot.
        cause: ReclaimCause,
        /// When a fleet asked for it at the agent, or no controller had renewed the agent's lease; the agent says so once the slot is free. Absent if
        /// it is asked for now.
        #[serde(skip_serializing_if = "Option::is_none")]
        asked: Option<String>,
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
    /// The device of a slot that nothing runs on is not as it should be.
    SlotQuarantined {
        /// The slot: `SERVER/INDEX`.
        slot: String,
        /// Whose it is; absent if no fleet declares it any more.
        #[serde(skip_serializing_if = "Option::is_none")]
        fleet: Option<String>,
        /// What is wrong.
        reason: String,
    }
    /// The device of a slot is as it should be again.
    SlotRecovered {
        /// The slot: `SERVER/INDEX`.
        slot: String,
        /// Whose it is; absent if no fleet declares it any more.
        #[serde(skip_serializing_if = "Option::is_none")]
        fleet: Option<String>,
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
        /// The numeric class of the slots that it needs.
        #[serde(skip_serializing_if = "Option::is_none")]
        class: Option<String>,
        /// The link that is too slow.
        #[serde(skip_serializing_if = "Option::is_none")]
        link: Option<SlowLink>,
    }
}
