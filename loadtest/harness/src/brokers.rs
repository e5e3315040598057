//! Three Kafka brokers that figures and tests may lose, as `infra/servers/kafka3.sh` starts them: who leads what, one of them
//! killed or stopped, and healed again. Knows nothing of Ebb.

use crate::HarnessError;
use crate::service::{continue_process, hang_process, kill_process};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{Consumer, ConsumerContext, StreamConsumer};
use rdkafka::error::KafkaError;
use rdkafka::message::Message;
use rdkafka::metadata::{Metadata, MetadataPartition};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::topic_partition_list::TopicPartitionList;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::process::Command;
use tokio::task::JoinHandle;

/// How many there are, and copies of each partition.
const NODES: i32 = 3;
/// Time for one question to them.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// Longest wait until all of them are in sync and lead again what they should.
const WHOLE_WAIT: Duration = Duration::from_secs(120);
/// How often that is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Pause between two records of a bare producer: what is measured is a gap of seconds.
const BARE_PAUSE: Duration = Duration::from_millis(10);
/// Longest delivery of a bare record.
const BARE_TIMEOUT: Duration = Duration::from_secs(60);

/// The id of a broker in its cluster, and of its folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node(i32);

/// How a broker is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// `kill -9`: its connections break.
    Killed,
    /// `SIGSTOP`: its connections stay open and say nothing.
    Stopped,
}

/// Keeps what librdkafka says of brokers that are lost on purpose from people.
#[derive(Debug, Clone, Copy)]
struct Quiet;

impl ClientContext for Quiet {
    fn log(&self, _: RDKafkaLogLevel, facility: &str, message: &str) {
        tracing::debug!(facility, message, "kafka client");
    }
    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "kafka client");
    }
}

impl ConsumerContext for Quiet {}

/// The brokers of one folder.
pub struct Brokers {
    folder: PathBuf,
    bootstrap: String,
    admin: Arc<AdminClient<Quiet>>,
}

impl Brokers {
    /// Those that `kafka3.sh start FOLDER` started.
    pub fn of_folder(folder: &Path) -> Result<Self, HarnessError> {
        let address = |node: i32| -> Result<String, HarnessError> {
            let port = read(&folder.join(node.to_string()).join("port"))?;
            Ok(format!("127.0.0.1:{port}"))
        };
        let bootstrap = (1..=NODES).map(address).collect::<Result<Vec<_>, _>>()?.join(",");
        let admin = quick(&bootstrap)
            .create_with_context(Quiet)
            .map_err(|e| HarnessError::local("the Kafka client cannot be set up", e))?;
        Ok(Self { folder: folder.to_path_buf(), bootstrap, admin: Arc::new(admin) })
    }

    /// A log on them with topics of its own.
    #[must_use]
    pub fn log_url(&self, prefix: &str) -> String {
        format!("kafka://{}?prefix={prefix}&replicas={NODES}", self.bootstrap)
    }

    async fn metadata(&self) -> Result<Metadata, HarnessError> {
        let admin = Arc::clone(&self.admin);
        let asked = tokio::task::spawn_blocking(move || admin.inner().fetch_metadata(None, ANSWER_WAIT)).await;
        let answer = asked.map_err(|e| HarnessError::local("asking the brokers panicked", e))?;
        answer.map_err(|e| HarnessError::local("the brokers do not answer", e))
    }

    /// Who leads a partition.
    pub async fn leader(&self, topic: &str, partition: i32) -> Result<Node, HarnessError> {
        let metadata = self.metadata().await?;
        let topic = metadata.topics().iter().find(|known| known.name() == topic);
        let found = topic.and_then(|topic| topic.partitions().iter().find(|known| known.id() == partition));
        found.map(|found| Node(found.leader())).ok_or_else(|| HarnessError::plain("a partition has no leader"))
    }

