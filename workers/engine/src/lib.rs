//! What computes gradients: the [`Engine`] trait, the models Ebb ships, and the update of the flat replica.
//!
//! A logical worker is a function: `gradient(parameters, samples, random_key)`. Everything a training run remembers is in one flat
//! `f32` replica, parameters first and the optimizer's moments behind them, and only [`Update`] changes it. This crate does no
//! I/O, reads no clock and draws nothing random that is not keyed by the job.
//!
//! Bits. Within one numeric class (see [`known_answer`]) results are equal bit for bit. The build fixes the SIMD level (x86-64-v3), block sizes are
//! constants, exponentials are our own and logarithms those of the `libm` crate, so nothing is asked of the host: neither what its processor could do, nor
//! how large its caches are, nor its C library. The known answer shows hosts whose arithmetic differs all the same, and they are never mixed.
//!
//! Reading order: `engine.rs` (the contract), `native.rs` (how models stand behind it), `mlp.rs`, `layers.rs`, `product.rs`, `update.rs`.
//!
//! Next on a job's path: `workers/member/src/reduce.rs`.

mod attention;
pub mod blocks;
mod cnn;
mod convolution;
mod engine;
mod export;
mod gpt;
mod known_answer;
mod lanes;
mod layers;
mod loss;
mod mlp;
mod native;
mod normalisation;
mod parameters;
mod product;
mod random;
mod schedule;
mod synthetic;
mod update;

pub use engine::{
    BuildError, EVALUATION_ROWS, Engine, EngineError, EvaluationSums, ParameterInfo, RandomKey, Sums, count,
};
pub use export::{ImportError, export_model, import_model};
pub use known_answer::{ENGINE_NAME, LEVEL, known_answer};
pub use schedule::{learning_rate, learning_rate_factor};
pub use update::{Factors, Update};

use events_schema::dataset::SampleShape;
use events_schema::job::{JobSpec, ModelSpec};
use native::Native;
use parameters::Declaration;

/// The engine for a job's model on a dataset's samples.
pub fn build(spec: &JobSpec, sample: &SampleShape) -> Result<Box<dyn Engine>, BuildError> {
    build_model(&spec.model, sample, spec.seed)
}

/// How many parameters [`build`] would give the model; allocates none of them.
pub fn parameter_count(spec: &JobSpec, sample: &SampleShape) -> Result<usize, BuildError> {
    // Engines hold their declaration, not their parameters, so building one is cheap.
    build(spec, sample).map(|engine| count(engine.parameter_info()))
}

/// [`build`] from the parts of a spec that matter to it.
pub fn build_model(model: &ModelSpec, sample: &SampleShape, seed: u64) -> Result<Box<dyn Engine>, BuildError> {
    let mut declaration = Declaration::default();
    match *model {
        ModelSpec::Mlp { ref hidden, dropout } => {
            let (network, form) = mlp::Mlp::declare(&mut declaration, sample, hidden)?;
            Ok(Box::new(Native::new(network, declaration, form, dropout, seed)))
        }
        ModelSpec::Cnn { ref channels, blocks, groups, dropout } => {
            let (network, form) = cnn::Cnn::declare(&mut declaration, sample, channels, blocks, groups)?;
            Ok(Box::new(Native::new(network, declaration, form, dropout, seed)))
        }
        ModelSpec::Gpt { layers, heads, width, context, dropout } => {
            let (network, form) = gpt::Gpt::declare(&mut declaration, sample, [layers, heads, width, context])?;
            Ok(Box::new(Native::new(network, declaration, form, dropout, seed)))
        }
        ModelSpec::Synthetic { parameters, .. } => Ok(Box::new(synthetic::Synthetic::declare(parameters, seed)?)),
        ModelSpec::Torch(_) | ModelSpec::Command(_) => Err(BuildError::NotNative),
    }
}
