//! Which values bytes make: none that a request would be refused for, and all that could ever be given. What a service may be configured to
//! refuse, it refuses at its doors: a record that stands already is read by every later build, whatever its limits are.
#![allow(clippy::unwrap_used)]

use events_schema::batch::{from_bytes, to_bytes};
use events_schema::command::{Command, Demand, DemandSignal, OfferMode, SEQUENCE_MAX};
use events_schema::dataset::SampleShape;
use events_schema::{FleetId, ServerId, SlotId, TimeMs};

fn signal(sequence: u64, demand: Demand) -> DemandSignal {
    DemandSignal { fleet: FleetId::parse("chat").unwrap(), sequence, at: TimeMs(1), demand, trace: None }
}

#[test]
fn bytes_make_no_shape_that_would_be_refused() {
    let classified = |shape: &[u32], classes| SampleShape::Classified { shape: shape.to_vec(), classes };
    let tokens = |length, vocabulary| SampleShape::Tokens { length, vocabulary };
    for good in [classified(&[64], 10), classified(&[256, 256, 256], 2), classified(&[1; 4], 2), tokens(2, 2)] {
        assert_eq!(from_bytes::<SampleShape>(&to_bytes(&good)).unwrap(), good);
    }
    for bad in [
        classified(&[], 10),
        classified(&[0], 10),
        classified(&[1; 5], 10),
        classified(&[1_000_000; 4], 10),
        classified(&[64], 1),
        tokens(1, 65),
        tokens(129, 0),
    ] {
        let said = from_bytes::<SampleShape>(&to_bytes(&bad)).unwrap_err().to_string();
        assert!(said.contains("sample"), "{bad:?}: {said}");
    }
}

#[test]
fn bytes_make_no_signal_that_would_be_refused() {
    let utilization = |sum_milli, target_milli| Demand::Utilization { sum_milli, target_milli };
    for good in
        [signal(0, Demand::Needed(0)), signal(SEQUENCE_MAX, Demand::Needed(1_000_000)), signal(1, utilization(0, 50))]
    {
        assert_eq!(from_bytes::<DemandSignal>(&to_bytes(&good)).unwrap(), good);
    }
    for (bad, field) in [
        (signal(u64::MAX, Demand::Needed(1)), "sequence"),
        (signal(1, Demand::Needed(u32::MAX)), "needed"),
        (signal(1, utilization(u64::MAX, 800)), "utilization"),
        (signal(1, utilization(10, 0)), "target"),
    ] {
        let said = from_bytes::<DemandSignal>(&to_bytes(&bad)).unwrap_err().to_string();
        assert!(said.contains(&format!("`{field}`")), "{bad:?}: {said}");
    }
}

/// Deadlines, numbers of slots and the like are bounded where they are asked for, by limits that may change; what stands in a log is read.
#[test]
fn what_a_door_refuses_is_read_all_the_same() {
    let slot = |index| SlotId { server: ServerId::parse("host-1").unwrap(), index };
    let put = Command::PutFleet {
        fleet: FleetId::parse("chat").unwrap(),
        slots: (0..10_000).chain([u16::MAX]).map(slot).collect(),
        offers: OfferMode::Explicit,
        reclaim_deadline_ms: u64::MAX,
    };
    assert_eq!(from_bytes::<Command>(&to_bytes(&put)).unwrap(), put);
}
