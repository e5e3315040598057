//! The wall clock. Whoever decides gets time as an input; this is where shells take it from.

use events_schema::TimeMs;
use std::time::SystemTime;

/// Milliseconds since 1970; 0 on a clock that stands before.
#[must_use]
pub fn wall_clock() -> TimeMs {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    TimeMs(u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX))
}
