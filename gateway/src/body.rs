//! Reads request bodies: bounded, JSON or YAML by content type, and strict, so that what is parsed is what was meant.
//!
//! Yields a plain [`Value`]; what its fields mean is `convert.rs`'s. Duplicate names, bytes after the end, numbers that are
//! not finite and YAML tags are refused with their line and column.

use crate::problem::{ApiError, Kind};
use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, StatusCode, header};
use events_schema::Digest;
use gateway_api::BINARY;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::fmt;

/// Largest body: a job spec or fleet of a thousand slots takes a few KiB, so 1 MiB leaves room and bounds memory.
pub const BODY_LEN_MAX: usize = 1 << 20;

/// A body that was read and is well-formed.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// What it says.
    pub value: Value,
    /// Digest of its bytes as sent.
    pub digest: Digest,
}

impl<S: Send + Sync> FromRequest<S> for Document {
    type Rejection = ApiError;
    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let format = Format::of(request.headers());
        let bytes = Bytes::from_request(request, state).await.map_err(|rejection| match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => too_large(),
            _ => ApiError::new(Kind::MalformedBody, "the connection ended before the body did; send it again"),
        })?;
        refuse_empty(&bytes, "a JSON or YAML object")?;
        Ok(Self { value: parse(format?, &bytes)?, digest: Digest::of(&bytes) })
    }
}

/// Refuses a body whose type nobody here reads, or that does not say it: a web page can send such a one to any address, without
/// asking whether it may.
pub fn ensure_readable(head: &HeaderMap) -> Result<(), ApiError> {
    // A page of another site has to ask before it sends an archive, like every type that is read here.
    let archive = head.get(header::CONTENT_TYPE).is_some_and(|value| value == BINARY);
    if archive { Ok(()) } else { Format::of(head).map(drop) }
}

/// What a text in JSON says that is no body of a request, by the same rules.
pub fn json(bytes: &[u8]) -> Result<Value, ApiError> {
    refuse_empty(bytes, "a JSON object")?;
    parse_json(bytes)
}

fn refuse_empty(bytes: &[u8], expected: &str) -> Result<(), ApiError> {
    let empty = bytes.iter().all(u8::is_ascii_whitespace);
    if empty { Err(ApiError::of_field(Kind::MalformedBody, "", "empty", expected)) } else { Ok(()) }
}

fn too_large() -> ApiError {
    ApiError::new(
        Kind::BodyTooLarge,
        format!("a body here has at most {BODY_LEN_MAX} bytes; register data by URI instead of sending it"),
    )
}

/// How a body is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Json,
    Yaml,
}

impl Format {
    fn of(headers: &HeaderMap) -> Result<Self, ApiError> {
        let mut values = headers.get_all(header::CONTENT_TYPE).iter();
        let text = match (values.next(), values.next()) {
            (Some(value), None) => String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase(),
            (None, _) => "missing".to_owned(),
            (Some(_), Some(_)) => "repeated".to_owned(),
        };
        let mut parts = text.split(';').map(str::trim);
        let essence = parts.next().unwrap_or_default();
        let foreign_charset = parts
            .filter_map(|part| part.strip_prefix("charset="))
            .any(|set| !matches!(set.trim_matches('"'), "utf-8" | "utf8" | "us-ascii"));
        let format = match essence {
            "application/json" | "text/json" => Some(Self::Json),
            "application/yaml" | "application/x-yaml" | "text/yaml" | "text/x-yaml" | "text/vnd.yaml" => {
                Some(Self::Yaml)
            }
            other if other.ends_with("+json") => Some(Self::Json),
            other if other.ends_with("+yaml") => Some(Self::Yaml),
            _ => None,
        };
        let expected =
            if foreign_charset { "UTF-8, which is also the default" } else { "application/json or application/yaml" };
        format
            .filter(|_| !foreign_charset)
            .ok_or_else(|| ApiError::of_field(Kind::UnsupportedMediaType, "content-type", &text, expected))
    }
}

fn parse(format: Format, bytes: &[u8]) -> Result<Value, ApiError> {
    match format {
        Format::Json => parse_json(bytes),
        Format::Yaml => parse_yaml(bytes),
    }
}

fn parse_json(bytes: &[u8]) -> Result<Value, ApiError> {
    let parsed = serde_json::from_slice::<Strict>(bytes);
    parsed.map(|strict| strict.0).map_err(|error| malformed("JSON", error.line(), error.column(), &error.to_string()))
}

