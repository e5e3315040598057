//! A stream of a log as a whole, read from its beginning to its end.

use events_log::{EventLog, ReadError, Stream, read_range};
use events_schema::{Cell, Offset};
use std::collections::BTreeMap;

/// All records of a stream of the first cell.
pub async fn everything(log: &dyn EventLog, stream: Stream) -> BTreeMap<Offset, Vec<u8>> {
    let end = log.end(stream, Cell(0)).await.unwrap();
    let mut found = BTreeMap::new();
    read_range::<ReadError>(log, stream, Cell(0), Offset(0), end, |record| {
        found.insert(record.offset, record.bytes.to_vec());
        Ok(())
    })
    .await
    .unwrap();
    found
}
