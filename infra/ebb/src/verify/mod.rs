//! `ebb verify JOB`: has the service train a job, or a stretch of it, once more on a fixed number of slots, compares what the log has of both bit for
//! bit, and writes that down in a document.
//!
//! All of it goes through the API: the retraining is a job like any other (`retrains` in its spec), the digests are those of the events, and
//! only where something differs the models of both are read, to name the tensor. Nothing here computes a gradient. Reading order: here,
//! [`document`] (what is handed on, and the verdict), `tensors.rs`.

pub mod document;
mod tensors;

use crate::args::VerifyArgs;
use crate::failure::Failure;
use crate::find;
use crate::output::{Output, advise, json, line};
use crate::sentences::{kind, sentence, time_ms};
use crate::watch::{self, Show, Until};
use crate::wire::{Job, words};
use document::{
    DatasetOf, Difference, Document, JobOf, Recorded, RetrainingOf, RunOf, StretchOf, Tensors, Told, Verdict, Versions,
    What, compare, compared, first_difference, judge,
};
use gateway_api::{Checkpoint, Model, rfc3339};
use gateway_client::{Answer, Body, Client, ClientError, Events, Stretch, WantedSlots, fresh_key};
use rustix::fs::Access;
use serde_json::{Value, json};
use shell::wall_clock;
use std::fs::{DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Characters that a job's name may have.
const NAME_CHARS_MAX: usize = 63;
/// Steps that are named where another one was asked for.
const STEPS_NAMED: usize = 8;
/// Events of a run that a document holds; the rest is counted. A document stays one that is read.
const EVENTS_MAX: usize = 500;
/// What happens to the executors of a job: events of these kinds are told.
const OF_EXECUTORS: &[&str] = &[
    "job.planned",
    "job.scaled",
    "job.restarted",
    "job.suspended",
    "job.resumed",
    "job.stalled",
    "generation.member_lost",
    "generation.replicas_differed",
    "checkpoint.damaged",
];
/// The same, as the API selects them.
const OF_EXECUTORS_SELECTED: &[&str] = &["job.*", "generation.*", "checkpoint.*"];

/// Why a verification goes no further.
enum Stop {
    /// It can say nothing, for this reason; that is written down.
    Impossible(String),
    /// It did not come about.
    Failed(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<ClientError> for Stop {
    fn from(failure: ClientError) -> Self {
        Self::Failed(failure.into())
    }
}

fn impossible<T>(because: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Impossible(because.into()))
}

fn usage<T>(what: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Failed(Failure::Usage(what.into())))
}

/// `ebb verify`.
pub async fn verify(client: &Client, output: Output, args: &VerifyArgs) -> Result<(), Failure> {
    let began_at = rfc3339(wall_clock());
    ensure_writable(args, output)?;
    let id = find::job(client, &args.id).await?;
    let job = client.job(&id).await?;
    let service = client.server().await?.into_typed();
    let versions = Versions { ebb: env!("CARGO_PKG_VERSION").to_owned(), service: service.version, cell: service.cell };
    let document = Document::of(about(&job), versions, began_at);
    let mut verification = Verification { client, output, args, job, document };
    let end = match verification.carry_out().await {
        Ok(end) => end,
        Err(Stop::Impossible(because)) => (Verdict::Impossible, because),
        Err(Stop::Failed(failure)) => return Err(failure),
    };
    let mut document = verification.document;
    document.conclude(end.0, end.1);
    document.ended_at = rfc3339(wall_clock());
    hand_on(output, args, &document)?;
    match document.verdict {
        Verdict::Equal => Ok(()),
        Verdict::Different => Err(Failure::Different { job: id, says: document.says }),
        Verdict::Impossible => Err(Failure::NotVerified { job: id, because: document.says }),
    }
}

fn about(job: &Job) -> JobOf {
    JobOf {
        id: job.id.clone(),
        name: job.name.clone(),
        phase: job.phase.to_string(),
        spec_digest: job.spec_digest.clone(),
        numeric_class: job.numeric_class.clone(),
        slots_of_class: 0,
        submitted_at: job.submitted_at.clone(),
        finished_at: job.finished_at.clone(),
    }
}

/// Shows the document, and then writes it: what took hours to find out is not lost to a folder that cannot be written.
fn hand_on(output: Output, args: &VerifyArgs, document: &Document) -> Result<(), Failure> {
    let value = serde_json::to_value(document).map_err(|e| Failure::local("the document cannot be written", e))?;
    match output {
        Output::Json => json(&value),
        Output::Name => line(words(&value["verdict"])),
        Output::Table => line(document.shown()),
    }
    let file = args.file.clone().or_else(|| match output {
        Output::Table => Some(PathBuf::from(document.file_name())),
        Output::Json | Output::Name => None,
    });
    if let Some(file) = file {
        std::fs::write(&file, format!("{value:#}\n"))
            .map_err(|e| Failure::local(format!("`{}` cannot be written", file.display()), e))?;
        advise(format!("the document is `{}`", file.display()));
    }
    Ok(())
}

/// Refuses a file, or a folder for it, that cannot be written, before anything is trained for it.
fn ensure_writable(args: &VerifyArgs, output: Output) -> Result<(), Failure> {
    let place = match (&args.file, output) {
        (Some(file), _) if file.exists() => file.as_path(),
        (Some(file), _) => file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new(".")),
        (None, Output::Table) => Path::new("."),
        (None, Output::Json | Output::Name) => return Ok(()),
    };
    rustix::fs::access(place, Access::WRITE_OK).map_err(|errno| {
        let what = format!("the document cannot be written to `{}`", place.display());
        Failure::local(what, std::io::Error::from(errno)).advise("name another file: `--file FILE`")
    })
}

