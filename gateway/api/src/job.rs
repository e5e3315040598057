//! Jobs as the API shows them. Times are RFC 3339 texts, units stand last in names, and what does not exist (yet) is `null`.

use crate::forms::{ExecutorName, Hash, Measured, Name, SlotName, Time, number_or_nan};
use crate::slot_type::TypeTime;
use crate::spec::{JobSpec, Workers};
use crate::speed::Speed;
use crate::word::{Word, words};
use events_public::{GrowthFailure, PlanCause, RestartCause, StallCause, StallRemedy, StragglerCause};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

words! {
    /// Where a job is in its life.
    JobPhase {
        /// It waits for slots.
        Queued = "queued",
        /// It has slots, and its executors come together.
        Starting = "starting",
        /// It trains.
        Running = "running",
        /// It writes a checkpoint and gives its slots back.
        Suspending = "suspending",
        /// It holds nothing and waits for its user.
        Suspended = "suspended",
        /// It ended with a model.
        Finished = "finished",
        /// It ended without a model.
        Failed = "failed",
        /// Its user ended it.
        Cancelled = "cancelled",
    }
}

impl JobPhase {
    /// Whether a job in it will never change again.
    #[must_use]
    pub fn is_over(self) -> bool {
        matches!(self, Self::Finished | Self::Failed | Self::Cancelled)
    }
}

/// A job as it stands.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Job {
    /// Its id.
    #[schemars(with = "Name")]
    pub id: String,
    /// Its name, not unique.
    pub name: String,
    /// Whose it is.
    #[schemars(with = "Name")]
    pub tenant: String,
    /// Where it is in its life.
    pub phase: Word<JobPhase>,
    /// Its spec with defaults applied; submitting it again trains the same.
    pub spec: JobSpec,
    /// Digest of the spec: equal ones are one spec. Its checkpoints and its model name it.
    #[schemars(with = "Hash")]
    pub spec_digest: String,
    /// Numeric class of the servers on which it trains, as `GET /v1/slots` shows it; null before it first trained, unless it retrains another job, whose class it needs.
    #[schemars(with = "Option<Hash>")]
    pub numeric_class: Option<String>,
    /// When it was accepted.
    #[schemars(with = "Time")]
    pub submitted_at: String,
    /// When it first trained.
    #[schemars(with = "Option<Time>")]
    pub started_at: Option<String>,
    /// When it ended, with a model or without.
    #[schemars(with = "Option<Time>")]
    pub finished_at: Option<String>,
    /// For how long it has held slots, summed over them: from the moment at which an executor is put on one until its process is gone. Not part of the ETag.
    pub slot_seconds: f64,
    /// The slots of its plan.
    #[schemars(with = "Vec<SlotName>")]
    pub slots: Vec<String>,
    /// Bounds of the number of executors.
    pub workers: Workers,
    /// Number of the membership in force.
    pub generation: Option<u64>,
    /// Of a job with a `batch_range`: the batches that it trained with.
    pub batches: Option<Batches>,
    /// How far it is, as its leader last said; not part of the ETag.
    pub progress: Option<Progress>,
    /// Why it has what it has and what it waits for.
    pub reason: Option<PlanReason>,
    /// The last change of its number of slots.
    pub last_scaling: Option<Scaling>,
    /// The newest checkpoint that counts.
    pub last_checkpoint: Option<Checkpoint>,
    /// The newest result on held-out data.
    pub last_evaluation: Option<Evaluation>,
    /// How it ended, if with a model.
    pub outcome: Option<Outcome>,
    /// Why it failed, for its user.
    pub failure: Option<String>,
    /// Times it went back to a checkpoint, or to its beginning.
    pub restarts: u32,
    /// The last of these times.
    pub last_restart: Option<Restart>,
    /// Checkpoints that were found damaged and no longer count, newest finding last.
    pub damaged_checkpoints: Vec<DamagedCheckpoint>,
    /// The checkpoint that the job was suspended for, because it needs another build.
    pub unreadable_checkpoint: Option<UnreadableCheckpoint>,
    /// The last time that it made no progress, and what was done.
    pub last_stall: Option<Stall>,
    /// The member that was lost last.
    pub last_lost_member: Option<LostMember>,
    /// Why it does not grow for now: the newcomer that was given up. `null` once others came in.
    pub growth_paused: Option<GrowthPaused>,
    /// Members that the others wait for at every step.
    pub stragglers: Vec<Straggler>,
    /// How fast it was measured to be on the slots that it has had since it last began on some, by their number.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub speeds: Vec<Speed>,
    /// How long one rank's gradient takes it on slots of each type, where it was on several at once and they were measured.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub type_times: Vec<TypeTime>,
}

