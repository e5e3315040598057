//! `ibm-dp`: as many jobs as can be, and among them the slots so that the sum of their speeds is the largest (Saxena et al., "Effective Elastic
//! Scaling of Deep Learning Workloads", §III).
//!
//! - *Job scalability analyzer* (§III-B): how many times as fast as on one slot a job is on each number of them, 𝒯_j(k). Of the view it is the
//!   measured curve, and without one what is assumed of its logical workers; how measurements of steps and exchanges, and the choice of a
//!   batch, become such a curve is in [`super::scalability`]. Live the batch of a job with a range follows from what was measured of it ([`super::stride`]).
//! - *Optimizer* (§III-C): sizes between each job's fewest and most with the largest sum of 𝒯, by dynamic programming ([`super::optimizer`]).
//! - *Autoscaler* (§III-D, figure 4): who runs stays; of who waits one after the other is admitted, in the order of arrival, until the optimizer
//!   says infeasible. It says so when there are fewer slots than everybody's fewest, so this is what is counted, and the table is filled
//!   once. (The printed loop goes on behind a job that does not fit, and skips one behind a job that does.) Who is not admitted waits, or is
//!   dropped ([`Unfit`]); where jobs are dropped each is tried, because nobody can be overtaken who does not wait.
//! - *Δ* (§V-B): decided is every Δ, live ten minutes, about who had come by then; with 0 every arrival and end has its own decision, as in the
//!   paper's simulator (§III-E). A decision is carried out bit by bit, because slots have to be left before others get them, so it is made
//!   anew from the same arrivals for as long as that takes ([`CARRIED_OUT_MS`]). Then who runs keeps what it has until the next one; what a
//!   fleet takes goes at once all the same, and who lost all its slots goes on with what is idle.
//!
//! What the paper leaves open, or Ebb adds. *Kinds of slots*: a job is admitted to the kind with most room, and each kind is optimized by
//! itself. *Priority*: higher goes first at admission, also before who runs. *Fewest*: the paper's is one slot. *A job that cannot be measured
//! on one slot* is taken to be as fast there as its fewest slots are each. *Who ran and lost its slots* is no arrival: it is never dropped.

use super::optimizer::{self, Options, optimize_asking};
use super::stride::Batches;
use super::{Gangs, JobView, Plan, Policy, Share, View, Wait, service_order};
use crate::limits::PLAN_LEAVE_MS;
use events_schema::stride::Stride;

/// Δ of the live controller (§V-B: "10-15 minutes seems to be a good value").
pub const DELTA_MS: u64 = 600_000;
/// How long after its moment a decision is made anew: whoever has to leave a slot for it has left by its deadline, and a quarter of that for the
/// slots to be given to others.
pub const CARRIED_OUT_MS: u64 = PLAN_LEAVE_MS + PLAN_LEAVE_MS / 4;

/// What becomes of jobs that there is no room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfit {
    /// They wait, and nobody behind them starts before them.
    Wait,
    /// They are rejected, if they never ran.
    AreDropped,
}

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IbmDp {
    delta_ms: u64,
    unfit: Unfit,
    /// Its moments are multiples of Δ on a clock that is so far ahead of what views say, in ms.
    clock_ahead_ms: u64,
}

impl Default for IbmDp {
    fn default() -> Self {
        Self::new(DELTA_MS, Unfit::Wait)
    }
}

impl IbmDp {
    /// With another Δ in ms, 0 for none, and with a queue or without.
    #[must_use]
    pub fn new(delta_ms: u64, unfit: Unfit) -> Self {
        Self { delta_ms, unfit, clock_ahead_ms: 0 }
    }

    /// The same, whose moments are those of a clock that is so far ahead of what views say.
    #[must_use]
    pub fn on_clock(self, ahead_ms: u64) -> Self {
        Self { clock_ahead_ms: ahead_ms, ..self }
    }

    /// How long ago the moment of the last decision was.
    fn decided_ms_ago(&self, view: &View) -> u64 {
        view.now_ms.saturating_add(self.clock_ahead_ms).checked_rem(self.delta_ms).unwrap_or(0)
    }

