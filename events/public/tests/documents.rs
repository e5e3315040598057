//! The contract's documents are what the types say, and what was once published stays. `EBB_GOLDEN=write` writes the documents, and adds to what is promised.
#![allow(clippy::unwrap_used)]

use events_public::{JOB_PROGRESS, PublicEvent, kinds, may_be_of_fleet, may_be_of_job, schemas};
use events_schema::batch::from_bytes;
use events_schema::fact::{Fact, Refusal};
use events_schema::report::ExitCause;
use events_schema::{CommandId, ExecutorId, FleetId, Generation, JobId, Offset, SlotId, Step};
use serde_json::{Value, json};
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
    schemas().iter().map(|(kind, schema)| (format!("docs/events/{kind}.json").into(), text(schema))).collect()
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

/// Facts of every kind, as they stand in logs.
fn facts() -> Vec<Fact> {
    let golden = std::fs::read_to_string(root().join("events/schema/tests/golden.txt")).unwrap();
    let bytes = |hex: &str| -> Vec<u8> {
        hex.as_bytes()
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    };
    let lines = golden.lines().filter(|line| line.starts_with("Fact"));
    lines.map(|line| from_bytes(&bytes(line.rsplit_once(' ').unwrap().1)).unwrap()).collect()
}

/// The streams of jobs and fleets are told by types in documents, and by subjects where they are served.
#[test]
fn each_type_is_on_the_streams_that_its_events_are_on() {
    /// About whatever was asked for, a job or not; its sample is about something else.
    const COMMAND_REFUSED: &str = "dev.ebb.command.refused.v1";
    let (mut jobs, mut fleets) = (BTreeSet::from([JOB_PROGRESS, COMMAND_REFUSED]), BTreeSet::new());
    for event in facts().iter().filter_map(PublicEvent::of) {
        // The samples name jobs so.
        jobs.extend(event.subject().starts_with("job-").then_some(event.kind()));
        fleets.extend(event.fleet().map(|_| event.kind()));
    }
    assert_eq!(kinds().filter(|kind| may_be_of_job(kind)).collect::<BTreeSet<_>>(), jobs);
    assert_eq!(kinds().filter(|kind| may_be_of_fleet(kind)).collect::<BTreeSet<_>>(), fleets);
}

/// Who is woken by an event looks there for what it means: in the table if somebody has to see to it, else in the list below it.
#[test]
fn operators_are_told_of_every_type_whether_it_wants_somebody() {
    let page = std::fs::read_to_string(root().join("docs/operations.md")).unwrap();
    let section = page.split("\n## ").find(|section| section.starts_with("Events that want somebody\n")).unwrap();
    let named = |kind: &str| format!("`{}`", kind.trim_start_matches("dev.ebb.").trim_end_matches(".v1"));
    let (rows, others): (Vec<&str>, Vec<&str>) = section.lines().partition(|line| line.starts_with("| `"));
    let heads = rows.iter().map(|row| row.split('|').nth(1).unwrap()).collect::<Vec<_>>().concat();
    let list = others.concat().split_once("Nothing is to be done about the others").unwrap().1.to_owned();
    let count = |text: &str, kind: &str| text.matches(&named(kind)).count();
    let wrong: Vec<&str> = kinds().filter(|kind| count(&heads, kind) + count(&list, kind) != 1).collect();
    assert!(wrong.is_empty(), "docs/operations.md says of each type once what to do; not so of {wrong:?}");
    let said = (heads + &list).matches('`').count() / 2;
    assert_eq!(said, kinds().count(), "it names a type that is none");
}

/// What subscribers may rely on, a line each: type, field, what it holds, and whether it is always there; that it is never `null`; the words that it says.
fn promises() -> BTreeSet<String> {
    schemas().iter().flat_map(|(kind, schema)| promises_of(kind, schema)).collect()
}

fn promises_of(kind: &str, schema: &Value) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    walk(schema, schema, kind, "", &mut lines);
    lines
}

