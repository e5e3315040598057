//! What a scenario file says: fleets with their demand, job mixes with their arrivals, thresholds. Every field is validated by name.
//! Pure; the files that it names are read by `files.rs`.

use crate::report::{MEASURES, Stat, Threshold};
use events_schema::FleetId;
use events_schema::fields::{Fields, PROBLEMS_MAX, Problem, Problems, shown};
use gateway_api::DeclareFleet;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

/// Longest run: what a day says, a day of load says.
const DURATION_MAX: Duration = Duration::from_secs(24 * 3_600);
/// Fleets and job mixes of one scenario: each is a panel or a row for people.
const PARTS_MAX: usize = 32;
/// Steps of a demand that is written down by hand.
const STEPS_MAX: usize = 1_000;
/// Most jobs of one mix.
const JOBS_MAX: u64 = 100_000;

/// A scenario.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// What it is called, also in the names of its jobs.
    pub name: String,
    /// Of everything that is drawn by chance.
    pub seed: u64,
    /// How long signals and jobs are sent.
    pub duration: Duration,
    /// How long is waited afterwards for what is still on its way.
    pub drain: Duration,
    /// Whether its jobs go on afterwards; otherwise they are cancelled.
    pub keep_jobs: bool,
    /// Fleets, in the order in which they are declared.
    pub fleets: Vec<FleetLoad>,
    /// Job mixes.
    pub jobs: Vec<JobMix>,
    /// What has to hold.
    pub thresholds: Vec<Threshold>,
}

/// One fleet.
#[derive(Debug, Clone, PartialEq)]
pub struct FleetLoad {
    /// Its name.
    pub fleet: FleetId,
    /// How it is to be declared first, if it is.
    pub declare: Option<DeclareFleet>,
    /// What it needs over time.
    pub demand: Option<Demand>,
}

/// What a fleet needs over time.
#[derive(Debug, Clone, PartialEq)]
pub enum Demand {
    /// As recorded.
    Trace {
        /// CSV with a header.
        file: PathBuf,
        /// The column that is demand.
        column: String,
        /// Slots that its maximum needs.
        slots: u32,
        /// So many times faster than recorded.
        speed: f64,
        /// Where in the recording the run begins.
        from: Duration,
    },
    /// As written down, in order of time.
    Steps {
        /// From when on how many slots are needed.
        steps: Vec<(Duration, u32)>,
        /// They begin again after so long.
        repeat: Option<Duration>,
    },
}

/// Jobs of one kind.
#[derive(Debug, Clone, PartialEq)]
pub struct JobMix {
    /// What it is called.
    pub name: String,
    /// What is submitted.
    pub spec: Spec,
    /// When its jobs are submitted.
    pub arrivals: Arrivals,
    /// How many at most.
    pub most: u32,
}

/// Where a job's spec is.
#[derive(Debug, Clone, PartialEq)]
pub enum Spec {
    /// In a file beside the scenario.
    File(PathBuf),
    /// In the scenario.
    Inline(Value),
}

/// When jobs come.
#[derive(Debug, Clone, PartialEq)]
pub enum Arrivals {
    /// At equal distances, the first at once.
    Every(Duration),
    /// By chance, so many a minute on average, each independent of the others.
    PerMinute(f64),
    /// One at each time of a recording.
    Trace {
        /// CSV with a header.
        file: PathBuf,
        /// So many times faster than recorded.
        speed: f64,
    },
}

