//! What a checkpoint of a large replica costs the training: how long the step is beside which its writing begins, against the others around it, and for how long
//! updates were held up in all, by the executors' own logs, against one copy of what each of them writes. The store is a folder of the same machine, whose
//! processors also copy, hash and write.

use crate::Effort;
use crate::goal;
use crate::growth_rows::{LargeModel, WORKERS, demand};
use crate::reduce_rows::copies_at_once;
use crate::row::{Row, Times, number};
use crate::spread::Compared;
use gateway_api::Job;
use loadtest_harness::HarnessError;
use loadtest_harness::service::Service;
use loadtest_harness::watched_job::WatchedJob;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

/// Names of the rows of a checkpoint that is so large: with one executor, and with two.
macro_rules! names {
    ($size:literal) => {
        [
            concat!("checkpoint of ", $size, ", 1 executor"),
            concat!("checkpoint of ", $size, ", 2 executors"),
            concat!("updates held up by a checkpoint of ", $size, ", 1 executor"),
            concat!("updates held up by a checkpoint of ", $size, ", 2 executors"),
        ]
    };
}

/// Names of the rows, for the first sizes of `growth_rows.rs`.
pub const NAMES: [[&str; 4]; 2] = [names!("106 MB"), names!("655 MB")];
/// Executors of each.
const EXECUTORS: [u16; 2] = [1, 2];
/// Steps between two checkpoints: as many as their writing takes at least.
const EVERY_STEPS: u64 = 12;
/// Longest wait for any one thing.
const WAIT_MAX: Duration = Duration::from_secs(300);
/// What executors log of what they hand over to be written, and of nothing else.
const LOGGED: &str = "warn,workers_executor::perform=debug";

