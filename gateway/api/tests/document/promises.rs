//! What clients of the gateway and of agents may rely on, line by line (`tests/promises.txt`): a change that breaks a line is refused, what is new is written
//! down, and what requests may hold may get wider and never narrower.

use crate::{hold, root, walk};
use gateway_api::agent::AgentProblemKind;
use gateway_api::{ProblemKind, agent_openapi, openapi};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// What clients may rely on, a line each.
fn promises() -> BTreeSet<String> {
    let mut lines = promises_of(&openapi());
    lines.extend(ProblemKind::ALL.iter().map(|kind| format!("problem {} {}", kind.slug(), kind.status())));
    // What an agent's own listener promises, each line marked as its own.
    lines.extend(promises_of(&agent_openapi()).into_iter().map(|line| format!("{AGENT}{line}")));
    let problems = AgentProblemKind::ALL.iter();
    lines.extend(problems.map(|kind| format!("{AGENT}problem {} {}", kind.slug(), kind.status())));
    lines
}

/// What marks the promises of an agent.
const AGENT: &str = "agent:";

fn promises_of(document: &Value) -> BTreeSet<String> {
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
                let headers = response["headers"].as_object().into_iter().flatten();
                lines.extend(headers.map(|(header, _)| format!("{name} answers {status} with {header}")));
            }
            for (kind, content) in operation["requestBody"]["content"].as_object().into_iter().flatten() {
                lines.insert(format!("{name} takes {kind} {}", holds(&content["schema"])));
            }
        }
    }
    let bodies = bodies_of(document);
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        fields(name, schema, &mut lines);
        if bodies.contains(name) {
            taken(name, schema, &mut lines);
        } else {
            nulls(name, schema, &mut lines);
        }
    }
    for (at, schema) in parameters(document) {
        taken(&at, schema, &mut lines);
    }
    lines
}

/// Names of what requests hold.
fn bodies_of(document: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    walk(document, "", &mut |_, value| {
        for (_, content) in value["requestBody"]["content"].as_object().into_iter().flatten() {
            found.insert(holds(&content["schema"]));
        }
    });
    found
}

/// Every parameter, by its operation and name, with its schema.
fn parameters(document: &Value) -> Vec<(String, &Value)> {
    let mut found = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let listed = if method == "parameters" { operation } else { &operation["parameters"] };
            let at = if method == "parameters" { path.clone() } else { format!("{} {path}", method.to_uppercase()) };
            for parameter in listed.as_array().into_iter().flatten() {
                found.push((format!("{at}?{}", parameter["name"].as_str().unwrap()), &parameter["schema"]));
            }
        }
    }
    found
}

/// Whether a schema lets `null` pass; one that says nothing does.
fn may_be_null(schema: &Value) -> bool {
    let choices = || schema["anyOf"].as_array().or(schema["oneOf"].as_array()).into_iter().flatten();
    match &schema["type"] {
        Value::String(kind) => kind == "null",
        Value::Array(kinds) => kinds.iter().any(|kind| kind == "null"),
        _ if schema["$ref"].is_string() => schema["$ref"].as_str().unwrap().ends_with("/Measured"),
        _ if schema["const"].is_string() || schema["enum"].is_array() => false,
        _ => choices().next().is_none() || choices().any(may_be_null),
    }
}

/// What of an answer is never `null`.
fn nulls(path: &str, schema: &Value, lines: &mut BTreeSet<String>) {
    let inside = schema["properties"].as_object().into_iter().flatten();
    let inside = inside.map(|(name, field)| (format!("{path}.{name}"), field));
    let items = schema["items"].is_object().then(|| (format!("{path}[]"), &schema["items"]));
    let values =
        schema["additionalProperties"].is_object().then(|| (format!("{path}{{}}"), &schema["additionalProperties"]));
    for (path, of) in inside.chain(items).chain(values) {
        if !may_be_null(of) {
            lines.insert(format!("{path} is never null"));
        }
        nulls(&path, of, lines);
    }
    for one in ["oneOf", "anyOf"].iter().flat_map(|choice| schema[*choice].as_array()).flatten() {
        nulls(path, one, lines);
    }
}