/// The batches of a job whose spec leaves open how large they are: samples of one update, over all logical workers. At the end of an epoch, and where
/// something is due at a step, one may be smaller.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Batches {
    /// Of the membership in force; null without one.
    pub now: Option<u64>,
    /// Of all memberships so far, rising.
    pub used: Vec<u64>,
}

impl Job {
    /// Whether it will never change again.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.phase.known().is_some_and(|phase| phase.is_over())
    }
}

/// A page of jobs, newest first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct JobPage {
    /// At most `limit` of them.
    pub jobs: Vec<Job>,
    /// Where the next page begins; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// What a submit would come to: nothing is wrong with it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DryRun {
    /// Always true.
    pub dry_run: bool,
    /// The job that the same key and body made before, if they did; a submit would answer with it.
    #[schemars(with = "Option<Name>")]
    pub known: Option<String>,
    /// The spec as it would be taken, with what it leaves out.
    pub spec: JobSpec,
}

/// A file in the store, readable by a link for a while. The link is a secret while it is good.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct LinkedFile {
    /// Where its bytes are read, by GET, without any header.
    #[schemars(extend("format" = "uri"))]
    pub url: String,
    /// When the link stops being good.
    #[schemars(with = "Time")]
    pub expires_at: String,
    /// Its size.
    pub bytes: u64,
}

impl std::fmt::Debug for LinkedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { url: _, expires_at, bytes } = self;
        f.debug_struct("LinkedFile").field("expires_at", expires_at).field("bytes", bytes).finish_non_exhaustive()
    }
}

/// Logs of a job's executors.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Logs {
    /// By executor, at most `limit` of them.
    pub logs: Vec<Log>,
    /// Where the next page begins; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
    /// Whether there are too many to be listed: the newest are. What another one said can be read by its number.
    pub incomplete: bool,
}

/// What is kept of what one executor said.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Log {
    /// The executor's name.
    #[schemars(with = "ExecutorName")]
    pub executor: String,
    /// Its number within the job.
    pub number: u32,
    /// The place of the first byte that is kept.
    pub from: u64,
    /// The place behind the last.
    pub to: u64,
    /// When it last grew.
    #[schemars(with = "Time")]
    pub changed_at: String,
}

/// Why a job has the slots it has, and what it waits for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PlanReason {
    /// The policy that said so.
    pub policy: String,
    /// Why it has what it has.
    pub cause: Word<PlanCause>,
    /// Why it has no more.
    pub waits: Option<WaitCause>,
}

/// What a job waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WaitCause {
    /// Slots that others have.
    Slots {
        /// So many are missing to its minimum, or to its maximum if it runs.
        missing: u32,
    },
    /// This earlier or more important job.
    Job(#[schemars(with = "Name")] String),
    /// Its user's resume.
    Resume,
    /// Any slot to be lent; a slot with a device, if the job asks for one.
    Offers,
    /// A slot with a device: no fleet has one at all.
    Device,
    /// A slot of this numeric class, in which it began: all others that are lent are of another one.
    Class(#[schemars(with = "Hash")] String),
    /// Nothing: on more slots it was measured to be no faster.
    Speed,
    /// A slot of the type that it is on: all others that are lent are of another one, and its spec does not let it be on several (`types`).
    Type,
    /// Its tenant's quota, which other jobs of the tenant have, or which is smaller than what it asked for.
    Quota {
        /// So many slots of it are missing to those that it asked for.
        missing: u32,
    },
    /// A server with a faster link: whatever else is lent is on servers whose links would slow each of its steps.
    Link(SlowLink),
    /// A pause after repeated failures of its executors.
    Backoff {
        /// Until then.
        #[schemars(with = "Time")]
        until: String,
    },
    /// Whatever later builds add.
    #[serde(untagged)]
    #[schemars(skip)]
    Other(Value),
}

/// A link that is too slow for a job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SlowLink {
    /// The server whose link it is; the fastest of them, if there are several.
    pub server: String,
    /// Bytes per second that it was measured to carry.
    pub bytes_per_s: u64,
    /// Bytes of gradients that the job's steps make in a second.
    pub gradient_bytes_per_s: u64,
    /// The first over the second, in thousandths; more than 1,100 are needed.
    pub beta_milli: u64,
}

