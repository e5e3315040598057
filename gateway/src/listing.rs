//! Pages of lists in the order of their keys: how many, after which, and where the next page begins. Pure.

use crate::problem::ApiError;
use crate::query::{Query, number};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use gateway_api::pages::WIDE_LIMIT;
use std::fmt::Display;
use std::str::FromStr;

/// Which page of a list is wanted.
#[derive(Debug)]
pub struct Listing<K> {
    /// Name of the list: a cursor of one is none of another.
    list: &'static str,
    limit: usize,
    after: Option<K>,
}

impl<K: FromStr + Ord + Display> Listing<K> {
    /// Reads `limit` and `cursor`.
    pub fn parse(query: &Query, list: &'static str) -> Result<Self, ApiError> {
        let expected = format!("a whole number from {} to {}", WIDE_LIMIT.start(), WIDE_LIMIT.end());
        let limit = query.get("limit", &expected, |text| number(text).filter(|n| WIDE_LIMIT.contains(n)))?;
        let cursor = |text: &str| {
            let plain = String::from_utf8(URL_SAFE_NO_PAD.decode(text).ok()?).ok()?;
            plain.strip_prefix(list)?.strip_prefix(':')?.parse().ok()
        };
        let after = query.get("cursor", "a `next_cursor` of an earlier page, unchanged", cursor)?;
        Ok(Self { list, limit: limit.unwrap_or(*WIDE_LIMIT.end()), after })
    }

    /// The page of a list that stands in the order of its keys, and the cursor of the next one.
    pub fn page<T>(&self, all: impl Iterator<Item = (K, T)>) -> (Vec<(K, T)>, Option<String>) {
        let mut rest = all.filter(|(key, _)| self.after.as_ref().is_none_or(|after| key > after));
        let page: Vec<(K, T)> = rest.by_ref().take(self.limit).collect();
        let last = page.last().filter(|_| rest.next().is_some());
        let next = last.map(|(key, _)| URL_SAFE_NO_PAD.encode(format!("{}:{key}", self.list)));
        (page, next)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn listing(raw: &str, list: &'static str) -> Result<Listing<u32>, ApiError> {
        Listing::parse(&Query::parse(Some(raw), &["limit", "cursor"]).unwrap(), list)
    }

    #[test]
    fn pages_hold_everything_once() {
        let all = || (0..7u32).map(|n| (n, n));
        let (mut seen, mut raw) = (Vec::new(), "limit=3".to_owned());
        for _ in 0..3 {
            let (page, next) = listing(&raw, "slots").unwrap().page(all());
            seen.extend(page.into_iter().map(|(_, item)| item));
            match next {
                Some(next) => raw = format!("limit=3&cursor={next}"),
                None => break,
            }
        }
        assert_eq!(seen, (0..7).collect::<Vec<_>>());
        assert_eq!(listing("limit=7", "slots").unwrap().page(all()).1, None);
        assert_eq!(listing("", "slots").unwrap().page(all()).0.len(), 7);
    }

    #[test]
    fn cursors_of_other_lists_are_refused() {
        let next = listing("limit=1", "slots").unwrap().page((0..7u32).map(|n| (n, n))).1.unwrap();
        assert!(listing(&format!("cursor={next}"), "fleets").is_err());
        for raw in ["cursor=x", "cursor=", "limit=0", "limit=1001"] {
            assert!(listing(raw, "slots").is_err(), "{raw}");
        }
    }
}
