//! Bytes to import from: any reader, gzip undone if its first bytes say gzip. Knows no format beyond that.

use flate2::read::MultiGzDecoder;
use std::io::{self, Read};

/// First bytes of a gzip file (RFC 1952).
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// The plain bytes of a source that may be compressed.
pub(super) fn plain(mut source: impl Read + Send + 'static) -> io::Result<Box<dyn Read + Send>> {
    let mut head = Vec::with_capacity(GZIP_MAGIC.len());
    source.by_ref().take(GZIP_MAGIC.len() as u64).read_to_end(&mut head)?;
    let compressed = head == GZIP_MAGIC;
    let whole = io::Cursor::new(head).chain(source);
    Ok(if compressed { Box::new(MultiGzDecoder::new(whole)) } else { Box::new(whole) })
}

/// A source of records, none of which may be longer than a limit: gzip makes an endless one of a few bytes.
pub(super) struct Records<R> {
    source: R,
    bytes_max: u64,
    bytes_left: u64,
}

impl<R: Read> Records<R> {
    /// With records of at most `bytes_max`, by a reader that says where they begin.
    pub(super) fn new(source: R, bytes_max: u64) -> Self {
        Self { source, bytes_max, bytes_left: bytes_max }
    }

    /// A record ends here. What was read ahead counts for the one before, so the limit holds up to a buffer's size.
    pub(super) fn next(&mut self) {
        self.bytes_left = self.bytes_max;
    }
}

impl<R: Read> Read for Records<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.bytes_left == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("one record is longer than {} bytes; are its lines cut as expected?", self.bytes_max),
            ));
        }
        let room = usize::try_from(self.bytes_left).map_or(buffer.len(), |left| left.min(buffer.len()));
        let read = self.source.read(&mut buffer[..room])?;
        self.bytes_left -= read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Write;

    #[test]
    fn only_a_record_without_end_is_refused() {
        let mut records = Records::new(io::repeat(b'1'), 10);
        let mut read = [0; 8];
        for _ in 0..100 {
            records.read_exact(&mut read).unwrap();
            records.next();
        }
        let refused = records.read_to_end(&mut Vec::new()).unwrap_err().to_string();
        assert!(refused.contains("longer than 10 bytes"), "{refused}");
    }

    #[test]
    fn gzip_is_undone_and_anything_else_is_left_alone() {
        let read = |bytes: Vec<u8>| {
            let mut out = Vec::new();
            plain(io::Cursor::new(bytes)).unwrap().read_to_end(&mut out).unwrap();
            out
        };
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(b"1,2,3").unwrap();
        assert_eq!(read(encoder.finish().unwrap()), b"1,2,3");
        for text in [&b""[..], b"1", b"1,2,3"] {
            assert_eq!(read(text.to_vec()), text);
        }
    }
}
