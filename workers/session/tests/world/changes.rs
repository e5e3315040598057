//! What happens to a job's members, by chance, and what the controller answers.

use super::World;
use events_schema::fact::Entry;
use workers_session::{Input, Membership, Peer};

impl World {
    pub fn disturb(&mut self) {
        let kind = self.random.below(7);
        self.change(kind);
        self.run_some();
    }

    pub fn change(&mut self, kind: usize) {
        let alive = self.alive();
        let current = self.in_force();
        match (kind, current) {
            (0, Some(current)) if alive.len() > 1 => {
                let victim = alive[self.random.below(alive.len())];
                let holds = |p: &Peer| self.shells[p].session.holding().is_some();
                // Who asked to go may have the victim's word that it stays.
                let stays = |p: &Peer| holds(p) && !self.asked_to_go.contains(p);
                if !holds(&victim) || alive.iter().any(|p| *p != victim && stays(p)) {
                    self.remove(victim);
                    self.run_some();
                    self.recover(&current);
                }
            }
            (1 | 2, Some(current)) => {
                let mut peers: Vec<Peer> = current.peers().filter(|p| self.shells.contains_key(p)).collect();
                while peers.len() > 1 && self.random.one_in(2) {
                    let index = self.random.below(peers.len());
                    peers.remove(index);
                }
                while peers.len() < usize::from(self.workers) && self.random.one_in(2) {
                    peers.push(self.spawn());
                }
                peers.sort_unstable();
                let from = current.tag.generation;
                let told: Vec<Peer> = current.peers().collect();
                if !peers.is_empty() {
                    self.propose(Entry::Switch { from }, &peers, &told);
                }
            }
            (3, Some(current)) if current.seats.len() > 1 => {
                let leaver = current.seats[self.random.below(current.seats.len())].peer;
                // A newcomer that goes before it knows that it is in is a loss like any other.
                if let Some(shell) = self.shells.get_mut(&leaver).filter(|s| s.session.membership().is_some()) {
                    shell.orders.push_back(Input::Leave);
                }
            }
            (6, Some(current)) if current.seats.len() > 1 => {
                let leaver = current.seats[self.random.below(current.seats.len())].peer;
                if let Some(shell) = self.shells.get_mut(&leaver).filter(|s| s.session.membership().is_some()) {
                    shell.orders.extend([Input::Leave, Input::LeaveEarly]);
                    self.asked_to_go.insert(leaver);
                    let before = self.left_early;
                    self.run_some();
                    // As the controller answers to a member that is gone.
                    if self.left_early > before {
                        self.recover(&current);
                    }
                }
            }
            // As the controller answers to a member that misses another: the same members once more.
            (4, Some(current)) if alive.len() > 1 => {
                let one = alive[self.random.below(alive.len())];
                let other = alive[self.random.below(alive.len())];
                if one != other {
                    self.cut(one, other);
                    self.run_some();
                    self.recover(&current);
                }
            }
            _ => {}
        }
    }

    pub fn run_some(&mut self) {
        let turns = self.random.below(120);
        self.run(turns);
    }

    pub fn recover(&mut self, _lost_from: &Membership) {
        let mut alive: Vec<Peer> = self.alive();
        alive.truncate(usize::from(self.workers));
        let told = self.alive();
        if !alive.is_empty() {
            self.propose(Entry::Recover, &alive, &told);
        }
    }
}
