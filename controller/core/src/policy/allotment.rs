//! Slots given out one job after the other: the part that every policy that starts and grows jobs has in common.
//!
//! Which job comes next, and how many it gets, is the policy's; this keeps the count, finds the class, and remembers why others wait.

use super::{Share, View, Wait};
use std::cmp::Reverse;

/// Plans that are made of a plan's own outcome; nearly always the first of them is the same.
const SETTLING_MAX: usize = 8;

/// Shares as they are once the next plans have seen them, so that these find nothing left to do.
pub(super) fn settled(view: &View, mut shares_of: impl FnMut(&View) -> Vec<Share>) -> Vec<Share> {
    let (mut shares, mut carried_out) = (shares_of(view), view.clone());
    for _ in 0..SETTLING_MAX {
        for (job, share) in carried_out.jobs.iter_mut().zip(&shares) {
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
        let pool = view.classes.iter().map(|class| class.capacity).collect();
        // Who is never asked for waits for whatever it needs at least.
        let unasked =
            |job: &super::JobView| Share { waits: Some(Wait::Slots(u32::from(job.min).max(1))), ..Share::default() };
        Self { view, shares: view.jobs.iter().map(unasked).collect(), pool, refused: vec![None; view.classes.len()] }
    }

    fn suiting(&self, job: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.view.classes.len()).filter(move |&class| self.view.suits(job, class))
    }

    /// The class that a job would get so many slots in: devices are left to who needs them, where there is room beside them; the first of equals.
    fn open(&self, job: usize, slots: u16) -> Option<usize> {
        let open = self.suiting(job).filter(|&class| self.pool[class] >= u32::from(slots));
        open.max_by_key(|&class| (!self.view.classes[class].device, self.pool[class], Reverse(class)))
    }

    /// Gives a job its first slots: as many as wanted, else as many as there are, but not fewer than `least`. Whether it got any.
    pub fn start(&mut self, job: usize, wanted: u16, least: u16) -> bool {
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
        let most = self.suiting(job).map(|class| self.pool[class]).max().unwrap_or(0);
        let ahead = self.suiting(job).find_map(|class| self.refused[class]);
        let could_be = |class: &usize| self.view.classes[*class].declared >= u32::from(least);
        let possible: Vec<usize> = self.suiting(job).filter(could_be).collect();
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
        let more = u32::from(to - self.shares[job].slots);
        let fits = more <= self.free(job);
        if fits {
            self.pool[self.shares[job].class] -= more;
            self.shares[job].slots = to;
        }
        fits
    }

    /// Leaves what nobody wants to those who hold it: moving it costs, and gives nothing to anybody.
    pub fn leave_idle_where_it_is(&mut self) {
        for (index, job) in self.view.jobs.iter().enumerate() {
            let share = self.shares[index];
            if share.slots > 0 && job.held > share.slots && job.class == Some(share.class) {
                let kept = job.held.min(job.max).saturating_sub(share.slots);
                let kept = u32::from(kept).min(self.pool[share.class]) as u16;
                self.pool[share.class] -= u32::from(kept);
                self.shares[index].slots += kept;
            }
        }
    }
}

/// Places in the view by a key, within higher priority first; of equals the earlier job.
pub(super) fn ordered<K: Ord>(view: &View, key: impl Fn(usize) -> K) -> Vec<usize> {
    let mut order: Vec<usize> = (0..view.jobs.len()).collect();
    order.sort_by_cached_key(|&job| (Reverse(view.jobs[job].priority), key(job), job));
    order
}
