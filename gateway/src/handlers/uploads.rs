//! Whether something was uploaded. What is there is noted for this installation before that is said: so what was found is there for as long as unnamed
//! uploads are kept (`controller/core/src/sweep.rs`). What is not there leaves no note, so that nobody fills the store by asking.

use super::{Id, NoQuery, Shared};
use crate::app::App;
use crate::problem::{ApiError, Kind};
use axum::Json;
use axum::extract::State;
use events_schema::Digest;
use gateway_api::{Code, UploadedModel};
use object_store::{ObjectStoreExt, path::Path as StorePath};
use storage::keys::Upload;
use storage::uploads::note;

/// `GET /v1/code/{digest}`.
pub async fn code(State(app): Shared, Id(digest): Id<Digest>, _: NoQuery) -> Result<Json<Code>, ApiError> {
    let bytes = known(&app, Upload::Code(digest), &digest).await?;
    Ok(Json(Code { code: digest.to_string(), bytes }))
}

/// `GET /v1/models/{digest}`.
pub async fn model(State(app): Shared, Id(digest): Id<Digest>, _: NoQuery) -> Result<Json<UploadedModel>, ApiError> {
    let bytes = known(&app, Upload::Tensors(digest), &digest).await?;
    Ok(Json(UploadedModel { model: digest.to_string(), bytes }))
}

async fn known(app: &App, upload: Upload, digest: &Digest) -> Result<u64, ApiError> {
    wanted(app, upload).await?.ok_or_else(|| {
        let expected = "the digest of something that was uploaded and not swept up since; PUT it";
        ApiError::of_field(Kind::UnknownUpload, "digest", &digest.to_string(), expected)
    })
}

/// How many bytes an upload has if it is there; then that it is wanted is noted.
///
/// The look that counts is the second one. A sweep looks at notes before it deletes (`storage::uploads::forget`): if it looked before there was this one, its
/// deletion is on its way, and what it took is seen to be gone by whoever looks behind it. Only where the note and the second look both lie between the
/// sweep's look and the deletion right behind it is something told of that is gone a moment later. Who submits then looks once more, as every submit does.
pub async fn wanted(app: &App, upload: Upload) -> Result<Option<u64>, ApiError> {
    if size(app, upload).await?.is_none() {
        return Ok(None);
    }
    note_wanted(app, upload).await.map_err(|error| unavailable("uploads cannot be noted", &error))?;
    size(app, upload).await
}

/// How many bytes an upload has if it is there, which leaves no trace.
pub async fn size(app: &App, upload: Upload) -> Result<Option<u64>, ApiError> {
    match app.store.head(&StorePath::from(upload.object())).await {
        Ok(found) => Ok(Some(found.size)),
        Err(object_store::Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(unavailable("whether it was uploaded cannot be seen", &error)),
    }
}

/// Notes that an upload is wanted: of what is there, or is about to be.
pub async fn note_wanted(app: &App, upload: Upload) -> object_store::Result<()> {
    let installation = app.read().installation();
    // Before the first claim of a log nobody sweeps, and every submit notes what it names again.
    if installation == 0 { Ok(()) } else { note(&*app.store, upload, installation).await }
}

/// What is told of a store that does not do it.
pub fn unavailable(what: &str, error: &object_store::Error) -> ApiError {
    tracing::error!(%error, "{what}");
    ApiError::new(
        Kind::StoreUnavailable,
        format!("{what} in the store at the moment; try again, and tell the operator if that does not help"),
    )
}
