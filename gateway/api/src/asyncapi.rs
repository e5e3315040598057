//! Where events are read, as an AsyncAPI 3.0 document: the streams of this API and the Kafka topic, each with the types of events that are on it.
//! `docs/asyncapi.json` holds what comes out; a test holds its channels against the OpenAPI document. What the events hold, `events/public` says.

use crate::{document, paths};
use events_public::{JOB_PROGRESS, TRACE_HEADERS, may_be_of_fleet, may_be_of_job, schemas};
use serde_json::{Map, Value, json};

/// A stream of server-sent events.
struct Stream {
    /// Its name in the document, and that of its operation.
    names: (&'static str, &'static str),
    path: &'static str,
    about: &'static str,
    /// Whether events of a type may be on it.
    holds: fn(&str) -> bool,
}

const STREAMS: &[Stream] = &[
    Stream {
        names: ("events", "followEvents"),
        path: paths::EVENTS,
        about: "What happens, to whatever it happens.",
        holds: |kind| kind != JOB_PROGRESS,
    },
    Stream {
        names: ("jobEvents", "followJob"),
        path: paths::JOB_EVENTS,
        about: "What happens to one job. Its progress is told here alone, at most once a second; it has no `id`, and is never repeated.",
        holds: may_be_of_job,
    },
    Stream {
        names: ("fleetEvents", "followFleet"),
        path: paths::FLEET_EVENTS,
        about: "What happens to one fleet and its slots.",
        holds: may_be_of_fleet,
    },
];

/// The topic's names in the document, as those of [`Stream`].
const TOPIC: (&str, &str) = ("public", "readTopic");

