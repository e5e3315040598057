//! Samples of specs that say more than the first builds knew, and of what follows from them.

use super::{Sample, full_document, sample};
use events_schema::job::JobSpec;
use events_schema::orders::{JobOrder, Telemetry};
use serde_json::{Value, json};

/// A spec that says how long what it waits for may take.
fn with_limits() -> JobSpec {
    let mut document = full_document();
    document["unit_timeout_ms"] = json!(1_200_000);
    document["store_patience_ms"] = json!(3_600_000);
    JobSpec::parse(&document).unwrap()
}

/// A spec that trains a stretch of another job once more.
fn that_retrains() -> JobSpec {
    let mut document = full_document();
    document["retrains"] =
        json!({"job": "job-a", "from_step": 100, "to_step": 300, "slots": 3, "replica_digest": "0a".repeat(32)});
    JobSpec::parse(&document).unwrap()
}

/// A spec that says so of its checkpoints, and how often replicas are compared.
fn by(checkpoint: Value) -> JobSpec {
    let mut document = full_document();
    document["checkpoint"] = checkpoint;
    document["compare_every_steps"] = json!(40);
    JobSpec::parse(&document).unwrap()
}

/// All of them; an order and telemetry as they are without.
pub fn all(order: JobOrder, telemetry: Telemetry) -> Vec<Sample> {
    let told = Telemetry { data_wait_us: Some(1_200), checkpoint_every_ms: Some(66_000), ..telemetry };
    vec![
        sample("JobSpec with limits", &with_limits()),
        sample("JobSpec that retrains", &that_retrains()),
        sample("JobSpec with checkpoints by seconds", &by(json!({"every_seconds": 600}))),
        sample("JobSpec with checkpoints as often as pays", &by(json!({"every": "auto"}))),
        sample("Telemetry with time between checkpoints", &told),
        sample("JobOrder after restarts", &JobOrder { restarts: 3, ..order }),
    ]
}
