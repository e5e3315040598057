//! What members of a job say to each other, and the membership they say it in. Bulk data (gradients, replicas) is not here.
//!
//! Numbered CBOR like every record of Ebb, but never stored: both ends are the same build, because a running job keeps it.

use crate::shard::{ReplicaChecksum, ShardWritten};
use events_schema::fact::{Member, Proposal, hosts};
use events_schema::job::Determinism;
use events_schema::report::{MEASURES_MAX, Mean, Metrics};
use events_schema::stride::Stride;
use events_schema::tree::{Hosting, Node, fold, place_again};
use events_schema::{Generation, Rank, Step};
use minicbor::{Decode, Encode};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// An executor of this job: its number within the job. Never reused, so a lost peer's number stays dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
#[cbor(transparent)]
pub struct Peer(#[n(0)] pub u32);

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "e{}", self.0)
    }
}

/// Names one membership. The controller numbers generations; members that leave by consent number revisions within one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
pub struct Tag {
    /// The controller's number.
    #[n(0)]
    pub generation: Generation,
    /// Departures by consent since the generation began.
    #[n(1)]
    pub revision: u32,
}

impl std::fmt::Display for Tag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "g{}.{}", self.generation, self.revision)
    }
}

/// One member and the ranks it hosts (sorted).
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Seat {
    /// The member it is about.
    #[n(0)]
    pub peer: Peer,
    /// Hosts these.
    #[n(1)]
    pub ranks: Vec<Rank>,
    /// Where it is: members of one host have the same number.
    #[n(2)]
    pub host: u16,
}

/// Who steps together. Seats are sorted by peer and together host every rank once.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Membership {
    /// Its name.
    #[n(0)]
    pub tag: Tag,
    /// Its members.
    #[n(1)]
    pub seats: Vec<Seat>,
    /// Who paces the steps; one of the seats.
    #[n(2)]
    pub leader: Peer,
    /// Steps that an update takes.
    #[n(3)]
    pub stride: Stride,
}

impl Membership {
    /// The membership a proposal asks for.
    #[must_use]
    pub fn of(proposal: &Proposal) -> Self {
        let seat = |(m, host): (&Member, u16)| Seat { peer: Peer(m.executor.number), ranks: m.ranks.clone(), host };
        let hosts = hosts(proposal.members.iter().map(|member| &member.address[..]));
        let mut seats: Vec<Seat> = proposal.members.iter().zip(hosts).map(seat).collect();
        seats.sort_by_key(|s| s.peer);
        let (tag, leader) = (Tag { generation: proposal.generation, revision: 0 }, Peer(proposal.leader.number));
        Self { tag, seats, leader, stride: proposal.stride }
    }

    /// Whether every rank of `0..workers` has exactly one seat, no peer sits twice and the leader sits.
    #[must_use]
    pub fn is_whole(&self, workers: u16) -> bool {
        let mut ranks: Vec<Rank> = self.seats.iter().flat_map(|s| s.ranks.iter().copied()).collect();
        ranks.sort_unstable();
        let peers_differ = self.seats.windows(2).all(|pair| pair[0].peer < pair[1].peer);
        let sorted = self.seats.iter().all(|s| s.ranks.is_sorted() && !s.ranks.is_empty());
        peers_differ && sorted && self.has(self.leader) && ranks.iter().copied().eq((0..workers).map(Rank))
    }

    /// Whether it can take over from `before` at a boundary: whole, newer, and with somebody who holds the replica.
    #[must_use]
    pub fn can_follow(&self, before: &Membership, workers: u16) -> bool {
        self.is_whole(workers) && self.tag > before.tag && before.has(self.leader)
    }

    /// Whether `peer` is a member.
    #[must_use]
    pub fn has(&self, peer: Peer) -> bool {
        self.index(peer).is_some()
    }

    /// The place of `peer` among the seats.
    #[must_use]
    pub fn index(&self, peer: Peer) -> Option<usize> {
        self.seats.binary_search_by_key(&peer, |s| s.peer).ok()
    }

    /// The ranks `peer` hosts; none when it is no member.
    #[must_use]
    pub fn ranks(&self, peer: Peer) -> &[Rank] {
        self.index(peer).map_or(&[], |i| &self.seats[i].ranks)
    }

