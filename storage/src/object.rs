//! Whole and partial reads and writes of one object, under the retry policy. What comes back is complete or a fault naming the
//! object. Large bodies go up in parts, with a bounded number of them in memory. Interprets nothing: see `reader.rs`.

use crate::retry::{RetryPolicy, StoreFault, retrying};
use bytes::Bytes;
use futures::{FutureExt, StreamExt, stream::FuturesUnordered};
use object_store::path::Path;
use object_store::{GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of one uploaded part; S3 takes parts from 5 MiB and at most 10,000 of them, so objects up to 80 GiB.
pub(crate) const PART_BYTES: usize = 8 << 20;
/// Bytes of one request of a large read.
const RANGE_BYTES: u64 = 32 << 20;
/// Parts on their way at once: enough to fill a connection, 32 MiB of memory.
const PARTS_IN_FLIGHT_MAX: usize = 4;

/// One object: where it is, what it is called in errors, and how its faults are retried.
#[derive(Clone)]
pub(crate) struct Object {
    pub store: Arc<dyn ObjectStore>,
    pub path: Path,
    pub key: String,
    pub retry: RetryPolicy,
}

impl Object {
    /// An object of Ebb's own store.
    pub(crate) fn of_key(store: &Arc<dyn ObjectStore>, key: &str) -> Self {
        Self { store: Arc::clone(store), path: Path::from(key), key: key.to_owned(), retry: RetryPolicy::default() }
    }

    /// Size and version.
    pub(crate) async fn head(&self) -> Result<ObjectMeta, StoreFault> {
        retrying(self.retry, &self.key, || {
            async { self.store.head(&self.path).await.map_err(|e| self.fault(e)) }.boxed()
        })
        .await
    }

    /// Exactly the bytes of `range`; [`StoreFault::Changed`] if `etag` is given and no longer true.
    pub(crate) async fn range(&self, range: Range<u64>, etag: Option<&str>) -> Result<Bytes, StoreFault> {
        let expected = range.end - range.start;
        if expected == 0 {
            return Ok(Bytes::new());
        }
        let attempt = || {
            async {
                let options = GetOptions::new().with_range(Some(range.clone())).with_if_match(etag);
                let result = self.store.get_opts(&self.path, options).await.map_err(|e| self.fault(e))?;
                let bytes = result.bytes().await.map_err(|e| self.fault(e))?;
                let found = bytes.len() as u64;
                if found == expected {
                    Ok(bytes)
                } else {
                    Err(StoreFault::Truncated { key: self.key.clone(), expected, found })
                }
            }
            .boxed()
        };
        retrying(self.retry, &self.key, attempt).await
    }

    /// The whole object, which must not be larger than `bytes_max`. A large one is fetched in ranges, so that a fault costs one.
    pub(crate) async fn whole(&self, bytes_max: u64) -> Result<Bytes, WholeError> {
        let first = || {
            async {
                let result = self.store.get(&self.path).await.map_err(|e| self.fault(e))?;
                let (expected, etag) = (result.meta.size, result.meta.e_tag.clone());
                if expected > RANGE_BYTES {
                    return Ok((expected, etag, None));
                }
                let bytes = result.bytes().await.map_err(|e| self.fault(e))?;
                let found = bytes.len() as u64;
                if found == expected {
                    Ok((expected, etag, Some(bytes)))
                } else {
                    Err(StoreFault::Truncated { key: self.key.clone(), expected, found })
                }
            }
            .boxed()
        };
        let (bytes, etag, body) = retrying(self.retry, &self.key, first).await?;
        if bytes > bytes_max {
            return Err(WholeError::TooLarge { key: self.key.clone(), bytes, bytes_max });
        }
        if let Some(body) = body {
            return Ok(body);
        }
        let mut whole = Vec::with_capacity(bytes as usize);
        while (whole.len() as u64) < bytes {
            let at = whole.len() as u64;
            whole.extend_from_slice(&self.range(at..(at + RANGE_BYTES).min(bytes), etag.as_deref()).await?);
        }
        Ok(whole.into())
    }

    /// Writes the object, whatever was there. Only for keys whose content is fixed by the key, so that repeating does no harm.
    ///
    /// `body` gives the chunks anew for every attempt, `bytes` of them in all; only the parts on their way are in memory.
    pub(crate) async fn put<I>(&self, bytes: u64, body: impl Fn() -> I + Send + Sync) -> Result<(), StoreFault>
    where
        I: Iterator<Item = Bytes> + Send,
    {
        let body = &body;
        let attempt = move || {
            async move {
                if bytes > PART_BYTES as u64 {
                    return self.put_in_parts(body()).await.map_err(|e| self.fault(e));
                }
                let payload: PutPayload = body().collect();
                self.store.put(&self.path, payload).await.map(|_| ()).map_err(|e| self.fault(e))
            }
            .boxed()
        };
        retrying(self.retry.allowing(bytes), &self.key, attempt).await
    }

    /// Writes the object unless it exists; an existing one with the same bytes is as good, because an earlier attempt whose
    /// answer was lost may have written it. Small bodies only: some servers cut the connection on a refused large one.
    pub(crate) async fn put_if_absent(&self, body: &Bytes) -> Result<(), StoreFault> {
        let attempt = || {
            async {
                let options = PutOptions::from(PutMode::Create);
                let error = match self.store.put_opts(&self.path, body.clone().into(), options).await {
                    Ok(_) => return Ok(()),
                    Err(error) => error,
                };
                // Refused or unknown: what is there now decides.
                match self.store.get(&self.path).await {
                    Ok(found) => match found.bytes().await {
                        Ok(bytes) if bytes == *body => Ok(()),
                        Ok(_) => Err(StoreFault::Exists { key: self.key.clone() }),
                        Err(error) => Err(self.fault(error)),
                    },
                    Err(_) => Err(match self.fault(error) {
                        // It was there a moment ago and is gone: try once more.
                        StoreFault::Exists { key } | StoreFault::Changed { key } => StoreFault::Unreachable {
                            key,
                            source: object_store::Error::Generic {
                                store: "conditional put",
                                source: "the object came and went".into(),
                            },
                        },
                        fault => fault,
                    }),
                }
            }
            .boxed()
        };
        retrying(self.retry, &self.key, attempt).await
    }

    /// Deletes the object; one that is not there is deleted.
    pub(crate) async fn delete(&self) -> Result<(), StoreFault> {
        let attempt = || {
            async {
                match self.store.delete(&self.path).await {
                    Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
                    Err(error) => Err(self.fault(error)),
                }
            }
            .boxed()
        };
        retrying(self.retry, &self.key, attempt).await
    }

    async fn put_in_parts(&self, body: impl Iterator<Item = Bytes> + Send) -> object_store::Result<()> {
        let mut upload = self.store.put_multipart(&self.path).await?;
        let mut in_flight = FuturesUnordered::new();
        let mut outcome = Ok(());
        for part in parts(body) {
            if in_flight.len() >= PARTS_IN_FLIGHT_MAX
                && let Some(Err(error)) = in_flight.next().await
            {
                outcome = Err(error);
                break;
            }
            in_flight.push(upload.put_part(part));
        }
        while let Some(finished) = in_flight.next().await {
            outcome = outcome.and(finished);
        }
        drop(in_flight);
        let outcome = match outcome {
            Ok(()) => upload.complete().await.map(|_| ()),
            Err(error) => Err(error),
        };
        if outcome.is_err() {
            // Parts left behind cost space; if even this fails, the store's own rule for abandoned uploads has to remove them.
            let _ = upload.abort().await;
        }
        outcome
    }

    fn fault(&self, error: object_store::Error) -> StoreFault {
        StoreFault::of(&self.key, error)
    }
}

/// Why a whole object was not read.
#[derive(Debug, thiserror::Error)]
pub enum WholeError {
    /// As the store said.
    #[error(transparent)]
    Fault(#[from] StoreFault),
    /// Larger than anything we would have written there. Stop.
    #[error("object `{key}` has {bytes} bytes, more than the {bytes_max} that are legal for it")]
    TooLarge {
        /// Its key.
        key: String,
        /// Its size.
        bytes: u64,
        /// The limit.
        bytes_max: u64,
    },
}

/// Cuts a body into parts of [`PART_BYTES`], the last one shorter, without copying.
fn parts(mut body: impl Iterator<Item = Bytes>) -> impl Iterator<Item = PutPayload> {
    let mut open: Option<Bytes> = None;
    std::iter::from_fn(move || {
        let (mut part, mut room) = (Vec::new(), PART_BYTES);
        while room > 0 {
            let Some(mut chunk) = open.take().or_else(|| body.next()) else { break };
            let taken = chunk.split_to(chunk.len().min(room));
            room -= taken.len();
            part.push(taken);
            open = (!chunk.is_empty()).then_some(chunk);
        }
        (room < PART_BYTES).then(|| part.into_iter().collect())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_cut_into_full_parts() {
        let body = [Bytes::from(vec![1; PART_BYTES - 1]), Bytes::new(), Bytes::from(vec![2; PART_BYTES + 5])];
        let lengths: Vec<usize> = parts(body.iter().cloned()).map(|p| p.content_length()).collect();
        assert_eq!(lengths, [PART_BYTES, PART_BYTES, 4]);
        let joined: Vec<u8> =
            parts(body.iter().cloned()).flat_map(|p| p.iter().flat_map(|b| b.to_vec()).collect::<Vec<u8>>()).collect();
        assert_eq!(joined, body.concat());
    }
}
