//! Tensors that jobs begin with: taken in under the name of their content, before a job names them. Streamed to the store, never whole in memory.

use super::uploads::{note_wanted, size, unavailable, wanted};
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
use storage::initial::{TakeError, take};
use storage::keys::Upload;

/// `PUT /v1/models/{digest}`: 201 for a new file, 200 for what was there.
pub async fn upload(
    State(app): Shared,
    Id(digest): Id<Digest>,
    _: NoQuery,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let _place = code::place(&app.model_uploads, app.limits.model_uploads_max)?;
    if headers.get(header::CONTENT_TYPE).is_none_or(|value| value != BINARY) {
        return Err(ApiError::of_field(Kind::UnsupportedMediaType, "Content-Type", "another or none", BINARY));
    }
    let upload = Upload::Tensors(digest);
    let status = if size(&app, upload).await?.is_some() { StatusCode::OK } else { StatusCode::CREATED };
    let taken = take(&*app.store, digest, body.into_data_stream(), note_wanted(&app, upload)).await;
    let bytes = taken.map_err(|error| match error {
        TakeError::TooLarge => ApiError::new(Kind::BodyTooLarge, error.to_string()),
        TakeError::Content { found } => {
            let expected = format!("the BLAKE3 digest of the body, which is {found}");
            ApiError::of_field(Kind::InvalidId, "digest", &digest.to_string(), expected)
        }
        TakeError::NotTensors | TakeError::Broken => ApiError::new(Kind::MalformedBody, error.to_string()),
        TakeError::Store(source) => unavailable("tensors cannot be kept", &source),
    })?;
    Ok((status, Json(UploadedModel { model: digest.to_string(), bytes })).into_response())
}

/// Refuses a job that begins with what there is not: its executors could only fail. Paths are the servers' business.
pub async fn ensure_there(app: &App, spec: &JobSpec) -> Result<(), ApiError> {
    let ModelSpec::Torch(model) = &spec.model else { return Ok(()) };
    match model.initial.as_ref().map(|initial| &initial.source) {
        None | Some(InitialSource::Path(_)) => Ok(()),
        Some(InitialSource::Upload(digest)) => {
            if wanted(app, Upload::Tensors(*digest)).await?.is_some() {
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
