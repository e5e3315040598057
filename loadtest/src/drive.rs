//! Runs a scenario against a service. Open loop: every signal and job is sent at its own moment by a request of its own, whatever became of
//! those before it; how late an answer came counts from when it was due.
//!
//! The service is a trait: who runs this gives one that speaks HTTP, and tests one that answers when they say so.

use crate::files::Loaded;
use crate::observe::Observer;
use crate::report::Report;
use crate::schedule::{Action, What};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryFutureExt};
use gateway_api::{DeclareFleet, DemandTaken, Fleet, Job, PublishDemand};
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

/// Requests on their way at once. Beyond it the service answers so slowly that more would only measure this program.
const IN_FLIGHT_MAX: usize = 512;
/// How often it is looked how far jobs are.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// Longest wait for what is asked at the end: cancelling the run's jobs.
const CANCEL_WAIT: Duration = Duration::from_secs(30);

/// Why a request has no answer that counts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The service refused it.
    #[error("{0}")]
    Refused(String),
    /// A newer signal was already taken.
    #[error("a newer signal of the fleet was already taken")]
    Overtaken,
    /// The service did not answer.
    #[error("{0}")]
    Unanswered(String),
    /// Whoever runs it wants no more of it.
    #[error("interrupted; its jobs were cancelled unless the scenario keeps them")]
    Interrupted,
}

/// What happened at the service.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "a field without a comment is what its name and type say")]
pub enum Happened {
    /// An event, and when by the service's clock, in milliseconds since 1970.
    Event {
        at_ms: u64,
        /// The CloudEvent.
        event: Value,
    },
    /// Events cannot be read any further.
    Lost(String),
}

/// An answer, when it comes.
pub type Coming<T> = BoxFuture<'static, Result<T, CallError>>;

/// A running Ebb. Everything is asked once, whatever comes of it.
pub trait Service: Send + Sync + 'static {
    /// Declares a fleet.
    fn declare(&self, fleet: &str, declared: DeclareFleet) -> Coming<Fleet>;

    /// Shows a fleet.
    fn fleet(&self, fleet: &str) -> Coming<Fleet>;

    /// Says how many slots a fleet needs.
    fn signal(&self, fleet: &str, demand: PublishDemand) -> Coming<DemandTaken>;

    /// Submits a job, as its document says it.
    fn submit(&self, spec: Value) -> Coming<Job>;

    /// Jobs that run.
    fn running(&self) -> Coming<Vec<Job>>;

    /// Ends a job.
    fn cancel(&self, job: &str) -> Coming<Job>;

    /// What happens from now on; returns once everything that happens later is in it.
    fn events(&self) -> Coming<mpsc::Receiver<Happened>>;
}

/// What a run came to.
#[derive(Debug)]
pub struct Ran {
    /// Figures and verdicts.
    pub report: Report,
    /// What was seen, for a picture.
    pub observer: Observer,
}

/// Runs a scenario, to its end or until it is interrupted.
pub async fn run(
    loaded: &Loaded,
    service: Arc<dyn Service>,
    interrupted: impl Future<Output = ()>,
) -> Result<Ran, CallError> {
    let scenario = &loaded.scenario;
    let names: BTreeSet<String> = loaded.actions.iter().filter_map(|action| job_name(loaded, action)).collect();
    let fleets: Vec<String> = scenario.fleets.iter().map(|load| load.fleet.to_string()).collect();
    let mut events = service.events().await?;
    for load in &scenario.fleets {
        if let Some(declared) = load.declare.clone() {
            service.declare(load.fleet.as_str(), declared).await?;
        }
    }
    let mut shown = Vec::new();
    for fleet in &fleets {
        shown.push(service.fleet(fleet).await?);
    }
    // One beginning for what is sent, measured and drawn.
    let (wall, began) = (SystemTime::now(), Instant::now());
    let began_ms = milliseconds(wall);
    let mut observer = Observer::new(began_ms, fleets, names);
    shown.iter().for_each(|fleet| observer.fleet(began_ms, fleet));
    let mut driver =
        Driver { loaded, service, observer, began, began_ms, answers: JoinSet::new(), signals: 0, jobs: 0 };
    let ended = tokio::select! {
        ended = driver.send_and_drain(&mut events) => ended,
        () = interrupted => Err(CallError::Interrupted),
    };
    let took = driver.began.elapsed();
    // However it ended: nobody else would end its jobs.
    if !scenario.keep_jobs {
        driver.cancel().await;
    }
    ended?;
    driver.observer.end(began_ms + millis(took));
    let (latencies, counts, thresholds) = Report::figures(driver.observer.measured(), &scenario.thresholds);
    let report = Report {
        scenario: scenario.name.clone(),
        seed: scenario.seed,
        began: humantime::format_rfc3339_millis(wall).to_string(),
        took_s: took.as_secs_f64(),
        signals: driver.signals,
        jobs: driver.jobs,
        latencies,
        counts,
        thresholds,
    };
    Ok(Ran { report, observer: driver.observer })
}

