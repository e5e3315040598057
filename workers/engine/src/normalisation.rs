//! Normalisation of rows (LayerNorm) and of groups of channels of an image (GroupNorm), with their gradients in one piece each.
//!
//! Nothing survives a call but what the gradient of the same input needs; statistics are of one row or one image alone, unlike BatchNorm's.

use crate::convolution::Framed;
use crate::lanes::{LANES, Lanes, add, dot, groups, groups_mut, load, padded, squares_around, sum};

/// Added to the variance (PyTorch's default).
const EPSILON: f32 = 1e-5;

/// What a normalised row's gradient needs: the mean, and one over the deviation.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Statistics {
    mean: f32,
    factor: f32,
}

impl Statistics {
    /// Of `count` values.
    fn new(mean: f32, squares: f32, count: usize) -> Self {
        Self { mean, factor: 1.0 / (squares / count as f32 + EPSILON).sqrt() }
    }
}

/// `weight · (row − mean) / deviation + bias` for each row of `input`, into `output`; keeps the rows' statistics.
pub(crate) fn normalise_rows(
    input: &[f32],
    [weight, bias]: [&[f32]; 2],
    statistics: &mut Vec<Statistics>,
    output: &mut [f32],
) {
    let width = weight.len();
    statistics.clear();
    for (row, output) in input.chunks_exact(width).zip(output.chunks_exact_mut(width)) {
        let mean = sum(row) / width as f32;
        let found = Statistics::new(mean, squares_around(row, mean), width);
        for (((output, value), weight), bias) in output.iter_mut().zip(row).zip(weight).zip(bias) {
            *output = ((value - found.mean) * found.factor).mul_add(*weight, *bias);
        }
        statistics.push(found);
    }
}

/// Memory of [`rows_gradient`], kept between calls.
#[derive(Default)]
pub(crate) struct RowsRoom {
    normal: Vec<f32>,
    weighted: Vec<f32>,
}

/// Adds the gradient of `input` to `input_gradient`, and those of weight and bias to theirs.
pub(crate) fn rows_gradient(
    room: &mut RowsRoom,
    [input, gradient, weight]: [&[f32]; 3],
    statistics: &[Statistics],
    [weight_gradient, bias_gradient]: [&mut [f32]; 2],
    input_gradient: &mut [f32],
) {
    let width = weight.len();
    let (normal, weighted) = (&mut room.normal, &mut room.weighted);
    normal.resize(width, 0.0);
    weighted.resize(width, 0.0);
    let rows = input.chunks_exact(width).zip(gradient.chunks_exact(width)).zip(input_gradient.chunks_exact_mut(width));
    for (((input, gradient), input_gradient), found) in rows.zip(statistics) {
        for (normal, input) in normal.iter_mut().zip(input) {
            *normal = (input - found.mean) * found.factor;
        }
        for ((weighted, gradient), weight) in weighted.iter_mut().zip(gradient).zip(weight) {
            *weighted = gradient * weight;
        }
        for ((to, gradient), normal) in weight_gradient.iter_mut().zip(gradient).zip(normal.iter()) {
            *to = gradient.mul_add(*normal, *to);
        }
        add(bias_gradient, gradient);
        let mean = sum(weighted) / width as f32;
        let along = dot(weighted, normal) / width as f32;
        for ((to, weighted), normal) in input_gradient.iter_mut().zip(weighted.iter()).zip(normal.iter()) {
            *to = (weighted - mean - normal * along).mul_add(found.factor, *to);
        }
    }
}

/// GroupNorm of one image at a time: normalises each group of channels to mean 0 and variance 1, then scales and shifts by channel (Wu and He 2018).
/// What it keeps of an image lasts until the next one.
pub(crate) struct Grouped {
    pixels: usize,
    channels: usize,
    groups: usize,
    /// By channel; those beyond the real ones are 0, so that they stay 0 in images.
    weight: Vec<f32>,
    bias: Vec<f32>,
    mean: Vec<f32>,
    factor: Vec<f32>,
    weight_sums: Vec<f32>,
    bias_sums: Vec<f32>,
    /// By channel, of what is being computed.
    first: Vec<f32>,
    second: Vec<f32>,
    third: Vec<f32>,
}

