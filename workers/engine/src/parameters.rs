//! Declares a model's parameters in their flat order and hands them to the graph as leaf tensors, one set per call.
//!
//! The order of declaration *is* the flat order, in the replica, in checkpoints and in the exported model; changing it
//! changes a format. Declaring allocates no parameter, so a spec's size can be known before anything is built.

use crate::engine::{BuildError, ParameterInfo};
use crate::random;
use burn::tensor::{Device, Gradients, Tensor, TensorData};
use events_schema::job::PARAMETERS_MAX;

/// How a parameter begins.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Initial {
    Zeros,
    Ones,
    /// Normal with mean 0 and this deviation.
    Normal(f64),
}

/// A declared parameter with `D` dimensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parameter<const D: usize> {
    index: usize,
    shape: [usize; D],
}

impl<const D: usize> Parameter<D> {
    pub(crate) fn shape(&self) -> [usize; D] {
        self.shape
    }
}

/// The parameters declared so far.
#[derive(Debug, Default)]
pub(crate) struct Declaration {
    info: Vec<ParameterInfo>,
    initial: Vec<Initial>,
    total: usize,
}

impl Declaration {
    /// Declares the next parameter in flat order.
    pub(crate) fn declare<const D: usize>(
        &mut self,
        name: String,
        shape: [usize; D],
        initial: Initial,
    ) -> Result<Parameter<D>, BuildError> {
        let too_large = BuildError::TooLarge { max: PARAMETERS_MAX };
        let count =
            shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size)).ok_or(too_large.clone())?;
        let total = self.total.checked_add(count).filter(|&total| total as u64 <= PARAMETERS_MAX).ok_or(too_large)?;
        let index = self.info.len();
        self.info.push(ParameterInfo { name, shape: shape.to_vec(), offset: self.total });
        self.initial.push(initial);
        self.total = total;
        Ok(Parameter { index, shape })
    }

    pub(crate) fn info(&self) -> &[ParameterInfo] {
        &self.info
    }

    /// Elements of all parameters.
    pub(crate) fn total(&self) -> usize {
        self.total
    }

    /// The parameters a job with this seed begins with.
    pub(crate) fn initial_values(&self, seed: u64) -> Vec<f32> {
        let mut values = vec![0.0; self.total];
        for (info, initial) in self.info.iter().zip(&self.initial) {
            let values = &mut values[info.range()];
            match *initial {
                Initial::Zeros => {}
                Initial::Ones => values.fill(1.0),
                Initial::Normal(deviation) => random::fill_normal(seed, &info.name, deviation, values),
            }
        }
        values
    }
}

/// The parameters of one call as tensors. Never shared between calls or threads: concurrent graphs over shared leaves
/// deadlock in burn-autodiff 0.22.
pub(crate) struct Leaves {
    tensors: Vec<Tensor<1>>,
}

impl Leaves {
    /// Copies the flat parameters into one leaf each; on a device with autodiff their gradients are kept.
    pub(crate) fn new(info: &[ParameterInfo], parameters: &[f32], device: &Device, tracked: bool) -> Self {
        let leaf = |info: &ParameterInfo| {
            let values = parameters[info.range()].to_vec();
            let shape = [values.len()];
            let tensor = Tensor::<1>::from_data(TensorData::new(values, shape), device);
            if tracked { tensor.require_grad() } else { tensor }
        };
        Self { tensors: info.iter().map(leaf).collect() }
    }

    /// One parameter in its declared shape.
    pub(crate) fn get<const D: usize>(&self, parameter: Parameter<D>) -> Tensor<D> {
        self.tensors[parameter.index].clone().reshape(parameter.shape)
    }

    /// Moves every leaf's gradient to its place in the flat buffer. A parameter that the loss does not depend on has none:
    /// its range is zero.
    pub(crate) fn collect(self, info: &[ParameterInfo], gradients: &mut Gradients, flat: &mut [f32]) {
        for (info, leaf) in info.iter().zip(&self.tensors) {
            let target = &mut flat[info.range()];
            match leaf.grad_remove(gradients) {
                Some(tensor) => copy_out(tensor, target),
                None => target.fill(0.0),
            }
        }
    }
}

/// Copies a tensor's elements, row-major, into `target`, which has as many.
pub(crate) fn copy_out<const D: usize>(tensor: Tensor<D>, target: &mut [f32]) {
    let data = tensor.into_data();
    match data.as_slice::<f32>() {
        Ok(values) => target.copy_from_slice(values),
        Err(never) => unreachable!("tensors of this crate hold f32: {never}"),
    }
}
