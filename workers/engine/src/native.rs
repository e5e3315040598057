//! The embedded engine: a [`Model`] of this crate on one thread.
//!
//! Models read the parameters where the replica holds them and add gradients where they belong. What they keep between calls is memory, whose content no
//! result depends on: a call's bits depend on its arguments alone. Next on the main path: `update.rs`; a model to begin with is `mlp.rs`.

use crate::engine::{BuildError, EVALUATION_ROWS, Engine, EngineError, EvaluationSums, ParameterInfo, RandomKey, Sums};
use crate::layers::Dropout;
use crate::parameters::Declaration;
use events_schema::dataset::{SampleShape, Samples};
use std::borrow::Cow;

/// Rows of logits that are computed at once, where samples do not depend on each other: enough that copying a layer's weights for it does not count, few
/// enough that activations stay in caches. A batch of more is computed in parts, in order, so this decides how gradients are summed: changing it changes
/// models.
const ROWS_AT_ONCE: usize = 512;

/// What a batch looks like to a model.
#[derive(Clone, Copy)]
pub(crate) enum Inputs<'a> {
    /// `[samples, features]`.
    Features(&'a [f32]),
    /// `[samples, context]`.
    Tokens(&'a [u32]),
}

/// Samples of a call.
#[derive(Clone, Copy)]
pub(crate) struct Batch<'a> {
    pub(crate) inputs: Inputs<'a>,
    /// As many for every sample.
    pub(crate) targets: &'a [u32],
    samples: usize,
}

impl<'a> Batch<'a> {
    /// Parts with about [`ROWS_AT_ONCE`] targets each: their inputs, of which a sample has `width`, and their targets.
    pub(crate) fn parts<T>(&self, inputs: &'a [T], width: usize) -> impl Iterator<Item = (&'a [T], &'a [u32])> {
        let per_sample = self.targets.len() / self.samples;
        let samples = (ROWS_AT_ONCE / per_sample).max(1);
        inputs.chunks(samples * width).zip(self.targets.chunks(samples * per_sample))
    }
}

/// A network: how loss and gradient follow from its parameters and a batch.
pub(crate) trait Model: Send {
    /// Layers that drop: [`Dropout`] numbers them from 0.
    fn dropouts(&self) -> usize;

    /// Adds the gradient of the summed loss to `gradient`, which holds zeros, and gives the loss.
    fn gradient(
        &mut self,
        parameters: &[f32],
        batch: &Batch<'_>,
        dropout: Dropout,
        gradient: &mut [f32],
    ) -> EvaluationSums;

    /// Loss and hits, without dropout.
    fn evaluate(&mut self, parameters: &[f32], batch: &Batch<'_>) -> EvaluationSums;
}

/// What the samples of a call must look like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Form {
    /// Rows of so many features, one of so many classes each.
    Classified { features: usize, classes: u32 },
    /// The first `context` tokens of a row are the input, those shifted by one the targets.
    Tokens { context: usize, vocabulary: u32 },
}

impl Form {
    /// The form of classified samples.
    pub(crate) fn classified(model: &'static str, sample: &SampleShape) -> Result<(Vec<usize>, u32), BuildError> {
        match sample {
            SampleShape::Classified { shape, classes } => Ok((shape.iter().map(|&n| n as usize).collect(), *classes)),
            SampleShape::Tokens { .. } => Err(BuildError::SampleKind {
                model,
                needed: "samples with a class",
                found: "sequences of tokens".to_owned(),
            }),
        }
    }
}

/// Rows of one call, checked and cut out of the samples: what the model reads and what it should say.
struct Rows<'a> {
    inputs: RowsInput<'a>,
    targets: Cow<'a, [u32]>,
    samples: usize,
}

enum RowsInput<'a> {
    Features(&'a [f32]),
    Tokens(Vec<u32>),
}

impl Rows<'_> {
    fn batch(&self) -> Batch<'_> {
        let inputs = match &self.inputs {
            RowsInput::Features(features) => Inputs::Features(features),
            RowsInput::Tokens(tokens) => Inputs::Tokens(tokens),
        };
        Batch { inputs, targets: &self.targets, samples: self.samples }
    }
}

/// A model behind the [`Engine`] trait.
pub(crate) struct Native<M> {
    model: M,
    declaration: Declaration,
    form: Form,
    dropout: f64,
    seed: u64,
}

impl<M: Model> Native<M> {
    pub(crate) fn new(model: M, declaration: Declaration, form: Form, dropout: f64, seed: u64) -> Self {
        Self { model, declaration, form, dropout, seed }
    }

