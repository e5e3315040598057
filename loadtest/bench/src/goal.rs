//! What a figure is to be, and whether it is: met only where that holds at 95 %, not met only where its contrary does, not known otherwise. It measures nothing.
//!
//! The goals themselves stand here too: they are those of the budget in `docs/measurements.md`, but for steps in PyTorch, to which that allows more (see
//! [`LIKE_PLAIN`]). Bounds are order statistics, which hold whatever times are like, and need five of them at least.

use crate::row::{Times, number};
use serde_json::{Value, json};

/// How sure a verdict is to be.
pub const SURE: f64 = 0.95;
/// Turns of what is measured in turns: fewer give no bound.
pub const TURNS: u32 = 5;
/// How many of a hundred times a goal of each of them lets be longer: it is one for their p99.
const BEYOND_SHARE: f64 = 0.01;

/// What a figure is to be, against its baseline.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Goal(Limit);

#[derive(Debug, Clone, Copy, PartialEq)]
enum Limit {
    /// The largest of some `factor × baseline + more`, at most.
    AtMost(&'static [(f64, f64)]),
    /// So many times the baseline, at least.
    AtLeast(f64),
}

/// A step of the elastic loop against a plain loop, and one of many logical workers on one executor against that, or against as many times one. The same in
/// PyTorch: the budget's 1.02 from 10 ms on, and 0.2 ms of what is shorter, is not what is judged.
pub const LIKE_PLAIN: Goal = Goal::at_most(&[(1.01, 0.0)]);
/// What lies in memory, and what is held up by a copy of memory, against what that takes.
pub const NO_MORE: Goal = Goal::at_most(&[(1.0, 0.0)]);
/// A slot that is wanted back, against a step.
pub const GIVEN_BACK: Goal = Goal::at_most(&[(2.0, 250.0)]);
/// What the coming of members adds to a step, against a step.
pub const ADDED: Goal = Goal::at_most(&[(0.05, 0.0), (0.0, 20.0)]);
/// A step while somebody is about to come in, against a step.
pub const WITH_ADDED: Goal = Goal::at_most(&[(1.05, 0.0), (1.0, 20.0)]);
/// From the loss of a process to training, against a step.
pub const AFTER_A_KILL: Goal = Goal::at_most(&[(1.0, 1_000.0)]);
/// The same of one that says nothing more.
pub const AFTER_SILENCE: Goal = Goal::at_most(&[(1.0, 5_000.0)]);
/// Steps that are done a second time.
pub const NONE: Goal = Goal::at_most(&[(0.0, 0.0)]);
/// What a step waits for data: 0 ms, to the nearest.
pub const NO_WAIT: Goal = Goal::at_most(&[(0.0, 0.5)]);
/// What is trained where slots come and go, against what there could be.
pub const ALMOST_ALL: Goal = Goal::at_least(0.99);
/// How much is read in a second, against plain code.
pub const READ_RATE: Goal = Goal::at_least(0.8);
/// How long reading takes, against that of the store.
pub const READ_TIME: Goal = Goal::at_most(&[(1.25, 0.0)]);
/// From the loss of a broker to slots that are free, against what a bare client takes to go on.
pub const LIKE_BARE: Goal = Goal::at_most(&[(1.0, 1_000.0)]);
/// A sum over processes of one host, against as many copies at once. It was set for two; for more it goes by the bytes that a core moves. As many copies at
/// once have the processes of a core in them, and each moves about as much of however many: 1 + 1/p gradients to add up, and the sum.
pub const SUM_LENT: Goal = Goal::at_most(&[(3.0, 0.0)]);
/// The same over TCP. A process of four sends half as much again as one of two, for which nothing is allowed here: by bytes it would be 13.5.
pub const SUM_COPIED: Goal = Goal::at_most(&[(9.0, 0.0)]);

/// Whether a goal is met.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Verdict {
    /// It is.
    Met,
    /// It is not.
    NotMet,
    /// Too few figures, or they scatter around the limit.
    NotKnown,
    /// Not known either: each that was seen is within the limit, which says so, at 95 %, of this share of all that there could be, and not of 99 %.
    Held(f64),
}

/// A goal, whether it is met, and what was judged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Judged {
    goal: Goal,
    verdict: Verdict,
    what: &'static str,
}

impl Goal {
    /// At most the largest of these `factor × baseline + more`.
    pub const fn at_most(lines: &'static [(f64, f64)]) -> Self {
        Self(Limit::AtMost(lines))
    }

    /// At least so many times the baseline.
    pub const fn at_least(factor: f64) -> Self {
        Self(Limit::AtLeast(factor))
    }

    /// Of what is counted, or does not differ from one time to the next.
    pub fn counted(self, value: f64, baseline: f64) -> Judged {
        self.judge([value; 2], [baseline; 2], "as counted")
    }

    /// Of the most that was seen by looking now and then, of which there may have been more in between.
    pub fn seen(self, value: f64, baseline: f64) -> Judged {
        self.judge([value; 2], [baseline; 2], "as seen")
    }

