//! Where the updates of a generation begin and end, in steps of its job. Pure arithmetic: who steps, and how fast, is `members.rs`.

/// Of the work that is left, what is too little for a step: a time in whole milliseconds is never further off.
pub(crate) const STEP_SLACK: f64 = 1e-9;

/// Where updates end: counted from where their generation began, and from each checkpoint that is due by steps, at which one ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Updates {
    /// Where their generation began.
    pub from: f64,
    /// Steps of each.
    pub steps: f64,
    /// Steps between two checkpoints.
    pub checkpoint_every: Option<u64>,
}

impl Updates {
    /// Where the one began that is in flight after so many steps.
    pub fn begun(&self, steps: f64) -> f64 {
        let steps = steps + STEP_SLACK;
        let from = self.checkpoint_every.map_or(self.from, |every| self.from.max(multiple(steps, every)));
        from + ((steps - from) / self.steps).floor() * self.steps
    }

    /// Where that one ends.
    pub fn end(&self, steps: f64) -> f64 {
        let begun = self.begun(steps);
        let due =
            self.checkpoint_every.map_or(f64::INFINITY, |every| multiple(begun + STEP_SLACK, every) + every as f64);
        (begun + self.steps).min(due)
    }

    /// Where a member is done with its part of the one in flight.
    pub fn part_end(&self, steps: f64, part: f64) -> f64 {
        let begun = self.begun(steps);
        begun + (self.end(steps) - begun) * part
    }

    /// The first end that the leader, whose part this is, can still say something about: it does when it is done with it.
    pub fn said_end(&self, steps: f64, part: f64) -> f64 {
        let end = self.end(steps);
        if self.part_end(steps, part) + STEP_SLACK < steps { self.end(end) } else { end }
    }
}

/// The last multiple that so many steps have come to.
pub(crate) fn multiple(steps: f64, of: u64) -> f64 {
    (steps / of as f64).floor() * of as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn updates_are_counted_from_where_their_generation_began_and_end_at_checkpoints() {
        let of = |from, steps, checkpoint_every| Updates { from, steps, checkpoint_every };
        let four = of(3.0, 4.0, None);
        assert_eq!(
            [3.0, 3.5, 6.9, 7.0].map(|steps| (four.begun(steps), four.end(steps))),
            [(3.0, 7.0), (3.0, 7.0), (3.0, 7.0), (7.0, 11.0)]
        );
        let saved = of(0.0, 4.0, Some(7));
        assert_eq!(
            [4.5, 7.5, 11.0, 13.9].map(|steps| (saved.begun(steps), saved.end(steps))),
            [(4.0, 7.0), (7.0, 11.0), (11.0, 14.0), (11.0, 14.0)]
        );
        let one = of(0.0, 1.0, Some(7));
        assert_eq!(
            [0.0, 6.5, 7.0].map(|steps| (one.begun(steps), one.end(steps))),
            [(0.0, 1.0), (6.0, 7.0), (7.0, 8.0)]
        );
    }

    #[test]
    fn a_leader_that_is_done_with_its_part_says_something_about_the_next_end_alone() {
        let updates = Updates { from: 0.0, steps: 4.0, checkpoint_every: None };
        assert_eq!(updates.part_end(5.0, 0.5), 6.0);
        assert_eq!([5.9, 6.0, 6.1].map(|steps| updates.said_end(steps, 0.5)), [8.0, 8.0, 12.0]);
        assert_eq!(updates.said_end(7.9, 1.0), 8.0, "who takes longest can until the end");
    }
}
