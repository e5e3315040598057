//! The residual convolutional network (He et al. 2015) with GroupNorm in place of BatchNorm.
//!
//! A 3×3 stem, then stages of basic blocks; every stage after the first halves height and width in its first block. Global
//! average pool, dropout, linear classifier. GroupNorm has no running statistics, so a logical worker leaves nothing behind.
//!
//! No layer looks at more than one image, so images go through the whole network and back one after the other: what one image needs stays in the
//! processor's caches, and a batch takes no more memory than one of them.

use crate::convolution::{Convolution, Framed, Shape};
use crate::engine::{BuildError, EvaluationSums};
use crate::lanes::{add, padded, scale};
use crate::layers::{Dropout, Linear};
use crate::loss::cross_entropy;
use crate::native::{Batch, Form, Inputs, Model};
use crate::normalisation::Grouped;
use crate::parameters::{Declaration, Initial, Parameter};
use crate::product::Panels;
use events_schema::dataset::SampleShape;

/// See the module.
pub(crate) struct Cnn {
    /// `[channels, height, width]` of a sample.
    image: [usize; 3],
    stem: Unit,
    blocks: Vec<Block>,
    head: Linear,
    /// Channels of the last stage.
    width: usize,
    /// The image, with its channels last.
    input: Framed,
    /// What goes into each block, then what comes out of the last; and the gradients of these.
    activations: Vec<Framed>,
    gradients: Vec<Vec<f32>>,
    pool: Pool,
}

/// What lies behind the last block.
#[derive(Default)]
struct Pool {
    panels: Panels,
    mask: Vec<f32>,
    features: Vec<f32>,
    features_gradient: Vec<f32>,
    logits: Vec<f32>,
}

/// A convolution without bias and the GroupNorm behind it; parameters `weight` `[out, in, kernel, kernel]` of the one, `weight` and `bias` `[channels]` of
/// the other.
struct Unit {
    weight: Parameter<4>,
    norm_weight: Parameter<1>,
    norm_bias: Parameter<1>,
    convolution: Convolution,
    norm: Grouped,
    /// What comes out of the convolution, and its gradient.
    raw: Vec<f32>,
    raw_gradient: Framed,
}

impl Unit {
    /// Weights begin normal with deviation √(2 / (in · kernel²)) (He et al. 2015, for ReLU), scales at 1, shifts at 0.
    fn declare(
        declaration: &mut Declaration,
        [conv, norm]: [&str; 2],
        shape: Shape,
        groups: usize,
    ) -> Result<Self, BuildError> {
        let Shape { inputs, outputs, kernel, .. } = shape;
        let deviation = libm::sqrt(2.0 / (inputs * kernel * kernel) as f64);
        let initial = Initial::Normal(deviation);
        let weight = declaration.declare(format!("{conv}.weight"), [outputs, inputs, kernel, kernel], initial)?;
        let norm_weight = declaration.declare(format!("{norm}.weight"), [outputs], Initial::Ones)?;
        let norm_bias = declaration.declare(format!("{norm}.bias"), [outputs], Initial::Zeros)?;
        Ok(Self {
            weight,
            norm_weight,
            norm_bias,
            convolution: Convolution::new(shape),
            norm: Grouped::new(shape.output().iter().product(), outputs, groups),
            raw: Vec::new(),
            raw_gradient: Framed::new(shape.output(), padded(outputs)),
        })
    }

    /// Takes over the parameters for images to come.
    fn begin(&mut self, parameters: &[f32], learns: bool) {
        self.convolution.begin(self.weight.of(parameters), learns);
        self.norm.begin(self.norm_weight.of(parameters), self.norm_bias.of(parameters));
        self.raw.resize(self.raw_gradient.len(), 0.0);
        if learns {
            self.raw_gradient.allocate();
        }
    }

    fn forward(&mut self, input: &Framed, beside: Option<&Framed>, rectified: bool, output: &mut Framed) {
        self.convolution.forward(input, &mut self.raw);
        self.norm.forward(&self.raw, beside, rectified, output);
    }

