//! Opening Parquet and Arrow IPC files by byte ranges: footers at once, groups of rows when asked. Used by registration (which
//! reads footers only) and by the reader. What a column means is `columns.rs`'s.

use super::metadata::{BlockRecord, Checked, FileFormat};
use super::nesting::{LEVELS_MAX, is_too_deep};
use crate::object::Object;
use crate::retry::StoreFault;
use arrow::array::RecordBatch;
use arrow::buffer::Buffer;
use arrow::datatypes::{Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::ipc::convert::try_fb_to_schema;
use arrow::ipc::reader::{FileDecoder, read_footer_length};
use arrow::ipc::{Block as IpcBlock, MetadataVersion, root_as_footer, root_as_message};
use bytes::Bytes;
use events_schema::Digest;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, RowSelection, RowSelector};
use parquet::arrow::async_reader::{AsyncFileReader, MetadataFetch, ParquetRecordBatchStreamBuilder};
use parquet::errors::ParquetError;
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a Parquet file's end that are read at once; most footers fit, so that one request opens a file.
const FOOTER_GUESS_BYTES: u64 = 64 << 10;
/// Length of the footer and magic number at the end of a Parquet file.
const PARQUET_TRAILER_BYTES: usize = 8;
/// `footer length` and magic at the end of an Arrow IPC file.
const IPC_TRAILER_BYTES: u64 = 10;
/// Most bytes that are read to open a file, footer and page index together, by an executor; a million groups.
pub(crate) const FOOTER_BYTES_MAX: u64 = 256 << 20;
/// Largest header of a record batch that is read: some tens of bytes for each of thousands of columns.
const IPC_HEADER_BYTES_MAX: u64 = 4 << 20;
/// Largest group that is read: it is held in memory while its rows are taken out.
pub(crate) const GROUP_BYTES_MAX: u64 = 512 << 20;

/// Why a file, or a part of it, was not read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ScanError {
    #[error(transparent)]
    Store(#[from] StoreFault),
    /// The bytes are not what they should be. The text is for the error that names the object.
    #[error("{0}")]
    Corrupt(String),
}

/// One file: its object, the version that must not have changed, and a count of what was read of it.
#[derive(Clone)]
pub(crate) struct FileBytes {
    pub object: Object,
    pub etag: Option<String>,
    pub bytes: u64,
    pub bytes_read: Arc<AtomicU64>,
    /// Bytes in hand, already checked, by their offset.
    in_hand: Option<(u64, Bytes)>,
}

impl FileBytes {
    pub(crate) fn new(object: Object, etag: Option<String>, bytes: u64, bytes_read: Arc<AtomicU64>) -> Self {
        Self { object, etag, bytes, bytes_read, in_hand: None }
    }

    pub(crate) async fn range(&self, range: Range<u64>) -> Result<Bytes, StoreFault> {
        if let Some((offset, bytes)) = &self.in_hand
            && range.start >= *offset
            && range.end <= offset + bytes.len() as u64
        {
            return Ok(bytes.slice((range.start - offset) as usize..(range.end - offset) as usize));
        }
        let bytes = self.object.range(range, self.etag.as_deref()).await?;
        self.bytes_read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(bytes)
    }

    /// Reads a stretch and compares its checksum.
    pub(crate) async fn checked(&self, stretch: &Checked) -> Result<Bytes, ScanError> {
        let end = stretch.offset.saturating_add(stretch.bytes);
        if end > self.bytes || stretch.bytes > GROUP_BYTES_MAX {
            return Err(ScanError::Corrupt(format!(
                "bytes {}..{end} do not lie inside its {} bytes",
                stretch.offset, self.bytes
            )));
        }
        let bytes = self.range(stretch.offset..end).await?;
        let found = Digest::of(&bytes);
        if found == stretch.blake3 {
            Ok(bytes)
        } else {
            Err(ScanError::Corrupt(format!(
                "the BLAKE3 of bytes {}..{end} is {found} instead of {}",
                stretch.offset, stretch.blake3
            )))
        }
    }

    fn holding(&self, offset: u64, bytes: Bytes) -> Self {
        Self { in_hand: Some((offset, bytes)), ..self.clone() }
    }
}

/// A file whose footer has been read.
pub(crate) enum OpenFile {
    Parquet(ArrowReaderMetadata),
    ArrowIpc { schema: SchemaRef, version: MetadataVersion, batches: Vec<IpcBlock> },
}

