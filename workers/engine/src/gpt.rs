//! The decoder-only transformer (Radford et al. 2019): learned positions, pre-norm blocks, causal attention, untied head.
//!
//! Activations are kept as `[samples * context, width]`; only attention looks at them per sample. Dropout follows the
//! embedding, the attention weights, and each block's two residual branches.

use crate::engine::BuildError;
use crate::layers::{Embedding, LayerNorm, Linear, Masks};
use crate::native::{Form, Input, Model};
use crate::parameters::{Declaration, Leaves};
use burn::tensor::activation::{gelu, softmax};
use burn::tensor::{Tensor, TensorData};
use events_schema::dataset::SampleShape;

/// Deviation of initial weights and embeddings (GPT-2); projections back into the residual stream are divided by √(2·layers).
const DEVIATION: f64 = 0.02;
/// What a score from the future is raised by: its exponential is exactly 0, and unlike -∞ it makes no NaN in a row of them.
const FUTURE: f32 = -1e30;

/// See the module.
pub(crate) struct Gpt {
    tokens: Embedding,
    positions: Embedding,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
    context: usize,
    width: usize,
}

/// `x + attention(norm x)`, then `x + mlp(norm x)`.
struct Block {
    norm1: LayerNorm,
    /// Queries, keys and values of all heads in one product, `[3 * width, width]`.
    mix: Linear,
    project: Linear,
    norm2: LayerNorm,
    expand: Linear,
    contract: Linear,
    heads: usize,
}

/// Sizes of a call: samples, context, width.
type Sizes = [usize; 3];

impl Gpt {
    /// Weights begin normal with deviation 0.02, see [`DEVIATION`].
    pub(crate) fn declare(
        declaration: &mut Declaration,
        sample: &SampleShape,
        [layers, heads, width, context]: [u32; 4],
    ) -> Result<(Self, Form), BuildError> {
        let SampleShape::Tokens { length, vocabulary } = *sample else {
            return Err(BuildError::SampleKind {
                model: "gpt",
                needed: "sequences of tokens",
                found: "samples with a class".to_owned(),
            });
        };
        if heads == 0 || width == 0 || !width.is_multiple_of(heads) {
            let expected = format!("a number that divides `width` ({width})");
            return Err(BuildError::Size { field: "model.heads", value: u64::from(heads), expected });
        }
        if context == 0 || context >= length {
            return Err(BuildError::Context { context, length });
        }
        let [layers, heads, width, context] = [layers, heads, width, context].map(|size| size as usize);
        let tokens = Embedding::declare(declaration, "tokens", vocabulary as usize, width, DEVIATION)?;
        let positions = Embedding::declare(declaration, "positions", context, width, DEVIATION)?;
        let residual = DEVIATION / libm::sqrt(2.0 * layers as f64);
        let blocks = (0..layers)
            .map(|layer| Block::declare(declaration, &format!("blocks.{layer}"), width, heads, residual))
            .collect::<Result<_, _>>()?;
        let norm = LayerNorm::declare(declaration, "norm", width)?;
        let head = Linear::declare(declaration, "head", width, vocabulary as usize, DEVIATION)?;
        Ok((Self { tokens, positions, blocks, norm, head, context, width }, Form::Tokens { context, vocabulary }))
    }

    /// `[1, 1, context, context]`, added to attention scores: 0 at and before a position, [`FUTURE`] after it.
    fn causal(&self, like: &Tensor<2>) -> Tensor<4> {
        let context = self.context;
        let values = (0..context * context).map(|at| if at % context > at / context { FUTURE } else { 0.0 }).collect();
        Tensor::from_data(TensorData::new(values, [1, 1, context, context]), &like.device())
    }
}

impl Block {
    fn declare(
        declaration: &mut Declaration,
        name: &str,
        width: usize,
        heads: usize,
        residual: f64,
    ) -> Result<Self, BuildError> {
        Ok(Self {
            norm1: LayerNorm::declare(declaration, &format!("{name}.norm1"), width)?,
            mix: Linear::declare(declaration, &format!("{name}.attention.mix"), width, 3 * width, DEVIATION)?,
            project: Linear::declare(declaration, &format!("{name}.attention.project"), width, width, residual)?,
            norm2: LayerNorm::declare(declaration, &format!("{name}.norm2"), width)?,
            expand: Linear::declare(declaration, &format!("{name}.mlp.expand"), width, 4 * width, DEVIATION)?,
            contract: Linear::declare(declaration, &format!("{name}.mlp.contract"), 4 * width, width, residual)?,
            heads,
        })
    }

    fn forward(
        &self,
        leaves: &Leaves,
        input: Tensor<2>,
        sizes: Sizes,
        causal: &Tensor<4>,
        masks: &mut Masks,
    ) -> Tensor<2> {
        let attended = self.attention(leaves, self.norm1.forward(leaves, input.clone()), sizes, causal, masks);
        let stream = input + masks.drop(self.project.forward(leaves, attended));
        let inner = gelu(self.expand.forward(leaves, self.norm2.forward(leaves, stream.clone())));
        stream + masks.drop(self.contract.forward(leaves, inner))
    }

    /// Scaled dot-product attention of every head (Vaswani et al. 2017); input and output `[samples * context, width]`.
    fn attention(
        &self,
        leaves: &Leaves,
        input: Tensor<2>,
        [samples, context, width]: Sizes,
        causal: &Tensor<4>,
        masks: &mut Masks,
    ) -> Tensor<2> {
        let head_width = width / self.heads;
        let mixed = self.mix.forward(leaves, input);
        let part = |index: usize| {
            let columns = mixed.clone().narrow(1, index * width, width);
            columns.reshape([samples, context, self.heads, head_width]).swap_dims(1, 2)
        };
        let (queries, keys, values) = (part(0), part(1), part(2));
        let scale = 1.0 / libm::sqrt(head_width as f64);
        let scores = (queries * scale).matmul(keys.transpose()) + causal.clone();
        let attended = masks.drop(softmax(scores, 3)).matmul(values);
        attended.swap_dims(1, 2).reshape([samples * context, width])
    }
}

impl Model for Gpt {
    fn logits(&self, leaves: &Leaves, input: Input, masks: &mut Masks) -> Tensor<2> {
        let Input::Tokens(tokens) = input else { unreachable!("the form of a gpt gives tokens") };
        let [samples, context] = tokens.dims();
        let sizes = [samples, context, self.width];
        let embedded = self.tokens.forward(leaves, tokens) + self.positions.table(leaves).unsqueeze();
        let mut stream = masks.drop(embedded.reshape([samples * context, self.width]));
        let causal = self.causal(&stream);
        for block in &self.blocks {
            stream = block.forward(leaves, stream, sizes, &causal, masks);
        }
        self.head.forward(leaves, self.norm.forward(leaves, stream))
    }
}
