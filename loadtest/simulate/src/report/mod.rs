//! A report of a run: a page that opens without a network, its pictures, and its figures as CSV and JSON. Text by the names of files; who
//! writes them is `infra/ebb/src/simulate_report.rs`. The same setup gives the same bytes, but for `run.json`, which has what a clock measured.
//!
//! What it keeps of a run is bounded ([`MOMENTS_MAX`] moments and [`LIVES_MAX`] jobs of each policy), but for `jobs.csv`, which has a row
//! for each job.
//!
//! Reading order: `series.rs` (a run over time), `lives.rs` (single jobs), `pictures.rs` (what is drawn), `figure.rs` and `scale.rs` (how),
//! `page.rs`.

pub(crate) mod figure;
mod lives;
mod page;
mod pictures;
mod scale;
mod series;

pub use figure::{Axis, Figure, Line, Panel, Plot, Style};
pub use lives::{LIVES_MAX, Life};
pub use page::{MARK, unfinished};
pub use scale::Scale;
pub use series::{MOMENTS_MAX, Moment};

use crate::outcome::{JOBS_HEADER, Outcome, is_measured};
use crate::setup::Setup;
use page::Page;
use serde_json::{Value, json};
use std::fmt::Write;

/// The page itself.
pub const PAGE: &str = "index.html";
/// Every file that a report may have.
pub const FILES: [&str; 11] = [
    PAGE,
    "run.json",
    "policies.csv",
    "jobs.csv",
    "timeline.csv",
    "results.svg",
    "completion.svg",
    "waiting.svg",
    "slots.svg",
    "utilization.svg",
    "jobs.svg",
];

/// A file's name, and what stands in it.
pub type File = (String, String);

/// What is kept of one policy's run.
#[derive(Debug, Clone)]
struct Ran {
    policy: &'static str,
    until_s: f64,
    completions: Vec<(f64, f64)>,
    moments: Vec<Moment>,
    lives: Vec<Life>,
}

/// The report of one seed's runs, a policy after the other.
#[derive(Debug, Clone, Default)]
pub struct Report {
    ran: Vec<Ran>,
    jobs_csv: String,
    asked_for: Vec<usize>,
}

impl Report {
    /// One that tells of these jobs, by their places in the setup, instead of those that it would choose.
    #[must_use]
    pub fn of_jobs(asked_for: Vec<usize>) -> Self {
        Self { asked_for, ..Self::default() }
    }

    /// Adds what became of the jobs under one more policy, best as [`crate::run_with_sizes`] says it: without sizes jobs have no strips.
    pub fn add(&mut self, setup: &Setup, outcome: &Outcome) {
        self.jobs_csv += &outcome.jobs_csv(setup);
        self.ran.push(Ran {
            policy: outcome.policy,
            until_s: outcome.until_ms as f64 / 1e3,
            completions: series::completions(outcome),
            moments: series::moments(outcome),
            lives: lives::lives(setup, outcome, &self.asked_for),
        });
    }

    /// All files. `document` is what the command prints of these runs.
    #[must_use]
    pub fn files(&self, document: &Value) -> Vec<File> {
        let mut figures = vec![pictures::bars(&documents(document))];
        figures.extend(pictures::of_run(&self.ran));
        let lives: Vec<Life> = self.ran.iter().flat_map(|ran| &ran.lives).cloned().collect();
        let rows = |ran: &Ran| ran.moments.iter().map(|of| of.csv(ran.policy)).collect::<String>();
        let timeline: String = self.ran.iter().map(rows).collect();
        let of = |ran: &Ran| json!({"policy": ran.policy, "timeline": ran.moments, "jobs_drawn": ran.lives});
        let mut detailed = document.clone();
        detailed["details"] = self.ran.iter().map(of).collect();
        let tables = [
            ("jobs.csv".to_owned(), JOBS_HEADER.to_owned() + &self.jobs_csv),
            ("timeline.csv".to_owned(), Moment::HEADER.to_owned() + &timeline),
        ];
        assembled(document, &detailed, &[], &figures, &lives, tables.into(), &[])
    }
}

/// The files over several seeds, whose own reports are in folders: the means, and what was compared in words.
#[must_use]
pub fn over_seeds(document: &Value, compared: &[String], folders: &[String]) -> Vec<File> {
    let figures = [pictures::bars(&documents(document))];
    let pages: Vec<String> = folders.iter().map(|folder| format!("{folder}/{PAGE}")).collect();
    assembled(document, document, compared, &figures, &[], Vec::new(), &pages)
}

/// What every report has, and what only this one has.
fn assembled(
    document: &Value,
    detailed: &Value,
    notes: &[String],
    figures: &[Figure],
    lives: &[Life],
    tables: Vec<File>,
    pages: &[String],
) -> Vec<File> {
    let mut files = vec![
        ("run.json".to_owned(), format!("{detailed:#}\n")),
        ("policies.csv".to_owned(), policies_csv(&documents(document))),
    ];
    files.extend(tables);
    files.extend(figures.iter().map(|figure| (format!("{}.svg", figure.name), figure.file())));
    let names: Vec<String> = files.iter().map(|(name, _)| name.clone()).chain(pages.iter().cloned()).collect();
    let page = Page { document, notes, figures, lives, files: &names };
    files.push((PAGE.to_owned(), page.html()));
    files
}

fn documents(document: &Value) -> Vec<Value> {
    document["policies"].as_array().cloned().unwrap_or_default()
}

/// A row for each policy, with every figure that is the same twice.
fn policies_csv(documents: &[Value]) -> String {
    let first = documents.first().and_then(Value::as_object);
    let keys: Vec<&str> = first.into_iter().flat_map(|first| first.keys().map(String::as_str)).collect();
    let keys: Vec<&str> = keys.into_iter().filter(|key| *key != "policy" && !is_measured(key)).collect();
    let mut text = ["policy"].iter().chain(&keys).copied().collect::<Vec<_>>().join(",") + "\n";
    for document in documents {
        text += document["policy"].as_str().unwrap_or_default();
        for key in &keys {
            text.push(',');
            match &document[*key] {
                Value::Null => {}
                list @ Value::Array(_) => drop(write!(text, "\"{}\"", list.to_string().replace('"', "\"\""))),
                figure => text += &figure.to_string(),
            }
        }
        text.push('\n');
    }
    text
}
