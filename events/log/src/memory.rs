//! The log in memory: for tests and simulations. Durable for as long as the value lives, and no longer.

use crate::tail::{Look, Tails};
use crate::{AppendError, BoxFuture, EventLog, RECORD_LEN_MAX, ReadError, Record, Stream};
use bytes::Bytes;
use events_schema::{Cell, Offset};

/// A log that is gone when it is dropped. Share it with an `Arc` to restart everything around it.
#[derive(Debug)]
pub struct MemoryLog {
    tails: Tails,
}

impl MemoryLog {
    /// An empty log.
    #[must_use]
    pub fn new() -> Self {
        Self { tails: Tails::new(usize::MAX) }
    }
}

impl Default for MemoryLog {
    fn default() -> Self {
        Self::new()
    }
}

impl EventLog for MemoryLog {
    fn append(&self, stream: Stream, cell: Cell, record: Vec<u8>) -> BoxFuture<'_, Result<Offset, AppendError>> {
        Box::pin(async move {
            if record.len() > RECORD_LEN_MAX {
                return Err(AppendError::TooLarge { bytes: record.len(), bytes_max: RECORD_LEN_MAX });
            }
            Ok(self.tails.of(stream, cell).append(Bytes::from(record)))
        })
    }

    fn read(
        &self,
        stream: Stream,
        cell: Cell,
        from: Offset,
        bytes_max: usize,
    ) -> BoxFuture<'_, Result<Vec<Record>, ReadError>> {
        Box::pin(async move {
            let tail = self.tails.of(stream, cell);
            match tail.look(from, bytes_max) {
                Look::Here(records) => Ok(records),
                Look::Older => Err(ReadError::Trimmed { from, first: tail.covers_from() }),
            }
        })
    }

    fn end(&self, stream: Stream, cell: Cell) -> BoxFuture<'_, Result<Offset, ReadError>> {
        Box::pin(async move { Ok(self.tails.of(stream, cell).end()) })
    }

    fn wait(&self, stream: Stream, cell: Cell, from: Offset) -> BoxFuture<'_, Result<(), ReadError>> {
        Box::pin(async move { self.tails.of(stream, cell).wait(from).await })
    }

    fn trim(&self, stream: Stream, cell: Cell, below: Offset) -> BoxFuture<'_, Result<(), AppendError>> {
        Box::pin(async move {
            self.tails.of(stream, cell).trim(below);
            Ok(())
        })
    }
}