impl Scenario {
    /// Reads a document.
    pub fn parse(document: &Value) -> Result<Self, Problems> {
        let mut f = Fields::new("", document);
        let name = f.text_required("name", "a name such as two-fleets", label);
        let seed = f.integer("seed", 0..=u64::MAX).unwrap_or(0);
        let duration = f.text_required("duration", "how long it runs, such as 60s", |s| time(s, DURATION_MAX));
        let drain = f.text("drain", |s| time(s, DURATION_MAX)).unwrap_or(Duration::from_secs(30));
        let keep_jobs = f.boolean("keep_jobs").unwrap_or(false);
        let fleets = f.nested("fleets", |path, value| list(path, value, fleet)).unwrap_or_default();
        let jobs = f.nested("jobs", |path, value| list(path, value, mix)).unwrap_or_default();
        let thresholds = f.nested("thresholds", thresholds).unwrap_or_default();
        if fleets.is_empty() && jobs.is_empty() {
            f.wrong("fleets", "`fleets` or `jobs` or both: without them there is no load");
        }
        if let Some(twice) = twice(fleets.iter().map(|fleet| fleet.fleet.as_str())) {
            f.wrong("fleets", format!("each fleet once; `{twice}` stands there twice"));
        }
        if let Some(twice) = twice(jobs.iter().map(|mix| mix.name.as_str())) {
            f.wrong("jobs", format!("a name of its own for each mix; `{twice}` stands there twice"));
        }
        let parts = name.zip(duration);
        f.finish(parts.map(|(name, duration)| Self {
            name,
            seed,
            duration,
            drain,
            keep_jobs,
            fleets,
            jobs,
            thresholds,
        }))
    }
}

fn twice<'a>(names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let mut seen = BTreeSet::new();
    names.into_iter().find(|name| !seen.insert(*name))
}

fn label(text: &str) -> Result<String, String> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if (1..=24).contains(&text.len()) && text.chars().all(legal) {
        Ok(text.to_owned())
    } else {
        Err("1 to 24 letters, digits, '-', '_' and '.'".to_owned())
    }
}

fn time(text: &str, most: Duration) -> Result<Duration, String> {
    let parsed = humantime::parse_duration(text).ok().filter(|time| *time <= most);
    parsed.ok_or_else(|| format!("a time with its unit, at most {}: 500ms, 30s, 2h", humantime::format_duration(most)))
}

/// Each item of a list with its own parser, and all problems of all of them.
fn list<T>(path: &str, value: &Value, one: impl Fn(&str, &Value) -> Result<T, Problems>) -> Result<Vec<T>, Problems> {
    let expected = format!("a list of at most {PARTS_MAX}");
    let items = value.as_array().filter(|items| items.len() <= PARTS_MAX);
    let Some(items) = items else { return Err(wrong(path, value, &expected)) };
    let (mut good, mut problems) = (Vec::new(), Vec::new());
    for (index, item) in items.iter().enumerate() {
        match one(&format!("{path}[{index}]"), item) {
            Ok(item) => good.push(item),
            Err(part) => problems.extend(part.0),
        }
    }
    problems.truncate(PROBLEMS_MAX);
    if problems.is_empty() { Ok(good) } else { Err(Problems(problems)) }
}

fn wrong(path: &str, value: &Value, expected: &str) -> Problems {
    Problems(vec![Problem { field: path.to_owned(), value: shown(value), expected: expected.to_owned() }])
}

fn fleet(path: &str, value: &Value) -> Result<FleetLoad, Problems> {
    let mut f = Fields::new(path, value);
    let name =
        f.text_required("fleet", "the name of a fleet", |s| FleetId::parse(s).map_err(|e| e.expected.to_owned()));
    let body = "the body of PUT /v1/fleets/{fleet}: {servers: [{server: local, slots: 2}]}";
    let declare = f.nested("declare", |path, value| {
        let declared = serde_json::from_value::<DeclareFleet>(value.clone()).ok();
        // Read leniently it could leave something out that its writer meant.
        let whole = declared.filter(|declared| serde_json::to_value(declared).is_ok_and(|read| read == *value));
        whole.ok_or_else(|| wrong(path, value, body))
    });
    let demand = f.nested("demand", demand);
    f.finish(name.map(|fleet| FleetLoad { fleet, declare, demand }))
}

fn demand(path: &str, value: &Value) -> Result<Demand, Problems> {
    let mut f = Fields::new(path, value);
    let trace = f.nested("trace", demand_trace);
    let steps = f.nested("steps", steps);
    let repeat = f.text("repeat", |s| time(s, DURATION_MAX));
    if trace.is_some() == steps.is_some() && (f.raw("trace").is_some() == f.raw("steps").is_some()) {
        f.wrong("trace", "either `trace` or `steps`");
    }
    let last = steps.as_ref().and_then(|steps| steps.last()).map_or(Duration::ZERO, |(at, _)| *at);
    if repeat.is_some_and(|repeat| steps.is_none() || repeat <= last) {
        f.wrong("repeat", "a time behind the last of `steps`, after which they begin again");
    }
    f.finish(trace.or_else(|| steps.map(|steps| Demand::Steps { steps, repeat })))
}

