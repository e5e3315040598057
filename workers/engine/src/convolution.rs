//! Convolution of one image and its two gradients, without columns: the innermost loops read the padded image where it lies.
//!
//! Activations are `[height, width, channels]` with channels rounded up to whole vectors ([`padded`]), the rest zeros; what a convolution reads lies in a
//! frame of zeros one pixel wide ([`Framed`]). So for one row of the kernel the inputs of an output pixel are one *run* of elements beside each other.
//! A tile of up to six output pixels times two vectors of output channels stays in registers while all runs are read. Sums run over the kernel's rows,
//! its columns, then channels; weight gradients over the pixels of an image, then over images. The image's size decides how rows are cut into tiles, and
//! no sum is cut by that.

use crate::lanes::{LANES, Lanes, add, load, padded};

/// Most output pixels of a tile: with two vectors of channels 12 accumulators.
const TILE_PIXELS: usize = 6;
/// Width of the frame: half of the largest kernel, rounded down.
const FRAME: usize = 1;

/// An image in a frame of zeros, which nothing writes.
#[derive(Default)]
pub(crate) struct Framed {
    values: Vec<f32>,
    height: usize,
    width: usize,
    channels: usize,
}

impl Framed {
    /// An image without memory: [`Framed::allocate`] gives it some, so that a model can be declared without.
    pub(crate) fn new([height, width]: [usize; 2], channels: usize) -> Self {
        Self { values: Vec::new(), height, width, channels }
    }

    /// Makes room for the image, which is zeros until it is written.
    pub(crate) fn allocate(&mut self) {
        self.values.resize((self.height + 2 * FRAME) * self.row_step(), 0.0);
    }

    /// Pixels inside the frame.
    pub(crate) fn pixels(&self) -> usize {
        self.height * self.width
    }

    /// Elements inside the frame.
    pub(crate) fn len(&self) -> usize {
        self.pixels() * self.channels
    }

    /// Elements of a row inside the frame.
    pub(crate) fn row_len(&self) -> usize {
        self.width * self.channels
    }

    fn row_step(&self) -> usize {
        (self.width + 2 * FRAME) * self.channels
    }

    fn start(&self, row: usize) -> usize {
        (row + FRAME) * self.row_step() + FRAME * self.channels
    }

    /// The rows inside the frame.
    pub(crate) fn rows(&self) -> impl Iterator<Item = &[f32]> {
        (0..self.height).map(|row| &self.values[self.start(row)..][..self.row_len()])
    }

    /// [`Framed::rows`] to write.
    pub(crate) fn rows_mut(&mut self) -> impl Iterator<Item = &mut [f32]> {
        let (first, step, len) = (self.start(0), self.row_step(), self.row_len());
        self.values[first..].chunks_mut(step).take(self.height).map(move |row| &mut row[..len])
    }
}

/// What a convolution's sizes are; `kernel` is 1 or 3, padded by half its size, `stride` 1 or 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Height and width of the input.
    pub(crate) input: [usize; 2],
    /// Channels of the input.
    pub(crate) inputs: usize,
    /// Channels that a pixel of the input takes in memory.
    pub(crate) input_step: usize,
    /// Channels of the output.
    pub(crate) outputs: usize,
    pub(crate) kernel: usize,
    pub(crate) stride: usize,
}

impl Shape {
    /// Height and width of the output.
    pub(crate) fn output(&self) -> [usize; 2] {
        self.input.map(|size| size.div_ceil(self.stride))
    }

    fn output_step(&self) -> usize {
        padded(self.outputs)
    }

    /// Elements of a run of the forward pass.
    fn run_len(&self) -> usize {
        self.kernel * self.input_step
    }

    /// Where the first output pixel's runs begin in the framed input.
    fn runs(&self) -> Vec<Run> {
        let row_step = (self.input[1] + 2 * FRAME) * self.input_step;
        let corner = (FRAME - self.kernel / 2) * (row_step + self.input_step);
        (0..self.kernel).map(|row| Run { offset: corner + row * row_step, len: self.run_len() }).collect()
    }

