//! `easyscale`: jobs take free devices opportunistically, those first that become faster by most per device (EasyScale §3.4, §5.2).
//!
//! *Intra-job* ([`configuration`]): a job's logical workers stay what they are, whatever it runs on, so sizes at which the fullest device has as many
//! of them as before are of no use, and those that waste more than 30 % are ruled out. Of its sizes each proposes the next one that is faster.
//! *Inter-job* (algorithm 1): proposals are approved by their speed-up per device, of equals the one of more devices, in rounds, until none can be met.
//! *Fall-back*: who is not faster than on fewer slots, as measured, goes back to those, and lets the others go.
//! Jobs begin in the order of their arrival, each with its fewest slots (minP), and nobody overtakes.
//!
//! What the paper leaves open. *An arrival that finds no room*: what others have beyond their fewest is not theirs, so it goes to the arrival's
//! fewest, from those who lose least per slot; in the paper's experiment minP is 0, so nobody is sure of anything. *Types*: a job's proposals are for
//! the kind that it is on, the paper's *EasyScale homo*, unless its spec says `types: any`: then for every type of its numeric class, *EasyScale heter* (`mixed.rs`).
//! Of several executors on a device a view says nothing, so there is one.

pub mod configuration;
mod mixed;

use super::{Gangs, Plan, Policy, Share, View, service_order};
use configuration::{Configuration, Devices, Proposal, WASTE_MAX, approved};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::rc::Rc;

/// See the module.
pub struct EasyScale;

impl Policy for EasyScale {
    fn name(&self) -> &'static str {
        "easyscale"
    }

    fn mixes_types(&self) -> bool {
        true
    }

    fn plan(&self, view: &View) -> Plan {
        if !view.mixtures.is_empty() {
            return mixed::plan(view);
        }
        let sizes = sizes(view);
        let (mut shares, mut pool) = begin(view);
        // What they have already, as far as it is of use and nobody's fewest slots; then what is free.
        grow(&sizes, &mut shares, &mut pool, |job| view.jobs[job].held);
        grow(&sizes, &mut shares, &mut pool, |_| u16::MAX);
        Plan { shares, ..Plan::default() }
    }

    fn guarantees(&self, view: &View) -> Vec<Share> {
        if !view.mixtures.is_empty() {
            return mixed::guarantees(view);
        }
        begin(view).0
    }
}

/// Everybody's fewest slots, those first who run; and what is left of each class.
fn begin(view: &View) -> (Vec<Share>, Vec<u32>) {
    let mut gangs = Gangs::new(view);
    let mut shares = vec![Share::default(); view.jobs.len()];
    let mut order = service_order(view);
    for &job in &order {
        let of = &view.jobs[job];
        if let Some(class) = of.class.filter(|&class| of.held > 0 && gangs.keep(class, of.min)) {
            shares[job] = Share { class, slots: of.min, waits: None };
        }
    }
    order.sort_by_key(|&job| (Reverse(view.jobs[job].priority), job));
    for job in order.into_iter().filter(|&job| shares[job].slots == 0).collect::<Vec<_>>() {
        shares[job] = gangs.start(job, view.jobs[job].min);
    }
    (shares, gangs.pool)
}

/// Sizes of a job, rising from its fewest, each faster than all before it, with its speed.
type Sizes = Rc<[(u16, f64)]>;

/// Of every job; those of jobs that are alike are worked out once.
fn sizes(view: &View) -> Vec<Sizes> {
    let mut known: BTreeMap<(u16, u16, Option<usize>), Sizes> = BTreeMap::new();
    let of = |job: usize| {
        let of = &view.jobs[job];
        Rc::clone(known.entry((of.min, of.max, of.curve)).or_insert_with(|| sizes_of(view, job)))
    };
    (0..view.jobs.len()).map(of).collect()
}

fn sizes_of(view: &View, job: usize) -> Sizes {
    let (of, speeds, alike) = (&view.jobs[job], view.speeds(job), [Devices::alone(1.0)]);
    let mut sizes: Vec<(u16, f64)> = Vec::new();
    for slots in of.min..=of.max {
        let Some(found) = Configuration::best(&alike, &[u32::from(slots)], of.max) else { continue };
        // As measured, where it was; a slower one is what a job falls back from.
        let speed = if of.curve.is_some() { speeds.speed(slots) } else { found.perf };
        let is_faster = sizes.last().is_none_or(|(_, before)| speed > *before);
        if slots == of.min || is_faster && found.waste <= WASTE_MAX {
            sizes.push((slots, speed));
        }
    }
    sizes.into()
}

