//! One type per kind of thing, so that a step is never passed for an offset. Each has one parse rule and one display form.

use minicbor::encode::Write;
use minicbor::{Decode, Encode};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

/// A text that is not a valid id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{value}` is not a valid {kind}; expected {expected}")]
pub struct IdError {
    /// What was being parsed, for example `fleet name`.
    pub kind: &'static str,
    /// The text as given, cut to 80 characters.
    pub value: String,
    /// The rule it breaks.
    pub expected: &'static str,
}

/// Longest name a user may give to anything.
pub const NAME_LEN_MAX: usize = 63;
const NAME_RULE: &str = "1 to 63 characters of a-z, 0-9, '-', '_' and '.', beginning with a letter or digit";

fn check_name(kind: &'static str, value: &str) -> Result<(), IdError> {
    let legal = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, b'-' | b'_' | b'.');
    let first_ok = value.bytes().next().is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    if first_ok && value.len() <= NAME_LEN_MAX && value.bytes().all(legal) {
        Ok(())
    } else {
        Err(IdError { kind, value: value.chars().take(80).collect(), expected: NAME_RULE })
    }
}

/// The text of a name, which is compared far more often than it is read: the controller finds everything by it.
#[derive(Clone)]
struct Name {
    /// The first characters, as a number that orders like them. Most comparisons end here, without a look at the text elsewhere in memory.
    begin: u64,
    /// Shared, because whoever decides copies names all the time, and each copy would be one more piece of memory.
    text: Arc<str>,
}

impl Name {
    fn new(text: &str) -> Self {
        let mut begin = [0; size_of::<u64>()];
        begin.iter_mut().zip(text.bytes()).for_each(|(begin, byte)| *begin = byte);
        Self { begin: u64::from_be_bytes(begin), text: text.into() }
    }

    /// Whether nothing follows its first characters. No name has a character 0.
    #[inline]
    fn is_short(&self) -> bool {
        self.text.len() <= size_of::<u64>()
    }
}

impl Ord for Name {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        let rest = || match self.is_short() && other.is_short() || Arc::ptr_eq(&self.text, &other.text) {
            true => Ordering::Equal,
            false => self.text.cmp(&other.text),
        };
        self.begin.cmp(&other.begin).then_with(rest)
    }
}

impl PartialOrd for Name {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Name {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Name {}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

macro_rules! name_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Name);
        impl<C> Encode<C> for $name {
            fn encode<W: Write>(
                &self,
                e: &mut minicbor::Encoder<W>,
                _: &mut C,
            ) -> Result<(), minicbor::encode::Error<W::Error>> {
                e.str(self.as_str())?.ok()
            }
        }
        // By the same rule as text, so that no record holds a name that could not have been given.
        impl<'b, C> Decode<'b, C> for $name {
            fn decode(d: &mut minicbor::Decoder<'b>, _: &mut C) -> Result<Self, minicbor::decode::Error> {
                let at = d.position();
                Self::parse(d.str()?).map_err(|error| minicbor::decode::Error::message(error).at(at))
            }
        }
        impl $name {
            /// Parses the one legal form.
            pub fn parse(value: &str) -> Result<Self, IdError> {
                check_name($kind, value)?;
                Ok(Self(Name::new(value)))
            }
            /// The text form.
            pub fn as_str(&self) -> &str {
                &self.0.text
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
        impl FromStr for $name {
            type Err = IdError;
            fn from_str(s: &str) -> Result<Self, IdError> {
                Self::parse(s)
            }
        }
        impl TryFrom<String> for $name {
            type Error = IdError;
            fn try_from(s: String) -> Result<Self, IdError> {
                Self::parse(&s)
            }
        }
        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.as_str().to_owned()
            }
        }
    };
}

