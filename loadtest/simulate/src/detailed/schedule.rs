//! A setup as a schedule of the world: its servers as groups, its jobs with what their steps take, its fleets' needs as what they say, and what moves cost as
//! the bandwidths that make them cost it. Nothing in it breaks.

use super::{DetailedError, JOBS_MAX, SERVERS_MAX, SPAN_MS_MAX, UPDATES_MAX};
use crate::setup::{Demand, Job, Setup};
use events_schema::job::Length;
use events_schema::stride::Stride;
use loadtest_world::groups::Group;
use loadtest_world::numbers::REPLICA;
use loadtest_world::schedule::{Act, ClockSetup, Entry, JobSetup, Schedule, Setup as Places};
use std::collections::BTreeSet;

/// When fleets first say what they need: there is a controller by then, and agents have joined.
const LENT_FROM_MS: u64 = 2_000;
/// When the setup begins.
pub(super) const BEGIN_MS: u64 = 10_000;
/// Between two servers of one room, one way.
const LATENCY_US: u64 = 100;
/// A replica has so many bytes, and bandwidths are what copies it in the time that the setup says.
const REPLICA_BYTES: u64 = 200_000_000;
/// As a service that is not told otherwise.
const LOAN_LEASE_MS: u64 = 600_000;
const MAX_RESTARTS: u32 = 1_000;
/// Objects that nobody wants come of what breaks, and nothing does.
const SWEEP_MS: u64 = 14_400_000;
/// Options that leave fewer jobs.
pub(super) const CUT: &str = "--first, --scale or --to";

/// Whether a setup can be run in detail under a policy.
pub(super) fn fits(setup: &Setup, policy: &str) -> Result<(), DetailedError> {
    is_known(setup, policy)?;
    is_small(setup)
}

/// The schedule of a setup that fits, under a policy; needs go on until a time after its beginning.
pub(super) fn of(setup: &Setup, policy: &str, until_ms: u64) -> Schedule {
    let tenants: BTreeSet<&str> = tenants(setup).collect();
    let number = |tenant: &str| tenants.iter().position(|of| *of == tenant).map(|number| number as u16);
    let groups = groups(setup);
    let servers = groups.iter().map(|group| group.servers).sum();
    let bytes_per_s = |ms: u64| REPLICA_BYTES * 1_000 / ms.max(1);
    let places = Places {
        servers,
        core_servers: servers,
        slots: 1,
        guests: false,
        jobs: setup.jobs.iter().map(|of| job(of, of.tenant.as_deref().and_then(number))).collect(),
        unit_ms: 1,
        build_ms: setup.costs.start_ms,
        latency_us: LATENCY_US,
        jitter_us: 0,
        link_bytes_per_s: bytes_per_s(setup.costs.copy_ms),
        // The recording's steps had their exchange in them.
        weightless_sums: true,
        slow_link: None,
        slow_type: None,
        store_bytes_per_s: bytes_per_s(setup.costs.save_ms),
        sweep_ms: Some(SWEEP_MS),
        element_bytes: REPLICA_BYTES / REPLICA as u64,
        loan_lease_ms: LOAN_LEASE_MS,
        reclaim_deadline_ms: setup.reclaim_deadline_ms,
        clocks: vec![ClockSetup { drift_ppm: 0, ahead_ms: 0 }; usize::from(servers) + 1],
        policy: policy.to_owned(),
        measured_speeds: true,
        forecast_day_ms: None,
        foresees: false,
        store_patience_ms: None,
        max_restarts: MAX_RESTARTS,
        groups,
    };
    let quota = |(tenant, slots): (&events_schema::TenantId, &u32)| {
        let act = Act::SetQuota { tenant: number(tenant.as_str())?, slots: Some(*slots) };
        Some(Entry { at_ms: LENT_FROM_MS, when: None, of: 0, act })
    };
    let mut entries: Vec<Entry> = setup.quotas.iter().filter_map(quota).collect();
    let firsts = places.fleet_places();
    for said in needs(setup, until_ms) {
        let act = Act::Demand { server: firsts[said.fleet] - 1, needed: said.asked };
        let at_ms = if said.at_ms == 0 { LENT_FROM_MS } else { BEGIN_MS + said.at_ms };
        entries.push(Entry { at_ms, when: None, of: 0, act });
    }
    entries.sort_by_key(|entry| entry.at_ms);
    // Nothing breaks, so nothing heals.
    Schedule { seed: setup.seed, setup: places, entries, heal_at_ms: u64::MAX }
}

fn tenants(setup: &Setup) -> impl Iterator<Item = &str> {
    setup.jobs.iter().filter_map(|job| job.tenant.as_deref()).chain(setup.quotas.keys().map(|tenant| tenant.as_str()))
}

