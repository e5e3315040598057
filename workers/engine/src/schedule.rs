//! The learning rate of a step: a pure function of the spec, the step and the number of steps, so that nothing about a
//! schedule has to be stored, moved or restored. `cos` and `pow` come from the `libm` crate.

use events_schema::Step;
use events_schema::job::{OptimizerSpec, ScheduleShape, ScheduleSpec};

/// The factor on the optimizer's learning rate in a step.
///
/// Warm-up: step s of w has factor (s + 1) / w, so the first step already moves and step w - 1 has factor 1. The shape begins
/// at the first step after the warm-up, with factor 1, and ends at step `steps_total - 1`.
#[must_use]
pub fn learning_rate_factor(schedule: &ScheduleSpec, step: Step, steps_total: u64) -> f64 {
    if step.0 < schedule.warmup_steps {
        return (step.0 + 1) as f64 / schedule.warmup_steps as f64;
    }
    let after = step.0 - schedule.warmup_steps;
    let last = steps_total.saturating_sub(schedule.warmup_steps).saturating_sub(1);
    let progress = if last == 0 { 0.0 } else { (after as f64 / last as f64).min(1.0) };
    match schedule.shape {
        ScheduleShape::Constant => 1.0,
        ScheduleShape::Step { every_steps, factor } => libm::pow(factor, (after / every_steps.max(1)) as f64),
        ScheduleShape::Cosine { floor } => {
            floor + (1.0 - floor) * 0.5 * (1.0 + libm::cos(std::f64::consts::PI * progress))
        }
        ScheduleShape::Linear { floor } => 1.0 + (floor - 1.0) * progress,
    }
}

/// The learning rate of a step.
#[must_use]
pub fn learning_rate(optimizer: &OptimizerSpec, schedule: &ScheduleSpec, step: Step, steps_total: u64) -> f64 {
    let (OptimizerSpec::Sgd { learning_rate, .. } | OptimizerSpec::Adamw { learning_rate, .. }) = *optimizer;
    learning_rate * learning_rate_factor(schedule, step, steps_total)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn factors(warmup_steps: u64, shape: ScheduleShape, steps_total: u64) -> Vec<f64> {
        let schedule = ScheduleSpec { warmup_steps, shape };
        (0..steps_total).map(|step| learning_rate_factor(&schedule, Step(step), steps_total)).collect()
    }

    fn assert_close(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{found:?} is not {expected:?}");
    }

    #[test]
    fn tables() {
        assert_close(&factors(2, ScheduleShape::Constant, 4), &[0.5, 1.0, 1.0, 1.0]);
        assert_close(
            &factors(1, ScheduleShape::Step { every_steps: 2, factor: 0.1 }, 6),
            &[1.0, 1.0, 1.0, 0.1, 0.1, 0.01],
        );
        assert_close(&factors(0, ScheduleShape::Cosine { floor: 0.2 }, 3), &[1.0, 0.6, 0.2]);
        assert_close(&factors(2, ScheduleShape::Linear { floor: 0.0 }, 5), &[0.5, 1.0, 1.0, 0.5, 0.0]);
    }

    #[test]
    fn degenerate_lengths_stay_finite_and_late_steps_stay_at_the_floor() {
        for shape in [ScheduleShape::Cosine { floor: 0.5 }, ScheduleShape::Linear { floor: 0.5 }] {
            assert_close(&factors(0, shape, 1), &[1.0]);
            assert_close(&factors(4, shape, 2), &[0.25, 0.5]);
            let schedule = ScheduleSpec { warmup_steps: 0, shape };
            assert!((learning_rate_factor(&schedule, Step(99), 10) - 0.5).abs() < 1e-12);
        }
    }

    #[test]
    fn multiplies_the_optimizers_rate() {
        let optimizer = OptimizerSpec::Sgd { learning_rate: 0.4, momentum: 0.0, nesterov: false, weight_decay: 0.0 };
        let schedule = ScheduleSpec { warmup_steps: 2, shape: ScheduleShape::Constant };
        assert!((learning_rate(&optimizer, &schedule, Step(0), 10) - 0.2).abs() < 1e-12);
    }
}
