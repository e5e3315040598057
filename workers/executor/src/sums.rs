//! The gradients of the step in flight, as bytes: sums of tree nodes and the whole sum. Adds where `workers-member` says what to add; decides
//! nothing.
//!
//! Next on a job's path: `workers/executor/src/checkpoint.rs`.

use crate::buffers::{Buffer, Pool, SharedElements};
use crate::mean::Mean;
use crate::stretch::Stretch;
use crate::wire::PIECE_ELEMENTS;
use events_schema::Rank;
use events_schema::tree::Node;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::ops::{Deref, Range};
use std::sync::Arc;
use workers_member::work::leaf;
use workers_member::{Action, Kind, SumOp};
use workers_memory::Segment;
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
    /// Where pieces of the whole sum lie, and what is sent of sums whose rest is still changed.
    pieces: Pool,
    nodes: BTreeMap<Node, Arc<Buffer>>,
    /// What there is of the whole sum, and whether it is to be in one vector.
    total: Option<Mean>,
    in_one: bool,
    /// Stretches of sums that are made already, in the buffer of the left half, while the right one is still computed.
    joined: BTreeMap<Node, Vec<Range<usize>>>,
    /// Most sums of nodes held at once, for the memory budget.
    pub held_max: usize,
}

impl Sums {
    /// No sums, of gradients in buffers of the one pool and pieces of them in buffers of the other. The whole sum lies in one buffer if it has to, and
    /// otherwise where its pieces were summed.
    #[must_use]
    pub fn new(pool: Pool, pieces: Pool, in_one: bool) -> Self {
        Self { pool, pieces, nodes: BTreeMap::new(), total: None, in_one, joined: BTreeMap::new(), held_max: 0 }
    }

    /// A step begins. Alone, the root's own sum becomes the whole one, without a buffer of its own.
    pub fn begin(&mut self, alone: bool) {
        // The one buffer of a step that was not finished is taken again, as every element is placed anew; pieces of it are not.
        let unfinished = self.total.take().filter(|_| self.in_one);
        let new = || if self.in_one { self.pool.take().into() } else { Mean::default() };
        self.total = (!alone).then(|| unfinished.unwrap_or_else(new));
    }

    /// A buffer for a rank's gradient, to be overwritten.
    #[must_use]
    pub fn room(&self) -> Buffer {
        self.pool.take()
    }

    /// Takes a rank's gradient.
    pub fn computed(&mut self, rank: Rank, gradient: Buffer) {
        self.set(leaf(rank), Arc::new(gradient));
    }

    /// Takes the sum of a node.
    pub fn set(&mut self, node: Node, sum: Arc<Buffer>) {
        self.nodes.insert(node, sum);
        self.held_max = self.held_max.max(self.nodes.len());
    }

    /// Makes the sum of a node of its halves.
    pub fn join(&mut self, node: Node) {
        let Some((left, right)) = node.children() else { return };
        let mut joined = self.joined.remove(&node).unwrap_or_default();
        if let (Some(left), Some(right)) = (self.nodes.remove(&left), self.nodes.remove(&right)) {
            // A buffer still being sent is copied rather than changed under the sender.
            let mut sum = Arc::unwrap_or_clone(left);
            joined.sort_unstable_by_key(|part| part.start);
            let mut done = 0;
            for part in joined.into_iter().chain(std::iter::once(sum.len()..sum.len())) {
                add(&mut sum[done..part.start], &right[done..part.start]);
                done = part.end;
            }
            drop(right);
            self.set(node, Arc::new(sum));
        }
    }

    /// Makes a stretch of the sum of a node, of whose right half only stretches are there: of `leaf`, the gradient that is computed, or of sums that
    /// were made of it.
    pub fn join_part(&mut self, node: Node, part: &Range<usize>, leaf: &Segment) -> io::Result<()> {
        let Some((left, right)) = node.children() else { return Ok(()) };
        let Some(sum) = self.nodes.remove(&left) else { return Ok(()) };
        let mut sum = Arc::unwrap_or_clone(sum);
        let right = self.stretch(right, part, Some(leaf))?;
        let made = right.map(|right| add(&mut sum[part.clone()], &right)).is_some();
        if made {
            self.joined.entry(node).or_default().push(part.clone());
        }
        self.nodes.insert(left, Arc::new(sum));
        Ok(())
    }

