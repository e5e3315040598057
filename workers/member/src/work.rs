//! Which of a member's gradients are computed next and which sums follow, one rank at a time. Only names and scalars; the gradients
//! themselves are somewhere else.
//!
//! Ranks are summed along the canonical tree: never more than log2(n) + 1 sums of one node are open at once. Sums that were
//! finished before a step was begun anew in another membership are used again: by determinism they are the same.

use events_schema::Rank;
use events_schema::tree::Node;
use std::collections::BTreeMap;
use workers_session::NodeSums;

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

/// What follows from what is computed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Followed {
    /// The sum of this node is to be made of its halves.
    Join(Node),
    /// This sum is whole: a node that this member brings to the reduction.
    Whole(NodeSums),
}

/// The rest of a member's part of a step.
#[derive(Debug, Clone)]
pub struct Work {
    /// In reverse.
    operations: Vec<Operation>,
    stack: Vec<NodeSums>,
    kept: BTreeMap<Node, NodeSums>,
}

impl Work {
    /// The work for `ranks` (sorted) of `workers`. `kept` are sums of the same step; those that fit are used, the others given back.
    #[must_use]
    pub fn new(workers: u16, ranks: &[Rank], kept: BTreeMap<Node, NodeSums>) -> (Self, Vec<Node>) {
        let mut operations = Vec::new();
        for node in Node::root(workers).cover(ranks) {
            plan(node, &kept, &mut operations);
            operations.push(Operation::Finish);
        }
        operations.reverse();
        let (kept, unused): (BTreeMap<_, _>, BTreeMap<_, _>) =
            kept.into_iter().partition(|(node, _)| operations.contains(&Operation::Take(*node)));
        (Self { operations, stack: Vec::new(), kept }, unused.into_keys().collect())
    }

    /// Whether nothing is left to do.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.operations.is_empty()
    }

    /// How many gradients are still to be computed.
    #[must_use]
    pub fn left(&self) -> usize {
        self.operations.iter().filter(|operation| matches!(operation, Operation::Compute(_))).count()
    }

    /// What follows without another gradient; nothing when one has to be computed, or all is done.
    pub fn follow(&mut self) -> Option<Followed> {
        loop {
            match *self.operations.last()? {
                Operation::Compute(_) => return None,
                Operation::Take(node) => {
                    let kept = self.kept.remove(&node);
                    self.stack.extend(kept);
                    self.operations.pop();
                }
                Operation::Join(node) => {
                    self.operations.pop();
                    if let (Some(right), Some(left)) = (self.stack.pop(), self.stack.pop()) {
                        self.stack.push(NodeSums::join(node, left, right));
                    }
                    return Some(Followed::Join(node));
                }
                Operation::Finish => {
                    self.operations.pop();
                    return self.stack.pop().map(Followed::Whole);
                }
            }
        }
    }

    /// The rank whose gradient is to be computed, when nothing follows before.
    #[must_use]
    pub fn next(&self) -> Option<Rank> {
        if let Some(Operation::Compute(rank)) = self.operations.last() { Some(*rank) } else { None }
    }

    /// What follows from the gradient of [`Work::next`] alone, for each of its elements: the sums that are made with it, and the last of these if it is
    /// a node that this member brings to the reduction.
    #[must_use]
    pub fn ahead(&self) -> (Vec<Node>, Option<Node>) {
        let (mut joins, mut operations) = (Vec::new(), self.operations.iter().rev());
        let Some(Operation::Compute(rank)) = operations.next() else { return (joins, None) };
        for operation in operations {
            match operation {
                Operation::Join(node) => joins.push(*node),
                Operation::Finish => {
                    let top = joins.last().copied().unwrap_or(leaf(*rank));
                    return (joins, Some(top));
                }
                Operation::Take(_) | Operation::Compute(_) => break,
            }
        }
        (joins, None)
    }

    /// The gradient of [`Work::next`] is computed.
    pub fn computed(&mut self, weight: f64, loss: f64) {
        if let Some(rank) = self.next() {
            self.operations.pop();
            self.stack.push(NodeSums { node: leaf(rank), weight, loss });
        }
    }

    /// What is already summed, for the same step in another membership.
    pub fn into_sums(self) -> impl Iterator<Item = NodeSums> {
        self.stack.into_iter().chain(self.kept.into_values())
    }
}

