//! Settings of the Kafka clients, each with its reason. As shipped, librdkafka waits for minutes where a fleet wants its slots
//! back: a broker that was stopped (its connections stay open) is noticed after 60 s. What remains with these is the time in
//! which the cluster itself notices, `broker.session.timeout.ms` of its controllers (9 s by default), and an election.
//!
//! librdkafka's own rules between settings are constants below and checked at compile time.

use super::MESSAGE_BYTES_MAX;
use crate::OpenError;
use crate::url::{KafkaUrl, Sasl};
use rdkafka::config::ClientConfig;

/// Time for a broker's answer. A broker that is stopped is taken for gone after this; a busy one answers in milliseconds. It is
/// also the time in which a request and its answer have to come through, so [`FETCH_BYTES_MAX`] and [`BATCH_BYTES_MAX`] are
/// small; the longest record of all, 8 MiB, needs 45 Mbit/s.
const SOCKET_TIMEOUT_MS: u64 = 1_500;
/// Time that a broker waits for its in-sync followers before it answers a produce; not longer than we wait for the answer.
const REQUEST_TIMEOUT_MS: u64 = 1_500;
/// Time for TCP, TLS and SASL together: a stopped broker's kernel still accepts. The least that librdkafka takes.
const CONNECTION_SETUP_TIMEOUT_MS: u64 = 1_000;
/// Pause before a connection is tried anew, doubled from the first to the last: brokers come back while we look.
const RECONNECT_BACKOFF_MS: u64 = 50;
const RECONNECT_BACKOFF_MS_MAX: u64 = 200;
/// How often the client asks unasked who leads: so late at most is a new leader known to somebody who waits with a record. Some hundred bytes.
const METADATA_REFRESH_MS: u64 = 250;
/// How often it asks once it knows that a leader is gone. librdkafka takes at most [`RETRY_BACKOFF_MS_MAX`].
const METADATA_REFRESH_FAST_MS: u64 = 50;
/// Pause before a failed request is tried again, doubled from the first to the last.
const RETRY_BACKOFF_MS: u64 = 20;
const RETRY_BACKOFF_MS_MAX: u64 = 100;
/// Time after which the fate of an append is given up as unknown: longer than brokers take to elect a new leader, also when
/// two of three were killed and started again (26 s, measured).
const DELIVERY_TIMEOUT_MS: u64 = 60_000;
/// Longest batch of a produce: at most five are in flight, so 1 MiB in [`SOCKET_TIMEOUT_MS`] needs 6 Mbit/s.
const BATCH_BYTES_MAX: u64 = 1 << 20;
/// Longest answer to a fetch, for the same reason; a longer record comes alone.
const FETCH_BYTES_MAX: u64 = 1 << 20;
/// Longest wait of a broker for new records. Followers are on the way from a demand to a free slot.
const FOLLOW_WAIT_MS: u64 = 10;
/// What is read again is there already.
const REREAD_WAIT_MS: u64 = 100;

const _: () = assert!(DELIVERY_TIMEOUT_MS >= REQUEST_TIMEOUT_MS, "an append has to outlive one request");
const _: () = assert!(REQUEST_TIMEOUT_MS <= SOCKET_TIMEOUT_MS, "a broker has to answer before it is taken for gone");
const _: () = assert!(FOLLOW_WAIT_MS + 1_000 <= SOCKET_TIMEOUT_MS && REREAD_WAIT_MS + 1_000 <= SOCKET_TIMEOUT_MS);
const _: () = assert!(RETRY_BACKOFF_MS <= RETRY_BACKOFF_MS_MAX && METADATA_REFRESH_FAST_MS <= RETRY_BACKOFF_MS_MAX);
const _: () = assert!(RECONNECT_BACKOFF_MS <= RECONNECT_BACKOFF_MS_MAX && CONNECTION_SETUP_TIMEOUT_MS >= 1_000);

