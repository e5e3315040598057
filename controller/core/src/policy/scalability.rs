//! The job scalability analyzer of [`super::ibm_dp`] (§III-B): from steps that were measured on one slot and exchanges that were measured between
//! many, how fast a job is on any number of slots with any batch, and which batch is the best.
//!
//! A step of b samples on k slots takes t_proc(⌈b/k⌉) + t_comm(parameters, k). Between measured points are straight lines, and beyond them
//! nothing is known: such a choice is infeasible, as is a batch that does not fit on a slot. How a batch follows from a size is part of
//! the curve that policies are given, so no plan names one.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// What a step takes on one slot by its samples, in ms.
#[derive(Debug, Clone, PartialEq)]
pub struct Processing(Vec<(u32, f64)>);

/// What an exchange of gradients takes by parameters and slots, in ms. Of the cluster, and the same for all jobs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Exchange(BTreeMap<u16, BTreeMap<u64, f64>>);

/// Measurements that say nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredError {
    points: Vec<(u32, f64)>,
}

impl std::fmt::Display for MeasuredError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let of = &self.points;
        write!(
            f,
            "{of:?} are no measured steps; expected at least one (samples, ms), samples rising from 1, ms above 0"
        )
    }
}

impl std::error::Error for MeasuredError {}

impl Processing {
    /// Of points (samples, ms) by rising samples.
    pub fn new(points: Vec<(u32, f64)>) -> Result<Self, MeasuredError> {
        let rising = points.is_sorted_by(|a, b| a.0 < b.0);
        let legal = points.iter().all(|&(samples, ms)| samples > 0 && ms.is_finite() && ms > 0.0);
        if points.is_empty() || !rising || !legal { Err(MeasuredError { points }) } else { Ok(Self(points)) }
    }

    /// A step of so many samples; none beyond what was measured.
    #[must_use]
    pub fn ms(&self, samples: u32) -> Option<f64> {
        between(self.0.iter().map(|&(samples, ms)| (u64::from(samples), ms)), u64::from(samples))
    }
}

impl Exchange {
    /// Adds what an exchange between so many slots takes, in ms.
    pub fn add(&mut self, slots: u16, parameters: u64, ms: f64) {
        self.0.entry(slots).or_default().insert(parameters, ms);
    }

    /// An exchange between so many slots; one slot exchanges with nobody.
    #[must_use]
    pub fn ms(&self, parameters: u64, slots: u16) -> Option<f64> {
        match slots {
            0 => None,
            1 => Some(0.0),
            _ => between(self.0.get(&slots)?.iter().map(|(of, ms)| (*of, *ms)), parameters),
        }
    }
}

/// A job, as far as its speed follows from its size and its batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Scalability<'a> {
    /// Its steps on one slot.
    pub processing: &'a Processing,
    /// The exchanges of the cluster it runs on.
    pub exchange: &'a Exchange,
    /// Weights of its model.
    pub parameters: u64,
    /// Samples of a step, over all slots, with which it may train.
    pub batch: RangeInclusive<u32>,
    /// Most samples of a step that fit on one slot.
    pub per_slot_max: u32,
}

impl Scalability<'_> {
    /// T(b, k): samples per ms with a batch of so many, over so many slots; none if that is infeasible.
    #[must_use]
    pub fn rate(&self, batch: u32, slots: u16) -> Option<f64> {
        let share = batch.div_ceil(u32::from(slots.max(1)));
        let feasible = slots > 0 && self.batch.contains(&batch) && share <= self.per_slot_max;
        let step_ms = self.processing.ms(share)? + self.exchange.ms(self.parameters, slots)?;
        feasible.then(|| f64::from(batch) / step_ms)
    }

    /// What factors are multiples of (equation 1): samples per ms on one slot with the most samples that fit, or that it may train with.
    #[must_use]
    pub fn alone(&self) -> Option<f64> {
        let most = self.per_slot_max.min(*self.batch.end());
        Some(f64::from(most) / self.processing.ms(most)?)
    }

    /// 𝒯(b, k): how many times as fast as alone.
    #[must_use]
    pub fn factor(&self, batch: u32, slots: u16) -> Option<f64> {
        Some(self.rate(batch, slots)? / self.alone()?)
    }

    /// The best batch on so many slots, and its factor (equation 2); the smaller of equals.
    #[must_use]
    pub fn best(&self, slots: u16) -> Option<(u32, f64)> {
        let (fewest, most) = (*self.batch.start(), *self.batch.end());
        let count = u32::from(slots.max(1));
        // Of all batches with as many samples on the fullest slot the largest is the fastest.
        let shares = fewest.div_ceil(count)..=self.per_slot_max.min(most.div_ceil(count));
        let with = |share: u32| share.saturating_mul(count).min(most);
        let found = shares.map(with).filter_map(|batch| Some((batch, self.factor(batch, slots)?)));
        found.reduce(|best, next| if next.1 > best.1 { next } else { best })
    }

    /// The factors by slots, up to so many, where anything is feasible: with the best batch on each, or with one that is fixed.
    #[must_use]
    pub fn curve(&self, slots_max: u16, batch: Option<u32>) -> Vec<(u16, f64)> {
        let of = |slots: u16| match batch {
            Some(batch) => self.factor(batch, slots),
            None => self.best(slots).map(|(_, factor)| factor),
        };
        (1..=slots_max).filter_map(|slots| Some((slots, of(slots)?))).collect()
    }
}

