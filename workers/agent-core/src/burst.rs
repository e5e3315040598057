//! How fast a burst comes in: what a link carries, measured while as much as it takes is sent over it. Pure; who sends and reads is `workers/agent`, which
//! links are measured `controller/core/src/survey.rs`.

use events_schema::orders::LINK_FAST_BYTES_PER_S;
use std::time::Duration;

/// Most that is sent for one measurement, in each direction: a link of 1 Gbit/s takes 40 ms for it.
pub const BURST_BYTES_MAX: u64 = 4 << 20;
/// Longest that it is read for: of a link of 40 Mbit/s that is 2 MB.
pub const BURST_TIME_MAX: Duration = Duration::from_millis(400);
/// What comes in the first part of it, or as the first half, does not count: a connection begins slowly.
const BEGINNING: Duration = Duration::from_millis(100);
/// Most pieces of which it is kept when each came: of a KiB each, and a network's are longer. Further ones count with the last.
const PIECES_MAX: usize = 4096;
/// A connection still grows as long as more than this many hundredths come in the second half of a time of what came in the first: it doubles with each round
/// trip, and what a link carries evenly scatters by less.
const GROWS_PERCENT: u64 = 125;
/// A time is looked at in so many parts. Of a connection that has yet to fill its link something comes once a round trip, and of one that fills it all the time.
const PARTS: u128 = 8;

/// A burst that is read.
#[derive(Debug, Clone, Default)]
pub struct Burst {
    /// When the first piece was there.
    begun: Option<Duration>,
    bytes: u64,
    /// When each piece was there since then, and what had come with it.
    came: Vec<(Duration, u64)>,
}

impl Burst {
    /// A piece is there. Whether no more need be read.
    pub fn on_bytes(&mut self, bytes: u64, now: Duration) -> bool {
        let since = now.saturating_sub(*self.begun.get_or_insert(now));
        self.bytes = self.bytes.saturating_add(bytes);
        if self.came.len() == PIECES_MAX {
            self.came.pop();
        }
        self.came.push((since, self.bytes));
        self.bytes >= BURST_BYTES_MAX || since >= BURST_TIME_MAX
    }

    /// Bytes per second; none if too little came to tell, or the connection still grew: then the link carries more than that, and how much more nobody knows.
    /// More than is asked for is enough.
    #[must_use]
    pub fn bytes_per_s(&self) -> Option<u64> {
        let begins = |(since, bytes): &(Duration, u64)| *since < BEGINNING && *bytes < BURST_BYTES_MAX / 2;
        let counts = Stretch(&self.came[self.came.partition_point(begins)..]);
        let late = counts.second_half();
        let even = |stretch: &Stretch<'_>| stretch.is_fast() || stretch.is_even();
        [counts, late].iter().find(|stretch| even(stretch)).and_then(Stretch::bytes_per_s)
    }
}

/// Some of the pieces that came one after the other; it begins when the first of them is there.
#[derive(Debug, Clone, Copy)]
struct Stretch<'a>(&'a [(Duration, u64)]);

impl<'a> Stretch<'a> {
    fn ends(&self) -> Option<((Duration, u64), (Duration, u64))> {
        Some((*self.0.first()?, *self.0.last()?))
    }

    fn bytes(&self) -> u64 {
        self.ends().map_or(0, |((_, before), (_, after))| after - before)
    }

    fn bytes_per_s(&self) -> Option<u64> {
        let ((from, _), (until, _)) = self.ends().filter(|_| self.bytes() > 0)?;
        let us = until.saturating_sub(from).as_micros().max(1);
        Some((u128::from(self.bytes()) * 1_000_000 / us).try_into().unwrap_or(u64::MAX))
    }

    fn is_fast(&self) -> bool {
        self.bytes_per_s().is_some_and(|rate| rate >= LINK_FAST_BYTES_PER_S)
    }

    fn second_half(&self) -> Self {
        let Some(((from, _), (until, _))) = self.ends() else { return *self };
        let first = self.0.partition_point(|(since, _)| *since <= from + (until - from) / 2);
        Self(&self.0[first.saturating_sub(1)..])
    }

    /// Whether as much came all the time: no more towards the end, and not only now and then.
    fn is_even(&self) -> bool {
        let second = self.second_half().bytes();
        let first = self.bytes() - second;
        second * 100 <= first * GROWS_PERCENT && self.parts() * 2 > PARTS
    }

