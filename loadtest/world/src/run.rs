//! One run of one schedule, and many of them: until a finding, or until nothing is left to be seen.

use crate::checks::{Finding, Kind, Met};
use crate::mutants::Mutants;
use crate::schedule::Schedule;
use crate::time::At;
use crate::world::World;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Events of one run: many times what any needs, so that a world that never comes to rest is a finding.
const EVENTS_MAX: u64 = 5_000_000;

/// What a run came to.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Things that happened.
    pub events: u64,
    /// True time that passed, in milliseconds.
    pub time_ms: u64,
    /// Updates of replicas.
    pub steps: u64,
    /// Batches that counted.
    pub batches: u64,
    /// Stretches of bulk that messages overtook between executors.
    pub overtaken: u64,
    /// The highest generation of any job.
    pub generations: u64,
    /// How often each kind of fact counted.
    pub facts: BTreeMap<Kind, u64>,
    /// Executors that did not leave in time.
    pub killed_at_deadlines: u64,
    /// What became of jobs.
    pub jobs: Vec<&'static str>,
    /// Of all records of the log: equal runs have equal ones.
    pub digest: u64,
    /// How often which fault met which phase of the first job, and of any other.
    pub met: Met,
    pub met_others: Met,
    /// How long it took until a member was said to straggle whose link became slow.
    pub named_after_ms: Option<u64>,
    /// The first thing that was not as it has to be.
    pub finding: Option<Finding>,
}

/// Runs a schedule.
#[must_use]
pub fn run(schedule: &Schedule, mutants: &Mutants) -> Outcome {
    let mut world = None;
    let finding = first_finding(
        &mut world,
        || World::new(schedule.clone(), mutants.clone()),
        |world| {
            if world.events > EVENTS_MAX {
                world.found("a run comes to its end", format!("{} events", world.events));
            }
            !world.checks.done
        },
    );
    let Some(world) = world else { return Outcome { finding, ..Outcome::default() } };
    let at_ms = world.now().since_ms(At(0));
    Outcome {
        events: world.events,
        time_ms: at_ms,
        steps: world.checks.steps,
        batches: world.checks.batches,
        overtaken: world.net.overtaken,
        generations: world.checks.generations,
        jobs: world.log.truth.jobs().map(|(_, job)| job.phase.name()).collect(),
        digest: world.log.digest(),
        killed_at_deadlines: world.checks.killed_at_deadlines,
        facts: world.checks.facts,
        named_after_ms: world.checks.slowed.named_after_ms,
        met: world.checks.met,
        met_others: world.checks.met_others,
        finding,
    }
}

/// Has a world go on from its beginning until somebody has seen enough of it, who looks after every event, or something is not as it has to be.
pub fn watch(begin: impl FnOnce() -> World, mut goes_on: impl FnMut(&mut World) -> bool) -> Option<Finding> {
    first_finding(&mut None, begin, &mut goes_on)
}

/// The first thing that is not as it has to be in a world, for as long as it goes on; that a machine panics is one.
fn first_finding(
    world: &mut Option<World>,
    begin: impl FnOnce() -> World,
    mut goes_on: impl FnMut(&mut World) -> bool,
) -> Option<Finding> {
    let found = catch_unwind(AssertUnwindSafe(|| {
        let world = world.insert(begin());
        while world.checks.findings.is_empty() && goes_on(world) {
            if !world.turn() {
                world.found("a run comes to its end", format!("{} events", world.events));
            }
        }
        world.checks.findings.first().cloned()
    }));
    found.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let detail = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        let at_ms = world.as_ref().map_or(0, |world| world.now().since_ms(At(0)));
        Some(Finding { property: "nothing panics".to_owned(), detail, at_ms })
    })
}
