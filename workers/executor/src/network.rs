//! Links to peers: a listener, dials, and per link one thread that reads and one that writes. Knows frames, not what they mean.
//!
//! The trainer never waits here: it puts parcels into a link's queue, and the writer thread cuts them into pieces. What is queued shares
//! the trainer's buffers; a queue that overflows means a peer that does not read, and its link is cut.

use crate::handshake::{self, Identity};
use crate::inbox::Event;
use crate::reduce::Parcel;
use crate::wire::{HEADER_LEN, Header, Kind, PIECE_ELEMENTS, put_elements, take_elements};
use events_schema::batch::{from_bytes, to_bytes};
use events_schema::{Generation, Step};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};
use workers_session::{Envelope, Peer, Tag};

/// Entries in a link's queue: pieces of a chunk of the largest model, twice.
const OUTGOING_MAX: usize = 16_384;
/// A handshake takes a round trip; a peer that is busy computing still answers, because threads of its own do.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// One attempt to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Attempts: the peer listens before it is named in any proposal, so refusals are faults of the network.
const CONNECT_ATTEMPTS: u32 = 5;
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
    number: u64,
    queue: SyncSender<Outgoing>,
    stream: TcpStream,
}

/// What a writer thread writes.
#[derive(Debug)]
enum Outgoing {
    Control(Vec<u8>),
    Bulk { header: Header, data: Arc<Vec<f32>>, range: Range<usize> },
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
    links: BTreeMap<Peer, Link>,
    dialing: BTreeSet<Peer>,
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
        Ok(Self { shared, links: BTreeMap::new(), dialing: BTreeSet::new(), address })
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

    /// Dials a peer in the background; [`Event::Linked`] or [`Event::NotLinked`] follows.
    pub fn connect(&mut self, peer: Peer, address: String) {
        if self.links.contains_key(&peer) || !self.dialing.insert(peer) {
            return;
        }
        let shared = self.shared.clone();
        let failed = self.shared.inbox.clone();
        let dialing = std::thread::Builder::new().name(format!("ebb-{peer}")).spawn(move || {
            if let Err(error) = dial(&shared, peer, &address) {
                tracing::warn!(%peer, %address, %error, "peer cannot be linked");
                let _ = shared.inbox.send(Event::NotLinked(peer));
            }
        });
        if dialing.is_err() {
            let _ = failed.try_send(Event::NotLinked(peer));
        }
    }

    /// A dial ended without a link.
    pub fn not_linked(&mut self, peer: Peer) {
        self.dialing.remove(&peer);
    }

    /// Takes a new link. Gives whether it replaces one.
    pub fn linked(&mut self, peer: Peer, link: Link) -> bool {
        self.dialing.remove(&peer);
        self.links.insert(peer, link).is_some()
    }

    /// Whether this link is the one in use.
    #[must_use]
    pub fn is_current(&self, peer: Peer, number: u64) -> bool {
        self.links.get(&peer).is_some_and(|link| link.number == number)
    }

    /// Forgets a link that ended. Gives whether it was the one in use.
    pub fn lost(&mut self, peer: Peer, number: u64) -> bool {
        self.is_current(peer, number) && self.links.remove(&peer).is_some()
    }

    /// Cuts a link; [`Event::Lost`] follows.
    pub fn cut(&mut self, peer: Peer) {
        if let Some(link) = self.links.get(&peer) {
            let _ = link.stream.shutdown(Shutdown::Both);
        }
    }

    /// Says something; without a link it is lost, as the session expects.
    pub fn say(&mut self, to: Peer, envelope: &Envelope) {
        let payload = to_bytes(envelope);
        let header = Header {
            kind: Kind::Control,
            tag: envelope.tag,
            step: Step(0),
            offset: 0,
            payload_len: payload.len() as u32,
        };
        let mut frame = header.encode().to_vec();
        frame.extend_from_slice(&payload);
        self.put(to, Outgoing::Control(frame));
    }

    /// Sends a parcel.
    pub fn send(&mut self, parcel: Parcel, tag: Tag, step: Step) {
        let header = Header { kind: parcel.kind, tag, step, offset: parcel.offset as u64, payload_len: 0 };
        self.put(parcel.to, Outgoing::Bulk { header, data: parcel.data, range: parcel.range });
    }

