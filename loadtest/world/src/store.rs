//! The object store: checkpoints, models and data, slow or away for a while, or refusing everybody; some objects are damaged, and listings may be
//! old. Says what becomes of a write or read when its time is over; never loses what it took.
//!
//! How a request is tried again, and what becomes of who gets no answer, is of the executor's shell (`workers/executor/src/store_wait.rs`) and is
//! written here once more.

use crate::numbers::{Element, REPLICA, digest};
use crate::time::At;
use crate::world::{Body, Event, Input, Pid, World};
use controller_core::Orphans;
use events_schema::control::{FromExecutor, STORE_STATUS};
use events_schema::fact::Entry;
use events_schema::report::Report;
use events_schema::{Digest, Generation, JobId, Rank, Step, TimeMs, WriterToken};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use storage_keys::{CheckpointName, ObjectOfJob};
use workers_agent_core::ProcessEnd;
use workers_member::{Done, In, Saved, Task, Written};
use workers_session::{CheckpointId, PartDigests, ShardWritten};

/// Time of any request, and between two attempts while the store is away.
const REQUEST_US: u64 = 15_000;
const AGAIN_US: u64 = 2_000_000;
/// An executor's storage layer gives a request up after so long. What is written is left to the machine then, and what is read is asked for again.
const DEADLINE_MS: u64 = 120_000;
/// Steps whose data one object holds, for one rank.
const STEPS_PER_BLOCK: u64 = 8;
/// Status of an executor that gave the store up, before that was told apart from a failure of its program.
const STATUS_GIVEN_UP: i32 = 5;
/// Controllers sweep the store so often: in production every few hours.
const SWEEP_MS: u64 = 7_000;
/// How old listings are that come late.
const LATE_MS: u64 = 20_000;

/// A replica as somebody held it when it began to write.
#[derive(Debug, Clone)]
pub struct Snapshot {
    pub job: JobId,
    pub step: Step,
    pub replica: Vec<Element>,
}

/// A request that goes on.
#[derive(Debug)]
pub struct Job {
    begun: At,
    what: What,
}

#[derive(Debug)]
enum What {
    Write(Task, Snapshot),
    /// The manifests that may be read, newest first; none: the job's beginning.
    Load(Generation, Vec<String>),
    /// What a gradient is computed from, which takes so many microseconds then; or never ends.
    Data(Option<u64>),
}

/// One object.
#[derive(Debug)]
enum Object {
    Shard(Snapshot),
    /// With the digest of what each shard holds.
    Manifest {
        step: Step,
        shards: Vec<(String, Digest)>,
    },
    Model(Digest),
}

/// All objects.
#[derive(Debug, Default)]
pub struct Store {
    objects: BTreeMap<String, Object>,
    /// When something was last written under a key, and when deleted.
    written: BTreeMap<String, At>,
    deleted: BTreeMap<String, At>,
    /// Jobs of which somebody damaged an object.
    damaged: BTreeSet<JobId>,
    pub lists_late_until: At,
    pub away_until: At,
    pub refuses_until: At,
    pub slow: u64,
    pub slow_until: At,
}

impl Store {
    /// The manifests of a job, newest first.
    fn manifests(&self, job: &JobId) -> Vec<String> {
        let manifests = self.objects.iter().filter(|(_, object)| matches!(object, Object::Manifest { .. }));
        let named = manifests.filter_map(|(key, _)| Some((CheckpointName::of_manifest(key)?, key)));
        let mut all: Vec<_> = named.filter(|(name, _)| name.job == *job).collect();
        all.sort_by_key(|(name, _)| std::cmp::Reverse((name.step, name.generation)));
        all.into_iter().map(|(_, key)| key.clone()).collect()
    }

