//! Every way a request can be refused or fail, as RFC 9457 `application/problem+json`: a status, a stable type, a title, a detail that says what to do next, and
//! the fields at fault. A `type` is a promise: clients match on it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What every `type` begins with; the rest is [`ProblemKind::slug`].
pub const TYPE_BASE: &str = "https://ebb.dev/problems/";

/// A refusal, as its reader gets it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Problem {
    /// Which problem it is: an address that stays the same for ever. Match on it.
    #[serde(rename = "type")]
    #[schemars(extend("format" = "uri"))]
    pub kind: String,
    /// One line for people, the same for every occurrence.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What happened this time, and what to do next.
    pub detail: String,
    /// The fields, parameters, headers or parts of the path at fault, if any.
    pub problems: Vec<FieldProblem>,
    /// The request, as logs name it. Tell it with a report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

/// One wrong field, parameter, header or part of the path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FieldProblem {
    /// Its path, for example `workers.max`; empty for the whole body.
    pub field: String,
    /// Its value as given, cut to 80 characters; `missing` when there is none.
    pub value: String,
    /// What would be right.
    pub expected: String,
}

impl From<events_schema::fields::Problem> for FieldProblem {
    fn from(problem: events_schema::fields::Problem) -> Self {
        let events_schema::fields::Problem { field, value, expected } = problem;
        Self { field, value, expected }
    }
}

impl fmt::Display for FieldProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, value, expected } = self.clone();
        events_schema::fields::Problem { field, value, expected }.fmt(f)
    }
}

impl Problem {
    /// Which problem it is, if this build knows it.
    #[must_use]
    pub fn known_kind(&self) -> Option<ProblemKind> {
        let slug = self.kind.strip_prefix(TYPE_BASE)?;
        ProblemKind::ALL.iter().copied().find(|kind| kind.slug() == slug)
    }
}

macro_rules! kinds {
    ($kind:ident; $($(#[$doc:meta])* $name:ident = $status:literal, $slug:literal, $title:literal;)*) => {
        /// Every kind of problem. The slug is a promise: clients match on it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $kind { $($(#[$doc])* $name,)* }
        impl $kind {
            /// All kinds, for documents and tests.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
            /// The last part of the problem's `type`.
            #[must_use]
            pub fn slug(self) -> &'static str {
                match self { $(Self::$name => $slug,)* }
            }
            /// Its HTTP status.
            #[must_use]
            pub fn status(self) -> u16 {
                match self { $(Self::$name => $status,)* }
            }
            /// One line for people, the same for every occurrence.
            #[must_use]
            pub fn title(self) -> &'static str {
                match self { $(Self::$name => $title,)* }
            }
            /// The problem as its reader gets it.
            #[must_use]
            pub fn document(self, detail: &str, problems: Vec<$crate::FieldProblem>) -> $crate::Problem {
                $crate::Problem {
                    kind: format!("{}{}", $crate::problem::TYPE_BASE, self.slug()),
                    title: self.title().to_owned(),
                    status: self.status(),
                    detail: detail.to_owned(),
                    problems,
                    request_id: None,
                }
            }
        }
    };
}
pub(crate) use kinds;

