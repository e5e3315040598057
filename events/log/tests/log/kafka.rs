//! The Kafka log on a real broker, named by `EBB_TEST_KAFKA`. Without one these tests fail and say how to start it.
//!
//! Every test has topics of its own, so that they can run at once and again on the same broker.

#![cfg(feature = "kafka")]

use crate::whole::everything;
use events_log::{
    AppendError, EventLog, KafkaLog, KafkaUrl, LogUrl, Missing, OpenError, ReadError, Stream, contract, open,
};
use events_schema::{Cell, Offset};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

const CELL: Cell = Cell(0);
/// How often is looked whether a broker that is waited for lives.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Longest wait for one that lives and does not serve.
const BROKER_WAIT_MAX: Duration = Duration::from_secs(600);

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../infra/servers/kafka.sh")
}

fn broker() -> String {
    std::env::var("EBB_TEST_KAFKA").unwrap_or_else(|_| {
        panic!(
            "EBB_TEST_KAFKA is not set: these tests need a real Kafka. Start one with\n    export $(infra/servers/kafka.sh start \"${{TMPDIR:-/tmp}}/ebb-kafka\")\nand stop it with\n    infra/servers/kafka.sh stop \"${{TMPDIR:-/tmp}}/ebb-kafka\""
        )
    })
}