struct Verification<'a> {
    client: &'a Client,
    output: Output,
    args: &'a VerifyArgs,
    /// The job as the service shows it; its spec is submitted again, as it came.
    job: Answer<Job>,
    document: Document,
}

impl Verification<'_> {
    async fn carry_out(&mut self) -> Result<(Verdict, String), Stop> {
        ensure_verifiable(&self.job)?;
        let kept = self.client.checkpoints(&self.job.id, Stretch::default(), None).await?;
        let mut recorded = recorded(self.client, &self.job.id).await?;
        kept.iter().for_each(|checkpoint| add(&mut recorded, checkpoint.step, &checkpoint.replica_digest));
        let ended_at = self.job.outcome.as_ref().map(|outcome| outcome.step);
        let (from, to) = choose(self.args, ended_at, &recorded, &kept)?;
        let digest = replica_of(&kept, from);
        self.document.stretch = Some(StretchOf { from_step: from, from_replica_digest: digest.clone(), to_step: to });
        self.document.original_run = Some(run_of(self.client, &self.job.id, from, to).await?);
        self.look_at_dataset().await?;
        let slots = self.look_at_slots().await?;
        let again = self.retrain(from, to, slots, digest, "verify").await?;
        self.document.retraining = Some(RetrainingOf {
            job: again.id.clone(),
            phase: again.phase.to_string(),
            slots: u64::from(slots),
            started_at: again.started_at.clone(),
            finished_at: again.finished_at.clone(),
            run: run_of(self.client, &again.id, 0, u64::MAX).await?,
        });
        ensure_finished(&again)?;
        self.document.compared = self.compare(&again, &recorded, from, to).await?;
        let end = judge(&self.document.compared, from, to);
        if let Some((first_step, last_equal_step)) = first_difference(&self.document.compared) {
            let (tensors, tensors_unknown) = match self.tensors(&again, &kept, to).await {
                Ok(tensors) => (Some(tensors), None),
                Err(Stop::Impossible(because)) => (None, Some(because)),
                Err(Stop::Failed(failure)) => (None, Some(failure.to_string())),
            };
            self.document.difference = Some(Difference { first_step, last_equal_step, tensors, tensors_unknown });
        }
        Ok(end)
    }

    /// Whether what it trained on is still registered, and was not registered anew: under an old name there may be other rows.
    async fn look_at_dataset(&mut self) -> Result<(), Stop> {
        let Some(name) = self.job.spec.dataset.clone() else { return Ok(()) };
        let Some(dataset) = self.client.find_dataset(&name).await?.map(Answer::into_typed) else {
            return impossible(format!(
                "its dataset `{name}` is not registered any more; register it again from the same files"
            ));
        };
        let submitted = time_ms(&Value::from(self.job.submitted_at.clone()));
        let registrations = Events::all().of_types(&["dataset.*"]).about(&name);
        let mut anew = None;
        let look = |event: &Value| {
            anew = anew.take().or_else(|| (time_ms(&event["time"]) > submitted).then(|| words(&event["time"])))
        };
        self.client.each_event(&registrations, None, look).await?;
        self.document.dataset =
            Some(DatasetOf { name: dataset.name, metadata_digest: dataset.metadata_digest, rows: dataset.rows });
        match anew {
            Some(at) => impossible(format!(
                "its dataset `{name}` was removed or registered anew after the job began, at {at}: nobody can tell whether its rows are the same"
            )),
            None => Ok(()),
        }
    }

    /// On how many slots it is retrained; whether there are as many of its class.
    async fn look_at_slots(&mut self) -> Result<u16, Stop> {
        let workers = self.job.spec.workers;
        let slots = self.args.slots.unwrap_or(workers.min);
        if slots > workers.max {
            return usage(format!(
                "--slots {slots} is more than the {} logical workers of the job; expected 1 to {}",
                workers.max, workers.max
            ));
        }
        let Some(class) = &self.job.numeric_class else {
            return impossible("it never trained, so nothing of it is recorded");
        };
        let there = self
            .client
            .slots(&WantedSlots::default())
            .await?
            .into_iter()
            .filter(|slot| slot.class.as_ref() == Some(class))
            .count();
        self.document.job.slots_of_class = there;
        if there < usize::from(slots) {
            return impossible(format!(
                "it trained on servers of the numeric class {class}, and {there} slots here are of it ({slots} are needed); on servers of another class other bits would say nothing"
            ));
        }
        Ok(slots)
    }

    /// Trains a stretch once more, and waits for its end.
    async fn retrain(
        &self,
        from: u64,
        to: u64,
        slots: u16,
        replica_digest: Option<String>,
        why: &str,
    ) -> Result<Job, Stop> {
        let spec = again(&self.job.as_it_came()["spec"], &self.job.id, from, to, slots, replica_digest, why);
        let id = self.client.submit(&Body::json(&spec), &fresh_key()?).await?.into_typed().id;
        advise(format!("job {id} trains step {from} to step {to} of {} once more, on {slots} slots", self.job.id));
        let show = if self.output == Output::Table { Show::Progress } else { Show::Nothing };
        let wanted = Until { phase: None, within: self.args.timeout };
        let ended = watch::until(self.client, &[id], show, &wanted).await?;
        Ok(ended.into_iter().next().map(Answer::into_typed).unwrap_or_default())
    }

    async fn compare(
        &self,
        again: &Job,
        recorded: &Recorded,
        from: u64,
        to: u64,
    ) -> Result<Vec<document::Compared>, Stop> {
        let mut recomputed = self::recorded(self.client, &again.id).await?;
        // What its list has is what counts, whatever has become of the log.
        for checkpoint in self.client.checkpoints(&again.id, Stretch::default(), None).await? {
            add(&mut recomputed, checkpoint.step, &checkpoint.replica_digest);
        }
        let mut all = compare(recorded, &recomputed, from, to);
        let model =
            |job: &Job| job.outcome.as_ref().filter(|outcome| outcome.step == to).map(|o| o.model_digest.clone());
        if let Some(model_digest) = model(&self.job) {
            all.push(compared(to, What::Model, model_digest, model(again)));
        }
        Ok(all)
    }

    /// The tensors of both models at the end of the stretch.
    async fn tensors(&self, again: &Job, kept: &[Answer<Checkpoint>], to: u64) -> Result<Tensors, Stop> {
        let was = match self.job.outcome.as_ref().filter(|outcome| outcome.step == to) {
            Some(_) => self.job.id.clone(),
            // A stretch of no steps: it begins with the recorded replica, and ends with its model.
            None => match replica_of(kept, to) {
                Some(digest) => {
                    let read = self.retrain(to, to, self.job.spec.workers.min, Some(digest), "read").await?;
                    ensure_finished(&read)?;
                    read.id
                }
                None => return impossible(format!("the checkpoint of step {to} is not kept any more")),
            },
        };
        let folder = Scratch::new()?;
        let (recorded, now) = (folder.path("recorded"), folder.path("now"));
        self.download(&was, &recorded).await?;
        self.download(&again.id, &now).await?;
        let open = |path: &Path| File::open(path).map_err(|e| cannot(path, e));
        let (mut recorded, mut now) = (open(&recorded)?, open(&now)?);
        let compared = tensors::compare(to, &mut recorded, &mut now);
        Ok(compared.map_err(|e| Failure::local("the models cannot be compared", e))?)
    }

    async fn download(&self, job: &str, path: &Path) -> Result<(), Failure> {
        let mut file = File::create(path).map_err(|e| cannot(path, e))?;
        self.client.download_model(job, &mut file).await?;
        Ok(())
    }
}

