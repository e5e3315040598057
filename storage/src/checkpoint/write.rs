//! Writing a checkpoint: shards by all members, then the manifest by the leader. Also its removal, in the other order.

use super::manifest::{FORMAT_VERSION, Manifest, ManifestError, ShardRange, ShardRecord, little_endian};
use crate::keys::CheckpointName;
use crate::object::Object;
use crate::retry::StoreFault;
use bytes::Bytes;
use events_schema::{Digest, Generation};
use futures::TryStreamExt;
use object_store::ObjectStore;
use object_store::path::Path;
use serde_json::json;
use std::sync::Arc;

/// Name of the one tensor of a shard.
pub(super) const TENSOR: &str = "replica";

/// Elements that are encoded at once: a millisecond of hashing.
const ENCODED_ELEMENTS: usize = 1 << 18;

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

/// Writes one shard as a safetensors file with the tensor `replica` of shape `[elements]`. `elements` are the shard's own,
/// copied out of the replica at the boundary: `range.of(&replica)`.
///
/// Beside `elements` only the parts on their way are in memory. The object is durable when this returns.
pub async fn write_shard(
    store: &Arc<dyn ObjectStore>,
    name: &CheckpointName,
    range: ShardRange,
    elements: &[f32],
) -> Result<ShardRecord, CheckpointWriteError> {
    if elements.len() as u64 != range.elements {
        return Err(CheckpointWriteError::Outside { index: range.index, replica_len: elements.len() });
    }
    let key = name.shard(range.index);
    let header = Bytes::from(header(name, range));
    let encoded = || {
        std::iter::once(header.clone())
            .chain(elements.chunks(ENCODED_ELEMENTS).map(|block| Bytes::from(little_endian(block))))
    };
    let mut hasher = blake3::Hasher::new();
    let mut bytes = 0;
    for chunk in encoded() {
        bytes += chunk.len() as u64;
        hasher.update(&chunk);
        // The runtime also carries the job's own traffic.
        tokio::task::yield_now().await;
    }
    Object::of_key(store, &key).put(bytes, encoded).await?;
    let blake3 = Digest(*hasher.finalize().as_bytes());
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