/// Whether the world has all that a setup has.
fn is_known(setup: &Setup, policy: &str) -> Result<(), DetailedError> {
    let any = |of: fn(&Job) -> bool| setup.jobs.iter().any(of);
    let asked = [
        (setup.sharing.is_some(), "speeds of jobs that share a slot", "--guests"),
        (setup.failures.is_some(), "servers that break, which `ebb simulate chaos` has", "--server-fails-hours"),
        (setup.round_ms.is_some(), "plans in rounds", "--round-s, or with --round-s 0"),
        (setup.mixed_types, "jobs on several types of slots at once", "--mixed-types"),
        (any(|job| job.goodput.is_some()), "progress by the epoch", "--work goodput"),
        (any(|job| !job.strided.is_empty()), "speeds of batches that move", "`batch_max` in the recording"),
        (policy == "ibm-dp-drop", "jobs that a policy rejects", "the policy ibm-dp-drop (--policies)"),
    ];
    match asked.into_iter().find(|(is_asked, ..)| *is_asked) {
        Some((_, what, option)) => Err(DetailedError::Unknown { what, option }),
        None => Ok(()),
    }
}

/// Whether it can be run in detail in some minutes.
fn is_small(setup: &Setup) -> Result<(), DetailedError> {
    let groups = || setup.cluster.groups.iter().chain(&setup.inference.groups);
    let servers = groups().map(|group| u64::from(group.servers)).sum();
    let updates = setup.jobs.iter().map(|job| job.total().ceil() as u64 * u64::from(job.asked)).sum();
    let submitted = || setup.jobs.iter().map(|job| job.submitted_ms);
    let span_ms = submitted().max().unwrap_or(0) - submitted().min().unwrap_or(0);
    let large = [
        ("jobs", setup.jobs.len() as u64, JOBS_MAX as u64, CUT),
        ("servers", servers, SERVERS_MAX, "a smaller --cluster or --inference"),
        ("updates (steps × slots asked for)", updates, UPDATES_MAX, "--first, --scale, --to or a longer --step-ms"),
        ("seconds between the first and the last submission", span_ms / 1_000, SPAN_MS_MAX / 1_000, "--first or --to"),
    ];
    match large.into_iter().find(|(_, found, most, _)| found > most) {
        Some((what, found, most, cut)) => Err(DetailedError::Large { what, found, most, cut }),
        None => Ok(()),
    }
}

fn groups(setup: &Setup) -> Vec<Group> {
    let of = |group: &crate::Group| Group {
        servers: group.servers as u16,
        slots: group.slots,
        class: group.kind.clone(),
        times_milli: (1_000.0 / group.speed).round().max(1.0) as u64,
    };
    setup.cluster.groups.iter().chain(&setup.inference.groups).map(of).collect()
}

fn job(of: &Job, tenant: Option<u16>) -> JobSetup {
    let workers = of.spec.workers;
    let Length::Steps(steps) = of.spec.length else { unreachable!("recorded jobs count steps") };
    let step_us = |members: u16| (1_000.0 / of.pace(&[members], Stride::ONE).0.rate(0.0)).round().max(1.0) as u64;
    JobSetup {
        submitted_ms: BEGIN_MS + of.submitted_ms,
        step_us: (1..=workers.max).map(step_us).collect(),
        min: workers.min,
        max: workers.max,
        steps,
        checkpoint_every: of.spec.checkpoint.every.steps().unwrap_or(steps),
        compare_every: None,
        priority: of.spec.priority,
        tenant,
        without_determinism: false,
        profile_s: of.spec.profile.as_ref().map(|profile| profile.seconds),
        stride_max: None,
    }
}

/// A fleet needs another number of slots, or what it needs by its curve is another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Need {
    pub at_ms: u64,
    pub fleet: usize,
    pub needed: u32,
    /// What it asks for.
    pub asked: u32,
}

/// What fleets say that they need, by time; all say so at the beginning.
pub(super) fn needs(setup: &Setup, until_ms: u64) -> Vec<Need> {
    of_fleets(setup, until_ms, |demand| &demand.signals)
}

/// What they need by their curves, whatever they say.
pub(super) fn risen(setup: &Setup, until_ms: u64) -> Vec<Need> {
    of_fleets(setup, until_ms, |demand| if demand.curve.is_empty() { &demand.signals } else { &demand.curve })
}

fn of_fleets(setup: &Setup, until_ms: u64, points: fn(&Demand) -> &Vec<(u64, u32)>) -> Vec<Need> {
    let lent = (0..setup.cluster.groups.len()).map(|fleet| Need { at_ms: 0, fleet, needed: 0, asked: 0 });
    let mut all: Vec<Need> = lent.collect();
    for (place, group) in setup.inference.groups.iter().enumerate() {
        let (fleet, slots) =
            (setup.cluster.groups.len() + place, u32::try_from(group.slots_total()).unwrap_or(u32::MAX));
        let Some(demand) = setup.demand.get(place).filter(|demand| !points(demand).is_empty()) else {
            all.push(Need { at_ms: 0, fleet, needed: 0, asked: 0 });
            continue;
        };
        let need = |at_ms, needed| Need { at_ms, fleet, needed, asked: demand.asks_for(needed, slots) };
        let mut round_ms = 0;
        while round_ms <= until_ms {
            all.extend(points(demand).iter().map(|(at_ms, needed)| need(round_ms + at_ms, *needed)));
            // One that needs the same all the time says so once.
            round_ms = if points(demand).len() > 1 { round_ms + demand.period_ms.max(1) } else { u64::MAX };
        }
    }
    all.retain(|need| need.at_ms <= until_ms);
    all.sort_by_key(|need| need.at_ms);
    all
}
