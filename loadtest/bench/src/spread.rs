//! A step that is suspected to be longer, against others of the same members in the same minute: whether it is within their spread. It measures nothing.

use crate::row::Times;

/// Fewer others say nothing of a spread: of two it is none, since the middle one is the longest.
const OTHERS_LEAST: usize = 5;

/// How a step stands to others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Compared {
    /// Milliseconds by which it is longer than the middle one; less than none where it is shorter.
    pub beyond_middle_ms: f64,
    /// By which the longest of the others is.
    pub spread_ms: f64,
}

impl Compared {
    /// Nothing with too few others.
    pub fn new(step_ms: f64, others_ms: &[f64]) -> Option<Self> {
        let others = Times::of_ms(others_ms.to_vec());
        let middle = others.median();
        let compared = Self { beyond_middle_ms: step_ms - middle, spread_ms: others.at(1.0) - middle };
        (others.len() >= OTHERS_LEAST).then_some(compared)
    }

    /// How much of the spread, and of what it may take beyond that, it is beyond the middle one: 1 at most of a step like the others, in all but one case of how many there are.
    pub fn of_spread(self, allowed_ms: f64) -> f64 {
        if self.beyond_middle_ms <= 0.0 { 0.0 } else { self.beyond_middle_ms / (self.spread_ms + allowed_ms) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_within_the_spread_up_to_the_longest_of_the_others() {
        let of = |step_ms, allowed_ms| {
            Compared::new(step_ms, &[10.0, 12.0, 11.0, 14.0, 10.5]).map(|it| it.of_spread(allowed_ms))
        };
        assert_eq!((of(9.0, 0.0), of(14.0, 0.0), of(17.0, 3.0)), (Some(0.0), Some(1.0), Some(1.0)));
        assert!(of(14.1, 0.0) > Some(1.0));
        assert_eq!(Compared::new(1.0, &[10.0, 12.0, 11.0, 14.0]), None);
    }
}
