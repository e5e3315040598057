//! Bodies of requests and answers, as JSON shows them. Serialisable here and nowhere deeper; made and read by `convert.rs`.
//!
//! Times are RFC 3339 texts, units stand last in names, and what does not exist (yet) is `null`.

use events_public::CloudEvent;
use events_schema::command::{Demand, OfferMode};
use events_schema::dataset::{DatasetInfo, SampleShape};
use events_schema::fact::{CheckpointInfo, GrowthFailure, LossNotice, PlanCause, PlanReason, StallCause, StallRemedy};
use events_schema::job::Workers;
use events_schema::report::Metrics;
use events_schema::{CommandId, DatasetName, Digest, ExecutorId, FleetId, Generation, JobId, SlotId, Step, TenantId};
use serde::Serialize;
use serde_json::Value;
use storage::dataset::{ColumnNames, ElementType};

/// A job as it stands.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Job {
    /// Its id.
    pub id: JobId,
    /// Its name, not unique.
    pub name: String,
    /// Whose it is.
    pub tenant: TenantId,
    /// `queued`, `starting`, `running`, `suspending`, `suspended`, `finished`, `failed` or `cancelled`.
    pub phase: &'static str,
    /// Its spec with defaults applied; submitting it again trains the same.
    pub spec: Value,
    /// When it was accepted.
    pub submitted_at: String,
    /// The slots of its plan.
    pub slots: Vec<SlotId>,
    /// Bounds of the number of executors.
    pub workers: Workers,
    /// Number of the membership in force.
    pub generation: Option<u64>,
    /// How far it is, as its leader last said; not part of the ETag.
    pub progress: Option<Progress>,
    /// Why it has what it has and what it waits for.
    pub reason: Option<PlanReason>,
    /// The last change of its number of slots.
    pub last_scaling: Option<Scaling>,
    /// The newest checkpoint that counts.
    pub last_checkpoint: Option<CheckpointInfo>,
    /// The newest result on held-out data.
    pub last_evaluation: Option<Evaluation>,
    /// How it ended, if with a model.
    pub outcome: Option<Outcome>,
    /// Why it failed, for its user.
    pub failure: Option<String>,
    /// Times it went back to a checkpoint because every replica was lost.
    pub restarts: u32,
    /// Checkpoints that were found damaged and no longer count, newest finding last.
    pub damaged_checkpoints: Vec<DamagedCheckpoint>,
    /// The checkpoint that the job was suspended for, because it needs another build.
    pub unreadable_checkpoint: Option<UnreadableCheckpoint>,
    /// The last time that it made no progress, and what was done.
    pub last_stall: Option<Stall>,
    /// The member that was lost last.
    pub last_lost_member: Option<LostMember>,
    /// Why it does not grow for now: the newcomer that was given up. None once others came in.
    pub growth_paused: Option<GrowthPaused>,
    /// Members that the others wait for at every step.
    pub stragglers: Vec<Straggler>,
}

/// A job that made no progress.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Stall {
    /// When that was seen last.
    pub at: String,
    /// The step that did not end.
    pub step: Step,
    /// `peers`, `unit`, `bytes` or `store`: what its members waited for.
    pub cause: StallCause,
    /// What was tried at this step, in order: `wait`, `round`, `without_blamed`, `restart`, `suspend`, `fail`.
    pub tried: Vec<StallRemedy>,
}

/// A member that was lost.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LostMember {
    /// When that was noticed.
    pub at: String,
    /// Who.
    pub executor: ExecutorId,
    /// Where it was.
    pub slot: SlotId,
    /// How it was noticed: `{exit: …}`, `silence`, `lease`, `agent`, `link` or `{stall: …}`.
    pub noticed: LossNotice,
}

/// A newcomer that was given up, after which a job does not grow for a while.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GrowthPaused {
    /// When it was given up.
    pub at: String,
    /// When the job may grow again.
    pub until: String,
    /// The newcomer.
    pub executor: ExecutorId,
    /// `lost`, `late` or `slow`.
    pub cause: GrowthFailure,
}

/// A member that is far slower than the others.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Straggler {
    /// Who.
    pub executor: ExecutorId,
    /// Where it is.
    pub slot: SlotId,
    /// Since when that is known.
    pub since: String,
    /// How long one rank's gradient took it then, in microseconds.
    pub unit_us: u64,
    /// How long it took the others: their median.
    pub peers_unit_us: u64,
}

