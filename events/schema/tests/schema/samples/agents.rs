//! Samples of what says what a server's slots are: devices, and with guest slots.

use super::{Sample, devices, sample, server};
use events_schema::Digest;
use events_schema::fact::Fact;
use events_schema::report::Report;

/// All that were added after the first.
pub fn all() -> Vec<Sample> {
    let (slots, class, incarnation) = (4, Digest([0x66; 32]), 12);
    let said = |address: &str, wrong: bool| Report::AgentJoined {
        slots,
        class,
        address: address.to_owned(),
        devices: devices(),
        quarantined: wrong.then(|| (0, "text".to_owned())).into_iter().collect(),
        guests: !wrong,
        slot_type: None,
    };
    let joined = |address: &str, guests| Fact::AgentJoined {
        server: server(),
        incarnation,
        slots,
        class,
        address: address.to_owned(),
        devices: devices(),
        guests,
        slot_type: None,
    };
    let (local, far) = ("http://127.0.0.1:7002", "http://10.0.0.1:7002");
    vec![
        sample("Report of an agent with devices", &said(local, true)),
        sample("Fact of an agent with devices", &joined(local, false)),
        sample("Report of an agent with guest slots", &said(far, false)),
        sample("Fact of an agent with guest slots", &joined(far, true)),
    ]
}
