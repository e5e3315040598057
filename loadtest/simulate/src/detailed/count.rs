//! What is counted of a run in the world, from the facts that count there and the time at which they do: the figures of the fast mode, as it counts them.

use super::schedule::{BEGIN_MS, Need, needs, risen};
use crate::outcome::{Ended, JobOutcome, Measured, Outcome};
use crate::setup::Setup;
use crate::tally::{FleetTally, Tally};
use controller_core::state::{JobPhase, State};
use events_schema::fact::Fact;
use events_schema::{ExecutorId, FleetId, JobId, SlotId, TimeMs};
use loadtest_world::Finding;
use loadtest_world::time::At;
use loadtest_world::world::World;
use std::collections::{BTreeMap, VecDeque};

/// A run so far.
pub(super) struct Count {
    jobs: Vec<Counted>,
    tally: Tally,
    /// By the names that the world gives them.
    fleets: BTreeMap<FleetId, usize>,
    /// The fleet of each place, whose slots are there.
    fleet_of_place: Vec<usize>,
    needs: VecDeque<Need>,
    risen: VecDeque<Need>,
    /// Who is on a slot, by the log.
    on: BTreeMap<SlotId, ExecutorId>,
    ended: usize,
    /// Since the setup began.
    at_ms: u64,
    forecasts: Vec<Vec<controller_core::state::Forecast>>,
}

#[derive(Default)]
struct Counted {
    outcome: JobOutcome,
    queued_since: Option<u64>,
    /// Job·ms and lent slot·ms of the run when it came.
    came_amid: (u64, u64),
}

fn number(job: &JobId) -> Option<usize> {
    job.as_str().strip_prefix("job-")?.parse().ok()
}

impl Count {
    pub fn new(setup: &Setup, until_ms: u64) -> Self {
        let cluster = setup.cluster.groups.iter().map(|group| (group, false));
        let groups = || cluster.clone().chain(setup.inference.groups.iter().map(|group| (group, true)));
        let tally = |(group, serves): (&crate::Group, bool)| FleetTally {
            slots: group.slots_total(),
            serves,
            ..FleetTally::default()
        };
        let mut fleet_of_place = Vec::new();
        let mut fleets = BTreeMap::new();
        for (fleet, (group, _)) in groups().enumerate() {
            // As the world names the fleet of its server at this place.
            let name = format!("fleet-{}", fleet_of_place.len());
            fleets.insert(FleetId::parse(&name).unwrap_or_else(|e| unreachable!("{e}")), fleet);
            fleet_of_place.extend((0..group.servers).map(|_| fleet));
        }
        let job = |job: &crate::setup::Job| Counted {
            outcome: JobOutcome { submitted_ms: job.submitted_ms, ..JobOutcome::default() },
            ..Counted::default()
        };
        Self {
            jobs: setup.jobs.iter().map(job).collect(),
            tally: Tally::new(TimeMs(0), groups().map(tally).collect()),
            fleets,
            fleet_of_place,
            needs: needs(setup, until_ms).into(),
            risen: risen(setup, until_ms).into(),
            on: BTreeMap::new(),
            ended: 0,
            at_ms: 0,
            forecasts: Vec::new(),
        }
    }

    /// Whether all jobs have ended.
    pub fn is_over(&self) -> bool {
        self.ended == self.jobs.len()
    }

    pub fn at_ms(&self) -> u64 {
        self.at_ms
    }

    /// Looks at what has happened since the last time.
    pub fn look(&mut self, setup: &Setup, world: &mut World) {
        self.tally.events = world.events;
        let at_ms = world.now().since_ms(At(0)).saturating_sub(BEGIN_MS);
        let counted = world.counted.as_mut().map(std::mem::take).unwrap_or_default();
        self.at_ms = at_ms;
        if counted.is_empty() {
            return;
        }
        self.pass(at_ms);
        for fact in counted.iter().flat_map(|batch| &batch.facts) {
            self.heed(setup, fact);
        }
        self.see(&world.log.truth);
    }

    /// The time up to now, in which fleets may have come to need other numbers.
    fn pass(&mut self, until_ms: u64) {
        let next = |needs: &VecDeque<Need>| needs.front().map(|need| need.at_ms).filter(|at_ms| *at_ms <= until_ms);
        while let Some(at_ms) = [next(&self.needs), next(&self.risen)].into_iter().flatten().min() {
            self.tally.pass(TimeMs(at_ms));
            while let Some(need) = self.needs.pop_front_if(|need| need.at_ms <= at_ms) {
                self.tally.fleets[need.fleet].needed = u64::from(need.needed);
            }
            while let Some(need) = self.risen.pop_front_if(|need| need.at_ms <= at_ms) {
                self.tally.fleets[need.fleet].rose_to = u64::from(need.needed);
            }
        }
        self.tally.pass(TimeMs(until_ms));
    }

