//! What a job whose model depends on the history of its memberships may be, and by which field it is refused before it has a slot.
#![allow(clippy::unwrap_used)]

use events_schema::job::{Determinism, JobSpec};
use serde_json::{Value, json};

fn none(more: &Value) -> Value {
    let mut document = json!({"name": "n", "model": {"kind": "mlp"}, "dataset": "digits", "batch_size": 8, "epochs": 1, "determinism": "none"});
    document.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    document
}

#[test]
fn a_job_without_determinism_is_no_program_and_trains_for_itself() {
    assert_eq!(JobSpec::parse(&none(&json!({}))).unwrap().determinism, Determinism::None);
    assert!(JobSpec::parse(&none(&json!({"workers": {"min": 2, "max": 4}, "batch_size": 21_845}))).is_ok());
    let torch = json!({"kind": "torch", "entry": "train:Job", "code": "ab".repeat(32)});
    assert_eq!(JobSpec::parse(&none(&json!({"model": torch}))).unwrap().determinism, Determinism::None);
    for (more, field, expected) in [
        (json!({"retrains": {"job": "job-a"}}), "determinism", "another run"),
        (json!({"workers": {"min": 2, "max": 4}, "batch_size": 21_846}), "batch_size", "at most 21845"),
    ] {
        let found = JobSpec::parse(&none(&more)).unwrap_err().0;
        assert_eq!(found.iter().map(|p| p.field.as_str()).collect::<Vec<_>>(), [field], "{found:?}");
        assert!(found[0].expected.contains(expected), "{}", found[0]);
    }
}
