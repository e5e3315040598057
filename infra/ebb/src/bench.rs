//! `ebb bench`: prints what `loadtest/bench` measured, also what it had before a failure or an interruption.

use crate::args::{BenchArgs, BenchDevice, BenchEngine, BenchMemberArgs};
use crate::failure::Failure;
use crate::output::{Output, line, table};
use crate::roles::signals::unless_interrupted;
use loadtest_bench::processor::Time;
use loadtest_bench::row::{HEADINGS, Row};
use loadtest_bench::{BenchOptions, Device, Effort, Member, measure};
use loadtest_harness::scratch::Scratch;
use serde_json::{Value, json};
use workers_executor::collective::Memory;

/// Share of the processor time wanted here, from which on its loss to other machines shows in the figures.
const STOLEN_WORTH_TELLING: f64 = 0.02;

/// `ebb bench`.
pub async fn bench(args: &BenchArgs, output: Output) -> Result<(), Failure> {
    let effort = Effort { quick: args.quick, large: args.large };
    let only = args.only.as_deref();
    let device = match args.device {
        BenchDevice::Cpu => Device::Cpu,
        BenchDevice::Cuda => Device::Cuda,
    };
    let torch = match (args.engine, device) {
        (BenchEngine::Torch, _) => Some((args.python.as_str(), device)),
        (BenchEngine::Native, Device::Cpu) => None,
        (BenchEngine::Native, Device::Cuda) => {
            return Err(Failure::Usage(
                "`--device cuda` needs `--engine torch`: Ebb's own models train on processors".to_owned(),
            ));
        }
    };
    let options = BenchOptions { effort, torch, only, log: args.log.as_deref(), brokers: args.brokers.as_deref() };
    options.check()?;
    let folder = Scratch::fresh("ebb-bench")?;
    let mut rows = Vec::new();
    let before = Time::now();
    let measured = unless_interrupted(async { Ok(measure(&options, folder.path(), &mut rows).await?) }).await;
    let measured = measured.unwrap_or(Err(Failure::Interrupted));
    let removed = folder.remove().await;
    rows.retain(|row| only.is_none_or(|only| row.name.contains(only)));
    print(output, &rows, before.zip(Time::now()).and_then(|(before, after)| after.stolen_since(before)));
    // What was measured before a failure is worth its minutes.
    measured.and_then(|()| Ok(removed?))
}

fn print(output: Output, rows: &[Row], stolen: Option<f64>) {
    match output {
        Output::Json => {
            let rows: Vec<Value> = rows.iter().map(Row::json).collect();
            line(json!({"rows": rows, "processor_stolen_ratio": stolen}).to_string());
        }
        Output::Table | Output::Name => {
            line(table(&HEADINGS, &rows.iter().map(Row::cells).collect::<Vec<_>>()));
            if let Some(stolen) = stolen.filter(|stolen| *stolen >= STOLEN_WORTH_TELLING) {
                line(format!(
                    "\nother machines on the same host took {:.0} % of the processor time wanted here: times are that uncertain",
                    stolen * 100.0
                ));
            }
        }
    }
}

/// `ebb bench-member`.
pub fn member(args: &BenchMemberArgs) -> Result<(), Failure> {
    let memory = if args.copy { Memory::Copied } else { Memory::Lent };
    let member =
        Member { member: args.member, members: args.members, rounds: args.rounds, elements: args.elements, memory };
    Ok(loadtest_bench::member(member)?)
}
