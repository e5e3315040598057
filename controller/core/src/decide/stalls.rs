//! A job that makes no progress: what is done, one rung after the other. The watch (`watch.rs`) says that it stalls and who is to blame.
//!
//! The ladder: its members come together anew; then without the blamed, whose slots are avoided; then everybody starts again from
//! the last checkpoint; then the job is suspended with its cause. A computation that hung on two slots fails the job by name.
//! The store is waited for, which is an event first, and never restarted for: a restart needs it too. Getting further than ever begins the ladder anew, and
//! so does the resume of a user whose job was suspended for it; doing steps again that were done before does not, or a job that goes back and stands still a little earlier or later each time would climb the first rungs for ever.

use super::{Draft, generations, members, proposals};
use crate::limits::ATTEMPTS_MAX;
use crate::state::troubles::Stall;
use crate::state::{Job, JobPhase};
use events_schema::fact::{
    AbandonCause, AvoidCause, Blamed, Fact, GrowthFailure, LeaveCause, LossNotice, RestartCause, StallCause,
    StallRemedy,
};
use events_schema::{ExecutorId, JobId, Rank, SlotId, Step};
use std::collections::BTreeSet;

/// Takes the next rung for a job that does not get past a step.
pub(super) fn stalled(draft: &mut Draft<'_>, id: &JobId, step: Step, cause: StallCause, blamed: &[Blamed]) {
    let works = |job: &&Job| matches!(job.phase, JobPhase::Starting(_) | JobPhase::Running(..));
    let Some(job) = draft.state.job(id).filter(works) else { return };
    let present = |blamed: &&Blamed| {
        blamed.executor.job == *id && draft.state.executor(&blamed.executor).is_some_and(|e| e.leaving.is_none())
    };
    let named = blamed.len();
    let blamed: Vec<Blamed> = blamed.iter().filter(present).cloned().collect();
    if named > 0 && blamed.is_empty() {
        // They are on their way out already.
        return;
    }
    let anew = begins_anew(job, step);
    let tried = job.stall.as_ref().filter(|_| !anew).map_or(&[][..], |stall| &stall.tried[..]);
    let twice = hung_twice(draft, job, step, cause, &blamed).filter(|_| !anew);
    let remedy = match (&twice, &job.phase) {
        (Some(_), _) => StallRemedy::Fail,
        // There is nothing to go back to: another one is tried, which the store would not answer either.
        (None, JobPhase::Starting(_)) if cause != StallCause::Store => start_rung(tried),
        (None, _) => next_rung(job, step, cause, tried, !blamed.is_empty()),
    };
    let (job, anew) = (id.clone(), Some(anew));
    draft.emit(Fact::JobStalled { job, step, cause, blamed: blamed.clone(), remedy, anew });
    match remedy {
        StallRemedy::Round => begin_anew(draft, id),
        StallRemedy::WithoutBlamed => without(draft, id, cause, &blamed),
        StallRemedy::Restart => {
            replace(draft, cause, &blamed);
            generations::dismiss(draft, id, LeaveCause::Useless);
            let blamed = blamed.into_iter().map(|blamed| blamed.executor).collect();
            generations::restart(draft, id, RestartCause::Stalled { cause, blamed });
        }
        StallRemedy::Suspend => {
            draft.emit(Fact::JobSuspending { job: id.clone() });
            generations::dismiss(draft, id, LeaveCause::Useless);
        }
        StallRemedy::Fail => {
            let reason = twice.unwrap_or_else(|| format!("step {step} does not end"));
            draft.emit(Fact::JobFailed { job: id.clone(), reason });
        }
        // Its user knows now; it goes on by itself when the store answers.
        StallRemedy::Wait => {}
    }
}

/// Whether a job got further than where it last stood still, so that what was tried then does not count; or was suspended for it, which only its user's
/// resume ends.
fn begins_anew(job: &Job, step: Step) -> bool {
    let reached = job.active().map_or(job.highest, |active| active.step.max(job.highest));
    let resumed = |stall: &Stall| stall.tried.last() == Some(&StallRemedy::Suspend);
    job.stall.as_ref().is_none_or(|stall| resumed(stall) || step.max(reached) > stall.furthest())
}

