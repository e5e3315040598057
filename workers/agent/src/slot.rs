//! What the agent knows of each of its slots: who is on it, until when, and whether orders may use it. Pure apart from the
//! handle of the process. Next file: `reconcile.rs`.

use crate::process::Process;
use events_schema::orders::JobOrder;
use events_schema::report::ExitCause;
use events_schema::{ExecutorId, SlotId, TimeMs};
use rustix::process::Signal;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use tokio::time::Instant;

/// Exit status reported for an executor that was killed because it broke the frame protocol (`EX_PROTOCOL` of sysexits).
pub const EXIT_STATUS_PROTOCOL: i32 = 76;

/// One slot.
#[derive(Debug)]
pub(crate) struct Slot {
    pub id: SlotId,
    /// The executor on it. The slot is free when there is none: its process is reaped and its group empty.
    pub occupant: Option<Occupant>,
    pub claim: Claim,
}

/// Who may use a slot. A slot taken back directly comes into use again only when orders show that the controller knew of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Orders count.
    Orders,
    /// Its fleet took it back, and the executor has not yet ended.
    TakenBack,
    /// The same, reported under this number.
    Reported { number: u64 },
    /// The report was taken; orders that come from now on derive from a state that has seen it.
    Taken,
}

impl Claim {
    /// Whether its fleet has it, as far as this agent knows.
    pub fn is_fleets(self) -> bool {
        self != Claim::Orders
    }
}

/// An executor on a slot.
#[derive(Debug)]
pub(crate) struct Occupant {
    pub executor: ExecutorId,
    pub process: Process,
    /// What it was last told of its job.
    pub order: JobOrder,
    /// Name of the deadline in its order. Never compared with a clock here: the controller's may be another one.
    pub leave_by: Option<TimeMs>,
    pub deadlines: Deadlines,
    pub ending: Ending,
    /// Looks of the agent since it last said anything; none before its first word, for which the controller has a deadline.
    pub silent_looks: Option<u32>,
}

/// When an executor is killed. Each reason has its own deadline; the earliest counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Deadlines {
    /// Of its order.
    pub order: Option<Instant>,
    /// Of a direct take-back.
    pub take_back: Option<Instant>,
    /// After a stop.
    pub stop: Option<Instant>,
}

impl Deadlines {
    pub fn earliest(self) -> Option<Instant> {
        [self.order, self.take_back, self.stop].into_iter().flatten().min()
    }
}

/// What the agent has done to end an executor; decides how its end is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Nothing.
    None,
    /// It was told to stop.
    Stopped,
    /// It was killed at a deadline or on an order.
    Killed,
    /// It was killed because it broke the protocol.
    Refused,
    /// It was killed because it said nothing for too long.
    Silent,
}

impl Occupant {
    /// Whether it was killed, for whatever reason.
    pub fn is_killed(&self) -> bool {
        match self.ending {
            Ending::Killed | Ending::Refused | Ending::Silent => true,
            Ending::None | Ending::Stopped => false,
        }
    }

    /// Takes the deadline of an order that came now. Said again, one comes nearer if it can, because the first word may have been late
    /// on its way; it never goes further away.
    pub fn leave(&mut self, leave_by: Option<TimeMs>, at: Instant) {
        let again = leave_by == self.leave_by;
        self.leave_by = leave_by;
        self.deadlines.order = match self.deadlines.order {
            _ if leave_by.is_none() => None,
            Some(known) if again => Some(known.min(at)),
            _ if self.is_killed() => None,
            _ => Some(at),
        };
    }

    /// Kills it now, if that has not been done.
    pub fn kill(&mut self, ending: Ending) {
        if !self.is_killed() {
            self.ending = ending;
            self.deadlines = Deadlines::default();
            self.process.kill();
        }
    }
}

/// How an executor's end is reported: what it did itself counts before what was done to it.
pub(crate) fn exit_cause(status: io::Result<ExitStatus>, ending: Ending) -> ExitCause {
    let status = match status {
        Ok(status) => status,
        Err(error) => {
            tracing::error!(%error, "cannot learn how an executor ended");
            return ExitCause::Killed;
        }
    };
    match (status.code(), status.signal(), ending) {
        (Some(0), _, _) => ExitCause::Left,
        (Some(code), _, _) => ExitCause::Status(code),
        (None, _, Ending::Refused) => ExitCause::Status(EXIT_STATUS_PROTOCOL),
        // What hung may have been dying of something else, slowly.
        (None, Some(signal), Ending::Silent) if signal != Signal::KILL.as_raw() => ExitCause::Signal(signal),
        (None, _, Ending::Silent) => ExitCause::Silent,
        (None, Some(signal), Ending::None | Ending::Stopped) => ExitCause::Signal(signal),
        (None, _, _) => ExitCause::Killed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_earliest_deadline_counts() {
        let now = Instant::now();
        let later = now + Duration::from_secs(1);
        assert_eq!(Deadlines::default().earliest(), None);
        assert_eq!(Deadlines { order: Some(later), take_back: Some(now), stop: None }.earliest(), Some(now));
    }
    #[test]
    fn an_end_is_reported_by_what_the_executor_did_before_what_was_done_to_it() {
        let exited = |code: i32| Ok(ExitStatus::from_raw(code << 8));
        let signalled = |signal: i32| Ok(ExitStatus::from_raw(signal));
        assert_eq!(exit_cause(exited(0), Ending::Killed), ExitCause::Left);
        assert_eq!(exit_cause(exited(3), Ending::Stopped), ExitCause::Status(3));
        assert_eq!(exit_cause(signalled(9), Ending::Killed), ExitCause::Killed);
        assert_eq!(exit_cause(signalled(9), Ending::Refused), ExitCause::Status(EXIT_STATUS_PROTOCOL));
        assert_eq!(exit_cause(signalled(9), Ending::Silent), ExitCause::Silent);
        assert_eq!(exit_cause(signalled(11), Ending::Silent), ExitCause::Signal(11));
        assert_eq!(exit_cause(signalled(11), Ending::None), ExitCause::Signal(11));
        assert_eq!(exit_cause(Err(io::Error::other("lost")), Ending::None), ExitCause::Killed);
    }
}
