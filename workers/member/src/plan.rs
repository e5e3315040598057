//! Who sums what in a step, and who sends it to whom: of the membership alone, so all of its members come to the same.
//!
//! The flat gradient is cut into one chunk for each member, host by host, and its owner makes the whole sum of it. What is for the owner of a chunk on
//! another host is summed first by the members of a host, as far as their ranks together make nodes of the tree, and the owner's sum comes to them once:
//! its pieces are shared out among them, and who has one sends it for all and hands on what comes back. So a host with m nodes sends
//! (m + 1)·N·(H − 1)/H elements to others, however many members it has. A member alone on its host has nobody to do so with, and if all are on one host
//! nothing goes elsewhere: of those the plan is as if there were no hosts.
//!
//! Knows nothing of what has come; that is `reduce.rs`.

use crate::event::Kind;
use crate::reduce::chunk;
use events_schema::Rank;
use events_schema::tree::Node;
use std::collections::BTreeSet;
use std::ops::Range;
use workers_session::{Membership, Peer, Seat};

/// Who gets which stretch.
pub(crate) type Targets = Vec<(Peer, Range<usize>)>;

/// One member's part of a step.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// The sums that it makes, by where they begin.
    pub duties: Vec<Duty>,
    /// The sums that it brings, and who gets which stretch of each.
    pub own: Vec<(Node, Targets)>,
    /// Which stretches of the whole sum each of the others brings.
    pub brings: Vec<(Peer, Vec<Range<usize>>)>,
    /// The others of its host, who get from it what others' owners bring.
    pub mates: Vec<Peer>,
}

/// A stretch of a sum that one member makes.
#[derive(Debug, Clone)]
pub(crate) struct Duty {
    /// Of the whole sum, or of a node of this host's.
    pub kind: Kind,
    /// Which stretch.
    pub range: Range<usize>,
    /// What others send for it.
    pub parts: Vec<Part>,
    /// Who gets which of it.
    pub to: Targets,
}

/// A stretch of a node's sum that another member sends.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub from: Peer,
    pub node: Node,
    pub range: Range<usize>,
}

impl Duty {
    /// The node whose sum it is.
    pub fn node(&self, root: Node) -> Node {
        if let Kind::Partial(node) = self.kind { node } else { root }
    }

    /// How many nodes' sums come from others for each of its pieces: each piece of a node comes from one member.
    pub fn nodes_from_others(&self) -> usize {
        self.parts.iter().map(|part| part.node).collect::<BTreeSet<Node>>().len()
    }
}

/// The members of one host.
struct Host<'a> {
    /// Its number among the hosts.
    place: usize,
    members: Vec<Sitting<'a>>,
    /// The nodes that their ranks make together.
    nodes: Vec<Node>,
    /// Their chunks, which are neighbours.
    chunks: Range<usize>,
}

/// A member with the nodes that it sums and its chunk.
struct Sitting<'a> {
    seat: &'a Seat,
    nodes: Vec<Node>,
    chunk: Range<usize>,
}

impl Plan {
    /// Of member `me`, for gradients of `len` elements that are sent in pieces of so many.
    pub fn new(membership: &Membership, me: Peer, root: Node, len: usize, piece_elements: usize) -> Self {
        let hosts = hosts(membership, root, len);
        let is_here = |host: &&Host<'_>| host.members.iter().any(|member| member.seat.peer == me);
        let mut plan = Self { duties: Vec::new(), own: Vec::new(), brings: Vec::new(), mates: Vec::new() };
        let Some(here) = hosts.iter().find(is_here) else { return plan };
        let Some(own) = here.members.iter().find(|member| member.seat.peer == me) else { return plan };
        plan.mates = here.members.iter().map(|member| member.seat.peer).filter(|peer| *peer != me).collect();
        plan.own = own.nodes.iter().map(|node| (*node, Vec::new())).collect();
        plan.duties.push(whole_sum(&hosts, here, own, piece_elements));
        for host in &hosts {
            for member in host.members.iter().filter(|member| member.seat.peer != me) {
                if plan.mates.contains(&member.seat.peer) {
                    plan.with_mate(member);
                } else {
                    plan.across(here, me, host, member, piece_elements);
                }
            }
        }
        plan.duties.retain(|duty| !duty.range.is_empty());
        plan.duties.sort_by_key(|duty| duty.range.start);
        plan.brings.sort_by_key(|(peer, _)| *peer);
        plan
    }

