//! `ebb store …`: an operator's look at the bucket of an S3 store, without a service. What is tried and what it means is
//! `storage-bucket`'s; here it is asked for and printed. Nothing that Ebb keeps is read or written.

use crate::failure::Failure;
use crate::output::{Output, advise, json, line, table};
use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::{Value, json};
use std::time::Duration;
use storage_bucket::check::check;
use storage_bucket::lifecycle::{self, Setup};
use storage_bucket::report::{Report, Verdict};
use storage_bucket::uploads::{self, AGE_STANDARD, Found, UPLOADS_MAX, Upload};
use storage_bucket::{Access, Bucket, BucketAddress, Fault};

/// The client of services tries to find credentials where this machine has none; it need not be waited for as long as in a service.
const SERVICES_TIME_MAX: Duration = Duration::from_secs(20);
/// Bytes of chance in the name of a check's folder.
const RUN_NAME_BYTES: usize = 8;

/// `ebb store …`
#[derive(Debug, Clone, Subcommand)]
pub enum StoreCommand {
    /// Try everything that Ebb needs of a bucket, right by right; leaves nothing behind
    #[command(after_help = CHECK_HELP)]
    Check(StoreArg),
    /// Give the bucket a life-cycle rule that ends abandoned uploads; its other rules stay
    #[command(after_help = "Example: ebb store setup s3://bucket/ebb --dry-run")]
    Setup(SetupArgs),
    /// List uploads in parts that were begun and never completed, and end old ones
    #[command(after_help = UPLOADS_HELP)]
    Uploads(UploadsArgs),
}

/// A bucket.
#[derive(Debug, Clone, Args)]
pub struct StoreArg {
    // Not named `url`, which is the service everywhere.
    /// The store as `ebb up --store` takes it: s3://BUCKET/PREFIX.
    #[arg(value_name = "URL", value_parser = BucketAddress::parse)]
    pub address: BucketAddress,
}

/// Arguments of `ebb store setup`.
#[derive(Debug, Clone, Args)]
pub struct SetupArgs {
    /// The store.
    #[command(flatten)]
    pub store: StoreArg,
    /// Only say what would change.
    #[arg(long)]
    pub dry_run: bool,
}

/// Arguments of `ebb store uploads`.
#[derive(Debug, Clone, Args)]
pub struct UploadsArgs {
    /// The store.
    #[command(flatten)]
    pub store: StoreArg,
    /// Only those begun this long ago, for example 12h [default: all are listed; 3d with --abort].
    #[arg(long, value_name = "DURATION", value_parser = crate::args::duration)]
    pub older_than: Option<Duration>,
    /// End them; their parts are gone then.
    #[arg(long)]
    pub abort: bool,
}

const CHECK_HELP: &str = "\
Server and credentials come from AWS_ENDPOINT, AWS_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, … as for a service.
Exit code 1 if something that Ebb needs fails.

Example: AWS_ENDPOINT=https://s3.example.org:9000 SSL_CERT_FILE=ca.pem ebb store check s3://bucket/ebb";

const UPLOADS_HELP: &str = "\
Examples:
  ebb store uploads s3://bucket/ebb                            what is there
  ebb store uploads s3://bucket/ebb --abort                    end those begun three days ago or earlier
  ebb store uploads s3://bucket/ebb --older-than 0s --abort    end all, also those of jobs that run";

/// Runs one command.
pub async fn store(command: &StoreCommand, output: Output) -> Result<(), Failure> {
    match command {
        StoreCommand::Check(args) => check_store(args, output).await,
        StoreCommand::Setup(args) => set_up(args, output).await,
        StoreCommand::Uploads(args) => look_at_uploads(args, output).await,
    }
}

async fn check_store(args: &StoreArg, output: Output) -> Result<(), Failure> {
    let report = check(args.address.clone(), &access(), &run_name()?).await;
    let report = if report.found_bucket() {
        let refusal = refusal_of_services(&args.address).await;
        report.with_services(refusal)
    } else {
        report
    };
    match output {
        Output::Json => json(&value(&report)),
        Output::Table | Output::Name => print_report(&report),
    }
    if report.usable {
        return Ok(());
    }
    let unfit: Vec<&str> = report.unfit().iter().map(|finding| finding.item.name()).collect();
    Err(Failure::plain(format!("{} is not fit for Ebb yet: {}", report.store, unfit.join(", "))))
}

/// What the client that moves all data says to the same address and environment.
async fn refusal_of_services(address: &BucketAddress) -> Option<(String, String)> {
    let advice = "give services AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or a role of their machine; they read no profile files (aws configure export-credentials --format env prints a profile's)";
    let store = match storage::open_store(&address.to_string()) {
        Ok(store) => store,
        Err(error) => return Some((error.to_string(), advice.to_owned())),
    };
    match tokio::time::timeout(SERVICES_TIME_MAX, storage::store::probe(store.as_ref())).await {
        Ok(Ok(())) => None,
        Ok(Err(fault)) => Some((fault.to_string(), advice.to_owned())),
        Err(_) => Some((format!("no answer within {} s", SERVICES_TIME_MAX.as_secs()), advice.to_owned())),
    }
}

fn print_report(report: &Report) {
    line(format!("{} at {}, region {}\n", report.store, report.endpoint, report.region));
    let verdict = |verdict| match verdict {
        Verdict::Ok => "ok",
        Verdict::Note => "note",
        Verdict::Failed => "FAILED",
        Verdict::NotTried => "not tried",
    };
    let rows: Vec<Vec<String>> = report
        .checks
        .iter()
        .map(|c| vec![c.item.name().to_owned(), verdict(c.verdict).to_owned(), c.found.clone()])
        .collect();
    line(table(&["CHECK", "VERDICT", "FOUND"], &rows));
    let advised: Vec<_> = report.checks.iter().filter(|c| !c.advice.is_empty()).collect();
    if !advised.is_empty() {
        line("\nWhat to do:");
    }
    for finding in advised {
        line(format!("  {}: {}", finding.item.name(), finding.advice));
    }
    if report.usable {
        line("\nEbb can work with this store.");
    }
}

