//! Writing a checkpoint: shards by all members, then the manifest by the leader. Also its removal, in the other order.

use super::manifest::{FORMAT_VERSION, Manifest, ManifestError, ShardRange, ShardRecord, bytes_of};
use crate::keys::CheckpointName;
use crate::object::Object;
use crate::retry::StoreFault;
use bytes::Bytes;
use events_schema::{Digest, Generation};
use futures::TryStreamExt;
use object_store::ObjectStore;
use object_store::path::Path;
use serde_json::json;
use std::io;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// Name of the one tensor of a shard.
pub(super) const TENSOR: &str = "replica";

/// Bytes that are hashed at once: a fifth of a millisecond.
const HASHED_BYTES: usize = 1 << 20;

/// Why a checkpoint was not written or removed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "a field without a comment is what its name and type say")]
pub enum CheckpointWriteError {
    /// As the store said, after its retries. The job goes on; the next checkpoint may succeed.
    #[error(transparent)]
    Store(#[from] StoreFault),
    /// Somebody else committed another checkpoint under this key: this member's generation is not what it believes. Stop.
    #[error("manifest `{key}` exists with another content")]
    Taken {
        /// Key of the manifest.
        key: String,
    },
    /// The controller has not said yet by what the objects of this generation are named. The job goes on; it is tried again.
    #[error("the controller has not said by what the checkpoints of generation {generation} are named")]
    Unnamed { generation: Generation },
    /// A controller of another build named the objects of this generation otherwise while they were written. This checkpoint stays
    /// incomplete, and the next one may succeed; where the job stands still for it, this member stops, and the others write it in a generation
    /// of their own.
    #[error(
        "the shards are named by different tokens: the controller issued another one for generation {generation} while they were written"
    )]
    Mixed { generation: Generation },
    /// The replica could not be read where it lies. The job goes on; the next checkpoint may succeed.
    #[error("the replica could not be read")]
    Unread(#[source] io::Error),
    /// What writers say of their parts does not make a digest of the whole. A bug of one of them; stop.
    #[error("the digests of the shards do not make one of the replica")]
    Parts,
    /// The manifest that was to be written is not whole. A bug of the caller; stop.
    #[error("manifest is not whole")]
    NotWhole(#[source] ManifestError),
    /// The shard lies outside the replica. A bug of the caller; stop.
    #[error("shard {index} lies outside a replica of {replica_len} elements")]
    Outside {
        /// Its number.
        index: u32,
        /// Elements of the replica.
        replica_len: usize,
    },
}

/// The elements of a shard, wherever they lie: they are written from there, and can be read by others meanwhile.
#[derive(Clone)]
pub struct ShardElements {
    within: Arc<Vec<f32>>,
    place: Range<usize>,
}

impl ShardElements {
    /// All of these.
    #[must_use]
    pub fn all(elements: Arc<Vec<f32>>) -> Self {
        Self { place: 0..elements.len(), within: elements }
    }

    /// Those of a shard within the replica; none if that is too short.
    #[must_use]
    pub fn of(range: ShardRange, replica: Arc<Vec<f32>>) -> Self {
        Self { place: range.place(replica.len()).unwrap_or_default(), within: replica }
    }

    /// The memory that they lie in, if nobody else has it.
    #[must_use]
    pub fn into_memory(self) -> Option<Vec<f32>> {
        Arc::try_unwrap(self.within).ok()
    }
}

impl Deref for ShardElements {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.within[self.place.clone()]
    }
}

impl AsRef<[u8]> for ShardElements {
    /// As they are stored.
    fn as_ref(&self) -> &[u8] {
        bytes_of(self)
    }
}

/// Writes one shard as a safetensors file with the tensor `replica` of shape `[elements]`. `elements` are the shard's own,
/// as they were at the boundary.
///
/// They are hashed and sent from where they lie; an attempt that was given up may hold on to them when this returns. The object is durable then.
pub async fn write_shard(
    store: &Arc<dyn ObjectStore>,
    name: &CheckpointName,
    range: ShardRange,
    elements: &ShardElements,
) -> Result<ShardRecord, CheckpointWriteError> {
    if elements.len() as u64 != range.elements {
        return Err(CheckpointWriteError::Outside { index: range.index, replica_len: elements.len() });
    }
    let key = name.shard(range.index);
    let body = [Bytes::from(header(name, range)), Bytes::from_owner(elements.clone())];
    let bytes = body.iter().map(|part| part.len() as u64).sum();
    // Beside sending, as most of that is waiting.
    let hashing = async {
        let mut hasher = blake3::Hasher::new();
        for chunk in body.iter().flat_map(|part| part.chunks(HASHED_BYTES)) {
            hasher.update(chunk);
            // The runtime also carries the job's own traffic.
            tokio::task::yield_now().await;
        }
        Digest(*hasher.finalize().as_bytes())
    };
    let object = Object::of_key(store, &key);
    let (blake3, sent) = futures::join!(hashing, object.put(bytes, || body.iter().cloned()));
    sent?;
    Ok(ShardRecord { key, first_element: range.first_element, elements: range.elements, bytes, blake3 })
}

/// Commits a checkpoint whose shards are all written; gives the manifest's key. Repeating it is harmless.
pub async fn write_manifest(
    store: &Arc<dyn ObjectStore>,
    name: &CheckpointName,
    manifest: &Manifest,
) -> Result<String, CheckpointWriteError> {
    manifest.check().and_then(|()| manifest.check_place(name)).map_err(CheckpointWriteError::NotWhole)?;
    if manifest.format_version != FORMAT_VERSION {
        let (version, written_by) = (manifest.format_version, manifest.written_by.clone());
        return Err(CheckpointWriteError::NotWhole(ManifestError::Version { version, written_by }));
    }
    let key = name.manifest();
    match Object::of_key(store, &key).put_if_absent(&Bytes::from(manifest.to_bytes())).await {
        Ok(()) => Ok(key),
        Err(StoreFault::Exists { key }) => Err(CheckpointWriteError::Taken { key }),
        Err(fault) => Err(fault.into()),
    }
}

/// Removes a checkpoint, manifest first, so that what is left of an interrupted removal is never taken for a checkpoint.
/// Removing what is not there succeeds. Only the controller calls this.
pub async fn delete(store: &Arc<dyn ObjectStore>, name: &CheckpointName) -> Result<(), StoreFault> {
    Object::of_key(store, &name.manifest()).delete().await?;
    let folder = name.folder();
    let prefix = Path::from(folder.as_str());
    let found: Vec<_> = store.list(Some(&prefix)).try_collect().await.map_err(|e| StoreFault::of(&folder, e))?;
    for object in found {
        Object::of_key(store, object.location.as_ref()).delete().await?;
    }
    Ok(())
}

/// The beginning of a safetensors file: the header's length, then its JSON padded with spaces to 8 bytes.
fn header(name: &CheckpointName, range: ShardRange) -> Vec<u8> {
    let CheckpointName { job, generation, step, .. } = name;
    let json = json!({
        "__metadata__": {
            "format": "ebb-shard-1", "job": job, "generation": generation.to_string(), "step": step.to_string(), "first_element": range.first_element.to_string(),
        },
        TENSOR: { "dtype": "F32", "shape": [range.elements], "data_offsets": [0, range.elements * 4] },
    });
    let mut text = json.to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.append(&mut text);
    bytes
}
