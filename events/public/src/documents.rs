//! The contract as documents: one JSON Schema (2020-12) for each type of event, made from the types; `docs/events/` holds what comes out, and a test refuses
//! when it differs. Where events are read is said by the AsyncAPI document of `gateway/api`, which knows the streams.

use crate::types::catalogue;
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
            absent(fields);
            for (_, of) in fields.get_mut("$defs").and_then(Value::as_object_mut).into_iter().flatten() {
                open(of);
                of.as_object_mut().into_iter().for_each(absent);
            }
        }
        (kind, schema)
    };
    catalogue().into_iter().map(schema).collect()
}

/// What may be absent is left out where there is nothing to say (`data.rs`), never `null`: readers have one case to tell, not two.
fn absent(object: &mut Map<String, Value>) {
    let required: Vec<Value> = object.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    let fields = object.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten();
    for (_, field) in fields.filter(|(name, _)| !required.iter().any(|required| required == name.as_str())) {
        if let Some(Value::Array(kinds)) = field.get_mut("type") {
            kinds.retain(|kind| kind != "null");
            if let [kind] = kinds.as_slice() {
                field["type"] = kind.clone();
            }
        }
        let Value::Object(field) = field else { continue };
        if let Some(Value::Array(mut choices)) = field.remove("anyOf") {
            choices.retain(|choice| choice["type"] != "null");
            match choices.as_mut_slice() {
                [Value::Object(one)] => field.append(one),
                _ => drop(field.insert("anyOf".to_owned(), Value::Array(choices))),
            }
        }
    }
}

/// Lists of words are open: a validator that knows today's has to let tomorrow's pass.
fn open(definition: &mut Value) {
    let Value::Object(fields) = definition else { return };
    if let Some(Value::Array(mut words)) = fields.remove("oneOf") {
        words.push(json!({"type": "string", "description": "Whatever later builds add."}));
        fields.insert("anyOf".to_owned(), Value::Array(words));
    }
}
