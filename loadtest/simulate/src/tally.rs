//! What is counted while a run goes on: slot·time by fleet, changes of jobs, what was broken. Sums of whole numbers, so that order does not matter.

use crate::outcome::JobOutcome;
use events_schema::{SlotId, TimeMs};
use std::collections::{BTreeMap, BTreeSet};

/// The slots of one fleet, as they are now and summed over time.
#[derive(Debug, Clone, Default)]
pub struct FleetTally {
    /// That it declares.
    pub slots: u64,
    /// Whether it is one that serves, and not the training cluster.
    pub serves: bool,
    /// That it needs itself.
    pub needed: u64,
    /// The same by its curve, whatever it has said.
    pub rose_to: u64,
    /// That may be used.
    pub lent: u64,
    /// That were asked back and are not free yet, and whether a process was on it when it was asked for.
    pub returning: BTreeMap<SlotId, bool>,
    /// With a process on them.
    pub occupied: u64,
    /// Whose process does steps.
    pub training: u64,
    /// Slot·ms lent.
    pub lent_ms: u64,
    /// Slot·ms occupied.
    pub occupied_ms: u64,
    /// Slot·ms in which steps were done.
    pub training_ms: u64,
    /// Slot·ms that it needed itself.
    pub needed_ms: u64,
    /// Slot·ms that it needed itself and that were lent or not free yet, from the moment at which it said so.
    pub unmet_ms: u64,
    /// The same from the moment at which its curve rose.
    pub short_ms: u64,
}

/// Everything that is counted.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// By fleet: those of the cluster, then those that serve.
    pub fleets: Vec<FleetTally>,
    /// Slot·ms of steps that were lost and done again.
    pub undone_ms: u64,
    /// Jobs that had slots and lost all of them.
    pub preemptions: u64,
    /// Jobs that went on with more or fewer slots.
    pub scalings: u64,
    /// Generations that came into force with fewer members than the fewest their job asks for.
    pub below_minimum: u64,
    /// Times that plans began to keep a job from what its tenant's quota guarantees.
    pub denied: u64,
    /// Generations on fewer slots than their curve was measured for; taken to be as fast as their share of those.
    pub unmeasured: u64,
    /// Times from asking a slot back to having it, of those that a process was on.
    pub returns_ms: Vec<u64>,
    /// Inputs that were decided about.
    pub events: u64,
    /// Times that the policy was asked.
    pub plans: u64,
    /// Servers that broke.
    pub failures: u64,
    /// Broken promises of the core or of the simulation, in words; the first few.
    pub violations: Vec<String>,
    /// Jobs that wait and have no slot.
    pub waiting: u64,
    /// Job·ms of waiting.
    pub waiting_ms: u64,
    /// Jobs that came and have not ended.
    pub live: u64,
    /// Job·ms of those.
    pub live_ms: u64,
    /// The sums at equal distances of time, from the beginning on.
    pub course: Vec<Sums>,
    /// That distance.
    pub course_every_ms: u64,
    /// How many slots each job had when; only where somebody is going to tell it.
    pub sizes: Option<Sizes>,
    until: TimeMs,
    next_sums: TimeMs,
}

/// All sums at a moment; what was between two moments is their difference.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sums {
    /// See [`Tally::waiting_ms`].
    pub waiting_ms: u64,
    /// Of each fleet: needed, lent, training, occupied, short since its signal, and since its curve rose, in slot·ms.
    pub fleets: Vec<[u64; 6]>,
}

/// How many slots each job had when: every change, until there are `SIZES_MAX`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Of each job in the order of the setup: since when, and how many from then on.
    pub of_jobs: Vec<Vec<(u64, u16)>>,
    kept: usize,
    /// From when on no more were kept, if there were too many.
    pub full_ms: Option<u64>,
}

/// Changes that are kept at most: ten for each job of the largest public trace eight times over, in 64 MiB.
const SIZES_MAX: usize = 1 << 22;

impl Sizes {
    /// For so many jobs.
    #[must_use]
    pub fn of(jobs: usize) -> Self {
        Self { of_jobs: vec![Vec::new(); jobs], ..Self::default() }
    }

    /// Notes that a job has so many slots from now on.
    pub fn note(&mut self, job: usize, at_ms: u64, slots: usize) {
        if self.kept == SIZES_MAX {
            self.full_ms.get_or_insert(at_ms);
            return;
        }
        self.kept += 1;
        self.of_jobs[job].push((at_ms, u16::try_from(slots).unwrap_or(u16::MAX)));
    }
}

/// Moments of the course at most: more than a picture has pixels. Beyond, every other one is dropped and the distance doubled.
const COURSE_LEN_MAX: usize = 2_048;
/// The first distance.
const COURSE_EVERY_MS: u64 = 1_000;

/// Violations that are kept: one says what is wrong, and a thousand do not say more.
const VIOLATIONS_MAX: usize = 16;

impl Tally {
    /// Begins to count at a moment.
    #[must_use]
    pub fn new(from: TimeMs, fleets: Vec<FleetTally>) -> Self {
        Self { fleets, until: from, next_sums: from, course_every_ms: COURSE_EVERY_MS, ..Self::default() }
    }

