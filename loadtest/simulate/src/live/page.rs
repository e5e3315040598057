//! Replays as a section of a page: each policy's live run, the simulated one of the same input, and how far that is off. What the runs were is read
//! from the `run.json` of their reports.

use serde_json::Value;
use std::fmt::Write;

/// What replays are compared by: the figure's key, what it is, and its digits.
const COLUMNS: [(&str, &str, usize); 7] = [
    ("mean_completion_s", "completion, mean, s", 1),
    ("p95_completion_s", "completion, p95, s", 1),
    ("mean_queueing_s", "queueing, mean, s", 1),
    ("makespan_s", "makespan, s", 0),
    ("utilization", "utilization", 3),
    ("preemptions", "preemptions", 0),
    ("unmet_demand_slot_s", "unmet demand, slot·s", 1),
];

/// A replay: what its report's `run.json` says.
#[derive(Debug, Clone)]
pub struct Replayed(Value);

/// The document is of no replay.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it has not the two runs, `live` and simulated, that the `run.json` of an `ebb replay --report` has")]
pub struct NoReplay;

impl Replayed {
    /// What a `run.json` says, if that is of a replay.
    ///
    /// # Errors
    ///
    /// If it is not.
    pub fn parse(document: Value) -> Result<Self, NoReplay> {
        let policy = |run: usize| document["policies"][run]["policy"].as_str();
        let said = document["options"]["policy"].as_str();
        let is_replay = policy(0) == Some("live") && said.is_some() && policy(1).is_some_and(|name| name != "live");
        if is_replay { Ok(Self(document)) } else { Err(NoReplay) }
    }

    fn option(&self, name: &str) -> String {
        match &self.0["options"][name] {
            Value::String(text) => text.clone(),
            Value::Array(several) => several.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", "),
            Value::Number(number) => number.as_f64().map_or_else(|| number.to_string(), |number| number.to_string()),
            other => other.to_string(),
        }
    }

    fn row(&self) -> String {
        let mut text = format!("| `{}` |", self.option("policy"));
        for (key, _, digits) in COLUMNS {
            let [live, simulated] = [0, 1].map(|run| self.0["policies"][run][key].as_f64());
            let _ = match (live, simulated) {
                (Some(live), Some(simulated)) => write!(text, " {live:.digits$}; {simulated:.digits$} |"),
                _ => write!(text, " |"),
            };
        }
        let error = |key: &str| {
            let [live, simulated] = [0, 1].map(|run| self.0["policies"][run][key].as_f64());
            live.zip(simulated)
                .filter(|(live, _)| *live > 0.0)
                .map(|(live, simulated)| (simulated / live - 1.0) * 100.0)
        };
        let of_completion = error("mean_completion_s").map_or_else(String::new, |error| format!("{error:+.1} %"));
        text + &format!(" {of_completion} |\n")
    }
}

/// The section; nothing if there are none.
#[must_use]
pub fn section(replays: &[Replayed]) -> String {
    let Some(first) = replays.first() else { return String::new() };
    let jobs = |name: &str| first.0["options"]["jobs"][name].to_string().trim_matches('"').to_owned();
    let mut text = format!(
        "\n## Live replays\n\n{} jobs of `{}` on a running service, {} times faster than they were, with the demand `{}` (`ebb replay`, [simulator.md](simulator.md#against-a-running-service)). \
         Each figure is that of the live run; then the simulator's of the same input. The last column is how far the simulated mean completion is off.\n\n| policy |",
        jobs("count"),
        jobs("file"),
        first.option("speed_up"),
        first.option("demand"),
    );
    COLUMNS.iter().for_each(|(_, name, _)| text.push_str(&format!(" {name} |")));
    text.push_str(" error |\n|");
    text.push_str(&" --- |".repeat(COLUMNS.len() + 2));
    text.push('\n');
    replays.iter().for_each(|replay| text.push_str(&replay.row()));
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    #[test]
    fn a_replay_has_a_row_and_what_is_none_is_refused() {
        let run = |policy: &str, mean: f64| json!({"policy": policy, "mean_completion_s": mean, "preemptions": 3, "utilization": 0.5});
        let options = json!({"policy": "ebb", "speed_up": 180.0, "demand": ["chat=day.csv:rate"], "jobs": {"count": 40, "file": "jobs.csv"}});
        let replay =
            Replayed::parse(json!({"options": options, "policies": [run("live", 20.0), run("simulated", 21.0)]}));
        let page = section(&[replay.unwrap()]);
        assert!(
            page.contains("40 jobs of `jobs.csv` on a running service, 180 times faster")
                && page.contains("`chat=day.csv:rate`"),
            "{page}"
        );
        assert!(page.contains("| `ebb` | 20.0; 21.0 | | | | 0.500; 0.500 | 3; 3 | | +5.0 % |"), "{page}");
        let simulated = json!({"options": options, "policies": [run("ebb", 20.0), run("fifo", 21.0)]});
        assert_eq!(Replayed::parse(simulated).err(), Some(NoReplay));
        assert_eq!(section(&[]), "");
    }
}
