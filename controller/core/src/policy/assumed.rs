//! Any policy, but with speeds that are assumed of W for every job: for services whose slots share processors, where what is measured says nothing of
//! the slots that a job would have, and for who wants plans that depend on demand alone.

use super::{Policy, Wraps};

/// See the module.
pub struct WithAssumedSpeeds(pub Box<dyn Policy>);

impl Wraps for WithAssumedSpeeds {
    fn inner(&self) -> &dyn Policy {
        &*self.0
    }

    fn wrapped_is_told_measured_speeds(&self) -> bool {
        false
    }
}
