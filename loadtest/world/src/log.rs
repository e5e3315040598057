//! The log: streams of records that are never lost once acknowledged, unless an input topic is shortened. It can stall, refuse, do an append
//! and not say so, or do it seconds after it said that it does not know. What counts in it, and what that comes to, is folded here at once:
//! the truth that checks look at.

use crate::time::At;
use crate::world::{CONTROL, Event, Input, Over, Pid, World};
use controller_cell::{AppendFailure, In, Out, Ticket};
use controller_core::State;
use events_rule::count::{Counter, Verdict};
use events_rule::{Record, Stream};
use events_schema::batch::{Batch, EventRecord, InputStream, from_bytes};
use events_schema::{Cell, Offset};
use std::collections::{BTreeMap, BTreeSet};

/// Time of a commit, and of an answer, in microseconds.
const COMMIT_US: (u64, u64) = (1_000, 8_000);
const ANSWER_US: u64 = 700;
/// An append that is said to be unknown is done so much later.
const LATE_MS: (u64, u64) = (500, 6_000);
/// Records given at once.
const RECORDS_MAX: usize = 128;
/// What is missed only later is restored after so long.
const MISSED_MS: u64 = 1_000;
/// A restored topic is seen as it is after so long, whatever was asked before.
const SEEN_MS: u64 = 1_000;

/// Who asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asker {
    Cell(Pid),
    Call(u64),
}

/// What is said of an append that lands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    Acknowledged,
    /// Somebody was told already that it is unknown, or is told so now.
    Unknown,
    /// Nothing more is said.
    Silent,
}

/// An append that will land.
#[derive(Debug)]
pub struct Append {
    pub asker: Asker,
    pub ticket: u64,
    pub stream: Stream,
    pub record: Vec<u8>,
    pub word: Word,
}

/// What the log says.
#[derive(Debug)]
pub enum Answer {
    Appended(u64, Stream, Offset),
    Unknown(u64),
    Refused(u64),
    Read(Ticket, Vec<Record>),
    End(Ticket, Offset),
}

/// What waits for the log to go on.
#[derive(Debug)]
enum Waiting {
    Append(Append),
    Read { asker: Pid, ticket: Ticket, stream: Stream, from: Offset },
    End { asker: Pid, ticket: Ticket, stream: Stream },
}

/// An input topic that has lost its end.
#[derive(Debug)]
struct Short {
    /// Where it ended then.
    cut: Offset,
    lost: Vec<Record>,
    /// Which of them were acknowledged and not decided.
    acknowledged: Vec<Offset>,
}

/// All streams, and what they come to.
#[derive(Debug)]
pub struct Log {
    streams: BTreeMap<Stream, Vec<Record>>,
    short: BTreeMap<Stream, Short>,
    /// What nobody missed when an operator looked.
    unmissed: BTreeMap<Stream, Short>,
    /// Inputs of which something is lost for good: a controller that read it may say so at any time.
    incomplete: BTreeSet<Stream>,
    /// Until when a controller may rightly say that a topic was shortened: it takes a moment to see that it was restored.
    shortened_until: BTreeMap<Stream, At>,
    /// When a topic was last shortened, or repaired.
    changed_at: At,
    /// Up to where inputs were taken by what counts.
    taken: BTreeMap<Stream, Offset>,
    /// Inputs that were put where everything is taken already.
    passed_over: BTreeSet<(Stream, Offset)>,
    /// Nothing of a stream lands before what was sent earlier.
    lands_at: BTreeMap<Stream, At>,
    follows: Vec<(Pid, Stream, Ticket, Offset)>,
    waiting: Vec<Waiting>,
    pub stalled_until: At,
    /// Length of the newest stall.
    pub stalled_for_ms: u64,
    pub refuses_until: At,
    pub loses_acknowledgements_until: At,
    pub late_until: At,
    counter: Counter,
    pub truth: State,
    pub claims: u64,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            streams: BTreeMap::new(),
            short: BTreeMap::new(),
            unmissed: BTreeMap::new(),
            incomplete: BTreeSet::new(),
            shortened_until: BTreeMap::new(),
            changed_at: At(0),
            taken: BTreeMap::new(),
            passed_over: BTreeSet::new(),
            lands_at: BTreeMap::new(),
            follows: Vec::new(),
            waiting: Vec::new(),
            stalled_until: At(0),
            stalled_for_ms: 0,
            refuses_until: At(0),
            loses_acknowledgements_until: At(0),
            late_until: At(0),
            counter: Counter::new(),
            truth: State::new(Cell(0)),
            claims: 0,
        }
    }
}

