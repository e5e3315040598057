//! The core's invariants in production: those of what a batch changed are looked at after it, counted by name, never acted on. A broken
//! one is a defect of Ebb that a person has to hear of.

use crate::note::Note;
use crate::outbox::Outbox;
use controller_core::State;
use controller_core::invariants::check_changes;
use std::collections::BTreeMap;

#[derive(Debug, Clone, Default)]
pub(crate) struct Checks {
    /// Which invariants were found broken, and how often.
    counts: BTreeMap<&'static str, u64>,
}

impl Checks {
    /// Looks at what a batch has changed.
    pub fn look(&mut self, before: &State, after: &State, out: &mut Outbox) {
        for violation in check_changes(before, after) {
            let count = self.counts.entry(violation.invariant).or_default();
            *count += 1;
            // What keeps breaking is said at the first, second, fourth, … time.
            if count.is_power_of_two() {
                let (invariant, detail) = (violation.invariant, violation.detail);
                out.note(Note::Violation { invariant, detail, count: *count });
            }
        }
    }

    /// How often each invariant was found broken.
    pub fn counts(&self) -> &BTreeMap<&'static str, u64> {
        &self.counts
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::message::Out;
    use events_schema::command::OfferMode;
    use events_schema::fact::Fact;
    use events_schema::{Cell, FleetId, SlotId, TimeMs};

    /// Invariants were said to be counted in production, and nobody called them.
    #[test]
    fn a_broken_invariant_is_counted_and_said_by_name() {
        let (fleet, slots) = (FleetId::parse("local").unwrap(), vec!["s1/0".parse::<SlotId>().unwrap()]);
        let before = State::new(Cell(0));
        let mut after = before.clone();
        for fact in [
            Fact::FleetDeclared {
                fleet: fleet.clone(),
                slots: slots.clone(),
                offers: OfferMode::ByDemand,
                reclaim_deadline_ms: 1,
            },
            Fact::DemandAccepted { fleet: fleet.clone(), sequence: 1, needed: 1, forecast: None },
            Fact::SlotsOffered { fleet, slots },
        ] {
            after.apply(TimeMs(1), &fact);
        }
        let (mut checks, mut out) = (Checks::default(), Outbox::default());
        (0..4).for_each(|_| checks.look(&before, &after, &mut out));
        let name = "a fleet lends no more than it can spare";
        assert_eq!(checks.counts().get(name), Some(&4), "{:?}", checks.counts());
        let said = |out: &Out| matches!(out, Out::Note(Note::Violation { invariant, .. }) if *invariant == name);
        assert_eq!(out.take().iter().filter(|out| said(out)).count(), 3, "at the first, second and fourth time");
        checks.look(&after, &after, &mut out);
        assert!(out.take().is_empty(), "nothing has changed");
    }
}
