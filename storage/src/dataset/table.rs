//! Writes rows as Parquet parts of a dataset, block by block: one row group is one block, with its checksum in the metadata.
//!
//! Rows come from the imports one by one; at most one part is in memory. Runs on a thread where blocking is allowed.

use super::columns::{Block, Elements};
use super::metadata::{
    BlockRecord, Checked, Columns, DatasetMetadata, ElementType, FORMAT_VERSION, FeatureColumn, FileFormat, Location,
    MetadataError, Partition, row_elements,
};
use super::save_metadata;
use crate::keys;
use crate::object::Object;
use crate::retry::StoreFault;
use arrow::array::{ArrayRef, FixedSizeBinaryArray, FixedSizeListArray, Float32Array, RecordBatch, UInt32Array};
use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use bytes::Bytes;
use events_schema::dataset::{DatasetInfo, SampleShape};
use events_schema::{DatasetName, Digest, IdError};
use object_store::ObjectStore;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::{ParquetMetaDataReader, RowGroupMetaData};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;
use std::sync::Arc;
use tokio::runtime::Handle;

/// Decoded bytes of a block as we write it: well below the most that is legal, so that open blocks of many ranks fit a cache.
const BLOCK_BYTES_TARGET: u64 = 1 << 20;
/// Fewest blocks of a dataset that has as many rows: shuffling permutes blocks.
const BLOCKS_MIN: u64 = 16;
/// A part is closed when it has so many encoded bytes.
const PART_BYTES_TARGET: usize = 64 << 20;
/// Names of the columns that imports write.
const FEATURES: &str = "features";
const LABEL: &str = "label";
const TOKENS: &str = "tokens";

