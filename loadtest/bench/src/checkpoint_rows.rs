//! What a checkpoint of a large replica costs the training: how long the step is beside which its writing begins, against the others. The store is a folder of
//! the same machine, whose two cores also copy, hash and write.

use crate::Effort;
use crate::row::{Row, Times};
use crate::subject::{Subject, document};
use gateway_api::{Job, PublishDemand};
use loadtest_harness::service::Service;
use loadtest_harness::watched_job::WatchedJob;
use loadtest_harness::{HarnessError, LOCAL_FLEET};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

/// Names of the rows.
pub const NAMES: [&str; 2] = ["checkpoint of 655 MB, 1 executor", "checkpoint of 655 MB, 2 executors"];
/// Executors of each.
const EXECUTORS: [u16; 2] = [1, 2];
/// Two hidden layers of so many: 54.6 M parameters, and three times as much with AdamW.
const HIDDEN: u32 = 7_350;
/// Samples of a step of one logical worker: a step lasts longer than the quarter of a second after which an executor tells another one.
const ROWS: u16 = 32;
/// Steps between two checkpoints: as many as their writing takes at least.
const EVERY_STEPS: u64 = 12;
/// Longest wait for any one thing.
const WAIT_MAX: Duration = Duration::from_secs(300);

/// A row for each number of executors whose name is wanted.
pub async fn rows(folder: &Path, effort: Effort, wanted: impl Fn(&str) -> bool) -> Result<Vec<Row>, HarnessError> {
    let mut rows = Vec::new();
    for (name, executors) in NAMES.into_iter().zip(EXECUTORS).filter(|(name, _)| wanted(name)) {
        rows.push(row(folder, effort, name, executors).await?);
    }
    Ok(rows)
}

async fn row(folder: &Path, effort: Effort, name: &'static str, executors: u16) -> Result<Row, HarnessError> {
    let mut document = document(&json!({"kind": "mlp", "hidden": [HIDDEN, HIDDEN]}), 2, ROWS, crate::ENDLESS);
    document["optimizer"] = json!({"kind": "adamw", "learning_rate": 0.001});
    document["checkpoint"] = json!({"every_steps": EVERY_STEPS});
    let subject = Subject { document, torch: None };
    let service = Service::start(subject.service(&folder.join(format!("checkpoint-{executors}")), 2)?).await?;
    let client = service.client()?;
    client.demand(LOCAL_FLEET, &PublishDemand::needed(u32::from(2 - executors))).await?;
    let job = subject.submit(&client, "bench-checkpoint").await?;
    let told = Mutex::new(BTreeMap::<u64, u64>::new());
    let note = |job: &Job| {
        let progress = job.progress.filter(|progress| progress.members == executors);
        if let (Some(progress), Ok(mut told)) = (progress, told.lock()) {
            told.insert(progress.step, progress.step_us);
        }
    };
    let mut watched = WatchedJob::follow(&client, &job.id, note).waiting(WAIT_MAX);
    watched.until_members(executors).await?;
    watched.until_steps(EVERY_STEPS).await?;
    let from = told.lock().map(|told| told.len()).unwrap_or(0);
    watched.until_steps(EVERY_STEPS * effort.pick(3, 8)).await?;
    drop(watched);
    service.stop().await?;
    let told = told.into_inner().unwrap_or_default();
    let (beside, others): (Vec<_>, Vec<_>) = told.into_iter().skip(from).partition(|(step, _)| step % EVERY_STEPS == 1);
    let times = |steps: Vec<(u64, u64)>| Times::of_ms(steps.into_iter().map(|(_, us)| us as f64 / 1e3).collect());
    let (beside, others) = (times(beside), times(others));
    Ok(Row {
        name,
        value: beside.median(),
        unit: "ms p50, the step beside which it begins",
        baseline_name: "ms p50 of the others",
        baseline: others.median(),
        goal: None,
        note: format!("beside which it begins: {}; the others: {}", beside.spread(), others.spread()),
    })
}
