//! What the service answered: read as a type of the API, and as it came. Whoever passes an answer on passes on the latter, so that what a newer
//! service says beyond the type is not lost on the way.

use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use std::ops::Deref;

/// An answer; its fields are those of `T`.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer<T> {
    typed: T,
    came: Value,
}

impl<T> Answer<T> {
    /// The whole answer, with what `T` does not know.
    #[must_use]
    pub fn as_it_came(&self) -> &Value {
        &self.came
    }

    /// The answer without what `T` does not know.
    #[must_use]
    pub fn into_typed(self) -> T {
        self.typed
    }
}

impl<T> Deref for Answer<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.typed
    }
}

/// As it came.
impl<T> Serialize for Answer<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.came.serialize(serializer)
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Answer<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let came = Value::deserialize(deserializer)?;
        let typed = T::deserialize(&came).map_err(D::Error::custom)?;
        Ok(Self { typed, came })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use gateway_api::Job;

    #[test]
    fn what_a_newer_service_says_is_passed_on() {
        let text = r#"{"id":"job-a","mood":"calm"}"#;
        let job: Answer<Job> = serde_json::from_str(text).unwrap();
        assert_eq!(job.id, "job-a");
        assert_eq!(serde_json::to_string(&job).unwrap(), text);
        assert_eq!(job.as_it_came()["mood"], "calm");
    }
}
