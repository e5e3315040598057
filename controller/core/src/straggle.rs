//! Which members are far slower than the others, which wait for them at every step: from the gradients that each says it has computed and
//! what they took. Pure; part of the watch (`watch.rs`), which hears it and reports it. Does not say what to do: `decide/proposals.rs` gives it fewer ranks.
//!
//! Members host different numbers of ranks, so it is the time of one rank's gradient that compares. A slow first gradient (compilation)
//! or one bad window is no straggling.

use crate::decide::types::unit_us;
use crate::state::{Job, State};
use events_schema::control::Gradients;
use events_schema::fact::StragglerCause;
use events_schema::report::Report;
use events_schema::{ExecutorId, JobId};
use std::collections::BTreeMap;

/// What members do is compared over so long at least: far longer than what else a host does now and then.
pub const WINDOW_MS: u64 = 30_000;
/// Gradients that every member has to have computed in a window: fewer say little.
pub const GRADIENTS_MIN: u64 = 4;
/// Windows in a row that have to say the same.
pub const WINDOWS: u32 = 2;
/// A member straggles whose gradient takes so many times as long as the others' median: the job is half as fast as it could be.
pub const TIMES_SLOWER: u64 = 2;
/// Shorter differences than this, in microseconds, are scheduling, not a slow machine.
pub const SLOWER_US_MIN: u64 = 1_000;
/// From the last word about a member until it may be said to straggle again: one that is now slow and now not is said now and then.
pub const SAID_AGAIN_MS: u64 = 600_000;

/// What members compute in a stretch of time.
#[derive(Debug, Clone)]
struct Window {
    since_ms: u64,
    /// What each had done by then.
    before: BTreeMap<ExecutorId, Gradients>,
    /// For how many windows in a row each was slow, or not slow.
    slow: BTreeMap<ExecutorId, u32>,
    steady: BTreeMap<ExecutorId, u32>,
}

/// The windows of all jobs that are watched.
#[derive(Debug, Clone, Default)]
pub struct Stragglers {
    windows: BTreeMap<JobId, Window>,
    said_ms: BTreeMap<ExecutorId, u64>,
}

/// What one member did in a window.
#[derive(Debug, Clone, Copy)]
struct Done {
    /// One gradient, in microseconds.
    unit_us: u64,
    /// Of that, waiting for rows, if it says so.
    data_us: Option<u64>,
    /// All of them.
    took_us: u64,
}

impl Stragglers {
    /// Forgets who is gone.
    pub fn retain(&mut self, job: impl Fn(&JobId) -> bool, executor: impl Fn(&ExecutorId) -> bool) {
        self.windows.retain(|id, _| job(id));
        self.said_ms.retain(|id, _| executor(id));
    }

    /// Whether a window of this job is over, or none was begun.
    #[must_use]
    pub fn is_due(&self, now_ms: u64, id: &JobId) -> bool {
        self.windows.get(id).is_none_or(|window| now_ms.saturating_sub(window.since_ms) >= WINDOW_MS)
    }

