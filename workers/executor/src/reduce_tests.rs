//! The collective without a network: any placement and any order of arrival give the bits of the one-process sum, at the stated cost.
#![allow(clippy::unwrap_used)]

use super::*;
use events_schema::tree::place;
use events_schema::{Generation, Rank};
use proptest::prelude::*;
use std::collections::VecDeque;
use workers_session::{NodeSums, Seat};

fn membership(workers: u16, members: u16) -> Membership {
    let seats = (0..).map(Peer).zip(place(workers, members)).map(|(peer, ranks)| Seat { peer, ranks }).collect();
    Membership { tag: Tag { generation: Generation(1), revision: 0 }, seats, leader: Peer(0) }
}

/// Values whose sum depends on the order of additions.
fn gradient(rank: Rank, len: usize) -> Vec<f32> {
    (0..len)
        .map(|i| ((i as f32 + 1.0).sin() * 1000.0).powi(1 + i32::from(rank.0 % 5)) / (f32::from(rank.0) + 0.37))
        .collect()
}

fn partial(node: Node, len: usize) -> Partial {
    let mut leaf = |n: Node| (n.count == 1).then(|| gradient(Rank(n.first), len));
    let mut join = |mut l: Vec<f32>, r: Vec<f32>| {
        add(&mut l, &r);
        l
    };
    let sum = fold(node, &mut leaf, &mut join).unwrap();
    Partial { sums: NodeSums { node, weight: f64::from(node.count), loss: 0.0 }, gradient: Arc::new(sum) }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Runs one reduction with messages delivered in an order drawn from `seed`, links keeping theirs. Gives all sums and the
/// elements each member sent.
fn run(workers: u16, members: u16, len: usize, mut seed: u64) -> (Vec<Vec<f32>>, Vec<usize>) {
    let membership = membership(workers, members);
    let step = Step(5);
    let mut reductions: Vec<Reduction> =
        membership.peers().map(|p| Reduction::new(&membership, p, workers, step, len, Vec::new())).collect();
    let root = Node::root(workers);
    let mut own: Vec<VecDeque<Node>> = membership.seats.iter().map(|s| root.cover(&s.ranks).into()).collect();
    type Piece = (Kind, u64, Vec<f32>);
    let mut wires: BTreeMap<(u32, u32), VecDeque<Piece>> = BTreeMap::new();
    let mut sent = vec![0; usize::from(members)];
    loop {
        let mut choices: Vec<(u32, Option<u32>)> =
            (0..).zip(&own).filter(|(_, nodes)| !nodes.is_empty()).map(|(i, _)| (i, None)).collect();
        choices.extend(wires.iter().filter(|(_, wire)| !wire.is_empty()).map(|(&(from, to), _)| (from, Some(to))));
        if choices.is_empty() {
            break;
        }
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (from, to) = choices[(seed >> 33) as usize % choices.len()];
        let (at, parcels) = match to {
            None => {
                let node = own[from as usize].pop_front().unwrap();
                (from, reductions[from as usize].on_own(partial(node, len)))
            }
            Some(to) => {
                let (kind, offset, elements) = wires.get_mut(&(from, to)).unwrap().pop_front().unwrap();
                let reduction = &mut reductions[to as usize];
                let parcels = match kind {
                    Kind::Partial(node) => reduction.on_partial(Peer(from), node, offset, elements).unwrap(),
                    _ => reduction.on_reduced(Peer(from), offset, &elements).map(|()| Vec::new()).unwrap(),
                };
                (to, parcels)
            }
        };
        for parcel in parcels {
            sent[at as usize] += parcel.range.len();
            let wire = wires.entry((at, parcel.to.0)).or_default();
            for start in (0..parcel.range.len()).step_by(PIECE_ELEMENTS) {
                let end = (start + PIECE_ELEMENTS).min(parcel.range.len());
                let elements = parcel.data[parcel.range.start + start..parcel.range.start + end].to_vec();
                wire.push_back((parcel.kind, (parcel.offset + start) as u64, elements));
            }
        }
    }
    assert!(reductions.iter().all(Reduction::is_whole));
    (reductions.into_iter().map(|r| r.into_sum().0).collect(), sent)
}

proptest! {
    #[test]
    fn the_sum_is_the_one_process_sum_bit_for_bit(workers in 1u16..=33, share in 0u16..33, len in 1usize..200, seed: u64) {
        let members = 1 + share % workers;
        let alone = partial(Node::root(workers), len).gradient;
        let (sums, sent) = run(workers, members, len, seed);
        for sum in &sums {
            prop_assert_eq!(bits(sum), bits(&alone));
        }
        let membership = membership(workers, members);
        for (index, seat) in membership.seats.iter().enumerate() {
            let partials = Node::root(workers).cover(&seat.ranks).len();
            let chunk = chunk(len, index, usize::from(members)).len();
            // (m + 1)·N·(p − 1)/p, up to chunks that differ by an element.
            prop_assert_eq!(sent[index], partials * (len - chunk) + chunk * (usize::from(members) - 1));
        }
    }
}

#[test]
fn many_pieces_in_any_order_still_give_the_same_bits() {
    let len = 3 * PIECE_ELEMENTS + 17;
    let alone = partial(Node::root(5), len).gradient;
    for seed in 0..4 {
        let (sums, _) = run(5, 2, len, seed);
        assert!(sums.iter().all(|sum| bits(sum) == bits(&alone)));
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let membership = membership(4, 2);
    let mut reduction = Reduction::new(&membership, Peer(0), 4, Step(1), 10, Vec::new());
    let (mine, theirs) = (Node { first: 0, count: 2 }, Node { first: 2, count: 2 });
    assert!(reduction.on_partial(Peer(1), mine, 0, vec![0.0; 5]).is_err(), "not its node");
    assert!(reduction.on_partial(Peer(1), theirs, 5, vec![0.0; 5]).is_err(), "not our chunk");
    assert!(reduction.on_partial(Peer(1), theirs, 0, vec![0.0; 4]).is_err(), "too short");
    assert!(reduction.on_partial(Peer(1), theirs, 0, vec![0.0; 5]).is_ok());
    assert!(reduction.on_partial(Peer(1), theirs, 0, vec![0.0; 5]).is_err(), "twice");
    assert!(reduction.on_reduced(Peer(1), 0, &[0.0; 5]).is_err(), "not its chunk");
    assert!(reduction.on_reduced(Peer(1), 5, &[0.0; 6]).is_err(), "too long");
    assert!(reduction.on_reduced(Peer(1), 5, &[0.0; 5]).is_ok());
    assert!(reduction.on_reduced(Peer(9), 5, &[0.0; 5]).is_err(), "a stranger");
}
