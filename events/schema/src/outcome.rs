//! How a job ended, and what evaluations found. Only what is said of both: who measures is elsewhere.

use crate::{Digest, Step};
use minicbor::{Decode, Encode};
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Encode, Decode, Serialize)]
pub struct Outcome {
    /// Steps done.
    #[n(0)]
    pub step: Step,
    /// Key of the final model, one safetensors file.
    #[n(1)]
    pub model_key: String,
    /// Digest of the final parameters (flat, little-endian f32, documented order).
    #[n(2)]
    pub model_digest: Digest,
    /// Mean training loss of the last step, in millionths; none of a gang, into which nobody looks. Gangs of earlier builds said 0.
    #[n(3)]
    pub train_loss_micro: Option<i64>,
    /// Last evaluation, if the spec asks for any.
    #[n(4)]
    pub metrics: Option<Metrics>,
}

/// What an evaluation found. Integers, so that state is comparable byte for byte.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize)]
pub struct Metrics {
    /// Mean loss, in millionths; 0 if the job's code gave none.
    #[n(0)]
    pub loss_micro: i64,
    /// Right predictions (samples, or tokens for text); 0 if the job's code counts none.
    #[n(1)]
    pub correct: u64,
    /// Predictions made.
    #[n(2)]
    pub count: u64,
    /// All that a job's own code measured, loss and right predictions with it if it did. None of Ebb's own models, which have both.
    #[n(3)]
    pub named: Option<BTreeMap<String, Mean>>,
}

/// Most names of one evaluation: each logical worker's sums travel in one message.
pub const MEASURES_MAX: usize = 16;
/// Most bytes of such a name.
pub const MEASURE_NAME_BYTES_MAX: usize = 48;

/// Most predictions of one logical worker in one evaluation: more than any dataset has, and far from where sums overflow.
pub const PREDICTIONS_MAX: u64 = 1 << 40;

/// A mean that a job's code gave a name to, as the bits of a float: equal means are equal bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
#[cbor(transparent)]
pub struct Mean(#[n(0)] u64);

impl Mean {
    /// This number, whatever it is.
    #[must_use]
    pub fn of(value: f64) -> Self {
        // Every NaN is the same one: which bits it has is the processor's business.
        Self(if value.is_nan() { f64::NAN } else { value }.to_bits())
    }

    /// The number.
    #[must_use]
    pub fn value(self) -> f64 {
        f64::from_bits(self.0)
    }
}

impl Serialize for Mean {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.value())
    }
}
