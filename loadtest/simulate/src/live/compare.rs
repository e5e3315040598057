//! A live run and the simulated one of the same input beside each other: figures by the names of `ebb simulate run`, and how far the simulated ones
//! are off.

use super::observe::Observed;
use crate::outcome::{Outcome, ROWS};
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// Figures of a simulated run that a live one does not have: nobody outside counts the controller's inputs and plans or times them, and a replay breaks
/// no server.
pub const LEFT_OUT: [&str; 8] = [
    "events",
    "plans",
    "decision_p50_ms",
    "decision_p99_ms",
    "event_mean_ms",
    "wall_s",
    "server_failures",
    "below_measured_sizes",
];

/// Columns of the table: names, and figures.
const NAME_WIDTH: usize = 24;
const FIGURE_WIDTH: usize = 12;

/// Both runs, and how far the simulated figures are off: (simulated − live) ÷ live, `null` where there is nothing to divide by; and the same of single
/// jobs' completions, without their signs.
#[must_use]
pub fn compared(live: &Observed, simulated: &Outcome, deadlines_ms: &[Option<u64>]) -> Value {
    let figures = |outcome: &Outcome| {
        let mut figures = outcome.figures(deadlines_ms);
        if let Some(figures) = figures.as_object_mut() {
            figures.retain(|key, _| !LEFT_OUT.contains(&key.as_str()));
        }
        figures
    };
    let (of_live, of_simulated) = (figures(&live.outcome), figures(simulated));
    let errors: Map<String, Value> = of_live
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(key, _)| *key != "policy")
        .map(|(key, live)| (key.clone(), json!(error(live.as_f64(), of_simulated[key].as_f64()))))
        .collect();
    let completions = live.outcome.jobs.iter().zip(&simulated.jobs);
    let completions =
        completions.filter_map(|(live, simulated)| Some((live.completion_ms()?, simulated.completion_ms()?)));
    let mut off: Vec<f64> = completions
        .filter_map(|(live, simulated)| error(Some(live as f64), Some(simulated as f64)))
        .map(f64::abs)
        .collect();
    off.sort_by(f64::total_cmp);
    let mean = (!off.is_empty()).then(|| off.iter().sum::<f64>() / off.len() as f64);
    json!({
        "live": of_live, "simulated": of_simulated, "error": errors, "left_out": LEFT_OUT, "notes": live.notes,
        "job_completion_error": {"jobs": off.len(), "mean": mean, "median": off.get(off.len() / 2), "largest": off.last()},
    })
}

fn error(live: Option<f64>, simulated: Option<f64>) -> Option<f64> {
    match (live?, simulated?) {
        (0.0, 0.0) => Some(0.0),
        (0.0, _) => None,
        (live, simulated) => Some((simulated - live) / live),
    }
}

/// The table of what [`compared`] gives.
#[must_use]
pub fn table(compared: &Value) -> String {
    let mut text = format!("{:NAME_WIDTH$}", "");
    for column in ["live", "simulated", "error, %"] {
        let _ = write!(text, "{column:>FIGURE_WIDTH$}");
    }
    let shown = |figure: Option<f64>, digits: usize| {
        let figure = figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.digits$}"));
        format!("{figure:>FIGURE_WIDTH$}")
    };
    for (name, key, digits) in ROWS.iter().filter(|(_, key, _)| !LEFT_OUT.contains(key)) {
        let figure = |of: &str| compared[of][*key].as_f64();
        let error = figure("error").map(|error| error * 100.0);
        let _ = write!(
            text,
            "\n{name:NAME_WIDTH$}{}{}",
            shown(figure("live"), *digits),
            shown(figure("simulated"), *digits)
        );
        text += &error.map_or_else(|| shown(None, 0), |error| format!("{error:>+FIGURE_WIDTH$.1}"));
    }
    let of_jobs = &compared["job_completion_error"];
    let percent =
        |key: &str| of_jobs[key].as_f64().map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", share * 100.0));
    let _ = write!(
        text,
        "\nof single jobs the completion is off by {} in the mean, {} in the median, {} at most",
        percent("mean"),
        percent("median"),
        percent("largest")
    );
    text + "\n"
}
