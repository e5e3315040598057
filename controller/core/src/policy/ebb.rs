//! `ebb`, the default: slots go where they shorten the mean completion time most, and nobody is stopped lightly for that.
//!
//! 1. *Value*. A job's next slots are worth how well it uses them (the speed that they add, per slot, as a share of the best that a slot of it
//!    ever adds) times how many jobs have as much work left as it has, or more: so many wait for it to be done. This is the gradient of the sum of completion
//!    times under shortest-remaining-first; with curves that bend it gives nearly the split that is optimal for them (heSRPT, Berg et al. 2020).
//!    Where nothing is known of anybody's work, a job that grows counts by the slots that it ends on: as a rule it cannot make up later for what it is not given now (`Ranks::growth_micro`).
//! 2. *Work left* (`work.rs`) is what is known or guessed; of the others the service that they have had, in steps of [`Tuning::step`], so that two
//!    of them do not take turns, and not less than the median of the known: that nothing is known of a job does not make it short.
//!    Counted in slot·ms at the size where slots are used best.
//! 3. *One queue of steps*: slots are given out by value, a job's fewest as those that make it larger; its fewest count a little more ([`Tuning::begin_percent`]).
//!    So the shortest begin first, among equals nobody grows while another could begin, and a job that is known to be longer waits while shorter ones use its
//!    slots well, up to the knees of their curves. Nobody grows by the fewest slots of who runs or has run, or of whom nothing is known.
//! 4. *Who runs keeps its fewest*, unless whoever needs them has a small part of its work left ([`Tuning::kept_elastic`], [`Tuning::kept_gang`]),
//!    and never if it is nearly done beside what a restart costs. Larger sizes are kept too, unless the gain is worth a move ([`Tuning::moved_percent`]).
//! 5. *The slowest*: who waits for far longer than it would run is served first from then on, and until it is done ([`Tuning::patience`]).
//!
//! Higher priority goes first with every job's fewest slots; growth is by value alone. Nothing else looks at what jobs have now, and what they have only
//! moves up what they keep, so planning again from the plan's outcome changes nothing.

use super::allotment::{Allotment, settled};
use super::stride::Batches;
use super::work::{FRESH_MS, best_per_slot, counted_slot_ms, expected_ms};
use super::{JobView, PROMOTED, Packing, Plan, Policy, QueueMove, Share, View, WorkLeft};
use events_schema::stride::Stride;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Plans that depend on what is left are looked at again after so long, because jobs of different speed overtake each other.
const LOOK_AGAIN_MS: u64 = 300_000;
/// Steps of service begin at this many slot·ms.
const STEP_SLOT_MS: u64 = 60_000;
/// Slots that are used as well as a job uses any, in millionths.
const USED_BEST: u64 = 1_000_000;
/// A job that has less left than so many of its restarts is not stopped for another.
const RESTARTS_WORTH: u64 = 8;

