//! Clocks of one executor: progress for people, and how long members stood still for a change. Nothing here decides anything.

use crate::event::Config;
use events_schema::Step;
use events_schema::orders::Telemetry;
use events_schema::stride::Stride;
use std::collections::VecDeque;
use std::time::Duration;
use workers_session::Membership;

/// Progress is for eyes: this often at most.
const TELEMETRY_INTERVAL: Duration = Duration::from_millis(250);
/// Rates are averaged over about this long.
const RATE_WINDOW: Duration = Duration::from_secs(1);

/// Steps of which the usual one is the median: enough that a stray one does not count, few enough to follow a change of size.
const USUAL_STEPS: usize = 9;

/// A membership that lasts so long, and so many steps, is measured: caches are warm, and the median means something.
const MEASURED_AFTER: Duration = Duration::from_secs(2);
/// The least steps that a median is taken of.
const MEASURED_STEPS: usize = 3;

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

/// How long the first step of a membership took, beside the steps before the change: the difference is what the change cost, whatever
/// it was spent on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FirstStep {
    /// From the boundary, the loss or the beginning to the end of the step, in microseconds.
    pub first_step_us: u64,
    /// The median of the last few steps before.
    pub usual: Option<UsualStep>,
}

/// A step as it usually is, and of whom: steps of other sizes take other times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UsualStep {
    /// In microseconds.
    pub step_us: u64,
    /// How many members did it.
    pub members: u16,
    /// How many steps it took at once.
    pub stride: Stride,
}

/// What was done since a time, for averages.
#[derive(Debug, Clone, Copy)]
struct Window {
    since: Duration,
    samples: u64,
    steps: u64,
    /// For how long samples were waited for.
    data_wait: Duration,
}

impl Window {
    fn begin(since: Duration) -> Self {
        Self { since, samples: 0, steps: 0, data_wait: Duration::ZERO }
    }
}

/// The clocks. All times are those of the machine's inputs.
#[derive(Debug, Clone)]
pub(crate) struct Meter {
    still: Still,
    /// No step was completed since a membership was entered.
    first: bool,
    /// How many train together.
    members: u16,
    /// Steps that their updates take, but for those that end earlier because something is due.
    stride: Stride,
    /// Undisturbed steps of this membership, until it was measured: after that none are counted.
    unmeasured: Option<usize>,
    /// The last few steps that no change disturbed.
    usual: VecDeque<UsualStep>,
    since: Duration,
    lost_at: Option<Duration>,
    step_ended: Duration,
    told: Option<Duration>,
    window: Window,
    /// A window was over: until then the rate is that of what was done so far, or a job of less than a second would tell the one of its first step,
    /// which fills caches.
    settled: bool,
    samples_per_second: f64,
    data_wait_us: u64,
    step_us: u64,
    loss: f64,
}

