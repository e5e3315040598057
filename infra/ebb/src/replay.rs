//! `ebb replay`: the jobs and the demand that `ebb simulate run` takes, on a running service, faster than they were; then the simulator's run of the same
//! input, and how far its figures are off. What is replayed is `replay_setup.rs`, what events mean and how both are compared `loadtest/simulate/src/live`;
//! here are the calls, the clock, and what is printed.

use crate::failure::Failure;
use crate::output::{Output, advise, json as print_json, line};
use crate::replay_setup::{Replay, ReplayArgs, recording, replay as of_service, signal};
use crate::roles::signals::Signals;
use crate::sentences::time_ms;
use crate::simulate_report::{prepare, write_files};
use controller_core::policy_on_clock;
use events_schema::TenantId;
use gateway_api::{Fleet, JobPhase, ProblemKind, PublishDemand, SetQuota};
use gateway_client::{Answer, Body, Client, ClientError, Events, Follower, WantedJobs, fresh_key};
use loadtest_simulate::live::{Moves, Observed, Observer, compared, gradient_ms, table};
use loadtest_simulate::outcome::options;
use loadtest_simulate::report::PAGE;
use loadtest_simulate::setup::Job;
use loadtest_simulate::{BEGIN, Outcome, Report, Setup, run_with_sizes};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

/// Requests on their way at once: what is due meanwhile waits, and how long is said.
const IN_FLIGHT_MAX: usize = 64;
/// Events read ahead of the run: it takes them as they come.
const EVENTS_AHEAD_MAX: usize = 4_096;
/// How often it is said how far the run is.
const PROGRESS_EVERY: Duration = Duration::from_secs(10);
/// Longest wait for what is asked at the end: cancelling jobs, and giving fleets their demand back.
const END_WAIT: Duration = Duration::from_secs(30);
/// A request that was sent so long after it was due makes it another run; it is said.
const LATE: Duration = Duration::from_secs(1);

/// Examples of `ebb replay`.
pub const HELP: &str = "\
Examples:
  ebb up --slots 6 --speeds assumed
  ebb replay --jobs docs/examples/simulate/day.csv --speed-up 180 \\
    --demand docs/examples/load/servegen-day.csv:rate_req_s

Each job of the file becomes a synthetic one, which holds its slots and takes its time on them, but no processor. When all have ended
the simulator runs the same jobs and demand on the same slots under the same policy, with starts, moves and steps as long as they were
here, and both are put beside each other. Fleets without --demand lend what they lend now. Afterwards each fleet needs again what it
said before, and each tenant has its quota of before; Ctrl-C cancels the jobs. docs/simulator.md says what the figures mean.";

/// A request of the replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Submit(usize),
    Signal { fleet: usize, needed: u32 },
}

/// What became of a request.
struct Answered {
    action: Action,
    outcome: Result<(), ClientError>,
}

/// `ebb replay`.
pub async fn replay(client: &Client, output: Output, args: &ReplayArgs) -> Result<(), Failure> {
    let trace = recording(args)?;
    let fleets: Vec<Fleet> = client.fleets(None).await?.into_iter().map(Answer::into_typed).collect();
    ensure_free(client, &args.dataset).await?;
    let mut replay = of_service(args, &trace, &fleets)?;
    let quotas_before = quotas(client).await?;
    replay.setup.quotas = quotas_before.clone();
    replay.setup.quotas.extend(args.quota.iter().cloned());
    args.report.as_deref().map(prepare).transpose()?;
    let mut signals = Signals::listen()?;
    let mut run = Run::begin(client, args, &replay).await?;
    let ended = tokio::select! {
        ended = run.play() => ended,
        () = signals.next() => Err(Failure::Interrupted),
    };
    // However it ended: nobody else would end its jobs, or say what fleets need.
    if tokio::time::timeout(END_WAIT, run.tidy(&fleets, &quotas_before)).await.is_err() {
        advise(format!("ebb replay: the service did not answer in {END_WAIT:?}; its jobs may go on (`ebb jobs`)"));
    }
    ended?;
    let policy = run.observer.policy().unwrap_or_default().to_owned();
    // Who decides every ten minutes of the clock is to do so at the same moments of both runs.
    let known = policy_on_clock(&policy, run.began_ms.saturating_sub(BEGIN.0)).ok_or_else(|| {
        Failure::plain(format!(
            "the service plans by `{policy}`, which this build does not know, so it cannot be simulated"
        ))
    })?;
    if !args.quota.is_empty() && !known.knows_quotas() {
        run.observer.note(format!("{policy} knows of no quotas, so --quota changed nothing"));
    }
    let (mut live, told) = run.observer.finish(|moves| moves.told(&replay.setup));
    let mut simulated = run_with_sizes(&told, known.as_ref(), &mut || 0);
    (live.outcome.policy, simulated.policy) = ("live", "simulated");
    print(output, args, &policy, &replay, &told, &live, &simulated)?;
    match &simulated.tally.violations[..] {
        [] => Ok(()),
        [first, ..] => Err(Failure::plain(format!("this must not be in the simulated run: {first}"))),
    }
}