/// Topics that no other test and no earlier run uses.
fn url_on(broker: &str, settings: &str) -> KafkaUrl {
    let unique = getrandom::u64().unwrap();
    match LogUrl::parse(&format!("kafka://{broker}?prefix=test-{unique:x}{settings}")).unwrap() {
        LogUrl::Kafka(url) => url,
        other => unreachable!("{other}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kafka_keeps_the_contract() {
    let url = LogUrl::Kafka(url_on(&broker(), "&cells=2"));
    assert!(contract::check(open(&url).await.unwrap()).await > 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_connection_sees_everything_and_wakes_for_more() {
    let url = url_on(&broker(), "");
    let (first, second) = (KafkaLog::connect(&url).await.unwrap(), Arc::new(KafkaLog::connect(&url).await.unwrap()));
    let offset = first.append(Stream::Events, CELL, b"one".to_vec()).await.unwrap();
    assert_eq!(&second.read(Stream::Events, CELL, offset, 10).await.unwrap()[0].bytes[..], b"one");
    let end = second.end(Stream::Events, CELL).await.unwrap();
    let waiter = {
        let second = Arc::clone(&second);
        tokio::spawn(async move {
            second.wait(Stream::Events, CELL, end).await.unwrap();
            second.read(Stream::Events, CELL, end, 10).await.unwrap()
        })
    };
    first.append(Stream::Events, CELL, b"two".to_vec()).await.unwrap();
    assert_eq!(&waiter.await.unwrap()[0].bytes[..], b"two");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_acknowledged_without_its_offset_is_found_again() {
    let log = KafkaLog::connect(&url_on(&broker(), "")).await.unwrap();
    for i in 0..20 {
        log.append(Stream::Events, CELL, vec![i]).await.unwrap();
        // The same bytes twice: the number in the header tells them apart.
        let offset = log.append_acknowledged_without_offset(Stream::Events, CELL, b"same".to_vec()).await.unwrap();
        assert_eq!(offset, Offset(u64::from(i) * 2 + 1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_beyond_the_partitions_is_refused() {
    let log = KafkaLog::connect(&url_on(&broker(), "")).await.unwrap();
    let error = log.append(Stream::Events, Cell(1), vec![1]).await.unwrap_err();
    assert!(matches!(error, AppendError::NoSuchCell { cells: 1, .. }), "{error}");
    assert!(matches!(log.read(Stream::Events, Cell(1), Offset(0), 1).await, Err(ReadError::NoSuchCell { .. })));
}

/// Topics that somebody else made: each with one thing that would lose or refuse records.
#[tokio::test(flavor = "multi_thread")]
async fn topics_that_would_lose_records_are_refused_by_name() {
    let broker = broker();
    let admin = admin(&broker);
    let large = ("max.message.bytes", "8388608");
    let cases: Vec<(Vec<(&str, &str)>, &str)> = vec![
        (vec![], "max.message.bytes"),
        (vec![large], "retention.ms"),
        (vec![large, ("retention.ms", "-1"), ("retention.bytes", "1000000")], "retention.bytes"),
        (vec![large, ("retention.ms", "-1"), ("cleanup.policy", "compact")], "cleanup.policy"),
        (
            vec![large, ("retention.ms", "-1"), ("unclean.leader.election.enable", "true")],
            "unclean.leader.election.enable",
        ),
    ];
    for (settings, expected) in cases {
        let url = url_on(&broker, "");
        let topic = url.topic(Stream::Events);
        let new = settings
            .iter()
            .fold(NewTopic::new(&topic, 1, TopicReplication::Fixed(1)), |new, (name, value)| new.set(name, value));
        admin.create_topics([&new], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
        let error = KafkaLog::connect(&url).await.unwrap_err();
        assert!(matches!(&error, OpenError::Setting { setting, .. } if setting == expected), "{expected}: {error}");
        assert!(error.to_string().contains(&topic));
    }
    let url = url_on(&broker, "");
    drop(KafkaLog::connect(&url).await.unwrap());
    let error = KafkaLog::connect(&KafkaUrl { cells: 3, ..url }).await.unwrap_err();
    assert!(
        matches!(&error, OpenError::Setting { setting, found, .. } if setting == "partitions" && found == "1"),
        "{error}"
    );
}

fn admin(broker: &str) -> AdminClient<DefaultClientContext> {
    ClientConfig::new().set("bootstrap.servers", broker).create().unwrap()
}

/// Deletes a topic and waits until the cluster knows.
async fn delete(broker: &str, topic: &str) {
    let admin = admin(broker);
    admin.delete_topics(&[topic], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
    let begun = std::time::Instant::now();
    loop {
        let metadata = admin.inner().fetch_metadata(None, std::time::Duration::from_secs(10)).unwrap();
        if metadata.topics().iter().all(|known| known.name() != topic) {
            return;
        }
        assert!(begun.elapsed().as_secs() < 60, "{topic} is still there");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_lost_a_topic_with_records_is_refused_and_the_topic_stays_away() {
    let broker = broker();
    for (written, lost) in [(Stream::Commands, Stream::Events), (Stream::Events, Stream::Commands)] {
        let url = url_on(&broker, "");
        let log = KafkaLog::connect(&url).await.unwrap();
        log.append(written, CELL, b"acknowledged".to_vec()).await.unwrap();
        drop(log);
        delete(&broker, &url.topic(lost)).await;
        for _ in 0..2 {
            let error = KafkaLog::connect(&url).await.unwrap_err();
            let named = matches!(&error, OpenError::Incomplete { missing, present } if *missing == url.topic(lost) && *present == url.topic(written));
            assert!(named && error.to_string().contains("?prefix="), "{error}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_was_deleted_and_made_anew_is_noticed() {
    let broker = broker();
    let url = url_on(&broker, "");
    let log = KafkaLog::connect(&url).await.unwrap();
    for stream in [Stream::Commands, Stream::Events] {
        log.append(stream, CELL, b"acknowledged".to_vec()).await.unwrap();
    }
    drop(log);
    let topic = url.topic(Stream::Commands);
    delete(&broker, &topic).await;
    // As somebody would who read what the settings have to be.
    let new = NewTopic::new(&topic, 1, TopicReplication::Fixed(1))
        .set("max.message.bytes", "8388608")
        .set("retention.ms", "-1")
        .set("retention.bytes", "-1");
    admin(&broker).create_topics([&new], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
    let error = KafkaLog::connect(&url).await.unwrap_err();
    assert!(matches!(&error, OpenError::Replaced { topic: named, .. } if *named == topic), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_with_nothing_in_it_is_completed_and_subscribers_topic_is_made_anew() {
    let broker = broker();
    let url = url_on(&broker, "");
    drop(KafkaLog::connect(&url).await.unwrap());
    // As after a first start that was killed half way.
    delete(&broker, &url.topic(Stream::Demand)).await;
    let log = KafkaLog::connect(&url).await.unwrap();
    let offset = log.append(Stream::Events, CELL, b"kept".to_vec()).await.unwrap();
    delete(&broker, &url.topic(Stream::Public)).await;
    drop(log);
    let log = KafkaLog::connect(&url).await.unwrap();
    assert_eq!(&log.read(Stream::Events, CELL, offset, 10).await.unwrap()[0].bytes[..], b"kept");
}

/// Whoever looks at a log under a wrong prefix is told so and leaves no topic behind; what there is of a log is read.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_is_only_looked_at_is_never_made() {
    let broker = broker();
    let url = url_on(&broker, "");
    let error = KafkaLog::connect_or(&url, Missing::Refused).await.unwrap_err();
    assert!(matches!(&error, OpenError::Absent { what } if what.contains(&url.prefix)), "{error}");
    let metadata = admin(&broker).inner().fetch_metadata(None, Duration::from_secs(10)).unwrap();
    assert!(metadata.topics().iter().all(|topic| !topic.name().starts_with(&url.prefix)), "no topic was made");
    let log = KafkaLog::connect(&url).await.unwrap();
    let offset = log.append(Stream::Events, CELL, b"kept".to_vec()).await.unwrap();
    delete(&broker, &url.topic(Stream::Public)).await;
    let looking = KafkaLog::connect_or(&url, Missing::Refused).await.unwrap();
    assert_eq!(&looking.read(Stream::Events, CELL, offset, 10).await.unwrap()[0].bytes[..], b"kept");
    delete(&broker, &url.topic(Stream::Demand)).await;
    let error = KafkaLog::connect_or(&url, Missing::Refused).await.unwrap_err();
    assert!(
        matches!(&error, OpenError::Incomplete { missing, .. } if *missing == url.topic(Stream::Demand)),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_are_as_many_as_the_url_says_or_it_is_not_opened() {
    let broker = broker();
    let url = url_on(&broker, "");
    let more = KafkaUrl { replicas: Some(2), ..url.clone() };
    let error = KafkaLog::connect(&more).await.unwrap_err();
    assert!(matches!(&error, OpenError::Topic { .. }), "one broker cannot keep two copies: {error}");
    drop(KafkaLog::connect(&url).await.unwrap());
    let error = KafkaLog::connect(&more).await.unwrap_err();
    assert!(
        matches!(&error, OpenError::Setting { setting, found, .. } if setting == "replicas" && found == "1"),
        "{error}"
    );
}

#[tokio::test]
async fn plaintext_to_another_machine_is_refused_before_anything_is_sent() {
    let url = url_on("broker.example:9092", "");
    let error = KafkaLog::connect(&url).await.unwrap_err();
    assert!(matches!(error, OpenError::Plaintext { .. }) && error.to_string().contains("plaintext=allow"), "{error}");
}

#[tokio::test]
async fn a_broker_that_does_not_answer_is_named() {
    let error = KafkaLog::connect(&url_on("127.0.0.1:9", "")).await.unwrap_err();
    assert!(matches!(error, OpenError::Unreachable { .. }) && error.to_string().contains("127.0.0.1:9"), "{error}");
}

/// A broker of its own, stopped when the test ends, however it ends.
struct OwnBroker {
    directory: tempfile::TempDir,
    address: String,
}

impl OwnBroker {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let address = Self::run(directory.path());
        Self { directory, address }
    }

    fn run(directory: &Path) -> String {
        let output = Command::new(script()).arg("start").arg(directory).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let said = String::from_utf8(output.stdout).unwrap();
        said.lines().find_map(|line| line.strip_prefix("EBB_TEST_KAFKA=")).expect("it says where it is").to_owned()
    }

    fn pid(&self) -> Pid {
        let pid = std::fs::read_to_string(self.directory.path().join("pid")).unwrap();
        Pid::from_raw(pid.trim().parse().unwrap()).unwrap()
    }

    fn kill_9_and_restart(&self) {
        // Not the program `kill`: a minimal Debian has none.
        kill_process(self.pid(), Signal::KILL).unwrap();
        assert_eq!(Self::run(self.directory.path()), self.address);
    }

    /// Waits for what comes once it serves, for as long as it lives: on a busy machine that takes minutes.
    async fn serves<T>(&self, what: &str, done: impl Future<Output = T>) -> T {
        let mut done = std::pin::pin!(done);
        let begun = std::time::Instant::now();
        loop {
            if let Ok(done) = tokio::time::timeout(LOOK_EVERY, done.as_mut()).await {
                return done;
            }
            assert!(test_kill_process(self.pid()).is_ok(), "{what}: the broker has ended; {}", self.last_lines());
            assert!(
                begun.elapsed() < BROKER_WAIT_MAX,
                "{what}: nothing after {BROKER_WAIT_MAX:?}; {}",
                self.last_lines()
            );
        }
    }

    /// What it said last.
    fn last_lines(&self) -> String {
        let said = std::fs::read_to_string(self.directory.path().join("kafka.log")).unwrap_or_default();
        let lines: Vec<&str> = said.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }
}

impl Drop for OwnBroker {
    fn drop(&mut self) {
        let _ = Command::new(script()).arg("stop").arg(self.directory.path()).status();
    }
}

/// Under load the broker is killed and started again; the log goes on by itself, and everything acknowledged is there.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_when_the_broker_is_killed() {
    let broker = tokio::task::spawn_blocking(OwnBroker::start).await.unwrap();
    let log = Arc::new(KafkaLog::connect(&url_on(&broker.address, "")).await.unwrap());
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let writers: Vec<_> = (0..8)
        .map(|writer| {
            let (log, stopped) = (Arc::clone(&log), stopped.clone());
            tokio::spawn(async move {
                let (mut acknowledged, mut unknown) = (Vec::new(), 0);
                for i in 0.. {
                    if *stopped.borrow() {
                        break;
                    }
                    let content = format!("{writer}-{i}").into_bytes();
                    match log.append(Stream::Events, CELL, content.clone()).await {
                        Ok(offset) => acknowledged.push((offset, content)),
                        Err(_) => unknown += 1,
                    }
                }
                (acknowledged, unknown)
            })
        })
        .collect();
    log.wait(Stream::Events, CELL, Offset(500)).await.unwrap();
    let broker = tokio::task::spawn_blocking(move || {
        broker.kill_9_and_restart();
        broker
    });
    let broker = broker.await.unwrap();
    // It takes connections before it knows of its topics; who asks then is told to ask again.
    let answered = async {
        loop {
            match log.end(Stream::Events, CELL).await {
                Ok(before) => return before,
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    };
    let before = broker.serves("it answers again", answered).await;
    let appended = async {
        while log.wait(Stream::Events, CELL, Offset(before.0 + 500)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    broker.serves("writers go on", appended).await;
    stop.send_replace(true);
    let mut acknowledged = BTreeMap::new();
    for writer in writers {
        for (offset, content) in writer.await.unwrap().0 {
            assert_eq!(acknowledged.insert(offset, content), None, "two records at {offset}");
        }
    }
    let found = everything(&*log, Stream::Events).await;
    for (offset, content) in &acknowledged {
        assert_eq!(found.get(offset), Some(content), "{offset}");
    }
    let distinct: std::collections::BTreeSet<&Vec<u8>> = found.values().collect();
    assert_eq!(distinct.len(), found.len(), "a record stands twice");
    assert!(acknowledged.len() > 1_000);
    tokio::task::spawn_blocking(move || drop(broker)).await.unwrap();
}

/// Commits one record in a transaction, after which the topic ends with an offset that belongs to no record.
fn commit_one(broker: &str, topic: &str) {
    let wait = Duration::from_secs(60);
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", broker)
        .set("transactional.id", format!("test-{:x}", getrandom::u64().unwrap()))
        .create()
        .unwrap();
    producer.init_transactions(wait).unwrap();
    producer.begin_transaction().unwrap();
    producer.send(BaseRecord::<(), [u8]>::to(topic).partition(0).payload(b"two")).unwrap();
    producer.commit_transaction(wait).unwrap();
}

/// No record ever comes where the marker stands: a reader that waits for one there calls the log unavailable after half a minute, and a
/// controller that took over could not decide anything from time.
#[tokio::test(flavor = "multi_thread")]
async fn a_marker_of_a_transaction_is_no_record_and_keeps_nobody_waiting() {
    let broker = broker();
    let url = url_on(&broker, "");
    let following = KafkaLog::connect(&url).await.unwrap();
    following.append(Stream::Demand, CELL, b"one".to_vec()).await.unwrap();
    following.read(Stream::Demand, CELL, Offset(0), 1_000).await.unwrap();
    let topic = url.topic(Stream::Demand);
    tokio::task::spawn_blocking(move || commit_one(&broker, &topic)).await.unwrap();
    let fresh = KafkaLog::connect(&url).await.unwrap();
    for log in [&following, &fresh] {
        assert_eq!(log.end(Stream::Demand, CELL).await.unwrap(), Offset(3));
        assert_eq!(log.read(Stream::Demand, CELL, Offset(2), 1_000).await.unwrap(), []);
        let found = everything(log, Stream::Demand).await;
        assert_eq!(found.into_values().collect::<Vec<_>>(), [b"one".to_vec(), b"two".to_vec()]);
    }
    assert_eq!(fresh.append(Stream::Demand, CELL, b"three".to_vec()).await.unwrap(), Offset(3));
    for log in [&following, &fresh] {
        log.wait(Stream::Demand, CELL, Offset(2)).await.unwrap();
        let found = log.read(Stream::Demand, CELL, Offset(2), 1_000).await.unwrap();
        assert_eq!(
            found.iter().map(|record| (record.offset, &record.bytes[..])).collect::<Vec<_>>(),
            [(Offset(3), &b"three"[..])]
        );
    }
}
