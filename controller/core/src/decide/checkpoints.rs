//! Reports about checkpoints: saved, damaged, unreadable. Which counts, which may be deleted, which is used instead.
//!
//! A report never names an object: it says who wrote what, and the name follows (`storage/keys/src/lib.rs`). So a report can only
//! reach what its own job wrote under a token that its sender knows.
//!
//! Next on a job's path: `controller/core/src/decide/leaders.rs`, the end of a job.

use super::Draft;
use super::leaders::{hosted, in_force};
use crate::limits::REASON_CHARS_MAX;
use crate::state::JobPhase;
use events_schema::fact::{CheckpointInfo, Entry, Fact, LeaveCause, Verdict};
use events_schema::report::{Report, ReportRecord};
use events_schema::{ExecutorId, Generation, JobId, ServerId, Step};
use storage_keys::CheckpointName;

pub(super) fn report(draft: &mut Draft<'_>, record: &ReportRecord) {
    let server = &record.server;
    match &record.report {
        // Nobody writes for a generation that is still to come.
        Report::CheckpointSaved { job, generation, step, written_in, writer, replica_digest, bytes, stands_still }
            if written_in <= generation =>
        {
            let (writer, step, replica_digest, bytes) = (Some(*writer), *step, *replica_digest, *bytes);
            let name = CheckpointName { job: job.clone(), generation: *written_in, step, writer };
            let manifest_key = name.manifest();
            let checkpoint = CheckpointInfo { step, generation: *written_in, manifest_key, replica_digest, bytes };
            saved(draft, server, job, *generation, checkpoint, *stands_still);
        }
        Report::CheckpointDamaged { job, generation, step, object, reason }
            if is_loading(draft, server, job, *generation, *step) =>
        {
            damaged(draft, job, *generation, *step, object, reason);
        }
        Report::CheckpointUnreadable { job, generation, step, reason }
            if is_loading(draft, server, job, *generation, *step) =>
        {
            unreadable(draft, job, *generation, *step, reason);
        }
        _ => {}
    }
}

/// Accepts a checkpoint of the generation in force and retires those beyond the number to keep; any other of its job is garbage.
///
/// A gang says itself whether it stands still, unless its executor is of an earlier build. What it saved while its program ran is not what that leaves when it is asked to end, and once its program
/// has ended it is over, also if the reason for that is over.
fn saved(
    draft: &mut Draft<'_>,
    server: &ServerId,
    id: &JobId,
    generation: Generation,
    checkpoint: CheckpointInfo,
    stands_still: Option<bool>,
) {
    // Whoever has no executor of the job wrote nothing of it.
    let Some(job) = hosted(draft, server, id) else { return };
    let counts = in_force(draft, server, id, generation);
    let parking = job.spec.gang().and(stands_still).unwrap_or_else(|| draft.state.is_parking(id));
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
            let (deadline, cause, verdict) = (draft.at, LeaveCause::JobEnd, Some(Verdict::Well));
            draft.emit(Fact::ExecutorLeaving { executor, deadline, cause, verdict });
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

/// A job that began from a checkpoint before its newest passed over the later ones because they could not be read. It will write
/// those steps anew.
pub(super) fn retire_passed_over(draft: &mut Draft<'_>, id: &JobId, step: Step) {
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

/// Whether a server has members of a job that were told to load checkpoints, and this is one that counts.
fn is_loading(draft: &Draft<'_>, server: &ServerId, id: &JobId, generation: Generation, step: Step) -> bool {
    hosted(draft, server, id).is_some_and(|job| {
        let proposals = job.placement().into_iter().flat_map(|p| p.proposed.iter().chain(&p.abandoned));
        let mut proposals = proposals.chain(job.active().map(|active| &active.proposal));
        let loads = proposals.any(|proposal| matches!(proposal.entry, Entry::Checkpoint { .. }));
        loads && job.checkpoint(generation, step).is_some()
    })
}

/// One member's word is enough, for it has read the object twice: from now on the checkpoint is not offered any more. What other
/// members have loaded of it already they go on from.
fn damaged(draft: &mut Draft<'_>, id: &JobId, generation: Generation, step: Step, object: &str, reason: &str) {
    let Some(job) = draft.state.job(id) else { return };
    let others = job.checkpoints.iter().filter(|other| Some(*other) != job.checkpoint(generation, step));
    let instead = others.map(|other| other.step).filter(|other| *other <= step).max().unwrap_or(Step(0));
    let (job, object, reason) = (id.clone(), cut(object), cut(reason));
    draft.emit(Fact::CheckpointDamaged { job, generation, step, object, reason, instead });
}

/// To begin before it would throw steps away that another build can read: the job waits for that build.
fn unreadable(draft: &mut Draft<'_>, id: &JobId, generation: Generation, step: Step, reason: &str) {
    if !matches!(draft.state.job(id).map(|job| &job.phase), Some(JobPhase::Starting(_))) {
        return;
    }
    draft.emit(Fact::CheckpointUnreadable { job: id.clone(), generation, step, reason: cut(reason) });
    draft.emit(Fact::JobSuspending { job: id.clone() });
}

fn cut(text: &str) -> String {
    text.chars().take(REASON_CHARS_MAX).collect()
}
