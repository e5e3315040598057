//! `ebb`, the default: slots go where they shorten the mean completion time most, and nobody is stopped lightly for that.
//!
//! 1. *Value*. A job's next slots are worth how well it uses them (the speed that they add, per slot, as a share of the best that a slot of it
//!    ever adds) times how many jobs have as much work left as it has, or more: so many wait for it to be done. This is the gradient of the sum of completion
//!    times under shortest-remaining-first; with curves that bend it gives nearly the split that is optimal for them (heSRPT, Berg et al. 2020).
//! 2. *Work left* (`work.rs`) is what is known or guessed; of the others the service that they have had, in steps of [`Tuning::step`], so that two
//!    of them do not take turns. Counted in slot·ms at the size where slots are used best.
//! 3. *One queue of steps*: slots are given out by value, first everybody's fewest, then those that make jobs larger. So among those that wait the
//!    shortest begin first, nobody grows while another could begin, and what is left goes to short jobs up to the knee of their curves.
//! 4. *Who runs keeps its fewest*, unless whoever needs them has a small part of its work left ([`Tuning::kept_elastic`], [`Tuning::kept_gang`]),
//!    and never if it is nearly done beside what a restart costs. Larger sizes are kept too, unless the gain is worth a move ([`Tuning::moved_percent`]).
//! 5. *The slowest*: who waits for far longer than it would run is served first from then on, and until it is done ([`Tuning::patience`]).
//!
//! Higher priority goes first with every job's fewest slots; growth is by value alone. Nothing else looks at what jobs have now, and what they have only
//! moves up what they keep, so planning again from the plan's outcome changes nothing.

use super::allotment::{Allotment, settled};
use super::work::{FRESH_MS, best_per_slot, counted_slot_ms, expected_ms};
use super::{Packing, Plan, Policy, QueueMove, Share, View, WorkLeft};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The queue of jobs that waited too long; others are in the first one. No queue of another policy has this number.
const PROMOTED: u8 = u8::MAX;
/// Plans that depend on what is left are looked at again after so long, because jobs of different speed overtake each other.
const LOOK_AGAIN_MS: u64 = 300_000;
/// Steps of service begin at this many slot·ms.
const STEP_SLOT_MS: u64 = 60_000;
/// Slots that are used as well as a job uses any, in millionths.
const USED_BEST: u64 = 1_000_000;
/// A job that has less left than so many of its restarts is not stopped for another.
const RESTARTS_WORTH: u64 = 8;

/// What was chosen by measuring; the default is what came out best.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuning {
    /// A job of unknown work is in another step when its service is so many times as much.
    pub step: u64,
    /// A job that can be smaller is stopped only for one that has so many times less work left.
    pub kept_elastic: u64,
    /// The same of a job of one size.
    pub kept_gang: u64,
    /// Slots move between running jobs if they are worth so much more, in percent.
    pub moved_percent: u64,
    /// Promoted is who waited so many times as long as it would run.
    pub patience: u64,
    /// But at least as if it ran for so long.
    pub patience_run_ms: u64,
    /// What is expected of a job of unknown work before it ran, on the slots that it asked for.
    pub fresh_ms: u64,
    /// Guessed work is told apart when it is so many times as much; 1: always.
    pub guess_step: u64,
    /// Where slots are looked for.
    pub packing: Packing,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            step: 8,
            kept_elastic: 64,
            kept_gang: 2,
            moved_percent: 20,
            patience: 16,
            patience_run_ms: 3_600_000,
            fresh_ms: FRESH_MS,
            guess_step: 2,
            packing: Packing::WorstFit,
        }
    }
}

/// See the module.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ebb {
    tuning: Tuning,
}

impl Ebb {
    /// With other numbers than those that came out best.
    #[must_use]
    pub fn new(tuning: Tuning) -> Self {
        Self { tuning }
    }

    fn shares(&self, view: &View, promoted: &[bool]) -> Vec<Share> {
        let growth = (view.jobs.iter().map(|job| job.priority).min().unwrap_or(0), false);
        let (ranks, used) = (Ranks::of(view, self), vec![USED_BEST; view.jobs.len()]);
        let mut work = Work { view, ebb: *self, ranks, allotment: Allotment::new(view), used, growth };
        work.give_out(promoted);
        work.allotment.shares
    }