/// What all clients have in common. Takes user and password, if the URL asks for them, from the environment.
pub(super) fn client(url: &KafkaUrl) -> Result<ClientConfig, OpenError> {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", url.bootstrap())
        .set("client.id", "ebb")
        .set(
            "security.protocol",
            match (url.ssl, url.sasl) {
                (false, None) => "plaintext",
                (true, None) => "ssl",
                (false, Some(_)) => "sasl_plaintext",
                (true, Some(_)) => "sasl_ssl",
            },
        )
        // A topic that is gone must not come back empty because somebody asked for it.
        .set("allow.auto.create.topics", "false")
        .set("socket.timeout.ms", SOCKET_TIMEOUT_MS.to_string())
        .set("socket.connection.setup.timeout.ms", CONNECTION_SETUP_TIMEOUT_MS.to_string())
        .set("reconnect.backoff.ms", RECONNECT_BACKOFF_MS.to_string())
        .set("reconnect.backoff.max.ms", RECONNECT_BACKOFF_MS_MAX.to_string())
        .set("topic.metadata.refresh.interval.ms", METADATA_REFRESH_MS.to_string())
        .set("topic.metadata.refresh.fast.interval.ms", METADATA_REFRESH_FAST_MS.to_string())
        .set("retry.backoff.ms", RETRY_BACKOFF_MS.to_string())
        .set("retry.backoff.max.ms", RETRY_BACKOFF_MS_MAX.to_string());
    if let Some(ca) = &url.ca {
        config.set("ssl.ca.location", ca.display().to_string());
    }
    if let Some(sasl) = url.sasl {
        let variable = |name: &'static str| std::env::var(name).map_err(|_| OpenError::Credential { name });
        config.set("sasl.mechanism", Sasl::mechanism(sasl));
        config.set("sasl.username", variable("EBB_KAFKA_USERNAME")?);
        config.set("sasl.password", variable("EBB_KAFKA_PASSWORD")?);
    }
    Ok(config)
}

/// The one producer: every record acknowledged by the in-sync replicas, in order, once, without waiting for company.
pub(super) fn producer(client: &ClientConfig) -> ClientConfig {
    let mut config = client.clone();
    config
        .set("enable.idempotence", "true")
        .set("acks", "all")
        .set("linger.ms", "0")
        .set("message.max.bytes", MESSAGE_BYTES_MAX.to_string())
        .set("batch.size", BATCH_BYTES_MAX.to_string())
        .set("request.timeout.ms", REQUEST_TIMEOUT_MS.to_string())
        .set("delivery.timeout.ms", DELIVERY_TIMEOUT_MS.to_string())
        // The bound of what waits in memory while brokers are away.
        .set("queue.buffering.max.messages", "10000")
        .set("queue.buffering.max.kbytes", "131072");
    config
}

/// What a consumer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    /// The newest records, as they come.
    Following,
    /// Older ones, which are there.
    Again,
}

/// A consumer whose partition is assigned by hand; a group name is set only because the client insists.
pub(super) fn consumer(client: &ClientConfig, reading: Reading) -> ClientConfig {
    let (wait_ms, read_ahead_kbytes) = match reading {
        Reading::Following => (FOLLOW_WAIT_MS, 16 << 10),
        Reading::Again => (REREAD_WAIT_MS, 8 << 10),
    };
    let mut config = client.clone();
    if reading == Reading::Again {
        // Behind the last record may be offsets that belong to none; without this a reader waits for what never comes.
        config.set("enable.partition.eof", "true");
    }
    config
        .set("group.id", "ebb-assigns-by-hand")
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("auto.offset.reset", "error")
        .set("isolation.level", "read_uncommitted")
        .set("check.crcs", "true")
        .set("fetch.wait.max.ms", wait_ms.to_string())
        .set("fetch.error.backoff.ms", RETRY_BACKOFF_MS.to_string())
        .set("max.partition.fetch.bytes", FETCH_BYTES_MAX.to_string())
        // librdkafka wants it at least as large as the longest message it may be sent.
        .set("fetch.max.bytes", MESSAGE_BYTES_MAX.to_string())
        .set("message.max.bytes", MESSAGE_BYTES_MAX.to_string())
        .set("queued.max.messages.kbytes", read_ahead_kbytes.to_string());
    config
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::LogUrl;
    use rdkafka::consumer::BaseConsumer;
    use rdkafka::producer::BaseProducer;

    /// librdkafka refuses a setting that breaks its rules when a client is made, before any broker is asked.
    #[test]
    fn librdkafka_takes_the_settings() {
        let LogUrl::Kafka(url) = LogUrl::parse("kafka://127.0.0.1:9").unwrap() else { unreachable!() };
        let client = client(&url).unwrap();
        let _: BaseProducer = producer(&client).create().unwrap();
        for reading in [Reading::Following, Reading::Again] {
            let _: BaseConsumer = consumer(&client, reading).create().unwrap();
        }
    }
}
