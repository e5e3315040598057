//! How a world begins, and how it goes on: until it rests, to the next wake, or for some turns.

use super::World;
use events_schema::fact::Entry;
use events_schema::job::Determinism;
use std::time::Duration;
use workers_member::In;
use workers_session::Peer;

impl World {
    /// Runs until nothing happens any more without time going on, `turns` at most. Gives whether that was reached.
    pub fn run_to_rest(&mut self, turns: usize) -> bool {
        (0..turns).any(|_| !self.turn())
    }

    /// Lets time go on to the next wake, if there is one before `until`.
    pub fn sleep(&mut self, until: Duration) -> bool {
        let Some((peer, at)) = self.shells.iter().filter_map(|(p, s)| s.wake.map(|at| (*p, at))).min_by_key(|w| w.1)
        else {
            return false;
        };
        if at > until {
            return false;
        }
        self.now = self.now.max(at);
        if let Some(shell) = self.shells.get_mut(&peer) {
            shell.wake = None;
            shell.inbox.push_back(In::Wake);
        }
        true
    }

    pub fn run_some(&mut self) {
        let turns = self.random.below(400);
        (0..turns).all(|_| self.turn());
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
