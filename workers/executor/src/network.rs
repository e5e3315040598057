//! Links to peers: a listener, dials, and per link one thread that reads and one that writes. Knows frames, not what they mean, and not
//! which link is wanted: `workers-member` says so.
//!
//! The trainer never waits here: it puts slices into a link's queue, and the writer thread cuts them into pieces. What is queued shares
//! the trainer's buffers; a queue that overflows means a peer that does not read, and its link is cut.

use crate::buffers::SharedElements;
use crate::handshake::{self, HandshakeError, Identity, Timed};
use crate::inbox::Event;
use crate::sums::OutgoingSlice;
use crate::wire::{ELEMENT_LEN, Frame, HEADER_LEN, Header, PIECE_ELEMENTS, put_elements, take_elements};
use events_schema::batch::{from_bytes, to_bytes};
use events_schema::{Generation, Step};
use std::collections::BTreeMap;
use std::io::{self, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};
use workers_member::LinkId;
use workers_session::{Envelope, Peer, Tag};

/// Entries in a link's queue: pieces of a chunk of the largest model, twice.
const OUTGOING_MAX: usize = 16_384;
/// A whole handshake, up to its last word. It takes two round trips; a peer that is busy computing still answers, because threads of
/// its own do.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// The last word, from a peer that has proved itself: its trainer must have room for the news, and it reads between gradients. Longer
/// than the slowest gradient that is worth a step.
const LAST_WORD_TIMEOUT: Duration = Duration::from_secs(60);
/// One attempt to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Attempts to connect and be accepted: the peer listens before it is named in any proposal, so failures are faults of the network.
const DIAL_ATTEMPTS: u32 = 5;
const CONNECT_PAUSE: Duration = Duration::from_millis(200);
/// Strangers that may be in the middle of a handshake.
const HANDSHAKES_MAX: usize = 512;
/// A link with nothing else to say says that it lives this often.
const PING_INTERVAL: Duration = Duration::from_secs(1);
/// A link on which nothing arrived for this long is lost: a node that fell silent. (A dead process is noticed at once, by the end of its
/// connection.) Not measured while the trainer is too busy to read, so a slow gradient is no silence.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// Last words are short; a peer that does not take them within this is gone.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);
const FLUSH_PAUSE: Duration = Duration::from_millis(1);

/// One link, as its trainer holds it.
#[derive(Debug)]
pub struct Link {
    queue: SyncSender<Outgoing>,
    stream: TcpStream,
}

/// What a writer thread writes.
enum Outgoing {
    Control(Vec<u8>),
    Bulk { header: Header, data: SharedElements, range: Range<usize> },
}

/// What threads of the network share.
#[derive(Clone)]
struct Shared {
    identity: Arc<Identity>,
    inbox: SyncSender<Event>,
    links_made: Arc<AtomicU64>,
    handshakes: Arc<AtomicUsize>,
    bulk_bytes: Arc<AtomicU64>,
    header_bytes: Arc<AtomicU64>,
    /// Entries put into queues and not yet written.
    unwritten: Arc<AtomicUsize>,
}

/// All links of an executor.
pub struct Network {
    shared: Shared,
    links: BTreeMap<LinkId, Link>,
    /// Which of them is the one to its peer.
    used: BTreeMap<Peer, LinkId>,
    address: SocketAddr,
}

impl Network {
    /// Listens on a free port of `host`.
    pub fn listen(host: &str, identity: Identity, inbox: SyncSender<Event>) -> io::Result<Self> {
        let listener = TcpListener::bind((host, 0))?;
        let address = listener.local_addr()?;
        let shared = Shared {
            identity: Arc::new(identity),
            inbox,
            links_made: Arc::default(),
            handshakes: Arc::default(),
            bulk_bytes: Arc::default(),
            header_bytes: Arc::default(),
            unwritten: Arc::default(),
        };
        let accepting = shared.clone();
        std::thread::Builder::new().name("ebb-accept".to_owned()).spawn(move || accept_all(&listener, &accepting))?;
        Ok(Self { shared, links: BTreeMap::new(), used: BTreeMap::new(), address })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Bulk payload and header bytes written so far, on all links.
    #[must_use]
    pub fn bytes_sent(&self) -> (u64, u64) {
        (self.shared.bulk_bytes.load(Ordering::Relaxed), self.shared.header_bytes.load(Ordering::Relaxed))
    }

    /// Where bulk payload bytes written are counted.
    #[must_use]
    pub fn bulk_counter(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.shared.bulk_bytes)
    }

