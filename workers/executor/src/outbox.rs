//! What is to be written on a link, and the thread that writes it.
//!
//! The trainer never waits here: it puts slices into a link's queue, and the writer thread cuts them into pieces. Control overtakes bulk there, also between
//! two pieces of one slice, and little of what is written waits in the kernel: what somebody waits for is never behind a gradient. What is queued shares
//! the trainer's buffers; a queue that overflows means a peer that does not read, and its link is cut.

use crate::buffers::SharedElements;
use crate::lending::Lender;
use crate::wire::{Control, ELEMENT_LEN, Frame, HEADER_LEN, Header, LOAN_LEN, Loan, PIECE_ELEMENTS, bytes_of};
use events_schema::{Generation, Step};
use socket2::SockRef;
use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};
use std::net::{Shutdown, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use workers_session::{Peer, Tag};

/// Entries in a link's queue: pieces of a chunk of the largest model, twice.
const OUTGOING_MAX: usize = 16_384;
/// Bytes of control in it: twice what a session keeps that is told of a membership before it knows of it.
const CONTROL_BYTES_MAX: usize = 16 << 20;
/// Entries of a queue that are written before what was said first counts as written.
const TOGETHER_MAX: usize = 64;
/// Bytes that the kernel holds of a link and has not sent: a piece. What is put after them is sent after them, at 40 Mbit/s 50 ms later; the kernel wakes
/// a writer at half of it, which at 10 Gbit/s leaves it 0.1 ms to put more.
const UNSENT_BYTES_MAX: u32 = 256 << 10;
/// A link with nothing else to say says that it lives this often.
const PING_INTERVAL: Duration = Duration::from_secs(1);
/// A longer loan is memory that its lender misses, and is given back at once.
const RETURNED_LATER_ELEMENTS_MAX: usize = PIECE_ELEMENTS;
/// So many shorter ones are given back without waiting for something else to write: what they hold is 4 MiB at most.
const RETURNED_LATER_MAX: usize = 16;

/// What is to be written on a link.
#[derive(Debug)]
pub struct Outbox {
    line: Arc<Line>,
    stream: TcpStream,
    sent: Sent,
    returns: Returns,
}

/// What was written, on all links.
#[derive(Debug, Clone, Default)]
pub struct Sent {
    /// Bulk payload written or lent.
    pub bulk_bytes: Arc<AtomicU64>,
    /// All else.
    pub header_bytes: Arc<AtomicU64>,
    /// Entries put into queues and not yet written.
    pub unwritten: Arc<AtomicUsize>,
}

/// The other end of an outbox: what is next written of it.
#[derive(Debug)]
pub struct Queue {
    line: Arc<Line>,
    sent: Sent,
    returns: Returns,
}

/// Short loans that were read, to be given back with what is written next. Nobody is woken for them.
type Returns = Arc<Mutex<Vec<u64>>>;

/// What a writer thread writes, by its class.
#[derive(Debug)]
pub enum Outgoing {
    /// Whole frames.
    Control(Vec<u8>),
    /// What they overtake.
    Bulk(OutgoingBulk),
}

/// A stretch of a vector, which is lent where that can be, or else cut into pieces.
pub struct OutgoingBulk {
    /// Of its first piece, apart from its length.
    pub header: Header,
    /// The vector.
    pub data: SharedElements,
    /// Which of it.
    pub range: Range<usize>,
}

impl std::fmt::Debug for OutgoingBulk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("OutgoingBulk").field(&self.range).finish()
    }
}

impl OutgoingBulk {
    /// What is written of it at once.
    fn piece(&self) -> (Header, &[u8]) {
        let end = (self.range.start + PIECE_ELEMENTS).min(self.range.end);
        let piece = bytes_of(&self.data[self.range.start..end]);
        (Header { payload_len: piece.len() as u32, ..self.header }, piece)
    }

    /// What is left after that.
    fn rest(mut self) -> Option<Self> {
        let piece = self.range.len().min(PIECE_ELEMENTS);
        self.range.start += piece;
        self.header.offset += piece as u64;
        (!self.range.is_empty()).then_some(self)
    }
}

/// What waits to be written: control before bulk, and each in the order in which it was put.
#[derive(Debug, Default)]
struct Waiting {
    control: VecDeque<Vec<u8>>,
    control_bytes: usize,
    bulk: VecDeque<OutgoingBulk>,
    /// Whether its writer sleeps until there is something.
    sleeps: bool,
    ends: Ends,
}

/// Which ends of a queue there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Ends {
    #[default]
    Both,
    /// Nobody puts anything any more.
    Writer,
    /// Nobody writes.
    Neither,
}

