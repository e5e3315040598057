//! How telemetry gets to its collector. The exporters call from threads of their own, which have no reactor: requests are made on the
//! process's runtime, and the exporter's thread waits for them.

use async_trait::async_trait;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use std::time::Duration;
use tokio::runtime::Handle;

/// Longest request: a collector that takes longer loses the batch, not we the process. (The exporter has its own, shorter ones too.)
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Most bytes of an answer: a collector says which records it refused, and why, in a few lines.
const ANSWER_LEN_MAX: usize = 64 << 10;

/// A client on a runtime.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    inner: reqwest::Client,
    runtime: Handle,
}

impl Client {
    pub fn new(runtime: Handle) -> Result<Self, reqwest::Error> {
        Ok(Self { inner: reqwest::Client::builder().timeout(REQUEST_TIMEOUT).build()?, runtime })
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (client, request) = (self.inner.clone(), reqwest::Request::try_from(request)?);
        let sent = self.runtime.spawn(async move {
            let mut answer = client.execute(request).await?;
            let (status, headers) = (answer.status(), std::mem::take(answer.headers_mut()));
            let mut body = Vec::new();
            while let Some(piece) = answer.chunk().await? {
                let room = ANSWER_LEN_MAX.saturating_sub(body.len());
                body.extend_from_slice(&piece[..piece.len().min(room)]);
            }
            Ok::<_, reqwest::Error>((status, headers, body))
        });
        let (status, headers, body) = sent.await??;
        let mut response = Response::new(Bytes::from(body));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        Ok(response)
    }
}
