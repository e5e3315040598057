//! True time, and the clocks of hosts, none of which shows it.

use events_schema::TimeMs;

/// True time, in microseconds since the world began. No machine ever sees it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct At(pub u64);

impl At {
    /// So many milliseconds later.
    #[must_use]
    pub fn plus_ms(self, ms: u64) -> At {
        At(self.0.saturating_add(ms.saturating_mul(1_000)))
    }

    /// So many microseconds later.
    #[must_use]
    pub fn plus_us(self, us: u64) -> At {
        At(self.0.saturating_add(us))
    }

    /// Milliseconds since `earlier`; 0 if that is later.
    #[must_use]
    pub fn since_ms(self, earlier: At) -> u64 {
        self.0.saturating_sub(earlier.0) / 1_000
    }
}

/// What the wall clocks show, about, when the world begins.
const WALL_MS: u64 = 1_700_000_000_000;

/// Clocks of one host: one that only goes forward, at a speed of its own, and one on the wall, which also jumps.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// How much faster than true time, in millionths.
    pub drift_ppm: i64,
    /// How much the wall clock is ahead, in milliseconds.
    pub ahead_ms: i64,
}

impl Clock {
    /// Microseconds since the world began, on the clock that only goes forward.
    #[must_use]
    pub fn us(&self, at: At) -> u64 {
        at.0.saturating_add_signed(at.0 as i64 / 1_000 * self.drift_ppm / 1_000)
    }

    /// The same in milliseconds.
    #[must_use]
    pub fn ms(&self, at: At) -> u64 {
        self.us(at) / 1_000
    }

    /// The wall clock.
    #[must_use]
    pub fn wall(&self, at: At) -> TimeMs {
        TimeMs((WALL_MS + self.ms(at)).saturating_add_signed(self.ahead_ms))
    }

    /// The first true time at which the clock that only goes forward shows so many microseconds.
    #[must_use]
    pub fn when(&self, us: u64) -> At {
        let mut at = At(us.saturating_add_signed(-(us as i64 / 1_000 * self.drift_ppm / 1_000)));
        while self.us(at) < us {
            at = at.plus_us(us - self.us(at));
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_shows_a_time_when_it_says_it_will() {
        for drift_ppm in [-200, -1, 0, 1, 200] {
            let clock = Clock { drift_ppm, ahead_ms: 0 };
            for us in [0, 1, 999, 1_000_000, 3_600_000_000] {
                let at = clock.when(us);
                assert!(clock.us(at) >= us && clock.us(at) <= us + 2, "{drift_ppm} {us}");
            }
        }
    }
}
