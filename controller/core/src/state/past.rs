//! What a fleet needed until now, and what that says of what it will need soon.
//!
//! A fleet's past is folded from the signals that counted: the level that its need last crossed and the one before (between them it is taken to have gone
//! straight), what it needed in the mean at each time of the day, and by how much forecasts were wrong. A forecast is the level now, moved on by how the need
//! went at this time on other days and, for the next minute, by how it goes now; its quantiles are those of the errors that such forecasts had until now.
//!
//! What its fleet says itself of what it is going to need (`declared.rs`) is taken instead.
//!
//! How the past is folded is part of the record format, as [`super::bounds`] is: another rule needs a fact that says from where on it holds. What is
//! decided by a forecast is not known here (`decide/ahead.rs`). Whole numbers only; a level is in millionths of a slot.

use super::declared::Declared;
use events_schema::TimeMs;
use events_schema::command::Foreseen;
use minicbor::{Decode, Encode};

/// A day of people, after which needs come again.
pub const DAY_MS: u64 = 86_400_000;
/// Times of a day that are told apart: a quarter of an hour each, in which the need of a fleet that serves people hardly turns twice.
const TIMES: u64 = 96;
/// Forecasts are kept and measured so far ahead, in parts of a day: 30 s, 1, 2, 5, 10 and 30 minutes of one.
const PARTS_OF_DAY: [u64; HORIZONS] = [2_880, 1_440, 720, 288, 144, 48];
/// How many those are.
pub const HORIZONS: usize = 6;
/// Up to a minute of a day the way that the need goes now says more than other days do; then less.
const TREND_PARTS_OF_DAY: u64 = 1_440;
/// Days of which all is known, before anything is forecast: of one alone nobody knows what comes again.
const DAYS_MIN: u64 = 2;
/// Errors that were measured, before anything is forecast.
const MEASURED_MIN: u32 = 20;
/// Forecasts that are measured at once, after a silence; the others of it are passed over.
const MEASURED_AT_ONCE_MAX: usize = 8;
/// A slot.
const SLOT: i64 = 1_000_000;
/// The least and first of what an error counts as: a thousandth of a slot.
const ERROR_MIN: i64 = SLOT / 1_000;
/// Most slots that are counted with: sums of a day of them fit.
const NEEDED_MAX: u32 = 100_000;

/// The past of one fleet.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Past {
    /// After so long needs come again.
    #[n(0)]
    day_ms: u64,
    /// The times of the day are folded until then.
    #[n(1)]
    until: TimeMs,
    /// What is needed since.
    #[n(2)]
    needed: u32,
    /// When the need last went from one number to another, and where it was.
    #[n(3)]
    last: Level,
    /// The one before.
    #[n(4)]
    before: Level,
    /// Needed in the present time of the day, times its length.
    #[n(5)]
    micro_ms: i64,
    /// Needed in the mean at each time of the day; of the last days more than of those before.
    #[n(6)]
    of_day: Vec<i64>,
    /// Times of days that are over.
    #[n(7)]
    times: u64,
    /// What forecasts were worth.
    #[n(8)]
    horizons: Vec<Horizon>,
    /// What its fleet says itself, if it ever did.
    #[n(9)]
    declared: Option<Declared>,
}

/// Where a need was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
struct Level {
    #[n(0)]
    at: TimeMs,
    #[n(1)]
    micro: i64,
}

/// Forecasts of so far ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
struct Horizon {
    /// When the one was made that is measured next.
    #[n(0)]
    made: TimeMs,
    /// What it said, before what is known of errors.
    #[n(1)]
    middle: i64,
    /// Half of the errors were lower.
    #[n(2)]
    error_p50: i64,
    /// Nine of ten were.
    #[n(3)]
    error_p90: i64,
    /// How far the half was off, in the mean.
    #[n(4)]
    off: i64,
    /// How many of a million were below the ninth of ten.
    #[n(5)]
    covered_ppm: i64,
    /// How many were measured.
    #[n(6)]
    measured: u32,
}

/// What a fleet is going to need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forecast {
    /// So long from now.
    pub in_ms: u64,
    /// As likely more slots as fewer.
    pub p50_slots: u32,
    /// With nine chances in ten no more.
    pub p90_slots: u32,
    /// How far off `p50` was until now, in the mean, in thousandths of a slot.
    pub error_milli: u64,
    /// How often no more than `p90` was needed, in thousandths; 900 is right.
    pub covered_milli: u64,
    /// Whether its fleet said so, and not its past.
    pub is_declared: bool,
}

