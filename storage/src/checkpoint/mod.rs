//! Checkpoints: the flat replica in shards, and a manifest that makes them one.
//!
//! The manifest is the commit: shards without it are rubbish to be swept, a manifest without its shards is corruption and is
//! said to be. Whether a committed checkpoint *counts* is the controller's to say, so nothing here looks for checkpoints: who
//! reads or deletes one knows its name ([`crate::keys::CheckpointName`]). Read `manifest.rs` and `digest.rs` (pure), `write.rs`, `read.rs`, `model.rs`.
//!
//! Next on a job's path: `controller/core/src/decide/checkpoints.rs`, which accepts what was written.

mod digest;
mod manifest;
mod model;
mod read;
mod write;

pub use digest::{Checksum, PART_ELEMENTS, part_digests, replica_digest, whole_digest};
pub use manifest::{FORMAT_VERSION, Manifest, ManifestError, ShardRange, ShardRecord, THIS_BUILD, cut_shards};
pub(crate) use model::MODEL_BYTES_MAX;
pub use model::{read_model, write_model};
pub use read::{RestoreError, read_manifest, read_replica};
pub use write::{CheckpointWriteError, ShardElements, delete, write_manifest, write_shard};

#[cfg(test)]
mod tests;
