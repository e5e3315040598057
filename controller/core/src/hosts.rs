//! How much of their slots hosts use, where another job could be their guest, and that is news: from what their agents say of it. Pure; part of the watch (`watch.rs`),
//! which hears it and reports it. Does not say what to do: `decide/guests.rs` writes it down and finds the guest slots beside those that leave enough.
//!
//! What is known goes into the log, so little of it is news: something else by [`NEWS_PERCENT`] than what is known, once a minute of each host, and only while there is a job
//! that could begin there.

use crate::decide::guests::is_shared;
use crate::policy::{Policy, policy_by_name};
use crate::state::{Job, JobPhase, State};
use events_schema::report::Report;
use events_schema::{ExecutorId, SlotId};
use std::collections::BTreeMap;

/// What a host uses is another part of its slot if it differs by so many hundredths: more than ten seconds of a steady training differ by, so that what is near a
/// limit is not said to be beyond it and below it in turn.
pub const NEWS_PERCENT: u8 = 10;
/// From one word of a host to the next: one that is now busy and now not, as between evaluations, is said so seldom.
pub const SAID_AGAIN_MS: u64 = 60_000;

/// When each host was last spoken of.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hosts {
    said_ms: BTreeMap<ExecutorId, u64>,
}

impl Hosts {
    /// Takes what hosts say that they use; what of it is news.
    pub fn look(&mut self, now_ms: u64, state: &State, said: impl Fn(&ExecutorId) -> Option<u8>) -> Vec<Report> {
        self.said_ms.retain(|executor, _| state.executor(executor).is_some());
        let Some(policy) = shares(state) else { return Vec::new() };
        let mut reports = Vec::new();
        for (guest, _) in state.guests().filter(|(_, slot)| slot.is_idle()) {
            let Some((executor, known)) = host(state, policy.as_ref(), guest) else { continue };
            let Some(busy_percent) = said(executor) else { continue };
            let is_news = known.is_none_or(|known| known.abs_diff(busy_percent) >= NEWS_PERCENT);
            let is_soon = self.said_ms.get(executor).is_some_and(|said_ms| now_ms < said_ms + SAID_AGAIN_MS);
            if is_news && !is_soon {
                self.said_ms.insert(executor.clone(), now_ms);
                reports.push(Report::LoadMeasured { executor: executor.clone(), busy_percent });
            }
        }
        reports
    }
}

/// By which policy slots are shared, if they are and some job could begin as a guest.
fn shares(state: &State) -> Option<Box<dyn Policy>> {
    state.guests().next()?;
    let policy = state.planning.policy.as_deref().and_then(policy_by_name)?;
    let queue = policy.shared_queue()?;
    let has_all = |job: &Job| job.slots().len() >= usize::from(job.spec.executors().max);
    let could_be = |job: &Job| match job.phase {
        JobPhase::Queued => true,
        _ => job.service.queue != queue && !has_all(job),
    };
    state.live.iter().any(|(_, job)| could_be(job)).then_some(policy)
}

