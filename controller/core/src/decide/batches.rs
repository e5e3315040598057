//! With how large a batch a generation trains, of a job that says a range: the policy's word, asked for as many members as the generation has.

use crate::policy::policy_by_name;
use crate::policy::stride::Batches;
use crate::state::{Active, Job};
use events_schema::stride::Stride;

/// Steps that an update of so many members takes.
pub(super) fn stride(policy: &str, job: &Job, members: usize) -> Stride {
    let most = job.spec.stride_max();
    let Some(placement) = job.placement().filter(|_| !most.is_one()) else { return Stride::ONE };
    let slots = u16::try_from(members).unwrap_or(u16::MAX);
    let (workers, fewest) = (job.spec.workers.max, job.spec.workers.min);
    let batches = Batches { workers, fewest, most, update_us: &placement.update_us };
    policy_by_name(policy).map_or(Stride::ONE, |policy| policy.stride(&batches, slots)).min(most)
}

/// Whether the members in force are to train with another batch: some departed since it was chosen, or more was measured.
pub(super) fn is_another(policy: &str, job: &Job, active: &Active) -> bool {
    job.spec.batch_range.is_some() && stride(policy, job, active.members.len()) != active.proposal.stride
}
