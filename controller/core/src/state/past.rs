//! What a fleet needed until now, and what that says of what it will need soon.
//!
//! A fleet's past is folded from the signals that counted: the level that its need last crossed and the one before (between them it is taken to have gone
//! straight), what it needed in the mean at each time of the day, and by how much forecasts were wrong. A forecast is the level now, moved on by how the need
//! went at this time on other days and, for the next minute, by how it goes now; its quantiles are those of the errors that such forecasts had until now.
//! A need that stays as it is says what it is on those days as well, or a rise that comes no more would be foreseen for ever.
//!
//! What its fleet says itself of what it is going to need (`declared.rs`) is taken instead.
//!
//! How the past is folded is part of the record format, as [`super::bounds`] is: another rule needs a version that says from where on it holds
//! (`events_schema::fold`). What is decided by a forecast is not known here (`decide/ahead.rs`). Whole numbers only; a level is in millionths of a slot.

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
/// Days in which a need stayed as it was, of which the last ones count: after so many a thousandth is left of those before.
const UNCHANGED_DAYS_MAX: u64 = 24;
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
    /// Whether all of a time counts in which the need stays as it is; in earlier builds only the last day of it did, and only afterwards.
    #[n(10)]
    #[cbor(default, skip_if = "std::ops::Not::not")]
    unchanged_counts: bool,
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
    pub(crate) fn new(at: TimeMs, needed: u32, day_ms: u64, unchanged_counts: bool) -> Self {
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
        let (last, before) = (level, level);
        Self { day_ms, until, needed, last, before, micro_ms, of_day, times, horizons, declared, unchanged_counts }
    }

    /// By which rule its past is folded from now on.
    pub(crate) fn count_unchanged(&mut self, counts: bool) {
        self.unchanged_counts = counts;
    }

    /// Begins again after a time in which nothing was noted, and of which nothing is known.
    pub(crate) fn resume(&mut self, at: TimeMs) {
        let now = Level { at: at.max(self.last.at), ..self.last };
        (self.last, self.before, self.until) = (now, now, now.at);
        self.micro_ms = part(now.micro, now.at.0 % (self.day_ms / TIMES), 1);
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

    /// Lets the time pass in which the need went to where it is now: straight, but where it was said to be the same for a day and longer, in the last quarter of an hour.
    fn pass(&mut self, now: Level) {
        let stayed = self.unchanged_counts && now.at.since_ms(self.last.at) >= self.day_ms;
        let turned = Level { at: now.at.minus_ms(self.day_ms / TIMES), ..self.last };
        if stayed {
            self.pass_between(self.last, turned);
        }
        self.pass_between(if stayed { turned } else { self.last }, now);
    }

    fn pass_between(&mut self, last: Level, now: Level) {
        let time_ms = self.day_ms / TIMES;
        let days = if self.unchanged_counts { UNCHANGED_DAYS_MAX } else { 1 };
        let from = self.until.max(TimeMs(now.at.0.saturating_sub(self.day_ms.saturating_mul(days))));
        self.times += from.0 / time_ms - self.until.0 / time_ms;
        if from > self.until {
            self.micro_ms = part(between(last, now, from), from.0 % time_ms, 1);
        }
        self.until = from;
        while self.until < now.at {
            let end = TimeMs((self.until.0 / time_ms + 1).saturating_mul(time_ms));
            let until = end.min(now.at);
            let mean = (between(last, now, self.until) + between(last, now, until)) / 2;
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
        *known = if self.times < TIMES { mean } else { one_more_day(*known, mean) };
        (self.micro_ms, self.times) = (0, self.times + 1);
    }

    /// Whole days in which the need has stayed as it is.
    fn unchanged_days(&self, at: TimeMs) -> u64 {
        if self.unchanged_counts { at.since_ms(self.until) / self.day_ms } else { 0 }
    }

    /// How much more is needed at one time of the day than at another, as other days were: less by a quarter for each whole day since then in which the need stayed
    /// as it is. A part of a day does not count, or one time of the day would for a while be less than the next that was as high.
    fn of_other_days(&self, (from, to): (TimeMs, TimeMs), known_at: TimeMs) -> i64 {
        let days = self.unchanged_days(known_at).min(UNCHANGED_DAYS_MAX);
        let time_ms = self.day_ms / TIMES;
        let level = |at: TimeMs| {
            // Means are of the middle of each time.
            let since_ms = at.0.saturating_add(self.day_ms - time_ms / 2);
            let of = |time: u64| self.of_day[(time % TIMES) as usize];
            let (time, past_ms) = (since_ms / time_ms, since_ms % time_ms);
            of(time) + part(of(time + 1) - of(time), past_ms, time_ms)
        };
        (0..days).fold(level(to) - level(from), |more, _| one_more_day(more, 0))
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
        let days = self.of_other_days((self.last.at, at), at);
        let moved = self.as_now(at, since_ms).map_or(days, |now| (now + days) / 2);
        let top = i64::from(self.needed) * SLOT;
        // One that stays for a day is not where it crossed into its slot any more.
        let level = match self.unchanged_days(at) {
            0 => (self.last.micro + moved).clamp((top - SLOT).max(0), top),
            _ => (top - SLOT / 2).max(0),
        };
        let trend_ms = self.day_ms / TREND_PARTS_OF_DAY;
        let days = self.of_other_days((at, at.plus_ms(in_ms)), at);
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

/// What is needed in the mean at a time of the day, after one more.
fn one_more_day(known: i64, mean: i64) -> i64 {
    known + (mean - known) / 4
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
        of_days(days, |ms| {
            let half = DAY_MS / 2;
            (ms.min(DAY_MS - ms) * 16).div_ceil(half).max(1) as u32
        })
    }

    /// A need that is so at each time of every day, for so many days.
    fn of_days(days: u64, of_day: impl Fn(u64) -> u32) -> (Past, u64) {
        let needed = |ms: u64| of_day(ms % DAY_MS);
        let mut past = Past::new(TimeMs(0), needed(0), DAY_MS, true);
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
    fn a_rise_that_comes_no_more_is_foreseen_less_with_each_day_and_then_not_at_all() {
        let (mut past, end) = tide(5);
        past.note(TimeMs(end + MINUTE_MS), 1);
        // Half an hour before another slot was needed on other days.
        let foreseen = |past: &Past, day: u64| {
            let at = TimeMs(end + day * DAY_MS + 8 * 60 * MINUTE_MS);
            past.forecast(at, 5).unwrap().p90_slots
        };
        let days: Vec<u32> = [0, 3, 10, 100].iter().map(|day| foreseen(&past, *day)).collect();
        assert_eq!(days, [2, 2, 1, 1]);
        let earlier = Past { unchanged_counts: false, ..past.clone() };
        assert_eq!(foreseen(&earlier, 100), 2, "as earlier builds did");
    }

    #[test]
    fn a_need_that_stays_as_it_is_makes_no_forecast_that_comes_and_goes() {
        // It rises by fifteen slots between six and nine, and falls back between nine and midnight in the evening.
        let (past, end) = of_days(20, |ms| {
            let minute = ms / MINUTE_MS;
            let up = minute.saturating_sub(6 * 60).min(24 * 60 - minute).min(3 * 60);
            1 + (up / 12) as u32
        });
        let p90 = |minute: u64| past.forecast(TimeMs(end + minute * MINUTE_MS), 5).unwrap().p90_slots;
        // The next day it stays as it was at midnight, also while it was high on the others.
        let looks: Vec<u32> = (9 * 60 + 30..17 * 60).map(p90).collect();
        let changes = looks.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert_eq!(changes, 0, "from half past nine to five: {looks:?}");
    }

    #[test]
    fn what_a_need_is_for_a_moment_after_days_is_not_what_it_was_on_those_days() {
        let (mut past, end) = tide(5);
        past.note(TimeMs(end + MINUTE_MS), 1);
        let noon = TimeMs(end + 100 * DAY_MS + 12 * 60 * MINUTE_MS);
        past.note(noon, 90);
        past.note(noon.plus_ms(MINUTE_MS), 1);
        let higher = past.of_day.iter().filter(|micro| **micro > SLOT + SLOT / 10).count();
        assert_eq!(higher, 1, "but the quarter of an hour that it was in: {:?}", past.of_day);
    }

    #[test]
    fn what_was_not_noted_counts_as_no_unchanged_need() {
        let (mut past, end) = tide(5);
        past.note(TimeMs(end + MINUTE_MS), 1);
        let of_day = past.of_day.clone();
        past.resume(TimeMs(end + 30 * DAY_MS));
        past.note(TimeMs(end + 30 * DAY_MS + MINUTE_MS), 2);
        assert_eq!(past.of_day, of_day);
    }

    #[test]
    fn a_repeated_need_changes_no_level_and_a_long_silence_costs_no_more_than_24_days() {
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
        let mut past = Past::new(TimeMs(u64::MAX / 4), u32::MAX, 1, true);
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