fn milliseconds(at: SystemTime) -> u64 {
    millis(at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The name under which a job of the scenario is submitted.
fn job_name(loaded: &Loaded, action: &Action) -> Option<String> {
    let What::Submit { mix, number } = action.what else { return None };
    Some(format!("{}-{}-{number}", loaded.scenario.name, loaded.scenario.jobs[mix].name))
}

/// What the service said.
enum Said {
    /// That it took a signal.
    Signal(DemandTaken),
    /// That it took a job, of this id.
    Submit(String),
    /// How far jobs are, if it answered.
    Progress(Option<Vec<Job>>),
}

/// An answer that came, so long after it was due.
struct Answered {
    took: Duration,
    outcome: Result<Said, CallError>,
}

struct Driver<'a> {
    loaded: &'a Loaded,
    service: Arc<dyn Service>,
    observer: Observer,
    began: Instant,
    began_ms: u64,
    answers: JoinSet<Answered>,
    signals: u64,
    jobs: u64,
}

impl Driver<'_> {
    async fn send_and_drain(&mut self, events: &mut mpsc::Receiver<Happened>) -> Result<(), CallError> {
        self.send(events).await?;
        self.drain(events).await
    }

    /// Sends everything at its moment.
    async fn send(&mut self, events: &mut mpsc::Receiver<Happened>) -> Result<(), CallError> {
        let mut look = tokio::time::interval(PROGRESS_EVERY);
        let loaded = self.loaded;
        for action in &loaded.actions {
            let due = self.began + action.at;
            self.until(due, events, &mut look, |_| false).await?;
            self.start(action, due);
        }
        self.until(self.began + loaded.scenario.duration, events, &mut look, |_| false).await
    }

    /// Waits for what is still on its way.
    async fn drain(&mut self, events: &mut mpsc::Receiver<Happened>) -> Result<(), CallError> {
        let mut look = tokio::time::interval(PROGRESS_EVERY);
        let until = Instant::now() + self.loaded.scenario.drain;
        self.until(until, events, &mut look, |driver| driver.answers.is_empty() && !driver.observer.waits()).await
    }

    /// Takes in what happens until a moment, or until it is enough.
    async fn until(
        &mut self,
        moment: Instant,
        events: &mut mpsc::Receiver<Happened>,
        look: &mut tokio::time::Interval,
        enough: impl Fn(&Self) -> bool,
    ) -> Result<(), CallError> {
        while !enough(self) {
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(moment) => return Ok(()),
                happened = events.recv() => match happened {
                    Some(Happened::Event { at_ms, event }) => self.observer.event(at_ms, &event),
                    Some(Happened::Lost(why)) => return Err(CallError::Unanswered(why)),
                    None => return Err(CallError::Unanswered("the stream of events ended".to_owned())),
                },
                Some(answered) = self.answers.join_next() => self.joined(answered),
                _ = look.tick() => self.look(),
            }
        }
        Ok(())
    }

    /// Sends one request, unless too many are on their way.
    fn start(&mut self, action: &Action, due: Instant) {
        // Answers that wait to be looked at are not on their way.
        while let Some(answered) = self.answers.try_join_next() {
            self.joined(answered);
        }
        if self.answers.len() >= IN_FLIGHT_MAX {
            self.observer.measured().count("not_sent", 1);
            return;
        }
        let call: Coming<Said> = match &action.what {
            What::Signal { fleet, needed } => {
                self.signals += 1;
                let fleet = self.loaded.scenario.fleets[*fleet].fleet.as_str();
                // By time, as the service numbers them, so that they are above those before the run; and each above the last.
                let sequence = self.began_ms + millis(action.at) + self.signals;
                let demand = PublishDemand { sequence: Some(sequence), ..PublishDemand::needed(*needed) };
                self.service.signal(fleet, demand).map_ok(Said::Signal).boxed()
            }
            What::Submit { mix, .. } => {
                self.jobs += 1;
                let mut spec = self.loaded.specs[*mix].clone();
                if let (Some(fields), Some(name)) = (spec.as_object_mut(), job_name(self.loaded, action)) {
                    fields.insert("name".to_owned(), name.into());
                }
                self.service.submit(spec).map_ok(|job| Said::Submit(job.id)).boxed()
            }
        };
        self.ask(call, due);
    }

    fn ask(&mut self, call: Coming<Said>, due: Instant) {
        self.answers.spawn(async move {
            let outcome = call.await;
            Answered { took: due.elapsed(), outcome }
        });
    }

    /// Asks how far jobs are; the answer comes like any other.
    fn look(&mut self) {
        if self.answers.len() < IN_FLIGHT_MAX {
            // What is not said of this moment, the next look says.
            let jobs = self.service.running().map(|jobs| Ok(Said::Progress(jobs.ok())));
            self.ask(jobs.boxed(), Instant::now());
        }
    }

    fn joined(&mut self, answered: Result<Answered, JoinError>) {
        match answered {
            Ok(answered) => self.answered(answered),
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        }
    }

    fn answered(&mut self, Answered { took, outcome }: Answered) {
        match outcome {
            Ok(Said::Progress(None)) => {}
            Ok(Said::Progress(Some(jobs))) => {
                let now_ms = self.began_ms + millis(self.began.elapsed());
                self.observer.progress(now_ms, &jobs);
            }
            Ok(Said::Signal(taken)) => {
                self.observer.answered_signal(&taken.fleet, taken.sequence);
                self.observer.measured().latency("signal_answer_ms", millis(took));
            }
            Ok(Said::Submit(job)) => {
                self.observer.answered_submit(&job);
                self.observer.measured().latency("submit_answer_ms", millis(took));
            }
            Err(CallError::Overtaken) => self.observer.measured().count("overtaken", 1),
            Err(CallError::Refused(_)) => self.observer.measured().count("refused", 1),
            Err(CallError::Unanswered(_) | CallError::Interrupted) => self.observer.measured().count("unanswered", 1),
        }
    }

    /// Cancels the run's jobs. One that cannot be cancelled goes on, which its user sees.
    async fn cancel(&self) {
        let all = futures::stream::iter(self.observer.unfinished()).for_each_concurrent(IN_FLIGHT_MAX, |job| {
            let cancelled = self.service.cancel(job);
            async move { drop(cancelled.await) }
        });
        let _ = tokio::time::timeout(CANCEL_WAIT, all).await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::scenario::Scenario;
    use crate::schedule::schedule;
    use serde_json::json;
    use std::sync::Mutex;

    /// What a service was asked.
    #[derive(Debug, Clone, PartialEq)]
    enum Asked {
        Signal(u64),
        Submit(Option<String>),
        Cancel(String),
    }

    /// A service that answers no signal before so many were sent, and notes what it was asked.
    #[derive(Default)]
    struct Held {
        until_signals: usize,
        asked: Mutex<Vec<Asked>>,
        enough: Arc<tokio::sync::Notify>,
        events: Mutex<Vec<mpsc::Sender<Happened>>>,
        loses_events: bool,
    }

    impl Held {
        fn signals(&self) -> Vec<u64> {
            let sequence = |asked: &Asked| if let Asked::Signal(sequence) = asked { Some(*sequence) } else { None };
            self.asked.lock().unwrap().iter().filter_map(sequence).collect()
        }
    }

    impl Service for Held {
        fn declare(&self, fleet: &str, _: DeclareFleet) -> Coming<Fleet> {
            self.fleet(fleet)
        }

        fn fleet(&self, fleet: &str) -> Coming<Fleet> {
            let slots = json!([{"slot": "local/0", "state": "borrowed"}]);
            answer(json!({"name": fleet, "needed": 0, "slots": slots}))
        }

        fn signal(&self, fleet: &str, demand: PublishDemand) -> Coming<DemandTaken> {
            let sequence = demand.sequence.unwrap();
            self.asked.lock().unwrap().push(Asked::Signal(sequence));
            let released = self.signals().len() >= self.until_signals;
            if released {
                self.enough.notify_waiters();
            }
            let enough = self.enough.clone().notified_owned();
            let taken = DemandTaken { fleet: fleet.to_owned(), sequence, ..DemandTaken::default() };
            Box::pin(async move {
                if !released {
                    enough.await;
                }
                Ok(taken)
            })
        }

        fn submit(&self, spec: Value) -> Coming<Job> {
            self.asked.lock().unwrap().push(Asked::Submit(spec["name"].as_str().map(str::to_owned)));
            answer(json!({"id": "job-a"}))
        }

        fn running(&self) -> Coming<Vec<Job>> {
            answer(json!([]))
        }

        fn cancel(&self, job: &str) -> Coming<Job> {
            self.asked.lock().unwrap().push(Asked::Cancel(job.to_owned()));
            answer(json!({"id": job}))
        }

        fn events(&self) -> Coming<mpsc::Receiver<Happened>> {
            let (sender, receiver) = mpsc::channel(8);
            if !self.loses_events {
                self.events.lock().unwrap().push(sender);
            }
            Box::pin(async move { Ok(receiver) })
        }
    }

    fn answer<T: serde::de::DeserializeOwned + Send + 'static>(said: Value) -> Coming<T> {
        Box::pin(std::future::ready(Ok(serde_json::from_value(said).unwrap())))
    }

    fn loaded(yaml: &str) -> Loaded {
        let scenario = Scenario::parse(&serde_yaml_ng::from_str(yaml).unwrap()).unwrap();
        let actions = schedule(&scenario, |_, _| Ok(Vec::new()), |_| Ok(Vec::new())).unwrap();
        let specs = scenario.jobs.iter().map(|_| json!({"name": "x"})).collect();
        Loaded { scenario, specs, actions }
    }

    const SCENARIO: &str = "
