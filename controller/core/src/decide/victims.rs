//! Which slots a fleet gets back that names none, and so which jobs lose them.
//!
//! Idle ones first (those that we may not use, then offered, then borrowed ones), then those an executor is leaving anyway, then from jobs above their minimum where the loss is least, then
//! from jobs at their minimum; last, idle ones that would not come free. Which jobs at their minimum those are the policy chose ([`Victims`]): the least
//! important, or those on servers whose loss ends fewest.

use super::plan;
use crate::policy::Victims;
use crate::policy::gain::loss_of_one_micro;
use crate::state::{Job, JobPhase, Server, SlotState, State};
use events_schema::{JobId, ServerId, SlotId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// A job that has slots of the fleet, as the choice goes on.
struct Holder<'a> {
    /// Slots of the fleet it has: once they are in order ([`Holder::in_order`]), the one it misses least last.
    slots: Vec<&'a SlotId>,
    /// What that order follows from, until somebody asks for it: most jobs lose nothing.
    unordered: Option<(&'a State, &'a Job)>,
    /// Slots it would still have.
    held: u16,
    /// Of those, what it has only to be measured on: nobody else loses one as long as there are such.
    extra: u16,
    min: u16,
    workers: u16,
    priority: i32,
    arrival: u64,
}

/// `count` of a fleet's lent slots, those that are missed least first. A slot of an absent server, or one in quarantine, does not
/// come free: it goes only when all that can be used are not enough.
pub(super) fn choose(state: &State, fleet: &[SlotId], count: usize, who: Victims) -> Vec<SlotId> {
    let lent = Lent::of(state, fleet.iter());
    let mut chosen: Vec<&SlotId> = lent.idle.iter().copied().take(count).collect();
    if chosen.len() < count {
        let mut holders = lent.holders(state);
        shrink(&mut holders, count, &mut chosen);
        match who {
            Victims::Jobs => evict(&mut holders, count, &mut chosen),
            Victims::Servers => vacate(&mut holders, count, &mut chosen),
        }
    }
    let missing = count - chosen.len();
    chosen.into_iter().chain(lent.unusable.into_iter().take(missing)).cloned().collect()
}

/// Of a fleet's lent slots those that no job needs to go on: up to `idle` that nobody is on, and up to `count` in all where jobs have more than their fewest.
pub(super) fn spare(state: &State, slots: &[&SlotId], idle: usize, count: usize) -> Vec<SlotId> {
    let lent = Lent::of(state, slots.iter().copied());
    let mut chosen: Vec<&SlotId> = lent.idle.iter().copied().take(idle).collect();
    if chosen.len() < count {
        shrink(&mut lent.holders(state), count, &mut chosen);
    }
    chosen.into_iter().cloned().collect()
}

/// A fleet's lent slots that nobody is on and that come free, in the order in which they go back.
pub(super) fn idle<'a>(state: &'a State, fleet: &'a [SlotId]) -> Vec<&'a SlotId> {
    Lent::of(state, fleet.iter()).idle
}

/// A fleet's lent slots.
struct Lent<'a> {
    /// That no job has and that come free, those that are missed least first.
    idle: Vec<&'a SlotId>,
    /// That would not come free.
    unusable: Vec<&'a SlotId>,
    /// That jobs have, and which.
    planned: Vec<(&'a SlotId, &'a JobId)>,
}

impl<'a> Lent<'a> {
    /// Of some slots, in order.
    fn of(state: &'a State, slots: impl Iterator<Item = &'a SlotId> + Clone) -> Self {
        let (mut idle, mut unusable, mut planned) = (Vec::new(), Vec::new(), Vec::new());
        // Slots of a server stand side by side.
        let mut last: Option<(&ServerId, Option<&Server>)> = None;
        for (id, slot) in slots.clone().zip(state.slots.each(slots)) {
            let Some(slot) = slot.filter(|slot| slot.is_lent()) else { continue };
            match &slot.job {
                Some(job) => planned.push((id, job)),
                None => {
                    let known = last.filter(|(server, _)| **server == id.server);
                    let (_, server) = *last.insert(known.unwrap_or_else(|| (&id.server, state.server(&id.server))));
                    if !slot.comes_free() || !server.is_some_and(|server| server.has(id.index)) {
                        unusable.push(id);
                        continue;
                    }
                    // One that we may not use is the last that we keep.
                    let fit = slot.unfit().is_none();
                    idle.push(((slot.executor.is_some(), fit, slot.state == SlotState::Borrowed), id));
                }
            }
        }
        // Those that are missed as much stay in order.
        idle.sort_by_key(|(missed, _)| *missed);
        Self { idle: idle.into_iter().map(|(_, id)| id).collect(), unusable, planned }
    }

