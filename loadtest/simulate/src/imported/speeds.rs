//! How fast a log's jobs were, as tables that `ebb simulate run --tables` reads: a table for each kind of jobs, with what was measured of all of that kind.
//!
//! Between sizes that were measured the simulator draws straight lines. Fewer and more slots than were measured are not known; there workers are taken to be
//! spread evenly from the nearest measured size on, as the live policies take them to be until they are measured, and that is counted: without it no job could
//! have other slots than it had. Beyond a size that was slower than a smaller one nothing is taken to be faster.

use crate::curve::Curve;
use events_schema::SlotId;
use std::collections::BTreeMap;

/// A time that a job's update took.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Measured {
    pub slots: u16,
    /// Steps of the update.
    pub stride: u16,
    pub us: u64,
    /// The controller said so. Else it is the mean of a membership, which counts where nothing was said.
    pub said: bool,
    /// One of its slots.
    pub on: Option<SlotId>,
}

/// Jobs that do the same in a step.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Kind {
    /// What they train on what, as their specs say.
    pub trains: String,
    /// Logical workers.
    pub workers: u16,
    /// Samples of a step, over all of them.
    pub samples: u32,
}

/// How fast a kind of jobs is.
#[derive(Debug, Clone, PartialEq)]
pub struct SpeedTable {
    /// Its name, which jobs have as their model.
    pub name: String,
    samples: u32,
    /// Updates in a second by slots, by the steps of an update.
    rates: BTreeMap<u16, BTreeMap<u16, f64>>,
    /// The fewest and the most slots that something was measured on, if anything was; with each batch.
    measured: Option<(u16, u16)>,
}

impl SpeedTable {
    /// Of a kind, by what was measured; `factor` says how many times as fast as others a slot is.
    pub(super) fn new(kind: &Kind, measured: &[&Measured], factor: impl Fn(&SlotId) -> f64) -> Self {
        let mut times = BTreeMap::<(u16, u16), (Vec<f64>, Vec<f64>)>::new();
        let fits = |of: &&&Measured| (1..=kind.workers).contains(&of.slots) && of.us > 0 && of.stride > 0;
        for of in measured.iter().filter(fits) {
            let us = of.us as f64 * of.on.as_ref().map_or(1.0, &factor);
            let (said, others) = times.entry((of.stride, of.slots)).or_default();
            if of.said { said.push(us) } else { others.push(us) }
        }
        let mut rates = BTreeMap::<u16, BTreeMap<u16, f64>>::new();
        for ((stride, slots), (said, others)) in times {
            let us = median(if said.is_empty() { others } else { said });
            rates.entry(stride).or_default().extend(us.map(|us| (slots, 1e6 / us)));
        }
        // Where single steps were never measured, a step is taken to be its part of an update; nothing is known of larger ones then.
        if !rates.contains_key(&1) {
            let smallest = rates.pop_first().map(|(stride, of)| (f64::from(stride), of)).unwrap_or_default();
            rates =
                BTreeMap::from([(1, smallest.1.into_iter().map(|(slots, rate)| (slots, rate * smallest.0)).collect())]);
        }
        let ends = |of: &BTreeMap<u16, f64>| Some((*of.first_key_value()?.0, *of.last_key_value()?.0));
        let narrower = |(low, high): (u16, u16), (least, most): (u16, u16)| (low.max(least), high.min(most));
        let measured = rates.values().filter_map(ends).reduce(narrower);
        rates.values_mut().for_each(|of| fill(of, kind.workers));
        Self { name: String::new(), samples: kind.samples, rates, measured }
    }

    /// Steps in a second by slots where an update takes so many; as many as single ones where such updates were not measured.
    pub(super) fn curve(&self, stride: u16) -> Curve {
        let known = self.rates.get_key_value(&stride).or_else(|| self.rates.first_key_value());
        let points = known
            .into_iter()
            .flat_map(|(steps, of)| of.iter().map(|(slots, rate)| (*slots, *rate * f64::from(*steps))));
        Curve::Measured(points.collect())
    }

    /// The same under a name.
    pub(super) fn named(self, name: String) -> Self {
        Self { name, ..self }
    }

    /// Whether anything was measured.
    pub(super) fn is_measured(&self) -> bool {
        self.measured.is_some()
    }

    /// Whether so few slots were measured, and so many.
    pub(super) fn reaches(&self, min: u16, max: u16) -> bool {
        self.measured.is_some_and(|(low, high)| low <= min && max <= high)
    }

    /// Whether larger batches than the smallest were measured.
    pub(super) fn has_larger_batches(&self) -> bool {
        self.rates.len() > 1
    }

    /// As `--tables` has it.
    #[must_use]
    pub fn csv(&self) -> String {
        let mut columns: Vec<u16> = self.rates.values().flat_map(|of| of.keys().copied()).collect();
        columns.sort_unstable();
        columns.dedup();
        let mut text = "global_batch_size".to_owned();
        columns.iter().for_each(|slots| text += &format!(",{slots}"));
        for (stride, of) in &self.rates {
            text += &format!("\n{}", self.samples.saturating_mul((*stride).into()));
            for slots in &columns {
                text += &of.get(slots).map_or_else(|| ",nan".to_owned(), |rate| format!(",{rate}"));
            }
        }
        text + "\n"
    }
}