    /// A stretch of the sum of a node: of a whole one, of one that is being made, or of the gradient that is computed. None if it is nowhere.
    fn stretch(&self, node: Node, part: &Range<usize>, leaf: Option<&Segment>) -> io::Result<Option<Cow<'_, [f32]>>> {
        if let Some(sum) = self.nodes.get(&node) {
            return Ok(sum.get(part.clone()).map(Cow::Borrowed));
        }
        let Some(leaf) = leaf else { return Ok(None) };
        match node.children() {
            Some((left, _)) => Ok(self.nodes.get(&left).and_then(|sum| sum.get(part.clone())).map(Cow::Borrowed)),
            None => {
                let mut elements = vec![0.0; part.len()];
                leaf.read_at(part.start, &mut elements)?;
                Ok(Some(Cow::Owned(elements)))
            }
        }
    }

    /// Drops the sum of a node.
    pub fn release(&mut self, node: Node) {
        self.nodes.remove(&node);
    }

    /// Performs a part of the reduction while a gradient is computed, of which the machine asks for what is final only. What is sent is a copy, since the
    /// rest of its buffer is still changed.
    pub fn reduce_part(
        &mut self,
        action: Action<Stretch>,
        leaf: &Segment,
        send: &mut impl FnMut(OutgoingSlice),
    ) -> io::Result<()> {
        match action {
            Action::Send { to, node, range } => {
                if let Some(part) = self.stretch(node, &range, Some(leaf))? {
                    for (offset, part) in (range.start..).step_by(PIECE_ELEMENTS).zip(part.chunks(PIECE_ELEMENTS)) {
                        let data = Arc::new(self.copied(part)) as SharedElements;
                        let range = 0..part.len();
                        send(OutgoingSlice { to, kind: Kind::Partial(node), offset, data, range });
                    }
                }
            }
            Action::Sum { kind, range, operations, to } => self.sum(kind, range, operations, to, Some(leaf), send)?,
            Action::Place { .. } | Action::Whole(_) => self.reduce(action, send),
        }
        Ok(())
    }

    /// Performs a part of the reduction; gives what to send.
    pub fn reduce(&mut self, action: Action<Stretch>, send: &mut impl FnMut(OutgoingSlice)) {
        match action {
            Action::Send { to, node, range } => {
                if let Some(sum) = self.nodes.get(&node) {
                    let kind = Kind::Partial(node);
                    let data = Arc::clone(sum) as SharedElements;
                    send(OutgoingSlice { to, kind, offset: range.start, data, range });
                }
            }
            // Of whole sums nothing is read from anywhere, so nothing can fail.
            Action::Sum { kind, range, operations, to } => drop(self.sum(kind, range, operations, to, None, send)),
            Action::Place { offset, payload, to } => self.pass_on(to, Kind::Reduced, offset, payload, send),
            Action::Whole(node) => self.total = self.nodes.remove(&node).map(Mean::from),
        }
    }

    fn sum(
        &mut self,
        kind: Kind,
        range: Range<usize>,
        operations: Vec<SumOp<Stretch>>,
        to: Vec<Peer>,
        leaf: Option<&Segment>,
        send: &mut impl FnMut(OutgoingSlice),
    ) -> io::Result<()> {
        let Some(sum) = self.add_up(operations, &range, leaf)? else { return Ok(()) };
        self.pass_on(to, kind, range.start, sum, send);
        Ok(())
    }

    /// A stretch of the whole sum stays here, and whatever it is of is sent: both from the same piece.
    fn pass_on(
        &mut self,
        to: Vec<Peer>,
        kind: Kind,
        offset: usize,
        stretch: Stretch,
        send: &mut impl FnMut(OutgoingSlice),
    ) {
        let mut total = self.total.as_mut().filter(|_| kind == Kind::Reduced);
        if let (Some(total), true) = (&mut total, to.is_empty()) {
            return total.put(offset, stretch);
        }
        let (len, piece) = (stretch.len(), Arc::new(stretch.into_piece(&self.pieces)));
        if let Some(total) = total {
            total.put_shared(offset, &piece, len);
        }
        for to in to {
            send(OutgoingSlice { to, kind, offset, range: 0..len, data: Arc::clone(&piece) as SharedElements });
        }
    }

    fn copied(&self, elements: &[f32]) -> Buffer {
        let mut copy = self.pieces.take();
        copy[..elements.len()].copy_from_slice(elements);
        copy
    }

    /// Adds the operations up in their order. None when a sum is missing, which the machine excludes.
    fn add_up(
        &self,
        operations: Vec<SumOp<Stretch>>,
        range: &Range<usize>,
        leaf: Option<&Segment>,
    ) -> io::Result<Option<Stretch>> {
        let mut stack: Vec<Term<'_>> = Vec::new();
        for operation in operations {
            match operation {
                SumOp::Own(node) => match self.stretch(node, range, leaf)? {
                    Some(own) => stack.push(Term::Own(own)),
                    None => return Ok(None),
                },
                SumOp::Foreign(_, elements) => stack.push(Term::Stretch(elements)),
                SumOp::Add => {
                    let (Some(right), Some(left)) = (stack.pop(), stack.pop()) else { return Ok(None) };
                    stack.push(Term::Stretch(left.plus(right, &self.pieces)));
                }
            }
        }
        Ok(stack.pop().map(|sum| match sum {
            Term::Stretch(sum) => sum,
            Term::Own(own) => own.into_owned().into(),
        }))
    }

    /// The whole sum.
    pub fn take_total(&mut self) -> Mean {
        self.total.take().unwrap_or_default()
    }
}

