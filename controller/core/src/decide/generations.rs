//! The heart: brings one job into order. Looks at what the job has and emits the next fact that is due, until none is.
//!
//! Level-triggered: nothing here reacts to an event, everything follows from the state and the time, so whatever was lost,
//! repeated or overtaken on its way is put right by the next look. [`act_on_due`] is the list of what can be due, in order.
//! How proposals are made is in [`super::proposals`].

use super::{Draft, failures, jobs, links, proposals, reclaim, retrains};
use crate::limits::{
    ATTEMPTS_MAX, AVOID_MS_MAX, AVOID_MS_MIN, GROWTH_PAUSE_MS_MIN, LOST_AVOID_MS_MIN, PLAN_LEAVE_MS, READY_DEADLINE_MS,
    STUCK_MS,
};
use crate::state::troubles::{Loss, Pause};
use crate::state::{Active, Executor, Job, JobPhase, Leaving, Placement, SlotState, State};
use events_schema::fact::{
    AbandonCause, AvoidCause, Entry, Fact, GrowthFailure, LeaveCause, PlanCause, Proposal, RestartCause, Verdict,
};
use events_schema::{ExecutorId, Generation, JobId, SlotId, Step, TimeMs};

/// Has every job looked at for which time alone may have made something due.
pub(super) fn wake(draft: &mut Draft<'_>) {
    let calm = |job: &Job| match &job.phase {
        JobPhase::Running(placement, active) => {
            placement.proposed.is_none()
                && !placement.is_broken_off()
                && active.left.is_empty()
                && active.members.len() == placement.slots.len()
        }
        _ => false,
    };
    let restless: Vec<JobId> =
        draft.state.placed_jobs().filter(|(_, job)| !calm(job)).map(|(id, _)| id.clone()).collect();
    restless.iter().for_each(|id| draft.touch(id));
}

/// Gives up waiting for executors that should be gone and are not: a process that the kernel does not end must not hold up its job, nor a
/// plan that counts on its slot. (Those of a server that is away are gone for the core already.)
pub(super) fn give_up_stuck(draft: &mut Draft<'_>) {
    let is_due = |leaving: Leaving| draft.at.since_ms(leaving.deadline) >= STUCK_MS;
    let due =
        draft.state.executors.leaving().filter(|(_, executor)| !executor.stuck && executor.leaving.is_some_and(is_due));
    let due: Vec<(ExecutorId, SlotId)> =
        due.map(|(number, executor)| (number.clone(), executor.slot.clone())).collect();
    for (executor, slot) in due {
        draft.emit(Fact::ExecutorStuck { executor, slot: slot.clone() });
        reclaim::withdraw(draft, std::iter::once(&slot), PlanCause::Lost);
    }
}

/// Emits what is due next for a job; whether anything was.
pub(super) fn act_on_due(draft: &mut Draft<'_>, id: &JobId) -> bool {
    let Some(job) = draft.state.job(id) else { return false };
    match &job.phase {
        JobPhase::Queued | JobPhase::Suspended => dismiss(draft, id, LeaveCause::Useless),
        JobPhase::Finished { .. } | JobPhase::Failed { .. } | JobPhase::Cancelled { .. } => {
            dismiss(draft, id, LeaveCause::JobEnd)
        }
        JobPhase::Suspending(..) if !draft.state.has_awaited(id) => {
            jobs::suspended(draft, id);
            true
        }
        JobPhase::Starting(_) | JobPhase::Running(..) | JobPhase::Suspending(..) => {
            let_go(draft, id)
                || links::leave_out(draft, id)
                || give_up_proposal(draft, id)
                || replace_lost(draft, id)
                || give_up_late(draft, id)
                || assign(draft, id)
                || retrains::give_up(draft, id)
                || proposals::propose(draft, id)
        }
    }
}

/// Tells every executor of a job that is not told so yet to stop at once.
pub(super) fn dismiss(draft: &mut Draft<'_>, id: &JobId, cause: LeaveCause) -> bool {
    let told = |executor: &Executor| executor.leaving.is_some_and(|leaving| leaving.at_once());
    let there = draft.state.executors_of(id).filter(|(_, executor)| !told(executor));
    let there: Vec<ExecutorId> = there.map(|(executor, _)| executor.clone()).collect();
    leave(draft, &there, draft.at, cause)
}