async fn set_up(args: &SetupArgs, output: Output) -> Result<(), Failure> {
    let bucket = open(&args.store.address).await?;
    let setup = lifecycle::setup(&bucket, args.dry_run).await.map_err(|error| match error {
        lifecycle::SetupError::Fault { ref fault, .. } => {
            let advice = rights_advice(fault, "s3:GetLifecycleConfiguration and s3:PutLifecycleConfiguration");
            Failure::local("the bucket cannot be set up", error).advise(advice)
        }
        error => Failure::local("the bucket cannot be set up", error),
    })?;
    match output {
        Output::Json => json(&value(&setup)),
        Output::Table | Output::Name => line(told(&setup, &args.store.address)),
    }
    Ok(())
}

fn told(setup: &Setup, address: &BucketAddress) -> String {
    use lifecycle::Outcome;
    let Setup { rule, days, other_rules, outcome, .. } = setup;
    let what = format!("uploads below {address} that were begun {days} days ago and never completed are given up");
    let others = match other_rules {
        0 => String::new(),
        1 => "; the bucket's other rule stays as it is".to_owned(),
        count => format!("; the bucket's {count} other rules stay as they are"),
    };
    match outcome {
        Outcome::Present { by } => format!("nothing to do: rule `{by}` gives up abandoned uploads already"),
        Outcome::Added => format!("added rule `{rule}`: {what}{others}"),
        Outcome::Replaced => format!("replaced rule `{rule}`: {what}{others}"),
        Outcome::WouldAdd => format!("would add rule `{rule}`: {what}{others}"),
        Outcome::WouldReplace => format!("would replace rule `{rule}`: {what}{others}"),
        Outcome::Refused { why } => format!(
            "the server takes no rule for abandoned uploads ({why}); nothing was changed.\nLet a timer run this once a day instead: ebb store uploads {address} --abort"
        ),
    }
}

async fn look_at_uploads(args: &UploadsArgs, output: Output) -> Result<(), Failure> {
    let bucket = open(&args.store.address).await?;
    let older_than = args.older_than.unwrap_or(if args.abort { AGE_STANDARD } else { Duration::ZERO });
    let found = uploads::list(&bucket, older_than).await.map_err(|fault| {
        let advice = rights_advice(&fault, "s3:ListBucketMultipartUploads");
        Failure::local("the uploads cannot be listed", fault).advise(advice)
    })?;
    let found = if args.abort { uploads::abort(&bucket, found).await } else { found };
    match output {
        Output::Json => json(&value(&found)),
        Output::Table => print_uploads(&found),
        Output::Name => found.uploads.iter().for_each(|upload| line(&upload.key)),
    }
    if found.more {
        let then = if args.abort { "run this again" } else { "they come once these are ended (--abort)" };
        advise(format!("there may be more than these; one run takes {UPLOADS_MAX}: {then}"));
    }
    match found.uploads.iter().filter(|upload| matches!(upload.outcome, uploads::Outcome::Failed(_))).count() {
        0 => Ok(()),
        count => Err(Failure::plain(format!("{count} of {} uploads are still there", found.uploads.len()))),
    }
}

fn print_uploads(found: &Found) {
    let outcome = |upload: &Upload| match &upload.outcome {
        uploads::Outcome::Left => "open".to_owned(),
        uploads::Outcome::Aborted => "ended".to_owned(),
        uploads::Outcome::Failed(why) => format!("FAILED: {why}"),
    };
    let age = |upload: &Upload| {
        upload.age_s.map_or_else(|| "?".to_owned(), |s| humantime::format_duration(Duration::from_secs(s)).to_string())
    };
    let row = |upload: &Upload| vec![upload.key.clone(), upload.begun_at.clone(), age(upload), outcome(upload)];
    line(table(&["KEY", "BEGUN", "AGE", "STATE"], &found.uploads.iter().map(row).collect::<Vec<_>>()));
}

/// Says at once that there are no credentials for a service's store, where the client of its objects would look for some for minutes. A store of
/// another kind says so itself.
pub async fn ensure_credentials(store_url: &str) -> Result<(), Failure> {
    let is_signed = std::env::var_os("AWS_SKIP_SIGNATURE").is_none();
    match BucketAddress::parse(store_url) {
        Ok(address) if is_signed => open(&address).await.map(drop),
        _ => Ok(()),
    }
}

async fn open(address: &BucketAddress) -> Result<Bucket, Failure> {
    Bucket::open(address.clone(), &access()).await.map_err(|fault| {
        let advice = fault.advice();
        Failure::local(format!("{address} cannot be opened"), fault).advise(advice)
    })
}

fn rights_advice(fault: &Fault, rights: &str) -> String {
    match fault {
        Fault::Denied => format!("grant {rights} to these credentials"),
        fault => fault.advice(),
    }
}

fn access() -> Access {
    // `vars_os`, because a variable of others that is not UTF-8 is no reason to stop.
    let variables = std::env::vars_os();
    Access::of_environment(
        variables.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))),
    )
}

fn run_name() -> Result<String, Failure> {
    let mut bytes = [0; RUN_NAME_BYTES];
    getrandom::fill(&mut bytes).map_err(|e| Failure::plain(format!("this system gives no chance: {e}")))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// What is plain data is JSON.
fn value(of: &impl Serialize) -> Value {
    serde_json::to_value(of).unwrap_or_else(|error| json!({"error": error.to_string()}))
}
