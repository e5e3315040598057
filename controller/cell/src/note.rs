//! What the machine has to say to whoever reads the program's log: one kind per line, with how urgent it is.
//!
//! Notes decide nothing and nobody acts on them but people. Next file: `machine.rs`.

use events_rule::Stream;
use events_rule::count::SkipCause;
use events_schema::batch::{InputStream, PassOver};
use events_schema::{Offset, ServerId, Term};
use std::fmt;

/// One line for people.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "a field without a comment is what its name and type say")]
pub enum Note {
    /// The cell was taken over.
    TookOver {
        /// Its claim.
        term: Term,
        /// Unfinished jobs found.
        jobs: usize,
        /// Records of `events` without effect.
        skipped: u64,
    },
    /// Taking the cell over needs another attempt.
    TakeOverAgain {
        /// How many failed so far.
        attempts: u32,
        /// What went wrong.
        reason: String,
    },
    /// What the log holds is not known any more: it is read anew.
    Recovering { reason: String },
    /// The log does not answer, or does again.
    Log {
        /// Whether it does.
        well: bool,
    },
    /// A record cannot be written now; it is tried until it can.
    AppendWaits {
        /// Of which stream.
        stream: Stream,
        /// What the log says.
        reason: String,
    },
    /// A stream cannot be read now; it is tried until it can.
    ReadWaits {
        stream: Stream,
        /// What the log says.
        reason: String,
    },
    /// A record of `events` has no effect.
    Skipped { offset: Offset, cause: SkipCause },
    /// A record of `events` that cannot be read is passed over, as an operator said.
    PassedOver(PassOver),
    /// A batch does not fit the log.
    BatchTooLarge {
        /// Inputs in it.
        inputs: usize,
        /// What the log says.
        reason: String,
    },
    /// An input was refused: it could not be read, or deciding about it failed.
    InputRefused {
        /// Its stream.
        stream: InputStream,
        offset: Offset,
        reason: String,
    },
    /// The policy panicked instead of planning; it is asked again after a pause.
    PlanFailed {
        /// Its name.
        policy: &'static str,
        /// Its last words.
        reason: String,
    },
    /// Deciding about the time failed.
    TickFailed { reason: String },
    /// An agent's stream says hello.
    AgentThere {
        /// Which server's.
        server: ServerId,
        /// Its process.
        incarnation: u64,
    },
    /// A second agent of one name is turned away.
    AgentTurnedAway {
        /// Which server's.
        server: ServerId,
    },
    /// More streams than a cell may have.
    TooManyAgents {
        /// Whose was turned away.
        server: ServerId,
    },
    /// An agent was not heard for its lease and is given up.
    AgentSilent {
        /// Which server's.
        server: ServerId,
        /// How long.
        silent_ms: u64,
    },
    /// An agent has more reports than are kept while the log does not take them.
    ReportsWait {
        /// Which server's.
        server: ServerId,
        /// How many are kept.
        kept: usize,
    },
    /// A report cannot be written.
    ReportDropped {
        /// Which server's.
        server: ServerId,
        /// What the log says.
        reason: String,
    },
    /// A report that stood in the log is not there any more, or was passed over there for another one that is not.
    ReportLost {
        /// Which server's.
        server: ServerId,
        /// Its number.
        number: u64,
    },
    /// This controller stood still; no agent is given up for that.
    StoodStill {
        /// How long.
        ms: u64,
    },
    /// Objects cannot be deleted yet.
    DeletionWaits {
        /// Key of the checkpoint's manifest.
        manifest_key: String,
    },
    /// What always holds does not: a defect of Ebb.
    Violation {
        /// The invariant's name.
        invariant: &'static str,
        /// Who breaks it, and how.
        detail: String,
        /// How often so far.
        count: u64,
    },
}

/// How urgent a note is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// Something went as it should.
    Info,
    /// Something is not as it should be and is dealt with.
    Warning,
    /// A person should look.
    Error,
}

