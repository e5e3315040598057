//! Where an update ends: after as many steps as its generation takes at once, or earlier, where something is due.
//!
//! A step numbers a place in the data, so whoever holds the replica of a step knows which samples it was trained on, whatever strides led there. An update of
//! several steps goes from one to a later one. It ends at the end of an epoch, so that none is of two epochs, and at every step at which the spec wants a
//! checkpoint, an evaluation or a comparison: what is due at a step never falls into the middle of an update.

use events_schema::Step;
use events_schema::stride::Stride;

/// Steps at whose multiples an update ends; none where there is no such.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stops {
    /// Steps of an epoch.
    pub epoch: Option<u64>,
    /// Steps between two evaluations.
    pub evaluation: Option<u64>,
    /// Steps between two comparisons of replicas.
    pub comparison: Option<u64>,
    /// Steps between two checkpoints.
    pub checkpoint: Option<u64>,
    /// Steps of the whole job.
    pub total: u64,
}

impl Stops {
    /// The step to which an update of this stride leads from `step`.
    #[must_use]
    pub fn after(&self, step: Step, stride: Stride) -> Step {
        if stride.is_one() {
            return step.next();
        }
        let whole = step.0.saturating_add(stride.steps());
        let due = self.every().map(|every| next_multiple(step.0, every));
        Step(due.chain([self.total]).filter(|end| *end > step.0).fold(whole, u64::min))
    }

    /// Steps that an update of this stride takes at the most, wherever it begins.
    #[must_use]
    pub fn longest(&self, stride: Stride) -> Stride {
        Stride::of(self.every().fold(stride.steps(), u64::min))
    }

    fn every(&self) -> impl Iterator<Item = u64> {
        let every = [self.epoch, self.evaluation, self.comparison, self.checkpoint];
        every.into_iter().flatten().map(|every| every.max(1))
    }

    /// How many updates lead from one step to another.
    pub(crate) fn updates(&self, from: Step, to: Step, stride: Stride) -> u64 {
        if stride.is_one() {
            return to.0.saturating_sub(from.0);
        }
        let after = |step: &Step| Some(self.after(*step, stride)).filter(|next| next <= &to);
        // No more than there are steps between them, and whoever asks gives up who is far behind.
        std::iter::successors(Some(from), after).skip(1).count() as u64
    }
}

fn next_multiple(step: u64, of: u64) -> u64 {
    (step / of).saturating_add(1).saturating_mul(of)
}

/// How many steps an update between these two takes.
#[must_use]
pub fn stride_between(from: Step, to: Step) -> Stride {
    Stride::of(to.0.saturating_sub(from.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STOPS: Stops = Stops { epoch: Some(10), evaluation: None, comparison: None, checkpoint: Some(25), total: 38 };

    /// Where updates of a stride end, from the first step to the last.
    fn ends(stops: &Stops, stride: u64) -> Vec<u64> {
        let after = |step: &Step| Some(stops.after(*step, Stride::of(stride))).filter(|_| step.0 < stops.total);
        std::iter::successors(Some(Step(0)), after).skip(1).map(|step| step.0).collect()
    }

    #[test]
    fn an_update_ends_where_something_is_due() {
        assert_eq!(ends(&STOPS, 4), [4, 8, 10, 14, 18, 20, 24, 25, 29, 30, 34, 38]);
        assert_eq!(ends(&STOPS, 16), [10, 20, 25, 30, 38]);
        assert_eq!([4, 16].map(|stride| STOPS.longest(Stride::of(stride)).steps()), [4, 10], "an epoch");
        let none = Stops { total: 9, ..Stops::default() };
        assert_eq!((ends(&none, 4), ends(&none, 100)), (vec![4, 8, 9], vec![9]));
    }

    #[test]
    fn a_stride_of_one_is_every_step() {
        assert_eq!(ends(&STOPS, 1), (1..=38).collect::<Vec<_>>());
        assert_eq!(STOPS.after(Step(u64::MAX - 1), Stride::ONE), Step(u64::MAX));
    }

    #[test]
    fn updates_are_counted_between_two_steps() {
        let between = |from, to, stride| STOPS.updates(Step(from), Step(to), Stride::of(stride));
        assert_eq!([between(0, 38, 4), between(8, 18, 4), between(18, 18, 4), between(20, 10, 4)], [12, 3, 0, 0]);
        assert_eq!(between(3, 9, 1), 6);
    }

    #[test]
    fn what_an_update_took_is_told_by_its_ends() {
        let to = STOPS.after(Step(24), Stride::of(4));
        assert_eq!((to, stride_between(Step(24), to)), (Step(25), Stride::ONE));
    }
}