impl Log {
    /// Records of a stream from an offset on.
    #[must_use]
    pub fn records(&self, stream: Stream, from: Offset) -> &[Record] {
        let all = self.streams.get(&stream).map_or(&[][..], Vec::as_slice);
        all.get(from.0 as usize..).unwrap_or(&[])
    }

    /// Of all that was ever written: FNV-1a.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let bytes = self.streams.values().flatten().flat_map(|record| record.bytes.iter());
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
    }

    fn end(&self, stream: Stream) -> Offset {
        Offset(self.records(stream, Offset(0)).len() as u64)
    }

    fn taken(&self, stream: Stream) -> Offset {
        self.taken.get(&stream).copied().unwrap_or_default()
    }

    /// Whether this record stands there, so that it can still be decided: it was not lost, and not put where nobody reads any more.
    #[must_use]
    pub fn has(&self, stream: Stream, offset: Offset, record: &[u8]) -> bool {
        self.records(stream, offset).first().is_some_and(|there| there.bytes[..] == *record)
    }

    /// Whether an input stands where nobody reads any more.
    #[must_use]
    pub fn was_passed_over(&self, stream: Stream, offset: Offset) -> bool {
        self.passed_over.contains(&(stream, offset))
    }

    /// Since when it keeps its word at once; later than now while it does not.
    #[must_use]
    pub fn well_since(&self) -> At {
        let late = if self.late_until == At(0) { At(0) } else { self.late_until.plus_ms(LATE_MS.1) };
        [self.stalled_until, self.refuses_until, self.loses_acknowledgements_until, late, self.changed_at]
            .into_iter()
            .fold(At(0), At::max)
    }

    /// Whether an input was shortened so recently that a controller may say so.
    #[must_use]
    pub fn is_shortened(&self, stream: Stream, now: At) -> bool {
        self.shortened_until.get(&stream).is_some_and(|until| now <= *until)
    }

    /// An input that ends before what was taken of it.
    #[must_use]
    pub fn short_input(&self) -> Option<Stream> {
        self.short.keys().copied().find(|stream| self.end(*stream) < self.taken(*stream))
    }
}

impl World {
    /// Something that a controller asks of the log.
    pub fn ask_log(&mut self, asker: Pid, out: Out) {
        match out {
            Out::Append { ticket, stream, record, .. } => {
                let ticket = ticket.0;
                self.append(Append { asker: Asker::Cell(asker), ticket, stream, record, word: Word::Acknowledged });
            }
            Out::Read { ticket, stream, from, .. } => {
                self.log.follows.retain(|(pid, of, ..)| (*pid, *of) != (asker, stream));
                self.read(asker, ticket, stream, from);
            }
            Out::Follow { ticket, stream, from, .. } => {
                self.log.follows.retain(|(pid, of, ..)| (*pid, *of) != (asker, stream));
                if self.log.records(stream, from).is_empty() {
                    self.log.follows.push((asker, stream, ticket, from));
                } else {
                    self.read(asker, ticket, stream, from);
                }
            }
            Out::AskEnd { ticket, stream } if self.log_is_stalled() => {
                self.log.waiting.push(Waiting::End { asker, ticket, stream });
            }
            Out::AskEnd { ticket, stream } => {
                let end = self.told_end(stream);
                self.answer(Asker::Cell(asker), Answer::End(ticket, end));
            }
            _ => {}
        }
    }

    fn told_end(&self, stream: Stream) -> Offset {
        self.mutants.end(self.log.end(stream), self.log.taken(stream))
    }

    /// Whether nothing is answered now.
    #[must_use]
    pub fn log_is_stalled(&self) -> bool {
        self.now() < self.log.stalled_until
    }

