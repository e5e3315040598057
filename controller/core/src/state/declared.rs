//! What a fleet said itself of what it is going to need, and what that was worth.
//!
//! What it said last counts until its next signal: from each time on that it named so many slots, and before the first what it needs now. How far off that was is measured
//! as of forecasts from its past (`past.rs`), at the same horizons: one at a time is kept of each, and compared with what was needed when its time came. Nothing is corrected by
//! it; whoever knows better than its past is believed.
//!
//! How it is folded is part of the record format.

use super::past::{Forecast, HORIZONS};
use events_schema::TimeMs;
use events_schema::command::Foreseen;
use minicbor::{Decode, Encode};

/// Of what errors were in the mean, so much is kept with each new one: a thirty-second part is new, as with forecasts from the past.
const ERROR_PARTS: i64 = 32;
/// The same of how often what was said was enough.
const COVERED_PARTS: i64 = 64;
const MILLI: i64 = 1_000;
const MILLION: i64 = 1_000_000;

/// What a fleet said, the newest of it.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub(super) struct Declared {
    /// When its last signal counted: what it said is so far from then.
    #[n(0)]
    at: TimeMs,
    /// What it needed then.
    #[n(1)]
    needed: u32,
    /// What it is going to need; nothing if it says nothing any more.
    #[n(2)]
    foreseen: Vec<Foreseen>,
    /// What it was worth, by horizon.
    #[n(3)]
    kept: Vec<Kept>,
}

/// What was said of so far ahead.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Encode, Decode)]
struct Kept {
    /// What was said and is not measured yet: when it was said, and of how many slots.
    #[n(0)]
    said_at: Option<TimeMs>,
    #[n(1)]
    said: u32,
    /// How far off it was in the mean, in thousandths of a slot.
    #[n(2)]
    off_milli: i64,
    /// How often of a million times no more was needed.
    #[n(3)]
    covered_ppm: i64,
    /// Whether any was measured.
    #[n(4)]
    is_measured: bool,
}

impl Declared {
    /// Of a fleet that says something for the first time.
    pub fn new(at: TimeMs, needed: u32) -> Self {
        Self { at, needed, foreseen: Vec::new(), kept: vec![Kept::default(); HORIZONS] }
    }

    /// Folds in a signal. `ahead_ms`: how far ahead the horizons are.
    pub fn note(&mut self, at: TimeMs, needed: u32, foreseen: &[Foreseen], ahead_ms: [u64; HORIZONS]) {
        if at < self.at {
            return;
        }
        let before = self.needed;
        for (kept, ahead_ms) in self.kept.iter_mut().zip(ahead_ms) {
            let due = kept.said_at.map(|said_at| said_at.plus_ms(ahead_ms));
            if let Some(due) = due.filter(|due| *due <= at) {
                kept.learn(if due < at { before } else { needed });
            }
        }
        (self.at, self.needed, self.foreseen) = (at, needed, foreseen.to_vec());
        for (place, ahead_ms) in ahead_ms.into_iter().enumerate() {
            let said = self.at_ms(ahead_ms);
            let kept = &mut self.kept[place];
            if let Some(said) = said.filter(|_| kept.said_at.is_none()) {
                (kept.said_at, kept.said) = (Some(at), said);
            }
        }
    }

    /// What is needed so long after it was said.
    fn at_ms(&self, ms: u64) -> Option<u32> {
        let last = self.foreseen.iter().take_while(|of| of.in_ms <= ms).last();
        (!self.foreseen.is_empty()).then(|| last.map_or(self.needed, |of| of.slots))
    }

    /// What is needed so far ahead (`p50`) and until then, from the horizon before on (`p90`).
    pub fn forecast(&self, at: TimeMs, place: usize, ahead_ms: [u64; HORIZONS]) -> Option<Forecast> {
        let in_ms = *ahead_ms.get(place)?;
        let since_ms = at.since_ms(self.at);
        let from_ms = since_ms.saturating_add(place.checked_sub(1).map_or(0, |before| ahead_ms[before]));
        let until_ms = since_ms.saturating_add(in_ms);
        let (first, last) = (self.at_ms(from_ms)?, self.at_ms(until_ms)?);
        let between = self.foreseen.iter().filter(|of| (from_ms..=until_ms).contains(&of.in_ms));
        let most = between.map(|of| of.slots).fold(first, u32::max);
        let kept = self.kept[place];
        Some(Forecast {
            in_ms,
            p50_slots: last,
            p90_slots: most,
            error_milli: kept.off_milli.unsigned_abs(),
            covered_milli: if kept.is_measured { (kept.covered_ppm / MILLI).unsigned_abs() } else { MILLI as u64 },
            is_declared: true,
        })
    }
}

