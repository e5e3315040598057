//! Schedules in which a server's link becomes slow under a job that trains, and nothing else happens. What has to come of it: `slowed.rs`.

use crate::numbers::PARAMETERS;
use crate::random::Random;
use crate::schedule::{Act, Entry, Schedule};
use crate::weather::{at, few_servers, server, trains_on};

/// When it is known how long a calm job's steps take, when its link then becomes slow, for how long that is looked at, and how many times as long as
/// without that link steps are.
const SEEN_MS: u64 = 100_000;
const WINDOWS_MS: u64 = 60_000;
const SLOW_FOR_MS: u64 = 210_000;
const TIMES_AS_LONG: (u64, u64) = (3, 10);
/// In some, something else begins on every server at that moment, and all gradients take so many times as long: less than steps do.
const TIMES_BUSY: u64 = 2;

/// A schedule of a family in which nothing else happens: a job trains on two or three servers, the links of one of which become slow, so that steps take
/// several times as long as without it. In some there is an idle server beside them; in some, gradients become longer too.
#[must_use]
pub fn link_becomes_slow(seed: u64) -> Schedule {
    let mut random = Random::new(seed ^ 0x0051_0711);
    let mut setup = few_servers(&mut random);
    let servers = setup.servers;
    let members = if servers > 2 && random.one_in(2) { servers - 1 } else { servers };
    setup.jobs = vec![trains_on(members, random.between(100, 400), None)];
    (setup.link_bytes_per_s, setup.element_bytes) = (1_250_000_000, random.between(40_000, 200_000));
    setup.measured_speeds = random.one_in(2);
    let without_ms = u64::from(members.div_ceil(members - 1)) * setup.unit_ms;
    let gradient_bytes = PARAMETERS as u64 * setup.element_bytes;
    let bytes_per_s = gradient_bytes * 1_000 / (without_ms * random.between(TIMES_AS_LONG.0, TIMES_AS_LONG.1));
    let mut entries: Vec<Entry> = (0..servers).map(|server| at(2_000, Act::Demand { server, needed: 0 })).collect();
    let at_ms = SEEN_MS + random.below(WINDOWS_MS);
    entries.push(at(at_ms, Act::SlowLinkOf { server: server(&mut random, &setup), bytes_per_s }));
    if random.one_in(2) {
        let busy = |server| at(at_ms, Act::SlowServer { server, times: TIMES_BUSY, for_ms: SLOW_FOR_MS });
        entries.extend((0..servers).map(busy));
    }
    Schedule { seed, setup, entries, heal_at_ms: at_ms + SLOW_FOR_MS }
}
