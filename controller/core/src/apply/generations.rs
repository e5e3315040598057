//! Facts about executors and the generations they form.

use super::jobs::{change_phase, requeue_if_empty};
use super::version_one;
use crate::state::bounds::ABANDONED_MAX;
use crate::state::faults::CodeEnd;
use crate::state::troubles::{GivenUp, Loss, Pause, Stall, Straggler};
use crate::state::{Active, Executor, Job, JobPhase, Leaving, Placement, State};
use events_schema::fact::{
    AbandonCause, AvoidCause, Blamed, Entry, LeaveCause, Proposal, StallCause, StallRemedy, Verdict,
};
use events_schema::report::ExitCause;
use events_schema::spread::Spread;
use events_schema::stride::Stride;
use events_schema::{Digest, ExecutorId, Generation, JobId, SlotId, Step, TimeMs};
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn assigned(state: &mut State, at: TimeMs, id: &ExecutorId, slot: &SlotId) {
    if let Some(job) = state.live.get_mut(&id.job) {
        job.executors_numbered = job.executors_numbered.max(id.number.saturating_add(1));
    }
    let executor = Executor {
        slot: slot.clone(),
        assigned_at: at,
        address: None,
        leaving: None,
        replica: false,
        departed: false,
        stuck: false,
        class: None,
        replica_bytes: None,
        gradient_bytes: None,
        busy_percent: None,
    };
    state.executors.insert(id.clone(), executor);
    state.change_slot(slot, |slot| slot.executor = Some(id.clone()));
}

pub(super) fn ready(
    state: &mut State,
    id: &ExecutorId,
    address: &str,
    class: Option<Digest>,
    (replica_bytes, gradient_bytes): (Option<u64>, Option<u64>),
) {
    state.executors.change(id, |executor| {
        (executor.address, executor.class) = (Some(address.to_owned()), class);
        (executor.replica_bytes, executor.gradient_bytes) = (replica_bytes, gradient_bytes);
    });
}

pub(super) fn leaving(
    state: &mut State,
    at: TimeMs,
    id: &ExecutorId,
    deadline: TimeMs,
    cause: LeaveCause,
    verdict: Option<&Verdict>,
) {
    let told = state.executors.change(id, |executor| {
        let starting_since = executor.is_starting().then_some(executor.assigned_at);
        executor.leaving = Some(Leaving { deadline, cause });
        starting_since
    });
    let Some(starting_since) = told else { return };
    let Some(job) = state.live.get_mut(&id.job) else { return };
    match verdict {
        Some(verdict) => note(job, at, verdict),
        None => version_one::leaving(job, at, starting_since, cause),
    }
}

fn note(job: &mut Job, at: TimeMs, verdict: &Verdict) {
    if let Verdict::Failure(failure) = verdict {
        job.faults.note(at, failure);
    }
}

pub(super) fn stuck(state: &mut State, id: &ExecutorId) {
    state.executors.change(id, |executor| executor.stuck = true);
    requeue_if_empty(state, &id.job);
}

pub(super) fn gone(
    state: &mut State,
    at: TimeMs,
    id: &ExecutorId,
    slot: &SlotId,
    exit: &ExitCause,
    judged: Option<(&Verdict, Option<TimeMs>)>,
) {
    let Some(executor) = state.executors.get(id).cloned() else { return };
    state.executors.remove(id);
    if state.slot(slot).is_some_and(|slot| slot.executor.as_ref() == Some(id)) {
        state.change_slot(slot, |slot| slot.executor = None);
    }
    let Some(job) = state.live.get_mut(&id.job) else { return };
    job.stragglers.remove(id);
    if let ExitCause::Failed { code_ended: Some(at), .. } = exit {
        let executors_numbered = job.executors_numbered;
        job.faults.note_code_end(CodeEnd { at: *at, slot: slot.clone(), executors_numbered });
    }
    let awaited_until = match judged {
        Some((verdict, awaited_until)) => {
            note(job, at, verdict);
            awaited_until
        }
        None => version_one::gone(job, at, id, &executor, exit),
    };
    if let Some((active, until)) = job.active_mut().zip(awaited_until) {
        active.left.insert(id.clone(), until);
    }
    requeue_if_empty(state, &id.job);
}

