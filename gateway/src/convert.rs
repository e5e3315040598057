//! From the controller's state to what the API shows. The only file that knows both. Pure.

use crate::conditions;
use crate::usage::Usages;
use controller_core::state::troubles::{Damage, Restart, Straggler};
use controller_core::state::{Fleet, Job, JobPhase, Slot};
use controller_core::{Reasons, State};
use events_public::{JobProgress, rfc3339};
use events_schema::dataset::{DatasetInfo, SampleShape};
use events_schema::device::SlotDevice;
use events_schema::fact::{CheckpointInfo, LossNotice, PlanReason, RestartCause, WaitCause};
use events_schema::orders::Telemetry;
use events_schema::report::{ExitCause, Metrics, Outcome};
use events_schema::stride::Stride;
use events_schema::{ExecutorId, FleetId, JobId, SlotId, TimeMs};
use gateway_api as api;

/// What is known of all jobs at one moment, besides their own state.
pub struct Look<'a> {
    reasons: Reasons<'a>,
    usages: &'a Usages,
    now: TimeMs,
}

impl<'a> Look<'a> {
    /// A look at this state.
    #[must_use]
    pub fn at(state: &'a State, usages: &'a Usages, now: TimeMs) -> Self {
        Self { reasons: Reasons::of(state, now), usages, now }
    }
}

/// A job as the API shows it.
#[must_use]
pub fn job(id: &JobId, job: &Job, look: &Look<'_>, telemetry: Option<Telemetry>) -> api::Job {
    let (outcome, failure, ended_at) = match &job.phase {
        JobPhase::Finished { outcome, at } => (Some(self::outcome(outcome)), None, Some(*at)),
        JobPhase::Failed { reason, at } => (None, Some(reason.clone()), Some(*at)),
        JobPhase::Cancelled { at } => (None, None, Some(*at)),
        _ => (None, None, None),
    };
    let usage = look.usages.of(id);
    api::Job {
        id: id.to_string(),
        name: job.spec.name.clone(),
        tenant: job.tenant().to_string(),
        phase: phase(&job.phase).into(),
        spec: api::JobSpec::from(&*job.spec),
        spec_digest: job.spec.digest().to_string(),
        numeric_class: job.class.map(|class| class.to_string()),
        submitted_at: rfc3339(job.accepted_at),
        started_at: usage.started_at.map(rfc3339),
        finished_at: ended_at.map(rfc3339),
        slot_seconds: usage.slot_ms(look.now) as f64 / 1e3,
        slots: job.slots().iter().map(ToString::to_string).collect(),
        workers: job.spec.workers.into(),
        generation: job.active().map(|active| active.proposal.generation.0),
        batches: batches(job),
        progress: telemetry.as_ref().map(progress),
        reason: look.reasons.of_job(id, job).as_ref().map(reason),
        last_scaling: job.scaling.as_ref().map(|scaling| api::Scaling {
            at: rfc3339(scaling.at),
            from: u64::from(scaling.from),
            to: u64::from(scaling.to),
            cause: api::PlanCause::from(&scaling.cause).into(),
        }),
        last_checkpoint: job.last_checkpoint().map(checkpoint),
        last_evaluation: job
            .evaluation
            .as_ref()
            .map(|found| api::Evaluation { step: found.step.0, metrics: metrics(&found.metrics) }),
        outcome,
        failure,
        restarts: job.restarts,
        last_restart: job.restart.as_ref().map(restart),
        damaged_checkpoints: job.damaged.iter().map(damaged).collect(),
        unreadable_checkpoint: job.unreadable.as_ref().map(|found| api::UnreadableCheckpoint {
            at: rfc3339(found.at),
            step: found.step.0,
            generation: found.generation.0,
            reason: found.reason.clone(),
        }),
        last_stall: job.stall.as_ref().map(|stall| api::Stall {
            at: rfc3339(stall.at),
            step: stall.step.0,
            cause: api::StallCause::from(stall.cause).into(),
            tried: stall.tried.iter().map(|remedy| api::StallRemedy::from(*remedy).into()).collect(),
        }),
        last_lost_member: job.lost.as_ref().map(|loss| api::LostMember {
            at: rfc3339(loss.at),
            executor: loss.executor.to_string(),
            slot: loss.slot.to_string(),
            noticed: noticed(&loss.noticed),
        }),
        growth_paused: job.given_up.as_ref().map(|given_up| api::GrowthPaused {
            at: rfc3339(given_up.at),
            until: rfc3339(job.growth.until),
            executor: given_up.executor.to_string(),
            cause: api::GrowthFailure::from(given_up.cause).into(),
        }),
        stragglers: job.stragglers.iter().map(|(executor, known)| straggler(executor, known)).collect(),
        speeds: speeds(job),
        type_times: job.type_times.iter().map(type_time).collect(),
    }
}

