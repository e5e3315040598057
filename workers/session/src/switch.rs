//! How a running generation changes at a boundary without standing still: proposals become announcements, leavers leave, newcomers are welcomed.
//!
//! The announcement rides on the leader's contribution to a step. Nobody completes that step without it, so nobody can miss it, and
//! one step's notice is enough. No timers here: the controller gives up a proposal that does not become active.

use crate::event::Output;
use crate::follow::Request;
use crate::message::{Announcement, Due, Holding, Membership, Message, Need, Peer, Tag};
use crate::state::{Phase, Running, Session, Stage};
use events_schema::{Generation, Step};
use std::collections::{BTreeMap, BTreeSet};

/// A proposed membership that waits for its newcomers.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub membership: Membership,
    /// Newcomers that are linked to everybody and have their data at hand.
    pub ready: BTreeSet<Peer>,
    /// A newcomer: our own preparation is done.
    pub warmed: bool,
    /// A newcomer: prefetch was ordered.
    pub warming: bool,
    /// A newcomer: everybody was told that we are ready.
    pub told: bool,
    /// A newcomer: everybody was asked for the replica.
    pub asked: bool,
    /// A newcomer: the step of the replica that arrives, or arrived.
    pub following: Option<Step>,
    /// A newcomer: it held the replica, and all that had come to bring it further.
    pub caught_up: bool,
    /// A member: who asked for the replica.
    pub requests: BTreeMap<Peer, Request>,
}

impl Candidate {
    pub(crate) fn new(membership: Membership) -> Self {
        Self {
            membership,
            ready: BTreeSet::new(),
            warmed: false,
            warming: false,
            told: false,
            asked: false,
            following: None,
            caught_up: false,
            requests: BTreeMap::new(),
        }
    }
}

impl Session {
    /// To a newcomer: where the others are. It prefetches from a little later, when it will probably be in.
    pub(crate) fn on_position(&mut self, step: Step, out: &mut Vec<Output>) {
        let me = self.config.me;
        self.heard = Some(step);
        let Some(candidate) = self.candidate.as_mut().filter(|c| !c.warming) else { return };
        candidate.warming = true;
        let membership = &candidate.membership;
        let (ranks, place) = (membership.ranks(me).to_vec(), (step, membership.stride));
        out.push(Output::Warm(membership.tag.generation, ranks, place));
    }

    pub(crate) fn on_warmed(&mut self, generation: Generation, out: &mut Vec<Output>) {
        if let Some(candidate) = self.candidate.as_mut().filter(|c| c.membership.tag.generation == generation) {
            candidate.warmed = true;
        }
        self.try_ready(out);
    }

    /// A newcomer that is linked to every member, warm and not far behind says so, once.
    pub(crate) fn try_ready(&mut self, out: &mut Vec<Output>) {
        let (me, links) = (self.config.me, &self.links);
        let Some(candidate) = self.candidate.as_mut().filter(|_| matches!(self.phase, Phase::Waiting)) else { return };
        if !candidate.membership.others(me).all(|p| links.contains(&p)) {
            return;
        }
        self.ask_to_follow(out);
        let at_boundary = self.config.behind_max.is_none();
        let Some(candidate) = self.candidate.as_mut() else { return };
        if candidate.told || !candidate.warmed || !(at_boundary || candidate.caught_up) {
            return;
        }
        candidate.told = true;
        for peer in candidate.membership.others(me) {
            Self::send(peer, candidate.membership.tag, Message::Ready, out);
        }
    }

    /// What a newcomer says while it prepares for a switch is about the proposal of that tag, which may not have come yet.
    pub(crate) fn verdict_on_prepared(&self, tag: Tag) -> crate::state::Verdict {
        use crate::state::Verdict;
        match &self.candidate {
            Some(candidate) if candidate.membership.tag == tag => Verdict::Handle,
            _ if self.proposed.is_none_or(|newest| tag.generation > newest) => Verdict::Hold,
            _ => Verdict::Drop,
        }
    }

