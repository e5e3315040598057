//! What an executor is at, for its word of life: read from the machine's state, never kept beside it.

use crate::event::Unit;
use crate::member::Member;
use events_schema::Generation;
use events_schema::control::{Phase, Progress, WaitsFor};
use workers_session::{Membership, Peer, Tag};

impl<P> Member<P> {
    /// What it is at now. Bytes sent and processor time are added by whoever counts them.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let beginning = self.round.as_ref().map(|round| &round.membership);
        let none = Tag { generation: Generation(0), revision: 0 };
        let tag = beginning.or(self.membership.as_ref()).map_or(none, |m| m.tag);
        let (phase, waits_for) = self.phase();
        Progress {
            generation: tag.generation,
            revision: tag.revision,
            step: self.position,
            phase,
            units_done: self.units_done,
            bytes_done: self.bytes_done,
            waits_for,
            processor_ms: 0,
            gradients: Some(self.gradients),
            busy_percent: None,
        }
    }

    fn phase(&self) -> (Phase, WaitsFor) {
        match self.unit {
            Some(Unit::Gradient { rank, .. }) => return (Phase::Computing(rank), WaitsFor::Nothing),
            Some(Unit::Evaluate { rank, .. }) => return (Phase::Evaluating(rank), WaitsFor::Nothing),
            Some(Unit::Update { .. }) => return (Phase::Updating, WaitsFor::Nothing),
            None => {}
        }
        if self.broken {
            (Phase::Broken, WaitsFor::Controller)
        } else if self.loading.is_some() {
            (Phase::Loading, WaitsFor::Store)
        } else if self.round.is_some() {
            self.phase_of_round()
        } else {
            match self.session().membership() {
                None if self.following.is_some() => (Phase::Copying, WaitsFor::Nothing),
                None => (Phase::Idle, WaitsFor::Controller),
                Some(membership) if self.still.is_some() => self.phase_still(membership),
                Some(membership) => self.phase_of_step(membership),
            }
        }
    }

    fn phase_of_round(&self) -> (Phase, WaitsFor) {
        let Some(round) = &self.round else { return (Phase::Idle, WaitsFor::Controller) };
        let (me, leader) = (self.config.me, round.membership.leader);
        let unlinked: Vec<Peer> = round.membership.others(me).filter(|peer| !self.links.has(*peer)).collect();
        if !unlinked.is_empty() {
            return (Phase::Linking, peers(unlinked));
        }
        let absent = round.membership.others(me).filter(|peer| !round.joined.contains(peer));
        (Phase::Joining, if leader == me { peers(absent) } else { peers([leader]) })
    }

    fn phase_still(&self, membership: &Membership) -> (Phase, WaitsFor) {
        let others = membership.others(self.config.me);
        if self.replica.awaited().is_some() {
            (Phase::Copying, peers(others))
        } else if self.saving.is_needed() {
            (Phase::Saving, WaitsFor::Store)
        } else if self.session().is_at_rest() {
            (Phase::Still, WaitsFor::Controller)
        } else if membership.leader == self.config.me {
            (Phase::Saving, peers(others))
        } else {
            (Phase::Saving, peers([membership.leader]))
        }
    }

    fn phase_of_step(&self, membership: &Membership) -> (Phase, WaitsFor) {
        let (me, step) = (self.config.me, self.position);
        if self.replica.awaited().is_some() && !self.replica.can_compute(step) {
            return (Phase::Copying, peers(membership.others(me)));
        }
        if let Some(rank) = self.flow.work.as_ref().and_then(crate::work::Work::next) {
            return (Phase::Computing(rank), WaitsFor::Nothing);
        }
        let silent = |peer: &Peer| self.contributed.get(peer).is_none_or(|of| *of < step);
        let mut missing: Vec<Peer> = self.flow.reduction.iter().flat_map(|r| r.owing()).collect();
        if self.flow.totals.is_none() {
            missing.extend(membership.others(me).filter(silent));
        }
        if missing.is_empty() && self.replica.awaited().is_some() {
            return (Phase::Copying, peers(membership.others(me)));
        }
        missing.sort_unstable();
        missing.dedup();
        (Phase::Reducing, peers(missing))
    }
}

fn peers(of: impl IntoIterator<Item = Peer>) -> WaitsFor {
    WaitsFor::Peers(of.into_iter().map(|peer| peer.0).collect())
}
