//! What the machine is told and what it asks for. Everything a shell, or a simulated world, has to know of an agent is here.
//! Next file: `machine.rs`.

use events_schema::control::{FromExecutor, ToExecutor};
use events_schema::orders::{AgentMessage, ControllerMessage, FarEnd, JobOrder};
use events_schema::{ExecutorId, SlotId, Term, TimeMs};
use std::collections::BTreeSet;
use std::fmt;

/// When something happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Milliseconds on a clock that only goes forward; all deadlines and pauses are on it.
    pub ms: u64,
    /// The wall clock, which may jump; only reports carry it.
    pub wall: TimeMs,
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum In {
    /// About the link that [`Out::Connect`] of this number asked for. Of one that is not the present one: ignored.
    Link {
        /// Number of the link.
        link: u64,
        /// What happened to it.
        word: LinkWord,
    },
    /// About the executor that was started on this slot. Of one that is not there any more: ignored.
    Executor {
        /// Number of the slot.
        slot: u16,
        /// Who it is about.
        executor: ExecutorId,
        /// What happened to it.
        word: ExecutorWord,
    },
    /// A fleet wants slots back now, whatever the controller thinks. Answered with [`Out::Reply`], once.
    TakeBack {
        /// Name of the request, chosen by the shell and not used before.
        request: u64,
        /// Numbers of the slots; those that do not exist are passed over.
        slots: BTreeSet<u16>,
        /// Time until executors that have not left are killed.
        within_ms: u64,
    },
    /// Who made a request has gone away. The slots go back all the same, and nobody is answered.
    Withdrawn {
        /// Which request.
        request: u64,
    },
    /// The write that [`Out::Keep`] of this number asked for has ended.
    Kept {
        /// Number of the write.
        write: u64,
        /// Whether it would survive a crash.
        durable: bool,
    },
    /// The measurement that [`Out::MeasureLink`] of this number asked for has ended.
    LinkMeasured {
        /// Of the request.
        number: u64,
        /// Bytes per second in the slower direction; none if nothing could be measured.
        bytes_per_s: Option<u64>,
    },
    /// End all executors, pass on the last reports, then end.
    Shutdown,
    /// The time that [`Out::WakeAt`] asked for is there, or another. Words of life that came before it are told before it.
    Wake,
}

/// What happened to a link to a controller.
#[derive(Debug, Clone, PartialEq)]
pub enum LinkWord {
    /// It is open.
    Up,
    /// The controller said something on it.
    Said(ControllerMessage),
    /// The message of the last [`Out::Send`] was taken; another one finds room.
    Sent,
    /// It is closed, or could not be opened.
    Down(LinkEnd),
}

/// Why a link is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkEnd {
    /// Nobody answers, or the connection broke.
    Broken,
    /// The controller refuses this agent's token or name: somebody has to act.
    Refused,
    /// The controller gave this agent up: it has to end its executors and join as a new process.
    GivenUp,
}

/// What happened to an executor.
#[derive(Debug, Clone, PartialEq)]
pub enum ExecutorWord {
    /// It said something since this was last told. To be told for every word of it, what is told as [`ExecutorWord::Said`] included.
    Heard,
    /// It said this.
    Said(FromExecutor),
    /// It said what is no word of the protocol.
    Garbage(String),
    /// It takes no words any more: what was to be told it found no room.
    NotReading,
    /// Of the last while the device of its slot computed for so many hundredths, whoever that was for.
    DeviceBusy(u8),
    /// The device of its slot is gone while it runs; what is known of that.
    DeviceGone(String),
    /// It is reaped and nothing of its process group lives; its end is told once it is known how the device of its slot is.
    Reaped,
    /// It is reaped and nothing of its process group lives, and the device of its slot is as it was; or it could not be started.
    Ended(ProcessEnd),
    /// The same, but the device of its slot does not give the memory back, or is gone. [`ExecutorWord::DeviceBack`] comes when it is as it was.
    EndedHolding {
        /// How it ended.
        end: ProcessEnd,
        /// What is wrong with the device.
        reason: String,
        /// Whether the device is gone: then it was not the executor's fault, however it ended.
        lost: bool,
    },
    /// The device that it left is as it was before it.
    DeviceBack,
}

/// How a process ended, as its parent sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessEnd {
    /// With an exit status.
    Exited(i32),
    /// By a signal.
    Signalled(i32),
    /// In a way that cannot be learned.
    Unknown,
    /// There never was one, because of this.
    NotStarted(String),
}