fn leave(draft: &mut Draft<'_>, executors: &[ExecutorId], deadline: TimeMs, cause: LeaveCause) -> bool {
    for executor in executors {
        let verdict = Some(Verdict::Well);
        draft.emit(Fact::ExecutorLeaving { executor: executor.clone(), deadline, cause, verdict });
    }
    !executors.is_empty()
}

/// Executors that the plan does not have any more leave at the next boundary; those that no running generation has, at once.
fn let_go(draft: &mut Draft<'_>, id: &JobId) -> bool {
    let Some(job) = draft.state.job(id) else { return false };
    // Executors are numbered in the order of the slots that they are started on: mostly the next one has the next slot.
    let mut next = job.slots().iter().peekable();
    let mut is_planned = |slot: &SlotId| next.next_if_eq(&slot).is_some() || job.slots().contains(slot);
    let due: Vec<(ExecutorId, TimeMs, LeaveCause)> = draft
        .state
        .executors_of(id)
        .filter_map(|(number, executor)| {
            let planned = is_planned(&executor.slot);
            let (deadline, cause) = has_to_leave(draft, job, (number, executor), planned)?;
            Some((number.clone(), deadline, cause))
        })
        .collect();
    due.into_iter().fold(false, |_, (executor, deadline, cause)| leave(draft, &[executor], deadline, cause))
}

fn has_to_leave(
    draft: &Draft<'_>,
    job: &Job,
    (number, executor): (&ExecutorId, &Executor),
    planned: bool,
) -> Option<(TimeMs, LeaveCause)> {
    if executor.leaving.is_some_and(|leaving| leaving.at_once()) {
        return None;
    }
    let suspending = matches!(job.phase, JobPhase::Suspending(..));
    let goes = !planned || executor.leaving.is_some();
    if !goes && !suspending {
        return None;
    }
    // A leaver that a switch left out is on its way: it exits once the boundary's step is acknowledged. One that a recovery left
    // out hears of nothing.
    let on_its_way =
        |active: &Active| matches!(active.proposal.entry, Entry::Switch { .. }) && active.before.contains(number);
    // Also a member that still waits for the replica leaves by consent: the others would have to come together anew without it.
    let trains =
        job.active().is_some_and(|active| active.members.contains(number) || executor.replica && on_its_way(active));
    if !trains {
        return Some((draft.at, LeaveCause::Useless));
    }
    if !goes {
        return None;
    }
    let reclaimed = draft.state.slot(&executor.slot).map(|slot| slot.state);
    match (reclaimed, executor.leaving) {
        (Some(SlotState::Reclaimed { deadline, .. }), None) => Some((deadline, LeaveCause::Reclaim)),
        // The plan let it go first, then its fleet wants it sooner.
        (Some(SlotState::Reclaimed { deadline, .. }), Some(leaving)) => {
            (deadline < leaving.deadline).then_some((deadline, LeaveCause::Reclaim))
        }
        (_, None) => Some((draft.at.plus_ms(PLAN_LEAVE_MS), LeaveCause::Plan)),
        (_, Some(_)) => None,
    }
}

/// Members of the generation in force that are gone, and not just unexplained for a moment.
fn has_lost_members(state: &State, active: &Active, at: TimeMs) -> bool {
    let awaited = |member: &ExecutorId| active.left.get(member).is_some_and(|until| at < *until);
    let members = active.members.iter().zip(state.executors.each(active.members.iter()));
    members.filter(|(_, executor)| executor.is_none()).any(|(member, _)| !awaited(member))
}

/// Why an outstanding proposal cannot or need not become active, if so.
fn why_abandon(draft: &Draft<'_>, job: &Job, proposal: &Proposal) -> Option<AbandonCause> {
    let executors = || draft.state.executors.each(proposal.members.iter().map(|member| &member.executor));
    let active = job.active();
    let lost = executors().any(|executor| executor.is_none());
    let recovers = matches!(proposal.entry, Entry::Recover);
    if lost || (!recovers && active.is_some_and(|active| has_lost_members(&draft.state, active, draft.at))) {
        return Some(AbandonCause::MemberLost);
    }
    let stale = match (&proposal.entry, active) {
        (Entry::Switch { from }, Some(active)) => *from != active.proposal.generation,
        (Entry::Switch { .. } | Entry::Recover, None) => true,
        (Entry::Fresh | Entry::Checkpoint { .. }, active) => active.is_some(),
        (Entry::Recover, Some(_)) => false,
    };
    let leaves = |executor: &Executor| executor.leaving.is_some_and(|leaving| leaving.cause != LeaveCause::Plan);
    let has_leaver = executors().flatten().any(leaves);
    let has_stayer = executors().flatten().any(|executor| executor.leaving.is_none());
    let none_recovers = !executors().flatten().any(Executor::can_recover) && active.is_some();
    if stale || (has_leaver && has_stayer) || none_recovers || (active.is_none() && has_leaver) {
        return Some(AbandonCause::Superseded);
    }
    (draft.at >= proposal.deadline && !job.waits_for_store(draft.at)).then_some(AbandonCause::Deadline)
}

