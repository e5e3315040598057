//! §5.3 of EasyScale: a day of a cluster that serves, with and without elastic training jobs on what it does not need.
//!
//! Nothing of that cluster is public but a few means, so this is by construction: what serves needs as much as the printed means say together, by the time
//! of day, and there are always jobs that want the rest. How busy each GPU is with what runs on it is not modelled, so the printed gain
//! of utilization (62.1 %) is left out.

use super::by_chance::ByChance;
use super::{Found, Free, Inputs, Kind, PapersError, Scenario, cluster};
use crate::costs::{Costs, REPLICA_MB};
use crate::curve::Tables;
use crate::outcome::{Ended, Outcome};
use crate::setup::{Demand, Setup, Shape, jobs};
use controller_core::policy::easyscale::EasyScale;
use std::f64::consts::TAU;

/// 3,200 GPUs, which all serve.
const SERVING: &str = "400x8:t4";
const DAY_MS: u64 = 86_400_000;
/// What they need of these: in the mean, and how far it goes up and down within a day; told every ten minutes.
const NEEDED: f64 = 0.839;
const NEEDED_SWING: f64 = 0.12;
const TOLD_EVERY_MIN: u32 = 10;
/// Jobs of a day, and how long they take on what they ask for: log-normal, and none longer than so much.
const JOBS: ByChance =
    ByChance { jobs: 3_600.0, within_ms: DAY_MS as f64, length_s: 1_900.0, length_sigma: 0.9, length_s_max: 14_400.0 };

/// What is printed: GPUs that jobs have in the mean, and by how much that is more than what was allocated without them.
const HAD: f64 = 459.0;
const MORE_PERCENT: f64 = 17.1;

/// See the module.
pub const SCENARIO: Scenario = Scenario {
    name: "easyscale-cluster",
    about: "easyscale on what a cluster of 3,200 GPUs that serves does not need, for a day",
    paper: "Li et al., EasyScale: Elastic Training with Consistent Accuracy and Improved Utilization on GPUs, SC 2023, §5.3, figure 16",
    kind: Kind::ByConstruction,
    sources: &[
        "§5.3: more than 3,000 GPUs for serving; jobs have 459 of them on average, and scale in within seconds; no job fails",
        "what it costs to start, to grow and to save: measured on Ebb, docs/measurements.md",
    ],
    free: &[
        Free {
            name: "GPUs, and what serving needs of them",
            value: "3,200, of which 83.9 % on average",
            how: "459 are 17.1 % of 2,684, and both together need as many; 459 itself is what is left to come out",
        },
        Free {
            name: "the day",
            value: "a sine, up and down by 12 % of all GPUs",
            how: "declared beforehand: figure 16 is a picture without numbers",
        },
        Free {
            name: "jobs",
            value: "3,600 in a day; 1, 4, 8, 16 GPUs in 45, 20, 25, 10 of 100; log-normal around 1,900 s, deviation of the logarithm 0.9, none longer than 4 hours",
            how: "declared beforehand: as many as want about what is idle",
        },
    ],
    notes: &[
        "jobs use 409 GPUs in the mean and not 459, of 515 that are idle: at some hours there are too few jobs for all of those. With a quarter more jobs it is 452, with twice as many 500; what starts and moves cost is next to nothing (408 without any). How many jobs there were is not printed",
        "utilization (62.1 % more) is left out: how busy a GPU is with what runs on it is not modelled",
        "362 preemptions are printed, of which it is not said what counts as one",
    ],
    needs: None,
    seed: 1,
    seeds: 3,
    run,
};

fn run(inputs: &Inputs<'_>, found: &mut Found<'_>) -> Result<(), PapersError> {
    let (mut had, mut more_percent, mut ended_percent) = (Vec::new(), Vec::new(), Vec::new());
    for seed in inputs.seeds.clone() {
        let outcome = found.ran("easyscale", &setup(inputs.scale, seed)?, &EasyScale);
        let (needed, held) = means(&outcome, (DAY_MS as f64 * inputs.scale) as u64);
        had.push(held);
        more_percent.push(held / needed * 100.0);
        let well = outcome.jobs.iter().filter(|job| matches!(job.ended, Some((Ended::Finished, _)))).count();
        ended_percent.push(well as f64 / outcome.jobs.len() as f64 * 100.0);
    }
    found.add("easyscale", ("used by jobs, mean", "GPUs"), HAD, &had, false);
    found.add("easyscale", ("allocated, more", "%"), MORE_PERCENT, &more_percent, false);
    found.add("easyscale", ("jobs that end well", "%"), 100.0, &ended_percent, false);
    Ok(())
}

/// How many slots the fleet needed and how many jobs had, in the mean of so long from the beginning.
fn means(outcome: &Outcome, until_ms: u64) -> (f64, f64) {
    let every_ms = outcome.tally.course_every_ms;
    let last = ((until_ms / every_ms) as usize).min(outcome.tally.course.len().saturating_sub(1));
    let sums = outcome.tally.course.get(last).and_then(|sums| sums.fleets.first());
    let [needed_ms, _, _, occupied_ms, ..] = sums.copied().unwrap_or_default();
    let ms = (last as u64 * every_ms) as f64;
    (needed_ms as f64 / ms, occupied_ms as f64 / ms)
}

fn setup(scale: f64, seed: u64) -> Result<Setup, PapersError> {
    let shape = Shape { min_share: 0.0, max_share: 1.0, step_ms: 500, speed_up: 1.0, goodput: false };
    let costs = Costs::measured(REPLICA_MB);
    let jobs = jobs(&JOBS.recording(scale, seed, |_, job| job), &Tables::default(), &shape, &costs, seed)?.0;
    let mut setup = Setup::of_training_alone(jobs, Default::default(), costs, seed);
    setup.inference = cluster(SERVING);
    setup.demand = setup.inference.groups.iter().map(|group| demand(group.slots_total())).collect();
    Ok(setup)
}

/// What is served needs by the time of day.
fn demand(slots: u64) -> Demand {
    let share = |minute: u32| NEEDED - NEEDED_SWING * libm::cos(TAU * (f64::from(minute) / 1_440.0 - 3.0 / 24.0));
    let signal = |minute: u32| (u64::from(minute) * 60_000, (share(minute) * slots as f64).ceil() as u32);
    Demand::new((0..1_440).step_by(TOLD_EVERY_MIN as usize).map(signal).collect(), DAY_MS)
}
