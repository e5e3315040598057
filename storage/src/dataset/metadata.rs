//! What a dataset is: its columns and its partitions, cut into blocks. Pure: types, their one JSON form, and the check that they
//! fit each other. The order of samples depends on the blocks written here, so metadata never changes once registered.

use crate::keys;
use events_schema::Digest;
use events_schema::dataset::SampleShape;
use serde::{Deserialize, Serialize};

/// The format's number; a reader refuses any other.
pub const FORMAT_VERSION: u32 = 1;
/// Most decoded bytes of one block: small enough that a rank can hold several open.
pub const BLOCK_BYTES_MAX: u64 = 8 << 20;

/// A dataset, as its metadata object says it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatasetMetadata {
    /// [`FORMAT_VERSION`].
    pub format_version: u32,
    /// What a row holds.
    pub sample: SampleShape,
    /// Rows of all blocks.
    pub rows: u64,
    /// Which columns hold it, and how.
    pub columns: Columns,
    /// Names of the classes, where the source had names; else empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub class_names: Vec<String>,
    /// Token i stands for the i-th of these texts, where the source was text; else empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vocabulary: Vec<String>,
    /// The files, in order.
    pub partitions: Vec<Partition>,
}

/// The columns of a dataset's files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Columns {
    /// A tensor and its class.
    Classified {
        /// The tensor.
        features: FeatureColumn,
        /// Name of an integer column.
        label: String,
    },
    /// A sequence of tokens.
    Tokens {
        /// Name of a column of integer lists.
        tokens: String,
    },
}

/// A column of tensors. What a model sees is `stored * scale + offset`, in 32-bit floats.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeatureColumn {
    /// Its name.
    pub name: String,
    /// How elements are kept in memory, and how binary values are read.
    pub element: ElementType,
    /// Factor on stored elements.
    pub scale: f32,
    /// Added after the factor.
    pub offset: f32,
}

/// Type of a tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ElementType {
    /// Bytes, kept as bytes until a batch is made.
    U8,
    /// 32-bit floats (in binary columns little-endian); other numeric lists are converted to them.
    F32,
}

impl ElementType {
    /// Bytes of one element in memory.
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            Self::U8 => 1,
            Self::F32 => 4,
        }
    }
}

/// One file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Partition {
    /// Where it is.
    pub location: Location,
    /// What it is.
    pub format: FileFormat,
    /// Its size.
    pub bytes: u64,
    /// Its version as the store named it at registration; every read asks for this version. Absent for files that Ebb wrote,
    /// which carry checksums instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
    /// Where its footer lies, and its checksum, for files that Ebb wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub footer: Option<Checked>,
    /// Its blocks, in stored order.
    pub blocks: Vec<BlockRecord>,
}

/// Where a file is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Location {
    /// In Ebb's own store.
    Key(String),
    /// Anywhere; credentials come from the reader's environment.
    Uri(String),
}

impl Location {
    /// The key or address.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Key(text) | Self::Uri(text) => text,
        }
    }
}

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileFormat {
    /// Apache Parquet; groups are row groups.
    Parquet,
    /// The Arrow IPC file format; groups are record batches.
    ArrowIpc,
}

/// The unit of reading and shuffling: some rows of one group, at most `BLOCK_BYTES_MAX` decoded unless one row is larger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockRecord {
    /// Row group or record batch of the file.
    pub group: u32,
    /// First row inside the group.
    pub first_row: u64,
    /// How many rows, at least 1.
    pub rows: u32,
    /// The bytes of the whole group, for files that Ebb wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checked: Option<Checked>,
}

/// A stretch of a file and its checksum.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checked {
    /// First byte.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
    /// BLAKE3 of them.
    pub blake3: Digest,
}

