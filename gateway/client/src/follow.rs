//! Server-sent events, as the API sends them: a parser that takes bytes as they come, and a reader that resumes where a
//! broken connection left off. What an event means is its reader's business.

use crate::client::Client;
use crate::error::ClientError;
use crate::filters::Events;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use gateway_api::headers;
use serde_json::Value;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Longest line accepted: an event is a fact without its spec, a few KiB.
const LINE_LEN_MAX: usize = 1 << 20;
/// Streams that failed in a row before giving up: with the pauses below about 10 s, the time a restart takes.
const FAILURES_MAX: u32 = 20;
/// Pause before a stream is opened again.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// A stream that was open for so long did not fail: whatever stands before the service may end a silent one after a while. Above
/// what `FAILURES_MAX` streams that end at once take with their pauses.
const STEADY_AFTER: Duration = Duration::from_secs(15);

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
    /// The last `id` read; it is of a block that may not have ended.
    id: String,
    /// The `id` of the last whole block, which may have had no event: the service begins with one that says only where it is.
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
            self.id.clone_into(&mut self.cursor);
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
            "id" => value.clone_into(&mut self.id),
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
    open: Option<Open>,
    parser: Parser,
    ready: VecDeque<Event>,
    /// Streams in a row that could not be opened, or ended at once without an event.
    failures: u32,
    retry_pause: Duration,
}

struct Open {
    pieces: BoxStream<'static, reqwest::Result<Bytes>>,
    since: Instant,
}

impl Follower {
    /// Follows these events from now on, or from after `last`; `0-0` is the beginning.
    #[must_use]
    pub fn new(client: Client, events: &Events, last: Option<String>) -> Self {
        let (parser, ready) = (Parser::default(), VecDeque::new());
        Self { client, path: events.stream(), last, open: None, parser, ready, failures: 0, retry_pause: RETRY_PAUSE }
    }

    /// Opens the stream: what happens later than this returns comes with [`Self::next`].
    pub async fn open(&mut self) -> Result<(), ClientError> {
        if self.open.is_some() { Ok(()) } else { self.connect().await }
    }

    /// The next event; waits for it.
    pub async fn next(&mut self) -> Result<Event, ClientError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.failures = 0;
                return Ok(event);
            }
            let Some(open) = self.open.as_mut() else {
                match self.connect().await {
                    Ok(()) => {}
                    Err(failure) if failure.may_pass() => self.failed(failure).await?,
                    Err(failure) => return Err(failure),
                }
                continue;
            };
            match self.client.in_time(&self.path, open.pieces.next()).await {
                Ok(Some(Ok(bytes))) => {
                    let events = self.parser.push(&bytes).map_err(|what| self.answer(what))?;
                    self.ready.extend(events);
                }
                // A stream on which not even a heartbeat comes has ended, too.
                Ok(Some(Err(_)) | None) | Err(_) => {
                    if open.since.elapsed() >= STEADY_AFTER {
                        self.failures = 0;
                    }
                    self.open = None;
                    self.failed(self.answer("the event stream keeps ending".to_owned())).await?;
                }
            }
        }
    }

    /// Counts a stream that failed, and pauses before the next; `failure` is what is said when there were too many.
    async fn failed(&mut self, failure: ClientError) -> Result<(), ClientError> {
        if self.failures == FAILURES_MAX {
            self.failures = 0;
            return Err(failure);
        }
        self.failures += 1;
        tokio::time::sleep(self.retry_pause).await;
        Ok(())
    }

    fn answer(&self, what: String) -> ClientError {
        ClientError::Answer { url: self.path.clone(), what }
    }

    /// Opens the stream after the last whole block. Every event up to there was handed out, or there would be no need of another stream.
    async fn connect(&mut self) -> Result<(), ClientError> {
        if !self.parser.cursor.is_empty() {
            self.last = Some(std::mem::take(&mut self.parser.cursor));
        }
        let mut headers = vec![("accept", headers::EVENT_STREAM)];
        if let Some(last) = self.last.as_deref() {
            headers.push((headers::LAST_EVENT_ID, last));
        }
        let response = self.client.stream(&self.path, &headers).await?;
        self.parser = Parser::default();
        self.open = Some(Open { pieces: response.bytes_stream().boxed(), since: Instant::now() });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::canned;
    use crate::options::ClientOptions;
    use serde_json::json;
    use tokio::sync::mpsc::UnboundedReceiver;

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

    async fn serve(bodies: &[&str], hangs: bool) -> (String, UnboundedReceiver<String>) {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
        canned::serve(bodies.iter().map(|body| format!("{head}{body}")).collect(), hangs).await
    }

    async fn streams(bodies: &[&str]) -> (Client, UnboundedReceiver<String>) {
        let (address, heads) = serve(bodies, false).await;
        (Client::new(&address).unwrap(), heads)
    }

    /// The service says where it is before there is any event; what is lost of a block that was cut off is told again.
    #[tokio::test]
    async fn a_stream_goes_on_behind_its_last_whole_block_also_if_that_was_no_event() {
        let bodies = [
            "id: 7-2\nretry: 1000\n: connected\n\nid: 8-0\ndata: {\"ty",
            "id: 7-2\n\nid: 8-0\ndata: {\"type\":\"a\"}\n\n",
        ];
        let (client, mut heads) = streams(&bodies).await;
        let mut follower = Follower::new(client, &Events::all(), None);
        let event = follower.next().await.unwrap();
        assert_eq!((event.cursor.as_str(), event.kind()), ("8-0", "a"));
        assert!(!heads.recv().await.unwrap().contains("last-event-id"));
        let second = heads.recv().await.unwrap();
        assert!(second.contains("last-event-id: 7-2\r\n"), "{second}");
    }

    /// Each stream says hello, which once made the next begin to count anew.
    #[tokio::test]
    async fn streams_that_end_after_their_hello_are_an_error_in_the_end() {
        let (client, mut heads) = streams(&["id: 7-2\n\n"; 30]).await;
        let mut follower = Follower::new(client, &Events::all(), None);
        follower.retry_pause = Duration::ZERO;
        let failure = follower.next().await.unwrap_err();
        assert!(failure.to_string().contains("keeps ending"), "{failure}");
        let mut asked = 0;
        while heads.try_recv().is_ok() {
            asked += 1;
        }
        assert_eq!(asked, FAILURES_MAX + 1);
    }

    /// A service that hangs, or a connection whose other end is gone without a word, is left after a while.
    #[tokio::test]
    async fn a_silent_stream_is_opened_again() {
        let bodies = ["id: 7-2\n\n", "id: 7-2\n\nid: 8-0\ndata: {\"type\":\"a\"}\n\n"];
        let (address, mut heads) = serve(&bodies, true).await;
        let client = Client::with_silence(&address, &ClientOptions::default(), Duration::from_millis(50)).unwrap();
        let mut follower = Follower::new(client, &Events::all(), None);
        assert_eq!(follower.next().await.unwrap().cursor, "8-0");
        heads.recv().await.unwrap();
        assert!(heads.recv().await.unwrap().contains("last-event-id: 7-2\r\n"));
    }
}
