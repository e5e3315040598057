//! What a log says of its service beside jobs and fleets: tenants' quotas, the policy that planned, and how long processes took to start.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// All that a log says of its service.
#[derive(Debug, Clone, Default)]
pub(super) struct Service {
    /// Who had which quota from when on; none: no more.
    quotas: Vec<(u64, String, Option<u32>)>,
    policies: Vec<(u64, Policy)>,
    /// When executors were assigned that are not ready yet.
    assigned: BTreeMap<String, u64>,
    /// When executors were ready, and after how many ms.
    starts: Vec<(u64, u64)>,
    replicas: Vec<(u64, u64)>,
}

/// Who planned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Its name.
    pub name: String,
    /// Whether slots went back before fleets needed them.
    pub forecasts: bool,
}

/// What the service was between two moments.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Serviced {
    pub quotas: BTreeMap<String, u32>,
    /// The last one that planned.
    pub policy: Option<Policy>,
    /// How long a process took to start, in the mean.
    pub start_ms: Option<u64>,
    /// How large replicas were, in the mean.
    pub replica_mb: Option<u64>,
    pub left_out: Vec<String>,
}

impl Service {
    /// Takes a fact that is about it.
    pub fn fact(&mut self, at_ms: u64, kind: &str, fact: &Value) {
        let text = |key: &str| fact[key].as_str().unwrap_or_default().to_owned();
        match kind {
            "quota_set" => {
                let slots = fact["quota_slots"].as_u64().and_then(|slots| u32::try_from(slots).ok());
                self.quotas.push((at_ms, text("tenant"), slots));
            }
            "policy_chosen" => {
                let policy = Policy { name: text("policy"), forecasts: fact["forecast_day_ms"].is_u64() };
                self.policies.push((at_ms, policy));
            }
            "executor_assigned" => {
                self.assigned.insert(text("executor"), at_ms);
            }
            "executor_gone" => {
                self.assigned.remove(&text("executor"));
            }
            "executor_ready" => {
                let assigned = self.assigned.remove(&text("executor"));
                self.starts.extend(assigned.map(|assigned_ms| (at_ms, at_ms - assigned_ms)));
                self.replicas.extend(fact["replica_bytes"].as_u64().map(|bytes| (at_ms, bytes)));
            }
            _ => {}
        }
    }

    /// What it was between two moments.
    pub fn between(&self, (from_ms, until_ms): (u64, u64)) -> Serviced {
        let mut found = Serviced::default();
        let mut changed = BTreeSet::new();
        for (at_ms, tenant, slots) in self.quotas.iter().filter(|(at_ms, ..)| *at_ms <= until_ms) {
            if *at_ms > from_ms {
                changed.insert(tenant);
            }
            match slots {
                Some(slots) => found.quotas.insert(tenant.clone(), *slots),
                None => found.quotas.remove(tenant),
            };
        }
        if !changed.is_empty() {
            let what =
                format!("that quotas of {} tenants changed: they have the last ones all the time", changed.len());
            found.left_out.push(what);
        }
        let planned = || self.policies.iter().filter(|(at_ms, _)| *at_ms <= until_ms);
        found.policy = planned().next_back().map(|(_, policy)| policy.clone());
        let before = planned().rfind(|(at_ms, _)| *at_ms <= from_ms).map(|(_, policy)| policy);
        let within = planned().filter(|(at_ms, _)| *at_ms > from_ms).map(|(_, policy)| policy);
        let names: BTreeSet<&str> = before.into_iter().chain(within).map(|policy| policy.name.as_str()).collect();
        if names.len() > 1 {
            let names: Vec<&str> = names.into_iter().collect();
            found.left_out.push(format!("that {} planned, one after the other: the last one does", names.join(", ")));
        }
        let mean = |of: &[(u64, u64)]| {
            let within =
                || of.iter().filter(|(at_ms, _)| (from_ms..=until_ms).contains(at_ms)).map(|(_, value)| *value);
            within().sum::<u64>().checked_div(within().count() as u64)
        };
        found.start_ms = mean(&self.starts);
        found.replica_mb = mean(&self.replicas).map(|bytes| bytes / 1_000_000);
        found
    }
}
