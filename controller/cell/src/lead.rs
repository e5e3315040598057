//! One term: take inputs, decide, append one batch, and only when it counts let anybody know.
//!
//! An append whose outcome is unknown is found out by reading, never guessed: the state is dropped. A batch that landed behind
//! foreign records counts only if the rule says so. Next file: `links.rs` (what becomes of it).
//!
//! Next on a job's path: `controller/core/src/apply/mod.rs`.

use crate::end::{CellEnd, CellFailure};
use crate::health::Health;
use crate::intake::{Counts, Due, Intake, Limits, Prepared, prepare};
use crate::links::Links;
use crate::message::{AppendFailure, Attempt, CellConfig, Out, ReadFailure, Ticket};
use crate::note::Note;
use crate::outbox::{Backoff, Outbox};
use crate::take_over::Recovered;
use controller_core::{Interrupt, Policy};
use controller_fold::{Fold, FoldError, Folded};
use events_rule::count::{read_event, split};
use events_rule::{RECORD_LEN_MAX, Record, Stream};
use events_schema::batch::{EventRecord, Taken};
use events_schema::{Offset, Sequence, Term, TimeMs};
use std::collections::VecDeque;

/// Longest pause before a record is tried again: short, because the log may be back any moment.
const PAUSE_MAX_MS: u64 = 250;

/// Bytes of `events` held at once: one full record and then some.
const PIECE_BYTES_MAX: usize = 16 << 20;

/// So often the log may show nothing where it acknowledged a record: its copy is behind.
const EMPTY_READS_MAX: u32 = 40;

#[derive(Debug, Clone)]
pub(crate) struct Lead {
    pub fold: Fold,
    pub term: Term,
    pub since_ms: u64,
    intake: Intake,
    limits: Limits,
    /// Batches that did not fit the log.
    too_large: usize,
    /// What happened while nobody decided is still on its way up from the agents. Time alone decides nothing before each of them
    /// has had its chance to say it: a training job would be taken for one that never began.
    quiet_until_ms: u64,
    ticked_ms: u64,
    /// Since when a plan is put off that was due.
    owed_since_ms: Option<u64>,
    commit: Option<Commit>,
    gap: Option<Gap>,
    /// A look at what others wrote while an append of ours is not answered, and up to where such looks came.
    glance: Option<Ticket>,
    glanced: Offset,
    /// Up to here `events` was seen to reach and nothing was found: offsets that belong to no record.
    empty_until: Offset,
}

/// A batch on its way.
#[derive(Debug, Clone)]
struct Commit {
    /// Its records; the first is the one being appended.
    parts: VecDeque<Vec<u8>>,
    append: Option<Ticket>,
    /// What the next append is.
    attempt: Attempt,
    again_ms: Option<u64>,
    backoff: Backoff,
    sequence: Sequence,
    counts: Counts,
    taken: Vec<Taken>,
}

/// Records of `events` that stand before one of ours, or that nobody here wrote.
#[derive(Debug, Clone)]
struct Gap {
    until: Offset,
    read: Option<Ticket>,
    again_ms: Option<u64>,
    backoff: Backoff,
    empty_reads: u32,
}

/// What an answer has led to.
#[derive(Debug)]
pub(crate) enum Step {
    Stay,
    /// What was decided counts.
    Committed,
    /// What is in the log is not known any more, or not understood as it comes: drop the state, claim, and read.
    Recover(String),
    End(CellEnd),
}

/// What leading needs of its surroundings.
pub(crate) struct Around<'a> {
    pub config: &'a CellConfig,
    pub policy: &'a dyn Policy,
    /// What plans are abandoned for.
    pub interrupt: Option<&'a Interrupt>,
    pub links: &'a Links,
    pub now_ms: u64,
    /// Controller time.
    pub at: TimeMs,
    pub health: &'a mut Health,
    pub out: &'a mut Outbox,
}

impl Lead {
    pub fn new(recovered: Recovered, config: &CellConfig, now_ms: u64) -> Self {
        let Recovered { fold, term, inputs_end } = recovered;
        let awaited = fold.state.servers().any(|(_, server)| server.connected);
        let quiet_ms = if awaited { config.agent_lease_ms } else { 0 };
        Self {
            intake: Intake::new(&fold.positions, &inputs_end),
            fold,
            term,
            since_ms: now_ms,
            limits: Limits::default(),
            too_large: 0,
            quiet_until_ms: now_ms + quiet_ms,
            ticked_ms: now_ms,
            owed_since_ms: None,
            commit: None,
            gap: None,
            glance: None,
            glanced: Offset(0),
            empty_until: Offset(0),
        }
    }