    fn holders(&self, state: &'a State) -> Vec<Holder<'a>> {
        let mut by_job = BTreeMap::<&JobId, Vec<&SlotId>>::new();
        // Slots of a job mostly stand side by side.
        for of_job in self.planned.chunk_by(|(_, one), (_, next)| one == next) {
            let Some(&(_, job)) = of_job.first() else { continue };
            let slots = of_job.iter().map(|(slot, _)| *slot);
            by_job.entry(job).or_default().extend(slots);
        }
        let jobs = state.live.each(by_job.keys().copied()).collect::<Vec<_>>();
        by_job.into_values().zip(jobs).filter_map(|(slots, job)| Some(Holder::of(state, job?, slots))).collect()
    }
}

impl<'a> Holder<'a> {
    fn of(state: &'a State, job: &'a Job, slots: Vec<&'a SlotId>) -> Self {
        Self {
            slots,
            unordered: Some((state, job)),
            held: job.slots().len() as u16,
            extra: job.profile_extra(),
            min: fewest(job),
            workers: job.spec.workers.max,
            priority: job.spec.priority,
            arrival: job.arrival,
        }
    }

    /// Its slots of the fleet, the one it misses least last.
    fn in_order(&mut self) -> &mut Vec<&'a SlotId> {
        if let Some((state, job)) = self.unordered.take() {
            self.slots.sort_by_cached_key(|slot| (Reverse(plan::worth(state, job, slot)), *slot));
        }
        &mut self.slots
    }
}

/// Who gives everything back anyway has no minimum to keep.
fn fewest(job: &Job) -> u16 {
    if matches!(job.phase, JobPhase::Suspending(..)) { 0 } else { job.spec.executors().min }
}

/// One slot at a time from the job above its minimum that loses least.
fn shrink<'a>(holders: &mut [Holder<'a>], count: usize, chosen: &mut Vec<&'a SlotId>) {
    let loss = |holder: &Holder| {
        if holder.min == 0 || holder.extra > 0 { 0 } else { loss_of_one_micro(holder.workers, holder.held) }
    };
    let key = |index: usize, holder: &Holder| Reverse((loss(holder), holder.priority, Reverse(holder.arrival), index));
    let can_give = |holder: &Holder| holder.held > holder.min && !holder.slots.is_empty();
    let mut heap: BinaryHeap<_> = holders
        .iter()
        .enumerate()
        .filter(|(_, holder)| can_give(holder))
        .map(|(index, holder)| key(index, holder))
        .collect();
    while chosen.len() < count {
        let Some(Reverse((.., index))) = heap.pop() else { return };
        let holder = &mut holders[index];
        chosen.extend(holder.in_order().pop());
        holder.held -= 1;
        holder.extra = holder.extra.saturating_sub(1);
        if can_give(holder) {
            heap.push(key(index, holder));
        }
    }
}

/// Everything of the fleet's from jobs at their minimum, the least important and latest first.
fn evict<'a>(holders: &mut [Holder<'a>], count: usize, chosen: &mut Vec<&'a SlotId>) {
    holders.sort_by_key(|holder| (holder.priority, Reverse(holder.arrival)));
    for holder in holders {
        let missing = count - chosen.len();
        if missing == 0 {
            return;
        }
        chosen.extend(holder.in_order().drain(..).rev().take(missing));
    }
}

/// What a job is worth in all: it is divided evenly by as many servers as most jobs are on.
const WHOLE: u64 = 720_720;

