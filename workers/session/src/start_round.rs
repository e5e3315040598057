//! How a generation begins when nobody is stepping: members link up, tell the leader what they hold, and the leader says which step is next.
//!
//! Used for a fresh job, for a checkpoint and after losses; they differ only in where a member's replica comes from.
//! The other way to begin a generation, at a boundary of a running one, is `switch.rs`.

use crate::event::Output;
use crate::message::{Holding, Membership, Message, Need, Peer, Start, Tag};
use crate::recover::choose_start;
use crate::state::{Phase, Running, Session};
use crate::switch::Candidate;
use events_schema::fact::{Entry, Proposal};
use events_schema::{Generation, Step};
use std::collections::BTreeMap;

/// A round in progress.
#[derive(Debug)]
pub(crate) struct Joining {
    pub membership: Membership,
    /// The replica is made, or needs no making.
    pub loaded: bool,
    /// Our join is with the leader.
    pub joined: bool,
    /// The leader: what the others hold.
    pub joins: BTreeMap<Peer, Option<Holding>>,
}

impl Session {
    pub(crate) fn on_proposal(&mut self, proposal: &Proposal, out: &mut Vec<Output>) {
        let membership = Membership::of(proposal);
        let stale = self.proposed.is_some_and(|newest| proposal.generation <= newest)
            || self.floor.is_some_and(|floor| membership.tag <= floor);
        if stale || !membership.is_whole(self.config.workers) {
            return;
        }
        self.proposed = Some(proposal.generation);
        match &proposal.entry {
            Entry::Switch { .. } => self.on_switch_proposal(proposal, membership, out),
            entry => self.begin_round(proposal, membership, entry, out),
        }
    }

    /// The generation before is over, whatever was going on in it.
    fn begin_round(&mut self, proposal: &Proposal, membership: Membership, entry: &Entry, out: &mut Vec<Output>) {
        self.floor = Some(membership.tag);
        self.candidate = None;
        let position = match &self.phase {
            Phase::Running(running) => Some(running.step),
            _ => self.holding.map(|holding| holding.step),
        };
        if matches!(self.phase, Phase::Running(_)) {
            out.push(Output::Abandon);
        }
        if !membership.has(self.config.me) {
            // Left out, it may become a newcomer again. Its links to the others stay, and on those nobody says again where they are.
            self.heard = position.or(self.heard);
            self.phase = Phase::Idle;
            return;
        }
        self.heard = None;
        let recover = matches!(entry, Entry::Recover);
        if !recover {
            self.holding = None;
            out.push(Output::Load(proposal.generation, entry.clone()));
        }
        self.connect(proposal, out);
        self.phase = Phase::Joining(Joining { membership, loaded: recover, joined: false, joins: BTreeMap::new() });
        self.try_join(out);
    }

    /// Links to members that are missing; of two, the higher number connects, so newcomers do.
    pub(crate) fn connect(&mut self, proposal: &Proposal, out: &mut Vec<Output>) {
        let members = proposal.members.iter().map(|member| (Peer(member.executor.number), member.address.clone()));
        self.addresses = members.filter(|(peer, _)| *peer < self.config.me).collect();
        for (&peer, address) in self.addresses.iter().filter(|(peer, _)| !self.links.contains(peer)) {
            out.push(Output::Connect(peer, address.clone()));
        }
    }

    /// A link ended on which nothing is under way but the beginning of a generation: it is made anew. Its other end may have seen the
    /// end, and the proposal that heals it, before this one. (In a running generation only a round makes good what was lost.)
    pub(crate) fn redial(&self, peer: Peer, out: &mut Vec<Output>) {
        if let Some(address) = self.addresses.get(&peer) {
            out.push(Output::Connect(peer, address.clone()));
        }
    }

    pub(crate) fn on_loaded(&mut self, generation: Generation, step: Step, out: &mut Vec<Output>) {
        if let Phase::Joining(joining) = &mut self.phase
            && joining.membership.tag.generation == generation
            && !joining.loaded
        {
            joining.loaded = true;
            self.holding = Some(Holding { step, gradient: false, tag: None });
            self.try_join(out);
        }
    }

    pub(crate) fn try_join(&mut self, out: &mut Vec<Output>) {
        let (me, links, holding) = (self.config.me, &self.links, self.holding);
        let Phase::Joining(joining) = &mut self.phase else { return };
        let linked = joining.membership.others(me).all(|p| links.contains(&p));
        if joining.joined || !joining.loaded || !linked {
            return;
        }
        joining.joined = true;
        let (leader, tag) = (joining.membership.leader, joining.membership.tag);
        if leader == me {
            self.on_join(me, holding, out);
        } else {
            Self::send(leader, tag, Message::Join { holding }, out);
        }
    }

