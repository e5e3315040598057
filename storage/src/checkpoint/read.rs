//! Restoring: manifest, then shards by any number of readers, every byte checked. Nothing damaged is ever returned.

use super::manifest::{Manifest, ManifestError, ShardRecord, replica_digest};
use super::write::TENSOR;
use crate::keys;
use crate::object::{Object, WholeError};
use crate::retry::StoreFault;
use events_schema::{Digest, JobId};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::ObjectStore;
use object_store::path::Path;
use safetensors::{Dtype, SafeTensors};
use std::ops::Range;
use std::sync::Arc;

/// A manifest of [`super::manifest::FORMAT_VERSION`] with the most shards is smaller.
const MANIFEST_BYTES_MAX: u64 = 1 << 20;
/// Shards read at once.
const SHARDS_IN_FLIGHT_MAX: usize = 4;

/// Why a checkpoint cannot be used. [`RestoreError::Store`] may pass: try again later. The others: use the checkpoint before it.
#[derive(Debug, thiserror::Error)]
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
        /// Why.
        #[source]
        source: ManifestError,
    },
    /// The caller asked for elements that are not there. Stop.
    #[error("elements {first}..{end} lie outside a replica of {replica_len} elements")]
    Outside {
        /// First element asked for.
        first: u64,
        /// End of what was asked for.
        end: u64,
        /// Elements of the replica.
        replica_len: u64,
    },
}

impl RestoreError {
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

/// A checkpoint found by [`list`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredCheckpoint {
    /// Key of its manifest.
    pub manifest_key: String,
    /// When it was written, milliseconds since 1970, by the store's clock.
    pub written_at_ms: u64,
}

/// Reads and checks a manifest.
pub async fn read_manifest(store: &Arc<dyn ObjectStore>, manifest_key: &str) -> Result<Manifest, RestoreError> {
    let bytes = Object::of_key(store, manifest_key).whole(MANIFEST_BYTES_MAX).await.map_err(RestoreError::of)?;
    Manifest::parse(&bytes).map_err(|source| RestoreError::Manifest { key: manifest_key.to_owned(), source })
}

/// The whole flat replica, checked shard by shard and as a whole.
pub async fn read_replica(store: &Arc<dyn ObjectStore>, manifest: &Manifest) -> Result<Vec<f32>, RestoreError> {
    let replica = read_range(store, manifest, 0..manifest.replica_len).await?;
    let found = replica_digest(&replica);
    if found != manifest.replica_digest {
        let key = keys::checkpoint_manifest(&manifest.job, manifest.generation, manifest.step);
        return Err(RestoreError::Corrupt {
            key,
            problem: format!("the replica's digest is {found} instead of {}", manifest.replica_digest),
        });
    }
    Ok(replica)
}

/// Some elements of the replica. Reads, and checks, only the shards that hold them.
pub async fn read_range(
    store: &Arc<dyn ObjectStore>,
    manifest: &Manifest,
    elements: Range<u64>,
) -> Result<Vec<f32>, RestoreError> {
    if elements.start > elements.end || elements.end > manifest.replica_len {
        return Err(RestoreError::Outside {
            first: elements.start,
            end: elements.end,
            replica_len: manifest.replica_len,
        });
    }
    let wanted = manifest
        .shards
        .iter()
        .filter(|s| s.first_element < elements.end && s.first_element + s.elements > elements.start);
    // Boxed, because the compiler cannot name the lifetime of the closure's future otherwise.
    let mut shards =
        stream::iter(wanted.map(|shard| Box::pin(read_shard(store, shard)))).buffered(SHARDS_IN_FLIGHT_MAX);
    let mut out = Vec::with_capacity((elements.end - elements.start) as usize);
    while let Some((first, bytes)) = shards.try_next().await? {
        let end = first + bytes.len() as u64 / 4;
        let from = elements.start.max(first) - first;
        let to = elements.end.min(end) - first;
        out.extend(bytes[from as usize * 4..to as usize * 4].as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)));
    }
    Ok(out)
}

/// All committed checkpoints of a job, in order of generation and step.
pub async fn list(store: &Arc<dyn ObjectStore>, job: &JobId) -> Result<Vec<StoredCheckpoint>, StoreFault> {
    let folder = keys::checkpoints(job);
    let objects: Vec<_> =
        store.list(Some(&Path::from(folder.as_str()))).try_collect().await.map_err(|e| StoreFault::of(&folder, e))?;
    let mut found: Vec<StoredCheckpoint> = objects
        .into_iter()
        .filter(|object| keys::checkpoint_of_manifest(object.location.as_ref()).is_some())
        .map(|object| StoredCheckpoint {
            manifest_key: object.location.to_string(),
            written_at_ms: u64::try_from(object.last_modified.timestamp_millis()).unwrap_or(0),
        })
        .collect();
    found.sort_by(|a, b| a.manifest_key.cmp(&b.manifest_key));
    Ok(found)
}

/// One shard's first element and little-endian elements.
async fn read_shard(store: &Arc<dyn ObjectStore>, shard: &ShardRecord) -> Result<(u64, bytes::Bytes), RestoreError> {
    let corrupt = |problem: String| RestoreError::Corrupt { key: shard.key.clone(), problem };
    let file = Object::of_key(store, &shard.key).whole(shard.bytes).await.map_err(RestoreError::of)?;
    if file.len() as u64 != shard.bytes {
        return Err(corrupt(format!("{} bytes instead of {}", file.len(), shard.bytes)));
    }
    let found = Digest::of(&file);
    if found != shard.blake3 {
        return Err(corrupt(format!("its BLAKE3 is {found} instead of {}", shard.blake3)));
    }
    let tensors = SafeTensors::deserialize(&file).map_err(|e| corrupt(e.to_string()))?;
    let tensor = tensors.tensor(TENSOR).map_err(|e| corrupt(e.to_string()))?;
    if tensor.dtype() != Dtype::F32 || tensor.data().len() as u64 != shard.elements.saturating_mul(4) {
        return Err(corrupt(format!(
            "{:?} of shape {:?} instead of {} 32-bit floats",
            tensor.dtype(),
            tensor.shape(),
            shard.elements
        )));
    }
    Ok((shard.first_element, file.slice_ref(tensor.data())))
}
