//! Clocks of one executor: progress for people, and how long members stood still for a change. Nothing here decides anything.

use crate::event::Config;
use events_schema::Step;
use events_schema::orders::Telemetry;
use events_schema::spread::Spread;
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
/// A standard deviation as a multiple of the usual distance from the median, in thousandths, where many durations are spread normally. Of n of them that distance
/// comes out too small, by about one part in n.
const DEVIATION_MILLI: u128 = 1_483;

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

/// How long the first update of a membership took, beside as many steps before the change: the difference is what the change cost, whatever
/// it was spent on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FirstStep {
    /// From the boundary, the loss or the beginning to the end of the update, in microseconds.
    pub first_step_us: u64,
    /// Steps that it took.
    pub stride: Stride,
    /// The median of the last few updates before.
    pub usual: Option<UsualUpdate>,
}

impl FirstStep {
    /// What as many steps usually took before the change, in microseconds: of updates that took fewer or more at once, in proportion.
    pub fn usual_step_us(&self) -> Option<u64> {
        self.usual.map(|usual| micros(usual.of_steps(self.stride)))
    }
}

/// An update as it usually is, and of whom: those of other sizes and strides take other times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UsualUpdate {
    /// In microseconds.
    pub update_us: u64,
    /// How many members did it.
    pub members: u16,
    /// How many steps it took at once.
    pub stride: Stride,
}

impl UsualUpdate {
    /// How long each of its steps took.
    pub fn step(&self) -> Duration {
        self.of_steps(Stride::ONE)
    }

    /// How long so many steps take at its pace.
    pub fn of_steps(&self, stride: Stride) -> Duration {
        let of_all_ns = u128::from(self.update_us) * 1_000 * u128::from(stride.steps());
        Duration::from_nanos(u64::try_from(of_all_ns / u128::from(self.stride.steps())).unwrap_or(u64::MAX))
    }
}

/// The updates of a membership that take the most steps at once, of those that no change disturbed: the others ended where something is due, and say nothing of
/// them. Where something is due more often than the membership's stride, none takes that many.
#[derive(Debug, Clone, Default)]
struct Longest {
    stride: Stride,
    /// The last few of them, in microseconds.
    updates_us: VecDeque<u64>,
}

impl Longest {
    fn add(&mut self, stride: Stride, update_us: u64) {
        if stride < self.stride {
            return;
        }
        if stride > self.stride {
            *self = Self { stride, ..Self::default() };
        }
        if self.updates_us.len() == USUAL_STEPS {
            self.updates_us.pop_front();
        }
        self.updates_us.push_back(update_us);
    }

    /// Their median, and how far they are spread about it.
    fn typical(&self) -> Option<(u64, Spread)> {
        let updates_us = sorted(self.updates_us.iter().copied());
        let median_us = *updates_us.get(updates_us.len() / 2)?;
        let apart_us = sorted(updates_us.iter().map(|us| us.abs_diff(median_us)));
        // Of an even number half-way between the two in the middle: the median itself is one of them, and is no distance from itself.
        let usual_us = apart_us[(apart_us.len() - 1) / 2].midpoint(apart_us[apart_us.len() / 2]);
        let updates = updates_us.len() as u16;
        let (of, others) = (u128::from(updates), u128::from(updates - 1).max(1));
        let deviation = u128::from(usual_us) * DEVIATION_MILLI * of / (1_000 * others);
        Some((median_us, Spread { updates, deviation_us: u64::try_from(deviation).unwrap_or(u64::MAX) }))
    }
}

/// What was done since a time, for averages.
#[derive(Debug, Clone, Copy)]
struct Window {
    since: Duration,
    samples: u64,
    /// As many as its updates took.
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
    /// Undisturbed updates of this membership, until it was measured: after that none are looked at.
    unmeasured: Option<Longest>,
    /// The last few updates that no change disturbed.
    usual: VecDeque<UsualUpdate>,
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
    /// The last update, in microseconds, and steps that it took.
    update: (u64, Stride),
    loss: f64,
}

impl Default for Meter {
    fn default() -> Self {
        let zero = Duration::ZERO;
        Self {
            still: Still::Beginning,
            first: false,
            members: 1,
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
            update: (0, Stride::ONE),
            loss: 0.0,
        }
    }
}

impl Meter {
    /// A member of the membership in force is gone, or it is abandoned: from here on nobody steps.
    pub fn on_loss(&mut self, now: Duration) {
        self.lost_at.get_or_insert(now);
    }

