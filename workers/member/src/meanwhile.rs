//! What a member does while a gradient, or a part of an evaluation, is computed: what leaving takes. It hears that it has to go, asks the others, says to
//! others that it stays, and goes. Everything else waits until the unit is done, because whoever handles it may rely on being between two; but not until
//! the step is contributed, which is done after it.
//!
//! The same while a replica is read out of the store, or made, to begin with: who does that is in step with nobody yet, so it asks nobody and goes.
//!
//! None of this touches the step: no sum, no replica, no membership. A session that computes is in a step of the membership in force and stays in it until
//! that unit is done, so it says what it would say between two units, and a gradient that nobody waits for is lost with its process.

use crate::admit::admits;
use crate::event::{In, Out, Unit};
use crate::member::Member;
use std::time::Duration;
use workers_session::{Envelope, Input, Message};

/// Whether [`Member::overtakes`] may say yes to it: it is about leaving in the middle of a step.
#[must_use]
pub fn may_overtake(message: &Message) -> bool {
    matches!(message, Message::MayGo | Message::Stays)
}

impl<P> Member<P> {
    /// Whether this input is handled while the unit is computed that is computed now, or a replica loaded, and does not wait for its end behind those that came
    /// before it.
    #[must_use]
    pub fn overtakes(&self, input: &In<P>) -> bool {
        let computes = matches!(self.unit, Some(Unit::Gradient { .. } | Unit::Evaluate { .. })) && self.still.is_none();
        let loads = self.unit.is_none() && self.loading.is_some();
        match input {
            In::Leave(_) | In::Deadline(_) | In::Wake => computes || loads,
            In::Message { link, envelope, bytes } if computes => {
                self.links.is_current(*link) && admits(&self.config, envelope, *bytes) && self.is_heard(envelope)
            }
            _ => false,
        }
    }

    /// Takes one input that [`Member::overtakes`]; returns what to do, in order. Time as for [`Member::handle`].
    pub fn meanwhile(&mut self, now: Duration, input: In<P>) -> Vec<Out<P>> {
        self.now = self.now.max(now);
        self.take_meanwhile(input);
        std::mem::take(&mut self.out)
    }

    /// Who was told a deadline may also have been told a proposal that lets it go, which waits for the end of the unit: until then it does not say that it stays.
    fn is_heard(&self, Envelope { tag, message }: &Envelope) -> bool {
        let in_force = self.session().membership().is_some_and(|membership| membership.tag == *tag);
        in_force && may_overtake(message) && !(*message == Message::MayGo && self.leave.is_told())
    }

