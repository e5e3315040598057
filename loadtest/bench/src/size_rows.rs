//! What jobs with large replicas cost that nothing happens to: a step of the elastic loop against a plain loop, many logical workers on one executor, and the
//! memory of both. Then slots come and go under one of them, as they do where a fleet lends them: what it trains, against what its slots could have.

use crate::Effort;
use crate::goal;
use crate::growth_rows::{LargeModel, WORKERS, demand};
use crate::one_slot::{Best, Slots, WARM_SHARE};
use crate::row::{Row, Times, number};
use crate::step_rows::best_window_ms;
use gateway_client::Client;
use loadtest_harness::HarnessError;
use loadtest_harness::service::Service;
use loadtest_harness::watched_job::WatchedJob;
use std::path::Path;
use std::time::{Duration, Instant};
use workers_executor::plain::train_plain_steps;

/// Names of the rows of a job whose replica is so large.
macro_rules! names {
    ($size:literal) => {
        [
            concat!("elastic loop step", $size),
            concat!("logical workers on one executor", $size),
            concat!("memory, 1 logical worker", $size),
            concat!("memory, 4 logical workers", $size),
            concat!("slots that come and go", $size),
            concat!("wait for data", $size),
        ]
    };
}

/// Names of the rows, for the first sizes of `growth_rows.rs`.
pub const NAMES: [[&str; 6]; 2] = [names!(", replica of 106 MB"), names!(", replica of 655 MB")];

/// Logical workers of the jobs that have many.
const MANY: u16 = 4;
/// Longest wait for any one thing: hundreds of megabytes are initialized, sent and copied.
const WAIT_MAX: Duration = Duration::from_secs(300);
/// Times that slots come or go, of a quick run and of a full one: an odd and an even one together are one figure, and five of them the least that a verdict needs.
const PHASES: [u32; 2] = [4, 10];
/// Share of a phase at its beginning that does not count for its usual speed: who has come starts, follows and comes in then.
const SETTLING_SHARE: u32 = 3;
/// How often steps are counted while slots come and go.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A model, and which of its rows are wanted.
pub struct Sized<'a> {
    /// The model.
    pub model: LargeModel<'a>,
    /// What its rows are called.
    pub names: [&'static str; 6],
}

/// All rows of a size that are wanted.
pub async fn rows(
    folder: &Path,
    sized: &Sized<'_>,
    effort: Effort,
    wanted: impl Fn(&str) -> bool,
) -> Result<Vec<Row>, HarnessError> {
    let folder = folder.join(sized.names[0].replace([' ', ','], "-"));
    std::fs::create_dir_all(&folder).map_err(|e| HarnessError::local("the bench's folder cannot be made", e))?;
    let mut rows = Vec::new();
    if sized.names[..2].iter().chain(&sized.names[5..]).any(|name| wanted(name)) {
        rows.extend(steps(&folder, sized, effort).await?);
    }
    if sized.names[2..4].iter().any(|name| wanted(name)) {
        rows.extend(memory(&folder, sized, effort).await?);
    }
    if wanted(sized.names[4]) {
        rows.push(come_and_go(&folder, sized, effort).await?);
    }
    Ok(rows)
}

/// Each kind of loop has its turn in every round, so that a slower spell of the machine meets all.
async fn steps(folder: &Path, sized: &Sized<'_>, effort: Effort) -> Result<[Row; 3], HarnessError> {
    let (rounds, steps) = (goal::TURNS, effort.pick(12, 40));
    let bench = Slots::one(&sized.model.job(1, 1), &folder.join("steps")).await?;
    let counts = [1, MANY];
    let [mut elastic, mut plain] = [const { [const { Best::new() }; 2] }; 2];
    let mut waits_ms = Vec::new();
    for round in 0..rounds {
        for (at, workers) in counts.into_iter().enumerate() {
            let seen = bench.run(&sized.model.job(workers, steps), &format!("of-{workers}-{round}"), false).await?;
            elastic[at].take(seen.best_ms, seen.processor_ms);
            waits_ms.extend(seen.data_waits_ms);
            plain[at].take(plain_step_ms(folder, &sized.model, workers, steps).await?, 0.0);
        }
    }
    bench.stop().await?;
    let row = |at: usize, baseline_name, note: String| {
        let (value, baseline) = (elastic[at].step(), plain[at].step());
        let note = format!("best second of {rounds} runs in turns, {:+.1} ms{note}", value - baseline);
        let goal = Some(goal::LIKE_PLAIN.of_ratios(&elastic[at].of_turns(&plain[at], 1.0)));
        Row { name: sized.names[at], value, unit: "ms", baseline_name, baseline, goal, note }
    };
    // One update is made for all of them, so that as many times one is more than they may take.
    let as_many = number(f64::from(MANY) * elastic[0].step());
    let waits = Times::of_ms(waits_ms);
    let waiting = Row {
        name: sized.names[5],
        value: waits.median(),
        unit: "ms",
        baseline_name: "ms a step",
        baseline: elastic[0].step(),
        goal: Some(goal::NO_WAIT.of_middle(&waits, &elastic[0].steps())),
        note: format!("1 and {MANY} workers; means over a second: {}", waits.spread()),
    };
    Ok([
        row(0, "ms the same in a plain loop", String::new()),
        row(1, "ms a plain loop of as many batches", format!("; {MANY} workers; as many times one: {as_many} ms")),
        waiting,
    ])
}

