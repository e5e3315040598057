//! How fast a job is by slots, as far as that was measured: whether a measurement is news, and the curve that policies are told.
//!
//! A job is measured at the sizes that it has had. At others it is assumed to be as much faster or slower as [`gain`] says than at the nearest
//! smaller size that was measured, but beyond a size that was slower than a smaller one nothing is assumed to be faster: what slows it down there, an
//! exchange or a processor that members share, does not get less with more of them. Measurements count as long as the job keeps slots: after a pause it
//! may have others, so all sizes are tried again. Where updates take several steps, as many steps count as they take. How sure a measurement is goes with it,
//! and at sizes that were only assumed nothing is said of that.

use super::{Draft, slow_members};
use crate::limits::{NEWS_OF_SPEED_PERCENT, NEWS_OF_SPREAD_TIMES, SURE_SPEED_MICRO};
use crate::policy::gain;
use crate::policy::speeds::{Point, SpeedCurve};
use crate::state::{Job, Placement, State};
use events_schema::fact::Fact;
use events_schema::spread::Spread;
use events_schema::stride::Stride;
use events_schema::{JobId, SlotId};
use std::collections::BTreeMap;

/// Speed of a step of one microsecond, so that one of ten minutes still has four digits.
const SPEED_OF_ONE_US: u64 = 1_000_000_000_000;

/// A generation was measured: a fact if its size was not, if it was another time by more than steps scatter, or if it is known far more surely now. So a plan that
/// follows from it stands, and is not made anew by noise.
pub(super) fn measured(
    draft: &mut Draft<'_>,
    id: &JobId,
    (members, stride): (u16, Stride),
    (step_us, spread): (u64, Option<Spread>),
) {
    let Some(job) = draft.state.job(id).filter(|_| draft.state.measures_speeds()) else { return };
    let Some(placement) = job.placement() else { return };
    // How fast a guest is, its hosts say; and how long a step takes on slots of several types is no matter of its size either.
    if placement.slots.first().is_some_and(SlotId::is_guest) || draft.state.is_mixed(job) {
        return;
    }
    // What the job waits for is one's link, and no matter of its size.
    if slow_members::of_links(job).next().is_some() {
        return;
    }
    let known = match job.spec.batch_range {
        Some(_) => placement.update_us.get(&(members, stride)),
        None => placement.step_us_by_size.get(&members),
    };
    let differs = |known: &u64| step_us.abs_diff(*known) * 100 > known * NEWS_OF_SPEED_PERCENT;
    let fits = (1..=job.spec.executors().max).contains(&members) && stride <= job.spec.stride_max();
    let is_surer = || {
        let error_before = error_micro(placement, members);
        spread.is_some_and(|spread| is_far_surer(error_before, spread.error_micro(step_us)))
    };
    if fits && step_us > 0 && (known.is_none_or(differs) || is_surer()) {
        draft.emit(Fact::ThroughputMeasured { job: id.clone(), members, step_us, stride, spread });
    }
}

/// Whether it is news by itself that a measurement is surer: a few times at most, however often a size is measured, since the error is halved each time down to one that
/// is sure enough.
fn is_far_surer(before: Option<u32>, now: u32) -> bool {
    before.is_none_or(|before| before > SURE_SPEED_MICRO && now <= before / NEWS_OF_SPREAD_TIMES)
}

/// The standard error of what is known of a size, as a part of it, in millionths.
fn error_micro(placement: &Placement, members: u16) -> Option<u32> {
    let step_us = placement.step_us_by_size.get(&members)?;
    placement.spread_by_size.get(&members).map(|spread| spread.error_micro(*step_us))
}

/// What is known of a job's speeds; `None` before any was measured.
pub(crate) fn curve(job: &Job) -> Option<SpeedCurve> {
    let placement = job.placement()?;
    let error = |members: u16| error_micro(placement, members);
    of_measured(job.spec.workers.max, job.spec.executors().max, &placement.step_us_by_size, error)
}

/// Whether a job is faster on any more slots than so many, as far as is known.
pub(crate) fn is_faster_on_more(job: &Job, slots: u16) -> bool {
    let is_faster =
        |curve: &SpeedCurve, more: u16| curve.micro(more) > curve.micro(slots) && !curve.is_open(slots, more);
    curve(job).is_none_or(|curve| (slots + 1..=job.spec.executors().max).any(|more| is_faster(&curve, more)))
}