/// Adds what is taken to be so on fewer and more slots than were measured. Of rates of which none was measured those of workers that are spread evenly.
fn fill(rates: &mut BTreeMap<u16, f64>, workers: u16) {
    let even = |slots: u16| Curve::Even { workers }.speed(slots).unwrap_or(1.0);
    let first = rates.first_key_value().map_or((1, even(1)), |(slots, rate)| (*slots, *rate));
    let last = rates.last_key_value().map_or(first, |(slots, rate)| (*slots, *rate));
    let fastest = rates.values().copied().fold(0.0, f64::max);
    let most = if last.1 < fastest { last.1 } else { f64::INFINITY };
    let from = |(known, rate): (u16, f64), slots: u16| rate * even(slots) / even(known);
    rates.insert(first.0, first.1);
    rates.extend((1..first.0).map(|slots| (slots, from(first, slots))));
    rates.extend((last.0 + 1..=workers).map(|slots| (slots, from(last, slots).min(most))));
    rates.values_mut().for_each(|rate| *rate = rounded(*rate));
}

/// To six digits, as the table has it, so that whoever reads it knows as much.
fn rounded(rate: f64) -> f64 {
    format!("{rate:.5e}").parse().unwrap_or(rate)
}

/// The middle one of some numbers.
pub(super) fn median(mut of: Vec<f64>) -> Option<f64> {
    of.sort_by(f64::total_cmp);
    of.get(of.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::curve::Tables;

    fn kind(workers: u16) -> Kind {
        Kind { trains: String::new(), workers, samples: 32 }
    }

    fn table(workers: u16, measured: &[(u16, u16, u64, bool)]) -> SpeedTable {
        let of = |(slots, stride, us, said): &(u16, u16, u64, bool)| Measured {
            slots: *slots,
            stride: *stride,
            us: *us,
            said: *said,
            on: None,
        };
        let measured: Vec<Measured> = measured.iter().map(of).collect();
        SpeedTable::new(&kind(workers), &measured.iter().collect::<Vec<_>>(), |_| 1.0)
    }

    #[test]
    fn what_was_measured_is_what_the_simulator_reads_with_lines_between() {
        let made =
            table(4, &[(1, 1, 400_000, true), (4, 1, 100_000, true), (4, 1, 200_000, true), (4, 1, 200_000, true)]);
        assert!(made.is_measured() && made.reaches(1, 4));
        assert_eq!(made.csv(), "global_batch_size,1,4\n32,2.5,5\n");
        let mut read = Tables::default();
        read.add("a", &made.csv()).unwrap();
        let given = read.give(Some("a"), Some(32), 4, 0, 0);
        assert_eq!((&given.curve, given.named, given.other_batch), (&made.curve(1), true, false));
        assert_eq!(given.curve.speed(3), Some(2.5 + 2.5 * 2.0 / 3.0));
    }

    #[test]
    fn beyond_what_was_measured_workers_are_spread_evenly_and_that_is_told() {
        let made = table(4, &[(2, 1, 200_000, true)]);
        assert_eq!([(2, 2), (1, 2), (2, 3)].map(|(min, max)| made.reaches(min, max)), [true, false, false]);
        assert_eq!(made.csv(), "global_batch_size,1,2,3,4\n32,2.5,5,5,10\n");
        let slower = table(4, &[(1, 1, 100_000, true), (2, 1, 125_000, true)]);
        assert_eq!(
            slower.csv(),
            "global_batch_size,1,2,3,4\n32,10,8,8,8\n",
            "nothing is taken to be faster beyond one that was slower"
        );
        let never = table(2, &[]);
        assert!(!never.is_measured() && !never.reaches(1, 1));
        assert_eq!(never.csv(), "global_batch_size,1,2\n32,1,2\n");
    }

    #[test]
    fn what_was_said_goes_before_the_mean_of_a_membership() {
        let made = table(2, &[(1, 1, 100_000, false), (1, 1, 200_000, true), (2, 1, 50_000, false)]);
        assert_eq!(made.csv(), "global_batch_size,1,2\n32,5,20\n");
    }

    #[test]
    fn larger_batches_are_rows_and_without_a_step_there_are_none() {
        let made = table(2, &[(1, 1, 100_000, true), (2, 1, 50_000, true), (2, 3, 100_000, true)]);
        assert!(made.has_larger_batches());
        assert_eq!(made.csv(), "global_batch_size,1,2\n32,10,20\n96,5,10\n");
        let none = table(1, &[(1, 3, 300_000, true)]);
        assert_eq!((none.has_larger_batches(), none.csv()), (false, "global_batch_size,1\n32,10\n".to_owned()));
    }

    #[test]
    fn a_faster_slots_times_are_those_of_the_others() {
        let on: SlotId = "fast/0".parse().unwrap();
        let of = Measured { slots: 1, stride: 1, us: 100_000, said: true, on: Some(on) };
        let made = SpeedTable::new(&kind(1), &[&of], |slot| if slot.server.as_str() == "fast" { 4.0 } else { 1.0 });
        assert_eq!(made.csv(), "global_batch_size,1\n32,2.5\n");
    }
}
