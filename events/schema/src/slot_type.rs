//! What the slots of a server are called by how fast they are: `t4`, `epyc-9654`. Servers of one type are taken to be equally fast; of those that say none all are of
//! one type. It says nothing of what is computed there: which bits come out is the numeric class's part, and only slots of one class are ever mixed.

use crate::IdError;
use crate::fields::Fields;
use crate::job::{JobFields, JobSpec};
use minicbor::encode::Write;
use minicbor::{Decode, Decoder, Encode, Encoder, decode, encode};
use serde::{Serialize, Serializer};
use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

/// Longest name of a type, in characters: those of devices are shorter without what makes them a sentence.
pub const SLOT_TYPE_LEN_MAX: usize = 32;
const RULE: &str = "1 to 32 characters of a-z, 0-9, '-', '_' and '.', beginning with a letter or digit";
/// What drivers put before the name of every device.
const MAKERS: [&str; 2] = ["nvidia-", "tesla-"];

/// A type of slots. Small and without a pointer, because each kind of slots in a plan has one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlotType {
    /// Its characters, and zeros, which no name has, behind them.
    text: [u8; SLOT_TYPE_LEN_MAX],
}

fn is_legal(letter: u8) -> bool {
    letter.is_ascii_lowercase() || letter.is_ascii_digit() || matches!(letter, b'-' | b'_' | b'.')
}

impl SlotType {
    fn new(name: &str) -> Option<Self> {
        let bytes = name.as_bytes();
        let begins = bytes.first().is_some_and(u8::is_ascii_alphanumeric);
        let mut text = [0; SLOT_TYPE_LEN_MAX];
        text.get_mut(..bytes.len())?.copy_from_slice(bytes);
        (begins && bytes.iter().all(|letter| is_legal(*letter))).then_some(Self { text })
    }

    /// The type of a device by the name that its driver gives it: `NVIDIA H100 80GB HBM3` is `h100-80gb-hbm3`. None of one without a letter.
    #[must_use]
    pub fn of_device(name: &str) -> Option<Self> {
        let lower = name.to_ascii_lowercase();
        let words = lower.split(|letter: char| !letter.is_ascii() || !is_legal(letter as u8));
        let joined = words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join("-");
        let mut short = joined.trim_start_matches(|letter: char| !letter.is_ascii_alphanumeric());
        for maker in MAKERS {
            short = short.strip_prefix(maker).unwrap_or(short);
        }
        let short = &short[..short.len().min(SLOT_TYPE_LEN_MAX)];
        Self::new(short.trim_end_matches('-'))
    }

    /// Its name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let end = self.text.iter().position(|letter| *letter == 0).unwrap_or(SLOT_TYPE_LEN_MAX);
        // Made of ASCII alone.
        std::str::from_utf8(&self.text[..end]).unwrap_or_default()
    }
}

impl FromStr for SlotType {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        let wrong = || IdError { kind: "type of slots", value: text.chars().take(80).collect(), expected: RULE };
        Self::new(text).ok_or_else(wrong)
    }
}

impl Ord for SlotType {
    fn cmp(&self, other: &Self) -> Ordering {
        self.text.cmp(&other.text)
    }
}

impl PartialOrd for SlotType {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for SlotType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for SlotType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for SlotType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<C> Encode<C> for SlotType {
    fn encode<W: Write>(&self, e: &mut Encoder<W>, _: &mut C) -> Result<(), encode::Error<W::Error>> {
        e.str(self.as_str())?.ok()
    }
}

impl<'b, C> Decode<'b, C> for SlotType {
    fn decode(d: &mut Decoder<'b>, _: &mut C) -> Result<Self, decode::Error> {
        d.str()?.parse().map_err(|_| decode::Error::message("no name of a type of slots"))
    }
}

/// Which slots a job may be on at once, of those of its numeric class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Types {
    /// Those of one type.
    #[default]
    One,
    /// Those of several types, under a policy that mixes them: the faster ones compute more of its workers' gradients. No bit of its model depends on it.
    Any,
}

impl Types {
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Reads the field, and refuses by name what does not go with it.
    pub(crate) fn read(f: &mut Fields<'_>, profile: bool) -> Self {
        let types = f.word("types", &[("one", Types::One), ("any", Types::Any)]).unwrap_or_default();
        if profile && types == Types::Any {
            f.wrong("types", "left out, or `one`, where `profile` is said: how long a step takes on slots of several types says nothing of a size");
        }
        types
    }
}

impl JobSpec {
    /// The same job, which may be on slots of several types at once; unchanged where that does not go with what it says.
    #[must_use]
    pub fn on_any_type(self) -> Self {
        let fits = self.profile.is_none() && self.gang().is_none();
        let types = if fits { Types::Any } else { self.types };
        Self(JobFields { types, ..self.0 })
    }
}

impl<C> Encode<C> for Types {
    fn encode<W: Write>(&self, e: &mut Encoder<W>, _: &mut C) -> Result<(), encode::Error<W::Error>> {
        e.u8(*self as u8)?.ok()
    }
}

impl<'b, C> Decode<'b, C> for Types {
    fn decode(d: &mut Decoder<'b>, _: &mut C) -> Result<Self, decode::Error> {
        match d.u8()? {
            0 => Ok(Self::One),
            1 => Ok(Self::Any),
            _ => Err(decode::Error::message("a choice of types that this build does not know")),
        }
    }

    fn nil() -> Option<Self> {
        Some(Self::default())
    }
}

/// How long one rank's gradient takes a job on slots of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct TypeTime {
    /// The type; none is that of servers that say none.
    #[n(0)]
    pub slot_type: Option<SlotType>,
    /// In microseconds.
    #[n(1)]
    pub unit_us: u64,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn names_are_read_and_shown_as_they_are() {
        for name in ["t4", "v100.16", "a", "0-9_z", &"x".repeat(SLOT_TYPE_LEN_MAX)] {
            assert_eq!(name.parse::<SlotType>().unwrap().to_string(), name);
        }
        for name in ["", "-a", "T4", "a b", "ä", &"x".repeat(SLOT_TYPE_LEN_MAX + 1)] {
            assert!(name.parse::<SlotType>().unwrap_err().to_string().contains("type of slots"), "{name}");
        }
        let order = ["a", "a-b", "aa", "b"].map(|name| name.parse::<SlotType>().unwrap());
        assert!(order.is_sorted(), "as texts are");
    }

    #[test]
    fn a_device_is_called_by_its_model() {
        let of = |name| SlotType::of_device(name).map(|found| found.to_string());
        assert_eq!(of("NVIDIA H100 80GB HBM3").as_deref(), Some("h100-80gb-hbm3"));
        assert_eq!(of("Tesla T4").as_deref(), Some("t4"));
        assert_eq!(of("NVIDIA GeForce RTX 4090 (Laptop)").as_deref(), Some("geforce-rtx-4090-laptop"));
        assert_eq!(
            of("NVIDIA RTX PRO 6000 Blackwell Server Edition").as_deref(),
            Some("rtx-pro-6000-blackwell-server-ed")
        );
        assert_eq!((of(""), of("***")), (None, None));
    }
}
