//! Datasets and their registration.

use crate::forms::{Hash, Name, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A registered dataset; immutable.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Dataset {
    /// Its name.
    #[schemars(with = "Name")]
    pub name: String,
    /// What its rows hold.
    pub sample: Sample,
    /// How many rows it has.
    pub rows: u64,
    /// Key of the metadata object (the list of partitions) in the store.
    pub metadata_key: String,
    /// Digest of that object's bytes.
    #[schemars(with = "Hash")]
    pub metadata_digest: String,
}

/// What one row of a dataset holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Sample {
    /// A tensor of 32-bit floats and the number of its class.
    Classified {
        /// Dimensions without the batch: `[features]` or `[channels, height, width]`.
        #[schemars(length(min = 1, max = 4), inner(range(min = 1, max = 1_000_000)))]
        shape: Vec<u32>,
        /// Labels are `0..classes`.
        #[schemars(range(min = 2, max = 1_000_000))]
        classes: u32,
    },
    /// A sequence of tokens.
    Tokens {
        /// Tokens per row, one more than the longest usable context.
        #[schemars(range(min = 2, max = 65_536))]
        length: u32,
        /// Tokens are `0..vocabulary`.
        #[schemars(range(min = 2, max = 1_000_000))]
        vocabulary: u32,
    },
    /// Whatever later builds add.
    #[serde(untagged)]
    #[schemars(skip)]
    Other(Map<String, Value>),
}

impl Default for Sample {
    fn default() -> Self {
        Self::Other(Map::new())
    }
}

/// Datasets, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Datasets {
    /// At most `limit` of them.
    pub datasets: Vec<Dataset>,
    /// Where the next page begins; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// The files of a dataset, in its order, with links to those that lie in the service's store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DatasetLinks {
    /// At most `limit` of them.
    pub files: Vec<DatasetFile>,
    /// Where the next page begins; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// A file of a dataset. A link is a secret while it is good.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DatasetFile {
    /// Its place in the dataset, from 0.
    pub number: u32,
    /// Its size.
    pub bytes: u64,
    /// How many rows it holds.
    pub rows: u64,
    /// Where its owner keeps it; absent for a file in the service's store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
    /// Where its bytes are read from the service's store, by GET, without any header; absent for a file elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "uri"))]
    pub url: Option<String>,
    /// When the link stops being good.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Time>")]
    pub expires_at: Option<String>,
}

impl std::fmt::Debug for DatasetFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { number, bytes, rows, uri, url: _, expires_at } = self;
        let mut shown = f.debug_struct("DatasetFile");
        shown.field("number", number).field("bytes", bytes).field("rows", rows).field("uri", uri);
        shown.field("expires_at", expires_at).finish_non_exhaustive()
    }
}

/// Registers a dataset: files where they lie (`uris`), or what an import has written (`metadata_key` with `metadata_digest`).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RegisterDataset {
    /// What it is to be called.
    #[schemars(with = "Name")]
    pub name: String,
    /// Addresses of Parquet or Arrow files, in the order of the dataset.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4_096), inner(length(min = 1, max = 2_048)))]
    pub uris: Option<Vec<String>>,
    /// What a row holds; found out from the files if it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample: Option<Sample>,
    /// Which columns hold it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub columns: Option<ColumnNames>,
    /// Type of the elements of binary columns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub element: Option<ElementType>,
    /// Stored elements are multiplied by this.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1e-12, max = 1e12))]
    pub scale: Option<f64>,
    /// Key of a metadata object in the store, as `ebb dataset import` writes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2_048))]
    pub metadata_key: Option<String>,
    /// Digest of its bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Hash>")]
    pub metadata_digest: Option<String>,
}

/// Names of columns; a reader looks for the usual ones where none is given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ColumnNames {
    /// The tensor's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2_048))]
    pub features: Option<String>,
    /// The class's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2_048))]
    pub label: Option<String>,
    /// The tokens'.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2_048))]
    pub tokens: Option<String>,
}

/// Type of the elements of binary columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ElementType {
    /// Bytes, 0 to 255.
    U8,
    /// 32-bit floats.
    F32,
}
