//! The decoder-only transformer (Radford et al. 2019): learned positions, pre-norm blocks, causal attention, untied head.
//!
//! Activations are kept as `[samples * context, width]`; only attention looks at them per sample. Dropout follows the
//! embedding, the attention weights, and each block's two residual branches. A batch is computed in parts of whole samples.

use crate::attention::{Attention, AttentionRoom};
use crate::engine::{BuildError, EvaluationSums};
use crate::lanes::{add, scale};
use crate::layers::{Dropout, Embedding, LayerNorm, Linear, gelu};
use crate::loss::cross_entropy;
use crate::native::{Batch, Form, Inputs, Model};
use crate::normalisation::{RowsRoom, Statistics};
use crate::parameters::Declaration;
use crate::product::Panels;
use events_schema::dataset::SampleShape;

/// Deviation of initial weights and embeddings (GPT-2); projections back into the residual stream are divided by √(2·layers).
const DEVIATION: f64 = 0.02;
/// Layers of a block that drop: attention, and the ends of both branches.
const DROPOUTS: usize = 3;

/// See the module.
pub(crate) struct Gpt {
    tokens: Embedding,
    positions: Embedding,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
    attention: Attention,
    shared: Shared,
    /// Of the part that is computed: the mask of the embedding, what comes out of the last block, its normal form, and the logits.
    mask: Vec<f32>,
    stream: Vec<f32>,
    statistics: Vec<Statistics>,
    normal: Vec<f32>,
    logits: Vec<f32>,
    /// The gradient of the stream.
    gradient: Vec<f32>,
}

/// Memory that all blocks use in turn.
#[derive(Default)]
struct Shared {
    panels: Panels,
    attention: AttentionRoom,
    rows: RowsRoom,
    /// Of one row's width, of three, and of four.
    narrow: Vec<f32>,
    branch: Vec<f32>,
    mixed: Vec<f32>,
    wide: Vec<f32>,
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
    /// The first of its layers that drop.
    dropout: usize,
    kept: Kept,
}

/// What a block's gradient needs of its forward pass.
#[derive(Default)]
struct Kept {
    input: Vec<f32>,
    statistics1: Vec<Statistics>,
    normal1: Vec<f32>,
    mixed: Vec<f32>,
    weights: Vec<f32>,
    weights_mask: Vec<f32>,
    attended: Vec<f32>,
    mask1: Vec<f32>,
    stream: Vec<f32>,
    statistics2: Vec<Statistics>,
    normal2: Vec<f32>,
    inner: Vec<f32>,
    slopes: Vec<f32>,
    mask2: Vec<f32>,
}

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
        let blocks =
            (0..layers).map(|layer| Block::declare(declaration, layer, width, residual)).collect::<Result<_, _>>()?;
        let norm = LayerNorm::declare(declaration, "norm", width)?;
        let head = Linear::declare(declaration, "head", width, vocabulary as usize, DEVIATION)?;
        let model = Self {
            tokens,
            positions,
            blocks,
            norm,
            head,
            attention: Attention { context, heads, width },
            shared: Shared::default(),
            mask: Vec::new(),
            stream: Vec::new(),
            statistics: Vec::new(),
            normal: Vec::new(),
            logits: Vec::new(),
            gradient: Vec::new(),
        };
        Ok((model, Form::Tokens { context, vocabulary }))
    }

    /// Leaves the logits of some samples, and all that their gradient needs.
    fn forward(&mut self, parameters: &[f32], tokens: &[u32], dropout: &mut Dropout) {
        let Attention { context, width, .. } = self.attention;
        self.stream.resize(tokens.len() * width, 0.0);
        for (row, (to, token)) in self.stream.chunks_exact_mut(width).zip(tokens).enumerate() {
            to.copy_from_slice(self.tokens.entry(parameters, *token as usize));
            add(to, self.positions.entry(parameters, row % context));
        }
        dropout.draw(0, self.stream.len(), &mut self.mask);
        scale(&mut self.stream, &self.mask);
        for block in &mut self.blocks {
            block.forward(parameters, self.attention, &mut self.shared, &mut self.stream, dropout);
        }
        self.normal.resize(self.stream.len(), 0.0);
        self.norm.forward(parameters, &self.stream, &mut self.statistics, &mut self.normal);
        self.logits.resize(tokens.len() * self.head.outputs(), 0.0);
        self.head.forward(parameters, &mut self.shared.panels, &self.normal, &mut self.logits);
    }

    /// Adds the gradient of the same samples, whose logits have become their gradient.
    fn backward(&mut self, parameters: &[f32], tokens: &[u32], gradient: &mut [f32]) {
        let Attention { context, width, .. } = self.attention;
        let Shared { panels, rows, narrow, .. } = &mut self.shared;
        self.head.weight_gradient(panels, &self.normal, &self.logits, gradient);
        narrow.resize(self.stream.len(), 0.0);
        self.head.input_gradient(parameters, panels, &self.logits, narrow);
        self.gradient.clear();
        self.gradient.resize(self.stream.len(), 0.0);
        let through = [&self.stream[..], &narrow[..]];
        self.norm.backward(parameters, rows, through, &self.statistics, gradient, &mut self.gradient);
        for block in self.blocks.iter_mut().rev() {
            block.backward(parameters, self.attention, &mut self.shared, &mut self.gradient, gradient);
        }
        scale(&mut self.gradient, &self.mask);
        for (row, (from, token)) in self.gradient.chunks_exact(width).zip(tokens).enumerate() {
            add(self.tokens.entry_mut(gradient, *token as usize), from);
            add(self.positions.entry_mut(gradient, row % context), from);
        }
    }
}