    /// The replica that a manifest names, if all of it is there and sound; otherwise what is wrong.
    fn read(&self, key: &str) -> Result<(Step, Vec<Element>), &'static str> {
        let Some(Object::Manifest { step, shards }) = self.objects.get(key) else { return Err("an object is gone") };
        let sound = |(key, written): &(String, Digest)| match self.objects.get(key) {
            Some(Object::Shard(snapshot)) if digest(&snapshot.replica) == *written => Ok(snapshot),
            Some(Object::Shard(_)) => Err("its bytes are not those that were written"),
            _ => Err("an object is gone"),
        };
        let shards: Result<Vec<&Snapshot>, &'static str> = shards.iter().map(sound).collect();
        let first = shards?.first().map(|snapshot| (*step, snapshot.replica.clone()));
        first.ok_or("it has no shards")
    }

    /// Whether nobody gets what he asks for.
    #[must_use]
    pub fn is_closed(&self, now: At) -> bool {
        now < self.away_until || now < self.refuses_until
    }

    /// The replicas that the shards of a manifest are of, with its step; of those that are as they were written.
    #[must_use]
    pub fn shards(&self, key: &str) -> Vec<(Step, Vec<Element>)> {
        let Some(Object::Manifest { step, shards }) = self.objects.get(key) else { return Vec::new() };
        let held = shards.iter().filter_map(|(shard, written)| match self.objects.get(shard) {
            Some(Object::Shard(snapshot)) if digest(&snapshot.replica) == *written => {
                Some((*step, snapshot.replica.clone()))
            }
            _ => None,
        });
        held.collect()
    }

    /// Damages the newest checkpoint of a job: a shard is gone, or some of its bytes are others. Whether there was one.
    pub fn damage(&mut self, job: &JobId, bytes: bool) -> bool {
        let Some(key) = self.manifests(job).into_iter().next() else { return false };
        let Some(Object::Manifest { shards, .. }) = self.objects.get(&key) else { return false };
        let shard = shards.first().map(|(key, _)| key.clone());
        self.damaged.insert(job.clone());
        let Some(shard) = shard else { return false };
        match self.objects.get_mut(&shard) {
            Some(Object::Shard(snapshot)) if bytes => {
                snapshot.replica.iter_mut().take(1).for_each(|element| *element ^= 1);
                true
            }
            _ => self.objects.remove(&shard).is_some(),
        }
    }

    fn insert(&mut self, now: At, key: String, object: Object) {
        self.written.insert(key.clone(), now);
        self.objects.insert(key, object);
    }

    fn remove(&mut self, now: At, key: &str) -> Option<Object> {
        let object = self.objects.remove(key)?;
        self.deleted.insert(key.to_owned(), now);
        Some(object)
    }

    /// Every key as a listing shows it: perhaps not what was written lately, perhaps still what was deleted.
    fn list(&self, now: At) -> Vec<String> {
        if now >= self.lists_late_until {
            return self.objects.keys().cloned().collect();
        }
        let is_old = |at: Option<&At>| at.is_none_or(|at| now.since_ms(*at) > LATE_MS);
        let shown = self.objects.keys().filter(|key| is_old(self.written.get(*key)));
        shown.chain(self.deleted.keys().filter(|key| !is_old(self.deleted.get(*key)))).cloned().collect()
    }

    /// Whether everything of a checkpoint is there, or somebody damaged the job's objects.
    #[must_use]
    pub fn is_whole(&self, job: &JobId, manifest: &str) -> bool {
        self.damaged.contains(job) || self.read(manifest).is_ok()
    }

    /// Whether somebody damaged an object of a job.
    #[must_use]
    pub fn is_damaged(&self, job: &JobId) -> bool {
        self.damaged.contains(job)
    }

    /// The digest of a job's model.
    #[must_use]
    pub fn model(&self, job: &JobId) -> Option<Digest> {
        match self.objects.get(&storage_keys::model(job)) {
            Some(Object::Model(digest)) => Some(*digest),
            _ => None,
        }
    }

    /// Whether a key is in use.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.objects.contains_key(key)
    }
}

/// What the executors of this world name their objects by; whose token is whose is the controller's matter.
const WRITER: WriterToken = WriterToken([7; 16]);

fn name(job: &JobId, checkpoint: CheckpointId) -> CheckpointName {
    CheckpointName {
        job: job.clone(),
        generation: checkpoint.tag.generation,
        step: checkpoint.step,
        writer: Some(WRITER),
    }
}

impl World {
    fn store_us(&self, elements: usize) -> u64 {
        let times = if self.now() < self.store.slow_until { self.store.slow.max(1) } else { 1 };
        let setup = &self.schedule.setup;
        REQUEST_US + elements as u64 * setup.element_bytes * 1_000_000 * times / setup.store_bytes_per_s
    }

    /// An executor writes something.
    pub fn write(&mut self, pid: Pid, task: Task) {
        let Some(snapshot) = self.replica_of(pid) else { return };
        let elements = match &task {
            Task::Shard { count, .. } => REPLICA / usize::from(*count).max(1),
            Task::Manifest(..) => 0,
            Task::Model => REPLICA / 3,
        };
        if let Task::Shard { checkpoint, .. } = &task
            && checkpoint.step != snapshot.step
        {
            self.found("a shard is of its checkpoint's step", format!("{pid:?} at {}: {checkpoint:?}", snapshot.step));
        }
        let job = Job { begun: self.now(), what: What::Write(task, snapshot) };
        self.send_in(self.store_us(elements), pid, Input::Stored(job));
    }

