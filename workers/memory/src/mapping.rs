//! A stretch of a file in this process's memory, to be written, in large pages where the kernel gives them.
//!
//! A gradient is passed over from end to end several times a step, and in pages of 4 KiB the processor looks up where a page lies 512 times as often as in
//! one of 2 MiB. They are made sooner too: 53 MB in 3 to 7 ms instead of 40 to 60, but in 180 in a virtual machine that had given them back to its host,
//! as some do with what is free. Linux makes a memory file's pages large only where an administrator said so, or when it is asked for certain ones, from
//! 6.1 on (`MADV_COLLAPSE`), and maps them as such only where the address is a multiple of their size. Without them everything works as it is, and takes
//! longer. Values are never looked at.

use memmap2::{MmapMut, MmapOptions};
use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut, Range};

/// A large page, on the processors that Ebb runs on.
const LARGE_BYTES: usize = 2 << 20;
/// Large pages that are asked for at once: the kernel has other processors empty their lists of pages for each call, and zeroes this in some 3 ms.
const LARGE_AT_ONCE_BYTES: usize = 32 << 20;
/// Small pages that are made at once: 0.4 to 4 ms.
const SMALL_AT_ONCE_BYTES: usize = 1 << 20;

/// The mapping.
#[derive(Debug)]
pub(crate) struct Mapping {
    /// Where it lies, and with large pages more before and after it that nobody touches.
    around: MmapMut,
    range: Range<usize>,
}

impl Mapping {
    /// Of so many bytes of a file from `start` on. Its pages are there already.
    pub fn new(file: &File, start: usize, bytes: usize) -> io::Result<Self> {
        // A file of several is of short ones.
        let large = if start == 0 && bytes >= LARGE_BYTES { Self::at_large_page(file, bytes) } else { None };
        let mut mapping = match large {
            Some(mapping) => mapping,
            None => Self::anywhere(file, start, bytes)?,
        };
        mapping.make_pages()?;
        Ok(mapping)
    }

    /// Has all its pages there.
    pub fn make_pages(&mut self) -> io::Result<()> {
        self.make_large_pages();
        self.make_small_pages()
    }

    fn anywhere(file: &File, start: usize, bytes: usize) -> io::Result<Self> {
        let mut options = MmapOptions::new();
        options.offset(start as u64).len(bytes);
        // SAFETY: a mapping is as safe as its file: nobody may make it shorter, for an access beyond its end would be a fault, and nobody may change
        // what a reference of Rust's says cannot change. The file is anonymous, this process has just made it, and it is sealed: no descriptor
        // can make it shorter. Every value of its bytes is a valid `u8` and `f32`. No two segments of one file overlap. The process that its
        // descriptor is given to changes it only while it answers a request, and who asks holds no reference into it meanwhile; one that breaks this
        // rule changes numbers, on which no code here relies for more than their sum.
        #[allow(unsafe_code)]
        let around = unsafe { options.map_mut(file)? };
        Ok(Self { around, range: 0..bytes })
    }

    /// Mapped where a large page may begin; none where the system does not do it.
    #[cfg(target_os = "linux")]
    fn at_large_page(file: &File, bytes: usize) -> Option<Self> {
        use std::os::fd::AsRawFd;
        let mut around = MmapOptions::new().len(bytes.checked_add(LARGE_BYTES)?).no_reserve_swap().map_anon().ok()?;
        let first = around.as_ptr().align_offset(LARGE_BYTES);
        let range = first..first + bytes;
        let at: *mut u8 = around.get_mut(range.clone())?.as_mut_ptr();
        // SAFETY: of the file as above. It takes the place of a part of a mapping that was just made, of which nobody else knows, within its bounds, and
        // goes with it.
        #[allow(unsafe_code)]
        let mapped = unsafe {
            let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
            libc::mmap(at.cast(), bytes, protection, flags, file.as_raw_fd(), 0)
        };
        (mapped == at.cast()).then_some(Self { around, range })
    }

    #[cfg(not(target_os = "linux"))]
    fn at_large_page(_: &File, _: usize) -> Option<Self> {
        None
    }