    fn heed(&mut self, setup: &Setup, fact: &Fact) {
        match fact {
            Fact::JobAccepted { job, .. } => {
                let (amid, at_ms) = ((self.tally.live_ms, self.tally.lent_ms()), self.at_ms);
                self.tally.live += 1;
                self.tally.waiting += 1;
                let known = number(job).and_then(|number| self.jobs.get_mut(number));
                known.into_iter().for_each(|known| (known.came_amid, known.queued_since) = (amid, Some(at_ms)));
            }
            Fact::CommandRefused { subject, refusal, .. } => {
                self.tally.broken(format!("{subject} is refused: {refusal:?}"));
            }
            Fact::PlanAdopted { job, slots, from, .. } => {
                number(job).into_iter().for_each(|job| self.replanned(job, from.unwrap_or(0) as usize, slots.len()));
            }
            Fact::GenerationActive { job, .. } => {
                let Some(known) = number(job).and_then(|number| self.jobs.get_mut(number)) else { return };
                known.outcome.began_ms.get_or_insert(self.at_ms);
            }
            Fact::JobFinished { job, .. } => self.end(setup, job, Ended::Finished),
            Fact::JobFailed { job, .. } => self.end(setup, job, Ended::Failed),
            Fact::ExecutorAssigned { executor, slot } => {
                self.count_on(slot, 1);
                self.on.insert(slot.clone(), executor.clone());
            }
            Fact::ExecutorGone { executor, slot, .. } if self.on.get(slot) == Some(executor) => {
                self.count_on(slot, -1);
                self.on.remove(slot);
            }
            Fact::SlotReclaimed { slot, fleet: Some(fleet), .. } => {
                let is_busy = self.on.contains_key(slot);
                if let Some(fleet) = self.fleets.get(fleet) {
                    self.tally.fleets[*fleet].returning.entry(slot.clone()).or_insert(is_busy);
                }
            }
            Fact::SlotReturned { slot, fleet: Some(fleet), took_ms } => {
                if let Some(fleet) = self.fleets.get(fleet) {
                    let was_busy = self.tally.fleets[*fleet].returning.remove(slot);
                    self.tally.returns_ms.extend(took_ms.filter(|_| was_busy == Some(true)));
                }
            }
            _ => {}
        }
    }

    fn count_on(&mut self, slot: &SlotId, more: i64) {
        let place = slot.server.as_str().rsplit('-').next().and_then(|number| number.parse::<usize>().ok());
        if let Some(fleet) = place.and_then(|place| self.fleet_of_place.get(place)) {
            let occupied = &mut self.tally.fleets[*fleet].occupied;
            *occupied = occupied.saturating_add_signed(more);
        }
    }

    fn replanned(&mut self, number: usize, from: usize, to: usize) {
        let (at_ms, Some(job)) = (self.at_ms, self.jobs.get_mut(number)) else { return };
        let waited_ms = || job.queued_since.take().map(|since| at_ms - since);
        self.tally.replanned(&mut job.outcome, (from, to), waited_ms);
    }

    fn end(&mut self, setup: &Setup, job: &JobId, how: Ended) {
        let Some(number) = number(job).filter(|number| *number < self.jobs.len()) else { return };
        let job = &mut self.jobs[number];
        let (live_ms, lent_ms) = job.came_amid;
        let amid = (self.tally.live_ms - live_ms, self.tally.lent_ms() - lent_ms);
        self.tally.waiting -= u64::from(job.queued_since.take().is_some());
        self.tally.live -= 1;
        self.ended += 1;
        job.outcome.ended = Some((how, self.at_ms));
        job.outcome.alone_ms = setup.alone_ms(number, amid.0, amid.1);
        job.outcome.single_ms = setup.jobs[number].takes_ms(1, 1.0).map(|ms| ms.round() as u64);
    }

    /// What the facts of a moment came to.
    fn see(&mut self, truth: &State) {
        for (id, fleet) in &self.fleets {
            self.tally.fleets[*fleet].lent = truth.fleet(id).map_or(0, |fleet| fleet.lent as u64);
        }
        for (id, _) in truth.jobs().filter(|(_, job)| matches!(job.phase, JobPhase::Queued)) {
            let Some(known) = number(id).and_then(|number| self.jobs.get_mut(number)) else { continue };
            self.tally.waiting += u64::from(known.queued_since.is_none());
            known.queued_since.get_or_insert(self.at_ms);
        }
    }

    /// What stands there at the end.
    pub fn see_last(&mut self, world: &World) {
        self.pass(self.at_ms);
        for (place, us) in &world.checks.made_us {
            let fleet = self.fleet_of_place.get(usize::from(*place) - 1);
            fleet.into_iter().for_each(|fleet| self.tally.fleets[*fleet].training_ms += us / 1_000);
        }
        let (truth, serve) = (&world.log.truth, |fleet: &usize| self.tally.fleets[*fleet].serves);
        let serving = self.fleets.iter().filter(|(_, fleet)| serve(fleet)).map(|(id, _)| id);
        let past = serving.filter_map(|id| Some(truth.past(id)?.forecasts(truth.at()).collect()));
        self.forecasts = past.collect();
    }

    pub fn outcome(mut self, policy: &'static str, finding: Option<Finding>) -> Outcome {
        if let Some(Finding { property, detail, at_ms }) = finding {
            self.tally.broken(format!("{property}: {detail} (detailed, at {at_ms} ms of its world)"));
        }
        let jobs = self.jobs.into_iter().map(|job| job.outcome).collect();
        let (tally, measured) = (self.tally, Measured::default());
        Outcome { policy, jobs, tally, until_ms: self.at_ms, measured, forecasts: self.forecasts }
    }
}
