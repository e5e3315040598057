//! Jobs: submit, look, list, cancel, suspend, resume, checkpoints, model.
//!
//! Next on a job's path: `events/schema/src/job.rs`.

use super::code::ensure_uploaded;
use super::initial;
use super::{Id, NoQuery, Shared, decided, tagged, undecided};
use crate::app::App;
use crate::body::Document;
use crate::conditions::{ensure_unchanged, has_already};
use crate::convert::{self, Look};
use crate::identity::IdempotencyKey;
use crate::listing::Listing;
use crate::problem::{ApiError, Kind, Target, refused, unknown};
use crate::query::{Query, job_cursor, number, parse_job_cursor};
use crate::ranges::{self, Wanted};
use crate::read_model::Model;
use crate::rehearsal;
use crate::submit::{self, Submitted};
use axum::Json;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use controller_core::state::Job;
use events_schema::command::Command;
use events_schema::fact::Refusal;
use events_schema::fields::nearest;
use events_schema::job::JobSpec;
use events_schema::orders::Telemetry;
use events_schema::{DatasetName, JobId, TenantId};
use gateway_api as api;
use gateway_api::headers::IDEMPOTENCY_KEY;
use gateway_api::{JobPhase, paths};
use object_store::path::Path as StorePath;
use object_store::{GetOptions, GetRange, ObjectStoreExt};
use shell::wall_clock;
use storage::retry::StoreFault;

/// Longest beginning of an id; no id is longer.
const PREFIX_LEN_MAX: usize = 63;