/// Why metadata cannot be used. All of them: refuse the dataset.
#[derive(Debug, thiserror::Error)]
pub enum MetadataError {
    /// Not JSON of this shape.
    #[error("this is no metadata of a dataset")]
    Malformed(#[source] serde_json::Error),
    /// Written by another release.
    #[error("dataset metadata of format version {0}; this release reads {FORMAT_VERSION}")]
    Version(u32),
    /// Numbers that contradict each other.
    #[error("dataset metadata contradicts itself: {0}")]
    Contradiction(String),
    /// Registered with another shape or number of rows.
    #[error("dataset metadata is of another dataset than registered")]
    OtherDataset,
    /// Registered by a key that no import writes.
    #[error("this is no object of a dataset; import the dataset anew and register what the import says")]
    Foreign,
}

impl DatasetMetadata {
    /// The object's bytes: the same metadata always gives the same ones.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        // A struct of numbers, texts and lists always has a JSON form.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Parses and checks.
    pub fn parse(bytes: &[u8]) -> Result<Self, MetadataError> {
        #[derive(Deserialize)]
        struct Version {
            format_version: u32,
        }
        let Version { format_version } = serde_json::from_slice(bytes).map_err(MetadataError::Malformed)?;
        if format_version != FORMAT_VERSION {
            return Err(MetadataError::Version(format_version));
        }
        let metadata: Self = serde_json::from_slice(bytes).map_err(MetadataError::Malformed)?;
        metadata.check()?;
        Ok(metadata)
    }

    /// Rows of every block, in stored order.
    #[must_use]
    pub fn block_rows(&self) -> Vec<u32> {
        self.partitions.iter().flat_map(|p| p.blocks.iter().map(|b| b.rows)).collect()
    }

    /// Elements or tokens of one row.
    #[must_use]
    pub fn row_elements(&self) -> u64 {
        row_elements(&self.sample)
    }

    /// Decoded bytes of one row, its label included.
    #[must_use]
    pub fn row_bytes(&self) -> u64 {
        match &self.columns {
            Columns::Classified { features, .. } => self.row_elements() * features.element.bytes() + 4,
            Columns::Tokens { .. } => self.row_elements() * 4,
        }
    }