    /// As far as the kernel gives any. It makes one of what is there of it, so each has to have begun.
    #[cfg(target_os = "linux")]
    fn make_large_pages(&mut self) {
        let whole = self.len() / LARGE_BYTES * LARGE_BYTES;
        if self.around.len() == self.range.len() {
            return;
        }
        for start in (0..whole).step_by(LARGE_AT_ONCE_BYTES) {
            let stretch = &mut self[start..whole.min(start + LARGE_AT_ONCE_BYTES)];
            stretch.iter_mut().step_by(LARGE_BYTES).for_each(|byte| *byte = 0);
            // SAFETY: it changes no byte, and what it is about is this mapping's.
            #[allow(unsafe_code)]
            let made = unsafe { libc::madvise(stretch.as_mut_ptr().cast(), stretch.len(), libc::MADV_COLLAPSE) };
            if made != 0 {
                return;
            }
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn make_large_pages(&mut self) {}

    /// What is not there yet.
    fn make_small_pages(&self) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        in_stretches(self.range.clone(), |start, bytes| {
            self.around.advise_range(memmap2::Advice::PopulateWrite, start, bytes)
        })?;
        Ok(())
    }
}

/// Has the kernel do something for each stretch of a mapping, of which it is told where it begins and how many bytes it has. In one call, as `MAP_POPULATE`
/// does it, the kernel keeps its lock of the process's mappings until all is done, and a thread that computes waits for that as soon as it allocates or frees a
/// vector of some length: seconds for a gigabyte.
#[cfg(target_os = "linux")]
pub(crate) fn in_stretches(
    range: Range<usize>,
    mut advise: impl FnMut(usize, usize) -> io::Result<()>,
) -> io::Result<()> {
    for start in range.clone().step_by(SMALL_AT_ONCE_BYTES) {
        match advise(start, SMALL_AT_ONCE_BYTES.min(range.end - start)) {
            // Kernels before 5.14 do not know it; pages come when they are touched.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => break,
            other => other?,
        }
    }
    Ok(())
}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.around[self.range.clone()]
    }
}

impl DerefMut for Mapping {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.around[self.range.clone()]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::FileExt;

    /// What the kernel says of the mapping that begins there.
    fn smaps(mapping: &Mapping) -> String {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let begins = format!("{:x}-", mapping.as_ptr() as usize);
        let at = smaps.find(&begins).unwrap();
        smaps[at..].lines().take(24).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn a_long_one_begins_at_a_large_page_and_is_its_file_to_the_last_byte() {
        let bytes = 3 * LARGE_BYTES + 4096 + 12;
        let file = crate::sealed_file(bytes / 4).unwrap().0;
        let mut mapping = Mapping::new(&file, 0, bytes).unwrap();
        assert!((mapping.as_ptr() as usize).is_multiple_of(LARGE_BYTES));
        assert!(mapping.len() == bytes && mapping.iter().all(|byte| *byte == 0));
        mapping[bytes - 1] = 7;
        mapping[LARGE_BYTES] = 9;
        let mut read = [0, 0];
        file.read_exact_at(&mut read[..1], bytes as u64 - 1).unwrap();
        file.read_exact_at(&mut read[1..], LARGE_BYTES as u64).unwrap();
        assert_eq!(read, [7, 9]);
        let found = smaps(&mapping);
        assert!(found.contains("ebb-shared-"), "{found}");
        // No more memory than it has bytes, in pages of whichever size.
        let resident = found.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap().trim().to_owned();
        assert_eq!(resident, format!("{} kB", bytes.next_multiple_of(4096) / 1024));
    }

    #[test]
    fn a_short_one_takes_no_more_room_than_it_has() {
        let file = crate::sealed_file(1024).unwrap().0;
        let mapping = Mapping::new(&file, 0, 4096).unwrap();
        assert_eq!((mapping.len(), mapping.around.len()), (4096, 4096));
    }

    #[test]
    fn nothing_of_it_stays_when_it_is_dropped() {
        let file = crate::sealed_file(2 * LARGE_BYTES / 4).unwrap().0;
        let mapping = Mapping::new(&file, 0, 2 * LARGE_BYTES).unwrap();
        let name = std::fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&*file))).unwrap();
        let name = name.to_str().unwrap().trim_end_matches(" (deleted)").to_owned();
        let is_mapped = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().any(|line| line.contains(&name));
        assert!(is_mapped());
        drop(mapping);
        assert!(!is_mapped());
    }
}
