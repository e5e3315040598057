//! Whether all members have the same replica, gathered by the leader: at boundaries that it announces, and of every checkpoint by its shards.
//!
//! Beside the training: a checksum is of a boundary that its member is past by then. What it finds is said and ends this membership; nobody
//! can tell which sums a wrong replica has spoiled, so nothing is mended here.

use crate::event::Output;
use crate::message::{CheckpointId, Message, Peer};
use crate::save::COLLECTIONS_MAX;
use crate::shard::ReplicaChecksum;
use crate::state::{Phase, Session};
use events_schema::Step;
use std::collections::BTreeMap;

/// What the leader has heard of boundaries at which replicas are compared. One that stays incomplete gives way to newer ones.
#[derive(Debug, Default)]
pub(crate) struct Comparisons(BTreeMap<CheckpointId, BTreeMap<Peer, ReplicaChecksum>>);

impl Session {
    /// The replica of this boundary is compared, if there is anybody to compare it with.
    pub(crate) fn compare(&mut self, step: Step, out: &mut Vec<Output>) {
        let Phase::Running(running) = &self.phase else { return };
        // The last one is compared with the job's last checkpoint.
        if running.membership.seats.len() > 1 && step.0 < self.config.stops.total {
            out.push(Output::Checksum(CheckpointId { step, tag: running.membership.tag }));
        }
    }

    pub(crate) fn on_own_checksum(&mut self, at: CheckpointId, checksum: ReplicaChecksum, out: &mut Vec<Output>) {
        let me = self.config.me;
        let Phase::Running(running) = &self.phase else { return };
        if running.membership.leader == me {
            self.on_checksum(me, at, checksum, out);
        } else {
            Self::send(running.membership.leader, running.membership.tag, Message::Checksum { at, checksum }, out);
        }
    }

    /// A member's checksum. One of a membership that is over is compared with nothing: the next boundary will be.
    pub(crate) fn on_checksum(
        &mut self,
        from: Peer,
        at: CheckpointId,
        checksum: ReplicaChecksum,
        out: &mut Vec<Output>,
    ) {
        let Phase::Running(running) = &self.phase else { return };
        let membership = &running.membership;
        if !membership.has(from) || at.tag != membership.tag || membership.leader != self.config.me {
            return;
        }
        if at.step > running.next(&self.config) {
            return out.push(Output::Disconnect(from));
        }
        let checksums = self.comparisons.0.entry(at).or_default();
        checksums.insert(from, checksum);
        if checksums.len() == membership.seats.len() {
            let checksums = self.comparisons.0.remove(&at).unwrap_or_default();
            if let Some(minority) = minority(checksums.into_iter()) {
                out.push(Output::Diverged { at, minority });
            }
        }
        while self.comparisons.0.len() > COLLECTIONS_MAX {
            self.comparisons.0.pop_first();
        }
    }
}

