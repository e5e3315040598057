//! The three models at tiny sizes, each with samples that have something to learn, made without any generator.

use events_schema::dataset::{SampleShape, Samples};
use events_schema::job::JobSpec;
use events_schema::{Rank, Step};
use serde_json::{Value, json};
use workers_engine::{Engine, RandomKey, Update, build};

/// A model, its dataset's shape, and samples of it.
pub struct Case {
    pub name: &'static str,
    pub spec: JobSpec,
    pub sample: SampleShape,
    pub samples: Samples,
}

impl Case {
    pub fn engine(&self) -> Box<dyn Engine> {
        build(&self.spec, &self.sample).unwrap()
    }

    /// Trains alone on the same samples; gives the losses of the steps and the replica at the end.
    pub fn train(&self, steps: u64) -> (Vec<f64>, Vec<f32>) {
        let mut engine = self.engine();
        let update = Update::new(&self.spec, engine.parameter_info(), steps);
        let mut replica = update.initial_replica(engine.initial_parameters());
        let mut gradient = vec![f32::NAN; update.parameter_count()];
        let mut losses = Vec::new();
        for step in (0..steps).map(Step) {
            let random_key = RandomKey { seed: self.spec.seed, rank: Rank(0), step };
            let sums = engine
                .gradient(&replica[..update.parameter_count()], &self.samples, random_key, &mut gradient)
                .unwrap();
            gradient.iter_mut().for_each(|value| *value /= sums.weight as f32);
            update.apply(&mut replica, &gradient, step);
            losses.push(sums.loss / sums.weight);
        }
        (losses, replica)
    }
}

/// A job spec around a model.
pub fn spec(model: Value) -> JobSpec {
    let document = json!({
        "name": "test", "model": model, "dataset": "data", "batch_size": 4, "steps": 10, "seed": 5, "gradient_clip_norm": 5.0,
        "optimizer": {"kind": "adamw", "learning_rate": 0.01}, "schedule": {"kind": "cosine", "warmup_steps": 2, "floor": 0.1},
    });
    JobSpec::parse(&document).unwrap()
}

/// Scattered numbers in -1..1, the same everywhere.
pub fn scattered(count: usize) -> Vec<f32> {
    (0..count as u32).map(|at| (at + 1).wrapping_mul(2_654_435_761) as f32 / 2f32.powi(31) - 1.0).collect()
}

/// Samples of three classes; class c lifts every third feature.
pub fn classified(samples: usize, features: usize) -> Samples {
    let mut values = scattered(samples * features);
    let labels: Vec<u32> = (0..samples as u32).map(|sample| sample % 3).collect();
    for (row, &label) in values.chunks_mut(features).zip(&labels) {
        row.iter_mut().skip(label as usize).step_by(3).for_each(|value| *value += 1.0);
    }
    Samples::Classified { features: values, labels }
}

/// Rows of `length` tokens that count up, each from another start, over `vocabulary` tokens.
pub fn counting(samples: u32, length: u32, vocabulary: u32) -> Samples {
    let tokens = (0..samples).flat_map(|row| (0..length).map(move |at| (row * 5 + at) % vocabulary)).collect();
    Samples::Tokens { tokens, length }
}

/// One case per model, with dropout if asked.
pub fn cases(dropout: f64) -> [Case; 3] {
    let image = SampleShape::Classified { shape: vec![2, 6, 5], classes: 3 };
    [
        Case {
            name: "mlp",
            spec: spec(json!({"kind": "mlp", "hidden": [12, 9], "dropout": dropout})),
            sample: SampleShape::Classified { shape: vec![10], classes: 3 },
            samples: classified(7, 10),
        },
        Case {
            name: "cnn",
            spec: spec(json!({"kind": "cnn", "channels": [4, 8], "blocks": 2, "groups": 2, "dropout": dropout})),
            sample: image,
            samples: classified(5, 60),
        },
        Case {
            name: "gpt",
            spec: spec(json!({"kind": "gpt", "layers": 2, "heads": 2, "width": 8, "context": 6, "dropout": dropout})),
            // Rows are longer than the context: what follows it must not matter.
            sample: SampleShape::Tokens { length: 9, vocabulary: 11 },
            samples: counting(3, 9, 11),
        },
    ]
}
