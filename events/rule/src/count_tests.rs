//! The rule under two writers that interleave, crash, repeat and lose acknowledgements.

#![allow(clippy::unwrap_used)]

use super::*;
use events_schema::batch::{InputStream, PassOver, from_bytes};
use events_schema::{JobId, TimeMs};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn fact(tag: u64) -> Fact {
    Fact::JobCancelled { job: JobId::parse(&format!("job-{tag}")).unwrap() }
}

fn batch(term: Term, sequence: Sequence, facts: Vec<Fact>) -> Batch {
    let taken = vec![Taken { stream: InputStream::Demand, from: Offset(1), to: Offset(2) }];
    Batch { term, sequence, part: None, taken, at: TimeMs(5), facts, causes: Vec::new() }
}

fn simple(term: u64, sequence: u64) -> EventRecord {
    EventRecord::Batch(batch(Term(term), Sequence(sequence), vec![fact(sequence)]))
}

fn part(term: u64, sequence: u64, index: u32, count: u32) -> EventRecord {
    let mut part = batch(Term(term), Sequence(sequence), vec![fact(u64::from(index))]);
    part.part = Some(Part { index, count });
    EventRecord::Batch(part)
}

fn claim() -> EventRecord {
    EventRecord::Claim { controller: "c".to_owned(), incarnation: 1 }
}

fn word(offset: u64) -> EventRecord {
    let (by, reason) = ("ada".to_owned(), "a stray producer".to_owned());
    EventRecord::PassOver(PassOver { offset: Offset(offset), by, at: TimeMs(1), reason })
}

/// What each record of a log comes to: C claimed, B counts, I incomplete, or the cause of skipping.
fn verdicts(log: &[EventRecord]) -> (Vec<String>, Counter) {
    let mut counter = Counter::new();
    let of = |verdict| match verdict {
        Verdict::Claimed { .. } => "C".to_owned(),
        Verdict::Counts(batch) => format!("B{}", batch.facts.len()),
        Verdict::Incomplete => "I".to_owned(),
        Verdict::Skipped(cause) => cause.name().to_owned(),
        Verdict::PassesOver(word) => format!("over {}", word.offset),
    };
    let verdicts = log
        .iter()
        .enumerate()
        .map(|(offset, record)| of(counter.offer(Offset(offset as u64), record.clone())))
        .collect();
    (verdicts, counter)
}

#[test]
fn the_rule_case_by_case() {
    let cases: Vec<(&str, Vec<EventRecord>, Vec<&str>)> = vec![
        ("nothing counts without a claim", vec![simple(0, 0), simple(7, 0)], vec!["unclaimed", "unclaimed"]),
        ("batches in sequence count", vec![claim(), simple(0, 0), simple(0, 1)], vec!["C", "B1", "B1"]),
        (
            "a repeated batch does not",
            vec![claim(), simple(0, 0), simple(0, 0), simple(0, 1)],
            vec!["C", "B1", "repeated", "B1"],
        ),
        (
            "nor one whose predecessor is missing",
            vec![claim(), simple(0, 1), simple(0, 0), simple(0, 2)],
            vec!["C", "gap", "B1", "gap"],
        ),
        (
            "an operator's word touches nothing, not even parts on both sides of it",
            vec![claim(), part(0, 0, 0, 2), word(0), part(0, 0, 1, 2), simple(0, 1)],
            vec!["C", "I", "over 0", "B2", "B1"],
        ),
        (
            "a newer claim silences the older writer",
            vec![claim(), simple(0, 0), claim(), simple(0, 1), simple(2, 0)],
            vec!["C", "B1", "C", "superseded", "B1"],
        ),
        ("a term of the future is none", vec![claim(), simple(1, 0)], vec!["C", "unclaimed"]),
        (
            "parts count together",
            vec![claim(), part(0, 0, 0, 3), part(0, 0, 1, 3), part(0, 0, 2, 3)],
            vec!["C", "I", "I", "B3"],
        ),
        ("a single part is whole", vec![claim(), part(0, 0, 0, 1), simple(0, 1)], vec!["C", "B1", "B1"]),
        (
            "a claim between parts cuts them off",
            vec![claim(), part(0, 0, 0, 2), claim(), part(0, 0, 1, 2), part(2, 0, 1, 2)],
            vec!["C", "I", "C", "superseded", "gap"],
        ),
        (
            "repeated parts are passed over",
            vec![
                claim(),
                part(0, 0, 0, 3),
                part(0, 0, 1, 3),
                part(0, 0, 0, 3),
                part(0, 0, 1, 3),
                part(0, 0, 2, 3),
                part(0, 0, 2, 3),
            ],
            vec!["C", "I", "I", "repeated", "repeated", "B3", "repeated"],
        ),
        (
            "a missing part is a gap",
            vec![claim(), part(0, 0, 0, 3), part(0, 0, 2, 3), part(0, 0, 1, 3), part(0, 0, 2, 3)],
            vec!["C", "I", "gap", "I", "B3"],
        ),
        (
            "another cut begins at its first part",
            vec![claim(), part(0, 0, 0, 3), part(0, 0, 1, 2), part(0, 0, 0, 2), part(0, 0, 1, 2)],
            vec!["C", "I", "gap", "I", "B2"],
        ),
        (
            "a whole batch replaces its cut-off parts",
            vec![claim(), part(0, 0, 0, 3), simple(0, 0), part(0, 0, 1, 3)],
            vec!["C", "I", "B1", "repeated"],
        ),
        (
            "foreign records between parts do no harm",
            vec![claim(), claim(), part(1, 0, 0, 2), simple(0, 0), part(1, 0, 1, 2)],
            vec!["C", "C", "I", "superseded", "B2"],
        ),
        (
            "impossible part numbers",
            vec![claim(), part(0, 0, 2, 2), part(0, 0, 0, 0), part(0, 0, 0, PARTS_MAX + 1)],
            vec!["C", "malformed", "malformed", "malformed"],
        ),
    ];
    for (name, log, expected) in cases {
        assert_eq!(verdicts(&log).0, expected, "{name}");
    }
}