/// What was measured of a job, by slots.
fn speeds(job: &Job) -> Vec<api::Speed> {
    let Some(placement) = job.placement() else { return Vec::new() };
    let speed = |(slots, step_us): (&u16, &u64)| {
        let spread = placement.spread_by_size.get(slots);
        api::Speed {
            slots: *slots,
            step_us: *step_us,
            error_micro: spread.map(|spread| spread.error_micro(*step_us)),
            updates: spread.map(|spread| spread.updates),
        }
    };
    placement.step_us_by_size.iter().map(speed).collect()
}

fn type_time(time: &events_schema::slot_type::TypeTime) -> api::TypeTime {
    api::TypeTime { slot_type: time.slot_type.map(|of| of.to_string()), unit_us: time.unit_us }
}

fn batches(job: &Job) -> Option<api::Batches> {
    job.spec.batch_range?;
    let samples = |stride: &Stride| job.spec.samples_of(*stride);
    let now = job.active().map(|active| samples(&active.proposal.stride));
    Some(api::Batches { now, used: job.strides.iter().map(samples).collect() })
}

/// Where a job is in its life.
#[must_use]
pub fn phase(phase: &JobPhase) -> api::JobPhase {
    match phase {
        JobPhase::Queued => api::JobPhase::Queued,
        JobPhase::Starting(_) => api::JobPhase::Starting,
        JobPhase::Running(..) => api::JobPhase::Running,
        JobPhase::Suspending(..) => api::JobPhase::Suspending,
        JobPhase::Suspended => api::JobPhase::Suspended,
        JobPhase::Finished { .. } => api::JobPhase::Finished,
        JobPhase::Failed { .. } => api::JobPhase::Failed,
        JobPhase::Cancelled { .. } => api::JobPhase::Cancelled,
    }
}

fn reason(reason: &PlanReason) -> api::PlanReason {
    let waits = reason.waits.as_ref().map(|waits| match waits {
        WaitCause::Slots { missing } => api::WaitCause::Slots { missing: *missing },
        WaitCause::Job(job) => api::WaitCause::Job(job.to_string()),
        WaitCause::Resume => api::WaitCause::Resume,
        WaitCause::Offers => api::WaitCause::Offers,
        WaitCause::Device => api::WaitCause::Device,
        WaitCause::Class(class) => api::WaitCause::Class(class.to_string()),
        WaitCause::Speed => api::WaitCause::Speed,
        WaitCause::Type => api::WaitCause::Type,
        WaitCause::Quota { missing } => api::WaitCause::Quota { missing: *missing },
        WaitCause::Link(slow) => api::WaitCause::Link(api::SlowLink {
            server: slow.server.to_string(),
            bytes_per_s: slow.bytes_per_s,
            gradient_bytes_per_s: slow.gradient_bytes_per_s,
            beta_milli: slow.beta_milli,
        }),
        WaitCause::Backoff { until } => api::WaitCause::Backoff { until: rfc3339(*until) },
    });
    api::PlanReason { policy: reason.policy.clone(), cause: api::PlanCause::from(&reason.cause).into(), waits }
}

/// A checkpoint that counts.
#[must_use]
pub fn checkpoint(checkpoint: &CheckpointInfo) -> api::Checkpoint {
    api::Checkpoint {
        step: checkpoint.step.0,
        generation: checkpoint.generation.0,
        manifest_key: checkpoint.manifest_key.clone(),
        replica_digest: checkpoint.replica_digest.to_string(),
        bytes: checkpoint.bytes,
    }
}

