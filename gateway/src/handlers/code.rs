//! Packed folders of users' code: taken in under the name of their content, before a job names them. Executors read them from the store.

use super::uploads::{note_wanted, size, unavailable, wanted};
use super::{Id, NoQuery, Shared};
use crate::app::App;
use crate::problem::{ApiError, Kind};
use axum::Json;
use axum::body::Bytes;
use axum::extract::{FromRequest, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use events_schema::Digest;
use events_schema::job::{JobSpec, ModelSpec};
use gateway_api::{BINARY, Code};
use object_store::{ObjectStoreExt, path::Path as StorePath};
use storage::code::{PACKED_BYTES_MAX, verify};
use storage::keys::Upload;
use tokio::sync::{Semaphore, SemaphorePermit};

/// `PUT /v1/code/{digest}`: 201 for new code, 200 for what was there.
pub async fn upload(
    State(app): Shared,
    Id(digest): Id<Digest>,
    _: NoQuery,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, ApiError> {
    let _place = place(&app.code_uploads, app.limits.code_uploads_max)?;
    if headers.get(header::CONTENT_TYPE).is_none_or(|value| value != BINARY) {
        return Err(ApiError::of_field(Kind::UnsupportedMediaType, "Content-Type", "another or none", BINARY));
    }
    let body = Bytes::from_request(request, &()).await.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => ApiError::new(
            Kind::BodyTooLarge,
            format!(
                "packed code has at most {PACKED_BYTES_MAX} bytes; register data as a dataset instead of packing it"
            ),
        ),
        _ => ApiError::new(Kind::MalformedBody, "the connection ended before the body did; send it again"),
    })?;
    let bytes = body.len();
    if Digest::of(&body) != digest {
        let expected = format!("the BLAKE3 digest of the body, which is {}", Digest::of(&body));
        return Err(ApiError::of_field(Kind::InvalidId, "digest", &digest.to_string(), expected));
    }
    let archive = body.clone();
    // It may unpack to a hundred times its size, which takes a thread for a while.
    let verified = tokio::task::spawn_blocking(move || verify(&archive)).await;
    if let Err(error) = verified.unwrap_or_else(|panic| Err(std::io::Error::other(panic))) {
        let detail = format!("the body is no gzipped tar of plain files ({error}); `ebb submit` makes one");
        return Err(ApiError::new(Kind::MalformedBody, detail));
    }
    let upload = Upload::Code(digest);
    let status = if size(&app, upload).await?.is_some() { StatusCode::OK } else { StatusCode::CREATED };
    let cannot = |error| unavailable("code cannot be kept", &error);
    // Before the object, so that none is there of which nobody knows.
    note_wanted(&app, upload).await.map_err(cannot)?;
    app.store.put(&StorePath::from(upload.object()), body.into()).await.map_err(cannot)?;
    Ok((status, Json(Code { code: digest.to_string(), bytes: bytes as u64 })).into_response())
}

/// A place for an upload: each holds memory.
pub(super) fn place(places: &Semaphore, most: usize) -> Result<SemaphorePermit<'_>, ApiError> {
    places.try_acquire().map_err(|_| {
        let detail = format!("{most} uploads are under way, the most there may be; try again in a moment");
        ApiError::new(Kind::Overloaded, detail)
    })
}

/// Refuses a job whose code was never uploaded: its executors could only fail.
pub async fn ensure_uploaded(app: &App, spec: &JobSpec) -> Result<(), ApiError> {
    let code = match &spec.model {
        ModelSpec::Torch(model) => Some(model.code),
        ModelSpec::Command(command) => command.code,
        ModelSpec::Mlp { .. } | ModelSpec::Cnn { .. } | ModelSpec::Gpt { .. } | ModelSpec::Synthetic { .. } => None,
    };
    let Some(code) = code else { return Ok(()) };
    if wanted(app, Upload::Code(code)).await?.is_some() {
        return Ok(());
    }
    let expected = "the digest of code that was uploaded by PUT /v1/code/{digest}; `ebb submit` does that";
    Err(ApiError::of_field(Kind::UnknownReference, "model.code", &code.to_string(), expected))
}
