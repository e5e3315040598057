//! Table 2 of Amoeba (EDL): Tiresias beside Elastic-Tiresias on recorded jobs of Microsoft's cluster, by how large they are.
//!
//! The recording is not the paper's: that of more than 100,000 jobs in two months is not public with their speeds. So ratios are
//! compared: how much elasticity takes off each class' completion. Each class is a row of its own, because the paper's class rows allow 24.9 % in
//! total at most where its total says 29.8 %.

use super::{Found, Free, Inputs, Kind, PapersError, Scenario, cluster};
use crate::costs::{Costs, REPLICA_MB};
use crate::outcome::{Ended, Outcome};
use crate::setup::{Setup, Shape, jobs};
use crate::trace::{self, Format, TraceJob, Work};
use controller_core::Policy;
use controller_core::policy::elastic_tiresias::{ElasticTiresias, PENDING_MAX};
use controller_core::policy::tiresias::Tiresias;

/// Jobs of the recording that are run, by their submission.
const JOBS: usize = 6_000;
/// Not fitted: as many as these jobs keep busy.
const CLUSTER: &str = "12x8:gpu";
/// Most slots of a job, in those that it asked for.
const GROWTH: f64 = 4.0;

/// Classes by the service that jobs need, in slot·s, and what is printed: mean completion in s under both policies.
const CLASSES: [(&str, std::ops::Range<f64>, f64, f64); 4] = [
    ("all jobs", 0.0..f64::INFINITY, 52_055.0, 36_544.0),
    ("small jobs", 0.0..1e4, 1_646.0, 878.0),
    ("median jobs", 1e4..2e5, 33_669.0, 36_426.0),
    ("large jobs", 2e5..f64::INFINITY, 726_367.0, 550_543.0),
];

/// See the module.
pub const SCENARIO: Scenario = Scenario {
    name: "amoeba-table2",
    about: "tiresias and elastic-tiresias on jobs of Microsoft's Philly cluster, by their size",
    paper: "Wu et al., Elastic Deep Learning in Multi-Tenant GPU Clusters (Amoeba), §6.2, table 2",
    kind: Kind::Declared,
    sources: &[
        "the first 6,000 jobs of Philly as parsed in petuum/adaptdl, with their GPUs and running times; not the paper's recording, which is not public",
        "queues of 10,000 and 200,000 GPU·s, as printed",
        "what it costs to start and resize: measured on Ebb, docs/measurements.md",
    ],
    free: &[
        Free {
            name: "GPUs",
            value: "12 servers of 8",
            how: "chosen, and not fitted: reductions are compared, and not seconds",
        },
        Free { name: "N of R1", value: "10", how: "the policy's own; the paper prints none" },
        Free {
            name: "t(p)",
            value: "ElasticFlow's tables of six models",
            how: "one drawn for each job by the seed; the paper measured models of TensorFlow and prints none of it",
        },
        Free {
            name: "most GPUs of a job",
            value: "four times those it asked for",
            how: "declared beforehand; the paper bounds R2 by gain alone",
        },
    ],
    notes: &[
        "completion under `tiresias` is another one in each class, because these are other jobs: on the GPUs that they asked for, and without any waiting, large ones take 751,000 s in the mean, median ones 44,600 and small ones 482. The paper's large and median ones take less than that with all their waiting",
        "small jobs take 520 s under both policies: 95 of 100 jobs of this recording are on one GPU, and small ones find room at once, so there is nothing to take off",
        "median jobs get faster here and slower in the paper, whose rows by class do not add up to its total: they wait 2,990 s instead of 13,700, most of all because large ones give way by R1. Without R1 (N = 100,000) they get 6 % faster, and without growth beyond what was asked for 13 %. What R1 takes from them is little here: 94 of 100 jobs have one GPU, which cannot be halved",
        "large jobs get 33 % faster and not 24 %: R2 lets them grow to four times what they asked for, which was declared. Without growth it is 14 %",
    ],
    needs: Some("Philly's jobs (jobs/philly.csv.gz) and ElasticFlow's measurements (throughput/elasticflow_t4)"),
    seed: 1,
    seeds: 1,
    run,
};

fn run(inputs: &Inputs<'_>, found: &mut Found<'_>) -> Result<(), PapersError> {
    let needs = SCENARIO.needs.unwrap_or_default();
    let Some((data, philly)) = inputs.data.and_then(|data| Some((data, data.philly.as_deref()?))) else {
        return Err(PapersError::Needs { name: SCENARIO.name, needs });
    };
    let mut trace = trace::parse(philly, Format::Philly)?;
    trace.truncate((JOBS as f64 * inputs.scale).ceil() as usize);
    let shape = Shape { min_share: 0.0, max_share: GROWTH, step_ms: 500, speed_up: 1.0, goodput: false };
    let (costs, seed) = (Costs::measured(REPLICA_MB), inputs.seeds.start);
    let setup = Setup::of_training_alone(
        jobs(&trace, &data.elasticflow_tables, &shape, &costs, seed)?.0,
        cluster(CLUSTER),
        costs,
        seed,
    );
    let elastic = ElasticTiresias::new(Tiresias::default(), PENDING_MAX);
    let policies: [&dyn Policy; 2] = [&Tiresias::default(), &elastic];
    let outcomes = policies.map(|policy| found.ran(policy.name(), &setup, policy));
    for (class, service, before_s, after_s) in CLASSES {
        let [before, after] = outcomes.each_ref().map(|outcome| mean_s(&trace, outcome, &service));
        found.add(class, ("tiresias, completion", "s"), before_s, &[before], false);
        found.add(
            class,
            ("reduction", "%"),
            (1.0 - after_s / before_s) * 100.0,
            &[(1.0 - after / before) * 100.0],
            false,
        );
    }
    Ok(())
}

/// Mean completion of finished jobs that need so much service.
fn mean_s(trace: &[TraceJob], outcome: &Outcome, service: &std::ops::Range<f64>) -> f64 {
    let needs = |job: &TraceJob| match job.work {
        Work::Seconds(seconds) => seconds * f64::from(job.workers),
        Work::OfModel => f64::NAN,
    };
    let of_class = trace.iter().zip(&outcome.jobs).filter(|(job, _)| service.contains(&needs(job)));
    let ended = of_class.filter_map(|(_, job)| match job.ended {
        Some((Ended::Finished, at)) => Some((at - job.submitted_ms) as f64 / 1e3),
        _ => None,
    });
    let ended: Vec<f64> = ended.collect();
    ended.iter().sum::<f64>() / ended.len() as f64
}