fn give_up_proposal(draft: &mut Draft<'_>, id: &JobId) -> bool {
    let Some(job) = draft.state.job(id) else { return false };
    let Some(proposal) = job.placement().and_then(|placement| placement.proposed.as_ref()) else { return false };
    let Some(cause) = why_abandon(draft, job, proposal) else { return false };
    let proposal = proposal.clone();
    abandon(draft, id, proposal.generation, cause);
    if cause == AbandonCause::Deadline {
        let attempts = draft.state.job(id).and_then(Job::placement).map_or(0, |placement| placement.attempts);
        let switches = matches!(proposal.entry, Entry::Switch { .. });
        // A newcomer that stalls a switch is no loss, also one that holds the replica of a generation it was left out of. Members that again
        // and again do not come together are replaced.
        let active = draft.state.job(id).and_then(Job::active);
        let in_force = |number: &ExecutorId| active.is_some_and(|active| active.members.contains(number));
        let useless = |number: &&ExecutorId| match draft.state.executor(number) {
            Some(executor) if switches => !executor.replica || !in_force(number),
            Some(_) => attempts >= ATTEMPTS_MAX,
            None => false,
        };
        let members = proposal.members.iter().map(|member| &member.executor);
        let drop: Vec<ExecutorId> = members.filter(useless).cloned().collect();
        if let Some(newcomer) = drop.first().filter(|_| switches) {
            pause_growth(draft, newcomer, GrowthFailure::Late);
        }
        leave(draft, &drop, draft.at, LeaveCause::Useless);
    }
    true
}

/// A newcomer cannot follow: its job goes on without it, and without whoever was to come in with it.
pub(super) fn give_up_newcomer(draft: &mut Draft<'_>, newcomer: &ExecutorId) {
    let Some(job) = draft.state.job(&newcomer.job) else { return };
    let is_member = job.active().is_some_and(|active| active.members.contains(newcomer));
    let proposed = job.placement().and_then(|placement| placement.proposed.as_ref());
    let comes_in = proposed.is_some_and(|proposal| proposal.members.iter().any(|member| member.executor == *newcomer));
    if is_member || !comes_in {
        return;
    }
    give_up(draft, &newcomer.job, AbandonCause::Superseded);
    pause_growth(draft, newcomer, GrowthFailure::Slow);
    turn_away(draft, newcomer);
}

/// A newcomer was given up: the job does not grow for a while, longer each time, because each try costs the others a pause or the sending of a replica.
pub(super) fn pause_growth(draft: &mut Draft<'_>, newcomer: &ExecutorId, cause: GrowthFailure) {
    let Some(job) = draft.state.job(&newcomer.job) else { return };
    // Several that fail together are one failure.
    if draft.at < job.growth.until {
        return;
    }
    let until = next_until(job.growth, draft.at, GROWTH_PAUSE_MS_MIN);
    draft.emit(Fact::GrowthPaused { job: newcomer.job.clone(), until, executor: newcomer.clone(), cause });
}

/// An executor that hung or cannot be linked stops at once, and its slot is avoided for a while.
pub(super) fn avoid(draft: &mut Draft<'_>, number: &ExecutorId, cause: AvoidCause) {
    let Some(slot) = draft.state.executor(number).map(|executor| executor.slot.clone()) else { return };
    avoid_slot(draft, &number.job, slot, cause, AVOID_MS_MIN);
    turn_away(draft, number);
}

/// A job does not use a slot for a while, so long the first time.
pub(super) fn avoid_slot(draft: &mut Draft<'_>, id: &JobId, slot: SlotId, cause: AvoidCause, first_ms: u64) {
    let Some(job) = draft.state.job(id) else { return };
    let until = next_until(job.avoided.get(&slot).copied().unwrap_or_default(), draft.at, first_ms);
    draft.emit(Fact::SlotAvoided { job: id.clone(), slot, until, cause });
}

