//! How fast a job is on how many slots: measured points, and straight lines between them. Nothing is said beyond the outermost ones.
//!
//! Recorded jobs carry no curves of their own. Without tables each is taken to be *even*: its W logical workers are spread over its slots and
//! the member with the most of them decides, W ÷ ⌈W/p⌉ times the speed of one slot. With tables the curve is that of its model, or of a
//! model that its place in the recording and the seed give it.

use crate::goodput::Goodput;
use crate::pollux::PolluxModel;
use crate::random::Random;
use crate::table::{self, TableError, at_least};
use std::collections::{BTreeMap, BTreeSet};

/// How fast a job is by slots, in any unit.
#[derive(Debug, Clone, PartialEq)]
pub enum Curve {
    /// W ÷ ⌈W/p⌉.
    Even {
        /// Logical workers, and most slots.
        workers: u16,
    },
    /// Slots and speed, by slots.
    Measured(Vec<(u16, f64)>),
}

impl Curve {
    /// The fewest and the most slots that it is known for.
    #[must_use]
    pub fn range(&self) -> (u16, u16) {
        match self {
            Self::Even { workers } => (1, *workers),
            Self::Measured(points) => {
                (points.first().map_or(0, |(slots, _)| *slots), points.last().map_or(0, |(slots, _)| *slots))
            }
        }
    }

    /// The speed on so many slots; none outside its range.
    #[must_use]
    pub fn speed(&self, slots: u16) -> Option<f64> {
        let (low, high) = self.range();
        if slots < low || slots > high || slots == 0 {
            return None;
        }
        match self {
            Self::Even { workers } => Some(f64::from(*workers) / f64::from(workers.div_ceil(slots))),
            Self::Measured(points) => {
                let above = points.partition_point(|(known, _)| *known < slots);
                let (to, fast) = points.get(above)?;
                let Some((from, slow)) = above.checked_sub(1).and_then(|below| points.get(below)) else {
                    return Some(*fast);
                };
                Some(slow + (fast - slow) * f64::from(slots - from) / f64::from(to - from))
            }
        }
    }
}

/// Measured curves, by model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tables(BTreeMap<String, Table>);

/// What was measured of one model.
#[derive(Debug, Clone, PartialEq)]
enum Table {
    /// Steps per second, by the samples of a step.
    Rates(BTreeMap<u32, Vec<(u16, f64)>>),
    /// Step times, and how many steps there are.
    Pollux(PolluxModel),
}

/// The curve that a job is given, and how far it is its own.
#[derive(Debug, Clone, PartialEq)]
pub struct Given {
    /// Its curve.
    pub curve: Curve,
    /// The model it is of; none of an even one.
    pub model: Option<String>,
    /// Whether the recording named that model, and not seed and place.
    pub named: bool,
    /// Whether the batch size that it was measured at is not the job's, nor between two that were measured.
    pub other_batch: bool,
}

impl Tables {
    /// Adds the iterations per second of a model: `global_batch_size`, then a column for each number of GPUs (ElasticFlow's tables). What was
    /// not measured is `nan` there.
    pub fn add(&mut self, model: &str, text: &str) -> Result<(), TableError> {
        let table = table::Table::read(text, &["global_batch_size"])?;
        let mut rates = BTreeMap::new();
        let slots: Vec<(String, u16)> = table
            .header()
            .iter()
            .filter_map(|column| Some((column.clone(), column.parse().ok().filter(|slots| *slots > 0)?)))
            .collect();
        for row in table.rows() {
            let size = row.take("global_batch_size", "a whole number of samples", |text| text.parse().ok())?;
            let mut points = Vec::new();
            for (column, slots) in &slots {
                let measured = |text: &str| if text == "nan" { Some(0.0) } else { at_least(f64::MIN_POSITIVE)(text) };
                let speed = row.take(column, "iterations per second above 0, or nan", measured)?;
                points.extend((speed > 0.0).then_some((*slots, speed)));
            }
            points.sort_by_key(|(slots, _)| *slots);
            if points.is_empty() {
                return Err(row.wrong("global_batch_size", "a row with at least one number of iterations per second"));
            }
            rates.insert(size, points);
        }
        self.0.insert(model.to_owned(), Table::Rates(rates));
        Ok(())
    }

