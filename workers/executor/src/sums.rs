//! The gradients of the step in flight, as bytes: sums of tree nodes and the whole sum. Adds where `workers-member` says what to add; decides
//! nothing.
//!
//! Next on a job's path: `workers/executor/src/checkpoint.rs`.

use crate::buffers::{Buffer, Pool, SharedElements};
use events_schema::Rank;
use events_schema::tree::Node;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use workers_member::work::leaf;
use workers_member::{Action, Kind, SumOp};
use workers_session::Peer;

/// A stretch of a buffer on its way to a peer; shares the buffer.
#[derive(Clone)]
pub struct OutgoingSlice {
    /// Who gets it.
    pub to: Peer,
    /// What it is.
    pub kind: Kind,
    /// Where `range` begins in the flat vector.
    pub offset: usize,
    /// Holds it.
    pub data: SharedElements,
    /// Which of `data`.
    pub range: Range<usize>,
}

/// Every buffer of one gradient that a step uses.
#[derive(Debug)]
pub struct Sums {
    pool: Pool,
    nodes: BTreeMap<Node, Arc<Buffer>>,
    total: Option<Buffer>,
    /// Most sums of nodes held at once, for the memory budget.
    pub held_max: usize,
}

impl Sums {
    /// No sums, of gradients in buffers of this pool.
    #[must_use]
    pub fn new(pool: Pool) -> Self {
        Self { pool, nodes: BTreeMap::new(), total: None, held_max: 0 }
    }

    /// A step begins. Alone, the root's own sum becomes the whole one, without a buffer of its own.
    pub fn begin(&mut self, alone: bool) {
        // The one of a step that was not finished, if there is one; every element is placed anew.
        let unfinished = self.total.take();
        self.total = (!alone).then(|| unfinished.unwrap_or_else(|| self.pool.take()));
    }

    /// Computes a rank's gradient, with what overwrites its whole buffer.
    pub fn compute<T, E>(&mut self, rank: Rank, gradient: impl FnOnce(&mut Buffer) -> Result<T, E>) -> Result<T, E> {
        let mut buffer = self.pool.take();
        let computed = gradient(&mut buffer)?;
        self.set(leaf(rank), Arc::new(buffer));
        Ok(computed)
    }

    /// Takes the sum of a node.
    pub fn set(&mut self, node: Node, sum: Arc<Buffer>) {
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
            drop(right);
            self.set(node, Arc::new(sum));
        }
    }

    /// Drops the sum of a node.
    pub fn release(&mut self, node: Node) {
        self.nodes.remove(&node);
    }

    /// Performs a part of the reduction; gives what to send.
    pub fn reduce(&mut self, action: Action<Vec<f32>>, send: &mut impl FnMut(OutgoingSlice)) {
        match action {
            Action::Send { to, node, range } => {
                if let Some(sum) = self.nodes.get(&node) {
                    let kind = Kind::Partial(node);
                    let data = Arc::clone(sum) as SharedElements;
                    send(OutgoingSlice { to, kind, offset: range.start, data, range });
                }
            }
            Action::Sum { range, operations, to } => {
                let Some(sum) = self.add_up(operations, &range) else { return };
                self.place(range.start, &sum);
                let (len, data) = (sum.len(), Arc::new(sum) as SharedElements);
                for to in to {
                    let (offset, data) = (range.start, Arc::clone(&data));
                    send(OutgoingSlice { to, kind: Kind::Reduced, offset, range: 0..len, data });
                }
            }
            Action::Place { offset, payload } => self.place(offset, &payload),
            Action::Whole(node) => {
                self.total = self.nodes.remove(&node).map(Arc::unwrap_or_clone);
            }
        }
    }

    fn place(&mut self, offset: usize, elements: &[f32]) {
        let place = self.total.as_mut().and_then(|total| total.get_mut(offset..offset + elements.len()));
        if let Some(place) = place {
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
    pub fn take_total(&mut self) -> Buffer {
        self.total.take().unwrap_or_else(|| Buffer::from(Vec::new()))
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
        let mut sums = Sums::new(Pool::own(2));
        for &rank in ranks {
            let fill = |buffer: &mut Buffer| {
                buffer.fill(value(rank));
                Ok::<(), Infallible>(())
            };
            sums.compute(Rank(rank), fill).unwrap();
        }
        sums
    }

    #[test]
    fn a_join_is_left_plus_right() {
        let mut sums = filled(&[0, 1]);
        sums.join(node(0, 2));
        sums.begin(true);
        sums.reduce(Action::Whole(node(0, 2)), &mut |_| panic!("alone"));
        assert_eq!((&*sums.take_total(), sums.held_max), (&[value(0) + value(1); 2][..], 2));
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
        assert_eq!(*sums.take_total(), [7.0, expected]);
    }
}
