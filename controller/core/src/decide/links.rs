//! Members that live and cannot reach each other: they come together anew, and if they cannot, the next generation does without some.
//!
//! A lost link stops a step for good, because each end waits for the other's sums; only a generation that is begun anew (`Entry::Recover`)
//! makes good what was lost with it. Such a generation needs a link between any two members, so one link that cannot be made
//! would stop it for ever: its members name whom they miss, and the largest set of members that are all linked goes on.
//! Who is left out is not blamed for it: its slot is avoided for a while.

use super::{Draft, generations, members, proposals};
use crate::limits::UNLINKED_SETTLE_MS;
use events_schema::fact::{AbandonCause, AvoidCause, Fact, LossNotice};
use events_schema::{ExecutorId, Generation, JobId};
use std::collections::{BTreeMap, BTreeSet};

/// Up to so many members are left out by exact search (2 to the power of it at most); more than that by a good guess.
const EXACT_MAX: usize = 10;

/// A member says whom it misses. It counts unless a generation that was begun anew since then makes it good: also from a generation
/// that the controller has not heard to be in force, has given up, or has seen replaced at a boundary.
pub(super) fn missing(
    draft: &mut Draft<'_>,
    id: &JobId,
    generation: Generation,
    by: &ExecutorId,
    peers: &[ExecutorId],
    begun: bool,
) {
    let Some(job) = draft.state.job(id) else { return };
    let Some(placement) = job.placement() else { return };
    let made_good = generation < job.round || generation > job.generation;
    let foreign = peers.iter().any(|peer| peer.job != *id || peer == by);
    if made_good || foreign || peers.is_empty() {
        return;
    }
    let is_proposed = placement.proposed.as_ref().is_some_and(|proposal| proposal.generation == generation);
    let linking_up = !begun && is_proposed && generation == job.round;
    // A first generation that is in force already, of which its leader's word has not arrived: the member will say it again.
    if !linking_up && job.active().is_none() {
        return;
    }
    let (job, by, peers) = (id.clone(), by.clone(), peers.to_vec());
    draft.emit(Fact::PeersMissing { job, generation, by, peers, begun });
    if !linking_up {
        generations::give_up(draft, id, AbandonCause::MemberLost);
        proposals::recover(draft, id);
    }
}

/// Gives up a beginning generation some of whose members cannot be linked, once all had time to say whom they miss.
pub(super) fn leave_out(draft: &mut Draft<'_>, id: &JobId) -> bool {
    let Some(job) = draft.state.job(id) else { return false };
    let Some(placement) = job.placement().filter(|placement| !placement.unlinked.is_empty()) else { return false };
    let Some(proposal) = &placement.proposed else { return false };
    if draft.at.since_ms(placement.unlinked_at) < UNLINKED_SETTLE_MS {
        return false;
    }
    let alive = |number: &ExecutorId| draft.state.executor(number).is_some();
    let pairs: BTreeSet<(&ExecutorId, &ExecutorId)> =
        placement.unlinked.iter().filter(|(one, other)| alive(one) && alive(other)).map(|(a, b)| (a, b)).collect();
    let left_out: Vec<ExecutorId> = fewest(&pairs, &proposal.leader).into_iter().cloned().collect();
    let recovers = job.active().is_some();
    generations::give_up(draft, id, AbandonCause::Unlinked);
    for number in &left_out {
        members::lost(draft, number, LossNotice::Link);
        generations::avoid(draft, number, AvoidCause::Unreachable);
    }
    if recovers && draft.state.executors_of(id).any(|(_, executor)| executor.can_recover()) {
        proposals::recover(draft, id);
    }
    true
}

/// The fewest members without whom every pair is broken up; among as many, rather those that miss more others, not the leader, and
/// the younger.
fn fewest<'a>(pairs: &BTreeSet<(&'a ExecutorId, &'a ExecutorId)>, leader: &ExecutorId) -> BTreeSet<&'a ExecutorId> {
    let mut misses: BTreeMap<&ExecutorId, usize> = BTreeMap::new();
    for (one, other) in pairs {
        *misses.entry(one).or_default() += 1;
        *misses.entry(other).or_default() += 1;
    }
    let rank = |number: &'a ExecutorId| (misses.get(number).copied().unwrap_or(0), number != leader, number.number);
    let order = |(one, other): (&'a ExecutorId, &'a ExecutorId)| {
        if rank(one) >= rank(other) { [one, other] } else { [other, one] }
    };
    for count in 0..=EXACT_MAX {
        if let Some(found) = within(pairs, count, &order) {
            return found;
        }
    }
    // So many that any good guess serves: whoever misses most goes first.
    let (mut rest, mut out) = (pairs.clone(), BTreeSet::new());
    while let Some(worst) = rest.iter().flat_map(|&(a, b)| [a, b]).max_by_key(|number| {
        (rest.iter().filter(|(a, b)| a == number || b == number).count(), *number != leader, number.number)
    }) {
        out.insert(worst);
        rest.retain(|(a, b)| *a != worst && *b != worst);
    }
    out
}

/// At most `count` members without whom no pair is left, if there are such: one of the first pair has to go.
fn within<'a>(
    pairs: &BTreeSet<(&'a ExecutorId, &'a ExecutorId)>,
    count: usize,
    order: &impl Fn((&'a ExecutorId, &'a ExecutorId)) -> [&'a ExecutorId; 2],
) -> Option<BTreeSet<&'a ExecutorId>> {
    let Some(&first) = pairs.first() else { return Some(BTreeSet::new()) };
    let fewer = count.checked_sub(1)?;
    order(first).into_iter().find_map(|goes| {
        let rest = pairs.iter().filter(|(a, b)| *a != goes && *b != goes).copied().collect();
        let mut found = within(&rest, fewer, order)?;
        found.insert(goes);
        Some(found)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left_out(pairs: &[(u32, u32)], leader: u32) -> Vec<u32> {
        let id = |number| ExecutorId { job: JobId::parse("job-a").expect("an id"), number };
        let ids: Vec<(ExecutorId, ExecutorId)> = pairs.iter().map(|&(a, b)| (id(a), id(b))).collect();
        let pairs = ids.iter().map(|(a, b)| (a, b)).collect();
        fewest(&pairs, &id(leader)).into_iter().map(|number| number.number).collect()
    }

    #[test]
    fn the_largest_linked_set_goes_on() {
        assert_eq!(left_out(&[], 0), Vec::<u32>::new());
        assert_eq!(left_out(&[(0, 1), (1, 2), (1, 3)], 0), [1], "one that nobody reaches");
        assert_eq!(left_out(&[(0, 2), (0, 3), (0, 4), (1, 2), (1, 3), (1, 4)], 0), [0, 1], "the smaller half");
        assert_eq!(left_out(&[(0, 1)], 1), [0], "the leader stays");
        assert_eq!(left_out(&[(0, 1)], 2), [1], "the younger goes");
        assert_eq!(
            left_out(&[(0, 1), (1, 2), (2, 3), (3, 4)], 9),
            [1, 3],
            "fewest, where greed from the first end would take more"
        );
        let all: Vec<(u32, u32)> = (0..40).flat_map(|a| (a + 1..40).map(move |b| (a, b))).collect();
        assert_eq!(left_out(&all, 7).len(), 39, "bounded also where nobody reaches anybody");
        assert!(!left_out(&all, 7).contains(&7));
    }
}
