//! `ebb log`: looks at a log while no service is needed: whether it folds, what it comes to, and what stands in it. The fold is the one that the
//! controller and the gateway use. Writes one thing only: an operator's word that a record is passed over.

use crate::failure::Failure;
use crate::output::{Output, bytes, json as print_json, line, pairs};
use clap::{Args, Subcommand, ValueHint};
use controller_core::invariants;
use controller_fold::{Contradiction, Fold, FoldError, Folded};
use events_log::{EventLog, LogUrl, OpenError, ReadError, Stream, passed_over};
use events_rule::count::{Counter, SkipCause, UnreadableEvent, Verdict, Words, read_event};
use events_schema::batch::{EventRecord, PassOver, looks_like_a_record, to_bytes};
use events_schema::{Cell, Offset};
use gateway_api::rfc3339;
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
    /// Have every reader go on without a record of `events` that cannot be read; this is put on record in the log
    ///
    /// For records that no ebb wrote, or that are damaged: facts in them are lost. What can be read is never passed over. A log in a file is
    /// written while its service is stopped; one on Kafka at any time.
    Skip(SkipArgs),
}

/// Which record, and why.
#[derive(Debug, Clone, Args)]
pub struct SkipArgs {
    /// Where it stands, as the failure that names it says.
    pub offset: u64,
    /// Why; whoever reads the log later will ask.
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    /// Also if it looks like a record of another build of ebb: the facts in it are lost, and builds that can read it refuse this log from then on.
    /// Or if others follow it that count only with it: their facts are lost as well.
    #[arg(long)]
    pub lose_facts: bool,
    /// Who decided it.
    #[arg(long, value_name = "NAME", env = "USER", default_value = "an operator")]
    pub by: String,
    /// Which log.
    #[command(flatten)]
    pub log: LogArgs,
}

/// Which log.
#[derive(Debug, Clone, Args)]
pub struct LogArgs {
    /// Directory of the service whose log it is.
    #[arg(long, value_name = "DIR", default_value = "./ebb-data", value_hint = ValueHint::DirPath)]
    pub data: PathBuf,
    /// Where the log is, if it is not under --data: kafka+ssl://HOST:PORT[,…] or file:///PATH.
    #[arg(long, value_name = "URL", value_parser = crate::args::log_address)]
    pub log: Option<String>,
}

/// The only cell there is yet.
const CELL: Cell = Cell(0);
/// Bytes of the log held at once.
const PIECE_BYTES_MAX: usize = 16 << 20;
/// Characters of a name or reason that go on record: a sentence or two.
const WORD_CHARS_MAX: usize = 500;
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
    passed_over: Vec<PassOver>,
}