/// Who is on which servers of a fleet, as the choice goes on.
struct Hosts<'a> {
    holders: &'a [Holder<'a>],
    /// The jobs of each server.
    jobs_on: BTreeMap<&'a ServerId, BTreeSet<usize>>,
    /// The servers of each job.
    of_job: Vec<BTreeSet<&'a ServerId>>,
    /// By what they cost: those that have any job.
    queue: BTreeSet<(Cost, &'a ServerId)>,
}

/// What the loss of a server costs: by the most important job that it ends, then by the share of each job that is on it.
type Cost = (Option<i32>, u64);

impl<'a> Hosts<'a> {
    fn of(holders: &'a [Holder<'a>]) -> Self {
        let servers_of = |holder: &'a Holder<'a>| holder.slots.iter().map(|slot| &slot.server).collect();
        let of_job: Vec<BTreeSet<&ServerId>> = holders.iter().map(servers_of).collect();
        let mut jobs_on: BTreeMap<&ServerId, BTreeSet<usize>> = BTreeMap::new();
        for (job, servers) in of_job.iter().enumerate() {
            for server in servers {
                jobs_on.entry(*server).or_default().insert(job);
            }
        }
        let mut hosts = Self { holders, jobs_on, of_job, queue: BTreeSet::new() };
        hosts.queue = hosts.jobs_on.keys().map(|server| (hosts.cost(server), *server)).collect();
        hosts
    }

    /// The sum over its jobs of 1 / (servers that have the job).
    fn cost(&self, server: &ServerId) -> Cost {
        let jobs = || self.jobs_on.get(server).into_iter().flatten();
        let shares = jobs().map(|job| WHOLE / self.of_job[*job].len().max(1) as u64);
        (jobs().map(|job| self.holders[*job].priority).max(), shares.sum())
    }

    /// The jobs of the server that costs least, the least important and latest first.
    fn cheapest(&self) -> Option<(&'a ServerId, Vec<usize>)> {
        let (_, server) = self.queue.first()?;
        let mut jobs: Vec<usize> = self.jobs_on.get(server)?.iter().copied().collect();
        jobs.sort_by_key(|&job| (self.holders[job].priority, Reverse(self.holders[job].arrival)));
        Some((*server, jobs))
    }

    /// A job gives everything back: nothing of it is on any server any more.
    fn end(&mut self, job: usize) {
        for server in self.of_job[job].clone() {
            let known = (self.cost(server), server);
            self.queue.remove(&known);
            let Some(left) = self.jobs_on.get_mut(server) else { continue };
            left.remove(&job);
            if !left.is_empty() {
                self.queue.insert((self.cost(server), server));
            }
        }
    }
}

