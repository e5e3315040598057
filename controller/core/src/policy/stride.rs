//! With how large a batch a job trains that says a range of them (`batch_range`): how many steps one of its updates takes, its stride.
//!
//! It follows from the job and the members that its generation has, and from nothing else that a view says, so a plan that says a size says it (decisions 20 and
//! 30). A plan is carried out bit by bit, and members are lost; so it is asked for whenever a generation is proposed, of the policy of a name alone, and
//! stands in the proposal.

use super::scalability::{Exchange, Processing, Scalability};
use events_schema::stride::Stride;
use std::collections::BTreeMap;

/// What is known of a job with a range.
#[derive(Debug, Clone, Copy)]
pub struct Batches<'a> {
    /// Logical workers W: a step is a batch of each.
    pub workers: u16,
    /// Its fewest executors.
    pub fewest: u16,
    /// The largest stride that it may take.
    pub most: Stride,
    /// How long an update was measured to take, in microseconds, by members and stride.
    pub update_us: &'a BTreeMap<(u16, Stride), u64>,
}

/// A larger batch has to be faster by one part in so many: what is less is the rounding of a straight line.
const GAIN_PART: f64 = 1_000.0;
/// All exchanges here are of one model.
const PARAMETERS: u64 = 1;

impl Batches<'_> {
    /// As many samples on each slot as its fewest slots have with the smallest batch: an update takes as long on more slots, and exchanges as much, for more
    /// samples.
    #[must_use]
    pub fn of_size(&self, slots: u16) -> Stride {
        Stride::of(u64::from(slots / self.fewest.max(1))).min(self.most)
    }

    /// The fastest one by what was measured, and of those as fast the smallest (`scalability.rs`): on so many slots measured with any batch, else the smallest.
    ///
    /// The smallest size that was measured is taken for one slot, and what an update takes there to go with its samples beyond those that were measured. So a
    /// larger batch has to pay by exchanges that are fewer, or by gradients that were measured to be better used.
    #[must_use]
    pub fn fastest(&self, slots: u16) -> Stride {
        let Some((&(alone, _), _)) = self.update_us.first_key_value() else { return Stride::ONE };
        let Some(processing) = self.processing(alone) else { return Stride::ONE };
        let exchange = self.exchange(alone, &processing);
        let samples = |stride: Stride| u32::from(self.workers) * stride.steps() as u32;
        let job = Scalability {
            processing: &processing,
            exchange: &exchange,
            parameters: PARAMETERS,
            batch: samples(Stride::ONE)..=samples(self.most),
            per_slot_max: samples(self.most),
        };
        let over = slots.div_ceil(alone.max(1));
        let rates = (1..=self.most.steps()).map(Stride::of).filter_map(|of| Some((of, job.rate(samples(of), over)?)));
        let faster = |best: (Stride, f64), next: (Stride, f64)| {
            if next.1 > best.1 * (1.0 + 1.0 / GAIN_PART) { next } else { best }
        };
        rates.reduce(faster).map_or(Stride::ONE, |(stride, _)| stride)
    }

    /// Updates on the size that is taken for one slot. Samples are counted in batches of one logical worker.
    fn processing(&self, alone: u16) -> Option<Processing> {
        let of_alone = self.update_us.range((alone, Stride::ONE)..=(alone, self.most));
        let mut points: Vec<(u32, f64)> = of_alone
            .map(|((_, stride), us)| (u32::from(self.workers) * stride.steps() as u32, *us as f64 / 1e3))
            .collect();
        let (first, last) = (*points.first()?, *points.last()?);
        let most = u32::from(self.workers) * self.most.steps() as u32;
        let in_proportion = |(samples, ms): (u32, f64), to: u32| (to, ms * f64::from(to) / f64::from(samples));
        if first.0 > 1 {
            points.insert(0, in_proportion(first, 1));
        }
        if last.0 < most {
            points.push(in_proportion(last, most));
        }
        Processing::new(points).ok()
    }

    /// What is left of updates on other sizes, once their gradients are taken off.
    fn exchange(&self, alone: u16, processing: &Processing) -> Exchange {
        let mut exchange = Exchange::default();
        for ((members, stride), us) in self.update_us.iter().filter(|((members, _), _)| *members > alone) {
            let over = members.div_ceil(alone.max(1));
            let share = (u32::from(self.workers) * stride.steps() as u32).div_ceil(over.into());
            if let Some(ms) = processing.ms(share) {
                exchange.add(over, PARAMETERS, (*us as f64 / 1e3 - ms).max(0.0));
            }
        }
        exchange
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(update_ms: &[(u16, u64, u64)]) -> BTreeMap<(u16, Stride), u64> {
        update_ms.iter().map(|&(members, stride, ms)| ((members, Stride::of(stride)), ms * 1_000)).collect()
    }

    fn batches(fewest: u16, most: u64, update_us: &BTreeMap<(u16, Stride), u64>) -> Batches<'_> {
        Batches { workers: 8, fewest, most: Stride::of(most), update_us }
    }

    #[test]
    fn each_slot_keeps_its_samples_as_far_as_the_range_goes() {
        let none = of(&[]);
        let strides = |fewest, most| [1, 2, 3, 4, 8].map(|slots| batches(fewest, most, &none).of_size(slots).steps());
        assert_eq!(strides(1, 256), [1, 2, 3, 4, 8]);
        assert_eq!(strides(1, 4), [1, 2, 3, 4, 4]);
        assert_eq!(strides(2, 256), [1, 1, 1, 2, 4]);
        assert_eq!(strides(1, 1), [1; 5], "there is no range");
    }

    #[test]
    fn a_larger_batch_pays_where_exchanges_were_measured() {
        let fastest = |update_ms: &[(u16, u64, u64)], slots| batches(1, 16, &of(update_ms)).fastest(slots).steps();
        assert_eq!(fastest(&[], 4), 1, "nothing is known");
        assert_eq!(fastest(&[(1, 1, 80)], 1), 1, "on one slot nobody exchanges");
        assert_eq!(fastest(&[(1, 1, 80)], 4), 1, "nothing was exchanged between four");
        // Four are done with their gradients in a quarter of the time, and exchange for 20 ms.
        assert_eq!(fastest(&[(1, 1, 80), (4, 1, 40)], 4), 16);
        assert_eq!(fastest(&[(1, 1, 80), (4, 1, 20)], 4), 1, "exchanges cost nothing");
        // Measured there, the larger one is no gain: gradients of four steps take five times as long.
        assert_eq!(fastest(&[(1, 1, 80), (1, 4, 400)], 1), 1);
        assert_eq!(fastest(&[(1, 1, 80), (1, 4, 200)], 1), 4, "beyond it nothing is gained");
    }

    #[test]
    fn the_smallest_size_that_was_measured_is_taken_for_one_slot() {
        let measured = of(&[(2, 1, 60), (4, 1, 50)]);
        assert_eq!([2, 4].map(|slots| batches(2, 8, &measured).fastest(slots).steps()), [1, 8]);
    }
}
