//! What a job spec may say: every refusal names the field, the value and what would be right; all of them at once.

use crate::samples;
use events_schema::DatasetName;
use events_schema::batch::{from_bytes, to_bytes};
use events_schema::fields::{Problem, whole};
use events_schema::job::{
    CheckpointInterval, JobFields, JobSpec, Length, ModelSpec, OptimizerSpec, ScheduleShape, Shuffle, Tail,
};
use proptest::prelude::*;
use serde_json::{Value, json};

/// The least a job has to say.
fn least() -> Value {
    json!({"name": "n", "model": {"kind": "mlp"}, "dataset": "digits", "batch_size": 8, "epochs": 1})
}

/// `least` with the value at a path such as `workers.max` set, or removed.
fn with(path: &str, value: Option<Value>) -> Value {
    let mut document = least();
    let mut place = &mut document;
    let names: Vec<&str> = path.split('.').collect();
    let (last, parents) = names.split_last().unwrap();
    for name in parents {
        place = place.as_object_mut().unwrap().entry(*name).or_insert_with(|| json!({}));
    }
    match value {
        Some(value) => drop(place.as_object_mut().unwrap().insert((*last).to_owned(), value)),
        None => drop(place.as_object_mut().unwrap().remove(*last)),
    }
    document
}

fn problems(document: &Value) -> Vec<Problem> {
    match JobSpec::parse(document) {
        Ok(_) => panic!("accepted: {document}"),
        Err(problems) => problems.0,
    }
}

fn torch(fields: Value) -> Value {
    let mut document = least();
    let mut model = json!({"kind": "torch", "entry": "train:Job", "code": "ab".repeat(32)});
    model.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    document["model"] = model;
    document
}

/// JSON has one kind of numbers, and programs that compute with floats write whole ones so.
#[test]
fn whole_numbers_may_be_written_as_floats() {
    for (path, value, same) in [
        ("batch_size", json!(8.0), json!(8)),
        ("seed", json!(3309.0), json!(3309)),
        ("workers.max", json!(2e0), json!(2)),
        ("model.hidden", json!([16.0]), json!([16])),
        ("priority", json!(-3.0), json!(-3)),
    ] {
        let read = |value| JobSpec::parse(&with(path, Some(value))).unwrap();
        assert_eq!(read(value), read(same), "{path}");
    }
    let last = json!(4_503_599_627_370_495.0_f64);
    assert_eq!(JobSpec::parse(&with("seed", Some(last))).unwrap().seed, (1 << 52) - 1);
    // What a reader of floats may make of its neighbours, too.
    let beyond = json!(4_503_599_627_370_496.0_f64);
    for wrong in [json!(8.5), json!(-8.0), json!(1e300), beyond] {
        assert_eq!(problems(&with("seed", Some(wrong.clone())))[0].field, "seed", "{wrong}");
    }
}

#[test]
fn a_model_of_the_users_own_says_what_runs_it() {
    let spec = JobSpec::parse(&torch(json!({"parameters": {"width": 64, "rate": 0.1}}))).unwrap();
    let ModelSpec::Torch(model) = &spec.model else { panic!("{:?}", spec.model) };
    assert_eq!((model.entry.as_str(), model.threads, model.python.as_deref()), ("train:Job", 1, None));
    assert_eq!(from_bytes::<JobSpec>(&to_bytes(&spec)).unwrap(), spec);
    assert_eq!(JobSpec::parse(&spec.document()).unwrap(), spec);
    for (fields, field) in [
        (json!({"entry": "train:Job:x"}), "model.entry"),
        (json!({"code": "../../etc"}), "model.code"),
        (json!({"python": "python3"}), "model.python"),
        (json!({"threads": 0}), "model.threads"),
        (json!({"device": "tpu"}), "model.device"),
        (json!({"environment": {"EBB_TORCH_FD": "3"}}), "model.environment.EBB_TORCH_FD"),
        (json!({"environment": {"A": 1}}), "model.environment.A"),
        (json!({"environment": ["A=1"]}), "model.environment"),
        (json!({"parameters": [1]}), "model.parameters"),
        (json!({"parameters": {"a": "x".repeat(20_000)}}), "model.parameters"),
        (json!({"hidden": [3]}), "model.hidden"),
        (json!({"from": "model.safetensors"}), "model.from"),
        (json!({"from": {}}), "model.from.job"),
        (json!({"from": {"job": "job-a", "path": "/models/a"}}), "model.from.job"),
        (json!({"from": {"job": "JOB"}}), "model.from.job"),
        (json!({"from": {"upload": "abc"}}), "model.from.upload"),
        (json!({"from": {"path": "models/a"}}), "model.from.path"),
        (json!({"from": {"job": "job-a", "strict": "no"}}), "model.from.strict"),
        (json!({"requirements": {"lines": ["-r more.txt"]}}), "model.requirements.lines"),
        (json!({"requirements": {"lines": ["a"], "fully": true}}), "model.requirements.fully"),
        (json!({"secrets": {"EBB_TOKEN": "a"}}), "model.secrets.EBB_TOKEN"),
        (json!({"secrets": {"TOKEN": "../a"}}), "model.secrets.TOKEN"),
        (json!({"secrets": {"TOKEN": ".a"}}), "model.secrets.TOKEN"),
        (json!({"secrets": {"TOKEN": "a"}, "environment": {"TOKEN": "b"}}), "model.secrets.TOKEN"),
        (json!({"memory_limit_mib": 1}), "model.memory_limit_mib"),
    ] {
        assert_eq!(problems(&torch(fields.clone()))[0].field, field, "{fields}");
    }
}

