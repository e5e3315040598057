//! Jobs that train a stretch of another one once more: whether they may, and whose replica they begin with.
//!
//! Decides nothing about the stretch itself: from its first generation on such a job is one like any other, on a fixed number of slots.

use super::Draft;
use crate::state::{JobPhase, State};
use events_schema::fact::{CheckpointInfo, Fact, Refusal};
use events_schema::job::JobSpec;
use events_schema::{JobId, Step, TenantId};

/// Steps that are named where another one was asked for; a job keeps few checkpoints, and its list has all of them.
const STEPS_NAMED: usize = 8;

/// Whether a job may retrain what its spec names.
pub(super) fn ensure_fits(state: &State, tenant: &TenantId, spec: &JobSpec) -> Result<(), Refusal> {
    let Some(retrains) = &spec.retrains else { return Ok(()) };
    let unfit = |field: &str, value: String, expected: String| {
        Err(Refusal::Unfit { field: format!("retrains.{field}"), value, expected })
    };
    let id = &retrains.job;
    let Some(job) = state.job(id).filter(|job| job.submitter == *tenant) else {
        return unfit("job", id.to_string(), "a job that this service remembers; `ebb jobs` lists them".to_owned());
    };
    if let Some(other) = &job.spec.retrains {
        let expected =
            format!("a job that trains for itself; this one retrains `{}`, which can be named instead", other.job);
        return unfit("job", id.to_string(), expected);
    }
    if !spec.trains_as(&job.spec) {
        let expected = "a job with the same spec as this one, but for `name`, `workers.min`, `checkpoint`, `compare_every_steps`, \
                        `priority`, `suspend`, `max_restarts`, `unit_timeout_ms`, `store_patience_ms`, `tenant` and `profile`";
        return unfit("job", id.to_string(), expected.to_owned());
    }
    if retrains.from_step == Step(0) || origin(state, spec).is_some() {
        return Ok(());
    }
    if let (Some(digest), true) =
        (&retrains.replica_digest, job.checkpoints.iter().any(|c| c.step == retrains.from_step))
    {
        let expected = format!("the digest of the replica in the checkpoint of step {}", retrains.from_step);
        return unfit("replica_digest", digest.to_string(), expected);
    }
    let steps: Vec<String> = job.checkpoints.iter().rev().take(STEPS_NAMED).map(|c| format!(", {}", c.step)).collect();
    let expected = format!("0, or a step of which `{id}` has a checkpoint{}", steps.concat().replacen(',', ":", 1));
    unfit("from_step", retrains.from_step.to_string(), expected)
}

/// The checkpoint of another job that a job begins with; none if it begins for itself, or if there is no such checkpoint (any more).
pub(super) fn origin<'a>(state: &'a State, spec: &JobSpec) -> Option<&'a CheckpointInfo> {
    let retrains = spec.retrains.as_ref().filter(|retrains| retrains.from_step > Step(0))?;
    let is_meant = |checkpoint: &&CheckpointInfo| {
        let digest = retrains.replica_digest.is_none_or(|digest| digest == checkpoint.replica_digest);
        checkpoint.step == retrains.from_step && digest
    };
    state.job(&retrains.job)?.checkpoints.iter().rev().find(is_meant)
}

/// Ends a job whose beginning is gone: what it was to train once more, nobody can begin with any more.
pub(super) fn give_up(draft: &mut Draft<'_>, id: &JobId) -> bool {
    let Some(job) = draft.state.job(id).filter(|job| matches!(job.phase, JobPhase::Starting(_))) else { return false };
    let Some(retrains) = job.spec.retrains.as_ref().filter(|retrains| retrains.from_step > Step(0)) else {
        return false;
    };
    if !job.checkpoints.is_empty() || origin(&draft.state, &job.spec).is_some() {
        return false;
    }
    let reason = format!(
        "the checkpoint of step {} of `{}`, which it begins with, does not count any more: newer ones took its place, or it was found damaged",
        retrains.from_step, retrains.job
    );
    draft.emit(Fact::JobFailed { job: id.clone(), reason });
    true
}
