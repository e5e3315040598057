//! A run as a picture: of each fleet what it needs and what it has lent, and below the steps per second of the run's jobs. Pure.

use crate::chart::{Axis, Chart, Layer, Panel};
use crate::observe::Observer;

/// Colours: slots that jobs are on, what a fleet needs, steps.
const LENT: &str = "#2563eb";
const NEEDED: &str = "#f59e0b";
const STEPS: &str = "#111827";

/// The picture of a run of so many seconds.
#[must_use]
pub fn svg(observer: &Observer, seconds: f64) -> String {
    let (fleets, steps) = observer.lines();
    let mut panels: Vec<Panel> = fleets
        .iter()
        .map(|(name, lines)| Panel {
            title: vec![
                (format!("slots of {name}: "), None),
                ("needed by the fleet".to_owned(), Some(NEEDED)),
                (", ".to_owned(), None),
                ("lent, until they are free".to_owned(), Some(LENT)),
            ],
            axis: Axis::Whole(lines.slots.max(1) as f64),
            layers: vec![Layer::areas(LENT, &lines.lent), Layer::steps(NEEDED, &lines.needed)],
        })
        .collect();
    let most = steps.iter().map(|(_, value)| *value).fold(1.0, f64::max);
    panels.push(Panel {
        title: vec![("steps per second, of the run's jobs".to_owned(), None)],
        axis: Axis::Whole(most.ceil()),
        layers: vec![Layer::Line { colour: STEPS, points: steps.clone() }],
    });
    Chart { seconds, panels, marks: Vec::new() }.svg()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;
    use std::collections::BTreeSet;

    #[test]
    fn each_fleet_has_a_panel_and_all_jobs_one() {
        let mut observer = Observer::new(0, ["a".to_owned(), "b".to_owned()], BTreeSet::new());
        let slots = json!([{"slot": "local/0", "state": "borrowed"}]);
        let fleet = json!({"name": "a", "needed": 0, "slots": slots});
        observer.fleet(0, &serde_json::from_value(fleet).unwrap());
        observer.end(4_000);
        let svg = svg(&observer, 4.0);
        assert_eq!(svg.matches("slots of").count(), 2);
        assert_eq!(svg.matches(&format!(r#"fill="{LENT}"/>"#)).count(), 1, "{svg}");
        assert!(svg.contains("steps per second") && !svg.contains("NaN"));
    }
}