/// Ebb's own model in this process, without membership; one in PyTorch in a plain loop of it. As many batches make a gradient as there are workers.
async fn plain_step_ms(folder: &Path, model: &LargeModel<'_>, workers: u16, steps: u64) -> Result<f64, HarnessError> {
    let times: Vec<Duration> = match model.code() {
        Some((code, model)) => {
            let plain = code.plain(model, workers, steps).await?;
            plain.step_ms.iter().map(|ms| Duration::from_secs_f64(ms / 1e3)).collect()
        }
        None => {
            let (job, order, address) = model.job(workers, steps).order(folder).await?;
            let run = tokio::task::spawn_blocking(move || train_plain_steps(&job, &order, &address, None, steps)).await;
            let failed = "the plain loop failed";
            run.map_err(|e| HarnessError::local(failed, e))?.map_err(|e| HarnessError::local(failed, e))?.step_times
        }
    };
    Ok(best_window_ms(&times[times.len() / WARM_SHARE as usize..]))
}

/// The processes of an executor, less those of a model with next to no gradient, against what replica and gradients need.
async fn memory(folder: &Path, sized: &Sized<'_>, effort: Effort) -> Result<Vec<Row>, HarnessError> {
    let bench = Slots::one(&sized.model.job(1, 1), &folder.join("memory")).await?;
    let framework = bench.run(&sized.model.small(1, effort.pick(2_000, 4_000)), "framework", true).await?.memory_mb;
    let mut rows = Vec::new();
    for (name, workers) in sized.names[2..4].iter().zip([1, MANY]) {
        let seen = bench.run(&sized.model.job(workers, effort.pick(15, 30)), &format!("of-{workers}"), true).await?;
        let (gradient_mb, replica_mb) = sized.model.megabytes();
        let needed_mb = replica_mb + (3.0 + f64::from(workers).log2().ceil()) * gradient_mb;
        rows.push(Row {
            name,
            value: seen.memory_mb - framework,
            unit: "MB",
            baseline_name: "MB: R + 3 G + ⌈log2 n⌉ G",
            baseline: needed_mb,
            goal: Some(goal::NO_MORE.seen(seen.memory_mb - framework, needed_mb)),
            note: format!(
                "most seen, G = {} MB, R = {} MB; beside it {} MB of a model with next to no gradient",
                number(gradient_mb),
                number(replica_mb),
                number(framework)
            ),
        });
    }
    bench.stop().await?;
    Ok(rows)
}

/// Steps of a phase: how many, how long it was, and how many a second once it had settled.
struct Phase {
    steps: f64,
    seconds: f64,
    usual_per_s: f64,
}

/// A job has two slots, one, two and one again; what it trained, of what it would have if it had gone at once at the usual speed of so many slots.
async fn come_and_go(folder: &Path, sized: &Sized<'_>, effort: Effort) -> Result<Row, HarnessError> {
    let job = sized.model.job(WORKERS, crate::ENDLESS);
    let options = job.service(&folder.join("come-and-go"), WORKERS)?.with("--speeds", Some("assumed"));
    let service = Service::start(options).await?;
    let client = service.client()?;
    demand(&client, u32::from(WORKERS) - 1).await?;
    let submitted = job.submit(&client, "come-and-go").await?;
    let mut watched = WatchedJob::follow(&client, &submitted.id, |_| ()).waiting(WAIT_MAX);
    watched.until_members(1).await?;
    watched.until_steps(4).await?;
    drop(watched);
    let length = effort.pick(Duration::from_secs(60), Duration::from_secs(150));
    let mut phases = Vec::new();
    let count = effort.pick(PHASES[0], PHASES[1]);
    for phase in 0..count {
        demand(&client, phase % 2 * (u32::from(WORKERS) - 1)).await?;
        phases.push(during(&client, &submitted.id, length).await?);
    }
    service.stop().await?;
    let trained: f64 = phases.iter().map(|phase| phase.steps).sum();
    let ideal: f64 = phases.iter().map(|phase| phase.usual_per_s * phase.seconds).sum();
    let ideal_of = |of: &Phase| of.usual_per_s * of.seconds;
    let each = phases.iter().map(|of| format!("{:.1} %", of.steps / ideal_of(of) * 100.0));
    // Members who come and members who go cost differently, so that one of each counts as one figure.
    let pairs = phases
        .chunks_exact(2)
        .map(|pair| pair.iter().map(|of| of.steps).sum::<f64>() / pair.iter().map(ideal_of).sum::<f64>());
    let goal = Some(goal::ALMOST_ALL.of_ratios(&Times::of_ms(pairs.collect())));
    Ok(Row {
        name: sized.names[4],
        value: trained,
        unit: "steps",
        baseline_name: "steps at each phase's usual speed",
        baseline: ideal,
        goal,
        note: format!(
            "{count} phases of {} s on two slots and on one in turn: {}; a usual speed is that of a phase's last two thirds",
            length.as_secs(),
            each.collect::<Vec<_>>().join(", ")
        ),
    })
}

async fn during(client: &Client, job: &str, length: Duration) -> Result<Phase, HarnessError> {
    let begun = Instant::now();
    let mut told: Vec<(f64, f64)> = Vec::new();
    while begun.elapsed() < length {
        if let Some(progress) = client.job(job).await?.progress {
            let is_news = told.last().is_none_or(|(_, step)| *step != progress.step as f64);
            if is_news {
                told.push((begun.elapsed().as_secs_f64(), progress.step as f64));
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let settled_s = length.as_secs_f64() / f64::from(SETTLING_SHARE);
    let last = told.last();
    let settled = told.iter().find(|(at, _)| *at >= settled_s).filter(|settled| Some(*settled) != last);
    let (Some(first), Some(settled), Some(last)) = (told.first(), settled, last) else {
        return Err(HarnessError::plain("the bench's job made no steps while its slots came and went"));
    };
    let per_s = |from: &(f64, f64)| (last.1 - from.1) / (last.0 - from.0).max(f64::MIN_POSITIVE);
    Ok(Phase { steps: last.1 - first.1, seconds: last.0 - first.0, usual_per_s: per_s(settled) })
}
