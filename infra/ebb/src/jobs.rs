//! Commands about jobs: submit, list, show, cancel, suspend, resume, checkpoints, model. Watching is in `watch.rs`.

use crate::args::{CheckpointsArgs, JobsArgs, SubmitArgs};
use crate::begin_with::InitialFile;
use crate::failure::Failure;
use crate::find;
use crate::job_file::{self, JobFile, PackedCode};
use crate::links::Source;
use crate::output::{Output, StandardOutput, advise, json, line, pairs, table};
use crate::sentences::counted;
use crate::try_here::{self, Here};
use crate::watch::{self, Show, Until};
use crate::wire::{
    DamagedCheckpoint, GrowthPaused, Job, LostMember, Metrics, Restart, Sentence, Speed, Stall, Straggler, TypeTime,
    UnreadableCheckpoint, WaitCause, words,
};
use gateway_api::{Batches, DryRun, JobPhase, Model};
use gateway_client::{Answer, Body, Client, ClientError, Stretch, WantedJobs, fresh_key};
use serde_json::json;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};

/// Bytes of a file on their way at once.
const CHUNK_BYTES: usize = 1 << 20;
/// Characters of a digest in a table.
const DIGEST_SHOWN: usize = 12;

/// `ebb submit`.
pub async fn submit(client: &Client, output: Output, args: &SubmitArgs) -> Result<(), Failure> {
    let file = job_file::read(&args.file)?;
    if args.dry_run {
        return dry_run(client, output, args, file).await;
    }
    let body = upload_all(client, file).await?;
    let key = args.idempotency_key.clone().map_or_else(fresh_key, Ok)?;
    let job = client.submit(&body, &key).await?;
    let id = job.id.clone();
    if !args.wait {
        match output {
            Output::Json => json(&job),
            Output::Name => line(&id),
            Output::Table => {
                // Alone on its line, for `ID=$(ebb submit FILE)`.
                line(&id);
                advise(format!("next: ebb watch {id}"));
            }
        }
        return Ok(());
    }
    if output != Output::Json {
        line(&id);
    }
    let show = if output == Output::Table { Show::Progress } else { Show::Nothing };
    let wanted = Until { phase: None, within: args.timeout };
    let ended = watch::until(client, &[id], show, &wanted).await?;
    if output == Output::Json {
        ended.iter().for_each(json);
    }
    ended.iter().try_for_each(|job| wanted.judge(job))
}

/// What a submit would come to, as this machine can tell and as the service says; nothing changes.
async fn dry_run(client: &Client, output: Output, args: &SubmitArgs, file: JobFile) -> Result<(), Failure> {
    let here = try_here::torch_job(client, args, &file).await?;
    if let Some(here) = &here {
        advise(here.sentence());
    }
    let answer = match ask(client, args, file).await {
        Err(Failure::Service(ClientError::Unreachable { url, .. })) if matches!(here, Some(Here::Fits { .. })) => {
            advise(format!("the service was not asked: none answers at {url}"));
            None
        }
        other => Some(other?),
    };
    let known = answer.as_ref().and_then(|answer| answer.known.as_deref());
    match (output, known) {
        (Output::Json, _) => {
            let mut document = answer.as_ref().map_or_else(|| json!({}), |answer| answer.as_it_came().clone());
            if let Some(here) = here {
                document["here"] = here.json();
            }
            json(&document);
        }
        (Output::Name, known) => known.into_iter().for_each(line),
        (Output::Table, Some(known)) => line(format!("valid; this key and file made {known} before")),
        (Output::Table, None) => line("valid; nothing was submitted"),
    }
    Ok(())
}

async fn ask(client: &Client, args: &SubmitArgs, file: JobFile) -> Result<Answer<DryRun>, Failure> {
    let body = upload_all(client, file).await?;
    Ok(client.rehearse(&body, args.idempotency_key.as_deref()).await?)
}

/// Uploads what the spec names; the spec, which says where everything is.
async fn upload_all(client: &Client, mut file: JobFile) -> Result<Body, Failure> {
    upload(client, file.code.take()).await?;
    begin(client, &mut file).await?;
    Ok(file.body)
}

