//! Links to large files in the store, so that their bytes do not pass the gateway. A link is a secret while it is good: it stands in the
//! answer to whoever asked and nowhere else.

use super::{Id, NoQuery, Shared, jobs};
use crate::problem::{ApiError, Kind};
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderName, header};
use events_schema::JobId;
use gateway_api::LinkedFile;
use object_store::{ObjectStoreExt, path::Path as StorePath};

/// `GET /v1/jobs/{id}/model/link`.
pub async fn model(
    State(app): Shared,
    Id(job): Id<JobId>,
    _: NoQuery,
) -> Result<([(HeaderName, &'static str); 1], Json<LinkedFile>), ApiError> {
    jobs::outcome(&app, &job).await?;
    let key = storage::keys::model(&job);
    // A link to nothing would be found out far from here.
    let found = app.store.head(&StorePath::from(key.as_str())).await;
    let bytes = found.map_err(|error| jobs::model_unreadable(&key, &error))?.size;
    let link = app.links.link(&key, &format!("{job}.safetensors")).await.map_err(|error| {
        tracing::error!(%error, key, "no link could be signed");
        ApiError::new(Kind::StoreUnavailable, "the store's credentials cannot be had at the moment; try again")
    })?;
    let Some(link) = link else {
        let detail =
            format!("this service's store gives no links, only S3 does; fetch the file itself at /v1/jobs/{job}/model");
        return Err(ApiError::new(Kind::NoLinks, detail));
    };
    let expires_at = humantime::format_rfc3339_seconds(link.expires_at()).to_string();
    let file = LinkedFile { url: link.url().to_owned(), expires_at, bytes };
    Ok(([(header::CACHE_CONTROL, "no-store")], Json(file)))
}