macro_rules! number_id {
    ($(#[$doc:meta])* $name:ident, $repr:ty) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode, Serialize, Deserialize)]
        #[cbor(transparent)]
        #[serde(transparent)]
        pub struct $name(#[n(0)] pub $repr);
        impl $name {
            /// The one after this.
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

name_id!(/// A job, `job-` and 26 unguessable characters, minted where the submit enters.
    JobId, "job id");
name_id!(/// Who a command is from, and whose a job is. All commands of a gateway are of one tenant, `local`; a job's spec may name another.
    TenantId, "tenant name");
name_id!(/// An inference fleet that lends slots.
    FleetId, "fleet name");
name_id!(/// A machine that holds slots, named by its agent.
    ServerId, "server name");
name_id!(/// A registered dataset.
    DatasetName, "dataset name");
name_id!(/// One command, minted where it enters; the same id twice has one effect.
    CommandId, "command id");

number_id!(/// A numbered membership of a job; never goes back.
    Generation, u64);
number_id!(/// A global mini-batch of a job. The replica "at step s" is the one that step s reads.
    Step, u64);
number_id!(/// A logical worker of a job, `0..workers.max`.
    Rank, u16);
number_id!(/// The offset of a controller's claim in the `events` stream.
    Term, u64);
number_id!(/// A record's place in one stream of one cell, from 0, without gaps on the embedded log.
    Offset, u64);
number_id!(/// A batch's place after its claim, from 0.
    Sequence, u64);
number_id!(/// A server set with one active controller and a total order of facts.
    Cell, u32);
number_id!(/// Milliseconds since 1970-01-01 UTC, as read by whoever created the input.
    TimeMs, u64);

/// One accelerator slot of one server; displayed `server/index`. Its guest slot is a second place on the same device or processors, for an executor
/// of another job beside the one of the slot; displayed `server/index-guest`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SlotId {
    /// The server it belongs to.
    #[n(0)]
    pub server: ServerId,
    /// Its number there, from 0; that of a guest slot is its host's from [`GUEST_INDEX_MIN`] on.
    #[n(1)]
    pub index: u16,
}

/// Numbers of slots from here on are guest slots: no server has half as many slots.
pub const GUEST_INDEX_MIN: u16 = 1 << 15;
/// What follows the number of its host in the text of a guest slot.
const GUEST_SUFFIX: &str = "-guest";

/// Whether a number is a guest slot's.
#[must_use]
pub fn is_guest_index(index: u16) -> bool {
    index >= GUEST_INDEX_MIN
}

/// The number of the slot whose device or processors a slot uses: its own, or its host's.
#[must_use]
pub fn host_index(index: u16) -> u16 {
    index & !GUEST_INDEX_MIN
}

impl SlotId {
    /// Whether it is a guest slot.
    #[must_use]
    pub fn is_guest(&self) -> bool {
        is_guest_index(self.index)
    }

    /// The guest slot beside it; itself, if it is one.
    #[must_use]
    pub fn guest(&self) -> Self {
        Self { server: self.server.clone(), index: self.index | GUEST_INDEX_MIN }
    }

    /// The slot that a guest slot is beside; itself, if it is none.
    #[must_use]
    pub fn host(&self) -> Self {
        Self { server: self.server.clone(), index: host_index(self.index) }
    }
}

impl fmt::Display for SlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suffix = if self.is_guest() { GUEST_SUFFIX } else { "" };
        write!(f, "{}/{}{suffix}", self.server, host_index(self.index))
    }
}

impl FromStr for SlotId {
    type Err = IdError;
    fn from_str(s: &str) -> Result<Self, IdError> {
        let wrong = || IdError {
            kind: "slot id",
            value: s.chars().take(80).collect(),
            expected: "SERVER/INDEX, for example `local/0`",
        };
        let (server, place) = s.rsplit_once('/').ok_or_else(wrong)?;
        let (number, guest) = place.strip_suffix(GUEST_SUFFIX).map_or((place, 0), |number| (number, GUEST_INDEX_MIN));
        let index: u16 = number.parse().map_err(|_| wrong())?;
        // A plain number so high is of a slot that no server has, and is read as it was before there were guest slots.
        if guest > 0 && is_guest_index(index) {
            return Err(wrong());
        }
        Ok(Self { server: ServerId::parse(server)?, index: index | guest })
    }
}

impl TryFrom<String> for SlotId {
    type Error = IdError;
    fn try_from(s: String) -> Result<Self, IdError> {
        s.parse()
    }
}

impl From<SlotId> for String {
    fn from(id: SlotId) -> String {
        id.to_string()
    }
}

/// One executor process of a job, numbered by the controller and never reused; displayed `job/e3`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ExecutorId {
    /// The job it trains.
    #[n(0)]
    pub job: JobId,
    /// Its number within the job, from 0.
    #[n(1)]
    pub number: u32,
}

impl fmt::Display for ExecutorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/e{}", self.job, self.number)
    }
}

impl FromStr for ExecutorId {
    type Err = IdError;
    fn from_str(s: &str) -> Result<Self, IdError> {
        let wrong = || IdError { kind: "executor id", value: s.chars().take(80).collect(), expected: "JOB/eNUMBER" };
        let (job, number) = s.rsplit_once("/e").ok_or_else(wrong)?;
        Ok(Self { job: JobId::parse(job)?, number: number.parse().map_err(|_| wrong())? })
    }
}

impl TryFrom<String> for ExecutorId {
    type Error = IdError;
    fn try_from(s: String) -> Result<Self, IdError> {
        s.parse()
    }
}

impl From<ExecutorId> for String {
    fn from(id: ExecutorId) -> String {
        id.to_string()
    }
}