fn of_measured(
    workers: u16,
    most: u16,
    step_us_by_size: &BTreeMap<u16, u64>,
    error_micro: impl Fn(u16) -> Option<u32>,
) -> Option<SpeedCurve> {
    let speed = |step_us: u64| (SPEED_OF_ONE_US / step_us.max(1)).max(1);
    let (&smallest, &step_us) = step_us_by_size.first_key_value()?;
    // The measured size that the next ones are assumed from, the fastest one so far, and what no larger one is assumed to exceed.
    let (mut from, mut fastest, mut most_assumed) = ((smallest, speed(step_us)), 0, u64::MAX);
    let mut points = Vec::with_capacity(usize::from(most));
    for slots in 1..=most {
        let known = step_us_by_size.get(&slots).map(|&step_us| speed(step_us));
        let assumed = || ((from.1 as f64 * gain::ratio(workers, from.0, slots)) as u64).clamp(1, most_assumed);
        let micro = known.unwrap_or_else(assumed);
        points.push(Point { slots, micro, error_micro: known.and_then(|_| error_micro(slots)) });
        if let Some(known) = known {
            from = (slots, known);
            most_assumed = if known > fastest { u64::MAX } else { known };
            fastest = fastest.max(known);
        }
    }
    SpeedCurve::of(points).ok()
}

impl State {
    /// Whether the policy in force is told measured speeds.
    pub(crate) fn measures_speeds(&self) -> bool {
        self.planning.assumed_speeds != Some(true)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The curve of four workers, in steps a second.
    fn of(measured: &[(u16, u64)]) -> Vec<u64> {
        let curve = of_measured(4, 4, &measured.iter().copied().collect(), |_| None).unwrap();
        (1..=4).map(|slots| curve.micro(slots) * 1_000_000 / SPEED_OF_ONE_US).collect()
    }

    #[test]
    fn sizes_that_were_not_measured_scale_as_assumed_from_the_nearest_smaller_one() {
        assert_eq!(of_measured(4, 4, &BTreeMap::new(), |_| None), None);
        let assumed = |from: u16, steps: f64| {
            (1..=4).map(|slots| (steps * gain::ratio(4, from, slots)) as u64).collect::<Vec<_>>()
        };
        assert_eq!(of(&[(1, 10_000)]), assumed(1, 100.0));
        assert_eq!(of(&[(2, 10_000)]), assumed(2, 100.0));
        assert_eq!(of(&[(1, 10_000), (2, 6_250)])[1..], assumed(2, 160.0)[1..]);
    }

    #[test]
    fn beyond_a_size_that_is_slower_nothing_is_assumed_to_be_faster() {
        assert_eq!(of(&[(1, 10_000), (2, 12_500)]), [100, 80, 79, 80]);
        assert_eq!(of(&[(1, 10_000), (2, 10_000)]), [100, 100, 99, 100], "nor as fast for nothing");
        // What was measured is so, whatever is assumed.
        assert_eq!(of(&[(1, 10_000), (2, 12_500), (4, 5_000)]), [100, 80, 79, 200]);
    }

    #[test]
    fn how_sure_it_is_is_said_of_what_was_measured_alone() {
        let measured = [(1, 10_000), (2, 6_250)].into();
        let curve = of_measured(4, 4, &measured, |slots| Some(u32::from(slots) * 1_000)).unwrap();
        assert_eq!([1, 2, 3, 4].map(|slots| curve.error_micro(slots)), [Some(1_000), Some(2_000), None, None]);
    }

    #[test]
    fn that_it_is_surer_is_news_a_few_times_at_most() {
        assert!(is_far_surer(None, u32::MAX), "nothing was known of it");
        assert!(!is_far_surer(Some(40_000), 30_000) && is_far_surer(Some(40_000), 20_000));
        assert!(!is_far_surer(Some(SURE_SPEED_MICRO), 0), "it is sure enough");
        let (mut known, mut news) = (None, 0);
        for error_micro in (0..=u32::MAX).rev().step_by(1_000_000).chain((0..2_000_000).rev().step_by(10)) {
            if is_far_surer(known, error_micro) {
                (known, news) = (Some(error_micro), news + 1);
            }
        }
        assert!((10..=20).contains(&news), "{news}");
    }
}
