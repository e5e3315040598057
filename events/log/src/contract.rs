//! What every log must do, as tests: run on the in-memory, the embedded and the Kafka log, and on any other that comes.
//!
//! [`check`] takes a log with at least two cells; it may hold records already. Every check begins at the end it finds, so a
//! real cluster needs no cleaning. A violation panics with the name of the check. Nothing here sleeps or looks at a clock,
//! except for one deadline that turns a hanging log into a failing test.

#![allow(clippy::unwrap_used)]

use crate::{AppendError, EventLog, RECORD_LEN_MAX, ReadError, Record, Stream, read_range};
use events_rule::count::{Counter, Verdict, split};
use events_schema::batch::{Batch, EventRecord, from_bytes, to_bytes};
use events_schema::fact::Fact;
use events_schema::{Cell, JobId, Offset, Sequence, Term, TimeMs};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

const CELL: Cell = Cell(0);
/// After so long a check counts as hanging; the slowest takes seconds on a busy machine.
const HANGS_AFTER: Duration = Duration::from_secs(120);

/// Runs every check on a log and returns how many there are.
pub async fn check(log: Arc<dyn EventLog>) -> usize {
    let mut done = 0;
    macro_rules! run {
        ($($check:ident),+ $(,)?) => {$(
            within(stringify!($check), $check(Arc::clone(&log))).await;
            done += 1;
        )+};
    }
    run!(
        an_acknowledged_record_is_read_at_its_offset,
        the_end_lies_behind_the_last_record,
        a_read_stays_within_its_bound_but_gives_one_record,
        records_of_one_caller_stand_in_its_order,
        many_callers_at_once_each_get_a_place_of_their_own,
        streams_and_cells_are_apart,
        a_waiter_wakes_when_a_record_comes,
        the_longest_record_fits_and_a_longer_one_is_refused,
        an_append_nobody_waits_for_harms_nobody,
        old_records_are_read_whole_and_in_order,
        readers_at_different_places_do_not_disturb_each_other,
        a_newer_claim_silences_the_older_writer,
        a_batch_in_parts_counts_as_one,
        trimmed_records_are_gone_and_the_others_stay,
    );
    done
}

async fn within(name: &str, check: impl Future<Output = ()>) {
    assert!(tokio::time::timeout(HANGS_AFTER, check).await.is_ok(), "{name} hangs");
}

async fn append(log: &dyn EventLog, stream: Stream, bytes: &[u8]) -> Offset {
    log.append(stream, CELL, bytes.to_vec()).await.unwrap()
}

/// Everything from an offset to the end.
async fn rest(log: &dyn EventLog, stream: Stream, cell: Cell, from: Offset) -> Vec<Record> {
    let end = log.end(stream, cell).await.unwrap();
    let mut records = Vec::new();
    read_range::<ReadError>(log, stream, cell, from, end, |record| {
        records.push(record);
        Ok(())
    })
    .await
    .unwrap();
    records
}

async fn an_acknowledged_record_is_read_at_its_offset(log: Arc<dyn EventLog>) {
    for stream in Stream::ALL {
        for bytes in [&b"a"[..], b"", &[0, 255, 10, 13], &[7; 4_000]] {
            let offset = append(&*log, stream, bytes).await;
            let read = log.read(stream, CELL, offset, 1 << 20).await.unwrap();
            assert_eq!(read.len(), 1, "{stream} at {offset}");
            assert_eq!((read[0].offset, &read[0].bytes[..]), (offset, bytes));
        }
    }
}

async fn the_end_lies_behind_the_last_record(log: Arc<dyn EventLog>) {
    let offset = append(&*log, Stream::Demand, b"last").await;
    let end = log.end(Stream::Demand, CELL).await.unwrap();
    assert!(end > offset);
    assert_eq!(log.read(Stream::Demand, CELL, end, 100).await.unwrap(), vec![]);
    assert_eq!(log.read(Stream::Demand, CELL, Offset(end.0 + 1_000), 100).await.unwrap(), vec![]);
    let next = append(&*log, Stream::Demand, b"next").await;
    assert!(next >= end);
    assert_eq!(rest(&*log, Stream::Demand, CELL, end).await.len(), 1);
}

