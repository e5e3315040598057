//! What an agent and the executors it starts say to each other, over the executor's standard input and output.
//!
//! Frames: a 4-byte little-endian length, then [`crate::batch::to_bytes`]. An executor whose standard input ends has lost its
//! agent and exits, so no executor outlives the process that can free its slot.

use crate::orders::{JobOrder, Telemetry};
use crate::report::Report;
use crate::{Digest, ExecutorId, SlotId};
use minicbor::{Decode, Encode};

/// An executor says that it lives this often, busy or not; its agent takes a silence of several for a hung process.
pub const ALIVE_INTERVAL_MS: u64 = 500;
/// Largest frame between agent and executor: a spec and a membership of 256 fit in 1 MiB many times.
pub const CONTROL_FRAME_LEN_MAX: u32 = 1 << 20;

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
    /// The job has ended or the order is gone: exit 0 now.
    #[n(3)]
    Stop,
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
}

/// From executor to agent.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub enum FromExecutor {
    /// A change for the controller.
    #[n(0)]
    Report(#[n(0)] Report),
    /// Progress.
    #[n(1)]
    Telemetry(#[n(0)] Telemetry),
    /// Nothing new; the process runs. Every [`ALIVE_INTERVAL_MS`].
    #[n(2)]
    Alive,
}
