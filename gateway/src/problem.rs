//! Every way a request can be refused or fail, as RFC 9457 `application/problem+json`: a status, a stable type, a title, a
//! detail that says what to do next, and the fields at fault.
//!
//! The only file that knows HTTP statuses of errors. Internal causes go to the log under an incident id, never into an answer.

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use events_log::{AppendError, ReadError};
use events_schema::fact::Refusal;
use events_schema::fields::{Problem, Problems};
use serde_json::{Value, json};

/// What every `type` begins with; the rest is [`Kind::slug`].
pub const TYPE_BASE: &str = "https://ebb.dev/problems/";
/// Seconds after which an overloaded, starting or disturbed service is worth another try.
const RETRY_AFTER_S: u64 = 1;

/// A row of the table of problems.
struct Row {
    status: StatusCode,
    slug: &'static str,
    title: &'static str,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $status:ident, $slug:literal, $title:literal;)*) => {
        /// Every kind of problem. The slug is a promise: clients match on it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Kind { $($(#[$doc])* $name,)* }
        impl Kind {
            /// All kinds, for documents and tests.
            pub const ALL: &'static [Kind] = &[$(Kind::$name,)*];
            fn row(self) -> Row {
                match self { $(Kind::$name => Row { status: StatusCode::$status, slug: $slug, title: $title },)* }
            }
        }
    };
}

kinds! {
    /// Not JSON, not YAML, or cut short.
    MalformedBody = BAD_REQUEST, "malformed-body", "The body cannot be read";
    /// Well-formed, but fields are wrong, missing or unknown.
    InvalidFields = UNPROCESSABLE_ENTITY, "invalid-fields", "Fields of the body are wrong";
    /// A query parameter is wrong or unknown.
    InvalidQuery = BAD_REQUEST, "invalid-query", "A query parameter is wrong";
    /// A header is wrong.
    InvalidHeader = BAD_REQUEST, "invalid-header", "A header is wrong";
    /// `Host` is no name of this service.
    UnknownHost = MISDIRECTED_REQUEST, "unknown-host", "This service is not called by this name";
    /// A page of another origin asks.
    ForeignOrigin = FORBIDDEN, "foreign-origin", "Web pages of other origins may not ask";
    /// A name or id in the path breaks its rule.
    InvalidId = BAD_REQUEST, "invalid-id", "The path holds an id that cannot exist";
    /// No such path.
    UnknownPath = NOT_FOUND, "unknown-path", "No such path";
    /// The path exists, the method does not.
    MethodNotAllowed = METHOD_NOT_ALLOWED, "method-not-allowed", "The path does not take this method";
    /// Not a content type that is read here.
    UnsupportedMediaType = UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type", "The content type is not read here";
    /// Over the body limit.
    BodyTooLarge = PAYLOAD_TOO_LARGE, "body-too-large", "The body is too large";
    /// No job of this id.
    UnknownJob = NOT_FOUND, "unknown-job", "No such job";
    /// No dataset of this name.
    UnknownDataset = NOT_FOUND, "unknown-dataset", "No such dataset";
    /// No fleet of this name.
    UnknownFleet = NOT_FOUND, "unknown-fleet", "No such fleet";
    /// The body names something that does not exist.
    UnknownReference = UNPROCESSABLE_ENTITY, "unknown-reference", "The body names something that does not exist";
    /// Not possible in the phase the job is in.
    WrongPhase = CONFLICT, "wrong-phase", "Not possible in the job's phase";
    /// The name is taken.
    NameTaken = CONFLICT, "name-taken", "The name is taken";
    /// In use by something that is not finished.
    InUse = CONFLICT, "in-use", "It is in use";
    /// A demand signal with a number already passed.
    OldSignal = CONFLICT, "old-signal", "A newer signal was already taken";
    /// The `Idempotency-Key` was used with another body.
    KeyReused = UNPROCESSABLE_ENTITY, "idempotency-key-reused", "The idempotency key belongs to another body";
    /// A bound of the service is reached.
    LimitReached = TOO_MANY_REQUESTS, "limit-reached", "A limit of the service is reached";
    /// A value does not fit what it refers to.
    UnfitValue = UNPROCESSABLE_ENTITY, "unfit-value", "A value does not fit what it refers to";
    /// Nothing is kept of what this executor said.
    UnknownLog = NOT_FOUND, "unknown-log", "No such log";
    /// The job has no model (yet).
    ModelNotReady = CONFLICT, "model-not-ready", "The job has no model to give";
    /// Events before this cursor are gone.
    CursorExpired = GONE, "cursor-expired", "Events from this cursor on are no longer kept";
    /// The files of a dataset cannot be registered.
    DatasetUnreadable = UNPROCESSABLE_ENTITY, "dataset-unreadable", "The dataset cannot be read";
    /// Files outside the places that the operator named.
    DatasetNotAllowed = FORBIDDEN, "dataset-not-allowed", "Datasets are not taken from there";
    /// The input broke the controller's rules and was set aside.
    InputSetAside = UNPROCESSABLE_ENTITY, "input-set-aside", "The controller set this input aside";
    /// Too many requests at once.
    Overloaded = SERVICE_UNAVAILABLE, "overloaded", "Too many requests at once";
    /// The request took too long.
    TimedOut = SERVICE_UNAVAILABLE, "timed-out", "The request took too long";
    /// The read model has not caught up yet.
    NotReady = SERVICE_UNAVAILABLE, "not-ready", "Not ready yet";
    /// The log does not answer.
    LogUnavailable = SERVICE_UNAVAILABLE, "log-unavailable", "The log does not answer";
    /// The log did not say whether it kept the record.
    OutcomeUnknown = SERVICE_UNAVAILABLE, "outcome-unknown", "It is not known whether this was recorded";
    /// The object store does not answer or lost an object.
    StoreUnavailable = SERVICE_UNAVAILABLE, "store-unavailable", "The object store does not answer";
    /// A defect of ours.
    Incident = INTERNAL_SERVER_ERROR, "incident", "Something broke here";
}

