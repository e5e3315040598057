//! A member whose link became slow while its job trains: whose link it is that its steps wait for, and what follows. It goes for an idle slot elsewhere as any
//! straggler does (`elsewhere.rs`), else the job goes on without it if it is faster so. Fewer ranks do not help it: a gradient has as many bytes.
//!
//! That steps became longer is seen by the watch (`pace.rs`), and what links carry is measured by agents (`survey.rs`); neither says anything alone.
//! β is judged by the step of before, because one that waits for a link is as long as the link takes
//! ([decision 24](../../../../docs/decisions/0024-a-straggler-hosts-fewer-ranks.md)).

use super::bandwidth::{self, Stream};
use super::{Draft, elsewhere, plan};
use crate::state::troubles::Straggler;
use crate::state::{Job, Link, State};
use crate::survey::Survey;
use events_schema::fact::{PlanCause, PlanReason, SlowLink, StragglerCause, WaitCause};
use events_schema::orders::LINK_FAST_BYTES_PER_S;
use events_schema::stride::Stride;
use events_schema::{ExecutorId, JobId, ServerId, SlotId, TimeMs};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// A link is slow beside the others of its job that carry as much if theirs are so many times as fast: what is read beside steps is what these leave of it.
const TIMES_SLOWER: u64 = 2;

/// Members of a job that straggle because of their links.
pub(super) fn of_links(job: &Job) -> impl Iterator<Item = (&ExecutorId, &Straggler)> {
    job.stragglers.iter().filter(|(_, known)| known.cause == Some(StragglerCause::Network))
}

/// The servers that a job's members are on, and how many.
pub(crate) fn servers_of<'a>(state: &'a State, job: &Job) -> BTreeMap<&'a ServerId, usize> {
    let mut servers = BTreeMap::new();
    let members = job.active().into_iter().flat_map(|active| active.members.iter());
    for executor in members.filter_map(|number| state.executor(number)) {
        *servers.entry(&executor.slot.server).or_default() += 1;
    }
    servers
}

/// The servers whose links a job's steps wait for that take so long, and took so long before. Each is slow beside those of the other members, and to send a
/// gradient over it is the larger part of what a step takes longer. Of a link that is slow between two, it is the one's that the survey reached fast over
/// nobody, if it did reach the other.
pub(crate) fn slowing<'a>(
    (state, survey): (&'a State, &Survey),
    at: TimeMs,
    (id, job): (&JobId, &Job),
    (usual_us, step_us): (u64, u64),
) -> BTreeSet<ServerId> {
    let (Some(stream), servers) = (Stream::with_step(state, id, job, usual_us), servers_of(state, job)) else {
        return BTreeSet::new();
    };
    let stride = job.active().map_or(Stride::ONE, |active| active.proposal.stride);
    let longer_us = step_us.saturating_sub(usual_us);
    let explains =
        |bytes_per_s: u64| !stream.fits(bytes_per_s) && stream.step_over_us(bytes_per_s, stride) >= longer_us / 2;
    let known = |server: &ServerId| state.links.get(server).filter(|link| link.is_slow() && at < link.until);
    // What is read of one link beside steps scatters, so two readings of it may stand there as two links.
    let over_well = |server: &ServerId| {
        let read_there = known(server).into_iter().flat_map(|link| link.from.iter().map(move |peer| (peer, link)));
        let by_others = servers.keys().filter_map(|other| Some((*other, known(other)?)));
        let read_here = by_others.filter(|(_, link)| link.from.contains(server));
        let counts = |(peer, _): &(&ServerId, &Link)| survey.is_well(peer) && !survey.is_well(server);
        read_there.chain(read_here).filter(counts).map(|(_, link)| link.bytes_per_s).max()
    };
    let own = |server: &ServerId| {
        let of_two = known(server).filter(|link| link.from.len() > 1).map(|link| link.bytes_per_s);
        of_two.or_else(|| over_well(server))
    };
    let others = |server: &ServerId| {
        let others = servers.keys().filter(|other| **other != server);
        let mut rates: Vec<u64> = others.map(|other| own(other).unwrap_or(LINK_FAST_BYTES_PER_S)).collect();
        rates.sort_unstable();
        // The middle, rather the slower: of two of three that are slow none is.
        rates.get(rates.len().saturating_sub(1) / 2).copied().unwrap_or(0)
    };
    let is_slow = |server: &&ServerId| {
        let slow = own(server).filter(|rate| rate.saturating_mul(TIMES_SLOWER) <= others(server));
        slow.is_some_and(explains)
    };
    let slow: BTreeSet<ServerId> = servers.keys().copied().filter(is_slow).cloned().collect();
    if !slow.is_empty() || servers.keys().any(|server| own(server).is_some()) {
        return slow;
    }
    // Known between two alone. One of them goes, as one of them is not lent to the job that is on the other.
    let between = |link: &Link, other: &ServerId| link.from.contains(other) && explains(link.bytes_per_s);
    let leader = job.active().and_then(|active| state.executor(&active.leader)).map(|leader| &leader.slot.server);
    let goes = |one: &'a ServerId, other: &'a ServerId| {
        let order = |server| (servers.get(server), leader == Some(server), Reverse(server));
        if order(one) < order(other) { one } else { other }
    };
    let pairs = servers.keys().flat_map(|one| servers.keys().map(move |other| (*one, *other)));
    let slow_pairs = pairs.filter(|(one, other)| one != other && known(one).is_some_and(|link| between(link, other)));
    slow_pairs.map(|(one, other)| goes(one, other)).take(1).cloned().collect()
}

