//! The frames between executors: a fixed 48-byte header, then its payload. Pure.
//!
//! Control frames carry one [`workers_session::Envelope`]; bulk frames carry a stretch of a flat `f32` vector, little-endian, and
//! say in the header what it is. Every bulk frame names its generation, revision and step, so stale ones are told apart
//! without looking inside. The job is the connection's (see `handshake.rs`).

use events_schema::tree::Node;
use events_schema::{Generation, Step};
use workers_session::Tag;

/// Bytes of a header.
pub const HEADER_LEN: usize = 48;
/// Elements of one bulk frame (256 KiB): large enough that headers do not count, small enough that reduction overlaps sending.
pub const PIECE_ELEMENTS: usize = 64 * 1024;
/// Largest payload: one piece, or one control message (a membership of 256 with its sums fits many times).
pub const PAYLOAD_LEN_MAX: u32 = 1 << 20;

/// What a frame holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One envelope.
    Control,
    /// A stretch of one tree node's gradient sum, for the owner of its chunk.
    Partial(Node),
    /// A stretch of the whole sum, from its owner.
    Reduced,
    /// A stretch of the replica, for a newcomer or laggard.
    Replica,
    /// A stretch of the last mean gradient, for a laggard.
    Gradient,
    /// Nothing: the sender lives.
    Ping,
}

/// A frame's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What follows.
    pub kind: Kind,
    /// The membership it is sent in. (Control frames carry theirs in the envelope; here it is only informative.)
    pub tag: Tag,
    /// The step it belongs to.
    pub step: Step,
    /// First element of the stretch.
    pub offset: u64,
    /// Bytes that follow.
    pub payload_len: u32,
}

/// Why bytes are not a header. All: cut the link.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Unknown kind.
    #[error("frame of unknown kind {0}")]
    Kind(u8),
    /// Longer than allowed.
    #[error("frame of {0} bytes, at most {PAYLOAD_LEN_MAX} are legal")]
    TooLong(u32),
    /// Not whole elements.
    #[error("bulk frame of {0} bytes is not a whole number of elements")]
    Ragged(u32),
}

impl Header {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let (kind, node) = match self.kind {
            Kind::Control => (0, None),
            Kind::Partial(node) => (1, Some(node)),
            Kind::Reduced => (2, None),
            Kind::Replica => (3, None),
            Kind::Gradient => (4, None),
            Kind::Ping => (5, None),
        };
        let node = node.unwrap_or(Node { first: 0, count: 0 });
        let mut bytes = [0; HEADER_LEN];
        bytes[0..4].copy_from_slice(&self.payload_len.to_le_bytes());
        bytes[4] = kind;
        bytes[8..10].copy_from_slice(&node.first.to_le_bytes());
        bytes[10..12].copy_from_slice(&node.count.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.tag.revision.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.tag.generation.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.step.0.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.offset.to_le_bytes());
        bytes
    }

    /// Reads a header.
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Self, WireError> {
        let u16_at = |i: usize| u16::from_le_bytes([bytes[i], bytes[i + 1]]);
        let u32_at = |i: usize| u32::from(u16_at(i)) | u32::from(u16_at(i + 2)) << 16;
        let u64_at = |i: usize| u64::from(u32_at(i)) | u64::from(u32_at(i + 4)) << 32;
        let payload_len = u32_at(0);
        let kind = match bytes[4] {
            0 => Kind::Control,
            1 => Kind::Partial(Node { first: u16_at(8), count: u16_at(10) }),
            2 => Kind::Reduced,
            3 => Kind::Replica,
            4 => Kind::Gradient,
            5 => Kind::Ping,
            other => return Err(WireError::Kind(other)),
        };
        if payload_len > PAYLOAD_LEN_MAX {
            return Err(WireError::TooLong(payload_len));
        }
        if kind != Kind::Control && !payload_len.is_multiple_of(4) {
            return Err(WireError::Ragged(payload_len));
        }
        let tag = Tag { generation: Generation(u64_at(16)), revision: u32_at(12) };
        Ok(Self { kind, tag, step: Step(u64_at(24)), offset: u64_at(32), payload_len })
    }
}

/// Appends little-endian bytes of some elements.
pub fn put_elements(elements: &[f32], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + elements.len() * 4, 0);
    for (slot, element) in out[start..].as_chunks_mut::<4>().0.iter_mut().zip(elements) {
        *slot = element.to_le_bytes();
    }
}

/// The elements of some little-endian bytes.
#[must_use]
pub fn take_elements(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn headers_survive_their_bytes() {
        let tag = Tag { generation: Generation(1 << 40), revision: 70_000 };
        for kind in [
            Kind::Control,
            Kind::Partial(Node { first: 3, count: 256 }),
            Kind::Reduced,
            Kind::Replica,
            Kind::Gradient,
            Kind::Ping,
        ] {
            let header = Header { kind, tag, step: Step(u64::MAX - 1), offset: 1 << 33, payload_len: 1 << 20 };
            assert_eq!(Header::decode(&header.encode()), Ok(header));
        }
    }

    #[test]
    fn frames_that_cannot_be_are_refused() {
        let tag = Tag { generation: Generation(1), revision: 0 };
        let good = Header { kind: Kind::Reduced, tag, step: Step(1), offset: 0, payload_len: 8 };
        let with = |payload_len| Header { payload_len, ..good }.encode();
        assert_eq!(Header::decode(&with(PAYLOAD_LEN_MAX + 1)), Err(WireError::TooLong(PAYLOAD_LEN_MAX + 1)));
        assert_eq!(Header::decode(&with(7)), Err(WireError::Ragged(7)));
        let mut unknown = good.encode();
        unknown[4] = 9;
        assert_eq!(Header::decode(&unknown), Err(WireError::Kind(9)));
    }

    #[test]
    fn elements_keep_their_bits() {
        let values = [0.0, -0.0, 1.5e-42, f32::MAX];
        let mut bytes = vec![7];
        put_elements(&values, &mut bytes);
        assert!(take_elements(&bytes[1..]).iter().zip(values).all(|(a, b)| a.to_bits() == b.to_bits()));
    }
}
