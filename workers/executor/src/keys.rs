//! The keys of an executor's links, as its orders bring them: one for each pair of executors, so that none can speak for another.
//!
//! Learned as soon as an order is read, whatever the trainer is busy with; a peer that was told a moment earlier may dial already.

use events_schema::orders::LinkKey;
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use workers_session::Peer;

/// Keys kept: four times the most members of a membership. Those of the lowest numbers go first, whose executors are the oldest.
const KEYS_MAX: usize = 1024;

/// Who may be linked to, and how each proves itself.
pub struct LinkKeys {
    known: Mutex<BTreeMap<Peer, [u8; 32]>>,
    news: Condvar,
}

impl LinkKeys {
    /// Those of the first order.
    #[must_use]
    pub fn of(keys: &[LinkKey]) -> Self {
        let new = Self { known: Mutex::new(BTreeMap::new()), news: Condvar::new() };
        new.learn(keys);
        new
    }

    /// Adds those of a newer order. Older ones stay: links are made anew in generations that this order no longer names.
    pub fn learn(&self, keys: &[LinkKey]) {
        let mut known = self.known();
        known.extend(keys.iter().map(|link| (Peer(link.peer), link.key)));
        while known.len() > KEYS_MAX {
            known.pop_first();
        }
        self.news.notify_all();
    }

    /// The key of the link to a peer.
    #[must_use]
    pub fn get(&self, peer: Peer) -> Option<[u8; 32]> {
        self.known().get(&peer).copied()
    }

    /// The same, if it comes to be known within this time.
    #[must_use]
    pub fn wait_for(&self, peer: Peer, within: Duration) -> Option<[u8; 32]> {
        let unknown = |known: &mut BTreeMap<Peer, [u8; 32]>| !known.contains_key(&peer);
        let (known, _) =
            self.news.wait_timeout_while(self.known(), within, unknown).unwrap_or_else(PoisonError::into_inner);
        known.get(&peer).copied()
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<Peer, [u8; 32]>> {
        // What a panicked thread left is whole: each change is one insertion.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::Arc;

    /// The key of the link between two executors, as the second's number and key.
    pub fn pair(secret: u8, me: u32, peer: u32) -> LinkKey {
        let mut key = [secret; 32];
        (key[0], key[1]) = (me.min(peer) as u8, me.max(peer) as u8);
        LinkKey { peer, key }
    }

    #[test]
    fn a_key_that_comes_while_it_is_waited_for_is_found() {
        let keys = Arc::new(LinkKeys::of(&[]));
        let waiting = Arc::clone(&keys);
        let waiter = std::thread::spawn(move || waiting.wait_for(Peer(3), Duration::from_secs(60)));
        keys.learn(&[pair(1, 0, 3)]);
        assert_eq!(waiter.join().unwrap(), Some(pair(1, 0, 3).key));
        assert_eq!(keys.wait_for(Peer(4), Duration::ZERO), None);
    }

    #[test]
    fn the_newest_are_kept() {
        let keys = LinkKeys::of(&[pair(1, 0, 1)]);
        let many: Vec<LinkKey> = (2..2 + KEYS_MAX as u32).map(|peer| LinkKey { peer, key: [7; 32] }).collect();
        keys.learn(&many);
        assert_eq!((keys.get(Peer(1)), keys.get(Peer(2))), (None, Some([7; 32])));
    }
}