/// None if all have the same; else those that have not what more than half of them have: nobody, if nothing is held by so many.
pub(crate) fn minority(checksums: impl Iterator<Item = (Peer, ReplicaChecksum)>) -> Option<Vec<Peer>> {
    let mut holders: BTreeMap<ReplicaChecksum, Vec<Peer>> = BTreeMap::new();
    for (peer, checksum) in checksums {
        holders.entry(checksum).or_default().push(peer);
    }
    if holders.len() <= 1 {
        return None;
    }
    let all: usize = holders.values().map(Vec::len).sum();
    let majority = holders.iter().find(|(_, peers)| peers.len() * 2 > all).map(|(checksum, _)| *checksum);
    let mut differing: Vec<Peer> = holders
        .into_iter()
        .filter(|(checksum, _)| majority.is_some_and(|of| of != *checksum))
        .flat_map(|(_, p)| p)
        .collect();
    differing.sort_unstable();
    Some(differing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Config, Input};
    use crate::message::{Due, Membership, NodeSums, Seat, Tag};
    use crate::state::Running;
    use crate::stride::Stops;
    use events_schema::job::Determinism;
    use events_schema::stride::Stride;
    use events_schema::tree::Node;
    use events_schema::{Generation, Rank};

    fn of(held: &[u8]) -> Option<Vec<u32>> {
        let checksums = (0u32..).zip(held).map(|(peer, byte)| (Peer(peer), ReplicaChecksum([*byte; 16])));
        minority(checksums).map(|peers| peers.into_iter().map(|peer| peer.0).collect())
    }

    #[test]
    fn a_majority_says_who_differs_and_without_one_nobody_is_blamed() {
        assert_eq!(of(&[7]), None);
        assert_eq!(of(&[7, 7, 7]), None);
        assert_eq!(of(&[7, 8, 7]), Some(vec![1]));
        assert_eq!(of(&[9, 7, 7, 8, 7]), Some(vec![0, 3]));
        for undecided in [&[7, 8][..], &[7, 8, 9], &[7, 7, 8, 8], &[7, 7, 8, 9]] {
            assert_eq!(of(undecided), Some(vec![]), "{undecided:?}");
        }
    }

    const TAG: Tag = Tag { generation: Generation(2), revision: 0 };

    /// A member of three that computes step 9, of which 0 leads.
    fn member(me: u32) -> Session {
        let seats = (0..3).map(|n| Seat { peer: Peer(n), ranks: vec![Rank(n as u16)], host: 0 }).collect();
        let config = Config {
            me: Peer(me),
            workers: 3,
            stops: Stops { total: 100, ..Stops::default() },
            behind_max: None,
            determinism: Determinism::D1,
        };
        let mut session = Session::new(config);
        session.phase =
            Phase::Running(Running::new(Membership { tag: TAG, seats, leader: Peer(0), stride: Stride::ONE }, Step(9)));
        session
    }

    fn sums(peer: u32) -> Vec<NodeSums> {
        vec![NodeSums { node: Node { first: peer as u16, count: 1 }, weight: 1.0, loss: 1.0 }]
    }

    /// Three members through step 9, at whose end the leader says that something is due; what each has to do at the boundary.
    fn past_the_boundary(due: Due) -> Vec<(Session, Vec<Output>)> {
        let mut members: Vec<Session> = (0..3).map(member).collect();
        members[0].handle(Input::Due(due));
        // Only who leads is heard on it.
        members[1].handle(Input::Due(Due { checkpoint: true, compare: true }));
        let mut sent = Vec::new();
        for (peer, member) in (0u32..).zip(&mut members) {
            for output in member.handle(Input::Computed(Step(9), sums(peer))) {
                if let Output::Send(to, envelope) = output {
                    sent.push((peer, to, envelope));
                }
            }
        }
        for (from, to, envelope) in sent {
            members[to.0 as usize].handle(Input::Message(Peer(from), envelope));
        }
        members.into_iter().map(|mut m| (m.handle(Input::Completed(Step(9))), m)).map(|(out, m)| (m, out)).collect()
    }

    #[test]
    fn what_the_leader_says_is_due_happens_to_all_at_the_same_boundary() {
        let at = CheckpointId { step: Step(10), tag: TAG };
        for (me, (_, out)) in past_the_boundary(Due { checkpoint: true, compare: false }).into_iter().enumerate() {
            let written = Output::WriteShard { checkpoint: at, index: me as u16, count: 3 };
            assert_eq!(out, [written, Output::Compute(Step(10))]);
        }
        for (_, out) in past_the_boundary(Due { checkpoint: false, compare: true }) {
            assert_eq!(out, [Output::Checksum(at), Output::Compute(Step(10))]);
        }
        for (_, out) in past_the_boundary(Due::default()) {
            assert_eq!(out, [Output::Compute(Step(10))]);
        }
    }

    /// What the leader makes of three checksums, the others' by message.
    fn compared(held: [u8; 3]) -> Vec<Output> {
        let at = CheckpointId { step: Step(10), tag: TAG };
        let mut members = past_the_boundary(Due { checkpoint: false, compare: true });
        let mut said = Vec::new();
        for peer in [1, 2, 0] {
            let checksum = ReplicaChecksum([held[peer]; 16]);
            let out = members[peer].0.handle(Input::Checksum(at, checksum));
            for output in out {
                match output {
                    Output::Send(to, envelope) => {
                        said.extend(members[to.0 as usize].0.handle(Input::Message(Peer(peer as u32), envelope)));
                    }
                    other => said.push(other),
                }
            }
        }
        said
    }

    #[test]
    fn the_leader_finds_the_replica_that_is_not_like_the_others() {
        let at = CheckpointId { step: Step(10), tag: TAG };
        assert_eq!(compared([7, 7, 7]), []);
        assert_eq!(compared([7, 7, 8]), [Output::Diverged { at, minority: vec![Peer(2)] }]);
        assert_eq!(compared([8, 7, 7]), [Output::Diverged { at, minority: vec![Peer(0)] }]);
        assert_eq!(compared([7, 8, 9]), [Output::Diverged { at, minority: vec![] }]);
    }

    #[test]
    fn a_checksum_of_a_membership_that_is_over_counts_for_nothing() {
        let (mut leader, _) = past_the_boundary(Due { checkpoint: false, compare: true }).swap_remove(0);
        let older = CheckpointId { step: Step(10), tag: Tag { revision: 0, generation: Generation(1) } };
        let mut out = Vec::new();
        for peer in 0..3 {
            leader.on_checksum(Peer(peer), older, ReplicaChecksum([peer as u8; 16]), &mut out);
        }
        assert_eq!(out, []);
        leader.on_checksum(Peer(1), CheckpointId { step: Step(99), tag: TAG }, ReplicaChecksum([1; 16]), &mut out);
        assert_eq!(out, [Output::Disconnect(Peer(1))], "nobody is there yet");
    }
}
