//! The plan of the canonical reduction of one step: who gets which stretch of which sum, and in which order each stretch of the whole sum is
//! added. The same bits whatever the placement or order of arrival, because the order of additions is the tree's alone.
//!
//! The flat gradient is cut into one chunk per member. A member sends its sums of every other member's chunk to that member,
//! which adds them in tree order, piece by piece as they become whole, and sends the sum to all. With m sums on member i of p it
//! sends (m + 1)·N·(p − 1)/p elements.
//!
//! Holds no element.
//!
//! Next on a job's path: `workers/executor/src/sums.rs`.

use crate::coverage::Coverage;
use events_schema::Step;
use events_schema::tree::Node;
use std::collections::BTreeMap;
use std::ops::Range;
use workers_session::{Membership, Peer, Tag};

/// What a step of the reduction asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum Action<P> {
    /// Send a stretch of this member's sum of `node` to the owner of its chunk.
    Send {
        /// The owner.
        to: Peer,
        /// Which sum.
        node: Node,
        /// Which elements.
        range: Range<usize>,
    },
    /// A piece of this member's chunk is whole: add it up, put it into the whole sum and send it to everybody else.
    Sum {
        /// Which elements.
        range: Range<usize>,
        /// How, from left to right with a stack: a operation that is no [`SumOp::Add`] is pushed, that one adds the upper to the one below.
        operations: Vec<SumOp<P>>,
        /// Everybody else.
        to: Vec<Peer>,
    },
    /// These elements of the whole sum are here.
    Place {
        /// First element.
        offset: usize,
        /// The elements.
        payload: P,
    },
    /// Alone: this member's sum of the root is the whole sum.
    Whole(Node),
}

/// One operation of a sum, in postfix order.
#[derive(Debug, Clone, PartialEq)]
pub enum SumOp<P> {
    /// The stretch of this member's sum of a node.
    Own(Node),
    /// The stretch as a peer sent it.
    Foreign(Node, P),
    /// Left plus right.
    Add,
}

/// What a peer sent does not fit this step. A correct peer of this membership cannot send it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{from} sent {what} that does not fit step {step}")]
pub struct Unfit {
    /// The member that sent it.
    pub from: Peer,
    /// What does not fit, for the log.
    pub what: &'static str,
    /// The step it was sent for.
    pub step: Step,
}

/// The part of a vector of `len` elements that belongs to member `index` of `count`.
#[must_use]
pub fn chunk(len: usize, index: usize, count: usize) -> Range<usize> {
    let cut = |i: usize| (len as u128 * i as u128 / count.max(1) as u128) as usize;
    cut(index)..cut(index + 1)
}

/// A piece of this member's chunk on its way to be whole: what others sent of it, by node.
#[derive(Debug, Clone)]
struct Piece<P> {
    parts: BTreeMap<Node, P>,
    summed: bool,
}

/// Another member, and how much of what it owes has come.
#[derive(Debug, Clone)]
struct Other {
    peer: Peer,
    /// The nodes whose sums it brings.
    nodes: Vec<Node>,
    /// Pieces of its sums still to come.
    pieces_missing: usize,
    /// Its chunk of the whole sum, and what has come of that.
    chunk: Range<usize>,
    reduced: Coverage,
}

/// One step's reduction on one member.
#[derive(Debug, Clone)]
pub struct Reduction<P> {
    tag: Tag,
    step: Step,
    root: Node,
    /// The nodes whose sums this member brings, and what is there of them.
    own: BTreeMap<Node, Coverage>,
    others: Vec<Other>,
    /// Every other member's chunk.
    chunks: Vec<(Peer, Range<usize>)>,
    chunk: Range<usize>,
    piece_elements: usize,
    pieces: Vec<Piece<P>>,
    /// Elements of the whole sum, and those still to come, own chunk included.
    len: usize,
    missing: usize,
}

