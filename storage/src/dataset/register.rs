//! Takes Parquet and Arrow IPC files where they lie: reads footers and headers only, finds the tensors, cuts row groups into
//! blocks, and writes metadata. The files themselves are never copied or changed.

use super::columns::{ColumnError, TensorColumn, find_features, find_label, find_tokens};
use super::metadata::{
    BlockRecord, Columns, DatasetMetadata, ElementType, FORMAT_VERSION, FeatureColumn, FileFormat, Location, Partition,
    blocks_of, cut_group, row_elements,
};
use super::roots::{DatasetRoots, Outside};
use super::save_metadata;
use super::scan::{FileBytes, GROUP_BYTES_MAX, OpenFile, ScanError, ipc_batch_rows};
use crate::object::Object;
use crate::retry::{RetryPolicy, StoreFault};
use crate::store::{OpenStoreError, open_object};
use events_schema::DatasetName;
use events_schema::dataset::{DatasetInfo, SAMPLE_ELEMENTS_MAX, SampleShape};
use events_schema::fields::Problems;
use futures::TryStreamExt;
use object_store::{ObjectStore, path::Path as StorePath};
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use parquet::file::statistics::Statistics;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Most files of one dataset.
const FILES_MAX: usize = 100_000;
/// Most objects looked at to find them: a folder may hold others, but not the whole disk.
const LISTED_MAX: usize = 1_000_000;
/// Most blocks of one dataset: 8 TB of rows in blocks of full size, and 50 MB of metadata.
const BLOCKS_MAX: usize = 1_000_000;
/// Most bytes of footer and page index that are read of one file: tens of thousands of column chunks. Parsed they take up to
/// twenty-five times as much, and the service reads them for anybody who asks.
const FOOTER_BYTES_MAX: u64 = 16 << 20;
/// Most bytes of a row group once it is decompressed, if all of it has to be: an executor holds it in memory.
const GROUP_DECODED_BYTES_MAX: u64 = 4 << 30;
/// Endings of files that are taken from a folder.
const ENDINGS: [&str; 5] = [".parquet", ".pq", ".arrow", ".ipc", ".feather"];

/// What to register.
#[derive(Debug, Clone, PartialEq)]
pub struct Registration {
    /// The dataset's name.
    pub name: DatasetName,
    /// Addresses of files, or of folders if they end in `/`.
    pub uris: Vec<String>,
    /// What a row holds. Needed for tokens, for binary columns and wherever the files do not say the number of classes.
    pub sample: Option<SampleShape>,
    /// Which columns hold it, where their names and types leave a choice.
    pub columns: ColumnNames,
    /// Type of the elements of binary columns; bytes if not given.
    pub element: Option<ElementType>,
    /// Stored elements are multiplied by this when read; 1 if not given.
    pub scale: Option<f32>,
}

/// Columns by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ColumnNames {
    /// The tensor.
    pub features: Option<String>,
    /// The class.
    pub label: Option<String>,
    /// The sequence.
    pub tokens: Option<String>,
}

