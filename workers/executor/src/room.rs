//! Memory for a growth: made, and touched, on a thread of its own while this executor trains, or before it asks for anything. To touch a gigabyte for the
//! first time takes from half a second to several, a copy into it a tenth of that.

use crate::buffers::{Buffer, Pool};
use crate::inbox::Event;
use crate::wire::PIECE_ELEMENTS;
use std::sync::mpsc::SyncSender;
use workers_member::Room as Wanted;
use workers_torch::Lengths;

/// Gradients that a newcomer has at once: the one that it is sent, the one before it, its own of the first step, and the sum.
const OF_NEWCOMER: usize = 4;
/// Gradients that a newcomer may read at a member while the next one is computed there.
const WHILE_READ: usize = 1;

/// What was made.
#[derive(Debug, Default)]
pub struct Room {
    /// For a replica that comes, from peers or out of the process that computes.
    pub replica: Option<Vec<f32>>,
    /// For a copy of a part of the one that is here, in memory that other executors of this host can read.
    pub aside: Option<Buffer>,
}

/// From where gradients and pieces of them are taken.
pub struct Makers {
    /// How long things are.
    pub lengths: Lengths,
    /// Whether the replica is in another process, out of which it is read before it is copied.
    pub elsewhere: bool,
    /// Of gradients.
    pub gradients: Pool,
    /// Of pieces of sums.
    pub pieces: Pool,
}

impl Makers {
    /// Makes it beside everything else; [`Event::RoomMade`] follows, whatever there was memory for. False where no thread is left for it.
    pub fn make(self, wanted: Wanted, inbox: SyncSender<Event>) -> bool {
        let make = move || {
            let room = self.room(wanted);
            // It can only fail when the trainer has ended, and then nobody waits.
            let _ = inbox.send(Event::RoomMade(room));
        };
        let spawned = std::thread::Builder::new().name("ebb-room".to_owned()).spawn(make);
        spawned.inspect_err(|error| tracing::warn!(%error, "no thread is left to make room for a newcomer")).is_ok()
    }

    fn room(&self, wanted: Wanted) -> Room {
        // The first exchange of two sends half of a sum in pieces, and of more members less.
        self.pieces.reserve(self.lengths.gradient.div_ceil(2).div_ceil(PIECE_ELEMENTS));
        match wanted {
            Wanted::Replica => {
                self.gradients.reserve(OF_NEWCOMER);
                Room { replica: touched(self.lengths.replica), aside: None }
            }
            Wanted::Aside { elements } => {
                self.gradients.reserve(WHILE_READ);
                let read = if self.elsewhere { touched(self.lengths.replica) } else { None };
                Room { replica: read, aside: Some(Pool::mapped(elements).take()) }
            }
        }
    }
}

/// Zeros that are written, so that their memory is there; none where there is not so much.
fn touched(elements: usize) -> Option<Vec<f32>> {
    let mut vector = Vec::new();
    vector.try_reserve_exact(elements).ok()?;
    vector.resize(elements, 0.0);
    Some(vector)
}