/// Uploads packed code, unless the service has it.
async fn upload(client: &Client, code: Option<PackedCode>) -> Result<(), ClientError> {
    let Some(PackedCode { digest, bytes, folder }) = code else { return Ok(()) };
    let kib = bytes.len().div_ceil(1_024);
    if client.uploaded_code(&digest).await?.is_some() {
        advise(format!("code of `{}` is there already: {kib} KiB", folder.display()));
        return Ok(());
    }
    client.upload_code(&digest, bytes).await?;
    advise(format!("code of `{}` uploaded: {kib} KiB", folder.display()));
    Ok(())
}

/// Uploads what the model begins with, unless the service has it, or finds the job that made it.
async fn begin(client: &Client, file: &mut JobFile) -> Result<(), Failure> {
    let Some(begin_with) = &file.begin_with else { return Ok(()) };
    if let Some(InitialFile { digest, bytes, path }) = begin_with.file() {
        upload_model(client, digest, *bytes, path).await?;
    }
    let job = match begin_with.model() {
        Some(digest) => Some(job_of(client, digest).await?),
        None => None,
    };
    file.begins_with(job.as_deref());
    Ok(())
}

async fn upload_model(client: &Client, digest: &str, bytes: u64, path: &Path) -> Result<(), Failure> {
    let mib = bytes.div_ceil(1 << 20);
    if client.uploaded_model(digest).await?.is_some() {
        advise(format!("tensors of `{}` are there already: {mib} MiB", path.display()));
        return Ok(());
    }
    let cannot = |e| Failure::local(format!("`{}` cannot be read", path.display()), e);
    let tensors = File::open(path).map_err(cannot)?;
    let chunks = std::iter::from_fn(move || {
        let mut chunk = Vec::with_capacity(CHUNK_BYTES);
        match (&tensors).take(CHUNK_BYTES as u64).read_to_end(&mut chunk) {
            Ok(0) => None,
            Ok(_) => Some(Ok(chunk.into())),
            Err(error) => Some(Err(error)),
        }
    });
    client.upload_model(digest, bytes, chunks).await?;
    advise(format!("tensors of `{}` uploaded: {mib} MiB", path.display()));
    Ok(())
}

/// The job that ended with this model.
async fn job_of(client: &Client, digest: &str) -> Result<String, Failure> {
    let jobs = client.jobs(&WantedJobs::in_phase(JobPhase::Finished)).await?;
    let found = jobs.iter().find(|job| job.outcome.as_ref().is_some_and(|outcome| outcome.model_digest == digest));
    found.map(|job| job.id.clone()).ok_or_else(|| {
        Failure::Usage(format!(
            "`from` is the digest {digest}, and no finished job has a model of it; `ebb jobs` lists them"
        ))
    })
}

/// `ebb jobs`.
pub async fn list(client: &Client, output: Output, args: &JobsArgs) -> Result<(), Failure> {
    let tenant = args.tenant.as_ref().map(ToString::to_string);
    let jobs = client.jobs(&WantedJobs { tenant, ..WantedJobs::default() }).await?;
    match output {
        Output::Json => {
            json(&json!({ "jobs": jobs }));
            return Ok(());
        }
        Output::Name => {
            jobs.iter().for_each(|job| line(&job.id));
            return Ok(());
        }
        Output::Table => {}
    }
    if jobs.is_empty() {
        match &args.tenant {
            Some(tenant) => line(format!("tenant {tenant} has no jobs; all of them: ebb jobs")),
            None => line("no jobs yet; next: ebb submit FILE"),
        }
        return Ok(());
    }
    let mut columns = vec!["ID", "NAME", "PHASE", "SLOTS", "STEP", "LOSS", "SUBMITTED", "WAITS FOR"];
    let mut rows: Vec<Vec<String>> = jobs.iter().map(|job| row(job)).collect();
    // Whose they are is worth a column where anybody has said it.
    if jobs.iter().any(|job| job.spec.tenant.is_some()) {
        columns.insert(2, "TENANT");
        rows.iter_mut().zip(&jobs).for_each(|(row, job)| row.insert(2, job.tenant.clone()));
    }
    line(table(&columns, &rows));
    Ok(())
}