impl Block {
    fn declare(declaration: &mut Declaration, layer: usize, width: usize, residual: f64) -> Result<Self, BuildError> {
        let name = format!("blocks.{layer}");
        Ok(Self {
            norm1: LayerNorm::declare(declaration, &format!("{name}.norm1"), width)?,
            mix: Linear::declare(declaration, &format!("{name}.attention.mix"), width, 3 * width, DEVIATION)?,
            project: Linear::declare(declaration, &format!("{name}.attention.project"), width, width, residual)?,
            norm2: LayerNorm::declare(declaration, &format!("{name}.norm2"), width)?,
            expand: Linear::declare(declaration, &format!("{name}.mlp.expand"), width, 4 * width, DEVIATION)?,
            contract: Linear::declare(declaration, &format!("{name}.mlp.contract"), 4 * width, width, residual)?,
            dropout: 1 + layer * DROPOUTS,
            kept: Kept::default(),
        })
    }

    /// Replaces the stream that goes in by the one that comes out.
    fn forward(
        &mut self,
        parameters: &[f32],
        attention: Attention,
        shared: &mut Shared,
        stream: &mut Vec<f32>,
        dropout: &mut Dropout,
    ) {
        let len = stream.len();
        let Shared { panels, branch, .. } = shared;
        let kept = &mut self.kept;
        kept.input.resize(len, 0.0);
        std::mem::swap(stream, &mut kept.input);
        kept.normal1.resize(len, 0.0);
        self.norm1.forward(parameters, &kept.input, &mut kept.statistics1, &mut kept.normal1);
        kept.mixed.resize(3 * len, 0.0);
        self.mix.forward(parameters, panels, &kept.normal1, &mut kept.mixed);
        kept.attend(attention, panels, &mut shared.attention, dropout, self.dropout);
        kept.stream.resize(len, 0.0);
        self.project.forward(parameters, panels, &kept.attended, &mut kept.stream);
        dropout.draw(self.dropout + 1, len, &mut kept.mask1);
        scale(&mut kept.stream, &kept.mask1);
        add(&mut kept.stream, &kept.input);
        kept.normal2.resize(len, 0.0);
        self.norm2.forward(parameters, &kept.stream, &mut kept.statistics2, &mut kept.normal2);
        kept.inner.resize(4 * len, 0.0);
        kept.slopes.resize(4 * len, 0.0);
        self.expand.forward(parameters, panels, &kept.normal2, &mut kept.inner);
        gelu(&mut kept.inner, &mut kept.slopes);
        branch.resize(len, 0.0);
        self.contract.forward(parameters, panels, &kept.inner, branch);
        dropout.draw(self.dropout + 2, len, &mut kept.mask2);
        scale(branch, &kept.mask2);
        stream.copy_from_slice(&kept.stream);
        add(stream, branch);
    }

