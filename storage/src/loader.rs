//! What an executor reads with: the samples of a rank and step, from a bounded cache of decoded blocks that is filled ahead of
//! the model for announced ranks and steps.
//!
//! The order is `order.rs`'s, the bytes are `reader.rs`'s, and `ahead.rs` says which batches are made before they are asked for. Never skips a sample: a fault that outlasts its retries is an error.
//!
//! Next on a job's path: `workers/executor/src/workload.rs`.

use crate::ahead::{Ahead, Cell, UPDATES_READY_MAX, Wanted};
use crate::dataset::columns::{Block, Elements};
use crate::dataset::{Columns, DatasetMetadata, load_metadata};
use crate::order::{EpochOrder, OrderPlan, SampleAt, steps_total};
use crate::reader::{DataError, Reader};
use crate::retry::RetryPolicy;
use events_schema::dataset::{DatasetInfo, SampleShape, Samples};
use events_schema::job::JobFields;
use events_schema::stride::Stride;
use events_schema::{Rank, Step};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::ObjectStore;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::{OnceCell, watch};
use tokio::task::{JoinHandle, JoinSet};

/// Bounds of a loader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoaderLimits {
    /// Decoded bytes kept for up to [`RANKS_USUAL`] ranks; more ranks have more in proportion. Blocks in use at the moment come on top.
    pub cache_bytes: u64,
    /// Most decoded bytes kept, for however many ranks.
    pub cache_bytes_max: u64,
    /// Blocks read at once, in the background and for a waiting step each.
    pub reads_in_flight: usize,
    /// How faults of the store are retried.
    pub retry: RetryPolicy,
}

impl Default for LoaderLimits {
    /// 8 open blocks of 8 MiB for each of 4 ranks, and of 64 at the most; enough reads to fill a connection to S3.
    fn default() -> Self {
        Self { cache_bytes: 256 << 20, cache_bytes_max: 4 << 30, reads_in_flight: 4, retry: RetryPolicy::default() }
    }
}

impl LoaderLimits {
    /// Decoded bytes kept for so many ranks: with less than all their open blocks, each step would read most of them again.
    fn cache_bytes_for(&self, ranks: usize) -> u64 {
        let in_proportion = self.cache_bytes / RANKS_USUAL * ranks as u64;
        in_proportion.min(self.cache_bytes_max).max(self.cache_bytes)
    }
}

/// As many ranks as an executor usually hosts.
pub const RANKS_USUAL: u64 = 4;

/// Share of the cache that prefetch may fill: the rest is for what is in use.
const PREFETCH_SHARE: f64 = 0.75;
/// Epochs whose order is kept: the one in use, and those of the updates ahead, none of which is of two.
const ORDERS_KEPT: usize = 6;
/// Most updates looked ahead, whatever is asked for.
const UPDATES_AHEAD_MAX: u64 = 64;

/// What a loader has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoaderMetrics {
    /// Bytes that came from the store, footers included.
    pub bytes_read: u64,
    /// Blocks decoded.
    pub blocks_read: u64,
    /// Samples handed out.
    pub samples_delivered: u64,
    /// Time for which calls of [`Loader::samples`] waited for blocks, or for a batch that was being made ahead.
    pub waited_us: u64,
}

/// Reads one dataset for one job. Cheap to clone; all clones share one cache, and prefetch ends with the last one.
#[derive(Clone)]
pub struct Loader {
    shared: Arc<Shared>,
    wanted: Arc<watch::Sender<Wanted>>,
    _background: Arc<[AbortOnDrop; 2]>,
}

struct Shared {
    metadata: Arc<DatasetMetadata>,
    reader: Reader,
    plan: Arc<OrderPlan>,
    steps_total: u64,
    limits: LoaderLimits,
    cache: Mutex<Cache>,
    orders: Mutex<VecDeque<Arc<EpochOrder>>>,
    ahead: Ahead,
    blocks_read: AtomicU64,
    samples_delivered: AtomicU64,
    waited_us: AtomicU64,
}

struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Loader {
    /// Opens a job's training data. Call inside a running tokio runtime, which then reads and decodes.
    pub async fn open(
        store: Arc<dyn ObjectStore>,
        spec: &JobFields,
        info: &DatasetInfo,
        limits: LoaderLimits,
    ) -> Result<Self, DataError> {
        let steps_total = steps_total(spec, info.rows)?;
        Self::start(store, info, limits, |rows| OrderPlan::training(spec, rows), Some(steps_total)).await
    }

    /// Opens a job's evaluation data: stored order, cut over ranks like training data; one pass is steps `0..steps_total()`.
    pub async fn open_for_evaluation(
        store: Arc<dyn ObjectStore>,
        spec: &JobFields,
        info: &DatasetInfo,
        limits: LoaderLimits,
    ) -> Result<Self, DataError> {
        if info.rows == 0 {
            return Err(crate::order::OrderError::NoRows.into());
        }
        Self::start(store, info, limits, |rows| OrderPlan::evaluation(spec, rows), None).await
    }

    async fn start(
        store: Arc<dyn ObjectStore>,
        info: &DatasetInfo,
        limits: LoaderLimits,
        plan: impl FnOnce(Vec<u32>) -> OrderPlan,
        steps_total: Option<u64>,
    ) -> Result<Self, DataError> {
        let metadata = Arc::new(load_metadata(&store, info).await?);
        let plan = Arc::new(plan(metadata.block_rows()));
        let shared = Arc::new(Shared {
            reader: Reader::new(&store, Arc::clone(&metadata), limits.retry)?,
            steps_total: steps_total.unwrap_or_else(|| plan.steps_per_epoch()),
            metadata,
            plan,
            limits,
            cache: Mutex::new(Cache::new(limits.cache_bytes)),
            orders: Mutex::new(VecDeque::new()),
            ahead: Ahead::default(),
            blocks_read: AtomicU64::new(0),
            samples_delivered: AtomicU64::new(0),
            waited_us: AtomicU64::new(0),
        });
        let (wanted, seen) = watch::channel(Wanted::default());
        let making = tokio::spawn(make_ahead(Arc::clone(&shared), seen.clone()));
        let reading = tokio::spawn(prefetch(Arc::clone(&shared), seen));
        let background = Arc::new([AbortOnDrop(reading), AbortOnDrop(making)]);
        Ok(Self { shared, wanted: Arc::new(wanted), _background: background })
    }

    /// What a row holds.
    #[must_use]
    pub fn sample_shape(&self) -> &SampleShape {
        &self.shared.metadata.sample
    }

    /// What is known of the dataset.
    #[must_use]
    pub fn metadata(&self) -> &DatasetMetadata {
        &self.shared.metadata
    }

    /// Steps of one pass over the dataset.
    #[must_use]
    pub fn steps_per_epoch(&self) -> u64 {
        self.shared.plan.steps_per_epoch()
    }

    /// Steps of the job; for evaluation, of one pass.
    #[must_use]
    pub fn steps_total(&self) -> u64 {
        self.shared.steps_total
    }

    /// The samples of a rank in a global step: `batch_size` of them, fewer or none at the end of an epoch.
    pub async fn samples(&self, rank: Rank, step: Step) -> Result<Samples, DataError> {
        let shared = &self.shared;
        let samples = match shared.ahead.take(rank, step) {
            Some(batch) => shared.take(rank, step, batch).await?,
            None => shared.gather(rank, step, &shared.waited_us).await?,
        };
        shared.samples_delivered.fetch_add(samples.len() as u64, Ordering::Relaxed);
        Ok(samples)
    }

    /// Announces that these ranks will read so many updates from a step on, each of so many steps at the most; their blocks are read in the background, as far as the
    /// cache reaches, and the batches of the first two made. Replaces the announcement before it; blocks on their way still arrive.
    pub fn prefetch(&self, ranks: &[Rank], place: (Step, Stride), updates_ahead: u64) {
        let new = self.shared.wanted(ranks, place, updates_ahead);
        self.wanted.send_if_modified(|old| {
            let changed = *old != new;
            if changed {
                self.shared.ahead.announce(new.clone());
                self.shared.cache().bytes_max = self.shared.limits.cache_bytes_for(new.ranks.len());
                *old = new;
            }
            changed
        });
    }

    /// Waits until the blocks of these ranks and updates are in memory, as far as the cache reaches. A member calls it before it
    /// says that it is ready for a switch.
    pub async fn warm(&self, ranks: &[Rank], place: (Step, Stride), updates_ahead: u64) -> Result<(), DataError> {
        let blocks = self.shared.blocks_of(&self.shared.wanted(ranks, place, updates_ahead));
        let reads = blocks.into_iter().map(|block| {
            let shared = Arc::clone(&self.shared);
            async move { shared.block(block).await.map(|_| ()) }
        });
        stream::iter(reads).buffer_unordered(self.shared.limits.reads_in_flight.max(1)).try_collect().await
    }

    /// Counters since the loader was opened.
    #[must_use]
    pub fn metrics(&self) -> LoaderMetrics {
        LoaderMetrics {
            bytes_read: self.shared.reader.bytes_read(),
            blocks_read: self.shared.blocks_read.load(Ordering::Relaxed),
            samples_delivered: self.shared.samples_delivered.load(Ordering::Relaxed),
            waited_us: self.shared.waited_us.load(Ordering::Relaxed),
        }
    }
}

