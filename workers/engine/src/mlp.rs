//! The fully connected network: `layers.i` linear, GELU and dropout between them, logits at the end.
//!
//! Any classified sample is read as one flat row of features. The smallest model of the crate, and the one to read first.

use crate::engine::BuildError;
use crate::layers::{Linear, Masks};
use crate::native::{Form, Input, Model};
use crate::parameters::{Declaration, Leaves};
use burn::tensor::Tensor;
use burn::tensor::activation::gelu;
use events_schema::dataset::SampleShape;

/// See the module.
pub(crate) struct Mlp {
    layers: Vec<Linear>,
}

impl Mlp {
    /// Hidden weights begin normal with deviation √(2 / inputs) (He et al. 2015), the last layer's with √(1 / inputs).
    pub(crate) fn declare(
        declaration: &mut Declaration,
        sample: &SampleShape,
        hidden: &[u32],
    ) -> Result<(Self, Form), BuildError> {
        let (shape, classes) = Form::classified("mlp", sample)?;
        let features = shape.iter().product();
        let mut inputs = features;
        let mut layers = Vec::with_capacity(hidden.len() + 1);
        for &width in hidden {
            let outputs = width as usize;
            layers.push(Linear::declare(
                declaration,
                &format!("layers.{}", layers.len()),
                inputs,
                outputs,
                libm::sqrt(2.0 / inputs as f64),
            )?);
            inputs = outputs;
        }
        let name = format!("layers.{}", layers.len());
        layers.push(Linear::declare(declaration, &name, inputs, classes as usize, libm::sqrt(1.0 / inputs as f64))?);
        Ok((Self { layers }, Form::Classified { features, classes }))
    }
}

impl Model for Mlp {
    fn logits(&self, leaves: &Leaves, input: Input, masks: &mut Masks) -> Tensor<2> {
        let Input::Features(mut activation) = input else { unreachable!("the form of an mlp gives features") };
        for (index, layer) in self.layers.iter().enumerate() {
            activation = layer.forward(leaves, activation);
            if index + 1 < self.layers.len() {
                activation = masks.drop(gelu(activation));
            }
        }
        activation
    }
}