fn cannot(path: &Path, error: std::io::Error) -> Failure {
    Failure::local(format!("`{}` cannot be used for a model", path.display()), error)
}

/// A folder for two models, gone with this.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(format!("ebb-verify-{}", fresh_key()?));
        DirBuilder::new().mode(0o700).create(&path).map_err(|e| cannot(&path, e))?;
        Ok(Self(path))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed lies among other temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Refuses by name what nobody can train once more to the same bits.
fn ensure_verifiable(job: &Answer<Job>) -> Result<(), Stop> {
    if matches!(job.spec.model, Model::Command { .. }) {
        return impossible(
            "it is a whole program (`command`): what it computes is its own matter, and nobody promises that it computes the same twice",
        );
    }
    if job.as_it_came()["spec"]["determinism"] == "none" {
        return impossible(
            "its spec says `determinism: none`: what it comes to depends on the number of its executors, so another run is another model",
        );
    }
    match &job.spec.retrains {
        Some(retrains) => impossible(format!("it retrains `{0}` itself; verify {0}", retrains.job)),
        None => Ok(()),
    }
}

/// The spec of the job that trains a stretch once more: that of the job itself, but for its name and size.
fn again(spec: &Value, job: &str, from: u64, to: u64, slots: u16, replica_digest: Option<String>, why: &str) -> Value {
    let mut spec = spec.clone();
    let name = format!("{why} {}", words(&spec["name"]));
    spec["name"] = name.chars().take(NAME_CHARS_MAX).collect::<String>().into();
    spec["suspend"] = false.into();
    spec["retrains"] =
        json!({"job": job, "from_step": from, "to_step": to, "slots": slots, "replica_digest": replica_digest});
    spec
}

