//! A model that learns nothing: a bowl, ½·|w|² for each sample, whose gradient is w. It stands for a training where only slots and times matter (`ebb replay`):
//! its replica is as large as asked, every step moves it, and its bits depend on the arguments alone, as those of any other model.
//!
//! How long its gradients take is not its matter: this crate has no clock, so the executor waits (`workers/executor/src/workload.rs`).

use crate::blocks;
use crate::engine::{BuildError, Engine, EngineError, EvaluationSums, ParameterInfo, RandomKey, Sums};
use crate::parameters::{Declaration, Initial};
use events_schema::dataset::Samples;

/// See the module.
pub(crate) struct Synthetic {
    declaration: Declaration,
    seed: u64,
}

impl Synthetic {
    /// A vector of so many parameters.
    pub(crate) fn declare(parameters: u32, seed: u64) -> Result<Self, BuildError> {
        let mut declaration = Declaration::default();
        declaration.declare("weights".to_owned(), [parameters as usize], Initial::Normal(1.0))?;
        Ok(Self { declaration, seed })
    }

    fn check_length(&self, what: &'static str, found: usize) -> Result<(), EngineError> {
        let expected = self.declaration.total();
        if found == expected { Ok(()) } else { Err(EngineError::Length { what, expected, found }) }
    }
}

/// The summed loss of so many samples.
fn loss(parameters: &[f32], samples: usize) -> f64 {
    let norm = blocks::norm(parameters);
    0.5 * norm * norm * samples as f64
}

impl Engine for Synthetic {
    fn parameter_info(&self) -> &[ParameterInfo] {
        self.declaration.info()
    }

    fn initial_parameters(&self) -> Vec<f32> {
        self.declaration.initial_values(self.seed)
    }

    fn gradient(
        &mut self,
        parameters: &[f32],
        samples: &Samples,
        _random_key: RandomKey,
        gradient: &mut [f32],
    ) -> Result<Sums, EngineError> {
        self.check_length("parameters", parameters.len())?;
        self.check_length("gradient", gradient.len())?;
        let count = samples.len();
        if count == 0 {
            gradient.fill(0.0);
            return Ok(Sums::default());
        }
        let weight = count as f32;
        gradient.iter_mut().zip(parameters).for_each(|(gradient, parameter)| *gradient = weight * parameter);
        let loss = loss(parameters, count);
        if loss.is_finite() { Ok(Sums { weight: count as f64, loss }) } else { Err(EngineError::NotFinite) }
    }

    fn evaluate(&mut self, parameters: &[f32], samples: &Samples) -> Result<EvaluationSums, EngineError> {
        self.check_length("parameters", parameters.len())?;
        let count = samples.len();
        Ok(EvaluationSums { loss: loss(parameters, count), correct: 0, count: count as u64 })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use events_schema::{Rank, Step};

    #[test]
    fn its_gradient_is_its_replica_times_the_samples_and_nothing_of_none() {
        let mut engine = Synthetic::declare(5, 7).unwrap();
        let parameters = engine.initial_parameters();
        assert!(parameters.iter().all(|value| *value != 0.0) && parameters[0] != parameters[1]);
        let key = RandomKey { seed: 7, rank: Rank(0), step: Step(0) };
        let mut gradient = [f32::NAN; 5];
        let rows = |count: u32| Samples::Tokens { tokens: (0..2 * count).collect(), length: 2 };
        let sums = engine.gradient(&parameters, &rows(3), key, &mut gradient).unwrap();
        assert!(sums.weight == 3.0 && sums.loss > 0.0);
        assert!(gradient.iter().zip(&parameters).all(|(gradient, of)| *gradient == 3.0 * of));
        let sums = engine.gradient(&parameters, &rows(0), key, &mut gradient).unwrap();
        assert!(sums == Sums::default() && gradient == [0.0; 5]);
        assert!(engine.gradient(&parameters[1..], &rows(1), key, &mut gradient).is_err());
    }
}
