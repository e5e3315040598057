//! What is going to happen, in the order of time; of two things at one time, the one that was announced first.

use crate::time::At;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// The queue of a world and its time.
#[derive(Debug)]
pub struct Bus<E> {
    heap: BinaryHeap<Due<E>>,
    now: At,
    announced: u64,
}

#[derive(Debug)]
struct Due<E> {
    at: At,
    sequence: u64,
    event: E,
}

impl<E> Bus<E> {
    /// An empty queue at time 0.
    #[must_use]
    pub fn new() -> Self {
        Self { heap: BinaryHeap::new(), now: At(0), announced: 0 }
    }

    /// True time.
    #[must_use]
    pub fn now(&self) -> At {
        self.now
    }

    /// Announces an event; one that is announced for the past happens now.
    pub fn put(&mut self, at: At, event: E) {
        let (at, sequence) = (at.max(self.now), self.announced);
        self.announced += 1;
        self.heap.push(Due { at, sequence, event });
    }

    /// The next event; time goes on to it.
    pub fn take(&mut self) -> Option<E> {
        let due = self.heap.pop()?;
        self.now = due.at;
        Some(due.event)
    }

    /// When the next event is.
    #[must_use]
    pub fn next_at(&self) -> Option<At> {
        self.heap.peek().map(|due| due.at)
    }
}

impl<E> Default for Bus<E> {
    fn default() -> Self {
        Self::new()
    }
}

/// Turned around: the heap's greatest is the earliest.
impl<E> Ord for Due<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.sequence).cmp(&(self.at, self.sequence))
    }
}

impl<E> PartialOrd for Due<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Due<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Due<E> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_announced_first_for_a_time_happens_first() {
        let mut bus = Bus::new();
        for (at, event) in [(5, 'c'), (3, 'a'), (5, 'd'), (4, 'b')] {
            bus.put(At(at), event);
        }
        let order: String = std::iter::from_fn(|| bus.take()).collect();
        assert_eq!((order.as_str(), bus.now()), ("abcd", At(5)));
    }
}