/// What is done for a job that does not begin: others are tried, as often as members that do not come together are.
fn start_rung(tried: &[StallRemedy]) -> StallRemedy {
    let times = tried.iter().filter(|rung| **rung == StallRemedy::WithoutBlamed).count();
    if times < ATTEMPTS_MAX as usize { StallRemedy::WithoutBlamed } else { StallRemedy::Suspend }
}

/// What has not been tried.
fn next_rung(job: &Job, step: Step, cause: StallCause, tried: &[StallRemedy], any_blamed: bool) -> StallRemedy {
    if cause == StallCause::Store {
        // Said a second time once the patience that its spec allows is over.
        return if job.waits_for_store_at(step) { StallRemedy::Suspend } else { StallRemedy::Wait };
    }
    let ladder: &[StallRemedy] = match (cause, any_blamed) {
        // Coming together does not help who hangs.
        (StallCause::Unit | StallCause::Bytes, true) => &[StallRemedy::WithoutBlamed, StallRemedy::Restart],
        // A gang comes together once.
        _ if job.spec.gang().is_some() => &[StallRemedy::Restart],
        (_, true) => &[StallRemedy::Round, StallRemedy::WithoutBlamed, StallRemedy::Restart],
        (_, false) => &[StallRemedy::Round, StallRemedy::Restart],
    };
    ladder.iter().copied().find(|rung| !tried.contains(rung)).unwrap_or(StallRemedy::Suspend)
}

/// The same rank at the same step hung on another slot before: it is the computation, not the machine.
fn hung_twice(draft: &Draft<'_>, job: &Job, step: Step, cause: StallCause, blamed: &[Blamed]) -> Option<String> {
    if cause != StallCause::Unit {
        return None;
    }
    let stall = job.stall.as_ref().filter(|stall| stall.step == step)?;
    let here: BTreeSet<(Rank, &SlotId)> = blamed
        .iter()
        .filter_map(|blamed| Some((blamed.rank?, &draft.state.executor(&blamed.executor)?.slot)))
        .collect();
    let (rank, slot) =
        here.into_iter().find(|(rank, slot)| stall.hung.iter().any(|(of, before)| of == rank && before != *slot))?;
    let before = stall.hung.iter().find(|(of, before)| *of == rank && before != slot).map(|(_, before)| before)?;
    Some(format!(
        "rank {rank} did not get done with step {step} on slot {before}, nor on slot {slot}: the same computation hung twice. \
         Look into the logs of both executors, and mend the model or its data before you submit the job again"
    ))
}

fn begin_anew(draft: &mut Draft<'_>, id: &JobId) {
    generations::give_up(draft, id, AbandonCause::MemberLost);
    if draft.state.executors_of(id).any(|(_, executor)| executor.can_recover()) {
        proposals::recover(draft, id);
    }
}

fn without(draft: &mut Draft<'_>, id: &JobId, cause: StallCause, blamed: &[Blamed]) {
    let newcomer = |number: &&ExecutorId| draft.state.executor(number).is_some_and(|executor| !executor.replica);
    let newcomer = blamed.iter().map(|blamed| &blamed.executor).find(newcomer).cloned();
    if let Some(newcomer) = newcomer.filter(|_| cause == StallCause::Bytes) {
        generations::pause_growth(draft, &newcomer, GrowthFailure::Slow);
    }
    replace(draft, cause, blamed);
    begin_anew(draft, id);
}

fn replace(draft: &mut Draft<'_>, cause: StallCause, blamed: &[Blamed]) {
    for blamed in blamed {
        members::lost(draft, &blamed.executor, LossNotice::Stall(cause));
        generations::avoid(draft, &blamed.executor, AvoidCause::Hung);
    }
}
