//! Memory that an executor shares with the process that computes for it: an anonymous file, mapped by both. Where a gradient lies in one, it
//! crosses from one process to the other without being copied.
//!
//! The only crate of the workspace in which `unsafe` is allowed, and there is one use of it. Knows no protocol: who works on a segment when is
//! agreed elsewhere (`workers/torch`).

use memmap2::{MmapMut, MmapOptions};
use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of an element.
const ELEMENT_BYTES: usize = size_of::<f32>();

/// A shared run of elements. Another process that was given its descriptor sees and changes the same ones.
#[derive(Debug)]
pub struct Segment {
    map: MmapMut,
    file: File,
    elements: usize,
    number: u64,
}

impl Segment {
    /// Makes one, filled with zeros. Its pages are there already: touching them first in a step would cost 4 ms a megabyte.
    pub fn new(elements: usize) -> io::Result<Self> {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let too_long =
            || io::Error::new(io::ErrorKind::InvalidInput, format!("{elements} elements are no length of memory"));
        // An empty file cannot be mapped.
        let bytes = elements.max(1).checked_mul(ELEMENT_BYTES).ok_or_else(too_long)?;
        let file = File::from(anonymous_file(bytes as u64)?);
        let mut options = MmapOptions::new();
        options.len(bytes).populate();
        // SAFETY: a mapping is as safe as its file: nobody may make it shorter, for an access beyond its end would be a fault, and nobody may change
        // what a reference of Rust's says cannot change. The file is anonymous, this process has just made it, and it is sealed: no descriptor
        // can make it shorter. Every value of its bytes is a valid `u8` and `f32`. The process that its descriptor is given to changes it only while
        // it answers a request, and who asks holds no reference into it meanwhile; one that breaks this rule changes numbers, on which
        // no code here relies for more than their sum.
        #[allow(unsafe_code)]
        let map = unsafe { options.map_mut(&file)? };
        Ok(Self { map, file, elements, number: NUMBERS.fetch_add(1, Ordering::Relaxed) })
    }

    /// Names it: no other one of this process ever has this number.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Copies elements from `start` on, which may be done while the other process writes others: it goes through the file, so there is no
    /// reference to anything. As many as there are; none beyond the end.
    pub fn read_at(&self, start: usize, elements: &mut [f32]) -> io::Result<()> {
        self.file.read_exact_at(bytemuck::cast_slice_mut(elements), (start * ELEMENT_BYTES) as u64)
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

/// A file without a name, of this length for ever.
#[cfg(target_os = "linux")]
fn anonymous_file(bytes: u64) -> io::Result<OwnedFd> {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    let file = memfd_create("ebb-shared", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, bytes)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

#[cfg(not(target_os = "linux"))]
fn anonymous_file(_: u64) -> io::Result<OwnedFd> {
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

    #[test]
    fn each_has_a_number_of_its_own_and_any_length() {
        let (empty, other) = (Segment::new(0).unwrap(), Segment::new(1).unwrap());
        assert!(empty.is_empty() && empty.number() != other.number());
        assert!(Segment::new(usize::MAX).is_err());
    }
}
