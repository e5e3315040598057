//! Batches that are made before they are asked for: their rows are copied out of blocks and converted by the runtime's threads, so that the
//! thread that trains finds them ready. Says which is made next and keeps what was made, within a bound of bytes; how a batch is made, and
//! from what, is `loader.rs`'s. What was made is nobody's state: the same batch is made anew wherever it is not there.

use events_schema::dataset::Samples;
use events_schema::{Rank, Step};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, OnceCell};

/// Most bytes of batches that are ready: two steps of images for dozens of ranks. One that is larger is made ahead alone.
const READY_BYTES_MAX: u64 = 64 << 20;

/// Updates whose batches are made ahead: the one that is computed and the next. More would keep processors from whoever comes together at the
/// moment when ranks change hands.
pub(crate) const UPDATES_READY_MAX: u64 = 2;

/// The ranks and steps that were announced.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub ranks: Vec<Rank>,
    pub from: u64,
    /// Batches of the steps before this one are made ahead.
    pub ready: u64,
    pub to: u64,
}

impl Wanted {
    fn holds(&self, (step, rank): &Place) -> bool {
        (self.from..self.to).contains(step) && self.ranks.contains(rank)
    }

    /// What is made ahead, by its number in the order of need.
    fn place(&self, number: u64) -> Option<Place> {
        let ranks = self.ranks.len() as u64;
        let step = self.from.saturating_add(number.checked_div(ranks)?);
        let rank = self.ranks.get((number % ranks) as usize)?;
        (step < self.ready).then_some((step, *rank))
    }
}

/// A step and a rank, which is a batch.
type Place = (u64, Rank);

/// A batch that somebody makes, once whoever asks for it.
pub(crate) type Cell = Arc<OnceCell<Samples>>;

/// What was made ahead, and what is to be.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    state: Mutex<State>,
    taken: Notify,
}

#[derive(Debug, Default)]
struct State {
    wanted: Wanted,
    /// All places before this one were begun, or asked for: an update may have thousands, and none is looked at again for each.
    next: u64,
    /// Begun or ready, with its bytes once it is ready.
    batches: BTreeMap<Place, (Cell, u64)>,
    /// All their bytes.
    ready_bytes: u64,
    /// Asked for since they were announced: nobody makes them ahead any more.
    gone: BTreeSet<Place>,
    /// Whether a batch was not begun for want of room. Otherwise what is taken lets nothing begin, and nobody is woken for it: that would cost each step
    /// some microseconds.
    full: bool,
}

impl Ahead {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces what was announced before; what is not wanted any more goes.
    pub fn announce(&self, wanted: Wanted) {
        let mut state = self.state();
        state.batches.retain(|place, _| wanted.holds(place));
        state.gone.retain(|place| wanted.holds(place));
        state.ready_bytes = state.batches.values().map(|(_, bytes)| bytes).sum();
        (state.wanted, state.next) = (wanted, 0);
    }

    /// The next batch to make, if there is room for one.
    pub fn begin(&self) -> Option<(Rank, Step, Cell)> {
        let mut state = self.state();
        state.full = state.ready_bytes >= READY_BYTES_MAX;
        if state.full {
            return None;
        }
        loop {
            let place = state.wanted.place(state.next)?;
            state.next += 1;
            if !state.batches.contains_key(&place) && !state.gone.contains(&place) {
                let cell = Cell::default();
                state.batches.insert(place, (Arc::clone(&cell), 0));
                return Some((place.1, Step(place.0), cell));
            }
        }
    }

    /// It is ready, and takes room until it is taken.
    pub fn made(&self, rank: Rank, step: Step, cell: &Cell) {
        let bytes = cell.get().map_or(0, bytes);
        let mut state = self.state();
        if let Some((known, known_bytes)) = state.batches.get_mut(&(step.0, rank))
            && Arc::ptr_eq(known, cell)
        {
            let before = std::mem::replace(known_bytes, bytes);
            state.ready_bytes = state.ready_bytes - before + bytes;
        }
    }

