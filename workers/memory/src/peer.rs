//! Memory of another process of this host, read where it lies: its files are opened by their descriptors in that process, which the kernel allows to
//! processes of the same user. Where it does not (another user, container or host), a [`Sign`] is not seen, and nobody reads anything.

use crate::ELEMENT_BYTES;
use memmap2::{Mmap, MmapOptions};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fs::{File, read_link};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};

/// The name of a file of segments, by which it is known again.
pub(crate) fn file_name(number: u64) -> String {
    format!("ebb-shared-{number}")
}

fn door_name(word: [u8; 16]) -> String {
    format!("ebb-door-{:032x}", u128::from_be_bytes(word))
}

fn refused(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, what)
}

/// Opens a file of another process by its descriptor there, if it has this name. Its name is looked at first: others, a pipe say, could block.
fn open_named(process: u32, descriptor: i32, name: &str) -> io::Result<File> {
    let path = format!("/proc/{process}/fd/{descriptor}");
    let expected = ["/memfd:", name, " (deleted)"].concat();
    let found = read_link(&path)?;
    if found.as_os_str() != expected.as_str() {
        return Err(refused(format!("{path} is {}, not {expected}", found.display())));
    }
    File::open(path)
}

/// An empty file with a random name. Who can see it can read this process's segments.
#[derive(Debug)]
pub struct Door {
    file: OwnedFd,
    word: [u8; 16],
}

/// What another process is told, to look for a [`Door`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sign {
    /// The process that has the door, as its own processes number it.
    pub process: u32,
    /// The door's descriptor there.
    pub descriptor: i32,
    /// What the door's name holds.
    pub word: [u8; 16],
}

impl Door {
    /// Of this process; `word` is random.
    pub fn new(word: [u8; 16]) -> io::Result<Self> {
        Ok(Self { file: crate::anonymous_file(&door_name(word), 0)?, word })
    }

    /// How others find it.
    #[must_use]
    pub fn sign(&self) -> Sign {
        Sign { process: std::process::id(), descriptor: self.file.as_raw_fd(), word: self.word }
    }
}

/// Another process of this host whose segments can be read.
#[derive(Debug)]
pub struct PeerProcess {
    process: u32,
    /// Says when it has ended.
    handle: OwnedFd,
}

impl PeerProcess {
    /// The process that a sign is of, if its door is seen.
    pub fn find(sign: &Sign) -> io::Result<Self> {
        let number = i32::try_from(sign.process).ok().and_then(Pid::from_raw);
        let number = number.ok_or_else(|| refused(format!("{} is no process", sign.process)))?;
        // The handle first: it stays the handle of this process when its number is given to another one.
        let handle = pidfd_open(number, PidfdFlags::empty())?;
        drop(open_named(sign.process, sign.descriptor, &door_name(sign.word))?);
        Ok(Self { process: sign.process, handle })
    }

