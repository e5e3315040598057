//! The flat replica of one executor, as bytes: what is whole, what is arriving, and the gradient that led there. Which step it is of and what
//! is missing is known to `workers-member`.
//!
//! Shared by reference with whoever sends or saves it; an update waits for who is soon done with reading, and works on a copy for anybody else.

use crate::buffers::Pool;
use crate::mean::{Given, Mean};
use crate::program::ProgramError;
use crate::stretch::Stretch;
use crate::workload::{Version, View, Workload};
use events_schema::Step;
use events_schema::stride::Stride;
use std::convert::Infallible;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use storage::checkpoint::Checksum;
use workers_engine::Update;
use workers_session::ReplicaChecksum;
use workers_torch::{Lengths, ReplicaReader};

/// Elements of another process' replica that are read at once for its checksum: 1 MiB, which fits into a cache.
const STRETCH_ELEMENTS: usize = 1 << 18;
/// How often an update looks whether the last reader let go before it copies the replica.
const READER_YIELDS: usize = 200;

/// One executor's replica.
#[derive(Debug)]
pub struct Replica {
    lengths: Lengths,
    /// Empty while only the workload has it.
    data: Arc<Vec<f32>>,
    /// Whether only the workload has it.
    elsewhere: bool,
    /// Of `data`, or of what is on its way.
    version: Version,
    /// The mean gradient that led there, or that is applied next.
    gradient: Option<Mean>,
    /// Where gradients that come are put together, if the update reads one vector only.
    gradients: Option<Pool>,
    /// What is on its way from peers.
    supply: Option<Supply>,
    /// Each ends when somebody who soon lets go of `data` has done so.
    readers: Vec<Receiver<Infallible>>,
    /// Into which it is read where only the workload has it, the next time.
    pub spare: Option<Vec<f32>>,
    /// Made or read here, and not yet adopted.
    loaded: Vec<f32>,
    /// Updates that had to copy first.
    pub copies: u64,
    /// How long updates waited for readers or copied because of them, and how long it took to read the replica out of another process: how long checkpoints and newcomers
    /// made training stand still.
    pub held: Duration,
}

/// Held by somebody who reads the replica, for as long as that: until it is dropped the next update waits.
#[derive(Debug, Default)]
pub struct Reading {
    _until: Option<Sender<Infallible>>,
}

/// A replica for who reads it beside the training.
#[derive(Debug)]
pub enum Readable {
    /// In this process' memory.
    Here {
        /// All of it.
        replica: Arc<Vec<f32>>,
        /// Goes with it.
        _reading: Reading,
    },
    /// In the memory of the process that computes.
    OfProcess(ReplicaReader),
}

impl Readable {
    /// One that may be read for as long as that takes.
    #[must_use]
    pub fn kept(replica: Arc<Vec<f32>>) -> Self {
        Self::Here { replica, _reading: Reading::default() }
    }

    /// Its elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        match self {
            Self::Here { replica, .. } => replica.len(),
            Self::OfProcess(reader) => reader.len(),
        }
    }

    /// Copies those of a range, which lies within it, to the end of `copy`.
    pub fn copy(&self, range: Range<usize>, copy: &mut Vec<f32>) -> io::Result<()> {
        match self {
            Self::Here { replica, .. } => copy.extend_from_slice(&replica[range]),
            Self::OfProcess(reader) => {
                let (begun, start) = (copy.len(), range.start);
                copy.resize(begun + range.len(), 0.0);
                reader.read(start, &mut copy[begun..])?;
            }
        }
        Ok(())
    }

    /// The checksum of all of it.
    pub fn checksum(&self) -> io::Result<ReplicaChecksum> {
        match self {
            Self::Here { replica, .. } => Ok(ReplicaChecksum(Checksum::of(replica))),
            Self::OfProcess(_) => self.checksum_with(0..0, &[]),
        }
    }

    /// The same with this copy in the place of what it is of: what went wrong in copying shows.
    pub fn checksum_with(&self, copied: Range<usize>, copy: &[f32]) -> io::Result<ReplicaChecksum> {
        let mut checksum = Checksum::default();
        self.add(0..copied.start, &mut checksum)?;
        checksum.add(copy);
        self.add(copied.end..self.elements(), &mut checksum)?;
        Ok(ReplicaChecksum(checksum.finish()))
    }

    fn add(&self, range: Range<usize>, checksum: &mut Checksum) -> io::Result<()> {
        if let Self::Here { replica, .. } = self {
            checksum.add(&replica[range]);
            return Ok(());
        }
        let mut stretch = Vec::new();
        for start in range.clone().step_by(STRETCH_ELEMENTS) {
            stretch.clear();
            self.copy(start..range.end.min(start + STRETCH_ELEMENTS), &mut stretch)?;
            checksum.add(&stretch);
        }
        Ok(())
    }

    /// All of it in this process' memory.
    pub fn into_shared(self) -> io::Result<Arc<Vec<f32>>> {
        match self {
            Self::Here { replica, .. } => Ok(replica),
            Self::OfProcess(_) => {
                let mut copy = Vec::new();
                self.copy(0..self.elements(), &mut copy)?;
                Ok(Arc::new(copy))
            }
        }
    }
}

