//! Datasets: register, look, remove. A registration reads footers or a metadata object here; rows are read by executors only.

use super::{Id, NoQuery, Shared, decided, tagged};
use crate::app::App;
use crate::body::Document;
use crate::conditions::{ensure_unchanged, etag};
use crate::listing::Listing;
use crate::parse::{DatasetBody, DatasetSource};
use crate::problem::{ApiError, Kind, Target, unknown};
use crate::query::Query;
use crate::read_model::Model;
use crate::{convert, parse, submit};
use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use events_schema::DatasetName;
use events_schema::command::Command;
use events_schema::dataset::DatasetInfo;
use events_schema::fields::nearest;
use gateway_api::{Dataset, Datasets, paths};
use object_store::{ObjectStoreExt, path::Path as StorePath};
use shell::Chain;
use std::error::Error;
use storage::WholeError;
use storage::dataset::{DatasetMetadata, LoadError, Outside, RegisterError, Registration, info_of, load_metadata};
use storage::keys::is_dataset_object;
use storage::retry::StoreFault;
use tokio::sync::SemaphorePermit;

/// `POST /v1/datasets`: 201 for a new one, 200 for the very same again.
pub async fn register(State(app): Shared, _: NoQuery, body: Document) -> Result<Response, ApiError> {
    let parsed = parse::dataset(&body.value)?;
    let dataset = read_source(&app, parsed).await?;
    let name = dataset.name.clone();
    let known_before = app.read().state().dataset(&name) == Some(&dataset);
    let status = if known_before { StatusCode::OK } else { StatusCode::CREATED };
    let path = paths::dataset(&name);
    let decision = submit::command(&app, Command::RegisterDataset { dataset }).await?;
    decided(decision, Target { kind: "dataset", name: name.as_str() }, &path.clone(), || {
        let dataset = app.read().state().dataset(&name).cloned().ok_or_else(|| not_found(&app, &name))?;
        Ok((status, [(header::LOCATION, path)], Json(convert::dataset(&dataset))).into_response())
    })
}

/// A place among those who read what datasets are: each may take much memory.
fn place_to_read(app: &App) -> Result<SemaphorePermit<'_>, ApiError> {
    app.dataset_reads.try_acquire().map_err(|_| {
        let detail = format!(
            "{} requests read what datasets are, the most there may be; try again in a moment",
            app.limits.dataset_reads_max
        );
        ApiError::new(Kind::Overloaded, detail)
    })
}

/// Reads what a dataset is from where it lies.
async fn read_source(app: &App, body: DatasetBody) -> Result<DatasetInfo, ApiError> {
    let _place = place_to_read(app)?;
    match body.source {
        DatasetSource::Files(files) => {
            let registration = Registration {
                name: body.name,
                uris: files.uris,
                sample: files.sample,
                columns: files.columns,
                element: files.element,
                scale: files.scale,
            };
            storage::dataset::register(&app.store, &registration, &app.dataset_roots)
                .await
                .map_err(|error| unregistrable(&error))
        }
        DatasetSource::Metadata { key, digest } => {
            if !is_dataset_object(&key) {
                let expected =
                    "the key of a dataset's metadata as an import writes it, `datasets/NAME/metadata-DIGEST.json`";
                return Err(ApiError::of_field(Kind::DatasetNotAllowed, "metadata_key", &key, expected));
            }
            ensure_present(app, &key).await?;
            info_of(&app.store, body.name, &key, &digest, &app.dataset_roots).await.map_err(|error| unloadable(&error))
        }
    }
}

fn unregistrable(error: &RegisterError) -> ApiError {
    match error {
        RegisterError::Store(fault) if fault.is_transient() => store_away(error),
        RegisterError::Outside(outside) => not_allowed("uris", outside),
        // What only its user can say of the rows is missing; the files are as they should be.
        _ if error.wants_sample() => {
            let expected =
                r#"the shape of a row, for example `{"kind": "classified", "shape": [1, 8, 8], "classes": 10}`"#;
            unreadable("sample", "nothing", expected, error)
        }
        _ => unreadable(
            "uris",
            error.uri().unwrap_or("a list of addresses"),
            "addresses of files that can be registered",
            error,
        ),
    }
}

/// Tells a metadata object that is not there from a store that is not.
async fn ensure_present(app: &App, key: &str) -> Result<(), ApiError> {
    let fault = match app.store.head(&StorePath::from(key)).await {
        Ok(_) => return Ok(()),
        Err(error) => StoreFault::of(key, error),
    };
    if fault.is_transient() {
        return Err(store_away(&fault));
    }
    let detail = format!("{fault}; import the dataset first, into the store that GET /v1/server names");
    let expected = "the key of an object that an import wrote";
    Err(ApiError::of_field(Kind::DatasetUnreadable, "metadata_key", key, expected).saying(detail))
}

