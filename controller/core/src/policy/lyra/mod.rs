//! `lyra`: a job is its base demand, which waits, and its flexible demand, which makes it faster (Li et al., EuroSys 2023).
//!
//! 1. *Base demand*, a job's fewest slots, is all or nothing. Whoever has it keeps it; those that wait get it by shortest job first, and one that does not
//!    fit is passed over. Flexible demand is no obstacle to it: that is scaled in.
//! 2. *Flexible demand* gets what is left: a multiple-choice knapsack (`knapsack.rs`, solved exactly) of which every job is a group, every larger size
//!    an item that weighs the slots beyond its fewest and is worth the running time that they save.
//! 3. *Placement* is best fit decreasing, base demand on what fleets do not need themselves and flexible demand on what they may want back
//!    (`Packing::BestFitApart`).
//! 4. *Reclaiming* scales in first, then empties the servers whose jobs are spread over most others (`Victims::Servers`).
//!
//! What the slides leave open. *How long a job is* follows from its work left on its fewest slots; of one of which nobody knows anything it is taken to be
//! [`UNKNOWN_MS`] on the slots that it asked for. *Speeds* are those of the view instead of straight lines; where they are straight it is the same. *Priority* goes
//! before length and before what is saved. A job *resized a moment ago* keeps its size while there is room, because lengths change with every
//! step, and each change of size is a pause.
//!
//! Not here: workers of several slots, because the view does not have them (a slot is a worker; `sizes` could do more), and jobs on slots of several types at once. A job
//! can use every type before it has run and one from then on, so all jobs are fungible in that sense and none is heterogeneous.

pub(crate) mod knapsack;

use super::{JobView, Packing, Plan, Policy, Share, Victims, View, Wait, WorkLeft};
use knapsack::{Group, Item, choose};
use std::cmp::Reverse;

/// How long a job takes of which nobody knows it: an hour, between the minutes of most jobs and the days of those that fill a cluster.
pub const UNKNOWN_MS: u64 = 3_600_000;
/// What is left of a job that took longer than was guessed, as a part of the guess.
const OVERDUE_PART: u64 = 10;

/// See the module.
pub struct Lyra;

impl Policy for Lyra {
    fn name(&self) -> &'static str {
        "lyra"
    }

    fn plan(&self, view: &View) -> Plan {
        let (mut shares, mut pool) = base_demand(view);
        flexible_demand(view, &mut shares, &mut pool);
        Plan { shares, ..Plan::default() }
    }

    fn guarantees(&self, view: &View) -> Vec<Share> {
        base_demand(view).0
    }

    fn packing(&self) -> Packing {
        Packing::BestFitApart
    }

    fn victims(&self) -> Victims {
        Victims::Servers
    }
}

/// Phase 1, and what it leaves of each class.
fn base_demand(view: &View) -> (Vec<Share>, Vec<u32>) {
    let mut pool: Vec<u32> = view.classes.iter().map(|class| class.capacity).collect();
    let mut shares = vec![Share::default(); view.jobs.len()];
    let length_ms = |job: usize| time_ms(view, job, view.jobs[job].min).unwrap_or(u64::MAX);
    let sort = |jobs: &mut Vec<usize>| {
        jobs.sort_by_cached_key(|&job| (Reverse(view.jobs[job].priority), length_ms(job), job));
    };
    let class_of = |job: usize| view.jobs[job].class.filter(|_| view.jobs[job].held > 0);
    let (mut holding, mut waiting): (Vec<usize>, Vec<usize>) =
        (0..view.jobs.len()).partition(|&job| class_of(job).is_some());
    let mut wanted = vec![0u64; pool.len()];
    for &job in &holding {
        class_of(job).into_iter().for_each(|class| wanted[class] += u64::from(view.jobs[job].min));
    }
    // Where there is room for all of them, which is nearly always, none comes first.
    if wanted.iter().zip(&pool).any(|(wanted, room)| *wanted > u64::from(*room)) {
        sort(&mut holding);
    }
    for job in holding {
        let slots = view.jobs[job].min;
        match class_of(job).filter(|class| pool[*class] >= u32::from(slots)) {
            Some(class) => {
                pool[class] -= u32::from(slots);
                shares[job] = Share { class, slots, waits: None };
            }
            None => waiting.push(job),
        }
    }
    sort(&mut waiting);
    for job in waiting {
        shares[job] = start(view, job, &mut pool);
    }
    (shares, pool)
}

