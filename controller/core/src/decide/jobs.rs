//! Commands about jobs: submit, cancel, suspend, resume. What then happens to executors and slots, [`super::generations`] says.
//!
//! Next on the path: the fact `JobAccepted` in `apply/jobs.rs`, then `decide/plan.rs`.

use super::{Draft, retrains};
use crate::limits::JOBS_LIVE_MAX;
use crate::state::{Job, JobPhase};
use events_schema::command::CommandRecord;
use events_schema::dataset::{DatasetInfo, SampleShape};
use events_schema::fact::{Fact, Refusal};
use events_schema::job::{JobSpec, ModelSpec, Tail};
use events_schema::{DatasetName, Digest, JobId, TenantId};

type Done = Result<(), Refusal>;

pub(super) fn submit(
    draft: &mut Draft<'_>,
    record: &CommandRecord,
    job: &JobId,
    spec: &JobSpec,
    body_digest: Digest,
) -> Done {
    if draft.state.job(job).is_some() {
        return Err(Refusal::Exists {
            kind: "job".to_owned(),
            name: job.to_string(),
            holder: "another submit".to_owned(),
        });
    }
    if draft.state.live_len() as u64 >= JOBS_LIVE_MAX {
        return Err(Refusal::Limit { what: "unfinished jobs".to_owned(), limit: JOBS_LIVE_MAX });
    }
    if spec.gang().is_some() {
        // Its data is its program's matter.
        return accept(draft, record, job, spec, body_digest);
    }
    // A job that names none brings its own rows, of which its code alone knows.
    let dataset = spec.dataset.as_ref().map(|name| known_dataset(draft, name)).transpose()?;
    if let Some(dataset) = &dataset {
        fits_model(&spec.model, &dataset.sample)?;
    }
    if let Some(held_out) = spec.evaluation.as_ref().and_then(|evaluation| evaluation.dataset.as_ref()) {
        let held_out = known_dataset(draft, held_out).map_err(of_evaluation)?;
        if let Some(dataset) = &dataset {
            fits_held_out(dataset, &held_out)?;
        }
    }
    if let Some(dataset) = &dataset {
        fits_rows(spec, dataset)?;
    }
    retrains::ensure_fits(&draft.state, &record.tenant, spec)?;
    accept(draft, record, job, spec, body_digest)
}

fn accept(draft: &mut Draft<'_>, record: &CommandRecord, job: &JobId, spec: &JobSpec, body_digest: Digest) -> Done {
    draft.emit(Fact::JobAccepted {
        job: job.clone(),
        tenant: record.tenant.clone(),
        command: record.id.clone(),
        spec: Box::new(spec.clone()),
        body_digest,
    });
    Ok(())
}

/// The job holds nothing any more and waits for its user.
pub(super) fn suspended(draft: &mut Draft<'_>, job: &JobId) {
    let attained_slot_ms = draft.state.job(job).map(|known| known.attained_slot_ms(draft.at));
    draft.emit(Fact::JobSuspended { job: job.clone(), attained_slot_ms });
}

fn known_dataset(draft: &Draft<'_>, name: &DatasetName) -> Result<DatasetInfo, Refusal> {
    draft.state.dataset(name).cloned().ok_or_else(|| super::datasets::unknown(draft, name))
}

/// Whether rows of both are alike.
fn fits_held_out(dataset: &DatasetInfo, held_out: &DatasetInfo) -> Done {
    if held_out.sample == dataset.sample {
        return Ok(());
    }
    Err(Refusal::Unfit {
        field: "evaluation.dataset".to_owned(),
        value: held_out.name.to_string(),
        expected: format!("a dataset whose rows are like those of `{}`: {}", dataset.name, describe(&dataset.sample)),
    })
}

