//! What goes into the machine and what comes out of it. Every request of the log carries a ticket that its answer repeats, so
//! that an answer which comes too late, or twice, is told apart; every stream of an agent has a number.
//!
//! Nothing here decides. Next file: `machine.rs`.

use crate::end::CellEnd;
use crate::note::Note;
use controller_core::State;
use controller_fold::Positions;
use events_rule::{Record, Stream};
use events_schema::batch::Batch;
use events_schema::orders::{AgentMessage, ControllerMessage, Telemetry};
use events_schema::{Cell, Offset, ServerId, Term, TimeMs};
use storage_keys::CheckpointName;

/// What a machine is started with.
#[derive(Debug, Clone)]
pub struct CellConfig {
    /// Which cell it takes over.
    pub cell: Cell,
    /// Its name in claims, for people.
    pub name: String,
    /// Its process, a random number of its start.
    pub incarnation: u64,
    /// Longest time between two looks at the clock.
    pub tick_ms: u64,
    /// How long an agent may be silent before it is given up.
    pub agent_lease_ms: u64,
    /// How often agents are told that the controller lives.
    pub heartbeat_interval_ms: u64,
}

/// Number of a request to the log; never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Number of an agent's stream, chosen by whoever accepts streams; never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkId(pub u64);

/// Something that happened.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "a field without a comment is what its name and type say")]
pub enum In {
    /// The first input, once: begin.
    Start {
        /// What the wall clock says now. It is not asked again: from here on controller time is this and what has passed since.
        wall: TimeMs,
    },
    /// Answer to [`Out::Read`] or [`Out::Follow`]: what stands there, in order. Empty (to a `Read` only): nothing does yet.
    Read {
        /// Of the request.
        ticket: Ticket,
        /// At and after the offset asked for.
        records: Vec<Record>,
    },
    /// Answer to [`Out::Read`] or [`Out::Follow`]: why nothing can be read.
    ReadFailed {
        /// Of the request.
        ticket: Ticket,
        failure: ReadFailure,
    },
    /// Answer to [`Out::AskEnd`].
    End {
        /// Of the request.
        ticket: Ticket,
        /// The first offset not yet written.
        end: Offset,
    },
    /// Answer to [`Out::AskEnd`]: why the end is not known.
    EndFailed {
        /// Of the request.
        ticket: Ticket,
        failure: ReadFailure,
    },
    /// Answer to [`Out::Append`]: the record is durable.
    Appended {
        /// Of the request.
        ticket: Ticket,
        /// Where it stands.
        offset: Offset,
    },
    /// Answer to [`Out::Append`]: it is not known to be durable.
    AppendFailed {
        /// Of the request.
        ticket: Ticket,
        /// Why, and what that means.
        failure: AppendFailure,
    },
    /// An agent opened a stream and proved that it may speak for this server.
    LinkOpened {
        /// The stream's number.
        link: LinkId,
        server: ServerId,
    },
    /// An agent said something on its stream.
    Said {
        /// Which stream.
        link: LinkId,
        message: AgentMessage,
    },
    /// A stream is over: closed by the agent, broken, or its agent takes no messages.
    LinkClosed { link: LinkId },
    /// Answer to [`Out::Delete`]: the objects are gone.
    Deleted {
        /// Of the request.
        number: u64,
    },
    /// Answer to [`Out::Delete`]: the store did not do it.
    DeleteFailed {
        /// Of the request.
        number: u64,
    },
    /// The time of the last [`Out::WakeAt`] has come.
    Wake,
}

/// Why a read gave nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadFailure {
    /// What stood there was removed.
    Trimmed {
        /// The first record left.
        first: Offset,
    },
    /// The log cannot be reached now; the text says why.
    Unavailable(String),
    /// It will never be read by this process; the text says why.
    Stopped(String),
}

