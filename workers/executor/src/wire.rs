//! The frames between executors: a fixed 48-byte header, then its payload. Pure.
//!
//! Control frames carry one [`workers_session::Envelope`]; bulk frames carry a stretch of a flat `f32` vector, little-endian, and
//! say in the header what it is. Every bulk frame names its generation, revision and step, so stale ones are told apart
//! without looking inside. The job is the connection's (see `handshake.rs`).

use events_schema::tree::Node;
use events_schema::{Generation, Step};
use workers_member::{Bulk, Kind};
use workers_session::Tag;

/// Bytes of a header.
pub const HEADER_LEN: usize = 48;
/// Elements of one bulk frame (256 KiB): large enough that headers do not count, small enough that reduction overlaps sending.
pub const PIECE_ELEMENTS: usize = 64 * 1024;
/// Largest payload: one piece, or one control message (a membership of 256 with its sums fits many times).
pub const PAYLOAD_LEN_MAX: u32 = 1 << 20;

/// Bytes of one element.
pub const ELEMENT_LEN: usize = 4;

/// What a frame holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
    /// One envelope.
    Control,
    /// A stretch of a flat vector.
    Bulk(Kind),
    /// Nothing: the sender lives.
    Ping,
}

/// A frame's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What follows.
    pub frame: Frame,
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
        let (kind, node) = match self.frame {
            Frame::Control => (0, None),
            Frame::Bulk(Kind::Partial(node)) => (1, Some(node)),
            Frame::Bulk(Kind::Reduced) => (2, None),
            Frame::Bulk(Kind::Replica) => (3, None),
            Frame::Bulk(Kind::Gradient) => (4, None),
            Frame::Ping => (5, None),
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

    /// What a bulk frame is a stretch of.
    #[must_use]
    pub fn bulk(&self, kind: Kind) -> Bulk {
        let elements = self.payload_len as usize / ELEMENT_LEN;
        Bulk { kind, tag: self.tag, step: self.step, offset: self.offset, elements }
    }

    /// Reads a header.
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Self, WireError> {
        let u16_at = |i: usize| u16::from_le_bytes([bytes[i], bytes[i + 1]]);
        let u32_at = |i: usize| u32::from(u16_at(i)) | u32::from(u16_at(i + 2)) << 16;
        let u64_at = |i: usize| u64::from(u32_at(i)) | u64::from(u32_at(i + 4)) << 32;
        let payload_len = u32_at(0);
        let frame = match bytes[4] {
            0 => Frame::Control,
            1 => Frame::Bulk(Kind::Partial(Node { first: u16_at(8), count: u16_at(10) })),
            2 => Frame::Bulk(Kind::Reduced),
            3 => Frame::Bulk(Kind::Replica),
            4 => Frame::Bulk(Kind::Gradient),
            5 => Frame::Ping,
            other => return Err(WireError::Kind(other)),
        };
        if payload_len > PAYLOAD_LEN_MAX {
            return Err(WireError::TooLong(payload_len));
        }
        if frame != Frame::Control && !payload_len.is_multiple_of(ELEMENT_LEN as u32) {
            return Err(WireError::Ragged(payload_len));
        }
        let tag = Tag { generation: Generation(u64_at(16)), revision: u32_at(12) };
        Ok(Self { frame, tag, step: Step(u64_at(24)), offset: u64_at(32), payload_len })
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
        for frame in [
            Frame::Control,
            Frame::Bulk(Kind::Partial(Node { first: 3, count: 256 })),
            Frame::Bulk(Kind::Reduced),
            Frame::Bulk(Kind::Replica),
            Frame::Bulk(Kind::Gradient),
            Frame::Ping,
        ] {
            let header = Header { frame, tag, step: Step(u64::MAX - 1), offset: 1 << 33, payload_len: 1 << 20 };
            assert_eq!(Header::decode(&header.encode()), Ok(header));
        }
    }

    #[test]
    fn frames_that_cannot_be_are_refused() {
        let tag = Tag { generation: Generation(1), revision: 0 };
        let good = Header { frame: Frame::Bulk(Kind::Reduced), tag, step: Step(1), offset: 0, payload_len: 8 };
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
