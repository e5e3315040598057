//! Memory that an executor shares with the process that computes for it, and with executors of the same host: an anonymous file, mapped by both.
//! Where a gradient lies in one, it crosses from one process to the other without being copied.
//!
//! The only crate of the workspace in which `unsafe` is allowed, and there are three uses of it: making a mapping to write ([`Segment`]), asking for
//! it in large pages (`mapping.rs`), and one to read ([`PeerFile`]). Knows no protocol: who works on a segment when is agreed elsewhere
//! (`workers/torch`, `workers/executor/src/lending.rs`).

mod mapping;
mod peer;

pub use peer::{Door, PeerFile, PeerProcess, Sign};

use mapping::Mapping;
use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of an element.
const ELEMENT_BYTES: usize = size_of::<f32>();

/// A shared run of elements. Another process that was given its descriptor sees and changes the same ones.
#[derive(Debug)]
pub struct Segment {
    map: Mapping,
    file: Arc<File>,
    /// Which file it is, among all of this process.
    number: u64,
    /// First element within the file.
    start: usize,
    elements: usize,
}

/// Where elements lie, for another process that may read this one's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The file's number.
    pub file: u64,
    /// Its descriptor in the process that has made it.
    pub descriptor: i32,
    /// The first element within the file.
    pub start: usize,
}

impl Segment {
    /// Makes one, filled with zeros. Its pages are there already, and large ones where it is long: touching them first in a step would cost up to 4 ms a megabyte. Other threads of this
    /// process wait for memory of their own meanwhile for a few milliseconds at the most.
    pub fn new(elements: usize) -> io::Result<Self> {
        let (file, number) = sealed_file(elements)?;
        Self::map(&file, number, 0, elements)
    }

    /// Makes `count` of `elements` each in one file, for each would take a descriptor otherwise.
    pub fn several(count: usize, elements: usize) -> io::Result<Vec<Self>> {
        let (file, number) = sealed_file(count.checked_mul(elements).ok_or_else(|| too_long(elements))?)?;
        (0..count).map(|index| Self::map(&file, number, index * elements, elements)).collect()
    }

    fn map(file: &Arc<File>, number: u64, start: usize, elements: usize) -> io::Result<Self> {
        // Nothing cannot be mapped.
        let map = Mapping::new(file, start * ELEMENT_BYTES, elements.max(1) * ELEMENT_BYTES)?;
        Ok(Self { map, file: Arc::clone(file), number, start, elements })
    }

    /// Gives its memory back to the system: its elements are zeros from then on, here and wherever it is mapped. Nobody may be reading them.
    pub fn empty(&mut self) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        {
            use rustix::fs::{FallocateFlags, fallocate};
            let (start, bytes) = (self.start * ELEMENT_BYTES, self.elements * ELEMENT_BYTES);
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // Of nothing there can be no hole.
            if bytes > 0 {
                fallocate(&self.file, hole, start as u64, bytes as u64)?;
            }
            Ok(())
        }
        #[cfg(not(target_os = "linux"))]
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Has memory again for all of it, as a new one has.
    pub fn fill_pages(&mut self) -> io::Result<()> {
        self.map.make_pages()
    }

    /// Names its file: no other one of this process ever has this number.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Where it lies.
    #[must_use]
    pub fn place(&self) -> Place {
        Place { file: self.number, descriptor: self.file.as_raw_fd(), start: self.start }
    }

    /// Copies elements from `start` on, which may be done while the other process writes others: it goes through the file, so there is no
    /// reference to anything. As many as there are; none beyond the end.
    pub fn read_at(&self, start: usize, elements: &mut [f32]) -> io::Result<()> {
        let start = (self.start + start) * ELEMENT_BYTES;
        self.file.read_exact_at(bytemuck::cast_slice_mut(elements), start as u64)
    }
}

impl AsFd for Segment {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Deref for Segment {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        // Mappings begin at a page, so elements are aligned.
        &bytemuck::cast_slice(&self.map)[..self.elements]
    }
}

impl DerefMut for Segment {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut bytemuck::cast_slice_mut(&mut self.map)[..self.elements]
    }
}

fn too_long(elements: usize) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("{elements} elements are no length of memory"))
}

