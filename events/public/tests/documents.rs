//! The contract's documents are what the types say, and what was once published stays. `EBB_GOLDEN=write` writes the documents, and adds to what is promised.
#![allow(clippy::unwrap_used)]

use events_public::{PublicEvent, asyncapi, schemas};
use events_schema::fact::{Fact, Refusal};
use events_schema::report::ExitCause;
use events_schema::{CommandId, ExecutorId, FleetId, Generation, JobId, Offset, SlotId, Step};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_path_buf()
}

fn writes() -> bool {
    std::env::var("EBB_GOLDEN").is_ok_and(|what| what == "write")
}

/// The files of the contract, by their place in the repository.
fn documents() -> Vec<(PathBuf, String)> {
    let text = |value: &Value| serde_json::to_string_pretty(value).unwrap() + "\n";
    let mut all = vec![(PathBuf::from("docs/asyncapi.json"), text(&asyncapi()))];
    all.extend(schemas().iter().map(|(kind, schema)| (format!("docs/events/{kind}.json").into(), text(schema))));
    all
}

#[test]
fn the_documents_are_of_these_types() {
    let folder = root().join("docs/events");
    if writes() {
        std::fs::remove_dir_all(&folder).ok();
        std::fs::create_dir_all(&folder).unwrap();
        for (path, text) in documents() {
            std::fs::write(root().join(path), text).unwrap();
        }
    }
    for (path, text) in documents() {
        let stands = std::fs::read_to_string(root().join(&path)).unwrap_or_default();
        assert_eq!(stands, text, "{} is stale: EBB_GOLDEN=write cargo test -p events-public writes it", path.display());
    }
    let files = std::fs::read_dir(&folder).unwrap().count();
    assert_eq!(files, schemas().len(), "docs/events holds a schema of no event");
}

/// What subscribers may rely on, a line each: type, field, what it holds, and whether it is always there.
fn promises() -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for (kind, schema) in schemas() {
        walk(&schema, &schema, kind, "", &mut lines);
    }
    lines
}

fn walk(schema: &Value, whole: &Value, kind: &str, path: &str, lines: &mut BTreeSet<String>) {
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let field = resolved(field, whole);
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let presence = if required.contains(&name.as_str()) { "always" } else { "maybe" };
        lines.insert(format!("{kind} {path} {} {presence}", holds(&field, whole)));
        walk(&field, whole, kind, &path, lines);
        walk(&resolved(&field["items"], whole), whole, kind, &format!("{path}[]"), lines);
    }
}

/// A schema behind its reference, and without the `null` of what may be absent.
fn resolved(schema: &Value, whole: &Value) -> Value {
    let any = schema["anyOf"].as_array().filter(|any| any.iter().any(|one| one["type"] == "null"));
    let one = any.and_then(|any| any.iter().find(|one| one["type"] != "null")).unwrap_or(schema);
    match one["$ref"].as_str() {
        Some(reference) => whole.pointer(reference.trim_start_matches('#')).unwrap().clone(),
        None => one.clone(),
    }
}

/// What a field holds, in a word. The words of an enumeration are open, so they are no promise but that a known one stays.
fn holds(field: &Value, whole: &Value) -> String {
    let words = field["anyOf"].as_array().into_iter().flatten().filter_map(|word| word["const"].as_str());
    let words: Vec<&str> =
        words.chain(field["enum"].as_array().into_iter().flatten().filter_map(Value::as_str)).collect();
    if !words.is_empty() {
        return "word".to_owned();
    }
    let kind = match &field["type"] {
        Value::String(kind) => kind.as_str(),
        Value::Array(kinds) => {
            kinds.iter().filter_map(Value::as_str).find(|kind| *kind != "null").unwrap_or("anything")
        }
        _ => "anything",
    };
    match kind {
        "array" => format!("array of {}", holds(&resolved(&field["items"], whole), whole)),
        kind => kind.to_owned(),
    }
}

/// Words that fields may say; one that was published is still known.
fn words() -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for schema in schemas().values() {
        for (name, of) in schema["$defs"].as_object().into_iter().flatten() {
            let said = of["anyOf"].as_array().into_iter().flatten().filter_map(|word| word["const"].as_str());
            let said = said.chain(of["enum"].as_array().into_iter().flatten().filter_map(Value::as_str));
            lines.extend(said.map(|word| format!("{name} says {word}")));
        }
    }
    lines
}