/// Why files cannot be registered. All of them: refuse and show it.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "a field without a comment is what its name and type say")]
pub enum RegisterError {
    /// Nothing to register.
    #[error("no files: give addresses of Parquet or Arrow IPC files, or of a folder of them, ending in `/`")]
    NoFiles,
    /// More than `FILES_MAX`.
    #[error("there are more than {FILES_MAX} files; write fewer, larger ones, or register them as several datasets")]
    TooManyFiles,
    /// A folder with more in it than is looked at.
    #[error(
        "folder `{0}` holds more than {LISTED_MAX} objects; give the address of a folder that holds the dataset's files only"
    )]
    TooManyObjects(String),
    /// An address from which nothing may be registered.
    #[error(transparent)]
    Outside(#[from] Outside),
    /// An address that cannot be opened.
    #[error(transparent)]
    Address(#[from] OpenStoreError),
    /// The store that holds a file failed, or the file is not there.
    #[error(transparent)]
    Store(#[from] StoreFault),
    /// A file that is not one.
    #[error("file `{uri}` cannot be registered: {problem}")]
    File {
        /// Its address.
        uri: String,
        problem: String,
    },
    /// A file's columns do not fit.
    #[error("the columns of file `{uri}` do not fit")]
    Columns {
        /// Its address.
        uri: String,
        /// Which column and why.
        #[source]
        source: ColumnError,
    },
    /// A file unlike the first.
    #[error(
        "file `{uri}` holds {found} where the first file holds {expected}; register files of one kind together, the others as another dataset"
    )]
    Differs {
        /// Its address.
        uri: String,
        /// Its columns.
        found: String,
        /// The first file's.
        expected: String,
    },
    /// A file whose rows are of no shape that a dataset may have.
    #[error("file `{uri}` holds rows that a dataset cannot have")]
    Sample {
        /// Its address.
        uri: String,
        /// What is wrong with the shape or the number of classes.
        #[source]
        source: Problems,
    },
    /// Nobody says how many classes there are.
    #[error(
        "the number of classes is unknown: column `{label}` of `{uri}` has no statistics; declare it, for example `sample: {{kind: classified, shape: {shape:?}, classes: 10}}`"
    )]
    ClassesUnknown {
        /// A file without statistics.
        uri: String,
        /// The label column.
        label: String,
        /// The shape as found.
        shape: Vec<u32>,
    },
}

impl RegisterError {
    /// The address that it is about, if it is about one.
    #[must_use]
    pub fn uri(&self) -> Option<&str> {
        match self {
            Self::File { uri, .. }
            | Self::Columns { uri, .. }
            | Self::Differs { uri, .. }
            | Self::Sample { uri, .. }
            | Self::ClassesUnknown { uri, .. } => Some(uri),
            Self::TooManyObjects(uri) => Some(uri),
            Self::Outside(outside) => Some(&outside.uri),
            Self::Store(fault) => Some(fault.key()),
            Self::NoFiles | Self::TooManyFiles | Self::Address(_) => None,
        }
    }

    /// Whether the files do not say what a row is, and the registration has to.
    #[must_use]
    pub fn wants_sample(&self) -> bool {
        let unknown = matches!(self, Self::Columns { source: ColumnError::ShapeUnknown { .. }, .. });
        unknown || matches!(self, Self::ClassesUnknown { .. })
    }
}

/// The columns of a file that a dataset uses.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Found {
    Classified { tensor: TensorColumn, label: String },
    Tokens { tokens: String },
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Classified { tensor, label } => {
                let element = match tensor.element {
                    ElementType::U8 => "bytes",
                    ElementType::F32 => "floats",
                };
                write!(f, "{element} of shape {:?} in `{}` and labels in `{label}`", tensor.shape, tensor.name)
            }
            Self::Tokens { tokens } => write!(f, "tokens in `{tokens}`"),
        }
    }
}

/// Registers files in place, all of which lie in one of `roots`, and writes the metadata to Ebb's store.
pub async fn register(
    store: &Arc<dyn ObjectStore>,
    registration: &Registration,
    roots: &DatasetRoots,
) -> Result<DatasetInfo, RegisterError> {
    let files = expand(&registration.uris, roots).await?;
    let mut first: Option<Found> = None;
    let mut classes_seen = 0u32;
    let mut blocks_left = BLOCKS_MAX;
    let mut partitions = Vec::with_capacity(files.len());
    for object in files {
        let scanned = scan(registration, object, blocks_left).await?;
        blocks_left = blocks_left.saturating_sub(scanned.partition.blocks.len());
        match &first {
            None => first = Some(scanned.found.clone()),
            Some(expected) if *expected == scanned.found => {}
            Some(expected) => {
                return Err(RegisterError::Differs {
                    uri: scanned.partition.location.as_str().to_owned(),
                    found: scanned.found.to_string(),
                    expected: expected.to_string(),
                });
            }
        }
        classes_seen = classes_seen.max(scanned.classes_seen);
        partitions.push(scanned.partition);
    }
    let found = first.ok_or(RegisterError::NoFiles)?;
    let rows = partitions.iter().flat_map(|p| &p.blocks).map(|b| u64::from(b.rows)).sum();
    if rows == 0 {
        return Err(RegisterError::File {
            uri: partitions[0].location.as_str().to_owned(),
            problem: "it has no rows".to_owned(),
        });
    }
    let (sample, columns) = match found {
        Found::Classified { tensor, label } => {
            let classes = match &registration.sample {
                Some(SampleShape::Classified { classes, .. }) => *classes,
                _ => classes_seen.max(2),
            };
            let features = FeatureColumn {
                name: tensor.name,
                element: tensor.element,
                scale: registration.scale.unwrap_or(1.0),
                offset: 0.0,
            };
            (SampleShape::Classified { shape: tensor.shape, classes }, Columns::Classified { features, label })
        }
        Found::Tokens { tokens } => match &registration.sample {
            Some(sample) => (sample.clone(), Columns::Tokens { tokens }),
            None => return Err(RegisterError::NoFiles),
        },
    };
    if let Err(source) = sample.ensure_fit() {
        return Err(RegisterError::Sample { uri: partitions[0].location.as_str().to_owned(), source });
    }
    let metadata = DatasetMetadata {
        format_version: FORMAT_VERSION,
        sample,
        rows,
        columns,
        class_names: Vec::new(),
        vocabulary: Vec::new(),
        partitions,
    };
    Ok(save_metadata(store, registration.name.clone(), &metadata).await?)
}

