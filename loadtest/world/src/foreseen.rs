//! Schedules in which fleets say what they are going to need, right or wrong. Nothing else is other than in the weather, but that every second one has its policy.

use crate::random::Random;
use crate::schedule::Schedule;
use crate::weather::{self, DAY_MS};
use controller_core::policy::POLICY_NAMES;

/// The schedule of a seed.
#[must_use]
pub fn schedule(seed: u64) -> Schedule {
    let mut schedule = weather::schedule(seed);
    let mut random = Random::new(seed ^ 0x0f0_2e5e_e000);
    if random.one_in(2) {
        POLICY_NAMES[0].clone_into(&mut schedule.setup.policy);
    }
    schedule.setup.foresees = true;
    schedule.setup.forecast_day_ms = Some(random.between(DAY_MS.0, DAY_MS.1));
    schedule
}
