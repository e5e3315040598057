//! What was uploaded before a job names it: noted for an installation, looked for and removed. Decides nothing: what may go, the controller says
//! (`controller/core/src/sweep.rs`).

use crate::keys::{NOTES, Upload, notes_of};
use crate::object::Object;
use crate::retry::{RetryPolicy, StoreFault};
use crate::stored::written_at;
use events_schema::TimeMs;
use futures::StreamExt;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use std::sync::Arc;

/// An upload that an installation noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Noted {
    /// What it is.
    pub upload: Upload,
    /// When that was said last, by the store's clock.
    pub at: TimeMs,
}

/// Notes that somebody of an installation wants an upload now. Said before the look that counts: so what was seen is spared for as long as uploads are.
pub async fn note(store: &dyn ObjectStore, upload: Upload, installation: u64) -> object_store::Result<()> {
    store.put(&Path::from(upload.note(installation)), PutPayload::default()).await.map(drop)
}

/// At most `count_max` uploads of an installation that `is_wanted` takes, in no particular order. It is asked about every one, so that one listing also
/// says what is noted at all; nothing is kept of the others.
pub async fn noted(
    store: &Arc<dyn ObjectStore>,
    installation: u64,
    mut is_wanted: impl FnMut(&Noted) -> bool + Send,
    count_max: usize,
) -> Result<Vec<Noted>, StoreFault> {
    let folder = notes_of(installation);
    let mut listed = store.list(Some(&Path::from(folder.as_str())));
    let mut found = Vec::new();
    while let Some(object) = listed.next().await {
        let object = object.map_err(|error| StoreFault::of(&folder, error))?;
        let Some(upload) = Upload::of_note(object.location.as_ref(), installation) else { continue };
        let noted = Noted { upload, at: written_at(&object) };
        if is_wanted(&noted) && found.len() < count_max {
            found.push(noted);
        }
    }
    Ok(found)
}

/// When an installation noted an upload last; nothing if it never did.
pub async fn noted_at(
    store: &Arc<dyn ObjectStore>,
    upload: Upload,
    installation: u64,
) -> Result<Option<TimeMs>, StoreFault> {
    match Object::of_key(store, &upload.note(installation)).head().await {
        Ok(found) => Ok(Some(written_at(&found))),
        Err(StoreFault::Missing { .. }) => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// The other installations that note uploads in this store.
pub async fn others(store: &Arc<dyn ObjectStore>, installation: u64) -> Result<Vec<u64>, StoreFault> {
    let found = store.list_with_delimiter(Some(&Path::from(NOTES))).await;
    let found = found.map_err(|error| StoreFault::of(NOTES, error))?.common_prefixes;
    let named = found.iter().filter_map(|prefix| prefix.parts().next_back().map(|name| name.as_ref().to_owned()));
    Ok(named.filter_map(|name| u64::from_str_radix(&name, 16).ok()).filter(|other| *other != installation).collect())
}

/// Deletes what an installation noted, if `everywhere`, and then its note; what was noted anew since stays. How many bytes were deleted. What is left
/// half-done is found again by the note.
///
/// The look at the note stands directly before the deletion, and one that fails is left for another time. Whoever notes an upload before that look keeps
/// it; whoever looks for it behind the deletion does not find it, uploads it again, and keeps the note. What is left is who notes it and finds it between
/// the two: no store deletes an object on the condition that another one is as it was.
pub async fn forget(
    store: &Arc<dyn ObjectStore>,
    noted: Noted,
    installation: u64,
    everywhere: bool,
) -> Result<Option<u64>, StoreFault> {
    let object = Object::of_key(store, &noted.upload.object());
    let bytes = match object.head().await {
        Ok(found) => Some(found.size).filter(|_| everywhere),
        Err(StoreFault::Missing { .. }) => None,
        Err(fault) => return Err(fault),
    };
    if !is_still(store, noted, installation).await? {
        return Ok(None);
    }
    if bytes.is_some() {
        Object { retry: RetryPolicy::ONCE, ..object }.delete().await?;
    }
    if is_still(store, noted, installation).await? {
        Object::of_key(store, &noted.upload.note(installation)).delete().await?;
    }
    Ok(bytes)
}

/// Whether a note is as it was met in a listing. That tells its time to the millisecond, the look at one object with some stores to the second.
async fn is_still(store: &Arc<dyn ObjectStore>, noted: Noted, installation: u64) -> Result<bool, StoreFault> {
    Ok(noted_at(store, noted.upload, installation).await?.is_some_and(|at| at <= noted.at))
}