    /// Adds speeds of a model by slots, slots rising, in any unit.
    pub fn add_speeds(&mut self, model: &str, points: Vec<(u16, f64)>) {
        // The batch is not looked at where jobs name none.
        self.0.insert(model.to_owned(), Table::Rates(BTreeMap::from([(1, points)])));
    }

    /// Adds what Pollux measured of a model.
    pub fn add_pollux(&mut self, model: &str, measured: PolluxModel) {
        self.0.insert(model.to_owned(), Table::Pollux(measured));
    }

    /// The same models, each with the batch that is best on the slots that a job has, whichever policy gives them. By rates that is the one with most samples
    /// in a second, which are taken to be worth the same; where statistics were measured too, the one that gains most.
    #[must_use]
    pub fn with_best_batches(self) -> Self {
        let best = |table| match table {
            Table::Rates(rates) => Table::Rates(best_of(&rates)),
            Table::Pollux(measured) => Table::Pollux(measured.with_best_batches()),
        };
        Self(self.0.into_iter().map(|(model, table)| (model, best(table))).collect())
    }

    /// How many steps the training of a model takes at a batch size, where that was measured.
    #[must_use]
    pub fn steps(&self, model: &str, batch_size: u32) -> Option<u64> {
        match self.0.get(model)? {
            Table::Rates(_) => None,
            Table::Pollux(measured) => measured.steps(batch_size),
        }
    }

    /// What steps of a model gain, where that was measured.
    #[must_use]
    pub fn goodput(&self, model: &str) -> Option<Goodput> {
        match self.0.get(model)? {
            Table::Rates(_) => None,
            Table::Pollux(measured) => Some(measured.goodput(model)),
        }
    }

