//! How much work a job is expected to have left: what the view says of it, or what follows from the service that it has had.
//!
//! Of a job of which nothing is known, as much is expected as it has had: how long jobs take is heavy-tailed, so whoever ran for long goes on for
//! long (what least attained service rests on; for a Pareto distribution of exponent two it is exactly so).

use super::{JobView, View, WorkLeft};

/// What is expected of a job of which nothing is known before it ran, on the slots that it asked for. Half an hour came out better than ten
/// minutes on recorded jobs of one size (docs/decisions, 16).
pub(super) const FRESH_MS: u64 = 1_800_000;

/// What a job has had that counts, in slot·ms: since it was last promoted.
pub(super) fn counted_slot_ms(job: &JobView) -> u64 {
    job.service.attained_slot_ms.saturating_sub(job.service.promoted_slot_ms)
}

/// How long a job is expected to take on the slots that it asked for.
pub(super) fn expected_ms(job: &JobView) -> u64 {
    match job.left {
        WorkLeft::Known { ms } => ms,
        WorkLeft::Estimated { total_ms, done_ms, sigma_milli } => {
            // The more was done the more is to come, as sure as the guess is wrong: of a log-normal error's tail nothing less is known.
            let doubt = u128::from(done_ms) * u128::from(sigma_milli) * 7 / 10_000;
            total_ms.saturating_sub(done_ms).max(u64::try_from(doubt).unwrap_or(u64::MAX))
        }
        WorkLeft::Unknown => {
            let had_ms = counted_slot_ms(job) / u64::from(job.asked().max(1));
            let mut expected_ms = FRESH_MS;
            // In steps, each twice the one before: otherwise two jobs would take turns with every plan, and neither would ever start.
            while expected_ms < had_ms {
                expected_ms = expected_ms.saturating_mul(2);
            }
            expected_ms
        }
    }
}

/// The speed of a job on a slot where its slots are used best, as a multiple of its speed on the slots that it asked for: between its fewest and
/// its most.
pub(super) fn best_per_slot(view: &View, job: usize) -> f64 {
    let (of, speeds) = (&view.jobs[job], view.speeds(job));
    let asked = speeds.speed(of.asked());
    if asked <= 0.0 {
        return 1.0 / f64::from(of.asked().max(1));
    }
    let sizes = std::iter::successors(Some(of.min), |&size| speeds.next_size(size).filter(|&next| next <= of.max));
    sizes.map(|size| speeds.speed(size) / asked / f64::from(size.max(1))).fold(0.0, f64::max).max(f64::MIN_POSITIVE)
}

#[cfg(test)]
mod tests {
    use super::super::{ServiceView, speeds::SpeedCurve};
    use super::*;

    #[test]
    fn of_whom_nothing_is_known_as_much_is_expected_as_it_had_in_steps() {
        let job = |attained_slot_ms| {
            let service = ServiceView { attained_slot_ms, ..ServiceView::default() };
            JobView { min: 1, max: 4, service, ..JobView::default() }
        };
        assert_eq!((expected_ms(&job(0)), expected_ms(&job(40_000_000))), (FRESH_MS, 14_400_000));
        let asked = JobView { requested: Some(2), ..job(40_000_000) };
        assert_eq!(expected_ms(&asked), 28_800_000);
        let promoted = ServiceView { promoted_slot_ms: 30_000_000, ..asked.service };
        assert_eq!(expected_ms(&JobView { service: promoted, ..asked }), 7_200_000);
    }

    #[test]
    fn a_guess_that_was_passed_says_as_much_as_it_is_sure() {
        let left = |done_ms, sigma_milli| {
            expected_ms(&JobView {
                left: WorkLeft::Estimated { total_ms: 100_000, done_ms, sigma_milli },
                ..JobView::default()
            })
        };
        assert_eq!((left(0, 1_000), left(30_000, 1_000), left(150_000, 1_000)), (100_000, 70_000, 105_000));
        assert_eq!((left(90_000, 0), left(90_000, 500)), (10_000, 31_500));
        assert_eq!(expected_ms(&JobView { left: WorkLeft::Known { ms: 7 }, ..JobView::default() }), 7);
    }

    #[test]
    #[allow(clippy::unwrap_used)]
    fn slots_are_used_best_where_the_curve_is_steepest() {
        let curve = SpeedCurve::new(vec![(1, 100), (2, 300), (4, 400)]).unwrap();
        let job = JobView { min: 1, max: 4, curve: Some(0), ..JobView::default() };
        let view = View { jobs: vec![job], curves: vec![curve], ..View::default() };
        assert!((best_per_slot(&view, 0) - 300.0 / 400.0 / 2.0).abs() < 1e-12);
    }
}
