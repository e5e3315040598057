//! What is known of a slot: who is on it, until when, and whether orders may use it. Next file: `orders.rs`.

use crate::words::{KillCause, ProcessEnd};
use events_schema::orders::JobOrder;
use events_schema::report::{CodeEndedAt, ExitCause};
use events_schema::{ExecutorId, SlotId, TimeMs};

/// Exit status reported for an executor that was killed because it broke the protocol (`EX_PROTOCOL` of sysexits).
pub const EXIT_STATUS_PROTOCOL: i32 = 76;

/// The signal that kills.
const SIGKILL: i32 = 9;

/// One slot.
#[derive(Debug, Clone)]
pub(crate) struct Slot {
    pub id: SlotId,
    /// The executor on it. The slot is free when there is none: its process is reaped and its group empty, and its device is as it was.
    pub occupant: Option<Occupant>,
    /// Who was on it last, while nothing runs on it and its device is not as it should be: then it is nobody's.
    pub quarantine: Option<Quarantine>,
    pub claim: Claim,
}

/// A slot whose device is not as it should be, though nothing runs on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Quarantine {
    /// Whose end left it so.
    pub executor: ExecutorId,
    /// What is wrong with it.
    pub reason: String,
    /// Whether the executor had to be killed.
    pub killed: bool,
}

/// Who may use a slot. One taken back directly comes into use again only when orders show that the controller knew of it.
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

    /// Whether only this agent knows that its fleet has it, so that it must not forget.
    pub fn is_unknown_elsewhere(self) -> bool {
        matches!(self, Claim::TakenBack | Claim::Reported { .. })
    }
}

/// An executor on a slot.
#[derive(Debug, Clone)]
pub(crate) struct Occupant {
    pub executor: ExecutorId,
    /// What it was last told of its job.
    pub order: JobOrder,
    /// Name of the deadline in its order. Never compared with a clock here: the controller's may be another one.
    pub leave_by: Option<TimeMs>,
    pub deadlines: Deadlines,
    /// Whether its order left it no time when it came.
    pub dismissed: bool,
    /// What its fleet asked of its slot.
    pub asked: Option<Asked>,
    pub ending: Ending,
    /// Whether it said anything since the last look.
    pub heard: bool,
    /// Why it is about to fail, if it said so.
    pub last_words: Option<LastWords>,
    /// Looks since it last said anything; none before its first word, for which the controller has a deadline.
    pub silent_looks: Option<u32>,
    /// Whether its processes are gone, and its end waits for the device of the slot: there is nobody to tell or to kill.
    pub reaped: bool,
    /// What is known of the loss of its slot's device.
    pub device_lost: Option<String>,
}

/// Why an executor is about to fail, as it says itself.
#[derive(Debug, Clone)]
pub(crate) struct LastWords {
    pub said: String,
    /// How far its job was, where that one's code ended.
    pub code_ended: Option<CodeEndedAt>,
}

/// When an executor is killed, in milliseconds of the clock that only goes forward. Each reason has its own; the earliest counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Deadlines {
    /// Of its order.
    pub order: Option<u64>,
    /// Of a direct take-back.
    pub take_back: Option<u64>,
    /// After a stop.
    pub stop: Option<u64>,
}

impl Deadlines {
    pub fn earliest(self) -> Option<u64> {
        [self.order, self.take_back, self.stop].into_iter().flatten().min()
    }
}

/// A slot that was asked back, in milliseconds of the clock that only goes forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asked {
    /// For the first time.
    pub at: u64,
    /// To be free by then, whoever asked for the least time.
    pub by: u64,
}

impl Asked {
    /// What holds once it is asked again.
    pub fn again(self, earlier: Option<Self>) -> Self {
        earlier.map_or(self, |first| Self { at: first.at, by: first.by.min(self.by) })
    }
}

/// What was done to end an executor; decides how its end is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Nobody asked it to end.
    None,
    /// It was told to stop.
    Stopped,
    /// It was killed.
    Killed(KillCause),
}

impl Occupant {
    pub fn new(executor: ExecutorId, order: JobOrder) -> Self {
        Self {
            executor,
            order,
            leave_by: None,
            deadlines: Deadlines::default(),
            dismissed: false,
            asked: None,
            ending: Ending::None,
            heard: false,
            last_words: None,
            silent_looks: None,
            reaped: false,
            device_lost: None,
        }
    }

    /// Whether it was told to stop, or killed, or is gone already.
    pub fn is_ending(&self) -> bool {
        self.ending != Ending::None || self.reaped
    }

    /// Its processes are gone.
    pub fn reaped(&mut self) {
        self.reaped = true;
        self.deadlines = Deadlines::default();
        self.silent_looks = None;
    }

    /// Whether nobody can do more to end it.
    pub fn is_killed(&self) -> bool {
        matches!(self.ending, Ending::Killed(_)) || self.reaped
    }

    /// Whether it has to be told to stop; it is killed if it has not by then.
    pub fn stop(&mut self, by: u64) -> bool {
        let first = !self.is_ending();
        if first {
            self.ending = Ending::Stopped;
            self.deadlines.stop = Some(by);
        }
        first
    }

    /// Whether it has to be killed now; once is enough.
    pub fn kill(&mut self, cause: KillCause) -> bool {
        let first = !self.is_killed();
        if first {
            self.ending = Ending::Killed(cause);
            self.deadlines = Deadlines::default();
        }
        first
    }

