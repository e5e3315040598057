//! What a checkpoint consists of. Pure: types, their JSON, and the check that shards make a whole.

use super::digest::PART_ELEMENTS;
use crate::keys::CheckpointName;
use events_schema::{Digest, Generation, JobId, Step};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The format's number; a reader refuses any other.
pub const FORMAT_VERSION: u32 = 1;
/// What a manifest says of its writer, so that a build that cannot read it can say which one can. Every format has this field.
pub const THIS_BUILD: &str = concat!("ebb ", env!("CARGO_PKG_VERSION"));
/// Most shards: more members than a job can have.
const SHARDS_MAX: usize = 1024;

/// A stretch of the flat replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardRange {
    /// Its number, from 0.
    pub index: u32,
    /// First element.
    pub first_element: u64,
    /// How many 32-bit floats.
    pub elements: u64,
}

impl ShardRange {
    /// Its place in a replica of so many elements, `None` if that is too short.
    #[must_use]
    pub fn place(&self, replica_len: usize) -> Option<Range<usize>> {
        let first = usize::try_from(self.first_element).ok()?;
        let end = first.checked_add(usize::try_from(self.elements).ok()?)?;
        (end <= replica_len).then_some(first..end)
    }

    /// Its elements in a replica, `None` if that is too short.
    #[must_use]
    pub fn of<'a>(&self, replica: &'a [f32]) -> Option<&'a [f32]> {
        replica.get(self.place(replica.len())?)
    }
}

/// Cuts a replica of `replica_len` elements into one shard per member, equal in length up to [`PART_ELEMENTS`], and between such. (Earlier builds cut anywhere.)
#[must_use]
pub fn cut_shards(replica_len: u64, members: u32) -> Vec<ShardRange> {
    let (count, parts) = (u64::from(members.max(1)), replica_len.div_ceil(PART_ELEMENTS));
    let (length, longer) = (parts / count, parts % count);
    // The last ones are longer: the last part may be short.
    let start = |i: u64| (PART_ELEMENTS * (i * length + (i + longer).saturating_sub(count))).min(replica_len);
    (0..count)
        .map(|i| ShardRange { index: i as u32, first_element: start(i), elements: start(i + 1) - start(i) })
        .collect()
}

/// A shard as written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardRecord {
    /// Key of its object.
    pub key: String,
    /// First element of the flat replica in it.
    pub first_element: u64,
    /// How many elements.
    pub elements: u64,
    /// Size of the object.
    pub bytes: u64,
    /// BLAKE3 of the object.
    pub blake3: Digest,
}

/// Everything that is needed to go on from a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`FORMAT_VERSION`].
    pub format_version: u32,
    /// The job that it is of.
    pub job: JobId,
    /// Digest of the job's spec: another job's checkpoint is refused.
    pub spec_digest: Digest,
    /// Numeric class of its writers: another class would go on to another model.
    pub numeric_class: Digest,
    /// The generation that wrote it.
    pub generation: Generation,
    /// The step that the replica is ready for.
    pub step: Step,
    /// Elements of the flat replica.
    pub replica_len: u64,
    /// [`super::replica_digest`] of the whole.
    pub replica_digest: Digest,
    /// In order, without gap or overlap.
    pub shards: Vec<ShardRecord>,
    /// [`THIS_BUILD`] of its writer; none in those of the first build.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written_by: Option<String>,
}

/// Why bytes are no manifest. [`ManifestError::Version`]: stop and say so, another build reads it. The others: use the previous
/// checkpoint, and say so.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// Not JSON of this shape.
    #[error("this is no manifest of a checkpoint")]
    Malformed(#[source] serde_json::Error),
    /// Of another format.
    #[error("it has format {version}, and this build ({THIS_BUILD}) reads format {FORMAT_VERSION}; run {}", build_of(written_by.as_deref()))]
    Version {
        /// Its format.
        version: u32,
        /// The build that wrote it, if it says so.
        written_by: Option<String>,
    },
    /// It is not about what its place in the store says, or names objects elsewhere.
    #[error("it names `{found}` where its own place says `{expected}`")]
    Elsewhere {
        /// What it names.
        found: String,
        /// What it would have to name.
        expected: String,
    },
    /// Shards that do not make a whole.
    #[error("shards do not cover the replica: expected element {expected}, found {found}")]
    Gap {
        /// Where the next shard, or the end, had to be.
        expected: u64,
        /// Where it is.
        found: u64,
    },
    /// A shard that names more elements than its object can hold.
    #[error("shard at element {first_element} names {elements} elements in {bytes} bytes")]
    Short {
        /// Its first element.
        first_element: u64,
        /// How many it names.
        elements: u64,
        /// Size of its object.
        bytes: u64,
    },
    /// More than any job has members.
    #[error("manifest names {0} shards, more than {SHARDS_MAX}")]
    TooManyShards(usize),
}