/// A change of a job's number of slots.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Scaling {
    /// When it was decided.
    #[schemars(with = "Time")]
    pub at: String,
    /// Slots before.
    pub from: u64,
    /// Slots after.
    pub to: u64,
    /// What made the policy plan it.
    pub cause: Word<PlanCause>,
}

/// How far a job is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Progress {
    /// Steps done.
    pub step: u64,
    /// Steps in all.
    pub steps_total: u64,
    /// Passes over the dataset that are complete: the number of the current one, from 0.
    pub epoch: u64,
    /// Mean training loss of the last step.
    #[serde(deserialize_with = "number_or_nan")]
    #[schemars(with = "Measured")]
    pub loss: f64,
    /// Over the last second or two.
    #[serde(deserialize_with = "number_or_nan")]
    #[schemars(with = "Measured")]
    pub samples_per_second: f64,
    /// Duration of the last step, in microseconds; of an update that takes several, of each.
    pub step_us: u64,
    /// For how long the leader waited for the samples of a step, in microseconds, over the last second or two.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_wait_us: Option<u64>,
    /// How long is let pass between two checkpoints now, in milliseconds; absent where they go by steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_every_ms: Option<u64>,
    /// Executors in lock-step.
    pub members: u16,
}

/// A checkpoint that counts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Checkpoint {
    /// The replica's step.
    pub step: u64,
    /// The generation that wrote it.
    pub generation: u64,
    /// Key of the manifest in the store.
    pub manifest_key: String,
    /// Digest of the whole replica.
    #[schemars(with = "Hash")]
    pub replica_digest: String,
    /// Size of all shards.
    pub bytes: u64,
}

/// The checkpoints of a job that count, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Checkpoints {
    /// At most `limit` of the few that its spec has it keep.
    pub checkpoints: Vec<Checkpoint>,
    /// Where the next page begins; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// What an evaluation found.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Metrics {
    /// Mean loss, in millionths.
    pub loss_micro: i64,
    /// Right predictions (samples, or tokens of text).
    pub correct: u64,
    /// Predictions made.
    pub count: u64,
    /// Mean loss; null if the job's code gave none.
    pub loss: Option<f64>,
    /// Share of right predictions, 0 to 1; null if the job's code counts none.
    pub accuracy: Option<f64>,
    /// All that the code of a job in PyTorch measured, by its names: means over the predictions; null for what is no finite number.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub means: BTreeMap<String, Option<f64>>,
}

/// A result on held-out data.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Evaluation {
    /// The replica's step.
    pub step: u64,
    /// What came out.
    #[serde(flatten)]
    pub metrics: Metrics,
}

/// How a job ended with a model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Outcome {
    /// Steps done.
    pub step: u64,
    /// Key of the model's file in the store; its bytes are at `/v1/jobs/{id}/model`.
    pub model_key: String,
    /// Digest of the final parameters.
    #[schemars(with = "Hash")]
    pub model_digest: String,
    /// Mean training loss of the last step, in millionths; null of a whole program, into which nobody looks.
    pub train_loss_micro: Option<i64>,
    /// The same as a number.
    pub train_loss: Option<f64>,
    /// The last evaluation.
    pub metrics: Option<Metrics>,
}

/// A job that made no progress.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Stall {
    /// When that was seen last.
    #[schemars(with = "Time")]
    pub at: String,
    /// The step that did not end.
    pub step: u64,
    /// What its members waited for.
    pub cause: Word<StallCause>,
    /// What was tried since the job last got further than ever, in order.
    pub tried: Vec<Word<StallRemedy>>,
}

/// A member that was lost.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct LostMember {
    /// When that was noticed.
    #[schemars(with = "Time")]
    pub at: String,
    /// The executor's name.
    #[schemars(with = "ExecutorName")]
    pub executor: String,
    /// Where it was.
    #[schemars(with = "SlotName")]
    pub slot: String,
    /// How it was noticed.
    pub noticed: LossNotice,
}

/// A job went back to its last checkpoint, or to its beginning.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Restart {
    /// When that was decided.
    #[schemars(with = "Time")]
    pub at: String,
    /// The step it went on from.
    pub from_step: u64,
    /// Why it could not go on from where it was.
    pub cause: Word<RestartCause>,
    /// The executors it is about: the member that was lost, those that held up the others, or those whose replica differed.
    #[schemars(with = "Vec<ExecutorName>")]
    pub executors: Vec<String>,
    /// How it was noticed that the member is lost, if one was.
    pub noticed: Option<LossNotice>,
    /// What its members waited for, if it made no progress.
    pub stall: Option<Word<StallCause>>,
}

