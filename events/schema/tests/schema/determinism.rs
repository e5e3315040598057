//! What a job whose model depends on the history of its memberships may be, and by which field it is refused before it has a slot.

use events_schema::job::{Determinism, JobSpec};
use events_schema::stride::{LearningRateRule, Stride};
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

#[test]
fn a_batch_may_move_between_its_smallest_and_so_many_times_that() {
    let range =
        |max: u32| json!({"workers": {"min": 1, "max": 4}, "batch_range": {"max": max, "learning_rate_rule": "sqrt"}});
    let spec = JobSpec::parse(&none(&range(64))).unwrap();
    assert_eq!(spec.batch_range.map(|range| range.learning_rate_rule), Some(LearningRateRule::Sqrt));
    assert_eq!((spec.stride_max(), spec.samples_of(Stride::of(3))), (Stride::of(8), 96));
    // What is due by steps cuts every update that would take more.
    for (field, steps) in [("checkpoint", 5), ("evaluation", 3)] {
        let mut often = range(64);
        often[field] = json!({"every_steps": steps});
        if field == "evaluation" {
            often[field]["dataset"] = json!("digits");
        }
        assert_eq!(JobSpec::parse(&none(&often)).unwrap().stride_max(), Stride::of(steps), "{field}");
    }
    let mut compared = range(64);
    compared["compare_every_steps"] = json!(2);
    assert_eq!(JobSpec::parse(&none(&compared)).unwrap().stride_max(), Stride::of(2));
    assert!(JobSpec::parse(&none(&range(8))).is_ok_and(|spec| spec.stride_max().is_one()), "a range may be a point");
    assert_eq!(JobSpec::parse(&none(&json!({}))).unwrap().stride_max(), Stride::ONE);
    for max in [2_048, 8 * 256] {
        assert!(JobSpec::parse(&none(&range(max))).is_ok(), "{max}");
    }
    let mut torch = range(64);
    torch["model"] = json!({"kind": "torch", "entry": "train:Job", "code": "ab".repeat(32)});
    assert_eq!(JobSpec::parse(&none(&torch)).unwrap().stride_max(), Stride::of(8));
}

#[test]
fn a_range_of_batches_is_refused_by_what_does_not_go_with_it() {
    let range = |max: u64, rule: &str| json!({"max": max, "learning_rate_rule": rule});
    for (more, fields, expected) in [
        (json!({"batch_range": range(64, "sqrt"), "determinism": "d1"}), &["batch_range"][..], "`determinism: none`"),
        (json!({"batch_range": range(20, "sqrt")}), &["batch_range.max"], "a multiple of `batch_size` (8) up to 2048"),
        (json!({"batch_range": range(2_056, "sqrt")}), &["batch_range.max"], "256 at most"),
        (json!({"batch_range": range(4, "none")}), &["batch_range.max"], "a multiple"),
        (json!({"batch_range": range(16, "cubic")}), &["batch_range.learning_rate_rule"], "linear, sqrt, none"),
        (json!({"batch_range": {"max": 16}}), &["batch_range.learning_rate_rule"], "has to be said"),
        (json!({"batch_range": {"max": 16, "min": 8, "learning_rate_rule": "none"}}), &["batch_range.min"], "max"),
        (
            json!({"batch_size": 4_096, "workers": {"min": 1, "max": 8}, "batch_range": range(12_288, "none")}),
            &["batch_range.max"],
            "up to 8192",
        ),
    ] {
        let found = JobSpec::parse(&none(&more)).unwrap_err().0;
        let named: Vec<&str> = found.iter().map(|p| p.field.as_str()).collect();
        assert!(fields.iter().all(|field| named.contains(field)), "{named:?}");
        assert!(found.iter().any(|problem| problem.expected.contains(expected)), "{found:?}");
    }
}
