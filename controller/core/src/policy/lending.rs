//! Any policy, but with lending as is said and not as the policy has it: by a forecast or without, and of days of another length, for services on which
//! recorded days pass faster.

use super::{Policy, Wraps};

/// See the module.
pub struct WithLending {
    /// What is asked.
    pub policy: Box<dyn Policy>,
    /// After how long needs come again; none: no forecast.
    pub forecast_day_ms: Option<u64>,
}

impl Wraps for WithLending {
    fn inner(&self) -> &dyn Policy {
        &*self.policy
    }

    fn wrapped_forecast_day_ms(&self) -> Option<u64> {
        self.forecast_day_ms
    }
}