fn noticed(notice: &LossNotice) -> api::LossNotice {
    match notice {
        LossNotice::Exit(cause) => api::LossNotice::Exit(match cause {
            ExitCause::Left => api::ExitCause::Left,
            ExitCause::Status(status) => api::ExitCause::Status(*status),
            ExitCause::Signal(signal) => api::ExitCause::Signal(*signal),
            ExitCause::Killed => api::ExitCause::Killed,
            ExitCause::NotStarted(why) => api::ExitCause::NotStarted(why.clone()),
            ExitCause::Silent => api::ExitCause::Silent,
            ExitCause::DeviceLost(what) => api::ExitCause::DeviceLost(what.clone()),
            ExitCause::Failed { said, .. } => api::ExitCause::Failed(said.clone()),
        }),
        LossNotice::Silence => api::LossNotice::Silence,
        LossNotice::Lease => api::LossNotice::Lease,
        LossNotice::Agent => api::LossNotice::Agent,
        LossNotice::Link => api::LossNotice::Link,
        LossNotice::Stall(cause) => api::LossNotice::Stall(api::StallCause::from(*cause).into()),
    }
}

fn restart(restart: &Restart) -> api::Restart {
    let names = |executors: &[ExecutorId]| executors.iter().map(ToString::to_string).collect();
    let (at, from_step) = (rfc3339(restart.at), restart.from.0);
    let shown = |cause: api::RestartCause, executors| api::Restart {
        at,
        from_step,
        cause: cause.into(),
        executors,
        noticed: None,
        stall: None,
    };
    match &restart.cause {
        RestartCause::Lost { executor, noticed: notice, .. } => api::Restart {
            noticed: Some(noticed(notice)),
            ..shown(api::RestartCause::Lost, names(std::slice::from_ref(executor)))
        },
        RestartCause::Left => shown(api::RestartCause::Left, Vec::new()),
        RestartCause::Stalled { cause, blamed } => api::Restart {
            stall: Some(api::StallCause::from(*cause).into()),
            ..shown(api::RestartCause::Stalled, names(blamed))
        },
        RestartCause::Differed { minority } => shown(api::RestartCause::Differed, names(minority)),
    }
}

fn straggler(executor: &ExecutorId, known: &Straggler) -> api::Straggler {
    api::Straggler {
        executor: executor.to_string(),
        slot: known.slot.to_string(),
        since: rfc3339(known.since),
        unit_us: known.unit_us,
        peers_unit_us: known.peers_unit_us,
        cause: known.cause.map(|cause| api::StragglerCause::from(cause).into()),
    }
}

fn damaged(found: &Damage) -> api::DamagedCheckpoint {
    api::DamagedCheckpoint {
        at: rfc3339(found.at),
        step: found.step.0,
        generation: found.generation.0,
        object: found.object.clone(),
        reason: found.reason.clone(),
        instead: found.instead.0,
    }
}

/// A job with the name of its state: the same as long as nothing but its running numbers changes.
#[must_use]
pub fn tagged(job: api::Job) -> (String, api::Job) {
    let still = api::Job { progress: None, slot_seconds: 0.0, ..job };
    let tag = conditions::etag(&still);
    (tag, api::Job { progress: job.progress, slot_seconds: job.slot_seconds, ..still })
}

/// A dataset as the API shows it.
#[must_use]
pub fn dataset(dataset: &DatasetInfo) -> api::Dataset {
    let sample = match dataset.sample.clone() {
        SampleShape::Classified { shape, classes } => api::Sample::Classified { shape, classes },
        SampleShape::Tokens { length, vocabulary } => api::Sample::Tokens { length, vocabulary },
    };
    api::Dataset {
        name: dataset.name.to_string(),
        sample,
        rows: dataset.rows,
        metadata_key: dataset.metadata_key.clone(),
        metadata_digest: dataset.metadata_digest.to_string(),
    }
}

/// What a job's stream says of its progress.
#[must_use]
pub fn job_progress(telemetry: &Telemetry) -> JobProgress {
    JobProgress {
        job: telemetry.job.to_string(),
        step: telemetry.step.0,
        steps_total: telemetry.steps_total,
        epoch: telemetry.epoch,
        loss: telemetry.loss,
        samples_per_second: telemetry.samples_per_second,
        step_us: telemetry.step_us,
        members: telemetry.members,
        data_wait_us: telemetry.data_wait_us,
    }
}

fn progress(telemetry: &Telemetry) -> api::Progress {
    api::Progress {
        checkpoint_every_ms: telemetry.checkpoint_every_ms,
        step: telemetry.step.0,
        steps_total: telemetry.steps_total,
        epoch: telemetry.epoch,
        loss: telemetry.loss,
        samples_per_second: telemetry.samples_per_second,
        step_us: telemetry.step_us,
        members: telemetry.members,
        data_wait_us: telemetry.data_wait_us,
    }
}

