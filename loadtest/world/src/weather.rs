//! The seeded schedule of faults: what there is, who asks for what, and what breaks when. Faults come in any number, over each other, and some
//! outside the core never end.

use crate::chance::Chance;
use crate::schedule::{Act, ClockSetup, Entry, JobSetup, Place, Schedule, Setup};

/// When faults begin: jobs are submitted and slots lent by then.
const FAULTS_FROM_MS: u64 = 12_000;
/// How long they go on.
const FAULTS_FOR_MS: (u64, u64) = (30_000, 90_000);
/// When, after the healing, the first fleet of the core needs a slot, and until when.
pub const CORE_NEEDS_MS: (u64, u64) = (20_000, 45_000);
/// Longer than any run.
const FOR_EVER_MS: u64 = 100_000_000;

/// The schedule of a seed.
#[must_use]
pub fn schedule(seed: u64) -> Schedule {
    let mut chance = Chance::new(seed ^ 0x0eb_b0eb_b0eb);
    let setup = setup(&mut chance);
    let heal_at_ms = FAULTS_FROM_MS + chance.between(FAULTS_FOR_MS.0, FAULTS_FOR_MS.1);
    let mut entries: Vec<Entry> = (0..setup.servers)
        .map(|server| Entry { at_ms: 2_000, act: Act::Demand { server, needed: first_need(&mut chance, &setup) } })
        .collect();
    let faults = chance.between(1, 24);
    for _ in 0..faults {
        let at_ms = chance.between(FAULTS_FROM_MS, heal_at_ms - 1_000);
        entries.push(Entry { at_ms, act: act(&mut chance, &setup) });
    }
    if usize::from(setup.core_servers * setup.slots) > setup.jobs.len() {
        // A core fleet needs one slot for a while: jobs shrink and grow also when all is well.
        let (at_ms, act) = (heal_at_ms + CORE_NEEDS_MS.0, Act::Demand { server: 0, needed: 1 });
        entries.push(Entry { at_ms, act });
    }
    if chance.one_in(3) {
        entries.extend(late_orders(&mut chance, &setup, heal_at_ms));
    }
    entries.sort_by_key(|entry| entry.at_ms);
    Schedule { seed, setup, entries, heal_at_ms }
}

/// A fleet lends, and takes back at the agent before the agent has heard what is to run there.
fn late_orders(chance: &mut Chance, setup: &Setup, heal_at_ms: u64) -> Vec<Entry> {
    let (server, at_ms) = (chance.below(u64::from(setup.servers)) as u16, chance.between(FAULTS_FROM_MS, heal_at_ms));
    let all = u32::from(setup.slots);
    let take_back = Act::TakeBack { server, slots: (0..setup.slots).collect(), within_ms: chance.between(200, 3_000) };
    vec![
        Entry { at_ms: at_ms.saturating_sub(3_000), act: Act::Demand { server, needed: all } },
        Entry { at_ms, act: Act::Cut { from: 0, to: server + 1, for_ms: chance.between(1_000, 1_900) } },
        Entry { at_ms: at_ms + 20, act: Act::Demand { server, needed: 0 } },
        Entry { at_ms: at_ms + 20 + chance.between(100, 800), act: take_back },
    ]
}

fn first_need(chance: &mut Chance, setup: &Setup) -> u32 {
    if chance.one_in(3) { chance.below(u64::from(setup.slots)) as u32 } else { 0 }
}

fn setup(chance: &mut Chance) -> Setup {
    let servers = chance.between(1, 4) as u16;
    let core_servers = chance.between(1, u64::from(servers)) as u16;
    let slots = chance.between(1, 3) as u16;
    let core_slots = core_servers * slots;
    let jobs = (0..chance.between(1, 2).min(u64::from(core_slots)))
        .map(|_| JobSetup {
            min: 1,
            max: chance.between(1, 6) as u16,
            steps: 100_000,
            checkpoint_every: chance.between(3, 40),
            priority: 0,
        })
        .collect();
    let clock = |_| ClockSetup {
        drift_ppm: chance.between(0, 400) as i64 - 200,
        ahead_ms: if chance.one_in(3) { chance.between(0, 20_000) as i64 - 10_000 } else { 0 },
    };
    let clocks = (0..=servers).map(clock).collect();
    let slow_links = chance.one_in(3);
    Setup {
        servers,
        core_servers,
        slots,
        jobs,
        unit_ms: chance.between(80, 600),
        build_ms: chance.between(200, 6_000),
        latency_us: chance.between(100, 5_000),
        link_bytes_per_s: if slow_links { 5_000_000 } else { 125_000_000 },
        store_bytes_per_s: 100_000_000,
        element_bytes: if slow_links { chance.between(5_000, 40_000) } else { chance.between(5_000, 500_000) },
        loan_lease_ms: if chance.one_in(4) { 20_000 } else { 600_000 },
        reclaim_deadline_ms: chance.between(500, 20_000),
        clocks,
        policy: "ebb".to_owned(),
    }
}

