//! `ebb`, the default: guarantees first, then slots to whoever gains most by them.
//!
//! 1. *Guarantees*: every job's minimum, by priority, then who runs, then arrival. A more important job takes the minimum of a
//!    less important one; of equals nobody is sent back into the queue for another.
//! 2. *Keep*: who runs keeps its size; where minimums do not leave enough, slots go from the job that loses least.
//! 3. *Grow*: free slots go, one useful size at a time, to the largest relative gain per slot ([`super::gain`]): this
//!    maximizes the product of all speeds, so nobody is starved for a small gain of others. Sizes that divide W evenly win by
//!    themselves, because slots beyond them shorten no step.
//! 4. *Exchange*: slots move between running jobs only if the gain exceeds the loss by [`MOVE_RATIO`], the price of the move,
//!    and both have been left alone for a while. Each exchange raises the product of speeds by that factor, so it ends, and
//!    planning again from its outcome changes nothing.

use super::gain::{loss_of_one_micro, next_size, ratio, without_waste};
use super::{Gangs, JobView, Plan, Policy, Share, View, service_order};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What the product of two jobs' speeds has to grow by before slots move between them: a move costs a process start, a copy
/// of the replica and the reading ahead of other data.
pub const MOVE_RATIO: f64 = 1.2;
/// Exchanges in one plan; further ones follow with the next plan, when these have settled.
pub const EXCHANGES_MAX: usize = 64;
/// Receivers considered for one exchange.
const RECEIVERS_MAX: usize = 8;

/// See the module.
pub struct Ebb;

impl Policy for Ebb {
    fn name(&self) -> &'static str {
        "ebb"
    }

    fn plan(&self, view: &View) -> Plan {
        let mut work = Work::guarantee(view);
        work.keep();
        work.grow();
        work.exchange_all(Movable::SettledOrNew);
        // As the next plan will see it, so that it finds nothing left to do.
        work.exchange_all(Movable::Settled);
        Plan { shares: work.shares, ..Plan::default() }
    }

    fn guarantees(&self, view: &View) -> Vec<Share> {
        Work::guarantee(view).shares
    }
}

struct Work<'a> {
    view: &'a View,
    shares: Vec<Share>,
    /// Free slots per class.
    pool: Vec<u32>,
    movable: Movable,
}

/// Whose sizes may be exchanged.
#[derive(Clone, Copy, PartialEq)]
enum Movable {
    /// Jobs left alone for a while, and those that get their first slots in this plan: their size is not real yet.
    SettledOrNew,
    /// Jobs left alone for a while.
    Settled,
}

/// A way to a larger size.
#[derive(Clone, Copy)]
struct Jump {
    to: u16,
    gain_per_slot_micro: u64,
}

impl<'a> Work<'a> {
    fn guarantee(view: &'a View) -> Self {
        let mut gangs = Gangs::new(view);
        let mut shares = vec![Share::default(); view.jobs.len()];
        let order = service_order(view);
        for peers in order.chunk_by(|&a, &b| view.jobs[a].priority == view.jobs[b].priority) {
            let mut queue = Vec::new();
            for &index in peers {
                let job = &view.jobs[index];
                match job.class.filter(|&class| job.held > 0 && gangs.keep(class, job.min)) {
                    Some(class) => shares[index] = Share { class, slots: job.min, waits: None },
                    None => queue.push(index),
                }
            }
            // Who cannot be kept queues by arrival, as it will in the next plan.
            queue.sort_unstable();
            for index in queue {
                shares[index] = gangs.start(index, view.jobs[index].min);
            }
        }
        Self { view, shares, pool: gangs.pool, movable: Movable::SettledOrNew }
    }