/// A person waits for the answer, and can ask again.
fn retry() -> RetryPolicy {
    RetryPolicy { deadline: Duration::from_secs(10), ..RetryPolicy::default() }
}

/// The files behind addresses, folders listed in order of name.
async fn expand(uris: &[String], roots: &DatasetRoots) -> Result<Vec<Object>, RegisterError> {
    let mut files = Vec::new();
    for uri in uris {
        roots.admit(uri)?;
        let (store, path) = open_object(uri)?;
        let address = if uri.starts_with('/') { format!("file://{uri}") } else { uri.clone() };
        if !uri.ends_with('/') {
            files.push(Object { store, path, key: address, retry: retry() });
            continue;
        }
        for location in list(&store, &path, uri, LISTED_MAX).await? {
            let inside =
                location.as_ref().strip_prefix(path.as_ref()).unwrap_or_default().trim_start_matches('/').to_owned();
            let key = format!("{address}{inside}");
            // A link in the folder may lead out of it.
            roots.admit(&key)?;
            files.push(Object { store: Arc::clone(&store), path: location, key, retry: retry() });
        }
        ensure_few(files.len())?;
    }
    ensure_few(files.len())?;
    if files.is_empty() { Err(RegisterError::NoFiles) } else { Ok(files) }
}

fn ensure_few(files: usize) -> Result<(), RegisterError> {
    if files > FILES_MAX { Err(RegisterError::TooManyFiles) } else { Ok(()) }
}

/// The files of a folder by their endings, in order. Ends early in a folder that holds far more than a dataset.
async fn list(
    store: &Arc<dyn ObjectStore>,
    folder: &StorePath,
    uri: &str,
    listed_max: usize,
) -> Result<Vec<StorePath>, RegisterError> {
    let (mut found, mut looked_at) = (Vec::new(), 0);
    let mut objects = store.list(Some(folder));
    while let Some(object) = objects.try_next().await.map_err(|e| StoreFault::of(uri, e))? {
        looked_at += 1;
        if looked_at > listed_max {
            return Err(RegisterError::TooManyObjects(uri.to_owned()));
        }
        if ENDINGS.iter().any(|ending| object.location.as_ref().ends_with(ending)) {
            found.push(object.location);
            ensure_few(found.len())?;
        }
    }
    found.sort();
    Ok(found)
}

/// What a file's footer says.
struct Scanned {
    found: Found,
    /// One more than the highest label, 0 if declared anyway.
    classes_seen: u32,
    partition: Partition,
}