kinds! { ProblemKind;
    /// Not JSON, not YAML, or cut short.
    MalformedBody = 400, "malformed-body", "The body cannot be read";
    /// Well-formed, but fields are wrong, missing or unknown.
    InvalidFields = 422, "invalid-fields", "Fields of the body are wrong";
    /// A query parameter is wrong or unknown.
    InvalidQuery = 400, "invalid-query", "A query parameter is wrong";
    /// A header is wrong.
    InvalidHeader = 400, "invalid-header", "A header is wrong";
    /// `Host` is no name of this service.
    UnknownHost = 421, "unknown-host", "This service is not called by this name";
    /// A page of another origin asks.
    ForeignOrigin = 403, "foreign-origin", "Web pages of other origins may not ask";
    /// A name or id in the path breaks its rule.
    InvalidId = 400, "invalid-id", "The path holds an id that cannot exist";
    /// No such path.
    UnknownPath = 404, "unknown-path", "No such path";
    /// The path exists, the method does not.
    MethodNotAllowed = 405, "method-not-allowed", "The path does not take this method";
    /// Not a content type that is read here.
    UnsupportedMediaType = 415, "unsupported-media-type", "The content type is not read here";
    /// Over the body limit.
    BodyTooLarge = 413, "body-too-large", "The body is too large";
    /// No job of this id.
    UnknownJob = 404, "unknown-job", "No such job";
    /// No dataset of this name.
    UnknownDataset = 404, "unknown-dataset", "No such dataset";
    /// No fleet of this name.
    UnknownFleet = 404, "unknown-fleet", "No such fleet";
    /// Nobody set a quota of a tenant of this name, and it has no jobs.
    UnknownTenant = 404, "unknown-tenant", "No such tenant";
    /// The body names something that does not exist.
    UnknownReference = 422, "unknown-reference", "The body names something that does not exist";
    /// Not possible in the phase the job is in.
    WrongPhase = 409, "wrong-phase", "Not possible in the job's phase";
    /// The name is taken.
    NameTaken = 409, "name-taken", "The name is taken";
    /// In use by something that is not finished.
    InUse = 409, "in-use", "It is in use";
    /// A demand signal with a number already passed.
    OldSignal = 409, "old-signal", "A newer signal was already taken";
    /// The `Idempotency-Key` was used with another body.
    KeyReused = 422, "idempotency-key-reused", "The idempotency key belongs to another body";
    /// A bound of the service is reached.
    LimitReached = 429, "limit-reached", "A limit of the service is reached";
    /// A value does not fit what it refers to.
    UnfitValue = 422, "unfit-value", "A value does not fit what it refers to";
    /// Nothing is kept of what this executor said.
    UnknownLog = 404, "unknown-log", "No such log";
    /// Nothing of this content was uploaded.
    UnknownUpload = 404, "unknown-upload", "No such upload";
    /// `If-Match` or `If-None-Match` of a change does not hold.
    PreconditionFailed = 412, "precondition-failed", "It is not as the request assumes";
    /// The file does not have these bytes.
    RangeBeyond = 416, "range-beyond", "The file ends before this range";
    /// The job has no model (yet).
    ModelNotReady = 409, "model-not-ready", "The job has no model to give";
    /// The job's model was in the store, and is not any more.
    ModelLost = 410, "model-lost", "The model's file is gone";
    /// The store cannot sign links.
    NoLinks = 409, "no-links", "The object store gives no links";
    /// Events before this cursor are gone.
    CursorExpired = 410, "cursor-expired", "Events from this cursor on are no longer kept";
    /// The files of a dataset cannot be registered.
    DatasetUnreadable = 422, "dataset-unreadable", "The dataset cannot be read";
    /// Files outside the places that the operator named.
    DatasetNotAllowed = 403, "dataset-not-allowed", "Datasets are not taken from there";
    /// The input broke the controller's rules and was set aside.
    InputSetAside = 422, "input-set-aside", "The controller set this input aside";
    /// Too many requests at once.
    Overloaded = 503, "overloaded", "Too many requests at once";
    /// The request took too long.
    TimedOut = 503, "timed-out", "The request took too long";
    /// The read model has not caught up yet.
    NotReady = 503, "not-ready", "Not ready yet";
    /// The log does not answer.
    LogUnavailable = 503, "log-unavailable", "The log does not answer";
    /// The log did not say whether it kept the record.
    OutcomeUnknown = 503, "outcome-unknown", "It is not known whether this was recorded";
    /// The object store does not answer.
    StoreUnavailable = 503, "store-unavailable", "The object store does not answer";
    /// A defect of ours.
    Incident = 500, "incident", "Something broke here";
}

impl ProblemKind {
    /// Whether the same request may succeed in a moment.
    #[must_use]
    pub fn worth_retrying(self) -> bool {
        matches!(self.status(), 503 | 429)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slugs_are_unique_and_stand_for_errors() {
        let mut slugs: Vec<_> = ProblemKind::ALL.iter().map(|kind| kind.slug()).collect();
        slugs.sort_unstable();
        slugs.dedup();
        assert_eq!(slugs.len(), ProblemKind::ALL.len());
        assert!(ProblemKind::ALL.iter().all(|kind| (400..=599).contains(&kind.status())));
    }

    #[test]
    fn a_problem_is_known_by_its_type() {
        let known = ProblemKind::KeyReused.document("so", Vec::new());
        assert_eq!(known.known_kind(), Some(ProblemKind::KeyReused));
        assert_eq!(Problem { kind: format!("{TYPE_BASE}later"), ..known }.known_kind(), None);
    }
}
