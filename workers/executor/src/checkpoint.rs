//! Writes shards, manifests and the final model, on threads of its own with bounded queues: one of what is written behind the training, one of what the job
//! stands still for, which waits for nothing of the former.
//!
//! The trainer hands over a reference to its replica, not a copy. Behind the training a shard is copied out first, where there are several with a look at the rest
//! (`shard.rs`), and then the replica is let go; if the trainer's next update comes sooner than that, it waits. So training pauses for that at most, and usually
//! not at all, however long writing takes.
//! All the rest, which is most of it, is done by threads that give way to those that train if it is much. What the job stands still for is read
//! where it lies, and written at full speed. Reading is in `restore.rs`.
//!
//! Next on a job's path: `storage/src/checkpoint/mod.rs`.

use crate::inbox::{Event, Saved, WriteFailure};
use crate::program::Program;
use crate::replica::Readable;
use crate::shard::{Copier, CopyMemory, Place, Reading, Shard};
use crate::tokens::WriterTokens;
use events_schema::{Digest, Generation, JobId, WriterToken};
use object_store::ObjectStore;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;
use storage::checkpoint::{
    CheckpointWriteError, FORMAT_VERSION, Manifest, ShardRange, ShardRecord, THIS_BUILD, whole_digest, write_manifest,
    write_model, write_shard,
};
use storage::keys::CheckpointName;
use tokio::runtime::Runtime;
use workers_session::{CheckpointId, PartDigests, ShardWritten};

/// Tasks of a thread that are not done: a shard that it writes, the next one, a manifest of the one before, and a checksum that it tells of.
const TASKS_MAX: usize = 4;
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
    /// A part of the replica at the checkpoint's step.
    Shard(Place, Readable),
    /// What makes shards a checkpoint.
    Manifest(CheckpointId, Vec<ShardWritten>),
    /// The final model as a file, and the digest of its parameters.
    Model(Vec<u8>, Digest),
}

/// What a writing thread is given.
pub enum Work {
    /// What can be read as long as that takes.
    Task(Task),
    /// A part that was copied out of the replica.
    Copied(Shard),
    /// Nothing: the trainer is told of it.
    Say(Box<Event>),
}

impl Task {
    /// Of which checkpoint; none for the final model.
    fn checkpoint(&self) -> Option<CheckpointId> {
        match self {
            Self::Shard((checkpoint, ..), _) | Self::Manifest(checkpoint, _) => Some(*checkpoint),
            Self::Model(..) => None,
        }
    }
}

impl Work {
    fn checkpoint(&self) -> Option<CheckpointId> {
        match self {
            Self::Task(task) => task.checkpoint(),
            Self::Copied(shard) => Some(shard.checkpoint),
            Self::Say(_) => None,
        }
    }
}

/// The threads that read and write.
pub struct CheckpointWriter {
    /// Copies out what is written behind the training.
    copier: Lane<Reading>,
    memory: CopyMemory,
    /// Of what is written behind the training.
    behind: Lane<Work>,
    /// Of what the job stands still for.
    needed: Lane<Work>,
    /// What may not be left out and found no room. At most a shard, a manifest and the model: of memberships before nothing is kept.
    backlog: VecDeque<Task>,
}

/// The way to one of the threads.
pub struct Lane<T> {
    /// Its queue.
    pub tasks: SyncSender<T>,
    /// What the thread has, will take next, or is copied for it.
    pub under_way: UnderWay,
}

/// How many tasks are not done.
#[derive(Clone, Default)]
pub struct UnderWay(Arc<AtomicUsize>);

