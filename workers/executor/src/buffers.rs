//! Vectors as long as a gradient, and as a piece of one. A step uses a few and the next uses them again, so they come from a pool and go back to it
//! when they are dropped.
//!
//! They lie in memory that other processes of this host can map: a Python process computes a gradient where the sum is made and updates by the mean
//! where it was summed, and executors read each other's sums (`lending.rs`).

use crate::wire::{ELEMENT_LEN, PIECE_ELEMENTS, Shown};
use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use workers_memory::{Place, Segment};

/// More free ones of this process's own than any member's sums need would only hold memory.
const FREE_MAX: usize = 4;
/// Pieces made at once, in one file: 8 MiB. A file for each would take a descriptor for each.
const PIECES_AT_ONCE: usize = 32;

/// Elements of which a stretch may be sent, while others read them too.
pub trait Elements: Deref<Target = [f32]> + Send + Sync {
    /// Where they lie, if another process can read them there.
    fn place(&self) -> Option<Place> {
        None
    }
}

/// Whatever a stretch may be sent of, while others read it too.
pub type SharedElements = Arc<dyn Elements>;

impl Elements for Vec<f32> {}

impl Elements for Buffer {
    fn place(&self) -> Option<Place> {
        self.segment().map(Segment::place)
    }
}

/// Where buffers come from.
#[derive(Debug, Clone)]
pub struct Pool(Arc<Home>);

#[derive(Debug)]
struct Home {
    elements: usize,
    mapped: bool,
    /// How many are made when there is no free one.
    at_once: usize,
    stock: Mutex<Stock>,
}

/// What there is of a pool, but for what is in use.
#[derive(Debug, Default)]
struct Stock {
    /// The one that came back last is taken first, so those that nobody needs are at the beginning.
    free: Vec<Memory>,
    /// The fewest that were free at once since [`Pool::unused`] was last asked.
    free_min: usize,
    /// Free ones without memory.
    empty: Vec<Segment>,
    /// Files of all that was made, none of which goes before the pool does.
    files: Vec<Shown>,
}

#[derive(Debug)]
enum Memory {
    Own(Vec<f32>),
    Mapped(Segment),
}

/// A vector as long as a gradient.
#[derive(Debug)]
pub struct Buffer {
    memory: Memory,
    home: Option<Arc<Home>>,
}

impl Pool {
    /// Of buffers of so many elements, in memory of this process's own.
    #[must_use]
    pub fn own(elements: usize) -> Self {
        Self(Arc::new(Home::new(elements, false, 1)))
    }

    /// The same in memory that another process can map.
    #[must_use]
    pub fn mapped(elements: usize) -> Self {
        Self(Arc::new(Home::new(elements, true, 1)))
    }

    /// Of pieces of vectors, [`PIECE_ELEMENTS`] each, in memory that other processes can map.
    #[must_use]
    pub fn of_pieces() -> Self {
        Self(Arc::new(Home::new(PIECE_ELEMENTS, true, PIECES_AT_ONCE)))
    }

    /// The files in which they lie that were made so far and have memory.
    #[must_use]
    pub fn files(&self) -> Vec<Shown> {
        let stock = self.0.stock();
        let empty: BTreeSet<u64> = stock.empty.iter().map(Segment::number).collect();
        stock.files.iter().filter(|shown| !empty.contains(&shown.file)).copied().collect()
    }

    /// Has so many free ones at least. Those that lack are made here, while others are taken meanwhile.
    pub fn reserve(&self, buffers: usize) {
        let mut made = true;
        while made && self.0.stock().free.len() < buffers {
            let more = self.0.more();
            made = !more.is_empty();
            self.0.stock().free.extend(more);
        }
    }

    /// All that are free now.
    #[must_use]
    pub fn take_free(&self) -> Vec<Buffer> {
        let free = {
            let mut stock = self.0.stock();
            stock.free_min = 0;
            std::mem::take(&mut stock.free)
        };
        free.into_iter().map(|memory| Buffer { memory, home: Some(Arc::clone(&self.0)) }).collect()
    }

    /// How many were not in use at any time since this was last asked, or was for the first time.
    #[must_use]
    pub fn unused(&self) -> usize {
        let mut stock = self.0.stock();
        let free = stock.free.len();
        std::mem::replace(&mut stock.free_min, free).min(free)
    }

