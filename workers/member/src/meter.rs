//! Clocks of one executor: progress for people, and how long members stood still for a change. Nothing here decides anything.

use crate::event::Config;
use events_schema::Step;
use events_schema::orders::Telemetry;
use std::time::Duration;
use workers_session::Membership;

/// Progress is for eyes: this often at most.
const TELEMETRY_INTERVAL: Duration = Duration::from_millis(250);
/// Rates are averaged over about this long.
const RATE_WINDOW: Duration = Duration::from_secs(1);

/// Why members may have stood still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Still {
    /// The job begins, or begins anew from a checkpoint: nobody stood still for a change.
    Beginning,
    /// Since a boundary at which the membership changed.
    Boundary,
    /// Since a member was lost.
    Loss,
}

/// The clocks. All times are those of the machine's inputs.
#[derive(Debug, Clone)]
pub(crate) struct Meter {
    still: Still,
    since: Duration,
    lost_at: Option<Duration>,
    step_ended: Duration,
    told: Option<Duration>,
    window: (Duration, u64),
    samples_per_second: f64,
    step_us: u64,
    loss: f64,
}

impl Default for Meter {
    fn default() -> Self {
        let zero = Duration::ZERO;
        Self {
            still: Still::Beginning,
            since: zero,
            lost_at: None,
            step_ended: zero,
            told: None,
            window: (zero, 0),
            samples_per_second: 0.0,
            step_us: 0,
            loss: 0.0,
        }
    }
}

impl Meter {
    /// A member of the membership in force is gone, or it is abandoned: from here on nobody steps.
    pub fn on_loss(&mut self, now: Duration) {
        self.lost_at.get_or_insert(now);
    }

    /// A membership is entered.
    pub fn on_enter(&mut self, at_boundary: bool, now: Duration) {
        (self.still, self.since) = match self.lost_at.take() {
            Some(lost_at) => (Still::Loss, lost_at),
            None if at_boundary => (Still::Boundary, self.step_ended),
            None => (Still::Beginning, now),
        };
        if self.still == Still::Beginning {
            self.step_ended = now;
        }
    }

    /// From the boundary or the loss until `now`, in microseconds.
    pub fn pause_us(&self, now: Duration) -> u64 {
        if self.still == Still::Beginning { 0 } else { micros(now.saturating_sub(self.since)) }
    }

    /// A step is complete.
    pub fn on_step(&mut self, samples: u64, loss: f64, now: Duration) {
        self.step_us = micros(now.saturating_sub(self.step_ended));
        self.step_ended = now;
        self.loss = loss;
        self.window.1 += samples;
        let elapsed = now.saturating_sub(self.window.0);
        if elapsed >= RATE_WINDOW {
            self.samples_per_second = self.window.1 as f64 / elapsed.as_secs_f64();
            self.window = (now, 0);
        } else if self.samples_per_second == 0.0 {
            self.samples_per_second = self.window.1 as f64 / elapsed.as_secs_f64().max(1e-6);
        }
    }

    /// Mean loss of the last step completed here.
    pub fn loss(&self) -> f64 {
        self.loss
    }

    /// What to tell now, if it is time.
    pub fn telemetry(
        &mut self,
        config: &Config,
        membership: &Membership,
        done: Step,
        now: Duration,
    ) -> Option<Telemetry> {
        let due = self.told.is_none_or(|told| now.saturating_sub(told) >= TELEMETRY_INTERVAL);
        if !due && done.0 != config.steps_total {
            return None;
        }
        self.told = Some(now);
        Some(Telemetry {
            job: config.job.clone(),
            generation: membership.tag.generation,
            step: done,
            steps_total: config.steps_total,
            epoch: done.0 / config.steps_per_epoch.max(1),
            loss: self.loss,
            samples_per_second: self.samples_per_second,
            step_us: self.step_us,
            members: u16::try_from(membership.seats.len()).unwrap_or(u16::MAX),
        })
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_runs_from_what_caused_it() {
        let (mut meter, at) = (Meter::default(), Duration::from_millis);
        meter.on_enter(false, at(5));
        assert_eq!(meter.pause_us(at(9)), 0, "nobody stood still for a beginning");
        meter.on_step(8, 1.0, at(20));
        meter.on_enter(true, at(30));
        assert_eq!(meter.pause_us(at(31)), 11_000);
        meter.on_loss(at(40));
        meter.on_loss(at(41));
        meter.on_enter(true, at(60));
        assert_eq!(meter.pause_us(at(61)), 21_000, "the first loss counts");
        meter.on_enter(true, at(70));
        assert_eq!(meter.pause_us(at(71)), 51_000, "the boundary before");
    }
}
