//! Taking over a cell: claim it, then read everything below the claim. From the claim's own offset on no other controller's
//! batch counts, so what is read is all there will ever be.
//!
//! Before the first claim of a process it looks whether the log can be that of a cell at all; after reading, whether the inputs
//! are those that the facts came from. There are no snapshots yet: all of `events` is read. Next file: `lead.rs`.

use crate::end::{CellEnd, CellFailure};
use crate::health::Health;
use crate::message::{AppendFailure, Attempt, CellConfig, ReadFailure, Ticket};
use crate::note::Note;
use crate::outbox::{Backoff, Outbox};
use controller_fold::{Fold, FoldError, Positions};
use events_rule::count::{UnreadableEvent, Words};
use events_rule::{Record, Stream};
use events_schema::batch::{EventRecord, InputStream, to_bytes};
use events_schema::{Cell, Offset, Term};
use std::collections::BTreeMap;

/// Attempts to take a cell over while a person waits for the start: about half a minute with the pauses between them.
const START_ATTEMPTS_MAX: u32 = 32;

/// Longest pause between attempts: the log may be back any moment.
const PAUSE_MAX_MS: u64 = 1_000;

/// Bytes of `events` held at once: one full record and then some.
const PIECE_BYTES_MAX: usize = 16 << 20;

/// Looks that have to find an input stream shorter than it was before that is believed: after a broker took over a partition it
/// may not yet know how far the stream is acknowledged.
const SHORT_LOOKS_MAX: u32 = 8;

#[derive(Debug, Clone)]
pub(crate) struct TakeOver {
    stage: Stage,
    /// What was read so far. All of it stood in the log, so another attempt goes on behind it.
    fold: Box<Fold>,
    /// What operators said of records that cannot be read, as far as that was looked for.
    words: Words,
    /// When the stage's requests are made, again or for the first time.
    again_ms: Option<u64>,
    attempts: u32,
    attempts_max: Option<u32>,
    backoff: Backoff,
    /// What the next claim is.
    attempt: Attempt,
    short_looks: u32,
}

#[derive(Debug, Clone)]
enum Stage {
    /// Asks where all streams end.
    Looking(Ends),
    /// Reads whether somebody else has claimed meanwhile: who was replaced does not take the cell back.
    Checking(Option<Ticket>),
    /// Appends the claim.
    Claiming(Option<Ticket>),
    /// Reads up to the claim.
    Reading { claim: Offset, read: Option<Ticket> },
    /// A record cannot be read: looks behind it for an operator's word that it is passed over, then goes on with the stage before.
    Seeking { unreadable: UnreadableEvent, read: Option<Ticket>, before: Box<Stage> },
    /// Asks where the inputs end.
    Ending { term: Term, ends: Ends },
}

/// Where streams end, as far as it is known.
type Ends = BTreeMap<Stream, (Ticket, Option<Offset>)>;

/// A cell in our hands.
#[derive(Debug, Clone)]
pub(crate) struct Recovered {
    pub fold: Fold,
    pub term: Term,
    /// Ends of the inputs at the take-over: all before them is read before anything is decided from time alone.
    pub inputs_end: Positions,
}

/// What an answer has led to.
#[derive(Debug)]
pub(crate) enum Progress {
    Waiting,
    Recovered(Box<Recovered>),
    End(CellEnd),
}

impl From<CellFailure> for Progress {
    fn from(failure: CellFailure) -> Self {
        Progress::End(CellEnd::Failed(failure))
    }
}

/// What a take-over needs of its surroundings.
pub(crate) struct Surroundings<'a> {
    pub config: &'a CellConfig,
    pub now_ms: u64,
    pub health: &'a mut Health,
    pub out: &'a mut Outbox,
}

impl TakeOver {
    /// The first one of a process: a person waits.
    pub fn first(cell: Cell, now_ms: u64) -> Self {
        Self::new(Stage::Looking(Ends::new()), Fold::new(cell), Some(START_ATTEMPTS_MAX), now_ms)
    }

    /// One more, from what was read or acknowledged so far; what stands behind it is not known.
    pub fn again(fold: Fold, at_ms: u64) -> Self {
        Self::new(Stage::Checking(None), fold, None, at_ms)
    }

    fn new(stage: Stage, fold: Fold, attempts_max: Option<u32>, at_ms: u64) -> Self {
        let (fold, backoff) = (Box::new(fold), Backoff::new(PAUSE_MAX_MS));
        Self {
            stage,
            fold,
            words: Words::default(),
            again_ms: Some(at_ms),
            attempts: 0,
            attempts_max,
            backoff,
            attempt: Attempt::First,
            short_looks: 0,
        }
    }

    /// When something is due.
    pub fn next_ms(&self) -> Option<u64> {
        self.again_ms
    }

