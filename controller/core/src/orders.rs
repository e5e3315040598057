//! What a server has to run, derived from the state: the whole of it, every time, so that a lost order costs nothing.
//!
//! An executor is listed from its assignment on. It is listed with `leave_by` while it leaves at a boundary. One that is to
//! stop at once is listed no more, except one that was not ready yet, and one of whose end no word came for long: its agent may not know of
//! it, or what it said may be lost, so it is listed as overdue (`leave_by` in the past) until the agent reports it gone, started or not. How much is left of a deadline is filled in when the
//! orders are sent.
//!
//! Next on a job's path: `controller/cell/src/links.rs`, which tells the agents.

use crate::state::{Executor, Job, State};
use events_schema::fact::Proposal;
use events_schema::orders::{ExecutorOrder, JobOrder};
use events_schema::{DatasetName, ExecutorId, JobId, ServerId};
use std::collections::BTreeSet;

/// Everything this server is to run, by slot. Keys are left out (a job's is zero): they never pass through here, the
/// controller's server fills them in.
#[must_use]
pub fn orders(state: &State, server: &ServerId) -> Vec<ExecutorOrder> {
    let executors = state.places_of(server).filter_map(|(_, slot)| slot.executor.as_ref());
    executors.filter_map(|number| order(state, number, state.executor(number)?)).collect()
}

/// Whose orders may have changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Touched {
    /// Those of every server.
    All,
    /// Those of these servers.
    Servers(BTreeSet<ServerId>),
}

/// The servers whose [`orders`], or whose place among the servers, may differ between a state and an earlier one: those with a
/// slot, an executor or an agent that has changed, and those that run anything of a job that has. Costs what has changed.
#[must_use]
pub fn touched(before: &State, after: &State) -> Touched {
    if !after.datasets.changed(&before.datasets).is_empty() {
        return Touched::All;
    }
    let servers = after.servers.changed(&before.servers).into_iter().map(|(server, _)| server.clone());
    let mut servers: BTreeSet<ServerId> = servers.collect();
    servers.extend(after.slots.changed(&before.slots).into_iter().map(|(slot, _)| slot.server.clone()));
    servers.extend(after.guests.changed(&before.guests).into_iter().map(|(slot, _)| slot.server.clone()));
    let changed = after.live.changed(&before.live).into_iter().chain(after.ended.changed(&before.ended));
    let mut jobs: BTreeSet<&JobId> = changed.map(|(job, _)| job).collect();
    for (executor, values) in after.executors.changed(&before.executors) {
        servers.extend(values.into_iter().flatten().map(|executor| executor.slot.server.clone()));
        jobs.insert(&executor.job);
    }
    for job in jobs {
        servers.extend(after.executors_of(job).map(|(_, executor)| executor.slot.server.clone()));
    }
    Touched::Servers(servers)
}

fn order(state: &State, number: &ExecutorId, executor: &Executor) -> Option<ExecutorOrder> {
    let job = state.job(&number.job)?;
    let leave_by = match executor.leaving {
        Some(leaving) if leaving.at_once() && executor.address.is_some() && !executor.stuck => return None,
        leaving => leaving.map(|leaving| leaving.deadline),
    };
    let named = |name: Option<&DatasetName>| match name {
        Some(name) => state.dataset(name).cloned().map(Some),
        None => Some(None),
    };
    let held_out = job.spec.evaluation.as_ref().and_then(|evaluation| evaluation.dataset.as_ref());
    let order = JobOrder {
        spec: Box::new(job.spec.as_ref().clone()),
        dataset: named(job.spec.dataset.as_ref())?,
        evaluation: named(held_out)?,
        key: [0; 32],
        proposal: proposal(job, number).cloned(),
        // Not a newcomer's business: it may have to go on from what the others leave.
        park: executor.replica && state.is_parking(&number.job),
        link_keys: Vec::new(),
        writer: None,
        ended_well: ended_well(job),
        restarts: job.restarts,
    };
    Some(ExecutorOrder {
        executor: number.clone(),
        slot: executor.slot.clone(),
        leave_by,
        job: order,
        leave_in_ms: None,
        trace: None,
    })
}

/// Members of a gang whose program has ended well: they left by themselves, and nobody will say more of them.
fn ended_well(job: &Job) -> Vec<u32> {
    let active = job.active().filter(|_| job.spec.gang().is_some());
    active.into_iter().flat_map(|active| active.left.keys()).map(|executor| executor.number).collect()
}

/// The newest membership that concerns an executor: it is a member, or a member of the one before, which has to learn that it
/// is left out.
fn proposal<'a>(job: &'a Job, number: &ExecutorId) -> Option<&'a Proposal> {
    let has = |proposal: &Proposal| proposal.members.iter().any(|member| member.executor == *number);
    let active = job.active().filter(|active| has(&active.proposal) || active.before.contains(number));
    let proposed = job.placement().and_then(|placement| placement.proposed.as_ref());
    match (proposed, active) {
        (Some(proposed), Some(_)) => Some(proposed),
        (Some(proposed), None) if has(proposed) => Some(proposed),
        (_, Some(active)) => Some(&active.proposal),
        (_, None) => None,
    }
}
