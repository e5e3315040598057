//! Runs a scenario against a service. Open loop: every signal and job is sent at its own moment by a request of its own, whatever became of
//! those before it; how late an answer came counts from when it was due.
//!
//! The service is a trait: who runs this gives one that speaks HTTP, and tests one that answers when they say so.

use crate::files::Loaded;
use crate::observe::Observer;
use crate::report::Report;
use crate::schedule::{Action, What};
use futures::future::BoxFuture;
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Requests on their way at once. Beyond it the service answers so slowly that more would only measure this program.
const IN_FLIGHT_MAX: usize = 512;
/// How often it is looked how far jobs are.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// Longest wait for what is asked at the end: cancelling the run's jobs.
const CANCEL_WAIT: Duration = Duration::from_secs(30);
/// Longest name of a job.
const NAME_LEN_MAX: usize = 63;

/// What is asked of a service.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// `PUT /v1/fleets/{fleet}`
    Declare {
        /// Which.
        fleet: String,
        /// As in the scenario.
        body: Value,
    },
    /// `GET /v1/fleets/{fleet}`
    Fleet {
        /// Which.
        fleet: String,
    },
    /// `POST /v1/fleets/{fleet}/demand`
    Signal {
        /// Whose.
        fleet: String,
        /// Its number.
        sequence: u64,
        /// Slots needed.
        needed: u32,
    },
    /// `POST /v1/jobs`
    Submit {
        /// The job.
        spec: Value,
    },
    /// `GET /v1/jobs` of those that run; the answer is the list.
    Running,
    /// `DELETE /v1/jobs/{id}`
    Cancel {
        /// Which.
        job: String,
    },
}

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
}

/// What happened at the service.
#[derive(Debug, Clone, PartialEq)]
pub enum Happened {
    /// An event, and when by the service's clock, in milliseconds since 1970.
    Event {
        /// When.
        at_ms: u64,
        /// The CloudEvent.
        event: Value,
    },
    /// Events cannot be read any further.
    Lost(String),
}

/// A running Ebb.
pub trait Service: Send + Sync + 'static {
    /// Asks once.
    fn call(&self, request: Request) -> BoxFuture<'static, Result<Value, CallError>>;

    /// What happens from now on; returns once everything that happens later is in it.
    fn events(&self) -> BoxFuture<'static, Result<mpsc::Receiver<Happened>, CallError>>;
}

/// What a run came to.
#[derive(Debug)]
pub struct Ran {
    /// Figures and verdicts.
    pub report: Report,
    /// What was seen, for a picture.
    pub observer: Observer,
}

/// Runs a scenario.
pub async fn run(loaded: &Loaded, service: Arc<dyn Service>) -> Result<Ran, CallError> {
    let scenario = &loaded.scenario;
    let wall = SystemTime::now();
    let began_ms = milliseconds(wall);
    let names: BTreeSet<String> = loaded.actions.iter().filter_map(|action| job_name(loaded, action)).collect();
    let fleets: Vec<String> = scenario.fleets.iter().map(|load| load.fleet.to_string()).collect();
    let mut observer = Observer::new(began_ms, fleets.iter().cloned(), names);
    let mut events = service.events().await?;
    for load in &scenario.fleets {
        let fleet = load.fleet.to_string();
        if let Some(body) = load.declare.clone() {
            service.call(Request::Declare { fleet: fleet.clone(), body }).await?;
        }
    }
    for fleet in fleets {
        let shown = service.call(Request::Fleet { fleet }).await?;
        observer.fleet(began_ms, &shown);
    }
    let mut driver = Driver {
        loaded,
        service,
        observer,
        began: Instant::now(),
        began_ms,
        answers: JoinSet::new(),
        signals: 0,
        jobs: 0,
    };
    driver.send(&mut events).await?;
    driver.drain(&mut events).await?;
    let took = driver.began.elapsed();
    driver.observer.end(began_ms + millis(took));
    if !scenario.keep_jobs {
        driver.cancel().await;
    }
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
    let name = format!("{}-{}-{number}", loaded.scenario.name, loaded.scenario.jobs[mix].name);
    Some(name.chars().take(NAME_LEN_MAX).collect())
}

