//! Bulk data that arrived before this executor was where it belongs: a peer may be one step, or one membership, ahead.
//!
//! Bounded by what correct peers can send. Of the next step in the membership in force that is known exactly: every stretch that its plan has
//! a place for, once. Of a membership to come it is a budget: the replica, and a gradient per node that members can bring; and where newcomers follow, what is sent
//! to them beside the steps. One membership at a
//! time: nobody gets past one without all of its members, so whoever sends for a later one shows that an earlier came to nothing.

use crate::event::{Bulk, Config, Kind};
use events_schema::Step;
use events_schema::tree::Node;
use std::collections::BTreeSet;
use workers_session::{Peer, Tag};

/// Gradients' worth of partial sums of the first step of a membership to come: with two or four logical workers exactly this many.
const GRADIENTS_MIN: usize = 2;

/// Bulk messages kept for later.
#[derive(Debug, Clone)]
pub(crate) struct Early<P> {
    kept: Vec<Kept<P>>,
    /// Stretches of the next step: each has one place, so it can come once.
    places: BTreeSet<(Peer, u64, Node)>,
    /// The membership to come that there are stretches of.
    ahead: Option<Tag>,
    /// Elements of it, and most of them.
    elements: usize,
    elements_max: usize,
}

#[derive(Debug, Clone)]
struct Kept<P> {
    from: Peer,
    bulk: Bulk,
    payload: P,
    /// Its place in the next step; none for what is of a membership to come.
    node: Option<Node>,
}

impl<P> Early<P> {
    pub fn new(config: &Config) -> Self {
        // A share of at most half of the ranks is made of at most log2(W) nodes, and of each this member's chunk may come.
        let gradients = (config.workers.max(1).ilog2() as usize).max(GRADIENTS_MIN);
        // What was sent aside to a newcomer that follows no more, because a round has begun that its senders have not heard of.
        let behind = |updates: u64| usize::try_from(updates).unwrap_or(usize::MAX).saturating_add(1);
        let updates = config.behind_max.map_or(0, behind);
        let aside = if config.behind_max.is_some() { config.replica_len } else { 0 };
        let gradients = config.gradient_len.saturating_mul(gradients.saturating_add(updates));
        // Chunks differ by an element, and each rank may be a node of its own.
        let gradients = gradients.saturating_add(config.workers.into());
        let elements_max = config.replica_len.saturating_add(aside).saturating_add(gradients);
        Self { kept: Vec::new(), places: BTreeSet::new(), ahead: None, elements: 0, elements_max }
    }

    /// Keeps a stretch of the next step that the plan has a place for; `false` when it came before.
    pub fn keep_next(&mut self, from: Peer, bulk: Bulk, node: Node, payload: P) -> bool {
        let new = self.places.insert((from, bulk.offset, node));
        if new {
            self.kept.push(Kept { from, bulk, payload, node: Some(node) });
        }
        new
    }

    /// Keeps a stretch of a membership to come, unless it is of one that came to nothing; `false` when there is no room, and its sender must be
    /// cut off.
    pub fn keep_ahead(&mut self, from: Peer, bulk: Bulk, payload: P) -> bool {
        if self.ahead.is_some_and(|ahead| bulk.tag < ahead) {
            return true;
        }
        if self.ahead.is_some_and(|ahead| bulk.tag > ahead) {
            self.kept.retain(|kept| kept.node.is_some());
            self.count();
        }
        let elements = self.elements.saturating_add(bulk.elements);
        if elements > self.elements_max || bulk.elements == 0 {
            return false;
        }
        (self.ahead, self.elements) = (Some(bulk.tag), elements);
        self.kept.push(Kept { from, bulk, payload, node: None });
        true
    }

    /// Takes out the supplies of the replica of an entered step. Sums of the same step stay: their plan is not made yet.
    pub fn take_supplies(&mut self, tag: Tag, step: Step) -> Vec<(Peer, Bulk, P)> {
        self.take_if(tag, step, |bulk| matches!(bulk.kind, Kind::Replica | Kind::Gradient))
    }

    /// Takes out what belongs to a membership and step, in order of arrival, and forgets what is older.
    pub fn take(&mut self, tag: Tag, step: Step) -> Vec<(Peer, Bulk, P)> {
        self.take_if(tag, step, |_| true)
    }

    fn take_if(&mut self, tag: Tag, step: Step, wanted: impl Fn(&Bulk) -> bool) -> Vec<(Peer, Bulk, P)> {
        if self.kept.is_empty() {
            return Vec::new();
        }
        let mut due = Vec::new();
        for kept in std::mem::take(&mut self.kept) {
            let at = (kept.bulk.tag, kept.bulk.step);
            let is_due = at == (tag, step) && wanted(&kept.bulk);
            if at > (tag, step) || (at == (tag, step) && !is_due) {
                self.kept.push(kept);
            } else if is_due {
                due.push((kept.from, kept.bulk, kept.payload));
            }
        }
        self.count();
        due
    }

