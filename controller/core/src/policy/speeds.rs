//! How fast a job of the view is by slots: as measured where that is known, else as [`super::gain`] assumes from W.
//!
//! Only ratios mean anything: a measured curve's unit is its own. Must not be asked beyond what was measured; it says 0 there.

use super::gain;
use std::sync::Arc;

/// How far apart two measured speeds are at least of which it is not open any more which is the larger, in standard errors of their difference: of two that are
/// the same, one in twenty comes out so far apart.
const APART_ERRORS: f64 = 2.0;
/// A whole, in millionths.
const WHOLE_MICRO: f64 = 1e6;

/// Measured speeds by slots, in millionths of a unit of their own, each with what is known of how sure it is; straight lines between them, and nothing beyond the
/// outermost ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpeedCurve(Arc<[Point]>);

/// A speed on so many slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    /// How many.
    pub slots: u16,
    /// How fast, in millionths of the curve's unit.
    pub micro: u64,
    /// Its standard error, as a part of it, in millionths; none where nothing is said of that, or the speed is assumed.
    pub error_micro: Option<u32>,
}

/// Points that make no curve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CurveError {
    points: Vec<(u16, u64)>,
}

impl std::fmt::Display for CurveError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let of = &self.points;
        write!(
            f,
            "{of:?} is no curve of speeds; expected at least one (slots, speed), slots rising from 1, each speed above 0"
        )
    }
}

impl std::error::Error for CurveError {}

impl SpeedCurve {
    /// Of points (slots, millionths), by rising slots, of which nobody says how sure they are.
    pub fn new(points: Vec<(u16, u64)>) -> Result<Self, CurveError> {
        Self::of(points.into_iter().map(|(slots, micro)| Point { slots, micro, error_micro: None }).collect())
    }

    /// Of points by rising slots.
    pub fn of(points: Vec<Point>) -> Result<Self, CurveError> {
        let rising = points.is_sorted_by(|a, b| a.slots < b.slots);
        let above_zero = points.iter().all(|point| point.slots > 0 && point.micro > 0);
        if points.is_empty() || !rising || !above_zero {
            let points = points.iter().map(|point| (point.slots, point.micro)).collect();
            return Err(CurveError { points });
        }
        Ok(Self(points.into()))
    }

    /// The speed on so many slots, in millionths of the curve's unit; 0 outside its range.
    #[must_use]
    pub fn micro(&self, slots: u16) -> u64 {
        let above = self.0.partition_point(|known| known.slots < slots);
        let Some(to) = self.0.get(above) else { return 0 };
        if to.slots == slots {
            return to.micro;
        }
        let Some(from) = above.checked_sub(1).and_then(|below| self.0.get(below)) else { return 0 };
        let part = |speed: u64, share: u16| u128::from(speed) * u128::from(share);
        let between = part(to.micro, slots - from.slots) + part(from.micro, to.slots - slots);
        (between / u128::from(to.slots - from.slots)) as u64
    }

    /// The standard error of the speed on so many slots, as a part of it, in millionths; none where it was not measured, or nothing is said of that.
    #[must_use]
    pub fn error_micro(&self, slots: u16) -> Option<u32> {
        let place = self.0.binary_search_by_key(&slots, |point| point.slots).ok()?;
        self.0[place].error_micro
    }

    /// Whether measurements leave open on which of two sizes it is faster. Never where nothing is said of how sure either is.
    #[must_use]
    pub fn is_open(&self, one: u16, other: u16) -> bool {
        let of = |slots: u16| {
            let (speed, error) = (self.micro(slots) as f64, f64::from(self.error_micro(slots)?) / WHOLE_MICRO);
            Some((speed, speed * error))
        };
        let (Some((one, one_error)), Some((other, other_error))) = (of(one), of(other)) else { return false };
        let apart = APART_ERRORS * (one_error * one_error + other_error * other_error).sqrt();
        (one - other).abs() < apart
    }
}