/// The node of a single rank.
#[must_use]
pub fn leaf(rank: Rank) -> Node {
    Node { first: rank.0, count: 1 }
}

fn plan(node: Node, kept: &BTreeMap<Node, NodeSums>, operations: &mut Vec<Operation>) {
    if kept.contains_key(&node) {
        operations.push(Operation::Take(node));
    } else if let Some((left, right)) = node.children() {
        plan(left, kept, operations);
        plan(right, kept, operations);
        operations.push(Operation::Join(node));
    } else {
        operations.push(Operation::Compute(Rank(node.first)));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Runs everything; gives the ranks computed, the joins, the whole nodes, and most sums open at once.
    fn run(work: &mut Work) -> (Vec<u16>, Vec<Node>, Vec<NodeSums>, usize) {
        let (mut computed, mut joins, mut whole, mut open) = (Vec::new(), Vec::new(), Vec::new(), 0);
        loop {
            match work.follow() {
                Some(Followed::Join(node)) => joins.push(node),
                Some(Followed::Whole(sums)) => whole.push(sums),
                None => {
                    let Some(rank) = work.next() else { break };
                    computed.push(rank.0);
                    work.computed(1.0, f64::from(rank.0));
                    open = open.max(work.stack.len());
                }
            }
        }
        assert!(work.is_finished());
        (computed, joins, whole, open)
    }

    fn ranks(range: std::ops::Range<u16>) -> Vec<Rank> {
        range.map(Rank).collect()
    }

    #[test]
    fn sums_along_the_tree_with_log2_buffers() {
        let (mut work, unused) = Work::new(8, &ranks(0..8), BTreeMap::new());
        let (computed, joins, whole, open) = run(&mut work);
        assert_eq!((computed, unused), ((0..8).collect(), Vec::new()));
        let node = |first, count| Node { first, count };
        let order = [node(0, 2), node(2, 2), node(0, 4), node(4, 2), node(6, 2), node(4, 4), node(0, 8)];
        assert_eq!(joins, order);
        assert_eq!(whole, vec![NodeSums { node: node(0, 8), weight: 8.0, loss: 28.0 }]);
        assert_eq!(open, 4, "log2(8) + 1");
    }

    #[test]
    fn a_step_begun_anew_computes_only_what_is_missing_and_gives_back_what_does_not_fit() {
        let (mut first, _) = Work::new(8, &ranks(4..8), BTreeMap::new());
        for _ in 0..3 {
            while first.follow().is_some() {}
            first.computed(1.0, 0.0);
        }
        let stray = NodeSums { node: Node { first: 1, count: 1 }, weight: 1.0, loss: 0.0 };
        let four = NodeSums { node: Node { first: 0, count: 4 }, weight: 4.0, loss: 6.0 };
        let kept = first.into_sums().chain([stray, four]).map(|sums| (sums.node, sums)).collect();
        let (mut again, unused) = Work::new(8, &ranks(0..8), kept);
        assert_eq!(unused, vec![stray.node]);
        let (computed, _, whole, _) = run(&mut again);
        assert_eq!((computed, whole[0].weight), (vec![7], 8.0));
    }

    #[test]
    fn what_follows_from_a_gradient_alone_is_known_before_it_is_whole() {
        let node = |first, count| Node { first, count };
        let (mut work, _) = Work::new(6, &[0, 1, 2, 3, 5].map(Rank), BTreeMap::new());
        let mut ahead = Vec::new();
        loop {
            while work.follow().is_some() {}
            if work.is_finished() {
                break;
            }
            ahead.push(work.ahead());
            work.computed(1.0, 1.0);
        }
        let root = (vec![node(2, 2), node(0, 4)], Some(node(0, 4)));
        let expected = [(vec![], None), (vec![node(0, 2)], None), (vec![], None), root, (vec![], Some(node(5, 1)))];
        assert_eq!(ahead, expected);
        assert_eq!(work.ahead(), (vec![], None));
    }

    #[test]
    fn hosted_ranks_apart_give_one_sum_per_node() {
        let (mut work, _) = Work::new(6, &[0, 1, 5].map(Rank), BTreeMap::new());
        let nodes: Vec<Node> = run(&mut work).2.iter().map(|sums| sums.node).collect();
        assert_eq!(nodes, vec![Node { first: 0, count: 2 }, Node { first: 5, count: 1 }]);
    }
}