impl Kept {
    /// What was needed, when its time came.
    fn learn(&mut self, was: u32) {
        let off_milli = (i64::from(was) - i64::from(self.said)).abs() * MILLI;
        let covered_ppm = if was <= self.said { MILLION } else { 0 };
        if self.is_measured {
            self.off_milli += (off_milli - self.off_milli) / ERROR_PARTS;
            self.covered_ppm += (covered_ppm - self.covered_ppm) / COVERED_PARTS;
        } else {
            (self.off_milli, self.covered_ppm, self.is_measured) = (off_milli, covered_ppm, true);
        }
        self.said_at = None;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    const AHEAD_MS: [u64; HORIZONS] = [30_000, 60_000, 120_000, 300_000, 600_000, 1_800_000];

    fn foreseen(points: &[(u64, u32)]) -> Vec<Foreseen> {
        points.iter().map(|&(in_ms, slots)| Foreseen { in_ms, slots }).collect()
    }

    fn at(seconds: u64) -> TimeMs {
        TimeMs(1_000_000 + seconds * 1_000)
    }

    #[test]
    fn what_is_said_holds_from_each_time_on() {
        let mut declared = Declared::new(at(0), 2);
        declared.note(at(0), 2, &foreseen(&[(90_000, 5), (100_000, 9), (110_000, 4)]), AHEAD_MS);
        let of = |seconds: u64| {
            (0..HORIZONS)
                .map(|place| declared.forecast(at(seconds), place, AHEAD_MS).unwrap())
                .map(|of| (of.p50_slots, of.p90_slots))
                .collect::<Vec<_>>()
        };
        assert_eq!(of(0), [(2, 2), (2, 2), (4, 9), (4, 4), (4, 4), (4, 4)]);
        assert_eq!(of(59)[0], (2, 2));
        assert_eq!(of(60)[0], (5, 5));
        assert_eq!(of(75)[0], (9, 9), "the first horizon begins now");
        assert_eq!(of(10_000)[0], (4, 4), "until its next signal");
    }

    #[test]
    fn a_signal_without_a_forecast_ends_it_and_what_it_was_worth_is_kept() {
        let mut declared = Declared::new(at(0), 2);
        declared.note(at(0), 2, &foreseen(&[(20_000, 6)]), AHEAD_MS);
        declared.note(at(40), 8, &[], AHEAD_MS);
        assert_eq!(declared.forecast(at(40), 0, AHEAD_MS), None);
        declared.note(at(50), 8, &foreseen(&[(1, 8)]), AHEAD_MS);
        let nearest = declared.forecast(at(50), 0, AHEAD_MS).unwrap();
        // At 30 s 2 were needed where 6 were said.
        assert_eq!((nearest.error_milli, nearest.covered_milli), (4_000, 1_000));
    }

    #[test]
    fn errors_are_those_of_what_was_said_when_its_time_came() {
        let mut declared = Declared::new(at(0), 0);
        for minute in 0..200 {
            let needed = (minute % 2) as u32 * 4;
            // Of the next minute it says one too few when four are needed, and is right when none are.
            declared.note(at(60 * minute), needed, &foreseen(&[(60_000, (4 - needed).saturating_sub(1))]), AHEAD_MS);
        }
        let minute = declared.forecast(at(60 * 200), 1, AHEAD_MS).unwrap();
        assert!((400..600).contains(&minute.error_milli), "{minute:?}");
        assert!((400..600).contains(&minute.covered_milli), "{minute:?}");
    }

    proptest! {
        /// Of any list and at any later time, beside a look at each second until then.
        #[test]
        fn what_is_wanted_is_what_was_said_for_then_and_the_most_until_then(
            said in prop::collection::btree_map(1u64..2_000, 0u32..50, 1..12),
            needed in 0u32..50,
            since in 0u64..3_000,
        ) {
            const SECOND: u64 = 1_000;
            let points: Vec<(u64, u32)> = said.iter().map(|(of, slots)| (of * SECOND, *slots)).collect();
            let mut declared = Declared::new(at(0), needed);
            declared.note(at(0), needed, &foreseen(&points), AHEAD_MS);
            let holds = |second: u64| said.range(..=second).next_back().map_or(needed, |(_, slots)| *slots);
            let mut before = 0;
            for (place, ahead_ms) in AHEAD_MS.into_iter().enumerate() {
                let ahead = ahead_ms / SECOND;
                let of = declared.forecast(at(since), place, AHEAD_MS).unwrap();
                let most = (since + before..=since + ahead).map(holds).max();
                prop_assert_eq!((of.p50_slots, Some(of.p90_slots)), (holds(since + ahead), most));
                prop_assert!(of.is_declared);
                before = ahead;
            }
        }

        /// Signals in any order of time: none that is older changes anything, and what is kept stays in bounds.
        #[test]
        fn what_is_said_is_kept_in_bounds_and_only_the_newest_counts(
            signals in prop::collection::vec((0u64..5_000, 0u32..50, prop::collection::btree_map(1u64..2_000_000, 0u32..50, 0..5)), 1..40),
        ) {
            let mut declared = Declared::new(at(0), 0);
            for (second, needed, said) in signals {
                let (before, points) = (declared.clone(), said.into_iter().collect::<Vec<_>>());
                declared.note(at(second), needed, &foreseen(&points), AHEAD_MS);
                if at(second) < before.at {
                    prop_assert_eq!(&declared, &before);
                    continue;
                }
                for place in 0..HORIZONS {
                    let of = declared.forecast(at(second), place, AHEAD_MS);
                    prop_assert_eq!(of.is_some(), !points.is_empty());
                    prop_assert!(of.is_none_or(|of| of.error_milli <= 50_000 && of.covered_milli <= 1_000));
                }
            }
        }
    }
}
