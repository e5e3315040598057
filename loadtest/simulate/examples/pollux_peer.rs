//! Pollux's four workloads by the ten rules of its own simulator, under the real controller, beside the means that were published for
//! Tiresias there: `cargo run --release -p loadtest-simulate --example pollux_peer -- WORKLOADS TABLES`, the folders with `workload-1.csv` to
//! `workload-4.csv` and with a folder of measurements for each model.
#![allow(clippy::unwrap_used)]

use controller_core::policy::tiresias::Tiresias;
use loadtest_simulate::outcome::JOBS_HEADER;
use loadtest_simulate::pollux::PolluxModel;
use loadtest_simulate::setup::{Shape, jobs};
use loadtest_simulate::{Costs, Format, Setup, Tables, run, trace};
use std::path::Path;

/// Mean completion of Tiresias, in seconds.
const PUBLISHED_S: [f64; 4] = [2_473.65, 5_144.962_5, 3_876.256_25, 3_280.262_5];

fn tables(folder: &Path) -> Tables {
    let mut tables = Tables::default();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = |file: &str| std::fs::read_to_string(path.join(file)).unwrap();
        let mut model = PolluxModel::read(&text("placements.csv"), &text("scalability.csv")).unwrap();
        for file in std::fs::read_dir(&path).unwrap() {
            let name = file.unwrap().file_name().into_string().unwrap();
            let size = name.strip_prefix("validation-").and_then(|name| name.strip_suffix(".csv"));
            if let Some(size) = size {
                model.add_validation(size.parse().unwrap(), &text(&name)).unwrap();
            }
        }
        tables.add_pollux(path.file_name().unwrap().to_str().unwrap(), model);
    }
    tables
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let tables = tables(Path::new(&arguments[2]));
    let shape = Shape { min_share: 1.0, max_share: 1.0, step_ms: 500, speed_up: 1.0, goodput: true };
    let costs = Costs { start_ms: 30_000, ..Costs::none() };
    for (number, published_s) in (1..).zip(PUBLISHED_S) {
        let text = std::fs::read_to_string(format!("{}/workload-{number}.csv", arguments[1])).unwrap();
        let trace = trace::parse(&text, Format::Pollux).unwrap();
        let setup = Setup {
            round_ms: Some(60_000),
            ..Setup::of_training_alone(
                jobs(&trace, &tables, &shape, &costs, 0).unwrap().0,
                "16x4:t4".parse().unwrap(),
                costs,
                0,
            )
        };
        let policy = Tiresias::new(vec![57_600_000], None).unwrap();
        let outcome = run(&setup, &policy, &mut || 0);
        let figures = outcome.figures(&vec![None; setup.jobs.len()]);
        let mean_s = figures["mean_completion_s"].as_f64().unwrap();
        let off = (mean_s / published_s - 1.0) * 100.0;
        println!(
            "workload {number}: {mean_s:.2} s, published {published_s:.2} s, {off:+.2} %; finished {}, preemptions {}, beyond measured {}, violations {:?}",
            figures["finished"], figures["preemptions"], figures["below_measured_sizes"], outcome.tally.violations
        );
        if let Some(name) = arguments.get(3) {
            std::fs::write(format!("{name}-{number}.csv"), JOBS_HEADER.to_owned() + &outcome.jobs_csv(&setup)).unwrap();
        }
    }
}
