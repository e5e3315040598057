//! The measurements that Pollux's simulator is given (petuum/adaptdl, branch osdi21-artifact): of each model step times by placement and local
//! batch size, and how many steps its training takes at a batch size.
//!
//! From them a job's work and its curve at the batch size that it asked for: a local batch that does not fit is accumulated over several
//! passes, of which only the last one exchanges gradients. Placements are the densest of servers with four GPUs. What statistics gain while
//! a job runs is in the measured number of steps. By the ten rules of that simulator work is something else: [`crate::goodput`].

use crate::goodput::{Epoch, Goodput};
use crate::table::{Table, TableError, at_least};
use std::collections::BTreeMap;

/// GPUs of a server there.
const GPUS: u16 = 4;

/// What was measured of one model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PolluxModel {
    /// Steps until its last epoch ends, by batch size.
    steps: BTreeMap<u32, u64>,
    /// Local batch size, seconds of a step and of its exchange, by the number of GPUs.
    times: BTreeMap<u16, Vec<(f64, f64, f64)>>,
    /// The same by placement, and what steps gain.
    goodput: Goodput,
}

const COUNT: &str = "a whole number from 1 on";
const TIME: &str = "seconds, a number from 0 on";
const NUMBER: &str = "a number from 0 on";

impl PolluxModel {
    /// Reads `placements.csv` and `scalability.csv`.
    pub fn read(placements: &str, scalability: &str) -> Result<Self, TableError> {
        let mut model = Self::default();
        let table = Table::read(placements, &["placement", "local_bsz", "step_time", "sync_time"])?;
        for row in table.rows() {
            let place = row.take("placement", "GPUs on each server, a digit of 1 to 4 each", digits)?;
            let gpus: u16 = place.iter().sum();
            let (local, step_s, sync_s) = point(row)?;
            model.goodput.add_placement(&place, local as u32, (step_s, sync_s));
            let rest = gpus % GPUS;
            let dense = [rest].into_iter().filter(|rest| *rest > 0);
            if dense.chain((0..gpus / GPUS).map(|_| GPUS)).eq(place) {
                model.add(gpus, row)?;
            }
        }
        let table = Table::read(scalability, &["num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time"])?;
        for row in table.rows() {
            let whole = |text: &str| text.parse::<u16>().ok().filter(|count| *count > 0);
            let (servers, gpus) = (row.take("num_nodes", COUNT, whole)?, row.take("num_replicas", COUNT, whole)?);
            let (local, step_s, sync_s) = point(row)?;
            model.goodput.add_shape(servers, gpus, local as u32, (step_s, sync_s));
            // Up to four servers are in the other table.
            if gpus.div_ceil(GPUS) == servers {
                model.add(gpus, row)?;
            }
        }
        model.times.values_mut().for_each(|points| points.sort_by(|a, b| a.0.total_cmp(&b.0)));
        Ok(model)
    }

    fn add(&mut self, gpus: u16, row: crate::table::Row<'_>) -> Result<(), TableError> {
        self.times.entry(gpus).or_default().push(point(row)?);
        Ok(())
    }

    /// Reads `validation-B.csv`, in which each line is an epoch and the last one is the last of the training.
    pub fn add_validation(&mut self, batch_size: u32, text: &str) -> Result<(), TableError> {
        let table = Table::read(text, &["iteration"])?;
        for row in table.rows() {
            let steps = row.take("iteration", COUNT, |text| text.parse().ok().filter(|steps| *steps > 0))?;
            self.steps.insert(batch_size, steps);
            let number = |column| row.take_optional(column, NUMBER, at_least(0.0));
            let epoch = (number("progress")?, number("grad_sqr")?, number("grad_var")?);
            if let (Some(progress), Some(grad_sqr), Some(grad_var)) = epoch {
                self.goodput.add_epoch(batch_size, Epoch { progress, grad_sqr, grad_var });
            }
        }
        Ok(())
    }

    /// What steps gain, and how long they take by placement.
    #[must_use]
    pub fn goodput(&self, model: &str) -> Goodput {
        self.goodput.clone().named(model)
    }

    /// The same model, whose steps have the batch that they gain most with.
    pub(crate) fn with_best_batches(self) -> Self {
        Self { goodput: self.goodput.with_best_batches(), ..self }
    }

