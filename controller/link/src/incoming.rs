//! Connections of agents within a bound, because each takes a file descriptor from the whole process. At the bound new ones wait
//! until one ends; who connects and says nothing is cut off. Knows nothing of what they carry. Next file: `accept.rs`.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};
use tokio_stream::Stream;
use tokio_util::sync::PollSemaphore;
use tonic::transport::server::{Connected, TcpConnectInfo};

/// Time a new connection has to send its first byte; from then on HTTP/2 pings tell whether anybody is there.
pub const GREETING_TIME: Duration = Duration::from_secs(10);

/// Pause after an accept that failed for want of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Accepts connections. Never ends, and never fails: a failed accept is tried again.
pub struct Incoming {
    listener: TcpListener,
    places: PollSemaphore,
    place: Option<OwnedSemaphorePermit>,
    pause: Option<Pin<Box<Sleep>>>,
    greeting_time: Duration,
}

impl Incoming {
    /// With so many connections at once.
    pub fn new(listener: TcpListener, connections_max: usize, greeting_time: Duration) -> Self {
        let places = PollSemaphore::new(Semaphore::new(connections_max).into());
        Self { listener, places, place: None, pause: None, greeting_time }
    }
}

impl Stream for Incoming {
    type Item = io::Result<Placed>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(context));
                self.pause = None;
            }
            if self.place.is_none() {
                self.place = ready!(self.places.poll_acquire(context));
            }
            match ready!(self.listener.poll_accept(context))
                .and_then(|(stream, _)| stream.set_nodelay(true).map(|()| stream))
            {
                Ok(stream) => {
                    let greeting = Some(Box::pin(sleep(self.greeting_time)));
                    return Poll::Ready(Some(Ok(Placed { stream, greeting, _place: self.place.take() })));
                }
                Err(error) => {
                    tracing::warn!(%error, "an agent's connection could not be accepted");
                    self.pause = Some(Box::pin(sleep(ACCEPT_PAUSE)));
                }
            }
        }
    }
}

/// A connection and its place, which is free again when it ends.
pub struct Placed {
    stream: TcpStream,
    /// Runs until the first byte.
    greeting: Option<Pin<Box<Sleep>>>,
    _place: Option<OwnedSemaphorePermit>,
}

impl Connected for Placed {
    type ConnectInfo = TcpConnectInfo;
    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Placed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if read.is_ready() {
            self.greeting = None;
        } else if let Some(greeting) = &mut self.greeting {
            ready!(greeting.as_mut().poll(context));
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the other side says nothing")));
        }
        read
    }
}

impl AsyncWrite for Placed {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
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
    use tokio_stream::StreamExt;

    #[tokio::test]
    async fn a_place_is_free_again_when_its_connection_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut incoming = Incoming::new(listener, 1, Duration::from_secs(600));
        let _outside: Vec<TcpStream> =
            vec![TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap()];
        let first = incoming.next().await.unwrap().unwrap();
        assert!(
            std::future::poll_fn(|context| Poll::Ready(Pin::new(&mut incoming).poll_next(context).is_pending())).await
        );
        drop(first);
        incoming.next().await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn who_says_nothing_is_cut_off_and_who_has_spoken_is_not() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut incoming = Incoming::new(listener, 2, Duration::from_millis(20));
        let _silent = TcpStream::connect(address).await.unwrap();
        let mut mute = incoming.next().await.unwrap().unwrap();
        assert_eq!(mute.read(&mut [0]).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        let mut speaker = TcpStream::connect(address).await.unwrap();
        speaker.write_all(b"a").await.unwrap();
        let mut heard = incoming.next().await.unwrap().unwrap();
        heard.read_exact(&mut [0]).await.unwrap();
        assert!(heard.greeting.is_none(), "from now on silence is legal");
    }
}
