//! The flat replica of one executor, as bytes: what is whole, what is arriving, and the gradient that led there. Which step it is of and what
//! is missing is known to `workers-member`.
//!
//! Shared by reference with whoever sends or saves it; an update that comes while somebody still reads works on a copy.

use events_schema::Step;
use std::sync::Arc;
use std::time::{Duration, Instant};
use workers_engine::Update;
use workers_member::Need;

/// How often an update looks whether the last reader let go before it copies the replica.
const READER_YIELDS: usize = 200;

/// One executor's replica.
#[derive(Debug)]
pub struct Replica {
    parameter_count: usize,
    len: usize,
    data: Arc<Vec<f32>>,
    /// The mean gradient that led there.
    gradient: Option<Arc<Vec<f32>>>,
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
    pub fn new(update: &Update) -> Self {
        Self {
            parameter_count: update.parameter_count(),
            len: update.replica_len(),
            data: Arc::default(),
            gradient: None,
            supply: None,
            loaded: Vec::new(),
            copies: 0,
            held: Duration::ZERO,
        }
    }

    /// The whole of it, for reading beside the training.
    #[must_use]
    pub fn shared(&self) -> Arc<Vec<f32>> {
        Arc::clone(&self.data)
    }

    /// The last mean gradient.
    #[must_use]
    pub fn gradient(&self) -> Option<Arc<Vec<f32>>> {
        self.gradient.clone()
    }

    /// The parameters: of a replica that is arriving, if one is. They arrive before the rest, so that a newcomer can begin to compute.
    #[must_use]
    pub fn parameters(&self) -> &[f32] {
        let whole = match &self.supply {
            Some((Need::Replica, supply)) => supply,
            _ => &*self.data,
        };
        &whole[..self.parameter_count.min(whole.len())]
    }

    /// Keeps a replica made or read here until it is adopted.
    pub fn load(&mut self, data: Vec<f32>) {
        self.loaded = data;
    }

    /// What was loaded is the replica.
    pub fn adopt(&mut self) {
        self.data = Arc::new(std::mem::take(&mut self.loaded));
        (self.gradient, self.supply) = (None, None);
    }

    /// Has room for what peers supply.
    pub fn expect(&mut self, need: Need) {
        let len = match need {
            Need::Replica => {
                (self.data, self.gradient) = (Arc::default(), None);
                self.len
            }
            Need::Gradient => self.parameter_count,
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
        self.data = Arc::new(self.take_supply());
    }

    /// Takes out what was supplied.
    pub fn take_supply(&mut self) -> Vec<f32> {
        self.supply.take().map(|(_, supply)| supply).unwrap_or_default()
    }

    /// Applies the mean gradient of `step`. Gives the gradient before, as a buffer.
    pub fn apply(&mut self, update: &Update, mean: Vec<f32>, step: Step) -> Vec<f32> {
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
        update.apply(data, &mean, step);
        let before = self.gradient.replace(Arc::new(mean));
        before.and_then(|g| Arc::try_unwrap(g).ok()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use events_schema::job::JobSpec;
    use workers_engine::ParameterInfo;

    fn update() -> Update {
        let spec = serde_json::json!({"name": "x", "dataset": "x", "batch_size": 1, "steps": 9, "model": {"kind": "mlp"}, "optimizer": {"kind": "adamw"}});
        let info = [ParameterInfo { name: "w".to_owned(), shape: vec![7], offset: 0 }];
        Update::new(&JobSpec::parse(&spec).unwrap(), &info, 9)
    }

    fn trained(steps: u64) -> Replica {
        let update = update();
        let mut replica = Replica::new(&update);
        replica.load(update.initial_replica((0..7).map(|i| i as f32).collect()));
        replica.adopt();
        (0..steps).for_each(|s| drop(replica.apply(&update, vec![0.1 + s as f32; 7], Step(s))));
        replica
    }

    #[test]
    fn a_newcomer_has_the_parameters_before_the_rest() {
        let (from, mut newcomer) = (trained(3), Replica::new(&update()));
        newcomer.expect(Need::Replica);
        let data = from.shared();
        newcomer.fill(0, &data[..7]);
        assert_eq!(newcomer.parameters(), &data[..7]);
        newcomer.fill(7, &data[7..]);
        newcomer.supplied();
        assert_eq!(*newcomer.shared(), *data);
    }

    #[test]
    fn a_laggard_gets_to_the_same_bits_by_the_gradient() {
        let (ahead, mut behind) = (trained(4), trained(3));
        behind.expect(Need::Gradient);
        let gradient = ahead.gradient().unwrap();
        behind.fill(0, &gradient[..3]);
        behind.fill(3, &gradient[3..]);
        let mean = behind.take_supply();
        behind.apply(&update(), mean, Step(3));
        assert_eq!(*behind.shared(), *ahead.shared());
        assert_eq!(behind.gradient(), ahead.gradient(), "it can help others now");
    }

    #[test]
    fn a_reader_keeps_what_it_reads() {
        let mut replica = trained(1);
        let reader = replica.shared();
        let before = reader.to_vec();
        replica.apply(&update(), vec![1.0; 7], Step(1));
        assert_eq!((*reader == before, replica.copies), (true, 1));
        let mut alone = trained(1);
        alone.apply(&update(), vec![1.0; 7], Step(1));
        assert_eq!(*replica.shared(), *alone.shared());
    }
}