    fn check(&self) -> Result<(), MetadataError> {
        let wrong = |problem: &str| Err(MetadataError::Contradiction(problem.to_owned()));
        let blocks = || self.partitions.iter().flat_map(|p| &p.blocks);
        if blocks().any(|b| b.rows == 0) {
            return wrong("a block has no rows");
        }
        if blocks().count() > u32::MAX as usize || blocks().map(|b| u64::from(b.rows)).sum::<u64>() != self.rows {
            return wrong("the blocks' rows do not add up to the dataset's");
        }
        match (&self.sample, &self.columns) {
            (SampleShape::Classified { .. }, Columns::Classified { .. })
            | (SampleShape::Tokens { .. }, Columns::Tokens { .. }) => {}
            _ => return wrong("sample and columns are of different kinds"),
        }
        if self.row_elements() == 0 {
            return wrong("a row has no elements");
        }
        let is_foreign =
            |partition: &Partition| matches!(&partition.location, Location::Key(key) if !keys::is_dataset_object(key));
        if self.partitions.iter().any(is_foreign) {
            return wrong("a partition is an object that no import writes");
        }
        Ok(())
    }
}

/// Elements or tokens of one row of this shape.
#[must_use]
pub(crate) fn row_elements(sample: &SampleShape) -> u64 {
    match sample {
        SampleShape::Classified { shape, .. } => shape.iter().fold(1, |all: u64, &n| all.saturating_mul(n.into())),
        SampleShape::Tokens { length, .. } => u64::from(*length),
    }
}

/// Cuts a group of rows into blocks of at most [`BLOCK_BYTES_MAX`] decoded bytes, equal in length up to one row.
pub(crate) fn cut_group(group: u32, rows: u64, row_bytes: u64) -> Vec<BlockRecord> {
    let count = blocks_of(rows, row_bytes);
    (0..count)
        .map(|i| {
            let (first, end) = (mul_div(rows, i, count), mul_div(rows, i + 1, count));
            BlockRecord { group, first_row: first, rows: (end - first) as u32, checked: None }
        })
        .collect()
}

/// How many blocks [`cut_group`] makes.
pub(crate) fn blocks_of(rows: u64, row_bytes: u64) -> u64 {
    let rows_max = (BLOCK_BYTES_MAX / row_bytes.max(1)).clamp(1, u64::from(u32::MAX));
    rows.div_ceil(rows_max)
}

fn mul_div(a: u64, b: u64, c: u64) -> u64 {
    (u128::from(a) * u128::from(b) / u128::from(c)) as u64
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn example() -> DatasetMetadata {
        DatasetMetadata {
            format_version: FORMAT_VERSION,
            sample: SampleShape::Classified { shape: vec![1, 2, 2], classes: 3 },
            rows: 5,
            columns: Columns::Classified {
                features: FeatureColumn {
                    name: "features".into(),
                    element: ElementType::U8,
                    scale: 0.0625,
                    offset: 0.0,
                },
                label: "label".into(),
            },
            class_names: vec![],
            vocabulary: vec![],
            partitions: vec![Partition {
                location: Location::Key("datasets/d/part-x.parquet".into()),
                format: FileFormat::Parquet,
                bytes: 1_000,
                etag: None,
                footer: Some(Checked { offset: 900, bytes: 100, blake3: Digest([1; 32]) }),
                blocks: vec![
                    BlockRecord {
                        group: 0,
                        first_row: 0,
                        rows: 3,
                        checked: Some(Checked { offset: 4, bytes: 400, blake3: Digest([2; 32]) }),
                    },
                    BlockRecord { group: 1, first_row: 0, rows: 2, checked: None },
                ],
            }],
        }
    }

    /// A registered dataset names these bytes by digest: they may not change.
    #[test]
    fn golden_bytes() {
        let ones = "01".repeat(32);
        let twos = "02".repeat(32);
        let expected = format!(
            concat!(
                r#"{{"format_version":1,"sample":{{"kind":"classified","shape":[1,2,2],"classes":3}},"rows":5,"#,
                r#""columns":{{"kind":"classified","features":{{"name":"features","element":"u8","scale":0.0625,"offset":0.0}},"label":"label"}},"#,
                r#""partitions":[{{"location":{{"key":"datasets/d/part-x.parquet"}},"format":"parquet","bytes":1000,"#,
                r#""footer":{{"offset":900,"bytes":100,"blake3":"{}"}},"#,
                r#""blocks":[{{"group":0,"first_row":0,"rows":3,"checked":{{"offset":4,"bytes":400,"blake3":"{}"}}}},{{"group":1,"first_row":0,"rows":2}}]}}]}}"#,
            ),
            ones, twos
        );
        assert_eq!(String::from_utf8(example().to_bytes()).unwrap(), expected);
        assert_eq!(DatasetMetadata::parse(expected.as_bytes()).unwrap(), example());
    }

    #[test]
    fn contradictions_are_refused() {
        let parse = |m: DatasetMetadata| DatasetMetadata::parse(&m.to_bytes());
        assert!(matches!(parse(DatasetMetadata { rows: 6, ..example() }), Err(MetadataError::Contradiction(_))));
        assert!(matches!(parse(DatasetMetadata { format_version: 2, ..example() }), Err(MetadataError::Version(2))));
        assert!(matches!(
            parse(DatasetMetadata { sample: SampleShape::Tokens { length: 4, vocabulary: 3 }, ..example() }),
            Err(MetadataError::Contradiction(_))
        ));
        // Removing the dataset would delete it, training on it would read it.
        let mut foreign = example();
        foreign.partitions[0].location = Location::Key("jobs/job-a/model.safetensors".into());
        assert!(matches!(parse(foreign), Err(MetadataError::Contradiction(_))));
        assert!(matches!(DatasetMetadata::parse(b"{}"), Err(MetadataError::Malformed(_))));
    }

    #[test]
    fn groups_are_cut_into_blocks_of_legal_size() {
        for (rows, row_bytes) in [(1u64, 1u64), (10_000, 788), (100_000, 788), (3, 9 << 20), (60_000, 4)] {
            let blocks = cut_group(7, rows, row_bytes);
            assert_eq!(blocks.iter().map(|b| u64::from(b.rows)).sum::<u64>(), rows);
            assert!(blocks.iter().all(|b| b.rows == 1 || u64::from(b.rows) * row_bytes <= BLOCK_BYTES_MAX));
            let mut next = 0;
            for block in &blocks {
                assert_eq!(block.first_row, next);
                next += u64::from(block.rows);
            }
        }
        assert!(cut_group(0, 0, 4).is_empty());
    }
}