async fn a_read_stays_within_its_bound_but_gives_one_record(log: Arc<dyn EventLog>) {
    let first = append(&*log, Stream::Reports, &[1; 1_000]).await;
    for _ in 0..9 {
        append(&*log, Stream::Reports, &[2; 1_000]).await;
    }
    assert_eq!(log.read(Stream::Reports, CELL, first, 1).await.unwrap().len(), 1);
    assert_eq!(log.read(Stream::Reports, CELL, first, 0).await.unwrap().len(), 1);
    let some = log.read(Stream::Reports, CELL, first, 3_500).await.unwrap();
    assert!((1..=3).contains(&some.len()), "{}", some.len());
    assert_eq!(rest(&*log, Stream::Reports, CELL, first).await.len(), 10);
}

async fn records_of_one_caller_stand_in_its_order(log: Arc<dyn EventLog>) {
    let from = log.end(Stream::Commands, CELL).await.unwrap();
    let mut offsets = Vec::new();
    for i in 0..200u32 {
        offsets.push(append(&*log, Stream::Commands, &i.to_le_bytes()).await);
    }
    assert!(offsets.is_sorted_by(|a, b| a < b));
    let read = rest(&*log, Stream::Commands, CELL, from).await;
    assert_eq!(read.iter().map(|record| record.offset).collect::<Vec<_>>(), offsets);
    assert!(read.iter().zip(0u32..).all(|(record, i)| record.bytes[..] == i.to_le_bytes()));
}

async fn many_callers_at_once_each_get_a_place_of_their_own(log: Arc<dyn EventLog>) {
    const CALLERS: u32 = 64;
    const EACH: u32 = 40;
    let from = log.end(Stream::Commands, CELL).await.unwrap();
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let log = Arc::clone(&log);
            tokio::spawn(async move {
                let mut places = Vec::new();
                for i in 0..EACH {
                    let content = format!("{caller} {i}");
                    places.push((append(&*log, Stream::Commands, content.as_bytes()).await, content));
                }
                assert!(places.is_sorted_by(|a, b| a.0 < b.0), "caller {caller}");
                places
            })
        })
        .collect();
    let mut expected = BTreeMap::new();
    for caller in callers {
        for (offset, content) in caller.await.unwrap() {
            assert_eq!(expected.insert(offset, content), None, "two records at {offset}");
        }
    }
    let read = rest(&*log, Stream::Commands, CELL, from).await;
    let read: BTreeMap<Offset, String> =
        read.into_iter().map(|r| (r.offset, String::from_utf8(r.bytes.to_vec()).unwrap())).collect();
    assert_eq!(read, expected);
}

async fn streams_and_cells_are_apart(log: Arc<dyn EventLog>) {
    let mut before = Vec::new();
    for stream in Stream::ALL {
        before.push((log.end(stream, CELL).await.unwrap(), log.end(stream, Cell(1)).await.unwrap()));
    }
    log.append(Stream::Demand, Cell(1), b"only here".to_vec()).await.unwrap();
    for (stream, (here, there)) in Stream::ALL.into_iter().zip(before) {
        assert_eq!(log.end(stream, CELL).await.unwrap(), here);
        assert_eq!(log.end(stream, Cell(1)).await.unwrap() > there, stream == Stream::Demand);
    }
}

async fn a_waiter_wakes_when_a_record_comes(log: Arc<dyn EventLog>) {
    let end = log.end(Stream::Events, CELL).await.unwrap();
    let waiters: Vec<_> = (0..8)
        .map(|_| {
            let log = Arc::clone(&log);
            tokio::spawn(async move {
                log.wait(Stream::Events, CELL, end).await.unwrap();
                log.read(Stream::Events, CELL, end, 100).await.unwrap()
            })
        })
        .collect();
    tokio::task::yield_now().await;
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()), "woken before there was anything");
    append(&*log, Stream::Events, b"news").await;
    for waiter in waiters {
        assert_eq!(&waiter.await.unwrap()[0].bytes[..], b"news");
    }
    // What is already there needs no waiting.
    log.wait(Stream::Events, CELL, end).await.unwrap();
}

