//! From what went wrong to the problem that its reader gets: which kind it is (`gateway-api` has the table), a detail that says what to do next, and the fields
//! at fault. Internal causes go to the log under an incident id, never into an answer.

use axum::Json;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use events_log::{AppendError, ReadError};
use events_schema::fact::Refusal;
use events_schema::fields::{Problem, Problems};
pub use gateway_api::ProblemKind as Kind;
use gateway_api::headers::PROBLEM_JSON;

/// Seconds after which an overloaded, starting or disturbed service is worth another try.
const RETRY_AFTER_S: u64 = 1;

/// A refusal on its way out.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiError {
    /// Which problem it is.
    pub kind: Kind,
    /// What happened and what to do next.
    pub detail: String,
    /// The fields at fault, if any.
    pub problems: Vec<Problem>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl ApiError {
    /// A problem without named fields.
    pub fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into(), problems: Vec::new(), headers: Vec::new() }
    }

    /// A problem of one field, parameter, header or path segment.
    pub fn of_field(kind: Kind, field: &str, value: &str, expected: impl Into<String>) -> Self {
        let problem = Problem { field: field.to_owned(), value: cut(value), expected: expected.into() };
        Self { kind, detail: format!("{problem}"), problems: vec![problem], headers: Vec::new() }
    }

    /// The same fields at fault, as another problem.
    #[must_use]
    pub fn of_kind(self, kind: Kind) -> Self {
        Self { kind, ..self }
    }

    /// The same problem in other words.
    #[must_use]
    pub fn saying(self, detail: impl Into<String>) -> Self {
        Self { detail: detail.into(), ..self }
    }

    /// The problem as its reader gets it.
    #[must_use]
    pub fn document(&self) -> gateway_api::Problem {
        self.kind.document(&self.detail, self.problems.iter().cloned().map(Into::into).collect())
    }

    /// Its HTTP status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.kind.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// Adds a header to the answer.
    #[must_use]
    pub fn with_header(mut self, name: HeaderName, value: &str) -> Self {
        self.headers.extend(HeaderValue::from_str(value).ok().map(|value| (name, value)));
        self
    }

    /// A defect of ours: the cause goes to the log under a random number, the caller gets the number.
    pub fn incident(cause: &str) -> Self {
        let incident = crate::identity::random_text(10);
        tracing::error!(%incident, %cause, "request failed by a defect of the service");
        let detail =
            format!("this is a defect of the service, not of the request; report it with incident `{incident}`");
        Self::new(Kind::Incident, detail)
    }
}

/// A value as it is shown to whoever sent it.
fn cut(value: &str) -> String {
    const SHOWN_LEN: usize = 80;
    match value.char_indices().nth(SHOWN_LEN) {
        Some((end, _)) => format!("{}…", &value[..end]),
        None => value.to_owned(),
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let document = self.document();
        let mut response = (self.status(), Json(&document)).into_response();
        // For `request_id.rs`, which writes the request's id into it.
        response.extensions_mut().insert(document);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        if self.kind.worth_retrying() {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER_S));
        }
        headers.extend(self.headers.into_iter().map(|(name, value)| (Some(name), value)).collect::<Headers>());
        response
    }
}

/// What a `HeaderMap` can be extended by.
type Headers = Vec<(Option<HeaderName>, HeaderValue)>;

impl From<Problems> for ApiError {
    fn from(problems: Problems) -> Self {
        let detail = format!("{problems}; correct this and send it again");
        Self { kind: Kind::InvalidFields, detail, problems: problems.0, headers: Vec::new() }
    }
}

impl From<AppendError> for ApiError {
    fn from(error: AppendError) -> Self {
        tracing::warn!(%error, "append failed");
        match error {
            AppendError::TooLarge { .. } => {
                Self::new(Kind::BodyTooLarge, "the record would be larger than the log takes; send less at once")
            }
            AppendError::Unknown(_) => outcome_unknown(Repeat::AfterALook),
            AppendError::Full { .. } => {
                Self::new(Kind::LogUnavailable, format!("nothing was recorded: {error}; free some space and try again"))
            }
            AppendError::Stopped(_) => Self::new(
                Kind::LogUnavailable,
                "nothing was recorded: the log is closed since an error; its operator has to restart the service",
            ),
            _ => Self::new(Kind::LogUnavailable, "nothing was recorded; try again in a moment"),
        }
    }
}

/// How a request whose outcome is unknown may be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// It has an `Idempotency-Key`: the same one has no second effect.
    UnderItsKey,
    /// It would count twice if both came through.
    AfterALook,
    /// Only the newest counts.
    Freely,
}

/// The answer to a request of which nobody knows whether it was recorded.
#[must_use]
pub fn outcome_unknown(repeat: Repeat) -> ApiError {
    let advice = match repeat {
        Repeat::UnderItsKey => "send it again with the same `Idempotency-Key`, which has no second effect",
        Repeat::AfterALook => {
            "it may still take effect, so look with GET before you send it again; a submit with an `Idempotency-Key` can be repeated without looking"
        }
        Repeat::Freely => "send the need again: only the newest signal of a fleet counts",
    };
    ApiError::new(Kind::OutcomeUnknown, format!("the log did not say in time whether it kept this; {advice}"))
}

/// The answer to a command that the log put where nobody reads any more.
#[must_use]
pub fn passed_over() -> ApiError {
    ApiError::new(
        Kind::LogUnavailable,
        "nothing was done: the log was shortened, and nobody reads where this was put; its operator has to restore the topic `commands`, then send \
         it again",
    )
}

