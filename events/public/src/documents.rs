//! The contract as documents: one JSON Schema (2020-12) for each type of event, made from the types; `docs/events/` holds what comes out, and a test refuses
//! when it differs. Where events are read is said by the AsyncAPI document of `gateway/api`, which knows the streams.

use crate::types::catalogue;
use serde_json::{Value, json};
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
