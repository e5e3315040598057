//! What is asked of the service and when: all of it is known before the run begins, so nothing that comes late delays anything. Pure;
//! chance is seeded, and a mix's arrivals depend on its own name alone.

use crate::scenario::{Arrivals, Demand, Scenario};
use crate::trace::{self, Point};
use anyhow::Result;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::path::PathBuf;
use std::time::Duration;

/// Signals and jobs of one run: some hundred a second for a while, which is more than a cell decides.
const ACTIONS_MAX: usize = 200_000;

/// One thing to ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Action {
    /// From the beginning of the run.
    pub at: Duration,
    /// The request that is made then.
    pub what: What,
}

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// A demand signal.
    Signal {
        /// Index of its fleet in the scenario.
        fleet: usize,
        /// Slots needed.
        needed: u32,
    },
    /// A job.
    Submit {
        /// Index of its mix in the scenario.
        mix: usize,
        /// Which of the mix, from 0.
        number: u32,
    },
}

/// Everything of a scenario, in order of time. `curve` and `times` give what the traces hold.
pub fn schedule(
    scenario: &Scenario,
    curve: impl Fn(&PathBuf, &str) -> Result<Vec<Point>>,
    times: impl Fn(&PathBuf) -> Result<Vec<f64>>,
) -> Result<Vec<Action>> {
    let mut actions = Vec::new();
    for (fleet, load) in scenario.fleets.iter().enumerate() {
        let signals = match &load.demand {
            None => Vec::new(),
            Some(Demand::Steps { steps, repeat }) => written_down(steps, *repeat, scenario.duration),
            Some(Demand::Trace { file, column, slots, speed, from }) => {
                recorded(&curve(file, column)?, *slots, *speed, *from)
            }
        };
        actions.extend(signals.into_iter().map(|(at, needed)| Action { at, what: What::Signal { fleet, needed } }));
    }
    for (mix, jobs) in scenario.jobs.iter().enumerate() {
        let arrivals = match &jobs.arrivals {
            Arrivals::Every(every) => evenly(*every, jobs.most),
            Arrivals::PerMinute(rate) => by_chance(scenario.seed, &jobs.name, *rate, scenario.duration, jobs.most),
            Arrivals::Trace { file, speed } => times(file)?.into_iter().map(|at_s| seconds(at_s / speed)).collect(),
        };
        let arrivals = arrivals.into_iter().take_while(|at| *at < scenario.duration).take(jobs.most as usize);
        actions.extend((0..).zip(arrivals).map(|(number, at)| Action { at, what: What::Submit { mix, number } }));
    }
    actions.retain(|action| action.at < scenario.duration);
    anyhow::ensure!(
        actions.len() <= ACTIONS_MAX,
        "the scenario asks for {} signals and jobs; at most {ACTIONS_MAX} are sent in one run, so shorten it or slow its traces down",
        actions.len()
    );
    actions.sort_by_key(|action| action.at);
    Ok(actions)
}

fn seconds(seconds: f64) -> Duration {
    /// Longer than any run.
    const LONGEST_S: f64 = 1e9;
    Duration::from_secs_f64(seconds.clamp(0.0, LONGEST_S))
}

fn written_down(steps: &[(Duration, u32)], repeat: Option<Duration>, until: Duration) -> Vec<(Duration, u32)> {
    let rounds = repeat.map_or(1, |repeat| until.as_nanos().div_ceil(repeat.as_nanos().max(1)));
    let rounds = u32::try_from(rounds).unwrap_or(u32::MAX).min(ACTIONS_MAX as u32);
    (0..rounds)
        .flat_map(|round| steps.iter().map(move |(at, needed)| (*at + repeat.unwrap_or_default() * round, *needed)))
        .take_while(|(at, _)| *at < until)
        .collect()
}

/// The signals of a curve from a moment of it on: the need at that moment, and then whenever it changes.
fn recorded(curve: &[Point], slots: u32, speed: f64, from: Duration) -> Vec<(Duration, u32)> {
    let from_s = from.as_secs_f64();
    let signals = trace::signals(curve, slots);
    let before = signals.iter().take_while(|signal| signal.at_s <= from_s).last().map(|signal| signal.needed);
    let first = before.map(|needed| (Duration::ZERO, needed));
    let after = signals.iter().skip_while(|signal| signal.at_s <= from_s);
    first.into_iter().chain(after.map(|signal| (seconds((signal.at_s - from_s) / speed), signal.needed))).collect()
}

