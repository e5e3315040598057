//! What is told of a job beside its events: how far it is. In no log.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How far a job is, as its leader last said. Told at most once a second on a job's stream while it trains; it is in no log, has no cursor, and is never
/// repeated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JobProgress {
    /// The job's id.
    pub job: String,
    /// Steps trained.
    pub step: u64,
    /// Steps in all.
    pub steps_total: u64,
    /// Passes over the dataset that are complete.
    pub epoch: u64,
    /// Mean training loss of the last step.
    pub loss: f64,
    /// Over the last second or two.
    pub samples_per_second: f64,
    /// Duration of the last step, in microseconds; of an update that takes several, of each.
    pub step_us: u64,
    /// Processes that train it.
    pub members: u16,
    /// For how long the leader waited for the samples of a step, in microseconds, over the last second or two: input that comes more slowly than it
    /// is trained on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_wait_us: Option<u64>,
}