impl Grouped {
    /// For images of so many pixels.
    pub(crate) fn new(pixels: usize, channels: usize, groups: usize) -> Self {
        let none = || vec![0.0; padded(channels)];
        Self {
            pixels,
            channels,
            groups,
            weight: none(),
            bias: none(),
            mean: none(),
            factor: none(),
            weight_sums: none(),
            bias_sums: none(),
            first: none(),
            second: none(),
            third: none(),
        }
    }

    /// Takes over the parameters and forgets summed gradients.
    pub(crate) fn begin(&mut self, weight: &[f32], bias: &[f32]) {
        self.weight[..self.channels].copy_from_slice(weight);
        self.bias[..self.channels].copy_from_slice(bias);
        self.weight_sums.fill(0.0);
        self.bias_sums.fill(0.0);
    }

    /// Writes the summed gradients of the parameters.
    pub(crate) fn end(&self, weight: &mut [f32], bias: &mut [f32]) {
        weight.copy_from_slice(&self.weight_sums[..self.channels]);
        bias.copy_from_slice(&self.bias_sums[..self.channels]);
    }

    /// Normalises `input` into `output`; adds `beside`, if there is one; then cuts off what is negative, if `rectified`.
    pub(crate) fn forward(&mut self, input: &[f32], beside: Option<&Framed>, rectified: bool, output: &mut Framed) {
        self.measure(input);
        let steps = self.weight.len();
        // y = x · first + second
        for channel in 0..steps {
            self.first[channel] = self.weight[channel] * self.factor[channel];
            self.second[channel] = (-self.mean[channel]).mul_add(self.first[channel], self.bias[channel]);
        }
        let floor = Lanes::splat(if rectified { 0.0 } else { f32::NEG_INFINITY });
        // In this order what is no number stays so.
        let cut = |value: Lanes| value.simd_lt(floor).select(floor, value);
        let (scale, shift) = (groups(&self.first), groups(&self.second));
        let mut beside = beside.map(Framed::rows);
        let width = output.row_len();
        for (output, input) in output.rows_mut().zip(input.chunks_exact(width)) {
            let beside = beside.as_mut().and_then(Iterator::next);
            let added = |at: usize| beside.map_or(Lanes::ZERO, |row| load(&groups(row)[at]));
            let pixels = groups_mut(output).chunks_exact_mut(scale.len()).zip(groups(input).chunks_exact(scale.len()));
            for (pixel, (output, input)) in pixels.enumerate() {
                for (index, (output, input)) in output.iter_mut().zip(input).enumerate() {
                    let value = load(input).mul_add(load(&scale[index]), load(&shift[index]));
                    let value = value + added(pixel * scale.len() + index);
                    *output = cut(value).to_array();
                }
            }
        }
    }

    /// Mean and factor of every channel's group.
    fn measure(&mut self, input: &[f32]) {
        let width = self.channels / self.groups;
        let count = self.pixels * width;
        self.mean.fill(0.0);
        by_channel(&mut self.first, input, |value, _| value, &self.mean);
        for (mean, sums) in self.mean.chunks_exact_mut(width).zip(self.first.chunks_exact(width)).take(self.groups) {
            mean.fill(sums.iter().sum::<f32>() / count as f32);
        }
        by_channel(&mut self.first, input, |value, mean| (value - mean) * (value - mean), &self.mean);
        for (factor, squares) in
            self.factor.chunks_exact_mut(width).zip(self.first.chunks_exact(width)).take(self.groups)
        {
            factor.fill(Statistics::new(0.0, squares.iter().sum(), count).factor);
        }
    }