    /// Replaces the gradient of the stream that comes out by that of the one that goes in.
    fn backward(
        &mut self,
        parameters: &[f32],
        attention: Attention,
        shared: &mut Shared,
        stream: &mut [f32],
        gradient: &mut [f32],
    ) {
        let Shared { panels, rows, narrow, branch, mixed, wide, attention: room } = shared;
        let kept = &self.kept;
        let len = stream.len();
        narrow.resize(len, 0.0);
        mixed.resize(3 * len, 0.0);
        wide.resize(4 * len, 0.0);
        masked(branch, stream, &kept.mask2);
        self.contract.weight_gradient(panels, &kept.inner, branch, gradient);
        self.contract.input_gradient(parameters, panels, branch, wide);
        scale(wide, &kept.slopes);
        self.expand.weight_gradient(panels, &kept.normal2, wide, gradient);
        self.expand.input_gradient(parameters, panels, wide, narrow);
        self.norm2.backward(parameters, rows, [&kept.stream, narrow], &kept.statistics2, gradient, stream);
        masked(branch, stream, &kept.mask1);
        self.project.weight_gradient(panels, &kept.attended, branch, gradient);
        self.project.input_gradient(parameters, panels, branch, narrow);
        kept.attend_backward(attention, panels, room, narrow, mixed);
        self.mix.weight_gradient(panels, &kept.normal1, mixed, gradient);
        self.mix.input_gradient(parameters, panels, mixed, narrow);
        self.norm1.backward(parameters, rows, [&kept.input, narrow], &kept.statistics1, gradient, stream);
    }
}

/// `to = values · mask`, or a copy where there is none.
fn masked(to: &mut Vec<f32>, values: &[f32], mask: &[f32]) {
    to.clear();
    to.extend_from_slice(values);
    scale(to, mask);
}

impl Kept {
    /// Attention of each sample.
    fn attend(
        &mut self,
        attention: Attention,
        panels: &mut Panels,
        room: &mut AttentionRoom,
        dropout: &mut Dropout,
        layer: usize,
    ) {
        let (len, per_sample) = (self.input.len(), attention.context * attention.width);
        let weights = attention.weights_len();
        self.attended.resize(len, 0.0);
        self.weights.resize(len / per_sample * weights, 0.0);
        dropout.draw(layer, self.weights.len(), &mut self.weights_mask);
        let samples = self.weights.chunks_exact_mut(weights).zip(self.attended.chunks_exact_mut(per_sample));
        for (sample, (to, attended)) in samples.enumerate() {
            let mixed = &self.mixed[3 * sample * per_sample..][..3 * per_sample];
            let mask = self.weights_mask.get(sample * weights..(sample + 1) * weights).unwrap_or_default();
            attention.forward(panels, room, mixed, mask, to, attended);
        }
    }

    /// The gradient of queries, keys and values into `mixed_gradient`, from that of what was attended to.
    fn attend_backward(
        &self,
        attention: Attention,
        panels: &mut Panels,
        room: &mut AttentionRoom,
        attended_gradient: &[f32],
        mixed_gradient: &mut [f32],
    ) {
        let per_sample = attention.context * attention.width;
        let weights = attention.weights_len();
        let samples = attended_gradient.chunks_exact(per_sample).zip(mixed_gradient.chunks_exact_mut(3 * per_sample));
        for (sample, (from, to)) in samples.enumerate() {
            let mixed = &self.mixed[3 * sample * per_sample..][..3 * per_sample];
            let mask = self.weights_mask.get(sample * weights..(sample + 1) * weights).unwrap_or_default();
            let weights = &self.weights[sample * weights..][..weights];
            attention.backward(panels, room, [mixed, mask, weights], from, to);
        }
    }
}

impl Model for Gpt {
    fn dropouts(&self) -> usize {
        1 + self.blocks.len() * DROPOUTS
    }

    fn gradient(
        &mut self,
        parameters: &[f32],
        batch: &Batch<'_>,
        mut dropout: Dropout,
        gradient: &mut [f32],
    ) -> EvaluationSums {
        let Inputs::Tokens(tokens) = batch.inputs else { unreachable!("the form of a gpt gives tokens") };
        let mut sums = EvaluationSums::default();
        for (tokens, targets) in batch.parts(tokens, self.attention.context) {
            self.forward(parameters, tokens, &mut dropout);
            sums.add(cross_entropy(&mut self.logits, targets));
            self.backward(parameters, tokens, gradient);
        }
        sums
    }

    fn evaluate(&mut self, parameters: &[f32], batch: &Batch<'_>) -> EvaluationSums {
        let Inputs::Tokens(tokens) = batch.inputs else { unreachable!("the form of a gpt gives tokens") };
        let mut sums = EvaluationSums::default();
        for (tokens, targets) in batch.parts(tokens, self.attention.context) {
            self.forward(parameters, tokens, &mut Dropout::none());
            sums.add(cross_entropy(&mut self.logits, targets));
        }
        sums
    }
}