impl OpenFile {
    /// Reads a footer; `checked` is where it lies and its checksum, if that is known. What it says of its own size is believed only
    /// up to `footer_bytes_max`.
    pub(crate) async fn open(
        file: &FileBytes,
        format: FileFormat,
        checked: Option<&Checked>,
        footer_bytes_max: u64,
    ) -> Result<Self, ScanError> {
        let file = match checked {
            Some(stretch) => file.holding(stretch.offset, file.checked(stretch).await?),
            None => file.clone(),
        };
        match format {
            FileFormat::Parquet => open_parquet(&file, footer_bytes_max).await,
            FileFormat::ArrowIpc => open_ipc(&file, footer_bytes_max).await,
        }
    }

    /// Columns of the file, as Arrow.
    pub(crate) fn schema(&self) -> &Schema {
        match self {
            Self::Parquet(metadata) => metadata.schema(),
            Self::ArrowIpc { schema, .. } => schema,
        }
    }

    /// The rows of a block, only the named columns. Runs where blocking is allowed: decoding takes milliseconds.
    pub(crate) async fn read(
        &self,
        file: &FileBytes,
        block: &BlockRecord,
        columns: &[&str],
    ) -> Result<Vec<RecordBatch>, ScanError> {
        let file = match &block.checked {
            Some(stretch) => file.holding(stretch.offset, file.checked(stretch).await?),
            None => file.clone(),
        };
        match self {
            Self::Parquet(metadata) => read_parquet(file, metadata, block, columns).await,
            Self::ArrowIpc { schema, version, batches } => read_ipc(&file, schema, *version, batches, block).await,
        }
    }
}

/// What is read of a file to open it: all the places that its footer names, as long as they are small.
struct Opening<'a> {
    file: &'a FileBytes,
    bytes_max: u64,
    bytes_left: u64,
}

impl Opening<'_> {
    /// The footer alone, without its length and the magic number behind it. Most lie within one read of the file's end.
    async fn footer(&mut self) -> parquet::errors::Result<Bytes> {
        let end = self.file.bytes;
        let guess = match &self.file.in_hand {
            Some((offset, _)) => *offset..end,
            None => end.saturating_sub(FOOTER_GUESS_BYTES)..end,
        };
        let tail = self.bytes(guess.clone()).await?;
        let (trailer, magic) = match tail.last_chunk::<PARQUET_TRAILER_BYTES>() {
            Some([a, b, c, d, magic @ ..]) => (u32::from_le_bytes([*a, *b, *c, *d]), magic),
            None => return Err(ParquetError::EOF("it is too short for a Parquet file".to_owned())),
        };
        if magic != b"PAR1" {
            return Err(ParquetError::General("it does not end as a Parquet file does; was it cut off?".to_owned()));
        }
        let footer_end = end - PARQUET_TRAILER_BYTES as u64;
        let start = footer_end.checked_sub(u64::from(trailer)).ok_or_else(|| {
            ParquetError::General(format!("its footer says that it has {trailer} bytes, more than the file"))
        })?;
        match start.checked_sub(guess.start) {
            Some(within) => Ok(tail.slice(within as usize..tail.len() - PARQUET_TRAILER_BYTES)),
            None => self.bytes(start..footer_end).await,
        }
    }

    async fn bytes(&mut self, range: Range<u64>) -> parquet::errors::Result<Bytes> {
        let bytes = range.end.checked_sub(range.start).filter(|_| range.end <= self.file.bytes);
        let bytes = bytes.ok_or_else(|| ParquetError::General("its footer names bytes outside the file".to_owned()))?;
        self.bytes_left = self.bytes_left.checked_sub(bytes).ok_or_else(|| {
            ParquetError::General(format!(
                "its footer and page index have more than the {} bytes that are read; write fewer columns and larger row groups, or several files",
                self.bytes_max
            ))
        })?;
        self.file.range(range).await.map_err(|fault| ParquetError::External(Box::new(fault)))
    }
}

impl MetadataFetch for &mut Opening<'_> {
    fn fetch(&mut self, range: Range<u64>) -> BoxFuture<'_, parquet::errors::Result<Bytes>> {
        self.bytes(range).boxed()
    }
}