/// Keywords of schemas that bound what is taken, and whether a larger value asks for less; `None` asks for the very same, or nothing.
const BOUNDS: [(&str, Option<bool>); 12] = [
    ("minimum", Some(false)),
    ("exclusiveMinimum", Some(false)),
    ("minLength", Some(false)),
    ("minItems", Some(false)),
    ("maximum", Some(true)),
    ("exclusiveMaximum", Some(true)),
    ("maxLength", Some(true)),
    ("maxItems", Some(true)),
    ("maxProperties", Some(true)),
    ("pattern", None),
    ("format", None),
    ("multipleOf", None),
];

/// What a request may hold: each value by its place, with its types and bounds. The objects of a choice have places of their own, by their words.
fn taken(path: &str, schema: &Value, lines: &mut BTreeSet<String>) {
    let kinds = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        kind => kind.as_str().into_iter().collect::<Vec<_>>(),
    };
    lines.extend(kinds.iter().map(|kind| format!("{path} takes {kind}")));
    for (bound, _) in BOUNDS.iter().filter(|(bound, _)| !schema[*bound].is_null()) {
        lines.insert(format!("{path} bounds {bound} {}", schema[*bound]));
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        taken(&format!("{path}.{name}"), field, lines);
    }
    for (index, one) in ["oneOf", "anyOf"].iter().flat_map(|choice| schema[*choice].as_array()).flatten().enumerate() {
        match tag(one).or(one["const"].as_str()) {
            Some(word) => taken(&format!("{path}({word})"), one, lines),
            // What may be left out is as good as what it is.
            None if one["type"] == "null" => drop(lines.insert(format!("{path} takes null"))),
            None => taken(&format!("{path}({index})"), one, lines),
        }
    }
    if schema["items"].is_object() {
        taken(&format!("{path}[]"), &schema["items"], lines);
    }
    if schema["additionalProperties"].is_object() {
        taken(&format!("{path}{{}}"), &schema["additionalProperties"], lines);
    }
}

/// A line of what bounds a request: place, keyword and value.
fn bound(line: &str) -> Option<(&str, &str, &str)> {
    let (place, rest) = line.split_once(" bounds ")?;
    let (keyword, value) = rest.split_once(' ')?;
    Some((place, keyword, value))
}

/// What is taken no more, of what was promised: a bound that is tighter, or new where something was taken before.
fn narrowed<'a>(promised: &BTreeSet<String>, kept: &'a BTreeSet<String>) -> Vec<&'a String> {
    let before: BTreeMap<(&str, &str), &str> = promised
        .iter()
        .filter_map(|line| bound(line))
        .map(|(place, keyword, value)| ((place, keyword), value))
        .collect();
    let places: BTreeSet<&str> = promised.iter().filter_map(|line| Some(line.split_once(" takes ")?.0)).collect();
    let is_tighter = |line: &&String| {
        let Some((place, keyword, value)) = bound(line) else { return false };
        let larger_asks_less = BOUNDS.iter().find(|(name, _)| *name == keyword).and_then(|(_, asks)| *asks);
        match (before.get(&(place, keyword)), larger_asks_less) {
            (None, _) => places.contains(place),
            (Some(old), None) => *old != value,
            (Some(old), Some(larger)) => {
                let (old, new): (f64, f64) = (old.parse().unwrap(), value.parse().unwrap());
                if larger { new < old } else { new > old }
            }
        }
    };
    kept.iter().filter(is_tighter).collect()
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
            kinds.iter().filter_map(Value::as_str).filter(|kind| *kind != "null").collect::<Vec<_>>().join(" or ")
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
    let mut bodies = bodies_of(&openapi());
    bodies.extend(bodies_of(&agent_openapi()).into_iter().map(|name| format!("{AGENT}{name}")));
    let tightened = narrowed(&promised, &kept);
    assert!(tightened.is_empty(), "requests that were taken are not any more: {tightened:#?}");
    // What had to be sent and may be left out now is asked for less: whoever sends it goes on as before.
    let eased = |line: &&String| {
        let of_body = line.split(['.', ' ']).next().is_some_and(|body| bodies.contains(body));
        let maybe = line.strip_suffix(" always").map(|field| format!("{field} maybe"));
        // A bound that moved has moved outward, or `narrowed` had found it.
        bound(line).is_some() || of_body && maybe.is_some_and(|maybe| kept.contains(&maybe))
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
        // Items of a list are there where the list is.
        let holders = path.match_indices('.').map(|(end, _)| path[..end].trim_end_matches("[]"));
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
    let broken = |change: fn(&mut Value)| {
        let mut changed = openapi();
        change(&mut changed);
        let (before, after) = (promises_of(&openapi()), promises_of(&changed));
        let gone = before.difference(&after).filter(|line| bound(line).is_none());
        gone.chain(narrowed(&before, &after)).cloned().collect::<Vec<_>>().join("; ")
    };
    type Change = fn(&mut Value);
    let changes: [(&str, Change); 8] = [
        ("Job.restarts is never null", |api| {
            schema(api, "Job")["properties"]["restarts"]["type"] = json!(["integer", "null"])
        }),
        ("Job.restarts integer always", |api| {
            schema(api, "Job")["properties"]["restarts"]["type"] = json!(["integer", "string"])
        }),
        ("Outcome.metrics Metrics always", |api| {
            schema(api, "Outcome")["required"].as_array_mut().unwrap().retain(|name| name != "metrics")
        }),
        ("SubmitJob.name bounds maxLength 62", |api| {
            schema(api, "SubmitJob")["properties"]["name"]["maxLength"] = json!(62)
        }),
        ("SubmitJob.batch_size bounds minimum 2", |api| {
            schema(api, "SubmitJob")["properties"]["batch_size"]["minimum"] = json!(2)
        }),
        ("SubmitJob.suspend bounds pattern \"no\"", |api| {
            schema(api, "SubmitJob")["properties"]["suspend"]["pattern"] = json!("no")
        }),
        ("GET /v1/jobs?limit bounds maximum 10", |api| {
            api["paths"]["/v1/jobs"]["get"]["parameters"][0]["schema"]["maximum"] = json!(10)
        }),
        ("", |api| schema(api, "SubmitJob")["properties"]["batch_size"]["maximum"] = json!(1u64 << 50)),
    ];
    for (line, change) in changes {
        assert_eq!(broken(change), line);
    }
}

