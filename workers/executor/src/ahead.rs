//! The batches of an Ebb dataset for a model in PyTorch, made before they are asked for: while Python computes with one, the rows of the next are
//! gathered and put where Python finds them. A step then waits only where the source is slower, and Python is told what lies ready for the next one.
//! What a batch holds never depends on it.

use crate::meanwhile::Listen;
use crate::store_wait::listening;
use events_schema::{Rank, Step};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use storage::{DataError, Loader};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinHandle;
use workers_torch::{AHEAD_PLACES, Batch, BatchMemory, Following};

/// Makes batches in the background.
pub struct Ahead {
    loader: Loader,
    runtime: Handle,
    /// Of the Python process that is there now.
    rooms: Option<Rooms>,
    making: Option<Making>,
}

/// A batch that lies ready. Its place is free for another once this is dropped, so not before Python is done with it.
pub struct Ready {
    /// Where it is.
    pub batch: Batch,
    _room: Room,
}

/// A sequence of batches that is being made.
struct Making {
    turns: Vec<Turn>,
    /// What is next taken of it: a place in `turns`, and a step.
    next: (usize, Step),
    /// That, if it was looked for before it is taken and was there.
    seen: Option<Ready>,
    ready: mpsc::Receiver<Ready>,
    task: JoinHandle<()>,
}