    /// Who has waited too long now.
    fn promotions(&self, view: &View) -> Vec<QueueMove> {
        let starves = |job: &usize| {
            let of = &view.jobs[*job];
            of.held == 0 && of.service.queue != PROMOTED && of.service.waited_ms >= self.patience_ms(view, *job)
        };
        let promoted = |job| QueueMove { job, queue: PROMOTED, promoted: false };
        (0..view.jobs.len()).filter(starves).map(promoted).collect()
    }

    fn patience_ms(&self, view: &View, job: usize) -> u64 {
        let run_ms = expected_ms(&view.jobs[job]).max(self.tuning.patience_run_ms);
        run_ms.saturating_mul(self.tuning.patience)
    }

    /// When the first job comes into another step of service or has waited long enough, or what is left may be in another order.
    fn wake_in_ms(&self, view: &View, shares: &[Share], moves: &[QueueMove]) -> Option<u64> {
        let contended = shares.iter().zip(&view.jobs).any(|(share, job)| share.slots < job.max);
        let of = |(job, share): (usize, &Share)| {
            let known = &view.jobs[job];
            if share.slots == 0 {
                let moved = moves.iter().any(|moved| moved.job == job) || known.service.queue == PROMOTED;
                return (!moved).then(|| self.patience_ms(view, job).saturating_sub(known.service.waited_ms).max(1));
            }
            if known.left != WorkLeft::Unknown {
                return contended.then_some(LOOK_AGAIN_MS);
            }
            let counted = counted_slot_ms(known);
            let until = self.stepped(counted).saturating_sub(counted) + 1;
            contended.then(|| until.div_ceil(u64::from(share.slots)).max(1))
        };
        shares.iter().enumerate().filter_map(of).min()
    }

    /// The end of the step of service that so much is in.
    fn stepped(&self, slot_ms: u64) -> u64 {
        step_end(slot_ms, self.tuning.step)
    }

    /// The service that a job of unknown work that waits counts with at least.
    fn floor_slot_ms(&self, view: &View, job: usize) -> u64 {
        let of = &view.jobs[job];
        counted_slot_ms(of).max(self.tuning.fresh_ms.saturating_mul(u64::from(of.asked())))
    }
}

/// The end of the step that so much is in, where each is so many times as long as the one before.
fn step_end(slot_ms: u64, times: u64) -> u64 {
    let mut end = STEP_SLOT_MS;
    while end < slot_ms && times > 1 {
        end = end.saturating_mul(times);
    }
    end.max(slot_ms)
}

/// What is left of all jobs.
struct Ranks {
    /// In slot·ms where slots are used best, by job.
    area: Vec<u64>,
    /// The speed of a slot where slots are used best, by job, in its curve's unit.
    best: Vec<f64>,
    /// All areas, rising.
    sorted: Vec<u64>,
}

impl Ranks {
    fn of(view: &View, ebb: &Ebb) -> Self {
        let (mut area, mut best) = (Vec::with_capacity(view.jobs.len()), Vec::with_capacity(view.jobs.len()));
        for (job, of) in view.jobs.iter().enumerate() {
            let per_slot = best_per_slot(view, job);
            let slot_ms = |ms: u64| (ms as f64 / per_slot).min(u64::MAX as f64) as u64;
            area.push(match of.left {
                WorkLeft::Unknown => ebb.stepped(ebb.floor_slot_ms(view, job)),
                WorkLeft::Known { .. } => slot_ms(expected_ms(of)),
                WorkLeft::Estimated { .. } => step_end(slot_ms(expected_ms(of)), ebb.tuning.guess_step),
            });
            best.push(per_slot * view.speeds(job).speed(of.asked()));
        }
        let mut sorted = area.clone();
        sorted.sort_unstable();
        Self { area, best, sorted }
    }

    /// How many jobs have as much left, or more.
    fn weight(&self, area: u64) -> u64 {
        (self.sorted.len() - self.sorted.partition_point(|known| *known < area)) as u64
    }
}