    pub(crate) fn on_ready(&mut self, from: Peer) {
        if let Some(candidate) = &mut self.candidate {
            candidate.ready.insert(from);
        }
    }

    /// These leave at the boundary. While they were still on their way in they may have got ready for what is proposed next, and their word
    /// would stand for members that are gone. A link keeps order: what they said before their last contribution has been heard, or is held.
    fn forget_ready(&mut self, gone: &[Peer]) {
        self.keep_held(|from, envelope| !(gone.contains(&from) && envelope.message == Message::Ready));
        if let Some(candidate) = &mut self.candidate {
            candidate.ready.retain(|peer| !gone.contains(peer));
        }
    }

    /// The candidate's generation, if this member has heard from all its newcomers.
    pub(crate) fn candidate_ready(&self) -> Option<Generation> {
        let (candidate, running) = (self.candidate.as_ref()?, self.membership()?);
        let newcomers = candidate.membership.minus(running);
        let newer = candidate.membership.tag > running.tag;
        (newer && newcomers.iter().all(|p| candidate.ready.contains(p))).then_some(candidate.membership.tag.generation)
    }

    /// What the leader announces on its contribution to the step in flight. Park goes first, then a proposal that is ready, then consent.
    pub(crate) fn choose_announcement(&self, ready: Option<Generation>) -> Option<Announcement> {
        let Phase::Running(running) = &self.phase else { return None };
        let announcement = self.wanted_announcement(running, ready);
        // Who was told that this member stays has gone on that word, and would have left the last replica with it.
        let leaves = |announcement: &Announcement| matches!(announcement, Announcement::Switch(membership) if !membership.has(self.config.me));
        announcement.filter(|announcement| running.said_stays != Some(running.step) || !leaves(announcement))
    }

    fn wanted_announcement(&self, running: &Running, ready: Option<Generation>) -> Option<Announcement> {
        if self.park {
            return Some(Announcement::Park);
        }
        let mut leavers: Vec<Peer> = running.leaves.iter().copied().collect();
        if self.leave && !leavers.contains(&self.config.me) {
            leavers.push(self.config.me);
        }
        if let Some(membership) = self.announceable(running, ready).filter(|m| !leavers.iter().any(|&p| m.has(p))) {
            return Some(Announcement::Switch(membership));
        }
        if leavers.is_empty() {
            return None;
        }
        // When everybody leaves, what remains is a checkpoint.
        Some(running.membership.without(&leavers, self.config.workers).map_or(Announcement::Park, Announcement::Switch))
    }

    fn announceable(&self, running: &Running, ready: Option<Generation>) -> Option<Membership> {
        let membership = &self.candidate.as_ref()?.membership;
        let generation = membership.tag.generation;
        // A leader that is itself leaving has no links to newcomers; it takes a stayer's word.
        let told = running.contributions.values().any(|c| c.ready == Some(generation));
        let newcomers = membership.minus(&running.membership);
        let last = running.next(&self.config).0 >= self.config.stops.total;
        // What was proposed when another membership was in force may not follow this one, and who hears of it would take us for broken.
        let follows = membership.can_follow(&running.membership, self.config.workers);
        let comes_too_late = last && !newcomers.is_empty();
        let useful = follows && !comes_too_late && self.have_caught_up(running, &newcomers);
        (useful && (told || ready == Some(generation))).then(|| membership.clone())
    }