/// Everything of the fleet's from the server whose loss costs least, again and again; a job that loses one of its servers gives everything back, so what
/// it has on others is taken with it, and they cost less from then on. (Lyra, EuroSys 2023: "greedily select lowest-value server, preempt jobs, update
/// server costs".)
fn vacate<'a>(holders: &mut [Holder<'a>], count: usize, chosen: &mut Vec<&'a SlotId>) {
    holders.iter_mut().for_each(|holder| _ = holder.in_order());
    let mut hosts = Hosts::of(holders);
    while let Some((server, jobs)) = hosts.cheapest().filter(|_| chosen.len() < count) {
        let mut ended = Vec::new();
        for job in jobs {
            if chosen.len() == count {
                return;
            }
            let (here, elsewhere): (Vec<&SlotId>, Vec<&SlotId>) =
                holders[job].slots.iter().copied().partition(|slot| slot.server == *server);
            chosen.extend(here.into_iter().take(count - chosen.len()));
            ended.extend(elsewhere);
            hosts.end(job);
        }
        chosen.extend(ended.into_iter().take(count - chosen.len()));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A job of an arrival and a priority on its fewest slots.
    type Known = (u64, i32, Vec<SlotId>);

    fn job(arrival: u64, priority: i32, slots: &[&str]) -> Known {
        (arrival, priority, slots.iter().map(|slot| slot.parse().unwrap()).collect())
    }

    /// Jobs a, c and d are on two servers each, b on one.
    fn example() -> Vec<Known> {
        let on = [vec!["s1/0", "s2/0"], vec!["s3/0"], vec!["s3/1", "s4/0"], vec!["s5/0", "s6/0"]];
        (0..).zip(&on).map(|(arrival, slots)| job(arrival, 0, slots)).collect()
    }

    fn holders(jobs: &[Known]) -> Vec<Holder<'_>> {
        let all = jobs.iter().map(|(arrival, priority, slots)| {
            let held = slots.len() as u16;
            let (arrival, priority, slots) = (*arrival, *priority, slots.iter().collect());
            Holder { slots, unordered: None, held, extra: 0, min: held, workers: held, priority, arrival }
        });
        all.collect()
    }

    fn vacated(jobs: &[Known], count: usize) -> Vec<String> {
        let mut chosen = Vec::new();
        vacate(&mut holders(jobs), count, &mut chosen);
        chosen.iter().map(ToString::to_string).collect()
    }

    /// The table of the slides: a job counts 0.5, 1, 0.5, 0.5 on each of its servers.
    #[test]
    fn a_job_counts_on_each_server_by_how_many_it_is_on() {
        let jobs = example();
        let holders = holders(&jobs);
        let hosts = Hosts::of(&holders);
        let value = |job: usize| WHOLE as f64 / hosts.of_job[job].len() as f64 / WHOLE as f64;
        assert_eq!([0, 1, 2, 3].map(value), [0.5, 1.0, 0.5, 0.5]);
        let cost = |server: &str| hosts.cost(&ServerId::parse(server).unwrap()).1 as f64 / WHOLE as f64;
        assert_eq!(["s1", "s2", "s3", "s4", "s5", "s6"].map(cost), [0.5, 0.5, 1.5, 0.5, 0.5, 0.5]);
    }

    /// "Reclaim server 1 empties server 2": two servers cost one job, and not two.
    #[test]
    fn who_lost_one_server_costs_nothing_on_its_others() {
        assert_eq!(vacated(&example(), 2), ["s1/0", "s2/0"]);
        assert_eq!(vacated(&example(), 4), ["s1/0", "s2/0", "s4/0", "s3/1"]);
        assert_eq!(vacated(&example(), 99).len(), 7, "all there is, once each");
    }

    #[test]
    fn more_important_jobs_lose_theirs_last_and_no_more_is_taken_than_was_asked_for() {
        let jobs = [job(0, 1, &["a/0", "b/0"]), job(1, 0, &["c/0"]), job(2, 0, &["c/1"])];
        assert_eq!(vacated(&jobs, 1), ["c/1"], "the later one of a server");
        assert_eq!(vacated(&jobs, 3), ["c/1", "c/0", "a/0"]);
    }

    #[test]
    fn a_server_whose_jobs_are_elsewhere_too_goes_before_one_that_ends_a_job_of_its_own() {
        let jobs =
            [job(0, 0, &["a/0", "b/0"]), job(1, 0, &["b/1", "c/0"]), job(2, 0, &["c/1"]), job(3, 0, &["d/0", "d/1"])];
        // A costs half a job, B one, C one and a half, D one; without the first job B costs half of one.
        assert_eq!(vacated(&jobs, 2), ["a/0", "b/0"]);
        assert_eq!(vacated(&jobs, 4), ["a/0", "b/0", "b/1", "c/0"]);
    }

    /// The slides' problem tried out: no server of these is emptied at the cost of more jobs than any other choice would end.
    #[test]
    fn on_small_cases_no_other_choice_of_as_many_slots_ends_fewer_jobs() {
        let jobs = example();
        let ended = |slots: &[String]| {
            let hit = |job: &&Known| job.2.iter().any(|slot| slots.contains(&slot.to_string()));
            jobs.iter().filter(hit).count()
        };
        let all: Vec<String> = jobs.iter().flat_map(|job| job.2.iter().map(ToString::to_string)).collect();
        for count in 1..=all.len() {
            let subsets = (0u32..1 << all.len()).filter(|set| set.count_ones() as usize == count);
            let chosen = |set: u32| (0..all.len()).filter(move |at| (set >> at) & 1 == 1).map(|at| all[at].clone());
            let fewest = subsets.map(|set| ended(&chosen(set).collect::<Vec<_>>())).min();
            assert_eq!(Some(ended(&vacated(&jobs, count))), fewest, "{count}");
        }
    }
}