    fn put(&mut self, to: Peer, outgoing: Outgoing) {
        let Some(link) = self.links.get(&to) else { return };
        self.shared.unwritten.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = link.queue.try_send(outgoing) {
            self.shared.unwritten.fetch_sub(1, Ordering::Relaxed);
            if matches!(error, TrySendError::Full(_)) {
                tracing::error!(peer = %to, "peer does not read; its link is cut");
                self.cut(to);
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
                Ok((peer, number, stream)) => read_all(&accepting, peer, number, stream),
                Err(error) => tracing::warn!(%error, "a connection was refused"),
            }
        });
        if spawned.is_err() {
            shared.handshakes.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn accept(shared: &Shared, mut stream: TcpStream) -> Result<(Peer, u64, TcpStream), handshake::HandshakeError> {
    prepare(&stream)?;
    let peer = handshake::accept(&shared.identity, &mut stream)?;
    // The order is a promise: a dialer that was accepted knows that the trainer here hears of the link before anything that its peers
    // say because of it. So the link goes into the inbox before the last word, and the queue is written after it.
    let (link, outgoing) = make_link(shared, &stream)?;
    let number = link.number;
    let _ = shared.inbox.send(Event::Linked(peer, link));
    handshake::accepted(&mut stream)?;
    start_writer(shared, peer, &stream, outgoing)?;
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    Ok((peer, number, stream))
}

fn dial(shared: &Shared, peer: Peer, address: &str) -> Result<(), handshake::HandshakeError> {
    let mut stream = open(address)?;
    prepare(&stream)?;
    handshake::dial(&shared.identity, peer, &mut stream)?;
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    let (link, outgoing) = make_link(shared, &stream)?;
    let number = link.number;
    let _ = shared.inbox.send(Event::Linked(peer, link));
    start_writer(shared, peer, &stream, outgoing)?;
    read_all(shared, peer, number, stream);
    Ok(())
}

fn open(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::InvalidInput, "the address names no host");
    for attempt in 0..CONNECT_ATTEMPTS {
        if attempt > 0 {
            std::thread::sleep(CONNECT_PAUSE);
        }
        for address in address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
    }
    Err(last)
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(HANDSHAKE_TIMEOUT))?;
    Ok(())
}

fn make_link(shared: &Shared, stream: &TcpStream) -> io::Result<(Link, Receiver<Outgoing>)> {
    let (queue, outgoing) = sync_channel(OUTGOING_MAX);
    let number = shared.links_made.fetch_add(1, Ordering::Relaxed);
    Ok((Link { number, queue, stream: stream.try_clone()? }, outgoing))
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
                    let header = Header { offset, payload_len: 4 * piece.len() as u32, ..header };
                    frame.clear();
                    frame.extend_from_slice(&header.encode());
                    put_elements(&data[piece.clone()], &mut frame);
                    stream.write_all(&frame)?;
                    shared.bulk_bytes.fetch_add(4 * piece.len() as u64, Ordering::Relaxed);
                    shared.header_bytes.fetch_add(HEADER_LEN as u64, Ordering::Relaxed);
                }
            }
        }
        shared.unwritten.fetch_sub(1, Ordering::Release);
    }
}

fn ping() -> Header {
    Header {
        kind: Kind::Ping,
        tag: Tag { generation: Generation(0), revision: 0 },
        step: Step(0),
        offset: 0,
        payload_len: 0,
    }
}

fn read_all(shared: &Shared, peer: Peer, number: u64, stream: TcpStream) {
    let end = read_frames(shared, peer, number, &stream);
    tracing::debug!(%peer, ?end, "link ended");
    let _ = stream.shutdown(Shutdown::Both);
    let _ = shared.inbox.send(Event::Lost(peer, number));
}

/// Reads until the link ends or breaks the format; the text says which, for the log.
fn read_frames(shared: &Shared, peer: Peer, number: u64, stream: &TcpStream) -> Result<(), String> {
    let mut input = BufReader::with_capacity(64 * 1024, stream);
    let mut header = [0; HEADER_LEN];
    let mut payload = Vec::new();
    loop {
        input.read_exact(&mut header).map_err(|e| e.to_string())?;
        let header = Header::decode(&header).map_err(|e| e.to_string())?;
        payload.resize(header.payload_len as usize, 0);
        input.read_exact(&mut payload).map_err(|e| e.to_string())?;
        let event = match header.kind {
            Kind::Ping => continue,
            Kind::Control => Event::Message(peer, number, from_bytes(&payload).map_err(|e| e.to_string())?),
            _ => Event::Bulk(peer, number, header, take_elements(&payload)),
        };
        if shared.inbox.send(event).is_err() {
            return Ok(());
        }
    }
}
