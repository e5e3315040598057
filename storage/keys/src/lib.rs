//! Every object Ebb keeps, by key: its shape, who writes it, whether it may change, who deletes it. Keys are made and read here only.
//!
//! | key | written by | changes | deleted by |
//! | --- | --- | --- | --- |
//! | `datasets/NAME/part-DIGEST.parquet` | import | never, named by its content | their owner; nothing here does |
//! | `datasets/NAME/metadata-DIGEST.json` | import, registration; after the parts | never, named by its content | their owner; nothing here does |
//! | `code/DIGEST.tar.gz` | the gateway, for whoever submits | never, named by its content | controller, a week after it was last noted, if no job names it |
//! | `models/DIGEST.safetensors` | the gateway, for whoever submits a job that begins with it | never, named by its content | as `code/` |
//! | `uploads/INSTALLATION/KIND-DIGEST` | the gateway, before it says that the object of those two that this notes is there; controller, of what jobs name | written anew, empty | controller, after that object |
//! | `jobs/JOB/checkpoints/gG-sS-wTOKEN/shard-I.safetensors` | executor number I of generation G's members | rewritten with the same bytes only | controller |
//! | `jobs/JOB/checkpoints/gG-sS-wTOKEN/manifest.json` | the leader, last, if absent | never | controller, first |
//! | `jobs/JOB/logs/eNUMBER/CHUNK.log` | the agent of executor NUMBER of the job | grows until it is full, the next chunk then begins | the agent, beyond its bound; controller, a week after the last change |
//! | `jobs/JOB/model.safetensors` | the leader at the end of the job | rewritten with the same bytes only | nobody as long as it is the result; else the controller, as that of a retraining after a day |
//!
//! A name follows from (job, generation, step, writer) and is never taken from a report. TOKEN is issued by the controller with the generation's
//! proposal, to the proposed members alone, so that only they can name what they write, and who is in an earlier generation cannot name what
//! counts for a later one. Earlier builds derived it from a key of the job, and before that wrote `gG-sS` alone; what counts since then is still
//! read and deleted, and nothing new of such a name counts.
//! The controller deletes a checkpoint when it retires it, and sweeps up what can never count any more.
//!
//! Pure: nothing here reads or writes a store. No key is a folder of another key (some S3 servers keep keys as files). Generation and
//! step are padded, so that a listing is in order. Next: `storage/src/checkpoint/mod.rs`.

use events_schema::{DatasetName, Digest, ExecutorId, Generation, JobId, Step, WriterToken};

/// Digits of generation and step in keys, enough for any `u64`.
const NUMBER_WIDTH: usize = 20;
/// Name of a manifest inside its checkpoint.
const MANIFEST: &str = "manifest.json";

/// A part of an imported dataset, named by its content.
#[must_use]
pub fn dataset_part(name: &DatasetName, content: &Digest) -> String {
    format!("datasets/{name}/part-{content}.parquet")
}

/// The list of a dataset's partitions, named by its content.
#[must_use]
pub fn dataset_metadata(name: &DatasetName, content: &Digest) -> String {
    format!("datasets/{name}/metadata-{content}.json")
}

/// A packed folder of users' code, named by its content.
#[must_use]
pub fn code(content: &Digest) -> String {
    format!("code/{content}.tar.gz")
}

/// Tensors that jobs begin with, named by their content.
#[must_use]
pub fn initial(content: &Digest) -> String {
    format!("models/{content}.safetensors")
}

/// What is uploaded before a job names it, by its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Upload {
    /// A packed folder of code.
    Code(Digest),
    /// Tensors that jobs begin with.
    Tensors(Digest),
}

impl Upload {
    /// Where it lies. Installations that share a store share it.
    #[must_use]
    pub fn object(&self) -> String {
        match self {
            Self::Code(content) => code(content),
            Self::Tensors(content) => initial(content),
        }
    }

    /// Where an installation notes that somebody of it has uploaded this or asked for it, and when: the age of the empty object.
    #[must_use]
    pub fn note(&self, installation: u64) -> String {
        let folder = notes_of(installation);
        match self {
            Self::Code(content) => format!("{folder}/{CODE_NOTE}{content}"),
            Self::Tensors(content) => format!("{folder}/{TENSORS_NOTE}{content}"),
        }
    }

    /// What an installation's note is of; none if it is no note of it.
    #[must_use]
    pub fn of_note(key: &str, installation: u64) -> Option<Self> {
        let name = key.strip_prefix(&notes_of(installation))?.strip_prefix('/')?;
        let code = || name.strip_prefix(CODE_NOTE)?.parse().ok().map(Self::Code);
        let tensors = || name.strip_prefix(TENSORS_NOTE)?.parse().ok().map(Self::Tensors);
        code().or_else(tensors).filter(|upload| upload.note(installation) == key)
    }
}

/// What names of notes begin with.
const CODE_NOTE: &str = "code-";
const TENSORS_NOTE: &str = "tensors-";

/// Notes of all installations begin with this and a slash.
pub const NOTES: &str = "uploads";

/// All notes of an installation begin with this and a slash.
#[must_use]
pub fn notes_of(installation: u64) -> String {
    format!("{NOTES}/{installation:016x}")
}

