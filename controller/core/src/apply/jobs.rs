//! Facts about jobs: phases, plans, checkpoints, evaluations. Keeps the indexes over jobs in step with their phases.

use crate::state::bounds::{DAMAGED_MAX, JOBS_ENDED_MAX, RETIRED_MAX};
use crate::state::job::Evaluation;
use crate::state::troubles::{Damage, Pause, Restart, Unreadable};
use crate::state::type_times::remembered;
use crate::state::{Active, Faults, Job, JobPhase, Placement, Profiled, Retired, Scaling, Service, State};
use events_schema::fact::{CheckpointInfo, PlanCause, PlanReason};
use events_schema::fold::FoldVersion;
use events_schema::job::JobSpec;
use events_schema::report::{Metrics, Outcome};
use events_schema::slot_type::TypeTime;
use events_schema::{CommandId, Digest, Generation, JobId, SlotId, Step, TenantId, TimeMs};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub(super) fn accepted(
    state: &mut State,
    at: TimeMs,
    id: &JobId,
    tenant: &TenantId,
    command: &CommandId,
    spec: &JobSpec,
    body_digest: Digest,
) {
    let arrival = state.counters.arrivals;
    state.counters.arrivals += 1;
    // What is trained once more is trained on the same kind of executors.
    let retrained = spec.retrains.as_ref().and_then(|retrains| state.job(&retrains.job));
    let job = Job {
        submitter: tenant.clone(),
        command: command.clone(),
        phase: if spec.suspend { JobPhase::Suspended } else { JobPhase::Queued },
        spec: Arc::new(spec.clone()),
        body_digest,
        accepted_at: at,
        arrival,
        generation: Generation(0),
        executors_numbered: 0,
        checkpoints: Vec::new(),
        evaluation: None,
        reason: None,
        scaling: None,
        restarts: 0,
        faults: Faults::default(),
        class: retrained.and_then(|job| job.class),
        round: Generation(0),
        highest: Step(0),
        step_us: None,
        pace: None,
        avoided: BTreeMap::new(),
        growth: Pause::default(),
        stall: None,
        damaged: Vec::new(),
        unreadable: None,
        lost: None,
        given_up: None,
        stragglers: BTreeMap::new(),
        type_times: Vec::new(),
        service: Service::default(),
        class_of_code: retrained.and_then(|job| job.class_of_code),
        restart: None,
        unlike: BTreeSet::new(),
        profiled: Profiled::default(),
        strides: BTreeSet::new(),
    };
    state.live.insert(id.clone(), job);
}

/// Takes a job's phase out of it, frees its slots if the next phase has none, and keeps the indexes right.
pub(super) fn change_phase(state: &mut State, id: &JobId, next: impl FnOnce(JobPhase) -> JobPhase) {
    let Some(job) = state.live.get_mut(id) else { return };
    let before = job.slots().clone();
    let phase = std::mem::replace(&mut job.phase, JobPhase::Queued);
    job.phase = next(phase);
    let (terminal, placed) = (job.phase.is_terminal(), job.placement().is_some());
    if placed {
        state.placed.insert(id.clone(), ());
    } else {
        state.placed.remove(id);
        release(state, id, before.iter());
    }
    if terminal {
        end(state, id);
    }
}

/// Files a job among the ended ones, where nothing changes it any more, and forgets the oldest of those beyond their bound.
fn end(state: &mut State, id: &JobId) {
    let Some(mut job) = state.live.take(id) else { return };
    // It has nothing and waits for nothing.
    job.reason = None;
    job.stragglers.clear();
    let number = state.counters.ends;
    state.counters.ends += 1;
    state.ended.insert(id.clone(), job);
    state.ends.insert(number, id.clone());
    if state.ends.len() > JOBS_ENDED_MAX {
        let oldest = state.ends.first().map(|(number, id)| (*number, id.clone()));
        if let Some((number, id)) = oldest {
            state.ends.remove(&number);
            state.ended.remove(&id);
        }
    }
}

fn release<'a>(state: &mut State, id: &JobId, slots: impl Iterator<Item = &'a SlotId>) {
    for slot in slots {
        if state.slot(slot).is_some_and(|slot| slot.job.as_ref() == Some(id)) {
            state.change_slot(slot, |slot| slot.job = None);
        }
    }
}

