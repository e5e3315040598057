//! What the runs of a question say: a small table, and a sentence. The sentence names the numbers that it rests on, and says so where the
//! runs do not show what was asked.

use super::{Case, Question};
use crate::outcome::Outcome;
use crate::setup::Setup;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// A run that was made.
#[derive(Debug, Clone)]
pub struct Ran {
    /// What was special about it.
    pub case: Case,
    /// Its figures ([`Outcome::figures`]), `missed_deadlines`, those of them that no number of slots makes (`hopeless_deadlines`), and `sooner_percent`.
    pub figures: Value,
}

/// What is answered.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Answer {
    /// A run each: what is varied under its own name, and the figures of the table.
    pub rows: Vec<Value>,
    /// In words.
    pub answer: String,
    #[serde(skip)]
    columns: Vec<Column>,
}

/// A column of the table: how it is headed, the key of its figure, digits after the point.
type Column = (&'static str, &'static str, usize);

const MEAN: Column = ("mean, s", "mean_completion_s", 0);
const SAVED: Column = ("sooner, %", "sooner_percent", 1);
const P99: Column = ("p99, s", "p99_completion_s", 0);
const WAITED: Column = ("waited, s", "mean_queueing_s", 0);
const FINISHED: Column = ("finished", "finished", 0);
const LOST: Column = ("lost, slot·s", "lost_slot_s", 0);
const HARVESTED: Column = ("had, slot·s", "harvested_slot_s", 0);
const UNMET: Column = ("short, slot·s", "unmet_demand_slot_s", 1);
const RETURNED: Column = ("back p99, ms", "return_p99_ms", 0);
const PREEMPTED: Column = ("preempted", "preemptions", 0);
const MISSED: Column = ("missed", "missed_deadlines", 0);
const HOPELESS: Column = ("of them never", "hopeless_deadlines", 0);
const USED: Column = ("used", "utilization", 2);

/// Of what all slots together bring, so much is nearly all: what is beyond it costs as many slots as the first half did on curves that flatten.
const NEARLY_ALL: f64 = 0.9;
/// A job that is done sooner by less than so much is not done sooner: plans of another moment move more than that.
const NOTHING: f64 = 0.005;

const NAME_WIDTH: usize = 18;
const FIGURE_WIDTH: usize = 14;

impl Ran {
    /// Of what became of the jobs of a setup, with their deadlines.
    #[must_use]
    pub fn of(case: Case, setup: &Setup, outcome: &Outcome) -> Self {
        let deadlines_ms: Vec<Option<u64>> = setup.jobs.iter().map(|job| job.deadline_ms).collect();
        let mut figures = outcome.figures(&deadlines_ms);
        let missed = outcome.jobs.iter().zip(&setup.jobs).filter(|(of, job)| {
            let done = of.completion_ms().map(|took| of.submitted_ms + took);
            job.deadline_ms.is_some_and(|deadline| done.is_none_or(|at| at > deadline))
        });
        let (mut all, mut hopeless) = (0, 0);
        for (_, job) in missed {
            let soonest_ms = setup.soonest_ms(job).map(|ms| job.submitted_ms + ms);
            all += 1;
            // Who finds no slot that it can use is never done.
            hopeless += usize::from(soonest_ms.is_none_or(|soonest_ms| job.deadline_ms < Some(soonest_ms)));
        }
        (figures["missed_deadlines"], figures["hopeless_deadlines"]) = (Value::from(all), Value::from(hopeless));
        Self { case, figures }
    }

    fn number(&self, key: &str) -> f64 {
        self.figures[key].as_f64().unwrap_or(f64::NAN)
    }

    fn mean_s(&self) -> f64 {
        self.number("mean_completion_s")
    }

    fn has_deadlines(&self) -> bool {
        self.figures["deadline_attainment"].is_number()
    }

    /// By what share of another one's its jobs are done sooner in the mean.
    fn sooner(&self, than: &Self) -> f64 {
        1.0 - self.mean_s() / than.mean_s()
    }
}

impl Question {
    /// What is varied, as a key and as the head of its column.
    fn varied(self) -> (&'static str, &'static str) {
        match self {
            Self::Savings => ("policy", "policy"),
            Self::Lending => ("lent_slots_max", "slots lent at most"),
            Self::Headroom => ("headroom_slots", "slots kept back"),
            Self::Deadlines => ("cluster_slots", "slots in all"),
            Self::Growth => ("needed", "needed"),
        }
    }