/// What a sum is made of.
enum Term<'a> {
    /// A stretch of this member's sums.
    Own(Cow<'a, [f32]>),
    /// Of a peer's, or a sum already.
    Stretch(Stretch),
}

impl Deref for Term<'_> {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match self {
            Self::Own(own) => own,
            Self::Stretch(stretch) => stretch,
        }
    }
}

impl Term<'_> {
    /// Their sum, in the memory of one of them if it may be changed: what came by a copy need not be copied again.
    fn plus(self, right: Self, pieces: &Pool) -> Stretch {
        match (self, right) {
            (Self::Stretch(mut left @ Stretch::Here { .. }), right) => {
                if let Some(left) = left.here_mut() {
                    add(left, &right);
                }
                left
            }
            (left, Self::Stretch(mut right @ Stretch::Here { .. })) => {
                if let Some(right) = right.here_mut() {
                    add_to_left(&left, right);
                }
                right
            }
            (left, right) => {
                let mut sum = Stretch::room(pieces, left.len());
                if let Some(sum) = sum.here_mut() {
                    sum.iter_mut().zip(&*left).zip(&*right).for_each(|((sum, l), r)| *sum = l + r);
                }
                sum
            }
        }
    }
}

/// The same addition, kept on the right: of two numbers it is the same whichever comes first.
fn add_to_left(left: &[f32], right: &mut [f32]) {
    right.iter_mut().zip(left).for_each(|(r, l)| *r += *l);
}

