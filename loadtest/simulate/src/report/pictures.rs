//! The pictures of a report: which lines are in which panel, in which unit. How lines are drawn is `figure.rs`; what they show, `series.rs`.

use super::Ran;
use super::figure::{Axis, Figure, Line, Panel, Plot, Style};
use super::lives::Life;
use super::scale::{Scale, unit_of_time};
use super::series::Moment;
use serde_json::Value;

/// What policies are compared by in bars: the figure's key, what it is, and its unit.
const BARS: [(&str, &str, &str); 8] = [
    ("mean_completion_s", "completion, mean", "s"),
    ("mean_queueing_s", "queueing, mean", "s"),
    ("p95_completion_s", "completion, p95", "s"),
    ("p99_completion_s", "completion, p99", "s"),
    ("utilization", "utilization", "share of the slot·time lent"),
    ("lost_slot_s", "slots held without a step that counted", "slot·s"),
    ("preemptions", "preemptions", "times that a job lost all its slots"),
    ("scalings", "scalings", "times that a job went on with another number of slots"),
];

/// Pixels: heights of plots that have the width of the page, that are beside another, and of a job.
const WIDE: f64 = 280.0;
const BESIDE: f64 = 120.0;
const LOW: f64 = 90.0;
const STRIP: f64 = 70.0;

/// Letters of a job's name that there is room for.
const NAME_LEN_MAX: usize = 16;

/// Slots by what they are for.
const TRAINING: Style = Style::nth(0).filled();
const HELD: Style = Style::nth(0);
const LENT: Style = Style::nth(6);
const NEEDED: Style = Style::nth(1);

/// The figures of policies beside each other.
#[must_use]
pub fn bars(documents: &[Value]) -> Figure {
    let panel = |(key, what, unit): &(&str, &str, &'static str)| {
        let bar = |(place, document): (usize, &Value)| {
            let name = document["policy"].as_str().unwrap_or_default().to_owned();
            (name, Style::nth(place), document[*key].as_f64())
        };
        let bars = documents.iter().enumerate().map(bar).collect();
        Panel { title: (*what).to_owned(), plot: Plot::Bars { unit, bars } }
    };
    Figure {
        name: "results",
        title: "Policies beside each other",
        about: "Times are of jobs that finished. Shorter is better, but for utilization.".to_owned(),
        legend: Vec::new(),
        columns: 2,
        panels: BARS.iter().map(panel).collect(),
    }
}

/// Everything that was drawn of one seed's run.
#[must_use]
pub fn of_run(ran: &[Ran]) -> Vec<Figure> {
    let span_s = ran.iter().map(|ran| ran.until_s).fold(0.0, f64::max);
    let figures = [completion(ran), waiting(ran, span_s), slots(ran, span_s), utilization(ran, span_s), jobs(ran)];
    figures.into_iter().filter(|figure| !figure.panels.is_empty()).collect()
}

fn completion(ran: &[Ran]) -> Figure {
    let of_all = || ran.iter().flat_map(|ran| &ran.completions).map(|(seconds, _)| *seconds);
    let (low, high) = (of_all().fold(f64::INFINITY, f64::min), of_all().fold(0.0, f64::max));
    let line = |(place, ran): (usize, &Ran)| {
        let ends = (high, ran.completions.last().map_or(0.0, |(_, share)| *share));
        let points = [(0.0, 0.0)].into_iter().chain(ran.completions.iter().copied()).chain([ends]).collect();
        Line { style: Style::nth(place), points }
    };
    let plot = Plot::Lines {
        height: WIDE,
        across: axis("from a job's submission to its last step, s", Scale::powers(low, high)),
        up: axis("share of all jobs", Scale::up_to(1.0)),
        lines: ran.iter().enumerate().map(line).collect(),
    };
    Figure {
        name: "completion",
        title: "How long jobs took",
        about: "The share of all jobs that had finished within so many seconds of their submission. A line further left is faster; one that does not reach 1 left jobs unfinished.".to_owned(),
        legend: policies(ran),
        columns: 1,
        panels: vec![Panel { title: String::new(), plot }],
    }
}

fn waiting(ran: &[Ran], span_s: f64) -> Figure {
    let (across, unit_s) = time(span_s);
    let most = of_moments(ran, |of| of.jobs_waiting);
    let line = |(place, ran): (usize, &Ran)| over_time(Style::nth(place), ran, unit_s, |of| of.jobs_waiting);
    let up = axis("jobs without a slot", Scale::counts(most));
    let plot = Plot::Lines { height: WIDE, across, up, lines: ran.iter().enumerate().map(line).collect() };
    Figure {
        name: "waiting",
        title: "Jobs that wait",
        about: "Jobs that have come and have no slot, whether they wait for their first one or lost all of them."
            .to_owned(),
        legend: policies(ran),
        columns: 1,
        panels: vec![Panel { title: String::new(), plot }],
    }
}