/// On a straight line between the nearest two of rising points; none beyond the outermost.
fn between(points: impl Iterator<Item = (u64, f64)>, at: u64) -> Option<f64> {
    let mut below: Option<(u64, f64)> = None;
    for (of, ms) in points {
        if of >= at {
            let Some((low, from)) = below.filter(|_| of > at) else { return (of == at).then_some(ms) };
            return Some(from + (ms - from) * (at - low) as f64 / (of - low) as f64);
        }
        below = Some((of, ms));
    }
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Table II: factors of category 1 on two slots by samples on each. A straight line through what a step takes meets all five within 3 %:
    /// 17 % of a step of 32 samples are there without any, and an exchange between two takes 20.4 % of it.
    const TABLE_TWO: [(u32, f64); 5] = [(8, 0.86), (11, 1.06), (16, 1.3), (22, 1.45), (32, 1.66)];

    fn steps() -> Processing {
        Processing::new(vec![(1, 17.0 + 83.0 / 32.0), (32, 100.0)]).unwrap()
    }

    fn exchanges() -> Exchange {
        let mut exchange = Exchange::default();
        for (slots, ms) in [(2, 20.4), (3, 117.0), (4, 131.0), (5, 140.0)] {
            exchange.add(slots, 20_000_000, ms * 20.0 / 24.0);
            exchange.add(slots, 30_000_000, ms * 30.0 / 24.0);
        }
        exchange
    }

    fn category_one<'a>(processing: &'a Processing, exchange: &'a Exchange) -> Scalability<'a> {
        Scalability { processing, exchange, parameters: 24_000_000, batch: 16..=256, per_slot_max: 32 }
    }

    #[test]
    fn table_two_comes_out() {
        let (processing, exchange) = (steps(), exchanges());
        let job = category_one(&processing, &exchange);
        for (share, printed) in TABLE_TWO {
            let found = job.factor(2 * share, 2).unwrap();
            assert!((found / printed - 1.0).abs() < 0.03, "{share}: {found} and not {printed}");
        }
        // §IV-D: "1.6X faster" with 160 samples on five than with 32 on two.
        let times = job.factor(160, 5).unwrap() / job.factor(32, 2).unwrap();
        assert!((times - 1.6).abs() < 0.05, "{times}");
    }

    #[test]
    fn the_best_batch_fills_slots_as_long_as_it_may() {
        let (processing, exchange) = (steps(), exchanges());
        let job = category_one(&processing, &exchange);
        assert_eq!([1, 2, 5].map(|slots| job.best(slots).unwrap().0), [32, 64, 160]);
        let few = Scalability { batch: 16..=100, ..job.clone() };
        assert_eq!(few.best(5).unwrap().0, 100, "it may not have more");
        for slots in 1..=5 {
            let all = (16..=100).filter_map(|batch| few.factor(batch, slots)).fold(0.0, f64::max);
            assert_eq!(few.best(slots).unwrap().1, all, "on {slots} slots");
        }
        assert_eq!((job.best(1).unwrap().1, job.best(6)), (1.0, None), "nothing was exchanged between six");
    }

    #[test]
    fn a_batch_that_does_not_fit_needs_more_slots() {
        let (processing, exchange) = (steps(), exchanges());
        let job = category_one(&processing, &exchange);
        let sizes = |batch| job.curve(5, Some(batch)).iter().map(|(slots, _)| *slots).collect::<Vec<_>>();
        assert_eq!((sizes(32), sizes(100)), (vec![1, 2, 3, 4, 5], vec![4, 5]));
        assert_eq!(job.rate(300, 5), None, "and this one it may not train with");
    }

    #[test]
    fn nothing_is_known_beyond_what_was_measured() {
        let steps = Processing::new(vec![(8, 10.0), (16, 14.0)]).unwrap();
        assert_eq!(
            [7, 8, 12, 16, 17].map(|samples| steps.ms(samples)),
            [None, Some(10.0), Some(12.0), Some(14.0), None]
        );
        assert!(
            (exchanges().ms(24_000_000, 2).unwrap() - 20.4).abs() < 1e-9 && exchanges().ms(31_000_000, 2).is_none()
        );
        assert!(Processing::new(vec![]).is_err() && Processing::new(vec![(2, 1.0), (1, 1.0)]).is_err());
    }
}
