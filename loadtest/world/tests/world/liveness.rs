//! What the weather of the other tests leaves out, under every policy: jobs that end, that need several slots or go before others, programs
//! that fail, fleets that declare other slots. And that all this means something: every kind of fact is decided.

use controller_core::policy::POLICY_NAMES;
use loadtest_world::random::Random;
use loadtest_world::schedule::{Act, Entry};
use loadtest_world::{Mutants, Outcome, Schedule, run, weather};
use std::collections::BTreeMap;

/// Steps of a job that ends while it is watched: minutes where ranks share a slot.
const STEPS: (u64, u64) = (20, 200);
/// Tenants of a schedule that has any.
const TENANTS: u64 = 2;
/// Before the healing everybody declares all slots again.
const DECLARED_BEFORE_MS: u64 = 500;

/// The schedule of a seed, with what the weather leaves out.
fn schedule(seed: u64, policy: &str) -> Schedule {
    let (mut schedule, mut random) = (weather::schedule(seed), Random::new(seed));
    policy.clone_into(&mut schedule.setup.policy);
    // Every job that is to run ends, however often its program fails.
    schedule.setup.max_restarts = 1_000;
    for job in &mut schedule.setup.jobs {
        job.steps = random.between(STEPS.0, STEPS.1);
        job.priority = random.below(3) as i32 - 1;
        job.min = random.between(1, u64::from(job.max.min(3))) as u16;
    }
    // A job is promised to go on where the core has room for it; whose minimum needs slots that may never be reached tries for ever.
    let room = schedule.setup.core_servers * schedule.setup.slots;
    if schedule.setup.jobs.iter().map(|job| job.min).sum::<u16>() > room {
        schedule.setup.jobs.iter_mut().for_each(|job| job.min = 1);
    }
    let (servers, slots, heal_at_ms) = (schedule.setup.servers, schedule.setup.slots, schedule.heal_at_ms);
    for _ in 0..random.below(8) {
        let at_ms = random.between(5_000, heal_at_ms - 2 * DECLARED_BEFORE_MS);
        let server = random.below(u64::from(servers)) as u16;
        let act = match random.below(2) {
            0 => Act::Declare { server, slots: random.below(u64::from(slots) + 1) as u16 },
            _ => Act::ExitExecutor { pick: random.draw(), status: 1 },
        };
        schedule.entries.push(Entry { at_ms, when: None, of: 0, act });
    }
    let at_ms = heal_at_ms - DECLARED_BEFORE_MS;
    schedule.entries.extend((0..servers).map(|server| Entry {
        at_ms,
        when: None,
        of: 0,
        act: Act::Declare { server, slots },
    }));
    // Half of them have tenants with quotas, which come and go; the others are as if there were no such thing.
    if random.one_in(2) {
        for job in &mut schedule.setup.jobs {
            job.tenant = Some(random.below(TENANTS) as u16);
        }
        for _ in 0..random.between(1, 4) {
            let at_ms = random.between(0, heal_at_ms);
            let slots = if random.one_in(4) { None } else { Some(random.below(5) as u32) };
            let act = Act::SetQuota { tenant: random.below(TENANTS) as u16, slots };
            schedule.entries.push(Entry { at_ms, when: None, of: 0, act });
        }
    }
    schedule.entries.sort_by_key(|entry| entry.at_ms);
    schedule
}

fn quiet() {
    std::panic::set_hook(Box::new(|panic| {
        if panic.location().is_some_and(|place| place.file().contains("tests")) {
            eprintln!("{panic}");
        }
    }));
}

fn well(seed: u64, policy: &str) -> Outcome {
    let schedule = schedule(seed, policy);
    let outcome = run(&schedule, &Mutants::default());
    let replay = || serde_json::to_string(&schedule).unwrap();
    assert!(outcome.finding.is_none(), "{policy}, seed {seed}: {:?}; replays as {}", outcome.finding, replay());
    outcome
}

#[test]
fn every_job_that_is_to_run_ends() {
    quiet();
    let mut ended: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for policy in POLICY_NAMES {
        for seed in 0..100 {
            for phase in well(seed, policy).jobs {
                *ended.entry((policy, phase)).or_default() += 1;
            }
        }
    }
    println!("{ended:?}");
    for ((policy, phase), jobs) in &ended {
        // A run is over when all goes on well, which may be before a long job's last step.
        let granted = ["finished", "cancelled", "suspended", "queued", "running"].contains(phase);
        assert!(granted, "{policy}: {jobs} jobs are {phase} at the end");
    }
    assert!(POLICY_NAMES.iter().all(|policy| ended[&(*policy, "finished")] > 50), "{ended:?}");
}

/// Guards the properties against becoming vacuous. That members of a new generation cannot link up has become rare: slow links are known before.
#[test]
fn the_seeds_reach_everything() {
    quiet();
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    for seed in 1_000..2_600 {
        for ((kind, detail), times) in well(seed, "ebb").facts {
            *seen.entry(format!("{kind} {detail}").trim_end().to_owned()).or_default() += times;
        }
    }
    println!("{seen:#?}");
    let expected = [
        "AgentGone",
        "AgentJoined",
        "ReportsTaken",
        "CheckpointAccepted",
        "CheckpointDamaged",
        "CheckpointRetired",
        "CommandRefused",
        "CommandTaken",
        "DatasetRegistered",
        "ExecutorAssigned",
        "ExecutorGone",
        "ExecutorLeaving end",
        "ExecutorLeaving plan",
        "ExecutorLeaving reclaim",
        "ExecutorLeaving useless",
        "ExecutorReady",
        "ReplicaHeld",
        "FleetDeclared",
        "DemandAccepted",
        "FleetRecalled",
        "FleetReleased",
        "QuotaSet",
        "GenerationAbandoned deadline",
        "GenerationAbandoned lost",
        "GenerationAbandoned superseded",
        "GenerationAbandoned unlinked",
        "GenerationActive",
        "MemberDeparted",
        "PeersMissing",
        "GenerationProposed checkpoint",
        "GenerationProposed fresh",
        "GenerationProposed recover",
        "GenerationProposed switch",
        "GenerationStepped",
        "JobAccepted",
        "JobCancelled",
        "JobFinished",
        "GrowthPaused",
        "JobRestarted",
        "JobResumed",
        "PlanAdopted",
        "PlanAdopted nothing",
        "SlotAvoided",
        "JobStalled round",
        "JobStalled wait",
        "JobStalled without the blamed",
        "JobScaled",
        "JobSuspended",
        "JobSuspending",
        "PlanFailed",
        "PolicyChosen",
        "SlotBorrowed",
        "SlotsOffered",
        "SlotReclaimed",
        "SlotReturned",
    ];
    let missing: Vec<_> = expected.iter().filter(|kind| !seen.contains_key(**kind)).collect();
    assert!(missing.is_empty(), "never seen: {missing:?}");
}
