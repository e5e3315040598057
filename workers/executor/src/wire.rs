//! The frames between executors: a fixed 48-byte header, then its payload. Pure.
//!
//! A message carries one [`workers_session::Envelope`]; bulk frames carry a stretch of a flat `f32` vector, little-endian, or say where in the
//! sender's memory it lies (`lending.rs`), and say in the header what it is. Every bulk frame names its generation, revision and step, so stale ones
//! are told apart without looking inside. The job is the connection's (see `handshake.rs`).

use events_schema::tree::Node;
use events_schema::{Generation, Step};
use workers_member::{Bulk, Kind};
use workers_memory::Sign;
use workers_session::Tag;

/// Bytes of a header.
pub const HEADER_LEN: usize = 48;
/// Elements of one bulk frame (256 KiB): large enough that headers do not count, small enough that reduction overlaps sending.
pub const PIECE_ELEMENTS: usize = 64 * 1024;
/// Largest payload: one piece, or one control message (a membership of 256 with its sums fits many times).
pub const PAYLOAD_LEN_MAX: u32 = 1 << 20;

/// Bytes of one element.
pub const ELEMENT_LEN: usize = 4;
/// Bytes of a [`Loan`].
pub const LOAN_LEN: usize = 40;
/// Bytes of a [`Sign`].
pub const SIGN_LEN: usize = 24;
/// Bytes of a [`Shown`].
pub const SHOWN_LEN: usize = 12;
/// Bytes of the number of a loan that comes back.
pub const LOAN_NUMBER_LEN: usize = 8;
/// Set in a frame's kind where its stretch is lent.
const LENT: u8 = 0x10;

/// What a frame holds. Of each of the two classes, control and bulk, frames keep their order; control overtakes bulk (decision 37), and never the other
/// way round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
    /// What is short, and waited for.
    Control(Control),
    /// A stretch of a flat vector.
    Bulk(Kind),
    /// A [`Loan`] of such a stretch. Bulk as well: it stands for it in its place.
    Lent(Kind),
}

/// What a control frame holds. Whoever adds one says in decision 37 why its receiver does not rely on what bulk came before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// One envelope.
    Message,
    /// The number of a loan that comes back.
    Returned,
    /// A [`Sign`]: how the sender's process is recognised.
    Sign,
    /// The sender can read the receiver's memory.
    Readable,
    /// [`Shown`] files of the sender's, of which it is going to lend stretches.
    Shows,
    /// Nothing: the sender lives.
    Ping,
}

/// A frame's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What follows.
    pub frame: Frame,
    /// The membership it is sent in. (Messages carry theirs in the envelope; here it is only informative.)
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
    /// Always of another length.
    #[error("frame of {found} bytes where there are {expected}")]
    Len {
        /// As it says.
        found: u32,
        /// As its kind has it.
        expected: usize,
    },
    /// Not whole elements.
    #[error("bulk frame of {0} bytes is not a whole number of elements")]
    Ragged(u32),
    /// Not whole files.
    #[error("frame of {0} bytes does not show a whole number of files")]
    RaggedFiles(u32),
}

impl Header {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let (kind, node) = match self.frame {
            Frame::Control(control) => (control.number(), None),
            Frame::Bulk(kind) => (number_of(kind), node_of(kind)),
            Frame::Lent(kind) => (LENT | number_of(kind), node_of(kind)),
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
        let kind = |number: u8| match number {
            1 => Some(Kind::Partial(Node { first: u16_at(8), count: u16_at(10) })),
            2 => Some(Kind::Reduced),
            3 => Some(Kind::Replica),
            4 => Some(Kind::Gradient),
            _ => None,
        };
        let unknown = WireError::Kind(bytes[4]);
        let (frame, len) = match bytes[4] {
            0 => (Frame::Control(Control::Message), None),
            5 => (Frame::Control(Control::Ping), Some(0)),
            6 => (Frame::Control(Control::Sign), Some(SIGN_LEN)),
            7 => (Frame::Control(Control::Readable), Some(0)),
            8 => (Frame::Control(Control::Returned), Some(LOAN_NUMBER_LEN)),
            9 => (Frame::Control(Control::Shows), None),
            number if number & LENT != 0 => (Frame::Lent(kind(number & !LENT).ok_or(unknown)?), Some(LOAN_LEN)),
            number => (Frame::Bulk(kind(number).ok_or(unknown)?), None),
        };
        if payload_len > PAYLOAD_LEN_MAX {
            return Err(WireError::TooLong(payload_len));
        }
        if let Some(expected) = len.filter(|len| *len != payload_len as usize) {
            return Err(WireError::Len { found: payload_len, expected });
        }
        if matches!(frame, Frame::Bulk(_)) && !payload_len.is_multiple_of(ELEMENT_LEN as u32) {
            return Err(WireError::Ragged(payload_len));
        }
        if frame == Frame::Control(Control::Shows) && !payload_len.is_multiple_of(SHOWN_LEN as u32) {
            return Err(WireError::RaggedFiles(payload_len));
        }
        let tag = Tag { generation: Generation(u64_at(16)), revision: u32_at(12) };
        Ok(Self { frame, tag, step: Step(u64_at(24)), offset: u64_at(32), payload_len })
    }
}