/// Most bytes of uploaded tensors: each executor that begins reads them. Larger ones are on the servers.
pub const INITIAL_BYTES_MAX: u64 = 2 << 30;

/// Everything of one job begins with this and a slash.
#[must_use]
pub fn job(job: &JobId) -> String {
    format!("jobs/{job}")
}

/// The finished model.
#[must_use]
pub fn model(job: &JobId) -> String {
    format!("jobs/{job}/model.safetensors")
}

/// All that executors of a job said begins with this and a slash.
#[must_use]
pub fn logs(job: &JobId) -> String {
    format!("jobs/{job}/logs")
}

/// Bytes of a full piece of what an executor said. A piece begins at its number times this, also if the one before was given up, whole or
/// half-way, so a place in the log follows from the number.
pub const LOG_CHUNK_BYTES: usize = 256 << 10;

/// All that one executor said begins with this and a slash.
#[must_use]
pub fn log(executor: &ExecutorId) -> String {
    format!("{}/e{:010}", logs(&executor.job), executor.number)
}

/// A piece of what an executor said on its standard error.
#[must_use]
pub fn log_chunk(executor: &ExecutorId, chunk: u64) -> String {
    format!("{}/{chunk:0width$}.log", log(executor), width = NUMBER_WIDTH)
}

/// What a checkpoint's objects are named by.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct CheckpointName {
    /// The job that it is of.
    pub job: JobId,
    /// The generation that writes it.
    pub generation: Generation,
    /// The replica's step.
    pub step: Step,
    /// The token of that generation; none in what earlier builds wrote.
    pub writer: Option<WriterToken>,
}

impl CheckpointName {
    /// Everything of this checkpoint begins with this and a slash.
    #[must_use]
    pub fn folder(&self) -> String {
        let Self { job, generation, step, writer } = self;
        let numbers = format!("g{:0width$}-s{:0width$}", generation.0, step.0, width = NUMBER_WIDTH);
        let writer = writer.map(|token| format!("-w{token}")).unwrap_or_default();
        format!("jobs/{job}/checkpoints/{numbers}{writer}")
    }

    /// What makes it a checkpoint.
    #[must_use]
    pub fn manifest(&self) -> String {
        format!("{}/{MANIFEST}", self.folder())
    }

    /// One member's part of the replica.
    #[must_use]
    pub fn shard(&self, index: u32) -> String {
        format!("{}/shard-{index}.safetensors", self.folder())
    }

    /// The name whose [`CheckpointName::manifest`] is this key, if there is one.
    #[must_use]
    pub fn of_manifest(key: &str) -> Option<Self> {
        match ObjectOfJob::parse(key) {
            Some(ObjectOfJob::Manifest(name)) => Some(name),
            _ => None,
        }
    }

    fn of_folder(job: &str, folder: &str) -> Option<Self> {
        let (generation, rest) = folder.strip_prefix('g')?.split_once("-s")?;
        let (step, writer) = match rest.split_once("-w") {
            Some((step, token)) => (step, Some(token.parse().ok()?)),
            None => (rest, None),
        };
        let number = |text: &str| text.parse().ok().filter(|_| text.len() == NUMBER_WIDTH);
        let name = Self {
            job: JobId::parse(job).ok()?,
            generation: Generation(number(generation)?),
            step: Step(number(step)?),
            writer,
        };
        // Numbers have other texts (`+1`); only the one that is written is a name.
        name.folder().ends_with(folder).then_some(name)
    }
}

/// An object under a job's folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObjectOfJob {
    /// A checkpoint's manifest.
    Manifest(CheckpointName),
    /// A part of a replica.
    Shard(CheckpointName, u32),
    /// The finished model.
    Model(JobId),
    /// A piece of what an executor said.
    Log(ExecutorId, u64),
}

impl ObjectOfJob {
    /// What a key names; none if no such key is ever made here, so that it is somebody else's.
    #[must_use]
    pub fn parse(key: &str) -> Option<Self> {
        let (job, rest) = key.strip_prefix("jobs/")?.split_once('/')?;
        if rest == "model.safetensors" {
            return Some(Self::Model(JobId::parse(job).ok()?));
        }
        if let Some(log) = rest.strip_prefix("logs/e") {
            let (number, chunk) = log.strip_suffix(".log")?.split_once('/')?;
            let executor = ExecutorId { job: JobId::parse(job).ok()?, number: number.parse().ok()? };
            let chunk = chunk.parse().ok()?;
            return (log_chunk(&executor, chunk) == key).then_some(Self::Log(executor, chunk));
        }
        let (folder, file) = rest.strip_prefix("checkpoints/")?.split_once('/')?;
        let name = CheckpointName::of_folder(job, folder)?;
        if file == MANIFEST {
            return Some(Self::Manifest(name));
        }
        let index = file.strip_prefix("shard-")?.strip_suffix(".safetensors")?.parse().ok()?;
        (name.shard(index) == key).then_some(Self::Shard(name, index))
    }
}

