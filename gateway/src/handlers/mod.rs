//! One file per kind of thing. Each handler parses, asks or looks, converts and answers; nothing else.

pub mod code;
pub mod commands;
pub mod datasets;
pub mod events;
pub mod fleets;
pub mod health;
pub mod initial;
pub mod jobs;
pub mod links;
pub mod logs;
pub mod server;
pub mod tenants;
pub mod uploads;

use crate::app::App;
use crate::conditions::has_already;
use crate::problem::{ApiError, Kind, Target, refused};
use crate::submit::Decision;
use axum::Json;
use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use events_schema::{CommandId, IdError};
use gateway_api::{CommandState, Undecided, paths};
use serde::Serialize;
use std::str::FromStr;
use std::sync::Arc;

/// What every handler is given.
pub type Shared = axum::extract::State<Arc<App>>;

/// The one id in a path, parsed.
pub struct Id<T>(pub T);

impl<S: Send + Sync, T: FromStr<Err = IdError>> FromRequestParts<S> for Id<T> {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path = Path::<String>::from_request_parts(parts, state).await;
        let text =
            path.map_err(|_| ApiError::of_field(Kind::InvalidId, "path", parts.uri.path(), "UTF-8, percent-encoded"))?;
        let wrong = |error: IdError| ApiError::of_field(Kind::InvalidId, error.kind, &error.value, error.expected);
        text.parse().map(Self).map_err(wrong)
    }
}

/// Refuses every query parameter.
pub fn no_query(parts: &Parts) -> Result<(), ApiError> {
    crate::query::Query::parse(parts.uri.query(), &[]).map(drop)
}

/// An extractor for handlers that take no query parameters.
pub struct NoQuery;

impl<S: Send + Sync> FromRequestParts<S> for NoQuery {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        no_query(parts).map(|()| Self)
    }
}

/// What a reader of one thing gets: the thing with its tag, or that it has this already.
fn tagged(headers: &HeaderMap, etag: String, shown: impl Serialize) -> Response {
    if has_already(headers, &etag) {
        return (StatusCode::NOT_MODIFIED, [(header::ETAG, etag)]).into_response();
    }
    ([(header::ETAG, etag)], Json(shown)).into_response()
}

/// The answer to a command about `target`: what it is now, why not, or that nobody has decided yet.
fn decided(
    decision: Decision,
    target: Target<'_>,
    path: &str,
    now: impl FnOnce() -> Result<Response, ApiError>,
) -> Result<Response, ApiError> {
    match decision {
        Decision::Done => now(),
        Decision::Refused(refusal) => Err(refused(&refusal, target)),
        Decision::Undecided(command) => Ok(undecided(target.name, command, path)),
    }
}

/// 202: durable, and where to look for what becomes of it. `path` is where its effect will show.
fn undecided(id: &str, command: CommandId, path: &str) -> Response {
    /// Seconds after which looking again makes sense.
    const LOOK_AFTER_S: &str = "2";
    let location = paths::command(&command);
    let body = Undecided {
        id: id.to_owned(),
        command: command.to_string(),
        status: CommandState::Undecided.into(),
        path: path.to_owned(),
        detail: "the command is recorded for good, but no controller has decided about it yet; look at `location` in a moment"
            .to_owned(),
    };
    let headers = [(header::LOCATION, location), (header::RETRY_AFTER, LOOK_AFTER_S.to_owned())];
    (StatusCode::ACCEPTED, headers, Json(body)).into_response()
}