    /// Appends a record; what becomes of it depends on how the log is now.
    pub fn append(&mut self, mut append: Append) {
        let now = self.now();
        if self.log_is_stalled() {
            self.log.waiting.push(Waiting::Append(append));
            return;
        }
        if now < self.log.refuses_until {
            return self.answer(append.asker, Answer::Refused(append.ticket));
        }
        let mut lands_at = now.plus_us(self.random.between(COMMIT_US.0, COMMIT_US.1));
        if now < self.log.late_until {
            self.answer(append.asker, Answer::Unknown(append.ticket));
            append.word = Word::Silent;
            lands_at = lands_at.plus_ms(self.random.between(LATE_MS.0, LATE_MS.1));
        } else {
            if now < self.log.loses_acknowledgements_until {
                append.word = Word::Unknown;
            }
            let last = self.log.lands_at.entry(append.stream).or_default();
            lands_at = lands_at.max(*last);
            *last = lands_at;
        }
        self.bus.put(lands_at, Event::Land(append));
    }

    /// An append takes its place.
    pub fn land(&mut self, append: Append) {
        let Append { asker, ticket, stream, record, word } = append;
        let records = self.log.streams.entry(stream).or_default();
        let offset = Offset(records.len() as u64);
        let record = Record { offset, bytes: record.into() };
        records.push(record.clone());
        if offset < self.log.taken(stream) {
            self.log.passed_over.insert((stream, offset));
        }
        match word {
            Word::Acknowledged => self.answer(asker, Answer::Appended(ticket, stream, offset)),
            Word::Unknown => self.answer(asker, Answer::Unknown(ticket)),
            Word::Silent => {}
        }
        if stream == Stream::Events {
            self.fold(&record);
            self.bus.put(self.bus.now().plus_us(COMMIT_US.0), Event::Tail);
        }
        self.tell_followers(stream);
    }

    fn tell_followers(&mut self, stream: Stream) {
        let end = self.log.end(stream);
        let due: Vec<(Pid, Stream, Ticket, Offset)> =
            self.log.follows.extract_if(.., |(_, of, _, from)| *of == stream && *from < end).collect();
        for (pid, stream, ticket, from) in due {
            self.read(pid, ticket, stream, from);
        }
    }

    /// An input topic loses its newest records; whether there were any.
    pub fn shorten(&mut self, input: InputStream, records: u64) -> bool {
        let stream = Stream::from(input);
        let cut = self.log.end(stream).0.saturating_sub(records);
        let Some(all) = self.log.streams.get_mut(&stream).filter(|_| !self.log.short.contains_key(&stream)) else {
            return false;
        };
        let lost = all.split_off(cut as usize);
        if lost.is_empty() {
            return false;
        }
        let acknowledged = self.checks.lose(input, Offset(cut));
        self.log.changed_at = self.bus.now();
        self.log.shortened_until.insert(stream, At(u64::MAX));
        if self.log.unmissed.remove(&stream).is_some() {
            self.log.incomplete.insert(stream);
        }
        self.log.short.insert(stream, Short { cut: Offset(cut), lost, acknowledged });
        true
    }

    /// Its operator puts them back, and behind them what was appended since; unless it reaches as far as before again, so that nobody
    /// misses anything: what was lost then is lost.
    pub fn repair(&mut self, input: InputStream) {
        let (stream, now) = (Stream::from(input), self.now());
        let is_missed = self.log.end(stream) < self.log.taken(stream);
        let Some(short) = self.log.short.remove(&stream) else { return };
        if !is_missed {
            self.log.unmissed.insert(stream, short);
            return;
        }
        let Short { cut, lost, mut acknowledged } = short;
        self.log.changed_at = now;
        acknowledged.retain(|offset| *offset >= self.log.taken(stream));
        let until = if self.log.incomplete.contains(&stream) { At(u64::MAX) } else { now.plus_ms(SEEN_MS) };
        self.log.shortened_until.insert(stream, until);
        self.log.passed_over.retain(|(of, offset)| *of != stream || *offset < cut);
        self.checks.restore(input, cut, lost.len() as u64, acknowledged, now);
        let all = self.log.streams.entry(stream).or_default();
        let since = all.split_off(cut.0 as usize);
        all.extend(lost);
        for record in since {
            all.push(Record { offset: Offset(all.len() as u64), ..record });
        }
        self.tell_followers(stream);
    }