/// Whether a member that straggles because of its link would still slow the steps of before: its link is not known to be mended.
pub(crate) fn is_slowed_by(state: &State, at: TimeMs, id: &JobId, job: &Job, executor: &ExecutorId) -> bool {
    slow_link(state, at, id, job, executor).is_some()
}

fn slow_link(state: &State, at: TimeMs, id: &JobId, job: &Job, executor: &ExecutorId) -> Option<SlowLink> {
    let known = job.stragglers.get(executor)?;
    let stream = Stream::with_step(state, id, job, known.peers_unit_us)?;
    let others = servers_of(state, job).into_keys().filter(|other| **other != known.slot.server).cloned().collect();
    let (whose, bytes_per_s) = bandwidth::slowest(state, at, &known.slot.server, &others)?;
    (!stream.fits(bytes_per_s)).then(|| stream.slow_link(whose.clone(), bytes_per_s))
}

/// Lets a job go on without the servers whose links slow it, if it keeps its fewest slots and its steps are shorter so.
pub(super) fn let_go(draft: &mut Draft<'_>, id: &JobId) {
    let state = &draft.state;
    let Some(job) = state.job(id).filter(|job| elsewhere::is_settled(state, id, job)) else { return };
    let slow = |(executor, known): (&ExecutorId, &Straggler)| {
        Some((known.slot.server.clone(), slow_link(state, draft.at, id, job, executor)?))
    };
    let slow: BTreeMap<ServerId, SlowLink> = of_links(job).filter_map(slow).collect();
    let slots: BTreeSet<SlotId> = job.slots().iter().filter(|slot| !slow.contains_key(&slot.server)).cloned().collect();
    let fewest = usize::from(job.spec.executors().min.max(1));
    if slots.len() == job.slots().len() || slots.len() < fewest || !is_shorter_on(job, slots.len()) {
        return;
    }
    let waits = slow.into_values().max_by_key(|link| link.bytes_per_s).map(WaitCause::Link);
    let reason = PlanReason { policy: draft.policy.to_owned(), cause: PlanCause::Link, waits };
    plan::adopt_slots(draft, id, slots, reason);
}

/// Whether a job that waits for a link has shorter steps on so many of its slots: as was measured, else by the ranks that a member then computes.
fn is_shorter_on(job: &Job, slots: usize) -> bool {
    let Some((_, known)) = of_links(job).max_by_key(|(_, known)| known.unit_us) else { return false };
    let ranks = |slots: usize| u64::from(job.spec.workers.max).div_ceil(slots.max(1) as u64);
    let measured = u16::try_from(slots).ok().and_then(|size| job.placement()?.step_us_by_size.get(&size).copied());
    let assumed = || known.peers_unit_us.saturating_mul(ranks(slots)) / ranks(job.slots().len()).max(1);
    measured.unwrap_or_else(assumed) < known.unit_us
}
