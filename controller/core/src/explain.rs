//! Why a job has what it has and what it waits for, worked out when somebody asks.
//!
//! Not in the log: whom a job waits behind follows from who else is there, so with ten thousand waiting jobs one arrival would be ten
//! thousand facts. What a plan gives a job is a fact, with its cause; this adds the rest from the state, by the policy's own order.

use crate::decide::loans::Loans;
use crate::decide::plan::{Problem, waits};
use crate::decide::{bandwidth, classes, throughput};
use crate::policy::effort::Effort;
use crate::policy::{POLICY_NAMES, Policy, Share, policy_by_name};
use crate::state::{Job, JobPhase, Placement, State};
use events_schema::fact::{PlanCause, PlanReason, WaitCause};
use events_schema::job::Types;
use events_schema::{Digest, JobId, SlotId, TimeMs};
use std::cell::OnceCell;

/// The reasons of one state's jobs. The first question about a waiting job costs a look at all jobs and slots, the next ones
/// nearly nothing.
pub struct Reasons<'a> {
    state: &'a State,
    at: TimeMs,
    policy: Option<Box<dyn Policy>>,
    queue: OnceCell<(Problem<'a>, Vec<Share>)>,
    loans: OnceCell<Loans<'a>>,
}

impl<'a> Reasons<'a> {
    /// As of a state, at a time that is not before it.
    #[must_use]
    pub fn of(state: &'a State, at: TimeMs) -> Self {
        let policy = policy_by_name(policy_name(state));
        Self { state, at: state.at().max(at), policy, queue: OnceCell::new(), loans: OnceCell::new() }
    }

    fn loans(&self) -> &Loans<'a> {
        self.loans.get_or_init(|| Loans::of(self.state, self.at))
    }

    /// Why this job of the state has what it has; `None` of an ended one.
    #[must_use]
    pub fn of_job(&self, id: &JobId, job: &Job) -> Option<PlanReason> {
        let known = job.reason.as_ref();
        let (cause, waits) = match &job.phase {
            JobPhase::Finished { .. } | JobPhase::Failed { .. } | JobPhase::Cancelled { .. } => return None,
            JobPhase::Suspended => (PlanCause::Nothing, Some(WaitCause::Resume)),
            JobPhase::Queued => (PlanCause::Nothing, self.queued(id, job)),
            JobPhase::Starting(placement) | JobPhase::Running(placement, _) if !placement.slots.is_empty() => {
                let cause = known.map_or(PlanCause::Guarantee, |reason| reason.cause.clone());
                (cause, waits_placed(self.state, self.at, (id, job), self.usable(job, placement), self.loans()))
            }
            // On its way out: the plan that sent it there said why.
            JobPhase::Starting(_) | JobPhase::Running(..) | JobPhase::Suspending(..) => return known.cloned(),
        };
        Some(PlanReason { policy: policy_name(self.state).to_owned(), cause, waits })
    }

    /// The slots of a job's plan that it uses, or will as soon as it may: not those that it avoids for now, because of what happened there or because its
    /// code computes other bits there, and that it has nobody on.
    fn usable(&self, job: &Job, placement: &Placement) -> usize {
        let stays = |slot: &SlotId| {
            let there = self.state.slot(slot).and_then(|slot| slot.executor.as_ref());
            there.and_then(|number| self.state.executor(number)).is_some_and(|executor| executor.leaving.is_none())
        };
        placement.slots.iter().filter(|slot| !job.avoids(slot, self.at) || stays(slot)).count()
    }

    fn queued(&self, id: &JobId, job: &Job) -> Option<WaitCause> {
        let policy = self.policy.as_ref()?;
        let (problem, shares) = self.queue.get_or_init(|| {
            let problem = Problem::of(self.state, self.at, policy.as_ref(), Effort::without_end());
            let shares = policy.guarantees(&problem.view);
            (problem, shares)
        });
        // Jobs of a problem stand in the order of their arrival.
        let index = problem.jobs.binary_search_by_key(&job.arrival, |(_, job)| job.arrival).ok()?;
        debug_assert_eq!(problem.jobs[index].0, id);
        waits(self.at, problem, index, shares[index], 0)
    }
}

fn policy_name(state: &State) -> &str {
    state.planning.policy.as_deref().unwrap_or(POLICY_NAMES[0])
}

/// Why a job with so many slots has no more.
pub(crate) fn waits_placed(
    state: &State,
    at: TimeMs,
    of: (&JobId, &Job),
    slots: usize,
    loans: &Loans<'_>,
) -> Option<WaitCause> {
    let job = of.1;
    let until = job.faults.backoff_until();
    if at < until {
        return Some(WaitCause::Backoff { until });
    }
    let missing = u32::from(job.spec.executors().max).saturating_sub(slots as u32);
    if missing > 0 && state.measures_speeds() && !throughput::is_faster_on_more(job, slots as u16) {
        return Some(WaitCause::Speed);
    }
    let class = || class_apart(state, at, of, slots).map(WaitCause::Class);
    let link = || bandwidth::link_apart(state, at, of, slots).map(WaitCause::Link);
    let of_type = || is_apart_by_type(state, job, slots).then_some(WaitCause::Type);
    // What is idle is likely to be wanted again before it was worth it.
    let loan = || loans.keep_all_from(of.0, job).then_some(WaitCause::Offers);
    let waits = || class().or_else(of_type).or_else(link).or_else(loan).unwrap_or(WaitCause::Slots { missing });
    (missing > 0).then(waits)
}

/// Whether whatever is lent beyond the slots that a job has, and computes alike, is of another type, and it may be on one alone.
fn is_apart_by_type(state: &State, job: &Job, slots: usize) -> bool {
    let of_one = || job.slots().first().filter(|_| job.spec.types == Types::One).and_then(|slot| state.kind(slot));
    let Some(kind) = of_one() else { return false };
    let (mut of_type, mut of_others) = (0, 0);
    for (other, totals) in state.noted_slots().totals().filter(|(other, _)| other.mixes_with(&kind)) {
        *(if other.slot_type == kind.slot_type { &mut of_type } else { &mut of_others }) += totals.usable as usize;
    }
    of_type <= slots && of_others > 0
}

/// The numeric class that a job is bound to, if whatever is lent beyond the slots that it has is of another one: then it waits for no other job. Of a
/// job's own code it is what executors said, where those that are of another one were turned away; else that of the servers.
pub(crate) fn class_apart(state: &State, at: TimeMs, (id, job): (&JobId, &Job), slots: usize) -> Option<Digest> {
    let (noted, mut of_class, mut of_others) = (state.noted_slots(), 0, 0);
    for (kind, totals) in noted.totals().filter(|(kind, _)| kind.device || !job.spec.needs_device()) {
        let fits = job.class.is_none_or(|class| kind.class == class);
        *(if fits { &mut of_class } else { &mut of_others }) += totals.usable as usize;
    }
    let of_same_servers = |slot: &SlotId| job.class.is_none() || state.kind(slot).map(|kind| kind.class) == job.class;
    let is_lent = |slot: &&SlotId| noted.is_usable(slot) && of_same_servers(slot);
    let unlike = job.unlike.iter().filter(|slot| job.is_unlike(slot, at)).filter(is_lent).count();
    let class = if unlike > 0 { classes::bound(state, id) } else { job.class };
    (of_class <= slots + unlike && of_others + unlike > 0).then_some(class).flatten()
}
