//! Fleets that publish their demand in Kafka topics of their own, with a stock client: by the rules of HTTP, over a crash of the service,
//! and beside a fleet that floods its topic.

use crate::support::{LOOK_EVERY, System, WAIT_MAX, kafka, until_needed};
use gateway_client::Events;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::producer::{BaseRecord, Producer, ThreadedProducer};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

struct Cluster {
    broker: String,
    prefix: String,
    producer: ThreadedProducer<rdkafka::producer::DefaultProducerContext>,
}

impl Cluster {
    fn new(name: &str) -> Self {
        let broker = kafka();
        let producer = ClientConfig::new().set("bootstrap.servers", &broker).create().unwrap();
        Self { prefix: format!("{name}-{}", std::process::id()), broker, producer }
    }

    fn log(&self) -> String {
        format!("kafka://{}?plaintext=allow&prefix={}", self.broker, self.prefix)
    }

    fn needs(&self) -> String {
        format!("{}-needs", self.prefix)
    }

    async fn topic(&self, fleet: &str) {
        let admin: AdminClient<DefaultClientContext> =
            ClientConfig::new().set("bootstrap.servers", &self.broker).create().unwrap();
        let name = format!("{}.{fleet}", self.needs());
        let topic = NewTopic::new(&name, 1, TopicReplication::Fixed(1));
        admin.create_topics(&[topic], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
    }

    fn publish(&self, fleet: &str, records: impl IntoIterator<Item = Value>) {
        let topic = format!("{}.{fleet}", self.needs());
        for record in records {
            let text = record.as_str().map_or_else(|| record.to_string(), str::to_owned);
            let mut record = BaseRecord::<(), String>::to(&topic).payload(&text);
            while let Err((_, back)) = self.producer.send(record) {
                self.producer.poll(LOOK_EVERY);
                record = back;
            }
        }
        self.producer.flush(Duration::from_secs(30)).unwrap();
    }
}

/// The needs that counted for a fleet, in order.
async fn needs(system: &System, fleet: &str) -> Vec<u64> {
    let events = system.client().all_events(&Events::of_fleet(fleet)).await.unwrap_or_else(|e| panic!("{e}"));
    let needs = events.iter().filter(|event| event["type"] == "dev.ebb.fleet.demand.v1");
    needs.map(|event| event["data"]["needed"].as_u64().unwrap()).collect()
}

async fn refusals(system: &System, fleet: &str) -> Vec<Value> {
    let events = system.client().all_events(&Events::of_fleet(fleet)).await.unwrap_or_else(|e| panic!("{e}"));
    events.into_iter().filter(|event| event["type"] == "dev.ebb.fleet.signals_refused.v1").collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_of_its_own_is_a_fleets_demand() {
    let cluster = Cluster::new("fleet-topics");
    let needs_prefix = cluster.needs();
    let arguments = ["--log", &cluster.log(), "--demand-topics", &needs_prefix];
    let system = System::start_with(2, &arguments).await;
    cluster.topic("local").await;
    cluster.publish("local", [json!({"needed": 1})]);
    until_needed(&system.client(), "local", 1).await;

    // What cannot be used changes nothing and is told where the fleet reads.
    cluster.publish("local", [json!({"needed": "two"}), json!({"needed": 2, "fleet": "other"})]);
    let begun = Instant::now();
    let refused = loop {
        if let Some(first) = refusals(&system, "local").await.into_iter().next() {
            break first;
        }
        assert!(begun.elapsed() < WAIT_MAX, "nobody was told");
        tokio::time::sleep(LOOK_EVERY).await;
    };
    assert_eq!((&refused["subject"], &refused["data"]["fleet"]), (&json!("local"), &json!("local")));
    assert!(refused["data"]["reason"].as_str().unwrap().contains("needed"), "{refused}");
    assert_eq!(needs(&system, "local").await, [0, 1]);

    // Of what is published while nobody reads, the newest counts, once.
    let dead = system.kill().await;
    cluster.publish("local", [json!({"needed": 2}), json!({"needed": 0}), json!({"utilization": 1.2, "target": 0.6})]);
    let system = dead.start().await;
    until_needed(&system.client(), "local", 2).await;
    assert_eq!(needs(&system, "local").await, [0, 1, 2]);

    // Another crash reads nothing again that counted.
    let system = system.crash().await;
    cluster.publish("local", [json!({"needed": 0})]);
    until_needed(&system.client(), "local", 0).await;
    assert_eq!(needs(&system, "local").await, [0, 1, 2, 0]);

    // A number of the fleet's own that is old is refused as over HTTP.
    cluster.publish("local", [json!({"needed": 1, "sequence": 7})]);
    let begun = Instant::now();
    while !refusals(&system, "local").await.iter().any(|e| e["data"]["reason"].as_str().unwrap().contains("sequence")) {
        assert!(begun.elapsed() < WAIT_MAX, "the old number was not told: {:?}", refusals(&system, "local").await);
        tokio::time::sleep(LOOK_EVERY).await;
    }
    assert_eq!(needs(&system, "local").await, [0, 1, 2, 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_one_fleet_starves_no_other() {
    const FLOOD: u64 = 50_000;
    let cluster = Cluster::new("fleet-flood");
    for fleet in ["local", "noisy"] {
        cluster.topic(fleet).await;
    }
    let needs_prefix = cluster.needs();
    let system = System::start_with(2, &["--log", &cluster.log(), "--demand-topics", &needs_prefix]).await;
    system.ebb_json(&["fleet", "put", "noisy", "--server", "elsewhere", "--slots", "2"]).await;
    cluster.publish("noisy", [json!({"needed": 1})]);
    until_needed(&system.client(), "noisy", 1).await;
    cluster.publish("noisy", (0..FLOOD).map(|n| json!({"needed": n % 2})));
    cluster.publish("local", [json!({"needed": 1})]);
    cluster.publish(
        "noisy",
        (0..FLOOD).map(|n| json!({"needed": n % 2}).to_string().into()).chain([json!({"needed": 2})]),
    );
    until_needed(&system.client(), "local", 1).await;
    until_needed(&system.client(), "noisy", 2).await;
    let counted = needs(&system, "noisy").await.len() as u64;
    assert!(counted < FLOOD / 10, "of {} signals {counted} were written into the log", 2 * FLOOD);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_embedded_log_has_no_topics_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let output = tokio::process::Command::new(crate::support::EBB)
        .args(["up", "--listen", "127.0.0.1:0", "--demand-topics", "ebb.demand", "--data"])
        .arg(&data)
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("not on Kafka") && said.contains("ebb demand"), "{said}");
}