    /// Whether nothing is decided now, because the last decision is carried out and everybody can keep what it has.
    fn rests(&self, view: &View) -> bool {
        let in_bounds = |job: &JobView| job.held == 0 || (job.min..=job.max).contains(&job.held);
        self.decided_ms_ago(view) >= CARRIED_OUT_MS && view.jobs.iter().all(in_bounds) && fits(view)
    }

    /// Whether a job is one that is decided about: it runs or has run, or had come by the moment of the decision.
    fn concerns(&self, view: &View, job: usize) -> bool {
        let of = &view.jobs[job];
        of.held > 0 || of.numeric.is_some() || of.service.waited_ms >= self.decided_ms_ago(view)
    }

    /// Everybody's fewest, in order of priority, of who runs, and of arrival; and who waits.
    fn admitted(&self, view: &View) -> Vec<Share> {
        let mut gangs = Gangs::new(view);
        let mut shares = vec![Share::default(); view.jobs.len()];
        let order = service_order(view);
        for peers in order.chunk_by(|&a, &b| view.jobs[a].priority == view.jobs[b].priority) {
            let mut arrived = Vec::new();
            for &index in peers {
                let job = &view.jobs[index];
                match job.class.filter(|&class| job.held > 0 && gangs.keep(class, job.min)) {
                    Some(class) => shares[index] = Share { class, slots: job.min, waits: None },
                    None => arrived.push(index),
                }
            }
            arrived.sort_unstable();
            for index in arrived {
                let job = &view.jobs[index];
                shares[index] = if self.concerns(view, index) { gangs.start(index, job.min) } else { waits(job) };
                if self.unfit == Unfit::AreDropped {
                    gangs.forget_who_waits();
                }
            }
        }
        shares
    }

    fn rejections(&self, view: &View, shares: &[Share]) -> Vec<usize> {
        let never_ran = |job: usize| {
            let of = &view.jobs[job];
            of.held == 0 && of.numeric.is_none() && of.service.attained_slot_ms == 0
        };
        let dropped = |job: &usize| shares[*job].slots == 0 && never_ran(*job) && self.concerns(view, *job);
        let anybody = 0..if self.unfit == Unfit::AreDropped { shares.len() } else { 0 };
        anybody.filter(dropped).collect()
    }
}

/// A share of who has to wait for the next decision.
fn waits(job: &JobView) -> Share {
    Share { waits: Some(Wait::Slots(u32::from(job.min))), ..Share::default() }
}

/// Everybody has what it has, and who ran before has its fewest of what is left.
fn unchanged(view: &View) -> Vec<Share> {
    let mut gangs = Gangs::new(view);
    let mut shares: Vec<Share> = view.jobs.iter().map(waits).collect();
    for (job, share) in view.jobs.iter().zip(&mut shares) {
        if let Some(class) = job.class.filter(|&class| job.held > 0 && gangs.keep(class, job.held)) {
            *share = Share { class, slots: job.held, waits: None };
        }
    }
    for index in service_order(view) {
        if shares[index].slots == 0 && view.jobs[index].numeric.is_some() {
            shares[index] = gangs.start(index, view.jobs[index].min);
        }
    }
    shares
}

/// Whether everybody can keep what it has.
fn fits(view: &View) -> bool {
    let mut gangs = Gangs::new(view);
    let mut holders = view.jobs.iter().filter(|job| job.held > 0);
    holders.all(|job| job.class.is_some_and(|class| gangs.keep(class, job.held)))
}

/// The throughput scaling factors of a job by size (equation 1), in millionths: sizes from its fewest on of which each is faster than the one
/// before.
fn factors(view: &View, job: usize) -> Options {
    let (of, speeds) = (&view.jobs[job], view.speeds(job));
    let alone = speeds.speed(1);
    let alone = if alone > 0.0 { alone } else { speeds.speed(of.min) / f64::from(of.min.max(1)) };
    let factor = |size: u16| if alone > 0.0 { (speeds.speed(size) / alone * 1e6).round() as u64 } else { 0 };
    let mut sizes = vec![(of.min.max(1), factor(of.min))];
    let larger = std::iter::successors(speeds.next_size(of.min), |&size| speeds.next_size(size));
    for (size, factor) in larger.take_while(|size| *size <= of.max).map(|size| (size, factor(size))) {
        // Two sizes may be one in millionths.
        if sizes.last().is_some_and(|&(last, before)| size > last && factor > before) {
            sizes.push((size, factor));
        }
    }
    Options::new(sizes).unwrap_or_default()
}

