//! `docs/openapi.json` is what the types and the table of operations say, it keeps the rules of a good document, and what was once published stays
//! (`promises.rs`). `EBB_GOLDEN=write` writes the document and the tables of `docs/http.md`, and adds to what is promised.
#![allow(clippy::unwrap_used)]

mod promises;

use events_public::{FactPosition, PublicEvent};
use events_schema::fact::Fact;
use events_schema::{Cell, JobId, Offset, TimeMs, TraceContext};
use gateway_api::operations::operations;
use gateway_api::{CloudEvent, agent_openapi, asyncapi, openapi};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_path_buf()
}

/// Holds a file against what it should be, or writes it.
fn hold(path: &Path, text: &str) {
    if std::env::var("EBB_GOLDEN").is_ok_and(|what| what == "write") {
        std::fs::write(path, text).unwrap();
    }
    let stands = std::fs::read_to_string(path).unwrap_or_default();
    assert!(stands == text, "{} is stale: EBB_GOLDEN=write cargo test -p gateway-api writes it", path.display());
}

#[test]
fn the_document_is_of_these_types() {
    hold(&root().join("docs/openapi.json"), &(serde_json::to_string_pretty(&openapi()).unwrap() + "\n"));
}

#[test]
fn the_document_of_agents_is_of_these_types() {
    hold(&root().join("docs/agent-openapi.json"), &(serde_json::to_string_pretty(&agent_openapi()).unwrap() + "\n"));
}

#[test]
fn the_document_of_streams_is_of_these_types() {
    hold(&root().join("docs/asyncapi.json"), &(serde_json::to_string_pretty(&asyncapi()).unwrap() + "\n"));
}

/// The streams that are described are those that are served, each with its variable parts and an operation of its own.
#[test]
fn streams_are_the_paths_that_answer_with_events() {
    let (streams, api) = (asyncapi(), openapi());
    let paths = api["paths"].as_object().unwrap().iter();
    let served = paths.filter(|(_, item)| !item["get"]["responses"]["200"]["content"]["text/event-stream"].is_null());
    let variables = |item: &Value| -> BTreeSet<String> {
        item.as_array().into_iter().flatten().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
    };
    let served: BTreeMap<&str, BTreeSet<String>> =
        served.map(|(path, item)| (path.as_str(), variables(&item["parameters"]))).collect();
    let channels = streams["channels"].as_object().unwrap();
    let over_http = channels.values().filter(|channel| channel["address"].as_str().unwrap().starts_with('/'));
    let named = |channel: &Value| {
        channel["parameters"].as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect()
    };
    let described: BTreeMap<&str, BTreeSet<String>> =
        over_http.map(|channel| (channel["address"].as_str().unwrap(), named(channel))).collect();
    assert_eq!(described, served);
    let read = streams["operations"].as_object().unwrap().values();
    let read: BTreeSet<&str> = read.map(|one| one["channel"]["$ref"].as_str().unwrap()).collect();
    assert_eq!(
        read,
        channels
            .keys()
            .map(|name| format!("#/channels/{name}"))
            .collect::<Vec<_>>()
            .iter()
            .map(String::as_str)
            .collect()
    );
}

/// What a stream says is what its messages describe: every field of the envelope, and no other.
#[test]
fn messages_over_http_are_whole_cloudevents() {
    let document = asyncapi();
    let event = Fact::JobSuspending { job: JobId::parse("job-a").unwrap() };
    let position = FactPosition { offset: Offset(1), index: 0 };
    let said = CloudEvent::new(1, Cell(0), position, TimeMs(0), &PublicEvent::of(&event).unwrap());
    let said = serde_json::to_value(said).unwrap();
    let described = document["components"]["schemas"]["CloudEvent"]["properties"].as_object().unwrap();
    assert_eq!(said.as_object().unwrap().keys().collect::<BTreeSet<_>>(), described.keys().collect());
    let reference = document["channels"]["jobEvents"]["messages"]["job.suspending.v1"]["$ref"].as_str().unwrap();
    let payload = &document.pointer(reference.trim_start_matches('#')).unwrap()["payload"];
    let own = &payload["schema"]["allOf"][1]["properties"];
    assert_eq!(own["type"]["const"], said["type"]);
    assert_eq!(own["data"]["$ref"], "./events/dev.ebb.job.suspending.v1.json");
}

/// The schemas of data are of a later draft than the one that a schema without a word about it is read by.
#[test]
fn every_payload_says_which_schemas_it_is_written_in() {
    let document = asyncapi();
    for (name, message) in document["components"]["messages"].as_object().unwrap() {
        let format = &message["payload"]["schemaFormat"];
        assert_eq!(format, "application/schema+json;version=draft-2020-12", "{name}");
    }
}

