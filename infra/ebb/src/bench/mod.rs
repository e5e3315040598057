//! `ebb bench`: what this machine does, each figure beside a baseline taken in the same run, so that a ratio means something
//! on any machine.
//!
//! One file per subject, each a list of measurements; reading order: [`row`], `processor.rs`, `log_rows.rs`, `store_rows.rs`,
//! `reduce_rows.rs`, `step_rows.rs`, `loan_rows.rs`, `spans.rs`, `broker_rows.rs`. Nothing here asserts; figures are for people and for the closing note of a change.

pub mod row;

mod broker_rows;
mod loan_rows;
mod log_rows;
mod processor;
mod reduce_rows;
mod spans;
mod step_rows;
mod store_rows;

use crate::args::BenchArgs;
use crate::failure::Failure;
use crate::output::{Output, line};
use crate::roles::signals::unless_interrupted;
use crate::scratch::Scratch;
use row::Row;
use serde_json::{Value, json};
use std::path::Path;

pub use reduce_rows::member as reduce_member;

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effort {
    /// Fewer repetitions.
    pub quick: bool,
}

impl Effort {
    /// One of two amounts.
    #[must_use]
    pub fn pick<T>(self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }
}

/// Names of the rows of each subject, for `--only`.
const LOG_ROWS: &[&str] = &[
    "log append, 1 in flight",
    "log append, 256 in flight",
    "kafka append, 1 in flight",
    "kafka append, 256 in flight",
];
const STORE_ROWS: &[&str] = &["partition read", "checkpoint write"];
const REDUCE_ROWS: &[&str] = &["reduce 100 MB, 2 processes", "reduce 100 MB, 4 processes"];
const STEP_ROWS: &[&str] = &["elastic loop step", "logical workers on one executor"];
const LOAN_ROWS: &[&str] = &[
    "demand accepted to slot free",
    "take-back to slot free",
    "pause at scale in",
    "pause at scale out",
    "kill -9 to training again",
    "hung executor to training again",
];
const BROKER_ROWS: &[&str] = &["demand to slot free, broker killed", "demand to slot free, broker stopped"];

/// Share of the processor time wanted here, from which on its loss to other machines shows in the figures.
const STOLEN_WORTH_TELLING: f64 = 0.02;

/// `ebb bench`.
pub async fn bench(args: &BenchArgs, output: Output) -> Result<(), Failure> {
    let effort = Effort { quick: args.quick };
    let wanted = |names: &[&str]| args.only.as_deref().is_none_or(|only| names.iter().any(|n| n.contains(only)));
    if !wanted(&[LOG_ROWS, STORE_ROWS, REDUCE_ROWS, STEP_ROWS, LOAN_ROWS, BROKER_ROWS].concat()) {
        return Err(Failure::Usage(format!("no row's name contains `{}`", args.only.as_deref().unwrap_or_default())));
    }
    let folder = Scratch::fresh("ebb-bench")?;
    let mut rows = Vec::new();
    let before = processor::Time::now();
    let measured = unless_interrupted(measure(args, effort, folder.path(), &wanted, &mut rows)).await;
    let measured = measured.unwrap_or(Err(Failure::Interrupted));
    let removed = folder.remove().await;
    rows.retain(|row| args.only.as_deref().is_none_or(|only| row.name.contains(only)));
    let stolen = before.zip(processor::Time::now()).and_then(|(before, after)| after.stolen_since(before));
    match output {
        Output::Json => {
            let rows: Vec<Value> = rows.iter().map(Row::json).collect();
            line(json!({"rows": rows, "processor_stolen_ratio": stolen}).to_string());
        }
        Output::Table | Output::Name => {
            line(row::table(&rows));
            if let Some(stolen) = stolen.filter(|stolen| *stolen >= STOLEN_WORTH_TELLING) {
                line(format!(
                    "\nother machines on the same host took {:.0} % of the processor time wanted here: times are that uncertain",
                    stolen * 100.0
                ));
            }
        }
    }
    // What was measured before a failure is worth its minutes.
    measured.and(removed)
}

async fn measure(
    args: &BenchArgs,
    effort: Effort,
    folder: &Path,
    wanted: &impl Fn(&[&str]) -> bool,
    rows: &mut Vec<Row>,
) -> Result<(), Failure> {
    if wanted(LOG_ROWS) {
        progress("log");
        rows.extend(log_rows::embedded(folder, effort).await?);
        if let Some(url) = &args.log {
            rows.extend(log_rows::kafka(url, effort).await?);
        }
    }
    if wanted(STORE_ROWS) {
        progress("store");
        rows.extend(store_rows::rows(folder, effort).await?);
    }
    if wanted(REDUCE_ROWS) {
        progress("reduce");
        rows.extend(reduce_rows::rows(effort).await?);
    }
    if wanted(STEP_ROWS) {
        progress("steps");
        rows.extend(step_rows::rows(folder, effort).await?);
    }
    if wanted(LOAN_ROWS) {
        progress("loans");
        rows.extend(loan_rows::rows(folder, args.log.as_deref(), effort).await?);
    }
    if let Some(brokers) = args.brokers.as_deref().filter(|_| wanted(BROKER_ROWS)) {
        progress("lost brokers");
        broker_rows::rows(folder, brokers, effort, wanted, rows).await?;
    }
    Ok(())
}

fn progress(what: &str) {
    eprintln!("measuring: {what}");
}
