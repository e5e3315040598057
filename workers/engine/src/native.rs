//! The embedded engine: a [`Model`] of this crate run by burn's flex backend with automatic differentiation, on one thread.
//!
//! Every call copies the flat parameters into leaf tensors of its own, builds the graph, and drops it: nothing is kept, so a
//! call's bits depend on its arguments alone. Models must not read anything but their leaves, their input and their masks.
//! Next on the main path: `update.rs`; a model to begin with is `mlp.rs`.

use crate::engine::{BuildError, EVALUATION_ROWS, Engine, EngineError, EvaluationSums, ParameterInfo, RandomKey, Sums};
use crate::layers::Masks;
use crate::loss::cross_entropy;
use crate::parameters::{Declaration, Leaves, copy_out};
use burn::tensor::{Device, Int, Tensor, TensorData};
use events_schema::dataset::{SampleShape, Samples};

/// What a batch looks like to a model.
pub(crate) enum Input {
    /// `[samples, features]`.
    Features(Tensor<2>),
    /// `[samples, context]`.
    Tokens(Tensor<2, Int>),
}

/// A network: how its logits follow from its parameters and its input.
pub(crate) trait Model: Send {
    /// One row of logits per target: `[samples, classes]`, or `[samples * context, vocabulary]`.
    fn logits(&self, leaves: &Leaves, input: Input, masks: &mut Masks) -> Tensor<2>;
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
struct Rows {
    input: RowsInput,
    targets: Vec<u32>,
}

enum RowsInput {
    Features(Vec<f32>, [usize; 2]),
    Tokens(Vec<i32>, [usize; 2]),
}

impl Rows {
    fn input(self, device: &Device) -> (Input, Vec<u32>) {
        let input = match self.input {
            RowsInput::Features(values, shape) => {
                Input::Features(Tensor::from_data(TensorData::new(values, shape), device))
            }
            RowsInput::Tokens(values, shape) => {
                Input::Tokens(Tensor::from_data(TensorData::new(values, shape), device))
            }
        };
        (input, self.targets)
    }
}

/// A model behind the [`Engine`] trait.
pub(crate) struct Native<M> {
    model: M,
    declaration: Declaration,
    form: Form,
    dropout: f64,
    seed: u64,
    training: Device,
    inference: Device,
}

impl<M: Model> Native<M> {
    pub(crate) fn new(model: M, declaration: Declaration, form: Form, dropout: f64, seed: u64) -> Self {
        Self { model, declaration, form, dropout, seed, training: Device::flex().autodiff(), inference: Device::flex() }
    }

    fn check_length(&self, what: &'static str, found: usize) -> Result<(), EngineError> {
        let expected = self.declaration.total();
        if found == expected { Ok(()) } else { Err(EngineError::Length { what, expected, found }) }
    }
}

impl Form {
    /// Cuts samples `first..first + count` out, checking every label and token of them.
    fn rows(&self, samples: &Samples, first: usize, count: usize) -> Result<Rows, EngineError> {
        match (self, samples) {
            (Form::Classified { features, classes }, Samples::Classified { features: values, labels }) => {
                let targets = labels[first..first + count].to_vec();
                check_range("label", &targets, 1, first, *classes)?;
                let values = values[first * features..(first + count) * features].to_vec();
                Ok(Rows { input: RowsInput::Features(values, [count, *features]), targets })
            }
            (Form::Tokens { context, vocabulary }, Samples::Tokens { tokens, length }) => {
                let length = *length as usize;
                let mut input = Vec::with_capacity(count * context);
                let mut targets = Vec::with_capacity(count * context);
                for (index, row) in tokens[first * length..(first + count) * length].chunks_exact(length).enumerate() {
                    check_range("token", &row[..=*context], context + 1, first + index, *vocabulary)?;
                    input.extend(row[..*context].iter().map(|&token| token as i32));
                    targets.extend_from_slice(&row[1..=*context]);
                }
                Ok(Rows { input: RowsInput::Tokens(input, [count, *context]), targets })
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
        let (input, targets) = self.form.rows(samples, 0, count)?.input(&self.training);
        let info = self.declaration.info();
        let leaves = Leaves::new(info, parameters, &self.training, true);
        let logits = self.model.logits(&leaves, input, &mut Masks::new(random_key, self.dropout));
        let shape = logits.dims();
        let mut logits_gradient = vec![0.0; shape.iter().product()];
        copy_out(logits.clone(), &mut logits_gradient);
        let sums = cross_entropy(&mut logits_gradient, &targets);
        if !sums.loss.is_finite() {
            return Err(EngineError::NotFinite);
        }
        // The derivative of Σ logits · logits_gradient with respect to the logits is `logits_gradient` itself, exactly.
        let logits_gradient = Tensor::<2>::from_data(TensorData::new(logits_gradient, shape), &self.training);
        let mut gradients = (logits * logits_gradient).sum().backward();
        leaves.collect(info, &mut gradients, gradient);
        Ok(Sums { weight: targets.len() as f64, loss: sums.loss })
    }

    fn evaluate(&mut self, parameters: &[f32], samples: &Samples) -> Result<EvaluationSums, EngineError> {
        self.check_length("parameters", parameters.len())?;
        let count = self.form.sample_count(samples)?;
        let leaves = Leaves::new(self.declaration.info(), parameters, &self.inference, false);
        let mut sums = EvaluationSums::default();
        for first in (0..count).step_by(EVALUATION_ROWS) {
            let rows = self.form.rows(samples, first, EVALUATION_ROWS.min(count - first))?;
            let (input, targets) = rows.input(&self.inference);
            let logits = self.model.logits(&leaves, input, &mut Masks::none());
            let mut values = vec![0.0; logits.dims().iter().product()];
            copy_out(logits, &mut values);
            let part = cross_entropy(&mut values, &targets);
            sums.loss += part.loss;
            sums.correct += part.correct;
            sums.count += part.count;
        }
        Ok(sums)
    }
}
