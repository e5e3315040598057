//! What the machine decides by itself: whom it misses and when it says so, what it does with a store that refuses, and that nobody's
//! word makes it panic. Whole generations of members are in `tests/generations.rs`.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::event::{Task, Written};
use events_schema::fact::Member as Seated;
use events_schema::job::{CheckpointInterval, Determinism};
use events_schema::stride::Stride;
use events_schema::tree::place;
use events_schema::{Digest, JobId};
use events_schema::{Rank, TimeMs};
use std::time::Duration;
use workers_session::{Due, PartDigests, ReplicaChecksum, Seat, ShardWritten, Tag};

pub(crate) fn config(me: u32, workers: u16, steps_total: u64) -> Config {
    Config {
        job: JobId::parse("job-a").unwrap(),
        me: Peer(me),
        workers,
        determinism: Determinism::D1,
        steps_total,
        steps_per_epoch: 5,
        rows: 40,
        batch_size: 2,
        checkpoint: CheckpointInterval::Steps(3),
        compare_every: None,
        restarts: 0,
        store_patience: Duration::from_secs(600),
        evaluation: None,
        gradient_len: 10,
        compute_len: 10,
        replica_len: 30,
        behind_max: Some(6),
        piece_elements: 4,
    }
}

pub(crate) fn membership(generation: u64, workers: u16, peers: &[u32]) -> Membership {
    let shares = place(workers, peers.len() as u16);
    let seats = peers.iter().zip(shares).map(|(&peer, ranks)| Seat { peer: Peer(peer), ranks, host: 0 }).collect();
    Membership {
        tag: Tag { generation: Generation(generation), revision: 0 },
        seats,
        leader: Peer(peers[0]),
        stride: Stride::ONE,
    }
}

pub(crate) fn proposal(generation: u64, entry: Entry, workers: u16, peers: &[u32]) -> In<()> {
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
        stride: Stride::ONE,
    }))
}

fn link(peer: u32, number: u64) -> LinkId {
    LinkId { peer: Peer(peer), number }
}

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Who is reported missing in an answer, and in which generation.
fn lost(out: &[Out<()>]) -> Vec<(u32, u64)> {
    let of = |o: &Out<()>| match o {
        Out::Report(Report::PeersMissing { generation, peers, .. }) => {
            peers.iter().map(|peer| (peer.number, generation.0)).collect()
        }
        _ => Vec::new(),
    };
    out.iter().flat_map(of).collect()
}

/// Two members of which the other has joined; this one, `Peer(0)`, leads and computes.
pub(crate) fn running() -> Member<()> {
    let mut member = Member::new(config(0, 2, 100));
    member.handle(at(0), proposal(1, Entry::Fresh, 2, &[0, 1]));
    member.handle(at(1), In::Linked(link(1, 7)));
    member.handle(at(2), In::Loaded(Generation(1), Step(0)));
    let holding = Some(workers_session::Holding { step: Step(0), gradient: false, tag: None });
    let envelope = Envelope { tag: Tag { generation: Generation(1), revision: 0 }, message: Message::Join { holding } };
    member.handle(at(3), In::Message { link: link(1, 7), envelope, bytes: 50 });
    assert!(member.session().leads());
    member
}

