//! Figure 8 of Amoeba (EDL): a job on four GPUs of its own, and others of its machine that are idle for some minutes again and again.
//!
//! Four schemes, as in the paper: *baseline* leaves the others alone; *stop-resume* stops the job for every change of its size; *amoeba* starts
//! newcomers in the background and stops it only while they are sent the model; *ideal* changes sizes at no cost. A fifth is Ebb, with what its
//! changes were measured to cost. All are runs of the real controller; a scheme is what a change of size costs.

use super::{Found, Free, Inputs, Kind, PapersError, Scenario, cluster};
use crate::costs::{Costs, REPLICA_MB};
use crate::curve::Tables;
use crate::setup::{Demand, Setup, Shape, jobs};
use crate::trace::{TraceJob, Work};
use controller_core::policy::elastic_tiresias::ElasticTiresias;

/// GPUs of its own.
const OWN: u16 = 4;
/// Idle ones beside them.
const IDLE: [u16; 3] = [1, 2, 4];
/// For how long they are idle at a time, and away between two such times, in the rows about throughput.
const IDLE_MS: u64 = 180_000;
const AWAY_MS: u64 = 60_000;
/// §3.2: "stop-resume needs 30 s to adjust the parallelism".
const STOP_MS: u64 = 30_000;
/// §6.1: what is stopped when a job scales out, measured.
const AMOEBA_STOP_MS: u64 = 1_070;
/// A mini-batch: for how long a change of members waits.
const STEP_MS: u64 = 500;
/// A day, so that where in an interval it ends is of no weight.
const HOURS: f64 = 24.0;
/// Speeds are powers of the GPUs: with this one stop-resume breaks even with four idle GPUs after [`BREAK_EVEN_MIN`].
const POWER: f64 = 0.168;
/// As printed.
const BREAK_EVEN_MIN: f64 = 8.6;
const LEAST_OF_IDEAL: f64 = 97.0;

/// See the module.
pub const SCENARIO: Scenario = Scenario {
    name: "amoeba-fig8",
    about: "a job on 4 GPUs, and 1, 2 or 4 transient ones that are idle for minutes: how much of the ideal throughput is had",
    paper: "Wu et al., Elastic Deep Learning in Multi-Tenant GPU Clusters (Amoeba), §6.2, figure 8",
    kind: Kind::Calibrated,
    sources: &[
        "§6.2: 4 GPUs, 1, 2 or 4 idle ones of the same machine, and the four schemes; \"at least 97 % of ideal\", and stop-resume below the baseline for intervals shorter than 8.6 minutes with 4 of them",
        "§3.2: stop-resume stops a job for 30 s at every change of its size; §6.1: Amoeba for 1.07 s when it scales out, and \"unnoticeable\" when it scales in",
        "ebb: what a start and a change of size cost was measured, docs/measurements.md",
    ],
    free: &[
        Free {
            name: "t(p)",
            value: "p to the power of 0.168",
            how: "fitted on the interval at which stop-resume breaks even with 4 idle GPUs; the paper prints no curve of this job",
        },
        Free {
            name: "start of a newcomer, in the background",
            value: "30 s less 1.07 s",
            how: "what stop-resume stops the job for is the same work (§5.2: over 95 % of it is the context)",
        },
        Free {
            name: "intervals",
            value: "3 minutes idle, 1 minute away",
            how: "chosen beforehand: §6.2 says \"2 to 3 minutes\"; a shorter time away is harder",
        },
    ],
    notes: &[
        "amoeba breaks even after 0.65 minutes and not after the 0.48 that a newcomer takes to start: while the model is sent the job stands still for 1.07 s, which is earned back first",
    ],
    needs: None,
    seed: 1,
    seeds: 1,
    run,
};

/// What a change of size costs.
fn scheme(name: &str) -> Costs {
    let free = Costs::none();
    match name {
        "stop-resume" => Costs { grow_ms: STOP_MS, switch_ms: STOP_MS, ..free },
        "amoeba" => Costs { start_ms: STOP_MS - AMOEBA_STOP_MS, grow_ms: AMOEBA_STOP_MS, ..free },
        "ebb" => Costs::measured(REPLICA_MB),
        _ => free,
    }
}

