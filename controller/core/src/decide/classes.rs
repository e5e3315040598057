//! Who may compute a job's own code together. What its bits depend on (versions, processor, device, switches) is known only where it is built, so an
//! executor says its class when it is ready, and one that would train another model is turned away before it joins. Classes of models of Ebb's are
//! known with the server, and are for the plan.

use super::{Draft, generations};
use crate::limits::CLASS_AVOID_MS;
use crate::state::State;
use events_schema::fact::{AvoidCause, Fact};
use events_schema::{Digest, ExecutorId, JobId, SlotId};

/// The class that a job is bound to: the one it began in; until it has begun, that of the first of its executors that are ready.
pub(crate) fn bound(state: &State, job: &JobId) -> Option<Digest> {
    let ready = || state.executors_of(job).filter(|(_, executor)| executor.is_ready());
    state.job(job)?.class_of_code.or_else(|| ready().find_map(|(_, executor)| executor.class))
}

/// Turns away an executor that is ready but of another class than its job; whether it did. The next one there would be the same, so the job avoids
/// what is of the same making: that slot alone where it is a device, else all slots of the server.
pub(super) fn refused(draft: &mut Draft<'_>, number: &ExecutorId, class: Option<Digest>) -> bool {
    let (Some(executor), Some(job)) = (draft.state.executor(number), draft.state.job(&number.job)) else {
        return false;
    };
    let fits = class.zip(bound(&draft.state, &number.job)).is_none_or(|(found, bound)| found == bound);
    if fits || executor.leaving.is_some() {
        return false;
    }
    let (own, alone) = (executor.slot.clone(), job.spec.needs_device());
    // Where somebody trains already the class is right, whatever this one found.
    let trains = |slot: &SlotId| {
        let there = draft.state.slot(slot).and_then(|slot| slot.executor.as_ref());
        there
            .filter(|there| *there != number && there.job == number.job)
            .is_some_and(|there| draft.state.executor(there).is_some_and(|executor| executor.class.is_some()))
    };
    let same_making = |slot: &&SlotId| **slot == own || !alone && !trains(slot);
    let of_server = draft.state.places_of(&own.server).map(|(slot, _)| slot);
    // Another one of there may have said it for all of them a moment ago.
    let news = of_server.filter(same_making).filter(|slot| !job.avoids(slot, draft.at));
    let avoided: Vec<SlotId> = news.cloned().collect();
    let until = draft.at.plus_ms(CLASS_AVOID_MS);
    for slot in avoided {
        draft.emit(Fact::SlotAvoided { job: number.job.clone(), slot, until, cause: AvoidCause::Class });
    }
    generations::turn_away(draft, number);
    true
}