impl UnderWay {
    /// Counts one more, unless there are so many.
    pub fn begin(&self, most: usize) -> bool {
        let more = |tasks| (tasks < most).then_some(tasks + 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// One is done, or never will be.
    pub fn done(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    fn is_none(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

impl<T> Lane<T> {
    /// A queue, and its other end.
    pub fn new() -> (Self, Receiver<T>) {
        let (tasks, waiting) = sync_channel(TASKS_MAX);
        (Self { tasks, under_way: UnderWay::default() }, waiting)
    }

    /// Queues a task, or gives it back. Never waits, because the thread may be waiting for the trainer to read its inbox.
    fn offer(&self, task: T) -> Result<(), T> {
        if !self.under_way.begin(TASKS_MAX) {
            return Err(task);
        }
        match self.tasks.try_send(task) {
            Err(TrySendError::Full(task)) => {
                self.under_way.done();
                Err(task)
            }
            _ => Ok(()),
        }
    }
}

impl<T> Clone for Lane<T> {
    fn clone(&self) -> Self {
        Self { tasks: self.tasks.clone(), under_way: self.under_way.clone() }
    }
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
    /// Where copies lie.
    memory: CopyMemory,
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
        let memory = CopyMemory::default();
        let writer = |runtime, store| Writer {
            runtime,
            store,
            job: program.job.clone(),
            spec_digest: program.spec.digest(),
            class,
            replica_len: program.lengths().replica as u64,
            inbox: inbox.clone(),
            tokens: Arc::clone(tokens),
            memory: memory.clone(),
        };
        let behind = behind_the_training(size_of::<f32>() * program.lengths().replica)?;
        let behind = writer(Arc::new(behind), store).start("ebb-checkpoint")?;
        let needed = writer(Arc::clone(&program.runtime), Arc::clone(&program.store)).start("ebb-save")?;
        let copier = Copier { writer: behind.clone(), memory: memory.clone() }.start()?;
        Ok(Self { copier, memory, behind, needed, backlog: VecDeque::new() })
    }

    /// Queues a task unless the store is too slow for the interval. Then this checkpoint stays incomplete, and the next one may do better.
    pub fn offer(&mut self, task: Task) -> bool {
        let Task::Shard(place, replica) = task else { return self.behind.offer(Work::Task(task)).is_ok() };
        // Before it is copied: else it could be copied for nothing.
        if !self.memory.begin() {
            return false;
        }
        let counted = self.behind.under_way.begin(TASKS_MAX);
        let copied = counted && self.copier.offer(Reading::Shard(place, replica)).is_ok();
        if counted && !copied {
            self.behind.under_way.done();
        }
        if !copied {
            self.memory.end(None);
        }
        copied
    }

    /// Has a checksum taken, unless a shard is being copied, which is compared as well. Whether it will be.
    pub fn compare(&mut self, at: CheckpointId, replica: Readable, read: Duration) -> bool {
        self.is_free() && self.copier.offer(Reading::Checksum { at, replica, read }).is_ok()
    }

    /// Whether nothing is being read that the next update would wait for.
    pub fn is_free(&self) -> bool {
        self.copier.under_way.is_none()
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
            if let Err(Work::Task(task)) = self.needed.offer(Work::Task(task)) {
                return self.backlog.push_front(task);
            }
        }
    }
}

impl Writer {
    fn start(self, name: &str) -> io::Result<Lane<Work>> {
        let (lane, waiting) = Lane::new();
        let under_way = lane.under_way.clone();
        std::thread::Builder::new().name(name.to_owned()).spawn(move || self.run(&waiting, &under_way))?;
        Ok(lane)
    }

    fn run(&self, works: &Receiver<Work>, under_way: &UnderWay) {
        while let Ok(work) = works.recv() {
            let checkpoint = work.checkpoint();
            let event =
                self.write(work).unwrap_or_else(|source| Event::NotWritten(WriteFailure { checkpoint, source }));
            let told = self.inbox.send(event);
            under_way.done();
            if told.is_err() {
                return;
            }
        }
    }

    fn write(&self, work: Work) -> Result<Event, CheckpointWriteError> {
        match work {
            Work::Task(Task::Shard(place, replica)) => {
                // Whoever goes on in another membership meanwhile works on a copy.
                let shard = Shard::in_place(place, replica).map_err(CheckpointWriteError::Unread)?;
                self.write_shard(&shard, shard.part_digests())
            }
            Work::Copied(shard) => {
                let part = shard.clone();
                let written = self.write_shard(&shard, self.by_runtime(async move { part.part_digests() }));
                self.memory.end(Some(shard.elements));
                written
            }
            Work::Say(event) => Ok(*event),
            Work::Task(Task::Manifest(checkpoint, shards)) => self.write_manifest(checkpoint, &shards),
            Work::Task(Task::Model(file, digest)) => {
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

    fn write_shard(&self, shard: &Shard, part_digests: Vec<Digest>) -> Result<Event, CheckpointWriteError> {
        let &Shard { checkpoint, count, range, checksum, .. } = shard;
        let writer = self.token(checkpoint.tag.generation)?;
        let (name, store, elements) = (self.name(checkpoint, writer), Arc::clone(&self.store), shard.elements.clone());
        let record = self.by_runtime(async move { write_shard(&store, &name, range, &elements).await })?;
        Ok(Event::ShardWritten(ShardWritten {
            checkpoint,
            // Of a job's members there are fewer.
            index: u16::try_from(range.index).unwrap_or(u16::MAX),
            count,
            first_element: record.first_element,
            elements: record.elements,
            bytes: record.bytes,
            digest: record.blake3,
            checksum,
            writer: Some(writer),
            part_digests: PartDigests(part_digests),
        }))
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
        let place = |s: &ShardWritten| ShardRange {
            index: u32::from(s.index),
            first_element: s.first_element,
            elements: s.elements,
        };
        let parts = shards.iter().map(|shard| (place(shard), &*shard.part_digests.0));
        let replica_digest = whole_digest(self.replica_len, parts).ok_or(CheckpointWriteError::Parts)?;
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
    use storage::checkpoint::{Checksum, PART_ELEMENTS};
    use workers_session::Tag;

    const GENERATION: Generation = Generation(3);
    const CHECKPOINT: CheckpointId = CheckpointId { step: Step(9), tag: Tag { generation: GENERATION, revision: 0 } };

    /// Three parts and a little.
    const REPLICA_LEN: usize = 3 * PART_ELEMENTS as usize + 8;

    fn writer() -> Writer {
        let (inbox, _) = sync_channel(1);
        Writer {
            runtime: Arc::new(tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()),
            store: Arc::new(InMemory::new()),
            job: JobId::parse("job-a").unwrap(),
            spec_digest: Digest::of(b"spec"),
            class: Digest::of(b"class"),
            replica_len: REPLICA_LEN as u64,
            inbox,
            tokens: Arc::default(),
            memory: CopyMemory::default(),
        }
    }

    /// What copies for a writer.
    fn copier(writer: &Writer) -> Copier {
        Copier { writer: Lane::new().0, memory: writer.memory.clone() }
    }

    fn replica() -> Readable {
        Readable::kept(Arc::new(vec![1.0; REPLICA_LEN]))
    }

    fn shard_of(writer: &Writer, index: u16) -> ShardWritten {
        shard_of_all(writer, index, 2)
    }

    fn shard_of_all(writer: &Writer, index: u16, count: u16) -> ShardWritten {
        let copied = copier(writer).copied((CHECKPOINT, index, count), replica()).unwrap();
        match writer.write(Work::Copied(copied)).unwrap() {
            Event::ShardWritten(shard) => shard,
            _ => unreachable!(),
        }
    }

    /// Between two shards of a checkpoint a controller of another build may give other names. A manifest with these names shards that nobody
    /// wrote, and the checkpoint counts.
    #[test]
    fn a_manifest_names_what_was_written_or_is_not_written() {
        let (old, new) = (WriterToken([1; 16]), WriterToken([2; 16]));
        let writer = writer();
        writer.tokens.add(GENERATION, old);
        let first = shard_of(&writer, 0);
        let both = [first.clone(), shard_of(&writer, 1)];
        writer.tokens.add(GENERATION, new);
        let mixed = [first, shard_of(&writer, 1)];
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
    fn who_writes_a_part_alone_has_the_checksum_of_all() {
        let writer = writer();
        writer.tokens.add(GENERATION, WriterToken([1; 16]));
        let whole = shard_of_all(&writer, 0, 1);
        assert_eq!((whole.elements, whole.checksum.0), (REPLICA_LEN as u64, Checksum::of(&[1.0; REPLICA_LEN])));
        assert_eq!(shard_of(&writer, 1).checksum, whole.checksum);
    }

    #[test]
    fn parts_make_the_digest_of_the_whole_however_many_wrote_them() {
        let mut writer = writer();
        writer.tokens.add(GENERATION, WriterToken([1; 16]));
        for count in 1..4 {
            let shards: Vec<ShardWritten> = (0..count).map(|index| shard_of_all(&writer, index, count)).collect();
            let of_another = [&shards[..shards.len() - 1], &[shard_of_all(&writer, 0, 4)]].concat();
            assert!(
                matches!(writer.write_manifest(CHECKPOINT, &of_another), Err(CheckpointWriteError::Parts)),
                "{count}"
            );
            let Event::ManifestWritten(_, saved) = writer.write_manifest(CHECKPOINT, &shards).unwrap() else {
                unreachable!()
            };
            assert_eq!(saved.replica_digest, storage::checkpoint::replica_digest(&[1.0; REPLICA_LEN]));
            writer.store = Arc::new(InMemory::new());
        }
    }

    #[test]
    fn what_the_job_stands_still_for_is_the_same_without_a_copy() {
        let writer = writer();
        writer.tokens.add(GENERATION, WriterToken([1; 16]));
        for (index, count) in [(0, 1), (0, 2), (1, 2), (2, 3)] {
            let in_place = Work::Task(Task::Shard((CHECKPOINT, index, count), replica()));
            let Event::ShardWritten(in_place) = writer.write(in_place).unwrap() else { unreachable!() };
            assert_eq!(shard_of_all(&writer, index, count), in_place);
        }
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
        let writer = writer();
        writer.tokens.add(GENERATION, WriterToken([1; 16]));
        let copied = |index| copier(&writer).copied((CHECKPOINT, index, 2), replica()).unwrap();
        let first = copied(0);
        let memory = first.elements.as_ptr();
        // An attempt to write it that was given up may still hold it.
        let held = first.elements.clone();
        writer.write(Work::Copied(first)).unwrap();
        let second = copied(0);
        assert_ne!(second.elements.as_ptr(), memory);
        let memory = second.elements.as_ptr();
        writer.write(Work::Copied(second)).unwrap();
        assert_eq!(copied(1).elements.as_ptr(), memory);
        drop(held);
    }

    fn shard(generation: u64) -> Task {
        let tag = Tag { generation: Generation(generation), revision: 0 };
        Task::Shard((CheckpointId { step: Step(3), tag }, 0, 1), Readable::kept(Arc::default()))
    }

    fn generations(works: &Receiver<Work>) -> Vec<Option<u64>> {
        works.try_iter().map(|work| work.checkpoint().map(|checkpoint| checkpoint.tag.generation.0)).collect()
    }

    /// Lanes without threads, and what waits in each.
    fn lanes() -> (CheckpointWriter, Receiver<Reading>, [Receiver<Work>; 2]) {
        let ((copier, of_copier), (behind, of_behind), (needed, of_needed)) = (Lane::new(), Lane::new(), Lane::new());
        let (memory, backlog) = (CopyMemory::default(), VecDeque::new());
        (CheckpointWriter { copier, memory, behind, needed, backlog }, of_copier, [of_behind, of_needed])
    }

    #[test]
    fn a_full_queue_keeps_nobody_waiting_and_loses_nothing_that_counts() {
        let (mut writer, copier, [_behind, needed]) = lanes();
        let taken: Vec<bool> = (1..=4).map(|of| writer.offer(shard(of))).collect();
        assert_eq!(taken, [true, true, false, false], "of what is behind the training the last are left out");
        assert_eq!(copier.try_iter().count(), 2, "and not copied");
        let mut manifest = || writer.offer(Task::Manifest(CHECKPOINT, Vec::new()));
        assert_eq!([manifest(), manifest(), manifest()], [true, true, false], "two find room beside two shards");
        (0..5).for_each(|_| writer.put(shard(3)));
        writer.put(shard(4));
        writer.put(Task::Model(Vec::new(), Digest([0; 32])));
        assert_eq!(writer.backlog.len(), 2, "what counts no more made room");
        assert_eq!(generations(&needed), [Some(3); TASKS_MAX]);
        writer.done();
        assert_eq!(generations(&needed), [], "it is not done with any");
        (0..TASKS_MAX).for_each(|_| writer.needed.under_way.done());
        writer.done();
        assert_eq!(generations(&needed), [Some(4), None]);
    }

    /// An upload behind the training may take minutes, and gives way to whatever else the machine does.
    #[test]
    fn what_the_job_stands_still_for_waits_for_nothing_behind_the_training() {
        let (mut writer, _copier, [_behind, needed]) = lanes();
        assert!((0..2).all(|_| writer.offer(shard(3))));
        writer.put(shard(3));
        assert_eq!(needed.try_iter().count(), 1);
    }

    /// The next update would wait for both.
    #[test]
    fn replicas_are_compared_while_none_is_copied() {
        let (mut writer, copier, _others) = lanes();
        let mut compares = || writer.compare(CHECKPOINT, Readable::kept(Arc::new(vec![1.5])), Duration::ZERO);
        assert_eq!([compares(), compares()], [true, false]);
        assert!(writer.offer(shard(2)), "a checkpoint waits for it");
        assert_eq!(copier.try_iter().count(), 2);
        (0..2).for_each(|_| writer.copier.under_way.done());
        assert!(writer.is_free(), "an upload is no reason not to");
    }

    /// The trainer may be waiting for the next replica to be read, and then reads no inbox: who reads replicas waits for nobody.
    #[test]
    fn who_copies_says_nothing_to_the_trainer_itself() {
        let ((behind, works), replica) = (Lane::new(), || Readable::kept(Arc::new(vec![1.5])));
        let copier = Copier { writer: behind, memory: CopyMemory::default() }.start().unwrap();
        let compare = || Reading::Checksum { at: CHECKPOINT, replica: replica(), read: Duration::ZERO };
        // Nobody takes anything of what it makes.
        (0..=TASKS_MAX).for_each(|_| copier.tasks.send(compare()).unwrap());
        copier.tasks.send(Reading::Shard((CHECKPOINT, 0, 2), replica())).unwrap();
        drop(copier);
        let said: Vec<Work> = works.iter().collect();
        let checksum = |work: &Work| match work {
            Work::Say(event) => match **event {
                Event::Checksum { at: CHECKPOINT, checksum, .. } => Some(checksum.0),
                _ => None,
            },
            _ => None,
        };
        assert_eq!(said.iter().filter_map(checksum).collect::<Vec<_>>(), [Checksum::of(&[1.5]); 2]);
        assert!(matches!(said[2], Work::Copied(_)));
    }
}
