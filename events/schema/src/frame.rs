//! Frames on a stream of bytes: a 4-byte little-endian length, then [`crate::batch::to_bytes`]. Pure; whoever has the stream reads and writes.
//!
//! Agents and executors cut what they say so (`control.rs`), and so do two executors until they trust each other; each with a bound of its own.

use crate::batch::to_bytes;
use minicbor::Encode;

/// Frames of at most so many bytes behind their length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frames {
    longest: u32,
}

/// A frame of more bytes than both sides agreed on. Stop: the other side is of another build.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a frame has {length} bytes, and at most {longest} are legal here")]
pub struct FrameTooLong {
    length: u32,
    longest: u32,
}

impl Frames {
    /// With this bound.
    #[must_use]
    pub const fn up_to(longest: u32) -> Self {
        Self { longest }
    }

    /// The bytes of one frame, to be written at once: several threads may speak on one stream.
    pub fn cut<T: Encode<()>>(self, message: &T) -> Result<Vec<u8>, FrameTooLong> {
        let record = to_bytes(message);
        let length = u32::try_from(record.len()).unwrap_or(u32::MAX).to_le_bytes();
        self.length(length)?;
        Ok([&length[..], &record].concat())
    }

    /// How many bytes come after the first four of a frame.
    pub fn length(self, first: [u8; 4]) -> Result<usize, FrameTooLong> {
        let Self { longest } = self;
        match u32::from_le_bytes(first) {
            length if length > longest => Err(FrameTooLong { length, longest }),
            length => Ok(length as usize),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::control::ToExecutor;

    #[test]
    fn a_frame_is_its_length_and_its_record() {
        let frames = Frames::up_to(4);
        assert_eq!(frames.cut(&ToExecutor::Stop).unwrap(), [4, 0, 0, 0, 1, 0x82, 3, 0x80]);
        assert_eq!(frames.length([4, 0, 0, 0]), Ok(4));
    }

    #[test]
    fn longer_frames_are_neither_written_nor_read() {
        let frames = Frames::up_to(4);
        assert!(frames.cut(&ToExecutor::Leave { within_ms: 9 }).is_err());
        let told = frames.length([5, 0, 0, 0]).unwrap_err().to_string();
        assert_eq!(told, "a frame has 5 bytes, and at most 4 are legal here");
    }
}
