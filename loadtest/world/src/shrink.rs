//! Makes a schedule that fails smaller: leaves out entries as long as the same property is still broken.

use crate::mutants::Mutants;
use crate::run::run;
use crate::schedule::Schedule;

/// Runs that shrinking takes at most.
const RUNS_MAX: u32 = 200;

/// A schedule with as few entries as were found to be enough.
#[must_use]
pub fn shrink(schedule: &Schedule, mutants: &Mutants) -> Schedule {
    let Some(property) = run(schedule, mutants).finding.map(|finding| finding.property) else {
        return schedule.clone();
    };
    let fails = |schedule: &Schedule| run(schedule, mutants).finding.is_some_and(|found| found.property == property);
    let (mut smallest, mut runs, mut width) = (schedule.clone(), 0, schedule.entries.len().div_ceil(2).max(1));
    loop {
        let mut from = 0;
        while from < smallest.entries.len() && runs < RUNS_MAX {
            let mut tried = smallest.clone();
            tried.entries.drain(from..(from + width).min(smallest.entries.len()));
            runs += 1;
            if fails(&tried) { smallest = tried } else { from += width }
        }
        if width == 1 || runs >= RUNS_MAX {
            return smallest;
        }
        width = width.div_ceil(2);
    }
}
