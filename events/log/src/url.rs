//! Which log a URL names. Parses once into types; opening is [`crate::open`]'s.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A log, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogUrl {
    /// `memory:`: a new one that is gone with the process.
    Memory,
    /// `file:///ABSOLUTE/PATH`: the embedded log in this file. The path stands as it is; nothing in it is decoded.
    File(PathBuf),
    /// `kafka://HOST:PORT[,HOST:PORT…]` or `kafka+ssl://…`
    Kafka(KafkaUrl),
}

/// A Kafka cluster and how to use it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KafkaUrl {
    /// `HOST:PORT` each, at least one.
    pub brokers: Vec<String>,
    /// `kafka+ssl://`.
    pub ssl: bool,
    /// `?ca=PATH`: certificates (PEM) to trust instead of the system's.
    pub ca: Option<PathBuf>,
    /// `?sasl=…`: user and password come from the environment, never from a URL.
    pub sasl: Option<Sasl>,
    /// `?plaintext=allow`: unencrypted to hosts other than this one.
    pub plaintext_allowed: bool,
    /// `?prefix=…`: topics are `PREFIX.STREAM`; `ebb` by default.
    pub prefix: String,
    /// `?cells=N`: partitions of each topic; 1 by default.
    pub cells: u32,
    /// `?replicas=N`: copies that each partition has to have. Without it, new topics get as many as there are brokers, at most
    /// three, and too few are only complained about.
    pub replicas: Option<u32>,
}

/// What names of topics begin with, before a dot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicPrefix(String);

impl TopicPrefix {
    const EXPECTED: &str = "a prefix of 1 to 180 characters of a-z, A-Z, 0-9, '.', '_' and '-'";

    /// Takes what Kafka does, and leaves room for a dot and a fleet's name.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let legal = (1..=180).contains(&text.len()) && text.bytes().all(in_topics);
        if legal { Ok(Self(text.to_owned())) } else { Err(Self::EXPECTED) }
    }

    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for TopicPrefix {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse(text).map_err(|expected| format!("`{text}` is not the prefix of topics: expected {expected}"))
    }
}

/// What names of topics are made of.
fn in_topics(c: u8) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-')
}

/// How a client proves who it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sasl {
    /// `plain`
    Plain,
    /// `scram-sha-256`
    ScramSha256,
    /// `scram-sha-512`
    ScramSha512,
}

impl Sasl {
    const WORDS: [(&str, Sasl); 3] =
        [("plain", Sasl::Plain), ("scram-sha-256", Sasl::ScramSha256), ("scram-sha-512", Sasl::ScramSha512)];

    /// Its name in the protocol.
    #[must_use]
    pub fn mechanism(self) -> &'static str {
        match self {
            Sasl::Plain => "PLAIN",
            Sasl::ScramSha256 => "SCRAM-SHA-256",
            Sasl::ScramSha512 => "SCRAM-SHA-512",
        }
    }
}

/// A text that names no log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{value}` is not the URL of a log: expected {expected}")]
pub struct LogUrlError {
    /// As given, without a user and a password, and cut to 120 characters.
    pub value: String,
    /// What would be right.
    pub expected: String,
}

/// Most brokers of one URL; a client needs a few to begin with and learns the others.
const BROKERS_MAX: usize = 32;
/// Most partitions of a topic: a cell is about 1,000 servers.
const CELLS_MAX: u32 = 1_024;

/// Most copies of a partition.
const REPLICAS_MAX: u32 = 32;

impl LogUrl {
    /// Parses the forms above.
    pub fn parse(text: &str) -> Result<Self, LogUrlError> {
        let wrong = |expected: &str| LogUrlError { value: shown(text), expected: expected.to_owned() };
        if text == "memory:" {
            return Ok(LogUrl::Memory);
        }
        if let Some(path) = text.strip_prefix("file://") {
            if !path.starts_with('/') {
                return Err(wrong("file:///ABSOLUTE/PATH, with three slashes"));
            }
            if path.ends_with('/') {
                return Err(wrong("the path of a file, not of a folder"));
            }
            return Ok(LogUrl::File(PathBuf::from(path)));
        }
        let (ssl, rest) = match (text.strip_prefix("kafka://"), text.strip_prefix("kafka+ssl://")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            _ => {
                return Err(wrong(
                    "kafka://HOST:PORT[,HOST:PORT], kafka+ssl://HOST:PORT, file:///ABSOLUTE/PATH or memory:",
                ));
            }
        };
        parse_kafka(ssl, rest).map(LogUrl::Kafka).map_err(|expected| wrong(&expected))
    }

    /// The embedded log in this file.
    #[must_use]
    pub fn file(path: impl Into<PathBuf>) -> Self {
        LogUrl::File(path.into())
    }
}

