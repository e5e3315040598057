//! An order, for the tests of both crates of the agent: they include this file. No behaviour, and nothing that only one of them needs.
#![allow(clippy::unwrap_used)]

use events_schema::dataset::{DatasetInfo, SampleShape};
use events_schema::job::JobSpec;
use events_schema::orders::{ExecutorOrder, JobOrder};
use events_schema::{DatasetName, Digest};

/// An order for an executor on a slot.
pub(crate) fn order(executor: &str, slot: &str) -> ExecutorOrder {
    let document = serde_json::json!({ "name": "t", "model": { "kind": "mlp", "hidden": [8] }, "dataset": "digits", "batch_size": 8, "epochs": 1 });
    let dataset = DatasetInfo {
        name: DatasetName::parse("digits").unwrap(),
        sample: SampleShape::Classified { shape: vec![64], classes: 10 },
        rows: 100,
        metadata_key: "datasets/digits/metadata.json".to_owned(),
        metadata_digest: Digest::of(b""),
    };
    let spec = JobSpec::parse(&document).unwrap();
    let job = JobOrder::alone(spec, Some(dataset), None);
    ExecutorOrder {
        executor: executor.parse().unwrap(),
        slot: slot.parse().unwrap(),
        leave_by: None,
        job,
        leave_in_ms: None,
        trace: None,
    }
}
