//! Every source of chance of a model: initial values and dropout masks, each drawn from a generator keyed by what it is for.
//!
//! Nothing here remembers anything. A stream that went on from draw to draw would make a logical worker's masks depend on who
//! ran beside it; a key made of (purpose, seed, rank, step, layer) cannot. Library generators must not be used in this crate.
//! Transcendental functions come from the `libm` crate, so that initial values have the same bits on every host.

use crate::engine::RandomKey;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Domain of all keys; a change of how draws are made needs a new one.
const CONTEXT: &str = "ebb workers-engine chance v1";

/// A generator for one purpose. `parts` is fed to the key derivation with its length, so no two lists collide.
fn generator(purpose: &str, seed: u64, parts: &[&[u8]]) -> ChaCha8Rng {
    let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
    let seed = seed.to_le_bytes();
    for part in [purpose.as_bytes(), &seed].iter().chain(parts) {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    ChaCha8Rng::from_seed(*hasher.finalize().as_bytes())
}

/// Fills `values` with independent normal draws of mean 0 and the given deviation, keyed by (seed, parameter name).
/// Method: Box and Muller (1958), two values from two uniform ones, in f64.
pub(crate) fn fill_normal(seed: u64, name: &str, deviation: f64, values: &mut [f32]) {
    let mut generator = generator("initial values", seed, &[name.as_bytes()]);
    // Uniform on (0, 1]: never 0, so the logarithm is finite.
    let mut uniform = || ((generator.next_u64() >> 11) as f64 + 1.0) * (1.0 / (1u64 << 53) as f64);
    for pair in values.chunks_mut(2) {
        let radius = deviation * libm::sqrt(-2.0 * libm::log(uniform()));
        let angle = 2.0 * std::f64::consts::PI * uniform();
        let both = [radius * libm::cos(angle), radius * libm::sin(angle)];
        for (value, drawn) in pair.iter_mut().zip(both) {
            *value = drawn as f32;
        }
    }
}

/// Dropout masks of one layer, one after the other: factors that are 0 with the given probability, otherwise `1 / (1 - probability)` (inverted
/// dropout, Srivastava et al. 2014), keyed by (seed, rank, step, layer).
pub(crate) struct Kept {
    generator: ChaCha8Rng,
    dropped_below: u32,
    factor: f32,
}

impl Kept {
    /// The layer's first mask is next.
    pub(crate) fn new(random_key: RandomKey, layer: u32, probability: f64) -> Self {
        let key = [&random_key.rank.0.to_le_bytes()[..], &random_key.step.0.to_le_bytes(), &layer.to_le_bytes()];
        let generator = generator("dropout", random_key.seed, &key);
        // A 32-bit draw below this drops; the probability is met to 2^-32.
        let dropped_below = (probability * f64::from(u32::MAX)) as u32;
        Self { generator, dropped_below, factor: (1.0 / (1.0 - probability)) as f32 }
    }

    /// The next factors.
    pub(crate) fn fill(&mut self, factors: &mut [f32]) {
        for factor in factors {
            *factor = if self.generator.next_u32() < self.dropped_below { 0.0 } else { self.factor };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use events_schema::{Rank, Step};

    #[test]
    fn initial_values_depend_on_seed_and_name_only_and_are_normal() {
        let draw = |seed, name| {
            let mut values = vec![0f32; 10_001];
            fill_normal(seed, name, 0.5, &mut values);
            values
        };
        let values = draw(7, "a.weight");
        assert_eq!(values, draw(7, "a.weight"));
        assert_ne!(values, draw(7, "b.weight"));
        assert_ne!(values, draw(8, "a.weight"));
        let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / values.len() as f64;
        assert!(mean.abs() < 0.02 && (variance - 0.25).abs() < 0.01, "mean {mean}, variance {variance}");
    }

    #[test]
    fn masks_depend_on_every_part_of_their_key_and_keep_the_expectation() {
        let base = RandomKey { seed: 1, rank: Rank(2), step: Step(3) };
        let mask = |random_key, layer| {
            let mut factors = vec![f32::NAN; 4_096];
            // In two parts, as a batch may be computed.
            let (early, late) = factors.split_at_mut(1_000);
            let mut kept = Kept::new(random_key, layer, 0.25);
            kept.fill(early);
            kept.fill(late);
            factors
        };
        let first = mask(base, 0);
        let mut whole = vec![0.0; 4_096];
        Kept::new(base, 0, 0.25).fill(&mut whole);
        assert_eq!(first, whole);
        let others = [
            mask(RandomKey { seed: 2, ..base }, 0),
            mask(RandomKey { rank: Rank(3), ..base }, 0),
            mask(RandomKey { step: Step(4), ..base }, 0),
            mask(base, 1),
        ];
        assert!(others.iter().all(|other| *other != first));
        let mean = first.iter().sum::<f32>() / first.len() as f32;
        assert!((mean - 1.0).abs() < 0.05, "mean {mean}");
        assert!(first.iter().all(|&v| v == 0.0 || v == 1.0 / 0.75));
    }
}
