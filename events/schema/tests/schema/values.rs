//! Which values may be given, and which are read: all that stands in a record, also what an earlier build let in and a door refuses today. The
//! rules of the doors apply where a value comes in and where it is decided upon, never where a record is decoded.

use events_schema::batch::{from_bytes, to_bytes};
use events_schema::command::{
    Command, Demand, DemandSignal, FORESEEN_MAX, FORESEEN_MS_MAX, Foreseen, OfferMode, SEQUENCE_MAX,
};
use events_schema::dataset::{DatasetInfo, SampleShape};
use events_schema::fact::Fact;
use events_schema::{DatasetName, Digest, FleetId, ServerId, SlotId, TimeMs};

fn signal(sequence: u64, demand: Demand) -> DemandSignal {
    DemandSignal::new(FleetId::parse("chat").unwrap(), sequence, TimeMs(1), demand)
}

fn registered(sample: SampleShape) -> Fact {
    let name = DatasetName::parse("d").unwrap();
    let dataset = DatasetInfo { name, sample, rows: 1, metadata_key: String::new(), metadata_digest: Digest::of(b"m") };
    Fact::DatasetRegistered { dataset }
}

#[test]
fn a_shape_that_would_be_refused_is_told_and_a_record_of_it_is_read() {
    let classified = |shape: &[u32], classes| SampleShape::Classified { shape: shape.to_vec(), classes };
    let tokens = |length, vocabulary| SampleShape::Tokens { length, vocabulary };
    for good in [classified(&[64], 10), classified(&[256, 256, 256], 2), classified(&[1; 4], 2), tokens(2, 2)] {
        assert_eq!(good.ensure_fit(), Ok(()));
        let fact = registered(good);
        assert_eq!(from_bytes::<Fact>(&to_bytes(&fact)).unwrap(), fact);
    }
    for (bad, field) in [
        // These were registered by builds that took a file at its word.
        (classified(&[64], 3_000_000), "sample.classes"),
        (classified(&[1_500_000], 10), "sample.shape"),
        (classified(&[1; 5], 10), "sample.shape"),
        // These never were.
        (classified(&[], 10), "sample.shape"),
        (classified(&[0], 10), "sample.shape"),
        (classified(&[1_000_000; 4], 10), "sample.shape"),
        (classified(&[64], 1), "sample.classes"),
        (tokens(1, 65), "sample.length"),
        (tokens(129, 0), "sample.vocabulary"),
    ] {
        assert_eq!(bad.ensure_fit().unwrap_err().0[0].field, field, "{bad:?}");
        let fact = registered(bad);
        assert_eq!(from_bytes::<Fact>(&to_bytes(&fact)).unwrap(), fact, "what stands in a log is read");
    }
}

#[test]
fn a_signal_that_would_be_refused_is_told_and_a_record_of_it_is_read() {
    let utilization = |sum_milli, target_milli| Demand::Utilization { sum_milli, target_milli };
    let good =
        [signal(0, Demand::Needed(0)), signal(SEQUENCE_MAX, Demand::Needed(1_000_000)), signal(1, utilization(0, 50))];
    let foresees = |later: &[(u64, u32)]| {
        let foreseen = later.iter().map(|&(in_ms, slots)| Foreseen { in_ms, slots }).collect();
        DemandSignal { forecast: Some(foreseen), ..signal(1, Demand::Needed(1)) }
    };
    let all: Vec<(u64, u32)> = (1..=FORESEEN_MAX as u64).map(|in_ms| (in_ms, 1)).collect();
    let one_more: Vec<(u64, u32)> = (1..=FORESEEN_MAX as u64 + 1).map(|in_ms| (in_ms, 1)).collect();
    let good = [&good[..], &[foresees(&all), foresees(&[(FORESEEN_MS_MAX, 1_000_000)])]].concat();
    let bad = [
        foresees(&[]),
        foresees(&one_more),
        foresees(&[(0, 1)]),
        foresees(&[(2, 1), (2, 2)]),
        foresees(&[(FORESEEN_MS_MAX + 1, 1)]),
        foresees(&[(1, u32::MAX)]),
        signal(u64::MAX, Demand::Needed(1)),
        signal(1, Demand::Needed(u32::MAX)),
        signal(1, utilization(u64::MAX, 800)),
        signal(1, utilization(10, 0)),
    ];
    for (signals, fit) in [(&good[..], true), (&bad, false)] {
        for signal in signals {
            assert_eq!(signal.is_fit(), fit, "{signal:?}");
            assert_eq!(&from_bytes::<DemandSignal>(&to_bytes(signal)).unwrap(), signal);
        }
    }
}

/// Deadlines, numbers of slots and the like are bounded where they are asked for, by limits that may change.
#[test]
fn what_a_limit_refuses_is_read_all_the_same() {
    let slot = |index| SlotId { server: ServerId::parse("host-1").unwrap(), index };
    let put = Command::PutFleet {
        fleet: FleetId::parse("chat").unwrap(),
        slots: (0..10_000).chain([u16::MAX]).map(slot).collect(),
        offers: OfferMode::Explicit,
        reclaim_deadline_ms: u64::MAX,
    };
    assert_eq!(from_bytes::<Command>(&to_bytes(&put)).unwrap(), put);
}