fn ensure_finished(job: &Job) -> Result<(), Stop> {
    if job.phase == "finished" {
        return Ok(());
    }
    let why = job.failure.as_ref().map(|failure| format!(": {failure}")).unwrap_or_default();
    impossible(format!("job {}, which was to train it once more, is {}{why}", job.id, job.phase))
}

/// The digests of a job's checkpoints, as the log has them.
async fn recorded(client: &Client, job: &str) -> Result<Recorded, Stop> {
    let mut recorded = Recorded::new();
    let accepted = Events::of_job(job).of_types(&["checkpoint.accepted.v1"]);
    let take = |event: &Value| {
        let data = &event["data"];
        if let (Some(step), Some(digest)) = (data["step"].as_u64(), data["replica_digest"].as_str()) {
            add(&mut recorded, step, digest);
        }
    };
    client.each_event(&accepted, None, take).await?;
    Ok(recorded)
}

fn add(recorded: &mut Recorded, step: u64, digest: &str) {
    let digests = recorded.entry(step).or_default();
    if !digests.iter().any(|known| known == digest) {
        digests.push(digest.to_owned());
    }
}

fn replica_of(kept: &[Answer<Checkpoint>], step: u64) -> Option<String> {
    kept.iter().rev().find(|checkpoint| checkpoint.step == step).map(|checkpoint| checkpoint.replica_digest.clone())
}

/// The stretch that is asked for. A job that is not over is verified as far as it has come.
fn choose(
    args: &VerifyArgs,
    ended_at: Option<u64>,
    recorded: &Recorded,
    kept: &[Answer<Checkpoint>],
) -> Result<(u64, u64), Stop> {
    let newest = recorded.last_key_value().map(|(step, _)| *step);
    let Some(end) = ended_at.or(newest) else {
        return impossible("it has saved no checkpoint yet, so nothing of it is recorded; verify it again later");
    };
    let to = args.to.unwrap_or(end);
    if to == 0 || !recorded.contains_key(&to) && ended_at != Some(to) {
        let steps = named(recorded.keys().rev().copied());
        return usage(format!("--to {to} is no step of which the log has a digest; it has those of steps {steps}"));
    }
    let of_kept = || kept.iter().rev().map(|checkpoint| checkpoint.step);
    let from = match args.from {
        Some(from) => from,
        None if args.last => of_kept().filter(|step| *step < to).max().unwrap_or(0),
        None => 0,
    };
    if from >= to {
        return usage(format!("--from {from} is not before step {to}, where the stretch ends"));
    }
    if from == 0 || of_kept().any(|step| step == from) {
        return Ok((from, to));
    }
    let steps = named(of_kept());
    if recorded.contains_key(&from) {
        return impossible(format!(
            "its checkpoint of step {from} is not kept any more (its spec keeps the newest `checkpoint.keep`); it has those of steps {steps}, and its beginning"
        ));
    }
    usage(format!(
        "--from {from} is no step of which the job has a checkpoint; it has those of steps {steps}, and 0 is its beginning"
    ))
}

