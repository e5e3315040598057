//! What a change finds: whether the job, fleet, dataset or tenant is still what whoever asked for the change had read. Pure.
//!
//! A version is a digest of what this build knows of a thing, so more makes it differ than is shown to anybody; whoever compares what is shown asks
//! again then (`gateway/src/submit.rs`). Two builds may disagree about it, which refuses a change and never lets one through.
//! What a thing is shown with and does not hold itself (why a job waits: for others) is not in its version.

use crate::state::State;
use events_schema::batch::to_bytes;
use events_schema::command::{Command, Expected};
use events_schema::fact::Refusal;
use events_schema::{Digest, FleetId};

/// What a command would change, as it is.
#[must_use]
pub fn found(state: &State, command: &Command) -> Expected {
    let version = match command {
        Command::SubmitJob { job, .. }
        | Command::CancelJob { job }
        | Command::SuspendJob { job }
        | Command::ResumeJob { job } => state.job(job).map(|job| Digest::of(&to_bytes(job))),
        Command::RegisterDataset { dataset } => state.dataset(&dataset.name).map(|known| Digest::of(&to_bytes(known))),
        Command::RemoveDataset { dataset } => state.dataset(dataset).map(|known| Digest::of(&to_bytes(known))),
        Command::PutFleet { fleet, .. }
        | Command::OfferSlots { fleet, .. }
        | Command::ReclaimSlots { fleet, .. }
        | Command::RecallFleet { fleet, .. }
        | Command::ReleaseFleet { fleet }
        | Command::TellRefused { fleet, .. } => of_fleet(state, fleet),
        Command::SetQuota { tenant, .. } => state.quota(tenant).map(|quota| Digest::of(&to_bytes(&quota))),
    };
    version.map_or(Expected::Absent, Expected::As)
}

/// A fleet with its slots, and what is known of the servers that have them.
fn of_fleet(state: &State, name: &FleetId) -> Option<Digest> {
    let fleet = state.fleet(name)?;
    let slots = fleet.slots.iter().map(|id| {
        let server = state.server(&id.server).map(|server| (server.connected, server.slots, server.class));
        let device = state.server(&id.server).and_then(|server| server.device(id.index));
        to_bytes(&(state.slot(id), server, device))
    });
    let guests = fleet.slots.iter().filter_map(|id| state.slot(&id.guest())).map(to_bytes);
    let digests: Vec<Digest> = slots.chain(guests).map(|bytes| Digest::of(&bytes)).collect();
    Some(Digest::of(&to_bytes(&(fleet, digests))))
}

/// Refuses a command that expects something else than there is.
pub(crate) fn ensure(state: &State, command: &Command, expected: Option<Expected>) -> Result<(), Refusal> {
    match expected {
        Some(expected) if expected != found(state, command) => Err(Refusal::Changed),
        _ => Ok(()),
    }
}
