//! HTTP connections within bounds: of their number, of the time for a request's head, of the time that an answer may stand still.
//! They end in order when the service stops.
//!
//! At the bound a connection without a request in work makes room for a new one, the one that has waited longest first, so that
//! nobody shuts others out by connecting and saying nothing. Only where all have requests in work do new ones wait. Knows nothing
//! of what is asked. All that answers HTTP serves through this. `door.rs`: which requests come in where no token is asked for.

pub mod door;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::response::Response;
use http_body::{Frame, SizeHint};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

/// Pause after an accept that failed for want of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// The bounds of one listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Connections at once, a file descriptor each; one more is held while it waits for its place.
    pub connections_max: usize,
    /// Time a client has to send a request's head.
    pub head_time: Duration,
    /// Longest time that a client takes in no byte of an answer.
    pub write_stall: Duration,
    /// Time that open requests have to end when the service stops.
    pub shutdown_grace: Duration,
}

/// Serves until `stop`, then lets open connections end their requests within the grace. Never fails: a connection's errors are
/// its own, and a failed accept is tried again.
pub async fn serve(listener: TcpListener, router: Router, bounds: Bounds, stop: CancellationToken) {
    let visits = Arc::new(Visits::default());
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            // Reaps ended connections, so that the set holds open ones only.
            Some(ended) = connections.join_next(), if !connections.is_empty() => {
                report(ended);
                continue;
            }
            accepted = accept(&listener) => accepted,
        };
        match accepted {
            Ok(stream) => {
                tokio::select! {
                    () = stop.cancelled() => break,
                    () = make_room(&mut connections, &visits, bounds.connections_max) => {}
                }
                let visit = visits.begin();
                connections.spawn(converse(stream, router.clone(), visit, bounds, stop.clone()));
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    let ended = async {
        while let Some(ended) = connections.join_next().await {
            report(ended)
        }
    };
    if tokio::time::timeout(bounds.shutdown_grace, ended).await.is_err() {
        tracing::warn!(left = connections.len(), "connections were cut off at the end of the grace");
        connections.shutdown().await;
    }
}

async fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
    let (stream, _) = listener.accept().await?;
    // Small answers and events are not held back for more bytes.
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Returns when there are fewer connections than the bound. Cancel safe.
async fn make_room(connections: &mut JoinSet<()>, visits: &Visits, connections_max: usize) {
    while connections.len() >= connections_max {
        let became_idle = visits.became_idle.notified();
        if visits.end_longest_idle() {
            connections.join_next().await.into_iter().for_each(report);
            continue;
        }
        tokio::select! {
            Some(ended) = connections.join_next() => report(ended),
            () = became_idle => {}
        }
    }
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a connection's task failed");
    }
}

/// Which connections have no request in work, and since when.
#[derive(Debug, Default)]
struct Visits {
    idle: Mutex<Idle>,
    became_idle: Notify,
}

#[derive(Debug, Default)]
struct Idle {
    /// Of the next moment at which a connection becomes idle: moments are in order, however fast they follow each other.
    next: u64,
    waiting: BTreeMap<u64, CancellationToken>,
}

impl Visits {
    fn begin(self: &Arc<Self>) -> Visit {
        let end = CancellationToken::new();
        let stand = Stand::Idle(self.wait(&end));
        Visit { visits: self.clone(), end, stand: Arc::new(Mutex::new(stand)) }
    }

    fn wait(&self, end: &CancellationToken) -> u64 {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let since = idle.next;
        idle.next += 1;
        idle.waiting.insert(since, end.clone());
        self.became_idle.notify_waiters();
        since
    }

    fn stop_waiting(&self, since: u64) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).waiting.remove(&since);
    }

    /// Ends the connection that has been idle longest; false if none is.
    fn end_longest_idle(&self) -> bool {
        let longest = self.idle.lock().unwrap_or_else(PoisonError::into_inner).waiting.pop_first();
        longest.is_some_and(|(_, end)| {
            end.cancel();
            true
        })
    }
}