    /// Whether all partitions of a topic are led, and none by this broker.
    async fn leads_nothing(&self, topic: &str, node: Node) -> Result<bool, HarnessError> {
        let metadata = self.metadata().await?;
        let topic = metadata.topics().iter().find(|known| known.name() == topic);
        let mut leaders = topic.into_iter().flat_map(|topic| topic.partitions()).map(|partition| partition.leader());
        Ok(leaders.all(|leader| leader >= 0 && leader != node.0))
    }

    /// Waits until every broker is there, is in sync everywhere and leads what it is the first to lead.
    pub async fn until_whole(&self) -> Result<(), HarnessError> {
        let begun = Instant::now();
        loop {
            let whole = self.metadata().await.is_ok_and(|metadata| {
                let mut partitions = metadata.topics().iter().flat_map(|topic| topic.partitions());
                let in_order = |p: &MetadataPartition| {
                    p.isr().len() == p.replicas().len() && p.replicas().first() == Some(&p.leader())
                };
                metadata.brokers().len() == NODES as usize && partitions.all(in_order)
            });
            if whole {
                return Ok(());
            }
            if begun.elapsed() > WHOLE_WAIT {
                return Err(HarnessError::plain(format!(
                    "the brokers are not in sync after {} s",
                    WHOLE_WAIT.as_secs()
                )));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn pid(&self, node: Node) -> Result<i32, HarnessError> {
        let path = self.folder.join(node.0.to_string()).join("pid");
        read(&path)?.parse().map_err(|e| HarnessError::local(format!("`{}` holds no process", path.display()), e))
    }

    /// Loses one.
    pub fn lose(&self, node: Node, loss: Loss) -> Result<(), HarnessError> {
        let pid = self.pid(node)?;
        match loss {
            Loss::Killed => kill_process(pid),
            Loss::Stopped => hang_process(pid),
        }
    }

    /// Brings it back: it may not be in sync yet.
    pub async fn heal(&self, node: Node, loss: Loss) -> Result<(), HarnessError> {
        if loss == Loss::Stopped {
            return continue_process(self.pid(node)?);
        }
        let script = self.folder.join("node");
        let ended = Command::new(&script).arg(node.0.to_string()).output().await;
        let ended = ended.map_err(|e| HarnessError::local(format!("`{}` cannot be run", script.display()), e))?;
        if ended.status.success() {
            return Ok(());
        }
        Err(HarnessError::plain(format!("a broker did not start again: {}", String::from_utf8_lossy(&ended.stderr))))
    }
}

fn read(path: &Path) -> Result<String, HarnessError> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|e| {
        HarnessError::local(
            format!("`{}` cannot be read; start the brokers with infra/servers/kafka3.sh", path.display()),
            e,
        )
    })?;
    Ok(text.trim().to_owned())
}

/// A client that notices a lost broker as soon as librdkafka can.
fn quick(bootstrap: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    for (name, value) in [
        ("bootstrap.servers", bootstrap),
        ("socket.timeout.ms", "1500"),
        ("socket.connection.setup.timeout.ms", "1000"),
        ("reconnect.backoff.ms", "50"),
        ("reconnect.backoff.max.ms", "200"),
        ("topic.metadata.refresh.interval.ms", "1000"),
        ("topic.metadata.refresh.fast.interval.ms", "50"),
        ("retry.backoff.ms", "20"),
        ("retry.backoff.max.ms", "100"),
    ] {
        config.set(name, value);
    }
    config
}

/// A bare producer and consumer on a topic with a partition on each broker: what the cluster and librdkafka need by themselves.
pub struct Bare {
    topic: String,
    /// When records came, by partition.
    arrivals: Arc<Mutex<Vec<Vec<Instant>>>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Bare {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Bare {
    /// Creates the topic and begins.
    pub async fn start(brokers: &Brokers, topic: &str) -> Result<Self, HarnessError> {
        let cannot = |e| HarnessError::local("the bare producer and consumer cannot be set up", e);
        // Said, because a broker that has just come up is given nothing to lead, and is then not missed.
        let led_by_each: [&[i32]; NODES as usize] = [&[1, 2, 3], &[2, 3, 1], &[3, 1, 2]];
        let new = NewTopic::new(topic, NODES, TopicReplication::Variable(&led_by_each)).set("min.insync.replicas", "2");
        brokers.admin.create_topics([&new], &AdminOptions::new()).await.map_err(cannot)?;
        brokers.until_whole().await?;
        let mut config = quick(&brokers.bootstrap);
        let mut consuming = config.clone();
        consuming.set("group.id", "bare").set("fetch.wait.max.ms", "50").set("enable.auto.commit", "false");
        let consumer: StreamConsumer<Quiet> = consuming.create_with_context(Quiet).map_err(cannot)?;
        let mut places = TopicPartitionList::new();
        for partition in 0..NODES {
            places.add_partition_offset(topic, partition, rdkafka::Offset::Beginning).map_err(cannot)?;
        }
        consumer.assign(&places).map_err(cannot)?;
        let arrivals = Arc::new(Mutex::new(vec![Vec::new(); NODES as usize]));
        let mut tasks = vec![tokio::spawn(consume(consumer, Arc::clone(&arrivals)))];
        config
            .set("acks", "all")
            .set("enable.idempotence", "true")
            .set("linger.ms", "0")
            .set("request.timeout.ms", "1500");
        let producer: FutureProducer<Quiet> = config.create_with_context(Quiet).map_err(cannot)?;
        tasks.extend((0..NODES).map(|partition| tokio::spawn(produce(producer.clone(), topic.to_owned(), partition))));
        Ok(Self { topic: topic.to_owned(), arrivals, tasks })
    }

    /// Waits until records of all partitions come again without a broker; how long none came of the one that missed it most.
    pub async fn gap(&self, brokers: &Brokers, lost: Node, since: Instant) -> Result<Duration, HarnessError> {
        let begun = Instant::now();
        let elected = loop {
            if brokers.leads_nothing(&self.topic, lost).await.is_ok_and(|nothing| nothing) {
                break Instant::now();
            }
            self.patience(begun)?;
            tokio::time::sleep(LOOK_EVERY).await;
        };
        loop {
            let arrivals = self.arrivals.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if arrivals.iter().all(|partition: &Vec<Instant>| partition.last().is_some_and(|last| *last > elected)) {
                let gap = |partition: &Vec<Instant>| {
                    let around = partition.windows(2).filter(|pair| pair[1] >= since);
                    around.map(|pair| pair[1] - pair[0]).max()
                };
                return Ok(arrivals.iter().filter_map(gap).max().unwrap_or_default());
            }
            self.patience(begun)?;
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn patience(&self, begun: Instant) -> Result<(), HarnessError> {
        if begun.elapsed() < WHOLE_WAIT {
            return Ok(());
        }
        Err(HarnessError::plain(format!(
            "a bare producer and consumer did not go on within {} s",
            WHOLE_WAIT.as_secs()
        )))
    }
}

async fn consume(consumer: StreamConsumer<Quiet>, arrivals: Arc<Mutex<Vec<Vec<Instant>>>>) {
    loop {
        match consumer.recv().await {
            Ok(message) => {
                let mut arrivals = arrivals.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(partition) = usize::try_from(message.partition()).ok().and_then(|p| arrivals.get_mut(p)) {
                    partition.push(Instant::now());
                }
            }
            Err(error) => tracing::debug!(%error, "a bare consumer goes on"),
        }
    }
}

async fn produce(producer: FutureProducer<Quiet>, topic: String, partition: i32) {
    loop {
        let record = FutureRecord::<(), [u8]>::to(&topic).payload(b"bare".as_slice()).partition(partition);
        if let Err((error, _)) = producer.send(record, BARE_TIMEOUT).await {
            tracing::warn!(%error, "a bare produce failed");
        }
        tokio::time::sleep(BARE_PAUSE).await;
    }
}
