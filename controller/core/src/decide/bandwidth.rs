//! Whether a link carries what a job's steps make. As a member everybody takes part in every step, so a server whose link carries less than a job's
//! gradients slows each step to its link: nobody is asked there.
//!
//! Agents measure the links between their servers, so that it is known before a slot is lent (`survey.rs`,
//! [decision 33](../../../../docs/decisions/0033-a-link-is-measured-before-a-slot-is-lent.md)). What they did not measure, a newcomer finds out that follows: it is
//! sent the replica as fast as its link can, and says how fast that is, while the others go on
//! ([decision 26](../../../../docs/decisions/0026-a-slow-link-is-found-out-once.md)). What was found counts for all jobs, each by its own gradient and
//! step, for a while that doubles: so a link that is mended is found to be.

use super::{Draft, generations, plan, slow_members};
use crate::limits::{
    BETA_REFUSED_MILLI, LINK_AGAIN_BEFORE_MS, LINK_AVOID_MS_MIN, LINK_SUSPECTED_MS, NEWS_OF_SPEED_PERCENT,
};
use crate::state::troubles::Pause;
use crate::state::{Active, Job, Link, SlotKind, State};
use events_schema::fact::{Fact, PlanCause, PlanReason, SlowLink, WaitCause};
use events_schema::orders::LINK_FAST_BYTES_PER_S;
use events_schema::stride::Stride;
use events_schema::{ExecutorId, JobId, ServerId, SlotId, TimeMs};
use std::collections::BTreeSet;

/// Servers that a link is known to be slow from; two say that it is the server's own.
const FROM_MAX: usize = 4;

/// What a job's members exchange: a gradient each update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stream {
    gradient_bytes: u64,
    update_us: u64,
}

impl Stream {
    /// Of a job that trains, once its executors and its steps have said so.
    fn of(state: &State, id: &JobId, job: &Job) -> Option<Self> {
        let members = u16::try_from(job.active()?.members.len()).unwrap_or(u16::MAX);
        let by_size = &job.placement()?.step_us_by_size;
        // A step that waits for a link says nothing of what others need: the one of before does.
        let before_us = slow_members::of_links(job).map(|(_, known)| known.peers_unit_us).min();
        // One that was told last may have been of members that are gone; those of fewer members are not shorter than those of more.
        let of_more = || by_size.range(members..).next().map(|(_, step_us)| *step_us);
        let told = || of_more().into_iter().chain(job.step_us).min();
        Self::with_step(state, id, job, before_us.or_else(|| by_size.get(&members).copied()).or_else(told)?)
    }

    /// Of a job that trains, if a step takes so long.
    pub fn with_step(state: &State, id: &JobId, job: &Job, step_us: u64) -> Option<Self> {
        // An update sends one gradient, however many steps it takes.
        let update_us = step_us.saturating_mul(job.active()?.proposal.stride.steps());
        let gradient_bytes = gradient_bytes(state, id)?;
        (update_us > 0).then_some(Self { gradient_bytes, update_us })
    }

    /// How long a step takes that waits for a link, at the least.
    pub fn step_over_us(self, bytes_per_s: u64, stride: Stride) -> u64 {
        let us = u128::from(self.gradient_bytes) * 1_000_000 / u128::from(bytes_per_s.max(1));
        u64::try_from(us).unwrap_or(u64::MAX) / stride.steps()
    }

    /// A link that is too slow for it.
    pub fn slow_link(self, server: ServerId, bytes_per_s: u64) -> SlowLink {
        let (gradient_bytes_per_s, beta_milli) = (self.bytes_per_s(), self.beta_milli(bytes_per_s));
        SlowLink { server, bytes_per_s, gradient_bytes_per_s, beta_milli }
    }

    fn bytes_per_s(self) -> u64 {
        (u128::from(self.gradient_bytes) * 1_000_000 / u128::from(self.update_us)).try_into().unwrap_or(u64::MAX)
    }

