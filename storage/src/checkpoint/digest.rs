//! What a replica is known by: its digest, which is kept, and its checksum, which members compare. Pure.
//!
//! Each member hashes its own part alone: BLAKE3 is a tree, so the digest of the whole follows from those of the subtrees that its parts consist of, where
//! parts begin between two chunks ([`PART_ELEMENTS`]). That a member's replica is another one in somebody else's part shows by the checksum, which takes a
//! fifth of the time.

use super::manifest::{ShardRange, bytes_of};
use blake3::hazmat::{ChainingValue, HasherExt, Mode, left_subtree_len, merge_subtrees_non_root, merge_subtrees_root};
use blake3::{CHUNK_LEN, Hasher};
use events_schema::Digest;
use std::iter::Peekable;
use std::ops::Range;
use twox_hash::XxHash3_128;

/// Elements of a chunk of BLAKE3, between which a replica is cut.
pub const PART_ELEMENTS: u64 = CHUNK / ELEMENT;
const CHUNK: u64 = CHUNK_LEN as u64;
const ELEMENT: u64 = size_of::<f32>() as u64;

/// BLAKE3 of a replica's little-endian bytes.
#[must_use]
pub fn replica_digest(replica: &[f32]) -> Digest {
    Digest::of(bytes_of(replica))
}

/// Digests of the subtrees that a part of a replica consists of, in order; of one that is all of it, the replica's.
#[must_use]
pub fn part_digests(part: &[f32], first_element: u64, replica_len: u64) -> Vec<Digest> {
    if part.len() as u64 == replica_len {
        return vec![replica_digest(part)];
    }
    let (mut left, elements) = (bytes_of(part), part.len() as u64);
    let hash = |Subtree { offset, length }| {
        let (bytes, others) = left.split_at(length as usize);
        left = others;
        Digest(Hasher::new().set_input_offset(offset).update(bytes).finalize_non_root())
    };
    subtrees(&ShardRange { index: 0, first_element, elements }, replica_len).into_iter().map(hash).collect()
}

/// The digest of a replica, by the digests of its parts in order. `None` if those are not of the subtrees that the parts consist of.
#[must_use]
pub fn whole_digest<'a>(replica_len: u64, parts: impl Iterator<Item = (ShardRange, &'a [Digest])>) -> Option<Digest> {
    let mut known = Vec::new();
    for (part, digests) in parts {
        if part.elements == replica_len {
            return digests.first().copied();
        }
        let places = subtrees(&part, replica_len);
        if places.len() != digests.len() {
            return None;
        }
        known.extend(places.into_iter().zip(digests.iter().map(|digest| digest.0)));
    }
    let mut known = known.into_iter().peekable();
    let (left, right) = Subtree::all(replica_len).halves()?;
    let (left, right) = (left.value(&mut known)?, right.value(&mut known)?);
    known.next().is_none().then(|| Digest(*merge_subtrees_root(&left, &right, Mode::Hash).as_bytes()))
}

/// The largest subtrees that lie within a part.
fn subtrees(part: &ShardRange, replica_len: u64) -> Vec<Subtree> {
    let first = part.first_element.saturating_mul(ELEMENT);
    let mut found = Vec::new();
    Subtree::all(replica_len).within(&(first..first.saturating_add(part.elements.saturating_mul(ELEMENT))), &mut found);
    found
}

/// Bytes of a replica that are a node of its tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Subtree {
    offset: u64,
    length: u64,
}

impl Subtree {
    fn all(replica_len: u64) -> Self {
        Self { offset: 0, length: replica_len.saturating_mul(ELEMENT) }
    }

    /// None of a chunk.
    fn halves(self) -> Option<(Self, Self)> {
        let length = (self.length > CHUNK).then(|| left_subtree_len(self.length))?;
        let right = Self { offset: self.offset + length, length: self.length - length };
        Some((Self { length, ..self }, right))
    }

    fn within(self, part: &Range<u64>, found: &mut Vec<Self>) {
        let end = self.offset + self.length;
        if self.length == 0 || end <= part.start || part.end <= self.offset {
            return;
        }
        if part.start <= self.offset && end <= part.end {
            found.push(self);
        } else if let Some((left, right)) = self.halves() {
            left.within(part, found);
            right.within(part, found);
        }
    }

    /// From the one that is known next, if it is this, or from its halves.
    fn value(self, known: &mut Peekable<impl Iterator<Item = (Self, ChainingValue)>>) -> Option<ChainingValue> {
        if let Some((_, value)) = known.next_if(|(subtree, _)| *subtree == self) {
            return Some(value);
        }
        let (left, right) = self.halves()?;
        Some(merge_subtrees_non_root(&left.value(known)?, &right.value(known)?, Mode::Hash))
    }
}

/// A checksum of a replica, taken little by little: XXH3 with 128 bits of its little-endian bytes. It tells replicas apart that differ by accident, not by
/// intent.
#[derive(Default)]
pub struct Checksum(XxHash3_128);

impl Checksum {
    /// Of all of it at once.
    #[must_use]
    pub fn of(replica: &[f32]) -> [u8; 16] {
        XxHash3_128::oneshot(bytes_of(replica)).to_le_bytes()
    }

    /// What comes next.
    pub fn add(&mut self, elements: &[f32]) {
        self.0.write(bytes_of(elements));
    }

    /// Of all that came.
    #[must_use]
    pub fn finish(&self) -> [u8; 16] {
        self.0.finish_128().to_le_bytes()
    }
}
