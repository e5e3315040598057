//! What subscribers read: facts as CloudEvents 1.0, without specs, environment or secrets.
//!
//! The mapping is total and pure; an event's id is its fact's place in the log, so repeats can be told by it.

use crate::fact::Fact;
use crate::{Cell, Offset, TimeMs};
use serde::Serialize;
use serde_json::Value;

/// A CloudEvent in structured JSON form.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CloudEvent {
    /// Always `1.0`.
    pub specversion: &'static str,
    /// `CELL-OFFSET-INDEX` of the fact.
    pub id: String,
    /// `/ebb/INSTALLATION/cells/CELL`: with `id` it is unique among all events of all installations.
    pub source: String,
    /// For example `dev.ebb.job.accepted.v1`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The job, fleet, dataset, slot or server it is about.
    pub subject: String,
    /// RFC 3339.
    pub time: String,
    /// Always `application/json`.
    pub datacontenttype: &'static str,
    /// The fact.
    pub data: Value,
}

/// The place of a fact: the offset of its batch in `events`, and its index there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FactPosition {
    /// Offset of the batch's (last) record.
    pub offset: Offset,
    /// Place within the batch.
    pub index: u32,
}

/// The CloudEvent of a fact. `installation` tells its log from all others.
#[must_use]
pub fn cloud_event(installation: u64, cell: Cell, position: FactPosition, at: TimeMs, fact: &Fact) -> CloudEvent {
    let (kind, subject) = kind_and_subject(fact);
    CloudEvent {
        specversion: "1.0",
        id: format!("{cell}-{}-{}", position.offset, position.index),
        source: format!("/ebb/{installation:016x}/cells/{cell}"),
        kind,
        subject,
        time: rfc3339(at),
        datacontenttype: "application/json",
        data: serde_json::to_value(fact).unwrap_or(Value::Null),
    }
}

/// A time as people and JSON read it, in UTC with milliseconds.
#[must_use]
pub fn rfc3339(at: TimeMs) -> String {
    /// 9999-12-31: later times are shown as this one.
    const LAST_MS: u64 = 253_402_300_799_999;
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_millis(at.0.min(LAST_MS));
    humantime::format_rfc3339_millis(time).to_string()
}