pub(super) fn suspending(state: &mut State, id: &JobId) {
    change_phase(state, id, |phase| match phase {
        JobPhase::Starting(placement) => JobPhase::Suspending(placement, None),
        JobPhase::Running(placement, active) => JobPhase::Suspending(placement, Some(active)),
        other => other,
    });
}

pub(super) fn suspended(state: &mut State, id: &JobId, attained_slot_ms: Option<u64>) {
    change_phase(state, id, |_| JobPhase::Suspended);
    if let Some((job, attained)) = state.live.get_mut(id).zip(attained_slot_ms) {
        (job.service.attained_slot_ms, job.service.waits_since) = (attained, None);
    }
}

pub(super) fn resumed(state: &mut State, at: TimeMs, id: &JobId) {
    change_phase(state, id, |phase| match phase {
        JobPhase::Suspended => JobPhase::Queued,
        other => other,
    });
    if let Some(job) = state.live.get_mut(id) {
        job.faults.forget();
        job.note_answered();
        job.unreadable = None;
        // A job that never held a slot waits since it came; of one whose facts say nothing of its service nothing is known.
        if job.service.attained_slot_ms > 0 {
            job.service.waits_since = Some(at);
        }
    }
}

pub(super) fn cancelled(state: &mut State, at: TimeMs, id: &JobId) {
    change_phase(state, id, |_| JobPhase::Cancelled { at });
}

pub(super) fn failed(state: &mut State, at: TimeMs, id: &JobId, reason: &str) {
    change_phase(state, id, |_| JobPhase::Failed { reason: reason.to_owned(), at });
}

pub(super) fn finished(state: &mut State, at: TimeMs, id: &JobId, outcome: &Outcome) {
    change_phase(state, id, |_| JobPhase::Finished { outcome: outcome.clone(), at });
}

pub(super) fn plan_adopted(
    state: &mut State,
    at: TimeMs,
    id: &JobId,
    slots: &[SlotId],
    reason: &PlanReason,
    attained_slot_ms: Option<u64>,
) {
    let Some(job) = state.live.get_mut(id) else { return };
    let next: BTreeSet<SlotId> = slots.iter().cloned().collect();
    let before = job.slots().clone();
    if next.len() != before.len() {
        job.scaling = Some(Scaling {
            at,
            from: before.len() as u32,
            to: next.len() as u32,
            cause: reason.cause.clone(),
            trained: false,
        });
    }
    if let Some(attained) = attained_slot_ms {
        job.service.attained_slot_ms = attained;
        job.service.waits_since = next.is_empty().then_some(at);
    }
    if reason.cause == PlanCause::Profile {
        let goes_on = job.reason.as_ref().is_some_and(|before| before.cause == PlanCause::Profile);
        if !goes_on {
            job.profiled.base = before.len() as u16;
        }
        job.profiled.tried.entry(next.len() as u16).or_insert(at);
    }
    job.reason = Some(reason.clone());
    release(state, id, before.difference(&next));
    for slot in &next {
        state.change_slot(slot, |slot| slot.job = Some(id.clone()));
    }
    let replan = |placement: Placement, slots| Placement { slots, ..placement };
    change_phase(state, id, |phase| match phase {
        JobPhase::Queued if next.is_empty() => JobPhase::Queued,
        JobPhase::Queued => JobPhase::Starting(Placement::new(next)),
        JobPhase::Starting(placement) => JobPhase::Starting(replan(placement, next)),
        JobPhase::Running(placement, active) => JobPhase::Running(replan(placement, next), active),
        JobPhase::Suspending(placement, active) => JobPhase::Suspending(replan(placement, next), active),
        other => other,
    });
    requeue_if_empty(state, id);
}

pub(super) fn types_measured(state: &mut State, id: &JobId, times: &[TypeTime]) {
    if let Some(job) = state.live.get_mut(id) {
        job.type_times = times.to_vec();
    }
    if state.planning.folds_by(FoldVersion::TYPES_OF_ALL) {
        state.planning.type_times = remembered(&state.planning.type_times, times);
    }
}