#[test]
fn parts_that_are_cut_off_are_counted_when_that_is_known() {
    let (_, counter) = verdicts(&[claim(), part(0, 0, 0, 3), part(0, 0, 1, 3), claim()]);
    assert_eq!((counter.skipped().of(SkipCause::CutOff), counter.skipped().total()), (2, 2));
    assert!(!counter.incomplete());
}

#[test]
fn a_batch_that_fits_is_one_record_and_a_longer_one_is_cut() {
    let facts: Vec<Fact> = (0..300).map(fact).collect();
    let whole = batch(Term(0), Sequence(0), facts);
    let records = split(whole.clone(), usize::MAX);
    assert_eq!(records.len(), 1);
    assert_eq!(from_bytes::<EventRecord>(&records[0]).unwrap(), EventRecord::Batch(whole.clone()));
    for bytes_max in [200, 500, 1_000, 2_000] {
        let records = split(whole.clone(), bytes_max);
        assert!(records.len() > 1 && records.iter().all(|record| record.len() <= bytes_max), "{bytes_max}");
        let mut counter = Counter::new();
        counter.offer(Offset(0), claim());
        let mut counted = Vec::new();
        for (offset, record) in (1..).zip(&records) {
            if let Verdict::Counts(batch) = counter.offer(Offset(offset), from_bytes(record).unwrap()) {
                counted.push((offset, batch));
            }
        }
        assert_eq!(counted, vec![(records.len() as u64, whole.clone())]);
    }
}

#[test]
fn a_fact_longer_than_a_record_stands_alone_and_the_others_still_fit() {
    let long = Fact::JobFailed { job: JobId::parse("job-a").unwrap(), reason: "x".repeat(2_000) };
    let records = split(batch(Term(0), Sequence(0), vec![fact(1), long, fact(2)]), 500);
    let over: Vec<usize> = records.iter().map(Vec::len).filter(|len| *len > 500).collect();
    assert_eq!(over.len(), 1);
}

/// One step of the world around two writers.
#[derive(Debug, Clone, Copy)]
enum Action {
    /// A writer takes the cell, or appends its next record (a batch, or the next part of one).
    Step { writer: usize, parts: u32, outcome: Outcome },
    /// A writer forgets everything.
    Crash { writer: usize },
    /// A zombie's record that was in flight all the time arrives now.
    Straggler { writer: usize },
}

#[derive(Debug, Clone, Copy)]
enum Outcome {
    Acknowledged,
    /// Written, but the writer is not told.
    AcknowledgementLost,
    /// Not written, and the writer does not know.
    Lost,
    /// Written twice; the writer is told the first or the second place.
    Doubled {
        second: bool,
    },
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let outcome = prop_oneof![
        8 => Just(Outcome::Acknowledged),
        1 => Just(Outcome::AcknowledgementLost),
        1 => Just(Outcome::Lost),
        2 => any::<bool>().prop_map(|second| Outcome::Doubled { second }),
    ];
    let action = prop_oneof![
        20 => (0..2usize, 1..4u32, outcome).prop_map(|(writer, parts, outcome)| Action::Step { writer, parts, outcome }),
        2 => (0..2usize).prop_map(|writer| Action::Crash { writer }),
        1 => (0..2usize).prop_map(|writer| Action::Straggler { writer }),
    ];
    proptest::collection::vec(action, 1..120)
}

