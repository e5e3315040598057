//! Single requests against one bucket, each with its outcome or its fault; what they mean, `check.rs` says. Bodies have a few bytes.

use crate::client::Bucket;
use crate::fault::Fault;
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{
    BucketVersioningStatus, CompletedMultipartUpload, CompletedPart, Delete, MultipartUpload, ObjectIdentifier,
};

/// Versions removed after a check, which makes fewer than this.
const VERSIONS_MAX: i32 = 100;

/// A condition on a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum When {
    /// Whatever is there is replaced.
    Always,
    /// Only if there is no such object.
    Absent,
    /// Only if the object has this tag.
    Tagged(String),
}

impl When {
    fn if_none_match(&self) -> Option<String> {
        (*self == Self::Absent).then(|| "*".to_owned())
    }

    fn if_match(&self) -> Option<String> {
        match self {
            Self::Tagged(tag) => Some(tag.clone()),
            Self::Always | Self::Absent => None,
        }
    }
}

/// An upload in parts that was begun. `key` is the whole key in the bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Begun {
    pub key: String,
    pub id: String,
}

impl Bucket {
    /// Writes an object; its tag.
    pub(crate) async fn put(&self, key: &str, body: &'static [u8], when: &When) -> Result<String, Fault> {
        let put = self.client.put_object().bucket(self.name()).key(key).body(ByteStream::from_static(body));
        let put = put.set_if_none_match(when.if_none_match()).set_if_match(when.if_match());
        let answer = put.send().await.map_err(|e| Fault::of(&e))?;
        Ok(answer.e_tag().unwrap_or_default().to_owned())
    }

    /// Reads an object, or these bytes of it (first and last).
    pub(crate) async fn get(&self, key: &str, range: Option<(u64, u64)>) -> Result<Vec<u8>, Fault> {
        let range = range.map(|(first, last)| format!("bytes={first}-{last}"));
        let get = self.client.get_object().bucket(self.name()).key(key).set_range(range);
        let answer = get.send().await.map_err(|e| Fault::of(&e))?;
        let expected = answer.content_length().and_then(|length| usize::try_from(length).ok());
        let bytes = answer.body.collect().await.map_err(|_| Fault::CutShort)?.to_vec();
        if expected.is_some_and(|expected| expected != bytes.len()) { Err(Fault::CutShort) } else { Ok(bytes) }
    }

    /// Keys that begin with this, at most `count_max`, which one answer holds.
    pub(crate) async fn keys(&self, prefix: &str, count_max: i32) -> Result<Vec<(String, Option<i64>)>, Fault> {
        let list = self.client.list_objects_v2().bucket(self.name()).prefix(prefix).max_keys(count_max);
        let answer = list.send().await.map_err(|e| Fault::of(&e))?;
        let keys = answer.contents().iter();
        Ok(keys.filter_map(|o| Some((o.key()?.to_owned(), o.last_modified().map(|at| at.secs())))).collect())
    }

    /// Deletes an object, which need not exist.
    pub(crate) async fn delete(&self, key: &str) -> Result<(), Fault> {
        self.client.delete_object().bucket(self.name()).key(key).send().await.map(drop).map_err(|e| Fault::of(&e))
    }

    /// Deletes an object by the request that deletes many, as `object_store` does.
    pub(crate) async fn delete_in_bulk(&self, key: &str) -> Result<(), Fault> {
        let malformed = |_| Fault::Other { status: 0, code: "a key that cannot be asked for".to_owned() };
        let object = ObjectIdentifier::builder().key(key).build().map_err(malformed)?;
        let delete = Delete::builder().objects(object).build().map_err(malformed)?;
        let answer =
            self.client.delete_objects().bucket(self.name()).delete(delete).send().await.map_err(|e| Fault::of(&e))?;
        match answer.errors().first() {
            None => Ok(()),
            Some(error) => {
                let status = if error.code() == Some("AccessDenied") { 403 } else { 0 };
                Err(Fault::of_answer(status, error.code().unwrap_or_default(), "", None))
            }
        }
    }

