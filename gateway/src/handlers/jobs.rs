//! Jobs: submit, look, list, cancel, suspend, resume, checkpoints, model.
//!
//! On a job's path the next file is `submit.rs`.

use super::{Id, NoQuery, Shared, decided, undecided};
use crate::app::App;
use crate::body::Document;
use crate::identity::IdempotencyKey;
use crate::problem::{ApiError, Kind, Target, refused, unknown};
use crate::query::{Query, job_cursor, parse_job_cursor};
use crate::submit::{self, Submitted};
use crate::{convert, rehearsal, wire};
use axum::Json;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use controller_core::Reasons;
use controller_core::state::Job;
use events_schema::JobId;
use events_schema::command::Command;
use events_schema::fact::Refusal;
use events_schema::fields::nearest;
use events_schema::job::JobSpec;
use object_store::{ObjectStoreExt, path::Path as StorePath};
use shell::wall_clock;

/// Phases as the API names them.
const PHASES: [&str; 8] =
    ["queued", "starting", "running", "suspending", "suspended", "finished", "failed", "cancelled"];

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
    if dry_run == Some(true) {
        let document = spec.document();
        let known = rehearsal::of_submit(&app, key.as_ref(), spec, body.digest).await?;
        return Ok(Json(wire::DryRun { dry_run: true, known, spec: document }).into_response());
    }
    match submit::job(&app, key.as_ref(), spec, body.digest).await? {
        Submitted::Created(job) => answer(&app, &job, StatusCode::CREATED),
        Submitted::Known(job) => answer(&app, &job, StatusCode::OK),
        Submitted::Undecided(job, command) => Ok(undecided(job.as_str(), command, &path(&job))),
    }
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<IdempotencyKey>, ApiError> {
    const NAME: &str = "Idempotency-Key";
    let mut values = headers.get_all(NAME).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let wrong = |expected: &str| {
        ApiError::of_field(Kind::InvalidHeader, NAME, &String::from_utf8_lossy(value.as_bytes()), expected)
    };
    if values.next().is_some() {
        return Err(wrong("a header that stands once"));
    }
    IdempotencyKey::parse(value.as_bytes()).map(Some).ok_or_else(|| wrong(IdempotencyKey::RULE))
}

/// `GET /v1/jobs?limit=&cursor=&phase=&prefix=`.
pub async fn list(State(app): Shared, RawQuery(raw): RawQuery) -> Result<Json<wire::JobPage>, ApiError> {
    let query = Query::parse(raw.as_deref(), &["limit", "cursor", "phase", "prefix"])?;
    let limit = query.limit()?;
    let before = query.get("cursor", "a `next_cursor` of an earlier page, unchanged", parse_job_cursor)?;
    let phase = query.get("phase", &format!("one of {}", PHASES.join(", ")), |text| {
        PHASES.into_iter().find(|phase| *phase == text)
    })?;
    let prefix = query.get("prefix", "the first characters of an id, for example `job-a`", |text| {
        (1..=PREFIX_LEN_MAX).contains(&text.len()).then(|| text.to_owned())
    })?;
    let model = app.read();
    let jobs = model
        .job_index
        .newest_before(before)
        .filter_map(|(place, id)| model.state().job(id).map(|job| (place, id, job)));
    let begins = |id: &JobId| prefix.as_ref().is_none_or(|prefix| id.as_str().starts_with(prefix.as_str()));
    let is_wanted = |id: &JobId, job: &Job| begins(id) && phase.is_none_or(|phase| job.phase.name() == phase);
    let mut wanted = jobs.filter(|(_, id, job)| is_wanted(id, job)).peekable();
    let mut page = wire::JobPage { jobs: Vec::new(), next_cursor: None };
    let reasons = Reasons::of(model.state(), wall_clock());
    while let Some((place, id, job)) = wanted.next() {
        page.jobs.push(convert::job(id, job, &reasons, (app.telemetry)(id)));
        if page.jobs.len() == limit {
            page.next_cursor = wanted.peek().map(|_| job_cursor(place));
            break;
        }
    }
    Ok(Json(page))
}

/// `GET /v1/jobs/{id}`, with an ETag that changes with everything but the progress, and is weak therefore.
pub async fn get(State(app): Shared, Id(job): Id<JobId>, _: NoQuery, headers: HeaderMap) -> Result<Response, ApiError> {
    ensure_known(&app, &job).await?;
    let response = answer(&app, &job, StatusCode::OK)?;
    match response.headers().get(header::ETAG) {
        Some(etag) if matches_etag(&headers, etag) => {
            Ok((StatusCode::NOT_MODIFIED, [(header::ETAG, etag.clone())]).into_response())
        }
        _ => Ok(response),
    }
}