fn slots(ran: &[Ran], span_s: f64) -> Figure {
    let most = of_moments(ran, |of| of.slots_lent.max(of.slots_needed));
    let needs = of_moments(ran, |of| of.slots_needed) > 0.0;
    let panel = |ran: &Ran| {
        let (across, unit_s) = time(span_s);
        let line = |style, of: fn(&Moment) -> f64| over_time(style, ran, unit_s, of);
        let mut lines = vec![
            line(TRAINING, |of| of.slots_training),
            line(HELD, |of| of.slots_held),
            line(LENT, |of| of.slots_lent),
        ];
        lines.extend(needs.then(|| line(NEEDED, |of| of.slots_needed)));
        let up = axis("slots", Scale::counts(most));
        Panel { title: ran.policy.to_owned(), plot: Plot::Lines { height: BESIDE, across, up, lines } }
    };
    let mut legend = vec![
        (LENT, "lent".to_owned()),
        (HELD, "held: a process is on it".to_owned()),
        (TRAINING, "training: it makes steps".to_owned()),
    ];
    legend.extend(needs.then(|| (NEEDED, "needed by the fleets that serve".to_owned())));
    Figure {
        name: "slots",
        title: "Slots lent, held and needed",
        about: "Of the cluster and of all fleets together. Between held and training is what starting, copying, saving and leaving take; between lent and held is what nobody uses.".to_owned(),
        legend,
        columns: ran.len().min(2),
        panels: ran.iter().map(panel).collect(),
    }
}

fn utilization(ran: &[Ran], span_s: f64) -> Figure {
    let panel = |(place, ran): (usize, &Ran)| {
        let (across, unit_s) = time(span_s);
        let lines = vec![over_time(Style::nth(place).filled(), ran, unit_s, |of| of.utilization().unwrap_or_default())];
        let up = axis("share", Scale::up_to(1.0));
        Panel { title: ran.policy.to_owned(), plot: Plot::Lines { height: LOW, across, up, lines } }
    };
    Figure {
        name: "utilization",
        title: "Utilization",
        about: "The share of the slots lent in which steps are made.".to_owned(),
        legend: ran
            .iter()
            .enumerate()
            .map(|(place, ran)| (Style::nth(place).filled(), ran.policy.to_owned()))
            .collect(),
        columns: ran.len().min(2),
        panels: ran.iter().enumerate().map(panel).collect(),
    }
}

fn jobs(ran: &[Ran]) -> Figure {
    let strips = ran.iter().enumerate().flat_map(|(place, ran)| ran.lives.iter().map(move |life| strip(place, life)));
    Figure {
        name: "jobs",
        title: "What single jobs lived through",
        about: "Slots of the jobs that were asked for; where none were, of the longest job of each policy, of the one of median length and of the one that was preempted most often (or changed most often, where none was preempted); from its submission at the left to its end at the right. At 0 it waits.".to_owned(),
        legend: policies(ran),
        columns: ran.iter().map(|ran| ran.lives.len()).max().unwrap_or(1),
        panels: strips.collect(),
    }
}

fn strip(place: usize, life: &Life) -> Panel {
    let (unit, unit_s) = unit_of_time(life.completion_s);
    let end_s = life.unknown_from_s.unwrap_or(life.end_s);
    let last = life.sizes.last().map_or(0.0, |(_, slots)| f64::from(*slots));
    let changes = life.sizes.iter().map(|(at_s, slots)| (*at_s, f64::from(*slots)));
    let points = [(life.arrival_s, 0.0)].into_iter().chain(changes).chain([(end_s, last)]);
    let points: Vec<(f64, f64)> = points.map(|(at_s, slots)| ((at_s - life.arrival_s) / unit_s, slots)).collect();
    let most = points.iter().map(|(_, slots)| *slots).fold(1.0, f64::max);
    let line = |style| Line { style, points: points.clone() };
    let mut name: String = life.job.chars().take(NAME_LEN_MAX).collect();
    if name.len() < life.job.len() {
        name.push('…');
    }
    Panel {
        title: format!("{}, {}: {name}", life.policy, life.which),
        plot: Plot::Lines {
            height: STRIP,
            across: axis(&format!("since its submission, {unit}"), Scale::up_to(life.completion_s / unit_s)),
            up: axis("slots", Scale::counts(most)),
            lines: vec![line(Style::nth(place).filled()), line(Style::nth(place))],
        },
    }
}

fn axis(label: &str, scale: Scale) -> Axis {
    Axis { label: label.to_owned(), scale }
}

fn time(span_s: f64) -> (Axis, f64) {
    let (unit, unit_s) = unit_of_time(span_s);
    (axis(&format!("since the run began, {unit}"), Scale::up_to(span_s / unit_s)), unit_s)
}

fn policies(ran: &[Ran]) -> Vec<(Style, String)> {
    ran.iter().enumerate().map(|(place, ran)| (Style::nth(place), ran.policy.to_owned())).collect()
}

fn of_moments(ran: &[Ran], of: impl Fn(&Moment) -> f64) -> f64 {
    ran.iter().flat_map(|ran| &ran.moments).map(of).fold(0.0, f64::max)
}

/// The last moment holds until the run's end.
fn over_time(style: Style, ran: &Ran, unit_s: f64, of: impl Fn(&Moment) -> f64) -> Line {
    let end = ran.moments.last().map(|last| (ran.until_s / unit_s, of(last)));
    Line { style, points: ran.moments.iter().map(|moment| (moment.at_s / unit_s, of(moment))).chain(end).collect() }
}
