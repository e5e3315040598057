//! Forms of texts, as the OpenAPI document tells them; `events-schema` parses by the same rules. Types of this file stand in schemas only.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use std::borrow::Cow;

macro_rules! forms {
    ($($(#[doc = $doc:literal])* $name:ident = $schema:tt;)*) => {$(
        $(#[doc = $doc])*
        pub struct $name;
        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        }
    )*};
}

forms! {
    /// What a user or a service may call things.
    Name = {
        "type": "string", "pattern": "^[a-z0-9][a-z0-9._-]{0,62}$",
        "description": "1 to 63 characters of a-z, 0-9, `-`, `_` and `.`, beginning with a letter or digit."
    };
    /// A slot, or its guest slot.
    SlotName = {
        "type": "string", "pattern": "^[a-z0-9][a-z0-9._-]{0,62}/(0|[1-9][0-9]{0,4})(-guest)?$", "description": "A slot: `SERVER/INDEX`, or its guest slot: `SERVER/INDEX-guest`."
    };
    /// A slot that a fleet has.
    FleetSlotName = {
        "type": "string", "pattern": "^[a-z0-9][a-z0-9._-]{0,62}/(0|[1-9][0-9]{0,4})$", "description": "A slot: `SERVER/INDEX`."
    };
    /// An executor.
    ExecutorName = {
        "type": "string", "pattern": "^[a-z0-9][a-z0-9._-]{0,62}/e(0|[1-9][0-9]{0,9})$", "description": "A process of a job: `JOB/eNUMBER`."
    };
    /// A digest.
    Hash = {
        "type": "string", "pattern": "^[0-9a-f]{64}$", "description": "A BLAKE3 digest in hexadecimal."
    };
    /// A folder.
    Archive = {
        "type": "string", "format": "binary", "description": "A gzipped tar of plain files."
    };
    /// Tensors by name, as uploads and final models are.
    Tensors = {
        "type": "string", "format": "binary", "description": "A safetensors file."
    };
    /// A file.
    Bytes = {
        "description": "Bytes, as they are."
    };
    /// A moment.
    Time = {
        "type": "string", "format": "date-time", "description": "RFC 3339, in UTC with milliseconds."
    };
    /// A number that a computation gave. Today's service drops what is none; `null` is read as one, because JSON has no other word for it.
    Measured = {
        "type": ["number", "null"], "format": "double", "description": "A number; `null` from a service that has none. Training that diverges fails, and has no such number."
    };
}

/// Reads what JSON says of a number that is none.
pub fn number_or_nan<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(<Option<f64> as serde::Deserialize>::deserialize(deserializer)?.unwrap_or(f64::NAN))
}
