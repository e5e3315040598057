//! Tests of the update against a naive reference in f64, and of its independence of ranges.

use super::*;
use events_schema::job::ScheduleShape;
use proptest::prelude::*;

const CONSTANT: ScheduleSpec = ScheduleSpec { warmup_steps: 0, shape: ScheduleShape::Constant };
const ADAMW: OptimizerSpec =
    OptimizerSpec::Adamw { learning_rate: 0.01, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.1 };

fn sgd(momentum: f64, nesterov: bool) -> OptimizerSpec {
    OptimizerSpec::Sgd { learning_rate: 0.05, momentum, nesterov, weight_decay: 0.01 }
}

/// A matrix, a bias, a matrix: decay applies to the first and the last.
fn info(sizes: [usize; 3]) -> Vec<ParameterInfo> {
    let [a, b, c] = sizes;
    let one = |name: &str, shape: Vec<usize>, offset| ParameterInfo { name: name.to_owned(), shape, offset };
    vec![one("a", vec![a, 1], 0), one("b", vec![b], a), one("c", vec![1, c], a + b)]
}

fn values(len: usize, seed: u32) -> Vec<f32> {
    (0..len as u32)
        .map(|i| (i.wrapping_add(seed).wrapping_mul(2_654_435_761) >> 8) as f32 / 8_388_608.0 - 1.0)
        .collect()
}

/// The textbook, one element at a time, moments unbounded in precision.
struct Reference {
    optimizer: OptimizerSpec,
    moments: [f64; 2],
    parameter: f64,
}

impl Reference {
    fn step(&mut self, g: f64, step: u64, decays: bool) {
        let p = &mut self.parameter;
        match self.optimizer {
            OptimizerSpec::Sgd { learning_rate, momentum, nesterov, weight_decay } => {
                let d = g + if decays { weight_decay * *p } else { 0.0 };
                self.moments[0] = momentum * self.moments[0] + d;
                *p -= learning_rate * if nesterov { d + momentum * self.moments[0] } else { self.moments[0] };
            }
            OptimizerSpec::Adamw { learning_rate, beta1, beta2, epsilon, weight_decay } => {
                if decays {
                    *p *= 1.0 - learning_rate * weight_decay;
                }
                self.moments[0] = beta1 * self.moments[0] + (1.0 - beta1) * g;
                self.moments[1] = beta2 * self.moments[1] + (1.0 - beta2) * g * g;
                let m = self.moments[0] / (1.0 - beta1.powi(step as i32 + 1));
                let v = self.moments[1] / (1.0 - beta2.powi(step as i32 + 1));
                *p -= learning_rate * m / (v.sqrt() + epsilon);
            }
        }
    }
}

#[test]
fn optimizers_follow_the_textbook() {
    let info = info([5, 4, 8]);
    for (optimizer, moments) in [(sgd(0.0, false), 0), (sgd(0.9, false), 1), (sgd(0.9, true), 1), (ADAMW, 2)] {
        let update = Update::from_parts(optimizer, CONSTANT, None, &info, 100);
        assert_eq!(update.replica_len(), 17 * (1 + moments));
        let mut replica = update.initial_replica(values(17, 1));
        let mut reference: Vec<Reference> = values(17, 1)
            .iter()
            .map(|&p| Reference { optimizer, moments: [0.0; 2], parameter: f64::from(p) })
            .collect();
        for step in 0..20 {
            let gradient = values(17, 100 + step as u32);
            update.apply(&mut replica, &gradient, Step(step));
            for (index, (element, &g)) in reference.iter_mut().zip(&gradient).enumerate() {
                element.step(f64::from(g), step, !(5..9).contains(&index));
            }
        }
        for (element, &found) in reference.iter().zip(&replica) {
            assert!(
                (element.parameter - f64::from(found)).abs() < 2e-6,
                "{optimizer:?}: {found} is not {}",
                element.parameter
            );
        }
    }
}

#[test]
fn clipping_scales_to_the_bound_and_leaves_small_gradients_alone() {
    let info = info([2, 1, 1]);
    let optimizer = OptimizerSpec::Sgd { learning_rate: 1.0, momentum: 0.0, nesterov: false, weight_decay: 0.0 };
    let update = Update::from_parts(optimizer, CONSTANT, Some(2.5), &info, 1);
    let mut replica = update.initial_replica(vec![0.0; 4]);
    let factors = update.apply(&mut replica, &[3.0, 4.0, 0.0, 0.0], Step(0));
    assert_eq!((factors.gradient_norm, factors.clip), (Some(5.0), 0.5));
    assert_eq!(replica, [-1.5, -2.0, 0.0, 0.0]);
    let factors = update.apply(&mut replica, &[0.0, 0.0, 1.0, 0.0], Step(1));
    assert_eq!((factors.clip, replica[2]), (1.0, -1.0));
}

