//! Figure 13 of AntMan: jobs of a tenant with quota and of one without on 64 GPUs, beside gangs in order of arrival (YARN-CS).
//!
//! Nothing of its trace is public, so this is by construction; how jobs that share a GPU slow each other down is declared from the one pair that the paper prints. It
//! is run without sharing as well: what is left then is who goes first, and that opportunistic jobs have what is idle until it is wanted. The scheduler that packs
//! jobs (Gandiva) protects nobody, and is run with what packing does to the same pair.

use super::by_chance::ByChance;
use super::{Found, Free, Inputs, Kind, PapersError, Scenario, cluster};
use crate::costs::{Costs, REPLICA_MB};
use crate::curve::Tables;
use crate::outcome::Outcome;
use crate::random::Random;
use crate::setup::{Setup, Shape, jobs};
use crate::sharing::Sharing;
use crate::trace::TraceJob;
use controller_core::Policy;
use controller_core::policy::antman::Antman;
use controller_core::policy::fifo::Fifo;
use controller_core::policy::gandiva_like::GandivaLike;
use events_schema::TenantId;

/// 8 servers of 8 V100, all of them the quota of one tenant.
const CLUSTER: &str = "8x8:v100";
const QUOTA: u32 = 64;
const WITH_QUOTA: &str = "tenant-a";
const WITHOUT: &str = "tenant-b";
/// Jobs, within how long they come, and how long they take: log-normal, and none longer than so much.
const JOBS: ByChance = ByChance {
    jobs: 200.0,
    within_ms: 6.0 * 3_600_000.0,
    length_s: 1_200.0,
    length_sigma: 1.3,
    length_s_max: 14_400.0,
};

/// What is printed: how many times shorter completion and makespan are.
const SHORTER: [f64; 2] = [2.05, 1.76];

/// The same beside the scheduler that packs jobs.
const SHORTER_THAN_PACKED: [f64; 2] = [1.84, 1.67];

/// What is compared with that one.
const BESIDE_PACKED: &str = "antman, beside packed";

/// Who shares no slots.
const UNSHARED: &str = "antman, unshared";

/// See the module.
pub const SCENARIO: Scenario = Scenario {
    name: "antman-fig13",
    about: "antman beside fifo and beside who packs jobs, on 64 GPUs: one tenant's jobs are guaranteed, the other's use what is idle",
    paper: "Xiao et al., AntMan: Dynamic Scaling on GPU Clusters for Deep Learning, OSDI 2020, §5.2, figure 13",
    kind: Kind::ByConstruction,
    sources: &[
        "§5: 8 servers of 8 V100; §5.2: jobs are dealt to two tenants by chance, one has a quota of 64 GPUs, the other has none",
        "§5.2: the baseline is YARN's capacity scheduler: gangs in order of arrival",
        "what it costs to start, to grow and to save: measured on Ebb, docs/measurements.md",
    ],
    free: &[
        Free {
            name: "GPUs of a job",
            value: "1, 4, 8, 16 in 45, 20, 25, 10 of 100 jobs",
            how: "declared beforehand, as for easyscale-fig14",
        },
        Free {
            name: "running time, arrivals",
            value: "200 jobs within 6 hours; log-normal around 20 minutes, deviation of the logarithm 1.3, none longer than 4 hours",
            how: "declared beforehand: the paper names Microsoft's distribution and prints no absolute time to fit on",
        },
        Free {
            name: "speed by GPUs",
            value: "W logical workers, evenly spread, the fullest GPU decides",
            how: "as for easyscale-fig14; an opportunistic job has from one GPU to all that it asked for",
        },
        Free {
            name: "speeds of two jobs on a GPU",
            value: "the guest's 0.57 of what it is alone, its host's 20.1 / 20.8",
            how: "declared beforehand: the paper prints them of one pair, ResNet-50 beside ESPnet (§5.1, figure 12), and of no other; memory bounds nobody",
        },
        Free {
            name: "the same, packed",
            value: "one's 20.1 / 105.2, the other's 0.92; which of two jobs it is that waits for the other is by chance",
            how: "declared beforehand, of the same pair: ESPnet takes 105.2 minutes packed; how fast ResNet-50 is then is not printed, and is taken to lose as much less as ESPnet has less",
        },
        Free {
            name: "utilization of a host",
            value: "every tenth job uses 81 % of its GPUs, the others 0 to 72 %, evenly; known ten seconds after its process began to train",
            how: "declared beforehand, by §2.1, figure 1: 10 % of GPUs are used for more than 80 %; how fast two jobs are does not depend on it",
        },
    ],
    notes: &[
        "`antman` is with guest slots, `antman, unshared` without: what comes out of that is of order and of elasticity alone",
        "makespan gets 1.3 times shorter and not 1.76 times: two jobs on a GPU do 1.54 times as much as one (0.57 and 20.1 / 20.8, the one pair that is printed), so sharing cannot bring more. It is 1.43 where all jobs come within half an hour, 1.44 with twice as many jobs, and 1.03 where they come within twelve hours and GPUs are idle. 1.76 takes pairs that do more together",
        "mean completion gets 2.6 times shorter and not 2.05 times: that follows from how long the baseline's jobs wait and how fast guests are, and no number of either is printed. It is 1.34 where jobs come within twelve hours, 2.06 where none takes longer than an hour, and 2.13 with guests at 0.3 of their speed",
        "`antman, beside packed` is the same run of `antman` beside `gandiva-like`, which packs jobs where none are idle, by the lowest utilization; of the paper's Gandiva there is no more than that. Packing is worth less here than there: gangs of several GPUs are as fast as their slowest member, and one of each pair has a fifth of its speed until one of the two has ended, where Gandiva itself would part such a pair. With half of its speed mean completion gets 1.75 times shorter instead of 4.3, and makespan 1.18 instead of 1.9; printed are 1.84 and 1.67",
        "the paper shows guaranteed jobs to take about as long as when they preempt the others; here the jobs of the tenant with quota are put beside a run in which nobody else is there. They take a twentieth longer than that: 3.4 % is what a guest costs its host by what is declared here, and those that have waited for quota for ten minutes become opportunistic. Unshared they take a fifth longer, because these then have only what is idle, with the other tenant's",
    ],
    needs: None,
    seed: 1,
    seeds: 10,
    run,
};

