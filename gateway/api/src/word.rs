//! Words of open lists: later builds may add to each, so a reader keeps a word that it does not know instead of failing at it.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;

/// A word as an answer says it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Word<T> {
    /// One that this build knows.
    Known(T),
    /// One that a later build added.
    Other(String),
}

impl<T> Word<T> {
    /// The word, if this build knows it.
    pub fn known(&self) -> Option<&T> {
        match self {
            Word::Known(word) => Some(word),
            Word::Other(_) => None,
        }
    }
}

impl<T> Default for Word<T> {
    /// What an answer says that leaves the word out.
    fn default() -> Self {
        Word::Other(String::new())
    }
}

impl<T> From<T> for Word<T> {
    fn from(word: T) -> Self {
        Word::Known(word)
    }
}

impl<T: AsRef<str>> Word<T> {
    /// The word as it stands in the answer.
    pub fn as_str(&self) -> &str {
        match self {
            Word::Known(word) => word.as_ref(),
            Word::Other(word) => word,
        }
    }
}

impl<T: AsRef<str>> fmt::Display for Word<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl<T: AsRef<str>> PartialEq<str> for Word<T> {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl<T: AsRef<str>> PartialEq<&str> for Word<T> {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl<T: JsonSchema> JsonSchema for Word<T> {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let known = generator.subschema_for::<T>();
        json_schema!({"anyOf": [known, {"type": "string", "description": "Whatever later builds add."}]})
    }
}

/// Words with their texts.
macro_rules! words {
    ($($(#[doc = $doc:literal])* $name:ident { $($(#[doc = $word_doc:literal])* $word:ident = $text:literal,)* })*) => {$(
        $(#[doc = $doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        pub enum $name {
            $($(#[doc = $word_doc])* #[serde(rename = $text)] $word,)*
        }
        impl $name {
            /// All words, in the order in which they are told.
            pub const ALL: &'static [Self] = &[$(Self::$word,)*];
            /// The word itself.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$word => $text,)* }
            }
            /// Reads the word back.
            #[must_use]
            pub fn parse(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|word| word.as_str() == text)
            }
        }
        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                self.as_str()
            }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    )*};
}
pub(crate) use words;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::{JobPhase, Word};

    #[test]
    fn a_word_of_a_later_build_is_kept() {
        let read = |text: &str| serde_json::from_str::<Word<JobPhase>>(text).unwrap();
        assert_eq!(read("\"running\""), Word::Known(JobPhase::Running));
        let later = read("\"hibernating\"");
        assert!(later == "hibernating" && later.known().is_none());
        assert_eq!(serde_json::to_string(&later).unwrap(), "\"hibernating\"");
    }
}
