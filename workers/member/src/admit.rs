//! What a peer may say. It holds the job's key, so it is an executor of this job; but a broken or stolen one must not make this one
//! panic, keep bytes without end, or believe what no correct member says.

use crate::event::{Cause, Config};
use events_schema::Step;
use std::collections::BTreeMap;
use workers_session::{
    Announcement, CheckpointId, Contribution, Envelope, Membership, Message, Peer, RankMetrics, ShardWritten, Tag,
};

/// The fixed part of a message, a checkpoint's key included.
const MESSAGE_BYTES_MIN: usize = 4 << 10;
/// What a message says of one rank: a seat, its sums or its metrics.
const RANK_BYTES_MAX: usize = 128;
/// A correct peer is one boundary ahead at most and says a handful of things there.
const MESSAGES_AHEAD_MAX: usize = 8;
/// Longest key of an object.
const KEY_LEN_MAX: usize = 1 << 10;
/// Predictions of one rank in one evaluation: more than any dataset has, and far from where sums overflow.
const PREDICTIONS_MAX: u64 = 1 << 40;
/// Checkpoints whose cut is remembered, as many as the session gathers at once.
const CHECKPOINTS_MAX: usize = 4;

/// What is remembered to judge by.
#[derive(Debug, Clone, Default)]
pub(crate) struct Admission {
    /// Bytes of messages that wait for a membership to come, by peer.
    ahead: BTreeMap<Peer, usize>,
    /// Into how many shards this member cut the newest checkpoints.
    cuts: BTreeMap<CheckpointId, u16>,
}

impl Admission {
    /// Judges a message. `current` is the membership in force or beginning here.
    pub fn admit(
        &mut self,
        config: &Config,
        current: Option<Tag>,
        from: Peer,
        envelope: &Envelope,
        bytes: usize,
    ) -> Result<(), Cause> {
        let bytes_max = MESSAGE_BYTES_MIN + RANK_BYTES_MAX * usize::from(config.workers);
        if bytes > bytes_max || !self.is_sound(config, envelope) {
            return Err(Cause::Breach);
        }
        if current.is_none_or(|tag| envelope.tag > tag) {
            let ahead = self.ahead.entry(from).or_default();
            *ahead += bytes;
            if *ahead > MESSAGES_AHEAD_MAX * bytes_max {
                return Err(Cause::TooFarAhead);
            }
        }
        Ok(())
    }

    /// This member is where messages ahead of it were said, or they are void.
    pub fn caught_up(&mut self) {
        self.ahead.clear();
    }

    pub fn forget(&mut self, peer: Peer) {
        self.ahead.remove(&peer);
    }

    /// This member writes a shard of a checkpoint that is cut into `count`.
    pub fn cut(&mut self, checkpoint: CheckpointId, count: u16) {
        self.cuts.insert(checkpoint, count);
        while self.cuts.len() > CHECKPOINTS_MAX {
            self.cuts.pop_first();
        }
    }

    fn is_sound(&self, config: &Config, envelope: &Envelope) -> bool {
        let within = |step: Step| step.0 <= config.steps_total;
        let few = |count: usize| count <= usize::from(config.workers);
        match &envelope.message {
            Message::Join { holding } => holding.is_none_or(|h| within(h.step)),
            Message::Start(start) => within(start.step) && few(start.holders.len()) && few(start.lagging.len()),
            Message::Position { step }
            | Message::Settled { step }
            | Message::Done { step }
            | Message::Saved { step } => within(*step),
            Message::Contribution(Contribution { step, sums, announcement, .. }) => {
                let announced = |a: &Announcement| match a {
                    Announcement::Switch(m) => m.tag > envelope.tag && is_sound_membership(config, m),
                    Announcement::Park => true,
                };
                within(*step) && few(sums.len()) && announcement.as_ref().is_none_or(announced)
            }
            Message::Welcome { membership, step } => {
                let mine = membership.has(config.me) && membership.tag == envelope.tag;
                mine && within(*step) && is_sound_membership(config, membership)
            }
            Message::Metrics { step, ranks } => {
                let sound =
                    |m: &RankMetrics| m.rank.0 < config.workers && m.count <= PREDICTIONS_MAX && m.correct <= m.count;
                within(*step) && few(ranks.len()) && ranks.iter().all(sound)
            }
            Message::ShardWritten(shard) => within(shard.checkpoint.step) && self.is_sound_shard(config, shard),
            _ => true,
        }
    }

