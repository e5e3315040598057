//! Lyra's simulation: fifteen days of a training cluster, to which a cluster that serves lends what it does not need.
//!
//! The recording is not public. Jobs are made by chance, so that the *baseline* (neither loans nor elastic jobs) is like the printed one in queueing,
//! completion and usage; what loans and elasticity then bring is what comes out. Of the paper only its slides were at hand.
//!
//! A slot is a worker. One V100 is as fast as three T4s, and a worker on the lent servers has three of them: a slot there is three T4s, and as fast as a V100. Both
//! types are as if they were of one numeric class, which a V100 and a T4 of Ebb are not: its jobs are mixed only where the same bits come out.

use super::{Found, Free, Inputs, Kind, PapersError, Scenario, cluster};
use crate::costs::{Costs, REPLICA_MB};
use crate::curve::Tables;
use crate::information::Information;
use crate::outcome::Outcome;
use crate::random::Random;
use crate::setup::{Demand, Setup, Shape, jobs};
use crate::tally::FleetTally;
use crate::trace::{TraceJob, Work};
use controller_core::policy::lyra::Lyra;
use std::collections::BTreeSet;
use std::f64::consts::TAU;

/// Jobs, and the time in which they come.
const JOBS: f64 = 50_390.0;
const DAYS: f64 = 15.0;
const DAY_MS: f64 = 86_400_000.0;
/// 3,544 V100.
const TRAINING: &str = "443x8";
const TRAINING_TYPE: &str = "v100";
/// 5,904 T4, three to a slot.
const SERVING: &str = "246x8";
const SERVING_TYPE: &str = "t4";
const T4_OF_A_SLOT: f64 = 3.0;
/// What they serve needs: in the mean, and how far it goes up and down within a day; told every ten minutes.
const NEEDED: f64 = 0.4;
const NEEDED_SWING: f64 = 0.18;
const TOLD_EVERY_MIN: u32 = 10;
/// GPUs that jobs ask for, and in how many of a thousand jobs; those from `LARGE` on are a twentieth.
const SIZES: [(u16, usize); 8] = [(1, 239), (2, 150), (4, 200), (8, 360), (16, 15), (32, 16), (64, 15), (128, 5)];
const LARGE: u16 = 16;
/// Times that jobs take: log-normal, and none is longer than so much.
const LENGTH_S: f64 = 740.0;
const LENGTH_SIGMA: f64 = 3.3;
const LENGTH_S_MAX: f64 = 3.94 * 86_400.0;
/// How far the rate of submissions goes up and down within a day; and so many jobs come in so many bursts of such a length beside that.
const SWING: f64 = 0.3;
const IN_BURSTS: f64 = 0.098;
const BURSTS: usize = 2;
const BURST_MS: f64 = 3_300_000.0;
/// Plans are made so far apart. Half of it is what a job waits that finds room at once.
const ROUND_MS: u64 = 60_000;
/// Jobs that can use either type of GPU, and beside them those that can use both at once.
const FUNGIBLE: f64 = 0.21;
const HETEROGENEOUS: f64 = 0.10;

/// What is printed: mean, median and 95th percentile of queueing and of completion in s, usage of the training cluster and of both, and preempted jobs in %.
struct Printed {
    queueing_s: [f64; 3],
    completion_s: [f64; 3],
    usage: [f64; 2],
    preempted: f64,
}

const BASELINE: Printed = Printed {
    queueing_s: [3_072.0, 55.0, 8_357.0],
    completion_s: [16_610.0, 791.0, 82_933.0],
    usage: [0.72, 0.52],
    preempted: 0.0,
};
const BASIC: Printed = Printed {
    queueing_s: [2_010.0, 26.0, 3_358.0],
    completion_s: [11_236.0, 568.0, 56_477.0],
    usage: [0.86, 0.65],
    preempted: 12.24,
};
const ADVANCED: Printed = Printed {
    queueing_s: [1_835.0, 24.0, 3_238.0],
    completion_s: [10_434.0, 525.0, 56_553.0],
    usage: [0.86, 0.68],
    preempted: 7.35,
};
const IDEAL: Printed = Printed {
    queueing_s: [1_157.0, 22.0, 3_204.0],
    completion_s: [8_891.0, 422.0, 41_146.0],
    usage: [0.93, 0.72],
    preempted: 5.72,
};