impl Drop for Making {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The ranks whose rows make a batch, one after the other.
type Turn = Vec<Rank>;

/// Why a batch is not made ahead; who asks for it meets it again.
#[derive(Debug, thiserror::Error)]
enum AheadError {
    #[error("the rows cannot be read")]
    Data(#[from] DataError),
    #[error("the memory of the Python process cannot be written")]
    Memory(#[from] io::Error),
}

impl Ahead {
    /// Of a job's training data, by threads of this runtime.
    pub fn new(loader: Loader, runtime: Handle) -> Self {
        Self { loader, runtime, rooms: None, making: None }
    }

    /// The gradients of these ranks come next, in this order and those of a turn together, from this step on, in a process with this memory.
    pub fn expect(&mut self, turns: Vec<Turn>, from: Step, memory: &BatchMemory) {
        if !self.rooms.as_ref().is_some_and(|rooms| rooms.memory.is(memory)) {
            (self.rooms, self.making) = (Some(Rooms::new(memory.clone())), None);
        }
        let follows = |making: &Making| making.turns == turns && making.next.1 == from;
        if !self.making.as_ref().is_some_and(follows) {
            self.begin(turns, (0, from));
        }
    }

    fn begin(&mut self, turns: Vec<Turn>, next: (usize, Step)) {
        self.making = None;
        let Some(rooms) = self.rooms.clone().filter(|_| next.0 < turns.len()) else { return };
        // What is made waits in its room, and there are not more of these.
        let (done, ready) = mpsc::channel(AHEAD_PLACES);
        let (loader, order) = (self.loader.clone(), turns.clone());
        let task = self.runtime.spawn(async move {
            if let Err(error) = make(&loader, &rooms, &order, next, &done).await {
                tracing::debug!(error = %shell::Chain(&error), "no batch is made ahead");
            }
        });
        self.making = Some(Making { turns, next, seen: None, ready, task });
    }

    /// The batch of these ranks and this step, once it is made; `listen` is told that this takes long. None if nobody foresaw it, or if it could not be made: it has
    /// to be read now.
    pub fn take(&mut self, ranks: &[Rank], step: Step, listen: Listen<'_>) -> Option<Ready> {
        let making = self.making.as_ref()?;
        let place = making.turns.iter().position(|known| known == ranks)?;
        if making.next != (place, step) {
            let turns = making.turns.clone();
            self.begin(turns, (place, step));
        }
        let making = self.making.as_mut()?;
        making.next = after(making.turns.len(), making.next);
        let lies_ready = making.seen.take().or_else(|| making.ready.try_recv().ok());
        let ready = lies_ready.or_else(|| listening(&self.runtime, making.ready.recv(), listen));
        if ready.is_none() {
            self.making = None;
        }
        ready
    }

    /// What is taken next, if it lies ready. It stays where it is until it is dropped after it was taken, unless another is taken instead.
    pub fn following(&mut self) -> Option<Following> {
        let making = self.making.as_mut()?;
        if making.seen.is_none() {
            making.seen = making.ready.try_recv().ok();
        }
        let (place, step) = making.next;
        let (rank, ready) = (*making.turns.get(place)?.first()?, making.seen.as_ref()?);
        Some(Following { rank, step, batch: ready.batch })
    }
}

/// What comes after a turn: the next one, or the first one in the next step.
fn after(turns: usize, (place, step): (usize, Step)) -> (usize, Step) {
    if place + 1 < turns { (place + 1, step) } else { (0, Step(step.0 + 1)) }
}

async fn make(
    loader: &Loader,
    rooms: &Rooms,
    turns: &[Turn],
    mut next: (usize, Step),
    done: &mpsc::Sender<Ready>,
) -> Result<(), AheadError> {
    while next.1.0 < loader.steps_total() {
        let Some(room) = rooms.free().await else { break };
        let Some((first, others)) = turns[next.0].split_first() else { break };
        let mut samples = loader.samples(*first, next.1).await?;
        for rank in others {
            samples.append(loader.samples(*rank, next.1).await?);
        }
        let batch = rooms.memory.write(room.place, &samples)?;
        if done.send(Ready { batch, _room: room }).await.is_err() {
            break;
        }
        next = after(turns.len(), next);
    }
    Ok(())
}

/// The places of a memory that are written ahead.
#[derive(Clone)]
struct Rooms {
    memory: BatchMemory,
    count: Arc<Semaphore>,
    free: Arc<Mutex<Vec<usize>>>,
}

/// A place that nobody else has.
struct Room {
    place: usize,
    free: Arc<Mutex<Vec<usize>>>,
    // After `drop`, which puts the place back.
    _one: OwnedSemaphorePermit,
}

impl Rooms {
    fn new(memory: BatchMemory) -> Self {
        let places = (1..=AHEAD_PLACES).collect();
        Self { memory, count: Arc::new(Semaphore::new(AHEAD_PLACES)), free: Arc::new(Mutex::new(places)) }
    }

    /// The next that is free; none never, as nobody closes what counts them and there are as many as it counts.
    async fn free(&self) -> Option<Room> {
        let one = Arc::clone(&self.count).acquire_owned().await.ok()?;
        let place = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
        Some(Room { place, free: Arc::clone(&self.free), _one: one })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(self.place);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use events_schema::job::JobSpec;
    use object_store::ObjectStore;
    use object_store::memory::InMemory;
    use serde_json::json;
    use std::cell::Cell;
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use storage::LoaderLimits;
    use tokio::runtime::Runtime;
    use workers_torch::DIRECT_PLACE;

    const WORKERS: u16 = 3;
    const STEPS: u64 = 6;
    /// Of four rows of 64 pixels with their labels.
    const BATCH_BYTES: u64 = 4 * (8 + 4 * 64);
    /// Of all workers at once.
    const PLACE_BYTES: u64 = WORKERS as u64 * BATCH_BYTES;

    struct Reader {
        runtime: Runtime,
        loader: Loader,
        ahead: Ahead,
        file: File,
        memory: BatchMemory,
    }

    impl Reader {
        fn new() -> Self {
            let runtime = Runtime::new().unwrap();
            let spec = JobSpec::parse(&json!({
                "name": "a", "model": {"kind": "mlp"}, "dataset": "digits", "workers": {"max": WORKERS}, "batch_size": 4, "steps": STEPS,
            }));
            let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
            let loader = runtime.block_on(async {
                let digits = storage::dataset::register_digits(&store).await.unwrap();
                Loader::open(store, &spec.unwrap(), &digits.dataset, LoaderLimits::default()).await.unwrap()
            });
            let ahead = Ahead::new(loader.clone(), runtime.handle().clone());
            let (file, memory) = memory();
            Self { runtime, loader, ahead, file, memory }
        }

        fn expect(&mut self, ranks: &[u16], step: u64) {
            let turns = ranks.iter().map(|rank| vec![Rank(*rank)]).collect();
            self.ahead.expect(turns, Step(step), &self.memory);
        }

        fn take(&mut self, rank: u16, step: u64) -> Option<Ready> {
            self.ahead.take(&[Rank(rank)], Step(step), &|| {})
        }

        fn takes(&mut self, rank: u16, step: u64) {
            self.takes_together(&[Rank(rank)], step);
        }

        /// Takes a batch that was made ahead; it is the one that is made when it is asked for.
        fn takes_together(&mut self, ranks: &[Rank], step: u64) {
            let ready = self.ahead.take(ranks, Step(step), &|| {}).expect("foreseen");
            let (file, memory) = memory();
            let read = |rank: &Rank| self.runtime.block_on(self.loader.samples(*rank, Step(step))).unwrap();
            let samples = ranks.iter().map(read).reduce(|mut samples, more| {
                samples.append(more);
                samples
            });
            memory.write(DIRECT_PLACE, &samples.unwrap()).unwrap();
            let [mut made, mut wanted] = [[0u8; PLACE_BYTES as usize]; 2];
            let bytes = BATCH_BYTES as usize * ranks.len();
            self.file.read_exact_at(&mut made[..bytes], ready._room.place as u64 * PLACE_BYTES).unwrap();
            file.read_exact_at(&mut wanted[..bytes], 0).unwrap();
            assert!(made == wanted && made.iter().any(|byte| *byte != 0), "{ranks:?}, step {step}");
        }
    }

    fn memory() -> (File, BatchMemory) {
        let file = tempfile::tempfile().unwrap();
        (file.try_clone().unwrap(), BatchMemory::new(file, PLACE_BYTES))
    }

    #[test]
    fn a_batch_made_ahead_is_the_one_that_is_asked_for() {
        let mut reader = Reader::new();
        for step in 0..STEPS {
            reader.expect(&[0, 1, 2], step);
            (0..WORKERS).for_each(|rank| reader.takes(rank, step));
        }
        reader.expect(&[0, 1, 2], STEPS);
        assert!(reader.take(0, STEPS).is_none(), "the job ends there");
    }

    #[test]
    fn rows_of_several_ranks_are_one_batch_where_they_are_asked_for_so() {
        let mut reader = Reader::new();
        let all = [0, 1, 2].map(Rank);
        reader.ahead.expect(vec![all.to_vec()], Step(0), &reader.memory);
        (0..3).for_each(|step| reader.takes_together(&all, step));
        let told = std::iter::repeat_with(|| reader.ahead.following()).flatten().next().unwrap();
        assert_eq!((told.rank, told.step), (Rank(0), Step(3)));
        assert!(reader.take(0, 3).is_none(), "nobody foresaw one rank alone");
        // Of another membership.
        reader.ahead.expect(vec![all[1..].to_vec()], Step(3), &reader.memory);
        reader.takes_together(&all[1..], 3);
        assert!(reader.ahead.take(&all, Step(4), &|| {}).is_none());
    }

    #[test]
    fn another_membership_another_place_and_another_process_begin_anew() {
        let mut reader = Reader::new();
        reader.expect(&[0, 1, 2], 0);
        reader.takes(0, 0);
        // The step is computed once more, then its second rank first.
        reader.takes(0, 0);
        reader.takes(2, 0);
        reader.takes(1, 0);
        reader.expect(&[1, 2], 1);
        reader.takes(1, 1);
        (reader.file, reader.memory) = memory();
        reader.expect(&[1, 2], 1);
        reader.takes(1, 1);
        reader.takes(2, 1);
        assert!(reader.take(0, 2).is_none(), "nobody foresaw it");
        reader.takes(1, 2);
    }

    #[test]
    fn what_lies_ready_is_told_before_it_is_taken_and_what_takes_its_place_is_another() {
        let mut reader = Reader::new();
        assert_eq!(reader.ahead.following(), None, "nothing is made");
        reader.expect(&[0, 1], 0);
        let held = reader.take(0, 0).unwrap();
        let told = std::iter::repeat_with(|| reader.ahead.following()).flatten().next().unwrap();
        assert_eq!((told.rank, told.step, reader.ahead.following()), (Rank(1), Step(0), Some(told)));
        drop(held);
        assert_eq!(reader.take(1, 0).unwrap().batch, told.batch);
        reader.takes(0, 1);
        let again = reader.take(1, 0).unwrap();
        assert_ne!(again.batch, told.batch, "made once more, it has a number of its own");
    }

    #[test]
    fn no_more_is_made_ahead_than_there_is_room_for() {
        let mut reader = Reader::new();
        reader.expect(&[0, 1, 2], 0);
        let held: Vec<Ready> = (0..WORKERS).map(|rank| reader.take(rank, 0).unwrap()).collect();
        let places: std::collections::BTreeSet<usize> = held.iter().map(|ready| ready._room.place).collect();
        assert_eq!(places.len(), AHEAD_PLACES, "none is used twice");
        assert!(reader.ahead.making.as_mut().unwrap().ready.try_recv().is_err());
        // Who waits is heard, and here that is what makes room.
        let held = Cell::new(Some(held));
        assert!(reader.ahead.take(&[Rank(0)], Step(1), &|| drop(held.take())).is_some() && held.take().is_none());
    }
}
