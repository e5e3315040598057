//! Writes shards, manifests and the final model behind the training, on a thread of its own with a bounded queue.
//!
//! The trainer hands over a reference to its replica, not a copy. This thread copies its shard out, hashes the whole and lets go; if the
//! trainer's next update comes sooner than that, it waits, or works on a copy where this thread has something else to write first. So training
//! pauses for one copy at most, and usually not at all. The shard is copied into the memory of the one before: memory that is touched for the first time
//! takes ten times as long. Reading is in `restore.rs`.
//!
//! Next on a job's path: `storage/src/checkpoint/mod.rs`.

use crate::inbox::{Event, Saved, WriteFailure};
use crate::program::Program;
use crate::replica::Reading;
use crate::tokens::WriterTokens;
use events_schema::{Digest, Generation, JobId, WriterToken};
use object_store::ObjectStore;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};
use storage::checkpoint::{
    CheckpointWriteError, FORMAT_VERSION, Manifest, ShardRange, ShardRecord, THIS_BUILD, cut_shards, replica_digest,
    write_manifest, write_model, write_shard,
};
use storage::keys::CheckpointName;
use workers_session::{CheckpointId, ShardWritten};

/// Tasks waiting: a shard, and a manifest of the one before.
const TASKS_MAX: usize = 2;
/// For how long the order is awaited that says by what a generation's objects are named: the leader's word of it may come first.
const TOKEN_WAIT: Duration = Duration::from_secs(5);

/// What there is to write.
pub enum Task {
    /// A part of the replica.
    Shard {
        /// Of which checkpoint.
        checkpoint: CheckpointId,
        /// Which part.
        index: u16,
        /// Of how many.
        count: u16,
        /// The replica at the checkpoint's step.
        replica: Arc<Vec<f32>>,
        /// Goes with it.
        reading: Reading,
    },
    /// What makes shards a checkpoint.
    Manifest(CheckpointId, Vec<ShardWritten>),
    /// The final model as a file, and the digest of its parameters.
    Model(Vec<u8>, Digest),
    /// Nothing to write: the digest of the replica, which members compare.
    Digest {
        /// At which boundary.
        at: CheckpointId,
        /// The replica there.
        replica: Arc<Vec<f32>>,
        /// Goes with it.
        reading: Reading,
        /// How long getting hold of it took.
        read: Duration,
    },
}

impl Task {
    /// Of which checkpoint; none for the final model.
    fn checkpoint(&self) -> Option<CheckpointId> {
        match self {
            Self::Shard { checkpoint, .. } | Self::Manifest(checkpoint, _) => Some(*checkpoint),
            Self::Digest { at, .. } => Some(*at),
            Self::Model(..) => None,
        }
    }
}

/// The writing thread.
pub struct CheckpointWriter {
    tasks: SyncSender<Task>,
    /// What may not be left out and found no room. At most a shard, a manifest and the model: of memberships before nothing is kept.
    backlog: VecDeque<Task>,
    /// Tasks that the thread has, or will take next.
    under_way: usize,
}

struct Writer {
    runtime: Arc<tokio::runtime::Runtime>,
    store: Arc<dyn ObjectStore>,
    job: JobId,
    spec_digest: Digest,
    class: Digest,
    replica_len: u64,
    inbox: SyncSender<Event>,
    tokens: Arc<WriterTokens>,
    /// The memory of the last shard.
    shard: Vec<f32>,
}

impl CheckpointWriter {
    /// Starts the thread for a job.
    pub fn start(
        program: &Program,
        class: Digest,
        tokens: Arc<WriterTokens>,
        inbox: SyncSender<Event>,
    ) -> io::Result<Self> {
        let (tasks, waiting) = sync_channel(TASKS_MAX);
        let mut writer = Writer {
            runtime: Arc::clone(&program.runtime),
            store: Arc::clone(&program.store),
            job: program.job.clone(),
            spec_digest: program.spec.digest(),
            class,
            replica_len: program.lengths().replica as u64,
            inbox,
            tokens,
            shard: Vec::new(),
        };
        std::thread::Builder::new().name("ebb-checkpoint".to_owned()).spawn(move || writer.run(&waiting))?;
        Ok(Self { tasks, backlog: VecDeque::new(), under_way: 0 })
    }

