//! Records of `events` that cannot be read, and what an operator said of them. It stands in the log itself, behind such a record, so that every reader
//! passes it over by itself; one of which nobody said so ends its reader. Nothing is removed, and what can be read is never passed over.

use crate::{EventLog, ReadError, Stream};
use events_rule::count::{UnreadableEvent, Words};
use events_schema::Cell;
use events_schema::batch::PassOver;

/// Bytes held at once while the log is searched.
const PIECE_BYTES_MAX: usize = 16 << 20;

/// What an operator said of a record that cannot be read, if it is to be passed over. Reads what stands behind it, up to that word; what it
/// comes by stays in `words`, which a reader keeps from one such record to the next.
pub async fn passed_over(
    log: &dyn EventLog,
    cell: Cell,
    words: &mut Words,
    unreadable: &UnreadableEvent,
) -> Result<Option<PassOver>, ReadError> {
    loop {
        if let Some(word) = words.about(unreadable) {
            tracing::warn!(offset = %word.offset, by = word.by, reason = word.reason, "a record of `events` is passed over");
            return Ok(Some(word.clone()));
        }
        let records = log.read(Stream::Events, cell, words.next(unreadable), PIECE_BYTES_MAX).await?;
        if records.is_empty() {
            return Ok(None);
        }
        records.iter().for_each(|record| words.meet(record));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::MemoryLog;
    use events_rule::count::read_event;
    use events_schema::batch::{EventRecord, to_bytes};
    use events_schema::{Offset, TimeMs};

    const CELL: Cell = Cell(0);

    #[tokio::test]
    async fn what_an_operator_said_is_found_behind_the_record_and_nowhere_else() {
        let log = MemoryLog::new();
        let word = |offset| {
            let (by, reason) = ("ada".to_owned(), "a stray producer".to_owned());
            to_bytes(&EventRecord::PassOver(PassOver { offset: Offset(offset), by, at: TimeMs(1), reason }))
        };
        for record in [word(1), vec![9; 9], vec![9; 9], word(1)] {
            log.append(Stream::Events, CELL, record).await.unwrap();
        }
        let records = log.read(Stream::Events, CELL, Offset(1), 1_000).await.unwrap();
        let unreadable = |index: usize| read_event(&records[index]).unwrap_err();
        let mut words = Words::default();
        let found = passed_over(&log, CELL, &mut words, &unreadable(0)).await.unwrap();
        assert_eq!(found.map(|word| (word.offset, word.by)), Some((Offset(1), "ada".to_owned())));
        assert_eq!(
            passed_over(&log, CELL, &mut words, &unreadable(1)).await.unwrap(),
            None,
            "nobody spoke of this one"
        );
        log.append(Stream::Events, CELL, word(2)).await.unwrap();
        assert!(passed_over(&log, CELL, &mut words, &unreadable(1)).await.unwrap().is_some());
    }

    /// A search goes through all that stands behind a record: one for each would make a log with many of them unreadable in time.
    #[tokio::test]
    async fn many_such_records_cost_one_search() {
        let log = MemoryLog::new();
        for _ in 0..20 {
            log.append(Stream::Events, CELL, vec![9; 9]).await.unwrap();
        }
        for offset in (0..20).rev().map(Offset) {
            let (by, reason) = ("ada".to_owned(), "a stray producer".to_owned());
            let word = EventRecord::PassOver(PassOver { offset, by, at: TimeMs(1), reason });
            log.append(Stream::Events, CELL, to_bytes(&word)).await.unwrap();
        }
        let records = log.read(Stream::Events, CELL, Offset(0), 180).await.unwrap();
        let mut words = Words::default();
        for (place, record) in records.iter().enumerate() {
            let unreadable = read_event(record).unwrap_err();
            if place > 0 {
                assert!(words.about(&unreadable).is_some(), "met on the way to the first");
            }
            let word = passed_over(&log, CELL, &mut words, &unreadable).await.unwrap();
            assert_eq!(word.map(|word| word.offset), Some(record.offset));
        }
        assert_eq!(records.len(), 20);
    }
}
