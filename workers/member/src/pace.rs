//! When a checkpoint, and when a comparison of replicas, is due where the spec does not say it in steps. Every member measures; the leader's
//! word, told on its part of a step, is the one that counts, so no two members can differ about a boundary. Nothing here changes a bit of the model.
//!
//! `auto` is the interval of Young (1974) and Daly (2006): with a cost C for each checkpoint and a time M between two losses of every replica,
//! the square root of 2·C·M loses the least time to checkpoints and to steps computed again. Both are measured: C by what steps took longer
//! while one was written, M by how long the job trained and how often it began anew.

use crate::event::Config;
use crate::meter::Meter;
use events_schema::Step;
use events_schema::job::CheckpointInterval;
use events_schema::stride::Stride;
use std::time::Duration;
use workers_session::{CheckpointId, Due};

/// Never more often by itself: a store that many jobs share is asked a few times for each checkpoint, and an older one is deleted.
const AUTO_MIN: Duration = Duration::from_secs(30);
/// Never more seldom: nobody loses more than half an hour, however well things went so far.
const AUTO_MAX: Duration = Duration::from_secs(1_800);
/// What a checkpoint counts as costing before one was written: of a replica of some GB a copy of it.
const COST_FIRST: Duration = Duration::from_secs(1);
/// Less cannot be told from the spread of the steps.
const COST_MIN: Duration = Duration::from_millis(10);
/// How long a job counts as having trained before it began, with one loss in that time: one that was never lost yet may be at any time.
const TRAINED_BEFORE: Duration = Duration::from_secs(6 * 3_600);
/// Writing takes at most one part in so many of the time, however slow the store is: the next one would find no room.
const WRITES_APART: u32 = 2;
/// Steps between two comparisons at the least: a checksum reads what an update reads and writes at each step.
const COMPARE_STEPS_MIN: u64 = 100;
/// Computing checksums takes at most one part in so many of the time: half of the hundredth that comparing may cost, as it slows what runs beside it.
const CHECKSUMS_APART: u32 = 200;

/// A checkpoint that is being written.
#[derive(Debug, Clone, Copy)]
struct Writing {
    checkpoint: CheckpointId,
    since: Duration,
    /// What updates took longer since then than as many steps usually do.
    excess: Duration,
}

/// What one member has seen of checkpoints and checksums. Times are those of the machine's inputs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pace {
    /// When the last checkpoint was begun, or the first membership entered.
    saved: Option<Duration>,
    writing: Option<Writing>,
    /// What the last one cost the training.
    cost: Option<Duration>,
    /// How long writing it took.
    wrote: Duration,
    /// Where replicas were last compared, or the first membership was entered.
    compared: Option<Step>,
    /// How long a checksum takes.
    checksum: Duration,
}

impl Pace {
    /// A membership is entered at a step.
    pub fn on_enter(&mut self, step: Step, now: Duration) {
        self.saved.get_or_insert(now);
        self.compared.get_or_insert(step);
    }

    /// This member's part of a checkpoint is begun.
    pub fn on_checkpoint(&mut self, checkpoint: CheckpointId, now: Duration) {
        self.saved = Some(now);
        self.writing = Some(Writing { checkpoint, since: now, excess: Duration::ZERO });
    }

    /// A step is complete, and the meter knows it.
    pub fn on_step(&mut self, meter: &Meter) {
        if let Some(writing) = &mut self.writing {
            writing.excess += meter.excess();
        }
    }

    /// This member's part is in the store.
    pub fn on_written(&mut self, checkpoint: CheckpointId, now: Duration) {
        if let Some(done) = self.writing.take_if(|writing| writing.checkpoint == checkpoint) {
            (self.cost, self.wrote) = (Some(done.excess), now.saturating_sub(done.since));
        }
    }

    /// Replicas are compared at this step.
    pub fn on_compare(&mut self, step: Step) {
        self.compared = Some(step);
    }

    /// This member's checksum is there, and took so long.
    pub fn on_checksum(&mut self, took: Duration) {
        self.checksum = took;
    }

    /// What is due at the boundary after the update of `step`, which is in flight.
    pub fn due(&self, config: &Config, (step, stride): (Step, Stride), meter: &Meter, now: Duration) -> Due {
        let usual = meter.usual().map(|usual| usual.step());
        let since = now.saturating_sub(self.saved.unwrap_or(now));
        let checkpoint = self.interval(config, step, usual).is_some_and(|interval| since >= interval);
        let next = stride.end(step);
        let compare = match config.compare_every {
            Some(every) => next.0.is_multiple_of(every.max(1)),
            None => next.0.saturating_sub(self.compared.unwrap_or(next).0) >= self.compare_steps(usual),
        };
        Due { checkpoint, compare }
    }