/// The speeds of one job.
#[derive(Debug, Clone, Copy)]
pub struct Speeds<'a> {
    /// Logical workers, which are its most slots too.
    workers: u16,
    measured: Option<&'a SpeedCurve>,
}

impl<'a> Speeds<'a> {
    /// As measured, or as assumed of so many logical workers.
    #[must_use]
    pub fn new(workers: u16, measured: Option<&'a SpeedCurve>) -> Self {
        Self { workers, measured }
    }

    /// The speed on so many slots, in the job's own unit; 0 on none.
    #[must_use]
    pub fn speed(&self, slots: u16) -> f64 {
        match self.measured {
            Some(curve) => curve.micro(slots) as f64 / WHOLE_MICRO,
            None => gain::speed(self.workers, slots),
        }
    }

    /// The speed at `to` slots as a multiple of that at `from`; 1 where nothing is known of `from`.
    #[must_use]
    pub fn ratio(&self, from: u16, to: u16) -> f64 {
        let before = self.speed(from);
        if before > 0.0 { self.speed(to) / before } else { 1.0 }
    }

    /// The standard error of the measured speed on so many slots, as a part of it; none where it is assumed, or nothing is said of that.
    #[must_use]
    pub fn error(&self, slots: u16) -> Option<f64> {
        self.measured?.error_micro(slots).map(|micro| f64::from(micro) / WHOLE_MICRO)
    }

    /// Whether measurements leave open on which of two sizes it is faster: their speeds are less than two standard errors apart. Never where nothing is said of
    /// how sure either is, so that what is assumed is tried.
    #[must_use]
    pub fn is_open(&self, one: u16, other: u16) -> bool {
        self.measured.is_some_and(|curve| curve.is_open(one, other))
    }

    /// The next larger size that is faster, no larger than W.
    #[must_use]
    pub fn next_size(&self, slots: u16) -> Option<u16> {
        if self.measured.is_none() {
            return gain::next_size(self.workers, slots);
        }
        let now = self.speed(slots);
        (slots + 1..=self.workers).find(|&size| self.speed(size) > now)
    }

    /// The smallest size from `min` on that is as fast as `slots`: what is beyond it is waste.
    #[must_use]
    pub fn without_waste(&self, min: u16, slots: u16) -> u16 {
        if self.measured.is_none() {
            return gain::without_waste(self.workers, slots).max(min.min(slots));
        }
        let now = self.speed(slots);
        (min.min(slots)..=slots).find(|&size| self.speed(size) >= now).unwrap_or(slots)
    }
}