/// Why an append was not acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AppendFailure {
    /// The record may or may not be in the log; the text says why.
    Unknown(String),
    /// Nothing was written, and later it may be; the text says why.
    Unavailable(String),
    /// Nothing was written: it is longer than the log takes.
    TooLarge(String),
    /// Nothing was written, nor will be by this process; the text says why.
    Stopped(String),
}

/// What an append is an attempt at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    /// The first record of a batch that was decided just now, for the first time.
    Decided,
    /// Anything else for the first time: a report, a claim, a further record of a batch.
    First,
    /// Once more what the append with this ticket was of, which failed.
    Again(Ticket),
}

/// Something to do, in the order given.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "a field without a comment is what its name and type say")]
pub enum Out {
    /// Append this record. Several may be on their way at once, of `events` at most one. Never given up: it ends in an answer.
    Append {
        /// For the answer.
        ticket: Ticket,
        /// To which stream of the cell.
        stream: Stream,
        record: Vec<u8>,
        /// Whether it is new; for whoever measures.
        attempt: Attempt,
    },
    /// Read what stands at an offset and after it now. Replaces the stream's earlier `Read` or `Follow`, which need not be
    /// answered any more.
    Read {
        /// For the answer.
        ticket: Ticket,
        /// Which stream of the cell.
        stream: Stream,
        /// First offset.
        from: Offset,
        /// Bytes to give at most, except that one record is always given.
        bytes_max: usize,
    },
    /// As `Read`, but wait until something stands there.
    Follow {
        /// For the answer.
        ticket: Ticket,
        /// Which stream of the cell.
        stream: Stream,
        /// First offset.
        from: Offset,
        /// Bytes to give at most, except that one record is always given.
        bytes_max: usize,
    },
    /// Ask where a stream ends. Replaces the stream's earlier one.
    AskEnd {
        /// For the answer.
        ticket: Ticket,
        /// Which stream of the cell.
        stream: Stream,
    },
    /// Tell an agent something. Orders are whole states: of two that wait to be sent the later one is enough. Keys are
    /// left out; whoever sends orders fills them in.
    Tell {
        /// On which stream.
        link: LinkId,
        message: ControllerMessage,
    },
    /// End an agent's stream. It is not mentioned again, and no input about it is expected.
    EndLink {
        link: LinkId,
        /// What to tell the agent; `None` if nobody is there to be told.
        cause: Option<LinkEnd>,
    },
    /// How far a job is, for whoever asks. Never logged.
    Telemetry(Telemetry),
    /// Delete the objects of a checkpoint that no longer counts. Deleting twice is harmless.
    Delete {
        /// For the answer.
        number: u64,
        /// What they are named by.
        name: CheckpointName,
    },
    /// This batch counts: ours, or one that another wrote before it was superseded. For whoever measures; of what is read back at a take-over
    /// nothing is said.
    Counted(Box<Batch>),
    /// This counts from now on. The first one says that the cell is taken over: the controller is ready.
    Committed(Box<Committed>),
    /// The controller does nothing any more. The last output.
    StandDown(CellEnd),
    /// For whoever reads the program's log.
    Note(Note),
    /// Give [`In::Wake`] at this time of the monotonic clock. Replaces the earlier one.
    WakeAt(u64),
}

/// Why the controller ends an agent's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkEnd {
    /// The agent was given up meanwhile: it has to stop its executors and join as a new process.
    Rejoin,
    /// It broke the protocol.
    Refused,
    /// Another agent process speaks for this server and is heard.
    Taken,
    /// Try again, here or elsewhere.
    Leaving,
}

/// What counts: the state as of a place in the log. Cloning is cheap; the state's tables are shared.
#[derive(Debug, Clone)]
pub struct Committed {
    /// The fold of all facts that count.
    pub state: State,
    /// The claim it stands on.
    pub term: Term,
    /// First offset of `events` that is not in it.
    pub position: Offset,
    /// First offset of each input stream that is not in it.
    pub inputs: Positions,
    /// Tells its log from all others, as in the fold; whoever leads has read it.
    pub installation: Option<u64>,
}