/// Were such a rule asked of log bytes too, a log from before it could not be read any more.
#[test]
fn a_rule_that_came_later_is_one_of_the_doors_alone() {
    let spec = JobSpec::parse(&torch(json!({"entry": "train.py"}))).unwrap();
    assert_eq!(from_bytes::<JobSpec>(&to_bytes(&spec)).unwrap(), spec);
    assert_eq!(spec.ensure_fit().unwrap_err().0[0].field, "model.entry");
    for fit in ["train", "train:Job", "my.pyramid:Job"] {
        JobSpec::parse(&torch(json!({"entry": fit}))).unwrap().ensure_fit().unwrap();
    }
}

fn command(fields: Value, model: Value) -> Value {
    let mut document =
        json!({"name": "n", "model": {"kind": "command", "command": ["python", "train.py"]}, "workers": {"max": 2}});
    document.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    document["model"].as_object_mut().unwrap().extend(model.as_object().unwrap().clone());
    document
}

#[test]
fn a_program_of_the_users_own_is_a_fixed_gang_without_data_or_steps() {
    let spec = JobSpec::parse(&command(json!({}), json!({}))).unwrap();
    let gang = spec.gang().unwrap();
    assert_eq!(
        (gang.command.join(" ").as_str(), gang.grace_ms, gang.save_every_ms),
        ("python train.py", 30_000, 60_000)
    );
    assert_eq!((spec.workers.min, spec.workers.max, spec.max_restarts), (2, 2, 3));
    assert_eq!(from_bytes::<JobSpec>(&to_bytes(&spec)).unwrap(), spec);
    assert_eq!(JobSpec::parse(&spec.document()).unwrap(), spec, "what is shown can be submitted again");
    let cuda = JobSpec::parse(&command(json!({}), json!({"device": "cuda"}))).unwrap();
    assert!(cuda.needs_device() && !spec.needs_device());
    assert_eq!(JobSpec::parse(&command(json!({}), json!({"device": "cpu"}))).unwrap(), spec);
    assert_eq!(JobSpec::parse(&cuda.document()).unwrap(), cuda);
    let of_an_earlier_build = JobFields { dataset: DatasetName::parse("none").ok(), ..(*spec).clone() };
    assert_eq!(from_bytes::<JobSpec>(&to_bytes(&of_an_earlier_build)).unwrap(), spec, "what is in a log is read");
    let sent_by_one = command(json!({"dataset": "none", "batch_size": 1.0, "steps": 1.0}), json!({}));
    assert_eq!(JobSpec::parse(&sent_by_one).unwrap(), spec, "what an earlier `ebb submit` sends is taken");
    let elastic = command(json!({"workers": {"min": 1, "max": 4}}), json!({"elastic": "restart"}));
    assert_eq!(JobSpec::parse(&elastic).unwrap().workers.min, 1);
    for (fields, model, field) in [
        (json!({"workers": {"min": 1, "max": 4}}), json!({}), "workers.min"),
        (json!({"dataset": "digits"}), json!({}), "dataset"),
        (json!({"batch_size": 8}), json!({}), "batch_size"),
        (json!({"steps": 100}), json!({}), "steps"),
        (json!({"epochs": 1}), json!({}), "epochs"),
        (json!({"seed": 3}), json!({}), "seed"),
        (json!({"shuffle": "full"}), json!({}), "shuffle"),
        (json!({"optimizer": {"kind": "sgd"}}), json!({}), "optimizer"),
        (json!({"schedule": {"kind": "cosine"}}), json!({}), "schedule"),
        (json!({"gradient_clip_norm": 1.0}), json!({}), "gradient_clip_norm"),
        (json!({"evaluation": {"dataset": "digits"}}), json!({}), "evaluation"),
        (json!({"checkpoint": {"every_steps": 20}}), json!({}), "checkpoint"),
        (json!({"checkpoint": {"every": "auto"}}), json!({}), "checkpoint"),
        (json!({"compare_every_steps": 20}), json!({}), "compare_every_steps"),
        (json!({"profile": true}), json!({}), "profile"),
        (json!({"batch_range": {"max": 8, "learning_rate_rule": "none"}}), json!({}), "batch_range"),
        (json!({"unit_timeout_ms": 1_000}), json!({}), "unit_timeout_ms"),
        (json!({}), json!({"command": "python train.py"}), "model.command"),
        (json!({}), json!({"command": []}), "model.command"),
        (json!({}), json!({"command": [""]}), "model.command"),
        (json!({}), json!({"command": ["python", 3]}), "model.command"),
        (json!({}), json!({"code": "./"}), "model.code"),
        (json!({}), json!({"python": "python3"}), "model.python"),
        (json!({}), json!({"environment": {"RANK": "0"}}), "model.environment.RANK"),
        (json!({}), json!({"environment": {"EBB_X": "0"}}), "model.environment.EBB_X"),
        (json!({}), json!({"elastic": "yes"}), "model.elastic"),
        (json!({}), json!({"grace_ms": 3_600_001}), "model.grace_ms"),
        (json!({}), json!({"save_every_ms": 0}), "model.save_every_ms"),
        (json!({}), json!({"entry": "train:Job"}), "model.entry"),
    ] {
        let document = command(fields, model);
        assert_eq!(problems(&document)[0].field, field, "{document}");
    }
}