    /// A membership of so many members is entered.
    pub fn on_enter(&mut self, at_boundary: bool, members: usize, now: Duration) {
        self.members = u16::try_from(members).unwrap_or(u16::MAX);
        self.unmeasured = Some(Longest::default());
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
        let update_us = micros(now.saturating_sub(self.step_ended));
        self.update = (update_us, stride);
        let first = std::mem::take(&mut self.first).then(|| FirstStep {
            first_step_us: micros(now.saturating_sub(self.since)),
            stride,
            usual: self.usual(),
        });
        if first.is_none() {
            if self.usual.len() == USUAL_STEPS {
                self.usual.pop_front();
            }
            self.usual.push_back(UsualUpdate { update_us, members: self.members, stride });
            self.unmeasured.iter_mut().for_each(|longest| longest.add(stride, update_us));
        }
        self.step_ended = now;
        self.loss = loss;
        self.window.samples += samples;
        self.window.steps += stride.steps();
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

    /// The median of the last few undisturbed updates, by how long each of their steps took.
    pub fn usual(&self) -> Option<UsualUpdate> {
        let mut updates: Vec<UsualUpdate> = self.usual.iter().copied().collect();
        updates.sort_by_key(|usual| (usual.step(), usual.members, usual.stride));
        updates.get(updates.len() / 2).copied()
    }

    /// The usual update of this membership, of those that take the most steps, and how sure that is: once, when it has lasted for a while.
    pub fn measured(&mut self, now: Duration) -> Option<(UsualUpdate, Spread)> {
        let lasts = now.saturating_sub(self.since) >= MEASURED_AFTER;
        let longest = self.unmeasured.take_if(|longest| lasts && longest.updates_us.len() >= MEASURED_STEPS)?;
        let (members, stride) = (self.members, longest.stride);
        longest.typical().map(|(update_us, spread)| (UsualUpdate { update_us, members, stride }, spread))
    }

    /// How much longer the last update completed here took than as many steps usually do.
    pub fn excess(&self) -> Duration {
        let (update_us, stride) = self.update;
        let usual = self.usual().map(|usual| usual.of_steps(stride));
        usual.map_or(Duration::ZERO, |usual| Duration::from_micros(update_us).saturating_sub(usual))
    }

    /// How long each step of the last update completed here took, in microseconds.
    fn step_us(&self) -> u64 {
        let (update_us, stride) = self.update;
        update_us.div_ceil(stride.steps())
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
            step_us: self.step_us(),
            members: u16::try_from(membership.seats.len()).unwrap_or(u16::MAX),
            data_wait_us: Some(self.data_wait_us),
            checkpoint_every_ms: None,
        })
    }
}