fn run(inputs: &Inputs<'_>, found: &mut Found<'_>) -> Result<(), PapersError> {
    let seed = inputs.seeds.start;
    for idle in IDLE {
        let ideal = speed(inputs, found, "ideal", idle, IDLE_MS, seed)?;
        let baseline = speed(inputs, found, "baseline", 0, IDLE_MS, seed)?;
        let stopped = speed(inputs, found, "stop-resume", idle, IDLE_MS, seed)? / baseline * 100.0;
        let run = format!("stop-resume, {idle} idle");
        found.add(&run, ("of baseline, below", "%"), 100.0, &[stopped], false);
        for name in ["amoeba", "ebb"] {
            let share = speed(inputs, found, name, idle, IDLE_MS, seed)? / ideal * 100.0;
            let run = format!("{name}, {idle} idle");
            found.add(&run, ("of ideal, at least", "%"), LEAST_OF_IDEAL, &[share], false);
        }
    }
    let most = IDLE[IDLE.len() - 1];
    let minutes = break_even_min(inputs, found, "stop-resume", most, seed)?;
    found.add("stop-resume, 4 idle", ("breaks even", "min"), BREAK_EVEN_MIN, &[minutes], true);
    // "Amoeba only requires the idle interval to be longer than the launch up time of workers."
    let minutes = break_even_min(inputs, found, "amoeba", most, seed)?;
    found.add(
        "amoeba, 4 idle",
        ("breaks even", "min"),
        (STOP_MS - AMOEBA_STOP_MS) as f64 / 60_000.0,
        &[minutes],
        false,
    );
    Ok(())
}

/// The shortest idle interval, in minutes, from which on a scheme is faster than leaving the idle GPUs alone.
fn break_even_min(
    inputs: &Inputs<'_>,
    found: &mut Found<'_>,
    name: &'static str,
    idle: u16,
    seed: u64,
) -> Result<f64, PapersError> {
    let baseline = speed(inputs, found, "baseline", 0, IDLE_MS, seed)?;
    let (mut below_ms, mut above_ms) = (10_000u64, 1_800_000u64);
    while above_ms - below_ms > STEP_MS {
        let middle_ms = u64::midpoint(below_ms, above_ms);
        let pays = speed(inputs, found, name, idle, middle_ms, seed)? > baseline;
        *(if pays { &mut above_ms } else { &mut below_ms }) = middle_ms;
    }
    Ok(above_ms as f64 / 60_000.0)
}

/// Work in an hour, in hours on its own GPUs.
fn speed(
    inputs: &Inputs<'_>,
    found: &mut Found<'_>,
    name: &'static str,
    idle: u16,
    idle_ms: u64,
    seed: u64,
) -> Result<f64, PapersError> {
    let mut tables = Tables::default();
    let most = OWN + IDLE[IDLE.len() - 1];
    tables.add_speeds("resnet50", (OWN..=most).map(|gpus| (gpus, libm::pow(f64::from(gpus), POWER))).collect());
    let hours = HOURS * inputs.scale;
    let job = TraceJob {
        min: Some(OWN),
        max: Some(OWN + idle),
        model: Some("resnet50".to_owned()),
        ..TraceJob::new("resnet50".to_owned(), OWN, Work::Seconds(hours * 3_600.0))
    };
    let shape = Shape { min_share: 1.0, max_share: 1.0, step_ms: STEP_MS, speed_up: 1.0, goodput: false };
    let costs = scheme(name);
    let jobs = jobs(&[job], &tables, &shape, &costs, seed)?.0;
    let mut setup = Setup::of_training_alone(jobs, cluster("1x4:v100"), costs, seed);
    if idle > 0 {
        setup.inference = cluster(&format!("1x{idle}:v100"));
        let signals = vec![(0, u32::from(idle)), (AWAY_MS, 0)];
        setup.demand = vec![Demand::new(signals, AWAY_MS + idle_ms)];
    }
    let outcome = found.ran(name, &setup, &ElasticTiresias::default());
    let took_ms = outcome.jobs[0].began_ms.zip(outcome.jobs[0].ended).map(|(began, (_, ended))| ended - began);
    Ok(took_ms.map_or(f64::NAN, |ms| hours * 3_600_000.0 / ms as f64))
}