    /// In how many parts of its time something came.
    fn parts(&self) -> u128 {
        let Some(((from, _), (until, _))) = self.ends() else { return 0 };
        let whole = (until - from).as_nanos().max(1);
        let part = |since: Duration| ((since - from).as_nanos() * PARTS / whole).min(PARTS - 1);
        let mut parts: Vec<u128> = self.0.iter().map(|(since, _)| part(*since)).collect();
        parts.dedup();
        parts.len() as u128
    }
}

/// What a link carries, of what it does in each direction. One that is slow in the one is slow, whatever cannot be said of the other.
#[must_use]
pub fn of_directions(down: Option<u64>, up: Option<u64>) -> Option<u64> {
    match (down, up) {
        (Some(down), Some(up)) => Some(down.min(up)),
        (one, other) => one.or(other).filter(|rate| *rate < LINK_FAST_BYTES_PER_S),
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
        let paused = |from: u64| {
            let when = move |ms: u64| if (from..from + 100).contains(&ms) { from + 100 } else { ms };
            read((0..100).map(|n| (when(n * 10), 50))).0
        };
        for from in (0..400).step_by(10) {
            assert!(paused(from).is_none_or(|rate| (3_000..=8_000).contains(&rate)), "{from}: {:?}", paused(from));
        }
        let told = (0..400).step_by(10).filter(|from| paused(*from).is_some()).count();
        assert!(told >= 30, "most of them: {told}");
    }

    /// A connection over a link of so many KiB a millisecond and such a round trip: ten packets in the first, and twice as many in each.
    fn begins(round_trip_ms: u64, link: u64, evenly: bool) -> Vec<(u64, u64)> {
        let mut pieces = Vec::new();
        for round in 0..(400 / round_trip_ms + 1) {
            let kib = (14 << round.min(20)).min(link * round_trip_ms);
            let over_ms = if evenly { round_trip_ms } else { (kib / link).max(1) };
            let piece = |ms| (round * round_trip_ms + ms, kib * (ms + 1) / over_ms - kib * ms / over_ms);
            pieces.extend((0..over_ms).map(piece).filter(|(_, kib)| *kib > 0));
        }
        pieces
    }

    #[test]
    fn a_fast_link_that_a_connection_has_yet_to_fill_is_not_slow() {
        let fast = LINK_FAST_BYTES_PER_S / KIB;
        for (link, evenly) in [(122, false), (122, true), (1_220, false), (1_220, true)] {
            for round_trip_ms in (1..=20).chain((25..=100).step_by(5)).chain([120, 150, 200]) {
                let (rate, _) = read(begins(round_trip_ms, link, evenly));
                assert!(rate.is_none_or(|rate| rate >= fast * 4 / 5), "{round_trip_ms} ms, {link}, {evenly}: {rate:?}");
            }
            assert!(read(begins(10, link, evenly)).0.is_some_and(|rate| rate >= fast), "{link}, {evenly}");
            assert_eq!(read(begins(30, link, evenly)).0, None, "{link}, {evenly}");
        }
    }

    #[test]
    fn a_slow_link_is_told_once_a_connection_fills_it() {
        for (round_trip_ms, evenly) in [(5, true), (20, true), (20, false), (40, true), (50, true), (60, true)] {
            let (rate, _) = read(begins(round_trip_ms, 5, evenly));
            assert!(rate.is_some_and(|rate| (4_000..6_000).contains(&rate)), "{round_trip_ms} ms, {evenly}: {rate:?}");
        }
    }

    #[test]
    fn the_slower_direction_counts_and_a_slow_one_though_nothing_is_said_of_the_other() {
        let (slow, fast) = (Some(5_000_000), Some(LINK_FAST_BYTES_PER_S));
        assert_eq!(of_directions(slow, fast), slow);
        assert_eq!((of_directions(None, slow), of_directions(slow, None)), (slow, slow));
        assert_eq!(
            (of_directions(None, fast), of_directions(fast, None), of_directions(None, None)),
            (None, None, None)
        );
    }

    #[test]
    fn too_little_tells_nothing() {
        assert_eq!(read([]), (None, None));
        assert_eq!(read([(0, 64), (20, 64), (90, 64)]), (None, None));
        assert_eq!(read([(0, 64), (120, 64)]), (None, None), "one piece");
    }
}