    /// β, the bandwidth of a link over the gradients of the steps, in thousandths.
    fn beta_milli(self, bytes_per_s: u64) -> u64 {
        let carried = u128::from(bytes_per_s) * u128::from(self.update_us) / 1_000;
        (carried / u128::from(self.gradient_bytes)).try_into().unwrap_or(u64::MAX)
    }

    /// Whether a member with such a link keeps up with the others' steps.
    pub fn fits(self, bytes_per_s: u64) -> bool {
        self.beta_milli(bytes_per_s) > BETA_REFUSED_MILLI
    }
}

/// What the executors of a job have said of its gradient; of a whole program nothing.
fn gradient_bytes(state: &State, id: &JobId) -> Option<u64> {
    state.executors_of(id).find_map(|(_, executor)| executor.gradient_bytes).filter(|bytes| *bytes > 0)
}

/// The servers that the members of a generation are on.
fn servers_of(state: &State, active: &Active) -> BTreeSet<ServerId> {
    state.executors.each(active.members.iter()).flatten().map(|executor| executor.slot.server.clone()).collect()
}

/// The same without those whose links slow the job: it is to go on without them, and they speak against nobody else.
fn sound_servers_of(state: &State, job: &Job, active: &Active) -> BTreeSet<ServerId> {
    let mut servers = servers_of(state, active);
    slow_members::of_links(job).for_each(|(_, known)| _ = servers.remove(&known.slot.server));
    servers
}

/// The slowest link that is known between a server and others, and whose it is.
pub(super) fn slowest<'a>(
    state: &'a State,
    at: TimeMs,
    server: &'a ServerId,
    others: &'a BTreeSet<ServerId>,
) -> Option<(&'a ServerId, u64)> {
    let own = BTreeSet::from([server.clone()]);
    let of = |whose: &'a ServerId, to: &BTreeSet<ServerId>| {
        let link: &'a Link = state.links.get(whose).filter(|link| link.is_slow() && link.is_between(to, at))?;
        Some((whose, link.bytes_per_s))
    };
    let theirs = others.iter().filter_map(|other| of(other, &own));
    of(server, others).into_iter().chain(theirs).min_by_key(|(_, bytes_per_s)| *bytes_per_s)
}

/// Servers on which a job has no member and would be slowed by one, each with the link that does it.
fn too_slow<'a>(state: &'a State, at: TimeMs, id: &JobId, job: &Job) -> Vec<(&'a ServerId, SlowLink)> {
    if state.links.is_empty() {
        return Vec::new();
    }
    let stream = Stream::of(state, id, job);
    let (Some(stream), Some(active)) = (stream, job.active()) else { return Vec::new() };
    let members = sound_servers_of(state, job, active);
    let slow = |server: &ServerId| {
        let (whose, bytes_per_s) = slowest(state, at, server, &members)?;
        let is_slow = !members.contains(server) && !stream.fits(bytes_per_s);
        is_slow.then(|| stream.slow_link(whose.clone(), bytes_per_s))
    };
    // Nearly always only servers of slow links need be looked at: unless a member is on one.
    if members.iter().any(|member| state.links.get(member).is_some_and(|link| at < link.until)) {
        state.servers.iter().filter_map(|(server, _)| Some((server, slow(server)?))).collect()
    } else {
        state.links.iter().filter_map(|(server, _)| Some((server, slow(server)?))).collect()
    }
}

/// Servers of which it will soon be known whether their links would slow a job: they have a slow link, and the job has yet to take its first step.
fn soon_known<'a>(state: &'a State, at: TimeMs, id: &JobId, job: &Job) -> Vec<&'a ServerId> {
    let (Some(active), Some(_)) = (job.active(), gradient_bytes(state, id)) else { return Vec::new() };
    if Stream::of(state, id, job).is_some() {
        return Vec::new();
    }
    let members = sound_servers_of(state, job, active);
    let soon = |server: &ServerId| !members.contains(server) && slowest(state, at, server, &members).is_some();
    state.servers.iter().map(|(server, _)| server).filter(|server| soon(server)).collect()
}

