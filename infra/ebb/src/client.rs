//! The HTTP client of every command: one request, one answer or one [`Failure`]. Knows the API's manners (problem+json,
//! idempotency, pages), not its resources; those are in `wire.rs`.

use crate::failure::{Failure, Problem};
use bytes::Bytes;
use futures::StreamExt;
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::time::Duration;
use storage::store::without_secrets;

/// Long enough for a machine under load to accept a connection, short enough to be told about a wrong URL.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for an answer that is not a stream: a submit waits for its fact, which a take-over of the cell delays by seconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// The same for the registration of a dataset: above the 120 s that the gateway gives it, so that the gateway's answer is seen.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(150);
/// Items asked for per page.
const PAGE_LIMIT: usize = 200;
/// Pages read at most: 200,000 jobs are more than a terminal is for.
const PAGES_MAX: usize = 1_000;

/// A connection to one Ebb.
#[derive(Debug, Clone)]
pub struct Client {
    /// As given, with the password that a proxy may want.
    target: String,
    /// The same without a password.
    base: String,
    http: reqwest::Client,
}

/// A body and how it is labelled.
#[derive(Debug, Clone)]
pub struct Body {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// `application/json`, `application/yaml`, …
    pub content_type: &'static str,
}

impl Body {
    /// A JSON body.
    #[must_use]
    pub fn json(value: &Value) -> Self {
        Self { bytes: value.to_string().into_bytes(), content_type: "application/json" }
    }
}

impl Client {
    /// A client of the Ebb at `base`, for example `http://127.0.0.1:7878`. Connects lazily.
    pub fn new(base: &str) -> Result<Self, Failure> {
        let shown = without_secrets(base);
        let url = url::Url::parse(base).map_err(|e| {
            Failure::Usage(format!("`{shown}` is no URL ({e}); expected for example http://127.0.0.1:7878"))
        })?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none_or(str::is_empty) {
            return Err(Failure::Usage(format!(
                "`{shown}` is no address of an Ebb; expected http://HOST:PORT, or https://HOST of a proxy before it"
            )));
        }
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .no_proxy()
            .build()
            .map_err(|e| Failure::local("the HTTP client cannot be set up", e))?;
        let trimmed = |address: &str| address.trim_end_matches('/').to_owned();
        Ok(Self { target: trimmed(base), base: trimmed(&shown), http })
    }

    /// Where it connects to, without the password that a proxy may want.
    #[must_use]
    pub fn base(&self) -> &str {
        &self.base
    }

