//! Any policy, but with lending as is said and not as the policy has it: by a forecast or without, and of days of another length, for services on which
//! recorded days pass faster.

use super::stride::Batches;
use super::{Packing, Plan, Policy, Share, Victims, View};
use events_schema::stride::Stride;

/// See the module.
pub struct WithLending {
    /// What is asked.
    pub policy: Box<dyn Policy>,
    /// After how long needs come again; none: no forecast.
    pub forecast_day_ms: Option<u64>,
}

impl Policy for WithLending {
    fn name(&self) -> &'static str {
        self.policy.name()
    }

    fn plan(&self, view: &View) -> Plan {
        self.policy.plan(view)
    }

    fn guarantees(&self, view: &View) -> Vec<Share> {
        self.policy.guarantees(view)
    }

    fn packing(&self) -> Packing {
        self.policy.packing()
    }

    fn mixes_types(&self) -> bool {
        self.policy.mixes_types()
    }

    fn knows_quotas(&self) -> bool {
        self.policy.knows_quotas()
    }

    fn shared_queue(&self) -> Option<u8> {
        self.policy.shared_queue()
    }

    fn is_told_measured_speeds(&self) -> bool {
        self.policy.is_told_measured_speeds()
    }

    fn stride(&self, job: &Batches<'_>, slots: u16) -> Stride {
        self.policy.stride(job, slots)
    }

    fn forecast_day_ms(&self) -> Option<u64> {
        self.forecast_day_ms
    }

    fn victims(&self) -> Victims {
        self.policy.victims()
    }
}
