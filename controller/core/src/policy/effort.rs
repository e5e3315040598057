//! How much a plan may take, counted in steps of its own: the core has no clock, and the same view has to end the same on every machine and in
//! every replay.
//!
//! A step is a job that is gone through, a look at its speeds, slots that are handed out, or so many cells of the optimizer's table. A policy that takes more than [`PLAN_STEPS_MAX`]
//! panics, in a sentence, wherever it is: one that does not end cannot be asked to return, and a panic already costs its plan and nothing else. What a policy
//! computes without a look at its view is not counted.
//!
//! Every so many steps whoever had the plan made is asked whether something presses ([`Interrupt`]), and if so the plan is [`Abandoned`]: nothing of it is kept, it is no
//! failure, and it is made anew. So it is never known from a plan that was made whether anybody was asked. Nothing here knows what presses.

use std::fmt;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Steps of a plan at most. Every policy plans for 12,000 jobs on 10,000 slots within them, in some ten milliseconds (`examples/scale.rs`); all of them take
/// up to a second or two, in which nothing else is decided unless it presses.
pub const PLAN_STEPS_MAX: u64 = 1 << 26;

/// Steps from one question whether something presses to the next: some microseconds, beside which a look at a number is nothing.
pub const QUESTION_STEPS: u64 = 64;

/// Says whether something presses that waits for the plan that is being made.
#[derive(Clone)]
pub struct Interrupt(Arc<dyn Fn() -> bool + Send + Sync>);

impl Interrupt {
    /// Asked every [`QUESTION_STEPS`] steps, so it has to be quick.
    #[must_use]
    pub fn new(presses: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(presses))
    }
}

impl fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Interrupt")
    }
}

/// What a plan unwinds with that something pressed.
#[derive(Debug)]
pub struct Abandoned;

/// What was spent on a plan of a view and of all its copies. It is no part of the problem: two views that differ in it alone are equal.
#[derive(Debug, Clone)]
pub struct Effort {
    /// Written by one thread, that of the plan. Shared, because a plan is also made of copies of its view.
    spent: Arc<AtomicU64>,
    most: u64,
    interrupt: Option<Interrupt>,
}

impl Default for Effort {
    fn default() -> Self {
        Self { spent: Arc::default(), most: PLAN_STEPS_MAX, interrupt: None }
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

    /// Of a plan that is abandoned if something presses.
    #[must_use]
    pub fn until(interrupt: Option<Interrupt>) -> Self {
        Self { interrupt, ..Self::default() }
    }

    /// Of another plan for which the same may press.
    #[must_use]
    pub fn of_another(&self) -> Self {
        Self { spent: Arc::default(), ..self.clone() }
    }

    /// Notes steps.
    ///
    /// # Panics
    ///
    /// If they are more than there are left. If something presses, it unwinds with [`Abandoned`].
    pub fn spend(&self, steps: u64) {
        let before = self.spent.load(Ordering::Relaxed);
        let spent = before.saturating_add(steps);
        self.spent.store(spent, Ordering::Relaxed);
        assert!(spent <= self.most, "it took more than {} steps, and no plan came of them", self.most);
        if before / QUESTION_STEPS != spent / QUESTION_STEPS {
            self.ask();
        }
    }

    /// Each of these, for a step each: to go through all jobs takes milliseconds where there are many.
    pub fn each<T>(&self, items: impl Iterator<Item = T>) -> impl Iterator<Item = T> {
        items.inspect(|_| self.spend(1))
    }

    /// Asks whether something presses: for who counts many steps at once and then takes them.
    ///
    /// # Panics
    ///
    /// If something does, it unwinds with [`Abandoned`].
    pub fn ask(&self) {
        if self.interrupt.as_ref().is_some_and(|interrupt| (interrupt.0)()) {
            // Not a panic, of which a line would be written.
            resume_unwind(Box::new(Abandoned));
        }
    }

    /// Steps so far.
    #[must_use]
    pub fn spent(&self) -> u64 {
        self.spent.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::{JobView, View};
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

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
    fn a_plan_is_abandoned_at_the_next_question_after_something_presses() {
        let presses = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&presses);
        let effort = Effort::until(Some(Interrupt::new(move || seen.load(Ordering::Relaxed) > 0)));
        effort.spend(QUESTION_STEPS + 1);
        presses.store(1, Ordering::Relaxed);
        let copy = effort.clone();
        let unwound = catch_unwind(AssertUnwindSafe(|| (0..PLAN_STEPS_MAX).for_each(|_| copy.spend(1)))).unwrap_err();
        assert!(unwound.is::<Abandoned>());
        assert_eq!(effort.spent(), 2 * QUESTION_STEPS);
    }

    #[test]
    fn steps_that_are_counted_at_once_are_asked_about_once() {
        let asked = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&asked);
        let effort = Effort::until(Some(Interrupt::new(move || count.fetch_add(1, Ordering::Relaxed) > 9)));
        effort.spend(1_000 * QUESTION_STEPS);
        effort.spend(QUESTION_STEPS - 1);
        effort.spend(1);
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn who_only_explains_is_not_stopped() {
        let effort = Effort::without_end();
        effort.spend(PLAN_STEPS_MAX);
        effort.spend(u64::MAX);
        assert_eq!(effort.spent(), u64::MAX);
    }
}
