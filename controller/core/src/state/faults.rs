//! Failures of a job's executors: which of them count against it, and where its code ended. What is decided about them is in
//! `decide/failures.rs`.

use crate::apply::version_one;
use events_schema::fact::{Failure, Fault};
use events_schema::report::CodeEndedAt;
use events_schema::{SlotId, TimeMs};
use minicbor::{Decode, Encode};

/// Failures of a job's executors. Only those of its program (it exited or crashed by itself) can fail the job; what agents kill or lose,
/// and what cannot be started or linked, is tried again after a pause.
#[derive(Debug, Clone, Default, PartialEq, Eq, Encode, Decode)]
pub struct Faults {
    /// Restarts that failures of the program caused since the last new highest checkpoint; compared with `max_restarts`.
    #[n(0)]
    pub restarts: u32,
    /// Whether there was one since the last restart.
    #[n(1)]
    pub since_restart: bool,
    /// Waves of failures in a row.
    #[n(2)]
    pub streak: u32,
    /// Waves of failures of the program since members last came together; compared with `max_restarts` as long as none did.
    #[n(5)]
    pub starts: u32,
    /// When the last wave began.
    #[n(3)]
    pub at: TimeMs,
    /// What the last one was, for the user.
    #[n(4)]
    pub last: String,
    /// The pause that the last wave was given; none if it is of before facts said so.
    #[n(6)]
    pub(crate) pause_until: Option<TimeMs>,
    /// Where its code ended the process that ran it, the last time: all at one step, one for each rank.
    #[n(7)]
    #[cbor(skip_if = "Vec::is_empty")]
    pub code_ends: Vec<CodeEnd>,
}

/// The job's code ended the process that ran it.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct CodeEnd {
    /// How far it was.
    #[n(0)]
    pub at: CodeEndedAt,
    /// On which slot its process ran.
    #[n(1)]
    pub slot: SlotId,
    /// How many executors its job had numbered by then: whoever has a higher number began afterwards.
    #[n(2)]
    pub executors_numbered: u32,
}

impl CodeEnd {
    /// Whether the code of an executor that ends here now ends at this place again, having known of the first end: in a later membership, or begun later.
    #[must_use]
    pub fn is_repeated(&self, now: CodeEndedAt, executor: u32) -> bool {
        let later = executor >= self.executors_numbered;
        match (self.at, now) {
            (CodeEndedAt::Start, CodeEndedAt::Start) => later,
            (
                CodeEndedAt::Step { generation: before, step: first, rank: of },
                CodeEndedAt::Step { generation, step, rank },
            ) => (first, of) == (step, rank) && (later || generation > before),
            _ => false,
        }
    }
}

impl Faults {
    /// New executors wait until then.
    #[must_use]
    pub fn backoff_until(&self) -> TimeMs {
        self.pause_until.unwrap_or_else(|| version_one::pause_until(self))
    }

    /// Notes a failure as it was judged.
    pub(crate) fn note(&mut self, at: TimeMs, failure: &Failure) {
        let of_program = failure.fault == Fault::Program;
        if let Some(wave) = failure.wave {
            (self.streak, self.pause_until, self.at) = (wave.in_a_row, Some(wave.pause_until), at);
            self.starts = self.starts.saturating_add(u32::from(of_program));
        }
        self.since_restart |= of_program;
        self.last = failure.what.clone();
    }

    /// Notes where the job's code ended. What is known of another step is passed: it got there by then, or does not get so far any more.
    pub(crate) fn note_code_end(&mut self, end: CodeEnd) {
        let place = |at: &CodeEndedAt| match at {
            CodeEndedAt::Start => (None, None),
            CodeEndedAt::Step { step, rank, .. } => (Some(*step), *rank),
        };
        let (step, rank) = place(&end.at);
        self.code_ends.retain(|known| {
            let (of, whose) = place(&known.at);
            of == step && whose != rank
        });
        self.code_ends.push(end);
    }

    /// Whoever resumes the job begins anew.
    pub(crate) fn forget(&mut self) {
        self.code_ends.clear();
        (self.streak, self.starts, self.pause_until) = (0, 0, None);
    }
}