/// A refusal in the words of whoever read the dataset, with all causes: these are about the user's own files, so the user may read them.
fn unreadable(field: &str, value: &str, expected: &str, error: &(dyn Error + 'static)) -> ApiError {
    ApiError::of_field(Kind::DatasetUnreadable, field, value, expected).saying(Chain(error).to_string())
}

fn not_allowed(field: &str, outside: &Outside) -> ApiError {
    let expected = format!("an address below one of: {}", outside.places);
    ApiError::of_field(Kind::DatasetNotAllowed, field, &outside.uri, expected).saying(outside.to_string())
}

fn unloadable(error: &LoadError) -> ApiError {
    match error {
        LoadError::Outside(outside) => not_allowed("metadata_key", outside),
        LoadError::Corrupt { found, expected, .. } => {
            let wanted = format!("the digest of the object at `metadata_key`, which is {found}");
            unreadable("metadata_digest", &expected.to_string(), &wanted, error)
        }
        LoadError::Sample { key, .. } => {
            unreadable("metadata_key", key, "the key of metadata of rows that a dataset can have", error)
        }
        LoadError::Unusable { key, .. } => {
            unreadable("metadata_key", key, "the key of metadata that an import of this release wrote", error)
        }
        LoadError::Object(_) => {
            unreadable("metadata_key", "unreadable", "the key of an object that can be read", error)
        }
    }
}

fn store_away(error: &(dyn Error + 'static)) -> ApiError {
    tracing::warn!(error = %Chain(error), "a store does not answer");
    ApiError::new(Kind::StoreUnavailable, format!("try again in a moment: {error}"))
}

/// `GET /v1/datasets`.
pub async fn list(State(app): Shared, RawQuery(raw): RawQuery) -> Result<Json<Datasets>, ApiError> {
    let query = Query::parse(raw.as_deref(), &["limit", "cursor", "prefix"])?;
    let listing = Listing::<DatasetName>::parse(&query, "datasets")?;
    let prefix = query.prefix()?;
    let model = app.read();
    let all = model.state().datasets().filter(|dataset| dataset.name.as_str().starts_with(prefix));
    let (page, next_cursor) = listing.page(all.map(|dataset| (dataset.name.clone(), dataset)));
    Ok(Json(Datasets {
        datasets: page.into_iter().map(|(_, dataset)| convert::dataset(dataset)).collect(),
        next_cursor,
    }))
}

/// `GET /v1/datasets/{name}`.
pub async fn get(
    State(app): Shared,
    Id(name): Id<DatasetName>,
    _: NoQuery,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let shown = known(&app, &name).await?.ok_or_else(|| not_found(&app, &name))?;
    Ok(tagged(&headers, etag(&shown), shown))
}

/// What a registered dataset's files are and hold.
pub async fn metadata(app: &App, name: &DatasetName) -> Result<DatasetMetadata, ApiError> {
    known(app, name).await?.ok_or_else(|| not_found(app, name))?;
    let info = app.read().state().dataset(name).cloned().ok_or_else(|| not_found(app, name))?;
    let _place = place_to_read(app)?;
    load_metadata(&app.store, &info).await.map_err(|error| match &error {
        // What is gone does not come back by asking again.
        LoadError::Object(WholeError::Fault(fault)) if !matches!(fault, StoreFault::Missing { .. }) => {
            store_away(&error)
        }
        _ => unreadable("name", name.as_str(), "a dataset whose metadata is as it was registered", &error),
    })
}

/// A dataset, if there is one even after everything in the log is known.
async fn known(app: &App, name: &DatasetName) -> Result<Option<Dataset>, ApiError> {
    let look = || app.read().state().dataset(name).map(convert::dataset);
    if look().is_none() {
        app.catch_up().await?;
    }
    Ok(look())
}

/// `DELETE /v1/datasets/{name}`: forgets it; its files stay.
pub async fn remove(
    State(app): Shared,
    Id(name): Id<DatasetName>,
    _: NoQuery,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let command = Command::RemoveDataset { dataset: name.clone() };
    let unchanged = |model: &Model| {
        let known = model.state().dataset(&name).ok_or_else(|| missing(model, &name))?;
        ensure_unchanged(&headers, Some(&etag(&convert::dataset(known))))
    };
    let decision = match headers.contains_key(header::IF_MATCH) {
        true => submit::command_if(&app, command, unchanged).await?,
        false => submit::command(&app, command).await?,
    };
    let target = Target { kind: "dataset", name: name.as_str() };
    decided(decision, target, &paths::dataset(&name), || Ok(StatusCode::NO_CONTENT.into_response()))
}

fn not_found(app: &App, name: &DatasetName) -> ApiError {
    missing(&app.read(), name)
}

fn missing(model: &Model, name: &DatasetName) -> ApiError {
    let near = nearest(name.as_str(), model.state().datasets().map(|dataset| dataset.name.as_str()));
    unknown("dataset", name.as_str(), near, Target { kind: "dataset", name: name.as_str() })
}