    fn job(&self, index: usize) -> &'a JobView {
        &self.view.jobs[index]
    }

    /// Gives running jobs their present size back and takes from the smallest loss what is then too much.
    fn keep(&mut self) {
        let mut excess = vec![0u32; self.pool.len()];
        for (share, job) in self.shares.iter_mut().zip(&self.view.jobs) {
            let kept = job.held.min(job.max);
            if share.slots > 0 && kept > share.slots && job.class == Some(share.class) {
                let more = u32::from(kept - share.slots);
                share.slots = kept;
                let paid = more.min(self.pool[share.class]);
                self.pool[share.class] -= paid;
                excess[share.class] += more - paid;
            }
        }
        if excess.iter().all(|&slots| slots == 0) {
            return;
        }
        let loss = |share: &Share, index: usize| loss_of_one_micro(self.view.jobs[index].max, share.slots);
        let mut donors: BinaryHeap<_> = (0..self.shares.len())
            .filter(|&index| {
                self.shares[index].slots > self.view.jobs[index].min && excess[self.shares[index].class] > 0
            })
            .map(|index| Reverse((loss(&self.shares[index], index), self.view.jobs[index].priority, Reverse(index))))
            .collect();
        while let Some(Reverse((_, priority, Reverse(index)))) = donors.pop() {
            let class = self.shares[index].class;
            if excess[class] == 0 {
                continue;
            }
            excess[class] -= 1;
            self.shares[index].slots -= 1;
            if self.shares[index].slots > self.view.jobs[index].min {
                donors.push(Reverse((loss(&self.shares[index], index), priority, Reverse(index))));
            }
        }
    }

    /// The jump of a job with the largest gain per slot that so many free slots allow.
    fn best_jump(&self, index: usize, free: u32) -> Option<Jump> {
        let (job, from) = (self.job(index), self.shares[index].slots);
        let sizes = std::iter::successors(next_size(job.max, from), |&size| next_size(job.max, size));
        sizes
            .take_while(|&to| u32::from(to - from) <= free)
            .map(|to| {
                let gain = (ratio(job.max, from, to) - 1.0) / f64::from(to - from);
                Jump { to, gain_per_slot_micro: (gain * 1e6) as u64 }
            })
            .max_by_key(|jump| (jump.gain_per_slot_micro, Reverse(jump.to)))
    }

    /// Hands out free slots, always to the largest gain per slot; of equals to the more important, then the earlier job.
    fn grow(&mut self) {
        let entry = |jump: Jump, index: usize, priority: i32| (jump.gain_per_slot_micro, priority, Reverse(index));
        let mut heap: BinaryHeap<_> = (0..self.shares.len())
            .filter(|&index| self.shares[index].slots > 0)
            .filter_map(|index| {
                let jump = self.best_jump(index, self.pool[self.shares[index].class])?;
                Some(entry(jump, index, self.job(index).priority))
            })
            .collect();
        while let Some((gain, priority, Reverse(index))) = heap.pop() {
            let class = self.shares[index].class;
            // The pool may have shrunk since this entry was made: a smaller jump may be all that is left.
            let Some(jump) = self.best_jump(index, self.pool[class]) else { continue };
            if jump.gain_per_slot_micro < gain {
                heap.push(entry(jump, index, priority));
                continue;
            }
            self.pool[class] -= u32::from(jump.to - self.shares[index].slots);
            self.shares[index].slots = jump.to;
            if let Some(next) = self.best_jump(index, self.pool[class]) {
                heap.push(entry(next, index, priority));
            }
        }
    }

    /// Exchanges until nothing is worth a move.
    fn exchange_all(&mut self, movable: Movable) {
        self.movable = movable;
        for _ in 0..EXCHANGES_MAX {
            if !self.exchange() {
                return;
            }
            self.grow();
        }
    }

    fn can_move(&self, index: usize) -> bool {
        self.job(index).settled || (self.movable == Movable::SettledOrNew && self.job(index).held == 0)
    }

    /// The size a job would shrink to, and the factor it would lose.
    fn release(&self, index: usize) -> Option<(u16, f64)> {
        let (job, from) = (self.job(index), self.shares[index].slots);
        if !self.can_move(index) || from <= job.min {
            return None;
        }
        let even = without_waste(job.max, from);
        let to = if even < from { even } else { without_waste(job.max, from - 1) }.max(job.min);
        Some((to, ratio(job.max, to, from).max(1.0)))
    }

    /// Moves slots from those who lose least to the one who gains most, if that is worth a move. Whether it did.
    fn exchange(&mut self) -> bool {
        let mut donors: Vec<(usize, u16, f64)> = (0..self.shares.len())
            .filter_map(|index| self.release(index).map(|(to, loss)| (index, to, loss)))
            .collect();
        if donors.is_empty() {
            return false;
        }
        let loss_per_slot = |&(index, to, loss): &(usize, u16, f64)| {
            (
                ((loss - 1.0) / f64::from(self.shares[index].slots - to) * 1e6) as u64,
                self.job(index).priority,
                Reverse(index),
            )
        };
        donors.sort_by_key(loss_per_slot);
        let mut receivers: Vec<(usize, Jump)> = (0..self.shares.len())
            .filter(|&index| self.shares[index].slots > 0 && self.can_move(index))
            .filter_map(|index| self.best_jump(index, u32::MAX).map(|jump| (index, jump)))
            .collect();
        receivers.sort_by_key(|&(index, jump)| {
            (Reverse(jump.gain_per_slot_micro), Reverse(self.job(index).priority), index)
        });
        receivers.truncate(RECEIVERS_MAX);
        let best = receivers.into_iter().find_map(|(receiver, _)| self.best_exchange(receiver, &donors));
        let Some(exchange) = best else { return false };
        let class = self.shares[exchange.receiver].class;
        for (donor, to) in exchange.donors {
            self.pool[class] += u32::from(self.shares[donor].slots - to);
            self.shares[donor].slots = to;
        }
        self.pool[class] -= u32::from(exchange.to - self.shares[exchange.receiver].slots);
        self.shares[exchange.receiver].slots = exchange.to;
        true
    }

    /// The exchange that most improves on a receiver's size, among those worth a move. Donors give more than one slot at a
    /// time, so the cheapest jump alone may not pay for what they lose.
    fn best_exchange(&self, receiver: usize, donors: &[(usize, u16, f64)]) -> Option<Exchange> {
        let (max, from) = (self.job(receiver).max, self.shares[receiver].slots);
        std::iter::successors(next_size(max, from), |&size| next_size(max, size))
            .filter_map(|to| self.exchange_to(receiver, to, donors))
            .max_by_key(|exchange| (exchange.worth_micro, Reverse(exchange.to)))
    }

    fn exchange_to(&self, receiver: usize, to: u16, donors: &[(usize, u16, f64)]) -> Option<Exchange> {
        let (class, from) = (self.shares[receiver].class, self.shares[receiver].slots);
        let wanted = u32::from(to - from);
        let gain = ratio(self.job(receiver).max, from, to);
        let (mut got, mut loss, mut taken) = (self.pool[class], 1.0, Vec::new());
        for &(donor, smaller, factor) in donors {
            if got >= wanted || loss * MOVE_RATIO > gain {
                break;
            }
            if donor != receiver && self.shares[donor].class == class {
                got += u32::from(self.shares[donor].slots - smaller);
                loss *= factor;
                taken.push((donor, smaller));
            }
        }
        let worth_it = got >= wanted && loss * MOVE_RATIO <= gain && !taken.is_empty();
        worth_it.then(|| Exchange { receiver, to, donors: taken, worth_micro: (gain / loss * 1e6) as u64 })
    }
}

