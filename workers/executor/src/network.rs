//! Links to peers: a listener, dials, and per link one thread that reads and one that writes (`outbox.rs`). Knows frames, not what they mean, and not
//! which link is wanted: `workers-member` says so. The trainer never waits here.

use crate::buffers::{Buffer, Pool, SharedElements};
use crate::handshake::{self, HandshakeError, Identity, Timed};
use crate::inbox::Event;
use crate::lending::{Files, Lender};
use crate::outbox::{Outbox, Outgoing, OutgoingBulk, Queue, Sent, frame, frame_in};
use crate::replica::Reading;
use crate::stretch::Stretch;
use crate::sums::OutgoingSlice;
use crate::wire::{
    Control, Frame, HEADER_LEN, Header, LOAN_LEN, LOAN_NUMBER_LEN, Loan, PAYLOAD_LEN_MAX, SHOWN_LEN, SIGN_LEN, Shown,
    bytes_of_mut, decode_sign, encode_sign,
};
use events_schema::Step;
use events_schema::batch::{from_bytes, to_bytes};
use std::collections::BTreeMap;
use std::io::{self, BufReader, Read};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use workers_member::{Bulk, Kind, LinkId};
use workers_memory::Door;
use workers_session::{Envelope, Peer, Tag};

/// Read at once, where so much has come: a step's frames between executors of one host are some hundreds of bytes. Longer ones are read where they
/// belong.
const READ_BYTES: usize = 4_096;
/// A whole handshake, up to its last word. It takes two round trips; a peer that is busy computing still answers, because threads of
/// its own do.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// The last word, from a peer that has proved itself: its trainer must have room for the news, and may take them between gradients alone. Longer
/// than the slowest gradient that is worth a step.
const LAST_WORD_TIMEOUT: Duration = Duration::from_secs(60);
/// One attempt to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Attempts to connect and be accepted: the peer listens before it is named in any proposal, so failures are faults of the network.
const DIAL_ATTEMPTS: u32 = 5;
const CONNECT_PAUSE: Duration = Duration::from_millis(200);
/// Strangers that may be in the middle of a handshake.
const HANDSHAKES_MAX: usize = 512;
/// A link on which nothing arrived for this long is lost: a node that fell silent. (A dead process is noticed at once, by the end of its
/// connection.) Not measured while the trainer is too busy to read, so a slow gradient is no silence.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// Last words are short; a peer that does not take them within this is gone.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);
const FLUSH_PAUSE: Duration = Duration::from_millis(1);

/// One link, as its trainer holds it. Dropped, it ends once what was said is written.
#[derive(Debug)]
pub struct Link {
    outbox: Arc<Outbox>,
}

/// Whether executors of one host read each other's sums where they lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// They do, if the kernel allows it.
    Lent,
    /// They send copies.
    Copied,
}

