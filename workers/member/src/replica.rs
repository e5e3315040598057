//! Which version of the replica is here, and what of an awaited one has arrived. Only what is known about them, not the elements.

use crate::coverage::Coverage;
use crate::event::{Config, Need};
use crate::reduce::chunk;
use events_schema::Step;
use std::ops::Range;
use workers_session::Tag;

/// What is on its way from peers.
#[derive(Debug, Clone)]
struct Supply {
    need: Need,
    tag: Tag,
    step: Step,
    len: usize,
    coverage: Coverage,
}

/// A peer sent elements that cannot be part of what is awaited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UnfitSupply;

/// One executor's replica, as far as it is known.
#[derive(Debug, Clone)]
pub(crate) struct Replica {
    gradient_len: usize,
    compute_len: usize,
    len: usize,
    /// The step it is of, when it is whole.
    step: Option<Step>,
    /// Whether the gradient that led there is here.
    gradient: bool,
    supply: Option<Supply>,
}

impl Replica {
    /// None yet.
    pub fn new(config: &Config) -> Self {
        let (gradient_len, compute_len, len) = (config.gradient_len, config.compute_len, config.replica_len);
        Self { gradient_len, compute_len, len, step: None, gradient: false, supply: None }
    }

    /// The step it is of, when it is whole.
    pub fn step(&self) -> Option<Step> {
        self.step
    }

    /// Whether the last mean gradient is here.
    pub fn has_gradient(&self) -> bool {
        self.gradient
    }

    /// Whether what computing needs is here, at `step`. It arrives before the rest, so that a newcomer can begin.
    pub fn can_compute(&self, step: Step) -> bool {
        match &self.supply {
            Some(s) => s.need == Need::Replica && s.step == step && s.coverage.holds(&(0..self.compute_len)),
            None => self.step == Some(step),
        }
    }

    /// What was loaded is the replica.
    pub fn adopt(&mut self, step: Step) {
        *self = Self { step: Some(step), gradient: false, supply: None, ..*self };
    }

    /// Awaits what is lacking to be at `step`.
    pub fn expect(&mut self, need: Need, tag: Tag, step: Step) {
        let len = match need {
            Need::Replica => {
                (self.step, self.gradient) = (None, false);
                self.len
            }
            Need::Gradient => self.gradient_len,
        };
        self.supply = Some(Supply { need, tag, step, len, coverage: Coverage::default() });
    }

    /// What is awaited.
    pub fn awaited(&self) -> Option<(Need, Tag, Step)> {
        self.supply.as_ref().map(|s| (s.need, s.tag, s.step))
    }

    /// Whether all of what is awaited is here.
    pub fn is_supplied(&self) -> bool {
        self.supply.as_ref().is_some_and(|s| s.coverage.holds(&(0..s.len)))
    }

    /// Nothing is awaited any more: the membership it came in is over.
    pub fn abandon_supply(&mut self) -> bool {
        self.supply.take().is_some()
    }

    /// Takes a stretch of what is awaited; gives where it goes.
    pub fn fill(&mut self, offset: u64, elements: usize) -> Result<Range<usize>, UnfitSupply> {
        let Some(supply) = &mut self.supply else { return Err(UnfitSupply) };
        let start = usize::try_from(offset).map_err(|_| UnfitSupply)?;
        let end = start.checked_add(elements).filter(|end| *end <= supply.len).ok_or(UnfitSupply)?;
        if supply.coverage.take(start..end) { Ok(start..end) } else { Err(UnfitSupply) }
    }

    /// Takes out what was awaited, once all of it is there.
    pub fn take_whole(&mut self) -> Option<(Need, Step)> {
        let supply = if self.is_supplied() { self.supply.take()? } else { return None };
        if supply.need == Need::Replica {
            self.step = Some(supply.step);
        }
        Some((supply.need, supply.step))
    }

    /// The update that leads to `step` is applied.
    pub fn updated(&mut self, step: Step) {
        self.step = Some(step);
        self.gradient = true;
    }

    /// Part `index` of `count` of the replica: a stretch of what computing needs, then one of the rest.
    pub fn part(&self, index: usize, count: usize) -> [Range<usize>; 2] {
        let rest = chunk(self.len - self.compute_len, index, count);
        [chunk(self.compute_len, index, count), rest.start + self.compute_len..rest.end + self.compute_len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::tests::config;
    use events_schema::Generation;

    const TAG: Tag = Tag { generation: Generation(2), revision: 0 };

    fn awaiting(need: Need) -> Replica {
        let mut replica = Replica::new(&Config { gradient_len: 7, compute_len: 7, replica_len: 21, ..config(0, 4, 9) });
        replica.adopt(Step(2));
        replica.expect(need, TAG, Step(3));
        replica
    }

    #[test]
    fn a_newcomer_computes_once_the_parameters_are_there() {
        let mut newcomer = awaiting(Need::Replica);
        let parts: Vec<[Range<usize>; 2]> = (0..2).map(|i| newcomer.part(i, 2)).collect();
        let mut give = |range: &Range<usize>| {
            newcomer.fill(range.start as u64, range.len()).ok();
            (newcomer.can_compute(Step(3)), newcomer.take_whole(), newcomer.step())
        };
        assert_eq!(give(&parts[1][0]), (false, None, None));
        assert_eq!(give(&parts[1][1]), (false, None, None));
        assert_eq!(give(&parts[0][0]), (true, None, None));
        assert_eq!(give(&parts[0][1]), (true, Some((Need::Replica, Step(3))), Some(Step(3))));
    }

    #[test]
    fn a_laggard_computes_nothing_before_it_has_the_gradient() {
        let mut behind = awaiting(Need::Gradient);
        assert!(behind.fill(0, 3).is_ok() && behind.take_whole().is_none());
        assert!(!behind.can_compute(Step(2)) && !behind.can_compute(Step(3)));
        assert!(behind.fill(3, 4).is_ok());
        assert_eq!((behind.take_whole(), behind.step()), (Some((Need::Gradient, Step(3))), Some(Step(2))));
        behind.updated(Step(3));
        assert!(behind.can_compute(Step(3)) && behind.has_gradient());
    }

    #[test]
    fn an_abandoned_gradient_leaves_the_replica_where_it_was() {
        let mut behind = awaiting(Need::Gradient);
        assert!(behind.fill(0, 3).is_ok());
        assert!(behind.abandon_supply());
        assert_eq!((behind.step(), behind.can_compute(Step(2))), (Some(Step(2)), true));
    }

    /// Elements that are counted but not looked at would make a replica with holes pass for a whole one.
    #[test]
    fn elements_that_come_twice_or_lie_beyond_are_refused() {
        let mut newcomer = awaiting(Need::Replica);
        for (offset, elements) in [(20, 2), (u64::MAX, 2), (u64::MAX, usize::MAX), (0, 0), (22, 0)] {
            assert_eq!(newcomer.fill(offset, elements), Err(UnfitSupply), "{offset} {elements}");
        }
        assert!(newcomer.fill(5, 6).is_ok());
        for (offset, elements) in [(5, 6), (0, 6), (10, 1), (4, 8), (6, 2)] {
            assert_eq!(newcomer.fill(offset, elements), Err(UnfitSupply), "{offset} {elements}");
        }
        assert!(newcomer.fill(11, 10).is_ok() && newcomer.take_whole().is_none());
        assert!(newcomer.fill(0, 5).is_ok() && newcomer.take_whole().is_some());
    }
}