/// How it was noticed that a member is lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LossNotice {
    /// Its process ended.
    Exit(ExitCause),
    /// It said nothing for seconds, and its agent killed it.
    Silence,
    /// Its agent was not heard for its lease.
    Lease,
    /// Another agent process is on its server.
    Agent,
    /// The others could not reach it.
    Link,
    /// It held up the others.
    Stall(Word<StallCause>),
    /// Whatever later builds add.
    #[serde(untagged)]
    #[schemars(skip)]
    Other(Value),
}

impl Default for LossNotice {
    fn default() -> Self {
        Self::Other(Value::Null)
    }
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExitCause {
    /// As asked.
    Left,
    /// With this exit status.
    Status(i32),
    /// By itself, for this reason.
    Failed(String),
    /// By a signal that nobody here sent.
    Signal(i32),
    /// Killed at a deadline or on an order.
    Killed,
    /// It could not be started.
    NotStarted(String),
    /// It said nothing for seconds, and was killed.
    Silent,
    /// The device of its slot is gone.
    DeviceLost(String),
    /// Whatever later builds add.
    #[serde(untagged)]
    #[schemars(skip)]
    Other(Value),
}

/// A newcomer that was given up, after which a job does not grow for a while.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct GrowthPaused {
    /// When it was given up.
    #[schemars(with = "Time")]
    pub at: String,
    /// When the job may grow again.
    #[schemars(with = "Time")]
    pub until: String,
    /// The newcomer.
    #[schemars(with = "ExecutorName")]
    pub executor: String,
    /// What kept the last newcomer from becoming a member.
    pub cause: Word<GrowthFailure>,
}

/// A member that is far slower than the others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Straggler {
    /// The executor's name.
    #[schemars(with = "ExecutorName")]
    pub executor: String,
    /// Where it is.
    #[schemars(with = "SlotName")]
    pub slot: String,
    /// Since when that is known.
    #[schemars(with = "Time")]
    pub since: String,
    /// How long one rank's gradient took it then, in microseconds; with the cause `network`, how long a step took all of them.
    pub unit_us: u64,
    /// How long it took the others: their median; with the cause `network`, how long a step took before.
    pub peers_unit_us: u64,
    /// What took it longer; absent if its build did not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<Word<StragglerCause>>,
}

/// A checkpoint that cannot be restored from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DamagedCheckpoint {
    /// When that was found.
    #[schemars(with = "Time")]
    pub at: String,
    /// The replica's step.
    pub step: u64,
    /// The generation that wrote it.
    pub generation: u64,
    /// Key of the object that is damaged.
    pub object: String,
    /// What is wrong with it.
    pub reason: String,
    /// The step of the checkpoint that is used instead; 0 is the beginning.
    pub instead: u64,
}

/// A checkpoint of a format that the build in use cannot read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct UnreadableCheckpoint {
    /// When that was found.
    #[schemars(with = "Time")]
    pub at: String,
    /// The replica's step.
    pub step: u64,
    /// The generation that wrote it.
    pub generation: u64,
    /// Which build can read it, and what to do.
    pub reason: String,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    /// JSON has no word for it but `null`.
    #[test]
    fn a_loss_that_is_no_number_is_read_as_one() {
        let progress = Progress { loss: f64::INFINITY, ..Progress::default() };
        let shown = serde_json::to_value(progress).unwrap();
        assert!(shown["loss"].is_null());
        assert!(serde_json::from_value::<Progress>(shown).unwrap().loss.is_nan());
    }

    #[test]
    fn notices_of_later_builds_are_kept() {
        for (text, known) in [
            (json!({"exit": {"signal": 9}}), LossNotice::Exit(ExitCause::Signal(9))),
            (json!("lease"), LossNotice::Lease),
            (json!({"stall": "bytes"}), LossNotice::Stall(StallCause::Bytes.into())),
            (json!({"heat": 95}), LossNotice::Other(json!({"heat": 95}))),
        ] {
            assert_eq!(serde_json::from_value::<LossNotice>(text.clone()).unwrap(), known);
            assert_eq!(serde_json::to_value(known).unwrap(), text);
        }
    }
}