fn row(job: &Job) -> Vec<String> {
    let step = match (&job.progress, &job.outcome) {
        (_, Some(outcome)) => outcome.step.to_string(),
        (Some(p), None) => format!("{}/{}", p.step, p.steps_total),
        (None, None) => String::new(),
    };
    let loss = match (&job.progress, &job.outcome) {
        (_, Some(outcome)) => outcome.train_loss.map(|loss| format!("{loss:.4}")).unwrap_or_default(),
        (Some(p), None) => format!("{:.4}", p.loss),
        (None, None) => String::new(),
    };
    let waits = job.reason.as_ref().and_then(|r| r.waits.as_ref()).map(in_short).unwrap_or_default();
    vec![
        job.id.clone(),
        job.name.clone(),
        job.phase.to_string(),
        format!("{}/{}", job.slots.len(), job.workers.max),
        step,
        loss,
        job.submitted_at.clone(),
        waits,
    ]
}

/// What a job waits for, in a column.
fn in_short(waits: &WaitCause) -> String {
    match waits {
        WaitCause::Link(link) => format!("link of {}", link.server),
        other => words(other),
    }
}

/// `ebb job ID`.
pub async fn show(client: &Client, output: Output, id: &str) -> Result<(), Failure> {
    let id = find::job(client, id).await?;
    print_job(output, &client.job(&id).await?);
    Ok(())
}

/// Asks for a change of a job and shows it.
pub async fn change(client: &Client, output: Output, id: &str, change: Change) -> Result<(), Failure> {
    let id = find::job(client, id).await?;
    let job = match change {
        Change::Cancel => client.cancel(&id).await?,
        Change::Suspend => client.suspend(&id).await?,
        Change::Resume => client.resume(&id).await?,
    };
    print_job(output, &job);
    Ok(())
}

/// Samples of one update, of a job that says a range of them.
fn batches(batches: &Batches) -> String {
    let used: Vec<String> = batches.used.iter().map(ToString::to_string).collect();
    let used = format!("so far of {} samples", used.join(", "));
    match batches.now {
        Some(now) => format!("{now} samples in an update; {used}"),
        None if batches.used.is_empty() => String::new(),
        None => used,
    }
}

/// What a user can do to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// End it.
    Cancel,
    /// Checkpoint it and give its slots back.
    Suspend,
    /// Let it run again.
    Resume,
}

fn print_job(output: Output, job: &Answer<Job>) {
    match output {
        Output::Json => json(job),
        Output::Name => line(&job.id),
        Output::Table => line(describe(job)),
    }
}