/// Servers whose links would slow a job, or of which that will soon be known.
pub(super) fn passed_over(state: &State, at: TimeMs, id: &JobId, job: &Job) -> BTreeSet<ServerId> {
    // Every plan asks this of every job, and nearly always no link is known to be slow.
    if state.links.is_empty() {
        return BTreeSet::new();
    }
    let slow = too_slow(state, at, id, job).into_iter().map(|(server, _)| server);
    slow.chain(soon_known(state, at, id, job)).cloned().collect()
}

/// Slots of a kind on these servers that could be had.
fn usable(state: &State, kind: SlotKind, servers: &BTreeSet<ServerId>) -> u32 {
    let noted = state.noted_slots();
    let of_servers = noted.servers().filter(|(server, _)| servers.contains(*server));
    let slots = of_servers
        .flat_map(|(server, of)| of.usable.iter().map(move |index| SlotId { server: server.clone(), index }))
        .filter(|slot| state.is_present(slot) && state.kind(slot) == Some(kind));
    u32::try_from(slots.count()).unwrap_or(u32::MAX)
}

/// How many slots of its kind a job is not given for now, because of their links.
pub(super) fn slots_passed_over(state: &State, at: TimeMs, id: &JobId, job: &Job) -> u32 {
    let servers = passed_over(state, at, id, job);
    if servers.is_empty() {
        return 0;
    }
    let kind = job.slots().first().and_then(|slot| state.kind(slot));
    kind.map_or(0, |kind| usable(state, kind, &servers))
}

/// The link that keeps a job with so many slots from more, if whatever is lent beyond them is on servers with such links; the fastest of them.
pub(crate) fn link_apart(state: &State, at: TimeMs, (id, job): (&JobId, &Job), slots: usize) -> Option<SlowLink> {
    let slow = too_slow(state, at, id, job);
    let kind = job.slots().first().filter(|_| !slow.is_empty()).and_then(|slot| state.kind(slot))?;
    let there = state.noted_slots().totals().find(|(of, _)| **of == kind).map_or(0, |(_, totals)| totals.usable);
    let lending = |server: &ServerId| usable(state, kind, &BTreeSet::from([server.clone()])) > 0;
    let servers: BTreeSet<ServerId> = slow.iter().map(|(server, _)| (*server).clone()).collect();
    let others = there.saturating_sub(usable(state, kind, &servers)) as usize;
    let lent = slow.into_iter().filter(|(server, _)| lending(server)).map(|(_, link)| link);
    lent.max_by_key(|link| link.bytes_per_s).filter(|_| others <= slots)
}

/// When a link that is known to be slow is to be tried again.
pub(super) fn tried_again_at(state: &State, at: TimeMs) -> Option<TimeMs> {
    state.links.iter().map(|(_, link)| link.until).filter(|until| *until > at).min()
}

/// A newcomer that follows, where it is, and on which other servers the members are that it is sent the replica by.
fn newcomer(state: &State, number: &ExecutorId) -> Option<(ServerId, BTreeSet<ServerId>)> {
    let active = state.job(&number.job)?.active()?;
    let executor = state.executor(number).filter(|executor| executor.leaving.is_none())?;
    let (server, mut from) = (executor.slot.server.clone(), servers_of(state, active));
    from.remove(&server);
    (!active.members.contains(number) && !from.is_empty()).then_some((server, from))
}

