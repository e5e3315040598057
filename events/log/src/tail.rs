//! The newest records of one stream of one cell, in memory, and who waits for the next one.
//!
//! Every log keeps one `Tail` per stream and cell: the in-memory log has nothing else, the others fill it after the record is
//! durable, so that readers at the end neither touch a file nor a broker. It never says that a record is there before it is.

use crate::{ReadError, Record, Stream};
use events_schema::{Cell, Offset};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// Bookkeeping of a record beside its bytes, so that many empty records are bounded too.
const RECORD_OVERHEAD_BYTES: usize = 64;

/// What a tail knows about an offset.
#[derive(Debug, PartialEq)]
pub(crate) enum Look {
    /// These records; empty when `from` is at or beyond the end.
    Here(Vec<Record>),
    /// The offset is older than what is kept.
    Older,
}

#[derive(Debug)]
pub(crate) struct Tail {
    window: Mutex<Window>,
    end: watch::Sender<Offset>,
}

#[derive(Debug)]
struct Window {
    records: VecDeque<Record>,
    /// Every record at or above it is in `records`.
    covers_from: Offset,
    bytes: usize,
    bytes_max: usize,
}

impl Tail {
    /// A tail that begins, empty, at `end` and keeps about `bytes_max` bytes.
    pub(crate) fn new(end: Offset, bytes_max: usize) -> Self {
        let window = Window { records: VecDeque::new(), covers_from: end, bytes: 0, bytes_max };
        Self { window: Mutex::new(window), end: watch::Sender::new(end) }
    }

    fn window(&self) -> MutexGuard<'_, Window> {
        // Nothing in here can panic half way through a change.
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over records, which follow the end in order, and moves the end behind the last one.
    pub(crate) fn push(&self, records: impl IntoIterator<Item = Record>) {
        let mut window = self.window();
        let mut end = None;
        for record in records {
            end = Some(record.offset.next());
            window.bytes += record.bytes.len() + RECORD_OVERHEAD_BYTES;
            window.records.push_back(record);
        }
        while window.bytes > window.bytes_max {
            // The newest record is kept in any case, however long it is.
            if window.records.len() <= 1 {
                break;
            }
            window.drop_first();
        }
        drop(window);
        if let Some(end) = end {
            self.end.send_replace(end);
        }
    }

    /// Appends `bytes` at the end in one step and says where (the in-memory log's append).
    pub(crate) fn append(&self, bytes: bytes::Bytes) -> Offset {
        let mut window = self.window();
        let offset = *self.end.borrow();
        window.bytes += bytes.len() + RECORD_OVERHEAD_BYTES;
        window.records.push_back(Record { offset, bytes });
        // Under the lock, so that two appends cannot publish their ends in the wrong order.
        self.end.send_replace(offset.next());
        offset
    }

    pub(crate) fn look(&self, from: Offset, bytes_max: usize) -> Look {
        let window = self.window();
        if from < window.covers_from {
            return Look::Older;
        }
        let first = window.records.partition_point(|record| record.offset < from);
        let mut found = Vec::new();
        let mut bytes = 0;
        for record in window.records.range(first..) {
            bytes += record.bytes.len();
            if !found.is_empty() && bytes > bytes_max {
                break;
            }
            found.push(record.clone());
        }
        Look::Here(found)
    }

    pub(crate) fn end(&self) -> Offset {
        *self.end.borrow()
    }

    /// The first offset that the window can answer for.
    pub(crate) fn covers_from(&self) -> Offset {
        self.window().covers_from
    }

    /// Waits until the end is beyond `from`.
    pub(crate) async fn wait(&self, from: Offset) -> Result<(), ReadError> {
        let mut end = self.end.subscribe();
        // The sender lives as long as `self`, so this cannot fail while we are borrowed.
        end.wait_for(|end| *end > from).await.map(|_| ()).map_err(|_| ReadError::Closed)
    }

    /// Forgets records below an offset.
    pub(crate) fn trim(&self, below: Offset) {
        let mut window = self.window();
        while window.records.front().is_some_and(|record| record.offset < below) {
            window.drop_first();
        }
        window.covers_from = window.covers_from.max(below.min(*self.end.borrow()));
    }
}

impl Window {
    fn drop_first(&mut self) {
        if let Some(gone) = self.records.pop_front() {
            self.bytes -= gone.bytes.len() + RECORD_OVERHEAD_BYTES;
            self.covers_from = gone.offset.next();
        }
    }
}

/// All tails of a log.
#[derive(Debug)]
pub(crate) struct Tails {
    tails: Mutex<BTreeMap<(Stream, Cell), Arc<Tail>>>,
    bytes_max: usize,
}

impl Tails {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { tails: Mutex::default(), bytes_max }
    }

    /// The tail of a stream; begins at offset 0 when it was never mentioned before.
    pub(crate) fn of(&self, stream: Stream, cell: Cell) -> Arc<Tail> {
        let mut tails = self.tails.lock().unwrap_or_else(PoisonError::into_inner);
        let tail = tails.entry((stream, cell)).or_insert_with(|| Arc::new(Tail::new(Offset(0), self.bytes_max)));
        Arc::clone(tail)
    }

    /// Begins a tail at the end that was found at opening.
    pub(crate) fn begin_at(&self, stream: Stream, cell: Cell, end: Offset) {
        let mut tails = self.tails.lock().unwrap_or_else(PoisonError::into_inner);
        tails.insert((stream, cell), Arc::new(Tail::new(end, self.bytes_max)));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use bytes::Bytes;

    fn record(offset: u64, len: usize) -> Record {
        Record { offset: Offset(offset), bytes: Bytes::from(vec![0; len]) }
    }

    #[test]
    fn the_window_is_bounded_and_says_what_it_no_longer_covers() {
        let tail = Tail::new(Offset(10), 3 * (100 + RECORD_OVERHEAD_BYTES));
        tail.push((10..20).map(|offset| record(offset, 100)));
        assert_eq!(tail.end(), Offset(20));
        assert_eq!(tail.look(Offset(16), usize::MAX), Look::Older);
        assert_eq!(tail.look(Offset(17), usize::MAX), Look::Here((17..20).map(|offset| record(offset, 100)).collect()));
        assert_eq!(tail.look(Offset(25), usize::MAX), Look::Here(vec![]));
    }

    #[test]
    fn gaps_between_offsets_are_passed_over() {
        let tail = Tail::new(Offset(0), usize::MAX);
        tail.push([record(3, 1), record(9, 1)]);
        assert_eq!(tail.look(Offset(4), usize::MAX), Look::Here(vec![record(9, 1)]));
        assert_eq!(tail.end(), Offset(10));
    }

    #[test]
    fn a_read_gives_at_least_one_record_however_long() {
        let tail = Tail::new(Offset(0), 10);
        tail.push([record(0, 5000)]);
        assert_eq!(tail.look(Offset(0), 1), Look::Here(vec![record(0, 5000)]));
    }

    #[test]
    fn trimming_beyond_the_end_stops_at_the_end() {
        let tail = Tail::new(Offset(0), usize::MAX);
        tail.push([record(0, 1), record(1, 1)]);
        tail.trim(Offset(99));
        assert_eq!(tail.covers_from(), Offset(2));
        assert_eq!(tail.look(Offset(1), 10), Look::Older);
        tail.push([record(2, 1)]);
        assert_eq!(tail.look(Offset(2), 10), Look::Here(vec![record(2, 1)]));
    }
}
