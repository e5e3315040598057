//! The collective by itself: members that only reduce, over the same links and the same code as the trainer's. For `ebb bench` and for tests that
//! count bytes on the wire; a job uses `trainer.rs`.

use crate::buffers::{Buffer, Pool};
use crate::handshake::Identity;
use crate::inbox::{Event, inbox};
use crate::keys::LinkKeys;
pub use crate::mean::Mean;
pub use crate::network::Memory;
use crate::network::Network;
use crate::stretch::Stretch;
use crate::sums::Sums;
use crate::wire::PIECE_ELEMENTS;
use events_schema::orders::LinkKey;
use events_schema::stride::Stride;
use events_schema::tree::{Node, place_on};
use events_schema::{Digest, Generation, JobId, Step};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use workers_member::{Action, Bulk, Kind, LinkId, Reduction, Unfit};
use workers_session::{Membership, Peer, Seat, Tag};

/// Why a group cannot reduce. All: stop the measurement.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// No port or thread.
    #[error("the operating system refuses")]
    System(#[from] io::Error),
    /// A member is gone or was never there.
    #[error("member {0} is not linked")]
    Lost(Peer),
    /// A member is at another step.
    #[error("a member breaks the protocol")]
    Unfit(#[from] Unfit),
}

/// One member of a fixed group, over `workers` logical workers placed as a controller would.
pub struct Group {
    me: Peer,
    workers: u16,
    membership: Membership,
    network: Network,
    events: Receiver<Event>,
    early: Vec<(Peer, Bulk, Stretch)>,
    sums: Sums,
    /// Of the vectors that `sums` has buffers for.
    elements: usize,
    /// How many elements were sent to whom.
    #[cfg(test)]
    sent: Vec<(Peer, usize)>,
}

impl Group {
    /// Listens on a free port of this host. `name` is the group's; all their links have this `key`, and all have the same `memory`. There is a member on
    /// each of the `hosts`, which are all this one.
    pub fn listen(
        name: &JobId,
        key: [u8; 32],
        me: u32,
        hosts: &[u16],
        workers: u16,
        memory: Memory,
    ) -> io::Result<Self> {
        let (sender, events) = inbox();
        let links = (0..hosts.len() as u32).map(|peer| LinkKey { peer, key }).collect::<Vec<_>>();
        let keys = Arc::new(LinkKeys::of(&links));
        let identity = Identity { job: name.clone(), me: Peer(me), class: Digest([0; 32]), keys };
        let network = Network::listen("127.0.0.1", identity, sender, memory)?;
        let seats = (0..).map(Peer).zip(place_on(workers, hosts)).zip(hosts);
        let seats = seats.map(|((peer, ranks), &host)| Seat { peer, ranks, host }).collect();
        let (tag, leader) = (Tag { generation: Generation(0), revision: 0 }, Peer(0));
        let membership = Membership { tag, seats, leader, stride: Stride::ONE };
        Ok(Self {
            me: Peer(me),
            workers,
            membership,
            sums: Sums::new(Pool::mapped(0), network.pieces(), false),
            network,
            events,
            early: Vec::new(),
            elements: 0,
            #[cfg(test)]
            sent: Vec::new(),
        })
    }

    /// Where this member listens.
    #[must_use]
    pub fn address(&self) -> String {
        self.network.address().to_string()
    }

    /// The tree nodes whose sums this member brings.
    #[must_use]
    pub fn nodes(&self) -> Vec<Node> {
        Node::root(self.workers).cover(self.membership.ranks(self.me))
    }

    /// Links to every member; `addresses` are theirs, in order.
    pub fn link(&mut self, addresses: &[String]) -> Result<(), GroupError> {
        for (peer, address) in (0..self.me.0).map(Peer).zip(addresses) {
            self.network.dial(peer, address.clone());
        }
        let mut missing = self.membership.seats.len() - 1;
        while missing > 0 {
            match self.next_event()? {
                Event::Linked(id, link) => {
                    self.network.linked(id, link);
                    self.network.take(id);
                    missing -= 1;
                }
                Event::Bulk(link, bulk, elements) => self.early.push((link.peer, bulk, elements)),
                _ => {}
            }
        }
        Ok(())
    }

    fn next_event(&self) -> Result<Event, GroupError> {
        match self.events.recv().map_err(|_| GroupError::Lost(self.me))? {
            Event::Lost(LinkId { peer, .. }) | Event::NotLinked(peer) => Err(GroupError::Lost(peer)),
            event => Ok(event),
        }
    }

    /// Reduces one vector: this member's sums, one per node of [`Group::nodes`], in; the sum over all ranks out, where it
    /// was summed.
    pub fn reduce(&mut self, step: u64, sums: Vec<Arc<Buffer>>) -> Result<Mean, GroupError> {
        let step = Step(step);
        let len = sums.first().map_or(0, |s| s.len());
        let mut reduction = Reduction::new(&self.membership, self.me, self.workers, step, len, PIECE_ELEMENTS);
        if len != self.elements {
            (self.sums, self.elements) = (Sums::new(Pool::mapped(len), self.network.pieces(), false), len);
        }
        self.sums.begin(self.membership.seats.len() == 1);
        let (nodes, mut actions) = (self.nodes(), Vec::new());
        for (&node, sum) in nodes.iter().zip(sums) {
            self.sums.set(node, sum);
            reduction.on_own(node, &mut actions);
            self.perform(&mut actions, step);
        }
        for (peer, bulk, elements) in std::mem::take(&mut self.early) {
            self.on_bulk(&mut reduction, peer, bulk, elements)?;
        }
        while !reduction.is_whole() {
            if let Event::Bulk(link, bulk, elements) = self.next_event()? {
                self.on_bulk(&mut reduction, link.peer, bulk, elements)?;
            }
        }
        nodes.into_iter().for_each(|node| self.sums.release(node));
        Ok(self.sums.take_total())
    }

    fn on_bulk(
        &mut self,
        reduction: &mut Reduction<Stretch>,
        from: Peer,
        bulk: Bulk,
        elements: Stretch,
    ) -> Result<(), GroupError> {
        let (_, step) = reduction.at();
        if bulk.step > step {
            self.early.push((from, bulk, elements));
            return Ok(());
        }
        let mut actions = Vec::new();
        match bulk.kind {
            Kind::Partial(node) => {
                reduction.on_partial(from, node, bulk.offset, bulk.elements, elements, &mut actions)?;
            }
            _ => reduction.on_reduced(from, bulk.offset, bulk.elements, elements, &mut actions)?,
        }
        self.perform(&mut actions, step);
        Ok(())
    }

    fn perform(&mut self, actions: &mut Vec<Action<Stretch>>, step: Step) {
        for action in actions.drain(..) {
            self.sums.reduce(action, &mut |slice| {
                #[cfg(test)]
                self.sent.push((slice.to, slice.range.len()));
                self.network.send(slice, self.membership.tag, step);
            });
        }
    }

    /// Waits until everything sent is written, for a bounded time.
    pub fn flush(&self) {
        self.network.flush();
    }

    /// Bytes written so far: elements, and everything else (headers and control messages).
    #[must_use]
    pub fn bytes_sent(&self) -> (u64, u64) {
        self.network.bytes_sent()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::sums::add;
    use crate::wire::HEADER_LEN;
    use events_schema::tree::fold;
    use std::sync::mpsc::channel;
    use workers_member::chunk;

    fn gradient(node: Node, len: usize) -> Vec<f32> {
        let mut leaf = |n: Node| {
            (n.count == 1)
                .then(|| (0..len).map(|i| ((i + 1) as f32).sin() / (f32::from(n.first) + 0.7)).collect::<Vec<f32>>())
        };
        let mut join = |mut left: Vec<f32>, right: Vec<f32>| {
            add(&mut left, &right);
            left
        };
        fold(node, &mut leaf, &mut join).unwrap()
    }

    /// Real links: the sum's bits, and what it costs on the wire.
    #[test]
    fn bytes_on_the_wire_are_those_of_the_formula() {
        [Memory::Copied, Memory::Lent].into_iter().for_each(bytes_are_those_of_the_formula);
    }

    fn bytes_are_those_of_the_formula(memory: Memory) {
        for (members, workers) in [(1u16, 4u16), (2, 8), (3, 8), (4, 4), (5, 7)] {
            let groups = summed(&vec![0; usize::from(members)], workers, memory);
            for group in &groups {
                let (bulk, headers) = group.bytes_sent();
                let (partials, own) =
                    (group.nodes().len(), chunk(LEN, group.me.0 as usize, usize::from(members)).len());
                let elements = partials * (LEN - own) + own * (usize::from(members) - 1);
                assert_eq!(bulk, 4 * elements as u64 * ROUNDS, "(m + 1) N (p - 1) / p");
                let frames = headers / HEADER_LEN as u64;
                assert!(frames * 4 * (HEADER_LEN as u64) < bulk || bulk == 0, "headers do not count");
            }
        }
    }

    /// Members of two hosts, all of them here: what one host sends to the other does not grow with how many they are.
    #[test]
    fn between_hosts_there_are_the_sums_of_hosts() {
        for memory in [Memory::Copied, Memory::Lent] {
            for (hosts, workers, nodes) in [(&[0, 1, 0, 1][..], 8, 1), (&[0, 0, 0, 1, 1, 1], 6, 2), (&[0, 0, 1], 3, 1)]
            {
                let groups = summed(hosts, workers, memory);
                let here = |group: &&Group| hosts[group.me.0 as usize] == 0;
                let own: usize = hosts.iter().filter(|host| **host == 0).count();
                let own = chunk(LEN, 0, hosts.len()).len() * own;
                let sent = groups.iter().filter(here).flat_map(|group| &group.sent);
                let across = sent.filter(|(to, _)| hosts[to.0 as usize] != 0).map(|(_, elements)| *elements as u64);
                assert_eq!(across.sum::<u64>(), (nodes * (LEN - own) + own) as u64 * ROUNDS, "(m + 1) N (H - 1) / H");
            }
        }
    }

    const LEN: usize = 300_000;
    const ROUNDS: u64 = 3;

    /// Members that have summed some rounds, and all have the bits that one process has.
    fn summed(hosts: &[u16], workers: u16, memory: Memory) -> Vec<Group> {
        let name = JobId::parse("job-bench").unwrap();
        let me = 0..hosts.len() as u32;
        let groups = me.map(|me| Group::listen(&name, [5; 32], me, hosts, workers, memory).unwrap());
        let groups: Vec<Group> = groups.collect();
        let addresses: Vec<String> = groups.iter().map(Group::address).collect();
        let expected = gradient(Node::root(workers), LEN);
        let (done, results) = channel();
        for mut group in groups {
            let (addresses, done) = (addresses.clone(), done.clone());
            std::thread::spawn(move || {
                group.link(&addresses).unwrap();
                let pool = Pool::mapped(LEN);
                let mapped = |node: Node| {
                    let mut buffer = pool.take();
                    buffer.copy_from_slice(&gradient(node, LEN));
                    Arc::new(buffer)
                };
                let sums: Vec<Arc<Buffer>> = group.nodes().into_iter().map(mapped).collect();
                let mut last = Vec::new();
                for step in 0..ROUNDS {
                    last = group.reduce(step, sums.clone()).unwrap().to_vec();
                }
                group.flush();
                // The group goes along, so that no member hangs up while another still reads.
                done.send((group, last)).unwrap();
            });
        }
        let results = hosts.iter().map(|_| results.recv().unwrap());
        let same = |(group, sum): (Group, Vec<f32>)| {
            assert!(sum.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits()));
            group
        };
        results.map(same).collect()
    }
}
