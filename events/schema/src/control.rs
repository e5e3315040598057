//! What an agent and the executors it starts say to each other, over the executor's standard input and output.
//!
//! Each of these is one of [`CONTROL_FRAMES`]. An executor whose standard input ends has lost its
//! agent and exits, so no executor outlives the process that can free its slot.

use crate::frame::Frames;
use crate::orders::{JobOrder, Telemetry};
use crate::report::{CodeEndedAt, Report};
use crate::{Digest, ExecutorId, Generation, Rank, SlotId, Step, TimeMs, TraceContext};
use minicbor::{Decode, Encode};

/// An executor says that it lives this often, busy or not; its agent takes a silence of several for a hung process.
pub const ALIVE_INTERVAL_MS: u64 = 500;
/// Frames between agent and executor: a spec and a membership of 256 fit in 1 MiB many times.
pub const CONTROL_FRAMES: Frames = Frames::up_to(1 << 20);

/// Status of an executor that was told to leave and did not wait for the end of what it was at: a gang's stopped its program, one that trains went in the
/// middle of a step that would have lasted too long. What a process ended by SIGTERM has in a shell.
pub const STOPPED_STATUS: i32 = 143;

/// Status of an executor that trains and ended because of the object store, which was away for longer than it is waited for: a fault of nobody's program.
/// `EX_TEMPFAIL` of sysexits.h.
pub const STORE_STATUS: i32 = 75;

/// Status of an executor whose job's code ended the process that runs it, rather than raise: it exited, crashed or took more memory than there is. What
/// ended it is known to do so again, so two such ends at one place fail the job. `EX_SOFTWARE` of sysexits.h.
pub const CODE_ENDED_STATUS: i32 = 70;

/// From agent to executor.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub enum ToExecutor {
    /// First frame: who it is and what it trains.
    #[n(0)]
    Start(#[n(0)] Box<ExecutorStart>),
    /// A newer order: another proposal, or park.
    #[n(1)]
    Order(#[n(0)] Box<JobOrder>),
    /// The slot is taken back directly: leave at the next boundary. Killed when the time is over.
    #[n(2)]
    Leave {
        /// Time until the kill.
        #[n(0)]
        within_ms: u64,
    },
    /// The order lets it go: it is killed when the time is over. How it leaves, the order says; this says only how long it may take.
    #[n(5)]
    Deadline {
        /// Time until the kill.
        #[n(0)]
        within_ms: u64,
    },
    /// The job has ended or the order is gone: exit 0 now.
    #[n(3)]
    Stop,
    /// On a guest slot: compute in so much of the time from now on, and rest otherwise. What is computed is the same.
    #[n(6)]
    Share {
        /// In thousandths; 0 is to compute nothing, as far as its job's controller does not take it for hung.
        #[n(0)]
        thousandths: u16,
    },
    /// The next frame follows from this span, and somebody wants to know what becomes of it. Before any other frame, the first included.
    #[n(4)]
    Trace(#[n(0)] TraceContext),
}

/// What an executor is started with.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct ExecutorStart {
    /// Who it is.
    #[n(0)]
    pub executor: ExecutorId,
    /// Its slot.
    #[n(1)]
    pub slot: SlotId,
    /// URL of Ebb's object store.
    #[n(2)]
    pub store_url: String,
    /// Numeric class its server joined with; it refuses to run if its own known-answer test differs.
    #[n(3)]
    pub class: Digest,
    /// Address (host) to listen on for peers.
    #[n(4)]
    pub listen_host: String,
    /// What it trains.
    #[n(5)]
    pub order: JobOrder,
    /// What this server has for models in PyTorch. None of an earlier agent.
    #[n(6)]
    pub torch: Option<TorchHost>,
}

/// What a server has for models in PyTorch.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct TorchHost {
    /// A folder for what its executors unpack and share, named by content.
    #[n(0)]
    pub folder: String,
    /// The Python for jobs that name none.
    #[n(1)]
    pub python: String,
    /// The folder of the operator's secrets, one file for each; none: jobs find no secrets here.
    #[n(2)]
    pub secrets: Option<String>,
    /// Most MiB of unpacked code and built environments that are kept when nobody uses them; not said by earlier builds.
    #[n(3)]
    pub cache_mib: Option<u64>,
    /// Under which name the agent listens for executors that want a Python that has PyTorch imported. None: each starts its own.
    #[n(4)]
    pub warm: Option<String>,
    /// Which files programs of jobs may reach, beside those that are their own and those of the system. None: all that their user may.
    #[n(5)]
    pub files: Option<FileAccess>,
}

/// What an operator says of the files of a server.
#[derive(Debug, Clone, PartialEq, Eq, Default, Encode, Decode)]
pub struct FileAccess {
    /// No program runs where the kernel cannot keep to it.
    #[n(0)]
    pub required: bool,
    /// Folders and files that all jobs may read.
    #[n(1)]
    pub readable: Vec<String>,
    /// What none may, wherever it lies.
    #[n(2)]
    pub hidden: Vec<String>,
}