    /// Whether time alone may decide something now.
    pub fn tick_is_due(&self, config: &CellConfig, now_ms: u64) -> bool {
        self.is_idle() && self.tick_ms(config) <= now_ms && self.intake.has_caught_up(&self.fold.positions)
    }

    /// Whether [`Lead::go_on`] decides something: then it may make a plan, and whatever was said before ought to be on its way.
    pub fn decides(&self, config: &CellConfig, now_ms: u64) -> bool {
        let waits = !self.intake.is_empty() || self.owed_since_ms.is_some();
        self.is_idle() && waits || self.tick_is_due(config, now_ms)
    }

    fn is_idle(&self) -> bool {
        self.commit.is_none() && self.gap.is_none()
    }

    fn tick_ms(&self, config: &CellConfig) -> u64 {
        (self.ticked_ms + config.tick_ms).max(self.quiet_until_ms)
    }

    /// When something is due.
    pub fn next_ms(&self, config: &CellConfig) -> Option<u64> {
        let again = self.commit.as_ref().and_then(|commit| commit.again_ms);
        let gap = self.gap.as_ref().and_then(|gap| gap.again_ms);
        let ticks = self.is_idle() && self.intake.has_caught_up(&self.fold.positions);
        let tick = ticks.then(|| self.tick_ms(config));
        let owed = self.owed_since_ms.filter(|_| self.is_idle());
        [again, gap, tick, owed, self.intake.next_ms()].into_iter().flatten().min()
    }

    /// Up to where a stream is known.
    pub fn known(&self, stream: Stream) -> Offset {
        match stream {
            Stream::Events => self.fold.known,
            stream => self.intake.next(stream).unwrap_or_default(),
        }
    }

    /// Reads on wherever there is room.
    pub fn read_on(&mut self, around: &mut Around<'_>) {
        self.intake.go_on(around.now_ms, around.out);
    }

    /// Tries again what is due, and begins a batch if there is something to decide and none is on its way.
    pub fn go_on(&mut self, due: &Due, around: &mut Around<'_>) {
        if let Some(gap) = &mut self.gap {
            if gap.again_ms.take_if(|again_ms| *again_ms <= around.now_ms).is_some() {
                gap.read = Some(around.out.read(Stream::Events, self.fold.known, PIECE_BYTES_MAX));
                self.glance = None;
            }
            return;
        }
        if let Some(commit) = &mut self.commit {
            if commit.again_ms.take_if(|again_ms| *again_ms <= around.now_ms).is_some() {
                commit.append(around);
            }
            return;
        }
        if due.tick {
            self.ticked_ms = around.now_ms;
        }
        if self.intake.is_empty() && !due.tick && self.owed_since_ms.is_none() {
            return;
        }
        let owed_ms = self.owed_since_ms.map(|since_ms| around.now_ms.saturating_sub(since_ms));
        let prepared = prepare(&self.fold, &self.intake, &self.limits, due, owed_ms, around);
        self.owed_since_ms = prepared.owes_plan.then(|| self.owed_since_ms.unwrap_or(around.now_ms));
        if !prepared.is_empty() {
            self.begin(prepared, around);
        }
    }

    fn begin(&mut self, prepared: Prepared, around: &mut Around<'_>) {
        let sequence = self.fold.counter.next_sequence();
        let (counts, taken) = (prepared.counts, prepared.taken.clone());
        let parts = split(prepared.batch(self.term, sequence), RECORD_LEN_MAX).into();
        let backoff = Backoff::new(PAUSE_MAX_MS);
        let (append, attempt, again_ms) = (None, Attempt::Decided, None);
        let commit = Commit { parts, append, attempt, again_ms, backoff, sequence, counts, taken };
        self.commit.insert(commit).append(around);
    }

    /// An append is answered. Folds what stands in the log up to it, ours or not.
    pub fn appended(&mut self, ticket: Ticket, offset: Offset, around: &mut Around<'_>) -> Step {
        let Some(commit) = self.commit.as_mut().filter(|commit| commit.append == Some(ticket)) else {
            return Step::Stay;
        };
        commit.append = None;
        if offset != self.fold.known {
            self.read_up_to(offset.next(), around);
            return Step::Stay;
        }
        // Nobody came between: the record is the next one, and its bytes are in our hands.
        let bytes = commit.parts.front().cloned().unwrap_or_default();
        match self.take(&Record { offset, bytes: bytes.into() }, around) {
            Ok(()) => self.part_is_there(around),
            Err(error) => Self::not_folded(error),
        }
    }