    /// Where outputs read, and where they go in an output without a frame.
    fn walk(&self) -> Walk {
        let [rows, columns] = self.output();
        let row_step = (self.input[1] + 2 * FRAME) * self.input_step;
        Walk {
            rows,
            columns,
            in_row: self.stride * row_step,
            in_pixel: self.stride * self.input_step,
            out_first: 0,
            out_row: columns * self.output_step(),
            out_pixel: self.output_step(),
        }
    }

    /// The gradient of the input as convolutions of the output's gradient, one for each remainder of a pixel's row and column by the stride: the kernel's
    /// rows and columns that reach such pixels, in the order in which the pixels they come from lie.
    fn phases(&self) -> Vec<Phase> {
        let phase = |row: usize, column: usize| {
            let (rows, columns) = (self.reaching(row), self.reaching(column));
            let &(_, row_first) = rows.first()?;
            let &(_, column_first) = columns.first()?;
            let step = self.output_step();
            let row_step = (self.output()[1] + 2 * FRAME) * step;
            let len = columns.len() * step;
            let offset = |index: usize| (row_first + index) * row_step + column_first * step;
            let runs = (0..rows.len()).map(|index| Run { offset: offset(index), len }).collect();
            let [height, width] = self.input;
            let walk = Walk {
                rows: (height - row.min(height)).div_ceil(self.stride),
                columns: (width - column.min(width)).div_ceil(self.stride),
                in_row: row_step,
                in_pixel: step,
                out_first: (row * width + column) * self.input_step,
                out_row: self.stride * width * self.input_step,
                out_pixel: self.stride * self.input_step,
            };
            let taps = |taps: &[(usize, usize)]| taps.iter().map(|&(tap, _)| tap).collect();
            Some(Phase { rows: taps(&rows), columns: taps(&columns), runs, walk })
        };
        let remainders = 0..self.stride;
        remainders.clone().flat_map(|row| remainders.clone().filter_map(move |column| phase(row, column))).collect()
    }

    /// Rows (or columns) of the kernel that reach input pixels with this remainder, with how far from the frame's edge the output lies that each comes
    /// from, for the first such pixel; in the order of the latter.
    fn reaching(&self, remainder: usize) -> Vec<(usize, usize)> {
        let half = self.kernel / 2;
        // Output = (input + half − tap) / stride, and the frame is added.
        let from = |tap: usize| {
            let distance = remainder + half + FRAME * self.stride - tap;
            distance.is_multiple_of(self.stride).then_some((tap, distance / self.stride))
        };
        (0..self.kernel).rev().filter_map(from).collect()
    }
}

/// Elements beside each other that one output pixel reads.
#[derive(Debug, Clone, Copy)]
struct Run {
    offset: usize,
    len: usize,
}

/// How output pixels lie and read.
#[derive(Debug, Clone, Copy)]
struct Walk {
    rows: usize,
    columns: usize,
    in_row: usize,
    in_pixel: usize,
    out_first: usize,
    out_row: usize,
    out_pixel: usize,
}

/// One part of the gradient of the input.
struct Phase {
    rows: Vec<usize>,
    columns: Vec<usize>,
    runs: Vec<Run>,
    walk: Walk,
}

/// A convolution with what it needs between calls: weights in the order in which they are read, and the sum of their gradients.
pub(crate) struct Convolution {
    shape: Shape,
    runs: Vec<Run>,
    forward: Vec<f32>,
    phases: Vec<(Phase, Vec<f32>)>,
    /// `[run, element of the run, output channels]`.
    sums: Vec<f32>,
}

