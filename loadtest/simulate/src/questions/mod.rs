//! Questions that an operator has before anything is changed, each answered by running the same jobs several times: what is varied from run to
//! run (here), and what the figures of those runs say (`answer.rs`).
//!
//! A question varies one thing and leaves all others as they were, so each row can be had by itself from `ebb simulate run`.

mod answer;

pub use answer::{Answer, Ran, answer};

use crate::cluster::{Cluster, Group};
use crate::setup::{Demand, Setup};
use crate::slice::{JOBS_MAX, scaled, times_max};
use std::collections::BTreeSet;

/// What can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// How much other policies would have saved.
    Savings,
    /// How many slots of fleets that serve are worth lending.
    Lending,
    /// How many slots fleets have to keep back so that what they need is never missing.
    Headroom,
    /// How many more slots of the cluster it takes until no job misses its deadline.
    Deadlines,
    /// What becomes of it if more is needed, by fleets, by jobs, by both.
    Growth,
}

/// Why a question cannot be answered.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum QuestionError {
    /// Nobody lends anything.
    #[error("no fleet serves here, so nothing is lent; expected --inference and --demand")]
    NoFleets,
    /// No job has one.
    #[error("no job of the recording has a deadline; expected the column deadline_s in some row of it, or --deadlines")]
    NoDeadlines,
    /// Nothing to compare with.
    #[error("there is one policy; expected the one that there was, and after it those to compare with it")]
    OnePolicy,
    /// A number that makes no sense there.
    #[error("--at: {at} makes no sense here; expected {expected}")]
    At {
        /// As it was given.
        at: f64,
        /// What would be right.
        expected: &'static str,
    },
    /// More jobs than are simulated.
    #[error("--at: {at} would be {at} times {jobs} jobs, more than {JOBS_MAX}; expected {most} at most")]
    TooMany {
        /// As it was given.
        at: f64,
        /// As many as there are.
        jobs: usize,
        /// What would be right.
        most: f64,
    },
}

/// One of the runs that a question needs.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    /// What is special about it, in a word or two; the first column of the table.
    pub name: String,
    /// The same as a number, where it is one.
    pub at: Option<f64>,
    /// Which of the policies.
    pub policy: usize,
    change: Change,
}

/// What is other than it was.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Change {
    /// Nothing is.
    Nothing,
    /// At most so many slots of all fleets together are lent.
    Lent(u64),
    /// So many are kept back by all fleets together, beyond what they need.
    Kept(u64),
    /// So many slots more are in the cluster.
    More(u64),
    /// So many times as much is needed, by fleets and by jobs.
    Times { fleets: f64, jobs: f64 },
}

impl Case {
    /// What is run, of what there was.
    #[must_use]
    pub fn setup(&self, was: &Setup) -> Setup {
        match self.change {
            Change::Nothing => was.clone(),
            Change::Lent(slots) => lending(was.clone(), slots),
            Change::Kept(slots) => keeping(was.clone(), slots),
            Change::More(slots) => Setup { cluster: larger(was, slots), ..was.clone() },
            Change::Times { fleets, jobs } => coming(needing(was, fleets), jobs),
        }
    }
}

/// Shares of the fleets' slots that may be lent.
const LENT_SHARES: [f64; 7] = [0.0, 0.125, 0.25, 0.375, 0.5, 0.75, 1.0];
/// Shares of the fleets' slots that are kept back. Fine at the beginning: one step of demand is seldom more than an eighth of a fleet.
const KEPT_SHARES: [f64; 8] = [0.0, 0.03125, 0.0625, 0.125, 0.1875, 0.25, 0.375, 0.5];
/// Shares by which the cluster becomes larger.
const MORE_SHARES: [f64; 6] = [0.0, 0.125, 0.25, 0.5, 1.0, 2.0];
/// As many times as much is needed.
const GROWTH: [f64; 1] = [2.0];

impl Question {
    /// The runs that answer it under so many policies; `at` are the numbers to be tried, in the question's own measure, and without any those
    /// of the tables above.
    pub fn cases(self, setup: &Setup, policies: &[&str], at: &[f64]) -> Result<Vec<Case>, QuestionError> {
        match self {
            Self::Savings if policies.len() < 2 => return Err(QuestionError::OnePolicy),
            Self::Lending | Self::Headroom if setup.inference.slots_total() == 0 => {
                return Err(QuestionError::NoFleets);
            }
            Self::Deadlines if setup.jobs.iter().all(|job| job.deadline_ms.is_none()) => {
                return Err(QuestionError::NoDeadlines);
            }
            _ => {}
        }
        let (lent, slots) = (setup.inference.slots_total(), setup.cluster.slots_total());
        let case = |at: u64, change| Case { name: at.to_string(), at: Some(at as f64), policy: 0, change };
        let cases = |slots: BTreeSet<u64>, of: &dyn Fn(u64) -> Case| slots.into_iter().map(of).collect::<Vec<Case>>();
        Ok(match self {
            Self::Savings => {
                let named = |(policy, name): (usize, &&str)| Case {
                    name: (*name).to_owned(),
                    at: None,
                    policy,
                    change: Change::Nothing,
                };
                policies.iter().enumerate().map(named).collect()
            }
            Self::Lending => cases(whole(at, &LENT_SHARES, lent, lent)?, &|slots| case(slots, Change::Lent(slots))),
            Self::Headroom => cases(whole(at, &KEPT_SHARES, lent, lent)?, &|slots| case(slots, Change::Kept(slots))),
            Self::Deadlines => {
                let more = whole(at, &MORE_SHARES, slots, MORE_SLOTS_MAX)?;
                let of = |more| case(larger(setup, more).slots_total(), Change::More(more));
                let mut cases = cases(more, &of);
                // Servers are whole, so two numbers may have come to the same cluster.
                cases.dedup_by(|next, before| next.at == before.at);
                cases
            }
            Self::Growth => growth(setup, at)?,
        })
    }
}