    /// Queues a task unless the store is too slow for the interval. Then this checkpoint stays incomplete, and the next one may do better.
    pub fn offer(&mut self, task: Task) -> bool {
        let taken = self.backlog.is_empty() && !matches!(self.tasks.try_send(task), Err(TrySendError::Full(_)));
        self.under_way += usize::from(taken);
        taken
    }

    /// Whether the thread has nothing to do. A digest is ordered only then: behind an upload it would hold on to the replica, which the next update
    /// would have to copy; and what is written there is compared as well.
    pub fn is_idle(&self) -> bool {
        self.under_way == 0 && self.backlog.is_empty()
    }

    /// The thread is done with a task, so it has room for another.
    pub fn done(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
        self.flush();
    }

    /// Queues a task that may not be left out: of a job that stands still. Never waits, because the thread may be waiting for the trainer
    /// to read its inbox; what finds no room goes on with [`CheckpointWriter::done`].
    pub fn put(&mut self, task: Task) {
        if let Some(checkpoint) = task.checkpoint() {
            // The job stood still before, in a membership that is over: what it had to write then no longer counts.
            self.backlog.retain(|waiting| waiting.checkpoint().is_none_or(|other| other.tag >= checkpoint.tag));
        }
        self.backlog.push_back(task);
        self.flush();
    }

    /// Queues what waits for room.
    fn flush(&mut self) {
        while let Some(task) = self.backlog.pop_front() {
            if let Err(TrySendError::Full(task)) = self.tasks.try_send(task) {
                return self.backlog.push_front(task);
            }
            self.under_way += 1;
        }
    }
}

impl Writer {
    fn run(&mut self, tasks: &Receiver<Task>) {
        while let Ok(task) = tasks.recv() {
            let checkpoint = task.checkpoint();
            let event =
                self.write(task).unwrap_or_else(|source| Event::NotWritten(WriteFailure { checkpoint, source }));
            if self.inbox.send(event).is_err() {
                return;
            }
        }
    }

    fn write(&mut self, task: Task) -> Result<Event, CheckpointWriteError> {
        match task {
            Task::Shard { checkpoint, index, count, replica, reading } => {
                self.write_shard(checkpoint, index, count, (replica, reading))
            }
            Task::Manifest(checkpoint, shards) => self.write_manifest(checkpoint, &shards),
            Task::Digest { at, replica, reading, read } => {
                let begun = Instant::now();
                let digest = replica_digest(&replica);
                drop((replica, reading));
                Ok(Event::Digested { at, digest, took: read + begun.elapsed() })
            }
            Task::Model(file, digest) => {
                self.runtime.block_on(write_model(&self.store, &self.job, file))?;
                Ok(Event::ModelWritten(digest))
            }
        }
    }

    fn token(&self, generation: Generation) -> Result<WriterToken, CheckpointWriteError> {
        self.tokens.wait_for(generation, TOKEN_WAIT).ok_or(CheckpointWriteError::Unnamed { generation })
    }

    /// The one token that all shards are named by; if builds of the controller changed while they were written, there may be none. Shards
    /// of an earlier build do not say, and lie elsewhere.
    fn token_of(&self, generation: Generation, shards: &[ShardWritten]) -> Result<WriterToken, CheckpointWriteError> {
        let first = shards.first().and_then(|shard| shard.writer);
        let one = first.filter(|token| shards.iter().all(|shard| shard.writer == Some(*token)));
        let known = one.filter(|token| self.tokens.knows(generation, *token));
        known.ok_or(CheckpointWriteError::Mixed { generation })
    }

    fn name(&self, checkpoint: CheckpointId, writer: WriterToken) -> CheckpointName {
        let (step, generation) = (checkpoint.step, checkpoint.tag.generation);
        CheckpointName { job: self.job.clone(), generation, step, writer: Some(writer) }
    }

