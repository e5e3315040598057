//! Members whose replicas differ at one step: a bit flipped somewhere, or code does not compute the same twice.
//!
//! Whatever the wrong replica gave to the sums since all were last found equal is in every replica, and nobody can tell what that is; so also
//! where a majority agrees nobody goes on from what is there, but everybody from the last checkpoint, before which all were compared
//! ([decision 18](../../../../docs/decisions/0018-replicas-that-differ-are-all-thrown-away.md)). A majority says whose slot is not to be trusted.

use super::{Draft, failures, generations, reclaim};
use crate::state::Executor;
use events_schema::fact::{Fact, LeaveCause, PlanCause, RestartCause};
use events_schema::{ExecutorId, ServerId, SlotId, Step};

/// A leader found the replicas of its members different.
pub(super) fn replicas_differ(
    draft: &mut Draft<'_>,
    server: &ServerId,
    by: &ExecutorId,
    step: Step,
    minority: &[ExecutorId],
) {
    let id = &by.job;
    // Whoever was let go, or is of a run that is over, compared what does not count any more.
    let counts = |executor: &Executor| {
        executor.slot.server == *server && executor.replica && executor.leaving.is_none_or(|leaving| !leaving.at_once())
    };
    let trains = draft.state.job(id).is_some_and(|job| job.active().is_some());
    if !trains || !draft.state.executor(by).is_some_and(counts) {
        return;
    }
    let of_job = minority.iter().filter(|number| number.job == *id);
    let there = of_job.filter_map(|number| Some((number.clone(), draft.state.executor(number)?.slot.clone())));
    let (known, slots): (Vec<ExecutorId>, Vec<SlotId>) = there.unzip();
    let verdict = failures::diverged(draft, id, step, !minority.is_empty());
    let reason = format!("the replica there differed from the others' at step {step} of job {id}");
    draft.emit(Fact::ReplicasDiffered {
        job: id.clone(),
        step,
        minority: known.clone(),
        slots: slots.clone(),
        reason,
        verdict,
    });
    reclaim::withdraw(draft, slots.iter(), PlanCause::Lost);
    generations::dismiss(draft, id, LeaveCause::Useless);
    generations::restart(draft, id, RestartCause::Differed { minority: known });
}
