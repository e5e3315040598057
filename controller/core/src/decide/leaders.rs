//! Reports of a job's members, mostly its leader: active, departed, peer lost, checkpoint, evaluation, completed, broken.
//!
//! Only the generation in force counts (for "active": one that was proposed): an evicted leader that still runs somewhere
//! changes nothing. Who misses whom is in `links.rs`.

use super::{Draft, agents::slot_taken_back, links};
use crate::state::Job;
use events_schema::fact::{CheckpointInfo, Entry, Fact, LeaveCause};
use events_schema::report::{Report, ReportRecord};
use events_schema::{ExecutorId, Generation, JobId, ServerId, Step};

pub(super) fn report(draft: &mut Draft<'_>, record: &ReportRecord) {
    match &record.report {
        Report::GenerationActive { job, generation, step, pause_us } => {
            let known = hosted(draft, &record.server, job).and_then(Job::placement).is_some_and(|placement| {
                placement.proposed.iter().chain(&placement.abandoned).any(|proposal| proposal.generation == *generation)
            });
            if known {
                let (id, generation, step, pause_us) = (job.clone(), *generation, *step, *pause_us);
                draft.emit(Fact::GenerationActive { job: id, generation, step, pause_us });
                retire_passed_over(draft, job, step);
            }
        }
        Report::MemberDeparted { job, generation, executor, leader, step } => {
            if in_force(draft, &record.server, job, *generation) {
                departed(draft, job, *generation, executor, leader, *step);
            }
        }
        Report::CheckpointWritten { job, generation, step, manifest_key, replica_digest, bytes } => {
            let (step, generation, manifest_key) = (*step, *generation, manifest_key.clone());
            let checkpoint =
                CheckpointInfo { step, generation, manifest_key, replica_digest: *replica_digest, bytes: *bytes };
            checkpoint_written(draft, &record.server, job, checkpoint);
        }
        Report::JobCompleted { job, generation, outcome } => {
            if in_force(draft, &record.server, job, *generation) {
                draft.emit(Fact::JobFinished { job: job.clone(), outcome: outcome.clone() });
            }
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
            let newer = |job: &Job| job.evaluation.is_none_or(|evaluation| *step > evaluation.step);
            if in_force(draft, &record.server, job, *generation) && draft.state.job(job).is_some_and(newer) {
                draft.emit(Fact::Evaluated { job: job.clone(), step: *step, metrics: *metrics });
            }
        }
        Report::PeerLost { job, generation, executor } => {
            // An earlier build's word: who misses it is not said, but whoever leads has the same trouble.
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
        Report::GenerationStepped { job, generation, step, first_step_us, usual_step_us } => {
            if in_force(draft, &record.server, job, *generation) {
                let (job, first_step_us, usual_step_us) = (job.clone(), *first_step_us, *usual_step_us);
                draft.emit(Fact::GenerationStepped {
                    job,
                    generation: *generation,
                    step: *step,
                    first_step_us,
                    usual_step_us,
                });
            }
        }
        Report::AgentJoined { .. }
        | Report::AgentGone
        | Report::JobStalled { .. }
        | Report::ExecutorReady { .. }
        | Report::ExecutorGone { .. }
        | Report::SlotTakenBack { .. } => {}
    }
}

/// An unfinished job that has an executor on the server the report is from.
fn hosted<'a>(draft: &'a Draft<'_>, server: &ServerId, id: &JobId) -> Option<&'a Job> {
    let job = draft.state.job(id).filter(|job| !job.phase.is_terminal())?;
    draft.state.executors_of(id).any(|(_, executor)| executor.slot.server == *server).then_some(job)
}

fn in_force(draft: &Draft<'_>, server: &ServerId, id: &JobId, generation: Generation) -> bool {
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
    // Only a direct take-back makes a member depart: what its agent will say of the slot is known already.
    if let Some(slot) = draft.state.executor(&executor).map(|executor| executor.slot.clone()) {
        slot_taken_back(draft, &slot);
    }
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

/// A job that began from a checkpoint before its newest passed over the later ones because they could not be read. It will write
/// those steps anew.
fn retire_passed_over(draft: &mut Draft<'_>, id: &JobId, step: Step) {
    let Some(job) = draft.state.job(id) else { return };
    if !job.active().is_some_and(|active| matches!(active.proposal.entry, Entry::Checkpoint { .. })) {
        return;
    }
    let passed_over = job.checkpoints.iter().filter(|checkpoint| checkpoint.step > step);
    let passed_over: Vec<String> = passed_over.map(|checkpoint| checkpoint.manifest_key.clone()).collect();
    for manifest_key in passed_over {
        draft.emit(Fact::CheckpointRetired { job: id.clone(), manifest_key });
    }
}

/// Accepts a checkpoint of the generation in force and retires those beyond the number to keep; any other is garbage.
fn checkpoint_written(draft: &mut Draft<'_>, server: &ServerId, id: &JobId, checkpoint: CheckpointInfo) {
    let Some(job) = draft.state.job(id) else { return };
    let counts = in_force(draft, server, id, checkpoint.generation);
    let parking = draft.state.is_parking(id);
    let known = job.checkpoints.iter().any(|known| known.manifest_key == checkpoint.manifest_key);
    let newest = job.last_checkpoint().map(|last| last.step);
    // A job that stands still may do so at a step that has its checkpoint already.
    let parked = counts && parking && newest.is_none_or(|newest| checkpoint.step >= newest);
    if !known && counts && (parked || newest.is_none_or(|newest| checkpoint.step > newest)) {
        accept(draft, id, job.spec.checkpoint.keep, checkpoint);
    } else if !known {
        draft.emit(Fact::CheckpointRetired { job: id.clone(), manifest_key: checkpoint.manifest_key });
    }
    if parked {
        // What it trained is written down; nothing is left to wait for.
        let there = draft.state.executors_of(id).filter(|(_, executor)| executor.replica);
        let there: Vec<ExecutorId> = there.map(|(executor, _)| executor.clone()).collect();
        for executor in there {
            draft.emit(Fact::ExecutorLeaving { executor, deadline: draft.at, cause: LeaveCause::JobEnd });
        }
    }
}

fn accept(draft: &mut Draft<'_>, id: &JobId, keep: u32, checkpoint: CheckpointInfo) {
    draft.emit(Fact::CheckpointAccepted { job: id.clone(), checkpoint });
    let Some(job) = draft.state.job(id) else { return };
    let beyond = job.checkpoints.len().saturating_sub(keep.max(1) as usize);
    let retired: Vec<String> =
        job.checkpoints[..beyond].iter().map(|checkpoint| checkpoint.manifest_key.clone()).collect();
    for manifest_key in retired {
        draft.emit(Fact::CheckpointRetired { job: id.clone(), manifest_key });
    }
}
