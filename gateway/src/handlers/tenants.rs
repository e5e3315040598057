//! Tenants: which there are, and the quota of each.

use super::{Id, NoQuery, Shared, decided, tagged};
use crate::app::App;
use crate::body::Document;
use crate::conditions::{ensure_unchanged, etag};
use crate::listing::Listing;
use crate::problem::{ApiError, Target, unknown};
use crate::query::Query;
use crate::read_model::Model;
use crate::{parse, submit};
use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use events_schema::TenantId;
use events_schema::command::Command;
use events_schema::fields::nearest;
use gateway_api as api;
use gateway_api::paths;
use std::collections::BTreeMap;

/// `GET /v1/tenants`.
pub async fn list(State(app): Shared, RawQuery(raw): RawQuery) -> Result<Json<api::Tenants>, ApiError> {
    let query = Query::parse(raw.as_deref(), &["limit", "cursor", "prefix"])?;
    let listing = Listing::<TenantId>::parse(&query, "tenants")?;
    let prefix = query.prefix()?;
    let all = all(app.read().state());
    let (page, next_cursor) = listing.page(all.into_iter().filter(|(name, _)| name.as_str().starts_with(prefix)));
    Ok(Json(api::Tenants { tenants: page.into_iter().map(|(_, tenant)| tenant).collect(), next_cursor }))
}

/// `GET /v1/tenants/{tenant}`.
pub async fn get(
    State(app): Shared,
    Id(name): Id<TenantId>,
    _: NoQuery,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    if show(&app, &name).is_none() {
        app.catch_up().await?;
    }
    let shown = show(&app, &name).ok_or_else(|| missing(&app.read(), &name))?;
    Ok(tagged(&headers, tag(&shown), shown))
}

/// `PUT /v1/tenants/{tenant}`.
pub async fn put(
    State(app): Shared,
    Id(name): Id<TenantId>,
    _: NoQuery,
    headers: HeaderMap,
    body: Document,
) -> Result<Response, ApiError> {
    let quota_slots = Some(parse::quota(&body.value)?);
    ask(&app, &name, &headers, quota_slots, || {
        let shown = show(&app, &name).ok_or_else(|| missing(&app.read(), &name))?;
        Ok(([(header::ETAG, tag(&shown))], Json(shown)).into_response())
    })
    .await
}

/// `DELETE /v1/tenants/{tenant}`: takes the quota away.
pub async fn remove(
    State(app): Shared,
    Id(name): Id<TenantId>,
    _: NoQuery,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    ask(&app, &name, &headers, None, || Ok(StatusCode::NO_CONTENT.into_response())).await
}

async fn ask(
    app: &App,
    name: &TenantId,
    headers: &HeaderMap,
    quota_slots: Option<u32>,
    now: impl FnOnce() -> Result<Response, ApiError>,
) -> Result<Response, ApiError> {
    let command = Command::SetQuota { tenant: name.clone(), quota_slots };
    let unchanged = |model: &Model| ensure_unchanged(headers, all(model.state()).get(name).map(tag).as_deref());
    let decision = match headers.contains_key(header::IF_MATCH) {
        true => submit::command_if(app, command, unchanged).await?,
        false => submit::command(app, command).await?,
    };
    decided(decision, Target { kind: "tenant", name: name.as_str() }, &paths::tenant(name), now)
}

fn show(app: &App, name: &TenantId) -> Option<api::Tenant> {
    all(app.read().state()).remove(name)
}

/// Whoever has a quota or jobs that have not ended.
fn all(state: &controller_core::State) -> BTreeMap<TenantId, api::Tenant> {
    let named = |name: &TenantId| api::Tenant { name: name.to_string(), ..api::Tenant::default() };
    let of_quotas =
        state.quotas().map(|(name, quota)| (name.clone(), api::Tenant { quota_slots: Some(quota), ..named(name) }));
    let mut all: BTreeMap<TenantId, api::Tenant> = of_quotas.collect();
    for (_, job) in state.live_jobs() {
        let tenant = all.entry(job.tenant().clone()).or_insert_with_key(named);
        tenant.jobs += 1;
        // Who shares others' slots has none.
        tenant.slots += job.slots().iter().filter(|slot| !slot.is_guest()).count() as u32;
    }
    all
}

/// Of its name and its quota: what it uses changes all the time, and no change depends on it.
fn tag(tenant: &api::Tenant) -> String {
    etag(&(&tenant.name, tenant.quota_slots))
}

fn missing(model: &Model, name: &TenantId) -> ApiError {
    let all = all(model.state());
    let near = nearest(name.as_str(), all.keys().map(TenantId::as_str));
    unknown("tenant", name.as_str(), near, Target { kind: "tenant", name: name.as_str() })
}
