//! What this service is, for clients that put objects into its store themselves.

use super::{NoQuery, Shared};
use crate::wire;
use axum::Json;
use axum::extract::State;

/// `GET /v1/server`.
pub async fn get(State(app): Shared, _: NoQuery) -> Json<wire::Server> {
    Json(wire::Server { version: env!("CARGO_PKG_VERSION"), cell: app.cell.0, store_url: app.store_url.clone() })
}
