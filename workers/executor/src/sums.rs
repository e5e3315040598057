//! The gradients of the step in flight, as bytes: sums of tree nodes and the whole sum. Adds where `workers-member` says what to add; decides
//! nothing.
//!
//! Next on a job's path: `workers/executor/src/checkpoint.rs`.

use events_schema::Rank;
use events_schema::tree::Node;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use workers_member::work::leaf;
use workers_member::{Action, Kind, SumOp};
use workers_session::Peer;

/// More free buffers than any member's sums need would only hold memory.
const FREE_MAX: usize = 4;

/// A stretch of a buffer on its way to a peer; shares the buffer.
#[derive(Debug, Clone)]
pub struct OutgoingSlice {
    /// Who gets it.
    pub to: Peer,
    /// What it is.
    pub kind: Kind,
    /// Where `range` begins in the flat vector.
    pub offset: usize,
    /// Holds it.
    pub data: Arc<Vec<f32>>,
    /// Which of `data`.
    pub range: Range<usize>,
}

/// Every buffer of one gradient that a step uses, and those that the next will use again instead of allocating.
#[derive(Debug, Default)]
pub struct Sums {
    parameter_count: usize,
    nodes: BTreeMap<Node, Arc<Vec<f32>>>,
    total: Vec<f32>,
    alone: bool,
    free: Vec<Vec<f32>>,
    /// Most sums of nodes held at once, for the memory budget.
    pub held_max: usize,
}

impl Sums {
    /// No sums, of gradients with this many elements.
    #[must_use]
    pub fn new(parameter_count: usize) -> Self {
        Self { parameter_count, ..Self::default() }
    }

    /// From now on gradients have this many elements.
    pub fn prepare(&mut self, parameter_count: usize) {
        self.parameter_count = parameter_count;
    }

    /// A step begins. Alone, the root's own sum becomes the whole one, without a buffer of its own.
    pub fn begin(&mut self, alone: bool) {
        self.alone = alone;
        self.total.resize(if alone { 0 } else { self.parameter_count }, 0.0);
    }

    /// Computes a rank's gradient, with what overwrites its whole buffer.
    pub fn compute<T, E>(&mut self, rank: Rank, gradient: impl FnOnce(&mut [f32]) -> Result<T, E>) -> Result<T, E> {
        let mut buffer = self.free.pop().unwrap_or_default();
        buffer.resize(self.parameter_count, 0.0);
        let computed = gradient(&mut buffer)?;
        self.set(leaf(rank), Arc::new(buffer));
        Ok(computed)
    }

    /// Takes the sum of a node.
    pub fn set(&mut self, node: Node, sum: Arc<Vec<f32>>) {
        self.nodes.insert(node, sum);
        self.held_max = self.held_max.max(self.nodes.len());
    }

    /// Makes the sum of a node of its halves.
    pub fn join(&mut self, node: Node) {
        let Some((left, right)) = node.children() else { return };
        if let (Some(left), Some(right)) = (self.nodes.remove(&left), self.nodes.remove(&right)) {
            // A buffer still being sent is copied rather than changed under the sender.
            let mut sum = Arc::unwrap_or_clone(left);
            add(&mut sum, &right);
            self.give(right);
            self.set(node, Arc::new(sum));
        }
    }

    /// Drops the sum of a node.
    pub fn release(&mut self, node: Node) {
        if let Some(sum) = self.nodes.remove(&node) {
            self.give(sum);
        }
    }

    /// Takes a buffer to use again, if nobody else holds it.
    fn give(&mut self, buffer: Arc<Vec<f32>>) {
        if let (Ok(buffer), true) = (Arc::try_unwrap(buffer), self.free.len() < FREE_MAX) {
            self.free.push(buffer);
        }
    }

    /// Performs a part of the reduction; gives what to send.
    pub fn reduce(&mut self, action: Action<Vec<f32>>, send: &mut impl FnMut(OutgoingSlice)) {
        match action {
            Action::Send { to, node, range } => {
                if let Some(sum) = self.nodes.get(&node) {
                    let kind = Kind::Partial(node);
                    send(OutgoingSlice { to, kind, offset: range.start, data: Arc::clone(sum), range });
                }
            }
            Action::Sum { range, operations, to } => {
                let Some(sum) = self.add_up(operations, &range) else { return };
                self.place(range.start, &sum);
                let data = Arc::new(sum);
                for to in to {
                    let (offset, data) = (range.start, Arc::clone(&data));
                    send(OutgoingSlice { to, kind: Kind::Reduced, offset, range: 0..data.len(), data });
                }
            }
            Action::Place { offset, payload } => self.place(offset, &payload),
            Action::Whole(node) => {
                self.total = self.nodes.remove(&node).map(Arc::unwrap_or_clone).unwrap_or_default();
            }
        }
    }

