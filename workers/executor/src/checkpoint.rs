//! Writes shards, manifests and the final model, on threads of its own with bounded queues: one of what is written behind the training, one of what the job
//! stands still for, which waits for nothing of the former.
//!
//! The trainer hands over a reference to its replica, not a copy. Behind the training a shard is copied out, the whole is hashed and let go; if the
//! trainer's next update comes sooner than that, it waits, or works on a copy where there is something else to write first. So training
//! pauses for one copy at most, and usually not at all. The shard is copied into the memory of the one before: memory that is touched for the first time
//! takes ten times as long. All the rest, which is most of it, is done by threads that give way to those that train if it is much. What the job stands still for is read
//! where it lies, and written at full speed. Reading is in `restore.rs`.
//!
//! Next on a job's path: `storage/src/checkpoint/mod.rs`.

use crate::inbox::{Event, Saved, WriteFailure};
use crate::program::Program;
use crate::replica::Readable;
use crate::tokens::WriterTokens;
use events_schema::{Digest, Generation, JobId, WriterToken};
use object_store::ObjectStore;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};
use storage::checkpoint::{
    CheckpointWriteError, FORMAT_VERSION, Manifest, ShardElements, ShardRange, ShardRecord, THIS_BUILD, cut_shards,
    replica_digest, write_manifest, write_model, write_shard,
};
use storage::keys::CheckpointName;
use tokio::runtime::Runtime;
use workers_session::{CheckpointId, ShardWritten};

/// Tasks waiting for a thread: a shard, and a manifest of the one before.
const TASKS_MAX: usize = 2;
/// By how much threads that write behind the training are nicer than those that train. Beside these they get a tenth of a processor that is asked for by
/// both, so that a checkpoint always ends, and all that nobody else wants.
const NICER_BY: i32 = 10;
/// From which size of a replica on they give way. A smaller one takes at most some 25 ms of a processor, by what one of 656 MB takes, about what any step may take longer; and
/// checkpoints that follow each other within a second would be left out on a machine whose processors are all wanted.
const GIVES_WAY_FROM_BYTES: usize = 8 << 20;
/// Threads that move what is written behind the training; a store that is a folder has more, by the same priority.
const BEHIND_THREADS: usize = 1;
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
        replica: Readable,
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
        replica: Readable,
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

/// The writing threads.
pub struct CheckpointWriter {
    /// Of what is written behind the training.
    behind: Lane,
    /// Of what the job stands still for.
    needed: Lane,
    /// What may not be left out and found no room. At most a shard, a manifest and the model: of memberships before nothing is kept.
    backlog: VecDeque<Task>,
}

/// The way to one of the threads.
struct Lane {
    tasks: SyncSender<Task>,
    /// Tasks that the thread has, or will take next.
    under_way: Arc<AtomicUsize>,
}

struct Writer {
    runtime: Arc<Runtime>,
    store: Arc<dyn ObjectStore>,
    job: JobId,
    spec_digest: Digest,
    class: Digest,
    replica_len: u64,
    inbox: SyncSender<Event>,
    tokens: Arc<WriterTokens>,
    /// Whether it writes behind the training, whose next update would change what is written; else from where that lies.
    copies: bool,
    /// The memory of the last copy.
    shard: Arc<Vec<f32>>,
}

impl Lane {
    fn new() -> (Self, Receiver<Task>) {
        let (tasks, waiting) = sync_channel(TASKS_MAX);
        (Self { tasks, under_way: Arc::default() }, waiting)
    }

    /// Queues a task, or gives it back. Never waits, because the thread may be waiting for the trainer to read its inbox.
    fn offer(&self, task: Task) -> Result<(), Task> {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        match self.tasks.try_send(task) {
            Err(TrySendError::Full(task)) => {
                self.under_way.fetch_sub(1, Ordering::Relaxed);
                Err(task)
            }
            _ => Ok(()),
        }
    }

    fn is_idle(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) == 0
    }
}

