//! How a fact changes the state. Total: every fact is handled, none can fail, none is judged: that was `decide`'s part, and what came of it stands in
//! the fact. So no constant of policy is known here, and a log folds to the same state in every later build (`loadtest/world/tests/world/golden_log.rs`).
//! Facts of before they said so are judged in `version_one.rs`, as they were then.
//!
//! A fact about something unknown changes nothing: it can only stand in a log that another build wrote, and the state's
//! digest will say so.
//!
//! Next on a job's path: `controller/core/src/orders.rs`.

mod fleets;
mod generations;
mod guests;
mod jobs;
pub(crate) mod version_one;

use crate::state::troubles::{Damage, GivenUp, Loss, Restart, Straggler, Unreadable};
use crate::state::{Link, Server, State};
use events_schema::TimeMs;
use events_schema::fact::Fact;

impl State {
    /// Folds facts in, in their order: the same as one by one. Those that say of one slot after the other that it is reclaimed, or returned, are folded
    /// together: a fleet has thousands of slots.
    pub fn apply_all(&mut self, at: TimeMs, facts: &[Fact]) {
        for alike in facts.chunk_by(fleets::are_alike) {
            match alike {
                [Fact::SlotReclaimed { deadline, cause, asked_at, .. }, _, ..] => {
                    let at = self.begin(at);
                    fleets::reclaimed(self, asked_at.unwrap_or(at), fleets::slots_of(alike), *deadline, *cause);
                }
                [Fact::SlotReturned { .. }, _, ..] => {
                    let at = self.begin(at);
                    fleets::returned(self, at, fleets::slots_of(alike));
                }
                facts => facts.iter().for_each(|fact| self.apply(at, fact)),
            }
        }
    }

    /// The time of a fact whose batch says this one.
    fn begin(&mut self, at: TimeMs) -> TimeMs {
        // Time never goes back, whatever the clocks of two controllers say.
        self.at = self.at.max(at);
        if !self.slots.knows_servers() {
            self.slots.note_servers(self.servers.iter());
        }
        self.at
    }

