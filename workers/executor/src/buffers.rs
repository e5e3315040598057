//! Vectors as long as a gradient. A step uses a few and the next uses them again, so they come from a pool and go back to it when they are dropped.
//!
//! Where a Python process computes, they lie in memory that it maps too: it computes a gradient where the sum is made, and
//! updates by the mean where it was summed.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};
use workers_memory::Segment;

/// More free ones of this process's own than any member's sums need would only hold memory.
const FREE_MAX: usize = 4;

/// Whatever a stretch may be sent of, while others read it too.
pub type SharedElements = Arc<dyn Deref<Target = [f32]> + Send + Sync>;

/// Where buffers come from.
#[derive(Debug, Clone)]
pub struct Pool(Arc<Home>);

#[derive(Debug)]
struct Home {
    elements: usize,
    mapped: bool,
    free: Mutex<Vec<Memory>>,
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
        Self(Arc::new(Home { elements, mapped: false, free: Mutex::default() }))
    }

    /// The same in memory that another process can map.
    #[must_use]
    pub fn mapped(elements: usize) -> Self {
        Self(Arc::new(Home { elements, mapped: true, free: Mutex::default() }))
    }

    /// A buffer with anything in it.
    #[must_use]
    pub fn take(&self) -> Buffer {
        let Home { elements, mapped, ref free } = *self.0;
        let used = free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let memory = used.unwrap_or_else(|| {
            let segment = mapped.then(|| Segment::new(elements)).transpose();
            // Without it the Python process is given a copy.
            let segment = segment.inspect_err(|error| tracing::warn!(%error, elements, "no memory to share")).ok();
            segment.flatten().map_or_else(|| Memory::Own(vec![0.0; elements]), Memory::Mapped)
        });
        Buffer { memory, home: Some(Arc::clone(&self.0)) }
    }
}

impl Buffer {
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
        let Some(home) = &self.home else { return Self::from(self.to_vec()) };
        let mut copy = Pool(Arc::clone(home)).take();
        copy.copy_from_slice(self);
        copy
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let Some(home) = self.home.take() else { return };
        let memory = std::mem::replace(&mut self.memory, Memory::Own(Vec::new()));
        let mut free = home.free.lock().unwrap_or_else(PoisonError::into_inner);
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
    fn few_free_ones_are_kept() {
        let pool = Pool::own(1);
        drop((0..2 * FREE_MAX).map(|_| pool.take()).collect::<Vec<_>>());
        assert_eq!(pool.0.free.lock().unwrap().len(), FREE_MAX);
    }
}