    /// Adds the time up to a moment, in which nothing changed.
    pub fn pass(&mut self, until: TimeMs) {
        while self.next_sums <= until {
            self.add(self.next_sums);
            self.note_sums();
        }
        self.add(until);
    }

    fn note_sums(&mut self) {
        let of = |fleet: &FleetTally| {
            let (held, short) =
                ([fleet.lent_ms, fleet.training_ms, fleet.occupied_ms], [fleet.unmet_ms, fleet.short_ms]);
            [fleet.needed_ms, held[0], held[1], held[2], short[0], short[1]]
        };
        self.course.push(Sums { waiting_ms: self.waiting_ms, fleets: self.fleets.iter().map(of).collect() });
        if self.course.len() > COURSE_LEN_MAX {
            let mut place = 0;
            self.course.retain(|_| {
                place += 1;
                place % 2 == 1
            });
            self.course_every_ms *= 2;
        }
        self.next_sums = self.next_sums.plus_ms(self.course_every_ms);
    }

    fn add(&mut self, until: TimeMs) {
        let ms = until.since_ms(self.until);
        self.until = until;
        self.waiting_ms += ms * self.waiting;
        self.live_ms += ms * self.live;
        for fleet in &mut self.fleets {
            let away = fleet.lent + fleet.returning.len() as u64;
            fleet.needed_ms += ms * fleet.needed;
            fleet.lent_ms += ms * fleet.lent;
            fleet.occupied_ms += ms * fleet.occupied;
            fleet.training_ms += ms * fleet.training;
            let has = fleet.slots - away.min(fleet.slots);
            fleet.unmet_ms += ms * fleet.needed.saturating_sub(has);
            fleet.short_ms += ms * fleet.rose_to.saturating_sub(has);
        }
    }

    /// Slot·ms that were lent, by all fleets.
    #[must_use]
    pub fn lent_ms(&self) -> u64 {
        self.fleets.iter().map(|fleet| fleet.lent_ms).sum()
    }

    /// Counts that a job's plan went from some slots to others, and whether it is another number. `waited_ms` is asked where it had none: for how long it waited.
    pub fn replanned(
        &mut self,
        job: &mut JobOutcome,
        (from, to): (usize, usize),
        waited_ms: impl FnOnce() -> Option<u64>,
    ) -> bool {
        match (from, to) {
            (0, 0) => return false,
            (0, _) => {
                let waited_ms = waited_ms();
                self.waiting -= u64::from(waited_ms.is_some());
                job.queued_ms += waited_ms.unwrap_or(0);
            }
            (_, 0) => {
                self.preemptions += 1;
                job.preemptions += 1;
            }
            _ if from != to => self.scalings += 1,
            _ => return false,
        }
        job.size_changes += 1;
        true
    }

    /// Notes something that must not be.
    pub fn broken(&mut self, what: String) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(what);
        }
    }

    /// What is conserved: nobody is on a slot that is not lent or on its way back, and nobody trains without being there.
    pub fn check(&mut self) {
        let wrong = |fleet: &FleetTally| {
            let away = fleet.lent + fleet.returning.len() as u64;
            fleet.occupied > away || away > fleet.slots || fleet.training > fleet.occupied
        };
        if let Some((index, fleet)) = self.fleets.iter().enumerate().find(|(_, fleet)| wrong(fleet)) {
            let returning: BTreeSet<&SlotId> = fleet.returning.keys().collect();
            let what = format!(
                "fleet {index} at {} ms: {} slots, {} lent, {} on their way back, {} occupied, {} training",
                self.until.0,
                fleet.slots,
                fleet.lent,
                returning.len(),
                fleet.occupied,
                fleet.training
            );
            self.broken(what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_course_is_bounded_and_its_differences_are_exact() {
        let mut tally = Tally::new(TimeMs(500), vec![FleetTally { slots: 4, lent: 3, ..FleetTally::default() }]);
        for second in 0..50_000 {
            tally.waiting = second % 7;
            tally.pass(TimeMs(500 + 1_000 * (second + 1)));
        }
        assert!(tally.course.len() <= COURSE_LEN_MAX && tally.course.len() > COURSE_LEN_MAX / 4);
        assert_eq!(tally.course_every_ms, 32_000);
        let lent = |place: usize| tally.course[place].fleets[0][1];
        assert!((1..tally.course.len()).all(|place| lent(place) - lent(place - 1) == 3 * 32_000));
        let waited = |seconds: u64| (0..seconds).map(|second| second % 7 * 1_000).sum::<u64>();
        assert_eq!(tally.course[5].waiting_ms, waited(5 * 32));
    }

    #[test]
    fn what_a_fleet_needs_and_does_not_have_counts_from_when_it_said_so() {
        let fleet = FleetTally { slots: 4, serves: true, lent: 3, ..FleetTally::default() };
        let mut tally = Tally::new(TimeMs(0), vec![fleet]);
        tally.pass(TimeMs(10));
        tally.fleets[0].needed = 3;
        tally.pass(TimeMs(30));
        assert_eq!((tally.fleets[0].unmet_ms, tally.fleets[0].lent_ms), (40, 90));
        tally.check();
        assert!(tally.violations.is_empty());
        tally.fleets[0].occupied = 4;
        tally.check();
        assert_eq!(tally.violations.len(), 1);
    }
}
