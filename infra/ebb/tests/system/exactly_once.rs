//! Every sample is delivered exactly once per epoch while the fleet takes and kills executors: counted by the model itself.
//!
//! Each sample has a feature that no other has, and the model is one linear layer. With a learning rate so small that
//! predictions hardly move, a delivery adds a known amount to the weights of that feature, so the trained weights say how often
//! each sample was used.

use crate::support::{Random, System, finished, job, steps, submit, text, until};
use events_schema::dataset::SampleShape;
use events_schema::job::JobSpec;
use gateway_api::{Job, PublishDemand};
use loadtest_harness::service::kill_process;
use serde_json::{Value, json};
use std::fmt::Write;

pub const SAMPLES: usize = 480;
const CLASSES: usize = 10;
/// So many that the job outlives all disturbances.
const EPOCHS: usize = 240;
const LEARNING_RATE: f64 = 1e-4;
/// Divides the samples, so that every step has the same weight.
const GLOBAL_BATCH: usize = 12;
/// The same for a job that takes several steps at once, and with so few updates as others have would be over before it is disturbed.
const SMALL_GLOBAL_BATCH: usize = 4;
/// Disturbances: a suspension, the loss of every replica, otherwise alternately a kill and a change of demand.
const EVENTS: u64 = 12;
const SUSPENDED_AT: u64 = 3;
const ALL_KILLED_AT: u64 = 4;

#[tokio::test(flavor = "multi_thread")]
async fn every_sample_counts_once_per_epoch_under_scaling_and_kills() {
    count(json!({"determinism": "d1"}), GLOBAL_BATCH).await;
}

/// Where an executor computes one gradient of all the samples of the workers that it hosts, and the model depends on who was there when.
#[tokio::test(flavor = "multi_thread")]
async fn every_sample_counts_once_per_epoch_without_determinism_too() {
    count(json!({"determinism": "none"}), GLOBAL_BATCH).await;
}

/// Where updates take as many steps as the job has executors, so that a kill of the leader, or a change of size, is a change of the batch too. With the learning
/// rate in proportion to the batch a delivery adds the same to the weights in each of them.
#[tokio::test(flavor = "multi_thread")]
async fn every_sample_counts_once_per_epoch_whatever_the_batches() {
    let range = json!({"max": SMALL_GLOBAL_BATCH, "learning_rate_rule": "linear"});
    let ended = count(json!({"determinism": "none", "batch_range": range}), SMALL_GLOBAL_BATCH).await;
    let batches = ended.batches.unwrap();
    let strides: Vec<u64> = batches.used.iter().map(|samples| samples / SMALL_GLOBAL_BATCH as u64).collect();
    assert!(batches.now.is_none() && strides.len() >= 2, "{strides:?}");
    assert!(
        batches.used.iter().all(|samples| samples % SMALL_GLOBAL_BATCH as u64 == 0) && strides.iter().all(|k| *k <= 4),
        "{batches:?}"
    );
}