impl Past {
    /// Of a fleet whose need is told for the first time.
    pub(crate) fn new(at: TimeMs, needed: u32, day_ms: u64) -> Self {
        let needed = needed.min(NEEDED_MAX);
        let level = Level { at, micro: i64::from(needed) * SLOT };
        let horizon = Horizon {
            made: at,
            middle: level.micro,
            error_p50: 0,
            error_p90: ERROR_MIN,
            off: ERROR_MIN,
            covered_ppm: 900_000,
            measured: 0,
        };
        let day_ms = day_ms.max(PARTS_OF_DAY[0]);
        let horizons = vec![horizon; HORIZONS];
        let of_day = vec![level.micro; TIMES as usize];
        let micro_ms = part(level.micro, at.0 % (day_ms / TIMES), 1);
        let (until, times, declared) = (at, 0, None);
        Self { day_ms, until, needed, last: level, before: level, micro_ms, of_day, times, horizons, declared }
    }

    /// Folds in what its fleet says that it is going to need; nothing, if it does not say.
    pub(crate) fn declare(&mut self, at: TimeMs, needed: u32, foreseen: &[Foreseen]) {
        let ahead_ms = self.horizons_ms();
        if self.declared.is_some() || !foreseen.is_empty() {
            let declared = self.declared.get_or_insert_with(|| Declared::new(at, needed));
            declared.note(at, needed, foreseen, ahead_ms);
        }
    }

    fn horizons_ms(&self) -> [u64; HORIZONS] {
        PARTS_OF_DAY.map(|parts| self.day_ms / parts)
    }

    /// Whether its days are so long.
    pub(crate) fn is_of_days(&self, day_ms: u64) -> bool {
        self.day_ms == day_ms.max(PARTS_OF_DAY[0])
    }

    /// Folds in what is needed from now on.
    pub(crate) fn note(&mut self, at: TimeMs, needed: u32) {
        let needed = needed.min(NEEDED_MAX);
        if needed == self.needed || at < self.last.at {
            return;
        }
        // One that went up by one was just where it now begins; of larger steps nobody knows where within the last slot they end.
        let of = |slots: u32| i64::from(slots) * SLOT;
        let micro = match i64::from(needed) - i64::from(self.needed) {
            1 => of(self.needed),
            -1 => of(needed),
            _ => (of(needed) - SLOT / 2).max(0),
        };
        let now = Level { at, micro };
        self.measure(now);
        self.pass(now);
        if at > self.last.at {
            self.before = self.last;
        }
        (self.last, self.needed) = (now, needed);
    }

    /// Measures the forecasts of times until now, and makes the next ones.
    fn measure(&mut self, now: Level) {
        for (place, parts) in PARTS_OF_DAY.iter().enumerate() {
            let ahead_ms = self.day_ms / parts;
            let mut horizon = self.horizons[place];
            for _ in 0..MEASURED_AT_ONCE_MAX {
                let due = horizon.made.plus_ms(ahead_ms);
                if due > now.at {
                    break;
                }
                horizon.learn(between(self.last, now, due));
                (horizon.made, horizon.middle) = (due, self.middle(due, ahead_ms));
            }
            if now.at.since_ms(horizon.made) >= ahead_ms {
                (horizon.made, horizon.middle) = (now.at, self.middle(now.at, ahead_ms));
            }
            self.horizons[place] = horizon;
        }
    }

    /// Lets the time pass in which the need went to where it is now.
    fn pass(&mut self, now: Level) {
        let time_ms = self.day_ms / TIMES;
        // The last day of a longer silence says all that there is to say of it.
        let from = self.until.max(TimeMs(now.at.0.saturating_sub(self.day_ms)));
        self.times += from.0 / time_ms - self.until.0 / time_ms;
        if from > self.until {
            self.micro_ms = part(between(self.last, now, from), from.0 % time_ms, 1);
        }
        self.until = from;
        while self.until < now.at {
            let end = TimeMs((self.until.0 / time_ms + 1).saturating_mul(time_ms));
            let until = end.min(now.at);
            let mean = (between(self.last, now, self.until) + between(self.last, now, until)) / 2;
            self.micro_ms += part(mean, until.since_ms(self.until), 1);
            if until == end {
                self.close(self.until.0 / time_ms % TIMES, time_ms);
            }
            self.until = until;
        }
    }

    fn close(&mut self, time: u64, time_ms: u64) {
        let mean = part(self.micro_ms, 1, time_ms);
        let known = &mut self.of_day[time as usize];
        *known = if self.times < TIMES { mean } else { *known + (mean - *known) / 4 };
        (self.micro_ms, self.times) = (0, self.times + 1);
    }