/// A job's next slots, by what they are worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Step {
    /// Priority, and whether it waited too long.
    level: (i32, bool),
    /// A job's fewest come before anybody's growth: what a job says that it needs is promised to it.
    begins: bool,
    /// Jobs times millionths.
    value: u64,
    /// Of equals who has them, then whoever has fewer, then the earlier one.
    held: bool,
    has: Reverse<u16>,
    job: Reverse<usize>,
    /// The size that they make.
    to: Reverse<u16>,
}

struct Work<'a> {
    view: &'a View,
    ebb: Ebb,
    ranks: Ranks,
    allotment: Allotment<'a>,
    /// How well each job uses the slots that it was given last, in millionths.
    used: Vec<u64>,
    /// That of all growth: the lowest priority there is.
    growth: (i32, bool),
}

impl Work<'_> {
    /// A job's fewest slots.
    fn first(&self, job: usize, promoted: bool) -> Step {
        let of = &self.view.jobs[job];
        let held = of.held > 0;
        // How large it is says nothing against who runs: what it has had does.
        let area = match of.left {
            WorkLeft::Unknown if held => self.ebb.stepped(counted_slot_ms(of)),
            _ => self.ranks.area[job],
        };
        let restart_slot_ms = u64::from(of.restart_ms) * u64::from(of.min) * RESTARTS_WORTH;
        let kept = if of.min < of.max { self.ebb.tuning.kept_elastic } else { self.ebb.tuning.kept_gang };
        let value = match held {
            true if area <= restart_slot_ms => self.ranks.weight(0) * USED_BEST,
            true => self.ranks.weight(area / kept.max(1)) * USED_BEST,
            false => self.ranks.weight(area) * self.used_micro(job, 0, of.min),
        };
        let level = (of.priority, promoted);
        Step { level, value, begins: true, held, has: Reverse(0), job: Reverse(job), to: Reverse(of.min) }
    }

    /// How well a job uses the slots between two sizes, in millionths of how well it ever uses any.
    fn used_micro(&self, job: usize, from: u16, to: u16) -> u64 {
        let speeds = self.view.speeds(job);
        let more = (speeds.speed(to) - speeds.speed(from)) / f64::from(to - from);
        (more / self.ranks.best[job].max(f64::MIN_POSITIVE) * 1e6).clamp(0.0, USED_BEST as f64).round() as u64
    }

    /// The most valuable larger size that there is room for.
    fn next(&self, job: usize) -> Option<Step> {
        let (of, from, free) = (&self.view.jobs[job], self.allotment.shares[job].slots, self.allotment.free(job));
        if free == 0 || from >= of.max {
            return None;
        }
        let weight = self.ranks.weight(self.ranks.area[job]);
        let speeds = self.view.speeds(job);
        let sizes = std::iter::successors(speeds.next_size(from), |&size| speeds.next_size(size));
        let sizes = sizes.take_while(|&to| to <= of.max && u32::from(to - from) <= free);
        let step = |to: u16| {
            let held = to <= of.held && of.class == Some(self.allotment.shares[job].class);
            let percent = if held { 100 + self.ebb.tuning.moved_percent } else { 100 };
            // No better than what came before it, so that a part of a steep stretch is not worth more than all of it.
            let used = self.used_micro(job, from, to).min(self.used[job]);
            let value = weight * (used * percent / 100).min(USED_BEST);
            Step {
                level: self.growth,
                value,
                begins: false,
                held,
                has: Reverse(from),
                job: Reverse(job),
                to: Reverse(to),
            }
        };
        sizes.map(step).max_by_key(|step| (step.value, step.to)).filter(|step| step.value > 0)
    }

    fn give_out(&mut self, promoted: &[bool]) {
        let all = 0..self.view.jobs.len();
        let mut heap: BinaryHeap<Step> = all.map(|job| self.first(job, promoted[job])).collect();
        while let Some(step) = heap.pop() {
            let (Reverse(job), Reverse(to)) = (step.job, step.to);
            if self.allotment.shares[job].slots == 0 {
                if self.allotment.start(job, to, to) {
                    heap.extend(self.next(job));
                }
                continue;
            }
            // There may be less room than when this was looked for: what is possible now waits for its turn.
            let Some(now) = self.next(job) else { continue };
            if now < step {
                heap.push(now);
            } else {
                let from = self.allotment.shares[job].slots;
                self.used[job] = self.used[job].min(self.used_micro(job, from, now.to.0));
                self.allotment.grow(job, now.to.0);
                heap.extend(self.next(job));
            }
        }
        self.allotment.leave_idle_where_it_is();
    }
}

