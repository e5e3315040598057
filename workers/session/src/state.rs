//! The machine: who handles what goes in (`event.rs`). One `Session` per executor, for leader and member alike.
//!
//! Nothing here decides the protocol's hard questions; `start_round.rs`, `recover.rs` and `switch.rs` do.

use crate::compare::Comparisons;
use crate::event::{Config, Input, Output};
use crate::follow::Following;
use crate::message::{
    Announcement, CheckpointId, Contribution, Due, Envelope, Holding, Membership, Message, NodeSums, Peer, Tag,
};
use crate::save::Collections;
use crate::start_round::Joining;
use crate::stride::Stops;
use crate::switch::Candidate;
use events_schema::{Generation, Step};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Most messages kept for a membership not yet known here. A peer can be one boundary ahead and says at most a handful of things
/// per step, so this is several times what 256 correct members can cause.
pub const HELD_MAX: usize = 4096;
/// Most bytes of them. The largest message names a membership of 256 (about 8 KiB); a correct peer holds us up with one or two.
pub const HELD_BYTES_MAX: usize = 8 << 20;

/// Where a session stands.
#[derive(Debug)]
pub(crate) enum Phase {
    /// In no generation: just started, or evicted.
    Idle,
    /// In the round that begins a generation.
    Joining(Joining),
    /// Prepared for some switch, waiting to be welcomed.
    Waiting,
    /// In a generation.
    Running(Running),
    /// Out at the last boundary, until every stayer is past it.
    Leaving {
        /// The membership left.
        tag: Tag,
        /// Stayers that have not said so.
        waiting: BTreeSet<Peer>,
    },
    /// Told to exit.
    Ended,
}

/// A member of a generation in force.
#[derive(Debug)]
pub(crate) struct Running {
    pub membership: Membership,
    pub step: Step,
    pub stage: Stage,
    /// By step, because a peer may be one ahead.
    pub contributions: BTreeMap<(Step, Peer), Contribution>,
    /// Stayers that are past the step in flight, should this member turn out to leave at it.
    pub done: BTreeSet<Peer>,
    /// The leader: who asked to leave.
    pub leaves: BTreeSet<Peer>,
    /// First step of the membership.
    pub entered: Step,
    /// Newcomers that are sent the replica and what follows on it.
    pub followers: BTreeMap<Peer, Following>,
    /// The last step in which this member said that it stays.
    pub said_stays: Option<Step>,
}

/// What a running member is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Computing,
    Contributed,
    /// Stands still; whether its shard was ordered and whether the checkpoint is complete.
    Still {
        ordered: bool,
        saved: bool,
    },
}

/// One executor's view of its job's membership.
#[derive(Debug)]
pub struct Session {
    pub(crate) config: Config,
    pub(crate) links: BTreeSet<Peer>,
    /// Newest generation proposed to this executor.
    pub(crate) proposed: Option<Generation>,
    /// Messages of older memberships have no effect.
    pub(crate) floor: Option<Tag>,
    pub(crate) phase: Phase,
    pub(crate) candidate: Option<Candidate>,
    pub(crate) holding: Option<Holding>,
    /// Where members said they are, before this newcomer was in: said once per link, but needed for every proposal until then.
    pub(crate) heard: Option<Step>,
    /// How often a newcomer asked to follow.
    pub(crate) requests: u32,
    /// Addresses of the proposal that was linked for last.
    pub(crate) addresses: BTreeMap<Peer, String>,
    pub(crate) leave: bool,
    /// The membership in which the others were asked whether somebody stays.
    pub(crate) asked_to_go: Option<Tag>,
    pub(crate) park: bool,
    pub(crate) collections: Collections,
    pub(crate) comparisons: Comparisons,
    /// What to announce with the step in flight.
    due: Due,
    held: VecDeque<(Peer, Envelope)>,
    held_bytes: usize,
}

/// What to do with a message now.
pub(crate) enum Verdict {
    Handle,
    Hold,
    Drop,
}

