//! Restoring: manifest, then shards, every byte checked. Nothing damaged is ever returned.

use super::manifest::{Manifest, ManifestError, ShardRecord, bytes_of_mut};
use super::write::TENSOR;
use crate::keys::CheckpointName;
use crate::object::{Object, WholeError};
use crate::retry::StoreFault;
use bytes::Bytes;
use events_schema::Digest;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use object_store::ObjectStore;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::mpsc::{Sender, channel};

/// A manifest of [`super::manifest::FORMAT_VERSION`] with the most shards is smaller.
const MANIFEST_BYTES_MAX: u64 = 1 << 20;
/// Bytes of one request: asking takes little beside what is given.
const PIECE_BYTES: u64 = 8 << 20;
/// Requests on their way at once, 64 MiB of memory: one connection seldom gives all that a network does.
const PIECES_MAX: usize = 8;
/// Pieces that are there and wait for each of the two that look at them.
const PIECES_WAITING_MAX: usize = 2;
/// Bytes that are checked at once; any number gives the same.
const CHECKED_BYTES: usize = 256 << 10;

/// Why a checkpoint cannot be used. [`RestoreError::Store`] may pass: try again later. [`RestoreError::Format`]: stop, another build
/// reads it, and what was trained since the checkpoint before it must not be thrown away. The others: use the checkpoint before it.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "a field without a comment is what its name and type say")]
pub enum RestoreError {
    /// The store failed for longer than its deadline.
    #[error(transparent)]
    Store(StoreFault),
    /// An object of the checkpoint is gone.
    #[error("checkpoint object `{key}` is missing")]
    Missing {
        /// Its key.
        key: String,
    },
    /// An object of the checkpoint is not what was written.
    #[error("checkpoint object `{key}` is corrupt: {problem}")]
    Corrupt {
        /// Its key.
        key: String,
        /// What does not match.
        problem: String,
    },
    /// The manifest cannot be used.
    #[error("manifest `{key}` cannot be used")]
    Manifest {
        /// Its key.
        key: String,
        #[source]
        source: ManifestError,
    },
    /// The manifest is of another format.
    #[error("checkpoint `{key}` cannot be read by this build")]
    Format {
        /// Its key.
        key: String,
        /// Which, and which build reads it.
        #[source]
        source: ManifestError,
    },
}

impl RestoreError {
    /// The object that is not what it should be, if it is an object's fault.
    #[must_use]
    pub fn object(&self) -> Option<&str> {
        match self {
            Self::Missing { key }
            | Self::Corrupt { key, .. }
            | Self::Manifest { key, .. }
            | Self::Format { key, .. } => Some(key),
            Self::Store(_) => None,
        }
    }

    /// Whether the checkpoint itself is damaged or gone, so that the one before it has to be used.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Missing { .. } | Self::Corrupt { .. } | Self::Manifest { .. })
    }

    fn of(error: WholeError) -> Self {
        match error {
            WholeError::Fault(StoreFault::Missing { key }) => Self::Missing { key },
            WholeError::Fault(fault) => Self::Store(fault),
            WholeError::TooLarge { key, bytes, bytes_max } => {
                Self::Corrupt { key, problem: format!("{bytes} bytes, more than the legal {bytes_max}") }
            }
        }
    }
}

/// Reads and checks a manifest.
pub async fn read_manifest(store: &Arc<dyn ObjectStore>, name: &CheckpointName) -> Result<Manifest, RestoreError> {
    let key = name.manifest();
    let bytes = Object::of_key(store, &key).whole(MANIFEST_BYTES_MAX).await.map_err(RestoreError::of)?;
    let parsed = Manifest::parse(&bytes).and_then(|manifest| manifest.check_place(name).map(|()| manifest));
    parsed.map_err(|source| match source {
        ManifestError::Version { .. } => RestoreError::Format { key, source },
        source => RestoreError::Manifest { key, source },
    })
}

/// The whole flat replica, checked shard by shard and as a whole. What is there is checked on one thread and put where it belongs on another, into memory that
/// is touched for the first time, while the rest is on its way: so reading takes as long as the longest of the three. Beside the replica only what is on its way
/// is in memory.
pub async fn read_replica(
    store: &Arc<dyn ObjectStore>,
    name: &CheckpointName,
    manifest: &Manifest,
) -> Result<Vec<f32>, RestoreError> {
    let unusable = |source| RestoreError::Manifest { key: name.manifest(), source };
    manifest.check().map_err(unusable)?;
    let (to_check, mut to_be_checked) = channel(PIECES_WAITING_MAX);
    let (to_assemble, mut to_be_assembled) = channel(PIECES_WAITING_MAX);
    let (checked, assembled) = (manifest.clone(), manifest.clone());
    let checking = tokio::task::spawn_blocking(move || check(&checked, || to_be_checked.blocking_recv()));
    let assembling = tokio::task::spawn_blocking(move || assemble(&assembled, || to_be_assembled.blocking_recv()));
    let sent = send_pieces(store, &manifest.shards, [to_check, to_assemble]).await;
    let (found, replica) = (finished(checking.await), finished(assembling.await));
    sent?;
    let (found, replica) = (found?, replica?);
    if found != manifest.replica_digest {
        return Err(RestoreError::Corrupt {
            key: name.manifest(),
            problem: format!("the replica's digest is {found} instead of {}", manifest.replica_digest),
        });
    }
    Ok(replica)
}

