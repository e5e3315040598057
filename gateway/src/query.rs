//! Reads query strings: every parameter is known, stands once and parses, or the request is refused by the parameter's name.
//!
//! Also the opaque cursors of pages. Knows nothing of what a parameter is for.

use crate::problem::{ApiError, Kind};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use events_public::FactPosition;
use events_schema::fields::nearest;
use events_schema::ids::NAME_LEN_MAX;
use gateway_api::pages::{LIMIT, LIMIT_DEFAULT};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// The parameters of a request.
#[derive(Debug)]
pub struct Query(BTreeMap<String, String>);

impl Query {
    /// Reads a raw query string, of which only the `known` parameters are legal.
    pub fn parse(raw: Option<&str>, known: &[&str]) -> Result<Self, ApiError> {
        let mut parameters = BTreeMap::new();
        for (name, value) in url::form_urlencoded::parse(raw.unwrap_or_default().as_bytes()) {
            if !known.contains(&name.as_ref()) {
                let expected = match (nearest(&name, known.iter().copied()), known) {
                    (Some(near), _) => format!("no such parameter; did you mean `{near}`?"),
                    (None, []) => "no such parameter; no query parameters here".to_owned(),
                    (None, _) => format!("no such parameter; the parameters here are {}", known.join(", ")),
                };
                let said = expected.trim_start_matches("no such parameter");
                let detail =
                    format!("there is no query parameter `{name}` here{}", if said == expected { "" } else { said });
                return Err(ApiError::of_field(Kind::InvalidQuery, &name, &value, expected).saying(detail));
            }
            if parameters.contains_key(name.as_ref()) {
                return Err(ApiError::of_field(Kind::InvalidQuery, &name, &value, "a parameter that stands once"));
            }
            parameters.insert(name.into_owned(), value.into_owned());
        }
        Ok(Self(parameters))
    }

    /// An optional parameter, parsed by `parse`; `expected` says what would be right.
    pub fn get<T>(
        &self,
        name: &str,
        expected: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.0.get(name) else { return Ok(None) };
        parse(value).map(Some).ok_or_else(|| ApiError::of_field(Kind::InvalidQuery, name, value, expected))
    }

    /// An optional parameter as it stands.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// What names are to begin with; all begin with nothing.
    pub fn prefix(&self) -> Result<&str, ApiError> {
        match self.text("prefix") {
            None => Ok(""),
            Some(prefix) if (1..=NAME_LEN_MAX).contains(&prefix.len()) => Ok(prefix),
            Some(wrong) => {
                let expected = format!("the first characters of a name, 1 to {NAME_LEN_MAX}");
                Err(ApiError::of_field(Kind::InvalidQuery, "prefix", wrong, expected))
            }
        }
    }

    /// A stretch of numbers, both ends in it; everything if neither is given.
    pub fn stretch(&self, from: &str, to: &str) -> Result<RangeInclusive<u64>, ApiError> {
        let bound = |name: &str| self.get(name, "a whole number", number::<u64>);
        let (first, last) = (bound(from)?.unwrap_or(0), bound(to)?.unwrap_or(u64::MAX));
        if first > last {
            // Nothing lies between them, and an empty list would read as if nothing were there.
            let expected = format!("at most `{to}`, which is {last}");
            return Err(ApiError::of_field(Kind::InvalidQuery, from, &first.to_string(), expected));
        }
        Ok(first..=last)
    }

    /// The size of a page.
    pub fn limit(&self) -> Result<usize, ApiError> {
        let expected = format!("a whole number from {} to {}", LIMIT.start(), LIMIT.end());
        let limit = self.get("limit", &expected, |text| number(text).filter(|n| LIMIT.contains(n)))?;
        Ok(limit.unwrap_or(LIMIT_DEFAULT))
    }
}

/// A number as people write it: digits only, without a sign.
pub fn number<T: FromStr>(text: &str) -> Option<T> {
    if text.bytes().all(|c| c.is_ascii_digit()) { text.parse().ok() } else { None }
}

/// The text form of an event's place, `OFFSET-INDEX`.
#[must_use]
pub fn event_cursor(position: FactPosition) -> String {
    position.to_string()
}

/// Reads back [`event_cursor`].
#[must_use]
pub fn parse_event_cursor(text: &str) -> Option<FactPosition> {
    text.parse().ok()
}

/// An opaque cursor of the job list: the place of the last job shown.
#[must_use]
pub fn job_cursor(position: FactPosition) -> String {
    URL_SAFE_NO_PAD.encode(format!("jobs:{}", event_cursor(position)))
}

/// Reads back [`job_cursor`].
#[must_use]
pub fn parse_job_cursor(text: &str) -> Option<FactPosition> {
    let plain = String::from_utf8(URL_SAFE_NO_PAD.decode(text).ok()?).ok()?;
    parse_event_cursor(plain.strip_prefix("jobs:")?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use events_schema::Offset;

    #[test]
    fn parameters_are_known_single_and_decoded() {
        let query = Query::parse(Some("phase=run%6eing&limit=7"), &["phase", "limit"]).unwrap();
        assert_eq!(query.get("phase", "", |text| Some(text.to_owned())).unwrap().unwrap(), "running");
        assert_eq!(query.limit().unwrap(), 7);
        for (raw, phrase) in
            [("limt=1", "did you mean `limit`"), ("x=1", "the parameters here are"), ("limit=1&limit=2", "once")]
        {
            let error = Query::parse(Some(raw), &["limit"]).unwrap_err();
            assert!(error.detail.contains(phrase), "{raw}: {}", error.detail);
        }
        for raw in ["limit=0", "limit=201", "limit=-1", "limit=%2B1", "limit=", "limit=99999999999999999999"] {
            assert!(Query::parse(Some(raw), &["limit"]).unwrap().limit().is_err(), "{raw}");
        }
    }

    #[test]
    fn a_stretch_that_ends_before_it_begins_is_refused() {
        let stretch = |raw| Query::parse(Some(raw), &["from", "to"]).unwrap().stretch("from", "to");
        for (raw, found) in [("", 0..=u64::MAX), ("from=7", 7..=u64::MAX), ("to=7", 0..=7), ("from=7&to=7", 7..=7)] {
            assert_eq!(stretch(raw).unwrap(), found, "{raw}");
        }
        let refused = stretch("from=8&to=7").unwrap_err();
        assert_eq!(
            (refused.kind, refused.detail.as_str()),
            (Kind::InvalidQuery, "`from` is 8; expected at most `to`, which is 7")
        );
        assert!(stretch("from=-1").is_err());
    }

    #[test]
    fn cursors_survive_their_text_form() {
        let position = FactPosition { offset: Offset(u64::MAX), index: 7 };
        assert_eq!(parse_event_cursor(&event_cursor(position)), Some(position));
        assert_eq!(parse_job_cursor(&job_cursor(position)), Some(position));
        for bad in ["", "1", "1-", "-1", "1-2-3", "+1-2", " 1-2", "1-4294967296"] {
            assert_eq!(parse_event_cursor(bad), None, "{bad:?}");
            assert_eq!(parse_job_cursor(bad), None, "{bad:?}");
        }
    }
}
