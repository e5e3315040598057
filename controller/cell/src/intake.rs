//! Inputs on their way from the log into batches, and one batch: some of them, the facts that follow, and the places they were
//! taken from. Nothing here changes the fold; facts take effect in a copy until the log has them.
//!
//! Fair: of what waits, every stream has its share of each batch, so none starves another. What presses waits for no plan, and a plan for what presses a bounded time
//! (`pressing.rs`). Next file: `lead.rs`, which commits.
//!
//! Next on a job's path: `controller/core/src/decide/mod.rs`, what they mean.

use crate::lead::Around;
use crate::links::Links;
use crate::message::Ticket;
use crate::note::Note;
use crate::outbox::Outbox;
use crate::pressing::input_presses;
use controller_core::{
    Abandoned, Input, Interrupt, Planned, Policy, State, decide_input_folded, plan_due, plan_unless_pressed,
};
use controller_fold::{Fold, Positions};
use events_rule::{Record, Stream};
use events_schema::batch::{Batch, DecodeError, InputStream, Taken, from_bytes};
use events_schema::fact::Fact;
use events_schema::report::{Report, ReportRecord};
use events_schema::trace::CausedFacts;
use events_schema::{Offset, Sequence, Term, TimeMs, TraceContext};
use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

/// Inputs of one batch: at ten microseconds to decide one, a batch stays near the time of one append, so an input that just
/// missed a batch does not wait long for the next.
const INPUTS_MAX: usize = 256;

/// Bytes read of each stream at once: 256 submits with specs of a few kilobytes.
const READ_BYTES_MAX: usize = 1 << 20;

/// Pause after a read that failed or gave nothing where something should stand: short, because the log may be back any moment.
const READ_PAUSE_MS: u64 = 200;

/// So often nothing is found where a stream was seen to reach beyond, before that is taken for a gap at its end: on Kafka the
/// last offsets may belong to no record.
const EMPTY_READS_MAX: u32 = 25;

/// Most bytes kept of a panic's text: it goes into a fact, and a fact has to fit a record whatever a program says when it dies.
const PANIC_TEXT_LEN_MAX: usize = 1_000;

/// So long a plan is put off for what presses. Then it is made whatever presses, so that a flood of signals keeps no job waiting. A reclaim may wait for that one; plans take
/// some ten milliseconds on a large cell, so of a flood of reclaims it is one in a hundred.
const PLAN_PUT_OFF_MAX_MS: u64 = 1_000;

/// Places in a list of one entry per input stream, in the order of [`InputStream::ALL`].
const STREAMS: usize = InputStream::ALL.len();

/// What was read of the input streams and is not taken yet.
#[derive(Debug, Clone)]
pub(crate) struct Intake([Waiting; STREAMS]);

#[derive(Debug, Clone)]
struct Waiting {
    stream: InputStream,
    records: VecDeque<Waits>,
    /// First offset not read.
    next: Offset,
    /// Up to here it is read before anything is decided from time alone.
    goal: Offset,
    empty_reads: u32,
    read: Option<Ticket>,
    again_ms: Option<u64>,
}

/// An input that was read.
#[derive(Debug, Clone)]
struct Waits {
    offset: Offset,
    input: Result<Input, DecodeError>,
    presses: bool,
}

impl Waits {
    fn new(stream: InputStream, record: &Record) -> Self {
        let input = decode(stream, &record.bytes);
        let presses = input_presses(stream, input.as_ref().ok());
        Self { offset: record.offset, input, presses }
    }
}

impl Waiting {
    /// Whether what stood there at the take-over was taken.
    fn has_caught_up(&self, taken: Offset) -> bool {
        taken >= self.goal || (self.records.is_empty() && self.empty_reads >= EMPTY_READS_MAX)
    }
}

/// How many inputs of each stream a batch takes.
pub(crate) type Counts = [usize; STREAMS];

impl Intake {
    /// Begins where the last batch ended.
    pub fn new(positions: &Positions, ends: &Positions) -> Self {
        Self(InputStream::ALL.map(|stream| Waiting {
            stream,
            records: VecDeque::new(),
            next: positions.of(stream),
            goal: ends.of(stream),
            empty_reads: 0,
            read: None,
            again_ms: None,
        }))
    }

    /// Reads on wherever there is room.
    pub fn go_on(&mut self, now_ms: u64, out: &mut Outbox) {
        for waiting in &mut self.0 {
            let idle = waiting.read.is_none() && waiting.records.len() < INPUTS_MAX;
            if !idle || waiting.again_ms.is_some_and(|again_ms| again_ms > now_ms) {
                continue;
            }
            waiting.again_ms = None;
            let (stream, from) = (waiting.stream.into(), waiting.next);
            let behind = waiting.next < waiting.goal && waiting.empty_reads < EMPTY_READS_MAX;
            let read = if behind { Outbox::read } else { Outbox::follow };
            waiting.read = Some(read(out, stream, from, READ_BYTES_MAX));
        }
    }

