//! How fast a job is on slots of each type, as far as that was measured where it was on several at once: whether a measurement is news, and what one rank's
//! gradient takes each of its members by that. Until then types are to it what they were to jobs before it (EasyScale §3.4.2), and equally fast where that is not known either.

use super::Draft;
use crate::limits::NEWS_OF_SPEED_PERCENT;
use crate::state::type_times::{TYPE_TIMES_MAX, in_measure_of, of, with_others};
use crate::state::{Job, State};
use events_schema::fact::Fact;
use events_schema::job::Types;
use events_schema::slot_type::{SlotType, TypeTime};
use events_schema::{ExecutorId, JobId};
use std::collections::BTreeSet;

/// One rank's gradient on a type, where nothing was measured: in a measure of our own.
const UNIT_US: u64 = 1_000;

/// Types were measured side by side: a fact if that says something else than is known.
pub(super) fn measured(draft: &mut Draft<'_>, id: &JobId, times: &[TypeTime]) {
    let Some(job) = draft.state.job(id).filter(|job| job.placement().is_some()) else { return };
    if let Some(times) = merged(&job.type_times, times) {
        draft.emit(Fact::TypesMeasured { job: id.clone(), times });
    }
}

/// What is known of types after a measurement, in its measure; none if it is as it was.
pub(crate) fn merged(known: &[TypeTime], measured: &[TypeTime]) -> Option<Vec<TypeTime>> {
    let measured = &measured[..measured.len().min(TYPE_TIMES_MAX)];
    let known = in_measure_of(measured, known);
    let is_other = |now: &TypeTime| {
        of(&known, now.slot_type).is_none_or(|before_us| {
            now.unit_us.abs_diff(before_us).saturating_mul(100) > before_us.saturating_mul(NEWS_OF_SPEED_PERCENT)
        })
    };
    measured.iter().any(is_other).then(|| with_others(measured.to_vec(), &known))
}

/// What one rank's gradient takes a job on a type. One that was measured of nobody is as slow as the slowest that was: it has few ranks until it is.
pub(crate) fn unit_us(state: &State, job: &Job, slot_type: Option<SlotType>) -> u64 {
    let (own, others) = (&job.type_times[..], &state.planning.type_times[..]);
    let slowest = |times: &[TypeTime]| times.iter().map(|time| time.unit_us.max(1)).max();
    if own.is_empty() {
        return of(others, slot_type).or_else(|| slowest(others)).unwrap_or(UNIT_US);
    }
    let as_others = || of(&in_measure_of(own, others), slot_type);
    of(own, slot_type).or_else(as_others).or_else(|| slowest(own)).unwrap_or(UNIT_US)
}

impl State {
    /// The type of the slot that an executor is on.
    pub(crate) fn type_of(&self, executor: &ExecutorId) -> Option<SlotType> {
        self.executor(executor).and_then(|executor| self.kind(&executor.slot)).and_then(|kind| kind.slot_type)
    }

    /// The types of the slots that the members of a job are on.
    fn types_of(&self, job: &Job) -> BTreeSet<Option<SlotType>> {
        let members = job.active().into_iter().flat_map(|active| &active.members);
        members.map(|member| self.type_of(member)).collect()
    }

    /// Whether the members of a job are on slots of several types.
    pub(crate) fn is_mixed(&self, job: &Job) -> bool {
        job.spec.types == Types::Any && self.types_of(job).len() > 1
    }

    /// Whether one of them is of another type than others and not known to be as fast, or slower.
    pub(crate) fn has_unmeasured_type(&self, job: &Job) -> bool {
        let is_known = |slot_type: &Option<SlotType>| job.type_times.iter().any(|time| time.slot_type == *slot_type);
        self.is_mixed(job) && !self.types_of(job).iter().all(is_known)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::testing::times;

    #[test]
    fn it_is_the_ratio_of_types_that_is_news() {
        let known = times(&[("t4", 90), ("v100", 36)]);
        assert_eq!(merged(&[], &known), Some(known.clone()));
        assert_eq!(merged(&known, &times(&[("t4", 180), ("v100", 72)])), None, "everything takes twice as long");
        assert_eq!(merged(&known, &times(&[("t4", 90), ("v100", 44)])), None, "scatter");
        let slower = times(&[("t4", 90), ("v100", 50)]);
        assert_eq!(merged(&known, &slower), Some(slower.clone()));
        // What was measured of a third one stays, in the measure of now.
        let others = times(&[("p100", 120), ("v100", 72)]);
        assert_eq!(merged(&known, &others), Some(times(&[("p100", 120), ("t4", 180), ("v100", 72)])));
        assert_eq!(merged(&known, &times(&[("a", 5), ("b", 6)])), Some(times(&[("a", 5), ("b", 6)])));
    }

    #[test]
    fn what_is_remembered_of_types_has_a_bound() {
        let names: Vec<String> = (10..40).map(|number| format!("type-{number}")).collect();
        let all: Vec<(&str, u64)> = names.iter().map(|name| (&name[..], 90)).collect();
        let known = merged(&[], &times(&all)).unwrap();
        assert_eq!(known, times(&all[..TYPE_TIMES_MAX]));
        assert_eq!(merged(&known, &times(&all)), None, "what it does not remember is no news each time");
        let next = merged(&known, &times(&[("type-10", 90), ("another", 30)])).unwrap();
        assert!(next.len() == TYPE_TIMES_MAX && next[0] == times(&[("another", 30)])[0], "{next:?}");
    }
}