impl<P> Reduction<P> {
    /// The reduction of `step` on member `me`.
    #[must_use]
    pub fn new(
        membership: &Membership,
        me: Peer,
        workers: u16,
        step: Step,
        gradient_len: usize,
        piece_elements: usize,
    ) -> Self {
        let (root, count, piece_elements) = (Node::root(workers), membership.seats.len(), piece_elements.max(1));
        let chunk = chunk(gradient_len, membership.index(me).unwrap_or(0), count);
        let pieces = chunk.len().div_ceil(piece_elements);
        let others = membership.seats.iter().enumerate().filter(|(_, seat)| seat.peer != me);
        let others: Vec<Other> = others
            .map(|(index, seat)| {
                let nodes = root.cover(&seat.ranks);
                let chunk = self::chunk(gradient_len, index, count);
                Other {
                    peer: seat.peer,
                    pieces_missing: nodes.len() * pieces,
                    nodes,
                    chunk,
                    reduced: Coverage::default(),
                }
            })
            .collect();
        Self {
            tag: membership.tag,
            step,
            root,
            own: root.cover(membership.ranks(me)).into_iter().map(|node| (node, Coverage::default())).collect(),
            chunks: others.iter().map(|other| (other.peer, other.chunk.clone())).collect(),
            others,
            piece_elements,
            pieces: (0..pieces).map(|_| Piece { parts: BTreeMap::new(), summed: false }).collect(),
            chunk,
            len: gradient_len,
            missing: gradient_len,
        }
    }

    /// The membership it runs in, and the step it sums.
    #[must_use]
    pub fn at(&self) -> (Tag, Step) {
        (self.tag, self.step)
    }

    /// One of this member's own sums is there.
    pub fn on_own(&mut self, node: Node, actions: &mut Vec<Action<P>>) {
        let Some(there) = self.own.get(&node) else { return };
        if self.others.is_empty() {
            self.missing = 0;
            return actions.push(Action::Whole(node));
        }
        there.gaps(self.len).into_iter().for_each(|gap| self.on_own_part(node, gap, actions));
    }

    /// A stretch of one of this member's own sums is there, before the rest of it.
    pub fn on_own_part(&mut self, node: Node, part: Range<usize>, actions: &mut Vec<Action<P>>) {
        let Some(there) = self.own.get_mut(&node) else { return };
        if self.others.is_empty() || part.end > self.len || !there.take(part.clone()) {
            return;
        }
        for (to, chunk) in &self.chunks {
            let pieces = pieces_at(chunk, &part, self.piece_elements).filter(|piece| there.holds(piece));
            actions.extend(joined(pieces).map(|range| Action::Send { to: *to, node, range }));
        }
        let starts = pieces_at(&self.chunk, &part, self.piece_elements).map(|piece| piece.start - self.chunk.start);
        let indices: Vec<usize> = starts.map(|start| start / self.piece_elements).collect();
        indices.into_iter().for_each(|index| self.sum_piece(index, actions));
    }

    /// Whether a stretch of a peer's sum of `node` has a place in this membership's steps: gives which piece it is.
    #[must_use]
    pub fn place(&self, from: Peer, node: Node, offset: u64, elements: usize) -> Option<usize> {
        let other = self.others.iter().find(|other| other.peer == from)?;
        let within = usize::try_from(offset).ok()?.checked_sub(self.chunk.start)?;
        let index = within / self.piece_elements;
        let fits = within.is_multiple_of(self.piece_elements)
            && index < self.pieces.len()
            && other.nodes.contains(&node)
            && elements == self.piece(index).len();
        fits.then_some(index)
    }

    /// Takes a stretch of a peer's sum of `node`.
    pub fn on_partial(
        &mut self,
        from: Peer,
        node: Node,
        offset: u64,
        elements: usize,
        payload: P,
        actions: &mut Vec<Action<P>>,
    ) -> Result<(), Unfit> {
        let unfit = Unfit { from, what: "a partial sum", step: self.step };
        let Some(index) = self.place(from, node, offset, elements) else { return Err(unfit) };
        let piece = &mut self.pieces[index];
        if piece.summed || piece.parts.contains_key(&node) {
            return Err(unfit);
        }
        piece.parts.insert(node, payload);
        self.others.iter_mut().filter(|other| other.peer == from).for_each(|other| other.pieces_missing -= 1);
        self.sum_piece(index, actions);
        Ok(())
    }