/// Whole numbers of slots in order, none twice: those that were given, or shares of some.
fn whole(at: &[f64], shares: &[f64], of: u64, most: u64) -> Result<BTreeSet<u64>, QuestionError> {
    if at.is_empty() {
        return Ok(shares.iter().map(|share| (share * of as f64).round() as u64).collect());
    }
    let one = |at: f64| {
        let fits = at >= 0.0 && at.fract() == 0.0 && at <= most as f64;
        let wrong = QuestionError::At { at, expected: "whole numbers of slots, not more than there are" };
        if fits { Ok(at as u64) } else { Err(wrong) }
    };
    at.iter().map(|at| one(*at)).collect()
}

fn growth(setup: &Setup, at: &[f64]) -> Result<Vec<Case>, QuestionError> {
    let case = |name: String, at, change| Case { name, at: Some(at), policy: 0, change };
    let mut cases = vec![case("as it was".to_owned(), 1.0, Change::Nothing)];
    for times in if at.is_empty() { &GROWTH } else { at }.iter().copied() {
        if !(times > 0.0 && times <= GROWTH_MAX) {
            return Err(QuestionError::At { at: times, expected: "how many times as much is needed, up to 100" });
        }
        let (jobs, most) = (setup.jobs.len(), times_max(setup.jobs.len()));
        if times > most {
            return Err(QuestionError::TooMany { at: times, jobs, most });
        }
        let all = [("fleets", times, 1.0), ("jobs", 1.0, times), ("both", times, times)];
        let some = all.into_iter().filter(|(what, ..)| *what == "jobs" || setup.inference.slots_total() > 0);
        cases.extend(
            some.map(|(what, fleets, jobs)| case(format!("{what} × {times}"), times, Change::Times { fleets, jobs })),
        );
    }
    Ok(cases)
}

/// Most growth that is asked about: of a hundred times the largest public recording memory is full.
pub const GROWTH_MAX: f64 = 100.0;
/// Most slots more that are asked about: ten times the largest cell.
const MORE_SLOTS_MAX: u64 = 1_000_000;

/// With at most so many slots of all fleets together lent.
#[must_use]
pub fn lending(setup: Setup, slots: u64) -> Setup {
    of_each_fleet(setup, slots, |demand, slots| demand.lent_max = Some(slots))
}

/// With so many slots kept back by all fleets together, beyond what they need.
#[must_use]
pub fn keeping(setup: Setup, slots: u64) -> Setup {
    of_each_fleet(setup, slots, |demand, slots| demand.headroom = slots)
}

fn of_each_fleet(mut setup: Setup, slots: u64, set: impl Fn(&mut Demand, u32)) -> Setup {
    for (demand, slots) in setup.demand.iter_mut().zip(split(slots, &setup.inference)) {
        set(demand, u32::try_from(slots).unwrap_or(u32::MAX));
    }
    setup
}

/// Slots by the size of each group: what does not come out even goes to the first ones.
fn split(slots: u64, of: &Cluster) -> Vec<u64> {
    let all = of.slots_total().max(1);
    let mut before = 0;
    let mut until = |group: u64| {
        before += group;
        (slots * before).div_ceil(all)
    };
    let ends: Vec<u64> = of.groups.iter().map(|group| until(group.slots_total())).collect();
    ends.iter().scan(0, |begun, end| Some(end - std::mem::replace(begun, *end))).collect()
}

/// With so many slots more, as whole servers of the first kind; where nothing is lent all the time, of the first fleet's.
fn larger(setup: &Setup, more: u64) -> Cluster {
    let mut cluster = setup.cluster.clone();
    if cluster.groups.is_empty() {
        let like = setup.inference.groups.first();
        cluster.groups.extend(like.map(|group| Group { servers: 0, ..group.clone() }).filter(|_| more > 0));
    }
    if let Some(group) = cluster.groups.first_mut() {
        let servers = more.div_ceil(u64::from(group.slots).max(1));
        group.servers = group.servers.saturating_add(u32::try_from(servers).unwrap_or(u32::MAX));
    }
    cluster
}

