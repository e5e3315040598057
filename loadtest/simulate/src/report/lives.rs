//! What single jobs lived through: those that somebody asked for, or of each policy the longest one, the median and the one that was preempted most often (or
//! changed most often, where none was), with every change of their slots. Which these are follows from the outcome alone; how they are drawn is `pictures.rs`.

use super::series::{MOMENTS_MAX, thin};
use crate::outcome::{JobOutcome, Outcome};
use crate::setup::Setup;
use serde::Serialize;
use std::cmp::Reverse;

/// Jobs of a policy that are told of at most.
pub const LIVES_MAX: usize = 3;

/// One job under one policy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Life {
    /// Under which.
    pub policy: &'static str,
    /// Why this one.
    pub which: &'static str,
    /// Its name.
    pub job: String,
    /// When it came, since the run began.
    pub arrival_s: f64,
    /// When its members first came together.
    pub first_start_s: Option<f64>,
    /// When its last step was done.
    pub end_s: f64,
    /// From the one to the other.
    pub completion_s: f64,
    /// Without any slot, all times together.
    pub queueing_s: f64,
    /// How often its number of slots changed.
    pub size_changes: u64,
    /// How often it lost all of them.
    pub preemptions: u64,
    /// Since when it had how many slots; at most [`MOMENTS_MAX`] of the changes.
    pub sizes: Vec<(f64, u16)>,
    /// From when on its slots are not known any more, because the run had too many changes.
    pub unknown_from_s: Option<f64>,
}

/// The jobs of a policy that are told of: those that were asked for, by their places in the setup; without any, of those that finished some.
#[must_use]
pub fn lives(setup: &Setup, outcome: &Outcome, asked_for: &[usize]) -> Vec<Life> {
    if !asked_for.is_empty() {
        let of = |number: &usize| life(setup, outcome, "asked for", *number);
        return asked_for.iter().take(LIVES_MAX).map(of).collect();
    }
    let job = |number: usize| &outcome.jobs[number];
    let mut finished: Vec<(u64, usize)> =
        (0..).zip(&outcome.jobs).filter_map(|(number, of)| Some((of.completion_ms()?, number))).collect();
    finished.sort_unstable();
    let median = finished.len().div_ceil(2).checked_sub(1).and_then(|place| finished.get(place));
    // Of several the first one, so that it is the same one every time.
    let most =
        |of: fn(&JobOutcome) -> u64| finished.iter().max_by_key(|(_, number)| (of(job(*number)), Reverse(*number)));
    let eventful = match most(|job| job.preemptions) {
        Some((_, number)) if job(*number).preemptions > 0 => ("most preempted", most(|job| job.preemptions)),
        _ => ("most changed", most(|job| job.size_changes)),
    };
    let chosen = [("longest", finished.last()), ("median", median), eventful];
    let chosen = chosen.into_iter().take(LIVES_MAX);
    chosen.filter_map(|(which, of)| of.map(|(_, number)| life(setup, outcome, which, *number))).collect()
}

fn life(setup: &Setup, outcome: &Outcome, which: &'static str, number: usize) -> Life {
    let seconds = |ms: u64| ms as f64 / 1e3;
    let of: &JobOutcome = &outcome.jobs[number];
    let end_ms = of.ended.map_or(outcome.until_ms, |(_, at)| at);
    let sizes = outcome.tally.sizes.as_ref();
    let all = sizes.and_then(|sizes| sizes.of_jobs.get(number)).map_or(&[] as &[(u64, u16)], Vec::as_slice);
    let kept = thin(all, MOMENTS_MAX, |(_, slots)| [f64::from(*slots), -f64::from(*slots)]);
    Life {
        policy: outcome.policy,
        which,
        job: setup.jobs[number].name.clone(),
        arrival_s: seconds(of.submitted_ms),
        first_start_s: of.began_ms.map(seconds),
        end_s: seconds(end_ms),
        completion_s: seconds(end_ms - of.submitted_ms),
        queueing_s: seconds(of.queued_ms),
        size_changes: of.size_changes,
        preemptions: of.preemptions,
        sizes: kept.into_iter().map(|place| (seconds(all[place].0), all[place].1)).collect(),
        unknown_from_s: sizes.and_then(|sizes| sizes.full_ms).filter(|full| *full < end_ms).map(seconds),
    }
}