impl Note {
    /// How urgent it is.
    #[must_use]
    pub fn urgency(&self) -> Urgency {
        match self {
            Note::TookOver { .. } | Note::Skipped { .. } | Note::AgentThere { .. } => Urgency::Info,
            Note::TakeOverAgain { .. }
            | Note::Recovering { .. }
            | Note::PassedOver(_)
            | Note::Log { .. }
            | Note::ReadWaits { .. }
            | Note::BatchTooLarge { .. }
            | Note::AgentTurnedAway { .. }
            | Note::AgentSilent { .. }
            | Note::ReportsWait { .. }
            | Note::ReportLost { .. }
            | Note::StoodStill { .. }
            | Note::DeletionWaits { .. } => Urgency::Warning,
            Note::AppendWaits { .. }
            | Note::InputRefused { .. }
            | Note::PlanFailed { .. }
            | Note::TickFailed { .. }
            | Note::TooManyAgents { .. }
            | Note::ReportDropped { .. }
            | Note::Violation { .. } => Urgency::Error,
        }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Note::TookOver { term, jobs, skipped } => {
                write!(f, "took the cell over with term {term}: {jobs} unfinished jobs, {skipped} records without effect")
            }
            Note::TakeOverAgain { attempts, reason } => {
                write!(f, "taking the cell over once more, after {attempts} failed attempts: {reason}")
            }
            Note::Recovering { reason } => write!(f, "reading back from the log what stands in it: {reason}"),
            Note::Log { well: true } => f.write_str("the log answers again"),
            Note::Log { well: false } => {
                f.write_str("the log does not answer in its usual time; loans are not renewed and no agent is given up until it does")
            }
            Note::AppendWaits { stream, reason } => {
                write!(f, "the log takes no records of `{stream}` now, trying until it does: {reason}")
            }
            Note::ReadWaits { stream, reason } => write!(f, "`{stream}` cannot be read now, trying until it can: {reason}"),
            Note::Skipped { offset, cause } => {
                write!(f, "the record at offset {offset} of `events` has no effect: {}", cause.name())
            }
            Note::PassedOver(PassOver { offset, by, reason, .. }) => {
                write!(f, "the record at offset {offset} of `events` cannot be read and is passed over, as {by} said: {reason}")
            }
            Note::BatchTooLarge { inputs, reason } => {
                write!(f, "what follows from {inputs} inputs does not fit the log; taking them one by one: {reason}")
            }
            Note::InputRefused { stream, offset, reason } => {
                write!(f, "the input at offset {offset} of `{}` was refused, look at it: {reason}", stream.name())
            }
            Note::PlanFailed { policy, reason } => {
                write!(f, "the policy `{policy}` panicked, and jobs keep their sizes until it plans again; look at it: {reason}")
            }
            Note::TickFailed { reason } => {
                write!(f, "deciding about the time failed, and nothing follows from it: {reason}")
            }
            Note::AgentThere { server, incarnation } => write!(f, "the agent of {server} is there, process {incarnation}"),
            Note::AgentTurnedAway { server } => {
                write!(f, "a second agent of the name {server} is turned away: stop it, or give it another --server")
            }
            Note::TooManyAgents { server } => {
                write!(f, "there are more agents than a cell may have; the one of {server} is turned away")
            }
            Note::AgentSilent { server, silent_ms } => {
                write!(f, "the agent of {server} was not heard for {silent_ms} ms and is given up")
            }
            Note::ReportsWait { server, kept } => {
                write!(f, "{kept} reports of {server} wait for the log; further ones are left for it to repeat")
            }
            Note::ReportDropped { server, reason } => write!(f, "a report of {server} cannot be written and is dropped: {reason}"),
            Note::ReportLost { server, number } => {
                write!(f, "the log has lost report {number} of {server}, or one before it; its agent says again what was not taken")
            }
            Note::StoodStill { ms } => {
                write!(f, "this controller stood still for {ms} ms; no agent is given up for that")
            }
            Note::DeletionWaits { manifest_key } => {
                write!(f, "the checkpoint of {manifest_key} cannot be deleted yet; it is tried again")
            }
            Note::Violation { invariant, detail, count } => {
                write!(f, "this is a defect of Ebb, please report it: `{invariant}` does not hold ({count} times so far): {detail}")
            }
        }
    }
}
