//! When a job's checkpoints are written: by steps, by time, or as often as pays. Only what a spec says; when one is due is decided by
//! whoever paces the steps (`workers/member/src/pace.rs`).

use crate::fields::{Fields, Problems};
use minicbor::encode::Write;
use minicbor::{Decode, Decoder, Encode, Encoder, decode, encode};
use serde::{Serialize, Serializer};
use serde_json::Value;

/// Most steps between two checkpoints.
const STEPS_MAX: u64 = 1_000_000_000;
/// Least seconds between two checkpoints: one that takes a few seconds to write is done before the next.
const SECONDS_MIN: u64 = 5;
/// Most seconds between two checkpoints: a week.
const SECONDS_MAX: u64 = 7 * 86_400;
/// Most checkpoints that are kept.
const KEEP_MAX: u64 = 1_000;

/// What a job says of its checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckpointSpec {
    /// How often one is written.
    pub every: CheckpointInterval,
    /// How many of the newest are kept.
    pub keep: u32,
}

/// How often a checkpoint is written. The model does not depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckpointInterval {
    /// Every so many steps.
    Steps(u64),
    /// At the first boundary after so many seconds.
    Seconds(u64),
    /// As often as pays: by what a checkpoint costs, and how often every replica is lost.
    Auto,
}

/// Of a job that says nothing.
pub(crate) const DEFAULT_CHECKPOINT: CheckpointSpec = CheckpointSpec { every: CheckpointInterval::Steps(500), keep: 2 };

impl CheckpointInterval {
    /// The steps between two, if it goes by steps.
    #[must_use]
    pub fn steps(self) -> Option<u64> {
        if let Self::Steps(steps) = self { Some(steps) } else { None }
    }

    /// The seconds between two, if it goes by a time that the spec says.
    #[must_use]
    pub fn seconds(self) -> Option<u64> {
        if let Self::Seconds(seconds) = self { Some(seconds) } else { None }
    }
}

/// As it stands in records. A build that knows of steps alone reads the first two, and writes checkpoints by the default.
#[derive(Encode, Decode)]
struct Recorded {
    #[n(0)]
    every_steps: u64,
    #[n(1)]
    keep: u32,
    /// Where it goes by time.
    #[n(2)]
    by_time: Option<ByTime>,
}

#[derive(Encode, Decode)]
enum ByTime {
    #[n(0)]
    Seconds(#[n(0)] u64),
    #[n(1)]
    Auto,
}

impl<C> Encode<C> for CheckpointSpec {
    fn encode<W: Write>(&self, e: &mut Encoder<W>, ctx: &mut C) -> Result<(), encode::Error<W::Error>> {
        let default = DEFAULT_CHECKPOINT.every.steps().unwrap_or(1);
        let (every_steps, by_time) = match self.every {
            CheckpointInterval::Steps(steps) => (steps, None),
            CheckpointInterval::Seconds(seconds) => (default, Some(ByTime::Seconds(seconds))),
            CheckpointInterval::Auto => (default, Some(ByTime::Auto)),
        };
        Recorded { every_steps, keep: self.keep, by_time }.encode(e, ctx)
    }
}

impl<'b, C> Decode<'b, C> for CheckpointSpec {
    fn decode(d: &mut Decoder<'b>, ctx: &mut C) -> Result<Self, decode::Error> {
        let Recorded { every_steps, keep, by_time } = Recorded::decode(d, ctx)?;
        let every = match by_time {
            None => CheckpointInterval::Steps(every_steps),
            Some(ByTime::Seconds(seconds)) => CheckpointInterval::Seconds(seconds),
            Some(ByTime::Auto) => CheckpointInterval::Auto,
        };
        Ok(Self { every, keep })
    }
}

impl Serialize for CheckpointSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Shown {
            every_steps: u64,
            #[serde(skip_serializing_if = "Option::is_none")]
            every_seconds: Option<u64>,
            #[serde(skip_serializing_if = "Option::is_none")]
            every: Option<&'static str>,
            keep: u32,
        }
        let (every_steps, every_seconds) = (self.every.steps().unwrap_or(0), self.every.seconds());
        let every = (self.every == CheckpointInterval::Auto).then_some(AUTO);
        Shown { every_steps, every_seconds, every, keep: self.keep }.serialize(serializer)
    }
}

/// The word for [`CheckpointInterval::Auto`].
const AUTO: &str = "auto";

/// A spec that is shown has `every_steps: 0` where it goes by time, and may be submitted as it is shown.
pub(crate) fn parse_checkpoint(path: &str, value: &Value) -> Result<CheckpointSpec, Problems> {
    let mut f = Fields::new(path, value);
    let steps = f.integer("every_steps", 0..=STEPS_MAX);
    let seconds = f.integer("every_seconds", SECONDS_MIN..=SECONDS_MAX);
    let auto = f.word("every", &[(AUTO, ())]);
    let keep = f.integer("keep", 1..=KEEP_MAX).unwrap_or(u64::from(DEFAULT_CHECKPOINT.keep));
    let by_time = f.raw("every_seconds").is_some() || f.raw("every").is_some();
    if f.raw("every_seconds").is_some() && f.raw("every").is_some() {
        f.wrong("every_seconds", "either `every_seconds` or `every: auto`, not both");
    }
    if by_time && steps.is_some_and(|steps| steps > 0) {
        f.wrong("every_steps", "left out where `every_seconds` or `every` says when checkpoints are written");
    }
    if !by_time && steps == Some(0) {
        f.wrong(
            "every_steps",
            format!("a whole number from 1 to {STEPS_MAX}, or `every_seconds` or `every: auto` instead"),
        );
    }
    let every = match (steps, seconds, auto) {
        (_, Some(seconds), _) => CheckpointInterval::Seconds(seconds),
        (_, None, Some(())) => CheckpointInterval::Auto,
        (Some(steps), None, None) => CheckpointInterval::Steps(steps),
        _ => DEFAULT_CHECKPOINT.every,
    };
    f.finish(Some(CheckpointSpec { every, keep: keep as u32 }))
}
