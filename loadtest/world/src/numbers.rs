//! What is computed: gradients and replicas whose elements are hashes. The "sum" of two elements is neither associative nor commutative and a
//! gradient depends on the replica, so a wrong order, a wrong version or a hole shows in every later bit. The bytes that these elements
//! stand for exist only as numbers, in `net.rs` and `store.rs`.

use events_schema::job::Determinism;
use events_schema::stride::Stride;
use events_schema::tree::{Node, fold};
use events_schema::{Digest, Rank, Step};
use std::collections::BTreeMap;
use workers_session::Membership;

/// One element of a gradient or replica.
pub type Element = u64;

/// Elements of a gradient.
pub const PARAMETERS: usize = 64;
/// Elements of a replica: parameters and, as with AdamW, two moments of each.
pub const REPLICA: usize = 3 * PARAMETERS;
/// Elements of one bulk message.
pub const PIECE: usize = 8;

fn mix(values: &[u64]) -> u64 {
    values.iter().fold(0x9E37_79B9_7F4A_7C15, |hash, value| {
        (hash ^ value).wrapping_mul(0xFF51_AFD7_ED55_8CCD).rotate_left(29).wrapping_add(*value >> 7)
    })
}

/// A rank's gradient of a step.
#[must_use]
pub fn gradient(step: Step, rank: Rank, parameters: &[Element]) -> Vec<Element> {
    (0u64..).zip(&parameters[..PARAMETERS]).map(|(i, p)| mix(&[step.0, u64::from(rank.0), i, *p])).collect()
}

/// A gradient of the samples of several ranks, and of so many steps, at once.
#[must_use]
pub fn gradient_of(step: Step, stride: Stride, ranks: &[Rank], parameters: &[Element]) -> Vec<Element> {
    let steps = (step.0..stride.end(step).0).map(Step);
    let gradients = steps.flat_map(|step| ranks.iter().map(move |rank| gradient(step, *rank, parameters)));
    gradients.reduce(|one, next| add(&one, &next)).unwrap_or_default()
}

/// Left plus right.
#[must_use]
pub fn add(left: &[Element], right: &[Element]) -> Vec<Element> {
    left.iter().zip(right).map(|(l, r)| mix(&[*l, *r])).collect()
}

/// Applies a step's mean gradient.
pub fn update(replica: &mut [Element], mean: &[Element], step: Step) {
    for (i, element) in replica.iter_mut().enumerate() {
        *element = mix(&[*element, mean[i % PARAMETERS], step.0]);
    }
}

/// The replica that a job begins with.
#[must_use]
pub fn initial() -> Vec<Element> {
    (0..REPLICA as u64).map(|i| mix(&[i])).collect()
}

/// A replica's digest.
#[must_use]
pub fn digest(replica: &[Element]) -> Digest {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&mix(replica).to_le_bytes());
    Digest(bytes)
}

/// What one process that computes everything would have: the replica of every step and the sum that led from each.
#[derive(Debug)]
pub struct Reference {
    workers: u16,
    replicas: Vec<Vec<Element>>,
    sums: Vec<Vec<Element>>,
}

impl Reference {
    /// Of a job of so many ranks.
    #[must_use]
    pub fn new(workers: u16) -> Self {
        Self { workers, replicas: vec![initial()], sums: Vec::new() }
    }

    /// The replica of a step.
    pub fn replica(&mut self, step: Step) -> &[Element] {
        self.reach(step);
        &self.replicas[step.0 as usize]
    }

    /// The whole sum of a step.
    pub fn sum(&mut self, step: Step) -> &[Element] {
        self.reach(step.next());
        &self.sums[step.0 as usize]
    }

    fn reach(&mut self, step: Step) {
        while (self.replicas.len() as u64) <= step.0 {
            let at = Step(self.sums.len() as u64);
            let mut replica = self.replicas[at.0 as usize].clone();
            let mut leaf = |node: Node| (node.count == 1).then(|| gradient(at, Rank(node.first), &replica));
            let sum = fold(Node::root(self.workers), &mut leaf, &mut |l, r| add(&l, &r)).unwrap_or_default();
            update(&mut replica, &sum, at);
            self.sums.push(sum);
            self.replicas.push(replica);
        }
    }
}

/// Of a job with `determinism: none`: every replica that came of a whole sum of each step, over members that hosted all ranks, and its step.
#[derive(Debug)]
pub struct Made(BTreeMap<Vec<Element>, Step>);

impl Default for Made {
    fn default() -> Self {
        Self([(initial(), Step(0))].into())
    }
}

impl Made {
    /// Whether it is one of them, at this step.
    #[must_use]
    pub fn holds(&self, step: Step, replica: &[Element]) -> bool {
        self.0.get(replica) == Some(&step)
    }

    /// Whether a replica with this digest was made at this step.
    #[must_use]
    pub fn has_digest(&self, step: Step, of: Digest) -> bool {
        self.0.iter().any(|(replica, at)| *at == step && digest(replica) == of)
    }

    /// Another one, by a sum of so many steps over all members of a membership. False if the sum is not theirs.
    pub fn make(&mut self, membership: &Membership, stride: Stride, before: &[Element], mean: &[Element]) -> bool {
        let Some(step) = self.0.get(before).copied() else { return false };
        let (gradients, computing) = membership.computing(0, Determinism::None);
        let of_rank = |rank: Rank| {
            let seat = computing.seats.iter().find(|seat| seat.ranks == [rank]);
            gradient_of(step, stride, seat.map_or(&[], |seat| membership.ranks(seat.peer)), before)
        };
        let mut leaf = |node: Node| (node.count == 1).then(|| of_rank(Rank(node.first)));
        let sum = fold(Node::root(gradients), &mut leaf, &mut |l, r| add(&l, &r));
        if sum.as_deref() != Some(mean) {
            return false;
        }
        let mut replica = before.to_vec();
        update(&mut replica, mean, step);
        self.0.insert(replica, stride.end(step));
        true
    }
}