fn outcome(outcome: &Outcome) -> api::Outcome {
    api::Outcome {
        step: outcome.step.0,
        model_key: outcome.model_key.clone(),
        model_digest: outcome.model_digest.to_string(),
        train_loss_micro: outcome.train_loss_micro,
        train_loss: outcome.train_loss_micro.map(from_micro),
        metrics: outcome.metrics.as_ref().map(metrics),
    }
}

/// What a job's code did not measure is not shown as if it were 0.
fn metrics(Metrics { loss_micro, correct, count, named }: &Metrics) -> api::Metrics {
    let means = named.iter().flatten().map(|(name, mean)| (name.clone(), finite(mean.value()))).collect();
    let measured = |name: &str| named.as_ref().is_none_or(|named| named.contains_key(name));
    let accuracy = *correct as f64 / (*count).max(1) as f64;
    api::Metrics {
        loss_micro: *loss_micro,
        correct: *correct,
        count: *count,
        loss: measured("loss").then(|| from_micro(*loss_micro)),
        accuracy: measured("correct").then_some(accuracy),
        means,
    }
}

/// JSON has no other numbers.
fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

fn from_micro(micro: i64) -> f64 {
    micro as f64 / 1e6
}

/// A fleet as the API shows it.
#[must_use]
pub fn fleet(state: &State, name: &FleetId, fleet: &Fleet) -> api::Fleet {
    api::Fleet {
        name: name.to_string(),
        offers: api::Offers::from(fleet.offers).into(),
        reclaim_deadline_ms: fleet.reclaim_deadline_ms,
        needed: fleet.sequence.map(|_| fleet.needed),
        sequence: fleet.sequence,
        recalled: fleet.recalled.map(|_| fleet.held() as u32),
        forecast: state.past(name).into_iter().flat_map(|past| past.forecasts(state.at()).map(forecast)).collect(),
        slots: fleet.slots.iter().map(|id| slot(state, id, state.slot(id))).collect(),
    }
}

fn forecast(of: controller_core::state::Forecast) -> api::FleetForecast {
    let controller_core::state::Forecast { in_ms, p50_slots, p90_slots, error_milli, covered_milli, is_declared } = of;
    api::FleetForecast { in_ms, p50: p50_slots, p90: p90_slots, error_milli, covered_milli, declared: is_declared }
}

/// All slots of all servers, declared by a fleet or not, in order. A list asks which of them it shows before [`slot`] makes them ready to be shown.
pub fn slots(state: &State) -> impl Iterator<Item = (SlotId, Option<&Slot>)> {
    let of_servers = state
        .servers()
        .flat_map(|(server, facts)| (0..facts.slots).map(|index| SlotId { server: server.clone(), index }));
    let mut of_servers = of_servers.peekable();
    let mut known = state.slots().peekable();
    std::iter::from_fn(move || {
        let next = known.peek().map(|(id, _)| *id);
        match of_servers.next_if(|id| next.is_none_or(|next| id <= next)) {
            Some(id) => {
                let slot = known.next_if(|(next, _)| **next == id).map(|(_, slot)| slot);
                Some((id, slot))
            }
            None => known.next().map(|(id, slot)| (id.clone(), Some(slot))),
        }
    })
}

/// A slot as the API shows it.
#[must_use]
pub fn slot(state: &State, id: &SlotId, slot: Option<&Slot>) -> api::Slot {
    let server = state.server(&id.server).filter(|server| server.connected && id.index < server.slots);
    api::Slot {
        slot: id.to_string(),
        fleet: slot.and_then(|slot| slot.fleet.as_ref().map(ToString::to_string)),
        state: slot_state(state, id),
        job: slot.and_then(|slot| slot.job.as_ref().map(ToString::to_string)),
        executor: slot.and_then(|slot| slot.executor.as_ref().map(ToString::to_string)),
        class: server.map(|server| server.class.to_string()),
        slot_type: server.and_then(|server| server.kind(id.index).slot_type).map(|of| of.to_string()),
        device: server.and_then(|server| server.device(id.index)).map(device),
        quarantined: slot.and_then(|slot| slot.unfit().cloned()),
        guest: state.slot(&id.guest()).map(|guest| slot_guest(state, guest, slot)),
    }
}

