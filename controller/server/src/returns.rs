//! How slots come back to their fleets, for whoever counts it: by which way they were asked for, and whether their executors left or were killed. Follows from facts alone.

use events_schema::SlotId;
use events_schema::fact::{Fact, ReclaimCause};
use events_schema::report::ExitCause;
use std::collections::BTreeMap;

/// Slots on their way back.
#[derive(Debug, Default)]
pub(crate) struct Returns {
    asked: BTreeMap<SlotId, &'static str>,
    /// How the last executor of a slot ended, until the slot is back or has another one.
    ended: BTreeMap<SlotId, &'static str>,
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
    /// Takes the next fact; the return that it is.
    pub fn take(&mut self, fact: &Fact) -> Option<Returned> {
        match fact {
            Fact::ExecutorAssigned { slot, .. } => {
                self.ended.remove(slot);
            }
            Fact::ExecutorGone { slot, exit, .. } => {
                self.ended.insert(slot.clone(), end(exit));
            }
            Fact::SlotReclaimed { slot, cause, .. } => {
                self.asked.insert(slot.clone(), way(*cause));
                // A direct take-back may be on record after the end that it caused; of other causes no end of before is one.
                if *cause != ReclaimCause::Direct {
                    self.ended.remove(slot);
                }
            }
            Fact::SlotReturned { slot, took_ms, .. } => {
                let way = self.asked.remove(slot).unwrap_or("unknown");
                let end = self.ended.remove(slot).unwrap_or("none");
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
    use events_schema::{ExecutorId, JobId, TimeMs};

    fn slot() -> SlotId {
        "s1/0".parse().unwrap()
    }

    fn executor() -> ExecutorId {
        ExecutorId { job: JobId::parse("job-1").unwrap(), number: 1 }
    }

    fn gone(exit: ExitCause) -> Fact {
        Fact::ExecutorGone { executor: executor(), slot: slot(), exit, verdict: None, awaited_until: None }
    }

    fn reclaimed(cause: ReclaimCause) -> Fact {
        Fact::SlotReclaimed { slot: slot(), fleet: None, job: None, deadline: TimeMs(9), cause, asked_at: None }
    }

    fn returned() -> Fact {
        Fact::SlotReturned { slot: slot(), fleet: None, took_ms: Some(7) }
    }

    fn last(facts: &[Fact]) -> (&'static str, &'static str) {
        let mut returns = Returns::default();
        let seen: Vec<Returned> = facts.iter().filter_map(|fact| returns.take(fact)).collect();
        seen.last().map(|seen| (seen.way, seen.end)).unwrap()
    }

    #[test]
    fn a_return_says_whether_its_executor_left_or_was_killed() {
        let assigned = Fact::ExecutorAssigned { executor: executor(), slot: slot() };
        let (asked, left) = (reclaimed(ReclaimCause::Demand), gone(ExitCause::Left));
        let killed = gone(ExitCause::Killed);
        assert_eq!(last(&[asked.clone(), left.clone(), returned()]), ("demand", "left"));
        assert_eq!(last(&[asked.clone(), killed.clone(), returned()]), ("demand", "killed"));
        assert_eq!(last(&[killed.clone(), asked.clone(), returned()]), ("demand", "none"), "it was idle by then");
        let direct = reclaimed(ReclaimCause::Direct);
        assert_eq!(last(&[killed.clone(), direct.clone(), returned()]), ("direct", "killed"), "on record afterwards");
        assert_eq!(last(&[killed, assigned, direct, left, returned()]), ("direct", "left"));
        assert_eq!(last(&[returned()]), ("unknown", "none"));
    }
}
