//! A log's jobs: on how many slots each trained when, and what of that is its work within a window. How fast it was there is the caller's word; nothing else of
//! the log is looked at here.

use super::Window;
use crate::trace::{TraceJob, Work};
use serde_json::Value;

/// A job, followed through the log.
#[derive(Debug, Clone)]
pub(super) struct Recorded {
    /// As its spec has it; when it came and its work are known in the end.
    job: TraceJob,
    traits: Traits,
    /// When it was submitted; of one that was to wait for a word of its user: when that came.
    came_ms: u64,
    waits: bool,
    suspended_ms: Vec<u64>,
    restarted_ms: Vec<u64>,
    ended_ms: Option<u64>,
    /// Slots as planned.
    slots: u16,
    /// Whether it has trained: from then on slots count.
    trains: bool,
    since_ms: u64,
    stretches: Vec<Stretch>,
}

/// What a job asks for that only some can.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Traits {
    /// Slots that are devices.
    pub device: bool,
    /// It is a whole program, which makes no steps.
    pub gang: bool,
    /// It may be on several types at once.
    pub any_type: bool,
    /// It is measured at several sizes before it settles.
    pub profiled: bool,
    /// Its batch moves.
    pub batch: bool,
    /// How often it was suspended within the window, and how often it had to go back to a checkpoint.
    pub suspensions: usize,
    pub restarts: usize,
}

/// A time for which a job trained on as many slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stretch {
    pub from_ms: u64,
    pub until_ms: u64,
    pub slots: u16,
}

/// What a job is within a window.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Within {
    /// It came after the window or had ended before it.
    Outside,
    /// It came to no end that the log has.
    Unfinished,
    /// It never trained there.
    Untrained,
    /// It ran: when it came, by the log's clock, and whether that was before the window.
    Ran { job: Box<TraceJob>, traits: Traits, came_ms: u64, began_before: bool },
}

impl Recorded {
    /// One that was accepted.
    pub fn new(at_ms: u64, fact: &Value) -> Self {
        let (spec, text) = (&fact["spec"], |value: &Value| value.as_str().unwrap_or_default().to_owned());
        let number = |value: &Value| value.as_u64().and_then(|number| u16::try_from(number).ok());
        // One that trains another's steps once more does so on that many slots and no others.
        let bound = |key: &str| number(&spec["retrains"]["slots"]).or(number(&spec["workers"][key])).unwrap_or(1);
        let traits = Traits {
            device: spec["model"]["device"] == "cuda",
            gang: spec["model"]["kind"] == "command",
            any_type: spec["types"] == "any",
            profiled: !spec["profile"].is_null(),
            batch: !spec["batch_range"].is_null(),
            ..Traits::default()
        };
        let name = format!("{} {}", text(&fact["job"]), text(&spec["name"]));
        let job = TraceJob {
            min: Some(bound("min")),
            max: Some(bound("max")),
            tenant: spec["tenant"].as_str().or(fact["tenant"].as_str()).map(str::to_owned),
            priority: spec["priority"].as_i64().and_then(|priority| i32::try_from(priority).ok()).unwrap_or(0),
            ..TraceJob::new(name, bound("max"), Work::Seconds(0.0))
        };
        Self {
            job,
            traits,
            came_ms: at_ms,
            waits: spec["suspend"] == true,
            suspended_ms: Vec::new(),
            restarted_ms: Vec::new(),
            ended_ms: None,
            slots: 0,
            trains: false,
            since_ms: at_ms,
            stretches: Vec::new(),
        }
    }

    /// Something is said of it.
    pub fn fact(&mut self, at_ms: u64, kind: &str, fact: &Value) {
        match kind {
            "plan_adopted" => {
                let slots = fact["slots"].as_array().map_or(0, Vec::len);
                self.go_on(at_ms, slots as u16);
            }
            "generation_active" => {
                self.go_on(at_ms, self.slots);
                self.trains = true;
            }
            "job_suspended" => {
                self.go_on(at_ms, 0);
                self.suspended_ms.push(at_ms);
            }
            "job_resumed" if std::mem::take(&mut self.waits) => self.came_ms = at_ms,
            "job_restarted" => self.restarted_ms.push(at_ms),
            "job_finished" | "job_failed" | "job_cancelled" => {
                self.go_on(at_ms, 0);
                self.ended_ms.get_or_insert(at_ms);
            }
            _ => {}
        }
    }

    /// It has so many slots from now on.
    fn go_on(&mut self, at_ms: u64, slots: u16) {
        if self.trains && at_ms > self.since_ms {
            self.stretches.push(Stretch { from_ms: self.since_ms, until_ms: at_ms, slots: self.slots });
        }
        // Who has lost all its slots begins anew.
        self.trains &= slots > 0;
        (self.slots, self.since_ms) = (slots, at_ms);
    }

    /// What it is within a window, being so fast where it was; a job that began before it is there from its beginning on, with what it had left.
    pub fn within(self, window: Window, speed: impl Fn(&TraceJob, u16) -> f64) -> Within {
        if self.came_ms >= window.to_ms || self.ended_ms.is_some_and(|ended_ms| ended_ms <= window.from_ms) {
            return Within::Outside;
        }
        if self.ended_ms.is_none() {
            return Within::Unfinished;
        }
        let most = self.job.workers;
        let done = |of: &Stretch| {
            let ms = of.until_ms.saturating_sub(of.from_ms.max(window.from_ms));
            ms as f64 * speed(&self.job, of.slots.min(most))
        };
        let done_ms: f64 = self.stretches.iter().map(done).sum();
        if done_ms <= 0.0 {
            return Within::Untrained;
        }
        let work = Work::Seconds(done_ms / 1e3 / speed(&self.job, most));
        let began_before = self.came_ms < window.from_ms;
        let since = |times: &[u64]| times.iter().filter(|at_ms| **at_ms >= window.from_ms).count();
        let (suspensions, restarts) = (since(&self.suspended_ms), since(&self.restarted_ms));
        let traits = Traits { suspensions, restarts, ..self.traits };
        let came_ms = self.came_ms.max(window.from_ms);
        Within::Ran { job: Box::new(TraceJob { work, ..self.job }), traits, came_ms, began_before }
    }

    /// When it ended.
    pub fn ended_ms(&self) -> Option<u64> {
        self.ended_ms
    }
}