impl Kind {
    /// The last part of the problem's `type`.
    #[must_use]
    pub fn slug(self) -> &'static str {
        self.row().slug
    }
    /// Its HTTP status.
    #[must_use]
    pub fn status(self) -> StatusCode {
        self.row().status
    }
    /// One line for people, the same for every occurrence.
    #[must_use]
    pub fn title(self) -> &'static str {
        self.row().title
    }
    /// Whether the same request may succeed in a moment.
    #[must_use]
    pub fn worth_retrying(self) -> bool {
        matches!(self.status(), StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS)
    }
}

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
    pub fn document(&self) -> Value {
        json!({
            "type": format!("{TYPE_BASE}{}", self.kind.slug()),
            "title": self.kind.title(),
            "status": self.kind.status().as_u16(),
            "detail": self.detail,
            "problems": self.problems,
        })
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
        let mut response = (self.kind.status(), self.document().to_string()).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
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
    /// `job`, `fleet` or `dataset`.
    pub kind: &'a str,
    /// Its name.
    pub name: &'a str,
}

/// The answer to a command that the controller refused.
#[must_use]
pub fn refused(refusal: &Refusal, target: Target<'_>) -> ApiError {
    match refusal {
        Refusal::Unknown { kind, name, nearest } => unknown(kind, name, nearest.as_deref(), target),
        Refusal::WrongPhase { phase, expected } => {
            ApiError::of_field(Kind::WrongPhase, "phase", phase, expected.as_str())
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
            let detail = format!(
                "the service holds at most {limit} {what}, and that many are there; wait, or remove some first"
            );
            ApiError::of_field(Kind::LimitReached, what, "over the limit", expected).saying(detail)
        }
        Refusal::Unfit { field, value, expected } => {
            ApiError::of_field(Kind::UnfitValue, field, value, expected.as_str())
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
        _ => Kind::UnknownFleet,
    };
    ApiError::of_field(problem, kind, name, expected).saying(detail)
}

fn listing_of(kind: &str) -> &'static str {
    match kind {
        "job" => "; GET /v1/jobs lists them",
        "dataset" => "; GET /v1/datasets lists them",
        "fleet" => "; GET /v1/fleets lists them",
        _ => "; GET /v1/slots lists them",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn slugs_are_unique_and_stand_for_errors() {
        let mut slugs: Vec<_> = Kind::ALL.iter().map(|kind| kind.slug()).collect();
        slugs.sort_unstable();
        slugs.dedup();
        assert_eq!(slugs.len(), Kind::ALL.len());
        assert!(Kind::ALL.iter().all(|kind| kind.status().is_client_error() || kind.status().is_server_error()));
    }

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
