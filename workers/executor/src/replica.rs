//! The flat replica of one executor: which step it is of, the gradient that led there, and its arrival from peers.
//!
//! Shared by reference with whoever sends or saves it; an update that comes while somebody still reads works on a copy.

use crate::reduce::chunk;
use events_schema::Step;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use workers_engine::Update;
use workers_session::{Need, Tag};

/// How often an update looks whether the last reader let go before it copies the replica.
const READER_YIELDS: usize = 200;

/// What is on its way from peers.
#[derive(Debug)]
struct Supply {
    need: Need,
    tag: Tag,
    step: Step,
    buffer: Vec<f32>,
    /// Elements received of the parameters, and of the rest. Links keep order and peers send every element once.
    parameters: usize,
    moments: usize,
}

/// A peer sent elements that cannot be part of what is awaited. Cut the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("elements at {offset} do not fit what is awaited")]
pub struct UnfitSupply {
    /// Where they were to go.
    pub offset: u64,
}

/// One executor's replica.
#[derive(Debug)]
pub struct Replica {
    parameter_count: usize,
    len: usize,
    data: Arc<Vec<f32>>,
    step: Option<Step>,
    /// The mean gradient that led to `step`.
    gradient: Option<Arc<Vec<f32>>>,
    supply: Option<Supply>,
    /// Updates that had to copy first.
    pub copies: u64,
    /// How long updates waited for readers, or copied because of them: how long checkpoints and newcomers made training stand still.
    pub held: Duration,
}

impl Replica {
    /// None yet.
    #[must_use]
    pub fn new(update: &Update) -> Self {
        let (parameter_count, len) = (update.parameter_count(), update.replica_len());
        Self {
            parameter_count,
            len,
            data: Arc::default(),
            step: None,
            gradient: None,
            supply: None,
            copies: 0,
            held: Duration::ZERO,
        }
    }

