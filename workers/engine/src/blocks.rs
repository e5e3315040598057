//! Scalars over all elements of a flat vector, in an order fixed by the vector alone: blocks of 4,096, then a binary tree over
//! blocks, in f64. Whoever holds a block can sum it; the result has the same bits as if one had
//! summed everything. Also the digest of a replica.

use events_schema::Digest;

/// Elements of a block. Part of the definition of every such scalar: changing it changes models.
pub const BLOCK_LEN: usize = 4_096;

/// Accumulators within a block, so that the loop fills vector registers; element i goes to accumulator i mod 16.
const LANES: usize = 16;

/// The sum of squares of one block (at most [`BLOCK_LEN`] elements).
#[must_use]
pub fn block_squares(block: &[f32]) -> f64 {
    let mut lanes = [0f64; LANES];
    let mut chunks = block.chunks_exact(LANES);
    for chunk in &mut chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            let value = f64::from(value);
            *lane += value * value;
        }
    }
    for (lane, &value) in lanes.iter_mut().zip(chunks.remainder()) {
        let value = f64::from(value);
        *lane += value * value;
    }
    tree_sum(&lanes)
}

/// Sums along the canonical binary tree: split at the largest power of two below the count.
#[must_use]
pub fn tree_sum(values: &[f64]) -> f64 {
    match values {
        [] => 0.0,
        [value] => *value,
        _ => {
            let (left, right) = values.split_at(values.len().div_ceil(2).next_power_of_two());
            tree_sum(left) + tree_sum(right)
        }
    }
}

/// The L2 norm of a flat vector.
#[must_use]
pub fn norm(values: &[f32]) -> f64 {
    norm_of(&values.chunks(BLOCK_LEN).map(block_squares).collect::<Vec<_>>())
}

/// The L2 norm of a flat vector, by the [`block_squares`] of its blocks in order.
#[must_use]
pub fn norm_of(squares: &[f64]) -> f64 {
    libm::sqrt(tree_sum(squares))
}

/// The BLAKE3 digest of the elements' little-endian bytes, on every host.
#[must_use]
pub fn digest(values: &[f32]) -> Digest {
    let mut hasher = blake3::Hasher::new();
    // A block at a time through the cache; the inner loop compiles to a copy on little-endian hosts.
    let mut bytes = [0u8; BLOCK_LEN * 4];
    for block in values.chunks(BLOCK_LEN) {
        let bytes = &mut bytes[..block.len() * 4];
        for (bytes, value) in bytes.chunks_exact_mut(4).zip(block) {
            bytes.copy_from_slice(&value.to_le_bytes());
        }
        hasher.update(bytes);
    }
    Digest(*hasher.finalize().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The same tree, followed one node at a time.
    fn tree_sum_by_definition(values: &[f64]) -> f64 {
        if values.len() < 2 {
            return values.first().copied().unwrap_or(0.0);
        }
        let mut left = 1;
        while left * 2 < values.len() {
            left *= 2;
        }
        tree_sum_by_definition(&values[..left]) + tree_sum_by_definition(&values[left..])
    }

    proptest! {
        #[test]
        fn tree_splits_at_the_largest_power_of_two_below(values in prop::collection::vec(-1e3f64..1e3, 0..70)) {
            prop_assert_eq!(tree_sum(&values).to_bits(), tree_sum_by_definition(&values).to_bits());
        }

        #[test]
        fn norm_does_not_depend_on_who_summed_which_block(len in 0usize..30_000, cuts in prop::collection::vec(0usize..8, 0..4), seed in any::<u32>()) {
            let values: Vec<f32> = (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) ^ seed) as f32 / 4e9 - 0.5).collect();
            // Owners hold runs of whole blocks and sum theirs in any order; here from the last owner to the first.
            let blocks: Vec<&[f32]> = values.chunks(BLOCK_LEN).collect();
            let mut bounds: Vec<usize> = cuts.into_iter().map(|cut| cut.min(blocks.len())).chain([0, blocks.len()]).collect();
            bounds.sort_unstable();
            let mut squares = vec![0.0; blocks.len()];
            for owner in bounds.windows(2).rev() {
                for index in owner[0]..owner[1] {
                    squares[index] = block_squares(blocks[index]);
                }
            }
            prop_assert_eq!(libm::sqrt(tree_sum(&squares)).to_bits(), norm(&values).to_bits());
            let exact = values.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>().sqrt();
            prop_assert!((norm(&values) - exact).abs() <= 1e-9 * (1.0 + exact));
        }

        #[test]
        fn digest_is_that_of_the_little_endian_bytes(values in prop::collection::vec(any::<f32>(), 0..9_000)) {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            prop_assert_eq!(digest(&values), Digest::of(&bytes));
        }
    }
}
