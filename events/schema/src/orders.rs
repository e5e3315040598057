//! The stream between a controller and an agent: what one server has to do, and what it says back.
//!
//! Orders are the whole wanted state of a server, derived from the controller's state and sent again at every change, so that
//! each is idempotent and a lost one costs nothing. They carry the term; an agent refuses one lower than it has seen.

use crate::control::Progress;
use crate::dataset::DatasetInfo;
use crate::fact::Proposal;
use crate::job::JobSpec;
use crate::report::Report;
use crate::{ExecutorId, Generation, JobId, Offset, ServerId, SlotId, Step, Term, TimeMs, TraceContext, WriterToken};
use minicbor::{Decode, Encode};
use serde::{Deserialize, Serialize};

/// From agent to controller.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
#[allow(missing_docs, reason = "a field without a comment is what its name and type say")]
pub enum AgentMessage {
    /// First message of a stream.
    #[n(0)]
    Hello {
        /// Which server; must match the stream's credential.
        #[n(0)]
        server: ServerId,
        /// The agent process.
        #[n(1)]
        incarnation: u64,
        /// Where others measure the link to this server. Not there: it neither measures a link nor has its own measured; so it is with earlier builds.
        #[n(2)]
        far_end: Option<FarEnd>,
    },
    /// A change; repeated until taken.
    #[n(1)]
    Report {
        /// Its place within the incarnation, from 1.
        #[n(0)]
        number: u64,
        /// When it was seen.
        #[n(1)]
        at: TimeMs,
        /// What was seen.
        #[n(2)]
        report: Report,
        /// What led to it; filled in by the agent's shell.
        #[n(3)]
        trace: Option<TraceContext>,
    },
    /// Progress of a job, at most a few a second; never logged.
    #[n(2)]
    Telemetry(#[n(0)] Telemetry),
    /// Nothing new; the agent lives.
    #[n(3)]
    Heartbeat,
    /// What an executor is at, at most twice a second; never logged.
    #[n(4)]
    Progress {
        #[n(0)]
        executor: ExecutorId,
        /// By its own word.
        #[n(1)]
        progress: Progress,
    },
    /// A link was measured, as [`ControllerMessage::MeasureLink`] asked; never logged.
    #[n(5)]
    LinkMeasured {
        /// Of the request.
        #[n(0)]
        number: u64,
        /// Bytes per second in the slower direction. None if nothing could be measured, as where the other server cannot be reached.
        #[n(1)]
        bytes_per_s: Option<u64>,
    },
}

/// A link that carries so much is not said of: 1 Gbit/s carries it, and no network that is made for training carries less. What a link carries beyond it a
/// burst of a few MiB does not tell well; a newcomer's copy does.
pub const LINK_FAST_BYTES_PER_S: u64 = 100_000_000;

/// Where a server's agent is reached by one that measures the link between the two.
#[derive(Clone, PartialEq, Eq, Encode, Decode)]
pub struct FarEnd {
    /// `HOST:PORT`, on the way that its executors are reached.
    #[n(0)]
    pub address: String,
    /// What has to be shown there: a random number of the agent process.
    #[n(1)]
    #[cbor(with = "minicbor::bytes")]
    pub key: [u8; 16],
}

impl std::fmt::Debug for FarEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FarEnd({}, hidden)", self.address)
    }
}

/// From controller to agent.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub enum ControllerMessage {
    /// Everything this server has to do.
    #[n(0)]
    Orders(#[n(0)] Orders),
    /// Reports up to this number are durable and need not be repeated.
    #[n(1)]
    ReportsTaken {
        /// The highest number.
        #[n(0)]
        through: u64,
    },
    /// Nothing new; leases are renewed.
    #[n(2)]
    Heartbeat {
        /// The controller's term.
        #[n(0)]
        term: Term,
    },
    /// The controller lives and hears this agent, but no fleet could reach it now: its log does not answer, or it has not read it
    /// yet. Renews nothing.
    #[n(8)]
    Alive,
    /// Measure the link to another server, once. Said to agents alone whose hello named a far end of their own; one at a time in a cell.
    #[n(9)]
    MeasureLink {
        /// For the answer.
        #[n(0)]
        number: u64,
        /// The other server's.
        #[n(1)]
        far_end: FarEnd,
    },
}

/// The wanted state of one server.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct Orders {
    /// Of the controller that sends them.
    #[n(0)]
    pub term: Term,
    /// End of the `events` stream they derive from; older ones are ignored.
    #[n(1)]
    pub position: Offset,
    /// Every executor that is to exist on this server; any other is stopped at once.
    #[n(2)]
    pub executors: Vec<ExecutorOrder>,
}

impl Orders {
    /// Says of every deadline how much of it is left at `now`, by the clock that made the deadlines. To be called when they are sent.
    pub fn count_down(&mut self, now: TimeMs) {
        for order in &mut self.executors {
            order.leave_in_ms = order.leave_by.map(|by| by.since_ms(now));
        }
    }
}