pub(super) fn queue_entered(state: &mut State, at: TimeMs, id: &JobId, queue: u8, promoted_slot_ms: u64) {
    if let Some(job) = state.live.get_mut(id) {
        (job.service.queue, job.service.queued_at) = (queue, Some(at));
        job.service.promoted_slot_ms = promoted_slot_ms;
    }
}

/// A job that gave back every slot waits again once its last executor is gone, or will not go.
pub(super) fn requeue_if_empty(state: &mut State, id: &JobId) {
    let Some(job) = state.live.get(id) else { return };
    let evicted = matches!(&job.phase, JobPhase::Starting(p) | JobPhase::Running(p, _) if p.slots.is_empty());
    if evicted && !state.has_awaited(id) {
        change_phase(state, id, |_| JobPhase::Queued);
    }
}

pub(super) fn explained(state: &mut State, id: &JobId, reason: &PlanReason) {
    if let Some(job) = state.live.get_mut(id) {
        job.reason = Some(reason.clone());
    }
}

pub(super) fn checkpoint_accepted(state: &mut State, id: &JobId, checkpoint: &CheckpointInfo) {
    if let Some(job) = state.live.get_mut(id) {
        job.note_answered();
        job.checkpoints.push(checkpoint.clone());
        if checkpoint.step > job.highest {
            // Further than ever: failures that it got past do not count any more.
            job.highest = checkpoint.step;
            job.faults.restarts = 0;
        }
    }
}

pub(super) fn checkpoint_damaged(state: &mut State, id: &JobId, damage: Damage) {
    let Some(job) = state.live.get_mut(id) else { return };
    if let Some(key) = job.checkpoint(damage.generation, damage.step).map(|found| found.manifest_key.clone()) {
        job.checkpoints.retain(|checkpoint| checkpoint.manifest_key != key);
    }
    job.damaged.push(damage);
    if job.damaged.len() > DAMAGED_MAX {
        job.damaged.remove(0);
    }
}

pub(super) fn checkpoint_unreadable(state: &mut State, id: &JobId, unreadable: Unreadable) {
    if let Some(job) = state.live.get_mut(id) {
        job.unreadable = Some(unreadable);
    }
}

pub(super) fn checkpoint_retired(state: &mut State, id: &JobId, manifest_key: &str) {
    if let Some(job) = state.live.get_mut(id) {
        job.checkpoints.retain(|checkpoint| checkpoint.manifest_key != manifest_key);
    }
    let number = state.counters.retirements;
    state.counters.retirements += 1;
    state.retired.insert(number, Retired { job: id.clone(), manifest_key: manifest_key.to_owned() });
    if state.retired.len() > RETIRED_MAX {
        let oldest = state.retired.first().map(|(number, _)| *number);
        oldest.into_iter().for_each(|number| {
            state.retired.remove(&number);
        });
    }
}

/// What earlier builds wrote does not say why: the job then says nothing of it either.
pub(super) fn restarted(state: &mut State, id: &JobId, restart: Option<Restart>) {
    let numbers: Vec<_> = state.executors_of(id).map(|(executor, _)| executor.clone()).collect();
    for executor in numbers {
        state.executors.change(&executor, |executor| executor.replica = false);
    }
    if let Some(job) = state.live.get_mut(id) {
        job.restarts += 1;
        job.restart = restart;
        // It did come to lock-step; whatever failed since, its next start has all its attempts.
        job.faults.starts = 0;
        if std::mem::take(&mut job.faults.since_restart) {
            job.faults.restarts += 1;
        }
    }
    let fresh = |placement: Placement| Placement::new(placement.slots);
    change_phase(state, id, |phase| match phase {
        JobPhase::Running(placement, _) | JobPhase::Starting(placement) => JobPhase::Starting(fresh(placement)),
        JobPhase::Suspending(placement, _) => JobPhase::Suspending(fresh(placement), None::<Active>),
        other => other,
    });
}

pub(super) fn evaluated(state: &mut State, id: &JobId, step: Step, metrics: Metrics) {
    if let Some(job) = state.live.get_mut(id) {
        job.evaluation = Some(Evaluation { step, metrics });
    }
}
