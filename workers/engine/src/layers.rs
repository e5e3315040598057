//! Layers over declared parameters: each declares its parameters once, and computes its output and its gradients over slices that its model holds.
//!
//! Names, shapes and epsilons follow PyTorch, so that an exported model loads there. No layer holds values or randomness; dropout asks [`Dropout`].
//! Initial values are documented at each `declare`. Gradients of parameters are added to a flat buffer.

use crate::engine::{BuildError, RandomKey};
use crate::lanes::{LANES, Lanes, add_rows, exp, groups_mut, load};
use crate::normalisation::{RowsRoom, Statistics, normalise_rows, rows_gradient};
use crate::parameters::{Declaration, Initial, Parameter};
use crate::product::{Begin, Matrix, Panels, multiply};
use crate::random::Kept;

/// `y = x Wᵀ + b`; parameters `weight` `[out, in]` and `bias` `[out]`.
pub(crate) struct Linear {
    weight: Parameter<2>,
    bias: Parameter<1>,
}

impl Linear {
    /// Weights begin normal with the given deviation, biases at 0.
    pub(crate) fn declare(
        declaration: &mut Declaration,
        name: &str,
        inputs: usize,
        outputs: usize,
        deviation: f64,
    ) -> Result<Self, BuildError> {
        let weight = declaration.declare(format!("{name}.weight"), [outputs, inputs], Initial::Normal(deviation))?;
        let bias = declaration.declare(format!("{name}.bias"), [outputs], Initial::Zeros)?;
        Ok(Self { weight, bias })
    }

    /// Elements of a row of the output.
    pub(crate) fn outputs(&self) -> usize {
        self.weight.shape()[0]
    }

    /// `[rows, in]` to `[rows, out]`.
    pub(crate) fn forward(&self, parameters: &[f32], panels: &mut Panels, input: &[f32], output: &mut [f32]) {
        let [outputs, inputs] = self.weight.shape();
        let input = Matrix::new(input, [input.len() / inputs, inputs]);
        let weight = Matrix::new(self.weight.of(parameters), [outputs, inputs]).transposed();
        multiply(panels, output, outputs, Begin::Row(self.bias.of(parameters)), input, weight);
    }

    /// Adds the parameters' gradients to the flat buffer.
    pub(crate) fn weight_gradient(
        &self,
        panels: &mut Panels,
        input: &[f32],
        output_gradient: &[f32],
        gradient: &mut [f32],
    ) {
        let [outputs, inputs] = self.weight.shape();
        let rows = input.len() / inputs;
        add_rows(self.bias.of_mut(gradient), output_gradient);
        let output_gradient = Matrix::new(output_gradient, [rows, outputs]).transposed();
        let input = Matrix::new(input, [rows, inputs]);
        multiply(panels, self.weight.of_mut(gradient), inputs, Begin::Sum, output_gradient, input);
    }

    /// Writes the gradient of the input.
    pub(crate) fn input_gradient(
        &self,
        parameters: &[f32],
        panels: &mut Panels,
        output_gradient: &[f32],
        input_gradient: &mut [f32],
    ) {
        let [outputs, inputs] = self.weight.shape();
        let weight = Matrix::new(self.weight.of(parameters), [outputs, inputs]);
        let output_gradient = Matrix::new(output_gradient, [output_gradient.len() / outputs, outputs]);
        multiply(panels, input_gradient, inputs, Begin::Zero, output_gradient, weight);
    }
}

/// Normalises each row to mean 0 and variance 1, then scales and shifts (Ba et al. 2016); `weight` and `bias` `[width]`.
pub(crate) struct LayerNorm {
    weight: Parameter<1>,
    bias: Parameter<1>,
}

impl LayerNorm {
    /// Scales begin at 1, shifts at 0.
    pub(crate) fn declare(declaration: &mut Declaration, name: &str, width: usize) -> Result<Self, BuildError> {
        let weight = declaration.declare(format!("{name}.weight"), [width], Initial::Ones)?;
        let bias = declaration.declare(format!("{name}.bias"), [width], Initial::Zeros)?;
        Ok(Self { weight, bias })
    }

    /// `[rows, width]` to the same shape.
    pub(crate) fn forward(
        &self,
        parameters: &[f32],
        input: &[f32],
        statistics: &mut Vec<Statistics>,
        output: &mut [f32],
    ) {
        normalise_rows(input, [self.weight.of(parameters), self.bias.of(parameters)], statistics, output);
    }

    /// Adds the gradient of the input to `input_gradient`, those of the parameters to the flat buffer.
    pub(crate) fn backward(
        &self,
        parameters: &[f32],
        room: &mut RowsRoom,
        [input, output_gradient]: [&[f32]; 2],
        statistics: &[Statistics],
        gradient: &mut [f32],
        input_gradient: &mut [f32],
    ) {
        let inputs = [input, output_gradient, self.weight.of(parameters)];
        let parameters = self.weight.of_both_mut(self.bias, gradient);
        rows_gradient(room, inputs, statistics, parameters, input_gradient);
    }
}