/// A BLAKE3 digest; 64 hexadecimal characters as text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[cbor(transparent)]
pub struct Digest(#[cbor(n(0), with = "minicbor::bytes")] pub [u8; 32]);

impl Digest {
    /// The digest of some bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = IdError;
    fn from_str(s: &str) -> Result<Self, IdError> {
        let wrong =
            || IdError { kind: "digest", value: s.chars().take(80).collect(), expected: "64 hexadecimal characters" };
        let bytes = s.as_bytes();
        if bytes.len() != 64 || !bytes.iter().all(u8::is_ascii_hexdigit) {
            return Err(wrong());
        }
        let mut out = [0u8; 32];
        for (i, pair) in bytes.chunks_exact(2).enumerate() {
            let text = std::str::from_utf8(pair).map_err(|_| wrong())?;
            out[i] = u8::from_str_radix(text, 16).map_err(|_| wrong())?;
        }
        Ok(Self(out))
    }
}

impl TryFrom<String> for Digest {
    type Error = IdError;
    fn try_from(s: String) -> Result<Self, IdError> {
        s.parse()
    }
}

impl From<Digest> for String {
    fn from(d: Digest) -> String {
        d.to_string()
    }
}

/// What the objects of one generation's checkpoints are named by beside job, generation and step; 32 hexadecimal characters as text.
/// The controller issues it with the generation's proposal to those whom that concerns, so nobody else can name what they write, and who is in
/// an earlier generation alone cannot name what counts for a later one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
#[cbor(transparent)]
pub struct WriterToken(#[cbor(n(0), with = "minicbor::bytes")] pub [u8; 16]);

impl fmt::Display for WriterToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for WriterToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for WriterToken {
    type Err = IdError;
    fn from_str(s: &str) -> Result<Self, IdError> {
        let wrong = || IdError {
            kind: "writer token",
            value: s.chars().take(80).collect(),
            expected: "32 hexadecimal characters of 0-9 and a-f",
        };
        let digit = |c: u8| (c as char).to_digit(16).filter(|_| !c.is_ascii_uppercase()).map(|d| d as u8);
        let mut token = [0; 16];
        if s.len() != 2 * token.len() {
            return Err(wrong());
        }
        for (byte, pair) in token.iter_mut().zip(s.as_bytes().chunks_exact(2)) {
            let (high, low) = (digit(pair[0]).ok_or_else(wrong)?, digit(pair[1]).ok_or_else(wrong)?);
            *byte = high << 4 | low;
        }
        Ok(Self(token))
    }
}

impl TimeMs {
    /// Milliseconds from `earlier` to here; 0 if the clock went back.
    #[must_use]
    pub fn since_ms(self, earlier: TimeMs) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
    /// `ms` before this moment.
    #[must_use]
    pub fn minus_ms(self, ms: u64) -> TimeMs {
        TimeMs(self.0.saturating_sub(ms))
    }
    /// This moment and `ms` more.
    #[must_use]
    pub fn plus_ms(self, ms: u64) -> TimeMs {
        TimeMs(self.0.saturating_add(ms))
    }
}

impl Term {
    /// The term that a claim at this offset opens.
    #[must_use]
    pub fn of_claim(offset: Offset) -> Self {
        Self(offset.0)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_have_one_rule() {
        assert!(FleetId::parse("chat-eu.1").is_ok());
        for bad in ["", "-a", "A", "a b", "a/b", &"x".repeat(64)] {
            assert!(FleetId::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn compound_ids_survive_their_text_form() {
        let slot: SlotId = "local/3".parse().unwrap();
        assert_eq!(slot.to_string(), "local/3");
        let guest: SlotId = "local/3-guest".parse().unwrap();
        assert_eq!((guest.to_string(), guest.host(), slot.guest()), ("local/3-guest".to_owned(), slot, guest.clone()));
        assert!(guest.is_guest() && "local/32771-guest".parse::<SlotId>().is_err());
        assert_eq!("local/32771".parse(), Ok(guest), "what was a name stays one");
        let executor: ExecutorId = "job-a/e12".parse().unwrap();
        assert_eq!(executor.to_string(), "job-a/e12");
        assert!("local".parse::<SlotId>().is_err() && "job-a/12".parse::<ExecutorId>().is_err());
        let digest = Digest::of(b"ebb");
        assert_eq!(digest.to_string().parse::<Digest>().unwrap(), digest);
        let token = WriterToken([0x0f, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0xff]);
        assert_eq!(token.to_string().parse::<WriterToken>().unwrap(), token);
        for wrong in ["", "0f", &"0F".repeat(16), &"0g".repeat(16), &"é".repeat(16)] {
            assert!(wrong.parse::<WriterToken>().is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn names_are_ordered_as_their_texts(one in "[a-c][a-b.]{0,20}", other in "[a-c][a-b.]{0,20}", common in "[a-z]{0,20}") {
            for (one, other) in [(&one, &other), (&format!("{common}{one}"), &format!("{common}{other}")), (&one, &one)] {
                let (a, b) = (ServerId::parse(one).unwrap(), ServerId::parse(other).unwrap());
                prop_assert_eq!(a.cmp(&b), one.cmp(other));
                prop_assert_eq!(a == b, one == other);
                prop_assert_eq!(a.clone().cmp(&a), Ordering::Equal);
            }
        }
    }
}