    /// Waits until it has ended: nothing that it has mapped is read any more.
    pub fn wait_until_ended(&self) -> io::Result<()> {
        loop {
            match poll(&mut [PollFd::new(&self.handle, PollFlags::IN)], None) {
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Maps a file of its segments.
    pub fn open(&self, file: u64, descriptor: i32) -> io::Result<PeerFile> {
        PeerFile::of(open_named(self.process, descriptor, &file_name(file))?)
    }
}

/// A file of another process's segments, for reading.
#[derive(Debug)]
pub struct PeerFile {
    map: Mmap,
}

impl PeerFile {
    fn of(file: File) -> io::Result<Self> {
        let sealed = rustix::fs::fcntl_get_seals(&file)?;
        if !sealed.contains(rustix::fs::SealFlags::SHRINK) {
            return Err(refused("a file that can become shorter is not mapped".to_owned()));
        }
        // SAFETY: as for the mapping of a segment (`lib.rs`): the file cannot become shorter, which was asked of the kernel just now, and every value
        // of its bytes is a valid `f32`. Its process writes to none of the elements that it has lent until they are given back or this
        // process has ended, and no others are looked at; one that breaks this rule changes numbers.
        #[allow(unsafe_code)]
        let map = unsafe { MmapOptions::new().map(&file)? };
        Ok(Self { map })
    }

    /// Has its pages mapped, so that nobody waits for that who reads them first. For a file that is going to be read as a whole: pages that are mapped count as
    /// this process's. Other threads wait for memory of their own meanwhile for a moment at the most.
    pub fn map_pages(&self) -> io::Result<()> {
        crate::mapping::in_stretches(0..self.map.len(), |start, bytes| {
            self.map.advise_range(memmap2::Advice::PopulateRead, start, bytes)
        })
    }

    /// Elements of it; none where a part of them lies beyond its end.
    #[must_use]
    pub fn get(&self, range: Range<usize>) -> Option<&[f32]> {
        let whole = self.map.len() / ELEMENT_BYTES * ELEMENT_BYTES;
        bytemuck::cast_slice::<u8, f32>(&self.map[..whole]).get(range)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Segment;

    #[test]
    fn a_process_reads_what_another_has_written() {
        let door = Door::new([7; 16]).unwrap();
        let process = PeerProcess::find(&door.sign()).unwrap();
        let mut several = Segment::several(2, 1024).unwrap();
        several[1][3] = 2.5;
        let place = several[1].place();
        let file = process.open(place.file, place.descriptor).unwrap();
        assert_eq!(file.get(place.start + 3..place.start + 5), Some(&[2.5, 0.0][..]));
        assert_eq!(file.get(2047..2049), None, "beyond its end");
        drop(several);
        assert_eq!(file.get(1024 + 3..1024 + 4), Some(&[2.5][..]), "it stays while it is mapped");
    }

    #[test]
    fn its_pages_are_mapped_before_they_are_read() {
        let (door, segment) = (Door::new([9; 16]).unwrap(), Segment::new(1 << 19).unwrap());
        let place = segment.place();
        let file = PeerProcess::find(&door.sign()).unwrap().open(place.file, place.descriptor).unwrap();
        let resident = || {
            let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
            // The segment itself is mapped for writing.
            let header = |line: &&str| line.contains(&file_name(place.file)) && line.contains(" r--s ");
            let mapping = smaps.lines().skip_while(|line| !header(line));
            mapping.skip(1).find_map(|line| line.strip_prefix("Rss:").map(|kb| kb.trim().to_owned())).unwrap()
        };
        assert_eq!(resident(), "0 kB");
        file.map_pages().unwrap();
        assert_eq!(resident(), "2048 kB");
    }

    #[test]
    fn only_what_is_what_it_is_said_to_be_is_opened() {
        let door = Door::new([7; 16]).unwrap();
        let sign = door.sign();
        assert!(PeerProcess::find(&Sign { word: [8; 16], ..sign }).is_err());
        assert!(PeerProcess::find(&Sign { process: 0, ..sign }).is_err());
        assert!(PeerProcess::find(&Sign { process: u32::MAX, ..sign }).is_err());
        let process = PeerProcess::find(&sign).unwrap();
        let segment = Segment::new(4).unwrap();
        assert!(process.open(segment.number() + 1000, segment.place().descriptor).is_err(), "another file");
        assert!(process.open(segment.number(), sign.descriptor).is_err(), "another descriptor");
        let loose = rustix::fs::memfd_create(file_name(9), rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        assert!(process.open(9, loose.as_raw_fd()).is_err(), "a file that can become shorter");
    }

    #[test]
    fn the_end_of_a_process_is_waited_for() {
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let number = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        let process = PeerProcess { process: child.id(), handle: pidfd_open(number, PidfdFlags::empty()).unwrap() };
        drop(child.stdin.take());
        process.wait_until_ended().unwrap();
        assert!(child.try_wait().unwrap().is_some());
    }
}