    /// Adds to the parameters' gradients; `rectified` is the output where what was negative was cut off, and `gradient`, that of the output, becomes that
    /// of the output before the cut.
    fn backward(&mut self, input: &Framed, gradient: &mut [f32], rectified: Option<&Framed>) {
        self.norm.gradient(&self.raw, gradient, rectified, &mut self.raw_gradient);
        self.convolution.weight_gradient(input, &self.raw_gradient);
    }

    /// After [`Unit::backward`]: writes the gradient of the input, or adds it.
    fn input_gradient(&self, input_gradient: &mut [f32], adds: bool) {
        self.convolution.input_gradient(&self.raw_gradient, input_gradient, adds);
    }

    /// Writes the gradients of all images to the flat buffer.
    fn end(&self, gradient: &mut [f32]) {
        self.convolution.end(self.weight.of_mut(gradient));
        let [weight, bias] = self.norm_weight.of_both_mut(self.norm_bias, gradient);
        self.norm.end(weight, bias);
    }
}

/// Two 3×3 convolutions beside a shortcut: `relu(norm(conv(relu(norm(conv x)))) + shortcut x)`.
struct Block {
    first: Unit,
    second: Unit,
    /// A 1×1 convolution where the shape changes, and what comes out of it; otherwise the input itself is added.
    shortcut: Option<(Unit, Framed)>,
    /// Between the two, and its gradient.
    inner: Framed,
    inner_gradient: Vec<f32>,
}

impl Cnn {
    /// Convolutions begin as `Unit::declare` says, the classifier normal with deviation √(1 / inputs).
    pub(crate) fn declare(
        declaration: &mut Declaration,
        sample: &SampleShape,
        channels: &[u32],
        blocks: u32,
        groups: u32,
    ) -> Result<(Self, Form), BuildError> {
        let (shape, classes) = Form::classified("cnn", sample)?;
        let image = match shape[..] {
            [channels, height, width] => [channels, height, width],
            // Grey images are often stored without a channel dimension.
            [height, width] => [1, height, width],
            _ => {
                let found = format!("samples of shape {shape:?}");
                return Err(BuildError::SampleKind {
                    model: "cnn",
                    needed: "images [channels, height, width] or [height, width]",
                    found,
                });
            }
        };
        if let Some(&wrong) = channels.iter().find(|&&count| groups == 0 || count == 0 || count % groups != 0) {
            let expected = format!("a number that divides every entry of `channels`, such as {wrong}");
            return Err(BuildError::Size { field: "model.groups", value: u64::from(groups), expected });
        }
        let Some(&first) = channels.first() else {
            return Err(BuildError::Size {
                field: "model.channels",
                value: 0,
                expected: "at least one stage".to_owned(),
            });
        };
        let groups = groups as usize;
        let mut width = first as usize;
        let mut size = [image[1], image[2]];
        let stem = Shape { input: size, inputs: image[0], input_step: image[0], outputs: width, kernel: 3, stride: 1 };
        let stem = Unit::declare(declaration, ["stem.conv", "stem.norm"], stem, groups)?;
        let mut activations = vec![Framed::new(size, padded(width))];
        let mut all = Vec::new();
        for (stage, &outputs) in channels.iter().enumerate() {
            for block in 0..blocks as usize {
                let stride = if stage > 0 && block == 0 { 2 } else { 1 };
                let name = format!("stages.{stage}.blocks.{block}");
                let shape = Shape {
                    input: size,
                    inputs: width,
                    input_step: padded(width),
                    outputs: outputs as usize,
                    kernel: 3,
                    stride,
                };
                all.push(Block::declare(declaration, &name, shape, groups)?);
                (width, size) = (shape.outputs, shape.output());
                activations.push(Framed::new(size, padded(width)));
            }
        }
        let head = Linear::declare(declaration, "head", width, classes as usize, libm::sqrt(1.0 / width as f64))?;
        let model = Self {
            image,
            stem,
            blocks: all,
            head,
            width,
            input: Framed::new([image[1], image[2]], image[0]),
            gradients: vec![Vec::new(); activations.len()],
            activations,
            pool: Pool::default(),
        };
        Ok((model, Form::Classified { features: image.iter().product(), classes }))
    }