    /// Takes a stretch of the whole sum from the owner of its chunk.
    pub fn on_reduced(
        &mut self,
        from: Peer,
        offset: u64,
        elements: usize,
        payload: P,
        actions: &mut Vec<Action<P>>,
    ) -> Result<(), Unfit> {
        let unfit = Unfit { from, what: "a reduced piece", step: self.step };
        let Some(other) = self.others.iter_mut().find(|other| other.peer == from) else { return Err(unfit) };
        let end = offset.checked_add(elements as u64).filter(|end| *end <= other.chunk.end as u64);
        if offset < other.chunk.start as u64 || elements == 0 || end.is_none() {
            return Err(unfit);
        }
        // What went with a link that was lost never comes, so that sum will not be whole: a round makes it good.
        let start = offset as usize;
        if !other.reduced.take(start..start + elements) {
            return Err(unfit);
        }
        actions.push(Action::Place { offset: start, payload });
        self.missing -= elements;
        Ok(())
    }

    /// Whether the whole sum is here.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.missing == 0
    }

    /// Members that still owe something.
    pub fn owing(&self) -> impl Iterator<Item = Peer> + '_ {
        let owes = |other: &&Other| other.pieces_missing > 0 || !other.reduced.holds(&other.chunk);
        self.others.iter().filter(owes).map(|other| other.peer)
    }

    fn piece(&self, index: usize) -> Range<usize> {
        let start = self.chunk.start + index * self.piece_elements;
        start..(start + self.piece_elements).min(self.chunk.end)
    }

    /// Sums a piece of this member's chunk if every node's part of it is here.
    fn sum_piece(&mut self, index: usize, actions: &mut Vec<Action<P>>) {
        let (range, foreign) = (self.piece(index), self.others.iter().map(|other| other.nodes.len()).sum::<usize>());
        let piece = &mut self.pieces[index];
        if piece.summed || piece.parts.len() < foreign || self.own.values().any(|there| !there.holds(&range)) {
            return;
        }
        piece.summed = true;
        let (mut parts, mut operations) = (std::mem::take(&mut piece.parts), Vec::new());
        add_in_order(self.root, &self.own, &mut parts, &mut operations);
        self.missing -= range.len();
        actions.push(Action::Sum { range, operations, to: self.others.iter().map(|other| other.peer).collect() });
    }
}

/// The pieces of a chunk that a stretch is a part of, or of which it is.
fn pieces_at(chunk: &Range<usize>, part: &Range<usize>, piece_elements: usize) -> impl Iterator<Item = Range<usize>> {
    let (start, end) = (part.start.max(chunk.start), part.end.min(chunk.end));
    let first = chunk.start + start.saturating_sub(chunk.start) / piece_elements * piece_elements;
    let chunk_end = chunk.end;
    // Of a stretch that is elsewhere there are none.
    let past = if start < end { end } else { first };
    (first..past).step_by(piece_elements).map(move |at| at..(at + piece_elements).min(chunk_end))
}

/// Neighbours made one; what comes in is in order.
fn joined(ranges: impl Iterator<Item = Range<usize>>) -> impl Iterator<Item = Range<usize>> {
    let mut ranges = ranges.peekable();
    std::iter::from_fn(move || {
        let mut range = ranges.next()?;
        while let Some(next) = ranges.next_if(|next| next.start == range.end) {
            range.end = next.end;
        }
        Some(range)
    })
}

