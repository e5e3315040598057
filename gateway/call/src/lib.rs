//! One call of a client that wants something written down: append, decision, answer. It says what "acknowledged" means, and
//! that every call ends.
//!
//! Pure: no clock, no chance, no sockets. The gateway's shell (`gateway/src/submit.rs`) makes a [`Call`], performs its
//! [`Out`]s in order, and tells it what comes of them. A call never says more than is known:
//!
//! | what is known | the answer | over HTTP |
//! | --- | --- | --- |
//! | a fact says what became of it | [`Outcome::Decided`] | 2xx, or the refusal |
//! | the log acknowledged it, nobody has decided | [`Outcome::Undecided`] | 202 |
//! | the log said nothing in time, or that it does not know | [`Outcome::Unknown`] | 503, with how to repeat it safely |
//! | the log said that nothing was written | [`Outcome::NotRecorded`] | 503 or 413 |
//! | the log put it where everything is read already | [`Outcome::PassedOver`] | 503: the log was shortened |
//!
//! So "acknowledged" means durable, and it ends at [`Waits::total_ms`] at the latest, also while the log stalls.
//! Reading order: this file, `answers.rs` (what facts say about inputs), `copier.rs` (calls for signals in fleets' own topics).
//!
//! Next on a job's path: `events/schema/src/command.rs`.

mod answers;
mod copier;

pub use answers::{Answer, Answers};
pub use copier::{Copier, CopyIn, CopyOut, Published, TopicPlace, TopicSignal};

use events_schema::batch::InputStream;
use events_schema::{CommandId, FleetId, Offset, TimeMs};

/// Time for the log's acknowledgement. Longer than a Kafka cluster of three takes to go on without one of its brokers (its
/// session of 9 s and an election: 10 to 14 s measured), so that a call outlives that; short enough that people still wait.
pub const APPEND_WAIT_MS: u64 = 20_000;
/// Time for the decision after the acknowledgement: a controller takes over within this.
pub const DECISION_WAIT_MS: u64 = 5_000;

/// How long a call waits for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waits {
    /// For the acknowledgement, from the beginning.
    pub append_ms: u64,
    /// For the decision, from the acknowledgement; or for a sign of it, once the log said that it does not know.
    pub decision_ms: u64,
}

impl Waits {
    /// What a gateway uses.
    pub const STANDARD: Self = Self { append_ms: APPEND_WAIT_MS, decision_ms: DECISION_WAIT_MS };

    /// Longest time from a call's beginning to its answer.
    #[must_use]
    pub const fn total_ms(self) -> u64 {
        self.append_ms.saturating_add(self.decision_ms)
    }
}

/// By what the facts about a record are known.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "a field without a comment is what its name and type say")]
pub enum Question {
    /// A command: its id is in the facts.
    Command(CommandId),
    /// A demand signal: its number and the need as it counts are.
    Signal {
        fleet: FleetId,
        /// Its number.
        sequence: u64,
        /// The need, at most the fleet's slots.
        needed: u32,
    },
}

impl Question {
    /// Where its record goes.
    #[must_use]
    pub fn stream(&self) -> InputStream {
        match self {
            Question::Command(_) => InputStream::Commands,
            Question::Signal { .. } => InputStream::Demand,
        }
    }

    /// What the facts say, as far as the record's place is known.
    fn look(&self, answers: &Answers, offset: Option<Offset>) -> Option<Answer> {
        match (self, offset) {
            (Question::Command(id), Some(offset)) => answers.of_command_at(id, offset),
            (Question::Command(id), None) => answers.of_command(id).cloned(),
            (Question::Signal { fleet, sequence, needed }, Some(offset)) => {
                answers.of_signal_at(fleet, *sequence, *needed, offset)
            }
            (Question::Signal { fleet, sequence, needed }, None) => {
                answers.accepted_signal(fleet, *sequence, *needed).then_some(Answer::Taken)
            }
        }
    }
}

