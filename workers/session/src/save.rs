//! What a checkpoint and an evaluation need from every member, gathered by the leader.
//!
//! A checkpoint may outlive the membership that began it (its upload runs behind the training), so its shards are known by the
//! checkpoint's own name. One that loses a writer is simply never complete, and a newer one takes its place.

use crate::compare::minority;
use crate::event::Output;
use crate::message::{CheckpointId, Message, Peer, RankMetrics, Tag};
use crate::shard::ShardWritten;
use crate::state::{Phase, Session, Stage};
use events_schema::Step;
use std::collections::BTreeMap;

/// Checkpoints gathered at once: one being uploaded while the next is taken. An older one gives way.
pub(crate) const COLLECTIONS_MAX: usize = 4;

/// What the leader has gathered.
#[derive(Debug, Default)]
pub(crate) struct Collections {
    shards: BTreeMap<CheckpointId, BTreeMap<u16, (Peer, ShardWritten)>>,
    /// Who writes which part of the newest checkpoints, as far as this member came past their boundaries.
    writers: BTreeMap<CheckpointId, Vec<Peer>>,
    metrics: Option<(Step, Vec<RankMetrics>)>,
}

impl Collections {
    /// From here on it is known whose each part is; a part that came before from somebody else does not count.
    fn expect(&mut self, checkpoint: CheckpointId, writers: &[Peer]) {
        if let Some(shards) = self.shards.get_mut(&checkpoint) {
            shards.retain(|_, (from, shard)| is_place_of(*from, shard, writers));
        }
        self.writers.insert(checkpoint, writers.to_vec());
        while self.writers.len() > COLLECTIONS_MAX {
            self.writers.pop_first();
        }
    }

    /// Whether a member can have written this part; of a checkpoint that it knows nothing of, anybody.
    fn can_be_of(&self, from: Peer, shard: &ShardWritten) -> bool {
        self.writers.get(&shard.checkpoint).is_none_or(|writers| is_place_of(from, shard, writers))
    }
}

fn is_place_of(from: Peer, shard: &ShardWritten, writers: &[Peer]) -> bool {
    usize::from(shard.count) == writers.len() && writers.get(usize::from(shard.index)) == Some(&from)
}

impl Session {
    pub(crate) fn write_shard(&mut self, checkpoint: CheckpointId, writers: &[Peer], out: &mut Vec<Output>) {
        let me = self.config.me;
        let place = writers.iter().position(|&p| p == me).and_then(|i| u16::try_from(i).ok());
        if !writers.is_empty() {
            self.collections.expect(checkpoint, writers);
        }
        if let (Some(index), Ok(count)) = (place, u16::try_from(writers.len())) {
            out.push(Output::WriteShard { checkpoint, index, count });
        }
    }

    /// Standing still: writes this member's shard as soon as it holds the replica.
    pub(crate) fn write_still_shard(&mut self, out: &mut Vec<Output>) {
        let Phase::Running(running) = &self.phase else { return };
        let Stage::Still { ordered: false, .. } = running.stage else { return };
        let checkpoint = CheckpointId { step: running.step, tag: running.membership.tag };
        let writers: Vec<Peer> = running.membership.peers().collect();
        if !self.holds(checkpoint.step) {
            return;
        }
        if let Phase::Running(running) = &mut self.phase {
            running.stage = Stage::Still { ordered: true, saved: false };
        }
        self.write_shard(checkpoint, &writers, out);
    }

    pub(crate) fn on_own_shard(&mut self, shard: ShardWritten, out: &mut Vec<Output>) {
        let me = self.config.me;
        // Also while leaving or joining nothing is lost: the checkpoint just stays incomplete.
        let Phase::Running(running) = &self.phase else { return };
        if running.membership.leader == me {
            self.on_shard(me, shard, out);
        } else {
            Self::send(running.membership.leader, running.membership.tag, Message::ShardWritten(shard), out);
        }
    }

