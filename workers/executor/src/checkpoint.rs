//! Writes shards, manifests and the final model behind the training, on a thread of its own with a bounded queue.
//!
//! The trainer hands over a reference to its replica, not a copy. This thread copies its shard out, hashes the whole and lets go; if the
//! trainer's next update comes sooner than that, the update works on a copy. So training pauses for one memory copy at most, and
//! usually not at all.

use crate::inbox::{Event, Saved, WriteFailure};
use crate::program::Program;
use events_schema::{Digest, JobId, Step};
use object_store::ObjectStore;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use storage::checkpoint::{
    CheckpointWriteError, Manifest, RestoreError, ShardRange, ShardRecord, cut_shards, replica_digest, write_manifest,
    write_model, write_shard,
};
use workers_session::{CheckpointId, ShardWritten};

/// Tasks waiting: a shard, and a manifest of the one before.
const TASKS_MAX: usize = 2;
/// Version of what is in a shard and its manifest.
const FORMAT_VERSION: u32 = 1;

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
    },
    /// What makes shards a checkpoint.
    Manifest(CheckpointId, Vec<ShardWritten>),
    /// The final model as a file, and the digest of its parameters.
    Model(Vec<u8>, Digest),
}

impl Task {
    /// Of which checkpoint; none for the final model.
    fn checkpoint(&self) -> Option<CheckpointId> {
        match self {
            Self::Shard { checkpoint, .. } | Self::Manifest(checkpoint, _) => Some(*checkpoint),
            Self::Model(..) => None,
        }
    }
}

/// The writing thread.
pub struct CheckpointWriter {
    tasks: SyncSender<Task>,
    /// What may not be left out and found no room. At most a shard, a manifest and the model: of other checkpoints nothing is kept.
    backlog: VecDeque<Task>,
}

struct Writer {
    runtime: Arc<tokio::runtime::Runtime>,
    store: Arc<dyn ObjectStore>,
    job: JobId,
    spec_digest: Digest,
    class: Digest,
    replica_len: u64,
    inbox: SyncSender<Event>,
}

impl CheckpointWriter {
    /// Starts the thread for a job.
    pub fn start(program: &Program, class: Digest, inbox: SyncSender<Event>) -> io::Result<Self> {
        let (tasks, waiting) = sync_channel(TASKS_MAX);
        let writer = Writer {
            runtime: Arc::clone(&program.runtime),
            store: Arc::clone(&program.store),
            job: program.job.clone(),
            spec_digest: program.spec.digest(),
            class,
            replica_len: program.update.replica_len() as u64,
            inbox,
        };
        std::thread::Builder::new().name("ebb-checkpoint".to_owned()).spawn(move || writer.run(&waiting))?;
        Ok(Self { tasks, backlog: VecDeque::new() })
    }

    /// Queues a task unless the store is too slow for the interval. Then this checkpoint stays incomplete, and the next one may do better.
    pub fn offer(&self, task: Task) -> bool {
        self.backlog.is_empty() && !matches!(self.tasks.try_send(task), Err(TrySendError::Full(_)))
    }

    /// Queues a task that may not be left out: of a job that stands still. Never waits, because the thread may be waiting for the trainer
    /// to read its inbox; what finds no room goes on with [`CheckpointWriter::flush`].
    pub fn put(&mut self, task: Task) {
        if let Some(checkpoint) = task.checkpoint() {
            // The job stood still before, in a membership that is over: what it had to write then no longer counts.
            self.backlog.retain(|waiting| waiting.checkpoint().is_none_or(|other| other == checkpoint));
        }
        self.backlog.push_back(task);
        self.flush();
    }

    /// Queues what waits for room; called whenever the thread is done with a task.
    pub fn flush(&mut self) {
        while let Some(task) = self.backlog.pop_front() {
            if let Err(TrySendError::Full(task)) = self.tasks.try_send(task) {
                return self.backlog.push_front(task);
            }
        }
    }
}

impl Writer {
    fn run(&self, tasks: &Receiver<Task>) {
        while let Ok(task) = tasks.recv() {
            let checkpoint = task.checkpoint();
            let event =
                self.write(task).unwrap_or_else(|source| Event::NotWritten(WriteFailure { checkpoint, source }));
            if self.inbox.send(event).is_err() {
                return;
            }
        }
    }

    fn write(&self, task: Task) -> Result<Event, CheckpointWriteError> {
        match task {
            Task::Shard { checkpoint, index, count, replica } => self.write_shard(checkpoint, index, count, replica),
            Task::Manifest(checkpoint, shards) => self.write_manifest(checkpoint, &shards),
            Task::Model(file, digest) => {
                let key = self.runtime.block_on(write_model(&self.store, &self.job, file))?;
                Ok(Event::ModelWritten { key, digest })
            }
        }
    }

