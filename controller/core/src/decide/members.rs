//! What a job's user has to know of its members: who was lost and how that was noticed, and whom the others wait for. Says it; what is done
//! about a loss is in `generations.rs`, and about a straggler in `proposals.rs`, `elsewhere.rs` and `slow_members.rs`.

use super::Draft;
use crate::state::Executor;
use events_schema::ExecutorId;
use events_schema::fact::{Fact, LossNotice, StragglerCause};

/// Where a member of the generation in force is, if it is to stay.
fn staying<'a>(draft: &'a Draft<'_>, number: &ExecutorId) -> Option<&'a Executor> {
    let active = draft.state.job(&number.job)?.active()?;
    let member = draft.state.executor(number).filter(|_| active.members.contains(number))?;
    (member.leaving.is_none() && !member.departed).then_some(member)
}

/// A member is lost, or about to be given up. Who was told to leave, or is in no generation yet, is not missed.
pub(super) fn lost(draft: &mut Draft<'_>, executor: &ExecutorId, noticed: LossNotice) {
    if let Some(slot) = staying(draft, executor).map(|member| member.slot.clone()) {
        draft.emit(Fact::MemberLost { executor: executor.clone(), slot, noticed });
    }
}

/// A member holds up the others. Said once until it keeps up again, also by a controller that has taken over.
pub(super) fn straggles(
    draft: &mut Draft<'_>,
    executor: &ExecutorId,
    (unit_us, peers_unit_us): (u64, u64),
    cause: Option<StragglerCause>,
) {
    let known = draft.state.job(&executor.job).is_some_and(|job| job.stragglers.contains_key(executor));
    let slot = staying(draft, executor).map(|member| member.slot.clone());
    if let Some(slot) = slot.filter(|_| !known) {
        draft.emit(Fact::MemberStraggles { executor: executor.clone(), slot, unit_us, peers_unit_us, cause });
    }
}

/// A straggler keeps up again.
pub(super) fn keeps_up(draft: &mut Draft<'_>, executor: &ExecutorId) {
    if draft.state.job(&executor.job).is_some_and(|job| job.stragglers.contains_key(executor)) {
        draft.emit(Fact::MemberKeepsUp { executor: executor.clone() });
    }
}
