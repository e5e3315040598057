//! Models in PyTorch, in this process: what an executor does before its first step, and what it does in a step while Python does nothing.

use crate::Effort;
use crate::goal;
use crate::reduce_rows::copies_at_once;
use crate::row::{Row, Times, number};
use crate::torch_code::{Model, TorchCode};
use crate::torch_rows::LARGE;
use loadtest_harness::HarnessError;
use std::time::Duration;
use workers_executor::plain::{ColdStart, cold_start, train_plain_steps};

/// Names of the rows about starting.
pub const START_ROWS: [&str; 1] = ["PyTorch cold start"];
/// Names of the rows about the executor's own part of a step.
pub const OWN_ROWS: [&str; 2] = ["step outside Python, 100 MB", "step outside Python, 1 GB"];

/// Gradients of 1 GB, no state of the optimizer.
const HUGE: Model = Model { kind: "mlp", width: 9_120, momentum: 0.0, rows: 1 };

/// The row about starting.
pub async fn starts(code: &TorchCode, effort: Effort) -> Result<Vec<Row>, HarnessError> {
    let subject = code.job(LARGE, 1, 1);
    let (mut starts, mut imports) = (Vec::new(), Vec::new());
    for _ in 0..effort.pick(2, 5) {
        imports.push(code.import().await?);
        let (job, order, address, host) = code.order(&subject).await?;
        let started = in_background(move || cold_start(&job, &order, &address, Some(&host))).await?;
        starts.push(started);
    }
    let part = |of: fn(&ColdStart) -> Duration| number(Times::of(starts.iter().map(of)).median());
    let python = |of: fn(&workers_executor::plain::StartTimes) -> Duration| {
        Times::of(starts.iter().filter_map(|start| start.python.as_ref()).map(of)).median()
    };
    let (import, build, check) = (python(|t| t.import()), python(|t| t.build()), python(|t| t.check()));
    let open = Times::of(starts.iter().map(|start| start.open)).median();
    // Of each start by itself: medians of parts are of different ones, and do not add up.
    let rest = Times::of(starts.iter().map(|start| {
        let python = start.python.as_ref().map_or(Duration::ZERO, |t| t.import() + t.build() + t.check());
        start.open.saturating_sub(python)
    }));
    let bytes = starts.first().map_or(0, |start| start.replica_bytes) / 1_000_000;
    let note = format!(
        "import torch {}, build {}, check {}, all else {} ms; then a replica of {bytes} MB out in {} ms, in in {} ms; p50 of {}",
        number(import),
        number(build),
        number(check),
        number(rest.median()),
        part(|start| start.replica_out),
        part(|start| start.replica_in),
        starts.len()
    );
    let (baseline_name, baseline) = ("ms a bare `import torch`", Times::of(imports).median());
    Ok(vec![Row { name: START_ROWS[0], value: open, unit: "ms", baseline_name, baseline, goal: None, note }])
}

/// The rows about the executor's own part.
pub async fn own(code: &TorchCode, effort: Effort) -> Result<Vec<Row>, HarnessError> {
    let mut rows = Vec::new();
    for (name, model, steps) in [(OWN_ROWS[0], LARGE, effort.pick(10, 25)), (OWN_ROWS[1], HUGE, 6)] {
        // The second takes some 6 GB.
        if effort.quick && name == OWN_ROWS[1] {
            continue;
        }
        let subject = code.job(model, 1, steps);
        let (job, order, address, host) = code.order(&subject).await?;
        let run = in_background(move || train_plain_steps(&job, &order, &address, Some(&host), u64::MAX)).await?;
        // The first steps pay for pages.
        let own = Times::of(run.own_times.iter().skip(2).copied());
        let all = Times::of(run.step_times.iter().skip(2).copied());
        let elements = run.replica.len() / if model.momentum > 0.0 { 2 } else { 1 };
        drop(run);
        let copy = tokio::task::spawn_blocking(move || copies_at_once(elements, goal::TURNS as usize, 1))
            .await
            .map_err(|e| HarnessError::local("the memory copy failed", e))?;
        rows.push(Row {
            name,
            value: own.median(),
            unit: "ms",
            baseline_name: "ms a memory copy",
            baseline: copy.median(),
            goal: None,
            note: format!("of a step of {} ms; {}", number(all.median()), own.spread()),
        });
    }
    Ok(rows)
}

async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, workers_executor::ProgramError> + Send + 'static,
) -> Result<T, HarnessError> {
    let failed = |e: &dyn std::error::Error| HarnessError::plain(format!("the bench's model failed: {e}"));
    let done = tokio::task::spawn_blocking(work).await.map_err(|e| failed(&e))?;
    done.map_err(|e| HarnessError::plain(format!("the bench's model failed: {}", e.reason())))
}
