//! A member's part of a checkpoint, before it is written: where the replica lies, if that does not change any more, or copied out of it by a thread of its own.
//!
//! That thread does nothing else, waits for nobody and does not give way to the training, because the next update waits for it: so it takes the checksums as well, for which a
//! replica must not change either. It copies into the memory of a part that was written before: memory that is touched for the first time takes ten times as long.
//! Writing is in `checkpoint.rs`.

use crate::checkpoint::{Lane, Work};
use crate::inbox::{Event, WriteFailure};
use crate::replica::Readable;
use events_schema::Digest;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use storage::checkpoint::{CheckpointWriteError, Checksum, ShardElements, ShardRange, cut_shards, part_digests};
use workers_session::{CheckpointId, ReplicaChecksum};

/// One member's part.
#[derive(Clone)]
pub struct Shard {
    /// Of which checkpoint.
    pub checkpoint: CheckpointId,
    /// How many parts there are.
    pub count: u16,
    /// Which of the replica's elements.
    pub range: ShardRange,
    /// The replica's.
    pub replica_len: u64,
    /// These elements.
    pub elements: ShardElements,
    /// Of the whole replica.
    pub checksum: ReplicaChecksum,
}

/// Which part of which checkpoint.
pub type Place = (CheckpointId, u16, u16);

impl Shard {
    /// Of a replica that nobody changes: its elements lie in it.
    pub fn in_place((checkpoint, index, count): Place, replica: Readable) -> io::Result<Self> {
        let (replica_len, replica) = (replica.elements() as u64, replica.into_shared()?);
        let (range, checksum) = (range(index, count, replica_len), ReplicaChecksum(Checksum::of(&replica)));
        Ok(Self { checkpoint, count, range, replica_len, elements: ShardElements::of(range, replica), checksum })
    }

    /// Digests of these elements, of which that of the whole replica is made.
    pub fn part_digests(&self) -> Vec<Digest> {
        part_digests(&self.elements, self.range.first_element, self.replica_len)
    }
}

fn range(index: u16, count: u16, replica_len: u64) -> ShardRange {
    let nothing = ShardRange { index: u32::from(index), first_element: 0, elements: 0 };
    cut_shards(replica_len, u32::from(count)).get(usize::from(index)).copied().unwrap_or(nothing)
}

/// A checksum is told behind fewer of the writer's tasks than this, or not at all, which nobody misses: it may not take the room of a manifest.
const CHECKSUM_BESIDE_MAX: usize = 2;
/// Copies at once: one that is made or waits while another is still being written. A store that keeps up with the interval needs one.
const COPIES_MAX: usize = 2;

/// The memory of copies. That of one that was written is used for the next.
#[derive(Clone, Default)]
pub struct CopyMemory(Arc<Mutex<Copies>>);

#[derive(Default)]
struct Copies {
    /// Copies that are made, or will be, and are not written.
    in_use: usize,
    /// Of copies that were written.
    free: Vec<Vec<f32>>,
}

impl CopyMemory {
    /// Whether there may be another copy, which then counts.
    pub fn begin(&self) -> bool {
        let mut copies = self.copies();
        let begins = copies.in_use < COPIES_MAX;
        copies.in_use += usize::from(begins);
        begins
    }

    fn take(&self) -> Vec<f32> {
        self.copies().free.pop().unwrap_or_default()
    }

    /// A copy was written, if there was one. An attempt to write it that was given up may hold on to it.
    pub fn end(&self, copy: Option<ShardElements>) {
        let mut copies = self.copies();
        copies.in_use = copies.in_use.saturating_sub(1);
        copies.free.extend(copy.and_then(ShardElements::into_memory));
        if copies.in_use == 0 {
            copies.free.truncate(1);
        }
    }

    fn copies(&self) -> MutexGuard<'_, Copies> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is read before the next update may change it.
pub enum Reading {
    /// A part of it is copied.
    Shard(Place, Readable),
    /// Its checksum is taken.
    Checksum {
        /// At which boundary.
        at: CheckpointId,
        /// The replica there.
        replica: Readable,
        /// How long getting hold of it took.
        read: Duration,
    },
}

/// The thread that copies.
pub struct Copier {
    /// Who writes what was copied, and says the rest.
    pub writer: Lane<Work>,
    /// Where copies lie.
    pub memory: CopyMemory,
}

impl Copier {
    /// Starts it.
    pub fn start(self) -> io::Result<Lane<Reading>> {
        let (lane, waiting) = Lane::new();
        let under_way = lane.under_way.clone();
        std::thread::Builder::new().name("ebb-copy".to_owned()).spawn(move || {
            while let Ok(reading) = waiting.recv() {
                self.read(reading);
                under_way.done();
            }
        })?;
        Ok(lane)
    }

    fn read(&self, reading: Reading) {
        match reading {
            Reading::Shard(place, replica) => {
                let work = self.copied(place, replica).map(Work::Copied).unwrap_or_else(|error| {
                    self.memory.end(None);
                    not_read(place.0, error)
                });
                self.pass(work);
            }
            Reading::Checksum { at, replica, read } => {
                let begun = Instant::now();
                let checksum = replica.checksum();
                drop(replica);
                let told = checksum.map(|checksum| Event::Checksum { at, checksum, took: read + begun.elapsed() });
                if self.writer.under_way.begin(CHECKSUM_BESIDE_MAX) {
                    self.pass(told.map_or_else(|error| not_read(at, error), |event| Work::Say(Box::new(event))));
                }
            }
        }
    }

    /// What the writer has counted, so there is room for it. This thread says nothing to the trainer by itself: it waits for the next replica to be read, in the midst of
    /// an update, and would not read its inbox.
    fn pass(&self, work: Work) {
        // Without a writer the executor ends.
        let _ = self.writer.tasks.try_send(work);
    }

    /// A part in memory of its own. The replica is let go as soon as that is possible: the trainer's next update waits for it.
    pub(crate) fn copied(&self, (checkpoint, index, count): Place, replica: Readable) -> io::Result<Shard> {
        let (replica_len, mut copy) = (replica.elements() as u64, self.memory.take());
        let range = range(index, count, replica_len);
        let place = range.place(replica.elements()).unwrap_or_default();
        copy.clear();
        replica.copy(place.clone(), &mut copy)?;
        // Of a replica that is copied whole it is taken of the copy, for which nobody waits.
        let checksum = if range.elements == replica_len {
            drop(replica);
            ReplicaChecksum(Checksum::of(&copy))
        } else {
            replica.checksum_with(place, &copy)?
        };
        let elements = ShardElements::all(Arc::new(copy));
        Ok(Shard { checkpoint, count, range, replica_len, elements, checksum })
    }
}

fn not_read(checkpoint: CheckpointId, error: io::Error) -> Work {
    let source = CheckpointWriteError::Unread(error);
    Work::Say(Box::new(Event::NotWritten(WriteFailure { checkpoint: Some(checkpoint), source })))
}
