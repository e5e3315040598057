//! How links come to be, and what comes first of what is under way on them.

use super::{MESSAGE_BYTES, Packet, World};
use std::collections::VecDeque;
use workers_member::{In, LinkId};
use workers_session::Peer;

/// The message that may come before the bulk that was sent before it, if there is one.
pub(super) fn before_bulk(wire: &VecDeque<Packet>) -> Option<usize> {
    wire.iter().position(|packet| matches!(packet, Packet::Say(_))).filter(|index| *index > 0)
}

impl World {
    pub(super) fn deliver(&mut self, from: Peer, to: Peer, number: u64, packet: Option<Packet>) {
        let link = LinkId { peer: from, number };
        // One queue into each process, as in production: whoever said something because of a link comes after the news of it.
        let input = match packet {
            Some(Packet::Say(envelope)) => In::Message { link, envelope, bytes: MESSAGE_BYTES },
            Some(Packet::Bulk(bulk, payload)) => In::Bulk { link, bulk, payload },
            None => {
                self.wires.remove(&(from, to, number));
                In::Lost(link)
            }
        };
        self.tell(to, input);
    }

    pub(super) fn dial(&mut self, index: usize) {
        let (from, to) = self.dials.swap_remove(index);
        if !self.shells.contains_key(&to) {
            return self.tell(from, In::Refused(to));
        }
        self.cut(from, to, 3);
        let number = self.links_made;
        self.links_made += 1;
        self.links.insert((from.min(to), from.max(to)), number);
        for (me, other) in [(from, to), (to, from)] {
            self.wires.insert((other, me, number), VecDeque::new());
            self.tell(me, In::Linked(LinkId { peer: other, number }));
        }
    }
}