    /// Folds one fact in. `at` is the time of its batch.
    pub fn apply(&mut self, at: TimeMs, fact: &Fact) {
        let at = self.begin(at);
        match fact {
            Fact::JobAccepted { job, tenant, command, spec, body_digest } => {
                jobs::accepted(self, at, job, tenant, command, spec, *body_digest);
            }
            Fact::CommandRefused { command, .. } | Fact::CommandTaken { command } => self.commands.remember(command),
            Fact::JobSuspending { job } => jobs::suspending(self, job),
            Fact::JobSuspended { job, attained_slot_ms } => jobs::suspended(self, job, *attained_slot_ms),
            Fact::JobResumed { job } => jobs::resumed(self, at, job),
            Fact::JobCancelled { job } => jobs::cancelled(self, at, job),
            Fact::JobFailed { job, reason } => jobs::failed(self, at, job, reason),
            Fact::JobFinished { job, outcome } => jobs::finished(self, at, job, outcome),
            Fact::PlanAdopted { job, slots, reason, attained_slot_ms, .. } => {
                jobs::plan_adopted(self, at, job, slots, reason, *attained_slot_ms);
            }
            Fact::QueueEntered { job, queue, promoted_slot_ms } => {
                jobs::queue_entered(self, at, job, *queue, *promoted_slot_ms);
            }
            Fact::JobExplained { job, reason } => jobs::explained(self, job, reason),
            Fact::CheckpointAccepted { job, checkpoint } => jobs::checkpoint_accepted(self, job, checkpoint),
            Fact::CheckpointRetired { job, manifest_key } => jobs::checkpoint_retired(self, job, manifest_key),
            Fact::CheckpointDamaged { job, generation, step, object, reason, instead } => {
                let (generation, step, instead, object, reason) =
                    (*generation, *step, *instead, object.clone(), reason.clone());
                jobs::checkpoint_damaged(self, job, Damage { at, generation, step, object, reason, instead });
            }
            Fact::CheckpointUnreadable { job, generation, step, reason } => {
                let (generation, step, reason) = (*generation, *step, reason.clone());
                jobs::checkpoint_unreadable(self, job, Unreadable { at, generation, step, reason });
            }
            Fact::JobRestarted { job, from, cause } => {
                let restart = cause.clone().map(|cause| Restart { at, from: *from, cause });
                jobs::restarted(self, job, restart);
            }
            Fact::Evaluated { job, step, metrics } => jobs::evaluated(self, job, *step, metrics.clone()),
            Fact::ExecutorAssigned { executor, slot } => generations::assigned(self, at, executor, slot),
            Fact::ExecutorReady { executor, address, class, replica_bytes, gradient_bytes } => {
                generations::ready(self, executor, address, *class, (*replica_bytes, *gradient_bytes));
            }
            Fact::ExecutorLeaving { executor, deadline, cause, verdict } => {
                generations::leaving(self, at, executor, *deadline, *cause, verdict.as_ref());
            }
            Fact::ExecutorStuck { executor, .. } => generations::stuck(self, executor),
            Fact::ExecutorGone { executor, slot, exit, verdict, awaited_until } => {
                let judged = verdict.as_ref().map(|verdict| (verdict, *awaited_until));
                generations::gone(self, at, executor, slot, exit, judged);
            }
            Fact::GenerationProposed { job, proposal } => generations::proposed(self, job, proposal),
            Fact::GenerationActive { job, generation, step, pause_us } => {
                generations::active(self, at, job, *generation, *step, *pause_us);
            }
            Fact::GenerationAbandoned { job, generation, cause, verdict } => {
                generations::abandoned(self, at, job, *generation, *cause, verdict.as_ref());
            }
            Fact::MemberDeparted { job, executor, leader, step, .. } => {
                generations::departed(self, job, executor, leader, *step)
            }
            Fact::DatasetRegistered { dataset } => {
                self.datasets.insert(dataset.name.clone(), dataset.clone());
            }
            Fact::DatasetRemoved { dataset } => {
                self.datasets.remove(dataset);
            }
            Fact::FleetDeclared { fleet, slots, offers, reclaim_deadline_ms } => {
                fleets::declared(self, at, fleet, slots, *offers, *reclaim_deadline_ms);
            }
            Fact::QuotaSet { tenant, quota_slots: Some(quota) } => {
                self.tenants.insert(tenant.clone(), *quota);
            }
            Fact::QuotaSet { tenant, quota_slots: None } => {
                self.tenants.remove(tenant);
            }
            Fact::DemandAccepted { fleet, sequence, needed, forecast } => {
                fleets::demand(self, at, fleet, *sequence, *needed, forecast.as_deref().unwrap_or_default());
            }
            Fact::FleetRecalled { fleet, slots } => fleets::recalled(self, fleet, Some(*slots)),
            Fact::FleetReleased { fleet } => fleets::recalled(self, fleet, None),
            Fact::SlotsOffered { slots, .. } => fleets::offered(self, at, slots),
            Fact::SlotBorrowed { slot, .. } => fleets::borrowed(self, slot),
            Fact::SlotReclaimed { slot, deadline, cause, asked_at, .. } => {
                fleets::reclaimed(self, asked_at.unwrap_or(at), std::iter::once(slot), *deadline, *cause);
            }
            Fact::SlotReturned { slot, .. } => fleets::returned(self, at, std::iter::once(slot)),
            Fact::SlotQuarantined { slot, reason, .. } => fleets::quarantined(self, slot, reason),
            Fact::SlotRecovered { slot, .. } => fleets::recovered(self, slot),
            Fact::ReplicasDiffered { job, slots, reason, verdict, .. } => {
                slots.iter().for_each(|slot| fleets::diverged(self, &slot.host(), reason));
                generations::diverged(self, at, job, verdict);
            }
            Fact::AgentJoined { server, incarnation, slots, class, address, devices, guests, slot_type } => {
                let (incarnation, slots, class) = (*incarnation, *slots, *class);
                let (address, devices) = (address.clone(), devices.clone());
                let (reports_through, connected, gone_at) = (0, true, None);
                let (guests, slot_type) = (*guests, *slot_type);
                let joined = Server {
                    incarnation,
                    reports_through,
                    slots,
                    class,
                    address,
                    connected,
                    gone_at,
                    devices,
                    guests,
                    slot_type,
                };
                fleets::agent_joined(self, server, joined);
            }
            Fact::AgentGone { server } => fleets::agent_gone(self, at, server),
            Fact::ReportsTaken { server, incarnation, through } => {
                fleets::reports_taken(self, server, *incarnation, *through)
            }
            // Nothing that is known here lies there any more.
            Fact::ObjectsSwept { .. } => {}
            // Said to their publisher; they changed nothing.
            Fact::SignalsRefused { .. } => {}
            Fact::InputRefused { .. } => self.counters.inputs_refused += 1,
            Fact::PeersMissing { job, generation, by, peers, .. } => {
                generations::peers_missing(self, at, job, *generation, by, peers);
            }
            Fact::ReplicaHeld { executor, .. } => generations::replica_held(self, executor),
            Fact::GenerationStepped { job, first_step_us, usual_step_us, members, stride, .. } => {
                generations::stepped(self, job, (*members, *stride), usual_step_us.unwrap_or(*first_step_us));
            }
            Fact::JobScaled { job, .. } => {
                if let Some(scaling) = self.live.get_mut(job).and_then(|job| job.scaling.as_mut()) {
                    scaling.trained = true;
                }
            }
            Fact::JobStalled { job, step, cause, blamed, remedy, anew } => {
                generations::stalled(self, at, job, *step, (*cause, blamed, *remedy), *anew);
            }
            Fact::SlotAvoided { job, slot, until, cause } => generations::slot_avoided(self, job, slot, *until, *cause),
            Fact::GrowthPaused { job, until, executor, cause } => {
                let given_up = GivenUp { at, executor: executor.clone(), cause: *cause };
                generations::growth_paused(self, job, *until, given_up);
            }
            Fact::MemberLost { executor, slot, noticed } => {
                let (executor, slot, noticed) = (executor.clone(), slot.clone(), noticed.clone());
                generations::lost(self, Loss { at, executor, slot, noticed });
            }
            Fact::MemberStraggles { executor, slot, unit_us, peers_unit_us, cause } => {
                let (slot, unit_us, peers_unit_us, cause) = (slot.clone(), *unit_us, *peers_unit_us, *cause);
                generations::straggles(self, executor, Straggler { since: at, slot, unit_us, peers_unit_us, cause });
            }
            Fact::TypesMeasured { job, times } => jobs::types_measured(self, job, times),
            Fact::LoadMeasured { executor, busy_percent } => {
                self.executors.change(executor, |executor| executor.busy_percent = Some(*busy_percent));
            }
            Fact::MemberKeepsUp { executor } => generations::keeps_up(self, executor),
            Fact::ServerForgotten { server } => {
                self.servers.remove(server);
                self.links.remove(server);
                self.slots.note_server(server, None);
            }
            Fact::PolicyChosen { policy, assumed_speeds, forecast_day_ms, fold_version } => {
                (self.planning.policy, self.planning.assumed_speeds) = (Some(policy.clone()), *assumed_speeds);
                self.planning.fold_version = *fold_version;
                fleets::forecast(self, *forecast_day_ms);
            }
            Fact::ThroughputMeasured { job, members, step_us, stride, spread } => {
                generations::throughput_measured(self, job, (*members, *stride), (*step_us, *spread));
            }
            Fact::LinkMeasured { server, from, bytes_per_s, until, found } => {
                let link = Link { from: from.clone(), bytes_per_s: *bytes_per_s, until: *until, found: *found };
                self.links.insert(server.clone(), link);
            }
            Fact::PlanFailed { .. } => {
                self.counters.plans_failed += 1;
                self.planning.failed_at = Some(at);
            }
        }
    }
}