    fn columns(self, ran: &[Ran]) -> Vec<Column> {
        let mut columns = match self {
            Self::Savings => vec![MEAN, SAVED, P99, WAITED, LOST],
            Self::Lending => vec![MEAN, SAVED, HARVESTED, LOST, PREEMPTED, UNMET],
            Self::Headroom => vec![UNMET, RETURNED, HARVESTED, MEAN],
            Self::Deadlines => vec![MISSED, MEAN, USED],
            Self::Growth => vec![MEAN, P99, WAITED, USED, HARVESTED, UNMET],
        };
        if self != Self::Deadlines && ran.iter().any(Ran::has_deadlines) {
            columns.push(MISSED);
        }
        if ran.iter().any(|ran| ran.number("hopeless_deadlines") > 0.0) {
            let after = columns.iter().position(|column| *column == MISSED).map_or(columns.len(), |at| at + 1);
            columns.insert(after, HOPELESS);
        }
        // Where all of them are done it says nothing.
        if !same_jobs(ran) {
            columns.insert(0, FINISHED);
        }
        columns
    }
}

/// Whether all runs finished as many jobs as they had.
fn same_jobs(ran: &[Ran]) -> bool {
    ran.iter().all(|ran| ran.figures["finished"] == ran.figures["jobs"])
}

/// What the runs of a question say; the first is the one that others are compared with.
#[must_use]
pub fn answer(question: Question, mut ran: Vec<Ran>) -> Answer {
    let first = ran.first().cloned();
    for of in &mut ran {
        let sooner = first.as_ref().map(|first| of.sooner(first) * 100.0);
        of.figures["sooner_percent"] = Value::from(sooner.filter(|sooner| sooner.is_finite()));
    }
    let columns = question.columns(&ran);
    let row = |ran: &Ran| {
        let what = if question == Question::Growth || ran.case.at.is_none() {
            Value::from(ran.case.name.clone())
        } else {
            Value::from(ran.case.at.map(|at| at as u64))
        };
        let figures = columns.iter().map(|(_, key, _)| ((*key).to_owned(), ran.figures[*key].clone()));
        Value::Object(std::iter::once((question.varied().0.to_owned(), what)).chain(figures).collect::<Map<_, _>>())
    };
    let mut said = match (question, &ran[..]) {
        (_, []) => "nothing was run".to_owned(),
        (Question::Savings, [was, others @ ..]) => savings(was, others),
        (Question::Lending, [none, .., all]) if none.case.at == Some(0.0) => lending(none, &ran, all),
        (Question::Lending, _) => "to say what lending is worth it takes 0 and another number in --at".to_owned(),
        (Question::Headroom, [least, ..]) => headroom(least, &ran),
        (Question::Deadlines, [least, ..]) => deadlines(least, &ran),
        (Question::Growth, [was, more @ ..]) => growth(was, more),
    };
    if !same_jobs(&ran) {
        said += " Means are of finished jobs, and not all of them could run in every row.";
    }
    Answer { rows: ran.iter().map(row).collect(), answer: said, columns: with_name(question, columns) }
}

/// The column of what is varied is the first.
fn with_name(question: Question, columns: Vec<Column>) -> Vec<Column> {
    let (key, head) = question.varied();
    std::iter::once((head, key, 0)).chain(columns).collect()
}

impl Answer {
    /// For people.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = String::new();
        for (at, (head, ..)) in self.columns.iter().enumerate() {
            let _ = if at == 0 { write!(text, "{head:NAME_WIDTH$}") } else { write!(text, "{head:>FIGURE_WIDTH$}") };
        }
        for row in &self.rows {
            for (at, (_, key, digits)) in self.columns.iter().enumerate() {
                let of = &row[*key];
                let shown = match of.as_f64() {
                    Some(figure) => format!("{figure:.digits$}"),
                    None => of.as_str().unwrap_or("-").to_owned(),
                };
                let _ = if at == 0 {
                    write!(text, "\n{shown:NAME_WIDTH$}")
                } else {
                    write!(text, "{shown:>FIGURE_WIDTH$}")
                };
            }
        }
        text + "\n"
    }

    /// For programs.
    #[must_use]
    pub fn document(&self) -> Value {
        json!(self)
    }
}

