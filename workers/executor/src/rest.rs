//! How long an executor on a guest slot rests between what it computes, so that it takes no more of the device's or the processors' time than its agent gives
//! it. It computes the same, only later, and takes part in everything else meanwhile.

use std::time::{Duration, Instant};

/// All of the time: no rest.
const SHARE_ALL: u32 = 1_000;

/// Longest rest after what takes no time. A unit within which nothing else happens counts as hung after a minute, or after eight times the slowest one before it
/// (`controller/core/src/watch.rs`), so who is to compute nothing computes this rarely, and longer rests follow what takes long.
const REST_MAX: Duration = Duration::from_secs(20);
/// A rest may be longer by so many times what it follows: with that, and as long again for the next one, it stays below both of those limits.
const REST_TIMES: u32 = 3;

/// Rests of one executor.
#[derive(Debug)]
pub(crate) struct Rests {
    /// Of its time, in thousandths.
    share: u32,
    /// When it last had computed something, and how long all took that it has not rested for.
    computed: Option<(Instant, Duration)>,
    /// Its job is to stand still as soon as it can.
    parks: bool,
}

impl Default for Rests {
    /// Has computed nothing yet, and rests for nothing.
    fn default() -> Self {
        Self { share: SHARE_ALL, computed: None, parks: false }
    }
}

impl Rests {
    /// It may compute in so many thousandths of the time from now on.
    pub fn share(&mut self, thousandths: u16) {
        self.share = u32::from(thousandths).min(SHARE_ALL);
    }

    /// It has computed something. What is left of the rest before comes behind it: an update follows a gradient without one.
    pub fn computed(&mut self, begun: Instant, ended: Instant) {
        let owed = self.left(begun).map_or(Duration::ZERO, |left| left * self.share / (SHARE_ALL - self.share).max(1));
        self.computed = Some((ended, ended.saturating_duration_since(begun) + owed));
    }

    /// There are none while its job is to stand still: that may be taken back.
    pub fn park(&mut self, parks: bool) {
        self.parks = parks;
    }

    /// What is left of the present one.
    pub fn left(&self, now: Instant) -> Option<Duration> {
        let (at, took) = self.computed.filter(|_| !self.parks)?;
        let most = REST_MAX + took * REST_TIMES;
        let rest = match self.share {
            0 => most,
            share => (took * (SHARE_ALL - share) / share).min(most),
        };
        rest.checked_sub(now.saturating_duration_since(at)).filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_time_is_kept_by_resting_after_what_was_computed() {
        let (ms, begin) = (Duration::from_millis, Instant::now());
        let mut rests = Rests::default();
        rests.computed(begin - ms(10), begin);
        assert_eq!(rests.left(begin), None, "nobody limits it");
        rests.share(100);
        assert_eq!(rests.left(begin), Some(ms(90)));
        assert_eq!((rests.left(begin + ms(60)), rests.left(begin + ms(90))), (Some(ms(30)), None));
        rests.share(500);
        assert_eq!(rests.left(begin + ms(60)), None, "a larger share counts at once");
        rests.share(0);
        assert_eq!(rests.left(begin), Some(REST_MAX + ms(30)));
        rests.park(true);
        assert_eq!(rests.left(begin), None);
        rests.park(false);
        assert_eq!(rests.left(begin), Some(REST_MAX + ms(30)));
    }

    /// What takes ten seconds had a third of the time, whatever its share was.
    #[test]
    fn longer_rests_follow_what_takes_long_and_none_is_taken_for_hung() {
        let begin = Instant::now();
        for took in [1, 3, 6, 7, 8, 10, 60].map(Duration::from_secs) {
            let mut rests = Rests::default();
            rests.share(50);
            rests.computed(begin, begin + took);
            let rest = rests.left(begin + took).unwrap_or_default();
            assert!(rest >= (took * 19).min(REST_MAX + took * 3), "{took:?}: {rest:?}");
            assert!(rest + took < Duration::from_secs(60).max(took * 8), "{took:?}: {rest:?}");
        }
    }

    /// A step of one gradient ends with an update at once, which takes next to nothing.
    #[test]
    fn an_update_behind_a_gradient_takes_nothing_off_its_rest() {
        let (ms, begin) = (Duration::from_millis, Instant::now());
        let mut rests = Rests::default();
        rests.share(100);
        rests.computed(begin, begin + ms(100));
        rests.computed(begin + ms(100), begin + ms(101));
        assert_eq!(rests.left(begin + ms(101)), Some(ms(909)));
        rests.computed(begin + ms(560), begin + ms(561));
        assert_eq!(rests.left(begin + ms(561)), Some(ms(459)), "and what it has rested already is not rested again");
    }
}