impl Shared {
    fn wanted(&self, ranks: &[Rank], (from, stride): (Step, Stride), updates_ahead: u64) -> Wanted {
        let end = |updates: u64| from.0.saturating_add(updates.saturating_mul(stride.steps())).min(self.steps_total);
        let (ready, to) = (end(UPDATES_READY_MAX), end(updates_ahead.min(UPDATES_AHEAD_MAX)));
        Wanted { ranks: ranks.to_vec(), from: from.0, ready: ready.min(to), to }
    }

    fn samples_at(&self, rank: Rank, step: Step) -> Vec<SampleAt> {
        match self.plan.locate(step) {
            Some((epoch, step_in_epoch)) => self.order(epoch).samples(rank, step_in_epoch),
            None => Vec::new(),
        }
    }

    fn order(&self, epoch: u64) -> Arc<EpochOrder> {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(order) = orders.iter().find(|o| o.epoch() == epoch) {
            return Arc::clone(order);
        }
        let order = Arc::new(self.plan.epoch(epoch));
        orders.push_back(Arc::clone(&order));
        if orders.len() > ORDERS_KEPT {
            orders.pop_front();
        }
        order
    }

    /// A batch that was begun ahead, whoever gets done with it.
    async fn take(self: &Arc<Self>, rank: Rank, step: Step, batch: Cell) -> Result<Samples, DataError> {
        let (begun, mut here) = (Instant::now(), false);
        let made = batch.get_or_try_init(|| {
            here = true;
            self.gather(rank, step, &self.waited_us)
        });
        made.await?;
        if !here {
            self.waited_us.fetch_add(begun.elapsed().as_micros() as u64, Ordering::Relaxed);
        }
        let samples = Arc::try_unwrap(batch).map(OnceCell::into_inner);
        // Who made it may still hold it for a moment.
        Ok(samples
            .unwrap_or_else(|shared| shared.get().cloned())
            .unwrap_or_else(|| Batch::new(&self.metadata, 0).samples))
    }

