//! Topics and their settings: created where missing, checked where they are there. A log that would lose or refuse records
//! is not opened.

use super::follow::Place;
use super::{ANSWER_WAIT, Context, MESSAGE_BYTES_MAX};
use crate::url::KafkaUrl;
use crate::{Cause, OpenError, Stream};
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

/// Brings all five topics into the state that the log needs.
pub(super) async fn set_up(url: &KafkaUrl, config: &ClientConfig) -> Result<(), OpenError> {
    let admin: AdminClient<Context> = config
        .create_with_context(Context)
        .map_err(|source| OpenError::Client { brokers: url.bootstrap(), source: Arc::new(source) })?;
    let admin = Arc::new(admin);
    let metadata = metadata(url, &admin).await?;
    let brokers = metadata.brokers().len();
    let missing: Vec<Stream> =
        Stream::ALL.into_iter().filter(|stream| partitions(&metadata, &url.topic(*stream)).is_none()).collect();
    if !missing.is_empty() {
        create(url, &admin, &missing, brokers).await?;
    }
    for stream in Stream::ALL {
        check_partitions(url, &admin, stream).await?;
    }
    check_settings(url, &admin, brokers).await
}

fn options() -> AdminOptions {
    AdminOptions::new().request_timeout(Some(ANSWER_WAIT)).operation_timeout(Some(ANSWER_WAIT))
}

async fn metadata(url: &KafkaUrl, admin: &Arc<AdminClient<Context>>) -> Result<Metadata, OpenError> {
    let asking = Arc::clone(admin);
    let asked = tokio::task::spawn_blocking(move || asking.inner().fetch_metadata(None, ANSWER_WAIT)).await;
    let answer = asked.map_err(|panic| OpenError::Thread { source: Arc::new(panic) })?;
    answer.map_err(|source| OpenError::Unreachable {
        brokers: url.bootstrap(),
        waited: ANSWER_WAIT,
        source: Arc::new(source),
    })
}

/// Partitions of a topic that have a leader, and all of them; `None` if there is no such topic.
fn partitions(metadata: &Metadata, topic: &str) -> Option<(usize, usize)> {
    let found = metadata.topics().iter().find(|known| known.name() == topic && known.error().is_none())?;
    let led = found.partitions().iter().filter(|partition| partition.leader() >= 0).count();
    Some((led, found.partitions().len()))
}