    /// GET, decoded.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        let request = self.http.get(self.url(path)).header("accept", "application/json");
        let bytes = self.whole(path, request, ANSWER_TIMEOUT).await?;
        serde_json::from_slice(&bytes).map_err(|e| self.not_understood(path, &e))
    }

    /// GET, if there is such a thing.
    pub async fn find<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>, Failure> {
        match self.get(path).await {
            Ok(found) => Ok(Some(found)),
            Err(failure) if failure.is_not_found() => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Any method with an optional body; an empty answer is `null`.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<Body>,
        headers: &[(&'static str, &str)],
    ) -> Result<Value, Failure> {
        let mut request = self.http.request(method, self.url(path));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.change(path, request, body, ANSWER_TIMEOUT).await
    }

    /// POST of a JSON body.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.send(Method::POST, path, Some(Body::json(body)), &[]).await
    }

    /// POST of a dataset's registration, which may read the footers of thousands of files.
    pub async fn register(&self, body: &Value) -> Result<Value, Failure> {
        const PATH: &str = "/v1/datasets";
        self.change(PATH, self.http.post(self.url(PATH)), Some(Body::json(body)), REGISTRATION_TIMEOUT).await
    }

    async fn change(
        &self,
        path: &str,
        request: RequestBuilder,
        body: Option<Body>,
        within: Duration,
    ) -> Result<Value, Failure> {
        let mut request = request.header("accept", "application/json");
        if let Some(body) = body {
            request = request.header("content-type", body.content_type).body(body.bytes);
        }
        let bytes = self.whole(path, request, within).await.map_err(with_effect)?;
        if bytes.is_empty() {
            return Ok(Value::Null);
        }
        let answer: Value = serde_json::from_slice(&bytes).map_err(|e| self.not_understood(path, &e))?;
        match (answer["status"].as_str(), answer["command"].as_str(), answer["id"].as_str()) {
            (Some("undecided"), Some(command), Some(id)) => {
                Err(Failure::Undecided { id: id.to_owned(), command: command.to_owned() })
            }
            _ => Ok(answer),
        }
    }

    /// GET of something that is read as it comes; no limit on its duration.
    pub async fn stream(&self, path: &str, headers: &[(&'static str, &str)]) -> Result<Response, Failure> {
        let mut request = self.http.get(self.url(path));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.answer(path, request, None).await
    }

    /// GET of a body of any size, written to `sink` piece by piece; the number of bytes.
    pub async fn download(&self, path: &str, sink: &mut impl std::io::Write) -> Result<u64, Failure> {
        let mut pieces = self.stream(path, &[]).await?.bytes_stream();
        let mut total = 0;
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|e| self.broken(path, None, e))?;
            sink.write_all(&piece).map_err(|e| Failure::local("the file cannot be written", e))?;
            total += piece.len() as u64;
        }
        Ok(total)
    }

    /// All items of a paged list, in its order. `field` is where a page holds them.
    pub async fn list(&self, path: &str, field: &str) -> Result<Vec<Value>, Failure> {
        let mut items = Vec::new();
        let mut cursor: Option<String> = None;
        for _ in 0..PAGES_MAX {
            let joint = if path.contains('?') { '&' } else { '?' };
            let after = cursor.as_deref().map(|c| format!("&cursor={c}")).unwrap_or_default();
            let mut page: Value = self.get(&format!("{path}{joint}limit={PAGE_LIMIT}{after}")).await?;
            let Some(Value::Array(part)) = page.get_mut(field).map(Value::take) else {
                return Err(Failure::Answer { url: self.shown(path), what: format!("no list `{field}`") });
            };
            items.extend(part);
            cursor = page.get("next_cursor").and_then(Value::as_str).map(str::to_owned);
            if cursor.is_none() {
                break;
            }
        }
        Ok(items)
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.target)
    }

    /// The same as people may see it.
    fn shown(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    fn not_understood(&self, path: &str, error: &serde_json::Error) -> Failure {
        Failure::Answer { url: self.shown(path), what: error.to_string() }
    }

    /// What an error of the connection means: without a connection nothing was asked, after that nobody knows.
    fn broken(&self, path: &str, within: Option<Duration>, source: reqwest::Error) -> Failure {
        if source.is_connect() {
            return Failure::Unreachable { url: self.base.clone(), source };
        }
        let within = within.filter(|_| source.is_timeout());
        Failure::NoAnswer { url: self.shown(path), within, may_have_effect: false, source }
    }

    async fn whole(&self, path: &str, request: RequestBuilder, within: Duration) -> Result<Bytes, Failure> {
        let response = self.answer(path, request.timeout(within), Some(within)).await?;
        response.bytes().await.map_err(|e| self.broken(path, Some(within), e))
    }

    async fn answer(&self, path: &str, request: RequestBuilder, within: Option<Duration>) -> Result<Response, Failure> {
        let response = request.send().await.map_err(|e| self.broken(path, within, e))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let bytes = response.bytes().await.map_err(|e| self.broken(path, within, e))?;
        Err(self.refusal(path, status, &bytes))
    }

    fn refusal(&self, path: &str, status: StatusCode, bytes: &[u8]) -> Failure {
        match serde_json::from_slice::<Problem>(bytes) {
            Ok(mut problem) if !problem.title.is_empty() || !problem.detail.is_empty() => {
                problem.status = status.as_u16();
                Failure::Refused(Box::new(problem))
            }
            _ => Failure::Answer {
                url: self.shown(path),
                what: format!("status {status} without a problem description"),
            },
        }
    }
}

/// The failure of a request that asks for a change.
fn with_effect(failure: Failure) -> Failure {
    match failure {
        Failure::NoAnswer { url, within, source, .. } => {
            Failure::NoAnswer { url, within, may_have_effect: true, source }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn only_a_connection_that_was_never_there_is_unreachable() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = Client::new(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        // Takes what comes and ends without a word.
        let mute = tokio::spawn(async move {
            for _ in 0..2 {
                let (stream, _) = listener.accept().await.unwrap();
                stream.readable().await.unwrap();
            }
        });
        let read = client.get::<Value>("/v1/jobs").await.unwrap_err();
        assert!(matches!(read, Failure::NoAnswer { within: None, may_have_effect: false, .. }), "{read}");
        let changed = client.post("/v1/jobs", &Value::Null).await.unwrap_err();
        assert!(changed.to_string().contains("may still have an effect"), "{changed}");
        mute.await.unwrap();
        let nobody = client.post("/v1/jobs", &Value::Null).await.unwrap_err();
        assert!(matches!(nobody, Failure::Unreachable { .. }), "{nobody}");
    }

    #[tokio::test]
    async fn https_is_spoken_and_other_schemes_are_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = Client::new(&format!("https://localhost:{}", listener.local_addr().unwrap().port())).unwrap();
        let greeted = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut first = [0; 3];
            tokio::io::AsyncReadExt::read_exact(&mut stream, &mut first).await.unwrap();
            first
        });
        assert!(client.get::<Value>("/v1/jobs").await.is_err());
        // The beginning of a TLS handshake.
        assert_eq!(greeted.await.unwrap()[..2], [0x16, 0x03]);
        for wrong in ["ftp://a", "unix:/run/ebb", "http:///"] {
            let refused = Client::new(wrong).unwrap_err().to_string();
            assert!(refused.contains("http://HOST:PORT") || refused.contains("no URL"), "{refused}");
        }
    }

    /// A proxy before the service may want a password, which then stood in every failure.
    #[tokio::test]
    async fn a_password_in_the_address_is_never_shown() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let client = Client::new(&format!("http://user:secret@{address}/")).unwrap();
        let failure = client.get::<Value>("/v1/jobs").await.unwrap_err();
        let mut told = vec![client.base().to_owned(), failure.to_string()];
        let mut cause = std::error::Error::source(&failure);
        while let Some(source) = cause {
            told.push(source.to_string());
            cause = source.source();
        }
        told.push(Client::new("ftp://user:secret@host").unwrap_err().to_string());
        assert!(told.iter().all(|text| !text.contains("secret")), "{told:?}");
        assert!(told[1].contains(&address.to_string()), "{told:?}");
    }

    #[tokio::test]
    async fn a_wait_that_is_over_says_how_long_it_was() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = Client::new(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let request = client.http.get(client.url("/v1/jobs"));
        let failure = client.whole("/v1/jobs", request, Duration::from_millis(20)).await.unwrap_err();
        assert!(failure.to_string().contains("within 20ms") && failure.may_pass(), "{failure}");
    }
}