impl Policy for Ebb {
    fn name(&self) -> &'static str {
        "ebb"
    }

    fn plan(&self, view: &View) -> Plan {
        let moves = self.promotions(view);
        let mut promoted: Vec<bool> = view.jobs.iter().map(|job| job.service.queue == PROMOTED).collect();
        moves.iter().for_each(|moved| promoted[moved.job] = true);
        // What was given up for a larger step that then found no room is seen by the next plan.
        let shares = settled(view, |view| self.shares(view, &promoted));
        let wake_in_ms = self.wake_in_ms(view, &shares, &moves);
        Plan { shares, moves, wake_in_ms, ..Plan::default() }
    }

    fn packing(&self) -> Packing {
        self.tuning.packing
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ClassView, JobView, ServiceView, Wait};
    use super::*;

    fn job(min: u16, max: u16, held: u16) -> JobView {
        let class = (held > 0).then_some(0);
        JobView { min, max, held, class, settled: true, ..JobView::default() }
    }

    /// With so many minutes left on all its slots.
    fn left(minutes: u64, job: JobView) -> JobView {
        JobView { left: WorkLeft::Known { ms: minutes * 60_000 }, ..job }
    }

    fn attained(slot_s: u64, job: JobView) -> JobView {
        JobView { service: ServiceView { attained_slot_ms: slot_s * 1_000, ..job.service }, ..job }
    }

    fn view(capacity: u32, jobs: &[JobView]) -> View {
        let classes = vec![ClassView { capacity, declared: capacity, ..ClassView::default() }];
        View { classes, jobs: jobs.to_vec(), ..View::default() }
    }

    fn slots(view: &View) -> Vec<u16> {
        Ebb::default().plan(view).shares.iter().map(|share| share.slots).collect()
    }

    #[test]
    fn a_lone_job_takes_the_tide_in_useful_sizes() {
        assert_eq!(slots(&view(4, &[job(1, 4, 0)])), [4]);
        assert_eq!(slots(&view(3, &[job(1, 4, 1)])), [2], "three members would be no faster than two");
        assert_eq!(slots(&view(7, &[job(1, 8, 4)])), [4]);
    }

    #[test]
    fn of_whom_nothing_is_known_equals_share() {
        assert_eq!(slots(&view(4, &[job(1, 4, 4), job(1, 4, 0)])), [2, 2]);
        assert_eq!(slots(&view(8, &[job(1, 8, 8), job(2, 2, 0)])), [6, 2], "what nobody wants stays where it is");
        assert_eq!(slots(&view(4, &[job(4, 4, 4), job(1, 4, 0)])), [4, 0], "a guarantee is kept");
    }

    #[test]
    fn the_shorter_job_grows_first_and_the_longer_keeps_its_fewest() {
        let jobs = [left(600, job(1, 4, 4)), left(60, job(1, 4, 0))];
        assert_eq!(slots(&view(4, &jobs)), [2, 2], "a third would be of no use to it");
        assert_eq!(slots(&view(5, &jobs)), [1, 4]);
        assert_eq!(slots(&view(8, &jobs)), [4, 4]);
        let waiting = jobs.map(|job| JobView { held: 0, class: None, ..job });
        assert_eq!(slots(&view(4, &waiting)), [2, 2], "nobody's growth comes before another's fewest");
        assert_eq!(slots(&view(1, &waiting)), [0, 1], "of those the shorter job's come first");
    }

    #[test]
    fn a_gang_is_stopped_for_a_much_shorter_one_only() {
        let gangs = |held, waits| slots(&view(4, &[left(held, job(4, 4, 4)), left(waits, job(4, 4, 0))]));
        assert_eq!((gangs(100, 60), gangs(100, 40)), ([4, 0].to_vec(), [0, 4].to_vec()));
        // A restart would take a minute, and it has five to go.
        let nearly_done = JobView { restart_ms: 60_000, ..left(5, job(4, 4, 4)) };
        assert_eq!(slots(&view(4, &[nearly_done, left(1, job(4, 4, 0))])), [4, 0]);
        let elastic = |held| slots(&view(1, &[left(held, job(1, 4, 1)), left(10, job(1, 4, 0))]));
        assert_eq!(
            (elastic(600), elastic(700)),
            ([1, 0].to_vec(), [0, 1].to_vec()),
            "who can be small is not in the way"
        );
    }

    #[test]
    fn of_whom_nothing_is_known_goes_first_who_had_far_less() {
        assert_eq!(slots(&view(4, &[attained(40_000, job(4, 4, 4)), job(4, 4, 0)])), [0, 4]);
        assert_eq!(
            slots(&view(4, &[attained(3_000, job(4, 4, 4)), job(4, 4, 0)])),
            [4, 0],
            "in one step they take no turns"
        );
        let small_and_large = [job(4, 4, 0), job(1, 1, 0), job(1, 1, 0)];
        assert_eq!(slots(&view(4, &small_and_large)), [0, 1, 1]);
    }

    #[test]
    fn a_more_important_job_takes_guarantees_an_equal_one_does_not() {
        let urgent = JobView { priority: 5, ..job(4, 4, 0) };
        assert_eq!(slots(&view(4, &[job(2, 4, 2), job(2, 4, 2), urgent])), [0, 0, 4]);
        assert_eq!(slots(&view(4, &[job(2, 4, 2), job(2, 4, 2), job(4, 4, 0)])), [2, 2, 0]);
    }

    #[test]
    fn slots_do_not_move_for_a_small_gain() {
        // Both use them equally well, whoever has them.
        assert_eq!(slots(&view(6, &[left(100, job(1, 8, 4)), left(100, job(1, 8, 2))])), [4, 2]);
        assert_eq!(slots(&view(6, &[left(100, job(1, 8, 2)), left(100, job(1, 8, 4))])), [2, 4]);
    }

    #[test]
    fn who_waits_too_long_is_served_first_and_remains_so() {
        let waits = |waited_ms, queue| {
            let service = ServiceView { waited_ms, queue, ..ServiceView::default() };
            JobView { service, ..left(60, job(4, 4, 0)) }
        };
        let patience_ms = 16 * 3_600_000;
        let plan = |first| Ebb::default().plan(&view(4, &[first, left(5, job(4, 4, 0))]));
        assert!(plan(waits(patience_ms - 1, 0)).moves.is_empty());
        assert_eq!(plan(waits(patience_ms - 1, 0)).wake_in_ms, Some(1));
        let promoted = plan(waits(patience_ms, 0));
        assert_eq!(promoted.moves, [QueueMove { job: 0, queue: PROMOTED, promoted: false }]);
        assert_eq!(promoted.shares[0].slots, 4);
        let since = plan(JobView { held: 4, class: Some(0), ..waits(0, PROMOTED) });
        assert_eq!((since.shares[0].slots, since.moves.len()), (4, 0));
    }

    #[test]
    fn it_wakes_when_a_job_comes_into_another_step() {
        let wake = |jobs: &[JobView]| Ebb::default().plan(&view(4, jobs)).wake_in_ms;
        assert_eq!(wake(&[attained(3_000, job(4, 4, 4)), job(4, 4, 0)]), Some((3_840_000 - 3_000_000 + 4) / 4));
        assert_eq!(wake(&[job(4, 4, 4)]), None, "nobody wants what it has");
    }

    #[test]
    fn who_waits_is_told_for_what() {
        let plan = Ebb::default().plan(&view(2, &[job(2, 2, 2), job(3, 4, 0), job(2, 2, 0), job(1, 1, 0)]));
        let waits: Vec<_> = plan.shares.iter().map(|share| share.waits).collect();
        // Three slots can never be had here, so that job blocks nobody.
        assert_eq!(waits, [None, Some(Wait::Slots(3)), Some(Wait::Slots(2)), Some(Wait::Behind(2))]);
    }

    /// Two plain slots and two devices of one numeric class.
    fn mixed(jobs: &[JobView]) -> Vec<(usize, u16)> {
        let class = |device| ClassView { capacity: 2, declared: 2, numeric: 0, device };
        let view = View { classes: vec![class(false), class(true)], jobs: jobs.to_vec(), ..View::default() };
        Ebb::default().plan(&view).shares.iter().map(|share| (share.class, share.slots)).collect()
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
