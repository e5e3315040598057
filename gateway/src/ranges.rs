//! Parts of files (RFC 9110 §14): which bytes of a representation a request asks for. Pure.

use axum::http::{HeaderMap, header};
use std::ops::Range;

/// What a request asks for of a file of `size` bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// All of it.
    Whole,
    /// These bytes.
    Part(Range<u64>),
    /// Bytes that it does not have.
    Beyond {
        /// How many it has.
        size: u64,
    },
}

/// Reads `Range` and `If-Range`. Whatever is no single range of bytes is passed over, as the standard allows: the whole file answers it.
#[must_use]
pub fn wanted(headers: &HeaderMap, etag: &str, size: u64) -> Wanted {
    let text = |name| {
        let mut values = headers.get_all(name).iter();
        let first = values.next().and_then(|value| value.to_str().ok());
        first.filter(|_| values.next().is_none())
    };
    let Some(range) = text(header::RANGE) else { return Wanted::Whole };
    // A part of another file would be worthless. No dates are given, so none can match; and a weak tag never does.
    if headers.contains_key(header::IF_RANGE) && text(header::IF_RANGE).map(str::trim) != Some(etag) {
        return Wanted::Whole;
    }
    let number = |text: &str| text.bytes().all(|c| c.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten();
    let Some((first, last)) = range.trim().strip_prefix("bytes=").and_then(|set| set.trim().split_once('-')) else {
        return Wanted::Whole;
    };
    match (first.is_empty(), number(first), last.is_empty(), number(last)) {
        // The last so many.
        (true, _, false, Some(0)) => Wanted::Beyond { size },
        (true, _, false, Some(_)) if size == 0 => Wanted::Beyond { size },
        (true, _, false, Some(count)) => Wanted::Part(size.saturating_sub(count)..size),
        (false, Some(first), true, _) if first < size => Wanted::Part(first..size),
        (false, Some(first), false, Some(last)) if first > last => Wanted::Whole,
        (false, Some(first), false, Some(last)) if first < size => {
            Wanted::Part(first..last.saturating_add(1).min(size))
        }
        (false, Some(_), true, _) | (false, Some(_), false, Some(_)) => Wanted::Beyond { size },
        _ => Wanted::Whole,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const ETAG: &str = "\"abc\"";

    fn of(pairs: &[(header::HeaderName, &str)]) -> Wanted {
        let headers = pairs.iter().map(|(name, value)| (name.clone(), value.parse().unwrap()));
        wanted(&headers.collect(), ETAG, 100)
    }

    #[test]
    fn one_range_is_a_part() {
        for (range, part) in [
            ("bytes=0-9", Wanted::Part(0..10)),
            ("bytes=90-", Wanted::Part(90..100)),
            ("bytes=-10", Wanted::Part(90..100)),
            ("bytes=-1000", Wanted::Part(0..100)),
            ("bytes=99-1000", Wanted::Part(99..100)),
            ("bytes=5-18446744073709551615", Wanted::Part(5..100)),
            ("bytes=100-", Wanted::Beyond { size: 100 }),
            ("bytes=100-200", Wanted::Beyond { size: 100 }),
            ("bytes=-0", Wanted::Beyond { size: 100 }),
        ] {
            assert_eq!(of(&[(header::RANGE, range)]), part, "{range}");
        }
        assert_eq!(of(&[]), Wanted::Whole);
    }

    #[test]
    fn what_is_no_range_is_passed_over() {
        for range in [
            "bytes=",
            "bytes=-",
            "bytes=9-5",
            "bytes=a-b",
            "bytes=0-1,5-6",
            "lines=0-9",
            "bytes=+1-2",
            "0-9",
            "bytes=18446744073709551616-",
        ] {
            assert_eq!(of(&[(header::RANGE, range)]), Wanted::Whole, "{range}");
        }
    }

    #[test]
    fn a_part_is_of_the_file_that_was_begun() {
        let range = (header::RANGE, "bytes=10-");
        assert_eq!(of(&[range.clone(), (header::IF_RANGE, ETAG)]), Wanted::Part(10..100));
        for other in ["\"other\"", "W/\"abc\"", "Sun, 22 Nov 2026 09:00:00 GMT"] {
            assert_eq!(of(&[range.clone(), (header::IF_RANGE, other)]), Wanted::Whole, "{other}");
        }
    }
}
