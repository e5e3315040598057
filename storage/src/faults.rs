//! A store for tests that fails, truncates and corrupts on command.

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Reads fail.
    Read,
    /// Reads end one byte early.
    Truncate,
    /// One byte of what is read is another one.
    Corrupt,
    /// Writes fail before they happen.
    Write,
    /// Writes happen, but their answer is lost.
    LostAnswer,
}

/// A store in memory with a fault for the next accesses to keys that contain a text.
#[derive(Debug)]
pub(crate) struct FaultyStore {
    inner: Arc<dyn ObjectStore>,
    fault: Mutex<Option<(Fault, String, u64)>>,
    pub reads: AtomicU64,
}

impl FaultyStore {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            inner: Arc::new(object_store::memory::InMemory::new()),
            fault: Mutex::new(None),
            reads: AtomicU64::new(0),
        })
    }

    /// The next `times` accesses of this kind to keys that contain `part` go wrong.
    pub(crate) fn fail(&self, fault: Fault, part: &str, times: u64) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some((fault, part.to_owned(), times));
    }

    /// How often the fault has still to strike.
    pub(crate) fn pending(&self) -> u64 {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map_or(0, |(_, _, times)| *times)
    }

    fn strikes(&self, faults: &[Fault], location: &Path) -> Option<Fault> {
        let mut pending = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        let (fault, part, times) = pending.as_mut()?;
        if *times == 0 || !faults.contains(fault) || !location.as_ref().contains(part.as_str()) {
            return None;
        }
        *times -= 1;
        Some(*fault)
    }
}

fn down() -> object_store::Error {
    object_store::Error::Generic { store: "faulty", source: "it was told to fail".into() }
}

impl std::fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FaultyStore")
    }
}

#[async_trait]
impl ObjectStore for FaultyStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        match self.strikes(&[Fault::Write, Fault::LostAnswer], location) {
            Some(Fault::LostAnswer) => self.inner.put_opts(location, payload, options).await.and(Err(down())),
            Some(_) => Err(down()),
            None => self.inner.put_opts(location, payload, options).await,
        }
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        match self.strikes(&[Fault::Write], location) {
            Some(_) => Err(down()),
            None => self.inner.put_multipart_opts(location, options).await,
        }
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        // Of a look at it nothing can be cut off or changed.
        let possible: &[Fault] =
            if options.head { &[Fault::Read] } else { &[Fault::Read, Fault::Truncate, Fault::Corrupt] };
        let fault = self.strikes(possible, location);
        if fault == Some(Fault::Read) {
            return Err(down());
        }
        let mut result = self.inner.get_opts(location, options).await?;
        let Some(fault) = fault else { return Ok(result) };
        let (meta, range, attributes, extensions) =
            (result.meta.clone(), result.range.clone(), result.attributes.clone(), result.extensions.clone());
        let mut bytes = result.bytes().await?.to_vec();
        match fault {
            Fault::Truncate => bytes.truncate(bytes.len().saturating_sub(1)),
            _ => {
                if let Some(middle) = bytes.len().checked_div(2).and_then(|m| bytes.get_mut(m)) {
                    *middle ^= 0x40;
                }
            }
        }
        result = GetResult {
            payload: GetResultPayload::Stream(stream::once(async { Ok(Bytes::from(bytes)) }).boxed()),
            meta,
            range,
            attributes,
            extensions,
        };
        Ok(result)
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let inner = Arc::clone(&self.inner);
        locations
            .and_then(move |path| {
                let inner = Arc::clone(&inner);
                async move { inner.delete(&path).await.map(|()| path) }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
