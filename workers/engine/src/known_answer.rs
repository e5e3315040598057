//! The numeric class of this process: a digest over gradients of every operator the models use, at shapes chosen to expose
//! hosts whose kernels differ. Processes of different classes must not train one job together.

use crate::blocks;
use crate::engine::{Engine, RandomKey};
use crate::update::Update;
use events_schema::dataset::{SampleShape, Samples};
use events_schema::job::{ModelSpec, OptimizerSpec, ScheduleShape, ScheduleSpec};
use events_schema::{Digest, Rank, Step};

/// What computes, with the version that decides its bits.
pub const ENGINE_NAME: &str = concat!("ebb-native ", env!("CARGO_PKG_VERSION"), " kernels 2");

/// The SIMD level this binary was compiled for; not what the host could do.
pub const LEVEL: &str = if cfg!(all(target_arch = "x86_64", target_feature = "avx512f")) {
    "x86-64-v4"
} else if cfg!(all(target_arch = "x86_64", target_feature = "avx2", target_feature = "fma", target_feature = "bmi2")) {
    "x86-64-v3"
} else if cfg!(target_arch = "x86_64") {
    "x86-64"
} else if cfg!(target_arch = "aarch64") {
    "aarch64"
} else {
    "other"
};

/// The digest of the numeric class; the same in every run of one binary on one kind of host. Takes well under 200 ms.
///
/// Inner dimensions lie on both sides of where products are cut into blocks. A model that cannot be computed
/// at all shows as a class of its own instead of an error.
#[must_use]
pub fn known_answer() -> Digest {
    let mut hasher = blake3::Hasher::new();
    for text in [ENGINE_NAME, LEVEL] {
        hasher.update(text.as_bytes());
        hasher.update(&[0]);
    }
    for (model, sample, samples) in cases() {
        match answer(&model, &sample, &samples) {
            Some(digest) => hasher.update(&digest.0),
            None => hasher.update(b"failed"),
        };
    }
    Digest(*hasher.finalize().as_bytes())
}

fn cases() -> [(ModelSpec, SampleShape, Samples); 3] {
    let dropout = 0.1;
    let mlp = ModelSpec::Mlp { hidden: vec![16, 520], dropout };
    let cnn = ModelSpec::Cnn { channels: vec![8, 60], blocks: 2, groups: 4, dropout };
    let gpt = ModelSpec::Gpt { layers: 1, heads: 2, width: 132, context: 66, dropout };
    let vocabulary = 61;
    let tokens = SampleShape::Tokens { length: 67, vocabulary };
    [
        (mlp, SampleShape::Classified { shape: vec![600], classes: 10 }, classified(9, 600)),
        (cnn, SampleShape::Classified { shape: vec![3, 9, 8], classes: 10 }, classified(10, 3 * 9 * 8)),
        (
            gpt,
            tokens,
            Samples::Tokens { tokens: (0..8 * 67).map(|at| scattered(at) % vocabulary).collect(), length: 67 },
        ),
    ]
}

fn classified(samples: u32, features: u32) -> Samples {
    let features = (0..samples * features).map(|at| scattered(at) as f32 / 2f32.powi(31) - 1.0).collect();
    Samples::Classified { features, labels: (0..samples).map(|sample| sample % 10).collect() }
}

/// Multiplicative hashing (Knuth): scattered, and the same everywhere.
fn scattered(at: u32) -> u32 {
    at.wrapping_add(1).wrapping_mul(2_654_435_761)
}

/// The digest of the loss and of the replica after one step; `None` if the gradient was refused.
fn answer(model: &ModelSpec, sample: &SampleShape, samples: &Samples) -> Option<Digest> {
    let mut engine: Box<dyn Engine> = crate::build_model(model, sample, 1).ok()?;
    let optimizer =
        OptimizerSpec::Adamw { learning_rate: 1e-3, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 };
    let schedule = ScheduleSpec { warmup_steps: 0, shape: ScheduleShape::Constant };
    let update = Update::from_parts(optimizer, schedule, Some(1.0), engine.parameter_info(), 1);
    let mut replica = update.initial_replica(engine.initial_parameters());
    let mut gradient = vec![0.0; update.parameter_count()];
    let random_key = RandomKey { seed: 1, rank: Rank(0), step: Step(0) };
    let sums = engine.gradient(&replica[..update.parameter_count()], samples, random_key, &mut gradient).ok()?;
    update.apply(&mut replica, &gradient, random_key.step);
    let [loss, gradient, replica] =
        [Digest::of(&sums.loss.to_le_bytes()), blocks::digest(&gradient), blocks::digest(&replica)];
    Some(Digest::of(&[loss.0, gradient.0, replica.0].concat()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_computed_and_the_digest_repeats_whatever_runs_beside() {
        assert!(cases().iter().all(|(model, sample, samples)| answer(model, sample, samples).is_some()));
        let here = known_answer();
        let beside = std::thread::scope(|scope| {
            let threads = [scope.spawn(known_answer), scope.spawn(known_answer)];
            threads.map(|thread| thread.join().ok())
        });
        assert_eq!(beside, [Some(here), Some(here)]);
    }
}
