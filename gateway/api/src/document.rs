//! The API as an OpenAPI 3.1 document, made of the types and the table of operations. `docs/openapi.json` holds what comes out.

use crate::operations::{Answer, EVERYWHERE, Operation, Parameter, SchemaOf, operations};
use crate::problem::{Problem, ProblemKind};
use crate::service::BINARY;
use crate::{forms, headers, paths};
use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::transform::{RecursiveTransform, Transform};
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Of the contract: it changes when something is added, and its first number when something is broken, which is another path.
const VERSION: &str = "1.0.0";

/// The OpenAPI document.
#[must_use]
pub fn openapi() -> Value {
    let mut answers = SchemaSettings::draft2020_12()
        .with(|settings| {
            settings.meta_schema = None;
            settings.definitions_path = "/components/schemas".into();
        })
        .for_serialize()
        .into_generator();
    let mut bodies: BTreeMap<&'static str, Value> = BTreeMap::new();
    let mut items: BTreeMap<&'static str, Map<String, Value>> = BTreeMap::new();
    let mut order = Vec::new();
    for operation in operations() {
        if let Some((name, schema)) = operation.body {
            bodies.entry(name).or_insert_with(|| request(name, schema));
        }
        if !order.contains(&operation.path) {
            order.push(operation.path);
        }
        items.entry(operation.path).or_default().insert(operation.method.to_lowercase(), one(&operation, &mut answers));
    }
    let _ = answers.subschema_for::<Problem>();
    let mut schemas: Map<String, Value> =
        answers.take_definitions(true).into_iter().map(|(name, schema)| (name, shown(schema))).collect();
    schemas.extend(bodies.into_iter().map(|(name, schema)| (name.to_owned(), schema)));
    let paths: Map<String, Value> = order
        .into_iter()
        .filter_map(|path| items.remove(path).map(|item| (path.to_owned(), with_path_parameters(path, item))))
        .collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Ebb",
            "version": VERSION,
            "summary": "Training on the accelerators that inference fleets do not need right now.",
            "description": "Jobs, datasets, fleets and their slots. `docs/http.md` says what holds for all of them: who may ask, how commands are decided, what may change.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "contact": {"name": "Ebb", "url": "https://ebb.dev"},
        },
        "servers": [{"url": "http://127.0.0.1:7878", "description": "Where `ebb up` listens if nobody says otherwise."}],
        "tags": TAGS.iter().map(|(name, about)| json!({"name": name, "description": about})).collect::<Vec<_>>(),
        "paths": paths,
        "components": {
            "schemas": schemas,
            "headers": {
                "ETag": {"description": "Names this state of the thing.", "schema": {"type": "string"}},
                "Location": {"description": "Where to look next.", "schema": {"type": "string", "format": "uri-reference"}},
                "Ebb-Log-From": {"description": "The place of the first byte; later than asked for if what was there is gone.", "schema": {"type": "integer", "minimum": 0}},
                "Ebb-Log-Next": {"description": "The place behind the last byte: where to go on.", "schema": {"type": "integer", "minimum": 0}},
                "Accept-Ranges": {"description": "Parts are counted in these.", "schema": {"const": "bytes"}},
                "Content-Range": {"description": "Which part of how many bytes.", "schema": {"type": "string"}},
                "X-Request-Id": {"description": "Names the request in logs and problems: as the client said, or made.", "schema": {"type": "string"}},
                "Retry-After": {"description": "Seconds after which another look makes sense.", "schema": {"type": "integer", "minimum": 0}},
            },
        },
    })
}

/// Where the header is described that every answer has.
const REQUEST_ID: &str = "#/components/headers/X-Request-Id";

const TAGS: &[(&str, &str)] = &[
    ("commands", "What became of what was asked."),
    ("datasets", "What jobs train on."),
    ("events", "What happens, as CloudEvents."),
    ("fleets", "Who lends slots."),
    ("jobs", "What trains."),
    ("service", "The service itself."),
    ("slots", "Places on accelerators."),
    ("tenants", "Whose jobs are, and what they have guaranteed."),
];

fn tag(path: &str) -> &'static str {
    let name = path
        .strip_prefix(paths::ROOT)
        .and_then(|rest| rest.strip_prefix('/'))
        .and_then(|rest| rest.split('/').next())
        .unwrap_or_default();
    TAGS.iter().map(|(tag, _)| *tag).find(|tag| *tag == name).unwrap_or("service")
}

/// What a request holds: nothing is forgiven that the schema does not name.
pub(crate) fn request(name: &str, schema: SchemaOf) -> Value {
    let mut generator = SchemaSettings::draft2020_12()
        .with(|settings| {
            settings.meta_schema = None;
            settings.inline_subschemas = true;
        })
        .for_deserialize()
        .into_generator();
    let mut schema = schema(&mut generator);
    RecursiveTransform(|schema: &mut Schema| {
        if schema.get("properties").is_some() {
            schema.insert("additionalProperties".to_owned(), Value::Bool(false));
        }
    })
    .transform(&mut schema);
    schema.insert("title".to_owned(), json!(name));
    schema.to_value()
}