/// The event's type and what it is about.
#[must_use]
pub fn kind_and_subject(fact: &Fact) -> (&'static str, String) {
    use Fact::*;
    match fact {
        JobAccepted { job, .. } => ("dev.ebb.job.accepted.v1", job.to_string()),
        CommandRefused { subject, .. } => ("dev.ebb.command.refused.v1", subject.clone()),
        CommandTaken { command } => ("dev.ebb.command.taken.v1", command.to_string()),
        JobSuspending { job } => ("dev.ebb.job.suspending.v1", job.to_string()),
        JobSuspended { job } => ("dev.ebb.job.suspended.v1", job.to_string()),
        JobResumed { job } => ("dev.ebb.job.resumed.v1", job.to_string()),
        JobCancelled { job } => ("dev.ebb.job.cancelled.v1", job.to_string()),
        JobFailed { job, .. } => ("dev.ebb.job.failed.v1", job.to_string()),
        JobFinished { job, .. } => ("dev.ebb.job.finished.v1", job.to_string()),
        PlanAdopted { job, .. } => ("dev.ebb.job.scaled.v1", job.to_string()),
        JobExplained { job, .. } => ("dev.ebb.job.explained.v1", job.to_string()),
        ExecutorAssigned { executor, .. } => ("dev.ebb.executor.assigned.v1", executor.job.to_string()),
        ExecutorReady { executor, .. } => ("dev.ebb.executor.ready.v1", executor.job.to_string()),
        ExecutorLeaving { executor, .. } => ("dev.ebb.executor.leaving.v1", executor.job.to_string()),
        ExecutorStuck { executor, .. } => ("dev.ebb.executor.stuck.v1", executor.job.to_string()),
        ExecutorGone { executor, .. } => ("dev.ebb.executor.gone.v1", executor.job.to_string()),
        GenerationProposed { job, .. } => ("dev.ebb.generation.proposed.v1", job.to_string()),
        GenerationActive { job, .. } => ("dev.ebb.generation.active.v1", job.to_string()),
        GenerationAbandoned { job, .. } => ("dev.ebb.generation.abandoned.v1", job.to_string()),
        MemberDeparted { job, .. } => ("dev.ebb.generation.departed.v1", job.to_string()),
        CheckpointAccepted { job, .. } => ("dev.ebb.checkpoint.accepted.v1", job.to_string()),
        CheckpointDamaged { job, .. } => ("dev.ebb.checkpoint.damaged.v1", job.to_string()),
        CheckpointUnreadable { job, .. } => ("dev.ebb.checkpoint.unreadable.v1", job.to_string()),
        CheckpointRetired { job, .. } => ("dev.ebb.checkpoint.retired.v1", job.to_string()),
        JobRestarted { job, .. } => ("dev.ebb.job.restarted.v1", job.to_string()),
        Evaluated { job, .. } => ("dev.ebb.job.evaluated.v1", job.to_string()),
        DatasetRegistered { dataset } => ("dev.ebb.dataset.registered.v1", dataset.name.to_string()),
        DatasetRemoved { dataset } => ("dev.ebb.dataset.removed.v1", dataset.to_string()),
        FleetDeclared { fleet, .. } => ("dev.ebb.fleet.declared.v1", fleet.to_string()),
        DemandAccepted { fleet, .. } => ("dev.ebb.fleet.demand.v1", fleet.to_string()),
        SlotsOffered { fleet, .. } => ("dev.ebb.slot.offered.v1", fleet.to_string()),
        SlotBorrowed { slot } => ("dev.ebb.slot.borrowed.v1", slot.to_string()),
        SlotReclaimed { slot, .. } => ("dev.ebb.slot.reclaimed.v1", slot.to_string()),
        SlotReturned { slot } => ("dev.ebb.slot.returned.v1", slot.to_string()),
        AgentJoined { server, .. } => ("dev.ebb.agent.joined.v1", server.to_string()),
        AgentGone { server } => ("dev.ebb.agent.gone.v1", server.to_string()),
        ReportsTaken { server, .. } => ("dev.ebb.agent.reports_taken.v1", server.to_string()),
        PeersMissing { job, .. } => ("dev.ebb.generation.peers_missing.v1", job.to_string()),
        ReplicaHeld { executor, .. } => ("dev.ebb.executor.replica_held.v1", executor.job.to_string()),
        GenerationStepped { job, .. } => ("dev.ebb.generation.stepped.v1", job.to_string()),
        JobStalled { job, .. } => ("dev.ebb.job.stalled.v1", job.to_string()),
        SlotAvoided { job, .. } => ("dev.ebb.job.slot_avoided.v1", job.to_string()),
        MemberLost { executor, .. } => ("dev.ebb.generation.member_lost.v1", executor.job.to_string()),
        MemberStraggles { executor, .. } => ("dev.ebb.generation.member_straggles.v1", executor.job.to_string()),
        MemberKeepsUp { executor } => ("dev.ebb.generation.member_keeps_up.v1", executor.job.to_string()),
        GrowthPaused { job, .. } => ("dev.ebb.job.growth_paused.v1", job.to_string()),
        ObjectsSwept { .. } => ("dev.ebb.store.swept.v1", "store".to_owned()),
        InputRefused { stream, .. } => ("dev.ebb.input.refused.v1", stream.clone()),
        PolicyChosen { policy } => ("dev.ebb.policy.chosen.v1", policy.clone()),
        ServerForgotten { server } => ("dev.ebb.server.forgotten.v1", server.to_string()),
        PlanFailed { policy, .. } => ("dev.ebb.plan.failed.v1", policy.clone()),
    }
}
