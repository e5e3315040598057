//! Server-sent events, as the API sends them: a parser that takes bytes as they come, and a reader that resumes where a
//! broken connection left off. What an event means is its reader's business.

use crate::client::Client;
use crate::error::ClientError;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use gateway_api::headers;
use serde_json::Value;
use std::collections::VecDeque;
use std::time::Duration;

/// Longest line accepted: an event is a fact without its spec, a few KiB.
const LINE_LEN_MAX: usize = 1 << 20;
/// Connections tried in a row before giving up: with the pauses below about 10 s, the time a restart takes.
const ATTEMPTS_MAX: u32 = 20;
/// Pause between two attempts.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// One event: its cursor and its CloudEvent.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Where a reader resumes after it.
    pub cursor: String,
    /// The CloudEvent.
    pub body: Value,
}

impl Event {
    /// The CloudEvent's type, for example `dev.ebb.job.scaled.v1`.
    #[must_use]
    pub fn kind(&self) -> &str {
        self.body["type"].as_str().unwrap_or_default()
    }

    /// The fact.
    #[must_use]
    pub fn data(&self) -> &Value {
        &self.body["data"]
    }
}

/// Cuts a byte stream into events.
#[derive(Debug, Default)]
struct Parser {
    line: Vec<u8>,
    cursor: String,
    data: String,
}

impl Parser {
    /// Takes the next bytes; returns the events they complete. Lines beyond the limit end the stream with an error text.
    fn push(&mut self, bytes: &[u8]) -> Result<Vec<Event>, String> {
        let mut events = Vec::new();
        for &byte in bytes {
            if byte != b'\n' {
                if self.line.len() == LINE_LEN_MAX {
                    return Err(format!("a line longer than {LINE_LEN_MAX} bytes"));
                }
                self.line.push(byte);
                continue;
            }
            let line = std::mem::take(&mut self.line);
            if let Some(event) = self.line_done(&String::from_utf8_lossy(&line))? {
                events.push(event);
            }
        }
        Ok(events)
    }

    fn line_done(&mut self, line: &str) -> Result<Option<Event>, String> {
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line.is_empty() {
            let data = std::mem::take(&mut self.data);
            if data.is_empty() {
                return Ok(None);
            }
            let body = serde_json::from_str(&data).map_err(|e| format!("an event that is no JSON: {e}"))?;
            return Ok(Some(Event { cursor: self.cursor.clone(), body }));
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => {
                if !self.data.is_empty() {
                    self.data.push('\n');
                }
                self.data.push_str(value);
            }
            "id" => value.clone_into(&mut self.cursor),
            // Comments (heartbeats), `event` and `retry` carry nothing we need.
            _ => {}
        }
        Ok(None)
    }
}

/// Reads events for as long as it is asked to, over broken connections.
pub struct Follower {
    client: Client,
    path: String,
    last: Option<String>,
    open: Option<BoxStream<'static, reqwest::Result<Bytes>>>,
    parser: Parser,
    ready: VecDeque<Event>,
}

impl Follower {
    /// Follows `path` from now on, or from after `last`; `0-0` is the beginning.
    #[must_use]
    pub fn new(client: Client, path: &str, last: Option<String>) -> Self {
        Self { client, path: path.to_owned(), last, open: None, parser: Parser::default(), ready: VecDeque::new() }
    }

    /// Opens the stream: what happens later than this returns comes with [`Self::next`].
    pub async fn open(&mut self) -> Result<(), ClientError> {
        if self.open.is_some() { Ok(()) } else { self.connect().await }
    }

    /// The next event; waits for it.
    pub async fn next(&mut self) -> Result<Event, ClientError> {
        let mut attempts = 0;
        loop {
            if let Some(event) = self.ready.pop_front() {
                // Progress has no cursor: it is never told again.
                if !event.cursor.is_empty() {
                    self.last = Some(event.cursor.clone());
                }
                return Ok(event);
            }
            let Some(stream) = self.open.as_mut() else {
                match self.connect().await {
                    Ok(()) => {}
                    Err(failure) if failure.may_pass() && attempts < ATTEMPTS_MAX => {
                        attempts += 1;
                        tokio::time::sleep(RETRY_PAUSE).await;
                    }
                    Err(failure) => return Err(failure),
                }
                continue;
            };
            match stream.next().await {
                Some(Ok(bytes)) => {
                    attempts = 0;
                    let events = self
                        .parser
                        .push(&bytes)
                        .map_err(|what| ClientError::Answer { url: self.path.clone(), what })?;
                    self.ready.extend(events);
                }
                Some(Err(_)) | None => {
                    self.open = None;
                    attempts += 1;
                    if attempts > ATTEMPTS_MAX {
                        return Err(ClientError::Answer {
                            url: self.path.clone(),
                            what: "the event stream keeps ending".to_owned(),
                        });
                    }
                }
            }
        }
    }

    async fn connect(&mut self) -> Result<(), ClientError> {
        let mut headers = vec![("accept", headers::EVENT_STREAM)];
        if let Some(last) = self.last.as_deref() {
            headers.push((headers::LAST_EVENT_ID, last));
        }
        let response = self.client.stream(&self.path, &headers).await?;
        self.parser = Parser::default();
        self.open = Some(response.bytes_stream().boxed());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    const TEXT: &str = ": heartbeat\n\nid: 4-0\ndata: {\"type\":\"a\",\ndata: \"data\":{\"x\":1}}\n\nid: 4-1\r\ndata: {\"type\":\"b\"}\r\n\r\n";

    #[test]
    fn events_come_out_the_same_however_the_bytes_are_cut() {
        let whole = Parser::default().push(TEXT.as_bytes()).unwrap();
        assert_eq!(whole.len(), 2);
        assert_eq!((whole[0].cursor.as_str(), whole[0].kind(), whole[0].data()), ("4-0", "a", &json!({"x": 1})));
        for size in 1..9 {
            let mut parser = Parser::default();
            let cut: Vec<Event> = TEXT.as_bytes().chunks(size).flat_map(|c| parser.push(c).unwrap()).collect();
            assert_eq!(cut, whole, "chunks of {size}");
        }
    }

    #[test]
    fn a_line_without_end_is_refused() {
        assert!(Parser::default().push(&vec![b'x'; LINE_LEN_MAX + 1]).is_err());
    }
}