/// The AsyncAPI document.
#[must_use]
pub fn asyncapi() -> Value {
    let mut channels = Map::from_iter([(TOPIC.0.to_owned(), topic())]);
    channels.extend(STREAMS.iter().map(|stream| (stream.names.0.to_owned(), channel(stream))));
    let names = STREAMS.iter().map(|stream| (stream.names, "Follow with any EventSource."));
    let operations = names.chain([(TOPIC, "Subscribe with any Kafka client.")]).map(|((channel, name), about)| {
        let reference = json!({"$ref": format!("#/channels/{channel}")});
        (name.to_owned(), json!({"action": "receive", "channel": reference, "summary": about}))
    });
    json!({
        "asyncapi": "3.0.0",
        "info": {
            "title": "Ebb events",
            "version": "1",
            "description": "What happens to jobs, fleets, slots and servers, as CloudEvents 1.0. `docs/events.md` says what subscribers may rely on.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations.collect::<Map<_, _>>(),
        "components": {
            "messages": messages(),
            "messageTraits": {"cloudevent": binary_trait()},
            "schemas": {"CloudEvent": structured_schema()},
        },
    })
}

fn topic() -> Value {
    json!({
        "address": "PREFIX.public",
        "description": "The Kafka topic, in binary mode: attributes are headers (`ce_id`, `ce_type` and so on), the value is the data, the key is the subject. One partition a cell.",
        "messages": references(Mode::Binary, |kind| kind != JOB_PROGRESS),
    })
}

fn channel(stream: &Stream) -> Value {
    const HOW: &str = "Server-sent events over HTTP: `id` is the cursor to resume from, `event` the type, `data` the CloudEvent in structured JSON. `type` and `subject` select.";
    let mut shown = json!({
        "address": stream.path,
        "title": stream.about,
        "description": format!("{} {HOW}", stream.about),
        "messages": references(Mode::Structured, stream.holds),
    });
    let names = paths::variables(stream.path);
    if !names.is_empty() {
        let parameter = |name: &&str| ((*name).to_owned(), json!({"description": document::about(stream.path, name)}));
        shown["parameters"] = names.iter().map(parameter).collect::<Map<_, _>>().into();
    }
    shown
}

/// How an event is written.
#[derive(Clone, Copy)]
enum Mode {
    /// On Kafka: attributes are headers, the value is the data.
    Binary,
    /// Over HTTP: one JSON object, in which the data is a field.
    Structured,
}

impl Mode {
    const ALL: [Self; 2] = [Self::Binary, Self::Structured];

    /// Whether events of a type are written so anywhere.
    fn has(self, kind: &str) -> bool {
        matches!(self, Self::Structured) || kind != JOB_PROGRESS
    }

    /// A message's name among the document's components.
    fn component(self, kind: &str) -> String {
        match self {
            Self::Binary => name(kind),
            Self::Structured => format!("{}.structured", name(kind)),
        }
    }
}

/// A type's name within a channel.
fn name(kind: &str) -> String {
    kind.trim_start_matches("dev.ebb.").to_owned()
}

fn references(mode: Mode, holds: fn(&str) -> bool) -> Map<String, Value> {
    let reference = |kind: &str| json!({"$ref": format!("#/components/messages/{}", mode.component(kind))});
    schemas().keys().filter(|kind| holds(kind)).map(|kind| (name(kind), reference(kind))).collect()
}

fn messages() -> Map<String, Value> {
    const JSON_SCHEMA: &str = "application/schema+json;version=draft-2020-12";
    let message = |mode: Mode, kind: &str, schema: &Value| {
        let data = json!({"$ref": format!("./events/{kind}.json")});
        let mut shown = json!({"name": kind, "title": schema["description"]});
        match mode {
            Mode::Binary => {
                shown["contentType"] = json!("application/json");
                shown["traits"] = json!([{"$ref": "#/components/messageTraits/cloudevent"}]);
                shown["payload"] = json!({"schemaFormat": JSON_SCHEMA, "schema": data});
            }
            Mode::Structured => {
                let own = json!({"type": "object", "properties": {"type": {"const": kind}, "data": data}});
                let whole = json!({"allOf": [{"$ref": "#/components/schemas/CloudEvent"}, own]});
                shown["contentType"] = json!("application/cloudevents+json");
                shown["payload"] = json!({"schemaFormat": JSON_SCHEMA, "schema": whole});
            }
        }
        (mode.component(kind), shown)
    };
    let schemas = schemas();
    let all = Mode::ALL.iter().flat_map(|mode| schemas.iter().map(move |(kind, schema)| (*mode, *kind, schema)));
    all.filter(|(mode, kind, _)| mode.has(kind)).map(|(mode, kind, schema)| message(mode, kind, schema)).collect()
}

/// What is said of every event beside its data, each with its schema.
fn attributes() -> [(&'static str, Value); 6] {
    let text = || json!({"type": "string"});
    [
        ("specversion", json!({"const": "1.0"})),
        (
            "id",
            json!({"type": "string", "description": "OFFSET-INDEX; that of a job's progress, which has no place in the log, has another form. With the source it names one event, and a repeat carries both again"}),
        ),
        ("source", json!({"type": "string", "description": "/ebb/INSTALLATION/cells/CELL"})),
        ("type", text()),
        ("subject", text()),
        ("time", json!({"type": "string", "format": "date-time"})),
    ]
}

/// The headers of a Kafka record: the attributes, what the data is written in, and the span that led to the event, where one is known.
fn binary_trait() -> Value {
    let mut properties: Map<_, _> = attributes().into_iter().map(|(name, of)| (format!("ce_{name}"), of)).collect();
    properties.insert("content-type".to_owned(), json!({"const": "application/json"}));
    let required: Vec<String> = properties.keys().cloned().collect();
    let span = json!({"type": "string", "description": "W3C trace context of the span that led to the event; absent if none is known"});
    properties.extend(TRACE_HEADERS.map(|name| (name.to_owned(), span.clone())));
    json!({"headers": {"type": "object", "required": required, "properties": properties}})
}

/// The attributes as fields of an object, beside the data.
fn structured_schema() -> Value {
    let mut properties: Map<_, _> = attributes().into_iter().map(|(name, of)| (name.to_owned(), of)).collect();
    properties.insert("datacontenttype".to_owned(), json!({"const": "application/json"}));
    properties.insert("data".to_owned(), json!({"type": "object"}));
    let required: Vec<String> = properties.keys().cloned().collect();
    json!({"type": "object", "required": required, "properties": properties})
}