/// A URL as it may stand in messages and journals.
fn shown(text: &str) -> String {
    let scheme = text.find("://").map_or("", |end| &text[..end + "://".len()]);
    let hidden = text.rsplit_once('@').filter(|_| scheme != "file://").map(|(_, rest)| format!("{scheme}…@{rest}"));
    hidden.as_deref().unwrap_or(text).chars().take(120).collect()
}

fn parse_kafka(ssl: bool, rest: &str) -> Result<KafkaUrl, String> {
    let (brokers, query) = rest.split_once('?').unwrap_or((rest, ""));
    let brokers = brokers.strip_suffix('/').unwrap_or(brokers);
    if brokers.contains('@') {
        return Err(
            "no user or password in the URL: add ?sasl=scram-sha-512 and set EBB_KAFKA_USERNAME and EBB_KAFKA_PASSWORD"
                .to_owned(),
        );
    }
    let brokers: Vec<String> = brokers.split(',').map(str::to_owned).collect();
    if brokers.len() > BROKERS_MAX {
        return Err(format!("at most {BROKERS_MAX} brokers"));
    }
    for broker in &brokers {
        check_broker(broker)?;
    }
    let mut fields: BTreeMap<&str, &str> = BTreeMap::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').ok_or_else(|| format!("NAME=VALUE instead of `{pair}`"))?;
        if fields.insert(name, value).is_some() {
            return Err(format!("`{name}` only once"));
        }
    }
    let prefix = fields.remove("prefix").unwrap_or("ebb").to_owned();
    if prefix.is_empty() || prefix.len() > 200 || !prefix.bytes().all(in_topics) {
        return Err("a prefix of 1 to 200 characters of a-z, A-Z, 0-9, '.', '_' and '-'".to_owned());
    }
    let cells = fields.remove("cells").unwrap_or("1").parse().ok().filter(|cells| (1..=CELLS_MAX).contains(cells));
    let replicas = match fields.remove("replicas") {
        None => None,
        Some(number) => Some(
            number
                .parse()
                .ok()
                .filter(|replicas| (1..=REPLICAS_MAX).contains(replicas))
                .ok_or_else(|| format!("replicas=N, from 1 to {REPLICAS_MAX}"))?,
        ),
    };
    let plaintext_allowed = match fields.remove("plaintext") {
        None => false,
        Some("allow") if !ssl => true,
        Some(_) => return Err("plaintext=allow, with kafka:// only".to_owned()),
    };
    let ca = fields.remove("ca").map(PathBuf::from);
    if ca.is_some() && !ssl {
        return Err("kafka+ssl:// when `ca` is given".to_owned());
    }
    let sasl = match fields.remove("sasl") {
        None => None,
        Some(word) => Some(
            Sasl::WORDS
                .iter()
                .find(|(known, _)| *known == word)
                .map(|(_, sasl)| *sasl)
                .ok_or("sasl=plain, scram-sha-256 or scram-sha-512")?,
        ),
    };
    if let Some(unknown) = fields.keys().next() {
        return Err(format!("no `{unknown}`; the settings here are prefix, cells, replicas, plaintext, ca, sasl"));
    }
    let cells = cells.ok_or_else(|| format!("cells=N, from 1 to {CELLS_MAX}"))?;
    Ok(KafkaUrl { brokers, ssl, ca, sasl, plaintext_allowed, prefix, cells, replicas })
}

fn check_broker(broker: &str) -> Result<(), String> {
    let problem = || format!("HOST:PORT instead of `{broker}`");
    let (host, port) = broker.rsplit_once(':').ok_or_else(problem)?;
    let host_ok = !host.is_empty()
        && (host.starts_with('[') == host.ends_with(']'))
        && host.bytes().all(|c| c.is_ascii_alphanumeric() || b".-_:[]".contains(&c));
    // A bare IPv6 address would swallow the port.
    let one_colon = host.starts_with('[') || !host.contains(':');
    if host_ok && one_colon && port.parse::<u16>().is_ok_and(|port| port != 0) { Ok(()) } else { Err(problem()) }
}

impl KafkaUrl {
    /// `HOST:PORT,HOST:PORT`, as clients want it.
    #[must_use]
    pub fn bootstrap(&self) -> String {
        self.brokers.join(",")
    }

    /// Whether records would go over a network unencrypted without anybody having said so.
    #[must_use]
    pub fn plaintext_refused(&self) -> bool {
        let loopback = |broker: &String| {
            let host = broker.rsplit_once(':').map_or(broker.as_str(), |(host, _)| host);
            let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
            host == "localhost" || address.is_ok_and(|address| address.is_loopback())
        };
        !self.ssl && !self.plaintext_allowed && !self.brokers.iter().all(loopback)
    }