/// For all that is written behind the training: of a large replica its threads give way to those that train.
fn behind_the_training(replica_bytes: usize) -> io::Result<Runtime> {
    let give_way = || {
        // On Linux it is of the thread that asks. Where it is refused, writing takes from the training what it did before.
        if let Err(error) = rustix::process::nice(NICER_BY) {
            tracing::warn!(%error, "checkpoints are written at the priority of the training");
        }
    };
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(BEHIND_THREADS).thread_name("ebb-behind").enable_all();
    if replica_bytes >= GIVES_WAY_FROM_BYTES {
        builder.on_thread_start(give_way);
    }
    builder.build()
}

impl CheckpointWriter {
    /// Starts the threads for a job. `store` is its store by a client of their own: one that is shared would have what the training waits for move by threads
    /// that give way.
    pub fn start(
        program: &Program,
        store: Arc<dyn ObjectStore>,
        class: Digest,
        tokens: &Arc<WriterTokens>,
        inbox: &SyncSender<Event>,
    ) -> io::Result<Self> {
        let writer = |runtime, store, copies| Writer {
            runtime,
            store,
            job: program.job.clone(),
            spec_digest: program.spec.digest(),
            class,
            replica_len: program.lengths().replica as u64,
            inbox: inbox.clone(),
            tokens: Arc::clone(tokens),
            copies,
            shard: Arc::default(),
        };
        let behind = behind_the_training(size_of::<f32>() * program.lengths().replica)?;
        Ok(Self {
            behind: writer(Arc::new(behind), store, true).start("ebb-checkpoint")?,
            needed: writer(Arc::clone(&program.runtime), Arc::clone(&program.store), false).start("ebb-save")?,
            backlog: VecDeque::new(),
        })
    }

    /// Queues a task unless the store is too slow for the interval. Then this checkpoint stays incomplete, and the next one may do better.
    pub fn offer(&mut self, task: Task) -> bool {
        self.behind.offer(task).is_ok()
    }

    /// Whether a shard that is offered now is copied at once.
    pub fn is_free(&self) -> bool {
        self.behind.is_idle()
    }

    /// Whether the threads have nothing to do. A digest is ordered only then: behind an upload it would hold on to the replica, which the next update
    /// would have to copy; and what is written there is compared as well.
    pub fn is_idle(&self) -> bool {
        self.behind.is_idle() && self.needed.is_idle() && self.backlog.is_empty()
    }

    /// A thread is done with a task, so it has room for another.
    pub fn done(&mut self) {
        self.flush();
    }

    /// Queues a task that may not be left out: of a job that stands still. What finds no room goes on with [`CheckpointWriter::done`].
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
            if let Err(task) = self.needed.offer(task) {
                return self.backlog.push_front(task);
            }
        }
    }
}

impl Writer {
    fn start(mut self, name: &str) -> io::Result<Lane> {
        let (lane, waiting) = Lane::new();
        let under_way = Arc::clone(&lane.under_way);
        std::thread::Builder::new().name(name.to_owned()).spawn(move || self.run(&waiting, &under_way))?;
        Ok(lane)
    }

    fn run(&mut self, tasks: &Receiver<Task>, under_way: &AtomicUsize) {
        while let Ok(task) = tasks.recv() {
            let checkpoint = task.checkpoint();
            let event =
                self.write(task).unwrap_or_else(|source| Event::NotWritten(WriteFailure { checkpoint, source }));
            let told = self.inbox.send(event);
            // Not before: who takes a thread for idle may wait for it, and it for room in the inbox.
            under_way.fetch_sub(1, Ordering::Relaxed);
            if told.is_err() {
                return;
            }
        }
    }