impl Default for Meter {
    fn default() -> Self {
        let zero = Duration::ZERO;
        Self {
            still: Still::Beginning,
            first: false,
            members: 1,
            stride: Stride::ONE,
            unmeasured: None,
            usual: VecDeque::new(),
            since: zero,
            lost_at: None,
            step_ended: zero,
            told: None,
            window: Window::begin(zero),
            settled: false,
            samples_per_second: 0.0,
            data_wait_us: 0,
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

    /// A membership of so many members, whose updates take so many steps, is entered.
    pub fn on_enter(&mut self, at_boundary: bool, (members, stride): (usize, Stride), now: Duration) {
        (self.members, self.stride) = (u16::try_from(members).unwrap_or(u16::MAX), stride);
        self.unmeasured = Some(0);
        (self.still, self.since) = match self.lost_at.take() {
            Some(lost_at) => (Still::Loss, lost_at),
            None if at_boundary => (Still::Boundary, self.step_ended),
            None => (Still::Beginning, now),
        };
        if self.still == Still::Beginning {
            self.step_ended = now;
            // Linking up with others is no training.
            self.window = Window::begin(now);
        }
        self.first = true;
    }

    /// From the boundary or the loss until `now`, in microseconds: until the generation was in force, if that is what just happened.
    pub fn pause_us(&self, now: Duration) -> u64 {
        if self.still == Still::Beginning { 0 } else { micros(now.saturating_sub(self.since)) }
    }

    /// An update of so many steps, and samples, is complete. If it is the first of a membership: how long it took, from the boundary or the loss on.
    pub fn on_step(&mut self, (stride, samples): (Stride, u64), loss: f64, now: Duration) -> Option<FirstStep> {
        self.step_us = micros(now.saturating_sub(self.step_ended));
        let first = std::mem::take(&mut self.first)
            .then(|| FirstStep { first_step_us: micros(now.saturating_sub(self.since)), usual: self.usual() });
        if first.is_none() {
            if self.usual.len() == USUAL_STEPS {
                self.usual.pop_front();
            }
            self.usual.push_back(UsualStep { step_us: self.step_us, members: self.members, stride });
            self.unmeasured = self.unmeasured.map(|steps| steps + usize::from(stride == self.stride));
        }
        self.step_ended = now;
        self.loss = loss;
        self.window.samples += samples;
        self.window.steps += 1;
        let elapsed = now.saturating_sub(self.window.since);
        let over = elapsed >= RATE_WINDOW;
        if over || !self.settled {
            self.samples_per_second = self.window.samples as f64 / elapsed.as_secs_f64().max(1e-6);
            self.data_wait_us = micros(self.window.data_wait) / self.window.steps;
        }
        if over {
            (self.window, self.settled) = (Window::begin(now), true);
        }
        first
    }

    /// A gradient's samples were waited for.
    pub fn on_data_wait(&mut self, waited: Duration) {
        self.window.data_wait += waited;
    }

    /// The median of the last few undisturbed steps.
    fn usual(&self) -> Option<UsualStep> {
        let mut steps: Vec<UsualStep> = self.usual.iter().copied().collect();
        steps.sort_unstable();
        steps.get(steps.len() / 2).copied()
    }

    /// The usual step of this membership, once when it has lasted for a while.
    pub fn measured(&mut self, now: Duration) -> Option<UsualStep> {
        let lasts = now.saturating_sub(self.since) >= MEASURED_AFTER;
        self.unmeasured.filter(|steps| lasts && *steps >= MEASURED_STEPS)?;
        self.unmeasured = None;
        let (members, stride) = (self.members, self.stride);
        let of_it = self.usual.iter().filter(|usual| (usual.members, usual.stride) == (members, stride));
        let mut steps: Vec<u64> = of_it.map(|usual| usual.step_us).collect();
        steps.sort_unstable();
        steps.get(steps.len() / 2).map(|&step_us| UsualStep { step_us, members, stride })
    }

    /// How long the median of the last few undisturbed steps took, in microseconds.
    pub fn usual_step_us(&self) -> Option<u64> {
        self.usual().map(|usual| usual.step_us)
    }

    /// The last step completed here, in microseconds.
    pub fn step_us(&self) -> u64 {
        self.step_us
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
            data_wait_us: Some(self.data_wait_us),
            checkpoint_every_ms: None,
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
        meter.on_enter(false, (2, Stride::ONE), at(5));
        assert_eq!(meter.pause_us(at(9)), 0, "nobody stood still for a beginning");
        meter.on_step((Stride::ONE, 8), 1.0, at(20));
        meter.on_enter(true, (2, Stride::ONE), at(30));
        assert_eq!(meter.pause_us(at(31)), 11_000);
        meter.on_loss(at(40));
        meter.on_loss(at(41));
        meter.on_enter(true, (2, Stride::ONE), at(60));
        assert_eq!(meter.pause_us(at(61)), 21_000, "the first loss counts");
        meter.on_enter(true, (2, Stride::ONE), at(70));
        assert_eq!(meter.pause_us(at(71)), 51_000, "the boundary before");
    }

    #[test]
    fn waits_for_data_are_averaged_over_the_steps_of_a_window() {
        let (mut meter, at) = (Meter::default(), Duration::from_millis);
        let mut step = |ms, waited| {
            meter.on_data_wait(at(waited));
            meter.on_step((Stride::ONE, 8), 1.0, at(ms));
            meter.data_wait_us
        };
        assert_eq!([step(100, 90), step(500, 10), step(1_100, 20)], [90_000, 50_000, 40_000]);
        assert_eq!([step(1_600, 0), step(2_200, 0)], [40_000, 0], "nothing is waited for any more");
    }

    #[test]
    fn before_the_first_window_is_over_the_rate_is_that_of_all_steps_so_far() {
        let (mut meter, at) = (Meter::default(), Duration::from_millis);
        meter.on_enter(false, (2, Stride::ONE), at(5_000));
        let mut rate = |ms| {
            meter.on_step((Stride::ONE, 10), 1.0, at(ms));
            meter.samples_per_second.round()
        };
        assert_eq!([rate(5_100), rate(5_110), rate(5_120)], [100.0, 182.0, 250.0], "what was before is no training");
        assert_eq!([rate(6_000), rate(6_010)], [40.0, 40.0], "then that of the last whole window");
    }

    #[test]
    fn the_first_step_of_a_membership_is_told_beside_the_usual_one() {
        let (mut meter, at) = (Meter::default(), Duration::from_millis);
        let mut step = |ms| meter.on_step((Stride::ONE, 8), 1.0, at(ms));
        assert_eq!([step(10), step(20), step(31)], [None; 3]);
        meter.on_enter(true, (2, Stride::ONE), at(32));
        let first = FirstStep {
            first_step_us: 69_000,
            usual: Some(UsualStep { step_us: 10_000, members: 1, stride: Stride::ONE }),
        };
        assert_eq!(meter.on_step((Stride::ONE, 8), 1.0, at(100)), Some(first), "of who was alone before");
        assert_eq!(meter.on_step((Stride::ONE, 8), 1.0, at(110)), None);
    }

    /// An update that ends where something is due takes less, and says nothing of the others.
    #[test]
    fn what_is_measured_are_updates_of_the_stride_that_the_membership_has() {
        let (mut meter, at, four) = (Meter::default(), Duration::from_millis, Stride::of(4));
        meter.on_enter(false, (1, four), at(0));
        for (ms, stride) in
            [(400, four), (500, Stride::ONE), (900, four), (1_000, Stride::ONE), (1_400, four), (2_010, Stride::ONE)]
        {
            meter.on_step((stride, 8), 1.0, at(ms));
            assert_eq!(meter.measured(at(ms)), None, "at {ms} ms");
        }
        meter.on_step((four, 8), 1.0, at(2_410));
        assert_eq!(meter.measured(at(2_410)), Some(UsualStep { step_us: 400_000, members: 1, stride: four }));
    }

    #[test]
    fn a_membership_that_lasts_is_measured_once() {
        let (mut meter, at) = (Meter::default(), Duration::from_millis);
        meter.on_enter(false, (1, Stride::ONE), at(0));
        for ms in (100..=1_900).step_by(100) {
            meter.on_step((Stride::ONE, 8), 1.0, at(ms));
            assert_eq!(meter.measured(at(ms)), None, "at {ms} ms");
        }
        meter.on_step((Stride::ONE, 8), 1.0, at(2_000));
        assert_eq!(meter.measured(at(2_000)), Some(UsualStep { step_us: 100_000, members: 1, stride: Stride::ONE }));
        meter.on_step((Stride::ONE, 8), 1.0, at(2_100));
        assert_eq!(meter.measured(at(2_100)), None);
        meter.on_enter(true, (2, Stride::ONE), at(2_100));
        let mut step = |ms| {
            meter.on_step((Stride::ONE, 8), 1.0, at(ms));
            meter.measured(at(ms))
        };
        assert_eq!([step(4_000), step(5_000), step(6_010)], [None; 3], "the first one has the change in it");
        let of_two = UsualStep { step_us: 1_000_000, members: 2, stride: Stride::ONE };
        assert_eq!(step(7_000), Some(of_two), "not of the steps that one did");
    }
}