    fn with_mate(&mut self, mate: &Sitting<'_>) {
        let (peer, chunk) = (mate.seat.peer, &mate.chunk);
        self.own.iter_mut().for_each(|(_, to)| to.push((peer, chunk.clone())));
        self.bring(peer, chunk.clone());
    }

    /// What is sent to the owner of a chunk on another host, and by whom of this one.
    fn across(&mut self, here: &Host<'_>, me: Peer, there: &Host<'_>, owner: &Sitting<'_>, piece_elements: usize) {
        let to = owner.seat.peer;
        let own = self.own.iter_mut().filter(|(node, _)| here.nodes.contains(node));
        own.for_each(|(_, targets)| targets.push((to, owner.chunk.clone())));
        for (who, range) in here.shared_out(&owner.chunk, there, piece_elements) {
            if who == me {
                self.bring(to, range.clone());
                for node in here.nodes.iter().filter(|node| here.who_has(node).is_none()) {
                    let parts = here.members.iter().filter(|member| member.seat.peer != me);
                    let parts = parts.flat_map(|member| member.parts(*node, &range)).collect();
                    let to = vec![(to, range.clone())];
                    self.duties.push(Duty { kind: Kind::Partial(*node), range: range.clone(), parts, to });
                }
            } else {
                self.bring(who, range.clone());
                let own = self.own.iter_mut().filter(|(node, _)| !here.nodes.contains(node));
                own.for_each(|(_, targets)| targets.push((who, range.clone())));
            }
        }
        if !self.brings.iter().any(|(peer, _)| *peer == to) {
            self.brings.push((to, Vec::new()));
        }
    }

    fn bring(&mut self, peer: Peer, range: Range<usize>) {
        match self.brings.iter_mut().find(|(who, _)| *who == peer) {
            Some((_, ranges)) => ranges.push(range),
            None => self.brings.push((peer, vec![range])),
        }
    }
}

impl Host<'_> {
    /// The member that has the sum of a node of this host's by itself.
    fn who_has(&self, node: &Node) -> Option<Peer> {
        self.members.iter().find(|member| member.nodes.contains(node)).map(|member| member.seat.peer)
    }

    /// Who of this host has to do with which stretch of a chunk on another one, whose chunks are shared out evenly. Cut where pieces of that chunk are: where
    /// they have few, not everybody has some, and who has is another one for each host.
    fn shared_out(&self, chunk: &Range<usize>, there: &Host<'_>, piece_elements: usize) -> Vec<(Peer, Range<usize>)> {
        let count = self.members.len();
        let cut = |share: usize| {
            let even = there.chunks.start + self::chunk(there.chunks.len(), share, count).start;
            let within = even.clamp(chunk.start, chunk.end) - chunk.start;
            let (before, after) = (within / piece_elements * piece_elements, within.next_multiple_of(piece_elements));
            let after = after.min(chunk.len());
            chunk.start + if within - before <= after - within { before } else { after }
        };
        let ends = (1..count).map(cut).chain([chunk.end]);
        let ranges = (0..count).map(cut).zip(ends).map(|(start, end)| start..end);
        let in_turn = self.members.iter().cycle().skip(there.place % count);
        let shared = in_turn.map(|member| member.seat.peer).zip(ranges);
        shared.filter(|(_, range)| !range.is_empty()).collect()
    }
}

impl Sitting<'_> {
    /// What it sends for a stretch of the sum of a node.
    fn parts(&self, of: Node, range: &Range<usize>) -> impl Iterator<Item = Part> {
        let nodes = self.nodes.iter().filter(move |node| is_below(node, of));
        nodes.map(|node| Part { from: self.seat.peer, node: *node, range: range.clone() })
    }
}

/// Whether a node of the tree is another one, or below that.
pub(crate) fn is_below(node: &Node, of: Node) -> bool {
    of.first <= node.first && u32::from(node.first) + u32::from(node.count) <= u32::from(of.first) + u32::from(of.count)
}