fn walk(schema: &Value, whole: &Value, kind: &str, path: &str, lines: &mut BTreeSet<String>) {
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let presence = if required.contains(&name.as_str()) { "always" } else { "maybe" };
        lines.insert(format!("{kind} {path} {} {presence}", holds(&resolved(field, whole), whole)));
        inside(field, whole, kind, &path, lines);
    }
}

/// What is promised of the value at a path, and of what it holds.
fn inside(value: &Value, whole: &Value, kind: &str, path: &str, lines: &mut BTreeSet<String>) {
    let of = resolved(value, whole);
    if !may_be_null(value) && !may_be_null(&of) {
        lines.insert(format!("{kind} {path} is never null"));
    }
    lines.extend(words_of(&of).map(|word| format!("{kind} {path} says {word}")));
    walk(&of, whole, kind, path, lines);
    if of["items"].is_object() {
        inside(&of["items"], whole, kind, &format!("{path}[]"), lines);
    }
    let values = &of["additionalProperties"];
    if values.is_object() {
        let path = format!("{path}{{}}");
        lines.insert(format!("{kind} {path} {} each", holds(&resolved(values, whole), whole)));
        inside(values, whole, kind, &path, lines);
    }
}

/// Whether a schema lets `null` pass; one that says nothing does.
fn may_be_null(schema: &Value) -> bool {
    let choices = || schema["anyOf"].as_array().or(schema["oneOf"].as_array()).into_iter().flatten();
    match &schema["type"] {
        Value::String(kind) => kind == "null",
        Value::Array(kinds) => kinds.iter().any(|kind| kind == "null"),
        _ if schema["$ref"].is_string() || schema["const"].is_string() || schema["enum"].is_array() => false,
        _ => choices().next().is_none() || choices().any(may_be_null),
    }
}

/// A schema behind its reference, and without the `null` of what may be that.
fn resolved(schema: &Value, whole: &Value) -> Value {
    let any = schema["anyOf"].as_array().filter(|any| any.iter().any(|one| one["type"] == "null"));
    let one = any.and_then(|any| any.iter().find(|one| one["type"] != "null")).unwrap_or(schema);
    match one["$ref"].as_str() {
        Some(reference) => whole.pointer(reference.trim_start_matches('#')).unwrap().clone(),
        None => one.clone(),
    }
}

/// The words of an enumeration.
fn words_of(schema: &Value) -> impl Iterator<Item = &str> {
    let words = schema["anyOf"].as_array().into_iter().flatten().filter_map(|word| word["const"].as_str());
    words.chain(schema["enum"].as_array().into_iter().flatten().filter_map(Value::as_str))
}

/// What a field holds, in a word, `null` aside. The words of an enumeration are open, so they are no promise but that a known one stays.
fn holds(field: &Value, whole: &Value) -> String {
    if words_of(field).next().is_some() {
        return "word".to_owned();
    }
    let kinds: Vec<&str> = match &field["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).filter(|kind| *kind != "null").collect(),
        _ => Vec::new(),
    };
    match kinds.as_slice() {
        [] => "anything".to_owned(),
        ["array"] => format!("array of {}", holds(&resolved(&field["items"], whole), whole)),
        kinds => kinds.join(" or "),
    }
}

