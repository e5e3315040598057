//! How long one rank's gradient takes on slots of each type, as a state keeps it of the cell: what jobs were measured to take, for those that were not.
//!
//! What follows from a measurement here is part of the record format, as [`super::bounds`] is: another rule needs a version that says from where on it holds
//! (`events_schema::fold`). What is decided by it is in `decide/types.rs`.

use events_schema::slot_type::{SlotType, TypeTime};

/// Types of which it is remembered how fast they are: more generations of servers than a cell has at a time.
pub(crate) const TYPE_TIMES_MAX: usize = 16;

/// Of what is remembered for the jobs to come, the newest measurement is one part of so many: jobs differ by a factor of two (EasyScale §3.4.2).
const NEWEST_PART: u64 = 4;

/// What is remembered after another measurement, in its measure: of each type in both, for three quarters what it took before; if none is in both, this alone.
pub(crate) fn remembered(known: &[TypeTime], measured: &[TypeTime]) -> Vec<TypeTime> {
    let known = in_measure_of(measured, known);
    let blended = |now: &TypeTime| {
        let before_us = of(&known, now.slot_type).unwrap_or(now.unit_us);
        let unit_us = before_us - before_us / NEWEST_PART + now.unit_us / NEWEST_PART;
        TypeTime { unit_us: unit_us.max(1), ..*now }
    };
    with_others(measured.iter().map(blended).collect(), &known)
}

/// What is known of types in the measure of a measurement, by a type that is in both: gradients take longer or shorter altogether from job to job and from
/// time to time, and it is the ratios that stay. Nothing, if no type is in both.
pub(crate) fn in_measure_of(measured: &[TypeTime], known: &[TypeTime]) -> Vec<TypeTime> {
    let common = known.iter().find_map(|before| Some((before.unit_us, of(measured, before.slot_type)?)));
    let Some((before_us, now_us)) = common else { return Vec::new() };
    known.iter().map(|time| TypeTime { unit_us: scaled(time.unit_us, now_us, before_us), ..*time }).collect()
}

/// Times of types, and those of others that are known in the same measure; no more than are remembered.
pub(crate) fn with_others(mut times: Vec<TypeTime>, known: &[TypeTime]) -> Vec<TypeTime> {
    let others = known.iter().filter(|before| of(&times, before.slot_type).is_none()).copied();
    let others: Vec<TypeTime> = others.collect();
    times.extend(others);
    times.truncate(TYPE_TIMES_MAX);
    times.sort_by_key(|time| time.slot_type);
    times
}

/// What a type took.
pub(crate) fn of(times: &[TypeTime], slot_type: Option<SlotType>) -> Option<u64> {
    times.iter().find(|time| time.slot_type == slot_type).map(|time| time.unit_us.max(1))
}

/// A time in another measure, in which what took `before_us` takes `now_us`.
fn scaled(unit_us: u64, now_us: u64, before_us: u64) -> u64 {
    let scaled = u128::from(unit_us) * u128::from(now_us) / u128::from(before_us.max(1));
    scaled.clamp(1, u128::from(u64::MAX)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::times;

    #[test]
    fn the_cell_remembers_ratios_of_all_jobs() {
        let first = times(&[("t4", 90), ("v100", 30)]);
        assert_eq!(remembered(&[], &first), first);
        // In a measure of its own a job of other ratios moves them by a quarter of what it differs by.
        assert_eq!(remembered(&first, &times(&[("t4", 900), ("v100", 700)])), times(&[("t4", 900), ("v100", 400)]));
        // What it was not on stays, beside what it was on.
        let third = remembered(&first, &times(&[("p100", 100), ("v100", 60)]));
        assert_eq!(third, times(&[("p100", 100), ("t4", 180), ("v100", 60)]));
        assert_eq!(remembered(&first, &times(&[("a", 5), ("b", 6)])), times(&[("a", 5), ("b", 6)]));
        let long = times(&[("t4", u64::MAX), ("v100", 1)]);
        assert!(remembered(&long, &long).iter().all(|time| time.unit_us > 0), "no overflow");
    }
}
