//! What a peer may say. It proved itself, so it is an executor of this job; but a broken or stolen one must not make this one
//! panic, or believe what no correct member says. The session bounds what it keeps, and judges what only it can: here are the
//! numbers.

use crate::event::Config;
use events_schema::Step;
use events_schema::report::{MEASURE_NAME_BYTES_MAX, MEASURES_MAX, PREDICTIONS_MAX};
use workers_session::{Contribution, Envelope, Membership, Message, RankMetrics, ShardWritten};

/// The fixed part of a message, a checkpoint's key included.
const MESSAGE_BYTES_MIN: usize = 4 << 10;
/// What a message says of one rank: a seat, its sums, or its metrics with the sums that the job's code names.
const RANK_BYTES_MAX: usize = 128 + MEASURES_MAX * (MEASURE_NAME_BYTES_MAX + 12);
/// Subtrees of a part at most, two at each height of the tree: a replica has fewer than 2^40 chunks of 1 KiB.
const PART_DIGESTS_MAX: usize = 2 * 40;

/// Whether a correct member can have said it.
pub(crate) fn admits(config: &Config, envelope: &Envelope, bytes: usize) -> bool {
    let bytes_max = MESSAGE_BYTES_MIN + RANK_BYTES_MAX * usize::from(config.workers);
    bytes <= bytes_max && is_sound(config, envelope)
}

fn is_sound(config: &Config, envelope: &Envelope) -> bool {
    let within = |step: Step| step.0 <= config.steps_total;
    let few = |count: usize| count <= usize::from(config.workers);
    match &envelope.message {
        Message::Join { holding } => holding.is_none_or(|h| within(h.step)),
        Message::Start(start) => within(start.step) && few(start.holders.len()) && few(start.lagging.len()),
        Message::Position { step }
        | Message::Done { step }
        | Message::Saved { step }
        | Message::Replica { step, .. }
        | Message::Followed { step } => within(*step),
        Message::Contribution(Contribution { step, .. }) => within(*step),
        Message::Welcome { membership, step, .. } => {
            let mine = membership.has(config.me) && membership.tag == envelope.tag;
            mine && within(*step) && is_sound_membership(config, membership)
        }
        Message::Metrics { step, ranks } => {
            let named = |m: &RankMetrics| {
                m.named.len() <= MEASURES_MAX && m.named.keys().all(|name| name.len() <= MEASURE_NAME_BYTES_MAX)
            };
            let sound = |m: &RankMetrics| {
                m.rank.0 < config.workers && m.count <= PREDICTIONS_MAX && m.correct <= m.count && named(m)
            };
            within(*step) && few(ranks.len()) && ranks.iter().all(sound)
        }
        Message::ShardWritten(shard) => within(shard.checkpoint.step) && is_sound_shard(config, shard),
        Message::Checksum { at, .. } => within(at.step),
        _ => true,
    }
}

fn is_sound_shard(config: &Config, shard: &ShardWritten) -> bool {
    let (first, elements, len) = (shard.first_element, shard.elements, config.replica_len as u64);
    let inside = first.checked_add(elements).is_some_and(|end| end <= len);
    let few = shard.part_digests.0.len() <= PART_DIGESTS_MAX;
    inside && few && shard.index < shard.count && shard.count <= config.workers
}

