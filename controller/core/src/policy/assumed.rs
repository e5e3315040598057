//! Any policy, but with speeds that are assumed of W for every job: for services whose slots share processors, where what is measured says nothing of
//! the slots that a job would have, and for who wants plans that depend on demand alone.

use super::stride::Batches;
use super::{Packing, Plan, Policy, Share, Victims, View};
use events_schema::stride::Stride;

/// See the module.
pub struct WithAssumedSpeeds(pub Box<dyn Policy>);

impl Policy for WithAssumedSpeeds {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn plan(&self, view: &View) -> Plan {
        self.0.plan(view)
    }

    fn guarantees(&self, view: &View) -> Vec<Share> {
        self.0.guarantees(view)
    }

    fn packing(&self) -> Packing {
        self.0.packing()
    }

    fn mixes_types(&self) -> bool {
        self.0.mixes_types()
    }

    fn knows_quotas(&self) -> bool {
        self.0.knows_quotas()
    }

    fn shared_queue(&self) -> Option<u8> {
        self.0.shared_queue()
    }

    fn is_told_measured_speeds(&self) -> bool {
        false
    }

    fn stride(&self, job: &Batches<'_>, slots: u16) -> Stride {
        self.0.stride(job, slots)
    }

    fn forecast_day_ms(&self) -> Option<u64> {
        self.0.forecast_day_ms()
    }

    fn victims(&self) -> Victims {
        self.0.victims()
    }
}
