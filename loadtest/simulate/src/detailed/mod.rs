//! The detailed mode: the same setup in the world of `loadtest/world`, where every agent, executor, session and message is there, and nothing breaks. What is
//! a model in the fast mode happens there; by how much the models are off is the ratio of both.
//!
//! `schedule.rs` has what such a schedule is, `count.rs` what is counted of it. Decides nothing, and changes nothing of either world.

mod count;
mod schedule;

use crate::guarantees::Quotas;
use crate::information::{Classes, Curves, Information, Informed};
use crate::outcome::Outcome;
use crate::setup::Setup;
use controller_core::Policy;
use controller_core::policy::{Plan, Share, View, WorkLeft, Wraps};
use count::Count;
use loadtest_world::Mutants;
use loadtest_world::run::watch;
use loadtest_world::world::World;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Jobs, servers, and updates of executors (steps of a job × the slots that it asked for) of a run at most: an update is some forty events, and half a million
/// events take a second of a processor; what every job ought to be at each of its steps is kept, 2 kB for each.
const JOBS_MAX: usize = 200;
const SERVERS_MAX: u64 = 64;
const UPDATES_MAX: u64 = 300_000;
/// From the first submission to the last at most: agents and members say that they live for as long as that takes.
const SPAN_MS_MAX: u64 = 86_400_000;
/// Events at most, for what the above cannot foresee.
const EVENTS_MAX: u64 = 60_000_000;
/// It ends after so many times what the fast mode took, and an hour, whoever has not ended.
const LONGER_MAX: u64 = 4;
const HOUR_MS: u64 = 3_600_000;

/// Figures that the detailed mode does not have.
pub const WITHOUT: [&str; 7] = [
    "guarantee_violations",
    "below_measured_sizes",
    "server_failures",
    "plans",
    "decision_p50_ms",
    "decision_p99_ms",
    "event_mean_ms",
];
/// What both modes are compared by.
pub const COMPARED: [(&str, &str); 3] =
    [("mean completion", "mean_completion_s"), ("makespan", "makespan_s"), ("slot returned p99", "return_p99_ms")];

/// Why a setup cannot be run in detail.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DetailedError {
    /// The world has nothing of the kind.
    #[error("--detailed: the detailed mode has no {what}; expected a run without {option}")]
    Unknown {
        /// In words.
        what: &'static str,
        /// Which option asked for it.
        option: &'static str,
    },
    /// It would take too long.
    #[error(
        "--detailed: {found} {what} are too many for the detailed mode; expected {most} at most, which {cut} can bring about"
    )]
    Large {
        /// What there is too much of.
        what: &'static str,
        /// How much of it.
        found: u64,
        /// The most that there may be.
        most: u64,
        /// Options that leave less of it.
        cut: &'static str,
    },
}

/// Whether a setup can be run in detail under a policy.
pub fn fits(setup: &Setup, policy: &str) -> Result<(), DetailedError> {
    schedule::fits(setup, policy)
}

/// How long the detailed mode goes on at most, by what the fast mode took.
#[must_use]
pub fn longest_ms(fast: &Outcome) -> u64 {
    let ends = fast.jobs.iter().filter_map(|job| job.ended).map(|(_, at)| at);
    ends.max().unwrap_or(0).saturating_mul(LONGER_MAX).saturating_add(HOUR_MS)
}

