//! Reports of agents: joined, gone, executors ready and reaped, slots taken back. Reports of leaders are in [`super::leaders`].
//!
//! An agent repeats its reports until they are taken, so a number seen before has no effect, nor has one that follows another that is not
//! taken: the log has lost that one, and both are said again. The words of an agent
//! process that another has replaced have no effect either. The controller's own observation `AgentGone` therefore carries the
//! incarnation that the state knows ([`State::server`](crate::State::server)). An agent that was given up joins anew.

use super::{
    Draft, bandwidth, classes, failures, fleets::hand_back, generations, guests, leaders, members, reclaim, stalls,
    types,
};
use crate::limits::REASON_CHARS_MAX;
use crate::state::{Job, Slot, SlotState};
use events_schema::device::SlotDevice;
use events_schema::fact::{Fact, GrowthFailure, LossNotice, PlanCause};
use events_schema::report::{ExitCause, Report, ReportRecord};
use events_schema::slot_type::SlotType;
use events_schema::{Digest, ExecutorId, ServerId, SlotId, TimeMs};

pub(super) fn report(draft: &mut Draft<'_>, record: &ReportRecord) {
    let known = draft.state.server(&record.server).filter(|server| server.incarnation == record.incarnation);
    // 0 is the controller's own observation, which it does not repeat.
    if record.number > 0 && known.is_some_and(|server| record.number <= server.reports_through) {
        return;
    }
    let is_missed = |after: u64| known.is_some_and(|server| after > server.reports_through);
    if record.number > 0 && record.after.is_some_and(is_missed) {
        return;
    }
    match &record.report {
        Report::AgentJoined { slots, class, address, devices, quarantined, guests, slot_type } => {
            joined(draft, record, (*slots, *guests), (*class, *slot_type), address, devices);
            quarantined.iter().for_each(|(index, reason)| {
                quarantine(draft, &SlotId { server: record.server.clone(), index: *index }, reason);
            });
            return_free(draft, &record.server);
        }
        Report::ObjectsSwept { objects, bytes } if record.number == 0 => {
            draft.emit(Fact::ObjectsSwept { objects: *objects, bytes: *bytes });
        }
        _ if known.is_none() => return,
        Report::AgentGone => gone(draft, &record.server),
        Report::ExecutorReady { executor, address, class, replica_bytes, gradient_bytes } => {
            if is_on(draft, executor, &record.server) && !classes::refused(draft, executor, *class) {
                let (executor, address) = (executor.clone(), address.clone());
                let (class, replica_bytes, gradient_bytes) = (*class, *replica_bytes, *gradient_bytes);
                draft.emit(Fact::ExecutorReady { executor, address, class, replica_bytes, gradient_bytes });
            }
        }
        Report::ExecutorGone { executor, exit, .. } => executor_gone(draft, record, executor, exit),
        Report::SlotTakenBack { slot, asked_ms, within_ms } if slot.server == record.server => {
            let seen_at = seen_at(draft, record, slot);
            slot_taken_back(draft, slot, asked_ms.map(|ago_ms| seen_at.minus_ms(ago_ms)), *within_ms, seen_at);
        }
        Report::SlotQuarantined { slot, reason } if slot.server == record.server => quarantine(draft, slot, reason),
        Report::SlotRecovered { slot } if slot.server == record.server => {
            let seen_at = seen_at(draft, record, slot);
            recovered(draft, slot, seen_at);
        }
        Report::SlotTakenBack { .. }
        | Report::SlotQuarantined { .. }
        | Report::SlotRecovered { .. }
        | Report::ObjectsSwept { .. } => {}
        Report::GenerationActive { .. }
        | Report::MemberDeparted { .. }
        | Report::CheckpointWritten { .. }
        | Report::CheckpointSaved { .. }
        | Report::CheckpointDamaged { .. }
        | Report::CheckpointUnreadable { .. }
        | Report::JobCompleted { .. }
        | Report::JobBroken { .. }
        | Report::Evaluated { .. }
        | Report::PeersMissing { .. }
        | Report::ReplicaHeld { .. }
        | Report::GenerationStepped { .. }
        | Report::ReplicasDiffer { .. }
        | Report::NewcomerFallsBehind { .. }
        | Report::ThroughputMeasured { .. }
        | Report::PeerLost { .. } => leaders::report(draft, record),
        Report::LinkMeasured { executor, bytes_per_s, settled } => {
            if is_on(draft, executor, &record.server) {
                bandwidth::measured(draft, executor, *bytes_per_s, *settled);
            }
        }
        Report::JobStalled { job, step, cause, blamed } if record.number == 0 => {
            stalls::stalled(draft, job, *step, *cause, blamed);
        }
        Report::MemberStraggles { executor, unit_us, peers_unit_us, cause } if record.number == 0 => {
            members::straggles(draft, executor, (*unit_us, *peers_unit_us), *cause);
        }
        Report::MemberKeepsUp { executor } if record.number == 0 => members::keeps_up(draft, executor),
        Report::TypesMeasured { job, times } if record.number == 0 => types::measured(draft, job, times),
        Report::LoadMeasured { executor, busy_percent } if record.number == 0 => {
            guests::measured(draft, executor, *busy_percent);
        }
        Report::LinkSurveyed { peer, bytes_per_s } if record.number == 0 => {
            bandwidth::surveyed(draft, &record.server, peer, *bytes_per_s);
        }
        Report::JobStalled { .. }
        | Report::MemberStraggles { .. }
        | Report::MemberKeepsUp { .. }
        | Report::TypesMeasured { .. }
        | Report::LoadMeasured { .. }
        | Report::LinkSurveyed { .. } => {}
    }
    if record.number > 0 {
        let (server, incarnation, through) = (record.server.clone(), record.incarnation, record.number);
        draft.emit(Fact::ReportsTaken { server, incarnation, through });
    }
}