/// `If-None-Match`: a list of tags or `*`; compared weakly, as RFC 9110 §13.1.2 wants.
fn matches_etag(headers: &HeaderMap, etag: &HeaderValue) -> bool {
    let Ok(etag) = etag.to_str() else { return false };
    let opaque = |tag: &str| tag.strip_prefix("W/").unwrap_or(tag).to_owned();
    let listed = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    listed.flat_map(|value| value.split(',')).map(str::trim).any(|tag| tag == "*" || opaque(tag) == opaque(etag))
}

/// `DELETE /v1/jobs/{id}`.
pub async fn cancel(State(app): Shared, Id(job): Id<JobId>, _: NoQuery) -> Result<Response, ApiError> {
    ask(&app, &job, Command::CancelJob { job: job.clone() }).await
}

/// `POST /v1/jobs/{id}/suspend`.
pub async fn suspend(State(app): Shared, Id(job): Id<JobId>, _: NoQuery) -> Result<Response, ApiError> {
    ask(&app, &job, Command::SuspendJob { job: job.clone() }).await
}

/// `POST /v1/jobs/{id}/resume`.
pub async fn resume(State(app): Shared, Id(job): Id<JobId>, _: NoQuery) -> Result<Response, ApiError> {
    ask(&app, &job, Command::ResumeJob { job: job.clone() }).await
}

async fn ask(app: &App, job: &JobId, command: Command) -> Result<Response, ApiError> {
    let decision = submit::command(app, command).await?;
    let target = Target { kind: "job", name: job.as_str() };
    decided(decision, target, &path(job), || answer(app, job, StatusCode::OK))
}

/// `GET /v1/jobs/{id}/checkpoints`.
pub async fn checkpoints(
    State(app): Shared,
    Id(job): Id<JobId>,
    _: NoQuery,
) -> Result<Json<wire::Checkpoints>, ApiError> {
    ensure_known(&app, &job).await?;
    let checkpoints = app.read().state().job(&job).map(|job| job.checkpoints.clone());
    Ok(Json(wire::Checkpoints { checkpoints: checkpoints.unwrap_or_default() }))
}

/// `GET /v1/jobs/{id}/model`: one safetensors file, streamed from the store.
pub async fn model(State(app): Shared, Id(job): Id<JobId>, _: NoQuery) -> Result<Response, ApiError> {
    ensure_known(&app, &job).await?;
    let shown = show(&app, &job)?;
    let Some(outcome) = shown.outcome else {
        let detail = format!(
            "job `{job}` is {} and has no model; expected it to be {}",
            shown.phase,
            model_expected(shown.phase)
        );
        return Err(
            ApiError::of_field(Kind::ModelNotReady, "phase", shown.phase, model_expected(shown.phase)).saying(detail)
        );
    };
    // Not what the outcome says: whatever an earlier build took from a report, a job's model is in one place.
    let key = storage::keys::model(&job);
    let object = app.store.get(&StorePath::from(key.as_str())).await.map_err(|error| {
        tracing::error!(%error, key, "a finished job's model cannot be read");
        ApiError::new(
            Kind::StoreUnavailable,
            "the model's file cannot be read from the store; try again, and tell the operator if that does not help",
        )
    })?;
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_LENGTH, object.meta.size.to_string()),
        (header::CONTENT_DISPOSITION, format!("attachment; filename=\"{job}.safetensors\"")),
        (header::ETAG, format!("\"{}\"", outcome.model_digest)),
    ];
    Ok((headers, Body::from_stream(object.into_stream())).into_response())
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
    format!("/v1/jobs/{job}")
}

fn show(app: &App, id: &JobId) -> Result<wire::Job, ApiError> {
    let telemetry = (app.telemetry)(id);
    let model = app.read();
    let job = model.state().job(id).ok_or_else(|| not_found(model.state(), id))?;
    Ok(convert::job(id, job, &Reasons::of(model.state(), wall_clock()), telemetry))
}

fn answer(app: &App, id: &JobId, status: StatusCode) -> Result<Response, ApiError> {
    let job = show(app, id)?;
    let mut response = (status, [(header::ETAG, convert::etag(&job))], Json(job)).into_response();
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
    match model.answers.refused_job(job) {
        _ if model.state().job(job).is_some() => Ok(()),
        Some(refusal) => Err(never_made(refusal, job)),
        None => Err(not_found(model.state(), job)),
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn if_none_match_takes_lists_weak_tags_and_stars() {
        let etag = HeaderValue::from_static("W/\"abc\"");
        let matches = |value: &'static str| {
            let headers = HeaderMap::from_iter([(header::IF_NONE_MATCH, HeaderValue::from_static(value))]);
            matches_etag(&headers, &etag)
        };
        assert!(matches("\"abc\"") && matches("\"x\", W/\"abc\"") && matches("*"));
        assert!(!matches("\"x\"") && !matches("abc") && !matches(""));
        assert!(!matches_etag(&HeaderMap::new(), &etag));
    }
}