/// What becomes of a setup's jobs under a policy in the world, until a time after its beginning at the latest.
pub fn run(setup: &Setup, policy: &Arc<dyn Policy>, until_ms: u64) -> Result<Outcome, DetailedError> {
    fits(setup, policy.name())?;
    let schedule = schedule::of(setup, policy.name(), until_ms);
    let told = Arc::new(Told::new(setup.clone(), Arc::clone(policy)));
    let planner: Arc<dyn Policy> = Arc::<Told>::clone(&told);
    let begin =
        || World { counted: Some(Vec::new()), ..World::planned_by(schedule, Mutants::default(), Some(planner)) };
    let (mut count, mut is_large, mut steps) = (Count::new(setup, until_ms), false, 0);
    let finding = watch(begin, |world| {
        if world.checks.steps != steps {
            steps = world.checks.steps;
            told.note_steps(world);
        }
        count.look(setup, world);
        is_large = world.events > EVENTS_MAX;
        let goes_on = !is_large && !count.is_over() && count.at_ms() < until_ms;
        if !goes_on {
            count.see_last(world);
        }
        goes_on
    });
    if is_large {
        let (what, most, cut) = ("events", EVENTS_MAX, schedule::CUT);
        return Err(DetailedError::Large { what, found: EVENTS_MAX + 1, most, cut });
    }
    Ok(count.outcome(policy.name(), finding))
}

/// The figures; what there is none of is null.
#[must_use]
pub fn document(outcome: &Outcome, deadlines_ms: &[Option<u64>], wall_s: f64) -> Value {
    let mut document = outcome.document(deadlines_ms, wall_s);
    WITHOUT.iter().for_each(|key| document[*key] = Value::Null);
    document
}

/// What the fast mode says ÷ what the detailed one does.
#[must_use]
pub fn ratios(fast: &Value, detailed: &Value) -> Value {
    let ratio = |key: &str| {
        let (fast, detailed) = (fast[key].as_f64()?, detailed[key].as_f64()?);
        (detailed > 0.0).then(|| fast / detailed)
    };
    COMPARED.iter().map(|(_, key)| ((*key).to_owned(), json!(ratio(key)))).collect()
}

/// A policy that knows of jobs what it knows in the fast mode.
struct Told {
    policy: Arc<dyn Policy>,
    setup: Setup,
    curves: Curves,
    classes: Classes,
    quotas: Quotas,
    /// Steps of each job that are done.
    steps: Vec<AtomicU64>,
}

impl Told {
    fn new(setup: Setup, policy: Arc<dyn Policy>) -> Self {
        Self {
            policy,
            curves: Curves::new(setup.jobs.len()),
            classes: Classes::of(&setup),
            quotas: Quotas::of(&setup),
            steps: setup.jobs.iter().map(|_| AtomicU64::new(0)).collect(),
            setup,
        }
    }

    fn note_steps(&self, world: &World) {
        for (job, steps) in world.people.jobs.iter().zip(&self.steps) {
            steps.store(world.checks.newest_step(job).0, Ordering::Relaxed);
        }
    }

    fn left(&self, number: usize) -> WorkLeft {
        let Information::Unknown = self.setup.information else {
            let (job, steps) = (&self.setup.jobs[number], self.steps[number].load(Ordering::Relaxed));
            let left_ms = |done: f64| job.takes_from_ms(done, job.asked, 1.0).map_or(u64::MAX, |ms| ms.ceil() as u64);
            return self.setup.information.told(self.setup.seed, number, left_ms(0.0), left_ms(steps as f64));
        };
        WorkLeft::Unknown
    }

    fn informed<T>(&self, ask: impl FnOnce(&Informed<'_>) -> T) -> T {
        let left = |number: usize| self.left(number);
        ask(&Informed {
            policy: &*self.policy,
            jobs: &self.setup.jobs,
            curves: &self.curves,
            restart_ms: self.setup.costs.stopped_and_started_ms(),
            classes: &self.classes,
            left: &left,
            quotas: &self.quotas,
            denied: Mutex::default(),
        })
    }
}

impl Wraps for Told {
    fn inner(&self) -> &dyn Policy {
        &*self.policy
    }

    fn wrapped_plan(&self, view: &View) -> Plan {
        self.informed(|informed| informed.wrapped_plan(view))
    }

    fn wrapped_guarantees(&self, view: &View) -> Vec<Share> {
        self.informed(|informed| informed.wrapped_guarantees(view))
    }
}