impl Control {
    fn number(self) -> u8 {
        match self {
            Self::Message => 0,
            Self::Ping => 5,
            Self::Sign => 6,
            Self::Readable => 7,
            Self::Returned => 8,
            Self::Shows => 9,
        }
    }
}

fn number_of(kind: Kind) -> u8 {
    match kind {
        Kind::Partial(_) => 1,
        Kind::Reduced => 2,
        Kind::Replica => 3,
        Kind::Gradient => 4,
    }
}

fn node_of(kind: Kind) -> Option<Node> {
    match kind {
        Kind::Partial(node) => Some(node),
        Kind::Reduced | Kind::Replica | Kind::Gradient => None,
    }
}

/// Where a stretch lies in the memory of its sender, which changes none of it until this loan comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loan {
    /// Names it on this link.
    pub number: u64,
    /// Which of the sender's files.
    pub file: u64,
    /// That file's descriptor in the sender's process.
    pub descriptor: i32,
    /// First element within the file.
    pub start: u64,
    /// How many.
    pub elements: u64,
}

impl Loan {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; LOAN_LEN] {
        let mut bytes = [0; LOAN_LEN];
        bytes[0..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.file.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.start.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.elements.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.descriptor.to_le_bytes());
        bytes
    }

    /// Reads one.
    #[must_use]
    pub fn decode(bytes: &[u8; LOAN_LEN]) -> Self {
        let u64_at = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let descriptor = i32::from_le_bytes(std::array::from_fn(|i| bytes[32 + i]));
        Self { number: u64_at(0), file: u64_at(8), start: u64_at(16), elements: u64_at(24), descriptor }
    }
}

/// A file of its sender's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shown {
    /// Which of them.
    pub file: u64,
    /// Its descriptor in the sender's process.
    pub descriptor: i32,
}

impl Shown {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; SHOWN_LEN] {
        let mut bytes = [0; SHOWN_LEN];
        bytes[0..8].copy_from_slice(&self.file.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.descriptor.to_le_bytes());
        bytes
    }

    /// Reads one.
    #[must_use]
    pub fn decode(bytes: &[u8; SHOWN_LEN]) -> Self {
        let file = u64::from_le_bytes(std::array::from_fn(|i| bytes[i]));
        Self { file, descriptor: i32::from_le_bytes(std::array::from_fn(|i| bytes[8 + i])) }
    }
}

/// The bytes of a sign.
#[must_use]
pub fn encode_sign(sign: &Sign) -> [u8; SIGN_LEN] {
    let mut bytes = [0; SIGN_LEN];
    bytes[0..4].copy_from_slice(&sign.process.to_le_bytes());
    bytes[4..8].copy_from_slice(&sign.descriptor.to_le_bytes());
    bytes[8..24].copy_from_slice(&sign.word);
    bytes
}

/// Reads a sign.
#[must_use]
pub fn decode_sign(bytes: &[u8; SIGN_LEN]) -> Sign {
    let four = |at: usize| std::array::from_fn(|i| bytes[at + i]);
    Sign {
        process: u32::from_le_bytes(four(0)),
        descriptor: i32::from_le_bytes(four(4)),
        word: std::array::from_fn(|i| bytes[8 + i]),
    }
}

// Elements go to the wire and come from it as they lie in memory.
const _: () = assert!(
    cfg!(target_endian = "little"),
    "the format is little-endian, and so is every processor that Ebb is built for"
);

