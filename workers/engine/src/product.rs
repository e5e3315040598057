//! The matrix product, in blocks that fit the caches of any host this build runs on.
//!
//! Both operands are copied into panels, which lie in the order the innermost loop reads them in; that loop keeps a tile of the result in registers
//! (Goto and van de Geijn 2008). Block sizes are constants: an element's sum is cut at multiples of [`DEPTH`] and runs upwards within, on every host,
//! whatever its caches are. Nothing here may depend on anything but the shapes.

use crate::lanes::{LANES, Lanes, load};

/// Rows of the tile in registers.
const TILE_ROWS: usize = 6;
/// Columns of the tile in registers, two vectors: with 6 rows 12 accumulators, which leaves 4 of 16 registers for operands.
const TILE_COLUMNS: usize = 2 * LANES;
/// Inner dimension of a block: a panel of 16 columns takes 24 KiB, so that it stays in a first-level cache of 32.
const DEPTH: usize = 384;
/// Rows of a block, a multiple of the tile's: 144 KiB of the second level.
const BAND_ROWS: usize = 96;
/// Columns of a block, a multiple of the tile's: 384 KiB of the second level.
const BAND_COLUMNS: usize = 256;

/// A matrix somewhere in a slice. One of its steps is 1.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    row_step: usize,
    column_step: usize,
}

impl<'a> Matrix<'a> {
    /// Rows one after the other.
    pub(crate) fn new(values: &'a [f32], [rows, columns]: [usize; 2]) -> Self {
        Self::part(values, [rows, columns], columns)
    }

    /// Rows that begin `row_step` elements apart.
    pub(crate) fn part(values: &'a [f32], [rows, columns]: [usize; 2], row_step: usize) -> Self {
        Self { values, rows, columns, row_step, column_step: 1 }
    }

    /// The same with rows and columns exchanged.
    pub(crate) fn transposed(self) -> Self {
        Self { rows: self.columns, columns: self.rows, row_step: self.column_step, column_step: self.row_step, ..self }
    }
}

/// What a result's elements begin with.
#[derive(Clone, Copy)]
pub(crate) enum Begin<'a> {
    /// 0: what was there is overwritten.
    Zero,
    /// What is there.
    Sum,
    /// The element of this row in the same column: a bias.
    Row(&'a [f32]),
}

/// Memory for the copied operands of one block, kept between calls.
#[derive(Default)]
pub(crate) struct Panels {
    left: Vec<f32>,
    right: Vec<f32>,
}

/// `out = begin + left · right`; rows of `out` begin `out_step` elements apart.
pub(crate) fn multiply(
    panels: &mut Panels,
    out: &mut [f32],
    out_step: usize,
    begin: Begin<'_>,
    left: Matrix<'_>,
    right: Matrix<'_>,
) {
    debug_assert_eq!(left.columns, right.rows, "inner dimensions differ");
    let (rows, columns, depth) = (left.rows, right.columns, left.columns);
    panels.left.resize(BAND_ROWS * DEPTH, 0.0);
    panels.right.resize(BAND_COLUMNS * DEPTH, 0.0);
    let right = right.transposed();
    for column in (0..columns).step_by(BAND_COLUMNS) {
        let wide = BAND_COLUMNS.min(columns - column);
        for at in (0..depth).step_by(DEPTH) {
            let deep = DEPTH.min(depth - at);
            let begin = if at == 0 { begin } else { Begin::Sum };
            copy_panels::<TILE_COLUMNS>(&mut panels.right, &right, [column, wide], [at, deep]);
            for row in (0..rows).step_by(BAND_ROWS) {
                let high = BAND_ROWS.min(rows - row);
                copy_panels::<TILE_ROWS>(&mut panels.left, &left, [row, high], [at, deep]);
                let block = Block { row, high, column, wide, deep };
                block.multiply(out, out_step, begin, &panels.left, &panels.right);
            }
        }
    }
}

/// Copies rows `first..first + count` at inner positions `at..at + deep` into panels of `WIDTH` rows: panel by panel, position by position, the panel's
/// rows beside each other. Rows that fill no panel are followed by zeros.
fn copy_panels<const WIDTH: usize>(
    to: &mut [f32],
    from: &Matrix<'_>,
    [first, count]: [usize; 2],
    [at, deep]: [usize; 2],
) {
    for (panel, to) in to.chunks_exact_mut(WIDTH * deep).take(count.div_ceil(WIDTH)).enumerate() {
        let here = WIDTH.min(count - panel * WIDTH);
        let start = (first + panel * WIDTH) * from.row_step + at * from.column_step;
        let to = to.as_chunks_mut::<WIDTH>().0;
        if from.row_step == 1 {
            for (position, to) in to.iter_mut().enumerate() {
                let begin = start + position * from.column_step;
                let from = &from.values[begin..begin + here];
                if let Ok(whole) = from.try_into() {
                    *to = whole;
                } else {
                    to[..here].copy_from_slice(from);
                    to[here..].fill(0.0);
                }
            }
        } else {
            copy_turned(to, from.values, start, from.row_step, here);
        }
    }
}

