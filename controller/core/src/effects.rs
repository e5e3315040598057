//! Outstanding work for the shell that is not orders: derived from state, never stored, safe to do twice.

use crate::state::State;
use events_schema::JobId;
use std::ops::Bound;

/// A checkpoint whose shards and manifest may be deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetiredObject<'a> {
    /// Number of its retirement; a shell that did everything below one asks from there on.
    pub number: u64,
    /// Whose.
    pub job: &'a JobId,
    /// Key of its manifest, which names the shards.
    pub manifest_key: &'a str,
}

/// Checkpoints that were retired under `from` or a higher number, as far as they are remembered
/// ([`crate::limits::RETIRED_MAX`]). Deleting one twice does no harm.
pub fn retired_objects(state: &State, from: u64) -> impl Iterator<Item = RetiredObject<'_>> {
    state.retired.range_from(Bound::Included(&from)).map(|(number, retired)| RetiredObject {
        number: *number,
        job: &retired.job,
        manifest_key: &retired.manifest_key,
    })
}