/// What a connection does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stand {
    /// It has no request in work since this moment.
    Idle(u64),
    /// It has one.
    InWork,
    /// It has ended.
    Gone,
}

/// One open connection.
#[derive(Debug, Clone)]
struct Visit {
    visits: Arc<Visits>,
    /// Cancelled when it has to make room.
    end: CancellationToken,
    stand: Arc<Mutex<Stand>>,
}

impl Visit {
    /// A request begins; it ends when the answer's body has been handed on or dropped.
    fn work(&self) -> InWork {
        self.change(Stand::InWork);
        InWork(self.clone())
    }

    /// Is `next` from now on; what has ended stays so.
    fn change(&self, next: Stand) {
        let mut stand = self.stand.lock().unwrap_or_else(PoisonError::into_inner);
        if let Stand::Idle(since) = *stand {
            self.visits.stop_waiting(since);
        }
        if *stand != Stand::Gone {
            *stand = next;
        }
    }
}

struct InWork(Visit);

impl Drop for InWork {
    fn drop(&mut self) {
        let mut stand = self.0.stand.lock().unwrap_or_else(PoisonError::into_inner);
        if *stand == Stand::InWork {
            *stand = Stand::Idle(self.0.visits.wait(&self.0.end));
        }
    }
}

async fn converse(stream: TcpStream, router: Router, visit: Visit, bounds: Bounds, stop: CancellationToken) {
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(bounds.head_time);
    let io = TokioIo::new(Paced::new(stream, bounds.write_stall));
    let working = visit.clone();
    let service = tower::service_fn(move |request| answer(router.clone(), working.work(), request));
    let connection = builder.serve_connection(io, TowerToHyperService::new(service));
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        // First, so that an answer that is ready goes out before its connection makes room.
        biased;
        ended = connection.as_mut() => ended,
        () = visit.end.cancelled() => Ok(()),
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    visit.change(Stand::Gone);
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}

async fn answer<S, B>(service: S, in_work: InWork, request: Request<B>) -> Result<Response, Infallible>
where
    S: tower::Service<Request<B>, Response = Response, Error = Infallible>,
{
    let response = service.oneshot(request).await?;
    Ok(response.map(|body| Body::new(Answer { body, _in_work: in_work })))
}

/// An answer's body, with which its request ends.
struct Answer {
    body: Body,
    _in_work: InWork,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A connection whose writes fail when the other side takes in nothing for too long.
struct Paced<S> {
    stream: S,
    stall: Duration,
    /// Runs while a write waits.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> Paced<S> {
    fn new(stream: S, stall: Duration) -> Self {
        Self { stream, stall, deadline: None }
    }