    /// All members in order.
    pub fn peers(&self) -> impl Iterator<Item = Peer> + '_ {
        self.seats.iter().map(|s| s.peer)
    }

    /// All members but one, in order.
    pub fn others(&self, me: Peer) -> impl Iterator<Item = Peer> + '_ {
        self.peers().filter(move |&p| p != me)
    }

    /// Members of `self` that are not in `other`.
    #[must_use]
    pub fn minus(&self, other: &Membership) -> Vec<Peer> {
        self.peers().filter(|&p| !other.has(p)).collect()
    }

    /// Members of both.
    #[must_use]
    pub fn and(&self, other: &Membership) -> Vec<Peer> {
        self.peers().filter(|&p| other.has(p)).collect()
    }

    /// As it is to those who sum: how many gradients the sum of a step is made of, and who computes which. One for each of the `workers`; where the
    /// replica may depend on who was a member, one for each member, host by host.
    #[must_use]
    pub fn computing(&self, workers: u16, determinism: Determinism) -> (u16, Cow<'_, Membership>) {
        match determinism {
            Determinism::D1 => (workers, Cow::Borrowed(self)),
            Determinism::None => {
                let seat = |(rank, seat): (u16, &Seat)| Seat { ranks: vec![Rank(rank)], ..*seat };
                let mut seats: Vec<&Seat> = self.seats.iter().collect();
                seats.sort_by_key(|seat| (seat.host, seat.peer));
                let mut seats: Vec<Seat> = (0..).zip(seats).map(seat).collect();
                seats.sort_by_key(|seat| seat.peer);
                (seats.len() as u16, Cow::Owned(Membership { seats, ..*self }))
            }
        }
    }

    /// The next revision, without `leavers`; `None` when nobody would be left. Only their ranks move, as far as that keeps shares of few nodes. A leader
    /// that leaves hands over to the lowest.
    #[must_use]
    pub fn without(&self, leavers: &[Peer], workers: u16) -> Option<Membership> {
        let stayers: Vec<&Seat> = self.seats.iter().filter(|seat| !leavers.contains(&seat.peer)).collect();
        let lowest = stayers.first()?.peer;
        let leader = if leavers.contains(&self.leader) { lowest } else { self.leader };
        let hosted: Vec<Hosting<'_>> =
            stayers.iter().map(|seat| Hosting { host: seat.host, ranks: &seat.ranks }).collect();
        let shares = place_again(workers, &hosted);
        let seats = stayers.iter().zip(shares).map(|(seat, ranks)| Seat { ranks, ..**seat }).collect();
        let tag = Tag { revision: self.tag.revision + 1, ..self.tag };
        Some(Self { tag, seats, leader, stride: self.stride })
    }
}

/// A message and the membership it is said in.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct Envelope {
    /// Of the sender's membership, or of the one it prepares.
    #[n(0)]
    pub tag: Tag,
    /// What is said.
    #[n(1)]
    pub message: Message,
}

impl Envelope {
    /// Its size as it is sent, for bounds on what is kept.
    #[must_use]
    pub fn bytes(&self) -> usize {
        events_schema::batch::to_bytes(self).len()
    }
}