fn parse_yaml(bytes: &[u8]) -> Result<Value, ApiError> {
    serde_yaml_ng::from_slice::<Strict>(bytes).map(|strict| strict.0).map_err(|error| {
        let (line, column) = error.location().map_or((1, 1), |at| (at.line(), at.column()));
        malformed("YAML", line, column, &error.to_string())
    })
}

fn malformed(language: &str, line: usize, column: usize, cause: &str) -> ApiError {
    let place = format!("line {line}, column {column}");
    let cause = cause.split(" at line ").next().unwrap_or(cause);
    let mut error =
        ApiError::of_field(Kind::MalformedBody, "", &place, format!("{language} without this error: {cause}"));
    error.detail = format!("the body is not valid {language} at {place}: {cause}; correct it and send it again");
    error
}

/// A [`Value`] read without forgiving anything.
struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor).map(Strict)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object, list, text, number, true, false or null")
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }
    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }
    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }
    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("a number that is not finite"))
    }
    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(Strict(value)) = list.next_element()? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(name) = entries.next_key::<String>()? {
            if object.contains_key(&name) {
                return Err(A::Error::custom(format!("the name `{name}` stands twice in one object")));
            }
            let Strict(value) = entries.next_value()?;
            object.insert(name, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn format(content_type: &str) -> Result<Format, Kind> {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, content_type.parse().unwrap());
        Format::of(&headers).map_err(|error| error.kind)
    }

    #[test]
    fn content_types_choose_the_format() {
        assert_eq!(format("application/json; charset=utf-8"), Ok(Format::Json));
        assert_eq!(format("Application/X-YAML"), Ok(Format::Yaml));
        for not_read in ["text/plain", "application/xml", "application/x-www-form-urlencoded", ""] {
            assert_eq!(format(not_read), Err(Kind::UnsupportedMediaType), "{not_read}");
        }
        assert_eq!(format("application/json; charset=latin1"), Err(Kind::UnsupportedMediaType));
        assert_eq!(Format::of(&HeaderMap::new()).map_err(|error| error.kind), Err(Kind::UnsupportedMediaType));
    }

    #[test]
    fn both_languages_say_the_same() {
        let expected = json!({"name": "a", "workers": {"min": 1}, "list": [1, 2.5, true, null, "x"]});
        let text = serde_json::to_string(&expected).unwrap();
        let yaml = "name: a\nworkers: {min: 1}\nlist: [1, 2.5, true, null, x]\n";
        for (format, text) in [(Format::Json, text.as_str()), (Format::Yaml, &text), (Format::Yaml, yaml)] {
            assert_eq!(parse(format, text.as_bytes()).unwrap(), expected, "{format:?}");
        }
    }

    #[test]
    fn nothing_is_forgiven() {
        let cases = [
            (Format::Json, "{\"a\": 1,\n \"a\": 2}", "line 2", "stands twice"),
            // This parser names where the object begins.
            (Format::Yaml, "a: 1\na: 2\n", "line 1", "stands twice"),
            (Format::Json, "{} {}", "column 4", "trailing"),
            (Format::Yaml, "a: .nan\n", "line 1", "not finite"),
            (Format::Yaml, "a: !tag x\n", "line 1", "enum"),
            (Format::Yaml, "a: [1\n", "line 2", "YAML"),
            (Format::Yaml, "---\na: 1\n---\nb: 1\n", "line 1", "document"),
            (Format::Json, "{\"a\": }", "column 7", "expected value"),
        ];
        for (format, text, place, phrase) in cases {
            let error = parse(format, text.as_bytes()).unwrap_err();
            assert!(error.detail.contains(place) && error.detail.contains(phrase), "{text:?}: {}", error.detail);
        }
    }

    #[test]
    fn hostile_depth_and_aliases_are_refused() {
        let deep = "[".repeat(100_000);
        assert!(parse(Format::Json, deep.as_bytes()).is_err());
        assert!(parse(Format::Yaml, &deep.as_bytes()[..10_000]).is_err());
        let mut bomb = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
        for level in 1..12 {
            let reference = format!("*a{}", level - 1);
            bomb += &format!("a{level}: &a{level} [{}]\n", vec![reference; 10].join(","));
        }
        assert!(parse(Format::Yaml, bomb.as_bytes()).is_err());
    }
}
