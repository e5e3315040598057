//! From a request to a durable command and its decision: makes a [`Call`], performs what it wants, and says what came of it.
//!
//! What may be answered is decided in `gateway/call/src/lib.rs`; nothing here waits for anything by itself.
//!
//! Next on a job's path: `gateway/call/src/lib.rs`.

use crate::app::App;
use crate::identity::{self, IdempotencyKey};
use crate::problem::{ApiError, Kind, Repeat, Target, outcome_unknown, passed_over, refused};
use crate::read_model::Model;
use controller_core::version::found;
use ebb_telemetry::{Hop, HopKind, NewHop};
use events_log::AppendError;
use events_schema::batch::{InputStream, to_bytes};
use events_schema::command::{Command, CommandRecord, DemandSignal, Expected, Needs};
use events_schema::fact::Refusal;
use events_schema::job::JobSpec;
use events_schema::{CommandId, Digest, FleetId, JobId, Offset, TimeMs, TraceContext};
use gateway_call::{Answer, Call, In, Out, Outcome, Question};
use shell::wall_clock;
use std::time::{Duration, Instant};

/// How many submits of one key may be refused before it is used up. A refusal does not bind the key, so that a submit can be
/// sent again once its dataset is there.
const ATTEMPTS_MAX: u32 = 64;

/// What became of a command while its sender waited.
#[derive(Debug, PartialEq)]
pub enum Decision {
    /// It had its effect, or had it before.
    Done,
    /// It had none.
    Refused(Refusal),
    /// It is durable; nobody has decided about it yet.
    Undecided(CommandId),
}

/// What became of a submit.
#[derive(Debug, PartialEq)]
pub enum Submitted {
    /// A new job.
    Created(JobId),
    /// The job that this key made before.
    Known(JobId),
    /// Durable, not decided.
    Undecided(JobId, CommandId),
}

/// How often a change that depends on what is there is asked for, while what is there changes in ways that nobody is shown: each
/// time another such change has to come between the look and the decision.
const CHANGES_MAX: u32 = 4;

/// Asks for something other than a job.
pub async fn command(app: &App, command: Command) -> Result<Decision, ApiError> {
    let id = identity::random_command().map_err(|error| ApiError::incident(&error.to_string()))?;
    send(app, id, command, None, Repeat::AfterALook).await
}

/// Asks for a change as long as `holds` refuses nothing. It is asked about what is there now, not what was known here a moment ago,
/// and the command is refused if that changes before it is decided.
pub async fn command_if(
    app: &App,
    command: Command,
    holds: impl Fn(&Model) -> Result<(), ApiError>,
) -> Result<Decision, ApiError> {
    let mut left = CHANGES_MAX;
    loop {
        app.catch_up().await?;
        let expected = {
            let model = app.read();
            holds(&model)?;
            found(model.state(), &command)
        };
        let id = identity::random_command().map_err(|error| ApiError::incident(&error.to_string()))?;
        let decision = send(app, id, command.clone(), Some(expected), Repeat::AfterALook).await?;
        left -= 1;
        if decision != Decision::Refused(Refusal::Changed) || left == 0 {
            return Ok(decision);
        }
    }
}

