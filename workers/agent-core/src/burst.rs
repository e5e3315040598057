//! How fast a burst comes in: what a link carries, measured while as much as it takes is sent over it. Pure; who sends and reads is `workers/agent`, which
//! links are measured `controller/core/src/survey.rs`.

use std::time::Duration;

/// Most that is sent for one measurement, in each direction: a link of 1 Gbit/s takes 40 ms for it.
pub const BURST_BYTES_MAX: u64 = 4 << 20;
/// Longest that it is read for: of a link of 40 Mbit/s that is 2 MB.
pub const BURST_TIME_MAX: Duration = Duration::from_millis(400);
/// What comes in the first part of it, or as the first half, does not count: a connection begins slowly.
const BEGINNING: Duration = Duration::from_millis(100);

/// A burst that is read.
#[derive(Debug, Clone, Default)]
pub struct Burst {
    /// When the first piece was there.
    begun: Option<Duration>,
    bytes: u64,
    /// Since when it counts, and what had come by then.
    counts: Option<(Duration, u64)>,
    last: Duration,
}

impl Burst {
    /// A piece is there. Whether no more need be read.
    pub fn on_bytes(&mut self, bytes: u64, now: Duration) -> bool {
        let begun = *self.begun.get_or_insert(now);
        (self.bytes, self.last) = (self.bytes.saturating_add(bytes), now);
        let since = now.saturating_sub(begun);
        if since >= BEGINNING || self.bytes >= BURST_BYTES_MAX / 2 {
            self.counts.get_or_insert((now, self.bytes));
        }
        self.bytes >= BURST_BYTES_MAX || since >= BURST_TIME_MAX
    }

    /// Bytes per second; none if too little came to tell.
    #[must_use]
    pub fn bytes_per_s(&self) -> Option<u64> {
        let (since, before) = self.counts?;
        let bytes = self.bytes.checked_sub(before).filter(|bytes| *bytes > 0)?;
        let us = self.last.saturating_sub(since).as_micros().max(1);
        Some((u128::from(bytes) * 1_000_000 / us).try_into().unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    /// What a burst of these pieces comes to, in KiB a second, and when it was over.
    fn read(pieces: impl IntoIterator<Item = (u64, u64)>) -> (Option<u64>, Option<u64>) {
        let mut burst = Burst::default();
        let over = pieces.into_iter().find(|(ms, kib)| burst.on_bytes(kib * KIB, Duration::from_millis(*ms)));
        (burst.bytes_per_s().map(|rate| rate / KIB), over.map(|(ms, _)| ms))
    }

    #[test]
    fn a_slow_link_is_read_for_its_time_and_a_fast_one_for_its_bytes() {
        assert_eq!(read((0..1_000).map(|n| (n * 10, 50))), (Some(5_000), Some(400)));
        assert_eq!(read((0..1_000).map(|n| (n, 128))), (Some(128_000), Some(31)));
    }

    #[test]
    fn how_slowly_a_connection_begins_is_nothing() {
        let begins = (0..10).map(|n| (n * 10, 1));
        assert_eq!(read(begins.chain((10..100).map(|n| (n * 10, 50)))).0, Some(5_000));
    }

    /// Who reads was not on a processor for a while, and what had come meanwhile is there at once.
    #[test]
    fn a_pause_of_the_reader_makes_no_link_fast_or_slow() {
        let paused = [(200, 50), (300, 550), (310, 50), (320, 50), (400, 400)];
        assert_eq!(
            read((0..20).map(|n| (n * 10, 50)).chain(paused)).0,
            Some((450 + 50 + 550 + 50 + 50 + 400) * 10 / 3)
        );
    }

    #[test]
    fn too_little_tells_nothing() {
        assert_eq!(read([]), (None, None));
        assert_eq!(read([(0, 64), (20, 64), (90, 64)]), (None, None));
        assert_eq!(read([(0, 64), (120, 64)]), (None, None), "one piece");
    }
}
