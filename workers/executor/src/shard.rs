//! A member's part of a checkpoint, before it is written: where the replica lies, if that does not change any more, or copied out of it by a thread of its own.
//!
//! That thread does nothing else and does not give way to the training, because the next update waits for it: so it takes the checksums as well, for which a replica
//! must not change either. It copies into the memory of a part that was written before: memory that is touched for the first time takes ten times as long.
//! Writing is in `checkpoint.rs`.

use crate::checkpoint::{Lane, Work};
use crate::inbox::{Event, WriteFailure};
use crate::replica::Readable;
use std::io;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use storage::checkpoint::{CheckpointWriteError, Checksum, ShardElements, ShardRange, cut_shards};
use workers_session::{CheckpointId, ReplicaChecksum};

/// One member's part.
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
}

fn range(index: u16, count: u16, replica_len: u64) -> ShardRange {
    let nothing = ShardRange { index: u32::from(index), first_element: 0, elements: 0 };
    cut_shards(replica_len, u32::from(count)).get(usize::from(index)).copied().unwrap_or(nothing)
}

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
    /// Who writes what was copied, and has counted it.
    pub writer: Lane<Work>,
    /// Where checksums are told, and what could not be read.
    pub inbox: SyncSender<Event>,
    /// Where they lie.
    pub memory: CopyMemory,
}

impl Copier {
    /// Starts it.
    pub fn start(self) -> io::Result<Lane<Reading>> {
        let (lane, waiting) = Lane::new();
        let under_way = lane.under_way.clone();
        std::thread::Builder::new().name("ebb-copy".to_owned()).spawn(move || {
            while let Ok(reading) = waiting.recv() {
                let goes_on = self.read(reading);
                // Not before: who takes it for idle may wait for it, and it for room in the inbox.
                under_way.done();
                if !goes_on {
                    return;
                }
            }
        })?;
        Ok(lane)
    }

    /// Whether anybody hears of it.
    fn read(&self, reading: Reading) -> bool {
        let checkpoint = match &reading {
            Reading::Shard((checkpoint, ..), _) => *checkpoint,
            Reading::Checksum { at, .. } => *at,
        };
        let said = match reading {
            Reading::Shard(place, replica) => match self.copied(place, replica) {
                Ok(shard) => return self.writer.tasks.send(Work::Copied(shard)).is_ok(),
                Err(error) => {
                    self.writer.under_way.done();
                    self.memory.end(None);
                    Err(error)
                }
            },
            Reading::Checksum { at, replica, read } => {
                let begun = Instant::now();
                let checksum = replica.checksum();
                drop(replica);
                checksum.map(|checksum| Event::Checksum { at, checksum, took: read + begun.elapsed() })
            }
        };
        let not_written =
            |error| WriteFailure { checkpoint: Some(checkpoint), source: CheckpointWriteError::Unread(error) };
        self.inbox.send(said.unwrap_or_else(|error| Event::NotWritten(not_written(error)))).is_ok()
    }

    /// A part in memory of its own. The replica is let go as soon as that is possible: the trainer's next update waits for it.
    pub fn copied(&self, (checkpoint, index, count): Place, replica: Readable) -> io::Result<Shard> {
        let (replica_len, mut copy) = (replica.elements() as u64, self.memory.take());
        let range = range(index, count, replica_len);
        copy.clear();
        replica.copy(range.place(replica.elements()).unwrap_or_default(), &mut copy)?;
        // Of a replica that is copied whole it is taken of the copy, for which nobody waits.
        let checksum = if range.elements == replica_len {
            drop(replica);
            ReplicaChecksum(Checksum::of(&copy))
        } else {
            replica.checksum()?
        };
        let elements = ShardElements::all(Arc::new(copy));
        Ok(Shard { checkpoint, count, range, replica_len, elements, checksum })
    }
}