    /// Forgets what came on a link that ended: its end means that the rest never comes.
    pub fn forget(&mut self, peer: Peer) {
        self.kept.retain(|kept| kept.from != peer);
        self.count();
    }

    fn count(&mut self) {
        self.places = self.kept.iter().filter_map(|k| k.node.map(|node| (k.from, k.bulk.offset, node))).collect();
        let ahead = || self.kept.iter().filter(|k| k.node.is_none()).map(|k| &k.bulk);
        (self.ahead, self.elements) = (ahead().map(|b| b.tag).max(), ahead().map(|b| b.elements).sum());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::tests::config;
    use events_schema::Generation;

    fn bulk(generation: u64, step: u64, elements: usize) -> Bulk {
        let tag = Tag { generation: Generation(generation), revision: 0 };
        Bulk { kind: Kind::Reduced, tag, step: Step(step), offset: 0, elements }
    }

    #[test]
    fn gives_what_is_due_and_forgets_what_is_old() {
        let mut early = Early::new(&config(0, 4, 9));
        for step in [4, 5, 6] {
            assert!(early.keep_ahead(Peer(0), bulk(1, step, 1), step));
        }
        let tag = |g| Tag { generation: Generation(g), revision: 0 };
        let due: Vec<u64> = early.take(tag(1), Step(5)).into_iter().map(|(.., payload)| payload).collect();
        assert_eq!(due, [5]);
        assert!(early.take(tag(1), Step(4)).is_empty(), "older than what was taken last");
        assert_eq!(early.take(tag(1), Step(6)).len(), 1);
    }

    /// Found by the simulation of everything: what a newcomer had been sent for a membership that it never came into left no room for the replica of the
    /// next one, and it took who sent that for broken.
    #[test]
    fn what_came_for_a_membership_that_came_to_nothing_takes_no_room_from_the_next() {
        let mut early = Early::new(&config(0, 4, 9));
        let most = early.elements_max;
        assert!(early.keep_ahead(Peer(0), bulk(1, 5, most), "dead"));
        assert!(early.keep_ahead(Peer(1), bulk(2, 5, most), "alive"));
        assert!(early.keep_ahead(Peer(0), bulk(1, 5, most), "late"), "whose link is slow did nothing wrong");
        assert!(!early.keep_ahead(Peer(1), bulk(2, 5, 1), "too much"));
        let tag = |g| Tag { generation: Generation(g), revision: 0 };
        assert!(early.take(tag(1), Step(5)).is_empty());
        assert_eq!(early.take(tag(2), Step(5)).len(), 1);
        assert!(early.keep_ahead(Peer(1), bulk(3, 6, most), "the next"));
        early.forget(Peer(1));
        assert!(early.keep_ahead(Peer(0), bulk(2, 7, most), "who said that there was a later one is gone"));
    }

    /// Found by real processes under load: a newcomer that looked for its replica threw away sums of the same step, and the step never ended.
    #[test]
    fn sums_that_came_before_the_step_began_are_there_when_it_does() {
        let mut early = Early::new(&config(0, 4, 9));
        let supply = Bulk { kind: Kind::Replica, ..bulk(2, 5, 1) };
        assert!(early.keep_ahead(Peer(0), bulk(2, 5, 1), "sum") && early.keep_ahead(Peer(1), supply, "replica"));
        let tag = bulk(2, 5, 1).tag;
        let payloads = |due: Vec<(Peer, Bulk, &'static str)>| due.into_iter().map(|(.., p)| p).collect::<Vec<_>>();
        assert_eq!(payloads(early.take_supplies(tag, Step(5))), ["replica"]);
        assert_eq!(payloads(early.take(tag, Step(5))), ["sum"]);
    }

    #[test]
    fn a_stretch_of_the_next_step_comes_once() {
        let mut early = Early::new(&config(0, 4, 9));
        let (tag, node) = (bulk(1, 6, 1).tag, Node { first: 2, count: 2 });
        assert!(early.keep_next(Peer(1), bulk(1, 6, 1), node, ()));
        assert!(early.take(tag, Step(5)).is_empty());
        assert!(!early.keep_next(Peer(1), bulk(1, 6, 1), node, ()), "not even after a look at what is due");
        assert_eq!(early.take(tag, Step(6)).len(), 1);
    }

    /// With four logical workers, and newcomers up to six steps behind: two replicas and nine gradients, not sixteen gradients and 64 MiB.
    #[test]
    fn what_is_kept_is_bounded_by_the_size_of_the_model() {
        let config = config(0, 4, 9);
        let mut early = Early::new(&config);
        let room = 2 * config.replica_len + (2 + 7) * config.gradient_len + 4;
        let kept = (0..1_000).filter(|_| early.keep_ahead(Peer(3), bulk(2, 0, 1), ())).count();
        assert_eq!(kept, room);
        early.forget(Peer(3));
        assert!(early.keep_ahead(Peer(4), bulk(2, 0, room), ()));
        assert!(!early.keep_ahead(Peer(4), bulk(2, 0, 0), ()), "nothing is no stretch");
        assert!(!early.keep_ahead(Peer(4), bulk(2, 0, usize::MAX), ()));
    }
}
