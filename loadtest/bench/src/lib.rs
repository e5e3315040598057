//! What `ebb bench` measures: what this machine does, each figure beside a baseline taken in the same run, so that a ratio means something
//! on any machine.
//!
//! One file per subject, each a list of measurements; reading order: [`row`], [`goal`], `spread.rs`, `processor.rs`, `log_rows.rs`, `store_rows.rs`,
//! `reduce_rows.rs`, `subject.rs`, `one_slot.rs`, `step_rows.rs`, `growth_rows.rs`, `size_rows.rs`, `pair_memory_rows.rs`, `checkpoint_rows.rs`, `loan_rows.rs`, `silent_rows.rs`, `spans.rs`, `broker_rows.rs`; of models in PyTorch `torch_code.rs`, `torch_rows.rs`,
//! `torch_start_rows.rs`. Nothing here asserts; figures are for people and for the closing note of a change.

pub mod goal;
pub mod row;

mod broker_rows;
mod checkpoint_rows;
mod growth_rows;
mod loan_rows;
mod log_rows;
mod one_slot;
mod pair_memory_rows;
mod pinned;
pub mod processor;
mod reduce_rows;
mod silent_rows;
mod size_rows;
mod spans;
mod spread;
mod step_rows;
mod store_rows;
mod subject;
mod torch_code;
mod torch_rows;
mod torch_start_rows;

use loadtest_harness::HarnessError;
use loan_rows::Lent;
use row::Row;
use std::path::Path;
use subject::Subject;
use torch_code::{Model, TorchCode};

pub use reduce_rows::{Member, member};
pub use torch_code::Device;

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effort {
    /// Fewer repetitions.
    pub quick: bool,
    /// Also what takes gigabytes of memory, and minutes.
    pub large: bool,
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
const STEP_ROWS: &[&str] = &["elastic loop step", "logical workers on one executor", "two executors of a host"];
const BROKER_ROWS: &[&str] = &["demand to slot free, broker killed", "demand to slot free, broker stopped"];

/// Steps of a job that does not end before the bench cancels it.
const ENDLESS: u64 = 1_000_000;

/// What is measured.
#[derive(Debug, Clone)]
pub struct BenchOptions<'a> {
    /// How much of it.
    pub effort: Effort,
    /// Models in PyTorch instead of Ebb's own, run by this Python on this device.
    pub torch: Option<(&'a str, Device)>,
    /// Only rows whose name contains this.
    pub only: Option<&'a str>,
    /// A log to measure too.
    pub log: Option<&'a str>,
    /// The folder of three brokers that may be lost.
    pub brokers: Option<&'a Path>,
}

impl BenchOptions<'_> {
    fn wants(&self, names: &[&str]) -> bool {
        self.only.is_none_or(|only| names.iter().any(|name| name.contains(only)))
    }

    /// Refuses a name that no row has.
    pub fn check(&self) -> Result<(), HarnessError> {
        let all = names(self.torch.map(|(_, device)| device));
        if self.torch.is_some() && self.brokers.is_some() {
            return Err(HarnessError::Options("brokers are lost with Ebb's own models only".to_owned()));
        }
        if self.wants(&all) {
            return Ok(());
        }
        Err(HarnessError::Options(format!("no row's name contains `{}`", self.only.unwrap_or_default())))
    }
}