/// An answer that came.
struct Answered {
    due: Instant,
    measure: &'static str,
    outcome: Result<Value, CallError>,
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
                Some(answered) = self.answers.join_next() => match answered {
                    Ok(answered) => self.answered(answered),
                    Err(panic) => std::panic::resume_unwind(panic.into_panic()),
                },
                _ = look.tick() => self.look(),
            }
        }
        Ok(())
    }

    /// Sends one request, unless too many are on their way.
    fn start(&mut self, action: &Action, due: Instant) {
        if self.answers.len() >= IN_FLIGHT_MAX {
            self.observer.measured().count("not_sent", 1);
            return;
        }
        let (measure, request) = match &action.what {
            What::Signal { fleet, needed } => {
                self.signals += 1;
                let fleet = self.loaded.scenario.fleets[*fleet].fleet.to_string();
                // By time, as the service numbers them, so that they are above those before the run; and each above the last.
                let sequence = self.began_ms + millis(action.at) + self.signals;
                ("signal_answer_ms", Request::Signal { fleet, sequence, needed: *needed })
            }
            What::Submit { mix, .. } => {
                self.jobs += 1;
                let mut spec = self.loaded.specs[*mix].clone();
                if let (Some(fields), Some(name)) = (spec.as_object_mut(), job_name(self.loaded, action)) {
                    fields.insert("name".to_owned(), name.into());
                }
                ("submit_answer_ms", Request::Submit { spec })
            }
        };
        let call = self.service.call(request);
        self.answers.spawn(async move { Answered { due, measure, outcome: call.await } });
    }

    /// Asks how far jobs are; the answer comes like any other.
    fn look(&mut self) {
        if self.answers.len() < IN_FLIGHT_MAX {
            let call = self.service.call(Request::Running);
            self.answers.spawn(async move { Answered { due: Instant::now(), measure: "", outcome: call.await } });
        }
    }

    fn answered(&mut self, Answered { due, measure, outcome }: Answered) {
        if measure.is_empty() {
            if let Ok(Value::Array(jobs)) = outcome {
                let now_ms = self.began_ms + millis(self.began.elapsed());
                self.observer.progress(now_ms, &jobs);
            }
            return;
        }
        let measured = self.observer.measured();
        match outcome {
            Ok(_) => measured.latency(measure, millis(due.elapsed())),
            Err(CallError::Overtaken) => measured.count("overtaken", 1),
            Err(CallError::Refused(_)) => measured.count("refused", 1),
            Err(CallError::Unanswered(_)) => measured.count("unanswered", 1),
        }
    }

    /// Cancels the run's jobs. One that cannot be cancelled goes on, which its user sees.
    async fn cancel(&self) {
        let mut cancels = JoinSet::new();
        for job in self.observer.unfinished() {
            cancels.spawn(self.service.call(Request::Cancel { job: job.clone() }));
        }
        let _ = tokio::time::timeout(CANCEL_WAIT, cancels.join_all()).await;
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

    /// A service that answers no signal before so many were sent, and notes what it was asked.
    #[derive(Default)]
    struct Held {
        until_signals: usize,
        asked: Mutex<Vec<Request>>,
        enough: Arc<tokio::sync::Notify>,
        events: Mutex<Vec<mpsc::Sender<Happened>>>,
        loses_events: bool,
    }

    impl Held {
        fn signals(&self) -> Vec<u64> {
            let sequence = |r: &Request| if let Request::Signal { sequence, .. } = r { Some(*sequence) } else { None };
            self.asked.lock().unwrap().iter().filter_map(sequence).collect()
        }
    }

    impl Service for Held {
        fn call(&self, request: Request) -> BoxFuture<'static, Result<Value, CallError>> {
            let answer = match &request {
                Request::Fleet { fleet } => {
                    json!({"name": fleet, "needed": 0, "slots": [{"slot": "local/0", "state": "borrowed"}]})
                }
                Request::Running => json!([]),
                _ => Value::Null,
            };
            let signal = matches!(request, Request::Signal { .. });
            self.asked.lock().unwrap().push(request);
            let released = if signal && self.signals().len() >= self.until_signals {
                self.enough.notify_waiters();
                true
            } else {
                !signal
            };
            let enough = self.enough.clone().notified_owned();
            Box::pin(async move {
                if !released {
                    enough.await;
                }
                Ok(answer)
            })
        }

        fn events(&self) -> BoxFuture<'static, Result<mpsc::Receiver<Happened>, CallError>> {
            let (sender, receiver) = mpsc::channel(8);
            if !self.loses_events {
                self.events.lock().unwrap().push(sender);
            }
            Box::pin(async move { Ok(receiver) })
        }
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
        let ran = run(&loaded(SCENARIO), service.clone()).await.unwrap();
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
        run(&loaded(SCENARIO), service.clone()).await.unwrap();
        let asked = service.asked.lock().unwrap();
        let name = |r: &Request| {
            if let Request::Submit { spec } = r { spec["name"].as_str().map(str::to_owned) } else { None }
        };
        let names: Vec<String> = asked.iter().filter_map(name).collect();
        assert_eq!(names, ["open-a-0", "open-a-1", "open-a-2"]);
    }

    #[tokio::test]
    async fn without_events_nothing_is_measured_and_the_run_says_so() {
        let service = Arc::new(Held { loses_events: true, ..Held::default() });
        let ran = run(&loaded(SCENARIO), service).await.map(|_| ());
        assert!(matches!(ran, Err(CallError::Unanswered(_))), "{ran:?}");
    }
}
