//! Leaving in the middle of a step, when the boundary is too far away for whoever wants the slot back. The others then compute what this member was at,
//! as after a loss; a step that was begun is not lost, because it is the same step again.
//!
//! The last replica must not go this way: who asks goes only on the word of a member that holds one and stays, and who has to leave itself
//! never gives that word. The word is of the step in flight: at its end a member may hear that it leaves there, with the leader's announcement, and
//! be gone. So who has contributed its own part, without which that end is never reached, goes by the announcement, or else on the word of the leader,
//! who announces nothing then by which it would leave itself. No timers here; when a boundary is too far away, the driver says (`workers/member/src/leave.rs`).

use crate::event::Output;
use crate::message::{Announcement, Message, Peer};
use crate::state::{Phase, Running, Session, Stage};

impl Session {
    /// Asks everybody, once in each membership. Who stands still writes a checkpoint, and that is waited for. Who has loaded nothing yet has nothing that the
    /// others need, and the round begins anew without it.
    pub(crate) fn on_leave_early(&mut self, out: &mut Vec<Output>) {
        if matches!(&self.phase, Phase::Joining(joining) if !joining.loaded) {
            self.phase = Phase::Ended;
            return out.push(Output::ExitEarly);
        }
        let Phase::Running(running) = &self.phase else { return };
        let tag = running.membership.tag;
        if self.park || matches!(running.stage, Stage::Still { .. }) || self.asked_to_go == Some(tag) {
            return;
        }
        self.asked_to_go = Some(tag);
        for peer in running.membership.others(self.config.me) {
            Self::send(peer, tag, Message::MayGo, out);
        }
    }

    pub(crate) fn on_may_go(&mut self, from: Peer, out: &mut Vec<Output>) {
        let holds = matches!(&self.phase, Phase::Running(running) if self.holds(running.step));
        let Phase::Running(running) = &mut self.phase else { return };
        let (me, step, membership) = (self.config.me, running.step, &running.membership);
        let let_go = self.candidate.as_ref().is_some_and(|candidate| !candidate.membership.has(me));
        let still = matches!(running.stage, Stage::Still { .. });
        let leaves = self.leave || self.park || let_go || still;
        if membership.has(from) && !leaves && holds {
            Self::send(from, membership.tag, Message::Stays, out);
            running.said_stays = Some(step);
        }
    }

    pub(crate) fn on_stays(&mut self, from: Peer, out: &mut Vec<Output>) {
        let Phase::Running(running) = &self.phase else { return };
        let (tag, still) = (running.membership.tag, matches!(running.stage, Stage::Still { .. }));
        if self.asked_to_go == Some(tag) && !still && !self.park && running.membership.has(from) && running.keeps(from)
        {
            self.phase = Phase::Ended;
            out.push(Output::ExitEarly);
        }
    }
}

impl Running {
    /// Whether a member that says that it stays is there after the step in flight, as far as is known here.
    fn keeps(&self, peer: Peer) -> bool {
        let leader = self.membership.leader;
        match (self.stage, self.contributions.get(&(self.step, leader))) {
            (Stage::Computing, _) => true,
            (_, None) => peer == leader,
            (_, Some(said)) => match &said.announcement {
                None => true,
                Some(Announcement::Switch(membership)) => membership.has(peer),
                Some(Announcement::Park) => false,
            },
        }
    }
}