    /// The time between two checkpoints, in milliseconds, where they go by time; for people.
    pub fn checkpoint_every_ms(&self, config: &Config, step: Step, meter: &Meter) -> Option<u64> {
        let interval = self.interval(config, step, meter.usual().map(|usual| usual.step()));
        interval.map(|interval| u64::try_from(interval.as_millis()).unwrap_or(u64::MAX))
    }

    fn interval(&self, config: &Config, step: Step, usual: Option<Duration>) -> Option<Duration> {
        match config.checkpoint {
            CheckpointInterval::Steps(_) => None,
            CheckpointInterval::Seconds(seconds) => Some(Duration::from_secs(seconds)),
            CheckpointInterval::Auto => {
                let steps = u32::try_from(step.0).unwrap_or(u32::MAX);
                let trained = usual.unwrap_or_default().saturating_mul(steps);
                let cost = self.cost.unwrap_or(COST_FIRST).max(COST_MIN);
                let pays = pays(cost, trained, config.restarts);
                Some(pays.max(self.wrote.saturating_mul(WRITES_APART)).clamp(AUTO_MIN, AUTO_MAX))
            }
        }
    }

    /// Steps between two comparisons, so that their checksums take little of the time.
    fn compare_steps(&self, usual: Option<Duration>) -> u64 {
        let Some(usual_ns) = usual.map(|usual| usual.as_nanos().max(1)) else { return COMPARE_STEPS_MIN };
        let checksums_ns = self.checksum.as_nanos().saturating_mul(u128::from(CHECKSUMS_APART));
        u64::try_from(checksums_ns.div_ceil(usual_ns)).unwrap_or(u64::MAX).max(COMPARE_STEPS_MIN)
    }
}

