//! The child's replica as this side has it: memory that the child made, read and written as a file. Whoever reads it beside the training holds up what would
//! change it, until they let go. Knows nothing of what it holds.

use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Bytes of an element.
const ELEMENT_BYTES: usize = size_of::<f32>();

/// The memory of a child's replica.
#[derive(Debug)]
pub(crate) struct ReplicaMemory {
    file: Arc<File>,
    elements: usize,
    /// Each ends when somebody who reads it has let go.
    readers: Vec<Receiver<Infallible>>,
}

/// The replica as the child has it now: it is not changed as long as this is held, and the next update waits. For whoever is soon done.
#[derive(Debug)]
pub struct ReplicaReader {
    file: Arc<File>,
    elements: usize,
    _until: Sender<Infallible>,
}

impl ReplicaMemory {
    /// That of a child which gave this file, with so many elements.
    pub(crate) fn new(file: File, elements: usize) -> Self {
        Self { file: Arc::new(file), elements, readers: Vec::new() }
    }

    /// Waits until nobody reads it. Belongs before all that may change it.
    pub(crate) fn release(&mut self) {
        for reader in self.readers.drain(..) {
            let _ = reader.recv();
        }
    }

    /// Somebody reads it.
    pub(crate) fn reader(&mut self) -> ReplicaReader {
        let (until, reader) = channel();
        self.readers.push(reader);
        ReplicaReader { file: Arc::clone(&self.file), elements: self.elements, _until: until }
    }

    /// Becomes this, or begins with it.
    pub(crate) fn write(&mut self, replica: &[f32]) -> io::Result<()> {
        self.release();
        self.file.write_all_at(bytemuck::cast_slice(replica), 0)
    }
}

#[expect(clippy::len_without_is_empty, reason = "a replica has elements")]
impl ReplicaReader {
    /// Its elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.elements
    }

    /// All of it, in `room` if that is as long.
    pub fn read_all(&self, room: Option<Vec<f32>>) -> io::Result<Vec<f32>> {
        let room = room.filter(|room| room.len() == self.elements);
        let mut replica = room.unwrap_or_else(|| vec![0f32; self.elements]);
        self.file.read_exact_at(bytemuck::cast_slice_mut(&mut replica), 0)?;
        Ok(replica)
    }

    /// Copies elements from `start` on.
    pub fn read(&self, start: usize, elements: &mut [f32]) -> io::Result<()> {
        self.file.read_exact_at(bytemuck::cast_slice_mut(elements), (start * ELEMENT_BYTES) as u64)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::time::Duration;

    fn memory() -> ReplicaMemory {
        let mut memory = ReplicaMemory::new(tempfile::tempfile().unwrap(), 4);
        memory.write(&[1.0, 2.0, 3.0, 4.0]).unwrap();
        memory
    }

    #[test]
    fn what_is_read_is_not_changed_until_it_is_let_go() {
        let mut memory = memory();
        let (reader, (done, written)) = (memory.reader(), channel());
        let writing = std::thread::spawn(move || {
            memory.write(&[9.0; 4]).unwrap();
            let _ = done.send(());
            memory
        });
        assert!(written.recv_timeout(Duration::from_millis(50)).is_err(), "it is read");
        let mut read = [0.0; 2];
        reader.read(1, &mut read).unwrap();
        drop(reader);
        assert_eq!((read, writing.join().unwrap().reader().read_all(None).unwrap()), ([2.0, 3.0], vec![9.0; 4]));
    }

    #[test]
    fn it_is_read_into_memory_that_is_there() {
        let (reader, room) = (memory().reader(), vec![0.0; 4]);
        let place = room.as_ptr();
        let read = reader.read_all(Some(room)).unwrap();
        assert_eq!((read.as_ptr(), &read[..]), (place, &[1.0, 2.0, 3.0, 4.0][..]));
        assert_eq!(reader.read_all(Some(vec![0.0; 3])).unwrap(), read, "unless it is too short");
    }
}