#[test]
fn an_environment_and_secrets_survive_the_log_and_a_value_in_the_place_of_a_secrets_name_is_not_echoed() {
    let fields =
        json!({"requirements": {"lines": ["b # x", "a"]}, "secrets": {"TOKEN": "hf"}, "memory_limit_mib": 512});
    let spec = JobSpec::parse(&torch(fields)).unwrap();
    let ModelSpec::Torch(model) = &spec.model else { panic!("{:?}", spec.model) };
    let requirements = model.requirements.as_ref().unwrap();
    assert_eq!((requirements.lines(), requirements.is_full()), (&["a".to_owned(), "b".to_owned()][..], false));
    assert_eq!(from_bytes::<JobSpec>(&to_bytes(&spec)).unwrap(), spec);
    assert_eq!(JobSpec::parse(&spec.document()).unwrap(), spec);
    let refused = JobSpec::parse(&torch(json!({"secrets": {"TOKEN": "hf_$ecret"}}))).unwrap_err().to_string();
    assert!(!refused.contains("$ecret") && !refused.contains("hf_"), "{refused}");
}

#[test]
fn a_model_of_the_users_own_may_begin_with_other_tensors() {
    for (from, strict) in [
        (json!({"job": "job-a"}), true),
        (json!({"upload": "cd".repeat(32), "strict": false}), false),
        (json!({"path": "/models/bert", "strict": true}), true),
    ] {
        let spec = JobSpec::parse(&torch(json!({ "from": from }))).unwrap();
        let ModelSpec::Torch(model) = &spec.model else { panic!("{:?}", spec.model) };
        assert_eq!(model.initial.as_ref().map(|initial| initial.strict), Some(strict));
        assert_eq!(from_bytes::<JobSpec>(&to_bytes(&spec)).unwrap(), spec);
        let mut shown = from.clone();
        shown["strict"] = strict.into();
        assert_eq!(spec.document()["model"]["from"], shown);
        assert_eq!(JobSpec::parse(&spec.document()).unwrap(), spec);
    }
    assert_eq!(JobSpec::parse(&torch(json!({}))).unwrap().document()["model"].get("from"), None);
}