/// Asks for a job, once per key.
pub async fn job(
    app: &App,
    key: Option<&IdempotencyKey>,
    spec: JobSpec,
    body_digest: Digest,
) -> Result<Submitted, ApiError> {
    let (job, id) = match key {
        Some(key) => {
            let job = key.job(&app.tenant);
            if let Some(known) = same_job(app, &job, &body_digest)? {
                return Ok(Submitted::Known(known));
            }
            (job, fresh_attempt(app, key, &body_digest)?)
        }
        None => {
            let chance = |error: identity::NoRandomness| ApiError::incident(&error.to_string());
            (identity::random_job().map_err(chance)?, identity::random_command().map_err(chance)?)
        }
    };
    let command = Command::SubmitJob { job: job.clone(), spec: Box::new(spec), body_digest };
    let repeat = if key.is_some() { Repeat::UnderItsKey } else { Repeat::AfterALook };
    let decision = send(app, id, command, None, repeat).await?;
    // Somebody else may have used the key at the same time: what stands in the state is the truth.
    let known = same_job(app, &job, &body_digest)?;
    match (decision, known) {
        (Decision::Undecided(id), None) => Ok(Submitted::Undecided(job, id)),
        (Decision::Refused(refusal), None) => Err(refused(&refusal, Target { kind: "job", name: job.as_str() })),
        (Decision::Done, None) => Err(ApiError::incident("a submit was taken, but its job is not in the state")),
        (Decision::Refused(_), Some(job)) => Ok(Submitted::Known(job)),
        (_, Some(job)) => Ok(Submitted::Created(job)),
    }
}

/// The job of a key, if it exists; a refusal if it was made from another body.
pub(crate) fn same_job(app: &App, job: &JobId, body_digest: &Digest) -> Result<Option<JobId>, ApiError> {
    match app.read().state().job(job) {
        None => Ok(None),
        Some(known) if known.body_digest == *body_digest => Ok(Some(job.clone())),
        Some(_) => {
            let expected = format!("a key of its own: this one made job {job} from another body");
            Err(ApiError::of_field(Kind::KeyReused, "Idempotency-Key", "used", expected))
        }
    }
}

/// The command id of the next submit under a key: the first that was not refused.
fn fresh_attempt(app: &App, key: &IdempotencyKey, body_digest: &Digest) -> Result<CommandId, ApiError> {
    let model = app.read();
    let was_refused =
        |id: &CommandId| matches!(model.answers.of_command(id), Some(Answer::Refused { .. } | Answer::SetAside(_)));
    let mut attempts = (0..ATTEMPTS_MAX).map(|attempt| key.command(&app.tenant, body_digest, attempt));
    attempts.find(|id| !was_refused(id)).ok_or_else(|| {
        let expected = format!("a new key: {ATTEMPTS_MAX} submits under this one were refused");
        ApiError::of_field(Kind::LimitReached, "Idempotency-Key", "used up", expected)
    })
}

/// Makes a command durable and waits for what becomes of it.
async fn send(
    app: &App,
    id: CommandId,
    command: Command,
    expected: Option<Expected>,
    repeat: Repeat,
) -> Result<Decision, ApiError> {
    let (writing, trace) = writing(InputStream::Commands);
    let tenant = app.tenant.clone();
    let record = CommandRecord { id: id.clone(), tenant, at: wall_clock(), command, trace, expected };
    match call(app, Question::Command(id.clone()), to_bytes(&record), writing, repeat).await? {
        Some(Answer::Taken) => Ok(Decision::Done),
        Some(Answer::Unremarked) => Err(passed_over()),
        Some(Answer::Refused { refusal, .. }) => Ok(Decision::Refused(refusal)),
        Some(Answer::SetAside(reason)) => Err(set_aside("command", &reason)),
        None => Ok(Decision::Undecided(id)),
    }
}

/// What became of a demand signal.
#[derive(Debug, PartialEq, Eq)]
pub enum SignalDecision {
    /// It counts.
    Accepted,
    /// It is durable; nobody has decided about it yet.
    Undecided,
    /// A newer one was there before, or the fleet is not.
    PassedOver,
}

/// Publishes what a fleet needs.
/// `needed` is the need as it will count.
pub async fn demand(
    app: &App,
    fleet: &FleetId,
    sequence: u64,
    needs: Needs,
    needed: u32,
) -> Result<SignalDecision, ApiError> {
    let (writing, trace) = writing(InputStream::Demand);
    let signal = DemandSignal { trace, ..DemandSignal::new(fleet.clone(), sequence, wall_clock(), needs) };
    let question = Question::Signal { fleet: fleet.clone(), sequence, needed };
    match call(app, question, to_bytes(&signal), writing, Repeat::Freely).await? {
        Some(Answer::Taken) => Ok(SignalDecision::Accepted),
        Some(Answer::Refused { .. } | Answer::Unremarked) => Ok(SignalDecision::PassedOver),
        Some(Answer::SetAside(reason)) => Err(set_aside("signal", &reason)),
        None => Ok(SignalDecision::Undecided),
    }
}