/// A table of vectors; parameter `weight` `[entries, width]`.
pub(crate) struct Embedding {
    weight: Parameter<2>,
}

impl Embedding {
    /// Entries begin normal with the given deviation.
    pub(crate) fn declare(
        declaration: &mut Declaration,
        name: &str,
        entries: usize,
        width: usize,
        deviation: f64,
    ) -> Result<Self, BuildError> {
        Ok(Self {
            weight: declaration.declare(format!("{name}.weight"), [entries, width], Initial::Normal(deviation))?,
        })
    }

    /// One entry.
    pub(crate) fn entry<'a>(&self, parameters: &'a [f32], index: usize) -> &'a [f32] {
        let width = self.weight.shape()[1];
        &self.weight.of(parameters)[index * width..][..width]
    }

    /// The place of an entry's gradient in the flat buffer.
    pub(crate) fn entry_mut<'a>(&self, gradient: &'a mut [f32], index: usize) -> &'a mut [f32] {
        let width = self.weight.shape()[1];
        &mut self.weight.of_mut(gradient)[index * width..][..width]
    }
}

/// GELU with the normal distribution itself, not its tanh approximation (Hendrycks and Gimpel 2016): replaces `values` by the result, and writes the
/// derivative into `slopes`. The distribution is that of Abramowitz and Stegun, 7.1.26, right to 1e-7.
pub(crate) fn gelu(values: &mut [f32], slopes: &mut [f32]) {
    const NEAR: f32 = 0.327_591_1;
    const TERMS: [f32; 5] = [1.061_405_4, -1.453_152_1, 1.421_413_8, -0.284_496_72, 0.254_829_6];
    /// 1 / √(2 π).
    const DENSITY_AT_0: f32 = 0.398_942_3;
    let curve = |x: Lanes| {
        let distance = x.abs() * Lanes::FRAC_1_SQRT_2;
        let bell = exp(-(distance * distance));
        let t = Lanes::ONE / distance.mul_add(Lanes::splat(NEAR), Lanes::ONE);
        let mut tail = Lanes::splat(TERMS[0]);
        for term in &TERMS[1..] {
            tail = tail.mul_add(t, Lanes::splat(*term));
        }
        let tail = tail * t * bell * Lanes::HALF;
        let below = x.simd_lt(Lanes::ZERO).select(tail, Lanes::ONE - tail);
        (x * below, (x * bell).mul_add(Lanes::splat(DENSITY_AT_0), below))
    };
    let whole = values.len() / LANES * LANES;
    for (value, slope) in groups_mut(values).iter_mut().zip(groups_mut(slopes)) {
        let (result, derivative) = curve(load(value));
        (*value, *slope) = (result.to_array(), derivative.to_array());
    }
    let rest = values.len() - whole;
    let mut last = [0.0; LANES];
    last[..rest].copy_from_slice(&values[whole..]);
    let (result, derivative) = curve(load(&last));
    values[whole..].copy_from_slice(&result.to_array()[..rest]);
    slopes[whole..].copy_from_slice(&derivative.to_array()[..rest]);
}

/// The dropout masks of one call, numbered by layer. Of each layer masks are drawn for as many elements as are asked for, one after the other, so that a
/// batch can be computed in parts.
#[derive(Default)]
pub(crate) struct Dropout {
    layers: Vec<Kept>,
}

impl Dropout {
    /// Masks for training. With probability 0 nothing is dropped.
    pub(crate) fn new(random_key: RandomKey, probability: f64, layers: usize) -> Self {
        let layers = if probability > 0.0 { 0..layers as u32 } else { 0..0 };
        Self { layers: layers.map(|layer| Kept::new(random_key, layer, probability)).collect() }
    }

    /// Evaluation: nothing is dropped.
    pub(crate) fn none() -> Self {
        Self::default()
    }

    /// The layer's next mask into `mask`, of `len` factors; emptied where nothing is dropped.
    pub(crate) fn draw(&mut self, layer: usize, len: usize, mask: &mut Vec<f32>) {
        match self.layers.get_mut(layer) {
            Some(kept) => {
                mask.resize(len, 0.0);
                kept.fill(mask);
            }
            None => mask.clear(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gelu_and_its_derivative_are_those_of_the_normal_distribution() {
        let mut values: Vec<f32> = (-803..804).map(|at| at as f32 * 0.0125).collect();
        let inputs = values.clone();
        let mut slopes = vec![f32::NAN; values.len()];
        gelu(&mut values, &mut slopes);
        for ((x, y), slope) in inputs.iter().zip(&values).zip(&slopes) {
            let x = f64::from(*x);
            let below = 0.5 * libm::erfc(-x / 2f64.sqrt());
            let density = (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
            assert!((f64::from(*y) - x * below).abs() < 1e-6, "gelu({x}) = {y}");
            assert!((f64::from(*slope) - (below + x * density)).abs() < 2e-6, "its slope at {x}: {slope}");
        }
    }
}
