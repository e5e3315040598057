//! Steps of a native model as a peer drives them: reads `MODEL STEPS` a line, trains so many steps on samples of chance and answers with the seconds they
//! took. `loadtest/peers/step.py` runs it in turns with PyTorch. Sizes stand here and there, and have to be the same.
#![allow(clippy::unwrap_used)]

use events_schema::dataset::{SampleShape, Samples};
use events_schema::job::JobSpec;
use events_schema::{Rank, Step};
use serde_json::{Value, json};
use std::io::{BufRead, Write};
use std::time::Instant;
use workers_engine::{Engine, RandomKey, Update, build};

/// What trains, and where it stands.
struct Run {
    engine: Box<dyn Engine>,
    update: Update,
    replica: Vec<f32>,
    gradient: Vec<f32>,
    samples: Samples,
    step: u64,
}

impl Run {
    fn new(model: &Value, shape: &SampleShape, samples: Samples) -> Self {
        let document = json!({
            "name": "step", "model": model, "dataset": "chance", "batch_size": 1, "steps": 1_000_000, "seed": 1,
            "optimizer": {"kind": "adamw", "learning_rate": 0.001, "weight_decay": 0.01},
        });
        let spec = JobSpec::parse(&document).unwrap();
        let engine = build(&spec, shape).unwrap();
        let update = Update::new(&spec, engine.parameter_info(), 1_000_000);
        let replica = update.initial_replica(engine.initial_parameters());
        let gradient = vec![0.0; update.parameter_count()];
        Self { engine, update, replica, gradient, samples, step: 0 }
    }

    fn step(&mut self) -> f64 {
        let random_key = RandomKey { seed: 1, rank: Rank(0), step: Step(self.step) };
        let parameters = &self.replica[..self.update.parameter_count()];
        let sums = self.engine.gradient(parameters, &self.samples, random_key, &mut self.gradient).unwrap();
        let share = (1.0 / sums.weight) as f32;
        self.gradient.iter_mut().for_each(|value| *value *= share);
        self.update.apply(&mut self.replica, &self.gradient, random_key.step);
        self.step += 1;
        sums.loss / sums.weight
    }
}

/// Numbers of chance in -1..1, the same everywhere.
fn scattered(count: usize) -> Vec<f32> {
    (0..count as u32).map(|at| (at + 1).wrapping_mul(2_654_435_761) as f32 / 2f32.powi(31) - 1.0).collect()
}

fn classified(samples: usize, features: usize) -> Samples {
    let labels = (0..samples as u32).map(|sample| sample % 10).collect();
    Samples::Classified { features: scattered(samples * features), labels }
}

fn named(name: &str) -> Run {
    match name {
        "mlp" => Run::new(
            &json!({"kind": "mlp", "hidden": [256]}),
            &SampleShape::Classified { shape: vec![784], classes: 10 },
            classified(128, 784),
        ),
        "mlp-wide" => Run::new(
            &json!({"kind": "mlp", "hidden": [1024, 1024]}),
            &SampleShape::Classified { shape: vec![784], classes: 10 },
            classified(64, 784),
        ),
        "cnn" => Run::new(
            &json!({"kind": "cnn", "channels": [16, 32], "blocks": 1, "groups": 4}),
            &SampleShape::Classified { shape: vec![1, 28, 28], classes: 10 },
            classified(32, 784),
        ),
        "cnn-wide" => Run::new(
            &json!({"kind": "cnn", "channels": [32, 64, 128], "blocks": 1, "groups": 8}),
            &SampleShape::Classified { shape: vec![3, 32, 32], classes: 10 },
            classified(16, 3_072),
        ),
        "gpt" => {
            let (length, vocabulary) = (129, 96);
            let tokens = (0..8 * length).map(|at: u32| at.wrapping_mul(2_654_435_761) >> 16).map(|t| t % vocabulary);
            Run::new(
                &json!({"kind": "gpt", "layers": 4, "heads": 4, "width": 128, "context": 128}),
                &SampleShape::Tokens { length, vocabulary },
                Samples::Tokens { tokens: tokens.collect(), length },
            )
        }
        other => panic!("no model is called `{other}`; there are mlp, mlp-wide, cnn, cnn-wide and gpt"),
    }
}

fn main() {
    let mut run: Option<(String, Run)> = None;
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let (name, steps) = line.split_once(' ').expect("a line is MODEL STEPS");
        if run.as_ref().is_none_or(|(running, _)| running != name) {
            run = Some((name.to_owned(), named(name)));
        }
        let (_, run) = run.as_mut().unwrap();
        let begun = Instant::now();
        let loss = (0..steps.parse::<u64>().unwrap()).map(|_| run.step()).last();
        println!("{} {}", begun.elapsed().as_secs_f64(), loss.unwrap_or(f64::NAN));
        std::io::stdout().flush().unwrap();
    }
}
