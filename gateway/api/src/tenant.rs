//! Tenants and their quotas.

use crate::forms::Name;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whose jobs are, as far as anything is known of it: a quota, or jobs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Tenant {
    /// Its name.
    #[schemars(with = "Name")]
    pub name: String,
    /// Slots that it has guaranteed under a policy that knows of quotas; null if it has no quota.
    pub quota_slots: Option<u32>,
    /// Its jobs that have not ended.
    pub jobs: u32,
    /// Slots that the plans of those hold.
    pub slots: u32,
}

/// Tenants, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Tenants {
    /// At most `limit` of them.
    pub tenants: Vec<Tenant>,
    /// Where the next page begins; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// Says how many slots a tenant has guaranteed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SetQuota {
    /// So many, of all kinds together.
    #[schemars(range(max = 100_000))]
    pub quota_slots: u32,
}
