//! Outstanding work for the shell that is not orders: derived from state, never stored, safe to do twice.

use crate::state::State;
use events_schema::JobId;
use std::ops::Bound;
use storage_keys::CheckpointName;

/// A checkpoint whose shards and manifest may be deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetiredObject<'a> {
    /// Number of its retirement; a shell that did everything below one asks from there on.
    pub number: u64,
    /// The job that wrote it.
    pub job: &'a JobId,
    /// What its objects are named by.
    pub name: CheckpointName,
}

/// Checkpoints that were retired under `from` or a higher number, as far as they are remembered
/// ([`crate::state::bounds::RETIRED_MAX`]). Deleting one twice does no harm. A key that is none of its job's checkpoints, which an earlier build
/// took from a report, is nobody's to delete.
pub fn retired_objects(state: &State, from: u64) -> impl Iterator<Item = RetiredObject<'_>> {
    state.retired.range_from(Bound::Included(&from)).filter_map(|(number, retired)| {
        let name = CheckpointName::of_manifest(&retired.manifest_key).filter(|name| name.job == retired.job)?;
        Some(RetiredObject { number: *number, job: &retired.job, name })
    })
}

/// The number that the next retirement will have.
#[must_use]
pub fn next_retirement(state: &State) -> u64 {
    state.counters.retirements
}