/// Refuses a service on which the replay would be another run than the one that was asked for.
async fn ensure_free(client: &Client, dataset: &str) -> Result<(), Failure> {
    for phase in [JobPhase::Queued, JobPhase::Starting, JobPhase::Running, JobPhase::Suspending] {
        if let Some(job) = client.newest_jobs(&WantedJobs::in_phase(phase), 1).await?.into_iter().next() {
            let job = job.into_typed();
            let why = format!(
                "job {} ({}) is {}: a replay among other jobs would measure them too",
                job.id,
                job.name,
                phase.as_str()
            );
            return Err(Failure::plain(why).advise("wait for it (`ebb wait`), cancel it, or replay on another service"));
        }
    }
    if client.find_dataset(dataset).await?.is_none() {
        let failure = Failure::plain(format!("there is no dataset `{dataset}`, which the jobs of a replay name"));
        return Err(failure.advise("register it, or name another one with --dataset"));
    }
    Ok(())
}

/// What tenants have guaranteed.
async fn quotas(client: &Client) -> Result<BTreeMap<TenantId, u32>, Failure> {
    let tenants = client.tenants(None).await?.into_iter().map(Answer::into_typed);
    let quota = |tenant: gateway_api::Tenant| Some((tenant.name.parse().ok()?, tenant.quota_slots?));
    Ok(tenants.filter_map(quota).collect())
}

struct Run<'a> {
    client: Client,
    args: &'a ReplayArgs,
    replay: &'a Replay,
    observer: Observer,
    events: mpsc::Receiver<Result<Value, String>>,
    began: Instant,
    began_ms: u64,
    names: Vec<String>,
    answers: JoinSet<Answered>,
    /// The next submission, and the next signal of each fleet that serves.
    next_job: usize,
    next_signals: Vec<usize>,
    sequence: u64,
    latest: Duration,
}

impl<'a> Run<'a> {
    /// Listens to what happens, and begins.
    async fn begin(client: &Client, args: &'a ReplayArgs, replay: &'a Replay) -> Result<Self, Failure> {
        let mut follower = Follower::new(client.clone(), &Events::all(), None);
        follower.open().await?;
        let (sender, events) = mpsc::channel(EVENTS_AHEAD_MAX);
        // Owned by the run: it ends with the receiver.
        tokio::spawn(async move {
            loop {
                let happened = follower.next().await.map(|event| event.body).map_err(|failure| failure.to_string());
                let lost = happened.is_err();
                if sender.send(happened).await.is_err() || lost {
                    return;
                }
            }
        });
        let began_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        // Of this run alone, and short enough for a name.
        let names: Vec<String> = (0..replay.setup.jobs.len()).map(|job| format!("replay-{began_ms}-{job}")).collect();
        let observer = Observer::new(began_ms, &replay.fleets, &names, &replay.setup);
        let next_signals = vec![0; replay.setup.demand.len()];
        Ok(Self {
            client: client.clone(),
            args,
            replay,
            observer,
            events,
            began: Instant::now(),
            began_ms,
            names,
            answers: JoinSet::new(),
            next_job: 0,
            next_signals,
            sequence: began_ms,
            latest: Duration::ZERO,
        })
    }

    /// What is due next, and when, counted from the beginning; signals go before jobs of the same moment, as in the simulator.
    fn next(&self) -> Option<(u64, Action)> {
        let first_serving = self.replay.fleets.iter().filter(|fleet| !fleet.serves).count();
        let signals = self.replay.setup.demand.iter().zip(&self.next_signals).enumerate();
        let signals = signals.filter_map(|(place, (demand, number))| {
            let (at_ms, needed) = signal(demand, *number)?;
            Some((at_ms, Action::Signal { fleet: first_serving + place, needed }))
        });
        let job = self.replay.setup.jobs.get(self.next_job);
        let job = job.map(|job| (job.submitted_ms, Action::Submit(self.next_job)));
        signals.chain(job).min_by_key(|(at_ms, _)| *at_ms)
    }