    pub(crate) fn on_join(&mut self, from: Peer, holding: Option<Holding>, out: &mut Vec<Output>) {
        let (me, park, determinism) = (self.config.me, self.park, self.config.determinism);
        let Phase::Joining(joining) = &mut self.phase else { return };
        if joining.membership.leader != me || !joining.membership.has(from) {
            return;
        }
        joining.joins.insert(from, holding);
        if joining.joins.len() < joining.membership.seats.len() {
            return;
        }
        let (tag, others): (Tag, Vec<Peer>) = (joining.membership.tag, joining.membership.others(me).collect());
        let decided = choose_start(&joining.joins, park, determinism);
        let message = decided.clone().map_or(Message::Dissolve, Message::Start);
        for peer in others {
            Self::send(peer, tag, message.clone(), out);
        }
        match decided {
            Some(start) => self.start(&start, out),
            None => self.dissolve(out),
        }
    }

    pub(crate) fn on_start(&mut self, from: Peer, start: &Start, out: &mut Vec<Output>) {
        if matches!(&self.phase, Phase::Joining(joining) if joining.membership.leader == from) {
            self.start(start, out);
        }
    }

    pub(crate) fn on_dissolve(&mut self, from: Peer, out: &mut Vec<Output>) {
        if matches!(&self.phase, Phase::Joining(joining) if joining.membership.leader == from) {
            self.dissolve(out);
        }
    }

    fn dissolve(&mut self, out: &mut Vec<Output>) {
        self.phase = Phase::Ended;
        out.push(Output::ExitWithoutReplica);
    }

    fn start(&mut self, start: &Start, out: &mut Vec<Output>) {
        let me = self.config.me;
        let Phase::Joining(joining) = &self.phase else { return };
        let membership = joining.membership.clone();
        let tag = membership.tag;
        self.phase = Phase::Running(Running::new(membership.clone(), start.step));
        out.push(Output::Enter(membership, start.step));
        self.supply(start, out);
        if let Some(mine) = start.lagging.iter().find(|l| l.peer == me) {
            if mine.need == Need::Replica {
                self.holding = None;
            }
            out.push(Output::Await(mine.need));
        } else if let Some(holding) = &mut self.holding {
            holding.tag = Some(tag);
        }
        if self.leads() {
            out.push(Output::Active(self.generation(), start.step));
        }
        if start.park || start.step.0 >= self.config.stops.total {
            self.stand_still(start.step, out);
        } else {
            out.push(Output::Compute(start.step));
        }
        if self.leave {
            self.request_leave(out);
        }
    }

    /// This member's part in bringing the others up.
    fn supply(&self, start: &Start, out: &mut Vec<Output>) {
        let lacking = |need| start.lagging.iter().filter(move |l| l.need == need).map(|l| l.peer).collect::<Vec<_>>();
        let gradients = lacking(Need::Gradient);
        if start.gradient_from == Some(self.config.me) && !gradients.is_empty() {
            out.push(Output::SendGradient(gradients));
        }
        let replicas = lacking(Need::Replica);
        let index = start.holders.iter().position(|&p| p == self.config.me);
        if let (Some(index), false) = (index, replicas.is_empty()) {
            out.push(Output::SendReplica { to: replicas, index, count: start.holders.len() });
        }
    }

    fn generation(&self) -> Generation {
        self.membership().map_or(Generation(0), |m| m.tag.generation)
    }

    /// The replica is whole and at the step this member entered at.
    pub(crate) fn on_supplied(&mut self, step: Step, out: &mut Vec<Output>) {
        let Phase::Running(running) = &self.phase else { return };
        if running.entered != step {
            return;
        }
        if self.holding.is_none() {
            out.push(Output::Held(running.membership.tag.generation, step));
        }
        self.holding = Some(Holding { step, gradient: self.holding.is_some(), tag: Some(running.membership.tag) });
        self.write_still_shard(out);
    }

    /// Newcomers are where the replica is not; everybody else keeps the proposal until its leader announces it.
    fn on_switch_proposal(&mut self, proposal: &Proposal, membership: Membership, out: &mut Vec<Output>) {
        let mine = membership.has(self.config.me);
        let (ranks, stride) = (membership.ranks(self.config.me).to_vec(), membership.stride);
        match self.phase {
            Phase::Idle | Phase::Waiting => {
                if !mine {
                    return;
                }
                self.phase = Phase::Waiting;
                self.candidate = Some(Candidate::new(membership));
                self.connect(proposal, out);
                // Links of a proposal that came to nothing are still there, and so is what was said on them.
                if let Some(step) = self.heard {
                    self.on_position(step, out);
                }
            }
            Phase::Running(_) | Phase::Joining(_) => {
                self.candidate = Some(Candidate::new(membership));
                if mine {
                    self.connect(proposal, out);
                    out.push(Output::Prefetch(ranks, stride));
                }
            }
            Phase::Leaving { .. } | Phase::Ended => {}
        }
    }
}