fn schema<'a>(document: &'a mut Value, name: &str) -> &'a mut Value {
    &mut document["components"]["schemas"][name]
}

/// Values at the bounds of numbers that are reached by a body, by the places of [`taken`].
fn reached(path: &str, schema: &Value, body: &Value, found: &mut BTreeSet<String>) {
    for limit in ["minimum", "maximum"].iter().filter(|limit| schema[**limit].is_number() && body.is_number()) {
        if schema[*limit].as_f64() == body.as_f64() {
            found.insert(format!("{path} bounds {limit} {}", schema[*limit]));
        }
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        reached(&format!("{path}.{name}"), field, &body[name], found);
    }
    for (index, one) in ["oneOf", "anyOf"].iter().flat_map(|choice| schema[*choice].as_array()).flatten().enumerate() {
        match tag(one) {
            Some(word) if body["kind"] == word => reached(&format!("{path}({word})"), one, body, found),
            Some(_) => {}
            None => reached(&format!("{path}({index})"), one, body, found),
        }
    }
    for item in body.as_array().into_iter().flatten() {
        reached(&format!("{path}[]"), &schema["items"], item, found);
    }
}

/// Every build holds what it accepts against files of bodies; whoever adds a field adds a line with each of its bounds there.
#[test]
fn the_bodies_that_stay_accepted_reach_every_bound() {
    let document = openapi();
    let mut found = BTreeSet::new();
    for file in ["events/schema/tests/accepted.txt", "gateway/tests/accepted.txt"] {
        for line in std::fs::read_to_string(root().join(file)).unwrap().lines() {
            let name = match line.split(' ').next().unwrap() {
                "job" => "SubmitJob",
                "fleet" => "DeclareFleet",
                "demand" => "PublishDemand",
                "recall" => "RecallFleet",
                "dataset" => "RegisterDataset",
                _ => continue,
            };
            let body: Value = serde_json::from_str(&line[line.find('{').unwrap()..]).unwrap();
            reached(name, &document["components"]["schemas"][name], &body, &mut found);
        }
    }
    let numbers = promises().into_iter().filter(|line| {
        let of_body = ["SubmitJob", "DeclareFleet", "PublishDemand", "RecallFleet", "RegisterDataset"];
        let limit = bound(line).is_some_and(|(_, keyword, _)| ["minimum", "maximum"].contains(&keyword));
        limit && of_body.contains(&line.split(['.', ' ']).next().unwrap())
    });
    let missing: Vec<String> = numbers.filter(|line| !found.contains(line)).collect();
    assert!(missing.is_empty(), "no body in the files of what stays accepted reaches these: {missing:#?}");
}
