//! Makes generations: who is a member, who leads, which ranks where, how they come to one state, until when.

use super::{Draft, batches, retrains, types};
use crate::limits::{
    COPY_BYTES_PER_MS_ADMITTED, COPY_TIMES, RESTORE_BYTES_PER_MS_MIN, START_DEADLINE_MS, SWITCH_DEADLINE_MS,
    SWITCH_UPDATES,
};
use crate::state::troubles::Straggler;
use crate::state::{Active, Executor, Job, JobPhase, Placement, State};
use crate::watch::{UNIT_STALL_FACTOR, UNIT_STALL_MS_MIN};
use events_schema::fact::{Entry, Fact, Member, Proposal, RESTORE_CHECKPOINTS_MAX, StragglerCause, hosts};
use events_schema::job::Types;
use events_schema::tree::Hosting;
use events_schema::{ExecutorId, JobId, Rank, SlotId, tree};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// Ranks are shared out anew for a step that is shorter by one part in so many: each time members stand at a boundary for a moment, and read other rows.
const BALANCE_GAIN_PART: u64 = 10;

/// Proposes the next generation if one is due; whether one was.
pub(super) fn propose(draft: &mut Draft<'_>, id: &JobId) -> bool {
    let Some(job) = draft.state.job(id) else { return false };
    let Some(placement) = job.placement().filter(|placement| placement.proposed.is_none()) else { return false };
    let next = match (&job.phase, job.active()) {
        (JobPhase::Starting(_), _) => start(draft, id, job, placement),
        // A gang has no boundary: it stands still, and starts anew.
        (_, Some(_)) if job.spec.gang().is_some() => None,
        (_, Some(active)) => switch(draft, id, active),
        (_, None) => None,
    };
    let Some((entry, members)) = next else { return false };
    emit(draft, id, entry, members);
    true
}

/// The first generation of a job, or the first after a restart: as soon as everybody of the plan is ready. Slots whose
/// executors failed are not waited for if the others are enough.
fn start(draft: &Draft<'_>, id: &JobId, job: &Job, placement: &Placement) -> Option<(Entry, BTreeSet<ExecutorId>)> {
    // Who is being built is on a slot of the plan, which is therefore waited for: no need to look the others up.
    if draft.state.executors_of(id).any(|(_, executor)| executor.is_starting()) {
        return None;
    }
    let pausing = draft.at < job.faults.backoff_until();
    let is_settled = |slot: &SlotId| {
        let number = draft.state.slot(slot).and_then(|slot| slot.executor.as_ref());
        match number.and_then(|number| draft.state.executor(number)) {
            Some(executor) => executor.is_ready() && number.is_some_and(|number| number.job == *id),
            // A gang that began with fewer would have to stop for the rest.
            None => job.spec.gang().is_none() && (pausing || job.avoids(slot, draft.at)),
        }
    };
    if !placement.slots.iter().all(is_settled) {
        return None;
    }
    let ready: BTreeSet<ExecutorId> = draft
        .state
        .executors_of(id)
        .filter(|(_, executor)| executor.is_ready())
        .map(|(number, _)| number.clone())
        .collect();
    if ready.len() < usize::from(job.spec.executors().min.max(1)) {
        return None;
    }
    // Before its own first checkpoint a job that retrains another one has that one's.
    let origin = retrains::origin(&draft.state, &job.spec);
    let own = job.checkpoints.iter().rev().take(RESTORE_CHECKPOINTS_MAX - usize::from(origin.is_some()));
    let mut newest_first = own.chain(origin).map(|checkpoint| checkpoint.manifest_key.clone());
    let entry = match newest_first.next() {
        Some(manifest_key) => Entry::Checkpoint { manifest_key, earlier: newest_first.collect() },
        None => Entry::Fresh,
    };
    Some((entry, ready))
}

/// A change of a running generation. Leavers are let go at once, without waiting for newcomers; newcomers join together, when
/// the last of them is ready, and neither while the job is to stand still nor before those that joined last hold the replica: no boundary
/// comes until then, and a copy takes what its bytes take, so a proposal would outlive its deadline and end their copies too.
fn switch(draft: &Draft<'_>, id: &JobId, active: &Active) -> Option<(Entry, BTreeSet<ExecutorId>)> {
    let of_members = || draft.state.executors.each(active.members.iter());
    if !active.left.is_empty() || of_members().any(|executor| executor.is_none()) {
        return None;
    }
    let stays = |executor: &&Executor| executor.leaving.is_none();
    // Nobody leaves before somebody who stays holds the replica: newcomers say when they do.
    if !of_members().flatten().filter(stays).any(|executor| executor.replica) {
        return None;
    }
    let entry = Entry::Switch { from: active.proposal.generation };
    if !of_members().flatten().all(|executor| stays(&executor)) {
        let members = active.members.iter().zip(of_members());
        let staying = members.filter(|(_, executor)| executor.as_ref().is_some_and(stays));
        return Some((entry, staying.map(|(number, _)| number.clone()).collect()));
    }
    let executors = || draft.state.executors_of(id);
    let paused = draft.state.job(id).is_some_and(|job| draft.at < job.growth.until);
    let copying = of_members().flatten().any(|executor| !executor.replica);
    if paused || copying || draft.state.is_parking(id) || executors().any(|(_, executor)| executor.is_starting()) {
        return None;
    }
    let ready = || executors().filter(|(_, executor)| executor.is_ready()).map(|(number, _)| number);
    if ready().all(|number| active.members.contains(number)) {
        let another_batch = draft.state.job(id).is_some_and(|job| batches::is_another(draft.policy, job, active));
        return (another_batch || is_unbalanced(&draft.state, id)).then(|| (entry, active.members.clone()));
    }
    Some((entry, active.members.iter().chain(ready()).cloned().collect()))
}

