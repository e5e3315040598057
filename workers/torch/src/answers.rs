//! What is in the child's answers, once: numbers, stretches, JSON, failures. Asks nothing.

use crate::job::TorchError;
use serde::Deserialize;
use std::ops::Range;

#[derive(Deserialize)]
struct Failure {
    kind: String,
    what: String,
    #[serde(default)]
    traceback: String,
}

/// What an answer of another kind says.
pub(crate) fn unexpected(kind: u8, payload: &[u8]) -> TorchError {
    if kind != b'!' {
        return TorchError::Protocol(format!("answer `{}` to another question", char::from(kind)));
    }
    let Failure { kind, what, traceback } = match parse(payload) {
        Ok(failure) => failure,
        Err(error) => return error,
    };
    match kind.as_str() {
        "refused" => TorchError::Refused(what),
        "user" => TorchError::Code { what, traceback },
        "nonfinite" => TorchError::NotFinite(what),
        "memory" => TorchError::Memory(what),
        "device" => TorchError::Device(what),
        _ => TorchError::Protocol(what),
    }
}

/// What an answer says as JSON.
pub(crate) fn parse<'a, T: Deserialize<'a>>(payload: &'a [u8]) -> Result<T, TorchError> {
    serde_json::from_slice(payload).map_err(|error| TorchError::Protocol(error.to_string()))
}

/// Stretches of a vector of so many elements: the beginning and the end of each.
pub(crate) fn ranges(payload: &[u8], elements: usize) -> Result<Vec<Range<usize>>, TorchError> {
    let wrong = || TorchError::Protocol(format!("stretches of a gradient that are none of its {elements} elements"));
    let (stretches, []) = payload.as_chunks::<16>() else { return Err(wrong()) };
    let number = |bytes: &[u8]| bytes.try_into().ok().and_then(|bytes| usize::try_from(u64::from_le_bytes(bytes)).ok());
    let stretch = |bytes: &[u8; 16]| Some(number(&bytes[..8])?..number(&bytes[8..])?);
    let ranges =
        stretches.iter().map(|bytes| stretch(bytes).filter(|range| range.start < range.end && range.end <= elements));
    ranges.collect::<Option<_>>().ok_or_else(wrong)
}

/// The number that begins at this byte.
pub(crate) fn float(payload: &[u8], at: usize) -> Result<f64, TorchError> {
    let bytes = payload.get(at..at + 8).and_then(|bytes| <[u8; 8]>::try_from(bytes).ok());
    bytes.map(f64::from_le_bytes).ok_or_else(|| TorchError::Protocol("an answer that is too short".to_owned()))
}
