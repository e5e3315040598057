//! The mark by which the topics of one log know each other: a topic that was deleted and made anew lacks it, so that inputs
//! which were acknowledged in the old one are missed loudly.
//!
//! Kafka gives every topic an id of its own, but the client library does not show it. A setting is as durable as the topic,
//! comes with the descriptions that are asked for at each start anyway, and goes with the topic. `delete.retention.ms` has no
//! effect on topics that are not compacted, which ours never are, and takes any number; so a log's topics are made with one
//! random value of it. Topics of logs before the mark have the cluster's default, all the same, and are taken.

use crate::OpenError;
use std::fmt;

/// The setting that carries it.
pub(super) const SETTING: &str = "delete.retention.ms";
/// One day, Kafka's default: what topics have that nobody marked.
const DAY_MS: u64 = 86_400_000;
/// Two years, the most that managed clusters take.
const MARK_MAX: u64 = 63_113_904_000;

/// A number that the topics of one log have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark(u64);

impl Mark {
    /// What topics have that were made before there were marks.
    pub const UNMARKED: Self = Self(DAY_MS);

    /// One that no other log has: of 6 × 10¹⁰.
    pub fn random() -> Result<Self, getrandom::Error> {
        Ok(Self(DAY_MS + 1 + getrandom::u64()? % (MARK_MAX - DAY_MS)))
    }

    /// A setting's value.
    pub fn parse(text: &str) -> Option<Self> {
        text.parse().ok().map(Self)
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Whether topics, each with the value of the setting, are of one log. The one that differs from most is named.
pub(super) fn check(topics: &[(String, String)]) -> Result<(), OpenError> {
    let votes = |mark: &str| topics.iter().filter(|(_, found)| found == mark).count();
    let Some((other, expected)) = topics.iter().max_by_key(|(_, mark)| votes(mark)) else { return Ok(()) };
    match topics.iter().find(|(_, found)| found != expected) {
        None => Ok(()),
        Some((topic, found)) => Err(OpenError::Replaced {
            topic: topic.clone(),
            other: other.clone(),
            found: found.clone(),
            expected: expected.clone(),
        }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn topics(marks: [&str; 3]) -> Vec<(String, String)> {
        ["commands", "demand", "events"].iter().zip(marks).map(|(t, m)| ((*t).to_owned(), m.to_owned())).collect()
    }

    #[test]
    fn the_topic_that_was_made_anew_is_named() {
        check(&topics(["7", "7", "7"])).unwrap();
        check(&[]).unwrap();
        for (marks, expected) in
            [(["7", "7", "8"], "events"), (["8", "7", "7"], "commands"), (["7", "86400000", "7"], "demand")]
        {
            let error = check(&topics(marks)).unwrap_err();
            assert!(matches!(&error, OpenError::Replaced { topic, .. } if topic == expected), "{error}");
        }
    }

    #[test]
    fn marks_differ_from_each_other_and_from_none() {
        let (one, other) = (Mark::random().unwrap(), Mark::random().unwrap());
        assert!(one != other && one != Mark::UNMARKED && Mark::parse(&one.to_string()) == Some(one));
        assert!(one.0 > DAY_MS && one.0 <= MARK_MAX);
    }
}