/// What is to be done, in this order.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "a field without a comment is what its name and type say")]
pub enum Out {
    /// Open a link to the controller. Ends in [`LinkWord::Up`] or [`LinkWord::Down`] within a bounded time.
    Connect {
        /// Its number.
        link: u64,
    },
    /// Send this on a link and tell [`LinkWord::Sent`] when it was taken. The next one comes only after that.
    Send {
        /// Number of the link.
        link: u64,
        message: Box<AgentMessage>,
    },
    /// Close a link; nothing need be told of it any more.
    HangUp {
        /// Number of the link.
        link: u64,
    },
    /// Start an executor. Ends in [`ExecutorWord::Ended`], sooner or later.
    Start {
        /// On which slot; it is free.
        slot: u16,
        /// Who it is.
        executor: ExecutorId,
        /// What it trains.
        order: Box<JobOrder>,
        /// What its model needs of memory, beside what every executor does; 0 where that is not known.
        needs_bytes: u64,
    },
    /// Tell the executor on a slot.
    Tell {
        /// Which slot.
        slot: u16,
        frame: ToExecutor,
    },
    /// Kill the executor on a slot with everything it started.
    Kill {
        /// Which slot.
        slot: u16,
        /// Who it is.
        executor: ExecutorId,
        cause: KillCause,
    },
    /// Write down, so that it survives a crash, which slots are their fleets' while no controller knows it. Ends in [`In::Kept`]; at most one
    /// write is under way.
    Keep {
        /// Number of the write.
        write: u64,
        /// All of them; the next process begins with these.
        slots: BTreeSet<u16>,
    },
    /// Measure the link to another server. Ends in [`In::LinkMeasured`] within a bounded time; at most one is under way.
    MeasureLink {
        /// Of the request.
        number: u64,
        /// The other server's.
        far_end: FarEnd,
    },
    /// Answer a request for slots.
    Reply {
        /// Which request.
        request: u64,
        /// The answer.
        answer: Answer,
    },
    /// Tell [`In::Wake`] at this time on the clock that only goes forward; replaces what was asked for before.
    WakeAt { ms: u64 },
    /// Something that an operator may want to read in the log.
    Note(Note),
    /// The agent has ended, as asked: nothing runs, and nothing is asked for any more.
    Ended,
}

/// Why an executor is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KillCause {
    /// It has not left in time.
    Deadline,
    /// It was to go at once, because nothing waits for it, as when its job is over.
    Dismissed,
    /// It broke the protocol, or does not take what it is told.
    Protocol,
    /// It says nothing any more.
    Silent,
    /// The device of its slot is gone.
    Device,
}

/// What becomes of a request for slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// All of them are free, in order.
    Freed(Vec<FreedSlot>),
    /// They go back, but a crash would forget it. Ask again: it is written down anew.
    NotKept,
    /// Too many requests wait. Nothing was done; ask again.
    Busy,
    /// An executor was killed but has not ended, or the device of its slot is not as it was: the slot is not free.
    Stuck,
    /// The agent ended before.
    Ending,
}

/// A slot that is its fleet's again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FreedSlot {
    /// The slot that is free again.
    pub slot: SlotId,
    /// Time from the request until its process was reaped.
    pub elapsed_ms: u64,
    /// Whether its executor did not leave by itself.
    pub killed: bool,
}

/// What an operator may want to read. Displayed as a sentence's begin, without a full stop, as log lines are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// Orders came from a controller that was replaced.
    Replaced {
        /// Its term.
        term: Term,
        /// The newest that was heard.
        newest: Term,
    },
    /// No controller was heard for a lease.
    LeaseOver {
        /// Slots that go back.
        slots: usize,
    },
    /// The controller gave this agent up.
    GivenUp,
    /// More reports wait than can be kept.
    OutboxFull,
    /// The link is open and nothing comes.
    ControllerSilent,
    /// The device of a slot is not as it should be.
    Quarantined {
        /// Which slot.
        slot: SlotId,
        /// What is wrong with it.
        reason: String,
    },
    /// It is again.
    Recovered {
        /// Which slot.
        slot: SlotId,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Note::Replaced { term, newest } => {
                write!(
                    f,
                    "refusing orders of a controller that was replaced: its term is {term}, the newest is {newest}"
                )
            }
            Note::LeaseOver { slots } => write!(f, "no controller was heard for a lease: giving {slots} slots back"),
            Note::GivenUp => f.write_str("the controller gave this agent up: ending all executors to join again"),
            Note::OutboxFull => {
                f.write_str("too many reports wait for a controller: ending all executors to join as a new process")
            }
            Note::ControllerSilent => f.write_str("the controller says nothing: opening another stream"),
            Note::Quarantined { slot, reason } => {
                write!(
                    f,
                    "the slot {slot} is in quarantine, and nothing is started on it until its device is as it was: {reason}"
                )
            }
            Note::Recovered { slot } => {
                write!(f, "the device of the slot {slot} is as it was")
            }
        }
    }
}