/// What jobs can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Jobs {
    /// Large ones are elastic, and some jobs can use either type.
    Basic,
    /// Beside them some can use both types at once.
    Advanced,
    /// All jobs are elastic and can use both types at once.
    Ideal,
}

/// Which types of GPU a job can use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Types {
    Training,
    /// Either, in different runs of it.
    Either,
    /// Both at once.
    Both,
}

const PAPER: &str =
    "Li et al., Lyra: Elastic Cluster Scheduling for Deep Learning, EuroSys 2023, slides, simulation results";

const SOURCES: &[&str] = &[
    "the slides: 15 days, 50,390 jobs, 3,544 V100 for training; an inference cluster of T4 with 40 % in use on average, by day more than by night; 1 V100 = 3 T4",
    "the slides: ~5 % of jobs, large ones with ~36 % of the training cluster's resources, are elastic; 21 % can use either type of GPU; speed is linear within an elastic job's range",
    "what it costs to start, to grow and to save: measured on Ebb, docs/measurements.md",
];

const FREE: &[Free] = &[
    Free {
        name: "inference GPUs",
        value: "5,904 T4",
        how: "those with which the baseline's usage of 0.72 and 0.52 agrees with 40 % in use",
    },
    Free {
        name: "GPUs of a job",
        value: "1, 2, 4, 8, 16, 32, 64, 128 in 239, 150, 200, 360, 15, 16, 15, 5 of 1,000 jobs",
        how: "5 % with 36 % of the resources, as printed; the rest fitted on the baseline's usage",
    },
    Free {
        name: "running time",
        value: "log-normal around 740 s, deviation of the logarithm 3.3, none longer than 3.94 days",
        how: "fitted on the baseline's completion: mean, median, 95th percentile",
    },
    Free {
        name: "submissions",
        value: "up and down by 30 % within a day; 9.8 % of jobs in two bursts of 55 minutes",
        how: "fitted on the baseline's queueing",
    },
    Free {
        name: "scheduler of the baseline",
        value: "lyra's first phase alone: the shortest job first, who does not fit is passed over",
        how: "the slides say only what it does not do; of the traces that were tried in order of arrival none was as near, because short jobs wait behind long ones there",
    },
    Free {
        name: "plans",
        value: "every minute",
        how: "chosen beforehand, as schedulers of clusters do; half of it is what a job waits that finds room at once",
    },
    Free {
        name: "range of an elastic job",
        value: "from half of the GPUs it asked for to twice as many",
        how: "declared beforehand; the slides print none",
    },
    Free { name: "jobs with checkpoints", value: "all", how: "declared beforehand: Ebb's have them" },
    Free { name: "preempted, in % of", value: "all jobs", how: "declared beforehand; the slides do not say of which" },
];

/// 21 % of jobs use either type.
pub const BASIC_SCENARIO: Scenario = Scenario {
    name: "lyra-basic",
    about: "15 days of 3,544 V100 and lent T4: lyra, with 5 % of jobs elastic and 21 % on either type of GPU, beside neither",
    paper: PAPER,
    kind: Kind::Calibrated,
    sources: SOURCES,
    free: FREE,
    notes: &[
        "completion gets 1.12 times shorter and not 1.48 times: here how long a job takes does not depend on its size, and of a mean a twentieth of the jobs on up to twice their GPUs can take a few hundredths only. The printed 48 % would need large jobs to be the long ones as well, of which the slides give no number",
        "queueing gets 7.5 times shorter and not 1.5 times: the baseline's is fitted loosely (half of the mean), and comes of two bursts, which lent slots take in; longer stretches of load were not tried for long. Its median is longer here because who comes waits for the next plan, half a minute, and where elastic jobs have what is idle, for the plan after it, when they have given that back (what plans every ten seconds change is said at lyra-ideal)",
        "nobody is preempted: of the lent slots 42 % are never wanted back, and what was wanted back was always idle or beyond a job's fewest. Outside of the bursts the training cluster has room, so jobs use 11 % of the time of lent slots, where the slides say above 93 % (three tenths of the time; with lent slots that are wanted between 2 and 78 % of the time it is the same, and with an eighth as many 0.03 % of jobs are preempted). The slides say neither how large that cluster is nor how its need goes up and down",
        USAGE_OF_THE_SAME_WORK,
    ],
    needs: None,
    seed: 1,
    seeds: 1,
    run: |inputs, found| run(Jobs::Basic, &BASIC, inputs, found),
};