/// The fewest slots of a job that waits, of the class with most room.
fn start(view: &View, job: usize, pool: &mut [u32]) -> Share {
    let slots = view.jobs[job].min;
    let Some(class) = view.roomiest(view.suiting(job), pool, slots) else {
        let most = view.suiting(job).map(|class| pool[class]).max().unwrap_or(0);
        let missing = u32::from(slots).saturating_sub(most).max(1);
        return Share { waits: Some(Wait::Slots(missing)), ..Share::default() };
    };
    pool[class] -= u32::from(slots);
    Share { class, slots, waits: None }
}

/// Phase 2: slots beyond the fewest, by class, for the most important jobs first.
fn flexible_demand(view: &View, shares: &mut [Share], pool: &mut [u32]) {
    for (class, pool) in pool.iter_mut().enumerate() {
        let is_flexible = |job: &usize| {
            let share = &shares[*job];
            share.slots > 0 && share.class == class && view.jobs[*job].max > share.slots
        };
        let mut jobs: Vec<usize> = (0..shares.len()).filter(is_flexible).collect();
        jobs.sort_by_key(|&job| Reverse(view.jobs[job].priority));
        for peers in jobs.chunk_by(|&a, &b| view.jobs[a].priority == view.jobs[b].priority) {
            let rests = |job: &usize| view.jobs[*job].held > 0 && !view.jobs[*job].settled;
            let resting = peers.iter().copied().filter(|job| rests(job));
            let kept = resting.map(|job| u32::from(more(&view.jobs[job]))).sum::<u32>();
            let fits = kept <= *pool;
            let (resting, moving): (Vec<usize>, Vec<usize>) = peers.iter().copied().partition(|job| fits && rests(job));
            for job in resting {
                shares[job].slots += more(&view.jobs[job]);
            }
            *pool -= if fits { kept } else { 0 };
            let groups: Vec<Group> = moving.iter().map(|&job| group(view, job)).collect();
            for (&job, slots) in moving.iter().zip(choose(&groups, *pool)) {
                *pool -= slots;
                shares[job].slots += slots as u16;
            }
        }
    }
}

/// Slots that a job has beyond its fewest.
fn more(job: &JobView) -> u16 {
    job.held.min(job.max).saturating_sub(job.min)
}

fn group(view: &View, job: usize) -> Group {
    let known = &view.jobs[job];
    Group { items: sizes(known.min..=known.max, 1, |slots| time_ms(view, job, slots)), present: more(known).into() }
}

/// The larger sizes of a job, by workers of so many slots: what they weigh beyond the fewest, and what time they save.
fn sizes(workers: std::ops::RangeInclusive<u16>, slots: u32, time_ms: impl Fn(u16) -> Option<u64>) -> Vec<Item> {
    let fewest = *workers.start();
    let Some(longest) = time_ms(fewest) else { return Vec::new() };
    let item = |workers: u16| {
        let saved = longest.checked_sub(time_ms(workers)?).filter(|saved| *saved > 0)?;
        Some(Item { weight: u32::from(workers - fewest) * slots, value: saved })
    };
    workers.skip(1).filter_map(item).collect()
}