/// What members say.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub enum Message {
    /// To the leader of a beginning generation: I am linked to every member, and this is my replica.
    #[n(0)]
    Join {
        /// None without a whole replica.
        #[n(0)]
        holding: Option<Holding>,
    },
    /// From the leader, when everybody joined: this step is next, and these get what they lack first.
    #[n(1)]
    Start(#[n(0)] Start),
    /// From the leader: no member has a replica. Everybody exits, so that the controller goes back to a checkpoint.
    #[n(2)]
    Dissolve,
    /// To a newcomer that linked up: this is where we are, so prefetch from here.
    #[n(3)]
    Position {
        /// The step in flight.
        #[n(0)]
        step: Step,
    },
    /// From a newcomer to every member of the generation it prepares for.
    #[n(4)]
    Ready,
    /// A member's part of a step: its sums are on their way, and these are their scalars.
    #[n(5)]
    Contribution(#[n(0)] Contribution),
    /// To a newcomer at the boundary: you are in.
    #[n(6)]
    Welcome {
        /// In force from `step` on.
        #[n(0)]
        membership: Membership,
        /// First step of it.
        #[n(1)]
        step: Step,
        /// The newcomer has followed and gets to the replica of `step` by what it was sent; otherwise the replica follows.
        #[n(2)]
        followed: bool,
    },
    /// To a leaver: I completed this step and need nothing more of you.
    #[n(8)]
    Done {
        /// The step completed.
        #[n(0)]
        step: Step,
    },
    /// To the leader: let me go at the next boundary.
    #[n(9)]
    LeaveRequest,
    /// To the leader: evaluation of my ranks at this step's replica.
    #[n(10)]
    Metrics {
        /// The replica's step.
        #[n(0)]
        step: Step,
        /// One entry per rank hosted.
        #[n(1)]
        ranks: Vec<RankMetrics>,
    },
    /// To the leader: my part of a checkpoint is in the store.
    #[n(11)]
    ShardWritten(#[n(0)] ShardWritten),
    /// From the leader: the checkpoint at which everybody stands still is complete.
    #[n(12)]
    Saved {
        /// The replica's step.
        #[n(0)]
        step: Step,
    },
    /// To the leader: the checksum of my replica at a boundary at which all are compared.
    // 13 was a digest of it.
    #[n(19)]
    Checksum {
        /// Which boundary.
        #[n(0)]
        at: CheckpointId,
        /// Of the whole replica.
        #[n(1)]
        checksum: ReplicaChecksum,
    },
    /// From a newcomer to every member of the generation it prepares for: send me the replica beside your steps.
    #[n(14)]
    FollowRequest,
    /// To a newcomer: my part of the replica of this step comes next, and of every gradient after it.
    #[n(15)]
    Replica {
        /// The replica's step.
        #[n(0)]
        step: Step,
        /// Steps that each update takes until the membership changes, which ends the following.
        #[n(1)]
        stride: Stride,
    },
    /// To every member: I have to leave, and cannot wait for the boundary. Do you stay?
    #[n(17)]
    MayGo,
    /// To whoever asked: I stay, and hold the replica, so go.
    #[n(18)]
    Stays,
    /// From a newcomer that follows: I hold the replica of this step.
    #[n(16)]
    Followed {
        /// The replica's step.
        #[n(0)]
        step: Step,
    },
}

/// A whole replica that a member has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct Holding {
    /// The step it is of.
    #[n(0)]
    pub step: Step,
    /// Whether it still has the gradient that led there from the step before.
    #[n(1)]
    pub gradient: bool,
    /// The newest membership in force in which it was held; none where it was made or read. Who held the replica of one step in one membership held
    /// the same one, because no step of it completes without all of its members.
    #[n(2)]
    pub tag: Option<Tag>,
}

/// What the leader of a beginning generation decided.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Start {
    /// First step.
    #[n(0)]
    pub step: Step,
    /// Do not step: write a checkpoint and stand still.
    #[n(1)]
    pub park: bool,
    /// Who has the replica of `step`, in order. They share the sending of replicas.
    #[n(2)]
    pub holders: Vec<Peer>,
    /// The holder that sends gradients.
    #[n(3)]
    pub gradient_from: Option<Peer>,
    /// Who lacks what.
    #[n(4)]
    pub lagging: Vec<Lagging>,
}

/// A member behind the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct Lagging {
    /// The member it is about.
    #[n(0)]
    pub peer: Peer,
    /// What brings it up.
    #[n(1)]
    pub need: Need,
}

/// What brings a member to the step of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub enum Need {
    /// It is one step behind: the last gradient.
    #[n(0)]
    Gradient,
    /// The whole replica, as it has none that a step could bring up to date.
    #[n(1)]
    Replica,
}

/// A member's part of a step. No step completes without one from every member.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct Contribution {
    /// The step.
    #[n(0)]
    pub step: Step,
    /// Scalars of every tree node this member summed, left to right.
    #[n(1)]
    pub sums: Vec<NodeSums>,
    /// The sender has a `Ready` from every newcomer of this proposed generation.
    #[n(2)]
    pub ready: Option<Generation>,
    /// Only on the leader's: what happens at the boundary after this step.
    #[n(3)]
    pub announcement: Option<Announcement>,
    /// Only on the leader's: what is due there besides, of what goes by time or by what it costs.
    #[n(4)]
    pub due: Due,
    /// Only on the leader's: which newcomers are sent the replica, or what follows on it, from there on.
    #[n(5)]
    pub followers: Vec<Follower>,
}

/// A newcomer that is sent the replica beside the steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct Follower {
    /// Who it is.
    #[n(0)]
    pub peer: Peer,
    /// The generation that it prepares for.
    #[n(1)]
    pub generation: Generation,
    /// Which of its requests this answers, by the leader's count; another number begins anew.
    #[n(2)]
    pub number: u32,
}

/// What is due at a boundary. Decided by the leader alone, because only one clock can say it, and told on its contribution, without which
/// nobody comes to the boundary.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Encode, Decode)]
pub struct Due {
    /// A checkpoint, beside those that go by steps.
    #[n(0)]
    pub checkpoint: bool,
    /// A comparison of the members' replicas.
    #[n(1)]
    pub compare: bool,
}

impl Contribution {
    /// Whether a member of `membership` can have said it: no more sums than ranks, and an announcement that can be followed.
    #[must_use]
    pub fn is_sound(&self, membership: &Membership, workers: u16) -> bool {
        let can_follow = match &self.announcement {
            Some(Announcement::Switch(next)) => next.can_follow(membership, workers),
            Some(Announcement::Park) | None => true,
        };
        let few = |count: usize| count <= usize::from(workers);
        can_follow && few(self.sums.len()) && few(self.followers.len())
    }
}