/// The code's own rows are known to the code alone, so such a job says its steps; nobody else goes without a dataset.
#[test]
fn only_a_model_of_the_users_own_goes_without_a_dataset() {
    let without = |fields: Value| {
        let mut document = torch(json!({}));
        let object = document.as_object_mut().unwrap();
        object.retain(|name, _| name != "dataset" && name != "epochs");
        object.extend(fields.as_object().unwrap().clone());
        document
    };
    for more in [json!({"steps": 5}), json!({"steps": 5, "evaluation": {"every_steps": 2}})] {
        let spec = JobSpec::parse(&without(more)).unwrap();
        assert_eq!(spec.dataset, None);
        assert_eq!(from_bytes::<JobSpec>(&to_bytes(&spec)).unwrap(), spec);
        assert_eq!(JobSpec::parse(&spec.document()).unwrap(), spec);
    }
    for (fields, field, expected) in [
        (json!({"epochs": 5}), "epochs", "only the job's code knows how many rows"),
        (json!({}), "steps", "`epochs` needs a `dataset`"),
        (json!({"steps": 5, "model": {"kind": "mlp"}}), "dataset", "registered dataset"),
        (
            json!({"steps": 5, "dataset": "d", "model": {"kind": "mlp"}, "evaluation": {}}),
            "evaluation.dataset",
            "registered dataset",
        ),
    ] {
        let found = problems(&without(fields.clone()));
        assert_eq!((found.len(), found[0].field.as_str()), (1, field), "{fields}: {found:?}");
        assert!(found[0].expected.contains(expected), "{fields}: {found:?}");
    }
}

#[test]
fn the_least_job_gets_documented_defaults() {
    let spec = JobSpec::parse(&least()).unwrap();
    assert_eq!(
        (spec.workers.min, spec.workers.max, spec.seed, spec.priority, spec.suspend, spec.max_restarts),
        (1, 1, 0, 0, false, 10)
    );
    assert_eq!(spec.model, ModelSpec::Mlp { hidden: vec![128], dropout: 0.0 });
    assert_eq!((spec.length, spec.shuffle, spec.tail), (Length::Epochs(1), Shuffle::Blocks { open: 8 }, Tail::Short));
    assert!(matches!(spec.optimizer, OptimizerSpec::Adamw { .. }));
    assert_eq!((spec.schedule.warmup_steps, spec.schedule.shape), (0, ScheduleShape::Constant));
    assert_eq!((spec.checkpoint.every, spec.checkpoint.keep), (CheckpointInterval::Steps(500), 2));
    assert_eq!((spec.compare_every_steps, &spec.tenant, &spec.profile), (None, &None, &None));
    assert!(spec.gradient_clip_norm.is_none() && spec.evaluation.is_none());
    assert_eq!((spec.unit_timeout_ms.ms(), spec.store_patience_ms.ms()), (600_000, 1_800_000));
}

/// A spec that says nothing of a field that was added later has the bytes it had before, and so its digest: checkpoints name it.
#[test]
fn what_is_the_default_is_not_in_the_bytes() {
    let said = with("unit_timeout_ms", Some(json!(600_000)));
    assert_eq!(to_bytes(&JobSpec::parse(&said).unwrap()), to_bytes(&JobSpec::parse(&least()).unwrap()));
    for (field, value) in [("unit_timeout_ms", 1_000), ("store_patience_ms", 86_400_000)] {
        let spec = JobSpec::parse(&with(field, Some(json!(value)))).unwrap();
        assert_eq!(from_bytes::<JobSpec>(&to_bytes(&spec)).unwrap(), spec);
        assert_eq!(serde_json::to_value(&spec).unwrap()[field], value);
        assert_ne!(spec.digest(), JobSpec::parse(&least()).unwrap().digest());
    }
}

#[test]
fn bytes_make_no_spec_and_no_name_that_would_be_refused() {
    let spec = samples::spec();
    assert_eq!(from_bytes::<JobSpec>(&to_bytes(&spec)).unwrap(), spec);
    for batch_size in [0, u32::MAX] {
        let fields = JobFields { batch_size, ..(*spec).clone() };
        let error = from_bytes::<JobSpec>(&to_bytes(&fields)).unwrap_err().to_string();
        assert!(error.contains("batch_size"), "{error}");
    }
    let error = from_bytes::<DatasetName>(&to_bytes(&"../secrets")).unwrap_err().to_string();
    assert!(error.contains("../secrets"), "{error}");
}

#[test]
fn what_is_shown_back_is_a_spec_again() {
    let spec = samples::spec();
    let shown = serde_json::to_value(&spec).unwrap();
    assert_eq!(shown["model"]["kind"], "cnn");
    assert_eq!(from_bytes::<JobSpec>(&to_bytes(&spec)).unwrap(), spec);
    assert_eq!(from_bytes::<JobSpec>(&to_bytes(&spec)).unwrap().digest(), spec.digest());
    assert_ne!(spec.digest(), JobSpec::parse(&least()).unwrap().digest());
}