    /// An executor makes or reads its replica.
    pub fn load(&mut self, pid: Pid, generation: Generation, entry: &Entry) {
        let Some(job) = self.executor(pid).map(|executor| &executor.id.job) else { return };
        let (keys, us) = match entry {
            Entry::Checkpoint { manifest_key, earlier } => {
                let named = std::iter::once(manifest_key).chain(earlier).cloned().collect();
                (self.mutants.restored(named, || self.store.manifests(job)), self.store_us(REPLICA))
            }
            _ => (Vec::new(), 1_000),
        };
        self.wait_for_store(pid, !keys.is_empty());
        self.send_in(us, pid, Input::Stored(Job { begun: self.now(), what: What::Load(generation, keys) }));
    }

    /// An executor computes a gradient when it has what that is computed from; without a time that never ends.
    pub fn read_and_compute(&mut self, pid: Pid, step: Step, rank: Rank, us: Option<u64>) {
        let block = step.0 / STEPS_PER_BLOCK;
        let job = Job { begun: self.now(), what: What::Data(us) };
        let Some(executor) = self.executor_mut(pid) else { return };
        if executor.blocks.insert(rank, block) == Some(block) {
            return self.on_stored(pid, job);
        }
        self.wait_for_store(pid, true);
        self.send_in(REQUEST_US, pid, Input::Stored(job));
    }

    /// Says of an executor that it cannot go on without the store, or that it can.
    fn wait_for_store(&mut self, pid: Pid, waits: bool) {
        let now = self.now();
        if let Some(executor) = self.executor_mut(pid) {
            executor.store_since = waits.then_some(now);
        }
    }

    /// The time of a request is over.
    pub fn on_stored(&mut self, pid: Pid, job: Job) {
        let waits = self.executor(pid).is_some_and(|executor| executor.store_since.is_some());
        let needs_store = waits || matches!(&job.what, What::Write(..));
        if needs_store && self.store.is_closed(self.now()) {
            return self.try_again(pid, job);
        }
        match job.what {
            What::Write(task, snapshot) => {
                let written = self.put(task, snapshot);
                self.feed_member(pid, In::Written(written));
            }
            What::Load(generation, keys) => {
                self.wait_for_store(pid, false);
                let (step, replica) = self.restore(pid, &keys);
                self.loaded(pid, generation, step, replica);
            }
            What::Data(us) => {
                self.wait_for_store(pid, false);
                let data_wait = Duration::from_micros(self.now().0.saturating_sub(job.begun.0));
                let done = In::Done(Done::Gradient { weight: 1.0, loss: 1.0, data_wait, took: None });
                us.into_iter().for_each(|us| self.send_in(us, pid, Input::Member(done.clone())));
            }
        }
    }

    /// Nobody got an answer, or a good one: it is asked for again, for as long as the executor is patient. A write that is refused is not.
    fn try_again(&mut self, pid: Pid, job: Job) {
        let Some(patience_ms) = self.executor(pid).map(|executor| executor.store_patience_ms()) else { return };
        let waited_ms = self.now().since_ms(job.begun);
        let (gives_up, refused) = (self.mutants.gives_store_up(), self.now() < self.store.refuses_until);
        match job.what {
            What::Write(task, _) if refused || waited_ms >= DEADLINE_MS => {
                self.feed_member(pid, In::NotWritten { checkpoint: task.checkpoint(), later: true });
            }
            What::Load(..) | What::Data(_) if gives_up && (refused || waited_ms >= DEADLINE_MS) => {
                self.end_for_store(pid, STATUS_GIVEN_UP);
            }
            What::Load(..) | What::Data(_) if waited_ms >= patience_ms => self.end_for_store(pid, STORE_STATUS),
            _ => self.send_in(AGAIN_US, pid, Input::Stored(job)),
        }
    }

    /// An executor ends because of the store.
    pub fn end_for_store(&mut self, pid: Pid, status: i32) {
        self.note_store_exit(pid);
        self.end_executor(pid, ProcessEnd::Exited(status));
    }

    fn put(&mut self, task: Task, snapshot: Snapshot) -> Written {
        let replica_digest = digest(&snapshot.replica);
        match task {
            Task::Shard { checkpoint, index, count } => {
                let key = name(&snapshot.job, checkpoint).shard(u32::from(index));
                // Of its bytes, and of what the manifest says; what members compare is another matter.
                let (digest, part_digests) = (replica_digest, PartDigests(vec![replica_digest]));
                let checksum = self.mutants.checksum(&snapshot.replica);
                self.store.insert(self.bus.now(), key, Object::Shard(snapshot));
                let bytes = self.schedule.setup.element_bytes * (REPLICA / usize::from(count).max(1)) as u64;
                let (first_element, elements) = (0, (REPLICA / usize::from(count).max(1)) as u64);
                let writer = Some(WRITER);
                Written::Shard(ShardWritten {
                    checkpoint,
                    index,
                    count,
                    first_element,
                    elements,
                    bytes,
                    digest,
                    checksum,
                    writer,
                    part_digests,
                })
            }
            Task::Manifest(checkpoint, shards) => {
                let (step, name) = (checkpoint.step, name(&snapshot.job, checkpoint));
                let replica_digest =
                    shards.iter().flat_map(|shard| &shard.part_digests.0).next().map_or(Digest([0; 32]), |of| *of);
                let bytes = shards.iter().map(|shard| shard.bytes).sum();
                let shards =
                    shards.into_iter().map(|shard| (name.shard(u32::from(shard.index)), shard.digest)).collect();
                self.store.insert(self.bus.now(), name.manifest(), Object::Manifest { step, shards });
                Written::Manifest(checkpoint, Saved { writer: WRITER, replica_digest, bytes })
            }
            Task::Model => {
                let key = storage_keys::model(&snapshot.job);
                self.store.insert(self.bus.now(), key, Object::Model(replica_digest));
                Written::Model(replica_digest)
            }
        }
    }