    /// Dials a peer in the background; [`Event::Linked`] or [`Event::NotLinked`] follows.
    pub fn dial(&self, peer: Peer, address: String) {
        let shared = self.shared.clone();
        let dialing = std::thread::Builder::new().name(format!("ebb-{peer}")).spawn(move || {
            match dial(&shared, peer, &address) {
                Ok((stream, id, link, outgoing)) => run_link(&shared, id, stream, link, outgoing, |_| Ok(())),
                Err(error) => {
                    tracing::warn!(%peer, %address, %error, "peer cannot be linked");
                    let _ = shared.inbox.send(Event::NotLinked(peer));
                }
            }
        });
        if let Err(error) = dialing {
            tracing::error!(%peer, %error, "no thread is left to dial a peer");
        }
    }

    /// Holds a new link until it is used or cut.
    pub fn linked(&mut self, id: LinkId, link: Link) {
        self.links.insert(id, link);
    }

    /// From now on this link is the one to its peer.
    pub fn take(&mut self, id: LinkId) {
        self.used.insert(id.peer, id);
    }

    /// Ends a link and forgets it.
    pub fn cut(&mut self, id: LinkId) {
        if let Some(link) = self.links.remove(&id) {
            let _ = link.stream.shutdown(Shutdown::Both);
        }
        self.used.retain(|_, used| *used != id);
    }

    /// Says something; without a link it is lost, as the session expects.
    pub fn say(&mut self, to: Peer, envelope: &Envelope) {
        let payload = to_bytes(envelope);
        let header = Header {
            frame: Frame::Control,
            tag: envelope.tag,
            step: Step(0),
            offset: 0,
            payload_len: payload.len() as u32,
        };
        let mut frame = header.encode().to_vec();
        frame.extend_from_slice(&payload);
        self.put(to, Outgoing::Control(frame));
    }

    /// Sends a slice.
    pub fn send(&mut self, slice: OutgoingSlice, tag: Tag, step: Step) {
        let frame = Frame::Bulk(slice.kind);
        let header = Header { frame, tag, step, offset: slice.offset as u64, payload_len: 0 };
        self.put(slice.to, Outgoing::Bulk { header, data: slice.data, range: slice.range });
    }

    fn put(&mut self, to: Peer, outgoing: Outgoing) {
        let Some(link) = self.used.get(&to).and_then(|id| self.links.get(id)) else { return };
        self.shared.unwritten.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = link.queue.try_send(outgoing) {
            self.shared.unwritten.fetch_sub(1, Ordering::Relaxed);
            if matches!(error, TrySendError::Full(_)) {
                tracing::error!(peer = %to, "peer does not read; its link is cut");
                // Its reader sees the end and tells of it.
                let _ = link.stream.shutdown(Shutdown::Both);
            }
        }
    }

    /// Waits until what was said is written, for a bounded time: the last thing an executor does.
    pub fn flush(&self) {
        let until = Instant::now() + FLUSH_TIMEOUT;
        while self.shared.unwritten.load(Ordering::Acquire) > 0 && Instant::now() < until {
            std::thread::sleep(FLUSH_PAUSE);
        }
    }
}