    fn check_length(&self, what: &'static str, found: usize) -> Result<(), EngineError> {
        let expected = self.declaration.total();
        if found == expected { Ok(()) } else { Err(EngineError::Length { what, expected, found }) }
    }
}

impl Form {
    /// Cuts samples `first..first + count` out, checking every label and token of them.
    fn rows<'a>(&self, samples: &'a Samples, first: usize, count: usize) -> Result<Rows<'a>, EngineError> {
        match (self, samples) {
            (Form::Classified { features, classes }, Samples::Classified { features: values, labels }) => {
                let targets = &labels[first..first + count];
                check_range("label", targets, 1, first, *classes)?;
                let values = &values[first * features..(first + count) * features];
                Ok(Rows { inputs: RowsInput::Features(values), targets: targets.into(), samples: count })
            }
            (Form::Tokens { context, vocabulary }, Samples::Tokens { tokens, length }) => {
                let length = *length as usize;
                let mut input = Vec::with_capacity(count * context);
                let mut targets = Vec::with_capacity(count * context);
                for (index, row) in tokens[first * length..(first + count) * length].chunks_exact(length).enumerate() {
                    check_range("token", &row[..=*context], context + 1, first + index, *vocabulary)?;
                    input.extend(&row[..*context]);
                    targets.extend_from_slice(&row[1..=*context]);
                }
                Ok(Rows { inputs: RowsInput::Tokens(input), targets: targets.into(), samples: count })
            }
            _ => Err(EngineError::Samples("another kind of sample".to_owned())),
        }
    }

    /// How many samples these are, once their lengths agree with the form.
    fn sample_count(&self, samples: &Samples) -> Result<usize, EngineError> {
        let wrong = |text: String| Err(EngineError::Samples(text));
        match (self, samples) {
            (Form::Classified { features, .. }, Samples::Classified { features: values, labels }) => {
                if labels.len().checked_mul(*features) == Some(values.len()) {
                    return Ok(labels.len());
                }
                wrong(format!("{} features for {} samples of {features}", values.len(), labels.len()))
            }
            (Form::Tokens { context, .. }, Samples::Tokens { tokens, length }) => {
                let length = *length as usize;
                if tokens.is_empty() {
                    return Ok(0);
                }
                if length <= *context || !tokens.len().is_multiple_of(length) {
                    return wrong(format!("{} tokens in rows of {length}, context {context}", tokens.len()));
                }
                Ok(tokens.len() / length)
            }
            (Form::Classified { .. }, Samples::Tokens { .. }) => {
                wrong("tokens instead of features with a class".to_owned())
            }
            (Form::Tokens { .. }, Samples::Classified { .. }) => {
                wrong("features with a class instead of tokens".to_owned())
            }
        }
    }
}

fn check_range(
    what: &'static str,
    values: &[u32],
    per_sample: usize,
    first: usize,
    limit: u32,
) -> Result<(), EngineError> {
    match values.iter().position(|&value| value >= limit) {
        None => Ok(()),
        Some(index) => Err(EngineError::OutOfRange {
            what,
            sample: first + index / per_sample,
            value: values[index],
            max: limit - 1,
        }),
    }
}

impl<M: Model> Engine for Native<M> {
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
        random_key: RandomKey,
        gradient: &mut [f32],
    ) -> Result<Sums, EngineError> {
        self.check_length("parameters", parameters.len())?;
        self.check_length("gradient", gradient.len())?;
        let count = self.form.sample_count(samples)?;
        if count == 0 {
            gradient.fill(0.0);
            return Ok(Sums::default());
        }
        let rows = self.form.rows(samples, 0, count)?;
        let dropout = Dropout::new(random_key, self.dropout, self.model.dropouts());
        gradient.fill(0.0);
        let sums = self.model.gradient(parameters, &rows.batch(), dropout, gradient);
        if !sums.loss.is_finite() {
            return Err(EngineError::NotFinite);
        }
        Ok(Sums { weight: rows.targets.len() as f64, loss: sums.loss })
    }

    fn evaluate(&mut self, parameters: &[f32], samples: &Samples) -> Result<EvaluationSums, EngineError> {
        self.check_length("parameters", parameters.len())?;
        let count = self.form.sample_count(samples)?;
        let mut sums = EvaluationSums::default();
        for first in (0..count).step_by(EVALUATION_ROWS) {
            let rows = self.form.rows(samples, first, EVALUATION_ROWS.min(count - first))?;
            sums.add(self.model.evaluate(parameters, &rows.batch()));
        }
        Ok(sums)
    }
}
