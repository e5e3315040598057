//! How long an executor on a guest slot rests between what it computes, so that it takes no more of the device's or the processors' time than its agent gives
//! it. It computes the same, only later, and takes part in everything else meanwhile.

use std::time::{Duration, Instant};

/// All of the time: no rest.
const SHARE_ALL: u32 = 1_000;

/// Longest rest. A unit within which nothing else happens counts as hung after a minute (`controller/core/src/watch.rs`), so who is to compute nothing
/// computes this rarely.
const REST_MAX: Duration = Duration::from_secs(20);

/// Rests of one executor.
#[derive(Debug)]
pub(crate) struct Rests {
    /// Of its time, in thousandths.
    share: u32,
    /// When it last had computed something, and how long that took.
    computed: Option<(Instant, Duration)>,
    /// Somebody waits for it to leave.
    over: bool,
    /// Its job is to stand still as soon as it can.
    parks: bool,
}

impl Default for Rests {
    /// Has computed nothing yet, and rests for nothing.
    fn default() -> Self {
        Self { share: SHARE_ALL, computed: None, over: false, parks: false }
    }
}

impl Rests {
    /// It may compute in so many thousandths of the time from now on.
    pub fn share(&mut self, thousandths: u16) {
        self.share = u32::from(thousandths).min(SHARE_ALL);
    }

    /// It has computed something.
    pub fn computed(&mut self, at: Instant, took: Duration) {
        self.computed = Some((at, took));
    }

    /// There are no more: the sooner it is at a boundary, the sooner its slot is free.
    pub fn end(&mut self) {
        self.over = true;
    }

    /// None either while its job is to stand still: that may be taken back.
    pub fn park(&mut self, parks: bool) {
        self.parks = parks;
    }

    /// What is left of the present one.
    pub fn left(&self, now: Instant) -> Option<Duration> {
        let (at, took) = self.computed.filter(|_| !self.over && !self.parks)?;
        let rest = match self.share {
            0 => REST_MAX,
            share => (took * (SHARE_ALL - share) / share).min(REST_MAX),
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
        rests.computed(begin, ms(10));
        assert_eq!(rests.left(begin), None, "nobody limits it");
        rests.share(100);
        assert_eq!(rests.left(begin), Some(ms(90)));
        assert_eq!((rests.left(begin + ms(60)), rests.left(begin + ms(90))), (Some(ms(30)), None));
        rests.share(500);
        assert_eq!(rests.left(begin + ms(60)), None, "a larger share counts at once");
        rests.share(0);
        assert_eq!(rests.left(begin), Some(REST_MAX));
        rests.park(true);
        assert_eq!(rests.left(begin), None);
        rests.park(false);
        assert_eq!(rests.left(begin), Some(REST_MAX));
        rests.end();
        assert_eq!(rests.left(begin), None, "whoever has to leave rests no more");
    }
}