    /// Takes over the parameters for images to come.
    fn begin(&mut self, parameters: &[f32], learns: bool) {
        self.input.allocate();
        self.activations.iter_mut().for_each(Framed::allocate);
        self.stem.begin(parameters, learns);
        self.blocks.iter_mut().for_each(|block| block.begin(parameters, learns));
        if learns {
            for (gradient, activation) in self.gradients.iter_mut().zip(&self.activations) {
                gradient.resize(activation.len(), 0.0);
            }
        }
    }

    /// Leaves the logits of one image, and all that their gradient needs.
    fn forward(&mut self, parameters: &[f32], image: &[f32], dropout: &mut Dropout) {
        let [channels, height, width] = self.image;
        for (row, to) in self.input.rows_mut().enumerate() {
            for (at, to) in to.iter_mut().enumerate() {
                *to = image[(at % channels * height + row) * width + at / channels];
            }
        }
        self.stem.forward(&self.input, None, true, &mut self.activations[0]);
        for (index, block) in self.blocks.iter_mut().enumerate() {
            let (before, after) = self.activations.split_at_mut(index + 1);
            block.forward(&before[index], &mut after[0]);
        }
        let pool = &mut self.pool;
        let last = &self.activations[self.blocks.len()];
        pool.features.clear();
        pool.features.resize(padded(self.width), 0.0);
        for pixel in last.rows().flat_map(|row| row.chunks_exact(padded(self.width))) {
            add(&mut pool.features, pixel);
        }
        pool.features.truncate(self.width);
        let share = 1.0 / last.pixels() as f32;
        pool.features.iter_mut().for_each(|value| *value *= share);
        dropout.draw(0, self.width, &mut pool.mask);
        scale(&mut pool.features, &pool.mask);
        pool.logits.resize(self.head.outputs(), 0.0);
        self.head.forward(parameters, &mut pool.panels, &pool.features, &mut pool.logits);
    }

    /// Adds the gradient of one image, whose logits have become their gradient.
    fn backward(&mut self, parameters: &[f32], gradient: &mut [f32]) {
        let Pool { panels, mask, features, features_gradient, logits } = &mut self.pool;
        self.head.weight_gradient(panels, features, logits, gradient);
        features_gradient.resize(self.width, 0.0);
        self.head.input_gradient(parameters, panels, logits, features_gradient);
        scale(features_gradient, mask);
        let share = 1.0 / self.activations[self.blocks.len()].pixels() as f32;
        features_gradient.iter_mut().for_each(|value| *value *= share);
        for pixel in self.gradients[self.blocks.len()].chunks_exact_mut(padded(self.width)) {
            pixel[..self.width].copy_from_slice(features_gradient);
            pixel[self.width..].fill(0.0);
        }
        for (index, block) in self.blocks.iter_mut().enumerate().rev() {
            let (before, after) = self.gradients.split_at_mut(index + 1);
            block.backward([&self.activations[index], &self.activations[index + 1]], &mut after[0], &mut before[index]);
        }
        self.stem.backward(&self.input, &mut self.gradients[0], Some(&self.activations[0]));
    }
}

