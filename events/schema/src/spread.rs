//! How sure a measured duration is: of how many updates it is the median, and how far one of them lies from another.
//!
//! Only what was seen stands in records; what follows from it for the median is worked out by whoever reads it. Says nothing of how fast the same slots are
//! at another time.

use crate::stride::Stride;
use minicbor::{Decode, Encode};
use serde::Serialize;

/// The standard error of a median is that of the mean times √(π/2), where what it is of is spread normally.
const OF_MEDIAN: f64 = 1.253_314;
/// A whole, in millionths.
const WHOLE_MICRO: f64 = 1e6;

/// How far the updates are spread that a duration is the median of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct Spread {
    /// How many they were.
    #[n(0)]
    pub updates: u16,
    /// The standard deviation of one, in microseconds: by the median of their distances from the median, so that a stray one does not count.
    #[n(1)]
    pub deviation_us: u64,
}

impl Spread {
    /// The standard error of the median of those updates as a part of it, in millionths.
    #[must_use]
    pub fn error_micro(&self, median_us: u64) -> u32 {
        let deviation = self.deviation_us as f64 / median_us.max(1) as f64;
        // A conversion from a number that is too large is the largest one.
        (OF_MEDIAN * deviation / f64::from(self.updates.max(1)).sqrt() * WHOLE_MICRO).round() as u32
    }

    /// The same of a step of updates that take so many.
    #[must_use]
    pub fn of_step(self, stride: Stride) -> Self {
        Self { deviation_us: self.deviation_us.div_ceil(stride.steps()), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_updates_and_the_less_spread_the_surer_is_their_median() {
        let error = |updates, deviation_us| Spread { updates, deviation_us }.error_micro(10_000);
        // 1.2533 · 500 / 10,000 / √9.
        assert_eq!(error(9, 500), 20_889);
        assert_eq!(error(36, 500), 10_444, "half as much of four times as many");
        assert_eq!((error(9, 0), error(9, u64::MAX)), (0, u32::MAX));
        assert_eq!(
            Spread { updates: 0, deviation_us: 1 }.error_micro(0),
            1_253_314,
            "of no updates nothing is divided"
        );
        let of_four = Spread { updates: 9, deviation_us: 2_000 };
        assert_eq!(of_four.of_step(Stride::of(4)).error_micro(10_000), of_four.error_micro(40_000));
    }
}
