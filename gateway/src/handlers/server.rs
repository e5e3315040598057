//! What this service is and how it is spoken with, for clients that put objects into its store themselves.

use super::{NoQuery, Shared};
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use gateway_api::Server;
use std::sync::OnceLock;

/// `GET /v1/server`.
pub async fn get(State(app): Shared, _: NoQuery) -> Json<Server> {
    Json(Server { version: env!("CARGO_PKG_VERSION").to_owned(), cell: app.cell.0, store_url: app.store_url.clone() })
}

/// `GET /v1/openapi.json`.
pub async fn openapi(_: NoQuery) -> impl IntoResponse {
    static DOCUMENT: OnceLock<Bytes> = OnceLock::new();
    let document = DOCUMENT.get_or_init(|| gateway_api::openapi().to_string().into());
    ([(header::CONTENT_TYPE, "application/json")], document.clone())
}
