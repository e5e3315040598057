//! Reports of a job's members, mostly its leader: active, departed, peer lost, checkpoint, evaluation, completed, broken.
//!
//! Only the generation in force counts (for "active": one that was proposed): an evicted leader that still runs somewhere
//! changes nothing.

use super::{Draft, agents::slot_taken_back, proposals};
use crate::state::Job;
use events_schema::fact::{AbandonCause, CheckpointInfo, Entry, Fact, LeaveCause};
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
            if in_force(draft, &record.server, job, *generation) {
                peer_lost(draft, job, executor);
            }
        }
        Report::AgentJoined { .. }
        | Report::AgentGone
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

/// Two living members have lost each other: the step in flight cannot end without them, and only a new round links them again.
/// If one of them is gone after all, its agent will say so, and another round goes on without it.
fn peer_lost(draft: &mut Draft<'_>, id: &JobId, executor: &ExecutorId) {
    let Some(job) = draft.state.job(id) else { return };
    if !job.active().is_some_and(|active| active.members.contains(executor)) {
        return;
    }
    if let Some(proposal) = job.placement().and_then(|placement| placement.proposed.clone()) {
        if matches!(proposal.entry, Entry::Recover) {
            return;
        }
        let (generation, cause) = (proposal.generation, AbandonCause::MemberLost);
        draft.emit(Fact::GenerationAbandoned { job: id.clone(), generation, cause });
    }
    proposals::recover(draft, id);
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
