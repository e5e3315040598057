//! What a job's executors said: which logs there are, and their bytes from any place on. Read from the store, where the agents put it within
//! seconds; who follows asks again, so nothing here is held for anybody.

use super::jobs::ensure_known;
use super::{Id, Shared};
use crate::listing::Listing;
use crate::problem::{ApiError, Kind};
use crate::query::{Query, number};
use axum::Json;
use axum::extract::{Path, RawQuery, State};
use axum::response::{IntoResponse, Response};
use events_public::rfc3339;
use events_schema::{ExecutorId, IdError, JobId, TimeMs};
use gateway_api::{Log, Logs};
use std::time::UNIX_EPOCH;
use storage::logs::{LOG_CHUNK_BYTES, LogPiece, LogPieces, pieces_of_executor, pieces_of_job, read_piece};
use storage::retry::StoreFault;

/// Pieces (256 KiB each) in one answer.
const PIECES_PER_ANSWER: usize = 4;
/// The place of the first byte of an answer; later than asked for if what was there is gone.
const FROM: &str = gateway_api::headers::LOG_FROM;
/// The place behind its last byte: where to go on.
const NEXT: &str = gateway_api::headers::LOG_NEXT;

/// `GET /v1/jobs/{id}/logs`.
pub async fn list(State(app): Shared, Id(job): Id<JobId>, RawQuery(raw): RawQuery) -> Result<Json<Logs>, ApiError> {
    let query = Query::parse(raw.as_deref(), &["limit", "cursor", "executor", "changed_since"])?;
    let listing = Listing::<u32>::parse(&query, "logs")?;
    let executor = query.get("executor", "the number of an executor", number::<u32>)?;
    let since = query.get("changed_since", "a time such as 2026-02-02T02:40:00Z", time)?;
    ensure_known(&app, &job).await?;
    // Of one executor all is found, also where a job had more of them than are listed.
    let found = match executor {
        Some(number) => {
            let pieces = pieces_of_executor(&app.store, &ExecutorId { job: job.clone(), number }).await;
            pieces.map(|pieces| LogPieces { pieces, incomplete: false })
        }
        None => pieces_of_job(&app.store, &job).await,
    };
    let found = found.map_err(|fault| store_away(&fault))?;
    let of_one = found.pieces.chunk_by(|a, b| a.executor == b.executor);
    let is_wanted =
        |pieces: &&[LogPiece]| pieces.last().is_some_and(|last| since.is_none_or(|since| last.written_at >= since));
    let (page, next_cursor) = listing.page(of_one.filter(is_wanted).filter_map(log).map(|log| (log.number, log)));
    let logs = page.into_iter().map(|(_, log)| log).collect();
    Ok(Json(Logs { logs, next_cursor, incomplete: found.incomplete }))
}

/// A time as events say it.
fn time(text: &str) -> Option<TimeMs> {
    let since = humantime::parse_rfc3339(text).ok()?.duration_since(UNIX_EPOCH).ok()?;
    u64::try_from(since.as_millis()).ok().map(TimeMs)
}

fn log(pieces: &[LogPiece]) -> Option<Log> {
    let (first, last) = (pieces.first()?, pieces.last()?);
    Some(Log {
        executor: first.executor.to_string(),
        number: first.executor.number,
        from: place(first.chunk),
        to: place(last.chunk).saturating_add(last.bytes),
        changed_at: rfc3339(last.written_at),
    })
}

/// Where a piece begins in its executor's log.
fn place(chunk: u64) -> u64 {
    chunk.saturating_mul(LOG_CHUNK_BYTES as u64)
}

/// `GET /v1/jobs/{id}/logs/{number}?from=`: plain text.
pub async fn read(
    State(app): Shared,
    Path((job, executor)): Path<(String, String)>,
    RawQuery(raw): RawQuery,
) -> Result<Response, ApiError> {
    let query = Query::parse(raw.as_deref(), &["from"])?;
    let from = query.get("from", "a place in the log: 0, or an answer's `ebb-log-next`", number)?.unwrap_or(0);
    let wrong = |error: IdError| ApiError::of_field(Kind::InvalidId, error.kind, &error.value, error.expected);
    let job: JobId = job.parse().map_err(wrong)?;
    let number: u32 = number(&executor).ok_or_else(|| {
        ApiError::of_field(Kind::InvalidId, "executor", &executor, "the number of one of the job's executors, from 0")
    })?;
    ensure_known(&app, &job).await?;
    let executor = ExecutorId { job, number };
    let own = pieces_of_executor(&app.store, &executor).await.map_err(|fault| store_away(&fault))?;
    if own.is_empty() {
        let expected = format!("an executor whose log is kept; GET /v1/jobs/{}/logs lists them", executor.job);
        return Err(ApiError::of_field(Kind::UnknownLog, "executor", &number.to_string(), expected));
    }
    let (mut begins, mut next, mut text, mut read) = (None, from, Vec::new(), 0);
    for piece in own {
        let behind = place(piece.chunk).saturating_add(piece.bytes) <= from;
        // A gap in what is kept begins another answer, so that places stay true.
        let gap = begins.is_some() && place(piece.chunk) != next;
        if behind {
            continue;
        }
        if gap || read == PIECES_PER_ANSWER {
            break;
        }
        let found = read_piece(&app.store, &executor, piece.chunk).await.map_err(|fault| store_away(&fault))?;
        let Some(bytes) = found else { continue };
        let start = from.max(place(piece.chunk));
        let skipped = usize::try_from(start - place(piece.chunk)).unwrap_or(usize::MAX).min(bytes.len());
        begins.get_or_insert(start);
        text.extend_from_slice(&bytes[skipped..]);
        next = start + (bytes.len() - skipped) as u64;
        read += 1;
    }
    let headers = [
        ("content-type", "text/plain; charset=utf-8".to_owned()),
        (FROM, begins.unwrap_or(next).to_string()),
        (NEXT, next.to_string()),
        ("cache-control", "no-store".to_owned()),
    ];
    Ok((headers, text).into_response())
}

fn store_away(fault: &StoreFault) -> ApiError {
    tracing::warn!(error = %fault, "what executors said cannot be read");
    ApiError::new(
        Kind::StoreUnavailable,
        "what executors said cannot be read from the store now; try again in a moment",
    )
}