async fn the_longest_record_fits_and_a_longer_one_is_refused(log: Arc<dyn EventLog>) {
    for stream in [Stream::Events, Stream::Commands] {
        let longest: Vec<u8> = (0..RECORD_LEN_MAX).map(|i| (i * i) as u8).collect();
        let offset = append(&*log, stream, &longest).await;
        assert!(log.read(stream, CELL, offset, 10).await.unwrap()[0].bytes == longest[..], "{stream}");
        let end = log.end(stream, CELL).await.unwrap();
        let refused = log.append(stream, CELL, vec![0; RECORD_LEN_MAX + 1]).await.unwrap_err();
        assert!(matches!(refused, AppendError::TooLarge { bytes_max: RECORD_LEN_MAX, .. }), "{refused}");
        assert_eq!(log.end(stream, CELL).await.unwrap(), end);
        append(&*log, stream, b"goes on").await;
    }
}

async fn an_append_nobody_waits_for_harms_nobody(log: Arc<dyn EventLog>) {
    for _ in 0..20 {
        let appending = Arc::clone(&log);
        let abandoned =
            tokio::spawn(async move { appending.append(Stream::Reports, CELL, b"abandoned".to_vec()).await });
        tokio::task::yield_now().await;
        abandoned.abort();
    }
    let offset = append(&*log, Stream::Reports, b"kept").await;
    assert_eq!(&log.read(Stream::Reports, CELL, offset, 10).await.unwrap()[0].bytes[..], b"kept");
}

async fn old_records_are_read_whole_and_in_order(log: Arc<dyn EventLog>) {
    // More than any log keeps in memory.
    const RECORDS: u32 = 1_400;
    let from = log.end(Stream::Public, CELL).await.unwrap();
    let appends = (0..RECORDS).map(|i| {
        let mut record = vec![i as u8; 24_000];
        record[..4].copy_from_slice(&i.to_le_bytes());
        log.append(Stream::Public, CELL, record)
    });
    let offsets = futures::future::try_join_all(appends).await.unwrap();
    let read = rest(&*log, Stream::Public, CELL, from).await;
    assert_eq!(read.len(), RECORDS as usize);
    assert!(read.is_sorted_by(|a, b| a.offset < b.offset));
    let places: BTreeMap<Offset, u32> = offsets.into_iter().zip(0..).collect();
    for record in read {
        assert_eq!(record.bytes.len(), 24_000);
        assert_eq!(record.bytes[..4], places[&record.offset].to_le_bytes());
    }
}

async fn readers_at_different_places_do_not_disturb_each_other(log: Arc<dyn EventLog>) {
    let from = log.end(Stream::Reports, CELL).await.unwrap();
    let mut offsets = Vec::new();
    for i in 0..60u8 {
        offsets.push(append(&*log, Stream::Reports, &vec![i; 600_000]).await);
    }
    let readers: Vec<_> = (0..6usize)
        .map(|reader| {
            let (log, offsets) = (Arc::clone(&log), offsets.clone());
            tokio::spawn(async move {
                for step in 0..20 {
                    let place = (reader * 11 + step * 7) % offsets.len();
                    let read = log.read(Stream::Reports, CELL, offsets[place], 1).await.unwrap();
                    assert_eq!((read[0].offset, read[0].bytes[0]), (offsets[place], place as u8));
                }
            })
        })
        .collect();
    for reader in readers {
        reader.await.unwrap();
    }
    assert_eq!(rest(&*log, Stream::Reports, CELL, from).await.len(), offsets.len());
}

