//! From the controller's state to what the API shows. The only file that knows both. Pure.

use crate::wire;
use controller_core::state::troubles::{Damage, Straggler};
use controller_core::state::{Fleet, Job, JobPhase, Slot};
use controller_core::{Reasons, State};
use events_public::{JobProgress, rfc3339};
use events_schema::job::JobSpec;
use events_schema::orders::Telemetry;
use events_schema::report::{Metrics, Outcome};
use events_schema::{Digest, ExecutorId, FleetId, JobId, SlotId};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// A job as the API shows it.
#[must_use]
pub fn job(id: &JobId, job: &Job, reasons: &Reasons<'_>, telemetry: Option<Telemetry>) -> wire::Job {
    let (outcome, failure) = match &job.phase {
        JobPhase::Finished { outcome, .. } => (Some(self::outcome(outcome)), None),
        JobPhase::Failed { reason, .. } => (None, Some(reason.clone())),
        _ => (None, None),
    };
    wire::Job {
        id: id.clone(),
        name: job.spec.name.clone(),
        tenant: job.tenant.clone(),
        phase: job.phase.name(),
        spec: spec(&job.spec),
        submitted_at: rfc3339(job.accepted_at),
        slots: job.slots().iter().cloned().collect(),
        workers: job.spec.workers,
        generation: job.active().map(|active| active.proposal.generation.0),
        progress: telemetry.map(progress),
        reason: reasons.of_job(id, job),
        last_scaling: job.scaling.as_ref().map(|scaling| wire::Scaling {
            at: rfc3339(scaling.at),
            from: scaling.from as usize,
            to: scaling.to as usize,
            cause: scaling.cause.clone(),
        }),
        last_checkpoint: job.last_checkpoint().cloned(),
        last_evaluation: job
            .evaluation
            .map(|found| wire::Evaluation { step: found.step, scores: scores(found.metrics) }),
        outcome,
        failure,
        restarts: job.restarts,
        damaged_checkpoints: job.damaged.iter().map(damaged).collect(),
        unreadable_checkpoint: job.unreadable.as_ref().map(|found| wire::UnreadableCheckpoint {
            at: rfc3339(found.at),
            step: found.step,
            generation: found.generation,
            reason: found.reason.clone(),
        }),
        last_stall: job.stall.as_ref().map(|stall| wire::Stall {
            at: rfc3339(stall.at),
            step: stall.step,
            cause: stall.cause,
            tried: stall.tried.clone(),
        }),
        last_lost_member: job.lost.as_ref().map(|loss| wire::LostMember {
            at: rfc3339(loss.at),
            executor: loss.executor.clone(),
            slot: loss.slot.clone(),
            noticed: loss.noticed.clone(),
        }),
        growth_paused: job.given_up.as_ref().map(|given_up| wire::GrowthPaused {
            at: rfc3339(given_up.at),
            until: rfc3339(job.growth.until),
            executor: given_up.executor.clone(),
            cause: given_up.cause,
        }),
        stragglers: job.stragglers.iter().map(|(executor, known)| straggler(executor, known)).collect(),
    }
}

fn straggler(executor: &ExecutorId, known: &Straggler) -> wire::Straggler {
    wire::Straggler {
        executor: executor.clone(),
        slot: known.slot.clone(),
        since: rfc3339(known.since),
        unit_us: known.unit_us,
        peers_unit_us: known.peers_unit_us,
    }
}

fn damaged(found: &Damage) -> wire::DamagedCheckpoint {
    wire::DamagedCheckpoint {
        at: rfc3339(found.at),
        step: found.step,
        generation: found.generation,
        object: found.object.clone(),
        reason: found.reason.clone(),
        instead: found.instead,
    }
}

/// Names this state of a job: the same as long as nothing but its progress changes.
#[must_use]
pub fn etag(job: &wire::Job) -> String {
    let steady = wire::Job { progress: None, ..job.clone() };
    let digest = Digest::of(&serde_json::to_vec(&steady).unwrap_or_default()).to_string();
    format!("W/\"{}\"", &digest[..32])
}

