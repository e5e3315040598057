//! Samples of what a fleet says beside its need.

use super::{Sample, fleet, sample};
use events_schema::TimeMs;
use events_schema::command::{Demand, DemandSignal, Foreseen, Slo};
use events_schema::fact::Fact;
use events_schema::fold::FoldVersion;

/// A signal that says how many, and nothing beside it.
pub fn signal() -> DemandSignal {
    DemandSignal::new(fleet(), 1_770_000_000_001, TimeMs(1_770_000_000_000), Demand::Needed(3))
}

/// All of them; a signal as it is without any.
pub fn all(signal: &DemandSignal) -> Vec<Sample> {
    let foreseen = vec![Foreseen { in_ms: 900_000, slots: 4 }, Foreseen { in_ms: 3_600_000, slots: 2 }];
    let (forecast, slo) = (Some(foreseen), Some(Slo { p99_ms: 310, limit_ms: 250 }));
    let foresees = DemandSignal { forecast: forecast.clone(), slo, ..signal.clone() };
    let accepted = Fact::DemandAccepted { fleet: fleet(), sequence: signal.sequence, needed: 3, forecast };
    let chosen = Fact::PolicyChosen {
        policy: "ebb".to_owned(),
        assumed_speeds: None,
        forecast_day_ms: Some(86_400_000),
        fold_version: Some(FoldVersion::NEWEST),
    };
    vec![
        sample("DemandSignal with forecast", &foresees),
        sample("Fact(foreseen)::DemandAccepted", &accepted),
        sample("Fact(fold version)::PolicyChosen", &chosen),
    ]
}