impl Waiting {
    /// What there is no room for is given back.
    fn put(&mut self, outgoing: Outgoing) -> Result<(), Outgoing> {
        if self.len() >= OUTGOING_MAX {
            return Err(outgoing);
        }
        match outgoing {
            Outgoing::Control(frames) if self.control_bytes + frames.len() > CONTROL_BYTES_MAX => {
                return Err(Outgoing::Control(frames));
            }
            Outgoing::Control(frames) => {
                self.control_bytes += frames.len();
                self.control.push_back(frames);
            }
            Outgoing::Bulk(bulk) => self.bulk.push_back(bulk),
        }
        Ok(())
    }

    fn next(&mut self) -> Option<Outgoing> {
        if let Some(frames) = self.control.pop_front() {
            self.control_bytes -= frames.len();
            return Some(Outgoing::Control(frames));
        }
        self.bulk.pop_front().map(Outgoing::Bulk)
    }

    fn len(&self) -> usize {
        self.control.len() + self.bulk.len()
    }
}

/// A queue, and how its writer is woken.
#[derive(Debug, Default)]
struct Line {
    waiting: Mutex<Waiting>,
    more: Condvar,
}

/// What a writer finds when it has waited.
enum Found {
    Next(Outgoing),
    /// Nothing for so long.
    Silence,
    /// Nothing, and nothing is going to come.
    End,
}

impl Line {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self, mut waiting: MutexGuard<'_, Waiting>) {
        if std::mem::take(&mut waiting.sleeps) {
            drop(waiting);
            self.more.notify_one();
        }
    }

    fn next(&self) -> Option<Outgoing> {
        self.lock().next()
    }

    fn wait(&self, time: Duration) -> Found {
        let until = Instant::now() + time;
        let mut waiting = self.lock();
        loop {
            if let Some(next) = waiting.next() {
                return Found::Next(next);
            }
            let left = until.saturating_duration_since(Instant::now());
            if waiting.ends != Ends::Both || left.is_zero() {
                return if waiting.ends == Ends::Both { Found::Silence } else { Found::End };
            }
            waiting.sleeps = true;
            waiting = self.more.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner).0;
            waiting.sleeps = false;
        }
    }

    /// The rest of what was taken out, to be the next bulk.
    fn put_back(&self, rest: OutgoingBulk) {
        self.lock().bulk.push_front(rest);
    }
}

impl Outbox {
    /// Of a connection, which nobody writes on yet.
    pub fn new(stream: &TcpStream, sent: Sent) -> io::Result<(Self, Queue)> {
        SockRef::from(stream).set_tcp_notsent_lowat(UNSENT_BYTES_MAX)?;
        let (line, returns) = (Arc::<Line>::default(), Returns::default());
        let queue = Queue { line: Arc::clone(&line), sent: sent.clone(), returns: Arc::clone(&returns) };
        Ok((Self { line, stream: stream.try_clone()?, sent, returns }, queue))
    }

    /// Ends the connection.
    pub fn end(&self) {
        // It may have ended by itself.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// To be written after what was put there before of the same class, and before what is of a lesser one.
    pub fn put(&self, outgoing: Outgoing) {
        let mut waiting = self.line.lock();
        if waiting.ends == Ends::Neither {
            return;
        }
        if let Err(left) = waiting.put(outgoing) {
            drop(waiting);
            // Not before: what is lent goes back through an outbox.
            drop(left);
            tracing::error!("a peer does not read; its link is cut");
            // Its reader sees the end and tells of it.
            return self.end();
        }
        self.sent.unwritten.fetch_add(1, Ordering::Relaxed);
        self.line.wake(waiting);
    }

    /// What a peer has lent is not read any more.
    pub fn give_back(&self, loan: u64, elements: usize) {
        let mut returns = self.returns.lock().unwrap_or_else(PoisonError::into_inner);
        returns.push(loan);
        if elements > RETURNED_LATER_ELEMENTS_MAX || returns.len() >= RETURNED_LATER_MAX {
            let frames = returned(&mut returns);
            drop(returns);
            self.put(Outgoing::Control(frames));
        }
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        let mut waiting = self.line.lock();
        waiting.ends = Ends::Writer;
        self.line.wake(waiting);
    }
}

/// The frames that give loans back.
fn returned(loans: &mut Vec<u64>) -> Vec<u8> {
    loans.drain(..).flat_map(|loan| frame(Control::Returned, &loan.to_le_bytes())).collect()
}

/// A control frame that belongs to no step.
#[must_use]
pub fn frame(control: Control, payload: &[u8]) -> Vec<u8> {
    frame_in(Tag { generation: Generation(0), revision: 0 }, control, payload)
}

/// One that is said in a membership.
#[must_use]
pub fn frame_in(tag: Tag, control: Control, payload: &[u8]) -> Vec<u8> {
    let (frame, payload_len) = (Frame::Control(control), payload.len() as u32);
    [&Header { frame, tag, step: Step(0), offset: 0, payload_len }.encode(), payload].concat()
}

impl Queue {
    /// Starts the thread that writes it.
    pub fn write_to(self, peer: Peer, stream: &TcpStream, lender: &Arc<Lender>) -> io::Result<()> {
        let (stream, lender) = (stream.try_clone()?, Arc::clone(lender));
        let writer = move || {
            if let Err(error) = self.write_all(&stream, &lender) {
                tracing::debug!(%peer, %error, "writing to a peer ended");
            }
            // Wakes the reader, which tells the trainer.
            let _ = stream.shutdown(Shutdown::Both);
        };
        std::thread::Builder::new().name(format!("ebb-to-{peer}")).spawn(writer).map(drop)
    }