/// How long one rank takes members, beside others: as long as any of its type, unless it is known to straggle.
fn unit_us<'a>(state: &State, job: &Job, members: impl Iterator<Item = &'a ExecutorId>) -> Vec<u64> {
    let slow: BTreeMap<&ExecutorId, &Straggler> = slow_to_compute(job).collect();
    let of = |member: &ExecutorId| {
        let of_type = types::unit_us(state, job, state.type_of(member));
        let times = |known: &&Straggler| of_type.saturating_mul(known.unit_us) / known.peers_unit_us.max(1);
        slow.get(member).map_or(of_type, times)
    };
    members.map(of).collect()
}

/// Whether members differ in how long one rank takes them.
fn differ(unit_us: &[u64]) -> bool {
    unit_us.windows(2).any(|pair| pair[0] != pair[1])
}

/// Stragglers that fewer ranks help: not those that are slow for what a link takes, which is as much for any number.
fn slow_to_compute(job: &Job) -> impl Iterator<Item = (&ExecutorId, &Straggler)> {
    job.stragglers.iter().filter(|(_, known)| known.cause != Some(StragglerCause::Network))
}

/// Whether the members in force were done with a step sooner by more than a tenth if they hosted other shares: somebody straggles and hosts as many ranks as
/// the others, or did and keeps up again.
pub(super) fn is_unbalanced(state: &State, id: &JobId) -> bool {
    let Some((job, active)) = state.job(id).and_then(|job| Some((job, job.active()?))) else { return false };
    let (members, most) =
        (&active.proposal.members, usize::from(job.spec.workers.max).div_ceil(active.members.len().max(1)));
    let are_even = || members.len() == active.members.len() && members.iter().all(|member| member.ranks.len() <= most);
    // Of members that are equally fast nobody is done before those that host as much as the others.
    let one_type = || job.spec.types == Types::One || state.planning.type_times.is_empty();
    if slow_to_compute(job).next().is_none() && job.type_times.is_empty() && one_type() && are_even() {
        return false;
    }
    let hosted = hosted(job);
    let unit_us = unit_us(state, job, hosted.keys().copied());
    let shares: Vec<usize> = hosted.values().map(|(_, ranks)| ranks.len()).collect();
    let best = tree::sizes_by_speed(job.spec.workers.max, &shares, &unit_us);
    let now_us = tree::longest_us(shares.into_iter(), &unit_us);
    let gain_us = now_us.saturating_sub(tree::longest_us(best.into_iter().map(usize::from), &unit_us));
    gain_us.saturating_mul(BALANCE_GAIN_PART) > now_us
}

/// Proposes that the survivors go on: every replica of this start counts, also one that a later generation left out. Leavers
/// only if nobody else is left.
pub(super) fn recover(draft: &mut Draft<'_>, id: &JobId) {
    let survivors = || draft.state.executors_of(id).filter(|(_, executor)| executor.can_recover());
    let numbers = |leavers: bool| -> BTreeSet<ExecutorId> {
        let wanted = |executor: &Executor| leavers || executor.leaving.is_none();
        survivors().filter(|(_, executor)| wanted(executor)).map(|(number, _)| number.clone()).collect()
    };
    let stayers = numbers(false);
    let members = if stayers.is_empty() { numbers(true) } else { stayers };
    emit(draft, id, Entry::Recover, members);
}