async fn open_parquet(file: &FileBytes, footer_bytes_max: u64) -> Result<OpenFile, ScanError> {
    // Pages are found by their index where there is one, so that a part of a large row group does not cost the whole.
    let options = ArrowReaderOptions::new()
        .with_offset_index_policy(PageIndexPolicy::Optional)
        .with_column_index_policy(PageIndexPolicy::Skip);
    // The end is read beside what the footer asks for.
    let bytes_left = footer_bytes_max.saturating_add(FOOTER_GUESS_BYTES);
    let mut opening = Opening { file, bytes_max: footer_bytes_max, bytes_left };
    let footer = opening.footer().await.map_err(of_parquet)?;
    if is_too_deep(&footer) {
        return Err(ScanError::Corrupt(format!(
            "its columns are nested deeper than the {LEVELS_MAX} levels that are read"
        )));
    }
    let metadata = ParquetMetaDataReader::decode_metadata(&footer).map_err(of_parquet)?;
    let mut reader = ParquetMetaDataReader::new_with_metadata(metadata)
        .with_offset_index_policy(options.offset_index_policy())
        .with_column_index_policy(options.column_index_policy());
    reader.load_page_index(&mut opening).await.map_err(of_parquet)?;
    let metadata = Arc::new(reader.finish().map_err(of_parquet)?);
    Ok(OpenFile::Parquet(ArrowReaderMetadata::try_new(metadata, options).map_err(of_parquet)?))
}

async fn read_parquet(
    file: FileBytes,
    metadata: &ArrowReaderMetadata,
    block: &BlockRecord,
    columns: &[&str],
) -> Result<Vec<RecordBatch>, ScanError> {
    let group = block.group as usize;
    let groups = metadata.metadata().num_row_groups();
    if group >= groups {
        return Err(ScanError::Corrupt(format!("row group {group} of {groups}")));
    }
    let group_rows = u64::try_from(metadata.metadata().row_group(group).num_rows()).unwrap_or(0);
    let end = block.first_row + u64::from(block.rows);
    if end > group_rows {
        return Err(ScanError::Corrupt(format!("row group {group} has {group_rows} rows where {end} were registered")));
    }
    let schema = metadata.parquet_schema();
    let roots = schema
        .root_schema()
        .get_fields()
        .iter()
        .enumerate()
        .filter(|(_, f)| columns.contains(&f.name()))
        .map(|(i, _)| i);
    let mask = ProjectionMask::roots(schema, roots.collect::<Vec<_>>());
    let mut builder = ParquetRecordBatchStreamBuilder::new_with_metadata(file, metadata.clone())
        .with_row_groups(vec![group])
        .with_projection(mask)
        .with_batch_size(block.rows as usize);
    if u64::from(block.rows) < group_rows {
        let selection = RowSelection::from(vec![
            RowSelector::skip(block.first_row as usize),
            RowSelector::select(block.rows as usize),
        ]);
        builder = builder.with_row_selection(selection);
    }
    let mut stream = builder.build().map_err(of_parquet)?;
    let mut batches = Vec::new();
    while let Some(batch) = stream.next().await {
        batches.push(batch.map_err(of_parquet)?);
    }
    Ok(batches)
}

impl AsyncFileReader for FileBytes {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, parquet::errors::Result<Bytes>> {
        async move { self.range(range).await.map_err(|fault| ParquetError::External(Box::new(fault))) }.boxed()
    }

    fn get_metadata<'a>(
        &'a mut self,
        _: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, parquet::errors::Result<Arc<ParquetMetaData>>> {
        // Files are opened by `open_parquet`, which bounds what a footer may ask for.
        async move { Err(ParquetError::General("the metadata is given to whoever reads".to_owned())) }.boxed()
    }
}

fn of_parquet(error: ParquetError) -> ScanError {
    match error {
        ParquetError::External(inner) => match inner.downcast::<StoreFault>() {
            Ok(fault) => ScanError::Store(*fault),
            Err(other) => ScanError::Corrupt(other.to_string()),
        },
        other => ScanError::Corrupt(other.to_string()),
    }
}

fn of_arrow(error: ArrowError) -> ScanError {
    ScanError::Corrupt(error.to_string())
}