/// Slots that move between running jobs.
struct Exchange {
    receiver: usize,
    /// The receiver's new size.
    to: u16,
    /// Who gives, and their new sizes.
    donors: Vec<(usize, u16)>,
    /// The factor by which the product of speeds grows.
    worth_micro: u64,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::{ClassView, Wait};
    use super::*;

    fn job(min: u16, max: u16, held: u16) -> JobView {
        let class = (held > 0).then_some(0);
        JobView { min, max, held, class, settled: true, ..JobView::default() }
    }

    fn view(capacity: u32, jobs: &[JobView]) -> View {
        View { classes: vec![ClassView { capacity, declared: capacity, ..ClassView::default() }], jobs: jobs.to_vec() }
    }

    fn slots(view: &View) -> Vec<u16> {
        Ebb.plan(view).shares.iter().map(|share| share.slots).collect()
    }

    #[test]
    fn a_lone_job_takes_the_tide_in_useful_sizes() {
        assert_eq!(slots(&view(4, &[job(1, 4, 0)])), [4]);
        assert_eq!(slots(&view(3, &[job(1, 4, 1)])), [2], "three members would be no faster than two");
        assert_eq!(slots(&view(7, &[job(1, 8, 4)])), [4]);
    }

    #[test]
    fn a_newcomer_gets_its_minimum_at_once_and_more_if_it_is_worth_a_move() {
        assert_eq!(slots(&view(4, &[job(1, 4, 4), job(1, 4, 0)])), [2, 2]);
        assert_eq!(slots(&view(8, &[job(1, 8, 8), job(2, 2, 0)])), [6, 2], "what nobody wants stays where it is");
        assert_eq!(slots(&view(4, &[job(4, 4, 4), job(1, 4, 0)])), [4, 0], "a guarantee is kept");
    }

