//! Events: as a stream that resumes from any of its cursors (server-sent events), or by pages (JSON).
//!
//! Streams are pulled: who reads slowly holds a cursor and one batch, never a queue, and is cut off by its listener
//! when it takes in nothing at all. What a stream says comes from `feed.rs`, the next file.

use super::jobs::ensure_known;
use super::{Id, Shared, fleets};
use crate::app::App;
use crate::convert;
use crate::feed::{BEGINNING, CountedBatch, FeedReader};
use crate::problem::{ApiError, Kind};
use crate::query::{Query, event_cursor, number, parse_event_cursor};
use crate::read_model::Progress;
use crate::selection::{Of, Selection};
use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use events_log::Stream;
use events_public::{CloudEvent, FactPosition};
use events_schema::{Cell, FleetId, Generation, JobId, Offset, Step};
use gateway_api::EventPage;
use gateway_api::headers::{EVENT_STREAM, LAST_EVENT_ID};
use gateway_api::pages::{EVENT_LIMIT, EVENT_LIMIT_DEFAULT};
use shell::wall_clock;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Interval, interval};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

/// Pieces of the log (1 MiB each) read for one page; a page of a rare subject ends early and says where to go on.
const PAGE_PIECES_MAX: usize = 32;
/// Between two words of a job's progress on one stream: as often as people look.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// How soon a client should come back when its stream ends.
const RECONNECT_PAUSE: Duration = Duration::from_secs(1);

/// `GET /v1/events`.
pub async fn all(State(app): Shared, RawQuery(raw): RawQuery, headers: HeaderMap) -> Result<Response, ApiError> {
    let request = Request::parse(&app, raw.as_deref(), &headers, Of::Everything).await?;
    respond(&app, request, BEGINNING).await
}

/// `GET /v1/jobs/{id}/events`: everything about the job from its acceptance on.
pub async fn of_job(
    State(app): Shared,
    Id(job): Id<JobId>,
    RawQuery(raw): RawQuery,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let request = Request::parse(&app, raw.as_deref(), &headers, Of::Job(job.clone())).await?;
    ensure_known(&app, &job).await?;
    let begins_after = app.read().job_index.accepted(&job).map_or(BEGINNING, just_before);
    respond(&app, request, begins_after).await
}

/// `GET /v1/fleets/{fleet}/events`: everything about the fleet and its slots.
pub async fn of_fleet(
    State(app): Shared,
    Id(fleet): Id<FleetId>,
    RawQuery(raw): RawQuery,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let request = Request::parse(&app, raw.as_deref(), &headers, Of::Fleet(fleet.clone())).await?;
    fleets::ensure_known(&app, &fleet).await?;
    respond(&app, request, BEGINNING).await
}

fn just_before(place: FactPosition) -> FactPosition {
    match (place.index, place.offset) {
        (0, Offset(0)) => BEGINNING,
        (0, Offset(offset)) => FactPosition { offset: Offset(offset - 1), index: u32::MAX },
        (index, offset) => FactPosition { offset, index: index - 1 },
    }
}

/// Which events are wanted, and how.
struct Request {
    selection: Selection,
    /// After this one; from now on (stream) or from the beginning (page) if absent.
    after: Option<FactPosition>,
    /// Of a page; `None` asks for a stream.
    page_limit: Option<usize>,
}

impl Request {
    async fn parse(app: &App, raw: Option<&str>, headers: &HeaderMap, of: Of) -> Result<Self, ApiError> {
        const CURSOR: &str = "the `id` of an earlier event (OFFSET-INDEX), or 0-0 for the beginning";
        let [kind, subject] = Selection::PARAMETERS;
        let query = Query::parse(raw, &["from", "limit", kind, subject])?;
        let selection = Selection::parse(of, &query)?;
        let expected = format!("a whole number from {} to {}", EVENT_LIMIT.start(), EVENT_LIMIT.end());
        let limit = query.get("limit", &expected, |text| number(text).filter(|n| EVENT_LIMIT.contains(n)))?;
        let from = query.get("from", CURSOR, parse_event_cursor)?;
        // A stream that comes back repeats its first URL; how far it came stands in the header.
        let last = match headers.get(LAST_EVENT_ID) {
            None => None,
            Some(value) => {
                let text = String::from_utf8_lossy(value.as_bytes()).into_owned();
                let wrong = || ApiError::of_field(Kind::InvalidHeader, "Last-Event-ID", &text, CURSOR);
                Some(parse_event_cursor(&text).ok_or_else(wrong)?)
            }
        };
        let (field, kind) =
            if last.is_some() { ("Last-Event-ID", Kind::InvalidHeader) } else { ("from", Kind::InvalidQuery) };
        let after = last.or(from);
        if let Some(after) = after.filter(|after| *after != BEGINNING) {
            let end = app.log.end(Stream::Events, app.cell).await?;
            if after.offset >= end {
                let expected =
                    format!("a cursor of this log, whose next offset is {end}; it may be of another service");
                return Err(ApiError::of_field(kind, field, &event_cursor(after), expected));
            }
        }
        let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let wants_stream = accept.contains(EVENT_STREAM);
        let wants_page = !wants_stream && (limit.is_some() || accept.contains("application/json"));
        Ok(Self { selection, after, page_limit: wants_page.then(|| limit.unwrap_or(EVENT_LIMIT_DEFAULT)) })
    }
}