    /// Of the middle one of some figures against that of others.
    pub fn of_middle(self, values: &Times, baselines: &Times) -> Judged {
        let bounds = |of: &Times| [of.median_at_least(), of.median_at_most()];
        self.judge(bounds(values), bounds(baselines), "p50")
    }

    /// Of the middle ratio, where value and baseline were measured in turns.
    pub fn of_ratios(self, ratios: &Times) -> Judged {
        self.judge([ratios.median_at_least(), ratios.median_at_most()], [1.0; 2], "p50 of the ratios of turns")
    }

    /// Of each of some times, against the middle one of a baseline, but for one of a hundred; and for as many as are beyond it anyhow, which `undisturbed` tell.
    pub fn of_each(self, times: &Times, baseline: f64, undisturbed: Option<&Times>) -> Judged {
        let limit = self.limit(baseline);
        let beyond = |times: &Times| times.iter().filter(|time| !self.holds(*time, limit)).count();
        // One more of two more: of a few undisturbed ones it is not known well.
        let usual = |all: &Times| (beyond(all) as f64 + 1.0) / (all.len() as f64 + 2.0);
        let usual = undisturbed.map_or(BEYOND_SHARE, |all| usual(all).max(BEYOND_SHARE));
        let (count, beyond) = (times.len(), beyond(times));
        let verdict = match beyond {
            _ if count == 0 => Verdict::NotKnown,
            _ if 1.0 - at_least(beyond + 1, count, BEYOND_SHARE) <= 1.0 - SURE => Verdict::Met,
            _ if at_least(beyond, count, usual) <= 1.0 - SURE => Verdict::NotMet,
            0 => Verdict::Held((1.0 - SURE).powf(1.0 / count as f64)),
            _ => Verdict::NotKnown,
        };
        Judged { goal: self, verdict, what: "each" }
    }

    fn judge(self, [low, high]: [f64; 2], baseline: [f64; 2], what: &'static str) -> Judged {
        let [least, most] = baseline.map(|baseline| self.limit(baseline));
        let (is_met, is_missed) = match self.0 {
            Limit::AtMost(_) => (high <= least, low > most),
            Limit::AtLeast(_) => (low >= most, high < least),
        };
        let verdict = match (is_met, is_missed) {
            (true, _) => Verdict::Met,
            (_, true) => Verdict::NotMet,
            _ => Verdict::NotKnown,
        };
        Judged { goal: self, verdict, what }
    }

    fn limit(self, baseline: f64) -> f64 {
        match self.0 {
            Limit::AtMost(lines) => {
                lines.iter().map(|(factor, more)| factor * baseline + more).fold(f64::NEG_INFINITY, f64::max)
            }
            Limit::AtLeast(factor) => factor * baseline,
        }
    }

    fn holds(self, value: f64, limit: f64) -> bool {
        match self.0 {
            Limit::AtMost(_) => value <= limit,
            Limit::AtLeast(_) => value >= limit,
        }
    }

    /// `≤ 2 × + 250`, where × is the baseline.
    fn text(self) -> String {
        let line = |&(factor, more): &(f64, f64)| match (factor == 0.0, more == 0.0) {
            (true, _) => format!("{more}"),
            (_, true) => format!("{factor} ×"),
            _ => format!("{factor} × + {more}"),
        };
        match self.0 {
            Limit::AtMost(lines) => format!("≤ {}", lines.iter().map(line).collect::<Vec<_>>().join(" or ")),
            Limit::AtLeast(factor) => format!("≥ {factor} ×"),
        }
    }
}

impl Judged {
    /// Whether it is met.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// For people: what is to be, how much that is with this baseline, of what, and whether it is.
    #[must_use]
    pub fn cell(&self, baseline: f64) -> String {
        let limit = number(self.goal.limit(baseline));
        format!("{} = {limit}, {}: {}", self.goal.text(), self.what, self.verdict.text())
    }

    /// For programs.
    #[must_use]
    pub fn json(&self, baseline: f64) -> Value {
        let held = if let Verdict::Held(share) = self.verdict { Some(share) } else { None };
        json!({"goal": self.goal.text(), "limit": self.goal.limit(baseline), "judged": self.what, "verdict": self.verdict.word(), "held_of_at_least": held})
    }
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::NotMet => "not met",
            Self::NotKnown | Self::Held(_) => "not known",
        }
    }

    fn text(self) -> String {
        match self {
            // Down: it is at least as much.
            Self::Held(share) => {
                format!("{} (held each time; at 95 % of {:.0} % of all)", self.word(), (share * 100.0).floor())
            }
            _ => self.word().to_owned(),
        }
    }
}