/// One wrong value: exactly one problem, at this field, saying this.
#[test]
fn each_wrong_value_is_refused_by_name() {
    let long = "x".repeat(64);
    let cases: Vec<(&str, Option<Value>, &str, &str)> = vec![
        ("name", None, "name", "1 to 63"),
        ("name", Some(json!("")), "name", "1 to 63"),
        ("name", Some(json!(long)), "name", "1 to 63"),
        ("name", Some(json!("a\nb")), "name", "printable"),
        ("name", Some(json!(5)), "name", "a text"),
        ("model", None, "model", "kind: mlp"),
        ("model", Some(json!("mlp")), "model", "an object"),
        ("model.kind", None, "model.kind", "mlp, cnn, gpt, torch"),
        ("model.kind", Some(json!("resnet")), "model.kind", "mlp, cnn, gpt, torch"),
        ("model.kind", Some(json!("gtp")), "model.kind", "did you mean `gpt`"),
        ("model.kind", Some(json!(3)), "model.kind", "mlp, cnn, gpt, torch"),
        ("model.hidden", Some(json!([0])), "model.hidden", "0 to 32 whole numbers from 1"),
        ("model.hidden", Some(json!([0])), "model.hidden", "from 1 to 65536"),
        ("model.hidden", Some(json!([64, "64"])), "model.hidden", "whole numbers"),
        ("model.hidden", Some(json!(128)), "model.hidden", "a list"),
        ("model.hidden", Some(json!([65_536, 65_536])), "model.hidden", "500000000 parameters"),
        ("model.dropout", Some(json!(1.0)), "model.dropout", "0 to 0.95"),
        ("model.dropout", Some(json!("0.1")), "model.dropout", "a number"),
        ("model.layers", Some(json!(2)), "model.layers", "no such field"),
        (
            "model",
            Some(json!({"kind": "cnn", "channels": [16, 30], "groups": 4})),
            "model.groups",
            "divides every entry",
        ),
        ("model", Some(json!({"kind": "cnn", "blocks": 0})), "model.blocks", "1 to 16"),
        (
            "model",
            Some(json!({"kind": "cnn", "channels": [1, 2, 3, 4, 5, 6, 7], "groups": 1})),
            "model.channels",
            "1 to 6 whole numbers",
        ),
        (
            "model",
            Some(json!({"kind": "cnn", "channels": [4_096, 4_096], "blocks": 16})),
            "model.channels",
            "500000000 parameters",
        ),
        ("model", Some(json!({"kind": "gpt", "heads": 3, "width": 64})), "model.heads", "divides `width` (64)"),
        ("model", Some(json!({"kind": "gpt", "layers": 97})), "model.layers", "1 to 96"),
        ("model", Some(json!({"kind": "gpt", "context": 0})), "model.context", "1 to 8192"),
        ("model", Some(json!({"kind": "gpt", "layers": 96, "width": 6_454})), "model.width", "500000000 parameters"),
        ("model", Some(json!({"kind": "gpt", "contxt": 64})), "model.contxt", "did you mean `context`"),
        ("model", Some(json!({"kind": "synthetic", "gradient_ms": 60_001})), "model.gradient_ms", "0 to 60000"),
        ("model", Some(json!({"kind": "synthetic", "parameters": 0})), "model.parameters", "1 to 500000000"),
        ("model", Some(json!({"kind": "synthetic", "dropout": 0.1})), "model.dropout", "no such field"),
        ("dataset", None, "dataset", "registered dataset"),
        ("dataset", Some(json!("Digits")), "dataset", "a-z, 0-9"),
        ("dataset", Some(json!(["digits"])), "dataset", "a text"),
        ("workers", Some(json!(4)), "workers", "an object"),
        ("workers", Some(json!({"min": 1})), "workers.max", "1 to 256"),
        ("workers", Some(json!({"max": 0})), "workers.max", "1 to 256"),
        ("workers", Some(json!({"max": 257})), "workers.max", "1 to 256"),
        ("workers", Some(json!({"min": 5, "max": 4})), "workers.min", "at most `max` (4)"),
        ("workers", Some(json!({"min": 0, "max": 4})), "workers.min", "1 to 256"),
        ("workers", Some(json!({"max": 4, "mim": 2})), "workers.mim", "did you mean `min`"),
        ("batch_size", None, "batch_size", "1 to 65536"),
        ("batch_size", Some(json!(0)), "batch_size", "1 to 65536"),
        ("batch_size", Some(json!(-8)), "batch_size", "1 to 65536"),
        ("batch_size", Some(json!(8.5)), "batch_size", "whole number"),
        ("batch_size", Some(json!("8")), "batch_size", "whole number"),
        ("batch_size", Some(json!(true)), "batch_size", "whole number"),
        ("epochs", None, "epochs", "or `steps`"),
        ("epochs", Some(json!(0)), "epochs", "1 to 1000000"),
        ("steps", Some(json!(10)), "steps", "not both"),
        ("seed", Some(json!(-1)), "seed", "0 to 18446744073709551615"),
        ("shuffle", Some(json!("random")), "shuffle", "`full`"),
        ("shuffle", Some(json!({"window": 0})), "shuffle", "`full`"),
        ("shuffle", Some(json!({"blocks": {"open": 300}})), "shuffle", "open: 8"),
        ("shuffle", Some(json!({"window": 5, "blocks": {"open": 2}})), "shuffle", "`full`"),
        ("tail", Some(json!("keep")), "tail", "short, drop"),
        ("tail", Some(json!(false)), "tail", "short, drop"),
        ("optimizer", Some(json!("adamw")), "optimizer", "an object"),
        ("optimizer", Some(json!({"kind": "adam"})), "optimizer.kind", "did you mean `adamw`"),
        ("optimizer", Some(json!({"learning_rate": 0.1})), "optimizer.kind", "sgd or adamw"),
        ("optimizer", Some(json!({"kind": "adamw", "momentum": 0.9})), "optimizer.momentum", "no such field"),
        ("optimizer", Some(json!({"kind": "sgd", "momentum": 1.0})), "optimizer.momentum", "0 to 0.999999"),
        ("optimizer", Some(json!({"kind": "sgd", "nesterov": "yes"})), "optimizer.nesterov", "true or false"),
        ("optimizer", Some(json!({"kind": "adamw", "epsilon": 0})), "optimizer.epsilon", "a number from"),
        ("optimizer", Some(json!({"kind": "adamw", "learning_rate": -0.1})), "optimizer.learning_rate", "0 to 1000"),
        (
            "optimizer",
            Some(json!({"kind": "adamw", "lerning_rate": 0.1})),
            "optimizer.lerning_rate",
            "did you mean `learning_rate`",
        ),
        ("schedule", Some(json!({"kind": "exponential"})), "schedule.kind", "constant, step, cosine, linear"),
        ("schedule", Some(json!({"kind": "step"})), "schedule.every_steps", "whole number"),
        ("schedule", Some(json!({"kind": "cosine", "floor": 2})), "schedule.floor", "0 to 1"),
        ("schedule", Some(json!({"kind": "cosine", "factor": 0.5})), "schedule.factor", "no such field"),
        ("schedule.warmup_steps", Some(json!(1.5)), "schedule.warmup_steps", "whole number"),
        ("gradient_clip_norm", Some(json!(0)), "gradient_clip_norm", "a number from"),
        ("evaluation", Some(json!({"every_steps": 5})), "evaluation.dataset", "registered dataset"),
        ("evaluation", Some(json!({"dataset": "d", "every_steps": 0})), "evaluation.every_steps", "whole number"),
        ("checkpoint", Some(json!({"keep": 0})), "checkpoint.keep", "1 to 1000"),
        ("checkpoint", Some(json!({"every_steps": "often"})), "checkpoint.every_steps", "whole number"),
        (
            "checkpoint",
            Some(json!({"every_steps": 0})),
            "checkpoint.every_steps",
            "from 1 to 1000000000, or `every_seconds`",
        ),
        ("checkpoint", Some(json!({"every_seconds": 4})), "checkpoint.every_seconds", "from 5 to 604800"),
        ("checkpoint", Some(json!({"every": "often"})), "checkpoint.every", "one of auto"),
        ("checkpoint", Some(json!({"every": "auto", "every_steps": 5})), "checkpoint.every_steps", "left out where"),
        ("checkpoint", Some(json!({"every": "auto", "every_seconds": 60})), "checkpoint.every_seconds", "not both"),
        ("compare_every_steps", Some(json!(0)), "compare_every_steps", "1 to 1000000000"),
        ("profile", Some(json!("yes")), "profile", "an object"),
        ("profile", Some(json!({"sizes": [4, 2]})), "profile.sizes", "each larger than the one before"),
        ("profile", Some(json!({"sizes": [1, 100]})), "profile.sizes", "to `workers.max`"),
        ("profile", Some(json!({"seconds": 4})), "profile.seconds", "5 to 600"),
        ("profile", Some(json!({"every": 4})), "profile.every", "sizes"),
        ("tenant", Some(json!("Research")), "tenant", "1 to 63 characters"),
        ("tenant", Some(json!(7)), "tenant", "a text"),
        ("determinism", Some(json!("d0")), "determinism", "one of d1, none"),
        ("priority", Some(json!("high")), "priority", "higher goes first"),
        ("priority", Some(json!(3_000_000_000u32)), "priority", "higher goes first"),
        ("suspend", Some(json!("no")), "suspend", "true or false"),
        ("max_restarts", Some(json!(1_001)), "max_restarts", "0 to 1000"),
        ("unit_timeout_ms", Some(json!(999)), "unit_timeout_ms", "from 1000 to 86400000: executors say twice a second"),
        ("unit_timeout_ms", Some(json!("10m")), "unit_timeout_ms", "a whole number of milliseconds"),
        ("unit_timeout_ms", Some(json!(1e3 + 0.5)), "unit_timeout_ms", "a whole number of milliseconds"),
        ("store_patience_ms", Some(json!(0)), "store_patience_ms", "from 180000 to 86400000: a request is tried again"),
        ("store_patience_ms", Some(json!(u64::MAX)), "store_patience_ms", "a store that is away for a day"),
        ("retrains", Some(json!({"from_step": 5})), "retrains.job", "the id of the job that is trained once more"),
        (
            "retrains",
            Some(json!({"job": "job-a", "from_step": 9, "to_step": 8})),
            "retrains.to_step",
            "not before `from_step` (9)",
        ),
        ("retrains", Some(json!({"job": "job-a", "slots": 2})), "retrains.slots", "from 1 to 1"),
        (
            "retrains",
            Some(json!({"job": "job-a", "replica_digest": "0a".repeat(32)})),
            "retrains.replica_digest",
            "in no checkpoint",
        ),
        ("retrains", Some(json!({"job": "job-a", "step": 1})), "retrains.step", "no such field"),
        ("unit_timeout", Some(json!(60_000)), "unit_timeout", "did you mean `unit_timeout_ms`"),
        ("batchsize", Some(json!(8)), "batchsize", "did you mean `batch_size`"),
        ("epoch", Some(json!(1)), "epoch", "did you mean `epochs`"),
        ("engine", Some(json!("torch")), "engine", "which `ebb submit` reads; over HTTP it stands in `model`"),
        ("code", Some(json!("./")), "code", "which `ebb submit` reads"),
        ("zzz", Some(json!(1)), "zzz", "no such field; the fields here are name, model"),
    ];
    for (path, value, field, expected) in cases {
        let document = with(path, value);
        let found = problems(&document);
        assert_eq!(found.iter().map(|p| p.field.as_str()).collect::<Vec<_>>(), [field], "{document}: {found:?}");
        assert!(found[0].expected.contains(expected), "{document}: {}", found[0]);
    }
}

