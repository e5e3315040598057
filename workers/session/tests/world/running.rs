//! How a world begins, and how it goes on.

use super::World;
use events_schema::fact::Entry;
use events_schema::job::Determinism;
use workers_session::{Membership, Peer};

impl World {
    pub fn run(&mut self, turns: usize) -> bool {
        (0..turns).all(|_| self.turn())
    }

    /// The newest membership that every one of its living members was told of.
    pub fn in_force(&self) -> Option<Membership> {
        self.shells.values().filter_map(|s| s.session.membership()).max_by_key(|m| m.tag).cloned()
    }
}

/// A job's first members, proposed.
pub fn begin(seed: u64, workers: u16, members: u16, steps_total: u64) -> World {
    begin_as(Determinism::D1, seed, workers, members, steps_total)
}

/// The same of a job with this determinism.
pub fn begin_as(determinism: Determinism, seed: u64, workers: u16, members: u16, steps_total: u64) -> World {
    begun(World { determinism, ..World::new(seed, workers, steps_total) }, members)
}

/// A world with so many first members, proposed.
pub fn begun(mut world: World, members: u16) -> World {
    let peers: Vec<Peer> = (0..members).map(|_| world.spawn()).collect();
    world.propose(Entry::Fresh, &peers, &[]);
    world
}
