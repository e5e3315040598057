//! One request and its answer: time-outs, problems, decoding, downloads, pages. Repeats nothing by itself.

use crate::error::{ClientError, is_of_proxy};
use crate::filters::{Parameters, with_query};
use crate::options::ClientOptions;
use bytes::Bytes;
use futures::StreamExt;
use gateway_api::problem::Problem;
use gateway_api::{BINARY, CommandState, Undecided, pages};
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue, SERVER};
use reqwest::{Certificate, Method, RequestBuilder, Response, StatusCode, redirect};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::time::Duration;
use url::{Host, Url};

/// Long enough for a machine under load to accept a connection, short enough to be told about a wrong URL.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for an answer that is not a stream: a submit waits for its fact, which a take-over of the cell delays by seconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// The same for an upload of up to 2 GiB: above the 600 s that the gateway gives it.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(630);
/// The same for the registration of a dataset: above the 120 s that the gateway gives it, so that the gateway's answer is seen.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(150);
/// Longest silence while something is read as it comes, before its first byte too: on an event stream a heartbeat comes every 10 s.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Characters that are shown of the name of what answers in the service's place.
const NAME_SHOWN: usize = 40;
/// Pages read at most: 200,000 jobs, or a million of other things, are more than a terminal is for.
const PAGES_MAX: usize = 1_000;

/// A connection to one Ebb.
#[derive(Debug, Clone)]
pub struct Client {
    /// As given, with the password that a proxy may want.
    target: String,
    /// The same without a password.
    base: String,
    http: reqwest::Client,
    silence_max: Duration,
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
    pub fn json(value: &impl serde::Serialize) -> Self {
        // Requests are trees of texts and numbers: they are always JSON.
        Self { bytes: serde_json::to_vec(value).unwrap_or_default(), content_type: "application/json" }
    }
}

impl Client {
    /// A client of the Ebb at `base`, for example `http://127.0.0.1:7878`. Connects lazily.
    pub fn new(base: &str) -> Result<Self, ClientError> {
        Self::with(base, &ClientOptions::default())
    }

    /// A client of the Ebb at `base`, reached in this way.
    pub fn with(base: &str, options: &ClientOptions) -> Result<Self, ClientError> {
        Self::with_silence(base, options, SILENCE_MAX)
    }

    pub(crate) fn with_silence(
        base: &str,
        options: &ClientOptions,
        silence_max: Duration,
    ) -> Result<Self, ClientError> {
        let shown = without_secrets(base);
        let url = Url::parse(base).map_err(|e| {
            ClientError::Options(format!("`{shown}` is no URL ({e}); expected for example http://127.0.0.1:7878"))
        })?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none_or(str::is_empty) {
            return Err(ClientError::Options(format!(
                "`{shown}` is no address of an Ebb; expected http://HOST:PORT, or https://HOST of a proxy before it"
            )));
        }
        let mut headers = HeaderMap::new();
        let authorization = options.authorization();
        // Either is sent as a password.
        let in_address = !url.username().is_empty() || url.password().is_some();
        if authorization.is_some() && in_address {
            return Err(ClientError::Options(format!(
                "there are two credentials for `{shown}`, one in its address and a token, and only one can be sent; leave one out"
            )));
        }
        if authorization.is_some() || in_address {
            ensure_private(&url, &shown)?;
        }
        if let Some(authorization) = authorization {
            let mut value = HeaderValue::from_str(&authorization)
                .map_err(|_| ClientError::Options("the credential cannot stand in a header".to_owned()))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        // No redirects: whoever stands before the service must not lead a credential or a body elsewhere.
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(redirect::Policy::none())
            .default_headers(headers)
            .no_proxy()
            .tls_certs_merge(authorities(options)?)
            .build()
            .map_err(ClientError::SetUp)?;
        let trimmed = |address: &str| address.trim_end_matches('/').to_owned();
        Ok(Self { target: trimmed(base), base: trimmed(&shown), http, silence_max })
    }

    /// Where it connects to, without the password that a proxy may want.
    #[must_use]
    pub fn base(&self) -> &str {
        &self.base
    }

    /// GET, decoded.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        let request = self.http.get(self.url(path)).header("accept", "application/json");
        let bytes = self.whole(path, request, ANSWER_TIMEOUT).await?;
        serde_json::from_slice(&bytes).map_err(|e| self.not_understood(path, &e))
    }