/// An executor stops at once.
pub(super) fn turn_away(draft: &mut Draft<'_>, number: &ExecutorId) {
    leave(draft, std::slice::from_ref(number), draft.at, LeaveCause::Useless);
}

/// A server is lost with an executor of a job that is not in any generation yet: all that are to begin wait for that one, so it begins without
/// that slot if it can. Without this, a server that comes back and is lost again before anybody there is ready holds it up for ever.
pub(super) fn avoid_while_it_begins(draft: &mut Draft<'_>, id: &JobId, slot: SlotId) {
    let begins = |job: &&Job| matches!(job.phase, JobPhase::Starting(_)) && job.spec.gang().is_none();
    if draft.state.job(id).is_some_and(|job| begins(&job)) {
        avoid_slot(draft, id, slot, AvoidCause::Unreachable, LOST_AVOID_MS_MIN);
    }
}

/// When something that fails now may be tried again, with so long a first pause.
pub(super) fn next_until(pause: Pause, at: TimeMs, first_ms: u64) -> TimeMs {
    at.plus_ms((first_ms << pause.failures.min(16)).min(AVOID_MS_MAX))
}

fn abandon(draft: &mut Draft<'_>, id: &JobId, generation: Generation, cause: AbandonCause) {
    let verdict = Some(failures::abandoned(draft, id, cause));
    draft.emit(Fact::GenerationAbandoned { job: id.clone(), generation, cause, verdict });
}

/// Gives up what is proposed, for a reason that is not its deadline.
pub(super) fn give_up(draft: &mut Draft<'_>, id: &JobId, cause: AbandonCause) {
    let proposed = draft.state.job(id).and_then(Job::placement).and_then(|placement| placement.proposed.as_ref());
    if let Some(generation) = proposed.map(|proposal| proposal.generation) {
        abandon(draft, id, generation, cause);
    }
}

/// Survivors recover; without any the job goes back to its last checkpoint.
fn replace_lost(draft: &mut Draft<'_>, id: &JobId) -> bool {
    let Some(job) = draft.state.job(id) else { return false };
    let (Some(placement), Some(active)) = (job.placement(), job.active()) else {
        // Without a replica there is nothing to write down: who has to give everything back does so at once.
        let gives_up =
            job.placement().is_some_and(|p| p.slots.is_empty()) || matches!(job.phase, JobPhase::Suspending(..));
        return gives_up && dismiss(draft, id, LeaveCause::Useless);
    };
    if job.spec.gang().is_some() {
        return disband(draft, id);
    }
    let survives = |(_, executor): &(&ExecutorId, &Executor)| executor.can_recover();
    let any_survivor = draft.state.executors_of(id).any(|entry| survives(&entry));
    let awaited = active.left.iter().any(|(member, until)| active.members.contains(member) && draft.at < *until);
    if !any_survivor && !awaited {
        let cause = why_all_are_gone(job, active);
        return restart(draft, id, cause);
    }
    let due = has_lost_members(&draft.state, active, draft.at) || placement.is_broken_off();
    if placement.proposed.is_some() || !any_survivor || !due {
        return false;
    }
    proposals::recover(draft, id);
    true
}

/// A gang whose leader is gone, or let go with everything saved, is over: what its program wrote last nobody has any more. As long as its leader is there, that
/// one stops the program and saves (`park` of its order), whoever else was lost.
fn disband(draft: &mut Draft<'_>, id: &JobId) -> bool {
    let leader = draft.state.job(id).and_then(Job::active).and_then(|active| draft.state.executor(&active.leader));
    if leader.is_some_and(Executor::can_recover) {
        return false;
    }
    let Some(cause) = draft.state.job(id).and_then(|job| Some(why_all_are_gone(job, job.active()?))) else {
        return false;
    };
    dismiss(draft, id, LeaveCause::Useless) || restart(draft, id, cause)
}

/// Why no member of the generation in force has the replica any more: the last of them that was lost, unless all were told to leave.
fn why_all_are_gone(job: &Job, active: &Active) -> RestartCause {
    match job.lost.clone().filter(|loss| active.members.contains(&loss.executor)) {
        Some(Loss { executor, slot, noticed, .. }) => RestartCause::Lost { executor, slot, noticed },
        None => RestartCause::Left,
    }
}

