//! Datasets: register, look, remove. A registration reads footers or a metadata object here; rows are read by executors only.

use super::{Id, NoQuery, Shared, decided};
use crate::app::App;
use crate::body::Document;
use crate::problem::{ApiError, Kind, Target, unknown};
use crate::wire::{DatasetBody, DatasetSource};
use crate::{parse, submit, wire};
use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use events_schema::DatasetName;
use events_schema::command::Command;
use events_schema::dataset::DatasetInfo;
use events_schema::fields::nearest;
use object_store::{ObjectStoreExt, path::Path as StorePath};
use std::error::Error;
use storage::dataset::{LoadError, RegisterError, Registration, info_of};
use storage::retry::StoreFault;

/// `POST /v1/datasets`: 201 for a new one, 200 for the very same again.
pub async fn register(State(app): Shared, _: NoQuery, body: Document) -> Result<Response, ApiError> {
    let parsed = parse::dataset(&body.value)?;
    let dataset = read_source(&app, parsed).await?;
    let name = dataset.name.clone();
    let known_before = app.read().state.dataset(&name) == Some(&dataset);
    let status = if known_before { StatusCode::OK } else { StatusCode::CREATED };
    let path = format!("/v1/datasets/{name}");
    let decision = submit::command(&app, Command::RegisterDataset { dataset }).await?;
    decided(decision, Target { kind: "dataset", name: name.as_str() }, &path.clone(), || {
        let dataset = app.read().state.dataset(&name).cloned().ok_or_else(|| not_found(&app, &name))?;
        Ok((status, [(header::LOCATION, path)], Json(dataset)).into_response())
    })
}

/// Reads what a dataset is from where it lies.
async fn read_source(app: &App, body: DatasetBody) -> Result<DatasetInfo, ApiError> {
    let Ok(_place) = app.registrations.try_acquire() else {
        let detail = format!(
            "{} registrations are in work, the most there may be; try again in a moment",
            app.limits.registrations_max
        );
        return Err(ApiError::new(Kind::Overloaded, detail));
    };
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
            storage::dataset::register(&app.store, &registration).await.map_err(|error| unregistrable(&error))
        }
        DatasetSource::Metadata { key, digest } => {
            ensure_present(app, &key).await?;
            info_of(&app.store, body.name, &key, &digest).await.map_err(|error| unloadable(&error))
        }
    }
}

fn unregistrable(error: &RegisterError) -> ApiError {
    match error {
        RegisterError::Store(fault) if fault.is_transient() => store_away(error),
        _ => ApiError::of_field(Kind::DatasetUnreadable, "uris", "unusable", told(error)),
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
    let expected = format!(
        "the key of an object in the store: {fault}; import writes it there, at the store that GET /v1/server names"
    );
    Err(ApiError::of_field(Kind::DatasetUnreadable, "metadata_key", key, expected))
}

fn unloadable(error: &LoadError) -> ApiError {
    match error {
        LoadError::Corrupt { found, .. } => {
            let expected = format!("the digest of the object at `metadata_key`, which is {found}");
            ApiError::of_field(Kind::DatasetUnreadable, "metadata_digest", "another", expected)
        }
        _ => ApiError::of_field(Kind::DatasetUnreadable, "metadata_key", "unusable", told(error)),
    }
}

fn store_away(error: &(dyn Error + 'static)) -> ApiError {
    tracing::warn!(error = %told(error), "a store does not answer");
    ApiError::new(Kind::StoreUnavailable, format!("try again in a moment: {error}"))
}

/// An error with its causes: these are about the user's own files, so the user may read them.
fn told(error: &(dyn Error + 'static)) -> String {
    let (mut text, mut cause) = (error.to_string(), error.source());
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// `GET /v1/datasets`.
pub async fn list(State(app): Shared, _: NoQuery) -> Json<wire::Datasets> {
    Json(wire::Datasets { datasets: app.read().state.datasets().cloned().collect() })
}

/// `GET /v1/datasets/{name}`.
pub async fn get(State(app): Shared, Id(name): Id<DatasetName>, _: NoQuery) -> Result<Json<DatasetInfo>, ApiError> {
    let known = || app.read().state.dataset(&name).cloned();
    if known().is_none() {
        app.catch_up().await?;
    }
    known().map(Json).ok_or_else(|| not_found(&app, &name))
}

/// `DELETE /v1/datasets/{name}`: forgets it; its files stay.
pub async fn remove(State(app): Shared, Id(name): Id<DatasetName>, _: NoQuery) -> Result<Response, ApiError> {
    let decision = submit::command(&app, Command::RemoveDataset { dataset: name.clone() }).await?;
    let target = Target { kind: "dataset", name: name.as_str() };
    decided(decision, target, &format!("/v1/datasets/{name}"), || Ok(StatusCode::NO_CONTENT.into_response()))
}

fn not_found(app: &App, name: &DatasetName) -> ApiError {
    let model = app.read();
    let near = nearest(name.as_str(), model.state.datasets().map(|dataset| dataset.name.as_str()));
    unknown("dataset", name.as_str(), near, Target { kind: "dataset", name: name.as_str() })
}
