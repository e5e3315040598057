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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Write;

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