fn named(steps: impl Iterator<Item = u64>) -> String {
    let steps: Vec<String> = steps.take(STEPS_NAMED).map(|step| step.to_string()).collect();
    if steps.is_empty() { "none".to_owned() } else { steps.join(", ") }
}

/// What happened to a job's executors between the moments at which the log has the replicas of two steps.
async fn run_of(client: &Client, job: &str, from: u64, to: u64) -> Result<RunOf, Stop> {
    let events = Events::of_job(job).of_types(OF_EXECUTORS_SELECTED);
    let mut story =
        Story { from, to, at: if from == 0 { At::Within } else { At::Before }, slots: None, run: RunOf::default() };
    client.each_event(&events, None, |event| story.take(event)).await?;
    Ok(story.run)
}

/// Where in a job's log a reader is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Before,
    Within,
    Behind,
}

/// Reads a job's events in order and keeps what happened to its executors within a stretch.
struct Story {
    from: u64,
    to: u64,
    at: At,
    /// Slots of its plan so far.
    slots: Option<u64>,
    run: RunOf,
}

impl Story {
    fn take(&mut self, event: &Value) {
        let data = &event["data"];
        match kind(event) {
            "checkpoint.accepted" => {
                let step = data["step"].as_u64();
                match self.at {
                    At::Before if step == Some(self.from) => {
                        self.at = At::Within;
                        self.count_slots();
                    }
                    At::Within if step == Some(self.to) => self.at = At::Behind,
                    _ => {}
                }
                return;
            }
            "job.planned" => {
                self.slots = data["to"].as_u64();
                if self.at == At::Within {
                    self.count_slots();
                }
            }
            "job.scaled" if self.at == At::Within => self.run.scalings += 1,
            "generation.member_lost" if self.at == At::Within => self.run.losses += 1,
            "job.restarted" if self.at == At::Within => self.run.restarts += 1,
            _ => {}
        }
        if self.at == At::Within && OF_EXECUTORS.contains(&kind(event)) {
            self.tell(event);
        }
    }

    /// The slots of its plan count for the stretch; without any it does not train.
    fn count_slots(&mut self) {
        let Some(slots) = self.slots.filter(|slots| *slots > 0) else { return };
        self.run.slots_least = Some(self.run.slots_least.map_or(slots, |least| least.min(slots)));
        self.run.slots_most = Some(self.run.slots_most.map_or(slots, |most| most.max(slots)));
    }