/// `left[i] += right[i]`: the one addition that the canonical sum consists of.
pub fn add(left: &mut [f32], right: &[f32]) {
    left.iter_mut().zip(right).for_each(|(l, r)| *l += r);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn node(first: u16, count: u16) -> Node {
        Node { first, count }
    }

    fn value(rank: u16) -> f32 {
        1.0 / f32::from(rank + 3)
    }

    fn filled(ranks: &[u16]) -> Sums {
        let mut sums = Sums::new(Pool::own(2), Pool::of_pieces(), false);
        for &rank in ranks {
            let mut buffer = sums.room();
            buffer.fill(value(rank));
            sums.computed(Rank(rank), buffer);
        }
        sums
    }

    #[test]
    fn a_join_is_left_plus_right() {
        let mut sums = filled(&[0, 1]);
        sums.join(node(0, 2));
        sums.begin(true);
        sums.reduce(Action::Whole(node(0, 2)), &mut |_| panic!("alone"));
        assert_eq!((sums.take_total().to_vec(), sums.held_max), (vec![value(0) + value(1); 2], 2));
    }

    #[test]
    fn a_sum_that_is_being_sent_is_not_changed() {
        let (mut sums, mut sent) = (filled(&[0, 1]), Vec::new());
        sums.reduce(Action::Send { to: Peer(4), node: node(0, 1), range: 1..2 }, &mut |slice| sent.push(slice));
        sums.join(node(0, 2));
        assert_eq!((sent[0].data[1], sent[0].offset, sent[0].kind), (value(0), 1, Kind::Partial(node(0, 1))));
    }

    /// Ranks 0 to 3 here, of which 3 is computed, and a rank of another member after them.
    #[test]
    fn stretches_give_the_sums_of_the_whole() {
        const LEN: usize = 8;
        let element = |rank: u16, at: usize| (at + 1) as f32 * value(rank);
        let gradient = |rank: u16| (0..LEN).map(|at| element(rank, at)).collect::<Vec<f32>>();
        let mut sums = Sums::new(Pool::own(LEN), Pool::of_pieces(), false);
        sums.begin(false);
        for rank in [0, 1, 2] {
            sums.set(leaf(Rank(rank)), Arc::new(gradient(rank).into()));
        }
        sums.join(node(0, 2));
        let mut segment = Segment::new(LEN).unwrap();
        let mut sent: Vec<(usize, Vec<f32>)> = Vec::new();
        // What backward finishes last comes last; the beginning is never announced.
        for part in [5..8, 2..5] {
            segment[part.clone()].copy_from_slice(&gradient(3)[part.clone()]);
            for joined in [node(2, 2), node(0, 4)] {
                sums.join_part(joined, &part, &segment).unwrap();
            }
            let send = &mut |slice: OutgoingSlice| sent.push((slice.offset, slice.data[slice.range].to_vec()));
            sums.reduce_part(Action::Send { to: Peer(1), node: node(0, 4), range: part }, &segment, send).unwrap();
        }
        let operations =
            vec![SumOp::Own(node(0, 4)), SumOp::Foreign(node(4, 1), gradient(4)[4..8].to_vec().into()), SumOp::Add];
        let action = Action::Sum { kind: Kind::Reduced, range: 4..8, operations, to: vec![Peer(1)] };
        sums.reduce_part(action, &segment, &mut |slice| sent.push((slice.offset, slice.data[slice.range].to_vec())))
            .unwrap();
        segment.copy_from_slice(&gradient(3));
        sums.computed(Rank(3), segment.to_vec().into());
        sums.join(node(2, 2));
        sums.join(node(0, 4));
        let four = |at| (element(0, at) + element(1, at)) + (element(2, at) + element(3, at));
        let of = |range: Range<usize>| range.map(four).collect::<Vec<f32>>();
        let whole: Vec<f32> = (4..8).map(|at| four(at) + element(4, at)).collect();
        assert_eq!(sent, [(5, of(5..8)), (2, of(2..5)), (4, whole.clone())]);
        assert_eq!(**sums.nodes[&node(0, 4)], of(0..8));
        assert!(sums.take_total().to_vec() == whole && sums.joined.is_empty());
    }

    #[test]
    fn a_piece_is_added_in_the_order_of_its_terms() {
        let (mut sums, mut sent) = (filled(&[1]), Vec::new());
        sums.begin(false);
        let operations = vec![
            SumOp::Foreign(node(0, 1), vec![1e9].into()),
            SumOp::Own(node(1, 1)),
            SumOp::Add,
            SumOp::Foreign(node(2, 1), vec![-1e9].into()),
            SumOp::Add,
        ];
        let action = Action::Sum { kind: Kind::Reduced, range: 1..2, operations, to: vec![Peer(0), Peer(2)] };
        sums.reduce(action, &mut |slice| sent.push((slice.to, slice.offset, slice.data[slice.range][0])));
        let expected = (1e9 + value(1)) - 1e9;
        assert_eq!(sent, [(Peer(0), 1, expected), (Peer(2), 1, expected)]);
        let placed = Action::Place { offset: 0, payload: vec![7.0].into(), to: Vec::new() };
        sums.reduce(placed, &mut |_| panic!("nothing to send"));
        assert_eq!(sums.take_total().to_vec(), [7.0, expected]);
    }

    /// For two hosts: the sum of a node is not the whole one, and what an owner elsewhere sent goes on to the others here.
    #[test]
    fn what_is_summed_for_another_host_is_sent_and_what_comes_from_there_is_handed_on() {
        let (mut sums, mut sent) = (filled(&[1]), Vec::new());
        sums.begin(false);
        let mut send =
            |slice: OutgoingSlice| sent.push((slice.to, slice.kind, slice.offset, slice.data[slice.range][0]));
        let operations = vec![SumOp::Foreign(node(0, 1), vec![3.0].into()), SumOp::Own(node(1, 1)), SumOp::Add];
        let kind = Kind::Partial(node(0, 2));
        sums.reduce(Action::Sum { kind, range: 1..2, operations, to: vec![Peer(5)] }, &mut send);
        for offset in [1, 0] {
            let payload = vec![offset as f32 + 7.0].into();
            sums.reduce(Action::Place { offset, payload, to: vec![Peer(0)] }, &mut send);
        }
        let reduced = |offset: usize| (Peer(0), Kind::Reduced, offset, offset as f32 + 7.0);
        assert_eq!(sent, [(Peer(5), kind, 1, 3.0 + value(1)), reduced(1), reduced(0)]);
        assert_eq!(sums.take_total().to_vec(), [7.0, 8.0]);
    }

    /// What is sent of the whole sum, and what is kept of it, are one piece; or it is in one vector, for who can read no other.
    #[test]
    fn the_whole_sum_is_copied_only_into_one_vector() {
        for in_one in [false, true] {
            let mut sums = Sums::new(Pool::own(2), Pool::of_pieces(), in_one);
            // Of the first step only a part comes.
            for (step, parts) in [(0, 1..2), (1, 0..2)] {
                sums.begin(false);
                let mut sent = Vec::new();
                for offset in parts {
                    let payload = vec![(step * 2 + offset) as f32].into();
                    let action = Action::Place { offset, payload, to: vec![Peer(3)] };
                    sums.reduce(action, &mut |slice: OutgoingSlice| sent.push(slice.data));
                }
                let others = if in_one { 0 } else { 1 };
                assert!(sent.iter().all(|data| Arc::strong_count(data) == 1 + others));
            }
            let total = sums.take_total();
            assert_eq!((total.to_vec(), total.into_one().len()), (vec![2.0, 3.0], if in_one { 2 } else { 0 }));
        }
    }
}
