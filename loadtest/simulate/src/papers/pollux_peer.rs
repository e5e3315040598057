//! What Pollux's simulator says of Tiresias on its four workloads, by its own ten rules (`docs/simulator.md`), beside the published means.

use super::{Found, Inputs, Kind, PapersError, Scenario, cluster};
use crate::costs::Costs;
use crate::setup::{Setup, Shape, jobs};
use crate::trace::{self, Format};
use controller_core::policy::tiresias::Tiresias;

/// Its cluster, how long a start takes, how far rounds are apart, and after how much service Tiresias has a job in the second of two queues.
pub const CLUSTER: &str = "16x4:t4";
/// See [`CLUSTER`].
pub const START_MS: u64 = 30_000;
/// See [`CLUSTER`].
pub const ROUND_MS: u64 = 60_000;
/// See [`CLUSTER`].
pub const QUANTUM_SLOT_MS: u64 = 57_600_000;

/// Mean completion of Tiresias, in seconds, on workloads 1 to 4.
const PUBLISHED_S: [f64; 4] = [2_473.65, 5_144.962_5, 3_876.256_25, 3_280.262_5];

/// The four workloads.
pub const SCENARIO: Scenario = Scenario {
    name: "pollux-peer",
    about: "64 GPUs: tiresias by the rules of another simulator, on its own recordings and measurements",
    paper: "Qiao et al., Pollux, OSDI 2021: petuum/adaptdl, branch osdi21-artifact, as its simulator was run by others",
    kind: Kind::Recorded,
    sources: &["the workloads and measurements of that branch; the rules are in docs/simulator.md"],
    free: &[],
    notes: &[
        "workload 4: step times of placements that were not measured are taken by that simulator from Delaunay triangles over servers, GPUs and batch, and here from a line between placements with as many GPUs; with its triangles in a program of the same rules the difference is gone",
    ],
    needs: Some(
        "Pollux's workloads (jobs/pollux_workloads/workload-1.csv to -4.csv) and measurements (throughput/pollux_t4)",
    ),
    seed: 0,
    seeds: 1,
    run,
};

fn run(inputs: &Inputs<'_>, found: &mut Found<'_>) -> Result<(), PapersError> {
    let needs = SCENARIO.needs.unwrap_or_default();
    let Some(data) = inputs.data.filter(|data| data.pollux_workloads.len() == PUBLISHED_S.len()) else {
        return Err(PapersError::Needs { name: SCENARIO.name, needs });
    };
    let shape = Shape { min_share: 1.0, max_share: 1.0, step_ms: 500, speed_up: 1.0, goodput: true };
    let costs = Costs { start_ms: START_MS, ..Costs::none() };
    let policy = Tiresias::new(vec![QUANTUM_SLOT_MS], None).unwrap_or_default();
    for ((text, published_s), number) in data.pollux_workloads.iter().zip(PUBLISHED_S).zip(1..) {
        let mut trace = trace::parse(text, Format::Pollux)?;
        trace.truncate((trace.len() as f64 * inputs.scale).ceil() as usize);
        let setup = Setup {
            round_ms: Some(ROUND_MS),
            ..Setup::of_training_alone(
                jobs(&trace, &data.pollux_tables, &shape, &costs, inputs.seeds.start)?.0,
                cluster(CLUSTER),
                costs,
                inputs.seeds.start,
            )
        };
        let run = format!("workload {number}");
        let outcome = found.ran(&run, &setup, &policy);
        let figures = outcome.figures(&vec![None; setup.jobs.len()]);
        let mean_s = figures["mean_completion_s"].as_f64().unwrap_or(f64::NAN);
        found.add(&run, ("mean completion", "s"), published_s, &[mean_s], false);
    }
    Ok(())
}