/// A panel of `here` rows whose inner positions lie beside each other: eight by eight, turned in registers.
fn copy_turned<const WIDTH: usize>(
    to: &mut [[f32; WIDTH]],
    values: &[f32],
    start: usize,
    row_step: usize,
    here: usize,
) {
    let deep = to.len();
    let zeros = [0.0; LANES];
    for first in (0..WIDTH).step_by(LANES) {
        let width = LANES.min(WIDTH - first);
        let row = |index: usize| {
            let begin = start + (first + index) * row_step;
            if first + index < here { &values[begin..begin + deep] } else { &[] }
        };
        let rows: [&[f32]; LANES] = std::array::from_fn(row);
        for (group, to) in to.chunks_mut(LANES).enumerate() {
            let at = group * LANES;
            if to.len() == LANES {
                let read = |row: &[f32]| *row.get(at..).and_then(|row| row.first_chunk()).unwrap_or(&zeros);
                let turned = Lanes::transpose(rows.map(|row| Lanes::new(read(row))));
                for (to, column) in to.iter_mut().zip(turned) {
                    to[first..first + width].copy_from_slice(&column.to_array()[..width]);
                }
            } else {
                for (position, to) in to.iter_mut().enumerate() {
                    for (to, row) in to[first..first + width].iter_mut().zip(rows) {
                        *to = row.get(at + position).copied().unwrap_or(0.0);
                    }
                }
            }
        }
    }
}

/// One block of the result and the length of its sums.
struct Block {
    row: usize,
    high: usize,
    column: usize,
    wide: usize,
    deep: usize,
}

impl Block {
    fn multiply(&self, out: &mut [f32], out_step: usize, begin: Begin<'_>, left: &[f32], right: &[f32]) {
        for (panel, right) in right.chunks_exact(TILE_COLUMNS * self.deep).enumerate() {
            let Some(wide) = self.wide.checked_sub(panel * TILE_COLUMNS).filter(|&wide| wide > 0) else { break };
            let column = self.column + panel * TILE_COLUMNS;
            let right = right.as_chunks::<TILE_COLUMNS>().0;
            for (tile, left) in left.chunks_exact(TILE_ROWS * self.deep).enumerate() {
                let Some(high) = self.high.checked_sub(tile * TILE_ROWS).filter(|&high| high > 0) else { break };
                let left = left.as_chunks::<TILE_ROWS>().0;
                let sums = match (high, wide > LANES) {
                    (1, false) => sums::<1, 1>(left, right),
                    (2, false) => sums::<2, 1>(left, right),
                    (3, false) => sums::<3, 1>(left, right),
                    (4, false) => sums::<4, 1>(left, right),
                    (5, false) => sums::<5, 1>(left, right),
                    (_, false) => sums::<6, 1>(left, right),
                    (1, true) => sums::<1, 2>(left, right),
                    (2, true) => sums::<2, 2>(left, right),
                    (3, true) => sums::<3, 2>(left, right),
                    (4, true) => sums::<4, 2>(left, right),
                    (5, true) => sums::<5, 2>(left, right),
                    (_, true) => sums::<6, 2>(left, right),
                };
                for (index, sums) in sums.iter().take(high).enumerate() {
                    let at = (self.row + tile * TILE_ROWS + index) * out_step + column;
                    write(&mut out[at..at + wide.min(TILE_COLUMNS)], *sums, begin, column);
                }
            }
        }
    }
}

