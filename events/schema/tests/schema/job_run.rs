//! What a job spec may say about how a job runs, and not what it comes to: checkpoints, and stretches of other jobs.

use events_schema::batch::{from_bytes, to_bytes};
use events_schema::job::{CheckpointInterval, JobSpec};
use serde_json::{Value, json};

/// The least a job has to say, and this.
fn with(name: &str, value: Value) -> Value {
    let mut document =
        json!({"name": "n", "model": {"kind": "mlp"}, "dataset": "digits", "batch_size": 8, "epochs": 1});
    document[name] = value;
    document
}

/// Checkpoints by steps, by seconds or as often as pays; what is shown of each is read as the same.
#[test]
fn checkpoints_are_written_by_one_measure() {
    for (said, every) in [
        (json!({"every_steps": 7}), CheckpointInterval::Steps(7)),
        (json!({"every_seconds": 600}), CheckpointInterval::Seconds(600)),
        (json!({"every_seconds": 600, "every_steps": 0}), CheckpointInterval::Seconds(600)),
        (json!({"every": "auto"}), CheckpointInterval::Auto),
        (json!({"keep": 2}), CheckpointInterval::Steps(500)),
    ] {
        let spec = JobSpec::parse(&with("checkpoint", said.clone())).unwrap();
        assert_eq!((spec.checkpoint.every, spec.checkpoint.keep), (every, 2), "{said}");
        assert_eq!(from_bytes::<JobSpec>(&to_bytes(&spec)).unwrap(), spec, "{said}");
        assert_eq!(JobSpec::parse(&spec.document()).unwrap(), spec, "{said}");
        let of_steps = JobSpec::parse(&with("seed", json!(0))).unwrap();
        assert_eq!(spec.digest() == of_steps.digest(), every == CheckpointInterval::Steps(500), "{said}");
    }
}

#[test]
fn what_retrains_a_job_trains_as_that_job_on_its_own_number_of_executors() {
    let original = JobSpec::parse(&with("workers", json!({"min": 2, "max": 4}))).unwrap();
    let mut document = original.document();
    document["name"] = json!("again");
    document["checkpoint"] = json!({"every_steps": 7, "keep": 9});
    document["retrains"] = json!({"job": "job-a", "from_step": 20, "to_step": 40});
    let again = JobSpec::parse(&document).unwrap();
    assert!(again.trains_as(&original) && original.trains_as(&again) && again.digest() != original.digest());
    let bounds = |spec: &JobSpec| (spec.executors().min, spec.executors().max);
    assert_eq!((bounds(&original), bounds(&again)), ((2, 4), (2, 2)));
    assert_eq!(again.retrains.as_ref().map(|stretch| (stretch.end(100), stretch.end(30))), Some((40, 30)));
    for (field, value) in
        [("seed", json!(9)), ("batch_size", json!(3)), ("workers", json!({"min": 2, "max": 5})), ("steps", json!(77))]
    {
        let mut other = document.clone();
        if field == "steps" {
            other.as_object_mut().unwrap().remove("epochs");
        }
        other[field] = value;
        assert!(!JobSpec::parse(&other).unwrap().trains_as(&original), "{field}");
    }
    let mut faster = document;
    faster["optimizer"]["learning_rate"] = json!(0.5);
    assert!(!JobSpec::parse(&faster).unwrap().trains_as(&original));
}
