//! The fully connected network: `layers.i` linear, GELU and dropout between them, logits at the end.
//!
//! Any classified sample is read as one flat row of features. The smallest model of the crate, and the one to read first.

use crate::engine::{BuildError, EvaluationSums};
use crate::lanes::scale;
use crate::layers::{Dropout, Linear, gelu};
use crate::loss::cross_entropy;
use crate::native::{Batch, Form, Inputs, Model};
use crate::parameters::Declaration;
use crate::product::Panels;
use events_schema::dataset::SampleShape;

/// See the module.
pub(crate) struct Mlp {
    layers: Vec<Linear>,
    features: usize,
    panels: Panels,
    /// Of each layer, its output: behind GELU and dropout, or the logits.
    outputs: Vec<Vec<f32>>,
    /// Of each hidden layer, the derivative of GELU and dropout.
    slopes: Vec<Vec<f32>>,
    mask: Vec<f32>,
    /// The gradient of a layer's output, and of its input.
    gradients: [Vec<f32>; 2],
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
        let none = || vec![Vec::new(); layers.len()];
        let (outputs, slopes) = (none(), none());
        let model = Self {
            layers,
            features,
            panels: Panels::default(),
            outputs,
            slopes,
            mask: Vec::new(),
            gradients: Default::default(),
        };
        Ok((model, Form::Classified { features, classes }))
    }

    /// Leaves every layer's output, and every hidden layer's slope.
    fn forward(&mut self, parameters: &[f32], features: &[f32], dropout: &mut Dropout) {
        let rows = features.len() / self.features;
        for (index, layer) in self.layers.iter().enumerate() {
            let (before, after) = self.outputs.split_at_mut(index);
            let input = before.last().map_or(features, Vec::as_slice);
            let output = &mut after[0];
            output.resize(rows * layer.outputs(), 0.0);
            layer.forward(parameters, &mut self.panels, input, output);
            if index + 1 < self.layers.len() {
                let slopes = &mut self.slopes[index];
                slopes.resize(output.len(), 0.0);
                gelu(output, slopes);
                dropout.draw(index, output.len(), &mut self.mask);
                scale(output, &self.mask);
                scale(slopes, &self.mask);
            }
        }
    }

    fn loss(&mut self, targets: &[u32]) -> EvaluationSums {
        self.outputs.last_mut().map_or_else(EvaluationSums::default, |logits| cross_entropy(logits, targets))
    }
}

impl Model for Mlp {
    fn dropouts(&self) -> usize {
        self.layers.len() - 1
    }

    fn gradient(
        &mut self,
        parameters: &[f32],
        batch: &Batch<'_>,
        mut dropout: Dropout,
        gradient: &mut [f32],
    ) -> EvaluationSums {
        let Inputs::Features(features) = batch.inputs else { unreachable!("the form of an mlp gives features") };
        let mut sums = EvaluationSums::default();
        for (features, targets) in batch.parts(features, self.features) {
            self.forward(parameters, features, &mut dropout);
            sums.add(self.loss(targets));
            let [output_gradient, input_gradient] = &mut self.gradients;
            output_gradient.clear();
            output_gradient.extend_from_slice(&self.outputs[self.layers.len() - 1]);
            for (index, layer) in self.layers.iter().enumerate().rev() {
                let Some(below) = index.checked_sub(1) else {
                    layer.weight_gradient(&mut self.panels, features, output_gradient, gradient);
                    continue;
                };
                layer.weight_gradient(&mut self.panels, &self.outputs[below], output_gradient, gradient);
                input_gradient.resize(self.outputs[below].len(), 0.0);
                layer.input_gradient(parameters, &mut self.panels, output_gradient, input_gradient);
                scale(input_gradient, &self.slopes[below]);
                std::mem::swap(output_gradient, input_gradient);
            }
        }
        sums
    }

    fn evaluate(&mut self, parameters: &[f32], batch: &Batch<'_>) -> EvaluationSums {
        let Inputs::Features(features) = batch.inputs else { unreachable!("the form of an mlp gives features") };
        self.forward(parameters, features, &mut Dropout::none());
        self.loss(batch.targets)
    }
}
