//! The object store: checkpoints and models, slow or away for a while, some of them damaged. Says what becomes of a write or read when its
//! time is over; never loses what it took.

use crate::numbers::{Element, REPLICA, digest};
use crate::time::At;
use crate::world::{Input, Pid, World};
use events_schema::control::FromExecutor;
use events_schema::fact::Entry;
use events_schema::report::Report;
use events_schema::{Digest, Generation, JobId, Step, WriterToken};
use std::collections::BTreeMap;
use storage_keys::CheckpointName;
use workers_agent_core::ProcessEnd;
use workers_member::{In, Saved, Task, Written};
use workers_session::{CheckpointId, ShardWritten};

/// Time of any request, and between two attempts while the store is away.
const REQUEST_US: u64 = 15_000;
const AGAIN_US: u64 = 2_000_000;
/// An executor's storage layer gives a request up after so long.
const DEADLINE_MS: u64 = 120_000;

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
}

/// One object.
#[derive(Debug)]
enum Object {
    Shard(Snapshot),
    Manifest { step: Step, shards: Vec<String> },
    Model,
}

/// All objects.
#[derive(Debug, Default)]
pub struct Store {
    objects: BTreeMap<String, Object>,
    pub away_until: At,
    pub slow: u64,
    pub slow_until: At,
}

impl Store {
    /// The newest manifest of a job.
    fn newest_manifest(&self, job: &JobId) -> Option<&String> {
        let manifests = self.objects.iter().filter(|(_, object)| matches!(object, Object::Manifest { .. }));
        let named = manifests.filter_map(|(key, _)| Some((CheckpointName::of_manifest(key)?, key)));
        named
            .filter(|(name, _)| name.job == *job)
            .max_by_key(|(name, _)| (name.step, name.generation))
            .map(|(_, key)| key)
    }

    /// The replica that a manifest names, if all of it is there and sound.
    fn read(&self, key: &str) -> Option<(Step, Vec<Element>)> {
        let Object::Manifest { step, shards } = self.objects.get(key)? else { return None };
        let whole = |key: &String| match self.objects.get(key) {
            Some(Object::Shard(snapshot)) => Some(snapshot),
            _ => None,
        };
        let shards: Option<Vec<&Snapshot>> = shards.iter().map(whole).collect();
        shards?.first().map(|snapshot| (*step, snapshot.replica.clone()))
    }

    /// Damages the newest checkpoint of a job. Whether there was one.
    pub fn damage(&mut self, job: &JobId) -> bool {
        let Some(key) = self.newest_manifest(job).cloned() else { return false };
        let Some(Object::Manifest { shards, .. }) = self.objects.get(&key) else { return false };
        let shard = shards.first().cloned();
        shard.is_some_and(|shard| self.objects.remove(&shard).is_some())
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
        if self.executor(pid).is_none() {
            return;
        }
        let (keys, us) = match entry {
            Entry::Checkpoint { manifest_key, earlier } => {
                (std::iter::once(manifest_key).chain(earlier).cloned().collect(), self.store_us(REPLICA))
            }
            _ => (Vec::new(), 1_000),
        };
        self.send_in(us, pid, Input::Stored(Job { begun: self.now(), what: What::Load(generation, keys) }));
    }

    /// The time of a request is over.
    pub fn on_stored(&mut self, pid: Pid, job: Job) {
        let needs_store = !matches!(&job.what, What::Load(_, keys) if keys.is_empty());
        if needs_store && self.now() < self.store.away_until {
            return self.try_again(pid, job);
        }
        match job.what {
            What::Write(task, snapshot) => {
                let written = self.put(task, snapshot);
                self.feed_member(pid, In::Written(written));
            }
            What::Load(generation, keys) => {
                let (step, replica) = self.restore(pid, &keys);
                self.loaded(pid, generation, step, replica);
            }
        }
    }

    fn try_again(&mut self, pid: Pid, job: Job) {
        if self.now().since_ms(job.begun) < DEADLINE_MS {
            return self.send_in(AGAIN_US, pid, Input::Stored(job));
        }
        match job.what {
            What::Write(task, _) => {
                self.feed_member(pid, In::NotWritten { checkpoint: task.checkpoint(), later: true })
            }
            What::Load(..) => self.end_executor(pid, ProcessEnd::Exited(crate::executor::STATUS_NOT_RESTORED)),
        }
    }

    fn put(&mut self, task: Task, snapshot: Snapshot) -> Written {
        let replica_digest = digest(&snapshot.replica);
        match task {
            Task::Shard { checkpoint, index, count } => {
                let key = name(&snapshot.job, checkpoint).shard(u32::from(index));
                self.store.objects.insert(key, Object::Shard(snapshot));
                let bytes = self.schedule.setup.element_bytes * (REPLICA / usize::from(count).max(1)) as u64;
                let (first_element, elements) = (0, (REPLICA / usize::from(count).max(1)) as u64);
                let digest = replica_digest;
                let shard =
                    ShardWritten { checkpoint, index, count, first_element, elements, bytes, digest, replica_digest };
                Written::Shard(shard)
            }
            Task::Manifest(checkpoint, shards) => {
                let (step, name) = (checkpoint.step, name(&snapshot.job, checkpoint));
                let replica_digest = shards.first().map_or(Digest([0; 32]), |shard| shard.replica_digest);
                let bytes = shards.iter().map(|shard| shard.bytes).sum();
                let shards = shards.into_iter().map(|shard| name.shard(u32::from(shard.index))).collect();
                self.store.objects.insert(name.manifest(), Object::Manifest { step, shards });
                Written::Manifest(checkpoint, Saved { writer: WRITER, replica_digest, bytes })
            }
            Task::Model => {
                self.store.objects.insert(storage_keys::model(&snapshot.job), Object::Model);
                Written::Model(replica_digest)
            }
        }
    }

    /// The replica of the first sound one of these checkpoints; if there is none, the job's beginning. What is damaged is reported.
    fn restore(&mut self, pid: Pid, keys: &[String]) -> (Step, Vec<Element>) {
        for key in keys {
            if let Some(found) = self.store.read(key) {
                return found;
            }
            if let Some(CheckpointName { job, generation, step, .. }) = CheckpointName::of_manifest(key) {
                let (object, reason) = (key.clone(), "an object is gone".to_owned());
                let report = Report::CheckpointDamaged { job, generation, step, object, reason };
                self.say_to_agent(pid, FromExecutor::Report(report));
            }
        }
        (Step(0), crate::numbers::initial())
    }

    /// The controller has a checkpoint deleted that no longer counts.
    pub fn delete(&mut self, pid: Pid, number: u64, name: &CheckpointName) {
        let manifest_key = &name.manifest();
        let counts = self.log.truth.jobs().any(|(_, job)| {
            !job.phase.is_terminal()
                && job.checkpoints.iter().any(|checkpoint| checkpoint.manifest_key == *manifest_key)
        });
        if counts {
            self.found("nothing is deleted that counts", manifest_key.to_owned());
        }
        let away = self.now() < self.store.away_until;
        if !away && let Some(Object::Manifest { shards, .. }) = self.store.objects.remove(manifest_key) {
            for shard in shards {
                self.store.objects.remove(&shard);
            }
        }
        let input =
            if away { controller_cell::In::DeleteFailed { number } } else { controller_cell::In::Deleted { number } };
        self.send_in(REQUEST_US, pid, Input::Cell(input));
    }
}
