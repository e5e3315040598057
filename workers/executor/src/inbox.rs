//! Everything that can happen to an executor, as one bounded queue into the trainer's thread.
//!
//! Senders block when it is full: readers then leave data in the kernel's buffers, which slows the peer. No deadlock follows,
//! because the trainer never waits for any of them: what finds no room on its way out waits beside it (`checkpoint.rs`) or is cut off
//! (`network.rs`).

use crate::control::Heard;
use crate::network::Link;
use crate::room::Room;
use crate::stretch::Stretch;
use events_schema::orders::JobOrder;
use events_schema::{Digest, Generation, TraceContext};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;
pub use workers_member::Saved;
use workers_member::{Bulk, LinkId};
use workers_session::{CheckpointId, Envelope, Peer, ReplicaChecksum, ShardWritten};

/// Events waiting at once; with a 256 KiB piece each they hold 32 MiB, or as much of their senders' memory.
pub const EVENTS_MAX: usize = 128;

/// What happened.
#[derive(Debug)]
#[allow(missing_docs, reason = "a field without a comment is what its name and type say")]
pub enum Event {
    /// What comes next from the agent follows from this.
    Trace(TraceContext),
    /// A newer order from the agent.
    Order(Box<JobOrder>),
    /// The slot is taken back.
    Leave {
        /// Time until the kill.
        within_ms: u64,
    },
    /// It is let go.
    Deadline {
        /// Time until the kill.
        within_ms: u64,
    },
    /// It may compute in so much of the time.
    Share {
        /// In thousandths.
        thousandths: u16,
    },
    /// An authenticated link is up.
    Linked(LinkId, Link),
    /// A dial was given up; the peer is probably gone.
    NotLinked(Peer),
    /// A link ended.
    Lost(LinkId),
    /// A peer said something.
    Message {
        /// On which link.
        link: LinkId,
        envelope: Envelope,
        /// Size of it on the wire.
        bytes: usize,
    },
    /// A stretch of bulk data.
    Bulk(LinkId, Bulk, Stretch),
    /// Room for a growth is there.
    RoomMade(Room),
    /// A newcomer's data is at hand.
    Warmed(Generation),
    /// This member's shard is in the store.
    ShardWritten(ShardWritten),
    /// A checkpoint's manifest is in the store.
    ManifestWritten(CheckpointId, Saved),
    /// The replica's checksum at a boundary, and how long computing it took.
    Checksum {
        /// Which boundary.
        at: CheckpointId,
        checksum: ReplicaChecksum,
        took: Duration,
    },
    /// The final model is in the store; the digest of its parameters.
    ModelWritten(Digest),
    /// Something could not be written; the store was retried.
    NotWritten(WriteFailure),
    /// A unit is computed, for whoever looks here meanwhile (`meanwhile.rs`).
    Computed,
}

impl Event {
    /// What the agent said. Ends the process on a stop, so that this does not wait for the trainer to look up from a gradient.
    pub(crate) fn of(heard: Heard) -> Self {
        match heard {
            Heard::Trace(trace) => Self::Trace(trace),
            Heard::Order(order) => Self::Order(order),
            Heard::Leave { within_ms } => {
                tracing::info!(within_ms, "asked to leave");
                Self::Leave { within_ms }
            }
            Heard::Share { thousandths } => {
                tracing::info!(thousandths, "sharing the slot's time");
                Self::Share { thousandths }
            }
            Heard::Deadline { within_ms } => Self::Deadline { within_ms },
            Heard::Stop => {
                tracing::info!("stopped by the agent");
                std::process::exit(0);
            }
        }
    }
}

/// What could not be written.
#[derive(Debug)]
pub struct WriteFailure {
    /// The checkpoint, or none for the final model.
    pub checkpoint: Option<CheckpointId>,
    /// What the store met.
    pub source: storage::checkpoint::CheckpointWriteError,
}

/// Both ends.
#[must_use]
pub fn inbox() -> (SyncSender<Event>, Receiver<Event>) {
    sync_channel(EVENTS_MAX)
}
