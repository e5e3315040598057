//! Reads the replica of a checkpoint that the controller accepted: the newest that the proposal names, and if that is damaged the
//! next; for a job that retrains a stretch, the checkpoint of another job that its spec names. Never looks for checkpoints by itself: what it was not told of may be half written, or nobody's.

use crate::program::{Program, ProgramError};
use events_schema::fact::RESTORE_CHECKPOINTS_MAX;
use events_schema::job::JobSpec;
use events_schema::report::Report;
use events_schema::retrains::Retrains;
use events_schema::{Digest, Step};
use shell::Chain;
use storage::checkpoint::{RestoreError, read_manifest, read_replica};
use storage::keys::CheckpointName;
use storage::retry::StoreFault;

/// Times a checkpoint is read before it is called damaged: the second one tells a store from a transfer.
const READS_MAX: u32 = 2;

/// Why a replica cannot be had from a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum RestoreProblem {
    /// The store failed for longer than its deadline: stop this executor.
    #[error("a checkpoint cannot be read")]
    Store(#[source] RestoreError),
    /// The model cannot be built anew, to begin with.
    #[error("the job cannot begin")]
    Build(#[source] ProgramError),
    /// The checkpoint is of another job or class: the job is broken.
    #[error("checkpoint `{key}` is of another {what}: {found} instead of {expected}")]
    Other {
        /// Its manifest.
        key: String,
        /// What differs.
        what: &'static str,
        /// The digest of what was read.
        found: Digest,
        /// The digest that the manifest names.
        expected: Digest,
    },
    /// The checkpoint of another job that this one begins with is gone, damaged or of another build: the job is broken, for nothing can be
    /// used in its place.
    #[error("`{key}`, which this job begins with, cannot be used: {reason}")]
    Origin {
        /// Its manifest.
        key: String,
        /// Why not.
        reason: String,
    },
    /// What is to be loaded has no name that this job's checkpoints have: the job is broken.
    #[error("`{key}` is no checkpoint of this job; submit the job again")]
    Foreign {
        /// As proposed.
        key: String,
    },
}

impl RestoreProblem {
    /// Whether it may be another answer of the store later.
    fn may_pass(&self) -> bool {
        self.store_fault().is_some_and(StoreFault::is_mendable)
    }

    /// The fault of the store that it is, if it is one.
    #[must_use]
    pub fn store_fault(&self) -> Option<&StoreFault> {
        match self {
            Self::Store(RestoreError::Store(fault)) => Some(fault),
            Self::Build(error) => error.store_fault(),
            Self::Store(_) | Self::Other { .. } | Self::Origin { .. } | Self::Foreign { .. } => None,
        }
    }

    /// Whether no executor could do better.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        match self {
            Self::Other { .. } | Self::Origin { .. } | Self::Foreign { .. } => true,
            Self::Build(error) => error.is_broken(),
            Self::Store(_) => false,
        }
    }
}

/// What came of a restore.
#[derive(Debug)]
pub struct Restored {
    /// What the controller has to know of the checkpoints that were tried.
    pub reports: Vec<Report>,
    /// The replica and its step. `None`: only the controller can say how it goes on, once it has the reports.
    pub end: Result<Option<(Vec<f32>, Step)>, RestoreProblem>,
}

impl Restored {
    /// The replica that the spec describes.
    #[must_use]
    pub fn beginning(program: &mut Program) -> Self {
        let initial = program.workload.initial_replica().map_err(RestoreProblem::Build);
        Self { reports: Vec::new(), end: initial.map(|replica| Some((replica, Step(0)))) }
    }
}

/// The replica of the first of these checkpoints that is sound; if there is none, the job's beginning. Members may see damage
/// differently: the round that follows takes the newest.
pub fn restore<'a>(program: &mut Program, class: Digest, manifest_keys: impl Iterator<Item = &'a String>) -> Restored {
    let mut reports = Vec::new();
    let mut tried = 0;
    for key in manifest_keys {
        tried += 1;
        let named = CheckpointName::of_manifest(key);
        let Some(name) = named.filter(|name| name.job == program.job || retrained(&program.spec, name).is_some())
        else {
            return Restored { reports, end: Err(RestoreProblem::Foreign { key: key.clone() }) };
        };
        match restore_one(program, class, &name) {
            Err(RestoreProblem::Store(error)) if name.job != program.job && error.object().is_some() => {
                let problem = RestoreProblem::Origin { key: key.clone(), reason: Chain(&error).to_string() };
                return Restored { reports, end: Err(problem) };
            }
            Err(RestoreProblem::Store(error)) if error.is_damage() => {
                tracing::error!(%key, error = %Chain(&error), "CHECKPOINT DAMAGED; the one before it is tried");
                reports.push(damaged(&name, &error));
            }
            Err(RestoreProblem::Store(error @ RestoreError::Format { .. })) => {
                tracing::error!(%key, error = %Chain(&error), "this build cannot read the job's checkpoint");
                reports.push(unreadable(&name, &error));
                return Restored { reports, end: Ok(None) };
            }
            end => return Restored { reports, end: end.map(Some) },
        }
    }
    if tried >= RESTORE_CHECKPOINTS_MAX {
        // There may be more than the proposal could name; the next one names them.
        return Restored { reports, end: Ok(None) };
    }
    if program.spec.retrains.as_ref().is_some_and(|retrains| retrains.from_step > Step(0)) {
        // A stretch trained from another state would be taken for it.
        tracing::error!("no sound checkpoint is left of a job that begins with one of another job");
        return Restored { reports, end: Ok(None) };
    }
    tracing::error!("no sound checkpoint is left; the job begins anew, to the same model");
    Restored { reports, ..Restored::beginning(program) }
}

