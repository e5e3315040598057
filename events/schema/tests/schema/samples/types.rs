//! Samples of what says of which type slots are, and how fast a job is there.

use super::{Sample, full_document, sample, server};
use events_schema::Digest;
use events_schema::fact::Fact;
use events_schema::job::JobSpec;
use events_schema::report::Report;
use events_schema::slot_type::{SlotType, TypeTime};
use serde_json::json;

fn slot_type() -> Option<SlotType> {
    Some("v100-16gb".parse().unwrap())
}

/// What a job takes on two types.
pub fn times() -> Vec<TypeTime> {
    vec![TypeTime { slot_type: None, unit_us: 90_000 }, TypeTime { slot_type: slot_type(), unit_us: 36_700 }]
}

/// A spec of a job that may be on several types at once.
fn on_any() -> JobSpec {
    let mut document = full_document();
    document["types"] = json!("any");
    JobSpec::parse(&document).unwrap()
}

/// All that were added to what was there before.
pub fn all() -> Vec<Sample> {
    let (class, address, slot_type) = (Digest([0x66; 32]), "http://127.0.0.1:7002".to_owned(), slot_type());
    let (slots, guests, devices) = (4, false, Vec::new());
    let report = Report::AgentJoined {
        slots,
        class,
        address: address.clone(),
        devices: devices.clone(),
        quarantined: [].into(),
        guests,
        slot_type,
    };
    let (server, incarnation) = (server(), 12);
    let fact = Fact::AgentJoined { server, incarnation, slots, class, address, devices, guests, slot_type };
    vec![
        sample("Report(typed)::AgentJoined", &report),
        sample("Fact(typed)::AgentJoined", &fact),
        sample("JobSpec on any type", &on_any()),
    ]
}