/// None of the wanted events stands at or before `begins_after`.
async fn respond(app: &Arc<App>, request: Request, begins_after: FactPosition) -> Result<Response, ApiError> {
    let cursor_now = app.read().cursor();
    let beginning = if request.page_limit.is_some() { BEGINNING } else { cursor_now };
    let after = request.after.unwrap_or(beginning).max(begins_after);
    let mut pull = Pull {
        reader: FeedReader::new(app.model.clone(), app.log.clone(), app.cell, after),
        pending: VecDeque::new(),
        cursor: after,
        installation: 0,
        cell: app.cell,
        selection: request.selection,
    };
    match request.page_limit {
        Some(limit) => page(pull, limit).await,
        None => {
            let place = streams_place(app)?;
            if request.after.is_some() {
                // A place that is no longer kept is said by the answer's status: once a stream has begun, it could only end.
                pull.pending.extend(pull.reader.next().await?);
            }
            Ok(stream(app, pull, place))
        }
    }
}

/// Events one by one, in order, as far as they are wanted.
struct Pull {
    reader: FeedReader,
    /// Batches read and not yet handed on.
    pending: VecDeque<Arc<CountedBatch>>,
    /// The last event handed on or passed over.
    cursor: FactPosition,
    /// 0 until the log has a first claim; no event stands before it.
    installation: u64,
    cell: Cell,
    selection: Selection,
}

impl Pull {
    /// The next wanted event among those read.
    fn ready(&mut self) -> Option<(FactPosition, CloudEvent)> {
        while let Some(batch) = self.pending.front() {
            let wanted = |(place, fact)| self.selection.event(fact).map(|event| (place, event));
            if let Some((place, event)) = batch.after(self.cursor).find_map(wanted) {
                self.cursor = place;
                if self.installation == 0 {
                    self.installation = self.reader.installation();
                }
                return Some((place, CloudEvent::new(self.installation, self.cell, place, batch.at, &event)));
            }
            self.cursor = crate::feed::end_of_record(batch.offset).max(self.cursor);
            self.pending.pop_front();
        }
        None
    }
}

async fn page(mut pull: Pull, limit: usize) -> Result<Response, ApiError> {
    let (mut events, mut pieces, mut more) = (Vec::new(), 0, true);
    while events.len() < limit {
        if let Some((_, event)) = pull.ready() {
            events.push(event);
        } else if pieces == PAGE_PIECES_MAX {
            break;
        } else {
            pieces += 1;
            let batches = pull.reader.next().await?;
            if batches.is_empty() && pull.reader.caught_up() {
                more = false;
                break;
            }
            pull.pending.extend(batches);
        }
    }
    if pull.pending.is_empty() {
        // What was read held nothing that is wanted: the next page begins behind it.
        pull.cursor = pull.cursor.max(pull.reader.cursor());
    }
    let cursor = event_cursor(pull.cursor);
    Ok(Json(EventPage { events, next_cursor: more.then(|| cursor.clone()), cursor }).into_response())
}

fn streams_place(app: &App) -> Result<OwnedSemaphorePermit, ApiError> {
    app.streams.clone().try_acquire_owned().map_err(|_| {
        ApiError::new(
            Kind::Overloaded,
            format!("{} event streams are open, the most there may be; try again later", app.limits.streams_max),
        )
    })
}

