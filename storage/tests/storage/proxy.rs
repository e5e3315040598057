//! A proxy between a client and a real S3 server that does to answers what busy servers and bad networks do. It speaks plain HTTP to the
//! client and keeps the `Host` of requests, which signatures hold, so it also stands before a server with TLS. Shared by the tests of two crates.

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{Method, Response, StatusCode, header};
use futures::stream;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Larger than any body of these tests.
const BODY_BYTES_MAX: usize = 256 << 20;
/// For a real server on a busy machine.
const SERVER_TIME_MAX: Duration = Duration::from_secs(60);

/// What happens to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It is answered with 503 `SlowDown` and not passed on.
    SlowDown,
    /// It is answered as Amazon answers expired credentials, and not passed on.
    Expired,
    /// Its answer ends in the middle of the body.
    CutShort,
    /// It is passed on, but the connection ends instead of an answer.
    LostAnswer,
}

/// What is to happen to requests with this method whose query begins so.
struct Planned {
    fault: Fault,
    method: Method,
    query: &'static str,
    times: u64,
}

struct Shared {
    server: String,
    client: reqwest::Client,
    fault: Mutex<Option<Planned>>,
    requests: AtomicU64,
}

/// The proxy; it ends with the test's runtime.
pub struct Proxy {
    /// Where clients reach it.
    pub url: String,
    shared: Arc<Shared>,
}

impl Proxy {
    /// Before this server; `authority` is the file of whoever signed its certificate.
    pub async fn before(server: &str, authority: Option<&Path>) -> Self {
        let mut client = reqwest::Client::builder().no_proxy().timeout(SERVER_TIME_MAX);
        if let Some(file) = authority {
            let certificate = reqwest::Certificate::from_pem(&std::fs::read(file).unwrap()).unwrap();
            client = client.tls_certs_only([certificate]);
        }
        let shared = Arc::new(Shared {
            server: server.to_owned(),
            client: client.build().unwrap(),
            fault: Mutex::new(None),
            requests: AtomicU64::new(0),
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().fallback(pass).with_state(Arc::clone(&shared));
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, shared }
    }

    /// The next `times` requests with this method go wrong.
    pub fn fail(&self, fault: Fault, method: Method, times: u64) {
        self.fail_query(fault, method, "", times);
    }

    /// The next `times` of them whose query begins so do.
    pub fn fail_query(&self, fault: Fault, method: Method, query: &'static str, times: u64) {
        *self.shared.fault.lock().unwrap() = Some(Planned { fault, method, query, times });
    }

    /// How often the fault has still to strike.
    pub fn pending(&self) -> u64 {
        self.shared.fault.lock().unwrap().as_ref().map_or(0, |planned| planned.times)
    }

    /// Requests so far.
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::SeqCst)
    }
}

fn strikes(shared: &Shared, request: &Request) -> Option<Fault> {
    let mut planned = shared.fault.lock().unwrap();
    let planned = planned.as_mut()?;
    let meant = planned.method == request.method() && request.uri().query().unwrap_or("").starts_with(planned.query);
    if planned.times == 0 || !meant {
        return None;
    }
    planned.times -= 1;
    Some(planned.fault)
}

fn refusal(status: StatusCode, code: &str) -> Response<Body> {
    let body = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>{code}</Code><Message>told to</Message></Error>"
    );
    Response::builder().status(status).header(header::CONTENT_TYPE, "application/xml").body(Body::from(body)).unwrap()
}

fn broken() -> io::Error {
    io::Error::other("the connection ends here")
}

async fn pass(State(shared): State<Arc<Shared>>, request: Request) -> Response<Body> {
    shared.requests.fetch_add(1, Ordering::SeqCst);
    let fault = strikes(&shared, &request);
    match fault {
        Some(Fault::SlowDown) => return refusal(StatusCode::SERVICE_UNAVAILABLE, "SlowDown"),
        Some(Fault::Expired) => return refusal(StatusCode::BAD_REQUEST, "ExpiredToken"),
        Some(Fault::CutShort | Fault::LostAnswer) | None => {}
    }
    let (parts, body) = request.into_parts();
    let target = format!("{}{}", shared.server, parts.uri.path_and_query().unwrap());
    let mut headers = parts.headers;
    headers.remove(header::TRANSFER_ENCODING);
    let body = to_bytes(body, BODY_BYTES_MAX).await.unwrap();
    let answer = shared.client.request(parts.method, target).headers(headers).body(body).send().await.unwrap();
    let (status, headers) = (answer.status(), answer.headers().clone());
    let bytes = answer.bytes().await.unwrap();
    let mut response = Response::builder().status(status);
    for (name, value) in &headers {
        if name != header::TRANSFER_ENCODING && name != header::CONNECTION {
            response = response.header(name, value);
        }
    }
    let body = match fault {
        Some(Fault::CutShort) => {
            let half: Bytes = bytes.slice(..bytes.len() / 2);
            Body::from_stream(stream::iter([Ok(half), Err(broken())]))
        }
        // Ends the task of this connection before a byte of the answer, without a word on standard error.
        Some(Fault::LostAnswer) => std::panic::resume_unwind(Box::new("the answer is lost")),
        _ => Body::from(bytes),
    };
    response.body(body).unwrap()
}