impl Session {
    /// A session without replica or generation.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            links: BTreeSet::new(),
            proposed: None,
            floor: None,
            phase: Phase::Idle,
            candidate: None,
            holding: None,
            heard: None,
            requests: 0,
            addresses: BTreeMap::new(),
            leave: false,
            asked_to_go: None,
            park: false,
            collections: Collections::default(),
            comparisons: Comparisons::default(),
            due: Due::default(),
            held: VecDeque::new(),
            held_bytes: 0,
        }
    }

    /// The membership in force here.
    #[must_use]
    pub fn membership(&self) -> Option<&Membership> {
        if let Phase::Running(running) = &self.phase { Some(&running.membership) } else { None }
    }

    /// Whether this executor leads the membership in force.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.membership().is_some_and(|m| m.leader == self.config.me)
    }

    /// The round this executor is in, and the members of it that it has no link to; none when it is in no round.
    #[must_use]
    pub fn round(&self) -> Option<(Tag, Vec<Peer>)> {
        let Phase::Joining(joining) = &self.phase else { return None };
        let missing = joining.membership.others(self.config.me).filter(|p| !self.links.contains(p)).collect();
        Some((joining.membership.tag, missing))
    }

    /// Whether nothing is left that needs the other members: standing still, with everything saved.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        matches!(&self.phase, Phase::Running(Running { stage: Stage::Still { saved: true, .. }, .. }))
    }

    /// The whole replica this executor has, as far as the session was told.
    #[must_use]
    pub fn holding(&self) -> Option<Holding> {
        self.holding
    }

    /// Takes one input; returns what to do, in order.
    pub fn handle(&mut self, input: Input) -> Vec<Output> {
        let mut out = Vec::new();
        if matches!(self.phase, Phase::Ended) {
            return out;
        }
        match input {
            Input::Proposal(proposal) => self.on_proposal(&proposal, &mut out),
            Input::Park(park) => self.park = park,
            Input::Leave => self.on_leave(&mut out),
            Input::LeaveEarly => self.on_leave_early(&mut out),
            Input::Linked(peer) => self.on_linked(peer, &mut out),
            Input::Lost(peer) => self.on_lost(peer, &mut out),
            Input::Message(from, envelope) => self.on_message(from, envelope, &mut out),
            Input::Loaded(generation, step) => self.on_loaded(generation, step, &mut out),
            Input::Warmed(generation) => self.on_warmed(generation, &mut out),
            Input::Supplied(step) => self.on_supplied(step, &mut out),
            Input::Followed(step, caught_up) => self.on_followed(step, caught_up, &mut out),
            Input::Evaluated(step, ranks) => self.on_evaluated(step, ranks, &mut out),
            Input::Due(due) => self.due = due,
            Input::Checksum(at, checksum) => self.on_own_checksum(at, checksum, &mut out),
            Input::Computed(step, sums) => self.on_computed(step, sums, &mut out),
            Input::Summed(step) => self.on_summed(step, &mut out),
            Input::Completed(step) => self.on_completed(step, &mut out),
            Input::ShardWritten(shard) => self.on_own_shard(shard, &mut out),
            Input::Saved(checkpoint) => self.on_saved(checkpoint, &mut out),
        }
        self.handle_held(&mut out);
        out
    }

    fn on_message(&mut self, from: Peer, envelope: Envelope, out: &mut Vec<Output>) {
        match self.verdict(&envelope) {
            Verdict::Drop => {}
            Verdict::Hold => {
                let bytes = envelope.bytes();
                if self.held.len() < HELD_MAX && self.held_bytes + bytes <= HELD_BYTES_MAX {
                    self.held_bytes += bytes;
                    self.held.push_back((from, envelope));
                } else {
                    out.push(Output::Disconnect(from));
                }
            }
            Verdict::Handle => self.perform(from, envelope, out),
        }
    }

    pub(crate) fn keep_held(&mut self, keeps: impl Fn(Peer, &Envelope) -> bool) {
        self.held.retain(|(from, envelope)| keeps(*from, envelope));
        self.held_bytes = self.held.iter().map(|(_, envelope)| envelope.bytes()).sum();
    }

    /// Handles held messages as long as one of them has become due. Order per peer is kept.
    fn handle_held(&mut self, out: &mut Vec<Output>) {
        let mut index = 0;
        while index < self.held.len() {
            match self.verdict(&self.held[index].1) {
                Verdict::Hold => index += 1,
                Verdict::Drop => drop(self.take_held(index)),
                Verdict::Handle => {
                    if let Some((from, envelope)) = self.take_held(index) {
                        self.perform(from, envelope, out);
                        index = 0;
                    }
                }
            }
        }
    }

    fn take_held(&mut self, index: usize) -> Option<(Peer, Envelope)> {
        let held = self.held.remove(index)?;
        self.held_bytes -= held.1.bytes();
        Some(held)
    }

    /// Older memberships have no effect; newer ones are kept until they are known here. Two kinds stand outside that order:
    /// preparation for a switch is said in the tag it prepares, and shards speak of the past by their own name.
    fn verdict(&self, envelope: &Envelope) -> Verdict {
        let tag = envelope.tag;
        match (&envelope.message, &self.phase) {
            (_, Phase::Ended) => return Verdict::Drop,
            (Message::ShardWritten(_), _) => return Verdict::Handle,
            (Message::Ready | Message::FollowRequest | Message::Followed { .. }, _) => {
                return self.verdict_on_prepared(tag);
            }
            (Message::Position { .. } | Message::Replica { .. }, phase) => {
                return if matches!(phase, Phase::Waiting) { Verdict::Handle } else { Verdict::Drop };
            }
            (Message::Welcome { .. }, Phase::Waiting) if self.floor.is_none_or(|floor| tag >= floor) => {
                return Verdict::Handle;
            }
            (Message::Welcome { .. }, _) => return Verdict::Drop,
            _ => {}
        }
        let current = match &self.phase {
            Phase::Joining(joining) => Some(joining.membership.tag),
            Phase::Running(running) => Some(running.membership.tag),
            Phase::Leaving { tag, .. } => Some(*tag),
            Phase::Idle | Phase::Waiting | Phase::Ended => None,
        };
        match current {
            _ if self.floor.is_some_and(|floor| tag < floor) => Verdict::Drop,
            None => Verdict::Hold,
            Some(current) if tag < current => Verdict::Drop,
            Some(current) if tag > current => Verdict::Hold,
            Some(_) => match (&envelope.message, &self.phase) {
                (Message::Join { .. } | Message::Start(_) | Message::Dissolve, Phase::Joining(_)) => Verdict::Handle,
                // Whoever heard the leader's start first is ahead of us.
                (_, Phase::Joining(_)) => Verdict::Hold,
                _ => Verdict::Handle,
            },
        }
    }

    fn perform(&mut self, from: Peer, envelope: Envelope, out: &mut Vec<Output>) {
        let tag = envelope.tag;
        match envelope.message {
            Message::Join { holding } => self.on_join(from, holding, out),
            Message::Start(start) => self.on_start(from, &start, out),
            Message::Dissolve => self.on_dissolve(from, out),
            Message::Position { step } => self.on_position(step, out),
            Message::Ready => self.on_ready(from),
            Message::FollowRequest => self.on_follow_request(from),
            Message::Followed { step } => self.on_followed_by(from, step),
            Message::Replica { step, stride } => self.on_replica(tag, step, stride, out),
            Message::Contribution(contribution) => self.on_contribution(from, contribution, out),
            Message::Welcome { membership, step, followed } => self.on_welcome(membership, step, followed, out),
            Message::Done { step } => self.on_done(from, step, out),
            Message::LeaveRequest => self.on_leave_request(from),
            Message::MayGo => self.on_may_go(from, out),
            Message::Stays => self.on_stays(from, out),
            Message::Metrics { step, ranks } => self.on_metrics(step, ranks, out),
            Message::ShardWritten(shard) => self.on_shard(from, shard, out),
            Message::Saved { step } => self.on_peer_saved(from, tag, step, out),
            Message::Checksum { at, checksum } => self.on_checksum(from, at, checksum, out),
        }
    }

    pub(crate) fn send(to: Peer, tag: Tag, message: Message, out: &mut Vec<Output>) {
        out.push(Output::Send(to, Envelope { tag, message }));
    }

    fn on_linked(&mut self, peer: Peer, out: &mut Vec<Output>) {
        self.links.insert(peer);
        if let Phase::Running(running) = &self.phase {
            // A newcomer: it cannot know where to prefetch from.
            if !running.membership.has(peer) {
                Self::send(peer, running.membership.tag, Message::Position { step: running.step }, out);
            }
        }
        self.try_join(out);
        self.try_ready(out);
    }

    fn on_lost(&mut self, peer: Peer, out: &mut Vec<Output>) {
        self.links.remove(&peer);
        self.keep_held(|from, _| from != peer);
        if let Some(candidate) = &mut self.candidate {
            candidate.ready.remove(&peer);
            candidate.requests.remove(&peer);
            // What was under way to a newcomer went with the link.
            (candidate.told, candidate.asked, candidate.caught_up) = (false, false, false);
        }
        match &mut self.phase {
            // Its join, and ours to it, went with the link.
            Phase::Joining(joining) => {
                joining.joins.remove(&peer);
                joining.joined = false;
                if joining.membership.has(peer) {
                    self.redial(peer, out);
                }
            }
            Phase::Running(running) => {
                running.leaves.remove(&peer);
            }
            Phase::Leaving { waiting, .. } => {
                waiting.remove(&peer);
                self.exit_if_released(out);
            }
            Phase::Waiting => self.redial(peer, out),
            Phase::Idle | Phase::Ended => {}
        }
    }

    fn on_leave(&mut self, out: &mut Vec<Output>) {
        self.leave = true;
        match &self.phase {
            // Not in lock-step with anybody: nobody has to be asked.
            Phase::Idle | Phase::Waiting => self.exit(out),
            Phase::Running(Running { stage: Stage::Still { saved: true, .. }, .. }) => self.exit(out),
            _ => self.request_leave(out),
        }
    }

    pub(crate) fn exit(&mut self, out: &mut Vec<Output>) {
        self.phase = Phase::Ended;
        out.push(Output::Exit);
    }

    pub(crate) fn exit_if_released(&mut self, out: &mut Vec<Output>) {
        if matches!(&self.phase, Phase::Leaving { waiting, .. } if waiting.is_empty()) {
            self.exit(out);
        }
    }

    fn on_computed(&mut self, step: Step, sums: Vec<NodeSums>, out: &mut Vec<Output>) {
        let me = self.config.me;
        let ready = self.candidate_ready();
        let announcement = if self.leads() { self.choose_announcement(ready) } else { None };
        let due = std::mem::take(&mut self.due);
        let due = if self.leads() { due } else { Due::default() };
        let followers = if self.leads() { self.choose_followers(out) } else { Vec::new() };
        let Phase::Running(running) = &mut self.phase else { return };
        if running.step != step || running.stage != Stage::Computing {
            return;
        }
        running.stage = Stage::Contributed;
        let contribution = Contribution { step, sums, ready, announcement, due, followers };
        for peer in running.membership.others(me) {
            Self::send(peer, running.membership.tag, Message::Contribution(contribution.clone()), out);
        }
        running.contributions.insert((step, me), contribution);
        running.tell_when_contributed(me, out);
    }

    fn on_contribution(&mut self, from: Peer, contribution: Contribution, out: &mut Vec<Output>) {
        let config = self.config;
        let Phase::Running(running) = &mut self.phase else { return };
        let step = contribution.step;
        let near = step == running.step || step == running.next(&config);
        if !running.membership.has(from) || !near {
            return;
        }
        if !contribution.is_sound(&running.membership, config.workers) {
            return out.push(Output::Disconnect(from));
        }
        running.contributions.insert((step, from), contribution);
        running.tell_when_contributed(config.me, out);
    }

    fn on_completed(&mut self, step: Step, out: &mut Vec<Output>) {
        let config = self.config;
        let Phase::Running(running) = &mut self.phase else { return };
        if running.step != step || running.stage != Stage::Contributed || !running.is_contributed() {
            return;
        }
        let leader = running.membership.leader;
        let said = running.contributions.get(&(step, leader));
        let announcement = said.and_then(|contribution| contribution.announcement.clone());
        let due = said.map_or_else(Due::default, |contribution| contribution.due);
        let followers = said.map_or_else(Vec::new, |contribution| contribution.followers.clone());
        running.contributions.retain(|(of, _), _| *of > step);
        let next = running.next(&config);
        self.holding = Some(Holding { step: next, gradient: true, tag: Some(running.membership.tag) });
        match announcement {
            None => {
                self.begin_followers(&followers, next, out);
                if due.compare {
                    self.compare(next, out);
                }
                self.advance(next, due, None, out);
            }
            Some(Announcement::Park) => self.stand_still(next, out),
            Some(Announcement::Switch(membership)) => self.switch_to(membership, step, due, out),
        }
    }

    /// Goes on to `next` in the membership in force. `writers` of a checkpoint due now; all members unless a switch says otherwise.
    pub(crate) fn advance(&mut self, next: Step, due: Due, writers: Option<&[Peer]>, out: &mut Vec<Output>) {
        let Stops { checkpoint, total, .. } = self.config.stops;
        let by_steps = checkpoint.is_some_and(|every| next.0.is_multiple_of(every.max(1)));
        let Phase::Running(running) = &mut self.phase else { return };
        running.step = next;
        running.done.clear();
        if next.0 >= total {
            return self.stand_still(next, out);
        }
        running.stage = Stage::Computing;
        if by_steps || due.checkpoint {
            let (all, tag): (Vec<Peer>, _) = (running.membership.peers().collect(), running.membership.tag);
            self.write_shard(CheckpointId { step: next, tag }, writers.unwrap_or(&all), out);
        }
        out.push(Output::Compute(next));
    }

    /// No more steps in this generation: everybody writes its part of a checkpoint.
    pub(crate) fn stand_still(&mut self, step: Step, out: &mut Vec<Output>) {
        let Phase::Running(running) = &mut self.phase else { return };
        running.step = step;
        running.stage = Stage::Still { ordered: false, saved: false };
        out.push(Output::StandStill(step));
        self.write_still_shard(out);
    }
}

impl Running {
    /// A membership in force from `step` on.
    pub(crate) fn new(membership: Membership, step: Step) -> Self {
        Self {
            membership,
            step,
            stage: Stage::Computing,
            contributions: BTreeMap::new(),
            done: BTreeSet::new(),
            leaves: BTreeSet::new(),
            entered: step,
            followers: BTreeMap::new(),
            said_stays: None,
        }
    }

    /// Where the update in flight leads.
    pub(crate) fn next(&self, config: &Config) -> Step {
        config.stops.after(self.step, self.membership.stride)
    }

    pub(crate) fn is_contributed(&self) -> bool {
        self.membership.peers().all(|p| self.contributions.contains_key(&(self.step, p)))
    }

    fn tell_when_contributed(&self, me: Peer, out: &mut Vec<Output>) {
        if self.stage == Stage::Contributed
            && self.contributions.contains_key(&(self.step, me))
            && self.is_contributed()
        {
            let of_step = self.contributions.range((self.step, Peer(0))..=(self.step, Peer(u32::MAX)));
            out.push(Output::Contributed(self.step, of_step.flat_map(|(_, c)| c.sums.iter().copied()).collect()));
        }
    }
}
