//! One figure and what it is compared with.

use crate::goal::{Judged, SURE};
use serde_json::{Value, json};
use std::time::Duration;

/// A measured figure.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// What was measured.
    pub name: &'static str,
    /// How much it was, in `unit`.
    pub value: f64,
    /// Of value and baseline.
    pub unit: &'static str,
    /// What it is compared with, measured in the same run.
    pub baseline_name: &'static str,
    /// How much that was, in `unit`.
    pub baseline: f64,
    /// What it is to be, if it is to be anything, and whether it is.
    pub goal: Option<Judged>,
    /// What else is worth knowing: spread, sizes.
    pub note: String,
}

impl Row {
    /// Value over baseline.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        if self.baseline == 0.0 { f64::NAN } else { self.value / self.baseline }
    }

    /// For people.
    #[must_use]
    pub fn cells(&self) -> Vec<String> {
        vec![
            self.name.to_owned(),
            number(self.value),
            self.unit.to_owned(),
            format!("{} {}", number(self.baseline), self.baseline_name),
            format!("{:.3}", self.ratio()),
            self.goal.map(|goal| goal.cell(self.baseline)).unwrap_or_default(),
            self.note.clone(),
        ]
    }

    /// For programs.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({"name": self.name, "value": self.value, "unit": self.unit, "baseline_name": self.baseline_name, "baseline": self.baseline, "ratio": self.ratio(), "goal": self.goal.map(|goal| goal.json(self.baseline)), "note": self.note})
    }
}

/// Headings of [`Row::cells`].
pub const HEADINGS: [&str; 7] = ["NAME", "VALUE", "UNIT", "BASELINE", "RATIO", "GOAL", "NOTE"];

/// Three digits that matter, also of what is rounded to one more before the point.
pub fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 99.95 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        v if v >= 0.9995 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Some times, in order of length.
#[derive(Debug, Clone, Default)]
pub struct Times(Vec<f64>);

impl Times {
    /// Sorts times in milliseconds.
    #[must_use]
    pub fn of_ms(mut times_ms: Vec<f64>) -> Self {
        times_ms.sort_by(f64::total_cmp);
        Self(times_ms)
    }

    /// Sorts durations.
    #[must_use]
    pub fn of(times: impl IntoIterator<Item = Duration>) -> Self {
        Self::of_ms(times.into_iter().map(|t| t.as_secs_f64() * 1e3).collect())
    }

    /// The time that this share of all are not longer than, in milliseconds; 0 without times.
    #[must_use]
    pub fn at(&self, share: f64) -> f64 {
        let last = self.0.len().saturating_sub(1);
        self.0.get(((self.0.len() as f64 * share) as usize).min(last)).copied().unwrap_or(0.0)
    }

    /// The middle one.
    #[must_use]
    pub fn median(&self) -> f64 {
        self.at(0.5)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// These and those.
    #[must_use]
    pub fn and(&self, others: &Self) -> Self {
        Self::of_ms(self.iter().chain(others.iter()).collect())
    }

    /// Each of them.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = f64> + '_ {
        self.0.iter().copied()
    }

    /// What the middle of all times that there could be is at most, at 95 %, whatever they are like: the k-th smallest, where fewer than k of n are below a middle that often.
    #[must_use]
    pub fn median_at_most(&self) -> f64 {
        self.bound(self.iter()).unwrap_or(f64::INFINITY)
    }

    /// What it is at least.
    #[must_use]
    pub fn median_at_least(&self) -> f64 {
        self.bound(self.iter().rev()).unwrap_or(f64::NEG_INFINITY)
    }

    fn bound(&self, from_the_far_side: impl Iterator<Item = f64>) -> Option<f64> {
        let count = self.0.len() as i32;
        let (mut ways, mut below) = (0.5_f64.powi(count), 0.0);
        for (at, time) in from_the_far_side.enumerate() {
            below += ways;
            if below >= SURE {
                return Some(time);
            }
            ways *= (f64::from(count) - at as f64) / (at as f64 + 1.0);
        }
        None
    }

    /// `p50 …, p99 …, max … of n`.
    #[must_use]
    pub fn spread(&self) -> String {
        format!(
            "p50 {} p99 {} max {} ms, n = {}",
            number(self.median()),
            number(self.at(0.99)),
            number(self.at(1.0)),
            self.0.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::goal::Goal;

    #[test]
    fn times_are_ranked() {
        let times = Times::of_ms((1..=200).rev().map(f64::from).collect());
        assert_eq!((times.median(), times.at(0.99), times.at(1.0)), (101.0, 199.0, 200.0));
        assert_eq!(Times::default().median(), 0.0);
    }

    #[test]
    fn the_bound_of_a_median_is_an_order_statistic() {
        let times = |count: u32| Times::of_ms((1..=count).map(f64::from).collect());
        assert_eq!(times(13).median_at_most(), 10.0, "P(Bin(13, 1/2) ≤ 9) = 0.954");
        assert_eq!(times(20).median_at_most(), 15.0, "P(Bin(20, 1/2) ≤ 14) = 0.979, ≤ 13: 0.942");
        assert_eq!(times(4).median_at_most(), f64::INFINITY, "four times tell too little");
        assert_eq!((times(13).median_at_least(), times(4).median_at_least()), (4.0, f64::NEG_INFINITY));
    }

    #[test]
    fn a_number_has_three_digits_where_it_is_rounded_up_too() {
        let written = [99.94, 99.96, 9.994, 9.996, 0.9994, 0.9996, 0.0].map(number);
        assert_eq!(written, ["99.9", "100", "9.99", "10.0", "0.999", "1.00", "0.000"]);
    }

    #[test]
    fn a_ratio_is_value_over_baseline() {
        let goal = Some(Goal::at_most(&[(1.0, 0.0)]).counted(3.0, 2.0));
        let row =
            Row { name: "x", value: 3.0, unit: "ms", baseline_name: "y", baseline: 2.0, goal, note: String::new() };
        assert_eq!(row.ratio(), 1.5);
        assert_eq!(row.cells(), ["x", "3.00", "ms", "2.00 y", "1.500", "≤ 1 × = 2.00, as counted: not met", ""]);
        assert_eq!(row.json()["goal"]["verdict"], "not met");
        assert_eq!(Row { goal: None, ..row }.json()["goal"], Value::Null);
    }
}