/// An agent process is there: a new one (whatever ran under an earlier one is gone), or the same one back after a silence.
fn joined(
    draft: &mut Draft<'_>,
    record: &ReportRecord,
    (slots, guests): (u16, bool),
    (class, slot_type): (Digest, Option<SlotType>),
    address: &str,
    devices: &[SlotDevice],
) {
    let before = draft.state.server(&record.server).cloned();
    let same = before.as_ref().is_some_and(|server| server.incarnation == record.incarnation);
    if !same {
        lose_executors(draft, &record.server, &LossNotice::Agent);
    }
    if !guests {
        // Whoever has one of them in its plan is to go on without; they are forgotten with the fact.
        let planned = draft.state.guests_of(&record.server).filter(|(_, slot)| slot.job.is_some());
        let planned: Vec<SlotId> = planned.map(|(id, _)| id.clone()).collect();
        reclaim::withdraw(draft, planned.iter(), PlanCause::Lost);
    }
    let (server, incarnation, address) = (record.server.clone(), record.incarnation, address.to_owned());
    draft.emit(Fact::AgentJoined {
        server,
        incarnation,
        slots,
        class,
        address,
        devices: devices.to_vec(),
        guests,
        slot_type,
    });
    let other_kind =
        |id: &SlotId| before.as_ref().is_some_and(|before| Some(before.kind(id.index)) != draft.state.kind(id));
    let unfit: Vec<SlotId> = draft
        .state
        .places_of(&record.server)
        .filter(|(id, slot)| slot.job.is_some() && (!draft.state.is_present(id) || other_kind(id)))
        .map(|(id, _)| id.clone())
        .collect();
    reclaim::withdraw(draft, unfit.iter(), PlanCause::Lost);
}

/// A server's agent did not come back within its lease. Jobs go on without its executors, but they may well be running: slots
/// that were to go back are free only when an agent has joined again, which has reaped them.
fn gone(draft: &mut Draft<'_>, server: &ServerId) {
    if !draft.state.server(server).is_some_and(|server| server.connected) {
        return;
    }
    lose_executors(draft, server, &LossNotice::Lease);
    draft.emit(Fact::AgentGone { server: server.clone() });
    let planned: Vec<SlotId> =
        draft.state.places_of(server).filter(|(_, slot)| slot.job.is_some()).map(|(id, _)| id.clone()).collect();
    reclaim::withdraw(draft, planned.iter(), PlanCause::Lost);
}

fn lose_executors(draft: &mut Draft<'_>, server: &ServerId, noticed: &LossNotice) {
    let there: Vec<(SlotId, ExecutorId)> =
        draft.state.places_of(server).filter_map(|(id, slot)| Some((id.clone(), slot.executor.clone()?))).collect();
    for (slot, executor) in there {
        lost_newcomer(draft, &executor);
        members::lost(draft, &executor, noticed.clone());
        let job = executor.job.clone();
        draft.emit(failures::gone(draft, executor, slot.clone(), ExitCause::Killed));
        generations::avoid_while_it_begins(draft, &job, slot);
    }
}

/// A newcomer is gone while the others waited for it to be sent the replica: they went through a pause for nothing.
fn lost_newcomer(draft: &mut Draft<'_>, executor: &ExecutorId) {
    let waited_for = |job: &Job| job.active().is_some_and(|active| active.members.contains(executor));
    let without = draft.state.executor(executor).is_some_and(|executor| !executor.replica);
    if without && draft.state.job(&executor.job).is_some_and(waited_for) {
        generations::pause_growth(draft, executor, GrowthFailure::Lost);
    }
}

