//! `docs/openapi.json` is what the types and the table of operations say, it keeps the rules of a good document, and what was once published stays.
//! `EBB_GOLDEN=write` writes the document and the tables of `docs/http.md`, and adds to what is promised.
#![allow(clippy::unwrap_used)]

use gateway_api::operations::operations;
use gateway_api::{ProblemKind, openapi};
use serde_json::Value;
use std::collections::BTreeSet;
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
    let document = openapi();
    let mut used = BTreeSet::new();
    walk(&document, "", &mut |at, value| {
        if let Some(reference) = value.get("$ref").and_then(Value::as_str) {
            assert!(document.pointer(reference.trim_start_matches('#')).is_some(), "{at}: {reference} is nowhere");
            used.insert(reference.to_owned());
        }
    });
    for group in ["schemas", "headers"] {
        for name in document["components"][group].as_object().unwrap().keys() {
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
    let document = openapi();
    for schema in document["components"]["schemas"].as_object().unwrap() {
        let described =
            |value: &Value| value["description"].is_string() || value["$ref"].is_string() || value["anyOf"].is_array();
        assert!(described(schema.1), "{} has no description", schema.0);
        for (name, field) in schema.1["properties"].as_object().into_iter().flatten() {
            assert!(described(field), "{}.{name} has no description", schema.0);
        }
    }
}

/// What clients may rely on, a line each.
fn promises() -> BTreeSet<String> {
    let document = openapi();
    let mut lines = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap().iter().filter(|(method, _)| *method != "parameters") {
            let name = format!("{} {path}", method.to_uppercase());
            lines.insert(format!("{name} is {}", operation["operationId"].as_str().unwrap()));
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                lines.insert(format!(
                    "{name} takes {} {}",
                    parameter["in"].as_str().unwrap(),
                    parameter["name"].as_str().unwrap()
                ));
            }
            for (status, response) in operation["responses"].as_object().unwrap() {
                for (kind, content) in response["content"].as_object().into_iter().flatten() {
                    lines.insert(format!("{name} answers {status} {kind} {}", holds(&content["schema"])));
                }
            }
            for (kind, content) in operation["requestBody"]["content"].as_object().into_iter().flatten() {
                lines.insert(format!("{name} takes {kind} {}", holds(&content["schema"])));
            }
        }
    }
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        fields(name, schema, &mut lines);
    }
    lines.extend(ProblemKind::ALL.iter().map(|kind| format!("problem {} {}", kind.slug(), kind.status())));
    lines
}

/// The word that tells this object of a choice from the others, if it has one.
fn tag(one: &Value) -> Option<&str> {
    one["properties"].as_object()?.values().find_map(|field| field["const"].as_str())
}

/// What those objects of choices demand that nobody was promised, where others were.
fn demanded_by_new_choices(path: &str, schema: &Value, promised: &BTreeSet<String>, found: &mut BTreeSet<String>) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        demanded_by_new_choices(&format!("{path}.{name}"), field, promised, found);
    }
    for one in ["oneOf", "anyOf"].iter().flat_map(|choice| schema[*choice].as_array()).flatten() {
        let begin = format!("{path} may be ");
        let is_new = |word: &str| !promised.contains(&format!("{begin}{word}"));
        if tag(one).is_some_and(is_new) && promised.iter().any(|line| line.starts_with(&begin)) {
            fields(path, one, found);
        }
    }
}

/// Fields of an object, and of the objects of a choice.
fn fields(path: &str, schema: &Value, lines: &mut BTreeSet<String>) {
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let presence = if required.contains(&name.as_str()) { "always" } else { "maybe" };
        lines.insert(format!("{path}.{name} {} {presence}", holds(field)));
        fields(&format!("{path}.{name}"), field, lines);
    }
    for choice in ["oneOf", "anyOf"] {
        for one in schema[choice].as_array().into_iter().flatten() {
            lines.extend(one["const"].as_str().map(|word| format!("{path} says {word}")));
            lines.extend(tag(one).map(|word| format!("{path} may be {word}")));
            fields(path, one, lines);
        }
    }
    lines.extend(
        schema["enum"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .map(|word| format!("{path} says {word}")),
    );
    if schema["items"].is_object() {
        fields(&format!("{path}[]"), &schema["items"], lines);
    }
}

