//! Which sample each logical worker reads at each step. Pure arithmetic: no reader, no memory of what was read, the same answer
//! whoever asks. This is why a rank can move between executors by naming it.
//!
//! An epoch is a seeded permutation of the dataset's blocks, cut into W ranges of equal length (±1 sample); rank r's samples of a
//! step are `batch_size` consecutive positions of its range. Inside a range, a window or the whole dataset, samples are permuted
//! by a keyed bijection that can be evaluated at any position, so nothing of the size of the dataset is ever held.
//! The reader is `loader.rs`.

use events_schema::job::{JobFields, Length, Shuffle, Tail};
use events_schema::{Rank, Step};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::sync::Arc;

/// Why a job cannot be laid over a dataset. All of them: refuse the job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// Nothing to read.
    #[error("the dataset has no rows")]
    NoRows,
    /// `tail: drop` leaves nothing of an epoch.
    #[error(
        "one step needs {needed} rows ({workers} workers of {batch_size}) but the dataset has {rows}; use `tail: short` or a smaller batch_size"
    )]
    NoFullStep {
        /// Rows that one full step reads.
        needed: u64,
        /// Logical workers.
        workers: u16,
        /// Samples of each per step.
        batch_size: u32,
        /// Rows of the dataset.
        rows: u64,
    },
    /// More steps than a step number can count.
    #[error("the job would have more than 2^63 steps")]
    TooManySteps,
}

/// Where one sample lies: a block of the dataset, in stored order, and a row inside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SampleAt {
    /// Index of the block in the dataset's metadata.
    pub block: u32,
    /// Row inside that block.
    pub row: u32,
}

/// How many steps one pass over `rows` rows takes. 0 only if there are no rows, or with `tail: drop` too few for one full step.
#[must_use]
pub fn steps_per_epoch(rows: u64, workers: u16, batch_size: u32, tail: Tail) -> u64 {
    let (workers, batch_size) = (u64::from(workers.max(1)), u64::from(batch_size.max(1)));
    match tail {
        // The longest range decides: a shorter one contributes fewer samples, or none, to the last step.
        Tail::Short => rows.div_ceil(workers).div_ceil(batch_size),
        // The shortest range decides: every rank has a full batch in every step.
        Tail::Drop => rows / workers / batch_size,
    }
}

/// How many steps a job has on a dataset of `rows` rows.
pub fn steps_total(spec: &JobFields, rows: u64) -> Result<u64, OrderError> {
    let (workers, batch_size) = (spec.workers.max, spec.batch_size);
    let per_epoch = steps_per_epoch(rows, workers, batch_size, spec.tail);
    if rows == 0 {
        return Err(OrderError::NoRows);
    }
    if per_epoch == 0 {
        return Err(OrderError::NoFullStep {
            needed: u64::from(workers) * u64::from(batch_size),
            workers,
            batch_size,
            rows,
        });
    }
    match spec.length {
        Length::Steps(steps) => Ok(steps),
        Length::Epochs(epochs) => {
            per_epoch.checked_mul(u64::from(epochs)).filter(|&n| n < 1 << 63).ok_or(OrderError::TooManySteps)
        }
    }
}

/// Everything the order of a job's samples depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderPlan {
    block_rows: Vec<u32>,
    rows: u64,
    workers: u16,
    batch_size: u32,
    shuffle: Shuffle,
    tail: Tail,
    seed: u64,
}

impl OrderPlan {
    /// A plan over blocks of the given numbers of rows, in stored order. `workers` and `batch_size` are at least 1.
    #[must_use]
    pub fn new(block_rows: Vec<u32>, workers: u16, batch_size: u32, shuffle: Shuffle, tail: Tail, seed: u64) -> Self {
        let rows = block_rows.iter().map(|&n| u64::from(n)).sum();
        Self { block_rows, rows, workers: workers.max(1), batch_size: batch_size.max(1), shuffle, tail, seed }
    }

    /// The order in which a job trains.
    #[must_use]
    pub fn training(spec: &JobFields, block_rows: Vec<u32>) -> Self {
        Self::new(block_rows, spec.workers.max, spec.batch_size, spec.shuffle, spec.tail, spec.seed)
    }

    /// The order in which a job evaluates: stored order, cut over ranks like training data, every row once.
    #[must_use]
    pub fn evaluation(spec: &JobFields, block_rows: Vec<u32>) -> Self {
        Self::new(block_rows, spec.workers.max, spec.batch_size, Shuffle::None, Tail::Short, spec.seed)
    }

    /// Rows of the dataset.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Steps of one pass over the dataset.
    #[must_use]
    pub fn steps_per_epoch(&self) -> u64 {
        steps_per_epoch(self.rows, self.workers, self.batch_size, self.tail)
    }