impl Convolution {
    /// One without weights: [`Convolution::begin`] sets them.
    pub(crate) fn new(shape: Shape) -> Self {
        debug_assert!(matches!((shape.kernel, shape.stride), (1 | 3, 1 | 2)), "sizes that the frame is not made for");
        // The gradient of what takes no whole vectors, the images themselves, nobody asks for.
        let phases = if shape.input_step.is_multiple_of(LANES) { shape.phases() } else { Vec::new() };
        let phases = phases.into_iter().map(|phase| (phase, Vec::new())).collect();
        Self { shape, runs: shape.runs(), forward: Vec::new(), phases, sums: Vec::new() }
    }

    /// Takes over weights `[out, in, kernel, kernel]`; `learns`: gradients will be asked for.
    pub(crate) fn begin(&mut self, weights: &[f32], learns: bool) {
        let Shape { inputs, input_step, outputs, kernel, .. } = self.shape;
        let weight = |output: usize, input: usize, row: usize, column: usize| {
            let inside = output < outputs && input < inputs;
            if inside { weights[((output * inputs + input) * kernel + row) * kernel + column] } else { 0.0 }
        };
        let output_step = self.shape.output_step();
        let rows: Vec<usize> = (0..kernel).collect();
        pack(&mut self.forward, output_step, [&rows, &rows], input_step, |output, input, row, column| {
            weight(output, input, row, column)
        });
        if learns {
            self.sums.clear();
            self.sums.resize(kernel * self.shape.run_len() * output_step, 0.0);
            for (phase, packed) in &mut self.phases {
                pack(packed, input_step, [&phase.rows, &phase.columns], output_step, |input, output, row, column| {
                    weight(output, input, row, column)
                });
            }
        }
    }

    /// The output of one image, `[height, width, channels]` without a frame.
    pub(crate) fn forward(&self, input: &Framed, output: &mut [f32]) {
        let step = self.shape.output_step();
        convolve(&input.values, &self.runs, &self.forward, step, &self.shape.walk(), false, output);
    }

    /// Writes the gradient of the input, or adds it; without a frame. The input's channels must take whole vectors. Pixels that no output reads, with a
    /// kernel smaller than the stride, are left alone: there it has to be added.
    pub(crate) fn input_gradient(&self, output_gradient: &Framed, input_gradient: &mut [f32], adds: bool) {
        debug_assert!(!self.phases.is_empty(), "an input of whole vectors");
        for (phase, weights) in &self.phases {
            let Phase { runs, walk, .. } = phase;
            convolve(&output_gradient.values, runs, weights, self.shape.input_step, walk, adds, input_gradient);
        }
    }

    /// Adds the gradient of the weights by one image.
    pub(crate) fn weight_gradient(&mut self, input: &Framed, output_gradient: &Framed) {
        let step = self.shape.output_step();
        let walk = self.shape.walk();
        let pixels =
            Pixels { walk, gradient_row: output_gradient.row_step(), gradient_first: output_gradient.start(0), step };
        for (run, sums) in self.runs.iter().zip(self.sums.chunks_exact_mut(self.shape.run_len() * step)) {
            for_tiles(run.len, |first, tile| {
                let sums = &mut sums[first * step..][..tile * step];
                let input = &input.values[run.offset + first..];
                match tile {
                    1 => pixels.add::<1>(input, &output_gradient.values, sums),
                    2 => pixels.add::<2>(input, &output_gradient.values, sums),
                    3 => pixels.add::<3>(input, &output_gradient.values, sums),
                    4 => pixels.add::<4>(input, &output_gradient.values, sums),
                    5 => pixels.add::<5>(input, &output_gradient.values, sums),
                    _ => pixels.add::<6>(input, &output_gradient.values, sums),
                }
            });
        }
    }

    /// Writes the summed gradient of the weights, `[out, in, kernel, kernel]`.
    pub(crate) fn end(&self, gradient: &mut [f32]) {
        let Shape { inputs, input_step, kernel, .. } = self.shape;
        let step = self.shape.output_step();
        for (output, gradient) in gradient.chunks_exact_mut(inputs * kernel * kernel).enumerate() {
            for (index, gradient) in gradient.iter_mut().enumerate() {
                let (input, row, column) = (index / (kernel * kernel), index / kernel % kernel, index % kernel);
                *gradient = self.sums[((row * kernel + column) * input_step + input) * step + output];
            }
        }
    }
}