async fn scan(registration: &Registration, object: Object, blocks_max: usize) -> Result<Scanned, RegisterError> {
    let uri = object.key.clone();
    let of_scan = |error| match error {
        ScanError::Store(fault) => RegisterError::Store(fault),
        ScanError::Corrupt(problem) => RegisterError::File { uri: uri.clone(), problem },
    };
    let meta = object.head().await?;
    let file = FileBytes::new(object, meta.e_tag.clone(), meta.size, Arc::new(AtomicU64::new(0)));
    let format = format_of(&file, &uri).await?;
    let open = OpenFile::open(&file, format, None, FOOTER_BYTES_MAX).await.map_err(of_scan)?;
    let found =
        find_columns(registration, &open).map_err(|source| RegisterError::Columns { uri: uri.clone(), source })?;
    let mut classes_seen = 0;
    if let Found::Classified { tensor, label } = &found
        && registration.sample.is_none()
    {
        let unknown =
            || RegisterError::ClassesUnknown { uri: uri.clone(), label: label.clone(), shape: tensor.shape.clone() };
        classes_seen = match &open {
            OpenFile::Parquet(metadata) => classes_of(metadata.metadata(), label)
                .map_err(|problem| RegisterError::File { uri: uri.clone(), problem })?
                .ok_or_else(unknown)?,
            OpenFile::ArrowIpc { .. } => return Err(unknown()),
        };
    }
    let row_bytes =
        row_bytes(registration, &found).map_err(|problem| RegisterError::File { uri: uri.clone(), problem })?;
    let blocks = cut_blocks(&file, &open, row_bytes, blocks_max).await.map_err(of_scan)?;
    let partition = Partition {
        location: Location::Uri(uri.clone()),
        format,
        bytes: meta.size,
        etag: meta.e_tag,
        footer: None,
        blocks,
    };
    Ok(Scanned { found, classes_seen, partition })
}

/// Told by its first bytes, whatever it is called.
async fn format_of(file: &FileBytes, uri: &str) -> Result<FileFormat, RegisterError> {
    let head = file.range(0..file.bytes.min(6)).await?;
    match head.as_ref() {
        b"ARROW1" => Ok(FileFormat::ArrowIpc),
        [b'P', b'A', b'R', b'1', ..] => Ok(FileFormat::Parquet),
        [b'P', b'A', b'R', b'E', ..] => Err(RegisterError::File {
            uri: uri.to_owned(),
            problem: "its footer is encrypted, which is not supported".to_owned(),
        }),
        _ => Err(RegisterError::File {
            uri: uri.to_owned(),
            problem: "it is neither Parquet nor an Arrow IPC file; import CSV, IDX and text with `ebb dataset import`"
                .to_owned(),
        }),
    }
}

fn find_columns(registration: &Registration, open: &OpenFile) -> Result<Found, ColumnError> {
    let (schema, names) = (open.schema(), &registration.columns);
    if matches!(registration.sample, Some(SampleShape::Tokens { .. })) {
        return Ok(Found::Tokens { tokens: find_tokens(schema, names.tokens.as_deref())? });
    }
    let declared = match &registration.sample {
        Some(SampleShape::Classified { shape, .. }) => Some(shape.as_slice()),
        _ => None,
    };
    let label = find_label(schema, names.label.as_deref())?;
    let tensor = find_features(schema, names.features.as_deref(), declared, registration.element)?;
    Ok(Found::Classified { tensor, label })
}

/// One more than the highest label by the file's statistics; `None` if a row group has none.
fn classes_of(metadata: &ParquetMetaData, label: &str) -> Result<Option<u32>, String> {
    let mut classes = 0;
    for group in metadata.row_groups() {
        let column = group.columns().iter().find(|c| c.column_path().string() == label);
        let bounds = match column.and_then(|c| c.statistics()) {
            Some(Statistics::Int32(s)) => {
                s.min_opt().zip(s.max_opt()).map(|(&min, &max)| (i64::from(min), i64::from(max)))
            }
            Some(Statistics::Int64(s)) => s.min_opt().zip(s.max_opt()).map(|(&min, &max)| (min, max)),
            _ => None,
        };
        let Some((min, max)) = bounds else { return Ok(None) };
        if min < 0 {
            return Err(format!("column `{label}` holds {min}; labels are whole numbers from 0"));
        }
        classes = classes.max(
            u32::try_from(max.saturating_add(1))
                .map_err(|_| format!("column `{label}` holds {max}, which is no class"))?,
        );
    }
    Ok(Some(classes))
}

