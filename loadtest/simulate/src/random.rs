//! Chance of a run: a seed gives a sequence, the same on every machine.

/// The generator SplitMix64, at some place of its sequence.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.draw() % n.max(1) as u64) as usize
    }

    /// A number above 0 and below 1.
    pub fn share(&mut self) -> f64 {
        // 53 bits, so that no draw is 0 after the shift by a half.
        ((self.draw() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// A time that is exponentially distributed with this mean, in milliseconds, at least 1.
    pub fn exponential_ms(&mut self, mean_ms: f64) -> u64 {
        (-libm::log(self.share()) * mean_ms).ceil().max(1.0) as u64
    }

    /// A number that is normally distributed around 0 with deviation 1 (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        let (radius, turn) = (libm::sqrt(-2.0 * libm::log(self.share())), self.share());
        radius * libm::cos(std::f64::consts::TAU * turn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_is_as_asked() {
        let mut random = Random::new(7);
        let mean = (0..20_000).map(|_| random.exponential_ms(1_000.0)).sum::<u64>() / 20_000;
        assert!((950..1_050).contains(&mean), "{mean}");
    }
}
