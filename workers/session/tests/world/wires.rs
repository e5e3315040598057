//! How links come to be, and what comes first of what is under way on them.

use super::{Packet, World};
use std::collections::VecDeque;
use workers_session::{Input, Peer};

/// The message that may come before the bulk that was sent before it, if there is one.
pub(super) fn before_bulk(wire: &VecDeque<Packet>) -> Option<usize> {
    wire.iter().position(|packet| matches!(packet, Packet::Say(_))).filter(|index| *index > 0)
}

impl World {
    /// Whether nothing comes of what is first on its way to somebody.
    pub(super) fn stands(&self, to: Peer, first: Option<&Packet>) -> bool {
        match first {
            Some(Packet::Aside { .. } | Packet::Mean { .. }) => self.slow == Some(to),
            Some(_) => false,
            None => true,
        }
    }

    pub fn dial(&mut self, from: Peer, to: Peer) {
        self.dials.retain(|d| *d != (from, to));
        let link = (from.min(to), from.max(to));
        if self.shells.contains_key(&from) && self.shells.contains_key(&to) && self.links.insert(link) {
            self.wires.remove(&(from, to));
            self.wires.remove(&(to, from));
            self.link(to, from);
            self.link(from, to);
        }
    }

    /// A new link tells of the end of the old one, if nothing else has.
    pub fn link(&mut self, me: Peer, to: Peer) {
        if let Some(shell) = self.shells.get_mut(&me)
            && let Some(index) = shell.pending.iter().position(|input| *input == Input::Lost(to))
        {
            shell.pending.remove(index);
            self.feed(me, Input::Lost(to));
        }
        self.feed(me, Input::Linked(to));
    }
}
