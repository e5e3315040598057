//! A policy around another one: what it does not change is asked of the inner one, whatever that is.
//!
//! All wrappers are asked through the one list here of what a [`Policy`] has, so that none can leave anything out: a wrapper that forwarded some of it hid once
//! from the simulation of faults that its policy mixed types.

use super::stride::Batches;
use super::{Packing, Plan, Policy, Share, Victims, View};
use events_schema::stride::Stride;

/// Whoever has this is a [`Policy`] too.
pub trait Wraps: Send + Sync {
    /// The policy that is asked.
    fn inner(&self) -> &dyn Policy;

    /// [`Policy::plan`].
    fn wrapped_plan(&self, view: &View) -> Plan {
        self.inner().plan(view)
    }

    /// [`Policy::guarantees`].
    fn wrapped_guarantees(&self, view: &View) -> Vec<Share> {
        self.inner().guarantees(view)
    }

    /// [`Policy::is_told_measured_speeds`].
    fn wrapped_is_told_measured_speeds(&self) -> bool {
        self.inner().is_told_measured_speeds()
    }

    /// [`Policy::forecast_day_ms`].
    fn wrapped_forecast_day_ms(&self) -> Option<u64> {
        self.inner().forecast_day_ms()
    }
}

impl<T: Wraps> Policy for T {
    fn name(&self) -> &'static str {
        self.inner().name()
    }

    fn plan(&self, view: &View) -> Plan {
        self.wrapped_plan(view)
    }

    fn guarantees(&self, view: &View) -> Vec<Share> {
        self.wrapped_guarantees(view)
    }

    fn packing(&self) -> Packing {
        self.inner().packing()
    }

    fn knows_quotas(&self) -> bool {
        self.inner().knows_quotas()
    }

    fn shared_queue(&self) -> Option<u8> {
        self.inner().shared_queue()
    }

    fn host_busy_percent_max(&self) -> Option<u8> {
        self.inner().host_busy_percent_max()
    }

    fn mixes_types(&self) -> bool {
        self.inner().mixes_types()
    }

    fn is_told_measured_speeds(&self) -> bool {
        self.wrapped_is_told_measured_speeds()
    }

    fn stride(&self, job: &Batches<'_>, slots: u16) -> Stride {
        self.inner().stride(job, slots)
    }

    fn forecast_day_ms(&self) -> Option<u64> {
        self.wrapped_forecast_day_ms()
    }

    fn victims(&self) -> Victims {
        self.inner().victims()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    /// Methods of a block that begins with this line.
    fn methods(source: &str, begins: &str) -> Vec<String> {
        let block = source.split(begins).nth(1).unwrap().split("\n}").next().unwrap();
        let names = block.lines().filter_map(|line| line.strip_prefix("    fn ")?.split('(').next());
        names.map(str::to_owned).collect()
    }

    /// What has a default in the trait would be that of nobody.
    #[test]
    fn all_that_a_policy_has_is_asked_of_the_inner_one() {
        let asked = methods(include_str!("wraps.rs"), "impl<T: Wraps> Policy for T {");
        let all = methods(include_str!("mod.rs"), "pub trait Policy: Send + Sync {");
        assert!(all.len() > 10, "{all:?}");
        assert_eq!(asked, all, "in the order of the trait");
    }
}