/// A spec in the form in which it can be submitted.
fn spec(spec: &JobSpec) -> Value {
    let mut shown = match serde_json::to_value(spec) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    };
    // A spec says `epochs: 3` where the log says `length: {epochs: 3}`, and `window: 64` for `window: {samples: 64}`.
    if let Some(Value::Object(length)) = shown.remove("length") {
        shown.extend(length);
    }
    if let Some(samples) = shown.get("shuffle").and_then(|shuffle| shuffle.pointer("/window/samples")).cloned() {
        shown.insert("shuffle".to_owned(), Value::Object(Map::from_iter([("window".to_owned(), samples)])));
    }
    Value::Object(shown)
}

/// What a job's stream says of its progress.
#[must_use]
pub fn job_progress(telemetry: &Telemetry) -> JobProgress {
    JobProgress {
        job: telemetry.job.to_string(),
        step: telemetry.step.0,
        steps_total: telemetry.steps_total,
        epoch: telemetry.epoch,
        loss: telemetry.loss,
        samples_per_second: telemetry.samples_per_second,
        step_us: telemetry.step_us,
        members: telemetry.members,
        data_wait_us: telemetry.data_wait_us,
    }
}

fn progress(telemetry: Telemetry) -> wire::Progress {
    wire::Progress {
        step: telemetry.step,
        steps_total: telemetry.steps_total,
        epoch: telemetry.epoch,
        loss: telemetry.loss,
        samples_per_second: telemetry.samples_per_second,
        step_us: telemetry.step_us,
        members: telemetry.members,
        data_wait_us: telemetry.data_wait_us,
    }
}

fn outcome(outcome: &Outcome) -> wire::Outcome {
    wire::Outcome {
        step: outcome.step,
        model_key: outcome.model_key.clone(),
        model_digest: outcome.model_digest,
        train_loss_micro: outcome.train_loss_micro,
        train_loss: from_micro(outcome.train_loss_micro),
        metrics: outcome.metrics.map(scores),
    }
}

fn scores(metrics: Metrics) -> wire::Scores {
    let accuracy = metrics.correct as f64 / metrics.count.max(1) as f64;
    wire::Scores { metrics, loss: from_micro(metrics.loss_micro), accuracy }
}

fn from_micro(micro: i64) -> f64 {
    micro as f64 / 1e6
}

/// A fleet as the API shows it.
#[must_use]
pub fn fleet(state: &State, name: &FleetId, fleet: &Fleet) -> wire::Fleet {
    wire::Fleet {
        name: name.clone(),
        offers: fleet.offers,
        reclaim_deadline_ms: fleet.reclaim_deadline_ms,
        needed: fleet.sequence.map(|_| fleet.needed),
        sequence: fleet.sequence,
        recalled: fleet.recalled.map(|_| fleet.held() as u32),
        slots: fleet.slots.iter().map(|id| slot(state, id, state.slot(id))).collect(),
    }
}

/// All slots of all servers, declared by a fleet or not.
#[must_use]
pub fn slots(state: &State) -> Vec<wire::Slot> {
    let held = state
        .servers()
        .flat_map(|(server, facts)| (0..facts.slots).map(|index| SlotId { server: server.clone(), index }));
    let mut all: BTreeMap<SlotId, Option<&Slot>> = held.map(|id| (id, None)).collect();
    all.extend(state.slots().map(|(id, slot)| (id.clone(), Some(slot))));
    all.into_iter().map(|(id, known)| slot(state, &id, known)).collect()
}

