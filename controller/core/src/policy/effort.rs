//! How much a plan may take, counted in steps of its own: the core has no clock, and the same view has to end the same on every machine and in
//! every replay.
//!
//! A step is a look at a job's speeds, slots that are handed out, or so many cells of the optimizer's table. A policy that takes more than [`PLAN_STEPS_MAX`]
//! panics, in a sentence, wherever it is: one that does not end cannot be asked to return, and a panic already costs its plan and nothing else. What a policy
//! computes without a look at its view is not counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Steps of a plan at most. Every policy plans for 12,000 jobs on 10,000 slots within them, in some ten milliseconds (`examples/scale.rs`); all of them take
/// up to a second or two, in which nothing is decided.
pub const PLAN_STEPS_MAX: u64 = 1 << 26;

/// What was spent on a plan of a view and of all its copies. It is no part of the problem: two views that differ in it alone are equal.
#[derive(Debug, Clone)]
pub struct Effort {
    /// Written by one thread, that of the plan. Shared, because a plan is also made of copies of its view.
    spent: Arc<AtomicU64>,
    most: u64,
}

impl Default for Effort {
    fn default() -> Self {
        Self { spent: Arc::default(), most: PLAN_STEPS_MAX }
    }
}

impl PartialEq for Effort {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Effort {}

impl Effort {
    /// Of somebody who has nobody waiting: it only counts.
    #[must_use]
    pub fn without_end() -> Self {
        Self { most: u64::MAX, ..Self::default() }
    }

    /// Notes steps.
    ///
    /// # Panics
    ///
    /// If they are more than there are left.
    pub fn spend(&self, steps: u64) {
        let spent = self.spent.load(Ordering::Relaxed).saturating_add(steps);
        self.spent.store(spent, Ordering::Relaxed);
        assert!(spent <= self.most, "it took more than {} steps, and no plan came of them", self.most);
    }

    /// Steps so far.
    #[must_use]
    pub fn spent(&self) -> u64 {
        self.spent.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{JobView, View};
    use super::*;

    #[test]
    fn copies_of_a_view_share_what_is_left() {
        let view = View { jobs: vec![JobView { max: 4, ..JobView::default() }], ..View::default() };
        let copy = view.clone();
        assert!((0..3).all(|_| copy.speeds(0).speed(1) > 0.0));
        assert_eq!((view.effort.spent(), view == View { effort: Effort::default(), ..copy }), (3, true));
    }

    #[test]
    #[should_panic(expected = "it took more than 67108864 steps")]
    fn a_plan_that_does_not_end_ends() {
        let view = View { jobs: vec![JobView::default()], ..View::default() };
        loop {
            let _speeds = view.speeds(0);
        }
    }

    #[test]
    fn who_only_explains_is_not_stopped() {
        let effort = Effort::without_end();
        effort.spend(PLAN_STEPS_MAX);
        effort.spend(u64::MAX);
        assert_eq!(effort.spent(), u64::MAX);
    }
}
