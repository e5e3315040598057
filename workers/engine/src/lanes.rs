//! Eight `f32` at a time: loads, sums in a fixed order, and the exponential. The width is that of the build's SIMD level and the same everywhere,
//! so nothing here asks the host what it could do, and no function of a C library is called.

use wide::{f32x8, u32x8};

/// Eight values that one instruction works on.
pub(crate) type Lanes = f32x8;

/// Values in [`Lanes`].
pub(crate) const LANES: usize = 8;

/// A group of a slice as a vector.
#[inline(always)]
pub(crate) fn load(values: &[f32; LANES]) -> Lanes {
    Lanes::new(*values)
}

/// The whole groups of a slice.
#[inline(always)]
pub(crate) fn groups(values: &[f32]) -> &[[f32; LANES]] {
    values.as_chunks().0
}

/// [`groups`] to write.
#[inline(always)]
pub(crate) fn groups_mut(values: &mut [f32]) -> &mut [[f32; LANES]] {
    values.as_chunks_mut().0
}

/// `count` rounded up to whole groups.
pub(crate) fn padded(count: usize) -> usize {
    count.next_multiple_of(LANES)
}

/// The sum: element i goes to accumulator i mod 8, accumulators are added in pairs, what fills no group comes last.
#[inline]
pub(crate) fn sum(values: &[f32]) -> f32 {
    let (whole, rest) = values.as_chunks();
    let lanes = whole.iter().fold(Lanes::ZERO, |sum, group| sum + load(group));
    rest.iter().fold(across(lanes), |sum, value| sum + value)
}

/// The sum of products, in the order of [`sum`].
#[inline]
pub(crate) fn dot(left: &[f32], right: &[f32]) -> f32 {
    let ((left, left_rest), (right, right_rest)) = (left.as_chunks(), right.as_chunks());
    let lanes = left.iter().zip(right).fold(Lanes::ZERO, |sum, (l, r)| load(l).mul_add(load(r), sum));
    left_rest.iter().zip(right_rest).fold(across(lanes), |sum, (l, r)| l.mul_add(*r, sum))
}

/// The sum of squared distances from `centre`, in the order of [`sum`].
#[inline]
pub(crate) fn squares_around(values: &[f32], centre: f32) -> f32 {
    let (whole, rest) = values.as_chunks();
    let lanes = whole.iter().fold(Lanes::ZERO, |sum, group| {
        let distance = load(group) - Lanes::splat(centre);
        distance.mul_add(distance, sum)
    });
    rest.iter().fold(across(lanes), |sum, value| (value - centre).mul_add(value - centre, sum))
}

/// The sum of the eight, in pairs, pairs of pairs, and so on.
#[inline(always)]
pub(crate) fn across(lanes: Lanes) -> f32 {
    let [a, b, c, d, e, f, g, h] = lanes.to_array();
    ((a + b) + (c + d)) + ((e + f) + (g + h))
}

/// The largest of the values; of none the smallest number there is. What is no number is passed over.
#[inline]
pub(crate) fn highest(values: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let (whole, rest) = values.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for group in whole {
        for (lane, &value) in lanes.iter_mut().zip(group) {
            *lane = larger(*lane, value);
        }
    }
    lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |highest, &value| larger(highest, value))
}

/// `to += values`.
#[inline]
pub(crate) fn add(to: &mut [f32], values: &[f32]) {
    for (to, value) in to.iter_mut().zip(values) {
        *to += value;
    }
}

/// `to *= values`.
#[inline]
pub(crate) fn scale(to: &mut [f32], values: &[f32]) {
    for (to, value) in to.iter_mut().zip(values) {
        *to *= value;
    }
}

/// Adds the rows of a matrix to `to`, which is as long as one.
pub(crate) fn add_rows(to: &mut [f32], matrix: &[f32]) {
    for row in matrix.chunks_exact(to.len()) {
        add(to, row);
    }
}

/// The exponential, to within two units in the last place. Between the exponents of the smallest and the largest normal number; what lies outside is
/// moved to the nearer of them, so results are neither 0 nor infinite. What is no number stays so.
#[inline(always)]
pub(crate) fn exp(x: Lanes) -> Lanes {
    const LOWEST: f32 = -87.336_54;
    const HIGHEST: f32 = 88.376_26;
    // Added and taken away again, it rounds to an integer, whose bits then are the lowest of the sum.
    const ROUNDS: f32 = 12_582_912.0;
    // ln 2 in two parts, the first with so few bits that its products are exact (Cody and Waite 1980).
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    // Cephes' minimax polynomial of (eˣ − 1 − x) / x² on ± ln 2 / 2.
    const TERMS: [f32; 6] = [1.987_569_1e-4, 1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_65, 0.5];
    let within = x.fast_max(Lanes::splat(LOWEST)).fast_min(Lanes::splat(HIGHEST));
    let shifted = within.mul_add(Lanes::LOG2_E, Lanes::splat(ROUNDS));
    let power = shifted - Lanes::splat(ROUNDS);
    let rest = power.mul_neg_add(Lanes::splat(LN_2_HIGH), within);
    let rest = power.mul_neg_add(Lanes::splat(LN_2_LOW), rest);
    let mut curve = Lanes::splat(TERMS[0]);
    for term in &TERMS[1..] {
        curve = curve.mul_add(rest, Lanes::splat(*term));
    }
    let value = curve.mul_add(rest * rest, rest + Lanes::ONE);
    let factor = Lanes::from_bits((shifted.to_bits() << 23u32) + u32x8::splat(127 << 23));
    x.is_nan().select(x, value * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_is_right_to_two_units_in_the_last_place() {
        for at in -8_700..8_800 {
            let x = at as f32 * 0.01 + 0.003;
            let found = exp(Lanes::splat(x)).to_array()[3];
            let exact = f64::from(x).exp();
            assert!((f64::from(found) - exact).abs() <= exact * 2.5e-7, "exp({x}) = {found}, not {exact}");
        }
        let edges = exp(Lanes::new([0.0, -0.0, f32::NAN, f32::NEG_INFINITY, 1e9, -1e9, -87.0, 88.0])).to_array();
        assert_eq!((edges[0], edges[1]), (1.0, 1.0));
        assert!(edges[2].is_nan());
        assert!(edges[3] > 0.0 && edges[3] < 1.3e-38 && edges[5] < 1.3e-38 && edges[4].is_finite());
    }

    #[test]
    fn sums_and_maxima_take_every_element_whatever_the_length() {
        for len in 0..40usize {
            let values: Vec<f32> = (0..len).map(|at| (at * 7 % 11) as f32 - 4.0).collect();
            let exact: f32 = values.iter().sum();
            assert_eq!((sum(&values), dot(&values, &vec![2.0; len])), (exact, 2.0 * exact));
            assert_eq!(squares_around(&values, 1.0), values.iter().map(|v| (v - 1.0) * (v - 1.0)).sum::<f32>());
            assert_eq!(highest(&values), values.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        }
        assert_eq!(highest(&[1.0, f32::NAN, 3.0]), 3.0);
    }
}