    /// Makes the stage's requests if it is time.
    pub fn go_on(&mut self, around: &mut Surroundings<'_>) {
        if self.again_ms.take_if(|again_ms| *again_ms <= around.now_ms).is_none() {
            return;
        }
        match &mut self.stage {
            Stage::Looking(ends) => {
                let streams = InputStream::ALL.map(Stream::from).into_iter().chain([Stream::Events]);
                *ends = streams.map(|stream| (stream, (around.out.ask_end(stream), None))).collect();
            }
            Stage::Claiming(append) => {
                let controller = around.config.name.clone();
                let claim = EventRecord::Claim { controller, incarnation: around.config.incarnation };
                let ticket = around.out.append(Stream::Events, to_bytes(&claim), self.attempt);
                around.health.append_begun(ticket, Stream::Events, around.now_ms);
                *append = Some(ticket);
            }
            Stage::Checking(read) | Stage::Reading { read, .. } => {
                *read = Some(around.out.read(Stream::Events, self.fold.known, PIECE_BYTES_MAX));
            }
            Stage::Seeking { unreadable, read, .. } => {
                *read = Some(around.out.read(Stream::Events, self.words.next(unreadable), PIECE_BYTES_MAX));
            }
            Stage::Ending { ends, .. } => {
                let streams = InputStream::ALL.map(Stream::from);
                *ends = streams.into_iter().map(|stream| (stream, (around.out.ask_end(stream), None))).collect();
            }
        }
    }

    /// The claim stands in the log.
    pub fn appended(&mut self, ticket: Ticket, offset: Offset, around: &mut Surroundings<'_>) -> Progress {
        if !matches!(self.stage, Stage::Claiming(Some(claim)) if claim == ticket) {
            return Progress::Waiting;
        }
        if offset < self.fold.known {
            return CellFailure::EventsShortened { end: offset, known: self.fold.known }.into();
        }
        self.stage = Stage::Reading { claim: offset, read: None };
        self.attempt = Attempt::First;
        self.request(around)
    }

    pub fn append_failed(&mut self, ticket: Ticket, failure: AppendFailure, around: &mut Surroundings<'_>) -> Progress {
        if !matches!(self.stage, Stage::Claiming(Some(claim)) if claim == ticket) {
            return Progress::Waiting;
        }
        match failure {
            // A claim that may be there is claimed over, unless somebody else has claimed since.
            AppendFailure::Unknown(reason) | AppendFailure::Unavailable(reason) => {
                self.stage = self.before_claim();
                self.attempt = Attempt::Again(ticket);
                self.fail(reason, around)
            }
            AppendFailure::TooLarge(reason) | AppendFailure::Stopped(reason) => CellFailure::Append { reason }.into(),
        }
    }

    pub fn read(&mut self, ticket: Ticket, records: &[Record], around: &mut Surroundings<'_>) -> Progress {
        let (until, read) = match &self.stage {
            Stage::Checking(read) => (None, *read),
            Stage::Reading { claim, read } => (Some(*claim), *read),
            Stage::Seeking { read, .. } if *read == Some(ticket) => return self.sought(records, around),
            _ => return Progress::Waiting,
        };
        if read != Some(ticket) {
            return Progress::Waiting;
        }
        for record in records.iter().take_while(|record| until.is_none_or(|claim| record.offset <= claim)) {
            match self.fold.take(record) {
                Ok(_) => {}
                Err(FoldError::Unreadable(unreadable)) => {
                    let Some(word) = self.words.about(&unreadable).cloned() else {
                        let before = Box::new(self.stage.clone());
                        self.stage = Stage::Seeking { unreadable, read: None, before };
                        return self.request(around);
                    };
                    self.fold.pass_over(word.offset);
                    around.out.note(Note::PassedOver(word));
                }
                Err(FoldError::Contradicted(contradiction)) => return CellFailure::Contradicted(contradiction).into(),
            }
        }
        match until {
            None if records.is_empty() => self.checked(around),
            Some(claim) if self.fold.known > claim || records.is_empty() => self.has_read(claim, around),
            _ => self.request(around),
        }
    }

    /// Some of what stands behind a record that cannot be read.
    fn sought(&mut self, records: &[Record], around: &mut Surroundings<'_>) -> Progress {
        let Stage::Seeking { unreadable, before, .. } = &self.stage else { return Progress::Waiting };
        if records.is_empty() {
            return CellFailure::Unreadable(unreadable.clone()).into();
        }
        records.iter().for_each(|record| self.words.meet(record));
        if self.words.about(unreadable).is_some() {
            // It meets the record again, and the word about it is known.
            self.stage = before.as_ref().clone();
        }
        self.request(around)
    }

    /// All of `events` is known, without a claim of ours at its end.
    fn checked(&mut self, around: &mut Surroundings<'_>) -> Progress {
        match &self.fold.claimant {
            Some(claimant) if claimant.incarnation != around.config.incarnation => {
                let (by, term) = (claimant.controller.clone(), self.fold.term().unwrap_or_default());
                Progress::End(CellEnd::Superseded { by, term })
            }
            _ => {
                self.stage = Stage::Claiming(None);
                self.request(around)
            }
        }
    }

    /// Whoever led the cell before looks first; who comes to take it over does not ask.
    fn before_claim(&self) -> Stage {
        if self.attempts_max.is_none() { Stage::Checking(None) } else { Stage::Claiming(None) }
    }

