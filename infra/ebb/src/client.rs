//! The HTTP client of every command: one request, one answer or one [`Failure`]. Knows the API's manners (problem+json,
//! idempotency, pages), not its resources; those are in `wire.rs`.

use crate::failure::{Failure, Problem};
use futures::StreamExt;
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::time::Duration;

/// Long enough for a machine under load to accept a connection, short enough to be told about a wrong URL.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for an answer that is not a stream: a submit waits for its fact, which a take-over of the cell delays by seconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Items asked for per page.
const PAGE_LIMIT: usize = 200;
/// Pages read at most: 200,000 jobs are more than a terminal is for.
const PAGES_MAX: usize = 1_000;

/// A connection to one Ebb.
#[derive(Debug, Clone)]
pub struct Client {
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
        let url = url::Url::parse(base).map_err(|e| {
            Failure::Usage(format!("`{base}` is no URL ({e}); expected for example http://127.0.0.1:7878"))
        })?;
        if url.scheme() != "http" {
            return Err(Failure::Usage(format!(
                "`{base}` begins with {}://; this client speaks http://",
                url.scheme()
            )));
        }
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .no_proxy()
            .build()
            .map_err(|e| Failure::local("the HTTP client cannot be set up", e))?;
        Ok(Self { base: base.trim_end_matches('/').to_owned(), http })
    }

    /// Where it connects to.
    #[must_use]
    pub fn base(&self) -> &str {
        &self.base
    }

    /// GET, decoded.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        let request = self.http.get(self.url(path)).header("accept", "application/json").timeout(ANSWER_TIMEOUT);
        self.decode(path, self.answer(path, request).await?).await
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
        let mut request =
            self.http.request(method, self.url(path)).header("accept", "application/json").timeout(ANSWER_TIMEOUT);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(body) = body {
            request = request.header("content-type", body.content_type).body(body.bytes);
        }
        let response = self.answer(path, request).await?;
        let bytes = response.bytes().await.map_err(|e| self.broken(path, &e))?;
        if bytes.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&bytes).map_err(|e| Failure::Answer { url: self.url(path), what: e.to_string() })
    }

    /// POST of a JSON body.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.send(Method::POST, path, Some(Body::json(body)), &[]).await
    }

    /// GET of something that is read as it comes; no limit on its duration.
    pub async fn stream(&self, path: &str, headers: &[(&'static str, &str)]) -> Result<Response, Failure> {
        let mut request = self.http.get(self.url(path));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.answer(path, request).await
    }

    /// GET of a body of any size, written to `sink` piece by piece; the number of bytes.
    pub async fn download(&self, path: &str, sink: &mut impl std::io::Write) -> Result<u64, Failure> {
        let mut pieces = self.stream(path, &[]).await?.bytes_stream();
        let mut total = 0;
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|e| self.broken(path, &e))?;
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
                return Err(Failure::Answer { url: self.url(path), what: format!("no list `{field}`") });
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
        format!("{}{path}", self.base)
    }

    fn broken(&self, path: &str, error: &reqwest::Error) -> Failure {
        Failure::Answer { url: self.url(path), what: error.to_string() }
    }

    async fn answer(&self, path: &str, request: RequestBuilder) -> Result<Response, Failure> {
        let response =
            request.send().await.map_err(|source| Failure::Unreachable { url: self.base.clone(), source })?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let bytes = response.bytes().await.map_err(|e| self.broken(path, &e))?;
        Err(self.refusal(path, status, &bytes))
    }

    fn refusal(&self, path: &str, status: StatusCode, bytes: &[u8]) -> Failure {
        match serde_json::from_slice::<Problem>(bytes) {
            Ok(mut problem) if !problem.title.is_empty() || !problem.detail.is_empty() => {
                problem.status = status.as_u16();
                Failure::Refused(Box::new(problem))
            }
            _ => {
                Failure::Answer { url: self.url(path), what: format!("status {status} without a problem description") }
            }
        }
    }

    async fn decode<T: DeserializeOwned>(&self, path: &str, response: Response) -> Result<T, Failure> {
        let bytes = response.bytes().await.map_err(|e| self.broken(path, &e))?;
        serde_json::from_slice(&bytes).map_err(|e| Failure::Answer { url: self.url(path), what: e.to_string() })
    }
}
