//! Slots that may be used and that nobody uses, and which of them a job gets.
//!
//! How many slots of which kind is the policy's part, and how they are looked for is what it chose ([`Packing`]); the choice itself is made here, once for all.

use super::guests::Open;
use crate::policy::Packing;
use crate::state::slots::Places;
use crate::state::{SlotKind, State};
use events_schema::{FleetId, ServerId, SlotId, host_index};
use std::collections::{BTreeMap, BTreeSet};

/// Idle slots, by kind and server; guest slots also by how busy their hosts are, those beside the freest first.
pub(super) struct Idle {
    packing: Packing,
    classes: BTreeMap<(SlotKind, u8), IdleClass>,
}

#[derive(Default)]
struct IdleClass {
    count: usize,
    /// By server and whether they may be wanted back. Those that become empty stay, with nothing in them.
    parts: Vec<Part>,
}

/// Slots of a server whose fleets need slots of their own, and so may want these back, or of those that do not. Slots of one server can belong to several fleets.
struct Part {
    server: ServerId,
    wanted_back: bool,
    slots: Places,
    /// How many those are.
    count: usize,
}

/// Slots among which a job's are looked for.
#[derive(Clone, Copy, PartialEq)]
enum Among {
    All,
    /// Whose fleets need some of their slots themselves, or need none.
    WantedBack(bool),
}

impl Among {
    fn has(self, part: &Part) -> bool {
        match self {
            Among::All => true,
            Among::WantedBack(wanted) => part.wanted_back == wanted,
        }
    }
}

impl Idle {
    /// Of a state, to be looked through as a policy wants it.
    pub fn of(state: &State, packing: Packing) -> Self {
        let mut classes: Vec<(SlotKind, IdleClass)> = Vec::new();
        // Fleets that need any of their own now.
        let needing = state.fleets().filter(|(_, fleet)| packing == Packing::BestFitApart && fleet.needs() > 0);
        let needing: BTreeSet<&FleetId> = needing.map(|(id, _)| id).collect();
        for (id, of) in state.noted_slots().servers() {
            if of.idle.is_empty() {
                continue;
            }
            for (kind, slots) in of.idle_by_kind() {
                let (wanted, others) = match needing.is_empty() {
                    true => (Places::default(), slots),
                    false => slots.split(&of.of_fleets(|fleet| needing.contains(fleet))),
                };
                // Kinds are few, and the next server is mostly of the same one.
                let known = classes.iter().rposition(|(known, _)| *known == kind);
                let place = known.unwrap_or_else(|| {
                    classes.push((kind, IdleClass::default()));
                    classes.len() - 1
                });
                let class = &mut classes[place].1;
                class.put(id, false, others);
                class.put(id, true, wanted);
            }
        }
        let classes = classes.into_iter().map(|(kind, class)| ((kind, 0), class)).collect();
        Self { packing, classes }
    }

    /// Adds the guest slots that are open, those beside jobs whose slots may be shared (`guests.rs`).
    pub fn with_guests<'s>(mut self, open: impl Iterator<Item = Open<'s>>) -> Self {
        for open in open {
            let slot = open.slot;
            let class = self.classes.entry((open.kind, open.level())).or_default();
            match class.parts.last_mut().filter(|part| part.server == slot.server) {
                Some(part) => {
                    part.slots.set(host_index(slot.index), true);
                    part.count += 1;
                    class.count += 1;
                }
                None => class.put(&slot.server, false, [host_index(slot.index)].into_iter().collect()),
            }
        }
        self
    }

    /// The kinds that there are any of.
    pub fn kinds(&self) -> BTreeSet<SlotKind> {
        self.classes.keys().map(|(kind, _)| *kind).collect()
    }

    /// How many there are, but for those of some servers.
    pub fn count(&self, class: &SlotKind, passed_over: &BTreeSet<ServerId>) -> usize {
        let levels = self.classes.range((*class, 0)..=(*class, u8::MAX)).map(|(_, class)| class);
        if passed_over.is_empty() {
            return levels.map(|class| class.count).sum();
        }
        let others = levels.flat_map(|class| &class.parts).filter(|part| !passed_over.contains(&part.server));
        others.map(|part| part.count).sum()
    }

    /// Takes up to `count` slots for a job that is on those of `beside` already, none of some servers; `base` of them belong to its fewest.
    pub fn take(
        &mut self,
        kind: &SlotKind,
        count: usize,
        beside: &BTreeSet<SlotId>,
        base: usize,
        passed_over: &BTreeSet<ServerId>,
    ) -> Vec<SlotId> {
        let mut taken = Vec::new();
        let near: BTreeSet<&ServerId> = beside.iter().map(|slot| &slot.server).collect();
        for (_, class) in self.classes.range_mut((*kind, 0)..=(*kind, u8::MAX)) {
            let aside = class.set_aside(passed_over);
            match self.packing {
                Packing::FirstFit | Packing::WorstFit => class.take(Among::All, count, &near, self.packing, &mut taken),
                Packing::BestFitApart => {
                    let base = base.min(count);
                    for (wanted_back, until) in [(false, base), (true, base), (true, count), (false, count)] {
                        class.take(Among::WantedBack(wanted_back), until, &near, self.packing, &mut taken);
                    }
                }
            }
            class.put_back(aside);
        }
        if kind.guest { taken.iter().map(SlotId::guest).collect() } else { taken }
    }
}