/// The interval at which the least time is lost, by what a checkpoint costs, how long the job has trained and how often it lost every replica.
fn pays(cost: Duration, trained: Duration, losses: u32) -> Duration {
    let between = (TRAINED_BEFORE.as_secs_f64() + trained.as_secs_f64()) / (f64::from(losses) + 1.0);
    Duration::try_from_secs_f64((2.0 * cost.as_secs_f64() * between).sqrt()).unwrap_or(AUTO_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::tests::config;
    use events_schema::Generation;
    use workers_session::Tag;

    const AT: CheckpointId = CheckpointId { step: Step(10), tag: Tag { generation: Generation(1), revision: 0 } };

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// A meter that has seen some steps of so many milliseconds.
    fn meter(step_ms: u64) -> Meter {
        let mut meter = Meter::default();
        (1..=9).for_each(|n| _ = meter.on_step((Stride::ONE, 1), 1.0, at(n * step_ms)));
        meter
    }

    fn by(checkpoint: CheckpointInterval) -> Config {
        Config { checkpoint, ..config(0, 4, 1_000_000) }
    }

    #[test]
    fn a_checkpoint_by_seconds_is_due_when_they_are_over() {
        let (config, meter, mut pace) = (by(CheckpointInterval::Seconds(60)), meter(100), Pace::default());
        pace.on_enter(Step(0), at(1_000));
        let due = |pace: &Pace, ms| pace.due(&config, (Step(5), Stride::ONE), &meter, at(ms)).checkpoint;
        assert_eq!([due(&pace, 60_999), due(&pace, 61_000)], [false, true]);
        pace.on_checkpoint(AT, at(61_100));
        pace.on_enter(Step(11), at(70_000));
        assert_eq!([due(&pace, 121_000), due(&pace, 121_100)], [false, true], "a new membership begins nothing anew");
        assert_eq!(pace.checkpoint_every_ms(&config, Step(5), &meter), Some(60_000));
        let steps = by(CheckpointInterval::Steps(5));
        assert!(
            !pace.due(&steps, (Step(4), Stride::ONE), &meter, at(900_000)).checkpoint,
            "steps are counted by everybody"
        );
        assert_eq!(pace.checkpoint_every_ms(&steps, Step(5), &meter), None);
    }

    #[test]
    fn what_pays_is_the_square_root_of_twice_the_cost_by_the_time_between_losses() {
        let secs = Duration::from_secs;
        assert_eq!(pays(secs(2), secs(4 * 3_600), 0).as_secs(), 379, "sqrt(2 · 2 s · 10 h)");
        assert_eq!(pays(secs(2), secs(4 * 3_600), 9).as_secs(), 120, "ten times as often: the root of ten shorter");
        assert_eq!(pays(secs(8), secs(4 * 3_600), 0).as_secs(), 758, "four times the cost: twice as long");
        assert_eq!(pays(Duration::MAX, Duration::MAX, 0), AUTO_MAX, "beyond what can be said");
    }

    #[test]
    fn the_cost_is_what_steps_take_longer_while_one_is_written() {
        let (config, mut meter, mut pace) = (by(CheckpointInterval::Auto), meter(100), Pace::default());
        let every = |pace: &Pace, meter: &Meter| pace.checkpoint_every_ms(&config, Step(0), meter);
        let first = every(&pace, &meter);
        assert_eq!(first, Some(207_846), "sqrt(2 · 1 s · 6 h)");
        pace.on_checkpoint(AT, at(900));
        for ended in [1_400, 1_500, 1_600] {
            meter.on_step((Stride::ONE, 1), 1.0, at(ended));
            pace.on_step(&meter);
        }
        pace.on_written(AT, at(1_600));
        meter.on_step((Stride::ONE, 1), 1.0, at(9_600));
        pace.on_step(&meter);
        assert_eq!(every(&pace, &meter), Some(131_453), "0.4 s: what came after it was written does not count");
    }

    /// An update of four steps is no slow one, and a job of such updates has not trained for four times as long.
    #[test]
    fn updates_of_several_steps_are_no_slow_steps() {
        let (config, four) = (by(CheckpointInterval::Auto), Stride::of(4));
        let (mut meter, mut pace) = (meter(100), Pace::default());
        pace.on_checkpoint(AT, at(900));
        for n in 1..=3 {
            meter.on_step((four, 4), 1.0, at(900 + n * 400));
            pace.on_step(&meter);
        }
        pace.on_written(AT, at(2_100));
        assert_eq!(pace.cost, Some(Duration::ZERO));
        (4..=12).for_each(|n| _ = meter.on_step((four, 4), 1.0, at(900 + n * 400)));
        let steps = 144_000;
        let trained = Pace { cost: Some(Duration::from_secs(2)), ..Pace::default() };
        assert_eq!(
            trained.checkpoint_every_ms(&config, Step(steps), &meter),
            Some(379_473),
            "four hours, and six before"
        );
        assert_eq!(
            Pace { checksum: Duration::from_secs(1), ..pace }.compare_steps(meter.usual().map(|u| u.step())),
            2_000
        );
    }

    #[test]
    fn auto_keeps_its_bounds_and_leaves_a_slow_store_time() {
        let (config, meter) = (by(CheckpointInterval::Auto), meter(100));
        let cheap = Pace { cost: Some(Duration::ZERO), ..Pace::default() };
        assert_eq!(cheap.checkpoint_every_ms(&config, Step(0), &meter), Some(30_000));
        let slow = Pace { wrote: Duration::from_secs(400), ..cheap.clone() };
        assert_eq!(slow.checkpoint_every_ms(&config, Step(0), &meter), Some(800_000));
        let dear = Pace { cost: Some(Duration::from_secs(3_600)), ..Pace::default() };
        assert_eq!(dear.checkpoint_every_ms(&config, Step(u64::MAX), &meter), Some(1_800_000));
        let lost = Config { restarts: u32::MAX, ..config };
        assert_eq!(dear.checkpoint_every_ms(&lost, Step(0), &meter), Some(30_000));
    }

    #[test]
    fn comparing_takes_half_a_hundredth_of_the_time_unless_the_spec_says_how_often() {
        let (config, meter, mut pace) = (by(CheckpointInterval::Auto), meter(100), Pace::default());
        pace.on_enter(Step(40), at(0));
        let due =
            |pace: &Pace, config: &Config, step| pace.due(config, (Step(step), Stride::ONE), &meter, at(0)).compare;
        assert_eq!(
            [due(&pace, &config, 138), due(&pace, &config, 139)],
            [false, true],
            "a hundred steps after it came"
        );
        pace.on_compare(Step(140));
        pace.on_checksum(Duration::from_secs(1));
        // 200 seconds of steps of 100 ms.
        assert_eq!([due(&pace, &config, 2_138), due(&pace, &config, 2_139)], [false, true]);
        let every = Config { compare_every: Some(7), ..config };
        assert_eq!([due(&pace, &every, 139), due(&pace, &every, 140)], [true, false], "at every seventh boundary");
    }
}