impl Manifest {
    /// The object's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        // A struct of numbers and texts always has a JSON form.
        serde_json::to_vec_pretty(self).unwrap_or_default()
    }

    /// Parses and checks; a manifest in hand covers its replica exactly.
    pub fn parse(bytes: &[u8]) -> Result<Self, ManifestError> {
        #[derive(Deserialize)]
        struct Version {
            format_version: u32,
            #[serde(default)]
            written_by: Option<String>,
        }
        let Version { format_version: version, written_by } =
            serde_json::from_slice(bytes).map_err(ManifestError::Malformed)?;
        if version != FORMAT_VERSION {
            return Err(ManifestError::Version { version, written_by });
        }
        let manifest: Self = serde_json::from_slice(bytes).map_err(ManifestError::Malformed)?;
        manifest.check()?;
        Ok(manifest)
    }

    /// Whether the shards cover the replica, in order, and can hold what they name: the length is what a reader allocates.
    pub fn check(&self) -> Result<(), ManifestError> {
        if self.shards.len() > SHARDS_MAX {
            return Err(ManifestError::TooManyShards(self.shards.len()));
        }
        let mut expected = 0u64;
        for shard in &self.shards {
            if shard.first_element != expected {
                return Err(ManifestError::Gap { expected, found: shard.first_element });
            }
            let &ShardRecord { first_element, elements, bytes, .. } = shard;
            if elements.checked_mul(4).is_none_or(|least| least > bytes) {
                return Err(ManifestError::Short { first_element, elements, bytes });
            }
            expected = expected.saturating_add(elements);
        }
        if expected == self.replica_len {
            Ok(())
        } else {
            Err(ManifestError::Gap { expected: self.replica_len, found: expected })
        }
    }

    /// Whether it is about this checkpoint and names its objects only: what is read follows from the name, whatever a manifest says.
    pub fn check_place(&self, name: &CheckpointName) -> Result<(), ManifestError> {
        let own =
            CheckpointName { job: self.job.clone(), generation: self.generation, step: self.step, writer: name.writer };
        let named = self.shards.iter().map(|shard| shard.key.as_str());
        let expected = (0..).map(|index| name.shard(index));
        let mut pairs = named.zip(expected);
        let wrong = match own == *name {
            true => pairs.find(|(found, expected)| found != expected).map(|(f, e)| (f.to_owned(), e)),
            false => Some((own.manifest(), name.manifest())),
        };
        wrong.map_or(Ok(()), |(found, expected)| Err(ManifestError::Elsewhere { found, expected }))
    }

    /// Bytes of all shards.
    #[must_use]
    pub fn shard_bytes(&self) -> u64 {
        self.shards.iter().map(|s| s.bytes).sum()
    }
}

fn build_of(written_by: Option<&str>) -> String {
    written_by.map_or_else(|| "the build that wrote it".to_owned(), |build| format!("the build that wrote it, {build}"))
}

// Elements are hashed and stored as they lie in memory.
const _: () = assert!(
    cfg!(target_endian = "little"),
    "the format is little-endian, and so is every processor that Ebb is built for"
);

/// The bytes of some elements.
pub(super) fn bytes_of(elements: &[f32]) -> &[u8] {
    bytemuck::cast_slice(elements)
}

/// The same, to be read into.
pub(super) fn bytes_of_mut(elements: &mut [f32]) -> &mut [u8] {
    bytemuck::cast_slice_mut(elements)
}
