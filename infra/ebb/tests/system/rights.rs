//! Kafka with rights: the service runs with those that its documents name and no others, and a right on one topic is all that keeps a fleet from
//! speaking for another.

use crate::support::{System, WAIT_MAX, kafka, until_needed};
use tokio::process::Command;

async fn python(arguments: &[&str]) -> String {
    let python = std::env::var("EBB_TEST_PYTHON")
        .expect("EBB_TEST_PYTHON is not set: it names a python3 with the package confluent-kafka; `infra/run test tests` sets one up");
    let mut command = Command::new(python);
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/system/rights.py")).args(arguments).kill_on_drop(true);
    let output = tokio::time::timeout(WAIT_MAX, command.output()).await.expect("it ends").unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_right_on_its_topic_is_all_that_a_fleet_needs_and_has() {
    let brokers = std::env::var("EBB_TEST_KAFKA_SASL").expect(
        "EBB_TEST_KAFKA_SASL is not set: start a broker with `infra/servers/kafka.sh start DIR`, which prints it",
    );
    let prefix = format!("rights-{}", std::process::id());
    let needs = format!("{prefix}-needs");
    // Two fleets' users, of whom each is called like its fleet.
    python(&["grant", &kafka(), &prefix, &needs, "local", "shop"]).await;
    let log = format!("kafka://{brokers}?sasl=plain&prefix={prefix}");
    let user = [("EBB_KAFKA_USERNAME", "ebb"), ("EBB_KAFKA_PASSWORD", "ebb")];
    let system = System::start_with_in(2, &["--log", &log, "--demand-topics", &needs], &user).await;
    let client = system.client();

    let topic = format!("{needs}.local");
    assert_eq!(python(&["publish", &brokers, "shop", &topic, r#"{"needed": 2}"#]).await, "refused");
    assert_eq!(python(&["publish", &brokers, "local", &topic, r#"{"needed": 1}"#]).await, "published");
    until_needed(&client, "local", 1).await;
    let quiet = loadtest_harness::service::tail(&system.path("data"));
    assert!(!quiet.contains("uthoriz"), "the rights that are documented are all that it asks for: {quiet}");
}