    fn take_meanwhile(&mut self, input: In<P>) {
        match input {
            In::Leave(within) => {
                self.leave.on_deadline(self.now, within);
                self.tell_session(Input::Leave);
            }
            In::Deadline(within) => self.leave.on_deadline(self.now, within),
            In::Message { link, envelope, .. } => self.tell_session(Input::Message(link.peer, envelope)),
            _ => {}
        }
        if self.is_boundary_too_late() {
            self.tell_session(Input::LeaveEarly);
        }
        // Of all that it waits for only this may be due before the unit is done.
        let next = self.leave.next(self.now);
        if !self.ended && next.is_some() && next != self.wake {
            self.wake = next;
            self.out.extend(next.map(Out::WakeAt));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Done, Exit, LinkId};
    use crate::member::tests::{config, proposal, running};
    use events_schema::fact::Entry;
    use events_schema::{Generation, Rank, Step};
    use workers_session::{Peer, Tag};

    const OTHER: LinkId = LinkId { peer: Peer(1), number: 7 };

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn of_generation(generation: u64, message: Message) -> In<()> {
        let tag = Tag { generation: Generation(generation), revision: 0 };
        In::Message { link: OTHER, envelope: Envelope { tag, message }, bytes: 50 }
    }

    fn says(message: Message) -> In<()> {
        of_generation(1, message)
    }

    fn said(out: &[Out<()>]) -> Vec<&Message> {
        out.iter().filter_map(|o| if let Out::Say(_, envelope) = o { Some(&envelope.message) } else { None }).collect()
    }

    /// Two members, of which this one computes a gradient.
    fn computing() -> Member<()> {
        let mut member = running();
        let out = member.handle(at(1_000), In::Free);
        assert!(matches!(out[..], [Out::Compute(Unit::Gradient { .. })]), "{out:?}");
        member
    }

    fn done() -> In<()> {
        In::Done(Done::Gradient { weight: 1.0, loss: 1.0, data_wait: at(0), took: None })
    }

    #[test]
    fn who_computes_says_that_it_stays() {
        let mut member = computing();
        assert_eq!(said(&member.handle(at(1_100), says(Message::MayGo))), [&Message::Stays]);
        let out = member.handle(at(1_200), of_generation(2, Message::MayGo));
        assert!(out.is_empty(), "what is not of this membership waits: {out:?}");
        let out = member.handle(at(1_300), In::Lost(OTHER));
        assert!(out.is_empty(), "and so does whatever else happens: {out:?}");
    }

    #[test]
    fn who_computes_asks_and_goes() {
        let mut member = computing();
        let out = member.handle(at(1_100), In::Leave(at(1_000)));
        assert!(said(&out).is_empty() && out.contains(&Out::WakeAt(at(1_200))), "others may be told as well: {out:?}");
        assert!(member.has_to_leave(), "so nothing holds up what is left of the step");
        // How long a gradient takes is not known yet, so the boundary may be near.
        let out = member.handle(at(1_200), In::Wake);
        assert_eq!(out, [Out::WakeAt(at(1_600))]);
        assert_eq!(said(&member.handle(at(1_600), In::Wake)), [&Message::MayGo]);
        assert_eq!(member.handle(at(1_700), says(Message::Stays)), [Out::Exit(Exit::LeftEarly)]);
        assert!(member.handle(at(9_000), done()).is_empty(), "what it was at is of no use to anybody");
    }

    #[test]
    fn what_is_done_of_a_gradient_counts() {
        let mut member = computing();
        member.leave.unit = at(2_000);
        // It takes 400 ms more, and a boundary is waited for 500.
        let out = member.handle(at(2_600), In::Deadline(at(1_000)));
        assert_eq!(out, [Out::WakeAt(at(2_700))]);
        assert!(said(&member.handle(at(2_700), In::Wake)).is_empty());
        assert_eq!(said(&member.handle(at(3_100), In::Wake)), [&Message::MayGo], "but no longer than that");
    }

    /// A step of one member that hosts both ranks; what it says, and what it is told while it computes the last gradient.
    fn step(member: &mut Member<()>, told: Vec<In<()>>) -> Vec<Out<()>> {
        let (mut told, mut said, mut out) = (Some(told), Vec::new(), member.handle(at(0), In::Free));
        loop {
            let unit = out.iter().find_map(|out| if let Out::Compute(unit) = out { Some(*unit) } else { None });
            said.append(&mut out);
            if matches!(unit, Some(Unit::Gradient { rank: Rank(1), .. })) {
                for input in told.take().into_iter().flatten() {
                    assert!(member.handle(at(0), input).is_empty(), "it waits");
                }
            }
            match unit {
                None => out = member.handle(at(0), In::Free),
                Some(Unit::Update { .. }) => {
                    said.extend(member.handle(at(0), In::Done(Done::Updated)));
                    return said;
                }
                Some(_) => out = member.handle(at(0), done()),
            }
        }
    }

    #[test]
    fn a_leader_announces_with_a_step_what_it_heard_while_it_computed_that() {
        let mut leader = computing();
        let alone = proposal(2, Entry::Switch { from: Generation(1) }, 2, &[0]);
        assert!(leader.handle(at(1_100), alone).is_empty(), "it waits");
        let out = leader.handle(at(1_200), done());
        let announced =
            |message: &&&Message| matches!(message, Message::Contribution(said) if said.announcement.is_some());
        assert!(said(&out).iter().any(|message| announced(&message)), "{out:?}");
    }

    /// Who was told that it stays leaves with its own replica, and would leave none behind.
    #[test]
    fn a_leader_that_said_that_it_stays_does_not_leave_with_that_step() {
        let announced = |asked: bool| {
            let mut leader = computing();
            if asked {
                assert_eq!(said(&leader.handle(at(1_100), says(Message::MayGo))), [&Message::Stays]);
            }
            leader.handle(at(1_200), proposal(2, Entry::Switch { from: Generation(1) }, 2, &[1]));
            let out = leader.handle(at(1_300), done());
            said(&out)
                .iter()
                .any(|message| matches!(message, Message::Contribution(said) if said.announcement.is_some()))
        };
        assert_eq!([false, true].map(announced), [true, false]);
    }

    /// It has contributed, so the boundary may come without it, and it announced who stays there: itself, or both.
    #[test]
    fn who_has_contributed_goes_on_the_word_of_nobody_who_leaves_with_that_step() {
        let goes = |alone: bool| {
            let mut leader = computing();
            leader.leave.unit = at(9_000);
            if alone {
                leader.handle(at(1_100), proposal(2, Entry::Switch { from: Generation(1) }, 2, &[0]));
            }
            leader.handle(at(1_200), In::Deadline(at(1_000)));
            assert_eq!(said(&leader.handle(at(1_700), In::Wake)), [&Message::MayGo]);
            leader.handle(at(1_800), done());
            leader.handle(at(1_900), says(Message::Stays)).contains(&Out::Exit(Exit::LeftEarly))
        };
        assert_eq!([false, true].map(goes), [true, false]);
    }

    /// On a link that carries little more than steps make each gradient comes while the last unit of a step is computed. Heard of after that, a newcomer
    /// was a step behind at each boundary and came in four steps late, when patience with it was over.
    #[test]
    fn a_newcomer_that_catches_up_while_a_gradient_is_computed_comes_in_at_the_next_boundary() {
        let mut leader = Member::new(config(0, 2, 100));
        leader.handle(at(0), proposal(1, Entry::Fresh, 2, &[0]));
        leader.handle(at(0), In::Loaded(Generation(1), Step(0)));
        leader.handle(at(0), proposal(2, Entry::Switch { from: Generation(1) }, 2, &[0, 1]));
        leader.handle(at(0), In::Linked(OTHER));
        leader.handle(at(0), of_generation(2, Message::FollowRequest));
        leader.handle(at(0), In::RoomMade);
        let begun = step(&mut leader, vec![]);
        assert!(begun.iter().any(|out| matches!(out, Out::SendAside { step: Step(1), .. })), "{begun:?}");
        let followed = |step| of_generation(2, Message::Followed { step: Step(step) });
        let welcomed = |out: &[Out<()>]| said(out).iter().any(|message| matches!(message, Message::Welcome { .. }));
        assert!(!welcomed(&step(&mut leader, vec![])), "it has nothing yet");
        let out = step(&mut leader, vec![followed(1), followed(2), of_generation(2, Message::Ready)]);
        assert!(welcomed(&out), "it lacks one gradient: {out:?}");
    }

    /// What it loads is in the store, and nobody steps with it yet. One that is done soon is waited for.
    #[test]
    fn who_loads_its_replica_asks_nobody_and_goes() {
        let mut member = Member::new(config(0, 2, 10));
        let out = member.handle(at(1_000), proposal(1, Entry::Fresh, 2, &[0, 1]));
        assert!(out.iter().any(|out| matches!(out, Out::Load(..))), "{out:?}");
        assert!(member.overtakes(&In::Wake) && !member.overtakes(&says(Message::MayGo)));
        assert_eq!(member.meanwhile(at(1_100), In::Leave(at(1_000))), [Out::WakeAt(at(1_200))]);
        assert_eq!(member.meanwhile(at(1_200), In::Wake), [Out::WakeAt(at(1_600))]);
        assert_eq!(member.meanwhile(at(1_600), In::Wake), [Out::Exit(Exit::LeftEarly)]);
        let mut soon = Member::new(config(0, 2, 10));
        soon.handle(at(1_000), proposal(1, Entry::Fresh, 2, &[0, 1]));
        soon.meanwhile(at(1_100), In::Leave(at(1_000)));
        soon.handle(at(1_200), In::Loaded(Generation(1), Step(0)));
        assert!(!soon.overtakes(&In::Wake));
        let out = soon.handle(at(1_600), In::Wake);
        assert!(
            !out.contains(&Out::Exit(Exit::LeftEarly)),
            "the others begin with it, and it leaves at a boundary: {out:?}"
        );
    }

    /// Its agent told it the proposal and then the deadline; the first waits for the end of the gradient.
    #[test]
    fn who_may_have_to_go_does_not_say_that_it_stays() {
        let mut member = computing();
        member.handle(at(1_100), proposal(2, Entry::Switch { from: Generation(1) }, 2, &[1]));
        member.handle(at(1_100), In::Deadline(at(60_000)));
        assert!(said(&member.handle(at(1_200), says(Message::MayGo))).is_empty());
        assert!(!said(&member.handle(at(1_300), done())).contains(&&Message::Stays), "nor when it knows it");
        let mut stays = computing();
        stays.handle(at(1_100), In::Deadline(at(60_000)));
        assert!(said(&stays.handle(at(1_200), says(Message::MayGo))).is_empty());
        assert!(said(&stays.handle(at(1_300), done())).contains(&&Message::Stays), "it was let go by nothing");
    }
}
