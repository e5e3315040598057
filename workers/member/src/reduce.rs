//! The canonical reduction of one step on one member: in which order each stretch of a sum is added, and when. The same bits whatever the placement or
//! order of arrival, because the order of additions is the tree's alone.
//!
//! Who makes which sum and who gets it is `plan.rs`: on one host a member sends its sums of every other member's chunk to that member, which adds them
//! in tree order, piece by piece as they become whole, and sends the sum to all. With m sums on member i of p it sends (m + 1)·N·(p − 1)/p elements.
//!
//! Holds no element.
//!
//! Next on a job's path: `workers/executor/src/sums.rs`.

use crate::coverage::Coverage;
use crate::event::Kind;
use crate::plan::{Duty, Plan, Targets, is_below};
use events_schema::Step;
use events_schema::tree::Node;
use std::collections::BTreeMap;
use std::ops::Range;
use workers_session::{Membership, Peer, Tag};

/// What a step of the reduction asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum Action<P> {
    /// Send a stretch of this member's sum of `node` to who adds it up.
    Send {
        /// That member.
        to: Peer,
        /// Which sum.
        node: Node,
        /// Which elements.
        range: Range<usize>,
    },
    /// A piece of a sum that this member makes is whole: add it up and send it. What is of the whole sum, [`Kind::Reduced`], is put there too.
    Sum {
        /// What it is to those who get it.
        kind: Kind,
        /// Which elements.
        range: Range<usize>,
        /// How, from left to right with a stack: a operation that is no [`SumOp::Add`] is pushed, that one adds the upper to the one below.
        operations: Vec<SumOp<P>>,
        /// Who gets it.
        to: Vec<Peer>,
    },
    /// These elements of the whole sum are here.
    Place {
        /// First element.
        offset: usize,
        /// The elements.
        payload: P,
        /// Who gets them from here: the others of this host, if they came from another one.
        to: Vec<Peer>,
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

/// A piece of a sum on its way to be whole: what others sent of it, by node.
#[derive(Debug, Clone)]
struct Piece<P> {
    parts: BTreeMap<Node, P>,
    summed: bool,
}

/// A sum that this member makes, in pieces.
#[derive(Debug, Clone)]
struct Making<P> {
    duty: Duty,
    node: Node,
    nodes_from_others: usize,
    pieces: Vec<Piece<P>>,
}

/// Another member, and how much of what it owes has come.
#[derive(Debug, Clone)]
struct Other {
    peer: Peer,
    /// Pieces of its sums still to come.
    pieces_missing: usize,
    /// What it brings of the whole sum, and what has come of that.
    brings: Vec<Range<usize>>,
    reduced: Coverage,
}

/// One step's reduction on one member.
#[derive(Debug, Clone)]
pub struct Reduction<P> {
    tag: Tag,
    step: Step,
    /// The nodes whose sums this member brings, and what is there of them.
    own: BTreeMap<Node, Coverage>,
    /// Who gets which stretch of each.
    targets: Vec<(Node, Targets)>,
    others: Vec<Other>,
    mates: Vec<Peer>,
    /// By where they begin.
    makes: Vec<Making<P>>,
    piece_elements: usize,
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
        let (root, piece_elements) = (Node::root(workers), piece_elements.max(1));
        let Plan { duties, own, brings, mates } = Plan::new(membership, me, root, gradient_len, piece_elements);
        let pieces = |range: &Range<usize>| range.len().div_ceil(piece_elements);
        let owed = |peer: Peer| {
            let parts = duties.iter().flat_map(|duty| &duty.parts).filter(|part| part.from == peer);
            parts.map(|part| pieces(&part.range)).sum()
        };
        let other = |(peer, brings)| Other { peer, pieces_missing: owed(peer), brings, reduced: Coverage::default() };
        let others = brings.into_iter().map(other).collect();
        let making = |duty: Duty| Making {
            node: duty.node(root),
            nodes_from_others: duty.nodes_from_others(),
            pieces: (0..pieces(&duty.range)).map(|_| Piece { parts: BTreeMap::new(), summed: false }).collect(),
            duty,
        };
        Self {
            tag: membership.tag,
            step,
            own: own.iter().map(|(node, _)| (*node, Coverage::default())).collect(),
            targets: own,
            others,
            mates,
            makes: duties.into_iter().map(making).collect(),
            piece_elements,
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
        for (to, range) in self.targets.iter().filter(|(of, _)| *of == node).flat_map(|(_, to)| to) {
            let pieces = pieces_at(range, &part, self.piece_elements).filter(|piece| there.holds(piece));
            actions.extend(joined(pieces).map(|range| Action::Send { to: *to, node, range }));
        }
        for at in 0..self.makes.len() {
            let Making { node: of, duty: Duty { range, .. }, .. } = &self.makes[at];
            if is_below(&node, *of) {
                let starts = pieces_at(range, &part, self.piece_elements).map(|piece| piece.start - range.start);
                let indices: Vec<usize> = starts.map(|start| start / self.piece_elements).collect();
                indices.into_iter().for_each(|index| self.sum_piece(at, index, actions));
            }
        }
    }

    /// Whether a stretch of a peer's sum of `node` has a place in this membership's steps: gives which piece of which sum it is.
    #[must_use]
    pub fn place(&self, from: Peer, node: Node, offset: u64, elements: usize) -> Option<(usize, usize)> {
        let offset = usize::try_from(offset).ok()?;
        let sends = |duty: &Duty| {
            let mut parts = duty.parts.iter();
            parts.any(|part| part.from == from && part.node == node && part.range.contains(&offset))
        };
        let at = self.makes.iter().position(|making| making.duty.range.contains(&offset) && sends(&making.duty))?;
        let within = offset - self.makes[at].duty.range.start;
        let index = within / self.piece_elements;
        let fits = within.is_multiple_of(self.piece_elements) && elements == self.piece(at, index).len();
        fits.then_some((at, index))
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
        let Some((at, index)) = self.place(from, node, offset, elements) else { return Err(unfit) };
        let piece = &mut self.makes[at].pieces[index];
        if piece.summed || piece.parts.contains_key(&node) {
            return Err(unfit);
        }
        piece.parts.insert(node, payload);
        self.others.iter_mut().filter(|other| other.peer == from).for_each(|other| other.pieces_missing -= 1);
        self.sum_piece(at, index, actions);
        Ok(())
    }

    /// Takes a stretch of the whole sum from the owner of its chunk, or from who got it from that for this host.
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
        let range = usize::try_from(offset).ok().and_then(|start| Some(start..start.checked_add(elements)?));
        let brings =
            |range: &Range<usize>| other.brings.iter().any(|of| of.start <= range.start && range.end <= of.end);
        let Some(range) = range.filter(|range| !range.is_empty() && brings(range)) else { return Err(unfit) };
        let start = range.start;
        // What went with a link that was lost never comes, so that sum will not be whole: a round makes it good.
        if !other.reduced.take(range) {
            return Err(unfit);
        }
        let to = if self.mates.contains(&from) { Vec::new() } else { self.mates.clone() };
        actions.push(Action::Place { offset: start, payload, to });
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
        let brought = |other: &Other| other.brings.iter().all(|range| other.reduced.holds(range));
        let owes = move |other: &&Other| other.pieces_missing > 0 || !brought(other);
        self.others.iter().filter(owes).map(|other| other.peer)
    }

    fn piece(&self, at: usize, index: usize) -> Range<usize> {
        let Range { start, end } = self.makes[at].duty.range;
        let start = start + index * self.piece_elements;
        start..(start + self.piece_elements).min(end)
    }

    /// Makes a piece of a sum if every node's part of it is here.
    fn sum_piece(&mut self, at: usize, index: usize, actions: &mut Vec<Action<P>>) {
        let range = self.piece(at, index);
        let making = &mut self.makes[at];
        let (node, piece) = (making.node, &mut making.pieces[index]);
        let is_here = |(own, there): (&Node, &Coverage)| !is_below(own, node) || there.holds(&range);
        if piece.summed || piece.parts.len() < making.nodes_from_others || !self.own.iter().all(is_here) {
            return;
        }
        piece.summed = true;
        let (mut parts, mut operations) = (std::mem::take(&mut piece.parts), Vec::new());
        add_in_order(node, &self.own, &mut parts, &mut operations);
        let gets = |(_, of): &&(Peer, Range<usize>)| of.start <= range.start && range.end <= of.end;
        let to = making.duty.to.iter().filter(gets).map(|(peer, _)| *peer).collect();
        if making.duty.kind == Kind::Reduced {
            self.missing -= range.len();
        }
        actions.push(Action::Sum { kind: making.duty.kind, range, operations, to });
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

/// The additions of the tree below `node`, in postfix order. Every node that it is made of is there, so the tree ends at them.
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
    use events_schema::stride::Stride;
    use events_schema::tree::{place, place_on};
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use workers_session::Seat;

    const PIECE: usize = 4;

    /// A member on each of the hosts.
    fn membership(workers: u16, hosts: &[u16]) -> Membership {
        let seats = (0..).map(Peer).zip(place_on(workers, hosts)).zip(hosts);
        let seats = seats.map(|((peer, ranks), &host)| Seat { peer, ranks, host }).collect();
        Membership { tag: Tag { generation: Generation(1), revision: 0 }, seats, leader: Peer(0), stride: Stride::ONE }
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

    /// Runs one reduction with messages delivered in an order drawn from `seed`, links keeping theirs. Gives all sums and the
    /// elements that each member sent to each other.
    /// What is whole of own sums is said whole, or in parts cut anywhere, from the end.
    fn run(membership: &Membership, workers: u16, len: usize, cut: usize, mut seed: u64) -> (Vec<Vec<String>>, Sent) {
        let members = membership.seats.len();
        let mut reductions: Vec<Reduction<Vec<String>>> =
            membership.peers().map(|p| Reduction::new(membership, p, workers, Step(5), len, PIECE)).collect();
        let parts = |node: Node| {
            let part = move |start: usize| (node, Some(start..(start + cut).min(len)));
            (0..len).step_by(cut).rev().skip(1).map(part).chain([(node, None)])
        };
        let mut own: Vec<VecDeque<(Node, Option<Range<usize>>)>> = membership
            .seats
            .iter()
            .map(|s| Node::root(workers).cover(&s.ranks).into_iter().flat_map(parts).collect())
            .collect();
        let mut sums = vec![vec![String::new(); len]; members];
        let mut sent = vec![vec![0; members]; members];
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
                        _ => reductions[at].on_reduced(Peer(from), offset, count, elements, &mut actions),
                    }
                    .unwrap();
                }
            }
            let mut send = |to: Peer, message: Message| {
                sent[at][to.0 as usize] += message.2.len();
                wires.entry((at as u32, to.0)).or_default().push_back(message);
            };
            for action in actions {
                match action {
                    Action::Send { to, node, range } => {
                        for start in range.clone().step_by(PIECE) {
                            let piece = vec![written(node); PIECE.min(range.end - start)];
                            send(to, (Kind::Partial(node), start, piece));
                        }
                    }
                    Action::Sum { kind, range, operations, to } => {
                        let sum = add(operations, range.len());
                        if kind == Kind::Reduced {
                            sums[at][range.clone()].clone_from_slice(&sum);
                        }
                        to.into_iter().for_each(|to| send(to, (kind, range.start, sum.clone())));
                    }
                    Action::Place { offset, payload, to } => {
                        sums[at][offset..offset + payload.len()].clone_from_slice(&payload);
                        to.into_iter().for_each(|to| send(to, (Kind::Reduced, offset, payload.clone())));
                    }
                    Action::Whole(node) => sums[at] = vec![written(node); len],
                }
            }
        }
        assert!(reductions.iter().all(|r| r.is_whole() && r.owing().next().is_none()));
        (sums, sent)
    }

    /// Elements that each member sent to each other.
    type Sent = Vec<Vec<usize>>;

    fn nodes_of<'a>(workers: u16, seats: impl Iterator<Item = &'a Seat>) -> usize {
        let mut ranks: Vec<events_schema::Rank> = seats.flat_map(|seat| seat.ranks.iter().copied()).collect();
        ranks.sort_unstable();
        Node::root(workers).cover(&ranks).len()
    }

    /// What a host sent to the others, and what it should have: (m + 1)·N·(H − 1)/H, of chunks as they are.
    fn across(membership: &Membership, workers: u16, len: usize, sent: &Sent, host: u16) -> (usize, usize) {
        let seats = &membership.seats;
        let here: Vec<usize> = (0..seats.len()).filter(|&at| seats[at].host == host).collect();
        let away = |&at: &usize| !here.contains(&at);
        let crossed = here.iter().map(|&at| (0..seats.len()).filter(away).map(|to| sent[at][to]).sum::<usize>()).sum();
        let mut hosts: Vec<u16> = seats.iter().map(|seat| seat.host).collect();
        // Chunks lie host by host, in the order of first members.
        hosts.sort_by_key(|host| seats.iter().position(|seat| seat.host == *host));
        let chunks = (0..).zip(&hosts).filter(|(_, of)| **of == host);
        let own = chunks.map(|(index, _)| chunk(len, index, seats.len()).len()).sum::<usize>();
        hosts.dedup();
        let nodes = nodes_of(workers, seats.iter().filter(|seat| seat.host == host));
        (crossed, nodes * (len - own) + own * (hosts.len() - 1))
    }

    proptest! {
        #[test]
        fn every_sum_is_added_in_the_order_of_the_tree(workers in 1u16..=17, share in 0u16..17, len in 1usize..60, cut in 1usize..60, seed: u64,
            hosts in proptest::collection::vec(0u16..4, 1..6), placed: bool,
        ) {
            let hosts: Vec<u16> = (0..=usize::from(share % workers)).map(|member| hosts[member % hosts.len()]).collect();
            let mut membership = membership(workers, &hosts);
            if !placed {
                // Placed without regard to hosts, the sum is the same.
                let seats = membership.seats.iter_mut().zip(place(workers, hosts.len() as u16));
                seats.for_each(|(seat, ranks)| seat.ranks = ranks);
            }
            let (sums, sent) = run(&membership, workers, len, cut, seed);
            let alone = vec![written(Node::root(workers)); len];
            for sum in &sums {
                prop_assert_eq!(sum, &alone);
            }
            for &host in &hosts {
                let (crossed, expected) = across(&membership, workers, len, &sent, host);
                prop_assert_eq!(crossed, expected);
            }
        }

        /// On one host, and with one member on each: each sends its sums to the owner of each chunk, and its chunk to all.
        #[test]
        fn a_member_that_sums_with_nobody_sends_its_own_sums(workers in 1u16..=17, share in 0u16..17, len in 1usize..40, seed: u64, apart: bool) {
            let hosts: Vec<u16> = (0..=share % workers).map(|member| if apart { member } else { 7 }).collect();
            let membership = membership(workers, &hosts);
            let (_, sent) = run(&membership, workers, len, len, seed);
            for (index, seat) in membership.seats.iter().enumerate() {
                let nodes = Node::root(workers).cover(&seat.ranks).len();
                let chunk = |index: usize| chunk(len, index, hosts.len()).len();
                for to in (0..hosts.len()).filter(|to| *to != index) {
                    prop_assert_eq!(sent[index][to], nodes * chunk(to) + chunk(index));
                }
            }
        }
    }

    /// Bytes between hosts, as parts of a gradient, by each host: what members sent to all owners, and what hosts send now.
    #[test]
    fn a_host_sends_as_much_however_many_members_it_has() {
        const LEN: usize = 64 * 24;
        let of = |workers: u16, hosts: &[u16]| {
            let membership = membership(workers, hosts);
            let (_, sent) = run(&membership, workers, LEN, LEN, 9);
            let crossed = across(&membership, workers, LEN, &sent, 0).0;
            let p = hosts.len();
            let alone = membership
                .seats
                .iter()
                .filter(|seat| seat.host == 0)
                .map(|seat| nodes_of(workers, [seat].into_iter()) + 1);
            let away = hosts.iter().filter(|host| **host != 0).count();
            (alone.sum::<usize>() as f64 * away as f64 / p as f64, crossed as f64 / LEN as f64)
        };
        // Two hosts of two, three (whose three ranks are two nodes) and four; three hosts of two; and one of three (nine ranks: two nodes) beside one alone.
        assert_eq!(of(4, &[0, 0, 1, 1]), (2.0, 1.0));
        assert_eq!(of(8, &[0, 1, 0, 1]), (2.0, 1.0));
        assert_eq!(of(6, &[0, 0, 0, 1, 1, 1]), (3.0, 1.5));
        assert_eq!(of(8, &[0, 0, 0, 0, 1, 1, 1, 1]), (4.0, 1.0));
        assert_eq!(of(12, &[0, 0, 1, 1, 2, 2]), (8.0 / 3.0, 4.0 / 3.0));
        assert_eq!(of(12, &[0, 0, 0, 1]), (9.0 / 4.0, 5.0 / 4.0));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let membership = membership(4, &[0, 1]);
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
