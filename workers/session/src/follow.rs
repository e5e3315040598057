//! How a newcomer comes to hold the replica while the others go on stepping: it follows them. At a boundary every member sends it its part of the
//! replica, and after each further step its part of the mean gradient; when it has caught up, it comes in and lacks one gradient.
//!
//! Which newcomers follow from which boundary on is the leader's word, on its contribution to the step before, so that all members send parts of the
//! same replica. A change of membership ends it, and it begins anew in the next one. Whoever is sent the gradients more slowly than steps make them is given up:
//! as a member it would slow every step to its link.
//!
//! A snapshot and a replay of gradients: any optimizer can do that, where a copy that moves on range by range needs updates of ranges (decision 21).

use crate::event::Output;
use crate::message::{Follower, Membership, Message, Peer, Tag};
use crate::state::{Phase, Running, Session, Stage};
use events_schema::Step;
use events_schema::stride::Stride;
use std::collections::BTreeMap;

/// A newcomer's wish to be sent the replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request {
    /// Higher for a later one: each begins anew.
    number: u32,
    /// The step of the replica that it holds, once it does.
    at: Option<Step>,
    /// Its link carries less than steps make.
    given_up: bool,
    /// Steps at whose ends it could have come in, had it been nearer.
    waited: u64,
}

/// A newcomer that is sent the replica and what follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Following {
    follower: Follower,
    /// The step of the replica that it is sent.
    since: Step,
}

impl Following {
    /// In which tag it is sent.
    fn tag(&self) -> Tag {
        Tag { generation: self.follower.generation, revision: 0 }
    }
}

impl Session {
    /// A newcomer that is linked to everybody asks to be sent the replica, once.
    pub(crate) fn ask_to_follow(&mut self, out: &mut Vec<Output>) {
        let (me, follows) = (self.config.me, self.config.behind_max.is_some());
        let Some(candidate) = self.candidate.as_mut().filter(|c| follows && !c.asked) else { return };
        candidate.asked = true;
        for peer in candidate.membership.others(me) {
            Self::send(peer, candidate.membership.tag, Message::FollowRequest, out);
        }
    }

    pub(crate) fn on_follow_request(&mut self, from: Peer) {
        self.requests += 1;
        if let Some(candidate) = &mut self.candidate {
            candidate.ready.remove(&from);
            candidate.requests.insert(from, Request { number: self.requests, at: None, given_up: false, waited: 0 });
        }
    }

    /// A newcomer holds the replica of this step.
    pub(crate) fn on_followed_by(&mut self, from: Peer, step: Step) {
        if let Some(request) = self.candidate.as_mut().and_then(|candidate| candidate.requests.get_mut(&from)) {
            request.at = Some(step);
        }
    }

    /// The leader: who follows from the next boundary on.
    pub(crate) fn choose_followers(&mut self, out: &mut Vec<Output>) -> Vec<Follower> {
        let (Phase::Running(running), Some(candidate)) = (&self.phase, &mut self.candidate) else { return Vec::new() };
        let Some(behind_max) = self.config.behind_max else { return Vec::new() };
        let follows = candidate.membership.can_follow(&running.membership, self.config.workers);
        let (next, stops, stride) = (running.next(&self.config), self.config.stops, running.membership.stride);
        if !follows || next.0 >= self.config.stops.total {
            return Vec::new();
        }
        for (peer, request) in &mut candidate.requests {
            let following = running.followers.get(peer).filter(|f| f.follower.number == request.number);
            let at = following.map_or(next, |f| f.at(request));
            request.waited += u64::from(following.is_some_and(|f| request.at.is_some_and(|at| at >= f.since)));
            if stops.updates(at, next, stride) > behind_max && !request.given_up {
                request.given_up = true;
                out.push(Output::FallsBehind(*peer, next.0.saturating_sub(at.0)));
            }
        }
        let generation = candidate.membership.tag.generation;
        let wanted = candidate.requests.iter().filter(|(peer, request)| !request.given_up && self.links.contains(peer));
        wanted.map(|(&peer, request)| Follower { peer, generation, number: request.number }).collect()
    }

    /// Whether nobody would wait long for these newcomers if they came in at the next boundary.
    pub(crate) fn have_caught_up(&self, running: &Running, newcomers: &[Peer]) -> bool {
        let requests = self.candidate.as_ref().map(|candidate| &candidate.requests);
        let far = self.config.behind_max.map_or(0, |behind_max| behind_max / 2);
        let (next, stops, stride) = (running.next(&self.config), self.config.stops, running.membership.stride);
        newcomers.iter().all(|peer| {
            let Some(request) = requests.and_then(|requests| requests.get(peer)) else { return true };
            let near = if request.waited > NEAR_PATIENCE_UPDATES { far.max(NEAR_UPDATES) } else { NEAR_UPDATES };
            let following = running.followers.get(peer).filter(|f| f.follower.number == request.number);
            let holds = |f: &&Following| request.at.is_some_and(|at| at >= f.since);
            following.filter(holds).is_some_and(|f| stops.updates(f.at(request), next, stride) <= near)
        })
    }

