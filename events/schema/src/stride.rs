//! How many samples an update may be of: `batch_range` of a job spec, and the stride that a generation takes within it.
//!
//! A step is always the samples of `batch_size × workers.max` rows, and steps number places in the data. With a range, one update takes several steps at once: its
//! *stride*. Which one, a policy says (`controller-core`), and where an update ends before that, `workers/session` (`stride.rs`).

use crate::Step;
use crate::fields::{Fields, Problems};
use crate::job::{BATCH_SIZE_MAX, Determinism, JobSpec, Workers};
use minicbor::encode::Write;
use minicbor::{Decode, Decoder, Encode, Encoder, decode, encode};
use serde::{Serialize, Serializer};
use serde_json::Value;
use std::num::NonZeroU16;

/// Most steps that one update takes: a batch 256 times as large as the smallest is beyond what any rule for learning rates was seen to hold for.
pub const STRIDE_MAX: u16 = 256;

/// Steps that one update takes, from 1 to [`STRIDE_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stride(NonZeroU16);

impl Stride {
    /// One step each, as in every job without a range.
    pub const ONE: Self = Self(NonZeroU16::MIN);

    /// So many; the nearest that there may be.
    #[must_use]
    pub fn of(steps: u64) -> Self {
        let steps = u16::try_from(steps).unwrap_or(u16::MAX).min(STRIDE_MAX);
        Self(NonZeroU16::new(steps).unwrap_or(NonZeroU16::MIN))
    }

    /// As a number of steps.
    #[must_use]
    pub fn steps(self) -> u64 {
        self.0.get().into()
    }

    /// The step to which an update of so many leads.
    #[must_use]
    pub fn end(self, from: Step) -> Step {
        Step(from.0.saturating_add(self.steps()))
    }

    /// Whether it is what is said where nothing is; records do not hold it.
    #[must_use]
    pub fn is_one(&self) -> bool {
        *self == Self::ONE
    }
}

impl Default for Stride {
    fn default() -> Self {
        Self::ONE
    }
}

impl Serialize for Stride {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.get().serialize(serializer)
    }
}

impl<C> Encode<C> for Stride {
    fn encode<W: Write>(&self, e: &mut Encoder<W>, _: &mut C) -> Result<(), encode::Error<W::Error>> {
        e.u16(self.0.get())?.ok()
    }
}

impl<'b, C> Decode<'b, C> for Stride {
    fn decode(d: &mut Decoder<'b>, _: &mut C) -> Result<Self, decode::Error> {
        let steps = NonZeroU16::new(d.u16()?).filter(|steps| steps.get() <= STRIDE_MAX);
        steps.map(Self).ok_or_else(|| decode::Error::message("a stride that no update can have"))
    }
}

/// What becomes of the learning rate of an update that takes `k` steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LearningRateRule {
    /// It is multiplied by `k`.
    Linear,
    /// It is multiplied by the square root of `k`.
    Sqrt,
    /// It stays.
    None,
}

impl LearningRateRule {
    /// What the learning rate of an update of so many steps is multiplied by.
    #[must_use]
    pub fn factor(self, stride: Stride) -> f64 {
        match self {
            Self::Linear => stride.steps() as f64,
            // Correctly rounded everywhere, as the standard of floating point asks.
            Self::Sqrt => (stride.steps() as f64).sqrt(),
            Self::None => 1.0,
        }
    }
}

impl<C> Encode<C> for LearningRateRule {
    fn encode<W: Write>(&self, e: &mut Encoder<W>, _: &mut C) -> Result<(), encode::Error<W::Error>> {
        e.u8(*self as u8)?.ok()
    }
}

impl<'b, C> Decode<'b, C> for LearningRateRule {
    fn decode(d: &mut Decoder<'b>, _: &mut C) -> Result<Self, decode::Error> {
        match d.u8()? {
            0 => Ok(Self::Linear),
            1 => Ok(Self::Sqrt),
            2 => Ok(Self::None),
            _ => Err(decode::Error::message("a rule for learning rates that this build does not know")),
        }
    }
}

/// How large a batch may be; the smallest is `batch_size`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct BatchRange {
    /// Samples of each logical worker in one update at most: a multiple of `batch_size`.
    #[n(0)]
    pub max: u32,
    /// What becomes of the learning rate.
    #[n(1)]
    pub learning_rate_rule: LearningRateRule,
}

