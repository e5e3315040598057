//! Models in PyTorch: a step of the elastic loop against a plain loop of the same model, many logical workers on one executor, and the memory
//! of both. Their executors run in a service, as users' do.

use crate::Effort;
use crate::goal;
use crate::one_slot::{Best, Slots, WARM_SHARE};
use crate::row::{Row, Times, number};
use crate::step_rows::best_window_ms;
use crate::torch_code::{Model, TorchCode};
use events_schema::{Rank, Step};
use loadtest_harness::HarnessError;
use std::path::Path;
use std::time::{Duration, Instant};
use storage::{Loader, LoaderLimits};

/// Logical workers of the jobs that have many.
const MANY: u16 = 4;

/// Steps of a few milliseconds.
const SMALL: Model = Model { kind: "cnn", width: 16, momentum: 0.9, rows: 64 };
/// Steps of 10 to 25 ms.
const MIDDLE: Model = Model { kind: "cnn", width: 32, momentum: 0.9, rows: 192 };
/// Gradients of 100 MB.
pub const LARGE: Model = Model { kind: "mlp", width: 2_875, momentum: 0.9, rows: 64 };
/// Bytes of its parameters, of its optimizer's state, and of a gradient.
const LARGE_MB: f64 = 4e-6 * (3.0 * 2_875.0 * 2_876.0 + 65.0 * 2_875.0 + 10.0 * 2_876.0);

/// Names of the step rows.
pub const STEP_ROWS: [&str; 5] = [
    "PyTorch step, small",
    "PyTorch step, middle",
    "PyTorch step, 100 MB",
    "logical workers on one executor",
    "wait for data, middle",
];
/// Names of the memory rows.
pub const MEMORY_ROWS: [&str; 2] = ["memory, 1 logical worker", "memory, 4 logical workers"];

/// The step rows. Each kind of loop has its turn in every round, so that a slower spell of the machine meets all.
pub async fn steps(code: &TorchCode, folder: &Path, effort: Effort) -> Result<Vec<Row>, HarnessError> {
    let bench = Slots::one(&code.job(SMALL, 1, 1), &folder.join("torch-steps")).await?;
    let sizes = [(SMALL, effort.pick(400, 2_000)), (MIDDLE, effort.pick(200, 500)), (LARGE, effort.pick(12, 30))];
    let rounds = goal::TURNS;
    let mut rows = Vec::new();
    let (mut one, mut many) = (Best::new(), Best::new());
    let mut waits_ms = Vec::new();
    for (index, (name, (model, steps))) in STEP_ROWS.into_iter().zip(sizes).enumerate() {
        let (mut ours, mut plain) = (Best::new(), Best::new());
        for round in 0..rounds {
            let key = |workers: u16| format!("bench-{index}-{workers}-{round}");
            let seen = bench.run(&code.job(model, 1, steps), &key(1), false).await?;
            ours.take(seen.best_ms, seen.processor_ms);
            let by_hand = code.plain(model, 1, steps).await?;
            let warm = by_hand.step_ms.iter().skip((steps / WARM_SHARE) as usize);
            let times: Vec<Duration> = warm.map(|ms| Duration::from_secs_f64(ms / 1e3)).collect();
            plain.take(best_window_ms(&times), by_hand.processor_ms);
            if index == 1 {
                waits_ms.extend(seen.data_waits_ms);
                let seen = bench.run(&code.job(model, MANY, steps / u64::from(MANY)), &key(MANY), false).await?;
                many.take(seen.best_ms, seen.processor_ms);
            }
        }
        if index == 1 {
            one = ours.clone();
        }
        rows.push(row(name, &ours, "ms a plain PyTorch loop", &plain, 1.0, rounds));
    }
    bench.stop().await?;
    rows.push(row(STEP_ROWS[3], &many, "ms as many times one", &one, f64::from(MANY), rounds));
    let waits = Times::of_ms(waits_ms);
    let gathering = gathering(code, MIDDLE, effort.pick(200, 500)).await?;
    rows.push(Row {
        name: STEP_ROWS[4],
        value: waits.median(),
        unit: "ms",
        baseline_name: "ms to gather its rows",
        baseline: gathering.median(),
        goal: Some(goal::NO_WAIT.of_middle(&waits, &gathering)),
        note: format!(
            "of a step with {} rows, which a thread gathers and places before it; means over a second: {}",
            MIDDLE.rows,
            waits.spread()
        ),
    });
    Ok(rows)
}

/// How long it takes to gather the rows of a step from memory: what a step would wait for if nobody did it before.
async fn gathering(code: &TorchCode, model: Model, steps: u64) -> Result<Times, HarnessError> {
    let (_, order, address, _) = code.order(&code.job(model, 1, steps)).await?;
    let cannot = |e: storage::DataError| HarnessError::local("the bench's dataset cannot be read", e);
    let store =
        storage::open_store(&address).map_err(|e| HarnessError::local("the bench's store cannot be opened", e))?;
    let dataset = order.dataset.as_ref().ok_or_else(|| HarnessError::plain("the bench's job has no dataset"))?;
    let loader = Loader::open(store, &order.spec, dataset, LoaderLimits::default()).await.map_err(cannot)?;
    let mut times = Vec::new();
    for step in 0..steps {
        let begun = Instant::now();
        loader.samples(Rank(0), Step(step)).await.map_err(cannot)?;
        times.push(begun.elapsed());
    }
    Ok(Times::of(times))
}

fn row(name: &'static str, ours: &Best, baseline_name: &'static str, baseline: &Best, times: f64, rounds: u32) -> Row {
    let (used, used_by_hand) = (ours.processor(), baseline.processor() * times);
    let note = format!(
        "best second of {rounds} runs in turns, {:+.0} µs; processor {} of {} ms a step ({:.3})",
        (ours.step() - baseline.step() * times) * 1e3,
        number(used),
        number(used_by_hand),
        used / used_by_hand
    );
    let goal = Some(goal::LIKE_PLAIN.of_ratios(&ours.of_turns(baseline, times)));
    Row { name, value: ours.step(), unit: "ms", baseline_name, baseline: baseline.step() * times, goal, note }
}

/// The memory rows: executor and Python with gradients of 100 MB, less the same with next to none, against what the replica and the gradients need.
pub async fn memory(code: &TorchCode, folder: &Path, effort: Effort) -> Result<Vec<Row>, HarnessError> {
    let bench = Slots::one(&code.job(SMALL, 1, 1), &folder.join("torch-memory")).await?;
    let framework = bench.run(&code.job(SMALL, 1, effort.pick(800, 2_000)), "framework", true).await?.memory_mb;
    let mut rows = Vec::new();
    for (name, workers) in MEMORY_ROWS.into_iter().zip([1, MANY]) {
        let steps = effort.pick(12, 30);
        let seen = bench.run(&code.job(LARGE, workers, steps), &format!("bench-memory-{workers}"), true).await?;
        let needed_mb = (2.0 + 3.0 + f64::from(workers).log2().ceil()) * LARGE_MB;
        rows.push(Row {
            name,
            value: seen.memory_mb - framework,
            unit: "MB",
            baseline_name: "MB: R + 3 G + ⌈log2 n⌉ G",
            baseline: needed_mb,
            goal: Some(goal::NO_MORE.seen(seen.memory_mb - framework, needed_mb)),
            note: format!(
                "most seen, G = {} MB, R = 2 G; beside it {} MB of a model with next to no gradient",
                number(LARGE_MB),
                number(framework)
            ),
        });
    }
    bench.stop().await?;
    Ok(rows)
}
