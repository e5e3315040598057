//! The contract's documents are what the types say, and what was once published stays. `EBB_GOLDEN=write` writes the documents, and adds to what is promised.
#![allow(clippy::unwrap_used)]

use events_public::{JOB_PROGRESS, PublicEvent, kinds, may_be_of_fleet, may_be_of_job, schemas};
use events_schema::batch::from_bytes;
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