#[test]
fn what_fields_there_are_is_said_once() {
    let mut document = with("zzz", Some(json!(1)));
    document["yyy"] = json!(2);
    let expected: Vec<String> = problems(&document).into_iter().map(|problem| problem.expected).collect();
    assert_eq!((expected.len(), expected[1].as_str()), (2, "no such field"), "{expected:?}");
    assert!(expected[0].starts_with("no such field; the fields here are name, model"), "{expected:?}");
}

#[test]
fn the_value_is_shown_as_given_and_cut_when_long() {
    assert_eq!(problems(&with("batch_size", Some(json!("8"))))[0].value, "\"8\"");
    assert_eq!(problems(&with("batch_size", None))[0].value, "missing");
    let value = &problems(&with("dataset", Some(json!("Ä".repeat(500)))))[0].value;
    assert!(value.chars().count() == 81 && value.ends_with('…'), "{value}");
}

#[test]
fn a_body_that_is_no_object_is_one_problem() {
    for body in [json!(null), json!([]), json!("text"), json!(7), json!(true)] {
        let found = problems(&body);
        assert_eq!(found.len(), 1, "{body}: {found:?}");
        assert_eq!((found[0].field.as_str(), found[0].expected.as_str()), ("", "an object"));
        assert!(found[0].to_string().starts_with("the body is "));
    }
}

