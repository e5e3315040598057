//! From what is and what is wanted to what has to be done. Pure: same arguments, same steps. Next file: `host.rs`, which takes
//! the steps.

use events_schema::orders::{ExecutorOrder, JobOrder};
use events_schema::{ExecutorId, SlotId, TimeMs};
use std::collections::BTreeSet;

/// What is on a slot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SlotView<'a> {
    pub id: &'a SlotId,
    /// Whether orders may use it.
    pub usable: bool,
    pub occupant: Option<OccupantView<'a>>,
}

/// What is known of an executor on a slot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OccupantView<'a> {
    pub executor: &'a ExecutorId,
    pub order: &'a JobOrder,
    pub leave_by: Option<TimeMs>,
    /// Told to stop, or killed.
    pub ending: bool,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Step<'a> {
    /// Start this executor; its slot is free.
    Start(&'a ExecutorOrder),
    /// This executor cannot exist here: there is no such slot.
    Refuse(&'a ExecutorOrder),
    /// This executor was never started here and is to leave already: it is gone without having been.
    Skip(&'a ExecutorOrder),
    /// Tell the executor on this slot its new order.
    Tell { slot: u16, order: &'a JobOrder },
    /// The executor on this slot has this deadline now, which it may have had before.
    Deadline { slot: u16, leave_by: Option<TimeMs>, leave_in_ms: u64 },
    /// The executor on this slot is not wanted any more.
    Stop { slot: u16 },
}

/// Steps from the slots as they are to the wanted executors. `ended` are executors that ran here and ended: their numbers are
/// never used again, so an order that still lists one only comes from a state that has not heard of its end. One that has to leave is
/// never started, however far its deadline is: its fleet may have been told already that the slot is free.
pub(crate) fn reconcile<'a>(
    wanted: &'a [ExecutorOrder],
    slots: &[SlotView<'_>],
    ended: &BTreeSet<ExecutorId>,
) -> Vec<Step<'a>> {
    let mut steps = Vec::new();
    for slot in slots {
        let Some(occupant) = slot.occupant.filter(|occupant| !occupant.ending) else { continue };
        let index = slot.id.index;
        let Some(order) = wanted.iter().find(|order| order.executor == *occupant.executor) else {
            steps.push(Step::Stop { slot: index });
            continue;
        };
        if order.leave_by.is_some() || occupant.leave_by.is_some() {
            let leave_in_ms = order.leave_in_ms.unwrap_or_default();
            steps.push(Step::Deadline { slot: index, leave_by: order.leave_by, leave_in_ms });
        }
        if order.job != *occupant.order {
            steps.push(Step::Tell { slot: index, order: &order.job });
        }
    }
    let mut started = BTreeSet::new();
    let runs = |executor: &ExecutorId| {
        slots.iter().any(|slot| slot.occupant.is_some_and(|occupant| occupant.executor == executor))
    };
    for order in wanted.iter().filter(|order| !ended.contains(&order.executor) && !runs(&order.executor)) {
        match slots.iter().find(|slot| *slot.id == order.slot) {
            None => steps.push(Step::Refuse(order)),
            Some(_) if order.leave_by.is_some() => steps.push(Step::Skip(order)),
            // Whoever is on the slot has to end first; then this is looked at again. Two for one slot: the first wins.
            Some(slot) if slot.usable && slot.occupant.is_none() && started.insert(&order.slot) => {
                steps.push(Step::Start(order));
            }
            Some(_) => {}
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fixtures;

    struct Case {
        slots: Vec<SlotId>,
        running: ExecutorOrder,
    }

    fn case() -> Case {
        Case {
            slots: vec!["local/0".parse().unwrap(), "local/1".parse().unwrap()],
            running: fixtures::order("job-a/e0", "local/0"),
        }
    }

    impl Case {
        fn views(&self, ending: bool) -> Vec<SlotView<'_>> {
            let ExecutorOrder { executor, job, leave_by, .. } = &self.running;
            let occupant = OccupantView { executor, order: job, leave_by: *leave_by, ending };
            vec![
                SlotView { id: &self.slots[0], usable: true, occupant: Some(occupant) },
                SlotView { id: &self.slots[1], usable: true, occupant: None },
            ]
        }
    }

    #[test]
    fn what_is_as_wanted_needs_nothing() {
        let case = case();
        assert_eq!(reconcile(std::slice::from_ref(&case.running), &case.views(false), &BTreeSet::new()), []);
    }

    #[test]
    fn what_is_not_wanted_stops_once() {
        let case = case();
        assert_eq!(reconcile(&[], &case.views(false), &BTreeSet::new()), [Step::Stop { slot: 0 }]);
        assert_eq!(reconcile(&[], &case.views(true), &BTreeSet::new()), []);
    }

    #[test]
    fn a_changed_order_is_told_and_a_changed_deadline_set() {
        let case = case();
        let mut changed = case.running.clone();
        changed.job.park = true;
        (changed.leave_by, changed.leave_in_ms) = (Some(TimeMs(9)), Some(4));
        let wanted = [changed];
        let steps = reconcile(&wanted, &case.views(false), &BTreeSet::new());
        let deadline = Step::Deadline { slot: 0, leave_by: Some(TimeMs(9)), leave_in_ms: 4 };
        assert_eq!(steps, [deadline, Step::Tell { slot: 0, order: &wanted[0].job }]);
    }

    #[test]
    fn an_executor_waits_for_its_slot_and_never_starts_twice() {
        let case = case();
        let wanted = [
            fixtures::order("job-b/e0", "local/0"),
            fixtures::order("job-b/e1", "local/1"),
            fixtures::order("job-c/e0", "local/1"),
        ];
        let steps = reconcile(&wanted, &case.views(true), &BTreeSet::new());
        assert_eq!(steps, [Step::Start(&wanted[1])], "slot 0 is taken, and of two for slot 1 the first wins");
        let ended = BTreeSet::from([wanted[1].executor.clone()]);
        assert_eq!(reconcile(&wanted[..2], &case.views(true), &ended), []);
    }

    #[test]
    fn one_that_has_to_leave_before_it_began_is_not_started_however_far_its_deadline_is() {
        let case = case();
        let mut leaving = fixtures::order("job-b/e1", "local/1");
        (leaving.leave_by, leaving.leave_in_ms) = (Some(TimeMs(u64::MAX)), Some(u64::MAX));
        let wanted = [case.running.clone(), leaving];
        assert_eq!(reconcile(&wanted, &case.views(false), &BTreeSet::new()), [Step::Skip(&wanted[1])]);
    }

    #[test]
    fn a_slot_its_fleet_took_is_not_used() {
        let case = case();
        let mut views = case.views(true);
        views[1].usable = false;
        assert_eq!(reconcile(&[fixtures::order("job-b/e1", "local/1")], &views, &BTreeSet::new()), []);
    }

    #[test]
    fn a_slot_that_does_not_exist_is_refused() {
        let case = case();
        for slot in ["local/7", "elsewhere/1"] {
            let wanted = [case.running.clone(), fixtures::order("job-b/e1", slot)];
            assert_eq!(reconcile(&wanted, &case.views(false), &BTreeSet::new()), [Step::Refuse(&wanted[1])]);
        }
    }
}
