//! Controller time: the wall clock as it was once, and what the monotonic clock says has passed since. A wall clock that jumps
//! changes nothing, and time neither stands still nor goes back.

use events_schema::TimeMs;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    base: TimeMs,
    since_ms: u64,
}

impl Clock {
    pub fn new(wall: TimeMs, now_ms: u64) -> Self {
        Self { base: wall, since_ms: now_ms }
    }

    pub fn at(&self, now_ms: u64) -> TimeMs {
        self.base.plus_ms(now_ms.saturating_sub(self.since_ms))
    }

    /// Goes on from `at` if that is later: another controller's clock was ahead, and its facts are there.
    pub fn go_on_from(&mut self, at: TimeMs, now_ms: u64) {
        if at > self.at(now_ms) {
            *self = Self::new(at, now_ms);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_on_at_once_from_a_log_that_is_ahead() {
        let mut clock = Clock::new(TimeMs(1_000), 50);
        assert_eq!(clock.at(60), TimeMs(1_010));
        clock.go_on_from(TimeMs(9_000), 70);
        assert_eq!((clock.at(70), clock.at(71)), (TimeMs(9_000), TimeMs(9_001)));
        clock.go_on_from(TimeMs(5_000), 80);
        assert_eq!(clock.at(80), TimeMs(9_010), "never back");
    }
}