    /// How much more is needed at one time of the day than at another, as other days were.
    fn of_other_days(&self, from: TimeMs, to: TimeMs) -> i64 {
        let time_ms = self.day_ms / TIMES;
        let level = |at: TimeMs| {
            // Means are of the middle of each time.
            let since_ms = at.0.saturating_add(self.day_ms - time_ms / 2);
            let of = |time: u64| self.of_day[(time % TIMES) as usize];
            let (time, past_ms) = (since_ms / time_ms, since_ms % time_ms);
            of(time) + part(of(time + 1) - of(time), past_ms, time_ms)
        };
        level(to) - level(from)
    }

    /// How far the need goes in so long, as it went between the last two levels: no faster than it can have gone since. Where it turned nobody knows.
    fn as_now(&self, at: TimeMs, in_ms: u64) -> Option<i64> {
        let (rose, took_ms) = (self.last.micro - self.before.micro, self.last.at.since_ms(self.before.at));
        if took_ms == 0 || rose == 0 {
            return None;
        }
        let since_ms = at.since_ms(self.last.at).max(1);
        let still = part(rose.abs(), since_ms, took_ms) <= SLOT;
        Some(if still { part(rose, in_ms, took_ms) } else { part(rose.signum() * SLOT, in_ms, since_ms) })
    }

    /// Where the need is going to be, errors left out.
    fn middle(&self, at: TimeMs, in_ms: u64) -> i64 {
        let since_ms = at.since_ms(self.last.at);
        let days = self.of_other_days(self.last.at, at);
        let moved = self.as_now(at, since_ms).map_or(days, |now| (now + days) / 2);
        let top = i64::from(self.needed) * SLOT;
        let level = (self.last.micro + moved).clamp((top - SLOT).max(0), top);
        let trend_ms = self.day_ms / TREND_PARTS_OF_DAY;
        let days = self.of_other_days(at, at.plus_ms(in_ms));
        let now = self.as_now(at, in_ms).unwrap_or(days);
        level + part(days, in_ms, in_ms + trend_ms) + part(now, trend_ms, in_ms + trend_ms)
    }

    /// What is needed so far ahead, by the place of the horizon: as its fleet says, or else as its past does; none before enough is known.
    #[must_use]
    pub fn forecast(&self, at: TimeMs, place: usize) -> Option<Forecast> {
        let said = self.declared.as_ref().and_then(|declared| declared.forecast(at, place, self.horizons_ms()));
        said.or_else(|| self.foreseen(at, place))
    }

    fn foreseen(&self, at: TimeMs, place: usize) -> Option<Forecast> {
        let horizon = self.horizons.get(place)?;
        if self.times < DAYS_MIN * TIMES || horizon.measured < MEASURED_MIN {
            return None;
        }
        let in_ms = self.day_ms / PARTS_OF_DAY[place];
        let middle = self.middle(at.max(self.last.at), in_ms);
        // A thousandth of a slot is less than is known of an error, and no reason for another one.
        let slots =
            |micro: i64| (micro - ERROR_MIN).max(0).unsigned_abs().div_ceil(SLOT as u64).min(u32::MAX.into()) as u32;
        Some(Forecast {
            in_ms,
            p50_slots: slots(middle + horizon.error_p50),
            p90_slots: slots(middle + horizon.error_p90.max(horizon.error_p50)),
            error_milli: (horizon.off / 1_000).unsigned_abs(),
            covered_milli: (horizon.covered_ppm / 1_000).unsigned_abs(),
            is_declared: false,
        })
    }

    /// All that is known of what is going to be needed, the nearest first.
    pub fn forecasts(&self, at: TimeMs) -> impl Iterator<Item = Forecast> {
        (0..HORIZONS).filter_map(move |place| self.forecast(at, place))
    }

    /// As long as a minute is of a day.
    pub(crate) fn minute_ms(&self) -> u64 {
        self.day_ms / TREND_PARTS_OF_DAY
    }

    /// The nearest horizon that is at least so far ahead, or the farthest.
    pub(crate) fn horizon_of(&self, ahead_ms: u64) -> usize {
        PARTS_OF_DAY.iter().position(|parts| self.day_ms / parts >= ahead_ms).unwrap_or(HORIZONS - 1)
    }
}

