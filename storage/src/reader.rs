//! Reads blocks of a dataset: opens each file once, fetches only the bytes of the block's group, checks, decodes. Holds nothing
//! but footers; what stays in memory is `loader.rs`'s to decide.

use crate::dataset::columns::{Block, BlockBuilder};
use crate::dataset::scan::{FOOTER_BYTES_MAX, FileBytes, OpenFile, ScanError};
use crate::dataset::{BlockRecord, Columns, DatasetMetadata, LoadError, Location, Partition};
use crate::object::{Object, WholeError};
use crate::order::OrderError;
use crate::retry::{RetryPolicy, StoreFault};
use crate::store::{OpenStoreError, open_object};
use object_store::ObjectStore;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::runtime::Handle;
use tokio::sync::OnceCell;

/// Why data could not be read. Faults of the store were retried up to their deadline. All of them: fail the job with this text,
/// which names the object; nothing is ever skipped.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// As the store said at last.
    #[error(transparent)]
    Store(#[from] StoreFault),
    /// An object is not what was registered.
    #[error("object `{key}` of the dataset is corrupt: {problem}")]
    Corrupt {
        /// Its key or address.
        key: String,
        /// What does not fit.
        problem: String,
    },
    /// The dataset's metadata cannot be used.
    #[error("the dataset cannot be opened")]
    Metadata(#[from] LoadError),
    /// A registered address cannot be opened here, for example for want of credentials.
    #[error("an object of the dataset cannot be reached")]
    Address(#[from] OpenStoreError),
    /// The job does not fit the dataset.
    #[error(transparent)]
    Order(#[from] OrderError),
}

impl DataError {
    /// The fault of the store that it is, if it is one.
    #[must_use]
    pub fn store_fault(&self) -> Option<&StoreFault> {
        match self {
            Self::Store(fault) | Self::Metadata(LoadError::Object(WholeError::Fault(fault))) => Some(fault),
            Self::Corrupt { .. } | Self::Metadata(_) | Self::Address(_) | Self::Order(_) => None,
        }
    }

    /// The object it is about, if it is about one.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::Store(fault) => Some(fault.key()),
            Self::Corrupt { key, .. } => Some(key),
            Self::Metadata(_) | Self::Address(_) | Self::Order(_) => None,
        }
    }
}

/// One file of the dataset.
struct File {
    bytes: FileBytes,
    open: OnceCell<OpenFile>,
}

/// Reads blocks by their index in the metadata.
pub(crate) struct Reader {
    metadata: Arc<DatasetMetadata>,
    files: Vec<Arc<File>>,
    /// Partition and block of every index.
    index: Vec<(u32, u32)>,
    bytes_read: Arc<AtomicU64>,
    runtime: Handle,
}

impl Reader {
    /// Opens nothing yet but the stores of registered addresses. Call inside the runtime that is to read.
    pub(crate) fn new(
        store: &Arc<dyn ObjectStore>,
        metadata: Arc<DatasetMetadata>,
        retry: RetryPolicy,
    ) -> Result<Self, DataError> {
        let bytes_read = Arc::new(AtomicU64::new(0));
        let mut files = Vec::with_capacity(metadata.partitions.len());
        let mut index = Vec::new();
        for (number, partition) in metadata.partitions.iter().enumerate() {
            let object = Object { retry, ..locate(store, partition)? };
            let bytes = FileBytes::new(object, partition.etag.clone(), partition.bytes, Arc::clone(&bytes_read));
            files.push(Arc::new(File { bytes, open: OnceCell::new() }));
            index.extend((0..partition.blocks.len()).map(|block| (number as u32, block as u32)));
        }
        Ok(Self { metadata, files, index, bytes_read, runtime: Handle::current() })
    }

    /// Bytes that came from the store so far, footers included.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Ordering::Relaxed)
    }

    /// Decoded bytes of a block, before it is read.
    pub(crate) fn block_bytes(&self, index: u32) -> u64 {
        self.record(index).map_or(0, |(_, block)| u64::from(block.rows) * self.metadata.row_bytes())
    }

    fn record(&self, index: u32) -> Option<(u32, &BlockRecord)> {
        let &(partition, block) = self.index.get(index as usize)?;
        Some((partition, self.metadata.partitions.get(partition as usize)?.blocks.get(block as usize)?))
    }

    /// Reads one block. Decoding and checking run on a thread where blocking is allowed.
    pub(crate) async fn read(&self, index: u32) -> Result<Block, DataError> {
        let Some((partition, record)) = self.record(index) else {
            return Err(DataError::Corrupt {
                key: "metadata".to_owned(),
                problem: format!("block {index} of {}", self.index.len()),
            });
        };
        let (number, record) = (partition as usize, record.clone());
        let file = Arc::clone(&self.files[number]);
        let metadata = Arc::clone(&self.metadata);
        let runtime = self.runtime.clone();
        let key = file.bytes.object.key.clone();
        let work = move || runtime.block_on(read_block(&file, &metadata, number, &record));
        match self.runtime.spawn_blocking(work).await {
            Ok(Ok(block)) => Ok(block),
            Ok(Err(ScanError::Store(fault))) => Err(DataError::Store(fault)),
            Ok(Err(ScanError::Corrupt(problem))) => Err(DataError::Corrupt { key, problem }),
            // Decoders panic on some malformed files.
            Err(join) => Err(DataError::Corrupt { key, problem: format!("its decoder stopped: {join}") }),
        }
    }
}

async fn read_block(
    file: &File,
    metadata: &DatasetMetadata,
    number: usize,
    record: &BlockRecord,
) -> Result<Block, ScanError> {
    let partition = &metadata.partitions[number];
    let open = file
        .open
        .get_or_try_init(|| OpenFile::open(&file.bytes, partition.format, partition.footer.as_ref(), FOOTER_BYTES_MAX))
        .await?;
    let columns = match &metadata.columns {
        Columns::Classified { features, label } => vec![features.name.as_str(), label.as_str()],
        Columns::Tokens { tokens } => vec![tokens.as_str()],
    };
    let mut builder = BlockBuilder::new(metadata);
    for batch in open.read(&file.bytes, record, &columns).await? {
        builder.push(&batch).map_err(ScanError::Corrupt)?;
    }
    builder.finish(record.rows as usize).map_err(ScanError::Corrupt)
}

fn locate(store: &Arc<dyn ObjectStore>, partition: &Partition) -> Result<Object, DataError> {
    match &partition.location {
        Location::Key(key) => Ok(Object::of_key(store, key)),
        Location::Uri(uri) => {
            let (store, path) = open_object(uri)?;
            Ok(Object { store, path, key: uri.clone(), retry: RetryPolicy::default() })
        }
    }
}