/// Approves proposals in rounds until none can be met; of jobs that have slots, up to so many each.
fn grow(sizes: &[Sizes], shares: &mut [Share], pool: &mut [u32], most: impl Fn(usize) -> u16) {
    loop {
        let proposal = |job: usize| {
            let share = shares.get(job).filter(|share| share.slots > 0)?;
            let at = sizes[job].partition_point(|(size, _)| *size < share.slots);
            let (&(_, now), &(to, then)) = (sizes[job].get(at)?, sizes[job].get(at + 1)?);
            let more = u32::from(to - share.slots);
            let speedup = if now > 0.0 { (then / now - 1.0) / f64::from(more) } else { then / f64::from(more) };
            (to <= most(job)).then_some(Proposal { job, of: share.class, more, speedup })
        };
        let agreed = approved((0..sizes.len()).filter_map(proposal).collect(), pool);
        if agreed.is_empty() {
            return;
        }
        for proposal in agreed {
            shares[proposal.job].slots += proposal.more as u16;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::speeds::SpeedCurve;
    use super::super::{ClassView, JobView, Wait};
    use super::*;

    fn job(max: u16, held: u16) -> JobView {
        JobView { min: 1, max, held, class: (held > 0).then_some(0), ..JobView::default() }
    }

    fn view(capacity: u32, jobs: &[JobView]) -> View {
        let class = ClassView { capacity, declared: capacity, ..ClassView::default() };
        View { classes: vec![class], jobs: jobs.to_vec(), ..View::default() }
    }

    fn slots(view: &View) -> Vec<u16> {
        EasyScale.plan(view).shares.iter().map(|share| share.slots).collect()
    }

    #[test]
    fn sizes_are_those_at_which_the_fullest_device_has_fewer_workers() {
        let of = |max| sizes_of(&view(8, &[job(max, 0)]), 0).iter().map(|(size, _)| *size).collect::<Vec<_>>();
        assert_eq!((of(8), of(10)), (vec![1, 2, 3, 4, 8], vec![1, 2, 3, 4, 5, 10]));
    }

    #[test]
    fn free_slots_go_where_they_speed_up_most_per_slot() {
        // One of two workers doubles by one slot; one of eight on four doubles by four; the larger of equals per slot is first.
        assert_eq!(slots(&view(6, &[job(8, 4), job(2, 1)])), [4, 2]);
        assert_eq!(slots(&view(10, &[job(8, 4), job(2, 1)])), [8, 2]);
        assert_eq!(slots(&view(7, &[job(8, 4), job(2, 1)])), [4, 2], "one that helps nobody stays idle");
    }

    #[test]
    fn jobs_begin_in_order_with_what_others_have_beyond_their_fewest() {
        assert_eq!(slots(&view(8, &[job(8, 8), job(4, 0)])), [4, 4]);
        let large = JobView { min: 9, max: 9, ..job(9, 0) };
        let found = EasyScale.plan(&view(8, &[job(4, 4), job(4, 4), large, job(1, 0)]));
        assert_eq!(found.shares[2].waits, Some(Wait::Slots(3)));
        assert_eq!(
            slots(&view(8, &[job(4, 4), job(4, 4), large, job(1, 0)])),
            [4, 2, 0, 1],
            "it can never be had here"
        );
        let gang = JobView { min: 7, max: 7, ..job(7, 0) };
        assert_eq!(slots(&view(8, &[job(4, 4), job(4, 4), gang, job(1, 0)])), [4, 4, 0, 0], "nobody overtakes");
        let gang = JobView { min: 6, max: 6, ..job(6, 0) };
        assert_eq!(slots(&view(8, &[job(4, 4), job(4, 4), gang])), [1, 1, 6]);
    }

    #[test]
    fn who_is_no_faster_falls_back() {
        let mut of = view(8, &[JobView { curve: Some(0), ..job(8, 8) }]);
        of.curves = vec![SpeedCurve::new(vec![(1, 100), (2, 190), (4, 350), (8, 300)]).unwrap()];
        assert_eq!(slots(&of), [4]);
        of.jobs[0].held = 4;
        assert_eq!(slots(&of), [4], "and is not asked to try again");
    }

    #[test]
    fn sizes_that_waste_much_are_not_proposed() {
        // Seven of eight are measured to be a little faster than four, and two of them have one worker less than the others can do.
        let mut of = view(7, &[JobView { curve: Some(0), ..job(8, 4) }]);
        of.curves = vec![SpeedCurve::new(vec![(1, 100), (4, 350), (8, 600)]).unwrap()];
        assert_eq!(slots(&of), [5], "of seven 43 % would be wasted, of five 20 %");
    }
}
