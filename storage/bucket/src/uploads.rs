//! Uploads in parts that were begun and never completed: their parts cost space and stand in no listing of objects. Lists them page by
//! page, and gives up those that are old. Which are old, the caller says; ages are by the server's clock.

use crate::client::Bucket;
use crate::fault::Fault;
use crate::probe::Begun;
use futures::StreamExt;
use serde::Serialize;
use std::time::{Duration, SystemTime};

/// Uploads that one run gives; when they are given up, the next run finds those behind them. Younger ones are passed over and not counted.
pub const UPLOADS_MAX: usize = 20_000;
/// Uploads looked at in one run, a thousand to an answer: a server that goes on for longer begins them in a loop, or lists in a circle.
const LOOKED_AT_MAX: usize = 1_000_000;
/// Uploads that are given up at once: an answer each, and servers slow callers down who ask for more.
const ABORTS_IN_FLIGHT_MAX: usize = 8;
/// Younger ones are left alone unless somebody asks for another age: at the slowest that the data path bears (1 MiB/s) the largest object
/// (80 GiB) takes a day, and a writer may have begun it while its machine stood still.
pub const AGE_STANDARD: Duration = Duration::from_secs(3 * 24 * 3_600);

/// One upload that was begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Upload {
    /// The object's key in the bucket.
    pub key: String,
    /// The server's name for the upload.
    pub upload_id: String,
    /// When it was begun, RFC 3339; empty if the server does not say.
    pub begun_at: String,
    /// How long ago that is; nothing if the server does not say, and then it is never old.
    pub age_s: Option<u64>,
    /// What became of it here.
    pub outcome: Outcome,
}

/// What became of an upload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "state", content = "why")]
pub enum Outcome {
    /// It stays as it is.
    Left,
    /// It is gone with its parts.
    Aborted,
    /// The server did not give it up.
    Failed(String),
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Found {
    /// Oldest first.
    pub uploads: Vec<Upload>,
    /// Whether there may be more than one run gives.
    pub more: bool,
}

/// Lists uploads below the address that are at least this old.
pub async fn list(bucket: &Bucket, older_than: Duration) -> Result<Found, Fault> {
    let prefix = bucket.address.key_prefix();
    let (mut uploads, mut seen, mut more) = (Vec::new(), 0, false);
    let mut after: (Option<String>, Option<String>) = (None, None);
    loop {
        let request = bucket.client.list_multipart_uploads().bucket(bucket.name()).prefix(&prefix);
        let request = request.set_key_marker(after.0.clone()).set_upload_id_marker(after.1.clone());
        let page = request.send().await.map_err(|e| Fault::of(&e))?;
        let now = bucket.clock.now_there();
        seen += page.uploads().len();
        let page_uploads = page.uploads().iter().filter_map(|upload| {
            let begun = upload.initiated().and_then(|at| SystemTime::try_from(*at).ok());
            Some(Upload {
                key: upload.key()?.to_owned(),
                upload_id: upload.upload_id()?.to_owned(),
                begun_at: begun.map(|at| humantime::format_rfc3339_seconds(at).to_string()).unwrap_or_default(),
                age_s: begun.map(|at| now.duration_since(at).unwrap_or_default().as_secs()),
                outcome: Outcome::Left,
            })
        });
        uploads.extend(page_uploads.filter(|upload| is_old(upload, older_than)));
        let next = (page.next_key_marker().map(str::to_owned), page.next_upload_id_marker().map(str::to_owned));
        // A server that says "more" and not from where would be asked the same for ever.
        if page.is_truncated() != Some(true) || next.0.is_none() || next == after {
            break;
        }
        if uploads.len() >= UPLOADS_MAX || seen >= LOOKED_AT_MAX {
            more = true;
            break;
        }
        after = next;
    }
    uploads.sort_by(|a, b| b.age_s.cmp(&a.age_s).then_with(|| a.key.cmp(&b.key)));
    Ok(Found { uploads, more })
}

fn is_old(upload: &Upload, older_than: Duration) -> bool {
    older_than.is_zero() || upload.age_s.is_some_and(|age_s| age_s >= older_than.as_secs())
}

/// Gives up those that were found. Every one is tried; what failed says so in its outcome.
pub async fn abort(bucket: &Bucket, found: Found) -> Found {
    let aborts = found.uploads.into_iter().map(|upload| async move {
        let begun = Begun { key: upload.key.clone(), id: upload.upload_id.clone() };
        let outcome = match bucket.abort(&begun).await {
            Ok(()) => Outcome::Aborted,
            Err(fault) => Outcome::Failed(format!("{fault}: {}", fault.advice())),
        };
        Upload { outcome, ..upload }
    });
    let uploads = futures::stream::iter(aborts).buffered(ABORTS_IN_FLIGHT_MAX).collect().await;
    Found { uploads, ..found }
}