    fn write_shard(
        &mut self,
        checkpoint: CheckpointId,
        index: u16,
        count: u16,
        (replica, reading): (Arc<Vec<f32>>, Reading),
    ) -> Result<Event, CheckpointWriteError> {
        let shards = cut_shards(replica.len() as u64, u32::from(count));
        let nothing = ShardRange { index: u32::from(index), first_element: 0, elements: 0 };
        let range = shards.get(usize::from(index)).copied().unwrap_or(nothing);
        self.shard.clear();
        self.shard.extend_from_slice(range.of(&replica).unwrap_or_default());
        // The trainer's next update works in place once nobody reads its replica: of one that is copied whole the copy is read.
        let digest = if self.shard.len() == replica.len() {
            drop((replica, reading));
            replica_digest(&self.shard)
        } else {
            let digest = replica_digest(&replica);
            drop((replica, reading));
            digest
        };
        let writer = self.token(checkpoint.tag.generation)?;
        let name = self.name(checkpoint, writer);
        let record = self.runtime.block_on(write_shard(&self.store, &name, range, &self.shard))?;
        Ok(Event::ShardWritten(ShardWritten {
            checkpoint,
            index,
            count,
            first_element: record.first_element,
            elements: record.elements,
            bytes: record.bytes,
            digest: record.blake3,
            replica_digest: digest,
            writer: Some(writer),
        }))
    }

