//! Jobs on slots of several types at once (the paper's *EasyScale heter*), beside those that are on one: what `mod.rs` does where every job is.
//!
//! It is the same rule in rounds: everybody's fewest slots, those that wait by arrival; then of what jobs have beyond their fewest goes back what others need for
//! theirs, from those who lose least per slot; then proposals of each job for each type ([`proposals`]) are approved until none can be met (algorithm 1). A job falls
//! back from slots that do not make it faster: with a faster type some of a slow one have nothing to do.
//!
//! Which of its slots are a job's fewest depends on all that it has, so a plan is what rounds come to that change nothing any more. They end: a round
//! begins more jobs, or makes those that run faster altogether.

use super::super::{Gangs, JobView, Part, Plan, Share, View, service_order};
use super::configuration::{Configuration, Devices, Proposal, approved, proposals};
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Proposals that one job makes at a time: the paper's K. One for each type that there is, nearly always.
const PROPOSALS_MAX: usize = 4;
/// Rounds of one plan at most. Each begins a job or approves something; more than a few there are only where very much changed at once.
const ROUNDS_MAX: usize = 64;
/// Speeds that differ by less are alike: sums of the same numbers in another order.
const ALIKE: f64 = 1e-9;

/// A plan where any job may be on several types.
pub fn plan(view: &View) -> Plan {
    let known = Known::of(view);
    let mut held: Vec<Vec<u32>> = (0..view.jobs.len()).map(|job| known.held(job)).collect();
    let mut shares = Vec::new();
    for _ in 0..ROUNDS_MAX {
        let (next, waits) = known.round(&held);
        shares = waits;
        if next == held {
            break;
        }
        held = next;
    }
    let mut plan = Plan { shares, ..Plan::default() };
    for (job, nums) in held.iter().enumerate().filter(|(_, nums)| nums.iter().any(|num| *num > 0)) {
        let slots = nums.iter().sum::<u32>() as u16;
        let most = (0..nums.len()).max_by_key(|&class| (nums[class], Reverse(class))).unwrap_or(0);
        plan.shares[job] = Share { class: most, slots, waits: None };
        if nums[most] < u32::from(slots) {
            let part = |(class, &num): (usize, &u32)| Part { job, class, slots: num as u16 };
            plan.parts.extend(nums.iter().enumerate().filter(|(_, num)| **num > 0).map(part));
        }
    }
    plan
}

/// What everybody is sure of, and why others wait.
pub fn guarantees(view: &View) -> Vec<Share> {
    let known = Known::of(view);
    let held: Vec<Vec<u32>> = (0..view.jobs.len()).map(|job| known.held(job)).collect();
    known.begin(&held).1
}

/// What jobs are alike in whose configurations are the same: their most slots, their measured speeds, and how fast types are for them.
type Alike = (u16, Option<usize>, usize);

/// A view, and what has been worked out of it.
struct Known<'a> {
    view: &'a View,
    /// Of each job.
    alike: Vec<Alike>,
    speeds: RefCell<BTreeMap<(Alike, Vec<u32>), f64>>,
}

impl<'a> Known<'a> {
    fn of(view: &'a View) -> Self {
        let mut of_types: BTreeMap<Option<&[u32]>, usize> = BTreeMap::new();
        let mut alike = |(job, of): (usize, &JobView)| {
            let next = of_types.len();
            let speeds = view.mixture(job).map(|mixture| &mixture.speed_milli[..]);
            (of.max, of.curve, *of_types.entry(speeds).or_insert(next))
        };
        let alike = view.jobs.iter().enumerate().map(&mut alike).collect();
        Self { view, alike, speeds: RefCell::default() }
    }

    /// Slots of each class that a job has.
    fn held(&self, job: usize) -> Vec<u32> {
        let mut nums = vec![0; self.view.classes.len()];
        self.view.held_by_class(job).iter().for_each(|part| nums[part.class] += u32::from(part.slots));
        nums
    }

    /// The classes as one job finds them. A job of one type finds all of them alike, and is only ever on one.
    fn types(&self, job: usize) -> Vec<Devices> {
        let speed = |class: usize| self.view.mixture(job).map_or(1.0, |of| f64::from(of.speed_milli[class]) / 1e3);
        (0..self.view.classes.len()).map(|class| Devices::alone(speed(class))).collect()
    }

    /// Whether a job that has such slots may have some of a class beside them.
    fn suits(&self, job: usize, nums: &[u32], class: usize) -> bool {
        let (view, of) = (self.view, &self.view.jobs[job]);
        let mut has = (0..nums.len()).filter(|&other| nums[other] > 0);
        let fits = |other: usize| match of.mixes {
            Some(_) => view.classes[other].mixes_with(&view.classes[class]),
            None => other == class,
        };
        view.suits(job, class) && has.all(fits)
    }