async fn create(
    url: &KafkaUrl,
    admin: &AdminClient<Context>,
    streams: &[Stream],
    brokers: usize,
) -> Result<(), OpenError> {
    let names: Vec<String> = streams.iter().map(|stream| url.topic(*stream)).collect();
    let replicas = brokers.clamp(1, REPLICAS_WANTED);
    let partitions = i32::try_from(url.cells).unwrap_or(i32::MAX);
    let settings: Vec<Vec<(&'static str, String)>> = streams.iter().map(|stream| settings(*stream, replicas)).collect();
    let topics: Vec<NewTopic<'_>> = names
        .iter()
        .zip(&settings)
        .map(|(name, settings)| {
            let topic = NewTopic::new(name, partitions, TopicReplication::Fixed(i32::try_from(replicas).unwrap_or(1)));
            settings.iter().fold(topic, |topic, (setting, value)| topic.set(setting, value))
        })
        .collect();
    let failed = |topic: &str, problem: String| OpenError::Topic { topic: topic.to_owned(), problem };
    let results =
        admin.create_topics(&topics, &options()).await.map_err(|error| failed(&names.join(", "), error.to_string()))?;
    for result in results {
        match result {
            // Somebody else was faster; what they made is checked like any other.
            Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
            Err((topic, code)) => return Err(failed(&topic, code.to_string())),
        }
    }
    Ok(())
}

/// What a topic is created with.
fn settings(stream: Stream, replicas: usize) -> Vec<(&'static str, String)> {
    let mut settings = vec![
        ("max.message.bytes", MESSAGE_BYTES_MAX.to_string()),
        ("cleanup.policy", "delete".to_owned()),
        ("unclean.leader.election.enable", "false".to_owned()),
        ("min.insync.replicas", in_sync_wanted(replicas).to_string()),
    ];
    if keeps_everything(stream) {
        settings.extend([("retention.ms", "-1".to_owned()), ("retention.bytes", "-1".to_owned())]);
    }
    settings
}

/// Facts are kept for ever, and inputs until their facts are in a snapshot; only [`crate::EventLog::trim`] removes any.
/// Subscribers have the cluster's usual window.
fn keeps_everything(stream: Stream) -> bool {
    stream != Stream::Public
}

fn in_sync_wanted(replicas: usize) -> usize {
    if replicas >= REPLICAS_WANTED { 2 } else { 1 }
}

/// Waits until every partition has a leader, and checks that there is one for each cell.
async fn check_partitions(url: &KafkaUrl, admin: &Arc<AdminClient<Context>>, stream: Stream) -> Result<(), OpenError> {
    let topic = url.topic(stream);
    let wanted = usize::try_from(url.cells).unwrap_or(usize::MAX);
    let deadline = Instant::now() + LEADERS_WAIT;
    loop {
        let found = partitions(&metadata(url, admin).await?, &topic);
        match found {
            Some((led, all)) if led == all && all >= wanted => return Ok(()),
            Some((led, all)) if led == all && all > 0 => {
                let (found, expected) = (all.to_string(), format!("at least {wanted}, one for each cell"));
                return Err(OpenError::Setting { topic, setting: "partitions".to_owned(), found, expected });
            }
            _ if Instant::now() < deadline => tokio::time::sleep(LEADERS_POLL).await,
            _ => {
                return Err(OpenError::Topic {
                    topic,
                    problem: format!("not every partition has a leader after {LEADERS_WAIT:?}"),
                });
            }
        }
    }
}

async fn check_settings(url: &KafkaUrl, admin: &AdminClient<Context>, brokers: usize) -> Result<(), OpenError> {
    let names: Vec<String> = Stream::ALL.iter().map(|stream| url.topic(*stream)).collect();
    let resources: Vec<ResourceSpecifier<'_>> = names.iter().map(|name| ResourceSpecifier::Topic(name)).collect();
    let failed = |topic: &str, problem: String| OpenError::Topic { topic: topic.to_owned(), problem };
    let described = admin
        .describe_configs(&resources, &options())
        .await
        .map_err(|error| failed(&names.join(", "), error.to_string()))?;
    for ((stream, topic), described) in Stream::ALL.into_iter().zip(&names).zip(described) {
        let resource = described.map_err(|code| failed(topic, code.to_string()))?;
        check_topic(stream, topic, &resource, brokers)?;
    }
    Ok(())
}

fn check_topic(stream: Stream, topic: &str, resource: &ConfigResource, brokers: usize) -> Result<(), OpenError> {
    let value = |setting: &str| {
        resource.get(setting).and_then(|entry| entry.value.clone()).unwrap_or_else(|| "not set".to_owned())
    };
    let check = |setting: &str, expected: &str, right: &dyn Fn(&str) -> bool| {
        let found = value(setting);
        if right(&found) {
            return Ok(());
        }
        Err(OpenError::Setting {
            topic: topic.to_owned(),
            setting: setting.to_owned(),
            found,
            expected: expected.to_owned(),
        })
    };
    let at_least = |least: u64| move |found: &str| found.parse::<u64>().is_ok_and(|found| found >= least);
    check("max.message.bytes", &format!("at least {MESSAGE_BYTES_MAX}"), &at_least(u64::from(MESSAGE_BYTES_MAX)))?;
    check("cleanup.policy", "delete", &|found| found == "delete")?;
    check("unclean.leader.election.enable", "false", &|found| found == "false")?;
    let in_sync = in_sync_wanted(brokers);
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
