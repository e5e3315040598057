//! The flat replica of one executor, as bytes: what is whole, what is arriving, and the gradient that led there. Which step it is of and what
//! is missing is known to `workers-member`.
//!
//! Shared by reference with whoever sends or saves it; an update that comes while somebody still reads works on a copy.

use crate::buffers::Buffer;
use crate::program::ProgramError;
use crate::workload::{Version, View, Workload};
use events_schema::Step;
use std::sync::Arc;
use std::time::{Duration, Instant};
use workers_engine::Update;
use workers_member::Need;
use workers_torch::Lengths;

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
    /// The mean gradient that led there.
    gradient: Option<Arc<Buffer>>,
    /// What is on its way from peers.
    supply: Option<(Need, Vec<f32>)>,
    /// Made or read here, and not yet adopted.
    loaded: Vec<f32>,
    /// Updates that had to copy first.
    pub copies: u64,
    /// How long updates waited for readers, or copied because of them: how long checkpoints and newcomers made training stand still.
    pub held: Duration,
}

impl Replica {
    /// None yet.
    #[must_use]
    pub fn new(lengths: Lengths) -> Self {
        Self {
            lengths,
            data: Arc::default(),
            elsewhere: false,
            version: Version::default(),
            gradient: None,
            supply: None,
            loaded: Vec::new(),
            copies: 0,
            held: Duration::ZERO,
        }
    }

    /// The whole of it, for reading beside the training.
    pub fn shared(&mut self, workload: &mut Workload) -> Result<Arc<Vec<f32>>, ProgramError> {
        if let (true, Workload::Torch(torch)) = (self.elsewhere, workload) {
            self.data = Arc::new(torch.read_replica()?);
            self.elsewhere = false;
        }
        Ok(Arc::clone(&self.data))
    }

    /// The last mean gradient.
    #[must_use]
    pub fn gradient(&self) -> Option<Arc<Buffer>> {
        self.gradient.clone()
    }

    /// What to compute with: of a replica that is arriving, if one is, the beginning. It arrives before the rest, so that a newcomer can
    /// begin to compute.
    #[must_use]
    pub fn view(&self) -> View<'_> {
        let elements = match &self.supply {
            Some((Need::Replica, supply)) => &supply[..self.lengths.compute.min(supply.len())],
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

    /// Has room for what peers supply.
    pub fn expect(&mut self, need: Need) {
        let len = match need {
            Need::Replica => {
                (self.data, self.gradient, self.elsewhere) = (Arc::default(), None, false);
                self.next_version();
                self.lengths.replica
            }
            Need::Gradient => self.lengths.gradient,
        };
        self.supply = Some((need, vec![0.0; len]));
    }

    /// Takes a stretch of what is supplied.
    pub fn fill(&mut self, offset: usize, elements: &[f32]) {
        let place = self.supply.as_mut().and_then(|(_, supply)| supply.get_mut(offset..offset + elements.len()));
        if let Some(place) = place {
            place.copy_from_slice(elements);
        }
    }

    /// What was supplied is the replica.
    pub fn supplied(&mut self) {
        self.next_version();
        self.data = Arc::new(self.take_supply());
    }

    /// Takes out what was supplied.
    pub fn take_supply(&mut self) -> Vec<f32> {
        self.supply.take().map(|(_, supply)| supply).unwrap_or_default()
    }

    /// Applies the mean gradient of `step`.
    pub fn apply(&mut self, workload: &mut Workload, mean: Buffer, step: Step) -> Result<(), ProgramError> {
        match workload {
            Workload::Native { update, .. } => {
                self.apply_in_place(update, &mean, step);
                self.next_version();
                self.gradient = Some(Arc::new(mean));
            }
            Workload::Torch(torch) => {
                let after = Version(self.version.0 + 1);
                let mean = torch.apply(self.view(), mean, step, after)?;
                self.gradient = Some(Arc::new(mean));
                (self.version, self.data, self.elsewhere) = (after, Arc::default(), true);
            }
        }
        Ok(())
    }

    fn apply_in_place(&mut self, update: &Update, mean: &[f32], step: Step) {
        let begun = Instant::now();
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
        update.apply(data, mean, step);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use events_schema::dataset::SampleShape;
    use events_schema::job::JobSpec;

    fn workload() -> Workload {
        let spec = serde_json::json!({"name": "x", "dataset": "x", "batch_size": 1, "steps": 9, "model": {"kind": "mlp", "hidden": []}, "optimizer": {"kind": "adamw"}});
        let spec = JobSpec::parse(&spec).unwrap();
        let engine = workers_engine::build(&spec, &SampleShape::Classified { shape: vec![3], classes: 2 }).unwrap();
        let update = Update::new(&spec, engine.parameter_info(), 9);
        Workload::Native { engine, update, gradient_at_least: Duration::ZERO }
    }

    fn trained(steps: u64) -> Replica {
        let mut workload = workload();
        let (mut replica, elements) = (Replica::new(workload.lengths()), workload.lengths().gradient);
        replica.load(workload.initial_replica().unwrap());
        replica.adopt();
        for s in 0..steps {
            replica.apply(&mut workload, vec![0.1 + s as f32; elements].into(), Step(s)).unwrap();
        }
        replica
    }

    fn whole(replica: &mut Replica) -> Arc<Vec<f32>> {
        replica.shared(&mut workload()).unwrap()
    }

    #[test]
    fn a_newcomer_has_the_parameters_before_the_rest() {
        let (mut from, mut newcomer) = (trained(3), Replica::new(workload().lengths()));
        newcomer.expect(Need::Replica);
        let data = whole(&mut from);
        newcomer.fill(0, &data[..8]);
        assert_eq!(newcomer.view().elements, &data[..8]);
        newcomer.fill(8, &data[8..]);
        newcomer.supplied();
        assert_eq!(whole(&mut newcomer), data);
    }

    #[test]
    fn a_laggard_gets_to_the_same_bits_by_the_gradient() {
        let (mut ahead, mut behind) = (trained(4), trained(3));
        behind.expect(Need::Gradient);
        let gradient = ahead.gradient().unwrap();
        behind.fill(0, &gradient[..3]);
        behind.fill(3, &gradient[3..]);
        let mean = behind.take_supply();
        behind.apply(&mut workload(), mean.into(), Step(3)).unwrap();
        assert_eq!(whole(&mut behind), whole(&mut ahead));
        assert_eq!(**behind.gradient().unwrap(), **ahead.gradient().unwrap(), "it can help others now");
    }

    #[test]
    fn a_reader_keeps_what_it_reads() {
        let mut replica = trained(1);
        let reader = whole(&mut replica);
        let before = reader.to_vec();
        replica.apply(&mut workload(), vec![1.0; 8].into(), Step(1)).unwrap();
        assert_eq!((*reader == before, replica.copies), (true, 1));
        let mut alone = trained(1);
        alone.apply(&mut workload(), vec![1.0; 8].into(), Step(1)).unwrap();
        assert_eq!(whole(&mut replica), whole(&mut alone));
    }

    #[test]
    fn other_contents_have_another_version() {
        let mut replica = trained(0);
        let mut versions = vec![replica.view().version];
        replica.apply(&mut workload(), vec![1.0; 8].into(), Step(0)).unwrap();
        versions.push(replica.view().version);
        replica.expect(Need::Replica);
        versions.push(replica.view().version);
        replica.supplied();
        versions.push(replica.view().version);
        replica.load(vec![0.0; 24]);
        replica.adopt();
        versions.push(replica.view().version);
        assert!(versions.is_sorted_by(|a, b| a < b), "{versions:?}");
    }
}