    fn tell(&mut self, event: &Value) {
        if self.run.events.len() >= EVENTS_MAX {
            self.run.events_left_out += 1;
            return;
        }
        let told = Told { id: words(&event["id"]), at: words(&event["time"]), says: sentence(event) };
        self.run.events.push(told);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn args(arguments: &[&str]) -> VerifyArgs {
        use crate::args::{Cli, Command, JobArgs, JobCommand};
        use clap::Parser;
        let all = ["ebb", "job", "verify", "job-a"].iter().chain(arguments);
        match Cli::try_parse_from(all).unwrap().command {
            Command::Job(JobArgs { command: Some(JobCommand::Verify(args)), .. }) => args,
            other => panic!("{other:?}"),
        }
    }

    fn kept(steps: &[u64]) -> Vec<Answer<Checkpoint>> {
        let all: Value = steps.iter().map(|step| json!({"step": step, "replica_digest": format!("d{step}")})).collect();
        serde_json::from_value(all).unwrap()
    }

    fn steps(all: &[u64]) -> Recorded {
        all.iter().map(|step| (*step, vec![format!("d{step}")])).collect()
    }

    fn chosen(arguments: &[&str], ended_at: Option<u64>) -> Result<(u64, u64), String> {
        let (recorded, kept) = (steps(&[20, 40, 60, 70]), kept(&[60, 70]));
        choose(&args(arguments), ended_at, &recorded, &kept).map_err(|stop| match stop {
            Stop::Impossible(because) => format!("impossible: {because}"),
            Stop::Failed(failure) => failure.to_string(),
        })
    }

    #[test]
    fn a_stretch_is_the_whole_run_the_newest_part_or_what_is_named() {
        assert_eq!(chosen(&[], Some(70)), Ok((0, 70)));
        assert_eq!(chosen(&[], None), Ok((0, 70)), "as far as it has come");
        assert_eq!(chosen(&["--last"], Some(70)), Ok((60, 70)));
        assert_eq!(chosen(&["--to", "40"], Some(70)), Ok((0, 40)), "a digest is enough to end with");
        assert_eq!(chosen(&["--from", "60", "--to", "70"], None), Ok((60, 70)));
    }

    #[test]
    fn a_stretch_that_cannot_be_is_told_with_those_that_can() {
        for (arguments, said) in [
            (["--to", "50"], "--to 50 is no step of which the log has a digest; it has those of steps 70, 60, 40, 20"),
            (
                ["--from", "30"],
                "--from 30 is no step of which the job has a checkpoint; it has those of steps 70, 60, and 0",
            ),
            (["--from", "40"], "impossible: its checkpoint of step 40 is not kept any more"),
            (["--from", "70"], "--from 70 is not before step 70"),
        ] {
            let found = chosen(&arguments, Some(70)).unwrap_err();
            assert!(found.starts_with(said), "{found}");
        }
        let nothing = choose(&args(&[]), None, &Recorded::new(), &[]);
        assert!(matches!(nothing, Err(Stop::Impossible(because)) if because.contains("no checkpoint yet")));
    }

    #[test]
    fn what_nobody_can_train_again_is_refused_by_name() {
        let refused = |spec: Value| {
            let record = json!({"id": "job-a", "phase": "finished", "spec": spec});
            match ensure_verifiable(&serde_json::from_value(record).unwrap()) {
                Err(Stop::Impossible(because)) => because,
                _ => String::new(),
            }
        };
        let least = json!({"name": "n", "model": {"kind": "mlp"}, "batch_size": 1});
        assert_eq!(refused(least.clone()), "");
        let with = |name: &str, value: Value| {
            let mut spec = least.clone();
            spec[name] = value;
            refused(spec)
        };
        assert!(with("model", json!({"kind": "command", "command": ["a"]})).contains("a whole program (`command`)"));
        assert!(with("determinism", json!("none")).contains("`determinism: none`"));
        assert!(with("retrains", json!({"job": "job-b"})).contains("verify job-b"));
    }

    #[test]
    fn the_retraining_is_the_same_spec_on_its_own_slots() {
        let spec = json!({"name": "n".repeat(63), "suspend": true, "seed": 7});
        let again = again(&spec, "job-a", 20, 40, 1, Some("d20".to_owned()), "verify");
        assert_eq!(again["name"].as_str().unwrap().chars().count(), NAME_CHARS_MAX);
        let stretch = json!({"job": "job-a", "from_step": 20, "to_step": 40, "slots": 1, "replica_digest": "d20"});
        assert_eq!((&again["retrains"], &again["suspend"], &again["seed"]), (&stretch, &json!(false), &json!(7)));
    }

    #[test]
    fn what_befell_the_executors_is_told_within_the_stretch_alone() {
        let event = |kind: &str, data: Value| json!({"id": "1-0", "type": format!("dev.ebb.{kind}.v1"), "time": "t", "data": data});
        let log = [
            event("job.planned", json!({"from": 0, "to": 3})),
            event("generation.member_lost", json!({"executor": "job-a/e0"})),
            event("checkpoint.accepted", json!({"step": 20})),
            event("job.planned", json!({"from": 3, "to": 1})),
            event("job.scaled", json!({"from": 3, "to": 1})),
            event("generation.member_lost", json!({"executor": "job-a/e1"})),
            event("generation.active", json!({"step": 22})),
            event("checkpoint.accepted", json!({"step": 40})),
            event("job.restarted", json!({"from_step": 40})),
        ];
        let mut story = Story { from: 20, to: 40, at: At::Before, slots: None, run: RunOf::default() };
        log.iter().for_each(|event| story.take(event));
        let run = story.run;
        assert_eq!((run.slots_least, run.slots_most), (Some(1), Some(3)));
        assert_eq!((run.scalings, run.losses, run.restarts, run.events.len()), (1, 1, 0, 3));
    }
}