    /// Models that there are tables of, in order.
    pub fn models(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The curve of a job that trains a model with so many samples a step, both if they are known; `place`: of the job in its recording.
    #[must_use]
    pub fn give(&self, model: Option<&str>, batch_size: Option<u32>, workers: u16, seed: u64, place: usize) -> Given {
        let known = model.and_then(|model| self.0.get_key_value(model));
        let named = known.is_some();
        let drawn = || self.0.iter().nth(Random::new(seed.wrapping_add(place as u64)).below(self.0.len()));
        let Some((model, table)) = known.or_else(drawn) else {
            return Given { curve: Curve::Even { workers }, model: None, named: false, other_batch: false };
        };
        let batch_size = batch_size.filter(|_| named);
        let (points, other_batch) = match table {
            Table::Rates(rates) => at_batch(rates, batch_size),
            Table::Pollux(measured) => {
                let size = batch_size.or(measured.largest_batch()).unwrap_or(1);
                (measured.curve(size), false)
            }
        };
        Given { curve: Curve::Measured(points), model: Some(model.clone()), named, other_batch }
    }
}

/// Of some batch sizes the most samples in a second on each number of slots that one of them was measured on, in steps of the smallest.
fn best_of(rates: &BTreeMap<u32, Vec<(u16, f64)>>) -> BTreeMap<u32, Vec<(u16, f64)>> {
    let Some(smallest) = rates.keys().next().copied() else { return BTreeMap::new() };
    let curves: Vec<(f64, Curve)> = rates
        .iter()
        .map(|(size, points)| (f64::from(*size) / f64::from(smallest), Curve::Measured(points.clone())))
        .collect();
    let slots: BTreeSet<u16> = rates.values().flatten().map(|(slots, _)| *slots).collect();
    let most = |slots: u16| curves.iter().filter_map(|(steps, of)| Some(steps * of.speed(slots)?)).reduce(f64::max);
    let points = slots.into_iter().filter_map(|slots| Some((slots, most(slots)?))).collect();
    BTreeMap::from([(smallest, points)])
}

/// The curve at a batch size, and whether it is that of another one. Where none is said any is as good: the smallest that was measured.
fn at_batch(rates: &BTreeMap<u32, Vec<(u16, f64)>>, batch_size: Option<u32>) -> (Vec<(u16, f64)>, bool) {
    let size = batch_size.or(rates.keys().next().copied()).unwrap_or(0);
    match (rates.range(..=size).next_back(), rates.range(size..).next()) {
        (Some((low, slow)), Some((high, fast))) if low < high => (between(slow, fast, size, *low, *high), false),
        (Some(_), Some((_, points))) => (points.clone(), false),
        (Some((_, points)), None) | (None, Some((_, points))) => (points.clone(), true),
        (None, None) => (Vec::new(), true),
    }
}

/// Speeds at a batch size between two that were measured, for the slots that both were measured on: a line through the times of a step.
fn between(slow: &[(u16, f64)], fast: &[(u16, f64)], size: u32, low: u32, high: u32) -> Vec<(u16, f64)> {
    let share = f64::from(size - low) / f64::from(high - low);
    let both = |(slots, speed): &(u16, f64)| {
        let other = fast.iter().find(|(known, _)| known == slots).map(|(_, speed)| *speed)?;
        Some((*slots, 1.0 / (1.0 / speed * (1.0 - share) + 1.0 / other * share)))
    };
    slow.iter().filter_map(both).collect()
}

/// Whole milliseconds; what would never end takes as long as can be told.
pub(crate) fn whole_ms(ms: Option<f64>) -> u64 {
    ms.map_or(u64::MAX, |ms| ms.ceil().max(0.0) as u64)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn lines_between_points_and_nothing_beyond() {
        let curve = Curve::Measured(vec![(2, 1.0), (4, 3.0), (8, 2.0)]);
        let speeds: Vec<_> = (1..=9).map(|slots| curve.speed(slots)).collect();
        let known = [1.0, 2.0, 3.0, 2.75, 2.5, 2.25, 2.0].map(Some);
        assert_eq!((speeds[0], &speeds[1..8], speeds[8]), (None, &known[..], None));
    }

    #[test]
    fn an_even_job_waits_for_the_member_with_most_workers() {
        let curve = Curve::Even { workers: 8 };
        let speeds: Vec<_> = (1..=8).map(|slots| curve.speed(slots).unwrap()).collect();
        assert_eq!(speeds, [1.0, 2.0, 8.0 / 3.0, 4.0, 4.0, 4.0, 4.0, 8.0]);
        assert_eq!((curve.speed(0), curve.speed(9)), (None, None));
    }

    #[test]
    fn tables_give_the_models_curve_and_say_when_it_is_another() {
        let mut tables = Tables::default();
        tables.add("a", "global_batch_size,1,2,4\n100,1,2,nan\n200,0.5,1,1.5\n").unwrap();
        let of = |model, size| tables.give(model, size, 4, 0, 0);
        assert_eq!(of(Some("a"), Some(200)).curve, Curve::Measured(vec![(1, 0.5), (2, 1.0), (4, 1.5)]));
        // A step of 150 samples takes as long as one between those of 100 and 200; on four slots that is not known.
        assert_eq!(of(Some("a"), Some(150)).curve, Curve::Measured(vec![(1, 1.0 / 1.5), (2, 1.0 / 0.75)]));
        assert!(of(Some("a"), Some(400)).other_batch && !of(Some("a"), None).other_batch);
        let drawn = of(Some("other"), Some(400));
        assert_eq!((drawn.model.as_deref(), drawn.named, drawn.other_batch), (Some("a"), false, false));
        assert_eq!(Tables::default().give(Some("a"), None, 4, 0, 0).curve, Curve::Even { workers: 4 });
    }

    #[test]
    fn the_best_batch_is_the_one_with_most_samples_on_so_many_slots() {
        let mut tables = Tables::default();
        tables.add("a", "global_batch_size,1,2,4,8\n100,1,2,2,nan\n200,0.4,1,1.5,2\n").unwrap();
        let given = tables.with_best_batches().give(None, None, 4, 0, 0);
        // 200 samples are two steps: 0.8, 2, 3 and 4 of them in a second.
        assert_eq!(given.curve, Curve::Measured(vec![(1, 1.0), (2, 2.0), (4, 3.0), (8, 4.0)]));
    }

    #[test]
    fn a_table_that_makes_no_sense_is_refused() {
        let error = |text| Tables::default().add("a", text).unwrap_err().to_string();
        assert!(error("global_batch_size,1\n100,0\n").contains("line 2: 1 is `0`; expected iterations per second"));
        assert!(error("global_batch_size,1\n100,nan\n").contains("at least one number"));
        assert!(error("size,1\n100,1\n").contains("no column `global_batch_size`"));
    }
}
