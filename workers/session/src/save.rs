//! What a checkpoint and an evaluation need from every member, gathered by the leader.
//!
//! A checkpoint may outlive the membership that began it (its upload runs behind the training), so its shards are known by the
//! checkpoint's own name. One that loses a writer is simply never complete, and a newer one takes its place.

use crate::message::{CheckpointId, Message, Peer, RankMetrics, ShardWritten, Tag};
use crate::state::{Output, Phase, Session, Stage};
use events_schema::Step;
use std::collections::BTreeMap;

/// Checkpoints gathered at once: one being uploaded while the next is taken. An older one gives way.
const COLLECTIONS_MAX: usize = 4;

/// What the leader has gathered.
#[derive(Debug, Default)]
pub(crate) struct Collections {
    shards: BTreeMap<CheckpointId, BTreeMap<u16, (Peer, ShardWritten)>>,
    metrics: Option<(Step, Vec<RankMetrics>)>,
}

impl Session {
    pub(crate) fn write_shard(me: Peer, checkpoint: CheckpointId, writers: &[Peer], out: &mut Vec<Output>) {
        let place = writers.iter().position(|&p| p == me).and_then(|i| u16::try_from(i).ok());
        if let (Some(index), Ok(count)) = (place, u16::try_from(writers.len())) {
            out.push(Output::WriteShard { checkpoint, index, count });
        }
    }

    /// Standing still: writes this member's shard as soon as it holds the replica.
    pub(crate) fn write_still_shard(&mut self, out: &mut Vec<Output>) {
        let me = self.config.me;
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
        Self::write_shard(me, checkpoint, &writers, out);
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

    /// A part of a checkpoint, from who wrote it. Only members are heard, each place is taken once, and all agree how many there are.
    pub(crate) fn on_shard(&mut self, from: Peer, shard: ShardWritten, out: &mut Vec<Output>) {
        let Phase::Running(running) = &self.phase else { return };
        if !running.membership.has(from) {
            return;
        }
        if !shard.is_sound(running.step.next()) {
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
            let shards: Vec<ShardWritten> = shards.map(|(_, shard)| shard).collect();
            let agree = shards.windows(2).all(|pair| pair[0].replica_digest == pair[1].replica_digest);
            out.push(if agree { Output::WriteManifest(id, shards) } else { Output::Diverged(id) });
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