fn evenly(every: Duration, most: u32) -> Vec<Duration> {
    (0..most.min(ACTIONS_MAX as u32)).map(|number| every * number).collect()
}

/// Exponential pauses: a Poisson process.
fn by_chance(seed: u64, mix: &str, per_minute: f64, until: Duration, most: u32) -> Vec<Duration> {
    // A mix's own stream, whatever stands beside it in the scenario (FNV-1a).
    let own = mix
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let mut generator = ChaCha8Rng::seed_from_u64(seed ^ own);
    let mut at_s = 0.0;
    let mut arrivals = Vec::new();
    while arrivals.len() < most as usize && arrivals.len() <= ACTIONS_MAX {
        // Of 53 bits, in (0, 1].
        let share = ((generator.next_u64() >> 11) as f64 + 1.0) / (1_u64 << 53) as f64;
        at_s += -share.ln() * 60.0 / per_minute;
        if at_s >= until.as_secs_f64() {
            break;
        }
        arrivals.push(seconds(at_s));
    }
    arrivals
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn scheduled(yaml: &str) -> Vec<Action> {
        let scenario = Scenario::parse(&serde_yaml_ng::from_str(yaml).unwrap()).unwrap();
        let curve = |_: &PathBuf, _: &str| {
            Ok([1.0, 4.0, 2.0, 4.0]
                .iter()
                .enumerate()
                .map(|(i, v)| Point { at_s: i as f64 * 600.0, value: *v })
                .collect())
        };
        schedule(&scenario, curve, |_| Ok(vec![0.0, 60.0, 61.0, 1e9])).unwrap()
    }

    fn signals(actions: &[Action]) -> Vec<(u128, u32)> {
        let of = |action: &Action| match action.what {
            What::Signal { needed, .. } => Some((action.at.as_millis(), needed)),
            What::Submit { .. } => None,
        };
        actions.iter().filter_map(of).collect()
    }

    #[test]
    fn a_trace_is_cut_and_scaled() {
        let at = "name: x\nduration: 60s\nfleets: [{fleet: a, demand: {trace: {file: f, column: c, slots: 4, speed: 60, from: 10m}}}]";
        assert_eq!(signals(&scheduled(at)), [(0, 4), (10_000, 2), (20_000, 4)]);
    }

    #[test]
    fn steps_begin_again_until_the_end() {
        let at = "name: x\nduration: 25s\nfleets: [{fleet: a, demand: {steps: [{at: 0s, needed: 0}, {at: 4s, needed: 2}], repeat: 10s}}]";
        assert_eq!(signals(&scheduled(at)), [(0, 0), (4_000, 2), (10_000, 0), (14_000, 2), (20_000, 0), (24_000, 2)]);
    }

    #[test]
    fn arrivals_by_chance_are_those_of_the_seed_and_of_the_mix_alone() {
        let with = |seed: u64, more: &str| {
            let yaml = format!(
                "name: x\nseed: {seed}\nduration: 10m\njobs: [{{name: a, spec: f, arrivals: {{per_minute: 60}}}}{more}]"
            );
            let actions = scheduled(&yaml);
            actions.into_iter().filter(|a| matches!(a.what, What::Submit { mix: 0, .. })).collect::<Vec<_>>()
        };
        let alone = with(1, "");
        assert_eq!(alone, with(1, ", {name: b, spec: f, arrivals: {per_minute: 9}}"));
        assert_ne!(alone, with(2, ""));
        assert!((500..700).contains(&alone.len()), "{} of about 600", alone.len());
    }

    #[test]
    fn jobs_come_at_the_times_of_a_recording_until_the_run_is_over() {
        let yaml = "name: x\nduration: 10s\njobs: [{name: a, spec: f, arrivals: {trace: {file: f, speed: 60}}}]";
        let at: Vec<u128> = scheduled(yaml).iter().map(|action| action.at.as_millis()).collect();
        assert_eq!(at, [0, 1_000, 1_016]);
    }

    #[test]
    fn too_much_is_refused() {
        let yaml = "name: x\nduration: 1h\njobs: [{name: a, spec: f, arrivals: {every: 1ms}}, {name: b, spec: f, arrivals: {every: 1ms}}, {name: c, spec: f, arrivals: {every: 1ms}}]";
        let scenario = Scenario::parse(&serde_yaml_ng::from_str(yaml).unwrap()).unwrap();
        let refused = schedule(&scenario, |_, _| Ok(Vec::new()), |_| Ok(Vec::new())).unwrap_err();
        assert!(refused.to_string().contains("300000"), "{refused}");
    }
}
