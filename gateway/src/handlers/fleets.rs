//! Fleets and their slots: declare, look, offer, reclaim, and say how much is needed.

use super::{Id, NoQuery, Shared, decided, tagged};
use crate::app::App;
use crate::body::Document;
use crate::conditions::{ensure_unchanged, etag};
use crate::listing::Listing;
use crate::problem::{ApiError, Kind, Target, old_signal, unknown};
use crate::query::Query;
use crate::read_model::Model;
use crate::submit::{self, SignalDecision};
use crate::{convert, parse};
use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use events_schema::command::{Command, Needs};
use events_schema::fields::nearest;
use events_schema::{FleetId, JobId, ServerId, SlotId};
use gateway_api as api;
use gateway_api::{DemandState, SlotState, paths};

/// `PUT /v1/fleets/{fleet}`.
pub async fn put(
    State(app): Shared,
    Id(fleet): Id<FleetId>,
    _: NoQuery,
    headers: HeaderMap,
    body: Document,
) -> Result<Response, ApiError> {
    let declared = parse::fleet(&body.value)?;
    let command = Command::PutFleet {
        fleet: fleet.clone(),
        slots: declared.slots,
        offers: declared.offers,
        reclaim_deadline_ms: declared.reclaim_deadline_ms,
    };
    ask(&app, &fleet, &headers, command).await
}

/// `GET /v1/fleets`.
pub async fn list(State(app): Shared, RawQuery(raw): RawQuery) -> Result<Json<api::Fleets>, ApiError> {
    let query = Query::parse(raw.as_deref(), &["limit", "cursor", "prefix"])?;
    let listing = Listing::<FleetId>::parse(&query, "fleets")?;
    let prefix = query.prefix()?;
    let model = app.read();
    let all = model.state().fleets().filter(|(name, _)| name.as_str().starts_with(prefix));
    let (page, next_cursor) = listing.page(all.map(|(name, fleet)| (name.clone(), fleet)));
    let fleets = page.into_iter().map(|(name, fleet)| convert::fleet(model.state(), &name, fleet)).collect();
    Ok(Json(api::Fleets { fleets, next_cursor }))
}

/// `GET /v1/fleets/{fleet}`.
pub async fn get(
    State(app): Shared,
    Id(fleet): Id<FleetId>,
    _: NoQuery,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    ensure_known(&app, &fleet).await?;
    let shown = show(&app, &fleet).ok_or_else(|| not_found(&app, &fleet))?;
    Ok(tagged(&headers, etag(&shown), shown))
}

/// `POST /v1/fleets/{fleet}/offers`.
pub async fn offer(
    State(app): Shared,
    Id(fleet): Id<FleetId>,
    _: NoQuery,
    headers: HeaderMap,
    body: Document,
) -> Result<Response, ApiError> {
    let slots = parse::slots(&body.value)?;
    ask(&app, &fleet, &headers, Command::OfferSlots { fleet: fleet.clone(), slots }).await
}

/// `POST /v1/fleets/{fleet}/reclaims`.
pub async fn reclaim(
    State(app): Shared,
    Id(fleet): Id<FleetId>,
    _: NoQuery,
    headers: HeaderMap,
    body: Document,
) -> Result<Response, ApiError> {
    let slots = parse::slots(&body.value)?;
    ask(&app, &fleet, &headers, Command::ReclaimSlots { fleet: fleet.clone(), slots }).await
}

/// `POST /v1/fleets/{fleet}/recall`: the red button.
pub async fn recall(
    State(app): Shared,
    Id(fleet): Id<FleetId>,
    _: NoQuery,
    headers: HeaderMap,
    body: Document,
) -> Result<Response, ApiError> {
    let slots = parse::recall(&body.value)?;
    ask(&app, &fleet, &headers, Command::RecallFleet { fleet: fleet.clone(), slots }).await
}

/// `POST /v1/fleets/{fleet}/release`.
pub async fn release(
    State(app): Shared,
    Id(fleet): Id<FleetId>,
    _: NoQuery,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    ask(&app, &fleet, &headers, Command::ReleaseFleet { fleet: fleet.clone() }).await
}

async fn ask(app: &App, fleet: &FleetId, headers: &HeaderMap, command: Command) -> Result<Response, ApiError> {
    let unchanged = |model: &Model| ensure_unchanged(headers, shown(model, fleet).map(|shown| etag(&shown)).as_deref());
    let decision = match headers.contains_key(header::IF_MATCH) || headers.contains_key(header::IF_NONE_MATCH) {
        true => submit::command_if(app, command, unchanged).await?,
        false => submit::command(app, command).await?,
    };
    let target = Target { kind: "fleet", name: fleet.as_str() };
    decided(decision, target, &paths::fleet(fleet), || answer(app, fleet))
}

/// `POST /v1/fleets/{fleet}/demand`: 200 if it counts, 202 if nobody has decided yet; 409 if it comes too late.
pub async fn demand(
    State(app): Shared,
    Id(fleet): Id<FleetId>,
    _: NoQuery,
    body: Document,
) -> Result<Response, ApiError> {
    let signal = parse::demand(&body.value)?;
    ensure_known(&app, &fleet).await?;
    let (sequence, published) = match signal.sequence {
        Some(sequence) => (sequence, publish(&app, &fleet, sequence, signal.needs).await?),
        None => publish_numbered(&app, &fleet, &signal.needs).await?,
    };
    let (code, status) = if published.accepted {
        (StatusCode::OK, DemandState::Accepted)
    } else {
        (StatusCode::ACCEPTED, DemandState::Undecided)
    };
    let taken =
        api::DemandTaken { status: status.into(), fleet: fleet.to_string(), sequence, needed: published.needed };
    Ok((code, Json(taken)).into_response())
}

