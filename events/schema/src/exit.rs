//! How the process of an executor ended, as its agent reports it.

use crate::{Generation, Rank, Step};
use minicbor::{Decode, Encode};
use serde::Serialize;

/// How an executor's process ended.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitCause {
    /// It left as asked, exit status 0.
    #[n(0)]
    Left,
    /// It exited with this status.
    #[n(1)]
    Status(#[n(0)] i32),
    /// A signal nobody here sent.
    #[n(2)]
    Signal(#[n(0)] i32),
    /// The agent killed it at a deadline or on an order.
    #[n(3)]
    Killed,
    /// It could not be started.
    #[n(4)]
    NotStarted(#[n(0)] String),
    /// It ran but said nothing for seconds, and the agent killed it.
    #[n(5)]
    Silent,
    /// It exited with this status, and said why.
    #[n(6)]
    Failed {
        /// Not 0.
        #[n(0)]
        status: i32,
        /// In its own words.
        #[n(1)]
        said: String,
        /// Set where the job's own code ended: how far it was. Not said by earlier builds.
        #[n(2)]
        #[serde(skip_serializing_if = "Option::is_none")]
        code_ended: Option<CodeEndedAt>,
    },
    /// The device of its slot is gone, and it with it; what its agent knows of that.
    #[n(7)]
    DeviceLost(#[n(0)] String),
}

/// How far a job was where its code ended the process that ran it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Encode, Decode, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CodeEndedAt {
    /// The model was not built yet.
    #[n(0)]
    Start,
    /// It trained.
    #[n(1)]
    Step {
        /// The membership that it was in.
        #[n(0)]
        generation: Generation,
        /// The step in flight.
        #[n(1)]
        step: Step,
        /// Whose gradient or evaluation was computed, if one was.
        #[n(2)]
        rank: Option<Rank>,
    },
}