/// A checkpoint that cannot be restored from.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DamagedCheckpoint {
    /// When that was found.
    pub at: String,
    /// The replica's step.
    pub step: Step,
    /// The generation that wrote it.
    pub generation: Generation,
    /// Key of the object that is damaged.
    pub object: String,
    /// What is wrong with it.
    pub reason: String,
    /// The step of the checkpoint that is used instead; 0 is the beginning.
    pub instead: Step,
}

/// A checkpoint of a format that the build in use cannot read.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct UnreadableCheckpoint {
    /// When that was found.
    pub at: String,
    /// The replica's step.
    pub step: Step,
    /// The generation that wrote it.
    pub generation: Generation,
    /// Which build can read it, and what to do.
    pub reason: String,
}

/// How far a job is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Progress {
    /// Steps done.
    pub step: Step,
    /// Steps in all.
    pub steps_total: u64,
    /// Epoch of the current step.
    pub epoch: u64,
    /// Mean training loss of the last step.
    pub loss: f64,
    /// Over the last second or two.
    pub samples_per_second: f64,
    /// Duration of the last step, in microseconds.
    pub step_us: u64,
    /// Executors in lock-step.
    pub members: u16,
    /// For how long the leader waited for the samples of a step, in microseconds, over the last second or two.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_wait_us: Option<u64>,
}

/// A change of a job's number of slots.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Scaling {
    /// When it was decided.
    pub at: String,
    /// Slots before.
    pub from: usize,
    /// Slots after.
    pub to: usize,
    /// Why.
    pub cause: PlanCause,
}

/// A result on held-out data.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Evaluation {
    /// The replica's step.
    pub step: Step,
    /// What came out.
    #[serde(flatten)]
    pub scores: Scores,
}

/// Metrics, and what people read out of them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Scores {
    /// As counted.
    #[serde(flatten)]
    pub metrics: Metrics,
    /// Mean loss.
    pub loss: f64,
    /// Share of right predictions, 0 to 1.
    pub accuracy: f64,
}

/// How a job ended with a model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// Steps done.
    pub step: Step,
    /// Key of the model's file in the store; its bytes are at `/v1/jobs/{id}/model`.
    pub model_key: String,
    /// Digest of the final parameters.
    pub model_digest: Digest,
    /// Mean training loss of the last step, in millionths.
    pub train_loss_micro: i64,
    /// The same as a number.
    pub train_loss: f64,
    /// The last evaluation.
    pub metrics: Option<Scores>,
}

/// A page of jobs, newest first.
#[derive(Debug, Serialize)]
pub struct JobPage {
    /// At most `limit` of them.
    pub jobs: Vec<Job>,
    /// Where the next page begins; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// A command that is durable but not decided yet.
#[derive(Debug, Serialize)]
pub struct Undecided {
    /// The job, fleet or dataset it is about.
    pub id: String,
    /// The command.
    pub command: CommandId,
    /// Always `undecided`.
    pub status: &'static str,
    /// Where its effect will show.
    pub path: String,
    /// What to do.
    pub detail: &'static str,
}

/// What became of a command.
#[derive(Debug, Serialize)]
pub struct CommandStatus {
    /// Its id.
    pub command: CommandId,
    /// `done`, `refused`, or `undecided`: nobody has decided (yet), it is older than those that are remembered, or it never came.
    pub status: &'static str,
    /// Why it was refused, as the request itself would have been answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<Value>,
}

/// The checkpoints of a job that count, oldest first.
#[derive(Debug, Serialize)]
pub struct Checkpoints {
    /// All of them.
    pub checkpoints: Vec<CheckpointInfo>,
}

/// Datasets, by name.
#[derive(Debug, Serialize)]
pub struct Datasets {
    /// All of them.
    pub datasets: Vec<DatasetInfo>,
}

/// A fleet as it stands.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Fleet {
    /// Its name.
    pub name: FleetId,
    /// How its slots are offered.
    pub offers: OfferMode,
    /// Time from a reclaim to the kill of an executor.
    pub reclaim_deadline_ms: u64,
    /// Slots it needs for itself, as it last said.
    pub needed: Option<u32>,
    /// Number of that signal.
    pub sequence: Option<u64>,
    /// How many of its slots it keeps until it is released, while it is recalled.
    pub recalled: Option<u32>,
    /// Its slots, sorted.
    pub slots: Vec<Slot>,
}