fn run(inputs: &Inputs<'_>, found: &mut Found<'_>) -> Result<(), PapersError> {
    let antman = Antman;
    let mut of_figures: [Vec<f64>; 2] = [Vec::new(), Vec::new()];
    let mut of_unshared: [Vec<f64>; 2] = [Vec::new(), Vec::new()];
    let mut of_packed: [Vec<f64>; 2] = [Vec::new(), Vec::new()];
    let mut beside_alone = Vec::new();
    for seed in inputs.seeds.clone() {
        let trace = JOBS.recording(inputs.scale, seed, of_tenant);
        let before = found.ran(Fifo.name(), &setup(&trace, seed)?, &Fifo);
        let after = found.ran(antman.name(), &shared(&trace, seed, Sharing::OF_ANTMAN)?, &antman);
        let packed = found.ran(GandivaLike.name(), &shared(&trace, seed, Sharing::PACKED)?, &GandivaLike);
        let unshared = found.ran(UNSHARED, &setup(&trace, seed)?, &antman);
        let pairs = [
            (&mut of_figures, &before, &after),
            (&mut of_unshared, &before, &unshared),
            (&mut of_packed, &packed, &after),
        ];
        for (all, before, outcome) in pairs {
            let shorter = figures(before).into_iter().zip(figures(outcome)).map(|(before, after)| before / after);
            all.iter_mut().zip(shorter).for_each(|(all, times)| all.push(times));
        }
        let guaranteed = |job: &&TraceJob| job.tenant.as_deref() == Some(WITH_QUOTA);
        let alone: Vec<TraceJob> = trace.iter().filter(guaranteed).cloned().collect();
        let alone = found.ran("antman, guaranteed alone", &setup(&alone, seed)?, &antman);
        let theirs = trace.iter().zip(&after.jobs).filter(|(job, _)| guaranteed(job));
        let theirs = mean_ms(theirs.map(|(_, job)| job.completion_ms()));
        beside_alone.push(theirs / mean_ms(alone.jobs.iter().map(|job| job.completion_ms())));
    }
    let names = ["mean completion, shorter", "makespan, shorter"];
    let rows = [
        ("antman", SHORTER, &of_figures),
        (UNSHARED, SHORTER, &of_unshared),
        (BESIDE_PACKED, SHORTER_THAN_PACKED, &of_packed),
    ];
    for (who, shorter, of_figures) in rows {
        for ((figure, paper), ours) in names.into_iter().zip(shorter).zip(of_figures) {
            found.add(who, (figure, "times"), paper, ours, false);
        }
    }
    found.add("antman", ("guaranteed, as alone", "times"), 1.0, &beside_alone, false);
    Ok(())
}

fn figures(outcome: &Outcome) -> [f64; 2] {
    let figures = outcome.figures(&vec![None; outcome.jobs.len()]);
    ["mean_completion_s", "makespan_s"].map(|key| figures[key].as_f64().unwrap_or(f64::NAN))
}

/// The mean of those that there are.
fn mean_ms(of: impl Iterator<Item = Option<u64>>) -> f64 {
    let all: Vec<u64> = of.flatten().collect();
    all.iter().sum::<u64>() as f64 / all.len() as f64
}

fn setup(trace: &[TraceJob], seed: u64) -> Result<Setup, PapersError> {
    let shape = Shape { min_share: 0.0, max_share: 1.0, step_ms: 500, speed_up: 1.0, goodput: false };
    let costs = Costs::measured(REPLICA_MB);
    let jobs = jobs(trace, &Tables::default(), &shape, &costs, seed)?.0;
    let quotas = TenantId::parse(WITH_QUOTA).map(|tenant| (tenant, QUOTA)).into_iter().collect();
    Ok(Setup { quotas, ..Setup::of_training_alone(jobs, cluster(CLUSTER), costs, seed) })
}

/// The same, where jobs share slots.
fn shared(trace: &[TraceJob], seed: u64, sharing: Sharing) -> Result<Setup, PapersError> {
    Ok(Setup { sharing: Some(sharing), ..setup(trace, seed)? })
}

/// Every other one is of the tenant that has the quota, by chance.
fn of_tenant(random: &mut Random, job: TraceJob) -> TraceJob {
    let tenant = if random.share() < 0.5 { WITH_QUOTA } else { WITHOUT };
    TraceJob { tenant: Some(tenant.to_owned()), ..job }
}