/// The additions of the tree below `node`, in postfix order. Every node of the cover is there, so the tree ends at them.
fn add_in_order<P>(
    node: Node,
    own: &BTreeMap<Node, Coverage>,
    parts: &mut BTreeMap<Node, P>,
    operations: &mut Vec<SumOp<P>>,
) {
    if own.contains_key(&node) {
        operations.push(SumOp::Own(node));
    } else if let Some(payload) = parts.remove(&node) {
        operations.push(SumOp::Foreign(node, payload));
    } else if let Some((left, right)) = node.children() {
        add_in_order(left, own, parts, operations);
        add_in_order(right, own, parts, operations);
        operations.push(SumOp::Add);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use events_schema::Generation;
    use events_schema::tree::place;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use workers_session::Seat;

    const PIECE: usize = 4;

    fn membership(workers: u16, members: u16) -> Membership {
        let seats = (0..).map(Peer).zip(place(workers, members)).map(|(peer, ranks)| Seat { peer, ranks }).collect();
        Membership { tag: Tag { generation: Generation(1), revision: 0 }, seats, leader: Peer(0) }
    }

    /// A sum written out: who was added to whom.
    fn written(node: Node) -> String {
        match node.children() {
            Some((left, right)) => format!("({}+{})", written(left), written(right)),
            None => node.first.to_string(),
        }
    }

    fn add(operations: Vec<SumOp<Vec<String>>>, len: usize) -> Vec<String> {
        let mut stack: Vec<Vec<String>> = Vec::new();
        for operation in operations {
            match operation {
                SumOp::Own(node) => stack.push(vec![written(node); len]),
                SumOp::Foreign(_, payload) => stack.push(payload),
                SumOp::Add => {
                    let (right, left) = (stack.pop().unwrap(), stack.pop().unwrap());
                    stack.push(left.iter().zip(&right).map(|(l, r)| format!("({l}+{r})")).collect());
                }
            }
        }
        assert_eq!(stack.len(), 1);
        stack.pop().unwrap()
    }

    type Message = (Kind, usize, Vec<String>);
    enum Kind {
        Partial(Node),
        Reduced,
    }

    /// Runs one reduction with messages delivered in an order drawn from `seed`, links keeping theirs. Gives all sums and the
    /// elements each member sent.
    /// What is whole of own sums is said whole, or in parts cut anywhere, from the end.
    fn run(workers: u16, members: u16, len: usize, cut: usize, mut seed: u64) -> (Vec<Vec<String>>, Vec<usize>) {
        let membership = membership(workers, members);
        let mut reductions: Vec<Reduction<Vec<String>>> =
            membership.peers().map(|p| Reduction::new(&membership, p, workers, Step(5), len, PIECE)).collect();
        let parts = |node: Node| {
            let part = move |start: usize| (node, Some(start..(start + cut).min(len)));
            (0..len).step_by(cut).rev().skip(1).map(part).chain([(node, None)])
        };
        let mut own: Vec<VecDeque<(Node, Option<Range<usize>>)>> = membership
            .seats
            .iter()
            .map(|s| Node::root(workers).cover(&s.ranks).into_iter().flat_map(parts).collect())
            .collect();
        let mut sums = vec![vec![String::new(); len]; usize::from(members)];
        let mut sent = vec![0; usize::from(members)];
        let mut wires: BTreeMap<(u32, u32), VecDeque<Message>> = BTreeMap::new();
        loop {
            let mut choices: Vec<(u32, Option<u32>)> =
                (0..).zip(&own).filter(|(_, nodes)| !nodes.is_empty()).map(|(i, _)| (i, None)).collect();
            choices.extend(wires.iter().filter(|(_, wire)| !wire.is_empty()).map(|(&(from, to), _)| (from, Some(to))));
            if choices.is_empty() {
                break;
            }
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (from, to) = choices[(seed >> 33) as usize % choices.len()];
            let (at, mut actions) = (to.unwrap_or(from) as usize, Vec::new());
            match to {
                None => match own[at].pop_front().unwrap() {
                    (node, None) => reductions[at].on_own(node, &mut actions),
                    (node, Some(part)) => reductions[at].on_own_part(node, part, &mut actions),
                },
                Some(to) => {
                    let (kind, offset, elements) = wires.get_mut(&(from, to)).unwrap().pop_front().unwrap();
                    let (offset, count) = (offset as u64, elements.len());
                    match kind {
                        Kind::Partial(node) => {
                            reductions[at].on_partial(Peer(from), node, offset, count, elements, &mut actions)
                        }
                        Kind::Reduced => reductions[at].on_reduced(Peer(from), offset, count, elements, &mut actions),
                    }
                    .unwrap();
                }
            }
            for action in actions {
                match action {
                    Action::Send { to, node, range } => {
                        sent[at] += range.len();
                        for start in range.clone().step_by(PIECE) {
                            let piece = vec![written(node); PIECE.min(range.end - start)];
                            let wire = wires.entry((at as u32, to.0)).or_default();
                            wire.push_back((Kind::Partial(node), start, piece));
                        }
                    }
                    Action::Sum { range, operations, to } => {
                        let sum = add(operations, range.len());
                        sums[at][range.clone()].clone_from_slice(&sum);
                        for to in to {
                            sent[at] += sum.len();
                            let wire = wires.entry((at as u32, to.0)).or_default();
                            wire.push_back((Kind::Reduced, range.start, sum.clone()));
                        }
                    }
                    Action::Place { offset, payload } => {
                        sums[at][offset..offset + payload.len()].clone_from_slice(&payload);
                    }
                    Action::Whole(node) => sums[at] = vec![written(node); len],
                }
            }
        }
        assert!(reductions.iter().all(|r| r.is_whole() && r.owing().next().is_none()));
        (sums, sent)
    }

    proptest! {
        #[test]
        fn every_sum_is_added_in_the_order_of_the_tree(workers in 1u16..=17, share in 0u16..17, len in 1usize..40, cut in 1usize..40, seed: u64) {
            let members = 1 + share % workers;
            let (sums, sent) = run(workers, members, len, cut, seed);
            let alone = vec![written(Node::root(workers)); len];
            for sum in &sums {
                prop_assert_eq!(sum, &alone);
            }
            let membership = membership(workers, members);
            for (index, seat) in membership.seats.iter().enumerate() {
                let nodes = Node::root(workers).cover(&seat.ranks).len();
                let chunk = chunk(len, index, usize::from(members)).len();
                // (m + 1)·N·(p − 1)/p, up to chunks that differ by an element.
                prop_assert_eq!(sent[index], nodes * (len - chunk) + chunk * (usize::from(members) - 1));
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let membership = membership(4, 2);
        let mut r: Reduction<()> = Reduction::new(&membership, Peer(0), 4, Step(1), 10, 64);
        let (mine, theirs) = (Node { first: 0, count: 2 }, Node { first: 2, count: 2 });
        let out = &mut Vec::new();
        assert_eq!(r.owing().collect::<Vec<_>>(), [Peer(1)]);
        assert!(r.on_partial(Peer(1), mine, 0, 5, (), out).is_err(), "not its node");
        assert!(r.on_partial(Peer(1), theirs, 5, 5, (), out).is_err(), "not our chunk");
        assert!(r.on_partial(Peer(1), theirs, u64::MAX, 5, (), out).is_err(), "nowhere");
        assert!(r.on_partial(Peer(1), theirs, 0, 4, (), out).is_err(), "too short");
        assert!(r.on_partial(Peer(1), theirs, 0, 5, (), out).is_ok());
        assert!(r.on_partial(Peer(1), theirs, 0, 5, (), out).is_err(), "twice");
        assert!(r.on_reduced(Peer(1), 0, 5, (), out).is_err(), "not its chunk");
        assert!(r.on_reduced(Peer(1), 5, 6, (), out).is_err(), "too long");
        out.clear();
        assert!(r.on_reduced(Peer(1), 7, 3, (), out).is_ok() && out.len() == 1, "in any order");
        assert!(r.on_reduced(Peer(1), u64::MAX, 5, (), out).is_err(), "nowhere");
        assert!(r.on_reduced(Peer(1), 5, 5, (), out).is_err(), "a part of it twice");
        assert_eq!(r.owing().count(), 1);
        assert!(r.on_reduced(Peer(1), 5, 2, (), out).is_ok() && out.len() == 2);
        assert!(r.on_reduced(Peer(1), 10, 1, (), out).is_err(), "twice");
        assert!(r.on_reduced(Peer(9), 5, 5, (), out).is_err(), "a stranger");
        assert_eq!(r.owing().count(), 0);
    }
}
