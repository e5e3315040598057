//! Tags of what is answered, and requests that depend on them (RFC 9110 §13): `If-None-Match` on reads, `If-Match` on changes. Pure.
//!
//! Tags are weak: equal ones say that nothing but running numbers (progress, slot time) differs, which no change depends on. So they are compared weakly
//! everywhere, also in `If-Match`, where the standard would have no weak tag match at all and nobody could make a change depend on anything.

use crate::problem::{ApiError, Kind};
use axum::http::{HeaderMap, HeaderName, header};
use events_schema::Digest;
use serde::Serialize;

/// Characters of a tag: 128 bits of a digest.
const TAG_LEN: usize = 32;

/// The tag of what is shown.
#[must_use]
pub fn etag(shown: &impl Serialize) -> String {
    // What is shown is a tree of texts and numbers, which is always JSON.
    let digest = Digest::of(&serde_json::to_vec(shown).unwrap_or_default()).to_string();
    format!("W/\"{}\"", &digest[..TAG_LEN])
}

/// Whether the reader has this already.
#[must_use]
pub fn has_already(headers: &HeaderMap, etag: &str) -> bool {
    names(headers, header::IF_NONE_MATCH, Some(etag)) == Some(true)
}

/// Refuses a change of what is not (any more) as the client thinks. `etag` is of what is there, if anything is.
pub fn ensure_unchanged(headers: &HeaderMap, etag: Option<&str>) -> Result<(), ApiError> {
    let refuse = |field: &str, value: &str, expected: &str| {
        Err(ApiError::of_field(Kind::PreconditionFailed, field, value, expected)
            .saying(format!("nothing was done, because `{field}` does not hold: expected {expected}")))
    };
    if names(headers, header::IF_MATCH, etag) == Some(false) {
        let expected = match etag {
            Some(etag) => format!("`{etag}`, which names it as it is now; read it again, then decide again"),
            None => "no condition: there is no such thing yet".to_owned(),
        };
        return refuse("If-Match", "another tag", &expected);
    }
    if etag.is_some() && names(headers, header::IF_NONE_MATCH, etag) == Some(true) {
        return refuse("If-None-Match", "met", "something that is not there (as this), but it is");
    }
    Ok(())
}

/// Whether a list of tags names `etag`; nothing if there is no such header. `*` names whatever is there.
fn names(headers: &HeaderMap, name: HeaderName, etag: Option<&str>) -> Option<bool> {
    if !headers.contains_key(&name) {
        return None;
    }
    let opaque = |tag: &str| tag.strip_prefix("W/").unwrap_or(tag).to_owned();
    let listed = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    let mut tags = listed.flat_map(|value| value.split(',')).map(str::trim);
    Some(etag.is_some_and(|etag| tags.any(|tag| tag == "*" || opaque(tag) == opaque(etag))))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const ETAG: &str = "W/\"abc\"";

    fn headers(name: HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, value.parse().unwrap())])
    }

    #[test]
    fn if_none_match_takes_lists_weak_tags_and_stars() {
        let has = |value| has_already(&headers(header::IF_NONE_MATCH, value), ETAG);
        assert!(has("\"abc\"") && has("\"x\", W/\"abc\"") && has("*"));
        assert!(!has("\"x\"") && !has("abc") && !has(""));
        assert!(!has_already(&HeaderMap::new(), ETAG));
    }

    #[test]
    fn a_change_depends_on_what_it_names() {
        let refused = |name, value, etag| ensure_unchanged(&headers(name, value), etag).is_err();
        assert!(!refused(header::IF_MATCH, ETAG, Some(ETAG)) && !refused(header::IF_MATCH, "*", Some(ETAG)));
        assert!(refused(header::IF_MATCH, "W/\"old\"", Some(ETAG)) && refused(header::IF_MATCH, "*", None));
        assert!(refused(header::IF_NONE_MATCH, "*", Some(ETAG)) && !refused(header::IF_NONE_MATCH, "*", None));
        assert!(ensure_unchanged(&HeaderMap::new(), None).is_ok());
    }

    #[test]
    fn equal_things_have_equal_tags() {
        assert_eq!(etag(&["a"]), etag(&["a"]));
        assert_ne!(etag(&["a"]), etag(&["b"]));
        assert_eq!(etag(&["a"]).len(), TAG_LEN + 4);
    }
}
