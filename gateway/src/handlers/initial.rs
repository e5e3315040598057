//! Tensors that jobs begin with: taken in under the name of their content, before a job names them. Streamed to the store, never whole in memory.

use super::{Id, NoQuery, Shared, code, jobs};
use crate::app::App;
use crate::problem::{ApiError, Kind};
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use events_schema::Digest;
use events_schema::initial::InitialSource;
use events_schema::job::{JobSpec, ModelSpec};
use gateway_api::{BINARY, UploadedModel};
use object_store::path::Path as StorePath;
use storage::initial::{TakeError, take};

/// `PUT /v1/models/{digest}`: 201 for a new file, 200 for what was there.
pub async fn upload(
    State(app): Shared,
    Id(digest): Id<Digest>,
    _: NoQuery,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let _place = code::place(&app)?;
    if headers.get(header::CONTENT_TYPE).is_none_or(|value| value != BINARY) {
        return Err(ApiError::of_field(Kind::UnsupportedMediaType, "Content-Type", "another or none", BINARY));
    }
    let key = StorePath::from(storage::keys::initial(&digest));
    let status = if code::exists(&app, &key).await? { StatusCode::OK } else { StatusCode::CREATED };
    let bytes = take(&*app.store, digest, body.into_data_stream()).await.map_err(|error| match error {
        TakeError::TooLarge => ApiError::new(Kind::BodyTooLarge, error.to_string()),
        TakeError::Content { found } => {
            let expected = format!("the BLAKE3 digest of the body, which is {found}");
            ApiError::of_field(Kind::InvalidId, "digest", &digest.to_string(), expected)
        }
        TakeError::NotTensors | TakeError::Broken => ApiError::new(Kind::MalformedBody, error.to_string()),
        TakeError::Store(source) => code::unavailable("tensors cannot be kept", &source),
    })?;
    Ok((status, Json(UploadedModel { model: digest.to_string(), bytes })).into_response())
}

/// Refuses a job that begins with what there is not: its executors could only fail. Paths are the servers' business.
pub async fn ensure_there(app: &App, spec: &JobSpec) -> Result<(), ApiError> {
    let ModelSpec::Torch(model) = &spec.model else { return Ok(()) };
    match model.initial.as_ref().map(|initial| &initial.source) {
        None | Some(InitialSource::Path(_)) => Ok(()),
        Some(InitialSource::Upload(digest)) => {
            if code::exists(app, &StorePath::from(storage::keys::initial(digest))).await? {
                return Ok(());
            }
            let expected = "the digest of a file that was uploaded by PUT /v1/models/{digest}; `ebb submit` does that";
            Err(ApiError::of_field(Kind::UnknownReference, "model.from.upload", &digest.to_string(), expected))
        }
        Some(InitialSource::Job(job)) => jobs::outcome(app, job).await.map(drop).map_err(|error| {
            let expected = format!("a job that has ended with a model, but {}", error.detail);
            ApiError::of_field(Kind::UnknownReference, "model.from.job", job.as_str(), expected)
        }),
    }
}