    /// Passes on what a write said; an error once it has waited for too long.
    fn watched<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.deadline = None;
            return written;
        }
        let deadline =
            self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + self.stall)));
        ready!(deadline.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the other side takes in nothing")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watched(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.watched(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.stream).poll_shutdown(context);
        self.watched(context, closed)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.watched(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const BOUNDS: Bounds = Bounds {
        connections_max: 2,
        head_time: Duration::from_secs(600),
        write_stall: Duration::from_secs(600),
        shutdown_grace: Duration::from_secs(60),
    };

    /// A service that answers `/now` at once and `/later` when told to.
    struct Service {
        address: std::net::SocketAddr,
        /// Rung by each request for `/later` that is in work.
        begun: Arc<Notify>,
        later: Arc<Notify>,
        stop: CancellationToken,
        serving: tokio::task::JoinHandle<()>,
    }

    impl Service {
        async fn start() -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let (begun, later, stop) = (Arc::new(Notify::new()), Arc::new(Notify::new()), CancellationToken::new());
            let (ring, told) = (begun.clone(), later.clone());
            let wait = move || {
                let (ring, told) = (ring.clone(), told.clone());
                async move {
                    let told = told.notified();
                    ring.notify_one();
                    told.await;
                    "later"
                }
            };
            let router = Router::new().route("/now", get(|| async { "now" })).route("/later", get(wait));
            let serving = tokio::spawn(serve(listener, router, BOUNDS, stop.clone()));
            Self { address, begun, later, stop, serving }
        }

        async fn connect(&self) -> TcpStream {
            TcpStream::connect(self.address).await.unwrap()
        }

        /// A connection whose request is in work.
        async fn working(&self) -> TcpStream {
            let mut stream = self.connect().await;
            ask(&mut stream, "/later").await;
            tokio::time::timeout(Duration::from_secs(60), self.begun.notified()).await.expect("it is in work");
            stream
        }
    }

    async fn ask(stream: &mut TcpStream, path: &str) {
        stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes()).await.unwrap();
    }

    /// Reads until the text has come; false at the end of the stream.
    async fn hears(stream: &mut TcpStream, text: &str) -> bool {
        let mut heard = Vec::new();
        let reading = async {
            while !String::from_utf8_lossy(&heard).ends_with(text) {
                let mut byte = [0];
                match stream.read(&mut byte).await {
                    Ok(1) => heard.push(byte[0]),
                    _ => return false,
                }
            }
            true
        };
        tokio::time::timeout(Duration::from_secs(60), reading).await.expect("an answer or an end")
    }

    #[tokio::test]
    async fn a_silent_connection_makes_room_and_one_in_work_does_not() {
        let service = Service::start().await;
        let mut working = service.working().await;
        let mut silent = service.connect().await;
        // Far more than there is room for, each of which says nothing or half a head.
        for _ in 0..20 {
            let mut half = service.connect().await;
            half.write_all(b"GET /now HT").await.unwrap();
            let mut asking = service.connect().await;
            ask(&mut asking, "/now").await;
            assert!(hears(&mut asking, "now").await);
        }
        assert!(!hears(&mut silent, "never").await, "it made room");
        service.later.notify_waiters();
        assert!(hears(&mut working, "later").await, "it was left alone");
    }

    #[tokio::test]
    async fn where_all_are_in_work_a_new_one_waits_for_its_place() {
        let service = Service::start().await;
        let mut working = [service.working().await, service.working().await];
        assert_eq!(working.len(), BOUNDS.connections_max);
        let mut waiting = service.connect().await;
        ask(&mut waiting, "/now").await;
        service.later.notify_waiters();
        for stream in &mut working {
            assert!(hears(stream, "later").await);
        }
        assert!(hears(&mut waiting, "now").await);
    }

    #[tokio::test]
    async fn it_ends_although_its_places_are_taken() {
        let service = Service::start().await;
        let working = [service.working().await, service.working().await];
        let waiting = service.connect().await;
        service.stop.cancel();
        drop((working, waiting));
        tokio::time::timeout(Duration::from_secs(120), service.serving).await.expect("it ends").unwrap();
    }

    #[tokio::test]
    async fn what_has_ended_is_never_idle_again() {
        let visits = Arc::new(Visits::default());
        let visit = visits.begin();
        let in_work = visit.work();
        assert!(!visits.end_longest_idle());
        visit.change(Stand::Gone);
        drop(in_work);
        assert!(!visits.end_longest_idle(), "its answer is dropped after it");
    }

    #[tokio::test]
    async fn only_a_write_that_nobody_takes_in_fails() {
        let (near, mut far) = tokio::io::duplex(8);
        let mut paced = Paced::new(near, Duration::from_millis(20));
        let writer = tokio::spawn(async move {
            let never_taken = paced.write_all(&[0; 24]).await;
            (never_taken.map_err(|error| error.kind()), paced)
        });
        let (stalled, mut paced) = writer.await.unwrap();
        assert_eq!(stalled, Err(io::ErrorKind::TimedOut));
        // The time counts from the last byte taken in, not from the first write.
        paced.stall = Duration::from_secs(600);
        let reader = tokio::spawn(async move { far.read_exact(&mut [0; 32]).await.map(drop) });
        paced.deadline = None;
        paced.write_all(&[0; 24]).await.unwrap();
        reader.await.unwrap().unwrap();
        assert!(paced.deadline.is_none());
    }
}