/// `POST /v1/jobs`; with `?dry_run=true` it says what that would come to, and changes nothing.
pub async fn submit(
    State(app): Shared,
    RawQuery(raw): RawQuery,
    headers: HeaderMap,
    body: Document,
) -> Result<Response, ApiError> {
    let query = Query::parse(raw.as_deref(), &["dry_run"])?;
    let dry_run = query.get("dry_run", "true or false", |text| text.parse::<bool>().ok())?;
    let key = idempotency_key(&headers)?;
    let spec = JobSpec::parse(&body.value)?;
    spec.ensure_fit()?;
    ensure_uploaded(&app, &spec).await?;
    initial::ensure_there(&app, &spec).await?;
    if dry_run == Some(true) {
        let shown = api::JobSpec::from(&spec);
        let known = rehearsal::of_submit(&app, key.as_ref(), spec, body.digest).await?;
        return Ok(
            Json(api::DryRun { dry_run: true, known: known.map(|job| job.to_string()), spec: shown }).into_response()
        );
    }
    match submit::job(&app, key.as_ref(), spec, body.digest).await? {
        Submitted::Created(job) => answer(&app, &job, StatusCode::CREATED),
        Submitted::Known(job) => answer(&app, &job, StatusCode::OK),
        Submitted::Undecided(job, command) => Ok(undecided(job.as_str(), command, &path(&job))),
    }
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<IdempotencyKey>, ApiError> {
    const NAME: &str = "Idempotency-Key";
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let wrong = |expected: &str| {
        ApiError::of_field(Kind::InvalidHeader, NAME, &String::from_utf8_lossy(value.as_bytes()), expected)
    };
    if values.next().is_some() {
        return Err(wrong("a header that stands once"));
    }
    IdempotencyKey::parse(value.as_bytes()).map(Some).ok_or_else(|| wrong(IdempotencyKey::RULE))
}

/// `GET /v1/jobs`.
pub async fn list(State(app): Shared, RawQuery(raw): RawQuery) -> Result<Json<api::JobPage>, ApiError> {
    let query = Query::parse(raw.as_deref(), &["limit", "cursor", "phase", "prefix", "name", "dataset", "tenant"])?;
    let limit = query.limit()?;
    let before = query.get("cursor", "a `next_cursor` of an earlier page, unchanged", parse_job_cursor)?;
    let phases: Vec<&str> = JobPhase::ALL.iter().map(|phase| phase.as_str()).collect();
    let phase = query.get("phase", &format!("one of {}", phases.join(", ")), JobPhase::parse)?;
    let prefix = query.get("prefix", "the first characters of an id, for example `job-a`", |text| {
        (1..=PREFIX_LEN_MAX).contains(&text.len()).then(|| text.to_owned())
    })?;
    let name = query.get("name", "the name of a job, of 1 to 63 characters", |text| {
        (1..=PREFIX_LEN_MAX).contains(&text.chars().count()).then(|| text.to_owned())
    })?;
    let dataset = query.get("dataset", "the name of a dataset", |text| text.parse::<DatasetName>().ok())?;
    let tenant = query.get("tenant", "the name of a tenant", |text| text.parse::<TenantId>().ok())?;
    let model = app.read();
    let jobs = model
        .job_index
        .newest_before(before)
        .filter_map(|(place, id)| model.state().job(id).map(|job| (place, id, job)));
    let begins = |id: &JobId| prefix.as_ref().is_none_or(|prefix| id.as_str().starts_with(prefix.as_str()));
    let is_wanted = |id: &JobId, job: &Job| {
        begins(id)
            && phase.is_none_or(|phase| convert::phase(&job.phase) == phase)
            && name.as_ref().is_none_or(|name| job.spec.name == *name)
            && dataset.as_ref().is_none_or(|dataset| job.spec.dataset.as_ref() == Some(dataset))
            && tenant.as_ref().is_none_or(|tenant| job.tenant() == tenant)
    };
    let mut wanted = jobs.filter(|(_, id, job)| is_wanted(id, job)).peekable();
    let mut page = api::JobPage { jobs: Vec::new(), next_cursor: None };
    let look = Look::at(model.state(), &model.usages, wall_clock());
    while let Some((place, id, job)) = wanted.next() {
        page.jobs.push(convert::job(id, job, &look, (app.telemetry)(id)));
        if page.jobs.len() == limit {
            page.next_cursor = wanted.peek().map(|_| job_cursor(place));
            break;
        }
    }
    Ok(Json(page))
}

/// `GET /v1/jobs/{id}`, with an ETag that changes with everything but running numbers, and is weak therefore.
pub async fn get(State(app): Shared, Id(job): Id<JobId>, _: NoQuery, headers: HeaderMap) -> Result<Response, ApiError> {
    ensure_known(&app, &job).await?;
    let (tag, shown) = convert::tagged(show(&app, &job)?);
    Ok(tagged(&headers, tag, shown))
}

/// `DELETE /v1/jobs/{id}`.
pub async fn cancel(
    State(app): Shared,
    Id(job): Id<JobId>,
    _: NoQuery,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    ask(&app, &job, &headers, Command::CancelJob { job: job.clone() }).await
}

/// `POST /v1/jobs/{id}/suspend`.
pub async fn suspend(
    State(app): Shared,
    Id(job): Id<JobId>,
    _: NoQuery,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    ask(&app, &job, &headers, Command::SuspendJob { job: job.clone() }).await
}

/// `POST /v1/jobs/{id}/resume`.
pub async fn resume(
    State(app): Shared,
    Id(job): Id<JobId>,
    _: NoQuery,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    ask(&app, &job, &headers, Command::ResumeJob { job: job.clone() }).await
}

async fn ask(app: &App, job: &JobId, headers: &HeaderMap, command: Command) -> Result<Response, ApiError> {
    let unchanged = |model: &Model| ensure_unchanged(headers, Some(&convert::tagged(shown(model, job, None)?).0));
    let decision = match headers.contains_key(header::IF_MATCH) {
        true => submit::command_if(app, command, unchanged).await?,
        false => submit::command(app, command).await?,
    };
    let target = Target { kind: "job", name: job.as_str() };
    decided(decision, target, &path(job), || answer(app, job, StatusCode::OK))
}

/// `GET /v1/jobs/{id}/checkpoints`.
pub async fn checkpoints(
    State(app): Shared,
    Id(job): Id<JobId>,
    RawQuery(raw): RawQuery,
) -> Result<Json<api::Checkpoints>, ApiError> {
    let query = Query::parse(raw.as_deref(), &["limit", "cursor", "from_step", "to_step", "newest"])?;
    let listing = Listing::parse(&query, "checkpoints")?;
    let steps = query.stretch("from_step", "to_step")?;
    let newest =
        query.get("newest", "how many of the newest: a whole number from 1", |text| number(text).filter(|n| *n > 0))?;
    ensure_known(&app, &job).await?;
    let model = app.read();
    // In the order of steps, and of those who wrote them at one step.
    let mut all: Vec<(u128, api::Checkpoint)> = model
        .state()
        .job(&job)
        .into_iter()
        .flat_map(|job| &job.checkpoints)
        .map(convert::checkpoint)
        .filter(|shown| steps.contains(&shown.step))
        .map(keyed)
        .collect();
    all.sort_by_key(|(key, _)| *key);
    let older = all.len().saturating_sub(newest.unwrap_or(usize::MAX));
    let (page, next_cursor) = listing.page(all.into_iter().skip(older));
    Ok(Json(api::Checkpoints { checkpoints: page.into_iter().map(|(_, shown)| shown).collect(), next_cursor }))
}

/// A checkpoint with its place in the list.
fn keyed(shown: api::Checkpoint) -> (u128, api::Checkpoint) {
    ((u128::from(shown.step) << 64) | u128::from(shown.generation), shown)
}

/// `GET /v1/jobs/{id}/model`: one safetensors file, or a part of it, streamed from the store.
pub async fn model(
    State(app): Shared,
    Id(job): Id<JobId>,
    _: NoQuery,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let outcome = outcome(&app, &job).await?;
    let etag = format!("\"{}\"", outcome.model_digest);
    if has_already(&headers, &etag) {
        return Ok((StatusCode::NOT_MODIFIED, [(header::ETAG, etag)]).into_response());
    }
    // Not what the outcome says: whatever an earlier build took from a report, a job's model is in one place.
    let key = storage::keys::model(&job);
    let path = StorePath::from(key.as_str());
    let unreadable = |error: object_store::Error| model_unreadable(&key, error);
    if method == Method::HEAD {
        // A range means something to GET alone (RFC 9110 §14.2).
        let size = app.store.head(&path).await.map_err(unreadable)?.size;
        return Ok((model_headers(&job, etag, size), Body::empty()).into_response());
    }
    let wanted = match headers.contains_key(header::RANGE) {
        true => ranges::wanted(&headers, &etag, app.store.head(&path).await.map_err(unreadable)?.size),
        false => Wanted::Whole,
    };
    let range = match wanted {
        Wanted::Whole => None,
        Wanted::Part(range) => Some(GetRange::Bounded(range)),
        Wanted::Beyond { size } => {
            let asked = headers.get(header::RANGE).and_then(|range| range.to_str().ok()).unwrap_or_default();
            let expected = format!("bytes of the {size} that the file has");
            return Err(ApiError::of_field(Kind::RangeBeyond, "Range", asked, expected)
                .with_header(header::CONTENT_RANGE, &format!("bytes */{size}")));
        }
    };
    let is_part = range.is_some();
    let object = app.store.get_opts(&path, GetOptions { range, ..GetOptions::default() }).await.map_err(unreadable)?;
    let (part, size) = (object.range.clone(), object.meta.size);
    let headers = model_headers(&job, etag, part.end - part.start);
    let mut response = (headers, Body::from_stream(object.into_stream())).into_response();
    if is_part {
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        let told = format!("bytes {}-{}/{size}", part.start, part.end.saturating_sub(1));
        response.headers_mut().extend(HeaderValue::from_str(&told).ok().map(|told| (header::CONTENT_RANGE, told)));
    }
    Ok(response)
}

fn model_headers(job: &JobId, etag: String, length: u64) -> [(HeaderName, String); 5] {
    [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_LENGTH, length.to_string()),
        (header::CONTENT_DISPOSITION, format!("attachment; filename=\"{job}.safetensors\"")),
        (header::ACCEPT_RANGES, "bytes".to_owned()),
        (header::ETAG, etag),
    ]
}