/// Why usage does not rise as it does there.
const USAGE_OF_THE_SAME_WORK: &str = "usage of the training cluster falls and does not rise: the same jobs are the same work under every policy where speed is linear, and what lent GPUs take of it is not done on the training cluster. Here both runs go on until the longest job has ended, at the same time. Printed usage of both clusters together is a quarter higher for the same jobs; that takes another end of what is measured, which the slides do not say";

/// Types as if they were of one numeric class.
const ONE_CLASS: &str = "a V100 and a T4 are taken to be of one numeric class, as Ebb mixes types only where the same bits come out; live they mostly are not";

/// 10 % more use both at once.
pub const ADVANCED_SCENARIO: Scenario = Scenario {
    name: "lyra-advanced",
    about: "the same with 10 % more jobs that train on both types of GPU at once",
    notes: &[
        ONE_CLASS,
        "training on both at once costs nothing here: the slides say that it is not ideal, and print no number. Nearly all of the jobs that are added are not elastic, so that they are on both only where neither type has room for all of one",
        "queueing, completion and preemption: as in lyra-basic",
        USAGE_OF_THE_SAME_WORK,
    ],
    run: |inputs, found| run(Jobs::Advanced, &ADVANCED, inputs, found),
    ..BASIC_SCENARIO
};

/// All jobs can do everything.
pub const IDEAL_SCENARIO: Scenario = Scenario {
    name: "lyra-ideal",
    about: "the same where every job is elastic and uses both types at once, at no cost",
    run: |inputs, found| run(Jobs::Ideal, &IDEAL, inputs, found),
    notes: &[
        ONE_CLASS,
        "who comes waits longer than in lyra-basic, and the median job takes longer than printed: all jobs are elastic and have every GPU, so a plan gives an arrival what others have to let go first, and it begins on half of what it asked for until the plan after. In a tenth of the time queueing is 454 s in the mean with plans every minute and 5 with plans every ten seconds, and median completion 534 and 330 s; where nobody gets less than it asked for it is 386 s",
        "usage of both clusters is as printed and that of the training cluster is lower, because lent GPUs do more of the work here. Nobody is preempted: elastic jobs give back what they have beyond their fewest, and that is always enough",
    ],
    ..BASIC_SCENARIO
};

fn run(of: Jobs, printed: &Printed, inputs: &Inputs<'_>, found: &mut Found<'_>) -> Result<(), PapersError> {
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for seed in inputs.seeds.clone() {
        before.push(Figures::of(&found.ran("baseline", &setup(None, inputs.scale, seed)?, &Lyra)));
        after.push(Figures::of(&found.ran("lyra", &setup(Some(of), inputs.scale, seed)?, &Lyra)));
    }
    if of == Jobs::Basic {
        add("baseline", &BASELINE, &before, true, found);
    }
    add("lyra", printed, &after, false, found);
    let times = |of: fn(&Figures) -> f64| before.iter().zip(&after).map(move |(before, after)| of(before) / of(after));
    let queueing: Vec<f64> = times(|of| of.queueing_s[0]).collect();
    let completion: Vec<f64> = times(|of| of.completion_s[0]).collect();
    let (was, is) = (&BASELINE, printed);
    found.add("lyra", ("queueing, shorter", "times"), was.queueing_s[0] / is.queueing_s[0], &queueing, false);
    found.add("lyra", ("completion, shorter", "times"), was.completion_s[0] / is.completion_s[0], &completion, false);
    Ok(())
}

const QUEUEING: [&str; 3] = ["queueing mean", "queueing median", "queueing p95"];
const COMPLETION: [&str; 3] = ["completion mean", "completion median", "completion p95"];
const USAGE: [&str; 2] = ["usage, training", "usage, both"];

fn add(run: &str, printed: &Printed, ours: &[Figures], fitted: bool, found: &mut Found<'_>) {
    let all = |of: &dyn Fn(&Figures) -> f64| ours.iter().map(of).collect::<Vec<f64>>();
    for (at, figure) in QUEUEING.into_iter().enumerate() {
        found.add(run, (figure, "s"), printed.queueing_s[at], &all(&|of| of.queueing_s[at]), fitted);
    }
    for (at, figure) in COMPLETION.into_iter().enumerate() {
        found.add(run, (figure, "s"), printed.completion_s[at], &all(&|of| of.completion_s[at]), fitted);
    }
    for (at, figure) in USAGE.into_iter().enumerate() {
        found.add(run, (figure, "of 1"), printed.usage[at], &all(&|of| of.usage[at]), fitted);
    }
    if !fitted {
        found.add(run, ("preempted", "%"), printed.preempted, &all(&|of| of.preempted), false);
    }
}

