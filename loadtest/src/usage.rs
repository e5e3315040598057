//! Who had which slots over a simulated run, as a picture: of each fleet what it needs, what it lends and what trains, and below the jobs
//! that waited. Pure.

use crate::chart::{Axis, Chart, Layer, Panel};

/// Colours: slots that train, that are lent, that a fleet needs; jobs that wait.
const TRAINS: &str = "#2563eb";
const LENT: &str = "#111827";
const NEEDED: &str = "#f59e0b";
const WAITING: &str = "#dc2626";

/// One fleet over time: when, and the value from then on.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FleetUsage {
    /// Its name.
    pub name: String,
    /// Its slots.
    pub slots: f64,
    /// Slots that it needs itself.
    pub needed: Vec<(f64, f64)>,
    /// Slots that it lends.
    pub lent: Vec<(f64, f64)>,
    /// Slots that train.
    pub training: Vec<(f64, f64)>,
}

/// The picture of a run of so many seconds.
#[must_use]
pub fn usage_svg(fleets: &[FleetUsage], waiting: &[(f64, f64)], seconds: f64) -> String {
    let mut panels: Vec<Panel> = fleets.iter().map(panel).collect();
    let most = waiting.iter().map(|(_, jobs)| *jobs).fold(1.0, f64::max);
    panels.push(Panel {
        title: vec![("jobs that wait".to_owned(), Some(WAITING))],
        axis: Axis::Whole(most.ceil()),
        layers: vec![Layer::steps(WAITING, waiting)],
    });
    Chart { seconds, panels, marks: Vec::new() }.svg()
}

fn panel(fleet: &FleetUsage) -> Panel {
    let mut title = vec![
        (format!("slots of {}: ", fleet.name), None),
        ("training".to_owned(), Some(TRAINS)),
        (", ".to_owned(), None),
        ("lent".to_owned(), Some(LENT)),
    ];
    let mut layers = vec![Layer::areas(TRAINS, &fleet.training), Layer::steps(LENT, &fleet.lent)];
    if fleet.needed.iter().any(|(_, needed)| *needed > 0.0) {
        title.extend([(", ".to_owned(), None), ("needed by the fleet".to_owned(), Some(NEEDED))]);
        layers.push(Layer::steps(NEEDED, &fleet.needed));
    }
    Panel { title, axis: Axis::Whole(fleet.slots.max(1.0)), layers }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_fleet_needs_is_drawn_only_where_it_needs_anything() {
        let lent = vec![(0.0, 4.0), (10.0, 4.0)];
        let of = |needed: f64| FleetUsage {
            name: "a".to_owned(),
            slots: 4.0,
            needed: vec![(0.0, needed), (10.0, needed)],
            lent: lent.clone(),
            training: lent.clone(),
        };
        let drawn = |needed| usage_svg(&[of(needed)], &[(0.0, 0.0)], 10.0);
        assert!(!drawn(0.0).contains(NEEDED) && drawn(2.0).contains(NEEDED));
        assert!(drawn(2.0).contains("jobs that wait") && !drawn(2.0).contains("NaN"));
    }
}