    /// Steps of a whole training at a batch size; none if that was not measured.
    #[must_use]
    pub fn steps(&self, batch_size: u32) -> Option<u64> {
        self.steps.get(&batch_size).copied()
    }

    /// The largest batch size that was measured.
    #[must_use]
    pub fn largest_batch(&self) -> Option<u32> {
        self.steps.last_key_value().map(|(size, _)| *size)
    }

    /// Steps per second at a batch size by GPUs, where they were measured.
    #[must_use]
    pub fn curve(&self, batch_size: u32) -> Vec<(u16, f64)> {
        let largest = self.times.values().flatten().map(|(local, ..)| *local).fold(0.0, f64::max);
        let rate = |(gpus, points): (&u16, &Vec<(f64, f64, f64)>)| {
            let local = f64::from(batch_size.div_ceil(u32::from(*gpus)));
            let passes = (local / largest).ceil().max(1.0);
            let (step_s, sync_s) = between(points, (local / passes).ceil())?;
            let takes_s = step_s + (passes - 1.0) * (step_s - sync_s);
            (takes_s > 0.0).then_some((*gpus, 1.0 / takes_s))
        };
        self.times.iter().filter_map(rate).collect()
    }
}

/// Local batch size, seconds of a step and of its exchange.
fn point(row: crate::table::Row<'_>) -> Result<(f64, f64, f64), TableError> {
    let local = row.take("local_bsz", COUNT, at_least(1.0))?;
    Ok((local, row.take("step_time", TIME, at_least(0.0))?, row.take("sync_time", TIME, at_least(0.0))?))
}

fn digits(text: &str) -> Option<Vec<u16>> {
    let of = |letter: char| letter.to_digit(10).map(|digit| digit as u16).filter(|digit| (1..=GPUS).contains(digit));
    text.chars().map(of).collect::<Option<Vec<u16>>>().filter(|place| !place.is_empty())
}

/// Step and exchange at a local batch size, on a line between two that were measured; none beyond them.
fn between(points: &[(f64, f64, f64)], local: f64) -> Option<(f64, f64)> {
    let above = points.partition_point(|(known, ..)| *known < local);
    let (high, high_step, high_sync) = *points.get(above)?;
    if high <= local {
        return Some((high_step, high_sync));
    }
    let (low, low_step, low_sync) = *points.get(above.checked_sub(1)?)?;
    let share = (local - low) / (high - low);
    Some((low_step + (high_step - low_step) * share, low_sync + (high_sync - low_sync) * share))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const PLACEMENTS: &str = "placement,local_bsz,step_time,sync_time\n1,4,1,0\n1,8,1.5,0\n13,4,9,9\n4,4,1.5,0.5\n4,8,2,0.5\n14,4,2,1\n14,8,3,1\n";
    const SCALABILITY: &str =
        "num_nodes,num_replicas,local_bsz,step_time,sync_time\n6,6,4,9,9\n5,20,4,2,1\n5,20,8,4,1\n";

    #[test]
    fn a_local_batch_that_does_not_fit_is_accumulated() {
        let model = PolluxModel::read(PLACEMENTS, SCALABILITY).unwrap();
        // On one GPU 24 samples are three passes of 8; on four one pass of 6; on five one of 5; on twenty 2 were not measured.
        let expected = [(1, 1.0 / 4.5), (4, 1.0 / 1.75), (5, 1.0 / 2.25)];
        let curve = model.curve(24);
        assert_eq!(curve.len(), expected.len());
        for ((gpus, rate), (of, right)) in curve.iter().zip(expected) {
            assert!(*gpus == of && (rate - right).abs() < 1e-12, "{curve:?}");
        }
    }

    #[test]
    fn the_last_epoch_says_how_many_steps_there_are() {
        let mut model = PolluxModel::default();
        model.add_validation(12, "progress,iteration,metric\n7,7,80\n14,15,81\n").unwrap();
        assert_eq!((model.steps(12), model.steps(24), model.largest_batch()), (Some(15), None, Some(12)));
        let error = PolluxModel::read("placement,local_bsz,step_time,sync_time\n15,4,1,0\n", SCALABILITY).unwrap_err();
        assert!(error.to_string().starts_with("line 2: placement is `15`"), "{error}");
    }
}