/// Names of all rows: of Ebb's own models, or of models in PyTorch on this device.
fn names(device: Option<Device>) -> Vec<&'static str> {
    let of_subjects: &[&[&'static str]] = match device {
        None => &[
            LOG_ROWS,
            &store_rows::PARTITION_ROWS,
            store_rows::CHECKPOINT_ROWS.as_flattened(),
            &reduce_rows::NAMES,
            STEP_ROWS,
            &loan_rows::NAMES,
            loan_rows::LARGE_NAMES.as_flattened(),
            &spans::HOPS,
            silent_rows::NAMES.as_flattened(),
            BROKER_ROWS,
            &reduce_rows::LARGE_NAMES,
            &growth_rows::NAMES,
            size_rows::NAMES.as_flattened(),
            pair_memory_rows::NAMES.as_flattened(),
            checkpoint_rows::NAMES.as_flattened(),
        ],
        Some(Device::Cpu) => &[
            &torch_rows::STEP_ROWS,
            &torch_rows::MEMORY_ROWS,
            &torch_start_rows::START_ROWS,
            &torch_start_rows::OWN_ROWS,
            &growth_rows::NAMES,
            size_rows::NAMES.as_flattened(),
            pair_memory_rows::NAMES.as_flattened(),
            checkpoint_rows::NAMES.as_flattened(),
            &loan_rows::NAMES,
            loan_rows::LARGE_NAMES.as_flattened(),
            &spans::HOPS,
            silent_rows::NAMES.as_flattened(),
        ],
        Some(Device::Cuda) => &[&growth_rows::NAMES],
    };
    of_subjects.concat()
}

/// All rows by name, for `--help`: what there is of two sizes stands there once.
#[must_use]
pub fn listing() -> String {
    let of = |device| {
        let once = names(device).into_iter().filter(|name| !name.contains("655 MB"));
        once.map(|name| format!("\n  {}", name.replace("106 MB", "106 MB (or 655 MB)"))).collect::<String>()
    };
    format!(
        "Rows, for --only; those of 106 MB and more with --large:{}\n\nRows with --engine torch:{}",
        of(None),
        of(Some(Device::Cpu))
    )
}

/// Measures in `folder`. Rows are added as they are whole, so that those before a failure or an interruption are kept; some may be of names
/// that were not asked for, because they are measured together.
pub async fn measure(options: &BenchOptions<'_>, folder: &Path, rows: &mut Vec<Row>) -> Result<(), HarnessError> {
    options.check()?;
    if let Some((python, device)) = options.torch {
        return measure_torch(options, &TorchCode::lay_out(folder, python, device).await?, folder, rows).await;
    }
    let effort = options.effort;
    let wanted = |names: &[&str]| options.wants(names);
    if wanted(LOG_ROWS) {
        progress("log");
        rows.extend(log_rows::embedded(folder, effort).await?);
        if let Some(url) = options.log {
            rows.extend(log_rows::kafka(url, effort).await?);
        }
    }
    if wanted(&store_rows::PARTITION_ROWS) || wanted(store_rows::CHECKPOINT_ROWS.as_flattened()) {
        progress("store");
        rows.extend(store_rows::rows(folder, effort, |name| wanted(&[name])).await?);
    }
    if wanted(&reduce_rows::NAMES) {
        progress("reduce");
        rows.extend(reduce_rows::rows(effort).await?);
    }
    if effort.large && wanted(&reduce_rows::LARGE_NAMES) {
        progress("reduce of 1 GB");
        rows.extend(reduce_rows::large(effort).await?);
    }
    if wanted(STEP_ROWS) {
        progress("steps");
        rows.extend(step_rows::rows(folder, effort).await?);
    }
    if effort.large && wanted(&growth_rows::NAMES) {
        progress("growth of large replicas");
        rows.extend(growth_rows::rows(folder, None, effort, |name| wanted(&[name])).await?);
    }
    measure_sizes(options, None, folder, rows).await?;
    measure_loans(options, &Subject::native(loan_rows::SLOTS, 16, ENDLESS), None, folder, rows).await?;
    if let Some(brokers) = options.brokers.filter(|_| wanted(BROKER_ROWS)) {
        progress("lost brokers");
        broker_rows::rows(folder, brokers, effort, &wanted, rows).await?;
    }
    Ok(())
}