/// A slot as it stands.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Slot {
    /// `SERVER/INDEX`.
    pub slot: SlotId,
    /// Whose it is; a slot of no fleet is never used.
    pub fleet: Option<FleetId>,
    /// `undeclared` (of no fleet), `unoffered`, `offered`, `borrowed`, `reclaimed`, or `unknown`: to be free, on a server that cannot be reached.
    pub state: &'static str,
    /// The job on it.
    pub job: Option<JobId>,
    /// The executor on it.
    pub executor: Option<ExecutorId>,
    /// Numeric class of its server; absent while no agent is there.
    pub class: Option<Digest>,
}

/// Fleets, by name.
#[derive(Debug, Serialize)]
pub struct Fleets {
    /// All of them.
    pub fleets: Vec<Fleet>,
}

/// Logs of a job's executors.
#[derive(Debug, Serialize)]
pub struct Logs {
    /// By executor.
    pub logs: Vec<Log>,
}

/// What is kept of what one executor said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Log {
    /// Who.
    pub executor: ExecutorId,
    /// Its number within the job.
    pub number: u32,
    /// The place of the first byte that is kept.
    pub from: u64,
    /// The place behind the last.
    pub to: u64,
    /// When it last grew.
    pub changed_at: String,
}

/// What a submit would come to: nothing is wrong with it.
#[derive(Debug, Serialize)]
pub struct DryRun {
    /// Always true.
    pub dry_run: bool,
    /// The job that the same key and body made before, if they did; a submit would answer with it.
    pub known: Option<JobId>,
    /// The spec as it would be taken, with what it leaves out.
    pub spec: Value,
}

/// Slots, by server and number.
#[derive(Debug, Serialize)]
pub struct Slots {
    /// All of them.
    pub slots: Vec<Slot>,
}

/// A demand signal that is durable.
#[derive(Debug, Serialize)]
pub struct DemandTaken {
    /// `accepted`, or `undecided` while no controller has decided.
    pub status: &'static str,
    /// Whose.
    pub fleet: FleetId,
    /// Its number.
    pub sequence: u64,
    /// Slots needed as they count: rounded up, and not more than the fleet has.
    pub needed: u32,
}

/// A page of events, oldest first.
#[derive(Debug, Serialize)]
pub struct EventPage {
    /// At most `limit` of them.
    pub events: Vec<CloudEvent>,
    /// Where to go on later.
    pub cursor: String,
    /// The same, if there is more right now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// What this service is.
#[derive(Debug, Serialize)]
pub struct Server {
    /// Of this build.
    pub version: &'static str,
    /// The cell it serves.
    pub cell: u32,
    /// Where datasets and models are kept, without credentials.
    pub store_url: String,
}

/// Health.
#[derive(Debug, Serialize)]
pub struct Health {
    /// `ok`.
    pub status: &'static str,
}

/// Body of `PUT /v1/fleets/{fleet}`.
#[derive(Debug, Clone, PartialEq)]
pub struct FleetDeclaration {
    /// Its slots, sorted, each once.
    pub slots: Vec<SlotId>,
    /// How they are offered.
    pub offers: OfferMode,
    /// Time from a reclaim to the kill of an executor.
    pub reclaim_deadline_ms: u64,
}

/// Body of `POST /v1/fleets/{fleet}/demand`.
#[derive(Debug, Clone, PartialEq)]
pub struct DemandBody {
    /// How much is needed.
    pub demand: Demand,
    /// Its number; minted if absent.
    pub sequence: Option<u64>,
}

/// Body of `POST /v1/datasets`.
#[derive(Debug, Clone, PartialEq)]
pub struct DatasetBody {
    /// Its name.
    pub name: DatasetName,
    /// Where its rows or its metadata are.
    pub source: DatasetSource,
}

/// Where a dataset comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum DatasetSource {
    /// Files to be read here: their footers now, their rows when trained on.
    Files(DatasetFiles),
    /// A metadata object that an import has already written to the store.
    Metadata {
        /// Its key.
        key: String,
        /// Digest of its bytes.
        digest: Digest,
    },
}

/// Files and how to read them.
#[derive(Debug, Clone, PartialEq)]
pub struct DatasetFiles {
    /// Addresses, in the order of the dataset.
    pub uris: Vec<String>,
    /// What a row holds; found out from the files if absent.
    pub sample: Option<SampleShape>,
    /// Which columns hold it.
    pub columns: ColumnNames,
    /// Type of the elements of binary columns.
    pub element: Option<ElementType>,
    /// Stored elements are multiplied by this.
    pub scale: Option<f32>,
}
