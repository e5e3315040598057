//! Limits of pages. A list is read page by page: `limit` entries, then with the `next_cursor` of the answer as `cursor`.

use std::ops::RangeInclusive;

/// Fewest and most entries of a page; more would hold the read model's lock for long.
pub const LIMIT: RangeInclusive<usize> = 1..=200;
/// Entries of a page when the request does not say.
pub const LIMIT_DEFAULT: usize = 50;
/// Fewest and most entries of a page of datasets, fleets or slots; a request that does not say has the most. Datasets and slots are small, and there
/// are few fleets, each with all its slots.
pub const WIDE_LIMIT: RangeInclusive<usize> = 1..=1_000;
/// Fewest and most events of a page; events carry no specs, so a page stays below a MiB.
pub const EVENT_LIMIT: RangeInclusive<usize> = 1..=1_000;
/// Events of a page when the request does not say.
pub const EVENT_LIMIT_DEFAULT: usize = 100;
/// The cursor before the first event.
pub const BEGINNING: &str = "0-0";