    /// Who follows is sent the gradient of `step` before it is applied here, and so applies it at the same time.
    pub(crate) fn on_summed(&mut self, step: Step, out: &mut Vec<Output>) {
        let config = self.config;
        let Phase::Running(running) = &mut self.phase else { return };
        if running.step != step || running.stage != Stage::Contributed || !running.is_contributed() {
            return;
        }
        let said = running.contributions.get(&(step, running.membership.leader));
        let followers = said.map_or_else(Vec::new, |contribution| contribution.followers.clone());
        running.followers.retain(|_, following| followers.contains(&following.follower));
        let (index, count) = (running.membership.index(config.me).unwrap_or(0), running.membership.seats.len());
        let next = running.next(&config);
        for (tag, to) in by_tag(running.followers.values()) {
            out.push(Output::SendMean { to, tag, step: next, index, count });
        }
    }

    /// At the boundary before `next`, from which on they train: who begins to follow is sent the replica.
    pub(crate) fn begin_followers(&mut self, followers: &[Follower], next: Step, out: &mut Vec<Output>) {
        let me = self.config.me;
        let Phase::Running(running) = &mut self.phase else { return };
        let (index, count) = (running.membership.index(me).unwrap_or(0), running.membership.seats.len());
        let stride = running.membership.stride;
        let new: Vec<Following> = followers
            .iter()
            .filter(|follower| !running.followers.contains_key(&follower.peer))
            .map(|&follower| Following { follower, since: next })
            .collect();
        for (tag, to) in by_tag(new.iter()) {
            to.iter().for_each(|&peer| Self::send(peer, tag, Message::Replica { step: next, stride }, out));
            out.push(Output::SendReplicaAside { to, tag, step: next, index, count });
        }
        running.followers.extend(new.into_iter().map(|following| (following.follower.peer, following)));
    }

    /// To a newcomer: the replica of this step is on its way, from each member its part.
    pub(crate) fn on_replica(&mut self, tag: Tag, step: Step, stride: Stride, out: &mut Vec<Output>) {
        let Some(candidate) = self.candidate.as_mut().filter(|candidate| candidate.membership.tag == tag) else {
            return;
        };
        if candidate.following.is_some_and(|since| since >= step) {
            return;
        }
        (candidate.following, candidate.caught_up) = (Some(step), false);
        self.holding = None;
        out.push(Output::Follow(tag, step, stride));
    }

    /// A newcomer holds the replica of `step`; whether nothing that it has been sent would bring it further.
    pub(crate) fn on_followed(&mut self, step: Step, caught_up: bool, out: &mut Vec<Output>) {
        let me = self.config.me;
        let Some(candidate) = self.candidate.as_mut().filter(|_| matches!(self.phase, Phase::Waiting)) else { return };
        candidate.caught_up |= caught_up;
        for peer in candidate.membership.others(me) {
            Self::send(peer, candidate.membership.tag, Message::Followed { step }, out);
        }
        self.try_ready(out);
    }

    /// Which newcomers of the membership that takes over hold the replica, or what makes it out of theirs.
    pub(crate) fn followers_into(running: &Running, next: &Membership) -> Vec<Peer> {
        let into = |following: &&Following| following.tag() == next.tag && next.has(following.follower.peer);
        running.followers.values().filter(into).map(|following| following.follower.peer).collect()
    }
}

/// Who holds the replica that the others compute with lacks one gradient at the boundary, and nobody waits for more than that.
const NEAR_UPDATES: u64 = 1;
/// Updates that a newcomer is given to come as near as that: on a link that is hardly faster than steps are, others wait for a few gradients, once.
const NEAR_PATIENCE_UPDATES: u64 = 4;

impl Following {
    /// The step that it holds, or will hold first.
    fn at(&self, request: &Request) -> Step {
        request.at.map_or(self.since, |at| at.max(self.since))
    }
}

/// Who is sent the same.
fn by_tag<'a>(following: impl Iterator<Item = &'a Following>) -> BTreeMap<Tag, Vec<Peer>> {
    let mut by_tag: BTreeMap<Tag, Vec<Peer>> = BTreeMap::new();
    for following in following {
        by_tag.entry(following.tag()).or_default().push(following.follower.peer);
    }
    by_tag
}