fn savings(was: &Ran, others: &[Ran]) -> String {
    let told = |of: &Ran| {
        let (name, jobs) = (&of.case.name, of.number("finished"));
        let sooner = of.sooner(was);
        let beside = format!("{:.0} s in the mean instead of {:.0} s", of.mean_s(), was.mean_s());
        let lost_h = (of.number("lost_slot_s") - was.number("lost_slot_s")) / 3_600.0;
        let hours = (was.mean_s() - of.mean_s()).abs() * jobs / 3_600.0;
        let saves = match sooner {
            sooner if sooner > NOTHING => {
                format!(
                    "would have saved {:.0} % of the time to a result, {hours:.1} hours of all jobs",
                    sooner * 100.0
                )
            }
            sooner if sooner < -NOTHING => {
                format!("would have cost {:.0} % more time to a result, {hours:.1} hours of all jobs", -sooner * 100.0)
            }
            _ => "would have saved nothing".to_owned(),
        };
        let more = if lost_h < 0.0 { "less" } else { "more" };
        format!("{name} {saves} ({beside}), and {:.1} slot·hours {more} were lost to starts and moves.", lost_h.abs())
    };
    format!("Beside {}: {}", was.case.name, others.iter().map(told).collect::<Vec<_>>().join(" "))
}

fn lending(none: &Ran, ran: &[Ran], all: &Ran) -> String {
    // The most that is saved need not be with all slots: who is moved often is slowed down.
    let best = ran.iter().max_by(|a, b| a.sooner(none).total_cmp(&b.sooner(none))).unwrap_or(all);
    let most = best.sooner(none);
    if most.is_nan() || most <= NOTHING {
        return "Lending is not worth the trouble: with it jobs are not done sooner.".to_owned();
    }
    let enough = ran.iter().find(|ran| ran.sooner(none) >= NEARLY_ALL * most).unwrap_or(best);
    let percent = |of: &Ran| of.sooner(none) * 100.0;
    let mut said = format!(
        "Lending at most {} is worth the trouble: jobs are done {:.0} % sooner than with none ({:.0} s in the mean instead of {:.0} s), which is {:.0} % of the most that lending brings here",
        enough.case.name,
        percent(enough),
        enough.mean_s(),
        none.mean_s(),
        enough.sooner(none) / most * 100.0
    );
    if enough.case.at < all.case.at {
        let _ = write!(
            said,
            "; all {} make it {:.0} %, with preemptions {} instead of {}",
            all.case.name,
            percent(all),
            all.figures["preemptions"],
            enough.figures["preemptions"]
        );
    }
    said + "."
}

fn headroom(least: &Ran, ran: &[Ran]) -> String {
    let short = |ran: &Ran| ran.number("unmet_demand_slot_s");
    let back = |ran: &Ran| match ran.figures["return_p99_ms"].as_u64() {
        Some(ms) => format!("99 of 100 slots that jobs were on were back within {ms} ms"),
        None => "no job was on a slot that was wanted back".to_owned(),
    };
    match ran.iter().find(|ran| short(ran) == 0.0) {
        Some(enough) if enough.case.at == least.case.at => format!(
            "With a headroom of {} fleets never lacked a slot that they needed, not for a moment: no more is wanted.",
            enough.case.name
        ),
        Some(enough) => {
            let cost = 1.0 - enough.number("harvested_slot_s") / least.number("harvested_slot_s");
            format!(
                "With a headroom of {} fleets never lack a slot that they need, not for a moment. That costs {:.0} % of what jobs have of them, and jobs are done after {:.0} s in the mean instead of {:.0} s. With {} they lack {:.1} slot·s in all; {}.",
                enough.case.name,
                cost * 100.0,
                enough.mean_s(),
                least.mean_s(),
                least.case.name,
                short(least),
                back(least)
            )
        }
        None => {
            let fewest = ran.iter().min_by(|a, b| short(a).total_cmp(&short(b))).unwrap_or(least);
            format!(
                "None of these is enough: with a headroom of {} fleets still lack {:.1} slot·s of those that they need; {}. More can be tried with --at.",
                fewest.case.name,
                short(fewest),
                back(fewest)
            )
        }
    }
}

