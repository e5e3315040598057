//! Slots that may be used and that nobody uses, and which of them a job gets.
//!
//! How many slots of which kind is the policy's part, and how they are looked for is what it chose ([`Packing`]); the choice itself is made here, once for all.

use crate::policy::Packing;
use crate::state::slots::Places;
use crate::state::{SlotKind, State};
use events_schema::{ServerId, SlotId};
use std::collections::{BTreeMap, BTreeSet};

/// Idle slots, by kind and server.
pub(super) struct Idle {
    packing: Packing,
    classes: BTreeMap<SlotKind, IdleClass>,
}

#[derive(Default)]
struct IdleClass {
    count: usize,
    servers: BTreeMap<ServerId, IdleServer>,
}

#[derive(Default)]
struct IdleServer {
    slots: Places,
    /// How many those are.
    count: usize,
    /// Whether its fleet needs slots of its own, and so may want this one back.
    wanted_back: bool,
}

/// Servers among which slots are looked for.
#[derive(Clone, Copy, PartialEq)]
enum Among {
    All,
    /// Whose fleets need some of their slots themselves, or need none.
    WantedBack(bool),
}

impl Idle {
    /// Of a state, to be looked through as a policy wants it.
    pub fn of(state: &State, packing: Packing) -> Self {
        let mut classes: BTreeMap<SlotKind, IdleClass> = BTreeMap::new();
        for (id, of) in state.noted_slots().servers() {
            for (kind, slots) in of.idle_by_kind() {
                let first = slots.iter().next().unwrap_or(0);
                let wanted_back = packing == Packing::BestFitApart && is_wanted_back(state, id, first);
                let class = classes.entry(kind).or_default();
                let count = slots.len();
                class.count += count;
                class.servers.insert(id.clone(), IdleServer { slots, count, wanted_back });
            }
        }
        Self { packing, classes }
    }

    pub fn count(&self, class: &SlotKind) -> usize {
        self.classes.get(class).map_or(0, |class| class.count)
    }

    /// Takes up to `count` slots for a job that is on those of `beside` already; `base` of them belong to its fewest.
    pub fn take(&mut self, class: &SlotKind, count: usize, beside: &BTreeSet<SlotId>, base: usize) -> Vec<SlotId> {
        let mut taken = Vec::new();
        let Some(class) = self.classes.get_mut(class) else { return taken };
        let near: BTreeSet<&ServerId> = beside.iter().map(|slot| &slot.server).collect();
        match self.packing {
            Packing::FirstFit | Packing::WorstFit => class.take(Among::All, count, &near, self.packing, &mut taken),
            Packing::BestFitApart => {
                let base = base.min(count);
                for (wanted_back, until) in [(false, base), (true, base), (true, count), (false, count)] {
                    class.take(Among::WantedBack(wanted_back), until, &near, self.packing, &mut taken);
                }
            }
        }
        taken
    }
}

impl IdleClass {
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
            if self.servers.get(*server).is_some_and(|known| known.is_among(among)) {
                self.take_from(server, until, taken);
            }
        }
        while taken.len() < until {
            let Some(server) = self.next_server(among, until - taken.len(), packing).cloned() else { break };
            self.take_from(&server, until, taken);
        }
    }

    /// Where so many slots are looked for.
    fn next_server(&self, among: Among, missing: usize, packing: Packing) -> Option<&ServerId> {
        let mut servers = self.servers.iter().filter(|(_, server)| server.is_among(among));
        let emptiest = || {
            // The last of equals in reverse is the first.
            let servers = self.servers.iter().rev().filter(|(_, server)| server.is_among(among));
            servers.max_by_key(|(_, server)| server.count)
        };
        let chosen = match packing {
            Packing::FirstFit => {
                let fits = servers.find(|(_, server)| server.count >= missing);
                fits.or_else(|| self.servers.iter().find(|(_, server)| server.is_among(among)))
            }
            Packing::WorstFit => emptiest(),
            Packing::BestFitApart => {
                let fitting = servers.filter(|(_, server)| server.count >= missing);
                fitting.min_by_key(|(_, server)| server.count).or_else(emptiest)
            }
        };
        chosen.map(|(server, _)| server)
    }

    fn take_from(&mut self, server: &ServerId, until: usize, taken: &mut Vec<SlotId>) {
        let Some(known) = self.servers.get_mut(server) else { return };
        while taken.len() < until {
            let Some(index) = known.slots.pop_first() else { break };
            taken.push(SlotId { server: server.clone(), index });
            known.count -= 1;
            self.count -= 1;
        }
        if known.slots.is_empty() {
            self.servers.remove(server);
        }
    }
}

/// Whether the fleet of a slot needs any of its own now.
fn is_wanted_back(state: &State, server: &ServerId, index: u16) -> bool {
    let slot = state.slot(&SlotId { server: server.clone(), index });
    let fleet = slot.and_then(|slot| slot.fleet.as_ref()).and_then(|fleet| state.fleet(fleet));
    fleet.is_some_and(|fleet| fleet.needs() > 0)
}

impl IdleServer {
    fn is_among(&self, among: Among) -> bool {
        match among {
            Among::All => true,
            Among::WantedBack(wanted) => self.wanted_back == wanted,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use events_schema::Digest;

    const KIND: SlotKind = SlotKind { class: Digest([0; 32]), device: false };

    /// Servers with so many idle slots, and whether their fleet may want them back.
    fn idle(packing: Packing, servers: &[(&str, u16, bool)]) -> Idle {
        let mut class = IdleClass::default();
        for &(name, slots, wanted_back) in servers {
            let count = usize::from(slots);
            let server = IdleServer { slots: (0..slots).collect(), count, wanted_back };
            class.count += count;
            class.servers.insert(ServerId::parse(name).unwrap(), server);
        }
        Idle { packing, classes: [(KIND, class)].into() }
    }

    fn taken(idle: &mut Idle, count: usize, beside: &[&str], base: usize) -> Vec<String> {
        let beside = beside.iter().map(|slot| slot.parse().unwrap()).collect();
        idle.take(&KIND, count, &beside, base).iter().map(ToString::to_string).collect()
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
    fn servers_that_the_job_is_on_come_first_within_their_group() {
        let mixed = [("a", 2, true), ("b", 4, true), ("own", 4, false)];
        let mut of = idle(Packing::BestFitApart, &mixed);
        assert_eq!(taken(&mut of, 2, &["b/7", "own/7"], 0), ["b/0", "b/1"]);
        assert_eq!(of.count(&KIND), 8);
    }
}