/// What a call is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum In {
    /// The record is durable and stands here.
    Appended(Offset),
    /// The log does not know whether it kept the record.
    Unknown,
    /// The log kept nothing.
    NotRecorded,
    /// The read model knows more than before.
    Changed,
    /// It is as late as [`Out::WakeAt`] said, or later.
    Wake,
}

/// What a call wants done.
#[derive(Debug, Clone, PartialEq)]
pub enum Out {
    /// Append this record, once.
    Append(InputStream, Vec<u8>),
    /// Answer the client; nothing follows.
    Answer(Outcome),
    /// Say [`In::Wake`] then; an earlier wish of this call is void.
    WakeAt(TimeMs),
}

/// How a call ends.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// A fact says what became of it, so it is durable too.
    Decided(Answer),
    /// It is durable at this place; nobody has decided about it yet.
    Undecided(Offset),
    /// It may or may not be in the log, now or later: it is for the client to look, or to repeat it under the same number.
    Unknown,
    /// It is not in the log and will not be.
    NotRecorded,
    /// A command stands at this place and the controller had read beyond it before: the log was shortened, and nobody will take what is
    /// appended until it is as long as it was.
    PassedOver(Offset),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The log has not answered.
    Appending,
    /// The log answered that it does not know. A fact may still show that the record is there.
    InDoubt,
    /// The log has it.
    Durable(Offset),
    /// It was answered; nothing more comes of it.
    Over,
}

/// One call. Time is the caller's and must not go back.
#[derive(Debug, Clone)]
pub struct Call {
    question: Question,
    waits: Waits,
    phase: Phase,
    /// End of the phase.
    until: TimeMs,
}

impl Call {
    /// Begins with the append of `record`.
    #[must_use]
    pub fn begin(now: TimeMs, question: Question, record: Vec<u8>, waits: Waits) -> (Self, Vec<Out>) {
        let until = now.plus_ms(waits.append_ms);
        let outs = vec![Out::Append(question.stream(), record), Out::WakeAt(until)];
        (Self { question, waits, phase: Phase::Appending, until }, outs)
    }

    /// Takes in what happened. `answers` is what the read model knows at this moment: the fact about a record may be read
    /// before the record's acknowledgement comes.
    pub fn handle(&mut self, now: TimeMs, input: In, answers: &Answers) -> Vec<Out> {
        if self.phase == Phase::Over {
            return Vec::new();
        }
        let before = self.until;
        match (self.phase, input) {
            (Phase::Appending, In::Appended(offset)) => self.enter(now, Phase::Durable(offset)),
            // Better late; but the client has waited for it already.
            (Phase::InDoubt, In::Appended(offset)) => self.phase = Phase::Durable(offset),
            (Phase::Appending, In::Unknown) => self.enter(now, Phase::InDoubt),
            (Phase::Appending, In::NotRecorded) => return self.answer(Outcome::NotRecorded),
            // What was acknowledged stays so, and a doubt is not lifted by a later refusal.
            _ => {}
        }
        match (self.question.look(answers, self.offset()), &self.question, self.offset()) {
            // A command that was taken is known by its id: one at a place that was taken, of which nothing is known, was not there then.
            (Some(Answer::Unremarked), Question::Command(_), Some(offset)) => {
                return self.answer(Outcome::PassedOver(offset));
            }
            (Some(answer), ..) => return self.answer(Outcome::Decided(answer)),
            (None, ..) => {}
        }
        if now >= self.until {
            let outcome = self.offset().map_or(Outcome::Unknown, Outcome::Undecided);
            return self.answer(outcome);
        }
        if self.until != before || input == In::Wake { vec![Out::WakeAt(self.until)] } else { Vec::new() }
    }

    fn enter(&mut self, now: TimeMs, phase: Phase) {
        self.phase = phase;
        self.until = now.plus_ms(self.waits.decision_ms);
    }

    fn offset(&self) -> Option<Offset> {
        if let Phase::Durable(offset) = self.phase { Some(offset) } else { None }
    }

    fn answer(&mut self, outcome: Outcome) -> Vec<Out> {
        self.phase = Phase::Over;
        vec![Out::Answer(outcome)]
    }
}

#[cfg(test)]
mod tests;
