//! A log without some records of `events` that cannot be read: for a person who knows that no ebb wrote them, so that one stray record
//! does not end a cell for good. Nothing is removed, and what can be read is never passed over, whatever number is given.

use crate::{AppendError, BoxFuture, EventLog, FleetTopics, PublicTopic, ReadError, Record, Stream};
use events_rule::count::read_event;
use events_schema::{Cell, Offset};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The same log without these records, as far as they cannot be read. Readers know gaps: on Kafka not every offset is a record's.
#[must_use]
pub fn passing_over(log: Arc<dyn EventLog>, offsets: BTreeSet<Offset>) -> Arc<dyn EventLog> {
    if offsets.is_empty() {
        return log;
    }
    tracing::warn!(?offsets, "records of `events` are passed over if they cannot be read; facts in them are lost");
    Arc::new(PassingOver { log, offsets })
}

struct PassingOver {
    log: Arc<dyn EventLog>,
    offsets: BTreeSet<Offset>,
}

impl PassingOver {
    fn passes_over(&self, stream: Stream, record: &Record) -> bool {
        stream == Stream::Events && self.offsets.contains(&record.offset) && read_event(record).is_err()
    }
}

impl EventLog for PassingOver {
    fn append(&self, stream: Stream, cell: Cell, record: Vec<u8>) -> BoxFuture<'_, Result<Offset, AppendError>> {
        self.log.append(stream, cell, record)
    }

    fn read(
        &self,
        stream: Stream,
        cell: Cell,
        mut from: Offset,
        bytes_max: usize,
    ) -> BoxFuture<'_, Result<Vec<Record>, ReadError>> {
        Box::pin(async move {
            loop {
                let mut records = self.log.read(stream, cell, from, bytes_max).await?;
                let Some(last) = records.last().map(|record| record.offset) else { return Ok(records) };
                records.retain(|record| !self.passes_over(stream, record));
                if !records.is_empty() {
                    return Ok(records);
                }
                // An empty answer would say that nothing stands behind it either.
                from = last.next();
            }
        })
    }

    fn end(&self, stream: Stream, cell: Cell) -> BoxFuture<'_, Result<Offset, ReadError>> {
        self.log.end(stream, cell)
    }

    fn wait(&self, stream: Stream, cell: Cell, mut from: Offset) -> BoxFuture<'_, Result<(), ReadError>> {
        Box::pin(async move {
            loop {
                self.log.wait(stream, cell, from).await?;
                if stream != Stream::Events || !self.offsets.contains(&from) {
                    return Ok(());
                }
                match self.log.read(stream, cell, from, 1).await?.first() {
                    Some(record) if self.passes_over(stream, record) => from = record.offset.next(),
                    _ => return Ok(()),
                }
            }
        })
    }

    fn public(&self) -> Option<Arc<dyn PublicTopic>> {
        self.log.public()
    }

    fn fleet_topics(&self, prefix: &str, cell: Cell) -> Option<Arc<dyn FleetTopics>> {
        self.log.fleet_topics(prefix, cell)
    }

    fn trim(&self, stream: Stream, cell: Cell, below: Offset) -> BoxFuture<'_, Result<(), AppendError>> {
        self.log.trim(stream, cell, below)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::MemoryLog;
    use events_schema::batch::{EventRecord, to_bytes};
    use futures::FutureExt;

    const CELL: Cell = Cell(0);

    #[tokio::test]
    async fn only_what_cannot_be_read_is_passed_over() {
        let inner = Arc::new(MemoryLog::new());
        let claim = to_bytes(&EventRecord::Claim { controller: "a".to_owned(), incarnation: 7 });
        let stray = vec![9; 9];
        for record in [&claim, &stray, &claim, &stray] {
            inner.append(Stream::Events, CELL, record.clone()).await.unwrap();
        }
        inner.append(Stream::Commands, CELL, stray.clone()).await.unwrap();
        let log = passing_over(inner.clone(), [0, 1, 3].map(Offset).into());
        let offsets = async |stream, from, bytes_max| -> Vec<u64> {
            let records = log.read(stream, CELL, Offset(from), bytes_max).await.unwrap();
            records.iter().map(|record| record.offset.0).collect()
        };
        assert_eq!(offsets(Stream::Events, 0, 1_000).await, [0, 2], "a claim is none of them, whatever was said");
        assert_eq!(offsets(Stream::Events, 1, 1).await, [2], "a piece that holds nothing else is not the end");
        assert_eq!(offsets(Stream::Events, 3, 1).await, [] as [u64; 0]);
        assert_eq!(offsets(Stream::Commands, 0, 1).await, [0], "inputs are set aside by name anyway");
        assert!(log.wait(Stream::Events, CELL, Offset(3)).now_or_never().is_none(), "nothing to be read stands there");
        inner.append(Stream::Events, CELL, claim).await.unwrap();
        log.wait(Stream::Events, CELL, Offset(3)).await.unwrap();
        assert_eq!(offsets(Stream::Events, 3, 1).await, [4]);
    }
}
