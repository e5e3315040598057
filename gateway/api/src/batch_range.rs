//! How large the batch of a job may become that leaves it open.

use events_schema::job as schema;
use events_schema::stride;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How large a batch may be; the smallest is `batch_size`. A step stays one of those, and an update of a larger batch takes several steps at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BatchRange {
    /// Samples of each logical worker in one update at most: a multiple of `batch_size`, at most 256 times as many.
    #[schemars(range(min = 1, max = 65_536))]
    pub max: u32,
    /// What becomes of the learning rate of an update that takes `k` steps.
    pub learning_rate_rule: LearningRateRule,
}

/// What becomes of the learning rate of an update that takes `k` steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LearningRateRule {
    /// It is multiplied by `k`.
    Linear,
    /// It is multiplied by the square root of `k`.
    Sqrt,
    /// It stays.
    None,
}

impl From<schema::BatchRange> for BatchRange {
    fn from(schema::BatchRange { max, learning_rate_rule }: schema::BatchRange) -> Self {
        let learning_rate_rule = match learning_rate_rule {
            stride::LearningRateRule::Linear => LearningRateRule::Linear,
            stride::LearningRateRule::Sqrt => LearningRateRule::Sqrt,
            stride::LearningRateRule::None => LearningRateRule::None,
        };
        Self { max, learning_rate_rule }
    }
}