/// Shares out the slots of a kind among those who were admitted to it.
fn scale(view: &View, class: usize, shares: &mut [Share]) {
    let admitted: Vec<usize> =
        (0..shares.len()).filter(|&job| shares[job].slots > 0 && shares[job].class == class).collect();
    let options: Vec<Options> = admitted.iter().map(|&job| factors(view, job)).collect();
    let capacity = view.classes[class].capacity;
    view.effort.spend(optimizer::steps(&options, capacity));
    // It was counted at admission that this is feasible.
    let Some(sizes) = optimize_asking(&options, capacity, || view.effort.ask()) else { return };
    for (job, size) in admitted.into_iter().zip(sizes) {
        shares[job].slots = size;
    }
}

impl Policy for IbmDp {
    fn name(&self) -> &'static str {
        match self.unfit {
            Unfit::Wait => "ibm-dp",
            Unfit::AreDropped => "ibm-dp-drop",
        }
    }

    fn plan(&self, view: &View) -> Plan {
        let next_ms = (self.delta_ms > 0).then(|| self.delta_ms - self.decided_ms_ago(view));
        if self.rests(view) {
            return Plan { shares: unchanged(view), wake_in_ms: next_ms, ..Plan::default() };
        }
        let mut shares = self.admitted(view);
        let rejections = self.rejections(view, &shares);
        (0..view.classes.len()).for_each(|class| scale(view, class, &mut shares));
        Plan { shares, rejections, wake_in_ms: next_ms, ..Plan::default() }
    }

    fn guarantees(&self, view: &View) -> Vec<Share> {
        self.admitted(view)
    }

    fn stride(&self, job: &Batches<'_>, slots: u16) -> Stride {
        job.fastest(slots)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::speeds::SpeedCurve;
    use super::super::{ClassView, ServiceView};
    use super::*;

    /// The factors of table II, and of a job that is bound by its exchanges.
    fn curves() -> Vec<SpeedCurve> {
        [vec![(1, 1_000_000), (2, 1_660_000), (3, 1_380_000), (5, 2_080_000)], vec![(1, 500_000), (2, 550_000)]]
            .map(|points| SpeedCurve::new(points).unwrap())
            .to_vec()
    }

    fn job(curve: usize, held: u16) -> JobView {
        let class = (held > 0).then_some(0);
        let max = if curve == 0 { 5 } else { 2 };
        JobView { min: 1, max, held, class, numeric: class, curve: Some(curve), ..JobView::default() }
    }

    fn view(capacity: u32, jobs: &[JobView]) -> View {
        let classes = vec![ClassView { capacity, declared: capacity, ..ClassView::default() }];
        View { classes, jobs: jobs.to_vec(), curves: curves(), ..View::default() }
    }

    fn slots(policy: &IbmDp, view: &View) -> Vec<u16> {
        policy.plan(view).shares.iter().map(|share| share.slots).collect()
    }

    const AT_ONCE: IbmDp = IbmDp { delta_ms: 0, unfit: Unfit::Wait, clock_ahead_ms: 0 };
    const DROPPING: IbmDp = IbmDp { unfit: Unfit::AreDropped, ..AT_ONCE };

    #[test]
    fn slots_go_where_the_sum_of_factors_is_largest() {
        // Factors, not speeds: the second job makes half as many steps, and its second slot is worth a tenth to it.
        assert_eq!(slots(&AT_ONCE, &view(3, &[job(0, 1), job(1, 1)])), [2, 1]);
        assert_eq!(slots(&AT_ONCE, &view(4, &[job(0, 1), job(1, 1)])), [2, 2]);
        // Three slots are slower than two, so nobody has them; with six 2.08 + 1 are more than 1.66 + 1.1.
        assert_eq!(slots(&AT_ONCE, &view(6, &[job(0, 2), job(1, 2)])), [5, 1]);
    }

    #[test]
    fn arrivals_are_admitted_one_by_one_until_it_is_infeasible() {
        let wide = JobView { min: 3, max: 5, ..job(0, 0) };
        // Who runs gives slots up for who comes, and nobody starts behind one that does not fit.
        assert_eq!(slots(&AT_ONCE, &view(3, &[job(0, 2), job(1, 0), job(1, 0), job(1, 0)])), [1, 1, 1, 0]);
        assert_eq!(slots(&AT_ONCE, &view(3, &[job(0, 2), wide, job(1, 0)])), [2, 0, 0]);
        let plan = AT_ONCE.plan(&view(3, &[job(0, 2), wide, job(1, 0)]));
        let waits: Vec<_> = plan.shares.iter().map(|share| share.waits).collect();
        assert_eq!(waits, [None, Some(Wait::Slots(1)), Some(Wait::Behind(1))]);
        assert!(plan.rejections.is_empty());
    }

    #[test]
    fn without_a_queue_who_does_not_fit_is_dropped_and_others_are_tried() {
        let wide = JobView { min: 3, max: 5, ..job(0, 0) };
        let plan = DROPPING.plan(&view(3, &[job(0, 2), wide, job(1, 0)]));
        assert_eq!(plan.rejections, [1]);
        assert_eq!(slots(&DROPPING, &view(3, &[job(0, 2), wide, job(1, 0)])), [2, 0, 1]);
        // Who ran before has lost its slots to a fleet, and not come too late.
        let service = ServiceView { attained_slot_ms: 1, ..ServiceView::default() };
        assert!(DROPPING.plan(&view(2, &[job(0, 2), JobView { service, ..wide }])).rejections.is_empty());
    }

    /// A job that has waited so long.
    fn waiting(waited_ms: u64) -> JobView {
        JobView { service: ServiceView { waited_ms, ..ServiceView::default() }, ..job(1, 0) }
    }

    #[test]
    fn every_delta_is_decided_about_who_had_come_by_then() {
        let policy = IbmDp::new(600_000, Unfit::AreDropped);
        let at = |now_ms, jobs: &[JobView]| View { now_ms, ..view(3, jobs) };
        let jobs = [job(0, 2), waiting(10_000), waiting(9_999)];
        // Ten seconds after the moment: the second had come by then, the third comes to the next one.
        let plan = policy.plan(&at(1_210_000, &jobs));
        assert_eq!(plan.shares.iter().map(|share| share.slots).collect::<Vec<_>>(), [2, 1, 0]);
        assert_eq!((plan.wake_in_ms, plan.rejections), (Some(590_000), vec![]));
        assert_eq!(slots(&policy, &at(1_200_000, &jobs)), [1, 1, 1]);
        // Once it is carried out nobody starts and nobody is resized,
        let later = policy.plan(&at(1_200_000 + CARRIED_OUT_MS, &jobs));
        assert_eq!(later.shares.iter().map(|share| share.slots).collect::<Vec<_>>(), [2, 0, 0]);
        assert_eq!(later.wake_in_ms, Some(600_000 - CARRIED_OUT_MS));
        // but for who lost all its slots, and unless slots are gone.
        let lost = JobView { numeric: Some(0), ..waiting(0) };
        assert_eq!(slots(&policy, &at(1_500_000, &[job(0, 2), lost])), [2, 1]);
        assert_eq!(slots(&policy, &View { now_ms: 1_500_000, ..view(1, &[job(0, 2)]) }), [1]);
    }

    #[test]
    fn its_moments_are_those_of_another_clock_if_it_is_told_of_one() {
        let at = |now_ms| View { now_ms, ..view(3, &[job(0, 2), job(0, 1)]) };
        let ahead = IbmDp::default().on_clock(1_795_970_788_670);
        for now_ms in [0, 1_000, 211_330, 599_999, 86_400_001] {
            let (here, there) = (ahead.plan(&at(now_ms)), IbmDp::default().plan(&at(1_795_970_788_670 + now_ms)));
            assert_eq!(here, there, "{now_ms}");
        }
    }

    #[test]
    fn a_job_that_was_never_on_one_slot_is_measured_by_its_fewest() {
        let wide = JobView { min: 2, max: 4, curve: None, ..job(0, 0) };
        let mut view = view(4, &[wide]);
        view.curves = vec![SpeedCurve::new(vec![(2, 3_000_000), (4, 4_500_000)]).unwrap()];
        view.jobs[0].curve = Some(0);
        assert_eq!(factors(&view, 0), Options::new(vec![(2, 2_000_000), (3, 2_500_000), (4, 3_000_000)]).unwrap());
    }
}