/// What is printed of a run.
struct Figures {
    queueing_s: [f64; 3],
    completion_s: [f64; 3],
    usage: [f64; 2],
    preempted: f64,
}

impl Figures {
    fn of(outcome: &Outcome) -> Self {
        let figures = outcome.figures(&vec![None; outcome.jobs.len()]);
        let of = |key: &str| figures[key].as_f64().unwrap_or(f64::NAN);
        // In GPUs, of which a slot of the lent cluster is several.
        let gpus = |fleet: &FleetTally| if fleet.serves { T4_OF_A_SLOT } else { 1.0 };
        let sum = |of: &dyn Fn(&FleetTally) -> f64| {
            outcome.tally.fleets.iter().map(|fleet| of(fleet) * gpus(fleet)).sum::<f64>()
        };
        let training = |fleet: &FleetTally| if fleet.serves { 0.0 } else { 1.0 };
        let until_ms = outcome.until_ms as f64;
        let own = sum(&|fleet| training(fleet) * fleet.training_ms as f64)
            / sum(&|fleet| training(fleet) * fleet.slots as f64 * until_ms);
        let both =
            sum(&|fleet| (fleet.training_ms + fleet.needed_ms) as f64) / sum(&|fleet| fleet.slots as f64 * until_ms);
        Self {
            queueing_s: ["mean_queueing_s", "median_queueing_s", "p95_queueing_s"].map(of),
            completion_s: ["mean_completion_s", "median_completion_s", "p95_completion_s"].map(of),
            usage: [own, both],
            preempted: of("preempted_job_share") * 100.0,
        }
    }
}

/// The fifteen days; without loans and elastic jobs for the baseline.
fn setup(of: Option<Jobs>, scale: f64, seed: u64) -> Result<Setup, PapersError> {
    let mut tables = Tables::default();
    // "Training throughput scales linearly."
    tables.add_speeds("linear", vec![(1, 1.0), (256, 256.0)]);
    let shape = Shape { min_share: 1.0, max_share: 1.0, step_ms: 500, speed_up: 1.0, goodput: false };
    let costs = Costs::measured(REPLICA_MB);
    let (recorded, types): (Vec<TraceJob>, Vec<Types>) = recording(of, scale, seed).into_iter().unzip();
    let on_both = recorded.iter().zip(&types).filter(|(_, types)| **types == Types::Both);
    let on_both: BTreeSet<&String> = on_both.map(|(job, _)| &job.name).collect();
    let jobs = jobs(&recorded, &tables, &shape, &costs, seed)?.0;
    let mut setup = Setup::of_training_alone(jobs, cluster(&format!("{TRAINING}:{TRAINING_TYPE}")), costs, seed);
    (setup.information, setup.round_ms) = (Information::Known, Some(ROUND_MS));
    setup.inference = cluster(&format!("{SERVING}:{SERVING_TYPE}"));
    setup.demand = setup.inference.groups.iter().map(|group| demand(group.slots_total())).collect();
    Ok(if on_both.is_empty() { setup } else { setup.with_mixed_types(|job| on_both.contains(&job.name)) })
}

/// What is served needs by the time of day.
fn demand(slots: u64) -> Demand {
    let share = |minute: u32| NEEDED - NEEDED_SWING * libm::cos(TAU * (f64::from(minute) / 1_440.0 - 3.0 / 24.0));
    let signal = |minute: u32| (u64::from(minute) * 60_000, (share(minute) * slots as f64).ceil() as u32);
    let signals = (0..1_440).step_by(TOLD_EVERY_MIN as usize).map(signal).collect();
    Demand::new(signals, DAY_MS as u64)
}

/// Jobs by chance. What they are, when they come and how long they take is the same in all scenarios of a seed.
fn recording(of: Option<Jobs>, scale: f64, seed: u64) -> Vec<(TraceJob, Types)> {
    let mut random = Random::new(seed);
    let (count, until_ms) = ((JOBS * scale) as usize, DAYS * DAY_MS * scale);
    let begins: Vec<f64> = (0..BURSTS).map(|_| random.share() * until_ms).collect();
    let burst = |random: &mut Random| begins[random.below(BURSTS)] as u64 + random.exponential_ms(BURST_MS);
    let moment = |random: &mut Random| match random.share() < IN_BURSTS {
        true => burst(random).min(until_ms as u64),
        false => moment(random, until_ms),
    };
    let mut moments: Vec<u64> = (0..count).map(|_| moment(&mut random)).collect();
    moments.sort_unstable();
    moments.into_iter().enumerate().map(|(number, at_ms)| job(&mut random, of, number, at_ms)).collect()
}

