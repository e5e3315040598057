//! Declares a model's parameters in their flat order and finds them in flat buffers: values are read where the replica holds them, and gradients
//! written where they belong, so neither is ever copied.
//!
//! The order of declaration *is* the flat order, in the replica, in checkpoints and in the exported model; changing it
//! changes a format. Declaring allocates no parameter, so a spec's size can be known before anything is built.

use crate::engine::{BuildError, ParameterInfo};
use crate::random;
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
    offset: usize,
    len: usize,
    shape: [usize; D],
}

impl<const D: usize> Parameter<D> {
    pub(crate) fn shape(&self) -> [usize; D] {
        self.shape
    }

    /// Its elements of a flat buffer.
    pub(crate) fn of<'a>(&self, flat: &'a [f32]) -> &'a [f32] {
        &flat[self.offset..self.offset + self.len]
    }

    /// [`Parameter::of`] to write.
    pub(crate) fn of_mut<'a>(&self, flat: &'a mut [f32]) -> &'a mut [f32] {
        &mut flat[self.offset..self.offset + self.len]
    }

    /// Its elements and those of a parameter that was declared after it.
    pub(crate) fn of_both_mut<'a, const E: usize>(
        &self,
        later: Parameter<E>,
        flat: &'a mut [f32],
    ) -> [&'a mut [f32]; 2] {
        let (before, after) = flat.split_at_mut(later.offset);
        [self.of_mut(before), &mut after[..later.len]]
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
        let offset = self.total;
        self.info.push(ParameterInfo { name, shape: shape.to_vec(), offset });
        self.initial.push(initial);
        self.total = total;
        Ok(Parameter { offset, len: count, shape })
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