/// Words that fields may say; one that was published is still known.
fn words() -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for schema in schemas().values() {
        for (name, of) in schema["$defs"].as_object().into_iter().flatten() {
            lines.extend(words_of(of).map(|word| format!("{name} says {word}")));
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
    const KIND: &str = "dev.ebb.job.finished.v1";
    let schema = &schemas()[KIND];
    let broken = |change: fn(&mut Value)| {
        let mut changed = schema.clone();
        change(&mut changed);
        let (before, after) = (promises_of(KIND, schema), promises_of(KIND, &changed));
        let broken: Vec<String> = before.difference(&after).map(|line| line[KIND.len() + 1..].to_owned()).collect();
        broken.join("; ")
    };
    type Change = fn(&mut Value);
    let kept: [(&str, Change); 7] = [
        ("train_loss is never null", |schema| schema["properties"]["train_loss"]["type"] = json!(["number", "null"])),
        ("train_loss number always", |schema| schema["properties"]["train_loss"]["type"] = json!(["number", "string"])),
        ("train_loss number always", |schema| {
            schema["required"] = json!(["job", "step", "model_digest", "train_loss_measured"])
        }),
        ("step integer always; step is never null", |schema| {
            let step = schema["properties"].as_object_mut().unwrap().remove("step").unwrap();
            schema["properties"]["steps"] = step;
        }),
        ("step integer always", |schema| schema["properties"]["step"]["type"] = json!("string")),
        ("evaluation is never null", |schema| {
            let evaluation = schema["properties"]["evaluation"].clone();
            schema["properties"]["evaluation"] = json!({"anyOf": [evaluation, {"type": "null"}]});
        }),
        ("evaluation.means{} number each", |schema| {
            schema["$defs"]["Evaluation"]["properties"]["means"]["additionalProperties"]["type"] =
                json!(["string", "null"]);
        }),
    ];
    for (line, change) in kept {
        assert_eq!(broken(change), line);
    }
    assert_eq!(broken(|schema| schema["properties"]["more"] = json!({"type": "string"})), "");
    let promised = promises();
    for line in [
        "dev.ebb.slot.reclaimed.v1 cause says direct",
        "dev.ebb.generation.proposed.v1 members[].ranks[] is never null",
    ] {
        assert!(promised.contains(line), "{line} is not found in {promised:#?}");
    }
    assert!(words().contains("ReclaimCause says direct"));
}

/// The documents say of every field that may be absent that it is not `null` when it is there: readers have one case to tell, not two.
#[test]
fn what_may_be_absent_is_never_null_and_what_is_said_is_as_the_document_says() {
    let promised = promises();
    for line in promised.iter().filter(|line| line.ends_with(" maybe")) {
        let field: Vec<&str> = line.split(' ').take(2).collect();
        let never = format!("{} is never null", field.join(" "));
        assert!(promised.contains(&never), "it is not promised that {never}");
    }
    for event in facts().iter().filter_map(PublicEvent::of) {
        said(&event.data(), event.kind(), "", &promised);
    }
}

fn said(value: &Value, kind: &str, path: &str, promised: &BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                let own = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                let known = |path: &str| promised.iter().any(|line| line.starts_with(&format!("{kind} {path} ")));
                said(field, kind, &if known(&own) { own } else { format!("{path}{{}}") }, promised);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| said(item, kind, &format!("{path}[]"), promised)),
        Value::Null => {
            assert!(!promised.contains(&format!("{kind} {path} is never null")), "{kind} says null of {path}")
        }
        _ => assert!(
            promised.iter().any(|line| line.starts_with(&format!("{kind} {path} "))),
            "{kind} says {path}, which no document has"
        ),
    }
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
    let slot = || "gpu/0".parse::<SlotId>().unwrap();
    let gone = |exit| Fact::ExecutorGone {
        executor: ExecutorId { job: job.clone(), number: 1 },
        slot: slot(),
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
        gone(ExitCause::Failed { status: 1, said: reason.clone(), code_ended: None }),
        gone(ExitCause::DeviceLost(reason.clone())),
        Fact::SlotQuarantined { slot: slot(), fleet: None, reason: reason.clone() },
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

/// What others said is in a field of this name everywhere.
#[test]
fn every_type_that_holds_what_others_said_has_a_fact_here() {
    let said: BTreeSet<&str> =
        facts_that_say("", "").iter().filter_map(PublicEvent::of).map(|event| event.kind()).collect();
    let holding: BTreeSet<String> = promises()
        .into_iter()
        .filter_map(|line| line.split_once(" reason ").map(|(kind, _)| kind.to_owned()))
        .collect();
    assert_eq!(holding.iter().map(String::as_str).collect::<BTreeSet<_>>(), said);
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
