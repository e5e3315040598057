//! What public events about servers and the service itself hold; the rules of `data.rs` apply.

use crate::data::data;
use crate::words::Refusal;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

data! {
    /// An agent is there.
    AgentJoined {
        /// The server's name.
        server: String,
        /// Slots it holds, numbered from 0.
        slots: u16,
        /// UUIDs of the devices that its first slots are; absent if none is one.
        #[serde(skip_serializing_if = "Option::is_none")]
        devices: Option<Vec<String>>,
    }
    /// An agent was not heard.
    AgentGone {
        /// The server's name.
        server: String,
    }
    /// The link of a server was measured.
    LinkMeasured {
        /// The server.
        server: String,
        /// The servers that it was sent something from.
        from: Vec<String>,
        /// Bytes per second, from all of them together.
        bytes_per_s: u64,
        /// Jobs whose gradients it is too slow for do without the server until then; after that one may try it again.
        until: String,
    }
    /// A link that is too slow for a job.
    SlowLink {
        /// The server whose link it is; the fastest of them, if there are several.
        server: String,
        /// Bytes per second that it was measured to carry.
        bytes_per_s: u64,
        /// Bytes of gradients that the job's steps make in a second.
        gradient_bytes_per_s: u64,
        /// The first over the second, in thousandths; more than 1,100 are needed.
        beta_milli: u64,
    }
    /// A server is forgotten.
    ServerForgotten {
        /// The server's name.
        server: String,
    }
    /// A command had no effect.
    CommandRefused {
        /// The command's id.
        command: String,
        /// The job, fleet or dataset it was about.
        subject: String,
        /// Why, for programs.
        refusal: Refusal,
        /// Why, for people.
        reason: String,
    }
    /// An input had no effect.
    InputRefused {
        /// The stream it came in.
        stream: String,
        /// Where it stands there.
        offset: u64,
        /// Why, for people.
        reason: String,
    }
    /// The policy gave no plan.
    PlanFailed {
        /// The policy's name.
        policy: String,
        /// What it died of.
        reason: String,
    }
    /// A policy plans.
    PolicyChosen {
        /// The policy's name.
        policy: String,
    }
    /// Objects were deleted.
    StoreSwept {
        /// How many.
        objects: u64,
        /// Their size.
        bytes: u64,
    }
}