/// How a job ended with a model; refused as long as it has none.
pub(super) async fn outcome(app: &App, job: &JobId) -> Result<api::Outcome, ApiError> {
    ensure_known(app, job).await?;
    let shown = show(app, job)?;
    shown.outcome.ok_or_else(|| {
        let phase = shown.phase.as_str();
        let expected = model_expected(phase);
        let detail = format!("job `{job}` is {phase} and has no model; expected it to be {expected}");
        ApiError::of_field(Kind::ModelNotReady, "phase", phase, expected).saying(detail)
    })
}

/// What is told of a model that should be in the store: gone is gone, and a store that does not answer may be asked again.
pub(super) fn model_unreadable(key: &str, error: object_store::Error) -> ApiError {
    tracing::error!(%error, key, "a finished job's model cannot be read");
    match StoreFault::of(key, error) {
        StoreFault::Missing { .. } => ApiError::new(
            Kind::ModelLost,
            format!(
                "the job has finished, but its model's file `{key}` is not in the store any more; nothing here deletes it, so restore it from a backup, or train again"
            ),
        ),
        _ => ApiError::new(
            Kind::StoreUnavailable,
            "the model's file cannot be read from the store; try again, and tell the operator if that does not help",
        ),
    }
}

fn model_expected(phase: &str) -> &'static str {
    match phase {
        "failed" | "cancelled" => {
            "finished; this job ended without a model, but its checkpoints are at /v1/jobs/{id}/checkpoints"
        }
        "suspended" | "suspending" => "finished; resume the job first",
        _ => "finished; follow /v1/jobs/{id}/events until it is",
    }
}