    /// Copies the samples of a rank and step out of their blocks, a few blocks in memory at a time however many they lie in. How long it waited
    /// for blocks is added to `waited_us`.
    async fn gather(self: &Arc<Self>, rank: Rank, step: Step, waited_us: &AtomicU64) -> Result<Samples, DataError> {
        let samples = self.samples_at(rank, step);
        let mut places: BTreeMap<u32, Vec<(usize, u32)>> = BTreeMap::new();
        for (place, sample) in samples.iter().enumerate() {
            places.entry(sample.block).or_default().push((place, sample.row));
        }
        let mut batch = Batch::new(&self.metadata, samples.len());
        let reads = places.into_iter().map(|(index, rows)| {
            let shared = Arc::clone(self);
            async move { shared.block(index).await.map(|block| (block, rows)) }
        });
        let mut blocks = stream::iter(reads).buffer_unordered(self.limits.reads_in_flight.max(1));
        let mut waiting = Instant::now();
        while let Some((block, rows)) = blocks.try_next().await? {
            waited_us.fetch_add(waiting.elapsed().as_micros() as u64, Ordering::Relaxed);
            for (place, row) in rows {
                batch.set(place, &block, row as usize);
            }
            waiting = Instant::now();
        }
        Ok(batch.samples)
    }

    /// A decoded block, from the cache or read once however many ask for it.
    async fn block(&self, index: u32) -> Result<Arc<Block>, DataError> {
        let cell = self.cache().cell(index);
        let block = cell
            .get_or_try_init(|| async {
                let block = self.reader.read(index).await?;
                self.blocks_read.fetch_add(1, Ordering::Relaxed);
                Ok::<_, DataError>(Arc::new(block))
            })
            .await?;
        self.cache().loaded(index, &cell, block.bytes());
        Ok(Arc::clone(block))
    }

    /// Blocks that announced steps need, in the order of need, up to the prefetch's share of the cache.
    fn blocks_of(&self, wanted: &Wanted) -> Vec<u32> {
        let budget = (self.limits.cache_bytes_for(wanted.ranks.len()) as f64 * PREFETCH_SHARE) as u64;
        let (mut seen, mut blocks, mut bytes) = (BTreeSet::new(), Vec::new(), 0u64);
        for step in wanted.from..wanted.to {
            for &rank in &wanted.ranks {
                for sample in self.samples_at(rank, Step(step)) {
                    if seen.insert(sample.block) {
                        bytes += self.reader.block_bytes(sample.block);
                        if bytes > budget {
                            return blocks;
                        }
                        blocks.push(sample.block);
                    }
                }
            }
        }
        blocks
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_loaded(&self, index: u32) -> bool {
        self.cache().is_loaded(index)
    }
}

/// Reads announced blocks, a bounded number at once, until the loader is dropped. A fault is only told here: the step that needs
/// the block meets it again and fails with it.
async fn prefetch(shared: Arc<Shared>, mut wanted: watch::Receiver<Wanted>) {
    let mut todo = VecDeque::new();
    let mut in_flight = JoinSet::new();
    loop {
        while in_flight.len() < shared.limits.reads_in_flight.max(1) {
            let Some(index) = todo.pop_front() else { break };
            if shared.is_loaded(index) {
                continue;
            }
            let shared = Arc::clone(&shared);
            in_flight.spawn(async move { (index, shared.block(index).await.map(|_| ())) });
        }
        tokio::select! {
            changed = wanted.changed() => {
                if changed.is_err() {
                    return;
                }
                let now = wanted.borrow_and_update().clone();
                todo = shared.blocks_of(&now).into();
            }
            Some(finished) = in_flight.join_next(), if !in_flight.is_empty() => match finished {
                Ok((_, Ok(()))) => {}
                Ok((index, Err(error))) => tracing::warn!(block = index, %error, "reading ahead failed"),
                Err(error) => tracing::warn!(%error, "reading ahead stopped"),
            },
        }
    }
}

/// Makes announced batches, one at a time in the order of need, until the loader is dropped. A fault is for the step that needs the batch.
async fn make_ahead(shared: Arc<Shared>, mut wanted: watch::Receiver<Wanted>) {
    let nobody_waited_us = AtomicU64::new(0);
    loop {
        while let Some((rank, step, batch)) = shared.ahead.begin() {
            let made = batch.get_or_try_init(|| shared.gather(rank, step, &nobody_waited_us)).await.is_ok();
            shared.ahead.made(rank, step, &batch);
            if !made {
                break;
            }
        }
        tokio::select! {
            changed = wanted.changed() => if changed.is_err() { return },
            () = shared.ahead.room() => {}
        }
    }
}

/// The samples of one call, filled in any order.
struct Batch<'a> {
    samples: Samples,
    metadata: &'a DatasetMetadata,
    width: usize,
}