impl JobSpec {
    /// The largest stride that it may take: within its range, and no larger than the steps between what is due by `every_steps`. A larger one would be cut at
    /// each of these, and whoever reckons with it would take updates for longer than they ever are.
    #[must_use]
    pub fn stride_max(&self) -> Stride {
        let evaluation = self.evaluation.as_ref().map(|evaluation| evaluation.every_steps);
        let due = [self.checkpoint.every.steps(), evaluation, self.compare_every_steps];
        let within = |range: BatchRange| {
            let times = u64::from(range.max / self.batch_size.max(1));
            Stride::of(due.into_iter().flatten().fold(times, u64::min))
        };
        self.batch_range.map_or(Stride::ONE, within)
    }

    /// Samples of an update of such a stride, over all logical workers; fewer at the end of an epoch.
    #[must_use]
    pub fn samples_of(&self, stride: Stride) -> u64 {
        u64::from(self.workers.max) * u64::from(self.batch_size) * stride.steps()
    }
}

/// Reads `batch_range`, beside what it has to go with. `batch_size` is none where it is wrong.
pub(crate) fn read_batch_range(
    f: &mut Fields<'_>,
    determinism: Determinism,
    workers: Workers,
    batch_size: Option<u64>,
) -> Option<BatchRange> {
    let range = f.nested("batch_range", |path, value| parse_batch_range(path, value, workers, batch_size))?;
    if determinism == Determinism::D1 {
        let expected = "left out, or `determinism: none` beside it: which batches a job trains with follows from the slots that it has, and its model from them";
        f.wrong("batch_range", expected);
    }
    Some(range)
}

fn parse_batch_range(
    path: &str,
    value: &Value,
    workers: Workers,
    batch_size: Option<u64>,
) -> Result<BatchRange, Problems> {
    let mut f = Fields::new(path, value);
    let max = f.integer_required("max", 1..=BATCH_SIZE_MAX);
    if let (Some(max), Some(least)) = (max, batch_size) {
        // Everybody hosts one worker at least, so nobody hosts more than this.
        let hosted_max = u64::from(workers.max.saturating_sub(workers.min)) + 1;
        let most = (least * u64::from(STRIDE_MAX)).min(BATCH_SIZE_MAX / hosted_max / least * least);
        if !max.is_multiple_of(least) || !(least..=most.max(least)).contains(&max) {
            f.wrong("max", format!("a multiple of `batch_size` ({least}) up to {most}: an update takes whole steps, {STRIDE_MAX} at most, and an executor computes the samples of up to {hosted_max} workers as one batch, of which {BATCH_SIZE_MAX} are the most"));
        }
    }
    let rules =
        [("linear", LearningRateRule::Linear), ("sqrt", LearningRateRule::Sqrt), ("none", LearningRateRule::None)];
    if f.raw("learning_rate_rule").is_none() {
        f.wrong("learning_rate_rule", "`linear`, `sqrt` or `none`: what becomes of the learning rate when the batch is k times `batch_size` has to be said");
    }
    let rule = f.word("learning_rate_rule", &rules);
    f.finish(max.zip(rule).map(|(max, learning_rate_rule)| BatchRange { max: max as u32, learning_rate_rule }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::batch::{from_bytes, to_bytes};

    #[test]
    fn a_stride_is_at_least_one_step_and_read_back_only_if_it_is() {
        assert_eq!([0, 1, 7, 256, 1 << 40].map(|steps| Stride::of(steps).steps()), [1, 1, 7, 256, 256]);
        let seven = Stride::of(7);
        assert_eq!(from_bytes::<Stride>(&to_bytes(&seven)).unwrap(), seven);
        for wrong in [0u16, 257] {
            assert!(from_bytes::<Stride>(&to_bytes(&wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_rule_says_what_the_learning_rate_is_multiplied_by() {
        let of = |rule: LearningRateRule| [1, 4, 16].map(|steps| rule.factor(Stride::of(steps)));
        assert_eq!(of(LearningRateRule::Linear), [1.0, 4.0, 16.0]);
        assert_eq!(of(LearningRateRule::Sqrt), [1.0, 2.0, 4.0]);
        assert_eq!(of(LearningRateRule::None), [1.0; 3]);
    }
}