/// Decoded bytes of a row, label included. What a file says of its rows is believed only up to the size of a sample.
fn row_bytes(registration: &Registration, found: &Found) -> Result<u64, String> {
    match found {
        Found::Classified { tensor, .. } => {
            let elements = tensor.shape.iter().try_fold(1u64, |all, &n| all.checked_mul(u64::from(n)));
            let legal = elements.filter(|&elements| elements <= SAMPLE_ELEMENTS_MAX);
            let elements = legal.ok_or_else(|| {
                format!(
                    "rows of shape {:?} are too large; a row has at most {SAMPLE_ELEMENTS_MAX} elements",
                    tensor.shape
                )
            })?;
            Ok(elements * tensor.element.bytes() + 4)
        }
        Found::Tokens { .. } => Ok(registration.sample.as_ref().map_or(1, row_elements) * 4),
    }
}

/// The groups of an open file as blocks; `blocks_max` of them may be made, whatever the file says of its rows.
async fn cut_blocks(
    file: &FileBytes,
    open: &OpenFile,
    row_bytes: u64,
    blocks_max: usize,
) -> Result<Vec<BlockRecord>, ScanError> {
    let mut blocks = Vec::new();
    let mut cut = |number: usize, rows: u64| {
        if blocks_of(rows, row_bytes) > (blocks_max - blocks.len()) as u64 {
            return Err(ScanError::Corrupt(format!(
                "it says that group {number} has {rows} rows, and a dataset has at most {BLOCKS_MAX} blocks of rows; register the files as several datasets"
            )));
        }
        blocks.extend(cut_group(number as u32, rows, row_bytes));
        Ok(())
    };
    match open {
        OpenFile::Parquet(metadata) => {
            let has_page_index = metadata.metadata().page_index().is_some();
            for (number, group) in metadata.metadata().row_groups().iter().enumerate() {
                if let Some(problem) = too_large(number, group, has_page_index) {
                    return Err(ScanError::Corrupt(problem));
                }
                cut(number, u64::try_from(group.num_rows()).unwrap_or(0))?;
            }
        }
        OpenFile::ArrowIpc { batches, .. } => {
            for (number, batch) in batches.iter().enumerate() {
                if batch.bodyLength() as u64 > GROUP_BYTES_MAX {
                    return Err(ScanError::Corrupt(format!(
                        "record batch {number} has {} bytes; write batches of at most {GROUP_BYTES_MAX} bytes",
                        batch.bodyLength()
                    )));
                }
                cut(number, ipc_batch_rows(file, batch).await?)?;
            }
        }
    }
    Ok(blocks)
}

/// Why a row group cannot be read in an executor's memory, if so. Without an index of pages a block costs its whole row group.
fn too_large(number: usize, group: &RowGroupMetaData, has_page_index: bool) -> Option<String> {
    if has_page_index {
        return None;
    }
    let size = |bytes: i64| u64::try_from(bytes).unwrap_or(0);
    let (stored, decoded) = (size(group.compressed_size()), size(group.total_byte_size()));
    let limit = if stored > GROUP_BYTES_MAX {
        format!("{stored} bytes and no page index; write row groups of at most {GROUP_BYTES_MAX} bytes")
    } else if decoded > GROUP_DECODED_BYTES_MAX {
        format!(
            "{decoded} bytes once it is decompressed and no page index; write row groups of at most {GROUP_DECODED_BYTES_MAX} bytes"
        )
    } else {
        return None;
    };
    Some(format!("row group {number} has {limit}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use object_store::{ObjectStoreExt, memory::InMemory};

    #[tokio::test]
    async fn a_folder_that_holds_far_more_than_a_dataset_is_not_listed_to_its_end() {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        for name in ["f/a.parquet", "f/b.txt", "f/c.parquet"] {
            store.put(&StorePath::from(name), "x".into()).await.unwrap();
        }
        let folder = StorePath::from("f");
        assert_eq!(list(&store, &folder, "f/", 3).await.unwrap().len(), 2);
        assert!(matches!(list(&store, &folder, "f/", 2).await, Err(RegisterError::TooManyObjects(_))));
    }
}