    fn write_all(&self, mut stream: &TcpStream, lender: &Lender) -> io::Result<()> {
        let Self { line, sent, returns } = self;
        let returned = || returned(&mut returns.lock().unwrap_or_else(PoisonError::into_inner));
        // What is short is written together: each write wakes the peer's reader, and that its trainer.
        let mut short = Vec::new();
        loop {
            let first = match line.wait(PING_INTERVAL) {
                Found::Next(first) => first,
                Found::Silence => {
                    short.extend(returned());
                    write_short(sent, stream, &mut short)?;
                    stream.write_all(&frame(Control::Ping, &[]))?;
                    continue;
                }
                Found::End => return Ok(()),
            };
            let mut taken = Taken { unwritten: &sent.unwritten, entries: 0 };
            short.extend(returned());
            for next in std::iter::once(first).chain(std::iter::from_fn(|| line.next())).take(TOGETHER_MAX) {
                taken.entries += 1;
                match next {
                    Outgoing::Control(frames) => short.extend(frames),
                    Outgoing::Bulk(bulk) => match lender.lend(&bulk.data, &bulk.range) {
                        Some(loan) => short.extend(lent(sent, bulk.header, &loan)),
                        None => {
                            write_short(sent, stream, &mut short)?;
                            write_piece(sent, stream, &bulk)?;
                            if let Some(rest) = bulk.rest() {
                                taken.entries -= 1;
                                line.put_back(rest);
                            }
                        }
                    },
                }
            }
            write_short(sent, stream, &mut short)?;
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let nobody = Waiting { ends: Ends::Neither, ..Waiting::default() };
        let left = std::mem::replace(&mut *self.line.lock(), nobody);
        drop(Taken { unwritten: &self.sent.unwritten, entries: left.len() });
    }
}

/// Entries of queues that are being written: they count as unwritten until they are, or never will be.
struct Taken<'a> {
    unwritten: &'a AtomicUsize,
    entries: usize,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.unwritten.fetch_sub(self.entries, Ordering::Release);
    }
}

fn write_short(sent: &Sent, mut stream: &TcpStream, short: &mut Vec<u8>) -> io::Result<()> {
    stream.write_all(short)?;
    sent.header_bytes.fetch_add(short.len() as u64, Ordering::Relaxed);
    short.clear();
    Ok(())
}

/// The frame that says what is lent.
fn lent(sent: &Sent, header: Header, loan: &Loan) -> Vec<u8> {
    let Frame::Bulk(kind) = header.frame else { return Vec::new() };
    let header = Header { frame: Frame::Lent(kind), payload_len: LOAN_LEN as u32, ..header };
    sent.bulk_bytes.fetch_add(ELEMENT_LEN as u64 * loan.elements, Ordering::Relaxed);
    [&header.encode()[..], &loan.encode()].concat()
}

fn write_piece(sent: &Sent, stream: &TcpStream, bulk: &OutgoingBulk) -> io::Result<()> {
    let (header, piece) = bulk.piece();
    write_both(stream, &header.encode(), piece)?;
    sent.bulk_bytes.fetch_add(piece.len() as u64, Ordering::Relaxed);
    sent.header_bytes.fetch_add(HEADER_LEN as u64, Ordering::Relaxed);
    Ok(())
}

