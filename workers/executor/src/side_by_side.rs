//! Gradients of several ranks of a step at once, a thread each, where a slot has cores for that and the model is one of Ebb's.
//!
//! A gradient is a function of replica, rank and step alone, so no bit depends on who computes it, or when. The one that is asked for is computed by whoever asks, those of the
//! ranks that follow it by others meanwhile, and they lie ready when they are asked for. Nobody else knows: what is not asked for any more is dropped.
//! Beside what a step holds anyhow, each thread more holds a gradient, the samples of a rank and the activations of a model.

use crate::buffers::Buffer;
use crate::program::ProgramError;
use crate::workload::Version;
use events_schema::Rank;
use events_schema::dataset::{SampleShape, Samples};
use events_schema::job::JobSpec;
use std::time::{Duration, Instant};
use workers_engine::{Engine, EngineError, RandomKey, Sums};

/// Threads of one executor at most: each holds a gradient and activations; and a unit may take eight times as long as the slowest known one, while of several that
/// end within one word of life each counts as its part of the time (`controller/core/src/watch.rs`).
pub const THREADS_MAX: u16 = 8;
/// A gradient that is shorter is worth no thread: starting one takes 20 to 50 µs, and it finds nothing in its core's caches.
const WORTH: Duration = Duration::from_millis(1);

/// What computes the ranks that follow.
pub(crate) struct SideBySide {
    /// One for each thread beside the one that asks.
    engines: Vec<Box<dyn Engine>>,
    /// The ranks of a step, in the order in which they are asked for.
    order: Vec<Rank>,
    ready: Vec<Ready>,
    /// How long a gradient took the last time.
    took: Duration,
}

/// A gradient that was not asked for yet.
struct Ready {
    of: (Version, RandomKey),
    gradient: Buffer,
    sums: Result<Sums, EngineError>,
    took: Duration,
}

/// A gradient that lay ready, and how long it took.
type Taken = (Result<(Buffer, Sums), EngineError>, Duration);

/// A gradient that is asked for: with which parameters, of what, and where it goes.
pub(crate) struct Asked<'a> {
    pub engine: &'a mut dyn Engine,
    pub parameters: &'a [f32],
    pub version: Version,
    pub key: RandomKey,
    pub samples: &'a Samples,
    pub gradient: &'a mut Buffer,
}

impl SideBySide {
    /// For a job of which up to `threads` gradients are computed at once; none if one thread is as good.
    pub fn new(spec: &JobSpec, sample: &SampleShape, threads: usize) -> Result<Option<Self>, ProgramError> {
        let beside = threads.min(THREADS_MAX.into()).min(spec.workers.max.into()).saturating_sub(1);
        let engines: Result<Vec<_>, _> = (0..beside).map(|_| workers_engine::build(spec, sample)).collect();
        let engines = engines?;
        let of = |engines| Self { engines, order: Vec::new(), ready: Vec::new(), took: Duration::ZERO };
        Ok((beside > 0).then(|| of(engines)))
    }

    /// These ranks are asked for, in this order, in each step from now on.
    pub fn expect(&mut self, ranks: &[Rank]) {
        self.order = ranks.to_vec();
    }

    /// The gradient, if it lies ready. What lies ready of something else is not asked for any more.
    pub fn take(&mut self, version: Version, key: RandomKey) -> Option<Taken> {
        self.ready.retain(|ready| ready.of.0 == version && ready.of.1.step == key.step);
        let place = self.ready.iter().position(|ready| ready.of == (version, key))?;
        let Ready { gradient, sums, took, .. } = self.ready.remove(place);
        Some((sums.map(|sums| (gradient, sums)), took))
    }

    /// The ranks that are computed beside this one.
    pub fn beside(&self, rank: Rank) -> &[Rank] {
        let next = self.order.iter().position(|one| *one == rank).map_or(self.order.len(), |place| place + 1);
        let count = if self.took < WORTH { 0 } else { self.engines.len() };
        &self.order[next..(next + count).min(self.order.len())]
    }