/// One executor that is to exist.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct ExecutorOrder {
    /// The executor that is to run.
    #[n(0)]
    pub executor: ExecutorId,
    /// On which slot.
    #[n(1)]
    pub slot: SlotId,
    /// Set when it has to leave, by the controller's clock. To an agent only the deadline's name: its own clock may differ. One that
    /// has it is never started.
    #[n(2)]
    pub leave_by: Option<TimeMs>,
    /// What it trains.
    #[n(3)]
    pub job: JobOrder,
    /// What is left until `leave_by` when this is sent; the executor is killed then. Not there, nothing is left.
    #[n(4)]
    pub leave_in_ms: Option<u64>,
    /// The decision that this order last changed by, where it belongs to a trace. Filled in when the orders are sent, like keys, and never
    /// looked at by whoever decides.
    #[n(5)]
    pub trace: Option<TraceContext>,
}

/// What an executor has to know of its job.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct JobOrder {
    /// What to train.
    #[n(0)]
    pub spec: Box<JobSpec>,
    /// The training dataset, if its spec names one.
    #[n(1)]
    pub dataset: Option<DatasetInfo>,
    /// The evaluation dataset, if its spec names one.
    #[n(2)]
    pub evaluation: Option<DatasetInfo>,
    /// All zeros, and read by nobody: a key of the job, from which executors of earlier builds derived what they name objects by.
    #[n(3)]
    #[cbor(with = "minicbor::bytes")]
    pub key: [u8; 32],
    /// The newest membership that concerns this executor: it is a member, or a member of the one before.
    #[n(4)]
    pub proposal: Option<Proposal>,
    /// Write a checkpoint at the next boundary and stand still after it (suspension).
    #[n(5)]
    pub park: bool,
    /// Keys of the links between this executor and the other members of `proposal`; derived by the controller's server, never in the log. None of an earlier
    /// controller.
    #[n(6)]
    #[cbor(skip_if = "Vec::is_empty")]
    pub link_keys: Vec<LinkKey>,
    /// What the objects are named by that are written in the generation of `proposal`; derived like `link_keys`, for each generation anew, and
    /// given to its members alone. None of an earlier controller, without a proposal, and for whom the proposal leaves out.
    #[n(7)]
    pub writer: Option<WriterToken>,
    /// Of a gang: other members of the generation in force whose program has ended well, by number.
    #[n(8)]
    #[cbor(skip_if = "Vec::is_empty")]
    pub ended_well: Vec<u32>,
    /// How often every replica of the job was lost so far: by that and by how long it trained its leader judges how often that happens.
    #[n(9)]
    #[cbor(skip_if = "is_zero")]
    pub restarts: u32,
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl JobOrder {
    /// For computing a job in one process: no other members, and nobody who has to be convinced of anything.
    #[must_use]
    pub fn alone(spec: JobSpec, dataset: Option<DatasetInfo>, evaluation: Option<DatasetInfo>) -> Self {
        Self {
            spec: Box::new(spec),
            dataset,
            evaluation,
            key: [0; 32],
            proposal: None,
            park: false,
            link_keys: Vec::new(),
            writer: None,
            ended_well: Vec::new(),
            restarts: 0,
        }
    }
}

/// What two executors of a job know each other by, and nobody else knows. Numbers of executors are used once, so it serves for one pair
/// of processes, over all generations that both are in.
#[derive(Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct LinkKey {
    /// The other one's number within the job.
    #[n(0)]
    pub peer: u32,
    /// The same for both.
    #[n(1)]
    #[cbor(with = "minicbor::bytes")]
    pub key: [u8; 32],
}

impl std::fmt::Debug for LinkKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LinkKey(e{}, hidden)", self.peer)
    }
}

/// A gateway in another process than the controller's asks to be told how far jobs are: all of them now, then whatever changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Encode, Decode)]
pub struct WatchProgress {}

/// How far a job is, as its leader last said.
#[derive(Debug, Clone, PartialEq, Encode, Decode, Serialize, Deserialize)]
pub struct Telemetry {
    /// Which job.
    #[n(0)]
    pub job: JobId,
    /// Which generation speaks.
    #[n(1)]
    pub generation: Generation,
    /// Steps done.
    #[n(2)]
    pub step: Step,
    /// Steps in all.
    #[n(3)]
    pub steps_total: u64,
    /// Epoch of the current step.
    #[n(4)]
    pub epoch: u64,
    /// Mean training loss of the last step.
    #[n(5)]
    pub loss: f64,
    /// Samples per second, averaged over the last second or two.
    #[n(6)]
    pub samples_per_second: f64,
    /// Duration of the last step, in microseconds; of an update of several, of each.
    #[n(7)]
    pub step_us: u64,
    /// Executors in the generation.
    #[n(8)]
    pub members: u16,
    /// For how long the leader waited for the samples of a step, in microseconds, averaged like `samples_per_second`: input that comes more
    /// slowly than it is trained on. Not said by earlier builds.
    #[n(9)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_wait_us: Option<u64>,
    /// How long its leader lets pass between two checkpoints now, in milliseconds; none where they go by steps, and of earlier builds.
    #[n(10)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_every_ms: Option<u64>,
}
