//! What the API answers, as far as commands look into it. Everything is optional that a newer or older service may leave out;
//! `--output json` passes answers on untouched and does not come through here.

use crate::failure::Failure;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Reads an answer as one of the types below.
pub fn read<T: DeserializeOwned>(value: &Value) -> Result<T, Failure> {
    serde_json::from_value(value.clone())
        .map_err(|e| Failure::Answer { url: "the service".to_owned(), what: e.to_string() })
}

/// A job.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Job {
    /// Its id.
    pub id: String,
    /// Its name, not unique.
    pub name: String,
    /// `queued`, `starting`, `running`, `suspending`, `suspended`, `finished`, `failed` or `cancelled`.
    pub phase: String,
    /// RFC 3339.
    pub submitted_at: String,
    /// The slots of its plan.
    pub slots: Vec<String>,
    /// Bounds.
    pub workers: WorkerBounds,
    /// Number of the membership in force.
    pub generation: Option<u64>,
    /// How far it is, while it runs.
    pub progress: Option<Progress>,
    /// Why it has what it has.
    pub reason: Option<Value>,
    /// The last change of its slots.
    pub last_scaling: Option<Scaling>,
    /// The last evaluation.
    pub last_evaluation: Option<Value>,
    /// How it ended, if with a model.
    pub outcome: Option<Outcome>,
    /// Why it failed.
    pub failure: Option<String>,
    /// Times it went back to a checkpoint.
    pub restarts: u32,
    /// Checkpoints that were found damaged, newest finding last.
    pub damaged_checkpoints: Vec<DamagedCheckpoint>,
    /// The checkpoint that it waits for another build for.
    pub unreadable_checkpoint: Option<UnreadableCheckpoint>,
    /// The last time that it made no progress.
    pub last_stall: Option<Stall>,
    /// The member that was lost last.
    pub last_lost_member: Option<LostMember>,
    /// Why it does not grow for now.
    pub growth_paused: Option<GrowthPaused>,
    /// Members that the others wait for at every step.
    pub stragglers: Vec<Straggler>,
}

/// A job that made no progress.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Stall {
    /// When that was seen last.
    pub at: String,
    /// The step that did not end.
    pub step: u64,
    /// What its members waited for.
    pub cause: String,
    /// What was tried at this step, in order.
    pub tried: Vec<String>,
}

impl Stall {
    /// As a person reads it.
    #[must_use]
    pub fn sentence(&self) -> String {
        let cause = match self.cause.as_str() {
            "peers" => "its executors waited for each other",
            "unit" => "an executor did not get done with its part",
            "bytes" => "a copy did not arrive, or far too slowly",
            "store" => "the object store did not answer",
            other => other,
        };
        let done = match self.tried.last().map(String::as_str) {
            Some("wait") => "it goes on by itself when the store answers",
            Some("round") => "its executors came together anew",
            Some("without_blamed") => "it goes on without whoever held it up",
            Some("restart") => "it went back to its last checkpoint",
            Some("suspend") => "it was suspended: mend what it waited for, then `ebb resume`",
            Some("fail") => "it failed",
            Some(other) => other,
            None => "nothing was done",
        };
        format!("no progress at step {} ({}): {cause}; {done}", self.step, self.at)
    }
}

/// A member that was lost.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct LostMember {
    /// When that was noticed.
    pub at: String,
    /// Who.
    pub executor: String,
    /// Where it was.
    pub slot: String,
    /// How it was noticed.
    pub noticed: Value,
}

impl LostMember {
    /// As a person reads it.
    #[must_use]
    pub fn sentence(&self) -> String {
        let how = match &self.noticed {
            Value::String(how) if how == "silence" => "it said nothing for seconds and was killed".to_owned(),
            Value::String(how) if how == "lease" => "nothing was heard of its server".to_owned(),
            Value::String(how) if how == "agent" => "the agent of its server was started anew".to_owned(),
            Value::String(how) if how == "link" => "the others could not reach it".to_owned(),
            Value::Object(how) if how.contains_key("exit") => {
                format!("its process ended, {}", words(&how["exit"]))
            }
            Value::Object(how) if how.contains_key("stall") => "it held up the others".to_owned(),
            other => words(other),
        };
        format!("lost {} on {} ({}): {how}", self.executor, self.slot, self.at)
    }
}

/// A newcomer that was given up.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct GrowthPaused {
    /// When the job may grow again.
    pub until: String,
    /// The newcomer.
    pub executor: String,
    /// Why.
    pub cause: String,
}

impl GrowthPaused {
    /// As a person reads it.
    #[must_use]
    pub fn sentence(&self) -> String {
        let why = match self.cause.as_str() {
            "lost" => "was lost before it held the replica",
            "late" => "was not ready in time",
            "slow" => "was sent the replica far too slowly",
            other => other,
        };
        format!("does not grow until {}: {} {why}", self.until, self.executor)
    }
}

/// A member that is far slower than the others.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Straggler {
    /// Who.
    pub executor: String,
    /// Where it is.
    pub slot: String,
    /// How long one rank's gradient took it, in microseconds.
    pub unit_us: u64,
    /// How long it took the others.
    pub peers_unit_us: u64,
}