/// How likely so many of all are beyond a limit, or more, if one is with this chance.
fn at_least(beyond: usize, count: usize, chance: f64) -> f64 {
    let mut exactly = (1.0 - chance).powi(count as i32);
    let mut fewer = 0.0;
    for at in 0..beyond {
        fewer += exactly;
        exactly *= (count - at) as f64 / (at as f64 + 1.0) * chance / (1.0 - chance);
    }
    1.0 - fewer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(all: &[f64]) -> Times {
        Times::of_ms(all.to_vec())
    }

    #[test]
    fn a_bound_on_the_right_side_is_met_and_one_that_straddles_is_not_known() {
        let goal = Goal::at_most(&[(1.01, 0.0)]);
        let of = |ratios: &[f64]| goal.of_ratios(&times(ratios)).verdict();
        assert_eq!(of(&[0.98, 0.99, 1.0, 1.0, 1.01]), Verdict::Met);
        assert_eq!(of(&[0.98, 0.99, 1.0, 1.0, 1.02]), Verdict::NotKnown);
        assert_eq!(of(&[1.02, 1.03, 1.1, 1.2, 1.3]), Verdict::NotMet);
        assert_eq!(of(&[0.5; 4]), Verdict::NotKnown, "four tell too little");
        let least = |ratios: &[f64]| Goal::at_least(0.8).of_ratios(&times(ratios)).verdict();
        assert_eq!(least(&[0.8, 0.9, 0.9, 0.9, 0.9]), Verdict::Met);
        assert_eq!(least(&[0.7, 0.9, 0.9, 0.9, 0.9]), Verdict::NotKnown);
        assert_eq!(least(&[0.7; 5]), Verdict::NotMet);
    }

    #[test]
    fn the_larger_line_is_the_limit_and_a_baseline_that_scatters_counts_against_a_verdict() {
        let goal = Goal::at_most(&[(0.05, 0.0), (0.0, 20.0)]);
        assert_eq!((goal.limit(100.0), goal.limit(1_000.0)), (20.0, 50.0));
        assert_eq!(goal.counted(50.0, 1_000.0).verdict(), Verdict::Met);
        let steady = goal.of_middle(&times(&[40.0; 5]), &times(&[1_000.0; 5]));
        let scatters = goal.of_middle(&times(&[40.0; 5]), &times(&[600.0, 900.0, 1_000.0, 1_000.0, 1_000.0]));
        assert_eq!((steady.verdict(), scatters.verdict()), (Verdict::Met, Verdict::NotKnown));
        assert_eq!(steady.cell(1_000.0), "≤ 0.05 × or 20 = 50.0, p50: met");
        assert_eq!(Goal::at_most(&[(2.0, 250.0)]).text(), "≤ 2 × + 250");
    }

    #[test]
    fn a_goal_of_each_is_met_where_the_count_can_tell() {
        let goal = Goal::at_most(&[(1.0, 0.0)]);
        let of = |within: usize, beyond: usize| {
            let all = [vec![1.0; within], vec![2.0; beyond]].concat();
            goal.of_each(&times(&all), 1.0, None).verdict()
        };
        assert_eq!(of(299, 0), Verdict::Met, "0.99^299 = 0.0495");
        assert!(matches!(of(298, 0), Verdict::Held(share) if share < 0.99));
        assert_eq!((of(472, 1), of(471, 1)), (Verdict::Met, Verdict::NotKnown), "P(Bin(473, 0.01) ≤ 1) = 0.0498");
        assert_eq!(of(7, 1), Verdict::NotKnown, "one of eight is beyond p99 in 7.7 of a hundred cases");
        assert_eq!(of(6, 2), Verdict::NotMet);
        assert_eq!(of(0, 0), Verdict::NotKnown);
    }

    #[test]
    fn what_held_of_too_few_is_not_known_and_says_of_how_many_it_is() {
        let judged = Goal::at_most(&[(1.0, 0.0)]).of_each(&times(&[1.0; 8]), 1.0, None);
        assert_eq!(
            judged.cell(1.0),
            "≤ 1 × = 1.00, each: not known (held each time; at 95 % of 68 % of all)",
            "0.05^(1/8) = 0.688"
        );
        let json = judged.json(1.0);
        assert_eq!((&json["verdict"], &json["judged"]), (&json!("not known"), &json!("each")));
        assert!(json["held_of_at_least"].as_f64().is_some_and(|share| (share - 0.688).abs() < 1e-3));
    }

    #[test]
    fn what_is_beyond_anyhow_does_not_count() {
        let goal = Goal::at_most(&[(1.0, 0.0)]);
        let (beside, calm) = (times(&[1.0, 1.0, 1.0, 1.0, 2.0, 2.0]), times(&[1.0; 20]));
        let busy = times(&[1.0, 1.0, 2.0, 2.0, 1.0, 1.0]);
        assert_eq!(goal.of_each(&beside, 1.0, Some(&calm)).verdict(), Verdict::NotMet);
        assert_eq!(goal.of_each(&beside, 1.0, Some(&busy)).verdict(), Verdict::NotKnown);
        let of = |times: &Times, undisturbed: &[f64]| {
            goal.of_each(times, 1.0, Some(&Times::of_ms(undisturbed.to_vec()))).verdict()
        };
        assert_eq!(of(&beside, &[1.0; 6]), Verdict::NotKnown, "six that hold say little of how many do not");
        let one_of_six = times(&[1.0, 1.0, 1.0, 1.0, 1.0, 2.0]);
        let one_of_300 = [vec![1.0; 299], vec![2.0]].concat();
        assert_eq!(of(&one_of_six, &one_of_300), of(&one_of_six, &[1.0; 300]), "one of a hundred may be beyond anyhow");
    }
}