fn return_free(draft: &mut Draft<'_>, server: &ServerId) {
    let reclaimed = |state: SlotState| matches!(state, SlotState::Reclaimed { .. });
    let slots: Vec<SlotId> =
        draft.state.slots_of(server).filter(|(_, slot)| reclaimed(slot.state)).map(|(id, _)| id.clone()).collect();
    let now = draft.at;
    slots.iter().for_each(|slot| hand_back(draft, slot, now));
}

/// The device of a slot is not as it should be: whoever has the slot goes on without it, as soon as the end of its executor there is said.
fn quarantine(draft: &mut Draft<'_>, slot: &SlotId, reason: &str) {
    let Some(known) = draft.state.slot(slot) else { return };
    let (fleet, reason) = (known.fleet.clone(), reason.chars().take(REASON_CHARS_MAX).collect());
    let is_empty = known.executor.is_none();
    let guest = slot.guest();
    let beside = draft.state.slot(&guest).filter(|beside| beside.executor.is_none()).map(|_| guest);
    draft.emit(Fact::SlotQuarantined { slot: slot.clone(), fleet: fleet.clone(), reason });
    if is_empty {
        reclaim::withdraw(draft, std::iter::once(slot), PlanCause::Lost);
    }
    reclaim::withdraw(draft, beside.iter(), PlanCause::Lost);
    // One that was on its way to a fleet in need does not come: another has to.
    if let Some(fleet) = fleet {
        reclaim::surplus(draft, &fleet);
    }
}

/// It is again; a slot that was to go back to its fleet can now.
fn recovered(draft: &mut Draft<'_>, slot: &SlotId, seen_at: TimeMs) {
    let Some(known) = draft.state.slot(slot).filter(|known| known.quarantined.is_some()) else { return };
    let fleet = known.fleet.clone();
    draft.emit(Fact::SlotRecovered { slot: slot.clone(), fleet });
    hand_back(draft, slot, seen_at);
}

fn is_on(draft: &Draft<'_>, executor: &ExecutorId, server: &ServerId) -> bool {
    draft.state.executor(executor).is_some_and(|executor| executor.slot.server == *server)
}

fn executor_gone(draft: &mut Draft<'_>, record: &ReportRecord, executor: &ExecutorId, exit: &ExitCause) {
    if !is_on(draft, executor, &record.server) {
        return;
    }
    let Some(slot) = draft.state.executor(executor).map(|executor| executor.slot.clone()) else { return };
    lost_newcomer(draft, executor);
    match exit {
        // It had its leader's consent, whose word about it comes another way.
        ExitCause::Left if draft.state.executor(executor).is_some_and(|executor| executor.replica) => {}
        ExitCause::Silent => members::lost(draft, executor, LossNotice::Silence),
        _ => members::lost(draft, executor, LossNotice::Exit(exit.clone())),
    }
    let broken = failures::of_code(draft, executor, &slot, exit);
    draft.emit(failures::gone(draft, executor.clone(), slot.clone(), exit.clone()));
    if let Some(reason) = broken {
        draft.emit(Fact::JobFailed { job: executor.job.clone(), reason });
    }
    if draft.state.slot(&slot).is_some_and(Slot::is_quarantined) {
        reclaim::withdraw(draft, std::iter::once(&slot), PlanCause::Lost);
    }
    let seen_at = seen_at(draft, record, &slot);
    hand_back(draft, &slot, seen_at);
}

/// When an agent saw something of a slot, by its clock where that can be: a report waits at its agent as long as no controller and no log takes it.
fn seen_at(draft: &Draft<'_>, record: &ReportRecord, slot: &SlotId) -> TimeMs {
    let since = draft.state.slot(slot).map_or(draft.at, |known| known.since);
    if (since..=draft.at).contains(&record.at) { record.at } else { draft.at }
}

/// A fleet took a slot back at the agent, perhaps long ago: from now on it is not used until offered again.
pub(super) fn slot_taken_back(
    draft: &mut Draft<'_>,
    slot: &SlotId,
    asked_at: Option<TimeMs>,
    within_ms: Option<u64>,
    seen_at: TimeMs,
) {
    // Who leaves a guest slot by itself leaves because its host's was taken back.
    let slot = &slot.host();
    let Some(known) = draft.state.slot(slot) else { return };
    let Some(fleet) = known.fleet.clone().filter(|_| known.state != SlotState::Unoffered || known.has_ahead()) else {
        return;
    };
    reclaim::taken_back(draft, &fleet, slot, asked_at, within_ms, seen_at);
}
