//! How fast a job was measured to be by slots, and how sure that is.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How long a step takes a job on so many slots.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Speed {
    /// How many.
    pub slots: u16,
    /// In microseconds; of an update that takes several steps, each of them.
    pub step_us: u64,
    /// The standard error of that as a part of it, in millionths: two of three such measurements are no further off. Absent where nobody said how far the updates
    /// were spread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_micro: Option<u32>,
    /// Of how many updates it is the median; absent where the error is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updates: Option<u16>,
}