/// Writes weights in the order [`convolve`] reads them in: two vectors of written channels at a time (one, where one is left), then the kernel's rows and
/// columns, then the channels that are read.
fn pack(
    to: &mut Vec<f32>,
    written: usize,
    [rows, columns]: [&[usize]; 2],
    read: usize,
    weight: impl Fn(usize, usize, usize, usize) -> f32,
) {
    to.clear();
    for first in (0..written).step_by(2 * LANES) {
        let last = written.min(first + 2 * LANES);
        for &row in rows {
            for &column in columns {
                for channel in 0..read {
                    to.extend((first..last).map(|output| weight(output, channel, row, column)));
                }
            }
        }
    }
}

/// Cuts `count` into as few tiles as [`TILE_PIXELS`] allows, as equal as may be, the larger first.
fn for_tiles(count: usize, mut tile: impl FnMut(usize, usize)) {
    let tiles = count.div_ceil(TILE_PIXELS);
    let mut first = 0;
    for index in 0..tiles {
        let size = (count - first).div_ceil(tiles - index);
        tile(first, size);
        first += size;
    }
}

/// The sums of weights times runs for every pixel of a walk and `channels` channels, a multiple of [`LANES`].
fn convolve(
    input: &[f32],
    runs: &[Run],
    weights: &[f32],
    channels: usize,
    walk: &Walk,
    adds: bool,
    output: &mut [f32],
) {
    let len: usize = runs.iter().map(|run| run.len).sum();
    let (weights, _) = weights.as_chunks::<LANES>();
    for first in (0..channels).step_by(2 * LANES) {
        let panel = &weights[first / LANES * len..];
        for row in 0..walk.rows {
            let from = &input[row * walk.in_row..];
            for_tiles(walk.columns, |column, tile| {
                let from = &from[column * walk.in_pixel..];
                let at = walk.out_first + row * walk.out_row + column * walk.out_pixel + first;
                let to = &mut output[at..];
                let tile = Tile { runs, in_pixel: walk.in_pixel, out_pixel: walk.out_pixel, adds, pixels: tile };
                if channels - first > LANES {
                    tile.write::<2>(from, &panel[..2 * len], to);
                } else {
                    tile.write::<1>(from, &panel[..len], to);
                }
            });
        }
    }
}

/// Output pixels beside each other that are computed at once.
struct Tile<'a> {
    runs: &'a [Run],
    in_pixel: usize,
    out_pixel: usize,
    adds: bool,
    pixels: usize,
}

impl Tile<'_> {
    fn write<const VECTORS: usize>(&self, input: &[f32], weights: &[[f32; LANES]], output: &mut [f32]) {
        match self.pixels {
            1 => self.write_pixels::<1, VECTORS>(input, weights, output),
            2 => self.write_pixels::<2, VECTORS>(input, weights, output),
            3 => self.write_pixels::<3, VECTORS>(input, weights, output),
            4 => self.write_pixels::<4, VECTORS>(input, weights, output),
            5 => self.write_pixels::<5, VECTORS>(input, weights, output),
            _ => self.write_pixels::<6, VECTORS>(input, weights, output),
        }
    }

    fn write_pixels<const PIXELS: usize, const VECTORS: usize>(
        &self,
        input: &[f32],
        weights: &[[f32; LANES]],
        output: &mut [f32],
    ) {
        let sums = self.sums::<PIXELS, VECTORS>(input, weights.as_chunks().0);
        for (pixel, sums) in sums.iter().enumerate() {
            let output = output[pixel * self.out_pixel..][..VECTORS * LANES].as_chunks_mut::<LANES>().0;
            for (output, sum) in output.iter_mut().zip(sums) {
                *output = if self.adds { load(output) + *sum } else { *sum }.to_array();
            }
        }
    }

    /// A function of its own: what is written is indexed by a loop, and would be kept in memory instead of registers beside it.
    #[inline(never)]
    fn sums<const PIXELS: usize, const VECTORS: usize>(
        &self,
        input: &[f32],
        mut weights: &[[[f32; LANES]; VECTORS]],
    ) -> [[Lanes; VECTORS]; PIXELS] {
        let mut sums = [[Lanes::ZERO; VECTORS]; PIXELS];
        for run in self.runs {
            let len = run.len;
            let pixels: [&[f32]; PIXELS] =
                std::array::from_fn(|pixel| &input[pixel * self.in_pixel + run.offset..][..len]);
            let (here, rest) = weights.split_at(len);
            for at in 0..len {
                let weights: [Lanes; VECTORS] = std::array::from_fn(|vector| load(&here[at][vector]));
                for (sums, pixel) in sums.iter_mut().zip(pixels) {
                    let value = Lanes::splat(pixel[at]);
                    for (sum, weight) in sums.iter_mut().zip(weights) {
                        *sum = value.mul_add(weight, *sum);
                    }
                }
            }
            weights = rest;
        }
        sums
    }
}