    /// Takes what all members of a job have computed so far; who straggles now, or does no more.
    pub fn look(
        &mut self,
        now_ms: u64,
        (id, job): (&JobId, &Job),
        totals: BTreeMap<ExecutorId, Gradients>,
        state: &State,
    ) -> Vec<Report> {
        // A first gradient may compile; and alone nobody is waited for.
        if totals.len() < 2 || totals.values().any(|total| total.count == 0) {
            self.windows.remove(id);
            return Vec::new();
        }
        let Some(window) = self.windows.get_mut(id).filter(|window| window.before.keys().eq(totals.keys())) else {
            let (slow, steady) = (BTreeMap::new(), BTreeMap::new());
            self.windows.insert(id.clone(), Window { since_ms: now_ms, before: totals, slow, steady });
            return Vec::new();
        };
        if now_ms.saturating_sub(window.since_ms) < WINDOW_MS {
            return Vec::new();
        }
        let Some(done) = window.done(&totals) else { return Vec::new() };
        (window.since_ms, window.before) = (now_ms, totals);
        let mut reports = Vec::new();
        // A slower type is no straggler: the others are taken as on its own.
        let of_type: Vec<u64> = done.keys().map(|executor| unit_us(state, job, state.type_of(executor))).collect();
        for ((executor, own), here) in done.iter().zip(&of_type) {
            let others = || done.iter().filter(|(other, _)| *other != executor).map(|(_, done)| done);
            let as_here = |unit_us: u64, there: u64| {
                if *here == there { unit_us } else { unit_us.saturating_mul(*here) / there }
            };
            let units = done.iter().zip(&of_type).filter(|((other, _), _)| *other != executor);
            let peers_unit_us = median(units.map(|((_, done), there)| as_here(done.unit_us, *there)));
            let waited_for = own.took_us > median(others().map(|done| done.took_us));
            let slower_us = own.unit_us.saturating_sub(peers_unit_us);
            let slow =
                waited_for && slower_us >= SLOWER_US_MIN && own.unit_us >= peers_unit_us.saturating_mul(TIMES_SLOWER);
            // Halfway back, so that one at the limit is not now one and now the other.
            // Whether it is waited for says nothing here: with fewer ranks than the others it is not.
            let steady = slower_us < SLOWER_US_MIN || own.unit_us < peers_unit_us / 2 * 3;
            let slow = count(&mut window.slow, executor, slow) >= WINDOWS;
            let steady = count(&mut window.steady, executor, steady) >= WINDOWS;
            let said = self.said_ms.get(executor).is_some_and(|said| now_ms.saturating_sub(*said) < SAID_AGAIN_MS);
            let known = job.stragglers.get(executor);
            // What its link takes is in nobody's gradient: whether that is over, `pace.rs` says.
            if known.is_some_and(|known| known.cause == Some(StragglerCause::Network)) {
                continue;
            }
            let reads_slowly = known.is_some_and(|known| known.cause == Some(StragglerCause::Data));
            let report = match known.is_some() {
                false if slow && !said => {
                    let cause = cause(own, peers_unit_us, others());
                    Report::MemberStraggles { executor: executor.clone(), unit_us: own.unit_us, peers_unit_us, cause }
                }
                // With fewer ranks its rows come in time again, whether or not it reads as fast as the others: that is tried now and then.
                true if reads_slowly && said => continue,
                true if steady => Report::MemberKeepsUp { executor: executor.clone() },
                _ => continue,
            };
            if reads_slowly {
                // If it does not, that is said again at once: it has fewer ranks for far longer than it takes to find out.
                self.said_ms.remove(executor);
            } else {
                self.said_ms.insert(executor.clone(), now_ms);
            }
            reports.push(report);
        }
        reports
    }
}

impl Window {
    /// What each member did since it began; none while one of them did too little to tell.
    fn done(&self, totals: &BTreeMap<ExecutorId, Gradients>) -> Option<BTreeMap<ExecutorId, Done>> {
        let done = totals.iter().map(|(executor, total)| {
            let before = self.before.get(executor)?;
            let took_us = total.took_us.saturating_sub(before.took_us);
            let count = total.count.saturating_sub(before.count);
            let data_us = total.data_us.zip(before.data_us).map(|(now_us, before_us)| now_us.saturating_sub(before_us));
            (count >= GRADIENTS_MIN).then(|| {
                let (unit_us, data_us) = (took_us / count, data_us.map(|data_us| data_us / count));
                (executor.clone(), Done { unit_us, data_us, took_us })
            })
        });
        done.collect()
    }
}

/// What takes a straggler longer: whichever of the two is the larger part of it, if all of them say how long they wait for rows.
fn cause<'a>(own: &Done, peers_unit_us: u64, others: impl Iterator<Item = &'a Done>) -> Option<StragglerCause> {
    let peers_data_us: Option<Vec<u64>> = others.map(|done| done.data_us).collect();
    let longer_us = own.data_us?.saturating_sub(median(peers_data_us?.into_iter()));
    let slower_us = own.unit_us.saturating_sub(peers_unit_us);
    Some(if longer_us > slower_us / 2 { StragglerCause::Data } else { StragglerCause::Compute })
}

