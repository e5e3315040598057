//! Topics and their settings: created where nothing was ever written, checked at each start. A log that has lost records, or
//! would lose or refuse some, is not opened.
//!
//! The topics of one log are made with one mark, so that one that was deleted and made anew is noticed (`mark.rs`).

use super::follow::Place;
use super::mark::{self, Mark};
use super::{ANSWER_WAIT, Context, MESSAGE_BYTES_MAX};
use crate::url::KafkaUrl;
use crate::{Cause, Missing, OpenError, Stream};
use rdkafka::admin::{AdminClient, AdminOptions, ConfigResource, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::config::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::metadata::Metadata;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Copies of each partition, where there are so many brokers.
const REPLICAS_WANTED: usize = 3;
/// Time until a new topic has leaders on all partitions.
const LEADERS_WAIT: Duration = Duration::from_secs(30);
/// How often that is looked at.
const LEADERS_POLL: Duration = Duration::from_millis(50);

/// A cluster while its topics are set up.
struct Cluster<'a> {
    url: &'a KafkaUrl,
    admin: Arc<AdminClient<Context>>,
}

/// Brings all five topics into the state that the log needs, or, of a log that has to be there, only looks at them.
pub(super) async fn set_up(url: &KafkaUrl, config: &ClientConfig, missing_are: Missing) -> Result<(), OpenError> {
    let admin: AdminClient<Context> = config
        .create_with_context(Context)
        .map_err(|source| OpenError::Client { brokers: url.bootstrap(), source: Arc::new(source) })?;
    let cluster = Cluster { url, admin: Arc::new(admin) };
    let metadata = cluster.metadata().await?;
    let (there, missing): (Vec<Stream>, Vec<Stream>) =
        Stream::ALL.into_iter().partition(|stream| partitions(&metadata, &url.topic(*stream)).is_some());
    let streams = match missing_are {
        Missing::Made if missing.is_empty() => there,
        Missing::Made => {
            cluster.complete(&there, &missing, metadata.brokers().len()).await?;
            Stream::ALL.to_vec()
        }
        Missing::Refused => {
            if let Some(lost) = missing.into_iter().find(|stream| keeps_everything(*stream)) {
                cluster.refuse_if_records(&there, lost).await?;
                return Err(OpenError::Absent { what: format!("topic {}", url.topic(lost)) });
            }
            there
        }
    };
    let mut brokers = 0;
    for stream in &streams {
        brokers = cluster.check_partitions(*stream).await?;
    }
    cluster.check_settings(&streams, brokers).await
}

fn options() -> AdminOptions {
    AdminOptions::new().request_timeout(Some(ANSWER_WAIT)).operation_timeout(Some(ANSWER_WAIT))
}

/// What is found of a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Partitions {
    /// Those that have a leader.
    led: usize,
    all: usize,
    /// Copies of the partition that has the fewest.
    replicas: usize,
}

/// `None` if there is no such topic.
fn partitions(metadata: &Metadata, topic: &str) -> Option<Partitions> {
    let found = metadata.topics().iter().find(|known| known.name() == topic && known.error().is_none())?;
    let led = found.partitions().iter().filter(|partition| partition.leader() >= 0).count();
    let replicas = found.partitions().iter().map(|partition| partition.replicas().len()).min().unwrap_or(0);
    Some(Partitions { led, all: found.partitions().len(), replicas })
}

/// Facts are kept for ever, and inputs until their facts are in a snapshot; only [`crate::EventLog::trim`] removes any.
/// Subscribers have the cluster's usual window, and nothing is lost with their topic.
fn keeps_everything(stream: Stream) -> bool {
    stream != Stream::Public
}

fn in_sync_wanted(replicas: usize) -> usize {
    if replicas >= REPLICAS_WANTED { 2 } else { 1 }
}

/// What a topic is created with.
fn settings(stream: Stream, replicas: usize, mark: Mark) -> Vec<(&'static str, String)> {
    let mut settings = vec![
        ("max.message.bytes", MESSAGE_BYTES_MAX.to_string()),
        ("cleanup.policy", "delete".to_owned()),
        ("unclean.leader.election.enable", "false".to_owned()),
        ("min.insync.replicas", in_sync_wanted(replicas).to_string()),
        (mark::SETTING, mark.to_string()),
    ];
    if keeps_everything(stream) {
        settings.extend([("retention.ms", "-1".to_owned()), ("retention.bytes", "-1".to_owned())]);
    }
    settings
}

fn failed(topic: &str, problem: impl ToString) -> OpenError {
    OpenError::Topic { topic: topic.to_owned(), problem: problem.to_string() }
}

fn value(resource: &ConfigResource, setting: &str) -> String {
    resource.get(setting).and_then(|entry| entry.value.clone()).unwrap_or_else(|| "not set".to_owned())
}