fn slot_guest(state: &State, guest: &Slot, host: Option<&Slot>) -> api::SlotGuest {
    let host = host.and_then(|slot| slot.executor.as_ref()).and_then(|executor| state.executor(executor));
    api::SlotGuest {
        job: guest.job.as_ref().map(ToString::to_string),
        executor: guest.executor.as_ref().map(ToString::to_string),
        host_busy_percent: host.and_then(|executor| executor.busy_percent),
    }
}

fn device(device: &SlotDevice) -> api::SlotDevice {
    let SlotDevice { uuid, name, memory_bytes, driver } = device.clone();
    api::SlotDevice { uuid, name, memory_bytes, driver }
}

/// What a slot is doing.
#[must_use]
pub fn slot_state(state: &State, id: &SlotId) -> api::Word<api::SlotState> {
    let shown = state.slot_shown(id);
    api::SlotState::parse(shown).map_or_else(|| api::Word::Other(shown.to_owned()), api::Word::Known)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use events_schema::fact::{Fact, GrowthFailure, LossNotice, StallCause, StallRemedy, StragglerCause};
    use events_schema::job::JobSpec;
    use events_schema::report::{ExitCause, Mean};
    use events_schema::{Cell, Digest, Step};
    use serde_json::json;

    /// A job's own code measures what it wants; what it did not measure is not shown as if it were 0.
    #[test]
    fn an_evaluation_shows_what_was_measured() {
        let by_name = |named: &[(&str, f64)]| Metrics {
            loss_micro: 250_000,
            correct: 0,
            count: 4,
            named: Some(named.iter().map(|(name, mean)| ((*name).to_owned(), Mean::of(*mean))).collect()),
        };
        let of_ebb = metrics(&Metrics { loss_micro: 250_000, correct: 3, count: 4, named: None });
        assert_eq!((of_ebb.loss, of_ebb.accuracy, of_ebb.means.len()), (Some(0.25), Some(0.75), 0));
        let shown = metrics(&by_name(&[("loss", 0.25), ("perplexity", f64::INFINITY)]));
        assert_eq!((shown.loss, shown.accuracy), (Some(0.25), None));
        assert_eq!(shown.means, [("loss".to_owned(), Some(0.25)), ("perplexity".to_owned(), None)].into());
        let shown = metrics(&by_name(&[("iou", 0.5)]));
        assert_eq!((shown.loss, shown.accuracy), (None, None));
        assert_eq!(serde_json::to_value(&shown).unwrap()["means"], json!({"iou": 0.5}));
    }

    #[test]
    fn a_loss_that_nobody_measured_is_null_and_there() {
        let step = Step(2);
        let (model_key, model_digest) = ("k".to_owned(), Digest::of(b"m"));
        let of_gang = Outcome { step, model_key, model_digest, train_loss_micro: None, metrics: None };
        let shown = |ended: &Outcome| serde_json::to_value(outcome(ended)).unwrap();
        let gang = shown(&of_gang);
        // Readers are promised that the fields are there.
        for name in ["train_loss", "train_loss_micro"] {
            assert_eq!(gang.get(name), Some(&json!(null)), "{gang}");
        }
        let trained = shown(&Outcome { train_loss_micro: Some(0), ..of_gang });
        assert_eq!((&trained["train_loss"], &trained["train_loss_micro"]), (&json!(0.0), &json!(0)));
    }

    /// Whatever its user has to know stands on the job.
    #[test]
    fn a_job_shows_what_befell_it() {
        let (mut state, usages) = (State::new(Cell(0)), Usages::default());
        let document =
            json!({"name": "a", "model": {"kind": "mlp"}, "dataset": "digits", "batch_size": 8, "epochs": 3});
        let id = JobId::parse("job-a").unwrap();
        let (executor, slot) =
            (ExecutorId { job: id.clone(), number: 3 }, SlotId { server: "host".parse().unwrap(), index: 2 });
        let facts = [
            Fact::JobAccepted {
                job: id.clone(),
                tenant: "local".parse().unwrap(),
                command: "cmd-1".parse().unwrap(),
                spec: Box::new(JobSpec::parse(&document).unwrap()),
                body_digest: Digest([1; 32]),
            },
            Fact::JobStalled {
                job: id.clone(),
                step: Step(7),
                cause: StallCause::Store,
                blamed: vec![],
                remedy: StallRemedy::Wait,
                anew: Some(true),
            },
            Fact::MemberLost {
                executor: executor.clone(),
                slot: slot.clone(),
                noticed: LossNotice::Exit(ExitCause::Signal(9)),
            },
            Fact::GrowthPaused {
                job: id.clone(),
                until: TimeMs(60_000),
                executor: executor.clone(),
                cause: GrowthFailure::Slow,
            },
            Fact::MemberStraggles { executor, slot, unit_us: 90, peers_unit_us: 30, cause: Some(StragglerCause::Data) },
        ];
        facts.iter().for_each(|fact| state.apply(TimeMs(1_000), fact));
        let job = state.job(&id).unwrap();
        let shown =
            serde_json::to_value(super::job(&id, job, &Look::at(&state, &usages, TimeMs(1_000)), None)).unwrap();
        let at = "1970-01-01T00:00:01.000Z";
        assert_eq!(shown["last_stall"], json!({"at": at, "step": 7, "cause": "store", "tried": ["wait"]}));
        let lost = json!({"at": at, "executor": "job-a/e3", "slot": "host/2", "noticed": {"exit": {"signal": 9}}});
        assert_eq!(shown["last_lost_member"], lost);
        let until = "1970-01-01T00:01:00.000Z";
        assert_eq!(shown["growth_paused"], json!({"at": at, "until": until, "executor": "job-a/e3", "cause": "slow"}));
        assert_eq!(
            shown["stragglers"],
            json!([{"executor": "job-a/e3", "slot": "host/2", "since": at, "unit_us": 90, "peers_unit_us": 30, "cause": "data"}])
        );
        let (before, _) = tagged(super::job(&id, job, &Look::at(&state, &usages, TimeMs(1_000)), None));
        state.apply(TimeMs(2_000), &Fact::MemberKeepsUp { executor: ExecutorId { job: id.clone(), number: 3 } });
        let after = super::job(&id, state.job(&id).unwrap(), &Look::at(&state, &usages, TimeMs(1_000)), None);
        assert!(after.stragglers.is_empty() && tagged(after).0 != before);
    }

    /// As many of a server as it has, and those beside them that a fleet declares of servers that were never seen, or beyond what they have.
    #[test]
    fn slots_are_in_order_whoever_knows_of_them() {
        let mut state = State::new(Cell(0));
        let slot = |text: &str| text.parse::<SlotId>().unwrap();
        let joined = |server: &str| Fact::AgentJoined {
            server: server.parse().unwrap(),
            incarnation: 1,
            slots: 2,
            class: Digest([1; 32]),
            address: "http://127.0.0.1:1".into(),
            devices: Vec::new(),
            guests: false,
            slot_type: None,
        };
        let declared = Fact::FleetDeclared {
            fleet: "chat".parse().unwrap(),
            slots: ["a/0", "b/1", "b/3", "d/0"].map(slot).to_vec(),
            offers: events_schema::command::OfferMode::ByDemand,
            reclaim_deadline_ms: 1_000,
        };
        [joined("b"), joined("c"), declared].iter().for_each(|fact| state.apply(TimeMs(1_000), fact));
        let all: Vec<(String, bool)> = slots(&state).map(|(id, known)| (id.to_string(), known.is_some())).collect();
        let told = [
            ("a/0", true),
            ("b/0", false),
            ("b/1", true),
            ("b/3", true),
            ("c/0", false),
            ("c/1", false),
            ("d/0", true),
        ];
        assert_eq!(all, told.map(|(id, known)| (id.to_owned(), known)));
    }

    /// A reader that has the tag knows everything but the numbers that run.
    #[test]
    fn equal_tags_say_that_only_running_numbers_differ() {
        let now = api::Job { id: "job-a".into(), slot_seconds: 1.0, ..api::Job::default() };
        let later = api::Job { slot_seconds: 2.0, progress: Some(api::Progress::default()), ..now.clone() };
        let etag = |job: &api::Job| tagged(job.clone()).0;
        assert_eq!(etag(&now), etag(&later));
        assert_ne!(etag(&now), etag(&api::Job { restarts: 1, ..now.clone() }));
        assert_eq!(tagged(later.clone()).1, later, "all that is shown is shown");
        assert_ne!(etag(&now), etag(&api::Job { started_at: Some("t".into()), ..now.clone() }));
    }
}