    fn write(&mut self, task: Task) -> Result<Event, CheckpointWriteError> {
        match task {
            Task::Shard { checkpoint, index, count, replica } => self.write_shard(checkpoint, index, count, replica),
            Task::Manifest(checkpoint, shards) => self.write_manifest(checkpoint, &shards),
            Task::Digest { at, replica, read } => {
                let begun = Instant::now();
                let digest = replica.digest().map_err(CheckpointWriteError::Unread)?;
                drop(replica);
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
        replica: Readable,
    ) -> Result<Event, CheckpointWriteError> {
        let shards = cut_shards(replica.elements() as u64, u32::from(count));
        let nothing = ShardRange { index: u32::from(index), first_element: 0, elements: 0 };
        let range = shards.get(usize::from(index)).copied().unwrap_or(nothing);
        let (elements, digest) = if self.copies {
            self.copied(range, replica).map_err(CheckpointWriteError::Unread)?
        } else {
            // Whoever goes on in another membership meanwhile works on a copy.
            let replica = replica.into_shared().map_err(CheckpointWriteError::Unread)?;
            let digest = replica_digest(&replica);
            (ShardElements::of(range, replica), digest)
        };
        let writer = self.token(checkpoint.tag.generation)?;
        let (name, store) = (self.name(checkpoint, writer), Arc::clone(&self.store));
        let record = self.by_runtime(async move { write_shard(&store, &name, range, &elements).await })?;
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

    /// A shard in memory of its own, and the digest of the whole, which is let go as soon as that is possible: the trainer's next update waits for it. Of a
    /// replica that is copied whole the copy is hashed, for which nobody waits.
    fn copied(&mut self, range: ShardRange, replica: Readable) -> io::Result<(ShardElements, Digest)> {
        // An attempt to write it that was given up may hold on to it.
        let mut shard = Arc::try_unwrap(std::mem::take(&mut self.shard)).unwrap_or_default();
        shard.clear();
        replica.copy(range.place(replica.elements()).unwrap_or_default(), &mut shard)?;
        self.shard = Arc::new(shard);
        let digest = if self.shard.len() == replica.elements() {
            drop(replica);
            let copy = Arc::clone(&self.shard);
            self.by_runtime(async move { replica_digest(&copy) })
        } else {
            replica.digest()?
        };
        Ok((ShardElements::all(Arc::clone(&self.shard)), digest))
    }

    /// Has this thread wait for what the runtime's own threads do, at their priority.
    fn by_runtime<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        let done = self.runtime.block_on(self.runtime.spawn(work));
        done.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
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
            copies: true,
            shard: Arc::default(),
        }
    }

    fn shard_of(writer: &mut Writer, index: u16) -> ShardWritten {
        shard_of_all(writer, index, 2)
    }

    fn shard_of_all(writer: &mut Writer, index: u16, count: u16) -> ShardWritten {
        let task =
            Task::Shard { checkpoint: CHECKPOINT, index, count, replica: Readable::kept(Arc::new(vec![1.0; 8])) };
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

    #[test]
    fn what_the_job_stands_still_for_is_the_same_without_a_copy() {
        let (mut behind, mut needed) = (writer(), Writer { copies: false, ..writer() });
        for writer in [&behind, &needed] {
            writer.tokens.add(GENERATION, WriterToken([1; 16]));
        }
        for (index, count) in [(0, 1), (0, 2), (1, 2), (2, 3)] {
            assert_eq!(shard_of_all(&mut behind, index, count), shard_of_all(&mut needed, index, count));
        }
        assert_eq!((behind.shard.len(), needed.shard.capacity()), (2, 0));
    }

    /// The niceness of the threads that write a replica of so many bytes, by the kernel's word.
    fn niceness(replica_bytes: usize) -> i32 {
        let runtime = behind_the_training(replica_bytes).unwrap();
        let own = runtime.spawn(async { rustix::process::getpriority_process(None).unwrap() });
        runtime.block_on(own).unwrap()
    }

    #[test]
    fn writing_a_large_replica_gives_way_and_a_small_one_is_not_worth_it() {
        let own = rustix::process::getpriority_process(None).unwrap();
        assert_eq!(niceness(GIVES_WAY_FROM_BYTES - 1), own);
        assert_eq!(niceness(GIVES_WAY_FROM_BYTES), (own + NICER_BY).min(19));
    }

    #[test]
    fn the_memory_of_a_shard_is_that_of_the_one_before() {
        let mut writer = writer();
        writer.tokens.add(GENERATION, WriterToken([1; 16]));
        shard_of(&mut writer, 0);
        let memory = writer.shard.as_ptr();
        shard_of(&mut writer, 1);
        assert_eq!(writer.shard.as_ptr(), memory);
        // Whoever still holds it keeps what it holds.
        let held = Arc::clone(&writer.shard);
        shard_of(&mut writer, 0);
        assert_ne!(writer.shard.as_ptr(), held.as_ptr());
    }

    fn shard(generation: u64) -> Task {
        let tag = Tag { generation: Generation(generation), revision: 0 };
        Task::Shard {
            checkpoint: CheckpointId { step: Step(3), tag },
            index: 0,
            count: 1,
            replica: Readable::kept(Arc::default()),
        }
    }

    fn generation(task: &Task) -> Option<u64> {
        task.checkpoint().map(|checkpoint| checkpoint.tag.generation.0)
    }

    /// Lanes without threads, and what waits in each.
    fn lanes() -> (CheckpointWriter, [Receiver<Task>; 2]) {
        let ((behind, of_behind), (needed, of_needed)) = (Lane::new(), Lane::new());
        (CheckpointWriter { behind, needed, backlog: VecDeque::new() }, [of_behind, of_needed])
    }

    #[test]
    fn a_full_queue_keeps_nobody_waiting_and_loses_nothing_that_counts() {
        let (mut writer, [behind, needed]) = lanes();
        let taken: Vec<bool> = (1..=3).map(|of| writer.offer(shard(of))).collect();
        assert_eq!(taken, [true, true, false], "of what is behind the training the last is left out");
        assert_eq!(behind.try_iter().map(|task| generation(&task)).collect::<Vec<_>>(), [Some(1), Some(2)]);
        writer.put(shard(3));
        writer.put(shard(3));
        writer.put(shard(3));
        writer.put(shard(4));
        writer.put(Task::Model(Vec::new(), Digest([0; 32])));
        assert_eq!(writer.backlog.len(), 2, "what counts no more made room");
        assert_eq!(needed.try_iter().map(|task| generation(&task)).collect::<Vec<_>>(), [Some(3), Some(3)]);
        writer.done();
        assert_eq!(needed.try_iter().map(|task| generation(&task)).collect::<Vec<_>>(), [Some(4), None]);
    }

    /// An upload behind the training may take minutes, and gives way to whatever else the machine does.
    #[test]
    fn what_the_job_stands_still_for_waits_for_nothing_behind_the_training() {
        let (mut writer, [_behind, needed]) = lanes();
        assert!((0..2).all(|_| writer.offer(shard(3))));
        writer.put(shard(3));
        assert_eq!(needed.try_iter().count(), 1);
    }

    #[test]
    fn replicas_are_compared_while_nothing_is_written() {
        let (mut writer, [behind, needed]) = lanes();
        assert!(writer.offer(shard(1)) && behind.try_recv().is_ok());
        assert!(!writer.is_idle() && !writer.is_free(), "the thread is at it");
        writer.behind.under_way.fetch_sub(1, Ordering::Relaxed);
        assert!(writer.is_idle());
        writer.put(shard(1));
        assert!(!writer.is_idle() && writer.is_free() && needed.try_recv().is_ok());
        writer.needed.under_way.fetch_sub(1, Ordering::Relaxed);
        let (replica, read) = (Readable::kept(Arc::new(vec![1.5])), Duration::ZERO);
        assert!(writer.offer(Task::Digest { at: CHECKPOINT, replica, read }));
        assert!(!writer.is_idle() && writer.offer(shard(2)), "a checkpoint waits for it");
        let digest = behind.try_recv().unwrap();
        let Event::Digested { at: CHECKPOINT, digest, .. } = self::writer().write(digest).unwrap() else {
            unreachable!()
        };
        assert_eq!(digest, replica_digest(&[1.5]));
    }
}