impl Block {
    /// `shape` is that of its first convolution.
    fn declare(declaration: &mut Declaration, name: &str, shape: Shape, groups: usize) -> Result<Self, BuildError> {
        let Shape { inputs, outputs, stride, .. } = shape;
        let parts = |number: u8| [format!("{name}.conv{number}"), format!("{name}.norm{number}")];
        let names = |parts: &[String; 2], declaration: &mut Declaration, shape: Shape| {
            Unit::declare(declaration, [&parts[0], &parts[1]], shape, groups)
        };
        let inner = Shape { input: shape.output(), inputs: outputs, input_step: padded(outputs), stride: 1, ..shape };
        let first = names(&parts(1), declaration, shape)?;
        let second = names(&parts(2), declaration, inner)?;
        let shortcut = if stride == 1 && inputs == outputs {
            None
        } else {
            let parts = [format!("{name}.shortcut.conv"), format!("{name}.shortcut.norm")];
            let unit = names(&parts, declaration, Shape { kernel: 1, ..shape })?;
            Some((unit, Framed::new(shape.output(), padded(outputs))))
        };
        let inner = Framed::new(shape.output(), padded(outputs));
        Ok(Self { first, second, shortcut, inner, inner_gradient: Vec::new() })
    }

    fn begin(&mut self, parameters: &[f32], learns: bool) {
        self.first.begin(parameters, learns);
        self.second.begin(parameters, learns);
        if let Some((unit, beside)) = &mut self.shortcut {
            unit.begin(parameters, learns);
            beside.allocate();
        }
        self.inner.allocate();
        if learns {
            self.inner_gradient.resize(self.inner.len(), 0.0);
        }
    }

    fn forward(&mut self, input: &Framed, output: &mut Framed) {
        self.first.forward(input, None, true, &mut self.inner);
        let beside = match &mut self.shortcut {
            Some((unit, beside)) => {
                unit.forward(input, None, false, beside);
                &*beside
            }
            None => input,
        };
        self.second.forward(&self.inner, Some(beside), true, output);
    }

    /// From the gradient of its output, which is overwritten, to that of its input.
    fn backward(&mut self, [input, output]: [&Framed; 2], gradient: &mut [f32], input_gradient: &mut [f32]) {
        self.second.backward(&self.inner, gradient, Some(output));
        self.second.input_gradient(&mut self.inner_gradient, false);
        self.first.backward(input, &mut self.inner_gradient, Some(&self.inner));
        if let Some((unit, _)) = &mut self.shortcut {
            self.first.input_gradient(input_gradient, false);
            unit.backward(input, gradient, None);
            unit.input_gradient(input_gradient, true);
        } else {
            input_gradient.copy_from_slice(gradient);
            self.first.input_gradient(input_gradient, true);
        }
    }

    fn end(&self, gradient: &mut [f32]) {
        self.first.end(gradient);
        self.second.end(gradient);
        if let Some((unit, _)) = &self.shortcut {
            unit.end(gradient);
        }
    }
}

impl Model for Cnn {
    fn dropouts(&self) -> usize {
        1
    }

    fn gradient(
        &mut self,
        parameters: &[f32],
        batch: &Batch<'_>,
        mut dropout: Dropout,
        gradient: &mut [f32],
    ) -> EvaluationSums {
        let Inputs::Features(features) = batch.inputs else { unreachable!("the form of a cnn gives features") };
        self.begin(parameters, true);
        let mut sums = EvaluationSums::default();
        for (image, target) in features.chunks_exact(self.image.iter().product()).zip(batch.targets) {
            self.forward(parameters, image, &mut dropout);
            sums.add(cross_entropy(&mut self.pool.logits, &[*target]));
            self.backward(parameters, gradient);
        }
        self.stem.end(gradient);
        self.blocks.iter().for_each(|block| block.end(gradient));
        sums
    }

    fn evaluate(&mut self, parameters: &[f32], batch: &Batch<'_>) -> EvaluationSums {
        let Inputs::Features(features) = batch.inputs else { unreachable!("the form of a cnn gives features") };
        self.begin(parameters, false);
        let mut sums = EvaluationSums::default();
        for (image, target) in features.chunks_exact(self.image.iter().product()).zip(batch.targets) {
            self.forward(parameters, image, &mut Dropout::none());
            sums.add(cross_entropy(&mut self.pool.logits, &[*target]));
        }
        sums
    }
}