/// What a thread came to, or its panic.
fn finished<T>(joined: Result<T, tokio::task::JoinError>) -> T {
    joined.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

/// Sends the bytes of these objects to both, in order, until they are there or one does not want them.
async fn send_pieces(
    store: &Arc<dyn ObjectStore>,
    shards: &[ShardRecord],
    [to_check, to_assemble]: [Sender<Bytes>; 2],
) -> Result<(), RestoreError> {
    // An object that is too short would be asked for what it lacks again and again, as the store may be at fault.
    let mut heads = stream::iter(shards.iter().map(|shard| check_length(store, shard).boxed())).buffered(PIECES_MAX);
    while heads.try_next().await?.is_some() {}
    let places = shards.iter().flat_map(|shard| {
        let object = Object::of_key(store, &shard.key);
        let starts = (0..shard.bytes).step_by(PIECE_BYTES as usize);
        starts.map(move |start| (object.clone(), start..(start + PIECE_BYTES).min(shard.bytes)))
    });
    let piece = |(object, place): (Object, Range<u64>)| async move { object.range(place, None).await }.boxed();
    let mut pieces = stream::iter(places.map(piece)).buffered(PIECES_MAX);
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|fault| RestoreError::of(fault.into()))?;
        if to_check.send(piece.clone()).await.is_err() || to_assemble.send(piece).await.is_err() {
            // What came before is damaged, which who has found it says.
            return Ok(());
        }
    }
    Ok(())
}

async fn check_length(store: &Arc<dyn ObjectStore>, shard: &ShardRecord) -> Result<(), RestoreError> {
    let found = Object::of_key(store, &shard.key).head().await.map_err(|fault| RestoreError::of(fault.into()))?.size;
    let problem = format!("{found} bytes instead of {}", shard.bytes);
    if found == shard.bytes { Ok(()) } else { Err(RestoreError::Corrupt { key: shard.key.clone(), problem }) }
}

/// Compares the digests of shards whose bytes come in order; gives that of the replica in them. Bytes that do not come are somebody else's to explain, here and
/// in [`assemble`].
fn check(manifest: &Manifest, mut next: impl FnMut() -> Option<Bytes>) -> Result<Digest, RestoreError> {
    let mut whole = blake3::Hasher::new();
    for shard in &manifest.shards {
        let (mut hasher, mut left, mut header_left) = (blake3::Hasher::new(), shard.bytes, header_len(shard));
        while left > 0 {
            let Some(piece) = next() else { return Ok(Digest([0; 32])) };
            left = left.saturating_sub(piece.len() as u64);
            // A chunk is hashed twice while the processor's cache holds it.
            for chunk in piece.chunks(CHECKED_BYTES) {
                hasher.update(chunk);
                let (of_header, elements) = chunk.split_at(chunk.len().min(header_left));
                header_left -= of_header.len();
                whole.update(elements);
            }
        }
        let found = Digest(*hasher.finalize().as_bytes());
        if found != shard.blake3 {
            let problem = format!("its BLAKE3 is {found} instead of {}", shard.blake3);
            return Err(RestoreError::Corrupt { key: shard.key.clone(), problem });
        }
    }
    Ok(Digest(*whole.finalize().as_bytes()))
}

/// Puts a replica together from its shards' bytes, which come in order.
fn assemble(manifest: &Manifest, mut next: impl FnMut() -> Option<Bytes>) -> Result<Vec<f32>, RestoreError> {
    let mut replica = vec![0.0; manifest.replica_len as usize];
    let mut rest = bytes_of_mut(&mut replica);
    for shard in &manifest.shards {
        let (mut header, mut left, header_len) = (Vec::new(), shard.bytes, header_len(shard));
        while left > 0 {
            let Some(piece) = next() else { return Ok(Vec::new()) };
            left = left.saturating_sub(piece.len() as u64);
            let (of_header, elements) = piece.split_at(piece.len().min(header_len - header.len()));
            header.extend_from_slice(of_header);
            let (room, after) = rest.split_at_mut(elements.len());
            room.copy_from_slice(elements);
            rest = after;
        }
        check_header(&header, shard.elements)
            .map_err(|problem| RestoreError::Corrupt { key: shard.key.clone(), problem })?;
    }
    Ok(replica)
}

/// Bytes of a shard before its elements.
fn header_len(shard: &ShardRecord) -> usize {
    (shard.bytes - shard.elements * 4) as usize
}

/// Whether a safetensors file that begins so holds one tensor [`TENSOR`] of so many elements, and nothing behind it.
fn check_header(header: &[u8], elements: u64) -> Result<(), String> {
    #[derive(Deserialize)]
    struct Tensor {
        dtype: String,
        shape: Vec<u64>,
        data_offsets: [u64; 2],
    }
    let (length, text) = header.split_first_chunk().ok_or("it has no header")?;
    if u64::from_le_bytes(*length) != text.len() as u64 {
        return Err(format!("its header has {} bytes instead of {}", u64::from_le_bytes(*length), text.len()));
    }
    let mut tensors: BTreeMap<String, serde_json::Value> = serde_json::from_slice(text).map_err(|e| e.to_string())?;
    let tensor = tensors.remove(TENSOR).ok_or_else(|| format!("it has no tensor `{TENSOR}`"))?;
    let Tensor { dtype, shape, data_offsets } = serde_json::from_value(tensor).map_err(|e| e.to_string())?;
    if dtype != "F32" || data_offsets != [0, elements.saturating_mul(4)] {
        return Err(format!("{dtype} of shape {shape:?} instead of {elements} 32-bit floats"));
    }
    Ok(())
}