pub(super) fn proposed(state: &mut State, id: &JobId, proposal: &Proposal) {
    if let Some(job) = state.live.get_mut(id) {
        job.generation = job.generation.max(proposal.generation);
        if !matches!(proposal.entry, Entry::Switch { .. }) {
            job.round = job.generation;
        }
        if let Some(placement) = job.placement_mut() {
            placement.proposed = Some(proposal.clone());
            placement.unlinked.clear();
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
    // Who came in by a switch is sent the replica from now on, and says itself when it has it.
    let newcomer = |member: &ExecutorId| {
        let was_in = job.active().is_some_and(|active| active.members.contains(member));
        matches!(proposal.entry, Entry::Switch { .. }) && !was_in
    };
    let holders: Vec<ExecutorId> = members.iter().filter(|member| !newcomer(member)).cloned().collect();
    for member in &holders {
        state.executors.change(member, |executor| executor.replica = true);
    }
    let class = members.iter().find_map(|member| {
        let executor = state.executors.get(member)?;
        state.servers.get(&executor.slot.server).map(|server| server.class)
    });
    let class_of_code = members.iter().find_map(|member| state.executors.get(member)?.class);
    let (leader, stride) = (proposal.leader.clone(), proposal.stride);
    let active = Active { proposal, members, leader, before, left: BTreeMap::new(), step, at, pause_us };
    let newer = |placement: Placement| Placement {
        proposed: placement.proposed.filter(|proposal| proposal.generation > generation),
        abandoned: placement.abandoned.into_iter().filter(|proposal| proposal.generation > generation).collect(),
        attempts: 0,
        ..placement
    };
    change_phase(state, id, |phase| match phase {
        JobPhase::Starting(placement) | JobPhase::Running(placement, _) => JobPhase::Running(newer(placement), active),
        JobPhase::Suspending(placement, _) => JobPhase::Suspending(newer(placement), Some(active)),
        other => other,
    });
    if let Some(job) = state.live.get_mut(id) {
        job.class = job.class.or(class);
        job.class_of_code = job.class_of_code.or(class_of_code);
        job.faults.starts = 0;
        if job.spec.batch_range.is_some() {
            job.strides.insert(stride);
        }
        forget_stragglers(job);
    }
}

pub(super) fn abandoned(
    state: &mut State,
    at: TimeMs,
    id: &JobId,
    generation: Generation,
    cause: AbandonCause,
    verdict: Option<&Verdict>,
) {
    let Some(job) = state.live.get_mut(id) else { return };
    let Some(placement) = job.placement_mut() else { return };
    let Some(proposal) = placement.proposed.take_if(|proposal| proposal.generation == generation) else { return };
    placement.abandoned.push(proposal);
    if placement.abandoned.len() > ABANDONED_MAX {
        placement.abandoned.remove(0);
    }
    if cause == AbandonCause::Deadline {
        placement.attempts += 1;
    }
    match verdict {
        Some(verdict) => note(job, at, verdict),
        None => version_one::abandoned(job, at, cause),
    }
}

pub(super) fn peers_missing(
    state: &mut State,
    at: TimeMs,
    id: &JobId,
    generation: Generation,
    by: &ExecutorId,
    peers: &[ExecutorId],
) {
    let Some(placement) = state.live.get_mut(id).and_then(|job| job.placement_mut()) else { return };
    if placement.proposed.as_ref().is_none_or(|proposal| proposal.generation != generation) {
        return;
    }
    if placement.unlinked.is_empty() {
        placement.unlinked_at = at;
    }
    placement.unlinked.extend(peers.iter().map(|peer| (by.min(peer).clone(), by.max(peer).clone())));
}

pub(super) fn replica_held(state: &mut State, id: &ExecutorId) {
    let held = state.executors.change(id, |executor| {
        executor.replica = true;
        executor.slot.clone()
    });
    let Some(slot) = held else { return };
    if let Some(job) = state.live.get_mut(&id.job) {
        job.growth = Pause::default();
        job.given_up = None;
        job.avoided.remove(&slot);
        job.unlike.remove(&slot);
    }
}

pub(super) fn stepped(state: &mut State, id: &JobId, (members, stride): (Option<u16>, Stride), update_us: u64) {
    if let Some(job) = state.live.get_mut(id) {
        let step_us = update_us / stride.steps();
        job.step_us = Some(step_us);
        // An earlier build does not say of how many steps its update is; of these the measurement tells.
        let members = members.filter(|_| job.spec.batch_range.is_none() || !stride.is_one());
        members.into_iter().for_each(|members| job.note_pace(members, step_us));
        // Whoever has done a step has what it needed of the store.
        job.note_answered();
    }
}

pub(super) fn throughput_measured(
    state: &mut State,
    id: &JobId,
    (members, stride): (u16, Stride),
    (update_us, spread): (u64, Option<Spread>),
) {
    let Some(job) = state.live.get_mut(id) else { return };
    let step_us = (update_us / stride.steps()).max(1);
    job.step_us = Some(step_us);
    job.note_pace(members, step_us);
    let has_range = job.spec.batch_range.is_some();
    if let Some(placement) = job.placement_mut() {
        placement.step_us_by_size.insert(members, step_us);
        match spread {
            Some(spread) => placement.spread_by_size.insert(members, spread.of_step(stride)),
            None => placement.spread_by_size.remove(&members),
        };
        if has_range {
            placement.update_us.insert((members, stride), update_us);
        }
    }
}

pub(super) fn stalled(
    state: &mut State,
    at: TimeMs,
    id: &JobId,
    step: Step,
    (cause, blamed, remedy): (StallCause, &[Blamed], StallRemedy),
    anew: Option<bool>,
) {
    let hung: Vec<_> = blamed
        .iter()
        .filter_map(|blamed| Some((blamed.rank?, state.executors.get(&blamed.executor)?.slot.clone())))
        .collect();
    let Some(job) = state.live.get_mut(id) else { return };
    let goes_on = |stall: &Stall| anew.map_or(stall.step == step, |anew| !anew);
    let known = job.stall.take().filter(goes_on);
    let fresh = || Stall { step, tried: Vec::new(), cause, hung: BTreeSet::new(), at, answered: false, furthest: None };
    let mut stall = known.unwrap_or_else(fresh);
    if stall.step != step {
        stall.furthest = Some(stall.furthest().max(step)).filter(|furthest| *furthest > step);
        stall.step = step;
        stall.hung.clear();
    }
    (stall.cause, stall.at, stall.answered) = (cause, at, false);
    stall.tried.push(remedy);
    stall.hung.extend(hung);
    job.stall = Some(stall);
}

pub(super) fn slot_avoided(state: &mut State, id: &JobId, slot: &SlotId, until: TimeMs, cause: AvoidCause) {
    if let Some(job) = state.live.get_mut(id) {
        job.avoided.entry(slot.clone()).or_default().fail(until);
        match cause {
            AvoidCause::Class => _ = job.unlike.insert(slot.clone()),
            AvoidCause::Unreachable | AvoidCause::Hung | AvoidCause::Slow => _ = job.unlike.remove(slot),
        }
    }
}

pub(super) fn growth_paused(state: &mut State, id: &JobId, until: TimeMs, given_up: GivenUp) {
    if let Some(job) = state.live.get_mut(id) {
        job.growth.fail(until);
        job.given_up = Some(given_up);
    }
}

pub(super) fn lost(state: &mut State, loss: Loss) {
    if let Some(job) = state.live.get_mut(&loss.executor.job) {
        job.lost = Some(loss);
    }
}

pub(super) fn straggles(state: &mut State, id: &ExecutorId, straggler: Straggler) {
    if let Some(job) = state.live.get_mut(&id.job) {
        job.stragglers.insert(id.clone(), straggler);
    }
}

pub(super) fn keeps_up(state: &mut State, id: &ExecutorId) {
    if let Some(job) = state.live.get_mut(&id.job) {
        job.stragglers.remove(id);
    }
}

pub(super) fn diverged(state: &mut State, at: TimeMs, id: &JobId, verdict: &Verdict) {
    if let Some(job) = state.live.get_mut(id) {
        note(job, at, verdict);
    }
}

/// Only a member that others wait for straggles.
fn forget_stragglers(job: &mut Job) {
    let members = job.active().map(|active| active.members.clone()).unwrap_or_default();
    job.stragglers.retain(|executor, _| members.len() > 1 && members.contains(executor));
}

pub(super) fn departed(state: &mut State, id: &JobId, executor: &ExecutorId, leader: &ExecutorId, step: Step) {
    state.executors.change(executor, |executor| executor.departed = true);
    let Some(job) = state.live.get_mut(id) else { return };
    let Some(active) = job.active_mut() else { return };
    active.members.remove(executor);
    active.left.remove(executor);
    active.before.insert(executor.clone());
    active.leader = leader.clone();
    active.step = active.step.max(step);
    forget_stragglers(job);
}