/// A controller: claims, appends, checks by the offset rule, stands down when silenced.
#[derive(Debug, Clone)]
struct Writer {
    incarnation: u64,
    owns: Option<Owned>,
    /// The last record it sent, for stragglers.
    last: Option<EventRecord>,
}

#[derive(Debug, Clone)]
struct Owned {
    term: Term,
    counter: Counter,
    /// First offset it has not seen.
    known: u64,
    /// Records of the batch under way, still to be sent.
    queue: Vec<EventRecord>,
}

/// The log and what its writers believed.
#[derive(Default)]
struct World {
    log: Vec<EventRecord>,
    /// (term, sequence) → facts, as its writer believed it counted, and the log's length then.
    believed: BTreeMap<(Term, Sequence), (Vec<Fact>, usize)>,
    tag: u64,
}

impl World {
    fn place(&mut self, record: &EventRecord, outcome: Outcome) -> Option<u64> {
        let first = self.log.len() as u64;
        match outcome {
            Outcome::Lost => None,
            Outcome::AcknowledgementLost => {
                self.log.push(record.clone());
                None
            }
            Outcome::Acknowledged => {
                self.log.push(record.clone());
                Some(first)
            }
            Outcome::Doubled { second } => {
                self.log.extend([record.clone(), record.clone()]);
                Some(first + u64::from(second))
            }
        }
    }

    fn claim(&mut self, writer: &mut Writer, outcome: Outcome) {
        writer.incarnation += 1;
        let claim = EventRecord::Claim { controller: "w".to_owned(), incarnation: writer.incarnation };
        let Some(offset) = self.place(&claim, outcome) else { return };
        let mut counter = Counter::new();
        for (at, record) in self.log[..=offset as usize].iter().enumerate() {
            counter.offer(Offset(at as u64), record.clone());
        }
        writer.owns = Some(Owned { term: Term(offset), counter, known: offset + 1, queue: vec![] });
    }

    fn begin(&mut self, owned: &mut Owned, parts: u32) {
        let facts: Vec<Fact> = (0..parts)
            .map(|_| {
                self.tag += 1;
                fact(self.tag)
            })
            .collect();
        let whole = batch(owned.term, owned.counter.next_sequence(), facts);
        if parts == 1 {
            owned.queue = vec![EventRecord::Batch(whole)];
            return;
        }
        let cut = |(index, fact): (u32, &Fact)| {
            EventRecord::Batch(Batch {
                part: Some(Part { index, count: parts }),
                facts: vec![fact.clone()],
                ..whole.clone()
            })
        };
        owned.queue = (0..).zip(&whole.facts).map(cut).collect();
    }

    fn step(&mut self, writer: &mut Writer, parts: u32, outcome: Outcome) {
        let Some(mut owned) = writer.owns.take() else { return self.claim(writer, outcome) };
        if owned.queue.is_empty() {
            self.begin(&mut owned, parts);
        }
        let record = owned.queue.remove(0);
        writer.last = Some(record.clone());
        // Unknown outcome: the state is dropped; the next step claims again.
        let Some(offset) = self.place(&record, outcome) else { return };
        let sequence = owned.counter.next_sequence();
        let mut facts = None;
        // The offset rule: its own record if nobody came between, everything in between otherwise.
        let seen: Vec<(u64, EventRecord)> = if offset == owned.known {
            vec![(offset, record)]
        } else {
            (owned.known..=offset).map(|at| (at, self.log[at as usize].clone())).collect()
        };
        for (at, record) in seen {
            if let Verdict::Counts(batch) = owned.counter.offer(Offset(at), record)
                && batch.term == owned.term
            {
                facts = Some(batch.facts);
            }
        }
        owned.known = offset + 1;
        if owned.counter.term() != Some(owned.term) {
            return; // Stands down.
        }
        if owned.counter.counted(owned.term, sequence) {
            self.believed.insert((owned.term, sequence), (facts.unwrap(), self.log.len()));
        }
        writer.owns = Some(owned);
    }
}

fn run(actions: &[Action]) -> World {
    let mut world = World::default();
    let mut writers = [1_000, 2_000].map(|incarnation| Writer { incarnation, owns: None, last: None });
    for action in actions {
        match *action {
            Action::Step { writer, parts, outcome } => world.step(&mut writers[writer], parts, outcome),
            Action::Crash { writer } => writers[writer].owns = None,
            Action::Straggler { writer } => world.log.extend(writers[writer].last.clone()),
        }
    }
    world
}

