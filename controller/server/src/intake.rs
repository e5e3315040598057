//! One batch: inputs that are there now, the facts that follow from them, and the places they were taken from. Nothing here
//! changes the fold; the facts take effect in a copy until the log has them. Next file: `run.rs`, which commits it.

use controller_cell::Fold;
use controller_core::{Input, Policy, State, decide};
use events_log::{EventLog, ReadError, Record};
use events_schema::batch::{Batch, DecodeError, InputStream, Taken, from_bytes};
use events_schema::fact::Fact;
use events_schema::{Cell, Epoch, Sequence, TimeMs};
use std::any::Any;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Inputs of one batch: at ten microseconds to decide one, a batch stays near the time of one append, so an input that just
/// missed a batch does not wait long for the next.
const INPUTS_MAX: usize = 256;

/// Bytes read of each stream for one batch: 256 submits with specs of a few kilobytes.
const READ_BYTES_MAX: usize = 1 << 20;

/// What a batch may hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Limits {
    inputs_max: usize,
    /// The next input is refused for this reason, without looking at it.
    refuse: Option<String>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { inputs_max: INPUTS_MAX, refuse: None }
    }
}

impl Limits {
    /// After a batch of so many inputs did not fit: first one input at a time, then refuse the one that does not fit alone.
    pub fn after_too_large(self, inputs: usize, reason: &dyn Display) -> Self {
        let refuse = (inputs <= 1).then(|| format!("what follows from it does not fit the log: {reason}"));
        Self { inputs_max: 1, refuse }
    }
}

/// A batch before its place is known.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// How many inputs it takes.
    pub inputs: usize,
    at: TimeMs,
    taken: Vec<Taken>,
    facts: Vec<Fact>,
}

impl Prepared {
    /// Whether there is nothing to write down.
    pub fn is_empty(&self) -> bool {
        self.taken.is_empty() && self.facts.is_empty()
    }

    pub fn batch(self, epoch: Epoch, sequence: Sequence) -> Batch {
        Batch { epoch, sequence, part: None, taken: self.taken, at: self.at, facts: self.facts }
    }
}

/// Takes what is there, demand first, then reports, then commands, and decides about each; then about the time, if it is due.
pub(crate) async fn prepare(
    log: &dyn EventLog,
    cell: Cell,
    policy: &dyn Policy,
    fold: &Fold,
    at: TimeMs,
    limits: &Limits,
    tick_due: bool,
) -> Result<Prepared, ReadError> {
    let mut draft = Draft { committed: &fold.state, state: fold.state.clone(), at, policy, facts: Vec::new() };
    let mut taken = Vec::new();
    let mut inputs = 0;
    for stream in InputStream::ALL {
        let from = fold.positions.of(stream);
        let room = limits.inputs_max - inputs;
        let records = if room == 0 { Vec::new() } else { log.read(stream.into(), cell, from, READ_BYTES_MAX).await? };
        let mut to = from;
        for record in records.into_iter().take(room) {
            match &limits.refuse {
                Some(reason) => draft.refuse(stream, &record, reason.clone()),
                None => draft.take(stream, &record),
            }
            to = record.offset.next();
            inputs += 1;
        }
        if to > from {
            taken.push(Taken { stream, from, to });
        }
    }
    if tick_due {
        draft.tick();
    }
    Ok(Prepared { inputs, at, taken, facts: draft.facts })
}

/// Facts decided so far, and the state with them.
struct Draft<'a> {
    committed: &'a State,
    state: State,
    at: TimeMs,
    policy: &'a dyn Policy,
    facts: Vec<Fact>,
}

impl Draft<'_> {
    fn take(&mut self, stream: InputStream, record: &Record) {
        let decided = match decode(stream, &record.bytes) {
            Ok(input) => self.decide(&input),
            Err(error) => Err(error.to_string()),
        };
        if let Err(reason) = decided {
            self.refuse(stream, record, reason);
        }
    }

    /// An input that cannot be read or breaks the state must not stop the cell: it is put on record, and operators are paged.
    fn refuse(&mut self, stream: InputStream, record: &Record, reason: String) {
        let offset = record.offset;
        tracing::error!(stream = stream.name(), %offset, reason, "an input was refused: look at it");
        let refused = Fact::InputRefused { stream: stream.name().to_owned(), offset, reason };
        self.state.apply(self.at, &refused);
        self.facts.push(refused);
    }

    fn tick(&mut self) {
        if let Err(reason) = self.decide(&Input::Tick) {
            tracing::error!(reason, "deciding about the time failed; nothing follows from it");
        }
    }

    /// Decides and folds; after a panic everything is as before.
    fn decide(&mut self, input: &Input) -> Result<(), String> {
        let (state, at, policy) = (&mut self.state, self.at, self.policy);
        // What a panic may leave half done is `state`, which is then built anew.
        let decided = catch_unwind(AssertUnwindSafe(|| {
            let facts = decide(state, at, input, policy);
            facts.iter().for_each(|fact| state.apply(at, fact));
            facts
        }));
        match decided {
            Ok(mut facts) => {
                self.facts.append(&mut facts);
                Ok(())
            }
            Err(panic) => {
                self.state = self.committed.clone();
                self.facts.iter().for_each(|fact| self.state.apply(self.at, fact));
                Err(format!("deciding about it panicked: {}", panic_text(&*panic)))
            }
        }
    }
}

fn decode(stream: InputStream, bytes: &[u8]) -> Result<Input, DecodeError> {
    match stream {
        InputStream::Commands => from_bytes(bytes).map(Input::Command),
        InputStream::Demand => from_bytes(bytes).map(Input::Demand),
        InputStream::Reports => from_bytes(bytes).map(Input::Report),
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text")
}