fn short_ms(chance: &mut Chance) -> u64 {
    match chance.below(3) {
        0 => chance.between(50, 2_000),
        1 => chance.between(1_000, 8_000),
        _ => chance.between(5_000, 25_000),
    }
}

fn act(chance: &mut Chance, setup: &Setup) -> Act {
    let server = chance.below(u64::from(setup.servers)) as u16;
    let outside = server >= setup.core_servers;
    let for_ms = if outside && chance.one_in(3) { FOR_EVER_MS } else { short_ms(chance) };
    let pick = chance.draw();
    let place = |chance: &mut Chance| chance.below(u64::from(setup.servers) + 1) as Place;
    match chance.below(100) {
        0..=17 => Act::Demand { server, needed: chance.below(u64::from(setup.slots) + 1) as u32 },
        18..=23 => Act::TakeBack {
            server,
            slots: (0..setup.slots).filter(|_| chance.one_in(2)).collect(),
            within_ms: chance.between(200, 10_000),
        },
        24..=25 => Act::RedButton { server },
        26 => Act::Cancel { job: chance.below(8) as u16 },
        27..=28 => Act::Suspend { job: chance.below(2) as u16 },
        29..=31 => Act::Resume { job: chance.below(2) as u16 },
        32..=41 => Act::KillExecutor { pick },
        42..=46 => Act::StopExecutor { pick, for_ms: short_ms(chance) },
        47..=49 => Act::CrashAgent { server, down_ms: for_ms },
        50..=53 => Act::StopAgent { server, for_ms },
        54..=56 => Act::CrashServer { server, down_ms: for_ms },
        57..=59 => Act::SlowServer { server, times: chance.between(2, 12), for_ms },
        60..=63 => Act::CrashController { down_ms: short_ms(chance) },
        64..=65 => Act::StopController { for_ms: short_ms(chance) },
        66..=67 => Act::RivalController,
        68..=74 => {
            let from = place(chance);
            let (from, to) = (if from == server + 1 { 0 } else { from }, server + 1);
            let for_ms = if from == 0 || !outside { short_ms(chance) } else { for_ms };
            if chance.one_in(2) { Act::Cut { from, to, for_ms } } else { Act::Cut { from: to, to: from, for_ms } }
        }
        75..=80 => Act::ResetLinks { from: place(chance).max(1), to: server + 1 },
        81..=82 => Act::SlowLinks { times: chance.between(2, 40), for_ms: short_ms(chance) },
        83..=85 => Act::StallLog { for_ms: short_ms(chance) },
        86..=87 => Act::LoseAcknowledgements { for_ms: short_ms(chance) },
        88..=89 => Act::AppendLate { for_ms: short_ms(chance) },
        90 => Act::RefuseAppends { for_ms: short_ms(chance) },
        91..=92 => Act::StoreAway { for_ms: short_ms(chance) },
        93 => Act::SlowStore { times: chance.between(2, 40), for_ms: short_ms(chance) },
        94..=95 => Act::DamageCheckpoint { job: chance.below(2) as u16 },
        96 => Act::FullDisk { server, for_ms: short_ms(chance) },
        97 => Act::JumpClock { place: place(chance), by_ms: chance.between(0, 240_000) as i64 - 120_000 },
        _ => Act::PolicyPanics { for_ms: short_ms(chance) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_one_schedule_and_its_file_gives_it_again() {
        for seed in 0..50 {
            let one = schedule(seed);
            assert_eq!(one, schedule(seed));
            let text = serde_json::to_string(&one).unwrap_or_default();
            assert_eq!(serde_json::from_str::<Schedule>(&text).ok(), Some(one));
        }
    }
}
