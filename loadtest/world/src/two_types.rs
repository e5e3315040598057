//! The weather over servers of two types, and jobs that may be on both at once: the same bits come out, whoever hosts more.

use crate::random::Random;
use crate::schedule::{Schedule, SlowType};
use crate::weather;

/// How many times as long a gradient takes on a slower type at most: a T4 beside a V100, and more.
const SLOWER_TYPE_MOST: u64 = 4;

/// Policies that mix types, and one that does not.
const POLICIES: [&str; 4] = ["easyscale", "lyra", "lyra", "ebb"];

/// The schedule of a seed, of servers of two types and jobs that may be on both at once, mostly under a policy that mixes them.
#[must_use]
pub fn schedule(seed: u64) -> Schedule {
    let mut schedule = weather::schedule(seed);
    let mut random = Random::new(seed ^ 0x0071_9e50);
    schedule.setup.policy = POLICIES[random.below(POLICIES.len() as u64) as usize].to_owned();
    let setup = &mut schedule.setup;
    let (from, times) = (weather::server(&mut random, setup), random.between(1, SLOWER_TYPE_MOST));
    // Jobs that one server is too small for begin in the core, which is of one class, and are bound to that.
    let min = setup.slots + 1;
    let fits = setup.core_servers * setup.slots > min * setup.jobs.len() as u16;
    let last_is_apart = setup.servers > setup.core_servers && fits;
    if last_is_apart {
        setup.jobs.iter_mut().for_each(|job| (job.min, job.max) = (min, job.max.max(min)));
    }
    setup.slow_type = Some(SlowType { from, times, last_is_apart });
    schedule
}
