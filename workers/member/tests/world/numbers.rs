//! What the executors of the simulated world compute: elements are hashes, and the sum of two is neither associative nor commutative.

use events_schema::stride::Stride;
use events_schema::tree::{Node, fold};
use events_schema::{Rank, Step};

/// Elements of the parameters, and of the replica.
pub const PARAMETERS: usize = 23;
pub const REPLICA: usize = 50;

pub type Element = u64;

/// A small seeded generator; the test's only source of randomness.
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
    pub fn below(&mut self, n: usize) -> usize {
        ((self.next() >> 33) as usize) % n.max(1)
    }
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

fn mix(values: &[u64]) -> u64 {
    values.iter().fold(0x9E37_79B9_7F4A_7C15, |hash, value| {
        (hash ^ value).wrapping_mul(0xFF51_AFD7_ED55_8CCD).rotate_left(29).wrapping_add(*value >> 7)
    })
}

pub fn gradient(step: Step, rank: Rank, replica: &[Element]) -> Vec<Element> {
    (0..PARAMETERS).map(|i| mix(&[step.0, u64::from(rank.0), i as u64, replica[i]])).collect()
}

/// Of the samples of several workers, and of so many steps, at once.
pub fn gradient_of(step: Step, stride: Stride, workers: &[Rank], replica: &[Element]) -> Vec<Element> {
    let steps = (step.0..stride.end(step).0).map(Step);
    let of_step = |step| workers.iter().map(move |rank| gradient(step, *rank, replica));
    steps.flat_map(of_step).reduce(|one, next| add(&one, &next)).unwrap()
}

pub fn add(left: &[Element], right: &[Element]) -> Vec<Element> {
    left.iter().zip(right).map(|(l, r)| mix(&[*l, *r])).collect()
}

pub fn update(replica: &mut [Element], mean: &[Element], step: Step) {
    for (i, element) in replica.iter_mut().enumerate() {
        *element = mix(&[*element, mean[i % PARAMETERS], step.0]);
    }
}

pub fn initial() -> Vec<Element> {
    (0..REPLICA as u64).map(|i| mix(&[i])).collect()
}

/// What one process computing everything gives.
pub struct Reference {
    pub replicas: Vec<Vec<Element>>,
    pub sums: Vec<Vec<Element>>,
}

impl Reference {
    pub fn new(workers: u16, steps: u64) -> Self {
        let (mut replicas, mut sums) = (vec![initial()], Vec::new());
        for step in (0..steps).map(Step) {
            let mut replica = replicas[step.0 as usize].clone();
            let mut leaf = |node: Node| (node.count == 1).then(|| gradient(step, Rank(node.first), &replica));
            let sum = fold(Node::root(workers), &mut leaf, &mut |l, r| add(&l, &r)).unwrap();
            update(&mut replica, &sum, step);
            sums.push(sum);
            replicas.push(replica);
        }
        Self { replicas, sums }
    }
}