/// Fleets that need so many times as much, as far as they have slots for it.
fn needing(setup: &Setup, times: f64) -> Setup {
    let mut setup = setup.clone();
    for (demand, group) in setup.demand.iter_mut().zip(&setup.inference.groups) {
        for (_, needed) in demand.signals.iter_mut().chain(&mut demand.curve) {
            *needed = (f64::from(*needed) * times).ceil().min(group.slots_total() as f64) as u32;
        }
    }
    setup
}

/// So many times as many jobs, each copy at the moment of the one it is a copy of: the times of day stay as they are.
#[must_use]
pub fn coming(mut setup: Setup, times: f64) -> Setup {
    setup.jobs = scaled(setup.jobs, times);
    setup
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::costs::Costs;
    use crate::curve::Tables;
    use crate::setup::{Shape, jobs};
    use crate::trace::{Format, parse};

    fn setup() -> Setup {
        let trace = parse("submitted_s,duration_s,workers\n0,100,4\n60,10,1\n90,10,1\n", Format::Csv).unwrap();
        let shape = Shape { min_share: 0.0, max_share: 1.0, step_ms: 500, speed_up: 1.0, goodput: false };
        let (jobs, _) = jobs(&trace, &Tables::default(), &shape, &Costs::none(), 0).unwrap();
        let mut setup = Setup::of_training_alone(jobs, "2x4:t4".parse().unwrap(), Costs::none(), 0);
        setup.inference = "2x4:t4,1x3:t4".parse().unwrap();
        setup.demand = vec![Demand::new(vec![(0, 2), (50, 7)], 100), Demand::new(vec![(0, 1)], 100)];
        setup
    }

    fn names(question: Question, at: &[f64]) -> Vec<String> {
        let cases = question.cases(&setup(), &["fifo", "ebb"], at).unwrap();
        cases.into_iter().map(|case| case.name).collect()
    }

    #[test]
    fn a_question_varies_one_thing() {
        assert_eq!(names(Question::Savings, &[]), ["fifo", "ebb"]);
        assert_eq!(names(Question::Lending, &[]), ["0", "1", "3", "4", "6", "8", "11"]);
        assert_eq!(names(Question::Headroom, &[2.0, 0.0, 2.0]), ["0", "2"]);
        assert_eq!(names(Question::Growth, &[]), ["as it was", "fleets × 2", "jobs × 2", "both × 2"]);
    }

    #[test]
    fn slots_are_split_by_size_and_none_is_lost() {
        let fleets: Cluster = "2x4:t4,1x3:t4".parse().unwrap();
        let splits: Vec<Vec<u64>> = [0, 1, 5, 11].map(|slots| split(slots, &fleets)).into();
        assert_eq!(splits, [[0, 0], [1, 0], [4, 1], [8, 3]]);
        let kept: Vec<u32> = keeping(setup(), 5).demand.iter().map(|demand| demand.headroom).collect();
        assert_eq!(kept, [4, 1]);
    }

    #[test]
    fn more_is_needed_as_far_as_there_are_slots_and_jobs_come_together_with_their_copies() {
        let needed: Vec<u32> = needing(&setup(), 1.5).demand[0].signals.iter().map(|(_, needed)| *needed).collect();
        assert_eq!(needed, [3, 8]);
        let moments = |times| coming(setup(), times).jobs.iter().map(|job| job.submitted_ms).collect::<Vec<_>>();
        assert_eq!(moments(2.0), [0, 0, 60_000, 60_000, 90_000, 90_000]);
        assert_eq!(moments(1.5), [0, 60_000, 60_000, 90_000]);
        assert_eq!(larger(&setup(), 5).slots_total(), 16);
        let lent = Setup { cluster: Cluster::default(), ..setup() };
        assert_eq!((larger(&lent, 5).to_string(), larger(&lent, 0).slots_total()), ("2x4:t4".to_owned(), 0));
    }

    #[test]
    fn what_cannot_be_asked_is_said() {
        let alone = Setup { inference: Cluster::default(), demand: Vec::new(), ..setup() };
        let error = |question: Question, setup: &Setup, at: &[f64]| {
            question.cases(setup, &["ebb"], at).map(|_| ()).unwrap_err().to_string()
        };
        assert!(error(Question::Lending, &alone, &[]).contains("--inference"));
        assert!(error(Question::Deadlines, &alone, &[]).contains("deadline_s"));
        assert!(error(Question::Savings, &alone, &[]).contains("one policy"));
        assert!(error(Question::Headroom, &setup(), &[12.0]).starts_with("--at: 12 makes no sense"));
        assert!(error(Question::Growth, &setup(), &[-1.0]).contains("how many times"));
        let large = Setup { jobs: vec![setup().jobs.remove(0); JOBS_MAX / 8], ..setup() };
        assert!(Question::Growth.cases(&large, &["ebb"], &[8.0]).is_ok());
        let said = error(Question::Growth, &large, &[8.1]);
        assert_eq!(said, "--at: 8.1 would be 8.1 times 125000 jobs, more than 1000000; expected 8 at most");
    }
}
