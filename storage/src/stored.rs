//! What lies in the store for a job, and its removal piece by piece: the sweep's hands. Decides nothing: what may go, the
//! controller says (`controller/core/src/sweep.rs`).
//!
//! Parts of uploads that were never completed are in no listing that an object store offers here; the bucket's own rule for
//! abandoned uploads removes those, or `ebb store uploads` (`storage/bucket`).

use crate::keys;
use crate::object::Object;
use crate::retry::StoreFault;
use events_schema::{JobId, TimeMs};
use futures::StreamExt;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};
use std::sync::Arc;

/// An object as a listing shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredObject {
    /// Its key.
    pub key: String,
    /// When it was complete, by the store's clock.
    pub written_at: TimeMs,
    /// Its size.
    pub bytes: u64,
}

/// At most `count_max` objects of a job that are wanted, in no particular order. The rest of the listing is not kept.
pub async fn objects_of_job(
    store: &Arc<dyn ObjectStore>,
    job: &JobId,
    wanted: impl Fn(&StoredObject) -> bool + Send,
    count_max: usize,
) -> Result<Vec<StoredObject>, StoreFault> {
    let folder = keys::job(job);
    let mut listed = store.list(Some(&Path::from(folder.as_str())));
    let mut found = Vec::new();
    while found.len() < count_max
        && let Some(object) = listed.next().await
    {
        let object = object.map_err(|error| StoreFault::of(&folder, error))?;
        let object =
            StoredObject { key: object.location.to_string(), written_at: written_at(&object), bytes: object.size };
        if wanted(&object) {
            found.push(object);
        }
    }
    Ok(found)
}

/// When an object was complete, by the store's clock.
pub(crate) fn written_at(object: &ObjectMeta) -> TimeMs {
    TimeMs(u64::try_from(object.last_modified.timestamp_millis()).unwrap_or(0))
}

/// Deletes an object that [`objects_of_job`] gave; one that is gone is deleted.
pub async fn delete_object(store: &Arc<dyn ObjectStore>, object: &StoredObject) -> Result<(), StoreFault> {
    Object::of_key(store, &object.key).delete().await
}
