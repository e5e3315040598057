//! Slots given out one job after the other: the part that every policy that starts and grows jobs has in common.
//!
//! Which job comes next, and how many it gets, is the policy's; this keeps the count, finds the class, and remembers why others wait.

use super::{Share, View, Wait};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Plans that are made of a plan's own outcome; nearly always the first of them is the same.
const SETTLING_MAX: usize = 8;

/// Shares as they are once the next plans have seen them, so that these find nothing left to do.
pub(super) fn settled(view: &View, mut shares_of: impl FnMut(&View) -> Vec<Share>) -> Vec<Share> {
    let (mut shares, mut carried_out) = (shares_of(view), view.clone());
    for _ in 0..SETTLING_MAX {
        for (job, share) in view.effort.each(carried_out.jobs.iter_mut().zip(&shares)) {
            job.held = share.slots;
            if share.slots > 0 {
                job.class = Some(share.class);
                job.numeric = Some(view.classes[share.class].numeric);
            }
        }
        let next = shares_of(&carried_out);
        if next == shares {
            break;
        }
        shares = next;
    }
    shares
}

/// Shares so far, and what is left.
pub(super) struct Allotment<'a> {
    view: &'a View,
    pub shares: Vec<Share>,
    /// Slots not yet given, per class.
    pub pool: Vec<u32>,
    /// The job that was refused last, per class: whom the next one is behind.
    refused: Vec<Option<usize>>,
}

impl<'a> Allotment<'a> {
    pub fn new(view: &'a View) -> Self {
        // Who is never asked for waits for whatever it needs at least.
        let unasked =
            |job: &super::JobView| Share { waits: Some(Wait::Slots(u32::from(job.min).max(1))), ..Share::default() };
        let pool = view.classes.iter().map(|class| class.capacity).collect();
        Self::of(view, view.effort.each(view.jobs.iter()).map(unasked).collect(), pool)
    }

    /// Of shares that were given out already, and what they left.
    pub fn of(view: &'a View, shares: Vec<Share>, pool: Vec<u32>) -> Self {
        Self { view, shares, pool, refused: vec![None; view.classes.len()] }
    }

    /// The class that a job would get so many slots in.
    fn open(&self, job: usize, slots: u16) -> Option<usize> {
        self.view.roomiest(self.view.suiting(job), &self.pool, slots)
    }

    /// Gives a job its first slots: as many as wanted, else as many as there are, but not fewer than `least`. Whether it got any.
    pub fn start(&mut self, job: usize, wanted: u16, least: u16) -> bool {
        self.view.effort.spend(1);
        let found = self.open(job, wanted).map(|class| (class, wanted));
        let found = found.or_else(|| {
            let class = self.open(job, least)?;
            Some((class, self.pool[class].min(u32::from(wanted)) as u16))
        });
        match found {
            Some((class, slots)) => {
                self.pool[class] -= u32::from(slots);
                self.shares[job] = Share { class, slots, waits: None };
            }
            None => self.refuse(job, least),
        }
        found.is_some()
    }

    fn refuse(&mut self, job: usize, least: u16) {
        let most = self.view.suiting(job).map(|class| self.pool[class]).max().unwrap_or(0);
        let ahead = self.view.suiting(job).find_map(|class| self.refused[class]);
        let could_be = |class: &usize| self.view.classes[*class].declared >= u32::from(least);
        let possible: Vec<usize> = self.view.suiting(job).filter(could_be).collect();
        // Nobody is in the way of who needs more than there is.
        let ahead = ahead.filter(|_| !possible.is_empty());
        for class in possible {
            self.refused[class] = Some(job);
        }
        let missing = u32::from(least).saturating_sub(most).max(1);
        self.shares[job].waits = Some(ahead.map_or(Wait::Slots(missing), Wait::Behind));
    }

    /// The slots left in the class of a job that has some.
    pub fn free(&self, job: usize) -> u32 {
        self.pool[self.shares[job].class]
    }

    /// Gives a job that has slots more of them; whether there were so many.
    pub fn grow(&mut self, job: usize, to: u16) -> bool {
        self.view.effort.spend(1);
        let more = u32::from(to - self.shares[job].slots);
        let fits = more <= self.free(job);
        if fits {
            self.pool[self.shares[job].class] -= more;
            self.shares[job].slots = to;
        }
        fits
    }

    /// Makes jobs that have slots larger, step by step: the largest gain first, of equals the earlier job's, until nobody gains by what is left.
    /// `next` says what a job's next size is and what it gains by it.
    pub fn grow_by_gain(&mut self, next: impl Fn(usize, u16) -> Option<(u64, u16)>) {
        let step = |job: usize, from: u16| next(job, from).map(|(gain, to)| (gain, Reverse(job), to));
        let running = (0..self.shares.len()).filter(|&job| self.shares[job].slots > 0);
        let mut heap: BinaryHeap<_> = running.filter_map(|job| step(job, self.shares[job].slots)).collect();
        while let Some((_, Reverse(job), to)) = heap.pop() {
            // A size that does not fit ends its growth: smaller ones shorten no step.
            if self.grow(job, to) {
                heap.extend(step(job, to));
            }
        }
    }

    /// Leaves what nobody wants to those who hold it: moving it costs, and gives nothing to anybody. Not where it was surely measured to slow its job
    /// down.
    pub fn leave_idle_where_it_is(&mut self) {
        for (index, job) in self.view.effort.each(self.view.jobs.iter().enumerate()) {
            let share = self.shares[index];
            if share.slots > 0 && job.held > share.slots && job.class == Some(share.class) {
                let kept = job.held.min(job.max).saturating_sub(share.slots);
                let kept = u32::from(kept).min(self.pool[share.class]) as u16;
                let (speeds, all) = (self.view.speeds(index), share.slots + kept);
                let slower = job.curve.is_some() && speeds.speed(all) < speeds.speed(share.slots);
                if slower && !speeds.is_open(share.slots, all) {
                    continue;
                }
                self.pool[share.class] -= u32::from(kept);
                self.shares[index].slots += kept;
            }
        }
    }
}

/// Places in the view by a key, within higher priority first; of equals the earlier job.
pub(super) fn ordered<K: Ord>(view: &View, key: impl Fn(usize) -> K) -> Vec<usize> {
    let mut order: Vec<usize> = view.places().collect();
    order.sort_by_cached_key(|&job| (Reverse(view.jobs[job].priority), key(job), job));
    order
}