    pub fn append_failed(&mut self, ticket: Ticket, failure: AppendFailure, around: &mut Around<'_>) -> Step {
        let Some(commit) = self.commit.as_mut().filter(|commit| commit.append == Some(ticket)) else {
            return Step::Stay;
        };
        commit.append = None;
        match failure {
            AppendFailure::Unknown(reason) => Step::Recover(format!("the outcome of an append is unknown: {reason}")),
            AppendFailure::Unavailable(_) => {
                commit.again_ms = Some(around.now_ms + commit.backoff.pause_ms());
                commit.attempt = Attempt::Again(ticket);
                Step::Stay
            }
            AppendFailure::TooLarge(reason) => {
                let inputs = commit.counts.iter().sum();
                self.too_large += 1;
                self.limits = Limits::after_too_large(&commit.taken, inputs, self.too_large, &reason);
                self.commit = None;
                around.out.note(Note::BatchTooLarge { inputs, reason });
                Step::Stay
            }
            AppendFailure::Stopped(reason) => Step::End(CellEnd::Failed(CellFailure::Append { reason })),
        }
    }

    /// A record of the batch stands in the log and is folded.
    fn part_is_there(&mut self, around: &mut Around<'_>) -> Step {
        if self.fold.term() != Some(self.term) {
            return self.superseded(around.config);
        }
        let Some(commit) = &mut self.commit else { return Step::Stay };
        commit.parts.pop_front();
        if !commit.parts.is_empty() {
            commit.attempt = Attempt::First;
            commit.append(around);
            return Step::Stay;
        }
        let (sequence, counts) = (commit.sequence, commit.counts);
        self.commit = None;
        if !self.fold.counter.counted(self.term, sequence) {
            // Its own claim is in force and yet it did not count: a record before it was lost. What is true only the log knows.
            return Step::Recover("a batch does not count although its claim is in force".to_owned());
        }
        self.intake.taken(&counts);
        self.limits = Limits::default();
        Step::Committed
    }

    /// Somebody looked where `events` ends.
    pub fn events_end(&mut self, end: Offset, around: &mut Around<'_>) {
        // What is not there is not looked for again at every look: nothing is decided meanwhile, and a record that comes after all is met by our next append.
        if end <= self.fold.known.max(self.empty_until) || self.gap.is_some() {
            return;
        }
        if self.commit.is_none() {
            self.read_up_to(end, around);
        } else if !around.health.is_well(around.now_ms) && self.glance.is_none() {
            // What an append of our own is on its way to its answer will tell; but while that takes long, agents stay with who may have been replaced.
            let from = self.fold.known.max(self.glanced);
            self.glance = (end > from).then(|| around.out.read(Stream::Events, from, PIECE_BYTES_MAX));
        }
    }

    /// Takes in what was read. Records of inputs wait until they are decided about.
    pub fn read(&mut self, ticket: Ticket, records: Vec<Record>, around: &mut Around<'_>) -> Step {
        if let Some(stream) = self.intake.read(ticket, &records, around.now_ms) {
            around.health.read_ended(stream.into(), true);
            return Step::Stay;
        }
        if self.glance.take_if(|glance| *glance == ticket).is_some() {
            self.glanced = records.last().map_or(self.glanced, |record| record.offset.next());
            return replaced(&records, around.config).map_or(Step::Stay, Step::End);
        }
        let Some(gap) = self.gap.as_mut().filter(|gap| gap.read == Some(ticket)) else { return Step::Stay };
        (gap.read, gap.again_ms) = (None, Some(around.now_ms));
        if records.is_empty() && self.commit.is_none() {
            // Nobody is known to have written there: on Kafka the last offsets may belong to no record.
            self.empty_until = gap.until;
            self.gap = None;
            return Step::Stay;
        }
        if records.is_empty() {
            gap.empty_reads += 1;
            gap.again_ms = Some(around.now_ms + gap.backoff.pause_ms());
            if gap.empty_reads >= EMPTY_READS_MAX {
                return Step::Recover("the log does not show what it acknowledged".to_owned());
            }
        }
        let until = gap.until;
        for record in records.iter().take_while(|record| record.offset < until) {
            if let Err(error) = self.take(record, around) {
                return Self::not_folded(error);
            }
        }
        if self.fold.known < until {
            return Step::Stay;
        }
        self.gap = None;
        if self.commit.is_some() {
            return self.part_is_there(around);
        }
        if self.fold.term() == Some(self.term) { Step::Stay } else { self.superseded(around.config) }
    }