/// How long a step takes of so many ranks on so many slots of each type, of which one rank takes so long on a slot: the slowest slot decides, and no sharing out
/// makes that sooner. What [`events_schema::tree::sizes_by_speed`] comes to, without going through all ranks.
#[must_use]
pub(crate) fn slowest(ranks: u16, types: &[(u64, u32)]) -> u64 {
    let slots = types.iter().map(|(_, slots)| *slots).sum::<u32>().max(1);
    // Every slot has one rank at least, and even shares do.
    let mut least = types.iter().map(|(unit, _)| *unit).max().unwrap_or(0);
    let mut most = least * u64::from(u32::from(ranks).div_ceil(slots).max(1));
    let done = |within: u64| types.iter().map(|(unit, slots)| within / unit * u64::from(*slots)).sum::<u64>();
    while least < most {
        let middle = least.midpoint(most);
        if done(middle) >= u64::from(ranks) {
            most = middle;
        } else {
            least = middle + 1;
        }
    }
    least
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn between_measured_sizes_speed_is_on_a_straight_line_and_beyond_them_unknown() {
        let curve = SpeedCurve::new(vec![(2, 1_000_000), (4, 1_500_000), (8, 1_200_000)]).unwrap();
        assert_eq!(
            [1, 2, 3, 4, 6, 8, 9].map(|slots| curve.micro(slots)),
            [0, 1_000_000, 1_250_000, 1_500_000, 1_350_000, 1_200_000, 0]
        );
        let speeds = Speeds::new(8, Some(&curve));
        assert_eq!((speeds.next_size(2), speeds.next_size(4)), (Some(3), None), "it falls from four on");
        assert_eq!((speeds.ratio(2, 4), speeds.ratio(1, 4)), (1.5, 1.0));
        let flat = SpeedCurve::new(vec![(1, 5), (4, 5)]).unwrap();
        assert_eq!(Speeds::new(4, Some(&flat)).without_waste(1, 4), 1);
        assert_eq!(Speeds::new(4, Some(&flat)).without_waste(2, 4), 2);
    }

    #[test]
    fn of_two_measured_speeds_it_is_open_which_is_larger_as_long_as_their_errors_leave_it_so() {
        let with = |errors: [Option<u32>; 3]| {
            let point = |(slots, micro, error_micro)| Point { slots, micro, error_micro };
            let [one, two, four] = errors;
            SpeedCurve::of([(1, 1_000_000, one), (2, 1_100_000, two), (4, 1_500_000, four)].map(point).to_vec())
                .unwrap()
        };
        // 0.1 apart; of 3 % and 4 % of 1.1 twice the error is 2 · √(0.03² + 0.044²) = 0.107, of 2 % of 1.1 it is 0.074.
        let (unsure, sure) = (with([Some(30_000), Some(40_000), None]), with([Some(30_000), Some(20_000), None]));
        assert_eq!([unsure.is_open(1, 2), unsure.is_open(2, 1), sure.is_open(1, 2)], [true, true, false]);
        assert!(!unsure.is_open(2, 4) && !unsure.is_open(2, 3), "of one of them nothing is said");
        let exact = with([Some(0); 3]);
        assert!(!exact.is_open(1, 1) && !exact.is_open(1, 2));
        let speeds = Speeds::new(4, Some(&unsure));
        assert_eq!([1, 2, 3, 4].map(|slots| speeds.error(slots)), [Some(0.03), Some(0.04), None, None]);
        assert_eq!((Speeds::new(4, None).error(1), Speeds::new(4, None).is_open(1, 2)), (None, false));
    }

    #[test]
    fn without_measurements_it_is_what_is_assumed_of_logical_workers() {
        let speeds = Speeds::new(8, None);
        assert_eq!((speeds.next_size(4), speeds.without_waste(1, 7)), (Some(8), 4));
        assert_eq!(speeds.ratio(1, 8), gain::ratio(8, 1, 8));
    }

    #[test]
    fn ranks_are_shared_out_so_that_the_slowest_slot_is_done_as_soon_as_can_be() {
        use events_schema::tree;
        for ranks in 1u16..=9 {
            for (fast, slow) in (0..=ranks).flat_map(|fast| (0..=ranks - fast).map(move |slow| (fast, slow))) {
                for unit in [1_000, 1_001, 1_500, 2_450, 9_000] {
                    let units: Vec<u64> = [vec![1_000; fast.into()], vec![unit; slow.into()]].concat();
                    let sizes = tree::sizes_by_speed(ranks, &vec![0; units.len()], &units);
                    let shared_out = tree::longest_us(sizes.into_iter().map(usize::from), &units);
                    let types = [(1_000, u32::from(fast)), (unit, u32::from(slow))];
                    let types: Vec<_> = types.into_iter().filter(|(_, slots)| *slots > 0).collect();
                    assert_eq!(slowest(ranks, &types), shared_out, "{ranks} ranks on {types:?}");
                }
            }
        }
    }

    #[test]
    fn points_have_to_rise() {
        for points in [vec![], vec![(0, 1)], vec![(1, 0)], vec![(2, 1), (1, 2)], vec![(1, 1), (1, 2)]] {
            let error = SpeedCurve::new(points).unwrap_err().to_string();
            assert!(error.contains("is no curve of speeds; expected at least one"), "{error}");
        }
    }
}
