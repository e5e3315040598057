//! What members say of their parts of a checkpoint, and of their replicas. Pure; gathered in `save.rs` and `compare.rs`.

use crate::message::CheckpointId;
use events_schema::{Digest, Step, WriterToken};
use minicbor::{Decode, Encode};
use std::fmt;

/// One member's part of a checkpoint, as it stands in the store.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct ShardWritten {
    /// Of which.
    #[n(0)]
    pub checkpoint: CheckpointId,
    /// Its place, from 0.
    #[n(1)]
    pub index: u16,
    /// How many there are.
    #[n(2)]
    pub count: u16,
    // 3 was the object's key, which everybody computes by itself.
    /// First element of the flat replica in it.
    #[n(4)]
    pub first_element: u64,
    /// Elements in it.
    #[n(5)]
    pub elements: u64,
    /// Size of the object.
    #[n(6)]
    pub bytes: u64,
    /// Digest of the object's bytes.
    #[n(7)]
    pub digest: Digest,
    // 8 was the digest of the writer's whole replica.
    /// Of the writer's whole replica: all must agree.
    #[n(11)]
    pub checksum: ReplicaChecksum,
    /// What its object is named by: a manifest names all its shards by one. None of an earlier build.
    #[n(9)]
    pub writer: Option<WriterToken>,
    /// Of its elements, from which with those of the other parts the digest of the whole replica follows.
    #[n(10)]
    pub part_digests: PartDigests,
}

/// Digests of the subtrees of a member's part, in order.
#[derive(Clone, PartialEq, Eq, Default, Encode, Decode)]
#[cbor(transparent)]
pub struct PartDigests(#[n(0)] pub Vec<Digest>);

impl fmt::Debug for PartDigests {
    /// Some dozens for each member: who reads a log needs none of them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} digests", self.0.len())
    }
}

/// What members compare of their replicas: equal ones have equal ones. Nobody keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
#[cbor(transparent)]
pub struct ReplicaChecksum(#[cbor(n(0), with = "minicbor::bytes")] pub [u8; 16]);

impl ShardWritten {
    /// Whether it can be a part of a checkpoint of `step` or an earlier one. (Its membership may be newer than the reader's.)
    #[must_use]
    pub fn is_sound(&self, step: Step) -> bool {
        let place = self.index < self.count && u64::from(self.count) <= events_schema::job::WORKERS_MAX;
        place && self.checkpoint.step <= step
    }
}