    pub fn read_failed(&mut self, ticket: Ticket, failure: ReadFailure, around: &mut Around<'_>) -> Step {
        if let Some((stream, from)) = self.intake.read_failed(ticket, around.now_ms) {
            let stream = stream.into();
            return match failure {
                ReadFailure::Trimmed { first } => {
                    Step::End(CellEnd::Failed(CellFailure::InputTrimmed { stream, from, first }))
                }
                ReadFailure::Unavailable(reason) => {
                    if around.health.read_ended(stream, false) {
                        around.out.note(Note::ReadWaits { stream, reason });
                    }
                    Step::Stay
                }
                ReadFailure::Stopped(reason) => Step::End(CellEnd::Failed(CellFailure::Read { stream, reason })),
            };
        }
        if self.glance.take_if(|glance| *glance == ticket).is_some() {
            return Step::Stay;
        }
        let Some(gap) = self.gap.as_mut().filter(|gap| gap.read == Some(ticket)) else { return Step::Stay };
        gap.read = None;
        match failure {
            ReadFailure::Trimmed { first } => Step::End(CellEnd::Failed(CellFailure::EventsTrimmed { first })),
            ReadFailure::Unavailable(_) => {
                gap.again_ms = Some(around.now_ms + gap.backoff.pause_ms());
                Step::Stay
            }
            ReadFailure::Stopped(reason) => {
                Step::End(CellEnd::Failed(CellFailure::Read { stream: Stream::Events, reason }))
            }
        }
    }

    /// Reads everything of `events` below an offset.
    fn read_up_to(&mut self, until: Offset, around: &mut Around<'_>) {
        let read = Some(around.out.read(Stream::Events, self.fold.known, PIECE_BYTES_MAX));
        let backoff = Backoff::new(PAUSE_MAX_MS);
        // A read takes the place of the one before it, which is then not answered.
        self.glance = None;
        self.gap = Some(Gap { until, read, again_ms: None, backoff, empty_reads: 0 });
    }

    /// A record that cannot be read may be one that an operator had passed over further down: recovery looks there, and ends if nobody did.
    fn not_folded(error: FoldError) -> Step {
        match error {
            FoldError::Unreadable(unreadable) => Step::Recover(unreadable.to_string()),
            FoldError::Contradicted(contradiction) => {
                Step::End(CellEnd::Failed(CellFailure::Contradicted(contradiction)))
            }
        }
    }

    fn take(&mut self, record: &Record, around: &mut Around<'_>) -> Result<(), FoldError> {
        match self.fold.take(record)? {
            Folded::Counts(batch) => around.out.push(Out::Counted(Box::new(batch))),
            Folded::Skipped(cause) => around.out.note(Note::Skipped { offset: record.offset, cause }),
            Folded::Claimed | Folded::Incomplete | Folded::PassesOver(_) => {}
        }
        Ok(())
    }

    /// Who claimed the cell over us: another one, or a late claim of our own whose outcome had stayed unknown.
    fn superseded(&self, config: &CellConfig) -> Step {
        match &self.fold.claimant {
            Some(claimant) if claimant.incarnation == config.incarnation => {
                Step::Recover("an earlier claim of this controller came late".to_owned())
            }
            claimant => {
                let by = claimant.as_ref().map_or_else(String::new, |claimant| claimant.controller.clone());
                Step::End(CellEnd::Superseded { by, term: self.fold.term().unwrap_or_default() })
            }
        }
    }
}

/// Whether somebody else has claimed the cell among records that are not folded, because an append of ours that is not answered may be one of them. A late claim of
/// our own behind that one is in force.
fn replaced(records: &[Record], config: &CellConfig) -> Option<CellEnd> {
    let claim = |record: &Record| match read_event(record) {
        Ok(EventRecord::Claim { controller, incarnation }) => Some((record.offset, controller, incarnation)),
        _ => None,
    };
    let (offset, by, incarnation) = records.iter().rev().find_map(claim)?;
    (incarnation != config.incarnation).then(|| CellEnd::Superseded { by, term: Term::of_claim(offset) })
}

impl Commit {
    fn append(&mut self, around: &mut Around<'_>) {
        let Some(record) = self.parts.front() else { return };
        let ticket = around.out.append(Stream::Events, record.clone(), self.attempt);
        around.health.append_begun(ticket, Stream::Events, around.now_ms);
        self.append = Some(ticket);
    }
}