fn is_sound_membership(config: &Config, membership: &Membership) -> bool {
    membership.is_whole(config.workers) && membership.tag.revision <= u32::from(config.workers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::tests::{config, membership};
    use events_schema::stride::Stride;
    use events_schema::{Digest, Generation, Rank};
    use workers_session::{CheckpointId, Due, Holding, PartDigests, ReplicaChecksum};

    fn tag(generation: u64) -> workers_session::Tag {
        workers_session::Tag { generation: Generation(generation), revision: 0 }
    }

    fn admits(message: Message) -> bool {
        super::admits(&config(1, 4, 9), &Envelope { tag: tag(2), message }, 100)
    }

    fn shard(index: u16, count: u16, first_element: u64) -> Message {
        shard_of(index, count, first_element, PART_DIGESTS_MAX)
    }

    fn shard_of(index: u16, count: u16, first_element: u64, digests: usize) -> Message {
        let (checkpoint, digest) = (CheckpointId { step: Step(3), tag: tag(2) }, Digest([0; 32]));
        let shard = ShardWritten {
            checkpoint,
            index,
            count,
            first_element,
            elements: 1,
            bytes: 4,
            digest,
            checksum: ReplicaChecksum([0; 16]),
            writer: None,
            part_digests: PartDigests(vec![digest; digests]),
        };
        Message::ShardWritten(shard)
    }

    #[test]
    fn what_correct_members_say_is_admitted() {
        let holding = Some(Holding { step: Step(9), gradient: true, tag: None });
        let named = [("perplexity".to_owned(), 4.5)].into();
        let ranks = vec![RankMetrics { rank: Rank(3), loss: 1.0, correct: 2, count: 3, named }];
        for message in [
            Message::Join { holding },
            Message::Metrics { step: Step(9), ranks },
            shard(1, 2, 0),
            Message::LeaveRequest,
        ] {
            assert!(admits(message.clone()), "{message:?}");
        }
    }

    /// Each of these made a member panic by overflow, or believe what is not so.
    #[test]
    fn what_no_correct_member_says_is_refused() {
        let far = Step(u64::MAX);
        let metrics = |rank, correct, count| Message::Metrics {
            step: Step(1),
            ranks: vec![RankMetrics { correct, count, ..RankMetrics::none(Rank(rank)) }],
        };
        let of_many_names = |count: usize, bytes: usize| Message::Metrics {
            step: Step(1),
            ranks: vec![RankMetrics {
                named: (0..count).map(|n| (format!("{n:0bytes$}"), 0.0)).collect(),
                ..RankMetrics::none(Rank(0))
            }],
        };
        let mut torn = membership(2, 4, &[0, 1]);
        torn.seats[0].ranks.clear();
        let mut worn = membership(2, 4, &[0, 1]);
        worn.tag.revision = u32::MAX;
        for message in [
            Message::Join { holding: Some(Holding { step: far, gradient: true, tag: None }) },
            Message::Position { step: far },
            metrics(0, u64::MAX, u64::MAX),
            metrics(0, 2, 1),
            metrics(4, 0, 1),
            of_many_names(MEASURES_MAX + 1, 2),
            of_many_names(1, MEASURE_NAME_BYTES_MAX + 1),
            shard(2, 2, 0),
            shard(0, 2, u64::MAX),
            shard_of(0, 2, 0, PART_DIGESTS_MAX + 1),
            Message::Welcome { membership: torn, step: Step(1), followed: false },
            Message::Welcome { membership: worn, step: Step(1), followed: false },
            Message::Welcome { membership: membership(2, 4, &[0, 2]), step: Step(1), followed: false },
            Message::Contribution(Contribution {
                step: far,
                sums: Vec::new(),
                ready: None,
                announcement: None,
                due: Due::default(),
                followers: Vec::new(),
            }),
            Message::Replica { step: far, stride: Stride::ONE },
            Message::Followed { step: far },
            Message::Checksum { at: CheckpointId { step: far, tag: tag(2) }, checksum: ReplicaChecksum([0; 16]) },
        ] {
            assert!(!admits(message.clone()), "{message:?}");
        }
    }

    #[test]
    fn no_message_is_longer_than_all_ranks_need() {
        let config = config(1, 4, 9);
        let envelope = Envelope { tag: tag(7), message: Message::LeaveRequest };
        let most = MESSAGE_BYTES_MIN + 4 * RANK_BYTES_MAX;
        assert!(super::admits(&config, &envelope, most) && !super::admits(&config, &envelope, most + 1));
    }
}