    /// Bytes of one.
    #[must_use]
    pub fn buffer_bytes(&self) -> usize {
        self.0.elements * ELEMENT_LEN
    }

    /// Gives the memory of so many that are free back to the system, of those that lay longest. Only for what no device knows by its pages.
    pub fn empty(&self, buffers: usize) {
        let unused: Vec<Memory> = {
            let mut stock = self.0.stock();
            let unused = buffers.min(stock.free.len());
            stock.free.drain(..unused).collect()
        };
        for memory in unused {
            // Memory of this process's own goes as it is dropped.
            let Memory::Mapped(mut segment) = memory else { continue };
            match segment.empty() {
                Ok(()) => self.0.stock().empty.push(segment),
                Err(error) => {
                    tracing::debug!(%error, "memory that nobody uses is kept");
                    self.0.stock().free.push(Memory::Mapped(segment));
                }
            }
        }
    }

    /// A buffer with anything in it.
    #[must_use]
    pub fn take(&self) -> Buffer {
        let free = self.0.stock().take();
        let memory = free.or_else(|| {
            let begun = Instant::now();
            let mut more = self.0.more();
            if !more.is_empty() {
                tracing::debug!(elements = self.0.elements, took = ?begun.elapsed(), "memory is made while it is waited for");
            }
            let memory = more.pop();
            self.0.stock().free.extend(more);
            memory
        });
        // Without memory to share it is this process's own, of which others are sent copies.
        let memory = memory.unwrap_or_else(|| Memory::Own(vec![0.0; self.0.elements]));
        Buffer { memory, home: Some(Arc::clone(&self.0)) }
    }
}

impl Stock {
    fn take(&mut self) -> Option<Memory> {
        let free = self.free.pop();
        self.free_min = self.free_min.min(self.free.len());
        free
    }
}

impl Home {
    fn new(elements: usize, mapped: bool, at_once: usize) -> Self {
        Self { elements, mapped, at_once, stock: Mutex::default() }
    }

    fn stock(&self) -> MutexGuard<'_, Stock> {
        self.stock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that had no memory, or new ones that can be mapped, if they are to be and can be had.
    fn more(&self) -> Vec<Memory> {
        if !self.mapped {
            return Vec::new();
        }
        let empty = self.stock().empty.pop();
        if let Some(mut segment) = empty {
            // What it lacks comes when it is touched.
            let _ = segment.fill_pages();
            return vec![Memory::Mapped(segment)];
        }
        let segments = Segment::several(self.at_once, self.elements);
        let segments = segments.inspect_err(|error| tracing::warn!(%error, self.elements, "no memory to share"));
        let segments = segments.unwrap_or_default();
        let shown =
            segments.first().map(Segment::place).map(|Place { file, descriptor, .. }| Shown { file, descriptor });
        self.stock().files.extend(shown);
        segments.into_iter().map(Memory::Mapped).collect()
    }
}

impl Buffer {
    /// One as long, in the same kind of memory, with anything in it.
    #[must_use]
    pub fn another(&self) -> Self {
        self.home.as_ref().map_or_else(|| Self::from(vec![0.0; self.len()]), |home| Pool(Arc::clone(home)).take())
    }

    /// The memory that another process can map, if it lies in such.
    #[must_use]
    pub fn segment(&self) -> Option<&Segment> {
        match &self.memory {
            Memory::Own(_) => None,
            Memory::Mapped(segment) => Some(segment),
        }
    }

    /// The same, for being written.
    pub fn segment_mut(&mut self) -> Option<&mut Segment> {
        match &mut self.memory {
            Memory::Own(_) => None,
            Memory::Mapped(segment) => Some(segment),
        }
    }
}

