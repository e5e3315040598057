//! Computes one member's sums of a step, one rank at a time, so that whoever drives it can look at its inbox in between. Pure but for the
//! function it is given.
//!
//! Ranks are summed along the canonical tree: the stack never holds more than log2(n) + 1 gradients of one node. Sums that were
//! finished before a step was begun anew in another membership are used again: by determinism they are the same.

use events_schema::Rank;
use events_schema::tree::Node;
use std::sync::Arc;
use workers_engine::Sums;
use workers_session::NodeSums;

/// A tree node's summed gradient and scalars.
#[derive(Debug, Clone)]
pub struct Partial {
    /// The node and its scalars.
    pub sums: NodeSums,
    /// The summed gradient; shared with whoever sends it.
    pub gradient: Arc<Vec<f32>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    /// Use a sum that is already there.
    Take(Node),
    Compute(Rank),
    /// Add the upper of the stack to the one below.
    Join(Node),
    /// The top of the stack is a whole node of the cover.
    Finish,
}

/// Buffers of one gradient each, used again instead of allocated again.
#[derive(Debug, Default)]
pub struct Pool {
    free: Vec<Vec<f32>>,
    /// Most buffers in use by the work at once, for the memory budget.
    pub in_use_max: usize,
}

/// More free buffers than any member's stack needs would only hold memory.
const FREE_MAX: usize = 4;

impl Pool {
    fn take(&mut self, len: usize) -> Vec<f32> {
        let mut buffer = self.free.pop().unwrap_or_default();
        buffer.resize(len, 0.0);
        buffer
    }

    /// Gives a buffer back if nobody else holds it.
    pub fn give(&mut self, buffer: Arc<Vec<f32>>) {
        if let (Ok(buffer), true) = (Arc::try_unwrap(buffer), self.free.len() < FREE_MAX) {
            self.free.push(buffer);
        }
    }
}

/// The rest of a member's part of a step.
#[derive(Debug)]
pub struct Work {
    parameter_count: usize,
    /// In reverse.
    operations: Vec<Operation>,
    stack: Vec<Partial>,
    kept: Vec<Partial>,
}

impl Work {
    /// The work for `ranks` (sorted) of `workers`. `kept` are sums of the same step; those that fit are used.
    #[must_use]
    pub fn new(workers: u16, ranks: &[Rank], parameter_count: usize, kept: Vec<Partial>) -> Self {
        let mut operations = Vec::new();
        for node in Node::root(workers).cover(ranks) {
            plan(node, &kept, &mut operations);
            operations.push(Operation::Finish);
        }
        operations.reverse();
        let used = |p: &Partial| operations.contains(&Operation::Take(p.sums.node));
        let kept = kept.into_iter().filter(used).collect();
        Self { parameter_count, operations, stack: Vec::new(), kept }
    }

    /// Whether nothing is left to do.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.operations.is_empty()
    }

    /// Ranks whose gradients are still to be computed.
    pub fn ranks_left(&self) -> impl Iterator<Item = Rank> + '_ {
        self.operations.iter().rev().filter_map(|o| if let Operation::Compute(rank) = o { Some(*rank) } else { None })
    }

    /// Computes at most one rank's gradient with `gradient` (which overwrites its buffer) and does the additions that follow it.
    /// Gives a node of the cover when one is whole.
    pub fn advance<E>(
        &mut self,
        pool: &mut Pool,
        gradient: &mut impl FnMut(Rank, &mut [f32]) -> Result<Sums, E>,
    ) -> Result<Option<Partial>, E> {
        let mut computed = false;
        while let Some(&operation) = self.operations.last() {
            match operation {
                Operation::Compute(_) if computed => return Ok(None),
                Operation::Compute(rank) => {
                    let mut buffer = pool.take(self.parameter_count);
                    pool.in_use_max = pool.in_use_max.max(self.stack.len() + 1);
                    let sums = gradient(rank, &mut buffer)?;
                    let sums =
                        NodeSums { node: Node { first: rank.0, count: 1 }, weight: sums.weight, loss: sums.loss };
                    self.stack.push(Partial { sums, gradient: Arc::new(buffer) });
                    computed = true;
                }
                Operation::Take(node) => {
                    let found = self.kept.iter().position(|p| p.sums.node == node);
                    self.stack.extend(found.map(|i| self.kept.swap_remove(i)));
                }
                Operation::Join(node) => self.join(node, pool),
                Operation::Finish => {
                    self.operations.pop();
                    return Ok(self.stack.pop());
                }
            }
            self.operations.pop();
        }
        Ok(None)
    }

    fn join(&mut self, node: Node, pool: &mut Pool) {
        if let (Some(right), Some(left)) = (self.stack.pop(), self.stack.pop()) {
            // A buffer still being sent is copied rather than changed under the sender.
            let mut gradient = Arc::unwrap_or_clone(left.gradient);
            add(&mut gradient, &right.gradient);
            pool.give(right.gradient);
            self.stack
                .push(Partial { sums: NodeSums::join(node, left.sums, right.sums), gradient: Arc::new(gradient) });
        }
    }

    /// What is already summed, for the same step in another membership.
    #[must_use]
    pub fn into_partials(self) -> Vec<Partial> {
        self.stack.into_iter().chain(self.kept).collect()
    }
}