fn deadlines(least: &Ran, ran: &[Ran]) -> String {
    let missed = |ran: &Ran| ran.number("missed_deadlines") - ran.number("hopeless_deadlines");
    let hopeless = least.number("hopeless_deadlines");
    // What cannot be made on any number of slots is no reason for more of them.
    let which = if hopeless > 0.0 { "a deadline that it could make" } else { "its deadline" };
    let mut said = match ran.iter().find(|ran| missed(ran) == 0.0) {
        Some(enough) if enough.case.at == least.case.at => {
            format!("With {} slots no job misses {which}: no more are needed.", enough.case.name)
        }
        Some(enough) => format!(
            "{} slots are the fewest of these with which no job misses {which}; {:.0} % of them are in use in the mean. With {} slots {} jobs do.",
            enough.case.name,
            enough.number("utilization") * 100.0,
            least.case.name,
            missed(least)
        ),
        None => {
            let fewest = ran.iter().min_by(|a, b| missed(a).total_cmp(&missed(b))).unwrap_or(least);
            let (slots, left) = (&fewest.case.name, missed(fewest));
            let jobs = if left == 1.0 { "job still misses" } else { "jobs still miss" };
            format!("None of these is enough: with {slots} slots {left} {jobs} {which}. More can be tried with --at.")
        }
    };
    if hopeless > 0.0 {
        let jobs = if hopeless == 1.0 { "job has" } else { "jobs have" };
        let _ = write!(
            said,
            " {hopeless} {jobs} less time than they would take alone, on the slots that they are fastest on: no number of slots helps them."
        );
    }
    said
}