impl IdleClass {
    /// Adds slots of a server that comes after all that were added before, or is the last of them.
    fn put(&mut self, server: &ServerId, wanted_back: bool, slots: Places) {
        let count = slots.len();
        if count > 0 {
            self.count += count;
            self.parts.push(Part { server: server.clone(), wanted_back, slots, count });
        }
    }

    /// Takes out what there is of some servers.
    fn set_aside(&mut self, servers: &BTreeSet<ServerId>) -> Vec<Part> {
        if servers.is_empty() {
            return Vec::new();
        }
        let all = std::mem::take(&mut self.parts).into_iter();
        let (aside, parts) = all.partition(|part| servers.contains(&part.server));
        self.parts = parts;
        aside
    }

    /// The opposite.
    fn put_back(&mut self, aside: Vec<Part>) {
        if !aside.is_empty() {
            self.parts.extend(aside);
            self.parts.sort_by(|a, b| a.server.cmp(&b.server));
        }
    }

    /// Takes slots until there are so many: first on servers the job is on, then as the packing says.
    fn take(
        &mut self,
        among: Among,
        until: usize,
        near: &BTreeSet<&ServerId>,
        packing: Packing,
        taken: &mut Vec<SlotId>,
    ) {
        for server in near {
            let begins = self.parts.partition_point(|part| part.server < **server);
            let of_server = self.parts.iter().skip(begins).take_while(|part| part.server == **server).count();
            for place in begins..begins + of_server {
                if among.has(&self.parts[place]) {
                    self.take_from(place, until, taken);
                }
            }
        }
        while taken.len() < until {
            let Some(place) = self.next_part(among, until - taken.len(), packing) else { break };
            self.take_from(place, until, taken);
        }
    }

    /// Where so many slots are looked for.
    fn next_part(&self, among: Among, missing: usize, packing: Packing) -> Option<usize> {
        let open = || {
            let open = move |(_, part): &(usize, &Part)| part.count > 0 && among.has(part);
            self.parts.iter().enumerate().filter(open).map(|(place, part)| (place, part.count))
        };
        let place_of = |(place, _): (usize, usize)| place;
        // The last of equals in reverse is the first.
        let emptiest = || open().rev().max_by_key(|(_, count)| *count);
        let fitting = || open().filter(|(_, count)| *count >= missing);
        let chosen = match packing {
            Packing::FirstFit => fitting().next().or_else(|| open().next()),
            Packing::WorstFit => emptiest(),
            Packing::BestFitApart => fitting().min_by_key(|(_, count)| *count).or_else(emptiest),
        };
        chosen.map(place_of)
    }

