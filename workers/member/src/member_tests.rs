//! What the machine decides by itself: whom it misses and when it says so, what it does with a store that refuses, and that nobody's
//! word makes it panic. Whole generations of members are in `tests/generations.rs`.
#![allow(clippy::unwrap_used)]

use super::*;
use events_schema::JobId;
use events_schema::fact::Member as Seated;
use events_schema::tree::place;
use events_schema::{Rank, TimeMs};
use workers_session::Seat;

pub(crate) fn config(me: u32, workers: u16, steps_total: u64) -> Config {
    Config {
        job: JobId::parse("job-a").unwrap(),
        me: Peer(me),
        workers,
        steps_total,
        steps_per_epoch: 5,
        rows: 40,
        batch_size: 2,
        checkpoint_every: 3,
        evaluation: None,
        parameter_count: 10,
        replica_len: 30,
        piece_elements: 4,
    }
}

pub(crate) fn membership(generation: u64, workers: u16, peers: &[u32]) -> Membership {
    let shares = place(workers, peers.len() as u16);
    let seats = peers.iter().zip(shares).map(|(&peer, ranks)| Seat { peer: Peer(peer), ranks }).collect();
    Membership { tag: Tag { generation: Generation(generation), revision: 0 }, seats, leader: Peer(peers[0]) }
}

fn proposal(generation: u64, entry: Entry, workers: u16, peers: &[u32]) -> In<()> {
    let of = membership(generation, workers, peers);
    let id = |peer: Peer| ExecutorId { job: JobId::parse("job-a").unwrap(), number: peer.0 };
    let member = |seat: &Seat| Seated {
        executor: id(seat.peer),
        address: format!("h:{}", seat.peer.0),
        ranks: seat.ranks.clone(),
    };
    In::Proposal(Box::new(Proposal {
        generation: Generation(generation),
        entry,
        members: of.seats.iter().map(member).collect(),
        leader: id(of.leader),
        deadline: TimeMs(0),
    }))
}

fn link(peer: u32, number: u64) -> LinkId {
    LinkId { peer: Peer(peer), number }
}

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Who is reported lost in an answer, and in which generation.
fn lost(out: &[Out<()>]) -> Vec<(u32, u64)> {
    let of = |o: &Out<()>| match o {
        Out::Report(Report::PeerLost { generation, executor, .. }) => Some((executor.number, generation.0)),
        _ => None,
    };
    out.iter().filter_map(of).collect()
}

/// Two members of which the other has joined; this one, `Peer(0)`, leads and computes.
fn running() -> Member<()> {
    let mut member = Member::new(config(0, 2, 100));
    member.handle(at(0), proposal(1, Entry::Fresh, 2, &[0, 1]));
    member.handle(at(1), In::Linked(link(1, 7)));
    member.handle(at(2), In::Loaded(Generation(1), Step(0)));
    let holding = Some(workers_session::Holding { step: Step(0), gradient: false });
    let envelope = Envelope { tag: Tag { generation: Generation(1), revision: 0 }, message: Message::Join { holding } };
    member.handle(at(3), In::Message { link: link(1, 7), envelope, bytes: 50, arrived: at(3) });
    assert!(member.session().leads());
    member
}

#[test]
fn a_lost_member_is_named_after_a_grace_and_again_while_nothing_is_done() {
    let mut member = running();
    let out = member.handle(at(1_000), In::Lost(link(1, 7)));
    let due = at(1_000) + GRACE;
    assert!(out.contains(&Out::WakeAt(due)), "{out:?}");
    assert_eq!(lost(&out), []);
    assert_eq!(lost(&member.handle(due - at(1), In::Wake)), []);
    let out = member.handle(due, In::Wake);
    assert_eq!(lost(&out), [(1, 1)]);
    assert!(out.contains(&Out::WakeAt(due + REPEAT)), "{out:?}");
    assert_eq!(lost(&member.handle(due + REPEAT, In::Wake)), [(1, 1)]);
}

#[test]
fn a_link_that_is_back_is_not_enough_because_what_was_on_it_is_gone() {
    let mut member = running();
    member.handle(at(1_000), In::Lost(link(1, 7)));
    member.handle(at(1_100), In::Linked(link(1, 8)));
    assert_eq!(lost(&member.handle(at(1_000) + GRACE, In::Wake)), [(1, 1)]);
}

#[test]
fn a_round_names_who_is_not_linked_and_nobody_else() {
    let mut member: Member<()> = Member::new(config(2, 4, 100));
    let out = member.handle(at(0), proposal(1, Entry::Recover, 4, &[0, 1, 2]));
    let dials: Vec<u32> =
        out.iter().filter_map(|o| if let Out::Dial(peer, _) = o { Some(peer.0) } else { None }).collect();
    assert_eq!(dials, [0, 1]);
    assert!(out.contains(&Out::WakeAt(LINKING_GRACE)));
    member.handle(at(10), In::Linked(link(1, 1)));
    assert_eq!(member.progress().waits_for, events_schema::control::WaitsFor::Peers(vec![0]));
    assert_eq!(lost(&member.handle(LINKING_GRACE, In::Wake)), [(0, 1)]);
    member.handle(LINKING_GRACE + at(1), In::Linked(link(0, 2)));
    assert_eq!(lost(&member.handle(LINKING_GRACE + REPEAT, In::Wake)), []);
}

#[test]
fn a_dial_that_was_given_up_is_made_again_while_the_round_lasts() {
    let mut member: Member<()> = Member::new(config(2, 4, 100));
    member.handle(at(0), proposal(1, Entry::Recover, 4, &[0, 1, 2]));
    let out = member.handle(at(500), In::Refused(Peer(1)));
    let again = at(500) + crate::links::REDIAL_AFTER;
    assert!(out.contains(&Out::WakeAt(again)), "{out:?}");
    assert_eq!(member.handle(again, In::Wake)[0], Out::Dial(Peer(1), "h:1".to_owned()));
}

