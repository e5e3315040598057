//! What a fact says in public: total and pure. Nothing of a fact is published unless it is named here. Next: `documents.rs`.

use crate::envelope::rfc3339;
use crate::redact::redacted;
use crate::types::PublicEvent;
use crate::{data::*, of_service::*, words::*};
use events_schema::command::{OfferMode, Recall};
use events_schema::fact::{self, Fact, PlanReason};
use events_schema::report;
use events_schema::stride::Stride;
use events_schema::{ExecutorId, JobId, SlotId, Step};

impl PublicEvent {
    /// The event of a fact; `None` if it is no business of subscribers: what the log keeps for its own sake.
    #[must_use]
    pub fn of(fact: &Fact) -> Option<Self> {
        of_job(fact).or_else(|| of_executor(fact)).or_else(|| of_generation(fact)).or_else(|| of_the_rest(fact))
    }
}

fn of_job(fact: &Fact) -> Option<PublicEvent> {
    Some(match fact {
        Fact::JobAccepted { job, tenant, spec, .. } => PublicEvent::JobAccepted(JobAccepted {
            job: job.to_string(),
            tenant: spec.tenant.as_ref().unwrap_or(tenant).to_string(),
            name: spec.name.clone(),
        }),
        Fact::JobSuspending { job } => PublicEvent::JobSuspending(JobSuspending { job: job.to_string() }),
        Fact::JobSuspended { job, .. } => PublicEvent::JobSuspended(JobSuspended { job: job.to_string() }),
        Fact::JobResumed { job } => PublicEvent::JobResumed(JobResumed { job: job.to_string() }),
        Fact::JobCancelled { job } => PublicEvent::JobCancelled(JobCancelled { job: job.to_string() }),
        Fact::JobFailed { job, reason } => {
            PublicEvent::JobFailed(JobFailed { job: job.to_string(), reason: redacted(reason) })
        }
        Fact::JobFinished { job, outcome } => PublicEvent::JobFinished(JobFinished {
            job: job.to_string(),
            step: outcome.step.0,
            model_digest: outcome.model_digest.to_string(),
            train_loss: outcome.train_loss_micro.map(micro).unwrap_or_default(),
            train_loss_measured: outcome.train_loss_micro.is_some(),
            evaluation: outcome.metrics.as_ref().map(evaluation),
        }),
        Fact::PlanAdopted { job, slots, reason, from, .. } => PublicEvent::JobPlanned(JobPlanned {
            job: job.to_string(),
            from: *from,
            to: slots.len() as u32,
            slots: slots.iter().map(SlotId::to_string).collect(),
            cause: (&reason.cause).into(),
            waits: waits(reason),
            policy: reason.policy.clone(),
        }),
        Fact::JobScaled { job, from, to, cause, took_ms, pause_us } => PublicEvent::JobScaled(JobScaled {
            job: job.to_string(),
            from: *from,
            to: *to,
            cause: cause.into(),
            took_ms: *took_ms,
            pause_us: *pause_us,
        }),
        Fact::JobRestarted { job, from, cause } => PublicEvent::JobRestarted(restarted(job, *from, cause.as_ref())),
        Fact::Evaluated { job, step, metrics } => PublicEvent::JobEvaluated(JobEvaluated {
            job: job.to_string(),
            step: step.0,
            evaluation: evaluation(metrics),
        }),
        Fact::JobStalled { job, step, cause, blamed, remedy, .. } => PublicEvent::JobStalled(JobStalled {
            job: job.to_string(),
            step: step.0,
            cause: (*cause).into(),
            blamed: blamed.iter().map(|blamed| blamed.executor.to_string()).collect(),
            remedy: (*remedy).into(),
        }),
        Fact::SlotAvoided { job, slot, until, cause } => PublicEvent::JobSlotAvoided(JobSlotAvoided {
            job: job.to_string(),
            slot: slot.to_string(),
            until: rfc3339(*until),
            cause: match cause {
                fact::AvoidCause::Unreachable => AvoidCause::Unreachable,
                fact::AvoidCause::Hung => AvoidCause::Hung,
                fact::AvoidCause::Class => AvoidCause::Class,
                fact::AvoidCause::Slow => AvoidCause::Slow,
            },
        }),
        Fact::GrowthPaused { job, until, executor, cause } => PublicEvent::JobGrowthPaused(JobGrowthPaused {
            job: job.to_string(),
            until: rfc3339(*until),
            executor: executor.to_string(),
            cause: (*cause).into(),
        }),
        _ => return None,
    })
}