fn describe(job: &Job) -> String {
    let progress = job.progress.map(|p| {
        format!(
            "step {}/{}, epoch {}, loss {:.4}, {:.0} samples/s, {} µs a step ({} µs waiting for data), {} executors",
            p.step,
            p.steps_total,
            p.epoch,
            p.loss,
            p.samples_per_second,
            p.step_us,
            p.data_wait_us.unwrap_or(0),
            p.members
        ) + &p
            .checkpoint_every_ms
            .map_or_else(String::new, |ms| format!(", a checkpoint every {} s", ms.div_ceil(1_000)))
    });
    let reason = job.reason.as_ref().map(|r| format!("{} (policy {})", words(&r.cause), r.policy));
    let scaling = job
        .last_scaling
        .as_ref()
        .map(|s| format!("{} → {} at {}: {}", s.from, counted(&s.to.into(), "slot"), s.at, words(&s.cause)));
    let outcome = job.outcome.as_ref();
    let found = outcome.and_then(|o| o.metrics.as_ref());
    let evaluation = found.or(job.last_evaluation.as_ref().map(|last| &last.metrics));
    pairs(&[
        ("id", job.id.clone()),
        ("name", job.name.clone()),
        ("tenant", job.tenant.clone()),
        ("phase", job.phase.to_string()),
        ("failure", job.failure.clone().unwrap_or_default()),
        ("submitted", job.submitted_at.clone()),
        ("slots", job.slots.join(" ")),
        ("workers", format!("{} to {}", job.workers.min, job.workers.max)),
        ("generation", job.generation.map(|g| g.to_string()).unwrap_or_default()),
        ("batches", job.batches.as_ref().map(batches).unwrap_or_default()),
        ("progress", progress.unwrap_or_default()),
        ("has these because", reason.unwrap_or_default()),
        ("waits for", job.reason.as_ref().and_then(|r| r.waits.as_ref()).map(WaitCause::sentence).unwrap_or_default()),
        ("last scaling", scaling.unwrap_or_default()),
        ("damaged checkpoint", job.damaged_checkpoints.last().map(DamagedCheckpoint::sentence).unwrap_or_default()),
        (
            "needs another build",
            job.unreadable_checkpoint.as_ref().map(UnreadableCheckpoint::sentence).unwrap_or_default(),
        ),
        ("last stall", job.last_stall.as_ref().map(Stall::sentence).unwrap_or_default()),
        ("last loss", job.last_lost_member.as_ref().map(LostMember::sentence).unwrap_or_default()),
        ("growth", job.growth_paused.as_ref().map(GrowthPaused::sentence).unwrap_or_default()),
        ("stragglers", job.stragglers.iter().map(Straggler::sentence).collect::<Vec<_>>().join("; ")),
        ("a step", job.speeds.iter().map(Speed::sentence).collect::<Vec<_>>().join("; ")),
        ("a rank's gradient", job.type_times.iter().map(TypeTime::sentence).collect::<Vec<_>>().join("; ")),
        ("restarts", if job.restarts == 0 { String::new() } else { job.restarts.to_string() }),
        ("last restart", job.last_restart.as_ref().map(Restart::sentence).unwrap_or_default()),
        ("accuracy", evaluation.and_then(accuracy).unwrap_or_default()),
        ("evaluation", evaluation.map(measured).unwrap_or_default()),
        ("model digest", outcome.map(|o| o.model_digest.clone()).unwrap_or_default()),
        ("next", next_step(job)),
    ])
}

fn accuracy(metrics: &Metrics) -> Option<String> {
    let accuracy = metrics.accuracy?;
    Some(format!("{:.2} % ({} of {})", 100.0 * accuracy, metrics.correct, metrics.count))
}

/// What the job's code measured, by its names; of Ebb's own models the loss.
fn measured(metrics: &Metrics) -> String {
    let shown = |(name, mean): (&String, &Option<f64>)| match mean {
        Some(mean) => format!("{name} {mean:.6}"),
        None => format!("{name} not a finite number"),
    };
    match metrics.means.is_empty() {
        true => metrics.loss.map(|loss| format!("loss {loss:.6}")).unwrap_or_default(),
        false => metrics.means.iter().map(shown).collect::<Vec<_>>().join(", "),
    }
}

fn next_step(job: &Job) -> String {
    match job.phase.as_str() {
        "finished" => {
            let file = if matches!(job.spec.model, Model::Command { .. }) { "result.tar" } else { "model.safetensors" };
            format!("ebb model get {} -o {file}", job.id)
        }
        "failed" | "cancelled" => format!("ebb events {}", job.id),
        "suspended" => format!("ebb resume {}", job.id),
        _ => format!("ebb watch {}", job.id),
    }
}

/// `ebb checkpoints ID`.
pub async fn checkpoints(client: &Client, output: Output, args: &CheckpointsArgs) -> Result<(), Failure> {
    let id = find::job(client, &args.id).await?;
    let steps = Stretch { from: args.from_step, to: args.to_step };
    let list = client.checkpoints(&id, steps, args.newest).await?;
    match output {
        Output::Json => {
            json(&json!({ "checkpoints": list }));
            return Ok(());
        }
        Output::Name => {
            list.iter().for_each(|checkpoint| line(checkpoint.step.to_string()));
            return Ok(());
        }
        Output::Table => {}
    }
    if list.is_empty() {
        line("no checkpoints yet");
        return Ok(());
    }
    let rows: Vec<Vec<String>> = list
        .iter()
        .map(|c| {
            let digest: String = c.replica_digest.chars().take(DIGEST_SHOWN).collect();
            vec![c.step.to_string(), c.generation.to_string(), c.bytes.to_string(), digest, c.manifest_key.clone()]
        })
        .collect();
    line(table(&["STEP", "GENERATION", "BYTES", "REPLICA", "MANIFEST"], &rows));
    Ok(())
}

