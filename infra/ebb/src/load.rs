//! `ebb load`: runs a scenario of fleets and jobs against a running service. What is sent when, what is measured and what is drawn is in
//! `loadtest`; here is only its HTTP, and what is printed.

use crate::failure::Failure;
use crate::output::{Output, advise, json as print_json, line};
use crate::roles::signals::Signals;
use crate::sentences::time_ms;
use clap::{Args, ValueHint};
use gateway_api::{DeclareFleet, DemandTaken, Fleet, Job, JobPhase, ProblemKind, PublishDemand};
use gateway_client::{Answer, Body, Client, ClientError, Events, Follower, WantedJobs};
use loadtest::{CallError, Coming, Happened, Loaded, Service};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Events read ahead of the run: it takes them as they come.
const EVENTS_AHEAD_MAX: usize = 4_096;

/// Examples of `ebb load`.
pub const HELP: &str = "\
Examples:
  ebb load docs/examples/load/two-fleets.yaml --dry-run       what would be sent, and when
  ebb load docs/examples/load/two-fleets.yaml --picture tide.svg

Every signal and job is sent at its own moment, whatever became of those before it. Latencies are those between the service's own
events. Its jobs are cancelled at the end unless the scenario keeps them; demand stays as it was last said.
Exit code 9: a threshold of the scenario does not hold. docs/load.md says what a scenario is made of and what is measured.";

/// Arguments of `ebb load`.
#[derive(Debug, Clone, Args)]
pub struct LoadArgs {
    /// The scenario, YAML or JSON; the files that it names lie beside it.
    #[arg(value_hint = ValueHint::FilePath)]
    pub scenario: PathBuf,
    /// Draw demand, lent slots and steps per second over time into this SVG.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub picture: Option<PathBuf>,
    /// Another seed than the scenario's.
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,
    /// Only say what would be sent, and when.
    #[arg(long)]
    pub dry_run: bool,
}

/// `ebb load SCENARIO`.
pub async fn load(client: &Client, output: Output, args: &LoadArgs) -> Result<(), Failure> {
    let unusable = |e: loadtest::LoadError| Failure::Usage(format!("the scenario cannot be run: {e:#}"));
    let loaded = loadtest::load(&args.scenario, args.seed).map_err(unusable)?;
    if args.dry_run {
        print_schedule(output, &loaded);
        return Ok(());
    }
    let mut signals = Signals::listen()?;
    let ran = loadtest::run(&loaded, Arc::new(OverHttp(client.clone())), signals.next()).await;
    let ran = ran.map_err(|error| match error {
        CallError::Interrupted => Failure::Interrupted,
        error => Failure::local("the load could not be run to its end", error),
    })?;
    if let Some(file) = &args.picture {
        std::fs::write(file, loadtest::svg(&ran.observer, ran.report.took_s))
            .map_err(|e| Failure::local(format!("{} cannot be written", file.display()), e))?;
    }
    match output {
        Output::Json => print_json(&serde_json::to_value(&ran.report).unwrap_or_default()),
        _ => line(ran.report.to_string().trim_end()),
    }
    let broken: Vec<String> =
        ran.report.thresholds.iter().filter(|v| !v.holds).map(|v| format!("{} {}", v.measure, v.stat)).collect();
    if broken.is_empty() { Ok(()) } else { Err(Failure::Thresholds { broken }) }
}