    /// Takes the deadline of orders that came now. Said again, one comes nearer if it can, because the first word may have been late on
    /// its way; it never goes further away.
    pub fn leave(&mut self, leave_by: Option<TimeMs>, at: u64) {
        let again = leave_by == self.leave_by;
        self.leave_by = leave_by;
        self.deadlines.order = match self.deadlines.order {
            _ if leave_by.is_none() || self.is_killed() => None,
            Some(known) if again => Some(known.min(at)),
            _ => Some(at),
        };
    }
}

/// How an executor's end is reported: what it did itself counts before what was done to it.
pub(crate) fn exit_cause(end: ProcessEnd, ending: Ending, last_words: Option<LastWords>) -> ExitCause {
    if let (ProcessEnd::Exited(status), Some(LastWords { said, code_ended })) = (&end, last_words)
        && *status != 0
    {
        return ExitCause::Failed { status: *status, said, code_ended };
    }
    match (end, ending) {
        (ProcessEnd::NotStarted(reason), _) => ExitCause::NotStarted(reason),
        (ProcessEnd::Exited(0), _) => ExitCause::Left,
        (ProcessEnd::Exited(status), _) => ExitCause::Status(status),
        (ProcessEnd::Unknown, _) => ExitCause::Killed,
        (ProcessEnd::Signalled(signal), Ending::None | Ending::Stopped) => ExitCause::Signal(signal),
        (ProcessEnd::Signalled(_), Ending::Killed(KillCause::Protocol)) => ExitCause::Status(EXIT_STATUS_PROTOCOL),
        (ProcessEnd::Signalled(_), Ending::Killed(KillCause::Deadline | KillCause::Dismissed | KillCause::Device)) => {
            ExitCause::Killed
        }
        (ProcessEnd::Signalled(SIGKILL), Ending::Killed(KillCause::Silent)) => ExitCause::Silent,
        // What hung may have been dying of something else, slowly.
        (ProcessEnd::Signalled(signal), Ending::Killed(KillCause::Silent)) => ExitCause::Signal(signal),
    }
}

/// A slot as callers see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotView<'a> {
    /// Its id.
    pub slot: &'a SlotId,
    /// What it is used for.
    pub state: SlotState,
    /// The executor on it.
    pub executor: Option<&'a ExecutorId>,
}

/// What a slot is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotState {
    /// Nothing runs on it; orders may use it.
    Free,
    /// An executor runs on it.
    Running,
    /// An executor on it has been told to end.
    Leaving,
    /// Its fleet took it back; orders do not use it.
    TakenBack,
    /// Nothing runs on it, but its device is not as it should be; it is nobody's until it is.
    Quarantined,
}

impl Slot {
    pub fn view(&self) -> SlotView<'_> {
        let state = match &self.occupant {
            None if self.quarantine.is_some() => SlotState::Quarantined,
            None if self.claim.is_fleets() => SlotState::TakenBack,
            None => SlotState::Free,
            Some(occupant) if self.claim.is_fleets() || occupant.is_ending() => SlotState::Leaving,
            Some(_) => SlotState::Running,
        };
        SlotView { slot: &self.id, state, executor: self.occupant.as_ref().map(|occupant| &occupant.executor) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fixtures;

    #[test]
    fn the_earliest_deadline_counts() {
        assert_eq!(Deadlines::default().earliest(), None);
        assert_eq!(Deadlines { order: Some(2), take_back: Some(1), stop: None }.earliest(), Some(1));
    }

    #[test]
    fn a_deadline_said_again_comes_nearer_but_never_goes_away() {
        let mut occupant = Occupant::new("job-a/e0".parse().unwrap(), fixtures::order("job-a/e0", "local/0").job);
        let mut told = |by: Option<u64>, at| {
            occupant.leave(by.map(TimeMs), at);
            occupant.deadlines.order
        };
        assert_eq!(told(Some(9), 100), Some(100));
        assert_eq!(told(Some(9), 300), Some(100), "a resend extends nothing");
        assert_eq!(told(Some(9), 80), Some(80), "the first word was late");
        assert_eq!(told(Some(10), 200), Some(200), "another deadline");
        assert_eq!(told(None, 0), None);
    }

    #[test]
    fn an_end_is_reported_by_what_the_executor_did_before_what_was_done_to_it() {
        use KillCause::{Deadline, Protocol, Silent};
        use ProcessEnd::{Exited, Signalled, Unknown};
        for (end, ending, expected) in [
            (Exited(0), Ending::Killed(Deadline), ExitCause::Left),
            (Exited(3), Ending::Stopped, ExitCause::Status(3)),
            (Signalled(9), Ending::Killed(Deadline), ExitCause::Killed),
            (Signalled(9), Ending::Killed(Protocol), ExitCause::Status(EXIT_STATUS_PROTOCOL)),
            (Signalled(9), Ending::Killed(Silent), ExitCause::Silent),
            (Signalled(11), Ending::Killed(Silent), ExitCause::Signal(11)),
            (Signalled(11), Ending::None, ExitCause::Signal(11)),
            (Unknown, Ending::None, ExitCause::Killed),
        ] {
            assert_eq!(exit_cause(end.clone(), ending, None), expected, "{end:?} {ending:?}");
        }
        let said = || Some(LastWords { said: "no such file".to_owned(), code_ended: Some(CodeEndedAt::Start) });
        let (words, code_ended) = ("no such file".to_owned(), Some(CodeEndedAt::Start));
        let failed = ExitCause::Failed { status: 1, said: words, code_ended };
        assert_eq!(exit_cause(Exited(1), Ending::None, said()), failed);
        assert_eq!(exit_cause(Exited(0), Ending::None, said()), ExitCause::Left);
        assert_eq!(exit_cause(Signalled(9), Ending::Killed(Deadline), said()), ExitCause::Killed);
    }
}