/// What is read ahead is what this membership reads: not the largest batch of the spec, nor more than comes before something is due.
#[test]
fn data_are_announced_by_the_updates_of_the_membership() {
    let mut member = running();
    for (stride, longest) in [(1, 1), (2, 2), (8, 3)] {
        member.membership.as_mut().unwrap().stride = Stride::of(stride);
        member.begin_step(Step(4));
        let announced =
            member.out.drain(..).find_map(|out| if let Out::Prefetch(_, place) = out { Some(place) } else { None });
        assert_eq!(announced, Some((Step(4), Stride::of(longest))), "checkpoints are every third step");
    }
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
fn a_link_that_takes_the_place_of_another_is_a_loss_too() {
    let mut member = running();
    member.handle(at(1_000), In::Linked(link(1, 8)));
    assert_eq!(lost(&member.handle(at(1_000) + GRACE, In::Wake)), [(1, 1)]);
}

/// Sums of an abandoned step must not pass for those of another that is abandoned without having been computed.
#[test]
fn sums_that_are_kept_belong_to_one_step() {
    let mut member = running();
    member.handle(at(10), In::Free);
    member.handle(
        at(11),
        In::Done(crate::event::Done::Gradient { weight: 1.0, loss: 1.0, data_wait: Duration::ZERO, took: None }),
    );
    member.abandon();
    assert_eq!(member.out, []);
    member.position = Step(1);
    member.abandon();
    assert_eq!(member.out, [Out::Release(events_schema::tree::Node { first: 0, count: 1 })]);
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
    assert_eq!(out, [Out::Compute(Unit::Gradient { step: Step(0), stride: Stride::ONE, rank: Rank(0) })]);
    assert_eq!(member.progress().phase, events_schema::control::Phase::Computing(Rank(0)));
    assert_eq!(member.handle(at(11), In::Lost(link(1, 7))), []);
    assert!(member.links.has(Peer(1)));
    let data_wait = Duration::from_micros(700);
    member.handle(at(12), In::Done(crate::event::Done::Gradient { weight: 1.0, loss: 1.0, data_wait, took: None }));
    assert!(!member.links.has(Peer(1)));
    assert_eq!(member.progress().units_done, 1);
    assert_eq!(
        member.progress().gradients,
        Some(Gradients { count: 1, took_us: 2_000, data_us: Some(700) }),
        "from 10 to 12 ms, of which it waited for its rows"
    );
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
    let out = member.handle(
        at(3),
        In::Done(crate::event::Done::Gradient { weight: 1.0, loss: 1.0, data_wait: Duration::ZERO, took: None }),
    );
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
    let out = member.handle(at(10_000), In::NotWritten { checkpoint: Some(checkpoint), later: true });
    assert_eq!(out, [Out::WakeAt(at(15_000))]);
    let out = member.handle(at(15_000), In::Wake);
    assert!(matches!(&out[..], [Out::Write { needed: true, .. }]), "{out:?}");
    let mut fails = |after_ms: u64| {
        member.handle(at(10_000 + after_ms), In::NotWritten { checkpoint: Some(checkpoint), later: true })
    };
    assert!(
        !fails(1_199_999).contains(&Out::Exit(Exit::NotSaved)),
        "the controller suspends the job after half of that"
    );
    assert_eq!(fails(1_200_000), [Out::Exit(Exit::NotSaved)]);
}

/// A store that was slow when the job came to its end still writes what was ordered before, and that may not take the room of the last.
#[test]
fn a_job_that_stands_still_needs_only_its_last_checkpoint() {
    let (mut member, last) = saving();
    let before = CheckpointId { step: Step(0), ..last };
    let shard = |checkpoint| ShardWritten {
        checkpoint,
        index: 0,
        count: 1,
        first_element: 0,
        elements: 300,
        bytes: 1_200,
        digest: Digest([0; 32]),
        checksum: ReplicaChecksum([0; 16]),
        writer: None,
        part_digests: PartDigests::default(),
    };
    let mut needs = |checkpoint| {
        let out = member.handle(at(10), In::Written(Written::Shard(shard(checkpoint))));
        out.iter().find_map(|out| match out {
            Out::Write { task: Task::Manifest(of, _), needed } => Some((*of, *needed)),
            _ => None,
        })
    };
    assert_eq!([needs(before), needs(last)], [Some((before, false)), Some((last, true))]);
}

#[test]
fn a_checkpoint_behind_the_training_may_fail() {
    let mut member = running();
    let checkpoint = CheckpointId { step: Step(3), tag: Tag { generation: Generation(1), revision: 0 } };
    assert_eq!(member.handle(at(9), In::NotWritten { checkpoint: Some(checkpoint), later: true }), []);
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

mod anything {
    //! Whatever a peer that holds the key says, in whatever order, it costs at most its link.

    use super::*;
    use crate::event::{Bulk, Kind};
    use events_schema::Digest;
    use events_schema::tree::Node;
    use proptest::prelude::*;
    use proptest::sample::select;
    use workers_session::{
        Announcement, Contribution, Follower, Holding, Lagging, NodeSums, RankMetrics, ShardWritten, message::Start,
    };

    fn number() -> impl Strategy<Value = u64> {
        select(vec![0, 1, 2, 3, 99, 100, 101, 1 << 40, u64::MAX - 1, u64::MAX])
    }

    fn tag() -> impl Strategy<Value = Tag> {
        let revision = select(vec![0, 1, 2, u32::MAX]);
        (number(), revision).prop_map(|(generation, revision)| Tag { generation: Generation(generation), revision })
    }

    fn peer() -> impl Strategy<Value = Peer> {
        select(vec![0, 1, 2, u32::MAX]).prop_map(Peer)
    }

    fn node() -> impl Strategy<Value = Node> {
        let part = || select(vec![0, 1, 2, u16::MAX]);
        (part(), part()).prop_map(|(first, count)| Node { first, count })
    }

    fn any_membership() -> impl Strategy<Value = Membership> {
        let ranks = proptest::collection::vec(select(vec![0, 1, 2, u16::MAX]).prop_map(Rank), 0..3);
        let seats =
            proptest::collection::vec((peer(), ranks).prop_map(|(peer, ranks)| Seat { peer, ranks, host: 0 }), 0..3);
        let torn = (tag(), seats, peer()).prop_map(|(tag, seats, leader)| Membership {
            tag,
            seats,
            leader,
            stride: Stride::of(3),
        });
        let sound = (tag(), select(vec![vec![0], vec![1], vec![0, 1]]))
            .prop_map(|(tag, peers)| Membership { tag, ..membership(1, 2, &peers) });
        prop_oneof![torn, sound]
    }

    fn message() -> impl Strategy<Value = Message> {
        let holding = || {
            proptest::option::of((number(), any::<bool>()).prop_map(|(s, gradient)| Holding {
                step: Step(s),
                gradient,
                tag: None,
            }))
        };
        let lagging = (peer(), any::<bool>())
            .prop_map(|(peer, all)| Lagging { peer, need: if all { Need::Replica } else { Need::Gradient } });
        let start = (
            number(),
            any::<bool>(),
            proptest::collection::vec(peer(), 0..3),
            proptest::option::of(peer()),
            proptest::collection::vec(lagging, 0..3),
        )
            .prop_map(|(step, park, holders, gradient_from, lagging)| Start {
                step: Step(step),
                park,
                holders,
                gradient_from,
                lagging,
            });
        let sums = proptest::collection::vec(
            node().prop_map(|node| NodeSums { node, weight: f64::NAN, loss: f64::MAX }),
            0..3,
        );
        let announcement = proptest::option::of(prop_oneof![
            Just(Announcement::Park),
            any_membership().prop_map(Announcement::Switch)
        ]);
        let contribution = (number(), sums, proptest::option::of(number()), announcement).prop_map(
            |(step, sums, ready, announcement)| Contribution {
                step: Step(step),
                sums,
                ready: ready.map(Generation),
                announcement,
                due: Due { checkpoint: step % 2 == 0, compare: step % 3 == 0 },
                followers: vec![Follower {
                    peer: Peer((step % 5) as u32),
                    generation: Generation(step % 7),
                    number: (step % 2) as u32,
                }],
            },
        );
        let metrics =
            (select(vec![0, 1, u16::MAX]), number(), number()).prop_map(|(rank, correct, count)| RankMetrics {
                rank: Rank(rank),
                loss: f64::INFINITY,
                correct,
                count,
                named: [("n".to_owned(), f64::NAN)].into(),
            });
        let shard = (number(), tag(), any::<u16>(), select(vec![0, 1, 2, u16::MAX]), number(), number()).prop_map(
            |(step, tag, index, count, first_element, elements)| ShardWritten {
                checkpoint: CheckpointId { step: Step(step), tag },
                index: index % 3,
                count,
                first_element,
                elements,
                bytes: 1,
                digest: Digest([0; 32]),
                checksum: ReplicaChecksum([(index % 2) as u8; 16]),
                writer: None,
                part_digests: PartDigests(vec![Digest([0; 32]); usize::from(index % 100)]),
            },
        );
        let at = |make: fn(Step) -> Message| number().prop_map(move |step| make(Step(step)));
        prop_oneof![
            holding().prop_map(|holding| Message::Join { holding }),
            start.prop_map(Message::Start),
            Just(Message::Dissolve),
            Just(Message::Ready),
            Just(Message::FollowRequest),
            at(|step| Message::Replica { step, stride: Stride::ONE }),
            at(|step| Message::Followed { step }),
            Just(Message::LeaveRequest),
            at(|step| Message::Position { step }),
            at(|step| Message::Done { step }),
            at(|step| Message::Saved { step }),
            contribution.prop_map(Message::Contribution),
            (any_membership(), number()).prop_map(|(membership, step)| Message::Welcome {
                membership,
                step: Step(step),
                followed: step % 2 == 1
            }),
            (number(), proptest::collection::vec(metrics, 0..3))
                .prop_map(|(step, ranks)| Message::Metrics { step: Step(step), ranks }),
            shard.prop_map(Message::ShardWritten),
        ]
    }

    #[derive(Debug, Clone)]
    enum Said {
        /// Mostly in the tag that counts here at that moment.
        Message(Option<Tag>, Message, usize),
        Bulk(Bulk),
        Work,
        Proposal(u64, bool),
    }

    fn said() -> impl Strategy<Value = Said> {
        let kind =
            prop_oneof![node().prop_map(Kind::Partial), Just(Kind::Reduced), Just(Kind::Replica), Just(Kind::Gradient)];
        let elements = select(vec![0usize, 1, 4, 5, usize::MAX]);
        let bulk = (kind, tag(), number(), number(), elements).prop_map(|(kind, tag, step, offset, elements)| Bulk {
            kind,
            tag,
            step: Step(step),
            offset,
            elements,
        });
        let bytes = select(vec![1usize, 10, 100, 100, usize::MAX]);
        prop_oneof![
            4 => (proptest::option::weighted(0.2, tag()), message(), bytes).prop_map(|(tag, message, bytes)| Said::Message(tag, message, bytes)),
            3 => bulk.prop_map(Said::Bulk),
            3 => Just(Said::Work),
            1 => (2u64..6, any::<bool>()).prop_map(|(generation, leads)| Said::Proposal(generation, leads)),
        ]
    }

    /// Does at once what an output asks of a shell.
    fn answer(member: &mut Member<()>, out: Vec<Out<()>>, number: &mut u64) {
        for out in out {
            let input = match out {
                Out::Compute(Unit::Gradient { .. }) => In::Done(crate::event::Done::Gradient {
                    weight: 1.0,
                    loss: 1.0,
                    data_wait: Duration::ZERO,
                    took: None,
                }),
                Out::Compute(Unit::Update { .. }) => In::Done(crate::event::Done::Updated),
                Out::Load(generation, _) => In::Loaded(generation, Step(0)),
                Out::Warm(generation, ..) => In::Warmed(generation),
                // A broken peer comes back.
                Out::Cut(_, cause) if cause != Cause::Replaced => {
                    *number += 1;
                    In::Linked(link(1, *number))
                }
                _ => continue,
            };
            let out = member.handle(at(50), input);
            answer(member, out, number);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, .. ProptestConfig::default() })]

        #[test]
        fn nobody_s_word_makes_it_panic(heard in proptest::collection::vec(said(), 1..40), from_the_start: bool) {
            let (mut member, mut number) = if from_the_start { (Member::new(config(0, 2, 100)), 7) } else { (running(), 7) };
            let out = member.handle(at(4), In::Linked(link(1, 8)));
            answer(&mut member, out, &mut number);
            number = number.max(8);
            for said in heard {
                let (link, here) = (link(1, number), member.progress());
                let current = Tag { generation: here.generation, revision: here.revision };
                let input = match said {
                    Said::Message(tag, message, bytes) => {
                        let tag = tag.unwrap_or(current);
                        In::Message { link, envelope: Envelope { tag, message }, bytes }
                    }
                    Said::Bulk(bulk) => In::Bulk { link, bulk, payload: () },
                    Said::Work => In::Free,
                    Said::Proposal(generation, leads) => {
                        let peers = if leads { [0, 1] } else { [1, 0] };
                        let mut of = proposal(generation, Entry::Recover, 2, &[0, 1]);
                        if let In::Proposal(proposal) = &mut of {
                            proposal.leader.number = peers[0];
                        }
                        of
                    }
                };
                let out = member.handle(at(20), input);
                answer(&mut member, out, &mut number);
                drop(member.progress());
            }
        }
    }
}