/// In how many windows in a row it was so, with this one.
fn count(rows: &mut BTreeMap<ExecutorId, u32>, executor: &ExecutorId, so: bool) -> u32 {
    let row = rows.entry(executor.clone()).or_default();
    *row = if so { row.saturating_add(1) } else { 0 };
    *row
}

/// The middle of what the others say, rather the larger: of two of three that are slow, none is.
pub(crate) fn median(of: impl Iterator<Item = u64>) -> u64 {
    let mut all: Vec<u64> = of.collect();
    all.sort_unstable();
    all.get(all.len() / 2).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::testing::{reported, training};
    use events_schema::TimeMs;
    use events_schema::fact::Fact;
    use serde_json::json;

    /// A job that trains on some slots in lock-step, a clock, and what was decided about its stragglers.
    struct Story {
        state: State,
        job: JobId,
        stragglers: Stragglers,
        now_ms: u64,
        totals: BTreeMap<ExecutorId, Gradients>,
        /// Of what each gradient takes the second member, waiting for rows.
        second_waits_us: u64,
    }

    impl Story {
        fn new(members: u32) -> Self {
            let job = JobId::parse("job-a").unwrap();
            let state = training(&job, u16::try_from(members).unwrap(), &json!({}));
            let none = Gradients { data_us: Some(0), ..Gradients::default() };
            let totals = (0..members).map(|number| (ExecutorId { job: job.clone(), number }, none)).collect();
            Self { state, job, stragglers: Stragglers::default(), now_ms: 0, totals, second_waits_us: 0 }
        }

        /// For so long each member has so many ranks and takes so long for each; who was said to straggle, or to keep up again.
        fn train(&mut self, seconds: u64, members: &[(u64, u64)]) -> Vec<(u32, bool)> {
            let step_us = members.iter().map(|(ranks, unit_us)| ranks * unit_us).max().unwrap();
            let mut facts = Vec::new();
            for _ in 0..seconds {
                self.now_ms += 1_000;
                let steps = (self.now_ms * 1_000 / step_us) - ((self.now_ms - 1_000) * 1_000 / step_us);
                for ((executor, total), (ranks, unit_us)) in self.totals.iter_mut().zip(members) {
                    total.count += steps * ranks;
                    total.took_us += steps * ranks * unit_us;
                    let waits_us = if executor.number == 1 { self.second_waits_us } else { 0 };
                    total.data_us = total.data_us.map(|data_us| data_us + steps * ranks * waits_us);
                }
                let known = self.state.job(&self.job).unwrap().clone();
                for report in self.stragglers.look(self.now_ms, (&self.job, &known), self.totals.clone(), &self.state) {
                    facts.extend(reported(&mut self.state, TimeMs(self.now_ms), report));
                }
            }
            let said = facts.into_iter().filter_map(|fact| match fact {
                Fact::MemberStraggles { executor, .. } => Some((executor.number, true)),
                Fact::MemberKeepsUp { executor } => Some((executor.number, false)),
                _ => None,
            });
            said.collect()
        }
    }

    const EVEN: [(u64, u64); 3] = [(1, 50_000); 3];
    const SLOW: [(u64, u64); 3] = [(1, 50_000), (1, 110_000), (1, 50_000)];

    #[test]
    fn a_member_that_the_others_wait_for_is_said_once_and_once_more_when_it_keeps_up() {
        let mut story = Story::new(3);
        assert_eq!(story.train(300, &EVEN), []);
        assert_eq!(story.train(59, &SLOW), [], "one bad window is nothing");
        assert_eq!(story.train(3_600, &SLOW), [(1, true)]);
        let straggler = story.state.job(&story.job).unwrap().stragglers.values().next().cloned().unwrap();
        assert_eq!((straggler.unit_us, straggler.peers_unit_us), (110_000, 50_000));
        assert_eq!(straggler.cause, Some(StragglerCause::Compute));
        // A controller that takes over knows it from the log.
        story.stragglers = Stragglers::default();
        assert_eq!(story.train(3_600, &SLOW), []);
        assert_eq!(story.train(3_600, &EVEN), [(1, false)]);
        assert!(story.state.job(&story.job).unwrap().stragglers.is_empty());
    }

    #[test]
    fn the_larger_part_of_the_difference_is_the_cause() {
        let done = |unit_us, data_us| Done { unit_us, data_us, took_us: unit_us };
        let of = |own: Done, others: [Done; 2]| cause(&own, 50_000, others.iter());
        let even = [done(50_000, Some(5_000)); 2];
        assert_eq!(of(done(110_000, Some(40_000)), even), Some(StragglerCause::Data), "35 ms of 60");
        assert_eq!(of(done(110_000, Some(30_000)), even), Some(StragglerCause::Compute), "25 ms of 60");
        let all_wait = [done(50_000, Some(30_000)); 2];
        assert_eq!(of(done(110_000, Some(40_000)), all_wait), Some(StragglerCause::Compute), "others wait as well");
        assert_eq!(of(done(110_000, None), even), None, "of an earlier build");
        assert_eq!(of(done(110_000, Some(70_000)), [even[0], done(50_000, None)]), None);
    }

    #[test]
    fn one_that_reads_slowly_has_fewer_ranks_for_far_longer_than_it_is_tried_with_more() {
        let mut story = Story::new(3);
        for _ in 0..3 {
            story.second_waits_us = 60_000;
            assert_eq!(story.train(150, &SLOW), [(1, true)]);
            let straggler = story.state.job(&story.job).unwrap().stragglers.values().next().cloned().unwrap();
            assert_eq!(straggler.cause, Some(StragglerCause::Data));
            // Half of the rows come in time.
            story.second_waits_us = 0;
            let fewer = [(3, 50_000), (1, 50_000), (2, 50_000)];
            assert_eq!(story.train(450, &fewer), []);
            assert_eq!(story.train(150, &fewer), [(1, false)]);
        }
    }

    #[test]
    fn one_that_is_now_slow_and_now_not_is_said_now_and_then() {
        let mut story = Story::new(3);
        let said: usize = (0..30).map(|_| story.train(120, &SLOW).len() + story.train(120, &EVEN).len()).sum();
        assert!((2..=26).contains(&said), "{said} in two hours");
    }

    #[test]
    fn more_ranks_fewer_ranks_and_scheduling_are_no_straggling() {
        let mut story = Story::new(3);
        assert_eq!(story.train(600, &[(4, 50_000), (2, 50_000), (2, 50_000)]), [], "more to do");
        assert_eq!(story.train(600, &[(1, 110_000), (3, 50_000), (3, 50_000)]), [], "slow, but nobody waits for it");
        assert_eq!(story.train(600, &[(1, 900), (1, 200), (1, 200)]), []);
        assert_eq!(story.train(600, &[(1, 95_000), (1, 50_000), (1, 50_000)]), [], "not twice as slow");
        assert_eq!(story.train(600, &[(1, 110_000), (1, 110_000), (1, 50_000)]), [], "most are");
    }

    #[test]
    fn a_job_alone_and_a_first_gradient_never_straggle() {
        let mut alone = Story::new(1);
        assert_eq!(alone.train(600, &[(1, 5_000_000)]), []);
        let mut story = Story::new(2);
        // One compiles for five minutes.
        assert_eq!(story.train(300, &[(0, 1), (1, 50_000)]), []);
        story.totals.values_mut().next().unwrap().took_us += 300_000_000;
        assert_eq!(story.train(300, &EVEN[..2]), []);
        assert_eq!(story.train(300, &SLOW[..2]), [(1, true)]);
    }
}