    /// How fast a job is on such slots: the best configuration's speed, by as much slower as it was measured to be on so many slots of one type.
    fn speed(&self, job: usize, nums: &[u32]) -> f64 {
        let of = &self.view.jobs[job];
        let key = (self.alike[job], nums.to_vec());
        if let Some(known) = self.speeds.borrow().get(&key) {
            return *known;
        }
        self.view.effort.spend(1);
        let slots = nums.iter().sum::<u32>();
        let best = Configuration::best(&self.types(job), nums, of.max).map_or(0.0, |best| best.perf);
        let even = f64::from(of.max) / f64::from(u32::from(of.max).div_ceil(slots.max(1)));
        let measured = of.curve.map(|_| self.view.speeds(job).speed(slots.min(u32::from(of.max)) as u16) / even);
        let speed = best * measured.unwrap_or(1.0);
        self.speeds.borrow_mut().insert(key, speed);
        speed
    }

    /// One round: what jobs have after it that had `held` before, and the shares of those that wait.
    fn round(&self, held: &[Vec<u32>]) -> (Vec<Vec<u32>>, Vec<Share>) {
        let (mut nums, shares, mut pool) = self.begin(held);
        self.keep(held, &mut nums, &mut pool);
        self.grow(&mut nums, &mut pool);
        for (job, nums) in nums.iter_mut().enumerate() {
            self.fall_back(job, nums);
        }
        (nums, shares)
    }

    /// Everybody's fewest slots, those first who run, each with the fastest of what it has; and what is left of each class.
    fn begin(&self, held: &[Vec<u32>]) -> (Vec<Vec<u32>>, Vec<Share>, Vec<u32>) {
        let view = self.view;
        let mut gangs = Gangs::new(view);
        let (mut shares, mut nums) =
            (vec![Share::default(); held.len()], vec![vec![0; view.classes.len()]; held.len()]);
        let mut order = service_order(view);
        for &job in &order {
            let fewest = self.fastest(job, &held[job], &gangs.pool, view.jobs[job].min);
            if let Some(fewest) = fewest.filter(|_| held[job].iter().any(|num| *num > 0)) {
                self.take(job, fewest, &mut gangs, &mut nums[job], &mut shares[job]);
            }
        }
        order.sort_by_key(|&job| (Reverse(view.jobs[job].priority), job));
        for job in order.into_iter().filter(|&job| shares[job].slots == 0).collect::<Vec<_>>() {
            let open = |class: usize| {
                let takes = self.suits(job, &nums[job], class) && gangs.is_open(class);
                if takes { gangs.pool[class] } else { 0 }
            };
            let there: Vec<u32> = (0..view.classes.len()).map(open).collect();
            let fewest = view.jobs[job].mixes.and_then(|_| self.fastest_together(job, &there, view.jobs[job].min));
            match fewest {
                Some(fewest) => self.take(job, fewest, &mut gangs, &mut nums[job], &mut shares[job]),
                None => {
                    shares[job] = gangs.start(job, view.jobs[job].min);
                    nums[job][shares[job].class] += u32::from(shares[job].slots);
                }
            }
        }
        (nums, shares, gangs.pool)
    }

    fn take(&self, job: usize, fewest: Vec<u32>, gangs: &mut Gangs<'_>, nums: &mut Vec<u32>, share: &mut Share) {
        gangs.pool.iter_mut().zip(&fewest).for_each(|(left, num)| *left -= num);
        let class = (0..fewest.len()).max_by_key(|&class| (fewest[class], Reverse(class))).unwrap_or(0);
        *share = Share { class, slots: self.view.jobs[job].min, waits: None };
        *nums = fewest;
    }

    /// So many slots of those there are and nobody has, the fastest ones first; none if there are not so many.
    fn fastest(&self, job: usize, there: &[u32], pool: &[u32], slots: u16) -> Option<Vec<u32>> {
        let speed = |class: usize| self.view.mixture(job).map_or(0, |of| of.speed_milli[class]);
        let mut classes: Vec<usize> = (0..there.len()).filter(|&class| there[class] > 0).collect();
        classes.sort_by_key(|&class| (Reverse((speed(class), there[class].min(pool[class]))), class));
        let (mut fewest, mut missing) = (vec![0; there.len()], u32::from(slots));
        for class in classes {
            fewest[class] = missing.min(there[class]).min(pool[class]);
            missing -= fewest[class];
        }
        (missing == 0).then_some(fewest)
    }

    /// The same of classes that go together, for a job that has none yet: those that make it fastest, of equals the ones with most room, and devices last.
    fn fastest_together(&self, job: usize, there: &[u32], slots: u16) -> Option<Vec<u32>> {
        let classes = &self.view.classes;
        let with = |first: usize| {
            let beside = |class: usize| if classes[first].mixes_with(&classes[class]) { there[class] } else { 0 };
            let group: Vec<u32> = (0..there.len()).map(beside).collect();
            let fewest = self.fastest(job, &group, there, slots)?;
            let spare = (!classes[first].device, group.iter().sum::<u32>());
            Some((self.speed(job, &fewest), spare, fewest))
        };
        let better = |best: (f64, (bool, u32), Vec<u32>), next: (f64, (bool, u32), Vec<u32>)| {
            let (faster, slower) = (next.0 > best.0 * (1.0 + ALIKE), best.0 > next.0 * (1.0 + ALIKE));
            if faster || !slower && next.1 > best.1 { next } else { best }
        };
        let groups = (0..there.len()).filter(|&class| there[class] > 0).filter_map(with);
        groups.reduce(better).map(|(_, _, fewest)| fewest)
    }