impl<'a> Batch<'a> {
    fn new(metadata: &'a DatasetMetadata, count: usize) -> Self {
        let width = metadata.row_elements() as usize;
        let samples = match &metadata.sample {
            SampleShape::Classified { .. } => {
                Samples::Classified { features: vec![0.0; count * width], labels: vec![0; count] }
            }
            SampleShape::Tokens { length, .. } => Samples::Tokens { tokens: vec![0; count * width], length: *length },
        };
        Self { samples, metadata, width }
    }

    fn set(&mut self, place: usize, block: &Block, row: usize) {
        let (to, from) = (place * self.width..(place + 1) * self.width, row * self.width..(row + 1) * self.width);
        match (&mut self.samples, block) {
            (
                Samples::Classified { features, labels },
                Block::Classified { features: stored, labels: stored_labels },
            ) => {
                let (scale, offset) = match &self.metadata.columns {
                    Columns::Classified { features, .. } => (features.scale, features.offset),
                    Columns::Tokens { .. } => (1.0, 0.0),
                };
                labels[place] = stored_labels[row];
                match stored {
                    Elements::U8(stored) => features[to]
                        .iter_mut()
                        .zip(&stored[from])
                        .for_each(|(out, &v)| *out = f32::from(v) * scale + offset),
                    Elements::F32(stored) => {
                        features[to].iter_mut().zip(&stored[from]).for_each(|(out, &v)| *out = v * scale + offset)
                    }
                }
            }
            (Samples::Tokens { tokens, .. }, Block::Tokens(stored)) => tokens[to].copy_from_slice(&stored[from]),
            // The reader builds blocks after the same metadata.
            _ => {}
        }
    }
}

/// Decoded blocks by index; the least recently used go first when the bound is passed.
struct Cache {
    bytes_max: u64,
    bytes: u64,
    uses: u64,
    entries: BTreeMap<u32, Entry>,
}

struct Entry {
    cell: Arc<OnceCell<Arc<Block>>>,
    /// 0 until the block is there.
    bytes: u64,
    used: u64,
}

impl Cache {
    fn new(bytes_max: u64) -> Self {
        Self { bytes_max, bytes: 0, uses: 0, entries: BTreeMap::new() }
    }

    /// The block's cell, to be filled by the first who needs it.
    fn cell(&mut self, index: u32) -> Arc<OnceCell<Arc<Block>>> {
        self.uses += 1;
        let entry =
            self.entries.entry(index).or_insert_with(|| Entry { cell: Arc::new(OnceCell::new()), bytes: 0, used: 0 });
        entry.used = self.uses;
        Arc::clone(&entry.cell)
    }

    /// Accounts for a block that has arrived, and makes room.
    fn loaded(&mut self, index: u32, cell: &Arc<OnceCell<Arc<Block>>>, bytes: u64) {
        match self.entries.get_mut(&index) {
            // Somebody waited for a cell that has been evicted since: the block is theirs alone.
            Some(entry) if !Arc::ptr_eq(&entry.cell, cell) => return,
            None => return,
            Some(entry) if entry.bytes > 0 => return,
            Some(entry) => entry.bytes = bytes,
        }
        self.bytes += bytes;
        while self.bytes > self.bytes_max {
            let oldest = self.entries.iter().filter(|(_, e)| e.bytes > 0).min_by_key(|(_, e)| e.used).map(|(&i, _)| i);
            let Some(entry) = oldest.and_then(|i| self.entries.remove(&i)) else { return };
            self.bytes -= entry.bytes;
        }
    }

    fn is_loaded(&self, index: u32) -> bool {
        self.entries.get(&index).is_some_and(|e| e.bytes > 0)
    }
}

#[cfg(test)]
#[path = "loader_tests.rs"]
mod tests;