    fn take_from(&mut self, place: usize, until: usize, taken: &mut Vec<SlotId>) {
        let known = &mut self.parts[place];
        while taken.len() < until {
            let Some(index) = known.slots.pop_first() else { break };
            taken.push(SlotId { server: known.server.clone(), index });
            known.count -= 1;
            self.count -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use events_schema::command::OfferMode;
    use events_schema::fact::Fact;
    use events_schema::{Cell, Digest, TimeMs};

    const KIND: SlotKind = SlotKind { class: Digest([0; 32]), device: false, guest: false, slot_type: None };

    /// Servers with so many idle slots, and whether their fleet may want them back.
    fn idle(packing: Packing, servers: &[(&str, u16, bool)]) -> Idle {
        let mut class = IdleClass::default();
        for &(name, slots, wanted_back) in servers {
            class.put(&ServerId::parse(name).unwrap(), wanted_back, (0..slots).collect());
        }
        Idle { packing, classes: [((KIND, 0), class)].into() }
    }

    fn taken(idle: &mut Idle, count: usize, beside: &[&str], base: usize) -> Vec<String> {
        let beside = beside.iter().map(|slot| slot.parse().unwrap()).collect();
        idle.take(&KIND, count, &beside, base, &BTreeSet::new()).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_fullest_server_that_has_all_is_the_best_fit() {
        let own = [("a", 4, false), ("b", 2, false), ("c", 3, false)];
        assert_eq!(taken(&mut idle(Packing::BestFitApart, &own), 2, &[], 2), ["b/0", "b/1"]);
        assert_eq!(taken(&mut idle(Packing::BestFitApart, &own), 3, &[], 3), ["c/0", "c/1", "c/2"]);
        // None has six: as few servers as there can be.
        assert_eq!(
            taken(&mut idle(Packing::BestFitApart, &own), 6, &[], 6),
            ["a/0", "a/1", "a/2", "a/3", "b/0", "b/1"]
        );
        assert_eq!(taken(&mut idle(Packing::FirstFit, &own), 2, &[], 2), ["a/0", "a/1"]);
        assert_eq!(taken(&mut idle(Packing::WorstFit, &own), 2, &[], 2), ["a/0", "a/1"]);
    }

    /// A server of four slots, two of each of two fleets, the first of which needs one of its own.
    fn shared() -> State {
        let server = ServerId::parse("shared").unwrap();
        let slots =
            |from: u16| (from..from + 2).map(|index| SlotId { server: server.clone(), index }).collect::<Vec<_>>();
        let joined = Fact::AgentJoined {
            server: server.clone(),
            incarnation: 1,
            slots: 4,
            class: KIND.class,
            address: String::new(),
            devices: Vec::new(),
            guests: false,
            slot_type: None,
        };
        let of = |name: &str, needed: u32, slots: Vec<SlotId>| {
            let fleet = FleetId::parse(name).unwrap();
            let (offers, reclaim_deadline_ms) = (OfferMode::ByDemand, 1_000);
            [
                Fact::FleetDeclared { fleet: fleet.clone(), slots: slots.clone(), offers, reclaim_deadline_ms },
                Fact::DemandAccepted { fleet: fleet.clone(), sequence: 1, needed, forecast: None },
                Fact::SlotsOffered { fleet, slots },
            ]
        };
        let mut state = State::new(Cell(0));
        let facts = [joined].into_iter().chain(of("needs", 1, slots(0))).chain(of("none", 0, slots(2)));
        facts.for_each(|fact| state.apply(TimeMs(1), &fact));
        state
    }

    #[test]
    fn slots_of_a_server_are_wanted_back_by_their_own_fleets() {
        let state = shared();
        let of = |base| taken(&mut Idle::of(&state, Packing::BestFitApart), 2, &[], base);
        assert_eq!(
            (of(2), of(0)),
            (vec!["shared/2".to_owned(), "shared/3".to_owned()], vec!["shared/0".to_owned(), "shared/1".to_owned()])
        );
        let mut first = Idle::of(&state, Packing::FirstFit);
        assert_eq!(
            (first.count(&KIND, &BTreeSet::new()), taken(&mut first, 3, &[], 0)),
            (4, vec!["shared/0".to_owned(), "shared/1".to_owned(), "shared/2".to_owned()])
        );
    }

    #[test]
    fn base_demand_is_kept_apart_from_what_may_be_wanted_back() {
        let mixed = [("lent", 4, true), ("own", 4, false)];
        let of = |count, base| taken(&mut idle(Packing::BestFitApart, &mixed), count, &[], base);
        assert_eq!(of(2, 2), ["own/0", "own/1"]);
        assert_eq!(of(2, 0), ["lent/0", "lent/1"]);
        assert_eq!(of(4, 2), ["own/0", "own/1", "lent/0", "lent/1"]);
        assert_eq!(of(6, 5), ["own/0", "own/1", "own/2", "own/3", "lent/0", "lent/1"], "rather there than nowhere");
        assert_eq!(of(6, 0), ["lent/0", "lent/1", "lent/2", "lent/3", "own/0", "own/1"]);
    }

    #[test]
    fn servers_that_are_passed_over_stay_for_others() {
        let mut of = idle(Packing::FirstFit, &[("a", 2, false), ("b", 1, false), ("c", 1, false)]);
        let slow = BTreeSet::from([ServerId::parse("a").unwrap(), ServerId::parse("c").unwrap()]);
        assert_eq!(of.count(&KIND, &slow), 1);
        let taken = of.take(&KIND, 3, &BTreeSet::new(), 3, &slow);
        assert_eq!(taken.iter().map(ToString::to_string).collect::<Vec<_>>(), ["b/0"]);
        assert_eq!((of.count(&KIND, &slow), of.count(&KIND, &BTreeSet::new())), (0, 3));
        let rest = of.take(&KIND, 3, &BTreeSet::new(), 3, &BTreeSet::new());
        assert_eq!(rest.iter().map(ToString::to_string).collect::<Vec<_>>(), ["a/0", "a/1", "c/0"]);
    }

    #[test]
    fn servers_that_the_job_is_on_come_first_within_their_group() {
        let mixed = [("a", 2, true), ("b", 4, true), ("own", 4, false)];
        let mut of = idle(Packing::BestFitApart, &mixed);
        assert_eq!(taken(&mut of, 2, &["b/7", "own/7"], 0), ["b/0", "b/1"]);
        assert_eq!(of.count(&KIND, &BTreeSet::new()), 8);
    }
}