/// Who is on the slot beside a guest slot, if it may be shared with, and what is known of it.
fn host<'a>(state: &'a State, policy: &dyn Policy, guest: &SlotId) -> Option<(&'a ExecutorId, Option<u8>)> {
    let executor = state.slot(&guest.host())?.executor.as_ref().filter(|_| is_shared(state, policy, guest))?;
    Some((executor, state.executor(executor)?.busy_percent))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::testing::{reported, training};
    use events_schema::command::OfferMode;
    use events_schema::fact::{Fact, PlanCause, PlanReason};
    use events_schema::job::JobSpec;
    use events_schema::{CommandId, Digest, FleetId, JobId, TenantId, TimeMs};
    use serde_json::json;

    const NOTHING: [u8; 0] = [];

    /// A job on two slots that have guest slots, under this policy.
    fn hosts(policy: &str) -> (State, JobId) {
        let job = JobId::parse("job-host").unwrap();
        let mut state = training(&job, 2, &json!({}));
        let (server, of) = state.servers().next().map(|(id, of)| (id.clone(), of.clone())).unwrap();
        let (slots, class, address, devices) = (of.slots, of.class, of.address.clone(), Vec::new());
        let (incarnation, guests, slot_type) = (of.incarnation, true, None);
        let policy = policy.to_owned();
        let fleet = FleetId::parse("local").unwrap();
        let slots_of = |index| SlotId { server: server.clone(), index };
        let offered: Vec<SlotId> = (0..slots).map(slots_of).collect();
        let (offers, reclaim_deadline_ms) = (OfferMode::ByDemand, 1_000);
        let lent = |slot: &SlotId| Fact::SlotBorrowed {
            slot: slot.clone(),
            fleet: Some(fleet.clone()),
            job: Some(job.clone()),
        };
        let (borrowed, planned): (Vec<Fact>, _) = (offered.iter().map(lent).collect(), offered.clone());
        let facts = [
            Fact::FleetDeclared { fleet: fleet.clone(), slots: offered.clone(), offers, reclaim_deadline_ms },
            Fact::SlotsOffered { fleet: fleet.clone(), slots: offered },
            Fact::AgentJoined {
                server: server.clone(),
                incarnation,
                slots,
                class,
                address,
                devices,
                guests,
                slot_type,
            },
            Fact::PolicyChosen { policy, assumed_speeds: None, forecast_day_ms: None, fold_version: None },
        ];
        // Of slots that nobody had declared nothing is known of who is there.
        let reason = PlanReason { policy: String::new(), cause: PlanCause::Gain, waits: None };
        let slots = planned.clone();
        let plan = Fact::PlanAdopted { job: job.clone(), slots, reason, from: None, attained_slot_ms: None };
        let executor = |number: u32| ExecutorId { job: job.clone(), number };
        let assigned =
            (0..).zip(planned).map(|(number, slot)| Fact::ExecutorAssigned { executor: executor(number), slot });
        let facts: Vec<Fact> = facts.into_iter().chain(borrowed).chain([plan]).chain(assigned).collect();
        facts.iter().for_each(|fact| state.apply(TimeMs(2), fact));
        (state, job)
    }

    /// Somebody waits.
    fn submit(state: &mut State) {
        let spec = Box::new(JobSpec::clone(&state.live_jobs().next().unwrap().1.spec));
        let (job, tenant) = (JobId::parse("job-waits").unwrap(), TenantId::parse("labs").unwrap());
        let (command, body_digest) = (CommandId::parse("c2").unwrap(), Digest([1; 32]));
        state.apply(TimeMs(3), &Fact::JobAccepted { job, tenant, command, spec, body_digest });
    }

    /// What is news of two hosts that use so much, half a second after the last time, and becomes known.
    fn news(hosts: &mut Hosts, now_ms: u64, state: &mut State, percent: [u8; 2]) -> Vec<u8> {
        let reports = hosts.look(now_ms, state, |executor| Some(percent[executor.number as usize]));
        let mut said = Vec::new();
        for report in reports {
            let Report::LoadMeasured { busy_percent, .. } = &report else { unreachable!() };
            said.push(*busy_percent);
            assert_eq!(reported(state, TimeMs(now_ms), report).len(), 1);
        }
        said
    }

    #[test]
    fn nothing_is_news_where_nobody_could_be_a_guest() {
        let (mut state, _) = hosts("antman");
        assert_eq!(news(&mut Hosts::default(), 500, &mut state, [30, 40]), NOTHING);
        submit(&mut state);
        assert_eq!(news(&mut Hosts::default(), 1_000, &mut state, [30, 40]), [30, 40]);
        let (mut state, _) = hosts("ebb");
        submit(&mut state);
        assert_eq!(news(&mut Hosts::default(), 500, &mut state, [30, 40]), NOTHING, "a policy that shares none");
        let mut state = training(&JobId::parse("job-host").unwrap(), 2, &json!({}));
        submit(&mut state);
        assert_eq!(news(&mut Hosts::default(), 500, &mut state, [30, 40]), NOTHING, "no guest slots");
    }

    /// However busy a host is said to be twice a second.
    #[test]
    fn a_host_is_spoken_of_once_a_minute_and_only_if_it_differs() {
        let ((mut state, _), mut hosts) = (hosts("antman"), Hosts::default());
        submit(&mut state);
        let mut said = Vec::new();
        for half in 0..1_200 {
            let flaps = if half % 40 < 20 { 10 } else { 95 };
            said.extend(news(&mut hosts, half * 500, &mut state, [flaps, 75 + (half % 10) as u8]));
        }
        let steady = said.iter().filter(|percent| (75..85).contains(*percent)).count();
        assert_eq!(steady, 1, "beyond a limit and below it in turn: {said:?}");
        assert!(said.len() - steady <= 11, "ten minutes: {said:?}");
    }
}
