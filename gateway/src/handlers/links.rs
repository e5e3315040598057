//! Links to large files in the store, so that their bytes do not pass the gateway. A link is a secret while it is good: it stands in the
//! answer to whoever asked and nowhere else.

use super::{Id, NoQuery, Shared, datasets, jobs};
use crate::app::App;
use crate::listing::Listing;
use crate::problem::{ApiError, Kind};
use crate::query::Query;
use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderName, header};
use events_schema::{DatasetName, JobId};
use gateway_api::{DatasetFile, DatasetLinks, LinkedFile, paths};
use object_store::{ObjectStoreExt, path::Path as StorePath};
use storage::dataset::{Location, Partition};
use storage::links::Link;

/// A link is for whoever asked, not for caches on the way.
const NOT_STORED: [(HeaderName, &str); 1] = [(header::CACHE_CONTROL, "no-store")];

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
    let bytes = found.map_err(|error| jobs::model_unreadable(&key, error))?.size;
    let link = sign(&app, &key, &format!("{job}.safetensors")).await?.ok_or_else(|| {
        let detail = format!(
            "this service's store gives no links, only S3 does; fetch the file itself at {}",
            paths::job_model(&job)
        );
        ApiError::new(Kind::NoLinks, detail)
    })?;
    let file = LinkedFile { url: link.url().to_owned(), expires_at: end_of(&link), bytes };
    Ok((NOT_STORED, Json(file)))
}

/// `GET /v1/datasets/{name}/links`.
pub async fn dataset(
    State(app): Shared,
    Id(name): Id<DatasetName>,
    RawQuery(raw): RawQuery,
) -> Result<([(HeaderName, &'static str); 1], Json<DatasetLinks>), ApiError> {
    let query = Query::parse(raw.as_deref(), &["limit", "cursor", "from_number", "to_number"])?;
    let listing = Listing::<u32>::parse(&query, "links")?;
    let numbers = query.stretch("from_number", "to_number")?;
    let metadata = datasets::metadata(&app, &name).await?;
    let (page, next_cursor) =
        listing.page((0..).zip(&metadata.partitions).filter(|(number, _)| numbers.contains(&u64::from(*number))));
    let mut files = Vec::with_capacity(page.len());
    for (number, partition) in page {
        files.push(file(&app, &name, number, partition).await?);
    }
    Ok((NOT_STORED, Json(DatasetLinks { files, next_cursor })))
}

async fn file(app: &App, name: &DatasetName, number: u32, partition: &Partition) -> Result<DatasetFile, ApiError> {
    let rows = partition.blocks.iter().map(|block| u64::from(block.rows)).sum();
    let file = DatasetFile { number, bytes: partition.bytes, rows, ..DatasetFile::default() };
    let key = match &partition.location {
        Location::Uri(uri) => return Ok(DatasetFile { uri: Some(uri.clone()), ..file }),
        Location::Key(key) => key,
    };
    let end = key.rsplit_once('.').map_or("", |(_, end)| end);
    let link = sign(app, key, &format!("{name}-{number:05}.{end}")).await?.ok_or_else(|| {
        let detail = format!(
            "this service's store gives no links, only S3 does; file {number} is the object `{key}` of the store that GET /v1/server names"
        );
        ApiError::new(Kind::NoLinks, detail)
    })?;
    Ok(DatasetFile { url: Some(link.url().to_owned()), expires_at: Some(end_of(&link)), ..file })
}

async fn sign(app: &App, key: &str, file_name: &str) -> Result<Option<Link>, ApiError> {
    app.links.link(key, file_name).await.map_err(|error| {
        tracing::error!(%error, key, "no link could be signed");
        ApiError::new(Kind::StoreUnavailable, "the store's credentials cannot be had at the moment; try again")
    })
}

fn end_of(link: &Link) -> String {
    humantime::format_rfc3339_seconds(link.expires_at()).to_string()
}