fn path(job: &JobId) -> String {
    paths::job(job)
}

fn show(app: &App, id: &JobId) -> Result<api::Job, ApiError> {
    let telemetry = (app.telemetry)(id);
    shown(&app.read(), id, telemetry)
}

/// A job as it is known, with what its leader said last. One that was never made is told with the reason.
fn shown(model: &Model, id: &JobId, telemetry: Option<Telemetry>) -> Result<api::Job, ApiError> {
    let job = model.state().job(id).ok_or_else(|| missing(model, id))?;
    Ok(convert::job(id, job, &Look::at(model.state(), &model.usages, wall_clock()), telemetry))
}

fn answer(app: &App, id: &JobId, status: StatusCode) -> Result<Response, ApiError> {
    let (tag, job) = convert::tagged(show(app, id)?);
    let mut response = (status, [(header::ETAG, tag)], Json(job)).into_response();
    if status == StatusCode::CREATED {
        response.headers_mut().extend(HeaderValue::from_str(&path(id)).ok().map(|path| (header::LOCATION, path)));
    }
    Ok(response)
}

/// Fails with 404 if the job is unknown even to everything that is in the log now.
pub(super) async fn ensure_known(app: &App, job: &JobId) -> Result<(), ApiError> {
    if app.read().state().job(job).is_some() {
        return Ok(());
    }
    app.catch_up().await?;
    let model = app.read();
    match model.state().job(job) {
        Some(_) => Ok(()),
        None => Err(missing(&model, job)),
    }
}

/// Why there is no such job.
fn missing(model: &Model, job: &JobId) -> ApiError {
    match model.answers.refused_job(job) {
        Some(refusal) => never_made(refusal, job),
        None => not_found(model.state(), job),
    }
}

/// A job whose submit was answered before anybody had decided about it, and then refused.
fn never_made(refusal: &Refusal, job: &JobId) -> ApiError {
    let why = refused(refusal, Target { kind: "job", name: job.as_str() });
    let detail = format!(
        "job `{job}` was never made, because its submit was refused: {}; correct it and submit it again",
        why.detail
    );
    why.of_kind(Kind::UnknownJob).saying(detail)
}

fn not_found(state: &controller_core::State, job: &JobId) -> ApiError {
    let near =
        nearest(job.as_str(), state.jobs().map(|(id, _)| id.as_str()).filter(|id| shares_start(id, job.as_str())));
    unknown("job", job.as_str(), near, Target { kind: "job", name: job.as_str() })
}

/// Random ids all look alike; only one that begins the same was probably meant.
fn shares_start(known: &str, given: &str) -> bool {
    const SHARED_LEN_MIN: usize = 8;
    known.bytes().zip(given.bytes()).take_while(|(a, b)| a == b).count() >= SHARED_LEN_MIN
}