/// A newcomer says how fast it is sent the replica. A fact if that is too slow for its job, or more than was known of its link.
pub(super) fn measured(draft: &mut Draft<'_>, number: &ExecutorId, bytes_per_s: u64, settled: bool) {
    let (Some((server, from)), Some(job)) = (newcomer(&draft.state, number), draft.state.job(&number.job)) else {
        return;
    };
    let known = draft.state.links.get(&server);
    let fits = Stream::of(&draft.state, &number.job, job).is_none_or(|stream| stream.fits(bytes_per_s));
    if fits {
        let faster = |known: &Link| bytes_per_s > more(known.bytes_per_s) && !is_of_others(known, &from, draft.at);
        if settled && known.is_some_and(faster) {
            let until = draft.at.plus_ms(LINK_AVOID_MS_MIN);
            let from = from.into_iter().take(FROM_MAX).collect();
            draft.emit(Fact::LinkMeasured { server, from, bytes_per_s, until, found: 0 });
        }
    } else if settled {
        refuse(draft, number, (server, from), bytes_per_s);
    } else if known.is_none_or(|known| draft.at >= known.until) {
        // Too little to tell, but if it falls behind meanwhile this is why.
        let (until, found) = (draft.at.plus_ms(LINK_SUSPECTED_MS), known.map_or(0, |known| known.found));
        let from = from.into_iter().take(FROM_MAX).collect();
        draft.emit(Fact::LinkMeasured { server, from, bytes_per_s, until, found });
    }
}

/// Whether what is known of a link still counts, and says nothing of what a server gets from these: what they send faster, another may send as slowly as before.
fn is_of_others(known: &Link, from: &BTreeSet<ServerId>, at: TimeMs) -> bool {
    at < known.until && !known.is_between(from, at)
}

/// The link between two servers was measured. A fact if it is slow, or faster than it was known to be.
pub(super) fn surveyed(draft: &mut Draft<'_>, server: &ServerId, peer: &ServerId, bytes_per_s: u64) {
    let known = draft.state.links.get(server);
    let is_news = known.is_some_and(|known| bytes_per_s > more(known.bytes_per_s));
    let of_others = known.is_some_and(|known| is_of_others(known, &BTreeSet::from([peer.clone()]), draft.at));
    if is_news && of_others {
        return;
    }
    if bytes_per_s < LINK_FAST_BYTES_PER_S {
        // A server is measured over a second one at once: that is the same finding.
        let is_same = |known: &&Link| {
            known.bytes_per_s < LINK_FAST_BYTES_PER_S && !is_news && known.is_known_for(draft.at, LINK_AGAIN_BEFORE_MS)
        };
        let period = known.filter(is_same).map(|known| (known.until, known.found));
        let period = period.unwrap_or_else(|| next_period(draft, server, bytes_per_s));
        note(draft, server, [peer.clone()], bytes_per_s, period);
    } else if is_news {
        let (server, from, until) = (server.clone(), vec![peer.clone()], draft.at.plus_ms(LINK_AVOID_MS_MIN));
        draft.emit(Fact::LinkMeasured { server, from, bytes_per_s, until, found: 0 });
    }
}

/// Until when a link counts as slow that is found to be so now, and how often in a row that is.
fn next_period(draft: &Draft<'_>, server: &ServerId, bytes_per_s: u64) -> (TimeMs, u32) {
    let known = draft.state.links.get(server);
    let before = known.map_or(0, |known| if bytes_per_s > more(known.bytes_per_s) { 0 } else { known.found });
    let until = generations::next_until(Pause { failures: before, until: draft.at }, draft.at, LINK_AVOID_MS_MIN);
    (until, before.saturating_add(1))
}

/// A link is slow, from these servers and from those that it was still known to be as slow from.
fn note(
    draft: &mut Draft<'_>,
    server: &ServerId,
    from: impl IntoIterator<Item = ServerId>,
    bytes_per_s: u64,
    (until, found): (TimeMs, u32),
) {
    let known = draft.state.links.get(server);
    let as_slow = |known: &Link| known.bytes_per_s <= more(bytes_per_s) && bytes_per_s <= more(known.bytes_per_s);
    let counts = |known: &&Link| draft.at < known.until && as_slow(known);
    let earlier = known.filter(counts).map(|known| known.from.iter().cloned());
    let from: BTreeSet<ServerId> = from.into_iter().chain(earlier.into_iter().flatten()).collect();
    let (server, from) = (server.clone(), from.into_iter().take(FROM_MAX).collect());
    draft.emit(Fact::LinkMeasured { server, from, bytes_per_s, until, found });
}