/// The same of models in PyTorch. On a GPU only growth: `python -m ebb.measure --device cuda` measures steps there.
async fn measure_torch(
    options: &BenchOptions<'_>,
    code: &TorchCode,
    folder: &Path,
    rows: &mut Vec<Row>,
) -> Result<(), HarnessError> {
    let effort = options.effort;
    if effort.large && options.wants(&growth_rows::NAMES) {
        progress("growth of large replicas");
        rows.extend(growth_rows::rows(folder, Some(code), effort, |name| options.wants(&[name])).await?);
    }
    if code.device() == Device::Cuda {
        return Ok(());
    }
    if options.wants(&torch_start_rows::START_ROWS) {
        progress("cold start");
        rows.extend(torch_start_rows::starts(code, effort).await?);
    }
    if options.wants(&torch_start_rows::OWN_ROWS) {
        progress("steps outside Python");
        rows.extend(torch_start_rows::own(code, effort).await?);
    }
    if options.wants(&torch_rows::STEP_ROWS) {
        progress("steps");
        rows.extend(torch_rows::steps(code, folder, effort).await?);
    }
    if options.wants(&torch_rows::MEMORY_ROWS) {
        progress("memory");
        rows.extend(torch_rows::memory(code, folder, effort).await?);
    }
    measure_sizes(options, Some(code), folder, rows).await?;
    let small = code.job(Model { kind: "cnn", width: 8, momentum: 0.9, rows: 32 }, loan_rows::SLOTS, ENDLESS);
    measure_loans(options, &small, Some(code), folder, rows).await
}

/// What large replicas cost without anything happening, where slots come and go, and what their checkpoints do.
async fn measure_sizes(
    options: &BenchOptions<'_>,
    code: Option<&TorchCode>,
    folder: &Path,
    rows: &mut Vec<Row>,
) -> Result<(), HarnessError> {
    let (effort, wanted) = (options.effort, |name: &str| options.wants(&[name]));
    for (model, names) in growth_rows::models(code).zip(size_rows::NAMES) {
        if effort.large && options.wants(&names) {
            progress("steps and memory of large replicas");
            let sized = size_rows::Sized { model, names };
            rows.extend(size_rows::rows(folder, &sized, effort, wanted).await?);
        }
    }
    for (model, names) in growth_rows::models(code).zip(pair_memory_rows::NAMES) {
        if effort.large && options.wants(&names) {
            progress("memory of two executors");
            rows.extend(pair_memory_rows::rows(folder, &model, names, effort, wanted).await?);
        }
    }
    for (model, names) in growth_rows::models(code).zip(checkpoint_rows::NAMES) {
        if effort.large && options.wants(&names) {
            progress("checkpoints of large replicas");
            rows.extend(checkpoint_rows::rows(folder, &model, names, effort, wanted).await?);
        }
    }
    Ok(())
}

/// What loans cost a small job, and large ones.
async fn measure_loans(
    options: &BenchOptions<'_>,
    small: &Subject,
    code: Option<&TorchCode>,
    folder: &Path,
    rows: &mut Vec<Row>,
) -> Result<(), HarnessError> {
    let (log, effort) = (options.log, options.effort);
    if options.wants(&loan_rows::NAMES) {
        progress("loans");
        let lent = Lent { subject: small, slots: loan_rows::SLOTS, names: loan_rows::NAMES };
        rows.extend(loan_rows::rows(folder, &lent, log, effort).await?);
    }
    for (subject, names) in growth_rows::subjects(code).zip(loan_rows::LARGE_NAMES) {
        if effort.large && options.wants(&names) {
            progress("loans of a job with a large replica");
            let lent = Lent { subject: &subject, slots: loan_rows::LARGE_SLOTS, names };
            rows.extend(loan_rows::rows(folder, &lent, log, effort).await?);
        }
    }
    if options.wants(&spans::HOPS) {
        progress("hops of a reclaim");
        rows.extend(loan_rows::hops(folder, small, log, effort).await?);
    }
    let of_two = small.of_workers(growth_rows::WORKERS);
    let of_each_size = std::iter::once(of_two).chain(growth_rows::subjects(code).take_while(|_| effort.large));
    for (subject, names) in of_each_size.zip(silent_rows::NAMES).filter(|(_, names)| options.wants(names)) {
        progress("a server that falls silent");
        rows.extend(silent_rows::rows(folder, names, &subject, effort).await?);
    }
    Ok(())
}

fn progress(what: &str) {
    eprintln!("measuring: {what}");
}