#[test]
fn bias_correction_needs_the_step_and_nothing_else() {
    // The first step of AdamW moves by the learning rate whatever the gradient's size; so does a first gradient at step 0
    // after the replica was carried to another process.
    let update = Update::from_parts(ADAMW, CONSTANT, None, &info([1, 1, 1]), 10);
    let mut replica = update.initial_replica(vec![0.0; 3]);
    update.apply(&mut replica, &[1e-3, -5.0, 0.5], Step(0));
    for (found, expected) in replica.iter().zip([-0.01, 0.01, -0.01]) {
        assert!((found - expected).abs() < 1e-6, "{replica:?}");
    }
}

proptest! {
    #[test]
    fn ranges_give_the_bits_of_the_whole(
        sizes in [1usize..300, 1usize..300, 1usize..300],
        cuts in prop::collection::vec(0usize..900, 0..6),
        which in 0usize..4,
        clip in prop::option::of(0.01f64..10.0),
    ) {
        let info = info(sizes);
        let total = count(&info);
        let update = Update::from_parts([sgd(0.0, false), sgd(0.9, false), sgd(0.9, true), ADAMW][which], CONSTANT, clip, &info, 10);
        let mut whole = update.initial_replica(values(total, 3));
        let mut parts = whole.clone();
        let mut bounds: Vec<usize> = cuts.into_iter().map(|cut| cut.min(total)).chain([0, total]).collect();
        bounds.sort_unstable();
        for step in 0..3 {
            let gradient = values(total, 50 + step as u32);
            update.apply(&mut whole, &gradient, Step(step));
            let factors = update.factors(&gradient, Step(step), Stride::ONE);
            for cut in bounds.windows(2).rev() {
                update.apply_range(&mut parts, &gradient[cut[0]..cut[1]], cut[0]..cut[1], &factors);
            }
        }
        let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        prop_assert_eq!(bits(&whole), bits(&parts));
    }
}

/// Of the same gradient, an update of k steps moves the averages as far as k updates of one step do, and the parameters as the rule says.
#[test]
fn an_update_of_several_steps_leaves_the_averages_of_as_many() {
    let (info, gradient, four) = (info([3, 2, 2]), values(7, 9), Stride::of(4));
    let update = |rule| Update { rule, ..Update::from_parts(ADAMW, CONSTANT, None, &info, 100) };
    let at_once = |rule, step| {
        let mut replica = update(rule).initial_replica(values(7, 1));
        update(rule).apply_strided(&mut replica, &gradient, step, four);
        replica
    };
    let mut one_by_one = update(LearningRateRule::None).initial_replica(values(7, 1));
    for step in 0..4 {
        update(LearningRateRule::None).apply(&mut one_by_one, &gradient, Step(step));
    }
    let whole = at_once(LearningRateRule::None, Step(0));
    assert!(whole[7..].iter().zip(&one_by_one[7..]).all(|(a, b)| (a - b).abs() < 1e-6), "{whole:?} {one_by_one:?}");
    // With bias corrected, the first update of Adam moves by the learning rate, whatever the stride.
    // Of a bias, which does not decay.
    let moved = |replica: &[f32]| (replica[4] - values(7, 1)[4]).abs();
    let (once, linear, sqrt) =
        (whole, at_once(LearningRateRule::Linear, Step(0)), at_once(LearningRateRule::Sqrt, Step(0)));
    let mut first = update(LearningRateRule::None).initial_replica(values(7, 1));
    update(LearningRateRule::None).apply(&mut first, &gradient, Step(0));
    let times = [&once, &sqrt, &linear].map(|replica| moved(replica) / moved(&first));
    assert!(times.iter().zip([1.0, 2.0, 4.0]).all(|(found, expected)| (found - expected).abs() < 1e-2), "{times:?}");
}

#[test]
fn a_rule_scales_the_learning_rate_of_plain_descent() {
    let info = info([2, 1, 1]);
    let optimizer = OptimizerSpec::Sgd { learning_rate: 0.5, momentum: 0.0, nesterov: false, weight_decay: 0.0 };
    let moved = |rule, stride| {
        let update = Update { rule, ..Update::from_parts(optimizer, CONSTANT, None, &info, 100) };
        let mut replica = update.initial_replica(vec![0.0; 4]);
        update.apply_strided(&mut replica, &[1.0; 4], Step(8), Stride::of(stride));
        -replica[0]
    };
    assert_eq!([1, 4].map(|stride| moved(LearningRateRule::Linear, stride)), [0.5, 2.0]);
    assert_eq!([1, 4].map(|stride| moved(LearningRateRule::Sqrt, stride)), [0.5, 1.0]);
    assert_eq!([1, 4].map(|stride| moved(LearningRateRule::None, stride)), [0.5, 0.5]);
}