    /// What jobs had beyond their fewest, as far as it is of use and there is room: where there is not, whoever loses least per slot lets some go.
    fn keep(&self, held: &[Vec<u32>], nums: &mut [Vec<u32>], pool: &mut [u32]) {
        let mut wanted: Vec<Vec<u32>> = held.to_vec();
        for (job, wanted) in wanted.iter_mut().enumerate() {
            if nums[job].iter().all(|num| *num == 0) {
                wanted.fill(0);
            }
            // One that began in this round has its fewest.
            wanted.iter_mut().zip(&nums[job]).for_each(|(wanted, num)| *wanted = (*wanted).max(*num));
            self.fall_back(job, wanted);
        }
        let more = |wanted: &[Vec<u32>], class: usize| -> u32 {
            wanted.iter().zip(nums.iter()).map(|(wanted, num)| wanted[class].saturating_sub(num[class])).sum()
        };
        for class in 0..pool.len() {
            while more(&wanted, class) > pool[class] {
                let lets_go = |job: usize| {
                    if wanted[job][class] <= nums[job][class] {
                        return None;
                    }
                    let (before, mut fewer) = (self.speed(job, &wanted[job]), wanted[job].clone());
                    fewer[class] -= 1;
                    self.fall_back(job, &mut fewer);
                    let slots = wanted[job].iter().sum::<u32>() - fewer.iter().sum::<u32>();
                    let lost = if before > 0.0 { 1.0 - self.speed(job, &fewer) / before } else { 0.0 };
                    Some((lost / f64::from(slots), job, fewer))
                };
                let found = (0..wanted.len()).filter_map(lets_go);
                // Of equals the latest.
                let Some((_, job, fewer)) = found.min_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1))) else { break };
                wanted[job] = fewer;
            }
        }
        for (class, left) in pool.iter_mut().enumerate() {
            // A fall-back may have let go of what was counted among somebody's fewest.
            let sum = |of: &[Vec<u32>]| of.iter().map(|nums| nums[class]).sum::<u32>();
            *left = (*left + sum(nums)).saturating_sub(sum(&wanted));
        }
        nums.clone_from_slice(&wanted);
    }

    /// Takes from a job what does not make it faster, down to its fewest; of slots that it misses as little rather the slower one, because those make the others
    /// wait.
    fn fall_back(&self, job: usize, nums: &mut Vec<u32>) {
        let fewest = u32::from(self.view.jobs[job].min);
        let mut slowest_first: Vec<usize> = (0..nums.len()).collect();
        slowest_first.sort_by_key(|&class| (self.view.mixture(job).map_or(0, |of| of.speed_milli[class]), class));
        while nums.iter().sum::<u32>() > fewest {
            let mut best: Option<(f64, Vec<u32>)> = None;
            let least = self.speed(job, nums) * (1.0 - ALIKE);
            for &class in slowest_first.iter().filter(|&&class| nums[class] > 0) {
                let mut fewer = nums.clone();
                fewer[class] -= 1;
                let speed = self.speed(job, &fewer);
                let is_better = best.as_ref().is_none_or(|(best, _)| speed > best * (1.0 + ALIKE));
                if speed >= least && is_better {
                    best = Some((speed, fewer));
                }
            }
            match best {
                Some((_, fewer)) => *nums = fewer,
                None => return,
            }
        }
    }

    /// Approves proposals until none can be met.
    fn grow(&self, nums: &mut [Vec<u32>], pool: &mut [u32]) {
        let mut made = BTreeMap::new();
        loop {
            let mut all = Vec::new();
            for (job, nums) in nums.iter().enumerate() {
                let (of, has) = (&self.view.jobs[job], nums.iter().sum::<u32>());
                if has == 0 || has >= u32::from(of.max) {
                    continue;
                }
                let room = u32::from(of.max) - has;
                let there = |class: usize| if self.suits(job, nums, class) { pool[class].min(room) } else { 0 };
                let there: Vec<u32> = (0..pool.len()).map(there).collect();
                if there.iter().all(|num| *num == 0) {
                    continue;
                }
                let key = (self.alike[job], nums.clone(), there);
                let found = made.entry(key).or_insert_with_key(|(.., there)| {
                    self.view.effort.spend(1);
                    proposals(job, &self.types(job), nums, there, of.max, PROPOSALS_MAX)
                });
                // Also as measured: who was found to be slower on more is not asked to try it again.
                let is_faster = |proposal: &Proposal| {
                    let mut then = nums.clone();
                    then[proposal.of] += proposal.more;
                    self.speed(job, &then) > self.speed(job, nums) * (1.0 + ALIKE)
                };
                all.extend(found.iter().filter(|of| is_faster(of)).map(|of| Proposal { job, ..*of }));
            }
            let agreed = approved(all, pool);
            if agreed.is_empty() {
                return;
            }
            for proposal in agreed {
                nums[proposal.job][proposal.of] += proposal.more;
            }
        }
    }
}

#[cfg(test)]
mod tests;
