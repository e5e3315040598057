//! Which agents are there: when each was last heard. What follows from silence the core decides.
//!
//! Silence counts only while it can be told from the controller's own: after a standstill of this process, and after a time in
//! which the log was unwell, every agent has a whole lease before it can be given up. Next file: `links.rs`.

use events_schema::ServerId;
use std::collections::BTreeMap;

#[derive(Debug, Clone)]
pub(crate) struct Presence {
    lease_ms: u64,
    /// A server that is not listed counts as heard then.
    unheard_ms: u64,
    servers: BTreeMap<ServerId, u64>,
    /// When this machine was last awake.
    awake_ms: u64,
}

impl Presence {
    pub fn new(lease_ms: u64) -> Self {
        Self { lease_ms, unheard_ms: 0, servers: BTreeMap::new(), awake_ms: 0 }
    }

    pub fn lease_ms(&self) -> u64 {
        self.lease_ms
    }

    /// Notes that the machine is awake; how long it stood still, if that was long enough for agents to seem silent.
    pub fn awake(&mut self, now_ms: u64, sleep_max_ms: u64) -> Option<u64> {
        let stood_ms = now_ms.saturating_sub(std::mem::replace(&mut self.awake_ms, now_ms));
        (stood_ms > sleep_max_ms + self.lease_ms / 2).then_some(stood_ms)
    }

    /// An agent said something.
    pub fn heard(&mut self, server: &ServerId, now_ms: u64) {
        match self.servers.get_mut(server) {
            Some(at_ms) => *at_ms = now_ms,
            None => drop(self.servers.insert(server.clone(), now_ms)),
        }
    }

    /// Nothing is remembered of a server that is not the cell's.
    pub fn forget(&mut self, server: &ServerId) {
        self.servers.remove(server);
    }

    /// Whether an agent was heard so lately that it counts as there: a few heartbeats.
    pub fn was_heard(&self, server: &ServerId, now_ms: u64) -> bool {
        self.servers.get(server).is_some_and(|at_ms| now_ms.saturating_sub(*at_ms) < self.lease_ms / 2)
    }

    /// How long an agent has been silent.
    pub fn silence_ms(&self, server: &ServerId, now_ms: u64) -> u64 {
        now_ms.saturating_sub(*self.servers.get(server).unwrap_or(&self.unheard_ms))
    }

    /// Counts every agent as heard now; one that never was gets `grace_ms` more, to find this controller.
    pub fn forgive(&mut self, now_ms: u64, grace_ms: u64) {
        self.unheard_ms = self.unheard_ms.max(now_ms + grace_ms);
        self.servers.values_mut().for_each(|at_ms| *at_ms = now_ms);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn silence_counts_from_the_last_word_and_a_start_gives_time() {
        let mut presence = Presence::new(5_000);
        let (known, unknown) = (ServerId::parse("a").unwrap(), ServerId::parse("b").unwrap());
        presence.forgive(100, 5_000);
        presence.heard(&known, 100);
        assert!(presence.silence_ms(&known, 6_100) >= 5_000);
        assert!(presence.silence_ms(&unknown, 6_100) < 5_000, "it may still be on its way");
        assert!(presence.silence_ms(&unknown, 10_200) >= 5_000);
        presence.forgive(10_200, 0);
        assert!(presence.silence_ms(&known, 10_200) < 5_000);
    }

    #[test]
    fn a_standstill_is_noticed_and_ordinary_sleep_is_not() {
        let mut presence = Presence::new(5_000);
        presence.awake(1_000, 500);
        assert_eq!(presence.awake(2_000, 500), None);
        assert_eq!(presence.awake(6_000, 500), Some(4_000));
    }
}