#[test]
fn all_problems_are_told_at_once_but_not_without_end() {
    let found = problems(
        &json!({"model": {"kind": "mlp", "hidden": 5, "dropout": 7}, "batch_size": 0, "workers": {}, "tail": "x"}),
    );
    let mut fields: Vec<&str> = found.iter().map(|p| p.field.as_str()).collect();
    fields.sort_unstable();
    assert_eq!(
        fields,
        ["batch_size", "dataset", "epochs", "model.dropout", "model.hidden", "name", "tail", "workers.max"]
    );
    let many: serde_json::Map<String, Value> = (0..500).map(|i| (format!("q{i}"), json!(1))).collect();
    assert_eq!(problems(&Value::Object(many)).len(), 32);
}

/// What YAML makes of unquoted words and numbers arrives here as JSON values.
#[test]
fn values_as_yaml_gives_them() {
    let accepted = [
        ("optimizer", json!({"kind": "sgd", "learning_rate": 1})),
        ("gradient_clip_norm", json!(1)),
        ("gradient_clip_norm", json!(null)),
        ("evaluation", json!(null)),
        ("workers", json!(null)),
        ("seed", json!(18_446_744_073_709_551_615u64)),
        ("shuffle", json!("none")),
        ("priority", json!(-3)),
        ("batch_size", json!(1e3)),
    ];
    for (path, value) in accepted {
        let document = with(path, Some(value));
        assert!(JobSpec::parse(&document).is_ok(), "{document}: {:?}", JobSpec::parse(&document));
    }
    // `name: 2026`, `dataset: on`, `batch_size: 0.5`: numbers and truth values where a text or a whole number belongs.
    for (path, value) in
        [("name", json!(2026)), ("dataset", json!(true)), ("batch_size", json!(0.5)), ("suspend", json!("yes"))]
    {
        assert_eq!(problems(&with(path, Some(value)))[0].field, path);
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,20}".prop_map(Value::from),
        prop_oneof![Just("mlp"), Just("gpt"), Just("cnn"), Just("sgd"), Just("step"), Just("full")]
            .prop_map(Value::from),
    ];
    let name = prop_oneof![
        "[a-z_]{1,8}",
        Just("kind".to_owned()),
        Just("min".to_owned()),
        Just("max".to_owned()),
        Just("hidden".to_owned()),
        Just("window".to_owned())
    ];
    leaf.prop_recursive(3, 24, 6, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            proptest::collection::btree_map(name.clone(), inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn no_document_panics_and_every_refusal_names_something(field in 0..20usize, value in any_json()) {
        let names: Vec<String> = samples::full_document().as_object().unwrap().keys().cloned().collect();
        let document = with(&names[field % names.len()], Some(value));
        match JobSpec::parse(&document) {
            Ok(spec) => prop_assert_eq!(from_bytes::<JobSpec>(&to_bytes(&spec)).unwrap(), spec),
            Err(problems) => {
                prop_assert!(!problems.0.is_empty());
                prop_assert!(problems.0.iter().all(|p| !p.expected.is_empty() && p.value.chars().count() <= 81));
            }
        }
    }

    /// As `docs/http.md` promises it: no way of writing a whole number has it read as another one.
    #[test]
    fn a_whole_number_is_read_as_it_was_written_or_refused((bits, shift) in (any::<u64>(), 10..64u32), zeros in 1..30usize) {
        let number = bits >> shift;
        for text in [format!("{number}.{}", "0".repeat(zeros)), format!("{number:e}"), format!("{number:E}")] {
            let digits = text.chars().take_while(|c| !c.eq_ignore_ascii_case(&'e')).filter(char::is_ascii_digit).count();
            let read = whole(&serde_json::from_str(&text).unwrap());
            prop_assert!(read.is_none_or(|read| read == number), "{text} as {read:?}");
            prop_assert!(read.is_some() || digits > 15 || number >= 1 << 52, "{text} is refused");
        }
    }

    #[test]
    fn valid_specs_survive_their_bytes(min in 1..20u16, more in 0..20u16, batch_size in 1..65_536u32, seed in any::<u64>(), learning_rate in 0.0..10.0f64, steps in 1..1_000_000_000u64, priority in any::<i32>()) {
        let document = json!({
            "name": "p", "model": {"kind": "gpt"}, "dataset": "d", "workers": {"min": min, "max": min + more}, "batch_size": batch_size, "steps": steps,
            "seed": seed, "priority": priority, "optimizer": {"kind": "adamw", "learning_rate": learning_rate},
        });
        let spec = JobSpec::parse(&document).unwrap();
        prop_assert_eq!((spec.workers.max, spec.seed, spec.length, spec.priority), (min + more, seed, Length::Steps(steps), priority));
        prop_assert_eq!(from_bytes::<JobSpec>(&to_bytes(&spec)).unwrap(), spec);
    }
}