    fn read(&mut self, asker: Pid, ticket: Ticket, stream: Stream, from: Offset) {
        if self.log_is_stalled() {
            self.log.waiting.push(Waiting::Read { asker, ticket, stream, from });
            return;
        }
        let records = self.log.records(stream, from).iter().take(RECORDS_MAX).cloned().collect();
        self.answer(Asker::Cell(asker), Answer::Read(ticket, records));
    }

    /// A stall is over, if no other goes on: what waited is done, in order.
    pub fn log_goes_on(&mut self) {
        if self.log_is_stalled() {
            return;
        }
        for waiting in std::mem::take(&mut self.log.waiting) {
            match waiting {
                Waiting::Append(append) => self.append(append),
                Waiting::Read { asker, ticket, stream, from } => self.read(asker, ticket, stream, from),
                Waiting::End { asker, ticket, stream } => {
                    let end = self.told_end(stream);
                    self.answer(Asker::Cell(asker), Answer::End(ticket, end));
                }
            }
        }
        self.bus.put(self.bus.now(), Event::Tail);
    }

    fn answer(&mut self, asker: Asker, answer: Answer) {
        self.bus.put(self.bus.now().plus_us(ANSWER_US), Event::LogAnswer(asker, answer));
    }

    /// An answer is there.
    pub fn log_answers(&mut self, asker: Asker, answer: Answer) {
        match asker {
            Asker::Call(call) => self.tell_call(call, &answer),
            Asker::Cell(pid) => {
                let input = match answer {
                    Answer::Appended(ticket, _, offset) => In::Appended { ticket: Ticket(ticket), offset },
                    Answer::Unknown(ticket) => {
                        let failure = AppendFailure::Unknown("the answer was lost".to_owned());
                        In::AppendFailed { ticket: Ticket(ticket), failure }
                    }
                    Answer::Refused(ticket) => {
                        let failure = AppendFailure::Unavailable("the log takes nothing now".to_owned());
                        In::AppendFailed { ticket: Ticket(ticket), failure }
                    }
                    Answer::Read(ticket, records) => In::Read { ticket, records },
                    Answer::End(ticket, end) => In::End { ticket, end },
                };
                self.send_in(0, pid, Input::Cell(input));
            }
        }
    }

    /// What a record of `events` comes to, by the rule that every reader applies.
    fn fold(&mut self, record: &Record) {
        let event: EventRecord = match from_bytes(&record.bytes) {
            Ok(event) => event,
            Err(error) => return self.found("every record can be read", format!("{}: {error}", record.offset)),
        };
        match self.log.counter.offer(record.offset, event) {
            Verdict::Claimed { .. } => self.log.claims += 1,
            Verdict::Counts(batch) => self.count(&batch),
            Verdict::Incomplete | Verdict::Skipped(_) | Verdict::PassesOver(_) => {}
        }
    }

    fn count(&mut self, batch: &Batch) {
        for taken in &batch.taken {
            self.log.taken.insert(taken.stream.into(), taken.to);
            self.miss(taken.stream);
        }
        let before = self.log.truth.clone();
        for fact in &batch.facts {
            self.log.truth.apply(batch.at, fact);
        }
        self.check_batch(&before, batch);
        self.counted.iter_mut().for_each(|counted| counted.push(batch.clone()));
    }

    /// A batch that was on its way while an operator looked may have taken what an input has lost: it is missed now, and restored after all.
    fn miss(&mut self, input: InputStream) {
        let (stream, now) = (Stream::from(input), self.now());
        let is_missed = self.log.end(stream) < self.log.taken(stream);
        let unmissed = if is_missed { self.log.unmissed.remove(&stream) } else { None };
        let Some(short) = unmissed else { return };
        self.log.changed_at = now;
        self.log.shortened_until.insert(stream, At(u64::MAX));
        self.log.short.insert(stream, short);
        self.bus.put(now.plus_ms(MISSED_MS), Event::Over(Over::Short(input)));
    }

    /// The controller's host, for those who wonder.
    #[must_use]
    pub fn control_clock(&self) -> crate::time::Clock {
        self.hosts[usize::from(CONTROL)].clock
    }
}
