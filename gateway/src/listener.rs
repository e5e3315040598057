//! Connections: accepted within a bound, given a time for their request heads, cut off when they take in nothing, and ended
//! in order when the service stops.

use crate::limits::Limits;
use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::CancellationToken;

/// Pause after an accept that failed for want of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Serves until `stop`, then lets open connections end their requests within the grace. Never fails: a connection's errors are
/// its own, and a failed accept is tried again.
pub async fn serve(listener: TcpListener, router: Router, limits: Limits, stop: CancellationToken) {
    let places = Arc::new(Semaphore::new(limits.connections_max));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            // Reaps ended connections, so that the set holds open ones only.
            Some(ended) = connections.join_next(), if !connections.is_empty() => {
                report(ended);
                continue;
            }
            accepted = accept(&listener, &places) => accepted,
        };
        match accepted {
            Ok((stream, place)) => {
                let (router, stop) = (router.clone(), stop.clone());
                connections.spawn(async move {
                    converse(stream, router, limits, stop).await;
                    drop(place);
                });
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
    if tokio::time::timeout(limits.shutdown_grace, ended).await.is_err() {
        tracing::warn!(left = connections.len(), "connections were cut off at the end of the grace");
        connections.shutdown().await;
    }
}

type Place = tokio::sync::OwnedSemaphorePermit;

async fn accept(listener: &TcpListener, places: &Arc<Semaphore>) -> io::Result<(TcpStream, Place)> {
    // At the bound the kernel's queue holds new connections back.
    let place = places.clone().acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    // Small answers and events are not held back for more bytes.
    stream.set_nodelay(true)?;
    Ok((stream, place))
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a connection's task failed");
    }
}

async fn converse(stream: TcpStream, router: Router, limits: Limits, stop: CancellationToken) {
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(limits.head_time);
    let io = TokioIo::new(Paced::new(stream, limits.write_stall));
    let connection = builder.serve_connection(io, TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
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
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

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
