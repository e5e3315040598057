//! What executors said, in pieces in the store: their agents write them, the gateway reads them. Which piece is written when, the agent
//! decides (`workers/agent-core/src/log_chunks.rs`); here are only reads and writes.

use crate::keys::{self, ObjectOfJob};
use crate::object::{Object, WholeError};
use crate::retry::StoreFault;
use bytes::Bytes;
use events_schema::{ExecutorId, JobId, TimeMs};
use futures::StreamExt;
use object_store::ObjectStore;
use object_store::path::Path;
use std::sync::Arc;

pub use crate::keys::LOG_CHUNK_BYTES;

/// Pieces looked at for one job: 256 executors with 32 each, which is all that is kept of one. More are not told of.
const PIECES_MAX: usize = 8_192;

/// A piece, as a listing shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogPiece {
    /// Who said it.
    pub executor: ExecutorId,
    /// Its number.
    pub chunk: u64,
    /// Its size by now.
    pub bytes: u64,
    /// When it was last written, by the store's clock.
    pub written_at: TimeMs,
}

/// Writes a piece as it is by now.
pub async fn write_piece(
    store: &Arc<dyn ObjectStore>,
    executor: &ExecutorId,
    chunk: u64,
    bytes: Bytes,
) -> Result<(), StoreFault> {
    let object = Object::of_key(store, &keys::log_chunk(executor, chunk));
    object.put(bytes.len() as u64, || std::iter::once(bytes.clone())).await
}

/// Deletes a piece; one that is gone is deleted.
pub async fn delete_piece(store: &Arc<dyn ObjectStore>, executor: &ExecutorId, chunk: u64) -> Result<(), StoreFault> {
    Object::of_key(store, &keys::log_chunk(executor, chunk)).delete().await
}

/// What one piece holds; nothing if it was deleted meanwhile.
pub async fn read_piece(
    store: &Arc<dyn ObjectStore>,
    executor: &ExecutorId,
    chunk: u64,
) -> Result<Option<Bytes>, StoreFault> {
    match Object::of_key(store, &keys::log_chunk(executor, chunk)).whole(LOG_CHUNK_BYTES as u64).await {
        Ok(bytes) => Ok(Some(bytes)),
        Err(WholeError::Fault(StoreFault::Missing { .. })) => Ok(None),
        // Nobody here writes such a piece.
        Err(WholeError::TooLarge { .. }) => Ok(None),
        Err(WholeError::Fault(fault)) => Err(fault),
    }
}

/// The pieces of a job's executors, by executor and number.
pub async fn pieces_of_job(store: &Arc<dyn ObjectStore>, job: &JobId) -> Result<Vec<LogPiece>, StoreFault> {
    let folder = keys::logs(job);
    let mut listed = store.list(Some(&Path::from(folder.as_str())));
    let mut pieces = Vec::new();
    while pieces.len() < PIECES_MAX
        && let Some(object) = listed.next().await
    {
        let object = object.map_err(|error| StoreFault::of(&folder, error))?;
        if let Some(ObjectOfJob::Log(executor, chunk)) = ObjectOfJob::parse(object.location.as_ref()) {
            let written_at = TimeMs(u64::try_from(object.last_modified.timestamp_millis()).unwrap_or(0));
            pieces.push(LogPiece { executor, chunk, bytes: object.size, written_at });
        }
    }
    pieces.sort_by(|a, b| (&a.executor, a.chunk).cmp(&(&b.executor, b.chunk)));
    Ok(pieces)
}
