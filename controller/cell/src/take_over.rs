//! Taking over a cell: claim it, then read everything below the claim. From the claim's own offset on no other controller's
//! batch counts, so what is read is all there will ever be.
//!
//! Before the first claim of a process it looks whether the log can be that of a cell at all; after reading, whether the inputs
//! are those that the facts came from. There are no snapshots yet: all of `events` is read. Next file: `lead.rs`.

use crate::end::CellFailure;
use crate::fold::{Fold, Positions};
use crate::health::Health;
use crate::message::{AppendFailure, CellConfig, ReadFailure, Ticket};
use crate::note::Note;
use crate::outbox::{Backoff, Outbox};
use events_rule::{Record, Stream};
use events_schema::batch::{EventRecord, InputStream, to_bytes};
use events_schema::{Epoch, Offset};
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
    /// When the stage's requests are made, again or for the first time.
    again_ms: Option<u64>,
    attempts: u32,
    attempts_max: Option<u32>,
    backoff: Backoff,
    /// What this process once knew to be in `events`.
    known: Offset,
    short_looks: u32,
}

#[derive(Debug, Clone)]
enum Stage {
    /// Asks where all streams end.
    Looking(Ends),
    /// Appends the claim.
    Claiming(Option<Ticket>),
    /// Reads up to the claim.
    Reading { claim: Offset, fold: Box<Fold>, read: Option<Ticket> },
    /// Asks where the inputs end.
    Ending { fold: Box<Fold>, epoch: Epoch, ends: Ends },
}

/// Where streams end, as far as it is known.
type Ends = BTreeMap<Stream, (Ticket, Option<Offset>)>;

/// A cell in our hands.
#[derive(Debug, Clone)]
pub(crate) struct Recovered {
    pub fold: Fold,
    pub epoch: Epoch,
    /// Ends of the inputs at the take-over: all before them is read before anything is decided from time alone.
    pub inputs_end: Positions,
}

/// What an answer has led to.
#[derive(Debug)]
pub(crate) enum Progress {
    Waiting,
    Recovered(Box<Recovered>),
    Failed(CellFailure),
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
    pub fn first(now_ms: u64) -> Self {
        Self::new(Stage::Looking(Ends::new()), Some(START_ATTEMPTS_MAX), Offset(0), now_ms)
    }

    /// One more, after `known` records were known to be in `events`.
    pub fn again(known: Offset, at_ms: u64) -> Self {
        Self::new(Stage::Claiming(None), None, known, at_ms)
    }

    fn new(stage: Stage, attempts_max: Option<u32>, known: Offset, at_ms: u64) -> Self {
        let backoff = Backoff::new(PAUSE_MAX_MS);
        Self { stage, again_ms: Some(at_ms), attempts: 0, attempts_max, backoff, known, short_looks: 0 }
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
                let ticket = around.out.append(Stream::Events, to_bytes(&claim));
                around.health.append_begun(ticket, Stream::Events, around.now_ms);
                *append = Some(ticket);
            }
            Stage::Reading { fold, read, .. } => {
                *read = Some(around.out.read(Stream::Events, fold.known, PIECE_BYTES_MAX));
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
        if offset < self.known {
            return Progress::Failed(CellFailure::EventsShortened { end: offset, known: self.known });
        }
        let fold = Box::new(Fold::new(around.config.cell));
        self.stage = Stage::Reading { claim: offset, fold, read: None };
        self.request(around)
    }

    pub fn append_failed(&mut self, ticket: Ticket, failure: AppendFailure, around: &mut Surroundings<'_>) -> Progress {
        if !matches!(self.stage, Stage::Claiming(Some(claim)) if claim == ticket) {
            return Progress::Waiting;
        }
        match failure {
            // A claim that may be there is claimed over.
            AppendFailure::Unknown(reason) | AppendFailure::Unavailable(reason) => self.fail(reason, around),
            AppendFailure::TooLarge(reason) | AppendFailure::Stopped(reason) => {
                Progress::Failed(CellFailure::Append { reason })
            }
        }
    }

    pub fn read(&mut self, ticket: Ticket, records: &[Record], around: &mut Surroundings<'_>) -> Progress {
        let Stage::Reading { claim, fold, read } = &mut self.stage else { return Progress::Waiting };
        if *read != Some(ticket) {
            return Progress::Waiting;
        }
        let claim = *claim;
        for record in records.iter().take_while(|record| record.offset <= claim) {
            if let Err(unreadable) = fold.take(record) {
                return Progress::Failed(CellFailure::Unreadable(unreadable));
            }
        }
        let epoch = Epoch::of_claim(claim);
        if fold.known <= claim && !records.is_empty() {
            return self.request(around);
        }
        if fold.epoch() != Some(epoch) {
            // The log acknowledged what it does not show: its copy is behind. Claim and read again.
            self.stage = Stage::Claiming(None);
            return self.fail("it does not show the claim that it acknowledged".to_owned(), around);
        }
        let fold = std::mem::replace(fold, Box::new(Fold::new(around.config.cell)));
        self.stage = Stage::Ending { fold, epoch, ends: Ends::new() };
        self.request(around)
    }

    pub fn read_failed(&mut self, ticket: Ticket, failure: ReadFailure, around: &mut Surroundings<'_>) -> Progress {
        if !matches!(self.stage, Stage::Reading { read: Some(read), .. } if read == ticket) {
            return Progress::Waiting;
        }
        match failure {
            ReadFailure::Trimmed { first } => Progress::Failed(CellFailure::EventsTrimmed { first }),
            // The claim stands: reading goes on where it was.
            ReadFailure::Unavailable(reason) => self.fail(reason, around),
            ReadFailure::Stopped(reason) => Progress::Failed(CellFailure::Read { stream: Stream::Events, reason }),
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
                return Progress::Failed(CellFailure::Read { stream: *stream, reason });
            }
            Err(ReadFailure::Stopped(reason)) => {
                return Progress::Failed(CellFailure::Read { stream: *stream, reason });
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
            return Progress::Failed(CellFailure::EventsMissing { stream: *stream, end: *end });
        }
        self.stage = Stage::Claiming(None);
        self.request(around)
    }

    /// The inputs have to reach at least as far as they were taken.
    fn ended(&mut self, ends: &BTreeMap<Stream, Offset>, around: &mut Surroundings<'_>) -> Progress {
        let Stage::Ending { fold, epoch, .. } = &mut self.stage else { return Progress::Waiting };
        let mut inputs_end = Positions::default();
        let mut short = None;
        for stream in InputStream::ALL {
            let (end, taken) = (ends.get(&stream.into()).copied().unwrap_or_default(), fold.positions.of(stream));
            inputs_end.set(stream, end);
            if end < taken {
                short = Some(CellFailure::InputShortened { stream: stream.into(), end, taken });
            }
        }
        if let Some(failure) = short {
            self.short_looks += 1;
            if self.short_looks >= SHORT_LOOKS_MAX {
                return Progress::Failed(failure);
            }
            return self.fail(failure.to_string(), around);
        }
        let fold = std::mem::replace(&mut **fold, Fold::new(around.config.cell));
        Progress::Recovered(Box::new(Recovered { fold, epoch: *epoch, inputs_end }))
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
            return Progress::Failed(CellFailure::Attempts { attempts: self.attempts, last: reason });
        }
        self.again_ms = Some(around.now_ms + self.backoff.pause_ms());
        around.out.note(Note::TakeOverAgain { attempts: self.attempts, reason });
        Progress::Waiting
    }
}