/// Every replica is lost, or written down and let go.
pub(super) fn restart(draft: &mut Draft<'_>, id: &JobId, cause: RestartCause) -> bool {
    let Some(job) = draft.state.job(id) else { return false };
    let ends = job.slots().is_empty() || matches!(job.phase, JobPhase::Suspending(..));
    if ends {
        return dismiss(draft, id, LeaveCause::JobEnd);
    }
    if job.faults.since_restart && job.faults.restarts >= job.spec.max_restarts {
        let reason = format!(
            "all its executors failed after {} restarts (max_restarts: {}); the last one: {}. `ebb logs {id}` has what they said",
            job.faults.restarts, job.spec.max_restarts, job.faults.last
        );
        draft.emit(Fact::JobFailed { job: id.clone(), reason });
        return true;
    }
    let from = job.last_checkpoint().map_or(Step(0), |checkpoint| checkpoint.step);
    draft.emit(Fact::JobRestarted { job: id.clone(), from, cause: Some(cause) });
    true
}

/// An executor that is not built in time is given up, and another one tried. Who knows that a first unit takes longer than usual has a model that is
/// built longer than usual too.
fn give_up_late(draft: &mut Draft<'_>, id: &JobId) -> bool {
    let Some(job) = draft.state.job(id) else { return false };
    if job.waits_for_store(draft.at) {
        return false;
    }
    let deadline_ms = READY_DEADLINE_MS.max(job.spec.unit_timeout_ms.ms());
    let late = |executor: &Executor| executor.is_starting() && draft.at.since_ms(executor.assigned_at) >= deadline_ms;
    let executors = draft.state.executors_of(id).filter(|(_, executor)| late(executor));
    let executors: Vec<ExecutorId> = executors.map(|(executor, _)| executor.clone()).collect();
    for executor in &executors {
        let (deadline, cause) = (draft.at, LeaveCause::Useless);
        let verdict = Some(failures::not_ready(draft, id));
        draft.emit(Fact::ExecutorLeaving { executor: executor.clone(), deadline, cause, verdict });
    }
    !executors.is_empty()
}

/// Starts an executor on every slot of the plan that is free, after a pause if the last ones failed.
fn assign(draft: &mut Draft<'_>, id: &JobId) -> bool {
    let Some(job) = draft.state.job(id) else { return false };
    let Some(placement) = growing(job) else { return false };
    if matches!(job.phase, JobPhase::Starting(_)) && job.faults.starts > job.spec.max_restarts {
        let reason = format!(
            "its executors could not be started in {} attempts (max_restarts: {}); the last one: {}. `ebb logs {id}` has what they said",
            job.faults.starts, job.spec.max_restarts, job.faults.last
        );
        draft.emit(Fact::JobFailed { job: id.clone(), reason });
        return true;
    }
    let grows = matches!(job.phase, JobPhase::Running(..));
    if grows && job.spec.gang().is_some() {
        return false;
    }
    if draft.at < job.faults.backoff_until()
        || (grows && draft.at < job.growth.until)
        || draft.state.is_parking(id) && draft.state.executors_of(id).any(|(_, e)| e.replica)
    {
        return false;
    }
    // Who stays is on a slot of the plan (`let_go`), nobody on the same one: nearly always they are all taken, and need not be looked up.
    let stay = draft.state.executors_of(id).filter(|(_, executor)| executor.leaving.is_none()).count();
    if stay == placement.slots.len() {
        return false;
    }
    let free = |slot: &&SlotId| {
        draft.state.slot(slot).is_some_and(|s| s.executor.is_none())
            && draft.state.is_present(slot)
            && !job.avoids(slot, draft.at)
    };
    let slots: Vec<SlotId> = placement.slots.iter().filter(free).cloned().collect();
    let first = job.executors_numbered;
    for (number, slot) in (first..).zip(&slots) {
        draft.emit(Fact::ExecutorAssigned { executor: ExecutorId { job: id.clone(), number }, slot: slot.clone() });
    }
    !slots.is_empty()
}

/// The placement of a job that is to run on its slots, not to leave them.
fn growing(job: &Job) -> Option<&Placement> {
    match &job.phase {
        JobPhase::Starting(placement) | JobPhase::Running(placement, _) if !placement.slots.is_empty() => {
            Some(placement)
        }
        _ => None,
    }
}
