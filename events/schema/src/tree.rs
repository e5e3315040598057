//! The canonical tree over ranks `0..W`, and which member hosts which ranks. (Buddy allocation.)
//!
//! Gradients are summed along this one tree whatever the placement, so the sum's bits never depend on who hosts what.
//! Pure arithmetic: controller, executors and tests compute the same answer from the same numbers.

use crate::Rank;
use minicbor::{Decode, Encode};
use serde::Serialize;

/// A node of the canonical tree: ranks `first .. first + count`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode, Serialize)]
pub struct Node {
    /// Lowest rank below it.
    #[n(0)]
    pub first: u16,
    /// Ranks below it; at least 1.
    #[n(1)]
    pub count: u16,
}

impl Node {
    /// The root of the tree over `workers` ranks (at least 1).
    #[must_use]
    pub fn root(workers: u16) -> Self {
        Self { first: 0, count: workers.max(1) }
    }

    /// The two halves, split at the largest power of two below the count; `None` for a single rank.
    #[must_use]
    pub fn children(self) -> Option<(Node, Node)> {
        if self.count < 2 {
            return None;
        }
        let left = 1 << (u16::BITS - 1 - (self.count - 1).leading_zeros());
        Some((Node { first: self.first, count: left }, Node { first: self.first + left, count: self.count - left }))
    }

    /// The ranks below this node, in order.
    pub fn ranks(self) -> impl Iterator<Item = Rank> {
        (self.first..self.first + self.count).map(Rank)
    }

    /// The largest nodes that lie wholly inside `hosted` (sorted ranks), left to right: what one member sums by itself.
    #[must_use]
    pub fn cover(self, hosted: &[Rank]) -> Vec<Node> {
        let inside = self.ranks().filter(|r| hosted.binary_search(r).is_ok()).count();
        if inside == usize::from(self.count) {
            return vec![self];
        }
        match self.children() {
            Some((left, right)) if inside > 0 => {
                let mut nodes = left.cover(hosted);
                nodes.extend(right.cover(hosted));
                nodes
            }
            _ => Vec::new(),
        }
    }
}

/// Sums leaves along the tree below `node`: `leaf` gives a node's value if it is known, `add` joins left and right.
/// `None` when a value is missing.
pub fn fold<T>(node: Node, leaf: &mut impl FnMut(Node) -> Option<T>, add: &mut impl FnMut(T, T) -> T) -> Option<T> {
    if let Some(value) = leaf(node) {
        return Some(value);
    }
    let (left, right) = node.children()?;
    let left = fold(left, leaf, add)?;
    let right = fold(right, leaf, add)?;
    Some(add(left, right))
}

/// Places `workers` ranks on `members` members (1 ..= workers): sizes differ by at most one, larger shares first, each share
/// made of few tree nodes. Member i gets the i-th list, sorted.
///
/// Shares are cut into powers of two and handed out largest first from the tree's free blocks. This always succeeds: when a
/// block of size b is asked for, every larger request is served, so what is free is a multiple of b plus the tree's own
/// blocks below b, which together are smaller than b; hence some block of at least b is free.
#[must_use]
pub fn place(workers: u16, members: u16) -> Vec<Vec<Rank>> {
    let (workers, members) = (workers.max(1), members.clamp(1, workers.max(1)));
    let share = |i: u16| workers / members + u16::from(i < workers % members);
    let mut wanted: Vec<(u16, u16)> = (0..members)
        .flat_map(|i| (0..u16::BITS).map(|b| 1 << b).filter(move |b| share(i) & b != 0).map(move |b| (b, i)))
        .collect();
    wanted.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut free: Vec<Node> = Vec::new();
    let mut first = 0;
    for bit in (0..u16::BITS).rev().map(|b| 1u16 << b).filter(|b| workers & b != 0) {
        free.push(Node { first, count: bit });
        first += bit;
    }
    let mut placed = vec![Vec::new(); usize::from(members)];
    for (size, member) in wanted {
        let best = (0..free.len()).filter(|&i| free[i].count >= size).min_by_key(|&i| (free[i].count, free[i].first));
        let Some(best) = best else { continue };
        let mut node = free.swap_remove(best);
        while node.count > size {
            let half = node.count / 2;
            free.push(Node { first: node.first + half, count: half });
            node.count = half;
        }
        placed[usize::from(member)].extend(node.ranks());
    }
    placed.iter_mut().for_each(|ranks| ranks.sort_unstable());
    placed
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_tree_splits_at_the_largest_power_of_two_below() {
        let halves = |n| Node::root(n).children().map(|(l, r)| (l.count, r.count));
        assert_eq!(
            [2, 3, 4, 5, 6, 7, 8, 9].map(halves),
            [(1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (4, 3), (4, 4), (8, 1)].map(Some)
        );
        assert_eq!(halves(1), None);
    }

    proptest! {
        #[test]
        fn every_rank_is_placed_once_in_few_nodes(workers in 1u16..=256, seed in 0u16..256) {
            let members = 1 + seed % workers;
            let placed = place(workers, members);
            prop_assert_eq!(placed.len(), usize::from(members));
            let mut all: Vec<Rank> = placed.iter().flatten().copied().collect();
            all.sort_unstable();
            prop_assert_eq!(all, (0..workers).map(Rank).collect::<Vec<_>>());
            for ranks in &placed {
                let cover = Node::root(workers).cover(ranks);
                prop_assert!(cover.len() <= (ranks.len() as u16).count_ones() as usize);
                prop_assert!(ranks.len() == usize::from(workers / members) || ranks.len() == usize::from(workers / members + 1));
            }
        }

        #[test]
        fn the_sum_is_the_same_for_every_placement(workers in 1u16..=64, members in 1u16..=64, values in proptest::collection::vec(-1e6f32..1e6, 64)) {
            let root = Node::root(workers);
            let alone = fold(root, &mut |n| (n.count == 1).then(|| values[usize::from(n.first)]), &mut |a, b| a + b);
            let placed = place(workers, members.min(workers));
            let partials: std::collections::BTreeMap<Node, f32> = placed.iter().flat_map(|ranks| root.cover(ranks)).map(|node| {
                (node, fold(node, &mut |n| (n.count == 1).then(|| values[usize::from(n.first)]), &mut |a, b| a + b).unwrap())
            }).collect();
            let together = fold(root, &mut |n| partials.get(&n).copied(), &mut |a, b| a + b);
            prop_assert_eq!(alone.map(f32::to_bits), together.map(f32::to_bits));
        }
    }
}