/// Whether a model can read such rows, as far as shapes tell.
fn fits_model(model: &ModelSpec, sample: &SampleShape) -> Done {
    let (field, value, expected) = match (model, sample) {
        (ModelSpec::Mlp { .. }, SampleShape::Classified { .. }) => return Ok(()),
        // Only its code knows what it can read.
        (ModelSpec::Torch(_) | ModelSpec::Command(_), _) => return Ok(()),
        // It only counts them.
        (ModelSpec::Synthetic { .. }, _) => return Ok(()),
        (ModelSpec::Cnn { .. }, SampleShape::Classified { shape, .. }) if shape.len() == 3 => return Ok(()),
        (ModelSpec::Gpt { context, .. }, SampleShape::Tokens { length, .. }) if length > context => return Ok(()),
        (ModelSpec::Gpt { context, .. }, SampleShape::Tokens { length, .. }) => (
            "model.context",
            context.to_string(),
            format!("at most {}: rows of the dataset have {length} tokens", length.saturating_sub(1)),
        ),
        (ModelSpec::Mlp { .. }, SampleShape::Tokens { .. }) => {
            ("dataset", describe(sample), "classified samples, which the model `mlp` reads".to_owned())
        }
        (ModelSpec::Cnn { .. }, _) => (
            "dataset",
            describe(sample),
            "classified samples of shape [channels, height, width], which the model `cnn` reads".to_owned(),
        ),
        (ModelSpec::Gpt { .. }, SampleShape::Classified { .. }) => {
            ("dataset", describe(sample), "tokens, which the model `gpt` reads".to_owned())
        }
    };
    Err(Refusal::Unfit { field: field.to_owned(), value, expected })
}

/// The same refusal about the held-out dataset: a job names two.
fn of_evaluation(refusal: Refusal) -> Refusal {
    match refusal {
        Refusal::Unknown { name, nearest, .. } => Refusal::Unfit {
            field: "evaluation.dataset".to_owned(),
            value: name,
            expected: nearest.map_or_else(
                || "a dataset that is registered".to_owned(),
                |near| format!("a dataset that is registered; did you mean `{near}`?"),
            ),
        },
        other => other,
    }
}

/// Whether the dataset fills a step, where a short one is left out.
fn fits_rows(spec: &JobSpec, dataset: &DatasetInfo) -> Done {
    let needed = u64::from(spec.workers.max) * u64::from(spec.batch_size);
    if spec.tail != Tail::Drop || dataset.rows >= needed {
        return Ok(());
    }
    Err(Refusal::Unfit {
        field: "batch_size".to_owned(),
        value: spec.batch_size.to_string(),
        expected: format!(
            "at most {}: `{}` has {} rows for {} logical workers, and `tail: drop` leaves out a step that is not full; or use `tail: short`",
            dataset.rows / u64::from(spec.workers.max),
            dataset.name,
            dataset.rows,
            spec.workers.max
        ),
    })
}

fn describe(sample: &SampleShape) -> String {
    match sample {
        SampleShape::Classified { shape, classes } => {
            format!("classified samples of shape {shape:?} in {classes} classes")
        }
        SampleShape::Tokens { length, vocabulary } => format!("rows of {length} tokens out of {vocabulary}"),
    }
}

/// A job that this tenant submitted; somebody else's is as unknown as one that never was.
fn own<'a>(draft: &'a Draft<'_>, tenant: &TenantId, id: &JobId) -> Result<&'a Job, Refusal> {
    draft.state.job(id).filter(|job| job.submitter == *tenant).ok_or_else(|| Refusal::Unknown {
        kind: "job".to_owned(),
        name: id.to_string(),
        nearest: None,
    })
}

fn wrong_phase(job: &Job, expected: &str) -> Refusal {
    Refusal::WrongPhase { phase: job.phase.name().to_owned(), expected: expected.to_owned() }
}

pub(super) fn cancel(draft: &mut Draft<'_>, tenant: &TenantId, id: &JobId) -> Done {
    let job = own(draft, tenant, id)?;
    if job.phase.is_terminal() {
        return Err(wrong_phase(job, "a job that has not ended"));
    }
    draft.emit(Fact::JobCancelled { job: id.clone() });
    Ok(())
}

pub(super) fn suspend(draft: &mut Draft<'_>, tenant: &TenantId, id: &JobId) -> Done {
    let job = own(draft, tenant, id)?;
    match job.phase {
        JobPhase::Queued => suspended(draft, id),
        JobPhase::Starting(_) | JobPhase::Running(..) => draft.emit(Fact::JobSuspending { job: id.clone() }),
        _ => return Err(wrong_phase(job, "queued, starting or running")),
    }
    Ok(())
}

pub(super) fn resume(draft: &mut Draft<'_>, tenant: &TenantId, id: &JobId) -> Done {
    let job = own(draft, tenant, id)?;
    if job.phase != JobPhase::Suspended {
        return Err(wrong_phase(job, "suspended"));
    }
    draft.emit(Fact::JobResumed { job: id.clone() });
    Ok(())
}