/// Two rows for each number of executors of which a name is wanted.
pub async fn rows(
    folder: &Path,
    model: &LargeModel<'_>,
    names: [&'static str; 4],
    effort: Effort,
    wanted: impl Fn(&str) -> bool,
) -> Result<Vec<Row>, HarnessError> {
    let mut rows = Vec::new();
    for (at, executors) in EXECUTORS.into_iter().enumerate() {
        let names = [names[at], names[at + EXECUTORS.len()]];
        if names.iter().any(|name| wanted(name)) {
            let folder = folder.join(names[0].replace([' ', ','], "-"));
            let seen = watch(&folder, model, executors, effort).await?;
            let shard = (model.megabytes().1 * 1e6 / 4.0) as usize / usize::from(executors);
            let copy =
                tokio::task::spawn_blocking(move || copies_at_once(shard, goal::TURNS as usize, executors)).await;
            let copy = copy.map_err(|e| HarnessError::local("the memory copy failed", e))?;
            rows.extend(of_seen(names, &seen, &copy));
        }
    }
    Ok(rows)
}

/// What was seen of a job that writes one checkpoint after the other.
struct Seen {
    /// How long steps took, as far as they were told.
    steps_ms: BTreeMap<u64, f64>,
    /// For how long each checkpoint held up each executor.
    held_ms: Vec<f64>,
    /// Updates that had to copy the replica, of all executors.
    copies: u64,
}

async fn watch(folder: &Path, model: &LargeModel<'_>, executors: u16, effort: Effort) -> Result<Seen, HarnessError> {
    let mut subject = model.job(WORKERS, crate::ENDLESS);
    subject.document["checkpoint"] = json!({"every_steps": EVERY_STEPS});
    let mut options = subject.service(folder, WORKERS)?.with("--log-format", Some("json"));
    options.environment.push(("EBB_LOG".into(), LOGGED.into()));
    let service = Service::start(options).await?;
    let client = service.client()?;
    demand(&client, u32::from(WORKERS - executors)).await?;
    let job = subject.submit(&client, "bench-checkpoint").await?;
    let told = Mutex::new(BTreeMap::<u64, f64>::new());
    let note = |job: &Job| {
        let progress = job.progress.filter(|progress| progress.members == executors);
        if let (Some(progress), Ok(mut told)) = (progress, told.lock()) {
            told.insert(progress.step, progress.step_us as f64 / 1e3);
        }
    };
    let mut watched = WatchedJob::follow(&client, &job.id, note).waiting(WAIT_MAX);
    watched.until_members(executors).await?;
    // The first one pays for the memory of a shard.
    watched.until_steps(EVERY_STEPS).await?;
    let from = told.lock().ok().and_then(|told| told.last_key_value().map(|(step, _)| *step)).unwrap_or(0);
    watched.until_steps(EVERY_STEPS * effort.pick(7, 15)).await?;
    drop(watched);
    service.stop().await?;
    let mut steps_ms = told.into_inner().unwrap_or_default();
    steps_ms.retain(|step, _| *step > from);
    let (held_ms, copies) = held(&folder.join("agent/logs").join(&job.id))?;
    Ok(Seen { steps_ms, held_ms, copies })
}

/// Of a job's logs, for how long each checkpoint but the first held up each executor, and how many updates had to copy the replica.
fn held(logs: &Path) -> Result<(Vec<f64>, u64), HarnessError> {
    let cannot = |e| HarnessError::local(format!("the job's logs in `{}` cannot be read", logs.display()), e);
    let (mut held_ms, mut copies) = (Vec::new(), 0);
    for file in std::fs::read_dir(logs).map_err(cannot)? {
        let text = std::fs::read_to_string(file.map_err(cannot)?.path()).map_err(cannot)?;
        let (held, copied) = of_log(&text);
        held_ms.extend(held);
        copies += copied;
    }
    Ok((held_ms, copies))
}

/// The same of one executor's log: a line of a shard says what all before it have cost.
fn of_log(text: &str) -> (Vec<f64>, u64) {
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let shards: Vec<Value> =
        lines.filter(|line| line["task"].as_str().is_some_and(|task| task.starts_with("Shard"))).collect();
    let so_far = |name: &str| shards.iter().filter_map(|line| line[name].as_u64()).collect::<Vec<_>>();
    let held_us = so_far("held_us");
    let each = held_us.windows(2).skip(1).map(|pair| (pair[1] - pair[0]) as f64 / 1e3);
    (each.collect(), so_far("copies").last().copied().unwrap_or(0))
}

fn of_seen([step, pause]: [&'static str; 2], seen: &Seen, copy: &Times) -> [Row; 2] {
    let steps = &seen.steps_ms;
    // A checkpoint is of the state after a step; the step that follows is the one beside which its writing begins.
    let beside = steps.iter().filter(|(step, _)| *step % EVERY_STEPS == 1);
    let compared: Vec<Compared> = beside
        .filter_map(|(step, ms)| {
            let others: Vec<f64> = steps.range(step + 1..step + EVERY_STEPS).map(|(_, ms)| *ms).collect();
            Compared::new(*ms, &others)
        })
        .collect();
    let of_kind = |is_beside: bool| {
        let of = steps.iter().filter(move |(step, _)| (*step % EVERY_STEPS == 1) == is_beside);
        Times::of_ms(of.map(|(_, ms)| *ms).collect())
    };
    let ratios = Times::of_ms(compared.iter().map(|it| it.of_spread(copy.median())).collect());
    let (beside, others, held) = (of_kind(true), of_kind(false), Times::of_ms(seen.held_ms.clone()));
    let spread = Times::of_ms(compared.iter().map(|it| it.spread_ms).collect()).median();
    [
        Row {
            name: step,
            value: Times::of_ms(compared.iter().map(|it| it.beyond_middle_ms).collect()).median(),
            unit: "ms p50, the step beside which it begins beyond the middle one after it",
            baseline_name: "ms by which the longest one after it is, and a copy of a shard",
            baseline: spread + copy.median(),
            goal: Some(goal::NO_MORE.of_ratios(&ratios)),
            note: format!("beside which it begins: {}; the others: {}", beside.spread(), others.spread()),
        },
        Row {
            name: pause,
            value: held.median(),
            unit: "ms p50",
            baseline_name: "ms a memory copy of a shard",
            baseline: copy.median(),
            goal: Some(goal::NO_MORE.of_middle(&held, copy)),
            note: format!(
                "by the executors' logs: {}; {} updates copied the replica; a step {} ms",
                held.spread(),
                seen.copies,
                number(others.median())
            ),
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_checkpoint_held_up_is_what_came_before_the_next() {
        let line = |task: &str, held_us: u64, copies: u64| {
            json!({"level": "DEBUG", "task": task, "held_us": held_us, "copies": copies}).to_string()
        };
        let log = [
            line("Shard { checkpoint: 12 }", 0, 0),
            "a line of somebody else".to_owned(),
            line("Shard { checkpoint: 24 }", 90_000, 1),
            line("Manifest(24)", 91_000, 1),
            line("Shard { checkpoint: 36 }", 92_000, 1),
            line("Shard { checkpoint: 48 }", 92_500, 1),
        ];
        assert_eq!(of_log(&log.join("\n")), (vec![2.0, 0.5], 1), "the first pays for memory");
        assert_eq!(of_log(""), (Vec::new(), 0));
    }
}