/// A newcomer falls behind: because of its link, if that was seen to be slow, or because of something else.
pub(super) fn falls_behind(draft: &mut Draft<'_>, number: &ExecutorId) {
    let seen = newcomer(&draft.state, number).and_then(|(server, from)| {
        let job = draft.state.job(&number.job)?;
        let stream = Stream::of(&draft.state, &number.job, job)?;
        let link = draft.state.links.get(&server).filter(|link| link.is_between(&from, draft.at))?;
        (!stream.fits(link.bytes_per_s)).then_some(((server, from), link.bytes_per_s))
    });
    match seen {
        Some((of, bytes_per_s)) => refuse(draft, number, of, bytes_per_s),
        None => generations::give_up_newcomer(draft, number),
    }
}

/// A job does without a server whose link is too slow for it, and lets go of the slots there that it has no member on. Not where it would
/// have fewer than its fewest: rather slowly than not at all.
fn refuse(
    draft: &mut Draft<'_>,
    number: &ExecutorId,
    (server, from): (ServerId, BTreeSet<ServerId>),
    bytes_per_s: u64,
) {
    let period = next_period(draft, &server, bytes_per_s);
    note(draft, &server, from, bytes_per_s, period);
    let id = &number.job;
    let Some(job) = draft.state.job(id) else { return };
    let Some(active) = job.active() else { return };
    let slow = too_slow(&draft.state, draft.at, id, job);
    let member_slots: BTreeSet<&SlotId> =
        draft.state.executors.each(active.members.iter()).flatten().map(|executor| &executor.slot).collect();
    let stays =
        |slot: &&SlotId| member_slots.contains(*slot) || !slow.iter().any(|(server, _)| **server == slot.server);
    let slots: BTreeSet<SlotId> = job.slots().iter().filter(stays).cloned().collect();
    if slots.len() < usize::from(job.spec.executors().min.max(1)) || slots.len() == job.slots().len() {
        return;
    }
    let waits = slow.into_iter().map(|(_, link)| link).max_by_key(|link| link.bytes_per_s).map(WaitCause::Link);
    let reason = PlanReason { policy: draft.policy.to_owned(), cause: PlanCause::Link, waits };
    plan::adopt_slots(draft, id, slots, reason);
}

/// What is news beside a rate that was known.
fn more(bytes_per_s: u64) -> u64 {
    bytes_per_s.saturating_add(bytes_per_s / 100 * NEWS_OF_SPEED_PERCENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 3.5 MB of gradient each tenth of a second.
    const STREAM: Stream = Stream { gradient_bytes: 3_500_000, update_us: 100_000 };

    #[test]
    fn a_link_of_forty_megabit_is_refused_to_thirty_five_megabytes_of_gradients_a_second() {
        assert_eq!(STREAM.bytes_per_s(), 35_000_000);
        assert_eq!((STREAM.beta_milli(5_000_000), STREAM.fits(5_000_000)), (142, false));
    }

    #[test]
    fn a_link_of_half_as_much_again_is_admitted_and_one_of_a_tenth_more_is_not() {
        assert_eq!((STREAM.beta_milli(52_500_000), STREAM.fits(52_500_000)), (1_500, true));
        assert_eq!((STREAM.beta_milli(38_500_000), STREAM.fits(38_500_000)), (1_100, false));
        assert!(STREAM.fits(38_536_000));
    }

    #[test]
    fn longer_steps_and_smaller_gradients_need_less() {
        assert!(Stream { update_us: 1_000_000, ..STREAM }.fits(5_000_000), "a larger batch");
        assert!(Stream { gradient_bytes: 350_000, ..STREAM }.fits(5_000_000), "a smaller model");
        assert!(!Stream { gradient_bytes: u64::MAX, update_us: 1 }.fits(u64::MAX));
        assert_eq!(Stream { gradient_bytes: 1, update_us: u64::MAX }.beta_milli(u64::MAX), u64::MAX);
    }
}
