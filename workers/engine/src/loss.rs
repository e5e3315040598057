//! Softmax cross-entropy on the host: loss, hits, and the gradient that is fed back into the graph.
//!
//! Kept out of the graph for two reasons: the loss is summed in f64 whatever the batch, and `exp` and `log` come from the
//! `libm` crate instead of the host's C library. It must stay a plain loop over rows in order.

use crate::engine::EvaluationSums;

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
        let mut best = 0;
        for (class, &score) in row.iter().enumerate() {
            if score > row[best] {
                best = class;
            }
        }
        let highest = row[best];
        let distance = f64::from(highest) - f64::from(row[target]);
        let mut total = 0f64;
        for score in row.iter_mut() {
            *score = libm::expf(*score - highest);
            total += f64::from(*score);
        }
        let scale = (1.0 / total) as f32;
        for score in row.iter_mut() {
            *score *= scale;
        }
        row[target] -= 1.0;
        sums.loss += libm::log(total) + distance;
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
    fn a_score_that_is_no_number_shows_in_the_loss() {
        assert!(!cross_entropy(&mut [0.0, f32::NAN], &[0]).loss.is_finite());
        assert_eq!(cross_entropy(&mut [], &[]), EvaluationSums::default());
    }
}
