//! The gateway's door: what `http_listener::door` asks of every request, whatever its path, and whether a body is of a type that a page
//! cannot send without asking first. Who the sender is, is not asked here. Next: `routes.rs`.

use crate::body;
use crate::problem::{ApiError, Kind};
use axum::body::HttpBody;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_listener::door::{Door, Refusal};
use std::sync::Arc;

fn check(door: &Door, head: &HeaderMap, uri: &Uri, has_body: bool) -> Result<(), ApiError> {
    door.check(head, uri).map_err(|refusal| problem(&refusal))?;
    if has_body { body::ensure_readable(head) } else { Ok(()) }
}

/// A refusal, with the header at fault as a field.
fn problem(refusal: &Refusal) -> ApiError {
    match refusal {
        Refusal::NoOneHost => {
            ApiError::of_field(Kind::InvalidHeader, "Host", "missing or repeated", "a header that stands once")
        }
        Refusal::UnknownHost { host } => {
            let expected = "localhost, an address of this service or a name it was given";
            ApiError::of_field(Kind::UnknownHost, "Host", host, expected).saying(refusal.to_string())
        }
        Refusal::ForeignOrigin { field, value } => {
            let expected = "no such header, or this service's own origin";
            ApiError::of_field(Kind::ForeignOrigin, field, value, expected).saying(refusal.to_string())
        }
    }
}

/// Lets a request in, or says why not.
pub async fn guard(State(door): State<Arc<Door>>, request: Request, next: Next) -> Response {
    let has_body = !request.body().is_end_stream();
    match check(&door, request.headers(), request.uri(), has_body) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn said(head: &[(&'static str, &str)], has_body: bool) -> Option<Kind> {
        let door = Door::new("127.0.0.1".parse().unwrap(), Vec::new());
        let mut headers = HeaderMap::new();
        for (name, value) in head {
            headers.append(*name, value.parse().unwrap());
        }
        check(&door, &headers, &"/v1/jobs/job-a/suspend".parse().unwrap(), has_body).err().map(|error| error.kind)
    }

    #[test]
    fn a_refusal_is_a_problem_of_its_header() {
        assert_eq!(said(&[], false), Some(Kind::InvalidHeader));
        assert_eq!(said(&[("host", "rebound.example")], false), Some(Kind::UnknownHost));
        assert_eq!(said(&[("host", "localhost"), ("origin", "null")], false), Some(Kind::ForeignOrigin));
        for (refusal, phrase) in [
            (Refusal::UnknownHost { host: "a.example".to_owned() }, "--allow-host"),
            (Refusal::ForeignOrigin { field: "Origin", value: "null".to_owned() }, "`Origin: null`"),
        ] {
            assert!(problem(&refusal).detail.contains(phrase), "{refusal}");
        }
    }

    #[test]
    fn a_body_says_what_it_is() {
        let with = |content_type: Option<&'static str>| {
            let head: Vec<_> =
                [("host", "localhost")].into_iter().chain(content_type.map(|value| ("content-type", value))).collect();
            said(&head, true)
        };
        assert_eq!((with(Some("application/json")), with(Some("application/yaml; charset=utf-8"))), (None, None));
        for simple in [
            None,
            Some("text/plain"),
            Some("application/x-www-form-urlencoded"),
            Some("multipart/form-data; boundary=x"),
        ] {
            assert_eq!(with(simple), Some(Kind::UnsupportedMediaType), "{simple:?}");
        }
        assert_eq!(said(&[("host", "localhost")], false), None, "no body, no type");
    }
}