    /// A part of a checkpoint, from who wrote it. Only members are heard, for their own place, each once, and all agree how many there are.
    pub(crate) fn on_shard(&mut self, from: Peer, shard: ShardWritten, out: &mut Vec<Output>) {
        let Phase::Running(running) = &self.phase else { return };
        if !running.membership.has(from) {
            return;
        }
        // An earlier membership may have been ahead of where this one begins. All of that was given up: its parts come late, and are not kept either, as
        // the newest are, or they would take the room of those to come.
        let newest = running.next(&self.config);
        if shard.checkpoint.tag != running.membership.tag && shard.checkpoint.step > newest {
            return;
        }
        if !shard.is_sound(newest) || !self.collections.can_be_of(from, &shard) {
            return out.push(Output::Disconnect(from));
        }
        let (id, count) = (shard.checkpoint, usize::from(shard.count));
        let shards = self.collections.shards.entry(id).or_default();
        let taken = shards.values().any(|(writer, _)| *writer == from) || shards.contains_key(&shard.index);
        if taken || shards.values().any(|(_, other)| other.count != shard.count) {
            return;
        }
        shards.insert(shard.index, (from, shard));
        if shards.len() >= count && self.leads() {
            let shards = self.collections.shards.remove(&id).unwrap_or_default().into_values();
            let shards: Vec<(Peer, ShardWritten)> = shards.collect();
            let differing = minority(shards.iter().map(|(writer, shard)| (*writer, shard.checksum)));
            out.push(match differing {
                None => Output::WriteManifest(id, shards.into_iter().map(|(_, shard)| shard).collect()),
                Some(minority) => Output::Diverged { at: id, minority },
            });
        }
        while self.collections.shards.len() > COLLECTIONS_MAX {
            self.collections.shards.pop_first();
        }
    }

    /// The leader: a manifest is in the store. If everybody stands still for it, they may go.
    pub(crate) fn on_saved(&mut self, checkpoint: CheckpointId, out: &mut Vec<Output>) {
        let me = self.config.me;
        let Phase::Running(running) = &self.phase else { return };
        let (step, tag) = (checkpoint.step, running.membership.tag);
        if checkpoint.tag != tag || running.step != step || !matches!(running.stage, Stage::Still { .. }) {
            return;
        }
        for peer in running.membership.others(me) {
            Self::send(peer, tag, Message::Saved { step }, out);
        }
        self.release_still(out);
    }

    pub(crate) fn on_peer_saved(&mut self, from: Peer, tag: Tag, step: Step, out: &mut Vec<Output>) {
        let Phase::Running(running) = &self.phase else { return };
        let still = matches!(running.stage, Stage::Still { .. }) && running.step == step;
        if still && running.membership.leader == from && running.membership.tag == tag {
            self.release_still(out);
        }
    }

    fn release_still(&mut self, out: &mut Vec<Output>) {
        if let Phase::Running(running) = &mut self.phase {
            running.stage = Stage::Still { ordered: true, saved: true };
        }
        if self.leave {
            self.exit(out);
        }
    }

    pub(crate) fn on_evaluated(&mut self, step: Step, ranks: Vec<RankMetrics>, out: &mut Vec<Output>) {
        let me = self.config.me;
        let Phase::Running(running) = &self.phase else { return };
        if running.membership.leader == me {
            self.on_metrics(step, ranks, out);
        } else {
            Self::send(running.membership.leader, running.membership.tag, Message::Metrics { step, ranks }, out);
        }
    }

