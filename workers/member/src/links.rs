//! Which links there are: of several between the same two executors the newest counts, and a dial that is given up is made again.

use crate::event::LinkId;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use workers_session::Peer;

/// Links of one executor at once: four times the most members of a membership, so that generations may overlap. A peer that holds
/// the key could otherwise claim any number of names.
const LINKS_MAX: usize = 1024;
/// A dial that was given up is made again this much later, for as long as its peer is wanted.
pub(crate) const REDIAL_AFTER: Duration = Duration::from_secs(1);

/// What a new link is to the links there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    /// The only one to its peer.
    New,
    /// In the place of one whose end was not heard yet.
    Instead(LinkId),
    /// Older than the one there is: news that was overtaken.
    Stale,
    /// One too many.
    TooMany,
}

/// All links of an executor.
#[derive(Debug, Clone, Default)]
pub(crate) struct Links {
    current: BTreeMap<Peer, u64>,
    dialing: BTreeSet<Peer>,
    /// When to dial again.
    again: BTreeMap<Peer, Duration>,
}

impl Links {
    /// Whether a dial is to be made.
    pub fn dial(&mut self, peer: Peer) -> bool {
        self.again.remove(&peer);
        !self.has(peer) && self.dialing.insert(peer)
    }

    pub fn refused(&mut self, peer: Peer, now: Duration) {
        if self.dialing.remove(&peer) && !self.has(peer) {
            self.again.insert(peer, now + REDIAL_AFTER);
        }
    }

    pub fn linked(&mut self, link: LinkId) -> Taken {
        match self.current.get(&link.peer) {
            Some(&newer) if newer >= link.number => return Taken::Stale,
            None if self.current.len() >= LINKS_MAX => return Taken::TooMany,
            _ => {}
        }
        self.dialing.remove(&link.peer);
        self.again.remove(&link.peer);
        match self.current.insert(link.peer, link.number) {
            Some(number) => Taken::Instead(LinkId { number, ..link }),
            None => Taken::New,
        }
    }

    pub fn has(&self, peer: Peer) -> bool {
        self.current.contains_key(&peer)
    }

    pub fn is_current(&self, link: LinkId) -> bool {
        self.current.get(&link.peer) == Some(&link.number)
    }

    /// Forgets a link that ended. Gives whether it was the one in use.
    pub fn lost(&mut self, link: LinkId) -> bool {
        self.is_current(link) && self.current.remove(&link.peer).is_some()
    }

    pub fn current(&self, peer: Peer) -> Option<LinkId> {
        self.current.get(&peer).map(|&number| LinkId { peer, number })
    }

    /// When the next dial is to be made again.
    pub fn next(&self) -> Option<Duration> {
        self.again.values().min().copied()
    }

    /// Peers to be dialed again by now.
    pub fn due(&mut self, now: Duration) -> Vec<Peer> {
        let due: Vec<Peer> = self.again.iter().filter(|(_, at)| **at <= now).map(|(peer, _)| *peer).collect();
        self.again.retain(|_, at| *at > now);
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(peer: u32, number: u64) -> LinkId {
        LinkId { peer: Peer(peer), number }
    }

    #[test]
    fn news_of_an_older_link_does_not_end_the_newer_one() {
        let mut links = Links::default();
        assert_eq!(links.linked(link(1, 4)), Taken::New);
        assert_eq!(links.linked(link(1, 3)), Taken::Stale);
        assert!(links.is_current(link(1, 4)));
        assert_eq!(links.linked(link(1, 5)), Taken::Instead(link(1, 4)));
        assert!(!links.lost(link(1, 4)));
        assert!(links.lost(link(1, 5)));
        assert!(!links.has(Peer(1)));
    }

    #[test]
    fn a_dial_that_was_given_up_is_made_again_later() {
        let (mut links, now) = (Links::default(), Duration::from_secs(9));
        assert!(links.dial(Peer(2)));
        assert!(!links.dial(Peer(2)), "it is under way");
        links.refused(Peer(2), now);
        assert_eq!(links.next(), Some(now + REDIAL_AFTER));
        assert!(links.due(now).is_empty());
        assert_eq!(links.due(now + REDIAL_AFTER), [Peer(2)]);
        assert!(links.dial(Peer(2)));
        assert_eq!(links.linked(link(2, 0)), Taken::New);
        links.refused(Peer(2), now);
        assert_eq!(links.next(), None, "it is linked by the other side's dial");
    }

    #[test]
    fn nobody_can_claim_names_without_end() {
        let mut links = Links::default();
        let taken = (0..5_000).filter(|&peer| links.linked(link(peer, u64::from(peer))) == Taken::New).count();
        assert_eq!(taken, LINKS_MAX);
        assert_eq!(links.linked(link(5_000, 5_000)), Taken::TooMany);
    }
}
