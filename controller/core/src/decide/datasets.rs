//! Commands about datasets: register and remove.

use super::Draft;
use crate::limits::{DATASETS_MAX, REASON_CHARS_MAX};
use events_schema::DatasetName;
use events_schema::dataset::DatasetInfo;
use events_schema::fact::{Fact, Refusal};
use events_schema::fields::Problems;
use events_schema::job::JobSpec;

/// How alike (Jaro-Winkler, 0 to 1) a known name has to be to be suggested.
const NEAREST_MIN: f64 = 0.8;

/// The refusal of a dataset nobody registered, with the nearest one that somebody did.
pub(super) fn unknown(draft: &Draft<'_>, name: &DatasetName) -> Refusal {
    let known = draft.state.datasets().map(|dataset| dataset.name.as_str());
    Refusal::Unknown { kind: "dataset".to_owned(), name: name.to_string(), nearest: nearest(name.as_str(), known) }
}

/// The most alike of some names; the first of equals.
pub(super) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<String> {
    let scored = known.map(|candidate| ((strsim::jaro_winkler(name, candidate) * 1e6) as u64, candidate));
    let best = scored.reduce(|best, next| if next.0 > best.0 { next } else { best })?;
    (best.0 >= (NEAREST_MIN * 1e6) as u64).then(|| best.1.to_owned())
}

pub(super) fn register(draft: &mut Draft<'_>, dataset: &DatasetInfo) -> Result<(), Refusal> {
    match draft.state.dataset(&dataset.name) {
        Some(known) if known == dataset => Ok(()),
        Some(known) => Err(Refusal::Exists {
            kind: "dataset".to_owned(),
            name: dataset.name.to_string(),
            holder: format!("{} rows, metadata {}", known.rows, known.metadata_digest),
        }),
        None if draft.state.datasets.len() as u64 >= DATASETS_MAX => {
            Err(Refusal::Limit { what: "datasets".to_owned(), limit: DATASETS_MAX })
        }
        None => {
            dataset.sample.ensure_fit().map_err(unfit)?;
            ensure_own(&dataset.metadata_key)?;
            draft.emit(Fact::DatasetRegistered { dataset: dataset.clone() });
            Ok(())
        }
    }
}

/// Executors read what is registered with the rights of their store: nothing but what an import wrote may be named.
fn ensure_own(metadata_key: &str) -> Result<(), Refusal> {
    if storage_keys::is_dataset_object(metadata_key) {
        return Ok(());
    }
    let (field, value) = ("metadata_key".to_owned(), metadata_key.chars().take(REASON_CHARS_MAX).collect());
    let expected =
        "the key of a dataset's metadata as an import writes it, `datasets/NAME/metadata-DIGEST.json`".to_owned();
    Err(Refusal::Unfit { field, value, expected })
}

/// The first of the problems, which says enough: the doors tell all of them.
fn unfit(Problems(problems): Problems) -> Refusal {
    let (field, value, expected) =
        problems.into_iter().next().map_or_else(Default::default, |p| (p.field, p.value, p.expected));
    Refusal::Unfit { field, value, expected }
}

pub(super) fn remove(draft: &mut Draft<'_>, name: &DatasetName) -> Result<(), Refusal> {
    if draft.state.dataset(name).is_none() {
        return Err(unknown(draft, name));
    }
    let reads = |spec: &JobSpec| {
        let held_out = spec.evaluation.as_ref().and_then(|evaluation| evaluation.dataset.as_ref());
        spec.dataset.as_ref() == Some(name) || held_out == Some(name)
    };
    let unfinished = draft.state.live.iter().find(|(_, job)| reads(&job.spec)).map(|(id, _)| id);
    // Orders for an executor carry its dataset until it is gone, also when its job has ended.
    let leaving = || {
        draft
            .state
            .executors()
            .map(|(id, _)| &id.job)
            .find(|job| draft.state.job(job).is_some_and(|job| reads(&job.spec)))
    };
    if let Some(job) = unfinished.or_else(leaving) {
        return Err(Refusal::InUse { by: format!("job {job}") });
    }
    draft.emit(Fact::DatasetRemoved { dataset: name.clone() });
    Ok(())
}