/// A signal that is durable.
pub struct Published {
    /// Whether it counts; nobody has decided otherwise.
    accepted: bool,
    /// The need as it counts.
    needed: u32,
}

/// Numbers tried for one signal: another gateway may have minted the same one in the same millisecond.
const MINT_ATTEMPTS: u32 = 5;

/// Publishes a signal under a number of our own, above all that are known; which.
async fn publish_numbered(app: &App, fleet: &FleetId, needs: &Needs) -> Result<(u64, Published), ApiError> {
    let mut attempts = 1..=MINT_ATTEMPTS;
    loop {
        let sequence = app.mint_sequence(fleet, taken_sequence(app, fleet));
        match publish(app, fleet, sequence, needs.clone()).await {
            Err(error) if error.kind == Kind::OldSignal && attempts.next().is_some() => {}
            published => return published.map(|published| (sequence, published)),
        }
    }
}

/// Publishes a signal unless this very one, number and need, was accepted before.
pub async fn publish(app: &App, fleet: &FleetId, sequence: u64, needs: Needs) -> Result<Published, ApiError> {
    let needed = needed_of(app, fleet, &needs);
    if app.read().answers.accepted_signal(fleet, sequence, needed) {
        return Ok(Published { accepted: true, needed });
    }
    refuse_old(taken_sequence(app, fleet), sequence)?;
    let accepted = submit::demand(app, fleet, sequence, needs, needed).await? == SignalDecision::Accepted;
    if !accepted {
        ensure_known(app, fleet).await?;
        refuse_old(taken_sequence(app, fleet), sequence)?;
    }
    Ok(Published { accepted, needed })
}

/// The need as the controller will count it.
fn needed_of(app: &App, fleet: &FleetId, needs: &Needs) -> u32 {
    let slots = app.read().state().fleet(fleet).map_or(u32::MAX, |fleet| fleet.slots.len() as u32);
    needs.counted(slots)
}

fn refuse_old(taken: Option<u64>, sequence: u64) -> Result<(), ApiError> {
    taken.filter(|taken| sequence <= *taken).map_or(Ok(()), |taken| Err(old_signal(sequence, taken)))
}

fn taken_sequence(app: &App, fleet: &FleetId) -> Option<u64> {
    app.read().state().fleet(fleet).and_then(|fleet| fleet.sequence)
}

/// `GET /v1/slots`.
pub async fn slots(State(app): Shared, RawQuery(raw): RawQuery) -> Result<Json<api::Slots>, ApiError> {
    let query = Query::parse(raw.as_deref(), &["limit", "cursor", "fleet", "server", "job", "state"])?;
    let listing = Listing::<SlotId>::parse(&query, "slots")?;
    let fleet = query.get("fleet", "the name of a fleet", |text| text.parse::<FleetId>().ok())?;
    let server = query.get("server", "the name of a server", |text| text.parse::<ServerId>().ok())?;
    let job = query.get("job", "the id of a job", |text| text.parse::<JobId>().ok())?;
    let states: Vec<&str> = SlotState::ALL.iter().map(|state| state.as_str()).collect();
    let state = query.get("state", &format!("one of {}", states.join(", ")), SlotState::parse)?;
    let model = app.read();
    let wanted = convert::slots(model.state()).filter(|(id, slot)| {
        fleet.as_ref().is_none_or(|fleet| slot.is_some_and(|slot| slot.fleet.as_ref() == Some(fleet)))
            && server.as_ref().is_none_or(|server| id.server == *server)
            && job.as_ref().is_none_or(|job| slot.is_some_and(|slot| slot.job.as_ref() == Some(job)))
            && state.is_none_or(|state| convert::slot_state(model.state(), id).known() == Some(&state))
    });
    let (page, next_cursor) = listing.page(wanted);
    let slots = page.into_iter().map(|(id, slot)| convert::slot(model.state(), &id, slot)).collect();
    Ok(Json(api::Slots { slots, next_cursor }))
}

fn show(app: &App, name: &FleetId) -> Option<api::Fleet> {
    shown(&app.read(), name)
}

fn shown(model: &Model, name: &FleetId) -> Option<api::Fleet> {
    model.state().fleet(name).map(|fleet| convert::fleet(model.state(), name, fleet))
}

fn answer(app: &App, name: &FleetId) -> Result<Response, ApiError> {
    let fleet = show(app, name).ok_or_else(|| not_found(app, name))?;
    Ok(([(header::ETAG, etag(&fleet))], Json(fleet)).into_response())
}

pub(super) async fn ensure_known(app: &App, fleet: &FleetId) -> Result<(), ApiError> {
    let known = || app.read().state().fleet(fleet).is_some();
    if !known() {
        app.catch_up().await?;
    }
    if known() { Ok(()) } else { Err(not_found(app, fleet)) }
}

fn not_found(app: &App, fleet: &FleetId) -> ApiError {
    let model = app.read();
    let near = nearest(fleet.as_str(), model.state().fleets().map(|(name, _)| name.as_str()));
    unknown("fleet", fleet.as_str(), near, Target { kind: "fleet", name: fleet.as_str() })
}