name: open
duration: 100ms
drain: 60s
fleets: [{fleet: chat, demand: {steps: [{at: 0s, needed: 0}, {at: 20ms, needed: 1}], repeat: 40ms}}]
jobs: [{name: a, spec: {steps: 1}, arrivals: {every: 40ms}}]
thresholds: {signal_answer_ms: {p99: 60000}, refused: {max: 0}}
";

    /// Open loop: in a closed one the second signal would wait for the answer to the first, which comes only after the last.
    #[tokio::test]
    async fn what_comes_late_delays_nothing() {
        let service = Arc::new(Held { until_signals: 5, ..Held::default() });
        let ran = run(&loaded(SCENARIO), service.clone(), std::future::pending()).await.unwrap();
        assert_eq!((ran.report.signals, ran.report.jobs), (5, 3));
        let answers = ran.report.latencies.iter().find(|l| l.name == "signal_answer_ms").unwrap();
        assert_eq!(answers.count, 5);
        assert!(ran.report.holds(), "{}", ran.report);
        let numbers = service.signals();
        assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    }

    #[tokio::test]
    async fn jobs_have_names_of_their_own() {
        let service = Arc::new(Held::default());
        run(&loaded(SCENARIO), service.clone(), std::future::pending()).await.unwrap();
        let asked = service.asked.lock().unwrap();
        let name = |asked: &Asked| if let Asked::Submit(name) = asked { name.clone() } else { None };
        let names: Vec<String> = asked.iter().filter_map(name).collect();
        assert_eq!(names, ["open-a-0", "open-a-1", "open-a-2"]);
    }

    #[tokio::test]
    async fn without_events_nothing_is_measured_and_the_run_says_so() {
        let service = Arc::new(Held { loses_events: true, ..Held::default() });
        let ran = run(&loaded(SCENARIO), service, std::future::pending()).await.map(|_| ());
        assert!(matches!(ran, Err(CallError::Unanswered(_))), "{ran:?}");
    }

    /// Nobody else would end them.
    #[tokio::test]
    async fn jobs_are_cancelled_also_when_the_run_does_not_come_to_its_end() {
        let service = Arc::new(Held::default());
        let interrupted = async {
            while !service.asked.lock().unwrap().iter().any(|asked| matches!(asked, Asked::Submit(_))) {
                tokio::task::yield_now().await;
            }
            // The answer is taken in with the next look at what came.
            tokio::time::sleep(PROGRESS_EVERY).await;
        };
        let mut scenario = loaded(SCENARIO);
        scenario.scenario.duration = 60 * PROGRESS_EVERY;
        let ran = run(&scenario, service.clone(), interrupted).await.map(|_| ());
        assert_eq!(ran, Err(CallError::Interrupted));
        assert!(service.asked.lock().unwrap().contains(&Asked::Cancel("job-a".to_owned())));
    }
}
