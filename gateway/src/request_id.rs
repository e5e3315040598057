//! A name for each request: taken from the client if it has one, else made here; echoed, written into problems, and on every line of the log about it.

use axum::Json;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use gateway_api::Problem;
use gateway_api::headers::{REQUEST_ID, REQUEST_ID_LEN_MAX};
use tracing::Instrument;

/// Characters of an id that is made here: 80 bits, enough that no two requests of a log are confused.
const MADE_LEN: usize = 16;

/// Names a request.
pub async fn named(request: Request, next: Next) -> Response {
    let id = taken(request.headers()).unwrap_or_else(|| format!("req-{}", crate::identity::random_text(MADE_LEN)));
    // Of the highest level, so that no filter of the log takes the name from the lines that it lets through.
    let span =
        tracing::error_span!("request", request_id = %id, method = %request.method(), path = %request.uri().path());
    let mut response = next.run(request).instrument(span).await;
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        let (mut head, _) = response.into_parts();
        // The body is longer now; its length is counted anew.
        head.headers.remove(axum::http::header::CONTENT_LENGTH);
        let body = Json(Problem { request_id: Some(id.clone()), ..problem }).into_response().into_body();
        response = Response::from_parts(head, body);
    }
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(HeaderName::from_static(REQUEST_ID), value);
    }
    response
}

/// The client's own name for it. What could not stand in a line of a log as it is, is no name.
fn taken(headers: &HeaderMap) -> Option<String> {
    let legal = |text: &&str| {
        (1..=REQUEST_ID_LEN_MAX).contains(&text.len())
            && text.bytes().all(|c| c.is_ascii_alphanumeric() || b"-_.:".contains(&c))
    };
    headers.get(REQUEST_ID).and_then(|value| value.to_str().ok()).filter(legal).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_what_can_stand_in_a_log_is_taken() {
        let taken = |text: &str| {
            let value = HeaderValue::from_bytes(text.as_bytes()).unwrap();
            taken(&HeaderMap::from_iter([(HeaderName::from_static(REQUEST_ID), value)]))
        };
        assert_eq!(taken("3f2a-7.B_c:1").as_deref(), Some("3f2a-7.B_c:1"));
        for not_taken in ["", "a b", "a\tb", "ä", &"a".repeat(65)] {
            assert_eq!(taken(not_taken), None, "{not_taken:?}");
        }
    }
}