fn sorted(us: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut sorted: Vec<u64> = us.collect();
    sorted.sort_unstable();
    sorted
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use events_schema::Generation;
    use workers_session::{Peer, Tag};

    /// What is measured, however sure that is.
    fn told(meter: &mut Meter, now: Duration) -> Option<UsualUpdate> {
        meter.measured(now).map(|(usual, _)| usual)
    }

    /// How far the updates of a membership of one are spread that take so many milliseconds.
    fn spread(updates_ms: &[u64]) -> Spread {
        let (mut meter, mut now) = (Meter::default(), Duration::from_secs(3));
        meter.on_enter(false, 1, Duration::ZERO);
        meter.on_step((Stride::ONE, 8), 1.0, now);
        for ms in updates_ms {
            now += Duration::from_millis(*ms);
            meter.on_step((Stride::ONE, 8), 1.0, now);
        }
        meter.measured(now).unwrap().1
    }

    #[test]
    fn a_pause_runs_from_what_caused_it() {
        let (mut meter, at) = (Meter::default(), Duration::from_millis);
        meter.on_enter(false, 2, at(5));
        assert_eq!(meter.pause_us(at(9)), 0, "nobody stood still for a beginning");
        meter.on_step((Stride::ONE, 8), 1.0, at(20));
        meter.on_enter(true, 2, at(30));
        assert_eq!(meter.pause_us(at(31)), 11_000);
        meter.on_loss(at(40));
        meter.on_loss(at(41));
        meter.on_enter(true, 2, at(60));
        assert_eq!(meter.pause_us(at(61)), 21_000, "the first loss counts");
        meter.on_enter(true, 2, at(70));
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
        meter.on_enter(false, 2, at(5_000));
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
        meter.on_enter(true, 2, at(32));
        let usual = Some(UsualUpdate { update_us: 10_000, members: 1, stride: Stride::ONE });
        let first = FirstStep { first_step_us: 69_000, stride: Stride::ONE, usual };
        assert_eq!(meter.on_step((Stride::ONE, 8), 1.0, at(100)), Some(first), "of who was alone before");
        assert_eq!(meter.on_step((Stride::ONE, 8), 1.0, at(110)), None);
    }

    #[test]
    fn what_is_usual_is_said_of_as_many_steps_as_the_first_update_takes() {
        let (mut meter, at, two, eight) = (Meter::default(), Duration::from_millis, Stride::of(2), Stride::of(8));
        meter.on_enter(false, 1, at(0));
        let ends = [(10, Stride::ONE), (30, two), (40, Stride::ONE), (60, two), (80, two)];
        assert_eq!(
            ends.map(|(ms, stride)| meter.on_step((stride, 8), 1.0, at(ms)).is_some()).map(usize::from),
            [1, 0, 0, 0, 0]
        );
        meter.on_enter(true, 2, at(80));
        let first = meter.on_step((eight, 8), 1.0, at(170)).unwrap();
        assert_eq!((first.first_step_us, first.usual_step_us()), (90_000, Some(80_000)), "10 ms of it are no work");
    }

    #[test]
    fn people_are_told_of_steps_whatever_an_update_takes() {
        let (mut meter, at, four) = (Meter::default(), Duration::from_millis, Stride::of(4));
        let config = crate::member::tests::config(0, 4, 1_000);
        let (tag, seats) = (Tag { generation: Generation(1), revision: 0 }, Vec::new());
        let membership = Membership { tag, seats, leader: Peer(0), stride: four };
        meter.on_enter(false, 1, at(0));
        meter.on_data_wait(at(80));
        meter.on_step((four, 8), 1.0, at(200));
        let told = meter.telemetry(&config, &membership, Step(4), at(200)).unwrap();
        assert_eq!((told.step_us, told.data_wait_us), (50_000, Some(20_000)));
    }

    /// An update that ends where something is due takes less, and says nothing of the others.
    #[test]
    fn what_is_measured_are_updates_of_the_stride_that_the_membership_has() {
        let (mut meter, at, four) = (Meter::default(), Duration::from_millis, Stride::of(4));
        meter.on_enter(false, 1, at(0));
        for (ms, stride) in
            [(400, four), (500, Stride::ONE), (900, four), (1_000, Stride::ONE), (1_400, four), (2_010, Stride::ONE)]
        {
            meter.on_step((stride, 8), 1.0, at(ms));
            assert_eq!(told(&mut meter, at(ms)), None, "at {ms} ms");
        }
        meter.on_step((four, 8), 1.0, at(2_410));
        assert_eq!(told(&mut meter, at(2_410)), Some(UsualUpdate { update_us: 400_000, members: 1, stride: four }));
    }

    /// With a checkpoint at every fifth step no update takes the eight of its membership.
    #[test]
    fn where_no_update_is_as_long_as_its_membership_says_the_longest_are_measured() {
        let (mut meter, at, five) = (Meter::default(), Duration::from_millis, Stride::of(5));
        meter.on_enter(false, 1, at(0));
        for ms in (500..=2_000).step_by(500) {
            meter.on_step((five, 8), 1.0, at(ms));
        }
        assert_eq!(told(&mut meter, at(2_000)), Some(UsualUpdate { update_us: 500_000, members: 1, stride: five }));
        // Many short ones between them take no room from them.
        meter.on_enter(true, 2, at(2_000));
        meter.on_step((five, 8), 1.0, at(3_000));
        for long in 1..=3 {
            let from = 2_000 + long * 1_000;
            (1..=20).for_each(|short| _ = meter.on_step((Stride::ONE, 8), 1.0, at(from + short)));
            meter.on_step((five, 8), 1.0, at(from + 1_000));
        }
        assert_eq!(told(&mut meter, at(6_000)), Some(UsualUpdate { update_us: 980_000, members: 2, stride: five }));
    }

    #[test]
    fn a_membership_that_lasts_is_measured_once() {
        let (mut meter, at) = (Meter::default(), Duration::from_millis);
        meter.on_enter(false, 1, at(0));
        for ms in (100..=1_900).step_by(100) {
            meter.on_step((Stride::ONE, 8), 1.0, at(ms));
            assert_eq!(told(&mut meter, at(ms)), None, "at {ms} ms");
        }
        meter.on_step((Stride::ONE, 8), 1.0, at(2_000));
        assert_eq!(
            told(&mut meter, at(2_000)),
            Some(UsualUpdate { update_us: 100_000, members: 1, stride: Stride::ONE })
        );
        meter.on_step((Stride::ONE, 8), 1.0, at(2_100));
        assert_eq!(told(&mut meter, at(2_100)), None);
        meter.on_enter(true, 2, at(2_100));
        let mut step = |ms| {
            meter.on_step((Stride::ONE, 8), 1.0, at(ms));
            told(&mut meter, at(ms))
        };
        assert_eq!([step(4_000), step(5_000), step(6_010)], [None; 3], "the first one has the change in it");
        let of_two = UsualUpdate { update_us: 1_000_000, members: 2, stride: Stride::ONE };
        assert_eq!(step(7_000), Some(of_two), "not of the steps that one did");
    }

    #[test]
    fn how_sure_a_measurement_is_follows_from_how_far_its_updates_are_apart() {
        assert_eq!(spread(&[100; 9]), Spread { updates: 9, deviation_us: 0 }, "all take as long");
        // The usual distance from 100 ms is 2 ms, so one is 2 · 1.483 · 9 / 8 off, and the median a third of that and a quarter.
        let noisy = spread(&[100, 101, 99, 102, 98, 103, 97, 104, 96]);
        assert_eq!((noisy, noisy.error_micro(100_000)), (Spread { updates: 9, deviation_us: 3_336 }, 13_937));
        assert_eq!(spread(&[100, 101, 99, 102, 98, 103, 97, 900, 96]), noisy, "a stray one does not count");
    }

    #[test]
    fn of_few_updates_less_is_sure() {
        assert_eq!(spread(&[700, 730, 760]), Spread { updates: 3, deviation_us: 66_735 }, "30 · 1.483 · 3 / 2");
        // Between the two distances in the middle, 20 and 40 ms.
        assert_eq!(spread(&[500, 520, 540, 600]), Spread { updates: 4, deviation_us: 59_320 });
    }
}