    /// The step it is of, when it is whole.
    #[must_use]
    pub fn step(&self) -> Option<Step> {
        self.step
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

    /// The parameters at `step`, if they are here. They arrive before the rest, so that a newcomer can begin to compute.
    #[must_use]
    pub fn parameters(&self, step: Step) -> Option<&[f32]> {
        if let Some(supply) = &self.supply {
            let here = supply.need == Need::Replica && supply.step == step && supply.parameters == self.parameter_count;
            return here.then(|| &supply.buffer[..self.parameter_count]);
        }
        (self.step == Some(step)).then(|| &self.data[..self.parameter_count])
    }

    /// Takes a replica made or loaded here.
    pub fn load(&mut self, data: Vec<f32>, step: Step) {
        *self = Self { data: Arc::new(data), step: Some(step), gradient: None, supply: None, ..*self };
    }

    /// Awaits what is lacking to be at `step`.
    pub fn await_supply(&mut self, need: Need, tag: Tag, step: Step) {
        let len = match need {
            Need::Replica => {
                (self.step, self.gradient) = (None, None);
                self.data = Arc::default();
                self.len
            }
            Need::Gradient => self.parameter_count,
        };
        self.supply = Some(Supply { need, tag, step, buffer: vec![0.0; len], parameters: 0, moments: 0 });
    }

    /// Whether something is awaited for this membership and step.
    #[must_use]
    pub fn awaits(&self, need: Need, tag: Tag, step: Step) -> bool {
        self.supply.as_ref().is_some_and(|s| (s.need, s.tag, s.step) == (need, tag, step))
    }

    /// Nothing is awaited any more: the membership it came in is over.
    pub fn abandon_supply(&mut self) {
        self.supply = None;
    }

    /// Takes a stretch of what is awaited. Gives the step when it is complete and the replica is there.
    pub fn on_supply(&mut self, offset: u64, elements: &[f32], update: &Update) -> Result<Option<Step>, UnfitSupply> {
        let unfit = UnfitSupply { offset };
        let Some(supply) = &mut self.supply else { return Ok(None) };
        let start = usize::try_from(offset).map_err(|_| unfit)?;
        let place = supply.buffer.get_mut(start..).and_then(|b| b.get_mut(..elements.len())).ok_or(unfit)?;
        place.copy_from_slice(elements);
        let first = elements.len().min(self.parameter_count.saturating_sub(start));
        supply.parameters += first;
        supply.moments += elements.len() - first;
        let total = supply.parameters + supply.moments;
        if total > supply.buffer.len() {
            return Err(unfit);
        }
        if total < supply.buffer.len() {
            return Ok(None);
        }
        let Some(supply) = self.supply.take() else { return Ok(None) };
        match supply.need {
            Need::Replica => {
                self.data = Arc::new(supply.buffer);
                self.step = Some(supply.step);
            }
            Need::Gradient => {
                self.apply(update, supply.buffer);
            }
        }
        Ok(self.step)
    }

    /// Applies the mean gradient of the replica's step; the replica is then at the next. Gives the gradient before, as a buffer.
    pub fn apply(&mut self, update: &Update, mean: Vec<f32>) -> Vec<f32> {
        let Some(step) = self.step else { return mean };
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
        self.step = Some(step.next());
        let before = self.gradient.replace(Arc::new(mean));
        before.and_then(|g| Arc::try_unwrap(g).ok()).unwrap_or_default()
    }

    /// Part `index` of `count` of the replica: a stretch of the parameters, then one of the rest.
    #[must_use]
    pub fn part(&self, index: usize, count: usize) -> [Range<usize>; 2] {
        let moments = chunk(self.len - self.parameter_count, index, count);
        [
            chunk(self.parameter_count, index, count),
            moments.start + self.parameter_count..moments.end + self.parameter_count,
        ]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use events_schema::Generation;
    use events_schema::job::JobSpec;
    use workers_engine::ParameterInfo;

    const TAG: Tag = Tag { generation: Generation(2), revision: 0 };

    fn update() -> Update {
        let spec = serde_json::json!({"name": "x", "dataset": "x", "batch_size": 1, "steps": 9, "model": {"kind": "mlp"}, "optimizer": {"kind": "adamw"}});
        let info = [ParameterInfo { name: "w".to_owned(), shape: vec![7], offset: 0 }];
        Update::new(&JobSpec::parse(&spec).unwrap(), &info, 9)
    }

    fn trained(steps: usize) -> Replica {
        let update = update();
        let mut replica = Replica::new(&update);
        replica.load(update.initial_replica((0..7).map(|i| i as f32).collect()), Step(0));
        (0..steps).for_each(|s| drop(replica.apply(&update, vec![0.1 + s as f32; 7])));
        replica
    }

    #[test]
    fn a_newcomer_computes_once_the_parameters_are_there() {
        let (from, update) = (trained(3), update());
        let mut newcomer = Replica::new(&update);
        newcomer.await_supply(Need::Replica, TAG, Step(3));
        let data = from.shared();
        let parts: Vec<[Range<usize>; 2]> = (0..2).map(|i| from.part(i, 2)).collect();
        let mut give = |range: Range<usize>| newcomer.on_supply(range.start as u64, &data[range], &update).unwrap();
        assert_eq!(give(parts[1][0].clone()), None);
        assert_eq!(give(parts[1][1].clone()), None);
        assert_eq!(give(parts[0][0].clone()), None);
        assert_eq!(newcomer.parameters(Step(3)), Some(&data[..7]));
        assert_eq!((newcomer.step(), newcomer.parameters(Step(2))), (None, None));
        let last = parts[0][1].clone();
        assert_eq!(newcomer.on_supply(last.start as u64, &data[last], &update), Ok(Some(Step(3))));
        assert_eq!(*newcomer.shared(), *data);
    }

    #[test]
    fn a_laggard_gets_to_the_same_bits_by_the_gradient() {
        let (ahead, mut behind) = (trained(4), trained(3));
        behind.await_supply(Need::Gradient, TAG, Step(4));
        assert_eq!(behind.parameters(Step(3)), None, "nothing is computed before");
        let gradient = ahead.gradient().unwrap();
        assert_eq!(behind.on_supply(0, &gradient[..3], &update()), Ok(None));
        assert_eq!(behind.on_supply(3, &gradient[3..], &update()), Ok(Some(Step(4))));
        assert_eq!(*behind.shared(), *ahead.shared());
        assert_eq!(behind.gradient(), ahead.gradient(), "it can help others now");
    }

    #[test]
    fn an_abandoned_gradient_leaves_the_replica_where_it_was() {
        let mut behind = trained(3);
        behind.await_supply(Need::Gradient, TAG, Step(4));
        behind.on_supply(0, &[1.0; 3], &update()).unwrap();
        behind.abandon_supply();
        assert_eq!((behind.step(), behind.parameters(Step(3)).is_some()), (Some(Step(3)), true));
        assert_eq!(*behind.shared(), *trained(3).shared());
    }

    #[test]
    fn a_reader_keeps_what_it_reads() {
        let mut replica = trained(1);
        let reader = replica.shared();
        let before = reader.to_vec();
        replica.apply(&update(), vec![1.0; 7]);
        assert_eq!((*reader == before, replica.copies, replica.step()), (true, 1, Some(Step(2))));
        assert_eq!(*replica.shared(), {
            let mut alone = trained(1);
            alone.apply(&update(), vec![1.0; 7]);
            alone.shared().to_vec()
        });
    }

    #[test]
    fn elements_beyond_the_replica_are_refused() {
        let mut newcomer = Replica::new(&update());
        newcomer.await_supply(Need::Replica, TAG, Step(1));
        assert!(newcomer.on_supply(20, &[0.0; 2], &update()).is_err());
        assert!(newcomer.on_supply(u64::MAX, &[0.0; 2], &update()).is_err());
    }
}