    fn is_sound_shard(&self, config: &Config, shard: &ShardWritten) -> bool {
        let cut = self.cuts.get(&shard.checkpoint).is_none_or(|count| *count == shard.count);
        let (first, elements, len) = (shard.first_element, shard.elements, config.replica_len as u64);
        let inside = first.checked_add(elements).is_some_and(|end| end <= len);
        cut && inside && shard.index < shard.count && shard.count <= config.workers && shard.key.len() <= KEY_LEN_MAX
    }
}

fn is_sound_membership(config: &Config, membership: &Membership) -> bool {
    membership.is_whole(config.workers) && membership.tag.revision <= u32::from(config.workers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::tests::{config, membership};
    use events_schema::{Digest, Generation, Rank};
    use workers_session::Holding;

    fn tag(generation: u64) -> Tag {
        Tag { generation: Generation(generation), revision: 0 }
    }

    fn judge(message: Message) -> Result<(), Cause> {
        let (mut admission, config) = (Admission::default(), config(1, 4, 9));
        admission.cut(CheckpointId { step: Step(3), tag: tag(2) }, 2);
        admission.admit(&config, Some(tag(2)), Peer(0), &Envelope { tag: tag(2), message }, 100)
    }

    fn shard(index: u16, count: u16, first_element: u64) -> Message {
        let (checkpoint, digest) = (CheckpointId { step: Step(3), tag: tag(2) }, Digest([0; 32]));
        let key = "k".to_owned();
        let shard = ShardWritten {
            checkpoint,
            index,
            count,
            key,
            first_element,
            elements: 1,
            bytes: 4,
            digest,
            replica_digest: digest,
        };
        Message::ShardWritten(shard)
    }

    fn switch(generation: u64, revision: u32, peers: &[u32]) -> Message {
        let mut to = membership(generation, 4, peers);
        to.tag.revision = revision;
        let announcement = Some(Announcement::Switch(to));
        Message::Contribution(Contribution { step: Step(1), sums: Vec::new(), ready: None, announcement })
    }

    #[test]
    fn what_correct_members_say_is_admitted() {
        let holding = Some(Holding { step: Step(9), gradient: true });
        let ranks = vec![RankMetrics { rank: Rank(3), loss: 1.0, correct: 2, count: 3 }];
        for message in [
            Message::Join { holding },
            Message::Metrics { step: Step(9), ranks },
            shard(1, 2, 0),
            switch(3, 0, &[0, 1]),
            switch(2, 1, &[0]),
            Message::LeaveRequest,
        ] {
            assert_eq!(judge(message.clone()), Ok(()), "{message:?}");
        }
    }

    /// Each of these made a member panic by overflow, or believe what is not so.
    #[test]
    fn what_no_correct_member_says_is_refused() {
        let far = Step(u64::MAX);
        let metrics = |rank, correct, count| Message::Metrics {
            step: Step(1),
            ranks: vec![RankMetrics { rank: Rank(rank), loss: 0.0, correct, count }],
        };
        let mut torn = membership(3, 4, &[0, 1]);
        torn.seats[0].ranks.clear();
        let announcement = Some(Announcement::Switch(torn));
        for message in [
            Message::Join { holding: Some(Holding { step: far, gradient: true }) },
            Message::Position { step: far },
            metrics(0, u64::MAX, u64::MAX),
            metrics(0, 2, 1),
            metrics(4, 0, 1),
            shard(2, 2, 0),
            shard(0, 1, 0),
            shard(0, 2, u64::MAX),
            switch(3, u32::MAX, &[0, 1]),
            switch(1, 0, &[0, 1]),
            Message::Welcome { membership: membership(2, 4, &[0, 2]), step: Step(1) },
            Message::Contribution(Contribution { step: Step(1), sums: Vec::new(), ready: None, announcement }),
        ] {
            assert_eq!(judge(message.clone()), Err(Cause::Breach), "{message:?}");
        }
    }

    /// By count alone, 4,096 messages of a mebibyte each were kept.
    #[test]
    fn messages_for_a_future_are_bounded_in_bytes() {
        let (mut admission, config) = (Admission::default(), config(1, 4, 9));
        let envelope = Envelope { tag: tag(7), message: Message::LeaveRequest };
        let mut say = |peer, bytes| admission.admit(&config, Some(tag(2)), Peer(peer), &envelope, bytes);
        assert_eq!(say(0, 1 << 20), Err(Cause::Breach), "no message is that long");
        let most = MESSAGE_BYTES_MIN + 4 * RANK_BYTES_MAX;
        assert_eq!((0..100).filter(|_| say(0, most).is_ok()).count(), MESSAGES_AHEAD_MAX);
        assert_eq!(say(2, most), Ok(()), "each for itself");
        admission.caught_up();
        assert!(admission.admit(&config, Some(tag(2)), Peer(0), &envelope, most).is_ok());
    }
}
