//! What a checkpoint of a large replica costs the training: how long the step is beside which its writing begins, against those after it is written, and for how long
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
/// Steps between two checkpoints. No multiple of three, as an executor may tell every third only, and with enough after the calm begins for five of it to be told.
const EVERY_STEPS: u64 = 40;
/// Steps after which a checkpoint is written: twice as many as it was seen to take.
const WRITTEN_AFTER: u64 = 24;
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
            let shard = model.elements().1 as usize / usize::from(executors);
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
    /// For how long each checkpoint held up the executor that it held up longest.
    held_ms: Times,
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
    for _ in 0..effort.pick(7, 15) {
        watched.until_steps(EVERY_STEPS).await?;
    }
    drop(watched);
    service.stop().await?;
    let mut steps_ms = told.into_inner().unwrap_or_default();
    steps_ms.retain(|step, _| *step > from);
    let (held_ms, copies) = held(&folder.join("agent/logs").join(&job.id))?;
    Ok(Seen { steps_ms, held_ms, copies })
}

/// Of a job's logs, for how long each checkpoint but the first held up its executors, and how many updates had to copy the replica.
fn held(logs: &Path) -> Result<(Times, u64), HarnessError> {
    let cannot = |e| HarnessError::local(format!("the job's logs in `{}` cannot be read", logs.display()), e);
    let mut texts = Vec::new();
    for file in std::fs::read_dir(logs).map_err(cannot)? {
        texts.push(std::fs::read_to_string(file.map_err(cannot)?.path()).map_err(cannot)?);
    }
    Ok(of_logs(&texts))
}

/// The same: what executors do for one checkpoint is one event, of which the longest counts.
fn of_logs(texts: &[String]) -> (Times, u64) {
    let (mut longest_ms, mut all_copies) = (BTreeMap::<String, f64>::new(), 0);
    for text in texts {
        let (held, copies) = of_log(text);
        for (checkpoint, ms) in held {
            let longest = longest_ms.entry(checkpoint).or_default();
            *longest = longest.max(ms);
        }
        all_copies += copies;
    }
    (Times::of_ms(longest_ms.into_values().collect()), all_copies)
}

/// The same of one executor's log, by checkpoint: a line of a shard says what all before it have cost.
fn of_log(text: &str) -> (Vec<(String, f64)>, u64) {
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let of_shard = |line: Value| {
        // Which of its shards is this executor's stands after that.
        let checkpoint = line["task"].as_str()?.strip_prefix("Shard")?.split(", index").next()?.to_owned();
        Some((checkpoint, line["held_us"].as_u64()?, line["copies"].as_u64()?))
    };
    let shards: Vec<(String, u64, u64)> = lines.filter_map(of_shard).collect();
    let each = shards.windows(2).skip(1).map(|pair| (pair[0].0.clone(), (pair[1].1 - pair[0].1) as f64 / 1e3));
    (each.collect(), shards.last().map_or(0, |(_, _, copies)| *copies))
}

fn of_seen([step, pause]: [&'static str; 2], seen: &Seen, copy: &Times) -> [Row; 2] {
    let (mut beside, mut calm, mut compared) = (Vec::new(), Vec::new(), Vec::new());
    // A checkpoint is of the state after a step; the step that follows is the one beside which its writing begins.
    for (step, ms) in seen.steps_ms.iter().filter(|(step, _)| *step % EVERY_STEPS == 1) {
        let others = seen.steps_ms.range(step + WRITTEN_AFTER..step + EVERY_STEPS);
        let others: Vec<f64> = others.map(|(_, ms)| *ms).collect();
        compared.extend(Compared::new(*ms, &others));
        beside.push(*ms);
        calm.extend(others);
    }
    let (beside, calm, held) = (Times::of_ms(beside), Times::of_ms(calm), &seen.held_ms);
    let of_each = |of: &dyn Fn(&Compared) -> f64| Times::of_ms(compared.iter().map(of).collect());
    [
        Row {
            name: step,
            value: of_each(&|it| it.beyond_middle_ms).median(),
            unit: "ms p50, the step beside which it begins beyond the middle one once it is written",
            baseline_name: "ms by which the longest one then is, and a copy of a shard",
            baseline: of_each(&|it| it.spread_ms).median() + copy.median(),
            goal: Some(goal::NO_MORE.of_ratios(&of_each(&|it| it.of_spread(copy.median())))),
            note: format!("beside which it begins: {}; once it is written: {}", beside.spread(), calm.spread()),
        },
        Row {
            name: pause,
            value: held.median(),
            unit: "ms p50",
            baseline_name: "ms a memory copy of a shard",
            baseline: copy.median(),
            goal: Some(goal::NO_MORE.of_middle(held, copy)),
            note: format!(
                "by the executors' logs, the longest of each checkpoint: {}; {} updates copied the replica; a step {} ms",
                held.spread(),
                seen.copies,
                number(calm.median())
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
            line("Shard { checkpoint: 12, index: 1, count: 2 }", 0, 0),
            "a line of somebody else".to_owned(),
            line("Shard { checkpoint: 24, index: 1, count: 2 }", 90_000, 1),
            line("Manifest(24)", 91_000, 1),
            line("Shard { checkpoint: 36, index: 1, count: 2 }", 92_000, 1),
            line("Shard { checkpoint: 48, index: 1, count: 2 }", 92_500, 1),
        ];
        let each = [24, 36].map(|step| format!(" {{ checkpoint: {step}")).into_iter().zip([2.0, 0.5]).collect();
        assert_eq!(of_log(&log.join("\n")), (each, 1), "the first pays for memory");
        assert_eq!(of_log(""), (Vec::new(), 0));
    }

    #[test]
    fn what_executors_do_for_one_checkpoint_is_held_up_once() {
        let log = |index: u16, held_us: [u64; 4]| {
            let line = |(step, held_us)| {
                let task = format!("Shard {{ checkpoint: {step}, index: {index}, count: 2 }}");
                json!({"task": task, "held_us": held_us, "copies": 1}).to_string()
            };
            [12, 24, 36, 48].into_iter().zip(held_us).map(line).collect::<Vec<_>>().join("\n")
        };
        let (held_ms, copies) = of_logs(&[log(0, [0, 0, 1_000, 4_000]), log(1, [0, 0, 2_000, 2_500])]);
        assert_eq!((held_ms.iter().collect::<Vec<_>>(), copies), (vec![2.0, 3.0], 2));
    }

    #[test]
    fn the_step_beside_a_checkpoint_is_compared_with_those_after_it_is_written() {
        let is_writing = |step: u64| (1..WRITTEN_AFTER).contains(&(step % EVERY_STEPS));
        let steps_ms = (1..=5 * EVERY_STEPS).map(|step| (step, if is_writing(step) { 200.0 } else { 100.0 })).collect();
        let seen = Seen { steps_ms, held_ms: Times::default(), copies: 0 };
        let [row, _] = of_seen(["step", "pause"], &seen, &Times::of_ms(vec![10.0; 5]));
        assert_eq!((row.value, row.baseline), (100.0, 10.0), "steps beside which it goes on are as long");
        assert_eq!(row.goal.map(|goal| goal.verdict()), Some(goal::Verdict::NotMet));
    }
}
