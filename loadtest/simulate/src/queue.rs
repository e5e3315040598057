//! What is to happen, by time; of one moment in the order in which it was put in.

use events_schema::{ExecutorId, Generation, TimeMs};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Something that happens. What has become pointless until then is known by its stamp, and passed over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// The job at this place is submitted.
    Submit(usize),
    /// A fleet says what it needs: the signal at this place of its demand.
    Demand { fleet: usize, signal: usize },
    /// What a fleet really needs changes: the point at this place of its curve.
    Curve { fleet: usize, point: usize },
    /// A process has built its model.
    Ready(ExecutorId),
    /// A process ends by itself.
    Exit(ExecutorId),
    /// An agent kills a process whose time is over.
    Overdue(ExecutorId),
    /// A member that has to go looks whether the boundary is still worth waiting for, until a moment.
    Late { executor: ExecutorId, until: TimeMs },
    /// Its process ends in the middle of a step.
    LeftEarly(ExecutorId),
    /// Members of a generation have found each other.
    Linked { job: usize, generation: Generation },
    /// The members of a job are between two steps.
    Boundary { job: usize, stamp: u64 },
    /// They go on after a pause; newcomers hold the replica.
    Resumed { job: usize, stamp: u64 },
    /// The first step of their generation is done.
    Stepped { job: usize, stamp: u64 },
    /// They have stepped for long enough to tell how long a step takes.
    Measured { job: usize, stamp: u64 },
    /// What they were to write down is written.
    Saved { job: usize, stamp: u64 },
    /// The last step is done.
    Done { job: usize, stamp: u64 },
    /// Its model is written.
    Finished { job: usize, stamp: u64 },
    /// A process has run for long enough that it is known how much of its slot it uses.
    Seen(ExecutorId),
    /// Somebody began or ended beside an executor of it, on the same slot.
    Shared { job: usize },
    /// A server breaks.
    Breaks(usize),
    /// Its agent's lease is over.
    GivenUp(usize),
    /// It is there again.
    Repaired(usize),
    /// Time has passed for somebody who waits for that.
    Tick,
    /// The policy wanted to be asked again now, if it was not asked since.
    Wake,
}

impl Event {
    /// Whether it comes of fleets, servers and clocks, which go on for ever, and not of jobs.
    pub fn is_around(&self) -> bool {
        matches!(
            self,
            Self::Demand { .. }
                | Self::Curve { .. }
                | Self::Tick
                | Self::Wake
                | Self::Breaks(_)
                | Self::GivenUp(_)
                | Self::Repaired(_)
        )
    }
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    events: BinaryHeap<Reverse<Entry>>,
    put: u64,
    /// How many of them come of jobs.
    pub of_jobs: usize,
}

#[derive(Debug)]
struct Entry {
    at: TimeMs,
    number: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl Queue {
    pub fn put(&mut self, at: TimeMs, event: Event) {
        self.put += 1;
        self.of_jobs += usize::from(!event.is_around());
        self.events.push(Reverse(Entry { at, number: self.put, event }));
    }

    /// When the next one is.
    pub fn next_at(&self) -> Option<TimeMs> {
        self.events.peek().map(|Reverse(entry)| entry.at)
    }

    pub fn next(&mut self) -> Option<(TimeMs, Event)> {
        let Reverse(entry) = self.events.pop()?;
        self.of_jobs -= usize::from(!entry.event.is_around());
        Some((entry.at, entry.event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_time_then_as_they_were_put_in() {
        let mut queue = Queue::default();
        for (at, place) in [(5, 0), (3, 1), (5, 2), (3, 3)] {
            queue.put(TimeMs(at), Event::Submit(place));
        }
        let order: Vec<_> = std::iter::from_fn(|| queue.next()).map(|(at, event)| (at.0, event)).collect();
        assert_eq!(order, [(3, 1), (3, 3), (5, 0), (5, 2)].map(|(at, place)| (at, Event::Submit(place))));
    }
}
