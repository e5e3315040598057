//! Tensors that jobs begin with, as files: taken in under the name of their content, and fetched by each server that needs them.
//! What is in them, the Python package reads.

use crate::checkpoint::MODEL_BYTES_MAX;
use crate::retry::StoreFault;
use bytes::Bytes;
use events_schema::Digest;
use futures::{Stream, StreamExt};
use object_store::path::Path as StorePath;
use object_store::{ObjectStore, ObjectStoreExt, WriteMultipart};
use std::io::{self, Read, Write};
use std::path::Path;
use storage_keys::INITIAL_BYTES_MAX;

/// Bytes of a part on its way to the store.
const PART_BYTES: usize = 8 << 20;
/// Parts on their way at once.
const PARTS_MAX: usize = 3;
/// A safetensors file begins with the length of its header, then the header.
const HEAD_BYTES: usize = 9;
/// Longest header, by the format's own rule.
const HEADER_BYTES_MAX: u64 = 100_000_000;
/// Name of the file in a folder of its own.
const FILE: &str = "model.safetensors";

/// Why tensors are not taken in. All but `Store`: refuse.
#[derive(Debug, thiserror::Error)]
pub enum TakeError {
    /// More than is ever taken.
    #[error(
        "uploaded tensors have at most {INITIAL_BYTES_MAX} bytes; put larger files on the servers, and name their path"
    )]
    TooLarge,
    /// Other bytes than the name says.
    #[error("the bytes have the digest {found}, not the one that they were sent by; send them again")]
    Content {
        /// Of its bytes.
        found: Digest,
    },
    /// Something else.
    #[error("these bytes are no safetensors file")]
    NotTensors,
    /// The sender broke off.
    #[error("the connection ended before the file did; send it again")]
    Broken,
    /// Retry later.
    #[error("the file cannot be kept in the store")]
    Store(#[from] object_store::Error),
}

/// Keeps a file; how long it is. Nothing is kept of what is refused. `noted` is awaited when the file is as it should be, and before it is there.
pub async fn take<E>(
    store: &dyn ObjectStore,
    digest: Digest,
    body: impl Stream<Item = Result<Bytes, E>>,
    noted: impl Future<Output = object_store::Result<()>>,
) -> Result<u64, TakeError> {
    let key = StorePath::from(storage_keys::initial(&digest));
    let mut writer = WriteMultipart::new_with_chunk_size(store.put_multipart(&key).await?, PART_BYTES);
    let received = async {
        let bytes = receive(&mut writer, digest, body).await?;
        noted.await?;
        Ok::<_, TakeError>(bytes)
    };
    match received.await {
        Ok(bytes) => {
            writer.finish().await?;
            Ok(bytes)
        }
        Err(error) => {
            // The first error is the one that matters; what is left in parts, an operator's rule for abandoned uploads removes.
            let _ = writer.abort().await;
            Err(error)
        }
    }
}

async fn receive<E>(
    writer: &mut WriteMultipart,
    digest: Digest,
    body: impl Stream<Item = Result<Bytes, E>>,
) -> Result<u64, TakeError> {
    let (mut hasher, mut bytes, mut head) = (blake3::Hasher::new(), 0u64, Vec::new());
    let mut body = std::pin::pin!(body);
    while let Some(chunk) = body.next().await {
        let chunk = chunk.map_err(|_| TakeError::Broken)?;
        bytes += chunk.len() as u64;
        if bytes > INITIAL_BYTES_MAX {
            return Err(TakeError::TooLarge);
        }
        head.extend_from_slice(&chunk[..chunk.len().min(HEAD_BYTES - head.len())]);
        if head.len() == HEAD_BYTES && !begins_tensors(&head) {
            return Err(TakeError::NotTensors);
        }
        hasher.update(&chunk);
        writer.wait_for_capacity(PARTS_MAX).await?;
        writer.write(&chunk);
    }
    let found = Digest(*hasher.finalize().as_bytes());
    if head.len() < HEAD_BYTES {
        return Err(TakeError::NotTensors);
    }
    if found == digest { Ok(bytes) } else { Err(TakeError::Content { found }) }
}

fn begins_tensors(head: &[u8]) -> bool {
    let Some((length, first)) = head.split_first_chunk::<8>() else { return false };
    (2..=HEADER_BYTES_MAX).contains(&u64::from_le_bytes(*length)) && first.starts_with(b"{")
}

/// The digest of a file, and how long it is; one that is none of tensors, or too large, is refused.
pub fn digest_of(path: &Path) -> io::Result<(Digest, u64)> {
    let wrong = |text: &str| io::Error::new(io::ErrorKind::InvalidData, text.to_owned());
    let mut file = std::fs::File::open(path)?;
    let bytes = file.metadata()?.len();
    if bytes > INITIAL_BYTES_MAX {
        return Err(wrong(&TakeError::TooLarge.to_string()));
    }
    let mut head = [0; HEAD_BYTES];
    let begins = file.read_exact(&mut head).is_ok() && begins_tensors(&head);
    if !begins {
        return Err(wrong("it is no safetensors file"));
    }
    let mut hasher = blake3::Hasher::new();
    hasher.update(&head);
    io::copy(&mut file, &mut hasher)?;
    Ok((Digest(*hasher.finalize().as_bytes()), bytes))
}