/// The pixels over which a weight's gradient is summed.
struct Pixels {
    walk: Walk,
    gradient_row: usize,
    gradient_first: usize,
    step: usize,
}

impl Pixels {
    /// For `ROWS` elements of a run: `sums[element, output channel] += Σ input · gradient`.
    fn add<const ROWS: usize>(&self, input: &[f32], gradient: &[f32], sums: &mut [f32]) {
        for first in (0..self.step).step_by(2 * LANES) {
            if self.step - first > LANES {
                self.add_channels::<ROWS, 2>(input, gradient, first, sums);
            } else {
                self.add_channels::<ROWS, 1>(input, gradient, first, sums);
            }
        }
    }

    fn add_channels<const ROWS: usize, const VECTORS: usize>(
        &self,
        input: &[f32],
        gradient: &[f32],
        first: usize,
        sums: &mut [f32],
    ) {
        let found = self.sums::<ROWS, VECTORS>(input, &gradient[self.gradient_first + first..]);
        for (found, sums) in found.iter().zip(sums.chunks_exact_mut(self.step)) {
            let found = found.map(Lanes::to_array);
            add(&mut sums[first..first + VECTORS * LANES], found.as_flattened());
        }
    }

    /// A function of its own, like that of [`Tile`].
    #[inline(never)]
    fn sums<const ROWS: usize, const VECTORS: usize>(
        &self,
        input: &[f32],
        gradient: &[f32],
    ) -> [[Lanes; VECTORS]; ROWS] {
        let Walk { rows, columns, in_row, in_pixel, .. } = self.walk;
        let mut sums = [[Lanes::ZERO; VECTORS]; ROWS];
        for row in 0..rows {
            let input = &input[row * in_row..][..(columns - 1) * in_pixel + ROWS];
            let gradient = &gradient[row * self.gradient_row..][..(columns - 1) * self.step + VECTORS * LANES];
            let mut at = 0;
            for gradient in gradient.chunks(self.step) {
                // Never missing, and cheaper to look at than to panic about.
                let Some(input) = input.get(at..).and_then(<[f32]>::first_chunk::<ROWS>) else { break };
                at = at.wrapping_add(in_pixel);
                let Some(gradient) = gradient.as_chunks::<LANES>().0.first_chunk::<VECTORS>() else { break };
                let gradient = gradient.each_ref().map(load);
                for (sums, input) in sums.iter_mut().zip(input) {
                    let input = Lanes::splat(*input);
                    for (sum, gradient) in sums.iter_mut().zip(gradient) {
                        *sum = input.mul_add(gradient, *sum);
                    }
                }
            }
        }
        sums
    }
}

#[cfg(test)]
#[path = "convolution_tests.rs"]
mod tests;