/// What the owner of a chunk has to do.
fn whole_sum(hosts: &[Host<'_>], here: &Host<'_>, own: &Sitting<'_>, piece_elements: usize) -> Duty {
    let chunk = &own.chunk;
    let (mut parts, mut to) = (Vec::new(), Vec::new());
    for member in here.members.iter().filter(|member| member.seat.peer != own.seat.peer) {
        parts.extend(member.nodes.iter().map(|node| Part {
            from: member.seat.peer,
            node: *node,
            range: chunk.clone(),
        }));
        to.push((member.seat.peer, chunk.clone()));
    }
    for host in hosts.iter().filter(|host| !std::ptr::eq(*host, here)) {
        let shared = host.shared_out(chunk, here, piece_elements);
        for &node in &host.nodes {
            match host.who_has(&node) {
                Some(from) => parts.push(Part { from, node, range: chunk.clone() }),
                None => {
                    parts.extend(shared.iter().map(|(from, range)| Part { from: *from, node, range: range.clone() }))
                }
            }
        }
        to.extend(shared);
    }
    Duty { kind: Kind::Reduced, range: chunk.clone(), parts, to }
}

/// The hosts of a membership, in the order of their first members.
fn hosts(membership: &Membership, root: Node, len: usize) -> Vec<Host<'_>> {
    let mut seats: Vec<Vec<&Seat>> = Vec::new();
    for seat in &membership.seats {
        match seats.iter_mut().find(|there| there[0].host == seat.host) {
            Some(there) => there.push(seat),
            None => seats.push(vec![seat]),
        }
    }
    let (mut hosts, mut first, count) = (Vec::new(), 0, membership.seats.len());
    for seats in seats {
        let mut ranks: Vec<Rank> = seats.iter().flat_map(|seat| seat.ranks.iter().copied()).collect();
        ranks.sort_unstable();
        let chunks = chunk(len, first, count).start..chunk(len, first + seats.len() - 1, count).end;
        let members = (first..).zip(seats).map(|(index, seat)| Sitting {
            seat,
            nodes: root.cover(&seat.ranks),
            chunk: chunk(len, index, count),
        });
        let members: Vec<Sitting<'_>> = members.collect();
        first += members.len();
        hosts.push(Host { place: hosts.len(), members, nodes: root.cover(&ranks), chunks });
    }
    hosts
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use events_schema::Generation;
    use events_schema::stride::Stride;
    use events_schema::tree::place_on;
    use proptest::prelude::*;
    use workers_session::Tag;

    fn membership(workers: u16, hosts: &[u16]) -> Membership {
        let seats = (0..).map(Peer).zip(place_on(workers, hosts)).zip(hosts);
        let seats = seats.map(|((peer, ranks), &host)| Seat { peer, ranks, host }).collect();
        Membership { tag: Tag { generation: Generation(1), revision: 0 }, seats, leader: Peer(0), stride: Stride::ONE }
    }

    fn plans(workers: u16, hosts: &[u16], len: usize, piece: usize) -> Vec<Plan> {
        let membership = membership(workers, hosts);
        membership.peers().map(|me| Plan::new(&membership, me, Node::root(workers), len, piece)).collect()
    }

    /// Elements of host sums that each member makes.
    fn made(plan: &Plan) -> usize {
        plan.duties.iter().filter(|duty| duty.kind != Kind::Reduced).map(|duty| duty.range.len()).sum()
    }

    #[test]
    fn what_a_host_sums_is_shared_out_among_its_members() {
        let shares = |hosts: &[u16]| plans(16, hosts, 16_000, 10).iter().map(made).collect::<Vec<_>>();
        assert_eq!(shares(&[0, 0, 1, 1]), [4_000; 4]);
        assert_eq!(shares(&[0, 1, 0, 1, 0, 1, 0, 1]), [2_000; 8]);
        // Its one member is given half of what the three others sum, as three pieces.
        let three = shares(&[0, 0, 0, 1]);
        assert!(three[..3].iter().all(|sums| (1_320..=1_340).contains(sums)) && three[3] == 0, "{three:?}");
        assert_eq!(plans(16, &[4, 4, 4], 16_000, 10).iter().map(made).sum::<usize>(), 0, "nothing goes elsewhere");
        assert_eq!(plans(16, &[4, 5, 6], 16_000, 10).iter().map(made).sum::<usize>(), 0, "nobody to sum with");
        assert_eq!(plans(4, &[0, 0, 1, 1], 4, 64).iter().map(made).collect::<Vec<_>>(), [1; 4], "small models too");
    }

    fn has_room(workers: u16, hosts: &[u16], len: usize, piece: usize) {
        for plan in plans(workers, hosts, len, piece) {
            let parts = plan.duties.iter().flat_map(|duty| &duty.parts);
            let elements: usize = parts.map(|part| part.range.len()).sum();
            // Beside the last element of a chunk, which not all have.
            let room = len * (workers.ilog2() as usize).max(2) + usize::from(workers);
            assert!(elements <= room, "{elements} of {room}: {workers} on {hosts:?}, {len} in pieces of {piece}");
        }
    }

    /// One of a host's members was given every chunk that is one piece.
    #[test]
    fn chunks_that_are_one_piece_go_to_members_in_turns() {
        let hosts = [0, 0, 0, 1, 2, 3, 4, 5, 6];
        let made: Vec<usize> = plans(63, &hosts, 9_000, 64_000)[..3].iter().map(made).collect();
        assert!(made[0] > 0 && made == [made[0]; 3], "{made:?}");
        has_room(63, &hosts, 9_000, 64_000);
        has_room(63, &hosts, 64_000, 64_000);
        // A chunk is one element longer than the other.
        has_room(124, &[0, 0, 1, 2], 101_358, 49_707);
    }

    proptest! {
        /// What is sent is awaited, by whom it is sent to, and nothing else.
        #[test]
        fn members_agree_on_who_sends_what(workers in 1u16..=32, share in 0u16..32, hosts in proptest::collection::vec(0u16..4, 1..7),
            len in 1usize..300, piece in 1usize..40,
        ) {
            let hosts: Vec<u16> = (0..=usize::from(share % workers)).map(|member| hosts[member % hosts.len()]).collect();
            let plans = plans(workers, &hosts, len, piece);
            let by_index = || (0..).map(Peer).zip(&plans);
            let mut sent = Vec::new();
            for (me, plan) in by_index() {
                let own = plan.own.iter().flat_map(|(node, to)| to.iter().map(|(to, range)| (*to, *node, range.clone())));
                sent.extend(own.map(|(to, node, range)| (to, me, node, range)));
                for duty in &plan.duties {
                    if let Kind::Partial(node) = duty.kind {
                        sent.extend(duty.to.iter().map(|(to, range)| (*to, me, node, range.clone())));
                    }
                }
            }
            let mut awaited = Vec::new();
            for (me, plan) in by_index() {
                let parts = plan.duties.iter().flat_map(|duty| &duty.parts);
                awaited.extend(parts.map(|part| (me, part.from, part.node, part.range.clone())));
            }
            // One stretch for two sums of neighbouring nodes is one: it is sent once.
            for of in [&mut sent, &mut awaited] {
                of.retain(|(.., range)| !range.is_empty());
                of.sort_by_key(|(to, from, node, range)| (*to, *from, *node, range.start));
            }
            prop_assert_eq!(sent, awaited);
            for (me, plan) in by_index() {
                let mut whole: Vec<Range<usize>> = plan.brings.iter().flat_map(|(_, ranges)| ranges.clone()).collect();
                whole.extend(plan.duties.iter().filter(|duty| duty.kind == Kind::Reduced).map(|duty| duty.range.clone()));
                whole.retain(|range| !range.is_empty());
                whole.sort_by_key(|range| range.start);
                let ends = whole.iter().map(|range| range.end);
                prop_assert!(whole.iter().map(|range| range.start).eq([0].into_iter().chain(ends).take(whole.len())), "{me}: {whole:?}");
                prop_assert_eq!(whole.last().unwrap().end, len);
            }
        }

        /// As `early.rs` counts on: of a step that others are at before this member, no more sums come than it has room for.
        #[test]
        fn what_may_come_before_its_step_has_room(workers in 2u16..=128, share in 1u16..128,
            hosts in proptest::collection::vec(0u16..12, 1..16), (len, piece) in (1usize..128_000).prop_flat_map(|len| (Just(len), 1..=len)),
        ) {
            let hosts: Vec<u16> = (0..=usize::from(share % workers)).map(|member| hosts[member % hosts.len()]).collect();
            has_room(workers, &hosts, len, piece);
        }
    }
}