impl From<Vec<f32>> for Buffer {
    fn from(elements: Vec<f32>) -> Self {
        Self { memory: Memory::Own(elements), home: None }
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Self {
        let mut copy = self.another();
        copy.copy_from_slice(self);
        copy
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let Some(home) = self.home.take() else { return };
        let memory = std::mem::replace(&mut self.memory, Memory::Own(Vec::new()));
        let free = &mut home.stock().free;
        let keep = match &memory {
            // What the other process maps as well would not be free memory if it were dropped here.
            Memory::Mapped(_) => true,
            // Taken when there was none to share; kept, it would be taken again for ever.
            Memory::Own(_) => !home.mapped && free.len() < FREE_MAX,
        };
        if keep {
            free.push(memory);
        }
    }
}

impl Deref for Buffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match &self.memory {
            Memory::Own(elements) => elements,
            Memory::Mapped(segment) => segment,
        }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        match &mut self.memory {
            Memory::Own(elements) => elements,
            Memory::Mapped(segment) => segment,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_dropped_buffer_is_taken_again() {
        for pool in [Pool::own(3), Pool::mapped(3)] {
            let mut first = pool.take();
            first.copy_from_slice(&[1.0, 2.0, 3.0]);
            let place = first.as_ptr();
            drop(first);
            assert_eq!(pool.take().as_ptr(), place);
        }
    }

    #[test]
    fn what_is_reserved_is_not_made_when_it_is_taken() {
        let pool = Pool::mapped(3);
        pool.reserve(2);
        let reserved = pool.0.stock().free.len();
        let taken = [pool.take(), pool.take()];
        assert_eq!((reserved, pool.0.stock().free.len(), taken.len()), (2, 0, 2));
        pool.reserve(1);
        assert_eq!(pool.0.stock().free.len(), 1, "those that are taken do not count");
        assert_eq!(pool.files().len(), 3, "but peers are shown them");
        let free = pool.take_free().len();
        assert_eq!((free, pool.0.stock().free.len()), (1, 1), "they are back when they were dropped");
        Pool::own(3).reserve(1);
    }

    #[test]
    fn what_nobody_used_has_no_memory_until_it_is_needed() {
        let pool = Pool::mapped(3);
        pool.reserve(3);
        assert_eq!(pool.unused(), 0, "nobody knows what was before");
        for _ in 0..2 {
            drop(pool.take());
        }
        let unused = pool.unused();
        assert_eq!(unused, 2);
        pool.empty(unused);
        let stock = |pool: &Pool| {
            let stock = pool.0.stock();
            (stock.free.len(), stock.empty.len())
        };
        assert_eq!((stock(&pool), pool.files().len()), ((1, 2), 1), "one at a time was in use");
        let taken = [pool.take(), pool.take(), pool.take()];
        assert_eq!((stock(&pool), pool.files().len()), ((0, 0), 3), "no new ones are made");
        drop(taken);
        assert_eq!([pool.unused(), pool.unused()], [0, 3], "all were in use, and none since");
        pool.empty(9);
        pool.reserve(2);
        assert_eq!(stock(&pool), (2, 1));
    }

    #[test]
    fn a_copy_is_apart_and_in_the_same_kind_of_memory() {
        let pool = Pool::mapped(2);
        let mut first = pool.take();
        first.fill(1.0);
        let copy = first.clone();
        first.fill(2.0);
        assert_eq!((&*copy, copy.segment().is_some()), (&[1.0; 2][..], true));
        let (one, other) = (first.segment().unwrap().number(), copy.segment().unwrap().number());
        assert_ne!(one, other);
    }

    #[test]
    fn what_could_not_be_shared_is_not_taken_again() {
        let pool = Pool::mapped(2);
        drop(Buffer { memory: Memory::Own(vec![0.0; 2]), home: Some(Arc::clone(&pool.0)) });
        assert!(pool.take().segment().is_some());
    }

    #[test]
    fn pieces_share_a_file_and_nothing_else() {
        let pool = Pool::of_pieces();
        let taken: Vec<Buffer> = (0..=PIECES_AT_ONCE).map(|_| pool.take()).collect();
        let places: Vec<Place> = taken.iter().map(|piece| piece.place().unwrap()).collect();
        let first: Vec<&Place> = places.iter().filter(|place| place.file == places[0].file).collect();
        assert_eq!((first.len(), places.len()), (PIECES_AT_ONCE, PIECES_AT_ONCE + 1));
        let starts: std::collections::BTreeSet<usize> = first.iter().map(|place| place.start).collect();
        assert_eq!(starts.len(), PIECES_AT_ONCE);
    }

    #[test]
    fn few_free_ones_are_kept() {
        let pool = Pool::own(1);
        drop((0..2 * FREE_MAX).map(|_| pool.take()).collect::<Vec<_>>());
        assert_eq!(pool.0.stock().free.len(), FREE_MAX);
    }
}