/// Why a file cannot be fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// Retry, unless it is not there: then refuse.
    #[error("the tensors to begin with cannot be fetched")]
    Store(#[from] StoreFault),
    /// Refuse: the store holds something else.
    #[error(
        "the tensors to begin with at `{key}` have other bytes than their name says ({found}); submit the job again"
    )]
    Content {
        /// Where they are.
        key: String,
        /// Of its bytes.
        found: Digest,
    },
    /// Refuse: nobody put it there as a model of Ebb.
    #[error(
        "the tensors to begin with at `{key}` have more than {bytes_max} bytes; put them on the servers, and name their path"
    )]
    TooLarge {
        /// Where they are.
        key: String,
        /// The most that is fetched.
        bytes_max: u64,
    },
    /// Stop: the disk is full, or the folder cannot be written.
    #[error("the tensors to begin with cannot be written to this server's folder")]
    Io(#[from] io::Error),
}

impl FetchError {
    /// Whether what the store has is not what it should be, for every server alike. What the store's own faults mean, whoever asked says.
    #[must_use]
    pub fn is_of_content(&self) -> bool {
        matches!(self, Self::Content { .. } | Self::TooLarge { .. })
    }
}

/// Puts the file of an object into a folder, as a Hugging Face folder has it; its bytes are compared with `digest`, if that is known.
pub async fn fetch(
    store: &dyn ObjectStore,
    key: &str,
    digest: Option<Digest>,
    folder: &Path,
) -> Result<(), FetchError> {
    // An upload, or the model of a job.
    let bytes_max = if digest.is_some() { INITIAL_BYTES_MAX } else { MODEL_BYTES_MAX };
    fetch_up_to(bytes_max, store, key, digest, folder).await
}

async fn fetch_up_to(
    bytes_max: u64,
    store: &dyn ObjectStore,
    key: &str,
    digest: Option<Digest>,
    folder: &Path,
) -> Result<(), FetchError> {
    let failed = |error| StoreFault::of(key, error);
    let mut file = std::fs::File::create(folder.join(FILE))?;
    let (mut hasher, mut bytes) = (blake3::Hasher::new(), 0);
    let mut body = store.get(&StorePath::from(key)).await.map_err(failed)?.into_stream();
    while let Some(chunk) = body.next().await {
        let chunk = chunk.map_err(failed)?;
        bytes += chunk.len() as u64;
        if bytes > bytes_max {
            return Err(FetchError::TooLarge { key: key.to_owned(), bytes_max });
        }
        hasher.update(&chunk);
        file.write_all(&chunk)?;
    }
    let found = Digest(*hasher.finalize().as_bytes());
    match digest {
        Some(digest) if digest != found => Err(FetchError::Content { key: key.to_owned(), found }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use futures::stream;
    use object_store::PutPayload;
    use object_store::memory::InMemory;

    fn tensors() -> Vec<u8> {
        let mut bytes = 2u64.to_le_bytes().to_vec();
        bytes.extend_from_slice(b"{}");
        bytes
    }

    async fn taken(store: &InMemory, digest: Digest, bytes: &[u8]) -> Result<u64, TakeError> {
        let chunks: Vec<_> = bytes.chunks(3).map(|chunk| Ok::<_, io::Error>(Bytes::copy_from_slice(chunk))).collect();
        let note = StorePath::from("note");
        take(store, digest, stream::iter(chunks), async { store.put(&note, PutPayload::default()).await.map(drop) })
            .await
    }

    #[tokio::test]
    async fn what_was_taken_in_is_fetched() {
        let (store, folder) = (InMemory::new(), tempfile::tempdir().unwrap());
        let (bytes, digest) = (tensors(), Digest::of(&tensors()));
        assert_eq!(taken(&store, digest, &bytes).await.unwrap(), 10);
        assert!(store.head(&StorePath::from("note")).await.is_ok());
        let key = storage_keys::initial(&digest);
        fetch(&store, &key, Some(digest), folder.path()).await.unwrap();
        let fetched = folder.path().join(FILE);
        assert_eq!(std::fs::read(&fetched).unwrap(), bytes);
        assert_eq!(digest_of(&fetched).unwrap(), (digest, 10));
        let other = fetch(&store, &key, Some(Digest::of(b"other")), folder.path()).await.unwrap_err();
        assert!(matches!(other, FetchError::Content { .. }), "{other}");
        store.delete(&StorePath::from(key.as_str())).await.unwrap();
        let missing = fetch(&store, &key, Some(digest), folder.path()).await.unwrap_err();
        assert!(matches!(missing, FetchError::Store(StoreFault::Missing { .. })), "{missing}");
    }

    #[tokio::test]
    async fn no_more_is_fetched_than_there_can_be() {
        let (store, folder) = (InMemory::new(), tempfile::tempdir().unwrap());
        store.put(&StorePath::from("large"), vec![1; 11].into()).await.unwrap();
        let large = fetch_up_to(10, &store, "large", None, folder.path()).await.unwrap_err();
        assert!(matches!(large, FetchError::TooLarge { bytes_max: 10, .. }) && large.is_of_content(), "{large}");
        fetch_up_to(11, &store, "large", None, folder.path()).await.unwrap();
    }

    #[tokio::test]
    async fn what_is_not_as_its_name_says_is_refused() {
        let store = InMemory::new();
        let wrong = taken(&store, Digest::of(b"other"), &tensors()).await.unwrap_err();
        assert!(matches!(wrong, TakeError::Content { .. }), "{wrong}");
        for bytes in [b"PK\x03\x04 a zip file".as_slice(), b"short"] {
            let refused = taken(&store, Digest::of(bytes), bytes).await.unwrap_err();
            assert!(matches!(refused, TakeError::NotTensors), "{refused}");
        }
        let kept = store.list(None).count().await;
        assert_eq!(kept, 0, "of what is refused nothing is noted either");
    }
}