    /// The topic of a stream.
    #[must_use]
    pub fn topic(&self, stream: crate::Stream) -> String {
        format!("{}.{stream}", self.prefix)
    }
}

impl FromStr for LogUrl {
    type Err = LogUrlError;
    fn from_str(text: &str) -> Result<Self, LogUrlError> {
        Self::parse(text)
    }
}

impl fmt::Display for LogUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogUrl::Memory => f.write_str("memory:"),
            LogUrl::File(path) => write!(f, "file://{}", path.display()),
            LogUrl::Kafka(kafka) => {
                write!(f, "{}://{}", if kafka.ssl { "kafka+ssl" } else { "kafka" }, kafka.bootstrap())?;
                write!(f, "?prefix={}&cells={}", kafka.prefix, kafka.cells)?;
                if let Some(replicas) = kafka.replicas {
                    write!(f, "&replicas={replicas}")?;
                }
                if kafka.plaintext_allowed {
                    f.write_str("&plaintext=allow")?;
                }
                if let Some(ca) = &kafka.ca {
                    write!(f, "&ca={}", ca.display())?;
                }
                match kafka.sasl.and_then(|sasl| Sasl::WORDS.iter().find(|(_, known)| *known == sasl)) {
                    Some((word, _)) => write!(f, "&sasl={word}"),
                    None => Ok(()),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_form_survives_its_text() {
        for text in [
            "memory:",
            "file:///var/lib/ebb/a b%20.redb",
            "kafka://127.0.0.1:9092",
            "kafka+ssl://a.example:9093,b.example:9093?prefix=x&cells=4&replicas=3&ca=/etc/ca.pem&sasl=scram-sha-512",
            "kafka://[::1]:9092,localhost:1?plaintext=allow",
        ] {
            let url = LogUrl::parse(text).unwrap();
            assert_eq!(LogUrl::parse(&url.to_string()).unwrap(), url, "{text}");
        }
    }

    #[test]
    fn every_wrong_url_says_what_would_be_right() {
        let cases = [
            ("", "kafka://HOST:PORT"),
            ("http://x", "kafka://HOST:PORT"),
            ("memory", "memory:"),
            ("file://rel/path", "three slashes"),
            ("file:///", "not of a folder"),
            ("file:///var/lib/", "not of a folder"),
            ("kafka://", "HOST:PORT instead of ``"),
            ("kafka://host", "HOST:PORT instead of `host`"),
            ("kafka://host:0", "HOST:PORT"),
            ("kafka://host:70000", "HOST:PORT"),
            ("kafka://a:1,,b:2", "HOST:PORT instead of ``"),
            ("kafka://::1:9092", "HOST:PORT"),
            ("kafka://user:secret@host:1", "EBB_KAFKA_USERNAME"),
            ("kafka://user:secret@host:1", "kafka://…@host:1"),
            ("user:secret@host:1", "`…@host:1`"),
            ("file://rel/a@b", "`file://rel/a@b`"),
            ("kafka://h:1?prefix=", "prefix"),
            ("kafka://h:1?prefix=a/b", "prefix"),
            ("kafka://h:1?cells=0", "cells=N"),
            ("kafka://h:1?cells=many", "cells=N"),
            ("kafka://h:1?replicas=0", "replicas=N"),
            ("kafka://h:1?plaintext=yes", "plaintext=allow"),
            ("kafka+ssl://h:1?plaintext=allow", "plaintext=allow"),
            ("kafka://h:1?ca=/x", "kafka+ssl://"),
            ("kafka://h:1?sasl=gssapi", "scram-sha-512"),
            ("kafka://h:1?topic=x", "no `topic`"),
            ("kafka://h:1?prefix=a&prefix=b", "only once"),
            ("kafka://h:1?prefix", "NAME=VALUE"),
        ];
        for (text, expected) in cases {
            let error = LogUrl::parse(text).unwrap_err();
            assert!(error.to_string().contains(expected), "{text}: {error}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }

    #[test]
    fn plaintext_stays_on_this_machine_unless_allowed() {
        let refused = |text: &str| match LogUrl::parse(text).unwrap() {
            LogUrl::Kafka(kafka) => kafka.plaintext_refused(),
            _ => unreachable!(),
        };
        assert!(!refused("kafka://127.0.0.1:1,localhost:2,[::1]:3"));
        assert!(refused("kafka://127.0.0.1:1,broker.example:2"));
        assert!(!refused("kafka://broker.example:2?plaintext=allow"));
        assert!(!refused("kafka+ssl://broker.example:2"));
    }
}
