//! The core's invariants in production: looked at after batches, counted by name, never acted on. A broken one is a defect of
//! Ebb that a person has to hear of.
//!
//! Bounded in cost: a small cell is looked at whole after every batch; of a large one, one invariant now and then.

use crate::note::Note;
use crate::outbox::Outbox;
use controller_core::State;
use controller_core::invariants::{INVARIANTS, STEP_INVARIANTS};
use std::collections::BTreeMap;

/// Up to so many jobs, executors and slots everything is checked after every batch: some tens of microseconds.
const SIZE_SMALL: usize = 256;

/// In a larger cell one invariant is checked after so much time, and longer with the size: a look at 100,000 things takes tens of
/// milliseconds, so it costs less than a hundredth of the controller's time.
const INTERVAL_MS: u64 = 1_000;
const THINGS_PER_MS: u64 = 20;

#[derive(Debug, Clone, Default)]
pub(crate) struct Checks {
    /// Which invariants were found broken, and how often.
    counts: BTreeMap<&'static str, u64>,
    turn: usize,
    next_ms: u64,
}

impl Checks {
    /// Looks at what a batch has come to.
    pub fn look(&mut self, before: &State, after: &State, now_ms: u64, out: &mut Outbox) {
        let size = after.size();
        if size <= SIZE_SMALL {
            (0..INVARIANTS.len() + STEP_INVARIANTS.len()).for_each(|turn| self.check(turn, before, after, out));
        } else if now_ms >= self.next_ms {
            self.next_ms = now_ms + INTERVAL_MS.max(size as u64 / THINGS_PER_MS);
            self.check(self.turn, before, after, out);
            self.turn = (self.turn + 1) % (INVARIANTS.len() + STEP_INVARIANTS.len());
        }
    }

    /// How often each invariant was found broken.
    pub fn counts(&self) -> &BTreeMap<&'static str, u64> {
        &self.counts
    }

    fn check(&mut self, turn: usize, before: &State, after: &State, out: &mut Outbox) {
        let mut details = Vec::new();
        let invariant = match INVARIANTS.get(turn) {
            Some((name, check)) => {
                check(after, &mut details);
                *name
            }
            None => {
                let (name, check) = STEP_INVARIANTS[turn - INVARIANTS.len()];
                check(before, after, &mut details);
                name
            }
        };
        let Some(detail) = details.into_iter().next() else { return };
        let count = self.counts.entry(invariant).or_default();
        *count += 1;
        // What stays broken is broken after every batch: said at the first, second, fourth, … time.
        if count.is_power_of_two() {
            out.note(Note::Violation { invariant, detail, count: *count });
        }
    }
}