    /// The gradient of `input`, written into `input_gradient`, from that of the output; where `rectified`, the output, was cut off, `gradient` is made 0
    /// first.
    pub(crate) fn gradient(
        &mut self,
        input: &[f32],
        gradient: &mut [f32],
        rectified: Option<&Framed>,
        input_gradient: &mut Framed,
    ) {
        if let Some(output) = rectified {
            let width = output.row_len();
            for (gradient, output) in gradient.chunks_exact_mut(width).zip(output.rows()) {
                for (gradient, output) in groups_mut(gradient).iter_mut().zip(groups(output)) {
                    *gradient = load(output).simd_gt(Lanes::ZERO).select(load(gradient), Lanes::ZERO).to_array();
                }
            }
        }
        self.sum_gradients(input, gradient);
        let (a, b, c) = (groups(&self.first), groups(&self.second), groups(&self.third));
        let width = input_gradient.row_len();
        let rows = input_gradient.rows_mut().zip(input.chunks_exact(width)).zip(gradient.chunks_exact(width));
        for ((output, input), gradient) in rows {
            let pixels = groups_mut(output).chunks_exact_mut(a.len()).zip(groups(input).chunks_exact(a.len()));
            for ((output, input), gradient) in pixels.zip(groups(gradient).chunks_exact(a.len())) {
                for (index, ((output, input), gradient)) in output.iter_mut().zip(input).zip(gradient).enumerate() {
                    let rest = load(input).mul_add(load(&b[index]), load(&c[index]));
                    *output = load(gradient).mul_add(load(&a[index]), rest).to_array();
                }
            }
        }
    }

    /// Adds to the parameters' gradients, and leaves the factors of the input's: gradient · first + input · second + third.
    fn sum_gradients(&mut self, input: &[f32], gradient: &[f32]) {
        let width = self.channels / self.groups;
        let count = (self.pixels * width) as f32;
        by_channel(&mut self.first, gradient, |value, _| value, &self.mean);
        by_channel_both(&mut self.second, gradient, input, &self.mean);
        for channel in 0..self.weight.len() {
            self.second[channel] *= self.factor[channel];
            self.bias_sums[channel] += self.first[channel];
            self.weight_sums[channel] += self.second[channel];
        }
        for group in 0..self.groups {
            let channels = group * width..(group + 1) * width;
            let weighted = |sums: &[f32]| dot(&self.weight[channels.clone()], &sums[channels.clone()]) / count;
            let (mean, along) = (weighted(&self.first), weighted(&self.second));
            for channel in channels {
                let factor = self.factor[channel];
                self.first[channel] = self.weight[channel] * factor;
                self.second[channel] = -factor * factor * along;
                self.third[channel] = factor * (factor * along * self.mean[channel] - mean);
            }
        }
        // Channels beyond the real ones have neither gradient nor input: their factors may be anything finite but for the last.
        self.third[self.channels..].fill(0.0);
    }
}

/// Sums over pixels by channel of what `term` makes of each value and its channel's `centre`.
#[inline(always)]
fn by_channel(sums: &mut [f32], values: &[f32], term: impl Fn(Lanes, Lanes) -> Lanes, centre: &[f32]) {
    let step = sums.len() / LANES;
    for (at, (sums, centre)) in groups_mut(sums).iter_mut().zip(groups(centre)).enumerate() {
        let centre = load(centre);
        // Four sums at once, as an addition takes longer than a load.
        let mut lanes = [Lanes::ZERO; 4];
        let (whole, rest) = groups(values).split_at(groups(values).len() / (4 * step) * (4 * step));
        for pixels in whole.chunks_exact(4 * step) {
            for (index, lane) in lanes.iter_mut().enumerate() {
                *lane += term(load(&pixels[index * step + at]), centre);
            }
        }
        for (lane, pixel) in lanes.iter_mut().zip(rest.chunks_exact(step)) {
            *lane += term(load(&pixel[at]), centre);
        }
        *sums = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])).to_array();
    }
}

/// Sums over pixels by channel of `left · (right − centre)`.
fn by_channel_both(sums: &mut [f32], left: &[f32], right: &[f32], centre: &[f32]) {
    let step = sums.len() / LANES;
    for (at, (sums, centre)) in groups_mut(sums).iter_mut().zip(groups(centre)).enumerate() {
        let centre = load(centre);
        let mut lanes = [Lanes::ZERO; 4];
        let pixels = groups(left).chunks(4 * step).zip(groups(right).chunks(4 * step));
        for (left, right) in pixels {
            let both = left.chunks_exact(step).zip(right.chunks_exact(step));
            for (lane, (left, right)) in lanes.iter_mut().zip(both) {
                *lane = load(&left[at]).mul_add(load(&right[at]) - centre, *lane);
            }
        }
        *sums = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])).to_array();
    }
}

#[cfg(test)]
#[path = "normalisation_tests.rs"]
mod tests;