impl Horizon {
    /// What was needed, where this was forecast. Quantiles go up a little by each error that is above them and down by each that is below, so that half, or
    /// a tenth, stays above.
    fn learn(&mut self, was: i64) {
        let error = was - self.middle;
        let off = (error - self.error_p50).abs();
        let step = self.off.max(ERROR_MIN);
        let below = error <= self.error_p90;
        self.error_p50 += if error > self.error_p50 { step / 8 } else { -step / 8 };
        self.error_p90 += if below { -step / 40 } else { step * 9 / 40 };
        self.off += (off - self.off) / 32;
        self.covered_ppm += (if below { 1_000_000 } else { 0 } - self.covered_ppm) / 64;
        self.measured = self.measured.saturating_add(1);
    }
}

/// Where a need was that went straight from one level to another.
fn between(from: Level, to: Level, at: TimeMs) -> i64 {
    from.micro + part(to.micro - from.micro, at.since_ms(from.at), to.at.since_ms(from.at).max(1))
}

/// So much times one time over another.
fn part(micro: i64, ms: u64, of_ms: u64) -> i64 {
    let exact = i128::from(micro) * i128::from(ms) / i128::from(of_ms.max(1));
    exact.clamp(i128::from(i64::MIN / 8), i128::from(i64::MAX / 8)) as i64
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const MINUTE_MS: u64 = 60_000;

    /// A need that rises and falls by eight slots within a day, told as it crosses whole slots, for so many days.
    fn tide(days: u64) -> (Past, u64) {
        let needed = |ms: u64| {
            let half = DAY_MS / 2;
            let up = (ms % DAY_MS).min(DAY_MS - ms % DAY_MS);
            (up * 16).div_ceil(half).max(1) as u32
        };
        let mut past = Past::new(TimeMs(0), needed(0), DAY_MS);
        let end = days * DAY_MS;
        for ms in (0..end).step_by(5_000) {
            if needed(ms) != past.needed {
                past.note(TimeMs(ms), needed(ms));
            }
        }
        (past, end)
    }

    #[test]
    fn nothing_is_forecast_before_two_days_are_known() {
        let (past, end) = tide(1);
        assert_eq!(past.forecasts(TimeMs(end)).count(), 0);
        let (past, end) = tide(3);
        assert_eq!(past.forecasts(TimeMs(end)).count(), HORIZONS);
    }

    #[test]
    fn a_rise_that_comes_every_day_is_seen_coming_and_not_long_before() {
        let (mut past, end) = tide(5);
        // The need crosses a slot every 45 minutes, 4 of them at 3 hours.
        let at = |minutes: u64| TimeMs(end + minutes * MINUTE_MS);
        for (minutes, needed) in [(1, 1), (45, 2), (90, 3), (135, 4)] {
            past.note(at(minutes), needed);
        }
        let p90 = |minutes: u64, place: usize| past.forecast(at(minutes), place).unwrap().p90_slots;
        assert_eq!((p90(140, 0), p90(160, 0)), (4, 4), "forty minutes before it");
        assert_eq!((p90(179, 1), p90(160, 5)), (5, 5), "a minute, and half an hour ahead");
        let half_hour = past.forecast(at(160), 5).unwrap();
        assert!(half_hour.error_milli < 400 && half_hour.covered_milli > 700, "{half_hour:?}");
    }

    #[test]
    fn a_repeated_need_changes_no_level_and_a_long_silence_costs_no_more_than_a_day() {
        let (mut past, end) = tide(3);
        let levels = (past.last, past.before);
        past.note(TimeMs(end + 1), past.needed);
        assert_eq!((past.last, past.before), levels);
        let years = TimeMs(end + 3_650 * DAY_MS);
        past.note(years, 7);
        past.note(years.plus_ms(1), 6);
        let of_day = past.of_day.clone();
        assert!(of_day.iter().all(|micro| (0..=16 * SLOT).contains(micro)), "{of_day:?}");
    }

    #[test]
    fn nonsense_is_counted_with() {
        let mut past = Past::new(TimeMs(u64::MAX / 4), u32::MAX, 1);
        for (at, needed) in [(0, 0), (u64::MAX / 4 + 7, u32::MAX), (u64::MAX / 4 + 7, 0), (u64::MAX / 4 + 9, u32::MAX)]
        {
            past.note(TimeMs(at), needed);
        }
        past.forecasts(TimeMs(u64::MAX / 4)).for_each(drop);
        let bytes = events_schema::batch::to_bytes(&past);
        assert_eq!(events_schema::batch::from_bytes::<Past>(&bytes).unwrap(), past);
        assert!(bytes.len() < 2_000, "{}", bytes.len());
    }
}
