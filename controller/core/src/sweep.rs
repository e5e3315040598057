//! Which objects of a job nothing counts and nothing ever will: what a listing of the store may be swept of. Pure.
//!
//! Said so that it stays true whatever is decided later, even by another controller while this one slept: a job that has ended never
//! changes, and a checkpoint whose step lies before one that counts is never accepted any more. Objects of jobs that are not
//! remembered, and keys that are made nowhere here, are somebody else's. What a job wrote that trained another one's stretch once more is of use
//! for a day, in which it can be compared. What executors said goes by its age alone. What is uploaded for jobs
//! to come goes by its age too, but never while a job that is remembered names it: that may be resumed, or submitted again. Next: `controller/server/src/sweep.rs`.

use crate::limits::{LOG_KEPT_MS, ORPHAN_AGE_MS, UPLOAD_KEPT_MS};
use crate::state::{Job, JobPhase, State};
use events_schema::initial::InitialSource;
use events_schema::job::{JobSpec, ModelSpec};
use events_schema::{JobId, Step, TimeMs};
use std::collections::BTreeSet;
use storage_keys::{CheckpointName, ObjectOfJob, Upload};

/// What is rubbish among the objects of one job.
#[derive(Debug)]
pub struct Orphans<'a> {
    id: &'a JobId,
    job: &'a Job,
    counted: BTreeSet<&'a str>,
    retired: BTreeSet<&'a str>,
    /// Step of the newest checkpoint that counts.
    newest: Option<Step>,
    now: TimeMs,
}

impl<'a> Orphans<'a> {
    /// Of a job that is remembered, at a time.
    #[must_use]
    pub fn of(state: &'a State, id: &'a JobId, now: TimeMs) -> Option<Self> {
        let job = state.job(id)?;
        let retired = state.retired.iter().filter(|(_, retired)| retired.job == *id);
        Some(Self {
            id,
            job,
            counted: job.checkpoints.iter().map(|checkpoint| checkpoint.manifest_key.as_str()).collect(),
            retired: retired.map(|(_, retired)| retired.manifest_key.as_str()).collect(),
            newest: job.last_checkpoint().map(|checkpoint| checkpoint.step),
            now,
        })
    }

    /// Whether the object of this key, complete since then by the store's clock, may be deleted.
    #[must_use]
    pub fn has(&self, key: &str, written_at: TimeMs) -> bool {
        let old = self.now.since_ms(written_at) >= ORPHAN_AGE_MS;
        match ObjectOfJob::parse(key) {
            None => false,
            Some(ObjectOfJob::Model(job)) => {
                // It is written before the end of its job is said.
                let result = !self.job.phase.is_terminal() || matches!(self.job.phase, JobPhase::Finished { .. });
                job == *self.id && (!result || self.has_served()) && old
            }
            // A piece that still grows was written just now.
            Some(ObjectOfJob::Log(executor, _)) => {
                executor.job == *self.id && self.now.since_ms(written_at) >= LOG_KEPT_MS
            }
            Some(ObjectOfJob::Manifest(name) | ObjectOfJob::Shard(name, _)) => {
                let manifest = name.manifest();
                let retired = self.retired.contains(manifest.as_str());
                let counts = self.counted.contains(manifest.as_str()) && !self.has_served();
                name.job == *self.id && !counts && (retired || (old && self.is_past(&name)))
            }
        }
    }

    /// Whether it ended and trained only to be compared: the digests that it came to stand in the log.
    fn has_served(&self) -> bool {
        self.job.spec.retrains.is_some() && self.job.phase.is_terminal()
    }

    /// Whether a checkpoint that does not count never will.
    fn is_past(&self, name: &CheckpointName) -> bool {
        self.job.phase.is_terminal() || self.newest.is_some_and(|newest| name.step < newest)
    }
}

/// What is rubbish among the uploads.
#[derive(Debug)]
pub struct UnnamedUploads {
    named: BTreeSet<Upload>,
    now: TimeMs,
}

impl UnnamedUploads {
    /// Of all jobs that are remembered, at a time.
    #[must_use]
    pub fn of(state: &State, now: TimeMs) -> Self {
        Self { named: state.jobs().flat_map(|(_, job)| uploads_of(&job.spec)).collect(), now }
    }

    /// What jobs name, so that nobody else who shares the store deletes it.
    pub fn named(&self) -> impl Iterator<Item = Upload> {
        self.named.iter().copied()
    }

    /// Whether an upload that somebody last wanted then, by the store's clock, may be deleted.
    #[must_use]
    pub fn has(&self, upload: &Upload, wanted_at: TimeMs) -> bool {
        !self.named.contains(upload) && self.now.since_ms(wanted_at) >= UPLOAD_KEPT_MS
    }
}

/// What a job's processes read that was uploaded for it.
fn uploads_of(spec: &JobSpec) -> Vec<Upload> {
    match &spec.model {
        ModelSpec::Torch(torch) => {
            let tensors = torch.initial.as_ref().and_then(|initial| match &initial.source {
                InitialSource::Upload(content) => Some(Upload::Tensors(*content)),
                InitialSource::Job(_) | InitialSource::Path(_) => None,
            });
            [Some(Upload::Code(torch.code)), tensors].into_iter().flatten().collect()
        }
        ModelSpec::Command(command) => command.code.map(Upload::Code).into_iter().collect(),
        ModelSpec::Mlp { .. } | ModelSpec::Cnn { .. } | ModelSpec::Gpt { .. } | ModelSpec::Synthetic { .. } => {
            Vec::new()
        }
    }
}
