//! Reports of a job's members, mostly its leader: active, departed, peer lost, evaluation, completed, broken. What they say of
//! checkpoints is in [`super::checkpoints`].
//!
//! Only the generation in force counts (for "active": one that was proposed): an evicted leader that still runs somewhere
//! changes nothing. Who misses whom is in `links.rs`.

use super::{Draft, agents::slot_taken_back, bandwidth, checkpoints, divergence, links, throughput};
use crate::state::Job;
use events_schema::fact::Fact;
use events_schema::report::{Outcome, Report, ReportRecord};
use events_schema::{ExecutorId, Generation, JobId, ServerId, Step};

pub(super) fn report(draft: &mut Draft<'_>, record: &ReportRecord) {
    match &record.report {
        Report::GenerationActive { job, generation, step, pause_us } => {
            let placement = hosted(draft, &record.server, job).and_then(Job::placement);
            if placement.is_some_and(|placement| placement.may_be_in_force(*generation)) {
                let (id, generation, step, pause_us) = (job.clone(), *generation, *step, *pause_us);
                draft.emit(Fact::GenerationActive { job: id, generation, step, pause_us });
                checkpoints::retire_passed_over(draft, job, step);
            }
        }
        Report::MemberDeparted { job, generation, executor, leader, step } => {
            if in_force(draft, &record.server, job, *generation) {
                departed(draft, job, *generation, executor, leader, *step);
            }
        }
        Report::JobCompleted { job, generation, outcome } => {
            if in_force(draft, &record.server, job, *generation) {
                // Whatever the report names: a job's model is in one place.
                let outcome = Outcome { model_key: storage_keys::model(job), ..outcome.clone() };
                draft.emit(Fact::JobFinished { job: job.clone(), outcome });
            }
        }
        Report::CheckpointSaved { .. } | Report::CheckpointDamaged { .. } | Report::CheckpointUnreadable { .. } => {
            checkpoints::report(draft, record);
        }
        Report::JobBroken { job, generation, reason } => {
            // It may break before its first generation; a newcomer that breaks beside healthy members is only lost.
            let counts = |job: &Job| job.active().is_none_or(|active| *generation >= active.proposal.generation);
            if hosted(draft, &record.server, job).is_some_and(counts) {
                draft.emit(Fact::JobFailed { job: job.clone(), reason: reason.clone() });
            }
        }
        Report::Evaluated { job, generation, step, metrics } => {
            // After a restart the same steps are evaluated again, with the same result.
            let newer = |job: &Job| job.evaluation.as_ref().is_none_or(|evaluation| *step > evaluation.step);
            if in_force(draft, &record.server, job, *generation) && draft.state.job(job).is_some_and(newer) {
                draft.emit(Fact::Evaluated { job: job.clone(), step: *step, metrics: metrics.clone() });
            }
        }
        Report::PeerLost { job, generation, executor } => {
            // An earlier build's word, undecided in its log: who misses it is not said, but whoever leads has the same trouble.
            if let Some(by) = hosted(draft, &record.server, job).and_then(Job::active).map(|a| a.leader.clone()) {
                links::missing(draft, job, *generation, &by, std::slice::from_ref(executor), true);
            }
        }
        Report::PeersMissing { job, generation, by, peers, begun, .. } => {
            if hosted(draft, &record.server, job).is_some() && by.job == *job {
                links::missing(draft, job, *generation, by, peers, *begun);
            }
        }
        Report::ReplicaHeld { executor, generation, step } => {
            if hosted(draft, &record.server, &executor.job).is_some() {
                replica_held(draft, executor, *generation, *step);
            }
        }
        Report::GenerationStepped { job, generation, step, first_step_us, usual_step_us, usual_members, stride } => {
            if in_force(draft, &record.server, job, *generation) {
                let (first_step_us, usual_step_us) = (*first_step_us, *usual_step_us);
                // A first step has the change in it: it says something of a job's pace only as long as nothing else does.
                let of_first = || {
                    let unknown = draft.state.job(job).filter(|job| job.pace.is_none());
                    unknown.and_then(Job::active).map(|active| active.members.len() as u16)
                };
                let members = if usual_step_us.is_some() { *usual_members } else { of_first() };
                draft.emit(Fact::GenerationStepped {
                    job: job.clone(),
                    generation: *generation,
                    step: *step,
                    first_step_us,
                    usual_step_us,
                    members,
                    stride: *stride,
                });
                scaled(draft, job, usual_step_us.map(|usual| first_step_us.saturating_sub(usual)));
            }
        }
        Report::ThroughputMeasured { job, generation, members, step_us, stride, spread } => {
            if in_force(draft, &record.server, job, *generation) {
                throughput::measured(draft, job, (*members, *stride), (*step_us, *spread));
            }
        }
        Report::ReplicasDiffer { by, step, minority } => {
            divergence::replicas_differ(draft, &record.server, by, *step, minority);
        }
        Report::NewcomerFallsBehind { by, generation, executor, .. } => {
            if by.job == executor.job && in_force(draft, &record.server, &by.job, *generation) {
                bandwidth::falls_behind(draft, executor);
            }
        }
        Report::AgentJoined { .. }
        | Report::AgentGone
        | Report::JobStalled { .. }
        | Report::MemberStraggles { .. }
        | Report::MemberKeepsUp { .. }
        | Report::TypesMeasured { .. }
        | Report::LoadMeasured { .. }
        | Report::ExecutorReady { .. }
        | Report::LinkMeasured { .. }
        | Report::LinkSurveyed { .. }
        | Report::ExecutorGone { .. }
        | Report::SlotTakenBack { .. }
        | Report::SlotQuarantined { .. }
        | Report::SlotRecovered { .. }
        | Report::CheckpointWritten { .. }
        | Report::ObjectsSwept { .. } => {}
    }
}

