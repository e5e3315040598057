//! A log's jobs: on how many slots each trained when, what of that is its work within a window, and how long its updates took. How fast it is on other slots is
//! the caller's word; nothing else of the log is looked at here.

use super::Window;
use super::speeds::{Kind, Measured, SpeedTable};
use crate::trace::{TraceJob, Work};
use events_schema::SlotId;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Fewest steps of a membership by whose mean a job's speed is known: with fewer, what came before the first is a good part of it.
const STEPS_MIN: u64 = 20;

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
    /// What it does in a step, and all that was measured of it.
    kind: Kind,
    measured: Vec<Measured>,
    /// Who would train on the slots of its plan, and who is to by the memberships that are proposed.
    planned: Members,
    proposed: BTreeMap<u64, Members>,
    /// Who trains.
    members: Members,
    /// Whether it has trained: from then on members count.
    trains: bool,
    since_ms: u64,
    /// When the membership in force began, with which step, as long as nobody has left it.
    began: Option<(u64, u64)>,
    stretches: Vec<Stretch>,
}

/// Who trains a job, each on a slot, as far as work and speeds follow from it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Members {
    slots: u16,
    /// Steps of an update.
    stride: u16,
    /// One of the slots; of a guest slot its host.
    on: Option<SlotId>,
    /// Whether any of them is a guest slot.
    guests: bool,
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
    /// Its batch moves, up to so many times its smallest.
    pub batch_times: Option<u16>,
    /// How often it was suspended within the window, and how often it had to go back to a checkpoint.
    pub suspensions: usize,
    pub restarts: usize,
    /// Whether it was on guest slots there.
    pub guest: bool,
}

/// A time for which the same members trained a job.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stretch {
    from_ms: u64,
    until_ms: u64,
    members: Members,
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
    /// It trained and ended.
    Ran(Box<Ran>),
}