/// Why a log cannot be folded.
#[derive(Debug, thiserror::Error)]
enum CannotFold {
    #[error("the log cannot be read")]
    Read(#[from] ReadError),
    #[error("a record of the log cannot be read")]
    Record(#[from] UnreadableEvent),
    #[error("the log says of a record that can be read that it cannot")]
    Contradicted(#[from] Contradiction),
}

/// `ebb log …`.
pub async fn log(command: &LogCommand, output: Output) -> Result<(), Failure> {
    match command {
        LogCommand::Verify(args) => verify(args, output).await,
        LogCommand::Export(args) => export(args).await,
        LogCommand::Skip(args) => skip(args, output).await,
    }
}

/// Puts on record that a record is passed over, if it is one that cannot be read and that no other build seems to have written.
async fn skip(args: &SkipArgs, output: Output) -> Result<(), Failure> {
    let (by, reason) = (args.by.trim(), args.reason.trim());
    let fits = |text: &str| (1..=WORD_CHARS_MAX).contains(&text.chars().count());
    if !fits(by) || !fits(reason) {
        return Err(Failure::Usage(format!("--reason and --by each take 1 to {WORD_CHARS_MAX} characters")));
    }
    let log = open(&args.log).await?;
    let offset = Offset(args.offset);
    let cannot = |error: ReadError| Failure::local("the log cannot be read", error);
    let there = log.read(Stream::Events, CELL, offset, 1).await.map_err(cannot)?;
    let Some(record) = there.first().filter(|record| record.offset == offset) else {
        return Err(Failure::plain(format!("no record of `events` stands at offset {offset}")));
    };
    let Err(unreadable) = read_event(record) else {
        return Err(Failure::plain(format!(
            "the record at offset {offset} can be read, so it counts and is never passed over"
        )));
    };
    if looks_like_a_record(&record.bytes) && !args.lose_facts {
        return Err(Failure::plain(format!(
            "the record at offset {offset} looks like one of another build of ebb ({}); start that build, or give its facts up with --lose-facts",
            unreadable.source
        )));
    }
    let known = passed_over(log.as_ref(), CELL, &mut Words::default(), &unreadable).await.map_err(cannot)?;
    let word = match known {
        Some(word) => word,
        None => {
            let voided = void_without(log.as_ref(), offset).await.map_err(cannot)?;
            if voided > 0 && !args.lose_facts {
                return Err(Failure::plain(format!(
                    "{voided} records behind the one at offset {offset} count only with it, so what they say would be lost as well; restore `events` \
                     from a backup in which it can be read, or give them up with --lose-facts"
                )));
            }
            let (by, reason) = (by.to_owned(), reason.to_owned());
            let word = PassOver { offset, by, at: shell::wall_clock(), reason };
            let record = to_bytes(&EventRecord::PassOver(word.clone()));
            let failed =
                |error| Failure::local("it is not on record; look with `ebb log verify` before you try again", error);
            log.append(Stream::Events, CELL, record).await.map_err(failed)?;
            word
        }
    };
    match output {
        Output::Json => print_json(&json!({"passed_over": word})),
        Output::Table | Output::Name => line(pairs(&[("passed over", shown(&word))])),
    }
    Ok(())
}

fn shown(word: &PassOver) -> String {
    format!("offset {}, by {} at {}: {}", word.offset, word.by, rfc3339(word.at), word.reason)
}

/// How many records of `events` have no effect once one that cannot be read is passed over, because it was a batch, or part of one, or the claim
/// that they follow. From the next claim on nothing depends on it.
async fn void_without(log: &dyn EventLog, offset: Offset) -> Result<u64, ReadError> {
    let end = log.end(Stream::Events, CELL).await?;
    let (mut counter, mut next, mut voided) = (Counter::new(), Offset(0), 0);
    loop {
        let records = log.read(Stream::Events, CELL, next, PIECE_BYTES_MAX).await?;
        if records.is_empty() || next >= end {
            return Ok(voided);
        }
        for record in records {
            next = record.offset.next();
            let Ok(event) = read_event(&record) else { continue };
            match counter.offer(record.offset, event) {
                Verdict::Claimed { .. } if record.offset > offset => return Ok(voided),
                Verdict::Skipped(SkipCause::Gap | SkipCause::Unclaimed) if record.offset > offset => voided += 1,
                _ => {}
            }
        }
    }
}

async fn verify(args: &LogArgs, output: Output) -> Result<(), Failure> {
    let summary = fold(args, |_, _| {}).await?;
    let broken = invariants::check(&summary.fold.state);
    let document = json!({
        "records": summary.records, "batches": summary.batches, "facts": summary.facts, "claims": summary.claims,
        "skipped": summary.skipped, "next_offset": summary.fold.known, "jobs": summary.fold.state.jobs().count(),
        "installation": summary.fold.installation.map(|name| format!("{name:016x}")),
        "state_digest": summary.fold.state.digest().to_string(), "passed_over": summary.passed_over,
        "broken": broken.iter().take(SHOWN_MAX).map(|b| json!({"invariant": b.invariant, "detail": b.detail})).collect::<Vec<_>>(),
    });
    match output {
        Output::Json => print_json(&document),
        Output::Table | Output::Name => {
            let mut rows = rows(&document);
            rows.extend(summary.passed_over.iter().map(|word| ("passed over", shown(word))));
            line(pairs(&rows));
        }
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

/// A line of JSON for each batch that counts, with the facts as the controller wrote them, and for each word of an operator.
async fn export(args: &LogArgs) -> Result<(), Failure> {
    let print =
        |offset, folded: &Folded| exported(offset, folded).iter().for_each(|l| bytes(format!("{l}\n").as_bytes()));
    fold(args, print).await.map(drop)
}

fn exported(offset: Offset, folded: &Folded) -> Option<Value> {
    match folded {
        Folded::Counts(batch) => Some(
            json!({"offset": offset, "at_ms": batch.at, "term": batch.term, "sequence": batch.sequence, "facts": batch.facts}),
        ),
        Folded::PassesOver(word) => Some(json!({"offset": offset, "at_ms": word.at, "passes_over": word})),
        Folded::Skipped(_) | Folded::Claimed | Folded::Incomplete => None,
    }
}

/// Folds a log from its beginning to its end now.
async fn fold(args: &LogArgs, show: impl FnMut(Offset, &Folded)) -> Result<Summary, Failure> {
    let log = open(args).await?;
    let summary =
        fold_all(log.as_ref(), show).await.map_err(|error| Failure::local("the log cannot be folded", error))?;
    if summary.records == 0 {
        return Err(Failure::plain("nothing stands in this log; check --data or --log"));
    }
    Ok(summary)
}

async fn fold_all(log: &dyn EventLog, mut show: impl FnMut(Offset, &Folded)) -> Result<Summary, CannotFold> {
    let end = log.end(Stream::Events, CELL).await?;
    let mut summary = Summary {
        fold: Fold::new(CELL),
        records: 0,
        batches: 0,
        facts: 0,
        skipped: 0,
        claims: 0,
        passed_over: Vec::new(),
    };
    let mut words = Words::default();
    loop {
        let records = log.read(Stream::Events, CELL, summary.fold.known, PIECE_BYTES_MAX).await?;
        if records.is_empty() || summary.fold.known >= end {
            return Ok(summary);
        }
        for record in records.iter().take_while(|record| record.offset < end) {
            summary.records += 1;
            match summary.fold.take(record) {
                Ok(folded) => {
                    summary.count(&folded);
                    show(record.offset, &folded);
                }
                Err(FoldError::Contradicted(contradiction)) => return Err(contradiction.into()),
                Err(FoldError::Unreadable(unreadable)) => {
                    match passed_over(log, CELL, &mut words, &unreadable).await? {
                        Some(word) => {
                            summary.fold.pass_over(word.offset);
                            summary.passed_over.push(word);
                        }
                        None => return Err(unreadable.into()),
                    }
                }
            }
        }
    }
}

impl Summary {
    fn count(&mut self, folded: &Folded) {
        match folded {
            Folded::Counts(batch) => {
                self.batches += 1;
                self.facts += batch.facts.len() as u64;
            }
            Folded::Skipped(_) => self.skipped += 1,
            Folded::Claimed => self.claims += 1,
            Folded::Incomplete | Folded::PassesOver(_) => {}
        }
    }
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
    events_log::open_existing(&url).await.map_err(|error| match error {
        OpenError::Absent { .. } => Failure::plain(error.to_string()),
        error => Failure::local(
            "the log cannot be opened; a service that uses it has to be stopped first, unless it is on Kafka",
            error,
        ),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use events_schema::batch::Batch;
    use events_schema::fact::Fact;
    use events_schema::{Sequence, Term, TimeMs};

    async fn run(command: LogCommand) -> Result<(), String> {
        log(&command, Output::Json).await.map_err(|failure| shell::Chain(&failure).to_string())
    }

    #[tokio::test]
    async fn a_record_that_no_ebb_wrote_is_passed_over_by_a_word_that_stays_on_record() {
        let (_folder, args) = directory(vec![claim(), b"hello".to_vec(), claim()]).await;
        // It looks like a record with a kind that this build does not know.
        let of_a_later_build = vec![1, 0x82, 0x18, 99, 0x80];
        let skip = |offset: u64, reason: &str| {
            let (reason, by) = (reason.to_owned(), "ada".to_owned());
            run(LogCommand::Skip(SkipArgs { offset, reason, lose_facts: false, by, log: args.clone() }))
        };
        let said = run(LogCommand::Verify(args.clone())).await.unwrap_err();
        assert!(said.contains("ebb log skip 1 "), "{said}");
        assert!(skip(0, "why not").await.unwrap_err().contains("can be read"));
        assert!(skip(9, "why not").await.unwrap_err().contains("no record"));
        assert!(skip(1, " ").await.unwrap_err().contains("--reason"));
        skip(1, "a stray producer").await.unwrap();
        skip(1, "said twice, written once").await.unwrap();
        let summary = fold(&args, |_, _| {}).await.unwrap();
        assert_eq!((summary.records, summary.claims, summary.passed_over.len()), (4, 2, 1));
        let word = &summary.passed_over[0];
        assert_eq!((word.offset, word.by.as_str(), word.reason.as_str()), (Offset(1), "ada", "a stray producer"));
        drop(summary);
        run(LogCommand::Verify(args.clone())).await.unwrap();
        let written = open(&args).await.unwrap();
        let newer = written.append(Stream::Events, CELL, of_a_later_build).await.unwrap();
        drop(written);
        assert!(skip(newer.0, "why not").await.unwrap_err().contains("--lose-facts"), "they may matter");
        let (reason, by) = ("rolled back".to_owned(), "ada".to_owned());
        let lost = SkipArgs { offset: newer.0, reason, lose_facts: true, by, log: args.clone() };
        run(LogCommand::Skip(lost)).await.unwrap();
        run(LogCommand::Verify(args)).await.unwrap();
    }

    /// A directory whose log holds these records.
    async fn directory(records: Vec<Vec<u8>>) -> (tempfile::TempDir, LogArgs) {
        let folder = tempfile::tempdir().unwrap();
        let args = LogArgs { data: folder.path().to_owned(), log: None };
        let file = crate::home::log_file(folder.path());
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        let written = events_log::open(&LogUrl::file(file)).await.unwrap();
        for record in records {
            written.append(Stream::Events, CELL, record).await.unwrap();
        }
        (folder, args)
    }

    fn claim() -> Vec<u8> {
        to_bytes(&EventRecord::Claim { controller: "a".to_owned(), incarnation: 7 })
    }

    fn batch(sequence: u64, facts: Vec<Fact>) -> Vec<u8> {
        let (term, sequence, at) = (Term(0), Sequence(sequence), TimeMs(1_770_000_000_000 + sequence));
        let (taken, causes) = (Vec::new(), Vec::new());
        to_bytes(&EventRecord::Batch(Batch { term, sequence, part: None, taken, at, facts, causes }))
    }

    /// What an export prints, and how it ends.
    async fn export_of(args: &LogArgs) -> (Vec<Value>, Result<Summary, String>) {
        let mut lines = Vec::new();
        let end = fold(args, |offset, folded| lines.extend(exported(offset, folded))).await;
        (lines, end.map_err(|failure| shell::Chain(&failure).to_string()))
    }

    #[tokio::test]
    async fn an_export_is_everything_that_counts_and_nothing_else_however_long_the_log_is() {
        // More than is held at once, in records as long as the controller writes them.
        let long = || Fact::JobFailed { job: "job-a".parse().unwrap(), reason: "x".repeat(900_000) };
        let more_than_a_piece = PIECE_BYTES_MAX as u64 / 900_000 + 3;
        let suspending = || Fact::JobSuspending { job: "job-a".parse().unwrap() };
        let mut records = vec![claim(), batch(0, vec![suspending(), suspending()])];
        // One that says nothing new has no effect.
        records.push(batch(0, vec![suspending()]));
        records.extend((1..=more_than_a_piece).map(|sequence| batch(sequence, vec![long()])));
        let (_folder, args) = directory(records).await;
        let (lines, end) = export_of(&args).await;
        let summary = end.unwrap();
        assert_eq!((summary.batches, summary.skipped), (lines.len() as u64, 1));
        let facts: usize = lines.iter().map(|line| line["facts"].as_array().unwrap().len()).sum();
        assert_eq!([summary.facts, 2 + more_than_a_piece], [facts as u64; 2]);
        let first = json!({"offset": 1, "at_ms": 1_770_000_000_000_u64, "term": 0, "sequence": 0,
            "facts": [{"fact": "job_suspending", "job": "job-a"}, {"fact": "job_suspending", "job": "job-a"}]});
        assert_eq!(lines[0], first);
        let offsets: Vec<u64> = lines.iter().map(|line| line["offset"].as_u64().unwrap()).collect();
        assert_eq!(offsets[1..], (3..3 + more_than_a_piece).collect::<Vec<_>>());
        assert!(lines.iter().all(|line| !line.to_string().contains('\n')));
    }

    #[tokio::test]
    async fn an_export_ends_at_a_damaged_record_by_name_and_goes_on_behind_it_once_an_operator_says_so() {
        let fact = || vec![Fact::JobSuspending { job: "job-a".parse().unwrap() }];
        let (_folder, args) = directory(vec![claim(), batch(0, fact()), b"damaged".to_vec(), batch(1, fact())]).await;
        let offsets = |lines: &[Value]| lines.iter().map(|line| line["offset"].as_u64().unwrap()).collect::<Vec<_>>();
        let (lines, end) = export_of(&args).await;
        let said = end.err().unwrap();
        assert!(said.contains("ebb log skip 2 "), "{said}");
        assert_eq!(offsets(&lines), [1], "what stands before it is printed");
        let (reason, by) = ("a disk".to_owned(), "ada".to_owned());
        let skip = SkipArgs { offset: 2, reason, lose_facts: false, by, log: args.clone() };
        run(LogCommand::Skip(skip)).await.unwrap();
        let (lines, end) = export_of(&args).await;
        assert_eq!((offsets(&lines), end.unwrap().facts), (vec![1, 3, 4], 2));
        assert_eq!(lines[2]["passes_over"]["reason"], "a disk");
    }

    /// Whoever passes over a damaged batch loses all that its controller decided after it, and has to have said that this is meant.
    #[tokio::test]
    async fn a_batch_that_others_follow_is_passed_over_only_with_them() {
        let (damaged, batch) = (|| b"damaged".to_vec(), |sequence| batch(sequence, Vec::new()));
        // Nothing follows the last.
        let records = vec![claim(), batch(0), damaged(), batch(2), batch(3), claim(), damaged()];
        let (_folder, args) = directory(records).await;
        let skip = |offset, lose_facts| {
            let (reason, by) = ("a disk".to_owned(), "ada".to_owned());
            run(LogCommand::Skip(SkipArgs { offset, reason, lose_facts, by, log: args.clone() }))
        };
        let said = skip(2, false).await.unwrap_err();
        assert!(said.starts_with("2 records behind") && said.contains("--lose-facts"), "{said}");
        skip(6, false).await.unwrap();
        skip(2, true).await.unwrap();
        assert_eq!(fold(&args, |_, _| {}).await.unwrap().skipped, 2);
    }
}