/// A batch of `facts` facts; how many is what tells batches apart.
fn batch(term: Term, sequence: u64, facts: usize) -> Batch {
    let fact = |i| Fact::JobCancelled { job: JobId::parse(&format!("job-{i}")).unwrap() };
    Batch {
        term,
        sequence: Sequence(sequence),
        part: None,
        taken: vec![],
        at: TimeMs(1),
        causes: Vec::new(),
        facts: (0..facts).map(fact).collect(),
    }
}

async fn claim(log: &dyn EventLog, incarnation: u64) -> Term {
    let record = EventRecord::Claim { controller: "contract".to_owned(), incarnation };
    Term::of_claim(append(log, Stream::Events, &to_bytes(&record)).await)
}

/// What a reader makes of everything from an offset on: the counter, and the facts of each batch that counted.
async fn fold(log: &dyn EventLog, from: Offset) -> (Counter, Vec<usize>) {
    let mut counter = Counter::new();
    let mut counted = Vec::new();
    for record in rest(log, Stream::Events, CELL, from).await {
        if let Verdict::Counts(batch) = counter.offer(record.offset, from_bytes(&record.bytes).unwrap()) {
            counted.push(batch.facts.len());
        }
    }
    (counter, counted)
}

async fn a_newer_claim_silences_the_older_writer(log: Arc<dyn EventLog>) {
    let from = log.end(Stream::Events, CELL).await.unwrap();
    let old = claim(&*log, 1).await;
    append(&*log, Stream::Events, &to_bytes(&EventRecord::Batch(batch(old, 0, 1)))).await;
    let new = claim(&*log, 2).await;
    append(&*log, Stream::Events, &to_bytes(&EventRecord::Batch(batch(old, 1, 2)))).await;
    append(&*log, Stream::Events, &to_bytes(&EventRecord::Batch(batch(new, 0, 3)))).await;
    append(&*log, Stream::Events, &to_bytes(&EventRecord::Batch(batch(new, 0, 4)))).await;
    let (counter, counted) = fold(&*log, from).await;
    assert_eq!(counted, vec![1, 3]);
    assert!(counter.counted(new, Sequence(0)) && !counter.counted(old, Sequence(0)));
    assert_eq!(counter.skipped().total(), 2);
}

async fn a_batch_in_parts_counts_as_one(log: Arc<dyn EventLog>) {
    let from = log.end(Stream::Events, CELL).await.unwrap();
    let term = claim(&*log, 3).await;
    let parts = split(batch(term, 0, 500), 1_000);
    assert!(parts.len() > 2);
    for part in &parts {
        append(&*log, Stream::Events, part).await;
    }
    assert_eq!(fold(&*log, from).await.1, vec![500]);
}

async fn trimmed_records_are_gone_and_the_others_stay(log: Arc<dyn EventLog>) {
    let mut offsets = Vec::new();
    for i in 0..10u8 {
        offsets.push(append(&*log, Stream::Events, &[i]).await);
    }
    let end = log.end(Stream::Events, CELL).await.unwrap();
    log.trim(Stream::Events, CELL, offsets[4]).await.unwrap();
    let gone = log.read(Stream::Events, CELL, offsets[3], 10).await.unwrap_err();
    assert!(matches!(gone, ReadError::Trimmed { first, .. } if first == offsets[4]), "{gone}");
    let left = rest(&*log, Stream::Events, CELL, offsets[4]).await;
    assert_eq!(left.iter().map(|record| record.offset).collect::<Vec<_>>(), offsets[4..]);
    // Going back is no error and brings nothing back; going too far stops at the end.
    log.trim(Stream::Events, CELL, offsets[1]).await.unwrap();
    assert!(log.read(Stream::Events, CELL, offsets[3], 10).await.is_err());
    log.trim(Stream::Events, CELL, Offset(end.0 + 1_000)).await.unwrap();
    assert_eq!(log.end(Stream::Events, CELL).await.unwrap(), end);
    assert!(log.read(Stream::Events, CELL, offsets[9], 10).await.is_err());
    let next = append(&*log, Stream::Events, b"after").await;
    assert!(next >= end);
    assert_eq!(log.read(Stream::Events, CELL, next, 10).await.unwrap().len(), 1);
}