impl Straggler {
    /// As a person reads it.
    #[must_use]
    pub fn sentence(&self) -> String {
        format!(
            "{} on {} straggles: {} µs for what takes the others {} µs",
            self.executor, self.slot, self.unit_us, self.peers_unit_us
        )
    }
}

/// A checkpoint that cannot be restored from.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct DamagedCheckpoint {
    /// The replica's step.
    pub step: u64,
    /// Key of the object that is damaged.
    pub object: String,
    /// What is wrong with it.
    pub reason: String,
    /// The step of the checkpoint that is used instead; 0 is the beginning.
    pub instead: u64,
}

impl DamagedCheckpoint {
    /// As a person reads it.
    #[must_use]
    pub fn sentence(&self) -> String {
        let instead = match self.instead {
            0 => "the job begins anew".to_owned(),
            step => format!("the checkpoint of step {step} is used instead"),
        };
        format!("the checkpoint of step {} is damaged ({}), so {instead}", self.step, self.reason)
    }
}

/// A checkpoint of a format that the build in use cannot read.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct UnreadableCheckpoint {
    /// The replica's step.
    pub step: u64,
    /// Which build can read it, and what to do.
    pub reason: String,
}

impl UnreadableCheckpoint {
    /// As a person reads it.
    #[must_use]
    pub fn sentence(&self) -> String {
        format!(
            "suspended, because the checkpoint of step {} needs another build: {}; then `ebb resume`",
            self.step, self.reason
        )
    }
}

impl Job {
    /// Whether it will never change again.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.phase.as_str(), "finished" | "failed" | "cancelled")
    }
}

/// Bounds of the number of executors.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub struct WorkerBounds {
    /// Fewest.
    pub min: u16,
    /// Most, and the number of logical workers.
    pub max: u16,
}

/// How far a job is.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub struct Progress {
    /// Steps done.
    pub step: u64,
    /// Steps in all.
    pub steps_total: u64,
    /// Passes over the dataset begun.
    pub epoch: u64,
    /// Mean training loss of the last step.
    pub loss: f64,
    /// Over the last second or two.
    pub samples_per_second: f64,
    /// Duration of the last step.
    pub step_us: u64,
    /// Executors in lock-step.
    pub members: u16,
    /// For how long the leader waited for the samples of a step.
    pub data_wait_us: Option<u64>,
}

/// A change of a job's slots.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Scaling {
    /// When.
    pub at: Value,
    /// Slots before.
    pub from: u64,
    /// Slots after.
    pub to: u64,
    /// Why.
    pub cause: Value,
}

/// How a job ended with a model.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Outcome {
    /// Steps done.
    pub step: u64,
    /// Digest of the final parameters.
    pub model_digest: String,
    /// Mean training loss of the last step, in millionths.
    pub train_loss_micro: i64,
    /// The last evaluation.
    pub metrics: Option<Metrics>,
}

/// What an evaluation found.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub struct Metrics {
    /// Mean loss, in millionths.
    pub loss_micro: i64,
    /// Right predictions.
    pub correct: u64,
    /// Predictions made.
    pub count: u64,
}

impl Metrics {
    /// Share of right predictions.
    #[must_use]
    pub fn accuracy(&self) -> f64 {
        self.correct as f64 / self.count.max(1) as f64
    }
}

/// A fleet.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Fleet {
    /// Its name.
    pub name: String,
    /// Its slots.
    pub slots: Vec<FleetSlot>,
    /// Slots it needs for itself, as it last said.
    pub needed: Option<u32>,
    /// Slots that it keeps until it is released, while it is recalled.
    pub recalled: Option<u32>,
    /// How its slots are offered.
    pub offers: Value,
    /// From a reclaim to the kill.
    pub reclaim_deadline_ms: u64,
}

/// A fleet's slot, or a slot of the list of all.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct FleetSlot {
    /// `SERVER/INDEX`.
    pub slot: String,
    /// Whose it is, in the list of all.
    pub fleet: Option<String>,
    /// `unoffered`, `offered`, `borrowed` or `reclaimed`; the list of all also has slots of no fleet.
    pub state: String,
    /// The job on it.
    pub job: Option<String>,
    /// The executor on it.
    pub executor: Option<String>,
    /// Numeric class, in the list of all.
    pub class: Option<String>,
}

/// A short word for a value that is a word, or an object with one key that is one (`{"slots": {"missing": 2}}`).
#[must_use]
pub fn words(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.replace('_', " "),
        Value::Object(map) => map
            .iter()
            .map(|(key, inner)| {
                let inner = words(inner);
                if inner.is_empty() { key.replace('_', " ") } else { format!("{} {inner}", key.replace('_', " ")) }
            })
            .collect::<Vec<_>>()
            .join(", "),
        Value::Array(items) => items.iter().map(words).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn reasons_read_as_words() {
        assert_eq!(words(&json!("gave_way")), "gave way");
        assert_eq!(words(&json!({"slots": {"missing": 2}})), "slots missing 2");
        assert_eq!(words(&json!(null)), "");
    }
}