    /// GET, if there is such a thing.
    pub(crate) async fn find<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>, ClientError> {
        match self.get(path).await {
            Ok(found) => Ok(Some(found)),
            Err(failure) if failure.is_not_found() => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Asks for a change; what it came to, decoded.
    pub(crate) async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<Body>,
        headers: &[(&'static str, &str)],
    ) -> Result<T, ClientError> {
        let mut request = self.http.request(method, self.url(path));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.change(path, request, body, ANSWER_TIMEOUT).await
    }

    /// POST of what takes as long as the registration of a dataset, which may read the footers of thousands of files.
    pub(crate) async fn ask_patiently<T: DeserializeOwned>(&self, path: &str, body: Body) -> Result<T, ClientError> {
        self.change(path, self.http.post(self.url(path)), Some(body), REGISTRATION_TIMEOUT).await
    }

    /// PUT of bytes that come as they are sent.
    pub(crate) async fn put_stream<T: DeserializeOwned>(
        &self,
        path: &str,
        bytes: u64,
        body: reqwest::Body,
    ) -> Result<T, ClientError> {
        let request = self.http.put(self.url(path)).header("content-type", BINARY).header("content-length", bytes);
        self.change(path, request.body(body), None, UPLOAD_TIMEOUT).await
    }

    async fn change<T: DeserializeOwned>(
        &self,
        path: &str,
        request: RequestBuilder,
        body: Option<Body>,
        within: Duration,
    ) -> Result<T, ClientError> {
        let mut request = request.header("accept", "application/json");
        if let Some(body) = body {
            request = request.header("content-type", body.content_type).body(body.bytes);
        }
        let (status, bytes) = self.whole_answer(path, request, within).await.map_err(ClientError::with_effect)?;
        if status == StatusCode::ACCEPTED
            && let Ok(undecided) = serde_json::from_slice::<Undecided>(&bytes)
            && undecided.status.known() == Some(&CommandState::Undecided)
            && !undecided.command.is_empty()
        {
            return Err(ClientError::Undecided { id: undecided.id, command: undecided.command });
        }
        let bytes = if bytes.is_empty() { Bytes::from_static(b"null") } else { bytes };
        serde_json::from_slice(&bytes).map_err(|e| self.not_understood(path, &e))
    }

    /// GET of something that is read as it comes; no limit on its duration, but one on its silence.
    pub(crate) async fn stream(&self, path: &str, headers: &[(&'static str, &str)]) -> Result<Response, ClientError> {
        let mut request = self.http.get(self.url(path));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.in_time(path, self.answer(path, request, None)).await?
    }

    /// What comes next of something that is read as it comes. Only the wait for it counts, not how long its reader took before.
    pub(crate) async fn in_time<T>(&self, path: &str, coming: impl Future<Output = T>) -> Result<T, ClientError> {
        let silent = |_| ClientError::NoAnswer {
            url: self.shown(path),
            within: Some(self.silence_max),
            may_have_effect: false,
            source: None,
        };
        tokio::time::timeout(self.silence_max, coming).await.map_err(silent)
    }

    /// GET of a body of any size, written to `sink` piece by piece; the number of bytes.
    pub(crate) async fn download(&self, path: &str, sink: &mut impl std::io::Write) -> Result<u64, ClientError> {
        let mut pieces = self.stream(path, &[]).await?.bytes_stream();
        let mut total = 0;
        while let Some(piece) = self.in_time(path, pieces.next()).await? {
            let piece = piece.map_err(|e| self.broken(path, None, e))?;
            sink.write_all(&piece).map_err(ClientError::Sink)?;
            total += piece.len() as u64;
        }
        Ok(total)
    }

    /// All items of a paged list, in its order. `field` is where a page holds them.
    pub(crate) async fn pages<T: DeserializeOwned>(
        &self,
        path: &str,
        field: &str,
        parameters: Parameters,
    ) -> Result<Vec<T>, ClientError> {
        // Jobs are large; of everything else a page holds more.
        let limit = if field == "jobs" { *pages::LIMIT.end() } else { *pages::WIDE_LIMIT.end() };
        let mut items = Vec::new();
        let mut cursor: Option<String> = None;
        for _ in 0..PAGES_MAX {
            let (part, next) = self.page(path, field, &parameters, limit, cursor).await?;
            items.extend(part);
            cursor = next;
            if cursor.is_none() {
                return Ok(items);
            }
        }
        let what = format!("a list of more than {PAGES_MAX} pages, which does not seem to end; ask for a part of it");
        Err(ClientError::Answer { url: self.shown(path), what })
    }

    /// One page of a list, and where the next one begins.
    pub(crate) async fn page<T: DeserializeOwned>(
        &self,
        path: &str,
        field: &str,
        parameters: &[(&'static str, String)],
        limit: usize,
        cursor: Option<String>,
    ) -> Result<(Vec<T>, Option<String>), ClientError> {
        let mut asked = [parameters, &[("limit", limit.to_string())]].concat();
        asked.extend(cursor.map(|cursor| ("cursor", cursor)));
        let mut page: Value = self.get(&with_query(path.to_owned(), &asked)).await?;
        let Some(part @ Value::Array(_)) = page.get_mut(field).map(Value::take) else {
            return Err(ClientError::Answer { url: self.shown(path), what: format!("no list `{field}`") });
        };
        let items = serde_json::from_value(part).map_err(|e| self.not_understood(path, &e))?;
        Ok((items, page.get("next_cursor").and_then(Value::as_str).map(str::to_owned)))
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.target)
    }

    /// The same as people may see it.
    fn shown(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    fn not_understood(&self, path: &str, error: &serde_json::Error) -> ClientError {
        ClientError::Answer { url: self.shown(path), what: error.to_string() }
    }

    /// What an error of the connection means: without a connection nothing was asked, after that nobody knows.
    fn broken(&self, path: &str, within: Option<Duration>, source: reqwest::Error) -> ClientError {
        // Its own text would name the address as it was given, with the password.
        let source = source.without_url();
        if source.is_connect() {
            return ClientError::Unreachable { url: self.base.clone(), source };
        }
        let within = within.filter(|_| source.is_timeout());
        ClientError::NoAnswer { url: self.shown(path), within, may_have_effect: false, source: Some(source) }
    }

    /// GET of some bytes and what the headers say of them.
    pub(crate) async fn part(&self, path: &str) -> Result<(HeaderMap, Bytes), ClientError> {
        let request = self.http.get(self.url(path)).timeout(ANSWER_TIMEOUT);
        let response = self.answer(path, request, Some(ANSWER_TIMEOUT)).await?;
        let headers = response.headers().clone();
        let bytes = response.bytes().await.map_err(|e| self.broken(path, Some(ANSWER_TIMEOUT), e))?;
        Ok((headers, bytes))
    }

    async fn whole(&self, path: &str, request: RequestBuilder, within: Duration) -> Result<Bytes, ClientError> {
        self.whole_answer(path, request, within).await.map(|(_, bytes)| bytes)
    }

    async fn whole_answer(
        &self,
        path: &str,
        request: RequestBuilder,
        within: Duration,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        let response = self.answer(path, request.timeout(within), Some(within)).await?;
        let status = response.status();
        let bytes = response.bytes().await.map_err(|e| self.broken(path, Some(within), e))?;
        Ok((status, bytes))
    }

    async fn answer(
        &self,
        path: &str,
        request: RequestBuilder,
        within: Option<Duration>,
    ) -> Result<Response, ClientError> {
        let response = request.send().await.map_err(|e| self.broken(path, within, e))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let by = response
            .headers()
            .get(SERVER)
            .and_then(|by| by.to_str().ok())
            .map(|by| by.chars().take(NAME_SHOWN).collect());
        let bytes = response.bytes().await.map_err(|e| self.broken(path, within, e))?;
        Err(self.refusal(path, status, by, &bytes))
    }

    fn refusal(&self, path: &str, status: StatusCode, by: Option<String>, bytes: &[u8]) -> ClientError {
        match serde_json::from_slice::<Problem>(bytes) {
            Ok(mut problem) if !problem.title.is_empty() || !problem.detail.is_empty() => {
                problem.status = status.as_u16();
                ClientError::Refused(Box::new(problem))
            }
            _ if is_of_proxy(status.as_u16()) => {
                ClientError::Proxy { url: self.shown(path), status: status.to_string(), by, may_have_effect: false }
            }
            _ => ClientError::Answer {
                url: self.shown(path),
                what: format!("status {status} without a problem description"),
            },
        }
    }
}

/// The authorities that are trusted beside the system's.
fn authorities(options: &ClientOptions) -> Result<Vec<Certificate>, ClientError> {
    let Some(file) = &options.ca_file else { return Ok(Vec::new()) };
    let pem = std::fs::read(file).map_err(|source| ClientError::File { file: file.clone(), source })?;
    let found = Certificate::from_pem_bundle(&pem).unwrap_or_default();
    if found.is_empty() {
        return Err(ClientError::Options(format!(
            "`{}` holds no certificate; expected PEM, which begins with -----BEGIN CERTIFICATE-----",
            file.display()
        )));
    }
    Ok(found)
}

/// A credential goes where nobody can read it on its way: over TLS, or within this machine.
fn ensure_private(url: &Url, shown: &str) -> Result<(), ClientError> {
    let loopback = match url.host() {
        // No name below it: whatever resolves names may be asked for those, and answer as it likes.
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    };
    if url.scheme() == "https" || loopback {
        return Ok(());
    }
    Err(ClientError::Options(format!(
        "a credential is not sent to `{shown}`, because anybody on the way could read it; use https://, or leave the credential out"
    )))
}

/// An address as people may see it.
fn without_secrets(address: &str) -> String {
    match Url::parse(address) {
        Ok(mut url) if !url.username().is_empty() || url.password().is_some() || url.query().is_some() => {
            // Both fail only where there is nothing to hide.
            let _ = url.set_password(None);
            let _ = url.set_username("");
            url.set_query(None);
            url.to_string()
        }
        Ok(_) => address.to_owned(),
        // What is no address may still hold a password.
        Err(_) => address.rsplit_once('@').map_or(address, |(_, rest)| rest).to_owned(),
    }
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
