//! The residual convolutional network (He et al. 2015) with GroupNorm in place of BatchNorm.
//!
//! A 3×3 stem, then stages of basic blocks; every stage after the first halves height and width in its first block. Global
//! average pool, dropout, linear classifier. GroupNorm has no running statistics, so a logical worker leaves nothing behind.

use crate::engine::BuildError;
use crate::layers::{Conv, GroupNorm, Linear, Masks};
use crate::native::{Form, Input, Model};
use crate::parameters::{Declaration, Leaves};
use burn::tensor::Tensor;
use burn::tensor::activation::relu;
use events_schema::dataset::SampleShape;

/// See the module.
pub(crate) struct Cnn {
    /// `[channels, height, width]` of a sample.
    image: [usize; 3],
    stem: Conv,
    stem_norm: GroupNorm,
    blocks: Vec<Block>,
    head: Linear,
}

/// Two 3×3 convolutions beside a shortcut: `relu(norm(conv(relu(norm(conv x)))) + shortcut x)`.
struct Block {
    conv1: Conv,
    norm1: GroupNorm,
    conv2: Conv,
    norm2: GroupNorm,
    /// A 1×1 convolution where the shape changes; otherwise the input itself is added.
    shortcut: Option<(Conv, GroupNorm)>,
}

impl Cnn {
    /// Convolutions begin as `Conv::declare` says, the classifier normal with deviation √(1 / inputs).
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
        let stem = Conv::declare(declaration, "stem.conv", [image[0], width], 3, 1)?;
        let stem_norm = GroupNorm::declare(declaration, "stem.norm", width, groups)?;
        let mut all = Vec::new();
        for (stage, &outputs) in channels.iter().enumerate() {
            for block in 0..blocks as usize {
                let stride = if stage > 0 && block == 0 { 2 } else { 1 };
                all.push(Block::declare(
                    declaration,
                    &format!("stages.{stage}.blocks.{block}"),
                    [width, outputs as usize],
                    stride,
                    groups,
                )?);
                width = outputs as usize;
            }
        }
        let head = Linear::declare(declaration, "head", width, classes as usize, libm::sqrt(1.0 / width as f64))?;
        let form = Form::Classified { features: image.iter().product(), classes };
        Ok((Self { image, stem, stem_norm, blocks: all, head }, form))
    }
}

impl Block {
    fn declare(
        declaration: &mut Declaration,
        name: &str,
        [inputs, outputs]: [usize; 2],
        stride: usize,
        groups: usize,
    ) -> Result<Self, BuildError> {
        let conv1 = Conv::declare(declaration, &format!("{name}.conv1"), [inputs, outputs], 3, stride)?;
        let norm1 = GroupNorm::declare(declaration, &format!("{name}.norm1"), outputs, groups)?;
        let conv2 = Conv::declare(declaration, &format!("{name}.conv2"), [outputs, outputs], 3, 1)?;
        let norm2 = GroupNorm::declare(declaration, &format!("{name}.norm2"), outputs, groups)?;
        let shortcut = if stride == 1 && inputs == outputs {
            None
        } else {
            let conv = Conv::declare(declaration, &format!("{name}.shortcut.conv"), [inputs, outputs], 1, stride)?;
            Some((conv, GroupNorm::declare(declaration, &format!("{name}.shortcut.norm"), outputs, groups)?))
        };
        Ok(Self { conv1, norm1, conv2, norm2, shortcut })
    }

    fn forward(&self, leaves: &Leaves, input: Tensor<4>) -> Tensor<4> {
        let inner = relu(self.norm1.forward(leaves, self.conv1.forward(leaves, input.clone())));
        let inner = self.norm2.forward(leaves, self.conv2.forward(leaves, inner));
        let beside = match &self.shortcut {
            Some((conv, norm)) => norm.forward(leaves, conv.forward(leaves, input)),
            None => input,
        };
        relu(inner + beside)
    }
}

impl Model for Cnn {
    fn logits(&self, leaves: &Leaves, input: Input, masks: &mut Masks) -> Tensor<2> {
        let Input::Features(features) = input else { unreachable!("the form of a cnn gives features") };
        let samples = features.dims()[0];
        let [channels, height, width] = self.image;
        let image = features.reshape([samples, channels, height, width]);
        let mut activation = relu(self.stem_norm.forward(leaves, self.stem.forward(leaves, image)));
        for block in &self.blocks {
            activation = block.forward(leaves, activation);
        }
        let [_, channels, height, width] = activation.dims();
        let pooled = activation.reshape([samples, channels, height * width]).mean_dim(2).reshape([samples, channels]);
        self.head.forward(leaves, masks.drop(pooled))
    }
}
