//! How fast a newcomer is sent the replica: what its link carries while it is never idle, because all that is sent is there from the first moment on. Pure;
//! what is concluded from it is the controller's part (`controller/core/src/decide/bandwidth.rs`).

use std::time::Duration;

/// The best of stretches so long counts: a connection that begins slowly, or a process that stands still for a moment, makes no link slow.
const STRETCH: Duration = Duration::from_millis(250);
/// After so long it is said for good: connections across a continent have come to their full speed.
const SETTLED_AFTER: Duration = Duration::from_secs(1);

/// What to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rate {
    pub bytes_per_s: u64,
    /// Whether that can be relied on.
    pub settled: bool,
}

/// The copy of one replica.
#[derive(Debug, Clone, Default)]
pub(crate) struct CopyRate {
    /// When the first piece was there, which was on its way before that; and what came since.
    begun: Option<Duration>,
    bytes: u64,
    /// The stretch that is measured.
    since: Duration,
    of_stretch: u64,
    best: u64,
    said: bool,
    settled: bool,
}

impl CopyRate {
    /// A piece is there.
    pub fn on_bytes(&mut self, bytes: u64, now: Duration) -> Option<Rate> {
        let Some(begun) = self.begun else {
            (self.begun, self.since) = (Some(now), now);
            return None;
        };
        self.bytes = self.bytes.saturating_add(bytes);
        self.of_stretch = self.of_stretch.saturating_add(bytes);
        let stretch = now.saturating_sub(self.since);
        if self.settled || stretch < STRETCH {
            return None;
        }
        self.best = self.best.max(per_second(self.of_stretch, stretch));
        (self.since, self.of_stretch) = (now, 0);
        self.settled = now.saturating_sub(begun) >= SETTLED_AFTER;
        let first = !std::mem::replace(&mut self.said, true);
        (first || self.settled).then_some(Rate { bytes_per_s: self.best, settled: self.settled })
    }

    /// The replica is whole.
    pub fn on_whole(&mut self, now: Duration) -> Option<Rate> {
        let took = now.saturating_sub(self.begun?);
        if std::mem::replace(&mut self.settled, true) || self.bytes == 0 {
            return None;
        }
        Some(Rate { bytes_per_s: self.best.max(per_second(self.bytes, took)), settled: true })
    }
}

fn per_second(bytes: u64, took: Duration) -> u64 {
    let us = took.as_micros().max(1);
    (u128::from(bytes) * 1_000_000 / us).try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// What is said of pieces that come at these times, in milliseconds.
    fn said(copy: &mut CopyRate, pieces: impl IntoIterator<Item = (u64, u64)>) -> Vec<(u64, bool)> {
        let rates = pieces.into_iter().filter_map(|(ms, bytes)| copy.on_bytes(bytes, Duration::from_millis(ms)));
        rates.map(|rate| (rate.bytes_per_s / MIB, rate.settled)).collect()
    }

    #[test]
    fn a_steady_copy_is_told_at_once_and_once_more_for_good() {
        let mut copy = CopyRate::default();
        assert_eq!(said(&mut copy, (0..40).map(|n| (n * 50, MIB / 4))), [(5, false), (5, true)]);
        assert_eq!(copy.on_whole(Duration::from_secs(9)), None);
    }

    #[test]
    fn the_best_stretch_counts() {
        let slow_at_first = (0..10).map(|n| (n * 50, MIB / 64));
        let then = (10..30).map(|n| (n * 50, MIB));
        assert_eq!(said(&mut CopyRate::default(), slow_at_first.chain(then)), [(0, false), (20, true)]);
        let stands_still = [(0, MIB), (125, 2 * MIB), (250, 2 * MIB), (1_100, MIB), (1_200, MIB)];
        assert_eq!(said(&mut CopyRate::default(), stands_still), [(16, false), (16, true)]);
    }

    #[test]
    fn a_copy_that_is_whole_before_says_what_it_was() {
        let mut copy = CopyRate::default();
        assert_eq!(said(&mut copy, (0..5).map(|n| (n * 10, MIB))), []);
        let rate = copy.on_whole(Duration::from_millis(40));
        assert_eq!(rate.map(|rate| (rate.bytes_per_s / MIB, rate.settled)), Some((100, true)));
        assert_eq!(copy.on_whole(Duration::from_millis(50)), None);
        let mut in_one_piece = CopyRate::default();
        assert_eq!(said(&mut in_one_piece, [(7, MIB)]), []);
        assert_eq!(in_one_piece.on_whole(Duration::from_millis(7)), None, "nothing is known of its link");
    }
}
