//! Subscribers with clients of their own: public events on Kafka, read by a stock client in another language, are those of HTTP, also after a crash.

use crate::support::{System, finished, kafka, model_job, submit};
use gateway_client::Events;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use tokio::process::Command;

/// What the stock client reads up to the end of a job.
async fn read_by_python(brokers: &str, topic: &str, job: &str) -> Vec<Value> {
    let python = std::env::var("EBB_TEST_PYTHON").expect("EBB_TEST_PYTHON is not set: it names a python3 with the packages confluent-kafka and cloudevents; `infra/run test tests` sets one up");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/system/subscriber.py");
    let mut command = Command::new(python);
    command.args([script, brokers, topic, "dev.ebb.job.finished.v1", job]).kill_on_drop(true);
    let output = tokio::time::timeout(crate::support::WAIT_MAX, command.output()).await.expect("it ends").unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The events of HTTP up to the end of a job, as the client above shows them.
async fn read_by_http(system: &System, job: &str) -> Vec<Value> {
    let events = system.client().all_events(&Events::all()).await.unwrap_or_else(|e| panic!("{e}"));
    let last = events.iter().position(|event| event["type"] == "dev.ebb.job.finished.v1" && event["subject"] == job);
    let shown = |event: &Value| {
        let mut shown = json!({"key": event["subject"]});
        for field in ["id", "source", "type", "subject", "time", "data"] {
            shown[field] = event[field].clone();
        }
        shown
    };
    events[..=last.unwrap()].iter().map(shown).collect()
}

/// Each event once, in the order in which it first came.
fn once(events: Vec<Value>) -> Vec<Value> {
    let mut seen = BTreeSet::new();
    events.into_iter().filter(|event| seen.insert((event["source"].to_string(), event["id"].to_string()))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stock_kafka_client_reads_the_events_of_http() {
    let broker = kafka();
    let prefix = format!("subscribers-{}", std::process::id());
    let system = System::start_on(2, Some(&format!("kafka://{broker}?plaintext=allow&prefix={prefix}"))).await;
    let mut document = model_job("mlp");
    document["steps"] = 300.into();
    let first = submit(&system.client(), &document, "first").await;
    finished(&system.client(), &first).await;
    let topic = format!("{prefix}.public");
    assert_eq!(read_by_python(&broker, &topic, &first).await, read_by_http(&system, &first).await);

    let system = system.crash().await;
    let second = submit(&system.client(), &document, "second").await;
    finished(&system.client(), &second).await;
    let read = once(read_by_python(&broker, &topic, &second).await);
    assert_eq!(read, read_by_http(&system, &second).await, "whatever was repeated after the crash has its id");
    let planned = read.iter().find(|event| event["type"] == "dev.ebb.job.planned.v1").unwrap();
    assert_eq!((&planned["data"]["from"], &planned["data"]["to"]), (&json!(0), &json!(2)));
    assert!(read.iter().any(|event| event["type"] == "dev.ebb.slot.borrowed.v1" && event["data"]["fleet"] == "local"));
}