fn plan(node: Node, kept: &[Partial], operations: &mut Vec<Operation>) {
    if kept.iter().any(|p| p.sums.node == node) {
        operations.push(Operation::Take(node));
    } else if let Some((left, right)) = node.children() {
        plan(left, kept, operations);
        plan(right, kept, operations);
        operations.push(Operation::Join(node));
    } else {
        operations.push(Operation::Compute(Rank(node.first)));
    }
}

/// `left[i] += right[i]`: the one addition that the canonical sum consists of.
pub fn add(left: &mut [f32], right: &[f32]) {
    left.iter_mut().zip(right).for_each(|(l, r)| *l += r);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::convert::Infallible;

    fn value(rank: Rank) -> f32 {
        1.0 / f32::from(rank.0 + 3)
    }

    fn run(work: &mut Work, pool: &mut Pool, computed: &mut Vec<u16>) -> Vec<Partial> {
        let mut gradient = |rank: Rank, buffer: &mut [f32]| {
            computed.push(rank.0);
            buffer.fill(value(rank));
            Ok::<_, Infallible>(Sums { weight: 1.0, loss: f64::from(rank.0) })
        };
        let mut partials = Vec::new();
        while !work.is_finished() {
            partials.extend(work.advance(pool, &mut gradient).unwrap());
        }
        partials
    }

    #[test]
    fn sums_along_the_tree_with_log2_buffers() {
        let (mut pool, mut computed) = (Pool::default(), Vec::new());
        let ranks: Vec<Rank> = (0..8).map(Rank).collect();
        let partials = run(&mut Work::new(8, &ranks, 2, Vec::new()), &mut pool, &mut computed);
        let v = |i: u16| value(Rank(i));
        let expected = ((v(0) + v(1)) + (v(2) + v(3))) + ((v(4) + v(5)) + (v(6) + v(7)));
        assert_eq!(partials.len(), 1);
        assert_eq!(partials[0].gradient[0].to_bits(), expected.to_bits());
        assert_eq!((partials[0].sums.weight, partials[0].sums.loss), (8.0, 28.0));
        assert_eq!(pool.in_use_max, 4, "log2(8) + 1");
        assert_eq!(computed, (0..8).collect::<Vec<_>>());
    }

    #[test]
    fn a_step_begun_anew_computes_only_what_is_missing() {
        let (mut pool, mut computed) = (Pool::default(), Vec::new());
        let four: Vec<Rank> = (0..4).map(Rank).collect();
        let kept = run(&mut Work::new(8, &four, 2, Vec::new()), &mut pool, &mut computed);
        let mut second = Work::new(8, &(4..8).map(Rank).collect::<Vec<_>>(), 2, Vec::new());
        let mut gradient = |rank: Rank, buffer: &mut [f32]| {
            buffer.fill(value(rank));
            Ok::<_, Infallible>(Sums { weight: 1.0, loss: f64::from(rank.0) })
        };
        (0..3).for_each(|_| assert!(second.advance(&mut pool, &mut gradient).unwrap().is_none()));
        let kept = kept.into_iter().chain(second.into_partials()).collect();
        computed.clear();
        let all: Vec<Rank> = (0..8).map(Rank).collect();
        let partials = run(&mut Work::new(8, &all, 2, kept), &mut pool, &mut computed);
        let fresh = run(&mut Work::new(8, &all, 2, Vec::new()), &mut pool, &mut Vec::new());
        assert_eq!(computed, vec![7]);
        assert_eq!(partials[0].gradient[1].to_bits(), fresh[0].gradient[1].to_bits());
        assert_eq!(partials[0].sums, fresh[0].sums);
    }

    #[test]
    fn hosted_ranks_apart_give_one_sum_per_node() {
        let ranks = [0, 1, 5].map(Rank);
        let partials = run(&mut Work::new(6, &ranks, 1, Vec::new()), &mut Pool::default(), &mut Vec::new());
        let nodes: Vec<Node> = partials.iter().map(|p| p.sums.node).collect();
        assert_eq!(nodes, vec![Node { first: 0, count: 2 }, Node { first: 5, count: 1 }]);
    }
}