/// From executor to agent.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub enum FromExecutor {
    /// A change for the controller.
    #[n(0)]
    Report(#[n(0)] Report),
    /// How far it is, for people to look at; never decided upon.
    #[n(1)]
    Telemetry(#[n(0)] Telemetry),
    /// Nothing new; the process runs. (Before there was [`FromExecutor::Progress`].)
    #[n(2)]
    Alive,
    /// The process runs, and this is what it is at. Every [`ALIVE_INTERVAL_MS`], from a thread of its own: a training thread that
    /// hangs shows as totals that do not move.
    #[n(3)]
    Progress(#[n(0)] Progress),
    /// Something that follows from a [`ToExecutor::Trace`] is done. The agent passes it on to whoever collects spans: an executor on its way
    /// out waits for no collector.
    #[n(4)]
    Span(#[n(0)] ExecutorSpan),
    /// Why it is about to exit with a status other than 0, for its job's user. Counts only if it then does.
    #[n(5)]
    LastWords {
        /// In a sentence.
        #[n(0)]
        said: String,
        /// Set where the job's own code ended: how far it was.
        #[n(1)]
        code_ended: Option<CodeEndedAt>,
    },
}

/// What an executor did for a trace, and when, by its host's wall clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct ExecutorSpan {
    /// What it did.
    #[n(0)]
    pub hop: ExecutorHop,
    /// What it follows from.
    #[n(1)]
    pub parent: TraceContext,
    /// When it began.
    #[n(2)]
    pub from: TimeMs,
    /// Microseconds of `from` beyond its milliseconds.
    #[n(3)]
    pub from_us: u16,
    /// How long it took, in microseconds.
    #[n(4)]
    pub took_us: u64,
}

/// What an executor can do for a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
pub enum ExecutorHop {
    /// From the start of the process until it can join a generation: it makes its model and opens its data.
    #[n(0)]
    Prepare,
    /// From an order until the membership it asks for is in force.
    #[n(1)]
    Join,
    /// From the word to leave until the boundary at which it may.
    #[n(2)]
    Boundary,
}

/// What an executor is at. Totals run from the start of the process.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Progress {
    /// The membership it is in, or is about to enter: the controller's number. 0 before the first.
    #[n(0)]
    pub generation: Generation,
    /// Departures by consent since that generation began.
    #[n(1)]
    pub revision: u32,
    /// The step in flight.
    #[n(2)]
    pub step: Step,
    /// What it does.
    #[n(3)]
    pub phase: Phase,
    /// Gradients, parts of evaluations and updates done.
    #[n(4)]
    pub units_done: u64,
    /// Bytes of bulk data received from peers and sent to them.
    #[n(5)]
    pub bytes_done: u64,
    /// What it cannot go on without.
    #[n(6)]
    pub waits_for: WaitsFor,
    /// Processor time the process has used, in milliseconds: a slow process uses some, a hung one none.
    #[n(7)]
    pub processor_ms: u64,
    /// The gradients among the units done; not said by earlier builds.
    #[n(8)]
    pub gradients: Option<Gradients>,
    /// How much of its slot it used over the last ten seconds, in hundredths: of the slot's share of the processors, or of its device. Filled in by its agent,
    /// where the slot has a guest slot and that is known; nobody else's use counts. Not said by earlier builds.
    #[n(9)]
    pub busy_percent: Option<u8>,
}

/// Gradients of single ranks that an executor computed, and what they took: the same work for each, so members compare by it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Encode, Decode)]
pub struct Gradients {
    /// How many.
    #[n(0)]
    pub count: u64,
    /// How long all of them took, in microseconds.
    #[n(1)]
    pub took_us: u64,
    /// For how much of that rows were waited for. Not said by earlier builds.
    #[n(2)]
    pub data_us: Option<u64>,
}

/// What an executor does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub enum Phase {
    /// Builds the model and opens the data; in no membership yet.
    #[n(0)]
    Building,
    /// In no membership, or a newcomer that waits for its first boundary.
    #[n(1)]
    Idle,
    /// Makes its replica, or reads it from a checkpoint.
    #[n(2)]
    Loading,
    /// A generation begins: not linked to all of its members yet.
    #[n(3)]
    Linking,
    /// A generation begins: linked to all, until it begins.
    #[n(4)]
    Joining,
    /// Receives the replica, or the gradient that it lacks.
    #[n(5)]
    Copying,
    /// Computes the gradient of this rank.
    #[n(6)]
    Computing(#[n(0)] Rank),
    /// Its own part of the step is done; the sum is not whole yet.
    #[n(7)]
    Reducing,
    /// Applies the update.
    #[n(8)]
    Updating,
    /// Evaluates this rank's part of the held-out set.
    #[n(9)]
    Evaluating(#[n(0)] Rank),
    /// Stands still until the job's state is in the store.
    #[n(10)]
    Saving,
    /// Stands still with everything saved: parked, or at the end of the job.
    #[n(11)]
    Still,
    /// The job cannot be computed and was reported so; only a stop is awaited.
    #[n(12)]
    Broken,
}

/// What an executor cannot go on without.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum WaitsFor {
    /// It works, or nothing is left to do.
    #[n(0)]
    Nothing,
    /// These peers (numbers of executors within the job), at most a membership of them.
    #[n(1)]
    Peers(#[n(0)] Vec<u32>),
    /// The object store.
    #[n(2)]
    Store,
    /// A word of the controller: a proposal, or a stop.
    #[n(3)]
    Controller,
}
