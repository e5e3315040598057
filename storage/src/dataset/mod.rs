//! Datasets: lists of partitions known only by metadata. Nothing is copied or re-sharded for training.
//!
//! `metadata.rs` (pure) says what a dataset is; `roots.rs` where files may lie; `columns.rs` (pure) finds tensors in Arrow schemas and takes them out of record
//! batches; `register.rs` takes files where they lie; `import_csv.rs`, `import_idx.rs` and `import_text.rs` write Parquet through
//! `table.rs`; `digits.rs` ships one dataset with the product. Reading is `../loader.rs`.

pub(crate) mod columns;
mod digits;
mod import_csv;
mod import_idx;
mod import_text;
mod metadata;
mod nesting;
mod register;
mod roots;
pub(crate) mod scan;
mod source;
mod table;

pub use columns::ColumnError;
pub use digits::{DIGITS, DIGITS_ROWS, DIGITS_TEST, digits_sample, register_digits};
pub use import_csv::{CsvOptions, Header, LabelColumn, import_csv};
pub use import_idx::{IdxOptions, import_idx};
pub use import_text::{TextOptions, Vocabulary, import_text};
pub use metadata::{
    BlockRecord, Checked, Columns, DatasetMetadata, ElementType, FORMAT_VERSION, FeatureColumn, FileFormat, Location,
    MetadataError, Partition,
};
pub use register::{ColumnNames, RegisterError, Registration, register};
pub use roots::{DatasetRoot, DatasetRoots, Outside, RootError};
pub use table::{ImportError, Imported};

use crate::keys;
use crate::object::{Object, WholeError};
use crate::retry::StoreFault;
use bytes::Bytes;
use events_schema::dataset::DatasetInfo;
use events_schema::fields::Problems;
use events_schema::{DatasetName, Digest};
use object_store::ObjectStore;
use std::sync::Arc;

/// Most bytes of a metadata object: about a million blocks.
const METADATA_BYTES_MAX: u64 = 256 << 20;
/// The same for one that is registered: it is read by the service itself, for anybody who asks, and takes several times its size
/// once it is parsed.
const REGISTERED_METADATA_BYTES_MAX: u64 = 64 << 20;

/// Why a dataset's metadata cannot be used. Store faults were retried; everything else: refuse or fail the job.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "a field without a comment is what its name and type say")]
pub enum LoadError {
    /// As the store said.
    #[error(transparent)]
    Object(#[from] WholeError),
    /// Not the bytes that were registered.
    #[error("metadata object `{key}` is corrupt: its BLAKE3 is {found} instead of {expected}")]
    Corrupt {
        /// Its key.
        key: String,
        /// As registered.
        expected: Digest,
        /// Of what is there.
        found: Digest,
    },
    /// It names files that may not be registered.
    #[error(transparent)]
    Outside(#[from] Outside),
    /// Of rows that a dataset may not have; only what is registered anew is asked.
    #[error("metadata object `{key}` is of rows that a dataset cannot have")]
    Sample {
        /// Its key.
        key: String,
        /// What is wrong with the shape or the number of classes.
        #[source]
        source: Problems,
    },
    /// Not metadata of this release, or not of this dataset.
    #[error("metadata object `{key}` cannot be used")]
    Unusable {
        /// Its key.
        key: String,
        #[source]
        source: MetadataError,
    },
}

/// Writes a dataset's metadata; after this the dataset can be registered by its [`DatasetInfo`].
pub async fn save_metadata(
    store: &Arc<dyn ObjectStore>,
    name: DatasetName,
    metadata: &DatasetMetadata,
) -> Result<DatasetInfo, StoreFault> {
    let bytes = metadata.to_bytes();
    let digest = Digest::of(&bytes);
    let key = keys::dataset_metadata(&name, &digest);
    let body = Bytes::from(bytes);
    Object::of_key(store, &key).put(body.len() as u64, || std::iter::once(body.clone())).await?;
    Ok(DatasetInfo {
        name,
        sample: metadata.sample.clone(),
        rows: metadata.rows,
        metadata_key: key,
        metadata_digest: digest,
    })
}

/// Reads and checks the metadata behind a [`DatasetInfo`].
pub async fn load_metadata(store: &Arc<dyn ObjectStore>, info: &DatasetInfo) -> Result<DatasetMetadata, LoadError> {
    let metadata = load_metadata_object(store, &info.metadata_key, &info.metadata_digest, METADATA_BYTES_MAX).await?;
    if metadata.rows != info.rows || metadata.sample != info.sample {
        return Err(LoadError::Unusable { key: info.metadata_key.clone(), source: MetadataError::OtherDataset });
    }
    Ok(metadata)
}

/// The [`DatasetInfo`] of metadata that an import wrote elsewhere, for registering it by key and digest. Files outside the store
/// that it names have to lie in one of `roots`.
pub async fn info_of(
    store: &Arc<dyn ObjectStore>,
    name: DatasetName,
    metadata_key: &str,
    metadata_digest: &Digest,
    roots: &DatasetRoots,
) -> Result<DatasetInfo, LoadError> {
    let metadata = load_metadata_object(store, metadata_key, metadata_digest, REGISTERED_METADATA_BYTES_MAX).await?;
    metadata.sample.ensure_fit().map_err(|source| LoadError::Sample { key: metadata_key.to_owned(), source })?;
    for partition in &metadata.partitions {
        if let Location::Uri(uri) = &partition.location {
            roots.admit(uri)?;
        }
    }
    Ok(DatasetInfo {
        name,
        sample: metadata.sample,
        rows: metadata.rows,
        metadata_key: metadata_key.to_owned(),
        metadata_digest: *metadata_digest,
    })
}

/// Deletes what Ebb itself wrote for a dataset, metadata first. Registered files are never touched.
pub async fn remove(store: &Arc<dyn ObjectStore>, info: &DatasetInfo) -> Result<(), LoadError> {
    let metadata = match load_metadata(store, info).await {
        Ok(metadata) => metadata,
        // Already removed, at least its beginning.
        Err(LoadError::Object(WholeError::Fault(StoreFault::Missing { .. }))) => return Ok(()),
        Err(error) => return Err(error),
    };
    Object::of_key(store, &info.metadata_key).delete().await.map_err(WholeError::Fault)?;
    for partition in &metadata.partitions {
        if let Location::Key(key) = &partition.location {
            Object::of_key(store, key).delete().await.map_err(WholeError::Fault)?;
        }
    }
    Ok(())
}

async fn load_metadata_object(
    store: &Arc<dyn ObjectStore>,
    key: &str,
    digest: &Digest,
    bytes_max: u64,
) -> Result<DatasetMetadata, LoadError> {
    // Also what stands in the log of a build that did not ask when it was registered.
    if !keys::is_dataset_object(key) {
        return Err(LoadError::Unusable { key: key.to_owned(), source: MetadataError::Foreign });
    }
    let bytes = Object::of_key(store, key).whole(bytes_max).await?;
    let found = Digest::of(&bytes);
    if found != *digest {
        return Err(LoadError::Corrupt { key: key.to_owned(), expected: *digest, found });
    }
    DatasetMetadata::parse(&bytes).map_err(|source| LoadError::Unusable { key: key.to_owned(), source })
}

#[cfg(test)]
mod tests;