/// What threads of the network share.
#[derive(Clone)]
struct Shared {
    identity: Arc<Identity>,
    /// By which others recognise this process; none where nothing is to be lent.
    door: Option<Arc<Door>>,
    pieces: Pool,
    inbox: SyncSender<Event>,
    links_made: Arc<AtomicU64>,
    handshakes: Arc<AtomicUsize>,
    sent: Sent,
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
    pub fn listen(host: &str, identity: Identity, inbox: SyncSender<Event>, memory: Memory) -> io::Result<Self> {
        let listener = TcpListener::bind((host, 0))?;
        let address = listener.local_addr()?;
        let shared = Shared {
            identity: Arc::new(identity),
            door: if memory == Memory::Lent { door() } else { None },
            pieces: Pool::of_pieces(),
            inbox,
            links_made: Arc::default(),
            handshakes: Arc::default(),
            sent: Sent::default(),
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

    /// Bulk payload written or lent and header bytes written so far, on all links.
    #[must_use]
    pub fn bytes_sent(&self) -> (u64, u64) {
        let Sent { bulk_bytes, header_bytes, .. } = &self.shared.sent;
        (bulk_bytes.load(Ordering::Relaxed), header_bytes.load(Ordering::Relaxed))
    }

    /// Where pieces of vectors come from and go back to.
    #[must_use]
    pub fn pieces(&self) -> Pool {
        self.shared.pieces.clone()
    }

    /// Where bulk payload bytes written are counted.
    #[must_use]
    pub fn bulk_counter(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.shared.sent.bulk_bytes)
    }

    /// Dials a peer in the background; [`Event::Linked`] or [`Event::NotLinked`] follows.
    pub fn dial(&self, peer: Peer, address: String) {
        let shared = self.shared.clone();
        let dialing = std::thread::Builder::new().name(format!("ebb-{peer}")).spawn(move || {
            match dial(&shared, peer, &address) {
                Ok(made) => run_link(&shared, made, |_| Ok(())),
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
            link.outbox.end();
        }
        self.used.retain(|_, used| *used != id);
    }

    /// Says something; without a link it is lost, as the session expects.
    pub fn say(&mut self, to: Peer, envelope: &Envelope) {
        self.put(to, Outgoing::Control(frame_in(envelope.tag, Control::Message, &to_bytes(envelope))));
    }

    /// Shows every peer the files of which it is going to be lent stretches.
    pub fn show(&self, files: &[Shown]) {
        for files in files.chunks(PAYLOAD_LEN_MAX as usize / SHOWN_LEN).filter(|_| self.shared.door.is_some()) {
            let shows = frame(Control::Shows, &files.iter().flat_map(Shown::encode).collect::<Vec<u8>>());
            for link in self.used.values().filter_map(|id| self.links.get(id)) {
                link.outbox.put(Outgoing::Control(shows.clone()));
            }
        }
    }

    /// Sends a slice.
    pub fn send(&mut self, slice: OutgoingSlice, tag: Tag, step: Step) {
        let frame = Frame::Bulk(slice.kind);
        let header = Header { frame, tag, step, offset: slice.offset as u64, payload_len: 0 };
        let bulk = OutgoingBulk { header, data: slice.data, range: slice.range };
        self.put(slice.to, Outgoing::Bulk(bulk));
    }

    /// Sends stretches of a replica to several peers, as they are now. They are copied on a thread of their own, into `room` if it is long enough, which then
    /// lets go of the replica and of what is given here: who trains waits for that copy at the most, and for no link.
    pub fn send_aside(
        &self,
        to: &[Peer],
        (replica, reading): (Arc<Vec<f32>>, Reading),
        ranges: [Range<usize>; 2],
        (tag, step): (Tag, Step),
        room: Option<Buffer>,
    ) {
        let used = to.iter().filter_map(|peer| self.links.get(self.used.get(peer)?));
        let outboxes: Vec<Arc<Outbox>> = used.map(|link| Arc::clone(&link.outbox)).collect();
        let copy = move || {
            let elements = ranges.iter().map(ExactSizeIterator::len).sum();
            let room = room.filter(|room| room.len() >= elements);
            let mut copy = room.unwrap_or_else(|| Buffer::from(vec![0.0; elements]));
            let mut stretches = Vec::new();
            let mut start = 0;
            for range in ranges.into_iter().filter(|range| !range.is_empty()) {
                let place = start..start + range.len();
                start = place.end;
                copy[place.clone()].copy_from_slice(&replica[range.clone()]);
                stretches.push((range.start, place));
            }
            drop((replica, reading));
            let data = Arc::new(copy) as SharedElements;
            for (offset, range) in stretches {
                let header =
                    Header { frame: Frame::Bulk(Kind::Replica), tag, step, offset: offset as u64, payload_len: 0 };
                outboxes.iter().for_each(|outbox| {
                    let bulk = OutgoingBulk { header, data: Arc::clone(&data), range: range.clone() };
                    outbox.put(Outgoing::Bulk(bulk));
                });
            }
        };
        if let Err(error) = std::thread::Builder::new().name("ebb-copy".to_owned()).spawn(copy) {
            tracing::error!(%error, "no thread is left to copy the replica for a newcomer; it is given up at the deadline of its proposal");
        }
    }

    fn put(&mut self, to: Peer, outgoing: Outgoing) {
        if let Some(link) = self.used.get(&to).and_then(|id| self.links.get(id)) {
            link.outbox.put(outgoing);
        }
    }

    /// Waits until what was said is written, for a bounded time: the last thing an executor does.
    pub fn flush(&self) {
        let until = Instant::now() + FLUSH_TIMEOUT;
        while self.shared.sent.unwritten.load(Ordering::Acquire) > 0 && Instant::now() < until {
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
                Ok(made) => run_link(&accepting, made, handshake::accepted),
                Err(error) => tracing::warn!(%error, "a connection was refused"),
            }
        });
        if spawned.is_err() {
            shared.handshakes.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// A link that is made: its connection, its name, and both ends of its queue.
struct Made {
    stream: TcpStream,
    id: LinkId,
    link: Link,
    queue: Queue,
}

/// By which others recognise this process, if there can be such a thing.
fn door() -> Option<Arc<Door>> {
    let mut word = [0; 16];
    let made = getrandom::fill(&mut word).map_err(io::Error::other).and_then(|()| Door::new(word));
    made.inspect_err(|error| tracing::warn!(%error, "sums are copied to executors of the same host")).ok().map(Arc::new)
}

fn accept(shared: &Shared, stream: TcpStream) -> Result<Made, HandshakeError> {
    stream.set_nodelay(true)?;
    let peer = handshake::accept(&shared.identity, &mut Timed::new(&stream, HANDSHAKE_TIMEOUT))?;
    Ok(make_link(shared, peer, stream)?)
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
    Ok(make_link(shared, peer, stream)?)
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
fn run_link(shared: &Shared, made: Made, last_word: impl FnOnce(&mut TcpStream) -> io::Result<()>) {
    let Made { mut stream, id, link, queue } = made;
    let (peer, outbox, lender) = (id.peer, Arc::downgrade(&link.outbox), Arc::new(Lender::default()));
    if let Some(door) = &shared.door {
        link.outbox.put(Outgoing::Control(frame(Control::Sign, &encode_sign(&door.sign()))));
    }
    if shared.inbox.send(Event::Linked(id, link)).is_err() {
        return;
    }
    let begun = last_word(&mut stream)
        .and_then(|()| stream.set_read_timeout(Some(SILENCE_MAX)))
        .and_then(|()| queue.write_to(peer, &stream, &lender));
    let end = match begun {
        Ok(()) => Reader { shared, id, outbox, lender: &lender, files: Files::default() }.read_frames(&stream),
        Err(error) => Err(error.to_string()),
    };
    tracing::debug!(%peer, ?end, "link ended");
    let _ = stream.shutdown(Shutdown::Both);
    let _ = shared.inbox.send(Event::Lost(id));
    // Last, because it may wait as long as the peer lives.
    lender.close();
}

fn make_link(shared: &Shared, peer: Peer, stream: TcpStream) -> io::Result<Made> {
    let number = shared.links_made.fetch_add(1, Ordering::Relaxed);
    let (outbox, queue) = Outbox::new(&stream, shared.sent.clone())?;
    Ok(Made { stream, id: LinkId { peer, number }, link: Link { outbox: Arc::new(outbox) }, queue })
}

/// The thread that reads a link.
struct Reader<'a> {
    shared: &'a Shared,
    id: LinkId,
    outbox: Weak<Outbox>,
    lender: &'a Lender,
    files: Files,
}

impl Reader<'_> {
    /// Reads until the link ends or breaks the format; the text says which, for the log.
    fn read_frames(&mut self, stream: &TcpStream) -> Result<(), String> {
        let mut stream = BufReader::with_capacity(READ_BYTES, stream);
        loop {
            let header = Header::decode(&exactly::<HEADER_LEN>(&mut stream)?).map_err(|e| e.to_string())?;
            let heard = match header.frame {
                Frame::Control(Control::Ping) => true,
                Frame::Control(Control::Message) => self.control(&mut stream, header)?,
                Frame::Bulk(kind) => self.bulk(&mut stream, header, kind)?,
                Frame::Lent(kind) => self.lent(header, kind, &Loan::decode(&exactly::<LOAN_LEN>(&mut stream)?))?,
                Frame::Control(Control::Returned) => {
                    let loan = u64::from_le_bytes(exactly::<LOAN_NUMBER_LEN>(&mut stream)?);
                    self.lender.take_back(loan).then_some(true).ok_or("a loan came back that was not out")?
                }
                Frame::Control(Control::Sign) => {
                    self.recognise(&exactly::<SIGN_LEN>(&mut stream)?);
                    true
                }
                Frame::Control(Control::Readable) => {
                    self.lender.is_readable();
                    true
                }
                Frame::Control(Control::Shows) => {
                    self.see(&mut stream, header)?;
                    true
                }
            };
            if !heard {
                return Ok(());
            }
        }
    }

    /// Tells the trainer; whether there is one.
    fn say(&self, event: Event) -> bool {
        self.shared.inbox.send(event).is_ok()
    }

    fn control(&self, stream: &mut impl Read, header: Header) -> Result<bool, String> {
        let mut payload = vec![0; header.payload_len as usize];
        stream.read_exact(&mut payload).map_err(|e| e.to_string())?;
        let envelope = from_bytes(&payload).map_err(|e| e.to_string())?;
        Ok(self.say(Event::Message { link: self.id, envelope, bytes: payload.len() }))
    }

    fn bulk(&self, stream: &mut impl Read, header: Header, kind: Kind) -> Result<bool, String> {
        let bulk = header.bulk(kind);
        let mut stretch = Stretch::room(&self.shared.pieces, bulk.elements);
        if let Some(elements) = stretch.here_mut() {
            stream.read_exact(bytes_of_mut(elements)).map_err(|e| e.to_string())?;
        }
        Ok(self.say(Event::Bulk(self.id, bulk, stretch)))
    }

    fn lent(&mut self, header: Header, kind: Kind, loan: &Loan) -> Result<bool, String> {
        let mut offset = header.offset;
        for piece in self.files.borrow(self.lender.process(), (kind, loan), &self.outbox)? {
            let bulk = Bulk { offset, elements: piece.len(), ..header.bulk(kind) };
            offset += piece.len() as u64;
            if !self.say(Event::Bulk(self.id, bulk, Stretch::Lent(piece))) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn see(&mut self, stream: &mut impl Read, header: Header) -> Result<(), String> {
        let mut payload = vec![0; header.payload_len as usize];
        stream.read_exact(&mut payload).map_err(|e| e.to_string())?;
        let shown = payload.as_chunks().0.iter().map(Shown::decode).collect::<Vec<_>>();
        self.files.see(self.lender.process(), &shown);
        Ok(())
    }

    fn recognise(&self, sign: &[u8; SIGN_LEN]) {
        if self.shared.door.is_some()
            && self.lender.recognise(&decode_sign(sign))
            && let Some(outbox) = self.outbox.upgrade()
        {
            outbox.put(Outgoing::Control(frame(Control::Readable, &[])));
        }
    }
}

fn exactly<const LEN: usize>(stream: &mut impl Read) -> Result<[u8; LEN], String> {
    let mut bytes = [0; LEN];
    stream.read_exact(&mut bytes).map_err(|e| e.to_string())?;
    Ok(bytes)
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::inbox::inbox;
    use crate::keys::{LinkKeys, tests::pair};
    use events_schema::orders::LinkKey;
    use events_schema::{Digest, Generation, JobId};
    use std::sync::mpsc::Receiver;
    use std::sync::{Condvar, Mutex};
    use workers_session::Message;

    /// Reached only by a failure.
    const WAIT_MAX: Duration = Duration::from_secs(30);

    fn network(me: u32) -> (Network, Receiver<Event>) {
        network_with(me, Memory::Lent)
    }

    fn network_with(me: u32, memory: Memory) -> (Network, Receiver<Event>) {
        let (sender, events) = inbox();
        let job = JobId::parse("job-a").unwrap();
        let keys = Arc::new(LinkKeys::of(&[pair(1, 0, 1), LinkKey { peer: 1 - me, ..pair(1, 0, 1) }]));
        let identity = Identity { job, me: Peer(me), class: Digest::of(b"x"), keys };
        (Network::listen("127.0.0.1", identity, sender, memory).unwrap(), events)
    }

    /// Two that are linked.
    pub(crate) fn linked() -> [(Network, Receiver<Event>); 2] {
        let mut both = [network(0), network(1)];
        both[1].0.dial(Peer(0), both[0].0.address().to_string());
        both.iter_mut().for_each(link);
        both
    }

    fn link((network, events): &mut (Network, Receiver<Event>)) {
        let Event::Linked(id, link) = events.recv_timeout(WAIT_MAX).unwrap() else { panic!("not linked") };
        network.linked(id, link);
        network.take(id);
    }

    pub(crate) fn next_bulk(events: &Receiver<Event>) -> (Bulk, Stretch) {
        match events.recv_timeout(WAIT_MAX).unwrap() {
            Event::Bulk(_, bulk, stretch) => (bulk, stretch),
            other => panic!("{other:?}"),
        }
    }

    /// How much a slow link may let through in one direction.
    #[derive(Default)]
    struct Gate {
        allowed: Mutex<u64>,
        more: Condvar,
    }

    impl Gate {
        fn allow(&self, bytes: u64) {
            *self.allowed.lock().unwrap() += bytes;
            self.more.notify_all();
        }

        /// Copies what is allowed, in short stretches.
        fn let_through(&self, mut from: TcpStream, mut to: TcpStream) {
            let (mut through, mut stretch) = (0, [0; 4_096]);
            while let Ok(len @ 1..) = from.read(&mut stretch) {
                through += len as u64;
                let allowed = self.allowed.lock().unwrap();
                drop(self.more.wait_while(allowed, |allowed| *allowed < through).unwrap());
                if io::Write::write_all(&mut to, &stretch[..len]).is_err() {
                    return;
                }
            }
        }
    }

    /// Two that are linked over a slow link, with a gate for what each of them sends.
    fn linked_through(gates: &[Arc<Gate>; 2]) -> [(Network, Receiver<Event>); 2] {
        const BUFFER_BYTES: usize = 64 << 10;
        let mut both = [network_with(0, Memory::Copied), network_with(1, Memory::Copied)];
        let front = TcpListener::bind("127.0.0.1:0").unwrap();
        socket2::SockRef::from(&front).set_recv_buffer_size(BUFFER_BYTES).unwrap();
        let (address, target) = (front.local_addr().unwrap().to_string(), both[0].0.address());
        both[1].0.dial(Peer(0), address);
        let one = front.accept().unwrap().0;
        let other = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        other.set_recv_buffer_size(BUFFER_BYTES).unwrap();
        other.connect(&target.into()).unwrap();
        let other = TcpStream::from(other);
        for (gate, from, to) in [(&gates[0], &other, &one), (&gates[1], &one, &other)] {
            let (from, to, gate) = (from.try_clone().unwrap(), to.try_clone().unwrap(), Arc::clone(gate));
            std::thread::spawn(move || gate.let_through(from, to));
        }
        both.iter_mut().for_each(link);
        both
    }

    /// What is said next, and how many elements came before it.
    fn next_said(events: &Receiver<Event>) -> (Message, usize) {
        let mut elements = 0;
        loop {
            match events.recv_timeout(WAIT_MAX).expect("it is not behind the gradient") {
                Event::Bulk(_, bulk, _) => elements += bulk.elements,
                Event::Message { envelope, .. } => return (envelope.message, elements),
                other => panic!("{other:?}"),
            }
        }
    }

    /// Both are sending each other a gradient of 35 MB, of which a slow link lets an eighth through each way: who asks in the midst of it whether it may go is answered.
    #[test]
    fn who_asks_to_leave_in_the_midst_of_a_gradient_is_answered_before_it_has_come() {
        const ELEMENTS: usize = 35 << 18;
        const EIGHTH_BYTES: u64 = 35 << 17;
        let gates = [Arc::new(Gate::default()), Arc::new(Gate::default())];
        gates.iter().for_each(|gate| gate.allow(1 << 20));
        let [(mut asks, asked), (mut stays, heard)] = linked_through(&gates);
        let tag = Tag { generation: Generation(1), revision: 0 };
        for (network, to) in [(&mut asks, Peer(1)), (&mut stays, Peer(0))] {
            let data = Arc::new(vec![0.5_f32; ELEMENTS]) as SharedElements;
            network.send(OutgoingSlice { to, kind: Kind::Gradient, offset: 0, data, range: 0..ELEMENTS }, tag, Step(3));
        }
        let came = [&asked, &heard].map(|events| next_bulk(events).0.elements);
        asks.say(Peer(1), &Envelope { tag, message: Message::MayGo });
        gates[0].allow(EIGHTH_BYTES);
        let (question, before_question) = next_said(&heard);
        stays.say(Peer(0), &Envelope { tag, message: Message::Stays });
        gates[1].allow(EIGHTH_BYTES);
        let (answer, before_answer) = next_said(&asked);
        assert_eq!((question, answer), (Message::MayGo, Message::Stays));
        gates.iter().for_each(|gate| gate.allow(u64::MAX / 2));
        for (events, came) in [(&asked, came[0] + before_answer), (&heard, came[1] + before_question)] {
            let mut came = came;
            while came < ELEMENTS {
                let (bulk, _) = next_bulk(events);
                assert_eq!(bulk.offset as usize, came, "bulk keeps its order");
                came += bulk.elements;
            }
        }
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
