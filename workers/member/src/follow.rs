//! A newcomer that follows: it is sent the replica beside the others' steps, and then every step's mean gradient, which it applies as they did. Also the
//! members' side of it. Who follows, and from which boundary on, is decided by the session (`workers/session/src/follow.rs`).
//!
//! Bounded: members send no more steps than a follower may be behind, so that much is kept here and no more.

use crate::copy_rate::{CopyRate, Rate};
use crate::event::{Bulk, Cause, Config, Kind, Need, Out, StateTransfer};
use crate::member::{ELEMENT_BYTES, Member};
use crate::reduce::chunk;
use events_schema::report::Report;
use events_schema::stride::Stride;
use events_schema::{ExecutorId, Step};
use workers_session::{Input, Peer, Tag};

/// A replica of at most so many bytes is sent when its newcomer comes in: the others wait for it a few milliseconds on links of a gigabit per second, less
/// than a newcomer that follows first would cost in steps without it.
const AT_BOUNDARY_BYTES_MAX: u64 = 1 << 20;
/// Updates that a follower may be behind: with three gradients in a replica, and a link that carries a tenth more than updates make, the replica takes as long
/// as 2.7 updates, and three more are on their way.
const BEHIND_UPDATES_MIN: u64 = 6;
/// Small gradients come so fast that what counts is how long a link or a process pauses: so many bytes of them may be on their way.
const BEHIND_BYTES_MIN: u64 = 16 << 20;
/// And so many at the most, each a few entries in a link's queue.
const BEHIND_UPDATES_MAX: u64 = 1_024;

/// Updates that a newcomer may be behind while it follows, for these lengths; none where it does not follow.
#[must_use]
pub fn behind_max(replica_len: usize, gradient_len: usize) -> Option<u64> {
    if ELEMENT_BYTES * replica_len as u64 <= AT_BOUNDARY_BYTES_MAX {
        return None;
    }
    let gradient_bytes = (ELEMENT_BYTES * gradient_len as u64).max(1);
    Some((BEHIND_BYTES_MIN / gradient_bytes).clamp(BEHIND_UPDATES_MIN, BEHIND_UPDATES_MAX))
}

/// What is sent to this newcomer.
#[derive(Debug)]
pub(crate) struct Following<P> {
    tag: Tag,
    /// Steps that each update takes of those that it follows.
    stride: Stride,
    /// What came before it could be used: of later steps than the one that is awaited.
    kept: Vec<(Peer, Bulk, P)>,
    /// Elements of it, and most of them.
    elements: usize,
    elements_max: usize,
    /// How fast its first replica is sent.
    rate: CopyRate,
}

impl<P> Following<P> {
    fn new(config: &Config, tag: Tag, stride: Stride) -> Self {
        // A member may have sent all that a follower may be behind when another has not begun.
        let updates = usize::try_from(config.behind_max.unwrap_or(0)).unwrap_or(usize::MAX).saturating_add(1);
        let elements_max = config.replica_len.saturating_add(config.gradient_len.saturating_mul(updates));
        Self { tag, stride, kept: Vec::new(), elements: 0, elements_max, rate: CopyRate::default() }
    }

    fn keep(&mut self, from: Peer, bulk: Bulk, payload: P) -> bool {
        self.elements = self.elements.saturating_add(bulk.elements);
        self.kept.push((from, bulk, payload));
        self.elements <= self.elements_max
    }
}

impl<P> Member<P> {
    /// The replica of `step` arrives, as members send it beside their steps.
    pub(crate) fn begin_following(&mut self, tag: Tag, step: Step, stride: Stride) {
        let kept = self.following.take().filter(|following| following.tag == tag).map(|following| following.kept);
        self.following = Some(Following::new(&self.config, tag, stride));
        self.replica.expect(Need::Replica, tag, step);
        self.out.push(Out::Expect(Need::Replica));
        self.take_followed(kept.unwrap_or_default());
    }

    /// It does not follow any more; what is under way is of no use.
    pub(crate) fn stop_following(&mut self) {
        if self.following.take().is_some() && self.replica.abandon_supply() {
            self.out.push(Out::Unexpect);
        }
    }

    /// Whether a stretch is of what this newcomer follows.
    pub(crate) fn is_followed(&self, bulk: &Bulk) -> bool {
        let state = matches!(bulk.kind, Kind::Replica | Kind::Gradient);
        state && self.following.as_ref().is_some_and(|following| following.tag == bulk.tag)
    }

