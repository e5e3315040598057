//! The leader's checkpoint folder in the store, as a checkpoint like any other: a shard, then the manifest. Its number of steps is how often the folder was saved.
//! Also the way back.

use crate::gang::machine::Purpose;
use crate::tokens::WriterTokens;
use bytes::Bytes;
use events_schema::{Digest, Generation, JobId, Step, WriterToken};
use object_store::ObjectStore;
use shell::Chain;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use storage::checkpoint::{
    CheckpointWriteError, FORMAT_VERSION, Manifest, RestoreError, ShardElements, THIS_BUILD, cut_shards, read_manifest,
    read_replica, replica_digest, write_manifest, write_model, write_shard,
};
use storage::folder::{FolderError, pack, pack_settled, unpack};
use storage::keys::CheckpointName;
use storage::retry::StoreFault;

/// For how long the order is awaited that says by what a generation's objects are named.
const TOKEN_WAIT: Duration = Duration::from_secs(5);
/// Pause after a store that refused, which was retried for minutes before it said so.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// A checkpoint that is in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    pub step: Step,
    pub written_in: Generation,
    pub writer: Option<WriterToken>,
    /// Of all its words.
    pub digest: Digest,
    pub bytes: u64,
}

/// What came of saving.
#[derive(Debug)]
pub struct Outcome {
    /// The checkpoint that holds what is in the folder; none if it was left out.
    pub kept: Option<Kept>,
    /// Whether it is new.
    pub is_new: bool,
    /// Of the packed folder, which is also the job's model now.
    pub model: Option<Digest>,
}