    /// The epoch of a global step and the step inside that epoch; `None` if an epoch has no steps.
    #[must_use]
    pub fn locate(&self, step: Step) -> Option<(u64, u64)> {
        let per_epoch = self.steps_per_epoch();
        (per_epoch > 0).then(|| (step.0 / per_epoch, step.0 % per_epoch))
    }

    /// The order of one epoch. Costs a few bytes and nanoseconds per block, nothing per row.
    #[must_use]
    pub fn epoch(self: &Arc<Self>, epoch: u64) -> EpochOrder {
        let mut blocks: Vec<u32> = (0..self.block_rows.len() as u32).collect();
        if matches!(self.shuffle, Shuffle::Blocks { .. } | Shuffle::Window { .. }) {
            shuffle_in_place(&mut blocks, &mut keyed(self.seed, Purpose::Blocks, epoch, 0));
        }
        let mut starts = Vec::with_capacity(blocks.len() + 1);
        let mut position = 0;
        starts.push(0);
        for &block in &blocks {
            position += u64::from(self.block_rows[block as usize]);
            starts.push(position);
        }
        EpochOrder { plan: Arc::clone(self), epoch, blocks, starts }
    }
}

/// The order of one epoch: positions `0..rows`, each naming one sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EpochOrder {
    plan: Arc<OrderPlan>,
    epoch: u64,
    /// Blocks in this epoch's order.
    blocks: Vec<u32>,
    /// `starts[i]` is the position at which `blocks[i]` begins; one more entry for the end.
    starts: Vec<u64>,
}

impl EpochOrder {
    /// Which epoch this is.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Positions of a rank, `first..end`. Ranges of all ranks cut `0..rows`, and differ in length by at most one.
    #[must_use]
    pub fn range(&self, rank: Rank) -> std::ops::Range<u64> {
        let (rows, workers, rank) = (self.plan.rows, u64::from(self.plan.workers), u64::from(rank.0));
        if rank >= workers {
            return rows..rows;
        }
        let (length, longer) = (rows / workers, rows % workers);
        let first = rank * length + rank.min(longer);
        first..first + length + u64::from(rank < longer)
    }

    /// The samples of a rank in a step of this epoch, in the order in which the model reads them: `batch_size` of them, fewer or
    /// none in a short last step, none beyond it or for a rank that does not exist.
    #[must_use]
    pub fn samples(&self, rank: Rank, step_in_epoch: u64) -> Vec<SampleAt> {
        if step_in_epoch >= self.plan.steps_per_epoch() {
            return Vec::new();
        }
        let range = self.range(rank);
        let batch_size = u64::from(self.plan.batch_size);
        let first = range.start.saturating_add(step_in_epoch.saturating_mul(batch_size)).min(range.end);
        let end = first.saturating_add(batch_size).min(range.end);
        let mut mixer: Option<Mixed> = None;
        (first..end)
            .map(|position| {
                let mixed = match mixer.take().filter(|m| m.range.contains(&position)) {
                    Some(mixed) => mixed,
                    None => self.mixed_range(rank, &range, position),
                };
                let source = mixed.range.start + mixed.permutation.at(position - mixed.range.start);
                mixer = Some(mixed);
                self.at(source)
            })
            .collect()
    }

    /// The stretch of positions around `position` whose samples are permuted among themselves, and how.
    fn mixed_range(&self, rank: Rank, range: &std::ops::Range<u64>, position: u64) -> Mixed {
        let (seed, rows) = (self.plan.seed, self.plan.rows);
        match self.plan.shuffle {
            Shuffle::None => Mixed { range: 0..rows, permutation: Permutation::Identity },
            Shuffle::Full => Mixed {
                range: 0..rows,
                permutation: Permutation::new(rows, &mut keyed(seed, Purpose::Full, self.epoch, 0)),
            },
            Shuffle::Window { samples } => {
                let length = u64::from(samples.max(1));
                let window = position / length;
                let mixed = window * length..((window + 1) * length).min(rows);
                let permutation =
                    Permutation::new(mixed.end - mixed.start, &mut keyed(seed, Purpose::Window, self.epoch, window));
                Mixed { range: mixed, permutation }
            }
            Shuffle::Blocks { open } => {
                // `open` consecutive blocks of the rank's range are open at once, and their samples mix.
                let open = usize::from(open.max(1));
                let first_block = self.block_index(range.start);
                let group = (self.block_index(position) - first_block) / open;
                let from = first_block + group * open;
                let to = (from + open).min(self.blocks.len());
                let mixed = self.starts[from].max(range.start)..self.starts[to].min(range.end);
                let index = (u64::from(rank.0) << 48) | group as u64;
                let permutation =
                    Permutation::new(mixed.end - mixed.start, &mut keyed(seed, Purpose::Open, self.epoch, index));
                Mixed { range: mixed, permutation }
            }
        }
    }