/// Writes one after the other, from where they lie.
fn write_both(mut stream: &TcpStream, first: &[u8], second: &[u8]) -> io::Result<()> {
    let mut slices = [IoSlice::new(first), IoSlice::new(second)];
    let mut slices = &mut slices[..];
    while !slices.is_empty() {
        match stream.write_vectored(slices) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut slices, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Read;
    use std::net::TcpListener;
    use workers_member::Kind;

    const PIECE_BYTES: usize = PIECE_ELEMENTS * ELEMENT_LEN;

    fn bulk(elements: usize) -> OutgoingBulk {
        let tag = Tag { generation: Generation(1), revision: 0 };
        let header = Header { frame: Frame::Bulk(Kind::Gradient), tag, step: Step(3), offset: 1_000, payload_len: 0 };
        OutgoingBulk { header, data: Arc::new(vec![0.5_f32; elements]), range: 0..elements }
    }

    fn next(waiting: &mut Waiting) -> Option<(bool, usize)> {
        waiting.next().map(|next| match next {
            Outgoing::Control(frames) => (true, frames.len()),
            Outgoing::Bulk(bulk) => (false, bulk.range.len()),
        })
    }

    #[test]
    fn control_is_next_however_much_bulk_waits_and_each_class_keeps_its_order() {
        let mut waiting = Waiting::default();
        for elements in 1..=100 {
            waiting.put(Outgoing::Bulk(bulk(elements))).unwrap();
        }
        waiting.put(Outgoing::Control(vec![0; 7])).unwrap();
        waiting.put(Outgoing::Bulk(bulk(101))).unwrap();
        waiting.put(Outgoing::Control(vec![0; 8])).unwrap();
        assert_eq!([next(&mut waiting), next(&mut waiting)], [Some((true, 7)), Some((true, 8))]);
        for elements in 1..=50 {
            assert_eq!(next(&mut waiting), Some((false, elements)));
        }
        waiting.put(Outgoing::Control(vec![0; 9])).unwrap();
        assert_eq!(next(&mut waiting), Some((true, 9)));
        assert_eq!(next(&mut waiting), Some((false, 51)));
        assert_eq!((waiting.len(), waiting.control_bytes), (50, 0));
    }

    #[test]
    fn a_queue_is_bounded_in_entries_and_its_control_in_bytes() {
        let mut waiting = Waiting::default();
        let frames = || Outgoing::Control(vec![0; CONTROL_BYTES_MAX / 2]);
        assert!(waiting.put(frames()).is_ok() && waiting.put(frames()).is_ok());
        assert!(waiting.put(Outgoing::Control(vec![0])).is_err());
        next(&mut waiting).unwrap();
        assert!(waiting.put(frames()).is_ok());
        let mut waiting = Waiting::default();
        let put = std::iter::repeat_with(|| waiting.put(Outgoing::Bulk(bulk(0)))).take_while(Result::is_ok);
        assert_eq!(put.count(), OUTGOING_MAX);
    }

    #[test]
    fn pieces_of_a_stretch_are_what_it_is() {
        let mut next = Some(bulk(2 * PIECE_ELEMENTS + 5));
        let mut pieces = Vec::new();
        while let Some(bulk) = next {
            let (header, piece) = bulk.piece();
            assert_eq!(header.payload_len as usize, piece.len());
            pieces.push((header.offset, piece.len()));
            next = bulk.rest();
        }
        let at = |piece: u64| 1_000 + piece * PIECE_ELEMENTS as u64;
        assert_eq!(pieces, [(at(0), PIECE_BYTES), (at(1), PIECE_BYTES), (at(2), 5 * ELEMENT_LEN)]);
    }

    /// A gradient of 35 MB is being written to a peer with a small buffer. What is said meanwhile comes before more than an eighth of it, and the gradient comes whole
    /// and in order.
    #[test]
    fn what_is_said_while_a_gradient_is_written_comes_in_the_midst_of_it() {
        const ELEMENTS: usize = 35 << 18;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        SockRef::from(&listener).set_recv_buffer_size(256 << 10).unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut far = listener.accept().unwrap().0;
        let sent = Sent::default();
        let (outbox, queue) = Outbox::new(&near, sent.clone()).unwrap();
        assert_eq!(SockRef::from(&near).tcp_notsent_lowat().unwrap(), UNSENT_BYTES_MAX);
        queue.write_to(Peer(1), &near, &Arc::default()).unwrap();
        outbox.put(Outgoing::Bulk(bulk(ELEMENTS)));
        let mut read = || {
            let mut header = [0; HEADER_LEN];
            far.read_exact(&mut header).unwrap();
            let header = Header::decode(&header).unwrap();
            far.read_exact(&mut vec![0; header.payload_len as usize]).unwrap();
            header
        };
        assert_eq!(read().offset, 1_000, "it is being written");
        outbox.put(Outgoing::Control(frame(Control::Returned, &[0; 8])));
        let (mut before, mut all) = (None, PIECE_BYTES);
        while all < ELEMENTS * ELEMENT_LEN {
            let header = read();
            match header.frame {
                Frame::Control(Control::Returned) => before = Some(all),
                Frame::Bulk(_) => {
                    assert_eq!(header.offset as usize, 1_000 + all / ELEMENT_LEN, "it keeps its order");
                    all += header.payload_len as usize;
                }
                other => assert_eq!(other, Frame::Control(Control::Ping)),
            }
        }
        assert_eq!(all, ELEMENTS * ELEMENT_LEN);
        assert!(before.is_some_and(|before| before <= all / 8), "{before:?} of {all} bytes before it");
    }
}
