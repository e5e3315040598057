//! What the model of a job may depend on besides its spec, its data and the numeric class of its executors.

use crate::fields::Fields;
use crate::job::{BATCH_SIZE_MAX, Workers};
use minicbor::encode::Write;
use minicbor::{Decode, Decoder, Encode, Encoder, decode, encode};
use serde::Serialize;

/// What the model may depend on besides the spec, the data and the numeric class of the executors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Determinism {
    /// Nothing: each of the W logical workers computes a gradient of its own, whoever hosts it.
    #[default]
    D1,
    /// On who was a member when: each executor computes one gradient of all the samples of the workers that it hosts (decision 27). Every sample is
    /// still used once per epoch.
    None,
}

impl Determinism {
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Reads the field, and refuses by name what does not go with it. `batch_size` is none where it is wrong.
    pub(crate) fn read(f: &mut Fields<'_>, retrains: bool, workers: Workers, batch_size: Option<u64>) -> Self {
        let words = [("d1", Determinism::D1), ("none", Determinism::None)];
        let determinism = f.word("determinism", &words).unwrap_or_default();
        if determinism == Determinism::D1 {
            return determinism;
        }
        if retrains {
            let expected = "left out where `retrains` is said: another run of a job with `determinism: none` is another model, so nothing is found out by it";
            f.wrong("determinism", expected);
        }
        // Everybody hosts one worker at least, so nobody hosts more than this.
        let hosted_max = u64::from(workers.max.saturating_sub(workers.min)) + 1;
        if batch_size.is_some_and(|batch_size| batch_size * hosted_max > BATCH_SIZE_MAX) {
            let expected = format!(
                "at most {}, or a larger `workers.min`: with `determinism: none` an executor computes the samples of all the workers that it hosts, here up to {hosted_max}, as one batch, and {BATCH_SIZE_MAX} are the most of one",
                BATCH_SIZE_MAX / hosted_max
            );
            f.wrong("batch_size", expected);
        }
        determinism
    }
}

impl<C> Encode<C> for Determinism {
    fn encode<W: Write>(&self, e: &mut Encoder<W>, _: &mut C) -> Result<(), encode::Error<W::Error>> {
        e.u8(*self as u8)?.ok()
    }
}

impl<'b, C> Decode<'b, C> for Determinism {
    fn decode(d: &mut Decoder<'b>, _: &mut C) -> Result<Self, decode::Error> {
        match d.u8()? {
            0 => Ok(Self::D1),
            1 => Ok(Self::None),
            _ => Err(decode::Error::message("a level of determinism that this build does not know")),
        }
    }
}
