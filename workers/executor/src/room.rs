//! Memory for a growth: made, and touched, on a thread of its own while this executor trains, or before it asks for anything. To touch a gigabyte for the
//! first time takes from half a second to several, a copy into it a tenth of that. What nobody has used for a while goes back to the system.

use crate::buffers::{Buffer, Pool};
use crate::inbox::Event;
use crate::wire::PIECE_ELEMENTS;
use std::sync::mpsc::SyncSender;
use workers_member::Room as Wanted;
use workers_torch::Lengths;

/// Gradients in one vector that a newcomer has at once: the one that it is sent, the one before it, its own of the first step, and the sum.
const OF_NEWCOMER: usize = 4;
/// Gradients in one vector that a newcomer may read at a member while the next one is computed there.
const WHILE_READ: usize = 1;
/// Steps for which what nobody uses is kept: who has just become one of more, or of fewer, may soon be one of as many as before.
pub const UNUSED_STEPS: u64 = 16;
/// Less is kept: it is not worth a thread, and how many pieces are in use is not the same in each step.
const UNUSED_BYTES_MIN: usize = 32 << 20;

/// What was made.
#[derive(Debug, Default)]
pub struct Room {
    /// For a replica that comes, from peers or out of the process that computes.
    pub replica: Option<Vec<f32>>,
    /// For a copy of a part of the one that is here, in memory that other executors of this host can read.
    pub aside: Option<Buffer>,
}

/// From where gradients and pieces of them are taken.
#[derive(Clone)]
pub struct Makers {
    /// How long things are.
    pub lengths: Lengths,
    /// Gradients that are computed in a step, one of each rank where they are.
    pub ranks: usize,
    /// Whether the replica is in another process, out of which it is read before it is copied, and which reads gradients in one vector.
    pub elsewhere: bool,
    /// Of gradients.
    pub gradients: Pool,
    /// Of pieces of sums.
    pub pieces: Pool,
}

impl Makers {
    /// Makes it beside everything else; [`Event::RoomMade`] follows, whatever there was memory for. False where no thread is left for it.
    pub fn make(self, wanted: Wanted, inbox: SyncSender<Event>) -> bool {
        beside(move || {
            let room = self.room(wanted);
            // It can only fail when the trainer has ended, and then nobody waits.
            let _ = inbox.send(Event::RoomMade(room));
        })
    }

    /// Has what a member of so many that hosts so many ranks may lack, who was one of more or of fewer, beside the first step of its membership.
    pub fn provide(self, members: usize, ranks: usize) {
        if !self.elsewhere {
            beside(move || match members {
                // The sum becomes the mean, which is held through the next step.
                1 => self.gradients.reserve(gradients_of(ranks) + 1),
                _ => self.pieces.reserve(self.pieces_of_steps(members)),
            });
        }
    }

    /// To be said every [`UNUSED_STEPS`]: gives memory back to the system that was not in use since the last time, beside everything else.
    pub fn empty_unused(self) {
        // What Python maps may be known to a device.
        if self.elsewhere {
            return;
        }
        let unused = [self.gradients, self.pieces].map(|pool| (pool.unused(), pool));
        if unused.iter().map(|(buffers, pool)| buffers * pool.buffer_bytes()).sum::<usize>() >= UNUSED_BYTES_MIN {
            beside(move || unused.into_iter().for_each(|(buffers, pool)| pool.empty(buffers)));
        }
    }

    fn room(&self, wanted: Wanted) -> Room {
        match (wanted, self.elsewhere) {
            (Wanted::Replica, true) => {
                self.pieces.reserve(self.pieces_of(2));
                self.gradients.reserve(OF_NEWCOMER);
                Room { replica: touched(self.lengths.replica), aside: None }
            }
            (Wanted::Replica, false) => {
                // Of two at the least; of more it is less.
                self.pieces.reserve(self.pieces_of_steps(2));
                self.gradients.reserve(gradients_of(self.ranks.div_ceil(2)));
                Room { replica: touched(self.lengths.replica), aside: None }
            }
            (Wanted::Aside { elements }, true) => {
                self.pieces.reserve(self.pieces_of(2));
                self.gradients.reserve(WHILE_READ);
                Room { replica: touched(self.lengths.replica), aside: Some(Pool::mapped(elements).take()) }
            }
            (Wanted::Aside { elements }, false) => {
                match self.lengths.replica.div_ceil(elements.max(1)) {
                    // It gives the mean from where it is, and sums in pieces for the first time when there are two.
                    1 => {
                        self.gradients.reserve(WHILE_READ);
                        self.pieces.reserve(self.pieces_of_steps(2));
                    }
                    // It has pieces, and divides its part of the mean into others.
                    members => self.pieces.reserve(self.pieces_of(members)),
                }
                Room { replica: None, aside: Some(Pool::mapped(elements).take()) }
            }
        }
    }

