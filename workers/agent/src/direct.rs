//! The agent's own listener, with which a fleet takes slots back when controller, gateway and log are all gone.
//!
//! `POST /v1/take-back {slots, deadline_ms?}` answers when the slots are free; `GET /v1/slots` shows what is on them;
//! `GET /healthz` says that the agent lives, and `GET /metrics` what it counts. All but these two ask for a bearer token: the one in the agent's data directory, or
//! a fleet's, which takes back that fleet's slots only; beyond this machine metrics do too, unless its operator opened them. What asks for no token
//! stands behind the door of `http_listener::door`. It decides nothing; requests go to `host.rs`.

use crate::holder::Holder;
use crate::host::HostEvent;
use crate::host::TakeBack;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use controller_link::AgentToken;
use ebb_telemetry::{Hop, HopKind, NewHop, metrics};
use events_schema::trace::{TRACEPARENT, TraceContext};
use events_schema::{ServerId, SlotId};
use gateway_api::agent::{
    self as api, AgentProblemKind, AgentSlotState, SlotOfAgent, TAKE_BACK_DEADLINE_MS, TAKE_BACK_DEADLINE_MS_MAX, paths,
};
use gateway_api::headers;
use http_listener::Bounds;
use http_listener::door::{self, Door, HostName};
use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use workers_agent_core::{Answer, FreedSlot, REQUESTS_MAX, SlotState, SlotView};

/// Connections at the same time: every request that may wait, and as many that only look. Whoever is silent makes room.
pub const CONNECTIONS_MAX: usize = 2 * REQUESTS_MAX;

/// Fleets are programs on a fast network.
const HEAD_TIME: Duration = Duration::from_secs(5);

/// An answer is a few kilobytes: who takes in none of it for so long is gone.
const WRITE_STALL: Duration = Duration::from_secs(10);

/// Time that open requests get when the agent ends; its slots are free by then.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// Room for the names of 1,024 slots.
const BODY_BYTES_MAX: usize = 128 << 10;

/// Who reads an agent's metrics without a token: whoever reaches its listener if that is on loopback, otherwise nobody, unless this says so.
#[derive(Debug, Clone, Default)]
pub struct MetricsReaders {
    /// Whoever reaches the listener, wherever it is.
    pub anyone: bool,
    /// Names by which it is asked for, beside loopback and where it listens.
    pub host_names: Vec<HostName>,
}

impl MetricsReaders {
    pub(crate) fn at(self, listen: IpAddr) -> MetricsFor {
        MetricsFor { all: self.anyone || listen.is_loopback(), door: Arc::new(Door::new(listen, self.host_names)) }
    }
}

/// The same, of one listener.
#[derive(Clone)]
pub(crate) struct MetricsFor {
    all: bool,
    door: Arc<Door>,
}

/// What the listener needs.
#[derive(Clone)]
pub(crate) struct Direct {
    pub server: ServerId,
    pub slots: u16,
    pub token: Arc<AgentToken>,
    pub host: mpsc::Sender<HostEvent>,
    pub metrics_for: MetricsFor,
}

impl Direct {
    pub fn new(
        server: ServerId,
        slots: u16,
        token: AgentToken,
        host: mpsc::Sender<HostEvent>,
        metrics_for: MetricsFor,
    ) -> Self {
        Self { server, slots, token: Arc::new(token), host, metrics_for }
    }

    /// Serves until `shutdown`.
    pub async fn serve(self, listener: TcpListener, shutdown: CancellationToken) -> io::Result<()> {
        let guarded = Router::new().route(paths::TAKE_BACK, post(take_back)).route(paths::SLOTS, get(slots));
        let open = Router::new().route(paths::HEALTHZ, get(|| async { Json(api::Alive { status: "ok".to_owned() }) }));
        let metrics = get(metrics::answer);
        let (guarded, open) = if self.metrics_for.all {
            (guarded, open.route(paths::METRICS, metrics))
        } else {
            (guarded.route(paths::METRICS, metrics), open)
        };
        let router = guarded
            .layer(from_fn_with_state(self.clone(), guard))
            .merge(open.layer(from_fn_with_state(self.metrics_for.door.clone(), door::guard)))
            .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
            .with_state(self);
        let bounds = Bounds {
            connections_max: CONNECTIONS_MAX,
            head_time: HEAD_TIME,
            write_stall: WRITE_STALL,
            shutdown_grace: SHUTDOWN_GRACE,
        };
        http_listener::serve(listener, router, bounds, shutdown).await;
        Ok(())
    }

    /// The number of a slot named `SERVER/INDEX` or `INDEX`.
    fn slot(&self, name: &SlotOfAgent) -> Result<u16, Problem> {
        let text = match name {
            SlotOfAgent::Number(index) => index.to_string(),
            SlotOfAgent::Name(text) => text.clone(),
        };
        let index = match text.parse::<u16>() {
            Ok(index) => Some(index),
            Err(_) => text.parse::<SlotId>().ok().filter(|slot| slot.server == self.server).map(|slot| slot.index),
        };
        index.filter(|index| *index < self.slots).ok_or_else(|| Problem::NoSlot {
            value: text,
            expected: format!("one of `{0}/0` to `{0}/{1}`", self.server, self.slots.saturating_sub(1)),
        })
    }
}

fn freed(FreedSlot { slot, elapsed_ms, killed }: FreedSlot) -> api::FreedSlot {
    api::FreedSlot { slot: slot.to_string(), free: true, elapsed_ms, killed }
}

/// One slot as callers see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlotReport(api::AgentSlot);

impl SlotReport {
    /// Whether the executor on it is this process.
    pub fn is_process(&self, pid: i32) -> bool {
        self.0.pid == Some(pid)
    }