    /// Something of the replica has arrived, which tells how fast that is sent.
    pub(crate) fn measure_copy(&mut self, bulk: &Bulk) {
        let bytes = ELEMENT_BYTES * bulk.elements as u64;
        let following = self.following.as_mut().filter(|_| bulk.kind == Kind::Replica);
        let rate = following.and_then(|following| following.rate.on_bytes(bytes, self.now));
        self.report_rate(rate);
    }

    fn report_rate(&mut self, rate: Option<Rate>) {
        let executor = ExecutorId { job: self.config.job.clone(), number: self.config.me.0 };
        if let Some(Rate { bytes_per_s, settled }) = rate {
            self.report(Report::LinkMeasured { executor, bytes_per_s, settled });
        }
    }

    /// A stretch of what this newcomer follows: used now, kept for later, or of a copy that was begun anew.
    pub(crate) fn on_followed_bulk(&mut self, from: Peer, bulk: Bulk, payload: P) {
        let need = if bulk.kind == Kind::Gradient { Need::Gradient } else { Need::Replica };
        let awaited = self.replica.awaited();
        if awaited == Some((need, bulk.tag, bulk.step)) {
            return self.on_supply(from, bulk, payload);
        }
        let later = awaited.is_none_or(|(_, _, step)| bulk.step > step);
        let kept = !later || self.following.as_mut().is_none_or(|following| following.keep(from, bulk, payload));
        if !kept {
            self.cut(from, Cause::TooFarAhead);
        }
    }

    fn take_followed(&mut self, kept: Vec<(Peer, Bulk, P)>) {
        if let Some(following) = &mut self.following {
            following.elements = 0;
        }
        for (from, bulk, payload) in kept {
            self.on_followed_bulk(from, bulk, payload);
        }
    }

    /// The replica of `step` is whole here: goes on to the next, unless this is where the others are.
    pub(crate) fn on_followed(&mut self, step: Step) {
        let Some(following) = &mut self.following else { return };
        let (tag, stride, kept) = (following.tag, following.stride, std::mem::take(&mut following.kept));
        let rate = following.rate.on_whole(self.now);
        self.report_rate(rate);
        let is_in = self.membership.as_ref().is_some_and(|membership| membership.tag == tag);
        if is_in && step >= self.position {
            self.following = None;
            return self.inputs.push_front(Input::Supplied(step));
        }
        self.replica.expect(Need::Gradient, tag, self.config.stops().after(step, stride));
        self.out.push(Out::Expect(Need::Gradient));
        self.take_followed(kept);
        if !is_in {
            self.inputs.push_back(Input::Followed(step, !self.replica.is_supplied()));
        }
    }

    /// It is in: what is under way brings it to where the others are, if it is not there yet.
    pub(crate) fn catch_up(&mut self) {
        let step = self.position;
        if self.replica.step() == Some(step) {
            self.stop_following();
            self.inputs.push_front(Input::Supplied(step));
        }
    }

    /// Part `index` of `count` of the replica as it is now, for newcomers; what training makes of it later is not sent.
    pub(crate) fn send_replica_aside(&mut self, to: Vec<Peer>, tag: Tag, step: Step, (index, count): (usize, usize)) {
        let ranges = self.replica.part(index, count);
        self.out.push(Out::SendAside { to, tag, step, ranges });
    }

    /// Part `index` of `count` of the gradient that leads to `step`, for newcomers that hold the replica before it.
    pub(crate) fn send_mean(&mut self, to: Vec<Peer>, tag: Tag, step: Step, (index, count): (usize, usize)) {
        let range = chunk(self.config.gradient_len, index, count);
        if range.is_empty() {
            return;
        }
        let transfer = |to| StateTransfer { to, of: Need::Gradient, tag, step, range: range.clone() };
        self.out.extend(to.into_iter().map(transfer).map(Out::Send));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_that_is_sent_in_a_moment_is_not_followed() {
        assert_eq!(behind_max(1 << 18, 1 << 18), None);
        assert_eq!(behind_max((1 << 18) + 1, 1 << 17), Some(32));
        assert_eq!(behind_max(26 << 20, 9 << 20), Some(6));
        assert_eq!(behind_max(1 << 20, 1), Some(1_024));
        assert_eq!(behind_max(usize::MAX >> 8, 0), Some(1_024));
    }
}
