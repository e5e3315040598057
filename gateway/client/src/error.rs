//! Every way a request can end other than well, and whether the same request may be sent again.

use gateway_api::{Problem, ProblemKind};
use std::path::PathBuf;
use std::time::Duration;

/// The statuses of what is not there, and of what nobody asks for in this way.
const NOT_FOUND: u16 = 404;
const METHOD_NOT_ALLOWED: u16 = 405;
/// The status of an answer that may be another one later.
const UNAVAILABLE: u16 = 503;
/// What a proxy answers by itself while the service behind it is away, overloaded or too slow.
const OF_PROXIES: [u16; 3] = [502, UNAVAILABLE, 504];

/// Why a request ended without its answer.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "a field without a comment is what its name and type say")]
pub enum ClientError {
    /// The address of the service, or how it is to be reached, makes no sense. Stop.
    #[error("{0}")]
    Options(String),
    /// A file that says how the service is reached cannot be read. Stop.
    #[error("`{}` cannot be read", .file.display())]
    File {
        file: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The client cannot be set up on this machine. Stop.
    #[error("the HTTP client cannot be set up")]
    SetUp(#[source] reqwest::Error),
    /// No service answered. Retry once it runs.
    #[error("cannot reach Ebb at {url}")]
    Unreachable {
        /// Where it was looked for.
        url: String,
        /// What the connection said.
        #[source]
        source: reqwest::Error,
    },
    /// A request went out, or began to, and no whole answer came back. Look before sending it again.
    #[error("{}", no_answer_text(.url, *.within, *.may_have_effect))]
    NoAnswer {
        /// What was asked.
        url: String,
        /// How long it was waited for; nothing if the connection broke.
        within: Option<Duration>,
        /// Whether the request asks for a change.
        may_have_effect: bool,
        /// What the connection said, if it said anything.
        #[source]
        source: Option<reqwest::Error>,
    },
    /// A proxy before the service answered in its place, as long as that is away. Retry; look before sending a change again.
    #[error("{}", proxy_text(.url, .status, .by.as_deref(), *.may_have_effect))]
    Proxy {
        /// What was asked.
        url: String,
        /// The status and its words.
        status: String,
        /// What it calls itself.
        by: Option<String>,
        /// Whether the request asks for a change.
        may_have_effect: bool,
    },
    /// The service refused. Stop; the problem says what would be right.
    #[error("{}", problem_text(.0))]
    Refused(Box<Problem>),
    /// It is recorded for good, but no controller has decided about it within the time that the service waits. Look later.
    #[error("this is recorded about `{id}`, but no controller has decided about it yet (command {command})")]
    Undecided {
        /// The job, fleet or dataset it is about.
        id: String,
        /// The command.
        command: String,
    },
    /// Something answered that does not speak Ebb's API. Stop.
    #[error("what answers at {url} does not speak Ebb's API: {what}")]
    Answer {
        /// What was asked.
        url: String,
        /// What is wrong with the answer.
        what: String,
    },
    /// What came could not be written down here. Stop.
    #[error("the file cannot be written")]
    Sink(#[source] std::io::Error),
    /// This machine gives no random numbers, so no key can be minted. Stop.
    #[error("the system gives no random numbers")]
    NoRandomness(#[source] getrandom::Error),
}

impl ClientError {
    /// Whether the service said that there is no such thing; that there is no such path says nothing of things.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused(problem) if problem.status == NOT_FOUND) && !self.is_not_served()
    }

    /// Whether the service knows no such request at all: it is of another build.
    #[must_use]
    pub fn is_not_served(&self) -> bool {
        let Self::Refused(problem) = self else { return false };
        problem.status == METHOD_NOT_ALLOWED || problem.known_kind() == Some(ProblemKind::UnknownPath)
    }

    /// Whether the trouble may pass by itself (no connection, a proxy without its service, or a service that is not ready yet), so that a request that can be
    /// repeated may be.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::NoAnswer { .. } | Self::Proxy { .. } => true,
            Self::Refused(problem) => problem.status == UNAVAILABLE,
            _ => false,
        }
    }

    /// The failure of a request that asks for a change.
    pub(crate) fn with_effect(self) -> Self {
        match self {
            Self::NoAnswer { url, within, source, .. } => Self::NoAnswer { url, within, may_have_effect: true, source },
            Self::Proxy { url, status, by, .. } => Self::Proxy { url, status, by, may_have_effect: true },
            other => other,
        }
    }
}

fn no_answer_text(url: &str, within: Option<Duration>, may_have_effect: bool) -> String {
    let what = match within {
        Some(within) => format!("no answer of {url} within {within:?}"),
        None => format!("the connection broke before {url} had answered"),
    };
    if may_have_effect { format!("{what}; the request may still have an effect") } else { what }
}

fn proxy_text(url: &str, status: &str, by: Option<&str>, may_have_effect: bool) -> String {
    let by = by.map_or_else(String::new, |by| format!(" ({by})"));
    let what = format!("something before Ebb{by} answered `{status}` in its place at {url}");
    if may_have_effect { format!("{what}; the request may still have an effect") } else { what }
}

/// Whether an answer without a problem description is that of a proxy.
pub(crate) fn is_of_proxy(status: u16) -> bool {
    OF_PROXIES.contains(&status)
}

fn problem_text(problem: &Problem) -> String {
    // What is said of a single field, the detail says as a sentence, which needs no heading.
    if problem.problems.len() < 2 && !problem.detail.is_empty() {
        return problem.detail.clone();
    }
    let mut text = if problem.title.is_empty() {
        format!("refused with status {}", problem.status)
    } else {
        problem.title.clone()
    };
    for field in &problem.problems {
        text.push_str(&format!("\n  {field}"));
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_refusal_shows_every_field() {
        let body = r#"{"type":"https://ebb.dev/problems/invalid-job","title":"the job is not valid","status":400,"detail":"two problems",
            "problems":[{"field":"workers.max","value":"0","expected":"a whole number from 1 to 256"},{"field":"","value":"3","expected":"an object"}]}"#;
        let text = ClientError::Refused(Box::new(serde_json::from_str(body).unwrap())).to_string();
        assert_eq!(
            text,
            "the job is not valid\n  `workers.max` is 0; expected a whole number from 1 to 256\n  the body is 3; expected an object"
        );
    }

    #[test]
    fn a_refusal_of_one_thing_is_its_sentence_alone() {
        let body = r#"{"type":"https://ebb.dev/problems/unknown-reference","title":"The body names something that does not exist","status":422,
            "detail":"there is no dataset `x`","problems":[{"field":"dataset","value":"x","expected":"a dataset that exists"}]}"#;
        let text = |body: &str| ClientError::Refused(Box::new(serde_json::from_str(body).unwrap())).to_string();
        assert_eq!(text(body), "there is no dataset `x`");
        assert_eq!(text(r#"{"title": "not ready", "status": 503}"#), "not ready");
    }

    #[test]
    fn a_service_that_is_not_ready_may_be_asked_again() {
        let refused = |status| ClientError::Refused(Box::new(Problem { status, ..Problem::default() }));
        assert!(refused(503).may_pass() && !refused(409).may_pass() && !ClientError::Options("x".into()).may_pass());
        assert!(refused(404).is_not_found() && !refused(404).is_not_served());
    }

    #[test]
    fn a_path_that_is_not_served_is_no_thing_that_is_missing() {
        let refused = |kind: ProblemKind| ClientError::Refused(Box::new(kind.document("", Vec::new())));
        for (kind, found) in [
            (ProblemKind::UnknownPath, (false, true)),
            (ProblemKind::MethodNotAllowed, (false, true)),
            (ProblemKind::UnknownUpload, (true, false)),
            (ProblemKind::UnknownJob, (true, false)),
            (ProblemKind::WrongPhase, (false, false)),
        ] {
            let failure = refused(kind);
            assert_eq!((failure.is_not_found(), failure.is_not_served()), found, "{kind:?}");
        }
    }
}
