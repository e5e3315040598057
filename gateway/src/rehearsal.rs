//! What a submit would come to if it came now: the controller's own decision about it, made here on a copy of what is known and thrown
//! away. Nothing is appended, so nothing is promised either: when the real one comes, a dataset may be gone or a limit reached.

use crate::app::App;
use crate::identity::{self, IdempotencyKey};
use crate::problem::{ApiError, Target, refused};
use crate::submit::same_job;
use controller_core::policy::POLICY_NAMES;
use controller_core::{Input, decide_input};
use events_schema::command::{Command, CommandRecord};
use events_schema::fact::Fact;
use events_schema::job::JobSpec;
use events_schema::{Digest, JobId};
use shell::wall_clock;

/// Fails with what a submit would be refused with; the job that it would be answered with, if its key made one before.
pub async fn of_submit(
    app: &App,
    key: Option<&IdempotencyKey>,
    spec: JobSpec,
    body_digest: Digest,
) -> Result<Option<JobId>, ApiError> {
    // What was registered a moment ago counts, as it would for the real one.
    app.catch_up().await?;
    let chance = |error: identity::NoRandomness| ApiError::incident(&error.to_string());
    let job = match key {
        Some(key) => key.job(&app.tenant),
        None => identity::random_job().map_err(chance)?,
    };
    if let Some(known) = same_job(app, &job, &body_digest)? {
        return Ok(Some(known));
    }
    let id = identity::random_command().map_err(chance)?;
    let command = Command::SubmitJob { job: job.clone(), spec: Box::new(spec), body_digest };
    let record = CommandRecord {
        id: id.clone(),
        tenant: app.tenant.clone(),
        at: wall_clock(),
        command,
        trace: None,
        expected: None,
    };
    let facts = {
        let model = app.read();
        // The policy has no say in what is accepted.
        decide_input(model.state(), model.state().at().max(wall_clock()), &Input::Command(record), POLICY_NAMES[0])
    };
    let refusal = facts.into_iter().find_map(|fact| match fact {
        Fact::CommandRefused { command, refusal, .. } if command == id => Some(refusal),
        _ => None,
    });
    match refusal {
        None => Ok(None),
        Some(refusal) => Err(refused(&refusal, Target { kind: "job", name: job.as_str() })),
    }
}