/// How long a job still takes on so many slots; none where its speed there is not known.
fn time_ms(view: &View, job: usize, slots: u16) -> Option<u64> {
    let known = &view.jobs[job];
    let left = match known.left {
        WorkLeft::Unknown => UNKNOWN_MS,
        WorkLeft::Known { ms } => ms,
        WorkLeft::Estimated { total_ms, done_ms, .. } => total_ms.saturating_sub(done_ms).max(total_ms / OVERDUE_PART),
    };
    let speeds = view.speeds(job);
    let (asked, speed) = (speeds.speed(known.asked()), speeds.speed(slots));
    // Times beyond these are of no job, and their sums have to stay small.
    let ms = left as f64 * asked / speed;
    (speed > 0.0 && asked > 0.0).then(|| ms.min(1e15).round() as u64)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::ClassView;
    use super::super::speeds::SpeedCurve;
    use super::*;

    /// A job of the slides: "training throughput scales linearly within [w_min, w_max]", so many seconds on its most workers.
    fn job(min: u16, max: u16, held: u16, fastest_s: u64) -> JobView {
        let left = WorkLeft::Known { ms: fastest_s * 1_000 };
        let class = (held > 0).then_some(0);
        let curve = Some(0);
        JobView { min, max, held, left, class, numeric: class, curve, settled: true, ..JobView::default() }
    }

    fn view(capacity: u32, jobs: &[JobView]) -> View {
        let linear = SpeedCurve::new(vec![(1, 1_000_000), (64, 64_000_000)]).unwrap();
        let classes = vec![ClassView { capacity, declared: capacity, ..ClassView::default() }];
        View { classes, jobs: jobs.to_vec(), curves: vec![linear], ..View::default() }
    }

    fn slots(view: &View) -> Vec<u16> {
        Lyra.plan(view).shares.iter().map(|share| share.slots).collect()
    }

    /// When both jobs are done, in ms, if they begin with so many workers on eight GPUs and the policy shares them out when one has ended.
    fn completions(max: [u16; 2], fastest_s: [u64; 2], initial: [u16; 2]) -> [u64; 2] {
        let work_ms = |job: usize| u64::from(max[job]) * fastest_s[job] * 1_000;
        let alone = |job: usize| work_ms(job) / u64::from(initial[job]);
        let (first, last) = if alone(0) <= alone(1) { (0, 1) } else { (1, 0) };
        let done = alone(first) * u64::from(initial[last]);
        let left_ms = work_ms(last) - done;
        let left = WorkLeft::Known { ms: left_ms / u64::from(max[last]) };
        let alone_view = view(8, &[JobView { left, ..job(2, max[last], initial[last], 0) }]);
        let grown = u64::from(slots(&alone_view)[0]);
        let mut ends = [0; 2];
        (ends[first], ends[last]) = (alone(first), alone(first) + (left_ms as f64 / grown as f64).round() as u64);
        ends
    }

    /// The first table: eight GPUs, both jobs from 2 to 6 workers, 50 and 20 s at their fastest.
    #[test]
    fn of_two_alike_jobs_the_short_one_is_better_served_first() {
        let both = |initial| completions([6, 6], [50, 20], initial);
        assert_eq!(both([6, 2]), [50_000, 53_333]);
        assert_eq!(both([2, 6]), [63_333, 20_000]);
        assert_eq!(both([4, 4]), [60_000, 30_000]);
    }

    /// The second table: A has 3 workers at most, and 100 s at its fastest. "Shortest-job-first does not always work for elastic training jobs."
    #[test]
    fn where_the_long_job_cannot_use_much_it_is_better_served_first_and_the_policy_does_so() {
        let both = |initial| completions([3, 6], [100, 20], initial);
        assert_eq!(both([3, 5]), [100_000, 24_000]);
        assert_eq!(both([2, 6]), [106_667, 20_000]);
        assert_eq!(slots(&view(8, &[job(2, 3, 0, 100), job(2, 6, 0, 20)])), [3, 5]);
    }

    /// The third table: workers of A have two GPUs each, those of B one.
    #[test]
    fn flexible_demand_is_worth_the_running_time_that_it_saves() {
        let jobs = view(8, &[job(2, 3, 0, 100), job(2, 6, 0, 20)]);
        let items = |job: usize, slots| {
            let known = &jobs.jobs[job];
            sizes(known.min..=known.max, slots, |workers| time_ms(&jobs, job, workers))
        };
        let found = |items: &[Item]| items.iter().map(|item| (item.weight, item.value)).collect::<Vec<_>>();
        let (a, b) = (items(0, 2), items(1, 1));
        assert_eq!((time_ms(&jobs, 0, 2), time_ms(&jobs, 0, 3)), (Some(150_000), Some(100_000)));
        assert_eq!(found(&a), [(2, 50_000)]);
        assert_eq!(found(&b), [(1, 20_000), (2, 30_000), (3, 36_000), (4, 40_000)]);
        // Two GPUs are left on eight, when both have their base demand.
        let groups = [Group { items: a, present: 0 }, Group { items: b, present: 0 }];
        assert_eq!((choose(&groups, 2), choose(&groups, 1), choose(&groups, 4)), (vec![2, 0], vec![0, 1], vec![2, 2]));
    }

    #[test]
    fn base_demand_goes_to_the_shortest_job_first_and_who_does_not_fit_is_passed_over() {
        let waiting = [job(4, 4, 0, 50), job(4, 4, 0, 20), job(2, 2, 0, 30), job(1, 1, 0, 10)];
        assert_eq!(slots(&view(6, &waiting)), [0, 4, 0, 1]);
        let plan = Lyra.plan(&view(6, &waiting));
        assert_eq!(plan.shares[0].waits, Some(Wait::Slots(3)));
        let urgent = JobView { priority: 1, ..waiting[0] };
        assert_eq!(slots(&view(6, &[urgent, waiting[1], waiting[2]])), [4, 0, 2]);
    }

    #[test]
    fn flexible_demand_gives_way_to_base_demand_and_base_demand_to_nobody() {
        let long = job(2, 6, 6, 500);
        assert_eq!(slots(&view(6, &[long, job(4, 4, 0, 20)])), [2, 4]);
        assert_eq!(
            slots(&view(6, &[long, job(5, 5, 0, 20)])),
            [6, 0],
            "its base demand stays, and what nobody else can use"
        );
        let urgent = JobView { priority: 1, ..job(5, 5, 0, 20) };
        assert_eq!(slots(&view(6, &[long, urgent])), [6, 0]);
    }

    #[test]
    fn who_was_resized_a_moment_ago_keeps_its_size_while_there_is_room() {
        let fresh = JobView { settled: false, ..job(2, 6, 6, 20) };
        assert_eq!(slots(&view(8, &[fresh, job(2, 6, 2, 500)])), [6, 2]);
        let both = [JobView { settled: true, ..fresh }, job(2, 6, 2, 500)];
        assert_eq!(slots(&view(8, &both)), [2, 6]);
        assert_eq!(slots(&view(8, &[fresh, job(2, 6, 2, 500), job(2, 2, 0, 9)])), [2, 4, 2], "there is none");
    }

    #[test]
    fn a_job_that_nobody_knows_is_as_long_as_an_hour() {
        let unknown = JobView { left: WorkLeft::Unknown, ..job(4, 4, 0, 0) };
        assert_eq!(slots(&view(4, &[unknown, job(4, 4, 0, 3_601)])), [4, 0]);
        assert_eq!(slots(&view(4, &[unknown, job(4, 4, 0, 3_599)])), [0, 4]);
        let overdue = WorkLeft::Estimated { total_ms: 50_000_000, done_ms: 60_000_000, sigma_milli: 500 };
        let overdue = JobView { left: overdue, ..unknown };
        assert_eq!(slots(&view(4, &[overdue, unknown])), [0, 4], "five thousand seconds of it are left");
    }
}