    /// The boundary after `step`, at which `membership` takes over.
    pub(crate) fn switch_to(&mut self, membership: Membership, step: Step, due: Due, out: &mut Vec<Output>) {
        let (me, config) = (self.config.me, self.config);
        let Phase::Running(running) = &mut self.phase else { return };
        let next = running.next(&config);
        let old = running.membership.clone();
        let stayers = old.and(&membership);
        let others: Vec<Peer> = old.others(me).collect();
        // Who leaves beside this member may still need its sums, so leavers wait for each other as they wait for stayers. Somebody
        // without a link cannot be helped by waiting; it will say whom it misses.
        let waiting = others.iter().copied().filter(|p| !running.done.contains(p) && self.links.contains(p)).collect();
        for leaver in old.minus(&membership).into_iter().filter(|&p| p != me) {
            Self::send(leaver, old.tag, Message::Done { step }, out);
        }
        if !membership.has(me) {
            self.phase = Phase::Leaving { tag: old.tag, waiting };
            // Stayers say `Done` to whom leaves, fellow leavers too: everybody that is past the step has been told above.
            return self.exit_if_released(out);
        }
        let followers = Self::followers_into(running, &membership);
        self.forget_ready(&old.minus(&membership));
        let newcomers = membership.minus(&old);
        for newcomer in &newcomers {
            let (membership, followed) = (membership.clone(), followers.contains(newcomer));
            Self::send(*newcomer, membership.tag, Message::Welcome { membership, step: next, followed }, out);
        }
        self.enter(membership.clone(), next, out);
        if let Some(holding) = &mut self.holding {
            holding.tag = Some(membership.tag);
        }
        let lacking: Vec<Peer> = newcomers.into_iter().filter(|newcomer| !followers.contains(newcomer)).collect();
        if let (Some(index), false) = (stayers.iter().position(|&p| p == me), lacking.is_empty()) {
            out.push(Output::SendReplica { to: lacking, index, count: stayers.len() });
        }
        // Said at the boundary, not when the newcomers are whole: from here on nobody can go back to the generation before, so
        // whoever is lost now is lost to this one.
        if membership.leader == me && old.tag.generation == membership.tag.generation {
            old.minus(&membership)
                .into_iter()
                .for_each(|p| out.push(Output::Departed(p, membership.tag.generation, next)));
        } else if membership.leader == me {
            out.push(Output::Active(membership.tag.generation, next));
        }
        self.advance(next, due, Some(&stayers), out);
        if self.leave {
            self.request_leave(out);
        }
    }

    /// To a newcomer at the boundary: it is in, and its replica, or what is missing to bring it here, is under way.
    pub(crate) fn on_welcome(&mut self, membership: Membership, step: Step, followed: bool, out: &mut Vec<Output>) {
        if !membership.is_whole(self.config.workers) || !membership.has(self.config.me) {
            return;
        }
        self.holding = None;
        self.enter(membership, step, out);
        out.push(if followed { Output::CatchUp } else { Output::Await(Need::Replica) });
        self.advance(step, Due::default(), Some(&[]), out);
    }

    fn enter(&mut self, membership: Membership, step: Step, out: &mut Vec<Output>) {
        self.floor = Some(membership.tag);
        self.heard = None;
        if self.candidate.as_ref().is_some_and(|c| c.membership.tag <= membership.tag) {
            self.candidate = None;
        }
        self.phase = Phase::Running(Running::new(membership.clone(), step));
        out.push(Output::Enter(membership, step));
    }

    pub(crate) fn on_done(&mut self, from: Peer, step: Step, out: &mut Vec<Output>) {
        match &mut self.phase {
            Phase::Running(running) if running.step == step => {
                running.done.insert(from);
            }
            Phase::Leaving { waiting, .. } => {
                waiting.remove(&from);
                self.exit_if_released(out);
            }
            _ => {}
        }
    }

    /// Asks the leader to be let go; said again to every new leader until it happens.
    pub(crate) fn request_leave(&mut self, out: &mut Vec<Output>) {
        let me = self.config.me;
        let Phase::Running(running) = &mut self.phase else { return };
        if running.membership.leader == me {
            running.leaves.insert(me);
        } else if !matches!(running.stage, Stage::Still { .. }) {
            Self::send(running.membership.leader, running.membership.tag, Message::LeaveRequest, out);
        }
    }

    pub(crate) fn on_leave_request(&mut self, from: Peer) {
        if let Phase::Running(running) = &mut self.phase
            && running.membership.has(from)
        {
            running.leaves.insert(from);
        }
    }

    /// Whether this member holds the replica of the step it is at.
    pub(crate) fn holds(&self, step: Step) -> bool {
        matches!(self.holding, Some(Holding { step: held, .. }) if held == step)
    }
}