    #[test]
    fn a_more_important_job_takes_guarantees_an_equal_one_does_not() {
        let urgent = JobView { priority: 5, ..job(4, 4, 0) };
        assert_eq!(slots(&view(4, &[job(2, 4, 2), job(2, 4, 2), urgent])), [0, 0, 4]);
        assert_eq!(slots(&view(4, &[job(2, 4, 2), job(2, 4, 2), job(4, 4, 0)])), [2, 2, 0]);
    }

    /// Found by a property of all policies: the one sent back blocked the other, behind whom it then was.
    #[test]
    fn who_is_sent_back_queues_by_arrival_at_once() {
        let low = |job: JobView| JobView { priority: -1, ..job };
        let jobs = [low(job(2, 2, 0)), job(3, 4, 4), job(2, 2, 0), low(job(4, 7, 4))];
        assert_eq!(slots(&view(8, &jobs)), [2, 4, 2, 0]);
    }

    /// Found by a property of all policies: a newcomer was given three at once, of which the next plan took one away again.
    #[test]
    fn what_a_newcomer_gets_is_part_of_the_exchange() {
        let unsettled = JobView { settled: false, ..job(1, 3, 3) };
        let urgent = JobView { priority: 1, ..job(1, 6, 0) };
        assert_eq!(slots(&view(8, &[unsettled, job(1, 6, 1), job(2, 4, 4), urgent])), [2, 2, 2, 2]);
    }

    /// Found by a property of all policies: newcomers, cheap donors in the first plan but none in the next, hid a better exchange.
    #[test]
    fn an_exchange_that_the_next_plan_would_find_is_made_at_once() {
        let fresh = |job: JobView| JobView { settled: false, ..job };
        let jobs = [fresh(job(1, 3, 0)), fresh(job(2, 13, 0)), job(3, 6, 6), job(1, 10, 1)];
        assert_eq!(slots(&view(15, &jobs)), [3, 4, 3, 5]);
    }

    #[test]
    fn unsettled_jobs_are_left_alone() {
        let fresh = JobView { settled: false, ..job(1, 8, 1) };
        assert_eq!(slots(&view(9, &[job(1, 8, 8), fresh])), [8, 1]);
        assert_eq!(
            slots(&view(9, &[job(1, 8, 8), JobView { settled: true, ..fresh }])),
            [4, 4],
            "one slot is of use to nobody"
        );
    }

    #[test]
    fn who_waits_is_told_for_what() {
        let plan = Ebb.plan(&view(2, &[job(2, 2, 2), job(3, 4, 0), job(2, 2, 0), job(1, 1, 0)]));
        let waits: Vec<_> = plan.shares.iter().map(|share| share.waits).collect();
        // Three slots can never be had here, so that job blocks nobody.
        assert_eq!(waits, [None, Some(Wait::Slots(3)), Some(Wait::Slots(2)), Some(Wait::Behind(2))]);
    }

    /// Two plain slots and two devices of one numeric class.
    fn mixed(jobs: &[JobView]) -> Vec<(usize, u16)> {
        let class = |device| ClassView { capacity: 2, declared: 2, numeric: 0, device };
        let view = View { classes: vec![class(false), class(true)], jobs: jobs.to_vec() };
        Ebb.plan(&view).shares.iter().map(|share| (share.class, share.slots)).collect()
    }

    #[test]
    fn who_needs_devices_gets_devices_and_others_leave_them_as_long_as_they_can() {
        let cuda = JobView { device: true, ..job(1, 2, 0) };
        assert_eq!(mixed(&[job(1, 2, 0), cuda]), [(0, 2), (1, 2)]);
        assert_eq!(mixed(&[cuda, job(1, 2, 0)]), [(1, 2), (0, 2)]);
        assert_eq!(mixed(&[cuda, cuda, cuda]), [(1, 1), (1, 1), (0, 0)], "plain slots are of no use to the third");
        assert_eq!(mixed(&[job(2, 2, 0), job(2, 2, 0)]), [(0, 2), (1, 2)], "who needs none can use one");
        let there = JobView { class: Some(1), numeric: Some(0), ..job(1, 2, 2) };
        assert_eq!(mixed(&[there, cuda]), [(1, 1), (1, 1)], "and gives way down to its minimum");
    }
}