/// The bytes of some elements.
#[must_use]
pub fn bytes_of(elements: &[f32]) -> &[u8] {
    bytemuck::cast_slice(elements)
}

/// The same, to be read into.
#[must_use]
pub fn bytes_of_mut(elements: &mut [f32]) -> &mut [u8] {
    bytemuck::cast_slice_mut(elements)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn headers_survive_their_bytes() {
        let tag = Tag { generation: Generation(1 << 40), revision: 70_000 };
        for frame in [
            Frame::Control(Control::Message),
            Frame::Bulk(Kind::Partial(Node { first: 3, count: 256 })),
            Frame::Bulk(Kind::Reduced),
            Frame::Bulk(Kind::Replica),
            Frame::Bulk(Kind::Gradient),
        ] {
            let header = Header { frame, tag, step: Step(u64::MAX - 1), offset: 1 << 33, payload_len: 1 << 20 };
            assert_eq!(Header::decode(&header.encode()), Ok(header));
        }
        for (frame, len) in [
            (Frame::Control(Control::Ping), 0),
            (Frame::Control(Control::Readable), 0),
            (Frame::Control(Control::Sign), SIGN_LEN),
            (Frame::Control(Control::Returned), LOAN_NUMBER_LEN),
            (Frame::Lent(Kind::Partial(Node { first: 3, count: 256 })), LOAN_LEN),
            (Frame::Lent(Kind::Reduced), LOAN_LEN),
        ] {
            let header = Header { frame, tag, step: Step(1), offset: 1 << 33, payload_len: len as u32 };
            assert_eq!(Header::decode(&header.encode()), Ok(header));
            let longer = Header { payload_len: len as u32 + 4, ..header };
            let refused = Header::decode(&longer.encode());
            assert_eq!(refused, Err(WireError::Len { found: len as u32 + 4, expected: len }));
        }
    }

    #[test]
    fn loans_and_signs_survive_their_bytes() {
        let loan = Loan { number: 1 << 60, file: 7, descriptor: -3, start: 1 << 40, elements: u64::MAX };
        assert_eq!(Loan::decode(&loan.encode()), loan);
        let shown = Shown { file: 1 << 60, descriptor: -3 };
        assert_eq!(Shown::decode(&shown.encode()), shown);
        let sign = Sign { process: 1 << 31, descriptor: 5, word: std::array::from_fn(|i| i as u8) };
        assert_eq!(decode_sign(&encode_sign(&sign)), sign);
    }

    #[test]
    fn frames_that_cannot_be_are_refused() {
        let tag = Tag { generation: Generation(1), revision: 0 };
        let good = Header { frame: Frame::Bulk(Kind::Reduced), tag, step: Step(1), offset: 0, payload_len: 8 };
        let with = |payload_len| Header { payload_len, ..good }.encode();
        assert_eq!(Header::decode(&with(PAYLOAD_LEN_MAX + 1)), Err(WireError::TooLong(PAYLOAD_LEN_MAX + 1)));
        assert_eq!(Header::decode(&with(7)), Err(WireError::Ragged(7)));
        let mut unknown = good.encode();
        unknown[4] = 10;
        assert_eq!(Header::decode(&unknown), Err(WireError::Kind(10)));
        let shows = |payload_len| Header { frame: Frame::Control(Control::Shows), payload_len, ..good };
        assert_eq!(Header::decode(&shows(2 * SHOWN_LEN as u32).encode()), Ok(shows(2 * SHOWN_LEN as u32)));
        let refused = Header::decode(&shows(SHOWN_LEN as u32 + 1).encode());
        assert_eq!(refused, Err(WireError::RaggedFiles(SHOWN_LEN as u32 + 1)));
        unknown[4] = LENT;
        assert_eq!(Header::decode(&unknown), Err(WireError::Kind(LENT)), "a loan of nothing");
    }

    #[test]
    fn elements_keep_their_bits() {
        let values = [0.0, -0.0, 1.5e-42, f32::MAX];
        let mut read = [0.0; 4];
        bytes_of_mut(&mut read).copy_from_slice(bytes_of(&values));
        assert!(read.iter().zip(values).all(|(a, b)| a.to_bits() == b.to_bits()));
        assert_eq!(bytes_of(&[1.0]), [0, 0, 0x80, 0x3f]);
    }
}
