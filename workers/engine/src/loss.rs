//! Softmax, and the cross-entropy of it: loss, hits, and the gradient that goes back through the model.
//!
//! The exponential is that of `lanes.rs`, the logarithm that of the `libm` crate instead of the host's C library, and losses are summed in f64 whatever the
//! batch. It must stay a plain loop over rows in order.

use crate::engine::EvaluationSums;
use crate::lanes::{LANES, Lanes, across, exp, groups_mut, highest, load};

/// Replaces each element by `exp(factor · (element − top))` and gives their sum: eight accumulators, added in pairs, what fills no vector last.
fn exponentials(row: &mut [f32], factor: f32, top: f32) -> f32 {
    let (top, factor) = (Lanes::splat(top), Lanes::splat(factor));
    let curve = |group: &[f32; LANES]| exp((load(group) - top) * factor);
    let mut sums = Lanes::ZERO;
    for group in groups_mut(row) {
        let raised = curve(group);
        sums += raised;
        *group = raised.to_array();
    }
    let rest = row.as_chunks_mut::<LANES>().1;
    let mut last = [0.0; LANES];
    last[..rest.len()].copy_from_slice(rest);
    let last = curve(&last).to_array();
    rest.copy_from_slice(&last[..rest.len()]);
    rest.iter().fold(across(sums), |sum, value| sum + value)
}

/// Replaces `factor · row` by its softmax.
pub(crate) fn softmax(row: &mut [f32], factor: f32) {
    let top = highest(row);
    let scale = 1.0 / exponentials(row, factor, top);
    row.iter_mut().for_each(|value| *value *= scale);
}

/// Sums the cross-entropy of `targets` under the rows of `logits` (`[targets, classes]`, row-major) and replaces the logits
/// by the gradient of that sum with respect to them: softmax minus one-hot. The maximum is subtracted first, so no
/// exponential overflows.
pub(crate) fn cross_entropy(logits: &mut [f32], targets: &[u32]) -> EvaluationSums {
    let mut sums = EvaluationSums::default();
    if targets.is_empty() {
        return sums;
    }
    let classes = logits.len() / targets.len();
    for (row, &target) in logits.chunks_exact_mut(classes).zip(targets) {
        let target = target as usize;
        let top = highest(row);
        let best = row.iter().position(|&score| score == top).unwrap_or(0);
        let distance = f64::from(top) - f64::from(row[target]);
        let total = exponentials(row, 1.0, top);
        let scale = 1.0 / total;
        row.iter_mut().for_each(|score| *score *= scale);
        row[target] -= 1.0;
        sums.loss += libm::log(f64::from(total)) + distance;
        sums.correct += u64::from(best == target);
        sums.count += 1;
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_textbook_and_survives_large_scores() {
        let mut logits = [1.0f32, 2.0, 3.0, 1_000.0, -1_000.0, 0.0];
        let sums = cross_entropy(&mut logits, &[2, 1]);
        let total = 1f64.exp() + 2f64.exp() + 3f64.exp();
        assert!((sums.loss - (total.ln() - 3.0) - 2_000.0).abs() < 1e-6, "{}", sums.loss);
        assert_eq!((sums.correct, sums.count), (1, 2));
        let expected = [1f64.exp() / total, 2f64.exp() / total, 3f64.exp() / total - 1.0, 1.0, -1.0, 0.0];
        for (found, expected) in logits.iter().zip(expected) {
            assert!((f64::from(*found) - expected).abs() < 1e-6, "{found} {expected}");
        }
    }

    #[test]
    fn a_softmax_sums_to_one_at_every_length() {
        for len in 1..40usize {
            let mut row: Vec<f32> = (0..len).map(|at| (at * 5 % 13) as f32 - 6.0).collect();
            let exact: Vec<f64> = row.iter().map(|&score| (f64::from(score) * 0.5).exp()).collect();
            let total: f64 = exact.iter().sum();
            softmax(&mut row, 0.5);
            for (found, exact) in row.iter().zip(exact) {
                assert!((f64::from(*found) - exact / total).abs() < 1e-6, "{found}, not {}", exact / total);
            }
        }
    }

    #[test]
    fn a_score_that_is_no_number_shows_in_the_loss() {
        assert!(!cross_entropy(&mut [0.0, f32::NAN], &[0]).loss.is_finite());
        assert_eq!(cross_entropy(&mut [], &[]), EvaluationSums::default());
    }
}
