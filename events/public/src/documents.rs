//! The contract as documents: one JSON Schema (2020-12) for each type of event, and an AsyncAPI 3.0 document that says where events are read. Both are made from
//! the types; `docs/events/` holds what comes out, and a test refuses when it differs.

use crate::types::{JOB_PROGRESS, catalogue};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The JSON Schema of the data of every type of event.
#[must_use]
pub fn schemas() -> BTreeMap<&'static str, Value> {
    let schema = |(kind, about, mut schema): (&'static str, &'static str, Value)| {
        if let Value::Object(fields) = &mut schema {
            fields.insert("$id".to_owned(), json!(format!("urn:ebb:event:{kind}")));
            fields.insert("title".to_owned(), json!(kind));
            fields.insert("description".to_owned(), json!(about));
            fields.get_mut("$defs").and_then(Value::as_object_mut).into_iter().flatten().for_each(|(_, of)| open(of));
        }
        (kind, schema)
    };
    catalogue().into_iter().map(schema).collect()
}

/// Lists of words are open: a validator that knows today's has to let tomorrow's pass.
fn open(definition: &mut Value) {
    let Value::Object(fields) = definition else { return };
    if let Some(Value::Array(mut words)) = fields.remove("oneOf") {
        words.push(json!({"type": "string", "description": "Whatever later builds add."}));
        fields.insert("anyOf".to_owned(), Value::Array(words));
    }
}

/// The AsyncAPI document: the two places where events are read, and what they carry.
#[must_use]
pub fn asyncapi() -> Value {
    let schemas = schemas();
    let name = |kind: &str| kind.trim_start_matches("dev.ebb.").to_owned();
    let messages: Map<String, Value> = schemas
        .iter()
        .map(|(kind, schema)| {
            let message = json!({
                "name": kind,
                "title": schema["description"],
                "contentType": "application/json",
                "traits": [{"$ref": "#/components/messageTraits/cloudevent"}],
                "payload": {"schemaFormat": "application/schema+json;version=draft-2020-12", "schema": {"$ref": format!("./events/{kind}.json")}},
            });
            (name(kind), message)
        })
        .collect();
    let some = |wanted: fn(&str) -> bool| -> Map<String, Value> {
        let reference = |kind: &str| json!({"$ref": format!("#/components/messages/{}", name(kind))});
        schemas.keys().filter(|kind| wanted(kind)).map(|kind| (name(kind), reference(kind))).collect()
    };
    json!({
        "asyncapi": "3.0.0",
        "info": {
            "title": "Ebb events",
            "version": "1",
            "description": "What happens to jobs, fleets, slots and servers, as CloudEvents 1.0. `docs/events.md` says what subscribers may rely on.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": {
            "public": {
                "address": "PREFIX.public",
                "description": "The Kafka topic, in binary mode: attributes are headers (`ce_id`, `ce_type` and so on), the value is the data, the key is the subject. One partition a cell.",
                "messages": some(|kind| kind != JOB_PROGRESS),
            },
            "events": {
                "address": "/v1/events",
                "description": "Server-sent events over HTTP: `id` is the cursor to resume from, `event` the type, `data` the CloudEvent in structured JSON. `/v1/jobs/{id}/events` and `/v1/fleets/{fleet}/events` hold those of one job or fleet.",
                "messages": some(|_| true),
            },
        },
        "operations": {
            "readTopic": {"action": "receive", "channel": {"$ref": "#/channels/public"}, "summary": "Subscribe with any Kafka client."},
            "followEvents": {"action": "receive", "channel": {"$ref": "#/channels/events"}, "summary": "Follow with any EventSource."},
        },
        "components": {
            "messages": messages,
            "messageTraits": {"cloudevent": {"headers": {
                "type": "object",
                "required": ["ce_specversion", "ce_id", "ce_source", "ce_type", "ce_subject", "ce_time"],
                "properties": {
                    "ce_specversion": {"const": "1.0"},
                    "ce_id": {"type": "string", "description": "OFFSET-INDEX; with ce_source it names one event, and a repeat carries both again"},
                    "ce_source": {"type": "string", "description": "/ebb/INSTALLATION/cells/CELL"},
                    "ce_type": {"type": "string"},
                    "ce_subject": {"type": "string"},
                    "ce_time": {"type": "string", "format": "date-time"},
                },
            }}},
        },
    })
}