    /// Index in this epoch's order of the block that holds a position below `rows`.
    fn block_index(&self, position: u64) -> usize {
        self.starts.partition_point(|&start| start <= position) - 1
    }

    fn at(&self, position: u64) -> SampleAt {
        let index = self.block_index(position);
        SampleAt { block: self.blocks[index], row: (position - self.starts[index]) as u32 }
    }
}

/// A stretch of positions and the bijection on it.
struct Mixed {
    range: std::ops::Range<u64>,
    permutation: Permutation,
}

/// What chance is drawn for; part of the key, so that no two draws share a stream.
#[derive(Clone, Copy)]
enum Purpose {
    Blocks = 1,
    Open = 2,
    Window = 3,
    Full = 4,
}

fn keyed(seed: u64, purpose: Purpose, epoch: u64, index: u64) -> ChaCha8Rng {
    let mut key = [0u8; 32];
    for (slot, word) in key.chunks_exact_mut(8).zip([seed, purpose as u64, epoch, index]) {
        slot.copy_from_slice(&word.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}

/// Fisher and Yates' shuffle, with draws free of modulo bias.
fn shuffle_in_place(items: &mut [u32], generator: &mut ChaCha8Rng) {
    for last in (1..items.len()).rev() {
        items.swap(last, below(last as u64 + 1, generator) as usize);
    }
}

/// A uniform number in `0..bound` (Lemire, "Fast random integer generation in an interval", 2019).
fn below(bound: u64, generator: &mut ChaCha8Rng) -> u64 {
    loop {
        let product = u128::from(generator.next_u64()) * u128::from(bound);
        if product as u64 >= bound.wrapping_neg() % bound {
            return (product >> 64) as u64;
        }
    }
}

/// Longest stretch that is shuffled as a table: below it a Feistel network is visibly not uniform, and the table costs less than
/// the samples it names.
const TABLE_LENGTH_MAX: u64 = 256;
/// Rounds of the Feistel network; 4 are pseudorandom for large domains (Luby and Rackoff 1988), moderate ones need more.
const FEISTEL_ROUNDS: usize = 10;

/// A keyed bijection of `0..length` that can be evaluated anywhere.
enum Permutation {
    Identity,
    Table(Vec<u32>),
    Feistel(Feistel),
}

impl Permutation {
    fn new(length: u64, generator: &mut ChaCha8Rng) -> Self {
        if length > TABLE_LENGTH_MAX {
            return Self::Feistel(Feistel::new(length, generator));
        }
        let mut table: Vec<u32> = (0..length as u32).collect();
        shuffle_in_place(&mut table, generator);
        Self::Table(table)
    }

    fn at(&self, index: u64) -> u64 {
        match self {
            Self::Identity => index,
            Self::Table(table) => u64::from(table[index as usize]),
            Self::Feistel(feistel) => feistel.at(index),
        }
    }
}

/// A Feistel network on the next power of two, walked until it lands inside (Black and Rogaway, "Ciphers with arbitrary finite
/// domains", 2002). At most two walks on average.
struct Feistel {
    length: u64,
    left_bits: u32,
    right_bits: u32,
    keys: [u64; FEISTEL_ROUNDS],
}

impl Feistel {
    fn new(length: u64, generator: &mut ChaCha8Rng) -> Self {
        let bits = u64::BITS - length.saturating_sub(1).leading_zeros();
        let keys = std::array::from_fn(|_| generator.next_u64());
        Self { length, left_bits: bits / 2, right_bits: bits - bits / 2, keys }
    }

    fn at(&self, index: u64) -> u64 {
        let mut value = self.encrypt(index);
        while value >= self.length {
            value = self.encrypt(value);
        }
        value
    }

    fn encrypt(&self, value: u64) -> u64 {
        let (left_mask, right_mask) = ((1u64 << self.left_bits) - 1, (1u64 << self.right_bits) - 1);
        let (mut left, mut right) = (value >> self.right_bits, value & right_mask);
        for pair in self.keys.chunks_exact(2) {
            left ^= mix(right, pair[0]) & left_mask;
            right ^= mix(left, pair[1]) & right_mask;
        }
        (left << self.right_bits) | right
    }
}

/// The finaliser of splitmix64 (Steele, Lea and Flood 2014) under a key; the low bits taken are well mixed.
fn mix(value: u64, key: u64) -> u64 {
    let mut z = value.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(key);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
#[path = "order_tests.rs"]
mod tests;
