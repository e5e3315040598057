//! `ebb log`: looks at a log while no service is needed: whether it folds, what it comes to, and what stands in it. Reads only; the fold is the one that the
//! controller and the gateway use.

use crate::failure::Failure;
use crate::output::{Output, bytes, json as print_json, pairs};
use clap::{Args, Subcommand, ValueHint};
use controller_core::invariants;
use controller_fold::{Fold, Folded};
use events_log::{EventLog, LogUrl, ReadError, Stream, read_range};
use events_rule::count::UnreadableEvent;
use events_schema::batch::Batch;
use events_schema::{Cell, Offset};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;

/// What `ebb log` does.
#[derive(Debug, Clone, Subcommand)]
pub enum LogCommand {
    /// Fold it from its beginning, check what it comes to, and print the digest of that
    Verify(LogArgs),
    /// Print what counts, a line of JSON for each batch
    Export(LogArgs),
}

/// Which log.
#[derive(Debug, Clone, Args)]
pub struct LogArgs {
    /// Directory of the service whose log it is.
    #[arg(long, value_name = "DIR", default_value = "./ebb-data", value_hint = ValueHint::DirPath)]
    pub data: PathBuf,
    /// Where the log is, if it is not under --data: kafka+ssl://HOST:PORT[,…] or file:///PATH.
    #[arg(long, value_name = "URL")]
    pub log: Option<String>,
}

/// The only cell there is yet.
const CELL: Cell = Cell(0);
/// Broken invariants that are shown; one broken state breaks many.
const SHOWN_MAX: usize = 20;

/// What a log came to.
struct Summary {
    fold: Fold,
    records: u64,
    batches: u64,
    facts: u64,
    skipped: u64,
    claims: u64,
}

/// Why a log cannot be folded.
#[derive(Debug, thiserror::Error)]
enum FoldError {
    #[error("the log cannot be read")]
    Read(#[from] ReadError),
    #[error("a record of the log cannot be read")]
    Record(#[from] UnreadableEvent),
}

/// `ebb log verify` and `ebb log export`.
pub async fn log(command: &LogCommand, output: Output) -> Result<(), Failure> {
    match command {
        LogCommand::Verify(args) => verify(args, output).await,
        LogCommand::Export(args) => export(args).await,
    }
}

async fn verify(args: &LogArgs, output: Output) -> Result<(), Failure> {
    let summary = fold(args, |_, _| {}).await?;
    let broken = invariants::check(&summary.fold.state);
    let document = json!({
        "records": summary.records, "batches": summary.batches, "facts": summary.facts, "claims": summary.claims,
        "skipped": summary.skipped, "next_offset": summary.fold.known, "jobs": summary.fold.state.jobs().count(),
        "installation": summary.fold.installation.map(|name| format!("{name:016x}")),
        "state_digest": summary.fold.state.digest().to_string(),
        "broken": broken.iter().take(SHOWN_MAX).map(|b| json!({"invariant": b.invariant, "detail": b.detail})).collect::<Vec<_>>(),
    });
    match output {
        Output::Json => print_json(&document),
        Output::Table => bytes(pairs(&rows(&document)).as_bytes()),
    }
    match broken.len() {
        0 => Ok(()),
        n => Err(Failure::plain(format!(
            "the state that the log comes to breaks {n} invariants; report it with the output above"
        ))),
    }
}

fn rows(document: &Value) -> Vec<(&'static str, String)> {
    let shown = |name: &str| match &document[name] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let mut rows = vec![
        ("records", shown("records")),
        ("batches that count", shown("batches")),
        ("facts", shown("facts")),
        ("claims", shown("claims")),
        ("records without effect", shown("skipped")),
        ("jobs", shown("jobs")),
        ("installation", shown("installation")),
        ("digest of the state", shown("state_digest")),
    ];
    let broken = document["broken"].as_array().into_iter().flatten();
    rows.extend(broken.map(|b| {
        ("broken", format!("{}: {}", b["invariant"].as_str().unwrap_or(""), b["detail"].as_str().unwrap_or("")))
    }));
    rows
}

/// A line of JSON for each batch that counts, with the facts as the controller wrote them.
async fn export(args: &LogArgs) -> Result<(), Failure> {
    fold(args, |offset, batch| {
        let line = json!({"offset": offset, "at_ms": batch.at, "epoch": batch.epoch, "sequence": batch.sequence, "facts": batch.facts});
        bytes(format!("{line}\n").as_bytes());
    })
    .await
    .map(drop)
}

/// Folds a log from its beginning to its end now.
async fn fold(args: &LogArgs, mut counts: impl FnMut(Offset, &Batch)) -> Result<Summary, Failure> {
    let log = open(args).await?;
    let cannot = |error: FoldError| Failure::local("the log cannot be folded", error);
    let end = log.end(Stream::Events, CELL).await.map_err(|error| cannot(error.into()))?;
    let mut summary = Summary { fold: Fold::new(CELL), records: 0, batches: 0, facts: 0, skipped: 0, claims: 0 };
    read_range::<FoldError>(log.as_ref(), Stream::Events, CELL, Offset(0), end, |record| {
        summary.records += 1;
        match summary.fold.take(&record)? {
            Folded::Counts(batch) => {
                summary.batches += 1;
                summary.facts += batch.facts.len() as u64;
                counts(record.offset, &batch);
            }
            Folded::Skipped(_) => summary.skipped += 1,
            Folded::Claimed => summary.claims += 1,
            Folded::Incomplete => {}
        }
        Ok(())
    })
    .await
    .map_err(cannot)?;
    if summary.records == 0 {
        return Err(Failure::plain("nothing stands in this log; check --data or --log"));
    }
    Ok(summary)
}

async fn open(args: &LogArgs) -> Result<Arc<dyn EventLog>, Failure> {
    let url = match &args.log {
        Some(text) => LogUrl::parse(text).map_err(|error| Failure::Usage(error.to_string()))?,
        None => {
            let file = crate::home::log_file(&args.data);
            if !file.exists() {
                let shown = file.display();
                return Err(Failure::plain(format!(
                    "there is no log at {shown}; --data names the directory of `ebb up`"
                )));
            }
            LogUrl::file(file)
        }
    };
    events_log::open(&url).await.map_err(|error| {
        Failure::local(
            "the log cannot be opened; a service that uses it has to be stopped first, unless it is on Kafka",
            error,
        )
    })
}