    /// Takes in what was read; the stream, if the ticket was one of these.
    pub fn read(&mut self, ticket: Ticket, records: &[Record], now_ms: u64) -> Option<InputStream> {
        let waiting = self.0.iter_mut().find(|waiting| waiting.read == Some(ticket))?;
        waiting.read = None;
        match records.last() {
            Some(last) => {
                waiting.next = last.offset.next();
                waiting.empty_reads = 0;
                let stream = waiting.stream;
                waiting.records.extend(records.iter().map(|record| Waits::new(stream, record)));
            }
            None => {
                waiting.empty_reads = waiting.empty_reads.saturating_add(1);
                waiting.again_ms = Some(now_ms + READ_PAUSE_MS);
            }
        }
        Some(waiting.stream)
    }

    /// A read failed; its stream and where it should have begun, if the ticket was one of these.
    pub fn read_failed(&mut self, ticket: Ticket, now_ms: u64) -> Option<(InputStream, Offset)> {
        let waiting = self.0.iter_mut().find(|waiting| waiting.read == Some(ticket))?;
        waiting.read = None;
        waiting.again_ms = Some(now_ms + READ_PAUSE_MS);
        Some((waiting.stream, waiting.next))
    }

    /// When something is due again.
    pub fn next_ms(&self) -> Option<u64> {
        self.0.iter().filter_map(|waiting| waiting.again_ms).min()
    }

    /// First offset not read.
    pub fn next(&self, stream: Stream) -> Option<Offset> {
        self.0.iter().find(|waiting| Stream::from(waiting.stream) == stream).map(|waiting| waiting.next)
    }

    /// Whether there is nothing to take.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|waiting| waiting.records.is_empty())
    }

    /// Whether anything is to be decided before a plan is made.
    fn presses(&self) -> bool {
        self.0.iter().flat_map(|waiting| &waiting.records).any(|waits| waits.presses)
    }

    /// Whether anything is, beyond what a batch takes.
    fn presses_beyond(&self, counts: &Counts) -> bool {
        let beyond = self.0.iter().zip(counts).flat_map(|(waiting, count)| waiting.records.iter().skip(*count));
        beyond.into_iter().any(|waits| waits.presses)
    }

    /// Whether everything that stood there at the take-over was taken.
    pub fn has_caught_up(&self, positions: &Positions) -> bool {
        self.0.iter().all(|waiting| waiting.has_caught_up(positions.of(waiting.stream)))
    }

    /// Forgets what a batch that counts has taken.
    pub fn taken(&mut self, counts: &Counts) {
        for (waiting, count) in self.0.iter_mut().zip(counts) {
            waiting.records.drain(..*count);
        }
    }

    /// How many of each stream the next batch takes: an equal share each, and what one leaves goes to the others, to that at place
    /// `first` before them.
    fn counts(&self, inputs_max: usize, first: usize) -> Counts {
        let share = inputs_max / STREAMS;
        let mut counts = [0; STREAMS];
        for (count, waiting) in counts.iter_mut().zip(&self.0) {
            *count = waiting.records.len().min(share);
        }
        let mut room = inputs_max - counts.iter().sum::<usize>();
        for place in (first..first + STREAMS).map(|place| place % STREAMS) {
            let more = (self.0[place].records.len() - counts[place]).min(room);
            counts[place] += more;
            room -= more;
        }
        counts
    }
}

/// What a batch may hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Limits {
    inputs_max: usize,
    /// The stream whose turn it is to go first.
    first: usize,
    /// This input is refused for this reason, without looking at it.
    refuse: Option<(InputStream, Offset, String)>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { inputs_max: INPUTS_MAX, first: 0, refuse: None }
    }
}

impl Limits {
    /// After a batch did not fit, the `time`th: first one input at a time, of each stream in turn, then refuse the one that does not
    /// fit alone.
    pub fn after_too_large(taken: &[Taken], inputs: usize, time: usize, reason: &str) -> Self {
        let alone = taken.first().filter(|_| inputs == 1);
        let refuse = alone
            .map(|taken| (taken.stream, taken.from, format!("what follows from it does not fit the log: {reason}")));
        let alone = refuse.as_ref().and_then(|(stream, ..)| InputStream::ALL.iter().position(|s| s == stream));
        Self { inputs_max: 1, first: alone.unwrap_or(time % STREAMS), refuse }
    }
}

/// A batch before its place is known.
#[derive(Debug, Clone)]
pub(crate) struct Prepared {
    /// How many inputs of each stream it takes.
    pub counts: Counts,
    pub taken: Vec<Taken>,
    /// Whether a plan was due and is not in it.
    pub owes_plan: bool,
    at: TimeMs,
    facts: Vec<Fact>,
    causes: Vec<CausedFacts>,
}