/// Elements that peers send; those that are not there yet are anything.
#[derive(Debug)]
enum Supply {
    Replica(Vec<f32>),
    Gradient(Mean),
}

impl Replica {
    /// None yet, of what this workload trains; gradients that have to be in one vector will lie in buffers of this pool.
    #[must_use]
    pub fn new(workload: &Workload, gradients: Pool) -> Self {
        Self {
            lengths: workload.lengths(),
            data: Arc::default(),
            elsewhere: false,
            version: Version::default(),
            gradient: None,
            gradients: workload.reads_one_vector().then_some(gradients),
            supply: None,
            readers: Vec::new(),
            spare: None,
            loaded: Vec::new(),
            copies: 0,
            held: Duration::ZERO,
        }
    }

    /// The whole of it, for reading beside the training.
    pub fn shared(&mut self, workload: &mut Workload) -> Result<Arc<Vec<f32>>, ProgramError> {
        if let (true, Workload::Torch(torch)) = (self.elsewhere, workload) {
            let begun = Instant::now();
            self.data = Arc::new(torch.read_replica(self.spare.take())?);
            self.held += begun.elapsed();
            self.elsewhere = false;
        }
        Ok(Arc::clone(&self.data))
    }

    /// Somebody reads what is shared who is done before an update could copy it.
    pub fn read(&mut self) -> Reading {
        let (reading, reader) = channel();
        self.readers.push(reader);
        Reading { _until: Some(reading) }
    }

    /// The whole of it, for somebody who reads it beside the training and is soon done: where it lies.
    pub fn readable(&mut self, workload: &mut Workload) -> Result<Readable, ProgramError> {
        match workload {
            Workload::Torch(torch) if self.elsewhere => Ok(Readable::OfProcess(torch.replica_reader()?)),
            _ => Ok(Readable::Here { replica: Arc::clone(&self.data), _reading: self.read() }),
        }
    }

    /// A range of the last mean gradient, for being sent.
    pub fn give_gradient(&mut self, range: Range<usize>, pieces: &Pool) -> Vec<Given> {
        self.gradient.as_mut().map_or_else(Vec::new, |gradient| gradient.give(range, pieces))
    }