/// What can be chosen. The default came out best of what was tried, as far as that made a difference (docs/decisions, 16).
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
    /// A job's fewest slots count so much more than slots that make another larger, in percent.
    pub begin_percent: u64,
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
            begin_percent: 110,
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
    /// With other numbers than the default.
    #[must_use]
    pub fn new(tuning: Tuning) -> Self {
        Self { tuning }
    }

    fn shares(&self, view: &View, promoted: &[bool]) -> Vec<Share> {
        let (ranks, used) = (Ranks::of(view, self), vec![USED_BEST; view.jobs.len()]);
        let growth = (view.jobs.iter().map(|job| job.priority).min().unwrap_or(0), false);
        let allotment = Allotment::new(view);
        let mut work = Work { view, ebb: *self, ranks, allotment, used, growth, growth_turn: u64::MAX };
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
    fn wake_in_ms(&self, view: &View, shares: &[Share], promoted: &[bool]) -> Option<u64> {
        let contended = shares.iter().zip(&view.jobs).any(|(share, job)| share.slots < job.max);
        let of = |(job, share): (usize, &Share)| {
            let known = &view.jobs[job];
            if share.slots == 0 {
                let left_ms = || self.patience_ms(view, job).saturating_sub(known.service.waited_ms).max(1);
                return (!promoted[job]).then(left_ms);
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

    /// What is expected of a job of unknown work, where so much is usual for each slot that a job asked for.
    fn unknown_slot_ms(&self, of: &JobView, usual_ms: u64) -> u64 {
        let least_ms = self.tuning.fresh_ms.max(usual_ms);
        self.stepped(counted_slot_ms(of).max(least_ms.saturating_mul(u64::from(of.asked()))))
    }

    /// What is left of a job of which something is known, in slot·ms where slots are used best.
    fn known_slot_ms(&self, of: &JobView, best_per_slot: f64) -> Option<u64> {
        let slot_ms = || (expected_ms(of) as f64 / best_per_slot).min(u64::MAX as f64) as u64;
        match of.left {
            WorkLeft::Unknown => None,
            WorkLeft::Known { .. } => Some(slot_ms()),
            WorkLeft::Estimated { .. } => Some(step_end(slot_ms(), self.tuning.guess_step)),
        }
    }
}

/// So many millionths of it.
fn share(whole: u64, micro: u64) -> u64 {
    u64::try_from(u128::from(whole) * u128::from(micro) / u128::from(USED_BEST)).unwrap_or(u64::MAX)
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
    /// How many jobs the growth of a job counts for, by job, in millionths of a job.
    growth: Vec<u64>,
}

impl Ranks {
    fn of(view: &View, ebb: &Ebb) -> Self {
        let per_slot: Vec<f64> = (0..view.jobs.len()).map(|job| best_per_slot(view, job)).collect();
        let jobs = || view.jobs.iter().zip(&per_slot);
        let known: Vec<Option<u64>> = jobs().map(|(of, per_slot)| ebb.known_slot_ms(of, *per_slot)).collect();
        let usual_ms = usual_ms(view, &known);
        let areas = view.jobs.iter().zip(&known);
        let area: Vec<u64> =
            areas.map(|(of, known)| known.unwrap_or_else(|| ebb.unknown_slot_ms(of, usual_ms))).collect();
        let best = per_slot.iter().enumerate().map(|(job, best)| best * view.speeds(job).speed(view.jobs[job].asked()));
        let best: Vec<f64> = best.collect();
        let mut sorted = area.clone();
        sorted.sort_unstable();
        // A job is new for a moment, and grows beside those of which something is known by what is soon known of it.
        let nothing_known = known.iter().all(Option::is_none);
        let mut ranks = Self { area, best, sorted, growth: Vec::new() };
        let growth = |job: usize| match nothing_known {
            true => ranks.growth_micro(view, job),
            false => ranks.weight(ranks.area[job]) * USED_BEST,
        };
        ranks.growth = (0..view.jobs.len()).map(growth).collect();
        ranks
    }

    /// How many jobs have as much left, or more.
    fn weight(&self, area: u64) -> u64 {
        (self.sorted.len() - self.sorted.partition_point(|known| *known < area)) as u64
    }

    /// The same for growth of a job, by the slots that it ends on, in millionths of a job. Work that is done now is time that it need not be on those: by so much it is done earlier
    /// itself, and for so long all who are done after it have its slots too, each its part of all. Of a job that ends on all slots and uses them as well as any it is
    /// [`Self::weight`]. Not for anybody's fewest slots: who arrives would stop who runs.
    fn growth_micro(&self, view: &View, job: usize) -> u64 {
        let of = &view.jobs[job];
        let all: u32 = view.classes.iter().map(|class| class.capacity).sum();
        let (speeds, most) = (view.speeds(job), of.max.min(u16::try_from(all).unwrap_or(u16::MAX)));
        let sizes = std::iter::successors(Some(of.min), |&size| speeds.next_size(size).filter(|&next| next <= most));
        let fastest = sizes.last().unwrap_or(of.min);
        // So many slots, each used best, would be as fast as those that it is fastest on. What it has in the end is between the two: their geometric mean.
        let as_fast = (speeds.speed(fastest) / self.best[job].max(f64::MIN_POSITIVE)).max(1.0);
        let ends_on = (as_fast * f64::from(fastest)).sqrt();
        let later = self.weight(self.area[job]).saturating_sub(1) as f64;
        ((f64::from(all) + later * ends_on) / as_fast * USED_BEST as f64).round() as u64
    }
}

/// The median of what is known, for each slot that a job asked for; 0 if nothing is. The larger of two, so that who is new stops rather nobody.
fn usual_ms(view: &View, known: &[Option<u64>]) -> u64 {
    let of_slot = |(of, area): (&JobView, &Option<u64>)| Some((*area)? / u64::from(of.asked().max(1)));
    let mut of_slots: Vec<u64> = view.jobs.iter().zip(known).filter_map(of_slot).collect();
    of_slots.sort_unstable();
    of_slots.get(of_slots.len() / 2).copied().unwrap_or(0)
}

/// A job's next slots, by what they are worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Step {
    /// Priority, and whether it waited too long; of all growth that of the least important job, which has its fewest slots by their value.
    level: (i32, bool),
    /// Its value; of growth no more than the fewest slots count that it leaves alone.
    turn: u64,
    /// Of equals who gets its fewest slots.
    begins: bool,
    /// In millionths of a job.
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
    /// The level of all growth.
    growth: (i32, bool),
    /// The last turn of a job's fewest slots that growth leaves alone.
    growth_turn: u64,
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
        let value = self.kept(value * self.ebb.tuning.begin_percent / 100, held);
        let level = (of.priority, promoted);
        Step { level, turn: value, begins: true, value, held, has: Reverse(0), job: Reverse(job), to: Reverse(of.min) }
    }

    /// Whether nobody grows by the fewest slots of this job: it runs, or has run and lost its slots, and is not to stand still for hours because others are shorter;
    /// or nothing is known of it, so nothing says that it is the longer one.
    fn is_sure(&self, first: &Step) -> bool {
        let Reverse(job) = first.job;
        let of = &self.view.jobs[job];
        let has_room = || self.view.suiting(job).any(|class| self.view.classes[class].capacity >= u32::from(of.min));
        let begins_anew = of.service.attained_slot_ms > 0 || of.left == WorkLeft::Unknown;
        first.level == self.growth && (first.held || begins_anew && has_room())
    }

    /// What is held counts more.
    fn kept(&self, value: u64, held: bool) -> u64 {
        if held { value * (100 + self.ebb.tuning.moved_percent) / 100 } else { value }
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
        let weight = self.ranks.growth[job];
        let speeds = self.view.speeds(job);
        let sizes = std::iter::successors(speeds.next_size(from), |&size| speeds.next_size(size));
        let sizes = sizes.take_while(|&to| to <= of.max && u32::from(to - from) <= free);
        // For what may be no gain nobody stands still.
        let sizes = sizes.filter(|&to| to <= of.held || !speeds.is_open(of.held, to));
        let step = |to: u16| {
            let held = to <= of.held && of.class == Some(self.allotment.shares[job].class);
            // No better than what came before it, so that a part of a steep stretch is not worth more than all of it.
            let used = self.used_micro(job, from, to).min(self.used[job]);
            let value = self.kept(share(weight, used), held);
            let (has, job, to) = (Reverse(from), Reverse(job), Reverse(to));
            let turn = value.min(self.growth_turn);
            Step { level: self.growth, turn, begins: false, value, held, has, job, to }
        };
        sizes.map(step).max_by_key(|step| (step.value, step.to)).filter(|step| step.value > 0)
    }

    fn give_out(&mut self, promoted: &[bool]) {
        let firsts: Vec<Step> = self.view.places().map(|job| self.first(job, promoted[job])).collect();
        let sure = firsts.iter().filter(|first| self.is_sure(first)).map(|first| first.turn);
        self.growth_turn = sure.min().unwrap_or(u64::MAX);
        let mut heap = BinaryHeap::from(firsts);
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
        let wake_in_ms = self.wake_in_ms(view, &shares, &promoted);
        Plan { shares, moves, wake_in_ms, ..Plan::default() }
    }

    fn packing(&self) -> Packing {
        self.tuning.packing
    }

    fn stride(&self, job: &Batches<'_>, slots: u16) -> Stride {
        job.of_size(slots)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::speeds::{Point, SpeedCurve};
    use super::super::{ClassView, ServiceView, Wait};
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
        assert_eq!(slots(&view(4, &waiting)), [0, 4], "the shorter one uses all of them nearly as well as its first");
        assert_eq!(slots(&view(5, &waiting)), [1, 4]);
        let unknown = [waiting[0], JobView { left: WorkLeft::Unknown, ..waiting[1] }];
        assert_eq!(slots(&view(4, &unknown)), [2, 2], "of whom nothing is known is not said to be longer");
        let had = |job: JobView| JobView { service: ServiceView { attained_slot_ms: 1, ..job.service }, ..job };
        assert_eq!(slots(&view(4, &[had(waiting[0]), waiting[1]])), [2, 2], "who ran and lost its slots goes on");
        let equal = waiting.map(|job| left(60, job));
        assert_eq!(slots(&view(4, &equal)), [2, 2], "among equals nobody grows while another could begin");
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
    fn of_whom_nothing_is_known_who_never_gets_large_has_its_few_slots() {
        let linear = SpeedCurve::new((1..=16).map(|slots| (slots, u64::from(slots) * 1_000_000)).collect()).unwrap();
        let first_beside = |other: JobView, old: JobView| {
            let jobs = [old, other, other, other].map(|job| JobView { curve: Some(0), ..job });
            slots(&View { curves: vec![linear.clone()], ..view(16, &jobs) })[0]
        };
        // It had far more than the others. On two slots it counts for eight jobs, where each of them counts for two and waits for four.
        let other = job(1, 8, 1);
        assert_eq!(first_beside(other, attained(40_000, job(1, 2, 1))), 2);
        let large = attained(40_000, job(1, 16, 1));
        assert_eq!(first_beside(other, large), 1, "it can make up for that when the others are done");
        assert_eq!(first_beside(left(60, other), left(6_000, job(1, 2, 1))), 1, "it is known to be the longest");
        assert_eq!(first_beside(left(60, other), attained(40_000, job(1, 2, 1))), 1, "the others' work is known");
    }

    #[test]
    fn of_whom_nothing_is_known_who_ends_on_slots_that_it_uses_badly_is_worth_hurrying() {
        // Eight slots are as good as two, so it ends on about four, and what two would do frees those.
        let bent = (1..).zip([100, 135, 150, 160, 170, 180, 190, 200]).map(|(slots, speed)| (slots, speed * 10_000));
        let straight = (1..=16).map(|slots| (slots, u64::from(slots) * 1_000_000));
        let curves = [bent.collect(), straight.collect()].map(|points| SpeedCurve::new(points).unwrap()).to_vec();
        let other = JobView { curve: Some(1), ..job(1, 16, 1) };
        let jobs = [JobView { curve: Some(0), ..job(1, 8, 1) }, other, other, other];
        assert_eq!(slots(&View { curves: curves.clone(), ..view(16, &jobs) })[0], 2);
        let known = jobs.map(|job| left(60, job));
        assert_eq!(slots(&View { curves, ..view(16, &known) })[0], 1);
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
        // Twelve jobs twice as fast on two slots, and one slot over: of the two shortest the second has it, for whom 11 wait, and not the first, for whom 12 do.
        let linear = SpeedCurve::new(vec![(1, 1_000_000), (2, 2_000_000)]).unwrap();
        let jobs: Vec<JobView> = (0..12).map(|n| JobView { curve: Some(0), ..left(100 + n, job(1, 2, 1)) }).collect();
        let mut crossed = View { curves: vec![linear], ..view(13, &jobs) };
        crossed.jobs[1].held = 2;
        let second = |moved_percent| {
            let ebb = Ebb::new(Tuning { moved_percent, ..Tuning::default() });
            ebb.plan(&crossed).shares[..3].iter().map(|share| share.slots).collect::<Vec<_>>()
        };
        assert_eq!((second(20), second(0)), (vec![1, 2, 1], vec![2, 1, 1]));
        crossed.jobs[1].held = 1;
        crossed.jobs[2].held = 2;
        assert_eq!(slots(&crossed)[..3], [1, 1, 2], "for whom 10 wait, it is just worth as much");
    }

    #[test]
    fn what_may_be_no_gain_moves_nobody_and_is_kept_from_nobody() {
        let point = |slots, micro| Point { slots, micro, error_micro: Some(30_000) };
        let curves = [[point(1, 1_000_000), point(2, 1_020_000)], [point(1, 1_020_000), point(2, 1_000_000)]];
        let curves = curves.map(|points| SpeedCurve::of(points.to_vec()).unwrap()).to_vec();
        let of = |curve, held, others: &[JobView]| {
            let jobs = [&[JobView { curve: Some(curve), ..job(1, 2, held) }], others].concat();
            slots(&View { curves: curves.clone(), ..view(2, &jobs) })
        };
        assert_eq!([0, 1, 2].map(|held| of(0, held, &[])[0]), [2, 1, 2]);
        assert_eq!([0, 1, 2].map(|held| of(1, held, &[])[0]), [1, 1, 2]);
        assert_eq!([0, 1].map(|curve| of(curve, 2, &[job(1, 1, 0)])), [[1, 1], [1, 1]]);
    }

    #[test]
    fn that_nothing_is_known_of_a_job_does_not_make_it_short() {
        let estimated = |hours: u64, job: JobView| {
            let (total_ms, done_ms, sigma_milli) = (hours * 3_600_000, 0, 500);
            JobView { left: WorkLeft::Estimated { total_ms, done_ms, sigma_milli }, ..job }
        };
        assert_eq!(
            slots(&view(8, &[estimated(100, job(8, 8, 8)), job(8, 8, 0)])),
            [8, 0],
            "an equal gang has just come"
        );
        assert_eq!(slots(&view(1, &[estimated(1_000, job(1, 4, 1)), job(1, 4, 0)])), [1, 0]);
        let short =
            [estimated(100, job(8, 8, 8)), estimated(1, job(8, 8, 0)), estimated(2, job(8, 8, 0)), job(8, 8, 0)];
        assert_eq!(slots(&view(8, &short)), [0, 8, 0, 0]);
        let usual =
            [estimated(100, job(8, 8, 8)), job(8, 8, 0), estimated(1, job(1, 1, 1)), estimated(2, job(1, 1, 1))];
        assert_eq!(slots(&view(10, &usual)), [0, 8, 1, 1], "most are known to be far shorter");
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
        let class = |device| ClassView { capacity: 2, declared: 2, device, ..ClassView::default() };
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