/// What an answer holds. That a reader has a default for a field is no business of the document.
pub(crate) fn shown(definition: Value) -> Value {
    let Ok(mut schema) = Schema::try_from(definition) else { return Value::Bool(true) };
    RecursiveTransform(|schema: &mut Schema| {
        schema.remove("default");
    })
    .transform(&mut schema);
    // Choices are open, as lists of words are: a validator that knows today's has to let tomorrow's pass.
    if let Some(Value::Array(choices)) = schema.get_mut("anyOf") {
        choices.push(json!({"type": ["string", "object"], "description": "Whatever later builds add."}));
    }
    schema.to_value()
}

fn one(operation: &Operation, generator: &mut SchemaGenerator) -> Value {
    let mut responses: BTreeMap<String, Value> =
        operation.answers.iter().map(|answer| (answer.status.to_string(), response(answer, generator))).collect();
    let problems: Vec<ProblemKind> = EVERYWHERE.iter().chain(&operation.problems).copied().collect();
    let statuses: BTreeSet<u16> = problems.iter().map(|kind| kind.status()).collect();
    for status in statuses {
        let kinds: Vec<ProblemKind> = problems.iter().copied().filter(|kind| kind.status() == status).collect();
        responses.insert(status.to_string(), problem(&kinds));
    }
    let mut shown = json!({
        "operationId": operation.id,
        "tags": [tag(operation.path)],
        "summary": operation.summary,
        "description": format!("{}.", operation.summary),
        "responses": responses,
    });
    if !operation.parameters.is_empty() {
        shown["parameters"] = operation.parameters.iter().map(parameter).collect();
    }
    if let Some((name, _)) = operation.body {
        let content = json!({"schema": {"$ref": format!("#/components/schemas/{name}")}});
        let types: &[&str] =
            if matches!(name, "Archive" | "Tensors") { &[BINARY] } else { &["application/json", "application/yaml"] };
        let contents: Map<String, Value> = types.iter().map(|&of| (of.to_owned(), content.clone())).collect();
        shown["requestBody"] = json!({"required": true, "content": contents});
    }
    shown
}

fn parameter(parameter: &Parameter) -> Value {
    json!({"name": parameter.name, "in": parameter.place, "required": false, "description": parameter.about, "schema": parameter.schema})
}

fn response(answer: &Answer, generator: &mut SchemaGenerator) -> Value {
    let mut shown = json!({"description": answer.about, "headers": {"X-Request-Id": {"$ref": REQUEST_ID}}});
    if !answer.contents.is_empty() {
        let contents = answer.contents.iter();
        shown["content"] = contents
            .map(|(kind, schema)| ((*kind).to_owned(), json!({"schema": schema(generator)})))
            .collect::<Map<_, _>>()
            .into();
    }
    for name in answer.headers {
        shown["headers"][*name] = json!({"$ref": format!("#/components/headers/{name}")});
    }
    shown
}

/// An answer that is one of these problems, each with its slug and title.
pub(crate) fn problem_answer(kinds: impl Iterator<Item = (&'static str, &'static str)>) -> Value {
    let unique: BTreeMap<&str, &str> = kinds.collect();
    let listed: Vec<String> = unique.iter().map(|(slug, title)| format!("`{slug}`: {title}.")).collect();
    json!({
        "description": listed.join(" "),
        "content": {headers::PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    })
}

/// A status of refusals, and the kinds that have it.
fn problem(kinds: &[ProblemKind]) -> Value {
    let mut shown = problem_answer(kinds.iter().map(|kind| (kind.slug(), kind.title())));
    shown["headers"] = json!({"X-Request-Id": {"$ref": REQUEST_ID}});
    if kinds.iter().any(|kind| kind.worth_retrying()) {
        shown["headers"]["Retry-After"] = json!({"$ref": "#/components/headers/Retry-After"});
    }
    shown
}

fn with_path_parameters(path: &str, item: Map<String, Value>) -> Value {
    let names = paths::variables(path);
    let mut generator = SchemaSettings::draft2020_12().into_generator();
    let name_schema = forms::Name::json_schema(&mut generator).to_value();
    let number = json!({"type": "integer", "minimum": 0, "maximum": u32::MAX});
    let digest = forms::Hash::json_schema(&mut generator).to_value();
    let schema = |name: &str| match name {
        "executor" => number.clone(),
        "digest" => digest.clone(),
        _ => name_schema.clone(),
    };
    let parameter = |name: &&str| json!({"name": name, "in": "path", "required": true, "description": about(path, name), "schema": schema(name)});
    let mut shown = Map::new();
    if !names.is_empty() {
        shown.insert("parameters".to_owned(), names.iter().map(parameter).collect());
    }
    shown.extend(item);
    Value::Object(shown)
}

/// What a variable part of a path is.
pub(crate) fn about(path: &str, name: &str) -> &'static str {
    match (path, name) {
        (paths::COMMAND, _) => "The command's id, as the answer with 202 said it.",
        (_, "digest") => "The BLAKE3 digest of its bytes, in hexadecimal digits.",
        (_, "executor") => "The executor's number within the job.",
        (_, "fleet") => "The fleet's name.",
        (_, "name") => "The dataset's name.",
        _ => "The job's id.",
    }
}
