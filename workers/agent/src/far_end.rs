//! The link between two servers, measured between their agents on the way that executors' gradients go: a burst in each direction. What is made of it is
//! decided by the controller (`controller/core/src/survey.rs`).
//!
//! Whoever shows the key is served, one at a time, within bounded time and bytes; nothing that is sent means anything.

use events_schema::orders::FarEnd;
use std::convert::Infallible;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use workers_agent_core::{BURST_BYTES_MAX, Burst, of_directions};

/// Longest time of one direction: a connection, a burst, and what still stands in queues before its answer.
const DIRECTION_TIMEOUT: Duration = Duration::from_secs(2);

/// Bytes of one write and read.
const PIECE_BYTES: usize = 64 << 10;

/// Pause after a connection that could not be accepted, as where there are no more descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// What is asked for after the key.
const SEND: u8 = 1;
const READ: u8 = 2;

/// Where others measure the link to this server.
#[derive(Debug)]
pub(crate) struct Listening {
    listener: TcpListener,
    pub far_end: FarEnd,
}

impl Listening {
    /// On a free port of the host that executors listen at; none if that cannot be: then links to here are found out by newcomers alone.
    pub async fn open(host: &str) -> Option<Self> {
        let opened = async {
            let listener = TcpListener::bind((host, 0)).await?;
            let mut key = [0; 16];
            getrandom::fill(&mut key).map_err(|error| io::Error::other(error.to_string()))?;
            let address = listener.local_addr()?.to_string();
            Ok::<_, io::Error>(Self { listener, far_end: FarEnd { address, key } })
        };
        let warned = |error| tracing::warn!(host, %error, "the link to this server cannot be measured");
        opened.await.map_err(warned).ok()
    }

    /// Serves one after the other until `shutdown`.
    pub async fn serve(self, shutdown: CancellationToken) {
        loop {
            let accepted = tokio::select! {
                () = shutdown.cancelled() => return,
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                // Who is slow, or shows nothing, is cut off; whose fault it was, who asked sees.
                Ok((stream, _)) => drop(timeout(DIRECTION_TIMEOUT, serve(stream, &self.far_end.key)).await),
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    }
}

async fn serve(mut stream: TcpStream, key: &[u8; 16]) -> io::Result<()> {
    let mut asked = [0; 17];
    stream.read_exact(&mut asked).await?;
    match asked.split_last() {
        Some((&SEND, shown)) if shown == key => {
            send(&mut stream).await?;
            stream.shutdown().await?;
            // Closed here first, what is still in the kernel would be lost.
            stream.read(&mut [0]).await.map(drop)
        }
        Some((&READ, shown)) if shown == key => {
            let rate = read(&mut stream).await?.unwrap_or(0);
            stream.write_all(&rate.to_be_bytes()).await
        }
        _ => Ok(()),
    }
}

/// Measures the link to another server: bytes per second in the slower direction. None if it cannot be reached, or nothing that comes tells.
pub(crate) async fn measure(far_end: &FarEnd) -> Option<u64> {
    let down = direction(far_end, down(far_end)).await;
    let up = direction(far_end, up(far_end)).await;
    of_directions(down, up)
}

/// What one direction came to, in its time: a slow one says enough though the other fails.
async fn direction(far_end: &FarEnd, read: impl Future<Output = io::Result<Option<u64>>>) -> Option<u64> {
    let read = timeout(DIRECTION_TIMEOUT, read).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    read.inspect_err(|error| tracing::debug!(?far_end, %error, "a link was not measured")).ok().flatten()
}

async fn connect(far_end: &FarEnd, asked: u8) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(&far_end.address).await?;
    stream.set_nodelay(true)?;
    let mut shown = far_end.key.to_vec();
    shown.push(asked);
    stream.write_all(&shown).await?;
    Ok(stream)
}

async fn down(far_end: &FarEnd) -> io::Result<Option<u64>> {
    let mut stream = connect(far_end, SEND).await?;
    read(&mut stream).await
}

async fn up(far_end: &FarEnd) -> io::Result<Option<u64>> {
    let (mut reader, mut writer) = connect(far_end, READ).await?.into_split();
    let mut answer = [0; 8];
    // The other end answers when it has read enough, then takes no more: that something is not sent is no failure.
    let never = async {
        drop(send(&mut writer).await);
        std::future::pending::<Infallible>().await
    };
    tokio::select! {
        answered = reader.read_exact(&mut answer) => answered.map(drop)?,
        never = never => match never {},
    }
    Ok(Some(u64::from_be_bytes(answer)).filter(|rate| *rate > 0))
}

/// Sends a burst.
async fn send(to: &mut (impl AsyncWriteExt + Unpin)) -> io::Result<()> {
    let piece = incompressible();
    let mut left = BURST_BYTES_MAX;
    while left > 0 {
        let bytes = usize::try_from(left).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
        to.write_all(&piece[..bytes]).await?;
        left = left.saturating_sub(PIECE_BYTES as u64);
    }
    Ok(())
}

/// Reads a burst, as much of it as tells.
async fn read(from: &mut (impl AsyncReadExt + Unpin)) -> io::Result<Option<u64>> {
    let (mut burst, mut piece, begun) = (Burst::default(), vec![0; PIECE_BYTES], Instant::now());
    loop {
        let bytes = from.read(&mut piece).await?;
        if bytes == 0 || burst.on_bytes(bytes as u64, begun.elapsed()) {
            return Ok(burst.bytes_per_s());
        }
    }
}

/// Bytes that no network between makes fewer.
fn incompressible() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = std::iter::from_fn(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        Some(state.to_le_bytes())
    });
    next.take(PIECE_BYTES / 8).flatten().collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn a_link_is_measured_by_who_shows_the_key_and_by_nobody_else() {
        let listening = Listening::open("127.0.0.1").await.unwrap();
        let (far_end, shutdown) = (listening.far_end.clone(), CancellationToken::new());
        let serving = tokio::spawn(listening.serve(shutdown.clone()));
        assert!(measure(&far_end).await.is_some_and(|rate| rate > 0));
        assert_eq!(measure(&FarEnd { key: [0; 16], ..far_end.clone() }).await, None);
        // Who only holds the connection is cut off, and the next one is served.
        let idle = TcpStream::connect(&far_end.address).await.unwrap();
        let mut stream = connect(&far_end, 9).await.unwrap();
        assert_eq!(stream.read(&mut [0]).await.unwrap_or(0), 0, "that is nothing to ask for");
        drop(idle);
        shutdown.cancel();
        serving.await.unwrap();
        assert_eq!(measure(&far_end).await, None, "nobody is there");
    }

    /// Who listens sends some 10 MB a second, and takes nothing.
    #[tokio::test]
    async fn a_direction_that_is_slow_says_enough_though_the_other_fails() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let far_end = FarEnd { address: listener.local_addr().unwrap().to_string(), key: [7; 16] };
        let sends = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let piece = incompressible();
            while stream.write_all(&piece).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(6)).await;
            }
        });
        let rate = measure(&far_end).await;
        assert!(rate.is_some_and(|rate| rate < workers_agent_core::BURST_BYTES_MAX * 10), "{rate:?}");
        sends.abort();
    }
}
