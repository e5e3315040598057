//! Clocks of one executor: progress for people, and how long members stood still for a change. Nothing here decides anything.

use crate::program::Program;
use events_schema::Step;
use events_schema::orders::Telemetry;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use workers_session::Membership;

/// Progress is for eyes: this often at most.
const TELEMETRY_INTERVAL: Duration = Duration::from_millis(250);
/// Rates are averaged over about this long.
const RATE_WINDOW: Duration = Duration::from_secs(1);

/// Steps of which the usual one is the median: enough that a stray one does not count, few enough to follow a change of size.
const USUAL_STEPS: usize = 9;

/// Why members may have stood still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Still {
    /// The job begins, or begins anew from a checkpoint: nobody stood still for a change.
    Beginning,
    /// Since a boundary at which the membership changed.
    Boundary,
    /// Since a member was lost.
    Loss,
}

/// How long the first step of a membership took, beside the steps before the change: the difference is what the change cost, whatever
/// it was spent on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FirstStep {
    /// From the boundary, the loss or the beginning to the end of the step, in microseconds.
    pub first_step_us: u64,
    /// The median of the last few steps before, in microseconds.
    pub usual_step_us: Option<u64>,
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// The clocks.
#[derive(Debug)]
pub struct Meter {
    still: Still,
    /// No step was completed since a membership was entered.
    first: bool,
    /// The last few steps that no change disturbed, in microseconds.
    usual: VecDeque<u64>,
    since: Instant,
    lost_at: Option<Instant>,
    step_ended: Instant,
    told: Option<Instant>,
    window: (Instant, u64),
    samples_per_second: f64,
    step_us: u64,
    loss: f64,
}

impl Default for Meter {
    fn default() -> Self {
        let now = Instant::now();
        Self {
            still: Still::Beginning,
            first: false,
            usual: VecDeque::new(),
            since: now,
            lost_at: None,
            step_ended: now,
            told: None,
            window: (now, 0),
            samples_per_second: 0.0,
            step_us: 0,
            loss: 0.0,
        }
    }
}

impl Meter {
    /// A member of the membership in force is gone, or it is abandoned: from here on nobody steps.
    pub fn on_loss(&mut self) {
        self.lost_at.get_or_insert_with(Instant::now);
    }

    /// A membership is entered.
    pub fn on_enter(&mut self, at_boundary: bool) {
        (self.still, self.since) = match self.lost_at.take() {
            Some(lost_at) => (Still::Loss, lost_at),
            None if at_boundary => (Still::Boundary, self.step_ended),
            None => (Still::Beginning, Instant::now()),
        };
        if self.still == Still::Beginning {
            self.step_ended = Instant::now();
        }
        self.first = true;
    }

    /// From the boundary or the loss until now, in microseconds: until the generation was in force, if that is what just happened.
    #[must_use]
    pub fn pause_us(&self) -> u64 {
        if self.still == Still::Beginning { 0 } else { micros(self.since.elapsed()) }
    }

    /// A step is complete. If it is the first of a membership: how long it took, from the boundary or the loss on.
    pub fn on_step(&mut self, samples: u64, loss: f64) -> Option<FirstStep> {
        let now = Instant::now();
        self.step_us = micros(now - self.step_ended);
        let first = std::mem::take(&mut self.first).then(|| FirstStep {
            first_step_us: micros(now.saturating_duration_since(self.since)),
            usual_step_us: self.usual_step_us(),
        });
        if first.is_none() {
            if self.usual.len() == USUAL_STEPS {
                self.usual.pop_front();
            }
            self.usual.push_back(self.step_us);
        }
        self.step_ended = now;
        self.loss = loss;
        self.window.1 += samples;
        let elapsed = now - self.window.0;
        if elapsed >= RATE_WINDOW {
            self.samples_per_second = self.window.1 as f64 / elapsed.as_secs_f64();
            self.window = (now, 0);
        } else if self.samples_per_second == 0.0 {
            self.samples_per_second = self.window.1 as f64 / elapsed.as_secs_f64().max(1e-6);
        }
        first
    }

    /// The median of the last few undisturbed steps, in microseconds.
    fn usual_step_us(&self) -> Option<u64> {
        let mut steps: Vec<u64> = self.usual.iter().copied().collect();
        steps.sort_unstable();
        steps.get(steps.len() / 2).copied()
    }

    /// Mean loss of the last step completed here.
    #[must_use]
    pub fn loss(&self) -> f64 {
        self.loss
    }

    /// What to tell now, if it is time.
    pub fn telemetry(&mut self, program: &Program, membership: &Membership, done: Step) -> Option<Telemetry> {
        let due = done.0 == program.steps_total || self.told.is_none_or(|told| told.elapsed() >= TELEMETRY_INTERVAL);
        if !due {
            return None;
        }
        self.told = Some(Instant::now());
        Some(Telemetry {
            job: program.job.clone(),
            generation: membership.tag.generation,
            step: done,
            steps_total: program.steps_total,
            epoch: done.0 / program.steps_per_epoch,
            loss: self.loss,
            samples_per_second: self.samples_per_second,
            step_us: self.step_us,
            members: u16::try_from(membership.seats.len()).unwrap_or(u16::MAX),
        })
    }
}