/// Disturbs a job that says this, until it is over, and counts how often it used each sample. Gives the job at its end.
async fn count(said: Value, global_batch: usize) -> Job {
    let system = System::start(4).await;
    import_unit_vectors(&system).await;
    let (client, agent) = (system.client(), system.agent());
    let mut document = json!({
        "name": "counted", "model": {"kind": "mlp", "hidden": []}, "dataset": "unit", "workers": {"min": 1, "max": 4},
        "batch_size": global_batch / 4, "epochs": EPOCHS, "seed": 5,
        "optimizer": {"kind": "sgd", "learning_rate": LEARNING_RATE, "momentum": 0}, "checkpoint": {"every_steps": 40},
    });
    document.as_object_mut().unwrap().extend(said.as_object().unwrap().clone());
    let id = submit(&client, &document, "counted").await;
    let mut random = Random::new(8);
    let mut disturbed = 0;
    for event in 0..EVENTS {
        let goal = steps(&job(&client, &id).await) + 1 + random.below(40);
        if until(&client, &id, "steps between two events", |j| j.is_over() || steps(j) >= goal).await.is_over() {
            break;
        }
        disturbed += 1;
        if event == SUSPENDED_AT {
            client.suspend(&id).await.unwrap_or_else(|e| panic!("{e}"));
            until(&client, &id, "the suspension", |j| j.phase == "suspended").await;
            client.resume(&id).await.unwrap_or_else(|e| panic!("{e}"));
        } else if event == ALL_KILLED_AT {
            // Back to its last checkpoint, which may have been written by as many executors as never again train it.
            let all: Vec<i32> = agent.slots().await.unwrap().iter().filter_map(|s| s.pid).collect();
            all.into_iter().for_each(|pid| drop(kill_process(pid)));
        } else if event % 2 == 0 {
            let needed = random.below(4) as u32;
            client.demand("local", &PublishDemand::needed(needed)).await.unwrap();
        } else if let Some(pid) = agent.slots().await.unwrap().iter().find_map(|s| s.pid) {
            // One that ended by itself in between is no failure.
            drop(kill_process(pid));
        }
    }
    assert!(disturbed >= EVENTS / 2, "the job was over after {disturbed} events");
    client.demand("local", &PublishDemand::needed(0)).await.unwrap();
    finished(&client, &id).await;

    let file = system.path("counted.safetensors");
    system.ebb_json(&["model", "get", &id, "-o", &text(&file)]).await;
    let counts = deliveries(&document, &std::fs::read(&file).unwrap());
    let wrong: Vec<_> = counts.iter().enumerate().filter(|(_, count)| (**count - EPOCHS as f64).abs() > 0.25).collect();
    assert!(wrong.is_empty(), "samples not delivered exactly {EPOCHS} times: {wrong:?}");
    job(&client, &id).await
}

/// Registers `unit`: sample i is the i-th unit vector, of class i mod 10.
pub async fn import_unit_vectors(system: &System) {
    let mut csv = String::new();
    for sample in 0..SAMPLES {
        for feature in 0..SAMPLES {
            csv.push_str(if feature == sample { "1," } else { "0," });
        }
        writeln!(csv, "{}", sample % CLASSES).unwrap();
    }
    std::fs::write(system.path("unit.csv"), csv).unwrap();
    let label = SAMPLES.to_string();
    system.ebb_json(&["dataset", "import", "unit", "unit.csv", "--format", "csv", "--label", &label]).await;
}

/// How often each sample was used, from the weights before and after.
fn deliveries(document: &Value, file: &[u8]) -> Vec<f64> {
    let shape = SampleShape::Classified { shape: vec![SAMPLES as u32], classes: CLASSES as u32 };
    let engine = workers_engine::build(&JobSpec::parse(document).unwrap(), &shape).unwrap();
    let global_batch = 4.0 * document["batch_size"].as_f64().unwrap();
    let before = engine.initial_parameters();
    let after = workers_engine::import_model(file, engine.parameter_info()).unwrap();
    let weight = engine.parameter_info().iter().find(|p| p.name.ends_with("weight")).unwrap();
    let bias = engine.parameter_info().iter().find(|p| p.name.ends_with("bias")).unwrap();
    let at = |class: usize, sample: usize| weight.offset + class * SAMPLES + sample;
    (0..SAMPLES)
        .map(|sample| {
            let label = sample % CLASSES;
            let logits = |class: usize| f64::from(before[at(class, sample)]) + f64::from(before[bias.offset + class]);
            let whole: f64 = (0..CLASSES).map(|class| logits(class).exp()).sum();
            let one_delivery = LEARNING_RATE / global_batch * (1.0 - logits(label).exp() / whole);
            let index = at(label, sample);
            (f64::from(after[index]) - f64::from(before[index])) / one_delivery
        })
        .collect()
}