    pub fn of(view: &SlotView<'_>, pid: Option<i32>) -> Self {
        let state = match view.state {
            SlotState::Free => AgentSlotState::Free,
            SlotState::Running => AgentSlotState::Running,
            SlotState::Leaving => AgentSlotState::Leaving,
            SlotState::TakenBack => AgentSlotState::TakenBack,
            SlotState::Quarantined => AgentSlotState::Quarantined,
        };
        let executor = view.executor.map(ToString::to_string);
        Self(api::AgentSlot { slot: view.slot.to_string(), state: state.into(), executor, pid })
    }
}

async fn guard(State(direct): State<Direct>, mut request: Request, next: Next) -> Response {
    let shown = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let Some(holder) = Holder::of(&direct.token, &direct.server, shown) else {
        return Problem::NoToken.into_response();
    };
    request.extensions_mut().insert(holder);
    next.run(request).await
}

async fn take_back(
    State(direct): State<Direct>,
    Extension(holder): Extension<Holder>,
    headers: HeaderMap,
    body: Result<Json<api::TakeBack>, axum::extract::rejection::JsonRejection>,
) -> Result<Json<api::FreedSlots>, Problem> {
    let Json(body) = body.map_err(|rejection| Problem::Body(rejection.body_text()))?;
    let slots = body.slots.iter().map(|name| direct.slot(name)).collect::<Result<BTreeSet<u16>, Problem>>()?;
    if let Some(slot) = slots.iter().find(|slot| !holder.may_take(**slot)) {
        return Err(Problem::NotYours { slot: format!("{}/{slot}", direct.server), holder });
    }
    if slots.is_empty() {
        return Err(Problem::Body("`slots` is empty: expected at least one slot".to_owned()));
    }
    let deadline_ms = body.deadline_ms.unwrap_or(TAKE_BACK_DEADLINE_MS);
    if deadline_ms > TAKE_BACK_DEADLINE_MS_MAX {
        return Err(Problem::Body(format!(
            "`deadline_ms` is {deadline_ms}: expected at most {TAKE_BACK_DEADLINE_MS_MAX}"
        )));
    }
    let within = Duration::from_millis(deadline_ms);
    let caused = TraceContext::of_header(headers.get(TRACEPARENT).map(HeaderValue::as_bytes));
    let hop = NewHop::new(format!("POST {}", paths::TAKE_BACK), HopKind::Server).after(caused).begin();
    if let Some(hop) = &hop {
        hop.set("http.request.method", "POST");
        hop.set("http.route", paths::TAKE_BACK);
    }
    let trace = hop.as_ref().and_then(Hop::context);
    let (reply, answer) = oneshot::channel();
    let request = TakeBack { slots, within, trace, reply };
    direct.host.send(HostEvent::TakeBack(request)).await.map_err(|_| Problem::Ending)?;
    match answer.await.unwrap_or(Answer::Ending) {
        Answer::Freed(slots) => Ok(Json(api::FreedSlots { slots: slots.into_iter().map(freed).collect() })),
        Answer::NotKept => Err(Problem::NotKept),
        Answer::Busy => Err(Problem::Busy),
        Answer::Stuck => Err(Problem::Stuck),
        Answer::Ending => Err(Problem::Ending),
    }
}

async fn slots(State(direct): State<Direct>) -> Result<Json<api::AgentSlots>, Problem> {
    let (reply, answer) = oneshot::channel();
    direct.host.send(HostEvent::Look(reply)).await.map_err(|_| Problem::Ending)?;
    let slots = answer.await.map_err(|_| Problem::Ending)?;
    let slots = slots.into_iter().map(|SlotReport(slot)| slot).collect();
    Ok(Json(api::AgentSlots { server: direct.server.to_string(), slots }))
}

/// Why a request was not served.
#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error(
        "the request shows no token, or not this agent's: send `authorization: Bearer TOKEN` with the content of the agent's take-back token file"
    )]
    NoToken,
    #[error("{0}")]
    Body(String),
    #[error("`{value}` is not a slot of this agent: expected {expected}")]
    NoSlot { value: String, expected: String },
    #[error(
        "`{slot}` is not this token's, which is of {holder}; ask for those only, or have the agent's operator make another token with `ebb fleet token`"
    )]
    NotYours { slot: String, holder: Holder },
    #[error("{REQUESTS_MAX} take-backs are waiting already: try again")]
    Busy,
    #[error("this agent is ending, and its executors with it: look again in a moment")]
    Ending,
    #[error(
        "the slots go back, but that could not be written down, so a crash of this server would forget it: look at the agent's log, then ask again"
    )]
    NotKept,
    #[error(
        "an executor was killed but has not ended, or the device of its slot does not give its memory back; the slot is not free: look at the agent's log"
    )]
    Stuck,
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let kind = match self {
            Problem::NoToken => AgentProblemKind::NoToken,
            Problem::Body(_) => AgentProblemKind::BadRequest,
            Problem::NoSlot { .. } => AgentProblemKind::NoSuchSlot,
            Problem::NotYours { .. } => AgentProblemKind::NotYourSlot,
            Problem::Busy => AgentProblemKind::Busy,
            Problem::Ending => AgentProblemKind::Ending,
            Problem::NotKept => AgentProblemKind::NotWrittenDown,
            Problem::Stuck => AgentProblemKind::SlotNotFree,
        };
        let status = StatusCode::from_u16(kind.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = kind.document(&self.to_string(), Vec::new());
        (status, [(header::CONTENT_TYPE, headers::PROBLEM_JSON)], Json(body)).into_response()
    }
}