fn slot(state: &State, id: &SlotId, slot: Option<&Slot>) -> wire::Slot {
    let server = state.server(&id.server).filter(|server| server.connected && id.index < server.slots);
    wire::Slot {
        slot: id.clone(),
        fleet: slot.and_then(|slot| slot.fleet.clone()),
        state: state.slot_shown(id),
        job: slot.and_then(|slot| slot.job.clone()),
        executor: slot.and_then(|slot| slot.executor.clone()),
        class: server.map(|server| server.class),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use events_schema::fact::{Fact, GrowthFailure, LossNotice, StallCause, StallRemedy};
    use events_schema::report::ExitCause;
    use events_schema::{Cell, Step, TimeMs};
    use serde_json::json;

    /// Whatever its user has to know stands on the job.
    #[test]
    fn a_job_shows_what_befell_it() {
        let mut state = State::new(Cell(0));
        let document =
            json!({"name": "a", "model": {"kind": "mlp"}, "dataset": "digits", "batch_size": 8, "epochs": 3});
        let id = JobId::parse("job-a").unwrap();
        let (executor, slot) =
            (ExecutorId { job: id.clone(), number: 3 }, SlotId { server: "host".parse().unwrap(), index: 2 });
        let facts = [
            Fact::JobAccepted {
                job: id.clone(),
                tenant: "local".parse().unwrap(),
                command: "cmd-1".parse().unwrap(),
                spec: Box::new(JobSpec::parse(&document).unwrap()),
                body_digest: Digest([1; 32]),
            },
            Fact::JobStalled {
                job: id.clone(),
                step: Step(7),
                cause: StallCause::Store,
                blamed: vec![],
                remedy: StallRemedy::Wait,
            },
            Fact::MemberLost {
                executor: executor.clone(),
                slot: slot.clone(),
                noticed: LossNotice::Exit(ExitCause::Signal(9)),
            },
            Fact::GrowthPaused {
                job: id.clone(),
                until: TimeMs(60_000),
                executor: executor.clone(),
                cause: GrowthFailure::Slow,
            },
            Fact::MemberStraggles { executor, slot, unit_us: 90, peers_unit_us: 30 },
        ];
        facts.iter().for_each(|fact| state.apply(TimeMs(1_000), fact));
        let job = state.job(&id).unwrap();
        let shown = serde_json::to_value(super::job(&id, job, &Reasons::of(&state, TimeMs(1_000)), None)).unwrap();
        let at = "1970-01-01T00:00:01.000Z";
        assert_eq!(shown["last_stall"], json!({"at": at, "step": 7, "cause": "store", "tried": ["wait"]}));
        let lost = json!({"at": at, "executor": "job-a/e3", "slot": "host/2", "noticed": {"exit": {"signal": 9}}});
        assert_eq!(shown["last_lost_member"], lost);
        let until = "1970-01-01T00:01:00.000Z";
        assert_eq!(shown["growth_paused"], json!({"at": at, "until": until, "executor": "job-a/e3", "cause": "slow"}));
        assert_eq!(
            shown["stragglers"],
            json!([{"executor": "job-a/e3", "slot": "host/2", "since": at, "unit_us": 90, "peers_unit_us": 30}])
        );
        let before = etag(&super::job(&id, job, &Reasons::of(&state, TimeMs(1_000)), None));
        state.apply(TimeMs(2_000), &Fact::MemberKeepsUp { executor: ExecutorId { job: id.clone(), number: 3 } });
        let after = super::job(&id, state.job(&id).unwrap(), &Reasons::of(&state, TimeMs(1_000)), None);
        assert!(after.stragglers.is_empty() && etag(&after) != before);
    }

    #[test]
    fn a_shown_spec_can_be_submitted_again() {
        let model = json!({"kind": "mlp", "hidden": [4]});
        let base = json!({"name": "a", "model": model, "dataset": "digits", "batch_size": 8, "epochs": 3});
        let variations = [
            json!({}),
            json!({"shuffle": {"window": 64}, "epochs": null, "steps": 10, "evaluation": {"dataset": "digits-test"}}),
            json!({"shuffle": "none", "optimizer": {"kind": "sgd", "momentum": 0.5}, "schedule": {"kind": "step", "every_steps": 5}}),
            json!({"shuffle": "full", "schedule": {"kind": "cosine", "warmup_steps": 2}, "gradient_clip_norm": 1.5, "priority": -3}),
            json!({"model": {"kind": "gpt"}, "tail": "drop", "seed": 18_446_744_073_709_551_615_u64, "suspend": true}),
            json!({"unit_timeout_ms": 1_200_000, "store_patience_ms": 180_000}),
        ];
        for variation in variations {
            let mut document = base.clone();
            document.as_object_mut().unwrap().extend(variation.as_object().unwrap().clone());
            let parsed = JobSpec::parse(&document).unwrap();
            assert_eq!(JobSpec::parse(&spec(&parsed)).unwrap(), parsed, "{document}");
        }
    }
}