    fn write_manifest(&self, checkpoint: CheckpointId, shards: &[ShardWritten]) -> Result<Event, CheckpointWriteError> {
        let writer = self.token_of(checkpoint.tag.generation, shards)?;
        let name = self.name(checkpoint, writer);
        let record = |s: &ShardWritten| ShardRecord {
            key: name.shard(u32::from(s.index)),
            first_element: s.first_element,
            elements: s.elements,
            bytes: s.bytes,
            blake3: s.digest,
        };
        let replica_digest = shards.first().map_or(Digest([0; 32]), |s| s.replica_digest);
        let manifest = Manifest {
            format_version: FORMAT_VERSION,
            job: self.job.clone(),
            spec_digest: self.spec_digest,
            numeric_class: self.class,
            generation: checkpoint.tag.generation,
            step: checkpoint.step,
            replica_len: self.replica_len,
            replica_digest,
            shards: shards.iter().map(record).collect(),
            written_by: Some(THIS_BUILD.to_owned()),
        };
        self.runtime.block_on(write_manifest(&self.store, &name, &manifest))?;
        Ok(Event::ManifestWritten(checkpoint, Saved { writer, replica_digest, bytes: manifest.shard_bytes() }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use events_schema::Step;
    use object_store::{ObjectStoreExt, memory::InMemory};
    use workers_session::Tag;

    const GENERATION: Generation = Generation(3);
    const CHECKPOINT: CheckpointId = CheckpointId { step: Step(9), tag: Tag { generation: GENERATION, revision: 0 } };

    fn writer() -> Writer {
        let (inbox, _) = sync_channel(1);
        Writer {
            runtime: Arc::new(tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()),
            store: Arc::new(InMemory::new()),
            job: JobId::parse("job-a").unwrap(),
            spec_digest: Digest::of(b"spec"),
            class: Digest::of(b"class"),
            replica_len: 8,
            inbox,
            tokens: Arc::default(),
            shard: Vec::new(),
        }
    }

    fn shard_of(writer: &mut Writer, index: u16) -> ShardWritten {
        shard_of_all(writer, index, 2)
    }

    fn shard_of_all(writer: &mut Writer, index: u16, count: u16) -> ShardWritten {
        let task = Task::Shard {
            checkpoint: CHECKPOINT,
            index,
            count,
            replica: Arc::new(vec![1.0; 8]),
            reading: Reading::default(),
        };
        match writer.write(task).unwrap() {
            Event::ShardWritten(shard) => shard,
            _ => unreachable!(),
        }
    }

    /// Between two shards of a checkpoint a controller of another build may give other names. A manifest with these names shards that nobody
    /// wrote, and the checkpoint counts.
    #[test]
    fn a_manifest_names_what_was_written_or_is_not_written() {
        let (old, new) = (WriterToken([1; 16]), WriterToken([2; 16]));
        let mut writer = writer();
        writer.tokens.add(GENERATION, old);
        let first = shard_of(&mut writer, 0);
        let both = [first.clone(), shard_of(&mut writer, 1)];
        writer.tokens.add(GENERATION, new);
        let mixed = [first, shard_of(&mut writer, 1)];
        let said = writer.write_manifest(CHECKPOINT, &mixed).err().unwrap();
        assert!(matches!(said, CheckpointWriteError::Mixed { generation: GENERATION }), "{said}");
        let foreign = both.clone().map(|shard| ShardWritten { writer: Some(WriterToken([9; 16])), ..shard });
        assert!(writer.write_manifest(CHECKPOINT, &foreign).is_err(), "a name that was never issued to this member");

        let Event::ManifestWritten(_, saved) = writer.write_manifest(CHECKPOINT, &both).unwrap() else {
            unreachable!()
        };
        assert_eq!(saved.writer, old, "what was begun under the first token is finished under it");
        for index in 0..2 {
            let key = writer.name(CHECKPOINT, saved.writer).shard(index);
            writer.runtime.block_on(writer.store.head(&key.as_str().into())).unwrap();
        }
    }

    #[test]
    fn a_shard_that_is_the_whole_replica_has_the_digest_of_all() {
        let mut writer = writer();
        writer.tokens.add(GENERATION, WriterToken([1; 16]));
        let whole = shard_of_all(&mut writer, 0, 1);
        assert_eq!((whole.elements, whole.replica_digest), (8, replica_digest(&[1.0; 8])));
        assert_eq!(shard_of(&mut writer, 1).replica_digest, whole.replica_digest);
    }

    fn shard(generation: u64) -> Task {
        let tag = Tag { generation: Generation(generation), revision: 0 };
        Task::Shard {
            checkpoint: CheckpointId { step: Step(3), tag },
            index: 0,
            count: 1,
            replica: Arc::default(),
            reading: Reading::default(),
        }
    }

    fn generation(task: &Task) -> Option<u64> {
        task.checkpoint().map(|checkpoint| checkpoint.tag.generation.0)
    }

    #[test]
    fn a_full_queue_keeps_nobody_waiting_and_loses_nothing_that_counts() {
        let (tasks, waiting) = sync_channel(TASKS_MAX);
        let mut writer = CheckpointWriter { tasks, backlog: VecDeque::new(), under_way: 0 };
        assert!((1..=2).all(|of| writer.offer(shard(of))));
        writer.put(shard(3));
        writer.put(shard(4));
        writer.put(Task::Model(Vec::new(), Digest([0; 32])));
        assert_eq!(writer.backlog.len(), 2, "what counts no more made room");
        assert_eq!(waiting.try_iter().map(|task| generation(&task)).collect::<Vec<_>>(), [Some(1), Some(2)]);
        assert!(!writer.offer(shard(5)), "nothing overtakes");
        (0..2).for_each(|_| writer.done());
        assert_eq!(waiting.try_iter().map(|task| generation(&task)).collect::<Vec<_>>(), [Some(4), None]);
    }

    #[test]
    fn nothing_of_a_checkpoint_before_makes_room_for_itself_at_the_cost_of_the_last() {
        let (tasks, waiting) = sync_channel(TASKS_MAX);
        let mut writer = CheckpointWriter { tasks, backlog: VecDeque::new(), under_way: 0 };
        assert!((0..2).all(|_| writer.offer(shard(3))));
        writer.put(Task::Shard {
            checkpoint: CHECKPOINT,
            index: 0,
            count: 1,
            replica: Arc::default(),
            reading: Reading::default(),
        });
        let before = CheckpointId { step: Step(3), ..CHECKPOINT };
        assert!(!writer.offer(Task::Manifest(before, Vec::new())), "what the job does not stand still for is left out");
        writer.put(Task::Manifest(before, Vec::new()));
        assert_eq!(waiting.try_iter().count(), 2);
        writer.done();
        let next = waiting.try_recv().ok().and_then(|task| task.checkpoint());
        assert_eq!(next, Some(CHECKPOINT));
    }

    #[test]
    fn replicas_are_compared_while_nothing_is_written() {
        let (tasks, waiting) = sync_channel(TASKS_MAX);
        let mut writer = CheckpointWriter { tasks, backlog: VecDeque::new(), under_way: 0 };
        assert!(writer.offer(shard(1)));
        let taken = waiting.try_recv();
        assert!(taken.is_ok() && !writer.is_idle(), "the thread is at it");
        writer.done();
        assert!(writer.is_idle());
        let (replica, read) = (Arc::new(vec![1.5]), Duration::ZERO);
        assert!(writer.offer(Task::Digest { at: CHECKPOINT, replica, reading: Reading::default(), read }));
        assert!(!writer.is_idle() && writer.offer(shard(2)), "a checkpoint waits for it");
        let digest = waiting.try_recv().unwrap();
        let Event::Digested { at: CHECKPOINT, digest, .. } = self::writer().write(digest).unwrap() else {
            unreachable!()
        };
        assert_eq!(digest, replica_digest(&[1.5]));
    }
}