/// An unfinished job that has an executor on the server the report is from.
pub(super) fn hosted<'a>(draft: &'a Draft<'_>, server: &ServerId, id: &JobId) -> Option<&'a Job> {
    let job = draft.state.job(id).filter(|job| !job.phase.is_terminal())?;
    draft.state.executors_of(id).any(|(_, executor)| executor.slot.server == *server).then_some(job)
}

pub(super) fn in_force(draft: &Draft<'_>, server: &ServerId, id: &JobId, generation: Generation) -> bool {
    let active = hosted(draft, server, id).and_then(Job::active);
    active.is_some_and(|active| active.proposal.generation == generation)
}

fn departed(
    draft: &mut Draft<'_>,
    id: &JobId,
    generation: Generation,
    executor: &ExecutorId,
    leader: &ExecutorId,
    step: Step,
) {
    let Some(active) = draft.state.job(id).and_then(Job::active) else { return };
    if !active.members.contains(executor) || !active.members.contains(leader) || leader == executor {
        return;
    }
    let (job, executor, leader) = (id.clone(), executor.clone(), leader.clone());
    draft.emit(Fact::MemberDeparted { job, generation, executor: executor.clone(), leader, step });
    // Only a direct take-back makes a member depart: what its agent will say of the slot is known already, but for when it was asked.
    if let Some(slot) = draft.state.executor(&executor).map(|executor| executor.slot.clone()) {
        let now = draft.at;
        slot_taken_back(draft, &slot, None, None, now);
        scaled(draft, id, None);
    }
}

/// A job that has done a step on as many slots as its plan has is scaled; said once for each change of the plan.
fn scaled(draft: &mut Draft<'_>, id: &JobId, pause_us: Option<u64>) {
    let Some(job) = draft.state.job(id) else { return };
    let Some((active, scaling)) = job.active().zip(job.scaling.as_ref().filter(|scaling| !scaling.trained)) else {
        return;
    };
    if active.members.len() != scaling.to as usize {
        return;
    }
    let (from, to, cause) = (scaling.from, scaling.to, scaling.cause.clone());
    let took_ms = draft.at.since_ms(scaling.at);
    draft.emit(Fact::JobScaled { job: id.clone(), from, to, cause, took_ms, pause_us });
}

/// A newcomer holds the replica. Its own word, so that nobody else has to live for it to count; of this start of the job only.
fn replica_held(draft: &mut Draft<'_>, executor: &ExecutorId, generation: Generation, step: Step) {
    let Some(job) = draft.state.job(&executor.job) else { return };
    let Some(placement) = job.placement() else { return };
    let active = job.active().map(|active| &active.proposal);
    let mut known = active.into_iter().chain(&placement.proposed).chain(&placement.abandoned);
    let came_in = known.any(|p| p.generation == generation && p.members.iter().any(|m| m.executor == *executor));
    if came_in && draft.state.executor(executor).is_some_and(|executor| !executor.replica) {
        draft.emit(Fact::ReplicaHeld { executor: executor.clone(), step });
    }
}
