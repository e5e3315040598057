//! A store for tests that tells of each request, and in which something happens just before one.

use async_trait::async_trait;
use futures::future::ready;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, Result,
};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// What happens before a request, such as `GET uploads/…`, and whether that is made at all.
type Happens = dyn Fn(&str) -> Result<()> + Send + Sync;

/// Another store, and what was asked of it but listings.
pub struct WatchedStore {
    inner: Arc<dyn ObjectStore>,
    ear: Arc<Ear>,
}

struct Ear {
    heard: Mutex<Vec<String>>,
    happens: Box<Happens>,
}

impl Ear {
    fn hear(&self, request: &str, of: &Path) -> Result<()> {
        let request = format!("{request} {of}");
        let happens = (self.happens)(&request);
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).push(request);
        happens
    }
}

impl WatchedStore {
    /// Before each request `happens` is told of it; where it fails, the request is not made.
    #[must_use]
    pub fn new(inner: Arc<dyn ObjectStore>, happens: impl Fn(&str) -> Result<()> + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { inner, ear: Arc::new(Ear { heard: Mutex::default(), happens: Box::new(happens) }) })
    }

    /// What was asked since this was asked last, in order: `GET KEY` (also for its size alone), `PUT KEY` and `DELETE KEY`.
    #[must_use]
    pub fn heard(&self) -> Vec<String> {
        std::mem::take(&mut *self.ear.heard.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for WatchedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WatchedStore").field(&self.inner).finish()
    }
}

impl fmt::Display for WatchedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "watched {}", self.inner)
    }
}

#[async_trait]
impl ObjectStore for WatchedStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.ear.hear("PUT", location)?;
        self.inner.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.ear.hear("PUT", location)?;
        self.inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.ear.hear("GET", location)?;
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let ear = Arc::clone(&self.ear);
        let heard = locations.and_then(move |path| ready(ear.hear("DELETE", &path).map(|()| path)));
        self.inner.delete_stream(heard.boxed())
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.ear.hear("PUT", to)?;
        self.inner.copy_opts(from, to, options).await
    }
}
