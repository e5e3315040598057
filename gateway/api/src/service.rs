//! Commands, pages of events, and what the service says of itself.

use crate::forms::{Hash, Name};
use crate::problem::Problem;
use crate::word::{Word, words};
use events_public::CloudEvent;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The content type of an upload that is no document.
pub const BINARY: &str = "application/octet-stream";

/// Code that was uploaded; jobs name it by its digest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Code {
    /// What a job's `model.code` says.
    #[schemars(with = "Hash")]
    pub code: String,
    /// Bytes of it.
    pub bytes: u64,
}

words! {
    /// What became of a command.
    CommandState {
        /// It had its effect, or had it before.
        Done = "done",
        /// It had none; `problem` says why.
        Refused = "refused",
        /// Nobody has decided (yet), it is older than those that are remembered, or it never came.
        Undecided = "undecided",
    }
}

/// A command that is durable but not decided yet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Undecided {
    /// The job, fleet or dataset it is about.
    #[schemars(with = "Name")]
    pub id: String,
    /// The command, to be asked for at `/v1/commands/{id}`.
    #[schemars(with = "Name")]
    pub command: String,
    /// Always `undecided`.
    pub status: Word<CommandState>,
    /// Where its effect will show.
    pub path: String,
    /// What to do.
    pub detail: String,
}

/// What became of a command.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CommandStatus {
    /// Its id.
    #[schemars(with = "Name")]
    pub command: String,
    /// What became of it.
    pub status: Word<CommandState>,
    /// Why it was refused, as the request itself would have been answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
}

/// A page of events, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct EventPage {
    /// At most `limit` of them.
    pub events: Vec<CloudEvent>,
    /// Where to go on later.
    pub cursor: String,
    /// The same, if there is more right now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// What this service is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Server {
    /// Of its build.
    pub version: String,
    /// The cell it serves.
    pub cell: u32,
    /// Where datasets and models are kept, without credentials.
    pub store_url: String,
}

/// Whether the service can do its work, and what it waits for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Health {
    /// Always `ok`; a service that is not says a problem.
    pub status: String,
}
