//! What a dataset is to everybody but the reader: a name, a shape, a number of rows and the digest of its metadata object.
//! Also [`Samples`], the plain data that flows from a reader to an engine. How partitions are stored is `storage`'s.

use crate::fields::{Fields, Problems, whole};
use crate::{DatasetName, Digest};
use minicbor::{Decode, Encode};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Most dimensions of a sample.
pub const DIMENSIONS_MAX: usize = 4;
/// Most elements of one sample.
pub const SAMPLE_ELEMENTS_MAX: u64 = 16_777_216;

/// What one row of a dataset holds.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum SampleShape {
    /// A tensor of 32-bit floats and the number of its class.
    #[n(0)]
    Classified {
        /// Dimensions without the batch: `[features]` or `[channels, height, width]`.
        #[n(0)]
        shape: Vec<u32>,
        /// Labels are `0..classes`.
        #[n(1)]
        classes: u32,
    },
    /// A sequence of tokens; a model sees the first `context` as input and the following ones as targets.
    #[n(1)]
    Tokens {
        /// Tokens per row, one more than the longest usable context.
        #[n(0)]
        length: u32,
        /// Tokens are `0..vocabulary`.
        #[n(1)]
        vocabulary: u32,
    },
}

impl SampleShape {
    /// Whether it may be given, by the rule of a registration body. Asked where shapes come in; what stands in a log is read whatever it is.
    pub fn ensure_fit(&self) -> Result<(), Problems> {
        let document = serde_json::to_value(self).unwrap_or(Value::Null);
        parse_sample_shape("sample", &document).map(drop)
    }
}

/// A registered dataset as facts carry it; immutable: registering the same name with other content is refused.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
pub struct DatasetInfo {
    /// Its name.
    #[n(0)]
    pub name: DatasetName,
    /// What its rows hold.
    #[n(1)]
    pub sample: SampleShape,
    /// How many rows it has.
    #[n(2)]
    pub rows: u64,
    /// Key of the metadata object (the list of partitions) in Ebb's store.
    #[n(3)]
    pub metadata_key: String,
    /// Digest of that object's bytes.
    #[n(4)]
    pub metadata_digest: Digest,
}

/// Consecutive samples of one logical worker and step, decoded. Row-major, without padding.
#[derive(Debug, Clone, PartialEq)]
pub enum Samples {
    /// `features.len() == labels.len() * product(shape)`.
    Classified {
        /// Row-major, one sample after the other.
        features: Vec<f32>,
        /// One class per sample.
        labels: Vec<u32>,
    },
    /// `tokens.len()` is a multiple of the row length.
    Tokens {
        /// Row after row.
        tokens: Vec<u32>,
        /// Tokens per row.
        length: u32,
    },
}

impl Samples {
    /// How many samples these are.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Samples::Classified { labels, .. } => labels.len(),
            Samples::Tokens { tokens, length } => tokens.len() / (*length).max(1) as usize,
        }
    }

    /// Adds those of another batch of the same dataset behind these; of another kind of dataset none can be.
    pub fn append(&mut self, more: Samples) {
        match (self, more) {
            (Samples::Classified { features, labels }, Samples::Classified { features: more, labels: of_more }) => {
                features.extend(more);
                labels.extend(of_more);
            }
            (Samples::Tokens { tokens, .. }, Samples::Tokens { tokens: more, .. }) => tokens.extend(more),
            (Samples::Classified { .. }, Samples::Tokens { .. })
            | (Samples::Tokens { .. }, Samples::Classified { .. }) => {}
        }
    }

    /// Whether there are none; a logical worker without samples contributes exact zeros and weight 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Parses a sample shape out of a registration body.
pub fn parse_sample_shape(path: &str, value: &Value) -> Result<SampleShape, Problems> {
    let mut f = Fields::new(path, value);
    let kind = f.word("kind", &[("classified", true), ("tokens", false)]);
    if kind.is_none() && value.get("kind").is_none() {
        f.wrong("kind", "classified or tokens");
    }
    let shape = if kind == Some(false) {
        let length = f.integer_required("length", 2..=65_536);
        let vocabulary = f.integer_required("vocabulary", 2..=1_000_000);
        length.zip(vocabulary).map(|(l, v)| SampleShape::Tokens { length: l as u32, vocabulary: v as u32 })
    } else {
        let classes = f.integer_required("classes", 2..=1_000_000);
        let dimensions = f.raw("shape").and_then(Value::as_array).and_then(|a| {
            a.iter()
                .map(|v| whole(v).filter(|n| (1..=1_000_000).contains(n)).map(|n| n as u32))
                .collect::<Option<Vec<u32>>>()
        });
        let legal = dimensions.filter(|d| {
            (1..=DIMENSIONS_MAX).contains(&d.len())
                && d.iter()
                    .try_fold(1, |all: u64, &n| all.checked_mul(n.into()))
                    .is_some_and(|all| all <= SAMPLE_ELEMENTS_MAX)
        });
        if legal.is_none() {
            f.wrong(
                "shape",
                "a list of 1 to 4 whole numbers, for example [1, 8, 8], with at most 16777216 elements in all",
            );
        }
        legal.zip(classes).map(|(shape, c)| SampleShape::Classified { shape, classes: c as u32 })
    };
    f.finish(shape)
}