    /// Sends everything at its moment, until all jobs have ended or were waited for long enough.
    async fn play(&mut self) -> Result<(), Failure> {
        for (tenant, slots) in &self.args.quota {
            self.client.set_quota(tenant.as_str(), &SetQuota { quota_slots: *slots }).await?;
        }
        let count = self.replay.setup.jobs.len();
        let last_ms = self.replay.setup.jobs.last().map_or(0, |job| job.submitted_ms);
        let until = self.began + Duration::from_millis(last_ms) + self.args.wait;
        let mut progress = tokio::time::interval_at(self.began + PROGRESS_EVERY, PROGRESS_EVERY);
        while self.observer.ended() < count {
            let next = self.next();
            let due = next.map_or(until, |(at_ms, _)| self.began + Duration::from_millis(at_ms));
            let room = self.answers.len() < IN_FLIGHT_MAX;
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(until) => {
                    let left = count - self.observer.ended();
                    self.observer.note(format!("{left} jobs had not ended {:?} after the last submission", self.args.wait));
                    return Ok(());
                }
                happened = self.events.recv() => self.happened(happened)?,
                Some(answered) = self.answers.join_next() => self.answered(answered)?,
                () = tokio::time::sleep_until(due), if room && next.is_some() => {
                    if let Some((_, action)) = next {
                        self.start(action, due);
                    }
                }
                _ = progress.tick() => self.say_progress(),
            }
        }
        self.say_progress();
        if quotas(&self.client).await? != self.replay.setup.quotas {
            self.observer.note("tenants' quotas were changed meanwhile".to_owned());
        }
        if self.latest > LATE {
            self.observer
                .note(format!("requests were sent up to {:.1} s after they were due", self.latest.as_secs_f64()));
        }
        Ok(())
    }

    fn happened(&mut self, happened: Option<Result<Value, String>>) -> Result<(), Failure> {
        match happened {
            Some(Ok(event)) => {
                let at_ms = time_ms(&event["time"]).unwrap_or(0);
                self.observer.event(at_ms, &event);
                Ok(())
            }
            Some(Err(why)) => Err(Failure::plain(format!("what happens cannot be read any further: {why}"))),
            None => Err(Failure::plain("the stream of events ended")),
        }
    }

    fn say_progress(&self) {
        let (ended, training, count) = (self.observer.ended(), self.observer.training(), self.replay.setup.jobs.len());
        let seconds = self.began.elapsed().as_secs();
        advise(format!("{seconds:>5} s: {} of {count} jobs submitted, {training} train, {ended} ended", self.next_job));
    }

    fn start(&mut self, action: Action, due: Instant) {
        self.latest = self.latest.max(due.elapsed());
        let client = self.client.clone();
        match action {
            Action::Submit(number) => {
                self.next_job += 1;
                let spec = Body::json(&spec(self.args, &self.replay.setup.jobs[number], &self.names[number]));
                self.answers.spawn(async move {
                    let submitted = match fresh_key() {
                        Ok(key) => client.submit(&spec, &key).await.map(drop),
                        Err(failure) => Err(failure),
                    };
                    Answered { action, outcome: submitted }
                });
            }
            Action::Signal { fleet, needed } => {
                let first_serving = self.replay.fleets.len() - self.next_signals.len();
                self.next_signals[fleet - first_serving] += 1;
                let name = self.replay.fleets[fleet].name.clone();
                let demand = self.numbered(needed);
                self.answers.spawn(async move {
                    let outcome = client.demand(&name, &demand).await.map(drop);
                    Answered { action, outcome }
                });
            }
        }
    }

    /// A signal that is above all those before it: by time, as the service numbers them, and each above the last.
    fn numbered(&mut self, needed: u32) -> PublishDemand {
        let now_ms = self.began_ms + self.began.elapsed().as_millis() as u64;
        self.sequence = now_ms.max(self.sequence + 1);
        PublishDemand { sequence: Some(self.sequence), ..PublishDemand::needed(needed) }
    }

    fn answered(&mut self, answered: Result<Answered, JoinError>) -> Result<(), Failure> {
        let Answered { action, outcome } = match answered {
            Ok(answered) => answered,
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        };
        match (action, outcome) {
            (_, Ok(())) => Ok(()),
            // Without one of its jobs it would be another run.
            (Action::Submit(_), Err(failure)) => Err(failure.into()),
            (Action::Signal { .. }, Err(ClientError::Refused(problem)))
                if problem.known_kind() == Some(ProblemKind::OldSignal) =>
            {
                Ok(())
            }
            (Action::Signal { fleet, .. }, Err(failure)) => {
                let name = &self.replay.fleets[fleet].name;
                self.observer.note(format!("a signal of fleet {name} was not taken: {failure}"));
                Ok(())
            }
        }
    }

    /// Ends what has not ended, and has each fleet need, and each tenant have, what it said before.
    async fn tidy(&mut self, fleets: &[Fleet], quotas_before: &BTreeMap<TenantId, u32>) {
        // What is still on its way is a job that nobody would know of.
        while let Some(answered) = self.answers.join_next().await {
            drop(answered);
        }
        while let Ok(Ok(event)) = self.events.try_recv() {
            self.observer.event(time_ms(&event["time"]).unwrap_or(0), &event);
        }
        let mut asked = JoinSet::new();
        let mine = |name: &str| self.names.iter().any(|known| known == name);
        for phase in
            [JobPhase::Queued, JobPhase::Starting, JobPhase::Running, JobPhase::Suspending, JobPhase::Suspended]
        {
            if self.observer.ended() == self.names.len() {
                break;
            }
            let jobs = self.client.jobs(&WantedJobs::in_phase(phase)).await.unwrap_or_default();
            for job in jobs.into_iter().map(Answer::into_typed).filter(|job| mine(&job.name)) {
                let client = self.client.clone();
                asked.spawn(async move { client.cancel(&job.id).await.err().map(|failure| failure.to_string()) });
            }
        }
        for (tenant, _) in &self.args.quota {
            let (client, tenant, before) = (self.client.clone(), tenant.clone(), quotas_before.get(tenant).copied());
            asked.spawn(async move {
                let restored = match before {
                    Some(quota_slots) => client.set_quota(tenant.as_str(), &SetQuota { quota_slots }).await.map(drop),
                    None => client.remove_quota(tenant.as_str()).await,
                };
                restored.err().map(|failure| failure.to_string())
            });
        }
        let before: BTreeMap<&str, u32> =
            fleets.iter().map(|fleet| (fleet.name.as_str(), fleet.needed.unwrap_or(0))).collect();
        for fleet in self.replay.fleets.iter().filter(|fleet| fleet.serves) {
            let demand = self.numbered(before.get(fleet.name.as_str()).copied().unwrap_or(0));
            let (client, name) = (self.client.clone(), fleet.name.clone());
            asked.spawn(async move { client.demand(&name, &demand).await.err().map(|failure| failure.to_string()) });
        }
        while let Some(answered) = asked.join_next().await {
            if let Ok(Some(failure)) = answered {
                advise(format!("ebb replay: {failure}"));
            }
        }
    }
}