#[test]
fn what_was_published_stays() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/promises.txt");
    let stands = std::fs::read_to_string(&file).unwrap_or_default();
    let promised: BTreeSet<String> = stands.lines().map(str::to_owned).collect();
    let kept: BTreeSet<String> = promises().into_iter().chain(words()).collect();
    let broken: Vec<&String> = promised.difference(&kept).collect();
    assert!(
        broken.is_empty(),
        "subscribers were promised this, and it is not so any more; a breaking change needs a new version of the type: {broken:#?}"
    );
    if writes() {
        std::fs::write(&file, kept.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    }
    let stands = std::fs::read_to_string(&file).unwrap_or_default();
    let new: Vec<&String> = kept.iter().filter(|line| !stands.lines().any(|known| known == line.as_str())).collect();
    assert!(
        new.is_empty(),
        "new promises have to be written down: EBB_GOLDEN=write cargo test -p events-public: {new:#?}"
    );
}

#[test]
fn a_breaking_change_is_noticed() {
    let kept = promises();
    for line in [
        "dev.ebb.job.scaled.v1 took_ms integer always",
        "dev.ebb.slot.returned.v1 fleet string maybe",
        "dev.ebb.generation.proposed.v1 members[].ranks array of integer always",
        "dev.ebb.job.planned.v1 cause word always",
        "dev.ebb.job.finished.v1 evaluation.loss number always",
    ] {
        assert!(kept.contains(line), "{line} is not found in {kept:#?}");
    }
    assert!(words().contains("ReclaimCause says direct"));
}

#[test]
fn no_field_that_is_published_is_named_for_an_address_or_a_key() {
    for line in promises() {
        for word in ["address", "url", "key", "token", "secret", "spec", "incarnation"] {
            let field = line.split(' ').nth(1).unwrap();
            assert!(!field.split(['.', '_', '[', ']']).any(|part| part == word), "{line}");
        }
    }
}

/// A fact of every kind that holds what others said, each with this text.
fn facts_that_say(text: &str, object: &str) -> Vec<Fact> {
    let (job, fleet) = (JobId::parse("job-a").unwrap(), FleetId::parse("chat").unwrap());
    let (step, reason) = (Step(1_200), text.to_owned());
    let gone = |exit| Fact::ExecutorGone {
        executor: ExecutorId { job: job.clone(), number: 1 },
        slot: "gpu/0".parse::<SlotId>().unwrap(),
        exit,
        verdict: None,
        awaited_until: None,
    };
    let unfit = Refusal::Unfit { field: "uris".to_owned(), value: reason.clone(), expected: reason.clone() };
    vec![
        Fact::JobFailed { job: job.clone(), reason: reason.clone() },
        Fact::CheckpointDamaged {
            job: job.clone(),
            generation: Generation(3),
            step,
            object: object.to_owned(),
            reason: reason.clone(),
            instead: Step(0),
        },
        Fact::CheckpointUnreadable { job: job.clone(), generation: Generation(3), step, reason: reason.clone() },
        gone(ExitCause::NotStarted(reason.clone())),
        gone(ExitCause::Failed { status: 1, said: reason.clone() }),
        Fact::SignalsRefused { fleet, offset: Offset(7), count: 1, reason: reason.clone() },
        Fact::CommandRefused {
            command: CommandId::parse("cmd-a").unwrap(),
            subject: "job-a".to_owned(),
            refusal: unfit,
        },
        Fact::InputRefused { stream: "commands".to_owned(), offset: Offset(7), reason: reason.clone() },
        Fact::PlanFailed { policy: "gain".to_owned(), reason },
    ]
}

#[test]
fn nothing_that_is_published_could_hold_an_address_or_a_key() {
    let token = "c3".repeat(16);
    let object =
        format!("jobs/job-a/checkpoints/g00000000000000000003-s00000000000000001200-w{token}/shard-0.safetensors");
    let secrets = [
        object.as_str(),
        token.as_str(),
        "10.1.2.3:7900",
        "10.1.2.3",
        "http://store.internal:9000/b",
        "[fd00::7]:7900",
    ];
    let said = format!("the step failed: `{}`", secrets.join("` and "));
    for fact in facts_that_say(&said, &object) {
        let event = PublicEvent::of(&fact).unwrap();
        let data = event.data().to_string();
        for secret in secrets.iter().chain(&["checkpoints/", "store.internal", "fd00"]) {
            assert!(!data.contains(secret), "{} holds {secret}: {data}", event.kind());
        }
        let whole = matches!(fact, Fact::CheckpointDamaged { .. }) || data.contains("the step failed");
        assert!(whole, "{} does not say what went wrong: {data}", event.kind());
    }
}