/// Whether a key is of the objects of some dataset, and of nothing else that Ebb keeps.
#[must_use]
pub fn is_dataset_object(key: &str) -> bool {
    let mut parts = key.split('/');
    let of_dataset =
        parts.next() == Some("datasets") && parts.next().is_some_and(|name| DatasetName::parse(name).is_ok());
    of_dataset && parts.next().is_some_and(|object| !matches!(object, "" | "." | "..")) && parts.next().is_none()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn name(writer: Option<WriterToken>) -> CheckpointName {
        CheckpointName { job: JobId::parse("job-a").unwrap(), generation: Generation(3), step: Step(1_200), writer }
    }

    #[test]
    fn keys_have_their_shapes() {
        let earlier = "jobs/job-a/checkpoints/g00000000000000000003-s00000000000000001200/manifest.json";
        assert_eq!(name(None).manifest(), earlier);
        let ours = earlier.replace("/manifest", "-w0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a/manifest");
        assert_eq!(name(Some(WriterToken([10; 16]))).manifest(), ours);
        assert_eq!(name(None).shard(0), earlier.replace(MANIFEST, "shard-0.safetensors"));
    }

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        for name in [name(None), name(Some(WriterToken([0xa0; 16])))] {
            assert_eq!(CheckpointName::of_manifest(&name.manifest()), Some(name.clone()));
            assert_eq!(ObjectOfJob::parse(&name.shard(17)), Some(ObjectOfJob::Shard(name.clone(), 17)));
            assert_eq!(CheckpointName::of_manifest(&name.shard(17)), None);
        }
        let (job, manifest) = (JobId::parse("job-a").unwrap(), name(Some(WriterToken([0xa0; 16]))).manifest());
        assert_eq!(ObjectOfJob::parse(&model(&job)), Some(ObjectOfJob::Model(job)));
        for other in [
            "manifest.json",
            "datasets/d/manifest.json",
            "jobs/job-a/checkpoints/manifest.json",
            "jobs/../checkpoints/g00000000000000000003-s00000000000000001200/manifest.json",
            "jobs/job-a/checkpoints/g+0000000000000000003-s00000000000000001200/manifest.json",
            "jobs/job-a/checkpoints/g3-s1200/manifest.json",
            "jobs/job-a/notes.txt",
            &manifest.replace("-wa0", "-wA0"),
            &manifest.replace("-wa0", "-wa"),
            &manifest.replace(MANIFEST, "../manifest.json"),
            &manifest.replace(MANIFEST, "shard-01.safetensors"),
        ] {
            assert_eq!(ObjectOfJob::parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_note_of_an_upload_reads_back_for_its_installation_alone() {
        let content = Digest::of(b"x");
        for upload in [Upload::Code(content), Upload::Tensors(content)] {
            let note = upload.note(7);
            assert!(note.starts_with("uploads/0000000000000007/"), "{note}");
            assert_eq!(Upload::of_note(&note, 7), Some(upload));
            assert_eq!(Upload::of_note(&note, 8), None);
            assert_eq!(Upload::of_note(&format!("{note}0"), 7), None);
            assert_eq!(Upload::of_note(&upload.object(), 7), None);
        }
    }

    #[test]
    fn no_key_is_a_folder_of_another() {
        let (dataset, content) = (DatasetName::parse("d").unwrap(), Digest::of(b"x"));
        let ours = name(Some(WriterToken([1; 16])));
        let keys = [
            dataset_part(&dataset, &content),
            dataset_metadata(&dataset, &content),
            name(None).shard(1),
            ours.shard(1),
            ours.shard(11),
            ours.manifest(),
            model(&ours.job),
            code(&content),
            initial(&content),
            Upload::Code(content).note(7),
            Upload::Tensors(content).note(7),
        ];
        for a in &keys {
            assert!(keys.iter().all(|b| !b.starts_with(&format!("{a}/"))), "{a}");
        }
    }

    #[test]
    fn objects_of_datasets_are_told_from_others() {
        let (name, content) = (DatasetName::parse("d").unwrap(), Digest::of(b"x"));
        for own in [dataset_part(&name, &content), dataset_metadata(&name, &content)] {
            assert!(is_dataset_object(&own), "{own}");
        }
        for other in [
            "jobs/job-a/model.safetensors",
            "datasets/d",
            "datasets/d/",
            "datasets/d/../x",
            "datasets/../jobs/x",
            "datasets//x",
            "/datasets/d/x",
        ] {
            assert!(!is_dataset_object(other), "{other}");
        }
    }

    #[test]
    fn a_logs_key_reads_back_and_no_other_text_of_it_does() {
        let executor = ExecutorId { job: JobId::parse("job-a").unwrap(), number: 7 };
        let key = log_chunk(&executor, 3);
        assert_eq!(key, "jobs/job-a/logs/e0000000007/00000000000000000003.log");
        assert_eq!(ObjectOfJob::parse(&key), Some(ObjectOfJob::Log(executor, 3)));
        for other in
            ["jobs/job-a/logs/e7/00000000000000000003.log", "jobs/job-a/logs/e0000000007/3.log", "jobs/job-a/logs/x"]
        {
            assert_eq!(ObjectOfJob::parse(other), None, "{other}");
        }
    }
}