impl Cluster<'_> {
    async fn metadata(&self) -> Result<Metadata, OpenError> {
        let asking = Arc::clone(&self.admin);
        let asked = tokio::task::spawn_blocking(move || asking.inner().fetch_metadata(None, ANSWER_WAIT)).await;
        let answer = asked.map_err(|panic| OpenError::Thread { source: Arc::new(panic) })?;
        answer.map_err(|source| OpenError::Unreachable {
            brokers: self.url.bootstrap(),
            waited: ANSWER_WAIT,
            source: Arc::new(source),
        })
    }

    /// Makes missing topics, with the mark of those that are there. Not if one that keeps records is missing beside others
    /// that have some: then records were lost with it.
    async fn complete(&self, there: &[Stream], missing: &[Stream], brokers: usize) -> Result<(), OpenError> {
        if let Some(lost) = missing.iter().copied().find(|stream| keeps_everything(*stream)) {
            self.refuse_if_records(there, lost).await?;
        }
        let mark = match there.iter().copied().find(|stream| keeps_everything(*stream)) {
            Some(stream) => {
                let resource = self.describe(&[stream]).await?.remove(0);
                Mark::parse(&value(&resource, mark::SETTING)).unwrap_or(Mark::UNMARKED)
            }
            None => Mark::random().map_err(|source| OpenError::Thread { source: Arc::new(source) })?,
        };
        self.create(missing, brokers, mark).await
    }

    /// One topic that keeps records is gone: whatever stands in the others, that was lost with it.
    async fn refuse_if_records(&self, there: &[Stream], lost: Stream) -> Result<(), OpenError> {
        for stream in there.iter().copied().filter(|stream| keeps_everything(*stream)) {
            if self.has_records(stream).await? {
                let (missing, present) = (self.url.topic(lost), self.url.topic(stream));
                return Err(OpenError::Incomplete { missing, present });
            }
        }
        Ok(())
    }

    /// Whether anything was ever written to a topic.
    async fn has_records(&self, stream: Stream) -> Result<bool, OpenError> {
        let topic = self.url.topic(stream);
        let all = partitions(&self.metadata().await?, &topic).map_or(0, |found| found.all);
        let (asking, asked) = (Arc::clone(&self.admin), topic.clone());
        let ends = tokio::task::spawn_blocking(move || {
            (0..i32::try_from(all).unwrap_or(i32::MAX))
                .map(|partition| asking.inner().fetch_watermarks(&asked, partition, ANSWER_WAIT).map(|(_, end)| end))
                .collect::<Result<Vec<i64>, KafkaError>>()
        });
        let ends = ends.await.map_err(|panic| OpenError::Thread { source: Arc::new(panic) })?;
        Ok(ends.map_err(|error| failed(&topic, error))?.into_iter().any(|end| end > 0))
    }

    async fn create(&self, streams: &[Stream], brokers: usize, mark: Mark) -> Result<(), OpenError> {
        let replicas = self.url.replicas.map_or(brokers.clamp(1, REPLICAS_WANTED), |replicas| replicas as usize);
        let partitions = i32::try_from(self.url.cells).unwrap_or(i32::MAX);
        let topics: Vec<(String, Vec<(&'static str, String)>)> =
            streams.iter().map(|stream| (self.url.topic(*stream), settings(*stream, replicas, mark))).collect();
        let new = topics.iter().map(|(name, settings)| {
            let topic = NewTopic::new(name, partitions, TopicReplication::Fixed(i32::try_from(replicas).unwrap_or(1)));
            settings.iter().fold(topic, |topic, (setting, value)| topic.set(setting, value))
        });
        let new: Vec<NewTopic<'_>> = new.collect();
        let names = || topics.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
        let results = self.admin.create_topics(&new, &options()).await.map_err(|error| failed(&names(), error))?;
        for result in results {
            match result {
                // Somebody else was faster; what they made is checked like any other.
                Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
                Err((topic, code)) => return Err(failed(&topic, code)),
            }
        }
        Ok(())
    }

    /// Waits until every partition has a leader, checks that there is one for each cell and how many copies it has, and says
    /// how many brokers there are.
    async fn check_partitions(&self, stream: Stream) -> Result<usize, OpenError> {
        let topic = self.url.topic(stream);
        let wanted = usize::try_from(self.url.cells).unwrap_or(usize::MAX);
        let deadline = Instant::now() + LEADERS_WAIT;
        loop {
            let metadata = self.metadata().await?;
            match partitions(&metadata, &topic) {
                Some(found) if found.led == found.all && found.all >= wanted => {
                    self.check_replicas(&topic, found.replicas, metadata.brokers().len())?;
                    return Ok(metadata.brokers().len());
                }
                Some(Partitions { led, all, .. }) if led == all && all > 0 => {
                    let (found, expected) = (all.to_string(), format!("at least {wanted}, one for each cell"));
                    return Err(OpenError::Setting { topic, setting: "partitions".to_owned(), found, expected });
                }
                _ if Instant::now() < deadline => tokio::time::sleep(LEADERS_POLL).await,
                Some(_) => {
                    return Err(failed(&topic, format!("not every partition has a leader after {LEADERS_WAIT:?}")));
                }
                // Brokers leave out what their client may not know of.
                None => {
                    let why = "the brokers do not show it; this user needs the rights that docs/kafka.md names";
                    return Err(failed(&topic, why));
                }
            }
        }
    }

    /// A log that was made while few brokers were there keeps as few copies for ever, unless somebody is told.
    fn check_replicas(&self, topic: &str, found: usize, brokers: usize) -> Result<(), OpenError> {
        match self.url.replicas.map(|replicas| replicas as usize) {
            Some(wanted) if found < wanted => Err(OpenError::Setting {
                topic: topic.to_owned(),
                setting: "replicas".to_owned(),
                found: found.to_string(),
                expected: format!("{wanted}, as ?replicas= says (kafka-reassign-partitions adds copies)"),
            }),
            None if found < brokers.min(REPLICAS_WANTED) => {
                let advice = "add copies with kafka-reassign-partitions and set min.insync.replicas=2 then, or say ?replicas= to accept it";
                tracing::warn!(topic, found, brokers, advice, "a topic has fewer copies than the cluster could keep");
                Ok(())
            }
            _ => Ok(()),
        }
    }

    async fn describe(&self, streams: &[Stream]) -> Result<Vec<ConfigResource>, OpenError> {
        let names: Vec<String> = streams.iter().map(|stream| self.url.topic(*stream)).collect();
        let resources: Vec<ResourceSpecifier<'_>> = names.iter().map(|name| ResourceSpecifier::Topic(name)).collect();
        let described = self.admin.describe_configs(&resources, &options()).await;
        let described = described.map_err(|error| failed(&names.join(", "), error))?;
        if described.len() != names.len() {
            return Err(failed(&names.join(", "), "the cluster did not describe every topic"));
        }
        names.iter().zip(described).map(|(topic, described)| described.map_err(|code| failed(topic, code))).collect()
    }

    async fn check_settings(&self, streams: &[Stream], brokers: usize) -> Result<(), OpenError> {
        let metadata = self.metadata().await?;
        let mut marks: Vec<(String, String)> = Vec::new();
        for (stream, resource) in streams.iter().copied().zip(self.describe(streams).await?) {
            let topic = self.url.topic(stream);
            let replicas = partitions(&metadata, &topic).map_or(brokers, |found| found.replicas);
            check_topic(stream, &topic, &resource, replicas)?;
            if keeps_everything(stream) {
                marks.push((topic, value(&resource, mark::SETTING)));
            }
        }
        mark::check(&marks)
    }
}

fn check_topic(stream: Stream, topic: &str, resource: &ConfigResource, replicas: usize) -> Result<(), OpenError> {
    let check = |setting: &str, expected: &str, right: &dyn Fn(&str) -> bool| {
        let found = value(resource, setting);
        if right(&found) {
            return Ok(());
        }
        let (topic, setting, expected) = (topic.to_owned(), setting.to_owned(), expected.to_owned());
        Err(OpenError::Setting { topic, setting, found, expected })
    };
    let at_least = |least: u64| move |found: &str| found.parse::<u64>().is_ok_and(|found| found >= least);
    check("max.message.bytes", &format!("at least {MESSAGE_BYTES_MAX}"), &at_least(u64::from(MESSAGE_BYTES_MAX)))?;
    check("cleanup.policy", "delete", &|found| found == "delete")?;
    check("unclean.leader.election.enable", "false", &|found| found == "false")?;
    let in_sync = in_sync_wanted(replicas);
    check("min.insync.replicas", &format!("at least {in_sync}"), &at_least(in_sync as u64))?;
    if keeps_everything(stream) {
        check("retention.ms", "-1", &|found| found == "-1")?;
        check("retention.bytes", "-1", &|found| found == "-1")?;
    }
    Ok(())
}

/// Removes everything below a place.
pub(super) async fn delete_records(config: &ClientConfig, place: &Place) -> Result<(), Cause> {
    let cause = |error: KafkaError| Arc::new(error) as Cause;
    let admin: AdminClient<Context> = config.create_with_context(Context).map_err(cause)?;
    let list = place.list().map_err(cause)?;
    let results = admin.delete_records(&list, &options()).await.map_err(cause)?;
    results.elements().iter().try_for_each(|element| element.error()).map_err(cause)
}