/// How long a generation may take until it is in force: by what has to be read, and by how long an update takes. Not by how often it
/// failed before: what was too short once is too short again. Where nobody new has to come in, only one that hangs can hold it up, and the
/// watch says who: the same proposed again would not help before.
fn time_to_begin_ms(
    draft: &Draft<'_>,
    job: &Job,
    entry: &Entry,
    members: &BTreeSet<ExecutorId>,
    restored_bytes: u64,
) -> u64 {
    let update_ms = job.update_us().unwrap_or(0) / 1_000;
    let newcomer = |number: &&ExecutorId| job.active().is_some_and(|active| !active.members.contains(*number));
    let newcomers: Vec<&ExecutorId> = members.iter().filter(newcomer).collect();
    let replicas = newcomers.iter().filter_map(|number| draft.state.executor(number)?.replica_bytes);
    let copied_bytes = replicas.fold(0, u64::saturating_add);
    match entry {
        Entry::Fresh => START_DEADLINE_MS,
        Entry::Checkpoint { .. } => START_DEADLINE_MS + restored_bytes / RESTORE_BYTES_PER_MS_MIN,
        Entry::Switch { .. } if !newcomers.is_empty() => SWITCH_DEADLINE_MS
            .saturating_add(update_ms.saturating_mul(SWITCH_UPDATES))
            .saturating_add(copied_bytes.saturating_mul(COPY_TIMES) / COPY_BYTES_PER_MS_ADMITTED),
        Entry::Switch { .. } | Entry::Recover => {
            SWITCH_DEADLINE_MS.saturating_add(UNIT_STALL_MS_MIN.max(update_ms.saturating_mul(UNIT_STALL_FACTOR)))
        }
    }
}

/// Members as their ranks are placed, by their addresses and what they host so far.
fn hosting<'a>(members: impl Iterator<Item = (&'a str, &'a [Rank])> + Clone) -> Vec<Hosting<'a>> {
    let hosts = hosts(members.clone().map(|(address, _)| address));
    hosts.into_iter().zip(members).map(|(host, (_, ranks))| Hosting { host, ranks }).collect()
}

/// Where members of the generation in force are, and the ranks that they host now: as those that are left have placed them when others departed.
fn hosted(job: &Job) -> BTreeMap<&ExecutorId, (&str, Cow<'_, [Rank]>)> {
    let Some(active) = job.active() else { return BTreeMap::new() };
    let is_there = |member: &&Member| active.members.contains(&member.executor);
    let there: Vec<&Member> = active.proposal.members.iter().filter(is_there).collect();
    let placed: Vec<Cow<'_, [Rank]>> = if there.len() == active.proposal.members.len() {
        there.iter().map(|member| Cow::Borrowed(&member.ranks[..])).collect()
    } else {
        let before = hosting(there.iter().map(|member| (&member.address[..], &member.ranks[..])));
        tree::place_again(job.spec.workers.max, &before).into_iter().map(Cow::Owned).collect()
    };
    there.into_iter().zip(placed).map(|(member, ranks)| (&member.executor, (&member.address[..], ranks))).collect()
}

fn emit(draft: &mut Draft<'_>, id: &JobId, entry: Entry, members: BTreeSet<ExecutorId>) {
    let Some(job) = draft.state.job(id) else { return };
    let workers = job.spec.workers.max;
    let generation = job.generation.next();
    let restored = job.last_checkpoint().or_else(|| retrains::origin(&draft.state, &job.spec));
    let wait_ms = time_to_begin_ms(draft, job, &entry, &members, restored.map_or(0, |checkpoint| checkpoint.bytes));
    let address = |number: &ExecutorId| draft.state.executor(number).and_then(|executor| executor.address.clone());
    let there: Vec<(ExecutorId, String)> = members
        .into_iter()
        .filter_map(|number| address(&number).map(|at| (number, at)))
        .take(usize::from(workers))
        .collect();
    let hosted = hosted(job);
    let ranks = |number: &ExecutorId| hosted.get(number).map_or(&[][..], |(_, ranks)| &ranks[..]);
    let before = hosting(there.iter().map(|(number, address)| (&address[..], ranks(number))));
    let unit_us = unit_us(&draft.state, job, there.iter().map(|(number, _)| number));
    let placed = if slow_to_compute(job).next().is_none() && !differ(&unit_us) {
        tree::place_again(workers, &before)
    } else {
        tree::place_by_speed(workers, &before, &unit_us)
    };
    let members: Vec<Member> =
        there.into_iter().zip(placed).map(|((executor, address), ranks)| Member { executor, address, ranks }).collect();
    let leads = |number: &ExecutorId| draft.state.executor(number).is_some_and(|executor| executor.replica);
    let is_member = |number: &ExecutorId| members.iter().any(|member| member.executor == *number);
    // Whoever leads goes on leading; a replica is needed to lead a switch.
    let leader = job.active().map(|active| active.leader.clone()).filter(is_member);
    let leader = leader.or_else(|| members.iter().map(|member| &member.executor).find(|number| leads(number)).cloned());
    let Some(leader) = leader.or_else(|| members.first().map(|member| member.executor.clone())) else { return };
    let deadline = draft.at.plus_ms(wait_ms);
    let stride = batches::stride(draft.policy, job, members.len());
    let proposal = Proposal { generation, entry, members, leader, deadline, stride };
    draft.emit(Fact::GenerationProposed { job: id.clone(), proposal });
}