async fn open_ipc(file: &FileBytes, footer_bytes_max: u64) -> Result<OpenFile, ScanError> {
    let corrupt = |text: &str| ScanError::Corrupt(text.to_owned());
    let trailer_at =
        file.bytes.checked_sub(IPC_TRAILER_BYTES).ok_or_else(|| corrupt("too short for an Arrow IPC file"))?;
    let trailer = file.range(trailer_at..file.bytes).await?;
    let trailer: [u8; IPC_TRAILER_BYTES as usize] =
        trailer.as_ref().try_into().map_err(|_| corrupt("too short for an Arrow IPC file"))?;
    let footer_bytes = read_footer_length(trailer).map_err(of_arrow)? as u64;
    let footer_at =
        trailer_at.checked_sub(footer_bytes).filter(|_| footer_bytes <= footer_bytes_max).ok_or_else(|| {
            corrupt(&format!(
                "its footer says that it has {footer_bytes} bytes, and at most {footer_bytes_max} are read"
            ))
        })?;
    let bytes = file.range(footer_at..trailer_at).await?;
    let footer = root_as_footer(&bytes).map_err(|e| ScanError::Corrupt(format!("its footer cannot be read: {e}")))?;
    if footer.dictionaries().is_some_and(|d| !d.is_empty()) {
        return Err(corrupt("it has dictionary-encoded columns, which are not supported; write plain ones"));
    }
    let schema = footer.schema().ok_or_else(|| corrupt("its footer has no schema"))?;
    let batches: Vec<IpcBlock> = footer.recordBatches().into_iter().flatten().copied().collect();
    let lies_inside = |b: &IpcBlock| {
        let (offset, length) = (b.offset(), i64::from(b.metaDataLength()).checked_add(b.bodyLength()));
        offset >= 0
            && b.metaDataLength() > 0
            && b.bodyLength() >= 0
            && length.and_then(|l| l.checked_add(offset)).is_some_and(|end| end as u64 <= file.bytes)
    };
    if !batches.iter().all(lies_inside) {
        return Err(corrupt("its footer names record batches outside the file"));
    }
    Ok(OpenFile::ArrowIpc {
        schema: Arc::new(try_fb_to_schema(schema).map_err(of_arrow)?),
        version: footer.version(),
        batches,
    })
}

/// Rows of a record batch, from its header alone.
pub(crate) async fn ipc_batch_rows(file: &FileBytes, batch: &IpcBlock) -> Result<u64, ScanError> {
    let (first, length) = (batch.offset() as u64, batch.metaDataLength() as u64);
    if length > IPC_HEADER_BYTES_MAX {
        return Err(ScanError::Corrupt(format!(
            "a record batch's header has {length} bytes, and at most {IPC_HEADER_BYTES_MAX} are read"
        )));
    }
    let header = file.range(first..first + length).await?;
    // Since version 0.15 a message begins with four bytes of ones and its length; before, with its length.
    let skip = if header.starts_with(&[0xff; 4]) { 8 } else { 4 };
    let message = root_as_message(header.get(skip..).unwrap_or_default())
        .map_err(|e| ScanError::Corrupt(format!("a record batch's header cannot be read: {e}")))?;
    let rows = message.header_as_record_batch().map(|b| b.length()).and_then(|n| u64::try_from(n).ok());
    rows.ok_or_else(|| ScanError::Corrupt("a record batch's header is of another kind".to_owned()))
}

async fn read_ipc(
    file: &FileBytes,
    schema: &SchemaRef,
    version: MetadataVersion,
    batches: &[IpcBlock],
    block: &BlockRecord,
) -> Result<Vec<RecordBatch>, ScanError> {
    let batch = batches
        .get(block.group as usize)
        .ok_or_else(|| ScanError::Corrupt(format!("record batch {} of {}", block.group, batches.len())))?;
    let (first, length) = (batch.offset() as u64, batch.metaDataLength() as u64 + batch.bodyLength() as u64);
    if length > GROUP_BYTES_MAX {
        return Err(ScanError::Corrupt(format!(
            "record batch {} has {length} bytes, more than the {GROUP_BYTES_MAX} that are read at once",
            block.group
        )));
    }
    let bytes = file.range(first..first + length).await?;
    let decoder = FileDecoder::new(Arc::clone(schema), version);
    let decoded = decoder.read_record_batch(batch, &Buffer::from(bytes)).map_err(of_arrow)?;
    let decoded = decoded.ok_or_else(|| ScanError::Corrupt(format!("record batch {} is empty", block.group)))?;
    let end = block.first_row + u64::from(block.rows);
    if end > decoded.num_rows() as u64 {
        return Err(ScanError::Corrupt(format!(
            "record batch {} has {} rows where {end} were registered",
            block.group,
            decoded.num_rows()
        )));
    }
    Ok(vec![decoded.slice(block.first_row as usize, block.rows as usize)])
}