    fn write_shard(
        &self,
        checkpoint: CheckpointId,
        index: u16,
        count: u16,
        replica: Arc<Vec<f32>>,
    ) -> Result<Event, CheckpointWriteError> {
        let shards = cut_shards(replica.len() as u64, u32::from(count));
        let nothing = ShardRange { index: u32::from(index), first_element: 0, elements: 0 };
        let range = shards.get(usize::from(index)).copied().unwrap_or(nothing);
        let elements = range.of(&replica).map(<[f32]>::to_vec).unwrap_or_default();
        let digest = replica_digest(&replica);
        drop(replica);
        let CheckpointId { step, tag } = checkpoint;
        let record =
            self.runtime.block_on(write_shard(&self.store, &self.job, tag.generation, step, range, &elements))?;
        Ok(Event::ShardWritten(ShardWritten {
            checkpoint,
            index,
            count,
            key: record.key,
            first_element: record.first_element,
            elements: record.elements,
            bytes: record.bytes,
            digest: record.blake3,
            replica_digest: digest,
        }))
    }

    fn write_manifest(&self, checkpoint: CheckpointId, shards: &[ShardWritten]) -> Result<Event, CheckpointWriteError> {
        let record = |s: &ShardWritten| ShardRecord {
            key: s.key.clone(),
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
        };
        let manifest_key = self.runtime.block_on(write_manifest(&self.store, &manifest))?;
        Ok(Event::ManifestWritten(checkpoint, Saved { manifest_key, replica_digest, bytes: manifest.shard_bytes() }))
    }
}

/// Why a replica cannot be had from a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum RestoreProblem {
    /// The store failed for longer than its deadline: stop this executor.
    #[error("a checkpoint cannot be read")]
    Store(#[source] RestoreError),
    /// The checkpoint is of another job or class: the job is broken.
    #[error("checkpoint `{key}` is of another {what}: {found} instead of {expected}")]
    Other {
        /// Its manifest.
        key: String,
        /// What differs.
        what: &'static str,
        /// There.
        found: Digest,
        /// Here.
        expected: Digest,
    },
}

/// The replica of a checkpoint. If it is damaged, of the newest sound one before it; if there is none, the job's beginning. Members may
/// see damage differently: the round that follows takes the newest.
pub fn restore(program: &Program, class: Digest, manifest_key: &str) -> Result<(Vec<f32>, Step), RestoreProblem> {
    let mut key = manifest_key.to_owned();
    loop {
        match restore_one(program, class, &key) {
            Err(RestoreProblem::Store(error)) if error.is_damage() => {
                tracing::error!(%key, error = %error, "CHECKPOINT DAMAGED; the one before it is used");
                let stored = program.runtime.block_on(storage::checkpoint::list(&program.store, &program.job));
                let stored = stored.map_err(|fault| RestoreProblem::Store(RestoreError::Store(fault)))?;
                let before = stored.into_iter().map(|c| c.manifest_key).filter(|k| *k < key).max();
                let Some(before) = before else {
                    tracing::error!("no sound checkpoint is left; the job begins anew, to the same model");
                    return Ok((program.initial_replica(), Step(0)));
                };
                key = before;
            }
            other => return other,
        }
    }
}

fn restore_one(program: &Program, class: Digest, key: &str) -> Result<(Vec<f32>, Step), RestoreProblem> {
    let manifest = program
        .runtime
        .block_on(storage::checkpoint::read_manifest(&program.store, key))
        .map_err(RestoreProblem::Store)?;
    let differs =
        |what, found: Digest, expected: Digest| RestoreProblem::Other { key: key.to_owned(), what, found, expected };
    if manifest.spec_digest != program.spec.digest() {
        return Err(differs("job spec", manifest.spec_digest, program.spec.digest()));
    }
    if manifest.numeric_class != class {
        return Err(differs("numeric class", manifest.numeric_class, class));
    }
    let expected = program.update.replica_len() as u64;
    if manifest.replica_len != expected {
        // The spec is the same, so the model is: whatever wrote this length, it is no replica of it.
        let problem = format!("a replica of {} elements instead of {expected}", manifest.replica_len);
        return Err(RestoreProblem::Store(RestoreError::Corrupt { key: key.to_owned(), problem }));
    }
    let replica = program
        .runtime
        .block_on(storage::checkpoint::read_replica(&program.store, &manifest))
        .map_err(RestoreProblem::Store)?;
    Ok((replica, manifest.step))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use events_schema::Generation;
    use workers_session::Tag;

    fn shard(generation: u64) -> Task {
        let tag = Tag { generation: Generation(generation), revision: 0 };
        Task::Shard { checkpoint: CheckpointId { step: Step(3), tag }, index: 0, count: 1, replica: Arc::default() }
    }

    fn generation(task: &Task) -> Option<u64> {
        task.checkpoint().map(|checkpoint| checkpoint.tag.generation.0)
    }

    #[test]
    fn a_full_queue_keeps_nobody_waiting_and_loses_nothing_that_counts() {
        let (tasks, waiting) = sync_channel(TASKS_MAX);
        let mut writer = CheckpointWriter { tasks, backlog: VecDeque::new() };
        assert!((1..=2).all(|of| writer.offer(shard(of))));
        writer.put(shard(3));
        writer.put(shard(4));
        writer.put(Task::Model(Vec::new(), Digest([0; 32])));
        assert_eq!(writer.backlog.len(), 2, "what counts no more made room");
        assert_eq!(waiting.try_iter().map(|task| generation(&task)).collect::<Vec<_>>(), [Some(1), Some(2)]);
        assert!(!writer.offer(shard(5)), "nothing overtakes");
        writer.flush();
        assert_eq!(waiting.try_iter().map(|task| generation(&task)).collect::<Vec<_>>(), [Some(4), None]);
    }
}