fn demand_trace(path: &str, value: &Value) -> Result<Demand, Problems> {
    let mut f = Fields::new(path, value);
    let file = f.text_required("file", "a CSV file", path_of);
    let column = f.text_required("column", "the column that is demand", |s| Ok(s.to_owned()));
    let slots = f.integer_required("slots", 1..=100_000);
    let speed = f.number("speed", 1e-3..=1e6).unwrap_or(1.0);
    let from = f.text("from", |s| time(s, Duration::from_secs(366 * 86_400))).unwrap_or_default();
    let all = file.zip(column).zip(slots);
    f.finish(all.map(|((file, column), slots)| Demand::Trace { file, column, slots: slots as u32, speed, from }))
}

fn path_of(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() {
        Err("the path of a file, from the scenario's folder".to_owned())
    } else {
        Ok(PathBuf::from(text))
    }
}

fn steps(path: &str, value: &Value) -> Result<Vec<(Duration, u32)>, Problems> {
    let expected =
        format!("1 to {STEPS_MAX} steps in order of time, such as [{{at: 0s, needed: 0}}, {{at: 5s, needed: 2}}]");
    let Some(items) = value.as_array().filter(|items| (1..=STEPS_MAX).contains(&items.len())) else {
        return Err(wrong(path, value, &expected));
    };
    let mut steps: Vec<(Duration, u32)> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let mut f = Fields::new(&format!("{path}[{index}]"), item);
        let at = f.text_required("at", "a time such as 5s", |s| time(s, DURATION_MAX));
        let needed = f.integer_required("needed", 0..=1_000_000);
        if at.zip(steps.last()).is_some_and(|(at, (before, _))| at <= *before) {
            f.wrong("at", "a time behind the step before it");
        }
        steps.push(f.finish(at.zip(needed).map(|(at, needed)| (at, needed as u32)))?);
    }
    Ok(steps)
}

fn mix(path: &str, value: &Value) -> Result<JobMix, Problems> {
    let mut f = Fields::new(path, value);
    let name = f.text_required("name", "a name of its own", label);
    let spec = f.nested_required("spec", "a job's file, or a job", |path, value| match value {
        Value::String(file) if !file.is_empty() => Ok(Spec::File(PathBuf::from(file))),
        Value::Object(_) => Ok(Spec::Inline(value.clone())),
        other => Err(wrong(path, other, "the path of a job's file, or a job as in it")),
    });
    let arrivals = f.nested_required("arrivals", "{every: 10s}, {per_minute: 6} or {trace: {file, speed}}", arrivals);
    let most = f.integer("most", 1..=JOBS_MAX).unwrap_or(JOBS_MAX) as u32;
    let parts = name.zip(spec).zip(arrivals);
    f.finish(parts.map(|((name, spec), arrivals)| JobMix { name, spec, arrivals, most }))
}

fn arrivals(path: &str, value: &Value) -> Result<Arrivals, Problems> {
    let mut f = Fields::new(path, value);
    let every = f.text("every", |s| time(s, DURATION_MAX));
    let per_minute = f.number("per_minute", 1e-3..=1e5);
    let trace = f.nested("trace", |path, value| {
        let mut f = Fields::new(path, value);
        let file = f.text_required("file", "a CSV file with a time column", path_of);
        let speed = f.number("speed", 1e-3..=1e6).unwrap_or(1.0);
        f.finish(file.map(|file| Arrivals::Trace { file, speed }))
    });
    if every.is_some_and(|every| every < Duration::from_millis(1)) {
        f.wrong("every", "1ms or longer");
    }
    let given = [f.raw("every"), f.raw("per_minute"), f.raw("trace")].iter().filter(|value| value.is_some()).count();
    if given != 1 {
        f.wrong("every", "one of `every`, `per_minute` and `trace`");
    }
    f.finish(every.map(Arrivals::Every).or(per_minute.map(Arrivals::PerMinute)).or(trace))
}

