//! Samples of specs that say more than the first builds knew, and of what follows from them.

use super::{Sample, full_document, sample};
use events_schema::job::{JobSpec, ModelSpec};
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

/// A spec that says whose it is.
fn of_a_tenant() -> JobSpec {
    let mut document = full_document();
    document["tenant"] = json!("research");
    JobSpec::parse(&document).unwrap()
}

/// A spec whose model depends on who was a member when.
fn without_determinism() -> JobSpec {
    let mut document = full_document();
    document["determinism"] = json!("none");
    JobSpec::parse(&document).unwrap()
}

/// A spec whose batch may move.
fn with_a_range() -> JobSpec {
    let mut document = full_document();
    document["determinism"] = json!("none");
    document["batch_range"] = json!({"max": 256, "learning_rate_rule": "sqrt"});
    JobSpec::parse(&document).unwrap()
}

/// A spec that says at which sizes it is measured.
fn that_is_profiled() -> JobSpec {
    let mut document = full_document();
    document["profile"] = json!({"sizes": [2, 4], "seconds": 30});
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
        sample("JobSpec of a tenant", &of_a_tenant()),
        sample("JobSpec without determinism", &without_determinism()),
        sample("JobSpec that is profiled", &that_is_profiled()),
        sample("JobSpec with a range of batches", &with_a_range()),
        sample("Telemetry with time between checkpoints", &told),
        sample("JobOrder after restarts", &JobOrder { restarts: 3, ..order }),
    ]
}

pub(super) fn torch_model() -> ModelSpec {
    let model = json!({"kind": "torch", "entry": "train:Job", "code": "33".repeat(32), "python": "/opt/torch/bin/python", "threads": 2,
        "device": "cuda", "environment": {"TOKENIZERS_PARALLELISM": "false"}, "parameters": {"depth": 3, "rate": 0.5}});
    let spec = json!({"name": "n", "model": model, "dataset": "digits", "batch_size": 8, "epochs": 1});
    JobSpec::parse(&spec).unwrap().model.clone()
}

pub(super) fn torch_model_with_environment() -> ModelSpec {
    let model = json!({"kind": "torch", "entry": "train:Job", "code": "33".repeat(32), "secrets": {"HF_TOKEN": "hf"},
        "requirements": {"lines": ["einops==0.8.1", "timm>=1"], "full": true}, "memory_limit_mib": 4_096});
    let spec = json!({"name": "n", "model": model, "dataset": "digits", "batch_size": 8, "epochs": 1});
    JobSpec::parse(&spec).unwrap().model.clone()
}

pub(super) fn command_model() -> ModelSpec {
    let model = json!({"kind": "command", "command": ["python", "train.py", "--epochs", "3"], "code": "33".repeat(32), "python": "/opt/torch/bin/python",
        "environment": {"GLOO_SOCKET_IFNAME": "lo"}, "elastic": "restart", "grace_ms": 5_000, "save_every_ms": 10_000});
    let spec = json!({"name": "n", "model": model, "workers": {"min": 2, "max": 4}});
    JobSpec::parse(&spec).unwrap().model.clone()
}

pub(super) fn command_model_on_devices() -> ModelSpec {
    let model = json!({"kind": "command", "command": ["train"], "device": "cuda"});
    JobSpec::parse(&json!({"name": "n", "model": model})).unwrap().model.clone()
}

pub(super) fn command_model_with_packages() -> ModelSpec {
    let model = json!({"kind": "command", "command": ["train"], "requirements": {"lines": ["einops==0.8.1"]},
        "secrets": {"HF_TOKEN": "hf"}, "memory_limit_mib": 4_096});
    JobSpec::parse(&json!({"name": "n", "model": model})).unwrap().model.clone()
}
