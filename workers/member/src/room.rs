//! Memory that a growth needs is made before it begins. Memory that is touched for the first time costs many times a copy into it, and at gigabytes a member
//! that made room only when the replica is due would hold up its step. So a newcomer asks to be sent the replica once it has room for it, and a member
//! hears that wish once it has room for the copy that it sends.
//!
//! Bounded: one wish of each peer, and one room at a time.

use crate::event::{Out, Room};
use crate::member::Member;
use std::collections::BTreeMap;
use workers_session::{Envelope, Input, Peer};

/// What waits for room.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    /// Room is being made.
    making: bool,
    /// What is to be said then.
    asks: BTreeMap<Peer, Envelope>,
    /// What the session is to hear then.
    heard: BTreeMap<Peer, Envelope>,
}

impl Waiting {
    /// A peer is lost, and with it what it wished.
    pub fn forget(&mut self, peer: Peer) {
        self.asks.remove(&peer);
        self.heard.remove(&peer);
    }
}

impl<P> Member<P> {
    /// This newcomer wishes to be sent the replica.
    pub(crate) fn ask_with_room(&mut self, to: Peer, wish: Envelope) {
        self.waiting.asks.insert(to, wish);
        self.make_room(Room::Replica);
    }

    /// A newcomer wishes to be sent the replica.
    pub(crate) fn hear_with_room(&mut self, from: Peer, wish: Envelope) {
        let me = self.config.me;
        let place = self.membership.as_ref().and_then(|m| Some((m.index(me)?, m.seats.len())));
        // Who is a newcomer itself sends nothing.
        let Some((index, count)) = place else { return self.inputs.push_back(Input::Message(from, wish)) };
        let elements = self.replica.part(index, count).iter().map(|range| range.len()).sum();
        self.waiting.heard.insert(from, wish);
        self.make_room(Room::Aside { elements });
    }

    fn make_room(&mut self, room: Room) {
        if !std::mem::replace(&mut self.waiting.making, true) {
            self.out.push(Out::MakeRoom(room));
        }
    }

    /// [`crate::In::RoomMade`].
    pub(crate) fn on_room_made(&mut self) {
        let Waiting { asks, heard, .. } = std::mem::take(&mut self.waiting);
        self.out.extend(asks.into_iter().map(|(to, wish)| Out::Say(to, wish)));
        self.inputs.extend(heard.into_iter().map(|(from, wish)| Input::Message(from, wish)));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::event::{In, LinkId};
    use crate::member::tests::{config, proposal, running};
    use events_schema::Generation;
    use events_schema::fact::Entry;
    use std::time::Duration;
    use workers_session::{Message, Tag};

    const SWITCH: Entry = Entry::Switch { from: Generation(1) };

    fn linked(member: &mut Member<()>, peers: &[u32]) -> Vec<Out<()>> {
        let link = |peer: &u32| In::Linked(LinkId { peer: Peer(*peer), number: 1 });
        peers.iter().flat_map(|peer| member.handle(Duration::ZERO, link(peer))).collect()
    }

    fn wishes(out: &[Out<()>]) -> usize {
        out.iter().filter(|o| matches!(o, Out::Say(_, envelope) if envelope.message == Message::FollowRequest)).count()
    }

    #[test]
    fn a_newcomer_asks_once_it_has_room() {
        let mut newcomer = Member::new(config(2, 3, 100));
        newcomer.handle(Duration::ZERO, proposal(2, SWITCH, 3, &[0, 1, 2]));
        let out = linked(&mut newcomer, &[0, 1]);
        assert_eq!((out.contains(&Out::MakeRoom(Room::Replica)), wishes(&out)), (true, 0), "{out:?}");
        assert_eq!(wishes(&newcomer.handle(Duration::ZERO, In::RoomMade)), 2);
    }

    #[test]
    fn a_member_has_room_for_its_part_before_it_hears_the_wish_and_one_at_a_time() {
        let mut member = running();
        let tag = Tag { generation: Generation(2), revision: 0 };
        member.handle(Duration::ZERO, proposal(2, SWITCH, 2, &[0, 2]));
        linked(&mut member, &[2]);
        let wish = || In::Message {
            link: LinkId { peer: Peer(2), number: 1 },
            envelope: Envelope { tag, message: Message::FollowRequest },
            bytes: 9,
        };
        let mut out = member.handle(Duration::ZERO, wish());
        out.extend(member.handle(Duration::ZERO, wish()));
        let rooms: Vec<_> = out.iter().filter(|o| matches!(o, Out::MakeRoom(_))).collect();
        assert_eq!(
            rooms,
            [&Out::MakeRoom(Room::Aside { elements: 15 })],
            "a half of what computes and a half of the rest"
        );
        assert_eq!(member.waiting.heard.len(), 1);
        member.handle(Duration::ZERO, In::RoomMade);
        assert_eq!(member.waiting.heard.len(), 0);
        member.handle(Duration::ZERO, wish());
        member.handle(Duration::ZERO, In::Lost(LinkId { peer: Peer(2), number: 1 }));
        assert_eq!(member.waiting.heard.len(), 0, "who is gone wishes nothing");
    }
}