#[test]
fn a_newer_link_takes_the_place_of_an_older_one_whatever_is_heard_first() {
    let mut member = running();
    let out = member.handle(at(10), In::Linked(link(1, 5)));
    assert_eq!(out, [Out::Cut(link(1, 5), Cause::Replaced)], "overtaken news");
    let out = member.handle(at(11), In::Linked(link(1, 9)));
    assert_eq!(out[..2], [Out::Cut(link(1, 7), Cause::Replaced), Out::Use(link(1, 9))]);
    assert_eq!(member.handle(at(12), In::Lost(link(1, 7))), []);
    assert!(member.links.has(Peer(1)));
}

#[test]
fn nothing_is_handled_while_a_unit_is_computed() {
    let mut member = running();
    let out = member.handle(at(10), In::Free);
    assert_eq!(out, [Out::Compute(Unit::Gradient { step: Step(0), rank: Rank(0) })]);
    assert_eq!(member.progress().phase, events_schema::control::Phase::Computing(Rank(0)));
    assert_eq!(member.handle(at(11), In::Lost(link(1, 7))), []);
    assert!(member.links.has(Peer(1)));
    member.handle(at(12), In::Done(crate::event::Done::Gradient { weight: 1.0, loss: 1.0 }));
    assert!(!member.links.has(Peer(1)));
    assert_eq!(member.progress().units_done, 1);
}

#[test]
fn a_replica_loaded_for_a_generation_that_is_over_is_dropped() {
    let mut member: Member<()> = Member::new(config(0, 2, 100));
    member.handle(at(0), proposal(1, Entry::Fresh, 2, &[0, 1]));
    member.handle(at(1), proposal(2, Entry::Fresh, 2, &[0, 1]));
    assert_eq!(member.handle(at(2), In::Loaded(Generation(1), Step(0))), []);
    assert_eq!(member.replica_step(), None);
    assert_eq!(member.handle(at(3), In::Loaded(Generation(2), Step(0)))[0], Out::Adopt(Step(0)));
}

/// A job of one step that stands still for its last checkpoint.
fn saving() -> (Member<()>, CheckpointId) {
    let mut member: Member<()> = Member::new(config(0, 1, 1));
    member.handle(at(0), proposal(1, Entry::Fresh, 1, &[0]));
    member.handle(at(1), In::Loaded(Generation(1), Step(0)));
    assert!(matches!(member.handle(at(2), In::Free)[..], [Out::Compute(Unit::Gradient { .. })]));
    let out = member.handle(at(3), In::Done(crate::event::Done::Gradient { weight: 1.0, loss: 1.0 }));
    assert!(matches!(out.last(), Some(Out::Compute(Unit::Update { .. }))), "{out:?}");
    let out = member.handle(at(4), In::Done(crate::event::Done::Updated));
    let write =
        out.iter().find_map(|o| if let Out::Write { task, needed: true } = o { task.checkpoint() } else { None });
    (member, write.unwrap())
}

#[test]
fn a_job_that_stands_still_for_its_store_waits_for_it() {
    let (mut member, checkpoint) = saving();
    assert_eq!(member.progress().waits_for, events_schema::control::WaitsFor::Store);
    let out = member.handle(at(10_000), In::NotWritten(Some(checkpoint)));
    assert_eq!(out, [Out::WakeAt(at(15_000))]);
    let out = member.handle(at(15_000), In::Wake);
    assert!(matches!(&out[..], [Out::Write { needed: true, .. }]), "{out:?}");
    let out = member.handle(at(10_000) + crate::save::STORE_PATIENCE, In::NotWritten(Some(checkpoint)));
    assert_eq!(out, [Out::Exit(Exit::NotSaved)]);
}

#[test]
fn a_checkpoint_behind_the_training_may_fail() {
    let mut member = running();
    let checkpoint = CheckpointId { step: Step(3), tag: Tag { generation: Generation(1), revision: 0 } };
    assert_eq!(member.handle(at(9), In::NotWritten(Some(checkpoint))), []);
}

#[test]
fn what_does_not_fit_the_step_costs_its_sender_the_link() {
    use crate::event::{Bulk, Kind};
    let tag = Tag { generation: Generation(1), revision: 0 };
    let node = events_schema::tree::Node { first: 1, count: 1 };
    let good = Bulk { kind: Kind::Partial(node), tag, step: Step(0), offset: 0, elements: 4 };
    for bulk in [
        Bulk { offset: 1, ..good },
        Bulk { offset: u64::MAX, ..good },
        Bulk { elements: usize::MAX, ..good },
        Bulk { kind: Kind::Reduced, ..good },
        Bulk { kind: Kind::Reduced, step: Step(1), ..good },
        Bulk { kind: Kind::Replica, step: Step(1), ..good },
        Bulk { step: Step(2), ..good },
        Bulk { step: Step(u64::MAX), ..good },
        Bulk { tag: Tag { generation: Generation(9), revision: 0 }, elements: 51, ..good },
    ] {
        let mut member = running();
        assert_eq!(member.handle(at(9), In::Bulk { link: link(1, 7), bulk: good, payload: () }), []);
        let next = Bulk { step: Step(1), ..good };
        assert_eq!(member.handle(at(9), In::Bulk { link: link(1, 7), bulk: next, payload: () }), [], "a step ahead");
        let out = member.handle(at(9), In::Bulk { link: link(1, 7), bulk, payload: () });
        assert!(matches!(out.first(), Some(Out::Cut(l, _)) if *l == link(1, 7)), "{bulk:?}: {out:?}");
    }
}