    /// What to compute with: of a replica that is arriving, if one is, the beginning. It arrives before the rest, so that a newcomer can
    /// begin to compute.
    #[must_use]
    pub fn view(&self) -> View<'_> {
        let elements = match &self.supply {
            Some(Supply::Replica(supply)) => &supply[..self.lengths.compute.min(supply.len())],
            _ => &*self.data,
        };
        View { elements, version: self.version }
    }

    /// Its contents become others.
    fn next_version(&mut self) {
        self.version.0 += 1;
    }

    /// Keeps a replica made or read here until it is adopted.
    pub fn load(&mut self, data: Vec<f32>) {
        self.loaded = data;
    }

    /// What was loaded is the replica.
    pub fn adopt(&mut self) {
        self.next_version();
        self.data = Arc::new(std::mem::take(&mut self.loaded));
        (self.gradient, self.supply, self.elsewhere) = (None, None, false);
    }

    /// A replica comes from peers, into `room` if there is such.
    pub fn expect(&mut self, room: Option<Vec<f32>>) {
        (self.data, self.gradient, self.elsewhere) = (Arc::default(), None, false);
        self.next_version();
        let room = room.filter(|room| room.len() == self.lengths.replica);
        self.supply = Some(Supply::Replica(room.unwrap_or_else(|| vec![0.0; self.lengths.replica])));
    }

    /// A gradient comes from peers.
    pub fn expect_gradient(&mut self) {
        let one = self.gradients.as_ref().map(|gradients| gradients.take().into());
        self.supply = Some(Supply::Gradient(one.unwrap_or_default()));
    }

    /// What comes is of no use any more.
    pub fn unexpect(&mut self) {
        self.supply = None;
    }

    /// Takes a stretch of what is supplied.
    pub fn fill(&mut self, offset: usize, elements: Stretch) {
        match (&mut self.supply, elements) {
            (Some(Supply::Replica(replica)), elements) => {
                if let Some(place) = replica.get_mut(offset..offset + elements.len()) {
                    place.copy_from_slice(&elements);
                }
            }
            (Some(Supply::Gradient(mean)), elements) => mean.put(offset, elements),
            (None, _) => {}
        }
    }

    /// What was supplied is the replica.
    pub fn supplied(&mut self) {
        self.next_version();
        self.data = match self.supply.take() {
            Some(Supply::Replica(replica)) => Arc::new(replica),
            _ => Arc::default(),
        };
    }

    /// The gradient that was supplied is the one that is applied next.
    pub fn take_gradient(&mut self) {
        self.gradient = match self.supply.take() {
            Some(Supply::Gradient(mean)) => Some(mean),
            _ => None,
        };
    }

    /// This mean gradient is applied next; peers may be sent it before that is done.
    pub fn keep_gradient(&mut self, mean: impl Into<Mean>) {
        self.gradient = Some(mean.into());
    }

    /// Applies the mean gradient that was kept: of `step` and of those after it that are taken at once.
    pub fn apply(&mut self, workload: &mut Workload, (step, stride): (Step, Stride)) -> Result<(), ProgramError> {
        let mean = self.gradient.take().unwrap_or_default();
        match workload {
            Workload::Native { update, .. } => {
                self.apply_in_place(update, &mean, step, stride);
                self.next_version();
                self.gradient = Some(mean);
            }
            Workload::Torch(torch) => {
                let after = Version(self.version.0 + 1);
                // It is changed elsewhere, and what others read here stays as it is; who reads it there is soon done.
                self.readers.clear();
                let begun = Instant::now();
                torch.release_replica();
                self.held += begun.elapsed();
                let mean = torch.apply(self.view(), mean.into_one(), (step, stride), after)?;
                self.gradient = Some(mean.into());
                (self.version, self.data, self.elsewhere) = (after, Arc::default(), true);
            }
        }
        Ok(())
    }

    fn apply_in_place(&mut self, update: &Update, mean: &Mean, step: Step, stride: Stride) {
        let begun = Instant::now();
        // They are soon done; a copy of all of it would take longer than what is left of theirs.
        for reader in self.readers.drain(..) {
            let _ = reader.recv();
        }
        // A writer that has just sent the last piece is about to let go.
        for _ in 0..READER_YIELDS {
            if Arc::strong_count(&self.data) == 1 {
                break;
            }
            std::thread::yield_now();
        }
        self.copies += u64::from(Arc::strong_count(&self.data) > 1);
        let data: &mut Vec<f32> = Arc::make_mut(&mut self.data);
        self.held += begun.elapsed();
        mean.apply(update, data, step, stride);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::buffers::Buffer;

    impl Replica {
        /// A range of the last mean gradient, as others are sent it.
        pub(crate) fn gradient_of(&mut self, range: Range<usize>) -> Vec<f32> {
            let given = self.give_gradient(range, &Pool::of_pieces());
            given.into_iter().flat_map(|given| given.data[given.range].to_vec()).collect()
        }
    }
    use events_schema::dataset::SampleShape;
    use events_schema::job::JobSpec;

    fn workload() -> Workload {
        let spec = serde_json::json!({"name": "x", "dataset": "x", "batch_size": 1, "steps": 9, "model": {"kind": "mlp", "hidden": []}, "optimizer": {"kind": "adamw"}});
        let spec = JobSpec::parse(&spec).unwrap();
        let engine = workers_engine::build(&spec, &SampleShape::Classified { shape: vec![3], classes: 2 }).unwrap();
        let update = Update::new(&spec, engine.parameter_info(), 9);
        Workload::Native { engine, update }
    }

    fn trained(steps: u64) -> Replica {
        let mut workload = workload();
        let (mut replica, elements) = (Replica::new(&workload, workload.pool()), workload.lengths().gradient);
        replica.load(workload.initial_replica().unwrap());
        replica.adopt();
        for s in 0..steps {
            replica.keep_gradient(Buffer::from(vec![0.1 + s as f32; elements]));
            replica.apply(&mut workload, (Step(s), Stride::ONE)).unwrap();
        }
        replica
    }

    fn step_by_ones(replica: &mut Replica, step: u64) {
        replica.keep_gradient(Buffer::from(vec![1.0; 8]));
        replica.apply(&mut workload(), (Step(step), Stride::ONE)).unwrap();
    }

    fn whole(replica: &mut Replica) -> Arc<Vec<f32>> {
        replica.shared(&mut workload()).unwrap()
    }

    #[test]
    fn a_newcomer_has_the_parameters_before_the_rest() {
        let (mut from, mut newcomer) = (trained(3), Replica::new(&workload(), workload().pool()));
        newcomer.expect(None);
        let data = whole(&mut from);
        newcomer.fill(0, data[..8].to_vec().into());
        assert_eq!(newcomer.view().elements, &data[..8]);
        newcomer.fill(8, data[8..].to_vec().into());
        newcomer.supplied();
        assert_eq!(whole(&mut newcomer), data);
    }

    #[test]
    fn a_laggard_gets_to_the_same_bits_by_the_gradient() {
        let (mut ahead, mut behind) = (trained(4), trained(3));
        behind.expect_gradient();
        let gradient = ahead.gradient_of(0..8);
        behind.fill(0, gradient[..3].to_vec().into());
        behind.fill(3, gradient[3..].to_vec().into());
        behind.take_gradient();
        behind.apply(&mut workload(), (Step(3), Stride::ONE)).unwrap();
        assert_eq!(whole(&mut behind), whole(&mut ahead));
        assert_eq!(behind.gradient_of(0..8), ahead.gradient_of(0..8), "it can help others now");
    }

    #[test]
    fn a_reader_keeps_what_it_reads() {
        let mut replica = trained(1);
        let reader = whole(&mut replica);
        let before = reader.to_vec();
        step_by_ones(&mut replica, 1);
        assert_eq!((*reader == before, replica.copies), (true, 1));
        let mut alone = trained(1);
        step_by_ones(&mut alone, 1);
        assert_eq!(whole(&mut replica), whole(&mut alone));
    }

    #[test]
    fn an_update_waits_for_a_copy_and_makes_none_of_its_own() {
        let mut replica = trained(1);
        let (data, reading) = (whole(&mut replica), replica.read());
        let copier = std::thread::spawn(move || {
            let copy = data.to_vec();
            drop((data, reading));
            copy
        });
        step_by_ones(&mut replica, 1);
        assert_eq!((copier.join().unwrap(), replica.copies), (whole(&mut trained(1)).to_vec(), 0));
    }

    #[test]
    fn a_copy_that_is_not_what_it_is_of_shows_in_the_checksum() {
        let elements: Vec<f32> = (0..900).map(|at| at as f32).collect();
        let (copied, replica) = (200..500, Readable::kept(Arc::new(elements.clone())));
        let mut copy = elements[copied.clone()].to_vec();
        assert_eq!(replica.checksum_with(copied.clone(), &copy).unwrap(), replica.checksum().unwrap());
        copy[7] = f32::from_bits(copy[7].to_bits() ^ 1);
        assert_ne!(replica.checksum_with(copied, &copy).unwrap(), replica.checksum().unwrap());
        assert_eq!(replica.checksum_with(0..0, &[]).unwrap(), replica.checksum().unwrap());
    }

    #[test]
    fn other_contents_have_another_version() {
        let mut replica = trained(0);
        let mut versions = vec![replica.view().version];
        step_by_ones(&mut replica, 0);
        versions.push(replica.view().version);
        replica.expect(None);
        versions.push(replica.view().version);
        replica.supplied();
        versions.push(replica.view().version);
        replica.load(vec![0.0; 24]);
        replica.adopt();
        versions.push(replica.view().version);
        assert!(versions.is_sorted_by(|a, b| a < b), "{versions:?}");
    }
}