/// What stands on a record of the topic is what its messages describe, and what they call mandatory stands on every one.
#[test]
fn messages_on_kafka_have_the_headers_of_records() {
    let fact = Fact::JobSuspending { job: JobId::parse("job-a").unwrap() };
    let position = FactPosition { offset: Offset(1), index: 0 };
    let event = CloudEvent::new(1, Cell(0), position, TimeMs(0), &PublicEvent::of(&fact).unwrap());
    let said = |trace| -> BTreeSet<&'static str> { event.headers(trace).iter().map(|(name, _)| *name).collect() };
    let document = asyncapi();
    let described = &document["components"]["messageTraits"]["cloudevent"]["headers"];
    let required = described["required"].as_array().unwrap().iter().map(|name| name.as_str().unwrap());
    assert_eq!(required.collect::<BTreeSet<_>>(), said(None));
    let properties = described["properties"].as_object().unwrap().keys().map(String::as_str);
    assert_eq!(properties.collect::<BTreeSet<_>>(), said(TraceContext::new([1; 16], [1; 8], 1).ok()));
}

/// Progress is told to those who follow one job, and to nobody else.
#[test]
fn each_stream_names_the_types_that_are_on_it() {
    let document = asyncapi();
    let on = |channel: &str, kind: &str| !document["channels"][channel]["messages"][kind].is_null();
    for (kind, channels) in [
        ("job.progress.v1", vec!["jobEvents"]),
        ("job.scaled.v1", vec!["events", "jobEvents", "public"]),
        ("command.refused.v1", vec!["events", "jobEvents", "public"]),
        ("slot.returned.v1", vec!["events", "fleetEvents", "public"]),
        ("agent.joined.v1", vec!["events", "public"]),
    ] {
        let found = document["channels"].as_object().unwrap().keys().filter(|channel| on(channel, kind));
        assert_eq!(found.collect::<Vec<_>>(), channels, "{kind}");
    }
}

/// The table of operations in `docs/http.md`, between its marks. What 202 means stands below it, once.
#[test]
fn the_table_for_people_is_of_these_operations() {
    const BEGIN: &str = "<!-- operations: generated -->\n";
    const END: &str = "<!-- operations: end -->\n";
    let path = root().join("docs/http.md");
    let stands = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = stands.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let mut table = String::from("| method and path | what it does | takes | answers |\n| --- | --- | --- | --- |\n");
    for operation in operations() {
        let parameters = operation.parameters.iter().map(|parameter| format!("`{}`", parameter.name));
        let body = operation.body.iter().map(|(name, _)| format!("[{name}](openapi.json)"));
        let takes: Vec<String> = body.chain(parameters).collect();
        let answers: Vec<String> = operation
            .answers
            .iter()
            .filter(|answer| answer.status != 202)
            .map(|answer| format!("{}: {}", answer.status, answer.about))
            .collect();
        table += &format!(
            "| `{} {}` | {} | {} | {} |\n",
            operation.method,
            operation.path,
            operation.summary,
            takes.join(", "),
            answers.join(" ")
        );
    }
    hold(&path, &format!("{before}{BEGIN}{table}{END}{after}"));
}

/// Every place of a document, by its pointer.
fn walk<'a>(value: &'a Value, at: &str, visit: &mut impl FnMut(&str, &'a Value)) {
    visit(at, value);
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, inner)| walk(inner, &format!("{at}/{name}"), visit)),
        Value::Array(items) => items.iter().enumerate().for_each(|(i, inner)| walk(inner, &format!("{at}/{i}"), visit)),
        _ => {}
    }
}

#[test]
fn every_reference_leads_somewhere_and_everything_named_is_used() {
    for (document, groups) in [
        (openapi(), ["schemas", "headers"].as_slice()),
        (agent_openapi(), &["schemas"]),
        (asyncapi(), ["messages", "messageTraits", "schemas"].as_slice()),
    ] {
        references_of(&document, groups);
    }
}

fn references_of(document: &Value, groups: &[&str]) {
    let mut used = BTreeSet::new();
    walk(document, "", &mut |at, value| {
        let reference = value.get("$ref").and_then(Value::as_str);
        if let Some(reference) = reference.filter(|reference| reference.starts_with('#')) {
            assert!(document.pointer(reference.trim_start_matches('#')).is_some(), "{at}: {reference} is nowhere");
            used.insert(reference.to_owned());
        }
    });
    for group in groups {
        for name in document["components"][*group].as_object().unwrap().keys() {
            let reference = format!("#/components/{group}/{name}");
            assert!(used.contains(&reference), "{reference} is used by nobody");
        }
    }
}

#[test]
fn operations_have_names_of_their_own_and_everything_is_described() {
    let all = operations();
    let names: BTreeSet<&str> = all.iter().map(|operation| operation.id).collect();
    assert_eq!(names.len(), all.len());
    for schema in [openapi(), agent_openapi()].iter().flat_map(|api| api["components"]["schemas"].as_object().unwrap())
    {
        let described =
            |value: &Value| value["description"].is_string() || value["$ref"].is_string() || value["anyOf"].is_array();
        assert!(described(schema.1), "{} has no description", schema.0);
        for (name, field) in schema.1["properties"].as_object().into_iter().flatten() {
            assert!(described(field), "{}.{name} has no description", schema.0);
        }
    }
}

#[test]
fn a_digest_in_a_path_is_one() {
    let document = openapi();
    for (path, item) in document["paths"].as_object().unwrap().iter().filter(|(path, _)| path.ends_with("{digest}")) {
        let parameter = &item["parameters"][0];
        assert_eq!(parameter["schema"]["pattern"], "^[0-9a-f]{64}$", "{path}");
        assert!(parameter["description"].as_str().unwrap().contains("digest"), "{path}: {parameter}");
    }
}
