//! Servers that are not alike, in groups, and jobs that say how long their steps take: what recorded jobs run on. A schedule that says nothing of either has
//! servers that are alike, each a fleet of its own, and gradients that take the same everywhere.

use crate::schedule::{JobSetup, Place, Setup};
use crate::world::{Pid, World};
use events_schema::{Digest, JobId};
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

/// Servers that are alike, one fleet together. They follow those of the groups before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// How many.
    pub servers: u16,
    /// Slots of each.
    pub slots: u16,
    /// Servers of one numeric class have the same name of it.
    pub class: String,
    /// What computing takes there, in thousandths of what jobs say.
    pub times_milli: u64,
}

impl Group {
    /// The numeric class of its servers.
    #[must_use]
    pub fn digest(&self) -> Digest {
        Digest::of(self.class.as_bytes())
    }
}

impl Setup {
    /// The places of a fleet, by the first of them; of every fleet in turn.
    fn fleets(&self) -> impl Iterator<Item = (RangeInclusive<Place>, Option<&Group>)> {
        let alone = self.groups.is_empty().then(|| (1..=self.servers).map(|place| (place..=place, None)));
        let grouped = self.groups.iter().scan(1, |next, group| {
            let first = *next;
            *next += group.servers;
            Some((first..=*next - 1, Some(group)))
        });
        alone.into_iter().flatten().chain(grouped)
    }

    /// The first place of every fleet, which goes by that.
    #[must_use]
    pub fn fleet_places(&self) -> Vec<Place> {
        self.fleets().map(|(places, _)| *places.start()).collect()
    }

    /// The places of the fleet that goes by this one.
    #[must_use]
    pub fn places_of(&self, fleet: Place) -> RangeInclusive<Place> {
        let found = self.fleets().map(|(places, _)| places).find(|places| *places.start() == fleet);
        found.unwrap_or(fleet..=fleet)
    }

    /// The group of a place, if there are any.
    #[must_use]
    pub fn group_at(&self, place: Place) -> Option<&Group> {
        self.fleets().find(|(places, _)| places.contains(&place)).and_then(|(_, group)| group)
    }

    /// Slots of the server at a place.
    #[must_use]
    pub fn slots_at(&self, place: Place) -> u16 {
        self.group_at(place).map_or(self.slots, |group| group.slots)
    }
}

impl JobSetup {
    /// What one gradient of a step takes among so many members, whose fullest decides; none if the job does not say what steps take.
    #[must_use]
    pub fn gradient_us(&self, members: u16) -> Option<u64> {
        let place = usize::from(members.clamp(1, self.max)) - 1;
        let step_us = self.step_us.get(place)?;
        Some((step_us / u64::from(self.max.div_ceil(members.max(1)).max(1))).max(1))
    }
}

impl World {
    /// What a job said of itself.
    fn said_by(&self, job: &JobId) -> Option<&JobSetup> {
        let place: usize = job.as_str().strip_prefix("job-")?.parse().ok()?;
        self.schedule.setup.jobs.get(place)
    }

    /// What a gradient and an update take an executor where nothing slows it. An update is part of what a job says of its steps.
    #[must_use]
    pub fn unit_us(&self, pid: Pid) -> (u64, u64) {
        let usual_us = self.schedule.setup.unit_ms * 1_000;
        self.gradient_us(pid).map_or((usual_us, usual_us / 8), |(gradient_us, _)| (gradient_us, 1))
    }

    /// What a gradient takes a member, where its job says what steps take, and how many of them the fullest member has.
    fn gradient_us(&self, pid: Pid) -> Option<(u64, u64)> {
        let (executor, place) = (self.executor(pid)?, self.processes.get(&pid)?.place);
        let members = executor.member.session().membership().map_or(1, |membership| membership.seats.len() as u16);
        let said = self.said_by(&executor.id.job)?;
        let times_milli = self.schedule.setup.group_at(place).map_or(1_000, |group| group.times_milli);
        let ranks = said.max.div_ceil(members.max(1));
        Some((said.gradient_us(members)? * times_milli / 1_000, u64::from(ranks)))
    }

    /// A member has made a step together with the others: what that took its slot, by what the job says of its steps.
    pub fn note_made(&mut self, pid: Pid) {
        let (Some((us, ranks)), Some(process)) = (self.gradient_us(pid), self.processes.get(&pid)) else { return };
        *self.checks.made_us.entry(process.place).or_default() += us * ranks;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weather;

    #[test]
    fn the_fullest_member_takes_what_its_job_says_of_a_step() {
        let job = JobSetup { max: 5, step_us: vec![500, 300, 200, 200, 100], ..weather::trains_on(5, 1, None) };
        let fullest = |members: u16| job.gradient_us(members).map(|us| us * u64::from(5u16.div_ceil(members)));
        assert_eq!([1, 2, 3, 5, 9].map(fullest), [500, 300, 200, 100, 100].map(Some));
        assert_eq!(weather::trains_on(5, 1, None).gradient_us(1), None);
    }

    #[test]
    fn groups_follow_each_other_and_each_is_one_fleet() {
        let mut setup = weather::schedule(0).setup;
        (setup.servers, setup.slots) = (3, 2);
        assert_eq!((setup.fleet_places(), setup.slots_at(3)), (vec![1, 2, 3], 2));
        let group = |servers, slots| Group { servers, slots, class: "t4".to_owned(), times_milli: 1_000 };
        setup.groups = vec![group(2, 4), group(1, 8)];
        assert_eq!((setup.fleet_places(), setup.places_of(1), setup.places_of(3)), (vec![1, 3], 1..=2, 3..=3));
        assert_eq!([1, 2, 3].map(|place| setup.slots_at(place)), [4, 4, 8]);
    }
}
