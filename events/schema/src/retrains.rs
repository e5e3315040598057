//! `retrains` of a job spec: the stretch of another job that this one trains once more, from that job's replica, on so many slots and no others.
//!
//! Whether there is such a job and whether it trains the same, `controller-core` says (`decide/retrains.rs`); that the replica is the one that is
//! meant, the executor. What a retraining is good for, `ebb verify` knows.

use crate::fields::{Fields, Problems};
use crate::job::{JobFields, JobSpec, Workers};
use crate::{Digest, JobId, Step};
use minicbor::{Decode, Encode};
use serde::Serialize;
use serde_json::Value;

/// Highest step that can be named: as many as a spec can ask for.
const STEP_MAX: u64 = 1_000_000_000_000;

/// A stretch of another job.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct Retrains {
    /// Which job.
    #[n(0)]
    pub job: JobId,
    /// It begins with the whole replica that that job's checkpoint of this step holds; with step 0 as that job began.
    #[n(1)]
    pub from_step: Step,
    /// It ends with the replica of this step; none: where that job ends.
    #[n(2)]
    pub to_step: Option<Step>,
    /// The number of executors, never more and never fewer.
    #[n(3)]
    pub slots: u16,
    /// What the replica that it begins with has to be; none: what the checkpoint holds.
    #[n(4)]
    pub replica_digest: Option<Digest>,
}

impl JobSpec {
    /// Whether both come to the same replicas at the same steps: they are equal in all that decides the result, and differ at most in
    /// how they run, where they end and what of it is kept.
    #[must_use]
    pub fn trains_as(&self, other: &Self) -> bool {
        let mine = self.0.clone();
        let as_this_runs = JobFields {
            compare_every_steps: mine.compare_every_steps,
            tenant: mine.tenant,
            profile: mine.profile,
            types: mine.types,
            name: mine.name,
            workers: Workers { min: mine.workers.min, max: other.workers.max },
            checkpoint: mine.checkpoint,
            priority: mine.priority,
            suspend: mine.suspend,
            max_restarts: mine.max_restarts,
            unit_timeout_ms: mine.unit_timeout_ms,
            store_patience_ms: mine.store_patience_ms,
            retrains: mine.retrains,
            ..other.0.clone()
        };
        self.0 == as_this_runs
    }
}

impl Retrains {
    /// The step at which it ends, of a job of so many.
    #[must_use]
    pub fn end(&self, steps_total: u64) -> u64 {
        self.to_step.map_or(steps_total, |to| to.0.min(steps_total))
    }
}

/// Reads `retrains` of a job of so many logical workers that runs on `least` executors at least.
pub(crate) fn parse_retrains(path: &str, value: &Value, least: u16, workers: u16) -> Result<Retrains, Problems> {
    let mut f = Fields::new(path, value);
    let parse = |text: &str| JobId::parse(text).map_err(|e| e.expected.to_owned());
    let job = f.text_required("job", "the id of the job that is trained once more", parse);
    let from_step = f.integer("from_step", 0..=STEP_MAX).unwrap_or(0);
    let to_step = f.integer("to_step", 1..=STEP_MAX);
    if to_step.is_some_and(|to| to < from_step) {
        f.wrong("to_step", format!("a step that is not before `from_step` ({from_step})"));
    }
    let slots = f.integer("slots", 1..=u64::from(workers)).unwrap_or(u64::from(least));
    let digest = "the digest of a replica, 64 hexadecimal characters; `GET /v1/jobs/{id}/checkpoints` says it";
    let replica_digest = f.text("replica_digest", |text| text.parse().map_err(|_| digest.to_owned()));
    if replica_digest.is_some() && from_step == 0 {
        f.wrong("replica_digest", "nothing: what a job begins with at step 0 is in no checkpoint");
    }
    f.finish(job.map(|job| Retrains {
        job,
        from_step: Step(from_step),
        to_step: to_step.map(Step),
        slots: slots as u16,
        replica_digest,
    }))
}