/// Why a folder is not in the store. All: the text is for the job's user.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// What is in it has to change.
    #[error("its checkpoint folder cannot be saved")]
    Folder(#[from] FolderError),
    /// The store refused for too long.
    #[error("its checkpoint folder cannot be written to the store")]
    Write(#[from] CheckpointWriteError),
    /// The same, of what comes of the job.
    #[error("what it made cannot be written to the store")]
    Model(#[from] StoreFault),
}

/// Why a folder cannot be restored.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// See there.
    #[error("the job's checkpoint cannot be read")]
    Restore(#[from] RestoreError),
    /// It is not what this module writes.
    #[error("the checkpoint `{0}` holds no folder")]
    NoFolder(String),
    /// The disk.
    #[error("the checkpoint folder cannot be restored")]
    Io(#[from] std::io::Error),
}

impl FetchError {
    /// Whether it may be another answer of the store later.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Restore(RestoreError::Store(fault)) if fault.is_mendable())
    }
}

/// Writes and reads one job's folders.
#[derive(Clone)]
pub struct Keeper {
    pub runtime: Arc<tokio::runtime::Runtime>,
    pub store: Arc<dyn ObjectStore>,
    pub job: JobId,
    pub spec_digest: Digest,
    pub class: Digest,
    pub tokens: Arc<WriterTokens>,
    pub folder: PathBuf,
    /// How long a store that refuses is tried again.
    pub patience: Duration,
}

impl Keeper {
    /// Saves the folder if it is another one than what was kept last.
    pub fn save(&self, purpose: Purpose, generation: Generation, last: Option<&Kept>) -> Result<Outcome, KeepError> {
        let nothing = Outcome { kept: None, is_new: false, model: None };
        let packed = match purpose {
            Purpose::Meanwhile => match pack_settled(&self.folder)? {
                Some(packed) => packed,
                None => return Ok(nothing),
            },
            Purpose::Stopped | Purpose::Failed | Purpose::Last => pack(&self.folder)?,
        };
        let packed = Bytes::from(packed);
        let content = Digest::of(&packed);
        let words = Arc::new(to_words(&packed));
        let digest = replica_digest(&words);
        let (kept, is_new) = match last.filter(|last| last.digest == digest) {
            Some(last) => (last.clone(), false),
            None => (self.insist(|| self.write(generation, last, &words, digest))?, true),
        };
        drop(words);
        let model = match purpose {
            Purpose::Last => {
                self.insist(|| Ok(self.runtime.block_on(write_model(&self.store, &self.job, packed.clone()))?))?;
                Some(content)
            }
            Purpose::Meanwhile | Purpose::Stopped | Purpose::Failed => None,
        };
        Ok(Outcome { kept: Some(kept), is_new, model })
    }

    /// Tries again for as long as the store may come back in time.
    fn insist<T>(&self, mut write: impl FnMut() -> Result<T, KeepError>) -> Result<T, KeepError> {
        let until = Instant::now() + self.patience;
        loop {
            let error = match write() {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            let later = match &error {
                KeepError::Write(CheckpointWriteError::Store(fault)) | KeepError::Model(fault) => fault.is_transient(),
                KeepError::Write(CheckpointWriteError::Unnamed { .. }) => true,
                KeepError::Write(_) | KeepError::Folder(_) => false,
            };
            if !later || Instant::now() >= until {
                return Err(error);
            }
            tracing::warn!(error = %Chain(&error), "the checkpoint folder is not in the store yet");
            std::thread::sleep(AGAIN_AFTER);
        }
    }

    fn write(
        &self,
        generation: Generation,
        last: Option<&Kept>,
        words: &Arc<Vec<f32>>,
        digest: Digest,
    ) -> Result<Kept, KeepError> {
        let token = self.tokens.wait_for(generation, TOKEN_WAIT);
        let writer = token.ok_or(CheckpointWriteError::Unnamed { generation })?;
        let step = Step(last.map_or(0, |last| last.step.0) + 1);
        let name = CheckpointName { job: self.job.clone(), generation, step, writer: Some(writer) };
        let [range] = cut_shards(words.len() as u64, 1)[..] else {
            return Err(CheckpointWriteError::Outside { index: 0, replica_len: words.len() }.into());
        };
        let elements = ShardElements::all(Arc::clone(words));
        let shard = self.runtime.block_on(write_shard(&self.store, &name, range, &elements))?;
        let bytes = shard.bytes;
        let manifest = Manifest {
            format_version: FORMAT_VERSION,
            job: self.job.clone(),
            spec_digest: self.spec_digest,
            numeric_class: self.class,
            generation,
            step,
            replica_len: words.len() as u64,
            replica_digest: digest,
            shards: vec![shard],
            written_by: Some(THIS_BUILD.to_owned()),
        };
        self.runtime.block_on(write_manifest(&self.store, &name, &manifest))?;
        Ok(Kept { step, written_in: generation, writer: Some(writer), digest, bytes })
    }

    /// Makes the folder what a checkpoint holds; an empty one without.
    pub fn restore(&self, name: Option<&CheckpointName>) -> Result<Option<Kept>, FetchError> {
        let Some(name) = name else {
            unpack(&[], &self.folder)?;
            return Ok(None);
        };
        let manifest = self.runtime.block_on(read_manifest(&self.store, name))?;
        let words = self.runtime.block_on(read_replica(&self.store, name, &manifest))?;
        let packed = from_words(&words).ok_or_else(|| FetchError::NoFolder(name.manifest()))?;
        drop(words);
        unpack(&packed, &self.folder)?;
        let (written_in, writer) = (name.generation, name.writer);
        let bytes = manifest.shard_bytes();
        Ok(Some(Kept { step: name.step, written_in, writer, digest: manifest.replica_digest, bytes }))
    }
}

/// Bytes as the words of a replica: their number, then they, then zeros up to a whole word.
fn to_words(bytes: &[u8]) -> Vec<f32> {
    let mut words = Vec::with_capacity(bytes.len() / 4 + 3);
    let word = |chunk: &[u8]| {
        let mut word = [0; 4];
        word[..chunk.len()].copy_from_slice(chunk);
        f32::from_bits(u32::from_le_bytes(word))
    };
    words.extend((bytes.len() as u64).to_le_bytes().chunks(4).map(word));
    words.extend(bytes.chunks(4).map(word));
    words
}

fn from_words(words: &[f32]) -> Option<Vec<u8>> {
    let (length, words) = words.split_at_checked(2)?;
    let length = u64::from(length[0].to_bits()) | u64::from(length[1].to_bits()) << 32;
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_bits().to_le_bytes()).collect();
    let length = usize::try_from(length).ok().filter(|length| length.div_ceil(4) == words.len())?;
    bytes.truncate(length);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use object_store::memory::InMemory;

    #[test]
    fn bytes_of_any_number_survive_as_words() {
        for length in [0, 1, 3, 4, 5, 1_000] {
            // Every pattern of bits, also those of signalling numbers.
            let bytes: Vec<u8> = (0..length).map(|i: u32| (i * 37 + 0x7f) as u8).collect();
            assert_eq!(from_words(&to_words(&bytes)), Some(bytes));
        }
        assert_eq!(from_words(&[0.0]), None);
        assert_eq!(from_words(&[f32::from_bits(9), 0.0, 1.0]), None, "another length than it has");
    }

    fn keeper(folder: PathBuf) -> Keeper {
        let tokens = WriterTokens::default();
        tokens.add(Generation(1), WriterToken([1; 16]));
        tokens.add(Generation(2), WriterToken([2; 16]));
        Keeper {
            runtime: Arc::new(tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()),
            store: Arc::new(InMemory::new()),
            job: JobId::parse("job-a").unwrap(),
            spec_digest: Digest::of(b"spec"),
            class: Digest::of(b"class"),
            tokens: Arc::new(tokens),
            folder,
            patience: Duration::ZERO,
        }
    }

    #[test]
    fn a_folder_is_restored_elsewhere_and_written_only_when_it_changed() {
        let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let keeper = keeper(here.path().join("checkpoint"));
        assert_eq!(keeper.restore(None).unwrap(), None);
        std::fs::write(keeper.folder.join("last.pt"), b"weights").unwrap();
        let written = keeper.save(Purpose::Stopped, Generation(1), None).unwrap();
        let kept = written.kept.unwrap();
        assert_eq!((kept.step, kept.written_in, written.is_new), (Step(1), Generation(1), true));
        let name =
            CheckpointName { job: keeper.job.clone(), generation: Generation(1), step: Step(1), writer: kept.writer };

        let elsewhere = Keeper { folder: there.path().join("checkpoint"), ..keeper };
        assert_eq!(elsewhere.restore(Some(&name)).unwrap().as_ref(), Some(&kept));
        assert_eq!(std::fs::read(elsewhere.folder.join("last.pt")).unwrap(), b"weights");
        let again = elsewhere.save(Purpose::Stopped, Generation(2), Some(&kept)).unwrap();
        assert_eq!((again.kept.as_ref(), again.is_new), (Some(&kept), false), "nothing is written twice");
        std::fs::write(elsewhere.folder.join("last.pt"), b"better weights").unwrap();
        assert!(elsewhere.save(Purpose::Meanwhile, Generation(2), Some(&kept)).unwrap().kept.is_none(), "just written");
        let last = elsewhere.save(Purpose::Last, Generation(2), Some(&kept)).unwrap();
        assert_eq!((last.kept.unwrap().step, last.is_new, last.model.is_some()), (Step(2), true, true));
    }
}