    pub(crate) fn on_metrics(&mut self, step: Step, ranks: Vec<RankMetrics>, out: &mut Vec<Output>) {
        let workers = self.config.workers;
        let gathered = match &mut self.collections.metrics {
            Some((of, gathered)) if *of == step => gathered,
            other => &mut other.insert((step, Vec::new())).1,
        };
        for metrics in ranks {
            if !gathered.iter().any(|g| g.rank == metrics.rank) {
                gathered.push(metrics);
            }
        }
        if let Some(total) = RankMetrics::total(workers, gathered) {
            self.collections.metrics = None;
            out.push(Output::Evaluation(step, total));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Config;
    use crate::message::{Due, Membership, Seat};
    use crate::shard::{PartDigests, ReplicaChecksum};
    use crate::state::Running;
    use crate::stride::Stops;
    use events_schema::job::Determinism;
    use events_schema::stride::Stride;
    use events_schema::{Digest, Generation, Rank};

    const TAG: Tag = Tag { generation: Generation(2), revision: 0 };
    const ID: CheckpointId = CheckpointId { step: Step(10), tag: TAG };

    /// The leader of three members, at the boundary before step 10.
    fn leader() -> Session {
        let seats = (0..3).map(|n| Seat { peer: Peer(n), ranks: vec![Rank(n as u16)], host: 0 }).collect();
        let config = Config {
            me: Peer(0),
            workers: 3,
            stops: Stops { total: 100, checkpoint: Some(10), ..Stops::default() },
            behind_max: None,
            determinism: Determinism::D1,
        };
        let mut session = Session::new(config);
        session.phase =
            Phase::Running(Running::new(Membership { tag: TAG, seats, leader: Peer(0), stride: Stride::ONE }, Step(9)));
        session
    }

    fn part(index: u16, count: u16) -> ShardWritten {
        let (digest, checksum, part_digests) = (Digest([1; 32]), ReplicaChecksum([2; 16]), PartDigests::default());
        let (checkpoint, first_element, elements, bytes, writer) = (ID, 0, 1, 4, None);
        ShardWritten {
            checkpoint,
            index,
            count,
            first_element,
            elements,
            bytes,
            digest,
            checksum,
            writer,
            part_digests,
        }
    }

    fn heard(session: &mut Session, from: u32, shard: ShardWritten) -> Vec<Output> {
        let mut out = Vec::new();
        session.on_shard(Peer(from), shard, &mut out);
        out
    }

    /// Else whoever says first that a part is written decides who has written it, and of how many.
    #[test]
    fn a_member_speaks_for_its_own_part_only() {
        let mut session = leader();
        session.advance(Step(10), Due::default(), None, &mut Vec::new());
        for (from, index, count) in [(1, 2, 3), (1, 1, 2), (2, 1, 3)] {
            assert_eq!(
                heard(&mut session, from, part(index, count)),
                [Output::Disconnect(Peer(from))],
                "{from} {index}"
            );
        }
        assert_eq!([0, 1].map(|n| heard(&mut session, n, part(n as u16, 3))), [vec![], vec![]]);
        assert!(
            matches!(heard(&mut session, 2, part(2, 3))[..], [Output::WriteManifest(ID, ref shards)] if shards.len() == 3)
        );
    }

    /// The job begins anew at step 9 after a membership that was ahead: what was written then comes late, and is nobody's fault.
    #[test]
    fn a_part_of_a_membership_that_was_given_up_may_be_of_a_later_step() {
        let mut session = leader();
        let of = |generation, step| {
            let tag = Tag { generation: Generation(generation), revision: 0 };
            ShardWritten { checkpoint: CheckpointId { step: Step(step), tag }, ..part(1, 3) }
        };
        assert_eq!(heard(&mut session, 1, of(1, 60)), []);
        assert!(session.collections.shards.is_empty(), "it takes nobody's room");
        assert_eq!(heard(&mut session, 1, of(2, 60)), [Output::Disconnect(Peer(1))], "in this one nobody is there yet");
    }

    #[test]
    fn a_part_that_came_before_the_boundary_counts_if_it_is_its_writer_s() {
        let mut session = leader();
        assert_eq!(heard(&mut session, 1, part(1, 3)), []);
        assert_eq!(heard(&mut session, 2, part(0, 3)), [], "nobody can know yet");
        session.advance(Step(10), Due::default(), None, &mut Vec::new());
        assert_eq!(heard(&mut session, 0, part(0, 3)), []);
        assert!(matches!(heard(&mut session, 2, part(2, 3))[..], [Output::WriteManifest(..)]));
    }
}