/// What a schema holds, in a word.
fn holds(schema: &Value) -> String {
    if let Some(reference) = schema["$ref"].as_str() {
        return reference.rsplit('/').next().unwrap().to_owned();
    }
    let choice = schema["anyOf"].as_array().or(schema["oneOf"].as_array());
    if let Some(one) = choice.and_then(|any| any.iter().find(|one| one["$ref"].is_string())) {
        return holds(one);
    }
    match &schema["type"] {
        Value::String(kind) if kind == "array" => format!("array of {}", holds(&schema["items"])),
        Value::String(kind) => kind.clone(),
        Value::Array(kinds) => {
            kinds.iter().filter_map(Value::as_str).find(|kind| *kind != "null").unwrap_or("anything").to_owned()
        }
        _ => "anything".to_owned(),
    }
}

#[test]
fn what_was_published_stays() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/promises.txt");
    let stands = std::fs::read_to_string(&file).unwrap_or_default();
    let promised: BTreeSet<String> = stands.lines().map(str::to_owned).collect();
    let kept = promises();
    let bodies: BTreeSet<&str> =
        operations().iter().filter_map(|operation| operation.body.map(|(name, _)| name)).collect();
    // What had to be sent and may be left out now is asked for less: whoever sends it goes on as before.
    let eased = |line: &&String| {
        let of_body = line.split(['.', ' ']).next().is_some_and(|body| bodies.contains(body));
        let maybe = line.strip_suffix(" always").map(|field| format!("{field} maybe"));
        of_body && maybe.is_some_and(|maybe| kept.contains(&maybe))
    };
    let broken: Vec<&String> = promised.difference(&kept).filter(|line| !eased(line)).collect();
    assert!(
        broken.is_empty(),
        "clients were promised this, and it is not so any more; a breaking change needs another path (`/v2/…`): {broken:#?}"
    );
    // A body that was enough has to stay enough.
    let known = |body: &str| promised.iter().any(|line| line.starts_with(&format!("{body}.")));
    let mut of_choices = BTreeSet::new();
    for (name, schema) in openapi()["components"]["schemas"].as_object().unwrap() {
        demanded_by_new_choices(name, schema, &promised, &mut of_choices);
    }
    // A field of an object that is new itself, and may be left out, is asked of nobody who leaves it out.
    let of_new_option = |line: &str| {
        let path = line.split(' ').next().unwrap_or_default();
        let holders = path.match_indices('.').map(|(end, _)| &path[..end]);
        let stands = |lines: &BTreeSet<String>, holder: &str, presence: &str| {
            lines.iter().any(|line| line.starts_with(&format!("{holder} ")) && line.ends_with(presence))
        };
        holders.into_iter().any(|holder| stands(&kept, holder, " maybe") && !stands(&promised, holder, ""))
    };
    let demanding: Vec<&String> = kept
        .difference(&promised)
        .filter(|line| !of_new_option(line))
        // Who chose one of the others still says enough.
        .filter(|line| !of_choices.contains(*line))
        .filter(|line| {
            line.ends_with(" always")
                && line.split(['.', ' ']).next().is_some_and(|body| bodies.contains(body) && known(body))
        })
        .collect();
    assert!(demanding.is_empty(), "requests that were whole are not any more: {demanding:#?}");
    hold(&file, &kept.iter().map(|line| format!("{line}\n")).collect::<String>());
}

#[test]
fn a_breaking_change_is_noticed() {
    let kept = promises();
    for line in [
        "GET /v1/jobs is listJobs",
        "GET /v1/jobs answers 200 application/json JobPage",
        "GET /v1/jobs takes query limit",
        "JobPage.jobs array of Job always",
        "Job.phase JobPhase always",
        "JobPhase says running",
        "SubmitJob.model.hidden array of integer maybe",
        "SubmitJob.batch_size integer always",
        "SubmitJob.model may be mlp",
        "problem idempotency-key-reused 422",
    ] {
        assert!(kept.contains(line), "{line} is not found in {kept:#?}");
    }
}