    /// Uploads that were begun for keys that begin with this and are open, and since when: at most `count_max`, which one answer holds.
    pub(crate) async fn uploads(&self, prefix: &str, count_max: i32) -> Result<Vec<(Begun, Option<i64>)>, Fault> {
        let list = self.client.list_multipart_uploads().bucket(self.name()).prefix(prefix).max_uploads(count_max);
        let answer = list.send().await.map_err(|e| Fault::of(&e))?;
        let upload = |upload: &MultipartUpload| {
            let begun = Begun { key: upload.key()?.to_owned(), id: upload.upload_id()?.to_owned() };
            Some((begun, upload.initiated().map(|at| at.secs())))
        };
        Ok(answer.uploads().iter().filter_map(upload).collect())
    }

    /// Begins an upload in parts.
    pub(crate) async fn begin(&self, key: &str) -> Result<Begun, Fault> {
        let create = self.client.create_multipart_upload().bucket(self.name()).key(key);
        let answer = create.send().await.map_err(|e| Fault::of(&e))?;
        let id = answer.upload_id().ok_or_else(|| Fault::Other { status: 200, code: "no upload id".to_owned() })?;
        Ok(Begun { key: key.to_owned(), id: id.to_owned() })
    }

    /// Sends its only part; the part's tag.
    pub(crate) async fn part(&self, upload: &Begun, body: &'static [u8]) -> Result<String, Fault> {
        let part = self.client.upload_part().bucket(self.name()).key(&upload.key).upload_id(&upload.id).part_number(1);
        let answer = part.body(ByteStream::from_static(body)).send().await.map_err(|e| Fault::of(&e))?;
        Ok(answer.e_tag().unwrap_or_default().to_owned())
    }

    /// Completes it with that part.
    pub(crate) async fn complete(&self, upload: &Begun, part: &str, when: &When) -> Result<String, Fault> {
        let part = CompletedPart::builder().part_number(1).e_tag(part).build();
        let complete =
            self.client.complete_multipart_upload().bucket(self.name()).key(&upload.key).upload_id(&upload.id);
        let complete = complete
            .multipart_upload(CompletedMultipartUpload::builder().parts(part).build())
            .set_if_none_match(when.if_none_match())
            .set_if_match(when.if_match());
        let answer = complete.send().await.map_err(|e| Fault::of(&e))?;
        Ok(answer.e_tag().unwrap_or_default().to_owned())
    }

    /// Gives it up; one that is gone is given up.
    pub(crate) async fn abort(&self, upload: &Begun) -> Result<(), Fault> {
        let abort = self.client.abort_multipart_upload().bucket(self.name()).key(&upload.key).upload_id(&upload.id);
        match abort.send().await.map_err(|e| Fault::of(&e)) {
            Ok(_) => Ok(()),
            Err(Fault::Missing { code }) if code == "NoSuchUpload" => Ok(()),
            Err(fault) => Err(fault),
        }
    }

    /// Removes what a bucket with versions keeps of deleted objects that begin with this; nothing where there are no versions. Where nobody may
    /// know whether there are, they are looked for.
    pub(crate) async fn remove_versions(&self, prefix: &str) -> Result<(), Fault> {
        if matches!(self.versioning().await, Ok(Versioning::Off) | Err(Fault::Unsupported { .. })) {
            return Ok(());
        }
        let list = self.client.list_object_versions().bucket(self.name()).prefix(prefix).max_keys(VERSIONS_MAX);
        let answer = match list.send().await.map_err(|e| Fault::of(&e)) {
            Err(Fault::Unsupported { .. }) => return Ok(()),
            answer => answer?,
        };
        let versions = answer.versions().iter().map(|v| (v.key(), v.version_id()));
        let markers = answer.delete_markers().iter().map(|m| (m.key(), m.version_id()));
        for (key, version) in versions.chain(markers) {
            let delete = self.client.delete_object().bucket(self.name()).set_key(key.map(str::to_owned));
            delete.set_version_id(version.map(str::to_owned)).send().await.map_err(|e| Fault::of(&e))?;
        }
        Ok(())
    }

    /// Whether it keeps old versions.
    pub(crate) async fn versioning(&self) -> Result<Versioning, Fault> {
        let answer = self.client.get_bucket_versioning().bucket(self.name()).send().await.map_err(|e| Fault::of(&e))?;
        Ok(match answer.status() {
            Some(BucketVersioningStatus::Enabled) => Versioning::On,
            Some(_) => Versioning::Suspended,
            None => Versioning::Off,
        })
    }
}

/// Whether a bucket keeps what is overwritten or deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Versioning {
    On,
    Suspended,
    Off,
}