fn growth(was: &Ran, more: &[Ran]) -> String {
    let told = |of: &Ran| {
        let later = of.mean_s() / was.mean_s();
        let harvested = of.number("harvested_slot_s") / was.number("harvested_slot_s");
        let mut said = match later {
            later if later > 1.0 + NOTHING => format!("{}: jobs take {later:.2} times as long", of.case.name),
            later if later < 1.0 - NOTHING => {
                format!("{}: jobs take {:.0} % less", of.case.name, (1.0 - later) * 100.0)
            }
            _ => format!("{}: jobs take as long as before", of.case.name),
        };
        if harvested.is_finite() {
            let _ = write!(said, " and have {:.0} % of the slot·time that fleets lent them before", harvested * 100.0);
        }
        if of.has_deadlines() {
            let _ = write!(
                said,
                ", {} deadlines are missed instead of {}",
                of.figures["missed_deadlines"], was.figures["missed_deadlines"]
            );
        }
        said
    };
    more.iter().map(told).collect::<Vec<_>>().join("; ") + "."
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::costs::Costs;
    use crate::curve::Tables;
    use crate::questions::Change;
    use crate::setup::{Shape, jobs};
    use crate::trace::{Format, parse};
    use controller_core::policy_by_name;

    fn ran(name: &str, figures: Value) -> Ran {
        let mut all = json!({"jobs": 10, "finished": 10, "deadline_attainment": null, "return_p99_ms": 69});
        if let (Some(all), Value::Object(figures)) = (all.as_object_mut(), figures) {
            all.extend(figures);
        }
        let at = name.parse().ok();
        Ran { case: Case { name: name.to_owned(), at, policy: 0, change: Change::Nothing }, figures: all }
    }

    fn lent(name: &str, mean_s: f64) -> Ran {
        ran(name, json!({"mean_completion_s": mean_s, "preemptions": 3, "lost_slot_s": 0.0}))
    }

    #[test]
    fn lending_is_worth_as_many_slots_as_bring_nearly_all_of_it() {
        let found = answer(Question::Lending, vec![lent("0", 100.0), lent("4", 63.0), lent("8", 60.0)]);
        assert!(
            found.answer.starts_with("Lending at most 4 is worth the trouble: jobs are done 37 % sooner"),
            "{found:?}"
        );
        assert!(found.answer.contains("all 8 make it 40 %"), "{found:?}");
        assert_eq!(found.rows[1]["lent_slots_max"], 4);
        assert_eq!(found.rows[1]["sooner_percent"], 37.0);
        let found = answer(Question::Lending, vec![lent("0", 100.0), lent("4", 99.9), lent("8", 120.0)]);
        assert!(found.answer.contains("is not worth the trouble"), "{found:?}");
        let found = answer(Question::Lending, vec![lent("2", 100.0)]);
        assert!(found.answer.contains("0 and another number in --at"), "{found:?}");
    }

    #[test]
    fn headroom_is_the_least_that_leaves_nothing_missing() {
        let of = |name, short: f64, had: f64| {
            ran(name, json!({"mean_completion_s": 1.0, "unmet_demand_slot_s": short, "harvested_slot_s": had}))
        };
        let found = answer(Question::Headroom, vec![of("0", 1.5, 100.0), of("1", 0.0, 80.0), of("2", 0.0, 70.0)]);
        assert!(found.answer.starts_with("With a headroom of 1") && found.answer.contains("costs 20 %"), "{found:?}");
        let found = answer(Question::Headroom, vec![of("0", 1.5, 100.0), of("1", 0.5, 80.0)]);
        assert!(found.answer.starts_with("None of these is enough: with a headroom of 1"), "{found:?}");
        let found = answer(Question::Headroom, vec![of("0", 0.0, 100.0), of("1", 0.0, 80.0)]);
        assert!(found.answer.contains("no more is wanted"), "{found:?}");
    }

    /// One that could be made with more slots, one that is shorter than its job, one of a job that finds no slot which it can use.
    #[test]
    fn what_no_number_of_slots_makes_is_counted_apart() {
        let text = "submitted_s,duration_s,workers,slot_type,deadline_s\n0,100,4,t4,110\n0,100,4,t4,110\n0,100,4,t4,50\n0,100,4,p100,500\n";
        let shape = Shape { min_share: 1.0, max_share: 1.0, step_ms: 500, speed_up: 1.0, goodput: false };
        let (jobs, _) =
            jobs(&parse(text, Format::Csv).unwrap(), &Tables::default(), &shape, &Costs::none(), 0).unwrap();
        let setup = Setup::of_training_alone(jobs, "1x4:t4".parse().unwrap(), Costs::none(), 0);
        let outcome = crate::run(&setup, policy_by_name("fifo").unwrap().as_ref(), &mut || 0);
        let case = Case { name: "4".to_owned(), at: Some(4.0), policy: 0, change: Change::Nothing };
        let ran = Ran::of(case, &setup, &outcome);
        assert_eq!((ran.number("missed_deadlines"), ran.number("hopeless_deadlines")), (3.0, 2.0));
    }

    #[test]
    fn deadlines_are_counted_and_told() {
        let hopeful = |name, missed: u64, hopeless: u64| {
            let missed = json!({"missed_deadlines": missed, "hopeless_deadlines": hopeless});
            let mut ran = ran(name, json!({"deadline_attainment": 0.5, "utilization": 0.25}));
            if let (Some(all), Value::Object(missed)) = (ran.figures.as_object_mut(), missed) {
                all.extend(missed);
            }
            ran
        };
        let of = |name, missed| hopeful(name, missed, 0);
        let found = answer(Question::Deadlines, vec![of("8", 6), of("12", 1), of("16", 0)]);
        assert!(
            found.answer.starts_with("16 slots are the fewest") && found.answer.contains("With 8 slots 6"),
            "{found:?}"
        );
        let found = answer(Question::Deadlines, vec![of("8", 6), of("12", 1)]);
        assert!(found.answer.contains("with 12 slots 1 job still misses its deadline"), "{found:?}");
        assert!(!found.table().contains("never"), "{found:?}");
        let found = answer(Question::Deadlines, vec![hopeful("8", 6, 2), hopeful("12", 2, 2)]);
        assert!(
            found
                .answer
                .starts_with("12 slots are the fewest of these with which no job misses a deadline that it could make"),
            "{found:?}"
        );
        assert!(
            found.answer.contains("With 8 slots 4 jobs do. 2 jobs have less time than they would take alone"),
            "{found:?}"
        );
        assert!(found.table().contains("of them never"), "{found:?}");
    }

    #[test]
    fn a_policy_saves_or_costs_and_a_table_has_a_row_for_each() {
        let of = |name, mean_s: f64| {
            ran(name, json!({"mean_completion_s": mean_s, "lost_slot_s": mean_s * 36.0, "mean_queueing_s": null}))
        };
        let found = answer(Question::Savings, vec![of("fifo", 3_600.0), of("ebb", 1_800.0), of("afs", 5_400.0)]);
        assert!(found.answer.contains("ebb would have saved 50 % of the time to a result, 5.0 hours"), "{found:?}");
        assert!(found.answer.contains("18.0 slot·hours less"), "{found:?}");
        assert!(found.answer.contains("afs would have cost 50 % more"), "{found:?}");
        let table = found.table();
        assert_eq!(table.lines().count(), 4, "{table}");
        assert!(table.contains("fifo") && table.contains('-') && table.contains("50.0"), "{table}");
    }

    #[test]
    fn that_not_all_jobs_could_run_is_said() {
        let mut few = lent("0", 100.0);
        few.figures["finished"] = Value::from(7);
        let found = answer(Question::Growth, vec![lent("as it was", 100.0), few]);
        assert!(found.answer.contains("not all of them could run"), "{found:?}");
        assert!(found.answer.contains("0: jobs take as long as before"), "{found:?}");
        assert!(found.table().contains("finished"));
    }
}