/// The span of a record that is about to be written, and what the record carries of it.
fn writing(stream: InputStream) -> (Option<Hop>, Option<TraceContext>) {
    if !ebb_telemetry::is_on() {
        return (None, None);
    }
    let name = format!("append {}", stream.name());
    let hop = NewHop::new(name, HopKind::Producer).after(ebb_telemetry::current()).begin();
    if let Some(hop) = &hop {
        hop.set("messaging.operation.type", "send");
        hop.set("messaging.destination.name", stream.name());
    }
    let trace = hop.as_ref().and_then(Hop::context);
    (hop, trace)
}

/// Runs a call to its end: what was decided, or `None` if it is durable and undecided.
async fn call(
    app: &App,
    question: Question,
    record: Vec<u8>,
    mut writing: Option<Hop>,
    repeat: Repeat,
) -> Result<Option<Answer>, ApiError> {
    let begun = Instant::now();
    let clock = || TimeMs(u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX));
    let mut bell = app.model.subscribe();
    let (mut call, mut outs) = Call::begin(clock(), question, record, app.limits.call);
    let mut append = None;
    let mut refusal: Option<AppendError> = None;
    let mut wake_at = TimeMs(0);
    loop {
        for out in std::mem::take(&mut outs) {
            match out {
                Out::Append(stream, record) => append = Some(app.log.append(stream.into(), app.cell, record)),
                Out::WakeAt(at) => wake_at = at,
                Out::Answer(Outcome::Decided(answer)) => return Ok(Some(answer)),
                Out::Answer(Outcome::Undecided(_)) => return Ok(None),
                Out::Answer(Outcome::Unknown) => return Err(outcome_unknown(repeat)),
                Out::Answer(Outcome::PassedOver(offset)) => {
                    tracing::error!(%offset, "a command was appended where the controller had read before: `commands` was shortened");
                    return Err(passed_over());
                }
                Out::Answer(Outcome::NotRecorded) => {
                    return Err(
                        refusal.map_or_else(|| ApiError::incident("an append that was not made"), ApiError::from)
                    );
                }
            }
        }
        let appended = async {
            match append.as_mut() {
                Some(append) => append.await,
                None => std::future::pending().await,
            }
        };
        let input = tokio::select! {
            biased;
            appended = appended => {
                append = None;
                writing.take().into_iter().for_each(Hop::end);
                told(appended, &mut refusal)
            }
            // The app holds the sender, so this ends only with a change.
            _ = bell.changed() => In::Changed,
            () = tokio::time::sleep_until((begun + Duration::from_millis(wake_at.0)).into()) => In::Wake,
        };
        outs = call.handle(clock(), input, &app.read().answers);
    }
}

/// What the log says about an append; a refusal is kept for the answer.
fn told(appended: Result<Offset, AppendError>, refusal: &mut Option<AppendError>) -> In {
    match appended {
        Ok(offset) => In::Appended(offset),
        Err(AppendError::Unknown(cause)) => {
            tracing::warn!(%cause, "the log does not know whether it kept a record");
            In::Unknown
        }
        Err(error) => {
            *refusal = Some(error);
            In::NotRecorded
        }
    }
}

fn set_aside(what: &str, reason: &str) -> ApiError {
    tracing::error!(%what, %reason, "the controller set an input aside");
    ApiError::new(
        Kind::InputSetAside,
        format!("the controller could not take this {what} and its operator was told; sending it again will not help"),
    )
}