/// `ebb model get ID -o FILE`; `direct` takes the bytes from the object store.
pub async fn model_get(client: &Client, output: Output, id: &str, file: &Path, direct: bool) -> Result<(), Failure> {
    let target = ModelTarget::of(file)?;
    let id = find::job(client, id).await?;
    let job = client.job(&id).await?;
    let source = Source::of_model(client, &id, direct).await?;
    let bytes = match target {
        // The model is all that may stand there.
        ModelTarget::StandardOutput => return source.download(client, &mut StandardOutput).await.map(drop),
        ModelTarget::Direct => fetch(client, &source, file, OpenOptions::new().write(true)).await?,
        ModelTarget::File => fetch_whole(client, &source, file).await?,
    };
    let digest = job.into_typed().outcome.map(|o| o.model_digest).unwrap_or_default();
    match output {
        Output::Json => json(&json!({"job": id, "file": file, "bytes": bytes, "model_digest": digest})),
        Output::Name => line(file.display().to_string()),
        Output::Table => line(format!("{}: {bytes} bytes, parameters {digest}", file.display())),
    }
    Ok(())
}

/// Where a model goes.
#[derive(Debug, PartialEq, Eq)]
enum ModelTarget {
    /// `-`
    StandardOutput,
    /// A device or a pipe: a file in its place would not be what was meant.
    Direct,
    /// A file, made or replaced.
    File,
}

impl ModelTarget {
    fn of(file: &Path) -> Result<Self, Failure> {
        if file.as_os_str() == "-" {
            return Ok(Self::StandardOutput);
        }
        // What cannot be looked at is told when it is written.
        match std::fs::metadata(file) {
            Ok(there) if there.is_dir() => Err(Failure::Usage(format!(
                "`{}` is a folder; name a file, for example {}",
                file.display(),
                file.join("model.safetensors").display()
            ))),
            Ok(there) if !there.is_file() => Ok(Self::Direct),
            _ => Ok(Self::File),
        }
    }
}

/// Whole or not at all: the file appears under its name only when complete.
async fn fetch_whole(client: &Client, source: &Source, file: &Path) -> Result<u64, Failure> {
    let mut part = file.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    let fetched = fetch(client, source, &part, OpenOptions::new().write(true).create(true).truncate(true)).await;
    let named = fetched.and_then(|bytes| std::fs::rename(&part, file).map(|()| bytes).map_err(cannot_write(file)));
    if named.is_err() {
        // The unfinished part is of no use; if it cannot be removed, the failure is still the thing to tell.
        let _ = std::fs::remove_file(&part);
    }
    named
}

async fn fetch(client: &Client, source: &Source, file: &Path, how: &OpenOptions) -> Result<u64, Failure> {
    let mut sink = BufWriter::new(how.open(file).map_err(cannot_write(file))?);
    let bytes = source.download(client, &mut sink).await?;
    sink.flush().map_err(cannot_write(file))?;
    Ok(bytes)
}

fn cannot_write(file: &Path) -> impl Fn(std::io::Error) -> Failure {
    move |e| Failure::local(format!("`{}` cannot be written", file.display()), e)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_model_replaces_files_only() {
        let folder = tempfile::tempdir().unwrap();
        let refused = ModelTarget::of(folder.path()).unwrap_err().to_string();
        assert!(refused.contains("model.safetensors"), "{refused}");
        assert_eq!(ModelTarget::of(&folder.path().join("new")).unwrap(), ModelTarget::File);
        assert_eq!(ModelTarget::of(Path::new("/dev/null")).unwrap(), ModelTarget::Direct);
        assert_eq!(ModelTarget::of(Path::new("-")).unwrap(), ModelTarget::StandardOutput);
    }
}