impl From<ReadError> for ApiError {
    fn from(error: ReadError) -> Self {
        tracing::warn!(%error, "reading the log failed");
        let detail = match error {
            ReadError::Stopped(_) | ReadError::Closed => {
                "the log is closed since an error; its operator has to start the service again"
            }
            _ => "events cannot be read right now; try again in a moment",
        };
        Self::new(Kind::LogUnavailable, detail)
    }
}

/// What a refused command was about: decides whether an unknown thing is the request's target (404) or named in its body (422).
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    /// `job`, `fleet`, `dataset` or `tenant`.
    pub kind: &'a str,
    /// Its name.
    pub name: &'a str,
}

impl<'a> Target<'a> {
    /// What a refused command was about, as its fact tells: by name alone. Which kind of thing that is follows from the refusal, where it matters.
    #[must_use]
    pub fn of_refused(subject: &'a str, refusal: &'a Refusal) -> Self {
        let kind = match refusal {
            Refusal::Unknown { kind, name, .. } if name == subject => kind,
            // Jobs use datasets; slots of a fleet are in use by their return.
            Refusal::InUse { by } if by.starts_with("job ") => "dataset",
            Refusal::InUse { .. } => "fleet",
            _ => "",
        };
        Self { kind, name: subject }
    }
}

/// The answer to a command that the controller refused.
#[must_use]
pub fn refused(refusal: &Refusal, target: Target<'_>) -> ApiError {
    match refusal {
        Refusal::Unknown { kind, name, nearest } => unknown(kind, name, nearest.as_deref(), target),
        Refusal::WrongPhase { phase, expected } => {
            ApiError::of_field(Kind::WrongPhase, "phase", phase, expected.as_str())
        }
        // A slot has no other name: whoever wants it asks for it.
        Refusal::Exists { kind, name, holder } if kind == "slot" => {
            let expected = format!("a slot of no other fleet: this one belongs to {holder}");
            let detail = format!(
                "slot `{name}` belongs to {holder}; declare that fleet without it first, or choose other slots"
            );
            ApiError::of_field(Kind::NameTaken, kind, name, expected).saying(detail)
        }
        Refusal::Exists { kind, name, holder } => {
            let expected = format!("a {kind} name that is free: this one is held by {holder}");
            let detail = format!("the {kind} name `{name}` is held by {holder}; choose another name");
            ApiError::of_field(Kind::NameTaken, kind, name, expected).saying(detail)
        }
        Refusal::InUse { by } => {
            let expected = format!("something not in use; now it is used by {by}");
            let detail =
                format!("{} `{}` is used by {by}; wait for its end, or cancel it first", target.kind, target.name);
            ApiError::of_field(Kind::InUse, target.kind, target.name, expected).saying(detail)
        }
        Refusal::Old { taken } => old_signal(*taken, *taken),
        Refusal::Limit { what, limit } => {
            let expected = format!("at most {limit}; wait or remove some first");
            let detail =
                format!("there may be at most {limit} {what}, and that many are there; wait, or remove some first");
            ApiError::of_field(Kind::LimitReached, what, "over the limit", expected).saying(detail)
        }
        Refusal::Unfit { field, value, expected } => {
            ApiError::of_field(Kind::UnfitValue, field, value, expected.as_str())
        }
        Refusal::Changed => {
            let expected = "what is there now; read it again, then decide again";
            ApiError::of_field(Kind::PreconditionFailed, "If-Match", "changed meanwhile", expected)
                .saying(format!("nothing was done, because {refusal}"))
        }
    }
}

/// The answer to a demand signal that came too late.
#[must_use]
pub fn old_signal(sequence: u64, taken: u64) -> ApiError {
    let expected = format!("a number above {taken}, which is already taken; leave `sequence` out to have one minted");
    ApiError::of_field(Kind::OldSignal, "sequence", &sequence.to_string(), expected)
}

/// Something that does not exist: 404 if the request is about it, 422 if its body names it.
#[must_use]
pub fn unknown(kind: &str, name: &str, nearest: Option<&str>, target: Target<'_>) -> ApiError {
    let hint = nearest.map_or_else(|| listing_of(kind).to_owned(), |near| format!("; did you mean `{near}`?"));
    let expected = format!("a {kind} that exists{hint}");
    let detail = format!("there is no {kind} `{}`; expected {expected}", cut(name));
    if (kind, name) != (target.kind, target.name) {
        return ApiError::of_field(Kind::UnknownReference, kind, name, expected).saying(detail);
    }
    let problem = match kind {
        "job" => Kind::UnknownJob,
        "dataset" => Kind::UnknownDataset,
        "tenant" => Kind::UnknownTenant,
        _ => Kind::UnknownFleet,
    };
    ApiError::of_field(problem, kind, name, expected).saying(detail)
}

fn listing_of(kind: &str) -> &'static str {
    match kind {
        "job" => "; GET /v1/jobs lists them",
        "dataset" => "; GET /v1/datasets lists them",
        "fleet" => "; GET /v1/fleets lists them",
        "tenant" => "; GET /v1/tenants lists them",
        _ => "; GET /v1/slots lists them",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_same_unknown_thing_is_404_as_target_and_422_as_reference() {
        let refusal = Refusal::Unknown { kind: "dataset".into(), name: "digts".into(), nearest: Some("digits".into()) };
        let as_target = refused(&refusal, Target { kind: "dataset", name: "digts" });
        let as_reference = refused(&refusal, Target { kind: "job", name: "job-a" });
        assert_eq!((as_target.kind, as_reference.kind), (Kind::UnknownDataset, Kind::UnknownReference));
        assert!(as_reference.detail.contains("did you mean `digits`?"), "{}", as_reference.detail);
    }

    #[test]
    fn long_values_are_cut_between_characters() {
        assert_eq!(cut(&"é".repeat(81)), format!("{}…", "é".repeat(80)));
    }
}