fn moment(random: &mut Random, until_ms: f64) -> u64 {
    loop {
        let at = random.share() * until_ms;
        let rate = 1.0 - SWING * libm::cos(TAU * (at / DAY_MS - 3.0 / 24.0));
        if random.share() * (1.0 + SWING) < rate {
            return at as u64;
        }
    }
}

fn job(random: &mut Random, of: Option<Jobs>, number: usize, submitted_ms: u64) -> (TraceJob, Types) {
    let workers = size(random.below(SIZES.iter().map(|(_, share)| share).sum()));
    let seconds = loop {
        let seconds = LENGTH_S * libm::exp(LENGTH_SIGMA * random.normal());
        if seconds < LENGTH_S_MAX {
            break seconds;
        }
    };
    let chance = random.share();
    let elastic = of.is_some_and(|of| of == Jobs::Ideal || workers >= LARGE);
    let types = match of {
        Some(Jobs::Ideal) => Types::Both,
        Some(_) if chance < FUNGIBLE => Types::Either,
        Some(Jobs::Advanced) if chance < FUNGIBLE + HETEROGENEOUS => Types::Both,
        _ => Types::Training,
    };
    let job = TraceJob {
        name: format!("{number}"),
        submitted_ms,
        workers,
        min: Some(if elastic { (workers / 2).max(1) } else { workers }),
        max: Some(if elastic { workers * 2 } else { workers }),
        work: Work::Seconds(seconds),
        model: Some("linear".to_owned()),
        batch_size: None,
        batch_max: None,
        tenant: None,
        priority: 0,
        deadline_ms: None,
        only: (types == Types::Training).then(|| TRAINING_TYPE.to_owned()),
    };
    (job, types)
}

/// The GPUs of the job at a place among as many as shares add up to.
fn size(place: usize) -> u16 {
    let mut below = 0;
    let of = SIZES.iter().find(|(_, share)| {
        below += share;
        place < below
    });
    of.map_or(1, |(size, _)| *size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_jobs_are_a_twentieth_and_have_over_a_third_of_the_resources() {
        let jobs: Vec<TraceJob> = recording(Some(Jobs::Basic), 1.0, 1).into_iter().map(|(job, _)| job).collect();
        let service = |of: &&TraceJob| match of.work {
            Work::Seconds(seconds) => seconds * f64::from(of.workers),
            Work::OfModel => f64::NAN,
        };
        let all: f64 = jobs.iter().map(|job| service(&job)).sum();
        let elastic: Vec<&TraceJob> = jobs.iter().filter(|job| job.max > job.min).collect();
        let share = elastic.len() as f64 / jobs.len() as f64;
        let theirs = elastic.iter().map(service).sum::<f64>() / all;
        let either = jobs.iter().filter(|job| job.only.is_none()).count() as f64 / jobs.len() as f64;
        assert_eq!(jobs.len(), 50_390);
        assert!((share - 0.05).abs() < 0.005 && (theirs - 0.36).abs() < 0.04, "{share} {theirs}");
        assert!((either - 0.21).abs() < 0.01, "{either}");
    }

    #[test]
    fn a_tenth_of_the_advanced_jobs_use_both_types_at_once_and_as_many_as_before_either() {
        let share = |of, types| {
            let jobs = recording(Some(of), 1.0, 1);
            jobs.iter().filter(|(_, of)| *of == types).count() as f64 / jobs.len() as f64
        };
        assert!((share(Jobs::Advanced, Types::Both) - HETEROGENEOUS).abs() < 0.01);
        assert!((share(Jobs::Advanced, Types::Either) - FUNGIBLE).abs() < 0.01);
        assert!((share(Jobs::Ideal, Types::Both), share(Jobs::Basic, Types::Both)) == (1.0, 0.0));
    }

    #[test]
    fn scenarios_of_a_seed_have_the_same_jobs() {
        let of =
            |of| recording(of, 0.02, 3).into_iter().map(|(job, _)| (job.submitted_ms, job.workers)).collect::<Vec<_>>();
        assert!(of(None) == of(Some(Jobs::Ideal)) && !of(None).is_empty());
    }
}
