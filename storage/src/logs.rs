//! What executors said, in pieces in the store: their agents write them, the gateway reads them. Which piece is written when, the agent
//! decides (`workers/agent-core/src/log_chunks.rs`); here are only reads and writes.

use crate::keys::{self, ObjectOfJob};
use crate::object::{Object, WholeError};
use crate::retry::StoreFault;
use bytes::Bytes;
use events_schema::{ExecutorId, JobId, TimeMs};
use futures::future::ready;
use futures::{Stream, StreamExt, TryStreamExt};
use object_store::ObjectStore;
use object_store::path::Path;
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;

pub use crate::keys::LOG_CHUNK_BYTES;

/// Pieces told of for one job: of 256 executors with all that is kept of one, which are 32.
const PIECES_MAX: usize = 8_192;
/// Objects looked at for them: 64 requests to an S3 store, some seconds.
const LISTED_MAX: usize = 64_000;

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

/// The pieces of a job's executors.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LogPieces {
    /// By executor and number.
    pub pieces: Vec<LogPiece>,
    /// Whether there are more executors than are told of. The newest are told of, in a store that lists in order.
    pub incomplete: bool,
}

/// The pieces of a job's executors: all of each, and of the newest executors if there are too many.
pub async fn pieces_of_job(store: &Arc<dyn ObjectStore>, job: &JobId) -> Result<LogPieces, StoreFault> {
    newest(store, job, PIECES_MAX).await
}

async fn newest(store: &Arc<dyn ObjectStore>, job: &JobId, pieces_max: usize) -> Result<LogPieces, StoreFault> {
    let folder = keys::logs(job);
    let mut listed = pin!(list(store, &folder));
    let (mut pieces, mut told_from, mut looked_at): (BTreeMap<(u32, u64), LogPiece>, u32, usize) = Default::default();
    while let Some(piece) = listed.next().await {
        let piece = piece?;
        looked_at += 1;
        if looked_at > LISTED_MAX {
            return Ok(LogPieces { pieces: pieces.into_values().collect(), incomplete: true });
        }
        if piece.executor.number >= told_from {
            pieces.insert((piece.executor.number, piece.chunk), piece);
        }
        if pieces.len() > pieces_max
            && let Some(((oldest, _), _)) = pieces.first_key_value()
        {
            told_from = oldest.saturating_add(1);
            pieces = pieces.split_off(&(told_from, 0));
        }
    }
    Ok(LogPieces { pieces: pieces.into_values().collect(), incomplete: told_from > 0 })
}

/// The pieces of one executor, by number; their agent keeps few.
pub async fn pieces_of_executor(
    store: &Arc<dyn ObjectStore>,
    executor: &ExecutorId,
) -> Result<Vec<LogPiece>, StoreFault> {
    let folder = keys::log(executor);
    let mut pieces: Vec<LogPiece> = list(store, &folder).take(PIECES_MAX).try_collect().await?;
    pieces.sort_by_key(|piece| piece.chunk);
    Ok(pieces)
}

fn list(store: &Arc<dyn ObjectStore>, folder: &str) -> impl Stream<Item = Result<LogPiece, StoreFault>> {
    let folder = folder.to_owned();
    store.list(Some(&Path::from(folder.as_str()))).filter_map(move |object| {
        let piece = object.map_err(|error| StoreFault::of(&folder, error)).map(|object| {
            let ObjectOfJob::Log(executor, chunk) = ObjectOfJob::parse(object.location.as_ref())? else { return None };
            let written_at = TimeMs(u64::try_from(object.last_modified.timestamp_millis()).unwrap_or(0));
            Some(LogPiece { executor, chunk, bytes: object.size, written_at })
        });
        ready(piece.transpose())
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use object_store::memory::InMemory;

    /// The list was cut before it was sorted, and reading one log cost a list of all.
    #[tokio::test]
    async fn of_too_many_executors_the_newest_are_told_of_and_each_can_be_read() {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let job = JobId::parse("job-a").unwrap();
        let executor = |number| ExecutorId { job: job.clone(), number };
        for (number, chunks) in [(9, 2), (2, 3), (10, 2), (1, 1)] {
            for chunk in 0..chunks {
                write_piece(&store, &executor(number), chunk, Bytes::from_static(b"said")).await.unwrap();
            }
        }
        let told = |found: &LogPieces| -> Vec<(u32, u64)> {
            found.pieces.iter().map(|piece| (piece.executor.number, piece.chunk)).collect()
        };
        let all = pieces_of_job(&store, &job).await.unwrap();
        assert_eq!(
            (told(&all), all.incomplete),
            (vec![(1, 0), (2, 0), (2, 1), (2, 2), (9, 0), (9, 1), (10, 0), (10, 1)], false)
        );
        let some = newest(&store, &job, 5).await.unwrap();
        assert_eq!((told(&some), some.incomplete), (vec![(9, 0), (9, 1), (10, 0), (10, 1)], true));
        let chunks: Vec<u64> =
            pieces_of_executor(&store, &executor(2)).await.unwrap().iter().map(|piece| piece.chunk).collect();
        assert_eq!(chunks, [0, 1, 2]);
        assert_eq!(pieces_of_executor(&store, &executor(3)).await.unwrap(), []);
    }
}
