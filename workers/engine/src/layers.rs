//! Layers over declared parameters: each declares its parameters once and builds its part of the graph in every call.
//!
//! Names, shapes and epsilons follow PyTorch, so that an exported model loads there. No layer holds values or randomness; dropout
//! asks [`Masks`]. Initial values are documented at each `declare`.

use crate::engine::{BuildError, RandomKey};
use crate::parameters::{Declaration, Initial, Leaves, Parameter};
use crate::random;
use burn::tensor::module::{batch_norm_train, conv2d, embedding, layer_norm};
use burn::tensor::ops::ConvOptions;
use burn::tensor::{Int, Tensor, TensorData};

/// Added to the variance by both kinds of normalisation (PyTorch's default).
const NORM_EPSILON: f64 = 1e-5;

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

    /// `[rows, in]` to `[rows, out]`.
    pub(crate) fn forward(&self, leaves: &Leaves, input: Tensor<2>) -> Tensor<2> {
        input.matmul(leaves.get(self.weight).transpose()) + leaves.get(self.bias).unsqueeze()
    }
}

/// A convolution without bias (a normalisation follows); parameter `weight` `[out, in, kernel, kernel]`.
pub(crate) struct Conv {
    weight: Parameter<4>,
    stride: usize,
}

impl Conv {
    /// Weights begin normal with deviation √(2 / (in · kernel²)) (He et al. 2015, for ReLU).
    pub(crate) fn declare(
        declaration: &mut Declaration,
        name: &str,
        [inputs, outputs]: [usize; 2],
        kernel: usize,
        stride: usize,
    ) -> Result<Self, BuildError> {
        let deviation = libm::sqrt(2.0 / (inputs * kernel * kernel) as f64);
        let weight = declaration.declare(
            format!("{name}.weight"),
            [outputs, inputs, kernel, kernel],
            Initial::Normal(deviation),
        )?;
        Ok(Self { weight, stride })
    }

    /// `[n, in, h, w]` to `[n, out, ⌈h/stride⌉, ⌈w/stride⌉]`; odd kernels are padded by half their size.
    pub(crate) fn forward(&self, leaves: &Leaves, input: Tensor<4>) -> Tensor<4> {
        let padding = self.weight.shape()[2] / 2;
        let options = ConvOptions::new([self.stride; 2], [padding; 2], [1, 1], 1);
        conv2d(input, leaves.get(self.weight), None, options)
    }
}

/// Normalises each group of channels of each sample to mean 0 and variance 1, then scales and shifts by channel (Wu and He
/// 2018); parameters `weight` and `bias` `[channels]`. No statistics survive the call, unlike BatchNorm.
pub(crate) struct GroupNorm {
    weight: Parameter<1>,
    bias: Parameter<1>,
    groups: usize,
}

impl GroupNorm {
    /// Scales begin at 1, shifts at 0.
    pub(crate) fn declare(
        declaration: &mut Declaration,
        name: &str,
        channels: usize,
        groups: usize,
    ) -> Result<Self, BuildError> {
        let weight = declaration.declare(format!("{name}.weight"), [channels], Initial::Ones)?;
        let bias = declaration.declare(format!("{name}.bias"), [channels], Initial::Zeros)?;
        Ok(Self { weight, bias, groups })
    }

    /// `[n, channels, h, w]` to the same shape.
    pub(crate) fn forward(&self, leaves: &Leaves, input: Tensor<4>) -> Tensor<4> {
        let shape = input.dims();
        let [samples, channels, height, width] = shape;
        // One sample's group is one channel of a batch of one: the fused backward of batch normalisation does the work.
        let rows = samples * self.groups;
        let device = input.device();
        let flat = input.reshape([1, rows, channels / self.groups * height * width]);
        let normal =
            batch_norm_train(flat, Tensor::ones([rows], &device), Tensor::zeros([rows], &device), NORM_EPSILON).output;
        let by_channel = [1, channels, 1, 1];
        normal.reshape(shape) * leaves.get(self.weight).reshape(by_channel) + leaves.get(self.bias).reshape(by_channel)
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
    pub(crate) fn forward(&self, leaves: &Leaves, input: Tensor<2>) -> Tensor<2> {
        layer_norm(input, leaves.get(self.weight), Some(leaves.get(self.bias)), NORM_EPSILON)
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

    /// `[n, t]` indices to `[n, t, width]`.
    pub(crate) fn forward(&self, leaves: &Leaves, indices: Tensor<2, Int>) -> Tensor<3> {
        embedding(leaves.get(self.weight), indices)
    }

    /// The whole table, `[entries, width]`.
    pub(crate) fn table(&self, leaves: &Leaves) -> Tensor<2> {
        leaves.get(self.weight)
    }
}

/// The dropout masks of one call, numbered by layer in the order the forward pass asks for them.
pub(crate) struct Masks {
    random_key: Option<RandomKey>,
    probability: f64,
    layer: u32,
}

impl Masks {
    /// Masks for training.
    pub(crate) fn new(random_key: RandomKey, probability: f64) -> Self {
        Self { random_key: Some(random_key), probability, layer: 0 }
    }

    /// Evaluation: nothing is dropped.
    pub(crate) fn none() -> Self {
        Self { random_key: None, probability: 0.0, layer: 0 }
    }

    /// The activation with this layer's mask multiplied in.
    pub(crate) fn drop<const D: usize>(&mut self, activation: Tensor<D>) -> Tensor<D> {
        let layer = self.layer;
        self.layer += 1;
        let Some(random_key) = self.random_key.filter(|_| self.probability > 0.0) else { return activation };
        let shape = activation.dims();
        let mask = random::dropout_mask(random_key, layer, self.probability, shape.iter().product());
        let mask = Tensor::<D>::from_data(TensorData::new(mask, shape), &activation.device());
        activation * mask
    }
}