    /// Everything up to the claim was read.
    fn has_read(&mut self, claim: Offset, around: &mut Surroundings<'_>) -> Progress {
        let term = Term::of_claim(claim);
        if self.fold.term() != Some(term) {
            // The log acknowledged what it does not show: its copy is behind. Claim and read again.
            self.stage = self.before_claim();
            return self.fail("it does not show the claim that it acknowledged".to_owned(), around);
        }
        self.stage = Stage::Ending { term, ends: Ends::new() };
        self.request(around)
    }

    pub fn read_failed(&mut self, ticket: Ticket, failure: ReadFailure, around: &mut Surroundings<'_>) -> Progress {
        let (Stage::Checking(read) | Stage::Reading { read, .. } | Stage::Seeking { read, .. }) = &self.stage else {
            return Progress::Waiting;
        };
        if *read != Some(ticket) {
            return Progress::Waiting;
        }
        match failure {
            ReadFailure::Trimmed { first } => CellFailure::EventsTrimmed { first }.into(),
            // The claim stands: reading goes on where it was.
            ReadFailure::Unavailable(reason) => self.fail(reason, around),
            ReadFailure::Stopped(reason) => CellFailure::Read { stream: Stream::Events, reason }.into(),
        }
    }

    pub fn end(
        &mut self,
        ticket: Ticket,
        found: Result<Offset, ReadFailure>,
        around: &mut Surroundings<'_>,
    ) -> Progress {
        let (Stage::Looking(ends) | Stage::Ending { ends, .. }) = &mut self.stage else { return Progress::Waiting };
        let Some((stream, entry)) = ends.iter_mut().find(|(_, (asked, _))| *asked == ticket) else {
            return Progress::Waiting;
        };
        match found {
            Ok(end) => entry.1 = Some(end),
            Err(ReadFailure::Unavailable(reason)) => {
                let reason = format!("`{stream}`: {reason}");
                return self.fail(reason, around);
            }
            Err(ReadFailure::Trimmed { first }) => {
                let reason = format!("its records below {first} were removed");
                return CellFailure::Read { stream: *stream, reason }.into();
            }
            Err(ReadFailure::Stopped(reason)) => {
                return CellFailure::Read { stream: *stream, reason }.into();
            }
        }
        let found: Option<BTreeMap<Stream, Offset>> = ends.iter().map(|(s, (_, end))| Some((*s, (*end)?))).collect();
        match found {
            None => Progress::Waiting,
            Some(ends) if matches!(self.stage, Stage::Looking(_)) => self.looked(&ends, around),
            Some(ends) => self.ended(&ends, around),
        }
    }

    /// Inputs without any fact: `events` was lost, and everything ever asked would be done again. Looked at before the claim, so
    /// that it is found again at the next start.
    fn looked(&mut self, ends: &BTreeMap<Stream, Offset>, around: &mut Surroundings<'_>) -> Progress {
        let empty = Offset(0);
        if ends.get(&Stream::Events) == Some(&empty)
            && let Some((stream, end)) = ends.iter().find(|(_, end)| **end > empty)
        {
            return CellFailure::EventsMissing { stream: *stream, end: *end }.into();
        }
        self.stage = Stage::Claiming(None);
        self.request(around)
    }

    /// The inputs have to reach at least as far as they were taken.
    fn ended(&mut self, ends: &BTreeMap<Stream, Offset>, around: &mut Surroundings<'_>) -> Progress {
        let Stage::Ending { term, .. } = &self.stage else { return Progress::Waiting };
        let mut inputs_end = Positions::default();
        let mut short = None;
        for stream in InputStream::ALL {
            let (end, taken) = (ends.get(&stream.into()).copied().unwrap_or_default(), self.fold.positions.of(stream));
            inputs_end.set(stream, end);
            if end < taken {
                short = Some(CellFailure::InputShortened { stream: stream.into(), end, taken });
            }
        }
        if let Some(failure) = short {
            self.short_looks += 1;
            if self.short_looks >= SHORT_LOOKS_MAX {
                return failure.into();
            }
            return self.fail(failure.to_string(), around);
        }
        let term = *term;
        let fold = std::mem::replace(&mut *self.fold, Fold::new(around.config.cell));
        Progress::Recovered(Box::new(Recovered { fold, term, inputs_end }))
    }

    /// Goes on at once.
    fn request(&mut self, around: &mut Surroundings<'_>) -> Progress {
        self.again_ms = Some(around.now_ms);
        self.go_on(around);
        Progress::Waiting
    }

    /// Tries the stage again after a pause, unless a person has waited long enough.
    fn fail(&mut self, reason: String, around: &mut Surroundings<'_>) -> Progress {
        self.attempts += 1;
        if self.attempts_max.is_some_and(|max| self.attempts >= max) {
            return CellFailure::Attempts { attempts: self.attempts, last: reason }.into();
        }
        self.again_ms = Some(around.now_ms + self.backoff.pause_ms());
        around.out.note(Note::TakeOverAgain { attempts: self.attempts, reason });
        Progress::Waiting
    }
}