    /// Pieces of what one of so many members sums in a step.
    fn pieces_of(&self, members: usize) -> usize {
        self.lengths.gradient.div_ceil(members).div_ceil(PIECE_ELEMENTS)
    }

    /// The same of a step, and of the one before, whose mean is held until the next is whole.
    fn pieces_of_steps(&self, members: usize) -> usize {
        2 * self.pieces_of(members)
    }
}

/// Gradients that who hosts so many ranks has at once, most of them sums of its tree (`docs/measurements.md`, memory of n logical workers).
fn gradients_of(ranks: usize) -> usize {
    1 + ranks.next_power_of_two().ilog2() as usize
}

/// Does it on a thread of its own. Whether one is left.
fn beside(work: impl FnOnce() + Send + 'static) -> bool {
    let spawned = std::thread::Builder::new().name("ebb-room".to_owned()).spawn(work);
    spawned.inspect_err(|error| tracing::warn!(%error, "no thread is left to make room")).is_ok()
}

/// Zeros that are written, so that their memory is there; none where there is not so much.
fn touched(elements: usize) -> Option<Vec<f32>> {
    let mut vector = Vec::new();
    vector.try_reserve_exact(elements).ok()?;
    vector.resize(elements, 0.0);
    Some(vector)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRADIENT: usize = 100 * PIECE_ELEMENTS;

    fn makers(ranks: usize, elsewhere: bool) -> Makers {
        let lengths = Lengths { gradient: GRADIENT, mean: GRADIENT, compute: GRADIENT, replica: 3 * GRADIENT };
        // What is made counts, not how long it is.
        Makers { lengths, ranks, elsewhere, gradients: Pool::mapped(1), pieces: Pool::of_pieces() }
    }

    /// Gradients and pieces that are free, none of which is in use.
    fn free(makers: &Makers) -> (usize, usize) {
        (makers.gradients.files().len(), makers.pieces.take_free().len())
    }

    #[test]
    fn a_newcomer_has_room_for_two_steps_of_two() {
        let makers = makers(8, false);
        drop(makers.room(Wanted::Replica));
        let (gradients, pieces) = free(&makers);
        assert_eq!(gradients, 3, "of four ranks, one is computed, one summed before it, and one of the first two");
        assert!((100..132).contains(&pieces), "half of each of two sums, in files of several: {pieces}");
    }

    #[test]
    fn a_member_has_room_for_what_it_gives_a_newcomer() {
        let (alone, one_of_four) = (makers(2, false), makers(2, false));
        drop(alone.room(Wanted::Aside { elements: 3 * GRADIENT }));
        drop(one_of_four.room(Wanted::Aside { elements: 3 * GRADIENT / 4 }));
        assert_eq!(free(&alone).0, 1, "its mean, while the next gradient is computed");
        assert!((100..132).contains(&free(&alone).1), "and what it sums in pieces from then on");
        assert_eq!((free(&one_of_four).0, free(&one_of_four).1 < 64), (0, true), "its part of the mean");
    }

    #[test]
    fn what_nobody_used_between_two_looks_goes_back_unless_a_device_may_know_it() {
        for elsewhere in [false, true] {
            let makers =
                Makers { gradients: Pool::mapped(UNUSED_BYTES_MIN / size_of::<f32>()), ..makers(2, elsewhere) };
            makers.gradients.reserve(2);
            makers.clone().empty_unused();
            drop(makers.gradients.take());
            assert_eq!(makers.gradients.files().len(), 2, "at the first look nobody knows what was used");
            makers.clone().empty_unused();
            // It is done on a thread of its own.
            while !elsewhere && makers.gradients.files().len() > 1 {
                std::thread::yield_now();
            }
            assert_eq!(makers.gradients.files().len(), if elsewhere { 2 } else { 1 });
        }
    }

    #[test]
    fn who_computes_in_python_has_gradients_in_one_vector() {
        let makers = makers(2, true);
        drop(makers.room(Wanted::Replica));
        assert_eq!(free(&makers).0, OF_NEWCOMER);
    }
}
