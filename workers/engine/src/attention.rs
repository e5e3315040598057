//! Causal scaled dot-product attention of one sequence (Vaswani et al. 2017) and its gradient.
//!
//! Scores are computed in bands of rows, and a band only as far as its last position sees: what lies in the future is never computed. Queries, keys and
//! values are read where one product left them, `[position, (queries, keys, values) × heads × head width]`.

use crate::lanes::{dot, scale};
use crate::loss::softmax;
use crate::product::{Begin, Matrix, Panels, multiply};

/// Positions of a band: whole tiles of the matrix product, few enough that little of the future is touched.
const BAND: usize = 48;

/// Sizes of attention over one sequence.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attention {
    /// Positions of a sequence.
    pub(crate) context: usize,
    /// Heads, which share the width.
    pub(crate) heads: usize,
    /// Width of all heads together.
    pub(crate) width: usize,
}

/// Memory for one head's matrix, kept between calls.
#[derive(Default)]
pub(crate) struct AttentionRoom {
    dropped: Vec<f32>,
    gradient: Vec<f32>,
}

/// Rows of one head that are computed at once: `first..last`, which see positions up to `last`.
#[derive(Clone, Copy)]
struct Band {
    head: usize,
    first: usize,
    last: usize,
}

impl Attention {
    /// Elements of the attention weights of one sequence, `[heads, context, context]`. Future ones are never written.
    pub(crate) fn weights_len(&self) -> usize {
        self.heads * self.context * self.context
    }

    fn head_width(&self) -> usize {
        self.width / self.heads
    }

    fn factor(&self) -> f32 {
        1.0 / (self.head_width() as f32).sqrt()
    }

    fn bands(self) -> impl Iterator<Item = Band> {
        let of_head = move |head| {
            let band = move |first: usize| Band { head, first, last: self.context.min(first + BAND) };
            (0..self.context).step_by(BAND).map(band)
        };
        (0..self.heads).flat_map(of_head)
    }

    /// Where a head's queries (0), keys (1) or values (2) of a position lie.
    fn place(&self, part: usize, head: usize, position: usize) -> usize {
        (position * 3 + part) * self.width + head * self.head_width()
    }

    /// A head's queries, keys or values at some positions.
    fn part<'a>(&self, mixed: &'a [f32], part: usize, head: usize, positions: [usize; 2]) -> Matrix<'a> {
        let [first, last] = positions;
        Matrix::part(&mixed[self.place(part, head, first)..], [last - first, self.head_width()], 3 * self.width)
    }

    /// A head's columns of an output, or of its gradient.
    fn columns<'a>(&self, output: &'a [f32], band: Band) -> Matrix<'a> {
        let start = band.first * self.width + band.head * self.head_width();
        Matrix::part(&output[start..], [band.last - band.first, self.head_width()], self.width)
    }

    /// A band of the attention weights.
    fn band<'a>(&self, weights: &'a [f32], band: Band) -> Matrix<'a> {
        Matrix::part(&weights[self.start(band)..], [band.last - band.first, band.last], self.context)
    }

    fn start(&self, band: Band) -> usize {
        (band.head * self.context + band.first) * self.context
    }

    /// Writes weights and output. `mask` has a factor for each weight, or is empty.
    pub(crate) fn forward(
        &self,
        panels: &mut Panels,
        room: &mut AttentionRoom,
        mixed: &[f32],
        mask: &[f32],
        weights: &mut [f32],
        output: &mut [f32],
    ) {
        for band in self.bands() {
            let Band { head, first, last } = band;
            let start = self.start(band);
            let (queries, keys) = (self.part(mixed, 0, head, [first, last]), self.part(mixed, 1, head, [0, last]));
            multiply(panels, &mut weights[start..], self.context, Begin::Zero, queries, keys.transposed());
            for position in first..last {
                let row = &mut weights[start + (position - first) * self.context..][..last];
                softmax(&mut row[..=position], self.factor());
                row[position + 1..].fill(0.0);
            }
            let seen = self.dropped(room, weights, mask, band);
            let to = &mut output[first * self.width + head * self.head_width()..];
            multiply(panels, to, self.width, Begin::Zero, seen, self.part(mixed, 2, head, [0, last]));
        }
    }

    /// A band's weights with the mask in them.
    fn dropped<'a>(&self, room: &'a mut AttentionRoom, weights: &'a [f32], mask: &[f32], band: Band) -> Matrix<'a> {
        if mask.is_empty() {
            return self.band(weights, band);
        }
        let start = self.start(band);
        let len = (band.last - band.first) * self.context;
        room.dropped.clear();
        room.dropped.extend_from_slice(&weights[start..start + len]);
        scale(&mut room.dropped, &mask[start..start + len]);
        Matrix::part(&room.dropped, [band.last - band.first, band.last], self.context)
    }

    /// Writes the gradient of queries, keys and values from that of the output.
    pub(crate) fn backward(
        &self,
        panels: &mut Panels,
        room: &mut AttentionRoom,
        [mixed, mask, weights]: [&[f32]; 3],
        output_gradient: &[f32],
        mixed_gradient: &mut [f32],
    ) {
        mixed_gradient.fill(0.0);
        let step = 3 * self.width;
        for band in self.bands() {
            let Band { head, first, last } = band;
            let gradient = self.columns(output_gradient, band);
            let seen = self.dropped(room, weights, mask, band);
            let values = &mut mixed_gradient[self.place(2, head, 0)..];
            multiply(panels, values, step, Begin::Sum, seen.transposed(), gradient);
            let values = self.part(mixed, 2, head, [0, last]).transposed();
            room.gradient.resize(BAND * self.context, 0.0);
            multiply(panels, &mut room.gradient, self.context, Begin::Zero, gradient, values);
            self.through_softmax(&mut room.gradient, weights, mask, band);
            let scores = Matrix::part(&room.gradient, [last - first, last], self.context);
            let queries = &mut mixed_gradient[self.place(0, head, first)..];
            multiply(panels, queries, step, Begin::Zero, scores, self.part(mixed, 1, head, [0, last]));
            let keys = &mut mixed_gradient[self.place(1, head, 0)..];
            multiply(panels, keys, step, Begin::Sum, scores.transposed(), self.part(mixed, 0, head, [first, last]));
        }
    }

    /// Turns the gradient of a band's weights into that of its scores.
    fn through_softmax(&self, gradient: &mut [f32], weights: &[f32], mask: &[f32], band: Band) {
        let start = self.start(band);
        for (index, gradient) in gradient.chunks_exact_mut(self.context).take(band.last - band.first).enumerate() {
            let gradient = &mut gradient[..band.last];
            let at = start + index * self.context;
            if let Some(mask) = mask.get(at..at + band.last) {
                scale(gradient, mask);
            }
            let weights = &weights[at..at + band.last];
            let along = dot(gradient, weights);
            for (gradient, weight) in gradient.iter_mut().zip(weights) {
                *gradient = (*gradient - along) * (weight * self.factor());
            }
        }
    }
}