/// The sums of a tile of `ROWS` rows and `VECTORS` vectors of columns. Every sum runs over the inner positions upwards, one fused operation each.
#[inline(never)]
fn sums<const ROWS: usize, const VECTORS: usize>(
    left: &[[f32; TILE_ROWS]],
    right: &[[f32; TILE_COLUMNS]],
) -> [[Lanes; 2]; TILE_ROWS] {
    let mut sums = [[Lanes::ZERO; VECTORS]; ROWS];
    for (left, right) in left.iter().zip(right) {
        let right = right.as_chunks::<LANES>().0;
        let right: [Lanes; VECTORS] = std::array::from_fn(|vector| load(&right[vector]));
        for (sums, left) in sums.iter_mut().zip(left) {
            let left = Lanes::splat(*left);
            for (sum, right) in sums.iter_mut().zip(right) {
                *sum = left.mul_add(right, *sum);
            }
        }
    }
    let mut all = [[Lanes::ZERO; 2]; TILE_ROWS];
    for (all, sums) in all.iter_mut().zip(sums) {
        all[..VECTORS].copy_from_slice(&sums);
    }
    all
}

/// Writes one row of a tile.
#[inline(always)]
fn write(out: &mut [f32], sums: [Lanes; 2], begin: Begin<'_>, column: usize) {
    let begun = |index: usize, there: f32| match begin {
        Begin::Zero => 0.0,
        Begin::Sum => there,
        Begin::Row(row) => row[column + index],
    };
    if let Ok(out) = <&mut [f32; TILE_COLUMNS]>::try_from(&mut *out) {
        let out = out.as_chunks_mut::<LANES>().0;
        for (vector, (out, sums)) in out.iter_mut().zip(sums).enumerate() {
            let begun = match begin {
                Begin::Zero => Lanes::ZERO,
                Begin::Sum => load(out),
                Begin::Row(row) => {
                    let from = column + vector * LANES;
                    row[from..].first_chunk().map_or(Lanes::ZERO, load)
                }
            };
            *out = (begun + sums).to_array();
        }
    } else {
        let sums = sums.map(Lanes::to_array);
        for (index, (out, sum)) in out.iter_mut().zip(sums.as_flattened()).enumerate() {
            *out = begun(index, *out) + sum;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn scattered(count: usize, seed: u32) -> Vec<f32> {
        let at = |index: u32| (index.wrapping_add(seed)).wrapping_mul(2_654_435_761) as f32 / 2f32.powi(31) - 1.0;
        (1..=count as u32).map(at).collect()
    }

    /// Rows, columns and inner dimension; whether each operand lies transposed, what the result begins with.
    fn agrees([rows, columns, depth]: [usize; 3], [left_turned, right_turned]: [bool; 2], begin: u8, seed: u32) {
        let left = scattered(rows * depth, seed);
        let right = scattered(depth * columns, seed ^ 77);
        let bias = scattered(columns, 5);
        let step = columns + 3;
        let mut out = scattered(rows * step, 9);
        let before = out.clone();
        let turn = |values, turned, [high, wide]: [usize; 2]| {
            if turned { Matrix::new(values, [wide, high]).transposed() } else { Matrix::new(values, [high, wide]) }
        };
        let start = [Begin::Zero, Begin::Sum, Begin::Row(&bias)][usize::from(begin % 3)];
        let (l, r) = (turn(&left, left_turned, [rows, depth]), turn(&right, right_turned, [depth, columns]));
        multiply(&mut Panels::default(), &mut out, step, start, l, r);
        let at = |matrix: &Matrix<'_>, row: usize, column: usize| {
            f64::from(matrix.values[row * matrix.row_step + column * matrix.column_step])
        };
        let begun = |index: usize, column: usize| [0.0, before[index], bias[column]][usize::from(begin % 3)];
        for row in 0..rows {
            for column in 0..step {
                let index = row * step + column;
                if column >= columns {
                    assert_eq!(out[index], before[index], "nothing is written beside the result");
                    continue;
                }
                let exact: f64 = f64::from(begun(index, column))
                    + (0..depth).map(|k| at(&l, row, k) * at(&r, k, column)).sum::<f64>();
                let error = (f64::from(out[index]) - exact).abs();
                assert!(error < 1e-5 * (1.0 + depth as f64), "{row}, {column} of {rows} × {columns}, {depth}: {error}");
            }
        }
    }

    proptest! {
        #[test]
        fn products_of_any_shape_agree_with_the_definition(
            rows in 1usize..30, columns in 1usize..40, depth in 1usize..30, turned in any::<[bool; 2]>(), begin in 0u8..3, seed in any::<u32>(),
        ) {
            agrees([rows, columns, depth], turned, begin, seed);
        }
    }

    #[test]
    fn products_that_take_several_blocks_agree_with_the_definition() {
        for turned in [[false, false], [true, true]] {
            agrees([BAND_ROWS + 7, BAND_COLUMNS + 21, DEPTH + 9], turned, 1, 3);
        }
    }
}