/// A job that trained within a window.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Ran {
    /// With its work; when it came is beside it, by the log's clock.
    pub job: TraceJob,
    pub kind: Kind,
    pub traits: Traits,
    pub came_ms: u64,
    pub ended_ms: u64,
    /// It had come before the window.
    pub began_before: bool,
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
            batch_times: spec["batch_range"]["max"].as_u64().and_then(|max| {
                let size = spec["batch_size"].as_u64().filter(|size| *size > 0)?;
                u16::try_from(max / size).ok()
            }),
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
        let samples = spec["batch_size"].as_u64().and_then(|size| u32::try_from(size).ok()).unwrap_or(1);
        let workers = number(&spec["workers"]["max"]).unwrap_or(1);
        let trains = json!([spec["model"], spec["dataset"]]).to_string();
        Self {
            job,
            traits,
            came_ms: at_ms,
            waits: spec["suspend"] == true,
            suspended_ms: Vec::new(),
            restarted_ms: Vec::new(),
            ended_ms: None,
            kind: Kind { trains, workers, samples: samples.saturating_mul(workers.into()) },
            measured: Vec::new(),
            planned: Members::default(),
            proposed: BTreeMap::new(),
            members: Members::default(),
            trains: false,
            since_ms: at_ms,
            began: None,
            stretches: Vec::new(),
        }
    }

    /// Something is said of it.
    pub fn fact(&mut self, at_ms: u64, kind: &str, fact: &Value) {
        match kind {
            "plan_adopted" => {
                self.planned = Members::planned(fact);
                if self.planned.slots == 0 {
                    // All leave at the next boundary.
                    self.stop(at_ms);
                }
            }
            "generation_proposed" => {
                let (proposal, count) = (&fact["proposal"], fact["proposal"]["members"].as_array().map_or(0, Vec::len));
                let generation = proposal["generation"].as_u64().unwrap_or(0);
                let (slots, stride) = (u16::try_from(count).unwrap_or(u16::MAX), stride(&proposal["stride"]));
                self.proposed.insert(generation, Members { slots, stride, ..self.planned.clone() });
            }
            "generation_active" => {
                let step = fact["step"].as_u64();
                self.pace(at_ms, step);
                let members = fact["generation"].as_u64().and_then(|generation| self.proposed.remove(&generation));
                self.go_on(at_ms, members.unwrap_or_else(|| self.planned.clone()));
                self.trains = true;
                self.began = step.map(|step| (at_ms, step));
            }
            "member_departed" => {
                let slots = self.members.slots.saturating_sub(1);
                self.go_on(at_ms, Members { slots, ..self.members.clone() });
            }
            "throughput_measured" => {
                let number = |key: &str| fact[key].as_u64();
                let small = |key: &str| number(key).and_then(|number| u16::try_from(number).ok());
                let (slots, stride) = (small("members").unwrap_or(0), stride(&fact["stride"]));
                let (us, on) = (number("step_us").unwrap_or(0), self.members.on.clone());
                self.measure(Measured { slots, stride, us, said: true, on });
            }
            "job_suspended" => {
                self.stop(at_ms);
                self.suspended_ms.push(at_ms);
            }
            "job_resumed" if std::mem::take(&mut self.waits) => self.came_ms = at_ms,
            "job_restarted" => {
                // Nobody has the replica any more: it waits for members that load a checkpoint.
                self.stop(at_ms);
                self.restarted_ms.push(at_ms);
            }
            "job_finished" | "job_failed" | "job_cancelled" => {
                self.pace(at_ms, fact["outcome"]["step"].as_u64());
                self.stop(at_ms);
                self.ended_ms.get_or_insert(at_ms);
            }
            _ => {}
        }
    }

    /// The membership in force ends at a step. Where batches move, steps are not all of one kind.
    fn pace(&mut self, at_ms: u64, step: Option<u64>) {
        let (Some((began_ms, first)), Some(step)) = (self.began.take(), step) else { return };
        let (steps, us) = (step.saturating_sub(first), at_ms.saturating_sub(began_ms) * 1_000);
        if steps >= STEPS_MIN && self.traits.batch_times.is_none() && !self.traits.gang {
            let (slots, on) = (self.members.slots, self.members.on.clone());
            self.measure(Measured { slots, stride: 1, us: us / steps, said: false, on });
        }
    }

    /// Something was measured, which counts where it had its slots for itself.
    fn measure(&mut self, measured: Measured) {
        if !self.members.guests {
            self.measured.push(measured);
        }
    }

    /// Nobody trains it from now on.
    fn stop(&mut self, at_ms: u64) {
        self.go_on(at_ms, Members::default());
    }

    /// These train it from now on.
    fn go_on(&mut self, at_ms: u64, members: Members) {
        // Who has lost all its slots begins anew.
        let trains = self.trains && members.slots > 0;
        let before = std::mem::replace(&mut self.members, members);
        let from_ms = std::mem::replace(&mut self.since_ms, at_ms);
        if self.trains && at_ms > from_ms {
            self.stretches.push(Stretch { from_ms, until_ms: at_ms, members: before });
        }
        (self.began, self.trains) = (None, trains);
    }

    /// What it does in a step, and what was measured of it.
    pub fn speeds(&self) -> (&Kind, &[Measured]) {
        (&self.kind, &self.measured)
    }

    /// What it is within a window, being as fast as a table says, on a slot that is so many times as fast as others; a job that began before it is there from its
    /// beginning on, with what it had left.
    pub fn within(self, window: Window, table: &SpeedTable, factor: impl Fn(&SlotId) -> f64) -> Within {
        if self.came_ms >= window.to_ms || self.ended_ms.is_some_and(|ended_ms| ended_ms <= window.from_ms) {
            return Within::Outside;
        }
        let Some(ended_ms) = self.ended_ms else { return Within::Unfinished };
        let most = self.job.workers;
        let speed = |slots: u16, stride: u16| table.curve(stride).speed(slots.min(most)).unwrap_or(0.0);
        let ms = |of: &Stretch| of.until_ms.saturating_sub(of.from_ms.max(window.from_ms));
        let done = |of: &Stretch| {
            let Members { slots, stride, on, .. } = &of.members;
            ms(of) as f64 * speed(*slots, *stride) * on.as_ref().map_or(1.0, &factor)
        };
        let done_ms: f64 = self.stretches.iter().map(done).sum();
        if done_ms <= 0.0 {
            return Within::Untrained;
        }
        let work = Work::Seconds(done_ms / 1e3 / speed(most, 1));
        let guest = self.stretches.iter().any(|of| of.members.guests && ms(of) > 0);
        let since = |times: &[u64]| times.iter().filter(|at_ms| **at_ms >= window.from_ms).count();
        let (suspensions, restarts) = (since(&self.suspended_ms), since(&self.restarted_ms));
        let traits = Traits { suspensions, restarts, guest, ..self.traits };
        let (came_ms, began_before) = (self.came_ms.max(window.from_ms), self.came_ms < window.from_ms);
        let job = TraceJob { work, ..self.job };
        Within::Ran(Box::new(Ran { job, kind: self.kind, traits, came_ms, ended_ms, began_before }))
    }
}

impl Members {
    /// Those who would be on the slots of a plan.
    fn planned(fact: &Value) -> Self {
        let slots = fact["slots"].as_array().into_iter().flatten();
        let slots: Vec<SlotId> = slots.filter_map(|slot| slot.as_str()?.parse().ok()).collect();
        Self {
            slots: u16::try_from(slots.len()).unwrap_or(u16::MAX),
            stride: 1,
            on: slots.first().map(SlotId::host),
            guests: slots.iter().any(SlotId::is_guest),
        }
    }
}

/// Steps of an update, which facts say where they are several.
fn stride(said: &Value) -> u16 {
    said.as_u64().and_then(|steps| u16::try_from(steps).ok()).unwrap_or(1)
}