    /// Computes what is asked for here, and the gradients of others' samples meanwhile.
    pub fn gradient(&mut self, asked: Asked<'_>, others: Vec<(Rank, Samples)>) -> Result<Sums, EngineError> {
        let Asked { engine, parameters, version, key, samples, gradient } = asked;
        let mut prepared: Vec<(RandomKey, Samples, Buffer)> = others
            .into_iter()
            .map(|(rank, samples)| (RandomKey { rank, ..key }, samples, gradient.another()))
            .collect();
        let begun = Instant::now();
        let (sums, beside) = std::thread::scope(|scope| {
            let pairs = self.engines.iter_mut().zip(&mut prepared);
            let threads = pairs.map(|(engine, (key, samples, buffer))| {
                let (key, samples) = (*key, &*samples);
                let computing = move || {
                    let begun = Instant::now();
                    (engine.gradient(parameters, samples, key, buffer), begun.elapsed())
                };
                let thread = std::thread::Builder::new().name(format!("ebb-rank-{}", key.rank));
                thread.spawn_scoped(scope, computing).ok()
            });
            let threads: Vec<_> = threads.collect();
            let sums = engine.gradient(parameters, samples, key, gradient);
            // A thread that panics ends the process before this.
            let ended = threads.into_iter().map(|thread| thread.and_then(|thread| thread.join().ok()));
            (sums, ended.collect::<Vec<_>>())
        });
        self.took = begun.elapsed();
        // Who could not be given a thread is computed when it is asked for.
        let computed = prepared.into_iter().zip(beside);
        self.ready.extend(computed.filter_map(|((key, _, gradient), computed)| {
            let (sums, took) = computed?;
            Some(Ready { of: (version, key), gradient, sums, took })
        }));
        sums
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::buffers::Pool;
    use events_schema::Step;
    use serde_json::json;

    const RANKS: [Rank; 5] = [Rank(1), Rank(3), Rank(4), Rank(6), Rank(7)];

    fn spec() -> JobSpec {
        let document = json!({
            "name": "beside", "model": {"kind": "mlp", "hidden": [300]}, "dataset": "digits", "batch_size": 4, "steps": 3,
            "workers": {"max": 8},
        });
        JobSpec::parse(&document).unwrap()
    }

    fn shape() -> SampleShape {
        SampleShape::Classified { shape: vec![64], classes: 10 }
    }

    fn samples(rank: Rank) -> Samples {
        let features = (0..4 * 64).map(|index| ((index * 7 + usize::from(rank.0) * 13) % 17) as f32 / 17.0).collect();
        Samples::Classified { features, labels: vec![0, 3, u32::from(rank.0), 9] }
    }

    fn key(rank: Rank) -> RandomKey {
        RandomKey { seed: 1, rank, step: Step(5) }
    }

    #[test]
    fn what_is_computed_beside_has_the_same_bits_and_each_is_given_once() {
        let (spec, shape) = (spec(), shape());
        let mut engine = workers_engine::build(&spec, &shape).unwrap();
        let parameters = engine.initial_parameters();
        let pool = Pool::own(parameters.len());
        let mut beside = SideBySide::new(&spec, &shape, 3).unwrap().unwrap();
        beside.expect(&RANKS);
        beside.took = WORTH;
        let (mut asked_for, version) = (Vec::new(), Version(4));
        for rank in RANKS {
            let mut alone = vec![0.0; parameters.len()];
            let expected = engine.gradient(&parameters, &samples(rank), key(rank), &mut alone).unwrap();
            let (gradient, sums) = match beside.take(version, key(rank)) {
                Some((ready, _)) => ready.unwrap(),
                None => {
                    asked_for.push(rank);
                    beside.took = WORTH;
                    let others = beside.beside(rank).iter().map(|other| (*other, samples(*other))).collect();
                    let (mut gradient, samples) = (pool.take(), samples(rank));
                    let asked = Asked {
                        engine: &mut *engine,
                        parameters: &parameters,
                        version,
                        key: key(rank),
                        samples: &samples,
                        gradient: &mut gradient,
                    };
                    let sums = beside.gradient(asked, others).unwrap();
                    (gradient, sums)
                }
            };
            assert_eq!(sums, expected);
            assert!(gradient.iter().zip(&alone).all(|(one, other)| one.to_bits() == other.to_bits()), "{rank}");
            assert!(beside.take(version, key(rank)).is_none(), "it is given once");
        }
        assert_eq!(asked_for, [RANKS[0], RANKS[3]], "two beside each that is asked for");
        assert!(beside.ready.is_empty());
    }

    #[test]
    fn what_was_computed_with_another_replica_is_dropped() {
        let (spec, shape) = (spec(), shape());
        let mut beside = SideBySide::new(&spec, &shape, 2).unwrap().unwrap();
        let ready = |version| Ready {
            of: (version, key(Rank(1))),
            gradient: Pool::own(1).take(),
            sums: Ok(Sums::default()),
            took: WORTH,
        };
        beside.ready = vec![ready(Version(1)), ready(Version(2))];
        assert!(beside.take(Version(2), key(Rank(3))).is_none());
        assert_eq!(beside.ready.len(), 1);
        assert!(beside.take(Version(3), key(Rank(1))).is_none() && beside.ready.is_empty());
    }

    #[test]
    fn short_gradients_and_single_threads_are_computed_one_after_the_other() {
        let (spec, shape) = (spec(), shape());
        assert!(SideBySide::new(&spec, &shape, 1).unwrap().is_none());
        let mut beside = SideBySide::new(&spec, &shape, 2).unwrap().unwrap();
        beside.expect(&RANKS);
        assert!(beside.beside(Rank(1)).is_empty(), "nothing is known of how long one takes");
        beside.took = WORTH;
        assert_eq!(beside.beside(Rank(1)), [Rank(3)]);
        assert!(beside.beside(Rank(7)).is_empty() && beside.beside(Rank(2)).is_empty());
    }
}