    /// A batch that is ready or being made, for whoever needs it now.
    pub fn take(&self, rank: Rank, step: Step) -> Option<Cell> {
        let mut state = self.state();
        let place = (step.0, rank);
        if state.wanted.holds(&place) {
            state.gone.insert(place);
        }
        let batch = state.batches.remove(&place);
        state.ready_bytes -= batch.as_ref().map_or(0, |(_, bytes)| *bytes);
        let full = std::mem::take(&mut state.full);
        drop(state);
        if full {
            self.taken.notify_one();
        }
        batch.map(|(cell, _)| cell)
    }

    /// Returns once there may be room for another.
    pub async fn room(&self) {
        self.taken.notified().await;
    }
}

fn bytes(samples: &Samples) -> u64 {
    let words = match samples {
        Samples::Classified { features, labels } => features.len() + labels.len(),
        Samples::Tokens { tokens, .. } => tokens.len(),
    };
    size_of::<u32>() as u64 * words as u64
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use futures::FutureExt;

    fn announced(ranks: &[u16], from: u64, to: u64) -> Ahead {
        let ahead = Ahead::default();
        ahead.announce(wanted(ranks, from, to));
        ahead
    }

    fn wanted(ranks: &[u16], from: u64, to: u64) -> Wanted {
        let ranks = ranks.iter().copied().map(Rank).collect();
        Wanted { ranks, from, ready: to.min(from + 2), to }
    }

    fn begun(ahead: &Ahead) -> Vec<(u16, u64)> {
        std::iter::from_fn(|| ahead.begin()).map(|(rank, step, _)| (rank.0, step.0)).collect()
    }

    /// Makes what comes next, of so many bytes.
    fn make(ahead: &Ahead, bytes: u64) -> Option<(Rank, Step)> {
        let (rank, step, cell) = ahead.begin()?;
        cell.set(Samples::Tokens { tokens: vec![0; (bytes / 4) as usize], length: 1 }).unwrap();
        ahead.made(rank, step, &cell);
        Some((rank, step))
    }

    #[test]
    fn batches_are_begun_once_in_the_order_of_need() {
        let ahead = announced(&[2, 0], 5, 7);
        assert_eq!(begun(&ahead), [(2, 5), (0, 5), (2, 6), (0, 6)]);
        ahead.announce(wanted(&[2, 1], 6, 8));
        assert_eq!(begun(&ahead), [(1, 6), (2, 7), (1, 7)], "what was begun and is still wanted is not begun again");
    }

    #[test]
    fn what_lies_beyond_is_not_made_ahead() {
        let ahead = announced(&[0], 5, 60);
        assert_eq!(begun(&ahead), [(0, 5), (0, 6)]);
        ahead.announce(wanted(&[0], 6, 61));
        assert_eq!(begun(&ahead), [(0, 7)]);
        assert!(begun(&announced(&[], 5, 60)).is_empty(), "nobody reads");
    }

    #[test]
    fn what_is_ready_is_taken_once_and_what_was_asked_for_is_not_made_ahead() {
        let ahead = announced(&[0, 1], 3, 5);
        assert_eq!(make(&ahead, 8), Some((Rank(0), Step(3))));
        assert!(ahead.take(Rank(0), Step(3)).unwrap().get().is_some());
        assert!(ahead.take(Rank(0), Step(3)).is_none());
        assert!(ahead.take(Rank(1), Step(3)).is_none(), "it is made by whoever asked");
        assert_eq!(begun(&ahead), [(0, 4), (1, 4)]);
    }

    #[test]
    fn no_more_is_ready_than_the_bound_and_a_batch_beyond_it_is_alone() {
        let ahead = announced(&[0, 2, 3, 4], 0, 9);
        assert!(make(&ahead, READY_BYTES_MAX + 4).is_some());
        assert!(make(&ahead, 4).is_none());
        assert!(ahead.state().full);
        ahead.take(Rank(0), Step(0)).unwrap();
        assert!(ahead.taken.notified().now_or_never().is_some(), "whoever waits for room is woken");
        assert!(ahead.take(Rank(0), Step(1)).is_none() && ahead.taken.notified().now_or_never().is_none());
        assert!(make(&ahead, READY_BYTES_MAX / 2).is_some() && make(&ahead, READY_BYTES_MAX / 2).is_some());
        assert!(make(&ahead, 4).is_none());
        // Of what is not wanted any more nothing is kept.
        ahead.announce(wanted(&[1], 0, 9));
        assert_eq!(make(&ahead, 4), Some((Rank(1), Step(0))));
    }
}