/// What a reader of a whole log makes of it: (offset, batch) of all that counted.
fn read(log: &[EventRecord], counter: &mut Counter, from: usize) -> Vec<(usize, Batch)> {
    let mut counted = Vec::new();
    for (offset, record) in log.iter().enumerate().skip(from) {
        if let Verdict::Counts(batch) = counter.offer(Offset(offset as u64), record.clone()) {
            counted.push((offset, batch));
        }
    }
    counted
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn two_writers_never_make_the_log_ambiguous(actions in actions()) {
        let world = run(&actions);
        let counted = read(&world.log, &mut Counter::new(), 0);

        // No sequence counts twice within a term, and none is left out.
        let mut seen = BTreeSet::new();
        for (offset, batch) in &counted {
            prop_assert!(seen.insert((batch.term, batch.sequence)), "{:?} counted twice", (batch.term, batch.sequence));
            prop_assert!(batch.sequence.0 == 0 || seen.contains(&(batch.term, Sequence(batch.sequence.0 - 1))));
            // Nothing of a term counts after a newer claim.
            let latest = world.log[..*offset].iter().rposition(|record| matches!(record, EventRecord::Claim { .. })).unwrap();
            prop_assert_eq!(batch.term, Term(latest as u64));
            prop_assert_eq!(batch.part, None);
        }

        // What a writer believed counted did count, with its facts, and had already when it believed so.
        for ((term, sequence), (facts, length)) in &world.believed {
            let found = counted.iter().find(|(_, batch)| (batch.term, batch.sequence) == (*term, *sequence));
            let (offset, batch) = found.unwrap();
            prop_assert_eq!(&batch.facts, facts);
            prop_assert!(offset < length);
        }
    }

    #[test]
    fn all_readers_agree_wherever_they_begin(actions in actions(), cut in any::<prop::sample::Index>()) {
        let world = run(&actions);
        let mut whole = Counter::new();
        let counted = read(&world.log, &mut whole, 0);
        // A reader that stops, remembers term and sequence in a snapshot, and goes on from there.
        let mut first = Counter::new();
        let mut upto = cut.index(world.log.len() + 1);
        let mut early = read(&world.log[..upto], &mut first, 0);
        while first.incomplete() && upto < world.log.len() {
            early.extend(read(&world.log[..=upto], &mut first, upto));
            upto += 1;
        }
        let mut second = match first.term() {
            Some(term) if !first.incomplete() => Counter::resume(term, first.next_sequence()),
            _ => first,
        };
        early.extend(read(&world.log, &mut second, upto));
        prop_assert_eq!(early, counted);
        prop_assert_eq!((second.term(), second.next_sequence()), (whole.term(), whole.next_sequence()));
    }

    #[test]
    fn every_record_is_accounted_for(actions in actions()) {
        let world = run(&actions);
        let mut counter = Counter::new();
        let (mut claims, mut whole, mut merged) = (0u64, 0u64, 0u64);
        for (offset, record) in world.log.iter().enumerate() {
            let parts = match record {
                EventRecord::Claim { .. } => 0,
                EventRecord::Batch(batch) => batch.part.map_or(1, |part| u64::from(part.count)),
                EventRecord::PassOver(_) => 0,
            };
            match counter.offer(Offset(offset as u64), record.clone()) {
                Verdict::Claimed { .. } => claims += 1,
                Verdict::Counts(_) if parts == 1 => whole += 1,
                Verdict::Counts(_) => merged += parts,
                Verdict::Incomplete | Verdict::Skipped(_) | Verdict::PassesOver(_) => {}
            }
        }
        let waiting = counter.parts.as_ref().map_or(0, |parts| u64::from(parts.seen));
        prop_assert_eq!(claims + whole + merged + waiting + counter.skipped().total(), world.log.len() as u64);
    }

    #[test]
    fn a_cut_batch_is_whole_again(facts in 1..200u64, len in 1..400usize, bytes_max in 150..5_000usize) {
        let facts: Vec<Fact> = (0..facts).map(|i| Fact::JobFailed { job: JobId::parse(&format!("job-{i}")).unwrap(), reason: "y".repeat(len) }).collect();
        let whole = batch(Term(0), Sequence(0), facts);
        let records: Vec<EventRecord> = std::iter::once(claim()).chain(split(whole.clone(), bytes_max).iter().map(|bytes| from_bytes(bytes).unwrap())).collect();
        let counted = read(&records, &mut Counter::new(), 0);
        prop_assert_eq!(counted.len(), 1);
        prop_assert_eq!(&counted[0].1, &whole);
    }
}