fn thresholds(path: &str, value: &Value) -> Result<Vec<Threshold>, Problems> {
    let mut f = Fields::new(path, value);
    let mut all = Vec::new();
    for measure in MEASURES {
        let limits = f.nested(measure.name, |path, value| {
            let mut f = Fields::new(path, value);
            let stats: &[Stat] = if measure.counts { &[Stat::Max] } else { &Stat::ALL };
            let mut limits = Vec::new();
            for stat in stats {
                let limit = f.number(stat.name(), 0.0..=1e12);
                limits.extend(limit.map(|limit| Threshold { measure: measure.name, stat: *stat, limit }));
            }
            if limits.is_empty() {
                f.wrong(stats[0].name(), "a limit");
            }
            f.finish(Some(limits))
        });
        all.extend(limits.into_iter().flatten());
    }
    f.finish(Some(all))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parse(yaml: &str) -> Result<Scenario, Problems> {
        Scenario::parse(&serde_yaml_ng::from_str(yaml).unwrap())
    }

    const WHOLE: &str = "
name: two
seed: 3
duration: 60s
fleets:
  - fleet: local
    declare: {servers: [{server: local, slots: [0]}]}
    demand: {trace: {file: day.csv, column: rate, slots: 1, speed: 1440, from: 6h}}
  - fleet: chat
    demand: {steps: [{at: 0s, needed: 0}, {at: 5s, needed: 2}], repeat: 10s}
jobs:
  - {name: small, spec: digits.yaml, arrivals: {per_minute: 6}, most: 3}
thresholds:
  slot_return_ms: {p99: 2000, max: 5000}
  refused: {max: 0}
";

    #[test]
    fn everything_is_read() {
        let scenario = parse(WHOLE).unwrap();
        assert_eq!((scenario.fleets.len(), scenario.jobs.len(), scenario.thresholds.len()), (2, 1, 3));
        let Some(Demand::Trace { from, speed, .. }) = &scenario.fleets[0].demand else { panic!("a trace") };
        assert_eq!((*from, *speed), (Duration::from_secs(6 * 3_600), 1440.0));
        assert_eq!(scenario.jobs[0].arrivals, Arrivals::PerMinute(6.0));
    }

    #[test]
    fn every_mistake_is_named() {
        for (from, to, field, part) in [
            ("seed: 3", "sed: 3", "sed", "did you mean `seed`?"),
            ("duration: 60s", "duration: 60", "duration", "a text"),
            ("duration: 60s", "duration: 2d", "duration", "at most 1day"),
            ("fleet: chat", "fleet: local", "fleets", "`local` stands there twice"),
            ("fleet: chat", "fleet: Chat", "fleets[1].fleet", "a-z"),
            ("repeat: 10s", "repeat: 5s", "fleets[1].demand.repeat", "behind the last"),
            ("at: 5s", "at: 0s", "fleets[1].demand.steps[1].at", "behind the step before"),
            (
                "trace: {file: day.csv",
                "steps: [{at: 0s, needed: 1}], trace: {file: day.csv",
                "fleets[0].demand.trace",
                "either",
            ),
            ("{per_minute: 6}", "{per_minute: 6, every: 1s}", "jobs[0].arrivals.every", "one of"),
            ("{per_minute: 6}", "{}", "jobs[0].arrivals.every", "one of"),
            ("slot_return_ms", "slot_returns_ms", "thresholds.slot_returns_ms", "did you mean `slot_return_ms`?"),
            ("{max: 0}", "{p99: 0}", "thresholds.refused.p99", "no such field"),
            ("p99: 2000", "p99: -1", "thresholds.slot_return_ms.p99", "a number from 0"),
        ] {
            let problems = parse(&WHOLE.replacen(from, to, 1)).expect_err(to);
            let found = problems.0.iter().any(|p| p.field == field && p.expected.contains(part));
            assert!(found, "{to}: {problems}");
        }
        assert!(parse("name: x\nduration: 1s").is_err(), "no load at all");
    }
}