fn stream(app: &Arc<App>, pull: Pull, place: OwnedSemaphorePermit) -> Response {
    // The client knows its place from the first moment on, even if it is cut off before the first event.
    let hello = Event::default().id(event_cursor(pull.cursor)).retry(RECONNECT_PAUSE).comment("connected");
    let progress = pull.selection.progress_of().cloned().map(|job| ProgressTail::new(app, job));
    let subscription = Subscription {
        pull,
        progress,
        bell: app.model.subscribe(),
        stop: app.stop.clone(),
        first: Some(hello),
        ended: false,
        _place: place,
    };
    // The answer's body is made after the request was let through: what the log says of it belongs to the request all the same.
    let request = tracing::Span::current();
    let events = futures::stream::unfold(subscription, move |mut subscription| {
        let next = async {
            let event = subscription.next().await?;
            Some((Ok::<_, Infallible>(event), subscription))
        };
        next.instrument(request.clone())
    });
    let heartbeat = KeepAlive::new().interval(app.limits.heartbeat).text("heartbeat");
    let headers = [(header::CACHE_CONTROL, "no-cache"), (header::HeaderName::from_static("x-accel-buffering"), "no")];
    (StatusCode::OK, headers, Sse::new(events).keep_alive(heartbeat)).into_response()
}

/// One open stream.
struct Subscription {
    pull: Pull,
    progress: Option<ProgressTail>,
    bell: watch::Receiver<Progress>,
    stop: CancellationToken,
    first: Option<Event>,
    ended: bool,
    _place: OwnedSemaphorePermit,
}

impl Subscription {
    /// The next event; waits for it. `None` after the last one.
    async fn next(&mut self) -> Option<Event> {
        if let Some(hello) = self.first.take() {
            return Some(hello);
        }
        while !self.ended {
            if let Some((place, event)) = self.pull.ready() {
                return Some(shown(place, &event));
            }
            match self.fill().await {
                Ok(None) => {}
                Ok(Some(progress)) => return Some(progress),
                Err(last_comment) => {
                    self.ended = true;
                    return Some(Event::default().comment(last_comment));
                }
            }
        }
        None
    }

    /// Reads on, or waits until there is more; meanwhile there may be progress to tell of. The error is what the client is told before the end.
    async fn fill(&mut self) -> Result<Option<Event>, &'static str> {
        self.bell.borrow_and_update();
        let batches = tokio::select! {
            () = self.stop.cancelled() => return Err("the service stops; reconnect with Last-Event-ID"),
            read = self.pull.reader.next() => read.map_err(|error| {
                tracing::warn!(%error, "an event stream ends");
                "events cannot be read on; reconnect with Last-Event-ID"
            })?,
        };
        if !batches.is_empty() || !self.pull.reader.caught_up() {
            self.pull.pending.extend(batches);
            return Ok(None);
        }
        let progress = async {
            match &mut self.progress {
                Some(tail) => tail.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.stop.cancelled() => Err("the service stops; reconnect with Last-Event-ID"),
            rung = self.bell.changed() => match (rung, *self.bell.borrow()) {
                (Ok(()), Progress::Stopped) | (Err(_), _) => Err("the service has stopped following its log; reconnect with Last-Event-ID"),
                (Ok(()), _) => Ok(None),
            },
            event = progress => Ok(Some(event)),
        }
    }
}

/// What a job's leader last said, told when it is new. No event of the log: it has no `id`, so a client that comes back resumes at an event.
struct ProgressTail {
    job: JobId,
    app: Arc<App>,
    clock: Interval,
    /// Where the job was when this was told last; an event's id says it.
    last: Option<(Generation, Step)>,
}

impl ProgressTail {
    /// What was said before a stream began is no news on it: the job may have ended long ago.
    fn new(app: &Arc<App>, job: JobId) -> Self {
        let last = (app.telemetry)(&job).map(|said| (said.generation, said.step));
        Self { job, app: app.clone(), clock: interval(PROGRESS_INTERVAL), last }
    }

    async fn next(&mut self) -> Event {
        loop {
            self.clock.tick().await;
            let now = (self.app.telemetry)(&self.job).filter(|now| self.last != Some((now.generation, now.step)));
            if let Some(now) = now {
                let installation = self.app.read().installation();
                let progress = convert::job_progress(&now);
                let event = CloudEvent::progress(installation, self.app.cell, now.generation, wall_clock(), &progress);
                self.last = Some((now.generation, now.step));
                return Event::default().event(&event.kind).data(serde_json::to_string(&event).unwrap_or_default());
            }
        }
    }
}

fn shown(place: FactPosition, event: &CloudEvent) -> Event {
    // JSON has no raw line breaks, so the data is one line.
    let data = serde_json::to_string(event).unwrap_or_default();
    Event::default().id(event_cursor(place)).event(&event.kind).data(data)
}
