//! What two executors of one machine have in memory, each of them, less those of a model with next to no gradient, against what replica and gradients need: where
//! they read each other's gradients in memory, and where they send each other copies, as between machines.

use crate::Effort;
use crate::goal;
use crate::growth_rows::{LargeModel, WORKERS};
use crate::one_slot::Slots;
use crate::row::{Row, number};
use crate::step_rows::together;
use loadtest_harness::HarnessError;
use std::path::Path;

/// Names of the rows of a job whose replica is so large.
macro_rules! names {
    ($size:literal) => {
        [concat!("memory, 2 executors, lent", $size), concat!("memory, 2 executors, copied", $size)]
    };
}

/// Names of the rows, for the first sizes of `growth_rows.rs`.
pub const NAMES: [[&str; 2]; 2] = [names!(", replica of 106 MB"), names!(", replica of 655 MB")];

/// How they come by each other's gradients; what that needs beside a replica R and a gradient G of p executors, in words and in gradients.
const WAYS: [(&str, &str, f64); 2] =
    [("lent", "MB: R + G + 2 G/p", 1.0 + 2.0 / WORKERS as f64), ("copied", "MB: R + 3 G", 3.0)];

/// A row for each way whose name is wanted.
pub async fn rows(
    folder: &Path,
    model: &LargeModel<'_>,
    names: [&'static str; 2],
    effort: Effort,
    wanted: impl Fn(&str) -> bool,
) -> Result<Vec<Row>, HarnessError> {
    let mut rows = Vec::new();
    for (name, (way, baseline_name, gradients)) in names.into_iter().zip(WAYS).filter(|(name, _)| wanted(name)) {
        let job = |steps| together(model.job(WORKERS, steps), WORKERS);
        let bench = Slots::start(&job(1), &folder.join(name.replace([' ', ','], "-")), WORKERS, Some(way)).await?;
        let small = together(model.small(WORKERS, effort.pick(2_000, 4_000)), WORKERS);
        let framework = bench.run(&small, "framework", true).await?.memory_mb;
        let seen = bench.run(&job(effort.pick(15, 30)), "large", true).await?;
        bench.stop().await?;
        let (gradient_mb, replica_mb) = model.megabytes();
        let (value, baseline) = (seen.memory_mb - framework, replica_mb + gradients * gradient_mb);
        rows.push(Row {
            name,
            value,
            unit: "MB",
            baseline_name,
            baseline,
            goal: Some(goal::NO_MORE.seen(value, baseline)),
            note: format!(
                "most seen of the one that has more, G = {} MB, R = {} MB; what both map counts half; beside it {} MB of a model with next to no gradient",
                number(gradient_mb),
                number(replica_mb),
                number(framework)
            ),
        });
    }
    Ok(rows)
}
