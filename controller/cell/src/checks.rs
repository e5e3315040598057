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
