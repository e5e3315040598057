//! Figure 14 of EasyScale: its scheduler on one type of GPU for each job, beside gangs in order of arrival (YARN-CS), on 64 GPUs of three types.
//!
//! Neither its jobs nor its models' speeds are public, so this is by construction: what the paper says of the set-up, with times and arrivals such that
//! the baseline takes about as long as the authors' published artifact says of it. The row of mixed types (*EasyScale heter*) is as if all three types were of one
//! numeric class, which the paper's kernels (D2) bring about and Ebb does not: its jobs are mixed only where the same bits come out.

use super::by_chance::ByChance;
use super::{Found, Free, Inputs, Kind, PapersError, Scenario, cluster};
use crate::costs::{Costs, REPLICA_MB};
use crate::curve::Tables;
use crate::outcome::Outcome;
use crate::setup::{Setup, Shape, jobs};
use controller_core::Policy;
use controller_core::policy::easyscale::EasyScale;
use controller_core::policy::fifo::Fifo;

/// 32 V100, 16 P100 and 16 T4, as fast as ResNet50 is on them; a P100 between the two.
const CLUSTER: &str = "4x8:v100@2.45,8x2:p100@1.5,4x4:t4";
/// Jobs, within how long they come, and how long they take on as many T4 as they ask for: log-normal, and none longer than so much.
const JOBS: ByChance =
    ByChance { jobs: 160.0, within_ms: 2_400_000.0, length_s: 1_900.0, length_sigma: 0.9, length_s_max: 5_400.0 };

/// What the authors' artifact (SC23) says of the baseline: mean completion and makespan, in s.
const BASELINE_S: [f64; 2] = [8_904.97, 16_560.0];
/// What is printed: how many times shorter both are.
const SHORTER: [f64; 2] = [8.3, 2.5];
/// The same on types mixed within a job.
const SHORTER_MIXED: [f64; 2] = [13.2, 2.8];

/// See the module.
pub const SCENARIO: Scenario = Scenario {
    name: "easyscale-fig14",
    about: "easyscale beside fifo on 32 V100, 16 P100 and 16 T4, each job on GPUs of one type, and on several at once",
    paper: "Li et al., EasyScale: Elastic Training with Consistent Accuracy and Improved Utilization on GPUs, SC 2023, §5.2, figure 14",
    kind: Kind::ByConstruction,
    sources: &[
        "§5: 4 servers of 8 V100, 8 of 2 P100, 4 of 4 T4; §3.4.2: ResNet50 is 2.45 times as fast on a V100 as on a T4",
        "§5.2: the baseline has gangs of one type in order of arrival; EasyScale has minP 0 (here: one GPU) and the same order",
        "mean completion 8,905 s and makespan 16,560 s of the baseline: the authors' artifact, cited",
        "what it costs to start, to grow and to save: measured on Ebb, docs/measurements.md",
    ],
    free: &[
        Free { name: "P100", value: "1.5 times as fast as a T4", how: "between the two that are printed" },
        Free {
            name: "speed by GPUs",
            value: "W logical workers, evenly spread, the fullest GPU decides",
            how: "the paper's own model (equations 1a to 1e); its models' speeds are not public",
        },
        Free {
            name: "GPUs of a job",
            value: "1, 4, 8, 16 in 45, 20, 25, 10 of 100 jobs",
            how: "declared beforehand; sizes of Microsoft's clusters, with more in between",
        },
        Free {
            name: "running time, arrivals",
            value: "160 jobs within 40 minutes; log-normal around 1,900 s on T4, deviation of the logarithm 0.9, none longer than 90 minutes",
            how: "fitted on the baseline's completion and makespan",
        },
    ],
    notes: &[
        "completion gets 1.6 times shorter and not 8.3 times, and makespan no shorter: the work of these jobs is three quarters of what all GPUs could do within the baseline's makespan, so no scheduler makes that more than a third shorter; 2.5 times takes a baseline that uses 40 % of the GPUs at most. And a job stays on the type that it began on: those on T4 end last. The sizes of the paper's jobs are not public; larger ones, which leave more idle, were not tried, because that would be fitting on the result",
        "on mixed types makespan gets 1.3 times shorter, because jobs that ended last on T4 alone have V100s beside them, and completion hardly more than on one type; 13.2 and 2.8 times do not come out for the reason above. This row holds if all three types were of one numeric class, as the paper's kernels (D2) make them, at a cost for convolutions (236 %) that is not counted here; Ebb mixes types only where the same bits come out. How fast each type is is known at once; live it is measured",
    ],
    needs: None,
    seed: 1,
    seeds: 10,
    run,
};

fn run(inputs: &Inputs<'_>, found: &mut Found<'_>) -> Result<(), PapersError> {
    let (mut before, mut after, mut mixed) = (Vec::new(), Vec::new(), Vec::new());
    for seed in inputs.seeds.clone() {
        let setup = setup(inputs.scale, seed)?;
        let mut ran = |name: &str, setup: &Setup, policy: &dyn Policy| figures(&found.ran(name, setup, policy));
        before.push(ran("fifo", &setup, &Fifo));
        after.push(ran("easyscale", &setup, &EasyScale));
        mixed.push(ran("easyscale, mixed", &setup.with_mixed_types(|_| true), &EasyScale));
    }
    for (at, figure) in ["mean completion", "makespan"].into_iter().enumerate() {
        let ours: Vec<f64> = before.iter().map(|of| of[at]).collect();
        found.add("fifo", (figure, "s"), BASELINE_S[at], &ours, true);
    }
    for (name, runs, printed) in [("easyscale", &after, SHORTER), ("easyscale, mixed", &mixed, SHORTER_MIXED)] {
        for (at, figure) in ["mean completion, shorter", "makespan, shorter"].into_iter().enumerate() {
            let times: Vec<f64> = before.iter().zip(runs).map(|(before, after)| before[at] / after[at]).collect();
            found.add(name, (figure, "times"), printed[at], &times, false);
        }
    }
    Ok(())
}

fn figures(outcome: &Outcome) -> [f64; 2] {
    let figures = outcome.figures(&vec![None; outcome.jobs.len()]);
    ["mean_completion_s", "makespan_s"].map(|key| figures[key].as_f64().unwrap_or(f64::NAN))
}

fn setup(scale: f64, seed: u64) -> Result<Setup, PapersError> {
    let shape = Shape { min_share: 0.0, max_share: 1.0, step_ms: 500, speed_up: 1.0, goodput: false };
    let costs = Costs::measured(REPLICA_MB);
    let jobs = jobs(&JOBS.recording(scale, seed, |_, job| job), &Tables::default(), &shape, &costs, seed)?.0;
    Ok(Setup::of_training_alone(jobs, cluster(CLUSTER), costs, seed))
}