impl Prepared {
    /// Whether there is nothing to write down.
    pub fn is_empty(&self) -> bool {
        self.taken.is_empty() && self.facts.is_empty()
    }

    pub fn batch(self, term: Term, sequence: Sequence) -> Batch {
        Batch { term, sequence, part: None, taken: self.taken, at: self.at, facts: self.facts, causes: self.causes }
    }
}

/// What is decided besides inputs: that time has passed, and what the controller itself has seen.
#[derive(Debug, Clone, Default)]
pub(crate) struct Due {
    pub tick: bool,
    /// Agents given up. Decided at once rather than written down as an input first: so nobody is given up for what a controller
    /// saw that was replaced meanwhile, or before an agent was heard again.
    pub seen: Vec<Input>,
}

/// Takes a share of what is there, demand first, then reports, then commands, and decides about each; then about what is due. `owed_ms`: how long a plan is put off by now.
pub(crate) fn prepare(
    fold: &Fold,
    intake: &Intake,
    limits: &Limits,
    due: &Due,
    owed_ms: Option<u64>,
    around: &mut Around<'_>,
) -> Prepared {
    let (policy, links, at) = (around.policy, around.links, around.at.max(fold.at));
    let interrupt = around.interrupt.filter(|_| owed_ms.is_none_or(|owed_ms| owed_ms < PLAN_PUT_OFF_MAX_MS));
    let plans =
        Plans { interrupt, presses: intake.presses(), abandoned: false, has_reclaimed: false, owed: owed_ms.is_some() };
    let state = fold.state.clone();
    let (facts, causes, out) = (Vec::new(), Vec::new(), &mut *around.out);
    let mut draft = Draft { state, at, policy, links, plans, facts, causes, out };
    let counts = intake.counts(limits.inputs_max, limits.first);
    let mut taken = Vec::new();
    for (waiting, count) in intake.0.iter().zip(counts) {
        let (stream, from) = (waiting.stream, fold.positions.of(waiting.stream));
        let mut to = from;
        for waits in waiting.records.iter().take(count) {
            match &limits.refuse {
                Some((refused, first, reason)) if *refused == stream && *first == from => {
                    draft.refuse(stream, waits, reason.clone());
                }
                _ => draft.take(stream, waits),
            }
            to = waits.offset.next();
        }
        if to > from {
            taken.push(Taken { stream, from, to });
        }
    }
    due.seen.iter().for_each(|seen| draft.note_time(seen));
    if due.tick {
        draft.note_time(&Input::Tick);
    }
    draft.plan_what_is_owed(intake.presses_beyond(&counts));
    Prepared { counts, taken, owes_plan: draft.plans.owed, at, facts: draft.facts, causes: draft.causes }
}

/// Whether plans are made as they fall due.
struct Plans<'a> {
    /// What a plan is abandoned for; none if it waits for nothing.
    interrupt: Option<&'a Interrupt>,
    /// Whether something is to be decided first.
    presses: bool,
    /// Whether something has come that is.
    abandoned: bool,
    /// Whether slots go back in this batch: it goes to the log without waiting for a plan.
    has_reclaimed: bool,
    /// Whether one was due and is not made yet.
    owed: bool,
}

impl Plans<'_> {
    fn wait(&self) -> bool {
        self.interrupt.is_some() && (self.presses || self.abandoned || self.has_reclaimed)
    }
}

/// Facts decided so far, and the state with them.
struct Draft<'a> {
    state: State,
    at: TimeMs,
    policy: &'a dyn Policy,
    links: &'a Links,
    plans: Plans<'a>,
    facts: Vec<Fact>,
    /// Which of them follow from an input that carried a trace: carried on, never looked at.
    causes: Vec<CausedFacts>,
    out: &'a mut Outbox,
}

