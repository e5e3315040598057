//! Facts about executors and the generations they form.

use super::jobs::{change_phase, requeue_if_empty};
use crate::limits::{ABANDONED_MAX, ATTEMPTS_MAX, LEFT_GRACE_MS, READY_DEADLINE_MS};
use crate::state::{Active, Executor, JobPhase, Leaving, Placement, State};
use events_schema::fact::{AbandonCause, LeaveCause, Proposal};
use events_schema::report::ExitCause;
use events_schema::{ExecutorId, Generation, JobId, SlotId, Step, TimeMs};
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn assigned(state: &mut State, at: TimeMs, id: &ExecutorId, slot: &SlotId) {
    if let Some(job) = state.live.get_mut(&id.job) {
        job.executors_numbered = job.executors_numbered.max(id.number.saturating_add(1));
    }
    let executor =
        Executor { slot: slot.clone(), assigned_at: at, address: None, leaving: None, replica: false, departed: false };
    state.executors.insert(id.clone(), executor);
    if let Some(slot) = state.slots.get_mut(slot) {
        slot.executor = Some(id.clone());
    }
}

pub(super) fn ready(state: &mut State, id: &ExecutorId, address: &str) {
    if let Some(executor) = state.executors.get_mut(id) {
        executor.address = Some(address.to_owned());
    }
}

pub(super) fn leaving(state: &mut State, at: TimeMs, id: &ExecutorId, deadline: TimeMs, cause: LeaveCause) {
    let Some(executor) = state.executors.get_mut(id) else { return };
    let late = executor.is_starting()
        && cause == LeaveCause::Useless
        && at.since_ms(executor.assigned_at) >= READY_DEADLINE_MS;
    executor.leaving = Some(Leaving { deadline, cause });
    if let Some(job) = state.live.get_mut(&id.job).filter(|_| late) {
        job.faults.since_restart = true;
        job.faults.note(at, 0, "it was not ready in time".to_owned());
    }
}

pub(super) fn gone(state: &mut State, at: TimeMs, id: &ExecutorId, slot: &SlotId, exit: &ExitCause) {
    let Some(executor) = state.executors.get(id).cloned() else { return };
    state.executors.remove(id);
    if let Some(slot) = state.slots.get_mut(slot).filter(|slot| slot.executor.as_ref() == Some(id)) {
        slot.executor = None;
    }
    let Some(job) = state.live.get_mut(&id.job) else { return };
    // What an agent killed, or lost with its server, is not the job's fault; neither is what was told to go.
    let own_fault = match exit {
        ExitCause::Killed => None,
        ExitCause::Left => (!executor.replica).then(|| "it exited with status 0 before it joined".to_owned()),
        ExitCause::Status(status) => Some(format!("it exited with status {status}")),
        ExitCause::Signal(signal) => Some(format!("it was ended by signal {signal}")),
        ExitCause::Silent => Some("it hung and was killed".to_owned()),
        ExitCause::NotStarted(reason) => Some(format!("it could not be started: {reason}")),
    };
    if let Some(what) = own_fault.filter(|_| executor.leaving.is_none()) {
        job.faults.since_restart = true;
        job.faults.note(at, at.since_ms(executor.assigned_at), what);
    }
    if let Some(active) = job.active_mut().filter(|active| *exit == ExitCause::Left && active.members.contains(id)) {
        active.left.insert(id.clone(), at.plus_ms(LEFT_GRACE_MS));
    }
    requeue_if_empty(state, &id.job);
}

pub(super) fn proposed(state: &mut State, id: &JobId, proposal: &Proposal) {
    if let Some(job) = state.live.get_mut(id) {
        job.generation = job.generation.max(proposal.generation);
        if let Some(placement) = job.placement_mut() {
            placement.proposed = Some(proposal.clone());
        }
    }
}

pub(super) fn active(state: &mut State, at: TimeMs, id: &JobId, generation: Generation, step: Step, pause_us: u64) {
    let Some(job) = state.live.get(id) else { return };
    let Some(placement) = job.placement() else { return };
    let known =
        placement.proposed.iter().chain(&placement.abandoned).find(|proposal| proposal.generation == generation);
    let Some(proposal) = known.cloned() else { return };
    let members: BTreeSet<ExecutorId> = proposal.members.iter().map(|member| member.executor.clone()).collect();
    let before = job.active().map(|active| active.members.difference(&members).cloned().collect()).unwrap_or_default();
    for member in &members {
        if let Some(executor) = state.executors.get_mut(member) {
            executor.replica = true;
        }
    }
    let class = members.iter().find_map(|member| {
        let executor = state.executors.get(member)?;
        state.servers.get(&executor.slot.server).map(|server| server.class)
    });
    let leader = proposal.leader.clone();
    let active = Active { proposal, members, leader, before, left: BTreeMap::new(), step, at, pause_us };
    let newer = |placement: Placement| Placement {
        proposed: placement.proposed.filter(|proposal| proposal.generation > generation),
        abandoned: placement.abandoned.into_iter().filter(|proposal| proposal.generation > generation).collect(),
        attempts: 0,
        slots: placement.slots,
    };
    change_phase(state, id, |phase| match phase {
        JobPhase::Starting(placement) | JobPhase::Running(placement, _) => JobPhase::Running(newer(placement), active),
        JobPhase::Suspending(placement, _) => JobPhase::Suspending(newer(placement), Some(active)),
        other => other,
    });
    if let Some(job) = state.live.get_mut(id) {
        job.class = job.class.or(class);
        job.faults.starts = 0;
    }
}

pub(super) fn abandoned(state: &mut State, at: TimeMs, id: &JobId, generation: Generation, cause: AbandonCause) {
    let Some(job) = state.live.get_mut(id) else { return };
    let Some(placement) = job.placement_mut() else { return };
    let Some(proposal) = placement.proposed.take_if(|proposal| proposal.generation == generation) else { return };
    placement.abandoned.push(proposal);
    if placement.abandoned.len() > ABANDONED_MAX {
        placement.abandoned.remove(0);
    }
    if cause == AbandonCause::Deadline {
        placement.attempts += 1;
        let hopeless = placement.attempts >= ATTEMPTS_MAX;
        job.faults.since_restart |= hopeless;
        job.faults.note(at, 0, "its executors did not come to lock-step in time".to_owned());
    }
}

pub(super) fn departed(state: &mut State, id: &JobId, executor: &ExecutorId, leader: &ExecutorId, step: Step) {
    if let Some(executor) = state.executors.get_mut(executor) {
        executor.departed = true;
    }
    let Some(active) = state.live.get_mut(id).and_then(|job| job.active_mut()) else { return };
    active.members.remove(executor);
    active.left.remove(executor);
    active.before.insert(executor.clone());
    active.leader = leader.clone();
    active.step = active.step.max(step);
}