    /// The replica of the first sound one of these checkpoints; if there is none, the job's beginning. What is damaged is reported.
    fn restore(&mut self, pid: Pid, keys: &[String]) -> (Step, Vec<Element>) {
        for key in keys {
            let reason = match self.store.read(key) {
                Ok(found) => {
                    self.check_restored(key);
                    return found;
                }
                Err(reason) => reason.to_owned(),
            };
            if let Some(CheckpointName { job, generation, step, .. }) = CheckpointName::of_manifest(key) {
                let object = key.clone();
                let report = Report::CheckpointDamaged { job, generation, step, object, reason };
                self.say_to_agent(pid, FromExecutor::Report(report));
            }
        }
        (Step(0), crate::numbers::initial())
    }

    /// The controller has a checkpoint deleted that no longer counts.
    pub fn delete(&mut self, pid: Pid, number: u64, name: &CheckpointName) {
        let (now, manifest_key) = (self.now(), name.manifest());
        self.check_deleted(name);
        let away = self.store.is_closed(now);
        if !away && let Some(Object::Manifest { shards, .. }) = self.store.remove(now, &manifest_key) {
            for (shard, _) in shards {
                self.store.remove(now, &shard);
            }
        }
        let input =
            if away { controller_cell::In::DeleteFailed { number } } else { controller_cell::In::Deleted { number } };
        self.send_in(REQUEST_US, pid, Input::Cell(input));
    }

    fn check_deleted(&mut self, name: &CheckpointName) {
        let manifest_key = name.manifest();
        let counts = self.log.truth.job(&name.job).is_some_and(|job| {
            !job.phase.is_terminal() && job.checkpoints.iter().any(|known| known.manifest_key == manifest_key)
        });
        if counts {
            self.found("nothing is deleted that counts", manifest_key);
        }
    }

    /// The store is swept again a while later.
    pub fn next_sweep(&mut self) {
        let every_ms = self.schedule.setup.sweep_ms.unwrap_or(SWEEP_MS);
        self.bus.put(self.now().plus_ms(every_ms), Event::Sweep);
    }

    /// Every controller that thinks it leads looks through a listing for what nothing counts, also one that was replaced meanwhile. The age
    /// that spares what is on its way is taken as passed: it has to be safe by what is decided alone. A damaged checkpoint that counts no
    /// longer makes earlier ones count again that only their age would have spared, so jobs with one are left out.
    pub fn sweep(&mut self) {
        let now = self.now();
        self.next_sweep();
        if self.store.is_closed(now) {
            return;
        }
        let long_after = TimeMs(u64::MAX);
        let listed = self.store.list(now);
        for process in self.processes.values().filter(|process| !process.stopped) {
            let Body::Cell(cell) = &process.body else { continue };
            let Some(committed) = cell.machine.committed() else { continue };
            let spared = &self.store.damaged;
            let jobs = self.people.jobs.iter().filter(|job| !spared.contains(*job));
            let orphans: Vec<Orphans<'_>> =
                jobs.filter_map(|job| Orphans::of(&committed.state, job, long_after)).collect();
            let is_orphan = |key: &&String| orphans.iter().any(|orphans| orphans.has(key, TimeMs(0)));
            let swept: Vec<String> = listed.iter().filter(is_orphan).cloned().collect();
            if !swept.is_empty() {
                self.bus.put(now.plus_us(REQUEST_US), Event::SweepUp(swept));
            }
        }
    }

    /// What a sweep found is deleted.
    pub fn sweep_up(&mut self, keys: Vec<String>) {
        let now = self.now();
        if self.store.is_closed(now) {
            return;
        }
        for key in keys {
            if let Some(ObjectOfJob::Manifest(name) | ObjectOfJob::Shard(name, _)) = ObjectOfJob::parse(&key) {
                self.check_deleted(&name);
            }
            self.store.remove(now, &key);
        }
    }
}
