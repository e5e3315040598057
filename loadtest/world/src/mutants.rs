//! Mended defects, switched on again one at a time: whether the world would find them. They live here, between the machines, so that
//! production holds nothing of them.

use crate::cell::AGENT_LEASE_MS;
use crate::log::Log;
use crate::time::At;
use crate::world::Host;
use controller_core::state::Job;
use events_schema::ServerId;
use events_schema::orders::{AgentMessage, ControllerMessage};
use events_schema::report::Report;
use serde::{Deserialize, Serialize};

/// A defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mutant {
    /// A member's word that it has lost another counts only in the generation that the controller takes for the one in force.
    StaleLossesAreDropped,
    /// An order that has to leave later is started.
    LateOrdersStart,
    /// A deadline is converted by the wall clocks of two hosts.
    DeadlinesByTheWall,
    /// An agent's words are not heard while the log stalls, nor for a while after.
    LogStallGivesAgentsUp,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 4] = [
        Mutant::StaleLossesAreDropped,
        Mutant::LateOrdersStart,
        Mutant::DeadlinesByTheWall,
        Mutant::LogStallGivesAgentsUp,
    ];
}

/// The defects that are switched on.
#[derive(Debug, Clone, Default)]
pub struct Mutants(pub Vec<Mutant>);

impl Mutants {
    fn has(&self, mutant: Mutant) -> bool {
        self.0.contains(&mutant)
    }

    /// What a controller hears of what an agent says.
    #[must_use]
    pub fn heard(&self, message: AgentMessage, log: &Log, now: At) -> Option<AgentMessage> {
        let truth = &log.truth;
        let stalled = log.stalled_for_ms > AGENT_LEASE_MS && now < log.stalled_until.plus_ms(2 * AGENT_LEASE_MS);
        if stalled && self.has(Mutant::LogStallGivesAgentsUp) && matches!(message, AgentMessage::Heartbeat) {
            return None;
        }
        if self.has(Mutant::StaleLossesAreDropped)
            && let AgentMessage::Report {
                number,
                at,
                report: Report::PeersMissing { job, generation, begun: true, .. },
            } = &message
        {
            let in_force = truth.job(job).and_then(Job::active).map(|active| active.proposal.generation);
            // Its number still has to be taken, as of any report without effect.
            let silent = Report::SlotTakenBack { slot: events_schema::SlotId { server: nobody(), index: u16::MAX } };
            let dropped = AgentMessage::Report { number: *number, at: *at, report: silent };
            return Some(if in_force == Some(*generation) { message } else { dropped });
        }
        Some(message)
    }

    /// What an agent hears of what a controller says.
    #[must_use]
    pub fn orders(&self, message: ControllerMessage, hosts: &[Host], now: At) -> ControllerMessage {
        let ControllerMessage::Orders(mut orders) = message else { return message };
        for order in &mut orders.executors {
            let place = order.slot.server.as_str().rsplit('-').next().and_then(|n| n.parse::<usize>().ok());
            let Some(host) = place.and_then(|place| hosts.get(place + 1)) else { continue };
            let wall = host.clock.wall(now);
            if self.has(Mutant::LateOrdersStart) && order.leave_by.is_some_and(|by| by > wall) {
                (order.leave_by, order.leave_in_ms) = (None, None);
            }
            if self.has(Mutant::DeadlinesByTheWall) {
                order.leave_in_ms = order.leave_by.map(|by| by.since_ms(wall));
            }
        }
        ControllerMessage::Orders(orders)
    }
}

fn nobody() -> ServerId {
    ServerId::parse("nobody").unwrap_or_else(|e| unreachable!("{e}"))
}