fn print_schedule(output: Output, loaded: &Loaded) {
    let rows: Vec<(f64, String, Value)> = loaded
        .actions
        .iter()
        .map(|action| {
            let at_s = action.at.as_secs_f64();
            match &action.what {
                loadtest::What::Signal { fleet, needed } => {
                    let fleet = &loaded.scenario.fleets[*fleet].fleet;
                    (at_s, format!("{fleet} needs {needed}"), json!({"at_s": at_s, "fleet": fleet, "needed": needed}))
                }
                loadtest::What::Submit { mix, number } => {
                    let mix = &loaded.scenario.jobs[*mix].name;
                    (at_s, format!("job {mix}-{number}"), json!({"at_s": at_s, "mix": mix, "number": number}))
                }
            }
        })
        .collect();
    match output {
        Output::Json => print_json(&json!(rows.into_iter().map(|(.., row)| row).collect::<Vec<_>>())),
        _ => rows.iter().for_each(|(at_s, what, _)| line(format!("{at_s:>9.3} s  {what}"))),
    }
}

/// A service over its HTTP API.
struct OverHttp(Client);

impl OverHttp {
    /// Asks once, by a client of its own.
    fn ask<T, C>(&self, ask: impl FnOnce(Client) -> C) -> Coming<T>
    where
        C: Future<Output = Result<T, ClientError>> + Send + 'static,
    {
        let asked = ask(self.0.clone());
        Box::pin(async move { asked.await.map_err(|failure| of(&failure)) })
    }
}

impl Service for OverHttp {
    fn declare(&self, fleet: &str, declared: DeclareFleet) -> Coming<Fleet> {
        let fleet = fleet.to_owned();
        self.ask(|client| async move { client.declare_fleet(&fleet, &declared).await.map(Answer::into_typed) })
    }

    fn fleet(&self, fleet: &str) -> Coming<Fleet> {
        let fleet = fleet.to_owned();
        self.ask(|client| async move { client.fleet(&fleet).await.map(Answer::into_typed) })
    }

    fn signal(&self, fleet: &str, demand: PublishDemand) -> Coming<DemandTaken> {
        let fleet = fleet.to_owned();
        self.ask(|client| async move { client.demand(&fleet, &demand).await.map(Answer::into_typed) })
    }

    fn submit(&self, spec: Value) -> Coming<Job> {
        let spec = Body::json(&spec);
        self.ask(|client| async move { client.submit_once(&spec, None).await.map(Answer::into_typed) })
    }

    fn running(&self) -> Coming<Vec<Job>> {
        self.ask(|client| async move {
            let jobs = client.jobs(&WantedJobs::in_phase(JobPhase::Running)).await?;
            Ok(jobs.into_iter().map(Answer::into_typed).collect())
        })
    }

    fn cancel(&self, job: &str) -> Coming<Job> {
        let job = job.to_owned();
        self.ask(|client| async move { client.cancel(&job).await.map(Answer::into_typed) })
    }

    fn events(&self) -> Coming<mpsc::Receiver<Happened>> {
        let mut follower = Follower::new(self.0.clone(), &Events::all(), None);
        Box::pin(async move {
            follower.open().await.map_err(|failure| of(&failure))?;
            let (sender, receiver) = mpsc::channel(EVENTS_AHEAD_MAX);
            // Owned by the run: it ends with the receiver.
            tokio::spawn(async move {
                loop {
                    let happened = match follower.next().await {
                        Ok(event) => {
                            Happened::Event { at_ms: time_ms(&event.body["time"]).unwrap_or(0), event: event.body }
                        }
                        Err(failure) => Happened::Lost(failure.to_string()),
                    };
                    let lost = matches!(happened, Happened::Lost(_));
                    if sender.send(happened).await.is_err() || lost {
                        return;
                    }
                }
            });
            Ok(receiver)
        })
    }
}

/// What a failure means for a load.
fn of(failure: &ClientError) -> CallError {
    let error = match failure {
        ClientError::Refused(problem) if problem.known_kind() == Some(ProblemKind::OldSignal) => CallError::Overtaken,
        ClientError::Refused(problem) if problem.status < 500 => CallError::Refused(failure.to_string()),
        // It is durable; that it was decided late shows in its events.
        _ => CallError::Unanswered(failure.to_string()),
    };
    if error != CallError::Overtaken {
        advise(format!("ebb load: {failure}"));
    }
    error
}
