//! Types of slots: which a job may be on at once, and how fast it is there.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which slots a job may be on at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Types {
    /// Those of one type.
    One,
    /// Those of several types.
    Any,
}

/// How long one rank's gradient takes a job on slots of a type.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TypeTime {
    /// What servers call it; absent of those that say nothing.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub slot_type: Option<String>,
    /// In microseconds.
    pub unit_us: u64,
}