/// A recorded job as a synthetic one.
fn spec(args: &ReplayArgs, job: &Job, name: &str) -> Value {
    let workers = job.spec.workers;
    json!({
        "name": name, "tenant": job.tenant, "dataset": args.dataset, "batch_size": 1, "tail": "drop", "steps": job.total() as u64,
        "model": {"kind": "synthetic", "gradient_ms": gradient_ms(job), "parameters": args.parameters},
        "workers": {"min": workers.min, "max": workers.max}, "priority": job.spec.priority,
        "checkpoint": {"every_steps": 1_000_000, "keep": 1},
    })
}

/// Prints both runs, and writes the report of both if one is wanted.
fn print(
    output: Output,
    args: &ReplayArgs,
    policy: &str,
    replay: &Replay,
    told: &Setup,
    live: &Observed,
    simulated: &Outcome,
) -> Result<(), Failure> {
    let setup = &replay.setup;
    let deadlines: Vec<Option<u64>> = setup.jobs.iter().map(|job| job.deadline_ms).collect();
    let moves: &Moves = &live.moves;
    let said = json!({
        "jobs": {"file": args.jobs, "format": args.jobs_format, "count": setup.jobs.len()}, "policy": policy,
        "speed_up": args.speed_up, "step_ms": args.step_ms, "min_share": args.min_share, "parameters": args.parameters,
        "cluster": setup.cluster.groups, "inference": setup.inference.groups, "demand": args.demand,
        "quotas": setup.quotas, "fleets": replay.fleets.iter().map(|fleet| &fleet.name).collect::<Vec<_>>(),
        "information": told.information, "reclaim_deadline_ms": told.reclaim_deadline_ms,
        "measured_costs": told.costs, "measured_step_overhead": moves.step_overhead(&setup.jobs),
    });
    let mut document = compared(live, simulated, &deadlines);
    document["options"] = said.clone();
    if let Some(folder) = &args.report {
        let mut report = Report::default();
        report.add(told, &live.outcome);
        report.add(told, simulated);
        let policies = [&document["live"], &document["simulated"]];
        write_files(folder, &report.files(&json!({"options": said, "policies": policies, "violations": []})))?;
    }
    match output {
        Output::Json => print_json(&document),
        Output::Table | Output::Name => {
            if let Value::Object(said) = said {
                line(options(said).trim_end());
                line("");
            }
            line(table(&document).trim_end());
            live.notes.iter().for_each(|note| line(format!("note: {note}")));
            if let Some(folder) = &args.report {
                line(format!("the report is in {}", folder.join(PAGE).display()));
            }
        }
    }
    Ok(())
}