    fn place(&mut self, offset: usize, elements: &[f32]) {
        if let Some(place) = self.total.get_mut(offset..offset + elements.len()) {
            place.copy_from_slice(elements);
        }
    }

    /// Adds the operations up in their order. None when a sum is missing, which the machine excludes.
    fn add_up(&self, operations: Vec<SumOp<Vec<f32>>>, range: &Range<usize>) -> Option<Vec<f32>> {
        let mut stack: Vec<Cow<'_, [f32]>> = Vec::new();
        for operation in operations {
            match operation {
                SumOp::Own(node) => stack.push(Cow::Borrowed(self.nodes.get(&node)?.get(range.clone())?)),
                SumOp::Foreign(_, elements) => stack.push(Cow::Owned(elements)),
                SumOp::Add => {
                    let (right, left) = (stack.pop()?, stack.pop()?);
                    let mut sum = left.into_owned();
                    add(&mut sum, &right);
                    stack.push(Cow::Owned(sum));
                }
            }
        }
        stack.pop().map(Cow::into_owned)
    }

    /// The whole sum.
    pub fn take_total(&mut self) -> Vec<f32> {
        std::mem::take(&mut self.total)
    }

    /// Takes back a buffer of a gradient, for the next sum.
    pub fn recycle(&mut self, buffer: Vec<f32>) {
        if !self.alone {
            self.total = buffer;
        } else if self.free.len() < FREE_MAX {
            self.free.push(buffer);
        }
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

    fn node(first: u16, count: u16) -> Node {
        Node { first, count }
    }

    fn value(rank: u16) -> f32 {
        1.0 / f32::from(rank + 3)
    }

    fn filled(ranks: &[u16]) -> Sums {
        let mut sums = Sums::new(2);
        for &rank in ranks {
            let fill = |buffer: &mut [f32]| {
                buffer.fill(value(rank));
                Ok::<(), Infallible>(())
            };
            sums.compute(Rank(rank), fill).unwrap();
        }
        sums
    }

    #[test]
    fn a_join_is_left_plus_right_and_uses_their_buffers() {
        let mut sums = filled(&[0, 1]);
        sums.join(node(0, 2));
        sums.begin(true);
        sums.reduce(Action::Whole(node(0, 2)), &mut |_| panic!("alone"));
        assert_eq!(sums.take_total(), vec![value(0) + value(1); 2]);
        assert_eq!((sums.free.len(), sums.held_max), (1, 2));
    }

    #[test]
    fn a_sum_that_is_being_sent_is_not_changed() {
        let (mut sums, mut sent) = (filled(&[0, 1]), Vec::new());
        sums.reduce(Action::Send { to: Peer(4), node: node(0, 1), range: 1..2 }, &mut |slice| sent.push(slice));
        sums.join(node(0, 2));
        assert_eq!((sent[0].data[1], sent[0].offset, sent[0].kind), (value(0), 1, Kind::Partial(node(0, 1))));
    }

    #[test]
    fn a_piece_is_added_in_the_order_of_its_terms() {
        let (mut sums, mut sent) = (filled(&[1]), Vec::new());
        sums.begin(false);
        let operations = vec![
            SumOp::Foreign(node(0, 1), vec![1e9]),
            SumOp::Own(node(1, 1)),
            SumOp::Add,
            SumOp::Foreign(node(2, 1), vec![-1e9]),
            SumOp::Add,
        ];
        let action = Action::Sum { range: 1..2, operations, to: vec![Peer(0), Peer(2)] };
        sums.reduce(action, &mut |slice| sent.push((slice.to, slice.offset, slice.data[slice.range][0])));
        let expected = (1e9 + value(1)) - 1e9;
        assert_eq!(sent, [(Peer(0), 1, expected), (Peer(2), 1, expected)]);
        sums.reduce(Action::Place { offset: 0, payload: vec![7.0] }, &mut |_| panic!("nothing to send"));
        assert_eq!(sums.take_total(), [7.0, expected]);
    }
}