/// What happens at the coming boundary.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum Announcement {
    /// This membership is in force from the next step on.
    #[n(0)]
    Switch(#[n(0)] Membership),
    /// Write a checkpoint and stand still.
    #[n(1)]
    Park,
}

/// The scalars that are summed beside a node's gradient.
#[derive(Debug, Clone, Copy, PartialEq, Encode, Decode)]
pub struct NodeSums {
    /// The node.
    #[n(0)]
    pub node: Node,
    /// Summed weight of its samples.
    #[n(1)]
    pub weight: f64,
    /// Summed loss of its samples.
    #[n(2)]
    pub loss: f64,
}

impl NodeSums {
    /// Joins two halves of `node`, left then right.
    #[must_use]
    pub fn join(node: Node, left: Self, right: Self) -> Self {
        Self { node, weight: left.weight + right.weight, loss: left.loss + right.loss }
    }

    /// The sums of the whole tree; `None` when a node is missing.
    #[must_use]
    pub fn total(workers: u16, sums: &[NodeSums]) -> Option<NodeSums> {
        let root = Node::root(workers);
        fold(root, &mut |node| sums.iter().find(|s| s.node == node).copied(), &mut |l, r| Self::join(root, l, r))
    }
}

/// The evaluation of one rank's part of the held-out set.
#[derive(Debug, Clone, PartialEq, Encode, Decode)]
pub struct RankMetrics {
    /// The rank they are of.
    #[n(0)]
    pub rank: Rank,
    /// Summed loss.
    #[n(1)]
    pub loss: f64,
    /// Right predictions.
    #[n(2)]
    pub correct: u64,
    /// How many predictions were made.
    #[n(3)]
    pub count: u64,
    /// Sums by the names that the job's code gave; none of Ebb's own models, and of a rank without samples.
    #[n(4)]
    #[cbor(skip_if = "BTreeMap::is_empty")]
    pub named: BTreeMap<String, f64>,
}

impl RankMetrics {
    /// Of a rank of which nothing is evaluated yet.
    #[must_use]
    pub fn none(rank: Rank) -> Self {
        Self { rank, loss: 0.0, correct: 0, count: 0, named: BTreeMap::new() }
    }

    /// Adds a further part of the same rank.
    pub fn add(&mut self, part: &Self) {
        self.loss += part.loss;
        self.correct = self.correct.saturating_add(part.correct);
        self.count = self.count.saturating_add(part.count);
        for (name, sum) in &part.named {
            *self.named.entry(name.clone()).or_default() += sum;
        }
    }

    /// The whole set's metrics, the loss summed along the canonical tree; `None` until every rank is there.
    #[must_use]
    pub fn total(workers: u16, ranks: &[RankMetrics]) -> Option<Metrics> {
        let mut leaf = |node: Node| {
            (node.count == 1)
                .then(|| ranks.iter().find(|m| m.rank.0 == node.first).map(|m| (m.loss, m.correct, m.count)))?
        };
        let (loss, correct, count) = fold(Node::root(workers), &mut leaf, &mut |l, r| {
            (l.0 + r.0, l.1.saturating_add(r.1), l.2.saturating_add(r.2))
        })?;
        let mean = |sum: f64| if count == 0 { 0.0 } else { sum / count as f64 };
        let named = Self::sums_by_name(workers, ranks);
        let named = (!named.is_empty()).then(|| named.into_iter().map(|(name, sum)| (name, Mean::of(mean(sum)))));
        let named = named.map(Iterator::collect);
        Some(Metrics { loss_micro: (mean(loss) * 1e6).round() as i64, correct, count, named })
    }

    /// Each name's sum along the canonical tree; a rank that has none of a name adds nothing. Of as many names as may be.
    fn sums_by_name(workers: u16, ranks: &[RankMetrics]) -> BTreeMap<String, f64> {
        let names: BTreeSet<&String> = ranks.iter().flat_map(|metrics| metrics.named.keys()).collect();
        let sum = |name: &str| {
            let mut leaf = |node: Node| {
                let of_rank = |m: &&RankMetrics| m.rank.0 == node.first;
                let metrics = (node.count == 1).then(|| ranks.iter().find(of_rank))??;
                Some(metrics.named.get(name).copied().unwrap_or(0.0))
            };
            fold(Node::root(workers), &mut leaf, &mut |l, r| l + r).unwrap_or(0.0)
        };
        names.into_iter().take(MEASURES_MAX).map(|name| (name.clone(), sum(name))).collect()
    }
}

/// Names one boundary: a checkpoint attempt, or a comparison of replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
pub struct CheckpointId {
    /// The replica's step.
    #[n(0)]
    pub step: Step,
    /// The membership whose members write it.
    #[n(1)]
    pub tag: Tag,
}