/// Why an import failed. All of them: stop; nothing is registered, and parts already written are named by their content.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The source cannot be read.
    #[error("the source cannot be read to its end; check the file, and whether it is what --format says")]
    Read(#[source] std::io::Error),
    /// A value of a text source.
    #[error("line {line}, column {column}: {problem}")]
    Value {
        /// Line of the source, from 1.
        line: u64,
        /// Number of the column, from 1, and its name if it has one.
        column: String,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// A line of a text source.
    #[error("line {line}: {problem}")]
    Line {
        /// Line of the source, from 1.
        line: u64,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// The source as a whole.
    #[error("{0}")]
    Source(String),
    /// A name that datasets cannot have.
    #[error("the dataset cannot be named so; choose another name")]
    Name(#[from] IdError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreFault),
    /// A part could not be encoded. A bug; report it.
    #[error("a part of the dataset could not be encoded, which is a defect of Ebb; report it with the line below")]
    Encode(#[from] ParquetError),
    /// A batch could not be made. A bug; report it.
    #[error("a batch of rows could not be made, which is a defect of Ebb; report it with the line below")]
    Batch(#[from] ArrowError),
    /// What was made contradicts itself. A bug; report it.
    #[error("the dataset's metadata came out wrong, which is a defect of Ebb; report it with the line below")]
    Metadata(#[from] MetadataError),
    /// The importing thread stopped. A bug; report it.
    #[error("the import stopped, which is a defect of Ebb; report it with the line below")]
    Stopped(#[from] tokio::task::JoinError),
}

/// What an import made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    /// The dataset, ready to be registered.
    pub dataset: DatasetInfo,
    /// The rows held out of it, as `NAME-test`, if a split was asked for.
    pub test: Option<DatasetInfo>,
}

/// What one row of a table is.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum RowKind {
    Classified { element: ElementType, scale: f32, shape: Vec<u32> },
    Tokens { length: u32 },
}

/// One row to write.
#[derive(Debug, Clone, Copy)]
pub(super) enum Row<'a> {
    Bytes(&'a [u8], u32),
    Floats(&'a [f32], u32),
    Tokens(&'a [u32]),
}

/// Runs an import on a thread of its own: `fill` pushes the rows.
pub(super) async fn import(
    store: &Arc<dyn ObjectStore>,
    name: &DatasetName,
    test_every: Option<u32>,
    fill: impl FnOnce(&mut Split) -> Result<Summary, ImportError> + Send + 'static,
) -> Result<Imported, ImportError> {
    let (store, name, runtime) = (Arc::clone(store), name.clone(), Handle::current());
    let work = move || {
        let test = match test_every {
            Some(every) if every < 2 => {
                return Err(ImportError::Source(format!(
                    "every {every}th row cannot be held out: nothing would be left; give 2 or more"
                )));
            }
            Some(every) => Some((u64::from(every), DatasetName::parse(&format!("{name}-test"))?)),
            None => None,
        };
        let target = |name| Target { store: Arc::clone(&store), name, runtime: runtime.clone() };
        let mut split = Split {
            train: Table::new(target(name)),
            test: test.map(|(every, name)| (every, Table::new(target(name)))),
            rows: 0,
        };
        let summary = fill(&mut split)?;
        let dataset = split.train.finish(&summary)?;
        let test = split.test.map(|(_, table)| table.finish(&summary)).transpose()?;
        Ok(Imported { dataset, test })
    };
    tokio::task::spawn_blocking(work).await?
}

/// What is known once all rows have been seen.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Summary {
    pub kind: RowKind,
    /// Classes or tokens; at least 2.
    pub classes: u32,
    pub class_names: Vec<String>,
    pub vocabulary: Vec<String>,
}

/// Two tables: every k-th row, beginning with the first, goes to the second.
pub(super) struct Split {
    train: Table,
    test: Option<(u64, Table)>,
    rows: u64,
}

impl Split {
    pub(super) fn push(&mut self, row: Row<'_>) -> Result<(), ImportError> {
        let number = self.rows;
        self.rows += 1;
        match &mut self.test {
            Some((every, test)) if number.is_multiple_of(*every) => test.push(row),
            _ => self.train.push(row),
        }
    }

    pub(super) fn rows(&self) -> u64 {
        self.rows
    }
}

/// Where parts go.
struct Target {
    store: Arc<dyn ObjectStore>,
    name: DatasetName,
    runtime: Handle,
}

/// One dataset in the making.
struct Table {
    target: Target,
    pending: Block,
    pending_rows: u64,
    /// Whether enough rows have come for [`BLOCKS_MIN`] blocks of [`BLOCK_BYTES_TARGET`].
    large: bool,
    writer: Option<ArrowWriter<Vec<u8>>>,
    partitions: Vec<Partition>,
    rows: u64,
}

impl Table {
    fn new(target: Target) -> Self {
        Self {
            target,
            pending: Block::Tokens(Vec::new()),
            pending_rows: 0,
            large: false,
            writer: None,
            partitions: Vec::new(),
            rows: 0,
        }
    }

    fn push(&mut self, row: Row<'_>) -> Result<(), ImportError> {
        if self.pending_rows == 0 {
            self.pending = match row {
                Row::Bytes(..) => Block::Classified { features: Elements::U8(Vec::new()), labels: Vec::new() },
                Row::Floats(..) => Block::Classified { features: Elements::F32(Vec::new()), labels: Vec::new() },
                Row::Tokens(_) => Block::Tokens(Vec::new()),
            };
        }
        match (&mut self.pending, row) {
            (Block::Classified { features: Elements::U8(out), labels }, Row::Bytes(row, label)) => {
                out.extend_from_slice(row);
                labels.push(label);
            }
            (Block::Classified { features: Elements::F32(out), labels }, Row::Floats(row, label)) => {
                out.extend_from_slice(row);
                labels.push(label);
            }
            (Block::Tokens(out), Row::Tokens(row)) => out.extend_from_slice(row),
            _ => return Err(ImportError::Source("rows of different kinds".to_owned())),
        }
        self.pending_rows += 1;
        let full = if self.large { BLOCK_BYTES_TARGET } else { BLOCK_BYTES_TARGET * BLOCKS_MIN };
        if self.pending.bytes() >= full {
            self.flush(if self.large { 1 } else { BLOCKS_MIN })?;
            self.large = true;
        }
        Ok(())
    }

    /// Writes the pending rows as `blocks` row groups, fewer if there are fewer rows.
    fn flush(&mut self, blocks: u64) -> Result<(), ImportError> {
        let rows = self.pending_rows as usize;
        if rows == 0 {
            return Ok(());
        }
        let pending = std::mem::replace(&mut self.pending, Block::Tokens(Vec::new()));
        self.pending_rows = 0;
        self.rows += rows as u64;
        let batch = batch_of(pending, rows)?;
        let mut writer = match self.writer.take() {
            Some(writer) => writer,
            None => ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties()?))?,
        };
        let blocks = (blocks as usize).min(rows);
        for block in 0..blocks {
            let (first, end) = (rows * block / blocks, rows * (block + 1) / blocks);
            writer.write(&batch.slice(first, end - first))?;
            writer.flush()?;
        }
        if writer.bytes_written() < PART_BYTES_TARGET {
            self.writer = Some(writer);
            return Ok(());
        }
        self.close_part(writer)
    }

    fn close_part(&mut self, writer: ArrowWriter<Vec<u8>>) -> Result<(), ImportError> {
        let bytes = Bytes::from(writer.into_inner()?);
        let partition = self.target.runtime.block_on(put_part(&self.target.store, &self.target.name, bytes))?;
        self.partitions.push(partition);
        Ok(())
    }

    fn finish(mut self, summary: &Summary) -> Result<DatasetInfo, ImportError> {
        self.flush(if self.large { 1 } else { BLOCKS_MIN })?;
        if let Some(writer) = self.writer.take() {
            self.close_part(writer)?;
        }
        if self.rows == 0 {
            return Err(ImportError::Source(format!("dataset `{}` would have no rows", self.target.name)));
        }
        let metadata = metadata_of(summary, self.rows, self.partitions);
        metadata.sample.ensure_fit().map_err(|problems| {
            ImportError::Source(format!(
                "dataset `{}` would hold rows that none can have: {problems}",
                self.target.name
            ))
        })?;
        DatasetMetadata::parse(&metadata.to_bytes())?;
        Ok(self.target.runtime.block_on(save_metadata(&self.target.store, self.target.name.clone(), &metadata))?)
    }
}

/// Metadata of a dataset in the columns that imports write.
pub(super) fn metadata_of(summary: &Summary, rows: u64, partitions: Vec<Partition>) -> DatasetMetadata {
    let (sample, columns) = match &summary.kind {
        RowKind::Classified { element, scale, shape } => (
            SampleShape::Classified { shape: shape.clone(), classes: summary.classes },
            Columns::Classified {
                features: FeatureColumn { name: FEATURES.to_owned(), element: *element, scale: *scale, offset: 0.0 },
                label: LABEL.to_owned(),
            },
        ),
        RowKind::Tokens { length } => (
            SampleShape::Tokens { length: *length, vocabulary: summary.classes },
            Columns::Tokens { tokens: TOKENS.to_owned() },
        ),
    };
    debug_assert!(row_elements(&sample) > 0);
    DatasetMetadata {
        format_version: FORMAT_VERSION,
        sample,
        rows,
        columns,
        class_names: summary.class_names.clone(),
        vocabulary: summary.vocabulary.clone(),
        partitions,
    }
}

/// Writes a Parquet file as a part of a dataset, every row group a block with its checksum.
pub(super) async fn put_part(
    store: &Arc<dyn ObjectStore>,
    name: &DatasetName,
    bytes: Bytes,
) -> Result<Partition, ImportError> {
    let key = keys::dataset_part(name, &Digest::of(&bytes));
    let partition = index_part(&key, &bytes)?;
    Object::of_key(store, &key).put(bytes.len() as u64, || std::iter::once(bytes.clone())).await?;
    Ok(partition)
}

fn index_part(key: &str, file: &Bytes) -> Result<Partition, ParquetError> {
    let metadata = ParquetMetaDataReader::new().parse_and_finish(file)?;
    let checked = |offset: u64, end: u64| Checked {
        offset,
        bytes: end - offset,
        blake3: Digest::of(&file[offset as usize..end as usize]),
    };
    let mut blocks = Vec::with_capacity(metadata.num_row_groups());
    let mut data_end = 0;
    for (group, row_group) in metadata.row_groups().iter().enumerate() {
        let (start, end) = stretch(row_group);
        data_end = data_end.max(end);
        let rows = u32::try_from(row_group.num_rows()).unwrap_or(u32::MAX);
        blocks.push(BlockRecord { group: group as u32, first_row: 0, rows, checked: Some(checked(start, end)) });
    }
    let bytes = file.len() as u64;
    Ok(Partition {
        location: Location::Key(key.to_owned()),
        format: FileFormat::Parquet,
        bytes,
        etag: None,
        footer: Some(checked(data_end, bytes)),
        blocks,
    })
}

/// First byte and end of a row group's column chunks.
fn stretch(row_group: &RowGroupMetaData) -> (u64, u64) {
    let ranges = || row_group.columns().iter().map(|c| c.byte_range());
    (
        ranges().map(|(start, _)| start).min().unwrap_or(0),
        ranges().map(|(start, length)| start + length).max().unwrap_or(0),
    )
}

fn properties() -> Result<WriterProperties, ParquetError> {
    Ok(WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(3)?))
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_column_dictionary_enabled(ColumnPath::from(FEATURES), false)
        .set_offset_index_disabled(true)
        .set_created_by("ebb".to_owned())
        .build())
}

fn batch_of(block: Block, rows: usize) -> Result<RecordBatch, ArrowError> {
    let list = |item: DataType, values: ArrayRef| {
        let width = (values.len() / rows) as i32;
        let item = Arc::new(Field::new_list_field(item, false));
        FixedSizeListArray::try_new(item, width, values, None).map(|list| Arc::new(list) as ArrayRef)
    };
    let columns: Vec<(&str, ArrayRef)> = match block {
        Block::Classified { features, labels } => {
            let features = match features {
                Elements::U8(bytes) => {
                    let width = (bytes.len() / rows) as i32;
                    Arc::new(FixedSizeBinaryArray::try_new(width, Buffer::from_vec(bytes), None)?) as ArrayRef
                }
                Elements::F32(floats) => list(DataType::Float32, Arc::new(Float32Array::from(floats)))?,
            };
            vec![(FEATURES, features), (LABEL, Arc::new(UInt32Array::from(labels)))]
        }
        Block::Tokens(tokens) => vec![(TOKENS, list(DataType::UInt32, Arc::new(UInt32Array::from(tokens)))?)],
    };
    let fields: Vec<Field> =
        columns.iter().map(|(name, array)| Field::new(*name, array.data_type().clone(), false)).collect();
    let schema: SchemaRef = Arc::new(Schema::new(fields));
    RecordBatch::try_new(schema, columns.into_iter().map(|(_, array)| array).collect())
}
