//! Every object Ebb keeps, by key: its shape, who writes it, whether it may change, who deletes it. Keys are made here only.
//!
//! | key | written by | changes | deleted by |
//! | --- | --- | --- | --- |
//! | `datasets/NAME/part-DIGEST.parquet` | import | never, named by its content | whoever removes the dataset |
//! | `datasets/NAME/metadata-DIGEST.json` | import, registration; after the parts | never, named by its content | whoever removes the dataset |
//! | `jobs/JOB/checkpoints/gG-sS/shard-I.safetensors` | executor number I of the generation's members | rewritten with the same bytes only | controller |
//! | `jobs/JOB/checkpoints/gG-sS/manifest.json` | the leader, last, if absent | never | controller, first |
//! | `jobs/JOB/model.safetensors` | the leader at the end of the job | rewritten with the same bytes only | nobody yet: it is the result |
//!
//! No key is a folder of another key (some S3 servers keep keys as files). Generation and step are padded, so that a listing is
//! in order.

use events_schema::{DatasetName, Digest, Generation, JobId, Step};

/// Digits of generation and step in keys, enough for any `u64`.
const NUMBER_WIDTH: usize = 20;

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

/// Whether a key is of the objects of some dataset, and of nothing else that Ebb keeps.
#[must_use]
pub fn is_dataset_object(key: &str) -> bool {
    let mut parts = key.split('/');
    let of_dataset =
        parts.next() == Some("datasets") && parts.next().is_some_and(|name| DatasetName::parse(name).is_ok());
    of_dataset && parts.next().is_some_and(|object| !matches!(object, "" | "." | "..")) && parts.next().is_none()
}

/// Everything of one job's checkpoints begins with this.
#[must_use]
pub fn checkpoints(job: &JobId) -> String {
    format!("jobs/{job}/checkpoints")
}

/// One checkpoint; its objects begin with this and a slash.
#[must_use]
pub fn checkpoint(job: &JobId, generation: Generation, step: Step) -> String {
    format!("jobs/{job}/checkpoints/g{:0width$}-s{:0width$}", generation.0, step.0, width = NUMBER_WIDTH)
}

/// One member's part of a replica.
#[must_use]
pub fn checkpoint_shard(job: &JobId, generation: Generation, step: Step, index: u32) -> String {
    format!("{}/shard-{index}.safetensors", checkpoint(job, generation, step))
}

/// What makes a checkpoint one.
#[must_use]
pub fn checkpoint_manifest(job: &JobId, generation: Generation, step: Step) -> String {
    format!("{}/{MANIFEST}", checkpoint(job, generation, step))
}

/// Name of a manifest inside its checkpoint.
pub const MANIFEST: &str = "manifest.json";

/// The folder of a manifest's key, with its slash; `None` if the key is not one of a manifest.
#[must_use]
pub fn checkpoint_of_manifest(manifest_key: &str) -> Option<&str> {
    manifest_key
        .strip_suffix(MANIFEST)
        .filter(|folder| folder.starts_with("jobs/") && folder.contains("/checkpoints/g") && folder.ends_with('/'))
}

/// The finished model.
#[must_use]
pub fn model(job: &JobId) -> String {
    format!("jobs/{job}/model.safetensors")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn keys_have_their_shapes() {
        let job = JobId::parse("job-a").unwrap();
        let manifest = checkpoint_manifest(&job, Generation(3), Step(1_200));
        assert_eq!(manifest, "jobs/job-a/checkpoints/g00000000000000000003-s00000000000000001200/manifest.json");
        assert_eq!(checkpoint_of_manifest(&manifest), Some(&manifest[..manifest.len() - MANIFEST.len()]));
        assert_eq!(
            checkpoint_shard(&job, Generation(3), Step(1_200), 0),
            manifest.replace(MANIFEST, "shard-0.safetensors")
        );
        for other in ["jobs/job-a/model.safetensors", "manifest.json", "datasets/d/manifest.json"] {
            assert_eq!(checkpoint_of_manifest(other), None);
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
    fn no_key_is_a_folder_of_another() {
        let (job, name, content) = (JobId::parse("job-a").unwrap(), DatasetName::parse("d").unwrap(), Digest::of(b"x"));
        let (generation, step) = (Generation(1), Step(2));
        let keys = [
            dataset_part(&name, &content),
            dataset_metadata(&name, &content),
            checkpoint_shard(&job, generation, step, 1),
            checkpoint_shard(&job, generation, step, 11),
            checkpoint_manifest(&job, generation, step),
            model(&job),
        ];
        for a in &keys {
            assert!(keys.iter().all(|b| !b.starts_with(&format!("{a}/"))), "{a}");
        }
    }
}
