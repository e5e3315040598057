//! Restoring: manifest, then shards by any number of readers, every byte checked. Nothing damaged is ever returned.

use super::manifest::{Manifest, ManifestError, ShardRecord, replica_digest};
use super::write::TENSOR;
use crate::keys::CheckpointName;
use crate::object::{Object, WholeError};
use crate::retry::StoreFault;
use events_schema::Digest;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::ObjectStore;
use safetensors::{Dtype, SafeTensors};
use std::ops::Range;
use std::sync::Arc;

/// A manifest of [`super::manifest::FORMAT_VERSION`] with the most shards is smaller.
const MANIFEST_BYTES_MAX: u64 = 1 << 20;
/// Shards read at once.
const SHARDS_IN_FLIGHT_MAX: usize = 4;

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
    /// The object that is not what it should be, if it is an object's fault.
    #[must_use]
    pub fn object(&self) -> Option<&str> {
        match self {
            Self::Missing { key }
            | Self::Corrupt { key, .. }
            | Self::Manifest { key, .. }
            | Self::Format { key, .. } => Some(key),
            Self::Store(_) | Self::Outside { .. } => None,
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

/// The whole flat replica, checked shard by shard and as a whole.
pub async fn read_replica(
    store: &Arc<dyn ObjectStore>,
    name: &CheckpointName,
    manifest: &Manifest,
) -> Result<Vec<f32>, RestoreError> {
    let replica = read_range(store, manifest, 0..manifest.replica_len).await?;
    let found = replica_digest(&replica);
    if found != manifest.replica_digest {
        return Err(RestoreError::Corrupt {
            key: name.manifest(),
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