/// A new file of so many elements for ever, and its number.
fn sealed_file(elements: usize) -> io::Result<(Arc<File>, u64)> {
    static NUMBERS: AtomicU64 = AtomicU64::new(1);
    // An empty file cannot be mapped.
    let bytes = elements.max(1).checked_mul(ELEMENT_BYTES).ok_or_else(|| too_long(elements))?;
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    Ok((Arc::new(File::from(anonymous_file(&peer::file_name(number), bytes as u64)?)), number))
}

#[cfg(target_os = "linux")]
fn anonymous_file(name: &str, bytes: u64) -> io::Result<OwnedFd> {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, bytes)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

#[cfg(not(target_os = "linux"))]
fn anonymous_file(_: &str, _: u64) -> io::Result<OwnedFd> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_one_side_writes_the_other_reads() {
        let mut segment = Segment::new(5).unwrap();
        assert_eq!(*segment, [0.0; 5]);
        segment[3] = 2.5;
        let theirs = File::from(segment.as_fd().try_clone_to_owned().unwrap());
        let mut read = [0; 4];
        theirs.read_exact_at(&mut read, 12).unwrap();
        assert_eq!(f32::from_le_bytes(read), 2.5);
        theirs.write_all_at(&(-1f32).to_le_bytes(), 0).unwrap();
        assert_eq!(segment[0], -1.0);
        let mut some = [0.0; 2];
        segment.read_at(3, &mut some).unwrap();
        assert_eq!(some, [2.5, 0.0]);
        assert!(segment.read_at(4, &mut some).is_err(), "beyond its end");
    }

    #[test]
    fn nobody_can_make_it_shorter() {
        let segment = Segment::new(5).unwrap();
        let theirs = File::from(segment.as_fd().try_clone_to_owned().unwrap());
        assert!(theirs.set_len(0).is_err() && theirs.set_len(1 << 20).is_err());
    }

    /// Memory that is there of the mapping of a segment's file.
    fn resident(segment: &Segment) -> String {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mapping = smaps.split_once(&peer::file_name(segment.number())).unwrap().1;
        mapping.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap().trim().to_owned()
    }

    #[test]
    fn its_pages_are_there_before_they_are_touched() {
        let segment = Segment::new(3 * (1 << 20) / (2 * ELEMENT_BYTES)).unwrap();
        assert_eq!(resident(&segment), format!("{} kB", 3 * 1024 / 2));
    }

    #[test]
    fn what_is_emptied_takes_no_memory_until_it_is_filled() {
        for elements in [3 * (1 << 20) / (2 * ELEMENT_BYTES), 5 * (1 << 20) / ELEMENT_BYTES] {
            let mut segment = Segment::new(elements).unwrap();
            let before = resident(&segment);
            segment.fill(1.0);
            segment.empty().unwrap();
            assert_eq!(resident(&segment), "0 kB");
            segment.fill_pages().unwrap();
            assert_eq!((resident(&segment), segment[elements - 1]), (before, 0.0));
        }
        let mut several = Segment::several(2, 1 << 16).unwrap();
        several.iter_mut().for_each(|segment| segment.fill(1.0));
        several[1].empty().unwrap();
        assert_eq!((several[0][(1 << 16) - 1], several[1][0]), (1.0, 0.0), "and no other one of its file");
    }

    #[test]
    fn several_of_one_file_do_not_overlap() {
        let mut several = Segment::several(3, 1024).unwrap();
        for (value, segment) in (1u8..).zip(&mut several) {
            segment.fill(f32::from(value));
        }
        assert!((1u8..).zip(&several).all(|(value, segment)| segment.iter().all(|e| *e == f32::from(value))));
        let starts: Vec<usize> = several.iter().map(|segment| segment.place().start).collect();
        assert_eq!((starts, several[0].number()), (vec![0, 1024, 2048], several[2].number()));
        let mut read = [0.0];
        several[1].read_at(1023, &mut read).unwrap();
        assert_eq!(read, [2.0]);
    }

    #[test]
    fn each_has_a_number_of_its_own_and_any_length() {
        let (empty, other) = (Segment::new(0).unwrap(), Segment::new(1).unwrap());
        assert!(empty.is_empty() && empty.number() != other.number());
        assert!(Segment::new(usize::MAX).is_err());
    }
}
