//! How slots come back to their fleets, for whoever counts it: by which way they were asked for, and whether their executors left or were killed. Follows from facts alone.

use events_schema::fact::{Fact, ReclaimCause};
use events_schema::report::ExitCause;
use events_schema::{SlotId, TimeMs};
use std::collections::BTreeMap;

/// Slots on their way back.
#[derive(Debug, Default)]
pub(crate) struct Returns {
    asked: BTreeMap<SlotId, &'static str>,
    /// How the last executor of a slot ended, and when, until the slot is back or has another one.
    ended: BTreeMap<SlotId, (&'static str, TimeMs)>,
}

/// A slot is back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Returned {
    /// Since it was asked for.
    pub took_ms: u64,
    /// Who asked how; of a reclaim before this controller it is `unknown`.
    pub way: &'static str,
    /// How the executor on it ended; `none` if there was none.
    pub end: &'static str,
}

impl Returns {
    /// Takes the next fact, of that time; the return that it is.
    pub fn take(&mut self, fact: &Fact, at: TimeMs) -> Option<Returned> {
        match fact {
            Fact::ExecutorAssigned { slot, .. } => {
                self.ended.remove(slot);
            }
            // A guest slot comes back with its host's.
            Fact::ExecutorGone { slot, exit, .. } if !slot.is_guest() => {
                self.ended.insert(slot.clone(), (end(exit), at));
            }
            Fact::SlotReclaimed { slot, cause, asked_at, .. } => {
                let is_first = self.asked.insert(slot.clone(), way(*cause)).is_none();
                // A direct take-back is on record after the end that it caused, and says since when it was asked for.
                let since = if *cause == ReclaimCause::Direct { *asked_at } else { Some(at) };
                let is_of_before = |(_, ended): &(&str, TimeMs)| since.is_some_and(|since| *ended < since);
                if is_first && self.ended.get(slot).is_some_and(is_of_before) {
                    self.ended.remove(slot);
                }
            }
            Fact::SlotReturned { slot, took_ms, .. } => {
                let way = self.asked.remove(slot).unwrap_or("unknown");
                let end = self.ended.remove(slot).map_or("none", |(end, _)| end);
                return took_ms.map(|took_ms| Returned { took_ms, way, end });
            }
            _ => {}
        }
        None
    }
}

fn way(cause: ReclaimCause) -> &'static str {
    match cause {
        ReclaimCause::Demand => "demand",
        ReclaimCause::Named => "named",
        ReclaimCause::Direct => "direct",
        ReclaimCause::Undeclared => "undeclared",
        ReclaimCause::Recall => "recall",
        ReclaimCause::Forecast => "forecast",
    }
}

fn end(exit: &ExitCause) -> &'static str {
    match exit {
        ExitCause::Left => "left",
        ExitCause::Killed | ExitCause::Silent => "killed",
        _ => "failed",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use events_schema::{ExecutorId, JobId};

    fn slot() -> SlotId {
        "s1/0".parse().unwrap()
    }

    fn executor() -> ExecutorId {
        ExecutorId { job: JobId::parse("job-1").unwrap(), number: 1 }
    }

    fn gone(exit: ExitCause) -> Fact {
        Fact::ExecutorGone { executor: executor(), slot: slot(), exit, verdict: None, awaited_until: None }
    }

    fn reclaimed(cause: ReclaimCause, asked_at: Option<TimeMs>) -> Fact {
        Fact::SlotReclaimed { slot: slot(), fleet: None, job: None, deadline: TimeMs(9), cause, asked_at }
    }

    fn returned() -> Fact {
        Fact::SlotReturned { slot: slot(), fleet: None, took_ms: Some(7) }
    }

    /// What is said of the last return, of facts of one millisecond after the other.
    fn last(facts: &[&Fact]) -> (&'static str, &'static str) {
        let mut returns = Returns::default();
        let seen = (0..).zip(facts).filter_map(|(ms, fact)| returns.take(fact, TimeMs(ms))).last().unwrap();
        (seen.way, seen.end)
    }

    #[test]
    fn a_return_says_whether_its_executor_left_or_was_killed() {
        let (assigned, returned) = (Fact::ExecutorAssigned { executor: executor(), slot: slot() }, returned());
        let (left, killed) = (gone(ExitCause::Left), gone(ExitCause::Killed));
        let asked = reclaimed(ReclaimCause::Demand, None);
        assert_eq!(last(&[&asked, &left, &returned]), ("demand", "left"));
        assert_eq!(last(&[&asked, &killed, &returned]), ("demand", "killed"));
        assert_eq!(last(&[&killed, &asked, &returned]), ("demand", "none"), "it was idle by then");
        assert_eq!(last(&[&killed, &assigned, &asked, &left, &returned]), ("demand", "left"));
        assert_eq!(last(&[&returned]), ("unknown", "none"));
        // Asked for again while it is on its way.
        let named = reclaimed(ReclaimCause::Named, None);
        assert_eq!(last(&[&asked, &killed, &named, &returned]), ("named", "killed"));
    }

    #[test]
    fn a_direct_take_back_is_told_afterwards_and_counts_no_end_of_before() {
        let (killed, returned) = (gone(ExitCause::Killed), returned());
        let direct = |asked_at: Option<u64>| reclaimed(ReclaimCause::Direct, asked_at.map(TimeMs));
        let (early, late, of_earlier_builds) = (direct(Some(0)), direct(Some(1)), direct(None));
        assert_eq!(last(&[&killed, &early, &returned]), ("direct", "killed"));
        assert_eq!(last(&[&killed, &late, &returned]), ("direct", "none"), "it was idle when it was asked for");
        assert_eq!(last(&[&killed, &of_earlier_builds, &returned]), ("direct", "killed"));
    }
}
