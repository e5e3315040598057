//! Durations that a user may choose, each with its bounds and its default. One in hand is within them, also one that a log said.

use crate::fields::{Fields, whole};
use minicbor::encode::Write;
use minicbor::{Decode, Decoder, Encode, Encoder, decode, encode};
use serde::Serialize;

/// How long the first unit of computing of a job may take, of which nobody knows how long one takes: compilation, warm-up, the largest
/// batch. From a second, since executors say twice a second what they do, to a day, after which somebody has looked.
pub type UnitTimeout = DurationMs<1_000, 86_400_000, 600_000>;
/// How long a job stands still for a store that refuses, until it is suspended. From three minutes, since a request is tried again
/// for two before it counts as refused, to a day.
pub type StorePatience = DurationMs<180_000, 86_400_000, 1_800_000>;

/// A duration in milliseconds from `MIN` to `MAX`; `DEFAULT` where nothing is said. Bounds may become wider, never narrower: old logs
/// hold what was within them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct DurationMs<const MIN: u64, const MAX: u64, const DEFAULT: u64>(u64);

impl<const MIN: u64, const MAX: u64, const DEFAULT: u64> DurationMs<MIN, MAX, DEFAULT> {
    /// None if it is out of bounds.
    #[must_use]
    pub fn new(ms: u64) -> Option<Self> {
        (MIN..=MAX).contains(&ms).then_some(Self(ms))
    }

    /// Reads an optional field; `because` says why its bounds are where they are.
    pub fn read(fields: &mut Fields<'_>, name: &'static str, because: &str) -> Self {
        let Some(value) = fields.raw(name) else { return Self::default() };
        whole(value).and_then(Self::new).unwrap_or_else(|| {
            fields.wrong(name, format!("a whole number of milliseconds from {MIN} to {MAX}: {because}"));
            Self::default()
        })
    }

    /// In milliseconds.
    #[must_use]
    pub fn ms(self) -> u64 {
        self.0
    }

    pub(crate) fn is_default(&self) -> bool {
        self.0 == DEFAULT
    }
}

impl<const MIN: u64, const MAX: u64, const DEFAULT: u64> Default for DurationMs<MIN, MAX, DEFAULT> {
    fn default() -> Self {
        const { assert!(MIN <= DEFAULT && DEFAULT <= MAX, "the default is within the bounds") };
        Self(DEFAULT)
    }
}

impl<C, const MIN: u64, const MAX: u64, const DEFAULT: u64> Encode<C> for DurationMs<MIN, MAX, DEFAULT> {
    fn encode<W: Write>(&self, e: &mut Encoder<W>, ctx: &mut C) -> Result<(), encode::Error<W::Error>> {
        self.0.encode(e, ctx)
    }
}

impl<'b, C, const MIN: u64, const MAX: u64, const DEFAULT: u64> Decode<'b, C> for DurationMs<MIN, MAX, DEFAULT> {
    fn decode(d: &mut Decoder<'b>, _: &mut C) -> Result<Self, decode::Error> {
        Self::new(d.u64()?).ok_or_else(|| decode::Error::message("a duration is out of its bounds"))
    }
}
