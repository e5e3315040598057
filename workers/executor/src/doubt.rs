//! Members to which the link is gone though nobody said that they are: after a grace, the controller is told. Nothing is done about it
//! here; the controller proposes a round, and the round makes links and steps whole again (`workers/session/src/start_round.rs`).
//!
//! Without this a lost link between two living members would stop the job for good: each of them waits for the other's sums.

use crate::inbox::Event;
use crate::trainer::{TrainError, Trainer};
use events_schema::report::Report;
use events_schema::{ExecutorId, Generation, Step};
use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;
use workers_session::Peer;

/// Time for somebody else to explain the loss: the agent of a killed process reports it within milliseconds.
const GRACE: Duration = Duration::from_secs(2);
/// Time for the members of a beginning generation to link up: a dial that is refused is tried again for about as long.
pub(crate) const ROUND_GRACE: Duration = Duration::from_secs(6);
/// Time to the next report of the same: the controller may have been in the middle of another proposal, which has to run out first.
const REPEAT: Duration = Duration::from_secs(10);

/// Members in doubt, with the step of the loss: one entry, and one sleeping thread, per member and generation.
pub(crate) type Doubts = BTreeMap<(Peer, Generation), Step>;

impl<W: Write> Trainer<W> {
    /// The link to a peer is gone. If it is a member, it will be looked at again.
    pub(crate) fn doubt(&mut self, peer: Peer) {
        let Some(membership) = self.session.membership().filter(|m| m.has(peer) && peer != self.me) else { return };
        let generation = membership.tag.generation;
        if self.doubts.insert((peer, generation), self.position).is_none() {
            self.look_again(peer, generation, GRACE);
        }
    }

    /// The links that a membership begins without: they may have gone before it was in force, when they were nobody's loss.
    pub(crate) fn doubt_missing(&mut self) {
        let Some(membership) = self.session.membership() else { return };
        let missing: Vec<Peer> = membership.others(self.me).filter(|peer| !self.network.is_linked(*peer)).collect();
        missing.into_iter().for_each(|peer| self.doubt(peer));
    }

    fn look_again(&mut self, peer: Peer, generation: Generation, after: Duration) {
        let inbox = self.inbox.clone();
        let look = move || {
            std::thread::sleep(after);
            // It can only fail when the trainer has ended.
            let _ = inbox.send(Event::StillLost(peer, generation));
        };
        if let Err(error) = std::thread::Builder::new().name("ebb-doubt".to_owned()).spawn(look) {
            tracing::error!(%peer, %error, "no thread is left to look after a lost link");
            self.doubts.remove(&(peer, generation));
        }
    }

    /// The grace is over. A link that is back makes nothing good by itself: what was under way on the old one is lost, so it is the
    /// step that has to have gone on.
    pub(crate) fn on_still_lost(&mut self, peer: Peer, generation: Generation) -> Result<(), TrainError> {
        let Some(step) = self.doubts.remove(&(peer, generation)) else { return Ok(()) };
        let in_force = self.session.membership().is_some_and(|m| m.tag.generation == generation && m.has(peer));
        let healed = self.network.is_linked(peer) && self.position > step;
        if !in_force || healed || self.broken || self.session.is_at_rest() {
            return Ok(());
        }
        tracing::warn!(%peer, %generation, step = %self.position, "a member is out of reach, and nobody said that it is gone");
        self.doubts.insert((peer, generation), step);
        self.look_again(peer, generation, REPEAT);
        self.report_missing(step, &[peer])
    }

    /// A round was proposed: its members will be looked at, too.
    pub(crate) fn watch_round(&mut self, generation: Generation, after: Duration) {
        let inbox = self.inbox.clone();
        let look = move || {
            std::thread::sleep(after);
            // It can only fail when the trainer has ended.
            let _ = inbox.send(Event::StillJoining(generation));
        };
        if let Err(error) = std::thread::Builder::new().name("ebb-doubt".to_owned()).spawn(look) {
            tracing::error!(%generation, %error, "no thread is left to look after a round");
        }
    }

    /// The grace of a round is over. Who cannot be linked is named, so that the next round can do without.
    pub(crate) fn on_still_joining(&mut self, generation: Generation) -> Result<(), TrainError> {
        let Some((tag, missing)) = self.session.round() else { return Ok(()) };
        if tag.generation != generation || self.broken {
            return Ok(());
        }
        self.watch_round(generation, REPEAT);
        if missing.is_empty() { Ok(()) } else { self.report_missing(self.position, &missing) }
    }

    fn report_missing(&mut self, step: Step, peers: &[Peer]) -> Result<(), TrainError> {
        let round = self.session.round().map(|(tag, _)| tag);
        let Some(tag) = round.or_else(|| self.session.membership().map(|m| m.tag)) else { return Ok(()) };
        let executor = |peer: &Peer| ExecutorId { job: self.program.job.clone(), number: peer.0 };
        self.report(Report::PeersMissing {
            job: self.program.job.clone(),
            generation: tag.generation,
            revision: tag.revision,
            step,
            by: executor(&self.me),
            peers: peers.iter().map(executor).collect(),
            begun: round.is_none(),
        })
    }
}