fn accept_all(listener: &TcpListener, shared: &Shared) {
    for stream in listener.incoming() {
        let stream = match stream {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                // Out of descriptors, most likely: give others time to end.
                std::thread::sleep(CONNECT_PAUSE);
                continue;
            }
        };
        if shared.handshakes.fetch_add(1, Ordering::Relaxed) >= HANDSHAKES_MAX {
            shared.handshakes.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let accepting = shared.clone();
        let spawned = std::thread::Builder::new().name("ebb-peer".to_owned()).spawn(move || {
            let handshake = accept(&accepting, stream);
            accepting.handshakes.fetch_sub(1, Ordering::Relaxed);
            match handshake {
                Ok((stream, id, link, outgoing)) => {
                    run_link(&accepting, id, stream, link, outgoing, handshake::accepted);
                }
                Err(error) => tracing::warn!(%error, "a connection was refused"),
            }
        });
        if spawned.is_err() {
            shared.handshakes.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// A link that is made: its connection, its name, and both ends of its queue.
type Made = (TcpStream, LinkId, Link, Receiver<Outgoing>);

fn accept(shared: &Shared, stream: TcpStream) -> Result<Made, HandshakeError> {
    stream.set_nodelay(true)?;
    let peer = handshake::accept(&shared.identity, &mut Timed::new(&stream, HANDSHAKE_TIMEOUT))?;
    let (id, link, outgoing) = make_link(shared, peer, &stream)?;
    Ok((stream, id, link, outgoing))
}

/// Connects and is accepted, or gives up.
fn dial(shared: &Shared, peer: Peer, address: &str) -> Result<Made, HandshakeError> {
    let mut attempt = 1;
    let stream = loop {
        match dial_once(shared, peer, address) {
            Ok(stream) => break stream,
            // A peer that answers, but as a stranger, is one the next time too.
            Err(HandshakeError::Connection(error)) if attempt < DIAL_ATTEMPTS => {
                tracing::debug!(%peer, %address, %error, attempt, "not linked yet");
                attempt += 1;
                std::thread::sleep(CONNECT_PAUSE);
            }
            Err(error) => return Err(error),
        }
    };
    let (id, link, outgoing) = make_link(shared, peer, &stream)?;
    Ok((stream, id, link, outgoing))
}

fn dial_once(shared: &Shared, peer: Peer, address: &str) -> Result<TcpStream, HandshakeError> {
    let stream = open(address)?;
    stream.set_nodelay(true)?;
    handshake::dial(&shared.identity, peer, &mut Timed::new(&stream, HANDSHAKE_TIMEOUT))?;
    handshake::wait_accepted(&mut Timed::new(&stream, LAST_WORD_TIMEOUT))?;
    Ok(stream)
}

fn open(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::InvalidInput, "the address names no host");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A link from the news of it to the news of its end; whatever fails in between is its end.
///
/// The order is a promise: a dialer that was accepted knows that the trainer here hears of the link before anything that its peers
/// say because of it. So the link goes into the inbox before the `last_word`, and the queue is written after it.
fn run_link(
    shared: &Shared,
    id: LinkId,
    mut stream: TcpStream,
    link: Link,
    outgoing: Receiver<Outgoing>,
    last_word: impl FnOnce(&mut TcpStream) -> io::Result<()>,
) {
    let peer = id.peer;
    if shared.inbox.send(Event::Linked(id, link)).is_err() {
        return;
    }
    let begun = last_word(&mut stream)
        .and_then(|()| stream.set_read_timeout(Some(SILENCE_MAX)))
        .and_then(|()| start_writer(shared, peer, &stream, outgoing));
    let end = match begun {
        Ok(()) => read_frames(shared, id, &stream),
        Err(error) => Err(error.to_string()),
    };
    tracing::debug!(%peer, ?end, "link ended");
    let _ = stream.shutdown(Shutdown::Both);
    let _ = shared.inbox.send(Event::Lost(id));
}

fn make_link(shared: &Shared, peer: Peer, stream: &TcpStream) -> io::Result<(LinkId, Link, Receiver<Outgoing>)> {
    let (queue, outgoing) = sync_channel(OUTGOING_MAX);
    let number = shared.links_made.fetch_add(1, Ordering::Relaxed);
    Ok((LinkId { peer, number }, Link { queue, stream: stream.try_clone()? }, outgoing))
}

fn start_writer(shared: &Shared, peer: Peer, stream: &TcpStream, outgoing: Receiver<Outgoing>) -> io::Result<()> {
    let (stream, shared) = (stream.try_clone()?, shared.clone());
    let writer = move || {
        let written = write_all(&shared, &stream, &outgoing);
        let failed = written.is_err();
        if let Err(error) = written {
            tracing::debug!(%peer, %error, "writing to a peer ended");
        }
        // Wakes the reader, which tells the trainer.
        let _ = stream.shutdown(Shutdown::Both);
        let unwritten = outgoing.try_iter().count() + usize::from(failed);
        shared.unwritten.fetch_sub(unwritten, Ordering::Release);
    };
    std::thread::Builder::new().name(format!("ebb-to-{peer}")).spawn(writer).map(drop)
}

fn write_all(shared: &Shared, mut stream: &TcpStream, outgoing: &Receiver<Outgoing>) -> io::Result<()> {
    let mut frame = Vec::with_capacity(HEADER_LEN + 4 * PIECE_ELEMENTS);
    loop {
        let next = match outgoing.recv_timeout(PING_INTERVAL) {
            Ok(next) => next,
            Err(RecvTimeoutError::Timeout) => {
                stream.write_all(&ping().encode())?;
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        };
        match next {
            Outgoing::Control(bytes) => {
                stream.write_all(&bytes)?;
                shared.header_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            }
            Outgoing::Bulk { header, data, range } => {
                for start in range.clone().step_by(PIECE_ELEMENTS) {
                    let piece = start..(start + PIECE_ELEMENTS).min(range.end);
                    let offset = header.offset + (start - range.start) as u64;
                    let header = Header { offset, payload_len: (ELEMENT_LEN * piece.len()) as u32, ..header };
                    frame.clear();
                    frame.extend_from_slice(&header.encode());
                    put_elements(&data[piece.clone()], &mut frame);
                    stream.write_all(&frame)?;
                    shared.bulk_bytes.fetch_add((ELEMENT_LEN * piece.len()) as u64, Ordering::Relaxed);
                    shared.header_bytes.fetch_add(HEADER_LEN as u64, Ordering::Relaxed);
                }
            }
        }
        shared.unwritten.fetch_sub(1, Ordering::Release);
    }
}

fn ping() -> Header {
    Header {
        frame: Frame::Ping,
        tag: Tag { generation: Generation(0), revision: 0 },
        step: Step(0),
        offset: 0,
        payload_len: 0,
    }
}

/// Reads until the link ends or breaks the format; the text says which, for the log.
fn read_frames(shared: &Shared, link: LinkId, stream: &TcpStream) -> Result<(), String> {
    let mut input = BufReader::with_capacity(64 * 1024, stream);
    let mut header = [0; HEADER_LEN];
    let mut payload = Vec::new();
    loop {
        input.read_exact(&mut header).map_err(|e| e.to_string())?;
        let header = Header::decode(&header).map_err(|e| e.to_string())?;
        payload.resize(header.payload_len as usize, 0);
        input.read_exact(&mut payload).map_err(|e| e.to_string())?;
        let event = match header.frame {
            Frame::Ping => continue,
            Frame::Control => {
                let envelope = from_bytes(&payload).map_err(|e| e.to_string())?;
                Event::Message { link, envelope, bytes: payload.len() }
            }
            Frame::Bulk(kind) => Event::Bulk(link, header.bulk(kind), take_elements(&payload)),
        };
        if shared.inbox.send(event).is_err() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::inbox::inbox;
    use crate::keys::{LinkKeys, tests::pair};
    use events_schema::orders::LinkKey;
    use events_schema::{Digest, JobId};

    /// Reached only by a failure.
    const WAIT_MAX: Duration = Duration::from_secs(30);

    fn network(me: u32) -> (Network, Receiver<Event>) {
        let (sender, events) = inbox();
        let job = JobId::parse("job-a").unwrap();
        let keys = Arc::new(LinkKeys::of(&[pair(1, 0, 1), LinkKey { peer: 1 - me, ..pair(1, 0, 1) }]));
        let identity = Identity { job, me: Peer(me), class: Digest::of(b"x"), keys };
        (Network::listen("127.0.0.1", identity, sender).unwrap(), events)
    }

    #[test]
    fn a_connection_that_breaks_in_the_handshake_is_made_again() {
        let ((near, near_events), (far, far_events)) = (network(0), network(1));
        let front = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, target) = (front.local_addr().unwrap().to_string(), near.address());
        std::thread::spawn(move || {
            drop(front.accept().unwrap());
            let (one, other) = (front.accept().unwrap().0, TcpStream::connect(target).unwrap());
            let (mut from, mut to) = (one.try_clone().unwrap(), other.try_clone().unwrap());
            std::thread::spawn(move || io::copy(&mut from, &mut to));
            let _ = io::copy(&mut &other, &mut &one);
        });
        far.dial(Peer(0), address);
        let event = far_events.recv_timeout(WAIT_MAX).unwrap();
        assert!(matches!(event, Event::Linked(LinkId { peer: Peer(0), .. }, _)), "{event:?}");
        assert!(matches!(near_events.recv_timeout(WAIT_MAX).unwrap(), Event::Linked(LinkId { peer: Peer(1), .. }, _)));
    }
}
