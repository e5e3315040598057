//! A dataset of made-up images that is larger than what an executor keeps for a few ranks. Its pixels are drawn while they are read, so that it is never whole in
//! the memory of the test.

use events_schema::DatasetName;
use object_store::ObjectStore;
use std::io::{Cursor, Read};
use std::sync::Arc;
use storage::dataset::{IdxOptions, Imported, import_idx};

/// Equal pixels beside each other: enough that the files are small, and few enough that reading one is reading bytes.
const EQUAL: usize = 8;

pub async fn import(store: &Arc<dyn ObjectStore>, count: u32, bytes: u32) -> Imported {
    let pixels = Pixels { drawn: 7, left: u64::from(count) * u64::from(bytes) };
    let images = Cursor::new(header(&[count, bytes])).chain(pixels);
    let labels = [header(&[count]), (0..count).map(|image| (image % 10) as u8).collect()].concat();
    let name = DatasetName::parse("images").unwrap();
    import_idx(store, &name, images, Cursor::new(labels), &IdxOptions::default()).await.unwrap()
}

/// Of an IDX file of bytes.
fn header(dimensions: &[u32]) -> Vec<u8> {
    let magic = [0, 0, 8, dimensions.len() as u8];
    magic.into_iter().chain(dimensions.iter().flat_map(|dimension| dimension.to_be_bytes())).collect()
}

struct Pixels {
    drawn: u64,
    left: u64,
}

impl Read for Pixels {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        for equal in buffer[..count].chunks_mut(EQUAL) {
            // Knuth's constants for 64 bits; the upper ones are as good as random.
            self.drawn = self.drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            equal.fill((self.drawn >> 56) as u8);
        }
        self.left -= count as u64;
        Ok(count)
    }
}