/// Said only where it is more than one.
fn stride(stride: Stride) -> Option<u16> {
    u16::try_from(stride.steps()).ok().filter(|_| !stride.is_one())
}

fn restarted(job: &JobId, from: Step, cause: Option<&fact::RestartCause>) -> JobRestarted {
    let names = |executors: &[ExecutorId]| {
        (!executors.is_empty()).then(|| executors.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    let (cause, executors, lost, stall) = match cause {
        None => (None, None, None, None),
        Some(fact::RestartCause::Lost { executor, slot, noticed }) => {
            let lost = lost(executor, slot, noticed);
            let stall = lost.stall;
            (Some(RestartCause::Lost), names(std::slice::from_ref(executor)), Some(lost), stall)
        }
        Some(fact::RestartCause::Left) => (Some(RestartCause::Left), None, None, None),
        Some(fact::RestartCause::Stalled { cause, blamed }) => {
            (Some(RestartCause::Stalled), names(blamed), None, Some((*cause).into()))
        }
        Some(fact::RestartCause::Differed { minority }) => (Some(RestartCause::Differed), names(minority), None, None),
    };
    let (noticed, exit) = lost.map_or((None, None), |lost| (Some(lost.noticed), lost.exit));
    JobRestarted { job: job.to_string(), from_step: from.0, cause, executors, noticed, exit, stall }
}

fn of_executor(fact: &Fact) -> Option<PublicEvent> {
    Some(match fact {
        Fact::ExecutorAssigned { executor, slot } => PublicEvent::ExecutorAssigned(ExecutorAssigned {
            job: executor.job.to_string(),
            executor: executor.to_string(),
            slot: slot.to_string(),
        }),
        Fact::ExecutorReady { executor, .. } => {
            PublicEvent::ExecutorReady(ExecutorReady { job: executor.job.to_string(), executor: executor.to_string() })
        }
        Fact::ReplicaHeld { executor, step } => PublicEvent::ExecutorReplicaHeld(ExecutorReplicaHeld {
            job: executor.job.to_string(),
            executor: executor.to_string(),
            step: step.0,
        }),
        Fact::ExecutorLeaving { executor, deadline, cause, .. } => PublicEvent::ExecutorLeaving(ExecutorLeaving {
            job: executor.job.to_string(),
            executor: executor.to_string(),
            deadline: rfc3339(*deadline),
            cause: match cause {
                fact::LeaveCause::Reclaim => LeaveCause::Reclaim,
                fact::LeaveCause::Plan => LeaveCause::Plan,
                fact::LeaveCause::JobEnd => LeaveCause::JobEnd,
                fact::LeaveCause::Useless => LeaveCause::Useless,
            },
        }),
        Fact::ExecutorStuck { executor, slot } => PublicEvent::ExecutorStuck(ExecutorStuck {
            job: executor.job.to_string(),
            executor: executor.to_string(),
            slot: slot.to_string(),
        }),
        Fact::MemberLost { executor, slot, noticed } => PublicEvent::MemberLost(lost(executor, slot, noticed)),
        Fact::MemberStraggles { executor, slot, unit_us, peers_unit_us, cause } => {
            PublicEvent::MemberStraggles(MemberStraggles {
                job: executor.job.to_string(),
                executor: executor.to_string(),
                slot: slot.to_string(),
                unit_us: *unit_us,
                peers_unit_us: *peers_unit_us,
                cause: cause.map(StragglerCause::from),
            })
        }
        Fact::ReplicasDiffered { job, step, minority, slots, .. } => PublicEvent::ReplicasDiffered(ReplicasDiffered {
            job: job.to_string(),
            step: step.0,
            executors: minority.iter().map(ToString::to_string).collect(),
            slots: slots.iter().map(ToString::to_string).collect(),
        }),
        Fact::MemberKeepsUp { executor } => {
            PublicEvent::MemberKeepsUp(MemberKeepsUp { job: executor.job.to_string(), executor: executor.to_string() })
        }
        Fact::ExecutorGone { executor, slot, exit, .. } => PublicEvent::ExecutorGone(gone(executor, slot, exit)),
        _ => return None,
    })
}

fn lost(executor: &ExecutorId, slot: &SlotId, noticed: &fact::LossNotice) -> MemberLost {
    let (notice, exit, stall) = match noticed {
        fact::LossNotice::Exit(cause) => (LossNotice::Exit, Some(gone(executor, slot, cause).exit), None),
        fact::LossNotice::Silence => (LossNotice::Silence, None, None),
        fact::LossNotice::Lease => (LossNotice::Lease, None, None),
        fact::LossNotice::Agent => (LossNotice::Agent, None, None),
        fact::LossNotice::Link => (LossNotice::Link, None, None),
        fact::LossNotice::Stall(cause) => (LossNotice::Stall, None, Some((*cause).into())),
    };
    MemberLost {
        job: executor.job.to_string(),
        executor: executor.to_string(),
        slot: slot.to_string(),
        noticed: notice,
        exit,
        stall,
    }
}

fn gone(executor: &ExecutorId, slot: &SlotId, cause: &report::ExitCause) -> ExecutorGone {
    let (exit, status, signal, reason) = match cause {
        report::ExitCause::Left => (Exit::Left, None, None, None),
        report::ExitCause::Status(status) => (Exit::Status, Some(*status), None, None),
        report::ExitCause::Signal(signal) => (Exit::Signal, None, Some(*signal), None),
        report::ExitCause::Killed => (Exit::Killed, None, None, None),
        report::ExitCause::NotStarted(reason) => (Exit::NotStarted, None, None, Some(redacted(reason))),
        report::ExitCause::Silent => (Exit::Silent, None, None, None),
        report::ExitCause::DeviceLost(what) => (Exit::DeviceLost, None, None, Some(redacted(what))),
        report::ExitCause::Failed { status, said, .. } => (Exit::Status, Some(*status), None, Some(redacted(said))),
    };
    ExecutorGone {
        job: executor.job.to_string(),
        executor: executor.to_string(),
        slot: slot.to_string(),
        exit,
        status,
        signal,
        reason,
    }
}

fn of_generation(fact: &Fact) -> Option<PublicEvent> {
    Some(match fact {
        Fact::GenerationProposed { job, proposal } => PublicEvent::GenerationProposed(GenerationProposed {
            job: job.to_string(),
            generation: proposal.generation.0,
            entry: match proposal.entry {
                fact::Entry::Fresh => Entry::Fresh,
                fact::Entry::Checkpoint { .. } => Entry::Checkpoint,
                fact::Entry::Switch { .. } => Entry::Switch,
                fact::Entry::Recover => Entry::Recover,
            },
            members: proposal.members.iter().map(member).collect(),
            leader: proposal.leader.to_string(),
            deadline: rfc3339(proposal.deadline),
            stride: stride(proposal.stride),
        }),
        Fact::GenerationActive { job, generation, step, pause_us } => PublicEvent::GenerationActive(GenerationActive {
            job: job.to_string(),
            generation: generation.0,
            step: step.0,
            pause_us: *pause_us,
        }),
        Fact::GenerationStepped { job, generation, step, first_step_us, usual_step_us, stride, .. } => {
            PublicEvent::GenerationStepped(GenerationStepped {
                job: job.to_string(),
                generation: generation.0,
                step: step.0,
                first_step_us: *first_step_us,
                usual_step_us: *usual_step_us,
                stride: self::stride(*stride),
            })
        }
        Fact::ThroughputMeasured { job, members, step_us, stride, spread } => {
            PublicEvent::ThroughputMeasured(ThroughputMeasured {
                job: job.to_string(),
                members: *members,
                step_us: *step_us,
                stride: self::stride(*stride),
                error_micro: spread.map(|spread| spread.error_micro(*step_us)),
                updates: spread.map(|spread| spread.updates),
            })
        }
        Fact::GenerationAbandoned { job, generation, cause, .. } => {
            PublicEvent::GenerationAbandoned(GenerationAbandoned {
                job: job.to_string(),
                generation: generation.0,
                cause: match cause {
                    fact::AbandonCause::Deadline => AbandonCause::Deadline,
                    fact::AbandonCause::MemberLost => AbandonCause::MemberLost,
                    fact::AbandonCause::Superseded => AbandonCause::Superseded,
                    fact::AbandonCause::Unlinked => AbandonCause::Unlinked,
                },
            })
        }
        Fact::MemberDeparted { job, generation, executor, leader, step } => {
            PublicEvent::MemberDeparted(MemberDeparted {
                job: job.to_string(),
                generation: generation.0,
                executor: executor.to_string(),
                leader: leader.to_string(),
                step: step.0,
            })
        }
        Fact::PeersMissing { job, generation, by, peers, begun } => PublicEvent::PeersMissing(PeersMissing {
            job: job.to_string(),
            generation: generation.0,
            by: by.to_string(),
            peers: peers.iter().map(ExecutorId::to_string).collect(),
            begun: *begun,
        }),
        Fact::CheckpointAccepted { job, checkpoint } => PublicEvent::CheckpointAccepted(CheckpointAccepted {
            job: job.to_string(),
            step: checkpoint.step.0,
            bytes: checkpoint.bytes,
            replica_digest: checkpoint.replica_digest.to_string(),
        }),
        Fact::CheckpointDamaged { job, step, object, instead, .. } => {
            PublicEvent::CheckpointDamaged(CheckpointDamaged {
                job: job.to_string(),
                step: step.0,
                reason: damage(object).to_owned(),
                instead_step: instead.0,
            })
        }
        Fact::CheckpointUnreadable { job, step, reason, .. } => {
            PublicEvent::CheckpointUnreadable(CheckpointUnreadable {
                job: job.to_string(),
                step: step.0,
                reason: redacted(reason),
            })
        }
        _ => return None,
    })
}

/// What of a checkpoint is damaged. Neither its key nor what the store said of it: the key holds the token of who wrote it.
fn damage(object: &str) -> &'static str {
    if object.ends_with("/manifest.json") {
        "its manifest is missing or not what was written"
    } else {
        "a part of it is missing or not what was written"
    }
}

/// The last group names every kind, so that a new fact does not compile until somebody has said what it is in public.
fn of_the_rest(fact: &Fact) -> Option<PublicEvent> {
    Some(match fact {
        Fact::DatasetRegistered { dataset } => {
            PublicEvent::DatasetRegistered(DatasetRegistered { dataset: dataset.name.to_string(), rows: dataset.rows })
        }
        Fact::DatasetRemoved { dataset } => {
            PublicEvent::DatasetRemoved(DatasetRemoved { dataset: dataset.to_string() })
        }
        Fact::FleetDeclared { fleet, slots, offers, reclaim_deadline_ms } => {
            PublicEvent::FleetDeclared(FleetDeclared {
                fleet: fleet.to_string(),
                slots: slots.iter().map(SlotId::to_string).collect(),
                offers: (*offers).into(),
                reclaim_deadline_ms: *reclaim_deadline_ms,
            })
        }
        Fact::DemandAccepted { fleet, sequence, needed, .. } => {
            PublicEvent::FleetDemand(FleetDemand { fleet: fleet.to_string(), sequence: *sequence, needed: *needed })
        }
        Fact::FleetRecalled { fleet, slots } => PublicEvent::FleetRecalled(FleetRecalled {
            fleet: fleet.to_string(),
            slots: match slots {
                Recall::All => None,
                Recall::Slots(count) => Some(*count),
            },
        }),
        Fact::FleetReleased { fleet } => PublicEvent::FleetReleased(FleetReleased { fleet: fleet.to_string() }),
        Fact::QuotaSet { tenant, quota_slots } => {
            PublicEvent::QuotaSet(QuotaSet { tenant: tenant.to_string(), quota_slots: *quota_slots })
        }
        Fact::SignalsRefused { fleet, offset, count, reason } => PublicEvent::SignalsRefused(SignalsRefused {
            fleet: fleet.to_string(),
            offset: offset.0,
            count: *count,
            reason: redacted(reason),
        }),
        Fact::SlotsOffered { fleet, slots } => PublicEvent::SlotsOffered(SlotsOffered {
            fleet: fleet.to_string(),
            slots: slots.iter().map(SlotId::to_string).collect(),
        }),
        Fact::SlotBorrowed { slot, fleet, job } => PublicEvent::SlotBorrowed(SlotBorrowed {
            slot: slot.to_string(),
            fleet: fleet.as_ref().map(ToString::to_string),
            job: job.as_ref().map(ToString::to_string),
        }),
        Fact::SlotReclaimed { slot, deadline, cause, fleet, job, asked_at } => {
            PublicEvent::SlotReclaimed(SlotReclaimed {
                slot: slot.to_string(),
                fleet: fleet.as_ref().map(ToString::to_string),
                job: job.as_ref().map(ToString::to_string),
                deadline: rfc3339(*deadline),
                cause: match cause {
                    fact::ReclaimCause::Demand => ReclaimCause::Demand,
                    fact::ReclaimCause::Named => ReclaimCause::Named,
                    fact::ReclaimCause::Direct => ReclaimCause::Direct,
                    fact::ReclaimCause::Undeclared => ReclaimCause::Undeclared,
                    fact::ReclaimCause::Recall => ReclaimCause::Recall,
                    fact::ReclaimCause::Forecast => ReclaimCause::Forecast,
                },
                asked: asked_at.map(rfc3339),
            })
        }
        Fact::SlotReturned { slot, fleet, took_ms } => PublicEvent::SlotReturned(SlotReturned {
            slot: slot.to_string(),
            fleet: fleet.as_ref().map(ToString::to_string),
            took_ms: *took_ms,
        }),
        Fact::SlotQuarantined { slot, fleet, reason } => PublicEvent::SlotQuarantined(SlotQuarantined {
            slot: slot.to_string(),
            fleet: fleet.as_ref().map(ToString::to_string),
            reason: redacted(reason),
        }),
        Fact::SlotRecovered { slot, fleet } => PublicEvent::SlotRecovered(SlotRecovered {
            slot: slot.to_string(),
            fleet: fleet.as_ref().map(ToString::to_string),
        }),
        Fact::AgentJoined { server, slots, devices, .. } => PublicEvent::AgentJoined(AgentJoined {
            server: server.to_string(),
            slots: *slots,
            devices: (!devices.is_empty()).then(|| devices.iter().map(|device| device.uuid.clone()).collect()),
        }),
        Fact::LinkMeasured { server, from, bytes_per_s, until, .. } => PublicEvent::LinkMeasured(LinkMeasured {
            server: server.to_string(),
            from: from.iter().map(ToString::to_string).collect(),
            bytes_per_s: *bytes_per_s,
            until: rfc3339(*until),
        }),
        Fact::AgentGone { server } => PublicEvent::AgentGone(AgentGone { server: server.to_string() }),
        Fact::ServerForgotten { server } => {
            PublicEvent::ServerForgotten(ServerForgotten { server: server.to_string() })
        }
        Fact::CommandRefused { command, subject, refusal } => PublicEvent::CommandRefused(CommandRefused {
            command: command.to_string(),
            subject: subject.clone(),
            refusal: refused(refusal),
            reason: redacted(&refusal.to_string()),
        }),
        Fact::InputRefused { stream, offset, reason } => PublicEvent::InputRefused(InputRefused {
            stream: stream.clone(),
            offset: offset.0,
            reason: redacted(reason),
        }),
        Fact::PlanFailed { policy, reason } => {
            PublicEvent::PlanFailed(PlanFailed { policy: policy.clone(), reason: redacted(reason) })
        }
        Fact::PolicyChosen { policy, .. } => PublicEvent::PolicyChosen(PolicyChosen { policy: policy.clone() }),
        Fact::ObjectsSwept { objects, bytes } => {
            PublicEvent::StoreSwept(StoreSwept { objects: *objects, bytes: *bytes })
        }
        // What the log keeps for its own sake: answers to callers, numbers of reports, keys to delete, how a policy orders
        // who waits, and what old builds wrote.
        Fact::CommandTaken { .. }
        | Fact::QueueEntered { .. }
        | Fact::ReportsTaken { .. }
        | Fact::CheckpointRetired { .. }
        | Fact::JobExplained { .. } => return None,
        // Said by the groups before.
        Fact::JobAccepted { .. }
        | Fact::JobSuspending { .. }
        | Fact::JobSuspended { .. }
        | Fact::JobResumed { .. }
        | Fact::JobCancelled { .. }
        | Fact::JobFailed { .. }
        | Fact::JobFinished { .. }
        | Fact::PlanAdopted { .. }
        | Fact::JobScaled { .. }
        | Fact::JobRestarted { .. }
        | Fact::Evaluated { .. }
        | Fact::JobStalled { .. }
        | Fact::SlotAvoided { .. }
        | Fact::GrowthPaused { .. }
        | Fact::ExecutorAssigned { .. }
        | Fact::ExecutorReady { .. }
        | Fact::ReplicaHeld { .. }
        | Fact::ExecutorLeaving { .. }
        | Fact::ExecutorGone { .. }
        | Fact::ExecutorStuck { .. }
        | Fact::MemberLost { .. }
        | Fact::MemberStraggles { .. }
        | Fact::MemberKeepsUp { .. }
        | Fact::TypesMeasured { .. }
        | Fact::LoadMeasured { .. }
        | Fact::ReplicasDiffered { .. }
        | Fact::GenerationProposed { .. }
        | Fact::GenerationActive { .. }
        | Fact::GenerationStepped { .. }
        | Fact::ThroughputMeasured { .. }
        | Fact::GenerationAbandoned { .. }
        | Fact::MemberDeparted { .. }
        | Fact::PeersMissing { .. }
        | Fact::CheckpointAccepted { .. }
        | Fact::CheckpointDamaged { .. }
        | Fact::CheckpointUnreadable { .. } => return None,
    })
}

fn member(member: &fact::Member) -> Member {
    Member { executor: member.executor.to_string(), ranks: member.ranks.iter().map(|rank| rank.0).collect() }
}

fn micro(millionths: i64) -> f64 {
    millionths as f64 / 1e6
}

fn evaluation(metrics: &report::Metrics) -> Evaluation {
    // JSON has no numbers that are not finite.
    let finite = |mean: &report::Mean| Some(mean.value()).filter(|value| value.is_finite());
    let means = metrics.named.iter().flatten().map(|(name, mean)| (name.clone(), finite(mean))).collect();
    Evaluation { loss: micro(metrics.loss_micro), correct: metrics.correct, count: metrics.count, means }
}

impl From<&fact::PlanCause> for PlanCause {
    fn from(cause: &fact::PlanCause) -> Self {
        match cause {
            fact::PlanCause::Guarantee => PlanCause::Guarantee,
            fact::PlanCause::Gain => PlanCause::Gain,
            fact::PlanCause::Reclaimed => PlanCause::Reclaimed,
            fact::PlanCause::GaveWay => PlanCause::GaveWay,
            fact::PlanCause::Lost => PlanCause::Lost,
            fact::PlanCause::Nothing => PlanCause::Nothing,
            fact::PlanCause::Speed => PlanCause::Speed,
            fact::PlanCause::Link => PlanCause::Link,
            fact::PlanCause::Profile => PlanCause::Profile,
        }
    }
}

fn waits(reason: &PlanReason) -> Option<Waits> {
    let nothing = Waits { what: WaitKind::Offers, missing: None, job: None, until: None, class: None, link: None };
    Some(match reason.waits.as_ref()? {
        fact::WaitCause::Slots { missing } => Waits { what: WaitKind::Slots, missing: Some(*missing), ..nothing },
        fact::WaitCause::Job(job) => Waits { what: WaitKind::Job, job: Some(job.to_string()), ..nothing },
        fact::WaitCause::Resume => Waits { what: WaitKind::Resume, ..nothing },
        fact::WaitCause::Offers => nothing,
        fact::WaitCause::Device => Waits { what: WaitKind::Device, ..nothing },
        fact::WaitCause::Class(class) => Waits { what: WaitKind::Class, class: Some(class.to_string()), ..nothing },
        fact::WaitCause::Speed => Waits { what: WaitKind::Speed, ..nothing },
        fact::WaitCause::Type => Waits { what: WaitKind::Type, ..nothing },
        fact::WaitCause::Quota { missing } => Waits { what: WaitKind::Quota, missing: Some(*missing), ..nothing },
        fact::WaitCause::Link(slow) => {
            let fact::SlowLink { server, bytes_per_s, gradient_bytes_per_s, beta_milli } = slow.clone();
            let server = server.to_string();
            let link = SlowLink { server, bytes_per_s, gradient_bytes_per_s, beta_milli };
            Waits { what: WaitKind::Link, link: Some(link), ..nothing }
        }
        fact::WaitCause::Backoff { until } => {
            Waits { what: WaitKind::Backoff, until: Some(rfc3339(*until)), ..nothing }
        }
    })
}

impl From<fact::StallCause> for StallCause {
    fn from(cause: fact::StallCause) -> Self {
        match cause {
            fact::StallCause::Peers => StallCause::Peers,
            fact::StallCause::Unit => StallCause::Unit,
            fact::StallCause::Bytes => StallCause::Bytes,
            fact::StallCause::Store => StallCause::Store,
        }
    }
}

impl From<fact::StragglerCause> for StragglerCause {
    fn from(cause: fact::StragglerCause) -> Self {
        match cause {
            fact::StragglerCause::Compute => StragglerCause::Compute,
            fact::StragglerCause::Data => StragglerCause::Data,
            fact::StragglerCause::Network => StragglerCause::Network,
        }
    }
}

impl From<fact::GrowthFailure> for GrowthFailure {
    fn from(cause: fact::GrowthFailure) -> Self {
        match cause {
            fact::GrowthFailure::Lost => GrowthFailure::Lost,
            fact::GrowthFailure::Late => GrowthFailure::Late,
            fact::GrowthFailure::Slow => GrowthFailure::Slow,
        }
    }
}

impl From<OfferMode> for Offers {
    fn from(mode: OfferMode) -> Self {
        match mode {
            OfferMode::Explicit => Offers::Explicit,
            OfferMode::ByDemand => Offers::ByDemand,
        }
    }
}

impl From<fact::StallRemedy> for StallRemedy {
    fn from(remedy: fact::StallRemedy) -> Self {
        match remedy {
            fact::StallRemedy::Round => StallRemedy::Round,
            fact::StallRemedy::WithoutBlamed => StallRemedy::WithoutBlamed,
            fact::StallRemedy::Restart => StallRemedy::Restart,
            fact::StallRemedy::Suspend => StallRemedy::Suspend,
            fact::StallRemedy::Fail => StallRemedy::Fail,
            fact::StallRemedy::Wait => StallRemedy::Wait,
        }
    }
}

fn refused(refusal: &fact::Refusal) -> Refusal {
    match refusal {
        fact::Refusal::Unknown { .. } => Refusal::Unknown,
        fact::Refusal::WrongPhase { .. } => Refusal::WrongPhase,
        fact::Refusal::Exists { .. } => Refusal::Exists,
        fact::Refusal::InUse { .. } => Refusal::InUse,
        fact::Refusal::Old { .. } => Refusal::Old,
        fact::Refusal::Limit { .. } => Refusal::Limit,
        fact::Refusal::Unfit { .. } => Refusal::Unfit,
        fact::Refusal::Changed => Refusal::Changed,
    }
}
