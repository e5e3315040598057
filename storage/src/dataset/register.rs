//! Takes Parquet and Arrow IPC files where they lie: reads footers and headers only, finds the tensors, cuts row groups into
//! blocks, and writes metadata. The files themselves are never copied or changed.

use super::columns::{ColumnError, TensorColumn, find_features, find_label, find_tokens};
use super::metadata::{
    BlockRecord, Columns, DatasetMetadata, ElementType, FORMAT_VERSION, FeatureColumn, FileFormat, Location, Partition,
    cut_group, row_elements,
};
use super::save_metadata;
use super::scan::{FileBytes, GROUP_BYTES_MAX, OpenFile, ScanError, ipc_batch_rows};
use crate::object::Object;
use crate::retry::{RetryPolicy, StoreFault};
use crate::store::{OpenStoreError, open_object};
use events_schema::DatasetName;
use events_schema::dataset::{DatasetInfo, SampleShape};
use futures::TryStreamExt;
use object_store::ObjectStore;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::statistics::Statistics;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Most files of one dataset.
const FILES_MAX: usize = 100_000;
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
pub enum RegisterError {
    /// Nothing to register.
    #[error("no files: give addresses of Parquet or Arrow IPC files, or of a folder of them, ending in `/`")]
    NoFiles,
    /// More than `FILES_MAX`.
    #[error("{0} files, more than {FILES_MAX}")]
    TooManyFiles(usize),
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
        /// Why.
        problem: String,
    },
    /// A file's columns do not fit.
    #[error("file `{uri}` does not fit")]
    Columns {
        /// Its address.
        uri: String,
        /// Which column and why.
        #[source]
        source: ColumnError,
    },
    /// A file unlike the first.
    #[error("file `{uri}` holds {found} where the first file holds {expected}")]
    Differs {
        /// Its address.
        uri: String,
        /// Its columns.
        found: String,
        /// The first file's.
        expected: String,
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

/// The columns of a file that a dataset uses.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Found {
    Classified { tensor: TensorColumn, label: String },
    Tokens { tokens: String },
}

/// Registers files in place and writes the metadata to Ebb's store.
pub async fn register(store: &Arc<dyn ObjectStore>, registration: &Registration) -> Result<DatasetInfo, RegisterError> {
    let files = expand(&registration.uris).await?;
    let mut first: Option<Found> = None;
    let mut classes_seen = 0u32;
    let mut partitions = Vec::with_capacity(files.len());
    for object in files {
        let scanned = scan(registration, object).await?;
        match &first {
            None => first = Some(scanned.found.clone()),
            Some(expected) if *expected == scanned.found => {}
            Some(expected) => {
                return Err(RegisterError::Differs {
                    uri: scanned.partition.location.as_str().to_owned(),
                    found: format!("{:?}", scanned.found),
                    expected: format!("{expected:?}"),
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
async fn expand(uris: &[String]) -> Result<Vec<Object>, RegisterError> {
    let mut files = Vec::new();
    for uri in uris {
        let (store, path) = open_object(uri)?;
        let address = if uri.starts_with('/') { format!("file://{uri}") } else { uri.clone() };
        if !uri.ends_with('/') {
            files.push(Object { store, path, key: address, retry: retry() });
            continue;
        }
        let mut listed: Vec<_> = store
            .list(Some(&path))
            .map_ok(|meta| meta.location)
            .try_collect()
            .await
            .map_err(|e| StoreFault::of(uri, e))?;
        listed.retain(|location| ENDINGS.iter().any(|ending| location.as_ref().ends_with(ending)));
        listed.sort();
        for location in listed {
            let inside =
                location.as_ref().strip_prefix(path.as_ref()).unwrap_or_default().trim_start_matches('/').to_owned();
            files.push(Object {
                store: Arc::clone(&store),
                path: location,
                key: format!("{address}{inside}"),
                retry: retry(),
            });
        }
    }
    match files.len() {
        0 => Err(RegisterError::NoFiles),
        n if n > FILES_MAX => Err(RegisterError::TooManyFiles(n)),
        _ => Ok(files),
    }
}

/// What a file's footer says.
struct Scanned {
    found: Found,
    /// One more than the highest label, 0 if declared anyway.
    classes_seen: u32,
    partition: Partition,
}

async fn scan(registration: &Registration, object: Object) -> Result<Scanned, RegisterError> {
    let uri = object.key.clone();
    let of_scan = |error| match error {
        ScanError::Store(fault) => RegisterError::Store(fault),
        ScanError::Corrupt(problem) => RegisterError::File { uri: uri.clone(), problem },
    };
    let meta = object.head().await?;
    let file = FileBytes::new(object, meta.e_tag.clone(), meta.size, Arc::new(AtomicU64::new(0)));
    let format = format_of(&file, &uri).await?;
    let open = OpenFile::open(&file, format, None).await.map_err(of_scan)?;
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
    let row_bytes = match &found {
        Found::Classified { tensor, .. } => {
            tensor.shape.iter().map(|&n| u64::from(n)).product::<u64>() * tensor.element.bytes() + 4
        }
        Found::Tokens { .. } => registration.sample.as_ref().map_or(1, row_elements) * 4,
    };
    let blocks = cut_blocks(&file, &open, row_bytes).await.map_err(of_scan)?;
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

async fn cut_blocks(file: &FileBytes, open: &OpenFile, row_bytes: u64) -> Result<Vec<BlockRecord>, ScanError> {
    let mut blocks = Vec::new();
    match open {
        OpenFile::Parquet(metadata) => {
            for (number, group) in metadata.metadata().row_groups().iter().enumerate() {
                // Without an index of pages a block costs its whole row group.
                let bytes = u64::try_from(group.compressed_size()).unwrap_or(0);
                if bytes > GROUP_BYTES_MAX && metadata.metadata().page_index().is_none() {
                    return Err(ScanError::Corrupt(format!(
                        "row group {number} has {bytes} bytes and no page index; write row groups of at most {GROUP_BYTES_MAX} bytes"
                    )));
                }
                blocks.extend(cut_group(number as u32, u64::try_from(group.num_rows()).unwrap_or(0), row_bytes));
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
                blocks.extend(cut_group(number as u32, ipc_batch_rows(file, batch).await?, row_bytes));
            }
        }
    }
    Ok(blocks)
}