impl Draft<'_> {
    fn take(&mut self, stream: InputStream, waits: &Waits) {
        let decided = match &waits.input {
            // Earlier builds wrote down whom they gave up. It was true for the controller that wrote it, when it did; this one
            // looks itself.
            Ok(Input::Report(report)) if matches!(report.report, Report::AgentGone) => return,
            // An agent that joined and does not speak now may be dead, and its word have come late: behind that of the one that replaced
            // it, whose executors would be taken for gone. One that lives says it again on its next stream.
            Ok(Input::Report(ReportRecord { server, incarnation, report: Report::AgentJoined { .. }, .. }))
                if !self.links.speaks(server, *incarnation) =>
            {
                return;
            }
            Ok(input) => self.decide_for(input),
            Err(error) => Err(error.to_string()),
        };
        if let Err(reason) = decided {
            self.refuse(stream, waits, reason);
        }
    }

    /// Decides about an input; what follows keeps the trace that the input carried.
    fn decide_for(&mut self, input: &Input) -> Result<(), String> {
        let first = self.facts.len();
        let decided = self.decide(input);
        if let Some(trace) = trace_of(input)
            && let (Ok(from), Ok(to)) = (u32::try_from(first), u32::try_from(self.facts.len()))
            && from < to
        {
            self.causes.push(CausedFacts { from, to, trace });
        }
        decided
    }

    /// An input that cannot be read or breaks the state must not stop the cell: it is put on record, and operators are paged.
    fn refuse(&mut self, stream: InputStream, waits: &Waits, reason: String) {
        let offset = waits.offset;
        self.out.note(Note::InputRefused { stream, offset, reason: reason.clone() });
        self.emit(Fact::InputRefused { stream: stream.name().to_owned(), offset, reason });
        // Its agent need not say it again and again, and what it says next is not held up.
        if let Ok(Input::Report(ReportRecord { server, incarnation, number, after, .. })) = &waits.input
            && let Some((known, through)) = self.state.reports_taken(server)
            && (known == *incarnation && through < *number && after.is_none_or(|after| after <= through))
        {
            let (server, incarnation, through) = (server.clone(), *incarnation, *number);
            self.emit(Fact::ReportsTaken { server, incarnation, through });
        }
    }

    fn emit(&mut self, fact: Fact) {
        self.state.apply(self.at, &fact);
        self.facts.push(fact);
    }

    fn note_time(&mut self, input: &Input) {
        if let Err(reason) = self.decide(input) {
            self.out.note(Note::TickFailed { reason });
        }
    }

    /// Decides about an input, then plans if it is time to. What follows from the input stands whatever becomes of the plan.
    fn decide(&mut self, input: &Input) -> Result<(), String> {
        let (name, first) = (self.policy.name(), self.facts.len());
        let changed = self
            .guarded(|state, at| decide_input_folded(state.clone(), at, input, name))
            .map_err(|unwound| format!("deciding about it panicked: {}", panic_text(&*unwound)))?;
        self.plans.has_reclaimed |= self.facts[first..].iter().any(|fact| matches!(fact, Fact::SlotReclaimed { .. }));
        if plan_due(&self.state, self.at, input, changed) {
            self.plan();
        }
        Ok(())
    }

    /// A policy that panics costs its plan only, and is asked again after a pause. A plan that something presses upon is made later.
    fn plan(&mut self) {
        self.plans.owed = self.plans.wait();
        if self.plans.owed {
            return;
        }
        let (policy, interrupt) = (self.policy, self.plans.interrupt);
        let planned = |state: &State, at| {
            let Planned { facts, state, .. } = plan_unless_pressed(state, at, policy, interrupt);
            (facts, state)
        };
        let Err(unwound) = self.guarded(planned) else { return };
        if unwound.is::<Abandoned>() {
            (self.plans.abandoned, self.plans.owed) = (true, true);
            return;
        }
        let reason = panic_text(&*unwound).to_owned();
        self.out.note(Note::PlanFailed { policy: policy.name(), reason: reason.clone() });
        self.emit(Fact::PlanFailed { policy: policy.name().to_owned(), reason });
    }

    /// One plan for all that were put off, unless there is something to decide first still, or the policy has failed since and has its pause.
    fn plan_what_is_owed(&mut self, presses: bool) {
        self.plans.presses = presses;
        if self.plans.owed && !self.plans.wait() {
            self.plans.owed = false;
            if plan_due(&self.state, self.at, &Input::Tick, false) {
                self.plan();
            }
        }
    }

    /// Decides, and goes on with the state that the facts were folded into; whether anything was decided. After a panic everything is as before.
    fn guarded(&mut self, decide: impl FnOnce(&State, TimeMs) -> (Vec<Fact>, State)) -> thread::Result<bool> {
        let (state, at) = (&self.state, self.at);
        // What a panic may leave half done is a copy.
        let (mut facts, state) = catch_unwind(AssertUnwindSafe(|| decide(state, at)))?;
        let changed = !facts.is_empty();
        self.facts.append(&mut facts);
        self.state = state;
        Ok(changed)
    }
}

fn decode(stream: InputStream, bytes: &[u8]) -> Result<Input, DecodeError> {
    match stream {
        InputStream::Commands => from_bytes(bytes).map(Input::Command),
        InputStream::Demand => from_bytes(bytes).map(Input::Demand),
        InputStream::Reports => from_bytes(bytes).map(Input::Report),
    }
}

fn trace_of(input: &Input) -> Option<TraceContext> {
    match input {
        Input::Command(command) => command.trace,
        Input::Demand(signal) => signal.trace,
        Input::Report(report) => report.trace,
        Input::Tick => None,
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text");
    &text[..text.floor_char_boundary(PANIC_TEXT_LEN_MAX)]
}