/// What a spec says of a checkpoint of another job, if it begins with that one.
fn retrained<'a>(spec: &'a JobSpec, name: &CheckpointName) -> Option<&'a Retrains> {
    spec.retrains.as_ref().filter(|retrains| name.job == retrains.job && name.step == retrains.from_step)
}

fn damaged(name: &CheckpointName, error: &RestoreError) -> Report {
    let CheckpointName { job, generation, step, .. } = name.clone();
    let object = error.object().map_or_else(|| name.manifest(), str::to_owned);
    Report::CheckpointDamaged { job, generation, step, object, reason: Chain(error).to_string() }
}

fn unreadable(name: &CheckpointName, error: &RestoreError) -> Report {
    let CheckpointName { job, generation, step, .. } = name.clone();
    Report::CheckpointUnreadable { job, generation, step, reason: Chain(error).to_string() }
}

fn restore_one(program: &Program, class: Digest, name: &CheckpointName) -> Result<(Vec<f32>, Step), RestoreProblem> {
    let mut reads = 1;
    loop {
        match program.patience.ask(|| read_one(program, class, name), RestoreProblem::may_pass) {
            Err(RestoreProblem::Store(error)) if error.is_damage() && reads < READS_MAX => {
                tracing::warn!(key = name.manifest(), error = %Chain(&error), "a checkpoint looks damaged; reading it again");
                reads += 1;
            }
            end => return end,
        }
    }
}

fn read_one(program: &Program, class: Digest, name: &CheckpointName) -> Result<(Vec<f32>, Step), RestoreProblem> {
    let (runtime, store) = (&program.runtime, &program.store);
    let manifest = runtime.block_on(read_manifest(store, name)).map_err(RestoreProblem::Store)?;
    let differs =
        |what, found: Digest, expected: Digest| RestoreProblem::Other { key: name.manifest(), what, found, expected };
    // Of another job only the controller knows the spec; it has compared both.
    if name.job == program.job && manifest.spec_digest != program.spec.digest() {
        return Err(differs("job spec", manifest.spec_digest, program.spec.digest()));
    }
    let replica = retrained(&program.spec, name).and_then(|retrains| retrains.replica_digest);
    if let Some(expected) = replica.filter(|expected| *expected != manifest.replica_digest) {
        return Err(differs("replica", manifest.replica_digest, expected));
    }
    if manifest.numeric_class != class {
        return Err(differs("numeric class", manifest.numeric_class, class));
    }
    let expected = program.lengths().replica as u64;
    if manifest.replica_len != expected {
        // The spec is the same, so the model is: whatever wrote this length, it is no replica of it.
        let problem = format!("a replica of {} elements instead of {expected}", manifest.replica_len);
        return Err(RestoreProblem::Store(RestoreError::Corrupt { key: name.manifest(), problem }));
    }
    let replica = runtime.block_on(read_replica(store, name, &manifest)).map_err(RestoreProblem::Store)?;
    Ok((replica, manifest.step))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use events_schema::{Generation, JobId};
    use serde_json::json;

    /// Whatever a controller proposes: of other jobs a job loads the one checkpoint that its own spec names.
    #[test]
    fn of_another_job_only_the_checkpoint_that_the_spec_names_is_loaded() {
        let mut document =
            json!({"name": "n", "model": {"kind": "mlp"}, "dataset": "digits", "batch_size": 8, "epochs": 1});
        let named = |job: &str, step: u64| CheckpointName {
            job: JobId::parse(job).unwrap(),
            generation: Generation(1),
            step: Step(step),
            writer: None,
        };
        let alone = JobSpec::parse(&document).unwrap();
        document["retrains"] = json!({"job": "job-a", "from_step": 20});
        let again = JobSpec::parse(&document).unwrap();
        assert!(retrained(&again, &named("job-a", 20)).is_some());
        for (spec, job, step) in [(&again, "job-a", 40), (&again, "job-b", 20), (&alone, "job-a", 20)] {
            assert_eq!(retrained(spec, &named(job, step)), None, "{job} {step}");
        }
    }
}
