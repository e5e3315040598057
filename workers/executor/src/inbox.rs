//! Everything that can happen to an executor, as one bounded queue into the trainer's thread.
//!
//! Senders block when it is full: readers then leave data in the kernel's buffers, which slows the peer. No deadlock follows,
//! because the trainer never waits for any of them: what finds no room on its way out waits beside it (`checkpoint.rs`) or is cut off
//! (`network.rs`).

use crate::network::Link;
use crate::wire::Header;
use events_schema::orders::JobOrder;
use events_schema::{Digest, Generation};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use workers_session::{CheckpointId, Envelope, Peer, ShardWritten};

/// Events waiting at once; with a 256 KiB piece each they hold 32 MiB.
const EVENTS_MAX: usize = 128;

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// A newer order from the agent.
    Order(Box<JobOrder>),
    /// The slot is taken back.
    Leave {
        /// Time until the kill.
        within_ms: u64,
    },
    /// An authenticated link is up.
    Linked(Peer, Link),
    /// A dial was given up; the peer is probably gone.
    NotLinked(Peer),
    /// A link ended. (Its number, because a peer may be linked anew before this is read.)
    Lost(Peer, u64),
    /// The grace of a lost link to a member of this generation is over.
    StillLost(Peer, Generation),
    /// The grace of a round is over.
    StillJoining(Generation),
    /// A peer said something.
    Message(Peer, u64, Envelope),
    /// A stretch of bulk data.
    Bulk(Peer, u64, Header, Vec<f32>),
    /// A newcomer's data is at hand.
    Warmed(Generation),
    /// This member's shard is in the store.
    ShardWritten(ShardWritten),
    /// A checkpoint's manifest is in the store.
    ManifestWritten(CheckpointId, Saved),
    /// The final model is in the store.
    ModelWritten {
        /// Its key.
        key: String,
        /// Digest of its parameters.
        digest: Digest,
    },
    /// Something could not be written; the store was retried.
    NotWritten(WriteFailure),
}

/// A complete checkpoint.
#[derive(Debug, Clone)]
pub struct Saved {
    /// Key of the manifest.
    pub manifest_key: String,
    /// Digest of the whole replica.
    pub replica_digest: Digest,
    /// Bytes of all shards.
    pub bytes: u64,
}

/// What could not be written.
#[derive(Debug)]
pub struct WriteFailure {
    /// The checkpoint, or none for the final model.
    pub checkpoint: Option<CheckpointId>,
    /// Why.
    pub source: storage::checkpoint::CheckpointWriteError,
}

/// Both ends.
#[must_use]
pub fn inbox() -> (SyncSender<Event>, Receiver<Event>) {
    sync_channel(EVENTS_MAX)
}
